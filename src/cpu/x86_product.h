/* Matrix products on x86: the body, compiled into each variant. One path serves one row and a thousand:
 *
 *   for each 256 of k, for each panel of 16 outputs:
 *       lay the panel's piece out in the first-level cache (integers as 16 bits, scales and minima as f32; or floats)
 *       for each few rows: multiply
 *
 * Laying out costs about as much as one row of products, so with one row the loop still keeps up with memory, and with
 * many it is free. The arithmetic (law 1), for output o of row r, lane by lane, where fma rounds once:
 *
 * - Quantised weights: groups of k ascend (32 elements; 16 for Q6_K and the types packed with f32 scales). In each,
 *   i = the exact integer sum of q * qa (q with its offset taken off), then
 *   acc = fma(float(i) * scale, a_scale, acc), and for types with a minimum acc = fma(min, a_scale * float(sum of qa),
 *   acc). Integers stay exact: see dots().
 * - Float weights: within each 256 of k from zero, ascending, acc = fma(a[k], w[k], acc); these sums ascending into the
 *   total by addition.
 * - Then the bias, by addition.
 *
 * A step is 4 of k and 16 outputs. Packed, it is 64 bytes, 4 of each output. A 16-bit lane thus holds elements 0 and 1
 * or 2 and 3 of one output; taking the low bytes of all lanes gives the pairs (0, 2), the high bytes (1, 3), with one
 * or two instructions and no shuffle. Activations lie in that order too (0 2 1 3 in each four: x86_rows.h), so that one
 * 32-bit broadcast meets each pair.
 *
 * Floors, per core and 32 x 16 multiply-adds a row: AVX-512 16 dot instructions and 3 or 4 float ones, so at most 4/5
 * of the peak of 16-bit integers; AVX2 64 of multiply and add with 8 more for scales, so 8/9 of it. */
#ifndef CPU_X86_PRODUCT_H
#define CPU_X86_PRODUCT_H

#include "cpu/pack.h"
#include "cpu/x86_simd.h"

/* Panels and rows that are multiplied at once. With AVX-512 two panels side by side: a vector load costs more than a
 * dot product there, so what is loaded must serve twice. */
#ifdef QUERN_AVX512
#define SIDE_MAX    2
#define INT_TILE    6
#define FLOAT_TILE  12
#define CHAINS_ROWS 4 /* rows up to which each has two sums of dot products in flight */
#else
#define SIDE_MAX    1
#define INT_TILE    4
#define FLOAT_TILE  6
#define CHAINS_ROWS 0 /* sums are additions, which take one cycle */
#endif

#define K_BLOCK      (ACT_BLOCK * ACT_GROUP)
#define BLOCK_SUBS   (K_BLOCK / SUB_GROUP)
#define PANELS_MAX   4 /* whose totals are kept at once */
#define GROUP_VECS   (2 * GROUP_STEPS)
#define PIECE_VECS   (ACT_BLOCK * GROUP_VECS)
#define PIECE_SCALES (BLOCK_SUBS * PANEL_COLS)
#define PIECE_FLOATS (K_BLOCK * PANEL_COLS)
#define DOT_VECS     4    /* written out; more make no difference, and compilers slow */
#define ONE_ROW_SUMS 4    /* chains of dot products in flight */
#define AHEAD        4    /* panels' pieces between asking for one and using it */
#define FLOAT_AHEAD  2048 /* bytes */
#define FEW_ROWS     24   /* rows whose activations of all of k stay in the cache */
#define ROWS_MAX     132  /* rows whose 256 activations stay in the second-level cache; a multiple of every row tile */

#define TOTAL_STEP (ROWS_MAX * PANEL_COLS) /* floats between the totals of two panels */

struct product_room {                                    /* a worker's */
    union {                                              /* pieces of neighbouring panels */
        _Alignas(64) struct vi q[SIDE_MAX * PIECE_VECS]; /* 16 bits: a pair of each output */
        _Alignas(64) float f[SIDE_MAX * PIECE_FLOATS];
    } w;
    _Alignas(64) float scale[SIDE_MAX * PIECE_SCALES], min[SIDE_MAX * PIECE_SCALES];
    _Alignas(64) float total[PANELS_MAX][TOTAL_STEP];
    /* 256 of k of rows that do not lie together (those of an expert) */
    _Alignas(64) int16_t q[ROWS_MAX * K_BLOCK];
    float a_scale[ROWS_MAX * ACT_BLOCK], a_sum[ROWS_MAX * ACT_BLOCK], a_sum16[ROWS_MAX * ACT_BLOCK * 2];
    const float *f[ROWS_MAX];
};

/* ---- laying out a panel's piece ---------------------------------------------------------------------------------- */

/* A group's integers: the even pairs of step s at x[2s], the odd ones at x[2s + 1], less the offset. */
INLINE void put_step(struct vi *x, struct vi even, struct vi odd, int offset)
{
    x[0] = offset == 0 ? even : vi_sub16(even, vi_set16(offset));
    x[1] = offset == 0 ? odd : vi_sub16(odd, vi_set16(offset));
}

/* A step's elements as unsigned bytes. */
INLINE void put_bytes(struct vi *x, struct vi bytes, int offset)
{
    put_step(x, vi_and(bytes, vi_set16(255)), vi_right16(bytes, 8), offset);
}

INLINE void take_4(const unsigned char *from, int offset, struct vi x[GROUP_VECS])
{
    const struct vi mask = vi_set16(15);
    EACH (s, 4) {
        const struct vi b = vi_load(from + s * STEP_BYTES);
        put_step(x + 2 * s, vi_and(b, mask), vi_and(vi_right16(b, 8), mask), offset);
        put_step(x + 2 * s + 8, vi_and(vi_right16(b, 4), mask), vi_right16(b, 12), offset);
    }
}

/* The four bits of steps s and s + 4, each below its further bits. */
INLINE void put_nibbles(
    const unsigned char *from, int s, struct vi low_top, struct vi high_top, int offset, struct vi x[GROUP_VECS])
{
    const struct vi mask = vi_set16(0x0f0f), b = vi_load(from + s * STEP_BYTES);
    put_bytes(x + 2 * s, vi_or(vi_and(b, mask), low_top), offset);
    put_bytes(x + 2 * s + 8, vi_or(vi_and(vi_right16(b, 4), mask), high_top), offset);
}

INLINE void take_5(const unsigned char *from, int offset, struct vi x[GROUP_VECS])
{
    const struct vi bit = vi_set16(0x1010), t = vi_load(from + 4 * STEP_BYTES);
    EACH (s, 4)
        put_nibbles(from, s, vi_and(vi_left16(t, 4 - s), bit), vi_and(vi_right16(t, s), bit), offset, x);
}

/* Bits 2s and 2s + 1 of each byte at bits 4 and 5. */
INLINE struct vi two_bits(struct vi t, int s)
{
    return vi_and(s < 2 ? vi_left16(t, 4 - 2 * s) : vi_right16(t, 2 * s - 4), vi_set16(0x3030));
}

INLINE void take_6(const unsigned char *from, int offset, struct vi x[GROUP_VECS])
{
    const struct vi low = vi_load(from + 4 * STEP_BYTES), high = vi_load(from + 5 * STEP_BYTES);
    EACH (s, 4)
        put_nibbles(from, s, two_bits(low, s), two_bits(high, s), offset, x);
}

INLINE void take_8(const unsigned char *from, struct vi x[GROUP_VECS])
{
    EACH (s, GROUP_STEPS) {
        const struct vi b = vi_load(from + s * STEP_BYTES);
        put_step(x + 2 * s, vi_right16_signed(vi_left16(b, 8), 8), vi_right16_signed(b, 8), 0);
    }
}

INLINE void take_group(enum pack_form form, int offset, const unsigned char *from, struct vi x[GROUP_VECS])
{
    switch (form) {
    case PACK_4: take_4(from, offset, x); break;
    case PACK_5: take_5(from, offset, x); break;
    case PACK_6: take_6(from, offset, x); break;
    default: take_8(from, x); break;
    }
}

/* A piece that is wanted soon, of each panel: its data and scales, and how many bytes of them a group has. It is asked
 * for group by group while another is laid out: a core has a dozen misses in flight, and asking for a whole piece at
 * once would stop it until they are back. */
struct ahead {
    const unsigned char *data[SIDE_MAX], *scale[SIDE_MAX];
    uint32_t scale_bytes;
};

INLINE void fetch_group(const struct ahead *h, uint32_t side, size_t data_bytes, uint32_t g)
{
    const char *data = (const char *)h->data[side] + g * data_bytes;
    const char *scale = (const char *)h->scale[side] + (size_t)g * h->scale_bytes;
    for (size_t i = 0; i < data_bytes; i += 64)
        _mm_prefetch(data + i, _MM_HINT_T0);
    for (uint32_t i = 0; i < h->scale_bytes; i += 64)
        _mm_prefetch(scale + i, _MM_HINT_T0);
}

INLINE void lay_scales(
    const struct packed *p, const unsigned char *panel, uint32_t g0, uint32_t n, float *scale, float *min)
{
    const unsigned char *s = panel + p->scale_at;
    switch (p->scales) {
    case SCALE_D:
        for (uint32_t g = 0; g < n; g++)
            vf_store(scale + g * VF, vf_of_f16(s + (g0 + g) * 32));
        break;
    case SCALE_DM:
        for (uint32_t g = 0; g < n; g++) {
            vf_store(scale + g * VF, vf_of_f16(s + (g0 + g) * 64));
            vf_store(min + g * VF, vf_of_f16(s + (g0 + g) * 64 + 32));
        }
        break;
    case SCALE_K:
        s += g0 / SUPER * (64 + SUPER * 32);
        for (uint32_t g = 0; g < n; g++) {
            const __m128i *b = (const __m128i *)(s + 64 + g * 32);
            const struct vf m = vf_mul(vf_of_f16(s + 32), vf_of_u8(_mm_loadu_si128(b + 1)));
            vf_store(scale + g * VF, vf_mul(vf_of_f16(s), vf_of_u8(_mm_loadu_si128(b))));
            vf_store(min + g * VF, vf_sub(vf_set(0.0f), m));
        }
        break;
    case SCALE_K16:
        s += g0 / SUPER * (32 + 16 * PANEL_COLS);
        for (uint32_t g = 0; g < 2 * n; g++)
            vf_store(scale + g * VF,
                vf_mul(vf_of_f16(s), vf_of_i8(_mm_loadu_si128((const __m128i *)(s + 32 + g * PANEL_COLS)))));
        break;
    case SCALE_F: memcpy(scale, s + (size_t)g0 * 128, (size_t)n * 128); break;
    case SCALE_FM:
        for (uint32_t g = 0; g < 2 * n; g++) {
            memcpy(scale + g * VF, s + ((size_t)g0 * 2 + g) * 128, 64);
            memcpy(min + g * VF, s + ((size_t)g0 * 2 + g) * 128 + 64, 64);
        }
        break;
    case SCALE_NONE: break;
    }
}

static void lay_groups(const struct packed *p, const unsigned char *panel, uint32_t g0, uint32_t n, uint32_t side,
    struct product_room *room, const struct ahead *ahead)
{
    const size_t step = p->data_bytes;
    const unsigned char *from = panel + g0 * step;
    struct vi *out = room->w.q + side * PIECE_VECS;
#define LAY(form, offset)                                                                                              \
    for (uint32_t g = 0; g < n; g++, from += step, out += GROUP_VECS) {                                                \
        fetch_group(ahead, side, data_bytes_of(form), g);                                                              \
        take_group(form, offset, from, out);                                                                           \
    }
    switch (p->form) {
    case PACK_4:
        if (p->offset == 0)
            LAY(PACK_4, 0)
        else
            LAY(PACK_4, 8)
        break;
    case PACK_5:
        if (p->offset == 0)
            LAY(PACK_5, 0)
        else
            LAY(PACK_5, 16)
        break;
    case PACK_6: LAY(PACK_6, 32) break;
    default: LAY(PACK_8, 0) break;
    }
#undef LAY
    lay_scales(p, panel, g0, n, room->scale + side * PIECE_SCALES, room->min + side * PIECE_SCALES);
}

/* Floats as f32, where they lie already when they are. */
static const float *lay_floats(const struct packed *p, const unsigned char *panel, uint32_t k0, uint32_t n, float *out)
{
    const unsigned char *from = panel + k0 * p->data_bytes;
    if (p->form == PACK_F32)
        return (const float *)from;
    for (uint32_t k = 0; k < n; k++, from += 32)
        vf_store(out + k * VF, p->form == PACK_F16 ? vf_of_f16(from) : vf_of_bf16(from));
    return out;
}

/* ---- integer products of a few rows --------------------------------------------------------------------------------
 */

/* Which kernel a packing needs: elements under one scale, whether there are minima. */
enum kind { KIND_32, KIND_32M, KIND_16, KIND_16M, KINDS };

static bool has_min(const struct packed *p)
{
    return p->scales == SCALE_DM || p->scales == SCALE_K || p->scales == SCALE_FM;
}

static bool is_by_16(const struct packed *p)
{
    return p->scales == SCALE_K16 || p->scales == SCALE_F || p->scales == SCALE_FM;
}

static enum kind kind_of(const struct packed *p)
{
    return is_by_16(p) ? has_min(p) ? KIND_16M : KIND_16 : has_min(p) ? KIND_32M : KIND_32;
}

INLINE int32_t pair_at(const int16_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* sum[side][r] = the products of `vecs` vectors. Two products meet in 32 bits and are added up there:
 * 32 * 128 * 32767 < 2^31. A dot product takes five cycles until the next can be added to it, so few rows keep two sums
 * each: integers, any order is the same. */
INLINE void dots(int rows, int sides, int vecs, const struct vi *w, const int16_t *q, struct vi sum[SIDE_MAX][INT_TILE])
{
    const int chains = rows <= CHAINS_ROWS ? 2 : 1;
    struct vi part[2][SIDE_MAX][INT_TILE];
    EACH (h, chains)
        EACH (c, sides)
            EACH (r, rows)
                part[h][c][r] = vi_set32(0);
    for (int at = 0; at < vecs; at += DOT_VECS, w += DOT_VECS, q += 2 * DOT_VECS)
        EACH (s, DOT_VECS) {
            struct vi x[SIDE_MAX];
            EACH (c, sides) {
                x[c] = w[c * PIECE_VECS + s];
                vi_keep(&x[c]);
            }
            EACH (r, rows) {
                const struct vi a = vi_set32(pair_at(q + r * K_BLOCK + 2 * s));
                EACH (c, sides) {
                    struct vi *to = &part[s % chains][c][r];
                    *to = vi_dot(*to, x[c], a);
                    vi_keep(to); /* gcc would rather add in another order and run out of registers */
                }
            }
        }
    EACH (c, sides)
        EACH (r, rows)
            sum[c][r] = chains == 1 ? part[0][c][r] : vi_add32(part[0][c][r], part[1][c][r]);
}

/* The groups of a piece, for some rows and panels, added to their totals. */
typedef void int_tile_fn(const struct product_room *room, const struct groups *rows, uint32_t n_groups, float *total);

INLINE void int_tile(int rows, int sides, int subs, bool with_min, const struct product_room *room,
    const struct groups *a, uint32_t n_groups, float *total)
{
    const int16_t *q = a->q;
    const float *a_scale = a->scale, *a_sum = subs == 1 ? a->sum : a->sum16;
    const struct vi *w = room->w.q;
    const float *scales = room->scale, *mins = room->min;
    const int vecs = GROUP_VECS / subs;
    struct vf acc[SIDE_MAX][INT_TILE];
    EACH (c, sides)
        EACH (r, rows)
            acc[c][r] = vf_load(total + c * TOTAL_STEP + r * VF);
    for (uint32_t g = 0; g < n_groups; g++, a_scale++)
        EACH (s, subs) {
            struct vi sum[SIDE_MAX][INT_TILE];
            dots(rows, sides, vecs, w, q, sum);
            EACH (c, sides) {
                const struct vf scale = vf_load(scales + c * PIECE_SCALES);
                EACH (r, rows)
                    acc[c][r] = vf_fma(vf_mul(vf_of_vi(sum[c][r]), scale), vf_set(a_scale[r * ACT_BLOCK]), acc[c][r]);
            }
            if (with_min)
                EACH (c, sides) {
                    const struct vf min = vf_load(mins + c * PIECE_SCALES);
                    EACH (r, rows)
                        acc[c][r] = vf_fma(min, vf_set(a_sum[r * ACT_BLOCK * subs]), acc[c][r]);
                }
            w += vecs;
            q += 2 * vecs;
            a_sum++;
            scales += VF;
            mins += VF;
        }
    EACH (c, sides)
        EACH (r, rows)
            vf_store(total + c * TOTAL_STEP + r * VF, acc[c][r]);
}

#define INT_FN(kind, rows, sides, subs, with_min)                                                                      \
    static void int_##kind##_##rows##_##sides(                                                                         \
        const struct product_room *room, const struct groups *a, uint32_t n_groups, float *total)                      \
    {                                                                                                                  \
        int_tile(rows, sides, subs, with_min, room, a, n_groups, total);                                               \
    }
#define INT_FNS_4(kind, sides, subs, with_min)                                                                         \
    INT_FN(kind, 1, sides, subs, with_min)                                                                             \
    INT_FN(kind, 2, sides, subs, with_min)                                                                             \
    INT_FN(kind, 3, sides, subs, with_min)                                                                             \
    INT_FN(kind, 4, sides, subs, with_min)
#define INT_ROW_4(kind, sides)                                                                                         \
    int_##kind##_1_##sides, int_##kind##_2_##sides, int_##kind##_3_##sides, int_##kind##_4_##sides
#ifdef QUERN_AVX512
#define INT_FNS_6(kind, sides, subs, with_min)                                                                         \
    INT_FNS_4(kind, sides, subs, with_min)                                                                             \
    INT_FN(kind, 5, sides, subs, with_min)                                                                             \
    INT_FN(kind, 6, sides, subs, with_min)
#define INT_FNS(kind, subs, with_min)                                                                                  \
    INT_FNS_6(kind, 1, subs, with_min)                                                                                 \
    INT_FNS_6(kind, 2, subs, with_min)
#define INT_ROW(kind)                                                                                                  \
    {                                                                                                                  \
        {INT_ROW_4(kind, 1), int_##kind##_5_1, int_##kind##_6_1},                                                      \
            {INT_ROW_4(kind, 2), int_##kind##_5_2, int_##kind##_6_2},                                                  \
    }
#else
#define INT_FNS(kind, subs, with_min) INT_FNS_4(kind, 1, subs, with_min)
#define INT_ROW(kind)                                                                                                  \
    {                                                                                                                  \
        {                                                                                                              \
            INT_ROW_4(kind, 1)                                                                                         \
        }                                                                                                              \
    }
#endif

INT_FNS(32, 1, false)
INT_FNS(32m, 1, true)
INT_FNS(16, 2, false)
INT_FNS(16m, 2, true)

/* By kind, panels side by side less one, rows less one. */
static int_tile_fn *const int_tiles[KINDS][SIDE_MAX][INT_TILE] = {
    [KIND_32] = INT_ROW(32), [KIND_32M] = INT_ROW(32m), [KIND_16] = INT_ROW(16), [KIND_16M] = INT_ROW(16m)};

/* One row, straight from the packed panel: the same sums, and nothing is written down in between. */
typedef void one_row_fn(const unsigned char *from, const struct groups *a, const float *scale, const float *min,
    uint32_t n_groups, float *total, const struct ahead *ahead);

INLINE void one_row(enum pack_form form, int offset, int subs, bool with_min, const unsigned char *from,
    const struct groups *a, const float *scale, const float *min, uint32_t n_groups, float *total,
    const struct ahead *ahead)
{
    const size_t step = data_bytes_of(form);
    const int vecs = GROUP_VECS / subs;
    const int16_t *q = a->q;
    const float *a_sum = subs == 1 ? a->sum : a->sum16;
    struct vf acc = vf_load(total);
    for (uint32_t g = 0; g < n_groups; g++, from += step, q += ACT_GROUP) {
        struct vi x[GROUP_VECS];
        fetch_group(ahead, 0, step, g);
        take_group(form, offset, from, x);
        EACH (s, subs) {
            struct vi sum[ONE_ROW_SUMS]; /* integers: any order is the same */
            EACH (i, vecs) {
                const struct vi b = vi_set32(pair_at(q + 2 * (s * vecs + i)));
                struct vi *to = &sum[i % ONE_ROW_SUMS];
                *to = i < ONE_ROW_SUMS ? vi_dot_first(x[s * vecs + i], b) : vi_dot(*to, x[s * vecs + i], b);
            }
            const struct vi i = vi_add32(vi_add32(sum[0], sum[1]), vi_add32(sum[2], sum[3]));
            acc = vf_fma(vf_mul(vf_of_vi(i), vf_load(scale)), vf_set(a->scale[g]), acc);
            if (with_min)
                acc = vf_fma(vf_load(min), vf_set(*a_sum), acc);
            scale += VF;
            min += VF;
            a_sum++;
        }
    }
    vf_store(total, acc);
}

#define ONE_ROW_FN(name, form, offset, subs, with_min)                                                                 \
    static void one_row_##name(const unsigned char *from, const struct groups *a, const float *scale,                  \
        const float *min, uint32_t n_groups, float *total, const struct ahead *ahead)                                  \
    {                                                                                                                  \
        one_row(form, offset, subs, with_min, from, a, scale, min, n_groups, total, ahead);                            \
    }
ONE_ROW_FN(4_32, PACK_4, 8, 1, false)
ONE_ROW_FN(4_32m, PACK_4, 0, 1, true)
ONE_ROW_FN(5_32, PACK_5, 16, 1, false)
ONE_ROW_FN(5_32m, PACK_5, 0, 1, true)
ONE_ROW_FN(6_16, PACK_6, 32, 2, false)
ONE_ROW_FN(8_32, PACK_8, 0, 1, false)
ONE_ROW_FN(8_16, PACK_8, 0, 2, false)
ONE_ROW_FN(8_16m, PACK_8, 0, 2, true)

static one_row_fn *const one_row_fns[][KINDS] = {[PACK_4] = {[KIND_32] = one_row_4_32, [KIND_32M] = one_row_4_32m},
    [PACK_5] = {[KIND_32] = one_row_5_32, [KIND_32M] = one_row_5_32m},
    [PACK_6] = {[KIND_16] = one_row_6_16},
    [PACK_8] = {[KIND_32] = one_row_8_32, [KIND_16] = one_row_8_16, [KIND_16M] = one_row_8_16m}};

/* The index of the largest tile of at most n rows. */
static uint32_t tile_for(const uint32_t *rows, uint32_t n_tiles, uint32_t n)
{
    uint32_t i = n_tiles - 1;
    while (rows[i] > n)
        i--;
    return i;
}

/* ---- float products of a few rows ----------------------------------------------------------------------------------
 */

/* What is wanted next, of each panel: a step of bytes is asked for with each k. Only the first rows of a piece ask:
 * loads are what limits this loop. */
struct float_ahead {
    const unsigned char *p[SIDE_MAX];
    size_t step;
};

typedef void float_tile_fn(const float *const *w, const float *const *a, uint32_t k0, uint32_t n, float *total,
    const struct float_ahead *ahead);

INLINE void float_tile(int rows, int sides, bool asks, const float *const *w, const float *const *a, uint32_t k0,
    uint32_t n, float *total, const struct float_ahead *ahead)
{
    struct vf acc[SIDE_MAX][FLOAT_TILE];
    const float *w0 = w[0], *w1 = sides > 1 ? w[1] : NULL;
    const unsigned char *next0 = ahead->p[0], *next1 = ahead->p[SIDE_MAX - 1];
    const size_t step = ahead->step;
    EACH (c, sides)
        EACH (r, rows)
            acc[c][r] = vf_set(0.0f);
    for (uint32_t k = 0; k < n; k++, next0 += step, next1 += step) {
        struct vf x[SIDE_MAX];
        EACH (c, sides)
            x[c] = vf_load((c == 0 ? w0 : w1) + (size_t)k * VF);
        EACH (c, sides) {
            vf_keep(&x[c]);
            if (asks)
                _mm_prefetch((const char *)(c == 0 ? next0 : next1), _MM_HINT_T1);
        }
        EACH (r, rows) {
            const struct vf y = vf_set(a[r][k0 + k]);
            EACH (c, sides)
                acc[c][r] = vf_fma(y, x[c], acc[c][r]);
        }
    }
    EACH (c, sides)
        EACH (r, rows) {
            float *to = total + c * TOTAL_STEP + r * VF;
            vf_store(to, vf_add(vf_load(to), acc[c][r]));
        }
}

#define FLOAT_FN(rows, sides)                                                                                          \
    static void float_##rows##_##sides(const float *const *w, const float *const *a, uint32_t k0, uint32_t n,          \
        float *total, const struct float_ahead *ahead)                                                                 \
    {                                                                                                                  \
        float_tile(rows, sides, false, w, a, k0, n, total, ahead);                                                     \
    }                                                                                                                  \
    static void float_##rows##_##sides##_asks(const float *const *w, const float *const *a, uint32_t k0, uint32_t n,   \
        float *total, const struct float_ahead *ahead)                                                                 \
    {                                                                                                                  \
        float_tile(rows, sides, true, w, a, k0, n, total, ahead);                                                      \
    }
FLOAT_FN(1, 1)
FLOAT_FN(2, 1)
FLOAT_FN(4, 1)
#ifdef QUERN_AVX512
FLOAT_FN(8, 1)
FLOAT_FN(12, 1)
FLOAT_FN(1, 2)
FLOAT_FN(2, 2)
FLOAT_FN(4, 2)
FLOAT_FN(8, 2)
FLOAT_FN(12, 2)
static const uint32_t float_rows[] = {1, 2, 4, 8, 12};
#define FLOAT_ROW(sides, how)                                                                                          \
    {                                                                                                                  \
        float_1_##sides##how, float_2_##sides##how, float_4_##sides##how, float_8_##sides##how, float_12_##sides##how  \
    }
static float_tile_fn *const float_tiles[2][SIDE_MAX][COUNT_OF(float_rows)] = {
    {FLOAT_ROW(1, ), FLOAT_ROW(2, )}, {FLOAT_ROW(1, _asks), FLOAT_ROW(2, _asks)}};
#else
FLOAT_FN(6, 1)
static const uint32_t float_rows[] = {1, 2, 4, 6};
static float_tile_fn *const float_tiles[2][SIDE_MAX][COUNT_OF(float_rows)] = {
    {{float_1_1, float_2_1, float_4_1, float_6_1}}, {{float_1_1_asks, float_2_1_asks, float_4_1_asks, float_6_1_asks}}};
#endif

/* ---- the product ---------------------------------------------------------------------------------------------------
 */

/* The groups from g0 on, at most eight, of the rows from row0 on, one row's behind the other's. */
static struct groups rows_of(
    struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows, uint32_t g0)
{
    const struct acts *in = p->in;
    if (p->in_rows == NULL)
        return groups_from(&in->groups, acts_group(in, p->first_row + row0, g0));
    const struct groups to = {room->q, room->a_scale, room->a_sum, room->a_sum16};
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct groups a = groups_from(&in->groups, acts_group(in, p->in_rows[row0 + i], g0));
        memcpy(to.q + (size_t)i * K_BLOCK, a.q, K_BLOCK * sizeof *to.q);
        memcpy(to.scale + (size_t)i * ACT_BLOCK, a.scale, ACT_BLOCK * sizeof *to.scale);
        memcpy(to.sum + (size_t)i * ACT_BLOCK, a.sum, ACT_BLOCK * sizeof *to.sum);
        memcpy(to.sum16 + (size_t)i * 2 * ACT_BLOCK, a.sum16, 2 * ACT_BLOCK * sizeof *to.sum16);
    }
    return to;
}

/* Bytes of scales that a group has, on average. */
static uint32_t scale_bytes_of(const struct packed *w)
{
    static const uint32_t bytes[] = {[SCALE_NONE] = 0,
        [SCALE_D] = 32,
        [SCALE_DM] = 64,
        [SCALE_K] = 32 + 64 / SUPER,
        [SCALE_K16] = 32 + 32 / SUPER,
        [SCALE_F] = 128,
        [SCALE_FM] = 256};
    return bytes[w->scales];
}

/* What is multiplied at once: panels side by side, from group g0 on. */
struct piece {
    uint32_t panel, sides, g0;
};

/* The pieces of a call in their order. Few rows go through panels from end to end, which is how they lie in memory;
 * with many, the rows' own 256 of k stay in the cache while all panels meet them. */
struct walk {
    uint32_t panel0, n_panels, side; /* panels, and how many at once */
    uint32_t n_sides, n_blocks;      /* pieces over panels, and over k */
    bool k_first;
};

/* Behind the last piece come those of the next panels, which may be somebody else's. */
static struct piece piece_at(const struct walk *w, uint32_t i)
{
    const uint32_t n = w->n_sides * w->n_blocks, in = i % n;
    const uint32_t block = w->k_first ? in % w->n_blocks : in / w->n_sides;
    const uint32_t c = (w->k_first ? in / w->n_blocks : in % w->n_sides) * w->side;
    return (struct piece){w->panel0 + i / n * w->n_panels + c, MIN(w->side, w->n_panels - c), block * ACT_BLOCK};
}

static void look_ahead(const struct product *p, const struct piece *to, struct ahead *ahead)
{
    const struct packed *w = p->w->packed;
    for (uint32_t i = 0; i < SIDE_MAX; i++) {
        const unsigned char *at = packed_panel(w, p->mat, MIN(to->panel + i, w->n_panels - 1));
        ahead->data[i] = at + to->g0 * w->data_bytes;
        ahead->scale[i] = at + w->scale_at + (size_t)to->g0 * ahead->scale_bytes;
    }
}

static void int_piece(struct product_room *room, const struct product *p, const struct groups *rows, uint32_t n_rows,
    const struct piece *at, float *total, const struct ahead *ahead)
{
    const struct packed *w = p->w->packed;
    const uint32_t n = MIN(p->w->n_in / ACT_GROUP - at->g0, (uint32_t)ACT_BLOCK);
    const enum kind kind = kind_of(w);
    const uint32_t n_tiles = (n_rows + INT_TILE - 1) / INT_TILE;
    if (n_rows == 1) {
        const unsigned char *panel = packed_panel(w, p->mat, at->panel);
        lay_scales(w, panel, at->g0, n, room->scale, room->min);
        one_row_fns[w->form][kind](panel + at->g0 * w->data_bytes, rows, room->scale, room->min, n, total, ahead);
        return;
    }
    for (uint32_t i = 0; i < at->sides; i++)
        lay_groups(w, packed_panel(w, p->mat, at->panel + i), at->g0, n, i, room, ahead);
    for (uint32_t t = 0, i = 0; t < n_tiles; t++) { /* as even as they go */
        const uint32_t some = (n_rows - i + n_tiles - t - 1) / (n_tiles - t);
        const struct groups a = groups_from(rows, (size_t)i * ACT_BLOCK);
        int_tiles[kind][at->sides - 1][some - 1](room, &a, n, total + (size_t)i * PANEL_COLS);
        i += some;
    }
}

static void int_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const uint32_t n_groups = p->w->n_in / ACT_GROUP, side = MIN(n_rows, SIDE_MAX);
    const struct walk walk = {.panel0 = panel0,
        .n_panels = n_panels,
        .side = side,
        .n_sides = (n_panels + side - 1) / side,
        .n_blocks = (n_groups + ACT_BLOCK - 1) / ACT_BLOCK,
        .k_first = n_rows <= FEW_ROWS && p->in_rows == NULL};
    struct ahead ahead = {.scale_bytes = scale_bytes_of(w)};
    struct groups rows = {0};
    for (uint32_t i = 0; i < walk.n_blocks * walk.n_sides; i++) {
        const struct piece at = piece_at(&walk, i), later = piece_at(&walk, i + AHEAD / side);
        look_ahead(p, &later, &ahead);
        if (walk.k_first || i % walk.n_sides == 0)
            rows = rows_of(room, p, row0, n_rows, at.g0);
        int_piece(room, p, &rows, n_rows, &at, room->total[at.panel - panel0], &ahead);
    }
}

/* One row: the same sums straight from up to four packed panels, whose chains of fma run side by side. */
INLINE void float_row(
    int panels, enum pack_form form, const unsigned char *const *w, const float *a, uint32_t n, float *total)
{
    const size_t step = data_bytes_of(form);
    struct vf acc[PANELS_MAX];
    EACH (c, panels)
        acc[c] = vf_set(0.0f);
    for (uint32_t k = 0; k < n; k++)
        EACH (c, panels) {
            const unsigned char *from = w[c] + k * step;
            _mm_prefetch((const char *)from + FLOAT_AHEAD, _MM_HINT_T0);
            const struct vf x = form == PACK_F16    ? vf_of_f16(from)
                                : form == PACK_BF16 ? vf_of_bf16(from)
                                                    : vf_load((const float *)(const void *)from);
            acc[c] = vf_fma(vf_set(a[k]), x, acc[c]);
        }
    EACH (c, panels)
        vf_store(total + c * TOTAL_STEP, vf_add(vf_load(total + c * TOTAL_STEP), acc[c]));
}

INLINE void float_row_panels(
    enum pack_form form, const unsigned char *const *w, uint32_t panels, const float *a, uint32_t n, float *total)
{
    switch (panels) {
    case 1: float_row(1, form, w, a, n, total); break;
    case 2: float_row(2, form, w, a, n, total); break;
    case 3: float_row(3, form, w, a, n, total); break;
    default: float_row(4, form, w, a, n, total); break;
    }
}

static void float_one_row(
    struct product_room *room, const struct product *p, const float *a, uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const unsigned char *from[PANELS_MAX];
    for (uint32_t k0 = 0; k0 < p->w->n_in; k0 += K_BLOCK) {
        const uint32_t n = MIN(p->w->n_in - k0, (uint32_t)K_BLOCK);
        for (uint32_t c = 0; c < n_panels; c++)
            from[c] = packed_panel(w, p->mat, panel0 + c) + k0 * w->data_bytes;
        switch (w->form) {
        case PACK_F16: float_row_panels(PACK_F16, from, n_panels, a + k0, n, room->total[0]); break;
        case PACK_BF16: float_row_panels(PACK_BF16, from, n_panels, a + k0, n, room->total[0]); break;
        default: float_row_panels(PACK_F32, from, n_panels, a + k0, n, room->total[0]); break;
        }
    }
}

static void float_piece(struct product_room *room, const struct product *p, uint32_t n_rows, const struct piece *at,
    uint32_t k0, float *total, const struct float_ahead *ahead)
{
    const struct packed *w = p->w->packed;
    const uint32_t n = MIN(p->w->n_in - k0, (uint32_t)K_BLOCK);
    const float *piece[SIDE_MAX];
    for (uint32_t i = 0; i < at->sides; i++)
        piece[i] = lay_floats(w, packed_panel(w, p->mat, at->panel + i), k0, n, room->w.f + i * PIECE_FLOATS);
    for (uint32_t i = 0; i < n_rows;) {
        const uint32_t t = tile_for(float_rows, COUNT_OF(float_rows), n_rows - i);
        float_tiles[i == 0][at->sides - 1][t](piece, room->f + i, k0, n, total + (size_t)i * PANEL_COLS, ahead);
        i += float_rows[t];
    }
}

static void float_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const struct walk walk = {.panel0 = panel0,
        .n_panels = n_panels,
        .side = SIDE_MAX,
        .n_sides = (n_panels + SIDE_MAX - 1) / SIDE_MAX,
        .n_blocks = (p->w->n_in + K_BLOCK - 1) / K_BLOCK};
    for (uint32_t i = 0; i < n_rows; i++) {
        const size_t r = p->in_rows != NULL ? p->in_rows[row0 + i] : p->first_row + row0 + i;
        room->f[i] = p->in->f32 + r * p->in->n;
    }
    if (n_rows == 1) {
        float_one_row(room, p, room->f[0], panel0, n_panels);
        return;
    }
    for (uint32_t i = 0; i < walk.n_blocks * walk.n_sides; i++) {
        const struct piece at = piece_at(&walk, i), later = piece_at(&walk, i + 1);
        struct float_ahead ahead = {.step = w->data_bytes};
        for (uint32_t c = 0; c < SIDE_MAX; c++)
            ahead.p[c] = packed_panel(w, p->mat, MIN(later.panel + c, w->n_panels - 1)) +
                         (size_t)later.g0 * ACT_GROUP * w->data_bytes;
        float_piece(room, p, n_rows, &at, at.g0 * ACT_GROUP, room->total[at.panel - panel0], &ahead);
    }
}

/* Columns lo .. hi-1 of the totals, bias added, to their places. */
static void put_totals(const struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t lo, uint32_t hi)
{
    const float *bias = p->w->bias != NULL ? p->w->bias + (size_t)p->mat * p->w->n_out : NULL;
    for (uint32_t at = lo; at < hi;) {
        const uint32_t panel = at / PANEL_COLS, lane = at % PANEL_COLS, n = MIN(PANEL_COLS - lane, hi - at);
        const float *from = room->total[panel - panel0] + lane;
        float *out = p->out + (size_t)row0 * p->out_stride + at;
        for (uint32_t i = 0; i < n_rows; i++, from += PANEL_COLS, out += p->out_stride) {
            if (bias != NULL)
                for (uint32_t j = 0; j < n; j++)
                    out[j] = from[j] + bias[at + j];
            else if (n == PANEL_COLS)
                vf_store(out, vf_load(from));
            else
                memcpy(out, from, n * sizeof *out);
        }
        at += n;
    }
}

static void product_x86(struct worker *wk, const struct product *p, uint32_t lo, uint32_t hi)
{
    struct product_room *room = wk->product;
    const bool is_float = ((const struct packed *)p->w->packed)->scales == SCALE_NONE;
    for (uint32_t row0 = 0; row0 < p->n_rows; row0 += ROWS_MAX) {
        const uint32_t n_rows = MIN(p->n_rows - row0, (uint32_t)ROWS_MAX);
        for (uint32_t at = lo; at < hi;) {
            const uint32_t panel0 = at / PANEL_COLS, end = MIN(hi, (panel0 + PANELS_MAX) * PANEL_COLS);
            const uint32_t n_panels = (end + PANEL_COLS - 1) / PANEL_COLS - panel0;
            for (uint32_t c = 0; c < n_panels; c++)
                memset(room->total[c], 0, sizeof(float) * n_rows * PANEL_COLS);
            (is_float ? float_panels : int_panels)(room, p, row0, n_rows, panel0, n_panels);
            put_totals(room, p, row0, n_rows, panel0, at, end);
            at = end;
        }
    }
}

#endif
