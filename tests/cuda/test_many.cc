/* Gate and up of many rows, emulated with pairs of blocks that bring for each other: the bits of chains and their gate,
 * and how far those are from float64. */
#include "testing_products.h"

#include "cuda/many.cuh"

static struct dev device;

struct many_case {
    enum format format;
    uint32_t n_sms, n_rows, n_out, n_in;
    enum glu glu;
    bool is_biased;
};

/* A lane's sum as the gate reads it. */
static float rounded(enum format format, float x)
{
    return format == FORMAT_BF16 ? as_bf16(x) : x;
}

/* How many outputs are not the bits that they should be, all where these are far from float64; rows that are not there
 * count too. */
static size_t n_wrong(const many_case &c, bool backwards)
{
    const bool is_bf16 = c.format == FORMAT_BF16;
    const halves m = make_matrix(is_bf16, 2 * c.n_out, c.n_in), a(is_bf16, (size_t)c.n_rows * c.n_in, 1.0f);
    const size_t one = (size_t)c.n_out * c.n_in, n = (size_t)c.n_rows * c.n_out;
    aligned<uint16_t> out(n + 8 * c.n_out);
    aligned<float> gate_bias(c.n_out), up_bias(c.n_out);
    for (uint32_t o = 0; o < c.n_out; o++) {
        gate_bias.p[o] = c.is_biased ? random_normal() : 0.0f;
        up_bias.p[o] = c.is_biased ? random_normal() : 0.0f;
    }
    struct skinny_job j = job_of(m, a, SKINNY_GLU, c.n_rows, c.n_out, c.n_in);
    j.w1 = j.w0 + one * 2;
    j.glu = c.glu;
    j.bias0 = c.is_biased ? gate_bias.p : NULL;
    j.bias1 = c.is_biased ? up_bias.p : NULL;
    (is_bf16 ? j.act_bf16 : j.act_f16) = out.p;
    device.n_sms = c.n_sms;
    run_job(&device, cuda_many, c.format, j, backwards);
    std::vector<double> want(n);
    std::vector<float> got(n);
    size_t wrong = 0;
    for (size_t i = n; i < out.n; i++)
        wrong += out.p[i] != 0xffff;
    for (size_t i = 0; i < n; i++) {
        const float *x = &a.values[i / c.n_out * c.n_in], *w = &m.values[i % c.n_out * c.n_in];
        const float g = rounded(c.format, chain(x, w, c.n_in)) + gate_bias.p[i % c.n_out];
        const float u = rounded(c.format, chain(x, w + one, c.n_in)) + up_bias.p[i % c.n_out];
        const float y = glu_of(g, u, c.glu);
        const double gate = dot(x, w, c.n_in) + gate_bias.p[i % c.n_out];
        const double up = dot(x, w + one, c.n_in) + up_bias.p[i % c.n_out];
        want[i] = up * (c.glu == GLU_SILU
                               ? gate / (1.0 + std::exp(-gate))
                               : 0.5 * gate * (1.0 + std::tanh(0.7978845608 * (gate + 0.044715 * gate * gate * gate))));
        got[i] = head_value(out.p, i, is_bf16 ? DTYPE_BF16 : DTYPE_F16);
        wrong += out.p[i] != (is_bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(y)) : __half_as_ushort(half_of(y)));
    }
    return distance_of(got.data(), want.data(), n) < (is_bf16 ? 4e-3 : 4e-4) ? wrong : n;
}

int main()
{
    device.capability = 90;
    const many_case cases[] = {
        {FORMAT_BF16, 2, 100, 96, 136, GLU_SILU, false}, /* tiles of 192 weight rows, beside each other */
        {FORMAT_F16, 3, 250, 112, 520, GLU_SILU, true},  /* of 224, below each other */
        {FORMAT_BF16, 4, 300, 264, 72, GLU_GELU, true},  /* of any, more than there are blocks */
        {FORMAT_F16, 6, 129, 248, 328, GLU_GELU, false},
        {FORMAT_BF16, 2, 256, 256, 584, GLU_SILU, false},
    };
    for (const many_case &c : cases) {
        const size_t wrong = n_wrong(c, c.n_sms % 2 != 0);
        expect(wrong == 0, std::to_string(c.n_out) + "x" + std::to_string(c.n_in) + ", " + std::to_string(c.n_rows) +
                               " rows: " + std::to_string(wrong) + " wrong");
    }
    const many_case planted = cases[4];
    expect_sound([&] { return n_wrong(planted, false) == 0; });
    expect_found("who multiplies does not wait for weights", [&] {
        emulated_hurries = [] { return threadIdx.x < MANY_THREADS; };
        return n_wrong(planted, false) == 0;
    });
    expect_found("a place of the ring is taken before both blocks have left it", [&] {
        emulated_hurries = [] { return threadIdx.x == MANY_THREADS; };
        return n_wrong(planted, false) == 0;
    });
    return verdict("many");
}
