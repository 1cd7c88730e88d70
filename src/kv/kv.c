/* Making and asking: all memory of a struct kv is allocated here, once, from its options; and the views that others
 * show (counters, map). */
#include "kv/kv.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kv/kv_int.h"

static enum err options_check(const struct kv_options *o, struct error *e)
{
    if (o->n_blocks == 0 || o->n_blocks > KV_BLOCKS_MAX || o->n_host_blocks > KV_BLOCKS_MAX)
        return FAIL(e, ERR_LIMIT, "a KV cache of %u blocks and %u host blocks; between 1 and %u are possible",
            o->n_blocks, o->n_host_blocks, KV_BLOCKS_MAX);
    if (o->block_tokens == 0 || o->block_tokens % 16 != 0 || o->block_tokens > KV_BLOCK_TOKENS_MAX)
        return FAIL(e, ERR_INVALID, "a KV block of %u tokens; it must be a multiple of 16 up to %u", o->block_tokens,
            KV_BLOCK_TOKENS_MAX);
    if ((uint64_t)o->n_blocks * o->block_tokens >= UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "%u KV blocks of %u tokens; a slot number has 32 bits", o->n_blocks, o->block_tokens);
    if (o->seqs_max == 0 || o->seqs_max > KV_SEQS_MAX)
        return FAIL(e, ERR_LIMIT, "%u sequences; between 1 and %u are possible", o->seqs_max, KV_SEQS_MAX);
    if (o->seq_blocks_max == 0 || (uint64_t)o->seq_blocks_max * o->block_tokens > UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "%u blocks of %u tokens for one sequence; a position has 32 bits", o->seq_blocks_max,
            o->block_tokens);
    return OK;
}

static enum err kv_init(struct kv *kv, struct error *e)
{
    const struct kv_options *const o = &kv->o;
    uint64_t n_slots = 16;
    const size_t n_entries = (size_t)o->n_blocks + o->n_host_blocks;
    while (n_slots < 2 * (uint64_t)n_entries)
        n_slots *= 2;
    kv->slot_mask = n_slots - 1;
    kv->hash = hash64;
    TRY(kv_pool_init(&kv->device, o->n_blocks, "KV blocks", e));
    TRY(kv_pool_init(&kv->host, o->n_host_blocks, "swap blocks", e));
    kv->ids = mem_array(n_entries * o->block_tokens, sizeof kv->ids[0]);
    kv->slots = mem_array(n_slots, sizeof kv->slots[0]);
    kv->seqs = mem_array(o->seqs_max, sizeof kv->seqs[0]);
    kv->tables = mem_array((size_t)o->seqs_max * o->seq_blocks_max, sizeof kv->tables[0]);
    kv->scratch = mem_array(o->block_tokens, sizeof kv->scratch[0]);
    kv->check_ref = mem_array(MAX(o->n_blocks, o->n_host_blocks), sizeof kv->check_ref[0]);
    if (kv->ids == NULL || kv->slots == NULL || kv->seqs == NULL || kv->tables == NULL || kv->scratch == NULL ||
        kv->check_ref == NULL)
        return FAIL(
            e, ERR_NOMEM, "no memory for the bookkeeping of %u KV blocks and %u sequences", o->n_blocks, o->seqs_max);
    for (uint64_t i = 0; i < n_slots; i++)
        kv->slots[i] = KV_NONE;
    for (uint32_t i = 0; i < o->seqs_max; i++) {
        kv->seqs[i].table = kv->tables + (size_t)i * o->seq_blocks_max;
        kv->seqs[i].next_free = i + 1 < o->seqs_max ? i + 1 : KV_NONE;
    }
    return OK;
}

enum err kv_new(const struct kv_options *o, struct kv **out, struct error *e)
{
    *out = NULL;
    TRY(options_check(o, e));
    struct kv *const kv = mem_zalloc(sizeof *kv);
    if (kv == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a KV cache");
    kv->o = *o;
    const enum err code = kv_init(kv, e);
    if (code != OK) {
        kv_free(kv);
        return code;
    }
    *out = kv;
    return OK;
}

void kv_free(struct kv *kv)
{
    if (kv == NULL)
        return;
    kv_pool_fini(&kv->device);
    kv_pool_fini(&kv->host);
    mem_free(kv->ids);
    mem_free(kv->slots);
    mem_free(kv->seqs);
    mem_free(kv->tables);
    mem_free(kv->scratch);
    mem_free(kv->check_ref);
    mem_free(kv);
}

void kv_fence_done(struct kv *kv, uint64_t fence)
{
    kv_pool_fence_done(&kv->device, fence);
    kv_pool_fence_done(&kv->host, fence);
}

void kv_tier_use(struct kv *kv, struct kv_tier *t)
{
    kv->tier = t;
}

static void pool_forget(struct kv *kv, struct kv_pool *p, uint32_t first_entry)
{
    static const struct {
        enum kv_list from, to;
    } moves[] = {{LIST_CACHED, LIST_FREE}, {LIST_WARM, LIST_PARKED}};
    for (size_t i = 0; i < COUNT_OF(moves); i++) {
        uint32_t b;
        while ((b = kv_list_first(p, moves[i].from)) != KV_NONE) {
            kv_index_remove(kv, first_entry + b);
            kv_list_move(p, b, moves[i].to);
        }
    }
}

void kv_forget(struct kv *kv)
{
    pool_forget(kv, &kv->device, 0);
    pool_forget(kv, &kv->host, kv->device.n);
}

void kv_stats(const struct kv *kv, struct kv_stats *out)
{
    const struct kv_pool *const d = &kv->device;
    *out = kv->stats;
    out->n_blocks = d->n;
    out->n_free = d->count[LIST_FREE];
    out->n_held = d->count[LIST_HELD];
    out->n_cached = d->count[LIST_CACHED] + d->count[LIST_WARM];
    out->n_parked = d->count[LIST_PARKED];
    out->n_host = kv->host.n;
    out->n_host_free = kv->host.count[LIST_FREE];
    out->n_host_cached = kv->host.count[LIST_CACHED] + kv->host.count[LIST_WARM];
    out->n_shared = d->n_shared;
}

uint32_t kv_available(const struct kv *kv)
{
    return kv_pool_available(&kv->device);
}

void kv_map(const struct kv *kv, uint8_t *out)
{
    static const uint8_t shown[] = {
        [LIST_FREE] = 0, [LIST_CACHED] = 1, [LIST_WARM] = 1, [LIST_PARKED] = 2, [LIST_HELD] = 3};
    for (uint32_t b = 0; b < kv->device.n; b++)
        out[b] = (uint8_t)(shown[kv->device.blocks[b].state] + (kv->device.blocks[b].refs > 1));
}
