/* Harmony: messages with a channel and perhaps a recipient.
 *
 *   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
 *   <|message|>{...}<|call|>   ...<|start|>assistant<|channel|>final<|message|>...<|return|>
 *
 * The prompt ends in <|start|>assistant, so an answer begins with the rest of a header. The channel `analysis` is
 * reasoning; a message to functions.NAME of a known tool is a call, whatever its channel; all else is content. A header
 * is held until its <|message|>; one that is too long, or that never comes to its message, is content. */
#include "text/tool_int.h"

#include <string.h>

static struct str skip(struct str s, size_t n)
{
    return (struct str){s.p + n, s.n - n};
}

static size_t find(struct str s, struct str what)
{
    for (size_t i = 0; what.n <= s.n && i <= s.n - what.n; i++)
        if (memcmp(s.p + i, what.p, what.n) == 0)
            return i;
    return s.n;
}

/* The word behind `what`: up to a blank, a marker or the end. */
static struct str word_behind(struct str s, struct str what)
{
    const size_t at = find(s, what);
    if (at == s.n)
        return (struct str){s.p, 0};
    s = skip(s, at + what.n);
    size_t n = 0;
    while (n < s.n && s.p[n] != ' ' && s.p[n] != '<' && s.p[n] != TOOL_MARK && s.p[n] != '\n')
        n++;
    return (struct str){s.p, n};
}

static void begin_body(struct tool_parser *p, struct str header)
{
    const struct str to = word_behind(header, STR("to="));
    const struct str channel = word_behind(header, p->d->harmony[H_CHANNEL]);
    const struct tool *tool =
        str_has_prefix(to, STR("functions.")) ? parser_find(p, skip(to, strlen("functions."))) : NULL;
    p->harmony = HARMONY_BODY;
    p->body = TOOL_CONTENT;
    if (tool != NULL) {
        p->body = TOOL_CALL_ARGS;
        parser_begin(p, tool, (struct str){0});
    } else if (p->d->reasoning != NULL && str_is(channel, "analysis"))
        p->body = TOOL_REASONING;
}

/* Everything up to <|message|>; it begins with <|channel|>, or with a recipient. */
static enum step step_header(struct tool_parser *p, bool is_last)
{
    const struct str s = parser_rest(p);
    size_t which;
    const size_t at = parser_scan(s, &p->d->harmony[H_MESSAGE], 1, &which);
    if (which == 0 && at <= TOOL_HEAD_BYTES_MAX) {
        begin_body(p, (struct str){s.p, at});
        parser_drop(p, at + p->d->harmony[H_MESSAGE].n);
        return STEP_ON;
    }
    if (s.n <= TOOL_HEAD_BYTES_MAX + p->d->harmony[H_MESSAGE].n && !is_last)
        return STEP_MORE;
    if (is_last && match_prefix(s, p->d->harmony[H_CHANNEL]) == MATCH_YES) {
        parser_drop(p, s.n); /* a frame that is not whole */
        return STEP_MORE;
    }
    p->harmony = HARMONY_BODY; /* no header */
    p->body = TOOL_CONTENT;
    return STEP_ON;
}

static enum step step_body(struct tool_parser *p, bool is_last)
{
    static const enum harmony_marker ends[] = {H_END, H_CALL, H_RETURN, H_START, H_CHANNEL};
    struct str markers[COUNT_OF(ends)];
    const struct str s = parser_rest(p);
    size_t which;
    for (size_t i = 0; i < COUNT_OF(ends); i++)
        markers[i] = p->d->harmony[ends[i]];
    size_t at = parser_scan(s, markers, COUNT_OF(ends), &which);
    if (is_last && which == COUNT_OF(ends))
        at = s.n;
    parser_give(p, p->body, (struct str){s.p, at});
    if (which == COUNT_OF(ends)) {
        parser_drop(p, at);
        return STEP_MORE;
    }
    parser_end_call(p);
    p->harmony = HARMONY_BETWEEN;
    parser_drop(p, at + (ends[which] == H_CHANNEL ? 0 : markers[which].n));
    if (ends[which] == H_START || ends[which] == H_CHANNEL)
        p->harmony = HARMONY_HEADER;
    return STEP_ON;
}

/* Behind a message, and at the beginning: a header. What is none is content. */
static enum step step_between(struct tool_parser *p, bool is_last)
{
    static const struct str to = {"to=", 3};
    const struct str s = parser_rest(p);
    const struct str begins[] = {p->d->harmony[H_START], p->d->harmony[H_CHANNEL], to};
    size_t n = 0;
    bool more = false;
    while (n < s.n && (s.p[n] == ' ' || s.p[n] == '\n'))
        n++;
    for (size_t i = 0; i < COUNT_OF(begins); i++) {
        const enum match m = match_prefix(skip(s, n), begins[i]);
        more |= m == MATCH_MORE;
        if (m == MATCH_YES) {
            parser_drop(p, n + (i == 0 ? begins[i].n : 0));
            p->harmony = HARMONY_HEADER;
            return STEP_ON;
        }
    }
    if (more && !is_last)
        return STEP_MORE;
    p->harmony = HARMONY_BODY;
    p->body = TOOL_CONTENT;
    return STEP_ON;
}

enum step harmony_step(struct tool_parser *p, bool is_last)
{
    switch (p->harmony) {
    case HARMONY_HEADER: return step_header(p, is_last);
    case HARMONY_BODY: return step_body(p, is_last);
    case HARMONY_BETWEEN: return step_between(p, is_last);
    }
    return STEP_MORE;
}
