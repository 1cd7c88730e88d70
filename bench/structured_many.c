/* What structured output costs where many streams decode at once: tokens a second of the whole engine with schemas
 * against none, by turns, over random weights in a real shape and a real vocabulary, on any device. Every stream has
 * its own length of prompt and its own seed; texts are noise that obeys the schema, and none ends before its last
 * token.
 *
 *     quern_structured_many --tokenizer TOKENIZER.json [--shape llama-3.1-8b] [--weights bf16]
 *                           [--device cpu|cuda|made-up:MICROSECONDS] [--streams 128] [--tokens 256] [--rounds 5]
 *                           [--temperature 1] [--check]
 *
 * Rows:
 *   none    nothing is asked of the text
 *   one     all streams obey one schema
 *   many    sixteen schemas, stream by stream: bounded and free strings, patterns, numbers, dates, choices
 *   keys    long keys, so that much is forced
 * A turn is counted from the moment when all streams have a token to the first end. "sampled" leaves out what was
 * forced. Of devices that are not waited for: "loop" is what plan, commit and sample take of a step on the engine's
 * thread, and "more" how much of the step that is beyond the row without a schema. "asleep" is for how long it waited
 * in there, in each step, until other threads had made the masks; the device computes meanwhile, and "loop" leaves it
 * out.
 *
 * The device made-up:8000 computes nothing and takes 8000 us for every step: for the loop's own figures, without a
 * card.
 *
 * --check ends with 1 when `one` or `many` is below 0.95 of none, when `more` is 3 % or above, or when masks take more
 * than 5 us in the mean or 50 us at the 99th percentile. */
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cpu/cpu.h"
#include "engine/engine.h"
#include "figures.h"
#include "made_up_device.h"
#include "model/dummy.h"
#include "text/text.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS_MAX 256u
#define ROUNDS_MAX  64u
#define PROMPT_MAX  512u
#define BLOCK       16u
#define SCHEMAS     16u
#define MASK_STEPS  500u /* of each schema, when masks are measured alone */

enum { SET_NONE, SET_ONE, SET_MANY, SET_KEYS, SETS };
static const char *const set_names[SETS] = {"none", "one", "many", "keys"};

struct options {
    const char *tokenizer, *shape;
    enum dtype weights;
    uint32_t streams, tokens, rounds;
    uint64_t made_up_ns; /* a step of a device that is not there; 0: a real one */
    float temperature;
    bool is_cuda, check;
};

struct sample {
    double rate, sampled, step_ms, loop_us, asleep_us, forced;
    uint64_t ids; /* of all texts: the same in every turn */
};

struct bench {
    struct options o;
    struct clock clock;
    char *json;
    struct tok *tok;
    struct tok_cutter *cutter;
    struct grammar_vocab *vocab;
    struct grammar *many[SCHEMAS], *keys;
    struct model_config *cfg;
    struct dummy *dummy;
    struct decoder *decoder;
    struct engine *engine;
    struct engine_client *client;
    bool is_late; /* the device is not waited for */
    uint32_t prompt[PROMPT_MAX];
    struct sample got[SETS][ROUNDS_MAX];
    struct engine_stats before, after;
};

/* ---- schemas ---- */

#define ARRAY_OF "{\"type\":\"array\",\"minItems\":5000,\"items\":{\"type\":\"object\",\"additionalProperties\":false,"

static const char keys_schema[] =
    ARRAY_OF "\"required\":[\"temperature_celsius\",\"wind_direction\",\"is_raining\",\"humidity_percent\"],"
             "\"properties\":{\"temperature_celsius\":{\"type\":\"integer\",\"minimum\":-40,\"maximum\":50},"
             "\"wind_direction\":{\"enum\":[\"north\",\"east\",\"south\",\"west\"]},"
             "\"is_raining\":{\"type\":\"boolean\"},"
             "\"humidity_percent\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}}}}";

/* What the members of schema i hold: three of these. */
static const char *const values[] = {
    "{\"type\":\"string\",\"minLength\":60}",
    "{\"type\":\"string\",\"maxLength\":40}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z0-9_-]{3,32}$\"}",
    "{\"type\":\"number\"}",
    "{\"type\":\"integer\",\"minimum\":1,\"maximum\":5000}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":12},\"minItems\":2,\"maxItems\":9}",
    "{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{\"field\":{\"type\":\"string\","
    "\"maxLength\":20},\"value\":{\"type\":[\"boolean\",\"number\"]}},\"required\":[\"field\",\"value\"],"
    "\"additionalProperties\":false}]}",
    "{\"enum\":[\"celsius\",\"fahrenheit\",\"kelvin\",\"rankine\"]}",
    "{}",
    "{\"type\":\"string\",\"format\":\"uuid\"}",
};

static void write_schema(uint32_t i, char *out, size_t cap)
{
    const uint32_t n = COUNT_OF(values);
    snprintf(out, cap,
        ARRAY_OF "\"required\":[\"a%u\",\"b%u\",\"c%u\"],\"properties\":{\"a%u\":%s,\"b%u\":%s,\"c%u\":%s}}}", i, i, i,
        i, values[i % n], i, values[(i * 3 + 1) % n], i, values[(i * 5 + 2) % n]);
}

static enum err compile_all(struct bench *b, struct error *e)
{
    char text[2048];
    const uint64_t start = clock_now(&b->clock);
    for (uint32_t i = 0; i < SCHEMAS; i++) {
        write_schema(i, text, sizeof text);
        const struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = str_of(text)};
        TRY(grammar_compile(&src, b->vocab, &b->many[i], e));
    }
    const struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = str_of(keys_schema)};
    TRY(grammar_compile(&src, b->vocab, &b->keys, e));
    printf("%u schemas compiled in %.2f ms each\n", SCHEMAS + 1,
        (double)(clock_now(&b->clock) - start) / 1e6 / (SCHEMAS + 1));
    return OK;
}

static struct grammar *grammar_of(struct bench *b, uint32_t set, uint32_t stream)
{
    return set == SET_NONE ? NULL : set == SET_ONE ? b->many[0] : set == SET_KEYS ? b->keys : b->many[stream % SCHEMAS];
}

/* ---- masks alone ---- */

static double thread_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint32_t pick(const uint64_t *mask, uint32_t vocab, uint64_t random)
{
    uint32_t id = (uint32_t)(random % vocab);
    while ((mask[id / 64] >> id % 64 & 1) == 0)
        id = (id + 1) % vocab;
    return id;
}

/* One thread, a random walk through each schema: mean and 99th percentile. */
static enum err measure_masks(struct bench *b, bool *good, struct error *e)
{
    const uint32_t vocab = b->cfg->vocab, n = SCHEMAS * MASK_STEPS;
    uint64_t *mask = mem_array((vocab + 63) / 64, sizeof *mask);
    struct grammar_walk *walk = mem_zalloc(grammar_walk_bytes());
    double *us = mem_array(n, sizeof *us), sum = 0;
    enum err err = mask != NULL && walk != NULL && us != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory to measure");
    for (uint32_t i = 0; i < n && err == OK; i++) {
        if (i % MASK_STEPS == 0)
            grammar_walk_init(walk, b->many[i / MASK_STEPS]);
        const double start = thread_us();
        (void)grammar_mask(walk, NULL, 0, mask);
        us[i] = thread_us() - start;
        sum += us[i];
        err = grammar_accept(
            walk, pick(mask, vocab, rng_u64((struct rng_key){.seed = 5, .index = i, .purpose = RNG_DUMMY})), e);
    }
    if (err == OK) {
        figures_sort(us, n);
        printf("masks alone, first use: mean %.2f us, median %.2f, p99 %.2f, max %.1f\n", sum / n, us[n / 2],
            us[n * 99 / 100], us[n - 1]);
        *good = *good && sum / n <= 5 && us[n * 99 / 100] <= 50;
    }
    mem_free(mask);
    mem_free(walk);
    mem_free(us);
    return err;
}

/* ---- opening ---- */

static enum err pick_ops(const struct options *o, const struct ops **out, struct error *e)
{
    *out = o->made_up_ns > 0 ? made_up_ops(o->made_up_ns) : cpu_ops();
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

static enum err open_text(struct bench *b, struct error *e)
{
    size_t n = 0;
    TRY(file_read_all(b->o.tokenizer, JSON_BYTES_MAX, &b->json, &n, e));
    TRY(tok_from_json((struct str){b->json, n}, (struct str){NULL, 0}, &b->tok, e));
    TRY(grammar_vocab_new(tok_vocab(b->tok), &b->vocab, e));
    TRY(tok_cutter_new(b->tok, &b->cutter, e));
    grammar_vocab_cutter(b->vocab, tok_cutter_cut, b->cutter);
    return OK;
}

static struct engine_options engine_options_of(struct bench *b)
{
    const struct options *o = &b->o;
    const uint32_t seq_blocks = (PROMPT_MAX + o->tokens + 64 + BLOCK - 1) / BLOCK;
    struct engine_options eo = {
        .sched = sched_options_default(), .clock = &b->clock, .requests_max = 2 * STREAMS_MAX, .vocab = b->cfg->vocab};
    eo.sched.max_num_seqs = o->streams;
    eo.sched.max_batched_tokens = o->is_cuda || o->made_up_ns > 0 ? 2048 : 256;
    eo.sched.out_max = MAX(o->streams, 256u);
    eo.sched.context_max = seq_blocks * BLOCK;
    eo.sched.block_tokens = BLOCK;
    eo.sched.queue_max = STREAMS_MAX;
    eo.sched.prefix_cache = true; /* prompts are computed once, in the turns that do not count */
    eo.kv = (struct kv_options){.n_blocks = (o->streams + 2) * seq_blocks * 2,
        .block_tokens = BLOCK,
        .seqs_max = sched_slots(&eo.sched),
        .seq_blocks_max = seq_blocks,
        .prefix_cache = true};
    return eo;
}

static enum err open_engine(struct bench *b, const struct ops *ops, struct error *e)
{
    const struct options *o = &b->o;
    struct engine_options eo = engine_options_of(b);
    const struct runner_limits l = engine_runner_limits(&eo.sched, &eo.kv);
    const struct decoder_options d = {.ops = ops,
        .rows_max = l.rows_max,
        .out_max = l.out_max,
        .seqs_max = l.seqs_max,
        .table_max = l.table_max,
        .context_max = eo.sched.context_max,
        .kv_dtype = o->weights == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F16,
        .block_tokens = BLOCK,
        .n_blocks = eo.kv.n_blocks};
    const struct weight_source src = dummy_source(b->dummy);
    struct runner *runner;
    TRY(decoder_open(&src, b->cfg, &d, &b->decoder, e));
    TRY(model_runner_open(b->decoder, &l, 0, &runner, e));
    b->is_late = runner->ops->depth > 0;
    eo.runner = runner;
    const enum err err = engine_new(&eo, &b->engine, e);
    if (err != OK) {
        runner_close(runner);
        return err;
    }
    return engine_client_new(b->engine, &b->client, e);
}

static enum err bench_open(struct bench *b, struct error *e)
{
    const struct ops *ops;
    clock_init(&b->clock);
    b->cfg = mem_zalloc(sizeof *b->cfg);
    if (b->cfg == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a model");
    TRY(pick_ops(&b->o, &ops, e));
    TRY(dummy_config(b->o.shape, b->cfg, e));
    TRY(open_text(b, e));
    if (b->o.made_up_ns > 0)
        b->cfg->n_layers = 1; /* nobody looks at them */
    b->cfg->vocab = (tok_vocab(b->tok)->n + 63) / 64 * 64;
    TRY(dummy_new(b->o.weights, 1, &b->dummy, e));
    if (b->o.is_cuda)
        dummy_share(b->dummy);
    for (uint32_t i = 0; i < PROMPT_MAX; i++)
        b->prompt[i] =
            (uint32_t)(rng_u64((struct rng_key){.seed = 9, .index = i, .purpose = RNG_DUMMY}) % tok_vocab(b->tok)->n);
    return open_engine(b, ops, e);
}

static void bench_close(struct bench *b)
{
    engine_client_free(b->client);
    engine_free(b->engine);
    decoder_close(b->decoder);
    dummy_free(b->dummy);
    for (uint32_t i = 0; i < SCHEMAS; i++)
        grammar_unref(b->many[i]);
    grammar_unref(b->keys);
    grammar_vocab_free(b->vocab);
    tok_cutter_free(b->cutter);
    tok_free(b->tok);
    mem_free(b->json);
    mem_free(b->cfg);
}

/* ---- turns ---- */

static enum err submit(struct bench *b, uint32_t i, struct grammar *g, struct request **out, struct error *e)
{
    struct request_options o = {.prompt = b->prompt,
        .n_prompt = 32 + i * 29 % (PROMPT_MAX - 32),
        .max_tokens = b->o.tokens,
        .n_choices = 1,
        .sample = sample_params_default(),
        .vocab_size = b->cfg->vocab,
        .salt = i,
        .grammar = g};
    uint64_t retry_ms;
    o.sample.temperature = b->o.temperature;
    o.sample.seed = i;
    if (g != NULL)
        grammar_ref(g);
    const enum err err = request_new(&o, out, e);
    if (err != OK) {
        grammar_unref(g);
        return err;
    }
    return engine_submit(b->client, *out, &retry_ms, e);
}

static uint64_t count_out(struct request *const *r, uint32_t n, bool *all_began)
{
    uint64_t out = 0;
    *all_began = true;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_out = atomic_load(&r[i]->choices[0].n_out);
        *all_began = *all_began && n_out > 0;
        out += n_out;
    }
    return out;
}

static struct sample sample_of(const struct bench *b, uint64_t made, uint64_t ns)
{
    const struct engine_stats *x = &b->before, *y = &b->after;
    const double steps = (double)MAX(y->steps - x->steps, (uint64_t)1), s = (double)ns / 1e9;
    const double jumped = (double)(y->sched.jumped_tokens - x->sched.jumped_tokens);
    const double asleep = (double)(y->mask_wait_ns - x->mask_wait_ns) / 1e3;
    const double loop =
        (double)(y->plan_ns - x->plan_ns + y->commit_ns - x->commit_ns + y->sample_ns - x->sample_ns) / 1e3 - asleep;
    return (struct sample){.rate = (double)made / s,
        .sampled = ((double)made - jumped) / s,
        .forced = jumped / (double)made,
        .step_ms = (double)ns / 1e6 / steps,
        .loop_us = loop / steps,
        .asleep_us = asleep / steps};
}

static enum err check_end(const struct bench *b, const struct request *r, struct error *e)
{
    const struct choice *c = &r->choices[0];
    if (engine_state(b->engine) == ENGINE_FAILED) {
        engine_error(b->engine, e);
        return e->code;
    }
    const uint32_t n = atomic_load(&c->n_out);
    return n == b->o.tokens ? OK : FAIL(e, ERR_INTERNAL, "a stream ended after %u tokens of %u", n, b->o.tokens);
}

/* All streams once. */
static enum err run_turn(struct bench *b, uint32_t set, struct sample *got, struct error *e)
{
    const uint32_t n = b->o.streams;
    struct request *r[STREAMS_MAX];
    struct wake *w = engine_client_wake(b->client);
    uint64_t start = 0, at_start = 0, end = 0, at_end = 0, ids = 0;
    uint32_t back = 0;
    enum err err = OK;
    for (uint32_t i = 0; i < n; i++)
        TRY(submit(b, i, grammar_of(b, set, i), &r[i], e));
    while (back < n) {
        struct notice note;
        bool all_began;
        while (engine_client_next(b->client, &note) == OK) {
            if (!note.is_final)
                continue;
            if (back++ == 0) {
                end = clock_now(&b->clock);
                at_end = count_out(r, n, &all_began);
                engine_stats(b->engine, &b->after);
            }
            err = err == OK ? check_end(b, note.request, e) : err;
        }
        if (start == 0) {
            const uint64_t out = count_out(r, n, &all_began);
            if (all_began) {
                start = clock_now(&b->clock);
                at_start = out;
                engine_stats(b->engine, &b->before);
            }
        }
        wake_arm(w);
        if (back < n && !engine_client_has(b->client))
            (void)wake_wait(w, NS_PER_S);
        else
            wake_disarm(w);
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; err == OK && k < b->o.tokens; k++)
            ids = (ids ^ r[i]->choices[0].ids[k]) * UINT64_C(0x9E3779B97F4A7C15);
        request_free(r[i]);
    }
    if (err == OK && end <= start)
        return FAIL(e, ERR_INVALID, "a stream ended before the last began: more --tokens are needed");
    *got = sample_of(b, at_end - at_start, end - start);
    got->ids = ids;
    return err;
}

static double median(const struct bench *b, uint32_t set, double (*of)(const struct bench *, uint32_t, uint32_t))
{
    double v[ROUNDS_MAX];
    for (uint32_t r = 0; r < b->o.rounds; r++)
        v[r] = of(b, set, r);
    return figures_median(v, b->o.rounds);
}

#define OF(name, what)                                                                                                 \
    static double name(const struct bench *b, uint32_t set, uint32_t r)                                                \
    {                                                                                                                  \
        const struct sample *x = &b->got[set][r], *none = &b->got[SET_NONE][r];                                        \
        (void)none;                                                                                                    \
        return what;                                                                                                   \
    }
OF(rate_of, x->rate)
OF(ratio_of, x->rate / none->rate)
OF(sampled_of, x->sampled / none->sampled)
OF(step_of, x->step_ms)
OF(loop_of, x->loop_us)
OF(asleep_of, x->asleep_us)
OF(more_of, (x->loop_us - none->loop_us) / 1e3 / x->step_ms)
OF(forced_of, x->forced)

static enum err measure(struct bench *b, bool *good, struct error *e)
{
    struct sample dropped;
    for (uint32_t set = 0; set < SETS; set++) /* warm: prompts, graphs, masks */
        TRY(run_turn(b, set, &dropped, e));
    for (uint32_t r = 0; r < b->o.rounds; r++)
        for (uint32_t i = 0; i < SETS; i++) {
            const uint32_t set = (i + r) % SETS;
            TRY(run_turn(b, set, &b->got[set][r], e));
            if (b->got[set][r].ids != b->got[set][0].ids)
                return FAIL(e, ERR_INTERNAL, "%s: round %u wrote another text than round 0", set_names[set], r);
        }
    printf("%u streams, %u tokens each, vocabulary %u, %u rounds by turns, medians:\n%-6s %10s %8s %8s %8s %8s %9s %9s "
           "%7s\n",
        b->o.streams, b->o.tokens, b->cfg->vocab, b->o.rounds, "", "tokens/s", "against", "sampled", "forced",
        "step ms", "loop us", "asleep us", "more");
    for (uint32_t set = 0; set < SETS; set++) {
        const double ratio = median(b, set, ratio_of), more = median(b, set, more_of);
        printf("%-6s %10.1f %8.3f %8.3f %7.1f%% %8.3f", set_names[set], median(b, set, rate_of), ratio,
            median(b, set, sampled_of), 100 * median(b, set, forced_of), median(b, set, step_of));
        if (b->is_late)
            printf(" %9.1f %9.1f %6.2f%%\n", median(b, set, loop_of), median(b, set, asleep_of), 100 * more);
        else
            printf(" %9s %9s %7s\n", "-", "-", "-");
        if (set == SET_ONE || set == SET_MANY)
            *good = *good && ratio >= 0.95 && (!b->is_late || more < 0.03);
    }
    return OK;
}

static bool set_option(struct options *o, const char *name, const char *value)
{
    const uint32_t n = (uint32_t)strtoul(value, NULL, 10);
    if (strcmp(name, "--tokenizer") == 0)
        o->tokenizer = value;
    else if (strcmp(name, "--shape") == 0)
        o->shape = value;
    else if (strcmp(name, "--weights") == 0)
        return dtype_by_name(str_of(value), &o->weights, NULL) == OK;
    else if (strcmp(name, "--device") == 0) {
        o->is_cuda = strcmp(value, "cuda") == 0;
        o->made_up_ns = strncmp(value, "made-up:", 8) == 0 ? strtoul(value + 8, NULL, 10) * 1000 : 0;
        return o->is_cuda || o->made_up_ns > 0 || strcmp(value, "cpu") == 0;
    } else if (strcmp(name, "--streams") == 0)
        o->streams = n;
    else if (strcmp(name, "--tokens") == 0)
        o->tokens = n;
    else if (strcmp(name, "--rounds") == 0)
        o->rounds = n;
    else if (strcmp(name, "--temperature") == 0)
        o->temperature = strtof(value, NULL);
    else
        return false;
    return o->streams > 0 && o->streams <= STREAMS_MAX && o->tokens > 1 && o->rounds > 0 && o->rounds <= ROUNDS_MAX;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct error e = {0};
    bool good = true;
    b.o = (struct options){
        .shape = "llama-3.1-8b", .weights = DTYPE_BF16, .streams = 128, .tokens = 256, .rounds = 5, .temperature = 1};
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--check") == 0)
            b.o.check = true;
        else if (i + 1 == argc || !set_option(&b.o, argv[i], argv[i + 1])) {
            fprintf(stderr, "quern_structured_many: %s is no option, or its value is out of range\n", argv[i]);
            return 2;
        } else
            i++;
    if (b.o.tokenizer == NULL) {
        fprintf(stderr, "usage: quern_structured_many --tokenizer TOKENIZER.json [options]\n");
        return 2;
    }
    enum err err = bench_open(&b, &e);
    if (err == OK)
        err = compile_all(&b, &e);
    if (err == OK)
        err = measure_masks(&b, &good, &e);
    if (err == OK)
        err = measure(&b, &good, &e);
    if (err != OK) { /* requests may be out; the process ends anyway */
        fprintf(stderr, "quern_structured_many: %s\n", e.text);
        return 1;
    }
    bench_close(&b);
    return b.o.check && !good;
}
