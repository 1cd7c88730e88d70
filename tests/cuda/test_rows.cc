/* Rows that norms and gates make, emulated: as f16 where few are made, as e4m3 with a scale where a product will read
 * that, against float64. Products are not made here: the test writes what they would have. */
#include "testing_cuda.h"

#include "cuda/skinny.h"

static struct dev device;
static uint32_t f8_from; /* rows from which products read e4m3 */

bool resident_norm(struct dev *, const struct norm_args *)
{
    return false;
}
bool resident_product(struct dev *, enum format, const struct skinny_job *, const struct acts *)
{
    return false;
}
struct ahead cuda_ahead(const struct dev *, uint64_t)
{
    static uint32_t n_asked; /* something to look at every other time */
    const struct ahead a = {(const unsigned char *)&device, ++n_asked % 2};
    return a;
}
void cuda_trace(struct dev *, const struct weight *, uint32_t)
{
}
void cuda_skinny(struct dev *, enum format, const struct skinny_job *)
{
    expect(false, "no product is made here");
}
bool cuda_is_skinny(const struct dev *, const struct matrix *, uint32_t)
{
    return false;
}
bool cuda_is_many(const struct dev *, const struct matrix *, uint32_t)
{
    return false;
}
void cuda_many(struct dev *, enum format, const struct skinny_job *)
{
    expect(false, "no product is made here");
}
bool cuda_f8_rows(const struct dev *, uint32_t n_rows)
{
    return n_rows >= f8_from;
}
bool cuda_gives_bf16(const struct dev *, const struct matrix *m)
{
    return m->format == FORMAT_F8;
}
bool cuda_adjacent(const struct weight *, const struct weight *)
{
    return true;
}
static const float *row_scales; /* of a product that was left unscaled; NULL = none is */
bool cuda_leaves_scales(const struct dev *, const struct matrix *, uint32_t)
{
    return row_scales != NULL;
}
const float *cuda_row_scales(const struct dev *, const struct acts *)
{
    return row_scales;
}
void cuda_product(struct dev *, const struct product *)
{
}

/* What was written, as numbers; whichever form it has. */
static std::vector<double> worth(const struct acts &a, uint32_t rows, bool expect_f8)
{
    std::vector<double> out;
    expect(a.has_f8 == expect_f8, "e4m3 is written when it will be read");
    for (size_t i = 0; i < (size_t)rows * a.n; i++)
        out.push_back(a.has_f8 ? (double)(float)((const __nv_fp8_e4m3 *)a.f8)[i] * (double)a.f8_scale[i / a.n]
                               : (double)__half2float(((const __half *)a.f16)[i]));
    return out;
}

static void check(const std::vector<double> &got, const std::vector<double> &want, bool f8, const std::string &what)
{
    const double bound = f8 ? 3.5e-2 : 1e-3, far = distance_of(got.data(), want.data(), want.size());
    expect(far < bound, what + " is off by " + std::to_string(far));
    std::vector<double> bad = want;
    for (size_t i = 0; i < bad.size() / 8; i++)
        bad[i] *= 1.5;
    expect(distance_of(got.data(), bad.data(), bad.size()) > bound, "the twin of " + what + " is seen");
}

struct acts_room {
    aligned<unsigned char> f8;
    aligned<float> scale;
    aligned<__half> f16;
    struct acts a;
    acts_room(uint32_t rows, uint32_t n) : f8((size_t)rows * n), scale(rows), f16((size_t)rows * n), a()
    {
        a.rows = rows;
        a.n = n;
        a.f8 = f8.p;
        a.f8_scale = scale.p;
        a.f16 = f16.p;
    }
};

static void check_norm(uint32_t n, uint32_t rows, uint32_t forms, bool f8)
{
    acts_room out(rows, n);
    aligned<float> x((size_t)(rows + 1) * n), gain(n);
    std::vector<uint32_t> from;
    for (size_t i = 0; i < x.n; i++)
        x.p[i] = random_normal() * 3.0f;
    for (uint32_t i = 0; i < n; i++)
        gain.p[i] = random_normal() + 1.0f;
    for (uint32_t i = 0; i < rows; i++)
        from.push_back(rows - i);
    if (rows > 2)
        std::memset(x.p + (size_t)from[1] * n, 0, n * sizeof(float)); /* a row of zeros */
    const struct norm_args args = {x.p, from.data(), rows, n, gain.p, 1e-5f, forms, &out.a};
    cuda_norm(&device, &args);
    std::vector<double> want;
    for (uint32_t r = 0; r < rows; r++) {
        const float *row = x.p + (size_t)from[r] * n;
        double sum = 0.0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)row[i] * (double)row[i];
        for (uint32_t i = 0; i < n; i++)
            want.push_back((double)row[i] / std::sqrt(sum / n + 1e-5) * (double)gain.p[i]);
    }
    check(worth(out.a, rows, f8), want, f8, "norm of " + std::to_string(n));
}

static void check_glu(uint32_t n, uint32_t rows, enum format format, uint32_t forms, bool f8, bool unscaled = false)
{
    acts_room out(rows, n);
    const bool bf16 = format == FORMAT_F8;
    aligned<float> scratch((size_t)rows * 2 * n), bias(n);
    std::vector<double> in, want;
    for (size_t i = 0; i < scratch.n; i++) {
        const __nv_bfloat16 x = __float2bfloat16_rn(random_normal());
        in.push_back((double)__bfloat162float(x));
        if (bf16)
            ((__nv_bfloat16 *)scratch.p)[i] = x;
        else
            scratch.p[i] = __bfloat162float(x);
    }
    for (uint32_t i = 0; i < n; i++)
        bias.p[i] = random_normal();
    aligned<float> of_rows(rows), of_columns(2 * n);
    for (uint32_t i = 0; i < rows; i++)
        of_rows.p[i] = unscaled ? std::fabs(random_normal()) + 0.5f : 1.0f;
    for (uint32_t i = 0; i < 2 * n; i++)
        of_columns.p[i] = unscaled ? std::fabs(random_normal()) + 0.5f : 1.0f;
    row_scales = unscaled ? of_rows.p : NULL;
    struct matrix m[2] = {};
    m[0].format = m[1].format = format;
    m[0].n_out = m[1].n_out = n;
    m[0].scales = of_columns.p;
    m[1].scales = of_columns.p + n;
    struct weight gate = {}, up = {};
    gate.n_out = up.n_out = n;
    gate.packed = &m[0];
    up.packed = &m[1];
    gate.bias = bias.p;
    struct batch b = {};
    b.n_rows = rows;
    const struct gate_up_args args = {NULL, &gate, &up, GLU_SILU, scratch.p, forms, &out.a};
    cuda_gate_up(&device, &b, &args);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < n; i++) {
            const double row = (double)of_rows.p[r], s = row * (double)of_columns.p[i];
            const double g = in[(size_t)r * 2 * n + i] * s + (double)bias.p[i];
            const double u = in[(size_t)r * 2 * n + n + i] * row * (double)of_columns.p[n + i];
            want.push_back(g / (1.0 + std::exp(-g)) * u);
        }
    check(worth(out.a, rows, f8), want, f8, "gate of " + std::to_string(n));
}

int main()
{
    f8_from = 3;
    for (const uint32_t n : {64u, 4096u, 5120u, 16384u})
        for (const uint32_t rows : {2u, 3u, 4u}) {
            check_norm(n, rows, ACT_F8, rows >= 3);
            check_norm(n, rows, ACT_F8 | ACT_F16, false);
        }
    check_norm(16400, 3, ACT_F8, false); /* more than a block holds */
    for (const uint32_t n : {64u, 14336u, 28672u})
        for (const uint32_t rows : {2u, 3u}) {
            check_glu(n, rows, FORMAT_F8, ACT_F8, rows >= 3);
            check_glu(n, rows, FORMAT_Q8, ACT_F16, false);
        }
    check_glu(32784, 3, FORMAT_F8, ACT_F8, false);
    check_glu(4096, 3, FORMAT_F8, ACT_F8, true, true);
    check_glu(272, 5, FORMAT_F8, ACT_F16, false, true);
    return verdict("rows");
}
