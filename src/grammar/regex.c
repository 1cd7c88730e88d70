/* The dialect of regular expressions: that of ECMA-262 with Unicode, without what makes matching other than linear.
 *
 *   a|b  ab  (a) (?:a) (?<name>a) (?P<name>a)   groups only group
 *   a* a+ a? a{2} a{2,} a{2,5}                  a ? behind them (lazy) changes no language and is accepted
 *   .                                           any character but \n \r U+2028 U+2029
 *   [a-z] [^a-z]  [] matches nothing, [^] every character
 *   \d = [0-9]  \w = [A-Za-z0-9_]  \s = ECMA white space and line ends; \D \W \S the others
 *   \p{L} \P{L}                                 general categories, see regex_property
 *   \n \r \t \f \v \0 \xHH \uHHHH \u{H..} \cX   and \ before any other character that is no letter or digit
 *   ^ $                                         the ends of the text (not of lines)
 *
 * Refused by name: back-references, look-around, \b \B, possessive quantifiers, inline flags, POSIX classes.
 *
 * An unanchored pattern is searched for: any text may stand before and behind it. Anchors at the ends of a top-level
 * alternative are simply those "any text" left away. Anchors elsewhere become two marker bytes that no UTF-8 has: the
 * text is taken with any number of markers at its ends, anchors read them, and then they are erased. */
#include "base/limits.h"
#include "grammar/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define AT_START 0xF8
#define AT_END   0xF9

struct parser {
    struct build *b;
    struct error *e;
    struct str s;
    size_t at;
    uint32_t depth;
    bool inner_anchors; /* an anchor that is not at the end of a top-level alternative */
    bool open_start;    /* any text may stand before some alternative */
    enum err code;
};

struct items {
    expr_id *p;
    uint32_t n, cap;
};

struct classes {
    struct code_range *p;
    uint32_t n, cap;
};

/* Errors name the byte where the trouble begins. */
#define BAD(p, code_, where, ...) bad((p), (code_), (where), __VA_ARGS__)
static expr_id PRINTF_LIKE(4, 5) bad(struct parser *p, enum err code, size_t where, const char *fmt, ...)
{
    char text[160];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (p->code == OK && build_failed(p->b)) /* parsing stopped for want of memory or steps, not for the pattern */
        p->code = build_check(p->b, p->e);
    if (p->code == OK)
        p->code = FAIL(p->e, code, "regex: %s at byte %zu", text, where);
    (void)FAIL(&p->b->error, code, "regex: %s at byte %zu", text, where);
    return 0;
}

static bool more(const struct parser *p)
{
    return p->at < p->s.n && !build_failed(p->b);
}

static bool sees(const struct parser *p, const char *text)
{
    const size_t n = strlen(text);
    return p->s.n - p->at >= n && memcmp(p->s.p + p->at, text, n) == 0;
}

static bool takes(struct parser *p, const char *text)
{
    if (!sees(p, text))
        return false;
    p->at += strlen(text);
    return true;
}

static void items_add(struct parser *p, struct items *v, expr_id x)
{
    expr_id *grown = build_grow(p->b, v->p, v->n, &v->cap, 1, sizeof *grown);
    if (grown == NULL)
        return;
    v->p = grown;
    v->p[v->n++] = x;
}

static void classes_add(struct parser *p, struct classes *v, const struct code_range *r, uint32_t n)
{
    struct code_range *grown = build_grow(p->b, v->p, v->n, &v->cap, n, sizeof *grown);
    if (grown == NULL)
        return;
    v->p = grown;
    if (n > 0)
        memcpy(v->p + v->n, r, n * sizeof *r);
    v->n += n;
}

static uint32_t take_char(struct parser *p)
{
    const size_t n = utf8_len((struct str){p->s.p + p->at, p->s.n - p->at});
    const uint8_t *c = (const uint8_t *)p->s.p + p->at;
    if (n == 0) {
        BAD(p, ERR_INVALID, p->at, "the pattern is not UTF-8");
        p->at = p->s.n;
        return 0;
    }
    p->at += n;
    uint32_t code = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (c[i] & 63u);
    return code;
}

static bool take_hex(struct parser *p, uint32_t digits, uint32_t *out)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < digits; i++) {
        const char c = p->at + i < p->s.n ? p->s.p[p->at + i] : '\0';
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v * 16 + (uint32_t)((c | 32) - 'a') + 10;
        else
            return false;
    }
    p->at += digits;
    *out = v;
    return true;
}

static const struct code_range DIGIT[] = {{'0', '9'}};
static const struct code_range WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct code_range SPACE[] = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
    {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const struct code_range LINE_END[] = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

static void add_class(struct parser *p, struct classes *v, const struct code_range *r, uint32_t n, bool negated)
{
    if (negated)
        r = ranges_not(p->b, r, &n);
    if (r != NULL)
        classes_add(p, v, r, n);
}

/* \p{Name}; at the brace. */
static void take_property(struct parser *p, struct classes *v, bool negated, size_t where)
{
    const size_t from = p->at + 1;
    const char *end = takes(p, "{") ? memchr(p->s.p + from, '}', p->s.n - from) : NULL;
    if (end == NULL) {
        BAD(p, ERR_INVALID, where, "\\p needs a name in braces");
        return;
    }
    const struct str name = {p->s.p + from, (size_t)(end - (p->s.p + from))};
    p->at = from + name.n + 1;
    const struct code_range *r = NULL;
    uint32_t n = 0;
    char shown[48];
    if (!regex_property(p->b, name, &r, &n))
        BAD(p, ERR_UNSUPPORTED, where, "the property \\p{%s} is not supported", str_show(name, shown, sizeof shown));
    else
        add_class(p, v, r, n, negated);
}

/* \uHHHH, \u{H..}, pairs of surrogates; behind the u. */
static uint32_t take_unicode(struct parser *p, size_t where)
{
    uint32_t c = 0, low = 0;
    if (takes(p, "{")) {
        uint32_t digit, n = 0;
        while (n < 8 && take_hex(p, 1, &digit))
            c = c * 16 + digit, n++;
        if (n == 0 || n == 8 || c > 0x10FFFF || !takes(p, "}"))
            BAD(p, ERR_INVALID, where, "\\u{...} needs a code point");
        return c;
    }
    if (!take_hex(p, 4, &c))
        BAD(p, ERR_INVALID, where, "\\u needs four hexadecimal digits");
    const size_t back = p->at;
    if (c >= 0xD800 && c < 0xDC00 && takes(p, "\\u")) {
        if (take_hex(p, 4, &low) && low >= 0xDC00 && low < 0xE000)
            return 0x10000 + ((c - 0xD800) << 10 | (low - 0xDC00));
        p->at = back;
    }
    return c;
}

/* Behind a backslash: a single character. */
static uint32_t take_escaped_char(struct parser *p, size_t where, bool in_class)
{
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    uint32_t c = take_char(p), v = 0;
    const char *at = c < 0x80 && c != 0 ? strchr(from, (int)c) : NULL;
    const bool digit = p->at < p->s.n && p->s.p[p->at] >= '0' && p->s.p[p->at] <= '9';
    if (at != NULL && !(c == '0' && digit))
        return (uint8_t)to[at - from];
    if (c == 'b' && in_class)
        return 8;
    if (c == 'x') {
        if (!take_hex(p, 2, &v))
            BAD(p, ERR_INVALID, where, "\\x needs two hexadecimal digits");
        return v;
    }
    if (c == 'u')
        return take_unicode(p, where);
    if (c == 'c') {
        c = more(p) ? take_char(p) : 0;
        if ((c | 32) < 'a' || (c | 32) > 'z')
            BAD(p, ERR_INVALID, where, "\\c needs a letter");
        return c & 31;
    }
    if ((c >= '0' && c <= '9') || c == 'k')
        BAD(p, ERR_UNSUPPORTED, where, "back-references (\\%c) are not supported", (char)c);
    else if (c == 'b' || c == 'B')
        BAD(p, ERR_UNSUPPORTED, where, "word boundaries (\\%c) are not supported", (char)c);
    else if (((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_')
        BAD(p, ERR_UNSUPPORTED, where, "the escape \\%c is not supported", (char)c);
    return c;
}

/* At a backslash: a class like \d goes into v (true); otherwise *c is the character. */
static bool take_escape(struct parser *p, struct classes *v, uint32_t *c, bool in_class)
{
    const size_t where = p->at++;
    if (!more(p)) {
        BAD(p, ERR_INVALID, where, "a backslash at the end of the pattern");
        return false;
    }
    const char kind = p->s.p[p->at];
    const bool negated = kind >= 'A' && kind <= 'Z';
    switch (kind | 32) {
    case 'd': p->at++, add_class(p, v, DIGIT, COUNT_OF(DIGIT), negated); return true;
    case 'w': p->at++, add_class(p, v, WORD, COUNT_OF(WORD), negated); return true;
    case 's': p->at++, add_class(p, v, SPACE, COUNT_OF(SPACE), negated); return true;
    case 'p': p->at++, take_property(p, v, negated, where); return true;
    default: *c = take_escaped_char(p, where, in_class); return false;
    }
}

/* One end of a range in a class; true: it was a class of its own. */
static bool take_class_atom(struct parser *p, struct classes *v, uint32_t *c)
{
    if (p->s.p[p->at] == '\\')
        return take_escape(p, v, c, true);
    *c = take_char(p);
    return false;
}

static expr_id take_class(struct parser *p)
{
    const size_t where = p->at++;
    const bool negated = takes(p, "^");
    struct classes v = {0};
    if (sees(p, "[:") || sees(p, "[=") || sees(p, "[."))
        return BAD(p, ERR_UNSUPPORTED, where, "POSIX classes are not supported");
    while (more(p) && p->s.p[p->at] != ']') {
        uint32_t from = 0, to = 0;
        const size_t start = p->at;
        if (sees(p, "[:"))
            return BAD(p, ERR_UNSUPPORTED, p->at, "POSIX classes are not supported");
        const bool was_class = take_class_atom(p, &v, &from);
        to = from;
        if (p->at + 1 < p->s.n && p->s.p[p->at] == '-' && p->s.p[p->at + 1] != ']' && !build_failed(p->b)) {
            p->at++;
            if (take_class_atom(p, &v, &to) || was_class)
                return BAD(p, ERR_INVALID, start, "a class such as \\d cannot be an end of a range");
            if (to < from)
                return BAD(p, ERR_INVALID, start, "the range is out of order");
        }
        if (!was_class)
            classes_add(p, &v, &(struct code_range){from, to}, 1);
    }
    if (!takes(p, "]"))
        return BAD(p, ERR_INVALID, where, "the class [ is not closed");
    uint32_t n = v.n;
    const struct code_range *r = negated ? ranges_not(p->b, v.p, &n) : v.p;
    return expr_class(p->b, r, n);
}

static expr_id take_alternatives(struct parser *p, bool top, bool anchored);

static expr_id take_group(struct parser *p)
{
    const size_t where = p->at++;
    if (sees(p, "?=") || sees(p, "?!") || sees(p, "?<=") || sees(p, "?<!"))
        return BAD(p, ERR_UNSUPPORTED, where, "look-around is not supported");
    if (sees(p, "?P=") || sees(p, "?>") || sees(p, "?("))
        return BAD(p, ERR_UNSUPPORTED, where, "this kind of group is not supported");
    if (takes(p, "?<") || takes(p, "?P<")) {
        const char *end = memchr(p->s.p + p->at, '>', p->s.n - p->at);
        if (end == NULL)
            return BAD(p, ERR_INVALID, where, "the group's name is not closed");
        p->at = (size_t)(end - p->s.p) + 1;
    } else if (!takes(p, "?:") && sees(p, "?")) {
        return BAD(p, ERR_UNSUPPORTED, where, "inline flags are not supported");
    }
    if (p->depth >= GRAMMAR_GROUPS_MAX)
        return BAD(p, ERR_LIMIT, where, "groups are nested deeper than %d", GRAMMAR_GROUPS_MAX);
    p->depth++;
    const expr_id x = take_alternatives(p, false, true);
    p->depth--;
    if (!takes(p, ")"))
        return BAD(p, ERR_INVALID, where, "the group ( is not closed");
    return x;
}

static bool take_number(struct parser *p, uint32_t *out)
{
    const size_t from = p->at;
    uint64_t v = 0;
    for (; p->at < p->s.n && p->s.p[p->at] >= '0' && p->s.p[p->at] <= '9'; p->at++)
        v = v > UINT32_MAX ? v : v * 10 + (uint64_t)(p->s.p[p->at] - '0');
    if (v > GRAMMAR_COUNT_MAX)
        BAD(p, ERR_LIMIT, from, "a count is above %d", GRAMMAR_COUNT_MAX);
    *out = (uint32_t)v;
    return p->at > from;
}

/* {n}, {n,} or {n,m}; false, and nowhere gone, when it is none of these. */
static bool take_braces(struct parser *p, uint32_t *min, uint32_t *max)
{
    const size_t back = p->at++;
    if (sees(p, ","))
        BAD(p, ERR_UNSUPPORTED, back, "{,n} is not supported; write {0,n}");
    if (take_number(p, min)) {
        *max = *min;
        if (takes(p, "}"))
            return true;
        if (takes(p, ",")) {
            if (!take_number(p, max))
                *max = EXPR_UNBOUNDED;
            if (takes(p, "}"))
                return true;
        }
    }
    p->at = back;
    return false;
}

static expr_id take_quantifier(struct parser *p, expr_id x)
{
    const size_t where = p->at;
    uint32_t min = 0, max = EXPR_UNBOUNDED;
    if (takes(p, "+"))
        min = 1;
    else if (takes(p, "?"))
        max = 1;
    else if (!takes(p, "*") && !(sees(p, "{") && take_braces(p, &min, &max)))
        return x;
    if (min > max)
        return BAD(p, ERR_INVALID, where, "the counts are out of order");
    if (takes(p, "+"))
        return BAD(p, ERR_UNSUPPORTED, where, "possessive quantifiers are not supported");
    (void)takes(p, "?");
    if (sees(p, "*") || sees(p, "+") || sees(p, "?"))
        return BAD(p, ERR_INVALID, p->at, "a quantifier behind a quantifier");
    return expr_repeat(p->b, x, min, max);
}

static expr_id take_atom(struct parser *p)
{
    const char c = p->s.p[p->at];
    struct classes v = {0};
    uint32_t code = 0, n = COUNT_OF(LINE_END);
    switch (c) {
    case '(': return take_group(p);
    case '[': return take_class(p);
    case '.': {
        const struct code_range *r = ranges_not(p->b, LINE_END, &n);
        p->at++;
        return expr_class(p->b, r, n);
    }
    case '*':
    case '+':
    case '?': return BAD(p, ERR_INVALID, p->at, "nothing to repeat before %c", c);
    case '^':
    case '$':
        p->at++;
        p->inner_anchors = true;
        return expr_byte(p->b, c == '^' ? AT_START : AT_END);
    case '\\':
        if (take_escape(p, &v, &code, false))
            return expr_class(p->b, v.p, v.n);
        break;
    default: code = take_char(p);
    }
    return expr_class(p->b, &(struct code_range){code, code}, 1);
}

/* Characters that mean themselves and are not repeated, as one text; 0 when there are none. */
static expr_id take_run(struct parser *p)
{
    size_t end = p->at;
    while (end < p->s.n && strchr("\\^$.|?*+()[]{}", p->s.p[end]) == NULL && p->s.p[end] != '\0') {
        const size_t n = utf8_len((struct str){p->s.p + end, p->s.n - end});
        if (n == 0 || (end + n < p->s.n && strchr("?*+{", p->s.p[end + n]) != NULL))
            break;
        end += n;
    }
    const struct str run = {p->s.p + p->at, end - p->at};
    p->at = end;
    return run.n == 0 ? 0 : expr_bytes(p->b, run);
}

/* Before any text or behind it, the largest count of what stands at that end changes nothing. */
static expr_id open_end(struct build *b, expr_id x)
{
    const struct expr *r = &b->exprs[x];
    return r->type == EXPR_REPEAT ? expr_repeat(b, r->u.kid, r->min, r->min) : x;
}

/* One alternative; a top-level one leaves the anchors at its ends away. */
static expr_id take_sequence(struct parser *p, bool top, bool anchored)
{
    struct build *b = p->b;
    struct items v = {0};
    bool at_start = anchored, at_end = anchored;
    while (top && takes(p, "^"))
        at_start = true;
    items_add(p, &v, 0);
    while (more(p) && p->s.p[p->at] != '|' && p->s.p[p->at] != ')') {
        if (top && p->s.p[p->at] == '$' &&
            (p->at + 1 == p->s.n || p->s.p[p->at + 1] == '|' || p->s.p[p->at + 1] == '$')) {
            p->at++;
            at_end = true;
            continue;
        }
        const expr_id run = take_run(p);
        if (run != 0) {
            items_add(p, &v, run);
            continue;
        }
        const expr_id x = take_atom(p);
        items_add(p, &v, take_quantifier(p, x));
    }
    if (build_failed(b))
        return 0;
    if (!top || (at_start && at_end))
        return expr_seq(b, v.p + 1, v.n - 1);
    const expr_id any = expr_repeat(b, expr_any_char(b), 0, EXPR_UNBOUNDED);
    p->open_start |= !at_start;
    if (!at_end && v.n > 1)
        v.p[v.n - 1] = open_end(b, v.p[v.n - 1]);
    if (!at_start && v.n > 1)
        v.p[1] = open_end(b, v.p[1]);
    if (!at_end)
        items_add(p, &v, any);
    v.p[0] = any;
    return build_failed(b) ? 0 : at_start ? expr_seq(b, v.p + 1, v.n - 1) : expr_seq(b, v.p, v.n);
}

static expr_id take_alternatives(struct parser *p, bool top, bool anchored)
{
    struct items v = {0};
    do
        items_add(p, &v, take_sequence(p, top, anchored));
    while (takes(p, "|") && !build_failed(p->b));
    return build_failed(p->b) ? 0 : expr_alt(p->b, v.p, v.n);
}

/* The pattern again, with every anchor a marker; then the markers go. */
static expr_id with_markers(struct parser *p, bool anchored)
{
    struct build *b = p->b;
    const expr_id start = expr_repeat(b, expr_byte(b, AT_START), 0, EXPR_UNBOUNDED);
    const expr_id end = expr_repeat(b, expr_byte(b, AT_END), 0, EXPR_UNBOUNDED);
    const expr_id any = expr_repeat(b, expr_any_char(b), 0, EXPR_UNBOUNDED);
    p->at = 0;
    const expr_id x = take_alternatives(p, false, true), empty = expr_seq(b, NULL, 0);
    const expr_id side = anchored ? empty : any;
    const struct dfa *found = dfa_of_expr(b, expr_seq(b, (const expr_id[]){start, side, x, side, end}, 5));
    const struct dfa *text = dfa_of_expr(b, expr_seq(b, (const expr_id[]){start, any, end}, 3));
    const struct dfa *d = dfa_product(b, found, text, DFA_AND);
    struct nfa m;
    nfa_init(&m, b, false);
    const uint32_t base = m.n_states;
    for (uint32_t s = 0; d != NULL && s < d->n; s++)
        (void)nfa_state(&m);
    for (uint32_t s = 0; d != NULL && s < d->n && !build_failed(b); s++) {
        for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++) {
            const struct dfa_edge *g = &d->edges[i];
            if (g->lo >= AT_START)
                nfa_empty(&m, base + s, base + g->to);
            else
                nfa_edge(&m, base + s, g->lo, g->hi, base + g->to);
        }
        if (d->accept[s])
            nfa_empty(&m, base + s, m.final);
    }
    return d == NULL ? 0 : expr_dfa(b, dfa_of_nfa(&m, base));
}

expr_id regex_expr(struct build *b, struct str pattern, bool anchored, struct error *e)
{
    struct parser p = {.b = b, .e = e, .s = pattern};
    if (pattern.n > GRAMMAR_TEXT_BYTES_MAX)
        return BAD(&p, ERR_LIMIT, 0, "the pattern has more than %d bytes", GRAMMAR_TEXT_BYTES_MAX);
    expr_id x = take_alternatives(&p, true, anchored);
    if (more(&p))
        BAD(&p, ERR_INVALID, p.at, "a ) without its (");
    if (!build_failed(b) && p.inner_anchors)
        x = with_markers(&p, anchored);
    else if (!build_failed(b) && p.open_start) /* counts would start at every character */
        x = expr_dfa(b, dfa_of_expr(b, x));
    if (build_failed(b))
        (void)build_check(b, e);
    return build_failed(b) ? 0 : x;
}
