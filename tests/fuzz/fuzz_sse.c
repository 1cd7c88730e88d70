/* The writer of streams under any tokens: whatever bytes a model says, in whatever pieces, a stream is events of one
 * line each with an id that counts, each line is valid JSON, the texts of all of them are the text of all tokens, and
 * [DONE] comes last and once. The events are read where a resumable stream keeps them.
 *
 * Input: six bytes of choices, then tokens: a byte is the token of that byte. */
#include "api/generate.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

#define EOS        256u
#define TOKENS_MAX 600

static struct server server;
static struct serving serving;
static struct net net;
static struct clock machine;

static void check(bool ok)
{
    if (!ok)
        __builtin_trap();
}

/* One token for each byte, and an end. */
static void make_tokenizer(void)
{
    struct buf b;
    struct error e = {0};
    buf_init(&b, MIB);
    buf_add(&b, STR("{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<eos>\",\"single_word\":false,"
                    "\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,"
                    "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
                    "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                    "\"fuse_unk\":false,\"byte_fallback\":true,\"vocab\":{"));
    for (unsigned i = 0; i < 256; i++)
        buf_addf(&b, "\"<0x%02X>\":%u,", i, i);
    buf_add(&b, STR("\"<eos>\":256},\"merges\":[]}}"));
    check(tok_from_json(buf_str(&b), STR(""), &serving.tok, &e) == OK);
    buf_fini(&b);
}

static void set_up(void)
{
    struct error e = {0};
    if (serving.tok != NULL)
        return;
    make_tokenizer();
    clock_init(&machine);
    serving.config.vocab = EOS + 1;
    serving.fit.context = 4096;
    server.o.clock = &machine;
    server.serving = &serving;
    snprintf(server.names[0], sizeof server.names[0], "m");
    snprintf(server.fingerprint, sizeof server.fingerprint, "f");
    check(keys_init(&server.keys, &e) == OK && pthread_mutex_init(&server.replays_lock, NULL) == 0);
    net.s = &server;
    buf_init(&net.scratch, SSE_EVENT_BYTES_MAX);
    buf_init(&net.text, SSE_EVENT_BYTES_MAX);
}

static void read_choices(const unsigned char *in, struct fields *f)
{
    fields_init(f, (struct fields_model){.generation = &serving.config.generation, .vocab = EOS + 1, .context = 4096});
    f->sample = sample_params_default();
    f->stream = true;
    f->n = 1 + in[0] % 3;
    f->include_usage = in[1] & 1;
    f->continuous_usage = in[1] & 2;
    f->include_times = in[1] & 4;
    f->want_logprobs = in[1] & 8;
    f->n_top = f->want_logprobs ? in[2] % 4 : 0;
    f->return_token_ids = in[1] & 16;
    f->tokens_as_ids = in[1] & 32;
    f->include_stop = in[1] & 64;
    f->stream_interval = 1 + in[3] % 5;
    f->max_tokens = TOKENS_MAX;
    f->min_tokens = in[4] % 8;
    static const char *const stops[] = {"\n\n", "ab", "\xE4\xB8\xAD"};
    for (; f->n_stops < in[5] % 4u; f->n_stops++)
        f->stops[f->n_stops] = str_of(stops[f->n_stops]);
}

/* As the scheduler commits a token. */
static bool say(struct request *r, uint32_t k, uint32_t id, bool is_last)
{
    struct choice *c = &r->choices[k];
    const uint32_t n = atomic_load(&c->n_out);
    if (atomic_load(&c->end) != END_NONE)
        return false;
    c->ids[n] = id;
    if (c->logprobs != NULL)
        c->logprobs[n] = -(float)id / 7.0f;
    for (uint32_t i = 0; c->top != NULL && i < r->o.n_top; i++)
        c->top[(size_t)n * r->o.n_top + i] = (struct token_logprob){1 + (id + i * 77) % (EOS - 1), -(float)i};
    atomic_store(&c->t_token, n + 1);
    const enum req_end end = id == EOS                                                                   ? END_EOS
                             : detok_feed(&c->stop_state, id, NULL, NULL) == OK && c->stop_state.stopped ? END_STOP
                             : is_last || n + 1 == r->o.max_tokens                                       ? END_LENGTH
                                                                                                         : END_NONE;
    c->stop_index = c->stop_state.stop_index;
    atomic_store(&c->n_out, n + 1);
    atomic_store(&c->end, (int)end);
    return true;
}

/* What the choice's tokens read as in one piece. */
static void text_of(const struct request *r, uint32_t k, bool include_stop, struct buf *out)
{
    const struct choice *c = &r->choices[k];
    struct detok d;
    detok_init(&d, tok_vocab(serving.tok), tok_lead_rule(serving.tok), r->o.stops,
        (struct detok_opts){.continues = true, .include_stop = include_stop, .min_ids = r->o.min_tokens});
    for (uint32_t i = 0; i < atomic_load(&c->n_out); i++)
        check(detok_feed(&d, c->ids[i], out, NULL) == OK);
    check(detok_end(&d, out, NULL) == OK);
}

/* One event; true for the last. */
static bool read_event(struct str event, uint64_t number, struct buf *texts)
{
    char id[40];
    const int n_id = snprintf(id, sizeof id, "id: %llu\ndata: ", (unsigned long long)number);
    check(event.n > (size_t)n_id && memcmp(event.p, id, (size_t)n_id) == 0 && utf8_is_valid(event));
    const struct str body = {event.p + n_id, event.n - (size_t)n_id};
    check(memchr(body.p, '\n', body.n) == NULL && memchr(body.p, '\r', body.n) == NULL);
    if (str_is(body, "[DONE]"))
        return true;
    json_t *doc = NULL;
    check(json_parse(body, &doc, NULL) == OK && json_object_get(doc, "error") == NULL);
    const json_t *choice = json_array_get(json_object_get(doc, "choices"), 0);
    if (choice != NULL) {
        const json_int_t k = json_integer_value(json_object_get(choice, "index"));
        const json_t *delta = json_object_get(choice, "delta");
        const json_t *text = delta != NULL ? json_object_get(delta, "content") : json_object_get(choice, "text");
        check(k >= 0 && k < 3);
        buf_add(&texts[k], (struct str){json_string_value(text), json_string_length(text)});
    }
    json_decref(doc);
    return false;
}

static void read_events(struct str all, struct buf *texts)
{
    uint64_t number = 0;
    bool is_over = false;
    while (all.n > 0) {
        const char *end = memmem(all.p, all.n, "\n\n", 2);
        check(end != NULL && !is_over);
        is_over = read_event((struct str){all.p, (size_t)(end - all.p)}, number++, texts);
        all = (struct str){end + 2, all.n - (size_t)(end + 2 - all.p)};
    }
    check(is_over);
}

static void stream(const unsigned char *in, const unsigned char *ids, size_t n, const struct fields *f)
{
    const uint32_t prompt[] = {65, 66};
    struct api_error ae = {0};
    struct call *c = mem_zalloc(sizeof *c);
    struct buf want[3], got[3];
    check(c != NULL);
    *c = (struct call){.net = &net, .s = &server, .left = true, .status = 200};
    net.calls = c;
    struct generation *g = generation_new(c, in[0] & 128 ? GEN_CHAT : GEN_COMPLETION, f, 1, &ae);
    check(g != NULL && (g->replay = replay_new(&server, g->id, 0)) != NULL && generation_prompt(g, f, prompt, 2, &ae));
    struct request *r = g->parts[0].r;
    r->o.read_window = 0; /* no engine is there to be woken */
    g->parts[0].is_back = false;
    c->gen = g;
    for (size_t i = 0; i < n; i++) {
        bool is_any = false;
        /* with log-probabilities a token may become a key, and the parser here knows no NUL in keys */
        const uint32_t id = ids[i] == 0 && f->want_logprobs ? 1 : ids[i];
        for (uint32_t k = 0; k < f->n; k++)
            is_any |= say(r, k, i + 1 == n && in[5] & 128 ? EOS : id, i + 1 == n);
        if (!is_any)
            break;
        if (i % (1 + in[3] / 32) == 0)
            generation_notice(r, false);
    }
    for (uint32_t k = 0; k < 3; k++) {
        buf_init(&want[k], MIB);
        buf_init(&got[k], MIB);
        if (k < f->n)
            text_of(r, k, f->include_stop, &want[k]);
    }
    generation_notice(r, true); /* the generation and its call are gone */
    read_events(replay_events(server.replays), got);
    for (uint32_t k = 0; k < 3; k++) {
        check(got[k].n == want[k].n && (got[k].n == 0 || memcmp(got[k].p, want[k].p, got[k].n) == 0));
        buf_fini(&want[k]);
        buf_fini(&got[k]);
    }
    replays_free(&server);
    server.n_replays = 0;
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    if (n < 7)
        return 0;
    set_up();
    struct fields *f = mem_zalloc(sizeof *f);
    check(f != NULL);
    read_choices(bytes, f);
    stream(bytes, bytes + 6, MIN(n - 6, (size_t)TOKENS_MAX), f);
    fields_fini(f);
    mem_free(f);
    return 0;
}
