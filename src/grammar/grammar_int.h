/* What the files of grammar share. Front ends (schema*.c, regex.c, ebnf.c, structure.c, choice in grammar.c) build
 * expressions; automaton.c turns them into the byte-level pushdown automaton; walk.c, mask.c and vocab.c use it.
 *
 * Two layers:
 *   lang   a regular language over bytes as a complete, minimal DFA: regular expressions, their products and
 *          complements, lengths. Where several conditions on one string meet (pattern and maxLength, two patterns of an
 *          allOf, keys that are not any of these), they meet here, on the text before JSON escapes it.
 *   expr   a context-free expression over bytes, langs and rules: what a front end returns.
 *
 * Everything is made in one struct build with an arena, counts its steps and memory, and is thrown away when the
 * automaton is made. */
#ifndef GRAMMAR_GRAMMAR_INT_H
#define GRAMMAR_GRAMMAR_INT_H

#include "base/mem.h"
#include "grammar/grammar.h"

struct build; /* arena, counters, rules; the first error */

typedef uint32_t expr_id; /* of an expression in its build */
#define EXPR_UNBOUNDED UINT32_MAX

/* ---- lang.c, regex.c: NULL with the error in e; all are bounded by the build ---- */
struct lang;
struct code_range {
    uint32_t from, to; /* code points, both included */
};
/* The documented dialect; anchored = the whole text must match (else it is searched for, as JSON schema's pattern). */
struct lang *lang_regex(struct build *b, struct str pattern, bool anchored, struct error *e);
struct lang *lang_text(struct build *b, struct str utf8, struct error *e);
struct lang *lang_any(struct build *b, struct error *e);                                /* every UTF-8 text */
struct lang *lang_length(struct build *b, uint32_t min, uint32_t max, struct error *e); /* in characters */
struct lang *lang_and(struct build *b, const struct lang *x, const struct lang *y, struct error *e);
struct lang *lang_or(struct build *b, const struct lang *x, const struct lang *y, struct error *e);
struct lang *lang_not(struct build *b, const struct lang *x, struct error *e); /* among UTF-8 texts */
/* A DFA by its edges: state 0 begins; at most one edge for a state and a byte; what has none is dead. Made minimal. */
struct lang_edge {
    uint32_t from, to;
    uint8_t lo, hi; /* bytes, both included */
};
struct lang *lang_edges(struct build *b, uint32_t n_states, const struct lang_edge *edge, uint32_t n_edges,
    const bool *is_final, struct error *e);
bool lang_is_empty(const struct lang *x);
bool lang_has(const struct lang *x, struct str text);

/* ---- expr.c ---- */
expr_id expr_bytes(struct build *b, struct str bytes);
expr_id expr_class(struct build *b, const struct code_range *r, uint32_t n); /* one character */
expr_id expr_seq(struct build *b, const expr_id *x, uint32_t n);             /* n = 0: the empty text */
expr_id expr_alt(struct build *b, const expr_id *x, uint32_t n);             /* n = 0: nothing matches */
expr_id expr_repeat(struct build *b, expr_id x, uint32_t min, uint32_t max); /* EXPR_UNBOUNDED */
expr_id expr_lang(struct build *b, const struct lang *x);                    /* as it is */
expr_id expr_json_string(struct build *b, const struct lang *x);             /* in quotes, escaped as JSON */
expr_id expr_control(struct build *b, struct str name);                      /* a control token */
/* A graph whose edges are expressions: from state 0 to state n_states - 1 (objects with optional members and counts). A
 * state is shared, not copied, by the edges that reach it. */
struct expr_edge {
    uint32_t from, to;
    expr_id x;
};
expr_id expr_graph(struct build *b, uint32_t n_states, const struct expr_edge *edge, uint32_t n_edges);
expr_id expr_rule_new(struct build *b); /* a name for something defined later */
void expr_rule_set(struct build *b, expr_id rule, expr_id x);

/* ---- front ends ---- */
enum err schema_build(struct build *b, struct str text, enum grammar_whitespace ws, expr_id *out, struct error *e);
enum err schema_any_object(struct build *b, enum grammar_whitespace ws, expr_id *out, struct error *e);
enum err ebnf_build(struct build *b, struct str text, expr_id *out, struct error *e);
enum err structure_build(struct build *b, struct str text, enum grammar_whitespace ws, expr_id *out, struct error *e);

#endif
