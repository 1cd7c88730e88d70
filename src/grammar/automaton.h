/* The automaton and the vocabulary as the using files of grammar see them: flat, immutable, shared by all threads.
 *
 * The automaton is a pushdown machine over bytes. Each rule is a deterministic machine whose edges are ranges of bytes
 * and calls of rules; a call pushes where to go on. A rule never matches the empty text (calls of those that could have
 * a way around them), so that following calls ends. A counted rule is a loop: its frame counts the rounds.
 *
 * Only what can be completed is there: from every state, with what is on the stack, the text can end within
 * GRAMMAR_DEPTH_MAX frames, and a state's `need` says how many more frames that takes at least. Where depth + need
 * would go beyond the maximum, the way is closed. So a walk never comes to a dead end. */
#ifndef GRAMMAR_AUTOMATON_H
#define GRAMMAR_AUTOMATON_H

#include "base/limits.h"
#include "grammar/build.h"

enum auto_flag {
    AUTO_ACCEPT = 1, /* the rule may end here */
    AUTO_CALLS = 2,
    AUTO_FORCED = 4 /* one byte leads on, and nothing else does */
};

struct auto_state {
    uint32_t edge_at, call_at;
    uint16_t n_edges, n_calls;
    uint16_t need;
    uint8_t flags;
    uint32_t row; /* of `rows`, or NONE32: few edges */
};

struct auto_call {
    uint32_t start, to;
    uint16_t loop; /* 0: an ordinary rule */
    bool tail;     /* nothing follows in the caller: no frame is needed */
};

struct auto_loop {
    uint32_t start, min, max; /* min >= 1 */
};

struct automaton {
    struct auto_state *states; /* the first is where texts start */
    struct dfa_edge *edges;
    struct auto_call *calls;
    struct auto_loop *loops; /* [1..n_loops] */
    uint32_t (*rows)[256];   /* target or NONE32 */
    uint32_t n_states, n_edges, n_calls, n_loops, n_rows;
    bool empty_too; /* the empty text belongs to the grammar */
    void *memory;   /* one block */
    size_t bytes;
};

/* Makes the automaton of an expression. Memory is the automaton's own; the build may go. */
enum err automaton_make(struct build *b, expr_id root, struct automaton *a, struct error *e) MUST_CHECK;
void automaton_fini(struct automaton *a);

static inline uint32_t automaton_next(const struct automaton *a, const struct auto_state *s, uint8_t byte)
{
    if (s->row != NONE32)
        return a->rows[s->row][byte];
    const struct dfa_edge *g = a->edges + s->edge_at;
    for (uint32_t i = 0; i < s->n_edges; i++)
        if (byte <= g[i].hi)
            return byte >= g[i].lo ? g[i].to : NONE32;
    return NONE32;
}

/* ---- vocab.c ---- */

/* A trie as one array in the order of a walk down and to the right. Node 0 is the root. */
struct trie_node {
    uint32_t end;   /* the first node behind this one's subtree */
    uint32_t token; /* the first token that ends here, or NONE32; others by same_as */
    uint16_t depth; /* bytes from the root */
    uint8_t byte;
};

struct trie {
    struct trie_node *nodes;
    uint32_t n;
    /* Children lie far apart in the array where many are below them: the root's by their byte, 0: none; and of the
     * whole vocabulary, theirs by both bytes. */
    uint32_t first[256];
    uint32_t (*second)[256]; /* or NULL */
};

/* The child of a node by its byte, or 0. */
static inline uint32_t trie_child(const struct trie *t, uint32_t at, uint8_t byte)
{
    if (at == 0)
        return t->first[byte];
    if (t->nodes[at].depth == 1 && t->second != NULL)
        return t->second[t->nodes[at].byte][byte];
    uint32_t child = at + 1;
    while (child < t->nodes[at].end && t->nodes[child].byte != byte)
        child = t->nodes[child].end;
    return child < t->nodes[at].end ? child : 0;
}

/* ---- class.c ---- */

#define CLASS_SHORT 16 /* characters: up to here each length has a mask of its own */

/* Tokens by a set of characters: which of them are made of those characters alone. A state that can read such
 * characters one behind the other allows all of these tokens, and only the others have to be tried. */
struct token_class {
    struct token_class *next;
    struct code_range *ranges; /* sorted, apart from each other */
    uint32_t n_ranges;
    uint64_t starts[4];            /* bytes that begin one of the characters */
    uint64_t *all;                 /* mask: tokens of these characters; the last one may be cut short */
    uint64_t *within[CLASS_SHORT]; /* mask: those of at most so many characters */
    struct trie rest;              /* tokens that begin with a byte of `starts` and are not in `all` */
    uint64_t *pure;    /* per node of the vocabulary's trie: all below it are ASCII characters of the class */
    uint32_t *longer;  /* tokens of `all` with CLASS_SHORT characters and more, the longest first */
    uint16_t *lengths; /* of those */
    uint32_t n_longer;
    size_t bytes;
};

struct class_cache; /* with its lock */

struct grammar_vocab {
    uint32_t n; /* ids */
    uint32_t words;
    uint32_t longest;  /* bytes of the longest token */
    uint32_t *same_as; /* per id: the next id with the same bytes, or NONE32 */
    uint32_t *at;      /* n + 1: bytes of each token, a control token's with GRAMMAR_CONTROL before its name */
    char *bytes;
    struct trie trie;
    uint32_t *sorted; /* ids with text, by their bytes */
    uint32_t n_sorted;
    struct class_cache *classes;
    grammar_cut_fn *cut; /* or NULL */
    void *cut_ctx;
};

enum err vocab_trie(
    const struct grammar_vocab *v, const uint32_t *sorted, uint32_t n, struct trie *t, struct error *e) MUST_CHECK;
enum err class_cache_new(struct class_cache **out, struct error *e) MUST_CHECK;
void class_cache_free(struct class_cache *c);
/* The class of these characters, made when it is new. NULL: there is no room for another; nothing is lost but speed. It
 * lives as long as the vocabulary. May be called from any thread; allocates. */
const struct token_class *vocab_class(const struct grammar_vocab *v, const struct code_range *r, uint32_t n);

bool vocab_has_control(const struct grammar_vocab *v, struct str name);
static inline struct str vocab_token(const struct grammar_vocab *v, uint32_t id)
{
    return (struct str){v->bytes + v->at[id], v->at[id + 1] - v->at[id]};
}

#endif
