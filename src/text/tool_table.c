/* The tables of syntaxes, detection, and dialects.
 *
 * A row is what the public templates of a family show. Detection looks for what only that family writes, the most
 * particular first; the order of the rows is the order of looking. Markers are control tokens in some vocabularies and
 * plain text in others, so a dialect binds a row to a vocabulary once: each marker that is a control token there is
 * marked in every piece. From then on reading and writing compare bytes. */
#include "text/tool_int.h"

#include <string.h>

#define DS_SECTION                                                                                                     \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "calls\xe2\x96\x81"                                                                                                \
    "begin\xef\xbd\x9c>"
#define DS_SECTION_END                                                                                                 \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "calls\xe2\x96\x81"                                                                                                \
    "end\xef\xbd\x9c>"
#define DS_CALL                                                                                                        \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "call\xe2\x96\x81"                                                                                                 \
    "begin\xef\xbd\x9c>"
#define DS_CALL_END                                                                                                    \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "call\xe2\x96\x81"                                                                                                 \
    "end\xef\xbd\x9c>"
#define DS_SEP                                                                                                         \
    "<\xef\xbd\x9ctool\xe2\x96\x81"                                                                                    \
    "sep\xef\xbd\x9c>"

#define NAME_OPEN   "{\"name\": \""
#define HERMES_OPEN "<tool_call>\n{\"name\": \""
#define ARGS_MIDDLE "\", \"arguments\": "

const char *const harmony_markers[H_COUNT] = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"};

/* Pieces: SECTION, OPEN, MIDDLE, CLOSE, BETWEEN, END, KEY_OPEN, KEY_CLOSE, VALUE_CLOSE. */
const struct tool_syntax tool_syntaxes[] = {
    {.name = "harmony",
        .shape = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
        .is_harmony = true,
        .trigger = "<|channel|>",
        .has = {"<|channel|>", "<|message|>", "<|start|>"}},
    {.name = "glm47",
        .shape = "<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>",
        .args = ARGS_TAGS,
        .trigger = "<tool_call>",
        .pieces = {"", "<tool_call>", "", "</tool_call>", "", "", "<arg_key>", "</arg_key><arg_value>", "</arg_value>"},
        .markers = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
        .has = {"<arg_key>", "</arg_key><arg_value>{"}},
    {.name = "glm45",
        .shape = "<tool_call>NAME\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>",
        .args = ARGS_TAGS,
        .trigger = "<tool_call>",
        .pieces = {"", "<tool_call>", "\n", "</tool_call>", "\n", "", "<arg_key>", "</arg_key>\n<arg_value>",
            "</arg_value>\n"},
        .markers = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
        .has = {"<arg_key>", "<tool_call>"}},
    {.name = "qwen3_coder",
        .shape = "<tool_call>\\n<function=NAME>\\n<parameter=k>\\nv\\n</parameter>\\n</function>\\n</tool_call>",
        .args = ARGS_TAGS,
        .trigger = "<tool_call>",
        .pieces = {"", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", "", "<parameter=", ">\n",
            "\n</parameter>\n"},
        .markers = {"<tool_call>", "</tool_call>"},
        .has = {"<function=", "<parameter=", "<tool_call>"}},
    {.name = "minimax_m2",
        .shape = "<minimax:tool_call>\\n<invoke name=\"NAME\">\\n<parameter name=\"k\">v</parameter>\\n</invoke>\\n"
                 "</minimax:tool_call>",
        .args = ARGS_TAGS,
        .trigger = "<minimax:tool_call>",
        .pieces = {"<minimax:tool_call>\n", "<invoke name=\"", "\">\n", "</invoke>\n", "", "</minimax:tool_call>",
            "<parameter name=\"", "\">", "</parameter>\n"},
        .markers = {"<minimax:tool_call>", "</minimax:tool_call>"},
        .has = {"<minimax:tool_call>", "<invoke name="}},
    {.name = "deepseek_v3",
        .shape = "<tool_calls_begin><tool_call_begin>function<tool_sep>NAME\\n```json\\n{...}\\n```<tool_call_end>"
                 "<tool_calls_end>",
        .trigger = DS_SECTION,
        .pieces = {DS_SECTION, DS_CALL "function" DS_SEP, "\n```json\n", "\n```" DS_CALL_END, "\n", DS_SECTION_END},
        .markers = {DS_SECTION, DS_SECTION_END, DS_CALL, DS_CALL_END, DS_SEP},
        .has = {DS_SECTION, "```json"}},
    {.name = "deepseek_v31",
        .shape = "<tool_calls_begin><tool_call_begin>NAME<tool_sep>{...}<tool_call_end><tool_calls_end>",
        .trigger = DS_SECTION,
        .pieces = {DS_SECTION, DS_CALL, DS_SEP, DS_CALL_END, "", DS_SECTION_END},
        .markers = {DS_SECTION, DS_SECTION_END, DS_CALL, DS_CALL_END, DS_SEP},
        .has = {DS_SECTION}},
    {.name = "kimi_k2",
        .shape = "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}"
                 "<|tool_call_end|><|tool_calls_section_end|>",
        .trigger = "<|tool_calls_section_begin|>",
        .has_function_ids = true,
        .pieces = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>functions.", ":\1<|tool_call_argument_begin|>",
            "<|tool_call_end|>", "", "<|tool_calls_section_end|>"},
        .markers = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>"},
        .has = {"<|tool_calls_section_begin|>"}},
    {.name = "mistral_call_id",
        .shape = "[TOOL_CALLS]NAME[CALL_ID]123456789[ARGS]{...}",
        .trigger = "[TOOL_CALLS]",
        .short_ids = true,
        .pieces = {"", "[TOOL_CALLS]", "[CALL_ID]\2[ARGS]", "", "", ""},
        .markers = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"},
        .has = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}},
    {.name = "mistral",
        .shape = "[TOOL_CALLS]NAME[ARGS]{...}",
        .trigger = "[TOOL_CALLS]",
        .short_ids = true,
        .pieces = {"", "[TOOL_CALLS]", "[ARGS]", "", "", ""},
        .markers = {"[TOOL_CALLS]", "[ARGS]"},
        .has = {"[TOOL_CALLS]", "[ARGS]"}},
    {.name = "mistral_array",
        .shape = "[TOOL_CALLS][{\"name\": \"NAME\", \"arguments\": {...}}]",
        .trigger = "[TOOL_CALLS]",
        .short_ids = true,
        .pieces = {"[TOOL_CALLS][", NAME_OPEN, ARGS_MIDDLE, "}", ", ", "]"},
        .markers = {"[TOOL_CALLS]"},
        .has = {"[TOOL_CALLS]"}},
    {.name = "granite",
        .shape = "<|tool_call|>[{\"name\": \"NAME\", \"arguments\": {...}}]",
        .trigger = "<|tool_call|>",
        .pieces = {"<|tool_call|>[", NAME_OPEN, ARGS_MIDDLE, "}", ", ", "]"},
        .markers = {"<|tool_call|>"},
        .has = {"<|tool_call|>"}},
    {.name = "nemotron",
        .shape = "<TOOLCALL>[{\"name\": \"NAME\", \"arguments\": {...}}]</TOOLCALL>",
        .trigger = "<TOOLCALL>",
        .pieces = {"<TOOLCALL>[", NAME_OPEN, ARGS_MIDDLE, "}", ", ", "]</TOOLCALL>"},
        .markers = {"<TOOLCALL>", "</TOOLCALL>"},
        .has = {"<TOOLCALL>[", "</TOOLCALL>"}},
    {.name = "hermes",
        .shape = "<tool_call>\\n{\"name\": \"NAME\", \"arguments\": {...}}\\n</tool_call>",
        .trigger = "<tool_call>",
        .pieces = {"", HERMES_OPEN, ARGS_MIDDLE, "}\n</tool_call>", "\n", ""},
        .markers = {"<tool_call>", "</tool_call>"},
        .has = {"<tool_call>", "arguments"}},
    {.name = "lfm2",
        .shape = "<|tool_call_start|>[NAME(k=v)]<|tool_call_end|>",
        .args = ARGS_PYTHON,
        .trigger = "<|tool_call_start|>",
        .pieces = {"<|tool_call_start|>[", "", "(", ")", ", ", "]<|tool_call_end|>"},
        .markers = {"<|tool_call_start|>", "<|tool_call_end|>"},
        .has = {"<|tool_call_start|>", "<|tool_call_end|>"}},
    {.name = "llama4_pythonic",
        .shape = "<|python_start|>[NAME(k=v)]<|python_end|>",
        .args = ARGS_PYTHON,
        .trigger = "<|python_start|>",
        .pieces = {"<|python_start|>[", "", "(", ")", ", ", "]<|python_end|>"},
        .markers = {"<|python_start|>", "<|python_end|>"},
        .has = {"<|python_start|>", "<|python_end|>"}},
    {.name = "pythonic",
        .shape = "[NAME(k=v), NAME(k=v)]",
        .args = ARGS_PYTHON,
        .lead = "<|python_tag|>",
        .pieces = {"[", "", "(", ")", ", ", "]"},
        .markers = {"<|python_tag|>"},
        .has = {"[func_name1("}},
    {.name = "llama3_json",
        .shape = "{\"name\": \"NAME\", \"parameters\": {...}}",
        .lead = "<|python_tag|>",
        .pieces = {"", NAME_OPEN, "\", \"parameters\": ", "}", "; ", ""},
        .markers = {"<|python_tag|>"},
        .has = {"\"parameters\": dictionary of argument name and its value"}},
};
const size_t n_tool_syntaxes = COUNT_OF(tool_syntaxes);

const struct reasoning_syntax reasoning_syntaxes[] = {
    {"harmony", "<|channel|>analysis<|message|>...<|end|>", NULL, NULL, true, {"<|channel|>", "<|message|>"}},
    {"seed", "<seed:think>...</seed:think>", "<seed:think>", "</seed:think>", false, {"<seed:think>"}},
    {"mistral", "[THINK]...[/THINK]", "[THINK]", "[/THINK]", false, {"[THINK]", "[/THINK]"}},
    {"think", "<think>...</think>", "<think>", "</think>", false, {"</think>"}},
};
const size_t n_reasoning_syntaxes = COUNT_OF(reasoning_syntaxes);

/* What others call them. */
static const struct {
    const char *alias, *name;
} call_aliases[] = {{"openai", "harmony"}, {"qwen3_xml", "qwen3_coder"}, {"llama4_json", "llama3_json"},
    {"qwen", "hermes"}, {"granite4", "hermes"}, {"nemotron_json", "nemotron"}},
  reasoning_aliases[] = {{"openai_gptoss", "harmony"}, {"deepseek_r1", "think"}, {"deepseek_v3", "think"},
      {"qwen3", "think"}, {"glm45", "think"}, {"minimax_m2", "think"}, {"seed_oss", "seed"}};

bool tool_syntax_row(size_t i, const char **name, const char **shape)
{
    if (i >= n_tool_syntaxes)
        return false;
    *name = tool_syntaxes[i].name;
    *shape = tool_syntaxes[i].shape;
    return true;
}

bool reasoning_syntax_row(size_t i, const char **name, const char **shape)
{
    if (i >= n_reasoning_syntaxes)
        return false;
    *name = reasoning_syntaxes[i].name;
    *shape = reasoning_syntaxes[i].shape;
    return true;
}

/* ---- detection ---- */

static bool contains(struct str text, const char *what)
{
    const size_t n = strlen(what);
    for (size_t i = 0; n <= text.n && i <= text.n - n; i++)
        if (text.p[i] == what[0] && memcmp(text.p + i, what, n) == 0)
            return true;
    return false;
}

static bool has_all(struct str text, const char *const *has, size_t n_max)
{
    for (size_t i = 0; i < n_max && has[i] != NULL; i++)
        if (!contains(text, has[i]))
            return false;
    return true;
}

static const struct tool_syntax *detect_calls(struct str template)
{
    for (size_t i = 0; i < n_tool_syntaxes; i++)
        if (has_all(template, tool_syntaxes[i].has, COUNT_OF(tool_syntaxes[i].has)) &&
            (tool_syntaxes[i].has_not == NULL || !contains(template, tool_syntaxes[i].has_not)))
            return &tool_syntaxes[i];
    return NULL;
}

static const struct reasoning_syntax *detect_reasoning(struct str template)
{
    for (size_t i = 0; i < n_reasoning_syntaxes; i++)
        if (has_all(template, reasoning_syntaxes[i].has, COUNT_OF(reasoning_syntaxes[i].has)))
            return &reasoning_syntaxes[i];
    return NULL;
}

static bool is_auto(const char *name)
{
    return name == NULL || strcmp(name, "auto") == 0;
}

static enum err choose_calls(const struct tool_dialect_options *o, const struct tool_syntax **out, struct error *e)
{
    const char *name = o->calls;
    *out = NULL;
    if (is_auto(name)) {
        *out = detect_calls(o->template);
        if (*out != NULL)
            return OK;
        name = "hermes"; /* what most models have seen */
    }
    if (strcmp(name, "none") == 0)
        return OK;
    for (size_t i = 0; i < COUNT_OF(call_aliases); i++)
        if (strcmp(name, call_aliases[i].alias) == 0)
            name = call_aliases[i].name;
    for (size_t i = 0; i < n_tool_syntaxes && *out == NULL; i++)
        if (strcmp(name, tool_syntaxes[i].name) == 0)
            *out = &tool_syntaxes[i];
    return *out != NULL ? OK : FAIL(e, ERR_INVALID, "there is no tool call syntax '%s'", name);
}

static enum err choose_reasoning(
    const struct tool_dialect_options *o, const struct reasoning_syntax **out, struct error *e)
{
    const char *name = o->reasoning;
    *out = NULL;
    if (is_auto(name)) {
        *out = detect_reasoning(o->template);
        return OK;
    }
    if (strcmp(name, "none") == 0)
        return OK;
    for (size_t i = 0; i < COUNT_OF(reasoning_aliases); i++)
        if (strcmp(name, reasoning_aliases[i].alias) == 0)
            name = reasoning_aliases[i].name;
    for (size_t i = 0; i < n_reasoning_syntaxes && *out == NULL; i++)
        if (strcmp(name, reasoning_syntaxes[i].name) == 0)
            *out = &reasoning_syntaxes[i];
    return *out != NULL ? OK : FAIL(e, ERR_INVALID, "there is no reasoning syntax '%s'", o->reasoning);
}

/* ---- binding ---- */

static bool is_control(const struct vocab_view *v, struct str name)
{
    for (uint32_t i = 0; v != NULL && i < v->n; i++)
        if ((v->flags[i] & VOCAB_SPECIAL) != 0 && str_eq(vocab_bytes(v, i), name))
            return true;
    return false;
}

struct marks {
    struct str names[TOOL_MARKERS_MAX];
    size_t n;
};

/* A copy of a piece in which the control tokens are marked. */
static bool bind(struct tool_dialect *d, const char *piece, const struct marks *m, struct str *out)
{
    const struct str s = str_of(piece != NULL ? piece : "");
    char *to = arena_take(&d->arena, s.n * 3 + 1); /* a marker has at least one byte and gains two */
    size_t n = 0;
    if (to == NULL)
        return false;
    for (size_t i = 0; i < s.n;) {
        size_t k = 0;
        while (k < m->n && !str_has_prefix((struct str){s.p + i, s.n - i}, m->names[k]))
            k++;
        if (k == m->n) {
            to[n++] = s.p[i++];
            continue;
        }
        to[n++] = TOOL_MARK;
        memcpy(to + n, m->names[k].p, m->names[k].n);
        n += m->names[k].n;
        to[n++] = TOOL_MARK_END;
        i += m->names[k].n;
    }
    *out = (struct str){to, n};
    return true;
}

static void mark_if_control(struct marks *m, const struct vocab_view *v, const char *name)
{
    if (name != NULL && is_control(v, str_of(name)))
        m->names[m->n++] = str_of(name);
}

static bool bind_calls(struct tool_dialect *d, const struct vocab_view *v)
{
    const struct tool_syntax *c = d->calls;
    struct marks m = {.n = 0};
    bool ok = true;
    for (size_t i = 0; c != NULL && i < TOOL_MARKERS_MAX; i++)
        mark_if_control(&m, v, c->markers[i]);
    for (size_t i = 0; i < PIECE_COUNT; i++)
        ok = ok && bind(d, c != NULL ? c->pieces[i] : NULL, &m, &d->pieces[i]);
    return ok && bind(d, c != NULL ? c->trigger : NULL, &m, &d->trigger) &&
           bind(d, c != NULL ? c->lead : NULL, &m, &d->lead);
}

static bool bind_reasoning(struct tool_dialect *d, const struct vocab_view *v)
{
    const struct reasoning_syntax *r = d->reasoning;
    struct marks m = {.n = 0};
    if (r != NULL && r->begin != NULL) {
        mark_if_control(&m, v, r->begin);
        mark_if_control(&m, v, r->end);
    }
    return bind(d, r != NULL ? r->begin : NULL, &m, &d->think_begin) &&
           bind(d, r != NULL ? r->end : NULL, &m, &d->think_end);
}

static bool bind_harmony(struct tool_dialect *d, const struct vocab_view *v)
{
    bool ok = true;
    for (size_t i = 0; ok && i < H_COUNT; i++) {
        struct marks m = {.n = 0};
        mark_if_control(&m, v, harmony_markers[i]);
        d->is_control[i] = m.n > 0;
        ok = bind(d, harmony_markers[i], &m, &d->harmony[i]);
    }
    return ok;
}

enum err tool_dialect_new(const struct tool_dialect_options *o, struct tool_dialect **out, struct error *e)
{
    const struct tool_syntax *calls;
    const struct reasoning_syntax *reasoning;
    TRY(choose_calls(o, &calls, e));
    TRY(choose_reasoning(o, &reasoning, e));
    struct tool_dialect *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for a tool call syntax");
    arena_init(&d->arena, MIB);
    d->calls = calls;
    d->reasoning = reasoning;
    d->is_guest = calls != NULL && detect_calls(o->template) != calls;
    d->is_harmony = (calls != NULL && calls->is_harmony) || (reasoning != NULL && reasoning->is_harmony);
    if (!bind_calls(d, o->vocab) || !bind_reasoning(d, o->vocab) || !bind_harmony(d, o->vocab)) {
        tool_dialect_free(d);
        return FAIL(e, ERR_NOMEM, "out of memory for a tool call syntax");
    }
    *out = d;
    return OK;
}

void tool_dialect_free(struct tool_dialect *d)
{
    if (d == NULL)
        return;
    arena_fini(&d->arena);
    mem_free(d);
}

/* ---- questions ---- */

const char *tool_dialect_calls(const struct tool_dialect *d)
{
    return d->calls != NULL ? d->calls->name : NULL;
}

const char *tool_dialect_reasoning(const struct tool_dialect *d)
{
    return d->reasoning != NULL ? d->reasoning->name : NULL;
}

size_t tool_dialect_id_chars(const struct tool_dialect *d)
{
    return d->calls != NULL && d->calls->short_ids ? 9 : 24;
}

bool tool_dialect_is_guest(const struct tool_dialect *d)
{
    return d->is_guest;
}

struct str tool_dialect_think_begin(const struct tool_dialect *d)
{
    const struct reasoning_syntax *r = d->reasoning;
    return str_of(r == NULL ? "" : r->begin != NULL ? r->begin : harmony_markers[H_MESSAGE]);
}

struct str tool_dialect_think_end(const struct tool_dialect *d)
{
    const struct reasoning_syntax *r = d->reasoning;
    return str_of(r == NULL ? "" : r->end != NULL ? r->end : harmony_markers[H_END]);
}

bool tool_dialect_think_head(const struct tool_dialect *d, struct str *mark, struct str *text)
{
    *mark = str_of(harmony_markers[H_CHANNEL]);
    *text = STR("analysis");
    return d->reasoning != NULL && d->reasoning->begin == NULL;
}

static struct str trim_end(struct str s)
{
    while (s.n > 0 && (s.p[s.n - 1] == '\n' || s.p[s.n - 1] == ' '))
        s.n--;
    return s;
}

enum reasoning_start tool_dialect_start(const struct tool_dialect *d, struct str prompt)
{
    const struct reasoning_syntax *r = d->reasoning;
    if (r == NULL)
        return REASONING_CLOSED;
    if (r->begin == NULL)
        return REASONING_MAY;
    prompt = trim_end(prompt);
    if (str_has_suffix(prompt, str_of(r->begin)))
        return REASONING_OPEN;
    return str_has_suffix(prompt, str_of(r->end)) ? REASONING_CLOSED : REASONING_MAY;
}
