/* Products with 16-bit floats through any kernel behind skinny.h, against float64: every end, and that neither company
 * nor the order in which blocks and threads come changes bits. */
#ifndef TESTING_PRODUCTS_H
#define TESTING_PRODUCTS_H

#include "testing_cuda.h"

#include "cuda/skinny.h"

typedef void (*product_fn)(struct dev *d, enum format format, const struct skinny_job *j);

/* Numbers in 16 bits, and what those are. */
struct halves {
    aligned<uint16_t> bits;
    std::vector<float> values;
    halves(bool is_bf16, size_t n, float size) : bits(n), values(n)
    {
        for (size_t i = 0; i < n; i++)
            put(is_bf16, i, random_normal() * size);
    }
    void put(bool is_bf16, size_t i, float x)
    {
        const __nv_bfloat16 b = __float2bfloat16_rn(x);
        const __half h = __float2half_rn(x);
        std::memcpy(bits.p + i, is_bf16 ? (const void *)&b : (const void *)&h, 2);
        values[i] = is_bf16 ? __bfloat162float(b) : __half2float(h);
    }
};

inline double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One chain over k, 16 at a time, as the matrix unit adds. */
inline float chain(const float *a, const float *b, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < n; k += 16)
        sum += (float)dot(a + k, b + k, std::min(n - k, 16u));
    return sum;
}

/* One row of weights is zeros, so that a sum is. */
inline halves make_matrix(bool is_bf16, uint32_t n_out, uint32_t n_in)
{
    halves m(is_bf16, (size_t)n_out * n_in, 1.0f / std::sqrt((float)n_in));
    for (uint32_t k = 0; k < n_in; k++)
        m.put(is_bf16, (size_t)(n_out / 3) * n_in + k, 0.0f);
    return m;
}

inline struct skinny_job job_of(
    const halves &m, const halves &a, enum skinny_end end, uint32_t n_rows, uint32_t n_out, uint32_t n_in)
{
    struct skinny_job j = {};
    j.end = end;
    j.w0 = (const unsigned char *)m.bits.p;
    j.row_bytes = n_in * 2;
    j.n_in = n_in;
    j.n_out = n_out;
    j.act = a.bits.p;
    j.n_rows = n_rows;
    j.ldc = n_out;
    j.scale = 1.0f;
    return j;
}

/* What the kernel before writes is the activations; run with the last block and thread first as well. */
inline void run_job(struct dev *d, product_fn run, enum format format, const struct skinny_job &j, bool backwards)
{
    const unsigned char *act = (const unsigned char *)j.act;
    emulated_is_young = [=](const void *p) { return p >= act && p < act + (size_t)j.n_rows * j.n_in * 2; };
    emulated_is_backwards = backwards;
    run(d, format, &j);
    emulated_is_young = nullptr;
    emulated_is_backwards = false;
}

struct product_case {
    struct dev *d;
    product_fn run;
    enum format format;
    uint32_t n_rows, n_out, n_in;
    enum skinny_end end;
    enum glu glu;
    bool is_swapped; /* up lies before gate */

    std::string name() const
    {
        return std::string(format == FORMAT_BF16 ? "bf16 " : "f16 ") + std::to_string(n_out) + "x" +
               std::to_string(n_in) + ", " + std::to_string(n_rows) + " rows, end " + std::to_string(end) + ", " +
               std::to_string(d->n_sms) + " multiprocessors";
    }
};

/* How far the result is from float64; `spoil` is given the job before it runs. */
template <class Spoil> double product_distance(const product_case &c, Spoil &&spoil)
{
    const bool is_bf16 = c.format == FORMAT_BF16, is_glu = c.end == SKINNY_GLU;
    const size_t one = (size_t)c.n_out * c.n_in, n = (size_t)c.n_rows * c.n_out;
    halves m = make_matrix(is_bf16, (is_glu ? 2 : 1) * c.n_out, c.n_in);
    const halves a(is_bf16, (size_t)c.n_rows * c.n_in, 1.0f);
    std::vector<float> bias[2] = {std::vector<float>(c.n_out), std::vector<float>(c.n_out)};
    for (uint32_t i = 0; i < 2 * c.n_out; i++)
        bias[i % 2][i / 2] = random_normal();
    aligned<float> out(n);
    std::vector<double> want(n);
    for (size_t i = 0; c.end == SKINNY_ADD && i < n; i++)
        out.p[i] = random_normal();
    struct skinny_job j = job_of(m, a, c.end, c.n_rows, c.n_out, c.n_in);
    const size_t first = c.is_swapped ? one : 0;
    j.w0 = (const unsigned char *)(m.bits.p + first);
    j.w1 = (const unsigned char *)(m.bits.p + (one - first));
    j.glu = c.glu;
    if (is_glu) {
        j.bias0 = bias[0].data();
        j.bias1 = bias[1].data();
    }
    j.out = out.p;
    j.act_f32 = is_glu ? out.p : NULL;
    aligned<uint16_t> half(is_glu ? n : 1), other(is_glu ? n : 1);
    j.act_f16 = is_glu ? half.p : NULL;
    j.act_bf16 = is_glu ? other.p : NULL;
    for (uint32_t r = 0; r < c.n_rows; r++)
        for (uint32_t o = 0; o < c.n_out; o++) {
            const float *x = &a.values[(size_t)r * c.n_in];
            const double y = dot(x, &m.values[first + (size_t)o * c.n_in], c.n_in);
            const size_t at = (size_t)r * c.n_out + o;
            want[at] = y + (c.end == SKINNY_ADD ? out.p[at] : 0.0);
            if (is_glu) {
                const double g = y + bias[0][o];
                const double u = dot(x, &m.values[one - first + (size_t)o * c.n_in], c.n_in) + bias[1][o];
                want[at] =
                    u * (c.glu == GLU_SILU ? g / (1.0 + std::exp(-g))
                                           : 0.5 * g * (1.0 + std::tanh(0.7978845608 * (g + 0.044715 * g * g * g))));
            }
        }
    const std::vector<float> before(out.p, out.p + n);
    spoil(j);
    run_job(c.d, c.run, c.format, j, false);
    const std::vector<float> got(out.p, out.p + n);
    std::copy(before.begin(), before.end(), out.p);
    run_job(c.d, c.run, c.format, j, true);
    expect(std::memcmp(got.data(), out.p, n * sizeof(float)) == 0, c.name() + ": who comes first changes bits");
    bool same = true;
    for (size_t i = 0; is_glu && i < n; i++)
        same = same && half.p[i] == __half_as_ushort(half_of(got[i])) &&
               other.p[i] == __bfloat16_as_ushort(__float2bfloat16_rn(got[i]));
    expect(same, c.name() + ": the forms of a row differ");
    if (c.end == SKINNY_STORE && c.n_rows > 3) { /* three of the rows in a company of their own */
        const size_t few = (size_t)3 * c.n_out;
        j.act = (const uint16_t *)j.act + c.n_in;
        j.n_rows = 3;
        run_job(c.d, c.run, c.format, j, false);
        expect(std::memcmp(&got[c.n_out], out.p, few * sizeof(float)) == 0, c.name() + ": company changes bits");
        expect(std::memcmp(&got[0], out.p, few * sizeof(float)) != 0, "the twin is seen");
    }
    return distance_of(got.data(), want.data(), n);
}

inline void check_product(const product_case &c)
{
    const double far = product_distance(c, [](struct skinny_job &) {});
    expect(far < 1e-5, c.name() + ": " + std::to_string(far));
}

/* Heads turned, biased and written into the cache through their slots, of which one is none. first_head: the matrix
 * begins with that one of q, k, v behind each other. */
struct heads_case {
    struct dev *d;
    product_fn run;
    enum format format;
    enum rope_style rope;
    uint32_t n_rows, n_in, head_dim, turned, first_head;
    enum dtype kv;
};

inline float head_value(const void *cache, size_t at, enum dtype kv)
{
    return kv == DTYPE_F16    ? __half2float(((const __half *)cache)[at])
           : kv == DTYPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)cache)[at])
                              : ((const float *)cache)[at];
}

inline void check_heads(const heads_case &c)
{
    const uint32_t q_heads = 4, kv_heads = 2, n = c.head_dim, tokens = 16, all = (q_heads + 2 * kv_heads) * n;
    const uint32_t first = c.first_head * n, n_out = all - first, size = c.kv == DTYPE_F32 ? 4 : 2;
    const uint64_t block_bytes = (uint64_t)2 * kv_heads * tokens * n * size;
    const halves m = make_matrix(c.format == FORMAT_BF16, n_out, c.n_in);
    const halves a(c.format == FORMAT_BF16, (size_t)c.n_rows * c.n_in, 1.0f);
    aligned<float> q((size_t)c.n_rows * q_heads * n);
    aligned<unsigned char> blocks(3 * block_bytes);
    std::vector<float> table(100 * c.turned), bias(all), got, want;
    std::vector<uint32_t> pos(c.n_rows), slot(c.n_rows);
    for (float &b : bias)
        b = random_normal();
    for (float &t : table)
        t = random_normal();
    for (uint32_t r = 0; r < c.n_rows; r++) {
        pos[r] = r * 7 % 100;
        slot[r] = r == 1 ? KV_SLOT_NONE : 40 - r;
    }
    struct skinny_job j = job_of(m, a, SKINNY_QKV, c.n_rows, n_out, c.n_in);
    j.out = q.p;
    j.ldc = q_heads * n;
    j.heads = {q_heads, kv_heads, n, c.turned, c.rope, table.data(), pos.data(), slot.data(), blocks.p, block_bytes, 0,
        block_bytes / 2, tokens, n * size, c.kv,
        {bias.data(), bias.data() + q_heads * n, bias.data() + (q_heads + kv_heads) * n}, first};
    run_job(c.d, c.run, c.format, j, c.n_rows % 2 != 0);
    size_t n_cached = 0, n_written = 0;
    for (uint32_t r = 0; r < c.n_rows; r++)
        for (uint32_t h = c.first_head; h < q_heads + 2 * kv_heads; h++) {
            std::vector<double> x(n);
            for (uint32_t i = 0; i < n; i++)
                x[i] = dot(&a.values[(size_t)r * c.n_in], &m.values[(size_t)(h * n + i - first) * c.n_in], c.n_in) +
                       bias[h * n + i];
            for (uint32_t i = 0; c.rope != ROPE_NONE && h < q_heads + kv_heads && i < c.turned / 2; i++) {
                const uint32_t lo = c.rope == ROPE_PAIRS ? 2 * i : i;
                const uint32_t hi = c.rope == ROPE_PAIRS ? 2 * i + 1 : i + c.turned / 2;
                const double cos = table[pos[r] * c.turned + 2 * i], sin = table[pos[r] * c.turned + 2 * i + 1];
                const double u = x[lo];
                x[lo] = u * cos - x[hi] * sin;
                x[hi] = u * sin + x[hi] * cos;
            }
            if (h >= q_heads && slot[r] == KV_SLOT_NONE)
                continue;
            const uint32_t part = h < q_heads ? 0 : h < q_heads + kv_heads ? 1 : 2;
            const uint32_t local = part == 0 ? h : h - q_heads - (part - 1) * kv_heads;
            for (uint32_t i = 0; i < n; i++) {
                want.push_back((float)x[i]);
                got.push_back(part == 0
                                  ? q.p[((size_t)r * q_heads + h) * n + i]
                                  : head_value(blocks.p + slot[r] / tokens * block_bytes + (part - 1) * block_bytes / 2,
                                        ((size_t)local * tokens + slot[r] % tokens) * n + i, c.kv));
            }
            n_cached += part > 0 ? n : 0;
        }
    for (size_t i = 0; i < blocks.n / size; i++) {
        const float x = head_value(blocks.p, i, c.kv);
        n_written += x == x;
    }
    const double far = distance_of(got.data(), want.data(), got.size());
    expect(far < (c.kv == DTYPE_F32      ? 1e-5
                     : c.kv == DTYPE_F16 ? 4e-4
                                         : 3e-3),
        "heads of " + std::to_string(n) + " from " + std::to_string(c.first_head) + " by rope " +
            std::to_string(c.rope) + ", " + std::to_string(c.n_rows) + " rows: " + std::to_string(far));
    expect(n_written == n_cached, "what has no slot is written nowhere");
}

#endif
