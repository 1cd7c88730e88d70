/* GET /metrics: Prometheus' text format. vLLM's names, types, labels and buckets where the meaning is the same, so that
 * its dashboards and the routers that read it work; ours under quern_. Two old names that dashboards still ask for are
 * kept as aliases. The engine's thread is never asked. */
#include "api/api_int.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct metrics {
    struct server *s;
    const struct engine_stats *st;
    struct buf *b;
    char labels[2 * MODEL_NAME_BYTES_MAX + 32]; /* model_name="...",engine="0" */
};

static void head(struct metrics *m, const char *name, const char *type, const char *help)
{
    buf_addf(m->b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void gauge(struct metrics *m, const char *name, const char *help, double v)
{
    head(m, name, "gauge", help);
    buf_addf(m->b, "%s{%s} %.9g\n", name, m->labels, v);
}

/* Counters are written with _total, as the Python client does. */
static void counter(struct metrics *m, const char *name, const char *help, uint64_t v)
{
    buf_addf(m->b, "# HELP %s_total %s\n# TYPE %s_total counter\n%s_total{%s} %llu\n", name, help, name, name,
        m->labels, (unsigned long long)v);
}

static void histogram(struct metrics *m, enum stats_histogram which, const char *name, const char *help)
{
    const struct stats_buckets *k = &stats_buckets[which];
    const struct histogram *h = &m->st->hist[which];
    uint64_t sum = 0;
    buf_addf(m->b, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name);
    for (uint32_t i = 0; i < k->n; i++) {
        sum += h->counts[i];
        buf_addf(m->b, "vllm:%s_bucket{%s,le=\"%g\"} %llu\n", name, m->labels, k->upper[i], (unsigned long long)sum);
    }
    sum += h->counts[k->n];
    buf_addf(m->b, "vllm:%s_bucket{%s,le=\"+Inf\"} %llu\nvllm:%s_sum{%s} %.9g\nvllm:%s_count{%s} %llu\n", name,
        m->labels, (unsigned long long)sum, name, m->labels, isfinite(h->sum) ? h->sum : 0.0, name, m->labels,
        (unsigned long long)sum);
}

/* One name with a number for each value of a label. */
struct labelled {
    const char *value;
    uint64_t n;
};

static void by_label(struct metrics *m, const char *name, const char *label, const struct labelled *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_addf(m->b, "%s{%s,%s=\"%s\"} %llu\n", name, m->labels, label, rows[i].value, (unsigned long long)rows[i].n);
}

static void ended(struct metrics *m)
{
    head(m, "vllm:request_success_total", "counter", "Choices that ended, by reason.");
    for (int i = END_NONE + 1; i < END_COUNT; i++) {
        uint64_t sum = 0;
        bool is_first = true;
        for (int k = END_NONE + 1; k < END_COUNT; k++)
            if (strcmp(req_end_name((enum req_end)i), req_end_name((enum req_end)k)) == 0) {
                is_first &= k >= i;
                sum += m->st->ended[k];
            }
        if (is_first)
            buf_addf(m->b, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", m->labels,
                req_end_name((enum req_end)i), (unsigned long long)sum);
    }
}

static void guess_numbers(struct metrics *m)
{
    const struct spec_stats *sp = &m->st->sched.spec;
    counter(m, "vllm:spec_decode_num_drafts", "Times that guesses of a sequence were verified.", sp->drafts);
    counter(m, "vllm:spec_decode_num_draft_tokens", "Guesses verified.", sp->tokens);
    counter(m, "vllm:spec_decode_num_accepted_tokens", "Guesses that held.", sp->accepted);
    head(m, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter", "Guesses that held, by their place.");
    for (uint32_t i = 0; i < SPEC_K_MAX; i++)
        buf_addf(m->b, "vllm:spec_decode_num_accepted_tokens_per_pos_total{%s,position=\"%u\"} %llu\n", m->labels, i,
            (unsigned long long)sp->per_pos[i]);
}

static void engine_numbers(struct metrics *m)
{
    const struct engine_stats *st = m->st;
    const struct kv_stats *kv = &st->kv;
    const double used = kv->n_blocks > 0 ? (double)(kv->n_held + kv->n_parked) / kv->n_blocks : 0;
    gauge(m, "vllm:num_requests_running", "Sequences in the running batch.", st->sched.n_running);
    gauge(m, "vllm:num_requests_waiting", "Sequences that wait.", st->sched.n_waiting);
    /* Whoever is in the engine's queue waits for room; for a grammar a request waits before it gets there. */
    head(m, "vllm:num_requests_waiting_by_reason", "gauge", "Sequences that wait, by reason.");
    by_label(m, "vllm:num_requests_waiting_by_reason", "reason",
        (const struct labelled[]){{"capacity", st->sched.n_waiting}, {"deferred", 0}}, 2);
    head(m, "vllm:engine_sleep_state", "gauge", "The engine never sleeps.");
    by_label(m, "vllm:engine_sleep_state", "sleep_state",
        (const struct labelled[]){{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}}, 3);
    gauge(m, "vllm:num_requests_swapped", "Sequences swapped to host memory.", st->sched.n_swapped);
    gauge(m, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.", used);
    gauge(m, "vllm:gpu_cache_usage_perc", "The old name of vllm:kv_cache_usage_perc.", used);
    head(m, "vllm:cache_config_info", "gauge", "How the KV cache is laid out.");
    buf_addf(m->b,
        "vllm:cache_config_info{%s,block_size=\"%u\",num_gpu_blocks=\"%u\",enable_prefix_caching=\"%s\"} 1\n",
        m->labels, m->s->serving->block_tokens, kv->n_blocks, m->s->serving->sched.prefix_cache ? "True" : "False");
    counter(
        m, "vllm:num_preemptions", "Sequences preempted.", st->sched.preempted_swap + st->sched.preempted_recompute);
    counter(m, "vllm:prompt_tokens", "Prompt tokens taken in.", st->prompt_tokens);
    head(
        m, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens, by where their keys and values came from.");
    by_label(m, "vllm:prompt_tokens_by_source_total", "source",
        (const struct labelled[]){
            {"local_compute", st->prompt_tokens - MIN(st->prompt_tokens_cached, st->prompt_tokens)},
            {"local_cache_hit", st->prompt_tokens_cached}, {"external_kv_transfer", 0}},
        3);
    counter(m, "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache.", st->prompt_tokens_cached);
    counter(m, "vllm:generation_tokens", "Tokens generated.", st->output_tokens);
    counter(m, "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", kv->tokens_asked);
    counter(m, "vllm:prefix_cache_hits", "Tokens found in the prefix cache.", kv->tokens_found);
    gauge(m, "quern_host_blocks", "Blocks that the swap space has room for.", kv->n_host);
    gauge(m, "quern_host_cached_blocks", "Blocks of the swap space that hold evicted prefixes.", kv->n_host_cached);
    counter(m, "quern_prefix_evicted_blocks", "Blocks evicted from the prefix cache.", kv->evicted);
    counter(m, "quern_prefix_kept_blocks", "Of these, blocks that went to the swap space.", kv->kept);
    counter(m, "quern_prefix_restored_blocks", "Blocks that came back from the swap space.", kv->restored);
    counter(m, "quern_prefix_host_hits", "Lookups that found blocks in the swap space.", kv->host_hits);
    counter(m, "vllm:gpu_prefix_cache_queries", "The old name of vllm:prefix_cache_queries.", kv->tokens_asked);
    counter(m, "vllm:gpu_prefix_cache_hits", "The old name of vllm:prefix_cache_hits.", kv->tokens_found);
    guess_numbers(m);
    ended(m);
    for (int h = 0; h < HIST_COUNT; h++)
        histogram(m, (enum stats_histogram)h, stats_buckets[h].name, stats_buckets[h].help);
    histogram(m, HIST_ITL, "time_per_output_token_seconds", "The old name of vllm:inter_token_latency_seconds.");
    counter(m, "quern_steps", "Steps of the loop.", st->steps);
    counter(m, "quern_requests", "Requests taken in.", st->requests);
    head(m, "quern_prefix_lookups_total", "counter", "Prefix lookups, by what they found.");
    buf_addf(m->b,
        "quern_prefix_lookups_total{%s,hit=\"exact\"} %llu\nquern_prefix_lookups_total{%s,hit=\"prefix\"} %llu\n"
        "quern_prefix_lookups_total{%s,hit=\"miss\"} %llu\n",
        m->labels, (unsigned long long)kv->exact, m->labels, (unsigned long long)kv->prefix, m->labels,
        (unsigned long long)kv->miss);
    head(m, "quern_kv_blocks", "gauge", "KV blocks, by state.");
    buf_addf(m->b,
        "quern_kv_blocks{%s,state=\"free\"} %u\nquern_kv_blocks{%s,state=\"cached\"} %u\n"
        "quern_kv_blocks{%s,state=\"held\"} %u\nquern_kv_blocks{%s,state=\"parked\"} %u\n",
        m->labels, kv->n_free, m->labels, kv->n_cached, m->labels, kv->n_held, m->labels, kv->n_parked);
    gauge(m, "quern_requests_paused", "Sequences whose reader does not read.", st->sched.n_paused);
    head(m, "quern_loop_seconds_total", "counter", "What the engine thread did with its time.");
    buf_addf(m->b,
        "quern_loop_seconds_total{%s,state=\"busy\"} %.6f\nquern_loop_seconds_total{%s,state=\"idle\"} %.6f\n",
        m->labels, (double)st->busy_ns / 1e9, m->labels, (double)st->idle_ns / 1e9);
}

static void grammar_numbers(struct metrics *m)
{
    struct grammars_numbers n = {0};
    if (m->s->grammars != NULL)
        grammars_numbers(m->s->grammars, &n);
    counter(m, "quern_grammar_jumped_tokens", "Output tokens that a grammar forced.", m->st->sched.jumped_tokens);
    head(m, "quern_grammar_lookups_total", "counter", "Grammars asked for, by what became of it.");
    buf_addf(m->b,
        "quern_grammar_lookups_total{%s,result=\"hit\"} %llu\nquern_grammar_lookups_total{%s,result=\"compiled\"} "
        "%llu\n"
        "quern_grammar_lookups_total{%s,result=\"refused\"} %llu\n",
        m->labels, (unsigned long long)n.hits, m->labels, (unsigned long long)n.misses, m->labels,
        (unsigned long long)n.refused);
    counter(m, "quern_grammar_failures", "Grammars that did not compile.", n.failures);
    head(m, "quern_grammar_compile_seconds_total", "counter", "Processor time spent compiling grammars.");
    buf_addf(m->b, "quern_grammar_compile_seconds_total{%s} %.6f\n", m->labels, (double)n.compile_ns / 1e9);
    gauge(m, "quern_grammar_compile_seconds_max", "The longest of them.", (double)n.compile_max_ns / 1e9);
    gauge(m, "quern_grammar_cache_bytes", "Memory of the grammars kept.", (double)n.bytes);
    gauge(m, "quern_grammar_cache_entries", "Grammars kept.", n.n);
    gauge(m, "quern_grammar_queue", "Grammars that wait to be compiled.", n.n_queued);
}

static void tenant_numbers(struct metrics *m)
{
    char name[TENANT_NAME_MAX];
    const uint32_t n = tenant_name(&m->s->keys, 0, name, NULL);
    head(m, "quern_tenant_tokens_total", "counter", "Tokens of a tenant, by kind.");
    for (uint32_t i = 0; i < MIN(n, (uint32_t)STATS_TENANTS_MAX); i++) {
        tenant_name(&m->s->keys, i, name, NULL);
        buf_addf(m->b, "quern_tenant_tokens_total{tenant=\"%s\",kind=\"prompt\"} %llu\n", name,
            (unsigned long long)m->st->tenants[i].prompt_tokens);
        buf_addf(m->b, "quern_tenant_tokens_total{tenant=\"%s\",kind=\"output\"} %llu\n", name,
            (unsigned long long)m->st->tenants[i].output_tokens);
    }
}

static void server_numbers(struct server *s, struct buf *b)
{
    static const char *const classes[] = {"other", "1xx", "2xx", "3xx", "4xx", "5xx"};
    uint64_t cut = 0, left = 0, bytes = 0;
    buf_add(b, STR("# HELP http_requests_total Answers, by class of status.\n# TYPE http_requests_total counter\n"));
    for (size_t k = 0; k < COUNT_OF(classes); k++) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < s->n_nets; i++)
            sum += atomic_load_explicit(&s->nets[i].n_requests[k], memory_order_relaxed);
        buf_addf(b, "http_requests_total{status=\"%s\"} %llu\n", classes[k], (unsigned long long)sum);
    }
    for (uint32_t i = 0; i < s->n_nets; i++) {
        cut += atomic_load_explicit(&s->nets[i].n_cut, memory_order_relaxed);
        left += atomic_load_explicit(&s->nets[i].n_left, memory_order_relaxed);
        bytes += atomic_load_explicit(&s->nets[i].bytes_out, memory_order_relaxed);
    }
    buf_addf(b,
        "# HELP quern_http_cut_total Connections closed for what they sent.\n# TYPE quern_http_cut_total counter\n"
        "quern_http_cut_total %llu\n"
        "# HELP quern_http_left_total Clients that left before their answer was whole.\n"
        "# TYPE quern_http_left_total counter\nquern_http_left_total %llu\n"
        "# HELP quern_http_sent_bytes_total Bytes of answers.\n# TYPE quern_http_sent_bytes_total counter\n"
        "quern_http_sent_bytes_total %llu\n",
        (unsigned long long)cut, (unsigned long long)left, (unsigned long long)bytes);
    struct rusage u;
    if (getrusage(RUSAGE_SELF, &u) == 0)
        buf_addf(b,
            "# HELP process_cpu_seconds_total Processor time.\n# TYPE process_cpu_seconds_total counter\n"
            "process_cpu_seconds_total %.3f\n",
            (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
}

/* A label's value: quotes, backslashes and newlines are escaped. Names were checked to hold none. */
static void make_labels(struct metrics *m)
{
    struct buf b;
    buf_init(&b, sizeof m->labels - 1);
    buf_addf(&b, "model_name=\"%s\",engine=\"0\"", m->s->names[0]);
    const struct str s = buf_str(&b);
    if (s.n > 0 && s.n < sizeof m->labels)
        memcpy(m->labels, s.p, s.n + 1);
    buf_fini(&b);
}

void route_metrics(struct call *c)
{
    struct buf b;
    struct engine_stats *st = atomic_load(&c->s->has_model) ? mem_zalloc(sizeof *st) : NULL;
    buf_init(&b, 4 * MIB);
    if (st != NULL) {
        struct metrics m = {.s = c->s, .st = st, .b = &b};
        engine_stats(c->s->serving->engine, st);
        make_labels(&m);
        engine_numbers(&m);
        grammar_numbers(&m);
        tenant_numbers(&m);
    }
    server_numbers(c->s, &b);
    mem_free(st);
    if (buf_check(&b, "the metrics", NULL) == OK)
        call_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&b));
    else
        call_reply(c, 503, NULL, STR(""));
    buf_fini(&b);
}
