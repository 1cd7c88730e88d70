/* The arguments of a call as parts of a structure: one schema where the syntax writes JSON, a part for each property
 * where it writes tags or Python; see tool_write.c for what is promised. */
#include "text/tool_write.h"

#include <string.h>

/* ---- arguments as JSON ---- */

void write_json_arguments(struct writer *w, const struct tool *t)
{
    if (!json_is_object(t->parameters)) {
        writer_schema(w, NULL);
        return;
    }
    json_t *copy = json_copy((json_t *)(uintptr_t)t->parameters);
    bool ok = copy != NULL;
    if (ok && json_object_get(copy, "type") == NULL && json_object_get(copy, "$ref") == NULL)
        ok = json_object_set_new(copy, "type", json_string("object")) == 0;
    if (ok && json_object_get(copy, "properties") != NULL && json_object_get(copy, "additionalProperties") == NULL &&
        json_object_get(copy, "patternProperties") == NULL && json_object_get(copy, "allOf") == NULL)
        ok = json_object_set_new(copy, "additionalProperties", json_false()) == 0;
    if (ok)
        writer_schema(w, copy);
    else
        w->err = FAIL(w->e, ERR_NOMEM, "out of memory for the schema of a tool");
    json_decref(copy);
}

/* ---- arguments one by one ---- */

/* Keywords at the top of the parameters that do not change what one property may be. */
static void check_root(struct writer *w, const struct tool *t)
{
    static const char *const fine[] = {"type", "properties", "required", "additionalProperties", "description", "title",
        "$schema", "$id", "$defs", "definitions", "examples", "default", "$comment", "strict"};
    const char *key;
    json_t *v;
    if (!json_is_object(t->parameters))
        return;
    json_object_foreach((json_t *)(uintptr_t)t->parameters, key, v)
    {
        bool ok = false;
        for (size_t i = 0; i < COUNT_OF(fine) && !ok; i++)
            ok = strcmp(key, fine[i]) == 0;
        if (!ok)
            w->err = FAIL(w->e, ERR_UNSUPPORTED,
                "tool '%.*s': '%.32s' at the top of its parameters is not supported in the call syntax '%s'",
                (int)t->name.n, t->name.p, key, w->d->calls->name);
    }
}

/* "#/$defs/X" of the tool's schema. */
static const json_t *resolve(const struct tool *t, const json_t *schema)
{
    for (int i = 0; i < 8; i++) {
        const char *ref = json_string_value(json_object_get(schema, "$ref"));
        if (ref == NULL)
            return schema;
        const char *at = strncmp(ref, "#/$defs/", 8) == 0 ? "$defs" : "definitions";
        const size_t skip = strcmp(at, "$defs") == 0 ? 8 : strncmp(ref, "#/definitions/", 14) == 0 ? 14 : strlen(ref);
        schema = json_object_get(json_object_get(t->parameters, at), ref + skip);
    }
    return NULL;
}

/* A property as a schema of its own, with the definitions it may refer to. */
static json_t *alone(const struct tool *t, const json_t *schema)
{
    static const char *const shared[] = {"$defs", "definitions"};
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : json_object();
    for (size_t i = 0; copy != NULL && i < COUNT_OF(shared); i++) {
        json_t *defs = json_object_get(t->parameters, shared[i]);
        if (defs != NULL && json_object_get(copy, shared[i]) == NULL)
            (void)json_object_set(copy, shared[i], defs);
    }
    return copy;
}

static void check_string(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    static const char *const keywords[] = {"pattern", "minLength", "maxLength", "format"};
    for (size_t i = 0; t->strict && i < COUNT_OF(keywords); i++)
        if (json_object_get(schema, keywords[i]) != NULL)
            w->err = FAIL(w->e, ERR_UNSUPPORTED,
                "tool '%.*s': '%s' of the string '%.48s' cannot be promised in the call syntax '%s'", (int)t->name.n,
                t->name.p, keywords[i], key, w->d->calls->name);
}

static void put_texts(struct writer *w, const json_t *list)
{
    writer_open_parts(w, "choice");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (json_string_length(v) > 0)
            writer_named(w, "text", "value", (struct str){json_string_value(v), json_string_length(v)});
        else {
            writer_open_parts(w, "sequence");
            writer_close_parts(w);
        }
    }
    writer_close_parts(w);
}

static void put_property_schema(struct writer *w, const struct tool *t, const json_t *schema)
{
    json_t *own = alone(t, schema);
    if (own == NULL)
        w->err = FAIL(w->e, ERR_NOMEM, "out of memory for the schema of a tool");
    else
        writer_schema(w, own);
    json_decref(own);
}

static void put_tag_value(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    const json_t *real = resolve(t, schema), *list = json_object_get(real, "enum");
    const json_t *constant = json_object_get(real, "const");
    const unsigned types = tool_schema_types(real, 0);
    if ((types & T_STRING) == 0) {
        put_property_schema(w, t, schema);
        return;
    }
    check_string(w, t, key, real);
    if (types == T_STRING && json_array_size(list) > 0)
        put_texts(w, list);
    else if (types == T_STRING && json_string_length(constant) > 0)
        writer_named(w, "text", "value", (struct str){json_string_value(constant), json_string_length(constant)});
    else
        writer_free(w, without_newlines(w->d->pieces[PIECE_VALUE_CLOSE]), (struct str){0});
}

static void put_python_value(struct writer *w, const struct tool *t, const json_t *schema)
{
    const unsigned types = tool_schema_types(resolve(t, schema), 0);
    if (types == T_BOOLEAN) {
        writer_open_parts(w, "choice");
        writer_named(w, "text", "value", STR("True"));
        writer_named(w, "text", "value", STR("False"));
        writer_close_parts(w);
    } else
        put_property_schema(w, t, schema);
}

static void put_pair(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    const struct str *pieces = w->d->pieces;
    writer_open_parts(w, "sequence");
    if (w->d->calls->args == ARGS_TAGS) {
        writer_piece(w, pieces[PIECE_KEY_OPEN]);
        if (key[0] != '\0')
            writer_named(w, "text", "value", str_of(key));
        writer_piece(w, pieces[PIECE_KEY_CLOSE]);
        put_tag_value(w, t, key, schema);
        writer_piece(w, pieces[PIECE_VALUE_CLOSE]);
    } else {
        writer_named(w, "text", "value", str_of(key));
        writer_named(w, "text", "value", STR("="));
        put_python_value(w, t, schema);
    }
    writer_close_parts(w);
}

static bool is_required(const struct tool *t, const char *key)
{
    const json_t *list = json_object_get(t->parameters, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name != NULL && strcmp(name, key) == 0)
            return true;
    }
    return false;
}

/* Keys must be such that they end where their tag says. */
static void check_key(struct writer *w, const struct tool *t, const char *key)
{
    const bool python = w->d->calls->args == ARGS_PYTHON;
    bool ok = key[0] != '\0' && strlen(key) <= 128;
    for (const char *c = key; *c != '\0' && ok; c++)
        ok = python ? (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || (*c >= '0' && *c <= '9')
                    : *c != '<' && *c != '>' && *c != '"' && *c != '\n' && (unsigned char)*c >= 0x20;
    if (!ok)
        w->err =
            FAIL(w->e, ERR_UNSUPPORTED, "tool '%.*s': the property '%.48s' cannot be written in the call syntax '%s'",
                (int)t->name.n, t->name.p, key, w->d->calls->name);
}

void write_tag_arguments(struct writer *w, const struct tool *t)
{
    json_t *properties = json_object_get(t->parameters, "properties");
    const char *key;
    json_t *schema;
    check_root(w, t);
    json_object_foreach(properties, key, schema)
    {
        check_key(w, t, key);
        if (is_required(t, key)) {
            put_pair(w, t, key, schema);
            continue;
        }
        writer_open_repeat(w);
        put_pair(w, t, key, schema);
        writer_close_repeat(w, "1");
    }
}

/* ", k=v" at most once each, for the optional properties from number `from` on. */
static void put_python_rest(struct writer *w, const struct tool *t, size_t from)
{
    const char *key;
    json_t *schema;
    size_t i = 0;
    json_object_foreach(json_object_get(t->parameters, "properties"), key, schema)
    {
        if (is_required(t, key) || i++ < from)
            continue;
        writer_open_repeat(w);
        writer_open_parts(w, "sequence");
        writer_named(w, "text", "value", STR(", "));
        put_pair(w, t, key, schema);
        writer_close_parts(w);
        writer_close_repeat(w, "1");
    }
}

/* Required ones first, so that commas fall into place; without any, one alternative for each that may come first. */
void write_python_arguments(struct writer *w, const struct tool *t)
{
    json_t *properties = json_object_get(t->parameters, "properties");
    const char *key;
    json_t *schema;
    bool any = false;
    size_t i = 0;
    check_root(w, t);
    json_object_foreach(properties, key, schema)
    {
        check_key(w, t, key);
        if (!is_required(t, key))
            continue;
        if (any)
            writer_named(w, "text", "value", STR(", "));
        any = true;
        put_pair(w, t, key, schema);
    }
    if (any) {
        put_python_rest(w, t, 0);
        return;
    }
    writer_open_parts(w, "choice");
    writer_open_parts(w, "sequence");
    writer_close_parts(w);
    json_object_foreach(properties, key, schema)
    {
        if (i++ >= 12) /* the square of it is written */
            break;
        writer_open_parts(w, "sequence");
        put_pair(w, t, key, schema);
        put_python_rest(w, t, i);
        writer_close_parts(w);
    }
    writer_close_parts(w);
}
