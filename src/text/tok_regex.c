/* PCRE2 as the matcher of pre-split patterns; see tok_regex.h.
 *
 * The translation is small because the two syntaxes mostly agree. Where they do not:
 *   \w \W       Oniguruma: letters, marks, decimal digits, connectors; PCRE2 knows no marks and all numbers
 *   \h \H       Oniguruma: hexadecimal digit; PCRE2: horizontal space
 *   X{1,3}+     Oniguruma: one or more times X{1,3}; PCRE2: possessive
 *   X{,3}       Oniguruma: up to three; PCRE2: literal text
 *   ^ $         Oniguruma: at every line (PCRE2_MULTILINE)
 *   \uHHHH      PCRE2: \x{HHHH}
 *   \p{Han}     Oniguruma: the script; PCRE2: the script and its extensions
 *   [a&&[^b]]   PCRE2 has no intersection: a look-ahead for each operand but the last
 * \s differs in U+180E only, which unicode_shadow takes out of the subject. */
#include "text/tok_regex.h"

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct regex {
    pcre2_code *code;
    bool jit;
};

struct regex_ctx {
    pcre2_match_data *data;
    pcre2_match_context *match;
    pcre2_jit_stack *stack;
};

/* ---- translation ---- */

struct translation {
    struct str in;
    size_t at;
    struct buf *out;
    size_t atom; /* where in out the last atom began, for quantifiers that need a group around it */
    size_t groups[REGEX_GROUPS_MAX];
    size_t n_groups;
    struct error *e;
};

static const char word_class[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* \p{name}. Names longer than a category are scripts, which PCRE2 would take with their extensions if it were not told
 * otherwise, unless they are properties of their own. */
static void translate_property(struct translation *t, struct str open, struct str name)
{
    static const char *const properties[] = {"Any", "Alphabetic", "Lowercase", "Uppercase", "White_Space", "Emoji",
        "Extended_Pictographic", "Ideographic", "Unified_Ideograph", "ASCII"};
    bool script = name.n > 2 && name.p[0] != '^' && memchr(name.p, ':', name.n) == NULL;
    for (size_t i = 0; i < COUNT_OF(properties); i++)
        script = script && !str_is(name, properties[i]);
    buf_add(t->out, open);
    if (script)
        buf_add(t->out, STR("sc:"));
    buf_add(t->out, name);
    buf_add_char(t->out, '}');
}

/* One escape at t->at (on the backslash). in_class says which spelling of a set is allowed. */
static enum err translate_escape(struct translation *t, bool in_class)
{
    const struct str in = t->in;
    if (t->at + 1 >= in.n)
        return FAIL(t->e, ERR_INVALID, "pattern ends in a backslash");
    const char c = in.p[t->at + 1];
    if (c == 'w') {
        buf_addf(t->out, in_class ? "%s" : "[%s]", word_class);
    } else if (c == 'W' && !in_class) {
        buf_addf(t->out, "[^%s]", word_class);
    } else if (c == 'h') {
        buf_add(t->out, in_class ? STR("0-9a-fA-F") : STR("[0-9a-fA-F]"));
    } else if (c == 'H' && !in_class) {
        buf_add(t->out, STR("[^0-9a-fA-F]"));
    } else if (c == 'W' || c == 'H') {
        return FAIL(t->e, ERR_UNSUPPORTED, "\\%c inside a class of a pattern", c);
    } else if (c == 'u') {
        size_t n = 0;
        while (n < 4 && t->at + 2 + n < in.n && is_hex(in.p[t->at + 2 + n]))
            n++;
        if (n != 4)
            return FAIL(t->e, ERR_INVALID, "\\u without four hexadecimal digits in a pattern");
        buf_addf(t->out, "\\x{%.4s}", in.p + t->at + 2);
        t->at += 4;
    } else if ((c == 'p' || c == 'P') && t->at + 2 < in.n && in.p[t->at + 2] == '{') {
        const char *close = memchr(in.p + t->at, '}', in.n - t->at);
        if (close == NULL)
            return FAIL(t->e, ERR_INVALID, "\\%c{ without } in a pattern", c);
        const size_t end = (size_t)(close - in.p) + 1;
        translate_property(t, (struct str){in.p + t->at, 3}, (struct str){in.p + t->at + 3, end - t->at - 4});
        t->at = end;
        return OK;
    } else {
        const size_t n = utf8_len((struct str){in.p + t->at + 1, in.n - t->at - 1});
        buf_add(t->out, (struct str){in.p + t->at, 1 + MAX(n, (size_t)1)});
        t->at += 1 + MAX(n, (size_t)1);
        return OK;
    }
    t->at += 2;
    return OK;
}

static enum err translate_class(struct translation *t, int depth);

/* The inside of a class up to its ']' or "&&"; t->at on the first byte after '[' or "[^". */
static enum err translate_class_items(struct translation *t)
{
    bool first = true;
    while (t->at < t->in.n) {
        const char c = t->in.p[t->at];
        if (c == ']' && !first)
            return OK;
        if (c == '&' && t->at + 1 < t->in.n && t->in.p[t->at + 1] == '&')
            return OK;
        first = false;
        if (c == '\\') {
            TRY(translate_escape(t, true));
        } else if (c == '[' && t->at + 1 < t->in.n && t->in.p[t->at + 1] == ':') {
            const char *close = memmem(t->in.p + t->at, t->in.n - t->at, ":]", 2);
            if (close == NULL)
                return FAIL(t->e, ERR_INVALID, "[: without :] in a pattern");
            const size_t end = (size_t)(close - t->in.p) + 2;
            buf_add(t->out, (struct str){t->in.p + t->at, end - t->at});
            t->at = end;
        } else if (c == '[') {
            return FAIL(t->e, ERR_UNSUPPORTED, "a class within a class of a pattern");
        } else {
            buf_add_char(t->out, c);
            t->at++;
        }
    }
    return FAIL(t->e, ERR_INVALID, "[ without ] in a pattern");
}

/* A class, at its '['. Where it holds "&&" it becomes look-aheads: [A&&[^B]] is (?:(?=[A])[^B]). */
static enum err translate_class(struct translation *t, int depth)
{
    if (depth > 4)
        return FAIL(t->e, ERR_LIMIT, "classes nested deeper than 4 in a pattern");
    const size_t start = t->out->n;
    bool negated = t->at + 1 < t->in.n && t->in.p[t->at + 1] == '^';
    t->at += negated ? 2 : 1;
    buf_add(t->out, negated ? STR("[^") : STR("["));
    TRY(translate_class_items(t));
    if (t->in.p[t->at] == ']') {
        buf_add_char(t->out, ']');
        t->at++;
        return OK;
    }
    if (negated)
        return FAIL(t->e, ERR_UNSUPPORTED, "a negated intersection of classes in a pattern");
    struct buf left;
    buf_init(&left, REGEX_BYTES_MAX);
    if (t->out->failure == OK)
        buf_add(&left, (struct str){t->out->p + start, t->out->n - start});
    t->out->n = start;
    buf_addf(t->out, "(?:(?=%.*s])", (int)left.n, left.p != NULL ? left.p : "");
    buf_fini(&left);
    t->at += 2;
    if (t->at < t->in.n && t->in.p[t->at] == '[') {
        TRY(translate_class(t, depth + 1));
    } else {
        buf_add_char(t->out, '[');
        TRY(translate_class_items(t));
        buf_add_char(t->out, ']');
    }
    if (t->at >= t->in.n || t->in.p[t->at] != ']')
        return FAIL(t->e, ERR_UNSUPPORTED, "an intersection of more than two classes in a pattern");
    t->at++;
    buf_add_char(t->out, ')');
    return OK;
}

/* {n,m} at t->at; false when it is literal text. */
static bool translate_interval(struct translation *t)
{
    size_t i = t->at + 1;
    bool digits = false;
    while (i < t->in.n && ((t->in.p[i] >= '0' && t->in.p[i] <= '9') || t->in.p[i] == ',')) {
        digits |= t->in.p[i] != ',';
        i++;
    }
    if (!digits || i >= t->in.n || t->in.p[i] != '}')
        return false;
    const struct str body = {t->in.p + t->at + 1, i - t->at - 1};
    const bool again = i + 1 < t->in.n && t->in.p[i + 1] == '+';
    if (again && t->out->failure == OK) { /* X{1,3}+ repeats the interval: (?:X{1,3})+ */
        const size_t n = t->out->n - t->atom;
        if (buf_room(t->out, 3) != NULL) {
            memmove(t->out->p + t->atom + 3, t->out->p + t->atom, n);
            memcpy(t->out->p + t->atom, "(?:", 3);
            t->out->n += 3;
        }
    }
    buf_addf(t->out, body.p[0] == ',' ? "{0%.*s}" : "{%.*s}", (int)body.n, body.p);
    if (again)
        buf_add_char(t->out, ')');
    t->at = i + 1;
    return true;
}

static enum err translate_group(struct translation *t)
{
    const char c = t->in.p[t->at];
    if (c == '(') {
        if (t->n_groups == REGEX_GROUPS_MAX)
            return FAIL(t->e, ERR_LIMIT, "groups nested deeper than %d in a pattern", REGEX_GROUPS_MAX);
        t->groups[t->n_groups++] = t->out->n;
        /* (? must not read as a quantifier of an open parenthesis */
        if (t->at + 1 < t->in.n && t->in.p[t->at + 1] == '?') {
            buf_add(t->out, STR("(?"));
            t->at += 2;
            return OK;
        }
    } else {
        t->atom = t->n_groups > 0 ? t->groups[--t->n_groups] : t->out->n;
    }
    buf_add_char(t->out, c);
    t->at++;
    return OK;
}

enum err regex_translate(struct str pattern, struct buf *out, struct error *e)
{
    struct translation t = {.in = pattern, .out = out, .e = e};
    if (pattern.n > REGEX_BYTES_MAX / 4)
        return FAIL(e, ERR_LIMIT, "pattern of %zu bytes; the limit is %d", pattern.n, (int)REGEX_BYTES_MAX / 4);
    if (!utf8_is_valid(pattern))
        return FAIL(e, ERR_INVALID, "pattern is not valid UTF-8");
    while (t.at < pattern.n) {
        const char c = pattern.p[t.at];
        if (c == '(' || c == ')') {
            TRY(translate_group(&t));
        } else if (c == '{' && translate_interval(&t)) {
            continue;
        } else if (c == '\\' || c == '[') {
            t.atom = out->n;
            TRY(c == '[' ? translate_class(&t, 0) : translate_escape(&t, false));
        } else {
            if (strchr("*+?|", c) == NULL)
                t.atom = out->n;
            const size_t n = MAX(utf8_len((struct str){pattern.p + t.at, pattern.n - t.at}), (size_t)1);
            buf_add(out, (struct str){pattern.p + t.at, n});
            t.at += n;
        }
    }
    return buf_check(out, "pattern", e);
}

/* ---- compiled patterns ---- */

static void *counted_alloc(size_t n, void *unused)
{
    (void)unused;
    return mem_alloc(n);
}

static void counted_free(void *p, void *unused)
{
    (void)unused;
    mem_free(p);
}

static enum err compile(struct str pattern, struct regex *r, struct error *e)
{
    char shown[120];
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_general_context *general = pcre2_general_context_create(counted_alloc, counted_free, NULL);
    pcre2_compile_context *context = general != NULL ? pcre2_compile_context_create(general) : NULL;
    if (context != NULL) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(context, REGEX_GROUPS_MAX);
        r->code = pcre2_compile((PCRE2_SPTR)pattern.p, pattern.n,
            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK, &code, &at,
            context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (r->code == NULL && (code == 0 || code == PCRE2_ERROR_HEAP_FAILED))
        return FAIL(e, ERR_NOMEM, "no memory to compile a pattern");
    if (r->code == NULL) {
        PCRE2_UCHAR text[120];
        pcre2_get_error_message(code, text, sizeof text);
        return FAIL(e, ERR_UNSUPPORTED, "pattern '%s': at byte %zu: %s", str_show(pattern, shown, sizeof shown),
            (size_t)at, (const char *)text);
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    return OK;
}

enum err regex_new(struct str pattern, struct regex **out, struct error *e)
{
    *out = NULL;
    struct buf translated;
    buf_init(&translated, REGEX_BYTES_MAX);
    struct regex *r = mem_zalloc(sizeof *r);
    enum err err = r != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a pattern");
    if (err == OK)
        err = regex_translate(pattern, &translated, e);
    if (err == OK)
        err = compile(buf_str(&translated), r, e);
    buf_fini(&translated);
    if (err != OK) {
        regex_free(r);
        return err;
    }
    *out = r;
    return OK;
}

void regex_free(struct regex *r)
{
    if (r == NULL)
        return;
    pcre2_code_free(r->code);
    mem_free(r);
}

enum err regex_ctx_new(struct regex_ctx **out, struct error *e)
{
    *out = NULL;
    struct regex_ctx *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for matching");
    pcre2_general_context *general = pcre2_general_context_create(counted_alloc, counted_free, NULL);
    if (general != NULL) {
        c->data = pcre2_match_data_create(REGEX_GROUPS_MAX, general);
        c->match = pcre2_match_context_create(general);
        c->stack = pcre2_jit_stack_create(32 * 1024, REGEX_STACK_BYTES_MAX, general);
    }
    pcre2_general_context_free(general);
    if (c->data == NULL || c->match == NULL || c->stack == NULL) {
        regex_ctx_free(c);
        return FAIL(e, ERR_NOMEM, "no memory for matching");
    }
    pcre2_set_match_limit(c->match, REGEX_STEPS_MAX);
    pcre2_set_depth_limit(c->match, REGEX_STEPS_MAX);
    pcre2_set_heap_limit(c->match, REGEX_STACK_BYTES_MAX / 1024);
    pcre2_jit_stack_assign(c->match, NULL, c->stack);
    *out = c;
    return OK;
}

void regex_ctx_free(struct regex_ctx *c)
{
    if (c == NULL)
        return;
    pcre2_match_data_free(c->data);
    pcre2_match_context_free(c->match);
    pcre2_jit_stack_free(c->stack);
    mem_free(c);
}

int regex_next(const struct regex *r, struct regex_ctx *c, struct str subject, size_t from, size_t *start, size_t *end)
{
    const PCRE2_SPTR text = (PCRE2_SPTR)(subject.p != NULL ? subject.p : "");
    int rc;
    if (r->jit)
        rc = pcre2_jit_match(r->code, text, subject.n, from, 0, c->data, c->match);
    else
        rc = pcre2_match(r->code, text, subject.n, from, PCRE2_NO_UTF_CHECK, c->data, c->match);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return -1;
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(c->data);
    *start = bounds[0];
    *end = bounds[1];
    return 1;
}
