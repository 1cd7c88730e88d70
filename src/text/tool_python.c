/* Keyword arguments of a Python call, as JSON: city="Paris", days=[1, 2], deep={'a': None} -> {"city": "Paris", ...}.
 *
 * One byte at a time with a stack of brackets. Only literals are read: strings in either quotes with Python's escapes,
 * numbers, True, False, None, lists, tuples (as lists) and dicts. A word that is none of these becomes a string, so
 * that what comes out is JSON whatever went in. Where the text is no such call at all the arguments end there and the
 * rest is content. */
#include "text/tool_int.h"

#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           c == '-' || c == '+' || ((unsigned char)c >= 0x80 && c != TOOL_MARK && c != TOOL_MARK_END);
}

static void send_out(struct tool_parser *p)
{
    if (p->out.n > 0)
        parser_args(p, buf_str(&p->out));
    buf_clear(&p->out);
}

static void finish(struct tool_parser *p)
{
    send_out(p);
    parser_end_call(p);
    p->state = IN_TAIL;
}

static void put_word(struct tool_parser *p, struct str w)
{
    static const struct {
        const char *python, *json;
    } words[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"}, {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const bool is_key = p->python.wants_key;
    for (size_t i = 0; i < COUNT_OF(words) && !is_key; i++)
        if (str_is(w, words[i].python)) {
            buf_add(&p->out, str_of(words[i].json));
            return;
        }
    if (!is_key && tool_number_types(w) != 0) {
        buf_add(&p->out, w);
        return;
    }
    buf_add_char(&p->out, '"');
    tool_json_escape(&p->out, w);
    buf_add_char(&p->out, '"');
}

static size_t word_length(struct str s)
{
    size_t n = 0;
    while (n < s.n && is_word_char(s.p[n]))
        n++;
    return n;
}

/* ---- strings ---- */

/* Up to eight digits, which fill 32 bits. False when one is none. */
static bool hex_digits(const char *p, size_t n, unsigned *out)
{
    unsigned v = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = p[i];
        const int d = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
        if (d < 0)
            return false;
        v = v * 16 + (unsigned)d;
    }
    *out = v;
    return true;
}

static void put_code(struct buf *out, unsigned c)
{
    if (c > 0xFFFF) {
        c -= 0x10000;
        buf_addf(out, "\\u%04x\\u%04x", 0xD800 + (c >> 10), 0xDC00 + (c & 0x3FF));
    } else
        buf_addf(out, "\\u%04x", c);
}

/* A high surrogate waits for its other half; alone it is U+FFFD, as a low one is. */
static void put_escape_code(struct tool_parser *p, unsigned c)
{
    const bool high = c >= 0xD800 && c < 0xDC00, low = c >= 0xDC00 && c < 0xE000;
    const uint16_t pending = p->python.pending;
    p->python.pending = 0;
    if (pending != 0 && low) {
        put_code(&p->out, 0x10000 + ((unsigned)(pending - 0xD800) << 10) + (c - 0xDC00));
        return;
    }
    if (pending != 0 || low)
        put_code(&p->out, 0xFFFD);
    if (high)
        p->python.pending = (uint16_t)c;
    else if (!low)
        put_code(&p->out, c <= 0x10FFFF ? c : 0xFFFD);
}

/* An escape at the front of s; bytes of it, 0 when more are needed. */
static size_t put_escape(struct tool_parser *p, struct str s)
{
    static const char from[] = "abfnrtv0", to[] = "\a\b\f\n\r\t\v";
    if (s.n < 2)
        return 0;
    const char c = s.p[1];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
        if (s.n < 2 + digits)
            return 0;
        unsigned code;
        if (hex_digits(s.p + 2, digits, &code)) {
            put_escape_code(p, code);
            return 2 + digits;
        }
    }
    if (p->python.pending != 0)
        put_escape_code(p, 0xFFFD);
    const char *known = c != '\0' ? strchr(from, c) : NULL;
    if (c == '\n')
        return 2; /* a line goes on */
    if (known != NULL)
        tool_json_escape(&p->out, (struct str){to + (known - from), 1});
    else if (c == '\\' || c == '\'' || c == '"')
        tool_json_escape(&p->out, (struct str){&c, 1});
    else {
        tool_json_escape(&p->out, (struct str){"\\", 1}); /* unknown ones stay as they are */
        return 1;
    }
    return 2;
}

static void flush_pending(struct tool_parser *p)
{
    if (p->python.pending != 0) {
        p->python.pending = 0;
        put_code(&p->out, 0xFFFD);
    }
}

static enum step step_string(struct tool_parser *p, struct str s)
{
    struct python_state_machine *m = &p->python;
    size_t n = 0;
    while (n < s.n && s.p[n] != '\\' && s.p[n] != m->quote && s.p[n] != TOOL_MARK)
        n++;
    if (n > 0) {
        flush_pending(p);
        tool_json_escape(&p->out, (struct str){s.p, n});
        parser_drop(p, n);
        return STEP_ON;
    }
    if (s.p[0] == TOOL_MARK) {
        finish(p);
        return STEP_ON;
    }
    if (s.p[0] == m->quote) {
        flush_pending(p);
        buf_add_char(&p->out, '"');
        parser_drop(p, 1);
        m->state = PY_AFTER;
        return STEP_ON;
    }
    const size_t used = put_escape(p, s);
    parser_drop(p, used);
    return used > 0 ? STEP_ON : STEP_MORE;
}

/* ---- structure ---- */

static char top(const struct python_state_machine *m)
{
    return m->depth > 0 ? m->stack[m->depth - 1] : '(';
}

/* Behind the opening parenthesis or a comma of the call: a key and '=', or the end. */
static enum step step_key(struct tool_parser *p, struct str s)
{
    struct python_state_machine *m = &p->python;
    if (s.p[0] == ')') {
        buf_add(&p->out, m->is_first ? STR("{}") : STR("}"));
        finish(p);
        return STEP_ON;
    }
    const size_t n = word_length(s);
    size_t at = n;
    while (at < s.n && is_blank(s.p[at]))
        at++;
    if (at == s.n && s.n < TOOL_HEAD_BYTES_MAX)
        return STEP_MORE;
    if (n == 0 || at >= TOOL_HEAD_BYTES_MAX || s.p[at] != '=') {
        buf_add(&p->out, m->is_first ? STR("{}") : STR("}"));
        finish(p); /* no keyword argument */
        return STEP_ON;
    }
    buf_add(&p->out, m->is_first ? STR("{\"") : STR(", \""));
    tool_json_escape(&p->out, (struct str){s.p, n});
    buf_add(&p->out, STR("\": "));
    parser_drop(p, at + 1);
    m->is_first = false;
    m->state = PY_VALUE;
    return STEP_ON;
}

static void open_bracket(struct tool_parser *p, char c)
{
    struct python_state_machine *m = &p->python;
    m->stack[m->depth++] = c;
    buf_add_char(&p->out, c == '{' ? '{' : '[');
    m->is_first = true;
    m->wants_key = c == '{';
    m->state = PY_VALUE;
    parser_drop(p, 1);
}

static void close_bracket(struct tool_parser *p)
{
    struct python_state_machine *m = &p->python;
    m->depth--;
    buf_add_char(&p->out, m->stack[m->depth] == '{' ? '}' : ']');
    m->wants_key = false;
    m->is_first = false;
    m->state = PY_AFTER;
    parser_drop(p, 1);
}

static bool closes(const struct python_state_machine *m, char c)
{
    const char t = top(m);
    return m->depth > 0 && ((t == '[' && c == ']') || (t == '{' && c == '}') || (t == '(' && c == ')'));
}

static enum step step_value(struct tool_parser *p, struct str s)
{
    struct python_state_machine *m = &p->python;
    const char c = s.p[0];
    if (closes(m, c) && (m->is_first || m->wants_key || top(m) != '{')) {
        close_bracket(p);
        return STEP_ON;
    }
    if ((c == '[' || c == '{' || c == '(') && m->depth < PYTHON_DEPTH_MAX && !m->wants_key) {
        if (m->depth > 0 && !m->is_first && top(m) != '{')
            buf_add(&p->out, STR(", "));
        open_bracket(p, c);
        return STEP_ON;
    }
    const size_t n = word_length(s);
    if (n == s.n && n < TOOL_HEAD_BYTES_MAX)
        return STEP_MORE;
    if (c != '"' && c != '\'' && n == 0) {
        finish(p); /* nothing that could be a value */
        return STEP_ON;
    }
    if (m->depth > 0 && !m->is_first && (top(m) != '{' || m->wants_key))
        buf_add(&p->out, STR(", "));
    m->is_first = false;
    if (n > 0) {
        put_word(p, (struct str){s.p, MIN(n, (size_t)TOOL_HEAD_BYTES_MAX)});
        parser_drop(p, MIN(n, (size_t)TOOL_HEAD_BYTES_MAX));
        m->state = PY_AFTER;
        return STEP_ON;
    }
    buf_add_char(&p->out, '"');
    m->quote = c;
    m->state = PY_STRING;
    parser_drop(p, 1);
    return STEP_ON;
}

/* Behind a value. */
static enum step step_after(struct tool_parser *p, char c)
{
    struct python_state_machine *m = &p->python;
    if (m->depth == 0 && (c == ',' || c == ')')) {
        if (c == ',')
            parser_drop(p, 1);
        m->state = PY_KEY;
        return STEP_ON;
    }
    if (m->depth > 0 && top(m) == '{' && m->wants_key && (c == ',' || c == '}'))
        buf_add(&p->out, STR(": null")); /* a set */
    if (m->depth > 0 && c == ',') {
        m->wants_key = top(m) == '{';
        m->state = PY_VALUE;
        parser_drop(p, 1);
        return STEP_ON;
    }
    if (m->depth > 0 && top(m) == '{' && m->wants_key && c == ':') {
        buf_add(&p->out, STR(": "));
        m->wants_key = false;
        m->state = PY_VALUE;
        parser_drop(p, 1);
        return STEP_ON;
    }
    if (closes(m, c)) {
        close_bracket(p);
        return STEP_ON;
    }
    finish(p);
    return STEP_ON;
}

enum step python_step(struct tool_parser *p)
{
    struct python_state_machine *m = &p->python;
    struct str s = parser_rest(p);
    size_t n = 0;
    while (m->state != PY_STRING && n < s.n && is_blank(s.p[n]))
        n++;
    parser_drop(p, n);
    s = (struct str){s.p + n, s.n - n};
    if (s.n == 0)
        return STEP_MORE;
    switch (m->state) {
    case PY_KEY: return step_key(p, s);
    case PY_STRING: return step_string(p, s);
    case PY_AFTER: return step_after(p, s.p[0]);
    case PY_VALUE: return step_value(p, s);
    }
    return STEP_MORE;
}
