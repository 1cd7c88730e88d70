/* What the compiling files of grammar share among themselves: the build, its expressions, and the two machines an
 * expression goes through on its way to an automaton.
 *
 *   expr --nfa.c--> struct nfa --dfa.c--> struct dfa --automaton.c--> struct automaton
 *
 * A build fails once: the first error stays in it, everything made afterwards is the expression that matches nothing,
 * and who started the build asks at the end (build_check). So front ends compose freely. Every loop over something that
 * an input can make long pays with build_steps. Threads: one at a time. */
#ifndef GRAMMAR_BUILD_H
#define GRAMMAR_BUILD_H

#include "grammar/grammar_int.h"

#define NONE32 UINT32_MAX

enum expr_type {
    EXPR_NEVER, /* id 0 is one: what a failed build returns */
    EXPR_EMPTY,
    EXPR_BYTES,
    EXPR_CLASS,
    EXPR_SEQ,
    EXPR_ALT,
    EXPR_REPEAT,
    EXPR_DFA,
    EXPR_GRAPH,
    EXPR_RULE
};

struct expr {
    enum expr_type type;
    uint32_t n;        /* bytes, ranges, kids or edges */
    uint32_t min, max; /* of a repeat; max: the states of a graph */
    uint32_t height;   /* 1 + the highest kid; a rule has 1 */
    uint32_t refs;     /* how often it is part of something reachable; automaton.c counts */
    uint32_t size;     /* states it takes when written out, saturating; automaton.c */
    uint32_t rule;     /* number of the rule it became + 1, or 0 */
    uint8_t mark;      /* automaton.c's walk over the expressions */
    bool nullable;     /* final once automaton.c has solved the rules */
    bool expand;       /* a repeat that counting would not read exactly */
    expr_id escaped;   /* memo of escape.c */
    union {
        const char *bytes;
        const struct code_range *ranges; /* sorted, apart from each other */
        const expr_id *kids;
        expr_id kid;           /* of a repeat, or what a rule was set to (0: not yet) */
        const struct dfa *dfa; /* of an EXPR_DFA */
        const struct expr_edge *graph;
    } u;
    const struct dfa *class_dfa; /* memo: a class of many ranges as a machine */
    const char *name;            /* of a rule, for messages; or NULL */
};

struct build {
    struct arena arena;
    uint64_t steps, steps_max;
    const struct grammar_vocab *vocab; /* may be NULL: no control tokens then */
    struct error error;                /* the first */
    struct expr *exprs;
    uint32_t n_exprs, cap_exprs;
    expr_id any_char, json_char; /* memos: any character, plain and escaped */
};

void build_init(struct build *b, const struct grammar_vocab *vocab);
void build_fini(struct build *b);
enum err build_check(const struct build *b, struct error *e);
static inline bool build_failed(const struct build *b)
{
    return b->error.code != OK;
}
bool build_steps(struct build *b, uint64_t n); /* false: beyond GRAMMAR_STEPS_MAX, the build has failed */
void *build_take(struct build *b, size_t count, size_t each); /* zeroed; NULL: the build has failed */
/* An array in the arena with room for n more; the old one is left behind, so sizes double. */
void *build_grow(struct build *b, void *array, size_t used, uint32_t *cap, size_t n, size_t each);
bool build_is_control(const struct build *b, struct str name); /* of the vocabulary */
void build_rule_name(struct build *b, expr_id rule, struct str name);

expr_id expr_new(struct build *b, enum expr_type type, uint32_t height); /* 0 when the build failed */
expr_id expr_any_char(struct build *b);
expr_id expr_byte(struct build *b, uint8_t byte);
expr_id expr_dfa(struct build *b, const struct dfa *d);
expr_id expr_escaped(struct build *b, expr_id x); /* escape.c: the same texts as JSON strings say them */
expr_id expr_hex_range(struct build *b, uint32_t lo, uint32_t hi); /* escape.c: \uXXXX behind the \u */
/* Sorts and joins; the result lies in the arena. */
const struct code_range *ranges_sorted(struct build *b, const struct code_range *r, uint32_t *n);
const struct code_range *ranges_not(struct build *b, const struct code_range *r, uint32_t *n);

/* ---- regex.c ---- */
expr_id regex_expr(
    struct build *b, struct str pattern, bool anchored, struct error *e); /* 0: matches nothing, or failed */
bool regex_property(struct build *b, struct str name, const struct code_range **out, uint32_t *n); /* property.c */

/* ---- nfa.c: states with edges over byte ranges, edges without bytes, and calls ---- */
struct nfa_edge {
    uint32_t to, next; /* next edge of the same state, or NONE32 */
    uint8_t lo, hi;    /* lo > hi: an edge without a byte */
};

struct nfa_state {
    uint32_t first;         /* edge, or NONE32 */
    uint32_t call, call_to; /* rule number, or NONE32 */
};

struct nfa {
    struct build *b;
    bool calls; /* expressions that became rules are called; otherwise everything is written out */
    expr_id top;
    struct nfa_state *states;
    struct nfa_edge *edges;
    uint32_t n_states, cap_states, n_edges, cap_edges;
    uint32_t final;
};

void nfa_init(struct nfa *m, struct build *b, bool calls);
uint32_t nfa_state(struct nfa *m);
void nfa_edge(struct nfa *m, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
void nfa_empty(struct nfa *m, uint32_t from, uint32_t to);
uint32_t nfa_expr(struct nfa *m, expr_id x, uint32_t next); /* the state from which x and then `next` is read */

/* ---- dfa.c: start state 0, no edges to where nothing can follow ---- */
struct dfa_edge {
    uint32_t to;
    uint8_t lo, hi;
};

struct dfa_call {
    uint32_t rule, to;
};

struct dfa {
    uint32_t n;        /* states, at least 1 */
    uint32_t *edge_at; /* n + 1: where the edges of a state begin; sorted by lo, apart from each other */
    struct dfa_edge *edges;
    uint32_t *call_at; /* n + 1, or NULL: none */
    struct dfa_call *calls;
    bool *accept;
};

/* NULL: the build has failed. */
const struct dfa *dfa_of_nfa(struct nfa *m, uint32_t start);
const struct dfa *dfa_of_expr(struct build *b, expr_id x); /* written out, no calls */
enum dfa_op { DFA_AND, DFA_OR, DFA_MINUS };
const struct dfa *dfa_product(struct build *b, const struct dfa *x, const struct dfa *y, enum dfa_op op);
const struct dfa *dfa_minimal(struct build *b, const struct dfa *d);  /* d itself when it is too large to try */
uint32_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte); /* NONE32: nowhere */

#endif
