/* Expressions: what front ends make. A build holds them in one array; an id is an index, so the graph may share parts,
 * and rules may refer to what is defined later. Constructors simplify what is certain (a sequence with nothing in it
 * matches nothing, an empty text disappears), so that later stages see few kinds of nodes.
 *
 * Expressions form a tree apart from rules; its height is bounded here, so that every later recursion is. */
#include "base/limits.h"
#include "grammar/automaton.h"

#include <string.h>

void build_init(struct build *b, const struct grammar_vocab *vocab)
{
    *b = (struct build){.steps_max = GRAMMAR_STEPS_MAX, .vocab = vocab};
    arena_init(&b->arena, GRAMMAR_BUILD_BYTES_MAX);
    (void)expr_new(b, EXPR_NEVER, 1);
}

void build_fini(struct build *b)
{
    arena_fini(&b->arena);
}

enum err build_check(const struct build *b, struct error *e)
{
    if (b->error.code == OK)
        return OK;
    return FAIL(e, b->error.code, "%s", b->error.text);
}

bool build_steps(struct build *b, uint64_t n)
{
    b->steps += n;
    if (b->steps > b->steps_max)
        (void)FAIL(&b->error, ERR_LIMIT, "the grammar takes more than %llu steps to compile",
            (unsigned long long)b->steps_max);
    return !build_failed(b);
}

void *build_take(struct build *b, size_t count, size_t each)
{
    if (build_failed(b))
        return NULL;
    void *p = arena_array(&b->arena, count, each);
    if (p == NULL && b->arena.total_bytes + count * each > b->arena.bytes_max)
        (void)FAIL(&b->error, ERR_LIMIT, "the grammar takes more than %zu bytes to compile", b->arena.bytes_max);
    else if (p == NULL)
        (void)FAIL(&b->error, ERR_NOMEM, "out of memory while compiling a grammar");
    return p;
}

void *build_grow(struct build *b, void *array, size_t used, uint32_t *cap, size_t n, size_t each)
{
    if (used + n <= *cap)
        return array;
    const size_t more = MAX(MAX((size_t)*cap * 2, used + n), (size_t)16);
    void *p = more < UINT32_MAX ? build_take(b, more, each) : NULL;
    if (p == NULL)
        return NULL;
    if (used > 0)
        memcpy(p, array, used * each);
    *cap = (uint32_t)more;
    return p;
}

bool build_is_control(const struct build *b, struct str name)
{
    return b->vocab != NULL && vocab_has_control(b->vocab, name);
}

void build_rule_name(struct build *b, expr_id rule, struct str name)
{
    if (!build_failed(b))
        b->exprs[rule].name = arena_copy_str(&b->arena, name);
}

expr_id expr_new(struct build *b, enum expr_type type, uint32_t height)
{
    struct expr *grown =
        build_failed(b) ? NULL : build_grow(b, b->exprs, b->n_exprs, &b->cap_exprs, 1, sizeof *b->exprs);
    if (grown == NULL || !build_steps(b, 1))
        return 0;
    b->exprs = grown;
    if (height > GRAMMAR_HEIGHT_MAX) {
        (void)FAIL(&b->error, ERR_LIMIT, "the grammar is nested deeper than %d levels", GRAMMAR_HEIGHT_MAX);
        return 0;
    }
    b->exprs[b->n_exprs] = (struct expr){.type = type, .height = height};
    return b->n_exprs++;
}

expr_id expr_bytes(struct build *b, struct str bytes)
{
    if (bytes.n == 0)
        return expr_new(b, EXPR_EMPTY, 1);
    char *copy = build_take(b, bytes.n, 1);
    const expr_id id = expr_new(b, EXPR_BYTES, 1);
    if (id == 0 || bytes.n > GRAMMAR_TEXT_BYTES_MAX)
        return 0;
    memcpy(copy, bytes.p, bytes.n);
    b->exprs[id].u.bytes = copy;
    b->exprs[id].n = (uint32_t)bytes.n;
    return id;
}

expr_id expr_byte(struct build *b, uint8_t byte)
{
    const char c = (char)byte;
    return expr_bytes(b, (struct str){&c, 1});
}

/* Sort by merging runs of doubling length: classes can have thousands of ranges. */
static void ranges_sort(struct code_range *r, struct code_range *tmp, uint32_t n)
{
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t at = 0; at < n; at += 2 * run) {
            uint32_t i = at, j = MIN(at + run, n), k = at;
            const uint32_t ie = j, je = MIN(at + 2 * run, n);
            while (i < ie || j < je)
                tmp[k++] = j >= je || (i < ie && r[i].from <= r[j].from) ? r[i++] : r[j++];
        }
        memcpy(r, tmp, n * sizeof *r);
    }
}

const struct code_range *ranges_sorted(struct build *b, const struct code_range *r, uint32_t *n)
{
    struct code_range *out = build_take(b, (size_t)*n + 1, sizeof *out),
                      *tmp = build_take(b, (size_t)*n + 1, sizeof *tmp);
    if (out == NULL || tmp == NULL || !build_steps(b, *n)) {
        *n = 0;
        return NULL;
    }
    if (*n > 0)
        memcpy(out, r, *n * sizeof *r);
    ranges_sort(out, tmp, *n);
    uint32_t k = 0;
    for (uint32_t i = 0; i < *n; i++) {
        if (k > 0 && out[i].from <= out[k - 1].to + 1)
            out[k - 1].to = MAX(out[k - 1].to, out[i].to);
        else
            out[k++] = out[i];
    }
    *n = k;
    return out;
}

const struct code_range *ranges_not(struct build *b, const struct code_range *r, uint32_t *n)
{
    const struct code_range *sorted = ranges_sorted(b, r, n);
    struct code_range *out = build_take(b, (size_t)*n + 1, sizeof *out);
    if (sorted == NULL || out == NULL) {
        *n = 0;
        return NULL;
    }
    uint32_t k = 0, at = 0;
    for (uint32_t i = 0; i < *n; i++) {
        if (sorted[i].from > at)
            out[k++] = (struct code_range){at, sorted[i].from - 1};
        at = sorted[i].to + 1;
    }
    if (at <= 0x10FFFF)
        out[k++] = (struct code_range){at, 0x10FFFF};
    *n = k;
    return out;
}

expr_id expr_class(struct build *b, const struct code_range *r, uint32_t n)
{
    const struct code_range *sorted = ranges_sorted(b, r, &n);
    struct code_range *kept = build_take(b, (size_t)n + 1, sizeof *kept);
    const expr_id id = kept == NULL || sorted == NULL ? 0 : expr_new(b, EXPR_CLASS, 1);
    if (id == 0)
        return 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) { /* surrogates are not characters */
        static const struct code_range sides[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
        for (size_t side = 0; side < COUNT_OF(sides); side++) {
            const uint32_t from = MAX(sorted[i].from, sides[side].from), to = MIN(sorted[i].to, sides[side].to);
            if (from <= to)
                kept[k++] = (struct code_range){from, to};
        }
    }
    b->exprs[id].u.ranges = kept;
    b->exprs[id].n = k;
    return k == 0 ? 0 : id;
}

expr_id expr_any_char(struct build *b)
{
    if (b->any_char == 0)
        b->any_char = expr_class(b, &(struct code_range){0, 0x10FFFF}, 1);
    return b->any_char;
}

static expr_id expr_list(struct build *b, enum expr_type type, const expr_id *x, uint32_t n)
{
    uint32_t height = 0;
    expr_id *kids = build_take(b, n, sizeof *kids);
    if (kids == NULL)
        return 0;
    memcpy(kids, x, n * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        height = MAX(height, b->exprs[x[i]].height);
    const expr_id id = expr_new(b, type, height + 1);
    if (id == 0)
        return 0;
    b->exprs[id].u.kids = kids;
    b->exprs[id].n = n;
    return id;
}

expr_id expr_seq(struct build *b, const expr_id *x, uint32_t n)
{
    if (build_failed(b) || !build_steps(b, n))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        if (b->exprs[x[i]].type == EXPR_NEVER)
            return 0;
    if (n == 1)
        return x[0];
    return n == 0 ? expr_new(b, EXPR_EMPTY, 1) : expr_list(b, EXPR_SEQ, x, n);
}

expr_id expr_alt(struct build *b, const expr_id *x, uint32_t n)
{
    if (build_failed(b) || !build_steps(b, n))
        return 0;
    expr_id *kids = build_take(b, (size_t)n + 1, sizeof *kids);
    if (kids == NULL)
        return 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (b->exprs[x[i]].type != EXPR_NEVER)
            kids[k++] = x[i];
    if (k <= 1)
        return k == 0 ? 0 : kids[0];
    return expr_list(b, EXPR_ALT, kids, k);
}

expr_id expr_repeat(struct build *b, expr_id x, uint32_t min, uint32_t max)
{
    if (build_failed(b) || min > max)
        return 0;
    const enum expr_type type = b->exprs[x].type;
    if (max == 0 || type == EXPR_EMPTY || (type == EXPR_NEVER && min == 0))
        return expr_new(b, EXPR_EMPTY, 1);
    if (type == EXPR_NEVER || (min == 1 && max == 1))
        return x;
    const expr_id id = expr_new(b, EXPR_REPEAT, b->exprs[x].height + 1);
    if (id == 0)
        return 0;
    b->exprs[id].u.kid = x;
    b->exprs[id].min = min;
    b->exprs[id].max = max;
    return id;
}

expr_id expr_dfa(struct build *b, const struct dfa *d)
{
    bool accepts = false;
    for (uint32_t s = 0; d != NULL && s < d->n && !accepts; s++)
        accepts = d->accept[s];
    const expr_id id = !accepts ? 0 : expr_new(b, EXPR_DFA, 1);
    if (id != 0)
        b->exprs[id].u.dfa = d;
    return id;
}

expr_id expr_graph(struct build *b, uint32_t n_states, const struct expr_edge *edge, uint32_t n_edges)
{
    assert(n_states > 0);
    struct expr_edge *copy = build_take(b, (size_t)n_edges + 1, sizeof *copy);
    if (copy == NULL || !build_steps(b, (uint64_t)n_states + n_edges))
        return 0;
    uint32_t height = 0;
    for (uint32_t i = 0; i < n_edges; i++) {
        assert(edge[i].from < n_states && edge[i].to < n_states);
        copy[i] = edge[i];
        height = MAX(height, b->exprs[edge[i].x].height);
    }
    const expr_id id = expr_new(b, EXPR_GRAPH, height + 1);
    if (id == 0)
        return 0;
    b->exprs[id].u.graph = copy;
    b->exprs[id].n = n_edges;
    b->exprs[id].max = n_states;
    return id;
}

expr_id expr_control(struct build *b, struct str name)
{
    if (!build_is_control(b, name))
        return expr_bytes(b, name);
    return expr_seq(b, (const expr_id[]){expr_byte(b, GRAMMAR_CONTROL), expr_bytes(b, name)}, 2);
}

expr_id expr_rule_new(struct build *b)
{
    return expr_new(b, EXPR_RULE, 1);
}

void expr_rule_set(struct build *b, expr_id rule, expr_id x)
{
    if (build_failed(b) || rule == 0)
        return;
    assert(b->exprs[rule].type == EXPR_RULE);
    b->exprs[rule].u.kid = x;
}
