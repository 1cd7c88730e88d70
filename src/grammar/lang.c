/* Regular languages of texts. A lang is kept as the expression it was made from as long as it is one, and becomes a
 * deterministic machine only when languages are combined: so a length of ten thousand characters, or a pattern with
 * large counts, stays a count and does not become ten thousand states. Lengths meet lengths as numbers.
 *
 * Every lang is a set of UTF-8 texts; the complement is taken among those. */
#include "base/limits.h"
#include "grammar/build.h"

struct lang {
    struct build *b;
    expr_id expr;          /* 0: only a machine */
    const struct dfa *dfa; /* NULL until it is needed */
    bool is_length;        /* every text of min to max characters */
    uint32_t min, max;
};

static struct lang *lang_new(struct build *b, struct lang l, struct error *e)
{
    struct lang *x = build_take(b, 1, sizeof *x);
    if (x == NULL || build_failed(b)) {
        (void)build_check(b, e);
        return NULL;
    }
    *x = l;
    x->b = b;
    return x;
}

static const struct dfa *lang_dfa(const struct lang *x)
{
    if (x->dfa == NULL)
        ((struct lang *)x)->dfa = dfa_of_expr(x->b, x->expr);
    return x->dfa;
}

struct lang *lang_regex(struct build *b, struct str pattern, bool anchored, struct error *e)
{
    const expr_id x = regex_expr(b, pattern, anchored, e);
    return x == 0 && build_failed(b) ? NULL : lang_new(b, (struct lang){.expr = x}, e);
}

struct lang *lang_text(struct build *b, struct str utf8, struct error *e)
{
    return lang_new(b, (struct lang){.expr = expr_bytes(b, utf8)}, e);
}

struct lang *lang_length(struct build *b, uint32_t min, uint32_t max, struct error *e)
{
    const expr_id x = expr_repeat(b, expr_any_char(b), min, max);
    return lang_new(b, (struct lang){.expr = x, .is_length = true, .min = min, .max = max}, e);
}

struct lang *lang_any(struct build *b, struct error *e)
{
    return lang_length(b, 0, EXPR_UNBOUNDED, e);
}

static bool is_any(const struct lang *x)
{
    return x->is_length && x->min == 0 && x->max == EXPR_UNBOUNDED;
}

static struct lang *lang_product(
    struct build *b, const struct lang *x, const struct lang *y, enum dfa_op op, struct error *e)
{
    return lang_new(b, (struct lang){.dfa = dfa_product(b, lang_dfa(x), lang_dfa(y), op)}, e);
}

struct lang *lang_and(struct build *b, const struct lang *x, const struct lang *y, struct error *e)
{
    if (x->is_length && y->is_length)
        return lang_length(b, MAX(x->min, y->min), MIN(x->max, y->max), e);
    if (is_any(x) || is_any(y))
        return lang_new(b, is_any(x) ? *y : *x, e);
    return lang_product(b, x, y, DFA_AND, e);
}

struct lang *lang_or(struct build *b, const struct lang *x, const struct lang *y, struct error *e)
{
    if (x->expr != 0 && y->expr != 0)
        return lang_new(b, (struct lang){.expr = expr_alt(b, (const expr_id[]){x->expr, y->expr}, 2)}, e);
    return lang_product(b, x, y, DFA_OR, e);
}

struct lang *lang_not(struct build *b, const struct lang *x, struct error *e)
{
    struct lang *any = lang_any(b, e);
    return any == NULL ? NULL : lang_product(b, any, x, DFA_MINUS, e);
}

struct lang *lang_edges(struct build *b, uint32_t n_states, const struct lang_edge *edge, uint32_t n_edges,
    const bool *is_final, struct error *e)
{
    struct nfa m;
    nfa_init(&m, b, false);
    const uint32_t base = m.n_states;
    for (uint32_t i = 0; i < n_states; i++)
        if (nfa_state(&m) != 0 && is_final[i])
            nfa_empty(&m, base + i, m.final);
    for (uint32_t i = 0; i < n_edges && !build_failed(b); i++)
        nfa_edge(&m, base + edge[i].from, edge[i].lo, edge[i].hi, base + edge[i].to);
    return lang_new(b, (struct lang){.dfa = dfa_of_nfa(&m, base)}, e);
}

bool lang_is_empty(const struct lang *x)
{
    if (x->dfa == NULL) /* every regular expression but one matches something: constructors see to it */
        return x->expr == 0;
    for (uint32_t s = 0; s < x->dfa->n; s++)
        if (x->dfa->accept[s])
            return false;
    return true;
}

bool lang_has(const struct lang *x, struct str text)
{
    if (x->is_length) {
        size_t n = 0;
        for (size_t i = 0; i < text.n; i++)
            n += ((uint8_t)text.p[i] & 0xC0) != 0x80;
        return n >= x->min && n <= x->max && utf8_is_valid(text);
    }
    const struct dfa *d = lang_dfa(x);
    if (d == NULL) /* the build has failed: whoever made it will hear */
        return false;
    uint32_t s = 0;
    for (size_t i = 0; i < text.n && s != NONE32; i++)
        s = dfa_next(d, s, (uint8_t)text.p[i]);
    return s != NONE32 && d->accept[s];
}

expr_id expr_lang(struct build *b, const struct lang *x)
{
    return x->expr != 0 ? x->expr : expr_dfa(b, x->dfa);
}

expr_id expr_json_string(struct build *b, const struct lang *x)
{
    const expr_id quote = expr_byte(b, '"');
    return expr_seq(b, (const expr_id[]){quote, expr_escaped(b, expr_lang(b, x)), quote}, 3);
}
