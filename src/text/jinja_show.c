/* Values as text, the way Python's str and repr write them: True, None, 1e+16, ['it\'s', 2.0], {'a': (1,)}.
 *
 * A container's text is the user's when anything in it is: the borders inside are not worth keeping. */
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t jfloat_show(double f, char out[JFLOAT_TEXT_MAX])
{
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, JFLOAT_TEXT_MAX, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
    char e[40];
    for (int digits = 0; digits <= 16; digits++) { /* 17 significant digits always suffice */
        snprintf(e, sizeof e, "%.*e", digits, f);
        if (strtod(e, NULL) == f)
            break;
    }
    const int exponent = (int)strtol(strchr(e, 'e') + 1, NULL, 10);
    char digit[24] = "";
    int n = 0;
    for (const char *p = e; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digit[n++] = *p;
    size_t m = 0;
    if (e[0] == '-')
        out[m++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[m++] = digit[0];
        if (n > 1)
            out[m++] = '.';
        for (int i = 1; i < n; i++)
            out[m++] = digit[i];
        return m + (size_t)snprintf(out + m, JFLOAT_TEXT_MAX - m, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        out[m++] = '0';
        out[m++] = '.';
        for (int i = -1; i > exponent; i--)
            out[m++] = '0';
    }
    for (int i = 0; i < n || i <= exponent; i++) {
        out[m++] = i < n ? digit[i] : '0';
        if (i == exponent)
            out[m++] = '.';
    }
    if (out[m - 1] == '.')
        out[m++] = '0';
    out[m] = '\0';
    return m;
}

/* Shared parts make a small value a huge tree, so every visit costs a step; out of steps the answer is yes. */
static bool any_user(struct jrun *r, struct jv v, int depth)
{
    if (v.type == J_STR)
        return jstr_any_user(v.u.s);
    if (depth <= 0 || v.type == J_NS || ++r->steps > r->steps_max)
        return true;
    if (v.type == J_LIST || v.type == J_TUPLE) {
        for (size_t i = 0; i < v.u.l->n; i++)
            if (any_user(r, v.u.l->items[i], depth - 1))
                return true;
        return false;
    }
    if (v.type == J_DICT || v.type == J_VIEW) {
        const struct jdict *d = v.type == J_DICT ? v.u.d : v.u.view->d;
        for (size_t i = 0; i < d->n; i++)
            if (any_user(r, d->pairs[i].key, depth - 1) || any_user(r, d->pairs[i].value, depth - 1))
                return true;
        return false;
    }
    return v.user;
}

bool jany_user(struct jrun *r, struct jv v)
{
    return any_user(r, v, JSON_DEPTH_MAX);
}

static enum err repr_str(struct jbuf *b, const struct jstr *s, bool user)
{
    const struct str text = jstr_str(s);
    const bool single = memchr(s->p, '\'', s->n) != NULL, twice = memchr(s->p, '"', s->n) != NULL;
    const char quote = single && !twice ? '"' : '\'';
    TRY(jstep(b->r, s->n / 8));
    jbuf_add_char(b, quote, user);
    size_t len;
    for (size_t i = 0; i < s->n; i += len) {
        const int32_t c = jchar_at(text, i, &len);
        char esc[12] = "";
        if (c == quote || c == '\\')
            snprintf(esc, sizeof esc, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!jchar_is_printable(c))
            snprintf(esc, sizeof esc, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        if (esc[0] != '\0')
            jbuf_add(b, str_of(esc), user);
        else
            jbuf_add(b, (struct str){s->p + i, len}, user);
    }
    jbuf_add_char(b, quote, user);
    return b->failure;
}

static enum err repr(struct jbuf *b, struct jv v, bool user);

static enum err repr_items(struct jbuf *b, const struct jlist *l, const char *ends, bool user)
{
    jbuf_add(b, (struct str){ends, 1}, user);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            jbuf_add(b, STR(", "), user);
        TRY(repr(b, l->items[i], user));
    }
    if (ends[0] == '(' && l->n == 1)
        jbuf_add(b, STR(","), user);
    jbuf_add(b, (struct str){ends + 1, 1}, user);
    return b->failure;
}

static enum err repr_dict(struct jbuf *b, const struct jdict *d, bool user)
{
    jbuf_add(b, STR("{"), user);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0)
            jbuf_add(b, STR(", "), user);
        TRY(repr(b, d->pairs[i].key, user));
        jbuf_add(b, STR(": "), user);
        TRY(repr(b, d->pairs[i].value, user));
    }
    jbuf_add(b, STR("}"), user);
    return b->failure;
}

static enum err repr_view(struct jbuf *b, struct jv v, bool user)
{
    static const char *const names[] = {"dict_keys(", "dict_values(", "dict_items("};
    struct jlist items;
    TRY(jcollect(b->r, v, &items));
    jbuf_add(b, str_of(names[v.u.view->kind]), user);
    TRY(repr_items(b, &items, "[]", user));
    jbuf_add(b, STR(")"), user);
    return b->failure;
}

static enum err repr_range(struct jbuf *b, const struct jrange *g)
{
    char text[96];
    if (g->step == 1)
        snprintf(text, sizeof text, "range(%lld, %lld)", (long long)g->start, (long long)g->stop);
    else
        snprintf(
            text, sizeof text, "range(%lld, %lld, %lld)", (long long)g->start, (long long)g->stop, (long long)g->step);
    jbuf_add(b, str_of(text), false);
    return b->failure;
}

static enum err repr_scalar(struct jbuf *b, struct jv v, bool user)
{
    char text[64];
    switch (v.type) {
    case J_UNDEF: jbuf_add(b, STR("Undefined"), user); break;
    case J_NONE: jbuf_add(b, STR("None"), user); break;
    case J_BOOL: jbuf_add(b, v.u.b ? STR("True") : STR("False"), user); break;
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        jbuf_add(b, str_of(text), user);
        break;
    case J_FLOAT: jbuf_add(b, (struct str){text, jfloat_show(v.u.f, text)}, user); break;
    case J_MACRO:
        jbuf_add(b, STR("<Macro '"), user);
        jbuf_add(b, v.u.macro->def->name, user);
        jbuf_add(b, STR("'>"), user);
        break;
    default:
        return JFAIL(b->r, ERR_UNSUPPORTED,
            "a value of type %s has no text of its own (jinja2 prints a memory address)", jtype_name(v));
    }
    return b->failure;
}

static enum err repr_nested(struct jbuf *b, struct jv v, bool user)
{
    switch (v.type) {
    case J_LIST: return repr_items(b, v.u.l, "[]", user);
    case J_TUPLE: return repr_items(b, v.u.l, "()", user);
    case J_DICT: return repr_dict(b, v.u.d, user);
    case J_VIEW: return repr_view(b, v, user);
    default:
        jbuf_add(b, STR("<Namespace "), user);
        TRY(repr_dict(b, &v.u.ns->d, user));
        jbuf_add(b, STR(">"), user);
        return b->failure;
    }
}

static enum err repr(struct jbuf *b, struct jv v, bool user)
{
    TRY(jstep(b->r, 1));
    switch (v.type) {
    case J_STR: return repr_str(b, v.u.s, user);
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_NS: {
        TRY(jdive(b->r));
        const enum err err = repr_nested(b, v, user);
        b->r->depth--;
        return err;
    }
    case J_RANGE: return repr_range(b, v.u.range);
    case J_LOOP: return jloop_show(b->r, v.u.loop, b);
    default: return repr_scalar(b, v, user);
    }
}

enum err jrepr_into(struct jrun *r, struct jv v, struct jbuf *b)
{
    return repr(b, v, jany_user(r, v));
}

enum err jshow_into(struct jrun *r, struct jv v, struct jbuf *b)
{
    if (v.type == J_STR) {
        jbuf_add_str(b, v.u.s);
        return b->failure;
    }
    return v.type == J_UNDEF ? OK : jrepr_into(r, v, b);
}

enum err jshow(struct jrun *r, struct jv v, struct jv *out)
{
    if (v.type == J_STR) {
        *out = v;
        return OK;
    }
    struct jbuf b;
    jbuf_init(&b, r);
    TRY(jshow_into(r, v, &b));
    return jbuf_done(&b, out);
}
