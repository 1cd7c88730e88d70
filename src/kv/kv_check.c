/* kv_check: the invariants of kv.h, recomputed from nothing. It believes no counter: lists are walked, references are
 * counted from the tables, entries of the index are looked for by their hash. */
#include "kv/kv_int.h"

#include <string.h>

#define BROKEN(e, ...) FAIL(e, ERR_INTERNAL, "kv_check: " __VA_ARGS__)

static enum err list_check(const struct kv_pool *p, enum kv_list list, struct error *e)
{
    const uint32_t head = p->n + (uint32_t)list;
    uint32_t n = 0;
    uint64_t fence = 0;
    for (uint32_t b = p->blocks[head].next; b != head; b = p->blocks[b].next) {
        const struct kv_block *const block = &p->blocks[b];
        if (b >= p->n || n >= p->n)
            return BROKEN(e, "list %d does not end", (int)list);
        if (block->state != list || block->refs != 0 || p->blocks[block->prev].next != b)
            return BROKEN(
                e, "block %u is on list %d with state %u and %u references", b, (int)list, block->state, block->refs);
        const bool waits = list == LIST_PARKED || list == LIST_WARM;
        if (waits != (block->fence > p->done) || (waits && block->fence < fence))
            return BROKEN(
                e, "block %u is on list %d behind fence %llu", b, (int)list, (unsigned long long)block->fence);
        if ((block->serial != 0) != (list == LIST_CACHED || list == LIST_WARM))
            return BROKEN(e, "block %u is on list %d and %spublished", b, (int)list, block->serial != 0 ? "" : "not ");
        fence = block->fence;
        n++;
    }
    if (n != p->count[list])
        return BROKEN(e, "list %d has %u blocks and counts %u", (int)list, n, p->count[list]);
    return OK;
}

/* Invariants 1 and 2. */
static enum err pool_check(const struct kv *kv, const struct kv_pool *p, bool is_host, struct error *e)
{
    uint32_t *const refs = kv->check_ref;
    memset(refs, 0, (size_t)p->n * sizeof refs[0]);
    for (uint32_t i = 0; i < kv->o.seqs_max; i++) {
        const struct kv_sequence *const q = &kv->seqs[i];
        if (!q->is_open || q->is_swapped != is_host)
            continue;
        for (uint32_t j = q->n_trimmed; j < q->n_blocks; j++) {
            if (q->table[j] >= p->n)
                return BROKEN(e, "sequence %u names block %u of %u", i, q->table[j], p->n);
            refs[q->table[j]]++;
        }
    }
    uint32_t n_held = 0, n_shared = 0;
    for (uint32_t b = 0; b < p->n; b++) {
        const struct kv_block *const block = &p->blocks[b];
        if (block->refs != refs[b] || (block->state == LIST_HELD) != (refs[b] > 0))
            return BROKEN(e, "block %u has %u references in tables, %u in its count, state %u", b, refs[b], block->refs,
                block->state);
        if (is_host && refs[b] > 1)
            return BROKEN(e, "host place %u belongs to two sequences", b);
        if (is_host && refs[b] > 0 && block->serial != 0)
            return BROKEN(e, "host place %u belongs to a sequence and to the index", b);
        n_held += refs[b] > 0;
        n_shared += refs[b] > 1;
    }
    uint32_t total = n_held;
    for (uint32_t list = 0; list < LIST_COUNT; list++) {
        TRY(list_check(p, (enum kv_list)list, e));
        total += p->count[list];
    }
    if (total != p->n || n_held != p->count[LIST_HELD] || n_shared != p->n_shared)
        return BROKEN(e, "%u blocks of %u are in a state, %u held, %u shared", total, p->n, n_held, n_shared);
    return OK;
}

/* Invariant 4. */
static enum err index_check(const struct kv *kv, struct error *e)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < kv->device.n + kv->host.n; b++) {
        const struct kv_block *const block = kv_entry(kv, b);
        if (block->serial == 0)
            continue;
        n++;
        const struct kv_chain parent = {.serial = block->parent_serial, .entry = block->parent};
        const uint32_t *const ids = kv->ids + (size_t)b * kv->o.block_tokens;
        if (kv_index_find(kv, &parent, block->hash, block->key, ids) != b)
            return BROKEN(e, "entry %u is not found, or has a twin", b);
        if (block->serial > kv->last_serial || block->parent_serial >= block->serial)
            return BROKEN(e, "entry %u was published before its parent", b);
        const bool parent_is_there =
            block->parent != KV_NONE && kv_entry(kv, block->parent)->serial == block->parent_serial;
        struct kv_chain chain = kv_chain_root(kv, block->key);
        if (block->parent_serial != 0 && parent_is_there)
            chain.hash = kv_entry(kv, block->parent)->hash;
        if ((block->parent_serial == 0 || parent_is_there) && kv_chain_hash(kv, &chain, ids) != block->hash)
            return BROKEN(e, "the hash of entry %u is not that of its tokens", b);
    }
    uint64_t n_slots = 0;
    for (uint64_t i = 0; i <= kv->slot_mask; i++)
        n_slots += kv->slots[i] != KV_NONE;
    if (n != kv->n_published || n_slots != n)
        return BROKEN(e, "there are %u entries, the index has %llu and counts %u", n, (unsigned long long)n_slots,
            kv->n_published);
    return OK;
}

/* Invariant 5, and the free sequences. */
static enum err seqs_check(const struct kv *kv, struct error *e)
{
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < kv->o.seqs_max; i++) {
        const struct kv_sequence *const q = &kv->seqs[i];
        if (!q->is_open)
            continue;
        n_open++;
        if (q->n_blocks != kv_blocks_for(kv, q->n_tokens) || q->n_trimmed > q->n_blocks || q->n_chained > q->n_blocks)
            return BROKEN(e, "sequence %u has %u blocks (%u trimmed, %u chained) for %u tokens", i, q->n_blocks,
                q->n_trimmed, q->n_chained, q->n_tokens);
        for (uint32_t j = 0; j < q->n_trimmed; j++)
            if (q->table[j] != KV_NONE)
                return BROKEN(e, "sequence %u still names a block at its trimmed entry %u", i, j);
    }
    uint32_t n_free = 0;
    for (uint32_t i = kv->first_free_seq; i != KV_NONE && n_free <= kv->o.seqs_max; i = kv->seqs[i].next_free)
        n_free += !kv->seqs[i].is_open;
    if (n_open != kv->n_open || n_open + n_free != kv->o.seqs_max)
        return BROKEN(e, "%u sequences are open and %u free of %u", n_open, n_free, kv->o.seqs_max);
    return OK;
}

enum err kv_check(const struct kv *kv, struct error *e)
{
    TRY(seqs_check(kv, e));
    TRY(pool_check(kv, &kv->device, false, e));
    TRY(pool_check(kv, &kv->host, true, e));
    return index_check(kv, e);
}
