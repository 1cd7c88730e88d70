/* Matrix products on x86: the body, compiled into each variant. One path serves one row and a thousand:
 *
 *   for each 256 of k, for each panel of 16 outputs:
 *       lay the panel's piece out in the first-level cache (integers as 16 bits, scales and minima as f32; or floats)
 *       for each few rows: multiply, and ask for a part of what comes next
 *
 * Laying out costs about as much as two rows of products: with many rows it is free. One row, and a few of floats, are
 * multiplied with what is packed; a few of integers, where there are dot products of bytes, by x86_product_few.h. The
 * arithmetic (law 1), for output o of row r, lane by lane, where fma rounds once:
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
#define TILE_LEAST  4 /* rows of a tile, of several: fewer cost clearly more each */
#else
#define SIDE_MAX    1
#define INT_TILE    4
#define FLOAT_TILE  6
#define CHAINS_ROWS 0 /* sums are additions, which take one cycle */
#define TILE_LEAST  3
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
#define WHOLE_ROWS   24   /* rows whose activations of all of k stay in the cache */
#define ROWS_MAX     132  /* rows whose 256 activations stay in the second-level cache; a multiple of every row tile */

#define TOTAL_STEP (ROWS_MAX * PANEL_COLS) /* floats between the totals of two panels */

struct product_room {                                    /* a worker's */
    union {                                              /* pieces of neighbouring panels */
        _Alignas(64) struct vi q[SIDE_MAX * PIECE_VECS]; /* 16 bits: a pair of each output */
        _Alignas(64) float f[SIDE_MAX * PIECE_FLOATS];
    } w;
    _Alignas(64) float scale[PANELS_MAX * PIECE_SCALES], min[PANELS_MAX * PIECE_SCALES];
    _Alignas(64) float total[PANELS_MAX][TOTAL_STEP];
    /* 256 of k of rows that do not lie together (those of an expert) */
    union {
        _Alignas(64) int16_t q[ROWS_MAX * K_BLOCK];
        _Alignas(64) float f[ROWS_MAX * K_BLOCK];
    } rows;
    float a_scale[ROWS_MAX * ACT_BLOCK], a_sum[ROWS_MAX * ACT_BLOCK], a_sum16[ROWS_MAX * ACT_BLOCK * 2];
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

/* Bits 2s and 2s + 1 of each byte at bits 4 and 5. */
INLINE struct vi two_bits(struct vi t, int s)
{
    return vi_and(s < 2 ? vi_left16(t, 4 - 2 * s) : vi_right16(t, 2 * s - 4), vi_set16(0x3030));
}

/* Four bits of each 16-bit lane, from bit `at` on; with a sign or without. */
INLINE struct vi four_bits(struct vi b, int at, bool is_signed)
{
    if (is_signed)
        return vi_right16_signed(at == 12 ? b : vi_left16(b, 12 - at), 12);
    const struct vi low = at == 0 ? b : vi_right16(b, at);
    return at == 12 ? low : vi_and(low, vi_set16(15));
}

/* Step s of the first or the second half of a group. */
INLINE void take_step(enum pack_form form, int offset, const unsigned char *from, int half, int s, struct vi x[2])
{
    const struct vi b = vi_load(from + (form == PACK_8 ? 4 * half + s : s) * STEP_BYTES);
    if (form == PACK_4) {
        x[0] = four_bits(b, 4 * half, offset != 0);
        x[1] = four_bits(b, 4 * half + 8, offset != 0);
    } else if (form == PACK_8) {
        put_step(x, vi_right16_signed(vi_left16(b, 8), 8), vi_right16_signed(b, 8), 0);
    } else {
        const struct vi nibbles = vi_and(half == 0 ? b : vi_right16(b, 4), vi_set16(0x0f0f));
        const struct vi t = vi_load(from + (form == PACK_6 ? 4 + half : 4) * STEP_BYTES);
        const struct vi fifth = vi_and(half == 0 ? vi_left16(t, 4 - s) : vi_right16(t, s), vi_set16(0x1010));
        put_bytes(x, vi_or(nibbles, form == PACK_6 ? two_bits(t, s) : fifth), offset);
    }
}

INLINE void take_group(enum pack_form form, int offset, const unsigned char *from, struct vi x[GROUP_VECS])
{
    EACH (half, 2)
        EACH (s, 4)
            take_step(form, offset, from, half, s, x + 8 * half + 2 * s);
}

/* A piece that is wanted soon, of each panel: its data and scales, and how many bytes of them a group has. It is asked
 * for group by group, and by the tiles of rows in turn: a core has a dozen misses in flight, and asking for a whole
 * piece at once, or only while another is laid out, would stop it until they are back. */
struct ahead {
    const unsigned char *data[PANELS_MAX], *scale[PANELS_MAX];
    size_t data_bytes;
    uint32_t scale_bytes;
    uint32_t turn, turns; /* this tile asks for group turn, turn + turns... */
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
    case SCALE_K: {
        s += g0 / SUPER * (64 + SUPER * 32);
        const struct vf d = vf_of_f16(s), m = vf_of_f16(s + 32);
        for (uint32_t g = 0; g < n; g++) {
            const __m128i *b = (const __m128i *)(s + 64 + g * 32);
            vf_store(scale + g * VF, vf_mul(d, vf_of_u8(_mm_loadu_si128(b))));
            vf_store(min + g * VF, vf_sub(vf_set(0.0f), vf_mul(m, vf_of_u8(_mm_loadu_si128(b + 1)))));
        }
        break;
    }
    case SCALE_K16: {
        s += g0 / SUPER * (32 + 16 * PANEL_COLS);
        const struct vf d = vf_of_f16(s);
        for (uint32_t g = 0; g < 2 * n; g++)
            vf_store(scale + g * VF, vf_mul(d, vf_of_i8(_mm_loadu_si128((const __m128i *)(s + 32 + g * PANEL_COLS)))));
        break;
    }
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
    struct product_room *room)
{
    const size_t step = p->data_bytes;
    const unsigned char *from = panel + g0 * step;
    struct vi *out = room->w.q + side * PIECE_VECS;
#define LAY(form, offset)                                                                                              \
    for (uint32_t g = 0; g < n; g++, from += step, out += GROUP_VECS)                                                  \
        take_group(form, offset, from, out);
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

/* Floats of 16 bits as f32. */
static const unsigned char *lay_floats(const struct packed *p, const unsigned char *from, uint32_t n, float *out)
{
    for (uint32_t k = 0; k < n; k++, from += 32)
        vf_store(out + k * VF, p->form == PACK_F16 ? vf_of_f16(from) : vf_of_bf16(from));
    return (const unsigned char *)out;
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
typedef void int_tile_fn(const struct product_room *room, const struct groups *rows, uint32_t n_groups, float *total,
    const struct ahead *ahead);

INLINE void int_tile(int rows, int sides, int subs, bool with_min, const struct product_room *room,
    const struct groups *a, uint32_t n_groups, float *total, const struct ahead *ahead)
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
    for (uint32_t g = 0, asks = ahead->turn; g < n_groups; g++, a_scale++) {
        if (g == asks) {
            EACH (c, sides)
                fetch_group(ahead, (uint32_t)c, ahead->data_bytes, g);
            asks += ahead->turns;
        }
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
    }
    EACH (c, sides)
        EACH (r, rows)
            vf_store(total + c * TOTAL_STEP + r * VF, acc[c][r]);
}

#define INT_FN(kind, rows, sides, subs, with_min)                                                                      \
    static void int_##kind##_##rows##_##sides(const struct product_room *room, const struct groups *a,                 \
        uint32_t n_groups, float *total, const struct ahead *ahead)                                                    \
    {                                                                                                                  \
        int_tile(rows, sides, subs, with_min, room, a, n_groups, total, ahead);                                        \
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

/* ---- float products of a few rows ----------------------------------------------------------------------------------
 */

/* What is wanted next, of each panel: `step` bytes more with each two of k. Each tile of a piece's rows asks for its
 * share, so that memory is busy all the time. */
struct float_ahead {
    const unsigned char *p[SIDE_MAX];
    size_t step;
};

INLINE struct vf float_at(enum pack_form form, const unsigned char *p)
{
    return form == PACK_F16    ? vf_of_f16(p)
           : form == PACK_BF16 ? vf_of_bf16(p)
                               : vf_load((const float *)(const void *)p);
}

/* A piece of some panels, n of k, with some rows, whose elements lie K_BLOCK apart; the sums are added to the totals.
 */
typedef void float_tile_fn(
    const unsigned char *const *w, const float *a, uint32_t n, float *total, const struct float_ahead *ahead);

INLINE void float_step(int rows, int sides, enum pack_form form, const unsigned char *const *w, const float *a,
    struct vf acc[SIDE_MAX][FLOAT_TILE])
{
    struct vf x[SIDE_MAX];
    EACH (c, sides) {
        x[c] = float_at(form, w[c]);
        vf_keep(&x[c]);
    }
    EACH (r, rows) {
        const struct vf y = vf_set(a[r * K_BLOCK]);
        EACH (c, sides)
            acc[c][r] = vf_fma(y, x[c], acc[c][r]);
    }
}

INLINE void float_tile(int rows, int sides, enum pack_form form, const unsigned char *const *w, const float *a,
    uint32_t n, float *total, const struct float_ahead *ahead)
{
    const size_t step = data_bytes_of(form);
    struct vf acc[SIDE_MAX][FLOAT_TILE];
    const unsigned char *from[SIDE_MAX], *next[SIDE_MAX];
    EACH (c, sides) {
        from[c] = w[c];
        next[c] = ahead->p[c];
        EACH (r, rows)
            acc[c][r] = vf_set(0.0f);
    }
    for (uint32_t k = 0; k + 2 <= n; k += 2)
        EACH (i, 2) {
            EACH (c, sides)
                if (i == 0) {
                    _mm_prefetch((const char *)next[c], _MM_HINT_T1);
                    next[c] += ahead->step;
                }
            float_step(rows, sides, form, from, a++, acc);
            EACH (c, sides)
                from[c] += step;
        }
    if (n % 2 != 0)
        float_step(rows, sides, form, from, a, acc);
    EACH (c, sides)
        EACH (r, rows) {
            float *to = total + c * TOTAL_STEP + r * VF;
            vf_store(to, vf_add(vf_load(to), acc[c][r]));
        }
}

#define FLOAT_FN(form, rows, sides)                                                                                    \
    static void float_##form##_##rows##_##sides(                                                                       \
        const unsigned char *const *w, const float *a, uint32_t n, float *total, const struct float_ahead *ahead)      \
    {                                                                                                                  \
        float_tile(rows, sides, PACK_##form, w, a, n, total, ahead);                                                   \
    }
#define FLOAT_FNS_6(form, sides)                                                                                       \
    FLOAT_FN(form, 1, sides)                                                                                           \
    FLOAT_FN(form, 2, sides)                                                                                           \
    FLOAT_FN(form, 3, sides)                                                                                           \
    FLOAT_FN(form, 4, sides)                                                                                           \
    FLOAT_FN(form, 5, sides)                                                                                           \
    FLOAT_FN(form, 6, sides)
#define FLOAT_ROW_6(form, sides)                                                                                       \
    float_##form##_1_##sides, float_##form##_2_##sides, float_##form##_3_##sides, float_##form##_4_##sides,            \
        float_##form##_5_##sides, float_##form##_6_##sides
#ifdef QUERN_AVX512
#define FLOAT_FNS_12(form, sides)                                                                                      \
    FLOAT_FNS_6(form, sides)                                                                                           \
    FLOAT_FN(form, 7, sides)                                                                                           \
    FLOAT_FN(form, 8, sides)                                                                                           \
    FLOAT_FN(form, 9, sides)                                                                                           \
    FLOAT_FN(form, 10, sides)                                                                                          \
    FLOAT_FN(form, 11, sides)                                                                                          \
    FLOAT_FN(form, 12, sides)
#define FLOAT_ROW_12(form, sides)                                                                                      \
    FLOAT_ROW_6(form, sides), float_##form##_7_##sides, float_##form##_8_##sides, float_##form##_9_##sides,            \
        float_##form##_10_##sides, float_##form##_11_##sides, float_##form##_12_##sides
#define FLOAT_FNS(form)                                                                                                \
    FLOAT_FNS_12(form, 1)                                                                                              \
    FLOAT_FNS_12(form, 2)
#define FLOAT_ROW(form)                                                                                                \
    {                                                                                                                  \
        {FLOAT_ROW_12(form, 1)}, {FLOAT_ROW_12(form, 2)},                                                              \
    }
#else
#define FLOAT_FNS(form) FLOAT_FNS_6(form, 1)
#define FLOAT_ROW(form)                                                                                                \
    {                                                                                                                  \
        {                                                                                                              \
            FLOAT_ROW_6(form, 1)                                                                                       \
        }                                                                                                              \
    }
#endif

FLOAT_FNS(F16)
FLOAT_FNS(BF16)
FLOAT_FNS(F32)

/* By form, panels side by side less one, rows less one. */
static float_tile_fn *const float_tiles[][SIDE_MAX][FLOAT_TILE] = {
    [PACK_F16] = FLOAT_ROW(F16), [PACK_BF16] = FLOAT_ROW(BF16), [PACK_F32] = FLOAT_ROW(F32)};

/* ---- the product ---------------------------------------------------------------------------------------------------
 */

/* The groups from g0 on, at most eight, of the rows from row0 on, one row's behind the other's. */
static struct groups rows_of(
    struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows, uint32_t g0)
{
    const struct acts *in = p->in;
    if (p->in_rows == NULL)
        return acts_groups(in, p->first_row + row0, g0);
    const struct groups to = {.q = room->rows.q, .scale = room->a_scale, .sum = room->a_sum, .sum16 = room->a_sum16};
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct groups a = acts_groups(in, p->in_rows[row0 + i], g0);
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
    uint32_t first; /* panel of the run that it belongs to */
};

/* The pieces of a call in their order. Few rows go through panels from end to end, which is how they lie in memory;
 * with many, the rows' own 256 of k stay in the cache while all panels meet them. */
struct walk {
    uint32_t n_panels, side; /* of a run, and how many at once */
    uint32_t n_groups;
    bool k_first;
};

static struct piece piece_from(const struct walk *w, uint32_t panel)
{
    return (struct piece){panel, MIN(w->side, w->n_panels), 0, panel};
}

/* Behind the last piece come those of the next panels, which may be somebody else's. */
static void next_piece(const struct walk *w, struct piece *at)
{
    const uint32_t end = at->first + w->n_panels;
    const bool last_k = at->g0 + ACT_BLOCK >= w->n_groups, last_panel = at->panel + at->sides == end;
    if (last_k && last_panel) {
        *at = piece_from(w, end);
        return;
    }
    if (w->k_first ? !last_k : last_panel) {
        at->g0 += ACT_BLOCK;
        at->panel = w->k_first ? at->panel : at->first;
    } else {
        at->g0 = w->k_first ? 0 : at->g0;
        at->panel += at->sides;
    }
    at->sides = MIN(w->side, end - at->panel);
}

static void look_ahead(const struct product *p, const struct piece *to, uint32_t side, struct ahead *ahead)
{
    const struct packed *w = p->w->packed;
    for (uint32_t i = 0; i < side; i++) {
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
        lay_groups(w, packed_panel(w, p->mat, at->panel + i), at->g0, n, i, room);
    struct ahead share = *ahead;
    share.turns = n_tiles;
    for (uint32_t i = 0; share.turn < n_tiles; share.turn++) {
        const uint32_t left = n_tiles - share.turn, even = (n_rows - i + left - 1) / left;
        const uint32_t most = n_rows - i - (left - 1) * TILE_LEAST; /* the others must not get too few */
        const uint32_t some = is_by_16(w) ? even : MAX(even, MIN(most, (uint32_t)INT_TILE));
        const struct groups a = groups_from(rows, (size_t)i * ACT_BLOCK);
        int_tiles[kind][at->sides - 1][some - 1](room, &a, n, total + (size_t)i * PANEL_COLS, &share);
        i += some;
    }
}

#ifdef QUERN_AVX512
#include "cpu/x86_product_few.h"
#else /* AVX2 adds products of bytes with 16 bits only */
#define few_piece int_piece
#define FEW_SIDES SIDE_MAX
static bool is_few(const struct product *p, uint32_t row0, uint32_t n_rows)
{
    (void)p, (void)row0, (void)n_rows;
    return false;
}
#endif

static void int_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const bool few = is_few(p, row0, n_rows);
    const struct walk walk = {.n_panels = n_panels,
        .side = few ? FEW_SIDES : MIN(n_rows, SIDE_MAX),
        .n_groups = p->w->n_in / ACT_GROUP,
        .k_first = n_rows <= WHOLE_ROWS && p->in_rows == NULL};
    struct ahead ahead = {.data_bytes = w->data_bytes, .scale_bytes = scale_bytes_of(w)};
    struct groups rows = {0};
    struct piece at = piece_from(&walk, panel0), later = at;
    for (uint32_t i = 0; i < AHEAD / walk.side; i++)
        next_piece(&walk, &later);
    for (; at.first == panel0; next_piece(&walk, &at), next_piece(&walk, &later)) {
        look_ahead(p, &later, walk.side, &ahead);
        if (walk.k_first || at.panel == panel0)
            rows = rows_of(room, p, row0, n_rows, at.g0);
        (few ? few_piece : int_piece)(room, p, &rows, n_rows, &at, room->total[at.panel - panel0], &ahead);
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
            acc[c] = vf_fma(vf_set(a[k]), float_at(form, from), acc[c]);
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

/* 256 of k of the rows from row0 on, one row's behind the other's. */
static const float *float_rows_of(
    struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows, uint32_t k0)
{
    if (p->in_rows == NULL)
        return acts_block(p->in, p->first_row + row0, k0);
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(
            room->rows.f + (size_t)i * K_BLOCK, acts_block(p->in, p->in_rows[row0 + i], k0), K_BLOCK * sizeof(float));
    return room->rows.f;
}

/* Many rows meet what is laid out; a few convert for themselves, which costs less than storing and loading it. */
static void float_piece(struct product_room *room, const struct product *p, const float *rows, uint32_t n_rows,
    const struct piece *at, float *total, const unsigned char *const *ahead)
{
    const struct packed *w = p->w->packed;
    const uint32_t k0 = at->g0 * ACT_GROUP, n = MIN(p->w->n_in - k0, (uint32_t)K_BLOCK);
    const uint32_t n_tiles = (n_rows + FLOAT_TILE - 1) / FLOAT_TILE;
    const bool direct = w->form == PACK_F32 || n_rows <= WHOLE_ROWS;
    const unsigned char *piece[SIDE_MAX];
    struct float_ahead share = {.step = (2 * w->data_bytes + n_tiles - 1) / n_tiles};
    for (uint32_t c = 0; c < at->sides; c++) {
        piece[c] = packed_panel(w, p->mat, at->panel + c) + k0 * w->data_bytes;
        if (!direct)
            piece[c] = lay_floats(w, piece[c], n, room->w.f + c * PIECE_FLOATS);
    }
    for (uint32_t t = 0, i = 0; t < n_tiles; t++) { /* as even as they go */
        const uint32_t some = (n_rows - i + n_tiles - t - 1) / (n_tiles - t);
        for (uint32_t c = 0; c < SIDE_MAX; c++)
            share.p[c] = ahead[c] + (size_t)t * (n / 2) * share.step;
        float_tiles[direct ? w->form : PACK_F32][at->sides - 1][some - 1](
            piece, rows + (size_t)i * K_BLOCK, n, total + (size_t)i * PANEL_COLS, &share);
        i += some;
    }
}

static void float_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const struct walk walk = {.n_panels = n_panels,
        .side = SIDE_MAX,
        .n_groups = (p->w->n_in + ACT_GROUP - 1) / ACT_GROUP,
        .k_first = n_rows <= WHOLE_ROWS && p->in_rows == NULL};
    if (n_rows == 1) {
        const size_t row = p->in_rows != NULL ? p->in_rows[row0] : p->first_row + row0;
        float_one_row(room, p, p->in->f32 + row * p->in->n, panel0, n_panels);
        return;
    }
    const float *rows = NULL;
    struct piece at = piece_from(&walk, panel0), later = at;
    next_piece(&walk, &later);
    for (; at.first == panel0; at = later, next_piece(&walk, &later)) {
        const unsigned char *ahead[SIDE_MAX];
        for (uint32_t c = 0; c < SIDE_MAX; c++)
            ahead[c] = packed_panel(w, p->mat, MIN(later.panel + c, w->n_panels - 1)) +
                       (size_t)later.g0 * ACT_GROUP * w->data_bytes;
        if (walk.k_first || at.panel == panel0)
            rows = float_rows_of(room, p, row0, n_rows, at.g0 * ACT_GROUP);
        float_piece(room, p, rows, n_rows, &at, room->total[at.panel - panel0], ahead);
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
