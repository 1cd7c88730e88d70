/* Walking over values. A struct jiter on the stack walks a list, dict, string or range; a J_ITER value is a heap one
 * that templates can hold, and that is used up by walking it, as Python's generators are. map and select work item by
 * item (jinja_filters_seq.c), so what they never reach never fails. */
#include "text/jinja_int.h"

#include <string.h>

bool jis_iterable(struct jv v)
{
    switch (v.type) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_LOOP:
    case J_ITER: return true;
    default: return false;
    }
}

enum err jiter_init(struct jrun *r, struct jv v, struct jiter *it)
{
    *it = (struct jiter){.kind = JIT_ARRAY};
    switch (v.type) {
    case J_UNDEF: return v.u.undef != NULL && v.u.undef->unsafe ? jfail_undef(r, v) : OK;
    case J_STR:
        it->kind = JIT_CHARS;
        it->u.s = v.u.s;
        return OK;
    case J_LIST:
    case J_TUPLE: it->u.array = *v.u.l; return OK;
    case J_DICT:
        it->kind = JIT_DICT;
        it->u.d = v.u.d;
        return OK;
    case J_VIEW:
        it->kind = JIT_VIEW;
        it->u.view = *v.u.view;
        return OK;
    case J_RANGE:
        it->kind = JIT_RANGE;
        it->u.range = *v.u.range;
        return OK;
    case J_ITER:
        it->kind = JIT_SHARED;
        it->u.shared = v.u.it;
        return OK;
    default: return JFAIL(r, ERR_INVALID, "a value of type %s cannot be iterated over", jtype_name(v));
    }
}

static enum err next_view(struct jrun *r, struct jiter *it, struct jv *out)
{
    const struct jpair *p = &it->u.view.d->pairs[it->at++];
    if (it->u.view.kind == JVIEW_ITEMS)
        return jpair_tuple(r, p->key, p->value, out);
    *out = it->u.view.kind == JVIEW_KEYS ? p->key : p->value;
    return OK;
}

enum err jiter_next(struct jrun *r, struct jiter *it, struct jv *out, bool *done)
{
    TRY(jstep(r, 1));
    *done = false;
    size_t len;
    switch (it->kind) {
    case JIT_ARRAY:
        if (it->at >= it->u.array.n)
            break;
        *out = it->u.array.items[it->at++];
        return OK;
    case JIT_DICT:
        if (it->at >= it->u.d->n)
            break;
        *out = it->u.d->pairs[it->at++].key;
        return OK;
    case JIT_VIEW:
        if (it->at >= it->u.view.d->n)
            break;
        return next_view(r, it, out);
    case JIT_CHARS:
        if (it->at >= it->u.s->n)
            break;
        jchar_at(jstr_str(it->u.s), it->at, &len);
        it->at += len;
        return jstr_sub(r, it->u.s, it->at - len, it->at, out);
    case JIT_RANGE:
        if (it->at >= it->u.range.n)
            break;
        *out = jint(it->u.range.start + (int64_t)it->at++ * it->u.range.step);
        return OK;
    case JIT_MAP:
    case JIT_SELECT: {
        TRY(jdive(r));
        const enum err err = jpipe_next(r, it->u.pipe, out, done);
        r->depth--;
        return err;
    }
    case JIT_SHARED: return jiter_next(r, it->u.shared, out, done);
    }
    *done = true;
    return OK;
}

enum err jiter_value(struct jrun *r, const struct jiter *it, struct jv *out)
{
    struct jiter *kept = jtake(r, 1, sizeof *kept);
    if (kept == NULL)
        return ERR_LIMIT;
    *kept = *it;
    *out = (struct jv){.type = J_ITER, .u.it = kept};
    return OK;
}

enum err jcollect(struct jrun *r, struct jv v, struct jlist *out)
{
    struct jiter it;
    if (v.type == J_LIST || v.type == J_TUPLE) {
        *out = *v.u.l;
        return OK;
    }
    TRY(jiter_init(r, v, &it));
    struct jv *items = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        struct jv item;
        bool done;
        TRY(jiter_next(r, &it, &item, &done));
        if (done)
            break;
        if (n == cap) {
            if (n >= CHAT_ITEMS_MAX)
                return JFAIL(r, ERR_LIMIT, "a list of more than %d items", CHAT_ITEMS_MAX);
            cap = cap ? cap * 2 : 8;
            struct jv *grown = jtake(r, cap, sizeof *grown);
            if (grown == NULL)
                return ERR_LIMIT;
            if (n > 0)
                memcpy(grown, items, n * sizeof *grown);
            items = grown;
        }
        items[n++] = item;
    }
    *out = (struct jlist){.items = items, .n = n};
    return OK;
}

enum err jlist_of(struct jrun *r, struct jlist l, struct jv *out)
{
    struct jlist *kept = jtake(r, 1, sizeof *kept);
    if (kept == NULL)
        return ERR_LIMIT;
    *kept = l;
    *out = (struct jv){.type = J_LIST, .u.l = kept};
    return OK;
}
