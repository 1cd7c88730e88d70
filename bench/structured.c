/* What structured output costs: decode speed with a schema against none, on a real model, in one process and by turns,
 * so that a busy machine disturbs both alike, and also per second of processor time, which it disturbs little; how long
 * grammars take to compile and masks to make; and the share of a step that the loop's own thread spends on them.
 *
 *     quern_structured MODEL [--rounds N] [--tokens N] */
#include "base/mem.h"
#include "cpu/cpu.h"
#include "engine/serving.h"
#include "figures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define STREAMS_MAX 16
#define ROUNDS_MAX  64

/* Free text inside a fixed frame: the model chooses nearly every token. */
static const char records[] =
    "{\"type\":\"array\",\"minItems\":200,\"items\":{\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"text\"],\"properties\":{\"text\":{\"type\":\"string\",\"minLength\":200}}}}";
/* Long keys and short values: most of it is forced. */
static const char keys[] =
    "{\"type\":\"array\",\"minItems\":200,\"items\":{\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"temperature_celsius\",\"wind_direction\",\"is_raining\",\"humidity_percent\"],\"properties\":{"
    "\"temperature_celsius\":{\"type\":\"integer\",\"minimum\":-40,\"maximum\":50},"
    "\"wind_direction\":{\"enum\":[\"north\",\"east\",\"south\",\"west\"]},\"is_raining\":{\"type\":\"boolean\"},"
    "\"humidity_percent\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":100}}}}";
/* What agents send. */
static const char tool[] =
    "{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\",\"description\":\"what to look for\"},"
    "\"path\":{\"type\":\"string\",\"pattern\":\"^/[a-z/]*$\"},\"max_results\":{\"type\":\"integer\",\"minimum\":1,"
    "\"maximum\":100},\"kinds\":{\"type\":\"array\",\"items\":{\"enum\":[\"file\",\"folder\",\"link\"]},\"maxItems\":3}"
    ","
    "\"since\":{\"type\":\"string\",\"format\":\"date-time\"},\"filter\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":"
    "\"object\",\"properties\":{\"field\":{\"type\":\"string\"},\"value\":{\"type\":[\"string\",\"number\"]}},"
    "\"required\":[\"field\",\"value\"],\"additionalProperties\":false}]}},\"required\":[\"query\",\"filter\"],"
    "\"additionalProperties\":false}";

static const struct {
    const char *name;
    enum grammar_kind kind;
    const char *text;
} sources[] = {
    {"free text in records", GRAMMAR_JSON_SCHEMA, records},
    {"long keys", GRAMMAR_JSON_SCHEMA, keys},
    {"a tool's schema", GRAMMAR_JSON_SCHEMA, tool},
    {"any object", GRAMMAR_JSON_OBJECT, ""},
    {"a regex", GRAMMAR_REGEX, "[A-Z][a-z]+( [A-Z][a-z]+)*, born [0-9]{4}-[0-9]{2}-[0-9]{2}"},
};

struct bench {
    struct serving *s;
    struct engine_client *client;
    struct grammar *grammars[COUNT_OF(sources)];
    uint32_t *prompt, n_prompt, tokens;
    struct engine_stats before, after;
};

struct sample {
    double tokens_per_s, tokens_per_cpu_s, loop_share, commit_us;
    uint64_t jumped;
};

static double cpu_seconds(void)
{
    struct rusage u;
    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static enum err submit(struct bench *b, uint32_t i, struct grammar *g, struct error *e)
{
    const struct serving *s = b->s;
    struct request_options o = {.prompt = b->prompt,
        .n_prompt = b->n_prompt,
        .max_tokens = b->tokens,
        .n_choices = 1,
        .sample = sample_params_default(),
        .banned_ids = s->stop_ids,
        .n_banned_ids = s->n_stop_ids,
        .vocab_size = s->config.vocab,
        .salt = i,
        .grammar = g};
    struct request *r;
    uint64_t retry_ms;
    o.sample.temperature = 0.7f;
    o.sample.seed = i;
    if (g != NULL)
        grammar_ref(g);
    enum err err = request_new(&o, &r, e);
    if (err != OK) {
        grammar_unref(g);
        return err;
    }
    err = engine_submit(b->client, r, &retry_ms, e);
    if (err != OK)
        request_free(r);
    return err;
}

/* Tokens a second of n streams, from the first token of the last to the first end. */
static enum err run(struct bench *b, uint32_t n, struct grammar *g, struct sample *out, struct error *e)
{
    uint32_t back = 0;
    uint64_t made = 0;
    double first = 0, last = 0;
    engine_stats(b->s->engine, &b->before);
    const double cpu = cpu_seconds();
    for (uint32_t i = 0; i < n; i++)
        TRY(submit(b, i, g, e));
    while (back < n) {
        struct notice note;
        struct wake *w = engine_client_wake(b->client);
        while (engine_client_next(b->client, &note) == OK) {
            if (!note.is_final)
                continue;
            const struct request *r = note.request;
            const double start = (double)r->t_first_token / 1e9, end = (double)r->t_end / 1e9;
            first = back == 0 ? start : MIN(first, start);
            last = MAX(last, end);
            made += atomic_load(&r->choices[0].n_out) - 1;
            request_free(note.request);
            back++;
        }
        wake_arm(w);
        if (back < n && !engine_client_has(b->client))
            (void)wake_wait(w, NS_PER_S);
        else
            wake_disarm(w);
    }
    engine_stats(b->s->engine, &b->after);
    const double steps = (double)(b->after.steps - b->before.steps);
    const double commit = (double)(b->after.commit_ns - b->before.commit_ns);
    const double busy = (double)(b->after.busy_ns - b->before.busy_ns);
    *out = (struct sample){.tokens_per_s = (double)made / (last - first),
        .tokens_per_cpu_s = (double)made / (cpu_seconds() - cpu),
        .loop_share = (commit + (double)(b->after.plan_ns - b->before.plan_ns)) / busy,
        .commit_us = commit / steps / 1e3,
        .jumped = b->after.sched.jumped_tokens - b->before.sched.jumped_tokens};
    return OK;
}

static enum err compare(struct bench *b, uint32_t n_streams, uint32_t rounds, struct error *e)
{
    static const int which[] = {-1, 0, 1};
    double speed[COUNT_OF(which)][ROUNDS_MAX], share[COUNT_OF(which)][ROUNDS_MAX], commit[COUNT_OF(which)][ROUNDS_MAX];
    double ratio[COUNT_OF(which)][ROUNDS_MAX], cpu[COUNT_OF(which)][ROUNDS_MAX], cpu_of_none = 1;
    uint64_t jumped[COUNT_OF(which)] = {0};
    for (uint32_t r = 0; r <= rounds; r++) /* the first is for warming up */
        for (size_t k = 0; k < COUNT_OF(which); k++) {
            struct sample x;
            TRY(run(b, n_streams, which[k] < 0 ? NULL : b->grammars[which[k]], &x, e));
            if (r == 0)
                continue;
            speed[k][r - 1] = x.tokens_per_s;
            cpu_of_none = k == 0 ? x.tokens_per_cpu_s : cpu_of_none;
            cpu[k][r - 1] = x.tokens_per_cpu_s / cpu_of_none;
            ratio[k][r - 1] = x.tokens_per_s / speed[0][r - 1];
            share[k][r - 1] = x.loop_share;
            commit[k][r - 1] = x.commit_us;
            jumped[k] += x.jumped;
        }
    for (size_t k = 0; k < COUNT_OF(which); k++)
        printf("%7u  %-22s %9.1f %8.3f %8.3f %9.1f%% %10.2f%% %10.1f\n", n_streams,
            which[k] < 0 ? "unconstrained" : sources[which[k]].name, figures_median(speed[k], rounds),
            figures_median(ratio[k], rounds), figures_median(cpu[k], rounds),
            100.0 * (double)jumped[k] / ((double)rounds * n_streams * b->tokens),
            100.0 * figures_median(share[k], rounds), figures_median(commit[k], rounds));
    return OK;
}

/* Masks along an answer of the grammar, made by a random walk. */
static enum err measure_masks(struct bench *b, struct grammar *g, const char *name, struct error *e)
{
    const uint32_t vocab = b->s->config.vocab, words = (vocab + 63) / 64, n = 2000;
    uint64_t *mask = mem_array(words, sizeof *mask), state = 1;
    struct grammar_walk *walk = mem_zalloc(grammar_walk_bytes());
    double *us = mem_array(n, sizeof *us), sum = 0, step_ns = 0;
    enum err err = mask != NULL && walk != NULL && us != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory to measure");
    if (err == OK)
        grammar_walk_init(walk, g);
    for (uint32_t i = 0; i < n && err == OK; i++) {
        uint64_t start = clock_now(b->s->clock);
        const uint32_t any = grammar_mask(walk, NULL, 0, mask);
        us[i] = (double)(clock_now(b->s->clock) - start) / 1e3;
        sum += us[i];
        if (any == 0) {
            grammar_walk_init(walk, g);
            continue;
        }
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t id = (uint32_t)(state >> 33) % vocab, jump;
        while ((mask[id / 64] >> id % 64 & 1) == 0)
            id = (id + 1) % vocab;
        start = clock_now(b->s->clock);
        err = grammar_accept(walk, id, e);
        (void)grammar_jump(walk, &jump);
        step_ns += (double)(clock_now(b->s->clock) - start);
    }
    if (err == OK) {
        figures_sort(us, n);
        printf("  %-22s mask mean %6.2f us, median %6.2f, p99 %7.2f, max %7.1f; accept and jump %5.2f us\n", name,
            sum / n, us[n / 2], us[n * 99 / 100], us[n - 1], step_ns / n / 1e3);
    }
    mem_free(mask);
    mem_free(walk);
    mem_free(us);
    return err;
}

static enum err compile_all(struct bench *b, struct error *e)
{
    printf("compiling, for a vocabulary of %u:\n", b->s->config.vocab);
    for (size_t i = 0; i < COUNT_OF(sources); i++) {
        const struct grammar_source src = {.kind = sources[i].kind, .text = str_of(sources[i].text)};
        double ms[7];
        for (size_t k = 0; k < COUNT_OF(ms); k++) {
            grammar_unref(b->grammars[i]);
            const uint64_t start = clock_now(b->s->clock);
            TRY(grammar_compile(&src, b->s->grammar_vocab, &b->grammars[i], e));
            ms[k] = (double)(clock_now(b->s->clock) - start) / 1e6;
        }
        printf("  %-22s %6.2f ms, %7.1f KB\n", sources[i].name, figures_median(ms, COUNT_OF(ms)),
            (double)grammar_bytes(b->grammars[i]) / 1024);
    }
    return OK;
}

static enum err bench(const char *path, uint32_t rounds, uint32_t tokens, struct error *e)
{
    static struct bench b;
    struct serving_options o = {.path = path, .kv_dtype = DTYPE_F16, .sched = serving_sched_default(NULL)};
    struct tok_ctx *ctx = NULL;
    struct tok_ids ids;
    b.s = mem_zalloc(sizeof *b.s);
    if (b.s == NULL)
        return FAIL(e, ERR_NOMEM, "no memory");
    o.sched.max_num_seqs = STREAMS_MAX;
    enum err err = serving_open(b.s, &o, e);
    if (err == OK)
        err = engine_client_new(b.s->engine, &b.client, e);
    if (err == OK)
        err = tok_ctx_new(&ctx, e);
    if (err == OK)
        err = tok_encode_template(b.s->tok, ctx, STR("Tell me about the weather of the last days:"), true, &ids, e);
    if (err == OK) {
        b.prompt = mem_array(ids.n, sizeof *b.prompt);
        memcpy(b.prompt, ids.p, ids.n * sizeof *b.prompt);
        b.n_prompt = (uint32_t)ids.n;
        b.tokens = tokens;
        err = compile_all(&b, e);
    }
    if (err == OK)
        printf("making masks:\n");
    for (size_t i = 0; i < COUNT_OF(sources) && err == OK; i++)
        err = measure_masks(&b, b.grammars[i], sources[i].name, e);
    if (err == OK)
        printf("decoding %u tokens, %u rounds by turns, medians:\nstreams  %-22s %9s %8s %8s %10s %11s %10s\n", tokens,
            rounds, "", "tokens/s", "against", "by cpu", "forced", "loop share", "commit us");
    for (uint32_t n = 1; n <= STREAMS_MAX && err == OK; n *= STREAMS_MAX)
        err = compare(&b, n, rounds, e);
    for (size_t i = 0; i < COUNT_OF(sources); i++)
        grammar_unref(b.grammars[i]);
    mem_free(b.prompt);
    tok_ctx_free(ctx);
    engine_client_free(b.client);
    serving_close(b.s);
    mem_free(b.s);
    return err;
}

int main(int argc, char **argv)
{
    uint32_t rounds = 9, tokens = 128;
    struct error e = {0};
    for (int i = 2; i + 1 < argc; i += 2)
        if (strcmp(argv[i], "--rounds") == 0)
            rounds = MIN((uint32_t)strtoul(argv[i + 1], NULL, 10), (uint32_t)ROUNDS_MAX);
        else if (strcmp(argv[i], "--tokens") == 0)
            tokens = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    if (argc < 2 || rounds == 0 || tokens < 2) {
        fprintf(stderr, "usage: quern_structured MODEL.gguf [--rounds N] [--tokens N]\n");
        return 2;
    }
    if (bench(argv[1], rounds, tokens, &e) != OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    return 0;
}
