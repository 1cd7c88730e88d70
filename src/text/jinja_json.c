/* JSON in and out of template values. In: the caller's messages and tools, every string and number of which is the
 * user's. Out: the tojson filter as transformers defines it, which is Python's json.dumps with ensure_ascii off
 * (jinja2's own escapes < > & ' and would change prompts).
 *
 * tojson text is the user's when anything in the value is: tool schemas would otherwise be cut into hundreds of runs.
 */
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum err from_json(struct jrun *r, const json_t *j, int depth, struct jv *out);

/* The caller's own input earns its fuel: templates may look at every value and byte of it a few times. */
static void fuel_for(struct jrun *r, size_t bytes)
{
    r->steps_max += CHAT_STEPS_PER_ITEM + bytes * CHAT_STEPS_PER_BYTE;
    r->arena.bytes_max += sizeof(struct jpair) * CHAT_BYTES_PER_BYTE + bytes * CHAT_BYTES_PER_BYTE;
}

static enum err from_object(struct jrun *r, const json_t *j, int depth, struct jv *out)
{
    struct jdict *d;
    json_t *o = (json_t *)(uintptr_t)j; /* jansson's iterators take a writable object and do not write */
    TRY(jdict_new(r, json_object_size(j), &d));
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it)) {
        struct jv key, value;
        const struct str name = {json_object_iter_key(it), json_object_iter_key_len(it)};
        TRY(jstr_new(r, name, JT_USER, &key));
        fuel_for(r, name.n);
        TRY(from_json(r, json_object_iter_value(it), depth + 1, &value));
        TRY(jdict_put(r, d, key, value));
    }
    *out = jdict_value(d);
    return OK;
}

static enum err from_json(struct jrun *r, const json_t *j, int depth, struct jv *out)
{
    struct jv *items;
    if (depth > JSON_DEPTH_MAX)
        return JFAIL(r, ERR_LIMIT, "JSON nested deeper than %d levels", JSON_DEPTH_MAX);
    fuel_for(r, json_is_string(j) ? json_string_length(j) : 0);
    switch (json_typeof(j)) {
    case JSON_OBJECT: return from_object(r, j, depth, out);
    case JSON_ARRAY:
        TRY(jlist_new(r, json_array_size(j), &items, out));
        for (size_t i = 0; i < json_array_size(j); i++)
            TRY(from_json(r, json_array_get(j, i), depth + 1, &items[i]));
        return OK;
    case JSON_STRING: return jstr_new(r, (struct str){json_string_value(j), json_string_length(j)}, JT_USER, out);
    case JSON_INTEGER: *out = jint(json_integer_value(j)); break;
    case JSON_REAL: *out = jfloat(json_real_value(j)); break;
    case JSON_TRUE: *out = jbool(true); break;
    case JSON_FALSE: *out = jbool(false); break;
    case JSON_NULL: *out = jnone(); break;
    }
    out->user = true;
    return OK;
}

enum err jfrom_json(struct jrun *r, const json_t *j, struct jv *out)
{
    return from_json(r, j, 0, out);
}

/* ---- tojson ---- */

struct writer {
    struct jbuf *b;
    bool user, ascii, sort;
    bool pretty;
    struct str indent; /* of one level */
    struct str comma, colon;
};

static void put(struct writer *w, struct str s)
{
    jbuf_add(w->b, s, w->user);
}

static enum err write_string(struct writer *w, struct str s)
{
    char esc[16];
    size_t len, plain = 0;
    TRY(jstep(w->b->r, s.n / 16));
    put(w, STR("\""));
    for (size_t i = 0; i < s.n; i += len) {
        const int32_t c = jchar_at(s, i, &len);
        const char *const shorts = "\"\\\b\f\n\r\t";
        const char *known = c > 0 && c < 0x80 ? strchr(shorts, c) : NULL;
        if (known != NULL)
            snprintf(esc, sizeof esc, "\\%c", "\"\\bfnrt"[known - shorts]);
        else if (c < 0x20 || (w->ascii && c >= 0x7f && c < 0x10000))
            snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        else if (w->ascii && c >= 0x10000)
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xd800 + ((unsigned)c - 0x10000) / 0x400,
                0xdc00 + ((unsigned)c - 0x10000) % 0x400);
        else
            continue;
        put(w, (struct str){s.p + plain, i - plain});
        put(w, str_of(esc));
        plain = i + len;
    }
    put(w, (struct str){s.p + plain, s.n - plain});
    put(w, STR("\""));
    return w->b->failure;
}

static enum err write_value(struct writer *w, struct jv v, size_t level);

static void new_line(struct writer *w, size_t level)
{
    if (!w->pretty)
        return;
    put(w, STR("\n"));
    for (size_t i = 0; i < level; i++)
        put(w, w->indent);
}

static enum err write_scalar(struct writer *w, struct jv v)
{
    char text[64];
    switch (v.type) {
    case J_NONE: put(w, STR("null")); break;
    case J_BOOL: put(w, v.u.b ? STR("true") : STR("false")); break;
    case J_INT:
        snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        put(w, str_of(text));
        break;
    case J_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            put(w, isnan(v.u.f) ? STR("NaN") : v.u.f > 0 ? STR("Infinity") : STR("-Infinity"));
        else
            put(w, (struct str){text, jfloat_show(v.u.f, text)});
        break;
    case J_UNDEF: return jfail_undef(w->b->r, v);
    default: return JFAIL(w->b->r, ERR_INVALID, "a value of type %s cannot be written as JSON", jtype_name(v));
    }
    return w->b->failure;
}

static enum err write_key(struct writer *w, struct jv key)
{
    if (key.type == J_STR)
        return write_string(w, jstr_str(key.u.s));
    if (key.type != J_NONE && !jis_number(key))
        return JFAIL(w->b->r, ERR_INVALID, "a %s cannot be a JSON key", jtype_name(key));
    put(w, STR("\""));
    TRY(write_scalar(w, key));
    put(w, STR("\""));
    return w->b->failure;
}

/* The pairs in the order of their keys: insertion sort on a copy of the numbers, merged in halves. */
static enum err sort_keys(struct jrun *r, const struct jdict *d, size_t *order, size_t *spare, size_t n)
{
    if (n < 2)
        return OK;
    const size_t half = n / 2;
    TRY(sort_keys(r, d, order, spare, half));
    TRY(sort_keys(r, d, order + half, spare, n - half));
    memcpy(spare, order, half * sizeof *order);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n) {
        bool less;
        TRY(jorder(r, d->pairs[order[j]].key, d->pairs[spare[i]].key, JCMP_LT, &less));
        order[k++] = less ? order[j++] : spare[i++];
    }
    while (i < half)
        order[k++] = spare[i++];
    return OK;
}

static enum err write_dict(struct writer *w, const struct jdict *d, size_t level)
{
    struct jrun *r = w->b->r;
    size_t *order = NULL;
    if (w->sort) {
        order = jtake(r, d->n, sizeof *order);
        size_t *spare = jtake(r, d->n, sizeof *spare);
        if (order == NULL || spare == NULL)
            return ERR_LIMIT;
        for (size_t i = 0; i < d->n; i++)
            order[i] = i;
        TRY(sort_keys(r, d, order, spare, d->n));
    }
    put(w, STR("{"));
    for (size_t i = 0; i < d->n; i++) {
        const struct jpair *p = &d->pairs[order != NULL ? order[i] : i];
        if (i > 0)
            put(w, w->comma);
        new_line(w, level + 1);
        TRY(write_key(w, p->key));
        put(w, w->colon);
        TRY(write_value(w, p->value, level + 1));
    }
    if (d->n > 0)
        new_line(w, level);
    put(w, STR("}"));
    return w->b->failure;
}

static enum err write_list(struct writer *w, const struct jlist *l, size_t level)
{
    put(w, STR("["));
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0)
            put(w, w->comma);
        new_line(w, level + 1);
        TRY(write_value(w, l->items[i], level + 1));
    }
    if (l->n > 0)
        new_line(w, level);
    put(w, STR("]"));
    return w->b->failure;
}

static enum err write_value(struct writer *w, struct jv v, size_t level)
{
    TRY(jstep(w->b->r, 1));
    if (v.type == J_STR)
        return write_string(w, jstr_str(v.u.s));
    if (v.type != J_LIST && v.type != J_TUPLE && v.type != J_DICT)
        return write_scalar(w, v);
    TRY(jdive(w->b->r));
    const enum err err = v.type == J_DICT ? write_dict(w, v.u.d, level) : write_list(w, v.u.l, level);
    w->b->r->depth--;
    return err;
}

/* indent: none, a number of spaces or the string itself. */
static enum err set_indent(struct jrun *r, struct writer *w, struct jv v)
{
    if (v.type == J_MISSING || v.type == J_NONE)
        return OK;
    w->pretty = true;
    w->comma = STR(",");
    if (v.type == J_STR) {
        w->indent = jstr_str(v.u.s);
        w->user = w->user || jstr_any_user(v.u.s);
        return OK;
    }
    int64_t n;
    TRY(jarg_int(r, v, "indent", 0, &n));
    n = MAX(n, 0);
    if ((uint64_t)n > CHAT_STRING_BYTES_MAX)
        return JFAIL(r, ERR_LIMIT, "an indent of %lld", (long long)n);
    char *spaces = jtake(r, (size_t)n + 1, 1);
    if (spaces == NULL)
        return ERR_LIMIT;
    memset(spaces, ' ', (size_t)n);
    w->indent = (struct str){spaces, (size_t)n};
    return OK;
}

enum err jfilter_tojson(struct jrun *r, struct jv v, const struct jargs *raw, const struct jv *arg, struct jv *out)
{
    (void)raw; /* ensure_ascii indent separators sort_keys */
    struct jbuf b;
    jbuf_init(&b, r);
    struct writer w = {.b = &b, .user = jany_user(r, v), .comma = STR(", "), .colon = STR(": ")};
    TRY(jarg_bool(r, arg[0], false, &w.ascii));
    TRY(jarg_bool(r, arg[3], false, &w.sort));
    TRY(set_indent(r, &w, arg[1]));
    if (arg[2].type == J_LIST || arg[2].type == J_TUPLE) {
        const struct jlist *l = arg[2].u.l;
        if (l->n != 2 || l->items[0].type != J_STR || l->items[1].type != J_STR)
            return JFAIL(r, ERR_INVALID, "separators must be two strings");
        w.comma = jstr_str(l->items[0].u.s);
        w.colon = jstr_str(l->items[1].u.s);
        w.user = w.user || jany_user(r, arg[2]);
    } else if (arg[2].type != J_MISSING && arg[2].type != J_NONE)
        return JFAIL(r, ERR_INVALID, "separators must be two strings");
    TRY(write_value(&w, v, 0));
    return jbuf_done(&b, out);
}
