/* From an expression to a machine with free moves, built backwards: nfa_expr(x, next) gives the state from which x and
 * then `next` is read, so sequences need no moves in between.
 *
 * A character is one to four bytes. A range of characters becomes ranges of bytes by splitting it where the number of
 * bytes changes and then where the following bytes do not run over all of 80..BF; surrogates have no UTF-8 and are left
 * out. Classes of many ranges are made once as a small deterministic machine and copied. */
#include "base/limits.h"
#include "grammar/build.h"

#define CLASS_RANGES_INLINE 8 /* more ranges than this: make the class's own machine first */

void nfa_init(struct nfa *m, struct build *b, bool calls)
{
    *m = (struct nfa){.b = b, .calls = calls};
    (void)nfa_state(m); /* 0: nothing follows */
    m->final = nfa_state(m);
}

uint32_t nfa_state(struct nfa *m)
{
    struct nfa_state *grown = build_grow(m->b, m->states, m->n_states, &m->cap_states, 1, sizeof *m->states);
    if (grown == NULL || !build_steps(m->b, 1))
        return 0;
    m->states = grown;
    m->states[m->n_states] = (struct nfa_state){NONE32, NONE32, NONE32};
    return m->n_states++;
}

void nfa_edge(struct nfa *m, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to)
{
    struct nfa_edge *grown = build_grow(m->b, m->edges, m->n_edges, &m->cap_edges, 1, sizeof *m->edges);
    if (grown == NULL || build_failed(m->b))
        return;
    m->edges = grown;
    m->edges[m->n_edges] = (struct nfa_edge){to, m->states[from].first, lo, hi};
    m->states[from].first = m->n_edges++;
}

void nfa_empty(struct nfa *m, uint32_t from, uint32_t to)
{
    nfa_edge(m, from, 1, 0, to);
}

/* n bytes of 80..BF, then next; made once per class (shared[n]). */
static uint32_t any_tail(struct nfa *m, uint32_t n, uint32_t next, uint32_t shared[4])
{
    if (n == 0)
        return next;
    if (shared[n] == 0) {
        const uint32_t rest = any_tail(m, n - 1, next, shared);
        shared[n] = nfa_state(m);
        nfa_edge(m, shared[n], 0x80, 0xBF, rest);
    }
    return shared[n];
}

static bool all_are(const uint8_t *p, uint32_t n, uint8_t byte)
{
    for (uint32_t i = 0; i < n; i++)
        if (p[i] != byte)
            return false;
    return true;
}

static void byte_ranges(
    struct nfa *m, uint32_t from, const uint8_t *lo, const uint8_t *hi, uint32_t n, uint32_t next, uint32_t shared[4])
{
    static const uint8_t first[4] = {0x80, 0x80, 0x80, 0x80}, last[4] = {0xBF, 0xBF, 0xBF, 0xBF};
    if (n == 1) {
        nfa_edge(m, from, lo[0], hi[0], next);
        return;
    }
    uint8_t a = lo[0], z = hi[0];
    if (a == z) {
        if (all_are(lo + 1, n - 1, 0x80) && all_are(hi + 1, n - 1, 0xBF)) {
            nfa_edge(m, from, a, a, any_tail(m, n - 1, next, shared));
            return;
        }
        const uint32_t mid = nfa_state(m);
        nfa_edge(m, from, a, a, mid);
        byte_ranges(m, mid, lo + 1, hi + 1, n - 1, next, shared);
        return;
    }
    if (!all_are(lo + 1, n - 1, 0x80)) {
        const uint32_t mid = nfa_state(m);
        nfa_edge(m, from, a, a, mid);
        byte_ranges(m, mid, lo + 1, last, n - 1, next, shared);
        a++;
    }
    if (!all_are(hi + 1, n - 1, 0xBF)) {
        const uint32_t mid = nfa_state(m);
        nfa_edge(m, from, z, z, mid);
        byte_ranges(m, mid, first, hi + 1, n - 1, next, shared);
        z--;
    }
    if (a <= z)
        nfa_edge(m, from, a, z, any_tail(m, n - 1, next, shared));
}

static uint32_t encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 63));
        out[2] = (uint8_t)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 63));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 63));
    out[3] = (uint8_t)(0x80 | (c & 63));
    return 4;
}

static void class_edges(struct nfa *m, uint32_t from, const struct code_range *r, uint32_t n, uint32_t next)
{
    static const struct code_range by_bytes[] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    uint32_t shared[4] = {0};
    for (uint32_t i = 0; i < n && build_steps(m->b, 1); i++) {
        for (size_t k = 0; k < COUNT_OF(by_bytes); k++) {
            const uint32_t lo = MAX(r[i].from, by_bytes[k].from), hi = MIN(r[i].to, by_bytes[k].to);
            if (lo > hi)
                continue;
            uint8_t a[4], z[4];
            const uint32_t bytes = encode(lo, a);
            (void)encode(hi, z);
            byte_ranges(m, from, a, z, bytes, next, shared);
        }
    }
}

static uint32_t nfa_dfa(struct nfa *m, const struct dfa *d, uint32_t next)
{
    const uint32_t base = m->n_states;
    for (uint32_t i = 0; i < d->n; i++)
        (void)nfa_state(m);
    for (uint32_t i = 0; i < d->n && !build_failed(m->b); i++) {
        for (uint32_t k = d->edge_at[i]; k < d->edge_at[i + 1]; k++)
            nfa_edge(m, base + i, d->edges[k].lo, d->edges[k].hi, base + d->edges[k].to);
        if (d->accept[i])
            nfa_empty(m, base + i, next);
    }
    return build_failed(m->b) ? 0 : base;
}

static uint32_t nfa_class(struct nfa *m, expr_id id, uint32_t next)
{
    struct build *b = m->b;
    const struct expr *x = &b->exprs[id];
    if (x->n > CLASS_RANGES_INLINE && x->class_dfa == NULL) {
        struct nfa own;
        nfa_init(&own, b, false);
        const uint32_t start = nfa_state(&own);
        class_edges(&own, start, x->u.ranges, x->n, own.final);
        const struct dfa *d = dfa_of_nfa(&own, start);
        b->exprs[id].class_dfa = d;
    }
    x = &b->exprs[id];
    if (build_failed(b))
        return 0;
    if (x->class_dfa != NULL)
        return nfa_dfa(m, x->class_dfa, next);
    const uint32_t s = nfa_state(m);
    class_edges(m, s, x->u.ranges, x->n, next);
    return s;
}

static uint32_t nfa_repeat(struct nfa *m, const struct expr *x, uint32_t next)
{
    uint32_t at = next;
    const expr_id kid = x->u.kid;
    const uint32_t min = x->min, max = x->max;
    if (max == EXPR_UNBOUNDED) {
        at = nfa_state(m);
        nfa_empty(m, at, next);
        const uint32_t body = nfa_expr(m, kid, at);
        nfa_empty(m, at, body);
    } else {
        for (uint32_t i = min; i < max && build_steps(m->b, 1); i++) {
            const uint32_t maybe = nfa_state(m), body = nfa_expr(m, kid, at);
            nfa_empty(m, maybe, next);
            nfa_empty(m, maybe, body);
            at = maybe;
        }
    }
    for (uint32_t i = 0; i < min && build_steps(m->b, 1); i++)
        at = nfa_expr(m, kid, at);
    return at;
}

static uint32_t nfa_graph(struct nfa *m, expr_id id, uint32_t next)
{
    struct build *b = m->b;
    const uint32_t n = b->exprs[id].max, base = m->n_states;
    for (uint32_t i = 0; i < n; i++)
        (void)nfa_state(m);
    for (uint32_t i = 0; i < b->exprs[id].n && !build_failed(b); i++) {
        const struct expr_edge g = b->exprs[id].u.graph[i];
        nfa_empty(m, base + g.from, nfa_expr(m, g.x, base + g.to));
    }
    nfa_empty(m, base + n - 1, next);
    return build_failed(b) ? 0 : base;
}

static uint32_t nfa_call(struct nfa *m, const struct expr *x, uint32_t next)
{
    const uint32_t s = nfa_state(m);
    if (build_failed(m->b))
        return 0;
    m->states[s].call = x->rule - 1;
    m->states[s].call_to = next;
    if (x->nullable)
        nfa_empty(m, s, next);
    return s;
}

uint32_t nfa_expr(struct nfa *m, expr_id id, uint32_t next)
{
    struct build *b = m->b;
    if (!build_steps(b, 1))
        return 0;
    const struct expr *x = &b->exprs[id];
    if (m->calls && x->rule != 0 && id != m->top)
        return nfa_call(m, x, next);
    if (id == m->top)
        m->top = 0; /* inside itself it is a call */
    switch (x->type) {
    case EXPR_NEVER: return 0;
    case EXPR_EMPTY: return next;
    case EXPR_BYTES:
        for (uint32_t i = x->n; i-- > 0 && !build_failed(b);) {
            const uint32_t s = nfa_state(m);
            nfa_edge(m, s, (uint8_t)x->u.bytes[i], (uint8_t)x->u.bytes[i], next);
            next = s;
        }
        return next;
    case EXPR_CLASS: return nfa_class(m, id, next);
    case EXPR_SEQ:
        for (uint32_t i = x->n; i-- > 0 && !build_failed(b);)
            next = nfa_expr(m, b->exprs[id].u.kids[i], next);
        return next;
    case EXPR_ALT: {
        const uint32_t s = nfa_state(m);
        for (uint32_t i = 0; i < b->exprs[id].n && !build_failed(b); i++)
            nfa_empty(m, s, nfa_expr(m, b->exprs[id].u.kids[i], next));
        return s;
    }
    case EXPR_REPEAT: return nfa_repeat(m, x, next);
    case EXPR_DFA: return nfa_dfa(m, x->u.dfa, next);
    case EXPR_GRAPH: return nfa_graph(m, id, next);
    case EXPR_RULE: return nfa_expr(m, x->u.kid, next);
    }
    return 0;
}
