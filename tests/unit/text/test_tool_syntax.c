/* Tool calls and reasoning out of generated text: a transcript for every syntax, cut in every way; what merely looks
 * like a call; and random text made of the pieces of all syntaxes, where nothing may be lost. */
#include "testing.h"

#include "base/mem.h"
#include "text/tool_syntax.h"

#include <stdlib.h>

#define M "\xFF"
#define E "\xFE"

/* ---- a record of events as text: content as it is, [r:...] reasoning, [call 0 name id]args[/0] ---- */

struct record {
    struct buf text;
    enum tool_event_kind last;
    bool any;
    uint32_t open; /* calls that began and did not end */
};

static void note(void *user, const struct tool_event *ev)
{
    struct record *r = user;
    assert_true(ev->kind == TOOL_CALL_END || ev->text.n > 0);
    if (r->any && r->last == TOOL_REASONING && ev->kind != TOOL_REASONING)
        buf_add(&r->text, STR("]"));
    switch (ev->kind) {
    case TOOL_REASONING:
        if (!r->any || r->last != TOOL_REASONING)
            buf_add(&r->text, STR("[r:"));
        buf_add(&r->text, ev->text);
        break;
    case TOOL_CONTENT:
        assert_int_equal(r->open, 0);
        buf_add(&r->text, ev->text);
        break;
    case TOOL_CALL_BEGIN:
        assert_int_equal(r->open++, 0);
        buf_addf(&r->text, "[call %u %.*s", ev->call, (int)ev->text.n, ev->text.p);
        if (ev->id.n > 0)
            buf_addf(&r->text, " %.*s", (int)ev->id.n, ev->id.p);
        buf_add(&r->text, STR("]"));
        break;
    case TOOL_CALL_ARGS:
        assert_int_equal(r->open, 1);
        buf_add(&r->text, ev->text);
        break;
    case TOOL_CALL_END:
        assert_int_equal(r->open--, 1);
        buf_addf(&r->text, "[/%u]", ev->call);
        break;
    }
    r->last = ev->kind;
    r->any = true;
}

/* ---- the tools of every test ---- */

static const char tools_json[] =
    "[{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"},\"deep\":{\"type\":\"object\"},\"any\":{},\"maybe\":{\"type\":[\"string\","
    "\"null\"]},\"flag\":{\"type\":\"boolean\"}},\"required\":[\"city\"]}},{\"name\":\"now\"}]";

struct fixture {
    json_t *doc;
    struct tool tools[2];
    struct tool_list list;
};

static int setup(void **state)
{
    struct error err;
    struct fixture *f = mem_zalloc(sizeof *f);
    assert_non_null(f);
    assert_ok(err, json_parse(STR(tools_json), &f->doc, &err));
    for (size_t i = 0; i < 2; i++) {
        const json_t *t = json_array_get(f->doc, i);
        f->tools[i] = (struct tool){.name = str_of(json_string_value(json_object_get(t, "name"))),
            .parameters = json_object_get(t, "parameters")};
    }
    f->list = (struct tool_list){f->tools, 2};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    json_decref(f->doc);
    mem_free(f);
    return 0;
}

/* A vocabulary of control tokens alone. */
struct names {
    char bytes[1024];
    uint32_t offsets[33];
    uint8_t flags[32];
    struct vocab_view view;
};

static void names_init(struct names *v, const char *const *names, size_t n)
{
    *v = (struct names){0};
    for (size_t i = 0; i < n; i++) {
        const size_t len = strlen(names[i]);
        memcpy(v->bytes + v->offsets[i], names[i], len);
        v->offsets[i + 1] = v->offsets[i] + (uint32_t)len;
        v->flags[i] = VOCAB_SPECIAL;
    }
    v->view = (struct vocab_view){(uint32_t)n, v->bytes, v->offsets, v->flags};
}

static struct tool_dialect *dialect_of(const char *calls, const char *reasoning, const struct vocab_view *v)
{
    struct error err;
    struct tool_dialect *d = NULL;
    assert_ok(err,
        tool_dialect_new(&(struct tool_dialect_options){.vocab = v, .calls = calls, .reasoning = reasoning}, &d, &err));
    return d;
}

static void parse_cut(
    const struct tool_parser_options *o, struct str text, const size_t *cuts, size_t n_cuts, struct record *r)
{
    struct error err;
    struct tool_parser *p = NULL;
    struct tool_parser_options own = *o;
    own.event = note;
    own.user = r;
    *r = (struct record){.any = false};
    buf_init(&r->text, 1 << 20);
    assert_ok(err, tool_parser_new(&own, &p, &err));
    size_t at = 0;
    for (size_t i = 0; i <= n_cuts; i++) {
        const size_t to = i < n_cuts ? cuts[i] : text.n;
        assert_ok(err, tool_parser_feed(p, (struct str){text.p + at, to - at}, &err));
        at = to;
    }
    assert_ok(err, tool_parser_end(p, &err));
    assert_int_equal(r->open, 0);
    if (r->any && r->last == TOOL_REASONING)
        buf_add(&r->text, STR("]"));
    tool_parser_free(p);
}

static void expect_cut(
    const struct tool_parser_options *o, struct str text, const size_t *cuts, size_t n_cuts, const char *want)
{
    struct record r;
    parse_cut(o, text, cuts, n_cuts, &r);
    if (!str_is(buf_str(&r.text), want))
        fail_msg("text:  %.*s\nwant:  %s\ngot:   %.*s (%zu cuts, first %zu)", (int)text.n, text.p, want, (int)r.text.n,
            r.text.p != NULL ? r.text.p : "", n_cuts, n_cuts > 0 ? cuts[0] : 0);
    buf_fini(&r.text);
}

/* Whole, byte by byte, and at every pair of places. */
static void expect(const struct tool_parser_options *o, const char *text, const char *want)
{
    const size_t n = strlen(text);
    size_t *all = mem_array(n + 1, sizeof *all);
    assert_non_null(all);
    expect_cut(o, str_of(text), NULL, 0, want);
    for (size_t i = 0; i < n; i++)
        all[i] = i + 1;
    expect_cut(o, str_of(text), all, n, want);
    for (size_t i = 0; i <= n; i++)
        for (size_t k = i; k <= n; k += 7)
            expect_cut(o, str_of(text), (size_t[]){i, k}, 2, want);
    mem_free(all);
}

static void expect_calls(const struct fixture *f, const char *syntax, const char *text, const char *want)
{
    struct tool_dialect *d = dialect_of(syntax, "none", NULL);
    expect(&(struct tool_parser_options){.dialect = d, .tools = &f->list, .start = REASONING_CLOSED}, text, want);
    tool_dialect_free(d);
}

/* ---- each syntax ---- */

#define PARIS "{\"city\": \"Paris\", \"days\": 3}"

static void hermes_calls_are_read_with_any_white_space(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " PARIS "}\n</tool_call>",
        "[call 0 get_weather]" PARIS "[/0]");
    expect_calls(f, "hermes",
        "Let me see.\n<tool_call>{ \"name\" :\"get_weather\" , \"arguments\":{\"city\":\"a}\\\"{\"} }</tool_call>\n"
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
        "Let me see.[call 0 get_weather]{\"city\":\"a}\\\"{\"}[/0][call 1 now]{}[/1]");
    expect_calls(f, "hermes",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}, \"id\": \"x,}\"}\n</tool_call> Done.",
        "[call 0 now]{}[/0] Done.");
}

static void llama_calls_are_read_at_the_beginning_only(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "llama3_json", "{\"name\": \"get_weather\", \"parameters\": " PARIS "}",
        "[call 0 get_weather]" PARIS "[/0]");
    expect_calls(f, "llama3_json",
        "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"arguments\": {}}",
        "[call 0 now]{}[/0][call 1 now]{}[/1]");
    expect_calls(
        f, "llama3_json", "Try {\"name\": \"now\", \"parameters\": {}}", "Try {\"name\": \"now\", \"parameters\": {}}");
    expect_calls(f, "llama3_json", "{\"name\": \"John\", \"age\": 3}", "{\"name\": \"John\", \"age\": 3}");
}

static void pythonic_calls_become_json(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "pythonic", "[get_weather(city='Paris', days=3), now()]",
        "[call 0 get_weather]{\"city\": \"Paris\", \"days\": 3}[/0][call 1 now]{}[/1]");
    expect_calls(f, "pythonic",
        "[get_weather(city=\"a\\n\\x41\\u00e9\\ud83d\\ude00\\'\", deep={'k': [True, None, (1, -2.5e3)], \"e\": {}}, "
        "flag=False)]",
        "[call 0 get_weather]{\"city\": \"a\\n\\u0041\\u00e9\\ud83d\\ude00'\", \"deep\": {\"k\": [true, null, [1, "
        "-2.5e3]], \"e\": {}}, \"flag\": false}[/0]");
    expect_calls(f, "pythonic", "[1, 2] is a list", "[1, 2] is a list");
    expect_calls(f, "pythonic", "[now(", "[call 0 now][/0]");
    expect_calls(f, "pythonic", "[get_weather(city='\\U0001F600\\UdE009999')]",
        "[call 0 get_weather]{\"city\": \"\\ud83d\\ude00\\ufffd\"}[/0]");
    expect_calls(f, "pythonic", "[get_weather(city='Pa", "[call 0 get_weather]{\"city\": \"Pa[/0]");
    expect_calls(f, "pythonic", "[get_weather(city=word, days=07)]",
        "[call 0 get_weather]{\"city\": \"word\", \"days\": \"07\"}[/0]");
    expect_calls(f, "llama4_pythonic", "So:<|python_start|>[now()]<|python_end|>", "So:[call 0 now]{}[/0]");
    expect_calls(f, "lfm2", "<|tool_call_start|>[now()]<|tool_call_end|>Wait.", "[call 0 now]{}[/0]Wait.");
}

static void tags_take_their_types_from_the_schema(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "qwen3_coder",
        "Sure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPar\"is\n\n  x\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=any>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
        "Sure.\n[call 0 get_weather]{\"city\": \"Par\\\"is\\n\\n  x\", \"days\": 3, \"any\": [1, 2]}[/0]");
    expect_calls(f, "qwen3_coder",
        "<tool_call><function=get_weather><parameter=city>7</parameter><parameter=days>many</parameter>"
        "<parameter=maybe>null</parameter><parameter=other>x</parameter></function></tool_call>",
        "[call 0 get_weather]{\"city\": \"7\", \"days\": \"many\", \"maybe\": null, \"other\": \"x\"}[/0]");
    expect_calls(f, "qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "[call 0 now]{}[/0]");
    expect_calls(f, "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>flag</arg_key>\n"
        "<arg_value>true</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        "[call 0 get_weather]{\"city\": \"Paris\", \"flag\": true}[/0][call 1 now]{}[/1]");
    expect_calls(f, "glm47",
        "<tool_call>get_weather<arg_key>deep</arg_key><arg_value>{\"a\": 1}</arg_value></tool_call>",
        "[call 0 get_weather]{\"deep\": {\"a\": 1}}[/0]");
    expect_calls(f, "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n"
        "<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
        "[call 0 get_weather]{\"city\": \"Paris\"}[/0][call 1 now]{}[/1]");
}

static void mistral_calls_are_read_in_three_forms(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "mistral_array",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " PARIS "}, {\"name\": \"now\", \"arguments\": {}, "
        "\"id\": \"abc\"}]",
        "[call 0 get_weather]" PARIS "[/0][call 1 now]{}[/1]");
    expect_calls(f, "mistral", "Ok.[TOOL_CALLS]get_weather[ARGS]" PARIS "[TOOL_CALLS]now[ARGS]{}",
        "Ok.[call 0 get_weather]" PARIS "[/0][call 1 now]{}[/1]");
    expect_calls(f, "mistral_call_id", "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}", "[call 0 now abcdefghi]{}[/0]");
}

#define DS(x) "<\xef\xbd\x9ctool\xe2\x96\x81" x "\xef\xbd\x9c>"
#define DS_BEGIN                                                                                                       \
    DS("calls\xe2\x96\x81"                                                                                             \
       "begin")
#define DS_END                                                                                                         \
    DS("calls\xe2\x96\x81"                                                                                             \
       "end")
#define DS_CALL                                                                                                        \
    DS("call\xe2\x96\x81"                                                                                              \
       "begin")
#define DS_DONE                                                                                                        \
    DS("call\xe2\x96\x81"                                                                                              \
       "end")

static void sections_of_calls_are_read(void **state)
{
    const struct fixture *f = *state;
    expect_calls(f, "deepseek_v3",
        "Hm." DS_BEGIN DS_CALL "function" DS("sep") "get_weather\n```json\n" PARIS "\n```" DS_DONE "\n" DS_CALL
                                                    "function" DS("sep") "now\n```json\n{}\n```" DS_DONE DS_END,
        "Hm.[call 0 get_weather]" PARIS "[/0][call 1 now]{}[/1]");
    expect_calls(f, "deepseek_v31",
        DS_BEGIN DS_CALL "now" DS("sep") "{}" DS_DONE DS_CALL "now" DS("sep") "{}" DS_DONE DS_END "x",
        "[call 0 now]{}[/0][call 1 now]{}[/1]x");
    expect_calls(f, "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>" PARIS
        "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "[call 0 get_weather functions.get_weather:0]" PARIS "[/0][call 1 now functions.now:1]{}[/1]");
    expect_calls(f, "granite", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]", "[call 0 now]{}[/0]");
    expect_calls(f, "nemotron", "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>", "[call 0 now]{}[/0]");
}

static void harmony_channels_are_told_apart(void **state)
{
    const struct fixture *f = *state;
    static const char *const specials[] = {
        "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"};
    struct names v;
    names_init(&v, specials, COUNT_OF(specials));
    struct tool_dialect *d = dialect_of("harmony", "harmony", &v.view), *plain = dialect_of("harmony", "harmony", NULL);
    const struct tool_parser_options o = {.dialect = d, .tools = &f->list, .start = REASONING_MAY};
    const struct tool_parser_options q = {.dialect = plain, .tools = &f->list, .start = REASONING_MAY};
    expect(&o,
        M "<|channel|>" E "analysis" M "<|message|>" E "Think <|end|> on." M "<|end|>" E M "<|start|>" E "assistant" M
          "<|channel|>" E "commentary to=functions.get_weather " M "<|constrain|>" E "json" M "<|message|>" E PARIS M
          "<|call|>" E,
        "[r:Think <|end|> on.][call 0 get_weather]" PARIS "[/0]");
    expect(&q, "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B <b> c<|return|>",
        "[r:A]B <b> c");
    expect(&q, " to=functions.now<|channel|>commentary json<|message|>{}", "[call 0 now]{}[/0]");
    expect(&q, "<|channel|>commentary to=functions.other<|message|>{}", "{}");
    expect(&q, "<|channel|>analysis", "");
    expect(&q, "just text", "just text");
    tool_dialect_free(d);
    tool_dialect_free(plain);
}

/* ---- what is no call ---- */

static void what_is_no_call_stays_content(void **state)
{
    const struct fixture *f = *state;
    static const char *const texts[] = {"<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": 3}\n</tool_call>", "<tool_call>", "<tool_call>\n{\"name\"",
        "a <tool_call b <tool_cal", "<tool_call>{\"arguments\": {}, \"name\": \"now\"}</tool_call>", "x\n", "\n\n", ""};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        expect_calls(f, "hermes", texts[i], texts[i]);
    expect_calls(f, "hermes", "<tool_call> no <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        "<tool_call> no [call 0 now]{}[/0]");
    expect_calls(f, "hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {}} oops", "[call 0 now]{}[/0]} oops");
    expect_calls(f, "hermes", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa",
        "[call 0 get_weather]{\"city\": \"Pa[/0]");
    expect_calls(f, "qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        "[call 0 get_weather]{\"city\": \"Par[/0]");
    expect_calls(
        f, "mistral_array", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, 3]", "[call 0 now]{}[/0], 3]");
}

static void without_tools_calls_are_content(void **state)
{
    (void)state;
    static const char text[] = "a\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    struct tool_dialect *d = dialect_of("hermes", "none", NULL);
    expect(&(struct tool_parser_options){.dialect = d, .start = REASONING_CLOSED}, text, text);
    tool_dialect_free(d);
}

static void control_tokens_are_never_shown(void **state)
{
    const struct fixture *f = *state;
    static const char *const specials[] = {"[TOOL_CALLS]", "[ARGS]", "<|x|>"};
    struct names v;
    names_init(&v, specials, COUNT_OF(specials));
    struct tool_dialect *d = dialect_of("mistral", "none", &v.view);
    struct tool_parser_options o = {.dialect = d, .tools = &f->list, .start = REASONING_CLOSED};
    expect(&o, "a" M "<|x|>" E "b", "ab");
    expect(&o, "It spells [TOOL_CALLS]now[ARGS]{}", "It spells [TOOL_CALLS]now[ARGS]{}");
    expect(&o, "a" M "[TOOL_CALLS]" E "now" M "[ARGS]" E "{}", "a[call 0 now]{}[/0]");
    expect(&o, M "[TOOL_CALLS]" E "then" M "[ARGS]" E "{}", "then{}");
    expect(&o, M "[TOOL_CALLS]" E "now" M "[ARGS]" E "{\"a\":" M "<|x|>" E "1}", "[call 0 now]{\"a\":[/0]1}");
    o.show_special = true;
    expect(&o, "a" M "<|x|>" E "b", "a<|x|>b");
    tool_dialect_free(d);
    struct tool_dialect *q = dialect_of("qwen3_coder", "none", &v.view);
    o = (struct tool_parser_options){.dialect = q, .tools = &f->list, .start = REASONING_CLOSED};
    expect(&o, "<tool_call><function=get_weather><parameter=city>a" M "<|x|>" E "b</parameter></function></tool_call>",
        "[call 0 get_weather]{\"city\": \"ab\"}[/0]");
    tool_dialect_free(q);
}

/* ---- reasoning ---- */

static void thoughts_are_split_off(void **state)
{
    const struct fixture *f = *state;
    struct tool_dialect *d = dialect_of("hermes", "think", NULL);
    struct tool_parser_options o = {.dialect = d, .tools = &f->list, .start = REASONING_MAY};
    expect(&o, "<think>\nHm, 1 < 2.\n\n</think>\n\nYes.", "[r:Hm, 1 < 2.]Yes.");
    expect(&o, "\n<think>a</think>b <think>c</think>", "[r:a]b <think>c</think>");
    expect(&o, "No <think>ing", "No <think>ing");
    expect(&o, "<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        "[call 0 now]{}[/0]");
    expect(&o, "<think>never\nends\n", "[r:never\nends]");
    expect(&o, "<thin", "<thin");
    o.start = REASONING_OPEN;
    expect(&o, "so\n</think>\n\nb", "[r:so]b");
    expect(&o, "<think>\nso\n</think>b", "[r:so]b");
    expect(&o, "use <tool_call> now</think>ok", "[r:use <tool_call> now]ok");
    o.start = REASONING_CLOSED;
    expect(&o, "<think>a</think>b", "<think>a</think>b");
    tool_dialect_free(d);
}

static void the_prompt_says_whether_thinking_has_begun(void **state)
{
    (void)state;
    struct tool_dialect *d = dialect_of("none", "think", NULL), *none = dialect_of("none", "none", NULL);
    assert_int_equal(tool_dialect_start(d, STR("<|im_start|>assistant\n")), REASONING_MAY);
    assert_int_equal(tool_dialect_start(d, STR("<|im_start|>assistant\n<think>\n")), REASONING_OPEN);
    assert_int_equal(tool_dialect_start(d, STR("assistant\n<think>\n\n</think>\n\n")), REASONING_CLOSED);
    assert_int_equal(tool_dialect_start(none, STR("assistant\n<think>\n")), REASONING_CLOSED);
    tool_dialect_free(d);
    tool_dialect_free(none);
}

/* ---- detection ---- */

static void syntaxes_are_found_in_templates(void **state)
{
    (void)state;
    static const struct {
        const char *template, *calls, *reasoning;
    } cases[] = {{"{{ '<tool_call>\\n{\"name\": ' }} \"arguments\" <think> </think>", "hermes", "think"},
        {"[TOOL_CALLS] [ARGS] [CALL_ID]", "mistral_call_id", NULL}, {"[TOOL_CALLS] [ARGS]", "mistral", NULL},
        {"[TOOL_CALLS][", "mistral_array", NULL}, {"<|start|><|channel|>analysis<|message|>", "harmony", "harmony"},
        {"no tools here", "hermes", NULL}, {"", "hermes", NULL}};
    struct error err;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct tool_dialect *d = NULL;
        assert_ok(
            err, tool_dialect_new(&(struct tool_dialect_options){.template = str_of(cases[i].template)}, &d, &err));
        const char *calls = tool_dialect_calls(d), *reasoning = tool_dialect_reasoning(d);
        assert_int_equal(tool_dialect_is_guest(d), i >= COUNT_OF(cases) - 2);
        assert_string_equal(calls != NULL ? calls : "-", cases[i].calls != NULL ? cases[i].calls : "-");
        assert_string_equal(reasoning != NULL ? reasoning : "-", cases[i].reasoning != NULL ? cases[i].reasoning : "-");
        tool_dialect_free(d);
    }
    struct tool_dialect *d = NULL;
    assert_fails(
        err, ERR_INVALID, "'nope'", tool_dialect_new(&(struct tool_dialect_options){.calls = "nope"}, &d, &err));
    assert_fails(
        err, ERR_INVALID, "'nope'", tool_dialect_new(&(struct tool_dialect_options){.reasoning = "nope"}, &d, &err));
}

/* ---- structures ---- */

static void structures_are_json_for_every_syntax(void **state)
{
    const struct fixture *f = *state;
    struct error err;
    const char *name, *shape;
    for (size_t i = 0; tool_syntax_row(i, &name, &shape); i++)
        for (unsigned k = 0; k < 12; k++) {
            struct tool_dialect *d = dialect_of(name, "think", NULL);
            struct buf out;
            json_t *doc = NULL;
            buf_init(&out, 1 << 20);
            const struct tool_structure_options o = {.tools = &f->list,
                .choice = k % 2 != 0 ? TOOLS_AUTO : TOOLS_REQUIRED,
                .parallel = k % 4 >= 2,
                .start = (enum reasoning_start)(k / 4)};
            assert_ok(err, tool_structure_write(d, &o, &out, &err));
            assert_ok(err, json_parse(buf_str(&out), &doc, &err));
            assert_non_null(json_object_get(doc, "type"));
            json_decref(doc);
            buf_fini(&out);
            tool_dialect_free(d);
        }
}

static void strict_tools_are_refused_what_tags_cannot_promise(void **state)
{
    (void)state;
    struct error err;
    json_t *schema = NULL;
    assert_ok(err, json_parse(STR("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3}}}"),
                       &schema, &err));
    struct tool t = {.name = STR("f"), .parameters = schema, .strict = true};
    const struct tool_list list = {&t, 1};
    struct tool_dialect *d = dialect_of("qwen3_coder", "none", NULL);
    struct buf out;
    buf_init(&out, 1 << 20);
    const struct tool_structure_options o = {.tools = &list, .choice = TOOLS_REQUIRED, .start = REASONING_CLOSED};
    assert_fails(err, ERR_UNSUPPORTED, "maxLength", tool_structure_write(d, &o, &out, &err));
    t.strict = false;
    assert_ok(err, tool_structure_write(d, &o, &out, &err));
    buf_fini(&out);
    tool_dialect_free(d);
    json_decref(schema);
}

/* ---- random text ---- */

static uint64_t rng_state = 1;

static uint32_t draw(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng_state >> 33) % below);
}

/* Pieces of every syntax in any order: events are the same however the text is cut, and what has no call in it comes
 * out whole. */
static void any_text_cut_anywhere_gives_the_same_events(void **state)
{
    const struct fixture *f = *state;
    static const char *const pieces[] = {"<tool_call>", "</tool_call>", "\n", " ", "{\"name\": \"", "now",
        "get_weather", "\", \"arguments\": ", "{}", "}", "{\"city\": \"x\"}", "[", "]", ", ", "; ", "[TOOL_CALLS]",
        "[ARGS]", "(", ")", "city=", "'a'", "\"b\\", "<function=", ">", "</function>", "<parameter=city>",
        "</parameter>", "<think>", "</think>", "<|channel|>", "analysis", "<|message|>", "<|end|>", "to=functions.now",
        "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "words", "\xc3\xa9", M "<|x|>" E, "True", "{",
        "\\u00e", "\"", "<tool_call>\n{\"name\": \"now\", \"arguments\": "};
    const char *name, *shape;
    for (size_t row = 0; tool_syntax_row(row, &name, &shape); row++)
        for (unsigned round = 0; round < 120; round++) {
            struct tool_dialect *d = dialect_of(name, round % 2 != 0 ? "think" : "none", NULL);
            const struct tool_parser_options o = {
                .dialect = d, .tools = &f->list, .start = (enum reasoning_start)draw(3)};
            struct buf text;
            struct record whole, cut;
            size_t cuts[64], n_cuts = 0;
            buf_init(&text, 1 << 16);
            for (uint32_t n = 1 + draw(24); n > 0; n--)
                buf_add(&text, str_of(pieces[draw(COUNT_OF(pieces))]));
            parse_cut(&o, buf_str(&text), NULL, 0, &whole);
            for (size_t at = 0; n_cuts < 64 && at < text.n; n_cuts++) {
                const size_t step = 1 + draw(9);
                cuts[n_cuts] = at = MIN(at + step, text.n);
            }
            parse_cut(&o, buf_str(&text), cuts, n_cuts, &cut);
            if (!str_eq(buf_str(&whole.text), buf_str(&cut.text)))
                fail_msg("%s: %.*s\nwhole: %.*s\ncut:   %.*s", name, (int)text.n, text.p, (int)whole.text.n,
                    whole.text.p, (int)cut.text.n, cut.text.p);
            assert_null(memchr(whole.text.p != NULL ? whole.text.p : "", 0xFF, whole.text.n));
            buf_fini(&whole.text);
            buf_fini(&cut.text);
            buf_fini(&text);
            tool_dialect_free(d);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hermes_calls_are_read_with_any_white_space, setup, teardown),
        cmocka_unit_test_setup_teardown(llama_calls_are_read_at_the_beginning_only, setup, teardown),
        cmocka_unit_test_setup_teardown(pythonic_calls_become_json, setup, teardown),
        cmocka_unit_test_setup_teardown(tags_take_their_types_from_the_schema, setup, teardown),
        cmocka_unit_test_setup_teardown(mistral_calls_are_read_in_three_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(sections_of_calls_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(harmony_channels_are_told_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_call_stays_content, setup, teardown),
        cmocka_unit_test_setup_teardown(without_tools_calls_are_content, setup, teardown),
        cmocka_unit_test_setup_teardown(control_tokens_are_never_shown, setup, teardown),
        cmocka_unit_test_setup_teardown(thoughts_are_split_off, setup, teardown),
        cmocka_unit_test_setup_teardown(the_prompt_says_whether_thinking_has_begun, setup, teardown),
        cmocka_unit_test_setup_teardown(syntaxes_are_found_in_templates, setup, teardown),
        cmocka_unit_test_setup_teardown(structures_are_json_for_every_syntax, setup, teardown),
        cmocka_unit_test_setup_teardown(strict_tools_are_refused_what_tags_cannot_promise, setup, teardown),
        cmocka_unit_test_setup_teardown(any_text_cut_anywhere_gives_the_same_events, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
