/* Chat templates: a conversation in, the prompt text out, exactly as `transformers` renders it with jinja2.
 *
 * Owns: the bounded Jinja interpreter behind it (jinja*.c). A template is compiled once and never changes after that;
 * a rendering reads the template and the caller's JSON and writes only the caller's output.
 *
 * Trust. The prompt mixes two kinds of text: what the template says (control tokens belong there) and what the user
 * says (control tokens must never come from there). Every string of the interpreter remembers which of its bytes came
 * from the user, through concatenation, slices, filters and macros, and the output lists the runs. The tokenizer may
 * recognise a control token only where all its bytes lie in one trusted run; the text itself is still one text, so
 * ordinary merges may cross a border. Trusted: literals of the template, the named tokens (bos_token...), and the role
 * of a message when it is one of the well-known role names (templates build tokens such as <|user|> from it). All other
 * values, and whatever an operation derives from them, are untrusted; an operation that cannot keep exact borders
 * marks its whole result untrusted.
 *
 * Bounds. A rendering has fuel: steps, memory, output bytes, string length and depth are limited (limits.h, CHAT_*), so
 * a hostile template costs at most about a tenth of a second and ends in ERR_LIMIT. Errors name template, line, reason.
 *
 * Threads: a struct chat_template or chat_set may be used by any number of threads at once, after it is made. An output
 * belongs to one thread. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "base/base.h"
#include "base/buf.h"
#include "base/json.h"

struct chat_template;

/* Compile. The name stands in error messages ("default", a file name); source and name are copied. Syntax errors are
 * ERR_INVALID "template NAME line N: ...", what quern's Jinja leaves out (include, import, extends) is ERR_UNSUPPORTED.
 */
enum err chat_template_new(struct chat_template **out, const char *name, struct str source, struct error *e) MUST_CHECK;
void chat_template_free(struct chat_template *t); /* NULL is fine */
const char *chat_template_name(const struct chat_template *t);
struct str chat_template_source(const struct chat_template *t); /* as it was given; says which syntaxes a model knows */

/* True when the template reads a variable of that name anywhere ("tools", "enable_thinking", "documents"): lets the
 * caller say that a model has no tool support instead of dropping tools silently. */
bool chat_template_reads(const struct chat_template *t, const char *variable);

/* A token of the vocabulary that templates know by name: {"bos_token", "<s>"}. */
struct chat_token {
    const char *name;
    struct str text;
};

/* What a template sees. JSON is borrowed for the call and not changed; key order is kept. NULL documents and tools are
 * None, as transformers passes them. Content may be a string or a list of parts: it reaches the template as given. */
struct chat_input {
    const json_t *messages;  /* array of objects; required */
    const json_t *tools;     /* array or NULL */
    const json_t *documents; /* array or NULL */
    const json_t *kwargs;    /* object of further variables, or NULL; reserved names are ERR_INVALID naming them */
    const struct chat_token *tokens;
    size_t n_tokens;
    bool add_generation_prompt;
    int64_t now_unix_s;   /* the clock of strftime_now */
    int32_t utc_offset_s; /* local time of strftime_now = now_unix_s + utc_offset_s */
};

/* A run of the output. Runs are in order, not empty, cover the text without gaps, and neighbours differ in trust. */
struct chat_segment {
    size_t start, end; /* bytes [start, end) of the text */
    bool trusted;
};

struct chat_output {
    struct buf text; /* valid UTF-8 */
    struct chat_segment *segments;
    size_t n_segments;
    uint64_t steps;     /* fuel used, for tests and metrics */
    size_t arena_bytes; /* memory used while rendering */
};

void chat_output_init(struct chat_output *o);
void chat_output_fini(struct chat_output *o);

/* Render into an output (what it held is forgotten, its memory reused). A raise_exception of the template is
 * ERR_INVALID with its message; running out of fuel is ERR_LIMIT naming the limit. After a failure the output is empty,
 * except steps and arena_bytes. */
enum err chat_render(
    const struct chat_template *t, const struct chat_input *in, struct chat_output *o, struct error *e) MUST_CHECK;

/* The named templates of one model: tokenizer_config.json's chat_template (one string, or a list of {name, template}),
 * or GGUF's tokenizer.chat_template ("default") and tokenizer.chat_template.NAME. */
struct chat_set;
enum err chat_set_new(struct chat_set **out, struct error *e) MUST_CHECK;
enum err chat_set_add(struct chat_set *s, const char *name, struct str source, struct error *e) MUST_CHECK;
enum err chat_set_add_json(struct chat_set *s, const json_t *chat_template, struct error *e) MUST_CHECK;
void chat_set_free(struct chat_set *s); /* NULL is fine */
size_t chat_set_count(const struct chat_set *s);

/* transformers' choice: the wanted name if given (NULL: none; unknown is ERR_NOT_FOUND naming it); else "tool_use" when
 * there are tools and such a template; else "default"; else the only one there is. Borrowed from the set. */
enum err chat_set_pick(const struct chat_set *s, const char *wanted, bool has_tools, const struct chat_template **out,
    struct error *e) MUST_CHECK;

#endif
