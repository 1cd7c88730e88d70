/* Paged attention in plain C; the arithmetic is in cpu.h. Keys and values of a tile are converted once and serve every
 * (row, query head) pair of the call; each pair keeps its own running maximum, sum and output, so what shares the tile
 * does not matter. */
#include "cpu/cpu_int.h"
#include "tensor/fmath.h"
#include "tensor/quant.h"

#include <math.h>
#include <string.h>

/* ---- keys in the cache ---------------------------------------------------------------------------------------------
 */

static size_t key_bytes(const struct kv_layer *layer)
{
    return layer->dtype == DTYPE_F32 ? 4 : 2;
}

void key_get(const struct kv_layer *layer, const unsigned char *head, uint32_t token, unsigned char *row)
{
    const unsigned char *group = head + (size_t)(token - token % KEY_GROUP) * layer->row_bytes;
    const size_t bytes = key_bytes(layer);
    if (!keys_lie_turned(layer->dtype)) {
        memcpy(row, head + (size_t)token * layer->row_bytes, layer->row_bytes);
        return;
    }
    for (size_t at = 0, d = token % KEY_GROUP; at < layer->row_bytes; at += bytes, d += KEY_GROUP)
        memcpy(row + at, group + d * bytes, bytes);
}

void key_put(const struct kv_layer *layer, unsigned char *head, uint32_t token, const unsigned char *row)
{
    unsigned char *group = head + (size_t)(token - token % KEY_GROUP) * layer->row_bytes;
    const uint32_t n = layer->row_bytes / (uint32_t)key_bytes(layer), lane = token % KEY_GROUP;
    if (!keys_lie_turned(layer->dtype))
        memcpy(head + (size_t)token * layer->row_bytes, row, layer->row_bytes);
    else if (layer->dtype == DTYPE_F32)
        for (uint32_t i = 0; i < n; i++)
            memcpy(group + ((size_t)i * KEY_GROUP + lane) * 4, row + (size_t)i * 4, 4);
    else
        for (uint32_t i = 0; i < n; i++)
            memcpy(group + ((size_t)i * KEY_GROUP + lane) * 2, row + (size_t)i * 2, 2);
}

/* ---- attention ------------------------------------------------------------------------------------------------------
 */

static void load_row(enum dtype dtype, const unsigned char *row, float *x, uint32_t n)
{
    const struct dtype_info *info = dtype_info(dtype);
    const uint32_t whole = n / info->block_elems * info->block_elems;
    info->dequant(row, x, whole);
    if (whole < n) {
        float last[QK];
        info->dequant(row + whole / QK * info->block_bytes, last, QK);
        memcpy(x + whole, last, (n - whole) * sizeof *x);
    }
}

/* Positions lo .. hi-1 of one kv head, keys and values, as f32 rows of head_dim. */
static void load_tile(struct worker *w, const struct attend_tile *t, uint32_t lo, uint32_t hi)
{
    const struct kv_layer *layer = t->args->layer;
    const struct kv_cache *kv = t->kv;
    const uint32_t n = t->args->head_dim;
    const uint32_t *table = t->batch->tables[layer->group] + t->seq->table_at;
    for (uint32_t p = lo; p < hi; p++) {
        const unsigned char *block = kv->blocks + (uint64_t)table[p / kv->block_tokens] * kv->block_bytes;
        const uint64_t head = (uint64_t)t->kv_head * kv->block_tokens * layer->row_bytes;
        const uint32_t token = p % kv->block_tokens;
        unsigned char key[HEAD_DIM_MAX * sizeof(float)];
        key_get(layer, block + layer->k_at + head, token, key);
        const unsigned char *value = block + layer->v_at + head + (size_t)token * layer->row_bytes;
        load_row(layer->dtype, key, w->k + (size_t)(p - lo) * n, n);
        load_row(layer->dtype, value, w->v + (size_t)(p - lo) * n, n);
    }
}

static float score(const struct attend_args *a, const float *q, const float *k)
{
    float acc[8] = {0};
    for (uint32_t i = 0; i < a->head_dim; i++)
        acc[i % 8] += q[i] * k[i];
    const float s = a->scale * (((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7])));
    return a->cap > 0.0f ? f_softcap(s, a->cap) : s;
}

/* Fold positions from .. to-1 (all visible, in the tile that starts at lo) into pair i. */
static void fold(
    struct worker *w, const struct attend_args *a, const float *q, uint32_t i, uint32_t lo, uint32_t from, uint32_t to)
{
    const uint32_t n = a->head_dim;
    float s[ATTN_TILE];
    float top = w->max[i];
    for (uint32_t p = from; p < to; p++) {
        s[p - from] = score(a, q, w->k + (size_t)(p - lo) * n);
        top = s[p - from] > top ? s[p - from] : top;
    }
    float *out = w->out + (size_t)i * n;
    const float shrink = f_exp(w->max[i] - top);
    w->max[i] = top;
    w->sum[i] *= shrink;
    for (uint32_t d = 0; d < n; d++)
        out[d] *= shrink;
    for (uint32_t p = from; p < to; p++) {
        /* cppcheck-suppress uninitvar ; the first loop wrote the same positions */
        const float weight = f_exp(s[p - from] - top);
        const float *v = w->v + (size_t)(p - lo) * n;
        w->sum[i] += weight;
        for (uint32_t d = 0; d < n; d++)
            out[d] += weight * v[d];
    }
}

void attend_ref(struct worker *w, const struct attend_tile *t)
{
    const struct attend_args *a = t->args;
    const uint32_t n_heads = t->n_heads, n = a->head_dim;
    assert(t->n_rows * n_heads <= ATTN_ROWS_MAX && n <= HEAD_DIM_MAX);
    for (uint32_t i = 0; i < t->n_rows * n_heads; i++) {
        w->max[i] = -3.402823466e38f;
        w->sum[i] = 0.0f;
    }
    memset(w->out, 0, sizeof(float) * t->n_rows * n_heads * n);

    const uint32_t *pos = t->batch->pos;
    const uint32_t first_pos = pos[t->first_row], last_pos = pos[t->first_row + t->n_rows - 1];
    const uint32_t start = a->window > 0 && first_pos + 1 > a->window ? first_pos + 1 - a->window : 0;
    for (uint32_t lo = start / ATTN_TILE * ATTN_TILE; lo <= last_pos; lo += ATTN_TILE) {
        const uint32_t from_all = MAX(lo, start), to_all = MIN(lo + ATTN_TILE, last_pos + 1);
        load_tile(w, t, from_all, to_all);
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const uint32_t p = pos[t->first_row + r];
            const uint32_t seen = a->window > 0 && p + 1 > a->window ? p + 1 - a->window : 0;
            const uint32_t from = MAX(from_all, seen), to = MIN(to_all, p + 1);
            for (uint32_t h = 0; from < to && h < n_heads; h++) {
                const float *q = a->q + ((size_t)(t->first_row + r) * a->n_heads + t->first_head + h) * n;
                fold(w, a, q, r * n_heads + h, from_all, from, to);
            }
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < n_heads; h++) {
            const uint32_t i = r * n_heads + h;
            float *to = a->out->f32 + ((size_t)(t->first_row + r) * a->n_heads + t->first_head + h) * n;
            for (uint32_t d = 0; d < n; d++)
                to[d] = w->out[(size_t)i * n + d] / w->sum[i];
        }
}
