/* From nodes to expressions. First it is found out which nodes anything satisfies: the least fixed point, so that a
 * schema whose every value would be infinite counts as empty. Nodes without values are left out of arrays and objects,
 * so that no text begins that could not end.
 *
 * Members of an object and items of an array that are counted become graphs: a state is how far the text has come and
 * how many members or matching items were written. A node that is under way when it is met again becomes a rule; others
 * are shared expressions. */
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <string.h>

/* ---- which nodes have values ---- */

static bool may(const struct schema *s, node_id id)
{
    return s->node[id].is_productive;
}

/* Some length between min and max, with as many matching items as there must be. */
static bool array_has_value(const struct schema *s, const struct array_alt *a)
{
    uint64_t can_hit = 0, must_hit = 0;
    const uint64_t last = (uint64_t)a->n_prefix + MAX((uint64_t)a->min, a->hits_min) + 1;
    for (uint64_t i = 0;; i++) {
        if (i >= a->min && can_hit >= a->hits_min && must_hit <= a->hits_max)
            return true;
        if (i >= a->max || i > last || i > SCHEMA_ITEMS_COUNT_MAX + a->n_prefix)
            return i > SCHEMA_ITEMS_COUNT_MAX && i < a->max; /* beyond what is counted here: emitting says so */
        const bool is_rest = i >= a->n_prefix;
        if (!a->has_contains) {
            if (!may(s, is_rest ? a->rest : a->prefix[i]))
                return false;
            if (is_rest)
                return true;
            continue;
        }
        const bool hit = may(s, is_rest ? a->rest_hit : a->prefix_hit[i]);
        const bool miss = may(s, is_rest ? a->rest_miss : a->prefix_miss[i]);
        if (!hit && !miss)
            return false;
        can_hit += hit;
        must_hit += !miss;
    }
}

static bool object_has_value(const struct schema *s, const struct object_alt *o)
{
    uint64_t n_may = 0, n_must = 0;
    for (uint32_t i = 0; i < o->n_slots; i++) {
        if (o->slot[i].is_required && !may(s, o->slot[i].node))
            return false;
        n_may += may(s, o->slot[i].node);
        n_must += o->slot[i].is_required;
    }
    bool has_cell = false;
    for (uint32_t i = 0; i < o->n_cells && !has_cell; i++)
        has_cell = may(s, o->cell[i].node);
    return n_must <= o->max && (has_cell || n_may >= o->min);
}

static bool node_has_value(const struct schema *s, node_id id)
{
    const struct node *n = &s->node[id];
    if ((n->types & T_SCALAR) != 0)
        return true;
    for (const struct array_alt *a = n->arrays; a != NULL; a = a->next)
        if (array_has_value(s, a))
            return true;
    for (const struct object_alt *o = n->objects; o != NULL; o = o->next)
        if (object_has_value(s, o))
            return true;
    return false;
}

static enum err reach(struct schema *s, node_id id, node_id *list, uint32_t *n, struct error *e)
{
    if (s->node[id].is_reached)
        return OK;
    s->node[id].is_reached = true;
    TRY(schema_step(s, 1, e));
    list[(*n)++] = id;
    return OK;
}

static enum err reach_from(struct schema *s, node_id id, node_id *list, uint32_t *n, struct error *e)
{
    for (const struct array_alt *a = s->node[id].arrays; a != NULL; a = a->next) {
        for (uint32_t i = 0; i <= a->n_prefix; i++) {
            TRY(reach(s, i < a->n_prefix ? a->prefix[i] : a->rest, list, n, e));
            if (a->has_contains) {
                TRY(reach(s, i < a->n_prefix ? a->prefix_hit[i] : a->rest_hit, list, n, e));
                TRY(reach(s, i < a->n_prefix ? a->prefix_miss[i] : a->rest_miss, list, n, e));
            }
        }
    }
    for (const struct object_alt *o = s->node[id].objects; o != NULL; o = o->next) {
        for (uint32_t i = 0; i < o->n_slots; i++)
            TRY(reach(s, o->slot[i].node, list, n, e));
        for (uint32_t i = 0; i < o->n_cells; i++)
            TRY(reach(s, o->cell[i].node, list, n, e));
    }
    return OK;
}

/* Open every node that the root needs, then find those with values. */
static enum err find_values(struct schema *s, node_id root, struct error *e)
{
    node_id *list = schema_take(s, SCHEMA_NODES_MAX, sizeof *list, e);
    uint32_t n = 0;
    if (list == NULL)
        return e->code;
    TRY(reach(s, root, list, &n, e));
    for (uint32_t i = 0; i < n; i++) {
        TRY(schema_node_open(s, list[i], e));
        TRY(reach_from(s, list[i], list, &n, e));
    }
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        for (uint32_t i = n; i > 0; i--) { /* those met last are nearest to the leaves */
            struct node *x = &s->node[list[i - 1]];
            TRY(schema_step(s, 1, e));
            if (x->is_productive || !node_has_value(s, list[i - 1]))
                continue;
            x->is_productive = true;
            is_changed = true;
        }
    }
    return OK;
}

/* ---- expressions ---- */

static expr_id pair(struct schema *s, expr_id a, expr_id b)
{
    const expr_id list[] = {a, b};
    return expr_seq(s->b, list, 2);
}

static expr_id triple(struct schema *s, expr_id a, expr_id b, expr_id c)
{
    const expr_id list[] = {a, b, c};
    return expr_seq(s->b, list, 3);
}

struct emit {
    struct schema *s;
    node_id *later; /* nodes whose rules are to be written */
    uint32_t n_later, cap_later;
    uint32_t depth;
    struct error *e;
};

static enum err node_expr(struct emit *m, node_id id, expr_id *out);

struct graph {
    struct expr_edge *edge;
    uint32_t n_edges, cap_edges, n_states;
};

static enum err graph_edge(struct emit *m, struct graph *g, uint32_t from, uint32_t to, expr_id x)
{
    TRY(schema_step(m->s, 1, m->e));
    TRY(schema_grow(m->s, (void **)&g->edge, g->n_edges, &g->cap_edges, sizeof g->edge[0], m->e));
    g->edge[g->n_edges++] = (struct expr_edge){from, to, x};
    return OK;
}

static enum err words_add(struct schema *s, const struct str_list **words, struct str text, struct error *e)
{
    struct str_list *w = schema_take(s, 1, sizeof *w, e);
    if (w == NULL)
        return e->code;
    *w = (struct str_list){text, *words};
    *words = w;
    return schema_step(s, 1, e);
}

/* Everything that is one of finitely many texts: null, true, false, enums of strings and numbers. */
static enum err literal_words(struct schema *s, node_id id, const struct str_list **words, struct error *e)
{
    const struct node *n = &s->node[id];
    if ((n->types & T_NULL) != 0)
        TRY(words_add(s, words, STR("null"), e));
    if ((n->types & T_TRUE) != 0)
        TRY(words_add(s, words, STR("true"), e));
    if ((n->types & T_FALSE) != 0)
        TRY(words_add(s, words, STR("false"), e));
    for (const struct str_list *w = n->str_set; w != NULL && !n->is_any_string; w = w->next) {
        struct str text;
        TRY(schema_json_text(s, w->s, &text, e));
        TRY(words_add(s, words, text, e));
    }
    for (const struct dec_list *d = n->num_set; d != NULL; d = d->next) {
        char text[DEC_TEXTS_MAX][DEC_TEXT_BYTES_MAX];
        const uint32_t k = dec_texts(&d->v, text);
        for (uint32_t i = 0; i < k; i++) {
            const size_t len = strlen(text[i]);
            char *copy = schema_take(s, len + 1, 1, e);
            if (copy == NULL)
                return e->code;
            memcpy(copy, text[i], len);
            TRY(words_add(s, words, (struct str){copy, len}, e));
        }
    }
    return OK;
}

static enum err scalar_expr(struct emit *m, node_id id, expr_id *out)
{
    struct schema *s = m->s;
    const struct str_list *words = NULL;
    expr_id list[3];
    uint32_t n = 0;
    TRY(literal_words(s, id, &words, m->e));
    if (words != NULL && words->next == NULL)
        list[n++] = expr_bytes(s->b, words->s);
    else if (words != NULL) {
        const struct lang *lang;
        TRY(schema_words_lang(s, words, &lang, m->e));
        list[n++] = expr_lang(s->b, lang);
    }
    const struct node *x = &s->node[id];
    if (x->num != NULL)
        list[n++] = expr_lang(s->b, x->num);
    const struct lang *str = x->is_any_string ? lang_any(s->b, m->e) : x->str;
    if (x->is_any_string && str == NULL)
        return m->e->code;
    if (str != NULL)
        list[n++] = expr_json_string(s->b, str);
    *out = expr_alt(s->b, list, n);
    return OK;
}

/* ---- arrays: "[" blank (item blank ("," blank item blank)*)? "]" ---- */

static enum err item_expr(struct emit *m, node_id id, expr_id *out)
{
    expr_id x;
    TRY(node_expr(m, id, &x));
    *out = pair(m->s, x, m->s->blank);
    return OK;
}

/* Without contains: the prefix is a graph, the rest is counted by a repeat. */
static enum err plain_array(struct emit *m, const struct array_alt *a, expr_id *out)
{
    struct schema *s = m->s;
    const expr_id empty = expr_seq(s->b, NULL, 0);
    struct graph g = {0};
    uint32_t n = 0; /* items of their own that may be there */
    while (n < a->n_prefix && may(s, a->prefix[n]))
        n++;
    const bool is_cut = n < a->n_prefix;
    const uint32_t end = n + 1;
    for (uint32_t i = 0; i < n; i++) {
        expr_id x;
        TRY(item_expr(m, a->prefix[i], &x));
        TRY(graph_edge(m, &g, i, i + 1, i > 0 ? pair(s, s->comma, x) : x));
        if (i >= a->min)
            TRY(graph_edge(m, &g, i, end, empty));
    }
    const bool has_rest = !is_cut && a->max > n && may(s, a->rest);
    if (has_rest) {
        expr_id x;
        const uint32_t min = a->min > n ? a->min - n : 0, max = a->max == NO_MAX ? EXPR_UNBOUNDED : a->max - n;
        TRY(item_expr(m, a->rest, &x));
        const expr_id more = pair(s, s->comma, x);
        expr_id all = expr_repeat(s->b, more, min, max);
        if (n == 0) { /* the first has no comma */
            all = pair(s, x, expr_repeat(s->b, more, min > 0 ? min - 1 : 0, max == EXPR_UNBOUNDED ? max : max - 1));
            if (min == 0)
                TRY(graph_edge(m, &g, 0, end, empty));
        }
        TRY(graph_edge(m, &g, n, end, all));
    } else if (n >= a->min)
        TRY(graph_edge(m, &g, n, end, empty));
    *out = g.n_edges > 0 ? expr_graph(s->b, end + 1, g.edge, g.n_edges) : expr_alt(s->b, NULL, 0);
    return OK;
}

/* With contains: states are (items so far, matching items so far), both up to where they stop to matter. */
static enum err counted_array(struct emit *m, const struct array_alt *a, expr_id *out)
{
    struct schema *s = m->s;
    const expr_id empty = expr_seq(s->b, NULL, 0);
    const uint32_t hits = a->hits_max == NO_MAX ? a->hits_min : a->hits_max + 1;
    const uint32_t items = a->max == NO_MAX ? MAX(a->min, MAX(a->n_prefix, 1)) : a->max;
    if (items > SCHEMA_ITEMS_COUNT_MAX || hits > SCHEMA_ITEMS_COUNT_MAX ||
        (uint64_t)(items + 1) * (hits + 1) > SCHEMA_GRAPH_MAX)
        return FAIL(m->e, ERR_LIMIT, "contains with minItems, maxItems or minContains takes more than %d states",
            SCHEMA_GRAPH_MAX);
    const uint32_t width = hits + 1, end = 3 * (items + 1) * width;
    struct graph g = {0};
    for (uint32_t i = 0; i <= items; i++) {
        const bool is_last = a->max != NO_MAX && i == items;
        const uint32_t k = MIN(i, a->n_prefix), to = i < items ? i + 1 : i;
        expr_id hit = 0, miss = 0;
        const node_id h = k < a->n_prefix ? a->prefix_hit[k] : a->rest_hit;
        const node_id w = k < a->n_prefix ? a->prefix_miss[k] : a->rest_miss;
        if (!is_last && may(s, h))
            TRY(item_expr(m, h, &hit));
        if (!is_last && may(s, w))
            TRY(item_expr(m, w, &miss));
        for (uint32_t c = 0; c <= hits; c++) {
            const uint32_t at = 3 * (i * width + c);
            const bool is_over = a->hits_max != NO_MAX && c > a->hits_max;
            if (is_over)
                continue;
            if (i >= a->min && c >= a->hits_min)
                TRY(graph_edge(m, &g, at, end, empty));
            if (is_last)
                continue;
            TRY(graph_edge(m, &g, at, at + 1, i > 0 ? s->comma : empty));
            if (hit != 0)
                TRY(graph_edge(m, &g, at + 1, 3 * (to * width + MIN(c + 1, hits)), hit));
            if (miss != 0)
                TRY(graph_edge(m, &g, at + 1, 3 * (to * width + c), miss));
        }
    }
    *out = expr_graph(s->b, end + 1, g.edge, g.n_edges);
    return OK;
}

static enum err array_expr(struct emit *m, const struct array_alt *a, expr_id *out)
{
    expr_id body = 0;
    struct schema *s = m->s;
    TRY(a->has_contains ? counted_array(m, a, &body) : plain_array(m, a, &body));
    const expr_id open = pair(s, expr_bytes(s->b, STR("[")), s->blank);
    *out = triple(s, open, body, expr_bytes(s->b, STR("]")));
    return OK;
}

/* ---- objects: "{" blank (key ":" value blank ("," blank key ":" value blank)*)? "}" ---- */

static enum err member_expr(struct emit *m, expr_id key, node_id node, expr_id *out)
{
    expr_id value;
    TRY(item_expr(m, node, &value));
    *out = triple(m->s, key, m->s->colon, value);
    return OK;
}

static enum err slot_expr(struct emit *m, const struct slot *slot, expr_id *out)
{
    struct str key;
    TRY(schema_json_text(m->s, slot->name, &key, m->e));
    return member_expr(m, expr_bytes(m->s->b, key), slot->node, out);
}

static enum err cells_expr(struct emit *m, const struct object_alt *o, expr_id *out)
{
    struct schema *s = m->s;
    expr_id *list = schema_take(s, (size_t)o->n_cells + 1, sizeof *list, m->e);
    uint32_t n = 0;
    if (list == NULL)
        return m->e->code;
    for (uint32_t i = 0; i < o->n_cells; i++) {
        if (!may(s, o->cell[i].node))
            continue;
        const struct lang *keys = o->cell[i].keys != NULL ? o->cell[i].keys : lang_any(s->b, m->e);
        if (keys == NULL)
            return m->e->code;
        const expr_id quote = expr_bytes(s->b, STR("\""));
        const expr_id key =
            o->cell[i].is_spelled ? triple(s, quote, expr_lang(s->b, keys), quote) : expr_json_string(s->b, keys);
        TRY(member_expr(m, key, o->cell[i].node, &list[n]));
        n++;
    }
    *out = expr_alt(s->b, list, n);
    return OK;
}

/* States: (slots passed, members written), each twice: before and behind the comma. Members are counted up to `top`;
 * beyond, where nothing more depends on it, they stay there. */
static enum err object_body(struct emit *m, const struct object_alt *o, expr_id *out)
{
    struct schema *s = m->s;
    const expr_id empty = expr_seq(s->b, NULL, 0);
    bool has_cell = false;
    for (uint32_t i = 0; i < o->n_cells; i++)
        has_cell = has_cell || may(s, o->cell[i].node);
    const bool is_open = o->max == NO_MAX || (!has_cell && o->max >= o->n_slots);
    const uint32_t top = is_open ? MAX(MIN(o->min, NO_MAX - 1), 1) : o->max;
    if ((uint64_t)(o->n_slots + 1) * ((uint64_t)top + 1) > SCHEMA_GRAPH_MAX)
        return FAIL(m->e, ERR_LIMIT, "minProperties or maxProperties takes more than %d states", SCHEMA_GRAPH_MAX);
    const uint32_t width = top + 1, end = 2 * (o->n_slots + 1) * width;
    bool *is_used = schema_take(s, (size_t)(o->n_slots + 2) * width, sizeof *is_used, m->e);
    if (is_used == NULL)
        return m->e->code;
    struct graph g = {0};
    is_used[0] = true;
    for (uint32_t i = 0; i <= o->n_slots; i++) {
        const bool is_cells = i == o->n_slots;
        const uint32_t next = is_cells ? i : i + 1;
        const bool may_be = is_cells ? has_cell : may(s, o->slot[i].node);
        expr_id member = 0;
        if (may_be)
            TRY(is_cells ? cells_expr(m, o, &member) : slot_expr(m, &o->slot[i], &member));
        for (uint32_t c = 0; c <= top; c++) {
            const uint32_t at = i * width + c, then = MIN(c + 1, top);
            if (!is_used[at])
                continue;
            if (is_cells && c >= o->min)
                TRY(graph_edge(m, &g, 2 * at, end, empty));
            if (!is_cells && !o->slot[i].is_required) {
                TRY(graph_edge(m, &g, 2 * at, 2 * (next * width + c), empty));
                is_used[next * width + c] = true;
            }
            if (!may_be || (!is_open && c == top))
                continue;
            TRY(graph_edge(m, &g, 2 * at, 2 * (i * width + then) + 1, c > 0 ? s->comma : empty));
            is_used[next * width + then] = true;
        }
        for (uint32_t c = 1; c <= top && may_be; c++)
            TRY(graph_edge(m, &g, 2 * (i * width + c) + 1, 2 * (next * width + c), member));
    }
    *out = expr_graph(s->b, end + 1, g.edge, g.n_edges);
    return OK;
}

static enum err object_expr(struct emit *m, const struct object_alt *o, expr_id *out)
{
    struct schema *s = m->s;
    expr_id body = 0;
    TRY(object_body(m, o, &body));
    const expr_id open = pair(s, expr_bytes(s->b, STR("{")), s->blank);
    *out = triple(s, open, body, expr_bytes(s->b, STR("}")));
    return OK;
}

/* ---- nodes ---- */

static enum err node_body(struct emit *m, node_id id, expr_id *out)
{
    struct schema *s = m->s;
    uint32_t n = 1;
    for (const struct array_alt *a = s->node[id].arrays; a != NULL; a = a->next)
        n++;
    for (const struct object_alt *o = s->node[id].objects; o != NULL; o = o->next)
        n++;
    expr_id *list = schema_take(s, n, sizeof *list, m->e);
    if (list == NULL)
        return m->e->code;
    n = 0;
    for (const struct array_alt *a = s->node[id].arrays; a != NULL; a = a->next)
        if (array_has_value(s, a)) {
            TRY(array_expr(m, a, &list[n]));
            n++;
        }
    for (const struct object_alt *o = s->node[id].objects; o != NULL; o = o->next)
        if (object_has_value(s, o)) {
            TRY(object_expr(m, o, &list[n]));
            n++;
        }
    TRY(scalar_expr(m, id, &list[n]));
    *out = expr_alt(s->b, list, n + 1);
    return OK;
}

static enum err rule_for(struct emit *m, node_id id, bool is_later)
{
    struct node *x = &m->s->node[id];
    if (!x->has_rule) {
        x->has_rule = true;
        x->rule = expr_rule_new(m->s->b);
    }
    if (!is_later)
        return OK;
    x->is_emitted = true;
    x->expr = x->rule;
    TRY(schema_grow(m->s, (void **)&m->later, m->n_later, &m->cap_later, sizeof m->later[0], m->e));
    m->later[m->n_later++] = id;
    return OK;
}

static enum err node_expr(struct emit *m, node_id id, expr_id *out)
{
    struct schema *s = m->s;
    TRY(schema_step(s, 1, m->e));
    if (!s->node[id].is_emitted && !s->node[id].is_emitting && m->depth >= SCHEMA_EMIT_DEPTH)
        TRY(rule_for(m, id, true));
    if (s->node[id].is_emitted) {
        *out = s->node[id].expr;
        return OK;
    }
    if (s->node[id].is_emitting) {
        TRY(rule_for(m, id, false));
        *out = s->node[id].rule;
        return OK;
    }
    s->node[id].is_emitting = true;
    m->depth++;
    TRY(node_body(m, id, out));
    m->depth--;
    s->node[id].is_emitting = false;
    s->node[id].is_emitted = true;
    if (s->node[id].has_rule) {
        expr_rule_set(s->b, s->node[id].rule, *out);
        *out = s->node[id].rule;
    }
    s->node[id].expr = *out;
    return OK;
}

static void blanks(struct schema *s)
{
    struct build *b = s->b;
    const expr_id colon = expr_bytes(b, STR(":")), comma = expr_bytes(b, STR(","));
    static const struct code_range blank[] = {{' ', ' '}, {'\t', '\t'}};
    if (s->ws == GRAMMAR_WS_FLEXIBLE) {
        const expr_id one = expr_class(b, blank, 2);
        const expr_id line = triple(s, expr_repeat(b, expr_bytes(b, STR("\r")), 0, 1), expr_bytes(b, STR("\n")),
            expr_repeat(b, one, 0, SCHEMA_INDENT_MAX));
        s->blank = pair(s, expr_repeat(b, one, 0, SCHEMA_BLANKS_MAX), expr_repeat(b, line, 0, 1));
        s->comma = pair(s, comma, s->blank);
        s->colon = triple(s, s->blank, colon, s->blank);
        return;
    }
    const expr_id gap = expr_bytes(b, s->ws == GRAMMAR_WS_SPACED ? STR(" ") : STR(""));
    s->blank = expr_seq(b, NULL, 0);
    s->comma = pair(s, comma, gap);
    s->colon = pair(s, colon, gap);
}

enum err schema_emit(struct schema *s, node_id root, expr_id *out, struct error *e)
{
    struct emit m = {.s = s, .e = e};
    TRY(find_values(s, root, e));
    if (!may(s, root))
        return FAIL(e, ERR_INVALID, "no value can satisfy the schema");
    blanks(s);
    TRY(node_expr(&m, root, out));
    for (uint32_t i = 0; i < m.n_later; i++) {
        expr_id x;
        m.depth = 0;
        TRY(node_body(&m, m.later[i], &x));
        expr_rule_set(s->b, s->node[m.later[i]].rule, x);
    }
    if (s->ws == GRAMMAR_WS_FLEXIBLE)
        *out = pair(s, s->blank, *out);
    return OK;
}
