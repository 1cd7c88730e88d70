/* quern bench [MODEL]: how fast a model is here, against what the machine could do.
 *
 * Two limits are measured in the same run: reading memory by all threads, and nothing but the arithmetic the products
 * are made of. A decode step must read every active weight and the keys and values so far; a token of prefill costs two
 * operations per active weight outside the head and four per position, head and element in attention. Each test is
 * repeated and the best run counts, since whatever else runs on the machine can only make it slower. */
#include "cli/cli.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/team.h"
#include "cli/bench.h"
#include "cli/inspect_int.h"
#include "cli/load.h"
#include "cli/measure.h"
#include "cpu/cpu.h"

#include <string.h>

#define DECODE_STEPS  128
#define BATCH_STEPS   32
#define BATCH_FROM    32
#define RUNS_MIN      3    /* unless they are slow */
#define RUNS_S        3.0  /* a test is repeated until its runs have taken this long together */
#define DEPTH_SECONDS 60.0 /* filling the deep context may take this long */
#define PEAK_ROUNDS   200000
#define PEAK_RUNS     8

enum test_kind { TEST_PREFILL, TEST_DECODE, TEST_BATCH, TEST_DEEP };

static const struct test {
    const char *name;
    enum test_kind kind;
    uint32_t tokens, from, n_seqs;
} tests[] = {
    {"pp512", TEST_PREFILL, 512, 0, 1},
    {"pp2048", TEST_PREFILL, 2048, 0, 1},
    {"tg128", TEST_DECODE, DECODE_STEPS, 0, 1},
    {"tg32x16", TEST_BATCH, BATCH_STEPS, BATCH_FROM, BENCH_SEQS},
    {"tg32@4096", TEST_DEEP, 32, BENCH_DEPTH, 1},
};

struct result {
    double tok_s, memory_share, compute_share; /* tok_s 0: not run */
};

struct bench_run {
    const struct options *o;
    struct load *load;
    struct decoder_options d;
    struct bench *bench;
    double read_bytes_s, peak_ops_s; /* 0: unknown */
    bool wanted[COUNT_OF(tests)];
    struct result results[COUNT_OF(tests)];
};

/* --tests: names separated by commas, or nothing for all. */
static enum err pick_tests(struct bench_run *b, struct error *e)
{
    const char *at = b->o->tests;
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        b->wanted[i] = at == NULL;
    while (at != NULL) {
        const char *comma = strchr(at, ',');
        const struct str name = {at, comma != NULL ? (size_t)(comma - at) : strlen(at)};
        size_t i = 0;
        while (i < COUNT_OF(tests) && !str_is(name, tests[i].name))
            i++;
        if (i == COUNT_OF(tests))
            return FAIL(e, ERR_INVALID, "option --tests: '%.*s' is none of pp512, pp2048, tg128, tg32x16, tg32@4096",
                (int)MIN(name.n, (size_t)40), name.p);
        b->wanted[i] = true;
        at = comma != NULL ? comma + 1 : NULL;
    }
    return OK;
}

/* ---- the machine's limits ---- */

struct peak_job {
    const struct ops *ops;
    bool integers;
    uint64_t ops_done[TEAM_THREADS_MAX];
};

static void peak_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    struct peak_job *j = ctx;
    j->ops_done[tile] = cpu_peak(j->ops, j->integers, PEAK_ROUNDS);
}

static enum err measure_limits(struct bench_run *b, struct error *e)
{
    struct measured m;
    struct clock clock;
    struct team *team;
    const struct load *l = b->load;
    clock_init(&clock);
    TRY(measure_machine(l->ops, &l->fit, l->config.hidden, l->threads, &m, e));
    b->read_bytes_s = m.read_bytes_s;
    struct peak_job *job = mem_zalloc(sizeof *job);
    if (job == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to measure the machine");
    job->ops = l->ops;
    job->integers = (dtype_info(l->fit.main_dtype)->flags & DTYPE_IS_QUANTISED) != 0;
    const enum err err = team_new(&team, l->threads, e);
    for (int i = 0; err == OK && i < PEAK_RUNS; i++) {
        const uint64_t start = clock_now(&clock);
        team_run(team, l->threads, peak_tile, job);
        const double seconds = (double)MAX(clock_now(&clock) - start, 1u) / 1e9;
        double done = 0;
        for (uint32_t t = 0; t < l->threads; t++)
            done += (double)job->ops_done[t];
        b->peak_ops_s = MAX(b->peak_ops_s, done / seconds);
    }
    if (err == OK)
        team_free(team);
    mem_free(job);
    return err;
}

/* ---- the tests ---- */

static enum err run_once(struct bench_run *b, const struct test *t, bool first, double *seconds, struct error *e)
{
    if (t->kind == TEST_PREFILL)
        return bench_prefill(b->bench, t->tokens, seconds, e);
    return bench_decode(b->bench, t->n_seqs, t->from, t->tokens, first, seconds, e);
}

/* What one token costs at least: bytes read by its step shared among the step's rows, and operations. */
static void costs_of(const struct bench_run *b, const struct test *t, double *bytes, double *ops)
{
    const struct model_config *c = &b->load->config;
    const struct fit *f = &b->load->fit;
    const double middle = t->from + t->tokens / 2.0; /* positions seen by the token in the middle */
    const double head = (double)c->vocab * c->hidden;
    const double attention = 4.0 * c->n_layers * c->n_heads * c->head_dim * middle;
    const double rows = t->kind == TEST_PREFILL ? BENCH_ROWS : t->n_seqs;
    *bytes = (double)f->active_bytes / rows + (t->kind == TEST_PREFILL ? 0.0 : (double)f->kv_token_bytes * middle);
    *ops = 2.0 * ((double)f->active_params - (t->kind == TEST_PREFILL ? head : 0.0)) + attention;
}

static enum err run_test(struct bench_run *b, size_t i, struct error *e)
{
    const struct test *t = &tests[i];
    const double fill_s = b->results[0].tok_s > 0 ? BENCH_DEPTH / b->results[0].tok_s : 0;
    if (t->from + t->tokens > b->d.context_max || (t->kind == TEST_DEEP && fill_s > DEPTH_SECONDS))
        return OK;
    double best = 0, taken = 0;
    for (int n = 0; (n < RUNS_MIN && taken < 2 * RUNS_S) || taken < RUNS_S; n++) {
        double seconds;
        TRY(run_once(b, t, n == 0, &seconds, e));
        best = n == 0 ? seconds : MIN(best, seconds);
        taken += seconds;
    }
    double bytes, ops;
    costs_of(b, t, &bytes, &ops);
    struct result *r = &b->results[i];
    r->tok_s = (double)t->tokens * t->n_seqs / best;
    r->memory_share = b->read_bytes_s > 0 ? r->tok_s * bytes / b->read_bytes_s : 0;
    r->compute_share = b->peak_ops_s > 0 ? r->tok_s * ops / b->peak_ops_s : 0;
    return OK;
}

/* ---- the verb ---- */

static void print_json(const struct bench_run *b, struct out *out)
{
    const struct load *l = b->load;
    char rows[DESCRIBE_BYTES];
    out_text(out, "{\"model\":");
    out_json_str(out, str_of(l->name));
    out_printf(out, ",\"dtype\":\"%s\",\"device\":\"%s\",\"threads\":%u,", dtype_name(l->fit.work_dtype), l->ops->name,
        l->threads);
    out_text(out, "\"kernels\":");
    out_json_str(out, str_of(decoder_describe(l->decoder, rows)));
    out_printf(out, ",\"read_bytes_s\":%.0f,\"peak_ops_s\":%.0f,\"results\":[", b->read_bytes_s, b->peak_ops_s);
    for (size_t i = 0, n = 0; i < COUNT_OF(tests); i++) {
        const struct result *r = &b->results[i];
        if (r->tok_s > 0)
            out_printf(out, "%s{\"name\":\"%s\",\"tok_s\":%.2f,\"memory_share\":%.4f,\"compute_share\":%.4f}",
                n++ > 0 ? "," : "", tests[i].name, r->tok_s, r->memory_share, r->compute_share);
    }
    out_text(out, "]}\n");
}

static void print_text(const struct bench_run *b, struct out *out)
{
    const struct load *l = b->load;
    char bytes[24], rows[DESCRIBE_BYTES];
    out_printf(out, "%s, %s %s on %s, %u threads\n", l->name, inspect_show_bytes(l->fit.weight_bytes, bytes),
        dtype_name(l->fit.work_dtype), l->ops->name, l->threads);
    out_printf(out, "%s\n", decoder_describe(l->decoder, rows));
    if (b->read_bytes_s > 0)
        out_printf(
            out, "limits: reading %.1f GB/s, arithmetic %.0f GOP/s\n", b->read_bytes_s / 1e9, b->peak_ops_s / 1e9);
    out_text(out, "\n");
    out_printf(out, "%-10s %10s %12s %12s\n", "test", "tok/s", "of memory", "of compute");
    for (size_t i = 0; i < COUNT_OF(tests); i++) {
        const struct result *r = &b->results[i];
        if (!b->wanted[i])
            continue;
        if (r->tok_s > 0 && b->read_bytes_s > 0)
            out_printf(out, "%-10s %10.1f %11.0f%% %11.0f%%\n", tests[i].name, r->tok_s, 100 * r->memory_share,
                100 * r->compute_share);
        else if (r->tok_s > 0)
            out_printf(out, "%-10s %10.1f %12s %12s\n", tests[i].name, r->tok_s, "-", "-");
        else
            out_printf(out, "%-10s %10s\n", tests[i].name, "not run: it needs more context or more than a minute");
    }
}

static enum err open_model(struct bench_run *b, struct error *e)
{
    struct load *l = b->load;
    const struct options *o = b->o;
    const struct load_wants wants = {.find = FIND_FETCH, .out_rows = BENCH_SEQS};
    TRY(load_pick_ops(o, &l->ops, e));
    TRY(load_describe(l, o, &wants, e));
    l->threads = o->threads != 0 ? (uint32_t)o->threads : team_cores();
    uint64_t context = o->max_model_len;
    if (context == 0) /* the context that the tests need */
        context = MIN(l->config.context_length, (uint32_t)BENCH_DEPTH + DECODE_STEPS);
    TRY(fit_choose(&l->fit, &l->config, context, CHAT_CONTEXT_DEFAULT, e));
    struct weight_source src;
    char choices[PATH_BYTES_MAX];
    if (o->load_format == LOAD_DUMMY) {
        TRY(dummy_new(fit_weight_dtype(o->weight_dtype), 0, &l->dummy, e));
        src = dummy_source(l->dummy);
    } else
        src = decoder_file_source(l->source);
    b->d = (struct decoder_options){.ops = l->ops,
        .threads = l->threads,
        .kv_dtype = l->fit.kv_dtype,
        .deterministic = o->deterministic,
        .fp8 = o->quantization == QUANTIZATION_FP8,
        .choices_dir = load_cache_dir(o, "choices", choices)};
    bench_options(&b->d, l->fit.context);
    TRY(decoder_open(&src, &l->config, &b->d, &l->decoder, e));
    return bench_new(l->decoder, &b->d, &b->bench, e);
}

enum err verb_bench(const struct options *o, struct out *out, struct error *e)
{
    struct bench_run b = {.o = o, .load = mem_zalloc(sizeof *b.load)};
    if (b.load == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to load a model");
    enum err err = pick_tests(&b, e);
    if (err == OK)
        err = open_model(&b, e);
    if (err == OK)
        err = measure_limits(&b, e);
    for (size_t i = 0; err == OK && i < COUNT_OF(tests); i++)
        if (b.wanted[i])
            err = run_test(&b, i, e);
    if (err == OK)
        (o->json ? print_json : print_text)(&b, out);
    bench_free(b.bench);
    load_close(b.load);
    mem_free(b.load);
    return err;
}
