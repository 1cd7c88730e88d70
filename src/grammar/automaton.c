/* From expressions to the automaton.
 *
 * 1. survey: which expressions are shared or contain themselves, how large each is when written out, which are
 *    nullable.
 * 2. choose: what contains itself becomes a rule, and so does what is large and used more than once (otherwise a chain
 *    of doublings would be exponential). A repetition of many rounds becomes a counted rule. Everything else is written
 *    out in place, because a deterministic machine without calls is the fastest to walk.
 * 3. make each rule's machine, put them side by side, find out which states can be completed and how many frames they
 *    need, and keep what is reachable.
 *
 * Counting is exact only where it is plain when a round has ended: no byte that may continue a round at its possible
 * end may also begin the next one. Repetitions that turn out otherwise are written out, and everything is made
 * again. */
#include "grammar/automaton.h"

#include <stdio.h>
#include <string.h>

#define SHARE_SIZE_MAX 256 /* states: what is smaller is written out each time */
#define COUNT_SIZE_MAX 16  /* states of a repetition written out; beyond it is counted */
#define NEED_NEVER     UINT16_MAX

struct rule {
    expr_id expr;
    bool counted;
    const struct dfa *dfa;
    uint32_t base, start; /* state numbers before renumbering */
    uint32_t loop;        /* number in the automaton, or 0 */
};

struct assembly {
    struct build *b;
    expr_id root;
    expr_id *order; /* kids before parents */
    uint32_t n_order, cap_order;
    struct rule *rules;
    uint32_t n_rules, cap_rules;
    /* All rules' states side by side. */
    uint32_t n;
    uint32_t *rule_of;
    uint16_t *need;
    uint32_t *number; /* final number + 1 */
    uint32_t *queue;
    uint32_t n_final;
};

/* ---- survey ---- */

struct frame {
    expr_id id;
    uint32_t kid;
};

static uint32_t kid_count(const struct expr *x)
{
    const bool list = x->type == EXPR_SEQ || x->type == EXPR_ALT || x->type == EXPR_GRAPH;
    return list ? x->n : x->type == EXPR_REPEAT || x->type == EXPR_RULE ? 1 : 0;
}

static expr_id kid_at(const struct expr *x, uint32_t i)
{
    if (x->type == EXPR_GRAPH)
        return x->u.graph[i].x;
    return x->type == EXPR_SEQ || x->type == EXPR_ALT ? x->u.kids[i] : x->u.kid;
}

enum { NEW, OPEN, DONE, RECURSIVE = 4 };

static bool survey(struct assembly *w)
{
    struct build *b = w->b;
    uint32_t cap = 0, depth = 0;
    struct frame *stack = build_grow(b, NULL, 0, &cap, 64, sizeof *stack);
    w->order = build_take(b, b->n_exprs, sizeof *w->order);
    if (stack == NULL || w->order == NULL)
        return false;
    for (uint32_t i = 0; i < b->n_exprs; i++) {
        struct expr *x = &b->exprs[i];
        x->refs = x->mark = 0, x->size = x->rule = 0, x->nullable = false;
    }
    stack[depth++] = (struct frame){w->root, 0};
    b->exprs[w->root].mark = OPEN;
    while (depth > 0 && build_steps(b, 1)) {
        struct frame *f = &stack[depth - 1];
        struct expr *x = &b->exprs[f->id];
        if (f->kid == kid_count(x)) {
            x->mark = (uint8_t)((x->mark & RECURSIVE) | DONE);
            w->order[w->n_order++] = f->id;
            depth--;
            continue;
        }
        const expr_id kid = kid_at(x, f->kid++);
        struct expr *k = &b->exprs[kid];
        k->refs++;
        if ((k->mark & 3) == OPEN)
            k->mark |= RECURSIVE;
        if ((k->mark & 3) != NEW)
            continue;
        k->mark = OPEN;
        stack = build_grow(b, stack, depth, &cap, 1, sizeof *stack);
        if (stack == NULL)
            return false;
        stack[depth++] = (struct frame){kid, 0};
    }
    return !build_failed(b);
}

/* Is there a way through a graph by edges that may be empty? Backwards, until nothing changes; pays for itself. */
static bool graph_nullable(struct build *b, const struct expr *x)
{
    bool *ends = build_take(b, x->max, sizeof *ends);
    if (ends == NULL)
        return false;
    ends[x->max - 1] = true;
    for (bool changed = true; changed && build_steps(b, x->n);) {
        changed = false;
        for (uint32_t i = x->n; i-- > 0;) {
            const struct expr_edge *g = &x->u.graph[i];
            if (ends[g->to] && !ends[g->from] && b->exprs[g->x].nullable)
                ends[g->from] = changed = true;
        }
    }
    return ends[0];
}

static bool nullable_now(struct build *b, const struct expr *x)
{
    switch (x->type) {
    case EXPR_EMPTY: return true;
    case EXPR_DFA: return x->u.dfa->accept[0];
    case EXPR_REPEAT: return x->min == 0 || b->exprs[x->u.kid].nullable;
    case EXPR_RULE: return b->exprs[x->u.kid].nullable;
    case EXPR_GRAPH: return graph_nullable(b, x);
    case EXPR_SEQ:
        for (uint32_t i = 0; i < x->n; i++)
            if (!b->exprs[x->u.kids[i]].nullable)
                return false;
        return true;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n; i++)
            if (b->exprs[x->u.kids[i]].nullable)
                return true;
        return false;
    default: return false;
    }
}

static bool solve_nullable(struct assembly *w)
{
    struct build *b = w->b;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < w->n_order; i++) {
            struct expr *x = &b->exprs[w->order[i]];
            if (!build_steps(b, 1 + kid_count(x)))
                return false;
            if (!x->nullable && nullable_now(b, x))
                x->nullable = changed = true;
        }
    }
    return true;
}

/* ---- choose ---- */

static uint32_t add_saturating(uint32_t a, uint32_t c)
{
    return a > UINT32_MAX - c ? UINT32_MAX : a + c;
}

static uint32_t size_here(const struct build *b, expr_id id)
{
    return b->exprs[id].rule != 0 ? 1 : b->exprs[id].size;
}

static uint32_t size_now(const struct build *b, const struct expr *x)
{
    uint32_t size = 1;
    switch (x->type) {
    case EXPR_BYTES: return x->n;
    case EXPR_CLASS: return x->u.ranges[x->n - 1].to < 0x80 ? 1 : add_saturating(8, x->n);
    case EXPR_DFA: return x->u.dfa->n;
    case EXPR_RULE: return size_here(b, x->u.kid);
    case EXPR_GRAPH:
        size = x->max;
        for (uint32_t i = 0; i < x->n; i++)
            size = add_saturating(size, size_here(b, x->u.graph[i].x));
        return size;
    case EXPR_SEQ:
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n; i++)
            size = add_saturating(size, size_here(b, x->u.kids[i]));
        return size;
    case EXPR_REPEAT: {
        const uint64_t copies = x->max == EXPR_UNBOUNDED ? MAX(x->min, 1) : x->max;
        return (uint32_t)MIN(copies * size_here(b, x->u.kid) + 1, (uint64_t)UINT32_MAX);
    }
    default: return 1;
    }
}

static bool make_rule(struct assembly *w, expr_id id, bool counted)
{
    struct rule *grown = build_grow(w->b, w->rules, w->n_rules, &w->cap_rules, 1, sizeof *grown);
    if (grown == NULL)
        return false;
    w->rules = grown;
    if (w->n_rules >= GRAMMAR_RULES_MAX) {
        (void)FAIL(&w->b->error, ERR_LIMIT, "the grammar has more than %d rules", GRAMMAR_RULES_MAX);
        return false;
    }
    w->rules[w->n_rules++] = (struct rule){.expr = id, .counted = counted};
    w->b->exprs[id].rule = w->n_rules;
    return true;
}

static bool choose(struct assembly *w)
{
    struct build *b = w->b;
    w->n_rules = 0;
    if (!make_rule(w, w->root, false))
        return false;
    for (uint32_t i = 0; i < w->n_order; i++) /* first, so that sizes know which kids are calls */
        if ((b->exprs[w->order[i]].mark & RECURSIVE) != 0 && w->order[i] != w->root)
            if (!make_rule(w, w->order[i], false))
                return false;
    for (uint32_t i = 0; i < w->n_order; i++) {
        const expr_id id = w->order[i];
        struct expr *x = &b->exprs[id];
        x->size = size_now(b, x);
        uint32_t height = 0;
        for (uint32_t k = 0; k < kid_count(x); k++) {
            const struct expr *kid = &b->exprs[kid_at(x, k)];
            height = MAX(height, kid->rule != 0 ? 0 : kid->height);
        }
        x->height = height + 1; /* from here on: with the rules that are written out */
        const bool counted = x->type == EXPR_REPEAT && !x->expand && x->rule == 0 && x->size > COUNT_SIZE_MAX &&
                             (x->max != EXPR_UNBOUNDED || x->min > 1);
        const bool shared = x->refs > 1 && x->size > SHARE_SIZE_MAX;
        if (x->rule == 0 && (counted || shared || x->height > GRAMMAR_HEIGHT_MAX) && !make_rule(w, id, counted))
            return false;
    }
    return !build_failed(b);
}

/* ---- assemble ---- */

/* A rule that can be empty is entered only for its other texts: its start must not accept. Where something leads back
 * to the start, the start gets a twin. */
static const struct dfa *without_empty(struct build *b, const struct dfa *d)
{
    if (!d->accept[0])
        return d;
    bool again = false;
    for (uint32_t i = 0; i < d->edge_at[d->n]; i++)
        again |= d->edges[i].to == 0;
    for (uint32_t i = 0; i < d->call_at[d->n]; i++)
        again |= d->calls[i].to == 0;
    if (!again) {
        d->accept[0] = false;
        return d;
    }
    const uint32_t edges = d->edge_at[1], calls = d->call_at[1], all_edges = d->edge_at[d->n],
                   all_calls = d->call_at[d->n];
    struct dfa *t = build_take(b, 1, sizeof *t);
    if (t == NULL)
        return NULL;
    *t = (struct dfa){.n = d->n + 1,
        .edge_at = build_take(b, (size_t)d->n + 2, sizeof *t->edge_at),
        .edges = build_take(b, (size_t)all_edges + edges + 1, sizeof *t->edges),
        .call_at = build_take(b, (size_t)d->n + 2, sizeof *t->call_at),
        .calls = build_take(b, (size_t)all_calls + calls + 1, sizeof *t->calls),
        .accept = build_take(b, (size_t)d->n + 1, sizeof *t->accept)};
    if (build_failed(b))
        return NULL;
    uint32_t n_edges = 0, n_calls = 0;
    for (uint32_t s = 0; s <= d->n; s++) {
        const uint32_t old = s == 0 ? 0 : s - 1;
        t->edge_at[s] = n_edges;
        t->call_at[s] = n_calls;
        t->accept[s] = s > 0 && d->accept[old];
        for (uint32_t i = d->edge_at[old]; i < d->edge_at[old + 1]; i++)
            t->edges[n_edges++] = (struct dfa_edge){d->edges[i].to + 1, d->edges[i].lo, d->edges[i].hi};
        for (uint32_t i = d->call_at[old]; i < d->call_at[old + 1]; i++)
            t->calls[n_calls++] = (struct dfa_call){d->calls[i].rule, d->calls[i].to + 1};
    }
    t->edge_at[t->n] = n_edges;
    t->call_at[t->n] = n_calls;
    return t;
}

static bool make_machines(struct assembly *w)
{
    struct build *b = w->b;
    w->n = 0;
    for (uint32_t i = 0; i < w->n_rules; i++) {
        struct rule *r = &w->rules[i];
        struct nfa m;
        nfa_init(&m, b, true);
        m.top = r->counted ? 0 : r->expr;
        const expr_id body = r->counted ? b->exprs[r->expr].u.kid : r->expr;
        const struct dfa *d = dfa_of_nfa(&m, nfa_expr(&m, body, m.final));
        r = &w->rules[i];
        r->dfa = d == NULL ? NULL : without_empty(b, d);
        if (r->dfa == NULL)
            return false;
        r->base = w->n;
        w->n += r->dfa->n;
        if (w->n > GRAMMAR_STATES_MAX) {
            (void)FAIL(&b->error, ERR_LIMIT, "the grammar needs more than %d states", GRAMMAR_STATES_MAX);
            return false;
        }
    }
    w->rule_of = build_take(b, w->n, sizeof *w->rule_of);
    w->need = build_take(b, w->n, sizeof *w->need);
    w->number = build_take(b, w->n, sizeof *w->number);
    w->queue = build_take(b, w->n, sizeof *w->queue);
    if (build_failed(b))
        return false;
    for (uint32_t i = 0; i < w->n_rules; i++)
        for (uint32_t s = 0; s < w->rules[i].dfa->n; s++)
            w->rule_of[w->rules[i].base + s] = i;
    return true;
}

/* ---- what can be completed ---- */

static bool is_end(const struct dfa *d, uint32_t s)
{
    return d->accept[s] && d->edge_at[s] == d->edge_at[s + 1] && d->call_at[s] == d->call_at[s + 1];
}

static bool is_tail(const struct assembly *w, const struct dfa *d, const struct dfa_call *c)
{
    return !w->rules[c->rule].counted && is_end(d, c->to);
}

static uint16_t call_need(const struct assembly *w, const struct rule *r, const struct dfa_call *c)
{
    const struct rule *callee = &w->rules[c->rule];
    const uint16_t inside = w->need[callee->base], behind = w->need[r->base + c->to];
    if (inside == NEED_NEVER || behind == NEED_NEVER)
        return NEED_NEVER;
    return MAX((uint16_t)(inside + !is_tail(w, r->dfa, c)), behind);
}

static uint16_t need_now(const struct assembly *w, const struct rule *r, uint32_t s)
{
    const struct dfa *d = r->dfa;
    uint16_t need = d->accept[s] ? 0 : NEED_NEVER;
    for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1] && need > 0; i++)
        need = MIN(need, w->need[r->base + d->edges[i].to]);
    for (uint32_t i = d->call_at[s]; i < d->call_at[s + 1] && need > 0; i++)
        need = MIN(need, call_need(w, r, &d->calls[i]));
    return need > GRAMMAR_DEPTH_MAX ? NEED_NEVER : need;
}

static bool solve_need(struct assembly *w)
{
    memset(w->need, 0xFF, w->n * sizeof *w->need);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = w->n_rules; i-- > 0;) {
            const struct rule *r = &w->rules[i];
            if (!build_steps(w->b, r->dfa->n))
                return false;
            for (uint32_t s = r->dfa->n; s-- > 0;) {
                const uint16_t need = need_now(w, r, s);
                changed |= need < w->need[r->base + s];
                w->need[r->base + s] = MIN(need, w->need[r->base + s]);
            }
        }
    }
    return true;
}

/* ---- rules that begin with themselves ---- */

static const char *rule_shown(const struct assembly *w, uint32_t rule, char *out, size_t cap)
{
    const char *name = w->b->exprs[w->rules[rule].expr].name;
    if (name == NULL)
        return "a rule";
    char shown[80];
    (void)snprintf(out, cap, "the rule %s", str_show(str_of(name), shown, sizeof shown));
    return out;
}

static bool refuse_left_recursion(struct assembly *w)
{
    struct build *b = w->b;
    struct frame *stack = build_take(b, w->n_rules, sizeof *stack);
    uint8_t *mark = build_take(b, w->n_rules, 1);
    if (stack == NULL || mark == NULL)
        return false;
    for (uint32_t first = 0; first < w->n_rules; first++) {
        uint32_t depth = 0;
        if (mark[first] == NEW)
            stack[depth++] = (struct frame){first, 0}, mark[first] = OPEN;
        while (depth > 0 && build_steps(b, 1)) {
            struct frame *f = &stack[depth - 1];
            const struct dfa *d = w->rules[f->id].dfa;
            if (f->kid == d->call_at[1]) {
                mark[f->id] = DONE;
                depth--;
                continue;
            }
            const struct dfa_call *c = &d->calls[f->kid++];
            if (mark[c->rule] == OPEN) {
                char shown[100];
                (void)FAIL(&b->error, ERR_UNSUPPORTED, "%s begins with itself (left recursion is not supported)",
                    rule_shown(w, c->rule, shown, sizeof shown));
                return false;
            }
            if (mark[c->rule] == NEW)
                stack[depth++] = (struct frame){c->rule, 0}, mark[c->rule] = OPEN;
        }
    }
    return !build_failed(b);
}

/* ---- is counting exact? ---- */

struct byteset {
    uint64_t w[4];
};

static void byteset_range(struct byteset *s, uint32_t lo, uint32_t hi)
{
    for (uint32_t c = lo; c <= hi; c++)
        s->w[c / 64] |= UINT64_C(1) << (c % 64);
}

/* Bytes that may follow state s; calls are followed to their starts, which left recursion cannot make endless. */
static bool first_bytes(struct assembly *w, uint32_t rule, uint32_t s, struct byteset *out, uint32_t depth)
{
    const struct dfa *d = w->rules[rule].dfa;
    if (!build_steps(w->b, 1))
        return false;
    if (depth > GRAMMAR_GROUPS_MAX) { /* too far to look: suppose anything */
        memset(out, 0xFF, sizeof *out);
        return true;
    }
    for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++)
        byteset_range(out, d->edges[i].lo, d->edges[i].hi);
    for (uint32_t i = d->call_at[s]; i < d->call_at[s + 1]; i++)
        if (!first_bytes(w, d->calls[i].rule, 0, out, depth + 1))
            return false;
    return true;
}

/* Marks repetitions that cannot be counted; false when there are any, or when the build failed. */
static bool check_counting(struct assembly *w)
{
    bool exact = true;
    for (uint32_t i = 0; i < w->n_rules; i++) {
        const struct rule *r = &w->rules[i];
        struct byteset begin = {{0}};
        if (!r->counted)
            continue;
        if (!first_bytes(w, i, 0, &begin, 0))
            return false;
        for (uint32_t s = 0; s < r->dfa->n; s++) {
            struct byteset next = {{0}};
            if (!r->dfa->accept[s])
                continue;
            if (!first_bytes(w, i, s, &next, 0))
                return false;
            if (((next.w[0] & begin.w[0]) | (next.w[1] & begin.w[1]) | (next.w[2] & begin.w[2]) |
                    (next.w[3] & begin.w[3])) != 0) {
                w->b->exprs[r->expr].expand = true;
                exact = false;
            }
        }
    }
    return exact;
}

/* ---- the result ---- */

static bool edge_lives(const struct assembly *w, const struct rule *r, uint32_t to)
{
    return w->need[r->base + to] != NEED_NEVER;
}

static void enqueue(struct assembly *w, uint32_t state)
{
    if (w->number[state] != 0)
        return;
    w->queue[w->n_final++] = state;
    w->number[state] = w->n_final;
}

struct counts {
    uint32_t edges, calls, loops, rows;
};

#define ROW_EDGES_MIN 6 /* from this many edges on a state has a row of its own */

static bool number_states(struct assembly *w, struct counts *c)
{
    enqueue(w, w->rules[0].base);
    for (uint32_t i = 0; i < w->n_final; i++) {
        const uint32_t global = w->queue[i];
        struct rule *r = &w->rules[w->rule_of[global]];
        const struct dfa *d = r->dfa;
        const uint32_t s = global - r->base;
        uint32_t edges = 0;
        for (uint32_t k = d->edge_at[s]; k < d->edge_at[s + 1]; k++)
            if (edge_lives(w, r, d->edges[k].to))
                enqueue(w, r->base + d->edges[k].to), edges++;
        c->edges += edges;
        c->rows += edges >= ROW_EDGES_MIN;
        for (uint32_t k = d->call_at[s]; k < d->call_at[s + 1]; k++) {
            if (call_need(w, r, &d->calls[k]) == NEED_NEVER)
                continue;
            struct rule *callee = &w->rules[d->calls[k].rule];
            enqueue(w, callee->base);
            enqueue(w, r->base + d->calls[k].to);
            c->calls++;
            if (callee->counted && callee->loop == 0)
                callee->loop = ++c->loops;
        }
        if (!build_steps(w->b, 1 + d->edge_at[s + 1] - d->edge_at[s]))
            return false;
    }
    return true;
}

static enum err automaton_alloc(struct automaton *a, uint32_t n_states, const struct counts *c, struct error *e)
{
    const size_t states = n_states * sizeof *a->states, edges = c->edges * sizeof *a->edges;
    const size_t calls = c->calls * sizeof *a->calls, loops = ((size_t)c->loops + 1) * sizeof *a->loops;
    const size_t rows = c->rows * sizeof *a->rows;
    *a = (struct automaton){.n_states = n_states, .bytes = states + edges + calls + loops + rows};
    if (a->bytes > GRAMMAR_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "the compiled grammar takes more than %zu bytes", (size_t)GRAMMAR_BYTES_MAX);
    char *p = a->memory = mem_zalloc(a->bytes);
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for a grammar of %zu bytes", a->bytes);
    a->states = (struct auto_state *)p;
    a->edges = (struct dfa_edge *)(p += states);
    a->calls = (struct auto_call *)(p += edges);
    a->loops = (struct auto_loop *)(p += calls);
    a->rows = (uint32_t(*)[256])(p + loops);
    return OK;
}

static void fill_edges(
    const struct assembly *w, const struct rule *r, uint32_t s, struct automaton *a, struct auto_state *t)
{
    const struct dfa *d = r->dfa;
    t->edge_at = a->n_edges;
    for (uint32_t k = d->edge_at[s]; k < d->edge_at[s + 1]; k++)
        if (edge_lives(w, r, d->edges[k].to))
            a->edges[a->n_edges++] =
                (struct dfa_edge){w->number[r->base + d->edges[k].to] - 1, d->edges[k].lo, d->edges[k].hi};
    t->n_edges = (uint16_t)(a->n_edges - t->edge_at);
    t->row = NONE32;
    if (t->n_edges < ROW_EDGES_MIN)
        return;
    t->row = a->n_rows++;
    memset(a->rows[t->row], 0xFF, sizeof a->rows[0]);
    for (uint32_t k = t->edge_at; k < a->n_edges; k++)
        for (uint32_t c = a->edges[k].lo; c <= a->edges[k].hi; c++)
            a->rows[t->row][c] = a->edges[k].to;
}

static void fill_calls(
    const struct assembly *w, const struct rule *r, uint32_t s, struct automaton *a, struct auto_state *t)
{
    const struct dfa *d = r->dfa;
    t->call_at = a->n_calls;
    for (uint32_t k = d->call_at[s]; k < d->call_at[s + 1]; k++) {
        const struct dfa_call *c = &d->calls[k];
        const struct rule *callee = &w->rules[c->rule];
        if (call_need(w, r, c) != NEED_NEVER)
            a->calls[a->n_calls++] = (struct auto_call){.start = w->number[callee->base] - 1,
                .to = w->number[r->base + c->to] - 1,
                .loop = (uint16_t)callee->loop,
                .tail = is_tail(w, d, c)};
    }
    t->n_calls = (uint16_t)(a->n_calls - t->call_at);
}

static void fill(const struct assembly *w, struct automaton *a)
{
    for (uint32_t i = 0; i < w->n_final; i++) {
        const struct rule *r = &w->rules[w->rule_of[w->queue[i]]];
        const uint32_t s = w->queue[i] - r->base;
        struct auto_state *t = &a->states[i];
        t->need = w->need[w->queue[i]];
        fill_edges(w, r, s, a, t);
        fill_calls(w, r, s, a, t);
        t->flags = (uint8_t)((r->dfa->accept[s] ? AUTO_ACCEPT : 0) | (t->n_calls > 0 ? AUTO_CALLS : 0));
        if (t->flags == 0 && t->n_edges == 1 && a->edges[t->edge_at].lo == a->edges[t->edge_at].hi)
            t->flags = AUTO_FORCED;
    }
    for (uint32_t i = 0; i < w->n_rules; i++) {
        const struct rule *r = &w->rules[i];
        if (r->loop == 0)
            continue;
        const struct expr *x = &w->b->exprs[r->expr];
        const bool skips = w->b->exprs[x->u.kid].nullable; /* rounds may be empty, so fewer will do */
        a->loops[r->loop] = (struct auto_loop){w->number[r->base] - 1, skips ? 1 : MAX(x->min, 1), x->max};
        a->n_loops++;
    }
}

enum err automaton_make(struct build *b, expr_id root, struct automaton *a, struct error *e)
{
    struct counts c = {0};
    *a = (struct automaton){0};
    TRY(build_check(b, e));
    if (root == 0)
        return FAIL(e, ERR_INVALID, "no text can match the grammar");
    struct assembly w = {.b = b, .root = expr_rule_new(b)}; /* so that the whole may be a counted repetition */
    expr_rule_set(b, w.root, root);
    for (bool exact = false; !exact && !build_failed(b);) {
        w.n_order = 0;
        if (survey(&w) && solve_nullable(&w) && choose(&w) && make_machines(&w) && solve_need(&w) &&
            refuse_left_recursion(&w))
            exact = check_counting(&w);
    }
    TRY(build_check(b, e));
    assert(w.need != NULL); /* or the building failed */
    const bool empty_too = b->exprs[root].nullable;
    if (w.need[0] == NEED_NEVER && !empty_too)
        return FAIL(e, ERR_INVALID, "no text can match the grammar within %d levels of nesting", GRAMMAR_DEPTH_MAX);
    if (w.need[0] == NEED_NEVER)
        w.need[0] = 0; /* only the empty text: a start from which nothing leads on */
    if (!number_states(&w, &c))
        return build_check(b, e);
    if (c.loops > UINT16_MAX)
        return FAIL(e, ERR_LIMIT, "the grammar counts in more than %d places", UINT16_MAX);
    TRY(automaton_alloc(a, w.n_final, &c, e));
    a->empty_too = empty_too;
    fill(&w, a);
    return OK;
}

void automaton_fini(struct automaton *a)
{
    mem_free(a->memory);
    *a = (struct automaton){0};
}
