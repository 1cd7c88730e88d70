/* Deterministic machines over bytes and calls: made from machines with free moves by following sets of states, combined
 * as products. A call of a rule is a symbol like any byte: a state has at most one call of each rule.
 *
 * Every machine returned here is trimmed: from each of its states an accepting one can be reached (a call counts as
 * possible; whether its rule can ever end is automaton.c's question). Only a machine that accepts nothing keeps its
 * bare start state. */
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/build.h"

#include <string.h>

/* A machine while it grows. */
struct making {
    struct build *b;
    uint32_t n, cap_accept, cap_edge_at, cap_call_at, cap_edges, cap_calls, n_edges, n_calls;
    uint32_t *edge_at, *call_at;
    struct dfa_edge *edges;
    struct dfa_call *calls;
    bool *accept;
};

/* A state begins: what follows belongs to it. */
static bool making_state(struct making *k, bool accept)
{
    struct build *b = k->b;
    if (k->n >= GRAMMAR_STATES_MAX) {
        (void)FAIL(&b->error, ERR_LIMIT, "a part of the grammar needs more than %d states", GRAMMAR_STATES_MAX);
        return false;
    }
    uint32_t *edge_at = build_grow(b, k->edge_at, k->n, &k->cap_edge_at, 2, sizeof *edge_at);
    uint32_t *call_at = build_grow(b, k->call_at, k->n, &k->cap_call_at, 2, sizeof *call_at);
    bool *accepts = build_grow(b, k->accept, k->n, &k->cap_accept, 1, sizeof *accepts);
    if (edge_at == NULL || call_at == NULL || accepts == NULL)
        return false;
    k->edge_at = edge_at, k->call_at = call_at, k->accept = accepts;
    k->edge_at[k->n] = k->n_edges;
    k->call_at[k->n] = k->n_calls;
    k->accept[k->n++] = accept;
    return build_steps(b, 1);
}

static void making_edge(struct making *k, uint8_t lo, uint8_t hi, uint32_t to)
{
    struct dfa_edge *last = k->n_edges > k->edge_at[k->n - 1] ? &k->edges[k->n_edges - 1] : NULL;
    if (last != NULL && last->to == to && last->hi + 1 == lo) {
        last->hi = hi;
        return;
    }
    struct dfa_edge *grown = build_grow(k->b, k->edges, k->n_edges, &k->cap_edges, 1, sizeof *grown);
    if (grown == NULL)
        return;
    k->edges = grown;
    k->edges[k->n_edges++] = (struct dfa_edge){to, lo, hi};
}

static void making_call(struct making *k, uint32_t rule, uint32_t to)
{
    struct dfa_call *grown = build_grow(k->b, k->calls, k->n_calls, &k->cap_calls, 1, sizeof *grown);
    if (grown == NULL)
        return;
    k->calls = grown;
    k->calls[k->n_calls++] = (struct dfa_call){rule, to};
}

static struct dfa *making_end(struct making *k)
{
    struct dfa *d = build_take(k->b, 1, sizeof *d);
    if (k->edges == NULL) /* readers add offsets to it */
        k->edges = build_take(k->b, 1, sizeof *k->edges);
    if (k->calls == NULL)
        k->calls = build_take(k->b, 1, sizeof *k->calls);
    if (d == NULL || k->n == 0 || build_failed(k->b))
        return NULL;
    k->edge_at[k->n] = k->n_edges;
    k->call_at[k->n] = k->n_calls;
    *d = (struct dfa){k->n, k->edge_at, k->edges, k->call_at, k->calls, k->accept};
    return d;
}

/* ---- trimming ---- */

/* alive[s]: an accepting state can be reached. One pass backwards over a list of reversed edges. */
static bool *alive_states(struct build *b, const struct dfa *d)
{
    const uint32_t m = d->edge_at[d->n] + d->call_at[d->n];
    bool *alive = build_take(b, d->n, sizeof *alive);
    uint32_t *at = build_take(b, (size_t)d->n + 1, sizeof *at), *from = build_take(b, (size_t)m + 1, sizeof *from);
    uint32_t *todo = build_take(b, d->n, sizeof *todo);
    if (alive == NULL || at == NULL || from == NULL || todo == NULL || !build_steps(b, m + d->n))
        return NULL;
    for (uint32_t i = 0; i < d->edge_at[d->n]; i++)
        at[d->edges[i].to]++;
    for (uint32_t i = 0; i < d->call_at[d->n]; i++)
        at[d->calls[i].to]++;
    for (uint32_t s = 0, sum = 0; s <= d->n; s++) { /* ends, moved to beginnings as they fill */
        sum += s < d->n ? at[s] : 0;
        at[s] = sum;
    }
    for (uint32_t s = 0; s < d->n; s++) {
        for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++)
            from[--at[d->edges[i].to]] = s;
        for (uint32_t i = d->call_at[s]; i < d->call_at[s + 1]; i++)
            from[--at[d->calls[i].to]] = s;
    }
    uint32_t n_todo = 0;
    for (uint32_t s = 0; s < d->n; s++)
        if (d->accept[s])
            alive[s] = true, todo[n_todo++] = s;
    while (n_todo > 0) {
        const uint32_t s = todo[--n_todo];
        const uint32_t end = s + 1 < d->n ? at[s + 1] : m;
        for (uint32_t i = at[s]; i < end; i++)
            if (!alive[from[i]])
                alive[from[i]] = true, todo[n_todo++] = from[i];
    }
    return alive;
}

/* The machine over classes of states: of[s] is the new number of s, or NONE32; numbers in order of first occurrence,
 * that of state 0 being 0. One state of each class speaks for it. */
static const struct dfa *dfa_renumbered(struct build *b, const struct dfa *d, const uint32_t *of, uint32_t n)
{
    struct making k = {.b = b};
    uint32_t next = 0;
    for (uint32_t s = 0; s < d->n && next < n; s++) {
        if (of[s] != next)
            continue;
        next++;
        if (!making_state(&k, d->accept[s]))
            return NULL;
        for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++)
            if (of[d->edges[i].to] != NONE32)
                making_edge(&k, d->edges[i].lo, d->edges[i].hi, of[d->edges[i].to]);
        for (uint32_t i = d->call_at[s]; i < d->call_at[s + 1]; i++)
            if (of[d->calls[i].to] != NONE32)
                making_call(&k, d->calls[i].rule, of[d->calls[i].to]);
    }
    return making_end(&k);
}

static const struct dfa *dfa_trimmed(struct build *b, const struct dfa *d)
{
    const bool *alive = d == NULL ? NULL : alive_states(b, d);
    uint32_t *of = d == NULL ? NULL : build_take(b, d->n, sizeof *of);
    if (alive == NULL || of == NULL)
        return NULL;
    uint32_t n = 0;
    for (uint32_t s = 0; s < d->n; s++)
        of[s] = alive[s] || s == 0 ? n++ : NONE32;
    return n == d->n ? d : dfa_renumbered(b, d, of, n);
}

/* ---- minimising: Valmari's refinement of two partitions, of states and of edges, each split by the other ---- */

struct parts {
    uint32_t n;                     /* parts */
    uint32_t *e, *loc, *part;       /* elements in order of their parts; where each is; of which part */
    uint32_t *first, *end, *marked; /* of each part */
    uint32_t *touched, n_touched;
};

static bool parts_init(struct build *b, struct parts *p, uint32_t n)
{
    uint32_t *all = build_take(b, (size_t)n * 7 + 1, sizeof *all);
    if (all == NULL)
        return false;
    *p = (struct parts){n > 0, all, all + n, all + 2 * n, all + 3 * n, all + 4 * n, all + 5 * n, all + 6 * n, 0};
    for (uint32_t i = 0; i < n; i++)
        p->e[i] = p->loc[i] = i;
    if (n > 0)
        p->end[0] = n;
    return true;
}

static void parts_mark(struct parts *p, uint32_t x)
{
    const uint32_t s = p->part[x], i = p->loc[x], j = p->first[s] + p->marked[s];
    if (i < j)
        return;
    p->e[i] = p->e[j], p->loc[p->e[i]] = i;
    p->e[j] = x, p->loc[x] = j;
    if (p->marked[s]++ == 0)
        p->touched[p->n_touched++] = s;
}

static void parts_split(struct parts *p)
{
    while (p->n_touched > 0) {
        const uint32_t s = p->touched[--p->n_touched], j = p->first[s] + p->marked[s];
        if (j == p->end[s]) {
            p->marked[s] = 0;
            continue;
        }
        const uint32_t z = p->n++;
        if (p->marked[s] <= p->end[s] - j) {
            p->first[z] = p->first[s];
            p->end[z] = p->first[s] = j;
        } else {
            p->end[z] = p->end[s];
            p->first[z] = p->end[s] = j;
        }
        for (uint32_t i = p->first[z]; i < p->end[z]; i++)
            p->part[p->e[i]] = z;
        p->marked[s] = p->marked[z] = 0;
    }
}

/* Edges cut at every byte where any edge begins or ends, so that equal labels mean the same bytes. */
struct cords {
    uint32_t n;
    uint32_t *tail, *head, *label;
};

static bool cords_make(struct build *b, const struct dfa *d, struct cords *c)
{
    bool cut[257] = {false};
    uint32_t class_of[257], n_classes = 0;
    for (uint32_t i = 0; i < d->edge_at[d->n]; i++)
        cut[d->edges[i].lo] = cut[d->edges[i].hi + 1] = true;
    for (uint32_t i = 0; i < 257; i++)
        class_of[i] = n_classes += cut[i];
    uint64_t n = d->call_at[d->n];
    for (uint32_t i = 0; i < d->edge_at[d->n]; i++)
        n += class_of[d->edges[i].hi] - class_of[d->edges[i].lo] + 1;
    if (n > GRAMMAR_MINIMAL_EDGES_MAX)
        return false;
    *c = (struct cords){0, build_take(b, n + 1, 4), build_take(b, n + 1, 4), build_take(b, n + 1, 4)};
    if (c->tail == NULL || c->head == NULL || c->label == NULL || !build_steps(b, n * 4))
        return false;
    for (uint32_t s = 0; s < d->n; s++) {
        for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++)
            for (uint32_t k = class_of[d->edges[i].lo]; k <= class_of[d->edges[i].hi]; k++)
                c->tail[c->n] = s, c->head[c->n] = d->edges[i].to, c->label[c->n++] = k;
        for (uint32_t i = d->call_at[s]; i < d->call_at[s + 1]; i++)
            c->tail[c->n] = s, c->head[c->n] = d->calls[i].to, c->label[c->n++] = 512 + d->calls[i].rule;
    }
    return true;
}

/* The edges' partition starts as one part per label. */
static bool cords_parts(struct build *b, const struct cords *c, struct parts *p)
{
    if (!parts_init(b, p, c->n))
        return false;
    uint32_t labels = 0;
    for (uint32_t i = 0; i < c->n; i++)
        labels = MAX(labels, c->label[i] + 1);
    uint32_t *at = build_take(b, (size_t)labels + 1, sizeof *at);
    if (at == NULL)
        return false;
    for (uint32_t i = 0; i < c->n; i++)
        at[c->label[i] + 1]++;
    p->n = 0;
    for (uint32_t l = 0; l < labels; l++) {
        if (at[l + 1] > 0) {
            p->first[p->n] = at[l];
            p->end[p->n++] = at[l] + at[l + 1];
        }
        at[l + 1] += at[l];
    }
    for (uint32_t i = 0; i < c->n; i++) {
        p->e[at[c->label[i]]] = i;
        p->loc[i] = at[c->label[i]]++;
    }
    for (uint32_t q = 0; q < p->n; q++)
        for (uint32_t i = p->first[q]; i < p->end[q]; i++)
            p->part[p->e[i]] = q;
    return true;
}

static bool refine(
    struct build *b, const struct dfa *d, const struct cords *c, struct parts *states, struct parts *edges)
{
    uint32_t *at = build_take(b, (size_t)d->n + 2, sizeof *at), *in = build_take(b, (size_t)c->n + 1, sizeof *in);
    if (at == NULL || in == NULL)
        return false;
    for (uint32_t i = 0; i < c->n; i++)
        at[c->head[i] + 2]++;
    for (uint32_t s = 0; s < d->n; s++)
        at[s + 2] += at[s + 1];
    for (uint32_t i = 0; i < c->n; i++)
        in[at[c->head[i] + 1]++] = i;
    for (uint32_t s = 0; s < d->n; s++)
        if (d->accept[s])
            parts_mark(states, s);
    parts_split(states);
    for (uint32_t q = 0, s = 1; q < edges->n; q++) {
        if (!build_steps(b, edges->end[q] - edges->first[q]))
            return false;
        for (uint32_t i = edges->first[q]; i < edges->end[q]; i++)
            parts_mark(states, c->tail[edges->e[i]]);
        parts_split(states);
        for (; s < states->n; s++) {
            for (uint32_t i = states->first[s]; i < states->end[s]; i++)
                for (uint32_t k = at[states->e[i]]; k < at[states->e[i] + 1]; k++)
                    parts_mark(edges, in[k]);
            parts_split(edges);
        }
    }
    return true;
}

const struct dfa *dfa_minimal(struct build *b, const struct dfa *d)
{
    struct cords c;
    struct parts states, edges;
    if (d->n < 3 || !cords_make(b, d, &c))
        return build_failed(b) ? NULL : d;
    uint32_t *of = build_take(b, d->n, sizeof *of), *number = build_take(b, d->n, sizeof *number);
    if (!parts_init(b, &states, d->n) || !cords_parts(b, &c, &edges) || of == NULL || number == NULL ||
        !refine(b, d, &c, &states, &edges))
        return NULL;
    if (states.n == d->n)
        return d;
    uint32_t n = 0;
    for (uint32_t s = 0; s < d->n; s++) {
        const uint32_t part = states.part[s];
        if (number[part] == 0)
            number[part] = ++n;
        of[s] = number[part] - 1;
    }
    return dfa_renumbered(b, d, of, n);
}

/* ---- sets of states ---- */

struct sets {
    struct build *b;
    const struct nfa *m;
    struct making k;
    uint32_t *members, n_members, cap_members; /* of all sets, one behind the other */
    uint32_t *at, cap_at, n;                   /* n + 1 */
    uint32_t *table, table_size;               /* set number + 1 by hash */
    uint32_t *seen, turn;                      /* per NFA state: the turn it was last met in */
    uint32_t *todo, *cur;
    struct nfa_edge *out; /* edges that leave the set being followed */
    uint32_t cap_out;
};

static int compare_u32(const uint32_t *list, uint32_t n, const uint32_t *other)
{
    return memcmp(list, other, n * sizeof *list);
}

/* Small sets are the rule; heap sort keeps the rest from hurting. */
static void sort_u32(uint32_t *a, uint32_t n)
{
    for (uint32_t i = 1; i < n && n <= 24; i++) {
        const uint32_t x = a[i];
        uint32_t k = i;
        for (; k > 0 && a[k - 1] > x; k--)
            a[k] = a[k - 1];
        a[k] = x;
    }
    if (n <= 24)
        return;
    for (uint32_t start = n / 2, end = n; end > 1;) {
        uint32_t i;
        if (start > 0) {
            i = --start;
        } else {
            const uint32_t x = a[--end];
            a[end] = a[0], a[0] = x;
            i = 0;
        }
        for (uint32_t c = 2 * i + 1; c < end; c = 2 * i + 1) {
            if (c + 1 < end && a[c + 1] > a[c])
                c++;
            if (a[i] >= a[c])
                break;
            const uint32_t x = a[i];
            a[i] = a[c], a[c] = x;
            i = c;
        }
    }
}

static bool sets_table_grow(struct sets *s)
{
    const uint32_t size = s->table_size * 2;
    uint32_t *table = build_take(s->b, size, sizeof *table);
    if (table == NULL)
        return false;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t h = hash64(s->members + s->at[i], (s->at[i + 1] - s->at[i]) * sizeof *s->members, 0);
        while (table[h % size] != 0)
            h++;
        table[h % size] = i + 1;
    }
    s->table = table;
    s->table_size = size;
    return true;
}

/* What can be reached from todo[] without a byte, kept to states that do something; its number, made when new. */
static uint32_t sets_find(struct sets *s, uint32_t n_todo)
{
    uint32_t n = 0;
    for (; n_todo > 0;) {
        const uint32_t x = s->todo[--n_todo];
        const struct nfa_state *st = &s->m->states[x];
        bool does = x == s->m->final || st->call != NONE32;
        if (!build_steps(s->b, 1))
            return NONE32;
        for (uint32_t i = st->first; i != NONE32; i = s->m->edges[i].next) {
            const struct nfa_edge *g = &s->m->edges[i];
            does |= g->lo <= g->hi;
            if (g->lo > g->hi && s->seen[g->to] != s->turn)
                s->seen[g->to] = s->turn, s->todo[n_todo++] = g->to;
        }
        if (does)
            s->cur[n++] = x;
    }
    if (n == 0)
        return NONE32;
    sort_u32(s->cur, n);
    uint64_t h = hash64(s->cur, n * sizeof *s->cur, 0);
    for (; s->table[h % s->table_size] != 0; h++) {
        const uint32_t i = s->table[h % s->table_size] - 1;
        if (s->at[i + 1] - s->at[i] == n && compare_u32(s->members + s->at[i], n, s->cur) == 0)
            return i;
    }
    uint32_t *members = build_grow(s->b, s->members, s->n_members, &s->cap_members, n, sizeof *members);
    uint32_t *at = build_grow(s->b, s->at, s->n + 1, &s->cap_at, 1, sizeof *at);
    if (members == NULL || at == NULL)
        return NONE32;
    s->members = members, s->at = at;
    memcpy(members + s->n_members, s->cur, n * sizeof *members);
    s->n_members += n;
    s->at[s->n + 1] = s->n_members;
    s->table[h % s->table_size] = ++s->n;
    if (s->n * 2 > s->table_size && !sets_table_grow(s))
        return NONE32;
    return s->n - 1;
}

static void sets_begin(struct sets *s)
{
    s->turn++;
}

static uint32_t sets_add(struct sets *s, uint32_t state, uint32_t n_todo)
{
    if (s->seen[state] == s->turn)
        return n_todo;
    s->seen[state] = s->turn;
    s->todo[n_todo] = state;
    return n_todo + 1;
}

/* The edges of set `i`: bytes are cut where any of them begins or ends, and each stretch leads to one set. */
static bool follow_bytes(struct sets *s, uint32_t n_out)
{
    bool cut[257] = {false};
    for (uint32_t i = 0; i < n_out; i++)
        cut[s->out[i].lo] = cut[s->out[i].hi + 1] = true;
    for (uint32_t lo = 0; lo < 256;) {
        uint32_t hi = lo;
        while (hi < 255 && !cut[hi + 1])
            hi++;
        sets_begin(s);
        uint32_t n_todo = 0;
        for (uint32_t i = 0; i < n_out; i++)
            if (s->out[i].lo <= lo && s->out[i].hi >= lo)
                n_todo = sets_add(s, s->out[i].to, n_todo);
        if (!build_steps(s->b, 1 + n_out / 4))
            return false;
        const uint32_t to = n_todo > 0 ? sets_find(s, n_todo) : NONE32;
        if (to != NONE32)
            making_edge(&s->k, (uint8_t)lo, (uint8_t)hi, to);
        lo = hi + 1;
    }
    return !build_failed(s->b);
}

static bool follow_calls(struct sets *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const uint32_t rule = s->m->states[s->members[i]].call;
        bool done = rule == NONE32;
        for (uint32_t k = from; k < i && !done; k++)
            done = s->m->states[s->members[k]].call == rule;
        if (done)
            continue;
        sets_begin(s);
        uint32_t n_todo = 0;
        for (uint32_t k = i; k < to; k++)
            if (s->m->states[s->members[k]].call == rule)
                n_todo = sets_add(s, s->m->states[s->members[k]].call_to, n_todo);
        if (!build_steps(s->b, to - from))
            return false;
        const uint32_t target = sets_find(s, n_todo);
        if (target != NONE32)
            making_call(&s->k, rule, target);
    }
    return !build_failed(s->b);
}

static bool follow(struct sets *s, uint32_t i)
{
    const uint32_t from = s->at[i], to = s->at[i + 1];
    uint32_t n_out = 0;
    bool accept = false;
    for (uint32_t k = from; k < to; k++) {
        accept |= s->members[k] == s->m->final;
        for (uint32_t g = s->m->states[s->members[k]].first; g != NONE32; g = s->m->edges[g].next) {
            if (s->m->edges[g].lo > s->m->edges[g].hi)
                continue;
            struct nfa_edge *grown = build_grow(s->b, s->out, n_out, &s->cap_out, 1, sizeof *grown);
            if (grown == NULL)
                return false;
            s->out = grown;
            s->out[n_out++] = s->m->edges[g];
        }
    }
    if (!making_state(&s->k, accept) || !build_steps(s->b, n_out))
        return false;
    if (n_out == 1) {
        sets_begin(s);
        const uint32_t target = sets_find(s, sets_add(s, s->out[0].to, 0));
        if (target != NONE32)
            making_edge(&s->k, s->out[0].lo, s->out[0].hi, target);
    } else if (n_out > 1 && !follow_bytes(s, n_out)) {
        return false;
    }
    return follow_calls(s, from, to);
}

const struct dfa *dfa_of_nfa(struct nfa *m, uint32_t start)
{
    struct build *b = m->b;
    if (build_failed(b))
        return NULL;
    struct sets s = {.b = b, .m = m, .k = {.b = b}, .table_size = 64};
    s.table = build_take(b, s.table_size, sizeof *s.table);
    s.seen = build_take(b, m->n_states, sizeof *s.seen);
    s.todo = build_take(b, m->n_states, sizeof *s.todo);
    s.cur = build_take(b, m->n_states, sizeof *s.cur);
    s.at = build_grow(b, NULL, 0, &s.cap_at, 16, sizeof *s.at);
    if (s.table == NULL || s.seen == NULL || s.todo == NULL || s.cur == NULL || s.at == NULL)
        return NULL;
    sets_begin(&s);
    if (sets_find(&s, sets_add(&s, start, 0)) == NONE32) /* nothing can be read, not even nothing */
        return build_failed(b) || !making_state(&s.k, false) ? NULL : making_end(&s.k);
    for (uint32_t i = 0; i < s.n; i++)
        if (!follow(&s, i))
            return NULL;
    const struct dfa *d = making_end(&s.k);
    d = d == NULL ? NULL : dfa_trimmed(b, d);
    return d == NULL ? NULL : dfa_minimal(b, d);
}

const struct dfa *dfa_of_expr(struct build *b, expr_id x)
{
    struct nfa m;
    nfa_init(&m, b, false);
    return dfa_of_nfa(&m, nfa_expr(&m, x, m.final));
}

uint32_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte)
{
    for (uint32_t i = d->edge_at[state]; i < d->edge_at[state + 1]; i++)
        if (byte >= d->edges[i].lo && byte <= d->edges[i].hi)
            return d->edges[i].to;
    return NONE32;
}

/* ---- products ---- */

struct pairs {
    struct build *b;
    uint64_t *pair;
    uint32_t n, cap;
    uint32_t *table, table_size;
};

static uint32_t pairs_find(struct pairs *p, uint32_t x, uint32_t y)
{
    const uint64_t pair = (uint64_t)x << 32 | y;
    uint64_t h = hash64(&pair, sizeof pair, 0);
    for (; p->table[h % p->table_size] != 0; h++)
        if (p->pair[p->table[h % p->table_size] - 1] == pair)
            return p->table[h % p->table_size] - 1;
    uint64_t *grown = build_grow(p->b, p->pair, p->n, &p->cap, 1, sizeof *grown);
    if (grown == NULL)
        return NONE32;
    p->pair = grown;
    p->pair[p->n++] = pair;
    p->table[h % p->table_size] = p->n;
    if (p->n * 2 <= p->table_size)
        return p->n - 1;
    uint32_t *table = build_take(p->b, (size_t)p->table_size * 2, sizeof *table);
    if (table == NULL)
        return NONE32;
    p->table_size *= 2;
    for (uint32_t i = 0; i < p->n; i++) {
        h = hash64(&p->pair[i], sizeof pair, 0);
        while (table[h % p->table_size] != 0)
            h++;
        table[h % p->table_size] = i + 1;
    }
    p->table = table;
    return p->n - 1;
}

/* Where a machine has no edge it is in NONE32, which accepts nothing and stays. */
static bool op_lives(enum dfa_op op, uint32_t x, uint32_t y)
{
    return op == DFA_AND ? x != NONE32 && y != NONE32 : op == DFA_OR ? x != NONE32 || y != NONE32 : x != NONE32;
}

static bool op_accepts(enum dfa_op op, bool x, bool y)
{
    return op == DFA_AND ? x && y : op == DFA_OR ? x || y : x && !y;
}

static void pair_edges(struct pairs *p, struct making *k, const struct dfa *x, const struct dfa *y, enum dfa_op op)
{
    const uint64_t pair = p->pair[k->n - 1];
    const uint32_t a = (uint32_t)(pair >> 32), z = (uint32_t)pair;
    const struct dfa_edge *ex = a == NONE32 ? NULL : x->edges + x->edge_at[a], *xe = ex;
    const struct dfa_edge *ey = z == NONE32 ? NULL : y->edges + y->edge_at[z], *ye = ey;
    if (ex != NULL)
        xe = x->edges + x->edge_at[a + 1];
    if (ey != NULL)
        ye = y->edges + y->edge_at[z + 1];
    for (uint32_t lo = 0; lo < 256 && (ex < xe || ey < ye) && build_steps(p->b, 3);) {
        while (ex < xe && ex->hi < lo)
            ex++;
        while (ey < ye && ey->hi < lo)
            ey++;
        const bool in_x = ex < xe && ex->lo <= lo, in_y = ey < ye && ey->lo <= lo;
        uint32_t hi = 255;
        if (ex < xe)
            hi = MIN(hi, in_x ? ex->hi : ex->lo - 1u);
        if (ey < ye)
            hi = MIN(hi, in_y ? ey->hi : ey->lo - 1u);
        const uint32_t tx = in_x ? ex->to : NONE32, ty = in_y ? ey->to : NONE32;
        if (op_lives(op, tx, ty)) {
            const uint32_t to = pairs_find(p, tx, ty);
            if (to != NONE32)
                making_edge(k, (uint8_t)lo, (uint8_t)hi, to);
        }
        lo = hi + 1;
    }
}

const struct dfa *dfa_product(struct build *b, const struct dfa *x, const struct dfa *y, enum dfa_op op)
{
    if (x == NULL || y == NULL)
        return NULL;
    struct pairs p = {.b = b, .table_size = 64};
    struct making k = {.b = b};
    p.table = build_take(b, p.table_size, sizeof *p.table);
    if (p.table == NULL || pairs_find(&p, 0, 0) == NONE32)
        return NULL;
    for (uint32_t i = 0; i < p.n; i++) {
        const uint32_t a = (uint32_t)(p.pair[i] >> 32), z = (uint32_t)p.pair[i];
        if (!making_state(&k, op_accepts(op, a != NONE32 && x->accept[a], z != NONE32 && y->accept[z])))
            return NULL;
        pair_edges(&p, &k, x, y, op);
    }
    const struct dfa *d = build_failed(b) ? NULL : making_end(&k);
    d = d == NULL ? NULL : dfa_trimmed(b, d);
    return d == NULL ? NULL : dfa_minimal(b, d);
}
