/* Reading a server's numbers, and what two readings say together; see top.h. */
#include "cli/top.h"

#include "base/json.h"
#include "base/mem.h"

#include <string.h>

#define COUNT_MAX (UINT64_MAX / 2) /* of one counter: differences and sums of two stay exact */
#define WINDOW_NS ((uint64_t)60500000000)

/* --- reading --- */

struct reading {
    const json_t *o;
    enum err err;
    struct error *e;
};

static void read_u64(struct reading *r, const char *key, uint64_t *out)
{
    if (r->err == OK)
        r->err = json_get_u64(r->o, key, 0, COUNT_MAX, out, r->e);
}

static void read_text(struct reading *r, const char *key, char *out, size_t cap)
{
    struct str s = {"", 0};
    if (r->err == OK)
        r->err = json_get_str(r->o, key, &s, r->e);
    str_show(s, out, cap);
}

static struct reading read_object(struct reading *r, const char *key)
{
    const json_t *o = NULL;
    if (r->err == OK)
        r->err = json_get_object(r->o, key, &o, r->e);
    if (r->err == OK && o == NULL)
        r->err = FAIL(r->e, ERR_FORMAT, "it has no '%s'", key);
    return (struct reading){o, r->err, r->e};
}

static void read_histogram(struct reading *all, const char *key, struct top_histogram *h)
{
    struct reading r = read_object(all, key);
    const json_t *upper = NULL, *counts = NULL;
    if (r.err == OK)
        r.err = json_get_array(r.o, "upper", &upper, r.e);
    if (r.err == OK)
        r.err = json_get_array(r.o, "counts", &counts, r.e);
    const size_t n = json_array_size(upper);
    if (r.err == OK && (n == 0 || n > TOP_BUCKETS_MAX || json_array_size(counts) != n + 1))
        r.err = FAIL(r.e, ERR_FORMAT, "histogram '%s' has %zu bounds and %zu counts; at most %d, and one more count",
            key, n, json_array_size(counts), TOP_BUCKETS_MAX);
    for (size_t i = 0; r.err == OK && i <= n; i++) {
        const json_int_t count = json_integer_value(json_array_get(counts, i));
        const double bound = i < n ? json_number_value(json_array_get(upper, i)) : 0;
        if (count < 0 || (i > 0 && i < n && !(bound > h->upper[i - 1])))
            r.err = FAIL(r.e, ERR_FORMAT, "histogram '%s' has a bad bucket %zu", key, i);
        h->counts[i] = (uint64_t)count;
        if (i < n)
            h->upper[i] = bound;
    }
    h->n = n;
    all->err = r.err;
}

static void read_tenants(struct reading *all, struct top_sample *s)
{
    const json_t *list = NULL;
    if (all->err == OK)
        all->err = json_get_array(all->o, "tenants", &list, all->e);
    for (size_t i = 0; i < json_array_size(list) && i < TOP_TENANTS_MAX && all->err == OK; i++) {
        struct reading r = {json_array_get(list, i), OK, all->e};
        if (!json_is_object(r.o))
            r.err = FAIL(r.e, ERR_FORMAT, "tenant %zu is not an object", i);
        struct top_tenant *t = &s->tenants[s->n_tenants++];
        read_text(&r, "name", t->name, sizeof t->name);
        read_u64(&r, "running", &t->running);
        read_u64(&r, "waiting", &t->waiting);
        read_u64(&r, "prompt_tokens", &t->prompt_tokens);
        read_u64(&r, "output_tokens", &t->output_tokens);
        all->err = r.err;
    }
}

static void read_reasons(struct reading *all, struct top_sample *s)
{
    struct reading r = read_object(all, "ended");
    const char *name;
    json_t *value;
    if (r.err != OK)
        return;
    json_object_foreach((json_t *)r.o, name, value)
    {
        if (s->n_reasons == TOP_REASONS_MAX || json_integer_value(value) <= 0)
            continue;
        struct top_reason *reason = &s->reasons[s->n_reasons++];
        str_show(str_of(name), reason->name, sizeof reason->name);
        reason->n = (uint64_t)json_integer_value(value);
    }
}

static void read_kv(struct reading *all, struct top_sample *s)
{
    struct reading r = read_object(all, "kv");
    read_u64(&r, "blocks", &s->blocks);
    read_u64(&r, "block_tokens", &s->block_tokens);
    read_u64(&r, "free", &s->free);
    read_u64(&r, "cached", &s->cached);
    read_u64(&r, "parked", &s->parked);
    read_u64(&r, "held", &s->held);
    read_u64(&r, "shared", &s->shared);
    all->err = r.err;
}

static void read_counters(struct reading *all, struct top_sample *s)
{
    struct reading r = read_object(all, "prefix");
    read_u64(&r, "exact", &s->exact);
    read_u64(&r, "prefix", &s->prefix);
    read_u64(&r, "miss", &s->miss);
    read_u64(&r, "tokens_asked", &s->tokens_asked);
    read_u64(&r, "tokens_found", &s->tokens_found);
    all->err = r.err;
    r = read_object(all, "tokens");
    read_u64(&r, "prompt", &s->prompt_tokens);
    read_u64(&r, "prompt_cached", &s->prompt_cached);
    read_u64(&r, "output", &s->output_tokens);
    all->err = r.err;
    r = read_object(all, "preempted");
    read_u64(&r, "swap", &s->swaps);
    read_u64(&r, "recompute", &s->recomputes);
    all->err = r.err;
    if (json_object_get(all->o, "spec") == NULL)
        return; /* a server from before there were any */
    r = read_object(all, "spec");
    read_u64(&r, "tokens", &s->guesses);
    read_u64(&r, "accepted", &s->guesses_held);
    all->err = r.err;
}

static void read_top_level(struct reading *r, struct top_sample *s)
{
    read_text(r, "state", s->state, sizeof s->state);
    read_text(r, "model", s->model, sizeof s->model);
    read_text(r, "version", s->version, sizeof s->version);
    read_text(r, "device", s->device, sizeof s->device);
    if (r->err == OK)
        r->err = json_get_f64(r->o, "uptime_s", 0, 1e12, &s->uptime_s, r->e);
    read_u64(r, "running", &s->running);
    read_u64(r, "waiting", &s->waiting);
    read_u64(r, "swapped", &s->swapped);
    read_u64(r, "paused", &s->paused);
    read_u64(r, "max_num_seqs", &s->seqs_max);
    read_u64(r, "context", &s->context);
    read_u64(r, "requests", &s->requests);
    read_u64(r, "steps", &s->steps);
    read_u64(r, "busy_ns", &s->busy_ns);
}

enum err top_sample_read(struct top_sample *s, struct str json, uint64_t at_ns, struct error *e)
{
    json_t *root = NULL;
    *s = (struct top_sample){.at_ns = at_ns};
    TRY(json_parse(json, &root, e));
    struct reading r = {root, OK, e};
    if (!json_is_object(root))
        r.err = FAIL(e, ERR_FORMAT, "it is not a JSON object");
    read_top_level(&r, s);
    if (r.err == OK && json_object_get(root, "kv") == NULL && strcmp(s->state, "starting") == 0)
        r.err = FAIL(e, ERR_AGAIN, "the server is starting");
    read_kv(&r, s);
    read_counters(&r, s);
    read_reasons(&r, s);
    struct reading hist = read_object(&r, "hist");
    read_histogram(&hist, "ttft", &s->ttft);
    read_histogram(&hist, "itl", &s->itl);
    r.err = hist.err;
    read_tenants(&r, s);
    json_decref(root);
    return r.err;
}

/* --- history --- */

enum err top_history_init(struct top_history *h, struct error *e)
{
    h->n = 0;
    h->samples = mem_array(TOP_SAMPLES_MAX, sizeof *h->samples);
    return h->samples != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for the last minute's numbers");
}

void top_history_fini(struct top_history *h)
{
    mem_free(h->samples);
    *h = (struct top_history){0};
}

void top_history_add(struct top_history *h, const struct top_sample *s)
{
    size_t drop = 0;
    if (h->n > 0 && s->uptime_s < h->samples[h->n - 1].uptime_s)
        h->n = 0;
    while (drop < h->n && (h->n - drop == TOP_SAMPLES_MAX || s->at_ns - h->samples[drop].at_ns > WINDOW_NS))
        drop++;
    h->n -= drop;
    memmove(h->samples, h->samples + drop, h->n * sizeof *h->samples);
    h->samples[h->n++] = *s;
}

/* --- figures --- */

double top_quantile(const struct top_histogram *h, const uint64_t *counts, double q)
{
    uint64_t total = 0, below = 0;
    for (size_t i = 0; i <= h->n; i++)
        total += counts[i];
    if (total == 0)
        return TOP_NONE;
    const double want = q * (double)total;
    for (size_t i = 0; i < h->n; i++) {
        if (counts[i] > 0 && (double)(below + counts[i]) >= want) {
            const double low = i > 0 ? h->upper[i - 1] : 0;
            return low + (h->upper[i] - low) * ((want - (double)below) / (double)counts[i]);
        }
        below += counts[i];
    }
    return h->upper[h->n - 1]; /* in the bucket without an end */
}

/* Percentiles of what came between the two, else of everything. */
static bool percentiles(const struct top_histogram *now, const struct top_histogram *then, double out[3])
{
    static const double qs[3] = {0.5, 0.9, 0.99};
    uint64_t between[TOP_BUCKETS_MAX + 1] = {0};
    bool is_recent = false;
    for (size_t i = 0; i <= now->n && now->n == then->n; i++) {
        between[i] = now->counts[i] >= then->counts[i] ? now->counts[i] - then->counts[i] : 0;
        is_recent = is_recent || between[i] > 0;
    }
    for (size_t i = 0; i < COUNT_OF(qs); i++)
        out[i] = top_quantile(now, is_recent ? between : now->counts, qs[i]);
    return is_recent;
}

static double grown(uint64_t now, uint64_t then)
{
    return now >= then ? (double)(now - then) : 0;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : TOP_NONE;
}

void top_figures(const struct top_history *h, struct top_figures *out)
{
    assert(h->n > 0);
    const struct top_sample *now = &h->samples[h->n - 1], *first = &h->samples[0];
    const struct top_sample *before = h->n > 1 ? now - 1 : now;
    const double dt = (double)(now->at_ns - before->at_ns) / 1e9;
    *out = (struct top_figures){.now = now, .window_s = (double)(now->at_ns - first->at_ns) / 1e9};
    if (dt > 0) {
        out->output_s = grown(now->output_tokens, before->output_tokens) / dt;
        out->prompt_s = grown(now->prompt_tokens, before->prompt_tokens) / dt;
        out->steps_s = grown(now->steps, before->steps) / dt;
    }
    out->busy = dt > 0 ? MIN(1.0, grown(now->busy_ns, before->busy_ns) / 1e9 / dt) : TOP_NONE;
    out->kv_used = share((double)(now->held + now->parked), (double)now->blocks);
    const double asked = grown(now->tokens_asked, first->tokens_asked);
    out->hits = asked > 0 ? share(grown(now->tokens_found, first->tokens_found), asked)
                          : share((double)now->tokens_found, (double)now->tokens_asked);
    out->is_ttft_recent = percentiles(&now->ttft, &first->ttft, out->ttft_s);
    out->is_itl_recent = percentiles(&now->itl, &first->itl, out->itl_s);
}
