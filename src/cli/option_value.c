/* One value of one option: text in, checked field out. The error names the option, the value and what is allowed, in
 * one sentence, whether the text came from the command line or from the config file. */
#include "cli/options.h"

#include "base/limits.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 120 /* bytes of a bad value that are repeated in the message */

static enum err bad(const struct option_row *row, const char *text, const char *must, struct error *e)
{
    char shown[SHOWN_MAX];
    return FAIL(
        e, ERR_INVALID, "option --%s: '%s' is not %s", row->name, str_show(str_of(text), shown, sizeof shown), must);
}

static bool parse_digits(const char *text, uint64_t *out, const char **end)
{
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return false;
    *out = v;
    *end = p;
    return p > text;
}

static enum err check_range(const struct option_row *row, const char *text, uint64_t v, struct error *e)
{
    if (v >= row->min && (row->max == 0 || v <= row->max))
        return OK;
    char must[96];
    if (row->max == 0)
        snprintf(must, sizeof must, "at least %llu", (unsigned long long)row->min);
    else
        snprintf(
            must, sizeof must, "between %llu and %llu", (unsigned long long)row->min, (unsigned long long)row->max);
    return bad(row, text, must, e);
}

static enum err parse_u64(const struct option_row *row, const char *text, uint64_t *out, struct error *e)
{
    const char *end = text;
    if (!parse_digits(text, out, &end) || *end != '\0')
        return bad(row, text, "a whole number (at most 2^64-1)", e);
    return check_range(row, text, *out, e);
}

static enum err parse_f64(const struct option_row *row, const char *text, double *out, struct error *e)
{
    /* strtod also takes hex, nan, inf and leading blanks: only the characters of a decimal number may appear. */
    char *end = NULL;
    if (text[0] == '\0' || strspn(text, "0123456789+-.eE") != strlen(text))
        return bad(row, text, "a number", e);
    errno = 0;
    *out = strtod(text, &end);
    if (*end != '\0' || end == text || !isfinite(*out))
        return bad(row, text, "a number", e);
    if (*out >= row->f64_min && *out <= row->f64_max)
        return OK;
    char must[96];
    snprintf(must, sizeof must, "between %g and %g", row->f64_min, row->f64_max);
    return bad(row, text, must, e);
}

static bool unit_bytes(const char *unit, uint64_t *out)
{
    static const char letters[] = "KMGT";
    if (unit[0] == '\0' || strcmp(unit, "B") == 0) {
        *out = 1;
        return true;
    }
    const char upper =
        unit[0] == 'k' || unit[0] == 'm' || unit[0] == 'g' || unit[0] == 't' ? (char)(unit[0] - 'a' + 'A') : unit[0];
    const char *at = strchr(letters, upper);
    if (at == NULL)
        return false;
    const bool thousand = strcmp(unit + 1, "B") == 0;
    if (!thousand && strcmp(unit + 1, "iB") != 0 && unit[1] != '\0')
        return false;
    *out = 1;
    for (const char *p = letters; p <= at; p++)
        *out *= thousand ? 1000 : 1024;
    return true;
}

static enum err parse_size(const struct option_row *row, const char *text, uint64_t *out, struct error *e)
{
    static const char must[] = "a size such as 4GiB, 512MiB or 1000000";
    uint64_t whole = 0, unit = 1;
    const char *end = text;
    if (!parse_digits(text, &whole, &end))
        return bad(row, text, must, e);
    double fraction = 0;
    if (*end == '.') {
        double place = 0.1;
        const char *p = end + 1;
        for (; *p >= '0' && *p <= '9'; p++, place /= 10)
            fraction += place * (*p - '0');
        if (p == end + 1)
            return bad(row, text, must, e);
        end = p;
    }
    if (!unit_bytes(end, &unit) || (fraction > 0 && unit == 1))
        return bad(row, text, must, e);
    const uint64_t part = (uint64_t)(fraction * (double)unit);
    if (__builtin_mul_overflow(whole, unit, out) || __builtin_add_overflow(*out, part, out))
        return bad(row, text, must, e);
    return check_range(row, text, *out, e);
}

size_t option_choices(const struct option_row *row)
{
    size_t n = 0;
    while (row->choices != NULL && row->choices[n] != NULL)
        n++;
    return n;
}

static enum err parse_enum(const struct option_row *row, const char *text, int *out, struct error *e)
{
    char must[160] = "one of";
    size_t at = strlen(must);
    const size_t n = option_choices(row);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(text, row->choices[i]) == 0) {
            *out = (int)i;
            return OK;
        }
        const int k = snprintf(must + at, sizeof must - at, "%s %s", i == 0 ? "" : ",", row->choices[i]);
        assert(k > 0 && (size_t)k < sizeof must - at);
        at += (size_t)k;
    }
    return bad(row, text, must, e);
}

static enum err parse_bool(const struct option_row *row, const char *text, bool *out, struct error *e)
{
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return bad(row, text, "true or false", e);
    *out = text[0] == 't';
    return OK;
}

enum err option_store(const struct option_row *row, const char *text, void *values, struct error *e)
{
    void *const field = (char *)values + row->field;
    switch (row->type) {
    case OPTION_BOOL: return parse_bool(row, text, field, e);
    case OPTION_U64: return parse_u64(row, text, field, e);
    case OPTION_F64: return parse_f64(row, text, field, e);
    case OPTION_SIZE: return parse_size(row, text, field, e);
    case OPTION_ENUM: return parse_enum(row, text, field, e);
    case OPTION_STR:
        if (text[0] == '\0')
            return FAIL(e, ERR_INVALID, "option --%s: the value is empty", row->name);
        *(const char **)field = text;
        return OK;
    case OPTION_LIST: {
        struct option_list *list = field;
        if (list->n == OPTION_LIST_MAX)
            return FAIL(e, ERR_LIMIT, "option --%s: given more than %d times", row->name, OPTION_LIST_MAX);
        list->v[list->n++] = text;
        return OK;
    }
    }
    return FAIL(e, ERR_INTERNAL, "option --%s has no type", row->name);
}
