/* Heads behind the products of queries, keys and values, emulated, by each of the kernels that turn them and into each
 * type of cache: against float64. Products are not made here: the test writes what they would have. */
#include "testing_cuda.h"

#include "cuda/attend.cuh"
#include "cuda/skinny.h"

#define BLOCK_TOKENS 32

static struct dev device;
static bool gives_bf16, takes_short;
static const float *row_scales; /* of products that were left unscaled; NULL = none is */

bool resident_product(struct dev *, enum format, const struct skinny_job *, const struct acts *)
{
    return false;
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
enum cuda_way cuda_way_of(const struct dev *, enum format, uint32_t, uint32_t, uint32_t)
{
    return CUDA_WAY_LIBRARY;
}
bool even_has_heads(uint32_t, uint32_t, enum rope_style)
{
    return false;
}
bool flow_has_heads(uint32_t, uint32_t)
{
    return false;
}
bool cuda_gives_bf16(const struct dev *, const struct matrix *)
{
    return gives_bf16;
}
bool cuda_adjacent(const struct weight *, const struct weight *)
{
    return true;
}
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
bool attend_takes_short(const struct dev *, const struct kv_layer *, uint32_t, uint32_t)
{
    return takes_short;
}

struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    enum rope_style rope;
    enum dtype kv;
    bool bf16, unscaled;
    uint32_t n_all() const
    {
        return n_heads + 2 * n_kv_heads;
    }
    uint32_t row_bytes() const
    {
        return kv_row_bytes(kv, head_dim);
    }
};

/* A step of two sequences, the first of one row; the second row writes no keys. */
struct step {
    shape c;
    uint32_t rows, n_blocks;
    aligned<float> scratch, table, scales, of_rows, q;
    aligned<unsigned char> blocks;
    std::vector<double> heads; /* [rows][n_all][head_dim], as they go on */
    std::vector<uint32_t> seq, pos, slot;
    struct batch_seq seqs[2];

    step(const shape &s, uint32_t n)
        : c(s), rows(n), n_blocks((n + BLOCK_TOKENS - 1) / BLOCK_TOKENS), scratch((size_t)n * s.n_all() * s.head_dim),
          table((size_t)n * s.rope_dims), scales(s.n_all() * s.head_dim), of_rows(n),
          q((size_t)n * s.n_heads * s.head_dim),
          blocks(n_blocks * block_bytes()), seqs{{0, 1, 1, 0}, {1, n - 1, n - 1, 0}}
    {
        for (uint32_t r = 0; r < n; r++) {
            seq.push_back(r > 0);
            pos.push_back(r > 0 ? r - 1 : 0);
            slot.push_back(r == 1 ? KV_SLOT_NONE : n - 1 - r);
            of_rows.p[r] = c.unscaled ? 0.5f + (float)random_unit() : 1.0f;
        }
        for (size_t i = 0; i < scales.n; i++)
            scales.p[i] = c.unscaled ? 0.5f + (float)random_unit() : 1.0f;
        for (size_t i = 0; i < table.n; i += 2) {
            const double angle = 6.28 * random_unit();
            table.p[i] = (float)std::cos(angle);
            table.p[i + 1] = (float)std::sin(angle);
        }
        for (size_t i = 0; i < scratch.n; i++) {
            const __nv_bfloat16 x = __float2bfloat16_rn(random_normal());
            if (c.bf16)
                ((__nv_bfloat16 *)scratch.p)[i] = x;
            else
                scratch.p[i] = __bfloat162float(x);
            const size_t width = scales.n;
            heads.push_back((double)__bfloat162float(x) * (double)of_rows.p[i / width] * (double)scales.p[i % width]);
        }
        for (uint32_t r = 0; r < n; r++)
            for (uint32_t h = 0; h < c.n_heads + c.n_kv_heads; h++)
                turn(&heads[((size_t)r * c.n_all() + h) * c.head_dim], table.p + (size_t)pos[r] * c.rope_dims);
    }

    uint64_t block_bytes() const
    {
        return (uint64_t)2 * c.n_kv_heads * BLOCK_TOKENS * c.row_bytes();
    }

    void turn(double *x, const float *by) const
    {
        const uint32_t half = c.rope_dims / 2;
        for (uint32_t i = 0; i < half; i++) {
            double &a = x[c.rope == ROPE_PAIRS ? 2 * i : i], &b = x[c.rope == ROPE_PAIRS ? 2 * i + 1 : i + half];
            const double y = a, cosine = (double)by[2 * i], sine = (double)by[2 * i + 1];
            a = y * cosine - b * sine;
            b = y * sine + b * cosine;
        }
    }

    void run()
    {
        struct matrix m[3] = {};
        struct weight w[3] = {};
        const uint32_t first[3] = {0, c.n_heads, c.n_heads + c.n_kv_heads};
        for (int i = 0; i < 3; i++) {
            w[i].n_out = m[i].n_out = (i == 0 ? c.n_heads : c.n_kv_heads) * c.head_dim;
            m[i].scales = scales.p + first[i] * c.head_dim;
            w[i].packed = &m[i];
        }
        const uint32_t *const slots[1] = {slot.data()};
        struct batch b = {};
        b.n_rows = rows;
        b.n_seqs = 2;
        b.seq_rows = rows - 1;
        b.pos = pos.data();
        b.seq = seq.data();
        b.seqs = seqs;
        b.kv_slot = slots;
        const struct kv_layer layer = {0, c.kv, c.row_bytes(), 0, block_bytes() / 2};
        struct kv_cache kv = {blocks.p, n_blocks, BLOCK_TOKENS, block_bytes()};
        struct qkv_args a = {};
        a.wq = &w[0];
        a.wk = &w[1];
        a.wv = &w[2];
        a.rope = c.rope;
        a.rope_dims = c.rope_dims;
        a.rope_table = table.p;
        a.n_heads = c.n_heads;
        a.n_kv_heads = c.n_kv_heads;
        a.head_dim = c.head_dim;
        a.layer = &layer;
        a.scratch = scratch.p;
        a.q = q.p;
        gives_bf16 = c.bf16;
        row_scales = c.unscaled ? of_rows.p : NULL;
        cuda_qkv(&device, &b, &kv, &a);
    }

    /* A query as attention finds it. */
    double query(uint32_t r, uint32_t h, uint32_t i) const
    {
        const float *row = q.p + (size_t)r * c.n_heads * c.head_dim;
        const uint32_t at = h * c.head_dim + i;
        if (!device.short_q || attend_is_few(seqs[seq[r]].n_rows, c.n_heads / c.n_kv_heads))
            return (double)row[at];
        return (double)(c.kv == DTYPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)row)[at])
                                           : __half2float(((const __half *)row)[at]));
    }

    /* What the cache holds at a slot. */
    double stored(uint32_t at_slot, uint32_t h, bool is_v, uint32_t i) const
    {
        const uint32_t block = at_slot / BLOCK_TOKENS, at = at_slot % BLOCK_TOKENS;
        const unsigned char *p = blocks.p + block * block_bytes() + (is_v ? block_bytes() / 2 : 0);
        p += (size_t)(h * BLOCK_TOKENS + (c.kv == DTYPE_Q8_0 ? at / 16 * 16 : at)) * c.row_bytes();
        switch (c.kv) {
        case DTYPE_Q8_0:
            return (double)(int8_t)p[q8_value_at(c.head_dim, at % 16, i)] *
                   (double)__half2float(*(const __half *)(p + q8_scale_at(c.head_dim, at % 16, i)));
        case DTYPE_F8_E4M3: return (double)(float)((const __nv_fp8_e4m3 *)p)[i];
        case DTYPE_BF16: return (double)__bfloat162float(((const __nv_bfloat16 *)p)[i]);
        default: return (double)__half2float(((const __half *)p)[i]);
        }
    }
};

/* The distance of the head that is furthest off. */
static double worst_of(const std::vector<double> &got, const std::vector<double> &want, uint32_t head_dim)
{
    double worst = 0;
    for (size_t i = 0; i < want.size(); i += head_dim) {
        const double far = distance_of(&got[i], &want[i], head_dim);
        worst = std::max(worst, std::isfinite(far) ? far : INFINITY);
    }
    return worst;
}

static void check_part(
    const std::vector<double> &got, const std::vector<double> &want, uint32_t head_dim, double bound, const char *what)
{
    const double far = worst_of(got, want, head_dim);
    expect(far < bound, std::string(what) + " are off by " + std::to_string(far));
    std::vector<double> bad = got; /* the twin: the first head is its neighbour */
    std::copy_n(got.begin() + head_dim, head_dim, bad.begin());
    expect(!(worst_of(bad, want, head_dim) < bound), std::string("the twin of ") + what);
}

static void check_heads(const shape &c, uint32_t rows, bool shorter)
{
    takes_short = shorter;
    step s(c, rows);
    s.run();
    const bool is_short = shorter && !attend_is_few(rows - 1, c.n_heads / c.n_kv_heads);
    expect(device.short_q == is_short, "queries are short when somebody takes them so");
    std::vector<double> got[2], want[2];
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < c.n_all(); h++)
            for (uint32_t i = 0; i < c.head_dim; i++) {
                const bool is_q = h < c.n_heads, is_v = h >= c.n_heads + c.n_kv_heads;
                const uint32_t local = h - c.n_heads - (is_v ? c.n_kv_heads : 0);
                if (!is_q && s.slot[r] == KV_SLOT_NONE)
                    continue;
                want[!is_q].push_back(s.heads[((size_t)r * c.n_all() + h) * c.head_dim + i]);
                got[!is_q].push_back(is_q ? s.query(r, h, i) : s.stored(s.slot[r], local, is_v, i));
            }
    const double rounding = c.kv == DTYPE_BF16 ? 4e-3 : 5e-4;
    check_part(got[0], want[0], c.head_dim, is_short ? rounding : 1e-6, "queries");
    check_part(got[1], want[1], c.head_dim,
        c.kv == DTYPE_Q8_0      ? 1e-2
        : c.kv == DTYPE_F8_E4M3 ? 4e-2
                                : rounding,
        "keys and values");
    bool untouched = true;
    for (uint32_t i = 0; i < 2 * c.n_kv_heads; i++) { /* the last slot of all is nobody's */
        const uint64_t at = (uint64_t)(i * BLOCK_TOKENS + BLOCK_TOKENS - 1) * c.row_bytes();
        for (uint32_t k = 0; k < c.row_bytes() && c.kv != DTYPE_Q8_0; k++)
            untouched = untouched && s.blocks.p[(s.n_blocks - 1) * s.block_bytes() + at + k] == 0xff;
    }
    expect(untouched || rows % BLOCK_TOKENS == 0, "nothing else is written");
}

int main()
{
    for (const enum dtype kv : {DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_Q8_0})
        for (const enum rope_style rope : {ROPE_HALVES, ROPE_PAIRS})
            for (const bool unscaled : {false, true}) {
                const shape whole = {8, 2, 128, 128, rope, kv, true, unscaled};
                const shape odd = {7, 1, 128, 128, rope, kv, true, unscaled};
                const shape other = {4, 2, 64, 32, rope, kv, unscaled, unscaled};
                const shape part = {4, 2, 80, 32, rope, kv, unscaled, unscaled};
                for (const bool shorter : {false, true}) {
                    check_heads(whole, 40, shorter);
                    check_heads(odd, 21, shorter);
                    check_heads(other, 50, shorter);
                    check_heads(other, 4, shorter);
                    check_heads(part, 19, shorter);
                }
                check_heads(unscaled ? whole : odd, 1030, !unscaled); /* many rows have a kernel of their own */
                check_heads(unscaled ? odd : whole, 1030, true);
            }
    return verdict("heads");
}
