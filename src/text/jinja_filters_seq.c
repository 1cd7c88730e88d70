/* Filters over sequences: map and select (item by item, on demand), sort, unique, groupby, batch, slice and the like.
 */
#include "text/jinja_int.h"

#include <string.h>

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

static const struct jv missing = {.type = J_MISSING};

static bool given(struct jv v)
{
    return v.type != J_MISSING && v.type != J_NONE;
}

/* "a.b.0": items of items, numbers as numbers. A default stands in for what is undefined on the way. */
enum err jpath_get(struct jrun *r, struct jv v, struct jv path, struct jv dflt, struct jv *out)
{
    *out = v;
    if (!given(path))
        return OK;
    if (path.type != J_STR) {
        TRY(jitem_get(r, v, path, out));
        if (out->type == J_UNDEF && given(dflt))
            *out = dflt;
        return OK;
    }
    const struct str s = jstr_str(path.u.s);
    for (size_t start = 0; start <= s.n;) {
        const char *dot = memchr(s.p + start, '.', s.n - start);
        const size_t end = dot != NULL ? (size_t)(dot - s.p) : s.n;
        struct jv key;
        bool digits = end > start && end - start < 18;
        int64_t number = 0;
        for (size_t i = start; digits && i < end; i++) {
            digits = s.p[i] >= '0' && s.p[i] <= '9';
            number = number * 10 + (s.p[i] - '0');
        }
        TRY(jstr_sub(r, path.u.s, start, end, &key));
        TRY(jitem_get(r, *out, digits ? jint(number) : key, out));
        if (out->type == J_UNDEF && given(dflt))
            *out = dflt;
        start = end + 1;
    }
    return OK;
}

/* ---- map, select, reject ---- */

struct jpipe {
    struct jv source;
    struct jiter it;
    bool started, by_attr, reject;
    bool unique, case_sensitive;
    struct jdict *seen; /* keys that unique has let through */
    struct jv attr, dflt;
    struct jv name; /* of the filter or test; J_MISSING: none */
    const struct jbuiltin *filter;
    struct jargs args;
    enum jiter_kind kind;
};

static enum err pipe_value(struct jrun *r, const struct jpipe *p, struct jv *out)
{
    struct jpipe *kept = jtake(r, 1, sizeof *kept);
    if (kept == NULL)
        return ERR_LIMIT;
    *kept = *p;
    const struct jiter it = {.kind = p->kind, .u.pipe = kept};
    return jiter_value(r, &it, out);
}

static enum err start_pipe(struct jrun *r, struct jpipe *p)
{
    bool any;
    p->started = true;
    TRY(jtruth(r, p->source, &any));
    if (!any && !p->unique) { /* jinja2 asks `if value` first, so None maps to nothing */
        p->it = (struct jiter){.kind = JIT_ARRAY};
        return OK;
    }
    if (p->kind == JIT_MAP && !p->by_attr) {
        char shown[64];
        if (p->name.type != J_STR)
            return JFAIL(r, ERR_INVALID, "map needs the name of a filter");
        p->filter = jfilter_find(jstr_str(p->name.u.s));
        if (p->filter == NULL)
            return JFAIL(
                r, ERR_UNSUPPORTED, "no filter named '%s'", str_show(jstr_str(p->name.u.s), shown, sizeof shown));
    }
    return jiter_init(r, p->source, &p->it);
}

static enum err fold_case(struct jrun *r, bool case_sensitive, struct jv *key)
{
    return !case_sensitive && key->type == J_STR ? jstr_case(r, key->u.s, JCASE_LOWER, key) : OK;
}

static enum err is_new(struct jrun *r, struct jpipe *p, struct jv item, bool *out)
{
    struct jv key;
    const struct jv *found;
    TRY(jpath_get(r, item, p->attr, missing, &key));
    TRY(fold_case(r, p->case_sensitive, &key));
    TRY(jdict_find(r, p->seen, key, &found));
    *out = found == NULL;
    return found == NULL ? jdict_put(r, p->seen, key, jnone()) : OK;
}

enum err jpipe_next(struct jrun *r, struct jpipe *p, struct jv *out, bool *done)
{
    if (!p->started)
        TRY(start_pipe(r, p));
    for (;;) {
        struct jv item, probe;
        TRY(jiter_next(r, &p->it, &item, done));
        if (*done)
            return OK;
        probe = item;
        if (p->by_attr)
            TRY(jpath_get(r, item, p->attr, p->dflt, &probe));
        if (p->kind == JIT_MAP) {
            if (p->by_attr)
                *out = probe;
            else
                TRY(jcall_builtin(r, p->filter, item, &p->args, out));
            return OK;
        }
        bool yes;
        if (p->unique)
            TRY(is_new(r, p, item, &yes));
        else if (p->name.type == J_MISSING)
            TRY(jtruth(r, probe, &yes));
        else
            TRY(jtest_named(r, p->name, probe, &p->args, &yes));
        if (yes != p->reject) {
            *out = item;
            return OK;
        }
    }
}

static enum err f_map(ARGS)
{
    (void)arg;
    struct jpipe p = {.source = self, .kind = JIT_MAP};
    if (raw->n_pos > 0) {
        p.name = raw->pos[0];
        p.args = (struct jargs){raw->pos + 1, raw->n_pos - 1, raw->kw, raw->n_kw};
        return pipe_value(r, &p, out);
    }
    for (size_t i = 0; i < raw->n_kw; i++) {
        if (str_is(raw->kw[i].name, "attribute")) {
            p.by_attr = true;
            p.attr = raw->kw[i].value;
        } else if (str_is(raw->kw[i].name, "default"))
            p.dflt = raw->kw[i].value;
        else
            return JFAIL(r, ERR_INVALID, "map got a keyword argument it does not know");
    }
    if (!p.by_attr)
        return JFAIL(r, ERR_INVALID, "map needs a filter or an attribute");
    return pipe_value(r, &p, out);
}

static enum err select_by(
    struct jrun *r, struct jv self, const struct jargs *raw, bool by_attr, bool reject, struct jv *out)
{
    struct jpipe p = {.source = self, .kind = JIT_SELECT, .by_attr = by_attr, .reject = reject};
    size_t used = 0;
    if (by_attr) {
        if (raw->n_pos == 0)
            return JFAIL(r, ERR_INVALID, "the attribute to select by is missing");
        p.attr = raw->pos[used++];
    }
    if (raw->n_pos > used)
        p.name = raw->pos[used++];
    p.args = (struct jargs){raw->n_pos > used ? raw->pos + used : NULL, raw->n_pos - used, raw->kw, raw->n_kw};
    return pipe_value(r, &p, out);
}

static enum err f_select(ARGS)
{
    (void)arg;
    return select_by(r, self, raw, false, false, out);
}

static enum err f_reject(ARGS)
{
    (void)arg;
    return select_by(r, self, raw, false, true, out);
}

static enum err f_selectattr(ARGS)
{
    (void)arg;
    return select_by(r, self, raw, true, false, out);
}

static enum err f_rejectattr(ARGS)
{
    (void)arg;
    return select_by(r, self, raw, true, true, out);
}

/* ---- sorting ---- */

struct keyed {
    struct jv key, value;
};

/* Stable merge sort; reversing keeps equal items in their order, as Python's does. */
static enum err merge_sort(struct jrun *r, struct keyed *v, struct keyed *spare, size_t n, bool reverse)
{
    if (n < 2)
        return OK;
    const size_t half = n / 2;
    TRY(merge_sort(r, v, spare, half, reverse));
    TRY(merge_sort(r, v + half, spare, n - half, reverse));
    memcpy(spare, v, half * sizeof *v);
    size_t i = 0, j = half, k = 0;
    while (i < half && j < n) {
        bool second;
        TRY(jstep(r, 1));
        TRY(reverse ? jorder(r, spare[i].key, v[j].key, JCMP_LT, &second)
                    : jorder(r, v[j].key, spare[i].key, JCMP_LT, &second));
        v[k++] = second ? v[j++] : spare[i++];
    }
    while (i < half)
        v[k++] = spare[i++];
    return OK;
}

static enum err key_list(struct jrun *r, struct jlist l, struct keyed **out, struct keyed **spare)
{
    *out = jtake(r, l.n, sizeof **out);
    *spare = jtake(r, l.n, sizeof **spare);
    if (*out == NULL || *spare == NULL)
        return ERR_LIMIT;
    for (size_t i = 0; i < l.n; i++)
        (*out)[i].value = l.items[i];
    return OK;
}

static enum err list_of_keyed(struct jrun *r, const struct keyed *v, size_t n, struct jv *out)
{
    struct jv *items;
    TRY(jlist_new(r, n, &items, out));
    for (size_t i = 0; i < n; i++)
        items[i] = v[i].value;
    return OK;
}

/* "age,name": a list of keys. One key is a list of one, as in jinja2: lists compare equal items without ordering them.
 */
static enum err multi_key(struct jrun *r, struct jv item, struct jv attr, bool case_sensitive, struct jv *out)
{
    struct jlist parts = {.items = &attr, .n = 1};
    struct jv split, *keys, comma;
    if (attr.type == J_STR && memchr(attr.u.s->p, ',', attr.u.s->n) != NULL) {
        TRY(jstr_new(r, STR(","), JT_CLEAN, &comma));
        const struct jargs a = {.pos = &comma, .n_pos = 1};
        TRY(jcall_builtin(r, jmethod_find(J_STR, STR("split")), attr, &a, &split));
        parts = *split.u.l;
    }
    TRY(jlist_new(r, parts.n, &keys, out));
    for (size_t i = 0; i < parts.n; i++) {
        TRY(jpath_get(r, item, parts.items[i], missing, &keys[i]));
        TRY(fold_case(r, case_sensitive, &keys[i]));
    }
    return OK;
}

static enum err f_sort(ARGS)
{
    (void)raw;
    struct jlist l;
    struct keyed *v, *spare;
    bool reverse, case_sensitive;
    TRY(jarg_bool(r, arg[0], false, &reverse));
    TRY(jarg_bool(r, arg[1], false, &case_sensitive));
    TRY(jcollect(r, self, &l));
    TRY(key_list(r, l, &v, &spare));
    for (size_t i = 0; i < l.n; i++)
        TRY(multi_key(r, v[i].value, arg[2], case_sensitive, &v[i].key));
    TRY(merge_sort(r, v, spare, l.n, reverse));
    return list_of_keyed(r, v, l.n, out);
}

static enum err f_dictsort(ARGS)
{
    (void)raw;
    struct jlist l;
    struct keyed *v, *spare;
    bool reverse, case_sensitive;
    struct jv items;
    const bool by_value = jis_str(arg[1], "value");
    if (arg[1].type != J_MISSING && !by_value && !jis_str(arg[1], "key"))
        return JFAIL(r, ERR_INVALID, "dictsort sorts by 'key' or by 'value'");
    if (self.type != J_DICT)
        return self.type == J_UNDEF ? jfail_undef(r, self)
                                    : JFAIL(r, ERR_INVALID, "dictsort needs a dict, not %s", jtype_name(self));
    TRY(jarg_bool(r, arg[0], false, &case_sensitive));
    TRY(jarg_bool(r, arg[2], false, &reverse));
    TRY(jcall_builtin(r, jmethod_find(J_DICT, STR("items")), self, &(struct jargs){0}, &items));
    TRY(jcollect(r, items, &l));
    TRY(key_list(r, l, &v, &spare));
    for (size_t i = 0; i < l.n; i++) {
        v[i].key = v[i].value.u.l->items[by_value];
        TRY(fold_case(r, case_sensitive, &v[i].key));
    }
    TRY(merge_sort(r, v, spare, l.n, reverse));
    return list_of_keyed(r, v, l.n, out);
}

static enum err f_unique(ARGS)
{
    (void)raw;
    struct jpipe p = {.source = self, .kind = JIT_SELECT, .unique = true, .attr = arg[1]};
    TRY(jarg_bool(r, arg[0], false, &p.case_sensitive));
    TRY(jdict_new(r, 8, &p.seen));
    return pipe_value(r, &p, out);
}

static enum err extreme(struct jrun *r, struct jv self, const struct jv *arg, enum jcmp op, struct jv *out)
{
    struct jiter it;
    struct jv best = missing, best_key = missing;
    bool case_sensitive;
    TRY(jarg_bool(r, arg[0], false, &case_sensitive));
    TRY(jiter_init(r, self, &it));
    for (;;) {
        struct jv item, key;
        bool done, better = best.type == J_MISSING;
        TRY(jiter_next(r, &it, &item, &done));
        if (done)
            break;
        TRY(jpath_get(r, item, arg[1], missing, &key));
        TRY(fold_case(r, case_sensitive, &key));
        if (!better)
            TRY(jorder(r, key, best_key, op, &better));
        if (better) {
            best = item;
            best_key = key;
        }
    }
    *out = best.type == J_MISSING ? jundef_of(r, STR("item of an empty sequence"), NULL) : best;
    return OK;
}

static enum err f_min(ARGS)
{
    (void)raw;
    return extreme(r, self, arg, JCMP_LT, out);
}

static enum err f_max(ARGS)
{
    (void)raw;
    return extreme(r, self, arg, JCMP_GT, out);
}

static enum err f_groupby(ARGS)
{
    (void)raw;
    struct jlist l;
    struct keyed *v, *spare;
    struct jv *groups;
    bool case_sensitive;
    size_t n = 0;
    TRY(jarg_bool(r, arg[2], false, &case_sensitive));
    TRY(jcollect(r, self, &l));
    TRY(key_list(r, l, &v, &spare));
    for (size_t i = 0; i < l.n; i++) {
        TRY(jpath_get(r, v[i].value, arg[0], arg[1], &v[i].key));
        TRY(fold_case(r, case_sensitive, &v[i].key));
    }
    TRY(merge_sort(r, v, spare, l.n, false));
    groups = jtake(r, l.n, sizeof *groups);
    if (groups == NULL)
        return ERR_LIMIT;
    for (size_t i = 0, j; i < l.n; i = j) {
        bool same = true;
        struct jv key = v[i].key, members, *items;
        for (j = i + 1; j < l.n; j++) {
            TRY(jequal(r, v[j].key, v[i].key, &same));
            if (!same)
                break;
        }
        if (!case_sensitive)
            TRY(jpath_get(r, v[i].value, arg[0], arg[1], &key));
        TRY(jlist_new(r, j - i, &items, &members));
        for (size_t k = i; k < j; k++)
            items[k - i] = v[k].value;
        struct jlist *pair = jtake(r, 1, sizeof *pair);
        struct jv *both = jtake(r, 2, sizeof *both);
        if (pair == NULL || both == NULL)
            return ERR_LIMIT;
        both[0] = key;
        both[1] = members;
        *pair = (struct jlist){both, 2, true};
        groups[n++] = (struct jv){.type = J_TUPLE, .u.l = pair};
    }
    return jlist_of(r, (struct jlist){.items = groups, .n = n}, out);
}

/* ---- cutting ---- */

static enum err iter_over(struct jrun *r, const struct jv *items, size_t n, struct jv *out)
{
    const struct jiter it = {.kind = JIT_ARRAY, .u.array = {.items = items, .n = n}};
    return jiter_value(r, &it, out);
}

static enum err f_batch(ARGS)
{
    (void)raw;
    struct jlist l;
    int64_t width;
    TRY(jarg_int(r, arg[0], "linecount", 0, &width));
    TRY(jcollect(r, self, &l));
    if (width < 1) /* jinja2 never fills a batch that wants nothing */
        width = (int64_t)l.n + (l.n == 0);
    const size_t n = (l.n + (size_t)width - 1) / (size_t)width;
    struct jv *rows = jtake(r, n, sizeof *rows);
    if (rows == NULL)
        return ERR_LIMIT;
    for (size_t i = 0; i < n; i++) {
        const size_t start = i * (size_t)width, have = MIN((size_t)width, l.n - start);
        const size_t len = given(arg[1]) ? (size_t)width : have;
        struct jv *items;
        TRY(jlist_new(r, len, &items, &rows[i]));
        for (size_t k = 0; k < len; k++)
            items[k] = k < have ? l.items[start + k] : arg[1];
    }
    return iter_over(r, rows, n, out);
}

static enum err f_slice(ARGS)
{
    (void)raw;
    struct jlist l;
    int64_t n;
    TRY(jarg_int(r, arg[0], "slices", 0, &n));
    TRY(jcollect(r, self, &l));
    if (n == 0)
        return JFAIL(r, ERR_INVALID, "slice into zero parts");
    if (n > CHAT_ITEMS_MAX)
        return JFAIL(r, ERR_LIMIT, "slice into more than %d parts", CHAT_ITEMS_MAX);
    n = MAX(n, 0);
    TRY(jstep(r, (uint64_t)n));
    struct jv *rows = jtake(r, (size_t)n, sizeof *rows);
    if (rows == NULL)
        return ERR_LIMIT;
    size_t start = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        const size_t each = l.n / (size_t)n, longer = l.n % (size_t)n, have = each + (i < longer);
        const bool fill = given(arg[1]) && i >= longer;
        struct jv *items;
        TRY(jlist_new(r, have + fill, &items, &rows[i]));
        for (size_t k = 0; k < have; k++)
            items[k] = l.items[start + k];
        if (fill)
            items[have] = arg[1];
        start += have;
    }
    return iter_over(r, rows, (size_t)n, out);
}

static enum err f_reverse(ARGS)
{
    (void)raw;
    (void)arg;
    struct jlist l;
    struct jv *items, list;
    if (self.type == J_STR) {
        const struct jv bounds[3] = {missing, missing, jint(-1)};
        return jslice_get(r, self, bounds, out);
    }
    TRY(jcollect(r, self, &l));
    TRY(jlist_new(r, l.n, &items, &list));
    for (size_t i = 0; i < l.n; i++)
        items[i] = l.items[l.n - 1 - i];
    if (self.type == J_ITER) { /* nothing to walk backwards: jinja2 makes a list */
        *out = list;
        return OK;
    }
    return iter_over(r, items, l.n, out);
}

static enum err f_first(ARGS)
{
    (void)raw;
    (void)arg;
    struct jiter it;
    bool done;
    TRY(jiter_init(r, self, &it));
    TRY(jiter_next(r, &it, out, &done));
    if (done)
        *out = jundef_of(r, STR("first item of an empty sequence"), NULL);
    return OK;
}

static enum err f_last(ARGS)
{
    (void)raw;
    (void)arg;
    struct jlist l;
    if (self.type == J_STR && self.u.s->n > 0)
        return jitem_get(r, self, jint(-1), out);
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    if (self.type == J_ITER)
        return JFAIL(r, ERR_INVALID, "last needs a list: write |list|last");
    TRY(jcollect(r, self, &l));
    *out = l.n > 0 ? l.items[l.n - 1] : jundef_of(r, STR("last item of an empty sequence"), NULL);
    return OK;
}

static enum err f_list(ARGS)
{
    (void)raw;
    (void)arg;
    struct jlist l;
    TRY(jcollect(r, self, &l));
    return jlist_of(r, l, out);
}

static enum err f_items(ARGS)
{
    (void)raw;
    (void)arg;
    if (self.type == J_UNDEF)
        return iter_over(r, NULL, 0, out);
    if (self.type != J_DICT)
        return JFAIL(r, ERR_INVALID, "items needs a dict, not %s", jtype_name(self));
    const struct jiter it = {.kind = JIT_VIEW, .u.view = {self.u.d, JVIEW_ITEMS}};
    return jiter_value(r, &it, out);
}

static enum err f_sum(ARGS)
{
    (void)raw;
    struct jiter it;
    *out = arg[1].type == J_MISSING ? jint(0) : arg[1];
    if (out->type == J_STR)
        return JFAIL(r, ERR_INVALID, "sum cannot start from a string");
    TRY(jiter_init(r, self, &it));
    for (;;) {
        struct jv item;
        bool done;
        TRY(jiter_next(r, &it, &item, &done));
        if (done)
            return OK;
        TRY(jpath_get(r, item, arg[0], missing, &item));
        TRY(jbinary(r, JOP_ADD, *out, item, out));
    }
}

const struct jbuiltin jfilters_seq[] = {{"map", f_map, NULL, 0}, {"select", f_select, NULL, 0},
    {"reject", f_reject, NULL, 0}, {"selectattr", f_selectattr, NULL, 0}, {"rejectattr", f_rejectattr, NULL, 0},
    {"sort", f_sort, "reverse case_sensitive attribute", 0}, {"dictsort", f_dictsort, "case_sensitive by reverse", 0},
    {"unique", f_unique, "case_sensitive attribute", 0}, {"min", f_min, "case_sensitive attribute", 0},
    {"max", f_max, "case_sensitive attribute", 0}, {"groupby", f_groupby, "attribute default case_sensitive", 1},
    {"batch", f_batch, "linecount fill_with", 1}, {"slice", f_slice, "slices fill_with", 1},
    {"reverse", f_reverse, "", 0}, {"first", f_first, "", 0}, {"last", f_last, "", 0}, {"list", f_list, "", 0},
    {"items", f_items, "", 0}, {"sum", f_sum, "attribute start", 0}, {NULL, NULL, NULL, 0}};
