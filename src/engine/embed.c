/* The embedding API; see include/quern.h. A thin layer: serving.h opens, engine.h computes, and a client's own thread
 * makes text of ids here, as the server's network threads do.
 *
 * A struct quern_request wraps a struct request with what its text needs. Events are made on demand: a notice says that
 * a request has news, and quern_poll then walks over its answers, one event each. */
#include "quern.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"
#include "engine/serving.h"
#include "hub/hub.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define EVENT_TEXT_MAX (16 * MIB) /* of one event; a reader that comes late gets it all at once */

struct quern {
    struct serving serving;
};

struct answer { /* the client's side of one choice */
    struct detok detok;
    uint32_t n_seen;
    bool is_done; /* its last event was given */
};

struct quern_request {
    struct request *r;
    struct quern_request *next; /* of the client's */
    void *user;
    struct answer *answers; /* [n_choices] */
};

struct quern_client {
    struct quern *q;
    struct engine_client *ec;
    struct tok_ctx *tok_ctx;
    struct chat_output rendered;
    struct buf text;
    struct quern_request *all;     /* submitted and not yet gone */
    struct quern_request *current; /* whose answers are being looked at */
    uint32_t at;                   /* which answer comes next */
    bool current_is_final;
    struct quern_request *gone; /* given its last event: freed by the next call */
};

static int failed(const struct error *from, enum err code, struct quern_error *e)
{
    static const int codes[ERR_COUNT] = {[ERR_INVALID] = QUERN_INVALID,
        [ERR_FORMAT] = QUERN_INVALID,
        [ERR_UNSUPPORTED] = QUERN_UNSUPPORTED,
        [ERR_LIMIT] = QUERN_LIMIT,
        [ERR_NOT_FOUND] = QUERN_NOT_FOUND,
        [ERR_EXISTS] = QUERN_IO,
        [ERR_DENIED] = QUERN_IO,
        [ERR_IO] = QUERN_IO,
        [ERR_NETWORK] = QUERN_IO,
        [ERR_HASH] = QUERN_IO,
        [ERR_NOMEM] = QUERN_NOMEM,
        [ERR_AGAIN] = QUERN_BUSY,
        [ERR_CANCELLED] = QUERN_STOPPED,
        [ERR_INTERNAL] = QUERN_FAILED};
    if (e != NULL && e->code == QUERN_OK) {
        e->code = codes[code];
        snprintf(e->text, sizeof e->text, "%s", from->text[0] != '\0' ? from->text : err_phrase(code));
    }
    return codes[code];
}

const char *quern_version(void)
{
    return QUERN_VERSION;
}

/* ---- models -------------------------------------------------------------------------------------------------------
 */

struct quern_options quern_options_default(void)
{
    return (struct quern_options){.prefix_cache = 1, .swap_bytes = 256 * MIB};
}

static enum err resolve(const char *name, char *path, struct error *e)
{
    struct hub *hub;
    struct hub_options ho;
    hub_options_init(&ho);
    ho.offline = true;
    TRY(hub_open(&hub, &ho, e));
    const enum err err = hub_resolve(hub, name, path, e);
    hub_close(hub);
    return err;
}

int quern_open(const struct quern_options *o, struct quern **out, struct quern_error *e)
{
    struct error why = {0};
    char path[PATH_BYTES_MAX];
    *out = NULL;
    struct quern *q = mem_aligned(CACHE_LINE, sizeof *q);
    if (q == NULL)
        return failed(&why, ERR_NOMEM, e);
    memset(q, 0, sizeof *q);
    struct serving_options so = {.path = path,
        .threads = o->threads,
        .max_model_len = o->context,
        .kv_dtype = FIT_KV_AUTO,
        .n_blocks = o->kv_blocks,
        .swap_bytes = o->swap_bytes,
        .sched = serving_sched_default(NULL),
        .record_path = o->record_path};
    so.sched.prefix_cache = o->prefix_cache != 0;
    if (o->max_sequences != 0)
        so.sched.max_num_seqs = o->max_sequences;
    if (o->max_rows != 0)
        so.sched.max_batched_tokens = o->max_rows;
    enum err err = resolve(o->path, path, &why);
    if (err == OK)
        err = serving_open(&q->serving, &so, &why);
    if (err != OK) {
        quern_close(q);
        return failed(&why, err, e);
    }
    *out = q;
    return QUERN_OK;
}

void quern_close(struct quern *q)
{
    if (q == NULL)
        return;
    serving_close(&q->serving);
    mem_free(q);
}

uint32_t quern_context(const struct quern *q)
{
    return q->serving.fit.context;
}

uint32_t quern_vocab(const struct quern *q)
{
    return q->serving.config.vocab;
}

void quern_stats(const struct quern *q, struct quern_stats *out)
{
    struct engine_stats s;
    engine_stats(q->serving.engine, &s);
    *out = (struct quern_stats){.running = s.sched.n_running,
        .waiting = s.sched.n_waiting,
        .kv_blocks = s.kv.n_blocks,
        .kv_blocks_free = s.kv.n_free,
        .kv_blocks_cached = s.kv.n_cached,
        .requests = s.requests,
        .steps = s.steps,
        .prompt_tokens = s.prompt_tokens,
        .prompt_tokens_cached = s.prompt_tokens_cached,
        .output_tokens = s.output_tokens,
        .step_ms = (s.cost.base_ns + s.cost.row_ns) / 1e6};
}

/* ---- clients ------------------------------------------------------------------------------------------------------
 */

int quern_client_new(struct quern *q, struct quern_client **out, struct quern_error *e)
{
    struct error why = {0};
    *out = NULL;
    struct quern_client *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return failed(&why, ERR_NOMEM, e);
    c->q = q;
    chat_output_init(&c->rendered);
    buf_init(&c->text, EVENT_TEXT_MAX);
    enum err err = tok_ctx_new(&c->tok_ctx, &why);
    if (err == OK)
        err = engine_client_new(q->serving.engine, &c->ec, &why);
    if (err != OK) {
        quern_client_free(c);
        return failed(&why, err, e);
    }
    *out = c;
    return QUERN_OK;
}

static void forget(struct quern_client *c, struct quern_request *q)
{
    struct quern_request **at = &c->all;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    request_free(q->r);
    mem_free(q->answers);
    mem_free(q);
}

static void wait_for_news(struct quern_client *c, uint64_t ns)
{
    struct wake *w = engine_client_wake(c->ec);
    wake_arm(w);
    if (engine_client_has(c->ec))
        wake_disarm(w);
    else
        (void)wake_wait(w, ns);
}

void quern_client_free(struct quern_client *c)
{
    if (c == NULL)
        return;
    if (c->gone != NULL)
        forget(c, c->gone);
    if (c->current != NULL && c->current_is_final)
        forget(c, c->current);
    for (struct quern_request *q = c->all; q != NULL; q = q->next)
        engine_cancel(c->ec, q->r);
    while (c->all != NULL) {
        struct notice n;
        if (engine_client_next(c->ec, &n) != OK)
            wait_for_news(c, UINT64_MAX);
        else if (n.is_final)
            forget(c, n.request->user);
    }
    engine_client_free(c->ec);
    tok_ctx_free(c->tok_ctx);
    chat_output_fini(&c->rendered);
    buf_fini(&c->text);
    mem_free(c);
}

int quern_client_fd(struct quern_client *c)
{
    wake_arm(engine_client_wake(c->ec));
    return engine_client_wake(c->ec)->fd;
}

/* ---- asking -------------------------------------------------------------------------------------------------------
 */

struct quern_ask quern_ask_default(void)
{
    return (struct quern_ask){
        .max_tokens = 256, .n = 1, .temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1.0f};
}

static enum err encode_chat(struct quern_client *c, const char *messages, struct tok_ids *ids, struct error *e)
{
    const struct serving *s = &c->q->serving;
    struct chat_token tokens[4];
    json_t *doc;
    if (s->chat == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "the model has no chat template; ask with text");
    TRY(json_parse(str_of(messages), &doc, e));
    const struct chat_input in = {.messages = doc,
        .tokens = tokens,
        .n_tokens = model_chat_tokens(s->tok, tokens),
        .add_generation_prompt = true,
        .now_unix_s = clock_wall(s->clock) / (int64_t)NS_PER_S};
    enum err err = chat_render(s->chat, &in, &c->rendered, e);
    json_decref(doc);
    TRY(err);
    struct tok_part *parts = mem_array(MAX(c->rendered.n_segments, (size_t)1), sizeof *parts);
    if (parts == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a prompt");
    for (size_t i = 0; i < c->rendered.n_segments; i++) {
        const struct chat_segment *g = &c->rendered.segments[i];
        parts[i] = (struct tok_part){{c->rendered.text.p + g->start, g->end - g->start}, g->trusted};
    }
    err = tok_encode(s->tok, c->tok_ctx, parts, c->rendered.n_segments, false, ids, e);
    mem_free(parts);
    return err;
}

static enum err encode(struct quern_client *c, const struct quern_ask *a, struct tok_ids *ids, struct error *e)
{
    const struct serving *s = &c->q->serving;
    if ((a->text != NULL) + (a->messages != NULL) + (a->ids != NULL) != 1)
        return FAIL(e, ERR_INVALID, "exactly one of text, messages and ids is to be given");
    if (a->ids != NULL) {
        for (size_t i = 0; i < a->n_ids; i++)
            if (a->ids[i] >= s->config.vocab)
                return FAIL(e, ERR_INVALID, "token %u is outside the vocabulary of %u", a->ids[i], s->config.vocab);
        *ids = (struct tok_ids){a->ids, a->n_ids};
        return OK;
    }
    if (a->messages != NULL)
        return encode_chat(c, a->messages, ids, e);
    return tok_encode_template(s->tok, c->tok_ctx, str_of(a->text), true, ids, e);
}

static enum err make_stops(const struct quern_ask *a, struct stop_set **out, struct error *e)
{
    struct str stops[STOPS_MAX];
    *out = NULL;
    if (a->n_stops > STOPS_MAX)
        return FAIL(e, ERR_LIMIT, "%zu stop strings, at most %d are allowed", a->n_stops, STOPS_MAX);
    for (size_t i = 0; i < a->n_stops; i++)
        stops[i] = str_of(a->stops[i]);
    return a->n_stops > 0 ? stop_set_new(out, stops, a->n_stops, e) : OK;
}

static enum err make_grammar(const struct serving *s, const struct quern_ask *a, struct grammar **out, struct error *e)
{
    static const enum grammar_kind kinds[] = {[QUERN_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
        [QUERN_JSON_OBJECT] = GRAMMAR_JSON_OBJECT,
        [QUERN_REGEX] = GRAMMAR_REGEX,
        [QUERN_EBNF] = GRAMMAR_EBNF,
        [QUERN_CHOICE] = GRAMMAR_CHOICE};
    *out = NULL;
    if (a->grammar_kind == QUERN_ANY)
        return OK;
    if (a->grammar_kind < 0 || a->grammar_kind >= (int)COUNT_OF(kinds))
        return FAIL(e, ERR_INVALID, "grammar_kind %d is not known", a->grammar_kind);
    if (a->grammar == NULL && a->grammar_kind != QUERN_JSON_OBJECT)
        return FAIL(e, ERR_INVALID, "a grammar_kind needs a grammar");
    if (s->grammar_vocab == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "the model has no tokenizer, and grammars are about text");
    const struct grammar_source src = {
        .kind = kinds[a->grammar_kind], .text = str_of(a->grammar != NULL ? a->grammar : "")};
    return grammar_compile(&src, s->grammar_vocab, out, e);
}

static enum err make_request(struct quern_client *c, const struct quern_ask *a, struct request **out, struct error *e)
{
    const struct serving *s = &c->q->serving;
    struct tok_ids ids;
    TRY(encode(c, a, &ids, e));
    if (ids.n == 0 || ids.n >= s->fit.context)
        return FAIL(e, ids.n == 0 ? ERR_INVALID : ERR_LIMIT,
            "a prompt of %zu tokens; the context is %u, and one must be left for the answer", ids.n, s->fit.context);
    const uint32_t room = s->fit.context - (uint32_t)ids.n;
    struct request_options o = {.prompt = ids.p,
        .n_prompt = (uint32_t)ids.n,
        .max_tokens = a->max_tokens == 0 ? room : MIN(a->max_tokens, room),
        .n_choices = a->n,
        .stop_ids = s->stop_ids,
        .n_stop_ids = a->ignore_eos ? 0 : s->n_stop_ids,
        .banned_ids = s->stop_ids,
        .n_banned_ids = a->ignore_eos ? s->n_stop_ids : 0,
        .vocab = s->tok != NULL ? tok_vocab(s->tok) : NULL,
        .vocab_size = s->config.vocab,
        .deadline_ns = a->deadline_ms * NS_PER_MS};
    if (s->tok != NULL)
        o.lead = tok_lead_rule(s->tok);
    o.sample = (struct sample_params){.temperature = a->temperature,
        .top_k = a->top_k,
        .top_p = a->top_p,
        .min_p = a->min_p,
        .typical_p = 1.0f,
        .repetition_penalty = a->repetition_penalty,
        .presence_penalty = a->presence_penalty,
        .frequency_penalty = a->frequency_penalty,
        .seed = a->seed};
    TRY(sample_params_check(&o.sample, s->config.vocab, e));
    TRY(serving_spec(s, SPEC_METHODS, 0, &o, e));
    TRY(make_stops(a, &o.stops, e));
    enum err err = make_grammar(s, a, &o.grammar, e);
    if (err == OK)
        err = request_new(&o, out, e);
    if (err != OK) {
        stop_set_free(o.stops);
        grammar_unref(o.grammar);
    }
    return err;
}

static enum err wrap(
    struct quern_client *c, const struct quern_ask *a, struct request *r, struct quern_request **out, struct error *e)
{
    struct quern_request *q = mem_zalloc(sizeof *q);
    struct answer *answers = mem_array(r->n_choices, sizeof *answers);
    if (q == NULL || answers == NULL) {
        mem_free(q);
        mem_free(answers);
        return FAIL(e, ERR_NOMEM, "no memory for a request");
    }
    *q = (struct quern_request){.r = r, .user = a->user, .answers = answers, .next = c->all};
    for (uint32_t i = 0; r->o.vocab != NULL && i < r->n_choices; i++)
        detok_init(
            &answers[i].detok, r->o.vocab, r->o.lead, r->o.stops, (struct detok_opts){.min_ids = r->o.min_tokens});
    r->user = q;
    c->all = q;
    *out = q;
    return OK;
}

int quern_submit(
    struct quern_client *c, const struct quern_ask *ask, struct quern_request **request, struct quern_error *e)
{
    struct error why = {0};
    struct request *r = NULL;
    struct quern_request *q = NULL;
    uint64_t retry_ms;
    enum err err = make_request(c, ask, &r, &why);
    if (err == OK)
        err = wrap(c, ask, r, &q, &why);
    if (err == OK)
        err = engine_submit(c->ec, r, &retry_ms, &why);
    if (err != OK) {
        if (q != NULL)
            forget(c, q);
        else
            request_free(r);
        return failed(&why, err, e);
    }
    if (request != NULL)
        *request = q;
    return QUERN_OK;
}

void quern_cancel(struct quern_client *c, struct quern_request *request)
{
    engine_cancel(c->ec, request->r);
}

/* ---- receiving ----------------------------------------------------------------------------------------------------
 */

static uint32_t n_open(const struct quern_request *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->r->n_choices; i++)
        n += !q->answers[i].is_done;
    return n;
}

/* The text of the ids that are new. */
static enum err make_text(struct quern_client *c, const struct quern_request *q, const struct choice *ch,
    struct answer *a, uint32_t n, bool is_end)
{
    buf_clear(&c->text);
    if (q->r->o.vocab == NULL)
        return OK;
    for (uint32_t i = a->n_seen; i < n; i++)
        TRY(detok_feed(&a->detok, ch->ids[i], &c->text, NULL));
    return is_end ? detok_end(&a->detok, &c->text, NULL) : OK;
}

/* The next event of the current request; false when its answers have nothing more to say now. */
static bool next_answer(struct quern_client *c, struct quern_event *ev)
{
    struct quern_request *q = c->current;
    for (; c->at < q->r->n_choices; c->at++) {
        const struct choice *ch = &q->r->choices[c->at];
        struct answer *a = &q->answers[c->at];
        const int end = atomic_load_explicit(&ch->end, memory_order_acquire); /* before the count: it is set after */
        const uint32_t n = atomic_load_explicit(&ch->n_out, memory_order_acquire);
        if (a->is_done || (n == a->n_seen && end == END_NONE))
            continue;
        if (end != END_NONE && !c->current_is_final && n_open(q) == 1)
            continue; /* the last end comes with the final notice, so that one event says both */
        if (make_text(c, q, ch, a, n, end != END_NONE) != OK && end == END_NONE)
            engine_cancel(c->ec, q->r); /* out of memory: its text cannot go on */
        *ev = (struct quern_event){.request = q,
            .user = q->user,
            .choice = c->at,
            .text = c->text.n > 0 ? c->text.p : "",
            .text_bytes = c->text.n,
            .ids = ch->ids + a->n_seen,
            .n_ids = n - a->n_seen,
            .finish = end != END_NONE ? req_end_name((enum req_end)end) : NULL};
        a->n_seen = n;
        a->is_done = end != END_NONE;
        c->at++;
        return true;
    }
    return false;
}

/* Was that the last event of the current request? Then it goes with the next call. */
static void note_last(struct quern_client *c, struct quern_event *ev)
{
    if (!c->current_is_final || n_open(c->current) > 0)
        return;
    ev->is_last = 1;
    c->gone = c->current;
    c->current = NULL;
}

static bool next_event(struct quern_client *c, struct quern_event *ev)
{
    struct notice n;
    for (;;) {
        if (c->current != NULL && next_answer(c, ev)) {
            note_last(c, ev);
            return true;
        }
        c->current = NULL;
        if (engine_client_next(c->ec, &n) != OK)
            return false;
        c->current = n.request->user;
        c->current_is_final = n.is_final;
        c->at = 0;
    }
}

int quern_poll(struct quern_client *c, int timeout_ms, struct quern_event *ev)
{
    const struct clock *clock = &c->q->serving.own_clock;
    const uint64_t until = timeout_ms < 0 ? UINT64_MAX : clock_now(clock) + (uint64_t)timeout_ms * NS_PER_MS;
    if (c->gone != NULL)
        forget(c, c->gone);
    c->gone = NULL;
    for (;;) {
        if (next_event(c, ev))
            return 1;
        const uint64_t now = clock_now(clock);
        if (c->all == NULL || now >= until)
            return engine_state(c->q->serving.engine) == ENGINE_FAILED ? -1 : 0;
        wait_for_news(c, until == UINT64_MAX ? UINT64_MAX : until - now);
    }
}

int quern_run(struct quern_client *c, int (*on_event)(void *ctx, const struct quern_event *ev), void *ctx)
{
    struct quern_event ev;
    int got;
    while ((got = quern_poll(c, -1, &ev)) == 1) {
        const int stop = on_event(ctx, &ev);
        if (stop != 0)
            return stop;
    }
    return got;
}
