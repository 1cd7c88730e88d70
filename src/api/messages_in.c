/* A request of the Messages API, said as a chat request: see messages.h. What chat cannot say is refused by name here,
 * so that errors speak of the fields that were sent. */
#include "api/messages.h"

#include <string.h>

struct trip {
    json_t *chat, *messages; /* messages is in chat */
    struct api_error *ae;
};

/* All of these take a new value over, whatever becomes of it. */
static bool put(struct trip *t, json_t *object, const char *key, json_t *value)
{
    if (value != NULL && json_object_set_new(object, key, value) == 0)
        return true;
    return api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
}

static bool append(struct trip *t, json_t *array, json_t *value)
{
    if (value != NULL && json_array_append_new(array, value) == 0)
        return true;
    return api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
}

static bool is_type(const json_t *block, const char *type)
{
    const char *s = json_string_value(json_object_get(block, "type"));
    return s != NULL && strcmp(s, type) == 0;
}

/* The text of a string or of text blocks, with newlines between; anything else is refused naming the field. */
static bool text_of(struct trip *t, const json_t *content, const char *field, json_t **out)
{
    struct buf text;
    bool ok = true;
    if (json_is_string(content)) {
        *out = json_copy((json_t *)(uintptr_t)content);
        return *out != NULL || api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    buf_init(&text, REQ_ANSWER_BYTES_MAX);
    if (!json_is_array(content))
        ok = api_fail(t->ae, 400, field, "'%s' must be a string or an array of blocks", field);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i), *s = json_object_get(block, "text");
        if (!is_type(block, "text") || !json_is_string(s))
            ok = api_fail_code(t->ae, 400, field, "unsupported_parameter",
                "block %zu of '%s' is not text, and this model reads nothing else", i, field);
        else {
            if (i > 0)
                buf_add_char(&text, '\n');
            buf_add(&text, (struct str){json_string_value(s), json_string_length(s)});
        }
    }
    *out = NULL;
    if (ok && buf_check(&text, field, NULL) == OK)
        *out = json_stringn(text.n > 0 ? text.p : "", text.n);
    if (ok && *out == NULL)
        ok = api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    buf_fini(&text);
    return ok;
}

static bool add_message(struct trip *t, const char *role, json_t *content)
{
    json_t *m = json_object();
    if (m == NULL || !put(t, m, "role", json_string(role)) || json_object_set_new(m, "content", content) != 0) {
        json_decref(m);
        return api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    return append(t, t->messages, m);
}

/* ---- what a user said: texts, and results of calls ---- */

static bool add_result(struct trip *t, const json_t *block)
{
    const json_t *id = json_object_get(block, "tool_use_id"), *content = json_object_get(block, "content");
    json_t *text = NULL;
    if (!json_is_string(id))
        return api_fail(t->ae, 400, "messages", "a block of type 'tool_result' needs 'tool_use_id', a string");
    if (content == NULL)
        text = json_string("");
    else if (!text_of(t, content, "tool_result.content", &text))
        return false;
    if (!add_message(t, "tool", text))
        return false;
    json_t *m = json_array_get(t->messages, json_array_size(t->messages) - 1);
    return put(t, m, "tool_call_id", json_string(json_string_value(id)));
}

static bool add_user(struct trip *t, const json_t *content)
{
    json_t *rest = json_array(), *text = NULL;
    bool ok = rest != NULL || api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        json_t *block = json_array_get(content, i);
        if (is_type(block, "tool_result"))
            ok = add_result(t, block);
        else
            ok = append(t, rest, json_incref(block));
    }
    if (ok && (json_array_size(rest) > 0 || json_array_size(content) == 0))
        ok = text_of(t, rest, "messages", &text) && add_message(t, "user", text);
    json_decref(rest);
    return ok;
}

/* ---- what the model said: thoughts, texts, calls ---- */

static bool add_call(struct trip *t, const json_t *block, json_t *calls)
{
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return api_fail(t->ae, 400, "messages",
            "a block of type 'tool_use' needs 'id' and 'name', strings, and 'input', an object");
    char *arguments = json_dumps(input, JSON_ENCODE_ANY);
    json_t *call = arguments == NULL
                       ? NULL
                       : json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", json_string_value(id), "type", "function",
                             "function", "name", json_string_value(name), "arguments", arguments);
    mem_free(arguments);
    return append(t, calls, call);
}

static bool add_assistant(struct trip *t, const json_t *content)
{
    json_t *texts = json_array(), *calls = json_array(), *text = NULL;
    const json_t *thought = NULL;
    bool ok = (texts != NULL && calls != NULL) || api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        json_t *block = json_array_get(content, i);
        if (is_type(block, "tool_use"))
            ok = add_call(t, block, calls);
        else if (is_type(block, "thinking"))
            thought = json_object_get(block, "thinking");
        else
            ok = append(t, texts, json_incref(block));
    }
    ok = ok && text_of(t, texts, "messages", &text) && add_message(t, "assistant", text);
    json_t *m = ok ? json_array_get(t->messages, json_array_size(t->messages) - 1) : NULL;
    if (ok && json_is_string(thought))
        ok = put(t, m, "reasoning_content", json_incref((json_t *)(uintptr_t)thought));
    if (ok && json_array_size(calls) > 0)
        ok = put(t, m, "tool_calls", json_incref(calls));
    json_decref(texts);
    json_decref(calls);
    return ok;
}

static bool add_messages(struct trip *t, const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        const bool is_user = role != NULL && strcmp(role, "user") == 0;
        if (!is_user && (role == NULL || strcmp(role, "assistant") != 0))
            return api_fail(t->ae, 400, "messages", "the role of message %zu must be 'user' or 'assistant'", i);
        if (json_is_string(content)) {
            if (!add_message(t, role, json_incref((json_t *)(uintptr_t)content)))
                return false;
        } else if (!json_is_array(content)) {
            return api_fail(t->ae, 400, "messages", "the content of message %zu must be a string or blocks", i);
        } else if (!(is_user ? add_user : add_assistant)(t, content))
            return false;
    }
    return true;
}

/* ---- the other fields ---- */

static bool add_tools(struct trip *t, const json_t *tools)
{
    json_t *out = json_array();
    bool ok = out != NULL || api_fail_err(t->ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *name = json_object_get(tool, "name"),
                     *about = json_object_get(tool, "description"), *schema = json_object_get(tool, "input_schema");
        if (json_object_get(tool, "type") != NULL && !is_type(tool, "custom"))
            ok = api_fail_code(t->ae, 400, "tools", "unsupported_parameter",
                "tool %zu is one that the server would have to run; only tools of type 'custom' are known", i);
        else if (!json_is_string(name) || !json_is_object(schema))
            ok = api_fail(t->ae, 400, "tools", "tool %zu needs 'name', a string, and 'input_schema', an object", i);
        else {
            json_t *f = json_pack("{s:O, s:O}", "name", name, "parameters", schema);
            if (f != NULL && json_is_string(about))
                ok = put(t, f, "description", json_incref((json_t *)(uintptr_t)about));
            ok = append(t, out, json_pack("{s:s, s:o}", "type", "function", "function", f)) && ok;
        }
    }
    if (ok)
        return put(t, t->chat, "tools", out);
    json_decref(out);
    return false;
}

static bool add_tool_choice(struct trip *t, const json_t *choice)
{
    bool alone = false;
    if (is_type(choice, "auto") || is_type(choice, "none")) {
        if (!put(t, t->chat, "tool_choice", json_incref(json_object_get(choice, "type"))))
            return false;
    } else if (is_type(choice, "any")) {
        if (!put(t, t->chat, "tool_choice", json_string("required")))
            return false;
    } else if (is_type(choice, "tool") && json_is_string(json_object_get(choice, "name"))) {
        if (!put(t, t->chat, "tool_choice",
                json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", json_object_get(choice, "name"))))
            return false;
    } else
        return api_fail(t->ae, 400, "tool_choice",
            "'tool_choice' must be an object of type 'auto', 'any', 'none', or 'tool' with a 'name'");
    if (!in_bool((struct in){choice, t->ae}, "disable_parallel_tool_use", &alone))
        return false;
    return !alone || put(t, t->chat, "parallel_tool_calls", json_false());
}

static bool add_thinking(struct trip *t, const json_t *thinking)
{
    uint32_t budget = 0;
    if (is_type(thinking, "disabled"))
        return put(t, t->chat, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 0));
    if (!is_type(thinking, "enabled"))
        return api_fail(t->ae, 400, "thinking", "'thinking' must be an object of type 'enabled' or 'disabled'");
    if (!in_u32((struct in){thinking, t->ae}, "budget_tokens", 1, MODEL_CONTEXT_MAX, &budget))
        return false;
    return budget == 0 || put(t, t->chat, "thinking_budget", json_integer(budget));
}

static bool copy_fields(struct trip *t, const json_t *doc)
{
    static const char *const same[][2] = {{"model", "model"}, {"max_tokens", "max_tokens"},
        {"temperature", "temperature"}, {"top_p", "top_p"}, {"top_k", "top_k"}, {"stream", "stream"},
        {"stop_sequences", "stop"}, {"seed", "seed"}, {"response_format", "response_format"},
        {"structured_outputs", "structured_outputs"}, {"guided_json", "guided_json"}, {"guided_regex", "guided_regex"},
        {"guided_choice", "guided_choice"}, {"guided_grammar", "guided_grammar"}, {"json_schema", "json_schema"},
        {"grammar", "grammar"}};
    static const char *const refused[] = {"container", "mcp_servers", "context_management"};
    for (size_t i = 0; i < COUNT_OF(refused); i++)
        if (json_object_get(doc, refused[i]) != NULL && !json_is_null(json_object_get(doc, refused[i])))
            return api_fail_code(t->ae, 400, refused[i], "unsupported_parameter",
                "'%s' is refused: there is nothing like it", refused[i]);
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        json_t *v = json_object_get(doc, same[i][0]);
        if (v != NULL && !put(t, t->chat, same[i][1], json_incref(v)))
            return false;
    }
    return true;
}

/* The format of an answer: {"type": "json_schema", "schema": ...}, by either of its names. */
static bool add_format(struct trip *t, const json_t *format, const char *name)
{
    const json_t *schema = json_object_get(format, "schema");
    if (!is_type(format, "json_schema") || schema == NULL)
        return api_fail(
            t->ae, 400, name, "'%s' must be an object of type 'json_schema' with a 'schema', and nothing else", name);
    return put(t, t->chat, "response_format",
        json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema));
}

static bool add_formats(struct trip *t, const json_t *doc)
{
    const struct in in = {doc, t->ae};
    const json_t *format = NULL, *config = NULL;
    if (!in_object(in, "output_format", &format) || !in_object(in, "output_config", &config))
        return false;
    json_t *o = (json_t *)(uintptr_t)config; /* iterators want it so */
    for (void *it = json_object_iter(o); it != NULL; it = json_object_iter_next(o, it))
        if (strcmp(json_object_iter_key(it), "format") != 0 && !json_is_null(json_object_iter_value(it)))
            return api_fail_code(t->ae, 400, "output_config", "unsupported_parameter", "'output_config.%s' is refused",
                json_object_iter_key(it));
    const json_t *inner = json_object_get(config, "format");
    if (format != NULL && inner != NULL)
        return api_fail(
            t->ae, 400, "output_config", "'output_format' and 'output_config.format' say the same; one is enough");
    if (json_object_get(t->chat, "response_format") != NULL && (format != NULL || inner != NULL))
        return api_fail(t->ae, 400, "response_format", "the answer has two formats: 'response_format' and another");
    return (format == NULL || add_format(t, format, "output_format")) &&
           (inner == NULL || json_is_null(inner) || add_format(t, inner, "output_config.format"));
}

static bool translate(struct trip *t, const json_t *doc, bool wants_answer)
{
    const struct in in = {doc, t->ae};
    const json_t *messages = NULL, *tools = NULL, *choice = NULL, *thinking = NULL, *system = in_get(in, "system");
    json_t *text = NULL;
    if (wants_answer && in_get(in, "max_tokens") == NULL)
        return api_fail(t->ae, 400, "max_tokens", "'max_tokens' is needed: a whole number of at least 1");
    if (!in_array(in, "messages", CHAT_MESSAGES_MAX, &messages) || !in_array(in, "tools", TOOLS_MAX, &tools) ||
        !in_object(in, "tool_choice", &choice) || !in_object(in, "thinking", &thinking) || !copy_fields(t, doc) ||
        !add_formats(t, doc))
        return false;
    if (messages == NULL || json_array_size(messages) == 0)
        return api_fail(t->ae, 400, "messages", "'messages' is needed: an array of at least one message");
    if (system != NULL && (!text_of(t, system, "system", &text) || !add_message(t, "system", text)))
        return false;
    return add_messages(t, messages) && (tools == NULL || add_tools(t, tools)) &&
           (choice == NULL || add_tool_choice(t, choice)) && (thinking == NULL || add_thinking(t, thinking));
}

json_t *messages_to_chat(const json_t *doc, bool wants_answer, struct api_error *ae)
{
    struct trip t = {.chat = json_object(), .messages = json_array(), .ae = ae};
    if (t.chat == NULL || t.messages == NULL || json_object_set(t.chat, "messages", t.messages) != 0)
        api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    else if (translate(&t, doc, wants_answer)) {
        json_decref(t.messages);
        return t.chat;
    }
    json_decref(t.messages);
    json_decref(t.chat);
    return NULL;
}
