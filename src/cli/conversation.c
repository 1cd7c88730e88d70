/* Conversations; see conversation.h. */
#include "cli/conversation.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

enum err conversation_init(struct conversation *c, struct error *e)
{
    *c = (struct conversation){.messages = json_array()};
    chat_output_init(&c->rendered);
    return c->messages != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a conversation");
}

void conversation_fini(struct conversation *c)
{
    json_decref(c->messages);
    chat_output_fini(&c->rendered);
}

size_t conversation_count(const struct conversation *c)
{
    return json_array_size(c->messages);
}

static bool has_role(const struct conversation *c, size_t i, const char *role)
{
    const char *is = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
    return is != NULL && strcmp(is, role) == 0;
}

bool conversation_ends_with(const struct conversation *c, const char *role)
{
    const size_t n = conversation_count(c);
    return n > 0 && has_role(c, n - 1, role);
}

void conversation_pop(struct conversation *c)
{
    if (conversation_count(c) > 0)
        json_array_remove(c->messages, conversation_count(c) - 1);
}

void conversation_clear(struct conversation *c)
{
    const size_t keep = has_role(c, 0, "system") ? 1 : 0;
    while (conversation_count(c) > keep)
        conversation_pop(c);
}

static enum err new_message(const char *role, struct str text, json_t **out, struct error *e)
{
    struct buf clean;
    buf_init(&clean, 3 * TEXT_BYTES_MAX);
    for (size_t i = 0; i < text.n;) {
        const size_t k = utf8_len((struct str){text.p + i, text.n - i});
        buf_add(&clean, k > 0 ? (struct str){text.p + i, k} : STR("\xef\xbf\xbd"));
        i += MAX(k, (size_t)1);
    }
    *out = json_object();
    const bool ok = clean.failure == OK && json_object_set_new(*out, "role", json_string(role)) == 0 &&
                    json_object_set_new(*out, "content", json_stringn(clean.n > 0 ? clean.p : "", clean.n)) == 0;
    buf_fini(&clean);
    if (ok)
        return OK;
    json_decref(*out);
    return FAIL(e, ERR_NOMEM, "no memory for a message of %zu bytes", text.n);
}

enum err conversation_add(struct conversation *c, const char *role, struct str text, struct error *e)
{
    json_t *m;
    if (conversation_count(c) >= CHAT_MESSAGES_MAX)
        return FAIL(e, ERR_LIMIT, "the conversation has %d messages, which is the limit", CHAT_MESSAGES_MAX);
    TRY(new_message(role, text, &m, e));
    if (json_array_append_new(c->messages, m) != 0)
        return FAIL(e, ERR_NOMEM, "no memory for a message of %zu bytes", text.n);
    return OK;
}

enum err conversation_system(struct conversation *c, struct str text, struct error *e)
{
    json_t *m;
    if (text.n > 0)
        TRY(new_message("system", text, &m, e));
    if (has_role(c, 0, "system"))
        json_array_remove(c->messages, 0);
    if (text.n > 0 && json_array_insert_new(c->messages, 0, m) != 0)
        return FAIL(e, ERR_NOMEM, "no memory for a message of %zu bytes", text.n);
    return OK;
}

/* ---- the prompt ---- */

static enum err encode(struct conversation *c, struct load *l, struct tok_ids *ids, struct error *e)
{
    const struct chat_output *r = &c->rendered;
    struct tok_part *parts = mem_array(MAX(r->n_segments, (size_t)1), sizeof *parts);
    if (parts == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a prompt of %zu bytes", r->text.n);
    for (size_t i = 0; i < r->n_segments; i++) {
        const struct chat_segment *s = &r->segments[i];
        parts[i] = (struct tok_part){{r->text.p + s->start, s->end - s->start}, s->trusted};
    }
    const enum err err = tok_encode(l->tok, l->tok_ctx, parts, r->n_segments, false, ids, e);
    mem_free(parts);
    return err;
}

static enum err render(struct conversation *c, struct load *l, struct tok_ids *ids, struct error *e)
{
    struct clock clock;
    struct chat_token tokens[4];
    struct tm tm = {0};
    clock_init(&clock);
    const time_t now_s = (time_t)(clock_wall(&clock) / (int64_t)NS_PER_S);
    localtime_r(&now_s, &tm);
    const struct chat_input in = {.messages = c->messages,
        .tokens = tokens,
        .n_tokens = model_chat_tokens(l->tok, tokens),
        .add_generation_prompt = true,
        .now_unix_s = now_s,
        .utc_offset_s = (int32_t)tm.tm_gmtoff};
    TRY(chat_render(l->chat, &in, &c->rendered, e));
    return encode(c, l, ids, e);
}

/* Take away the oldest turn: up to and with the first answer. False when only the last message is left. */
static size_t drop_turn(struct conversation *c)
{
    const size_t first = has_role(c, 0, "system") ? 1 : 0;
    size_t n = 0;
    bool answered = false;
    while (!answered && conversation_count(c) > first + 1) {
        answered = has_role(c, first, "assistant");
        json_array_remove(c->messages, first);
        n++;
    }
    return n;
}

enum err conversation_prompt(
    struct conversation *c, struct load *l, uint32_t reserve, struct tok_ids *ids, size_t *dropped, struct error *e)
{
    *dropped = 0;
    for (;;) {
        TRY(render(c, l, ids, e));
        if (ids->n + reserve <= l->fit.context)
            return OK;
        const size_t n = drop_turn(c);
        if (n == 0)
            break;
        *dropped += n;
    }
    if (ids->n < l->fit.context)
        return OK; /* less room than wished for, but room */
    return FAIL(e, ERR_LIMIT, "the prompt has %zu tokens and the context %u, which leaves no room for an answer",
        ids->n, l->fit.context);
}

enum err conversation_save(const struct conversation *c, const char *path, struct error *e)
{
    char *text = NULL;
    json_t *doc = json_object();
    if (json_object_set(doc, "messages", c->messages) == 0)
        text = json_dumps(doc, JSON_INDENT(2));
    json_decref(doc);
    if (text == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to write the conversation");
    const enum err err = file_write_atomic(path, str_of(text), e);
    mem_free(text); /* jansson allocates through base/mem.h */
    return err;
}
