/* Formatting: "%s of %d" | format(...), "{} of {:>4}".format(...), and strftime. Python's mini-languages, as far as
 * they make sense without big integers: an odd conversion is an error that names it. Pieces keep their trust; the text
 * of a number or of padding is the user's when the value is. */
#include "text/jinja_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIELD_MAX 100000 /* width or precision of one field; a page is 80 */

/* What stands between '%' or ':' and the conversion letter. */
struct spec {
    int32_t fill;
    char align, sign, type, group;
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
};

static const char *number_end(const char *p, const char *end, int64_t *out)
{
    *out = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        *out = MIN(*out * 10 + (*p - '0'), FIELD_MAX + 1);
    return p;
}

/* Put digits in groups of three (or four, for hexadecimal and binary). */
static size_t group_digits(const char *digits, size_t n, char sep, size_t every, char *out)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && (n - i) % every == 0)
            out[m++] = sep;
        out[m++] = digits[i];
    }
    return m;
}

/* Padding around a number: the sign stays in front of zeros. */
static enum err put_padded(
    struct jbuf *b, const struct spec *s, struct str prefix, struct str body, char dflt, bool user)
{
    const size_t n = prefix.n + body.n, missing = s->width > (int64_t)n ? (size_t)s->width - n : 0;
    const char align = s->align ? s->align : dflt;
    const size_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    const bool inside = align == '=';
    for (size_t i = 0; i < left; i++)
        jbuf_add_char(b, s->fill, user);
    jbuf_add(b, prefix, user);
    for (size_t i = 0; inside && i < missing; i++)
        jbuf_add_char(b, s->fill, user);
    jbuf_add(b, body, user);
    for (size_t i = left; !inside && i < missing; i++)
        jbuf_add_char(b, s->fill, user);
    TRY(jstep(b->r, missing));
    return b->failure;
}

static enum err put_int(struct jbuf *b, const struct spec *s, int64_t v, bool user)
{
    char digits[80], grouped[140], prefix[8] = "";
    const uint64_t u = v < 0 ? (uint64_t)0 - (uint64_t)v : (uint64_t)v;
    size_t n = 0;
    const unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    for (uint64_t rest = u; rest > 0 || n == 0; rest /= base)
        digits[sizeof digits - ++n] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
    const char *text = digits + sizeof digits - n;
    if (s->group) {
        n = group_digits(text, n, s->group, base == 10 ? 3 : 4, grouped);
        text = grouped;
    }
    size_t np = 0;
    if (v < 0)
        prefix[np++] = '-';
    else if (s->sign == '+' || s->sign == ' ')
        prefix[np++] = s->sign;
    if (s->alternate && base != 10) {
        prefix[np++] = '0';
        prefix[np++] = s->type;
    }
    return put_padded(b, s, (struct str){prefix, np}, (struct str){text, n}, '>', user);
}

static enum err put_float(struct jbuf *b, const struct spec *s, double v, bool user)
{
    char format[8] = "%", *text = jtake(b->r, 1, 800 + (size_t)MAX(s->precision, 0));
    size_t n, np = 0;
    char prefix[2] = "", type = s->type;
    if (text == NULL)
        return ERR_LIMIT;
    if (signbit(v) && !isnan(v))
        prefix[np++] = '-';
    else if (s->sign == '+' || s->sign == ' ')
        prefix[np++] = s->sign;
    const double a = fabs(v);
    if (type == '\0' && s->precision < 0)
        n = jfloat_show(a, text);
    else {
        const bool bare = type == '\0';
        if (bare)
            type = 'g';
        snprintf(format, sizeof format, "%%%s.*%c", s->alternate ? "#" : "", type == '%' ? 'f' : type);
        n = (size_t)snprintf(text, 800 + (size_t)MAX(s->precision, 0), format,
            (int)(s->precision < 0            ? 6
                  : bare && s->precision == 0 ? 1
                                              : s->precision),
            type == '%' ? a * 100 : a);
        if (bare && isfinite(a) && strpbrk(text, ".e") == NULL)
            n += (size_t)snprintf(text + n, 3, ".0");
    }
    char *grouped = NULL;
    if (s->group) {
        const size_t whole = strspn(text, "0123456789");
        grouped = jtake(b->r, 2, n + 1);
        if (grouped == NULL)
            return ERR_LIMIT;
        const size_t m = group_digits(text, whole, s->group, 3, grouped);
        memcpy(grouped + m, text + whole, n - whole);
        n = m + n - whole;
        text = grouped;
    }
    if (type == '%')
        text[n++] = '%'; /* the room for a NUL takes it */
    return put_padded(b, s, (struct str){prefix, np}, (struct str){text, n}, '>', user);
}

static enum err put_text(struct jbuf *b, const struct spec *s, const struct jstr *t, char dflt, bool user)
{
    TRY(jstep(b->r, t->n / 32));
    size_t n = jstr_chars(t), end = t->n;
    if (s->precision >= 0 && (size_t)s->precision < n) {
        n = (size_t)s->precision;
        end = jstr_offset(t, n);
    }
    const size_t missing = s->width > (int64_t)n ? (size_t)s->width - n : 0;
    const char align = s->align ? s->align : dflt;
    const size_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
    TRY(jstep(b->r, missing));
    for (size_t i = 0; i < left; i++)
        jbuf_add_char(b, s->fill, user);
    jbuf_add_part(b, t, 0, end);
    for (size_t i = left; i < missing; i++)
        jbuf_add_char(b, s->fill, user);
    return b->failure;
}

static enum err put_char(struct jrun *r, struct jbuf *b, const struct spec *s, struct jv v)
{
    char bytes[4];
    struct jstr one = {.p = bytes};
    if (v.type == J_STR && jstr_chars(v.u.s) == 1)
        return put_text(b, s, v.u.s, '>', false);
    if ((v.type != J_INT && v.type != J_BOOL) || jint_of(v) < 0 || jint_of(v) > 0x10ffff ||
        (jint_of(v) >= 0xd800 && jint_of(v) <= 0xdfff))
        return JFAIL(r, ERR_INVALID, "%%c needs one character");
    one.n = jutf8_put((int32_t)jint_of(v), bytes);
    one.taint = v.user ? JT_USER : JT_CLEAN;
    return put_text(b, s, &one, '>', v.user);
}

/* ---- percent ---- */

struct percent {
    const struct jargs *args;
    size_t next;
    bool by_name;
};

static enum err next_arg(struct jrun *r, struct percent *p, struct jv *out)
{
    if (p->next >= p->args->n_pos)
        return JFAIL(r, ERR_INVALID, "not enough arguments for the format");
    *out = p->args->pos[p->next++];
    return OK;
}

static enum err named_arg(struct jrun *r, struct percent *p, struct str name, struct jv *out)
{
    char shown[64];
    p->by_name = true;
    TRY(jstep(r, p->args->n_kw / 4));
    for (size_t i = 0; i < p->args->n_kw; i++) {
        if (str_eq(p->args->kw[i].name, name)) {
            *out = p->args->kw[i].value;
            return OK;
        }
    }
    if (p->args->n_kw == 0 && p->args->n_pos == 1 && p->args->pos[0].type == J_DICT) {
        const struct jv *found = jdict_find_str(p->args->pos[0].u.d, name);
        if (found != NULL) {
            *out = *found;
            return OK;
        }
    }
    return JFAIL(r, ERR_INVALID, "the format names '%s', which is not given", str_show(name, shown, sizeof shown));
}

static enum err star_or_number(struct jrun *r, struct percent *p, const char **at, const char *end, int64_t *out)
{
    struct jv v;
    if (*at < end && **at == '*') {
        (*at)++;
        TRY(next_arg(r, p, &v));
        TRY(jarg_int(r, v, "*", 0, out));
    } else
        *at = number_end(*at, end, out);
    if (*out > FIELD_MAX || *out < -FIELD_MAX)
        return JFAIL(r, ERR_LIMIT, "a field wider than %d", FIELD_MAX);
    return OK;
}

static enum err percent_spec(
    struct jrun *r, struct percent *p, const char **at, const char *end, struct spec *s, struct jv *v)
{
    bool named = false;
    *s = (struct spec){.fill = ' ', .align = '>', .width = 0, .precision = -1};
    if (*at < end && **at == '(') {
        const char *close = memchr(*at, ')', (size_t)(end - *at));
        if (close == NULL)
            return JFAIL(r, ERR_INVALID, "a format key has no ')'");
        TRY(named_arg(r, p, (struct str){*at + 1, (size_t)(close - *at - 1)}, v));
        *at = close + 1;
        named = true;
    }
    for (; *at < end && **at != '\0' && strchr("-+ #0", **at) != NULL; (*at)++) {
        if (**at == '-')
            s->align = '<';
        else if (**at == '#')
            s->alternate = true;
        else if (**at == '0')
            s->zero = true;
        else if (s->sign != '+')
            s->sign = **at;
    }
    TRY(star_or_number(r, p, at, end, &s->width));
    if (s->width < 0) {
        s->align = '<';
        s->width = -s->width;
    }
    if (*at < end && **at == '.') {
        (*at)++;
        TRY(star_or_number(r, p, at, end, &s->precision));
        s->precision = MAX(s->precision, 0);
    }
    while (*at < end && (**at == 'l' || **at == 'h' || **at == 'L'))
        (*at)++;
    if (*at >= end)
        return JFAIL(r, ERR_INVALID, "the format ends inside a field");
    s->type = *(*at)++;
    if (!named && s->type != '%')
        TRY(next_arg(r, p, v));
    return OK;
}

static enum err percent_number(struct jrun *r, struct jbuf *b, struct spec *s, struct jv v)
{
    if (!jis_number(v))
        return v.type == J_UNDEF ? jfail_undef(r, v)
                                 : JFAIL(r, ERR_INVALID, "%%%c needs a number, not %s", s->type, jtype_name(v));
    if (s->zero && s->align != '<') {
        s->align = '=';
        s->fill = '0';
    }
    if (strchr("eEfFgG", s->type) != NULL) {
        return put_float(b, s, jfloat_of(v), v.user);
    }
    int64_t i = v.type == J_FLOAT ? 0 : jint_of(v);
    if (v.type == J_FLOAT) {
        if (s->type != 'd' && s->type != 'i' && s->type != 'u')
            return JFAIL(r, ERR_INVALID, "%%%c needs an integer", s->type);
        if (!(fabs(v.u.f) < 9.2e18))
            return JFAIL(r, ERR_LIMIT, "an integer beyond 64 bits");
        i = (int64_t)v.u.f;
    }
    if (s->precision >= 0)
        return JFAIL(r, ERR_UNSUPPORTED, "a precision in an integer format");
    return put_int(b, s, i, v.user);
}

static bool may_stay_unused(struct jv v)
{
    return v.type == J_DICT || v.type == J_LIST || v.type == J_RANGE || v.type == J_UNDEF;
}

enum err jformat_percent(struct jrun *r, const struct jstr *f, const struct jargs *a, bool single, struct jv *out)
{
    struct percent p = {.args = a};
    struct jbuf b;
    const char *at = f->p, *end = f->p + f->n;
    jbuf_init(&b, r);
    while (at < end) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        if (sign == NULL)
            sign = end;
        jbuf_add_part(&b, f, (size_t)(at - f->p), (size_t)(sign - f->p));
        if (sign == end)
            break;
        struct spec s;
        struct jv v = {.type = J_MISSING}, text;
        const size_t from = (size_t)(sign - f->p);
        at = sign + 1;
        TRY(jstep(r, 1));
        TRY(percent_spec(r, &p, &at, end, &s, &v));
        if (s.type == '%')
            jbuf_add(&b, STR("%"), jstr_is_user(f, from));
        else if (s.type == 's') {
            TRY(jshow(r, v, &text));
            TRY(put_text(&b, &s, text.u.s, '>', jstr_any_user(text.u.s)));
        } else if (s.type == 'r') {
            struct jbuf rep;
            jbuf_init(&rep, r);
            TRY(jrepr_into(r, v, &rep));
            TRY(jbuf_done(&rep, &text));
            TRY(put_text(&b, &s, text.u.s, '>', jstr_any_user(text.u.s)));
        } else if (s.type == 'c')
            TRY(put_char(r, &b, &s, v));
        else if (s.type != '\0' && strchr("diuoxXeEfFgG", s.type) != NULL)
            TRY(percent_number(r, &b, &s, v));
        else
            return JFAIL(r, ERR_INVALID, "an unknown format conversion");
    }
    if (p.next < a->n_pos && !p.by_name && !(single && may_stay_unused(a->pos[0])))
        return JFAIL(r, ERR_INVALID, "more arguments than the format uses");
    return jbuf_done(&b, out);
}

/* ---- braces ---- */

struct braces {
    const struct jargs *args;
    int64_t next; /* -1: fields are numbered by hand */
};

static enum err bad_spec(struct jrun *r)
{
    return JFAIL(r, ERR_INVALID, "an invalid format specification");
}

static enum err parse_spec(struct jrun *r, struct str t, struct spec *s)
{
    const char *p = t.p, *end = t.p + t.n;
    size_t len = 1;
    *s = (struct spec){.fill = ' ', .precision = -1};
    if (t.n > 0) {
        const int32_t c = jchar_at(t, 0, &len);
        if (len < t.n && strchr("<>=^", p[len]) != NULL && p[len] != '\0') {
            s->fill = c;
            s->align = p[len];
            p += len + 1;
        } else if (strchr("<>=^", *p) != NULL && *p != '\0')
            s->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' '))
        s->sign = *p++;
    if (p < end && *p == '#') {
        s->alternate = true;
        p++;
    }
    if (p < end && *p == '0') {
        s->zero = true;
        p++;
        if (s->align == 0) {
            s->align = '=';
            s->fill = '0';
        }
    }
    p = number_end(p, end, &s->width);
    if (p < end && (*p == ',' || *p == '_'))
        s->group = *p++;
    if (p < end && *p == '.') {
        const char *digits = p + 1;
        p = number_end(digits, end, &s->precision);
        if (p == digits)
            return bad_spec(r);
    }
    if (p < end)
        s->type = *p++;
    if (p != end)
        return bad_spec(r);
    if (s->width > FIELD_MAX || s->precision > FIELD_MAX)
        return JFAIL(r, ERR_LIMIT, "a field wider than %d", FIELD_MAX);
    if (s->group && s->zero)
        return JFAIL(r, ERR_UNSUPPORTED, "grouping together with zero padding");
    return OK;
}

static enum err put_value(struct jrun *r, struct jbuf *b, struct jv v, struct str spec)
{
    struct spec s;
    if (spec.n == 0)
        return jshow_into(r, v, b);
    TRY(parse_spec(r, spec, &s));
    if (v.type == J_STR) {
        if ((s.type != '\0' && s.type != 's') || s.sign || s.alternate || s.group || s.align == '=')
            return s.align == '=' && s.zero ? JFAIL(r, ERR_UNSUPPORTED, "zero padding of a string") : bad_spec(r);
        return put_text(b, &s, v.u.s, '<', jstr_any_user(v.u.s));
    }
    if (v.type == J_INT || v.type == J_BOOL) {
        if (s.type == 'c')
            return put_char(r, b, &s, v);
        if ((s.type == '\0' || strchr("dnboxX", s.type) != NULL) && s.precision < 0)
            return put_int(b, &s, jint_of(v), v.user);
    }
    if (jis_number(v) && (v.type == J_FLOAT || s.type != '\0') && (s.type == '\0' || strchr("eEfFgG%", s.type) != NULL))
        return put_float(b, &s, jfloat_of(v), v.user);
    return bad_spec(r);
}

static enum err first_value(struct jrun *r, struct braces *f, struct str name, struct jv *out)
{
    int64_t i = -1;
    char shown[64];
    bool digits = name.n > 0;
    TRY(jstep(r, f->args->n_kw / 4));
    for (size_t k = 0; k < name.n; k++)
        digits &= name.p[k] >= '0' && name.p[k] <= '9';
    if (name.n == 0) {
        if (f->next < 0)
            return JFAIL(r, ERR_INVALID, "a format mixes {} and {0}");
        i = f->next++;
    } else if (digits) {
        if (f->next > 0)
            return JFAIL(r, ERR_INVALID, "a format mixes {} and {0}");
        f->next = -1;
        number_end(name.p, name.p + name.n, &i);
    }
    if (i >= 0) {
        if ((size_t)i >= f->args->n_pos)
            return JFAIL(r, ERR_INVALID, "the format asks for argument %lld, which is not given", (long long)i);
        *out = f->args->pos[i];
        return OK;
    }
    for (size_t k = 0; k < f->args->n_kw; k++) {
        if (str_eq(f->args->kw[k].name, name)) {
            *out = f->args->kw[k].value;
            return OK;
        }
    }
    return JFAIL(r, ERR_INVALID, "the format names '%s', which is not given", str_show(name, shown, sizeof shown));
}

/* name.attr[key]... */
static enum err field_value(struct jrun *r, struct braces *f, struct str name, struct jv *out)
{
    size_t i = 0;
    while (i < name.n && name.p[i] != '.' && name.p[i] != '[')
        i++;
    TRY(first_value(r, f, (struct str){name.p, i}, out));
    while (i < name.n) {
        const bool dot = name.p[i++] == '.';
        size_t end = i;
        while (end < name.n && (dot ? name.p[end] != '.' && name.p[end] != '[' : name.p[end] != ']'))
            end++;
        if (end == i || (!dot && end >= name.n))
            return JFAIL(r, ERR_INVALID, "an empty or open attribute in a format");
        const struct str part = {name.p + i, end - i};
        if (dot)
            TRY(jattr_get(r, *out, part, out));
        else {
            struct jv key;
            int64_t n;
            const char *stop = number_end(part.p, part.p + part.n, &n);
            TRY(jstr_new(r, part, JT_CLEAN, &key));
            TRY(jitem_get(r, *out, stop == part.p + part.n ? jint(n) : key, out));
            end++;
        }
        i = end;
        if (i < name.n && name.p[i] != '.' && name.p[i] != '[')
            return JFAIL(r, ERR_INVALID, "an invalid attribute in a format");
    }
    return OK;
}

static enum err put_field(struct jrun *r, struct braces *f, struct jbuf *b, struct str body)
{
    struct str name = body, spec = {0};
    char conversion = 0;
    struct jv v, text;
    size_t i = 0;
    bool in_key = false;
    while (i < body.n && (in_key || (body.p[i] != '!' && body.p[i] != ':'))) {
        in_key = body.p[i] == '[' || (in_key && body.p[i] != ']');
        i++;
    }
    name.n = i;
    if (i < body.n && body.p[i] == '!') {
        if (i + 1 >= body.n || (i + 2 < body.n && body.p[i + 2] != ':'))
            return bad_spec(r);
        conversion = body.p[i + 1];
        i += 2;
    }
    if (i < body.n)
        spec = (struct str){body.p + i + 1, body.n - i - 1};
    if (memchr(name.p, '{', name.n) != NULL)
        return bad_spec(r);
    TRY(field_value(r, f, name, &v));
    if (conversion == 'r') {
        struct jbuf rep;
        jbuf_init(&rep, r);
        TRY(jrepr_into(r, v, &rep));
        TRY(jbuf_done(&rep, &v));
    } else if (conversion == 's')
        TRY(jshow(r, v, &v));
    else if (conversion != 0)
        return JFAIL(r, ERR_UNSUPPORTED, "the conversion '!%c' in a format", conversion);
    if (spec.n > 0 && memchr(spec.p, '{', spec.n) != NULL) {
        const struct jstr inner = {.p = spec.p, .n = spec.n};
        TRY(jdive(r));
        struct jbuf nested;
        jbuf_init(&nested, r);
        for (size_t k = 0; k < inner.n; k++) {
            if (inner.p[k] != '{') {
                jbuf_add(&nested, (struct str){inner.p + k, 1}, false);
                continue;
            }
            const char *close = memchr(inner.p + k, '}', inner.n - k);
            if (close == NULL)
                return bad_spec(r);
            const struct str field = {inner.p + k + 1, (size_t)(close - inner.p) - k - 1};
            if (memchr(field.p, '{', field.n) != NULL)
                return bad_spec(r);
            TRY(put_field(r, f, &nested, field));
            k += field.n + 1;
        }
        r->depth--;
        TRY(jbuf_done(&nested, &text));
        spec = jstr_str(text.u.s);
    }
    return put_value(r, b, v, spec);
}

enum err jformat_braces(struct jrun *r, const struct jstr *s, const struct jargs *a, struct jv *out)
{
    struct braces f = {.args = a};
    struct jbuf b;
    jbuf_init(&b, r);
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && s->p[end] != '{' && s->p[end] != '}')
            end++;
        jbuf_add_part(&b, s, i, end);
        if (end == s->n)
            break;
        TRY(jstep(r, 1));
        if (end + 1 < s->n && s->p[end + 1] == s->p[end]) {
            jbuf_add_part(&b, s, end, end + 1);
            i = end + 2;
            continue;
        }
        if (s->p[end] == '}')
            return JFAIL(r, ERR_INVALID, "a single '}' in a format");
        size_t close = end + 1;
        for (int depth = 1; close < s->n; close++) {
            depth += s->p[close] == '{' ? 1 : s->p[close] == '}' ? -1 : 0;
            if (depth == 0)
                break;
        }
        if (close >= s->n)
            return JFAIL(r, ERR_INVALID, "a '{' without its '}' in a format");
        TRY(put_field(r, &f, &b, (struct str){s->p + end + 1, close - end - 1}));
        i = close + 1;
    }
    return jbuf_done(&b, out);
}

/* ---- time ---- */

/* datetime.now().strftime(format): the C library's codes, with what Python adds for a time without a zone. */
enum err jformat_time(struct jrun *r, const struct jstr *f, int64_t local_s, struct jv *out)
{
    char format[1200], text[4096];
    size_t n = 0;
    const time_t t = (time_t)local_s;
    struct tm tm;
    if (f->n > 1000)
        return JFAIL(r, ERR_LIMIT, "a time format longer than 1000 bytes");
    if (gmtime_r(&t, &tm) == NULL || memchr(f->p, '\0', f->n) != NULL)
        return JFAIL(r, ERR_INVALID, "a time or a time format that cannot be written");
    for (size_t i = 0; i < f->n; i++) {
        const char next = f->p[i] == '%' && i + 1 < f->n ? f->p[i + 1] : 0;
        if (n + 8 > sizeof format)
            return JFAIL(r, ERR_LIMIT, "a time format longer than 1000 bytes");
        if (next == 'f') {
            memcpy(format + n, "000000", 6);
            n += 6;
        } else if (next != 'z' && next != 'Z') {
            format[n++] = f->p[i];
            if (next == 0)
                continue;
            format[n++] = next;
        }
        i++;
    }
    format[n++] = '.'; /* so that an empty result is not taken for a failure */
    format[n] = '\0';
    n = strftime(text, sizeof text, format, &tm);
    if (n == 0)
        return JFAIL(r, ERR_LIMIT, "a time longer than %zu bytes", sizeof text);
    struct jbuf b;
    jbuf_init(&b, r);
    jbuf_add(&b, (struct str){text, n - 1}, jstr_any_user(f));
    if (!utf8_is_valid((struct str){text, n - 1}))
        return JFAIL(r, ERR_INVALID, "a time format that makes invalid UTF-8");
    return jbuf_done(&b, out);
}
