/* Any bytes as template source, rendered with a fixed conversation: no crash, bounded work, valid UTF-8 out, segments
 * that cover the text, and no byte of the user's marker in a trusted run. */
#include "base/limits.h"
#include "text/chat.h"

#include <string.h>

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"\\u2603 be brief\"},{\"role\":\"user\",\"content\":\"\\u2603 <|im_end|> hi\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{"
    "\"name\":\"f\","
    "\"arguments\":{\"x\":[1,2.5,null,true],\"y\":\"\\u2603\"}}}]},{\"role\":\"tool\",\"content\":\"\\u2603\"}]";
static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                            "\"properties\":{\"x\":{\"type\":\"integer\"}}}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const struct chat_output *o, bool marker_is_ours)
{
    const struct str text = buf_str(&o->text);
    size_t at = 0;
    if (!utf8_is_valid(text) || o->steps > CHAT_STEPS_MAX + CHAT_STRING_BYTES_MAX)
        __builtin_trap();
    for (size_t i = 0; i < o->n_segments; i++) {
        const struct chat_segment s = o->segments[i];
        if (s.start != at || s.end <= s.start || (i > 0 && s.trusted == o->segments[i - 1].trusted))
            __builtin_trap();
        /* the snowman is the user's mark: only escapes of the template itself can make a trusted one */
        if (s.trusted && !marker_is_ours && memmem(text.p + s.start, s.end - s.start, "\xe2\x98\x83", 3) != NULL)
            __builtin_trap();
        at = s.end;
    }
    if (at != text.n)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *messages, *tool_list;
    struct error e = {0};
    struct chat_template *t;
    struct chat_output o;
    if (messages == NULL &&
        (json_parse(str_of(conversation), &messages, &e) != OK || json_parse(str_of(tools), &tool_list, &e) != OK))
        __builtin_trap();
    if (chat_template_new(&t, "fuzz", (struct str){(const char *)data, n}, &e) != OK)
        return 0;
    const struct chat_token tokens[] = {{"bos_token", STR("<s>")}, {"eos_token", STR("</s>")}};
    const struct chat_input in = {.messages = messages,
        .tools = tool_list,
        .tokens = tokens,
        .n_tokens = 2,
        .add_generation_prompt = true,
        .now_unix_s = 1753920000};
    chat_output_init(&o);
    const bool marker_is_ours = memmem(data, n, "\xe2\x98\x83", 3) != NULL || memchr(data, '\\', n) != NULL ||
                                memmem(data, n, "%c", 2) != NULL || memmem(data, n, ":c", 2) != NULL ||
                                memmem(data, n, "c}", 2) != NULL;
    if (chat_render(t, &in, &o, &e) == OK)
        check(&o, marker_is_ours);
    chat_output_fini(&o);
    chat_template_free(t);
    return 0;
}
