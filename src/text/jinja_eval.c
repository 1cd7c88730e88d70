/* Expressions: a walk over the tree. Every node costs a step and a level of depth, so that neither a long nor a deep
 * template can run away (limits.h, CHAT_*). */
#include "text/jinja_int.h"

#include <string.h>

enum err jstep(struct jrun *r, uint64_t n)
{
    if (r->steps <= r->steps_max && n <= r->steps_max - r->steps) {
        r->steps += n;
        return OK;
    }
    r->steps = r->steps_max + 1;
    return JFAIL(r, ERR_LIMIT, "the template runs for more than %llu steps", (unsigned long long)r->steps_max);
}

enum err jdive(struct jrun *r)
{
    if (++r->depth > CHAT_DEPTH_MAX)
        return JFAIL(r, ERR_LIMIT, "evaluation nested deeper than %d levels", CHAT_DEPTH_MAX);
    return OK;
}

struct jv jlookup(struct jrun *r, uint32_t name)
{
    for (const struct jframe *f = r->frame; f != NULL; f = f->parent) {
        for (uint32_t i = 0; i < f->n; i++)
            if (f->vars[i].name == name)
                return f->vars[i].value;
        r->steps += f->n / 16; /* a crowded scope is slow to search; the next jstep sees it */
    }
    if (r->root[name].type != J_MISSING)
        return r->root[name];
    if (r->base[name].type != J_MISSING)
        return r->base[name];
    return jundef_of(r, r->tree->names[name], NULL);
}

static enum err eval_list(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv *items;
    TRY(n->kind == JN_LIST ? jlist_new(r, n->n, &items, out) : jtuple_new(r, n->n, &items, out));
    for (uint32_t i = 0; i < n->n; i++)
        TRY(jeval(r, n->list[i], &items[i]));
    return OK;
}

static enum err eval_dict(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jdict *d;
    TRY(jdict_new(r, n->n / 2, &d));
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jv key, value;
        TRY(jeval(r, n->list[i], &key));
        TRY(jeval(r, n->list[i + 1], &value));
        TRY(jdict_put(r, d, key, value));
    }
    *out = jdict_value(d);
    return OK;
}

static enum err eval_logic(struct jrun *r, const struct jnode *n, struct jv *out)
{
    bool yes;
    TRY(jeval(r, n->a, out));
    TRY(jtruth(r, *out, &yes));
    return yes == (n->kind == JN_AND) ? jeval(r, n->b, out) : OK;
}

static enum err compare(struct jrun *r, enum jcmp op, struct jv a, struct jv b, bool *out)
{
    switch (op) {
    case JCMP_EQ: return jequal(r, a, b, out);
    case JCMP_NE:
        TRY(jequal(r, a, b, out));
        *out = !*out;
        return OK;
    case JCMP_IN: return jcontains(r, b, a, out);
    case JCMP_NOTIN:
        TRY(jcontains(r, b, a, out));
        *out = !*out;
        return OK;
    default: return jorder(r, a, b, op, out);
    }
}

/* a < b < c means a < b and b < c. */
static enum err eval_compare(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv left, right;
    bool yes = true;
    TRY(jeval(r, n->a, &left));
    for (uint32_t i = 0; yes && i < n->n; i++) {
        TRY(jeval(r, n->list[i], &right));
        TRY(compare(r, (enum jcmp)n->ops[i], left, right, &yes));
        left = right;
    }
    *out = jbool(yes);
    return OK;
}

static enum err eval_concat(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv left, right;
    TRY(jeval(r, n->list[0], &left));
    TRY(jshow(r, left, out));
    for (uint32_t i = 1; i < n->n; i++) {
        TRY(jeval(r, n->list[i], &right));
        TRY(jshow(r, right, &right));
        TRY(jstr_concat(r, out->u.s, right.u.s, out));
    }
    return OK;
}

static enum err eval_item(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv box, key;
    TRY(jeval(r, n->a, &box));
    if (n->b->kind != JN_SLICE) {
        TRY(jeval(r, n->b, &key));
        return jitem_get(r, box, key, out);
    }
    struct jv bounds[3] = {{.type = J_MISSING}, {.type = J_MISSING}, {.type = J_MISSING}};
    for (int i = 0; i < 3; i++)
        if (n->b->list[i] != NULL)
            TRY(jeval(r, n->b->list[i], &bounds[i]));
    return jslice_get(r, box, bounds, out);
}

/* Append what *args or **kwargs add to the arguments. */
static enum err spread(struct jrun *r, const struct jcall *c, struct jargs *a, struct jv **pos, struct jkw **kw)
{
    struct jv v;
    struct jlist more = {0};
    const struct jdict *d = NULL;
    if (c->star != NULL) {
        TRY(jeval(r, c->star, &v));
        TRY(jcollect(r, v, &more));
    }
    if (c->star2 != NULL) {
        TRY(jeval(r, c->star2, &v));
        if (v.type != J_DICT)
            return JFAIL(r, ERR_INVALID, "** needs a dict, not %s", jtype_name(v));
        d = v.u.d;
    }
    struct jv *all = jtake(r, a->n_pos + more.n, sizeof *all);
    struct jkw *named = jtake(r, a->n_kw + (d != NULL ? d->n : 0), sizeof *named);
    if (all == NULL || named == NULL)
        return ERR_LIMIT;
    if (a->n_pos > 0)
        memcpy(all, *pos, a->n_pos * sizeof *all);
    if (more.n > 0)
        memcpy(all + a->n_pos, more.items, more.n * sizeof *all);
    a->n_pos += more.n;
    if (a->n_kw > 0)
        memcpy(named, *kw, a->n_kw * sizeof *named);
    for (size_t i = 0; d != NULL && i < d->n; i++) {
        if (d->pairs[i].key.type != J_STR)
            return JFAIL(r, ERR_INVALID, "** needs a dict with string keys");
        const struct jstr *name = d->pairs[i].key.u.s;
        named[a->n_kw++] = (struct jkw){jstr_str(name), d->pairs[i].value, jstr_any_user(name)};
    }
    *pos = all;
    *kw = named;
    return OK;
}

enum err jcall_args(struct jrun *r, const struct jcall *c, struct jargs *out)
{
    *out = (struct jargs){0};
    if (c == NULL)
        return OK;
    struct jv *pos = c->n_args > 0 ? jtake(r, c->n_args, sizeof *pos) : NULL;
    struct jkw *kw = c->n_kw > 0 ? jtake(r, c->n_kw, sizeof *kw) : NULL;
    if ((c->n_args > 0 && pos == NULL) || (c->n_kw > 0 && kw == NULL))
        return ERR_LIMIT;
    for (uint32_t i = 0; i < c->n_args; i++)
        TRY(jeval(r, c->args[i], &pos[i]));
    for (uint32_t i = 0; i < c->n_kw; i++) {
        kw[i].name = c->kw_names[i];
        TRY(jeval(r, c->kw_values[i], &kw[i].value));
    }
    out->n_pos = c->n_args;
    out->n_kw = c->n_kw;
    if (c->star != NULL || c->star2 != NULL)
        TRY(spread(r, c, out, &pos, &kw));
    out->pos = pos;
    out->kw = kw;
    return OK;
}

/* Put the arguments of a call into the places its parameters name. */
static enum err bind(struct jrun *r, const struct jbuiltin *b, const struct jargs *a, struct jv *bound)
{
    const bool by_place = b->params[0] == '/';
    const char *p = b->params + by_place;
    size_t n = 0, used_kw = 0;
    TRY(jstep(r, a->n_kw));
    for (size_t i = 0; i < JARGS_MAX; i++)
        bound[i] = (struct jv){.type = J_MISSING};
    while (*p != '\0') {
        const size_t len = strcspn(p, " ");
        const struct str name = {p, len};
        assert(n < JARGS_MAX);
        if (n < a->n_pos)
            bound[n] = a->pos[n];
        for (size_t i = 0; i < a->n_kw; i++) {
            if (!str_eq(a->kw[i].name, name))
                continue;
            if (by_place || bound[n].type != J_MISSING)
                return JFAIL(r, ERR_INVALID, "%s() got an unexpected '%.*s'", b->name, (int)len, p);
            bound[n] = a->kw[i].value;
            used_kw++;
        }
        if (n < b->required && bound[n].type == J_MISSING)
            return JFAIL(r, ERR_INVALID, "%s() needs '%.*s'", b->name, (int)len, p);
        n++;
        p += len + (p[len] == ' ');
    }
    if (a->n_pos > n)
        return JFAIL(r, ERR_INVALID, "%s() takes at most %zu arguments, not %zu", b->name, n, a->n_pos);
    if (used_kw != a->n_kw)
        return JFAIL(r, ERR_INVALID, "%s() got a keyword argument it does not know", b->name);
    return OK;
}

enum err jcall_builtin(struct jrun *r, const struct jbuiltin *b, struct jv self, const struct jargs *a, struct jv *out)
{
    struct jv bound[JARGS_MAX];
    if (b->params != NULL)
        TRY(bind(r, b, a, bound));
    return b->fn(r, self, a, bound, out);
}

enum err jcall_value(struct jrun *r, struct jv callee, const struct jargs *a, struct jv *out)
{
    TRY(jdive(r));
    enum err err;
    switch (callee.type) {
    case J_MACRO: err = jcall_macro(r, callee.u.macro, a, out); break;
    case J_FUNC: err = jcall_builtin(r, &callee.u.fn->b, jnone(), a, out); break;
    case J_METHOD: err = jcall_builtin(r, callee.u.m->b, callee.u.m->self, a, out); break;
    case J_LOOP: err = jloop_call(r, callee.u.loop, a, out); break;
    case J_JOINER:
        if (a->n_pos != 0 || a->n_kw != 0)
            err = JFAIL(r, ERR_INVALID, "a joiner takes no arguments");
        else if (callee.u.joiner->used) {
            *out = callee.u.joiner->sep;
            err = OK;
        } else {
            callee.u.joiner->used = true;
            err = jstr_new(r, STR(""), JT_CLEAN, out);
        }
        break;
    case J_UNDEF: err = jfail_undef(r, callee); break;
    default: err = JFAIL(r, ERR_INVALID, "a value of type %s cannot be called", jtype_name(callee)); break;
    }
    r->depth--;
    return err;
}

static enum err eval_call(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv callee;
    struct jargs args;
    TRY(jeval(r, n->a, &callee));
    TRY(jcall_args(r, n->call, &args));
    r->line = n->line;
    return jcall_value(r, callee, &args, out);
}

/* x|f(...) and x is f(...) */
static enum err eval_builtin(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv self;
    struct jargs args;
    if (n->builtin == NULL) {
        char shown[80];
        return JFAIL(r, ERR_UNSUPPORTED, "no %s named '%s'", n->kind == JN_TESTEXPR ? "test" : "filter",
            str_show(n->attr, shown, sizeof shown));
    }
    TRY(jeval(r, n->a, &self));
    TRY(jcall_args(r, n->call, &args));
    r->line = n->line;
    return jcall_builtin(r, n->builtin, self, &args, out);
}

static enum err eval_cond(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv test;
    bool yes;
    TRY(jeval(r, n->a, &test));
    TRY(jtruth(r, test, &yes));
    if (yes)
        return jeval(r, n->b, out);
    if (n->c != NULL)
        return jeval(r, n->c, out);
    *out = jundef_of(r, STR("the inline if without an else"), NULL);
    return OK;
}

static enum err eval_node(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv a, b;
    bool yes;
    switch ((enum jkind)n->kind) {
    case JN_TUPLE:
    case JN_LIST: return eval_list(r, n, out);
    case JN_DICT: return eval_dict(r, n, out);
    case JN_NOT:
        TRY(jeval(r, n->a, &a));
        TRY(jtruth(r, a, &yes));
        *out = jbool(!yes);
        return OK;
    case JN_NEG:
    case JN_POS: TRY(jeval(r, n->a, &a)); return jnegate(r, a, n->kind == JN_NEG, out);
    case JN_AND:
    case JN_OR: return eval_logic(r, n, out);
    case JN_BINARY:
        TRY(jeval(r, n->a, &a));
        TRY(jeval(r, n->b, &b));
        return jbinary(r, (enum jop)n->op, a, b, out);
    case JN_CONCAT: return eval_concat(r, n, out);
    case JN_COMPARE: return eval_compare(r, n, out);
    case JN_COND: return eval_cond(r, n, out);
    case JN_ATTR: TRY(jeval(r, n->a, &a)); return jattr_get(r, a, n->attr, out);
    case JN_ITEM: return eval_item(r, n, out);
    case JN_CALLEXPR: return eval_call(r, n, out);
    case JN_FILTEREXPR:
    case JN_TESTEXPR: return eval_builtin(r, n, out);
    case JN_CAPTURED: *out = *r->captured; return OK;
    case JN_SLICE: return JFAIL(r, ERR_UNSUPPORTED, "a slice inside a tuple of subscripts");
    default: return JFAIL(r, ERR_INTERNAL, "node %d is no expression", n->kind);
    }
}

enum err jeval(struct jrun *r, const struct jnode *n, struct jv *out)
{
    TRY(jstep(r, 1));
    if (n->kind == JN_CONST) {
        *out = n->value;
        return OK;
    }
    if (n->kind == JN_NAME) {
        *out = jlookup(r, n->name);
        return OK;
    }
    TRY(jdive(r));
    const enum err err = eval_node(r, n, out);
    r->depth--;
    return err;
}
