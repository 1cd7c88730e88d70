/* String methods about letters: upper, title, isdigit and the like. */
#include "text/jinja_int.h"

#include <string.h>

#define ARGS struct jrun *r, struct jv self, const struct jargs *raw, const struct jv *arg, struct jv *out

static enum err str_upper(ARGS)
{
    (void)raw;
    (void)arg;
    return jstr_case(r, self.u.s, JCASE_UPPER, out);
}

static enum err str_lower(ARGS)
{
    (void)raw;
    (void)arg;
    return jstr_case(r, self.u.s, JCASE_LOWER, out);
}

static enum err str_casefold(ARGS)
{
    (void)raw;
    (void)arg;
    return jstr_case(r, self.u.s, JCASE_FOLD, out);
}

/* capitalize, title and swapcase decide letter by letter. */
enum letter_rule { RULE_CAPITALIZE, RULE_TITLE, RULE_SWAP };

static enum err by_letter(struct jrun *r, const struct jstr *s, enum letter_rule rule, struct jv *out)
{
    struct jbuf b;
    bool in_word = false;
    size_t len;
    jbuf_init(&b, r);
    TRY(jstep(r, s->n / 8));
    for (size_t i = 0; i < s->n; i += len) {
        int32_t to[3];
        const int32_t c = jchar_at(jstr_str(s), i, &len);
        enum jcase k = JCASE_LOWER;
        if (rule == RULE_SWAP)
            k = jchar_is(c, JCHAR_UPPER) ? JCASE_LOWER : JCASE_UPPER;
        else if (rule == RULE_CAPITALIZE ? i == 0 : !in_word)
            k = JCASE_TITLE;
        const bool swaps = rule != RULE_SWAP || jchar_is(c, JCHAR_CASED);
        size_t n = 1;
        to[0] = c;
        if (c == 0x3a3 && k == JCASE_LOWER)
            to[0] = jsigma_is_final(jstr_str(s), i) ? 0x3c2 : 0x3c3;
        else if (swaps)
            n = jchar_case(c, k, to);
        for (size_t j = 0; j < n; j++)
            jbuf_add_char(&b, to[j], jstr_is_user(s, i));
        in_word = jchar_is(c, JCHAR_CASED);
    }
    return jbuf_done(&b, out);
}

enum err jstr_capitalize(struct jrun *r, const struct jstr *s, struct jv *out)
{
    return by_letter(r, s, RULE_CAPITALIZE, out);
}

static enum err str_capitalize(ARGS)
{
    (void)raw;
    (void)arg;
    return by_letter(r, self.u.s, RULE_CAPITALIZE, out);
}

static enum err str_title(ARGS)
{
    (void)raw;
    (void)arg;
    return by_letter(r, self.u.s, RULE_TITLE, out);
}

static enum err str_swapcase(ARGS)
{
    (void)raw;
    (void)arg;
    return by_letter(r, self.u.s, RULE_SWAP, out);
}

/* All characters are of a class, and there is one. */
static enum err all_are(struct jrun *r, const struct jstr *s, bool (*is)(int32_t), struct jv *out)
{
    bool yes = s->n > 0;
    size_t len;
    TRY(jstep(r, s->n / 16));
    for (size_t i = 0; yes && i < s->n; i += len)
        yes = is(jchar_at(jstr_str(s), i, &len));
    *out = jbool(yes);
    return OK;
}

static bool is_alpha(int32_t c)
{
    return jchar_is(c, JCHAR_ALPHA);
}
static bool is_decimal(int32_t c)
{
    return jchar_is(c, JCHAR_DECIMAL);
}
static bool is_digit(int32_t c)
{
    return jchar_is(c, JCHAR_DIGIT);
}
static bool is_numeric(int32_t c)
{
    return jchar_is(c, JCHAR_NUMERIC);
}
static bool is_alnum(int32_t c)
{
    return is_alpha(c) || is_digit(c) || is_numeric(c);
}

#define CLASS_METHOD(name, test)                                                                                       \
    static enum err name(ARGS)                                                                                         \
    {                                                                                                                  \
        (void)raw;                                                                                                     \
        (void)arg;                                                                                                     \
        return all_are(r, self.u.s, test, out);                                                                        \
    }
CLASS_METHOD(str_isalpha, is_alpha)
CLASS_METHOD(str_isdecimal, is_decimal)
CLASS_METHOD(str_isdigit, is_digit)
CLASS_METHOD(str_isnumeric, is_numeric)
CLASS_METHOD(str_isalnum, is_alnum)
CLASS_METHOD(str_isspace, jchar_is_space)

static enum err str_isprintable(ARGS)
{
    (void)raw;
    (void)arg;
    if (self.u.s->n == 0) {
        *out = jbool(true);
        return OK;
    }
    return all_are(r, self.u.s, jchar_is_printable, out);
}

static enum err str_isascii(ARGS)
{
    (void)raw;
    (void)arg;
    bool yes = true;
    TRY(jstep(r, self.u.s->n / 16));
    for (size_t i = 0; yes && i < self.u.s->n; i++)
        yes = (unsigned char)self.u.s->p[i] < 0x80;
    *out = jbool(yes);
    return OK;
}

bool jstr_is_case(const struct jstr *s, enum jchar_class wanted)
{
    bool any = false;
    size_t len;
    for (size_t i = 0; i < s->n; i += len) {
        const int32_t c = jchar_at(jstr_str(s), i, &len);
        if (!jchar_is(c, JCHAR_CASED))
            continue;
        if (!jchar_is(c, wanted))
            return false;
        any = true;
    }
    return any;
}

static enum err str_isupper(ARGS)
{
    (void)raw;
    (void)arg;
    TRY(jstep(r, self.u.s->n / 16));
    *out = jbool(jstr_is_case(self.u.s, JCHAR_UPPER));
    return OK;
}

static enum err str_islower(ARGS)
{
    (void)raw;
    (void)arg;
    TRY(jstep(r, self.u.s->n / 16));
    *out = jbool(jstr_is_case(self.u.s, JCHAR_LOWER));
    return OK;
}

static enum err str_istitle(ARGS)
{
    (void)raw;
    (void)arg;
    bool any = false, ok = true, in_word = false;
    size_t len;
    TRY(jstep(r, self.u.s->n / 16));
    for (size_t i = 0; ok && i < self.u.s->n; i += len) {
        const int32_t c = jchar_at(jstr_str(self.u.s), i, &len);
        const bool cased = jchar_is(c, JCHAR_CASED);
        if (cased)
            ok = jchar_is(c, JCHAR_LOWER) == in_word;
        any |= cased;
        in_word = cased;
    }
    *out = jbool(any && ok);
    return OK;
}

static const struct jbuiltin methods[] = {{"upper", str_upper, "/", 0}, {"lower", str_lower, "/", 0},
    {"casefold", str_casefold, "/", 0}, {"capitalize", str_capitalize, "/", 0}, {"title", str_title, "/", 0},
    {"swapcase", str_swapcase, "/", 0}, {"isalpha", str_isalpha, "/", 0}, {"isdecimal", str_isdecimal, "/", 0},
    {"isdigit", str_isdigit, "/", 0}, {"isnumeric", str_isnumeric, "/", 0}, {"isalnum", str_isalnum, "/", 0},
    {"isspace", str_isspace, "/", 0}, {"isprintable", str_isprintable, "/", 0}, {"isascii", str_isascii, "/", 0},
    {"isupper", str_isupper, "/", 0}, {"islower", str_islower, "/", 0}, {"istitle", str_istitle, "/", 0}};

const struct jbuiltin *jmethod_case_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (str_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}
