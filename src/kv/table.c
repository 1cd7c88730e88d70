/* Sequences: which block holds which positions of which sequence.
 *
 * A sequence holds exactly the blocks that its positions need. Blocks are shared between sequences by reference: by a
 * fork, or because the prefix index found them. Shared and published blocks are read-only; the one block that a
 * sequence is about to write into and may not is replaced by a copy first (kv_seq_grow).
 *
 * Publishing walks a chain: for each block that became full, either the index already has its content behind the same
 * prefix (then the chain goes on from that entry and ours stays private), or ours is entered. The last entry of the
 * chain may have been evicted or moved meanwhile when it was another's block; then the walk starts over from the first
 * block, which finds or enters everything again. That costs one hash a block and is rare: a sequence keeps alive what
 * it published itself. */
#include "kv/kv_int.h"

#include <string.h>

struct kv_sequence *kv_seq_of(const struct kv *kv, struct kv_seq s)
{
    assert(s.v < kv->o.seqs_max && kv->seqs[s.v].is_open);
    return &kv->seqs[s.v];
}

static enum err seq_take(struct kv *kv, struct kv_key key, struct kv_seq *out)
{
    if (kv->first_free_seq == KV_NONE)
        return ERR_AGAIN;
    out->v = kv->first_free_seq;
    struct kv_sequence *const q = &kv->seqs[out->v];
    kv->first_free_seq = q->next_free;
    kv->n_open++;
    *q = (struct kv_sequence){
        .key = key, .chain = kv_chain_root(kv, key), .table = q->table, .next_free = KV_NONE, .is_open = true};
    return OK;
}

static struct kv_pool *pool_of(struct kv *kv, const struct kv_sequence *q)
{
    return q->is_swapped ? &kv->host : &kv->device;
}

/* Give back the entries from `first` on, last one first, so that a tail is evicted before what it hangs on. */
static void seq_drop(struct kv *kv, struct kv_sequence *q, uint32_t first, uint64_t fence)
{
    while (q->n_blocks > first) {
        const uint32_t b = q->table[--q->n_blocks];
        if (b != KV_NONE)
            kv_block_unref(pool_of(kv, q), b, fence);
    }
    q->n_trimmed = MIN(q->n_trimmed, q->n_blocks);
    if (q->n_chained > q->n_blocks) { /* the entry of the new last block may be another's block: find it again */
        q->chain = kv_chain_root(kv, q->key);
        q->n_chained = 0;
    }
}

/* What a lookup may still take. */
struct room {
    uint32_t n_blocks; /* of the pool: an entry on the host takes one, and so does one that might have been evicted */
    uint32_t n_in;     /* entries of the tier */
};

static struct room room_of(const struct kv *kv)
{
    return (struct room){kv_pool_available(&kv->device), kv->tier != NULL ? kv->tier->max - kv->tier->n_in : 0};
}

/* The entry of the next block of a chain, if there is one and room for it. */
static uint32_t find_next(
    const struct kv *kv, struct kv_chain *c, struct kv_key key, const uint32_t *ids, struct room *room)
{
    const uint32_t entry = kv_index_find(kv, c, kv_chain_hash(kv, c, ids), key, ids);
    if (entry == KV_NONE)
        return KV_NONE;
    const bool is_on_host = kv_is_on_host(kv, entry);
    const bool takes = is_on_host || kv->device.blocks[entry].state == LIST_CACHED;
    if (room->n_blocks < takes || room->n_in < is_on_host)
        return KV_NONE;
    room->n_blocks -= takes;
    room->n_in -= is_on_host;
    kv_chain_step(kv, c, entry);
    return entry;
}

/* Find what there is, and hold it: then blocks are taken for what is on the host, and nothing that was found can be
 * evicted for them. */
static uint32_t seq_find(struct kv *kv, struct kv_sequence *q, const uint32_t *ids, uint32_t n_full, uint64_t fence)
{
    const uint32_t n_device = kv->device.n;
    struct room room = room_of(kv);
    uint32_t n_host = 0;
    for (uint32_t entry; q->n_blocks < n_full; q->table[q->n_blocks++] = entry) {
        entry = find_next(kv, &q->chain, q->key, ids + (size_t)q->n_blocks * kv->o.block_tokens, &room);
        if (entry == KV_NONE)
            break;
        if (kv_is_on_host(kv, entry)) {
            kv_block_ref(&kv->host, entry - n_device);
            n_host++;
        } else
            kv_block_ref(&kv->device, entry);
    }
    for (uint32_t i = 0; n_host > 0 && i < q->n_blocks; i++)
        if (kv_is_on_host(kv, q->table[i]))
            q->table[i] = kv_restore(kv, q->table[i] - n_device, fence);
    if (q->n_blocks > 0)
        q->chain.entry = q->table[q->n_blocks - 1];
    return n_host;
}

enum err kv_seq_open(struct kv *kv, struct kv_key key, const uint32_t *ids, uint32_t n, bool lookup, uint64_t fence,
    struct kv_seq *out, uint32_t *n_found, enum kv_hit *hit)
{
    *n_found = 0;
    *hit = KV_MISS;
    *out = KV_SEQ_NONE;
    TRY(seq_take(kv, key, out));
    if (!lookup || !kv->o.prefix_cache)
        return OK;
    struct kv_sequence *const q = kv_seq_of(kv, *out);
    const uint32_t bt = kv->o.block_tokens;
    const uint32_t n_full = MIN(n / bt, kv->o.seq_blocks_max);
    const uint32_t n_host = seq_find(kv, q, ids, n_full, fence);
    q->n_chained = q->n_blocks;
    q->n_tokens = *n_found = q->n_blocks * bt;
    *hit = q->n_blocks == 0 ? KV_MISS : q->n_blocks == n_full ? KV_HIT_EXACT : KV_HIT_PREFIX;
    struct kv_stats *const st = &kv->stats;
    st->lookups++;
    st->miss += *hit == KV_MISS;
    st->prefix += *hit == KV_HIT_PREFIX;
    st->exact += *hit == KV_HIT_EXACT;
    st->host_hits += n_host > 0;
    st->tokens_asked += n;
    st->tokens_found += *n_found;
    return OK;
}

uint32_t kv_peek(const struct kv *kv, struct kv_key key, const uint32_t *ids, uint32_t n, uint32_t *n_host)
{
    const uint32_t bt = kv->o.block_tokens;
    const uint32_t n_full = kv->o.prefix_cache ? MIN(n / bt, kv->o.seq_blocks_max) : 0;
    struct kv_chain chain = kv_chain_root(kv, key);
    struct room room = room_of(kv);
    uint32_t i = 0;
    const uint32_t n_in = room.n_in;
    while (i < n_full && find_next(kv, &chain, key, ids + (size_t)i * bt, &room) != KV_NONE)
        i++;
    if (n_host != NULL)
        *n_host = n_in - room.n_in;
    return i * bt;
}

/* The entry that a write from first_write on must copy first; KV_NONE when there is none. */
static uint32_t entry_to_copy(const struct kv *kv, const struct kv_sequence *q, uint32_t n_tokens, uint32_t first_write)
{
    if (first_write >= n_tokens)
        return KV_NONE;
    uint32_t found = KV_NONE;
    for (uint32_t i = first_write / kv->o.block_tokens; i < MIN(q->n_blocks, kv_blocks_for(kv, n_tokens)); i++) {
        assert(q->table[i] != KV_NONE); /* a trimmed position is never written again */
        const struct kv_block *const b = &kv->device.blocks[q->table[i]];
        if (b->refs > 1 || b->serial != 0) {
            assert(found == KV_NONE);
            found = i;
        }
    }
    return found;
}

uint32_t kv_seq_need(const struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint32_t first_write)
{
    const struct kv_sequence *const q = kv_seq_of(kv, s);
    assert(!q->is_swapped);
    const uint32_t n_blocks = kv_blocks_for(kv, n_tokens);
    const uint32_t n_new = n_blocks > q->n_blocks ? n_blocks - q->n_blocks : 0;
    return n_new + (entry_to_copy(kv, q, n_tokens, first_write) != KV_NONE);
}

enum err kv_seq_grow(struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint32_t first_write, struct kv_copy *copy,
    uint32_t *n_copies, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    assert(!q->is_swapped && kv_blocks_for(kv, n_tokens) <= kv->o.seq_blocks_max);
    *n_copies = 0;
    if (kv_seq_need(kv, s, n_tokens, first_write) > kv_pool_available(&kv->device))
        return ERR_AGAIN;
    const uint32_t i = entry_to_copy(kv, q, n_tokens, first_write);
    if (i != KV_NONE) {
        *copy = (struct kv_copy){.src = q->table[i], .dst = kv_block_take(kv, fence)};
        *n_copies = 1;
        q->table[i] = copy->dst;
        kv_block_unref(&kv->device, copy->src, fence);
        kv->stats.copied++;
    }
    /* Final tokens are being replaced, after a truncation: the chain stood for the old ones, also where the block with
     * them was another's and ours needs no copy. */
    if (first_write < n_tokens && q->n_chained > first_write / kv->o.block_tokens) {
        q->chain = kv_chain_root(kv, q->key);
        q->n_chained = 0;
    }
    while (q->n_blocks < kv_blocks_for(kv, n_tokens))
        q->table[q->n_blocks++] = kv_block_take(kv, fence);
    q->n_tokens = MAX(q->n_tokens, n_tokens);
    return OK;
}

enum err kv_seq_fork(struct kv *kv, struct kv_seq parent, uint32_t n_tokens, struct kv_seq *out)
{
    const struct kv_sequence *const from = kv_seq_of(kv, parent);
    assert(!from->is_swapped && n_tokens <= from->n_tokens);
    *out = KV_SEQ_NONE;
    TRY(seq_take(kv, from->key, out));
    struct kv_sequence *const q = kv_seq_of(kv, *out);
    q->n_blocks = kv_blocks_for(kv, n_tokens);
    q->n_tokens = n_tokens;
    q->n_trimmed = MIN(from->n_trimmed, q->n_blocks);
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        q->table[i] = from->table[i];
        if (q->table[i] != KV_NONE)
            kv_block_ref(&kv->device, q->table[i]);
    }
    if (from->n_chained <= n_tokens / kv->o.block_tokens) { /* else the chain is past the fork: start over */
        q->chain = from->chain;
        q->n_chained = from->n_chained;
    }
    return OK;
}

/* The ids of block i, in one piece. */
static const uint32_t *block_ids_of(
    struct kv *kv, uint32_t i, const uint32_t *prompt, uint32_t n_prompt, const uint32_t *output)
{
    const uint32_t bt = kv->o.block_tokens, first = i * bt;
    if (first + bt <= n_prompt)
        return prompt + first;
    if (first >= n_prompt)
        return output + (first - n_prompt);
    const uint32_t n_head = n_prompt - first;
    memcpy(kv->scratch, prompt + first, n_head * sizeof prompt[0]);
    memcpy(kv->scratch + n_head, output, (bt - n_head) * sizeof output[0]);
    return kv->scratch;
}

void kv_seq_publish(
    struct kv *kv, struct kv_seq s, const uint32_t *prompt, uint32_t n_prompt, const uint32_t *output, uint32_t n_final)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    const uint32_t n_full = MIN(n_final / kv->o.block_tokens, q->n_blocks);
    if (!kv->o.prefix_cache || q->is_swapped || q->n_chained >= n_full)
        return;
    if (q->n_chained > 0 && kv_entry(kv, q->chain.entry)->serial != q->chain.serial) {
        q->chain = kv_chain_root(kv, q->key);
        q->n_chained = 0;
    }
    for (; q->n_chained < n_full; q->n_chained++) {
        const uint32_t *const ids = block_ids_of(kv, q->n_chained, prompt, n_prompt, output);
        const uint64_t hash = kv_chain_hash(kv, &q->chain, ids);
        const uint32_t b = q->table[q->n_chained];
        uint32_t entry = kv_index_find(kv, &q->chain, hash, q->key, ids);
        if (entry == KV_NONE) {
            if (b == KV_NONE) /* trimmed and gone: nothing of ours could be found behind it */
                return;
            if (kv->device.blocks[b].serial != 0) /* entered behind a parent that is gone, so nobody finds it there */
                kv_index_remove(kv, b);
            kv_index_insert(kv, b, &q->chain, hash, q->key, ids);
            entry = b;
        } else if (kv_is_on_host(kv, entry) && b != KV_NONE && kv->device.blocks[b].serial == 0) {
            kv_adopt(kv, entry - kv->device.n, b); /* computed again meanwhile: nothing to bring back */
            entry = b;
        }
        kv_chain_step(kv, &q->chain, entry);
    }
}

void kv_seq_truncate(struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    if (n_tokens >= q->n_tokens)
        return;
    seq_drop(kv, q, kv_blocks_for(kv, n_tokens), fence);
    q->n_tokens = n_tokens;
}

void kv_seq_trim(struct kv *kv, struct kv_seq s, uint32_t before, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    const uint32_t n = MIN(before / kv->o.block_tokens, q->n_blocks);
    for (uint32_t i = n; i-- > q->n_trimmed;) {
        kv_block_unref(pool_of(kv, q), q->table[i], fence);
        q->table[i] = KV_NONE;
    }
    q->n_trimmed = MAX(q->n_trimmed, n);
}

void kv_seq_close(struct kv *kv, struct kv_seq s, uint64_t fence)
{
    struct kv_sequence *const q = kv_seq_of(kv, s);
    seq_drop(kv, q, 0, fence);
    *q = (struct kv_sequence){.table = q->table, .next_free = kv->first_free_seq};
    kv->first_free_seq = s.v;
    kv->n_open--;
}

const uint32_t *kv_seq_table(const struct kv *kv, struct kv_seq s, uint32_t *n_blocks)
{
    const struct kv_sequence *const q = kv_seq_of(kv, s);
    *n_blocks = q->is_swapped ? 0 : q->n_blocks;
    return q->table;
}
