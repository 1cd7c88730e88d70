/* Reading model.vocab and model.merges; see tok_members.h. */
#include "text/tok_members.h"
#include "text/tok_unicode.h"

#include "base/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* ---- cutting ---- */

static const char *skip_spaces(const char *p, const char *end)
{
    while (p < end && is_space(*p))
        p++;
    return p;
}

/* Behind the closing quote of the string at p; NULL when there is none. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end; p++) {
        if (*p == '"')
            return p + 1;
        if (*p == '\\')
            p++;
    }
    return NULL;
}

static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;
    do {
        if (p >= end)
            return NULL;
        if (*p == '"') {
            p = skip_string(p, end);
            if (p == NULL)
                return NULL;
            continue;
        }
        if (*p == '{' || *p == '[') {
            depth++;
        } else if (*p == '}' || *p == ']') {
            if (depth == 0)
                return p;
            depth--;
        } else if (*p == ',' && depth == 0) {
            return p;
        }
        p++;
    } while (depth > 0 || (p < end && *p != ',' && *p != '}' && *p != ']'));
    return p;
}

/* The members of the object at p: give each key and value to the two names asked for. Behind the object, or NULL. */
struct wanted {
    const char *name;
    struct str value;
};

static const char *find_members(const char *p, const char *end, struct wanted *wanted, size_t n)
{
    if (p >= end || *p != '{')
        return NULL;
    p = skip_spaces(p + 1, end);
    while (p < end && *p == '"') {
        const char *key = p + 1;
        p = skip_string(p, end);
        if (p == NULL)
            return NULL;
        const struct str name = {key, (size_t)(p - key) - 1};
        p = skip_spaces(p, end);
        if (p >= end || *p != ':')
            return NULL;
        const char *value = skip_spaces(p + 1, end);
        p = skip_value(value, end);
        if (p == NULL)
            return NULL;
        for (size_t i = 0; i < n; i++)
            if (str_is(name, wanted[i].name))
                wanted[i].value = (struct str){value, (size_t)(p - value)};
        p = skip_spaces(p, end);
        if (p < end && *p == ',')
            p = skip_spaces(p + 1, end);
    }
    return p < end && *p == '}' ? p + 1 : NULL;
}

static bool is_bracketed(struct str s)
{
    while (s.n > 0 && is_space(s.p[s.n - 1]))
        s.n--;
    return s.n >= 2 && ((s.p[0] == '{' && s.p[s.n - 1] == '}') || (s.p[0] == '[' && s.p[s.n - 1] == ']'));
}

enum err members_find(struct str json, struct members *out, struct error *e)
{
    *out = (struct members){.vocab = {NULL, 0}};
    if (json.n > JSON_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "JSON of %zu bytes; the limit is %llu", json.n, (unsigned long long)JSON_BYTES_MAX);
    buf_init(&out->rest, json.n + 16);
    struct wanted model = {.name = "model"}, inner[2] = {{.name = "vocab"}, {.name = "merges"}};
    const char *end = json.p + json.n;
    const char *p = json.n > 0 ? find_members(skip_spaces(json.p, end), end, &model, 1) : NULL;
    if (p != NULL && model.value.n > 0 && model.value.p[0] == '{')
        find_members(model.value.p, model.value.p + model.value.n, inner, 2);
    struct str cut[2] = {inner[0].value, inner[1].value};
    if (cut[1].p != NULL && (cut[0].p == NULL || cut[1].p < cut[0].p)) { /* in the order of the file */
        cut[0] = inner[1].value;
        cut[1] = inner[0].value;
    }
    const char *from = json.p;
    for (size_t i = 0; i < 2; i++) {
        if (cut[i].p == NULL || !is_bracketed(cut[i]))
            continue;
        buf_add(&out->rest, (struct str){from, (size_t)(cut[i].p - from)});
        buf_add(&out->rest, cut[i].p[0] == '{' ? STR("{}") : STR("[]"));
        from = cut[i].p + cut[i].n;
    }
    if (json.n > 0)
        buf_add(&out->rest, (struct str){from, (size_t)(end - from)});
    out->vocab = is_bracketed(inner[0].value) ? inner[0].value : (struct str){NULL, 0};
    out->merges = is_bracketed(inner[1].value) ? inner[1].value : (struct str){NULL, 0};
    return buf_check(&out->rest, "tokenizer.json", e);
}

void members_fini(struct members *m)
{
    buf_fini(&m->rest);
}

/* ---- reading ---- */

static enum err complain(const struct member_reader *r, const char *what)
{
    return FAIL(r->e, ERR_FORMAT, "%s: byte %zu of it: %s", r->what, (size_t)(r->p - r->start), what);
}

enum err member_open(
    struct member_reader *r, struct str value, char bracket, const char *what, struct arena *arena, struct error *e)
{
    *r = (struct member_reader){.p = value.p, .start = value.p, .arena = arena, .what = what, .e = e, .first = true};
    if (value.n == 0 || value.p[0] != bracket)
        return FAIL(e, ERR_FORMAT, "%s must be an %s", what, bracket == '{' ? "object" : "array");
    r->end = value.p + value.n;
    r->p++;
    return OK;
}

bool member_at(struct member_reader *r, char c)
{
    r->p = skip_spaces(r->p, r->end);
    return r->p < r->end && *r->p == c;
}

enum err member_char(struct member_reader *r, char c)
{
    char text[] = "'x' expected";
    text[1] = c;
    if (!member_at(r, c))
        return complain(r, text);
    r->p++;
    return OK;
}

enum err member_next(struct member_reader *r, bool *more)
{
    const char close = *r->start == '{' ? '}' : ']';
    *more = !member_at(r, close);
    if (!*more) {
        r->p = skip_spaces(r->p + 1, r->end);
        return r->p == r->end ? OK : complain(r, "more behind its end");
    }
    if (!r->first)
        TRY(member_char(r, ','));
    r->first = false;
    return OK;
}

static int hex4(const char *p, const char *end)
{
    int value = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        const char c = p[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX at *p (behind the u), or a pair of them, as UTF-8; 0 when it is none. */
static size_t unescape_unicode(const char **p, const char *end, char *out)
{
    int64_t c = hex4(*p, end);
    if (c < 0 || (c >= 0xDC00 && c < 0xE000))
        return 0;
    *p += 4;
    if (c >= 0xD800 && c < 0xDC00) {
        const int low = end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u' ? hex4(*p + 2, end) : -1;
        if (low < 0xDC00 || low >= 0xE000)
            return 0;
        *p += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return utf8_put((uint32_t)c, out);
}

/* The string from p to its closing quote at `close`, with escapes. */
static enum err unescape(struct member_reader *r, const char *close, struct str *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *copy = arena_take(r->arena, (size_t)(close - r->p) + 1);
    size_t n = 0;
    if (copy == NULL)
        return FAIL(r->e, ERR_NOMEM, "no memory for %s", r->what);
    while (r->p < close) {
        if (*r->p != '\\') {
            copy[n++] = *r->p++;
            continue;
        }
        const char c = r->p[1];
        const char *known = c != '\0' ? strchr(from, c) : NULL;
        r->p += 2;
        if (c == 'u') {
            const size_t bytes = unescape_unicode(&r->p, close, copy + n);
            if (bytes == 0)
                return complain(r, "a wrong \\u escape");
            n += bytes;
        } else if (known != NULL) {
            copy[n++] = to[known - from];
        } else {
            return complain(r, "an unknown escape");
        }
    }
    *out = (struct str){copy, n};
    return OK;
}

enum err member_str(struct member_reader *r, struct str *out)
{
    TRY(member_char(r, '"'));
    const char *p = r->p;
    bool escapes = false, high = false;
    for (; p < r->end && *p != '"'; p++) {
        const unsigned char c = (unsigned char)*p;
        if (c < 0x20)
            return complain(r, "a control character in a string");
        high |= c >= 0x80;
        if (c == '\\') {
            escapes = true;
            p++;
        }
    }
    if (p >= r->end)
        return complain(r, "a string without end");
    *out = (struct str){r->p, (size_t)(p - r->p)};
    if (high && !utf8_is_valid(*out))
        return complain(r, "a string that is not valid UTF-8");
    if (escapes)
        TRY(unescape(r, p, out));
    r->p = p + 1;
    return OK;
}

enum err member_int(struct member_reader *r, int64_t *out)
{
    const bool negative = member_at(r, '-');
    r->p += negative;
    int64_t value = 0;
    const char *digits = r->p;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9' && value < INT64_MAX / 16; r->p++)
        value = value * 10 + (*r->p - '0');
    if (r->p == digits || (r->p < r->end && !is_space(*r->p) && strchr(",]}", *r->p) == NULL))
        return complain(r, "a whole number expected");
    *out = negative ? -value : value;
    return OK;
}

/* A power of ten, correctly rounded. */
static double power_of_ten(int k)
{
    char text[16];
    snprintf(text, sizeof text, "1e%d", k);
    return strtod(text, NULL);
}

/* significand * 10^exponent as `tokenizers` reads numbers (serde_json): one rounding of the significand, one of the
 * product. Correct rounding would differ in the last bit of one score in eight, and then decide a tie the other way. */
static double scale(uint64_t significand, int exponent)
{
    double f = (double)significand;
    for (; exponent < -308 && f != 0; exponent += 308)
        f /= power_of_ten(308);
    if (f == 0)
        return 0;
    return exponent >= 0 ? f * power_of_ten(MIN(exponent, 400)) : f / power_of_ten(-exponent);
}

/* The digits at r->p into *significand as far as they fit; how many were read, and how many of them were dropped. */
static size_t read_digits(struct member_reader *r, uint64_t *significand, int *dropped)
{
    const char *start = r->p;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        uint64_t next;
        const bool fits = *dropped == 0 && !__builtin_mul_overflow(*significand, 10u, &next) &&
                          !__builtin_add_overflow(next, (uint64_t)(*r->p - '0'), &next);
        if (fits)
            *significand = next;
        else if (*dropped < 1000)
            (*dropped)++;
    }
    return (size_t)(r->p - start);
}

static bool read_exponent(struct member_reader *r, int *exponent)
{
    if (r->p >= r->end || (*r->p != 'e' && *r->p != 'E'))
        return true;
    r->p++;
    const bool negative = r->p < r->end && *r->p == '-';
    if (r->p < r->end && (*r->p == '-' || *r->p == '+'))
        r->p++;
    uint64_t value = 0;
    int dropped = 0;
    if (read_digits(r, &value, &dropped) == 0)
        return false;
    const int bounded = dropped > 0 || value > 10000 ? 10000 : (int)value;
    *exponent += negative ? -bounded : bounded;
    return true;
}

enum err member_f64(struct member_reader *r, double *out)
{
    const bool negative = member_at(r, '-');
    uint64_t significand = 0;
    int dropped = 0, exponent = 0;
    r->p += negative;
    if (read_digits(r, &significand, &dropped) == 0)
        return complain(r, "a number expected");
    exponent = dropped;
    if (r->p < r->end && *r->p == '.') {
        const int before = dropped;
        r->p++;
        const size_t digits = read_digits(r, &significand, &dropped);
        if (digits == 0)
            return complain(r, "a number expected");
        exponent -= MIN((int)MIN(digits, (size_t)2000), 2000) - (dropped - before);
    }
    if (!read_exponent(r, &exponent))
        return complain(r, "a number expected");
    const double f = scale(significand, exponent);
    if (!isfinite(f))
        return complain(r, "a number that is too large");
    *out = negative ? -f : f;
    return OK;
}
