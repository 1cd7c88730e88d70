/* Nodes: sets of conditions, each set once, and how one is taken apart. See schema_way.h for the terms.
 *
 * The number of ways is where schemas explode (an allOf of n anyOfs of two has 2^n), so it is bounded for each node,
 * and conditions that leave no choice are applied before any fork is taken, since they may leave branches dead. */
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/schema_way.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets of conditions ---- */

static int by_lit(const void *a, const void *b)
{
    const lit_id x = *(const lit_id *)a, y = *(const lit_id *)b;
    return (x > y) - (x < y);
}

/* A schema that is only a reference is what it refers to; one without keywords is true. */
lit_id schema_simplest(const struct schema *s, lit_id lit)
{
    for (int i = 0; i <= SCHEMA_REF_DEPTH_MAX && (lit & 3) <= LIT_IS_NOT; i++) {
        const struct place *p = &s->place[lit >> 2];
        if (!json_is_object(p->j))
            break;
        if (json_object_size(p->j) == 0)
            return (lit & 3) == LIT_IS ? LIT_TRUE : LIT_FALSE;
        if (json_object_size(p->j) > 1 || json_object_get(p->j, "$ref") == NULL)
            break;
        const bool is = (lit & 3) == LIT_IS;
        if (p->ref == UINT32_MAX)
            return is ? LIT_FALSE : LIT_TRUE;
        lit = p->ref << 2 | (lit & 3);
    }
    return lit;
}

static enum err node_table_grow(struct schema *s, struct error *e)
{
    const uint32_t n = MAX(s->n_node_table * 2, 256u);
    uint32_t *table = schema_take(s, n, sizeof *table, e);
    if (table == NULL)
        return e->code;
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        uint64_t at = hash64(s->node[i].lit, s->node[i].n_lits * sizeof(lit_id), 0) & (n - 1);
        while (table[at] != 0)
            at = (at + 1) & (n - 1);
        table[at] = i + 1;
    }
    s->node_table = table;
    s->n_node_table = n;
    return OK;
}

enum err schema_node_of(struct schema *s, const lit_id *lit, uint32_t n, node_id *out, struct error *e)
{
    TRY(schema_step(s, 1 + n, e));
    lit_id *set = schema_take(s, n + 1, sizeof *set, e);
    if (set == NULL)
        return e->code;
    uint32_t m = 0;
    for (uint32_t i = 0; i < n; i++) {
        const lit_id x = schema_simplest(s, lit[i]);
        if (x != LIT_TRUE)
            set[m++] = x;
    }
    qsort(set, m, sizeof *set, by_lit);
    uint32_t kept = 0;
    bool is_false = false;
    for (uint32_t i = 0; i < m; i++) {
        is_false = is_false || set[i] == LIT_FALSE || (kept > 0 && (set[kept - 1] ^ set[i]) == 1);
        if (kept == 0 || set[kept - 1] != set[i])
            set[kept++] = set[i];
    }
    if (is_false) {
        set[0] = LIT_FALSE;
        kept = 1;
    }
    if (2 * (s->n_nodes + 1) >= s->n_node_table)
        TRY(node_table_grow(s, e));
    uint64_t at = hash64(set, kept * sizeof *set, 0) & (s->n_node_table - 1);
    for (; s->node_table[at] != 0; at = (at + 1) & (s->n_node_table - 1)) {
        const struct node *x = &s->node[s->node_table[at] - 1];
        if (x->n_lits == kept && memcmp(x->lit, set, kept * sizeof *set) == 0) {
            *out = s->node_table[at] - 1;
            return OK;
        }
    }
    if (s->n_nodes >= SCHEMA_NODES_MAX)
        return FAIL(e, ERR_LIMIT, "the schema has more than %d different parts", SCHEMA_NODES_MAX);
    TRY(schema_grow(s, (void **)&s->node, s->n_nodes, &s->cap_nodes, sizeof s->node[0], e));
    s->node[s->n_nodes] = (struct node){.lit = set, .n_lits = kept};
    *out = s->n_nodes++;
    s->node_table[at] = s->n_nodes;
    return OK;
}

/* ---- effects ---- */

enum err effect_add(struct schema *s, const struct effect **list, struct effect x, struct error *e)
{
    struct effect *copy = schema_take(s, 1, sizeof *copy, e);
    if (copy == NULL)
        return e->code;
    *copy = x;
    copy->next = *list;
    *list = copy;
    return schema_step(s, 1, e);
}

enum err choice_add(struct schema *s, const struct choice **list, const struct effect *effects, struct error *e)
{
    struct choice *c = schema_take(s, 1, sizeof *c, e);
    if (c == NULL)
        return e->code;
    *c = (struct choice){effects, *list};
    *list = c;
    return OK;
}

enum err way_fork(struct schema *s, struct way *w, const struct choice *choices, struct error *e)
{
    if (choices == NULL) {
        w->shape.types = 0;
        return OK;
    }
    if (choices->next == NULL) {
        for (const struct effect *x = choices->effects; x != NULL; x = x->next)
            TRY(way_apply(s, w, x, e));
        return OK;
    }
    struct fork *f = schema_take(s, 1, sizeof *f, e);
    if (f == NULL)
        return e->code;
    *f = (struct fork){choices, w->scope, w->forks};
    w->forks = f;
    return OK;
}

enum err way_lit(struct schema *s, struct way *w, lit_id lit, struct error *e)
{
    struct lit_list *x = schema_take(s, 1, sizeof *x, e);
    if (x == NULL)
        return e->code;
    *x = (struct lit_list){lit, w->scope, w->todo};
    w->todo = x;
    return OK;
}

static enum err apply_num(struct schema *s, struct shape *sh, const struct effect *x, struct error *e)
{
    struct num_rule *r = &sh->num;
    int order = 0;
    switch (x->kind) {
    case EFFECT_INTS:
        if (r->ints != INT_ANY && r->ints != (enum int_kind)x->a)
            sh->types &= (uint8_t)~T_NUMBER;
        r->ints = (enum int_kind)x->a;
        break;
    case EFFECT_LO:
        order = r->has_lo ? dec_compare(&x->dec, &r->lo) : 1;
        if (order > 0 || (order == 0 && x->flag)) {
            r->has_lo = true;
            r->lo = x->dec;
            r->is_lo_open = x->flag;
        }
        break;
    case EFFECT_HI:
        order = r->has_hi ? dec_compare(&x->dec, &r->hi) : -1;
        if (order < 0 || (order == 0 && x->flag)) {
            r->has_hi = true;
            r->hi = x->dec;
            r->is_hi_open = x->flag;
        }
        break;
    default: {
        struct dec_list *d = schema_take(s, 1, sizeof *d, e);
        if (d == NULL)
            return e->code;
        const struct dec_list **list = x->kind == EFFECT_MULTIPLE ? &r->multiple : &r->excluded;
        for (const struct dec_list *y = *list; y != NULL; y = y->next)
            if (dec_compare(&y->v, &x->dec) == 0 && y->is_denied == x->flag)
                return OK;
        *d = (struct dec_list){x->dec, x->flag, *list};
        *list = d;
    }
    }
    if (r->has_lo && r->has_hi) {
        order = dec_compare(&r->lo, &r->hi);
        if (order > 0 || (order == 0 && (r->is_lo_open || r->is_hi_open)))
            sh->types &= (uint8_t)~T_NUMBER;
    }
    return OK;
}

static enum err apply_num_set(struct schema *s, struct shape *sh, const struct effect *x, struct error *e)
{
    const struct dec_list *kept = NULL;
    for (const struct dec_list *d = x->decs; d != NULL; d = d->next) {
        bool is_in = !sh->num.has_set;
        for (const struct dec_list *o = sh->num.set; o != NULL && !is_in; o = o->next)
            is_in = dec_compare(&o->v, &d->v) == 0;
        TRY(schema_step(s, 1, e));
        if (!is_in)
            continue;
        struct dec_list *copy = schema_take(s, 1, sizeof *copy, e);
        if (copy == NULL)
            return e->code;
        *copy = (struct dec_list){.v = d->v, .next = kept};
        kept = copy;
    }
    sh->num.has_set = true;
    sh->num.set = kept;
    if (kept == NULL)
        sh->types &= (uint8_t)~T_NUMBER;
    return OK;
}

static enum err apply_str_set(struct schema *s, struct shape *sh, const struct effect *x, struct error *e)
{
    const struct str_list *kept = NULL;
    uint64_t looked = 0;
    for (const struct str_list *d = x->strs; d != NULL; d = d->next) {
        bool is_in = !sh->has_str_set;
        for (const struct str_list *o = sh->str_set; o != NULL && !is_in; o = o->next, looked++)
            is_in = str_eq(o->s, d->s);
        TRY(schema_step(s, 1 + looked / 16, e));
        looked %= 16;
        if (!is_in)
            continue;
        struct str_list *copy = schema_take(s, 1, sizeof *copy, e);
        if (copy == NULL)
            return e->code;
        *copy = (struct str_list){d->s, kept};
        kept = copy;
    }
    sh->has_str_set = true;
    sh->str_set = kept;
    if (kept == NULL)
        sh->types &= (uint8_t)~T_STRING;
    return OK;
}

static enum err both_langs(struct schema *s, const struct lang **x, const struct lang *y, struct error *e)
{
    *x = *x == NULL ? y : lang_and(s->b, *x, y, e);
    return *x != NULL ? OK : e->code;
}

static enum err apply_rule(
    struct schema *s, struct shape *sh, const struct effect *x, const struct scope *scope, struct error *e)
{
    if (x->kind == EFFECT_REST) {
        struct rest_rule *r = schema_take(s, 1, sizeof *r, e);
        if (r == NULL)
            return e->code;
        const struct rest_rule **list = x->flag ? &sh->rest_items : &sh->rest_members;
        *r = (struct rest_rule){x->lit, scope, *list};
        *list = r;
        return OK;
    }
    if (x->kind == EFFECT_MEMBER) {
        struct member_rule *m = schema_take(s, 1, sizeof *m, e);
        if (m == NULL)
            return e->code;
        *m = (struct member_rule){x->name, x->lit, x->flag, sh->members};
        sh->members = m;
    } else if (x->kind == EFFECT_OBJECT) {
        struct object_rule *o = schema_take(s, 1, sizeof *o, e);
        if (o == NULL)
            return e->code;
        *o = (struct object_rule){x->lit, scope, sh->objects};
        sh->objects = o;
    } else {
        struct array_rule *a = schema_take(s, 1, sizeof *a, e);
        if (a == NULL)
            return e->code;
        *a = (struct array_rule){x->lit, x->a, scope, sh->items};
        sh->items = a;
    }
    return OK;
}

static enum err apply_contains(struct schema *s, struct shape *sh, const struct effect *x, struct error *e)
{
    if (sh->has_contains && sh->contains == x->lit) {
        sh->contains_min = MAX(sh->contains_min, x->a);
        sh->contains_max = MIN(sh->contains_max, x->b);
        return OK;
    }
    if (sh->has_contains)
        return schema_refuse(s, x->place, "contains", "two different ones for the same array are not supported", e);
    sh->has_contains = true;
    sh->contains = x->lit;
    sh->contains_min = x->a;
    sh->contains_max = x->b;
    return OK;
}

static void narrow(uint32_t *min, uint32_t *max, const struct effect *x, uint8_t *types, uint8_t type)
{
    *min = MAX(*min, x->a);
    *max = MIN(*max, x->b);
    if (*min > *max)
        *types &= (uint8_t)~type;
}

enum err way_apply(struct schema *s, struct way *w, const struct effect *x, struct error *e)
{
    struct shape *sh = &w->shape;
    TRY(schema_step(s, 1, e));
    switch (x->kind) {
    case EFFECT_LIT: return way_lit(s, w, x->lit, e);
    case EFFECT_TYPES: sh->types &= (uint8_t)x->a; return OK;
    case EFFECT_INTS:
    case EFFECT_LO:
    case EFFECT_HI:
    case EFFECT_MULTIPLE:
    case EFFECT_NUM_NOT: return apply_num(s, sh, x, e);
    case EFFECT_NUM_SET: return apply_num_set(s, sh, x, e);
    case EFFECT_STR_SET: return apply_str_set(s, sh, x, e);
    case EFFECT_LENGTH: narrow(&sh->len_min, &sh->len_max, x, &sh->types, T_STRING); return OK;
    case EFFECT_ITEMS: narrow(&sh->items_min, &sh->items_max, x, &sh->types, T_ARRAY); return OK;
    case EFFECT_PROPS: narrow(&sh->props_min, &sh->props_max, x, &sh->types, T_OBJECT); return OK;
    case EFFECT_LANG: return (sh->types & T_STRING) == 0 ? OK : both_langs(s, &sh->str, x->lang, e);
    case EFFECT_NAMES: return both_langs(s, &sh->names, x->lang, e);
    case EFFECT_CONTAINS: return apply_contains(s, sh, x, e);
    case EFFECT_MEMBER:
    case EFFECT_OBJECT:
    case EFFECT_REST:
    case EFFECT_ARRAY: return apply_rule(s, sh, x, w->scope, e);
    }
    return OK;
}

/* ---- taking a node apart ---- */

static enum err do_lit(struct schema *s, struct way *w, lit_id lit, struct error *e)
{
    for (const struct lit_list *d = w->done; d != NULL; d = d->next)
        if (d->lit == lit && d->scope == w->scope)
            return OK;
    struct lit_list *done = schema_take(s, 1, sizeof *done, e);
    if (done == NULL)
        return e->code;
    *done = (struct lit_list){lit, w->scope, w->done};
    w->done = done;
    const uint32_t place = lit >> 2;
    if (lit == LIT_TRUE)
        return OK;
    if (lit == LIT_FALSE) {
        w->shape.types = 0;
        return OK;
    }
    switch ((enum lit_kind)(lit & 3)) {
    case LIT_IS: return schema_apply(s, w, place, e);
    case LIT_IS_NOT: return schema_deny(s, w, place, e);
    case LIT_EQUALS: return schema_apply_value(s, w, place, e);
    case LIT_DIFFERS: return schema_deny_value(s, w, place, e);
    }
    return OK;
}

struct ways {
    struct way *way;
    uint32_t n, cap;
    uint32_t n_made;
};

static enum err ways_push(
    struct schema *s, struct ways *ws, const struct way *w, const struct effect *effects, struct error *e)
{
    struct way copy = *w;
    for (const struct effect *x = effects; x != NULL; x = x->next)
        TRY(way_apply(s, &copy, x, e));
    if (copy.shape.types == 0)
        return OK;
    if (++ws->n_made > SCHEMA_WAYS_MAX)
        return FAIL(e, ERR_LIMIT, "the schema's anyOf, oneOf and the like combine to more than %d alternatives",
            SCHEMA_WAYS_MAX);
    TRY(schema_step(s, 4, e));
    TRY(schema_grow(s, (void **)&ws->way, ws->n, &ws->cap, sizeof ws->way[0], e));
    ws->way[ws->n++] = copy;
    return OK;
}

static enum err way_run(struct schema *s, node_id id, struct way *w, struct ways *ws, struct error *e)
{
    while (w->todo != NULL && w->shape.types != 0) {
        const lit_id lit = w->todo->lit;
        w->scope = (lit & 3) == LIT_IS ? w->todo->scope : NULL; /* what is denied evaluates nothing */
        w->todo = w->todo->next;
        TRY(do_lit(s, w, lit, e));
    }
    if (w->shape.types == 0)
        return OK;
    if (w->forks == NULL)
        return schema_shape_close(s, id, &w->shape, e);
    const struct fork *f = w->forks;
    w->forks = f->next;
    w->scope = f->scope;
    for (const struct choice *c = f->choices; c != NULL; c = c->next) /* the last is put first: the stack turns it */
        TRY(ways_push(s, ws, w, c->effects, e));
    return OK;
}

static enum err node_run(struct schema *s, node_id id, struct error *e)
{
    struct way first = {
        .shape = {.types = T_ALL, .len_max = NO_MAX, .items_max = NO_MAX, .props_max = NO_MAX, .contains_max = NO_MAX}};
    struct ways ws = {0};
    for (uint32_t i = s->node[id].n_lits; i > 0; i--)
        TRY(way_lit(s, &first, s->node[id].lit[i - 1], e));
    TRY(ways_push(s, &ws, &first, NULL, e));
    while (ws.n > 0) {
        struct way w = ws.way[--ws.n];
        TRY(way_run(s, id, &w, &ws, e));
    }
    return OK;
}

enum err schema_node_open(struct schema *s, node_id id, struct error *e)
{
    if (s->node[id].state != NODE_NEW)
        return OK;
    s->node[id].state = NODE_OPEN;
    const enum err err = node_run(s, id, e);
    if (err == OK)
        s->node[id].state = NODE_CLOSED;
    else /* who only asked whether it is empty goes on; who needs it will meet the same error */
        s->node[id] = (struct node){.lit = s->node[id].lit, .n_lits = s->node[id].n_lits};
    return err;
}

/* ---- whether anything satisfies a node: a cheap answer, for oneOf ---- */

static bool is_empty(struct schema *s, node_id id, int depth)
{
    struct error e = {0};
    if (s->node[id].is_proven_empty)
        return true;
    if (depth == 0 || s->node[id].state == NODE_OPEN || schema_node_open(s, id, &e) != OK)
        return false;
    if ((s->node[id].types & T_SCALAR) != 0)
        return false;
    for (const struct array_alt *a = s->node[id].arrays; a != NULL; a = a->next) {
        bool is_dead = false;
        for (uint32_t i = 0; i < MIN(a->min, a->n_prefix + 1) && !is_dead; i++)
            is_dead = is_empty(s, i < a->n_prefix ? a->prefix[i] : a->rest, depth - 1);
        if (!is_dead)
            return false;
    }
    for (const struct object_alt *o = s->node[id].objects; o != NULL; o = o->next) {
        bool is_dead = false;
        for (uint32_t i = 0; i < o->n_slots && !is_dead; i++)
            is_dead = o->slot[i].is_required && is_empty(s, o->slot[i].node, depth - 1);
        if (!is_dead)
            return false;
    }
    s->node[id].is_proven_empty = true;
    return true;
}

bool schema_is_disjoint(struct schema *s, const lit_id *lit, uint32_t n)
{
    struct error e = {0};
    node_id id = 0;
    if (s->disjoint_depth >= SCHEMA_DISJOINT_DEPTH || schema_node_of(s, lit, n, &id, &e) != OK)
        return false;
    s->disjoint_depth++;
    const bool is = is_empty(s, id, SCHEMA_DISJOINT_DEPTH);
    s->disjoint_depth--;
    return is;
}
