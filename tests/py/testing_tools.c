/* A door for the Python tests of tool calls: which syntaxes a template shows, what the parser makes of a text, and
 * whether the grammar of the tools takes it. All of it as JSON. */
#include "base/mem.h"
#include "grammar/grammar.h"
#include "text/tool_syntax.h"

#include <string.h>

#define EXPORT    __attribute__((visibility("default")))
#define TOOLS_FEW 16

static void on_event(void *user, const struct tool_event *ev)
{
    static const char *const names[] = {"content", "reasoning", "begin", "args", "end"};
    struct buf *b = user;
    buf_addf(b, "%s[\"%s\",", b->n > 0 ? "," : "", names[ev->kind]);
    buf_add_json_str(b, ev->text);
    buf_add_char(b, ',');
    buf_add_json_str(b, ev->id);
    buf_add_char(b, ']');
}

/* One token for each byte. */
static struct grammar_vocab *byte_vocab(struct error *e)
{
    static char bytes[256];
    static uint32_t offsets[257];
    static uint8_t flags[256];
    static struct vocab_view view;
    struct grammar_vocab *v = NULL;
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        offsets[i + 1] = i + 1;
    }
    view = (struct vocab_view){256, bytes, offsets, flags};
    return grammar_vocab_new(&view, &v, e) == OK ? v : NULL;
}

static bool grammar_takes(const struct tool_dialect *d, const struct tool_list *tools, enum tool_choice choice,
    enum reasoning_start start, struct str text, struct error *e)
{
    struct buf structure;
    struct grammar_vocab *v = byte_vocab(e);
    struct grammar *g = NULL;
    buf_init(&structure, 1u << 24);
    const struct tool_structure_options o = {.tools = tools, .choice = choice, .parallel = true, .start = start};
    bool ok = v != NULL && tool_structure_write(d, &o, &structure, e) == OK;
    const struct grammar_source src = {GRAMMAR_STRUCTURE, buf_str(&structure), GRAMMAR_WS_SPACED};
    ok = ok && grammar_compile(&src, v, &g, e) == OK && grammar_matches(g, text);
    grammar_unref(g);
    grammar_vocab_free(v);
    buf_fini(&structure);
    return ok;
}

static enum err read_all(const struct tool_dialect *d, const struct tool_list *tools, enum reasoning_start start,
    struct str text, struct buf *events, struct error *e)
{
    struct tool_parser *p = NULL;
    const struct tool_parser_options o = {
        .dialect = d, .tools = tools, .start = start, .event = on_event, .user = events};
    TRY(tool_parser_new(&o, &p, e));
    enum err err = tool_parser_feed(p, text, e);
    if (err == OK)
        err = tool_parser_end(p, e);
    tool_parser_free(p);
    return err;
}

static struct str text_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return (struct str){json_is_string(v) ? json_string_value(v) : "", json_string_length(v)};
}

/* {"template", "prompt", "text", "tools": [{"name", "parameters"}]} -> {"calls", "reasoning", "events", "required",
 * "auto", "error"}; bytes written, 0 = no room. */
EXPORT size_t quern_tools_read(const char *input, size_t n, char *out, size_t cap)
{
    struct error e = {0};
    json_t *in = NULL;
    struct tool tools[TOOLS_FEW];
    struct tool_list list = {tools, 0};
    struct tool_dialect *d = NULL;
    struct buf events, all;
    buf_init(&events, 1u << 24);
    buf_init(&all, cap);
    if (json_parse((struct str){input, n}, &in, &e) == OK) {
        const json_t *given = json_object_get(in, "tools");
        for (; list.n < TOOLS_FEW && list.n < json_array_size(given); list.n++)
            tools[list.n] = (struct tool){.name = text_of(json_array_get(given, list.n), "name"),
                .parameters = json_object_get(json_array_get(given, list.n), "parameters")};
        const struct tool_dialect_options o = {.template = text_of(in, "template")};
        if (tool_dialect_new(&o, &d, &e) == OK) {
            const enum reasoning_start start = tool_dialect_start(d, text_of(in, "prompt"));
            const struct str text = text_of(in, "text");
            const char *reasoning = tool_dialect_reasoning(d);
            bool required = false, automatic = false;
            if (list.n > 0 && read_all(d, &list, start, text, &events, &e) == OK) {
                required = grammar_takes(d, &list, TOOLS_REQUIRED, start, text, &e);
                automatic = grammar_takes(d, &list, TOOLS_AUTO, start, text, &e);
            }
            buf_addf(&all,
                "{\"calls\":\"%s\",\"guest\":%s,\"reasoning\":\"%s\",\"required\":%s,\"auto\":%s,\"events\":[",
                tool_dialect_calls(d), tool_dialect_is_guest(d) ? "true" : "false", reasoning != NULL ? reasoning : "",
                required ? "true" : "false", automatic ? "true" : "false");
            buf_add(&all, buf_str(&events));
            buf_add(&all, STR("],\"error\":"));
            buf_add_json_str(&all, str_of(e.text));
            buf_add_char(&all, '}');
        }
    }
    const size_t written = all.failure == OK ? all.n : 0;
    if (written > 0)
        memcpy(out, all.p, written);
    tool_dialect_free(d);
    json_decref(in);
    buf_fini(&events);
    buf_fini(&all);
    return written;
}
