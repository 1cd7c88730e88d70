/* The prefix index: from the tokens of a prompt to blocks, or places on the host, that already hold them.
 *
 * A full block's hash is taken over its token ids with the hash of the block before as the seed, so that one number
 * stands for the whole prefix; the first block's seed is a hash of the key. The table is open addressing with linear
 * probing, at most half full, one entry a slot; the hash itself is kept with the block. Removal shifts later
 * entries back instead of leaving a mark, so that a table which evicts all day does not fill up with marks.
 *
 * A hash only finds a candidate. The hit is proved by induction: the parent is the very publication (by serial) that
 * the step before proved, and the block's own ids are equal to the last one. The first block has no parent and compares
 * the key instead. So a collision costs time and never gives a wrong answer. */
#include "base/hash.h"
#include "kv/kv_int.h"

#include <string.h>

struct kv_chain kv_chain_root(const struct kv *kv, struct kv_key key)
{
    const uint64_t words[3] = {key.numerics, key.adapter, key.salt};
    return (struct kv_chain){.serial = 0, .hash = kv->hash(words, sizeof words, 0), .entry = KV_NONE};
}

uint64_t kv_chain_hash(const struct kv *kv, const struct kv_chain *c, const uint32_t *ids)
{
    return kv->hash(ids, (size_t)kv->o.block_tokens * sizeof ids[0], c->hash);
}

void kv_chain_step(const struct kv *kv, struct kv_chain *c, uint32_t entry)
{
    const struct kv_block *const block = kv_entry(kv, entry);
    *c = (struct kv_chain){.serial = block->serial, .hash = block->hash, .entry = entry};
}

static uint32_t *ids_of(const struct kv *kv, uint32_t entry)
{
    return kv->ids + (size_t)entry * kv->o.block_tokens;
}

static bool key_equal(struct kv_key a, struct kv_key b)
{
    return a.numerics == b.numerics && a.adapter == b.adapter && a.salt == b.salt;
}

uint32_t kv_index_find(
    const struct kv *kv, const struct kv_chain *c, uint64_t hash, struct kv_key key, const uint32_t *ids)
{
    const size_t bytes = (size_t)kv->o.block_tokens * sizeof ids[0];
    for (uint64_t at = hash & kv->slot_mask; kv->slots[at] != KV_NONE; at = (at + 1) & kv->slot_mask) {
        const uint32_t entry = kv->slots[at];
        const struct kv_block *const block = kv_entry(kv, entry);
        if (block->hash == hash && block->parent_serial == c->serial && key_equal(block->key, key) &&
            memcmp(ids_of(kv, entry), ids, bytes) == 0)
            return entry;
    }
    return KV_NONE;
}

void kv_index_insert(
    struct kv *kv, uint32_t b, const struct kv_chain *c, uint64_t hash, struct kv_key key, const uint32_t *ids)
{
    struct kv_block *const block = &kv->device.blocks[b];
    assert(block->serial == 0 && block->refs > 0);
    block->serial = ++kv->last_serial;
    block->hash = hash;
    block->parent_serial = c->serial;
    block->parent = c->entry;
    block->key = key;
    memcpy(ids_of(kv, b), ids, (size_t)kv->o.block_tokens * sizeof ids[0]);
    uint64_t at = hash & kv->slot_mask;
    while (kv->slots[at] != KV_NONE)
        at = (at + 1) & kv->slot_mask;
    kv->slots[at] = b;
    kv->n_published++;
    kv->stats.published++;
}

static uint64_t slot_of(const struct kv *kv, uint32_t entry)
{
    assert(kv_entry(kv, entry)->serial != 0);
    uint64_t at = kv_entry(kv, entry)->hash & kv->slot_mask;
    while (kv->slots[at] != entry)
        at = (at + 1) & kv->slot_mask;
    return at;
}

void kv_index_move(struct kv *kv, uint32_t from, uint32_t to)
{
    struct kv_block *const a = kv_entry(kv, from), *const b = kv_entry(kv, to);
    assert(b->serial == 0);
    kv->slots[slot_of(kv, from)] = to;
    b->serial = a->serial;
    b->hash = a->hash;
    b->parent_serial = a->parent_serial;
    b->parent = a->parent;
    b->key = a->key;
    a->serial = 0;
    memcpy(ids_of(kv, to), ids_of(kv, from), (size_t)kv->o.block_tokens * sizeof kv->ids[0]);
}

void kv_index_remove(struct kv *kv, uint32_t entry)
{
    uint64_t hole = slot_of(kv, entry);
    /* Whoever was pushed past the hole by it moves back into it: an entry may fill the hole when its home is not
     * between the hole and where it lies now. */
    for (uint64_t at = (hole + 1) & kv->slot_mask; kv->slots[at] != KV_NONE; at = (at + 1) & kv->slot_mask) {
        const uint64_t home = kv_entry(kv, kv->slots[at])->hash & kv->slot_mask;
        if (((at - home) & kv->slot_mask) >= ((at - hole) & kv->slot_mask)) {
            kv->slots[hole] = kv->slots[at];
            hole = at;
        }
    }
    kv->slots[hole] = KV_NONE;
    kv_entry(kv, entry)->serial = 0;
    kv->n_published--;
}
