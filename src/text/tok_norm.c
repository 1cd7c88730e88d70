/* The normaliser: steps that rewrite the text before it is cut into words. Each reads the text of the one before and
 * writes one of two buffers in turn; a step that finds nothing to do hands its input on.
 *
 * NORM_SPM is the normaliser of the sentencepiece library as a whole: character map with the longest match,
 * user-defined symbols left alone, runs of spaces made one, spaces written as U+2581. */
#include "text/tok_added.h"
#include "text/tok_charsmap.h"
#include "text/tok_int.h"
#include "text/tok_unicode.h"

#include <string.h>
#include <utf8proc.h>

static const struct str space_symbol = {"\xE2\x96\x81", 3};

static bool put_char(struct tok_ctx *c, struct scratch *out, uint32_t ch)
{
    if (!scratch_reserve(c, out, out->n + 4))
        return false;
    out->n += utf8_put(ch, out->p + out->n);
    return true;
}

static bool lowercase(struct tok_ctx *c, struct str text, struct scratch *out)
{
    for (size_t at = 0, n = 0; at < text.n; at += n) {
        uint32_t second;
        const uint32_t low = unicode_lower(utf8_get(text.p + at, &n), &second);
        if (!put_char(c, out, low) || (second != 0 && !put_char(c, out, second)))
            return false;
    }
    return true;
}

static struct str strip(struct str text, bool left, bool right)
{
    size_t n = 0;
    while (left && text.n > 0 && unicode_is_space(utf8_get(text.p, &n)))
        text = (struct str){text.p + n, text.n - n};
    while (right && text.n > 0) {
        size_t start = text.n - 1;
        while (start > 0 && ((unsigned char)text.p[start] & 0xC0) == 0x80)
            start--;
        if (!unicode_is_space(utf8_get(text.p + start, &n)))
            break;
        text.n = start;
    }
    return text;
}

static bool drop_if(struct tok_ctx *c, struct str text, bool (*is)(uint32_t), struct scratch *out)
{
    if (!scratch_reserve(c, out, out->n + text.n))
        return false;
    for (size_t at = 0, n = 0; at < text.n; at += n) {
        if (is(utf8_get(text.p + at, &n)))
            continue;
        memcpy(out->p + out->n, text.p + at, n);
        out->n += n;
    }
    return true;
}

static bool replace(struct tok_ctx *c, const struct norm_step *s, struct str text, struct scratch *out)
{
    size_t at = 0;
    while (s->a.n > 0 && at < text.n) {
        const char *hit = s->a.n == 1 ? memchr(text.p + at, s->a.p[0], text.n - at)
                                      : memmem(text.p + at, text.n - at, s->a.p, s->a.n);
        if (hit == NULL)
            break;
        const size_t start = (size_t)(hit - text.p);
        if (!scratch_add(c, out, (struct str){text.p + at, start - at}) || !scratch_add(c, out, s->b))
            return false;
        at = start + s->a.n;
    }
    return scratch_add(c, out, (struct str){text.p + at, text.n - at});
}

static bool replace_regex(struct tok_ctx *c, const struct norm_step *s, struct str text, struct scratch *out)
{
    const struct str seen = unicode_shadow(c, text, &c->shadow);
    if (seen.p == NULL && text.n > 0)
        return false;
    size_t at = 0, from = 0;
    while (from <= text.n) {
        size_t start, end;
        const int found = regex_next(s->regex, c->regex, seen, from, &start, &end);
        if (found < 0)
            return ctx_fail(c, ERR_LIMIT, "the normaliser's pattern met its match limit on this text"), false;
        if (found == 0)
            break;
        if (!scratch_add(c, out, (struct str){text.p + at, start - at}) || !scratch_add(c, out, s->b))
            return false;
        at = from = end;
        if (end == start) {
            size_t n = 1;
            if (end < text.n)
                utf8_get(text.p + end, &n);
            from = end + n;
        }
    }
    return scratch_add(c, out, (struct str){text.p + at, text.n - at});
}

/* As the `tokenizers` package applies a map: a grapheme of up to 5 bytes is replaced as a whole by what its shortest
 * known prefix stands for; otherwise each of its characters by itself. */
static bool map_graphemes(struct tok_ctx *c, const struct charsmap *map, struct str text, struct scratch *out)
{
    for (size_t at = 0; at < text.n;) {
        size_t end = at, n = 0;
        utf8proc_int32_t state = 0;
        uint32_t ch = utf8_get(text.p + at, &n);
        do {
            end += n;
            if (end >= text.n)
                break;
            const uint32_t next = utf8_get(text.p + end, &n);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)ch, (utf8proc_int32_t)next, &state))
                break;
            ch = next;
        } while (true);
        struct str to;
        if (end - at < 6 && charsmap_find(map, (struct str){text.p + at, end - at}, false, &to) > 0) {
            if (!scratch_add(c, out, to))
                return false;
            at = end;
            continue;
        }
        for (; at < end; at += n) {
            utf8_get(text.p + at, &n);
            const struct str one = {text.p + at, n};
            if (!scratch_add(c, out, charsmap_find(map, one, false, &to) > 0 ? to : one))
                return false;
        }
    }
    return true;
}

static bool is_nmt_dropped(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool is_nmt_space(uint32_t c)
{
    return c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static bool nmt(struct tok_ctx *c, struct str text, struct scratch *out)
{
    for (size_t at = 0, n = 0; at < text.n; at += n) {
        const uint32_t ch = utf8_get(text.p + at, &n);
        if (!is_nmt_dropped(ch) && !put_char(c, out, is_nmt_space(ch) ? ' ' : ch))
            return false;
    }
    return true;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* BERT's first half: control characters out, every space plain, Chinese characters stand alone. */
static bool bert_clean(struct tok_ctx *c, const struct norm_step *s, struct str text, struct scratch *out)
{
    for (size_t at = 0, n = 0; at < text.n; at += n) {
        uint32_t ch = utf8_get(text.p + at, &n);
        if (s->clean) {
            if (unicode_is_bert_dropped(ch))
                continue;
            if (unicode_is_space(ch))
                ch = ' ';
        }
        const bool alone = s->chinese && is_chinese(ch);
        if ((alone && !put_char(c, out, ' ')) || !put_char(c, out, ch) || (alone && !put_char(c, out, ' ')))
            return false;
    }
    return true;
}

static bool bert(struct tok_ctx *c, const struct norm_step *s, struct str text, struct scratch *out)
{
    c->clean.n = 0;
    if (!bert_clean(c, s, text, &c->clean))
        return false;
    struct str now = {c->clean.p, c->clean.n};
    if (s->accents) {
        c->shadow.n = 0;
        c->word.n = 0;
        if (!unicode_normalise(c, FORM_NFD, now, &c->shadow) ||
            !drop_if(c, (struct str){c->shadow.p, c->shadow.n}, unicode_is_bert_mark, &c->word))
            return false;
        now = (struct str){c->word.p, c->word.n};
    }
    return s->lower ? lowercase(c, now, out) : scratch_add(c, out, now);
}

/* ---- sentencepiece ---- */

/* What stands for the beginning of text, and how much of it that is. */
static struct str spm_prefix(const struct tok *t, const struct norm_step *s, struct str text, size_t *used)
{
    uint32_t index;
    if (t->pipe.protect != NULL) {
        *used = matcher_at(t->pipe.protect, text, 0, &index);
        if (*used > 0)
            return (struct str){text.p, *used};
    }
    struct str to;
    if (s->map != NULL) {
        *used = charsmap_find(s->map, text, true, &to);
        if (*used > 0)
            return to;
    }
    utf8_get(text.p, used);
    return (struct str){text.p, *used};
}

static bool ends_with_space(const struct scratch *out, size_t floor, bool escaped)
{
    if (escaped)
        return out->n >= floor + 3 && memcmp(out->p + out->n - 3, space_symbol.p, 3) == 0;
    return out->n > floor && out->p[out->n - 1] == ' ';
}

static bool spm_add(struct tok_ctx *c, const struct norm_step *s, struct str text, struct scratch *out)
{
    if (!s->escape_spaces || memchr(text.p, ' ', text.n) == NULL)
        return scratch_add(c, out, text);
    for (size_t i = 0; i < text.n; i++)
        if (!scratch_add(c, out, text.p[i] == ' ' ? space_symbol : (struct str){text.p + i, 1}))
            return false;
    return true;
}

static bool spm(const struct tok *t, struct tok_ctx *c, const struct norm_step *s, struct str text, bool middle,
    struct scratch *out)
{
    const struct str space = s->escape_spaces ? space_symbol : STR(" ");
    size_t used;
    const bool trim = s->trim && !middle;
    while (trim && text.n > 0 && str_is(spm_prefix(t, s, text, &used), " "))
        text = (struct str){text.p + used, text.n - used};
    if (text.n == 0)
        return true;
    const bool dummy = s->dummy_prefix && !middle;
    if (dummy && !s->suffix && !scratch_add(c, out, space))
        return false;
    bool after_space = s->trim;
    while (text.n > 0) {
        struct str part = spm_prefix(t, s, text, &used);
        while (after_space && part.n > 0 && part.p[0] == ' ')
            part = (struct str){part.p + 1, part.n - 1};
        if (part.n > 0) {
            after_space = s->trim && part.p[part.n - 1] == ' ';
            if (!spm_add(c, s, part, out))
                return false;
        }
        text = (struct str){text.p + used, text.n - used};
    }
    while (trim && ends_with_space(out, 0, s->escape_spaces))
        out->n -= space.n;
    return !dummy || !s->suffix || scratch_add(c, out, space);
}

/* ---- the steps in turn ---- */

static bool run_step(const struct tok *t, struct tok_ctx *c, const struct norm_step *s, struct str text, bool middle,
    struct scratch *out)
{
    switch (s->kind) {
    case NORM_NFC: return unicode_normalise(c, FORM_NFC, text, out);
    case NORM_NFD: return unicode_normalise(c, FORM_NFD, text, out);
    case NORM_NFKC: return unicode_normalise(c, FORM_NFKC, text, out);
    case NORM_NFKD: return unicode_normalise(c, FORM_NFKD, text, out);
    case NORM_LOWERCASE: return lowercase(c, text, out);
    case NORM_STRIP_ACCENTS: return drop_if(c, text, unicode_is_accent, out);
    case NORM_PREPEND: return scratch_add(c, out, s->a) && scratch_add(c, out, text);
    case NORM_REPLACE: return replace(c, s, text, out);
    case NORM_REPLACE_REGEX: return replace_regex(c, s, text, out);
    case NORM_CHARSMAP: return map_graphemes(c, s->map, text, out);
    case NORM_BERT: return bert(c, s, text, out);
    case NORM_NMT: return nmt(c, text, out);
    case NORM_SPM: return spm(t, c, s, text, middle, out);
    case NORM_STRIP: break;
    }
    return scratch_add(c, out, text);
}

static bool is_ascii(struct str text)
{
    size_t i = 0;
    uint64_t word;
    for (; i + 8 <= text.n; i += 8) {
        memcpy(&word, text.p + i, 8);
        if (word & 0x8080808080808080u)
            return false;
    }
    for (; i < text.n; i++)
        if ((unsigned char)text.p[i] >= 0x80)
            return false;
    return true;
}

enum err norm_run(const struct tok *t, struct tok_ctx *c, struct str text, bool middle, struct str *out)
{
    size_t turn = 0;
    for (size_t i = 0; i < t->pipe.n_norms && text.n > 0; i++) {
        const struct norm_step *s = &t->pipe.norms[i];
        if (s->kind == NORM_STRIP) {
            text = middle ? text : strip(text, s->left, s->right);
            continue;
        }
        if ((s->kind <= NORM_NFKD && is_ascii(text)) || (s->kind == NORM_PREPEND && middle))
            continue;
        struct scratch *to = &c->norm[turn];
        turn ^= 1;
        to->n = 0;
        if (!run_step(t, c, s, text, middle, to))
            return c->failure != OK ? c->failure : ctx_fail(c, ERR_NOMEM, "no memory to normalise a text");
        text = (struct str){to->p, to->n};
    }
    *out = text;
    return OK;
}
