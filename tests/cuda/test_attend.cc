/* Attention of few rows, of many, and in fixed cuts, emulated, over each type of cache: against float64 through tables
 * of scattered and freed blocks; and, with fixed cuts, that a row gives the same bits alone, among guesses, in a chunk
 * of a prompt, in company and in a resident step. */
#include "testing_cuda.h"

#include "cuda/resident_chunks.cuh"

#include <map>
#include <tuple>

#define SCALE 0.1f

static struct dev device;
static uint32_t multiprocessors = 4, parts_max = PARTS_MAX;
static bool short_q = true; /* where attend_wide.cu can be, it finds the queries of tiles as 16 bits */

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, window, block_tokens;
    float cap;
    enum dtype kv;
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

static uint32_t row_bytes_of(const shape &c)
{
    return kv_row_bytes(c.kv, c.head_dim);
}

/* A row of the cache: its elements as bytes, its scales, and what they are worth. */
struct stored {
    std::vector<unsigned char> bytes;
    std::vector<__half> scales;
    std::vector<float> worth;
};

static stored make_row(const shape &c, uint32_t who, uint32_t pos, uint32_t head, uint32_t kind)
{
    stored r;
    float scale = 1.0f;
    for (uint32_t i = 0; i < c.head_dim; i++) {
        const float x = number(who, pos, head, i, kind);
        uint16_t bits = 0;
        if (c.kv == DTYPE_Q8_0 && i % 32 == 0) {
            float most = 0.0f;
            for (uint32_t k = i; k < std::min(i + 32, c.head_dim); k++)
                most = std::max(most, std::fabs(number(who, pos, head, k, kind)));
            r.scales.push_back(__float2half_rn(most / 127.0f));
            scale = most / 127.0f;
        }
        switch (c.kv) {
        case DTYPE_Q8_0:
            bits = (uint8_t)std::lrint(x / scale);
            r.worth.push_back((float)(int8_t)bits * __half2float(r.scales.back()));
            break;
        case DTYPE_F8_E4M3:
            bits = __nv_fp8_e4m3(x).__x;
            r.worth.push_back((float)__nv_fp8_e4m3(x));
            break;
        case DTYPE_BF16:
            bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
            r.worth.push_back(__bfloat162float(__float2bfloat16_rn(x)));
            break;
        default:
            bits = __half_as_ushort(__float2half_rn(x));
            r.worth.push_back(x);
            break;
        }
        r.bytes.push_back((unsigned char)bits);
        if (row_bytes_of(c) == 2 * c.head_dim)
            r.bytes.push_back((unsigned char)(bits >> 8));
    }
    return r;
}

static const stored &row_of(const shape &c, uint32_t who, uint32_t pos, uint32_t head, uint32_t kind)
{
    static std::map<std::tuple<uint32_t, enum dtype, uint32_t, uint32_t, uint32_t, uint32_t>, stored> rows;
    const auto key = std::make_tuple(c.head_dim, c.kv, who, pos, head, kind);
    const auto found = rows.find(key);
    return found != rows.end() ? found->second : rows[key] = make_row(c, who, pos, head, kind);
}

/* A batch of sequences: tables that lie backwards, blocks behind the window freed. */
static uint32_t young_before; /* positions before a step's own that count as its own, for a twin */

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
          block_bytes((uint64_t)2 * s.n_kv_heads * s.block_tokens * row_bytes_of(s))
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
        return parts.size() * blocks_each(s, parts) * 2 * s.n_kv_heads * s.block_tokens * row_bytes_of(s);
    }

    void put(const part &p, uint32_t block, uint32_t position)
    {
        const uint32_t at = position % c.block_tokens, bytes = row_bytes_of(c);
        for (uint32_t kind : {KEY, VALUE})
            for (uint32_t h = 0; h < c.n_kv_heads; h++) {
                const stored &r = row_of(c, p.who, position, h, kind);
                unsigned char *to = blocks.p + block * block_bytes + (kind == VALUE ? block_bytes / 2 : 0);
                to += ((size_t)h * c.block_tokens + at / 16 * 16) * bytes;
                std::memcpy(to + at % 16 * r.bytes.size(), r.bytes.data(), r.bytes.size());
                std::memcpy(
                    to + 16 * r.bytes.size() + at % 16 * 2 * r.scales.size(), r.scales.data(), 2 * r.scales.size());
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

    /* Whether this step writes one of the 16 positions in which p lies. */
    bool is_young(const void *p) const
    {
        const uint64_t at = (uint64_t)((const unsigned char *)p - blocks.p), block = at / block_bytes;
        const uint64_t in_head = at % (block_bytes / 2) % (c.block_tokens * row_bytes_of(c));
        for (size_t i = 0; i < table.size(); i++)
            if (table[i] == block) {
                const uint64_t first = i % each * c.block_tokens + in_head / (16 * row_bytes_of(c)) * 16;
                const struct batch_seq &s = seqs[i / each];
                return first + 16 + young_before > s.n_kv - s.n_rows;
            }
        return true;
    }

    /* As qkv.cu leaves them: nothing of the f32 is left. */
    void shorten()
    {
        const uint32_t width = c.n_heads * c.head_dim;
        for (const struct batch_seq &s : seqs)
            for (uint32_t r = s.first_row; r < s.first_row + s.n_rows; r++) {
                if (attend_is_few(s.n_rows, c.n_heads / c.n_kv_heads))
                    continue;
                std::vector<uint16_t> row(2 * width, 0xffff);
                for (uint32_t i = 0; i < width; i++) {
                    const float x = q[(size_t)r * width + i];
                    row[i] = c.kv == DTYPE_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                                                : __half_as_ushort(__float2half_rn(x));
                }
                std::memcpy(&q[(size_t)r * width], row.data(), width * sizeof(float));
            }
    }
};

/* The phase of a resident step, without what lies between phases. */
static void resident_chunks_kernel(struct attend_job j, uint32_t n_seqs, uint32_t parts_max)
{
    static struct chunk_seqs seqs;
    struct chunk_ahead &shared = *(struct chunk_ahead *)emulated_block().shared;
    if (threadIdx.x == 0)
        seqs.load(j.seqs, n_seqs, parts_max);
    __syncthreads();
    const struct chunk_first first = resident_chunks_ahead(j, seqs, shared);
    __syncthreads();
    resident_chunks_phase(j, seqs, shared, first);
}

static std::vector<float> attend(
    const shape &c, const std::vector<part> &parts, bool fixed, bool wide = false, bool resident = false)
{
    batch_memory m(c, parts);
    const uint32_t per_kv = c.n_heads / c.n_kv_heads, rows_max = std::max(m.n_rows, 64u);
    aligned<unsigned char> plan(plan_bytes(rows_max));
    aligned<float> room((size_t)PARTS_MAX * c.n_heads * (c.head_dim + 2)), out(m.n_rows * c.n_heads * c.head_dim);
    aligned<uint32_t> arrived((size_t)rows_max * c.n_kv_heads + 2, 0);
    device.n_sms = multiprocessors;
    device.rows_max = rows_max;
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
    j.row_bytes = row_bytes_of(c);
    j.dtype = c.kv;
    j.plan = device.plan;
    j.items = plan_items(device.plan);
    j.tiles = plan_tiles(device.plan, rows_max);
    j.parts = room.p;
    j.part_sums = room.p + (size_t)PARTS_MAX * c.n_heads * c.head_dim;
    j.arrived = arrived.p;
    j.out.f32 = out.p;
    const bool chunks = attend_has_chunks(&device, &j);
    j.short_q = short_q && (wide || chunks);
    if (j.short_q)
        m.shorten();
    const uint32_t tile_rows = chunks || wide ? attend_wide_rows(&device, &j)
                               : fixed        ? PACK / per_kv
                                              : attend_tile_rows(c.head_dim, per_kv);
    const struct cut cut = fixed ? attend_cut(&device, &j) : attend_team_cut(&device, &b, &j);
    attend_plan(&device, &b, per_kv, tile_rows, &cut);
    if (resident)
        cuda_launch(&device, resident_chunks_kernel, dim3(multiprocessors), CHUNK_THREADS, sizeof(struct chunk_ahead),
            j, b.n_seqs, parts_max);
    else if (chunks)
        attend_chunks(&device, &j);
    else if (fixed)
        attend_decode(&device, &b, &j);
    else {
        emulated_is_young = [&](const void *p) { return m.is_young(p); };
        attend_team(&device, &b, &j, false);
        emulated_is_young = nullptr;
    }
    if (resident)
        expect(chunks && m.n_rows == b.n_seqs, "a resident step has one row a sequence");
    else if (chunks)
        attend_wide(&device, &b, &j);
    else if (fixed)
        attend_whole(&device, &b, &j);
    else if (m.seq_rows * per_kv > DECODE_PAIRS)
        wide ? attend_wide(&device, &b, &j) : attend_prefill(&device, &b, &j);
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
                std::vector<float> query;
                for (uint32_t i = 0; i < c.head_dim; i++)
                    query.push_back(number(p.who, pos, h, i, QUERY));
                double total = 0.0;
                for (uint32_t k = lo; k <= pos; k++) {
                    const std::vector<float> &key = row_of(c, p.who, k, h / per_kv, KEY).worth;
                    const std::vector<float> &value = row_of(c, p.who, k, h / per_kv, VALUE).worth;
                    double s = 0.0;
                    for (uint32_t i = 0; i < c.head_dim; i++)
                        s += (double)query[i] * (double)key[i];
                    s *= SCALE;
                    const double e = std::exp(c.cap > 0 ? c.cap * std::tanh(s / c.cap) : s);
                    total += e;
                    for (uint32_t i = 0; i < c.head_dim; i++)
                        y[i] += e * (double)value[i];
                }
                for (const double v : y)
                    out.push_back((float)(v / total));
            }
    return out;
}

static void check_near(const shape &c, const std::vector<part> &parts, bool fixed, bool wide = false)
{
    const std::vector<float> got = attend(c, parts, fixed, wide), want = reference(c, parts);
    const double far = distance_of(got.data(), want.data(), want.size());
    const double bound = c.kv == DTYPE_BF16 ? 1e-2 : 2e-3; /* queries and weights are rounded to 8 bits, or 11 */
    const std::string what = " over " + std::string(dtype_name(c.kv)) + ", heads of " + std::to_string(c.head_dim);
    expect(far < bound, "attention" + what + " is off by " + std::to_string(far));
    std::vector<float> bad = got; /* the twin: one row's first 16 elements are the next 16 */
    for (size_t i = 0; i < 16; i++)
        bad[i] = got[16 + i];
    expect(distance_of(bad.data(), want.data(), (size_t)c.n_heads * c.head_dim) > bound, "the twin is seen" + what);
}

/* What is asked for before the kernel before has ended must be old: the other checks have seen that it is, if it is
 * seen when it is not. */
static void check_young(const shape &c)
{
    const std::vector<part> parts = {{2, 700, 1}, {3, 400, 2}};
    const std::vector<float> want = reference(c, parts);
    for (const uint32_t before : {0u, 800u}) {
        young_before = before;
        const std::vector<float> got = attend(c, parts, false);
        expect((distance_of(got.data(), want.data(), want.size()) < 2e-2) == (before == 0), "early copies are seen");
    }
    young_before = 0;
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
    expect(same(attend(c, {{8, 0, 200}, {9, 0, n}, {7, 131, 65}, {9, n - 2, 2}}, true), 200, 0, n),
        "in company a prompt gives its bits");
    const std::vector<float> many = attend(c, std::vector<part>(20, {9, n - 1, 1}), true);
    expect(same(many, 0, n - 1, 1) && same(many, 19, n - 1, 1), "twenty streams give the prompt's bits");
    for (const uint32_t n_sms : {1u, 2u, 7u, 40u}) { /* whatever is dealt out to a block */
        multiprocessors = n_sms;
        const std::vector<float> got =
            attend(c, {{8, 700, 1}, {9, 255, 2}, {7, 3, 1}, {9, 131, 4}, {9, n - 1, 1}}, true);
        expect(same(got, 1, 255, 2) && same(got, 4, 131, 4) && same(got, 8, n - 1, 1),
            "streams of all lengths give the prompt's bits");
    }
    multiprocessors = 4;
}

/* One row or two in a resident step, against the same rows of prompts. */
static void check_resident(const shape &c)
{
    const uint32_t n = 420;
    const size_t width = (size_t)c.n_heads * c.head_dim;
    const std::vector<float> prompt = attend(c, {{9, 0, n}}, true), other = attend(c, {{8, 0, n}}, true);
    const auto same = [&](const std::vector<float> &got, size_t row, const std::vector<float> &want, uint32_t pos) {
        return std::memcmp(&got[row * width], &want[pos * width], width * sizeof(float)) == 0;
    };
    for (const uint32_t n_sms : {2u, 40u, 41u}) {
        multiprocessors = n_sms;
        parts_max = n_sms == 41 ? 2 : PARTS_MAX; /* too few for most: sequences are not cut */
        for (const uint32_t pos : {0u, 15u, 127u, 128u, 300u, n - 1}) {
            const std::vector<float> one = attend(c, {{9, pos, 1}}, true, false, true);
            expect(same(one, 0, prompt, pos), "a row of a resident step gives the prompt's bits");
            expect(!same(one, 0, other, pos), "the twin is seen");
            const std::vector<float> two = attend(c, {{8, n - 1 - pos, 1}, {9, pos, 1}}, true, false, true);
            expect(same(two, 0, other, n - 1 - pos) && same(two, 1, prompt, pos), "and so do two");
        }
    }
    parts_max = PARTS_MAX;
    multiprocessors = 4;
}

/* So many parts that sequences of few rows are tiles, one behind the other in a block. */
static void check_many_parts(enum dtype kv)
{
    const shape c = {1, 1, 64, 0, 16, 0.0f, kv};
    const uint32_t n = 300, rows = DECODE_PAIRS;
    const std::vector<float> prompt = attend(c, {{9, 0, n}}, true);
    const uint32_t n_seqs = PARTS_MAX / (rows * (n / CHUNK + 1)) + 2;
    std::vector<part> parts(n_seqs, {8, 3, rows});
    parts[0] = parts[n_seqs - 1] = {9, n - rows, rows};
    parts[1] = {9, 130, 1};
    const std::vector<float> got = attend(c, parts, true);
    const auto same = [&](uint32_t row, uint32_t pos, uint32_t n_rows) {
        return std::memcmp(&got[row * c.head_dim], &prompt[pos * c.head_dim], n_rows * c.head_dim * sizeof(float)) == 0;
    };
    for (part &p : parts)
        p.before = n - rows; /* now there are too many; */
    parts[1] = {9, 130, 1};
    expect(same(0, n - rows, rows) && same(rows, 130, 1), "parts give the prompt's bits");
    const std::vector<float> tiles = attend(c, parts, true);
    expect(std::memcmp(tiles.data(), got.data(), (rows + 1) * c.head_dim * sizeof(float)) == 0,
        "tiles one behind the other give the parts' bits");
    const size_t last = (tiles.size() - rows * c.head_dim) * sizeof(float);
    expect(std::memcmp((const char *)tiles.data() + last, &prompt[(n - rows) * c.head_dim],
               rows * c.head_dim * sizeof(float)) == 0,
        "and so does the last of them");
}

static const shape shapes[] = {{8, 2, 64, 0, 16, 0.0f, DTYPE_F16}, {8, 2, 128, 0, 32, 0.0f, DTYPE_F16},
    {4, 2, 80, 100, 16, 0.0f, DTYPE_F16}, {7, 1, 64, 40, 16, 30.0f, DTYPE_F16}, {8, 2, 128, 0, 48, 0.0f, DTYPE_BF16},
    {8, 2, 128, 0, 16, 0.0f, DTYPE_F8_E4M3}, {4, 2, 80, 100, 16, 0.0f, DTYPE_F8_E4M3},
    {7, 1, 64, 40, 48, 30.0f, DTYPE_F8_E4M3}, {2, 1, 256, 0, 16, 0.0f, DTYPE_F8_E4M3},
    {8, 2, 128, 0, 16, 0.0f, DTYPE_Q8_0}, {4, 2, 96, 100, 32, 20.0f, DTYPE_Q8_0}, {7, 1, 64, 40, 16, 0.0f, DTYPE_Q8_0},
    {4, 2, 80, 0, 48, 0.0f, DTYPE_Q8_0}};

static void check_all_near()
{
    for (const shape &c : shapes) {
        const uint32_t few = 64 / (c.n_heads / c.n_kv_heads); /* rows that are still decoded */
        const std::vector<part> parts = {
            {1, 0, 1}, {2, 700, 6}, {3, 33, std::min(8u, few)}, {4, 255, 1}, {5, 0, std::min(9u, few)}, {6, 300, 2}};
        check_near(c, parts, false);
        if (c.window == 0) /* a short one is all young */
            check_young(c);
        for (const uint32_t rows : {1u, 3u}) /* one context so long that it is cut, beside some that are not */
            check_near(c, {{1, 40, 1}, {2, 2800, rows}, {3, 300, 1}}, false);
        const bool by_groups = c.kv != DTYPE_Q8_0 && (c.head_dim == 64 || c.head_dim == 128);
        for (const bool chained : {false, true}) {
            device.chained = chained;
            if (chained && !by_groups)
                continue;
            check_near(c, parts, true);
            check_near(c, {{1, 0, 70}, {2, 290, 1}}, true);
        }
        const std::vector<part> prompts = {{1, 0, 70}, {2, 290, 1}, {3, 150, 67}};
        check_near(c, prompts, false);
        for (const bool shorter : {false, true}) {
            short_q = shorter;
            if (by_groups)
                check_near(c, prompts, false, true);
        }
    }
    const shape small = {1, 1, 64, 0, 16, 0.0f, DTYPE_F16}; /* more sequences than there is room for parts of */
    std::vector<part> many;
    for (uint32_t i = 0; i < PARTS_MAX + 60; i++)
        many.push_back({1 + i % 50, i % 20, 1});
    check_near(small, many, false);
}

static void check_all_bits()
{
    for (const bool chained : {false, true}) { /* the two pairs of kernels; few shapes have both */
        device.chained = chained;
        check_bits(shapes[3]);
        check_bits(shapes[5]);
    }
    check_bits(shapes[0]);
    check_bits(shapes[4]);
    check_bits(shapes[2]);
    check_bits(shapes[6]);
    check_bits(shapes[11]);
    check_many_parts(DTYPE_F16);
    check_many_parts(DTYPE_F8_E4M3);
}

static void check_all_resident()
{
    device.chained = true;
    for (const size_t i : {0, 1, 3, 4})
        check_resident(shapes[i]);
}

/* near, bits or resident: a part of it, so that they can run side by side. */
int main(int argc, char **argv)
{
    const std::string what = argc > 1 ? argv[1] : "";
    device.capability = 90;
    cuda_allow_wide(true);
    if (what.empty() || what == "near")
        check_all_near();
    if (what.empty() || what == "bits")
        check_all_bits();
    if (what.empty() || what == "resident")
        check_all_resident();
    return verdict("attend");
}
