/* Attention of few rows, and in fixed cuts, emulated: against float64 through tables of scattered and freed blocks;
 * and, with fixed cuts, that a row gives the same bits alone, among guesses, in a chunk of a prompt and in company. */
#include "testing_cuda.h"

#include "cuda/attend.cuh"

#define SCALE 0.1f

static struct dev device;

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, window, block_tokens;
    float cap;
};

/* Sequence `who` at a place: the same numbers in whatever batch it comes. */
struct part {
    uint32_t who, before, rows;
};

enum { KEY = 1, VALUE, QUERY };

static float number(uint32_t who, uint32_t pos, uint32_t head, uint32_t i, uint32_t kind)
{
    uint32_t x = who * 2654435761u ^ pos * 40503u ^ head * 977u ^ i * 131u ^ kind * 7919u;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 13) * 0x297a2d39u;
    x ^= x >> 15;
    const float y = ((float)(x >> 8) * 0x1p-23f - 1.0f) * (kind == QUERY ? 3.0f : 1.5f);
    return __half2float(__float2half_rn(y));
}

/* A batch of sequences: tables that lie backwards, blocks behind the window freed. */
struct batch_memory {
    shape c;
    uint32_t n_rows, seq_rows, each;
    std::vector<struct batch_seq> seqs;
    std::vector<uint32_t> table, pos, who;
    aligned<unsigned char> blocks;
    uint64_t block_bytes;
    std::vector<float> q;

    batch_memory(const shape &s, const std::vector<part> &parts)
        : c(s), n_rows(0), seq_rows(0), each(0), blocks(room_of(s, parts)),
          block_bytes((uint64_t)2 * s.n_kv_heads * s.block_tokens * s.head_dim * 2)
    {
        each = blocks_each(s, parts);
        table.assign(parts.size() * each, KV_BLOCK_NONE);
        for (uint32_t i = 0; i < parts.size(); i++)
            add(parts[i], i, (uint32_t)parts.size());
    }

    static uint32_t blocks_each(const shape &s, const std::vector<part> &parts)
    {
        uint32_t most = 0;
        for (const part &p : parts)
            most = std::max(most, p.before + p.rows);
        return (most + s.block_tokens - 1) / s.block_tokens;
    }

    static size_t room_of(const shape &s, const std::vector<part> &parts)
    {
        return parts.size() * blocks_each(s, parts) * 2 * s.n_kv_heads * s.block_tokens * s.head_dim * 2;
    }

    void put(const part &p, uint32_t block, uint32_t position)
    {
        __half *keys = (__half *)(blocks.p + block * block_bytes), *values = keys + block_bytes / 4;
        for (uint32_t h = 0; h < c.n_kv_heads; h++)
            for (uint32_t i = 0; i < c.head_dim; i++) {
                const size_t at = ((size_t)h * c.block_tokens + position % c.block_tokens) * c.head_dim + i;
                keys[at] = __float2half_rn(number(p.who, position, h, i, KEY));
                values[at] = __float2half_rn(number(p.who, position, h, i, VALUE));
            }
    }

    void add(const part &p, uint32_t i, uint32_t n_parts)
    {
        const uint32_t n_kv = p.before + p.rows;
        seqs.push_back({n_rows, p.rows, n_kv, i * each});
        for (uint32_t b = 0; b * c.block_tokens < n_kv; b++)
            if (c.window == 0 || (b + 1) * c.block_tokens + c.window > p.before + 1)
                table[i * each + b] = n_parts * each - 1 - (i * each + b);
        for (uint32_t k = 0; k < n_kv; k++)
            if (table[i * each + k / c.block_tokens] != KV_BLOCK_NONE)
                put(p, table[i * each + k / c.block_tokens], k);
        for (uint32_t r = 0; r < p.rows; r++, n_rows++) {
            pos.push_back(p.before + r);
            who.push_back(p.who);
            for (uint32_t h = 0; h < c.n_heads; h++)
                for (uint32_t k = 0; k < c.head_dim; k++)
                    q.push_back(number(p.who, p.before + r, h, k, QUERY));
        }
        seq_rows = std::max(seq_rows, p.rows);
    }
};

static std::vector<float> attend(const shape &c, const std::vector<part> &parts, bool fixed)
{
    const batch_memory m(c, parts);
    const uint32_t per_kv = c.n_heads / c.n_kv_heads, rows_max = std::max(m.n_rows, 64u);
    const size_t plan_bytes = sizeof(struct plan) + 2 * (size_t)rows_max * sizeof(struct plan_tile);
    aligned<unsigned char> plan(plan_bytes);
    aligned<float> room((size_t)PARTS_MAX * c.n_heads * (c.head_dim + 2)), out(m.n_rows * c.n_heads * c.head_dim);
    aligned<uint32_t> arrived((size_t)rows_max * c.n_kv_heads, 0);
    device.n_sms = 4;
    device.deterministic = fixed;
    device.batch_version++;
    device.plan = (struct plan *)plan.p;
    struct batch b = {};
    b.n_rows = m.n_rows;
    b.n_seqs = (uint32_t)m.seqs.size();
    b.seq_rows = m.seq_rows;
    b.seqs = m.seqs.data();
    struct attend_job j = {};
    j.q = m.q.data();
    j.n_heads = c.n_heads;
    j.n_kv_heads = c.n_kv_heads;
    j.per_kv = per_kv;
    j.head_dim = c.head_dim;
    j.window = c.window;
    j.scale = SCALE;
    j.cap = c.cap;
    j.table = m.table.data();
    j.seqs = b.seqs;
    j.blocks = m.blocks.p;
    j.block_bytes = m.block_bytes;
    j.v_at = m.block_bytes / 2;
    j.block_tokens = c.block_tokens;
    j.row_bytes = c.head_dim * 2;
    j.dtype = DTYPE_F16;
    j.plan = device.plan;
    j.parts = room.p;
    j.part_sums = room.p + (size_t)PARTS_MAX * c.n_heads * c.head_dim;
    j.arrived = arrived.p;
    j.out.f32 = out.p;
    attend_plan(&device, &b, per_kv, PACK / per_kv, 3 * device.n_sms / c.n_kv_heads + 1, 64);
    attend_decode(&device, &b, &j);
    if (fixed)
        attend_whole(&device, &b, &j);
    for (size_t i = 0; i < arrived.n; i++)
        expect(arrived.p[i] == 0, "counters are zero again");
    return std::vector<float>(out.p, out.p + out.n);
}

static std::vector<float> reference(const shape &c, const std::vector<part> &parts)
{
    const uint32_t per_kv = c.n_heads / c.n_kv_heads;
    std::vector<float> out;
    for (const part &p : parts)
        for (uint32_t pos = p.before; pos < p.before + p.rows; pos++)
            for (uint32_t h = 0; h < c.n_heads; h++) {
                const uint32_t lo = c.window > 0 && pos + 1 > c.window ? pos + 1 - c.window : 0;
                std::vector<double> y(c.head_dim, 0.0);
                double total = 0.0;
                for (uint32_t k = lo; k <= pos; k++) {
                    double s = 0.0;
                    for (uint32_t i = 0; i < c.head_dim; i++)
                        s += (double)number(p.who, pos, h, i, QUERY) * (double)number(p.who, k, h / per_kv, i, KEY);
                    s *= SCALE;
                    const double e = std::exp(c.cap > 0 ? c.cap * std::tanh(s / c.cap) : s);
                    total += e;
                    for (uint32_t i = 0; i < c.head_dim; i++)
                        y[i] += e * (double)number(p.who, k, h / per_kv, i, VALUE);
                }
                for (const double v : y)
                    out.push_back((float)(v / total));
            }
    return out;
}

static void check_near(const shape &c, const std::vector<part> &parts, bool fixed)
{
    const std::vector<float> got = attend(c, parts, fixed), want = reference(c, parts);
    const double far = distance_of(got.data(), want.data(), want.size());
    expect(far < 2e-3, "attention is off by " + std::to_string(far));
}

/* Row `pos` of sequence 9 in other batches, against the same row of a prompt of all of them. */
static void check_bits(const shape &c)
{
    const uint32_t n = 300;
    const size_t width = (size_t)c.n_heads * c.head_dim;
    const std::vector<float> prompt = attend(c, {{9, 0, n}}, true);
    const auto same = [&](const std::vector<float> &got, size_t row, uint32_t pos, uint32_t rows) {
        return std::memcmp(&got[row * width], &prompt[pos * width], rows * width * sizeof(float)) == 0;
    };
    expect(same(attend(c, {{9, 100, 80}, {1, 500, 1}}, true), 0, 100, 80), "a chunk gives the prompt's bits");
    for (const uint32_t pos : {0u, 15u, 64u, 130u, 255u, 256u, n - 1}) {
        const uint32_t guesses = std::min(pos, 5u);
        expect(same(attend(c, {{9, pos, 1}}, true), 0, pos, 1), "one row gives the prompt's bits");
        expect(same(attend(c, {{7, 90, 3}, {9, pos - guesses, guesses + 1}, {8, 1200, 1}}, true), 3 + guesses, pos, 1),
            "guesses give the prompt's bits");
        expect(!same(attend(c, {{8, pos, 1}}, true), 0, pos, 1), "the twin is seen");
    }
    const std::vector<float> many = attend(c, std::vector<part>(20, {9, n - 1, 1}), true);
    expect(same(many, 0, n - 1, 1) && same(many, 19, n - 1, 1), "twenty streams give the prompt's bits");
}

int main()
{
    const shape shapes[] = {
        {8, 2, 64, 0, 16, 0.0f}, {8, 2, 128, 0, 32, 0.0f}, {4, 2, 80, 100, 16, 0.0f}, {7, 1, 64, 40, 16, 30.0f}};
    device.capability = 90;
    for (const shape &c : shapes) {
        const uint32_t few = 64 / (c.n_heads / c.n_kv_heads); /* rows that are still decoded */
        const std::vector<part> parts = {
            {1, 0, 1}, {2, 700, 6}, {3, 33, std::min(8u, few)}, {4, 255, 1}, {5, 0, std::min(9u, few)}, {6, 300, 2}};
        check_near(c, parts, false);
        check_near(c, parts, true);
        check_near(c, {{1, 0, 70}, {2, 290, 1}}, true);
    }
    check_bits(shapes[0]);
    check_bits(shapes[2]);
    return verdict("attend");
}
