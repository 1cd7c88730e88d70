/* Calls and reasoning on the wire; see speech.h. */
#include "api/speech.h"

#include <stdio.h>
#include <string.h>

#define ID_CHARS_MAX 24

/* Letters and digits from a hash: the same request gives the same ids. */
static void make_id(const struct speech *s, const struct tool_event *ev, char out[ID_CHARS_MAX + 8])
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const size_t n = tool_dialect_id_chars(s->dialect);
    size_t at = n > 9 ? (size_t)snprintf(out, 8, "call_") : 0;
    uint64_t h = hash64(ev->text.p, ev->text.n, s->id_seed + ev->call);
    for (size_t i = 0; i < MIN(n, (size_t)ID_CHARS_MAX); i++) {
        out[at++] = letters[h % (sizeof letters - 1)];
        h /= sizeof letters - 1;
        if (i % 8 == 7)
            h = hash64(&h, sizeof h, s->id_seed + ev->call + i);
    }
    out[at] = '\0';
}

static void close_call(struct speech *s)
{
    if (s->is_open)
        buf_add(&s->calls, STR("\"}}"));
    s->is_open = false;
}

static void open_call(struct speech *s, const struct tool_event *ev)
{
    close_call(s);
    if (s->calls.n > 0)
        buf_add_char(&s->calls, ',');
    buf_add_char(&s->calls, '{');
    if (s->is_stream)
        buf_addf(&s->calls, "\"index\":%u%s", ev->call, ev->kind == TOOL_CALL_BEGIN ? "," : "");
    if (ev->kind == TOOL_CALL_BEGIN) {
        char id[ID_CHARS_MAX + 8];
        make_id(s, ev, id);
        buf_add(&s->calls, STR("\"id\":"));
        buf_add_json_str(&s->calls, ev->id.n > 0 ? ev->id : str_of(id));
        buf_add(&s->calls, STR(",\"type\":\"function\",\"function\":{\"name\":"));
        buf_add_json_str(&s->calls, ev->text);
        buf_add(&s->calls, STR(",\"arguments\":\""));
    } else
        buf_add(&s->calls, STR(",\"function\":{\"arguments\":\""));
    s->is_open = true;
}

/* A text inside a JSON string that is already open. */
static void add_inside(struct buf *b, struct str text)
{
    const size_t from = b->n;
    buf_add_json_str(b, text);
    if (b->failure != OK)
        return;
    memmove(b->p + from, b->p + from + 1, b->n - from - 2);
    b->n -= 2;
    b->p[b->n] = '\0';
}

static void on_event(void *user, const struct tool_event *ev)
{
    struct speech *s = user;
    if (s->blocks != NULL) {
        char id[ID_CHARS_MAX + 8] = "";
        if (ev->kind == TOOL_CALL_BEGIN) {
            s->n_calls++;
            make_id(s, ev, id);
        }
        if (ev->kind != TOOL_REASONING || s->ask->include_reasoning)
            blocks_event(s->blocks, ev, ev->id.n > 0 ? ev->id : str_of(id));
        return;
    }
    switch (ev->kind) {
    case TOOL_CONTENT: buf_add(&s->content, ev->text); return;
    case TOOL_REASONING:
        if (s->ask->include_reasoning)
            buf_add(&s->reasoning, ev->text);
        return;
    case TOOL_CALL_BEGIN:
        s->n_calls++;
        open_call(s, ev);
        return;
    case TOOL_CALL_ARGS:
        if (!s->is_open)
            open_call(s, ev);
        add_inside(&s->calls, ev->text);
        return;
    case TOOL_CALL_END: return;
    }
}

bool speech_init(struct speech *s, struct call *c, const struct tool_ask *ask, bool is_stream, bool show_special,
    uint64_t id_seed, struct api_error *ae)
{
    struct error e = {0};
    *s = (struct speech){.ask = ask, .dialect = c->s->dialect, .is_stream = is_stream, .id_seed = id_seed};
    const size_t max = is_stream ? SSE_EVENT_BYTES_MAX : REQ_ANSWER_BYTES_MAX;
    buf_init(&s->content, max);
    buf_init(&s->reasoning, max);
    buf_init(&s->calls, max);
    const struct tool_parser_options o = {.dialect = c->s->dialect,
        .tools = ask->choice != TOOLS_NONE ? &ask->list : NULL,
        .start = ask->start,
        .show_special = show_special,
        .event = on_event,
        .user = s};
    return tool_parser_new(&o, &s->parser, &e) == OK || api_fail_err(ae, &e, NULL);
}

void speech_fini(struct speech *s)
{
    tool_parser_free(s->parser);
    buf_fini(&s->content);
    buf_fini(&s->reasoning);
    buf_fini(&s->calls);
}

static enum err check(const struct speech *s)
{
    TRY(buf_check(&s->content, "an answer", NULL));
    TRY(buf_check(&s->reasoning, "an answer", NULL));
    if (s->blocks != NULL)
        TRY(buf_check(&s->blocks->out, "an answer", NULL));
    return buf_check(&s->calls, "an answer", NULL);
}

enum err speech_feed(struct speech *s, struct str text)
{
    if (tool_parser_is_reasoning(s->parser))
        s->n_reasoning++;
    TRY(tool_parser_feed(s->parser, text, NULL));
    return check(s);
}

enum err speech_end(struct speech *s)
{
    TRY(tool_parser_end(s->parser, NULL));
    return check(s);
}

bool speech_has(const struct speech *s)
{
    return s->content.n > 0 || s->reasoning.n > 0 || s->calls.n > 0;
}

static void add_reasoning(const struct speech *s, struct buf *out)
{
    static const char *const names[] = {"reasoning_content", "reasoning"}; /* clients read one or the other */
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        buf_addf(out, "\"%s\":", names[i]);
        buf_add_json_str(out, buf_str(&s->reasoning));
        buf_add_char(out, ',');
    }
}

static void add_calls(struct speech *s, struct buf *out)
{
    close_call(s);
    buf_add(out, STR("\"tool_calls\":["));
    buf_add(out, buf_str(&s->calls));
    buf_add(out, STR("],"));
}

void speech_message(struct speech *s, struct buf *out)
{
    if (s->reasoning.n > 0)
        add_reasoning(s, out);
    if (s->n_calls > 0)
        add_calls(s, out);
    buf_add(out, STR("\"content\":"));
    if (s->content.n > 0 || s->n_calls == 0)
        buf_add_json_str(out, buf_str(&s->content));
    else
        buf_add(out, STR("null"));
}

void speech_delta(struct speech *s, struct buf *out)
{
    const size_t from = out->n;
    if (s->reasoning.n > 0)
        add_reasoning(s, out);
    if (s->content.n > 0) {
        buf_add(out, STR("\"content\":"));
        buf_add_json_str(out, buf_str(&s->content));
        buf_add_char(out, ',');
    }
    if (s->calls.n > 0)
        add_calls(s, out);
    if (out->failure == OK && out->n > from)
        out->p[--out->n] = '\0'; /* the last comma */
    buf_clear(&s->content);
    buf_clear(&s->reasoning);
    buf_clear(&s->calls);
}
