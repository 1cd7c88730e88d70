/* Structured output: which grammar a request asks for, in any of the spellings in use. OpenAI's response_format, vLLM's
 * structured_outputs and its older guided_*, llama.cpp's grammar and json_schema. They all end in one source for the
 * compiler; a request may have one.
 *
 * What OpenAI asks of a schema with "strict": true is asked here too, so that a program that works with quern works
 * there: every object says additionalProperties false and requires all its properties. Without it any schema that the
 * compiler takes will do, and is obeyed just the same. */
#include "api/fields.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES_MAX   64  /* of a json_schema; OpenAI's */
#define STRICT_DEPTH_MAX 100 /* levels of a schema; the JSON itself may have no more */
#define PATH_MAX_BYTES   256 /* of a place in a schema, for people */

bool constraint_set(struct fields *f, const char *field, enum grammar_kind kind, struct str text, struct api_error *ae)
{
    if (f->constraint_field != NULL)
        return api_fail(ae, 400, field, "'%s' and '%s' cannot be combined: an answer obeys one grammar", field,
            f->constraint_field);
    f->constraint_text = mem_copy_str(text.n > 0 ? text : STR(""));
    if (f->constraint_text == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    f->constraint.kind = kind;
    f->constraint.text = (struct str){f->constraint_text, text.n};
    f->constraint_field = field;
    return true;
}

static int add_to_buf(const char *bytes, size_t n, void *ctx)
{
    buf_add(ctx, (struct str){bytes, n});
    return 0;
}

/* A value of the request as text again; members keep their order. */
static bool set_json(struct fields *f, const char *field, enum grammar_kind kind, const json_t *v, struct api_error *ae)
{
    struct buf text;
    struct error e = {0};
    buf_init(&text, JSON_BYTES_MAX);
    if (json_dump_callback(v, add_to_buf, &text, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) != 0)
        buf_add(&text, (struct str){NULL, SIZE_MAX}); /* too large for any buffer */
    const bool ok = buf_check(&text, "the schema", &e) == OK ? constraint_set(f, field, kind, buf_str(&text), ae)
                                                             : api_fail_err(ae, &e, field);
    buf_fini(&text);
    return ok;
}

/* A schema: as JSON, or as a string that holds JSON. */
static bool set_schema(struct fields *f, const char *field, const json_t *v, struct api_error *ae)
{
    if (json_is_string(v))
        return constraint_set(
            f, field, GRAMMAR_JSON_SCHEMA, (struct str){json_string_value(v), json_string_length(v)}, ae);
    if (!json_is_object(v) && !json_is_boolean(v))
        return api_fail(
            ae, 400, field, "'%s' must be a JSON schema: an object, true, or a string that holds one", field);
    return set_json(f, field, GRAMMAR_JSON_SCHEMA, v, ae);
}

static bool set_string(
    struct fields *f, const char *field, enum grammar_kind kind, const json_t *v, struct api_error *ae)
{
    if (!json_is_string(v))
        return api_fail(ae, 400, field, "'%s' must be a string", field);
    return constraint_set(f, field, kind, (struct str){json_string_value(v), json_string_length(v)}, ae);
}

static bool set_choice(struct fields *f, const char *field, const json_t *v, struct api_error *ae)
{
    bool ok = json_is_array(v) && json_array_size(v) > 0;
    for (size_t i = 0; ok && i < json_array_size(v); i++)
        ok = json_is_string(json_array_get(v, i));
    if (!ok)
        return api_fail(ae, 400, field, "'%s' must be an array of at least one string", field);
    return set_json(f, field, GRAMMAR_CHOICE, v, ae);
}

/* ---- strict ---- */

struct place { /* in a schema: "properties.a.items" */
    char text[PATH_MAX_BYTES];
    size_t n;
};

static size_t place_enter(struct place *p, const char *name)
{
    const size_t was = p->n;
    const int n = snprintf(p->text + p->n, sizeof p->text - p->n, "%s%s", p->n > 0 ? "." : "", name);
    p->n = MIN(p->n + (n > 0 ? (size_t)n : 0), sizeof p->text - 1);
    return was;
}

static void place_leave(struct place *p, size_t was)
{
    p->n = was;
    p->text[was] = '\0';
}

static bool has_string(const json_t *list, const char *s)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)) && strcmp(json_string_value(json_array_get(list, i)), s) == 0)
            return true;
    return false;
}

static bool strict_object(const json_t *o, const struct place *p, struct api_error *ae)
{
    const char *key;
    json_t *v;
    if (!json_is_false(json_object_get(o, "additionalProperties")))
        return api_fail(ae, 400, "response_format",
            "a strict schema needs 'additionalProperties': false in every object; at '%s' it is missing", p->text);
    json_object_foreach((json_t *)(uintptr_t)json_object_get(o, "properties"), key, v)
    {
        (void)v;
        if (!has_string(json_object_get(o, "required"), key)) {
            char shown[64];
            str_show(str_of(key), shown, sizeof shown);
            return api_fail(ae, 400, "response_format",
                "a strict schema needs every property in 'required'; at '%s' '%s' is missing", p->text, shown);
        }
    }
    return true;
}

static bool strict_check(const json_t *o, struct place *p, uint32_t depth, struct api_error *ae)
{
    static const char *const maps[] = {"properties", "$defs", "definitions"}, *const lists[] = {"anyOf", "allOf"};
    const json_t *type = json_object_get(o, "type");
    if (!json_is_object(o))
        return true;
    if (depth > STRICT_DEPTH_MAX)
        return api_fail(ae, 400, "response_format", "the schema is nested deeper than %d levels", STRICT_DEPTH_MAX);
    if ((json_is_string(type) && strcmp(json_string_value(type), "object") == 0) || has_string(type, "object") ||
        json_object_get(o, "properties") != NULL)
        if (!strict_object(o, p, ae))
            return false;
    bool ok = true;
    for (size_t i = 0; ok && i < COUNT_OF(maps); i++) {
        const char *key;
        json_t *v;
        const size_t was = place_enter(p, maps[i]);
        json_object_foreach((json_t *)(uintptr_t)json_object_get(o, maps[i]), key, v)
        {
            const size_t outside = place_enter(p, key);
            ok = ok && strict_check(v, p, depth + 1, ae);
            place_leave(p, outside);
        }
        place_leave(p, was);
    }
    for (size_t i = 0; ok && i < COUNT_OF(lists); i++) {
        const json_t *list = json_object_get(o, lists[i]);
        const size_t was = place_enter(p, lists[i]);
        for (size_t k = 0; ok && k < json_array_size(list); k++)
            ok = strict_check(json_array_get(list, k), p, depth + 1, ae);
        place_leave(p, was);
    }
    const size_t was = place_enter(p, "items");
    ok = ok && strict_check(json_object_get(o, "items"), p, depth + 1, ae);
    place_leave(p, was);
    return ok;
}

/* ---- the spellings ---- */

/* {"name": ..., "schema": {...}, "strict": true} */
static bool read_json_schema(struct fields *f, const json_t *o, struct api_error *ae)
{
    const struct in in = {o, ae};
    struct str name = {0}, description = {0};
    const json_t *schema = json_object_get(o, "schema");
    bool strict = false;
    if (o == NULL)
        return api_fail(ae, 400, "response_format", "'response_format' of type 'json_schema' needs 'json_schema'");
    if (!in_str(in, "name", NAME_BYTES_MAX, &name) || !in_str(in, "description", JSON_BYTES_MAX, &description) ||
        !in_bool(in, "strict", &strict))
        return false;
    bool ok = name.n > 0;
    for (size_t i = 0; ok && i < name.n; i++)
        ok = (name.p[i] >= 'a' && name.p[i] <= 'z') || (name.p[i] >= 'A' && name.p[i] <= 'Z') ||
             (name.p[i] >= '0' && name.p[i] <= '9') || name.p[i] == '_' || name.p[i] == '-';
    if (!ok)
        return api_fail(ae, 400, "response_format",
            "'response_format.json_schema.name' must have 1 to %d letters, digits, '_' or '-'", NAME_BYTES_MAX);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return api_fail(ae, 400, "response_format", "'response_format.json_schema.schema' must be a JSON schema");
    if (strict) {
        const json_t *type = json_object_get(schema, "type");
        struct place p = {"schema", 6};
        if (!json_is_string(type) || strcmp(json_string_value(type), "object") != 0)
            return api_fail(ae, 400, "response_format", "a strict schema must have 'type': 'object' at its root");
        if (!strict_check(schema, &p, 0, ae))
            return false;
    }
    return set_schema(f, "response_format", schema, ae);
}

static bool read_response_format(struct fields *f, struct in in)
{
    const json_t *o = NULL, *schema = NULL;
    struct str type = {0};
    if (!in_object(in, "response_format", &o))
        return false;
    if (o == NULL)
        return true;
    const struct in inner = {o, in.ae};
    if (!in_str(inner, "type", 64, &type))
        return false;
    if (str_is(type, "text"))
        return true;
    if (str_is(type, "json_object")) { /* llama.cpp takes a schema here */
        schema = in_get(inner, "schema");
        return schema != NULL ? set_schema(f, "response_format", schema, in.ae)
                              : constraint_set(f, "response_format", GRAMMAR_JSON_OBJECT, STR(""), in.ae);
    }
    if (str_is(type, "json_schema"))
        return in_object(inner, "json_schema", &schema) && read_json_schema(f, schema, in.ae);
    return api_fail(
        in.ae, 400, "response_format", "'response_format.type' must be 'text', 'json_object' or 'json_schema'");
}

static bool read_whitespace(struct fields *f, struct in in)
{
    struct str s = {0};
    if (!in_str(in, "whitespace", 16, &s))
        return false;
    if (s.p == NULL || whitespace_parse(s, &f->constraint.whitespace))
        return true;
    return api_fail(
        in.ae, 400, "structured_outputs", "'structured_outputs.whitespace' must be 'spaced', 'compact' or 'flexible'");
}

bool whitespace_parse(struct str s, enum grammar_whitespace *out)
{
    static const char *const names[] = {"spaced", "compact", "flexible"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (str_is(s, names[i])) {
            *out = (enum grammar_whitespace)i;
            return true;
        }
    return false;
}

static bool read_one(struct fields *f, const char *key, const json_t *v, struct api_error *ae)
{
    static const char field[] = "structured_outputs";
    if (strcmp(key, "json") == 0)
        return set_schema(f, field, v, ae);
    if (strcmp(key, "regex") == 0)
        return set_string(f, field, GRAMMAR_REGEX, v, ae);
    if (strcmp(key, "grammar") == 0)
        return set_string(f, field, GRAMMAR_EBNF, v, ae);
    if (strcmp(key, "choice") == 0)
        return set_choice(f, field, v, ae);
    if (strcmp(key, "json_object") == 0) {
        if (!json_is_boolean(v))
            return api_fail(ae, 400, field, "'structured_outputs.json_object' must be true or false");
        return json_is_false(v) || constraint_set(f, field, GRAMMAR_JSON_OBJECT, STR(""), ae);
    }
    if (strcmp(key, "whitespace") == 0 || strcmp(key, "disable_fallback") == 0)
        return true; /* read already; and there is nothing to fall back to */
    char shown[64];
    str_show(str_of(key), shown, sizeof shown);
    return api_fail_code(ae, 400, field, "unsupported_parameter",
        "'structured_outputs.%s' is refused: json, json_object, regex, choice, grammar and whitespace are taken",
        shown);
}

static bool read_structured_outputs(struct fields *f, struct in in)
{
    const json_t *o = NULL;
    const char *key;
    json_t *v;
    if (!in_object(in, "structured_outputs", &o))
        return false;
    if (o == NULL)
        return true;
    if (!read_whitespace(f, (struct in){o, in.ae}))
        return false;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        if (!json_is_null(v) && !read_one(f, key, v, in.ae))
            return false;
    }
    return true;
}

bool constraint_read(struct fields *f, const json_t *doc, struct api_error *ae)
{
    const struct in in = {doc, ae};
    const json_t *v;
    if (!read_response_format(f, in) || !read_structured_outputs(f, in))
        return false;
    if ((v = in_get(in, "guided_json")) != NULL && !set_schema(f, "guided_json", v, ae))
        return false;
    if ((v = in_get(in, "guided_regex")) != NULL && !set_string(f, "guided_regex", GRAMMAR_REGEX, v, ae))
        return false;
    if ((v = in_get(in, "guided_choice")) != NULL && !set_choice(f, "guided_choice", v, ae))
        return false;
    if ((v = in_get(in, "guided_grammar")) != NULL && !set_string(f, "guided_grammar", GRAMMAR_EBNF, v, ae))
        return false;
    if ((v = in_get(in, "json_schema")) != NULL && !set_schema(f, "json_schema", v, ae))
        return false;
    v = in_get(in, "grammar");
    if (v != NULL && !(json_is_string(v) && json_string_length(v) == 0) &&
        !set_string(f, "grammar", GRAMMAR_EBNF, v, ae))
        return false;
    if (f->constraint_field != NULL && f->allowed != NULL)
        return api_fail(
            ae, 400, "allowed_token_ids", "'allowed_token_ids' and '%s' cannot be combined", f->constraint_field);
    return true;
}
