/* Packing weight panels; the layout is in pack.h. One function per file layout turns 16 rows' blocks of 32 elements
 * into the four (or eight) lines of a group: each row gives 16 bytes of nibbles (or 32 bytes), which is a transposition
 * of 4-byte pieces, so packing runs at the speed of memory. Types without a function of their own are taken apart by
 * unpack.c and packed as signed bytes with f32 scales. */
#if defined(__x86_64__)
#include "cpu/pack.h"
#include "tensor/float_convert.h"
#include "tensor/quant.h"

#include <immintrin.h>
#include <string.h>

/* What a panel is made of. */
struct source {
    const unsigned char *rows[PANEL_COLS]; /* NULL: padding */
    size_t bytes;                          /* of all rows, which lie side by side */
};

/* ---- one row's group into registers ------------------------------------------------------------------------------ */

struct piece {
    __m128i nibbles;  /* byte i: element i below, i + 16 above */
    uint32_t fifth;   /* byte b, bit s: element 4s + b */
    uint64_t top_two; /* byte b, bits 2s: element 4s + b, s < 4; bytes 4-7: elements from 16 on */
};

/* Thirty-two bytes of 0 or 1, element i at byte i: dword s holds step s. */
static uint32_t gather_bits(__m256i h)
{
    const __m256i placed = _mm256_sllv_epi32(h, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m128i x = _mm_or_si128(_mm256_castsi256_si128(placed), _mm256_extracti128_si256(placed, 1));
    x = _mm_or_si128(x, _mm_shuffle_epi32(x, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_or_si128(x, _mm_shuffle_epi32(x, 0xb1)));
}

static uint64_t gather_pairs(__m256i h)
{
    const __m256i placed = _mm256_sllv_epi32(h, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    __m256i x = _mm256_or_si256(placed, _mm256_shuffle_epi32(placed, 0x4e));
    x = _mm256_or_si256(x, _mm256_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm256_extract_epi32(x, 0) | (uint64_t)(uint32_t)_mm256_extract_epi32(x, 4) << 32;
}

/* Thirty-two bytes below 16 as 16 bytes of nibbles. */
static __m128i join_nibbles(__m256i q)
{
    return _mm_or_si128(_mm256_castsi256_si128(q), _mm_slli_epi16(_mm256_extracti128_si256(q, 1), 4));
}

static __m256i spread_bits(uint32_t bits)
{
    const __m256i place = _mm256_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i x = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), place);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, bit), bit), _mm256_set1_epi8(1));
}

static struct piece piece_q5(const void *qs, uint32_t qh)
{
    return (struct piece){.nibbles = _mm_loadu_si128(qs), .fifth = gather_bits(spread_bits(qh))};
}

static __m256i k4_nibbles(const uint8_t *qs, uint32_t sub)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(qs + 32 * (sub / 2)));
    return _mm256_and_si256(sub % 2 ? _mm256_srli_epi16(x, 4) : x, _mm256_set1_epi8(15));
}

static struct piece piece_q5_k(const struct block_q5_k *b, uint32_t sub)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)b->qh);
    const __m256i bit = _mm256_and_si256(_mm256_srl_epi16(h, _mm_cvtsi32_si128((int)sub)), _mm256_set1_epi8(1));
    return (struct piece){.nibbles = join_nibbles(k4_nibbles(b->qs, sub)), .fifth = gather_bits(bit)};
}

static struct piece piece_q6_k(const struct block_q6_k *b, uint32_t sub)
{
    const uint32_t half = sub / 4, quarter = sub % 4;
    const __m256i l = _mm256_loadu_si256((const __m256i *)(b->ql + 64 * half + 32 * (quarter % 2)));
    const __m256i low = _mm256_and_si256(quarter / 2 ? _mm256_srli_epi16(l, 4) : l, _mm256_set1_epi8(15));
    const __m256i h = _mm256_loadu_si256((const __m256i *)(b->qh + 32 * half));
    const __m256i two =
        _mm256_and_si256(_mm256_srl_epi16(h, _mm_cvtsi32_si128((int)(2 * quarter))), _mm256_set1_epi8(3));
    return (struct piece){.nibbles = join_nibbles(low), .top_two = gather_pairs(two)};
}

/* Group g of a row; row NULL is a row of padding. */
static struct piece piece_of(enum dtype dtype, const unsigned char *row, uint32_t g)
{
    struct piece none = {.nibbles = _mm_setzero_si128()};
    if (row == NULL)
        return none;
    switch (dtype) {
    case DTYPE_Q4_0: /* less 8, as four bits with a sign */
        none.nibbles = _mm_xor_si128(
            _mm_loadu_si128((const __m128i *)((const struct block_q4_0 *)row)[g].qs), _mm_set1_epi8((char)0x88));
        break;
    case DTYPE_Q4_1: none.nibbles = _mm_loadu_si128((const __m128i *)((const struct block_q4_1 *)row)[g].qs); break;
    case DTYPE_Q5_0: return piece_q5(((const struct block_q5_0 *)row)[g].qs, ((const struct block_q5_0 *)row)[g].qh);
    case DTYPE_Q5_1: return piece_q5(((const struct block_q5_1 *)row)[g].qs, ((const struct block_q5_1 *)row)[g].qh);
    case DTYPE_Q4_K:
        none.nibbles = join_nibbles(k4_nibbles(((const struct block_q4_k *)row)[g / SUPER].qs, g % SUPER));
        break;
    case DTYPE_Q5_K: return piece_q5_k((const struct block_q5_k *)row + g / SUPER, g % SUPER);
    default: return piece_q6_k((const struct block_q6_k *)row + g / SUPER, g % SUPER);
    }
    return none;
}

/* ---- a group of sixteen rows --------------------------------------------------------------------------------------
 */

/* Sixteen bytes of four rows: dword s of row r goes to line s, place r. */
static void put_four(const __m128i x[4], unsigned char *out)
{
    const __m128i a = _mm_unpacklo_epi32(x[0], x[1]), b = _mm_unpackhi_epi32(x[0], x[1]);
    const __m128i c = _mm_unpacklo_epi32(x[2], x[3]), d = _mm_unpackhi_epi32(x[2], x[3]);
    _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi64(a, c));
    _mm_storeu_si128((__m128i *)(out + STEP_BYTES), _mm_unpackhi_epi64(a, c));
    _mm_storeu_si128((__m128i *)(out + 2 * STEP_BYTES), _mm_unpacklo_epi64(b, d));
    _mm_storeu_si128((__m128i *)(out + 3 * STEP_BYTES), _mm_unpackhi_epi64(b, d));
}

/* Part i of n of the panel behind this one, asked for a little at a time: sixteen rows at once are too many streams for
 * the machine to see where they go. A page that is not there yet is left alone. */
static inline void fetch_behind(const struct source *s, uint32_t i, uint32_t n)
{
    const size_t part = (s->bytes + n - 1) / n;
    for (size_t at = 0; at < part; at += 64)
        _mm_prefetch((const char *)s->rows[0] + s->bytes + i * part + at, _MM_HINT_T0);
}

static inline __attribute__((always_inline)) void pack_small(
    const struct packed *p, enum dtype dtype, const struct source *s, uint32_t n_groups, unsigned char *out)
{
    const unsigned char *const *rows = s->rows;
    for (uint32_t g = 0; g < n_groups; g++, out += p->data_bytes) {
        fetch_behind(s, g, n_groups);
        for (uint32_t r = 0; r < PANEL_COLS; r += 4) {
            __m128i x[4];
            for (uint32_t i = 0; i < 4; i++) {
                const struct piece piece = piece_of(dtype, rows[r + i], g);
                x[i] = piece.nibbles;
                if (p->form == PACK_5)
                    memcpy(out + 4 * STEP_BYTES + 4 * (r + i), &piece.fifth, 4);
                if (p->form == PACK_6) {
                    memcpy(out + 4 * STEP_BYTES + 4 * (r + i), &piece.top_two, 4);
                    memcpy(out + 5 * STEP_BYTES + 4 * (r + i), (const char *)&piece.top_two + 4, 4);
                }
            }
            put_four(x, out + 4 * r);
        }
    }
}

/* Signed bytes: from Q8_0 blocks, or from a row taken apart. */
static void pack_bytes(const int8_t *q, size_t step, uint32_t n_groups, uint32_t r, unsigned char *out)
{
    for (uint32_t g = 0; g < n_groups; g++, out += GROUP_STEPS * STEP_BYTES)
        for (uint32_t s = 0; s < GROUP_STEPS; s++)
            memcpy(out + s * STEP_BYTES + 4 * r, q + g * step + 4 * s, 4);
}

static void pack_q8_0(const struct source *s, uint32_t n_groups, unsigned char *out)
{
    const unsigned char *const *rows = s->rows;
    for (uint32_t g = 0; g < n_groups; g++, out += GROUP_STEPS * STEP_BYTES) {
        fetch_behind(s, g, n_groups);
        for (uint32_t r = 0; r < PANEL_COLS; r += 4)
            for (uint32_t half = 0; half < 2; half++) {
                __m128i x[4];
                for (uint32_t i = 0; i < 4; i++)
                    x[i] = rows[r + i] == NULL
                               ? _mm_setzero_si128()
                               : _mm_loadu_si128(
                                     (const __m128i *)(((const struct block_q8_0 *)rows[r + i])[g].qs + 16 * half));
                put_four(x, out + half * 4 * STEP_BYTES + 4 * r);
            }
    }
}

/* ---- scales -------------------------------------------------------------------------------------------------------
 */

static void put_u16(unsigned char *out, uint32_t i, uint16_t x)
{
    memcpy(out + 2 * i, &x, 2);
}

/* d, and m where there is one, of every group: block_bytes apart, at the block's start. */
static void scales_d(
    const unsigned char *row, size_t block_bytes, bool with_m, uint32_t r, uint32_t n_groups, unsigned char *out)
{
    for (uint32_t g = 0; g < n_groups; g++, row += block_bytes, out += with_m ? 64 : 32) {
        memcpy(out + 2 * r, row, 2);
        if (with_m)
            memcpy(out + 32 + 2 * r, row + 2, 2);
    }
}

static void scales_k(const unsigned char *row, size_t block_bytes, uint32_t r, uint32_t n_groups, unsigned char *out)
{
    for (uint32_t g = 0; g < n_groups; g += SUPER, row += block_bytes, out += 64 + SUPER * 32) {
        const struct block_q4_k *b = (const struct block_q4_k *)row; /* Q5_K begins with the same members */
        put_u16(out, r, b->d);
        put_u16(out + 32, r, b->dmin);
        for (uint32_t j = 0; j < SUPER; j++) {
            const uint8_t *s = b->scales;
            const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
            const int mn = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
            out[64 + 32 * j + r] = (unsigned char)sc;
            out[64 + 32 * j + 16 + r] = (unsigned char)mn;
        }
    }
}

static void scales_k16(const struct block_q6_k *b, uint32_t r, uint32_t n_groups, unsigned char *out)
{
    for (uint32_t g = 0; g < n_groups; g += SUPER, b++, out += 32 + 16 * PANEL_COLS) {
        put_u16(out, r, b->d);
        for (uint32_t j = 0; j < 16; j++)
            out[32 + PANEL_COLS * j + r] = (unsigned char)b->scales[j];
    }
}

static void scales_f(const struct unpacked *u, bool with_m, uint32_t r, uint32_t n_groups, unsigned char *out)
{
    for (uint32_t s = 0; s < 2 * n_groups; s++, out += with_m ? 128 : 64) {
        memcpy(out + 4 * r, &u->scale[s], 4);
        if (with_m)
            memcpy(out + 64 + 4 * r, &u->min[s], 4);
    }
}

static void pack_scales(const struct packed *p, enum dtype dtype, const unsigned char *row, uint32_t r,
    uint32_t n_groups, unsigned char *out)
{
    const size_t block_bytes = dtype_info(dtype)->block_bytes;
    switch (p->scales) {
    case SCALE_D: scales_d(row, block_bytes, false, r, n_groups, out); break;
    case SCALE_DM: scales_d(row, block_bytes, true, r, n_groups, out); break;
    case SCALE_K: scales_k(row, block_bytes, r, n_groups, out); break;
    default: scales_k16((const struct block_q6_k *)row, r, n_groups, out); break;
    }
}

/* ---- floats --------------------------------------------------------------------------------------------------------
 */

static void pack_u16(const struct source *s, uint32_t n, unsigned char *out)
{
    const unsigned char *const *rows = s->rows;
    uint32_t k = 0;
    for (; k + 8 <= n; k += 8) {
        fetch_behind(s, k / 8, n / 8);
        for (uint32_t half = 0; half < 2; half++) {
            __m128i x[8], y[8];
            for (uint32_t i = 0; i < 8; i++)
                x[i] = rows[8 * half + i] == NULL
                           ? _mm_setzero_si128()
                           : _mm_loadu_si128((const __m128i *)(rows[8 * half + i] + 2 * (size_t)k));
            for (uint32_t i = 0; i < 4; i++) { /* pairs of rows, then fours, then eights */
                y[i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
                y[i + 4] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
            }
            for (uint32_t i = 0; i < 2; i++) {
                x[4 * i] = _mm_unpacklo_epi32(y[4 * i], y[4 * i + 1]);
                x[4 * i + 1] = _mm_unpackhi_epi32(y[4 * i], y[4 * i + 1]);
                x[4 * i + 2] = _mm_unpacklo_epi32(y[4 * i + 2], y[4 * i + 3]);
                x[4 * i + 3] = _mm_unpackhi_epi32(y[4 * i + 2], y[4 * i + 3]);
            }
            for (uint32_t i = 0; i < 4; i++) { /* x[4h + j], x[4h + j + 2]: k = 4h + 2j, 2j + 1 of rows 0-3, 4-7 */
                const uint32_t h = i / 2, j = i % 2;
                unsigned char *to = out + (size_t)(k + 4 * h + 2 * j) * 32 + 16 * half;
                _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi64(x[4 * h + j], x[4 * h + j + 2]));
                _mm_storeu_si128((__m128i *)(to + 32), _mm_unpackhi_epi64(x[4 * h + j], x[4 * h + j + 2]));
            }
        }
    }
    for (; k < n; k++)
        for (uint32_t r = 0; r < PANEL_COLS; r++)
            if (rows[r] != NULL)
                memcpy(out + (size_t)k * 32 + 2 * r, rows[r] + 2 * (size_t)k, 2);
}

static void pack_f32(const unsigned char *const *rows, uint32_t n, unsigned char *out)
{
    uint32_t k = 0;
    for (; k + 4 <= n; k += 4)
        for (uint32_t r = 0; r < PANEL_COLS; r += 4) {
            __m128i x[4];
            for (uint32_t i = 0; i < 4; i++)
                x[i] = rows[r + i] == NULL ? _mm_setzero_si128()
                                           : _mm_loadu_si128((const __m128i *)(rows[r + i] + 4 * (size_t)k));
            put_four(x, out + (size_t)k * STEP_BYTES + 4 * r);
        }
    for (; k < n; k++)
        for (uint32_t r = 0; r < PANEL_COLS; r++)
            if (rows[r] != NULL)
                memcpy(out + (size_t)k * STEP_BYTES + 4 * r, rows[r] + 4 * (size_t)k, 4);
}

/* Eight-bit floats are exact in f16. */
static void pack_f8(
    enum dtype dtype, const unsigned char *const *rows, uint32_t n, struct unpacked *room, unsigned char *out)
{
    for (uint32_t r = 0; r < PANEL_COLS; r++) {
        if (rows[r] == NULL)
            continue;
        dtype_info(dtype)->dequant(rows[r], room->f32, n);
        for (uint32_t k = 0; k < n; k++)
            put_u16(out + (size_t)k * 32, r, f16_from_f32(room->f32[k]));
    }
}

/* ---- the panel -----------------------------------------------------------------------------------------------------
 */

static void pack_any(const struct packed *p, enum dtype dtype, const unsigned char *const *rows, uint32_t n_in,
    struct unpacked *room, unsigned char *out)
{
    for (uint32_t r = 0; r < PANEL_COLS; r++) {
        if (rows[r] == NULL)
            continue;
        unpack_row(dtype, rows[r], n_in, room);
        pack_bytes(room->q, ACT_GROUP, n_in / ACT_GROUP, r, out);
        scales_f(room, p->scales == SCALE_FM, r, n_in / ACT_GROUP, out + p->scale_at);
    }
}

void pack_panel(const struct packed *p, enum dtype dtype, const unsigned char *row, size_t row_bytes, uint32_t n_rows,
    uint32_t n_in, struct unpacked *room, unsigned char *out)
{
    struct source s = {.bytes = n_rows * row_bytes};
    const unsigned char **rows = s.rows;
    const uint32_t n_groups = n_in / ACT_GROUP;
    for (uint32_t r = 0; r < n_rows; r++)
        rows[r] = row + r * row_bytes;
    switch (dtype) {
    case DTYPE_F32: pack_f32(rows, n_in, out); return;
    case DTYPE_F16:
    case DTYPE_BF16: pack_u16(&s, n_in, out); return;
    case DTYPE_F8_E4M3:
    case DTYPE_F8_E5M2: pack_f8(dtype, rows, n_in, room, out); return;
    case DTYPE_Q8_0: pack_q8_0(&s, n_groups, out); break;
    case DTYPE_Q4_0: pack_small(p, DTYPE_Q4_0, &s, n_groups, out); break;
    case DTYPE_Q4_1: pack_small(p, DTYPE_Q4_1, &s, n_groups, out); break;
    case DTYPE_Q4_K: pack_small(p, DTYPE_Q4_K, &s, n_groups, out); break;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
    case DTYPE_Q6_K: pack_small(p, dtype, &s, n_groups, out); break;
    default: pack_any(p, dtype, rows, n_in, room, out); return;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        pack_scales(p, dtype, rows[r], r, n_groups, out + p->scale_at);
}

void pack_plan(struct packed *p, enum dtype dtype, uint32_t n_out, uint32_t n_in)
{
    static const struct {
        enum pack_form form;
        enum scale_form scales;
        uint32_t offset;
    } plans[DTYPE_COUNT] = {
        [DTYPE_F32] = {PACK_F32, SCALE_NONE, 0},
        [DTYPE_F16] = {PACK_F16, SCALE_NONE, 0},
        [DTYPE_BF16] = {PACK_BF16, SCALE_NONE, 0},
        [DTYPE_F8_E4M3] = {PACK_F16, SCALE_NONE, 0},
        [DTYPE_F8_E5M2] = {PACK_F16, SCALE_NONE, 0},
        [DTYPE_Q4_0] = {PACK_4, SCALE_D, 8},
        [DTYPE_Q4_1] = {PACK_4, SCALE_DM, 0},
        [DTYPE_Q4_K] = {PACK_4, SCALE_K, 0},
        [DTYPE_Q5_0] = {PACK_5, SCALE_D, 16},
        [DTYPE_Q5_1] = {PACK_5, SCALE_DM, 0},
        [DTYPE_Q5_K] = {PACK_5, SCALE_K, 0},
        [DTYPE_Q6_K] = {PACK_6, SCALE_K16, 32},
        [DTYPE_Q8_0] = {PACK_8, SCALE_D, 0},
        [DTYPE_Q2_K] = {PACK_8, SCALE_FM, 0},
        [DTYPE_Q3_K] = {PACK_8, SCALE_F, 0},
        [DTYPE_IQ4_NL] = {PACK_8, SCALE_F, 0},
        [DTYPE_IQ4_XS] = {PACK_8, SCALE_F, 0},
        [DTYPE_MXFP4] = {PACK_8, SCALE_F, 0},
    };
    static const size_t super_bytes[] = {[SCALE_NONE] = 0,
        [SCALE_D] = SUPER * 32,
        [SCALE_DM] = SUPER * 64,
        [SCALE_K] = 64 + SUPER * 32,
        [SCALE_K16] = 32 + 16 * PANEL_COLS,
        [SCALE_F] = SUPER * 128,
        [SCALE_FM] = SUPER * 256};
    p->form = plans[dtype].form;
    p->scales = plans[dtype].scales;
    p->offset = plans[dtype].offset;
    p->data_bytes = data_bytes_of(p->form);
    const bool is_float = p->scales == SCALE_NONE;
    const size_t n_groups = n_in / ACT_GROUP;
    p->scale_at = p->data_bytes * (is_float ? n_in : n_groups);
    p->panel_bytes = p->scale_at + (n_groups * super_bytes[p->scales] + SUPER - 1) / SUPER;
    p->panel_bytes = (p->panel_bytes + 63) & ~(size_t)63;
    p->n_panels = (n_out + PANEL_COLS - 1) / PANEL_COLS;
    p->mat_bytes = p->panel_bytes * p->n_panels;
}
#endif
