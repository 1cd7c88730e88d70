/* The text being edited; see edit_int.h. */
#include "cli/edit_int.h"

#include "base/limits.h"

#include <string.h>
#include <utf8proc.h>

void edit_text_init(struct edit_text *t)
{
    *t = (struct edit_text){.at = 0};
    buf_init(&t->b, EDIT_LINE_BYTES_MAX);
    buf_init(&t->killed, EDIT_LINE_BYTES_MAX);
}

void edit_text_fini(struct edit_text *t)
{
    buf_fini(&t->b);
    buf_fini(&t->killed);
}

void edit_text_set(struct edit_text *t, struct str s)
{
    buf_clear(&t->b);
    t->at = 0;
    edit_text_insert(t, s);
}

/* ---- characters ---- */

static int code_point(struct str s, size_t at)
{
    utf8proc_int32_t c = -1;
    utf8proc_iterate((const utf8proc_uint8_t *)s.p + at, (utf8proc_ssize_t)MIN(s.n - at, (size_t)4), &c);
    return (int)c;
}

uint32_t edit_width(struct str s, size_t at)
{
    if (s.p[at] == '\t')
        return EDIT_TAB;
    const int c = code_point(s, at);
    const int w = c < 0 ? 1 : utf8proc_charwidth(c);
    return (uint32_t)MIN(MAX(w, 0), 2);
}

static size_t point_start(struct str s, size_t at) /* of the code point before at */
{
    do
        at--;
    while (at > 0 && ((unsigned char)s.p[at] & 0xc0) == 0x80);
    return at;
}

static size_t point_end(struct str s, size_t at)
{
    return at + MAX(utf8_len((struct str){s.p + at, s.n - at}), (size_t)1);
}

static bool is_mark(struct str s, size_t at)
{
    return (unsigned char)s.p[at] >= 0x80 && edit_width(s, at) == 0;
}

size_t edit_prev(struct str s, size_t at)
{
    while (at > 0) {
        at = point_start(s, at);
        if (!is_mark(s, at))
            break;
    }
    return at;
}

size_t edit_next(struct str s, size_t at)
{
    if (at < s.n)
        at = point_end(s, at);
    while (at < s.n && is_mark(s, at))
        at = point_end(s, at);
    return at;
}

static bool is_word(struct str s, size_t at)
{
    const unsigned char c = (unsigned char)s.p[at];
    return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

size_t edit_word_prev(struct str s, size_t at)
{
    while (at > 0 && !is_word(s, edit_prev(s, at)))
        at = edit_prev(s, at);
    while (at > 0 && is_word(s, edit_prev(s, at)))
        at = edit_prev(s, at);
    return at;
}

size_t edit_word_next(struct str s, size_t at)
{
    while (at < s.n && !is_word(s, at))
        at = edit_next(s, at);
    while (at < s.n && is_word(s, at))
        at = edit_next(s, at);
    return at;
}

size_t edit_line_start(struct str s, size_t at)
{
    while (at > 0 && s.p[at - 1] != '\n')
        at--;
    return at;
}

size_t edit_line_end(struct str s, size_t at)
{
    while (at < s.n && s.p[at] != '\n')
        at++;
    return at;
}

/* ---- changes ---- */

/* One character of untrusted input, cleaned, to out; how many bytes it took. */
static size_t clean_one(struct str s, size_t at, char out[4], size_t *n)
{
    const unsigned char c = (unsigned char)s.p[at];
    *n = 1;
    if (c == '\r') {
        out[0] = '\n';
        return at + 1 < s.n && s.p[at + 1] == '\n' ? 2 : 1;
    }
    if (c < 0x20 || c == 0x7f) {
        out[0] = (char)c;
        *n = c == '\n' || c == '\t' ? 1 : 0;
        return 1;
    }
    const size_t k = utf8_len((struct str){s.p + at, s.n - at});
    const bool control = k == 2 && c == 0xc2 && (unsigned char)s.p[at + 1] < 0xa0; /* C1 */
    *n = control ? 0 : k > 0 ? k : 3;
    memcpy(out, k > 0 ? s.p + at : "\xef\xbf\xbd", *n);
    return MAX(k, (size_t)1);
}

bool edit_text_insert(struct edit_text *t, struct str s)
{
    struct buf clean;
    buf_init(&clean, EDIT_LINE_BYTES_MAX);
    for (size_t i = 0, n; i < s.n;) {
        char one[4];
        i += clean_one(s, i, one, &n);
        buf_add(&clean, (struct str){one, n});
    }
    bool ok = clean.failure == OK && t->b.n + clean.n <= EDIT_LINE_BYTES_MAX;
    ok = ok && buf_room(&t->b, clean.n) != NULL;
    if (ok && clean.n > 0) {
        memmove(t->b.p + t->at + clean.n, t->b.p + t->at, t->b.n - t->at);
        memcpy(t->b.p + t->at, clean.p, clean.n);
        t->b.n += clean.n;
        t->b.p[t->b.n] = '\0';
        t->at += clean.n;
    }
    if (!ok && t->b.failure != OK) { /* the text is whole; only the growth failed */
        t->b.failure = OK;
    }
    buf_fini(&clean);
    return ok;
}

void edit_text_delete(struct edit_text *t, size_t from, size_t to)
{
    if (from >= to)
        return;
    memmove(t->b.p + from, t->b.p + to, t->b.n - to);
    t->b.n -= to - from;
    t->b.p[t->b.n] = '\0';
    t->at = from;
}

void edit_text_kill(struct edit_text *t, size_t from, size_t to)
{
    if (from >= to)
        return;
    buf_clear(&t->killed);
    buf_add(&t->killed, (struct str){t->b.p + from, to - from});
    edit_text_delete(t, from, to);
}

/* The place `columns` characters into the line that starts at `start`. */
static size_t at_column(struct str s, size_t start, size_t columns)
{
    const size_t end = edit_line_end(s, start);
    while (columns-- > 0 && start < end)
        start = edit_next(s, start);
    return MIN(start, end);
}

static size_t column_of(struct str s, size_t at)
{
    size_t n = 0;
    for (size_t i = edit_line_start(s, at); i < at; i = edit_next(s, i))
        n++;
    return n;
}

bool edit_text_up(struct edit_text *t)
{
    const struct str s = buf_str(&t->b);
    const size_t start = edit_line_start(s, t->at);
    if (start == 0)
        return false;
    t->at = at_column(s, edit_line_start(s, start - 1), column_of(s, t->at));
    return true;
}

bool edit_text_down(struct edit_text *t)
{
    const struct str s = buf_str(&t->b);
    const size_t end = edit_line_end(s, t->at);
    if (end == s.n)
        return false;
    t->at = at_column(s, end + 1, column_of(s, t->at));
    return true;
}
