/* A generation from prompts to its last byte; see generate.h.
 *
 * Every accepted request ends in exactly one terminal thing: a whole answer, an error, or a stream whose last lines are
 * a final event for every choice (or one error event) and [DONE]. Headers of a stream are sent with its first event, so
 * that a request refused by the engine still gets a status of its own. */
#include "api/generate.h"

#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

/* ---- events of a stream ---- */

/* One event is in net->scratch, "data: ..." without the empty line. */
static void emit(struct generation *g)
{
    struct buf *b = &g->net->scratch;
    buf_add(b, STR("\n\n"));
    if (buf_check(b, "an event", NULL) != OK) {
        api_fail(&g->failure, 500, NULL, "an event of the stream was too large");
        return;
    }
    struct call *c = g->call;
    if (!c->is_streaming && !c->left)
        call_stream_start(c, "text/event-stream");
    if (g->replay != NULL) {
        char id[40];
        const int n = snprintf(id, sizeof id, "id: %llu\n", (unsigned long long)replay_count(g->replay));
        replay_add(g->replay, buf_str(b));
        if (buf_room(b, (size_t)n) != NULL) { /* before the event, so that both leave in one piece */
            memmove(b->p + n, b->p, b->n + 1);
            memcpy(b->p, id, (size_t)n);
            b->n += (size_t)n;
        }
    }
    call_stream_write(c, buf_str(b));
}

static struct buf *begin_event(struct generation *g)
{
    struct buf *b = &g->net->scratch;
    buf_clear(b);
    buf_add(b, g->head);
    return b;
}

/* t_token: when the newest token of the event was made; 0 = it has none. */
static void end_event(struct generation *g, struct buf *b, uint64_t t_token)
{
    buf_add(b, STR("]"));
    if (g->include_times && t_token != 0) {
        buf_add(b, STR(",\"token_time_ns\":"));
        buf_add_u64(b, t_token);
    }
    if (g->continuous_usage) {
        buf_add(b, STR(",\"usage\":"));
        answer_usage(g, b);
    } else if (g->include_usage)
        buf_add(b, STR(",\"usage\":null"));
    buf_add(b, STR("}"));
    emit(g);
}

static void emit_role(struct part *p, uint32_t k)
{
    struct generation *g = p->g;
    struct buf *b = begin_event(g);
    buf_addf(b,
        "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null",
        k);
    if (g->return_token_ids) {
        buf_add(b, STR(",\"prompt_token_ids\":"));
        answer_ids(p->r->o.prompt, p->r->o.n_prompt, b);
    }
    buf_add(b, STR("}"));
    end_event(g, b, 0);
}

/* The prompt of an echo, as the first event of its choice. */
static void emit_echo(struct part *p, uint32_t k)
{
    struct generation *g = p->g;
    struct buf text, *b = begin_event(g);
    buf_init(&text, SSE_EVENT_BYTES_MAX);
    answer_prompt_text(p, &text);
    buf_addf(b, "{\"index\":%u,\"text\":", p->index * g->n + k);
    buf_add_json_str(b, buf_str(&text));
    buf_add(b, STR(",\"logprobs\":"));
    answer_completion_logprobs(p, k, (struct answer_span){.with_prompt = true}, b);
    buf_add(b, STR(",\"finish_reason\":null}"));
    p->said[k].n_chars = answer_count_chars(buf_str(&text));
    buf_fini(&text);
    end_event(g, b, 0);
}

static void emit_text(struct part *p, uint32_t k, struct str text, uint32_t n_told, bool ended)
{
    struct generation *g = p->g;
    struct said *said = &p->said[k];
    const struct choice *ch = &p->r->choices[k];
    struct buf *b = begin_event(g);
    if (g->kind == GEN_CHAT) {
        buf_add(b, STR("{\"index\":"));
        buf_add_u64(b, k);
        buf_add(b, STR(",\"delta\":{"));
        if (said->speech != NULL)
            speech_delta(said->speech, b);
        else if (text.n > 0) {
            buf_add(b, STR("\"content\":"));
            buf_add_json_str(b, text);
        }
        buf_add(b, STR("},\"logprobs\":"));
        if (said->n_told < n_told)
            answer_logprobs(p, k, said->n_told, n_told, b);
        else
            buf_add(b, STR("null"));
    } else {
        buf_add(b, STR("{\"index\":"));
        buf_add_u64(b, p->index * g->n + k);
        buf_add(b, STR(",\"text\":"));
        buf_add_json_str(b, text);
        buf_add(b, STR(",\"logprobs\":"));
        if (said->n_told < n_told)
            answer_completion_logprobs(
                p, k, (struct answer_span){.from = said->n_told, .to = n_told, .first_char = said->n_chars}, b);
        else
            buf_add(b, STR("null"));
    }
    if (g->return_token_ids) {
        buf_add(b, STR(",\"token_ids\":"));
        answer_ids(ch->ids + said->n_told, n_told - said->n_told, b);
    }
    if (ended) {
        buf_addf(b, ",\"finish_reason\":\"%s\",\"stop_reason\":", answer_finish(p, k));
        answer_stop_reason(p, k, b);
        buf_add(b, STR("}"));
    } else
        buf_add(b, STR(",\"finish_reason\":null}"));
    said->n_chars += answer_count_chars(text);
    said->n_told = n_told;
    end_event(g, b, atomic_load_explicit(&ch->t_token, memory_order_relaxed));
}

/* The same of a message: what the blocks hold, between its start and its end. */
static void emit_blocks(struct part *p, struct str text, bool ended)
{
    struct generation *g = p->g;
    struct said *said = &p->said[0];
    struct blocks *blocks = said->blocks;
    struct buf *b = &g->net->scratch;
    if (said->speech == NULL)
        blocks_text(blocks, text);
    if (ended)
        blocks_end(blocks);
    if (said->has_begun && blocks->out.n == 0 && !ended)
        return;
    buf_clear(b);
    if (!said->has_begun)
        messages_start(p, b);
    if (blocks->out.n > 0 && b->n > 0)
        buf_add(b, STR("\n\n"));
    buf_add(b, buf_str(&blocks->out));
    if (ended)
        messages_end(p, b);
    buf_clear(&blocks->out);
    emit(g);
}

/* ---- the pump: published ids to events ---- */

static bool is_bad_end(int end)
{
    return end == END_BUSY || end == END_FAILED || end == END_ABORTED || end == END_EXPIRED || end == END_DEADLINE;
}

static void note_bad_end(struct generation *g, const struct request *r, int end)
{
    switch (end) {
    case END_BUSY:
        api_fail(&g->failure, 429, NULL, "the server is busy: the request waited in the queue for too long");
        g->failure.retry_s = MAX(g->failure.retry_s, 1u);
        return;
    case END_ABORTED:
        api_fail(&g->failure, 503, NULL, "the server is stopping");
        g->failure.retry_s = 1;
        return;
    case END_EXPIRED: api_fail(&g->failure, 503, NULL, "the answer was not read for too long"); return;
    case END_DEADLINE: api_fail(&g->failure, 503, NULL, "the request's time was over"); return;
    default:
        LOG(g->net->s->o.log, LOG_ERROR, "http", "generation failed", log_cstr("id", g->call->id),
            log_cstr("why", r->error.text));
        if (!health_has_failed(g->net->s, &g->failure))
            api_fail(&g->failure, 500, NULL, "the model failed to answer this request");
    }
}

static void pump_choice(struct part *p, uint32_t k, struct buf *text)
{
    struct generation *g = p->g;
    struct said *said = &p->said[k];
    const struct choice *ch = &p->r->choices[k];
    const int end = atomic_load_explicit(&ch->end, memory_order_acquire); /* before n_out: then n_out is the last */
    const uint32_t n_out = atomic_load_explicit(&ch->n_out, memory_order_acquire);
    const bool ended = end != END_NONE;
    if (said->has_ended)
        return;
    if (ended && is_bad_end(end)) {
        note_bad_end(g, p->r, end);
        said->has_ended = true;
        return;
    }
    const uint32_t n_told = answer_n_told(g, ch, n_out, ended);
    if (!ended && n_told < said->n_fed + g->stream_interval)
        return;
    if (!said->has_begun && (g->kind == GEN_CHAT || g->echo))
        (g->kind == GEN_CHAT ? emit_role : emit_echo)(p, k);
    said->has_begun |= g->kind != GEN_MESSAGE;
    buf_clear(text);
    if (answer_feed(p, k, n_out, ended, text) != OK) {
        api_fail(&g->failure, 500, NULL, "the text of the answer could not be made");
        said->has_ended = true;
        return;
    }
    if (g->kind == GEN_MESSAGE) {
        emit_blocks(p, buf_str(text), ended);
        said->has_begun = true;
        said->has_ended = ended;
        return;
    }
    const bool reports = (g->want_logprobs || g->return_token_ids) && n_told > said->n_told;
    const bool speaks = said->speech != NULL && speech_has(said->speech);
    if (ended && speaks) { /* clients take a call for whole when the end comes behind it */
        emit_text(p, k, buf_str(text), n_told, false);
        emit_text(p, k, STR(""), n_told, true);
    } else if (text->n > 0 || reports || ended || speaks)
        emit_text(p, k, buf_str(text), n_told, ended);
    said->has_ended = ended;
}

static void pump(struct part *p)
{
    struct generation *g = p->g;
    uint32_t n_read = UINT32_MAX;
    for (uint32_t k = 0; k < g->n; k++) {
        pump_choice(p, k, &g->net->text);
        if (!p->said[k].has_ended)
            n_read = MIN(n_read, p->said[k].n_fed);
    }
    g->blocked = call_unsent(g->call) > SSE_HIGH_WATER;
    if (n_read != UINT32_MAX && !p->is_back && !g->blocked) {
        const uint32_t was = atomic_exchange_explicit(&p->r->n_read, n_read, memory_order_acq_rel);
        if (n_read - was >= SSE_UNREAD_TOKENS / 2)
            engine_read_on(g->net->client, p->r); /* it may be paused */
    }
}

/* ---- ending ---- */

static void settle(struct generation *g)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const struct request *r = g->parts[i].r;
        uint64_t output = 0;
        for (uint32_t k = 0; k < r->n_choices && g->kind != GEN_EMBEDDING; k++)
            output += atomic_load_explicit(&r->choices[k].n_out, memory_order_acquire);
        used += r->t_admitted != 0 || output > 0 ? r->o.n_prompt + output : 0;
    }
    tenant_settle(&g->net->s->keys, g->tenant, g->reserved, used);
}

static void finish_stream(struct generation *g)
{
    struct buf *b = &g->net->scratch;
    struct call *c = g->call;
    if (g->failure.status != 0 && !c->is_streaming && g->replay == NULL) {
        call_reply_error(c, &g->failure);
        return;
    }
    if (g->kind == GEN_MESSAGE) { /* its end has been told with the last block */
        if (g->failure.status != 0) {
            buf_clear(b);
            buf_add(b, STR("event: error\ndata: "));
            messages_error_json(&g->failure, b);
            emit(g);
        }
        call_stream_end(c);
        return;
    }
    if (g->failure.status != 0) {
        buf_clear(b);
        buf_add(b, STR("data: "));
        api_error_json(&g->failure, b);
        emit(g);
    } else if (g->include_usage) {
        buf_clear(b);
        buf_add(b, g->head);
        buf_add(b, STR("],\"usage\":"));
        answer_usage(g, b);
        buf_add(b, STR("}"));
        emit(g);
    }
    buf_clear(b);
    buf_add(b, STR("data: [DONE]"));
    emit(g);
    if (g->replay != NULL)
        replay_end(g->replay, clock_now(g->net->s->o.clock));
    call_stream_end(c);
}

static void finish_whole(struct generation *g)
{
    for (uint32_t i = 0; i < g->n_parts; i++)
        for (uint32_t k = 0; k < g->n; k++) {
            const int end = atomic_load_explicit(&g->parts[i].r->choices[k].end, memory_order_acquire);
            if (is_bad_end(end))
                note_bad_end(g, g->parts[i].r, end);
        }
    if (g->failure.status != 0) {
        call_reply_error(g->call, &g->failure);
        return;
    }
    struct buf out;
    buf_init(&out, REQ_ANSWER_BYTES_MAX);
    if (g->kind == GEN_EMBEDDING)
        answer_embeddings(g, &out);
    else if (g->kind == GEN_MESSAGE)
        messages_whole(g, &out);
    else
        answer_whole(g, &out);
    call_reply_buf(g->call, &out);
    buf_fini(&out);
}

/* All requests are back. */
static void finish(struct generation *g)
{
    struct call *c = g->call;
    if (g->stream)
        for (uint32_t i = 0; i < g->n_parts && (!c->left || g->replay != NULL); i++)
            pump(&g->parts[i]);
    if (!c->left || g->replay != NULL)
        (g->stream ? finish_stream : finish_whole)(g);
    settle(g);
    c->gen = NULL;
    generation_free(g);
    call_done(c);
}

static void cancel_all(struct generation *g)
{
    if (g->is_cancelled)
        return;
    g->is_cancelled = true;
    for (uint32_t i = 0; i < g->n_parts; i++)
        if (!g->parts[i].is_back)
            engine_cancel(g->net->client, g->parts[i].r);
}

void generation_prefetch(const struct request *r, uint32_t depth)
{
    const struct part *p = r->user;
    if (depth == 0) {
        __builtin_prefetch(p);
        __builtin_prefetch(r->choices);
        return;
    }
    const struct generation *g = p->g;
    if (depth == 1) {
        __builtin_prefetch(g);
        __builtin_prefetch(&g->stream);
        __builtin_prefetch(p->said);
        __builtin_prefetch((const char *)p->said + CACHE_LINE);
        return;
    }
    __builtin_prefetch(g->call);
    __builtin_prefetch(g->head.p);
}

void generation_notice(struct request *r, bool is_final)
{
    struct part *p = r->user;
    struct generation *g = p->g;
    if (is_final) {
        p->is_back = true;
        g->n_back++;
    }
    if (g->stream && !g->blocked && (!g->call->left || g->replay != NULL) && g->n_back < g->n_parts)
        pump(p);
    if (g->n_back == g->n_parts && (!g->blocked || g->call->left))
        finish(g);
}

/* Its reader has caught up. */
void generation_drained(struct generation *g)
{
    if (!g->blocked)
        return;
    g->blocked = false;
    for (uint32_t i = 0; i < g->n_parts && g->n_back < g->n_parts; i++)
        pump(&g->parts[i]);
    if (g->n_back == g->n_parts && !g->blocked)
        finish(g);
}

void generation_client_left(struct generation *g)
{
    g->blocked = false;
    if (g->replay == NULL) {
        if (g->n_back == g->n_parts)
            finish(g);
        else
            cancel_all(g);
    } else if (g->n_back == g->n_parts)
        finish(g);
    else
        for (uint32_t i = 0; i < g->n_parts; i++)
            pump(&g->parts[i]);
}

void generation_tick(struct generation *g, uint64_t now_ns)
{
    struct call *c = g->call;
    const uint64_t ping_ns = (uint64_t)c->s->o.ping_s * NS_PER_S;
    if (c->left && g->replay != NULL && !replay_is_wanted(g->replay, now_ns))
        cancel_all(g);
    if (c->left || !g->stream || ping_ns == 0 || g->blocked || now_ns - c->t_last_write < ping_ns)
        return;
    if (!c->is_streaming)
        call_stream_start(c, "text/event-stream");
    call_stream_write(c, STR(": waiting\n\n"));
}

/* ---- starting ---- */

static bool submit_all(struct generation *g, struct api_error *ae)
{
    for (uint32_t i = 0; i < g->n_parts; i++) {
        struct error e = {0};
        uint64_t retry_ms = 0;
        const enum err err = engine_submit(g->net->client, g->parts[i].r, &retry_ms, &e);
        if (err == OK) {
            g->parts[i].is_back = false;
            g->n_back--;
            continue;
        }
        if (err == ERR_AGAIN) {
            api_fail(ae, 429, NULL, "the server is busy; try again in %llu s",
                (unsigned long long)MAX(retry_ms / 1000, (uint64_t)1));
            ae->retry_s = (uint32_t)MIN(MAX((retry_ms + 999) / 1000, (uint64_t)1), (uint64_t)3600);
        } else if (err == ERR_CANCELLED) {
            api_fail(ae, 503, NULL, "the server is stopping");
            ae->retry_s = 1;
        } else if (!health_has_failed(g->net->s, ae)) /* it may have, since the call was let in */
            api_fail_err(ae, &e, NULL);
        return false;
    }
    return true;
}

bool generation_start(struct generation *g, struct api_error *ae)
{
    struct call *c = g->call;
    if (!tenant_take(&c->s->keys, g->tenant, g->reserved, clock_now(c->s->o.clock), ae)) {
        generation_free(g);
        return false;
    }
    g->n_back = g->n_parts;
    c->gen = g;
    if (submit_all(g, ae)) {
        call_watch(c);
        return true;
    }
    if (g->n_back == g->n_parts) {
        tenant_settle(&c->s->keys, g->tenant, g->reserved, 0);
        c->gen = NULL;
        generation_free(g);
        return false;
    }
    g->failure = *ae; /* some of it is inside: answer when that is back */
    g->stream = false;
    call_watch(c);
    cancel_all(g);
    return true;
}

void generation_route(struct call *c, generation_start_fn *start)
{
    struct api_error ae = {0};
    json_t *doc = NULL;
    struct fields *f = mem_zalloc(sizeof *f);
    bool ok = false;
    if (f == NULL)
        api_fail_err(&ae, &(struct error){.code = ERR_NOMEM}, NULL);
    else {
        ok = call_json(c, &doc, &ae) && start(c, doc, f, &ae);
        fields_fini(f);
    }
    mem_free(f);
    json_decref(doc);
    if (!ok)
        call_reply_error(c, &ae);
}
