/* Filters about single values and numbers, and the table of all filters. */
#include "text/jinja_int.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

static enum err f_default(ARGS)
{
    (void)raw;
    bool by_truth, yes = true;
    TRY(jarg_bool(r, arg[1], false, &by_truth));
    if (by_truth && self.type != J_UNDEF)
        TRY(jtruth(r, self, &yes));
    *out = self;
    if (self.type != J_UNDEF && yes)
        return OK;
    *out = arg[0];
    return arg[0].type == J_MISSING ? jstr_new(r, STR(""), JT_CLEAN, out) : OK;
}

static enum err f_length(ARGS)
{
    (void)raw;
    (void)arg;
    int64_t n;
    TRY(jlength(r, self, &n));
    *out = jint(n);
    return OK;
}

static enum err f_attr(ARGS)
{
    (void)raw;
    const struct jstr *name = NULL;
    TRY(jarg_str(r, arg[0], "name", &name));
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    TRY(jattr_own(r, self, jstr_str(name), out));
    if (out->type == J_MISSING)
        *out = jundef_of(r, jstr_str(name), jtype_name(self));
    return OK;
}

/* Number text as Python reads it: white space around it, single underscores between digits. Empty when malformed. */
static void clean_number(struct str s, char out[128])
{
    size_t start = 0, end = s.n, n = 0;
    while (start < end && (unsigned char)s.p[start] <= ' ')
        start++;
    while (end > start && (unsigned char)s.p[end - 1] <= ' ')
        end--;
    out[0] = '\0';
    if (end - start > 120)
        return;
    for (size_t i = start; i < end; i++) {
        const char c = s.p[i];
        const bool digit = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        if (c == '_') {
            if (i == start || i + 1 >= end || s.p[i - 1] == '_' || s.p[i + 1] == '_' || n == 0) {
                out[0] = '\0';
                return;
            }
            continue;
        }
        if (!digit && c != '.' && c != '+' && c != '-') {
            out[0] = '\0';
            return;
        }
        out[n++] = c;
    }
    out[n] = '\0';
}

/* False when it is no number. */
static bool float_text(struct str s, double *out)
{
    char text[128], *end;
    clean_number(s, text);
    const char *digits = text + (text[0] == '+' || text[0] == '-');
    const bool word =
        strcasecmp(digits, "inf") == 0 || strcasecmp(digits, "infinity") == 0 || strcasecmp(digits, "nan") == 0;
    if (text[0] == '\0' || (!word && strspn(digits, "0123456789.eE+-") != strlen(digits)))
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

static bool int_text(struct str s, int64_t base, int64_t *out, bool *too_big)
{
    char text[128], *end;
    clean_number(s, text);
    const char *digits = text + (text[0] == '+' || text[0] == '-');
    *too_big = false;
    if (digits[0] == '\0' || digits[0] == '+' || digits[0] == '-' || base < 0 || base == 1 || base > 36)
        return false;
    if (digits[0] == '0' && (digits[1] | 32) == 'b' && (base == 2 || base == 0)) {
        memmove(text + (digits - text), digits + 2, strlen(digits + 2) + 1);
        base = 2;
    } else if (digits[0] == '0' && (digits[1] | 32) == 'o' && (base == 8 || base == 0)) {
        memmove(text + (digits - text), digits + 2, strlen(digits + 2) + 1);
        base = 8;
    } else if (base == 0 && !(digits[0] == '0' && (digits[1] | 32) == 'x'))
        base = 10;
    errno = 0;
    *out = strtoll(text, &end, (int)base);
    *too_big = errno == ERANGE;
    return *end == '\0' && end != text;
}

static enum err int_from_float(struct jrun *r, double f, bool *ok, struct jv *out)
{
    *ok = !isnan(f);
    if (isinf(f))
        return JFAIL(r, ERR_INVALID, "infinity is no integer");
    if (*ok && fabs(f) >= 9.2e18)
        return JFAIL(r, ERR_LIMIT, "an integer beyond 64 bits");
    if (*ok)
        *out = jint((int64_t)f);
    return OK;
}

static enum err f_int(ARGS)
{
    (void)raw;
    int64_t base, i;
    bool ok = false, too_big;
    double f;
    TRY(jarg_int(r, arg[1], "base", 10, &base));
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    TRY(jstep(r, self.type == J_STR ? self.u.s->n / 32 : 0));
    if (self.type == J_BOOL || self.type == J_INT) {
        *out = jint(jint_of(self));
        ok = true;
    } else if (self.type == J_FLOAT)
        TRY(int_from_float(r, self.u.f, &ok, out));
    else if (self.type == J_STR) {
        if (int_text(jstr_str(self.u.s), base, &i, &too_big)) {
            if (too_big)
                return JFAIL(r, ERR_LIMIT, "an integer beyond 64 bits");
            *out = jint(i);
            ok = true;
        } else if (float_text(jstr_str(self.u.s), &f) && !isinf(f))
            TRY(int_from_float(r, f, &ok, out));
    }
    if (!ok)
        *out = arg[0].type == J_MISSING ? jint(0) : arg[0];
    else
        out->user = self.type == J_STR ? jstr_any_user(self.u.s) : self.user;
    return OK;
}

static enum err f_float(ARGS)
{
    (void)raw;
    double f;
    if (self.type == J_UNDEF)
        return jfail_undef(r, self);
    TRY(jstep(r, self.type == J_STR ? self.u.s->n / 32 : 0));
    if (jis_number(self))
        *out = jfloat(jfloat_of(self));
    else if (self.type == J_STR && float_text(jstr_str(self.u.s), &f))
        *out = jfloat(f);
    else {
        *out = arg[0].type == J_MISSING ? jfloat(0.0) : arg[0];
        return OK;
    }
    out->user = self.type == J_STR ? jstr_any_user(self.u.s) : self.user;
    return OK;
}

static enum err f_abs(ARGS)
{
    (void)raw;
    (void)arg;
    if (!jis_number(self))
        return self.type == J_UNDEF ? jfail_undef(r, self)
                                    : JFAIL(r, ERR_INVALID, "abs needs a number, not %s", jtype_name(self));
    return jnegate(r, self, jfloat_of(self) < 0, out);
}

/* Python's round: to the nearest, ties to even, exact in decimal. */
static enum err round_common(struct jrun *r, struct jv v, int64_t precision, struct jv *out)
{
    if (v.type != J_FLOAT) {
        int64_t i = jint_of(v);
        for (int64_t p = precision, unit = 10; p < 0; p++) {
            if (p < -18) {
                i = 0;
                break;
            }
            if (p == -1) {
                for (int64_t k = precision; k < -1; k++)
                    unit *= 10;
                const int64_t low = i - ((i % unit) + unit) % unit, rest = i - low;
                i = low + (rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0) ? unit : 0);
            }
        }
        *out = jint(i);
        return OK;
    }
    double f = v.u.f;
    if (precision < 0) {
        const double unit = pow(10.0, (double)-precision);
        f = isinf(unit) ? 0.0 * f : rint(f / unit) * unit;
    } else if (precision < 330 && isfinite(f)) {
        char text[700];
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        f = strtod(text, NULL);
    }
    (void)r;
    *out = jfloat(f);
    return OK;
}

static enum err f_round(ARGS)
{
    (void)raw;
    int64_t precision;
    TRY(jarg_int(r, arg[0], "precision", 0, &precision));
    if (!jis_number(self))
        return self.type == J_UNDEF ? jfail_undef(r, self)
                                    : JFAIL(r, ERR_INVALID, "round needs a number, not %s", jtype_name(self));
    if (arg[1].type == J_MISSING || jis_str(arg[1], "common"))
        TRY(round_common(r, self, precision, out));
    else if (jis_str(arg[1], "ceil") || jis_str(arg[1], "floor")) {
        const double unit = pow(10.0, (double)precision), f = jfloat_of(self) * unit;
        if (!isfinite(f))
            return JFAIL(r, ERR_INVALID, "round of infinity");
        *out = jfloat((jis_str(arg[1], "ceil") ? ceil(f) : floor(f)) / unit);
    } else
        return JFAIL(r, ERR_INVALID, "round's method must be common, ceil or floor");
    out->user = self.user;
    return OK;
}

static enum err f_filesizeformat(ARGS)
{
    (void)raw;
    static const char prefixes[] = "kMGTPEZY";
    bool binary;
    double bytes;
    char text[64];
    TRY(jarg_bool(r, arg[0], false, &binary));
    TRY(jstep(r, self.type == J_STR ? self.u.s->n / 32 : 0));
    if (jis_number(self))
        bytes = jfloat_of(self);
    else if (self.type != J_STR || !float_text(jstr_str(self.u.s), &bytes))
        return JFAIL(r, ERR_INVALID, "filesizeformat needs a number, not %s", jtype_name(self));
    const double base = binary ? 1024 : 1000;
    double unit = base;
    if (bytes == 1)
        snprintf(text, sizeof text, "1 Byte");
    else if (bytes < base)
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes) + 0.0); /* + 0.0 turns -0 into 0 */
    else {
        size_t i = 0;
        for (unit *= base; i + 1 < sizeof prefixes - 1 && bytes >= unit; i++)
            unit *= base;
        snprintf(text, sizeof text, "%.1f %c%s", base * bytes / unit, binary && i == 0 ? 'K' : prefixes[i],
            binary ? "iB" : "B");
    }
    struct jbuf b;
    jbuf_init(&b, r);
    jbuf_add(&b, str_of(text), jany_user(r, self));
    return jbuf_done(&b, out);
}

const struct jbuiltin jfilters_value[] = {{"default", f_default, "default_value boolean", 0},
    {"d", f_default, "default_value boolean", 0}, {"length", f_length, "", 0}, {"count", f_length, "", 0},
    {"attr", f_attr, "name", 1}, {"int", f_int, "default base", 0}, {"float", f_float, "default", 0},
    {"abs", f_abs, "", 0}, {"round", f_round, "precision method", 0}, {"filesizeformat", f_filesizeformat, "binary", 0},
    {NULL, NULL, NULL, 0}};

const struct jbuiltin *jfilter_find(struct str name)
{
    const struct jbuiltin *const tables[] = {jfilters_value, jfilters_text, jfilters_seq};
    for (size_t t = 0; t < COUNT_OF(tables); t++)
        for (const struct jbuiltin *b = tables[t]; b->name != NULL; b++)
            if (str_is(name, b->name))
                return b;
    return NULL;
}
