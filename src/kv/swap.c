/* Swapping a whole sequence between the device pool and host memory.
 *
 * A sequence is on one side or the other, never on both, so its one table holds places while it is out. Everything
 * it names is copied, shared and published blocks too: those may be evicted before it comes back, and a sequence that
 * had to look for its own blocks could fail to. What was published stays findable on the device until it is evicted.
 * After a swap in all blocks are the sequence's own.
 *
 * Nothing is overwritten early. Device blocks given up by a swap out, and places given up by a swap in, are parked
 * behind the step that makes the copies. */
#include "kv/kv_int.h"

static uint32_t blocks_held(const struct kv_sequence *q)
{
    return q->n_blocks - q->n_trimmed;
}

enum err kv_swap_out(struct kv *kv, struct kv_seq s, struct kv_copy *copies, uint32_t *n_copies, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    assert(!q->is_swapped);
    *n_copies = 0;
    if (blocks_held(q) > kv_host_available(kv))
        return ERR_AGAIN;
    for (uint32_t i = q->n_blocks; i-- > q->n_trimmed;) {
        const struct kv_copy c = {.src = q->table[i], .dst = kv_host_take(kv)};
        kv_block_unref(&kv->device, c.src, fence);
        q->table[i] = c.dst;
        copies[(*n_copies)++] = c;
    }
    q->is_swapped = true;
    kv->stats.swapped_out += *n_copies;
    return OK;
}

enum err kv_swap_in(struct kv *kv, struct kv_seq s, struct kv_copy *copies, uint32_t *n_copies, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    assert(q->is_swapped);
    *n_copies = 0;
    if (blocks_held(q) > kv_pool_available(&kv->device))
        return ERR_AGAIN;
    for (uint32_t i = q->n_trimmed; i < q->n_blocks; i++) {
        const struct kv_copy c = {.src = q->table[i], .dst = kv_block_take(kv, fence)};
        kv_block_unref(&kv->host, c.src, fence);
        q->table[i] = c.dst;
        copies[(*n_copies)++] = c;
    }
    q->is_swapped = false;
    kv->stats.swapped_in += *n_copies;
    return OK;
}

bool kv_seq_is_swapped(const struct kv *kv, struct kv_seq s)
{
    return kv_seq_of(kv, s)->is_swapped;
}
