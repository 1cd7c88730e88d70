/* Private to kv/ and its tests: how blocks, sequences and the index are kept. A place is a block of the host's pool.
 *
 * Everything is an index into an array that kv_new made. A block is in exactly one state; the states that are a crowd
 * are doubly linked lists threaded through the blocks, whose heads are extra elements behind the last block, so that
 * moving a block is a few stores and never a search. HELD needs no list: tables name those.
 *
 *   LIST_FREE     nothing in it; newest first, since its memory may still be warm
 *   LIST_PARKED   empty too, but a step in flight may still touch it; ascending by fence
 *   LIST_CACHED   findable and nobody's; oldest first: the order of eviction
 *   LIST_WARM     like CACHED, but a step in flight may still read it, so it may be found and not be evicted;
 *                 ascending by fence
 *
 * A block that was published has a serial, unique for all time. An entry of the index names its parent by serial, so a
 * parent that was evicted and published anew with other content is not the same parent. Serial 0 is the root, and
 * entries below it are told apart by their key. An entry is named by its block, or by n_blocks + its place; it keeps
 * its serial when it moves, so what hangs on it still does. */
#ifndef KV_KV_INT_H
#define KV_KV_INT_H

#include "base/base.h"
#include "base/limits.h"
#include "kv/kv.h"

#define KV_NONE UINT32_MAX

enum kv_list { LIST_FREE, LIST_PARKED, LIST_CACHED, LIST_WARM, LIST_HELD, LIST_COUNT = LIST_HELD };

struct kv_block {
    uint64_t fence;         /* the last step that may touch it */
    uint64_t serial;        /* of its publication; 0 = not in the index */
    uint64_t hash;          /* chained, over the tokens of its ancestors and its own; valid with a serial */
    uint64_t parent_serial; /* 0 = first block of a chain */
    struct kv_key key;      /* of the chain */
    uint32_t parent;        /* entry that had parent_serial, where it lay then; KV_NONE for the first */
    uint32_t refs;          /* table entries that name it */
    uint32_t prev, next;    /* in the list of its state */
    uint32_t state;         /* enum kv_list */
};

/* Numbered blocks with the lists above. The device's pool and the host's are one kind of thing. */
struct kv_pool {
    struct kv_block *blocks; /* [n + LIST_COUNT]; the last ones are the heads */
    uint32_t n;
    uint32_t count[LIST_COUNT + 1]; /* by state */
    uint32_t n_shared;              /* with more than one reference */
    uint64_t done;                  /* every step up to this one is done */
};

/* Where a sequence's chain of publications has got to. */
struct kv_chain {
    uint64_t serial; /* of the last entry; 0 = at the root */
    uint64_t hash;
    uint32_t entry; /* where it lay then */
};

struct kv_sequence {
    struct kv_key key;
    struct kv_chain chain;
    uint32_t *table;    /* [seq_blocks_max] device blocks, or places while swapped; KV_NONE where trimmed */
    uint32_t n_blocks;  /* entries, trimmed ones included */
    uint32_t n_trimmed; /* of them, from the start */
    uint32_t n_tokens;  /* positions that the blocks are for */
    uint32_t n_chained; /* leading blocks whose content is in the index, as theirs or as another's */
    uint32_t next_free; /* while closed */
    bool is_open, is_swapped;
};

struct kv {
    struct kv_options o;
    struct kv_pool device, host;
    uint32_t *ids;        /* [n_blocks + n_host_blocks][block_tokens] of entries: the proof */
    uint32_t *slots;      /* the index: open addressing, linear probing; entry or KV_NONE */
    uint64_t slot_mask;   /* slots - 1 */
    uint32_t n_published; /* entries of the index */
    uint64_t last_serial;
    struct kv_tier *tier;     /* lent; NULL = what is evicted is forgotten */
    struct kv_sequence *seqs; /* [seqs_max] */
    uint32_t *tables;         /* all of them */
    uint32_t first_free_seq, n_open;
    uint32_t *scratch;     /* [block_tokens] ids of a block that straddles prompt and output */
    uint32_t *check_ref;   /* [max(n_blocks, n_host_blocks)] for kv_check */
    struct kv_stats stats; /* counters only; the gauges are counted in the pools */
    /* hash64, unless a test planted a worse one: every hit must be right whatever the hash. */
    uint64_t (*hash)(const void *bytes, size_t n, uint64_t seed);
};

/* pool.c */
enum err kv_pool_init(struct kv_pool *p, uint32_t n, const char *what, struct error *e) MUST_CHECK;
void kv_pool_fini(struct kv_pool *p);
void kv_list_move(struct kv_pool *p, uint32_t b, enum kv_list to);  /* to the end, or to its place by fence */
uint32_t kv_list_first(const struct kv_pool *p, enum kv_list list); /* KV_NONE when empty */
uint32_t kv_pool_available(const struct kv_pool *p);                /* free or evictable */
void kv_pool_fence_done(struct kv_pool *p, uint64_t fence);
uint32_t kv_block_take(struct kv *kv, uint64_t fence); /* HELD, one reference; there must be one. fence: of whoever */
                                                       /* copies out what was in it */
void kv_block_ref(struct kv_pool *p, uint32_t b);
void kv_block_unref(struct kv_pool *p, uint32_t b, uint64_t fence); /* the last one frees, parks or caches it */

/* host.c */
uint32_t kv_host_available(const struct kv *kv);                    /* places that a swap may take */
uint32_t kv_host_take(struct kv *kv);                               /* HELD, one reference; there must be one */
void kv_evict(struct kv *kv, uint32_t b, uint64_t fence);           /* its entry goes to the host, or is removed */
uint32_t kv_restore(struct kv *kv, uint32_t place, uint64_t fence); /* HELD: its entry's new block, which is HELD too */
void kv_adopt(struct kv *kv, uint32_t place, uint32_t b);           /* b has the same content: it becomes the entry */

/* prefix_index.c */
struct kv_chain kv_chain_root(const struct kv *kv, struct kv_key key);
uint64_t kv_chain_hash(const struct kv *kv, const struct kv_chain *c, const uint32_t *ids);
/* The entry that holds these tokens behind that chain, proved; KV_NONE when there is none. */
uint32_t kv_index_find(
    const struct kv *kv, const struct kv_chain *c, uint64_t hash, struct kv_key key, const uint32_t *ids);
void kv_index_insert(
    struct kv *kv, uint32_t b, const struct kv_chain *c, uint64_t hash, struct kv_key key, const uint32_t *ids);
void kv_index_remove(struct kv *kv, uint32_t entry);
void kv_index_move(struct kv *kv, uint32_t from, uint32_t to); /* entry and proof; `to` has none yet */
/* Go one block further. */
void kv_chain_step(const struct kv *kv, struct kv_chain *c, uint32_t entry);

/* table.c */
struct kv_sequence *kv_seq_of(const struct kv *kv, struct kv_seq s); /* asserts that it is open */

static inline bool kv_is_on_host(const struct kv *kv, uint32_t entry)
{
    return entry >= kv->device.n;
}

static inline struct kv_block *kv_entry(const struct kv *kv, uint32_t entry)
{
    return kv_is_on_host(kv, entry) ? &kv->host.blocks[entry - kv->device.n] : &kv->device.blocks[entry];
}

static inline uint32_t kv_blocks_for(const struct kv *kv, uint32_t n_tokens)
{
    return n_tokens / kv->o.block_tokens + (n_tokens % kv->o.block_tokens != 0);
}

#endif
