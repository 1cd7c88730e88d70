/* Arguments in tags, as JSON.
 *
 *   <parameter=k>\nv\n</parameter>     <arg_key>k</arg_key>\n<arg_value>v</arg_value>
 *
 * The text of a value does not say its type, the tool's schema does. A value that can only be a string streams: its
 * bytes are escaped as they come. Any other is held until it is whole: JSON of an allowed type is given as it is
 * written, the rest is a string. Templates write values the same way (strings bare, all else as JSON), so a call that
 * is sent back reads as it was written. */
#include "text/tool_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- schemas ---- */

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"string", "integer", "number", "boolean", "null", "object", "array"};
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0)
            return i == 2 ? T_NUMBER | T_INTEGER : 1u << i;
    return 0;
}

static unsigned value_bit(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_STRING: return T_STRING;
    case JSON_INTEGER: return T_INTEGER;
    case JSON_REAL: return T_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return T_BOOLEAN;
    case JSON_NULL: return T_NULL;
    case JSON_OBJECT: return T_OBJECT;
    case JSON_ARRAY: return T_ARRAY;
    }
    return 0;
}

static unsigned types_of_list(const json_t *list, bool are_values, unsigned depth)
{
    unsigned bits = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        bits |= are_values ? value_bit(v) : tool_schema_types(v, depth + 1);
    }
    return bits;
}

unsigned tool_schema_types(const json_t *schema, unsigned depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    unsigned bits = T_ALL;
    if (!json_is_object(schema) || depth > 8)
        return T_ALL;
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const");
    if (json_is_string(type))
        bits &= type_bit(json_string_value(type));
    else if (json_is_array(type)) {
        unsigned any = 0;
        for (size_t i = 0; i < json_array_size(type); i++)
            if (json_is_string(json_array_get(type, i)))
                any |= type_bit(json_string_value(json_array_get(type, i)));
        bits &= any;
    }
    if (json_is_array(json_object_get(schema, "enum")))
        bits &= types_of_list(json_object_get(schema, "enum"), true, depth);
    if (constant != NULL)
        bits &= value_bit(constant);
    for (size_t i = 0; i < COUNT_OF(unions); i++)
        if (json_is_array(json_object_get(schema, unions[i])))
            bits &= types_of_list(json_object_get(schema, unions[i]), false, depth);
    if (json_is_true(json_object_get(schema, "nullable")))
        bits |= T_NULL;
    return bits != 0 ? bits : T_ALL;
}

const json_t *tool_schema_property(const struct tool *t, struct str key)
{
    const json_t *properties = t->parameters != NULL ? json_object_get(t->parameters, "properties") : NULL;
    return json_is_object(properties) ? json_object_getn(properties, key.p, key.n) : NULL;
}

/* ---- JSON out ---- */

void tool_json_escape(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        const unsigned char c = (unsigned char)s.p[i];
        if (s.p[i] == TOOL_MARK) { /* a control token has no place in a string */
            const char *end = memchr(s.p + i, (unsigned char)TOOL_MARK_END, s.n - i);
            i = end != NULL ? (size_t)(end - s.p) : i;
            continue;
        }
        switch (c) {
        case '"': buf_add(out, STR("\\\"")); break;
        case '\\': buf_add(out, STR("\\\\")); break;
        case '\n': buf_add(out, STR("\\n")); break;
        case '\r': buf_add(out, STR("\\r")); break;
        case '\t': buf_add(out, STR("\\t")); break;
        case '\b': buf_add(out, STR("\\b")); break;
        case '\f': buf_add(out, STR("\\f")); break;
        default:
            if (c < 0x20)
                buf_addf(out, "\\u%04x", c);
            else if (c != (unsigned char)TOOL_MARK_END)
                buf_add_char(out, (char)c);
        }
    }
}

static void send_out(struct tool_parser *p)
{
    if (p->out.n > 0)
        parser_args(p, buf_str(&p->out));
    buf_clear(&p->out);
}

/* ---- the machine ---- */

static void finish_arguments(struct tool_parser *p)
{
    buf_add(&p->out, p->value.n_keys == 0 ? STR("{}") : STR("}"));
    send_out(p);
    parser_end_call(p);
    p->state = IN_TAIL;
}

static void begin_value(struct tool_parser *p, struct str key)
{
    struct value_state *v = &p->value;
    buf_add(&p->out, v->n_keys++ == 0 ? STR("{\"") : STR(", \""));
    tool_json_escape(&p->out, key);
    buf_add(&p->out, STR("\": "));
    v->schema = tool_schema_property(p->tool, key);
    v->mode = tool_schema_types(v->schema, 0) == T_STRING ? VALUE_STRING : VALUE_HELD;
    if (v->mode == VALUE_STRING)
        buf_add_char(&p->out, '"');
    send_out(p);
}

/* Between values: a key, or the end of the arguments. Anything else ends them too: IN_TAIL sorts it out. */
static enum step step_key(struct tool_parser *p)
{
    const struct str *pieces = p->d->pieces, open = pieces[PIECE_KEY_OPEN];
    struct str s = parser_rest(p);
    size_t n = 0;
    while (n < s.n && (s.p[n] == '\n' || s.p[n] == ' ' || s.p[n] == '\t' || s.p[n] == '\r'))
        n++;
    parser_drop(p, n);
    s = (struct str){s.p + n, MIN(s.n - n, (size_t)TOOL_HEAD_BYTES_MAX)};
    const bool is_full = s.n == TOOL_HEAD_BYTES_MAX;
    enum match m = match_prefix(s, open);
    if (m == MATCH_YES) {
        const struct str core = without_newlines(pieces[PIECE_KEY_CLOSE]);
        const char first = core.p[0];
        const char *end = memchr(s.p + open.n, first, s.n - open.n);
        size_t at = end != NULL ? (size_t)(end - s.p) : s.n;
        m = end == NULL ? MATCH_MORE : match_piece(core, s, &at, NULL);
        const size_t tail = pieces[PIECE_KEY_CLOSE].p[pieces[PIECE_KEY_CLOSE].n - 1] == '\n' ? 1 : 0;
        if (m == MATCH_YES && tail > 0 && at == s.n && !is_full)
            m = MATCH_MORE; /* is there a newline? */
        if (m == MATCH_YES) {
            begin_value(p, (struct str){s.p + open.n, (size_t)(end - s.p) - open.n});
            parser_drop(p, at + (tail > 0 && at < s.n && s.p[at] == '\n' ? 1 : 0));
            return STEP_ON;
        }
    }
    if (m == MATCH_MORE && !is_full)
        return STEP_MORE;
    finish_arguments(p);
    return STEP_ON;
}

static size_t digits(struct str s, size_t at)
{
    size_t n = 0;
    while (at + n < s.n && s.p[at + n] >= '0' && s.p[at + n] <= '9')
        n++;
    return n;
}

unsigned tool_number_types(struct str s)
{
    size_t at = s.n > 0 && s.p[0] == '-' ? 1 : 0, n = digits(s, at);
    bool zero_fraction = true;
    if (n == 0 || (n > 1 && s.p[at] == '0'))
        return 0;
    at += n;
    if (at < s.n && s.p[at] == '.') {
        n = digits(s, at + 1);
        for (size_t i = at + 1; i <= at + n; i++)
            zero_fraction = zero_fraction && s.p[i] == '0';
        at += n + 1;
        if (n == 0)
            return 0;
    }
    const bool has_power = at < s.n && (s.p[at] == 'e' || s.p[at] == 'E');
    if (has_power) {
        at++;
        at += at < s.n && (s.p[at] == '+' || s.p[at] == '-') ? 1 : 0;
        n = digits(s, at);
        at += n;
        if (n == 0)
            return 0;
    }
    if (at != s.n)
        return 0;
    if (!has_power)
        return zero_fraction ? T_NUMBER | T_INTEGER : T_NUMBER;
    char text[64];
    if (s.n >= sizeof text)
        return T_NUMBER | T_INTEGER; /* who can tell */
    memcpy(text, s.p, s.n);
    text[s.n] = '\0';
    const double x = strtod(text, NULL);
    return x == floor(x) ? T_NUMBER | T_INTEGER : T_NUMBER;
}

/* Is the text JSON of a type that the schema allows? */
static bool is_json_of(struct str text, unsigned types)
{
    json_error_t why;
    if (text.n == 0)
        return false;
    const unsigned number = tool_number_types(text); /* numbers keep their spelling, and may be beyond any type of C */
    if (number != 0)
        return (number & types) != 0;
    json_t *v = json_loadb(text.p, text.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    const bool ok = v != NULL && (value_bit(v) & types) != 0;
    json_decref(v);
    return ok;
}

static void give_held(struct tool_parser *p, struct str text)
{
    const unsigned types = tool_schema_types(p->value.schema, 0);
    if (is_json_of(text, types))
        buf_add(&p->out, text);
    else {
        buf_add_char(&p->out, '"');
        tool_json_escape(&p->out, text);
        buf_add_char(&p->out, '"');
    }
    send_out(p);
}

static enum step step_value(struct tool_parser *p)
{
    const struct str piece = p->d->pieces[PIECE_VALUE_CLOSE], core = without_newlines(piece);
    const bool has_newline = piece.p[0] == '\n';
    const struct str s = parser_rest(p);
    struct value_state *v = &p->value;
    size_t which;
    const size_t at = parser_scan(s, &core, 1, &which);
    size_t n = at;
    if (has_newline && n > 0 && s.p[n - 1] == '\n')
        n--;
    if (v->mode == VALUE_HELD && at > TOOL_VALUE_BYTES_MAX) {
        v->mode = VALUE_STRING; /* too long to wait for */
        buf_add_char(&p->out, '"');
    }
    if (v->mode == VALUE_STRING) {
        tool_json_escape(&p->out, (struct str){s.p, n});
        if (which == 0)
            buf_add_char(&p->out, '"');
        send_out(p);
    } else if (which == 0)
        give_held(p, (struct str){s.p, n});
    else
        return STEP_MORE;
    if (which == 0) {
        parser_drop(p, at + core.n);
        v->mode = VALUE_NONE;
        return STEP_ON;
    }
    parser_drop(p, n);
    return STEP_MORE;
}

enum step tags_step(struct tool_parser *p)
{
    return p->value.mode == VALUE_NONE ? step_key(p) : step_value(p);
}

void tags_finish(struct tool_parser *p)
{
    const struct str s = parser_rest(p);
    if (s.n == 0)
        return;
    if (p->value.mode == VALUE_STRING) {
        tool_json_escape(&p->out, s);
        send_out(p);
    } else if (p->value.mode == VALUE_HELD) {
        const char *mark = memchr(s.p, (unsigned char)TOOL_MARK, s.n);
        parser_args(p, (struct str){s.p, mark != NULL ? (size_t)(mark - s.p) : s.n});
    }
}
