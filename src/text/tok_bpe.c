/* Byte pair encoding: a word starts as single symbols (bytes, or characters), and as long as two neighbours have a
 * merge, the one with the lowest rank is made, the leftmost of equals first.
 *
 * Two implementations of that one definition. Words of up to SMALL symbols, nearly all of them, keep the rank of every
 * pair in an array and look through it for the smallest: no bookkeeping, everything in the first cache. Longer words
 * use a heap of (rank, position) whose stale entries are noticed when they come up, so time is n log n. bpe_merge_naive
 * is the definition itself, for the tests.
 *
 * A word too long even for the heap to stay in the caches (a megabyte without a space) is encoded in blocks where that
 * is provably the same. When every merge ranks after the merges that make its halves (META_ORDERED; all trained
 * vocabularies are so), a sequence of tokens is the encoding of its text if and only if every two neighbours are the
 * encoding of their own text. So a block may end at any token boundary whose two sides pass that test. */
#include "text/tok_int.h"
#include "text/tok_tables.h"
#include "text/tok_unicode.h"

#include "base/limits.h"

#include <string.h>

#define SMALL       48
#define BLOCK_BYTES (8 * 1024) /* small enough that its arrays stay in the second cache */
#define BLOCK_TRIES 16         /* then the text is one that defeats blocks */
#define NO_RANK     UINT32_MAX

/* ---- the table of merges ---- */

static inline size_t pair_slot(uint32_t left, uint32_t right, size_t mask)
{
    const uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 24 ^ h >> 50) & mask;
}

static inline struct tok_pair_value pair_get(const struct tok *t, uint32_t left, uint32_t right)
{
    const struct tok_merge *slots = t->sec[SEC_MERGES].p;
    const size_t mask = t->sec[SEC_MERGES].bytes / sizeof *slots - 1;
    for (size_t i = pair_slot(left, right, mask);; i = (i + 1) & mask) {
        if (slots[i].left == left && slots[i].right == right)
            return (struct tok_pair_value){slots[i].rank, slots[i].id};
        if (slots[i].left == TOK_NONE)
            return (struct tok_pair_value){NO_RANK, TOK_NONE};
    }
}

bool bpe_pair(const struct tok *t, uint32_t left, uint32_t right, uint32_t *rank, uint32_t *id)
{
    const struct tok_pair_value v = pair_get(t, left, right);
    *rank = v.rank;
    *id = v.id;
    return v.rank != NO_RANK;
}

enum err bpe_table_build(struct tok_build *b, struct tok_merge **out, size_t *n_slots, struct error *e)
{
    size_t n = 16;
    while (n < b->n_merges * 2)
        n *= 2;
    struct tok_merge *slots = mem_array(n, sizeof *slots);
    if (slots == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu merges", b->n_merges);
    memset(slots, 0xFF, n * sizeof *slots);
    bool ordered = true;
    uint32_t *made_at = mem_alloc(b->n * sizeof *made_at); /* lowest rank that makes a token */
    if (made_at == NULL) {
        mem_free(slots);
        return FAIL(e, ERR_NOMEM, "no memory for %zu merges", b->n_merges);
    }
    memset(made_at, 0xFF, b->n * sizeof *made_at);
    for (size_t i = 0; i < b->n_merges; i++) {
        const struct tok_merge m = b->merges[i];
        made_at[m.id] = MIN(made_at[m.id], m.rank);
        size_t s = pair_slot(m.left, m.right, n - 1);
        while (slots[s].left != TOK_NONE && (slots[s].left != m.left || slots[s].right != m.right))
            s = (s + 1) & (n - 1);
        slots[s] = m; /* of two equal merges the later counts, as in `tokenizers` */
    }
    for (size_t i = 0; i < b->n_merges && ordered; i++) {
        const struct tok_merge m = b->merges[i];
        ordered = (made_at[m.left] == NO_RANK || made_at[m.left] < m.rank) &&
                  (made_at[m.right] == NO_RANK || made_at[m.right] < m.rank) && made_at[m.id] == m.rank;
    }
    mem_free(made_at);
    if (ordered)
        b->meta.flags |= META_ORDERED;
    *out = slots;
    *n_slots = n;
    return OK;
}

/* ---- merging ---- */

size_t bpe_merge_naive(const struct tok *t, uint32_t *ids, size_t n)
{
    for (;;) {
        struct tok_pair_value best = {NO_RANK, TOK_NONE};
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct tok_pair_value v = pair_get(t, ids[i], ids[i + 1]);
            if (v.rank < best.rank) {
                best = v;
                at = i;
            }
        }
        if (best.rank == NO_RANK)
            return n;
        ids[at] = best.id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* pairs[i] is the merge of ids[i] and ids[i + 1] for i < n - 1. */
static size_t merge_small(const struct tok *t, uint32_t *ids, struct tok_pair_value *pairs, size_t n)
{
    while (n > 1) {
        uint32_t best = NO_RANK;
        size_t at = 0;
        for (size_t i = 0; i < n - 1; i++) {
            /* cppcheck-suppress uninitvar ; the callers fill n - 1 pairs */
            if (pairs[i].rank < best) {
                best = pairs[i].rank;
                at = i;
            }
        }
        if (best == NO_RANK)
            break;
        ids[at] = pairs[at].id;
        n--;
        for (size_t i = at + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (size_t i = at + 1; i + 1 < n; i++)
            pairs[i] = pairs[i + 1];
        if (at + 1 < n)
            pairs[at] = pair_get(t, ids[at], ids[at + 1]);
        if (at > 0)
            pairs[at - 1] = pair_get(t, ids[at - 1], ids[at]);
    }
    return n;
}

/* The arrays of a long word, all of n entries but the heap. */
struct long_word {
    uint32_t *id, *prev, *next;
    struct tok_pair_value *pair; /* of position i and next[i] */
    uint64_t *heap;              /* rank << 32 | position */
    size_t n_heap;
};

static void heap_down(uint64_t *heap, size_t n, size_t i)
{
    const uint64_t v = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= v)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = v;
}

static void heap_push(struct long_word *w, uint64_t v)
{
    size_t i = w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / 2] > v) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = v;
}

static void long_pair(const struct tok *t, struct long_word *w, uint32_t at)
{
    const uint32_t right = w->next[at];
    if (right == TOK_NONE) {
        w->pair[at].rank = NO_RANK;
        return;
    }
    w->pair[at] = pair_get(t, w->id[at], w->id[right]);
    if (w->pair[at].rank != NO_RANK)
        heap_push(w, (uint64_t)w->pair[at].rank << 32 | at);
}

static bool long_word_init(const struct tok *t, struct tok_ctx *c, struct long_word *w, const uint32_t *ids, size_t n)
{
    /* each merge takes one entry off the heap and puts at most two on: never more than 2n */
    const size_t each = 3 * sizeof(uint32_t) + sizeof(struct tok_pair_value) + 2 * sizeof(uint64_t);
    size_t bytes;
    if (!size_mul(n, each, &bytes) || n >= TOK_NONE || !scratch_reserve(c, &c->model, bytes))
        return ctx_fail(c, ERR_NOMEM, "no memory for a long word"), false;
    w->heap = (uint64_t *)(void *)c->model.p;
    w->pair = (struct tok_pair_value *)(void *)(w->heap + 2 * n);
    w->id = (uint32_t *)(void *)(w->pair + n);
    w->prev = w->id + n;
    w->next = w->prev + n;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->id[i] = ids[i];
        w->prev[i] = i > 0 ? (uint32_t)(i - 1) : TOK_NONE;
        w->next[i] = i + 1 < n ? (uint32_t)(i + 1) : TOK_NONE;
        w->pair[i] = (struct tok_pair_value){NO_RANK, TOK_NONE};
        if (i + 1 < n)
            w->pair[i] = pair_get(t, ids[i], ids[i + 1]);
        if (w->pair[i].rank != NO_RANK)
            w->heap[w->n_heap++] = (uint64_t)w->pair[i].rank << 32 | i;
    }
    for (size_t i = w->n_heap / 2; i-- > 0;)
        heap_down(w->heap, w->n_heap, i);
    return true;
}

static size_t merge_long(const struct tok *t, struct tok_ctx *c, uint32_t *ids, size_t n)
{
    struct long_word w;
    if (!long_word_init(t, c, &w, ids, n))
        return n;
    while (w.n_heap > 0) {
        const uint64_t top = w.heap[0];
        w.heap[0] = w.heap[--w.n_heap];
        if (w.n_heap > 1)
            heap_down(w.heap, w.n_heap, 0);
        const uint32_t at = (uint32_t)top;
        if (w.pair[at].rank != top >> 32) /* the pair has changed, or its left half is gone */
            continue;
        const uint32_t right = w.next[at], after = w.next[right];
        w.id[at] = w.pair[at].id;
        w.pair[right].rank = NO_RANK;
        w.next[at] = after;
        if (after != TOK_NONE)
            w.prev[after] = at;
        long_pair(t, &w, at);
        if (w.prev[at] != TOK_NONE)
            long_pair(t, &w, w.prev[at]);
    }
    size_t out = 0;
    for (uint32_t i = 0; i != TOK_NONE; i = w.next[i])
        ids[out++] = w.id[i];
    return out;
}

size_t bpe_merge(const struct tok *t, struct tok_ctx *c, uint32_t *ids, size_t n)
{
    if (n < 2)
        return n;
    if (n > SMALL)
        return merge_long(t, c, ids, n);
    struct tok_pair_value pairs[SMALL];
    for (size_t i = 0; i + 1 < n; i++)
        pairs[i] = pair_get(t, ids[i], ids[i + 1]);
    return merge_small(t, ids, pairs, n);
}

/* ---- words of bytes ---- */

/* Append the tokens of a run of bytes. Bytes without a token become the unknown token, or nothing. */
static void encode_bytes(const struct tok *t, struct tok_ctx *c, struct str word)
{
    const struct tok_meta *m = t->meta;
    if (c->cap_ids - c->n_ids < word.n && !ctx_grow_ids(c, word.n))
        return;
    uint32_t *ids = c->ids + c->n_ids;
    const unsigned char *u = (const unsigned char *)word.p;
    size_t n = 0;
    for (size_t i = 0; i < word.n; i++) {
        const uint32_t id = m->byte_ids[u[i]] != TOK_NONE ? m->byte_ids[u[i]] : m->unk;
        if (id != TOK_NONE)
            ids[n++] = id;
    }
    if (n == word.n && n >= 2 && n <= SMALL) {
        const struct tok_pair_value *table = t->sec[SEC_BYTE_PAIRS].p;
        struct tok_pair_value pairs[SMALL];
        for (size_t i = 0; i + 1 < n; i++)
            pairs[i] = table[(size_t)u[i] << 8 | u[i + 1]];
        n = merge_small(t, ids, pairs, n);
    } else {
        n = bpe_merge(t, c, ids, n);
    }
    c->n_ids += n;
}

/* Two tokens side by side are what their text encodes to. */
static bool is_stable_pair(const struct tok *t, struct tok_ctx *c, uint32_t left, uint32_t right)
{
    char text[256];
    const struct str a = tok_key_at(t, left), b = tok_key_at(t, right);
    if (a.n == 0 || b.n == 0 || a.n + b.n > sizeof text)
        return false;
    memcpy(text, a.p, a.n);
    memcpy(text + a.n, b.p, b.n);
    const size_t start = c->n_ids;
    encode_bytes(t, c, (struct str){text, a.n + b.n});
    const bool stable =
        c->failure == OK && c->n_ids == start + 2 && c->ids[start] == left && c->ids[start + 1] == right;
    c->n_ids = start;
    return stable;
}

/* A very long word, block by block; see the top of the file. Falls back to one block where no boundary passes. */
static void encode_bytes_in_blocks(const struct tok *t, struct tok_ctx *c, struct str word)
{
    const size_t word_start = c->n_ids;
    size_t at = 0;
    int tries = 0;
    while (at < word.n && c->failure == OK) {
        const size_t left = word.n - at, take = left < 2 * BLOCK_BYTES ? left : BLOCK_BYTES;
        const size_t start = c->n_ids;
        encode_bytes(t, c, (struct str){word.p + at, take});
        if (c->failure != OK)
            return;
        if (start > word_start && !is_stable_pair(t, c, c->ids[start - 1], c->ids[start])) {
            /* give up this boundary: take the token before it back and try one token earlier */
            const uint32_t last = c->ids[start - 1];
            at -= tok_key_at(t, last).n;
            c->n_ids = start - 1;
            if (c->n_ids == word_start || ++tries > BLOCK_TRIES) {
                c->n_ids = word_start;
                encode_bytes(t, c, word);
                return;
            }
            continue;
        }
        tries = 0;
        if (take == left)
            return;
        at += take;
        /* the last tokens of a block were cut by its end: leave them to the next */
        size_t drop = 0;
        while (c->n_ids > start + 1 && drop < BLOCK_BYTES / 16) {
            const size_t bytes = tok_key_at(t, c->ids[c->n_ids - 1]).n;
            drop += bytes;
            at -= bytes;
            c->n_ids--;
        }
    }
}

/* ---- words of characters ---- */

struct unk_run {
    bool open;
};

static bool push_unk(const struct tok *t, struct tok_ctx *c, struct unk_run *run)
{
    const uint32_t unk = t->meta->unk;
    if (unk == TOK_NONE)
        return true;
    if (run->open && (t->meta->flags & META_FUSE_UNK) != 0)
        return true;
    run->open = true;
    return ctx_push(c, unk);
}

/* One character with its prefix or suffix; what is not in the vocabulary becomes byte tokens or the unknown token. */
static bool push_symbol(const struct tok *t, struct tok_ctx *c, struct str symbol, struct unk_run *run)
{
    const uint32_t id = tok_key_find(t, symbol);
    if (id != TOK_NONE) {
        run->open = false;
        return ctx_push(c, id);
    }
    if (t->meta->flags & META_BYTE_FALLBACK) {
        bool all = true;
        for (size_t i = 0; i < symbol.n; i++)
            all = all && t->meta->byte_ids[(unsigned char)symbol.p[i]] != TOK_NONE;
        if (all) {
            run->open = false;
            for (size_t i = 0; i < symbol.n; i++)
                if (!ctx_push(c, t->meta->byte_ids[(unsigned char)symbol.p[i]]))
                    return false;
            return true;
        }
    }
    return push_unk(t, c, run);
}

static void encode_chars(const struct tok *t, struct tok_ctx *c, struct str word)
{
    const struct str prefix = t->pipe.prefix, suffix = t->pipe.suffix;
    const size_t start = c->n_ids;
    struct unk_run run = {false};
    for (size_t at = 0; at < word.n;) {
        size_t n;
        utf8_get(word.p + at, &n);
        struct str symbol = {word.p + at, n};
        const bool first = at == 0, last = at + n == word.n;
        if ((prefix.n > 0 && !first) || (suffix.n > 0 && last)) {
            c->word.n = 0;
            if ((!first && !scratch_add(c, &c->word, prefix)) || !scratch_add(c, &c->word, symbol) ||
                (last && !scratch_add(c, &c->word, suffix)))
                return;
            symbol = (struct str){c->word.p, c->word.n};
        }
        if (!push_symbol(t, c, symbol, &run))
            return;
        at += n;
    }
    c->n_ids = start + bpe_merge(t, c, c->ids + start, c->n_ids - start);
}

void bpe_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    if ((t->meta->flags & META_IGNORE_MERGES) && word.n <= TOK_NAME_BYTES_MAX) {
        const uint32_t id = tok_key_find(t, word);
        if (id != TOK_NONE) {
            ctx_push(c, id);
            return;
        }
    }
    if ((t->meta->flags & META_BYTE_LEVEL) == 0)
        encode_chars(t, c, word);
    else if (word.n > 2 * BLOCK_BYTES && (t->meta->flags & META_ORDERED))
        encode_bytes_in_blocks(t, c, word);
    else
        encode_bytes(t, c, word);
}
