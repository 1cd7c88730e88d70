/* EBNF as llama.cpp's GBNF writes it, so that its grammars work here unchanged:
 *
 *   name ::= alternatives        names of letters, digits, - and _; the grammar is the rule `root`
 *   a b | c                      one behind the other, or else
 *   "text"                       with the escapes \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH
 *   [a-z0-9_] [^"\\]             one character of these, or none of these
 *   .                            any character
 *   ( ... )                      a group
 *   x* x+ x? x{2} x{2,} x{2,5}
 *   # to the end of the line
 *
 * A rule ends at the end of its line; a line goes on inside brackets, behind | and behind ::=. A rule may refer to any
 * other, and to itself wherever something has been read before: a rule that begins with itself is refused by name. */
#include "base/hash.h"
#include "base/limits.h"
#include "grammar/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct ebnf_rule {
    struct str name;
    expr_id rule;
    bool defined;
    size_t used_at;
};

struct ebnf {
    struct build *b;
    struct error *e;
    struct str s;
    size_t at;
    uint32_t depth;
    struct ebnf_rule *rules;
    uint32_t n_rules, cap_rules;
    uint32_t *table, table_size; /* rule number + 1 by the hash of its name */
    enum err code;
};

static uint32_t line_of(const struct ebnf *p, size_t at)
{
    uint32_t line = 1;
    for (size_t i = 0; i < at && i < p->s.n; i++)
        line += p->s.p[i] == '\n';
    return line;
}

static expr_id PRINTF_LIKE(4, 5) bad(struct ebnf *p, enum err code, size_t at, const char *fmt, ...)
{
    char text[200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)FAIL(&p->b->error, code, "grammar: line %u: %s", line_of(p, at), text);
    return 0;
}

static bool more(const struct ebnf *p)
{
    return p->at < p->s.n && !build_failed(p->b);
}

static char peek(const struct ebnf *p)
{
    return p->at < p->s.n ? p->s.p[p->at] : '\0';
}

static bool takes(struct ebnf *p, const char *text)
{
    const size_t n = strlen(text);
    if (p->s.n - p->at < n || memcmp(p->s.p + p->at, text, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* Blanks and comments; with lines, ends of lines too. */
static void skip(struct ebnf *p, bool lines)
{
    for (; p->at < p->s.n; p->at++) {
        const char c = p->s.p[p->at];
        if (c == '#') {
            while (p->at < p->s.n && p->s.p[p->at] != '\n' && p->s.p[p->at] != '\r')
                p->at++;
            p->at--;
        } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static struct str take_name(struct ebnf *p)
{
    const size_t from = p->at;
    while (p->at < p->s.n && is_name(p->s.p[p->at]))
        p->at++;
    return (struct str){p->s.p + from, p->at - from};
}

static bool table_grow(struct ebnf *p)
{
    const uint32_t size = p->table_size == 0 ? 64 : p->table_size * 2;
    uint32_t *table = build_take(p->b, size, sizeof *table);
    if (table == NULL)
        return false;
    for (uint32_t i = 0; i < p->n_rules; i++) {
        uint64_t h = hash64(p->rules[i].name.p, p->rules[i].name.n, 0);
        while (table[h % size] != 0)
            h++;
        table[h % size] = i + 1;
    }
    p->table = table;
    p->table_size = size;
    return true;
}

/* The rule of that name, made when it is new; NONE32 when the build failed. */
static uint32_t rule_named(struct ebnf *p, struct str name)
{
    if ((p->table_size == 0 || p->n_rules * 2 >= p->table_size) && !table_grow(p))
        return NONE32;
    uint64_t h = hash64(name.p, name.n, 0);
    for (; p->table[h % p->table_size] != 0; h++)
        if (str_eq(p->rules[p->table[h % p->table_size] - 1].name, name))
            return p->table[h % p->table_size] - 1;
    struct ebnf_rule *grown = build_grow(p->b, p->rules, p->n_rules, &p->cap_rules, 1, sizeof *grown);
    const expr_id rule = expr_rule_new(p->b);
    if (grown == NULL || rule == 0)
        return NONE32;
    build_rule_name(p->b, rule, name);
    p->rules = grown;
    p->rules[p->n_rules] = (struct ebnf_rule){.name = name, .rule = rule, .used_at = p->at};
    p->table[h % p->table_size] = ++p->n_rules;
    return p->n_rules - 1;
}

static bool take_hex(struct ebnf *p, uint32_t digits, uint32_t *out)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < digits; i++) {
        const char c = p->at < p->s.n ? p->s.p[p->at] : '\0';
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            v = v << 4 | ((uint32_t)((c | 32) - 'a') + 10);
        else
            return false;
        p->at++;
    }
    *out = v;
    return v <= 0x10FFFF;
}

/* One character of a literal or a class. */
static uint32_t take_char(struct ebnf *p)
{
    const size_t at = p->at;
    if (peek(p) == '\\') {
        static const char from[] = "nrt\\\"[]^-/'.", to[] = "\n\r\t\\\"[]^-/'.";
        p->at++;
        const char c = peek(p);
        const char *found = c == '\0' ? NULL : strchr(from, c);
        uint32_t v = 0;
        p->at += p->at < p->s.n;
        if (found != NULL)
            return (uint8_t)to[found - from];
        if ((c != 'x' && c != 'u' && c != 'U') || !take_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8, &v))
            bad(p, ERR_INVALID, at, "an escape that is not known");
        return v;
    }
    const size_t n = utf8_len((struct str){p->s.p + p->at, p->s.n - p->at});
    if (n == 0) {
        bad(p, ERR_INVALID, at, "the grammar is not UTF-8");
        return 0;
    }
    const uint8_t *c = (const uint8_t *)p->s.p + p->at;
    uint32_t code = n == 1 ? c[0] : c[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (c[i] & 63u);
    p->at += n;
    return code;
}

static size_t encode(uint32_t c, char out[4])
{
    const size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint32_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(lead[n] | c);
    return n;
}

static expr_id take_literal(struct ebnf *p)
{
    const size_t at = p->at++;
    char *bytes = NULL;
    uint32_t n = 0, cap = 0;
    while (more(p) && peek(p) != '"' && peek(p) != '\n') {
        char *grown = build_grow(p->b, bytes, n, &cap, 4, 1);
        if (grown == NULL)
            return 0;
        bytes = grown;
        const uint32_t c = take_char(p);
        if (c >= 0xD800 && c < 0xE000)
            return bad(p, ERR_INVALID, at, "a surrogate is not a character");
        n += (uint32_t)encode(c, bytes + n);
    }
    if (!takes(p, "\""))
        return bad(p, ERR_INVALID, at, "the text that starts with \" is not closed");
    return expr_bytes(p->b, (struct str){bytes, n});
}

static expr_id take_class(struct ebnf *p)
{
    const size_t at = p->at++;
    const bool negated = takes(p, "^");
    struct code_range *r = NULL;
    uint32_t n = 0, cap = 0;
    while (more(p) && peek(p) != ']') {
        struct code_range *grown = build_grow(p->b, r, n, &cap, 1, sizeof *grown);
        if (grown == NULL)
            return 0;
        r = grown;
        const uint32_t from = take_char(p);
        uint32_t to = from;
        if (p->at + 1 < p->s.n && peek(p) == '-' && p->s.p[p->at + 1] != ']') {
            p->at++;
            to = take_char(p);
        }
        if (to < from)
            return bad(p, ERR_INVALID, at, "a range is out of order");
        r[n++] = (struct code_range){from, to};
    }
    if (!takes(p, "]"))
        return bad(p, ERR_INVALID, at, "the class that starts with [ is not closed");
    const struct code_range *all = negated ? ranges_not(p->b, r, &n) : r;
    return expr_class(p->b, all, n);
}

static bool take_count(struct ebnf *p, uint32_t *out)
{
    const size_t from = p->at;
    uint64_t v = 0;
    for (; peek(p) >= '0' && peek(p) <= '9'; p->at++)
        v = v > GRAMMAR_COUNT_MAX ? v : v * 10 + (uint64_t)(peek(p) - '0');
    if (v > GRAMMAR_COUNT_MAX)
        bad(p, ERR_LIMIT, from, "a count is above %d", GRAMMAR_COUNT_MAX);
    *out = (uint32_t)v;
    return p->at > from;
}

static expr_id take_counts(struct ebnf *p, expr_id x)
{
    const size_t at = p->at;
    uint32_t min = 0, max = EXPR_UNBOUNDED;
    skip(p, true);
    const bool has_min = take_count(p, &min);
    skip(p, true);
    if (takes(p, ",")) {
        skip(p, true);
        if (!take_count(p, &max))
            max = EXPR_UNBOUNDED;
        skip(p, true);
    } else {
        max = min;
        if (!has_min)
            return bad(p, ERR_INVALID, at, "a count is missing behind {");
    }
    if (!takes(p, "}"))
        return bad(p, ERR_INVALID, at, "the count that starts with { is not closed");
    if (min > max)
        return bad(p, ERR_INVALID, at, "the counts are out of order");
    return expr_repeat(p->b, x, min, max);
}

static expr_id take_quantifiers(struct ebnf *p, expr_id x)
{
    for (; more(p);) {
        if (takes(p, "*"))
            x = expr_repeat(p->b, x, 0, EXPR_UNBOUNDED);
        else if (takes(p, "+"))
            x = expr_repeat(p->b, x, 1, EXPR_UNBOUNDED);
        else if (takes(p, "?"))
            x = expr_repeat(p->b, x, 0, 1);
        else if (takes(p, "{"))
            x = take_counts(p, x);
        else
            return x;
    }
    return x;
}

static expr_id take_alternatives(struct ebnf *p, bool inside);

static expr_id take_item(struct ebnf *p)
{
    const size_t at = p->at;
    const char c = peek(p);
    if (c == '"')
        return take_literal(p);
    if (c == '[')
        return take_class(p);
    if (takes(p, "."))
        return expr_any_char(p->b);
    if (takes(p, "(")) {
        if (++p->depth > GRAMMAR_GROUPS_MAX)
            return bad(p, ERR_LIMIT, at, "groups are nested deeper than %d", GRAMMAR_GROUPS_MAX);
        const expr_id x = take_alternatives(p, true);
        p->depth--;
        return takes(p, ")") ? x : bad(p, ERR_INVALID, at, "the group that starts with ( is not closed");
    }
    if (is_name(c)) {
        const uint32_t i = rule_named(p, take_name(p));
        return i == NONE32 ? 0 : p->rules[i].rule;
    }
    char shown[16];
    if (c == '<' || c == '!')
        return bad(p, ERR_UNSUPPORTED, at, "tokens by name or number (%c) are not supported", c);
    return bad(p, ERR_INVALID, at, "'%s' was not expected",
        str_show((struct str){p->s.p + at, MAX(utf8_len((struct str){p->s.p + at, p->s.n - at}), (size_t)1)}, shown,
            sizeof shown));
}

static expr_id take_sequence(struct ebnf *p, bool inside)
{
    expr_id *x = NULL;
    uint32_t n = 0, cap = 0;
    for (skip(p, inside); more(p) && strchr("|)\n\r", peek(p)) == NULL; skip(p, inside)) {
        expr_id *grown = build_grow(p->b, x, n, &cap, 1, sizeof *grown);
        if (grown == NULL)
            return 0;
        x = grown;
        const expr_id item = take_item(p);
        skip(p, inside);
        x[n++] = take_quantifiers(p, item);
    }
    return build_failed(p->b) ? 0 : expr_seq(p->b, x, n);
}

static expr_id take_alternatives(struct ebnf *p, bool inside)
{
    expr_id *x = NULL;
    uint32_t n = 0, cap = 0;
    do {
        expr_id *grown = build_grow(p->b, x, n, &cap, 1, sizeof *grown);
        if (grown == NULL)
            return 0;
        x = grown;
        skip(p, true);
        x[n++] = take_sequence(p, inside);
    } while (takes(p, "|") && !build_failed(p->b));
    return build_failed(p->b) ? 0 : expr_alt(p->b, x, n);
}

static void take_rule(struct ebnf *p)
{
    const size_t at = p->at;
    char shown[80];
    const struct str name = take_name(p);
    skip(p, false);
    if (name.n == 0 || !takes(p, "::=")) {
        bad(p, ERR_INVALID, at, "a rule is written name ::= ...");
        return;
    }
    const uint32_t i = rule_named(p, name);
    if (i == NONE32)
        return;
    assert(i < p->n_rules && p->rules != NULL);
    if (p->rules[i].defined) {
        bad(p, ERR_INVALID, at, "the rule %s is defined twice", str_show(name, shown, sizeof shown));
        return;
    }
    p->rules[i].defined = true;
    const expr_id x = take_alternatives(p, false);
    expr_rule_set(p->b, p->rules[i].rule, x);
    if (more(p) && peek(p) != '\n' && peek(p) != '\r')
        bad(p, ERR_INVALID, p->at, "a ) without its (");
}

enum err ebnf_build(struct build *b, struct str text, expr_id *out, struct error *e)
{
    struct ebnf p = {.b = b, .s = text};
    char shown[80];
    for (skip(&p, true); more(&p); skip(&p, true))
        take_rule(&p);
    TRY(build_check(b, e));
    for (uint32_t i = 0; i < p.n_rules; i++)
        if (!p.rules[i].defined)
            return FAIL(e, ERR_INVALID, "grammar: line %u: the rule %s is not defined", line_of(&p, p.rules[i].used_at),
                str_show(p.rules[i].name, shown, sizeof shown));
    const uint32_t root = rule_named(&p, STR("root"));
    TRY(build_check(b, e));
    assert(root < p.n_rules && p.rules != NULL);
    if (!p.rules[root].defined)
        return FAIL(e, ERR_INVALID, "grammar: there is no rule root");
    *out = p.rules[root].rule;
    return OK;
}
