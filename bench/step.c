/* What the loop itself costs: PLAN + COMMIT + GIVE of one step, without a model. N sequences decode over the fake
 * runner, which costs nothing here; a turn is timed, and the runner's own share is taken off. Prints the median and the
 * 99th percentile of a step, and ends with 1 when a median is over its bar.
 *
 *     quern_step [--steps N] [--block TOKENS] */
#include "base/mem.h"
#include "engine/engine.h"
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_STEPS 20

static uint32_t block_tokens = 16;

struct row {
    uint32_t n_seqs, context;
    double bar_us; /* 0 = none */
};

struct bench {
    struct clock clock;
    struct engine *engine;
    struct engine_client *client;
    struct request **requests;
    uint32_t n;
    struct engine_stats stats;
};

static void take_notices(struct bench *b)
{
    struct notice n;
    while (engine_client_next(b->client, &n) == OK)
        if (n.is_final)
            request_free(n.request);
}

static enum err bench_open(struct bench *b, const struct row *row, uint32_t n_steps, struct error *e)
{
    const uint32_t context = row->context + n_steps + WARM_STEPS + 64,
                   blocks = (context + block_tokens - 1) / block_tokens;
    clock_init(&b->clock);
    struct engine_options o = {.sched = sched_options_default(), .clock = &b->clock, .no_thread = true};
    o.sched.max_num_seqs = row->n_seqs;
    o.sched.max_batched_tokens = MAX(8192u, row->n_seqs);
    o.sched.out_max = row->n_seqs;
    o.sched.context_max = context;
    o.sched.block_tokens = block_tokens;
    o.sched.queue_max = row->n_seqs + 1;
    o.sched.queue_tokens_max = UINT64_MAX / 2;
    o.sched.prefix_cache = true;
    o.kv = (struct kv_options){.n_blocks = (row->n_seqs + 4) * (blocks + 1),
        .block_tokens = block_tokens,
        .seqs_max = 2 * row->n_seqs,
        .seq_blocks_max = blocks,
        .prefix_cache = true};
    o.requests_max = row->n_seqs;
    const struct runner_limits l = engine_runner_limits(&o.sched, &o.kv);
    const struct fake_runner_options fake = {.vocab = 32000};
    TRY(fake_runner_open(&fake, &l, o.kv.n_blocks, 0, block_tokens, &o.runner, e));
    const enum err err = engine_new(&o, &b->engine, e);
    if (err != OK) {
        runner_close(o.runner);
        return err;
    }
    return engine_client_new(b->engine, &b->client, e);
}

static enum err bench_fill(struct bench *b, const struct row *row, uint32_t n_steps, struct error *e)
{
    uint32_t *const ids = mem_array(row->context, sizeof *ids);
    enum err err = ids != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for prompts");
    for (uint32_t i = 0; i < row->n_seqs && err == OK; i++) {
        for (uint32_t k = 0; k < row->context; k++)
            ids[k] = (i * 7919 + k * 31) % 32000;
        struct request_options o = {.prompt = ids,
            .n_prompt = row->context,
            .max_tokens = n_steps + WARM_STEPS + 32,
            .n_choices = 1,
            .sample = sample_params_default()};
        struct request *r;
        uint64_t retry_ms;
        err = request_new(&o, &r, e);
        if (err == OK) {
            err = engine_submit(b->client, r, &retry_ms, e);
            if (err != OK)
                request_free(r);
        }
        uint64_t next_ns;
        if (err == OK && i % 128 == 127)
            (void)engine_turn(b->engine, &next_ns); /* mail is taken in portions */
    }
    mem_free(ids);
    return err;
}

static void bench_measure(struct bench *b, uint32_t n_seqs, uint32_t n_steps, double *us)
{
    uint64_t next_ns;
    for (;;) { /* until all have computed their prompts */
        (void)engine_turn(b->engine, &next_ns);
        take_notices(b);
        engine_stats(b->engine, &b->stats);
        if (b->stats.sched.n_running == n_seqs && b->stats.sched.waiting_tokens == 0 &&
            b->stats.hist[HIST_TTFT].n == n_seqs)
            break;
    }
    for (uint32_t i = 0; i < n_steps + WARM_STEPS; i++) {
        engine_stats(b->engine, &b->stats);
        const uint64_t runner_before = b->stats.forward_ns + b->stats.sample_ns;
        const uint64_t start = clock_now(&b->clock);
        (void)engine_turn(b->engine, &next_ns);
        const uint64_t turn_ns = clock_now(&b->clock) - start;
        take_notices(b);
        engine_stats(b->engine, &b->stats);
        const uint64_t runner_ns = b->stats.forward_ns + b->stats.sample_ns - runner_before;
        if (i >= WARM_STEPS)
            us[i - WARM_STEPS] = (double)(turn_ns - runner_ns) / 1e3;
    }
}

static void bench_close(struct bench *b)
{
    uint64_t next_ns;
    if (b->engine != NULL) {
        engine_abort(b->engine);
        for (uint32_t i = 0; i < 8; i++) {
            (void)engine_turn(b->engine, &next_ns);
            if (b->client != NULL)
                take_notices(b);
        }
        engine_client_free(b->client);
    }
    engine_free(b->engine);
}

static enum err run_row(const struct row *row, uint32_t n_steps, bool *is_over, struct error *e)
{
    struct bench *const b = mem_zalloc(sizeof *b);
    double *const us = mem_array(n_steps, sizeof *us);
    enum err err = b != NULL && us != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a bench");
    if (err == OK)
        err = bench_open(b, row, n_steps, e);
    if (err == OK)
        err = bench_fill(b, row, n_steps, e);
    if (err == OK) {
        bench_measure(b, row->n_seqs, n_steps, us);
        figures_sort(us, n_steps);
        const double median = us[n_steps / 2], high = us[n_steps * 99 / 100];
        printf("| %u | %u | %.1f | %.1f | ", row->n_seqs, row->context, median, high);
        if (row->bar_us > 0)
            printf("< %.0f: %s |\n", row->bar_us, median < row->bar_us ? "yes" : "NO");
        else
            printf("|\n");
        *is_over |= row->bar_us > 0 && median >= row->bar_us;
    }
    if (b != NULL)
        bench_close(b);
    mem_free(us);
    mem_free(b);
    return err;
}

int main(int argc, char **argv)
{
    static const struct row rows[] = {{1, 512, 0}, {64, 512, 0}, {256, 512, 100}, {256, 4096, 0}, {1024, 512, 400}};
    uint32_t n_steps = 400;
    for (int i = 1; i + 1 < argc; i += 2) {
        const uint32_t value = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--steps") == 0)
            n_steps = value;
        else if (strcmp(argv[i], "--block") == 0)
            block_tokens = value;
    }
    bool is_over = false;
    printf("PLAN + COMMIT + GIVE of one decode step, without a model\n\n");
    printf("| running sequences | context | median us | p99 us | bar |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct error e = {0};
        if (run_row(&rows[i], MAX(n_steps, 1u), &is_over, &e) != OK) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
    }
    return is_over;
}
