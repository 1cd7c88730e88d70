/* Texts as JSON strings say them. Which spellings a string may use:
 *   printable ASCII     as it is; " and \ as \" and \\; / also as \/
 *   control characters  \b \f \n \r \t, or \u00XX
 *   everything else     as it is in UTF-8, or \uXXXX (two of them, a surrogate pair, above U+FFFF); a lone surrogate is
 *                       no character and is not written
 * This is what serialisers write; \u0041 for A is valid JSON that nobody writes, and leaving it out keeps the machine
 * small. Hexadecimal digits may be of either case.
 *
 * An expression is rewritten piece by piece, so counts stay counts. A machine is rewritten state by state: at every
 * character boundary, escapes lead where the characters they stand for lead. */
#include "base/limits.h"
#include "grammar/build.h"

static const struct {
    uint8_t code;
    char letter;
} SHORT[] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {8, 'b'}, {12, 'f'}, {10, 'n'}, {13, 'r'}, {9, 't'}};

static expr_id hex_digits(struct build *b, uint32_t lo, uint32_t hi)
{
    struct code_range r[3];
    uint32_t n = 0;
    if (lo <= 9)
        r[n++] = (struct code_range){'0' + lo, '0' + MIN(hi, 9)};
    if (hi >= 10) {
        const uint32_t from = MAX(lo, 10) - 10;
        r[n++] = (struct code_range){'a' + from, 'a' + hi - 10};
        r[n++] = (struct code_range){'A' + from, 'A' + hi - 10};
    }
    return expr_class(b, r, n);
}

/* The numbers lo to hi in `digits` digits. */
static expr_id hex_between(struct build *b, uint32_t lo, uint32_t hi, uint32_t digits)
{
    const uint32_t unit = 1u << (4 * (digits - 1)), a = lo / unit, z = hi / unit;
    if (digits == 1)
        return hex_digits(b, lo, hi);
    if (lo % unit == 0 && hi % unit == unit - 1)
        return expr_seq(
            b, (const expr_id[]){hex_digits(b, a, z), expr_repeat(b, hex_digits(b, 0, 15), digits - 1, digits - 1)}, 2);
    if (a == z)
        return expr_seq(b, (const expr_id[]){hex_digits(b, a, a), hex_between(b, lo % unit, hi % unit, digits - 1)}, 2);
    expr_id alts[3];
    uint32_t n = 0, from = a, to = z;
    if (lo % unit != 0) {
        const expr_id rest = hex_between(b, lo % unit, unit - 1, digits - 1);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_digits(b, a, a), rest}, 2);
        from++;
    }
    if (hi % unit != unit - 1) {
        const expr_id rest = hex_between(b, 0, hi % unit, digits - 1);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_digits(b, z, z), rest}, 2);
        to--;
    }
    if (from <= to && to != NONE32) {
        const expr_id rest = expr_repeat(b, hex_digits(b, 0, 15), digits - 1, digits - 1);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_digits(b, from, to), rest}, 2);
    }
    return expr_alt(b, alts, n);
}

static expr_id hex_pairs(struct build *b, uint32_t lo, uint32_t hi)
{
    const uint32_t a = (lo - 0x10000) >> 10, z = (hi - 0x10000) >> 10, al = lo & 0x3FF, zl = hi & 0x3FF;
    const expr_id u = expr_bytes(b, STR("\\u"));
    expr_id alts[3];
    uint32_t n = 0, from = a, to = z;
    if (a == z)
        return expr_seq(b,
            (const expr_id[]){
                hex_between(b, 0xD800 + a, 0xD800 + a, 4), u, hex_between(b, 0xDC00 + al, 0xDC00 + zl, 4)},
            3);
    if (al != 0) {
        const expr_id low = hex_between(b, 0xDC00 + al, 0xDFFF, 4);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_between(b, 0xD800 + a, 0xD800 + a, 4), u, low}, 3);
        from++;
    }
    if (zl != 0x3FF) {
        const expr_id low = hex_between(b, 0xDC00, 0xDC00 + zl, 4);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_between(b, 0xD800 + z, 0xD800 + z, 4), u, low}, 3);
        to--;
    }
    if (from <= to && to != NONE32) {
        const expr_id low = hex_between(b, 0xDC00, 0xDFFF, 4);
        alts[n++] = expr_seq(b, (const expr_id[]){hex_between(b, 0xD800 + from, 0xD800 + to, 4), u, low}, 3);
    }
    return expr_alt(b, alts, n);
}

expr_id expr_hex_range(struct build *b, uint32_t lo, uint32_t hi)
{
    static const struct code_range parts[] = {{0, 0x1F}, {0x80, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    expr_id alts[COUNT_OF(parts)];
    uint32_t n = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const uint32_t from = MAX(lo, parts[i].from), to = MIN(hi, parts[i].to);
        if (from <= to)
            alts[n++] = from >= 0x10000 ? hex_pairs(b, from, to) : hex_between(b, from, to, 4);
    }
    return expr_alt(b, alts, n);
}

static bool has_code(const struct code_range *r, uint32_t n, uint32_t code)
{
    for (uint32_t i = 0; i < n; i++)
        if (code >= r[i].from && code <= r[i].to)
            return true;
    return false;
}

static expr_id escaped_class(struct build *b, const struct code_range *r, uint32_t n)
{
    struct code_range *raw = build_take(b, (size_t)n * 3, sizeof *raw);
    expr_id *hex = build_take(b, (size_t)n + 1, sizeof *hex);
    if (raw == NULL || hex == NULL)
        return 0;
    uint32_t n_raw = 0, n_hex = 0, n_codes = 0;
    struct code_range letters[COUNT_OF(SHORT)];
    for (uint32_t i = 0; i < n; i++) {
        static const struct code_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
        for (size_t k = 0; k < COUNT_OF(plain); k++) {
            const uint32_t from = MAX(r[i].from, plain[k].from), to = MIN(r[i].to, plain[k].to);
            if (from <= to)
                raw[n_raw++] = (struct code_range){from, to};
        }
        const expr_id x = expr_hex_range(b, r[i].from, r[i].to);
        if (x != 0)
            hex[n_hex++] = x;
    }
    for (size_t i = 0; i < COUNT_OF(SHORT); i++)
        if (has_code(r, n, SHORT[i].code))
            letters[n_codes++] = (struct code_range){(uint8_t)SHORT[i].letter, (uint8_t)SHORT[i].letter};
    const expr_id backslash = expr_byte(b, '\\');
    const expr_id unicode = expr_seq(b, (const expr_id[]){expr_byte(b, 'u'), expr_alt(b, hex, n_hex)}, 2);
    const expr_id behind = expr_alt(b, (const expr_id[]){expr_class(b, letters, n_codes), unicode}, 2);
    return expr_alt(
        b, (const expr_id[]){expr_class(b, raw, n_raw), expr_seq(b, (const expr_id[]){backslash, behind}, 2)}, 2);
}

static uint32_t decode(const uint8_t *p, size_t n)
{
    static const uint8_t mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = p[0] & mask[n];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3F);
    return c;
}

static expr_id escaped_bytes(struct build *b, struct str text)
{
    expr_id *parts = build_take(b, text.n + 1, sizeof *parts);
    if (parts == NULL)
        return 0;
    uint32_t n = 0;
    for (size_t i = 0; i < text.n && !build_failed(b);) {
        size_t run = i;
        while (run < text.n && text.p[run] >= 0x20 && text.p[run] < 0x7F && text.p[run] != '"' && text.p[run] != '\\' &&
               text.p[run] != '/')
            run++;
        if (run > i) {
            parts[n++] = expr_bytes(b, (struct str){text.p + i, run - i});
            i = run;
            continue;
        }
        const size_t len = utf8_len((struct str){text.p + i, text.n - i});
        if (len == 0) { /* not a character, so in no text */
            return 0;
        }
        const uint32_t c = decode((const uint8_t *)text.p + i, len);
        parts[n++] = escaped_class(b, &(struct code_range){c, c}, 1);
        i += len;
    }
    return expr_seq(b, parts, n);
}

/* ---- machines ---- */

struct interval {
    struct code_range codes;
    uint32_t to;
};

struct intervals {
    struct build *b;
    struct interval *p;
    uint32_t n, cap;
};

static void interval_add(struct intervals *v, uint32_t from, uint32_t to, uint32_t state)
{
    if (v->n > 0 && v->p[v->n - 1].to == state && v->p[v->n - 1].codes.to + 1 == from) {
        v->p[v->n - 1].codes.to = to;
        return;
    }
    struct interval *grown = build_grow(v->b, v->p, v->n, &v->cap, 1, sizeof *grown);
    if (grown == NULL)
        return;
    v->p = grown;
    v->p[v->n++] = (struct interval){{from, to}, state};
}

/* Characters whose first bytes, already read, make `code`, with `left` bytes to come. */
static void intervals_below(struct intervals *v, const struct dfa *d, uint32_t state, uint32_t code, uint32_t left)
{
    for (uint32_t i = d->edge_at[state]; i < d->edge_at[state + 1] && build_steps(v->b, 1); i++) {
        const struct dfa_edge *g = &d->edges[i];
        if (left == 1) {
            interval_add(v, code << 6 | (g->lo & 63u), code << 6 | (g->hi & 63u), g->to);
            continue;
        }
        for (uint32_t c = g->lo; c <= g->hi; c++)
            intervals_below(v, d, g->to, code << 6 | (c & 63), left - 1);
    }
}

static void intervals_of(struct intervals *v, const struct dfa *d, uint32_t state)
{
    v->n = 0;
    for (uint32_t i = d->edge_at[state]; i < d->edge_at[state + 1]; i++) {
        const struct dfa_edge *g = &d->edges[i];
        if (g->lo < 0x80)
            interval_add(v, g->lo, MIN(g->hi, 0x7F), g->to);
        for (uint32_t c = MAX(g->lo, 0xC2); c <= g->hi; c++) {
            const uint32_t left = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
            intervals_below(v, d, g->to, c & (0x3Fu >> left), left);
        }
    }
}

/* A state in the middle of a character goes on with continuation bytes only. */
static bool is_boundary(const struct dfa *d, uint32_t s)
{
    const uint32_t first = d->edge_at[s];
    return first == d->edge_at[s + 1] || d->edges[first].lo < 0x80 || d->edges[first].lo >= 0xC0;
}

static void escaped_state(struct nfa *m, const struct dfa *d, uint32_t base, uint32_t s, struct intervals *v)
{
    const uint32_t behind = nfa_state(m), unicode = nfa_state(m);
    intervals_of(v, d, s);
    nfa_edge(m, base + s, '\\', '\\', behind);
    nfa_edge(m, behind, 'u', 'u', unicode);
    for (uint32_t i = 0; i < v->n && build_steps(m->b, 1); i++) {
        const struct interval *x = &v->p[i];
        for (size_t k = 0; k < COUNT_OF(SHORT); k++)
            if (SHORT[k].code >= x->codes.from && SHORT[k].code <= x->codes.to)
                nfa_edge(m, behind, (uint8_t)SHORT[k].letter, (uint8_t)SHORT[k].letter, base + x->to);
        const expr_id hex = expr_hex_range(m->b, x->codes.from, x->codes.to);
        if (hex != 0)
            nfa_empty(m, unicode, nfa_expr(m, hex, base + x->to));
    }
}

static const struct dfa *escaped_dfa(struct build *b, const struct dfa *d)
{
    struct nfa m;
    struct intervals v = {.b = b};
    nfa_init(&m, b, false);
    const uint32_t base = m.n_states;
    for (uint32_t s = 0; s < d->n; s++)
        (void)nfa_state(&m);
    for (uint32_t s = 0; s < d->n && !build_failed(b); s++) {
        if (d->accept[s])
            nfa_empty(&m, base + s, m.final);
        for (uint32_t i = d->edge_at[s]; i < d->edge_at[s + 1]; i++) {
            static const struct code_range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xFF}};
            for (size_t k = 0; k < COUNT_OF(plain); k++) {
                const uint32_t from = MAX(d->edges[i].lo, plain[k].from), to = MIN(d->edges[i].hi, plain[k].to);
                if (from <= to)
                    nfa_edge(&m, base + s, (uint8_t)from, (uint8_t)to, base + d->edges[i].to);
            }
        }
        if (is_boundary(d, s))
            escaped_state(&m, d, base, s, &v);
    }
    return dfa_of_nfa(&m, base);
}

expr_id expr_escaped(struct build *b, expr_id id)
{
    if (build_failed(b) || !build_steps(b, 1))
        return 0;
    const struct expr x = b->exprs[id];
    if (x.escaped != 0)
        return x.escaped;
    expr_id out = id;
    switch (x.type) {
    case EXPR_NEVER:
    case EXPR_EMPTY:
    case EXPR_GRAPH:
    case EXPR_RULE: break; /* langs have neither graphs nor rules */
    case EXPR_BYTES: out = escaped_bytes(b, (struct str){x.u.bytes, x.n}); break;
    case EXPR_CLASS: out = escaped_class(b, x.u.ranges, x.n); break;
    case EXPR_REPEAT: out = expr_repeat(b, expr_escaped(b, x.u.kid), x.min, x.max); break;
    case EXPR_DFA: out = expr_dfa(b, escaped_dfa(b, x.u.dfa)); break;
    case EXPR_SEQ:
    case EXPR_ALT: {
        expr_id *kids = build_take(b, x.n, sizeof *kids);
        for (uint32_t i = 0; i < x.n && kids != NULL; i++)
            kids[i] = expr_escaped(b, x.u.kids[i]);
        out = kids == NULL ? 0 : x.type == EXPR_SEQ ? expr_seq(b, kids, x.n) : expr_alt(b, kids, x.n);
        break;
    }
    }
    if (!build_failed(b))
        b->exprs[id].escaped = out;
    return out;
}
