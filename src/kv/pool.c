/* The block pool: taking, referencing and giving back, each in O(1). The states and lists are described in kv_int.h.
 *
 * Why parked blocks are ordered by fence. Almost always blocks are given up behind the newest step, so keeping the list
 * ascending costs one comparison; when a caller does give a smaller fence later, the walk goes over the few blocks of
 * the steps in flight. In return kv_fence_done looks only at what it frees.
 *
 * Which block is taken: a free one, newest first; else the oldest cached one whose fence is done, whose entry goes to
 * the host or is removed first. Sequences give their blocks back last one first, so of one prefix the tail is evicted
 * before what it hangs on, and a prefix that others found again is younger than every tail of it. */
#include "base/mem.h"
#include "kv/kv_int.h"

static uint32_t head_of(const struct kv_pool *p, enum kv_list list)
{
    return p->n + (uint32_t)list;
}

enum err kv_pool_init(struct kv_pool *p, uint32_t n, const char *what, struct error *e)
{
    *p = (struct kv_pool){.n = n};
    p->blocks = mem_array((size_t)n + LIST_COUNT, sizeof p->blocks[0]);
    if (p->blocks == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the bookkeeping of %u %s", n, what);
    for (uint32_t list = 0; list < LIST_COUNT; list++) {
        const uint32_t head = p->n + list;
        p->blocks[head].prev = p->blocks[head].next = head;
        p->blocks[head].state = list;
    }
    for (uint32_t b = 0; b < n; b++)
        p->blocks[b] = (struct kv_block){.state = LIST_HELD};
    p->count[LIST_HELD] = n;
    for (uint32_t b = n; b-- > 0;) /* number 0 is taken first */
        kv_list_move(p, b, LIST_FREE);
    return OK;
}

void kv_pool_fini(struct kv_pool *p)
{
    mem_free(p->blocks);
    *p = (struct kv_pool){0};
}

uint32_t kv_list_first(const struct kv_pool *p, enum kv_list list)
{
    const uint32_t head = head_of(p, list);
    return p->blocks[head].next == head ? KV_NONE : p->blocks[head].next;
}

void kv_list_move(struct kv_pool *p, uint32_t b, enum kv_list to)
{
    struct kv_block *const block = &p->blocks[b];
    if (block->state != LIST_HELD) {
        p->blocks[block->prev].next = block->next;
        p->blocks[block->next].prev = block->prev;
    }
    p->count[block->state]--;
    p->count[to]++;
    block->state = to;
    if (to == LIST_HELD)
        return;
    const uint32_t head = head_of(p, to);
    uint32_t after = to == LIST_FREE ? head : p->blocks[head].prev;
    if (to == LIST_PARKED || to == LIST_WARM)
        while (after != head && p->blocks[after].fence > block->fence)
            after = p->blocks[after].prev;
    block->prev = after;
    block->next = p->blocks[after].next;
    p->blocks[block->next].prev = b;
    p->blocks[after].next = b;
}

uint32_t kv_pool_available(const struct kv_pool *p)
{
    return p->count[LIST_FREE] + p->count[LIST_CACHED];
}

void kv_pool_fence_done(struct kv_pool *p, uint64_t fence)
{
    p->done = MAX(p->done, fence);
    uint32_t b;
    while ((b = kv_list_first(p, LIST_PARKED)) != KV_NONE && p->blocks[b].fence <= p->done)
        kv_list_move(p, b, LIST_FREE);
    while ((b = kv_list_first(p, LIST_WARM)) != KV_NONE && p->blocks[b].fence <= p->done)
        kv_list_move(p, b, LIST_CACHED);
}

uint32_t kv_block_take(struct kv *kv, uint64_t fence)
{
    struct kv_pool *const p = &kv->device;
    uint32_t b = kv_list_first(p, LIST_FREE);
    if (b == KV_NONE) {
        b = kv_list_first(p, LIST_CACHED);
        assert(b != KV_NONE);
        kv_evict(kv, b, fence);
    }
    kv_list_move(p, b, LIST_HELD);
    p->blocks[b].refs = 1;
    return b;
}

void kv_block_ref(struct kv_pool *p, uint32_t b)
{
    struct kv_block *const block = &p->blocks[b];
    if (block->refs == 0)
        kv_list_move(p, b, LIST_HELD);
    block->refs++;
    p->n_shared += block->refs == 2;
}

void kv_block_unref(struct kv_pool *p, uint32_t b, uint64_t fence)
{
    struct kv_block *const block = &p->blocks[b];
    assert(block->refs > 0 && block->state == LIST_HELD);
    block->fence = MAX(block->fence, fence); /* whoever else gave it up may have named a later step */
    p->n_shared -= block->refs == 2;
    if (--block->refs > 0)
        return;
    const bool is_done = block->fence <= p->done;
    if (block->serial != 0)
        kv_list_move(p, b, is_done ? LIST_CACHED : LIST_WARM);
    else
        kv_list_move(p, b, is_done ? LIST_FREE : LIST_PARKED);
}
