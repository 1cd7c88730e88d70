/* Answers as the Messages API tells them; see messages.h. A stream is message_start, then for every block its start,
 * its deltas and its stop, then message_delta with the reason of the end, and message_stop. */
#include "api/generate.h"
#include "api/messages.h"

#include <stdio.h>
#include <string.h>

void blocks_init(struct blocks *b, bool is_stream)
{
    *b = (struct blocks){.is_stream = is_stream};
    buf_init(&b->out, is_stream ? SSE_EVENT_BYTES_MAX : REQ_ANSWER_BYTES_MAX);
    buf_init(&b->input, REQ_ANSWER_BYTES_MAX);
}

void blocks_fini(struct blocks *b)
{
    buf_fini(&b->out);
    buf_fini(&b->input);
}

/* The head of an event; out has the events before it, the last without its empty line. */
static void event(struct buf *out, const char *name)
{
    if (out->n > 0)
        buf_add(out, STR("\n\n"));
    buf_addf(out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

/* ---- blocks ---- */

/* The arguments of a call whose answer was cut short are no JSON: they are told as a text then. */
static void add_input(struct blocks *b)
{
    json_t *v = json_loadb(b->input.n > 0 ? b->input.p : "{}", b->input.n > 0 ? b->input.n : 2, 0, NULL);
    if (v != NULL)
        buf_add(&b->out, b->input.n > 0 ? buf_str(&b->input) : STR("{}"));
    else {
        buf_add(&b->out, STR("{\"incomplete\":"));
        buf_add_json_str(&b->out, buf_str(&b->input));
        buf_add_char(&b->out, '}');
    }
    json_decref(v);
}

void blocks_end(struct blocks *b)
{
    static const char *const members[] = {
        [BLOCK_NONE] = "", [BLOCK_TEXT] = "text", [BLOCK_THINKING] = "thinking", [BLOCK_TOOL] = "input"};
    if (b->open == BLOCK_NONE)
        return;
    if (b->is_stream) {
        event(&b->out, "content_block_stop");
        buf_addf(&b->out, ",\"index\":%u}", b->n - 1);
    } else {
        buf_addf(&b->out, ",\"%s\":", members[b->open]);
        if (b->open == BLOCK_TOOL)
            add_input(b);
        else
            buf_add_json_str(&b->out, buf_str(&b->input));
        buf_add_char(&b->out, '}');
    }
    buf_clear(&b->input);
    b->open = BLOCK_NONE;
}

/* name and id: of a call. */
static void begin(struct blocks *b, enum block_kind kind, struct str name, struct str id)
{
    blocks_end(b);
    if (b->is_stream) {
        event(&b->out, "content_block_start");
        buf_addf(&b->out, ",\"index\":%u,\"content_block\":", b->n);
    } else if (b->n > 0)
        buf_add_char(&b->out, ',');
    if (kind == BLOCK_TOOL) {
        buf_add(&b->out, STR("{\"type\":\"tool_use\",\"id\":"));
        buf_add_json_str(&b->out, id);
        buf_add(&b->out, STR(",\"name\":"));
        buf_add_json_str(&b->out, name);
        buf_add(&b->out, b->is_stream ? STR(",\"input\":{}}}") : STR(""));
    } else if (kind == BLOCK_TEXT)
        buf_add(&b->out, b->is_stream ? STR("{\"type\":\"text\",\"text\":\"\"}}") : STR("{\"type\":\"text\""));
    else /* there is nothing to sign, but clients expect the member */
        buf_add(&b->out, b->is_stream ? STR("{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}")
                                      : STR("{\"type\":\"thinking\",\"signature\":\"\""));
    b->open = kind;
    b->n++;
}

static void grow(struct blocks *b, struct str text)
{
    static const char *const deltas[][2] = {[BLOCK_NONE] = {"", ""},
        [BLOCK_TEXT] = {"text_delta", "text"},
        [BLOCK_THINKING] = {"thinking_delta", "thinking"},
        [BLOCK_TOOL] = {"input_json_delta", "partial_json"}};
    if (text.n == 0)
        return;
    if (!b->is_stream) {
        buf_add(&b->input, text);
        return;
    }
    event(&b->out, "content_block_delta");
    buf_addf(
        &b->out, ",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", b->n - 1, deltas[b->open][0], deltas[b->open][1]);
    buf_add_json_str(&b->out, text);
    buf_add(&b->out, STR("}}"));
}

void blocks_text(struct blocks *b, struct str text)
{
    if (text.n > 0 && b->open != BLOCK_TEXT)
        begin(b, BLOCK_TEXT, STR(""), STR(""));
    grow(b, text);
}

void blocks_event(struct blocks *b, const struct tool_event *ev, struct str id)
{
    switch (ev->kind) {
    case TOOL_CONTENT: blocks_text(b, ev->text); return;
    case TOOL_REASONING:
        if (ev->text.n > 0 && b->open != BLOCK_THINKING)
            begin(b, BLOCK_THINKING, STR(""), STR(""));
        grow(b, ev->text);
        return;
    case TOOL_CALL_BEGIN: begin(b, BLOCK_TOOL, ev->text, id); return;
    case TOOL_CALL_ARGS: grow(b, ev->text); return;
    case TOOL_CALL_END: blocks_end(b); return;
    }
}

/* ---- around the blocks ---- */

static void add_usage(const struct request *r, uint32_t n_out, struct buf *out)
{
    buf_addf(out,
        "{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%u}",
        r->o.n_prompt - MIN(r->n_cached, r->o.n_prompt), r->n_cached, n_out);
}

static void add_head(const struct generation *g, struct buf *out)
{
    buf_addf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->id);
    buf_add_json_str(out, str_of(g->net->s->names[0]));
}

static void add_reason(const struct part *p, struct buf *out)
{
    const struct choice *ch = &p->r->choices[0];
    const char *finish = answer_finish(p, 0);
    const bool by_text = atomic_load_explicit(&ch->end, memory_order_acquire) == END_STOP;
    const char *reason = strcmp(finish, "tool_calls") == 0 ? "tool_use"
                         : strcmp(finish, "length") == 0   ? "max_tokens"
                         : by_text                         ? "stop_sequence"
                                                           : "end_turn";
    buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (by_text)
        answer_stop_reason(p, 0, out);
    else
        buf_add(out, STR("null"));
}

void messages_start(const struct part *p, struct buf *out)
{
    event(out, "message_start");
    buf_add(out, STR(",\"message\":"));
    add_head(p->g, out);
    buf_add(out, STR(",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":"));
    add_usage(p->r, 0, out);
    buf_add(out, STR("}}"));
}

void messages_end(const struct part *p, struct buf *out)
{
    event(out, "message_delta");
    buf_add(out, STR(",\"delta\":{"));
    add_reason(p, out);
    buf_add(out, STR("},\"usage\":"));
    add_usage(p->r, atomic_load_explicit(&p->r->choices[0].n_out, memory_order_acquire), out);
    buf_add(out, STR("}"));
    event(out, "message_stop");
    buf_add(out, STR("}"));
}

void messages_whole(struct generation *g, struct buf *out)
{
    struct part *p = &g->parts[0];
    struct said *said = &p->said[0];
    const uint32_t n_out = atomic_load_explicit(&p->r->choices[0].n_out, memory_order_acquire);
    struct buf text;
    buf_init(&text, REQ_ANSWER_BYTES_MAX);
    enum err err = answer_feed(p, 0, n_out, true, &text);
    if (said->speech == NULL)
        blocks_text(said->blocks, buf_str(&text));
    blocks_end(said->blocks);
    err = err != OK ? err : buf_check(&said->blocks->out, "an answer", NULL);
    if (err != OK && out->failure == OK)
        out->failure = err;
    add_head(g, out);
    buf_add(out, STR(",\"content\":["));
    buf_add(out, buf_str(&said->blocks->out));
    buf_add(out, STR("],"));
    add_reason(p, out);
    buf_add(out, STR(",\"usage\":"));
    add_usage(p->r, n_out, out);
    buf_add_char(out, '}');
    buf_fini(&text);
}

void messages_error_json(const struct api_error *ae, struct buf *out)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
        {404, "not_found_error"}, {413, "request_too_large"}, {429, "rate_limit_error"}, {503, "overloaded_error"}};
    const char *type = ae->status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (types[i].status == ae->status)
            type = types[i].type;
    buf_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    buf_add_json_str(out, str_of(ae->text));
    buf_add(out, STR("}}"));
}
