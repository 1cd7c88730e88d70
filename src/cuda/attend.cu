/* Attention: which kernels a step needs. Head sizes and cache types without a kernel of their own take the simple one.
 * When no sequence has more rows than the decode kernel takes, the second launch is left out; the first, when the only
 * sequence has. Where the same request must give the same bits there are two pairs of kernels that agree, so that it
 * does not matter which way a row goes. */
#include "cuda/resident.h"

#define AHEAD_BYTES ((uint64_t)24 << 20)
#define AHEAD_ROWS  64 /* more leave the memory no time */

/* Cards of 8.6 and 8.9 have 99 KB of shared memory a block, which is too little for 16-bit heads of 256. */
static bool has_tiles(const struct dev *d, const struct kv_layer *layer, uint32_t n, uint32_t per_kv)
{
    const enum dtype dtype = layer->dtype;
    const bool is_small = d->capability == 86 || d->capability == 89,
               is_wide = dtype == DTYPE_F16 || dtype == DTYPE_BF16;
    const bool size = n == 64 || n == 80 || n == 96 || n == 128 || (n == 256 && !(is_small && is_wide));
    return size && per_kv <= PACK && dtype != DTYPE_F32;
}

static struct attend_job job_of(const struct kv_layer *layer, uint32_t head_dim, uint32_t per_kv)
{
    struct attend_job j = {};
    j.head_dim = head_dim;
    j.per_kv = per_kv;
    j.dtype = layer->dtype;
    return j;
}

/* As cuda_attend finds them. */
void attend_kernels(const struct dev *d, const struct kv_layer *layer, uint32_t head_dim, uint32_t per_kv,
    const char **few, const char **many)
{
    const struct attend_job j = job_of(layer, head_dim, per_kv);
    const bool has = has_tiles(d, layer, head_dim, per_kv), chunks = attend_has_chunks(d, &j), fixed = d->deterministic;
    *few = !has ? "simple" : chunks ? "chunks" : fixed ? "decode" : "team";
    *many = !has ? "simple" : fixed ? (chunks ? "wide" : "whole") : attend_wide_rows(d, &j) > 0 ? "wide" : "prefill";
}

bool attend_takes_short(const struct dev *d, const struct kv_layer *layer, uint32_t head_dim, uint32_t per_kv)
{
    const struct attend_job j = job_of(layer, head_dim, per_kv);
    return has_tiles(d, layer, head_dim, per_kv) && attend_wide_rows(d, &j) > 0 &&
           (!d->deterministic || attend_has_chunks(d, &j));
}

/* For parts and the plan. */
bool cuda_attend_rooms(struct dev *d, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim)
{
    const size_t part = (size_t)PARTS_MAX * n_heads * (head_dim + 2) * sizeof(float);
    const size_t counters = ((size_t)d->rows_max * n_kv_heads + 2) * sizeof(uint32_t);
    return cuda_room(d, (void **)&d->parts, &d->parts_bytes, part) != NULL &&
           cuda_room(d, (void **)&d->arrived, &d->arrived_bytes, counters) != NULL &&
           cuda_room(d, (void **)&d->plan, &d->plan_bytes, plan_bytes(d->rows_max)) != NULL;
}

void cuda_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a)
{
    struct attend_job j = {};
    j.q = a->q;
    j.n_heads = a->n_heads;
    j.n_kv_heads = a->n_kv_heads;
    j.per_kv = a->n_heads / a->n_kv_heads;
    j.head_dim = a->head_dim;
    j.window = a->window;
    j.scale = a->scale;
    j.cap = a->cap;
    j.pos = b->pos;
    j.seq = b->seq;
    j.seqs = b->seqs;
    j.table = b->tables[a->layer->group];
    j.blocks = kv->blocks;
    j.block_bytes = kv->block_bytes;
    j.block_tokens = kv->block_tokens;
    j.k_at = a->layer->k_at;
    j.v_at = a->layer->v_at;
    j.row_bytes = a->layer->row_bytes;
    j.dtype = a->layer->dtype;
    j.short_q = d->short_q;
    d->short_q = false;
    j.out = act_rows_of(a->out, a->forms);
    if (!has_tiles(d, a->layer, j.head_dim, j.per_kv)) {
        attend_simple(d, b, &j);
        return;
    }
    if (!cuda_attend_rooms(d, a->n_heads, a->n_kv_heads, a->head_dim))
        return;
    j.plan = d->plan;
    j.items = plan_items(d->plan);
    j.tiles = plan_tiles(d->plan, d->rows_max);
    j.parts = d->parts;
    j.part_sums = d->parts + (size_t)PARTS_MAX * a->n_heads * a->head_dim;
    j.arrived = d->arrived;
    j.ahead = cuda_ahead(d, b->n_rows <= AHEAD_ROWS ? AHEAD_BYTES : 0);
    const bool fixed = d->deterministic;
    const uint32_t wide = attend_wide_rows(d, &j);
    const bool chunks = attend_has_chunks(d, &j);
    const uint32_t tile_rows = fixed && !chunks ? PACK / j.per_kv
                               : wide > 0       ? wide
                                                : attend_tile_rows(a->head_dim, j.per_kv);
    if (d->is_collecting && resident_attend(d, b, &j)) {
        const struct cut cut = resident_cut(d, &j);
        if (!fixed) /* chunks need no plan */
            attend_plan(d, b, j.per_kv, tile_rows, &cut);
        return;
    }
    const struct cut cut = fixed ? attend_cut(d, &j) : attend_team_cut(d, b, &j);
    const bool is_planned = attend_plan(d, b, j.per_kv, tile_rows, &cut);
    if (b->n_seqs > 1 || attend_is_few(b->n_rows, j.per_kv)) {
        if (chunks)
            attend_chunks(d, &j);
        else if (fixed)
            attend_decode(d, b, &j);
        else
            attend_team(d, b, &j, is_planned);
    }
    const bool may_be_tiles =
        b->n_rows > 1 || (uint64_t)kv->n_blocks * kv->block_tokens > (uint64_t)PARTS_MAX * cut.unit;
    if (fixed && may_be_tiles) {
        if (chunks)
            attend_wide(d, b, &j);
        else
            attend_whole(d, b, &j);
    } else if (!fixed && b->seq_rows > 1 && b->seq_rows * j.per_kv > DECODE_PAIRS) {
        if (wide > 0)
            attend_wide(d, b, &j);
        else
            attend_prefill(d, b, &j);
    }
}
