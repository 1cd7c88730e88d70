/* Structures: a grammar put together from parts, as JSON. This is how tool calls are asked for: fixed text and control
 * tokens around JSON that follows a schema, behind free text or not. The text of a GRAMMAR_STRUCTURE source is one
 * part; a part is an object with a `type`:
 *
 *   {"type":"text","value":"..."}       exactly this text; not empty
 *   {"type":"control","value":"NAME"}   the token of that name: a control token where the vocabulary has a control
 *                                       token of exactly this name, otherwise the plain text NAME
 *   {"type":"sequence","parts":[...]}   one behind the other; [] is the empty text
 *   {"type":"choice","parts":[...]}     one of them; at least one part
 *   {"type":"repeat","part":{...},"min":0,"max":3}
 *                                       min defaults to 0, max to no limit (null says the same)
 *   {"type":"json","schema":...,"whitespace":"spaced"}
 *                                       a JSON text that follows the schema (true or {}: any value); whitespace is
 *                                       "spaced", "compact" or "flexible" and defaults to the request's
 *   {"type":"json_object","whitespace":...}
 *                                       any JSON object
 *   {"type":"regex","pattern":"..."}    a text that the pattern matches as a whole
 *   {"type":"ebnf","grammar":"..."}     a text of the grammar's rule `root`
 *   {"type":"free_until","stops":["<tool_call>", {"type":"control","value":"<|call|>"}]}
 *                                       any text, the empty one too, in which no stop occurs. Stops are strings, or
 *                                       parts of type text or control. A control token never occurs in free text
 *                                       anyway, so naming one only matters where the vocabulary has no such token;
 *                                       "stops":[] is any text at all
 *
 * A key that a part does not have is refused by name. `sequence(free_until(T), repeat(sequence(text(T), ...)))` reads
 * as one would hope: free text goes on until T is written, a beginning of T that does not become T stays free text, and
 * the text may end behind free text that has not begun a call. */
#include "base/buf.h"
#include "base/json.h"
#include "base/limits.h"
#include "grammar/build.h"

#include <stdio.h>
#include <string.h>

struct structure {
    struct build *b;
    enum grammar_whitespace ws;
    char path[256]; /* of the part being read, for messages */
};

static enum err part_build(struct structure *s, const json_t *part, expr_id *out, struct error *e);

static struct str string_of(const json_t *v)
{
    return (struct str){json_string_value(v), json_string_length(v)};
}

/* Every key must be one of those named, which are apart by spaces. */
static enum err check_keys(struct structure *s, const json_t *part, const char *names, struct error *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)part, key, value)
    {
        const size_t n = strlen(key);
        const char *at = names;
        for (; (at = strstr(at, key)) != NULL; at++)
            if (n > 0 && (at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
                break;
        char shown[64];
        if (at == NULL || strchr(key, ' ') != NULL)
            return FAIL(
                e, ERR_INVALID, "structure%s: unknown key %s", s->path, str_show(str_of(key), shown, sizeof shown));
    }
    return OK;
}

static enum err need_string(struct structure *s, const json_t *part, const char *key, struct str *out, struct error *e)
{
    const json_t *v = json_object_get(part, key);
    if (!json_is_string(v) || json_string_length(v) == 0)
        return FAIL(e, ERR_INVALID, "structure%s: %s must be a string that is not empty", s->path, key);
    *out = string_of(v);
    return OK;
}

/* A part inside this one; the path grows and shrinks with it. */
static enum err inner(struct structure *s, const json_t *part, const char *key, size_t i, expr_id *out, struct error *e)
{
    const size_t n = strlen(s->path);
    if (i == SIZE_MAX)
        (void)snprintf(s->path + n, sizeof s->path - n, ".%s", key);
    else
        (void)snprintf(s->path + n, sizeof s->path - n, ".%s[%zu]", key, i);
    const enum err err = part_build(s, part, out, e);
    s->path[n] = '\0';
    return err;
}

static enum err part_text(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    struct str text;
    TRY(check_keys(s, part, "type value", e));
    TRY(need_string(s, part, "value", &text, e));
    *out = expr_bytes(s->b, text);
    return OK;
}

static enum err part_control(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    struct str name;
    TRY(check_keys(s, part, "type value", e));
    TRY(need_string(s, part, "value", &name, e));
    *out = expr_control(s->b, name);
    return OK;
}

static enum err part_list(struct structure *s, const json_t *part, bool choice, expr_id *out, struct error *e)
{
    const json_t *parts = json_object_get(part, "parts");
    TRY(check_keys(s, part, "type parts", e));
    if (!json_is_array(parts) || (choice && json_array_size(parts) == 0))
        return FAIL(
            e, ERR_INVALID, "structure%s: parts must be an array%s", s->path, choice ? " that is not empty" : "");
    const size_t n = json_array_size(parts);
    expr_id *x = build_take(s->b, n + 1, sizeof *x);
    if (x == NULL)
        return build_check(s->b, e);
    for (size_t i = 0; i < n; i++)
        TRY(inner(s, json_array_get(parts, i), "parts", i, &x[i], e));
    *out = choice ? expr_alt(s->b, x, (uint32_t)n) : expr_seq(s->b, x, (uint32_t)n);
    return OK;
}

static enum err part_sequence(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    return part_list(s, part, false, out, e);
}

static enum err part_choice(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    return part_list(s, part, true, out, e);
}

static enum err part_repeat(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    uint64_t min = 0, max = EXPR_UNBOUNDED;
    expr_id x = 0;
    TRY(check_keys(s, part, "type part min max", e));
    TRY(json_get_u64(part, "min", 0, GRAMMAR_COUNT_MAX, &min, e));
    TRY(json_get_u64(part, "max", 0, GRAMMAR_COUNT_MAX, &max, e));
    if (min > max)
        return FAIL(e, ERR_INVALID, "structure%s: min is above max", s->path);
    TRY(inner(s, json_object_get(part, "part"), "part", SIZE_MAX, &x, e));
    *out = expr_repeat(s->b, x, (uint32_t)min, (uint32_t)max);
    return OK;
}

static enum err whitespace_of(struct structure *s, const json_t *part, enum grammar_whitespace *ws, struct error *e)
{
    static const char *const names[] = {"spaced", "compact", "flexible"};
    const json_t *v = json_object_get(part, "whitespace");
    *ws = s->ws;
    if (v == NULL || json_is_null(v))
        return OK;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (json_is_string(v) && str_is(string_of(v), names[i])) {
            *ws = (enum grammar_whitespace)i;
            return OK;
        }
    return FAIL(e, ERR_INVALID, "structure%s: whitespace must be spaced, compact or flexible", s->path);
}

static int add_dump(const char *text, size_t n, void *to)
{
    buf_add(to, (struct str){text, n});
    return 0;
}

static enum err part_json(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    enum grammar_whitespace ws;
    const json_t *schema = json_object_get(part, "schema");
    struct buf text;
    TRY(check_keys(s, part, "type schema whitespace", e));
    TRY(whitespace_of(s, part, &ws, e));
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return FAIL(e, ERR_INVALID, "structure%s: schema must be an object, true or false", s->path);
    buf_init(&text, GRAMMAR_TEXT_BYTES_MAX);
    (void)json_dump_callback(schema, add_dump, &text, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    enum err err = buf_check(&text, "a schema", e);
    if (err == OK)
        err = schema_build(s->b, buf_str(&text), ws, out, e);
    if (err != OK && e != NULL)
        (void)error_prefix(e, "structure%s.schema", s->path);
    buf_fini(&text);
    return err;
}

static enum err part_json_object(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    enum grammar_whitespace ws;
    TRY(check_keys(s, part, "type whitespace", e));
    TRY(whitespace_of(s, part, &ws, e));
    return schema_any_object(s->b, ws, out, e);
}

static enum err part_regex(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    struct str pattern;
    TRY(check_keys(s, part, "type pattern", e));
    TRY(need_string(s, part, "pattern", &pattern, e));
    *out = regex_expr(s->b, pattern, true, e);
    return build_check(s->b, e);
}

static enum err part_ebnf(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    struct str grammar;
    TRY(check_keys(s, part, "type grammar", e));
    TRY(need_string(s, part, "grammar", &grammar, e));
    return ebnf_build(s->b, grammar, out, e);
}

/* A stop: a string, or a part of type text or control. What is a control token here occurs in no text. */
static enum err stop_of(struct structure *s, const json_t *v, size_t i, struct str *out, struct error *e)
{
    *out = (struct str){NULL, 0};
    const json_t *value = json_is_object(v) ? json_object_get(v, "value") : v;
    const json_t *type = json_is_object(v) ? json_object_get(v, "type") : NULL;
    const bool control = json_is_string(type) && str_is(string_of(type), "control");
    if (!json_is_string(value) || json_string_length(value) == 0 ||
        (type != NULL && !control && !(json_is_string(type) && str_is(string_of(type), "text"))))
        return FAIL(e, ERR_INVALID, "structure%s: stops[%zu] must be a string, a text or a control token", s->path, i);
    if (!control || !build_is_control(s->b, string_of(value)))
        *out = string_of(value);
    return OK;
}

static enum err part_free(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    const json_t *stops = json_object_get(part, "stops");
    TRY(check_keys(s, part, "type stops", e));
    if (!json_is_array(stops))
        return FAIL(e, ERR_INVALID, "structure%s: stops must be an array", s->path);
    const expr_id any = expr_repeat(s->b, expr_any_char(s->b), 0, EXPR_UNBOUNDED);
    const size_t n = json_array_size(stops);
    expr_id *x = build_take(s->b, n + 1, sizeof *x);
    uint32_t k = 0;
    for (size_t i = 0; i < n && x != NULL; i++) {
        struct str stop;
        TRY(stop_of(s, json_array_get(stops, i), i, &stop, e));
        if (stop.n > 0)
            x[k++] = expr_bytes(s->b, stop);
    }
    if (k == 0) {
        *out = any;
        return build_check(s->b, e);
    }
    const expr_id with = expr_seq(s->b, (const expr_id[]){any, expr_alt(s->b, x, k), any}, 3);
    const struct dfa *all = dfa_of_expr(s->b, any);
    *out = expr_dfa(s->b, dfa_product(s->b, all, dfa_of_expr(s->b, with), DFA_MINUS));
    return build_check(s->b, e);
}

static enum err part_build(struct structure *s, const json_t *part, expr_id *out, struct error *e)
{
    static const struct {
        const char *type;
        enum err (*build)(struct structure *s, const json_t *part, expr_id *out, struct error *e);
    } parts[] = {{"text", part_text}, {"control", part_control}, {"sequence", part_sequence}, {"choice", part_choice},
        {"repeat", part_repeat}, {"json", part_json}, {"json_object", part_json_object}, {"regex", part_regex},
        {"ebnf", part_ebnf}, {"free_until", part_free}};
    const json_t *type = json_object_get(part, "type");
    if (!json_is_object(part) || !json_is_string(type))
        return FAIL(e, ERR_INVALID, "structure%s: a part must be an object with a type", s->path);
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (str_is(string_of(type), parts[i].type))
            return parts[i].build(s, part, out, e);
    char shown[64];
    return FAIL(
        e, ERR_INVALID, "structure%s: unknown type %s", s->path, str_show(string_of(type), shown, sizeof shown));
}

enum err structure_build(struct build *b, struct str text, enum grammar_whitespace ws, expr_id *out, struct error *e)
{
    struct structure s = {.b = b, .ws = ws};
    json_t *doc = NULL;
    TRY(json_parse(text, &doc, e));
    enum err err = part_build(&s, doc, out, e);
    if (err == OK)
        err = build_check(b, e);
    json_decref(doc);
    return err;
}
