/* Values: making them, truth, equality, order, membership, dictionaries. Python's rules, because templates were written
 * against Python: True == 1 == 1.0, undefined is false and equal to undefined, strings compare by code point (which is
 * byte order in UTF-8). */
#include "text/jinja_int.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

#define DICT_INDEX_MIN 9 /* below this many pairs a scan beats a hash */

void *jtake(struct jrun *r, size_t count, size_t bytes)
{
    void *p = arena_array(&r->arena, count, bytes);
    if (p != NULL)
        return p;
    size_t total;
    if (!size_mul(count, bytes, &total) || total > r->arena.bytes_max - MIN(r->arena.total_bytes, r->arena.bytes_max))
        (void)JFAIL(r, ERR_LIMIT, "the rendering needs more than %zu bytes of memory", r->arena.bytes_max);
    else
        (void)JFAIL(r, ERR_NOMEM, "no memory while rendering");
    return NULL;
}

struct jv jnone(void)
{
    return (struct jv){.type = J_NONE};
}

struct jv jbool(bool b)
{
    return (struct jv){.type = J_BOOL, .u.b = b};
}

struct jv jint(int64_t i)
{
    return (struct jv){.type = J_INT, .u.i = i};
}

struct jv jfloat(double f)
{
    return (struct jv){.type = J_FLOAT, .u.f = f};
}

const char *jtype_name(struct jv v)
{
    static const char *const names[] = {"nothing", "undefined", "None", "bool", "int", "float", "str", "list", "tuple",
        "dict", "dict view", "range", "iterator", "namespace", "macro", "function", "method", "loop", "cycler",
        "joiner"};
    return names[v.type];
}

bool jis_number(struct jv v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_FLOAT;
}

int64_t jint_of(struct jv v)
{
    return v.type == J_BOOL ? v.u.b : v.u.i;
}

double jfloat_of(struct jv v)
{
    return v.type == J_FLOAT ? v.u.f : (double)jint_of(v);
}

bool jhas_length(struct jv v)
{
    switch (v.type) {
    case J_UNDEF:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_LOOP: return true;
    default: return false;
    }
}

enum err jlength(struct jrun *r, struct jv v, int64_t *out)
{
    struct jv n;
    *out = 0;
    switch (v.type) {
    case J_UNDEF: return v.u.undef != NULL && v.u.undef->unsafe ? jfail_undef(r, v) : OK;
    case J_STR:
        TRY(jstep(r, v.u.s->n / 32));
        *out = (int64_t)jstr_chars(v.u.s);
        return OK;
    case J_LIST:
    case J_TUPLE: *out = (int64_t)v.u.l->n; return OK;
    case J_DICT: *out = (int64_t)v.u.d->n; return OK;
    case J_VIEW: *out = (int64_t)v.u.view->d->n; return OK;
    case J_RANGE: *out = (int64_t)v.u.range->n; return OK;
    case J_LOOP:
        TRY(jloop_attr(r, v.u.loop, STR("length"), &n));
        *out = n.u.i;
        return OK;
    default: return JFAIL(r, ERR_INVALID, "a value of type %s has no length", jtype_name(v));
    }
}

enum err jtruth(struct jrun *r, struct jv v, bool *out)
{
    int64_t n;
    switch (v.type) {
    case J_UNDEF:
    case J_NONE: *out = false; return OK;
    case J_BOOL: *out = v.u.b; return OK;
    case J_INT: *out = v.u.i != 0; return OK;
    case J_FLOAT: *out = v.u.f != 0; return OK;
    case J_STR: *out = v.u.s->n > 0; return OK;
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_VIEW:
    case J_RANGE:
    case J_LOOP:
        TRY(jlength(r, v, &n));
        *out = n > 0;
        return OK;
    default: *out = true; return OK;
    }
}

/* Order of two numbers: -1, 0, 1, or 2 when one is not a number. Integers beyond 2^53 compare exactly with doubles. */
static int compare_numbers(struct jv a, struct jv b)
{
    if (a.type != J_FLOAT && b.type != J_FLOAT)
        return jint_of(a) < jint_of(b) ? -1 : jint_of(a) > jint_of(b);
    const long double x = a.type == J_FLOAT ? (long double)a.u.f : (long double)jint_of(a);
    const long double y = b.type == J_FLOAT ? (long double)b.u.f : (long double)jint_of(b);
    if (isnan(x) || isnan(y))
        return 2;
    return x < y ? -1 : x > y;
}

static bool same_object(struct jv a, struct jv b)
{
    return a.type == b.type && a.u.l == b.u.l;
}

static enum err equal_dicts(struct jrun *r, const struct jdict *a, const struct jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const struct jv *other;
        TRY(jdict_find(r, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other != NULL)
            TRY(jequal(r, a->pairs[i].value, *other, out));
    }
    return OK;
}

enum err jequal(struct jrun *r, struct jv a, struct jv b, bool *out)
{
    *out = false;
    TRY(jstep(r, 1));
    if (jis_number(a) && jis_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return OK;
    }
    if (a.type != b.type)
        return OK;
    switch (a.type) {
    case J_UNDEF:
    case J_NONE: *out = true; return OK;
    case J_STR:
        if (a.u.s->n != b.u.s->n)
            return OK;
        TRY(jstep(r, a.u.s->n / 64));
        *out = str_eq(jstr_str(a.u.s), jstr_str(b.u.s));
        return OK;
    case J_LIST:
    case J_TUPLE:
        if (a.u.l->n != b.u.l->n)
            return OK;
        TRY(jdive(r));
        *out = true;
        for (size_t i = 0; *out && i < a.u.l->n; i++)
            if (!same_object(a.u.l->items[i], b.u.l->items[i]))
                TRY(jequal(r, a.u.l->items[i], b.u.l->items[i], out));
        r->depth--;
        return OK;
    case J_DICT:
        TRY(jdive(r));
        TRY(equal_dicts(r, a.u.d, b.u.d, out));
        r->depth--;
        return OK;
    case J_RANGE: {
        const struct jrange *x = a.u.range, *y = b.u.range;
        *out = x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
        return OK;
    }
    default: *out = same_object(a, b); return OK;
    }
}

static bool holds(enum jcmp op, int c)
{
    if (c == 2)
        return false;
    switch (op) {
    case JCMP_LT: return c < 0;
    case JCMP_LE: return c <= 0;
    case JCMP_GT: return c > 0;
    default: return c >= 0;
    }
}

static int compare_strings(struct str a, struct str b)
{
    const size_t n = MIN(a.n, b.n);
    const int c = n > 0 ? memcmp(a.p, b.p, n) : 0;
    return c != 0 ? (c < 0 ? -1 : 1) : a.n < b.n ? -1 : a.n > b.n;
}

enum err jorder(struct jrun *r, struct jv a, struct jv b, enum jcmp op, bool *out)
{
    if (a.type == J_UNDEF || b.type == J_UNDEF)
        return jfail_undef(r, a.type == J_UNDEF ? a : b);
    if (jis_number(a) && jis_number(b)) {
        *out = holds(op, compare_numbers(a, b));
        return OK;
    }
    if (a.type == J_STR && b.type == J_STR) {
        TRY(jstep(r, 1 + MIN(a.u.s->n, b.u.s->n) / 64));
        *out = holds(op, compare_strings(jstr_str(a.u.s), jstr_str(b.u.s)));
        return OK;
    }
    if (a.type != b.type || (a.type != J_LIST && a.type != J_TUPLE))
        return JFAIL(r, ERR_INVALID, "cannot order %s and %s", jtype_name(a), jtype_name(b));
    const size_t n = MIN(a.u.l->n, b.u.l->n);
    TRY(jdive(r));
    for (size_t i = 0; i < n; i++) {
        bool same = same_object(a.u.l->items[i], b.u.l->items[i]);
        if (!same)
            TRY(jequal(r, a.u.l->items[i], b.u.l->items[i], &same));
        if (same)
            continue;
        r->depth--;
        return jorder(r, a.u.l->items[i], b.u.l->items[i], op, out);
    }
    r->depth--;
    *out = holds(op, a.u.l->n < b.u.l->n ? -1 : a.u.l->n > b.u.l->n);
    return OK;
}

enum err jcontains(struct jrun *r, struct jv box, struct jv v, bool *out)
{
    *out = false;
    if (box.type == J_STR) {
        if (v.type != J_STR)
            return JFAIL(r, ERR_INVALID, "'in' needs a string on its left, not %s, when a string is on its right",
                jtype_name(v));
        TRY(jstep(r, 1 + box.u.s->n / 64));
        *out = jstr_find(jstr_str(box.u.s), jstr_str(v.u.s), 0) != SIZE_MAX;
        return OK;
    }
    if (box.type == J_DICT || (box.type == J_VIEW && box.u.view->kind == JVIEW_KEYS)) {
        const struct jv *found;
        TRY(jdict_find(r, box.type == J_DICT ? box.u.d : box.u.view->d, v, &found));
        *out = found != NULL;
        return OK;
    }
    struct jiter it;
    TRY(jiter_init(r, box, &it));
    for (bool done = false; !done && !*out;) {
        struct jv item;
        TRY(jiter_next(r, &it, &item, &done));
        if (!done)
            TRY(jequal(r, item, v, out));
    }
    return OK;
}

static enum err sequence_new(struct jrun *r, enum jtype type, size_t n, struct jv **items, struct jv *out)
{
    if (n > CHAT_ITEMS_MAX)
        return JFAIL(r, ERR_LIMIT, "a list of more than %d items", CHAT_ITEMS_MAX);
    TRY(jstep(r, n / 8));
    struct jlist *l = jtake(r, 1, sizeof *l);
    *items = jtake(r, n, sizeof **items);
    if (l == NULL || *items == NULL)
        return ERR_LIMIT;
    *l = (struct jlist){.items = *items, .n = n};
    *out = (struct jv){.type = (uint8_t)type, .u.l = l};
    return OK;
}

enum err jlist_new(struct jrun *r, size_t n, struct jv **items, struct jv *out)
{
    return sequence_new(r, J_LIST, n, items, out);
}

enum err jtuple_new(struct jrun *r, size_t n, struct jv **items, struct jv *out)
{
    return sequence_new(r, J_TUPLE, n, items, out);
}

enum err jpair_tuple(struct jrun *r, struct jv a, struct jv b, struct jv *out)
{
    struct jv *items;
    TRY(jtuple_new(r, 2, &items, out));
    items[0] = a;
    items[1] = b;
    return OK;
}

/* ---- dictionaries ---- */

struct jv jdict_value(const struct jdict *d)
{
    return (struct jv){.type = J_DICT, .u.d = d};
}

static enum err hash_key(struct jrun *r, struct jv v, uint64_t *out)
{
    switch (v.type) {
    case J_STR: *out = hash64(v.u.s->p, v.u.s->n, 0); return OK;
    case J_BOOL:
    case J_INT: *out = (uint64_t)jint_of(v) * 0x9e3779b97f4a7c15u; return OK;
    case J_FLOAT:
        if (v.u.f == floor(v.u.f) && fabs(v.u.f) < 9.2e18)
            *out = (uint64_t)(int64_t)v.u.f * 0x9e3779b97f4a7c15u;
        else
            *out = hash64(&v.u.f, sizeof v.u.f, 1);
        return OK;
    case J_TUPLE:
        TRY(jdive(r));
        *out = 7;
        for (size_t i = 0; i < v.u.l->n; i++) {
            uint64_t h;
            TRY(hash_key(r, v.u.l->items[i], &h));
            *out = (*out ^ h) * 0x9e3779b97f4a7c15u;
        }
        r->depth--;
        return OK;
    case J_LIST:
    case J_DICT:
    case J_VIEW: return JFAIL(r, ERR_INVALID, "a %s cannot be a key", jtype_name(v));
    default: *out = v.type; return OK;
    }
}

enum err jdict_new(struct jrun *r, size_t cap, struct jdict **out)
{
    if (cap > CHAT_ITEMS_MAX)
        return JFAIL(r, ERR_LIMIT, "a dict of more than %d items", CHAT_ITEMS_MAX);
    *out = jtake(r, 1, sizeof **out);
    if (*out == NULL)
        return ERR_LIMIT;
    (*out)->pairs = jtake(r, cap, sizeof *(*out)->pairs);
    (*out)->cap = cap;
    return (*out)->pairs == NULL ? ERR_LIMIT : OK;
}

static void index_pair(struct jdict *d, uint64_t hash, size_t pair)
{
    size_t at = hash & (d->index_cap - 1);
    while (d->index[at] != 0)
        at = (at + 1) & (d->index_cap - 1);
    d->index[at] = (uint32_t)pair + 1;
}

static enum err build_index(struct jrun *r, struct jdict *d)
{
    d->index_cap = 32;
    while (d->index_cap < d->cap * 2)
        d->index_cap *= 2;
    d->index = jtake(r, d->index_cap, sizeof *d->index);
    if (d->index == NULL)
        return ERR_LIMIT;
    for (size_t i = 0; i < d->n; i++) {
        uint64_t h;
        TRY(hash_key(r, d->pairs[i].key, &h));
        index_pair(d, h, i);
    }
    return OK;
}

static enum err find_pair(struct jrun *r, const struct jdict *d, struct jv key, uint64_t hash, struct jpair **out)
{
    *out = NULL;
    bool same = false;
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++) {
            TRY(jequal(r, d->pairs[i].key, key, &same));
            if (same) {
                *out = &d->pairs[i];
                return OK;
            }
        }
        return OK;
    }
    for (size_t at = hash & (d->index_cap - 1); d->index[at] != 0; at = (at + 1) & (d->index_cap - 1)) {
        struct jpair *p = &d->pairs[d->index[at] - 1];
        TRY(jequal(r, p->key, key, &same));
        if (same) {
            *out = p;
            return OK;
        }
    }
    return OK;
}

enum err jdict_put(struct jrun *r, struct jdict *d, struct jv key, struct jv value)
{
    uint64_t hash;
    struct jpair *found;
    TRY(hash_key(r, key, &hash));
    TRY(find_pair(r, d, key, hash, &found));
    if (found != NULL) {
        found->value = value;
        return OK;
    }
    if (d->n == d->cap) {
        const size_t cap = d->cap ? d->cap * 2 : 4;
        if (cap > CHAT_ITEMS_MAX)
            return JFAIL(r, ERR_LIMIT, "a dict of more than %d items", CHAT_ITEMS_MAX);
        struct jpair *pairs = jtake(r, cap, sizeof *pairs);
        if (pairs == NULL)
            return ERR_LIMIT;
        if (d->n > 0)
            memcpy(pairs, d->pairs, d->n * sizeof *pairs);
        d->pairs = pairs;
        d->cap = cap;
        d->index = NULL;
    }
    d->pairs[d->n++] = (struct jpair){key, value};
    if (d->index != NULL)
        index_pair(d, hash, d->n - 1);
    else if (d->n >= DICT_INDEX_MIN)
        TRY(build_index(r, d));
    return OK;
}

enum err jdict_find(struct jrun *r, const struct jdict *d, struct jv key, const struct jv **out)
{
    uint64_t hash;
    struct jpair *found;
    TRY(hash_key(r, key, &hash));
    TRY(find_pair(r, d, key, hash, &found));
    *out = found != NULL ? &found->value : NULL;
    return OK;
}

const struct jv *jdict_find_str(const struct jdict *d, struct str key)
{
    if (d->index == NULL) {
        for (size_t i = 0; i < d->n; i++)
            if (d->pairs[i].key.type == J_STR && str_eq(jstr_str(d->pairs[i].key.u.s), key))
                return &d->pairs[i].value;
        return NULL;
    }
    for (size_t at = hash64(key.p, key.n, 0) & (d->index_cap - 1); d->index[at] != 0;
         at = (at + 1) & (d->index_cap - 1)) {
        const struct jpair *p = &d->pairs[d->index[at] - 1];
        if (p->key.type == J_STR && str_eq(jstr_str(p->key.u.s), key))
            return &p->value;
    }
    return NULL;
}
