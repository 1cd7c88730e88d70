/* Any text through the parser of tool calls, in every syntax: no crash, every call that begins ends, the same events
 * however the text is cut, and text without tools comes out as it went in. The first three bytes choose the syntax, how
 * it starts and the cuts. */
#include "text/tool_syntax.h"

#include "base/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

struct seen {
    struct buf text; /* all events, neighbours of a kind joined */
    int last;
    bool open;
};

static void note(void *user, const struct tool_event *ev)
{
    struct seen *s = user;
    if ((ev->kind == TOOL_CALL_BEGIN) == s->open && ev->kind >= TOOL_CALL_BEGIN)
        __builtin_trap();
    if (s->open && ev->kind < TOOL_CALL_BEGIN)
        __builtin_trap();
    if (ev->kind == TOOL_CALL_BEGIN || ev->kind == TOOL_CALL_END)
        s->open = ev->kind == TOOL_CALL_BEGIN;
    if (s->last != (int)ev->kind || ev->kind == TOOL_CALL_BEGIN)
        buf_addf(&s->text, "|%d|", (int)ev->kind);
    s->last = (int)ev->kind;
    buf_add(&s->text, ev->text);
}

static void parse(const struct tool_parser_options *o, struct str text, size_t step, struct seen *s)
{
    struct error e = {0};
    struct tool_parser *p = NULL;
    struct tool_parser_options own = *o;
    own.event = note;
    own.user = s;
    *s = (struct seen){.last = -1};
    buf_init(&s->text, 1u << 26);
    if (tool_parser_new(&own, &p, &e) != OK)
        __builtin_trap();
    for (size_t at = 0; at < text.n; at += step)
        if (tool_parser_feed(p, (struct str){text.p + at, MIN(step, text.n - at)}, &e) != OK)
            __builtin_trap();
    if (tool_parser_end(p, &e) != OK || s->open)
        __builtin_trap();
    tool_parser_free(p);
}

static struct tool_dialect *dialects[64][2];
static size_t n_rows;
static struct tool tools[2] = {{.name = {"now", 3}}, {.name = {"f", 1}}};

static void make(void)
{
    const char *name, *shape;
    struct error e = {0};
    json_t *schema = NULL;
    if (json_parse(STR("{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}"), &schema, &e) !=
        OK)
        __builtin_trap();
    tools[1].parameters = schema;
    for (; tool_syntax_row(n_rows, &name, &shape); n_rows++)
        for (int k = 0; k < 2; k++)
            if (tool_dialect_new(&(struct tool_dialect_options){.calls = name, .reasoning = k != 0 ? "think" : "none"},
                    &dialects[n_rows][k], &e) != OK)
                __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct tool_list list = {tools, 2};
    struct seen whole, cut;
    if (n < 3)
        return 0;
    if (n_rows == 0)
        make();
    const struct tool_dialect *d = dialects[data[0] % n_rows][data[1] & 1];
    struct tool_parser_options o = {.dialect = d,
        .tools = &list,
        .start = (enum reasoning_start)((data[1] >> 1) % 3),
        .show_special = (data[1] & 8) != 0};
    const struct str text = {(const char *)data + 3, n - 3};
    parse(&o, text, MAX(text.n, (size_t)1), &whole);
    parse(&o, text, 1 + data[2] % 17, &cut);
    if (!str_eq(buf_str(&whole.text), buf_str(&cut.text)))
        __builtin_trap();
    buf_fini(&whole.text);
    buf_fini(&cut.text);
    if (data[0] % n_rows != 0 && (data[1] & 1) == 0 && memchr(text.p, TOOL_MARK, text.n) == NULL) {
        o.tools = NULL;
        parse(&o, text, 1 + data[2] % 17, &cut);
        const struct str got = buf_str(&cut.text);
        if (text.n > 0 && (got.n != text.n + 3 || memcmp(got.p + 3, text.p, text.n) != 0))
            __builtin_trap();
        buf_fini(&cut.text);
    }
    return 0;
}
