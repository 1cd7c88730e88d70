/* kv: who holds which block of the KV cache. Owns the block pool, every sequence's block table, the prefix index and
 * the places of the host swap space. Integers only: it never sees a device pointer, so it runs under the simulator as
 * it runs under a model. What is to be copied where comes out as pairs of block numbers, and the caller has it done.
 *
 * One struct kv is one KV group: one block size, one pool, one table per sequence. A draft model is a second struct kv.
 *
 * The life of a block, and the call that moves it:
 *
 *            kv_seq_grow, kv_seq_open            kv_seq_close, kv_seq_truncate, kv_seq_trim, kv_swap_out
 *    FREE ─────────────────────────► HELD ─────────────────────────────────────► PARKED behind a fence
 *     ▲                               ▲ │ last reference gone, published              │ kv_fence_done
 *     │ taken when FREE is empty,     │ ▼                                             ▼
 *     └── oldest first ────────── CACHED (also behind its fence) ◄────────────────── FREE
 *             │                         kv_seq_open finds it again: HELD
 *             ▼ content and entry: to a place on the host, CACHED there until kv_seq_open brings them back into a block
 *
 * The host's places have the same states. HELD are those of swapped sequences, which come first: they take the oldest
 * CACHED ones when none is FREE.
 *
 * Invariants, checked by kv_check:
 *   1  free + held + cached + parked = total, and every block is in exactly one state
 *   2  a block's reference count is the number of table entries that name it
 *   3  nothing writes into a block that is published or has more than one reference: kv_seq_grow copies first
 *   4  a published block is full, final, and its entry can be proved: hash, parent entry and token ids are stored. An
 *      entry lies in one block or in one place, and takes its proof along when it moves
 *   5  a sequence holds exactly ceil((tokens + lookahead) / block size) blocks, less those trimmed behind a window
 *
 * A prefix hit is proved, never believed: the chained hash finds a candidate, then the parent entry and the stored
 * token ids must be equal. The chain starts from a key (model, adapter, salt), so tenants with other salts share
 * nothing.
 *
 * A step's copies are made in this order: evictions to the host, swaps out, back from the host and swaps in, copies of
 * blocks; then its rows.
 *
 * Fences. Blocks that a flying step may still read or write are parked behind that step's number and come back when
 * the caller says that the step is done. Fence 0 is always done. Steps run in order, so what a sequence gives up behind
 * one step its other holders may write in the next; a sequence that has rows in the plan being written gives up nothing
 * but its lookahead in that plan.
 *
 * Threads: the engine thread. Nothing allocates after kv_new. */
#ifndef KV_KV_H
#define KV_KV_H

#include "base/base.h"

struct kv;

/* A sequence's place in kv; one-field so that it cannot be taken for a block or a request. */
struct kv_seq {
    uint32_t v;
};
#define KV_SEQ_NONE ((struct kv_seq){UINT32_MAX})

struct kv_options {
    uint32_t n_blocks;       /* of the device pool */
    uint32_t n_host_blocks;  /* places of the swap space; 0 = no swapping, and what is evicted is forgotten */
    uint32_t block_tokens;   /* a multiple of 16 */
    uint32_t seqs_max;       /* open sequences, swapped ones included */
    uint32_t seq_blocks_max; /* of one table: ceil(context / block_tokens) */
    bool prefix_cache;
};

enum err kv_new(const struct kv_options *o, struct kv **out, struct error *e) MUST_CHECK;
void kv_free(struct kv *kv); /* NULL is fine */

/* What a chain of hashes starts from. Equal prompts under different keys never share a block. */
struct kv_key {
    uint64_t numerics; /* weights, kernel rows and what they chose, KV dtype */
    uint64_t adapter;  /* 0 = none */
    uint64_t salt;     /* tenant or cache_salt; 0 = none */
};

struct kv_copy {
    uint32_t src, dst;
};

/* Where the calls of one step write down which prefixes are to be copied: out, evicted blocks to places; in, places to
 * blocks. The caller lends it before the step's calls and takes it back (NULL) after them. Without one, or where it is
 * full, evicted blocks are forgotten and entries on the host are not found. */
struct kv_tier {
    struct kv_copy *out, *in;
    uint32_t n_out, n_in, max; /* max: of each */
};
void kv_tier_use(struct kv *kv, struct kv_tier *t);

enum kv_hit { KV_MISS, KV_HIT_PREFIX, KV_HIT_EXACT };

/* Open a sequence for ids[0..n): found blocks are referenced, and *n_found tokens of them need not be computed. An
 * exact hit (every full block of ids) gives n_found = n when n is a multiple of the block size; the caller recomputes
 * the last token without writing. What is found on the host takes blocks from the pool, as far as there are any; fence:
 * the step that copies it in. lookup false opens it empty. ERR_AGAIN when all sequences are taken. */
enum err kv_seq_open(struct kv *kv, struct kv_key key, const uint32_t *ids, uint32_t n, bool lookup, uint64_t fence,
    struct kv_seq *out, uint32_t *n_found, enum kv_hit *hit) MUST_CHECK;

/* How many tokens of ids kv_seq_open would find now; *n_host: blocks of them that are on the host (NULL is fine).
 * Touches nothing. For admission and for ordering a queue. */
uint32_t kv_peek(const struct kv *kv, struct kv_key key, const uint32_t *ids, uint32_t n, uint32_t *n_host);

/* Make room for positions up to n_tokens (exclusive), of which those from first_write on will be written now. A block
 * about to be written that is shared or published is replaced by a copy: *copy is set and *n_copies is 1, else 0; at
 * most one block can need it. fence: the step that makes the copy, which still reads the source. All or nothing:
 * ERR_AGAIN when there are not enough blocks, with nothing changed. */
enum err kv_seq_grow(struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint32_t first_write, struct kv_copy *copy,
    uint32_t *n_copies, uint64_t fence) MUST_CHECK;

/* Blocks that kv_seq_grow would take from the pool for that (copies included). */
uint32_t kv_seq_need(const struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint32_t first_write);

/* A second sequence with the same blocks for positions 0 .. n_tokens-1. ERR_AGAIN when all sequences are taken. */
enum err kv_seq_fork(struct kv *kv, struct kv_seq parent, uint32_t n_tokens, struct kv_seq *out) MUST_CHECK;

/* Tokens 0 .. n-1 are computed and final: enter the full blocks among them into the index. ids are the sequence's own,
 * all of them from position 0. Cheap when nothing became full. A block whose content is already in the index stays
 * private. */
void kv_seq_publish(struct kv *kv, struct kv_seq s, const uint32_t *prompt, uint32_t n_prompt, const uint32_t *output,
    uint32_t n_final);

/* Give back what lies at positions >= n_tokens (refused speculation), or wholly before position n (a sliding window).
 */
void kv_seq_truncate(struct kv *kv, struct kv_seq s, uint32_t n_tokens, uint64_t fence);
void kv_seq_trim(struct kv *kv, struct kv_seq s, uint32_t before, uint64_t fence);

/* Give everything back; published blocks stay findable. The handle is dead. */
void kv_seq_close(struct kv *kv, struct kv_seq s, uint64_t fence);

/* Swap: out copies every block the sequence alone holds to places on the host (shared published ones too: they may be
 * evicted meanwhile) and gives the device blocks back behind the fence; in takes device blocks again, and gives the
 * places back behind its fence, which therefore is the step that copies them in. copies has room for seq_blocks_max
 * pairs: device -> host for out, host -> device for in. ERR_AGAIN: no room on that side, nothing changed. */
enum err kv_swap_out(
    struct kv *kv, struct kv_seq s, struct kv_copy *copies, uint32_t *n_copies, uint64_t fence) MUST_CHECK;
enum err kv_swap_in(
    struct kv *kv, struct kv_seq s, struct kv_copy *copies, uint32_t *n_copies, uint64_t fence) MUST_CHECK;
bool kv_seq_is_swapped(const struct kv *kv, struct kv_seq s);

/* The table: block ids of positions 0.., KV_BLOCK_NONE (UINT32_MAX) where trimmed. Borrowed until the next call. */
const uint32_t *kv_seq_table(const struct kv *kv, struct kv_seq s, uint32_t *n_blocks);

/* Every step up to this number is done. */
void kv_fence_done(struct kv *kv, uint64_t fence);

/* Forget every cached prefix, on the host too (held blocks stay). For tests and for `POST /reset_prefix_cache`. */
void kv_forget(struct kv *kv);

struct kv_stats {
    uint32_t n_blocks, n_free, n_held, n_cached, n_parked, n_host_free, n_host_cached, n_host;
    uint32_t n_shared;                     /* held with more than one reference */
    uint64_t lookups, exact, prefix, miss; /* kv_seq_open with lookup */
    uint64_t tokens_asked, tokens_found;   /* of those lookups */
    uint64_t published, evicted, copied;   /* blocks */
    uint64_t swapped_out, swapped_in;      /* blocks */
    uint64_t kept, restored;               /* evicted blocks that went to the host; those that came back */
    uint64_t host_hits;                    /* lookups that found some there */
};
void kv_stats(const struct kv *kv, struct kv_stats *out); /* O(1) */
uint32_t kv_available(const struct kv *kv); /* blocks that kv_seq_grow could take now: free and evictable */

/* One byte per block for the dashboard's map: 0 free, 1 cached, 2 parked, 3 held, 4 held and shared. */
void kv_map(const struct kv *kv, uint8_t *out);

/* All invariants, O(blocks + tables); ERR_INTERNAL names the first that is broken. */
enum err kv_check(const struct kv *kv, struct error *e) MUST_CHECK;

#endif
