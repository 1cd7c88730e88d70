/* From tools to a structure: the same pieces that the parser reads, as parts of a grammar.
 *
 * JSON arguments are the tool's schema, written as Jinja's tojson writes it, so that a call sent back in the next turn
 * renders to the bytes it was generated with. Arguments in tags and in Python have a part for each property: required
 * ones once, the others at most once. A property that can only be a string is free text there (or one of its enum), any
 * other is JSON; what a schema says beyond that about strings cannot be promised in free text, and is refused when the
 * tool is strict.
 *
 * Properties that the schema does not name are not generated unless it asks for them (additionalProperties).
 *
 * Free text (the choice AUTO) ends where the trigger is written; from there on a call is complete and valid. Where a
 * syntax has no trigger, an answer is either calls or a text that does not begin like one. */
#include "text/tool_int.h"

#include <string.h>

#define AVOID_BYTES_MAX (32 * 1024)

struct writer {
    const struct tool_dialect *d;
    struct buf *out;
    struct error *e;
    enum err err;
    bool comma;
};

static void comma(struct writer *w)
{
    if (w->comma)
        buf_add_char(w->out, ',');
    w->comma = true;
}

static void open_parts(struct writer *w, const char *type)
{
    comma(w);
    buf_addf(w->out, "{\"type\":\"%s\",\"parts\":[", type);
    w->comma = false;
}

static void close_parts(struct writer *w)
{
    buf_add(w->out, STR("]}"));
    w->comma = true;
}

static void open_repeat(struct writer *w)
{
    comma(w);
    buf_add(w->out, STR("{\"type\":\"repeat\",\"part\":"));
    w->comma = false;
}

static void close_repeat(struct writer *w, const char *max)
{
    buf_addf(w->out, ",\"min\":0,\"max\":%s}", max);
    w->comma = true;
}

static void put_named(struct writer *w, const char *type, const char *key, struct str value)
{
    comma(w);
    buf_addf(w->out, "{\"type\":\"%s\",\"%s\":", type, key);
    buf_add_json_str(w->out, value);
    buf_add_char(w->out, '}');
}

static bool is_slot(char c)
{
    return c == PIECE_INDEX || c == PIECE_ID;
}

/* A piece: text, control tokens, and a pattern for what is different each time. */
static void put_piece(struct writer *w, struct str s)
{
    while (s.n > 0) {
        size_t n = 0;
        if (s.p[0] == TOOL_MARK) {
            while (s.p[n] != TOOL_MARK_END)
                n++;
            put_named(w, "control", "value", (struct str){s.p + 1, n - 1});
            n++;
        } else if (is_slot(s.p[0])) {
            put_named(w, "regex", "pattern", s.p[0] == PIECE_INDEX ? STR("[0-9]{1,3}") : STR("[a-zA-Z0-9]{9}"));
            n = 1;
        } else {
            while (n < s.n && s.p[n] != TOOL_MARK && !is_slot(s.p[n]))
                n++;
            put_named(w, "text", "value", (struct str){s.p, n});
        }
        s = (struct str){s.p + n, s.n - n};
    }
}

static void put_stop(struct writer *w, struct str s)
{
    if (s.n == 0)
        return;
    comma(w);
    if (s.p[0] != TOOL_MARK) {
        buf_add_json_str(w->out, s);
        return;
    }
    buf_add(w->out, STR("{\"type\":\"control\",\"value\":"));
    buf_add_json_str(w->out, (struct str){s.p + 1, s.n - 2});
    buf_add_char(w->out, '}');
}

static void put_free(struct writer *w, struct str stop, struct str other)
{
    comma(w);
    buf_add(w->out, STR("{\"type\":\"free_until\",\"stops\":["));
    w->comma = false;
    put_stop(w, stop);
    put_stop(w, other);
    buf_add(w->out, STR("]}"));
    w->comma = true;
}

static void put_schema(struct writer *w, const json_t *schema)
{
    char *text = schema != NULL ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    comma(w);
    if (schema != NULL && text == NULL) {
        w->err = FAIL(w->e, ERR_NOMEM, "out of memory for the schema of a tool");
        return;
    }
    if (schema == NULL)
        buf_add(w->out, STR("{\"type\":\"json_object\",\"whitespace\":\"spaced\"}"));
    else {
        buf_add(w->out, STR("{\"type\":\"json\",\"whitespace\":\"spaced\",\"schema\":"));
        buf_add(w->out, str_of(text));
        buf_add_char(w->out, '}');
    }
    mem_free(text);
}

/* ---- arguments as JSON ---- */

static void put_json_arguments(struct writer *w, const struct tool *t)
{
    if (!json_is_object(t->parameters)) {
        put_schema(w, NULL);
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
        put_schema(w, copy);
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
    open_parts(w, "choice");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (json_string_length(v) > 0)
            put_named(w, "text", "value", (struct str){json_string_value(v), json_string_length(v)});
        else {
            open_parts(w, "sequence");
            close_parts(w);
        }
    }
    close_parts(w);
}

static void put_property_schema(struct writer *w, const struct tool *t, const json_t *schema)
{
    json_t *own = alone(t, schema);
    if (own == NULL)
        w->err = FAIL(w->e, ERR_NOMEM, "out of memory for the schema of a tool");
    else
        put_schema(w, own);
    json_decref(own);
}

static struct str core_of(struct str s)
{
    while (s.n > 0 && s.p[0] == '\n') {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
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
        put_named(w, "text", "value", (struct str){json_string_value(constant), json_string_length(constant)});
    else
        put_free(w, core_of(w->d->pieces[PIECE_VALUE_CLOSE]), (struct str){0});
}

static void put_python_value(struct writer *w, const struct tool *t, const json_t *schema)
{
    const unsigned types = tool_schema_types(resolve(t, schema), 0);
    if (types == T_BOOLEAN) {
        open_parts(w, "choice");
        put_named(w, "text", "value", STR("True"));
        put_named(w, "text", "value", STR("False"));
        close_parts(w);
    } else
        put_property_schema(w, t, schema);
}

static void put_pair(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    const struct str *pieces = w->d->pieces;
    open_parts(w, "sequence");
    if (w->d->calls->args == ARGS_TAGS) {
        put_piece(w, pieces[PIECE_KEY_OPEN]);
        if (key[0] != '\0')
            put_named(w, "text", "value", str_of(key));
        put_piece(w, pieces[PIECE_KEY_CLOSE]);
        put_tag_value(w, t, key, schema);
        put_piece(w, pieces[PIECE_VALUE_CLOSE]);
    } else {
        put_named(w, "text", "value", str_of(key));
        put_named(w, "text", "value", STR("="));
        put_python_value(w, t, schema);
    }
    close_parts(w);
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

static void put_tag_arguments(struct writer *w, const struct tool *t)
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
        open_repeat(w);
        put_pair(w, t, key, schema);
        close_repeat(w, "1");
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
        open_repeat(w);
        open_parts(w, "sequence");
        put_named(w, "text", "value", STR(", "));
        put_pair(w, t, key, schema);
        close_parts(w);
        close_repeat(w, "1");
    }
}

/* Required ones first, so that commas fall into place; without any, one alternative for each that may come first. */
static void put_python_arguments(struct writer *w, const struct tool *t)
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
            put_named(w, "text", "value", STR(", "));
        any = true;
        put_pair(w, t, key, schema);
    }
    if (any) {
        put_python_rest(w, t, 0);
        return;
    }
    open_parts(w, "choice");
    open_parts(w, "sequence");
    close_parts(w);
    json_object_foreach(properties, key, schema)
    {
        if (i++ >= 12) /* the square of it is written */
            break;
        open_parts(w, "sequence");
        put_pair(w, t, key, schema);
        put_python_rest(w, t, i);
        close_parts(w);
    }
    close_parts(w);
}

/* ---- calls ---- */

static void put_call(struct writer *w, const struct tool *t)
{
    const struct str *pieces = w->d->pieces;
    open_parts(w, "sequence");
    put_piece(w, pieces[PIECE_OPEN]);
    put_named(w, "text", "value", t->name);
    put_piece(w, pieces[PIECE_MIDDLE]);
    switch (w->d->calls->args) {
    case ARGS_JSON: put_json_arguments(w, t); break;
    case ARGS_TAGS: put_tag_arguments(w, t); break;
    case ARGS_PYTHON: put_python_arguments(w, t); break;
    }
    put_piece(w, pieces[PIECE_CLOSE]);
    close_parts(w);
}

static void put_any_call(struct writer *w, const struct tool_list *tools)
{
    if (tools->n > 1)
        open_parts(w, "choice");
    for (size_t i = 0; i < tools->n; i++)
        put_call(w, &tools->tools[i]);
    if (tools->n > 1)
        close_parts(w);
}

static void put_calls(struct writer *w, const struct tool_structure_options *o)
{
    const struct str *pieces = w->d->pieces;
    open_parts(w, "sequence");
    put_piece(w, pieces[PIECE_SECTION]);
    put_any_call(w, o->tools);
    if (o->parallel) {
        open_repeat(w);
        open_parts(w, "sequence");
        put_piece(w, pieces[PIECE_BETWEEN]);
        put_any_call(w, o->tools);
        close_parts(w);
        close_repeat(w, "null");
    }
    put_piece(w, pieces[PIECE_END]);
    close_parts(w);
}

/* ---- a text that does not begin like a call ---- */

static void class_escape(struct buf *out, char c)
{
    if (strchr("\\]^-[", c) != NULL)
        buf_add_char(out, '\\');
    if (c == '\n')
        buf_add(out, STR("\\n"));
    else
        buf_add_char(out, c);
}

static void text_escape(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (strchr("\\^$.|?*+()[]{}/", s.p[i]) != NULL)
            buf_add_char(out, '\\');
        if (s.p[i] == '\n')
            buf_add(out, STR("\\n"));
        else
            buf_add_char(out, s.p[i]);
    }
}

/* The k-th way a call can begin; its bytes are ASCII. */
static struct str beginning(struct writer *w, const struct tool_list *tools, size_t k, char room[128])
{
    const struct str a = w->d->pieces[PIECE_SECTION], b = w->d->pieces[PIECE_OPEN], name = tools->tools[k].name;
    const bool with_name = w->d->calls->args == ARGS_PYTHON;
    size_t n = 0;
    memcpy(room, a.p, a.n);
    n += a.n;
    memcpy(room + n, b.p, b.n);
    n += b.n;
    if (with_name) {
        memcpy(room + n, name.p, MIN(name.n, (size_t)TOOL_NAME_BYTES_MAX));
        n += MIN(name.n, (size_t)TOOL_NAME_BYTES_MAX);
        room[n++] = '(';
    }
    return (struct str){room, n};
}

/* Was the path room[0..n) part of an earlier beginning? Then it has had its turn. */
static bool was_seen(struct writer *w, const struct tool_list *tools, size_t k, struct str path)
{
    char room[128];
    for (size_t i = 0; i < k; i++)
        if (str_has_prefix(beginning(w, tools, i, room), path))
            return true;
    return false;
}

/* Paths on the way to a beginning: with `leaving`, each with a character that leaves it; else the paths themselves. */
static void write_paths(struct writer *w, const struct tool_list *tools, bool leaving, struct buf *pattern)
{
    char room[128], other[128];
    for (size_t k = 0; k < tools->n; k++) {
        const struct str s = beginning(w, tools, k, room);
        for (size_t n = leaving ? 0 : 1; n < s.n; n++) {
            const struct str path = {s.p, n};
            if (was_seen(w, tools, k, path))
                continue;
            if (pattern->n > 0)
                buf_add_char(pattern, '|');
            text_escape(pattern, path);
            if (!leaving)
                continue;
            buf_add(pattern, STR("[^"));
            for (size_t i = k; i < tools->n; i++) {
                const struct str o = beginning(w, tools, i, other);
                const char c = str_has_prefix(o, path) && o.n > n ? o.p[n] : '\0';
                bool twice = false;
                for (size_t j = k; j < i && c != '\0'; j++) {
                    char third[128];
                    const struct str q = beginning(w, tools, j, third);
                    twice |= str_has_prefix(q, path) && q.n > n && q.p[n] == c;
                }
                if (c != '\0' && !twice)
                    class_escape(pattern, c);
            }
            buf_add_char(pattern, ']');
        }
    }
}

static void put_other_text(struct writer *w, const struct tool_list *tools)
{
    const struct tool_list first = {tools->tools, MIN(tools->n, (size_t)1)};
    struct buf pattern;
    const bool many = tools->n > 16; /* then one of them must do, with its first bytes in common with all */
    buf_init(&pattern, AVOID_BYTES_MAX);
    open_parts(w, "choice");
    open_parts(w, "sequence");
    write_paths(w, many ? &first : tools, true, &pattern);
    put_named(w, "regex", "pattern", buf_str(&pattern));
    put_free(w, (struct str){0}, (struct str){0});
    close_parts(w);
    buf_clear(&pattern);
    write_paths(w, many ? &first : tools, false, &pattern);
    if (pattern.n > 0)
        put_named(w, "regex", "pattern", buf_str(&pattern));
    open_parts(w, "sequence");
    close_parts(w);
    close_parts(w);
    if (w->err == OK)
        w->err = buf_check(&pattern, "the pattern of a text without calls", w->e);
    buf_fini(&pattern);
}

/* ---- the whole ---- */

static void put_answer(struct writer *w, const struct tool_structure_options *o, bool may_think)
{
    const struct str trigger = w->d->trigger;
    if (o->choice == TOOLS_REQUIRED) {
        put_calls(w, o);
        return;
    }
    if (trigger.n == 0 || o->other.n > 0) {
        open_parts(w, "choice");
        put_calls(w, o);
        if (o->other.n > 0) {
            comma(w);
            buf_add(w->out, o->other);
        } else
            put_other_text(w, o->tools);
        close_parts(w);
        return;
    }
    open_parts(w, "sequence");
    put_free(w, trigger, may_think ? w->d->think_begin : (struct str){0});
    open_repeat(w);
    put_calls(w, o);
    close_repeat(w, "1");
    close_parts(w);
}

static void put_thought(struct writer *w, bool with_begin)
{
    if (with_begin)
        put_piece(w, w->d->think_begin);
    put_free(w, w->d->think_end, (struct str){0});
    put_piece(w, w->d->think_end);
    put_named(w, "regex", "pattern", STR("\\n{0,2}"));
}

/* Messages of harmony before the last one: reasoning, and with `preamble` remarks to the user. */
static void put_harmony_before(struct writer *w, bool preamble)
{
    const struct str *h = w->d->harmony;
    open_repeat(w);
    open_parts(w, "sequence");
    put_piece(w, h[H_CHANNEL]);
    if (preamble) {
        open_parts(w, "choice");
        put_named(w, "text", "value", STR("analysis"));
        put_named(w, "text", "value", STR("commentary"));
        close_parts(w);
    } else
        put_named(w, "text", "value", STR("analysis"));
    put_piece(w, h[H_MESSAGE]);
    put_free(w, h[H_END], (struct str){0});
    put_piece(w, h[H_END]);
    put_piece(w, h[H_START]);
    put_named(w, "text", "value", STR("assistant"));
    close_parts(w);
    close_repeat(w, "null");
}

static void put_harmony_final(struct writer *w)
{
    put_piece(w, w->d->harmony[H_CHANNEL]);
    put_named(w, "text", "value", STR("final"));
    put_piece(w, w->d->harmony[H_MESSAGE]);
}

static void put_harmony(struct writer *w, const struct tool_structure_options *o)
{
    const struct str *h = w->d->harmony;
    open_parts(w, "sequence");
    put_harmony_before(w, o->choice == TOOLS_AUTO);
    open_parts(w, "choice");
    for (size_t i = 0; i < o->tools->n; i++) {
        open_parts(w, "sequence");
        put_piece(w, h[H_CHANNEL]);
        put_named(w, "text", "value", STR("commentary to=functions."));
        put_named(w, "text", "value", o->tools->tools[i].name);
        put_named(w, "text", "value", STR(" "));
        put_piece(w, h[H_CONSTRAIN]);
        put_named(w, "text", "value", STR("json"));
        put_piece(w, h[H_MESSAGE]);
        put_json_arguments(w, &o->tools->tools[i]);
        close_parts(w);
    }
    if (o->choice == TOOLS_AUTO) {
        open_parts(w, "sequence");
        put_harmony_final(w);
        if (o->other.n > 0) {
            comma(w);
            buf_add(w->out, o->other);
        } else
            put_free(w, h[H_END], (struct str){0});
        close_parts(w);
    }
    close_parts(w);
    close_parts(w);
}

enum err tool_structure_write(
    const struct tool_dialect *d, const struct tool_structure_options *o, struct buf *out, struct error *e)
{
    struct writer w = {.d = d, .out = out, .e = e};
    assert(d->calls != NULL && o->tools->n > 0 && o->choice != TOOLS_NONE);
    if (d->calls->is_harmony)
        put_harmony(&w, o);
    else if (o->start == REASONING_OPEN && d->think_end.n > 0) {
        open_parts(&w, "sequence");
        put_thought(&w, false);
        put_answer(&w, o, false);
        close_parts(&w);
    } else if (o->start == REASONING_MAY && d->think_begin.n > 0) {
        open_parts(&w, "choice");
        open_parts(&w, "sequence");
        put_thought(&w, true);
        put_answer(&w, o, false);
        close_parts(&w);
        put_answer(&w, o, true);
        close_parts(&w);
    } else
        put_answer(&w, o, false);
    TRY(w.err);
    return buf_check(out, "the structure of the tools", e);
}

void tool_structure_after_reasoning(
    const struct tool_dialect *d, enum reasoning_start start, struct str part, struct buf *out)
{
    struct writer w = {.d = d, .out = out};
    const bool may = start == REASONING_MAY && d->think_begin.n > 0;
    if (d->is_harmony) {
        open_parts(&w, "sequence");
        put_harmony_before(&w, false);
        put_harmony_final(&w);
        comma(&w);
        buf_add(out, part);
        close_parts(&w);
    } else if ((start == REASONING_OPEN || may) && d->think_end.n > 0) {
        if (may)
            open_parts(&w, "choice");
        open_parts(&w, "sequence");
        put_thought(&w, may);
        comma(&w);
        buf_add(out, part);
        close_parts(&w);
        if (may) {
            comma(&w);
            buf_add(out, part);
            close_parts(&w);
        }
    } else
        buf_add(out, part);
}

/* ---- instructions ---- */

void tool_dialect_instruct(const struct tool_dialect *d, const json_t *tools, struct buf *out)
{
    buf_add(out, STR("# Tools\n\nYou may call these functions to help with the user's request:\n<tools>\n"));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        char *text = json_dumps(json_array_get(tools, i), JSON_COMPACT | JSON_ENCODE_ANY);
        if (text == NULL)
            out->failure = out->failure != OK ? out->failure : ERR_NOMEM;
        else
            buf_add(out, str_of(text));
        mem_free(text);
        buf_add_char(out, '\n');
    }
    buf_add(out, STR("</tools>\n\nTo call a function, write exactly this:\n"));
    const char *shape = d->calls != NULL ? d->calls->shape : "";
    for (const char *c = shape; *c != '\0'; c++)
        if (c[0] == '\\' && c[1] == 'n') {
            buf_add_char(out, '\n');
            c++;
        } else
            buf_add_char(out, *c);
}
