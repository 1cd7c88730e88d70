/* One workload through one configuration of the scheduler; prints what came of it as JSON. bench/scheduling.py makes
 * the workloads, calls this for each policy, and writes the tables and plots of docs/scheduling.md.
 *
 *     quern_scheduling workload=FILE [batching=...] [order=...] [seqs=N] ... [model=PATH]
 *
 * A workload is a text file, one request a line: arrival in seconds, prompt tokens, output tokens, tenant, and the
 * numbers of the pieces that its prompt is made of ("1,7,9", pieces of piece=N tokens each; "-" for a prompt that
 * shares nothing). Equal pieces are equal tokens, so a prefix cache finds them.
 *
 * Without a model the fake runner computes, on a virtual clock, with the cost of Llama-3.1-8B in bf16 on one H200: the
 * weights are read once a step (15.0 GB at 4.5 TB/s), a token costs 16 GFLOP of 785 TFLOP/s, a sequence's keys and
 * values are read once a step (131 KB a position), attention does 0.5 MFLOP per row and position. With model=PATH the
 * same requests run for real, on the machine's clock. */
#include "base/mem.h"
#include "engine/serving.h"
#include "figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSIDE_MAX    4096 /* requests in the engine at once; the others wait outside, in order */
#define BUCKETS       2000 /* of 1% each, from 10 us */
#define BUCKET_LOW    1e-5
#define SERIES_MAX    4000
#define LINE_BYTES    16384
#define FAKE_VOCAB    32000
#define SHOWN_TENANTS 32

struct job {
    double arrival_s;
    uint32_t n_prompt, n_out, tenant;
    uint32_t first_piece, n_pieces; /* in pieces[]; 0 = unique */
    double ttft_s, e2e_s, last_s;
    uint32_t n_seen;
};

struct series {
    double t, running, waiting, tokens, itl_max, served[SHOWN_TENANTS];
};

struct bench {
    struct sched_options sched;
    struct kv_options kv;
    struct fake_runner_options fake;
    const char *workload, *model;
    uint32_t piece, threads;
    double series_s;
    uint32_t shows_steps; /* every step in the series, up to this many */

    struct job *jobs;
    uint32_t n_jobs;
    uint32_t *pieces;
    uint32_t n_pieces;

    struct clock clock;
    struct serving *serving;
    struct engine *engine;
    struct engine_client *client;
    struct runner *inner;
    struct runner meter;
    struct runner_ops meter_ops;
    double held, used, reserved, longest; /* KV slots, summed over steps and sequences */
    uint64_t prompt_rows, steps;
    uint64_t itl[BUCKETS], n_itl;
    double itl_max, step_max_s;
    struct series series[SERIES_MAX];
    uint32_t n_series;
    double series_tokens, series_itl_max, served[SHOWN_TENANTS];
    uint32_t n_done, n_inside, next;
    uint64_t out_tokens;
    struct engine_stats stats;
};

/* ---- the workload ---------------------------------------------------------------------------------------------------
 */

static enum err parse_pieces(struct bench *b, struct job *j, char *text, uint32_t *cap, struct error *e)
{
    j->first_piece = b->n_pieces;
    if (text[0] == '-')
        return OK;
    for (char *end; *text != '\0' && *text != '\n'; text = *end == ',' ? end + 1 : end) {
        const unsigned long number = strtoul(text, &end, 10);
        if (end == text)
            return FAIL(e, ERR_FORMAT, "'%.20s' is no piece", text);
        if (b->n_pieces == *cap) {
            uint32_t *const more = mem_resize(b->pieces, 2 * (size_t)*cap * sizeof *more);
            if (more == NULL)
                return FAIL(e, ERR_NOMEM, "no memory for a workload");
            b->pieces = more;
            *cap *= 2;
        }
        b->pieces[b->n_pieces++] = (uint32_t)number;
        j->n_pieces++;
    }
    return OK;
}

static enum err read_workload(struct bench *b, struct error *e)
{
    FILE *const f = fopen(b->workload, "r");
    if (f == NULL)
        return FAIL(e, ERR_NOT_FOUND, "no workload %s", b->workload);
    static char line[LINE_BYTES];
    uint32_t cap = 1024, cap_pieces = 4096;
    b->jobs = mem_array(cap, sizeof *b->jobs);
    b->pieces = mem_array(cap_pieces, sizeof *b->pieces);
    enum err err = b->jobs != NULL && b->pieces != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a workload");
    while (err == OK && fgets(line, sizeof line, f) != NULL) {
        if (b->n_jobs == cap) {
            struct job *const more = mem_resize(b->jobs, 2 * (size_t)cap * sizeof *more);
            if (more == NULL) {
                err = FAIL(e, ERR_NOMEM, "no memory for a workload");
                break;
            }
            b->jobs = more;
            cap *= 2;
        }
        struct job *const j = &b->jobs[b->n_jobs];
        *j = (struct job){0};
        int at = 0;
        if (sscanf(line, "%lf %u %u %u %n", &j->arrival_s, &j->n_prompt, &j->n_out, &j->tenant, &at) != 4)
            err = FAIL(e, ERR_FORMAT, "line %u of %s is no request", b->n_jobs + 1, b->workload);
        else
            err = parse_pieces(b, j, line + at, &cap_pieces, e);
        j->n_prompt = MAX(1u, MIN(j->n_prompt, b->sched.context_max - 1));
        j->n_out = MAX(1u, MIN(j->n_out, b->sched.context_max - j->n_prompt));
        b->n_jobs++;
    }
    fclose(f);
    return err;
}

/* Token i of a job's prompt: of the piece it lies in, or of the job itself. */
static uint32_t token_of(const struct bench *b, uint32_t i_job, uint32_t i, uint32_t vocab)
{
    const struct job *const j = &b->jobs[i_job];
    const uint32_t piece = MIN(i / b->piece, j->n_pieces > 0 ? j->n_pieces - 1 : 0);
    const uint64_t of = j->n_pieces > 0 ? b->pieces[j->first_piece + piece] : 0x40000000u + i_job;
    uint64_t x = (of + 1) * UINT64_C(0x9e3779b97f4a7c15) + i;
    x = (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
    return 100 + (uint32_t)((x >> 32) % (vocab - 100)); /* the first ids are control tokens in most models */
}

/* ---- metering
 * -------------------------------------------------------------------------------------------------------- */

static struct bench *bench_of(struct runner *r)
{
    return (struct bench *)(void *)((char *)r - offsetof(struct bench, meter));
}

static enum err meter_forward(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    struct bench *const b = bench_of(r);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *const q = &plan_seqs(p)[i];
        struct slot_view v;
        s->view(s->ctx, q->slot, &v);
        b->held += (double)q->n_table * b->sched.block_tokens;
        b->used += q->n_kv;
        b->longest += b->sched.context_max;
        if (v.request == NULL)
            continue;
        b->reserved += v.request->o.n_prompt + v.request->o.max_tokens;
        const uint32_t n_prompt = v.request->o.n_prompt;
        b->prompt_rows += q->first_pos < n_prompt ? MIN(q->n_rows, n_prompt - q->first_pos) : 0;
    }
    b->steps++;
    return b->inner->ops->forward(b->inner, p, s, e);
}

static enum err meter_sample(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    return bench_of(r)->inner->ops->sample(bench_of(r)->inner, p, s, e);
}

static enum err meter_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    const enum err err = bench_of(r)->inner->ops->wait(bench_of(r)->inner, p, out, e);
    bench_of(r)->step_max_s = MAX(bench_of(r)->step_max_s, (double)out->cost_ns / 1e9);
    return err;
}

static void meter_close(struct runner *r)
{
    runner_close(bench_of(r)->inner);
}

static double now_s(const struct bench *b)
{
    return (double)clock_now(&b->clock) / 1e9;
}

static void add_itl(struct bench *b, double s, uint32_t n)
{
    const double at = s <= BUCKET_LOW ? 0 : log(s / BUCKET_LOW) / log(1.01);
    b->itl[MIN((uint32_t)at, BUCKETS - 1u)] += n;
    b->n_itl += n;
    b->itl_max = MAX(b->itl_max, s);
    b->series_itl_max = MAX(b->series_itl_max, s);
}

static double itl_quantile(const struct bench *b, double q)
{
    uint64_t below = 0;
    for (uint32_t i = 0; i < BUCKETS; i++) {
        below += b->itl[i];
        if (b->n_itl > 0 && (double)below >= q * (double)b->n_itl)
            return BUCKET_LOW * pow(1.01, i + 0.5);
    }
    return 0;
}

static void note_series(struct bench *b, bool is_due)
{
    const double t = now_s(b), last = b->n_series > 0 ? b->series[b->n_series - 1].t : -1e9;
    if (b->n_series == SERIES_MAX || !(is_due || t - last >= b->series_s))
        return;
    engine_stats(b->engine, &b->stats);
    struct series *const x = &b->series[b->n_series++];
    *x = (struct series){.t = t,
        .running = b->stats.sched.n_running,
        .waiting = b->stats.sched.n_waiting,
        .tokens = b->series_tokens,
        .itl_max = b->series_itl_max};
    memcpy(x->served, b->served, sizeof x->served);
    b->series_tokens = b->series_itl_max = 0;
}

static void take_notices(struct bench *b)
{
    struct notice n;
    while (engine_client_next(b->client, &n) == OK) {
        struct job *const j = &b->jobs[(uintptr_t)n.request->user];
        const uint32_t n_out = atomic_load(&n.request->choices[0].n_out);
        const double now = now_s(b);
        if (n_out > j->n_seen) {
            if (j->n_seen == 0) {
                j->ttft_s = (double)n.request->t_first_token / 1e9 - j->arrival_s;
                b->served[MIN(j->tenant, SHOWN_TENANTS - 1u)] += j->n_prompt * b->sched.vtc_input_weight;
            } else
                add_itl(b, now - j->last_s, n_out - j->n_seen);
            b->served[MIN(j->tenant, SHOWN_TENANTS - 1u)] += (n_out - j->n_seen) * b->sched.vtc_output_weight;
            b->out_tokens += n_out - j->n_seen;
            b->series_tokens += n_out - j->n_seen;
            j->n_seen = n_out;
            j->last_s = now;
        }
        if (!n.is_final)
            continue;
        if (j->n_seen != j->n_out)
            fprintf(stderr, "a request ended after %u of %u tokens: %s\n", j->n_seen, j->n_out,
                req_end_name((enum req_end)atomic_load(&n.request->choices[0].end)));
        j->e2e_s = (double)n.request->t_end / 1e9 - j->arrival_s;
        request_free(n.request);
        b->n_done++;
        b->n_inside--;
    }
}

/* ---- running
 * --------------------------------------------------------------------------------------------------------- */

static enum err submit(struct bench *b, uint32_t i, uint32_t *ids, uint32_t vocab, bool *is_full, struct error *e)
{
    const struct job *const j = &b->jobs[i];
    for (uint32_t k = 0; k < j->n_prompt; k++)
        ids[k] = token_of(b, i, k, vocab);
    struct request_options o = {.prompt = ids,
        .n_prompt = j->n_prompt,
        .max_tokens = j->n_out,
        .n_choices = 1,
        .sample = sample_params_default(),
        .tenant = j->tenant};
    o.sample.temperature = 0.0f;
    struct request *r;
    uint64_t retry_ms;
    TRY(request_new(&o, &r, e));
    r->user = (void *)(uintptr_t)i;
    struct error why = {0};
    const enum err err = engine_submit(b->client, r, &retry_ms, &why);
    *is_full = err == ERR_AGAIN;
    if (err != OK)
        request_free(r);
    else
        b->n_inside++;
    return err == OK || err == ERR_AGAIN ? OK : FAIL(e, err, "%s", why.text);
}

/* What has arrived goes in, in order, as far as there is room. */
static enum err arrive(struct bench *b, uint32_t *ids, uint32_t vocab, struct error *e)
{
    bool is_full = false;
    while (b->next < b->n_jobs && b->jobs[b->next].arrival_s <= now_s(b) && b->n_inside < INSIDE_MAX && !is_full) {
        TRY(submit(b, b->next, ids, vocab, &is_full, e));
        b->next += !is_full;
    }
    return OK;
}

static enum err run_jobs(struct bench *b, struct error *e)
{
    const uint32_t vocab = b->model != NULL ? b->serving->config.vocab : FAKE_VOCAB;
    uint32_t *const ids = mem_array(b->sched.context_max, sizeof *ids);
    enum err err = ids != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for prompts");
    const double start = now_s(b);
    for (uint32_t i = 0; i < b->n_jobs; i++)
        b->jobs[i].arrival_s += start;
    while (err == OK && b->n_done < b->n_jobs) {
        err = arrive(b, ids, vocab, e);
        const double next_s = b->next < b->n_jobs ? b->jobs[b->next].arrival_s : 1e18;
        const double gap = next_s - now_s(b);
        if (b->model == NULL) {
            uint64_t next_ns;
            const uint64_t steps = b->steps;
            if (!engine_turn(b->engine, &next_ns) && gap > 0 && gap < 1e17)
                clock_advance(&b->clock, (uint64_t)(gap * 1e9) + 1);
            take_notices(b);
            note_series(b, b->n_series < b->shows_steps && b->steps != steps);
        } else {
            struct wake *const w = engine_client_wake(b->client);
            wake_arm(w);
            if (engine_client_has(b->client))
                wake_disarm(w);
            else
                (void)wake_wait(w, gap <= 0 || gap > 0.1 ? 100 * NS_PER_MS : (uint64_t)(gap * 1e9));
            take_notices(b);
            note_series(b, false);
        }
        if (engine_state(b->engine) == ENGINE_FAILED) {
            engine_error(b->engine, e);
            err = ERR_INTERNAL;
        }
    }
    mem_free(ids);
    engine_stats(b->engine, &b->stats);
    return err;
}

static enum err open_fake(struct bench *b, struct error *e)
{
    clock_init_virtual(&b->clock, 0);
    b->fake.clock = &b->clock;
    const struct runner_limits l = engine_runner_limits(&b->sched, &b->kv);
    TRY(fake_runner_open(&b->fake, &l, b->kv.n_blocks, b->kv.n_host_blocks, b->kv.block_tokens, &b->inner, e));
    b->meter_ops = (struct runner_ops){.name = "meter",
        .depth = b->fake.depth,
        .forward = meter_forward,
        .sample = meter_sample,
        .wait = meter_wait,
        .close = meter_close};
    b->meter.ops = &b->meter_ops;
    const struct engine_options o = {.sched = b->sched,
        .kv = b->kv,
        .runner = &b->meter,
        .clock = &b->clock,
        .requests_max = INSIDE_MAX,
        .no_thread = true};
    return engine_new(&o, &b->engine, e);
}

static enum err open_model(struct bench *b, struct error *e)
{
    clock_init(&b->clock);
    b->serving = mem_zalloc(sizeof *b->serving);
    if (b->serving == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a model");
    const struct serving_options o = {.path = b->model,
        .threads = b->threads,
        .max_model_len = b->sched.context_max,
        .kv_dtype = DTYPE_F16,
        .n_blocks = b->kv.n_blocks,
        .sched = b->sched,
        .requests_max = INSIDE_MAX,
        .clock = &b->clock};
    TRY(serving_open(b->serving, &o, e));
    b->engine = b->serving->engine;
    return OK;
}

/* ---- telling
 * --------------------------------------------------------------------------------------------------------- */

static void print_quantiles(const char *name, double *values, uint32_t n)
{
    figures_sort(values, n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    printf("\"%s\": {\"mean\": %.6g", name, sum / n);
    static const double qs[] = {0.5, 0.9, 0.99};
    for (size_t i = 0; i < COUNT_OF(qs); i++)
        printf(", \"p%g\": %.6g", qs[i] * 100, values[(uint32_t)(qs[i] * (n - 1))]);
    printf("},\n\"%s_cdf\": [", name);
    for (uint32_t i = 0; i <= 100; i++)
        printf("%s%.6g", i > 0 ? ", " : "", values[(uint32_t)((double)i / 100 * (n - 1))]);
    printf("],\n");
}

static void print_series(const struct bench *b)
{
    printf("\"series\": [");
    for (uint32_t i = 0; i < b->n_series; i++) {
        const struct series *const x = &b->series[i];
        printf("%s[%.6g, %g, %g, %g, %.6g", i > 0 ? ",\n" : "", x->t, x->running, x->waiting, x->tokens, x->itl_max);
        uint32_t n = 0;
        for (uint32_t k = 0; k < b->n_jobs; k++)
            n = MAX(n, MIN(b->jobs[k].tenant + 1, SHOWN_TENANTS));
        for (uint32_t k = 0; n > 1 && k < n; k++)
            printf(", %.0f", x->served[k]);
        printf("]");
    }
    printf("]}\n");
}

static void print_tenants(const struct bench *b)
{
    printf("\"tenants\": [");
    for (uint32_t t = 0; t < SHOWN_TENANTS; t++) {
        double ttft = 0, worst = 0;
        uint32_t n = 0;
        for (uint32_t i = 0; i < b->n_jobs; i++)
            if (b->jobs[i].tenant == t) {
                ttft += b->jobs[i].ttft_s;
                worst = MAX(worst, b->jobs[i].ttft_s);
                n++;
            }
        if (n > 0)
            printf("%s{\"tenant\": %u, \"requests\": %u, \"ttft\": %.6g, \"ttft_max\": %.6g}", t > 0 ? ", " : "", t, n,
                ttft / n, worst);
    }
    printf("],\n");
}

static void print_all(struct bench *b, double *values)
{
    const struct engine_stats *const s = &b->stats;
    double first = 1e18, last = 0, asked = 0;
    for (uint32_t i = 0; i < b->n_jobs; i++) {
        first = MIN(first, b->jobs[i].arrival_s);
        last = MAX(last, b->jobs[i].arrival_s + b->jobs[i].e2e_s);
        asked += b->jobs[i].n_prompt;
        values[i] = b->jobs[i].ttft_s;
    }
    const double seconds = last - first;
    const uint64_t computed = b->model != NULL ? s->sched.prompt_tokens : b->prompt_rows;
    printf("{\"requests\": %u, \"seconds\": %.6g, \"out_tok_s\": %.6g, \"all_tok_s\": %.6g,\n", b->n_jobs, seconds,
        (double)b->out_tokens / seconds, ((double)b->out_tokens + asked) / seconds);
    printf("\"prompt_tokens\": %.0f, \"prompt_computed\": %llu, \"hit_rate\": %.4f, \"steps\": %llu,\n", asked,
        (unsigned long long)computed,
        s->kv.tokens_asked > 0 ? (double)s->kv.tokens_found / (double)s->kv.tokens_asked : 0,
        (unsigned long long)s->steps);
    printf("\"preempted_swap\": %llu, \"preempted_recompute\": %llu, \"evicted\": %llu, \"step_max\": %.6g,\n",
        (unsigned long long)s->sched.preempted_swap, (unsigned long long)s->sched.preempted_recompute,
        (unsigned long long)s->kv.evicted, b->step_max_s);
    printf("\"held\": %.6g, \"used\": %.6g, \"reserved\": %.6g, \"longest\": %.6g,\n", b->held, b->used, b->reserved,
        b->longest);
    print_quantiles("ttft", values, b->n_jobs);
    for (uint32_t i = 0; i < b->n_jobs; i++)
        values[i] = b->jobs[i].e2e_s;
    print_quantiles("e2e", values, b->n_jobs);
    print_tenants(b);
    printf("\"itl\": {\"p50\": %.6g, \"p90\": %.6g, \"p99\": %.6g, \"max\": %.6g},\n\"itl_cdf\": [",
        itl_quantile(b, 0.5), itl_quantile(b, 0.9), itl_quantile(b, 0.99), b->itl_max);
    for (uint32_t i = 0; i <= 100; i++)
        printf("%s%.6g", i > 0 ? ", " : "", i == 100 ? b->itl_max : itl_quantile(b, i / 100.0));
    printf("],\n");
    print_series(b);
}

/* ---- options
 * --------------------------------------------------------------------------------------------------------- */

static bool pick(const char *const *names, size_t n, const char *value, int *out)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], value) == 0) {
            *out = (int)i;
            return true;
        }
    return false;
}

static enum err set_policy(struct bench *b, const char *key, const char *value, struct error *e)
{
    static const char *const batchings[] = {"continuous", "prefill-first", "static", "interval", "ratio"};
    static const char *const orders[] = {"fcfs", "priority", "vtc", "sjf", "deadline"};
    static const char *const admissions[] = {"on-demand", "reserve"};
    static const char *const modes[] = {"auto", "swap", "recompute"};
    int i = 0;
    bool ok = false;
    if (strcmp(key, "batching") == 0 && (ok = pick(batchings, COUNT_OF(batchings), value, &i)))
        b->sched.batching = (enum batching)i;
    else if (strcmp(key, "order") == 0 && (ok = pick(orders, COUNT_OF(orders), value, &i)))
        b->sched.order = (enum queue_order)i;
    else if (strcmp(key, "admission") == 0 && (ok = pick(admissions, COUNT_OF(admissions), value, &i)))
        b->sched.admission = (enum admission)i;
    else if (strcmp(key, "preempt") == 0 && (ok = pick(modes, COUNT_OF(modes), value, &i)))
        b->sched.preempt = (enum preempt_mode)i;
    return ok ? OK : FAIL(e, ERR_INVALID, "%s=%s is unknown", key, value);
}

static enum err set_option(struct bench *b, char *arg, struct error *e)
{
    char *const eq = strchr(arg, '=');
    if (eq == NULL)
        return FAIL(e, ERR_INVALID, "'%s' is not key=value", arg);
    *eq = '\0';
    const char *const value = eq + 1;
    const double x = strtod(value, NULL);
    const struct {
        const char *key;
        uint32_t *to;
    } counts[] = {{"seqs", &b->sched.max_num_seqs}, {"budget", &b->sched.max_batched_tokens},
        {"context", &b->sched.context_max}, {"block", &b->sched.block_tokens}, {"blocks", &b->kv.n_blocks},
        {"host", &b->kv.n_host_blocks}, {"interval", &b->sched.interval}, {"piece", &b->piece},
        {"depth", &b->fake.depth}, {"threads", &b->threads}, {"chunk", &b->sched.chunk_max},
        {"steps", &b->shows_steps}};
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        if (strcmp(arg, counts[i].key) == 0) {
            *counts[i].to = (uint32_t)x;
            return OK;
        }
    if (strcmp(arg, "workload") == 0)
        b->workload = value;
    else if (strcmp(arg, "model") == 0)
        b->model = value;
    else if (strcmp(arg, "prefix") == 0)
        b->sched.prefix_cache = x != 0;
    else if (strcmp(arg, "ratio") == 0)
        b->sched.ratio = x;
    else if (strcmp(arg, "itl_ms") == 0)
        b->sched.itl_target_ns = (uint64_t)(x * 1e6);
    else if (strcmp(arg, "series") == 0)
        b->series_s = x;
    else if (strcmp(arg, "base_us") == 0) /* another machine than the card: its step, its row, no reading of context */
        b->fake.base_ns = (uint64_t)(x * 1e3), b->fake.row_context_ns = b->fake.seq_context_ns = 0;
    else if (strcmp(arg, "row_us") == 0)
        b->fake.row_ns = (uint64_t)(x * 1e3);
    else
        return set_policy(b, arg, value, e);
    return OK;
}

static void defaults(struct bench *b)
{
    b->sched = sched_options_default();
    b->sched.max_num_seqs = 256;
    b->sched.max_batched_tokens = 8192;
    b->sched.context_max = 131072;
    b->sched.queue_max = 4096;
    b->sched.queue_tokens_max = UINT64_MAX / 2;
    b->sched.tenants_max = SHOWN_TENANTS;
    b->piece = 512;
    b->series_s = 10;
    b->fake = (struct fake_runner_options){.vocab = FAKE_VOCAB,
        .base_ns = 3330 * NS_PER_US, /* 15.0 GB / 4.5 TB/s */
        .row_ns = 20460,             /* 16.06 GFLOP / 785 TFLOP/s */
        .row_context_ns = 0.67,      /* 4 x 4096 x 32 FLOP / 785 TFLOP/s */
        .seq_context_ns = 29.1,      /* 131,072 B / 4.5 TB/s */
        .depth = 1};
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct error e = {0};
    defaults(&b);
    enum err err = OK;
    for (int i = 1; i < argc && err == OK; i++)
        err = set_option(&b, argv[i], &e);
    if (err == OK && b.workload == NULL)
        err = FAIL(&e, ERR_INVALID, "workload=FILE is missing");
    if (b.kv.n_blocks == 0) /* 110 GB of a 139 GiB card */
        b.kv.n_blocks = 840000 / b.sched.block_tokens;
    b.sched.out_max = b.sched.max_num_seqs;
    b.sched.swap_ns_per_block = b.fake.swap_ns_per_block = b.sched.block_tokens * 131072.0 / 55.0; /* PCIe: 55 GB/s */
    b.kv.block_tokens = b.sched.block_tokens;
    b.kv.seqs_max = 2 * b.sched.max_num_seqs;
    b.kv.seq_blocks_max = (b.sched.context_max + b.sched.block_tokens - 1) / b.sched.block_tokens;
    b.kv.prefix_cache = b.sched.prefix_cache;
    if (err == OK)
        err = read_workload(&b, &e);
    if (err == OK)
        err = b.model != NULL ? open_model(&b, &e) : open_fake(&b, &e);
    if (err == OK)
        err = engine_client_new(b.engine, &b.client, &e);
    if (err == OK)
        err = run_jobs(&b, &e);
    double *const values = mem_array(b.n_jobs + 1, sizeof *values);
    if (err == OK && values != NULL)
        print_all(&b, values);
    else
        fprintf(stderr, "quern_scheduling: %s\n", e.text);
    mem_free(values);
    if (err == OK) { /* after an error requests may be out; the process ends anyway */
        engine_client_free(b.client);
        if (b.serving != NULL)
            serving_close(b.serving);
        else
            engine_free(b.engine);
    }
    mem_free(b.serving);
    mem_free(b.jobs);
    mem_free(b.pieces);
    return err != OK;
}
