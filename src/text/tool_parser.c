/* The streaming parser. Text goes into `held`; steps take it off the front, one decision each, until one of them needs
 * more text than there is. A decision depends on the bytes alone and never on where a feed ended, so any cutting gives
 * the same events.
 *
 *   AT_START -> IN_REASONING -> IN_TEXT -> head of a call -> IN_ARGS -> IN_TAIL -> IN_NEXT -> IN_TEXT
 *
 * The head of a call is matched over the held bytes as a whole, again with each feed, and nothing is taken off before
 * it is whole: that is the way back to content. It is short (TOOL_HEAD_BYTES_MAX), so this stays cheap. Behind the head
 * there is no way back, and arguments pass through as they come. */
#include "text/tool_int.h"

#include <string.h>

#define BLANKS_MAX 256 /* white space that is held in case a call follows */

/* ---- held bytes and events ---- */

struct str parser_rest(const struct tool_parser *p)
{
    return p->held.n > 0 ? (struct str){p->held.p + p->at, p->held.n - p->at} : STR("");
}

void parser_drop(struct tool_parser *p, size_t n)
{
    p->at += n;
    assert(p->at <= p->held.n);
}

static void send(struct tool_parser *p, enum tool_event_kind kind, struct str text)
{
    if (text.n > 0)
        p->o.event(p->o.user, &(struct tool_event){.kind = kind, .call = p->n_calls - 1, .text = text});
}

void parser_give(struct tool_parser *p, enum tool_event_kind kind, struct str text)
{
    while (text.n > 0) {
        const char *mark = memchr(text.p, (unsigned char)TOOL_MARK, text.n);
        const size_t n = mark != NULL ? (size_t)(mark - text.p) : text.n;
        send(p, kind, (struct str){text.p, n});
        text = (struct str){text.p + n, text.n - n};
        if (mark == NULL)
            return;
        const char *end = memchr(mark, (unsigned char)TOOL_MARK_END, text.n);
        const size_t name = end != NULL ? (size_t)(end - mark) : 1;
        if (p->o.show_special && end != NULL)
            send(p, kind, (struct str){mark + 1, name - 1});
        const size_t whole = end != NULL ? name + 1 : 1;
        text = (struct str){text.p + whole, text.n - whole};
    }
}

void parser_args(struct tool_parser *p, struct str json)
{
    send(p, TOOL_CALL_ARGS, json);
}

void parser_begin(struct tool_parser *p, const struct tool *tool, struct str id)
{
    p->tool = tool;
    p->in_call = true;
    p->n_calls++;
    p->json = (struct json_scan){0};
    p->value = (struct value_state){0};
    p->python = (struct python_state_machine){.state = PY_KEY, .is_first = true};
    p->o.event(
        p->o.user, &(struct tool_event){.kind = TOOL_CALL_BEGIN, .call = p->n_calls - 1, .text = tool->name, .id = id});
}

void parser_end_call(struct tool_parser *p)
{
    if (!p->in_call)
        return;
    p->in_call = false;
    p->o.event(p->o.user, &(struct tool_event){.kind = TOOL_CALL_END, .call = p->n_calls - 1});
}

const struct tool *parser_find(const struct tool_parser *p, struct str name)
{
    for (size_t i = 0; p->o.tools != NULL && i < p->o.tools->n; i++)
        if (str_eq(p->o.tools->tools[i].name, name))
            return &p->o.tools->tools[i];
    return NULL;
}

size_t parser_scan(struct str s, const struct str *markers, size_t n, size_t *which)
{
    *which = n;
    for (size_t i = 0; i < s.n; i++) {
        for (size_t k = 0; k < n; k++) {
            if (markers[k].n == 0 || s.p[i] != markers[k].p[0])
                continue;
            const size_t len = MIN(s.n - i, markers[k].n);
            if (memcmp(s.p + i, markers[k].p, len) != 0)
                continue;
            if (len == markers[k].n)
                *which = k;
            return i;
        }
        if (s.p[i] == TOOL_MARK) {
            const char *end = memchr(s.p + i, (unsigned char)TOOL_MARK_END, s.n - i);
            if (end == NULL && s.n - i <= TOK_NAME_BYTES_MAX)
                return i;
            i = end != NULL ? (size_t)(end - s.p) : i;
        }
    }
    return s.n;
}

/* ---- white space ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t blanks(struct str s)
{
    size_t n = 0;
    while (n < s.n && is_blank(s.p[n]))
        n++;
    return n;
}

static struct str skip(struct str s, size_t n)
{
    return (struct str){s.p + n, s.n - n};
}

/* ---- reasoning ---- */

static void begin_text(struct tool_parser *p, bool after_reasoning)
{
    p->state = IN_TEXT;
    p->is_fresh = true;
    p->skip_newlines = after_reasoning;
}

static void begin_reasoning(struct tool_parser *p)
{
    p->state = IN_REASONING;
    p->skip_newlines = true;
    p->has_reasoned = false;
}

static enum step step_start(struct tool_parser *p)
{
    const struct str s = parser_rest(p);
    const size_t n = blanks(s);
    if (n == s.n && n < BLANKS_MAX)
        return STEP_MORE;
    switch (n < BLANKS_MAX ? match_prefix(skip(s, n), p->d->think_begin) : MATCH_NO) {
    case MATCH_MORE: return STEP_MORE;
    case MATCH_YES:
        parser_drop(p, n + p->d->think_begin.n);
        begin_reasoning(p);
        return STEP_ON;
    case MATCH_NO: break;
    }
    begin_text(p, false);
    return STEP_ON;
}

/* Newlines at both ends belong to the frame. */
static enum step step_reasoning(struct tool_parser *p)
{
    struct str s = parser_rest(p);
    size_t which, n = 0;
    while (p->skip_newlines && n < s.n && s.p[n] == '\n')
        n++;
    parser_drop(p, n);
    s = skip(s, n);
    if (s.n == 0)
        return STEP_MORE;
    if (p->skip_newlines && !p->has_reasoned) { /* models that open it again, though the prompt did */
        const enum match again = match_prefix(s, p->d->think_begin);
        if (again == MATCH_MORE)
            return STEP_MORE;
        if (again == MATCH_YES) {
            parser_drop(p, p->d->think_begin.n);
            p->has_reasoned = true;
            return STEP_ON;
        }
    }
    p->skip_newlines = false;
    p->has_reasoned = true;
    size_t at = parser_scan(s, &p->d->think_end, 1, &which);
    size_t give = at;
    while (give > 0 && s.p[give - 1] == '\n')
        give--;
    if (at - give > BLANKS_MAX)
        give = at - BLANKS_MAX;
    if (which == 0) {
        parser_give(p, TOOL_REASONING, (struct str){s.p, give});
        parser_drop(p, at + p->d->think_end.n);
        begin_text(p, true);
        return STEP_ON;
    }
    parser_give(p, TOOL_REASONING, (struct str){s.p, give});
    parser_drop(p, give);
    return STEP_MORE;
}

/* ---- content ---- */

static enum step begin_call(struct tool_parser *p, size_t n_before, const struct tool_head *h)
{
    parser_drop(p, n_before + h->n);
    p->in_section = true;
    p->is_fresh = false;
    p->state = IN_ARGS;
    parser_begin(p, h->tool, h->id);
    return STEP_ON;
}

/* A call right here, behind n bytes of white space and perhaps a marker. */
static enum match try_here(struct tool_parser *p, struct str s, size_t n)
{
    struct tool_head h;
    if (p->d->lead.n > 0) {
        const enum match lead = match_prefix(skip(s, n), p->d->lead);
        if (lead == MATCH_MORE)
            return MATCH_MORE;
        n += lead == MATCH_YES ? p->d->lead.n : 0;
    }
    const enum match m = match_head(p, skip(s, n), true, &h);
    if (m == MATCH_YES)
        (void)begin_call(p, n, &h);
    return m;
}

/* White space at the beginning and behind a call is held, because it is dropped when a call follows. Without a trigger
 * a call can only begin an answer. */
static enum step step_fresh(struct tool_parser *p)
{
    struct str s = parser_rest(p);
    size_t n = 0;
    while (p->skip_newlines && n < s.n && s.p[n] == '\n')
        n++;
    parser_drop(p, n);
    s = skip(s, n);
    if (s.n == 0)
        return STEP_MORE;
    p->skip_newlines = false;
    n = blanks(s);
    if (n == s.n && n < BLANKS_MAX)
        return STEP_MORE;
    if (n < BLANKS_MAX && p->o.tools != NULL && (p->d->trigger.n > 0 || !p->after_call)) {
        const enum match m = try_here(p, s, n);
        if (m != MATCH_NO)
            return m == MATCH_MORE ? STEP_MORE : STEP_ON;
    }
    p->is_fresh = false;
    return STEP_ON;
}

static enum step step_text(struct tool_parser *p)
{
    struct tool_head h;
    size_t which;
    if (p->is_fresh)
        return step_fresh(p);
    const struct str s = parser_rest(p);
    const bool looks = p->o.tools != NULL && p->d->trigger.n > 0;
    size_t at = parser_scan(s, &p->d->trigger, looks ? 1 : 0, &which);
    /* one newline before a call is the frame's */
    const bool has_newline = looks && at > 0 && s.p[at - 1] == '\n' && p->d->pieces[PIECE_BETWEEN].n > 0 &&
                             p->d->pieces[PIECE_BETWEEN].p[0] == '\n';
    if (!looks || which != 0) {
        const size_t n = at - (has_newline ? 1 : 0);
        parser_give(p, TOOL_CONTENT, (struct str){s.p, n});
        parser_drop(p, n);
        return STEP_MORE;
    }
    switch (match_head(p, skip(s, at), true, &h)) {
    case MATCH_MORE:
        parser_give(p, TOOL_CONTENT, (struct str){s.p, at - (has_newline ? 1 : 0)});
        parser_drop(p, at - (has_newline ? 1 : 0));
        return STEP_MORE;
    case MATCH_YES:
        parser_give(p, TOOL_CONTENT, (struct str){s.p, at - (has_newline ? 1 : 0)});
        return begin_call(p, at, &h);
    case MATCH_NO: break;
    }
    parser_give(p, TOOL_CONTENT, (struct str){s.p, at + p->d->trigger.n});
    parser_drop(p, at + p->d->trigger.n);
    return STEP_ON;
}

/* ---- calls ---- */

static void leave_call(struct tool_parser *p)
{
    parser_end_call(p);
    p->in_section = false;
    p->after_call = true;
    begin_text(p, false);
}

static enum step step_json(struct tool_parser *p)
{
    const struct str s = parser_rest(p);
    struct json_scan *j = &p->json;
    size_t i = 0;
    bool is_whole = false;
    for (; i < s.n && !is_whole; i++) {
        const char c = s.p[i];
        if (c == TOOL_MARK)
            break;
        if (j->in_string) {
            if (j->is_escaped)
                j->is_escaped = false;
            else if (c == '\\')
                j->is_escaped = true;
            else if (c == '"')
                j->in_string = false;
        } else if (c == '"')
            j->in_string = true;
        else if (c == '{' || c == '[')
            j->depth++;
        else if (c == '}' || c == ']')
            is_whole = --j->depth == 0;
    }
    const bool is_cut = i < s.n && !is_whole;
    parser_args(p, (struct str){s.p, i});
    parser_drop(p, i);
    if (is_whole) {
        parser_end_call(p);
        p->state = IN_TAIL;
    } else if (is_cut) /* a control token inside JSON: the call is over, incomplete */
        leave_call(p);
    return is_whole || is_cut ? STEP_ON : STEP_MORE;
}

/* Decisions about the frame look at so many bytes and no further. */
static struct str window(struct str s)
{
    return (struct str){s.p, MIN(s.n, (size_t)TOOL_HEAD_BYTES_MAX)};
}

static enum step step_tail(struct tool_parser *p)
{
    const struct str s = window(parser_rest(p)), close = p->d->pieces[PIECE_CLOSE];
    size_t at = 0;
    enum match m = MATCH_YES;
    if (p->d->calls->args == ARGS_JSON && close.n > 0 && close.p[0] == '}')
        m = match_members(s, &at);
    if (m == MATCH_YES)
        m = match_piece(close, s, &at, NULL);
    if (m == MATCH_MORE && s.n < TOOL_HEAD_BYTES_MAX)
        return STEP_MORE;
    if (m == MATCH_YES) {
        parser_drop(p, at);
        p->state = IN_NEXT;
    } else
        leave_call(p);
    return STEP_ON;
}

static enum step step_next(struct tool_parser *p)
{
    const struct str s = window(parser_rest(p));
    const struct str section = p->d->pieces[PIECE_SECTION], end = p->d->pieces[PIECE_END];
    struct tool_head h;
    size_t at = 0;
    if (section.n == 0 && p->d->trigger.n > 0) {
        leave_call(p);
        return STEP_ON;
    }
    const size_t n = blanks(s);
    const enum match m = end.n > 0 ? match_piece(end, skip(s, n), &at, NULL) : MATCH_NO;
    if (m == MATCH_YES) {
        parser_drop(p, n + at);
        leave_call(p);
        return STEP_ON;
    }
    at = 0;
    enum match next = match_piece(p->d->pieces[PIECE_BETWEEN], s, &at, NULL);
    if (next == MATCH_YES)
        next = match_head(p, skip(s, at), false, &h);
    if (next == MATCH_NO && n > 0)
        next = match_head(p, skip(s, at = n), false, &h);
    if (next == MATCH_YES)
        return begin_call(p, at, &h);
    if ((m == MATCH_MORE || next == MATCH_MORE) && s.n < TOOL_HEAD_BYTES_MAX)
        return STEP_MORE;
    leave_call(p);
    return STEP_ON;
}

/* ---- the machine ---- */

static enum step step_args(struct tool_parser *p)
{
    switch (p->d->calls->args) {
    case ARGS_JSON: return step_json(p);
    case ARGS_TAGS: return tags_step(p);
    case ARGS_PYTHON: return python_step(p);
    }
    return STEP_MORE;
}

static enum step step(struct tool_parser *p, bool is_last)
{
    if (p->at == p->held.n)
        return STEP_MORE;
    switch (p->state) {
    case AT_START: return step_start(p);
    case IN_REASONING: return step_reasoning(p);
    case IN_TEXT: return step_text(p);
    case IN_ARGS: return step_args(p);
    case IN_TAIL: return step_tail(p);
    case IN_NEXT: return step_next(p);
    case IN_HARMONY: return harmony_step(p, is_last);
    }
    return STEP_MORE;
}

static void compact(struct tool_parser *p)
{
    if (p->at == 0)
        return;
    memmove(p->held.p, p->held.p + p->at, p->held.n - p->at);
    p->held.n -= p->at;
    p->at = 0;
}

/* What a conversion has made of the text so far. */
static enum err send_converted(struct tool_parser *p, struct error *e)
{
    TRY(buf_check(&p->out, "the arguments of a tool call", e));
    if (p->out.n > 0)
        parser_args(p, buf_str(&p->out));
    buf_clear(&p->out);
    return OK;
}

enum err tool_parser_feed(struct tool_parser *p, struct str text, struct error *e)
{
    assert(!p->has_ended);
    buf_add(&p->held, text);
    TRY(buf_check(&p->held, "the text of a tool call", e));
    while (step(p, false) == STEP_ON)
        ;
    compact(p);
    return send_converted(p, e);
}

/* What is held when the text ends. */
static void flush(struct tool_parser *p)
{
    const struct str s = parser_rest(p);
    switch (p->state) {
    case IN_REASONING: {
        size_t n = s.n;
        while (n > 0 && s.p[n - 1] == '\n')
            n--;
        parser_give(p, TOOL_REASONING, (struct str){s.p, n});
        break;
    }
    case AT_START:
    case IN_TEXT:
        if (!(p->after_call && p->is_fresh)) /* else the beginning of a call that would have been the next */
            parser_give(p, TOOL_CONTENT, s);
        break;
    case IN_ARGS:
        if (p->d->calls->args == ARGS_TAGS)
            tags_finish(p);
        break;
    case IN_TAIL: /* a frame that is not whole */
    case IN_NEXT:
    case IN_HARMONY: break; /* gave all it had */
    }
    p->at = p->held.n;
}

enum err tool_parser_end(struct tool_parser *p, struct error *e)
{
    if (p->has_ended)
        return OK;
    while (step(p, true) == STEP_ON)
        ;
    flush(p);
    const enum err err = send_converted(p, e);
    parser_end_call(p);
    p->has_ended = true;
    return err;
}

enum err tool_parser_new(const struct tool_parser_options *o, struct tool_parser **out, struct error *e)
{
    struct tool_parser *p = mem_zalloc(sizeof *p);
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for a parser of tool calls");
    p->o = *o;
    p->d = o->dialect;
    if (p->d->calls == NULL)
        p->o.tools = NULL;
    buf_init(&p->held, TEXT_BYTES_MAX);
    buf_init(&p->out, TEXT_BYTES_MAX);
    if (p->d->is_harmony)
        p->state = IN_HARMONY;
    else if (o->start == REASONING_OPEN && p->d->think_end.n > 0)
        begin_reasoning(p);
    else if (o->start == REASONING_MAY && p->d->think_begin.n > 0)
        p->state = AT_START;
    else
        begin_text(p, false);
    *out = p;
    return OK;
}

void tool_parser_free(struct tool_parser *p)
{
    if (p == NULL)
        return;
    buf_fini(&p->held);
    buf_fini(&p->out);
    mem_free(p);
}

uint32_t tool_parser_calls(const struct tool_parser *p)
{
    return p->n_calls;
}

bool tool_parser_is_reasoning(const struct tool_parser *p)
{
    return p->state == IN_REASONING || (p->state == IN_HARMONY && p->body == TOOL_REASONING);
}
