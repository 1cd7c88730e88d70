/* Tests: what may stand after `is`, and in select("odd"). */
#include "text/jinja_int.h"

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

/* A test that only looks at the type of its value. */
#define TYPE_TEST(name, condition)                                                                                     \
    static enum err name(ARGS)                                                                                         \
    {                                                                                                                  \
        (void)r;                                                                                                       \
        (void)self;                                                                                                    \
        (void)raw;                                                                                                     \
        (void)arg;                                                                                                     \
        *out = jbool(condition);                                                                                       \
        return OK;                                                                                                     \
    }
TYPE_TEST(t_defined, self.type != J_UNDEF)
TYPE_TEST(t_undefined, self.type == J_UNDEF)
TYPE_TEST(t_none, self.type == J_NONE)
TYPE_TEST(t_boolean, self.type == J_BOOL)
TYPE_TEST(t_true, self.type == J_BOOL && self.u.b)
TYPE_TEST(t_false, self.type == J_BOOL && !self.u.b)
TYPE_TEST(t_integer, self.type == J_INT)
TYPE_TEST(t_float, self.type == J_FLOAT)
TYPE_TEST(t_number, jis_number(self))
TYPE_TEST(t_string, self.type == J_STR)
TYPE_TEST(t_mapping, self.type == J_DICT)
TYPE_TEST(t_iterable, jis_iterable(self))
TYPE_TEST(t_escaped, false)
TYPE_TEST(t_sequence, jhas_length(self) && self.type != J_VIEW && self.type != J_LOOP)
TYPE_TEST(t_callable, self.type == J_MACRO || self.type == J_FUNC || self.type == J_METHOD || self.type == J_LOOP ||
                          self.type == J_JOINER || self.type == J_UNDEF)

/* 'upper' is filter, 'odd' is test */
static enum err is_named(struct jrun *r, struct jv name, const struct jbuiltin *(*find)(struct str), struct jv *out)
{
    if (name.type == J_LIST || name.type == J_DICT)
        return JFAIL(r, ERR_INVALID, "a %s is no name", jtype_name(name));
    *out = jbool(name.type == J_STR && find(jstr_str(name.u.s)) != NULL);
    return OK;
}

static enum err t_filter(ARGS)
{
    (void)raw;
    (void)arg;
    return is_named(r, self, jfilter_find, out);
}

static enum err t_test(ARGS)
{
    (void)raw;
    (void)arg;
    return is_named(r, self, jtest_find, out);
}

static enum err compare_with(struct jrun *r, struct jv a, struct jv b, enum jcmp op, struct jv *out)
{
    bool yes;
    if (op == JCMP_EQ || op == JCMP_NE) {
        TRY(jequal(r, a, b, &yes));
        yes ^= op == JCMP_NE;
    } else
        TRY(jorder(r, a, b, op, &yes));
    *out = jbool(yes);
    return OK;
}

#define ORDER_TEST(name, op)                                                                                           \
    static enum err name(ARGS)                                                                                         \
    {                                                                                                                  \
        (void)raw;                                                                                                     \
        return compare_with(r, self, arg[0], op, out);                                                                 \
    }
ORDER_TEST(t_eq, JCMP_EQ)
ORDER_TEST(t_ne, JCMP_NE)
ORDER_TEST(t_lt, JCMP_LT)
ORDER_TEST(t_le, JCMP_LE)
ORDER_TEST(t_gt, JCMP_GT)
ORDER_TEST(t_ge, JCMP_GE)

static enum err t_in(ARGS)
{
    (void)raw;
    bool yes;
    TRY(jcontains(r, arg[0], self, &yes));
    *out = jbool(yes);
    return OK;
}

static enum err rest_is(struct jrun *r, struct jv v, struct jv by, int64_t rest, struct jv *out)
{
    struct jv left;
    TRY(jbinary(r, JOP_MOD, v, by, &left));
    return compare_with(r, left, jint(rest), JCMP_EQ, out);
}

static enum err t_odd(ARGS)
{
    (void)raw;
    (void)arg;
    return rest_is(r, self, jint(2), 1, out);
}

static enum err t_even(ARGS)
{
    (void)raw;
    (void)arg;
    return rest_is(r, self, jint(2), 0, out);
}

static enum err t_divisibleby(ARGS)
{
    (void)raw;
    return rest_is(r, self, arg[0], 0, out);
}

/* The same object. Numbers and strings have no identity here: equal ones of one type are the same. */
static enum err t_sameas(ARGS)
{
    (void)raw;
    const struct jv a = self, b = arg[0];
    if (a.type == b.type && (a.type < J_LIST))
        return compare_with(r, a, b, JCMP_EQ, out);
    *out = jbool(a.type == b.type && a.u.l == b.u.l);
    return OK;
}

static enum err text_case(struct jrun *r, struct jv v, enum jchar_class k, struct jv *out)
{
    struct jv s;
    TRY(jshow(r, v, &s));
    TRY(jstep(r, s.u.s->n / 16));
    *out = jbool(jstr_is_case(s.u.s, k));
    return OK;
}

static enum err t_lower(ARGS)
{
    (void)raw;
    (void)arg;
    return text_case(r, self, JCHAR_LOWER, out);
}

static enum err t_upper(ARGS)
{
    (void)raw;
    (void)arg;
    return text_case(r, self, JCHAR_UPPER, out);
}

static const struct jbuiltin tests[] = {{"defined", t_defined, "", 0}, {"undefined", t_undefined, "", 0},
    {"none", t_none, "", 0}, {"boolean", t_boolean, "", 0}, {"true", t_true, "", 0}, {"false", t_false, "", 0},
    {"integer", t_integer, "", 0}, {"float", t_float, "", 0}, {"number", t_number, "", 0}, {"string", t_string, "", 0},
    {"mapping", t_mapping, "", 0}, {"iterable", t_iterable, "", 0}, {"sequence", t_sequence, "", 0},
    {"callable", t_callable, "", 0}, {"escaped", t_escaped, "", 0}, {"filter", t_filter, "", 0},
    {"test", t_test, "", 0}, {"odd", t_odd, "", 0}, {"even", t_even, "", 0}, {"divisibleby", t_divisibleby, "num", 1},
    {"sameas", t_sameas, "other", 1}, {"lower", t_lower, "", 0}, {"upper", t_upper, "", 0}, {"in", t_in, "seq", 1},
    {"==", t_eq, "/b", 1}, {"eq", t_eq, "/b", 1}, {"equalto", t_eq, "/b", 1}, {"!=", t_ne, "/b", 1},
    {"ne", t_ne, "/b", 1}, {"<", t_lt, "/b", 1}, {"lt", t_lt, "/b", 1}, {"lessthan", t_lt, "/b", 1},
    {"<=", t_le, "/b", 1}, {"le", t_le, "/b", 1}, {">", t_gt, "/b", 1}, {"gt", t_gt, "/b", 1},
    {"greaterthan", t_gt, "/b", 1}, {">=", t_ge, "/b", 1}, {"ge", t_ge, "/b", 1}};

const struct jbuiltin *jtest_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        if (str_is(name, tests[i].name))
            return &tests[i];
    return NULL;
}

enum err jtest_named(struct jrun *r, struct jv name, struct jv v, const struct jargs *a, bool *out)
{
    char shown[64];
    struct jv yes;
    const struct jbuiltin *b = name.type == J_STR ? jtest_find(jstr_str(name.u.s)) : NULL;
    if (b == NULL)
        return JFAIL(r, ERR_UNSUPPORTED, "no test named '%s'",
            name.type == J_STR ? str_show(jstr_str(name.u.s), shown, sizeof shown) : jtype_name(name));
    TRY(jcall_builtin(r, b, v, a, &yes));
    *out = yes.u.b;
    return OK;
}
