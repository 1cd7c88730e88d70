/* Arithmetic with Python's meaning: / is real division, // and % round towards minus infinity, + joins strings and
 * lists,
 * * repeats them, % formats. Integers are 64 bits; where Python would grow, quern answers an error. */
#include "text/jinja_int.h"

#include <math.h>

static enum err too_big(struct jrun *r)
{
    return JFAIL(r, ERR_LIMIT, "an integer beyond 64 bits");
}

static enum err int_pow(struct jrun *r, int64_t base, int64_t exponent, struct jv *out)
{
    if (exponent < 0) {
        if (base == 0)
            return JFAIL(r, ERR_INVALID, "zero to a negative power");
        *out = jfloat(pow((double)base, (double)exponent));
        return OK;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = jint(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return OK;
    }
    int64_t v = 1;
    if (exponent > 63)
        return too_big(r);
    for (int64_t i = 0; i < exponent; i++)
        if (__builtin_mul_overflow(v, base, &v))
            return too_big(r);
    *out = jint(v);
    return OK;
}

static enum err int_op(struct jrun *r, enum jop op, int64_t a, int64_t b, struct jv *out)
{
    int64_t v = 0;
    switch (op) {
    case JOP_ADD:
        if (__builtin_add_overflow(a, b, &v))
            return too_big(r);
        break;
    case JOP_SUB:
        if (__builtin_sub_overflow(a, b, &v))
            return too_big(r);
        break;
    case JOP_MUL:
        if (__builtin_mul_overflow(a, b, &v))
            return too_big(r);
        break;
    case JOP_POW: return int_pow(r, a, b, out);
    case JOP_DIV:
        if (b == 0)
            return JFAIL(r, ERR_INVALID, "division by zero");
        *out = jfloat((double)((long double)a / (long double)b));
        return OK;
    case JOP_FLOORDIV:
    case JOP_MOD:
        if (b == 0)
            return JFAIL(r, ERR_INVALID, "division by zero");
        if (b == -1) { /* INT64_MIN / -1 does not fit */
            if (op == JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v))
                return too_big(r);
            break;
        }
        v = op == JOP_MOD ? a % b : a / b;
        if (a % b != 0 && (a % b < 0) != (b < 0))
            v += op == JOP_MOD ? b : -1;
        break;
    }
    *out = jint(v);
    return OK;
}

static double float_mod(double a, double b)
{
    const double m = fmod(a, b);
    if (m == 0)
        return copysign(0.0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static double float_floordiv(double a, double b)
{
    double m = fmod(a, b), div = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0))
        div -= 1.0;
    if (div == 0)
        return copysign(0.0, a / b);
    const double floored = floor(div);
    return div - floored > 0.5 ? floored + 1.0 : floored;
}

static enum err float_op(struct jrun *r, enum jop op, double a, double b, struct jv *out)
{
    double v = 0;
    if (b == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        return JFAIL(r, ERR_INVALID, "division by zero");
    switch (op) {
    case JOP_ADD: v = a + b; break;
    case JOP_SUB: v = a - b; break;
    case JOP_MUL: v = a * b; break;
    case JOP_DIV: v = a / b; break;
    case JOP_MOD: v = float_mod(a, b); break;
    case JOP_FLOORDIV: v = float_floordiv(a, b); break;
    case JOP_POW:
        if (a == 0 && b < 0)
            return JFAIL(r, ERR_INVALID, "zero to a negative power");
        v = pow(a, b);
        if (isnan(v) && !isnan(a) && !isnan(b))
            return JFAIL(r, ERR_UNSUPPORTED, "a power that is a complex number");
        if (isinf(v) && !isinf(a) && !isinf(b))
            return JFAIL(r, ERR_INVALID, "a power beyond the range of a float");
        break;
    }
    *out = jfloat(v);
    return OK;
}

static enum err repeat(struct jrun *r, struct jv v, int64_t times, struct jv *out)
{
    const size_t n = v.type == J_STR ? v.u.s->n : v.u.l->n;
    if (times < 0 || n == 0)
        times = 0;
    const uint64_t max = v.type == J_STR ? CHAT_STRING_BYTES_MAX : CHAT_ITEMS_MAX;
    if (n > 0 && (uint64_t)times > max / n)
        return JFAIL(r, ERR_LIMIT, "a repetition longer than %llu", (unsigned long long)max);
    const bool padding = v.type == J_STR && n == 1;
    TRY(jstep(r, (uint64_t)times / (padding ? 64 : 1)));
    if (v.type == J_STR) {
        struct jbuf b;
        jbuf_init(&b, r);
        if (padding) {
            jbuf_pad(&b, v.u.s->p[0], (size_t)times, jstr_any_user(v.u.s));
            return jbuf_done(&b, out);
        }
        for (int64_t i = 0; i < times; i++)
            jbuf_add_str(&b, v.u.s);
        return jbuf_done(&b, out);
    }
    struct jv *items;
    const size_t total = n * (size_t)times;
    TRY(v.type == J_LIST ? jlist_new(r, total, &items, out) : jtuple_new(r, total, &items, out));
    for (size_t i = 0; i < total; i++)
        items[i] = v.u.l->items[i % n];
    return OK;
}

static enum err join_lists(struct jrun *r, struct jv a, struct jv b, struct jv *out)
{
    struct jv *items;
    const size_t n = a.u.l->n + b.u.l->n;
    TRY(a.type == J_LIST ? jlist_new(r, n, &items, out) : jtuple_new(r, n, &items, out));
    for (size_t i = 0; i < n; i++)
        items[i] = i < a.u.l->n ? a.u.l->items[i] : b.u.l->items[i - a.u.l->n];
    return OK;
}

static bool repeats(struct jv v)
{
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE;
}

static bool is_int(struct jv v)
{
    return v.type == J_INT || v.type == J_BOOL;
}

enum err jbinary(struct jrun *r, enum jop op, struct jv a, struct jv b, struct jv *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (a.type == J_UNDEF && !(op == JOP_MOD && a.type == J_STR))
        return jfail_undef(r, a);
    if (op == JOP_MOD && a.type == J_STR) {
        struct jargs args = {.pos = &b, .n_pos = 1};
        if (b.type == J_TUPLE)
            args = (struct jargs){.pos = b.u.l->items, .n_pos = b.u.l->n};
        return jformat_percent(r, a.u.s, &args, b.type != J_TUPLE, out);
    }
    if (b.type == J_UNDEF)
        return jfail_undef(r, b);
    if (jis_number(a) && jis_number(b)) {
        TRY(is_int(a) && is_int(b) ? int_op(r, op, jint_of(a), jint_of(b), out)
                                   : float_op(r, op, jfloat_of(a), jfloat_of(b), out));
        out->user = a.user || b.user;
        return OK;
    }
    if (op == JOP_ADD && a.type == J_STR && b.type == J_STR)
        return jstr_concat(r, a.u.s, b.u.s, out);
    if (op == JOP_ADD && a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE))
        return join_lists(r, a, b, out);
    if (op == JOP_MUL && repeats(a) && is_int(b))
        return repeat(r, a, jint_of(b), out);
    if (op == JOP_MUL && repeats(b) && is_int(a))
        return repeat(r, b, jint_of(a), out);
    return JFAIL(r, ERR_INVALID, "cannot apply '%s' to %s and %s", signs[op], jtype_name(a), jtype_name(b));
}

enum err jnegate(struct jrun *r, struct jv v, bool minus, struct jv *out)
{
    if (v.type == J_UNDEF)
        return jfail_undef(r, v);
    if (v.type == J_FLOAT)
        *out = jfloat(minus ? -v.u.f : v.u.f);
    else if (is_int(v)) {
        int64_t i = jint_of(v);
        if (minus && __builtin_sub_overflow((int64_t)0, i, &i))
            return too_big(r);
        *out = jint(i);
    } else
        return JFAIL(r, ERR_INVALID, "cannot negate a %s", jtype_name(v));
    out->user = v.user;
    return OK;
}
