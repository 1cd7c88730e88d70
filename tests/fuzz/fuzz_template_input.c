/* Any JSON as the input of fixed templates in the style of the public ones: no crash, valid UTF-8 out, and user text is
 * never trusted. The input is one object with messages, tools, documents and kwargs. */
#include "text/chat.h"

#include <string.h>

/* Shapes that occur in real templates: ChatML with tools, header tokens with a namespace, bracketed instructions. */
static const char *const sources[] = {
    "{%- if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}{%- if m.tool_calls %}{% for c in m.tool_calls %}{% set c = c.function if c.function else "
    "c %}"
    "<tool_call>{{ c.name }} {{ c.arguments | tojson(indent=2) }}</tool_call>{% endfor %}"
    "{%- else %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{%- set ns = namespace(text='', n=0) %}{%- for m in messages[::-1] %}{%- if m['content'] is string and "
    "m['content'].split('</think>')[-1].lstrip('\\n') %}{%- set ns.text = ns.text ~ m['content'].upper().replace('A', "
    "bos_token) "
    "%}{%- set ns.n = ns.n + loop.index0 %}{%- elif m['content'] is iterable %}{% for p in m['content'] %}{{ p['text'] "
    "}}"
    "{% endfor %}{%- endif %}{%- endfor %}{{ ns.text[:100] }}{{ ns.n }}{{ documents | map(attribute='title') | join(', "
    "') }}",
    "{% macro show(v, d=0) %}{% if v is mapping %}{% for k, x in v | dictsort %}{{ k | title }}={{ show(x, d + 1) "
    "}};{% endfor %}"
    "{% elif v is iterable and v is not string %}[{% for x in v %}{{ show(x, d + 1) }}{{ ',' if not loop.last }}{% "
    "endfor %}]"
    "{% else %}{{ v }}{% endif %}{% endmacro %}{{ bos_token }}{% for m in messages %}[INST]{{ show(m) | indent(2) "
    "}}[/INST]"
    "{{ '%s|%r' % (m.role, m.content) }}{{ '{:>10}|{!r}'.format(m.role, m.name) }}{% endfor %}{{ messages }}{{ effort "
    "}}"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct chat_template *compiled[3];

static void render(size_t i, const json_t *in)
{
    struct error e = {0};
    struct chat_output o;
    const struct chat_token tokens[] = {{"bos_token", STR("<s>")}};
    const struct chat_input input = {.messages = json_object_get(in, "messages"),
        .tools = json_object_get(in, "tools"),
        .documents = json_object_get(in, "documents"),
        .kwargs = json_object_get(in, "kwargs"),
        .tokens = tokens,
        .n_tokens = 1,
        .add_generation_prompt = true};
    chat_output_init(&o);
    if (chat_render(compiled[i], &input, &o, &e) == OK) {
        const struct str text = buf_str(&o.text);
        size_t at = 0;
        if (!utf8_is_valid(text))
            __builtin_trap();
        for (size_t k = 0; k < o.n_segments; at = o.segments[k++].end) {
            const struct chat_segment s = o.segments[k];
            /* no template here has a 'Z' of its own in what it prints: a trusted one leaked */
            if (s.start != at || s.end <= at || (s.trusted && memchr(text.p + s.start, 'Z', s.end - s.start) != NULL))
                __builtin_trap();
        }
        if (at != text.n)
            __builtin_trap();
    }
    chat_output_fini(&o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct error e = {0};
    json_t *in;
    for (size_t i = 0; compiled[0] == NULL || compiled[2] == NULL; i++)
        if (chat_template_new(&compiled[i], "fixed", str_of(sources[i]), &e) != OK)
            __builtin_trap();
    if (json_parse((struct str){(const char *)data, n}, &in, &e) != OK)
        return 0;
    for (size_t i = 0; i < 3; i++)
        render(i, in);
    json_decref(in);
    return 0;
}
