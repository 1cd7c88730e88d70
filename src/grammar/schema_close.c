/* Closing a shape: what it says about strings and numbers becomes languages, what it says about members and items
 * becomes nodes. The results are added to the shape's node, which is the union of all its ways.
 *
 * An object's members are slots (declared names in their order, then names that are only required) and cells (texts
 * that may be names beyond those, cut apart by which patterns they match). The languages of cells are disjoint from
 * each other and from all slots, so that no key can be read two ways. */
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/schema_way.h"

#include <string.h>

/* ---- strings and numbers ---- */

static enum err add_lang(struct schema *s, const struct lang **to, const struct lang *x, struct error *e)
{
    *to = *to == NULL || *to == x ? x : lang_or(s->b, *to, x, e);
    return *to != NULL ? OK : e->code;
}

static enum err close_string(struct schema *s, node_id id, const struct shape *x, struct error *e)
{
    const bool has_length = x->len_min > 0 || x->len_max != NO_MAX;
    const struct lang *lang = x->str;
    if (has_length) {
        lang = lang_length(s->b, x->len_min, x->len_max == NO_MAX ? EXPR_UNBOUNDED : x->len_max, e);
        if (lang != NULL && x->str != NULL && !x->has_str_set)
            lang = lang_and(s->b, x->str, lang, e);
        if (lang == NULL)
            return e->code;
    }
    if (!x->has_str_set) {
        if (lang != NULL && lang_is_empty(lang))
            return OK;
        s->node[id].types |= T_STRING;
        s->node[id].is_any_string |= lang == NULL;
        return lang != NULL ? add_lang(s, &s->node[id].str, lang, e) : OK;
    }
    for (const struct str_list *w = x->str_set; w != NULL; w = w->next) {
        TRY(schema_step(s, 1 + w->s.n / 16, e));
        if ((has_length && !lang_has(lang, w->s)) || (x->str != NULL && !lang_has(x->str, w->s)))
            continue;
        struct str_list *copy = schema_take(s, 1, sizeof *copy, e);
        if (copy == NULL)
            return e->code;
        *copy = (struct str_list){w->s, s->node[id].str_set};
        s->node[id].str_set = copy;
        s->node[id].types |= T_STRING;
    }
    return OK;
}

static enum err close_number(struct schema *s, node_id id, const struct shape *x, struct error *e)
{
    if (!x->num.has_set) {
        const struct lang *lang;
        TRY(schema_number_lang(s, &x->num, &lang, e));
        if (lang_is_empty(lang))
            return OK;
        s->node[id].types |= T_NUMBER;
        return add_lang(s, &s->node[id].num, lang, e);
    }
    for (const struct dec_list *d = x->num.set; d != NULL; d = d->next) {
        TRY(schema_step(s, 1, e));
        if (!num_rule_allows(&x->num, &d->v))
            continue;
        struct dec_list *copy = schema_take(s, 1, sizeof *copy, e);
        if (copy == NULL)
            return e->code;
        *copy = (struct dec_list){.v = d->v, .next = s->node[id].num_set};
        s->node[id].num_set = copy;
        s->node[id].types |= T_NUMBER;
    }
    return OK;
}

/* ---- what is not evaluated ---- */

static bool is_inside(const struct scope *x, const struct scope *of)
{
    while (x != NULL && x != of)
        x = x->outer;
    return x == of;
}

/* Another such keyword inside evaluates everything. */
static bool has_rest_inside(const struct rest_rule *rules, const struct rest_rule *of)
{
    for (const struct rest_rule *r = rules; r != NULL; r = r->next)
        if (r != of && is_inside(r->scope, of->scope))
            return true;
    return false;
}

/* ---- arrays ---- */

struct lits {
    lit_id *lit;
    uint32_t n, cap;
};

static enum err lits_add(struct schema *s, struct lits *l, lit_id lit, struct error *e)
{
    TRY(schema_step(s, 1, e));
    TRY(schema_grow(s, (void **)&l->lit, l->n, &l->cap, sizeof l->lit[0], e));
    l->lit[l->n++] = lit;
    return OK;
}

/* The schemas of a rule's first items, as an array, and that of the others. */
static const json_t *array_prefix(const struct schema *s, const struct array_rule *r, const json_t **rest)
{
    const json_t *j = s->place[r->lit >> 2].j;
    *rest = NULL;
    if ((r->lit & 3) == LIT_EQUALS)
        return j;
    const json_t *prefix = json_object_get(j, "prefixItems"), *items = json_object_get(j, "items");
    if (json_is_array(items)) {
        *rest = json_object_get(j, "additionalItems");
        return items;
    }
    *rest = items;
    return prefix;
}

/* The conditions on item i; i = NO_MAX: on all behind the prefixes. */
static enum err item_lits(struct schema *s, const struct array_rule *rules, uint32_t i, struct lits *l, struct error *e)
{
    for (const struct array_rule *r = rules; r != NULL; r = r->next) {
        const json_t *rest, *sub;
        lit_id lit = LIT_TRUE;
        const uint32_t place = r->lit >> 2;
        if (r->index != INDEX_RULE) {
            if (r->index == i)
                TRY(lits_add(s, l, r->lit, e));
            continue;
        }
        const json_t *prefix = array_prefix(s, r, &rest);
        if (i != NO_MAX && i < json_array_size(prefix)) {
            sub = json_array_get(prefix, i);
            TRY((r->lit & 3) == LIT_EQUALS ? schema_value_lit(s, sub, place, &lit, e)
                                           : schema_lit(s, sub, place, "prefixItems", &lit, e));
        } else if (rest != NULL)
            TRY(schema_lit(s, rest, place, "items", &lit, e));
        TRY(lits_add(s, l, lit, e));
    }
    return OK;
}

/* The same of unevaluatedItems. */
static enum err rest_item_lits(struct schema *s, const struct shape *x, uint32_t i, struct lits *l, struct error *e)
{
    for (const struct rest_rule *u = x->rest_items; u != NULL; u = u->next) {
        bool is_evaluated = has_rest_inside(x->rest_items, u);
        for (const struct array_rule *r = x->items; r != NULL && !is_evaluated; r = r->next) {
            const json_t *rest, *prefix;
            if (r->index != INDEX_RULE || (r->lit & 3) != LIT_IS || !is_inside(r->scope, u->scope))
                continue;
            prefix = array_prefix(s, r, &rest);
            is_evaluated = rest != NULL || (i != NO_MAX && i < json_array_size(prefix));
        }
        if (!is_evaluated)
            TRY(lits_add(s, l, u->lit, e));
    }
    return OK;
}

static enum err item_node(
    struct schema *s, const struct shape *x, uint32_t i, lit_id more, node_id *out, struct error *e)
{
    struct lits l = {0};
    TRY(item_lits(s, x->items, i, &l, e));
    TRY(rest_item_lits(s, x, i, &l, e));
    TRY(lits_add(s, &l, more, e));
    return schema_node_of(s, l.lit, l.n, out, e);
}

static enum err close_array(struct schema *s, node_id id, const struct shape *x, struct error *e)
{
    if (x->rest_items != NULL && x->has_contains) /* it evaluates what it matches */
        return FAIL(e, ERR_UNSUPPORTED, "schema keyword 'unevaluatedItems' beside 'contains' is not supported");
    uint32_t n = 0;
    for (const struct array_rule *r = x->items; r != NULL; r = r->next) {
        const json_t *rest;
        const size_t own = r->index != INDEX_RULE ? r->index + 1 : json_array_size(array_prefix(s, r, &rest));
        n = MAX(n, (uint32_t)MIN(own, SCHEMA_PREFIX_MAX + 1));
    }
    n = MIN(n, x->items_max);
    if (n > SCHEMA_PREFIX_MAX)
        return FAIL(e, ERR_LIMIT, "the schema has an array of more than %d items of their own", SCHEMA_PREFIX_MAX);
    struct array_alt *a = schema_take(s, 1, sizeof *a, e);
    node_id *nodes = schema_take(s, 3 * (size_t)(n + 1), sizeof *nodes, e);
    if (a == NULL || nodes == NULL)
        return e->code;
    *a = (struct array_alt){.n_prefix = n,
        .min = x->items_min,
        .max = x->items_max,
        .prefix = nodes,
        .has_contains = x->has_contains,
        .prefix_hit = nodes + n + 1,
        .prefix_miss = nodes + 2 * (n + 1),
        .hits_min = x->has_contains ? x->contains_min : 0,
        .hits_max = x->has_contains ? x->contains_max : NO_MAX};
    for (uint32_t i = 0; i <= n; i++) {
        const uint32_t at = i < n ? i : NO_MAX;
        const lit_id miss = x->contains_max == NO_MAX ? LIT_TRUE : x->contains ^ 1;
        TRY(item_node(s, x, at, LIT_TRUE, &nodes[i], e));
        if (!x->has_contains)
            continue;
        TRY(item_node(s, x, at, x->contains, &nodes[n + 1 + i], e));
        TRY(item_node(s, x, at, miss, &nodes[2 * (n + 1) + i], e));
    }
    a->rest = nodes[n];
    a->rest_hit = nodes[n + 1 + n];
    a->rest_miss = nodes[2 * (n + 1) + n];
    a->next = s->node[id].arrays;
    s->node[id].arrays = a;
    s->node[id].types |= T_ARRAY;
    return OK;
}

/* ---- objects ---- */

struct names {
    struct slot *slot; /* node is not set yet */
    uint32_t n, cap;
    uint32_t *table, n_table; /* by name; 0 is free */
};

static enum err names_add(struct schema *s, struct names *t, struct str name, bool is_required, struct error *e)
{
    TRY(schema_step(s, 1, e));
    if (2 * (t->n + 1) >= t->n_table) {
        const uint32_t n = MAX(t->n_table * 2, 16u);
        uint32_t *table = schema_take(s, n, sizeof *table, e);
        if (table == NULL)
            return e->code;
        for (uint32_t i = 0; i < t->n; i++) {
            uint64_t at = hash64(t->slot[i].name.p, t->slot[i].name.n, 0) & (n - 1);
            while (table[at] != 0)
                at = (at + 1) & (n - 1);
            table[at] = i + 1;
        }
        t->table = table;
        t->n_table = n;
    }
    uint64_t at = hash64(name.p, name.n, 0) & (t->n_table - 1);
    for (; t->table[at] != 0; at = (at + 1) & (t->n_table - 1)) {
        struct slot *known = &t->slot[t->table[at] - 1];
        if (str_eq(known->name, name)) {
            known->is_required |= is_required;
            return OK;
        }
    }
    if (t->n >= SCHEMA_PROPERTIES_MAX)
        return FAIL(e, ERR_LIMIT, "the schema has an object of more than %d properties", SCHEMA_PROPERTIES_MAX);
    TRY(schema_grow(s, (void **)&t->slot, t->n, &t->cap, sizeof t->slot[0], e));
    t->slot[t->n++] = (struct slot){.name = name, .is_required = is_required};
    t->table[at] = t->n;
    return OK;
}

struct rules {
    const struct object_rule **object; /* in the order they were met */
    const struct member_rule **member;
    uint32_t n_objects, n_members;
};

static enum err rules_list(struct schema *s, const struct shape *x, struct rules *r, struct error *e)
{
    for (const struct object_rule *o = x->objects; o != NULL; o = o->next)
        r->n_objects++;
    for (const struct member_rule *m = x->members; m != NULL; m = m->next)
        r->n_members++;
    if (r->n_objects > SCHEMA_MERGED_MAX)
        return FAIL(e, ERR_LIMIT, "the schema merges more than %d objects into one", SCHEMA_MERGED_MAX);
    r->object = schema_take(s, r->n_objects + 1, sizeof r->object[0], e);
    r->member = schema_take(s, (size_t)r->n_members + 1, sizeof r->member[0], e);
    if (r->object == NULL || r->member == NULL)
        return e->code;
    uint32_t i = r->n_objects, k = r->n_members;
    for (const struct object_rule *o = x->objects; o != NULL; o = o->next)
        r->object[--i] = o;
    for (const struct member_rule *m = x->members; m != NULL; m = m->next)
        r->member[--k] = m;
    return OK;
}

static enum err list_names(struct schema *s, const struct rules *r, struct names *t, struct error *e)
{
    const char *name;
    json_t *value;
    for (uint32_t i = 0; i < r->n_objects; i++) {
        const bool is_value = (r->object[i]->lit & 3) == LIT_EQUALS;
        const json_t *j = s->place[r->object[i]->lit >> 2].j;
        json_object_foreach((json_t *)(uintptr_t)(is_value ? j : json_object_get(j, "properties")), name, value)
            TRY(names_add(s, t, str_of(name), is_value, e));
    }
    for (uint32_t i = 0; i < r->n_members; i++)
        TRY(names_add(s, t, r->member[i]->name, r->member[i]->is_required, e));
    return OK;
}

/* The conditions of one rule on a member whose name is known, and whether it has any. */
static enum err named_lits(
    struct schema *s, lit_id rule, struct str name, struct lits *l, bool *is_evaluated, struct error *e)
{
    const uint32_t place = rule >> 2;
    const json_t *j = s->place[place].j, *sub;
    lit_id lit;
    if ((rule & 3) == LIT_EQUALS) {
        sub = json_object_getn(j, name.p, name.n);
        if (sub == NULL)
            return lits_add(s, l, LIT_FALSE, e);
        TRY(schema_value_lit(s, sub, place, &lit, e));
        return lits_add(s, l, lit, e);
    }
    bool is_declared = false;
    sub = json_object_getn(json_object_get(j, "properties"), name.p, name.n);
    if (sub != NULL) {
        is_declared = true;
        TRY(schema_lit(s, sub, place, "properties", &lit, e));
        TRY(lits_add(s, l, lit, e));
    }
    const char *pattern;
    json_t *value;
    json_object_foreach(json_object_get(j, "patternProperties"), pattern, value)
    {
        const struct lang *lang;
        TRY(schema_pattern(s, place, "patternProperties", pattern, strlen(pattern), &lang, e));
        TRY(schema_step(s, 1 + name.n / 16, e));
        if (!lang_has(lang, name))
            continue;
        is_declared = true;
        TRY(schema_lit(s, value, place, "patternProperties", &lit, e));
        TRY(lits_add(s, l, lit, e));
    }
    sub = json_object_get(j, "additionalProperties");
    *is_evaluated = is_declared || sub != NULL;
    if (is_declared || sub == NULL)
        return OK;
    TRY(schema_lit(s, sub, place, "additionalProperties", &lit, e));
    return lits_add(s, l, lit, e);
}

/* The conditions of unevaluatedProperties on a member: `evaluated` has a bit for each rule that evaluates it. */
static enum err rest_member_lits(
    struct schema *s, const struct shape *x, const struct rules *r, uint64_t evaluated, struct lits *l, struct error *e)
{
    for (const struct rest_rule *u = x->rest_members; u != NULL; u = u->next) {
        bool is_evaluated = has_rest_inside(x->rest_members, u);
        for (uint32_t i = 0; i < r->n_objects && !is_evaluated; i++)
            is_evaluated = (evaluated >> i & 1) != 0 && is_inside(r->object[i]->scope, u->scope);
        if (!is_evaluated)
            TRY(lits_add(s, l, u->lit, e));
    }
    return OK;
}

static enum err slot_node(
    struct schema *s, const struct shape *x, const struct rules *r, struct slot *slot, struct error *e)
{
    struct lits l = {0};
    uint64_t evaluated = 0;
    for (uint32_t i = 0; i < r->n_objects; i++) {
        bool is_evaluated = false;
        TRY(named_lits(s, r->object[i]->lit, slot->name, &l, &is_evaluated, e));
        evaluated |= (uint64_t)is_evaluated << i;
    }
    TRY(rest_member_lits(s, x, r, evaluated, &l, e));
    for (uint32_t i = 0; i < r->n_members; i++)
        if (r->member[i]->lit != LIT_TRUE && str_eq(r->member[i]->name, slot->name))
            TRY(lits_add(s, &l, r->member[i]->lit, e));
    if (x->names != NULL && !lang_has(x->names, slot->name))
        TRY(lits_add(s, &l, LIT_FALSE, e));
    return schema_node_of(s, l.lit, l.n, &slot->node, e);
}

struct open_cell {
    const struct lang *keys; /* NULL: any */
    struct lits lits;
    uint64_t matched; /* rules of which a pattern matches */
};

struct cells {
    struct open_cell *cell;
    uint32_t n, cap;
};

static enum err cells_add(struct schema *s, struct cells *c, const struct open_cell *x, struct error *e)
{
    if (c->n >= SCHEMA_CELLS_MAX)
        return FAIL(e, ERR_LIMIT, "patternProperties cut an object's names into more than %d parts", SCHEMA_CELLS_MAX);
    TRY(schema_grow(s, (void **)&c->cell, c->n, &c->cap, sizeof c->cell[0], e));
    c->cell[c->n++] = *x;
    return OK;
}

static enum err lits_copy(struct schema *s, struct lits *l, struct error *e)
{
    lit_id *lit = schema_take(s, l->n + 4, sizeof *lit, e);
    if (lit == NULL)
        return e->code;
    if (l->n > 0)
        memcpy(lit, l->lit, l->n * sizeof *lit);
    l->lit = lit;
    l->cap = l->n + 4;
    return OK;
}

static enum err cells_split(
    struct schema *s, struct cells *c, const struct lang *pattern, uint32_t rule, lit_id lit, struct error *e)
{
    const struct lang *other = lang_not(s->b, pattern, e);
    if (other == NULL)
        return e->code;
    const uint32_t n = c->n;
    for (uint32_t i = 0; i < n; i++) {
        struct open_cell in = c->cell[i];
        const struct lang *keys = in.keys;
        in.keys = keys == NULL ? pattern : lang_and(s->b, keys, pattern, e);
        const struct lang *out = keys == NULL ? other : lang_and(s->b, keys, other, e);
        if (in.keys == NULL || out == NULL)
            return e->code;
        TRY(schema_step(s, 1, e));
        if (lang_is_empty(in.keys))
            continue;
        in.matched |= (uint64_t)1 << rule;
        TRY(lits_copy(s, &in.lits, e));
        TRY(lits_add(s, &in.lits, lit, e));
        if (lang_is_empty(out))
            c->cell[i] = in;
        else {
            c->cell[i].keys = out;
            TRY(cells_add(s, c, &in, e));
        }
    }
    return OK;
}

static enum err cells_of_rule(struct schema *s, struct cells *c, lit_id rule, uint32_t index, struct error *e)
{
    const uint32_t place = rule >> 2;
    const json_t *j = s->place[place].j;
    const char *pattern;
    json_t *value;
    lit_id lit = LIT_TRUE;
    if ((rule & 3) == LIT_EQUALS) {
        c->n = 0;
        return OK;
    }
    json_object_foreach(json_object_get(j, "patternProperties"), pattern, value)
    {
        const struct lang *lang;
        TRY(schema_pattern(s, place, "patternProperties", pattern, strlen(pattern), &lang, e));
        TRY(schema_lit(s, value, place, "patternProperties", &lit, e));
        TRY(cells_split(s, c, lang, index, lit, e));
    }
    const json_t *sub = json_object_get(j, "additionalProperties");
    if (sub == NULL)
        return OK;
    TRY(schema_lit(s, sub, place, "additionalProperties", &lit, e));
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const bool is_matched = (c->cell[i].matched >> index & 1) != 0;
        if (!is_matched && lit == LIT_FALSE)
            continue;
        if (!is_matched) {
            TRY(lits_copy(s, &c->cell[i].lits, e));
            TRY(lits_add(s, &c->cell[i].lits, lit, e));
        }
        c->cell[i].matched |= (uint64_t)1 << index; /* evaluated, one way or the other */
        c->cell[kept++] = c->cell[i];
    }
    c->n = kept;
    return OK;
}

/* What is left of the texts that may be names when the slots' are taken away. */
static enum err cells_close(
    struct schema *s, struct cells *c, const struct names *t, struct object_alt *o, struct error *e)
{
    const struct lang *others = NULL, *spelled = NULL;
    struct cell *cell = schema_take(s, (size_t)c->n + 1, sizeof *cell, e);
    struct str_list *words = schema_take(s, (size_t)t->n + 1, sizeof *words, e);
    if (cell == NULL || words == NULL)
        return e->code;
    for (uint32_t i = 0; i < t->n; i++)
        words[i] = (struct str_list){t->slot[i].name, i + 1 < t->n ? &words[i + 1] : NULL};
    for (uint32_t i = 0; i < c->n; i++) {
        struct open_cell *x = &c->cell[i];
        const bool is_spelled = t->n > 0 && x->keys == NULL;
        node_id node;
        TRY(schema_node_of(s, x->lits.lit, x->lits.n, &node, e));
        if (node == s->node_false)
            continue;
        if (is_spelled && spelled == NULL)
            TRY(schema_other_spellings(s, words, &spelled, e));
        if (t->n > 0 && !is_spelled && others == NULL) {
            TRY(schema_words_lang(s, words, &others, e));
            others = lang_not(s->b, others, e);
            if (others == NULL)
                return e->code;
        }
        if (t->n > 0)
            x->keys = is_spelled ? spelled : lang_and(s->b, x->keys, others, e);
        if (t->n > 0 && x->keys == NULL)
            return e->code;
        if (x->keys == NULL || !lang_is_empty(x->keys))
            cell[o->n_cells++] = (struct cell){x->keys, is_spelled, node};
    }
    o->cell = cell;
    return OK;
}

static enum err close_object(struct schema *s, node_id id, const struct shape *x, struct error *e)
{
    struct rules r = {0};
    struct names t = {0};
    struct cells c = {0};
    TRY(rules_list(s, x, &r, e));
    TRY(list_names(s, &r, &t, e));
    struct object_alt *o = schema_take(s, 1, sizeof *o, e);
    struct slot *slot = schema_take(s, (size_t)t.n + 1, sizeof *slot, e);
    if (o == NULL || slot == NULL)
        return e->code;
    *o = (struct object_alt){.min = x->props_min, .max = x->props_max, .slot = slot};
    for (uint32_t i = 0; i < t.n; i++) {
        TRY(slot_node(s, x, &r, &t.slot[i], e));
        if (t.slot[i].node != s->node_false)
            slot[o->n_slots++] = t.slot[i];
        else if (t.slot[i].is_required)
            return OK;
    }
    const struct open_cell all = {.keys = x->names};
    if (x->names == NULL || !lang_is_empty(x->names))
        TRY(cells_add(s, &c, &all, e));
    for (uint32_t i = 0; i < r.n_objects; i++)
        TRY(cells_of_rule(s, &c, r.object[i]->lit, i, e));
    for (uint32_t i = 0; i < c.n && x->rest_members != NULL; i++) {
        TRY(lits_copy(s, &c.cell[i].lits, e));
        TRY(rest_member_lits(s, x, &r, c.cell[i].matched, &c.cell[i].lits, e));
    }
    TRY(cells_close(s, &c, &t, o, e));
    o->next = s->node[id].objects;
    s->node[id].objects = o;
    s->node[id].types |= T_OBJECT;
    return OK;
}

enum err schema_shape_close(struct schema *s, node_id id, const struct shape *x, struct error *e)
{
    TRY(schema_step(s, 1, e));
    s->node[id].types |= x->types & (T_NULL | T_TRUE | T_FALSE);
    if ((x->types & T_STRING) != 0)
        TRY(close_string(s, id, x, e));
    if ((x->types & T_NUMBER) != 0)
        TRY(close_number(s, id, x, e));
    if ((x->types & T_ARRAY) != 0)
        TRY(close_array(s, id, x, e));
    if ((x->types & T_OBJECT) != 0)
        TRY(close_object(s, id, x, e));
    return OK;
}
