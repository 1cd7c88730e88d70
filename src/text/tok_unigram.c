/* Unigram: of all ways to cut a word into tokens, the one with the highest sum of scores (Viterbi over character
 * positions). Tokens that start at a position are found in a trie whose edges are one hash table of (node, byte).
 *
 * The sums must round exactly as in the original, or a near tie falls the other way: `tokenizers` adds doubles,
 * sentencepiece keeps floats (META_SINGLE_FLOAT). */
#include "text/tok_int.h"
#include "text/tok_tables.h"
#include "text/tok_unicode.h"

#include "base/limits.h"

#include <float.h>
#include <string.h>

#define UNK_PENALTY 10.0 /* below the worst score, as both originals have it */

static inline size_t edge_slot(uint32_t key, size_t mask)
{
    return (size_t)(key * 0x9E3779B1u >> 5) & mask;
}

static uint32_t trie_step(const struct tok_trie_slot *slots, size_t mask, uint32_t node, unsigned char byte)
{
    const uint32_t key = (node << 8 | byte) + 1;
    for (size_t i = edge_slot(key, mask); slots[i].key != 0; i = (i + 1) & mask)
        if (slots[i].key == key)
            return slots[i].child;
    return 0;
}

static bool is_lattice_token(uint8_t flags)
{
    return (flags & (VOCAB_SPECIAL | VOCAB_HOLE | VOCAB_BYTE | VOCAB_UNKNOWN | VOCAB_OUTSIDE)) == 0;
}

/* Nodes of the trie: the distinct prefixes. Bounded by the bytes of all keys. */
static enum err trie_build(struct tok_build *b, struct tok *t, size_t max_nodes, struct error *e)
{
    size_t n_slots = 64;
    while (n_slots < 2 * max_nodes)
        n_slots *= 2;
    TRY(tok_own(
        t, SEC_TRIE, mem_array(n_slots, sizeof(struct tok_trie_slot)), n_slots * sizeof(struct tok_trie_slot), e));
    TRY(tok_own(t, SEC_TRIE_IDS, mem_alloc(max_nodes * sizeof(uint32_t)), max_nodes * sizeof(uint32_t), e));
    struct tok_trie_slot *slots = t->owned[SEC_TRIE];
    uint32_t *ids = t->owned[SEC_TRIE_IDS], n_nodes = 1;
    memset(ids, 0xFF, max_nodes * sizeof *ids);
    for (uint32_t id = 0; id < b->n; id++) {
        const struct str key = tok_key_at(t, id);
        if (!is_lattice_token(b->flags[id]) || key.n == 0)
            continue;
        uint32_t node = 0;
        for (size_t i = 0; i < key.n; i++) {
            const uint32_t want = (node << 8 | (unsigned char)key.p[i]) + 1;
            size_t s = edge_slot(want, n_slots - 1);
            while (slots[s].key != 0 && slots[s].key != want)
                s = (s + 1) & (n_slots - 1);
            if (slots[s].key == 0)
                slots[s] = (struct tok_trie_slot){want, n_nodes++};
            node = slots[s].child;
        }
        ids[node] = id;
    }
    b->meta.n_trie_nodes = n_nodes;
    return OK;
}

enum err unigram_build(struct tok_build *b, struct tok *t, struct error *e)
{
    size_t nodes = 2;
    double worst = DBL_MAX;
    const bool spm = (b->meta.flags & META_SPM) != 0;
    for (uint32_t id = 0; id < b->n; id++) {
        if (is_lattice_token(b->flags[id]))
            nodes += tok_key_at(t, id).n;
        if (spm && (!is_lattice_token(b->flags[id]) || (b->flags[id] & VOCAB_ADDED)))
            continue;
        worst = MIN(worst, b->scores[id]);
    }
    if (nodes >= (1u << 23))
        return FAIL(e, ERR_LIMIT, "the vocabulary's trie has %zu nodes; the limit is %u", nodes, 1u << 23);
    b->meta.unk_score = spm ? (double)((float)worst - (float)UNK_PENALTY) : worst - UNK_PENALTY;
    return trie_build(b, t, nodes, e);
}

struct lattice_node {
    double score;
    uint32_t from; /* TOK_NONE: not reached */
    uint32_t id;
};

/* What a token is worth; a user-defined symbol of sentencepiece more than any other way through its bytes. */
static double token_score(const struct tok *t, uint32_t id, size_t bytes)
{
    const struct tok_meta *m = t->meta;
    if ((m->flags & META_SPM) && (t->view.flags[id] & VOCAB_ADDED))
        return (double)(float)(0.1 * (double)((int)bytes - 1));
    return ((const double *)t->sec[SEC_SCORES].p)[id];
}

static void reach(struct lattice_node *node, double score, size_t from, uint32_t id)
{
    if (node->from == TOK_NONE || score > node->score)
        *node = (struct lattice_node){score, (uint32_t)from, id};
}

static double sum(const struct tok *t, double a, double b)
{
    return t->meta->flags & META_SINGLE_FLOAT ? (double)((float)a + (float)b) : a + b;
}

/* Sums that grow beyond a bound are measured from here on, so that floats keep their precision; at the bound where
 * sentencepiece does it, because a tie may fall the other way. */
static void rebase(struct lattice_node *nodes, size_t at, size_t frontier)
{
    const float here = (float)nodes[at].score;
    if (here >= -100000.0f && here <= 100000.0f)
        return;
    for (size_t i = at; i <= frontier; i++)
        if (i == at || nodes[i].from != TOK_NONE)
            nodes[i].score = (double)((float)nodes[i].score - here);
}

static void fill_lattice(const struct tok *t, struct str word, struct lattice_node *nodes)
{
    const struct tok_trie_slot *slots = t->sec[SEC_TRIE].p;
    const size_t mask = t->sec[SEC_TRIE].bytes / sizeof *slots - 1;
    const uint32_t *ids = t->sec[SEC_TRIE_IDS].p;
    size_t frontier = 0; /* the furthest node reached */
    for (size_t at = 0, n = 0; at < word.n; at += n) {
        utf8_get(word.p + at, &n);
        if (t->meta->flags & META_SINGLE_FLOAT)
            rebase(nodes, at, frontier);
        const double here = nodes[at].score;
        bool has_single = false;
        uint32_t node = 0;
        for (size_t i = at; i < word.n; i++) {
            node = trie_step(slots, mask, node, (unsigned char)word.p[i]);
            if (node == 0)
                break;
            const uint32_t id = ids[node];
            if (id == TOK_NONE)
                continue;
            const size_t bytes = i + 1 - at;
            reach(&nodes[i + 1], sum(t, here, token_score(t, id, bytes)), at, id);
            frontier = MAX(frontier, i + 1);
            has_single = has_single || bytes == n;
        }
        frontier = has_single ? frontier : MAX(frontier, at + n);
        if (!has_single)
            reach(&nodes[at + n], sum(t, here, t->meta->unk_score), at, TOK_NONE);
    }
}

/* An unknown stretch: byte tokens where the vocabulary has them, else the unknown token. */
static bool push_unknown(const struct tok *t, struct tok_ctx *c, struct str text)
{
    if (t->meta->flags & META_BYTE_FALLBACK) {
        bool all = true;
        for (size_t i = 0; i < text.n; i++)
            all = all && t->meta->byte_ids[(unsigned char)text.p[i]] != TOK_NONE;
        for (size_t i = 0; i < text.n && all; i++)
            if (!ctx_push(c, t->meta->byte_ids[(unsigned char)text.p[i]]))
                return false;
        if (all)
            return true;
    }
    if (t->meta->unk == TOK_NONE)
        return ctx_fail(c, ERR_INVALID, "a character is not in the vocabulary, which has no unknown token"), false;
    return ctx_push(c, t->meta->unk);
}

void unigram_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    if (word.n == 0 || word.n >= TOK_NONE || !scratch_reserve(c, &c->model, (word.n + 1) * sizeof(struct lattice_node)))
        return;
    struct lattice_node *nodes = (struct lattice_node *)(void *)c->model.p;
    for (size_t i = 0; i <= word.n; i++)
        nodes[i] = (struct lattice_node){0, TOK_NONE, TOK_NONE};
    fill_lattice(t, word, nodes);
    /* the best path, found backwards, turned round by linking each start to its end */
    size_t end = word.n;
    uint32_t link = TOK_NONE;
    while (end > 0) {
        const uint32_t from = nodes[end].from;
        nodes[end].from = link; /* where the next token ends */
        link = (uint32_t)end;
        end = from;
    }
    for (size_t at = 0; link != TOK_NONE;) {
        size_t stop = link;
        const bool unknown = nodes[stop].id == TOK_NONE;
        while (unknown && (t->meta->flags & META_FUSE_UNK) && nodes[stop].from != TOK_NONE &&
               nodes[nodes[stop].from].id == TOK_NONE)
            stop = nodes[stop].from; /* unknown characters side by side are one */
        if (unknown ? !push_unknown(t, c, (struct str){word.p + at, stop - at}) : !ctx_push(c, nodes[stop].id))
            return;
        at = stop;
        link = nodes[stop].from;
    }
}
