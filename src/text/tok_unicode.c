/* Characters: classes, stand-ins for characters PCRE2 does not know, the four normal forms. See tok_unicode.h.
 *
 * Normalisation is written around utf8proc's per-character tables rather than its whole-string call, for three reasons:
 * most text is already normal, and a scan that finds the first character that could change is ten times faster than
 * decomposing everything; the whole-string call allocates; and it sorts combining marks by insertion, so that a
 * megabyte of marks would take minutes. Here a run of marks is sorted by counting.
 *
 * A character is inert in a form when it does not change in it and never combines with what stands before it. Text is
 * cut in front of every inert character except where marks follow, so only short stretches are worked on. */
#include "text/tok_unicode.h"

#include "text/tok_int.h"
#include "text/unicode_new.h"

#include <string.h>
#include <utf8proc.h>

size_t utf8_put(uint32_t c, char *out)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(struct str s)
{
    size_t i = 0;
    while (i < s.n) {
        uint64_t word;
        if (i + 8 <= s.n && (memcpy(&word, s.p + i, 8), (word & 0x8080808080808080u) == 0)) {
            i += 8;
            continue;
        }
        const unsigned char *u = (const unsigned char *)s.p + i;
        const size_t left = s.n - i;
        if (u[0] < 0x80)
            i += 1;
        else if (u[0] >= 0xE1 && u[0] <= 0xEC && left >= 3 && (u[1] & 0xC0) == 0x80 && (u[2] & 0xC0) == 0x80)
            i += 3; /* most of the scripts of Asia, without the special cases */
        else {
            const size_t n = utf8_len((struct str){s.p + i, left});
            if (n == 0)
                return i;
            i += n;
        }
    }
    return i;
}

/* ---- classes ---- */

static bool in_new_block(uint32_t c)
{
    const uint32_t block = c >> 6;
    return block >> 5 < UNICODE_NEW_WORDS && (unicode_new_blocks[block >> 5] >> (block & 31) & 1) != 0;
}

uint32_t unicode_known(uint32_t c)
{
    if (!in_new_block(c))
        return c;
    size_t low = 0, high = COUNT_OF(unicode_new);
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (c > unicode_new[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < COUNT_OF(unicode_new) && c >= unicode_new[low].first ? unicode_new[low].as : c;
}

static bool in_ranges(const struct unicode_range *ranges, size_t n, uint32_t c)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (c > ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < n && c >= ranges[low].first;
}

#define IN(table, c) in_ranges((table), COUNT_OF(table), (c))

bool unicode_is_numeric(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : IN(unicode_numeric, c);
}

bool unicode_is_punctuation(uint32_t c)
{
    return IN(unicode_punctuation, c);
}

bool unicode_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool unicode_is_word(uint32_t c)
{
    return IN(unicode_word, c);
}

bool unicode_is_accent(uint32_t c)
{
    return c >= 0x300 && IN(unicode_accent, c);
}

bool unicode_is_bert_mark(uint32_t c)
{
    return c >= 0x300 && IN(unicode_bert_mark, c);
}

bool unicode_is_bert_dropped(uint32_t c)
{
    return IN(unicode_bert_dropped, c);
}

uint32_t unicode_lower(uint32_t c, uint32_t *second)
{
    *second = 0;
    if (c < 0x80)
        return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c == 0x130) { /* the one character whose lower case is two */
        *second = 0x307;
        return 'i';
    }
    for (size_t i = 0; c >= unicode_lower_new[0].first && i < COUNT_OF(unicode_lower_new); i++)
        if (unicode_lower_new[i].first == c)
            return unicode_lower_new[i].last;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

/* ---- the shadow ---- */

/* The first character at or after `at` that is in the table, or text.n. */
static size_t next_unknown(struct str text, size_t at)
{
    while (at < text.n) {
        uint64_t word;
        if (at + 8 <= text.n && (memcpy(&word, text.p + at, 8), (word & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        size_t n;
        const uint32_t c = utf8_get(text.p + at, &n);
        if (c >= 0x800 && in_new_block(c) && unicode_known(c) != c)
            return at;
        at += n;
    }
    return text.n;
}

struct str unicode_shadow(struct tok_ctx *c, struct str text, struct scratch *out)
{
    size_t at = next_unknown(text, 0);
    if (at == text.n)
        return text;
    out->n = 0;
    if (!scratch_add(c, out, text))
        return (struct str){NULL, 0};
    while (at < text.n) {
        size_t n;
        const uint32_t ch = utf8_get(text.p + at, &n);
        utf8_put(unicode_known(ch), out->p + at);
        at = next_unknown(text, at + n);
    }
    return (struct str){out->p, out->n};
}

/* ---- normal forms ---- */

static bool composes(enum unicode_form form)
{
    return form == FORM_NFC || form == FORM_NFKC;
}

static bool is_compat(enum unicode_form form)
{
    return form == FORM_NFKC || form == FORM_NFKD;
}

static bool is_inert(uint32_t c, enum unicode_form form)
{
    static const uint32_t below[] = {[FORM_NFC] = 0x300, [FORM_NFD] = 0xC0, [FORM_NFKC] = 0xA0, [FORM_NFKD] = 0xA0};
    if (c < below[form] || (c >= 0x4E00 && c < 0xA000))
        return true;
    if (c >= 0xAC00 && c < 0xD7A4)
        return composes(form);
    if (c >= 0x1160 && c < 0x1200) /* Hangul vowels and finals join what stands before them */
        return !composes(form);
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           (p->comb_index == UINT16_MAX || p->comb_index < 0x8000);
}

/* `tokenizers` has older tables for the normal forms: some marks it does not put in order, some characters it does not
 * take apart (and one of those, U+11938, it does not put together). */
static utf8proc_propval_t mark_class(int32_t c)
{
    const utf8proc_propval_t k = utf8proc_get_property(c)->combining_class;
    return k != 0 && IN(unicode_unordered, (uint32_t)c) ? 0 : k;
}

/* Take what utf8proc would compose and `tokenizers` would not out of its sight, or put it back. */
static void hide(int32_t *points, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (points[i] == 0x11930 ||
            (utf8proc_get_property(points[i])->combining_class != 0 && mark_class(points[i]) == 0))
            points[i] += 0x110000;
}

static void show(int32_t *points, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (points[i] >= 0x110000)
            points[i] -= 0x110000;
}

/* Stable order of a run of marks by combining class; tmp has room for n. */
static void sort_marks(int32_t *p, size_t n, int32_t *tmp)
{
    if (n < 24) {
        for (size_t i = 1; i < n; i++) {
            const int32_t c = p[i];
            const utf8proc_propval_t k = mark_class(c);
            size_t j = i;
            for (; j > 0 && mark_class(p[j - 1]) > k; j--)
                p[j] = p[j - 1];
            p[j] = c;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[(mark_class(p[i]) & 255) + 1]++;
    for (size_t k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        tmp[start[mark_class(p[i]) & 255]++] = p[i];
    memcpy(p, tmp, n * sizeof *p);
}

/* One stretch, whole: decompose, order, compose, append. */
static bool normalise_stretch(struct tok_ctx *c, enum unicode_form form, struct str text, struct scratch *out)
{
    const utf8proc_option_t how = UTF8PROC_DECOMPOSE | (is_compat(form) ? UTF8PROC_COMPAT : 0);
    /* U+FDFA, the widest, is 18 characters: at most 18 for each 2 bytes; the second half is for sorting */
    const size_t room = text.n * 9 + 32;
    if (!scratch_reserve(c, &c->code_points, 2 * room * sizeof(int32_t)))
        return false;
    int32_t *points = (int32_t *)(void *)c->code_points.p;
    size_t n = 0;
    for (size_t at = 0; at < text.n;) {
        size_t len;
        int boundary = 0;
        const int32_t ch = (int32_t)utf8_get(text.p + at, &len);
        at += len;
        if (IN(unicode_whole, (uint32_t)ch)) {
            points[n++] = ch;
            continue;
        }
        const utf8proc_ssize_t got =
            utf8proc_decompose_char(ch, points + n, (utf8proc_ssize_t)(room - n), how, &boundary);
        assert(got >= 0 && (size_t)got <= room - n);
        n += (size_t)got;
    }
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && mark_class(points[end]) != 0)
            end++;
        if (end > i + 1)
            sort_marks(points + i, end - i, points + room);
        i = end + 1;
    }
    if (composes(form)) {
        hide(points, n);
        n = (size_t)utf8proc_normalize_utf32(points, (utf8proc_ssize_t)n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        show(points, n);
    }
    if (!scratch_reserve(c, out, out->n + 4 * n))
        return false;
    for (size_t i = 0; i < n; i++)
        out->n += utf8_put((uint32_t)points[i], out->p + out->n);
    return true;
}

bool unicode_normalise(struct tok_ctx *c, enum unicode_form form, struct str text, struct scratch *out)
{
    size_t copied = 0, previous = 0, at = 0; /* previous: start of the last inert character */
    while (at < text.n) {
        uint64_t word;
        if (at + 8 <= text.n && (memcpy(&word, text.p + at, 8), (word & 0x8080808080808080u) == 0)) {
            at += 8;
            previous = at - 1;
            continue;
        }
        size_t n;
        if (is_inert(utf8_get(text.p + at, &n), form)) {
            previous = at;
            at += n;
            continue;
        }
        size_t end = at + n;
        while (end < text.n && !is_inert(utf8_get(text.p + end, &n), form))
            end += n;
        const size_t start = MAX(previous, copied);
        if (!scratch_add(c, out, (struct str){text.p + copied, start - copied}) ||
            !normalise_stretch(c, form, (struct str){text.p + start, end - start}, out))
            return false;
        copied = previous = at = end;
    }
    return scratch_add(c, out, (struct str){text.p + copied, text.n - copied});
}
