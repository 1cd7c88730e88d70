/* Getting at parts of values: x.name, x[key], x[a:b:c]. Jinja's order: x.name asks for a method first and an item
 * second, x['name'] the other way round; what is not there is undefined, and using undefined further is the error.
 *
 * Methods that change their object (list.append, dict.update) are refused, as transformers' sandbox refuses them. */
#include "text/jinja_int.h"

#include <string.h>

struct jv jundef_of(struct jrun *r, struct str name, const char *owner)
{
    if (r->undef != NULL && r->undef->name.p == name.p && r->undef->name.n == name.n && r->undef->owner == owner)
        return (struct jv){.type = J_UNDEF, .u.undef = r->undef};
    struct jundef *u = arena_take(&r->arena, sizeof *u);
    if (u != NULL)
        *u = (struct jundef){.name = name, .owner = owner};
    r->undef = u;
    return (struct jv){.type = J_UNDEF, .u.undef = u}; /* without memory it is still undefined, only nameless */
}

enum err jfail_undef(struct jrun *r, struct jv v)
{
    char shown[100];
    const struct jundef *u = v.u.undef;
    if (u == NULL || u->name.p == NULL)
        return JFAIL(r, ERR_INVALID, "an undefined value is used");
    str_show(u->name, shown, sizeof shown);
    if (u->unsafe)
        return JFAIL(
            r, ERR_INVALID, "'%s' of a %s may not be used in a template: it changes the value", shown, u->owner);
    if (u->owner != NULL)
        return JFAIL(r, ERR_INVALID, "a %s has no '%s'", u->owner, shown);
    return JFAIL(r, ERR_INVALID, "'%s' is undefined", shown);
}

enum err jattr_own(struct jrun *r, struct jv v, struct str name, struct jv *out)
{
    *out = (struct jv){.type = J_MISSING};
    if (v.type == J_NS) {
        const struct jv *found = jdict_find_str(&v.u.ns->d, name);
        if (found != NULL)
            *out = *found;
        return OK;
    }
    if (v.type == J_LOOP)
        return jloop_attr(r, v.u.loop, name, out);
    if (v.type == J_TUPLE && v.u.l->is_group && (str_is(name, "grouper") || str_is(name, "list"))) {
        *out = v.u.l->items[str_is(name, "list")];
        return OK;
    }
    if (v.type == J_MACRO && str_is(name, "name"))
        return jstr_new(r, v.u.macro->def->name, JT_CLEAN, out);
    const struct jbuiltin *b = jmethod_find(v.type, name);
    if (b != NULL) {
        struct jmethod *m = jtake(r, 1, sizeof *m);
        if (m == NULL)
            return ERR_LIMIT;
        *m = (struct jmethod){b, v};
        *out = (struct jv){.type = J_METHOD, .u.m = m};
        return OK;
    }
    switch (jmethod_refused(v.type, name)) {
    case JMETHOD_NONE: return OK;
    case JMETHOD_LEFT_OUT: {
        char shown[64];
        return JFAIL(r, ERR_UNSUPPORTED, "the %s method '%s' is not supported", jtype_name(v),
            str_show(name, shown, sizeof shown));
    }
    case JMETHOD_MUTATES: break;
    }
    struct jundef *u = jtake(r, 1, sizeof *u);
    if (u == NULL)
        return ERR_LIMIT;
    *u = (struct jundef){.name = name, .owner = jtype_name(v), .unsafe = true};
    *out = (struct jv){.type = J_UNDEF, .u.undef = u};
    return OK;
}

enum err jattr_get(struct jrun *r, struct jv v, struct str name, struct jv *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type == J_CYCLER && str_is(name, "current")) {
        *out = v.u.cycler->items[v.u.cycler->at];
        return OK;
    }
    TRY(jattr_own(r, v, name, out));
    if (out->type != J_MISSING)
        return OK;
    if (v.type == J_DICT) {
        const struct jv *found = jdict_find_str(v.u.d, name);
        if (found != NULL) {
            *out = *found;
            return OK;
        }
    }
    *out = jundef_of(r, name, jtype_name(v));
    return OK;
}

/* The item at a Python index; J_MISSING when out of range. */
static enum err item_at(struct jrun *r, struct jv v, int64_t i, struct jv *out)
{
    int64_t n;
    *out = (struct jv){.type = J_MISSING};
    TRY(jlength(r, v, &n));
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return OK;
    if (v.type == J_STR) {
        const size_t at = (size_t)n == v.u.s->n ? (size_t)i : jstr_offset(v.u.s, (size_t)i);
        size_t len;
        jchar_at(jstr_str(v.u.s), at, &len);
        return jstr_sub(r, v.u.s, at, at + len, out);
    }
    if (v.type == J_RANGE)
        *out = jint(v.u.range->start + i * v.u.range->step);
    else
        *out = v.u.l->items[i];
    return OK;
}

static bool is_sequence(struct jv v)
{
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE;
}

enum err jitem_get(struct jrun *r, struct jv v, struct jv key, struct jv *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type == J_DICT) {
        const struct jv *found = NULL;
        if (key.type == J_STR)
            found = jdict_find_str(v.u.d, jstr_str(key.u.s));
        else if (key.type != J_LIST && key.type != J_DICT)
            TRY(jdict_find(r, v.u.d, key, &found));
        if (found != NULL) {
            *out = *found;
            return OK;
        }
    } else if (is_sequence(v) && (key.type == J_INT || key.type == J_BOOL)) {
        TRY(item_at(r, v, jint_of(key), out));
        if (out->type != J_MISSING)
            return OK;
    }
    if (key.type == J_STR) {
        TRY(jattr_own(r, v, jstr_str(key.u.s), out));
        if (out->type != J_MISSING)
            return OK;
        *out = jundef_of(r, jstr_str(key.u.s), jtype_name(v));
        return OK;
    }
    *out = jundef_of(r, STR("item of that key"), jtype_name(v));
    return OK;
}

/* One bound of a slice as Python clamps it. */
static enum err slice_bound(struct jrun *r, struct jv v, int64_t n, bool back, int64_t dflt, int64_t *out)
{
    *out = dflt;
    if (v.type == J_MISSING || v.type == J_NONE)
        return OK;
    if (v.type != J_INT && v.type != J_BOOL)
        return v.type == J_UNDEF ? jfail_undef(r, v)
                                 : JFAIL(r, ERR_INVALID, "a slice bound must be an integer, not %s", jtype_name(v));
    int64_t i = jint_of(v);
    if (i < 0)
        i = i < -n ? -1 : i + n;
    if (i < 0)
        i = back ? -1 : 0;
    *out = i >= n ? (back ? n - 1 : n) : i;
    return OK;
}

enum err jslice_get(struct jrun *r, struct jv v, const struct jv *bounds, struct jv *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (!is_sequence(v))
        return JFAIL(r, ERR_INVALID, "a %s cannot be sliced", jtype_name(v));
    int64_t n, start, stop, step = 1;
    TRY(jlength(r, v, &n));
    if (bounds[2].type == J_INT || bounds[2].type == J_BOOL)
        step = jint_of(bounds[2]);
    else if (bounds[2].type != J_MISSING && bounds[2].type != J_NONE)
        return JFAIL(r, ERR_INVALID, "a slice step must be an integer, not %s", jtype_name(bounds[2]));
    if (step == 0)
        return JFAIL(r, ERR_INVALID, "a slice step of zero");
    TRY(slice_bound(r, bounds[0], n, step < 0, step < 0 ? n - 1 : 0, &start));
    TRY(slice_bound(r, bounds[1], n, step < 0, step < 0 ? -1 : n, &stop));
    const uint64_t gap =
        step > 0 ? (stop > start ? (uint64_t)(stop - start) : 0) : (start > stop ? (uint64_t)(start - stop) : 0);
    const uint64_t stride = step > 0 ? (uint64_t)step : (uint64_t)0 - (uint64_t)step;
    /* cppcheck-suppress zerodivcond ; a step of zero was refused above */
    const size_t count = (size_t)(gap / stride + (gap % stride != 0));
    if (v.type == J_STR && step == 1) {
        const size_t from = jstr_offset(v.u.s, (size_t)start);
        const struct jstr rest = {.p = v.u.s->p + from, .n = v.u.s->n - from};
        return jstr_sub(r, v.u.s, from, from + jstr_offset(&rest, count), out);
    }
    if (v.type == J_STR) {
        struct jlist chars;
        struct jbuf b;
        jbuf_init(&b, r);
        TRY(jcollect(r, v, &chars));
        for (size_t i = 0; i < count; i++)
            jbuf_add_str(&b, chars.items[start + (int64_t)i * step].u.s);
        return jbuf_done(&b, out);
    }
    if (v.type == J_RANGE) {
        struct jrange *g = jtake(r, 1, sizeof *g);
        if (g == NULL)
            return ERR_LIMIT;
        *g = (struct jrange){v.u.range->start + start * v.u.range->step, v.u.range->start + stop * v.u.range->step,
            v.u.range->step * step, count};
        *out = (struct jv){.type = J_RANGE, .u.range = g};
        return OK;
    }
    struct jv *items;
    TRY(v.type == J_LIST ? jlist_new(r, count, &items, out) : jtuple_new(r, count, &items, out));
    for (size_t i = 0; i < count; i++)
        items[i] = v.u.l->items[start + (int64_t)i * step];
    return OK;
}
