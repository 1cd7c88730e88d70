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
#include "text/tool_write.h"

#include <string.h>

#define AVOID_BYTES_MAX (32 * 1024)

void writer_comma(struct writer *w)
{
    if (w->comma)
        buf_add_char(w->out, ',');
    w->comma = true;
}

void writer_open_parts(struct writer *w, const char *type)
{
    writer_comma(w);
    buf_addf(w->out, "{\"type\":\"%s\",\"parts\":[", type);
    w->comma = false;
}

void writer_close_parts(struct writer *w)
{
    buf_add(w->out, STR("]}"));
    w->comma = true;
}

void writer_open_repeat(struct writer *w)
{
    writer_comma(w);
    buf_add(w->out, STR("{\"type\":\"repeat\",\"part\":"));
    w->comma = false;
}

void writer_close_repeat(struct writer *w, const char *max)
{
    buf_addf(w->out, ",\"min\":0,\"max\":%s}", max);
    w->comma = true;
}

void writer_named(struct writer *w, const char *type, const char *key, struct str value)
{
    writer_comma(w);
    buf_addf(w->out, "{\"type\":\"%s\",\"%s\":", type, key);
    buf_add_json_str(w->out, value);
    buf_add_char(w->out, '}');
}

static bool is_slot(char c)
{
    return c == PIECE_INDEX || c == PIECE_ID;
}

/* A piece: text, control tokens, and a pattern for what is different each time. */
void writer_piece(struct writer *w, struct str s)
{
    while (s.n > 0) {
        size_t n = 0;
        if (s.p[0] == TOOL_MARK) {
            while (s.p[n] != TOOL_MARK_END)
                n++;
            writer_named(w, "control", "value", (struct str){s.p + 1, n - 1});
            n++;
        } else if (is_slot(s.p[0])) {
            writer_named(w, "regex", "pattern", s.p[0] == PIECE_INDEX ? STR("[0-9]{1,3}") : STR("[a-zA-Z0-9]{9}"));
            n = 1;
        } else {
            while (n < s.n && s.p[n] != TOOL_MARK && !is_slot(s.p[n]))
                n++;
            writer_named(w, "text", "value", (struct str){s.p, n});
        }
        s = (struct str){s.p + n, s.n - n};
    }
}

static void put_stop(struct writer *w, struct str s)
{
    if (s.n == 0)
        return;
    writer_comma(w);
    if (s.p[0] != TOOL_MARK) {
        buf_add_json_str(w->out, s);
        return;
    }
    buf_add(w->out, STR("{\"type\":\"control\",\"value\":"));
    buf_add_json_str(w->out, (struct str){s.p + 1, s.n - 2});
    buf_add_char(w->out, '}');
}

void writer_free(struct writer *w, struct str stop, struct str other)
{
    writer_comma(w);
    buf_add(w->out, STR("{\"type\":\"free_until\",\"stops\":["));
    w->comma = false;
    put_stop(w, stop);
    put_stop(w, other);
    buf_add(w->out, STR("]}"));
    w->comma = true;
}

void writer_schema(struct writer *w, const json_t *schema)
{
    char *text = schema != NULL ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    writer_comma(w);
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

/* ---- calls ---- */

static void put_call(struct writer *w, const struct tool *t)
{
    const struct str *pieces = w->d->pieces;
    writer_open_parts(w, "sequence");
    writer_piece(w, pieces[PIECE_OPEN]);
    writer_named(w, "text", "value", t->name);
    writer_piece(w, pieces[PIECE_MIDDLE]);
    switch (w->d->calls->args) {
    case ARGS_JSON: write_json_arguments(w, t); break;
    case ARGS_TAGS: write_tag_arguments(w, t); break;
    case ARGS_PYTHON: write_python_arguments(w, t); break;
    }
    writer_piece(w, pieces[PIECE_CLOSE]);
    writer_close_parts(w);
}

static void put_any_call(struct writer *w, const struct tool_list *tools)
{
    if (tools->n > 1)
        writer_open_parts(w, "choice");
    for (size_t i = 0; i < tools->n; i++)
        put_call(w, &tools->tools[i]);
    if (tools->n > 1)
        writer_close_parts(w);
}

static void put_calls(struct writer *w, const struct tool_structure_options *o)
{
    const struct str *pieces = w->d->pieces;
    writer_open_parts(w, "sequence");
    writer_piece(w, pieces[PIECE_SECTION]);
    put_any_call(w, o->tools);
    if (o->parallel) {
        writer_open_repeat(w);
        writer_open_parts(w, "sequence");
        writer_piece(w, pieces[PIECE_BETWEEN]);
        put_any_call(w, o->tools);
        writer_close_parts(w);
        writer_close_repeat(w, "null");
    }
    writer_piece(w, pieces[PIECE_END]);
    writer_close_parts(w);
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
    writer_open_parts(w, "choice");
    writer_open_parts(w, "sequence");
    write_paths(w, many ? &first : tools, true, &pattern);
    writer_named(w, "regex", "pattern", buf_str(&pattern));
    writer_free(w, (struct str){0}, (struct str){0});
    writer_close_parts(w);
    buf_clear(&pattern);
    write_paths(w, many ? &first : tools, false, &pattern);
    if (pattern.n > 0)
        writer_named(w, "regex", "pattern", buf_str(&pattern));
    writer_open_parts(w, "sequence");
    writer_close_parts(w);
    writer_close_parts(w);
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
        writer_open_parts(w, "choice");
        put_calls(w, o);
        if (o->other.n > 0) {
            writer_comma(w);
            buf_add(w->out, o->other);
        } else
            put_other_text(w, o->tools);
        writer_close_parts(w);
        return;
    }
    writer_open_parts(w, "sequence");
    writer_free(w, trigger, may_think ? w->d->think_begin : (struct str){0});
    writer_open_repeat(w);
    put_calls(w, o);
    writer_close_repeat(w, "1");
    writer_close_parts(w);
}

static void put_thought(struct writer *w, bool with_begin)
{
    if (with_begin)
        writer_piece(w, w->d->think_begin);
    writer_free(w, w->d->think_end, (struct str){0});
    writer_piece(w, w->d->think_end);
    writer_named(w, "regex", "pattern", STR("\\n{0,2}"));
}

/* Messages of harmony before the last one: reasoning, and with `preamble` remarks to the user. */
static void put_harmony_before(struct writer *w, bool preamble)
{
    const struct str *h = w->d->harmony;
    writer_open_repeat(w);
    writer_open_parts(w, "sequence");
    writer_piece(w, h[H_CHANNEL]);
    if (preamble) {
        writer_open_parts(w, "choice");
        writer_named(w, "text", "value", STR("analysis"));
        writer_named(w, "text", "value", STR("commentary"));
        writer_close_parts(w);
    } else
        writer_named(w, "text", "value", STR("analysis"));
    writer_piece(w, h[H_MESSAGE]);
    writer_free(w, h[H_END], (struct str){0});
    writer_piece(w, h[H_END]);
    writer_piece(w, h[H_START]);
    writer_named(w, "text", "value", STR("assistant"));
    writer_close_parts(w);
    writer_close_repeat(w, "null");
}

static void put_harmony_final(struct writer *w)
{
    writer_piece(w, w->d->harmony[H_CHANNEL]);
    writer_named(w, "text", "value", STR("final"));
    writer_piece(w, w->d->harmony[H_MESSAGE]);
}

static void put_harmony(struct writer *w, const struct tool_structure_options *o)
{
    const struct str *h = w->d->harmony;
    writer_open_parts(w, "sequence");
    put_harmony_before(w, o->choice == TOOLS_AUTO);
    writer_open_parts(w, "choice");
    for (size_t i = 0; i < o->tools->n; i++) {
        writer_open_parts(w, "sequence");
        writer_piece(w, h[H_CHANNEL]);
        writer_named(w, "text", "value", STR("commentary to=functions."));
        writer_named(w, "text", "value", o->tools->tools[i].name);
        writer_named(w, "text", "value", STR(" "));
        writer_piece(w, h[H_CONSTRAIN]);
        writer_named(w, "text", "value", STR("json"));
        writer_piece(w, h[H_MESSAGE]);
        write_json_arguments(w, &o->tools->tools[i]);
        writer_close_parts(w);
    }
    if (o->choice == TOOLS_AUTO) {
        writer_open_parts(w, "sequence");
        put_harmony_final(w);
        if (o->other.n > 0) {
            writer_comma(w);
            buf_add(w->out, o->other);
        } else
            writer_free(w, h[H_END], (struct str){0});
        writer_close_parts(w);
    }
    writer_close_parts(w);
    writer_close_parts(w);
}

enum err tool_structure_write(
    const struct tool_dialect *d, const struct tool_structure_options *o, struct buf *out, struct error *e)
{
    struct writer w = {.d = d, .out = out, .e = e};
    assert(d->calls != NULL && o->tools->n > 0 && o->choice != TOOLS_NONE);
    if (d->calls->is_harmony)
        put_harmony(&w, o);
    else if (o->start == REASONING_OPEN && d->think_end.n > 0) {
        writer_open_parts(&w, "sequence");
        put_thought(&w, false);
        put_answer(&w, o, false);
        writer_close_parts(&w);
    } else if (o->start == REASONING_MAY && d->think_begin.n > 0) {
        writer_open_parts(&w, "choice");
        writer_open_parts(&w, "sequence");
        put_thought(&w, true);
        put_answer(&w, o, false);
        writer_close_parts(&w);
        put_answer(&w, o, true);
        writer_close_parts(&w);
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
        writer_open_parts(&w, "sequence");
        put_harmony_before(&w, false);
        put_harmony_final(&w);
        writer_comma(&w);
        buf_add(out, part);
        writer_close_parts(&w);
    } else if ((start == REASONING_OPEN || may) && d->think_end.n > 0) {
        if (may)
            writer_open_parts(&w, "choice");
        writer_open_parts(&w, "sequence");
        put_thought(&w, may);
        writer_comma(&w);
        buf_add(out, part);
        writer_close_parts(&w);
        if (may) {
            writer_comma(&w);
            buf_add(out, part);
            writer_close_parts(&w);
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
