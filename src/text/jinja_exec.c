/* Statements: a walk over the tree that appends to r->out. Scopes follow jinja2: if does not make one; for, macro,
 * call, with, filter, generation and block set do, and what they set is gone after them. A macro sees the scope it was
 * defined in, as it is when the macro is called. */
#include "text/jinja_int.h"

#include <string.h>

void jframe_keep(struct jframe *f)
{
    for (; f != NULL && !f->captured; f = f->parent)
        f->captured = true;
}

enum err jframe_set(struct jrun *r, struct jframe *f, uint32_t name, struct jv v)
{
    if (f == NULL) {
        r->root[name] = v;
        return OK;
    }
    TRY(jstep(r, f->n / 16));
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->vars[i].name == name) {
            f->vars[i].value = v;
            return OK;
        }
    }
    if (f->n == f->cap) {
        const uint32_t cap = f->cap ? f->cap * 2 : 4;
        struct jvar *vars = jtake(r, cap, sizeof *vars);
        if (vars == NULL)
            return ERR_LIMIT;
        if (f->n > 0)
            memcpy(vars, f->vars, f->n * sizeof *vars);
        f->vars = vars;
        f->cap = cap;
    }
    f->vars[f->n++] = (struct jvar){name, v};
    return OK;
}

enum err jassign(struct jrun *r, struct jframe *f, const struct jnode *target, struct jv v)
{
    if (target->kind == JN_NAME)
        return jframe_set(r, f, target->name, v);
    if (target->kind == JN_NSREF) {
        struct jv ns = jlookup(r, target->name), key;
        char shown[64];
        if (ns.type != J_NS)
            return JFAIL(r, ERR_INVALID, "'%s' is no namespace: its attributes cannot be set",
                str_show(r->tree->names[target->name], shown, sizeof shown));
        TRY(jstr_new(r, target->attr, JT_CLEAN, &key));
        return jdict_put(r, &ns.u.ns->d, key, v);
    }
    struct jlist items;
    TRY(jcollect(r, v, &items));
    if (items.n != target->n)
        return JFAIL(r, ERR_INVALID, "cannot unpack %zu values into %u names", items.n, target->n);
    for (uint32_t i = 0; i < target->n; i++)
        TRY(jassign(r, f, target->list[i], items.items[i]));
    return OK;
}

/* Run a body in a scope of its own, its text going to *out. */
static enum err capture(struct jrun *r, const struct jnode *body, struct jframe *scope, struct jv *out)
{
    struct jbuf b, *saved_out = r->out;
    struct jframe *saved = r->frame;
    jbuf_init(&b, r);
    r->out = &b;
    r->frame = scope;
    const enum err err = jexec(r, body);
    r->frame = saved;
    r->out = saved_out;
    return err != OK ? err : jbuf_done(&b, out);
}

static enum err capture_inside(struct jrun *r, const struct jnode *body, struct jv *out)
{
    struct jframe *f = jtake(r, 1, sizeof *f);
    if (f == NULL)
        return ERR_LIMIT;
    f->parent = r->frame;
    return capture(r, body, f, out);
}

static const struct jkw *find_kw(const struct jargs *a, struct str name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (str_eq(a->kw[i].name, name))
            return &a->kw[i];
    return NULL;
}

/* varargs and kwargs of a macro that asks for them; an error for what nobody asked for. */
static enum err bind_rest(struct jrun *r, const struct jmacro_def *d, const struct jargs *a, struct jframe *f)
{
    struct jv *items, v;
    const size_t extra = a->n_pos > d->n_params ? a->n_pos - d->n_params : 0;
    char shown[64];
    if (extra > 0 && !d->uses_varargs)
        return JFAIL(r, ERR_INVALID, "macro '%s' takes at most %u arguments", str_show(d->name, shown, sizeof shown),
            d->n_params);
    if (d->uses_varargs) {
        TRY(jtuple_new(r, extra, &items, &v));
        if (extra > 0)
            memcpy(items, a->pos + d->n_params, extra * sizeof *items);
        TRY(jframe_set(r, f, r->tree->id_varargs, v));
    }
    struct jdict *rest;
    TRY(jdict_new(r, a->n_kw, &rest));
    for (size_t i = 0; i < a->n_kw; i++) {
        bool is_param = d->uses_caller && str_is(a->kw[i].name, "caller");
        for (uint32_t j = (uint32_t)MIN(a->n_pos, d->n_params); j < d->n_params && !is_param; j++)
            is_param = str_eq(d->param_names[j], a->kw[i].name);
        if (is_param)
            continue;
        if (!d->uses_kwargs)
            return JFAIL(r, ERR_INVALID, "macro '%.*s' takes no keyword argument '%s'", (int)MIN(d->name.n, 60),
                d->name.p, str_show(a->kw[i].name, shown, sizeof shown));
        TRY(jstr_new(r, a->kw[i].name, a->kw[i].user ? JT_USER : JT_CLEAN, &v));
        TRY(jdict_put(r, rest, v, a->kw[i].value));
    }
    return d->uses_kwargs ? jframe_set(r, f, r->tree->id_kwargs, jdict_value(rest)) : OK;
}

static enum err bind_params(struct jrun *r, const struct jmacro_def *d, const struct jargs *a, struct jframe *f)
{
    TRY(jstep(r, d->n_params + a->n_kw * (1 + d->n_params / 4))); /* every parameter looks through the keywords */
    TRY(bind_rest(r, d, a, f));
    if (d->uses_caller) {
        const struct jkw *caller = find_kw(a, STR("caller"));
        TRY(jframe_set(r, f, r->tree->id_caller, caller != NULL ? caller->value : jundef_of(r, STR("caller"), NULL)));
    }
    for (uint32_t i = 0; i < d->n_params; i++) {
        const struct jkw *kw = i >= a->n_pos ? find_kw(a, d->param_names[i]) : NULL;
        struct jv v;
        if (i < a->n_pos)
            v = a->pos[i];
        else if (kw != NULL)
            v = kw->value;
        else if (d->defaults[i] != NULL)
            TRY(jeval(r, d->defaults[i], &v));
        else
            v = jundef_of(r, d->param_names[i], NULL);
        TRY(jframe_set(r, f, d->params[i], v));
    }
    return OK;
}

enum err jcall_macro(struct jrun *r, const struct jmacro *m, const struct jargs *a, struct jv *out)
{
    struct jframe *f = jtake(r, 1, sizeof *f), *saved = r->frame;
    const uint32_t line = r->line;
    if (f == NULL)
        return ERR_LIMIT;
    f->parent = m->frame;
    r->frame = f;
    TRY(bind_params(r, m->def, a, f));
    TRY(capture(r, m->def->body, f, out));
    r->frame = saved;
    r->line = line;
    return OK;
}

static enum err macro_value(struct jrun *r, const struct jmacro_def *d, struct jv *out)
{
    struct jmacro *m = jtake(r, 1, sizeof *m);
    if (m == NULL)
        return ERR_LIMIT;
    *m = (struct jmacro){d, r->frame};
    jframe_keep(r->frame);
    *out = (struct jv){.type = J_MACRO, .u.macro = m};
    return OK;
}

/* {% call f(x) %}body{% endcall %}: f(x, caller=body) */
static enum err exec_call(struct jrun *r, const struct jnode *n)
{
    struct jv callee, caller, text;
    struct jargs args;
    TRY(macro_value(r, n->def, &caller));
    TRY(jeval(r, n->a->a, &callee));
    TRY(jcall_args(r, n->a->call, &args));
    struct jkw *kw = jtake(r, args.n_kw + 1, sizeof *kw);
    if (kw == NULL)
        return ERR_LIMIT;
    if (args.n_kw > 0)
        memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    kw[args.n_kw++] = (struct jkw){.name = STR("caller"), .value = caller};
    args.kw = kw;
    TRY(jcall_value(r, callee, &args, &text));
    return jshow_into(r, text, r->out);
}

/* The text of a block through its filters; without a block set's filter the text itself. */
static enum err filtered(struct jrun *r, const struct jnode *n, struct jv *out)
{
    struct jv text;
    const struct jv *saved = r->captured;
    TRY(capture_inside(r, n->c, &text));
    r->captured = &text;
    const enum err err = jeval(r, n->b, out);
    r->captured = saved;
    return err;
}

static enum err exec_with(struct jrun *r, const struct jnode *n)
{
    struct jframe *f = jtake(r, 1, sizeof *f), *saved = r->frame;
    if (f == NULL)
        return ERR_LIMIT;
    f->parent = r->frame;
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jv v;
        TRY(jeval(r, n->list[i + 1], &v));
        TRY(jassign(r, f, n->list[i], v));
    }
    r->frame = f;
    TRY(jexec(r, n->c));
    r->frame = saved;
    return OK;
}

static enum err exec_if(struct jrun *r, const struct jnode *n)
{
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct jv test;
        bool yes;
        TRY(jeval(r, n->list[i], &test));
        TRY(jtruth(r, test, &yes));
        if (yes)
            return jexec(r, n->list[i + 1]);
    }
    return n->a != NULL ? jexec(r, n->a) : OK;
}

static enum err exec_one(struct jrun *r, const struct jnode *n)
{
    struct jv v;
    r->line = n->line;
    switch ((enum jkind)n->kind) {
    case JN_DATA: jbuf_add_str(r->out, n->value.u.s); return r->out->failure;
    case JN_PRINT: TRY(jeval(r, n->a, &v)); return jshow_into(r, v, r->out);
    case JN_IF: return exec_if(r, n);
    case JN_FOR: return jexec_for(r, n);
    case JN_SET: TRY(jeval(r, n->b, &v)); return jassign(r, r->frame, n->a, v);
    case JN_SETBLOCK: TRY(filtered(r, n, &v)); return jassign(r, r->frame, n->a, v);
    case JN_MACRO: TRY(macro_value(r, n->def, &v)); return jframe_set(r, r->frame, n->name, v);
    case JN_CALL: return exec_call(r, n);
    case JN_FILTER:
        TRY(filtered(r, n, &v));
        if (v.type != J_STR)
            return JFAIL(r, ERR_INVALID, "the filter of a block must give a string, not %s", jtype_name(v));
        return jshow_into(r, v, r->out);
    case JN_WITH: return exec_with(r, n);
    case JN_SCOPE: TRY(capture_inside(r, n->c, &v)); return jshow_into(r, v, r->out);
    case JN_BREAK: r->flow = JFLOW_BREAK; return OK;
    case JN_CONTINUE: r->flow = JFLOW_CONTINUE; return OK;
    case JN_BLOCK: return jexec(r, n);
    default: return JFAIL(r, ERR_INTERNAL, "node %d is no statement", n->kind);
    }
}

enum err jexec(struct jrun *r, const struct jnode *block)
{
    TRY(jdive(r));
    for (uint32_t i = 0; i < block->n && r->flow == JFLOW_ON; i++) {
        TRY(jstep(r, 1));
        TRY(exec_one(r, block->list[i]));
    }
    r->depth--;
    return OK;
}
