/* What guesses are worth: the same answers with and without them, by turns, on real shapes; prints JSON, one object a
 * line. bench/speculative.py calls it and writes the tables and plots of docs/speculative.md.
 *
 *     quern_speculative [shape=llama-3.2-1b] [weights=q4_0] [streams=1] [k=5] [text=edit|random|sure] [accept=0.8]
 *                       [method=ngram|coin] [tokens=160] [rounds=3] [always=1] [threads=N] [device=cpu|cuda] [rows=1]
 *                       [fake=BASE_US:ROW_US] [off=1] [idle=1]
 *
 * Weights are random, so a model of this shape says nothing worth guessing. Everything is computed as it would be
 * (rows, logits, the choice), and then the token chosen is replaced by the next one of a text that was written before:
 *   edit     the answer is the prompt's own text with a few words changed now and then
 *   random   words by Zipf's law, alike in prompt and answer: n-grams that come again mean nothing
 *   sure     no text: a guess holds with probability accept, whatever it is (method=coin)
 * A guess is right when it is what the text goes on with. So the cost of a step is real, and how often guesses hold is
 * the text's.
 *
 * fake computes nothing: steps take BASE_US and ROW_US for each row, on a virtual clock. So what the scheduler makes of
 * a machine's costs can be seen without the machine.
 *
 * off=1: no guesses in either turn, so what comes out is the engine at work.
 *
 * idle=1: what guesses cost where nobody asks for them. Three ways to decode the same streams over one set of weights,
 * by turns: an engine that knows nobody who guesses, one that does and whose requests say none, and the model's steps
 * without an engine.
 *
 * rows=1 instead measures steps of 1 to 9 rows of one sequence, every row with logits. */
#include "base/mem.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "engine/engine.h"
#include "figures.h"
#include "model/dummy.h"
#include "model/fit.h"
#include "model/model.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS_MAX 256
#define ROUNDS_MAX  64
#define PROMPT      512u
#define IDLE_PROMPT 64u /* idle=1: computed again in every turn */
#define BLOCK       16u
#define WORDS       4000u /* that texts are made of */

enum text_kind { TEXT_EDIT, TEXT_RANDOM, TEXT_SURE };

struct options {
    const char *shape;
    enum dtype weights;
    uint32_t streams, k, tokens, rounds, threads;
    enum text_kind text;
    enum spec_method method;
    double accept;
    bool always, is_cuda, rows, is_fake, only_off, idle;
    uint32_t base_us, row_us;
};

struct job { /* one answer: what it will say */
    uint32_t prompt[PROMPT], *script;
};

/* The runner in between: what the model chose is replaced by what the text says. */
struct teller {
    struct runner base;
    struct runner_ops ops;
    struct runner *inner;
    struct bench *b;
    struct step_token *tokens; /* [out_max] */
    uint32_t n;
};

struct seat { /* an engine over the model */
    struct teller teller;
    struct engine *engine;
    struct engine_client *client;
};

enum { SEAT_GUESSING, SEAT_PLAIN, SEATS };

struct bench {
    struct options o;
    struct clock clock;
    struct model_config *cfg;
    struct dummy *dummy;
    struct decoder *decoder;
    struct seat seats[SEATS];
    uint32_t n_seats, n_prompt, seq_blocks;
    struct job jobs[STREAMS_MAX];
    uint64_t n_coins;
    struct engine_stats stats;
};

static uint64_t draw(uint64_t seed, uint64_t i)
{
    return rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY});
}

static double unit(uint64_t seed, uint64_t i)
{
    return (double)(draw(seed, i) >> 11) * 0x1p-53;
}

/* ---- texts ---- */

/* Zipf: the word of rank r has probability about 1 / (r ln n). */
static uint32_t word(uint64_t seed, uint64_t i)
{
    return 100 + (uint32_t)exp(unit(seed, i) * log((double)WORDS));
}

/* The prompt's own words in order, some of them changed, some left out. */
static void write_edit(struct job *j, uint32_t n, uint64_t seed)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t dice = draw(seed + 1, i);
        if (dice % 80 == 0)
            at += 1 + (uint32_t)(dice >> 32) % 4; /* left out */
        j->script[i] = dice % 80 == 1 ? word(seed + 2, i) : j->prompt[at % PROMPT];
        at++;
    }
}

static enum err write_jobs(struct bench *b, struct error *e)
{
    for (uint32_t s = 0; s < b->o.streams; s++) {
        struct job *j = &b->jobs[s];
        j->script = mem_array(b->o.tokens, sizeof *j->script);
        if (j->script == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for texts");
        for (uint32_t i = 0; i < PROMPT; i++)
            j->prompt[i] = word(1000 + s, i);
        for (uint32_t i = 0; i < b->o.tokens; i++)
            j->script[i] = word(2000 + s, i);
        if (b->o.text == TEXT_EDIT)
            write_edit(j, b->o.tokens, 3000 + s);
    }
    return OK;
}

/* ---- the teller ---- */

static struct teller *self(struct runner *r)
{
    return (struct teller *)(void *)r;
}

static bool holds(struct bench *b, uint32_t guess, uint32_t said)
{
    return b->o.text == TEXT_SURE ? unit(77, b->n_coins++) < b->o.accept : guess == said;
}

static void tell(struct teller *t, const struct plan *p, const struct plan_seq *s, const struct slot_view *v)
{
    const int32_t *guess = plan_token(p) + s->first_row + s->n_rows - s->n_spec;
    const uint32_t *script = v->request != NULL ? ((const struct job *)v->request->user)->script : NULL;
    const uint32_t n_out = v->request != NULL ? atomic_load(&v->choice->n_out) : 0;
    for (uint32_t i = 0; i <= s->n_spec; i++) {
        struct step_token *k = &t->tokens[t->n++];
        *k = (struct step_token){.slot = s->slot};
        if (v->request == NULL)
            return;
        k->id = script[MIN(n_out + i, v->request->o.max_tokens - 1)];
        if (i == s->n_spec || !holds(t->b, (uint32_t)guess[i], k->id))
            return;
        k->id = (uint32_t)guess[i];
    }
}

static enum err teller_forward(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    return self(r)->inner->ops->forward(self(r)->inner, p, s, e);
}

static enum err teller_sample(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    struct teller *t = self(r);
    t->n = 0;
    TRY(t->inner->ops->sample(t->inner, p, s, e));
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct slot_view v;
        s->view(s->ctx, plan_seqs(p)[i].slot, &v);
        if (plan_seqs(p)[i].samples)
            tell(t, p, &plan_seqs(p)[i], &v);
    }
    return OK;
}

static enum err teller_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct teller *t = self(r);
    TRY(t->inner->ops->wait(t->inner, p, out, e));
    out->tokens = t->tokens;
    out->n = t->n;
    return OK;
}

static void teller_close(struct runner *r)
{
    runner_close(self(r)->inner);
    mem_free(self(r)->tokens);
}

/* Any token: whether it holds is the coin's business. */
static enum err coin_propose(struct proposer *p, const struct spec_ask *asks, uint32_t n, const struct slots *s,
    struct guesses *out, struct error *e)
{
    (void)p;
    (void)s;
    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        out[i].trust = SPEC_SURE;
        for (out[i].n = 0; out[i].n < asks[i].k; out[i].n++)
            out[i].ids[out[i].n] = 100 + out[i].n;
    }
    return OK;
}

static struct proposer *coin(void)
{
    static const struct proposer_ops ops = {.name = "coin", .propose = coin_propose};
    static struct proposer one = {.ops = &ops};
    return &one;
}

/* ---- opening ---- */

static enum err pick_ops(const struct options *o, const struct ops **out, struct error *e)
{
    *out = cpu_ops();
    if (!o->is_cuda)
        return OK;
#ifdef QUERN_CUDA
    const char *why = "";
    *out = cuda_ops(&why);
    return *out != NULL ? OK : FAIL(e, ERR_UNSUPPORTED, "no CUDA device: %s", why);
#else
    return FAIL(e, ERR_UNSUPPORTED, "this build has no CUDA");
#endif
}

static struct engine_options engine_options_of(struct bench *b, bool guesses)
{
    const struct options *o = &b->o;
    struct engine_options eo = {.sched = sched_options_default(),
        .clock = &b->clock,
        .requests_max = 2 * STREAMS_MAX,
        .vocab = b->cfg->vocab,
        .draft = guesses ? coin() : NULL,
        .no_thread = true};
    eo.sched.max_num_seqs = MAX(o->streams, 1u);
    eo.sched.max_batched_tokens = o->is_cuda ? 2048 : 256;
    eo.sched.out_max = MIN(256u, o->streams * (SPEC_K_MAX + 1));
    eo.sched.context_max = b->seq_blocks * BLOCK;
    eo.sched.block_tokens = BLOCK;
    eo.sched.queue_max = STREAMS_MAX;
    eo.sched.spec_always = o->always;
    eo.sched.prefix_cache = !o->idle; /* engines that take turns overwrite each other's blocks */
    eo.kv = (struct kv_options){.n_blocks = (o->streams + 2) * b->seq_blocks * 2,
        .block_tokens = BLOCK,
        .seqs_max = sched_slots(&eo.sched),
        .seq_blocks_max = b->seq_blocks,
        .prefix_cache = !o->idle};
    return eo;
}

static enum err seat_open(struct bench *b, struct seat *at, bool guesses, struct error *e)
{
    struct engine_options eo = engine_options_of(b, guesses);
    const struct runner_limits l = engine_runner_limits(&eo.sched, &eo.kv);
    const struct fake_runner_options fake = {.vocab = b->cfg->vocab,
        .base_ns = b->o.base_us * NS_PER_US,
        .row_ns = b->o.row_us * NS_PER_US,
        .clock = &b->clock};
    struct teller *t = &at->teller;
    t->b = b;
    t->tokens = mem_array(l.out_max, sizeof *t->tokens);
    if (t->tokens == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for tokens");
    if (b->o.is_fake)
        TRY(fake_runner_open(&fake, &l, eo.kv.n_blocks, 0, BLOCK, &t->inner, e));
    else
        TRY(model_runner_open(b->decoder, &l, 0, &t->inner, e));
    t->ops = (struct runner_ops){.name = "teller",
        .depth = t->inner->ops->depth,
        .forward = teller_forward,
        .sample = teller_sample,
        .wait = teller_wait,
        .close = teller_close};
    t->base.ops = &t->ops;
    eo.runner = &t->base;
    TRY(engine_new(&eo, &at->engine, e));
    return engine_client_new(at->engine, &at->client, e);
}

static enum err bench_open(struct bench *b, struct error *e)
{
    const struct options *o = &b->o;
    const struct ops *ops;
    TRY(pick_ops(o, &ops, e));
    b->cfg = mem_zalloc(sizeof *b->cfg);
    if (b->cfg == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a model");
    TRY(dummy_config(o->shape, b->cfg, e));
    TRY(dummy_new(o->weights, 1, &b->dummy, e));
    if (o->is_cuda)
        dummy_share(b->dummy);
    clock_init(&b->clock);
    b->n_prompt = o->idle ? IDLE_PROMPT : PROMPT;
    b->seq_blocks = (b->n_prompt + o->tokens + 64 + BLOCK - 1) / BLOCK;
    const struct engine_options eo = engine_options_of(b, true);
    const struct runner_limits l = engine_runner_limits(&eo.sched, &eo.kv);
    struct fit fit;
    const struct fit_wants wants = {.kv_dtype = FIT_KV_AUTO, .dummy_dtype = o->weights, .ops = ops, .rows = 1};
    TRY(fit_measure(&fit, b->cfg, NULL, &wants, e));
    const struct decoder_options d = {.ops = ops,
        .threads = o->threads,
        .rows_max = l.rows_max,
        .out_max = l.out_max,
        .seqs_max = l.seqs_max,
        .table_max = l.table_max,
        .context_max = eo.sched.context_max,
        .kv_dtype = fit.kv_dtype,
        .block_tokens = BLOCK,
        .n_blocks = eo.kv.n_blocks,
        .weight_bytes = fit.weight_bytes,
        .choices_dir = getenv("QUERN_CHOICES")}; /* bench/cuda.py has a folder for it */
    const struct weight_source src = dummy_source(b->dummy);
    if (o->is_fake)
        clock_init_virtual(&b->clock, 0);
    else
        TRY(decoder_open(&src, b->cfg, &d, &b->decoder, e));
    for (; b->n_seats < (o->idle ? SEATS : 1u); b->n_seats++)
        TRY(seat_open(b, &b->seats[b->n_seats], b->n_seats == SEAT_GUESSING, e));
    return OK;
}

/* ---- measuring ---- */

/* Processor time, of all threads: what a step takes on a machine that has other work too. */
static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* All streams once, from the first token of the last of them to the end: output tokens a second. */
static enum err run_round(
    struct bench *b, struct seat *at, enum spec_method method, double *rate, double *rate_cpu, struct error *e)
{
    struct request *r[STREAMS_MAX];
    uint64_t next_ns, retry_ms, start = 0;
    uint32_t n_done = 0, at_start = 0, all = 0;
    double cpu = 0;
    for (uint32_t i = 0; i < b->o.streams; i++) {
        const struct request_options o = {.prompt = b->jobs[i].prompt,
            .n_prompt = b->n_prompt,
            .max_tokens = b->o.tokens,
            .n_choices = 1,
            .vocab_size = b->cfg->vocab,
            .sample = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1},
            .spec = method,
            .spec_k = b->o.k,
            .ngram_min = 2,
            .ngram_max = 8};
        TRY(request_new(&o, &r[i], e));
        r[i]->user = &b->jobs[i];
        TRY(engine_submit(at->client, r[i], &retry_ms, e));
    }
    while (n_done < b->o.streams) {
        struct notice n;
        engine_turn(at->engine, &next_ns);
        if (engine_state(at->engine) == ENGINE_FAILED) {
            engine_error(at->engine, e);
            return e->code;
        }
        bool all_began = true;
        uint32_t out = 0;
        for (uint32_t i = 0; i < b->o.streams; i++) {
            const uint32_t n_out = atomic_load(&r[i]->choices[0].n_out);
            all_began = all_began && n_out > 0;
            out += n_out;
        }
        if (start == 0 && all_began) {
            start = clock_now(&b->clock);
            cpu = cpu_ms();
            at_start = out;
        }
        all = out;
        while (engine_client_next(at->client, &n) == OK)
            n_done += n.is_final;
    }
    *rate = (double)(all - at_start) / ((double)(clock_now(&b->clock) - start) / 1e9);
    *rate_cpu = (double)(all - at_start) / ((cpu_ms() - cpu) / 1e3);
    for (uint32_t i = 0; i < b->o.streams; i++)
        request_free(r[i]);
    return OK;
}

static enum err measure(struct bench *b, struct error *e)
{
    static const char *const kinds[] = {"edit", "random", "sure"};
    double off[ROUNDS_MAX], on[ROUNDS_MAX], ratio[ROUNDS_MAX], ratio_cpu[ROUNDS_MAX], cpu[2];
    const uint32_t n = b->o.rounds;
    struct seat *at = &b->seats[SEAT_GUESSING];
    TRY(run_round(b, at, SPEC_NONE, &off[0], &cpu[0], e)); /* warm: pages, prefix cache, cost model */
    for (uint32_t i = 0; i < n; i++) {
        TRY(run_round(b, at, SPEC_NONE, &off[i], &cpu[0], e));
        TRY(run_round(b, at, b->o.only_off ? SPEC_NONE : b->o.method, &on[i], &cpu[1], e));
        ratio[i] = on[i] / off[i];
        ratio_cpu[i] = cpu[1] / cpu[0]; /* on a machine that has other work too */
    }
    engine_stats(at->engine, &b->stats);
    const struct spec_stats *s = &b->stats.sched.spec;
    const double middle = figures_median(ratio, n); /* so the first is the worst */
    printf("{\"shape\": \"%s\", \"weights\": \"%s\", \"text\": \"%s\", \"streams\": %u, \"k\": %u, \"always\": %d, "
           "\"accept\": %g, \"off\": %.3f, \"on\": %.3f, \"ratio\": %.4f, \"worst\": %.4f, \"ratio_cpu\": %.4f, "
           "\"drafts\": %llu, "
           "\"guesses\": %llu, \"held\": %llu, \"per_pos\": [",
        b->o.shape, dtype_name(b->o.weights), kinds[b->o.text], b->o.streams, b->o.k, b->o.always, b->o.accept,
        figures_median(off, n), figures_median(on, n), middle, ratio[0], figures_median(ratio_cpu, n),
        (unsigned long long)s->drafts, (unsigned long long)s->tokens, (unsigned long long)s->accepted);
    for (uint32_t i = 0; i < b->o.k; i++)
        printf(
            "%s%.4f", i > 0 ? ", " : "", s->tried_pos[i] > 0 ? (double)s->per_pos[i] / (double)s->tried_pos[i] : 0.0);
    printf("]}\n");
    return OK;
}

/* The steps that decoding all streams takes, without an engine: a row for each, behind the prompt. */
static enum err run_steps(struct bench *b, double *rate, double *rate_cpu, struct error *e)
{
    static uint32_t table[STREAMS_MAX * 128], out_row[STREAMS_MAX], pos[STREAMS_MAX], seq[STREAMS_MAX];
    static uint32_t kv_slot[STREAMS_MAX], best[STREAMS_MAX];
    static int32_t token[STREAMS_MAX];
    static struct batch_seq seqs[STREAMS_MAX];
    const uint32_t n = b->o.streams, n_steps = b->o.tokens - 1;
    if (b->seq_blocks > 128)
        return FAIL(e, ERR_LIMIT, "%u tokens are too many for idle=1", b->o.tokens);
    for (uint32_t i = 0; i < n * b->seq_blocks; i++)
        table[i] = i;
    const uint64_t start = clock_now(&b->clock);
    const double cpu = cpu_ms();
    for (uint32_t k = 0; k < n_steps; k++) {
        for (uint32_t i = 0; i < n; i++) {
            pos[i] = b->n_prompt + k;
            kv_slot[i] = i * b->seq_blocks * BLOCK + pos[i];
            token[i] = (int32_t)b->jobs[i].script[k];
            seq[i] = out_row[i] = i;
            seqs[i] =
                (struct batch_seq){.first_row = i, .n_rows = 1, .n_kv = pos[i] + 1, .table_at = i * b->seq_blocks};
        }
        const struct step s = {.n_rows = n,
            .n_seqs = n,
            .n_out = n,
            .n_table = n * b->seq_blocks,
            .token = token,
            .pos = pos,
            .seq = seq,
            .seqs = seqs,
            .table = table,
            .kv_slot = kv_slot,
            .out_row = out_row,
            .want_best = true};
        TRY(decoder_step(b->decoder, &s, e));
        TRY(decoder_read_best(b->decoder, best, e));
    }
    *rate = (double)n_steps * n / ((double)(clock_now(&b->clock) - start) / 1e9);
    *rate_cpu = (double)n_steps * n / ((cpu_ms() - cpu) / 1e3);
    return OK;
}

static enum err run_way(struct bench *b, uint32_t way, double *rate, double *rate_cpu, struct error *e)
{
    if (way == SEATS)
        return run_steps(b, rate, rate_cpu, e);
    return run_round(b, &b->seats[way], SPEC_NONE, rate, rate_cpu, e);
}

/* Three ways by turns, each round in another order; ratios are to the engine that knows nobody who guesses. */
static enum err measure_idle(struct bench *b, struct error *e)
{
    enum { WAYS = SEATS + 1 };
    static double rate[WAYS][ROUNDS_MAX], cpu[WAYS][ROUNDS_MAX], ratio[2][WAYS][ROUNDS_MAX];
    const uint32_t n_ways = b->o.is_fake ? SEATS : WAYS; /* nothing is left of a fake without its engine */
    for (uint32_t i = 0; i < n_ways; i++)
        TRY(run_way(b, i, &rate[0][0], &cpu[0][0], e)); /* warm */
    for (uint32_t k = 0; k < b->o.rounds; k++) {
        for (uint32_t i = 0; i < n_ways; i++) {
            const uint32_t way = (i + k) % n_ways;
            TRY(run_way(b, way, &rate[way][k], &cpu[way][k], e));
        }
        for (uint32_t i = 0; i < n_ways; i++) {
            ratio[0][i][k] = rate[i][k] / rate[SEAT_PLAIN][k];
            ratio[1][i][k] = cpu[i][k] / cpu[SEAT_PLAIN][k];
        }
    }
    static const char *const names[WAYS] = {[SEAT_GUESSING] = "idle", [SEAT_PLAIN] = "none", [SEATS] = "steps"};
    printf(
        "{\"shape\": \"%s\", \"weights\": \"%s\", \"streams\": %u", b->o.shape, dtype_name(b->o.weights), b->o.streams);
    for (uint32_t i = 0; i < n_ways; i++) {
        const uint32_t n = b->o.rounds;
        const double speed = figures_median(rate[i], n), us = 1e6 / figures_median(cpu[i], n);
        const double by_clock = figures_median(ratio[0][i], n),
                     by_cpu = figures_median(ratio[1][i], n); /* and they are in order */
        printf(", \"%s\": {\"tok_s\": %.2f, \"cpu_us\": %.3f, \"ratio\": %.4f, \"ratio_cpu\": %.4f, "
               "\"low\": %.4f, \"high\": %.4f}",
            names[i], speed, us, by_clock, by_cpu, ratio[1][i][n / 4], ratio[1][i][n - 1 - n / 4]);
    }
    printf("}\n");
    return OK;
}

/* Steps of 1 to 9 rows of one sequence behind its prompt. */
static enum err measure_rows(struct bench *b, struct error *e)
{
    double v[ROUNDS_MAX];
    uint32_t table[128], out_row[16], pos[16], seq[16] = {0}, kv_slot[16];
    int32_t token[16];
    for (uint32_t i = 0; i < COUNT_OF(table); i++)
        table[i] = i;
    for (uint32_t rows = 1; rows <= 9; rows++) {
        for (uint32_t i = 0; i < rows; i++) {
            pos[i] = kv_slot[i] = PROMPT + i;
            token[i] = (int32_t)(100 + i);
            out_row[i] = i;
        }
        const struct batch_seq one = {.n_rows = rows, .n_kv = PROMPT + rows};
        const struct step s = {.n_rows = rows,
            .n_seqs = 1,
            .n_out = rows,
            .n_table = (PROMPT + rows + BLOCK - 1) / BLOCK,
            .token = token,
            .pos = pos,
            .seq = seq,
            .seqs = &one,
            .table = table,
            .kv_slot = kv_slot,
            .out_row = out_row,
            .want_best = true};
        const double cpu = cpu_ms();
        for (uint32_t i = 0; i < b->o.rounds; i++) {
            uint32_t best[16];
            const uint64_t start = clock_now(&b->clock);
            TRY(decoder_step(b->decoder, &s, e));
            TRY(decoder_read_best(b->decoder, best, e));
            v[i] = (double)(clock_now(&b->clock) - start) / 1e6;
        }
        const double middle = figures_median(v, b->o.rounds); /* and v is in order */
        printf("{\"shape\": \"%s\", \"weights\": \"%s\", \"rows\": %u, \"ms\": %.4f, \"ms_min\": %.4f, "
               "\"cpu_ms\": %.4f}\n",
            b->o.shape, dtype_name(b->o.weights), rows, middle, v[0], (cpu_ms() - cpu) / b->o.rounds);
    }
    return OK;
}

static bool set_option(struct options *o, const char *arg)
{
    static const char *const texts[] = {"edit", "random", "sure"};
    const char *eq = strchr(arg, '=');
    if (eq == NULL)
        return false;
    const struct str name = {arg, (size_t)(eq - arg)};
    const uint32_t n = (uint32_t)strtoul(eq + 1, NULL, 10);
    if (str_is(name, "shape"))
        o->shape = eq + 1;
    else if (str_is(name, "weights"))
        return dtype_by_name(str_of(eq + 1), &o->weights, NULL) == OK;
    else if (str_is(name, "streams"))
        o->streams = MIN(MAX(n, 1u), STREAMS_MAX);
    else if (str_is(name, "k"))
        o->k = MIN(MAX(n, 1u), (uint32_t)SPEC_K_MAX);
    else if (str_is(name, "tokens"))
        o->tokens = MAX(n, 8u);
    else if (str_is(name, "rounds"))
        o->rounds = MIN(MAX(n, 1u), ROUNDS_MAX);
    else if (str_is(name, "threads"))
        o->threads = n;
    else if (str_is(name, "accept"))
        o->accept = strtod(eq + 1, NULL);
    else if (str_is(name, "always"))
        o->always = n != 0;
    else if (str_is(name, "rows"))
        o->rows = n != 0;
    else if (str_is(name, "off"))
        o->only_off = n != 0;
    else if (str_is(name, "idle"))
        o->idle = n != 0;
    else if (str_is(name, "fake")) {
        const char *colon = strchr(eq, ':');
        o->is_fake = true;
        o->base_us = n;
        o->row_us = colon != NULL ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
    } else if (str_is(name, "device"))
        o->is_cuda = strcmp(eq + 1, "cuda") == 0;
    else if (str_is(name, "method"))
        o->method = strcmp(eq + 1, "coin") == 0 ? SPEC_DRAFT : SPEC_NGRAM;
    else if (str_is(name, "text")) {
        for (int i = 0; i < 3; i++)
            if (strcmp(eq + 1, texts[i]) == 0)
                o->text = (enum text_kind)i;
    } else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct error e = {0};
    b.o = (struct options){.shape = "llama-3.2-1b",
        .weights = DTYPE_Q4_0,
        .streams = 1,
        .k = 5,
        .tokens = 160,
        .rounds = 3,
        .accept = 0.8,
        .method = SPEC_NGRAM};
    for (int i = 1; i < argc; i++)
        if (!set_option(&b.o, argv[i])) {
            fprintf(stderr, "quern_speculative: %s is no option\n", argv[i]);
            return 2;
        }
    enum err err = write_jobs(&b, &e);
    if (err == OK)
        err = bench_open(&b, &e);
    if (err == OK)
        err = b.o.rows ? measure_rows(&b, &e) : b.o.idle ? measure_idle(&b, &e) : measure(&b, &e);
    if (err != OK) { /* requests may be out; the process ends anyway */
        fprintf(stderr, "quern_speculative: %s\n", e.text);
        return 1;
    }
    for (uint32_t i = 0; i < b.n_seats; i++) {
        engine_client_free(b.seats[i].client);
        engine_free(b.seats[i].engine);
    }
    decoder_close(b.decoder);
    dummy_free(b.dummy);
    mem_free(b.cfg);
    for (uint32_t i = 0; i < b.o.streams; i++)
        mem_free(b.jobs[i].script);
    return 0;
}
