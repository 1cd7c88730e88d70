/* Matrix products on x86: the body, compiled into each variant. One path serves one row and a thousand:
 *
 *   for each 256 of k, for each panel of 16 outputs:
 *       lay the panel's piece out in the first-level cache (integers as bytes, scales and minima as f32; or floats)
 *       for each few rows: multiply
 *
 * Laying out costs about as much as one row of products, so with one row the loop still keeps up with memory, and with
 * many it is free. The arithmetic (law 1), for output o of row r, lane by lane, where fma rounds once:
 *
 * - Quantised weights: groups of k ascend (32 elements; 16 for Q6_K and the types packed with f32 scales). In each,
 *   i = the exact integer sum of q * qa (with the weight's offset taken off in integers), then
 *   acc = fma(float(i) * scale, a_scale, acc), and for types with a minimum acc = fma(min, a_scale * float(sum of qa),
 *   acc). Integers stay exact: see dots().
 * - Float weights: within each 256 of k from zero, ascending, acc = fma(a[k], w[k], acc); these sums ascending into the
 *   total by addition.
 * - Then the bias, by addition.
 *
 * Floors, per core and 32 x 16 multiply-adds a row: AVX-512 8 dot instructions and 3 or 4 float ones, so at most 2/3 of
 * the integer peak; AVX2 32 of multiply and add for 4-bit weights with 8 more for scales, so 3/4 of it. */
#ifndef CPU_X86_PRODUCT_H
#define CPU_X86_PRODUCT_H

#include "cpu/pack.h"
#include "cpu/x86_simd.h"

/* Panels and rows that are multiplied at once. With AVX-512 two panels side by side: a vector load costs more than a
 * dot product there, so what is loaded must serve twice. */
#ifdef QUERN_AVX512
#define SIDE_MAX   2
#define INT_TILE   6
#define FLOAT_TILE 12
#else
#define SIDE_MAX   1
#define INT_TILE   4
#define FLOAT_TILE 6
#endif

#define K_BLOCK      256
#define BLOCK_GROUPS (K_BLOCK / ACT_GROUP)
#define BLOCK_SUBS   (K_BLOCK / SUB_GROUP)
#define PANELS_MAX   4 /* whose totals are kept at once */
#define PIECE_BYTES  (BLOCK_GROUPS * GROUP_STEPS * STEP_BYTES)
#define PIECE_SCALES (BLOCK_SUBS * PANEL_COLS)
#define PIECE_FLOATS (K_BLOCK * PANEL_COLS)
#define ROWS_MAX     132 /* rows whose 256 activations stay in the second-level cache; a multiple of every row tile */

#define TOTAL_STEP (ROWS_MAX * PANEL_COLS) /* floats between the totals of two panels */

struct product_room { /* a worker's */
    union {           /* pieces of neighbouring panels */
        _Alignas(64) unsigned char q[SIDE_MAX * PIECE_BYTES];
        _Alignas(64) float f[SIDE_MAX * PIECE_FLOATS];
    } w;
    _Alignas(64) float scale[SIDE_MAX * PIECE_SCALES], min[SIDE_MAX * PIECE_SCALES];
    _Alignas(64) float total[PANELS_MAX][TOTAL_STEP];
    /* 256 of k of the rows, at fixed distances: one address serves a tile of them. */
    _Alignas(64) int8_t q[ROWS_MAX * K_BLOCK];
    float a_scale[ROWS_MAX * BLOCK_GROUPS];
    int32_t less[ROWS_MAX * BLOCK_SUBS]; /* what an offset adds too much, negative */
    float sum[ROWS_MAX * BLOCK_SUBS];    /* a_scale * sum of qa */
    const float *f[ROWS_MAX];
};

/* ---- laying out a panel's piece ---------------------------------------------------------------------------------- */

#ifdef QUERN_AVX512
#define BYTES_OFFSET 128 /* the dot instruction takes unsigned weights */
#else
#define BYTES_OFFSET 0
#endif

/* Low nibbles of 64 bytes to out, high ones to out + 4 steps, each with extra bits already at their place. */
INLINE void put_nibbles(const unsigned char *from, unsigned char *out, __m256i low_top[2], __m256i high_top[2])
{
    const __m256i mask = _mm256_set1_epi8(15);
    EACH (i, 2) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)from + i);
        const __m256i lo = _mm256_and_si256(x, mask), hi = _mm256_and_si256(_mm256_srli_epi16(x, 4), mask);
        _mm256_store_si256((__m256i *)out + i, _mm256_or_si256(lo, low_top[i]));
        _mm256_store_si256((__m256i *)(out + 4 * STEP_BYTES) + i, _mm256_or_si256(hi, high_top[i]));
    }
}

INLINE void lay_4(const unsigned char *from, unsigned char *out)
{
    EACH (s, 4) {
#ifdef QUERN_AVX512
        const __m512i mask = _mm512_set1_epi8(15), x = _mm512_loadu_si512(from + s * STEP_BYTES);
        _mm512_store_si512(out + s * STEP_BYTES, _mm512_and_si512(x, mask));
        _mm512_store_si512(out + (s + 4) * STEP_BYTES, _mm512_and_si512(_mm512_srli_epi16(x, 4), mask));
#else
        __m256i none[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        put_nibbles(from + s * STEP_BYTES, out + s * STEP_BYTES, none, none);
#endif
    }
}

INLINE void lay_5(const unsigned char *from, unsigned char *out)
{
    const __m256i *top = (const __m256i *)(from + 4 * STEP_BYTES);
    const __m256i bit = _mm256_set1_epi8(16);
    EACH (s, 4) {
        __m256i lo[2], hi[2];
        EACH (i, 2) {
            const __m256i t = _mm256_loadu_si256(top + i);
            lo[i] = _mm256_and_si256(_mm256_slli_epi16(t, 4 - s), bit);
            hi[i] = _mm256_and_si256(_mm256_srli_epi16(t, s), bit);
        }
        put_nibbles(from + s * STEP_BYTES, out + s * STEP_BYTES, lo, hi);
    }
}

INLINE __m256i two_bits(__m256i t, int s)
{
    const __m256i x = s == 0   ? _mm256_slli_epi16(t, 4)
                      : s == 1 ? _mm256_slli_epi16(t, 2)
                      : s == 2 ? t
                               : _mm256_srli_epi16(t, 2);
    return _mm256_and_si256(x, _mm256_set1_epi8(0x30));
}

INLINE void lay_6(const unsigned char *from, unsigned char *out)
{
    const __m256i *top = (const __m256i *)(from + 4 * STEP_BYTES);
    EACH (s, 4) {
        __m256i lo[2], hi[2];
        EACH (i, 2) {
            lo[i] = two_bits(_mm256_loadu_si256(top + i), s);
            hi[i] = two_bits(_mm256_loadu_si256(top + 2 + i), s);
        }
        put_nibbles(from + s * STEP_BYTES, out + s * STEP_BYTES, lo, hi);
    }
}

INLINE void lay_8(const unsigned char *from, unsigned char *out)
{
    EACH (s, 2 * GROUP_STEPS) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)from + s);
        _mm256_store_si256((__m256i *)out + s, _mm256_xor_si256(x, _mm256_set1_epi8((char)BYTES_OFFSET)));
    }
}

/* The next piece of this panel is wanted soon. */
INLINE void fetch_ahead(const unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
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
    struct product_room *room)
{
    const size_t step = p->data_bytes;
    const unsigned char *from = panel + g0 * step;
    unsigned char *out = room->w.q + side * PIECE_BYTES;
    for (uint32_t g = 0; g < n; g++, from += step, out += GROUP_STEPS * STEP_BYTES) {
        fetch_ahead(from + BLOCK_GROUPS * step, step);
        switch (p->form) {
        case PACK_4: lay_4(from, out); break;
        case PACK_5: lay_5(from, out); break;
        case PACK_6: lay_6(from, out); break;
        default: lay_8(from, out); break;
        }
    }
    lay_scales(p, panel, g0, n, room->scale + side * PIECE_SCALES, room->min + side * PIECE_SCALES);
}

/* Floats as f32, where they lie already when they are. */
static const float *lay_floats(const struct packed *p, const unsigned char *panel, uint32_t k0, uint32_t n, float *out)
{
    const unsigned char *from = panel + k0 * p->data_bytes;
    if (p->form == PACK_F32)
        return (const float *)from;
    for (uint32_t k = 0; k < n; k++, from += 32) {
        _mm_prefetch((const char *)from + 2048, _MM_HINT_T0);
        vf_store(out + k * VF, p->form == PACK_F16 ? vf_of_f16(from) : vf_of_bf16(from));
    }
    return out;
}

/* ---- integer products of a few rows --------------------------------------------------------------------------------
 */

/* Which kernel a packing needs: elements under one scale, whether there are minima, bits of an integer. */
enum kind { KIND_4, KIND_4M, KIND_5, KIND_5M, KIND_6, KIND_8, KIND_8F, KIND_8FM, KINDS };

static enum kind kind_of(const struct packed *p)
{
    switch (p->form) {
    case PACK_4: return p->scales == SCALE_D ? KIND_4 : KIND_4M;
    case PACK_5: return p->scales == SCALE_D ? KIND_5 : KIND_5M;
    case PACK_6: return KIND_6;
    default: return p->scales == SCALE_D ? KIND_8 : p->scales == SCALE_F ? KIND_8F : KIND_8FM;
    }
}

INLINE int32_t four_bytes(const int8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

#ifdef QUERN_AVX512
/* sum[side][r] = less + the products of `steps` steps. The instruction adds four products to 32 bits without
 * saturation: 255 * 127 * 32 < 2^31. */
INLINE void dots(int rows, int sides, int bits, int steps, const unsigned char *w, const int8_t *q, const int32_t *less,
    struct vi sum[SIDE_MAX][INT_TILE])
{
    (void)bits;
    EACH (r, rows) {
        const __m512i start = less != NULL ? _mm512_set1_epi32(less[r * BLOCK_SUBS]) : _mm512_setzero_si512();
        EACH (c, sides)
            sum[c][r].v = start;
    }
    EACH (s, steps) {
        __m512i x[SIDE_MAX];
        EACH (c, sides)
            x[c] = _mm512_load_si512(w + c * PIECE_BYTES + s * STEP_BYTES);
        EACH (r, rows) {
            const __m512i a = _mm512_set1_epi32(four_bytes(q + r * K_BLOCK + 4 * s));
            EACH (c, sides)
                sum[c][r].v = _mm512_dpbusd_epi32(sum[c][r].v, x[c], a);
        }
    }
}
#else
/* As above. vpmaddubsw adds two products to 16 bits: 15 * 127 * 2 * 8 steps, 31 * 127 * 2 * 4 steps and
 * 63 * 127 * 2 * 2 steps stay below 2^15. Signed bytes: |w| * (a with the sign of w), 128 * 127 * 2 < 2^15. */
INLINE void add_step(int bits, bool first, const unsigned char *w, __m256i a, struct vi *part)
{
    const __m256i lo = _mm256_load_si256((const __m256i *)w), hi = _mm256_load_si256((const __m256i *)w + 1);
    __m256i l, h;
    if (bits == 8) {
        l = _mm256_maddubs_epi16(_mm256_abs_epi8(lo), _mm256_sign_epi8(a, lo));
        h = _mm256_maddubs_epi16(_mm256_abs_epi8(hi), _mm256_sign_epi8(a, hi));
    } else {
        l = _mm256_maddubs_epi16(lo, a);
        h = _mm256_maddubs_epi16(hi, a);
    }
    part->lo = first ? l : _mm256_add_epi16(part->lo, l);
    part->hi = first ? h : _mm256_add_epi16(part->hi, h);
}

INLINE void dots(int rows, int sides, int bits, int steps, const unsigned char *w, const int8_t *q, const int32_t *less,
    struct vi sum[SIDE_MAX][INT_TILE])
{
    (void)sides;
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
    EACH (r, rows)
        sum[0][r].lo = sum[0][r].hi = less != NULL ? _mm256_set1_epi32(less[r * BLOCK_SUBS]) : _mm256_setzero_si256();
    EACH (s, steps / run) {
        struct vi part[INT_TILE];
        EACH (t, run)
            EACH (r, rows) {
                const int at = s * run + t;
                const __m256i a = _mm256_set1_epi32(four_bytes(q + r * K_BLOCK + 4 * at));
                add_step(bits, t == 0, w + at * STEP_BYTES, a, &part[r]);
            }
        EACH (r, rows) {
            sum[0][r].lo = _mm256_add_epi32(sum[0][r].lo, _mm256_madd_epi16(part[r].lo, ones));
            sum[0][r].hi = _mm256_add_epi32(sum[0][r].hi, _mm256_madd_epi16(part[r].hi, ones));
        }
    }
}
#endif

typedef void int_tile_fn(const struct product_room *room, uint32_t first_row, uint32_t n_groups, float *total);

INLINE void int_tile(int rows, int sides, int bits, int subs, bool with_min, bool with_offset,
    const struct product_room *room, uint32_t first_row, uint32_t n_groups, float *total)
{
    const int8_t *q = room->q + (size_t)first_row * K_BLOCK;
    const float *a_scale = room->a_scale + (size_t)first_row * BLOCK_GROUPS;
    const int32_t *less = room->less + (size_t)first_row * BLOCK_SUBS;
    const float *a_sum = room->sum + (size_t)first_row * BLOCK_SUBS;
    const unsigned char *w = room->w.q;
    const float *scales = room->scale, *mins = room->min;
    const int steps = GROUP_STEPS / subs;
    struct vf acc[SIDE_MAX][INT_TILE];
    EACH (c, sides)
        EACH (r, rows)
            acc[c][r] = vf_load(total + c * TOTAL_STEP + r * VF);
    for (uint32_t g = 0; g < n_groups; g++, a_scale++)
        EACH (s, subs) {
            struct vi sum[SIDE_MAX][INT_TILE];
            dots(rows, sides, bits, steps, w, q, with_offset ? less : NULL, sum);
            EACH (c, sides) {
                const struct vf scale = vf_load(scales + c * PIECE_SCALES);
                EACH (r, rows)
                    acc[c][r] =
                        vf_fma(vf_mul(vf_of_vi(sum[c][r]), scale), vf_set(a_scale[r * BLOCK_GROUPS]), acc[c][r]);
            }
            if (with_min)
                EACH (c, sides) {
                    const struct vf min = vf_load(mins + c * PIECE_SCALES);
                    EACH (r, rows)
                        acc[c][r] = vf_fma(min, vf_set(a_sum[r * BLOCK_SUBS]), acc[c][r]);
                }
            w += steps * STEP_BYTES;
            q += steps * 4;
            less++;
            a_sum++;
            scales += VF;
            mins += VF;
        }
    EACH (c, sides)
        EACH (r, rows)
            vf_store(total + c * TOTAL_STEP + r * VF, acc[c][r]);
}

#define INT_FN(kind, rows, sides, bits, subs, with_min)                                                                \
    static void int_##kind##_##rows##_##sides(                                                                         \
        const struct product_room *room, uint32_t first_row, uint32_t n_groups, float *total)                          \
    {                                                                                                                  \
        int_tile(rows, sides, bits, subs, with_min, (!(with_min) && (bits) < 8) || ((bits) == 8 && BYTES_OFFSET > 0),  \
            room, first_row, n_groups, total);                                                                         \
    }
#ifdef QUERN_AVX512
#define INT_FNS(kind, bits, subs, with_min)                                                                            \
    INT_FN(kind, 1, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 2, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 4, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 6, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 1, 2, bits, subs, with_min)                                                                           \
    INT_FN(kind, 2, 2, bits, subs, with_min)                                                                           \
    INT_FN(kind, 4, 2, bits, subs, with_min)                                                                           \
    INT_FN(kind, 6, 2, bits, subs, with_min)
#define INT_ROW(kind)                                                                                                  \
    {                                                                                                                  \
        {int_##kind##_1_1, int_##kind##_2_1, int_##kind##_4_1, int_##kind##_6_1},                                      \
            {int_##kind##_1_2, int_##kind##_2_2, int_##kind##_4_2, int_##kind##_6_2},                                  \
    }
static const uint32_t int_rows[] = {1, 2, 4, 6};
#else
#define INT_FNS(kind, bits, subs, with_min)                                                                            \
    INT_FN(kind, 1, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 2, 1, bits, subs, with_min)                                                                           \
    INT_FN(kind, 4, 1, bits, subs, with_min)
#define INT_ROW(kind)                                                                                                  \
    {                                                                                                                  \
        {                                                                                                              \
            int_##kind##_1_1, int_##kind##_2_1, int_##kind##_4_1                                                       \
        }                                                                                                              \
    }
static const uint32_t int_rows[] = {1, 2, 4};
#endif

INT_FNS(4, 4, 1, false)
INT_FNS(4m, 4, 1, true)
INT_FNS(5, 5, 1, false)
INT_FNS(5m, 5, 1, true)
INT_FNS(6, 6, 2, false)
INT_FNS(8, 8, 1, false)
INT_FNS(8f, 8, 2, false)
INT_FNS(8fm, 8, 2, true)

static int_tile_fn *const int_tiles[KINDS][SIDE_MAX][COUNT_OF(int_rows)] = {[KIND_4] = INT_ROW(4),
    [KIND_4M] = INT_ROW(4m),
    [KIND_5] = INT_ROW(5),
    [KIND_5M] = INT_ROW(5m),
    [KIND_6] = INT_ROW(6),
    [KIND_8] = INT_ROW(8),
    [KIND_8F] = INT_ROW(8f),
    [KIND_8FM] = INT_ROW(8fm)};

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

typedef void float_tile_fn(const float *const *w, const float *const *a, uint32_t k0, uint32_t n, float *total);

INLINE void float_tile(
    int rows, int sides, const float *const *w, const float *const *a, uint32_t k0, uint32_t n, float *total)
{
    struct vf acc[SIDE_MAX][FLOAT_TILE];
    const float *w0 = w[0], *w1 = sides > 1 ? w[1] : NULL;
    EACH (c, sides)
        EACH (r, rows)
            acc[c][r] = vf_set(0.0f);
    for (uint32_t k = 0; k < n; k++) {
        struct vf x[SIDE_MAX];
        EACH (c, sides)
            x[c] = vf_load((c == 0 ? w0 : w1) + (size_t)k * VF);
        EACH (c, sides)
            vf_keep(&x[c]);
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
    static void float_##rows##_##sides(                                                                                \
        const float *const *w, const float *const *a, uint32_t k0, uint32_t n, float *total)                           \
    {                                                                                                                  \
        float_tile(rows, sides, w, a, k0, n, total);                                                                   \
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
static float_tile_fn *const float_tiles[SIDE_MAX][COUNT_OF(float_rows)] = {
    {float_1_1, float_2_1, float_4_1, float_8_1, float_12_1}, {float_1_2, float_2_2, float_4_2, float_8_2, float_12_2}};
#else
FLOAT_FN(6, 1)
static const uint32_t float_rows[] = {1, 2, 4, 6};
static float_tile_fn *const float_tiles[SIDE_MAX][COUNT_OF(float_rows)] = {
    {float_1_1, float_2_1, float_4_1, float_6_1}};
#endif

/* ---- the product ---------------------------------------------------------------------------------------------------
 */

/* less = -offset * s, sum = a_scale * s, for eight sums s. */
INLINE void put_sums(__m256i s, __m256i offset, __m256 a_scale, int32_t *less, float *sum)
{
    _mm256_storeu_si256((__m256i *)less, _mm256_mullo_epi32(s, offset));
    _mm256_storeu_ps(sum, _mm256_mul_ps(a_scale, _mm256_cvtepi32_ps(s)));
}

/* What groups g0 .. g0+n of the rows need: integers, scales, sums of 32 or of 16. A last block of fewer than 8 groups
 * is padded, and what comes of the padding is not used. */
static void prepare_rows(
    struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows, uint32_t g0, uint32_t n)
{
    const struct packed *w = p->w->packed;
    const struct acts *in = p->in;
    const __m256i offset = _mm256_set1_epi32(-(int32_t)(w->form == PACK_8 ? BYTES_OFFSET : w->offset));
    const bool by_16 = w->scales == SCALE_K16 || w->scales == SCALE_F || w->scales == SCALE_FM;
    for (uint32_t i = 0; i < n_rows; i++) {
        const size_t r = p->in_rows != NULL ? p->in_rows[row0 + i] : p->first_row + row0 + i;
        const int16_t *from = in->sum16 + r * (in->n / SUB_GROUP) + 2 * (size_t)g0;
        int16_t sum16[BLOCK_SUBS] = {0};
        float *a_scale = room->a_scale + (size_t)i * BLOCK_GROUPS;
        memcpy(room->q + (size_t)i * K_BLOCK, in->q + r * in->n + (size_t)g0 * ACT_GROUP, (size_t)n * ACT_GROUP);
        memcpy(a_scale, in->scale + r * (in->n / ACT_GROUP) + g0, n * sizeof *a_scale);
        memcpy(sum16, from, 2 * n * sizeof *sum16);
        const __m256i s16 = _mm256_loadu_si256((const __m256i *)sum16);
        const __m256 scale = _mm256_loadu_ps(a_scale);
        int32_t *less = room->less + (size_t)i * BLOCK_SUBS;
        float *sum = room->sum + (size_t)i * BLOCK_SUBS;
        if (!by_16) {
            put_sums(_mm256_madd_epi16(s16, _mm256_set1_epi16(1)), offset, scale, less, sum);
            continue;
        }
        const __m256i low = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), high = _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
        put_sums(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(s16)), offset, _mm256_permutevar8x32_ps(scale, low), less,
            sum);
        put_sums(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(s16, 1)), offset, _mm256_permutevar8x32_ps(scale, high),
            less + 8, sum + 8);
    }
}

static void int_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const enum kind kind = kind_of(w);
    const uint32_t n_groups = p->w->n_in / ACT_GROUP;
    for (uint32_t g0 = 0; g0 < n_groups; g0 += BLOCK_GROUPS) {
        const uint32_t n = MIN(n_groups - g0, (uint32_t)BLOCK_GROUPS);
        prepare_rows(room, p, row0, n_rows, g0, n);
        for (uint32_t c = 0; c < n_panels;) {
            const uint32_t sides = MIN(n_panels - c, (uint32_t)SIDE_MAX);
            for (uint32_t i = 0; i < sides; i++)
                lay_groups(w, packed_panel(w, p->mat, panel0 + c + i), g0, n, i, room);
            for (uint32_t i = 0; i < n_rows;) {
                const uint32_t t = tile_for(int_rows, COUNT_OF(int_rows), n_rows - i);
                int_tiles[kind][sides - 1][t](room, i, n, room->total[c] + (size_t)i * PANEL_COLS);
                i += int_rows[t];
            }
            c += sides;
        }
    }
}

static void float_panels(struct product_room *room, const struct product *p, uint32_t row0, uint32_t n_rows,
    uint32_t panel0, uint32_t n_panels)
{
    const struct packed *w = p->w->packed;
    const uint32_t n_in = p->w->n_in;
    for (uint32_t i = 0; i < n_rows; i++) {
        const size_t r = p->in_rows != NULL ? p->in_rows[row0 + i] : p->first_row + row0 + i;
        room->f[i] = p->in->f32 + r * p->in->n;
    }
    for (uint32_t k0 = 0; k0 < n_in; k0 += K_BLOCK) {
        const uint32_t n = MIN(n_in - k0, (uint32_t)K_BLOCK);
        for (uint32_t c = 0; c < n_panels;) {
            const uint32_t sides = MIN(n_panels - c, (uint32_t)SIDE_MAX);
            const float *piece[SIDE_MAX];
            for (uint32_t i = 0; i < sides; i++)
                piece[i] = lay_floats(w, packed_panel(w, p->mat, panel0 + c + i), k0, n, room->w.f + i * PIECE_FLOATS);
            for (uint32_t i = 0; i < n_rows;) {
                const uint32_t t = tile_for(float_rows, COUNT_OF(float_rows), n_rows - i);
                float_tiles[sides - 1][t](piece, room->f + i, k0, n, room->total[c] + (size_t)i * PANEL_COLS);
                i += float_rows[t];
            }
            c += sides;
        }
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
