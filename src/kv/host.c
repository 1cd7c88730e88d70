/* The host's places: taken by sequences that are swapped out (swap.c), and lent to prefixes that were evicted.
 *
 * An evicted block's content is copied out and its entry moves with it, serial and all; what hangs on it does not
 * notice. When a lookup finds it there, it takes a block again and moves back. Places without a sequence are a cache
 * and no more: the oldest gives way to an eviction, and to a swap even one that the same step fills, since a step swaps
 * behind its evictions. The copies come out through the tier that the caller has lent. */
#include "kv/kv_int.h"

/* A free place, else the oldest one with an entry, which it loses; KV_NONE when there is none. */
static uint32_t place_find(struct kv *kv, bool is_for_swap)
{
    struct kv_pool *const p = &kv->host;
    uint32_t h = kv_list_first(p, LIST_FREE);
    if (h != KV_NONE)
        return h;
    h = kv_list_first(p, LIST_CACHED);
    if (h == KV_NONE && is_for_swap)
        h = kv_list_first(p, LIST_WARM);
    if (h != KV_NONE)
        kv_index_remove(kv, kv->device.n + h);
    return h;
}

uint32_t kv_host_available(const struct kv *kv)
{
    return kv_pool_available(&kv->host) + kv->host.count[LIST_WARM];
}

uint32_t kv_host_take(struct kv *kv)
{
    const uint32_t h = place_find(kv, true);
    assert(h != KV_NONE);
    kv_list_move(&kv->host, h, LIST_HELD);
    kv->host.blocks[h].refs = 1;
    return h;
}

void kv_evict(struct kv *kv, uint32_t b, uint64_t fence)
{
    struct kv_tier *const t = kv->tier;
    const uint32_t h = t != NULL && t->n_out < t->max ? place_find(kv, false) : KV_NONE;
    kv->stats.evicted++;
    if (h == KV_NONE) {
        kv_index_remove(kv, b);
        return;
    }
    struct kv_block *const place = &kv->host.blocks[h];
    kv_index_move(kv, b, kv->device.n + h);
    place->fence = MAX(place->fence, fence);
    kv_list_move(&kv->host, h, place->fence <= kv->host.done ? LIST_CACHED : LIST_WARM);
    t->out[t->n_out++] = (struct kv_copy){.src = b, .dst = h};
    kv->stats.kept++;
}

uint32_t kv_restore(struct kv *kv, uint32_t place, uint64_t fence)
{
    struct kv_tier *const t = kv->tier;
    assert(t != NULL && t->n_in < t->max && kv->host.blocks[place].state == LIST_HELD);
    const uint32_t b = kv_block_take(kv, fence);
    kv_index_move(kv, kv->device.n + place, b);
    kv->device.blocks[b].fence = fence; /* nobody evicts it before it is there */
    kv_block_unref(&kv->host, place, fence);
    t->in[t->n_in++] = (struct kv_copy){.src = place, .dst = b};
    kv->stats.restored++;
    return b;
}

void kv_adopt(struct kv *kv, uint32_t place, uint32_t b)
{
    kv_index_move(kv, kv->device.n + place, b);
    const bool is_done = kv->host.blocks[place].fence <= kv->host.done;
    kv_list_move(&kv->host, place, is_done ? LIST_FREE : LIST_PARKED);
}
