/* The slim product kernel, emulated: every format against float64, every end, chains over a cluster, and that a row
 * does not depend on its company. */
#include "testing_formats.h"

#include "cuda/slim.cuh"

static struct dev device;

/* Activations in 16 bits, and what those are. */
struct rows {
    aligned<uint16_t> halves;
    std::vector<float> values;
};

static rows make_rows(bool is_bf16, uint32_t n_rows, uint32_t n_in)
{
    rows r = {aligned<uint16_t>((size_t)n_rows * n_in), std::vector<float>((size_t)n_rows * n_in)};
    for (size_t i = 0; i < r.values.size(); i++) {
        const float x = random_normal();
        if (is_bf16) {
            const __nv_bfloat16 h = __float2bfloat16_rn(x);
            std::memcpy(r.halves.p + i, &h, 2);
            r.values[i] = __bfloat162float(h);
        } else {
            const __half h = __float2half_rn(x);
            std::memcpy(r.halves.p + i, &h, 2);
            r.values[i] = __half2float(h);
        }
    }
    return r;
}

static void run(enum format format, const struct skinny_job *j)
{
    switch (format) {
    case FORMAT_BF16: slim_run<FormatPlain<__nv_bfloat16>>(&device, j); break;
    case FORMAT_F16: slim_run<FormatPlain<__half>>(&device, j); break;
    case FORMAT_F8: slim_run<FormatF8>(&device, j); break;
    case FORMAT_Q8: slim_run<FormatQ8>(&device, j); break;
    case FORMAT_Q4: slim_run<FormatQ4>(&device, j); break;
    case FORMAT_Q4M: slim_run<FormatQ4M>(&device, j); break;
    case FORMAT_Q4K: slim_run<FormatQ4K>(&device, j); break;
    default: slim_run<FormatQ6K>(&device, j); break;
    }
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static struct skinny_job job_of(const packed &m, const rows &a, uint32_t n_rows, uint32_t n_out, uint32_t n_in)
{
    struct skinny_job j = {};
    j.w0 = m.data.p;
    j.scale0 = m.scales.empty() ? NULL : m.scales.data();
    j.row_bytes = m.row_bytes;
    j.n_in = n_in;
    j.n_out = n_out;
    j.act = a.halves.p;
    j.n_rows = n_rows;
    j.ldc = n_out;
    j.scale = 1.0f;
    return j;
}

/* Does a row give the same bits when only five rows are multiplied? The twin is the row beside it. */
static void check_company(const format_case &f, struct skinny_job j, const std::vector<float> &all)
{
    std::vector<float> few((size_t)5 * j.n_out, NAN);
    j.act = (const uint16_t *)j.act + (size_t)3 * j.n_in;
    j.n_rows = 5;
    j.out = few.data();
    run(f.format, &j);
    expect(std::memcmp(few.data(), &all[(size_t)3 * j.n_out], few.size() * sizeof(float)) == 0,
        std::string(f.name) + ": company changes bits");
    expect(std::memcmp(few.data(), &all[(size_t)4 * j.n_out], few.size() * sizeof(float)) != 0, "the twin is seen");
}

static void check_product(const format_case &f, uint32_t n_rows, uint32_t n_out, uint32_t n_in, enum skinny_end end)
{
    const packed m = make_matrix(f, n_out, n_in), up = make_matrix(f, end == SKINNY_GLU ? n_out : 1, n_in);
    const rows a = make_rows(f.format == FORMAT_BF16, n_rows, n_in);
    std::vector<float> out((size_t)n_rows * n_out, NAN), bias(n_out);
    std::vector<double> want(out.size());
    for (float &b : bias)
        b = random_normal();
    for (size_t i = 0; end == SKINNY_ADD && i < out.size(); i++)
        out[i] = random_normal();
    struct skinny_job j = job_of(m, a, n_rows, n_out, n_in);
    j.end = end;
    j.w1 = up.data.p;
    j.scale1 = up.scales.empty() ? NULL : up.scales.data();
    j.bias0 = end == SKINNY_ADD ? bias.data() : NULL;
    j.out = out.data();
    j.act_f32 = end == SKINNY_GLU ? out.data() : NULL;
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t o = 0; o < n_out; o++) {
            const float *x = &a.values[(size_t)r * n_in];
            double y = dot(x, &m.values[(size_t)o * n_in], n_in);
            if (end == SKINNY_ADD)
                y += bias[o] + out[(size_t)r * n_out + o];
            if (end == SKINNY_GLU)
                y = y / (1.0 + std::exp(-y)) * dot(x, &up.values[(size_t)o * n_in], n_in);
            want[(size_t)r * n_out + o] = y;
        }
    run(f.format, &j);
    const double far = distance_of(out.data(), want.data(), out.size());
    expect(far < f.bound, std::string(f.name) + " " + std::to_string(n_out) + "x" + std::to_string(n_in) + ", " +
                              std::to_string(n_rows) + " rows, end " + std::to_string(end) + ": " +
                              std::to_string(far));
    if (n_rows == 9 && end == SKINNY_STORE)
        check_company(f, j, out);
}

/* Heads turned, biased and written into the cache through their slots, of which one is none. */
static void check_heads(enum rope_style rope, uint32_t turned, uint32_t n_rows)
{
    const uint32_t n_in = 1024, q_heads = 6, kv_heads = 2, n = 64, all = (q_heads + 2 * kv_heads) * n, tokens = 16;
    const format_case f = {FORMAT_F16, DTYPE_F16, "heads", 1e-5};
    const packed m = make_matrix(f, all, n_in);
    const rows a = make_rows(false, n_rows, n_in);
    const uint64_t block_bytes = (uint64_t)2 * kv_heads * tokens * n * sizeof(float);
    std::vector<float> table(100 * turned), bias(all), q((size_t)n_rows * q_heads * n, NAN), got, want;
    std::vector<float> blocks(2 * block_bytes / sizeof(float), NAN);
    std::vector<uint32_t> pos(n_rows), slot(n_rows);
    for (float &b : bias)
        b = random_normal();
    for (size_t i = 0; i < table.size(); i++)
        table[i] = random_normal();
    for (uint32_t r = 0; r < n_rows; r++) {
        pos[r] = r * 7 % 100;
        slot[r] = r == 1 ? KV_SLOT_NONE : n_rows - 1 - r;
    }
    struct skinny_job j = job_of(m, a, n_rows, all, n_in);
    j.end = SKINNY_QKV;
    j.out = q.data();
    j.ldc = q_heads * n;
    j.heads = {q_heads, kv_heads, n, turned, rope, table.data(), pos.data(), slot.data(),
        (unsigned char *)blocks.data(), block_bytes, 0, block_bytes / 2, tokens, n * (uint32_t)sizeof(float), DTYPE_F32,
        {bias.data(), bias.data() + q_heads * n, bias.data() + (q_heads + kv_heads) * n}, 0};
    run(FORMAT_F16, &j);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < q_heads + 2 * kv_heads; h++) {
            float x[64];
            for (uint32_t i = 0; i < n; i++)
                x[i] = (float)dot(&a.values[(size_t)r * n_in], &m.values[(size_t)(h * n + i) * n_in], n_in) +
                       bias[h * n + i];
            for (uint32_t i = 0; h < q_heads + kv_heads && i < turned / 2; i++) {
                const uint32_t lo = rope == ROPE_PAIRS ? 2 * i : i,
                               hi = rope == ROPE_PAIRS ? 2 * i + 1 : i + turned / 2;
                const float c = table[pos[r] * turned + 2 * i], s = table[pos[r] * turned + 2 * i + 1], u = x[lo];
                x[lo] = u * c - x[hi] * s;
                x[hi] = u * s + x[hi] * c;
            }
            if (h >= q_heads && slot[r] == KV_SLOT_NONE)
                continue;
            const uint32_t part = h < q_heads ? 0 : h < q_heads + kv_heads ? 1 : 2;
            const uint32_t local = h - (part == 0 ? 0 : part == 1 ? q_heads : q_heads + kv_heads);
            const float *from = part == 0 ? &q[((size_t)r * q_heads + h) * n]
                                          : &blocks[slot[r] / tokens * block_bytes / 4 + (part - 1) * block_bytes / 8 +
                                                    ((size_t)local * tokens + slot[r] % tokens) * n];
            got.insert(got.end(), from, from + n);
            want.insert(want.end(), x, x + n);
        }
    size_t n_written = 0;
    for (const float x : blocks)
        n_written += x == x;
    expect(distance_of(got.data(), want.data(), got.size()) < f.bound, "heads are turned");
    expect(n_written == got.size() - q.size(), "what has no slot is written nowhere");
}

int main()
{
    const format_case formats[] = {{FORMAT_BF16, DTYPE_BF16, "bf16", 1e-5}, {FORMAT_F16, DTYPE_F16, "f16", 1e-5},
        {FORMAT_F8, DTYPE_F32, "f8", 1e-5}, {FORMAT_Q8, DTYPE_Q8_0, "q8", 1e-3}, {FORMAT_Q4, DTYPE_Q4_0, "q4", 1e-3},
        {FORMAT_Q4M, DTYPE_Q4_1, "q4m", 1e-3}, {FORMAT_Q4K, DTYPE_Q4_K, "q4k", 2e-3},
        {FORMAT_Q6K, DTYPE_Q6_K, "q6k", 1e-3}};
    device.capability = 90;
    for (const format_case &f : formats) {
        check_product(f, 1, 272, 768, SKINNY_STORE);
        check_product(f, 9, 96, 2048, SKINNY_STORE);
        check_product(f, 6, 130, 1280, SKINNY_ADD);
        check_product(f, 20, 72, 768, SKINNY_GLU);
        check_product(f, 70, 40, 512, SKINNY_STORE);
    }
    check_heads(ROPE_PAIRS, 32, 3);
    check_heads(ROPE_HALVES, 64, 20);
    return verdict("slim");
}
