/* Matching the fixed parts of a call at the front of a text: whole, not at all, or too early to say. */
#include "text/tool_int.h"

#include <stdio.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

static struct str skip(struct str s, size_t n)
{
    return (struct str){s.p + n, s.n - n};
}

enum match match_prefix(struct str s, struct str prefix)
{
    const size_t n = MIN(s.n, prefix.n);
    if (n > 0 && memcmp(s.p, prefix.p, n) != 0)
        return MATCH_NO;
    return n == prefix.n ? MATCH_YES : MATCH_MORE;
}

/* "arguments" and "parameters" mean the same. */
static enum match match_key(struct str piece, struct str s, size_t *n_piece, size_t *n_s)
{
    static const struct str keys[] = {{"\"arguments\"", 11}, {"\"parameters\"", 12}};
    bool is_key = false, more = false;
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (str_has_prefix(piece, keys[i])) {
            *n_piece = keys[i].n;
            is_key = true;
        }
    if (!is_key)
        return MATCH_NO;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const enum match m = match_prefix(s, keys[i]);
        more |= m == MATCH_MORE;
        if (m == MATCH_YES) {
            *n_s = keys[i].n;
            return MATCH_YES;
        }
    }
    return more ? MATCH_MORE : MATCH_NO;
}

/* A number or an id: what stands for it, given to *number. */
static enum match match_slot(char kind, struct str s, size_t *at, struct str *number)
{
    size_t n = 0;
    while (*at + n < s.n && n < 64 &&
           (kind == PIECE_INDEX ? s.p[*at + n] >= '0' && s.p[*at + n] <= '9' : is_name_char(s.p[*at + n])))
        n++;
    if (*at + n == s.n)
        return MATCH_MORE;
    if (n == 0)
        return MATCH_NO;
    if (number != NULL)
        *number = (struct str){s.p + *at, n};
    *at += n;
    return MATCH_YES;
}

static void skip_blanks(struct str s, size_t *at)
{
    while (*at < s.n && is_blank(s.p[*at]))
        (*at)++;
}

enum match match_piece(struct str piece, struct str s, size_t *at, struct str *number)
{
    for (size_t i = 0; i < piece.n;) {
        const char c = piece.p[i];
        if (is_blank(c)) {
            skip_blanks(s, at);
            if (*at == s.n)
                return MATCH_MORE; /* there may come more of it */
            i++;
            continue;
        }
        if (c == PIECE_INDEX || c == PIECE_ID) {
            const enum match m = match_slot(c, s, at, number);
            if (m != MATCH_YES)
                return m;
            i++;
            continue;
        }
        if (strchr("{}[],:\"", c) != NULL)
            skip_blanks(s, at);
        size_t n_piece = 0, n_s = 0;
        const enum match key = match_key(skip(piece, i), skip(s, *at), &n_piece, &n_s);
        if (n_piece > 0) {
            if (key != MATCH_YES)
                return key;
            i += n_piece;
            *at += n_s;
            continue;
        }
        if (*at == s.n)
            return MATCH_MORE;
        if (s.p[*at] != c)
            return MATCH_NO;
        i++;
        (*at)++;
    }
    return MATCH_YES;
}

/* One JSON value at *at, as far as its shape goes. */
static enum match match_value(struct str s, size_t *at)
{
    uint32_t depth = 0;
    bool in_string = false;
    for (; *at < s.n; (*at)++) {
        const char c = s.p[*at];
        if (c == TOOL_MARK)
            return MATCH_NO;
        if (in_string) {
            if (c == '\\')
                (*at)++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"')
            in_string = true;
        else if (c == '{' || c == '[')
            depth++;
        else if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return MATCH_YES;
        else if (c == '}' || c == ']')
            depth--;
    }
    return MATCH_MORE;
}

enum match match_members(struct str s, size_t *at)
{
    for (;;) {
        skip_blanks(s, at);
        if (*at >= s.n)
            return MATCH_MORE;
        if (s.p[*at] != ',')
            return MATCH_YES; /* the brace, or what is not one: the piece decides */
        (*at)++;
        skip_blanks(s, at);
        if (*at >= s.n)
            return MATCH_MORE;
        if (s.p[*at] != '"')
            return MATCH_NO;
        const enum match m = match_value(s, at);
        if (m != MATCH_YES)
            return m;
    }
}

/* What must follow the head, so that it is one. */
static enum match match_arguments_begin(const struct tool_dialect *d, struct str s, size_t at)
{
    if (d->calls->args == ARGS_PYTHON)
        return MATCH_YES;
    skip_blanks(s, &at);
    if (d->calls->args == ARGS_JSON)
        return at == s.n ? MATCH_MORE : s.p[at] == '{' ? MATCH_YES : MATCH_NO;
    size_t end = at;
    const enum match key = match_prefix(skip(s, at), d->pieces[PIECE_KEY_OPEN]);
    const enum match close = match_piece(d->pieces[PIECE_CLOSE], s, &end, NULL);
    if (key == MATCH_YES || close == MATCH_YES)
        return MATCH_YES;
    return key == MATCH_MORE || close == MATCH_MORE ? MATCH_MORE : MATCH_NO;
}

enum match match_head(const struct tool_parser *p, struct str s, bool with_section, struct tool_head *out)
{
    const struct tool_dialect *d = p->d;
    struct str number = {0};
    size_t at = 0;
    if (s.n > TOOL_HEAD_BYTES_MAX)
        s.n = TOOL_HEAD_BYTES_MAX; /* what is not decided by then is no head */
    enum match m = with_section ? match_piece(d->pieces[PIECE_SECTION], s, &at, NULL) : MATCH_YES;
    if (m == MATCH_YES)
        m = match_piece(d->pieces[PIECE_OPEN], s, &at, NULL);
    if (m == MATCH_YES && d->calls->args == ARGS_PYTHON)
        skip_blanks(s, &at);
    if (m == MATCH_YES) {
        const size_t start = at;
        while (at < s.n && is_name_char(s.p[at]))
            at++;
        const struct str name = {s.p + start, at - start};
        if (at == s.n)
            m = MATCH_MORE;
        else if ((out->tool = parser_find(p, name)) == NULL)
            return MATCH_NO;
    }
    if (m == MATCH_YES)
        m = match_piece(d->pieces[PIECE_MIDDLE], s, &at, &number);
    if (m == MATCH_YES)
        m = match_arguments_begin(d, s, at);
    if (m == MATCH_MORE && s.n >= TOOL_HEAD_BYTES_MAX)
        return MATCH_NO;
    if (m != MATCH_YES)
        return m;
    if (d->calls->args == ARGS_JSON)
        skip_blanks(s, &at);
    out->n = at;
    out->id = number;
    if (d->calls->has_function_ids) {
        const int n = snprintf(out->id_room, sizeof out->id_room, "functions.%.*s:%.*s", (int)out->tool->name.n,
            out->tool->name.p, (int)MIN(number.n, (size_t)9), number.p);
        out->id = (struct str){out->id_room, (size_t)MIN(n, (int)sizeof out->id_room - 1)};
    }
    return MATCH_YES;
}

struct str without_newlines(struct str s)
{
    while (s.n > 0 && s.p[0] == '\n') {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && s.p[s.n - 1] == '\n')
        s.n--;
    return s;
}
