/* Attention of few (row, head) pairs, straight from an F16 cache: the two small products of x86_attend.h, operation for
 * operation, whose second operand is converted as it is loaded. Decoding is this: with three query heads a tile is
 * converted once or twice, and laying it out would cost more than it saves.
 *
 * Floor, AVX-512: a tile of 64 positions, head of 64, three pairs: 512 loads that convert and 1,536 fma, two a cycle:
 * 1,030 cycles for 16 KB, which is what a core reads from memory meanwhile. So the next tile is asked for piece by
 * piece between the multiplications, never in a burst: a core has few misses in flight, and a burst would stop it. */
#ifndef CPU_X86_ATTEND_FEW_H
#define CPU_X86_ATTEND_FEW_H

#include "cpu/cpu_int.h"
#include "cpu/x86_simd.h"

#ifdef QUERN_AVX512
#define SMALL_VECS 4
#else
#define SMALL_VECS 1
#endif
#define SMALL_ROWS  6
#define FEW_PAIRS   8
#define TILE_GROUPS (ATTN_TILE / VF)
#define F16_STEP    (2 * VF) /* bytes of a vector */

_Static_assert(VF == KEY_GROUP, "a vector holds an element of each key of a group");

/* A tile's groups of 16 positions where they lie, without the offset of keys or values, and those of the next tile:
 * behind the last, the first of the next kv head, which the same worker takes most of the time; else whatever. */
struct tile_here {
    const unsigned char *rows[TILE_GROUPS], *next[TILE_GROUPS];
    uint64_t k_at, v_at;
    size_t row_bytes;
};

/* The next tile in the cache, asked for a line or a few at a time between the products' multiplications: a core has a
 * dozen misses in flight, and what it loads from further than the first cache meanwhile stands in the same queue. */
#define ASK_STEPS 4 /* of k, between two asks */

struct asks {
    const unsigned char *run[2 * TILE_GROUPS]; /* keys and values of each 16 positions, which lie together */
    const unsigned char *at;                   /* the next line */
    uint32_t left, runs, next;                 /* lines of its run; runs; the one behind */
    uint32_t run_lines, each;                  /* lines at a time */
};

INLINE void ask(struct asks *s)
{
    for (uint32_t i = s->each; i > 0 && s->left > 0; i--) {
        _mm_prefetch((const char *)s->at, _MM_HINT_T1);
        s->at += 64;
        if (--s->left == 0 && s->next < s->runs) {
            s->at = s->run[s->next++];
            s->left = s->run_lines;
        }
    }
}

/* score[r][16 v ..] = the sum over d ascending of q[r][d] * key element d of group v. keep: not NULL to lay the keys
 * out there, [d][ATTN_TILE], for other pairs; then asks says what is asked for. */
INLINE void few_keys(int rows, int vecs, const struct tile_here *t, uint32_t group, const float *const *q, uint32_t n,
    float *score, float *keep, struct asks *asks)
{
    struct vf acc[SMALL_ROWS][SMALL_VECS];
    EACH (r, rows)
        EACH (v, vecs)
            acc[r][v] = vf_set(0.0f);
    for (uint32_t d = 0; d < n; d += 2) {
        if (keep != NULL && d % ASK_STEPS == 0)
            ask(asks);
        EACH (i, 2) {
            const size_t at = t->k_at + (d + (uint32_t)i) * F16_STEP;
            struct vf x[SMALL_VECS];
            EACH (v, vecs) {
                x[v] = vf_of_f16(t->rows[group + (uint32_t)v] + at);
                vf_keep(&x[v]);
                if (keep != NULL)
                    vf_store(keep + (d + (uint32_t)i) * ATTN_TILE + v * VF, x[v]);
                else if (i == 0)
                    _mm_prefetch((const char *)t->next[group + (uint32_t)v] + at, _MM_HINT_T0);
            }
            EACH (r, rows) {
                const struct vf y = vf_set(q[r][d + (uint32_t)i]);
                EACH (v, vecs)
                    acc[r][v] = vf_fma(y, x[v], acc[r][v]);
            }
        }
    }
    EACH (r, rows)
        EACH (v, vecs)
            vf_store(score + (size_t)r * ATTN_TILE + v * VF, acc[r][v]);
}

INLINE void few_key_rows(int rows, const struct tile_here *t, const float *const *q, uint32_t n, uint32_t groups,
    float *score, float *keep, struct asks *asks)
{
    uint32_t g = 0;
    for (; g + SMALL_VECS <= groups; g += SMALL_VECS)
        few_keys(rows, SMALL_VECS, t, g, q, n, score + g * VF, keep != NULL ? keep + g * VF : NULL, asks);
    float *last = keep != NULL ? keep + g * VF : NULL;
    switch (groups - g) { /* together, since a chain of fma waits four cycles for each */
    case 0: break;
    case 1: few_keys(rows, 1, t, g, q, n, score + g * VF, last, asks); break;
    case 2: few_keys(rows, MIN(2, SMALL_VECS), t, g, q, n, score + g * VF, last, asks); break;
    default: few_keys(rows, MIN(3, SMALL_VECS), t, g, q, n, score + g * VF, last, asks); break;
    }
}

/* Pairs of one pass: as even as they go. */
INLINE uint32_t few_of(uint32_t left)
{
    return left > SMALL_ROWS ? (left + 1) / 2 : left;
}

static void few_scores(
    const struct tile_here *t, uint32_t rows, const float *const *q, uint32_t n, uint32_t groups, float *score)
{
    for (uint32_t r = 0, some; r < rows; r += some, q += some, score += (size_t)some * ATTN_TILE) {
        some = few_of(rows - r);
        switch (some) {
        case 1: few_key_rows(1, t, q, n, groups, score, NULL, NULL); break;
        case 2: few_key_rows(2, t, q, n, groups, score, NULL, NULL); break;
        case 3: few_key_rows(3, t, q, n, groups, score, NULL, NULL); break;
        case 4: few_key_rows(4, t, q, n, groups, score, NULL, NULL); break;
        case 5: few_key_rows(5, t, q, n, groups, score, NULL, NULL); break;
        default: few_key_rows(6, t, q, n, groups, score, NULL, NULL); break;
        }
    }
}

/* The first SMALL_ROWS pairs of many, the keys laid out on the way. */
static void keep_scores(const struct tile_here *t, const float *const *q, uint32_t n, uint32_t groups, float *score,
    float *keep, struct asks *asks)
{
    few_key_rows(SMALL_ROWS, t, q, n, groups, score, keep, asks);
}

/* out[r][d0 ..] = out * shrink[r] + the sum over positions from .. to-1 ascending of weight[r][p] * value. keep: as
 * above, [p][wide]. */
INLINE void few_columns(int rows, int vecs, const struct tile_here *t, uint32_t d0, uint32_t wide, uint32_t from,
    uint32_t to, const float *weight, const float *shrink, float *out, float *keep, struct asks *asks)
{
    struct vf acc[SMALL_ROWS][SMALL_VECS];
    EACH (r, rows)
        EACH (v, vecs)
            acc[r][v] = vf_mul(vf_load(out + (size_t)r * wide + d0 + v * VF), vf_set(shrink[r]));
    for (uint32_t p = from; p < to; p++) {
        const size_t at = t->v_at + p % VF * t->row_bytes + 2 * (size_t)d0;
        if (keep != NULL && p % ASK_STEPS == 0)
            ask(asks);
        struct vf x[SMALL_VECS];
        EACH (v, vecs) {
            x[v] = vf_of_f16(t->rows[p / VF] + at + (size_t)v * F16_STEP);
            vf_keep(&x[v]);
            if (keep != NULL)
                vf_store(keep + (size_t)p * wide + d0 + v * VF, x[v]);
            else if (v % 2 == 0)
                _mm_prefetch((const char *)t->next[p / VF] + at + (size_t)v * F16_STEP, _MM_HINT_T0);
        }
        EACH (r, rows) {
            const struct vf y = vf_set(weight[(size_t)r * ATTN_TILE + p]);
            EACH (v, vecs)
                acc[r][v] = vf_fma(y, x[v], acc[r][v]);
        }
    }
    EACH (r, rows)
        EACH (v, vecs)
            vf_store(out + (size_t)r * wide + d0 + v * VF, acc[r][v]);
}

INLINE void few_value_rows(int rows, const struct tile_here *t, uint32_t wide, uint32_t from, uint32_t to,
    const float *weight, const float *shrink, float *out, float *keep, struct asks *asks)
{
    uint32_t d = 0;
    for (; d + SMALL_VECS * VF <= wide; d += SMALL_VECS * VF)
        few_columns(rows, SMALL_VECS, t, d, wide, from, to, weight, shrink, out, keep, asks);
    for (; d < wide; d += VF)
        few_columns(rows, 1, t, d, wide, from, to, weight, shrink, out, keep, asks);
}

static void few_values(const struct tile_here *t, uint32_t rows, uint32_t wide, uint32_t from, uint32_t to,
    const float *weight, const float *shrink, float *out)
{
    for (uint32_t r = 0, some; r < rows; r += some) {
        some = few_of(rows - r);
        switch (some) {
        case 1: few_value_rows(1, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        case 2: few_value_rows(2, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        case 3: few_value_rows(3, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        case 4: few_value_rows(4, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        case 5: few_value_rows(5, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        default: few_value_rows(6, t, wide, from, to, weight, shrink, out, NULL, NULL); break;
        }
        weight += (size_t)some * ATTN_TILE;
        shrink += some;
        out += (size_t)some * wide;
    }
}

static void keep_values(const struct tile_here *t, uint32_t wide, uint32_t from, uint32_t to, const float *weight,
    const float *shrink, float *out, float *keep, struct asks *asks)
{
    few_value_rows(SMALL_ROWS, t, wide, from, to, weight, shrink, out, keep, asks);
}

#endif
