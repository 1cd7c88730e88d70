/* POST /v1/chat/completions and its rendering alone; POST /v1/messages, which is the same in another form. */
#include "api/generate.h"
#include "api/messages.h"
#include "api/prompt.h"

#include <stdio.h>
#include <string.h>

/* max_tokens and logprobs as chat spells them. */
static bool read_chat_fields(struct fields *f, const json_t *doc, struct api_error *ae)
{
    const struct in in = {doc, ae};
    if (!in_u32(in, "max_tokens", 1, MODEL_CONTEXT_MAX, &f->max_tokens) ||
        !in_u32(in, "max_completion_tokens", 1, MODEL_CONTEXT_MAX, &f->max_tokens) ||
        !in_bool(in, "logprobs", &f->want_logprobs) || !in_u32(in, "top_logprobs", 0, LOGPROBS_MAX, &f->n_top))
        return false;
    if (in_get(in, "echo") != NULL && !json_is_false(in_get(in, "echo")))
        return api_fail_code(ae, 400, "echo", "unsupported_parameter", "'echo' is refused: it is for /v1/completions");
    if (f->n_top > 0 && !f->want_logprobs)
        return api_fail(ae, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    return true;
}

static void use_request_id(struct call *c, const struct fields *f)
{
    if (f->request_id.n == 0)
        return;
    char shown[CALL_ID_BYTES];
    str_show(f->request_id, shown, sizeof shown);
    for (size_t i = 0; shown[i] != '\0'; i++)
        if (shown[i] == '"' || shown[i] == '\\' || (unsigned char)shown[i] <= 0x20)
            return; /* ours stays */
    memcpy(c->id, shown, sizeof c->id);
}

static bool start_asked(struct call *c, enum generation_kind kind, const json_t *doc, struct fields *f,
    struct tool_ask **ask, struct api_error *ae)
{
    const struct serving *sv = c->s->serving;
    const struct fields_model m = {
        &sv->config.generation, sv->config.vocab, sv->fit.context, c->s->o.structured_whitespace};
    struct tok_ids ids = {0};
    fields_init(f, m);
    bool waits = false;
    if (!model_check(c, (struct in){doc, ae}) || !fields_read(f, doc, m, ae) || !read_chat_fields(f, doc, ae) ||
        !tool_ask_read(c, doc, ask, ae) || !prompt_from_chat(c, doc, &ids, ae) ||
        !tool_ask_prompt(*ask, c, buf_str(&c->net->chat.text), f, ae) || !call_grammar(c, f, &waits, ae))
        return false;
    if (waits)
        return true;
    use_request_id(c, f);
    struct generation *g = generation_new(c, kind, f, 1, ae);
    if (g == NULL)
        return false;
    g->ask = *ask; /* its from now on */
    *ask = NULL;
    if (!generation_prompt(g, f, ids.p, ids.n, ae)) {
        generation_free(g);
        return false;
    }
    if (f->resumable)
        g->replay = replay_new(c->s, g->id, c->tenant);
    if (f->resumable && g->replay == NULL) {
        generation_free(g);
        return api_fail(ae, 429, "resumable", "%d resumable streams are kept already", STREAM_REPLAYS_MAX);
    }
    return generation_start(g, ae);
}

static bool start_kind(
    struct call *c, enum generation_kind kind, const json_t *doc, struct fields *f, struct api_error *ae)
{
    struct tool_ask *ask = NULL;
    const bool ok = start_asked(c, kind, doc, f, &ask, ae);
    tool_ask_free(ask);
    return ok;
}

static bool start_chat(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae)
{
    return start_kind(c, GEN_CHAT, doc, f, ae);
}

void route_chat(struct call *c)
{
    generation_route(c, start_chat);
}

/* ---- the same in the form of the Messages API ---- */

static bool start_message(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae)
{
    json_t *asked = messages_to_chat(doc, true, ae);
    const bool ok = asked != NULL && start_kind(c, GEN_MESSAGE, asked, f, ae);
    json_decref(asked);
    return ok;
}

void route_messages(struct call *c)
{
    generation_route(c, start_message);
}

void route_messages_count(struct call *c)
{
    struct api_error ae = {0};
    struct tok_ids ids = {0};
    json_t *doc = NULL, *asked = NULL;
    struct tool_ask *ask = NULL;
    const bool ok = call_json(c, &doc, &ae) && (asked = messages_to_chat(doc, false, &ae)) != NULL &&
                    model_check(c, (struct in){asked, &ae}) && tool_ask_read(c, asked, &ask, &ae) &&
                    prompt_from_chat(c, asked, &ids, &ae);
    if (ok) {
        char body[64];
        const int n = snprintf(body, sizeof body, "{\"input_tokens\":%zu}", ids.n);
        call_reply_json(c, 200, (struct str){body, (size_t)n});
    } else
        call_reply_error(c, &ae);
    tool_ask_free(ask);
    json_decref(asked);
    json_decref(doc);
}

void route_chat_render(struct call *c)
{
    struct api_error ae = {0};
    struct tok_ids ids = {0};
    json_t *doc = NULL;
    if (!call_json(c, &doc, &ae) || !model_check(c, (struct in){doc, &ae}) || !prompt_from_chat(c, doc, &ids, &ae))
        call_reply_error(c, &ae);
    else {
        struct buf out;
        buf_init(&out, REQ_ANSWER_BYTES_MAX);
        buf_add(&out, STR("{\"prompt\":"));
        buf_add_json_str(&out, buf_str(&c->net->chat.text));
        buf_addf(&out, ",\"count\":%zu,\"token_ids\":", ids.n);
        answer_ids(ids.p, (uint32_t)ids.n, &out);
        buf_add_char(&out, '}');
        call_reply_buf(c, &out);
        buf_fini(&out);
    }
    json_decref(doc);
}
