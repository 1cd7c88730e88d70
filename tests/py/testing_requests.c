/* A door for real requests through the engine and its thread, over a model with random weights: what each of them is
 * answered when they are run in one way or another, how often what that way is about has happened, and how long it
 * took. One decoder serves any number of runs, each with an engine of its own over a cache that holds nothing of the
 * run before. tests/py/quern_requests.py calls it. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "model/model.h"
#include "testing_dummy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define POISON 0x40 /* a byte of which every type of cache makes numbers that no model would: 2 and more */

struct requests_model_options {
    const char *device, *shape, *weights, *kv; /* see testing_dummy.h */
    uint32_t fp8, deterministic, block_tokens, context;
    uint32_t streams, rows, guesses, blocks; /* the most of any run */
};

struct requests_run_options {
    uint32_t streams, rows;       /* sequences at a time; rows of a step */
    uint32_t blocks, host_blocks; /* of the cache, and of the swap space */
    uint32_t preempt;             /* enum preempt_mode */
    uint32_t preempt_every;       /* so many steps somebody goes, also where blocks have not run out; 0 = never */
    uint32_t prefix_cache, late;  /* late: one step ahead, also where the device is not */
    uint32_t guesses;             /* of a sequence in a step: what is known, every third wrong */
    uint32_t rounds;              /* all of them again when all have been answered */
    uint32_t drawn;               /* tokens are drawn, under penalties; else the best are taken */
};

struct requests_list {
    uint32_t n, out_max;
    const uint32_t *ids, *n_prompt, *n_out; /* prompts one behind the other; [n]; [n], at most out_max */
    const uint32_t *known;                  /* [n][out_max]: what is guessed; NULL without guesses */
};

struct requests_counts {
    double seconds;  /* from the first request's arrival to the last token */
    double steady_s; /* of the last round, while the second and third quarter of the tokens were made */
    uint64_t steady_tokens, output_tokens, prompt_rows, steps;
    uint64_t most_rows;                      /* no step had more; a limit of HIST_ITERATION_TOKENS */
    uint64_t found, exact;                   /* tokens in the prefix cache; prompts that were there whole */
    uint64_t swaps, swapped_out, swapped_in; /* sequences; blocks */
    uint64_t recomputations, guessed, held;
};

struct requests_model {
    struct requests_model_options o;
    struct model_config cfg;
    struct dummy *dummy;
    struct decoder *decoder;
};

struct run {
    struct requests_model *m;
    struct requests_run_options o;
    const struct requests_list *list;
    struct clock clock;
    struct engine *engine;
    struct engine_client *client;
    struct request **requests; /* [n], of this round */
    uint32_t n_inside;
    struct engine_stats stats;
};

/* ---- a model ------------------------------------------------------------------------------------------------------
 */

/* An engine of these sizes. */
static struct engine_options engine_of(const struct requests_model *m, const struct requests_run_options *r, uint32_t n)
{
    struct engine_options eo = {.sched = sched_options_default(), .requests_max = n, .vocab = m->cfg.vocab};
    eo.sched.max_num_seqs = r->streams;
    eo.sched.max_batched_tokens = r->rows;
    eo.sched.out_max = r->streams * (1 + r->guesses);
    eo.sched.context_max = m->o.context;
    eo.sched.block_tokens = m->o.block_tokens;
    eo.sched.queue_max = n;
    eo.sched.queue_tokens_max = UINT64_MAX / 2;
    eo.sched.preempt = (enum preempt_mode)r->preempt;
    eo.sched.preempt_every = r->preempt_every;
    eo.sched.prefix_cache = r->prefix_cache != 0;
    eo.sched.spec_always = r->guesses > 0;
    eo.kv = (struct kv_options){.n_blocks = r->blocks,
        .n_host_blocks = r->host_blocks,
        .block_tokens = m->o.block_tokens,
        .seqs_max = sched_slots(&eo.sched),
        .seq_blocks_max = (m->o.context + m->o.block_tokens - 1) / m->o.block_tokens,
        .prefix_cache = r->prefix_cache != 0};
    return eo;
}

static enum err model_open(struct requests_model *m, struct error *e)
{
    const struct requests_model_options *o = &m->o;
    const struct requests_run_options most = {.streams = o->streams, .rows = o->rows, .guesses = o->guesses};
    const struct ops *ops;
    enum dtype weights, kv;
    TRY(testing_ops(o->device, &ops, e));
    TRY(dtype_by_name(str_of(o->weights), &weights, e));
    TRY(dtype_by_name(str_of(o->kv), &kv, e));
    TRY(testing_config(o->shape, &m->cfg, e));
    TRY(dummy_new(weights, 1, &m->dummy, e));
    dummy_share(m->dummy);
    const struct engine_options eo = engine_of(m, &most, 1);
    const struct runner_limits limits = engine_runner_limits(&eo.sched, &eo.kv);
    struct decoder_options d = {.ops = ops,
        .rows_max = limits.rows_max,
        .out_max = limits.out_max,
        .seqs_max = limits.seqs_max,
        .table_max = limits.table_max,
        .context_max = o->context,
        .kv_dtype = kv,
        .block_tokens = o->block_tokens,
        .n_blocks = o->blocks,
        .deterministic = o->deterministic != 0,
        .fp8 = o->fp8 != 0,
        .choices_dir = getenv("QUERN_CHOICES")}; /* bench/cuda.py has a folder for it */
    const struct weight_source src = dummy_source(m->dummy);
    d.weight_bytes = testing_weight_bytes(&m->cfg, NULL, weights, &d);
    return decoder_open(&src, &m->cfg, &d, &m->decoder, e);
}

EXPORT void quern_requests_close(struct requests_model *m)
{
    decoder_close(m->decoder);
    dummy_free(m->dummy);
    mem_free(m);
}

/* NULL on failure, with the sentence in text. */
EXPORT struct requests_model *quern_requests_open(const struct requests_model_options *o, char *text, size_t cap)
{
    struct error e = {0};
    struct requests_model *m = mem_zalloc(sizeof *m);
    if (m == NULL)
        return NULL;
    m->o = *o;
    if (model_open(m, &e) == OK)
        return m;
    snprintf(text, cap, "%s", e.text);
    quern_requests_close(m);
    return NULL;
}

EXPORT uint32_t quern_requests_vocab(const struct requests_model *m)
{
    return m->cfg.vocab;
}

/* ---- a run --------------------------------------------------------------------------------------------------------
 */

/* The next tokens of an answer that is known, but for every third. */
static enum err propose_known(struct proposer *p, const struct spec_ask *asks, uint32_t n, const struct slots *slots,
    struct guesses *out, struct error *e)
{
    (void)p, (void)slots, (void)e;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *known = asks[i].request->user;
        out[i].trust = SPEC_SURE;
        for (out[i].n = 0; out[i].n < asks[i].k; out[i].n++) {
            const uint32_t at = asks[i].n_out + out[i].n;
            out[i].ids[out[i].n] = known[at] ^ (at % 3 == 2);
        }
    }
    return OK;
}

static struct proposer *knowing(void)
{
    static const struct proposer_ops ops = {.name = "known", .propose = propose_known};
    static struct proposer one = {.ops = &ops};
    return &one;
}

/* What lies in the cache from the run before would be the right thing in the wrong place. */
static enum err forget(struct requests_model *m, struct error *e)
{
    const uint32_t first = 0;
    unsigned char *block = decoder_host_new(m->decoder, decoder_block_bytes(m->decoder));
    if (block == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a block");
    memset(block, POISON, decoder_block_bytes(m->decoder));
    decoder_move_blocks(m->decoder, (struct move_blocks_args){.host = block, .src = &first, .dst = &first, .n = 1});
    for (uint32_t i = 1; i < m->o.blocks; i++)
        decoder_copy_blocks(m->decoder, &first, &i, 1);
    const enum err err = decoder_wait(m->decoder, e);
    decoder_host_free(m->decoder, block);
    return err;
}

static enum err open_runner(
    struct run *r, const struct runner_limits *limits, uint32_t n_host, struct runner **out, struct error *e)
{
    struct runner *inner;
    TRY(model_runner_open(r->m->decoder, limits, n_host, &inner, e));
    *out = inner;
    const enum err err = r->o.late ? late_runner_open(inner, limits, out, e) : OK;
    if (err != OK)
        runner_close(inner);
    return err;
}

static enum err run_open(struct run *r, struct error *e)
{
    const struct requests_model_options *most = &r->m->o;
    if (r->o.streams > most->streams || r->o.rows > most->rows || r->o.guesses > most->guesses ||
        r->o.blocks > most->blocks)
        return FAIL(e, ERR_LIMIT, "%u streams, %u rows, %u guesses, %u blocks: the model has %u, %u, %u, %u",
            r->o.streams, r->o.rows, r->o.guesses, r->o.blocks, most->streams, most->rows, most->guesses, most->blocks);
    struct engine_options eo = engine_of(r->m, &r->o, r->list->n);
    const struct runner_limits limits = engine_runner_limits(&eo.sched, &eo.kv);
    eo.clock = &r->clock;
    eo.draft = r->o.guesses > 0 ? knowing() : NULL;
    TRY(forget(r->m, e));
    TRY(open_runner(r, &limits, eo.kv.n_host_blocks, &eo.runner, e));
    const enum err err = engine_new(&eo, &r->engine, e);
    if (err != OK)
        runner_close(eo.runner);
    return err != OK ? err : engine_client_new(r->engine, &r->client, e);
}

static enum err submit_all(struct run *r, struct error *e)
{
    static const struct sample_params best = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    const struct requests_list *l = r->list;
    const uint32_t *prompt = l->ids;
    uint64_t retry_ms;
    for (uint32_t i = 0; i < l->n; prompt += l->n_prompt[i++]) {
        const struct sample_params drawn = {.temperature = 0.8f,
            .top_p = 0.95f,
            .typical_p = 1,
            .top_k = 200,
            .repetition_penalty = 1.2f,
            .presence_penalty = 0.3f,
            .frequency_penalty = 0.1f,
            .seed = i};
        const struct request_options o = {.prompt = prompt,
            .n_prompt = l->n_prompt[i],
            .max_tokens = l->n_out[i],
            .n_choices = 1,
            .vocab_size = r->m->cfg.vocab,
            .sample = r->o.drawn ? drawn : best,
            .spec = r->o.guesses > 0 ? SPEC_DRAFT : SPEC_NONE,
            .spec_k = r->o.guesses};
        TRY(request_new(&o, &r->requests[i], e));
        if (l->known != NULL)
            r->requests[i]->user = (void *)(uintptr_t)(l->known + (size_t)i * l->out_max);
        TRY(engine_submit(r->client, r->requests[i], &retry_ms, e));
        r->n_inside++;
    }
    return OK;
}

/* Wait for every answer, looking every millisecond. An engine that fails answers too. */
static void gather(struct run *r, uint64_t n_tokens, struct requests_counts *got)
{
    uint64_t t_quarter = 0, at_quarter = 0;
    struct engine_stats *s = &r->stats;
    engine_stats(r->engine, s);
    const uint64_t before = s->sched.output_tokens;
    got->steady_tokens = 0;
    while (r->n_inside > 0) {
        struct notice n;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        while (engine_client_next(r->client, &n) == OK)
            r->n_inside -= n.is_final;
        engine_stats(r->engine, s);
        const uint64_t out = s->sched.output_tokens - before;
        if (t_quarter == 0 && out >= n_tokens / 4) {
            t_quarter = clock_now(&r->clock);
            at_quarter = out;
        }
        if (got->steady_tokens == 0 && out >= n_tokens / 4 * 3) {
            got->steady_s = (double)(clock_now(&r->clock) - t_quarter) / 1e9;
            got->steady_tokens = out - at_quarter;
        }
    }
}

/* All of them once; their tokens go to out, [n][out_max]. */
static enum err run_round(struct run *r, uint32_t *out, struct requests_counts *got, struct error *e)
{
    const struct requests_list *l = r->list;
    uint64_t n_tokens = 0;
    for (uint32_t i = 0; i < l->n; i++)
        n_tokens += l->n_out[i];
    enum err err = submit_all(r, e);
    gather(r, n_tokens, got);
    for (uint32_t i = 0; i < l->n; i++) {
        const struct request *q = r->requests[i];
        const uint32_t n = q != NULL ? atomic_load(&q->choices[0].n_out) : 0;
        if (err == OK && n != l->n_out[i]) {
            engine_error(r->engine, e);
            err = FAIL(e, ERR_INTERNAL, "request %u ended with %u tokens of %u", i, n, l->n_out[i]);
        }
        if (err == OK)
            memcpy(out + (size_t)i * l->out_max, q->choices[0].ids, n * sizeof *out);
        request_free(r->requests[i]);
        r->requests[i] = NULL;
    }
    return err;
}

static void count(struct run *r, struct requests_counts *got)
{
    const struct engine_stats *s = &r->stats;
    const struct stats_buckets *b = &stats_buckets[HIST_ITERATION_TOKENS];
    engine_stats(r->engine, &r->stats);
    got->output_tokens = s->sched.output_tokens;
    got->prompt_rows = s->sched.prompt_tokens;
    got->steps = s->sched.steps;
    got->most_rows = s->hist[HIST_ITERATION_TOKENS].counts[STATS_BUCKETS_MAX] > 0 ? UINT64_MAX : 0;
    for (uint32_t i = b->n; got->most_rows == 0 && i-- > 0;)
        if (s->hist[HIST_ITERATION_TOKENS].counts[i] > 0)
            got->most_rows = (uint64_t)b->upper[i];
    got->found = s->kv.tokens_found;
    got->exact = s->kv.exact;
    got->swaps = s->sched.preempted_swap;
    got->swapped_out = s->kv.swapped_out;
    got->swapped_in = s->kv.swapped_in;
    got->recomputations = s->sched.preempted_recompute;
    got->guessed = s->sched.spec.tokens;
    got->held = s->sched.spec.accepted;
}

/* 0, or an enum err with its sentence in text. out: [rounds][n][out_max]. */
EXPORT int quern_requests_run(struct requests_model *m, const struct requests_run_options *o,
    const struct requests_list *list, uint32_t *out, struct requests_counts *got, char *text, size_t cap)
{
    struct error e = {0};
    struct run *r = mem_zalloc(sizeof *r);
    *got = (struct requests_counts){0};
    if (r == NULL)
        return ERR_NOMEM;
    r->m = m;
    r->o = *o;
    r->list = list;
    clock_init(&r->clock);
    r->requests = mem_zalloc(list->n * sizeof(struct request *));
    enum err err = r->requests == NULL ? FAIL(&e, ERR_NOMEM, "no memory") : run_open(r, &e);
    const uint64_t start = clock_now(&r->clock);
    for (uint32_t i = 0; err == OK && i < o->rounds; i++)
        err = run_round(r, out + (size_t)i * list->n * list->out_max, got, &e);
    got->seconds = (double)(clock_now(&r->clock) - start) / 1e9;
    if (err == OK)
        count(r, got);
    else
        snprintf(text, cap, "%s", e.text);
    engine_client_free(r->client);
    engine_free(r->engine);
    mem_free(r->requests);
    mem_free(r);
    return (int)err;
}
