/* Paged attention on x86: the body, compiled into each variant. A tile of 64 absolute positions is brought in as f32
 * once for all rows and query heads of a call, keys with positions side by side (float caches hold them so, see
 * keys_lie_turned); then scores and outputs are two small matrix products whose rows are the (row, head) pairs. Of F16
 * the first pairs are multiplied as they are brought in, and few pairs need nothing laid out: x86_attend_few.h, with
 * the same bits. Keys and then values are laid out in the same room, so that it stays in the first cache.
 *
 * The arithmetic, for each pair on its own (law 1), where fma rounds once:
 * - Score of position p: from zero, fma(q[d], k[p][d]) ascending in d; times scale; soft cap.
 * - Tiles ascend. m' = max(m, scores of the tile); w = exp(score - m'), exactly zero for a hidden position;
 *   sum = sum * exp(m - m') + w, lane by lane (lane = p mod 16) ascending; out = out * exp(m - m'), then ascending in
 * p, visible positions only, out = fma(w, v[p], out).
 * - A part is 512 positions, 8 tiles, from absolute position 0. Each part starts anew, and its (m, sum, out) is joined
 *   to what the parts before gave: m' = max; both sums and outs times exp(own m - m'), added. The first part joins to
 *   (lowest float, 0, 0). So parts may be computed by different workers, and are when there is little else to share.
 * - out / (sum by the tree).
 * A masked position is never read into a product: neighbours' NaN cannot reach a row. */
#ifndef CPU_X86_ATTEND_H
#define CPU_X86_ATTEND_H

#include "cpu/cpu_int.h"
#include "cpu/x86_attend_few.h"
#include "cpu/x86_rows.h"
#include "cpu/x86_simd.h"
#include "tensor/quant.h"

#define LOWEST (-3.402823466e38f)

/* ---- sixteen elements of a cached row ------------------------------------------------------------------------------
 */

INLINE struct vf load_kv(enum dtype dtype, bool whole, const unsigned char *row, uint32_t at, uint32_t n)
{
    if (dtype == DTYPE_Q8_0) {
        const struct block_q8_0 *b = (const struct block_q8_0 *)row + at / QK;
        return vf_mul(vf_of_i8(_mm_loadu_si128((const __m128i *)(b->qs + at % QK))), vf_set(f16_to_f32(b->d)));
    }
    if (dtype == DTYPE_Q4_0) {
        const struct block_q4_0 *b = (const struct block_q4_0 *)row + at / QK;
        const __m128i x = _mm_loadu_si128((const __m128i *)b->qs), mask = _mm_set1_epi8(15);
        const __m128i q = _mm_and_si128(at % QK == 0 ? x : _mm_srli_epi16(x, 4), mask);
        return vf_mul(vf_of_i8(_mm_sub_epi8(q, _mm_set1_epi8(8))), vf_set(f16_to_f32(b->d)));
    }
    const size_t bytes = dtype == DTYPE_F32 ? 4 : 2;
    unsigned char padded[VF * 4];
    const unsigned char *p = row + at * bytes;
    if (!whole && n - at < VF) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, p, (n - at) * bytes);
        p = padded;
    }
    return dtype == DTYPE_F16    ? vf_of_f16(p)
           : dtype == DTYPE_BF16 ? vf_of_bf16(p)
                                 : vf_load((const float *)(const void *)p);
}

/* ---- turning keys --------------------------------------------------------------------------------------------------
 */

#ifdef QUERN_AVX512
INLINE void turn_16(const struct vf *in, float *out)
{
    __m512 a[16], b[16];
    EACH (i, 8) {
        a[2 * i] = _mm512_unpacklo_ps(in[2 * i].v, in[2 * i + 1].v);
        a[2 * i + 1] = _mm512_unpackhi_ps(in[2 * i].v, in[2 * i + 1].v);
    }
    EACH (i, 4) {
        const __m512d p = _mm512_castps_pd(a[4 * i]), q = _mm512_castps_pd(a[4 * i + 1]);
        const __m512d r = _mm512_castps_pd(a[4 * i + 2]), s = _mm512_castps_pd(a[4 * i + 3]);
        b[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(p, r));
        b[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(p, r));
        b[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(q, s));
        b[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(q, s));
    }
    EACH (j, 4) { /* b[4i + j]: column j of each 128-bit quarter of rows 4i .. 4i+3 */
        const __m512 lo0 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0x88), hi0 = _mm512_shuffle_f32x4(b[j], b[4 + j], 0xdd);
        const __m512 lo1 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0x88);
        const __m512 hi1 = _mm512_shuffle_f32x4(b[8 + j], b[12 + j], 0xdd);
        _mm512_storeu_ps(out + (size_t)j * ATTN_TILE, _mm512_shuffle_f32x4(lo0, lo1, 0x88));
        _mm512_storeu_ps(out + (size_t)(8 + j) * ATTN_TILE, _mm512_shuffle_f32x4(lo0, lo1, 0xdd));
        _mm512_storeu_ps(out + (size_t)(4 + j) * ATTN_TILE, _mm512_shuffle_f32x4(hi0, hi1, 0x88));
        _mm512_storeu_ps(out + (size_t)(12 + j) * ATTN_TILE, _mm512_shuffle_f32x4(hi0, hi1, 0xdd));
    }
}
#else
INLINE void turn_8(const __m256 *in, float *out)
{
    __m256 a[8], b[8];
    EACH (i, 4) {
        a[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
    }
    EACH (i, 2) {
        b[4 * i] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0x44);
        b[4 * i + 1] = _mm256_shuffle_ps(a[4 * i], a[4 * i + 2], 0xee);
        b[4 * i + 2] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0x44);
        b[4 * i + 3] = _mm256_shuffle_ps(a[4 * i + 1], a[4 * i + 3], 0xee);
    }
    EACH (j, 4) {
        _mm256_storeu_ps(out + (size_t)j * ATTN_TILE, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
        _mm256_storeu_ps(out + (size_t)(4 + j) * ATTN_TILE, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
    }
}
INLINE void turn_16(const struct vf *in, float *out)
{
    EACH (half, 2) {
        __m256 lo[8], hi[8];
        EACH (i, 8) {
            lo[i] = in[8 * half + i].lo;
            hi[i] = in[8 * half + i].hi;
        }
        turn_8(lo, out + 8 * half);
        turn_8(hi, out + (size_t)8 * ATTN_TILE + 8 * half);
    }
}
#endif

/* ---- a tile of keys and values -------------------------------------------------------------------------------------
 */

/* Where position p of this kv head lies, without the offset of keys or values. */
static const unsigned char *kv_row(const struct attend_tile *t, uint32_t p)
{
    const struct kv_cache *kv = t->kv;
    const uint32_t *table = t->batch->tables[t->args->layer->group] + t->seq->table_at;
    return kv->blocks + (uint64_t)table[p / kv->block_tokens] * kv->block_bytes +
           ((uint64_t)t->kv_head * kv->block_tokens + p % kv->block_tokens) * t->args->layer->row_bytes;
}

/* Positions lo .. lo+63 as far as they are before end. */
static struct asks asks_of(const struct attend_tile *t, uint32_t lo, uint32_t end)
{
    const struct kv_layer *l = t->args->layer;
    const uint32_t passes = 2 * ((t->n_rows * t->n_heads + SMALL_ROWS - 1) / SMALL_ROWS);
    struct asks s = {.run_lines = (uint32_t)(l->row_bytes * VF + 63) / 64, .next = 1};
    for (uint32_t p = lo; p < MIN(lo + ATTN_TILE, end); p += VF) {
        const unsigned char *rows = kv_row(t, p);
        s.run[s.runs++] = rows + l->k_at;
        s.run[s.runs++] = rows + l->v_at;
    }
    s.at = s.run[0];
    s.left = s.runs > 0 ? s.run_lines : 0;
    s.each = 1 + s.runs * s.run_lines / (passes * (ATTN_TILE / ASK_STEPS));
    return s;
}

/* Keys or values, one behind the other in the same room: a tile of both, with what is multiplied with it, would not fit
 * into the first cache. Sixteen positions at a time: blocks hold multiples of that, so they lie behind each other.
 * Those outside from .. to are brought in too, whatever they hold, and never used. */
INLINE void load_tile(enum dtype dtype, bool whole, bool is_v, struct worker *w, const struct attend_tile *t,
    uint32_t lo, uint32_t from, uint32_t to)
{
    const uint32_t n = t->args->head_dim, wide = (n + VF - 1) / VF * VF;
    const struct kv_layer *l = t->args->layer;
    float *out = w->k;
    for (uint32_t p0 = from / VF * VF; p0 < to; p0 += VF) {
        const unsigned char *rows = kv_row(t, p0) + (is_v ? l->v_at : l->k_at);
        if (is_v)
            for (uint32_t i = 0; i < VF; i++)
                for (uint32_t d = 0; d < n; d += VF)
                    vf_store(
                        out + (size_t)(p0 + i - lo) * wide + d, load_kv(dtype, whole, rows + i * l->row_bytes, d, n));
        else if (keys_lie_turned(dtype))
            for (uint32_t d = 0; d < n; d++)
                vf_store(out + (size_t)d * ATTN_TILE + (p0 - lo), load_kv(dtype, true, rows, d * VF, 0));
        else
            for (uint32_t d = 0; d < n; d += VF) {
                struct vf x[VF];
                EACH (i, VF)
                    x[i] = load_kv(dtype, whole, rows + (uint64_t)i * l->row_bytes, d, n);
                turn_16(x, out + (size_t)d * ATTN_TILE + (p0 - lo));
            }
    }
}

INLINE void load_any(bool is_v, struct worker *w, const struct attend_tile *t, uint32_t lo, uint32_t from, uint32_t to)
{
    const bool whole = t->args->head_dim % VF == 0;
    switch (t->args->layer->dtype) {
    case DTYPE_F32: load_tile(DTYPE_F32, false, is_v, w, t, lo, from, to); break;
    case DTYPE_F16:
        if (whole)
            load_tile(DTYPE_F16, true, is_v, w, t, lo, from, to);
        else
            load_tile(DTYPE_F16, false, is_v, w, t, lo, from, to);
        break;
    case DTYPE_BF16: load_tile(DTYPE_BF16, false, is_v, w, t, lo, from, to); break;
    case DTYPE_Q8_0: load_tile(DTYPE_Q8_0, true, is_v, w, t, lo, from, to); break;
    default: load_tile(DTYPE_Q4_0, true, is_v, w, t, lo, from, to); break;
    }
}

static void load_keys(struct worker *w, const struct attend_tile *t, uint32_t lo, uint32_t from, uint32_t to)
{
    load_any(false, w, t, lo, from, to);
}

static void load_values(struct worker *w, const struct attend_tile *t, uint32_t lo, uint32_t from, uint32_t to)
{
    load_any(true, w, t, lo, from, to);
}

/* ---- small products ------------------------------------------------------------------------------------------------
 */

/* acc[r][v] += a[r][k] * b[16 v ..], for one k. */
INLINE void small_step(
    int rows, int vecs, const float *const *a, size_t k, const float *b, struct vf acc[SMALL_ROWS][SMALL_VECS])
{
    struct vf x[SMALL_VECS];
    EACH (v, vecs) {
        x[v] = vf_load(b + v * VF);
        vf_keep(&x[v]);
    }
    EACH (r, rows) {
        const struct vf y = vf_set(a[r][k]);
        EACH (v, vecs)
            acc[r][v] = vf_fma(y, x[v], acc[r][v]);
    }
}

/* c[r][0 .. 16 vecs) = c * shrink[r] (or 0) + sum over k in from .. to-1 ascending of a[r][k] * b[k]. */
INLINE void small_tile(int rows, int vecs, const float *const *a, const float *b, size_t b_step, uint32_t from,
    uint32_t to, const float *shrink, float *c, size_t c_step, struct asks *asks)
{
    struct vf acc[SMALL_ROWS][SMALL_VECS];
    EACH (r, rows)
        EACH (v, vecs)
            acc[r][v] =
                shrink != NULL ? vf_mul(vf_load(c + (size_t)r * c_step + v * VF), vf_set(shrink[r])) : vf_set(0.0f);
    for (uint32_t k = from; k < to; k++) {
        if (k % ASK_STEPS == 0)
            ask(asks);
        small_step(rows, vecs, a, k, b + k * b_step, acc);
    }
    EACH (r, rows)
        EACH (v, vecs)
            vf_store(c + (size_t)r * c_step + v * VF, acc[r][v]);
}

INLINE void small_rows(int vecs, uint32_t rows, const float *const *a, const float *b, size_t b_step, uint32_t from,
    uint32_t to, const float *shrink, float *c, size_t c_step, struct asks *asks)
{
    switch (rows) {
    case 1: small_tile(1, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    case 2: small_tile(2, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    case 3: small_tile(3, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    case 4: small_tile(4, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    case 5: small_tile(5, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    default: small_tile(6, vecs, a, b, b_step, from, to, shrink, c, c_step, asks); break;
    }
}

/* All rows and the n columns (whole vectors) of c. */
static void small_product(uint32_t rows, uint32_t n, const float *const *a, const float *b, size_t b_step,
    uint32_t from, uint32_t to, const float *shrink, float *c, size_t c_step, struct asks *asks)
{
    for (uint32_t r = 0; r < rows; r += SMALL_ROWS) {
        const uint32_t some = MIN(rows - r, (uint32_t)SMALL_ROWS);
        const float *by = shrink != NULL ? shrink + r : NULL;
        float *to_c = c + r * c_step;
        uint32_t at = 0;
        for (; at + SMALL_VECS * VF <= n; at += SMALL_VECS * VF)
            small_rows(SMALL_VECS, some, a + r, b + at, b_step, from, to, by, to_c + at, c_step, asks);
        for (; at < n; at += VF)
            small_rows(1, some, a + r, b + at, b_step, from, to, by, to_c + at, c_step, asks);
    }
}

/* ---- folding a tile into some pairs ---------------------------------------------------------------------------------
 */

/* Scores to weights in place for pairs first .. first+n-1; positions from .. to-1 of the tile are visible, or all of it
 * (whole). Maxima first, then what the sums before shrink by, sixteen pairs at a time, then the weights: one pair's
 * chain from score to weight takes several times as long as its instructions. */
INLINE void weigh_seen(
    bool whole, struct worker *w, const struct attend_args *a, uint32_t first, uint32_t n, uint32_t from, uint32_t to)
{
    _Alignas(64) float before[VF] = {0}, most[VF] = {0}, shrink[VF];
    const struct vf scale = vf_set(a->scale);
    for (uint32_t end = first + n; first < end; first += VF) {
        const uint32_t some = MIN(end - first, (uint32_t)VF);
        memcpy(before, w->max + first, some * sizeof *before);
        for (uint32_t i = 0; i < some; i++) {
            float *s = w->score + (size_t)(first + i) * ATTN_TILE;
            struct vf top = vf_set(before[i]);
            EACH (v, ATTN_TILE / VF) {
                struct vf x = vf_mul(vf_load(s + v * VF), scale);
                if (a->cap > 0.0f)
                    x = soft_cap(x, a->cap);
                vf_store(s + v * VF, x);
                if (!whole)
                    x = vf_if_lane((int)from - v * VF, (int)to - v * VF, x, vf_set(LOWEST));
                top = vf_max(x, top); /* a NaN score leaves the maximum alone */
            }
            most[i] = vf_top(top);
        }
        vf_store(shrink, vf_exp(vf_sub(vf_load(before), vf_load(most))));
        memcpy(w->max + first, most, some * sizeof *most);
        memcpy(w->shrink + first, shrink, some * sizeof *shrink);
        for (uint32_t i = 0; i < some; i++) {
            float *s = w->score + (size_t)(first + i) * ATTN_TILE, *sums = w->sum + (size_t)(first + i) * VF;
            struct vf sum = vf_mul(vf_load(sums), vf_set(shrink[i]));
            EACH (v, ATTN_TILE / VF) {
                struct vf p = vf_exp(vf_sub(vf_load(s + v * VF), vf_set(most[i])));
                if (!whole)
                    p = vf_if_lane((int)from - v * VF, (int)to - v * VF, p, vf_set(0.0f));
                vf_store(s + v * VF, p);
                sum = vf_add(sum, p);
            }
            vf_store(sums, sum);
        }
    }
}

static void weigh(struct worker *w, const struct attend_args *a, uint32_t first, uint32_t n, uint32_t from, uint32_t to)
{
    if (from == 0 && to == ATTN_TILE)
        weigh_seen(true, w, a, first, n, from, to);
    else
        weigh_seen(false, w, a, first, n, from, to);
}

/* A tile being folded. here: where it lies in the cache, when it is not laid out; else the next tile is asked for
 * meanwhile. */
struct folding {
    const struct attend_tile *t;
    const struct tile_here *here;
    struct asks asks;
    bool is_kept;          /* it is laid out by the first pairs */
    uint32_t lo, from, to; /* where the tile begins; the positions that any row may see */
};

/* Scores, and weights of them, of pairs first .. first+n-1, which all see positions from .. to-1. */
static void fold_keys(struct worker *w, struct folding *f, uint32_t first, uint32_t n, uint32_t from, uint32_t to)
{
    const uint32_t d = f->t->args->head_dim, cols = (to - f->lo + VF - 1) / VF * VF;
    float *score = w->score + (size_t)first * ATTN_TILE;
    const float *const *query = w->query + first;
    const uint32_t kept = f->is_kept ? SMALL_ROWS : 0;
    if (f->is_kept)
        keep_scores(f->here, query, d, cols / VF, score, w->k, &f->asks);
    if (f->here != NULL && !f->is_kept)
        few_scores(f->here, n, query, d, cols / VF, score);
    else
        small_product(n - kept, cols, query + kept, w->k, ATTN_TILE, 0, d, NULL, score + (size_t)kept * ATTN_TILE,
            ATTN_TILE, &f->asks);
    weigh(w, f->t->args, first, n, from - f->lo, to - f->lo);
}

static void fold_values(struct worker *w, struct folding *f, uint32_t first, uint32_t n, uint32_t from, uint32_t to)
{
    const uint32_t d = f->t->args->head_dim, wide = (d + VF - 1) / VF * VF;
    float *score = w->score + (size_t)first * ATTN_TILE, *out = w->out + (size_t)first * wide;
    const float *weights[ATTN_ROWS_MAX];
    for (uint32_t i = 0; i < n; i++)
        weights[i] = score + (size_t)i * ATTN_TILE;
    const float *shrink = w->shrink + first;
    const uint32_t kept = f->is_kept ? SMALL_ROWS : 0;
    if (f->is_kept)
        keep_values(f->here, d, from - f->lo, to - f->lo, score, shrink, out, w->k, &f->asks);
    if (f->here != NULL && !f->is_kept)
        few_values(f->here, n, d, from - f->lo, to - f->lo, score, shrink, out);
    else
        small_product(n - kept, wide, weights + kept, w->k, wide, from - f->lo, to - f->lo, shrink + kept,
            out + (size_t)kept * wide, wide, &f->asks);
}

typedef void fold_fn(struct worker *w, struct folding *f, uint32_t first, uint32_t n, uint32_t from, uint32_t to);

/* Neighbours that see the same positions go together. */
INLINE void fold_rows(struct worker *w, struct folding *f, fold_fn *fold)
{
    const struct attend_tile *t = f->t;
    const uint32_t *pos = t->batch->pos + t->first_row, window = t->args->window;
    for (uint32_t r = 0; r < t->n_rows;) {
        uint32_t from = 0, to = 0, n = 0;
        for (; r + n < t->n_rows; n++) {
            const uint32_t p = pos[r + n], seen = window > 0 && p + 1 > window ? p + 1 - window : 0;
            const uint32_t first = MAX(f->from, seen), end = MIN(f->to, p + 1);
            if (n > 0 && (first != from || end != to))
                break;
            from = first;
            to = end;
        }
        if (from < to)
            fold(w, f, r * t->n_heads, n * t->n_heads, from, to);
        r += n;
    }
}

/* Do all rows see all of positions from .. to-1? */
static bool sees_all(const struct attend_tile *t, uint32_t from, uint32_t to)
{
    const uint32_t *pos = t->batch->pos + t->first_row, last = pos[t->n_rows - 1] + 1, window = t->args->window;
    return to <= pos[0] + 1 && (window == 0 || last <= from + window);
}

/* Where the groups of the tile at lo lie. Outside the positions start .. end-1 a table may say anything: there, the
 * nearest group inside. */
static void find_tile(
    const struct attend_tile *t, uint32_t lo, uint32_t start, uint32_t end, const unsigned char **rows)
{
    for (uint32_t g = 0; g < TILE_GROUPS; g++)
        rows[g] = kv_row(t, MIN(MAX(lo + g * VF, start), end - 1) / VF * VF);
}

/* The tile behind those before lo: of this head, or the first of the next. */
static void find_next(
    const struct attend_tile *t, uint32_t lo, uint32_t start, uint32_t end, const unsigned char **rows)
{
    struct attend_tile other = *t;
    if (lo >= end && t->kv_head + 1 < t->args->n_kv_heads) {
        other.kv_head++;
        lo = start / ATTN_TILE * ATTN_TILE;
    }
    find_tile(&other, lo, start, end, rows);
}

/* ---- parts ----------------------------------------------------------------------------------------------------------
 */

/* One part of every pair from nothing: max, sum, out in the worker's room. */
static void attend_part(struct worker *w, const struct attend_tile *t, uint32_t part, uint32_t start, uint32_t end)
{
    const uint32_t wide = (t->args->head_dim + VF - 1) / VF * VF, n_pairs = t->n_rows * t->n_heads;
    for (uint32_t i = 0; i < n_pairs; i++)
        w->max[i] = LOWEST;
    memset(w->sum, 0, sizeof(float) * n_pairs * VF);
    memset(w->out, 0, sizeof(float) * n_pairs * wide);
    const uint32_t first = MAX(start, part * ATTN_PART), last = MIN(end, (part + 1) * ATTN_PART);
    const struct kv_layer *l = t->args->layer;
    struct tile_here here = {.k_at = l->k_at, .v_at = l->v_at, .row_bytes = l->row_bytes};
    const bool is_plain = l->dtype == DTYPE_F16 && t->args->head_dim % VF == 0,
               stays = is_plain && n_pairs <= FEW_PAIRS;
    struct folding f = {.t = t};
    for (f.lo = first / ATTN_TILE * ATTN_TILE; f.lo < last; f.lo += ATTN_TILE) {
        f.from = MAX(f.lo, first);
        f.to = MIN(f.lo + ATTN_TILE, last);
        f.is_kept = is_plain && !stays && sees_all(t, f.from, f.to);
        f.here = stays || f.is_kept ? &here : NULL;
        if (f.here != NULL)
            find_tile(t, f.lo, start, end, here.rows);
        if (stays)
            find_next(t, f.lo + ATTN_TILE, start, end, here.next);
        else
            f.asks = asks_of(t, f.lo + ATTN_TILE, end);
        if (f.here == NULL)
            load_keys(w, t, f.lo, f.from, f.to);
        fold_rows(w, &f, fold_keys);
        if (f.here == NULL)
            load_values(w, t, f.lo, f.from, f.to);
        fold_rows(w, &f, fold_values);
    }
}

/* total <- total joined with a part: max, sixteen sums, out. */
static void join_part(float *total, const float *max, const float *sum, const float *out, uint32_t wide)
{
    const float top = *max > *total ? *max : *total;
    const struct vf old = vf_exp(vf_set(*total - top)), new = vf_exp(vf_set(*max - top));
    *total = top;
    vf_store(total + VF, vf_add(vf_mul(vf_load(total + VF), old), vf_mul(vf_load(sum), new)));
    for (uint32_t d = 0; d < wide; d += VF)
        vf_store(total + 2 * VF + d, vf_add(vf_mul(vf_load(total + 2 * VF + d), old), vf_mul(vf_load(out + d), new)));
}

static void finish_pair(const float *total, uint32_t n, float *out)
{
    const struct vf sum = vf_set(vf_total(vf_load(total + VF)));
    for (uint32_t d = 0; d < n; d += VF)
        vf_store_n(out + d, vf_div(vf_load(total + 2 * VF + d), sum), MIN(n - d, (uint32_t)VF));
}

static float *out_of(const struct attend_tile *t, uint32_t pair)
{
    const struct attend_args *a = t->args;
    const size_t row = t->first_row + pair / t->n_heads, head = t->first_head + pair % t->n_heads;
    return a->out->f32 + (row * a->n_heads + head) * a->head_dim;
}

static void span_of(const struct attend_tile *t, uint32_t *start, uint32_t *end)
{
    const uint32_t *pos = t->batch->pos + t->first_row, window = t->args->window;
    *start = window > 0 && pos[0] + 1 > window ? pos[0] + 1 - window : 0;
    *end = pos[t->n_rows - 1] + 1;
}

/* Joining a part that a row does not see would leave its numbers alone but for the sign of a zero. */
static bool sees_part(const struct attend_tile *t, uint32_t row, uint32_t part)
{
    const uint32_t pos = t->batch->pos[row], window = t->args->window;
    const uint32_t first = window > 0 && pos + 1 > window ? pos + 1 - window : 0;
    return part * ATTN_PART <= pos && first < (part + 1) * ATTN_PART;
}

static void set_queries(struct worker *w, const struct attend_tile *t)
{
    const struct attend_args *a = t->args;
    for (uint32_t i = 0; i < t->n_rows * t->n_heads; i++) {
        const size_t row = t->first_row + i / t->n_heads, head = t->first_head + i % t->n_heads;
        w->query[i] = a->q + (row * a->n_heads + head) * a->head_dim;
    }
}

static void join_parts(struct worker *w, const struct attend_tile *t, uint32_t part)
{
    const uint32_t wide = (t->args->head_dim + VF - 1) / VF * VF, n_pairs = t->n_rows * t->n_heads;
    for (uint32_t i = 0; i < n_pairs; i++)
        if (sees_part(t, t->first_row + i / t->n_heads, part))
            join_part(w->total + i * (size_t)(2 * VF + wide), &w->max[i], w->sum + (size_t)i * VF,
                w->out + (size_t)i * wide, wide);
}

/* Parts that do not begin a context, for somebody else to join. */
static void leave_parts(struct worker *w, const struct attend_tile *t, uint32_t start, uint32_t end)
{
    const uint32_t wide = (t->args->head_dim + VF - 1) / VF * VF, n_pairs = t->n_rows * t->n_heads;
    float *to = t->partial;
    for (uint32_t part = t->part; part < t->part + t->n_parts; part++) {
        attend_part(w, t, part, start, end);
        for (uint32_t i = 0; i < n_pairs; i++, to += 2 * VF + wide) {
            to[0] = w->max[i];
            memcpy(to + VF, w->sum + (size_t)i * VF, sizeof(float) * VF);
            memcpy(to + 2 * VF, w->out + (size_t)i * wide, sizeof(float) * wide);
        }
    }
}

static void attend_x86(struct worker *w, const struct attend_tile *t)
{
    const uint32_t n = t->args->head_dim, wide = (n + VF - 1) / VF * VF, n_pairs = t->n_rows * t->n_heads;
    const size_t step = 2 * VF + wide;
    assert(n_pairs <= ATTN_ROWS_MAX && n <= HEAD_DIM_MAX);
    uint32_t start, end;
    span_of(t, &start, &end);
    set_queries(w, t);
    const uint32_t first = start / ATTN_PART;
    uint32_t last = (end - 1) / ATTN_PART;
    if (t->partial != NULL && t->part > first) {
        leave_parts(w, t, start, end);
        return;
    }
    if (t->partial != NULL)
        last = t->part + t->n_parts - 1;
    memset(w->total, 0, sizeof(float) * n_pairs * step);
    for (uint32_t i = 0; i < n_pairs; i++)
        w->total[i * step] = LOWEST;
    for (uint32_t part = first; part <= last; part++) {
        attend_part(w, t, part, start, end);
        join_parts(w, t, part);
    }
    if (t->partial != NULL)
        memcpy(t->partial, w->total, sizeof(float) * n_pairs * step);
    for (uint32_t i = 0; t->partial == NULL && i < n_pairs; i++)
        finish_pair(w->total + i * step, n, out_of(t, i));
}

/* What the first run of parts has joined, then its other parts, in ascending order. */
static void attend_join_x86(struct worker *w, const struct attend_tile *t, size_t step)
{
    const uint32_t n = t->args->head_dim, wide = (n + VF - 1) / VF * VF, n_pairs = t->n_rows * t->n_heads;
    const size_t pair = 2 * VF + wide;
    for (uint32_t i = 0; i < n_pairs; i++) {
        float *total = w->total;
        const float *p = t->partial + i * pair;
        memcpy(total, p, sizeof(float) * pair);
        for (uint32_t part = t->part; part < t->part + t->n_parts; part++) {
            p += step;
            if (sees_part(t, t->first_row + i / t->n_heads, part))
                join_part(total, p, p + VF, p + 2 * VF, wide);
        }
        finish_pair(total, n, out_of(t, i));
    }
}

#endif
