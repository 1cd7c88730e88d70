/* Doors for the chat-template oracle tests: render with everything given as one JSON text. */
#include "base/mem.h"
#include "text/chat.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct chat_result {
    int code;
    char error[ERROR_TEXT_MAX];
    const char *text;
    size_t n;
    const struct chat_segment *segments;
    size_t n_segments;
    uint64_t steps;
    size_t arena_bytes;
};

/* Compile; NULL with the code and sentence in *res on failure. */
EXPORT struct chat_template *quern_testing_chat_new(
    const char *name, const char *source, size_t n, struct chat_result *res)
{
    struct error e = {0};
    struct chat_template *t;
    res->code = (int)chat_template_new(&t, name, (struct str){source, n}, &e);
    memcpy(res->error, e.text, sizeof e.text);
    return t;
}

EXPORT void quern_testing_chat_free(struct chat_template *t)
{
    chat_template_free(t);
}

static enum err render(const struct chat_template *t, const json_t *in, struct chat_output *o, struct error *e)
{
    struct chat_token tokens[16];
    struct chat_input input = {.messages = json_object_get(in, "messages"), .tokens = tokens};
    const json_t *tools = json_object_get(in, "tools"), *documents = json_object_get(in, "documents");
    input.tools = json_is_null(tools) ? NULL : tools;
    input.documents = json_is_null(documents) ? NULL : documents;
    input.kwargs = json_object_get(in, "kwargs");
    input.add_generation_prompt = json_is_true(json_object_get(in, "add_generation_prompt"));
    input.now_unix_s = json_integer_value(json_object_get(in, "now"));
    json_t *named = json_object_get(in, "tokens");
    for (void *it = json_object_iter(named); it != NULL && input.n_tokens < 16; it = json_object_iter_next(named, it)) {
        const json_t *v = json_object_iter_value(it);
        tokens[input.n_tokens++] =
            (struct chat_token){json_object_iter_key(it), {json_string_value(v), json_string_length(v)}};
    }
    return chat_render(t, &input, o, e);
}

/* Render; the result's text and segments live until the next call with the same output, which quern_testing_chat_output
 * makes. */
EXPORT struct chat_output *quern_testing_chat_output(void)
{
    struct chat_output *o = mem_zalloc(sizeof *o);
    if (o != NULL)
        chat_output_init(o);
    return o;
}

EXPORT void quern_testing_chat_output_free(struct chat_output *o)
{
    chat_output_fini(o);
    mem_free(o);
}

EXPORT int quern_testing_chat_render(
    const struct chat_template *t, const char *input, size_t n, struct chat_output *o, struct chat_result *res)
{
    struct error e = {0};
    json_t *in = NULL;
    enum err err = json_parse((struct str){input, n}, &in, &e);
    if (err == OK)
        err = render(t, in, o, &e);
    json_decref(in);
    *res = (struct chat_result){.code = (int)err,
        .text = buf_str(&o->text).p,
        .n = o->text.n,
        .segments = o->segments,
        .n_segments = o->n_segments,
        .steps = o->steps,
        .arena_bytes = o->arena_bytes};
    memcpy(res->error, e.text, sizeof e.text);
    return (int)err;
}
