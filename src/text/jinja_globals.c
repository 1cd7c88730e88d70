/* Functions every template can call: range, dict, namespace, cycler, joiner, and the two that transformers adds,
 * raise_exception and strftime_now. */
#include "text/jinja_int.h"

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

static enum err g_range(ARGS)
{
    (void)raw;
    (void)self;
    int64_t v[3] = {0, 0, 1};
    TRY(jarg_int(r, arg[0], "start", 0, &v[0]));
    TRY(jarg_int(r, arg[1], "stop", 0, &v[1]));
    TRY(jarg_int(r, arg[2], "step", 1, &v[2]));
    if (arg[1].type == J_MISSING) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return JFAIL(r, ERR_INVALID, "range with a step of zero");
    uint64_t gap = 0;
    if (v[2] > 0 && v[1] > v[0])
        gap = (uint64_t)v[1] - (uint64_t)v[0];
    if (v[2] < 0 && v[0] > v[1])
        gap = (uint64_t)v[0] - (uint64_t)v[1];
    const uint64_t step = v[2] > 0 ? (uint64_t)v[2] : (uint64_t)0 - (uint64_t)v[2];
    /* cppcheck-suppress zerodivcond ; a step of zero was refused above */
    const uint64_t n = gap / step + (gap % step != 0);
    if (n > CHAT_RANGE_MAX)
        return JFAIL(r, ERR_LIMIT, "a range of %llu items; the limit is %d", (unsigned long long)n, CHAT_RANGE_MAX);
    struct jrange *g = jtake(r, 1, sizeof *g);
    if (g == NULL)
        return ERR_LIMIT;
    *g = (struct jrange){v[0], v[1], v[2], (size_t)n};
    *out = (struct jv){.type = J_RANGE, .u.range = g};
    return OK;
}

/* dict(mapping or pairs, name=value...) */
static enum err fill_dict(struct jrun *r, const struct jargs *a, struct jdict *d)
{
    if (a->n_pos > 1)
        return JFAIL(r, ERR_INVALID, "dict takes at most one value to start from");
    if (a->n_pos == 1 && a->pos[0].type == J_DICT) {
        const struct jdict *from = a->pos[0].u.d;
        for (size_t i = 0; i < from->n; i++)
            TRY(jdict_put(r, d, from->pairs[i].key, from->pairs[i].value));
    } else if (a->n_pos == 1) {
        struct jlist l, pair;
        TRY(jcollect(r, a->pos[0], &l));
        for (size_t i = 0; i < l.n; i++) {
            TRY(jcollect(r, l.items[i], &pair));
            if (pair.n != 2)
                return JFAIL(r, ERR_INVALID, "a dict is made from pairs");
            TRY(jdict_put(r, d, pair.items[0], pair.items[1]));
        }
    }
    for (size_t i = 0; i < a->n_kw; i++) {
        struct jv key;
        TRY(jstr_new(r, a->kw[i].name, a->kw[i].user ? JT_USER : JT_CLEAN, &key));
        TRY(jdict_put(r, d, key, a->kw[i].value));
    }
    return OK;
}

static enum err g_dict(ARGS)
{
    (void)arg;
    (void)self;
    struct jdict *d;
    TRY(jdict_new(r, raw->n_kw, &d));
    TRY(fill_dict(r, raw, d));
    *out = jdict_value(d);
    return OK;
}

static enum err g_namespace(ARGS)
{
    (void)arg;
    (void)self;
    struct jns *ns = jtake(r, 1, sizeof *ns);
    if (ns == NULL)
        return ERR_LIMIT;
    TRY(fill_dict(r, raw, &ns->d));
    *out = (struct jv){.type = J_NS, .u.ns = ns};
    return OK;
}

static enum err g_cycler(ARGS)
{
    (void)arg;
    (void)self;
    struct jcycler *c = jtake(r, 1, sizeof *c);
    if (c == NULL)
        return ERR_LIMIT;
    if (raw->n_pos == 0 || raw->n_kw > 0)
        return JFAIL(r, ERR_INVALID, "a cycler needs values");
    *c = (struct jcycler){.items = raw->pos, .n = raw->n_pos};
    *out = (struct jv){.type = J_CYCLER, .u.cycler = c};
    return OK;
}

static enum err g_joiner(ARGS)
{
    (void)raw;
    (void)self;
    struct jjoiner *j = jtake(r, 1, sizeof *j);
    if (j == NULL)
        return ERR_LIMIT;
    j->sep = arg[0];
    if (arg[0].type == J_MISSING)
        TRY(jstr_new(r, STR(", "), JT_CLEAN, &j->sep));
    *out = (struct jv){.type = J_JOINER, .u.joiner = j};
    return OK;
}

static enum err g_raise(ARGS)
{
    (void)raw;
    (void)self;
    (void)out;
    struct jv s;
    char shown[300];
    TRY(jshow(r, arg[0], &s));
    return JFAIL(r, ERR_INVALID, "%s", str_show(jstr_str(s.u.s), shown, sizeof shown));
}

static enum err g_strftime_now(ARGS)
{
    (void)raw;
    (void)self;
    const struct jstr *f = NULL;
    TRY(jarg_str(r, arg[0], "format", &f));
    return jformat_time(r, f, r->now_s, out);
}

static enum err g_lipsum(ARGS)
{
    (void)self;
    (void)raw;
    (void)arg;
    (void)out;
    return JFAIL(r, ERR_UNSUPPORTED, "lipsum is not supported");
}

static const struct jfunc globals[] = {{{"range", g_range, "/start stop step", 1}}, {{"dict", g_dict, NULL, 0}},
    {{"namespace", g_namespace, NULL, 0}}, {{"cycler", g_cycler, NULL, 0}}, {{"joiner", g_joiner, "sep", 0}},
    {{"raise_exception", g_raise, "message", 1}}, {{"strftime_now", g_strftime_now, "format", 1}},
    {{"lipsum", g_lipsum, NULL, 0}}};

const struct jfunc *jglobal_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(globals); i++)
        if (str_is(name, globals[i].b.name))
            return &globals[i];
    return NULL;
}
