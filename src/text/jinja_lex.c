/* Template source to tokens, with the white-space rules of trim_blocks and lstrip_blocks, which transformers turns on.
 *
 * The whole source is cut before parsing: templates are small and a token array makes looking ahead free. Rules kept
 * exactly, because a stray newline changes every prompt of a model:
 *   - "\r\n" and "\r" are "\n"; one newline at the very end of the source is dropped;
 *   - a block or comment tag eats one newline after it; a '-' inside a tag eats all white space on that side; a '+'
 *     switches both off;
 *   - white space between the start of a line and a block or comment tag is dropped, not so before {{ }};
 *   - "}}" and "%}" end a tag only outside brackets, so that {{ {'a': {}} }} works. */
#include "text/jinja_parse_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct arena *arena;
    struct error *e;
    const char *p; /* source with newlines made one kind */
    size_t n, at;
    uint32_t line;
    bool line_starting;
    struct jtoken *toks;
    size_t n_toks, cap_toks;
    char nest[CHAT_NEST_MAX]; /* closing brackets that are due */
    size_t n_nest;
};

#define LFAIL(lx, code, ...) FAIL((lx)->e, (code), __VA_ARGS__)

static enum err add(struct lexer *lx, struct jtoken t)
{
    if (lx->n_toks == lx->cap_toks) {
        const size_t cap = lx->cap_toks ? lx->cap_toks * 2 : 256;
        struct jtoken *toks = arena_array(lx->arena, cap, sizeof *toks);
        if (toks == NULL)
            return LFAIL(
                lx, ERR_LIMIT, "the template needs more than %llu bytes", (unsigned long long)CHAT_TREE_BYTES_MAX);
        if (lx->n_toks > 0)
            memcpy(toks, lx->toks, lx->n_toks * sizeof *toks);
        lx->toks = toks;
        lx->cap_toks = cap;
    }
    lx->toks[lx->n_toks++] = t;
    return OK;
}

static enum err add_simple(struct lexer *lx, enum jtok type)
{
    return add(lx, (struct jtoken){.type = type, .line = lx->line});
}

static void advance(struct lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++)
        lx->line += lx->p[lx->at] == '\n';
}

/* Bytes of white space at position i; 0 when there is none. */
static size_t space_at(const struct lexer *lx, size_t i)
{
    if (i >= lx->n)
        return 0;
    size_t len;
    return jchar_is_space(jchar_at((struct str){lx->p, lx->n}, i, &len)) ? len : 0;
}

static size_t skip_space(const struct lexer *lx, size_t i)
{
    for (size_t len; (len = space_at(lx, i)) > 0;)
        i += len;
    return i;
}

/* The end of [start, end) without white space at its end. */
static size_t trim_end(const struct lexer *lx, size_t start, size_t end)
{
    while (end > start) {
        size_t back = 1;
        while (back < 4 && end - back > start && ((unsigned char)lx->p[end - back] & 0xc0) == 0x80)
            back++;
        if (space_at(lx, end - back) != back)
            break;
        end -= back;
    }
    return end;
}

/* Template text [start, end) before a tag whose sign is '-', '+' or 0. */
static enum err add_data(struct lexer *lx, size_t start, size_t end, char sign, bool is_variable)
{
    size_t stop = end;
    if (sign == '-')
        stop = trim_end(lx, start, end);
    else if (sign == 0 && !is_variable) {
        size_t line_start = end;
        while (line_start > start && lx->p[line_start - 1] != '\n')
            line_start--;
        if ((line_start > start || lx->line_starting) && trim_end(lx, line_start, end) == line_start)
            stop = line_start;
    }
    if (stop > start)
        TRY(add(lx, (struct jtoken){.type = JT_DATA, .line = lx->line, .text = {lx->p + start, stop - start}}));
    advance(lx, end);
    return OK;
}

static bool has(const struct lexer *lx, size_t i, const char *text)
{
    const size_t n = strlen(text);
    return i <= lx->n && n <= lx->n - i && memcmp(lx->p + i, text, n) == 0;
}

/* After "{%" at i: "raw" or "endraw" and the end of the tag. Gives the position after it, or 0. */
static size_t match_raw(const struct lexer *lx, size_t i, const char *word, bool trims)
{
    i += 2;
    if (i < lx->n && (lx->p[i] == '-' || lx->p[i] == '+'))
        i++;
    i = skip_space(lx, i);
    if (!has(lx, i, word))
        return 0;
    i = skip_space(lx, i + strlen(word));
    if (has(lx, i, "-%}"))
        return skip_space(lx, i + 3);
    if (has(lx, i, "%}"))
        return i + 2 + (trims && has(lx, i + 2, "\n"));
    return trims && has(lx, i, "+%}") ? i + 3 : 0;
}

static char sign_at(const struct lexer *lx, size_t i)
{
    return i < lx->n && (lx->p[i] == '-' || lx->p[i] == '+') ? lx->p[i] : 0;
}

static enum err lex_raw(struct lexer *lx, size_t body)
{
    advance(lx, body);
    lx->line_starting = lx->p[body - 1] == '\n';
    for (size_t i = body; i + 1 < lx->n; i++) {
        const size_t after = has(lx, i, "{%") ? match_raw(lx, i, "endraw", true) : 0;
        if (after == 0)
            continue;
        TRY(add_data(lx, body, i, sign_at(lx, i + 2), false));
        advance(lx, after);
        lx->line_starting = lx->p[after - 1] == '\n';
        return OK;
    }
    if (body == lx->n) /* jinja2 forgives a block opened at the very end */
        return OK;
    return LFAIL(lx, ERR_INVALID, "a raw block has no endraw");
}

static enum err lex_comment(struct lexer *lx)
{
    size_t i = lx->at + 2;
    if (i < lx->n && (lx->p[i] == '-' || lx->p[i] == '+'))
        i++;
    if (i >= lx->n) { /* jinja2 forgives a comment opened at the very end */
        advance(lx, lx->n);
        return OK;
    }
    for (; i < lx->n; i++) {
        size_t after = 0;
        if (has(lx, i, "-#}"))
            after = skip_space(lx, i + 3);
        else if (has(lx, i, "+#}"))
            after = i + 3;
        else if (has(lx, i, "#}"))
            after = i + 2 + has(lx, i + 2, "\n");
        if (after > 0) {
            advance(lx, after);
            lx->line_starting = lx->p[after - 1] == '\n';
            return OK;
        }
    }
    return LFAIL(lx, ERR_INVALID, "a comment has no end");
}

/* Where the tag ends when it ends here; 0 otherwise. */
static size_t tag_end(const struct lexer *lx, bool is_variable)
{
    const size_t i = lx->at;
    if (is_variable) {
        if (has(lx, i, "-}}"))
            return skip_space(lx, i + 3);
        return has(lx, i, "}}") ? i + 2 : 0;
    }
    if (has(lx, i, "-%}"))
        return skip_space(lx, i + 3);
    if (has(lx, i, "+%}"))
        return i + 3;
    return has(lx, i, "%}") ? i + 2 + has(lx, i + 2, "\n") : 0;
}

static bool is_digit(char c, int base)
{
    const int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return v < base;
}

/* End of digits of a base with single underscores between them; start when there is none. */
static size_t digits_end(const struct lexer *lx, size_t i, int base)
{
    size_t end = i;
    while (i < lx->n) {
        if (is_digit(lx->p[i], base))
            end = ++i;
        else if (lx->p[i] == '_' && end == i && i + 1 < lx->n && is_digit(lx->p[i + 1], base))
            i++;
        else
            break;
    }
    return end;
}

static enum err number_text(struct lexer *lx, size_t start, size_t end, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = start; i < end; i++) {
        if (lx->p[i] == '_')
            continue;
        if (n + 1 >= cap)
            return LFAIL(lx, ERR_LIMIT, "a number of more than %zu digits", cap);
        out[n++] = lx->p[i];
    }
    out[n] = '\0';
    return OK;
}

static enum err lex_float(struct lexer *lx, size_t end)
{
    char text[512];
    TRY(number_text(lx, lx->at, end, text, sizeof text));
    TRY(add(lx, (struct jtoken){.type = JT_FLOAT, .line = lx->line, .f = strtod(text, NULL)}));
    advance(lx, end);
    return OK;
}

static enum err lex_number(struct lexer *lx)
{
    const size_t start = lx->at, whole = digits_end(lx, start, 10);
    size_t end = whole;
    if (end + 1 < lx->n && lx->p[end] == '.' && is_digit(lx->p[end + 1], 10))
        end = digits_end(lx, end + 1, 10);
    if (end < lx->n && (lx->p[end] | 32) == 'e') {
        size_t i = end + 1;
        if (i < lx->n && (lx->p[i] == '+' || lx->p[i] == '-'))
            i++;
        if (i < lx->n && is_digit(lx->p[i], 10))
            end = digits_end(lx, i, 10);
    }
    /* after a dot, as in x.0.1, a number is an index */
    if (end > whole && !(start > 0 && lx->p[start - 1] == '.'))
        return lex_float(lx, end);

    int base = 10;
    size_t from = start;
    end = whole;
    if (lx->p[start] == '0') {
        const char c = start + 1 < lx->n ? (char)(lx->p[start + 1] | 32) : 0;
        const int wanted = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        const size_t first = start + 2 + (wanted && start + 2 < lx->n && lx->p[start + 2] == '_');
        if (wanted && first < lx->n && is_digit(lx->p[first], wanted)) {
            base = wanted;
            from = first;
            end = digits_end(lx, first, wanted);
        } else
            end = digits_end(lx, start, 1); /* only zeros may follow a zero */
    }
    char text[256];
    TRY(number_text(lx, from, end, text, sizeof text));
    errno = 0;
    const long long v = strtoll(text, NULL, base);
    if (errno != 0)
        return LFAIL(lx, ERR_LIMIT, "the integer %.40s does not fit 64 bits", text);
    TRY(add(lx, (struct jtoken){.type = JT_INTEGER, .line = lx->line, .i = v}));
    advance(lx, end);
    return OK;
}

/* \x41, \u0041, \U00000041 and octal: the code point, and how many bytes after the backslash. -1 when malformed. */
static int32_t escape_code(const char *p, size_t n, size_t *used)
{
    if (p[0] >= '0' && p[0] <= '7') {
        int32_t v = 0;
        size_t i = 0;
        while (i < 3 && i < n && p[i] >= '0' && p[i] <= '7')
            v = v * 8 + (p[i++] - '0');
        *used = i;
        return v;
    }
    const size_t want = p[0] == 'x' ? 2 : p[0] == 'u' ? 4 : 8;
    int64_t v = 0;
    for (size_t i = 1; i <= want; i++) {
        if (i >= n || !is_digit(p[i], 16))
            return -1;
        v = v * 16 + (p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    }
    *used = want + 1;
    return v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff) ? -1 : (int32_t)v;
}

static enum err unescape(struct lexer *lx, const char *p, size_t n, struct str *out)
{
    static const char simple[] = "\\'\"abfnrtv", meant[] = "\\'\"\a\b\f\n\r\t\v";
    char *to = arena_take(lx->arena, n * 2 + 1); /* octal \777 is two bytes from four: never longer than twice */
    if (to == NULL)
        return LFAIL(lx, ERR_LIMIT, "the template needs more than %llu bytes", (unsigned long long)CHAT_TREE_BYTES_MAX);
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] != '\\' || i + 1 >= n) {
            to[m++] = p[i];
            continue;
        }
        const char c = p[++i];
        const char *known = c != '\0' ? strchr(simple, c) : NULL;
        if (known != NULL)
            to[m++] = meant[known - simple];
        else if (c == '\n')
            continue;
        else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
            size_t used = 0;
            const int32_t code = escape_code(p + i, n - i, &used);
            if (code < 0)
                return LFAIL(lx, ERR_INVALID, "a malformed \\%c escape in a string", c);
            m += jutf8_put(code, to + m);
            i += used - 1;
        } else if (c == 'N')
            return LFAIL(lx, ERR_UNSUPPORTED, "a \\N{name} escape in a string");
        else {
            to[m++] = '\\';
            to[m++] = c;
        }
    }
    *out = (struct str){to, m};
    return OK;
}

static enum err lex_string(struct lexer *lx)
{
    const char quote = lx->p[lx->at];
    bool escapes = false;
    for (size_t i = lx->at + 1; i < lx->n; i++) {
        if (lx->p[i] == '\\') {
            escapes = true;
            i++;
        } else if (lx->p[i] == quote) {
            struct str s = {lx->p + lx->at + 1, i - lx->at - 1};
            if (escapes)
                TRY(unescape(lx, s.p, s.n, &s));
            TRY(add(lx, (struct jtoken){.type = JT_STRING, .line = lx->line, .text = s}));
            advance(lx, i + 1);
            return OK;
        }
    }
    return LFAIL(lx, ERR_INVALID, "a string has no end");
}

static const struct {
    char text[3];
    uint8_t type;
} operators[] = {{"//", JT_FLOORDIV}, {"**", JT_POW}, {"==", JT_EQ}, {"!=", JT_NE}, {">=", JT_GE}, {"<=", JT_LE},
    {"+", JT_ADD}, {"-", JT_SUB}, {"/", JT_DIV}, {"*", JT_MUL}, {"%", JT_MOD}, {"~", JT_TILDE}, {"[", JT_LBRACKET},
    {"]", JT_RBRACKET}, {"(", JT_LPAREN}, {")", JT_RPAREN}, {"{", JT_LBRACE}, {"}", JT_RBRACE}, {">", JT_GT},
    {"<", JT_LT}, {"=", JT_ASSIGN}, {".", JT_DOT}, {":", JT_COLON}, {"|", JT_PIPE}, {",", JT_COMMA},
    {";", JT_SEMICOLON}};

static enum err lex_operator(struct lexer *lx)
{
    for (size_t i = 0; i < COUNT_OF(operators); i++) {
        if (!has(lx, lx->at, operators[i].text))
            continue;
        const char c = operators[i].text[0];
        if (c == '(' || c == '[' || c == '{') {
            if (lx->n_nest == sizeof lx->nest)
                return LFAIL(lx, ERR_LIMIT, "brackets nested deeper than %d", CHAT_NEST_MAX);
            lx->nest[lx->n_nest++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (lx->n_nest == 0 || lx->nest[lx->n_nest - 1] != c)
                return LFAIL(lx, ERR_INVALID, "unexpected '%c'", c);
            lx->n_nest--;
        }
        TRY(add_simple(lx, operators[i].type));
        lx->at += strlen(operators[i].text);
        return OK;
    }
    size_t len;
    jchar_at((struct str){lx->p, lx->n}, lx->at, &len);
    char shown[32];
    return LFAIL(
        lx, ERR_INVALID, "unexpected character '%s'", str_show((struct str){lx->p + lx->at, len}, shown, sizeof shown));
}

static enum err lex_tag(struct lexer *lx, bool is_variable)
{
    TRY(add_simple(lx, is_variable ? JT_VAR_BEGIN : JT_BLOCK_BEGIN));
    lx->at += 2;
    if (sign_at(lx, lx->at))
        lx->at++;
    const struct str source = {lx->p, lx->n};
    while (lx->at < lx->n) {
        const size_t end = lx->n_nest == 0 ? tag_end(lx, is_variable) : 0;
        if (end > 0) {
            TRY(add_simple(lx, is_variable ? JT_VAR_END : JT_BLOCK_END));
            advance(lx, end);
            lx->line_starting = lx->p[end - 1] == '\n';
            return OK;
        }
        size_t len;
        const int32_t c = jchar_at(source, lx->at, &len);
        if (jchar_is_space(c))
            advance(lx, lx->at + len);
        else if (c >= '0' && c <= '9')
            TRY(lex_number(lx));
        else if (jchar_is_word(c)) {
            size_t i = lx->at;
            while (i < lx->n && jchar_is_word(jchar_at(source, i, &len)))
                i += len;
            TRY(add(lx, (struct jtoken){.type = JT_NAME, .line = lx->line, .text = {lx->p + lx->at, i - lx->at}}));
            lx->at = i;
        } else if (c == '"' || c == '\'')
            TRY(lex_string(lx));
        else
            TRY(lex_operator(lx));
    }
    return LFAIL(lx, ERR_INVALID, "the template ends inside a tag");
}

/* A copy with one kind of newline and without the newline at the end. */
static enum err normalise(struct lexer *lx, struct str source)
{
    char *p = arena_take(lx->arena, source.n + 1);
    if (p == NULL)
        return LFAIL(lx, ERR_NOMEM, "no memory for a template of %zu bytes", source.n);
    for (size_t i = 0; i < source.n; i++) {
        if (source.p[i] == '\r') {
            p[lx->n++] = '\n';
            i += i + 1 < source.n && source.p[i + 1] == '\n';
        } else
            p[lx->n++] = source.p[i];
    }
    if (lx->n > 0 && p[lx->n - 1] == '\n')
        lx->n--;
    lx->p = p;
    return OK;
}

static enum err lex_all(struct lexer *lx)
{
    while (lx->at < lx->n) {
        size_t i = lx->at;
        while (i < lx->n && !(lx->p[i] == '{' && i + 1 < lx->n && strchr("{%#", lx->p[i + 1]) && lx->p[i + 1] != '\0'))
            i++;
        if (i >= lx->n)
            return add_data(lx, lx->at, lx->n, '+', false);
        const char kind = lx->p[i + 1];
        TRY(add_data(lx, lx->at, i, sign_at(lx, i + 2), kind == '{'));
        const size_t raw = kind == '%' ? match_raw(lx, i, "raw", false) : 0;
        if (raw > 0)
            TRY(lex_raw(lx, raw));
        else if (kind == '#')
            TRY(lex_comment(lx));
        else
            TRY(lex_tag(lx, kind == '{'));
    }
    return OK;
}

enum err jinja_lex(struct arena *a, struct str source, struct jtoken **out, uint32_t *line, struct error *e)
{
    struct lexer lx = {.arena = a, .e = e, .line = 1, .line_starting = true};
    enum err err = normalise(&lx, source);
    if (err == OK)
        err = lex_all(&lx);
    if (err == OK)
        err = add_simple(&lx, JT_EOF);
    *line = lx.line;
    *out = lx.toks;
    return err;
}

const char *jtok_describe(const struct jtoken *t, char *out, size_t cap)
{
    char shown[48];
    switch (t->type) {
    case JT_EOF: return "the end of the template";
    case JT_DATA: return "template text";
    case JT_VAR_BEGIN: return "'{{'";
    case JT_VAR_END: return "'}}'";
    case JT_BLOCK_BEGIN: return "'{%'";
    case JT_BLOCK_END: return "'%}'";
    case JT_NAME: snprintf(out, cap, "'%s'", str_show(t->text, shown, sizeof shown)); return out;
    case JT_STRING: return "a string";
    case JT_INTEGER: return "an integer";
    case JT_FLOAT: return "a number";
    default: break;
    }
    for (size_t i = 0; i < COUNT_OF(operators); i++)
        if (operators[i].type == (uint8_t)t->type)
            snprintf(out, cap, "'%s'", operators[i].text);
    return out;
}
