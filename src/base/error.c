/* Errors and byte strings; see base.h. */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *phrase;
} err_words[] = {
    [OK] = {"OK", "ok"},
    [ERR_INVALID] = {"INVALID", "invalid input"},
    [ERR_FORMAT] = {"FORMAT", "malformed data"},
    [ERR_UNSUPPORTED] = {"UNSUPPORTED", "not supported"},
    [ERR_LIMIT] = {"LIMIT", "over a limit"},
    [ERR_NOT_FOUND] = {"NOT_FOUND", "not found"},
    [ERR_EXISTS] = {"EXISTS", "already exists"},
    [ERR_DENIED] = {"DENIED", "permission denied"},
    [ERR_IO] = {"IO", "input/output error"},
    [ERR_NETWORK] = {"NETWORK", "network error"},
    [ERR_HASH] = {"HASH", "checksum mismatch"},
    [ERR_NOMEM] = {"NOMEM", "out of memory"},
    [ERR_AGAIN] = {"AGAIN", "not now"},
    [ERR_CANCELLED] = {"CANCELLED", "cancelled"},
    [ERR_INTERNAL] = {"INTERNAL", "internal error"},
};
_Static_assert(COUNT_OF(err_words) == ERR_COUNT, "every error has words");

/* Make a formatted text fit to be shown: one line of valid UTF-8. Names of files and keys come from outside, and
 * vsnprintf may have cut a character in half at the end. */
static void make_showable(char text[ERROR_TEXT_MAX])
{
    size_t n = strlen(text);
    if (n == ERROR_TEXT_MAX - 1) {
        size_t start = n; /* of the last character */
        while (start > 0 && n - start < 4 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
            start--;
        if (start > 0 && (unsigned char)text[start - 1] >= 0xc0 &&
            utf8_len((struct str){text + start - 1, n - start + 1}) == 0)
            n = start - 1;
    }
    char raw[ERROR_TEXT_MAX];
    memcpy(raw, text, sizeof raw);
    str_show((struct str){raw, n}, text, ERROR_TEXT_MAX);
}

enum err error_set_at(struct error *e, enum err code, const char *file, int line, const char *fmt, ...)
{
    assert(code != OK && code < ERR_COUNT);
    if (e == NULL || e->code != OK)
        return code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);
    make_showable(e->text);
    e->code = code;
    e->file = file;
    e->line = line;
    return code;
}

enum err error_prefix(struct error *e, const char *fmt, ...)
{
    if (e == NULL || e->code == OK)
        return e == NULL ? ERR_INTERNAL : OK;
    char old[ERROR_TEXT_MAX];
    memcpy(old, e->text, sizeof old);
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(e->text, sizeof e->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof e->text - 2) {
        char *at = e->text + n;
        const size_t keep = MIN(strlen(old), sizeof e->text - (size_t)n - 3); /* what fits beside ": " and the NUL */
        at[0] = ':';
        at[1] = ' ';
        memcpy(at + 2, old, keep);
        at[2 + keep] = '\0';
    }
    make_showable(e->text);
    return e->code;
}

const char *err_phrase(enum err code)
{
    return code < ERR_COUNT ? err_words[code].phrase : "unknown error";
}

const char *err_name(enum err code)
{
    return code < ERR_COUNT ? err_words[code].name : "UNKNOWN";
}

struct str str_of(const char *cstr)
{
    return (struct str){cstr, cstr ? strlen(cstr) : 0};
}

bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool str_is(struct str a, const char *cstr)
{
    return str_eq(a, str_of(cstr));
}

bool str_has_prefix(struct str a, struct str prefix)
{
    return a.n >= prefix.n && str_eq((struct str){a.p, prefix.n}, prefix);
}

bool str_has_suffix(struct str a, struct str suffix)
{
    return suffix.n == 0 || (a.n >= suffix.n && str_eq((struct str){a.p + (a.n - suffix.n), suffix.n}, suffix));
}

const char *str_show(struct str s, char *out, size_t cap)
{
    assert(cap > 0);
    size_t at = 0, i = 0;
    while (i < s.n) {
        const size_t len = utf8_len((struct str){s.p + i, s.n - i});
        const unsigned char c = (unsigned char)s.p[i];
        /* Invalid, or a control character: C0, DEL, and C1 (U+0080..9F), which terminals obey too. */
        if (len == 0 || c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s.p[i + 1] < 0xa0)) {
            if (at + 5 > cap)
                break;
            snprintf(out + at, 5, "\\x%02x", c);
            at += 4;
            i += 1;
        } else {
            if (at + len + 1 > cap)
                break;
            memcpy(out + at, s.p + i, len);
            at += len;
            i += len;
        }
    }
    out[at] = '\0';
    return out;
}

size_t utf8_len(struct str s)
{
    if (s.n == 0)
        return 0;
    const unsigned char *p = (const unsigned char *)s.p;
    if (p[0] < 0x80)
        return 1;
    /* Lead byte gives the length; the second byte's range excludes overlongs, surrogates and > U+10FFFF. */
    unsigned char lo = 0x80, hi = 0xbf;
    size_t len;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        len = 2;
    else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        len = 3;
        lo = p[0] == 0xe0 ? 0xa0 : 0x80;
        hi = p[0] == 0xed ? 0x9f : 0xbf;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        len = 4;
        lo = p[0] == 0xf0 ? 0x90 : 0x80;
        hi = p[0] == 0xf4 ? 0x8f : 0xbf;
    } else
        return 0;
    if (s.n < len || p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

bool utf8_is_valid(struct str s)
{
    while (s.n > 0) {
        const size_t len = (unsigned char)s.p[0] < 0x80 ? 1 : utf8_len(s);
        if (len == 0)
            return false;
        s = (struct str){s.p + len, s.n - len};
    }
    return true;
}
