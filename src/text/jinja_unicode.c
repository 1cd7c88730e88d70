/* What Python knows about characters and templates ask for: white space, letters, digits, case. utf8proc has the
 * tables; the cases where Python's full mapping gives several characters for one come from jinja_case.h. */
#include "text/jinja_int.h"

#include <string.h>
#include <utf8proc.h>

#include "text/jinja_case.h"

int32_t jchar_at(struct str s, size_t at, size_t *len)
{
    const unsigned char *p = (const unsigned char *)s.p + at;
    if (p[0] < 0x80) {
        *len = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *len = 2;
        return (p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    }
    if (p[0] < 0xf0) {
        *len = 3;
        return (p[0] & 0x0f) << 12 | (p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    }
    *len = 4;
    return (p[0] & 0x07) << 18 | (p[1] & 0x3f) << 12 | (p[2] & 0x3f) << 6 | (p[3] & 0x3f);
}

size_t jutf8_put(int32_t c, char out[4])
{
    const uint32_t u = (uint32_t)c;
    if (u < 0x80) {
        out[0] = (char)u;
        return 1;
    }
    if (u < 0x800) {
        out[0] = (char)(0xc0 | u >> 6);
        out[1] = (char)(0x80 | (u & 0x3f));
        return 2;
    }
    if (u < 0x10000) {
        out[0] = (char)(0xe0 | u >> 12);
        out[1] = (char)(0x80 | (u >> 6 & 0x3f));
        out[2] = (char)(0x80 | (u & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | u >> 18);
    out[1] = (char)(0x80 | (u >> 12 & 0x3f));
    out[2] = (char)(0x80 | (u >> 6 & 0x3f));
    out[3] = (char)(0x80 | (u & 0x3f));
    return 4;
}

bool jchar_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool jchar_is_line_end(int32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool jchar_is_word(int32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return false;
    }
}

bool jchar_is_printable(int32_t c)
{
    if (c < 0x7f)
        return c >= 0x20;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool jchar_is(int32_t c, enum jchar_class k)
{
    const utf8proc_category_t g = utf8proc_category(c);
    switch (k) {
    case JCHAR_ALPHA:
        return g == UTF8PROC_CATEGORY_LU || g == UTF8PROC_CATEGORY_LL || g == UTF8PROC_CATEGORY_LT ||
               g == UTF8PROC_CATEGORY_LM || g == UTF8PROC_CATEGORY_LO;
    case JCHAR_DECIMAL: return g == UTF8PROC_CATEGORY_ND;
    case JCHAR_DIGIT:
        return g == UTF8PROC_CATEGORY_ND || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
               (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468);
    case JCHAR_NUMERIC: return g == UTF8PROC_CATEGORY_ND || g == UTF8PROC_CATEGORY_NL || g == UTF8PROC_CATEGORY_NO;
    case JCHAR_UPPER: return g == UTF8PROC_CATEGORY_LU;
    case JCHAR_LOWER: return g == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
    case JCHAR_CASED:
        return g == UTF8PROC_CATEGORY_LU || g == UTF8PROC_CATEGORY_LL || g == UTF8PROC_CATEGORY_LT || c == 0xaa ||
               c == 0xba;
    }
    return false;
}

size_t jchar_case(int32_t c, enum jcase k, int32_t out[3])
{
    if (c < 0x80) {
        const bool up = c >= 'A' && c <= 'Z', low = c >= 'a' && c <= 'z';
        out[0] = up && (k == JCASE_LOWER || k == JCASE_FOLD)     ? c + 32
                 : low && (k == JCASE_UPPER || k == JCASE_TITLE) ? c - 32
                                                                 : c;
        return 1;
    }
    size_t low = 0, high = COUNT_OF(jcase_special);
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (jcase_special[mid].from < c)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < COUNT_OF(jcase_special) && jcase_special[low].from == c; low++) {
        const struct jcase_row *row = &jcase_special[low];
        if (row->kind != (uint8_t)k)
            continue;
        size_t n = 0;
        while (n < 3 && row->to[n] != 0) {
            out[n] = row->to[n];
            n++;
        }
        return n;
    }
    out[0] = k == JCASE_UPPER ? utf8proc_toupper(c) : k == JCASE_TITLE ? utf8proc_totitle(c) : utf8proc_tolower(c);
    return 1;
}

/* Greek: a capital sigma at the end of a word becomes a final one. */
bool jsigma_is_final(struct str s, size_t at)
{
    bool before = false;
    for (size_t i = at; i > 0 && !before;) {
        size_t len;
        do
            i--;
        while (i > 0 && ((unsigned char)s.p[i] & 0xc0) == 0x80);
        const int32_t c = jchar_at(s, i, &len);
        if (jchar_is(c, JCHAR_CASED))
            before = true;
        else if (c != '\'' && c != 0xad && c != '.' && c != ':' && utf8proc_category(c) != UTF8PROC_CATEGORY_MN)
            break;
    }
    size_t len;
    for (size_t i = at + 2; before && i < s.n; i += len) {
        const int32_t c = jchar_at(s, i, &len);
        if (jchar_is(c, JCHAR_CASED))
            return false;
        if (c != '\'' && c != 0xad && c != '.' && c != ':' && utf8proc_category(c) != UTF8PROC_CATEGORY_MN)
            break;
    }
    return before;
}

enum err jstr_case(struct jrun *r, const struct jstr *s, enum jcase k, struct jv *out)
{
    struct jbuf b;
    const struct str text = jstr_str(s);
    TRY(jstep(r, s->n / 4));
    jbuf_init(&b, r);
    size_t len;
    for (size_t i = 0; i < s->n; i += len) {
        int32_t to[3];
        const int32_t c = jchar_at(text, i, &len);
        const bool user = jstr_is_user(s, i);
        if (c == 0x3a3 && k == JCASE_LOWER) {
            jbuf_add_char(&b, jsigma_is_final(text, i) ? 0x3c2 : 0x3c3, user);
            continue;
        }
        const size_t n = jchar_case(c, k, to);
        for (size_t j = 0; j < n; j++)
            jbuf_add_char(&b, to[j], user);
    }
    return jbuf_done(&b, out);
}
