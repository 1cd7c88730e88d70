/* Prompts; see prompt.h.
 *
 * A text that cannot fit is refused before it is tokenised: it has at least its bytes divided by the longest token's.
 * So the work a request can cause on a network thread is bounded by the context and not by the size of its body. */
#include "api/prompt.h"

#include "api/tools.h"

#include <string.h>

static bool check_length(struct call *c, size_t bytes, const char *key, struct api_error *ae)
{
    const uint32_t context = c->s->serving->fit.context;
    const uint64_t n_least = bytes / MAX(c->s->token_bytes_max, 1u);
    if (n_least <= context)
        return true;
    return api_fail_code(ae, 400, key, "context_length_exceeded",
        "This model's maximum context length is %u tokens. However, your prompt has at least %llu tokens. Please "
        "reduce "
        "the length of the prompt.",
        context, (unsigned long long)n_least);
}

/* Without a tokenizer (made-up shapes) every byte is an id. */
static bool encode_bytes(struct call *c, struct str text, struct tok_ids *out, struct api_error *ae)
{
    struct buf *b = &c->net->scratch;
    buf_clear(b);
    for (size_t i = 0; i < text.n; i++) {
        const uint32_t id = (unsigned char)text.p[i] % c->s->serving->config.vocab;
        buf_add(b, (struct str){(const char *)&id, sizeof id});
    }
    if (buf_check(b, "the prompt", NULL) != OK)
        return api_fail(ae, 400, "prompt", "the prompt is too long");
    *out = (struct tok_ids){(const uint32_t *)(const void *)b->p, text.n};
    return true;
}

bool prompt_from_text(
    struct call *c, struct str text, bool add_special, const char *key, struct tok_ids *out, struct api_error *ae)
{
    struct error e = {0};
    const struct tok_part part = {text, true};
    if (!check_length(c, text.n, key, ae))
        return false;
    if (c->net->tok_ctx == NULL)
        return encode_bytes(c, text, out, ae);
    if (tok_encode(c->s->serving->tok, c->net->tok_ctx, &part, 1, add_special, out, &e) != OK)
        return api_fail_err(ae, &e, key);
    return true;
}

bool prompt_from_ids(
    struct call *c, const json_t *ids, const char *key, uint32_t **room, size_t *n, struct api_error *ae)
{
    const size_t count = json_array_size(ids);
    *n = count;
    *room = mem_array(MAX(count, (size_t)1), sizeof **room);
    if (*room == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; i < count; i++)
        if (!in_token_id(json_array_get(ids, i), c->s->serving->config.vocab, key, &(*room)[i], ae))
            return false;
    return true;
}

bool prompts_count(const json_t *v, const char *key, uint32_t max, uint32_t *out, struct api_error *ae)
{
    const json_t *first = json_array_get(v, 0);
    if (v == NULL || (!json_is_string(v) && !json_is_array(v)))
        return api_fail(ae, 400, key, "'%s' must be a string, an array of strings, token ids, or arrays of them", key);
    if (json_is_array(v) && json_array_size(v) == 0)
        return api_fail(ae, 400, key, "'%s' must not be empty", key);
    const bool many = json_is_string(first) || json_is_array(first);
    if (many && json_array_size(v) > max)
        return api_fail(ae, 400, key, "'%s' has %zu entries; the limit is %u", key, json_array_size(v), max);
    for (size_t i = 1; many && i < json_array_size(v); i++)
        if (json_typeof(json_array_get(v, i)) != json_typeof(first))
            return api_fail(ae, 400, key, "'%s' must be all strings or all arrays of token ids", key);
    *out = many ? (uint32_t)json_array_size(v) : 1;
    return true;
}

/* ---- conversations ---- */

/* A content in parts becomes one text: templates know strings. Parts that are not text are refused by name. */
static bool flatten_content(json_t *message, size_t i, struct api_error *ae)
{
    json_t *content = json_object_get(message, "content");
    if (content == NULL || json_is_null(content) || json_is_string(content))
        return true;
    if (!json_is_array(content))
        return api_fail(ae, 400, "messages", "'messages[%zu].content' must be a string or an array of parts", i);
    struct buf text;
    bool ok = true;
    buf_init(&text, CHAT_STRING_BYTES_MAX);
    for (size_t k = 0; ok && k < json_array_size(content); k++) {
        const json_t *part = json_array_get(content, k);
        const json_t *type = json_object_get(part, "type"), *t = json_object_get(part, "text");
        if (!json_is_object(part) || !json_is_string(type))
            ok = api_fail(ae, 400, "messages", "'messages[%zu].content[%zu]' must be an object with a 'type'", i, k);
        else if (strcmp(json_string_value(type), "text") != 0) {
            char shown[64];
            str_show(str_of(json_string_value(type)), shown, sizeof shown);
            ok = api_fail_code(ae, 400, "messages", "unsupported_parameter",
                "'messages[%zu].content[%zu]' is refused: only parts of the type 'text' are supported, not '%s'", i, k,
                shown);
        } else if (!json_is_string(t))
            ok = api_fail(ae, 400, "messages", "'messages[%zu].content[%zu].text' must be a string", i, k);
        else {
            if (k > 0)
                buf_add_char(&text, '\n');
            buf_add(&text, (struct str){json_string_value(t), json_string_length(t)});
        }
    }
    if (ok && buf_check(&text, "a message", NULL) != OK)
        ok = api_fail(ae, 400, "messages", "'messages[%zu].content' is too long", i);
    json_t *flat = ok ? json_stringn(text.p != NULL ? text.p : "", text.n) : NULL;
    if (ok && (flat == NULL || json_object_set_new(message, "content", flat) != 0))
        ok = api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    buf_fini(&text);
    return ok;
}

static bool check_messages(struct call *c, json_t *messages, struct api_error *ae)
{
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *m = json_array_get(messages, i);
        const json_t *role = json_object_get(m, "role");
        if (!json_is_object(m))
            return api_fail(ae, 400, "messages", "'messages[%zu]' must be an object", i);
        if (!json_is_string(role) || json_string_length(role) == 0 || json_string_length(role) > 64)
            return api_fail(ae, 400, "messages", "'messages[%zu].role' must be a string of 1 to 64 bytes", i);
        if (!flatten_content(m, i, ae) || !tools_message(m, i, ae))
            return false;
        bytes += json_string_length(json_object_get(m, "content"));
    }
    return check_length(c, bytes, "messages", ae);
}

/* The template for a conversation with or without tools, and the tools as it is to see them. */
static bool pick_template(struct call *c, const json_t *doc, json_t *messages, const struct chat_template **t,
    const json_t **tools, struct api_error *ae)
{
    const struct serving *sv = c->s->serving;
    struct error e = {0};
    if (!in_array((struct in){doc, ae}, "tools", TOOLS_MAX, tools))
        return false;
    if (json_array_size(*tools) == 0)
        *tools = NULL;
    *t = sv->chat;
    if (*tools == NULL)
        return true;
    if (chat_set_pick(sv->chats, NULL, true, t, &e) != OK)
        return api_fail_err(ae, &e, "tools");
    if (chat_template_reads(*t, "tools") && !tool_dialect_is_guest(c->s->dialect))
        return true;
    const json_t *told = *tools;
    *tools = NULL;
    return tools_instruct(c, told, messages, ae);
}

static bool render(struct call *c, const json_t *doc, json_t *messages, struct api_error *ae)
{
    const struct in in = {doc, ae};
    const struct chat_template *t = NULL;
    struct chat_token tokens[4];
    const json_t *kwargs = NULL, *documents = NULL, *tools = NULL;
    bool add_prompt = true;
    struct error e = {0};
    if (!in_object(in, "chat_template_kwargs", &kwargs) || !in_array(in, "documents", 1024, &documents) ||
        !in_bool(in, "add_generation_prompt", &add_prompt) || !pick_template(c, doc, messages, &t, &tools, ae))
        return false;
    json_t *all = kwargs != NULL ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    if (all == NULL || !tools_kwargs(doc, all, ae)) {
        json_decref(all);
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    }
    const struct chat_input input = {.messages = messages,
        .tools = tools,
        .documents = documents,
        .kwargs = all,
        .tokens = tokens,
        .n_tokens = model_chat_tokens(c->s->serving->tok, tokens),
        .add_generation_prompt = add_prompt,
        .now_unix_s = clock_wall(c->s->o.clock) / (int64_t)NS_PER_S};
    const enum err err = chat_render(t, &input, &c->net->chat, &e);
    json_decref(all);
    return err == OK || api_fail_err(ae, &e, "messages");
}

bool prompt_from_chat(struct call *c, const json_t *doc, struct tok_ids *out, struct api_error *ae)
{
    const struct serving *sv = c->s->serving;
    const struct in in = {doc, ae};
    const json_t *messages = NULL;
    bool add_special = false;
    if (sv->chat == NULL || sv->tok == NULL)
        return api_fail(ae, 400, "model", "the model has no chat template; /v1/completions takes plain text");
    if (!in_array(in, "messages", CHAT_MESSAGES_MAX, &messages) || !in_bool(in, "add_special_tokens", &add_special))
        return false;
    if (json_array_size(messages) == 0)
        return api_fail(ae, 400, "messages", "'messages' must be an array with at least one message");
    if (!check_messages(c, (json_t *)(uintptr_t)messages, ae) || !render(c, doc, (json_t *)(uintptr_t)messages, ae))
        return false;
    const struct chat_output *o = &c->net->chat;
    struct tok_part *parts = mem_array(MAX(o->n_segments, (size_t)1), sizeof *parts);
    if (parts == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; i < o->n_segments; i++) {
        const struct chat_segment *s = &o->segments[i];
        parts[i] = (struct tok_part){{o->text.p + s->start, s->end - s->start}, s->trusted};
    }
    struct error e = {0};
    const bool fits = check_length(c, o->text.n, "messages", ae);
    const bool ok = fits && tok_encode(sv->tok, c->net->tok_ctx, parts, o->n_segments, add_special, out, &e) == OK;
    mem_free(parts);
    return ok || (fits && api_fail_err(ae, &e, "messages"));
}
