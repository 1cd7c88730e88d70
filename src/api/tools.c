/* Tool calls and reasoning of a chat request; see tools.h. */
#include "api/tools.h"

#include "api/fields.h"

#include <stdlib.h>
#include <string.h>

/* ---- the tools ---- */

static bool is_name(struct str s)
{
    bool ok = s.n > 0 && s.n <= TOOL_NAME_BYTES_MAX;
    for (size_t i = 0; ok && i < s.n; i++) {
        const char c = s.p[i];
        ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
             c == '.';
    }
    return ok;
}

static size_t json_bytes(const json_t *v)
{
    return json_dumpb(v, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
}

static bool check_parameters(const json_t *schema, size_t i, struct api_error *ae)
{
    const json_t *type = json_object_get(schema, "type");
    if (!json_is_object(schema))
        return api_fail(ae, 400, "tools", "'tools[%zu].function.parameters' must be a JSON schema, an object", i);
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0))
        return api_fail(ae, 400, "tools", "'tools[%zu].function.parameters' must be a schema of type 'object'", i);
    const size_t bytes = json_bytes(schema);
    if (bytes > TOOL_SCHEMA_BYTES_MAX)
        return api_fail(ae, 400, "tools", "'tools[%zu].function.parameters' has %zu bytes; the limit is %d", i, bytes,
            TOOL_SCHEMA_BYTES_MAX);
    return true;
}

static bool read_tool(const json_t *v, size_t i, struct tool *out, struct api_error *ae)
{
    const json_t *type = json_object_get(v, "type"), *f = json_object_get(v, "function");
    const json_t *name = json_object_get(f, "name"), *parameters = json_object_get(f, "parameters");
    const json_t *strict = json_object_get(f, "strict"), *about = json_object_get(f, "description");
    if (!json_is_object(v) || !json_is_object(f))
        return api_fail(ae, 400, "tools", "'tools[%zu]' must be an object with a 'function'", i);
    if (type != NULL && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return api_fail(ae, 400, "tools", "'tools[%zu].type' must be 'function'", i);
    *out = (struct tool){.name = {json_string_value(name), json_string_length(name)}};
    if (!json_is_string(name) || !is_name(out->name))
        return api_fail(ae, 400, "tools",
            "'tools[%zu].function.name' must have 1 to %d letters, digits, '_', '-' or '.'", i, TOOL_NAME_BYTES_MAX);
    if (about != NULL && !json_is_null(about) && !json_is_string(about))
        return api_fail(ae, 400, "tools", "'tools[%zu].function.description' must be a string", i);
    if (strict != NULL && !json_is_null(strict) && !json_is_boolean(strict))
        return api_fail(ae, 400, "tools", "'tools[%zu].function.strict' must be true or false", i);
    out->strict = json_is_true(strict);
    if (parameters == NULL || json_is_null(parameters))
        return true;
    out->parameters = parameters;
    return check_parameters(parameters, i, ae);
}

static bool read_tools(struct tool_ask *t, struct in in)
{
    const json_t *list = NULL;
    if (!in_array(in, "tools", TOOLS_MAX, &list))
        return false;
    const size_t n = json_array_size(list);
    if (n == 0)
        return true;
    if (json_bytes(list) > TOOLS_BYTES_MAX)
        return api_fail(in.ae, 400, "tools", "'tools' has %zu bytes; the limit is %llu", json_bytes(list),
            (unsigned long long)TOOLS_BYTES_MAX);
    t->tools = mem_array(n, sizeof *t->tools);
    if (t->tools == NULL)
        return api_fail_err(in.ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; i < n; i++) {
        if (!read_tool(json_array_get(list, i), i, &t->tools[i], in.ae))
            return false;
        for (size_t k = 0; k < i; k++)
            if (str_eq(t->tools[k].name, t->tools[i].name))
                return api_fail(in.ae, 400, "tools", "'tools[%zu].function.name' is that of 'tools[%zu]'", i, k);
    }
    t->json = json_incref((json_t *)(uintptr_t)list);
    t->list = t->callable = (struct tool_list){t->tools, n};
    return true;
}

static bool choose_named(struct tool_ask *t, const json_t *choice, struct api_error *ae)
{
    const json_t *type = json_object_get(choice, "type");
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    if (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0 || !json_is_string(name))
        return api_fail(ae, 400, "tool_choice",
            "'tool_choice' must be 'none', 'auto', 'required' or {\"type\": \"function\", \"function\": {\"name\": "
            "...}}");
    const struct str wanted = {json_string_value(name), json_string_length(name)};
    for (size_t i = 0; i < t->list.n; i++)
        if (str_eq(t->list.tools[i].name, wanted)) {
            t->callable = (struct tool_list){&t->list.tools[i], 1};
            t->choice = TOOLS_REQUIRED;
            t->parallel = false; /* one is named: one is called */
            return true;
        }
    return api_fail(ae, 400, "tool_choice", "'tool_choice' names a function that is not in 'tools'");
}

static bool read_choice(struct tool_ask *t, struct in in)
{
    const json_t *choice = in_get(in, "tool_choice");
    t->parallel = true;
    if (!in_bool(in, "parallel_tool_calls", &t->parallel))
        return false;
    t->choice = t->list.n > 0 ? TOOLS_AUTO : TOOLS_NONE;
    if (choice == NULL)
        return true;
    const char *word = json_string_value(choice);
    if (word != NULL && strcmp(word, "none") == 0) {
        t->choice = TOOLS_NONE;
        return true;
    }
    if (word != NULL && strcmp(word, "auto") == 0)
        return true;
    if (t->list.n == 0)
        return api_fail(in.ae, 400, "tool_choice", "'tool_choice' needs 'tools'");
    if (word == NULL)
        return choose_named(t, choice, in.ae);
    if (strcmp(word, "required") != 0)
        return api_fail(in.ae, 400, "tool_choice", "'tool_choice' must be 'none', 'auto', 'required' or an object");
    t->choice = TOOLS_REQUIRED;
    return true;
}

/* ---- reasoning ---- */

static bool read_reasoning(struct tool_ask *t, struct in in, const struct tool_dialect *d)
{
    const json_t *o = NULL;
    t->include_reasoning = true;
    t->budget = THINK_ANY;
    if (!in_bool(in, "include_reasoning", &t->include_reasoning) || !in_object(in, "reasoning", &o) ||
        !in_u32(in, "thinking_token_budget", 0, MODEL_CONTEXT_MAX, &t->budget) ||
        !in_u32(in, "thinking_budget", 0, MODEL_CONTEXT_MAX, &t->budget))
        return false;
    const struct in inner = {o, in.ae};
    bool exclude = !t->include_reasoning;
    if (o != NULL &&
        (!in_u32(inner, "max_tokens", 0, MODEL_CONTEXT_MAX, &t->budget) || !in_bool(inner, "exclude", &exclude)))
        return false;
    t->include_reasoning = !exclude;
    if (t->budget != THINK_ANY && tool_dialect_think_end(d).n == 0)
        return api_fail_code(in.ae, 400, "thinking_budget", "unsupported_parameter",
            "a budget for thinking is refused: the model does not mark its reasoning");
    return true;
}

bool tool_ask_read(struct call *c, const json_t *doc, struct tool_ask **out, struct api_error *ae)
{
    const struct in in = {doc, ae};
    const struct tool_dialect *d = c->s->dialect;
    struct tool_ask *t = mem_zalloc(sizeof *t);
    *out = t;
    if (t == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    if (!read_tools(t, in) || !read_choice(t, in) || !read_reasoning(t, in, d))
        return false;
    if (t->choice != TOOLS_NONE && tool_dialect_calls(d) == NULL)
        return api_fail_code(ae, 400, "tools", "unsupported_parameter",
            "'tools' is refused: the server was started with --tool-call-parser none");
    return true;
}

void tool_ask_free(struct tool_ask *t)
{
    if (t == NULL)
        return;
    json_decref(t->json);
    mem_free(t->tools);
    mem_free(t);
}

/* ---- the grammar of the answer ---- */

static void add_choices(struct str list, struct buf *out)
{
    struct error e = {0};
    json_t *texts = NULL;
    if (json_parse(list, &texts, &e) != OK)
        out->failure = ERR_INTERNAL; /* it was made from JSON */
    buf_add(out, STR("{\"type\":\"choice\",\"parts\":["));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *v = json_array_get(texts, i);
        buf_add(out, i > 0 ? STR(",{\"type\":\"text\",\"value\":") : STR("{\"type\":\"text\",\"value\":"));
        buf_add_json_str(out, (struct str){json_string_value(v), json_string_length(v)});
        buf_add_char(out, '}');
    }
    buf_add(out, STR("]}"));
    json_decref(texts);
}

/* A constraint as a part of a structure. */
static void add_part(const struct grammar_source *src, struct buf *out)
{
    switch (src->kind) {
    case GRAMMAR_JSON_SCHEMA:
        buf_add(out, STR("{\"type\":\"json\",\"schema\":"));
        buf_add(out, src->text);
        break;
    case GRAMMAR_JSON_OBJECT: buf_add(out, STR("{\"type\":\"json_object\"")); break;
    case GRAMMAR_REGEX:
        buf_add(out, STR("{\"type\":\"regex\",\"pattern\":"));
        buf_add_json_str(out, src->text);
        break;
    case GRAMMAR_EBNF:
        buf_add(out, STR("{\"type\":\"ebnf\",\"grammar\":"));
        buf_add_json_str(out, src->text);
        break;
    case GRAMMAR_CHOICE: add_choices(src->text, out); return;
    case GRAMMAR_STRUCTURE: buf_add(out, src->text); return;
    }
    buf_add_char(out, '}');
}

static bool constrain(const struct tool_ask *t, const struct tool_dialect *d, struct fields *f, struct buf *part,
    struct buf *out, struct api_error *ae)
{
    struct error e = {0};
    const bool has_part = f->constraint_field != NULL;
    const char *field = t->choice != TOOLS_NONE ? "tools" : f->constraint_field;
    if (has_part)
        add_part(&f->constraint, part);
    if (buf_check(part, "the constraint", &e) != OK)
        return api_fail_err(ae, &e, field);
    const struct tool_structure_options o = {.tools = &t->callable,
        .choice = t->choice,
        .parallel = t->parallel,
        .start = t->start,
        .other = has_part ? buf_str(part) : (struct str){0}};
    if (t->choice == TOOLS_NONE)
        tool_structure_after_reasoning(d, t->start, buf_str(part), out);
    else if (tool_structure_write(d, &o, out, &e) != OK)
        return api_fail_err(ae, &e, field);
    if (buf_check(out, "the constraint", &e) != OK)
        return api_fail_err(ae, &e, field);
    mem_free(f->constraint_text);
    f->constraint_text = NULL;
    f->constraint_field = NULL;
    return constraint_set(f, field, GRAMMAR_STRUCTURE, buf_str(out), ae);
}

bool tool_ask_prompt(struct tool_ask *t, struct call *c, struct str prompt, struct fields *f, struct api_error *ae)
{
    const struct tool_dialect *d = c->s->dialect;
    const bool reasons = tool_dialect_reasoning(d) != NULL;
    t->start = tool_dialect_start(d, prompt);
    t->parses = t->choice != TOOLS_NONE || reasons;
    if (t->choice == TOOLS_NONE && (f->constraint_field == NULL || !reasons))
        return true;
    struct buf part, out;
    buf_init(&part, 4 * TOOLS_BYTES_MAX);
    buf_init(&out, 16 * TOOLS_BYTES_MAX);
    const bool ok = constrain(t, d, f, &part, &out, ae);
    buf_fini(&part);
    buf_fini(&out);
    return ok;
}

/* The last text before part n that is a plain word: in a call that is the name. */
static struct str name_before(const json_t *parts, size_t n)
{
    struct str found = {0};
    for (size_t i = 0; i < n && i < json_array_size(parts); i++) {
        const json_t *v = json_object_get(json_array_get(parts, i), "value");
        const struct str s = {json_string_value(v), json_string_length(v)};
        if (json_is_string(v) && is_name(s))
            found = s;
    }
    return found;
}

void tools_explain(struct str structure, struct error *e)
{
    static const char into[] = ".parts[", schema[] = ".schema: ";
    struct error none = {0};
    json_t *doc = NULL;
    struct str name = {0};
    const char *why = strstr(e->text, schema), *at = e->text;
    if (why == NULL || json_parse(structure, &doc, &none) != OK)
        return;
    for (const json_t *v = doc; (at = strstr(at, into)) != NULL && at < why && name.n == 0; at++) {
        const size_t i = (size_t)strtoul(at + strlen(into), NULL, 10);
        if (json_object_get(v, "part") != NULL) /* a repeat is a step of its own */
            v = json_object_get(v, "part");
        const json_t *parts = json_object_get(v, "parts");
        const char *type = json_string_value(json_object_get(v, "type"));
        if (type != NULL && strcmp(type, "sequence") == 0)
            name = name_before(parts, i);
        v = json_array_get(parts, i);
    }
    struct error own = {0};
    if (name.n > 0)
        (void)FAIL(&own, e->code, "tool '%.*s': %s", (int)name.n, name.p, why + strlen(schema));
    else
        (void)FAIL(&own, e->code, "%s", why + strlen(schema));
    json_decref(doc);
    *e = own;
}

/* ---- messages that are sent back ---- */

/* Templates write arguments themselves, from JSON. What is no JSON stays text: it came from an answer cut short. */
static json_t *arguments_of(const json_t *v)
{
    struct error e = {0};
    json_t *out = NULL;
    if (!json_is_string(v))
        return v != NULL ? json_incref((json_t *)(uintptr_t)v) : json_object();
    const struct str text = {json_string_value(v), json_string_length(v)};
    if (text.n == 0)
        return json_object();
    if (json_parse(text, &out, &e) != OK || !json_is_object(out)) {
        json_decref(out);
        return json_incref((json_t *)(uintptr_t)v);
    }
    return out;
}

static bool ready_call(json_t *call, size_t i, size_t k, struct api_error *ae)
{
    json_t *f = json_object_get(call, "function");
    const json_t *name = json_object_get(f, "name"), *arguments = json_object_get(f, "arguments");
    const json_t *id = json_object_get(call, "id");
    if (!json_is_object(call) || !json_is_object(f) || !json_is_string(name))
        return api_fail(
            ae, 400, "messages", "'messages[%zu].tool_calls[%zu]' must have a 'function' with a 'name'", i, k);
    if (arguments != NULL && !json_is_string(arguments) && !json_is_object(arguments))
        return api_fail(
            ae, 400, "messages", "'messages[%zu].tool_calls[%zu].function.arguments' must be a string", i, k);
    if (id != NULL && !json_is_null(id) && !json_is_string(id))
        return api_fail(ae, 400, "messages", "'messages[%zu].tool_calls[%zu].id' must be a string", i, k);
    json_t *own = json_object();
    if (own == NULL || json_object_set(own, "name", (json_t *)(uintptr_t)name) != 0 ||
        json_object_set_new(own, "arguments", arguments_of(arguments)) != 0 ||
        json_object_set(call, "function", own) != 0) {
        json_decref(own);
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    json_decref(own);
    return true;
}

bool tools_message(json_t *message, size_t i, struct api_error *ae)
{
    json_t *calls = json_object_get(message, "tool_calls"), *reasoning = json_object_get(message, "reasoning");
    const json_t *id = json_object_get(message, "tool_call_id");
    if (id != NULL && !json_is_null(id) && !json_is_string(id))
        return api_fail(ae, 400, "messages", "'messages[%zu].tool_call_id' must be a string", i);
    if (json_is_string(reasoning) && json_object_get(message, "reasoning_content") == NULL &&
        json_object_set(message, "reasoning_content", reasoning) != 0)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    if (calls == NULL)
        return true;
    if (json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        json_object_del(message, "tool_calls"); /* templates ask whether it is there */
        return true;
    }
    if (json_is_null(json_object_get(message, "content")) || json_object_get(message, "content") == NULL) {
        json_t *nothing = json_string(""); /* many templates would write "None" */
        if (nothing == NULL || json_object_set_new(message, "content", nothing) != 0)
            return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    if (!json_is_array(calls) || json_array_size(calls) > TOOL_CALLS_MAX)
        return api_fail(
            ae, 400, "messages", "'messages[%zu].tool_calls' must be an array of at most %d calls", i, TOOL_CALLS_MAX);
    for (size_t k = 0; k < json_array_size(calls); k++)
        if (!ready_call(json_array_get(calls, k), i, k, ae))
            return false;
    return true;
}

bool tools_instruct(struct call *c, const json_t *tools, json_t *messages, struct api_error *ae)
{
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    const json_t *content = json_object_get(first, "content");
    const bool has_system = role != NULL && strcmp(role, "system") == 0 && json_is_string(content);
    struct buf text;
    buf_init(&text, CHAT_STRING_BYTES_MAX);
    if (has_system && json_string_length(content) > 0) {
        buf_add(&text, (struct str){json_string_value(content), json_string_length(content)});
        buf_add(&text, STR("\n\n"));
    }
    tool_dialect_instruct(c->s->dialect, tools, &text);
    const bool is_long = text.failure == ERR_LIMIT;
    json_t *said = text.failure == OK ? json_stringn(text.p, text.n) : NULL;
    buf_fini(&text);
    if (is_long)
        return api_fail(ae, 400, "tools", "the tools are too long for a system message");
    json_t *message = has_system ? json_incref(first) : json_pack("{s:s}", "role", "system");
    bool ok = said != NULL && message != NULL && json_object_set(message, "content", said) == 0 &&
              (has_system || json_array_insert(messages, 0, message) == 0);
    json_decref(said);
    json_decref(message);
    return ok || api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
}

bool tools_kwargs(const json_t *doc, json_t *kwargs, struct api_error *ae)
{
    const json_t *reasoning = json_object_get(doc, "reasoning");
    const json_t *effort = json_object_get(doc, "reasoning_effort"), *budget = json_object_get(doc, "thinking_budget");
    const json_t *enabled = json_object_get(reasoning, "enabled");
    if (!json_is_string(effort))
        effort = json_object_get(reasoning, "effort");
    if (!json_is_integer(budget))
        budget = json_object_get(doc, "thinking_token_budget");
    if (!json_is_integer(budget))
        budget = json_object_get(reasoning, "max_tokens");
    const bool off = (json_is_string(effort) && strcmp(json_string_value(effort), "none") == 0) ||
                     (json_is_integer(budget) && json_integer_value(budget) == 0) || json_is_false(enabled);
    bool ok = true;
    if (json_is_string(effort) && json_object_get(kwargs, "reasoning_effort") == NULL)
        ok = json_object_set(kwargs, "reasoning_effort", (json_t *)(uintptr_t)effort) == 0;
    if (ok && off && json_object_get(kwargs, "enable_thinking") == NULL)
        ok = json_object_set_new(kwargs, "enable_thinking", json_false()) == 0;
    return ok || api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
}
