/* GET /stats: the numbers for the page and for `quern top`, as JSON; and the map of KV blocks. Everything comes from
 * what the engine published: its thread is never asked. */
#include "api/api_int.h"

#include <math.h>
#include <string.h>

static void add_hist(const struct engine_stats *st, enum stats_histogram which, const char *name, struct buf *b)
{
    const struct stats_buckets *k = &stats_buckets[which];
    const struct histogram *h = &st->hist[which];
    buf_addf(b, "\"%s\":{\"upper\":[", name);
    for (uint32_t i = 0; i < k->n; i++)
        buf_addf(b, "%s%g", i > 0 ? "," : "", k->upper[i]);
    buf_add(b, STR("],\"counts\":["));
    for (uint32_t i = 0; i <= k->n; i++)
        buf_addf(b, "%s%llu", i > 0 ? "," : "", (unsigned long long)h->counts[i]);
    buf_addf(b, "],\"sum\":%.9g,\"n\":%llu}", isfinite(h->sum) ? h->sum : 0.0, (unsigned long long)h->n);
}

static void add_kv(const struct server *s, const struct engine_stats *st, struct buf *b)
{
    const struct kv_stats *k = &st->kv;
    buf_addf(b,
        "\"kv\":{\"blocks\":%u,\"block_tokens\":%u,\"free\":%u,\"cached\":%u,\"parked\":%u,\"held\":%u,\"shared\":%u,"
        "\"host\":%u,\"host_free\":%u,\"host_cached\":%u},",
        k->n_blocks, s->serving->block_tokens, k->n_free, k->n_cached, k->n_parked, k->n_held, k->n_shared, k->n_host,
        k->n_host_free, k->n_host_cached);
    buf_addf(b,
        "\"prefix\":{\"lookups\":%llu,\"exact\":%llu,\"prefix\":%llu,\"miss\":%llu,\"tokens_asked\":%llu,"
        "\"tokens_found\":%llu,\"evicted\":%llu,\"kept\":%llu,\"restored\":%llu,\"host_hits\":%llu},",
        (unsigned long long)k->lookups, (unsigned long long)k->exact, (unsigned long long)k->prefix,
        (unsigned long long)k->miss, (unsigned long long)k->tokens_asked, (unsigned long long)k->tokens_found,
        (unsigned long long)k->evicted, (unsigned long long)k->kept, (unsigned long long)k->restored,
        (unsigned long long)k->host_hits);
}

static void add_counts(const struct engine_stats *st, struct buf *b)
{
    buf_addf(b, "\"tokens\":{\"prompt\":%llu,\"prompt_cached\":%llu,\"output\":%llu},\"requests\":%llu,\"ended\":{",
        (unsigned long long)st->prompt_tokens, (unsigned long long)st->prompt_tokens_cached,
        (unsigned long long)st->output_tokens, (unsigned long long)st->requests);
    bool comma = false; /* several reasons share a name: the first of them gives the sum */
    for (int i = END_NONE + 1; i < END_COUNT; i++) {
        uint64_t sum = 0;
        bool is_first = true;
        for (int k = END_NONE + 1; k < END_COUNT; k++)
            if (strcmp(req_end_name((enum req_end)i), req_end_name((enum req_end)k)) == 0) {
                is_first &= k >= i;
                sum += st->ended[k];
            }
        if (!is_first)
            continue;
        buf_addf(b, "%s\"%s\":%llu", comma ? "," : "", req_end_name((enum req_end)i), (unsigned long long)sum);
        comma = true;
    }
    buf_addf(b, "},\"preempted\":{\"swap\":%llu,\"recompute\":%llu},\"steps\":%llu,\"busy_ns\":%llu,\"idle_ns\":%llu,",
        (unsigned long long)st->sched.preempted_swap, (unsigned long long)st->sched.preempted_recompute,
        (unsigned long long)st->steps, (unsigned long long)st->busy_ns, (unsigned long long)st->idle_ns);
}

static void add_guesses(const struct engine_stats *st, struct buf *b)
{
    const struct spec_stats *sp = &st->sched.spec;
    buf_addf(b, "\"spec\":{\"drafts\":%llu,\"tokens\":%llu,\"accepted\":%llu,\"offered\":%llu,\"per_pos\":[",
        (unsigned long long)sp->drafts, (unsigned long long)sp->tokens, (unsigned long long)sp->accepted,
        (unsigned long long)sp->offered);
    for (uint32_t i = 0; i < SPEC_K_MAX; i++)
        buf_addf(b, "%s%llu", i > 0 ? "," : "", (unsigned long long)sp->per_pos[i]);
    buf_add(b, STR("],\"tried_pos\":["));
    for (uint32_t i = 0; i < SPEC_K_MAX; i++)
        buf_addf(b, "%s%llu", i > 0 ? "," : "", (unsigned long long)sp->tried_pos[i]);
    buf_add(b, STR("]},"));
}

static void add_tenants(struct server *s, const struct engine_stats *st, struct buf *b)
{
    char name[TENANT_NAME_MAX];
    double weight = 1;
    const uint32_t n = tenant_name(&s->keys, 0, name, NULL);
    buf_add(b, STR("\"tenants\":["));
    for (uint32_t i = 0; i < MIN(n, (uint32_t)STATS_TENANTS_MAX); i++) {
        tenant_name(&s->keys, i, name, &weight);
        buf_addf(b, "%s{\"name\":", i > 0 ? "," : "");
        buf_add_json_str(b, str_of(name));
        buf_addf(b, ",\"weight\":%g,\"prompt_tokens\":%llu,\"output_tokens\":%llu,\"running\":%u,\"waiting\":%u}",
            weight, (unsigned long long)st->tenants[i].prompt_tokens, (unsigned long long)st->tenants[i].output_tokens,
            st->tenants[i].running, st->tenants[i].waiting);
    }
    buf_add(b, STR("]"));
}

static void add_map(struct server *s, struct buf *b)
{
    const uint32_t cap = s->serving->n_blocks;
    uint8_t *map = mem_alloc(cap);
    if (map == NULL)
        return;
    buf_add(b, STR(",\"kv_map\":\""));
    buf_add_base64(b, map, engine_kv_map(s->serving->engine, map, cap));
    buf_add(b, STR("\""));
    mem_free(map);
}

static void add_all(struct server *s, const struct engine_stats *st, bool map, struct buf *b)
{
    const struct serving *sv = s->serving;
    buf_addf(b, "{\"state\":\"%s\",\"model\":", health_name(s));
    buf_add_json_str(b, str_of(s->names[0]));
    buf_addf(b, ",\"version\":\"" QUERN_VERSION "\",\"device\":\"%s\",\"uptime_s\":%.3f,",
        sv->ops != NULL ? sv->ops->name : "none", (double)(clock_now(s->o.clock) - s->t_open) / 1e9);
    buf_addf(b, "\"running\":%u,\"waiting\":%u,\"swapped\":%u,\"paused\":%u,\"max_num_seqs\":%u,\"context\":%u,",
        st->sched.n_running, st->sched.n_waiting, st->sched.n_swapped, st->sched.n_paused, sv->sched.max_num_seqs,
        sv->fit.context);
    buf_addf(b, "\"weights_dtype\":\"%s\",\"kv_cache_dtype\":\"%s\",", dtype_name(sv->fit.work_dtype),
        dtype_name(sv->fit.kv_dtype));
    add_kv(s, st, b);
    add_counts(st, b);
    add_guesses(st, b);
    buf_add(b, STR("\"hist\":{"));
    add_hist(st, HIST_TTFT, "ttft", b);
    buf_add_char(b, ',');
    add_hist(st, HIST_ITL, "itl", b);
    buf_add_char(b, ',');
    add_hist(st, HIST_E2E, "e2e", b);
    buf_add(b, STR("},"));
    add_tenants(s, st, b);
    if (map)
        add_map(s, b);
    buf_add(b, STR("}"));
}

void route_stats(struct call *c)
{
    char text[8];
    struct buf *b = &c->net->scratch;
    buf_clear(b);
    call_header(c, "Cache-Control", "no-store");
    if (!atomic_load(&c->s->has_model)) {
        buf_addf(b, "{\"state\":\"starting\",\"phase\":\"%s\",\"percent\":%u,\"version\":\"" QUERN_VERSION "\"}",
            atomic_load(&c->s->progress), atomic_load(&c->s->percent));
        call_reply_buf(c, b);
        return;
    }
    struct engine_stats *st = mem_zalloc(sizeof *st);
    if (st == NULL) {
        const struct api_error ae = {.status = 503, .type = "unavailable_error", .text = "no memory for the numbers"};
        call_reply_error(c, &ae);
        return;
    }
    engine_stats(c->s->serving->engine, st);
    add_all(c->s, st, str_is(call_query(c, "map", text, sizeof text), "1"), b);
    mem_free(st);
    call_reply_buf(c, b);
}
