/* for loops and the `loop` variable. Items are drawn one by one, so that a filter condition sees what the body changed
 * in a namespace, and loop.last looks exactly one item ahead, as jinja2's own loop does. */
#include "text/jinja_int.h"

#include <stdio.h>
#include <string.h>

struct jloop {
    const struct jnode *node;
    struct jframe *outer; /* where the loop stands: its condition and its recursion see this scope */
    struct jv iterable;
    struct jiter it;
    int64_t index0, length; /* length -1: not known yet */
    int64_t depth0;
    struct jv before, current, after; /* J_MISSING: none */
    struct jv changed;                /* the last values given to loop.changed, a tuple */
};

/* The next item that passes the loop's condition. */
static enum err pull(struct jrun *r, struct jloop *l, struct jv *out, bool *done)
{
    for (;;) {
        TRY(jiter_next(r, &l->it, out, done));
        if (*done || l->node->c == NULL)
            return OK;
        struct jframe f = {.parent = l->outer};
        struct jframe *saved = r->frame;
        struct jv test;
        bool yes = false;
        TRY(jassign(r, &f, l->node->a, *out));
        r->frame = &f;
        enum err err = jeval(r, l->node->c, &test);
        if (err == OK)
            err = jtruth(r, test, &yes);
        r->frame = saved;
        if (err != OK || yes)
            return err;
    }
}

static enum err peek(struct jrun *r, struct jloop *l, bool *there)
{
    bool done = false;
    if (l->after.type == J_MISSING)
        TRY(pull(r, l, &l->after, &done));
    if (done)
        l->after = (struct jv){.type = J_MISSING};
    *there = !done;
    return OK;
}

static enum err know_length(struct jrun *r, struct jloop *l)
{
    if (l->length >= 0)
        return OK;
    if (l->node->c == NULL && jhas_length(l->iterable))
        return jlength(r, l->iterable, &l->length);
    struct jv *items = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        struct jv item;
        bool done;
        TRY(pull(r, l, &item, &done));
        if (done)
            break;
        if (n == cap) {
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
    l->length = (int64_t)n + l->index0 + 1 + (l->after.type != J_MISSING);
    l->it = (struct jiter){.kind = JIT_ARRAY, .u.array = {.items = items, .n = n}};
    l->it.at = 0;
    return OK;
}

static enum err cycle(struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out)
{
    (void)arg;
    if (raw->n_kw > 0 || raw->n_pos == 0)
        return JFAIL(r, ERR_INVALID, "loop.cycle needs values to choose from");
    *out = raw->pos[(size_t)self.u.loop->index0 % raw->n_pos];
    return OK;
}

static enum err changed(struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out)
{
    (void)arg;
    struct jv now, *items;
    bool same = false;
    TRY(jtuple_new(r, raw->n_pos, &items, &now));
    if (raw->n_pos > 0)
        memcpy(items, raw->pos, raw->n_pos * sizeof *items);
    if (self.u.loop->changed.type != J_MISSING)
        TRY(jequal(r, self.u.loop->changed, now, &same));
    self.u.loop->changed = now;
    *out = jbool(!same);
    return OK;
}

static const struct jbuiltin loop_methods[] = {{"cycle", cycle, NULL, 0}, {"changed", changed, NULL, 0}};

enum err jloop_attr(struct jrun *r, struct jloop *l, struct str name, struct jv *out)
{
    bool there;
    *out = (struct jv){.type = J_MISSING};
    if (str_is(name, "index"))
        *out = jint(l->index0 + 1);
    else if (str_is(name, "index0"))
        *out = jint(l->index0);
    else if (str_is(name, "first"))
        *out = jbool(l->index0 == 0);
    else if (str_is(name, "last")) {
        TRY(peek(r, l, &there));
        *out = jbool(!there);
    } else if (str_is(name, "length") || str_is(name, "revindex") || str_is(name, "revindex0")) {
        TRY(know_length(r, l));
        *out = jint(str_is(name, "length") ? l->length : l->length - l->index0 - str_is(name, "revindex0"));
    } else if (str_is(name, "depth") || str_is(name, "depth0"))
        *out = jint(l->depth0 + str_is(name, "depth"));
    else if (str_is(name, "previtem"))
        *out = l->index0 == 0 ? jundef_of(r, name, "loop") : l->before;
    else if (str_is(name, "nextitem")) {
        TRY(peek(r, l, &there));
        *out = there ? l->after : jundef_of(r, name, "loop");
    } else {
        for (size_t i = 0; i < COUNT_OF(loop_methods); i++) {
            if (!str_is(name, loop_methods[i].name))
                continue;
            struct jmethod *m = jtake(r, 1, sizeof *m);
            if (m == NULL)
                return ERR_LIMIT;
            *m = (struct jmethod){&loop_methods[i], {.type = J_LOOP, .u.loop = l}};
            *out = (struct jv){.type = J_METHOD, .u.m = m};
        }
    }
    return OK;
}

enum err jloop_show(struct jrun *r, struct jloop *l, struct jbuf *b)
{
    char text[64];
    TRY(know_length(r, l));
    snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)l->index0 + 1, (long long)l->length);
    jbuf_add(b, str_of(text), false);
    return b->failure;
}

/* One turn: the item becomes current and the body runs in a fresh scope. */
static enum err turn(struct jrun *r, struct jloop *l, struct jframe **frame, struct jv item)
{
    struct jframe *f = *frame;
    if (f == NULL || f->captured) {
        f = jtake(r, 1, sizeof *f);
        if (f == NULL)
            return ERR_LIMIT;
        f->parent = l->outer;
        *frame = f;
    }
    f->n = 0;
    l->index0++;
    l->before = l->current;
    l->current = item;
    TRY(jframe_set(r, f, r->tree->id_loop, (struct jv){.type = J_LOOP, .u.loop = l}));
    TRY(jassign(r, f, l->node->a, item));
    r->frame = f;
    const enum err err = jexec(r, l->node->list[0]);
    r->frame = l->outer;
    return err;
}

static enum err run_loop(
    struct jrun *r, const struct jnode *n, struct jframe *outer, struct jv iterable, int64_t depth0)
{
    struct jloop *l = jtake(r, 1, sizeof *l);
    if (l == NULL)
        return ERR_LIMIT;
    *l = (struct jloop){.node = n, .outer = outer, .iterable = iterable, .index0 = -1, .length = -1, .depth0 = depth0};
    TRY(jiter_init(r, iterable, &l->it));
    struct jframe *frame = NULL;
    bool any = false;
    for (;;) {
        struct jv item = l->after;
        bool done = false;
        if (item.type == J_MISSING)
            TRY(pull(r, l, &item, &done));
        l->after = (struct jv){.type = J_MISSING};
        if (done)
            break;
        any = true;
        TRY(turn(r, l, &frame, item));
        const enum jflow flow = r->flow;
        r->flow = JFLOW_ON;
        if (flow == JFLOW_BREAK)
            return OK;
    }
    if (any || n->list[1] == NULL)
        return OK;
    struct jframe *f = jtake(r, 1, sizeof *f);
    if (f == NULL)
        return ERR_LIMIT;
    f->parent = outer;
    r->frame = f;
    const enum err err = jexec(r, n->list[1]);
    r->frame = outer;
    return err;
}

enum err jexec_for(struct jrun *r, const struct jnode *n)
{
    struct jv iterable;
    TRY(jeval(r, n->b, &iterable));
    return run_loop(r, n, r->frame, iterable, 0);
}

/* loop(items) inside a recursive loop: the body over other items, as text. */
enum err jloop_call(struct jrun *r, struct jloop *l, const struct jargs *a, struct jv *out)
{
    if (!l->node->flag)
        return JFAIL(r, ERR_INVALID, "only a loop marked 'recursive' can be called");
    if (a->n_pos != 1 || a->n_kw != 0)
        return JFAIL(r, ERR_INVALID, "loop() takes one iterable");
    struct jbuf b, *saved_out = r->out;
    struct jframe *saved = r->frame;
    jbuf_init(&b, r);
    r->out = &b;
    r->frame = l->outer;
    const enum err err = run_loop(r, l->node, l->outer, a->pos[0], l->depth0 + 1);
    r->frame = saved;
    r->out = saved_out;
    return err != OK ? err : jbuf_done(&b, out);
}
