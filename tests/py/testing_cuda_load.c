/* A door for bench/cuda --row: real requests through the engine and its thread, from an empty start to the last answer.
 * Weights are random, prompts too, and nothing of them is in a cache; every request wants the same number of tokens. */
#include "base/clock.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "engine/engine.h"
#include "model/dummy.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define BLOCK  32u

struct load_options {
    const char *device, *shape, *weights, *kv; /* "cuda", or a row of the CPU's kernels */
    uint32_t fp8, n_in, n_out, n_requests;
    uint32_t streams, rows; /* at the same time; of a step */
    uint64_t kv_tokens;     /* of the cache */
};

struct load_result {
    double seconds;  /* from the first request's arrival to the last token */
    double steady_s; /* of them, while the second and third quarter of the tokens were made */
    uint64_t output_tokens, steady_tokens, prompt_tokens, steps, preempted;
};

struct load_run {
    struct load_options o;
    struct model_config *cfg;
    struct dummy *dummy;
    struct decoder *decoder;
    struct engine *engine;
    struct engine_client *client;
    struct clock clock;
    struct request **requests;
    uint32_t *prompt;
    struct engine_stats stats;
};

static enum err pick_ops(const char *device, const struct ops **out, struct error *e)
{
    const char *why = "this build has no CUDA";
    *out = cpu_ops_by_name(device);
#ifdef QUERN_CUDA
    if (strcmp(device, "cuda") == 0)
        *out = cuda_ops(&why);
#endif
    return *out != NULL ? OK : FAIL(e, ERR_UNSUPPORTED, "%s: %s", device, why);
}

static enum err load_open(struct load_run *l, struct error *e)
{
    const struct load_options *o = &l->o;
    const uint32_t context = o->n_in + o->n_out, seq_blocks = (context + BLOCK - 1) / BLOCK;
    const struct ops *ops;
    enum dtype weights, kv;
    struct runner *runner;
    TRY(pick_ops(o->device, &ops, e));
    TRY(dtype_by_name(str_of(o->weights), &weights, e));
    TRY(dtype_by_name(str_of(o->kv), &kv, e));
    TRY(dummy_config(o->shape, l->cfg, e));
    TRY(dummy_new(weights, 1, &l->dummy, e));
    dummy_share(l->dummy);
    struct engine_options eo = {
        .sched = sched_options_default(), .clock = &l->clock, .requests_max = o->n_requests, .vocab = l->cfg->vocab};
    eo.sched.max_num_seqs = o->streams;
    eo.sched.max_batched_tokens = o->rows;
    eo.sched.out_max = o->streams;
    eo.sched.context_max = context;
    eo.sched.block_tokens = BLOCK;
    eo.sched.queue_max = o->n_requests;
    eo.sched.queue_tokens_max = UINT64_MAX / 2;
    eo.sched.prefix_cache = false;
    eo.kv = (struct kv_options){.n_blocks = (uint32_t)(o->kv_tokens / BLOCK),
        .block_tokens = BLOCK,
        .seqs_max = sched_slots(&eo.sched),
        .seq_blocks_max = seq_blocks};
    const struct runner_limits limits = engine_runner_limits(&eo.sched, &eo.kv);
    const struct decoder_options d = {.ops = ops,
        .rows_max = limits.rows_max,
        .out_max = limits.out_max,
        .seqs_max = limits.seqs_max,
        .table_max = limits.table_max,
        .context_max = context,
        .kv_dtype = kv,
        .block_tokens = BLOCK,
        .n_blocks = eo.kv.n_blocks,
        .fp8 = o->fp8 != 0,
        .choices_dir = getenv("QUERN_CHOICES")}; /* bench/cuda.py has a folder for it */
    const struct weight_source src = dummy_source(l->dummy);
    TRY(decoder_open(&src, l->cfg, &d, &l->decoder, e));
    TRY(model_runner_open(l->decoder, &limits, 0, &runner, e));
    eo.runner = runner;
    const enum err err = engine_new(&eo, &l->engine, e);
    if (err != OK)
        runner_close(runner);
    return err != OK ? err : engine_client_new(l->engine, &l->client, e);
}

static enum err submit_all(struct load_run *l, struct error *e)
{
    uint64_t retry_ms;
    uint32_t state = 1;
    for (uint32_t i = 0; i < l->o.n_requests; i++) {
        for (uint32_t k = 0; k < l->o.n_in; k++) {
            state = state * 1664525u + 1013904223u;
            l->prompt[k] = (state >> 8) % l->cfg->vocab;
        }
        const struct request_options o = {.prompt = l->prompt,
            .n_prompt = l->o.n_in,
            .max_tokens = l->o.n_out,
            .n_choices = 1,
            .vocab_size = l->cfg->vocab,
            .sample = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1}};
        TRY(request_new(&o, &l->requests[i], e));
        TRY(engine_submit(l->client, l->requests[i], &retry_ms, e));
    }
    return OK;
}

/* Wait for every answer, looking every millisecond. */
static enum err gather(struct load_run *l, struct load_result *got, struct error *e)
{
    const uint64_t all = (uint64_t)l->o.n_requests * l->o.n_out;
    uint64_t t_quarter = 0, at_quarter = 0;
    struct engine_stats *s = &l->stats;
    for (uint32_t n_done = 0; n_done < l->o.n_requests;) {
        struct notice n;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        while (engine_client_next(l->client, &n) == OK)
            n_done += n.is_final;
        engine_stats(l->engine, s);
        const uint64_t out = s->sched.output_tokens;
        if (t_quarter == 0 && out >= all / 4) {
            t_quarter = clock_now(&l->clock);
            at_quarter = out;
        }
        if (got->steady_tokens == 0 && out >= all / 4 * 3) {
            got->steady_s = (double)(clock_now(&l->clock) - t_quarter) / 1e9;
            got->steady_tokens = out - at_quarter;
        }
        if (engine_state(l->engine) == ENGINE_FAILED) {
            engine_error(l->engine, e);
            return ERR_INTERNAL;
        }
    }
    return OK;
}

static enum err load_run(struct load_run *l, struct load_result *got, struct error *e)
{
    const uint64_t start = clock_now(&l->clock);
    TRY(submit_all(l, e));
    TRY(gather(l, got, e));
    got->seconds = (double)(clock_now(&l->clock) - start) / 1e9;
    engine_stats(l->engine, &l->stats);
    for (uint32_t i = 0; i < l->o.n_requests; i++) {
        const uint32_t n = atomic_load(&l->requests[i]->choices[0].n_out);
        got->output_tokens += n;
        if (n != l->o.n_out)
            return FAIL(e, ERR_INTERNAL, "request %u ended with %u tokens", i, n);
    }
    got->prompt_tokens = l->stats.sched.prompt_tokens;
    got->steps = l->stats.sched.steps;
    got->preempted = l->stats.sched.preempted_recompute + l->stats.sched.preempted_swap;
    return OK;
}

/* 0, or an enum err with its sentence in text. */
EXPORT int quern_bench_load(const struct load_options *o, struct load_result *got, char *text, size_t cap)
{
    struct error e = {0};
    struct load_run *l = mem_zalloc(sizeof *l);
    *got = (struct load_result){0};
    if (l == NULL)
        return ERR_NOMEM;
    l->o = *o;
    clock_init(&l->clock);
    l->cfg = mem_zalloc(sizeof *l->cfg);
    l->prompt = mem_array(o->n_in, sizeof *l->prompt);
    l->requests = mem_zalloc(o->n_requests * sizeof(struct request *));
    enum err err = l->cfg == NULL || l->prompt == NULL || l->requests == NULL ? FAIL(&e, ERR_NOMEM, "no memory") : OK;
    if (err == OK)
        err = load_open(l, &e);
    if (err == OK)
        err = load_run(l, got, &e);
    if (err != OK)
        snprintf(text, cap, "%s", e.text);
    if (err != OK && l->requests != NULL && l->requests[0] != NULL)
        return (int)err; /* requests may be out: the process ends anyway */
    engine_client_free(l->client);
    engine_free(l->engine);
    for (uint32_t i = 0; l->requests != NULL && i < o->n_requests; i++)
        request_free(l->requests[i]);
    decoder_close(l->decoder);
    dummy_free(l->dummy);
    mem_free(l->requests);
    mem_free(l->prompt);
    mem_free(l->cfg);
    mem_free(l);
    return (int)err;
}
