/* The pre-tokeniser: cutting normalised text into the words that the model sees.
 *
 * A tokenizer has a list of steps, and `tokenizers` applies each to all pieces the one before it made. As no step looks
 * beyond its own piece, the order may be turned round: each piece runs through all later steps as soon as it is made
 * (depth first). So no list of pieces is kept, and a word goes to the model while it is in the cache.
 *
 * Splitting steps differ in what they look for; what happens to a match is one of five behaviours, which splitter_give
 * applies to the stream of spans. A step that changes text (ByteLevel, Metaspace) writes into a buffer of its own, so
 * the buffer of step i holds until step i gets its next piece. A regex step keeps its shadow of the text there. */
#include "text/tok_int.h"
#include "text/tok_unicode.h"

#include <string.h>

/* ---- behaviours ---- */

struct splitter {
    const struct tok *t;
    struct tok_ctx *c;
    size_t next_step;
    struct piece whole;
    enum split_behaviour behaviour;
    bool invert;
    size_t start, end; /* the span held back */
    bool held, held_match;
};

static void splitter_emit(struct splitter *s, size_t start, size_t end)
{
    if (start < end)
        pre_run(s->t, s->c, s->next_step,
            (struct piece){{s->whole.text.p + start, end - start}, s->whole.first && start == 0});
}

static void splitter_hold(struct splitter *s, size_t start, size_t end, bool match)
{
    if (s->held)
        splitter_emit(s, s->start, s->end);
    s->start = start;
    s->end = end;
    s->held = true;
    s->held_match = match;
}

/* The next span of the text, in order and without gaps. */
static inline void splitter_give(struct splitter *s, size_t start, size_t end, bool match)
{
    if (start == end)
        return;
    match = match != s->invert;
    switch (s->behaviour) {
    case SPLIT_ISOLATED: splitter_emit(s, start, end); break;
    case SPLIT_REMOVED:
        if (!match)
            splitter_emit(s, start, end);
        break;
    case SPLIT_CONTIGUOUS:
        if (s->held && s->held_match == match)
            s->end = end;
        else
            splitter_hold(s, start, end, match);
        break;
    case SPLIT_WITH_PREVIOUS:
        if (s->held && match && !s->held_match) {
            s->end = end;
            s->held_match = true;
        } else {
            splitter_hold(s, start, end, match);
        }
        break;
    case SPLIT_WITH_NEXT:
        if (s->held && s->held_match && !match) {
            s->end = end;
            s->held_match = false;
        } else {
            splitter_hold(s, start, end, match);
        }
        break;
    }
}

static void splitter_end(struct splitter *s)
{
    if (s->held)
        splitter_emit(s, s->start, s->end);
}

/* ---- what is looked for ---- */

static void split_by_regex(struct splitter *s, const struct regex *regex)
{
    const struct str text = s->whole.text;
    struct tok_ctx *c = s->c;
    const struct str seen = unicode_shadow(c, text, &c->pre[s->next_step - 1]);
    if (seen.p == NULL && text.n > 0)
        return;
    size_t at = 0;
    while (at < text.n && c->failure == OK) {
        size_t start, end, from = at;
        int found;
        do { /* an empty match is passed over */
            found = regex_next(regex, c->regex, seen, from, &start, &end);
            if (found == 1 && end == start) {
                size_t n = 1;
                if (start < text.n)
                    utf8_get(text.p + start, &n);
                from = start + n;
            }
        } while (found == 1 && end == start && from <= text.n);
        if (found < 0)
            ctx_fail(c, ERR_LIMIT, "the pre-split pattern met its match limit on this text");
        if (found != 1 || end == start)
            break;
        splitter_give(s, at, start, false);
        splitter_give(s, start, end, true);
        at = end;
    }
    if (c->failure == OK)
        splitter_give(s, at, text.n, false);
}

static void split_by_string(struct splitter *s, struct str pattern)
{
    const struct str text = s->whole.text;
    size_t at = 0;
    while (pattern.n > 0 && at < text.n) {
        const char *hit = memmem(text.p + at, text.n - at, pattern.p, pattern.n);
        if (hit == NULL)
            break;
        const size_t start = (size_t)(hit - text.p);
        splitter_give(s, at, start, false);
        splitter_give(s, start, start + pattern.n, true);
        at = start + pattern.n;
    }
    splitter_give(s, at, text.n, false);
}

/* Every character of a kind is a match of its own. */
static void split_by_kind(struct splitter *s, bool (*is)(uint32_t))
{
    const struct str text = s->whole.text;
    size_t plain = 0, n = 0;
    for (size_t at = 0; at < text.n && s->c->failure == OK; at += n) {
        if (!is(utf8_get(text.p + at, &n)))
            continue;
        splitter_give(s, plain, at, false);
        splitter_give(s, at, at + n, true);
        plain = at + n;
    }
    splitter_give(s, plain, text.n, false);
}

/* Runs of word characters and runs of what is neither word nor space; spaces are dropped. */
static void split_words(struct splitter *s)
{
    const struct str text = s->whole.text;
    size_t start = 0, n = 0;
    int run = 0; /* 0 spaces, 1 word, 2 other */
    for (size_t at = 0; at < text.n && s->c->failure == OK; at += n) {
        const uint32_t c = utf8_get(text.p + at, &n);
        const int kind = unicode_is_word(c) ? 1 : unicode_is_space(c) ? 0 : 2;
        if (kind == run)
            continue;
        splitter_give(s, start, at, run == 0);
        start = at;
        run = kind;
    }
    splitter_give(s, start, text.n, run == 0);
}

static void split_by_length(struct splitter *s, uint32_t length)
{
    const struct str text = s->whole.text;
    size_t start = 0, n = 0;
    uint32_t chars = 0;
    for (size_t at = 0; at < text.n; at += n) {
        utf8_get(text.p + at, &n);
        if (++chars == length) {
            splitter_give(s, start, at + n, true);
            start = at + n;
            chars = 0;
        }
    }
    splitter_give(s, start, text.n, true);
}

/* ---- steps ---- */

static struct splitter splitter_for(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    const struct pre_step *p = &t->pipe.pres[i];
    return (struct splitter){
        .t = t, .c = c, .next_step = i + 1, .whole = piece, .behaviour = p->behaviour, .invert = p->invert};
}

/* Bytes become their printable spelling, for the steps behind. */
static void emit_remapped(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    struct scratch *s = &c->pre[i];
    if (!scratch_reserve(c, s, 2 * piece.text.n))
        return;
    s->n = 0;
    for (size_t at = 0; at < piece.text.n; at++)
        s->n += byte_spell((unsigned char)piece.text.p[at], s->p + s->n);
    pre_run(t, c, i + 1, (struct piece){{s->p, s->n}, piece.first});
}

/* Half of ByteLevel: the space in front, or the spelling. Its split is a regex step compiled between the two. */
static void run_byte_level(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    const struct pre_step *p = &t->pipe.pres[i];
    if (p->add_prefix_space && (piece.text.n == 0 || piece.text.p[0] != ' ')) {
        struct scratch *s = &c->pre[i];
        s->n = 0;
        if (!scratch_add(c, s, STR(" ")) || !scratch_add(c, s, piece.text))
            return;
        piece.text = (struct str){s->p, s->n};
    }
    if (p->remap)
        emit_remapped(t, c, i, piece);
    else
        pre_run(t, c, i + 1, piece);
}

static void run_metaspace(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    const struct pre_step *p = &t->pipe.pres[i];
    struct scratch *s = &c->pre[i];
    s->n = 0;
    if (!scratch_reserve(c, s, (piece.text.n + 1) * MAX(p->pattern.n, (size_t)1)))
        return;
    const bool starts = str_has_prefix(piece.text, p->pattern) || (piece.text.n > 0 && piece.text.p[0] == ' ');
    if (!starts && (p->prepend == 2 || (p->prepend == 1 && piece.first))) {
        memcpy(s->p, p->pattern.p, p->pattern.n);
        s->n = p->pattern.n;
    }
    for (size_t at = 0; at < piece.text.n; at++) {
        if (piece.text.p[at] == ' ') {
            memcpy(s->p + s->n, p->pattern.p, p->pattern.n);
            s->n += p->pattern.n;
        } else {
            s->p[s->n++] = piece.text.p[at];
        }
    }
    const struct piece changed = {{s->p, s->n}, piece.first};
    if (!p->split) {
        pre_run(t, c, i + 1, changed);
        return;
    }
    struct splitter split = splitter_for(t, c, i, changed);
    split_by_string(&split, p->pattern);
    splitter_end(&split);
}

static void run_split(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    const struct pre_step *p = &t->pipe.pres[i];
    struct splitter s = splitter_for(t, c, i, piece);
    switch (p->kind) {
    case PRE_SPLIT_REGEX: split_by_regex(&s, p->regex); break;
    case PRE_SPLIT_STR: split_by_string(&s, p->pattern); break;
    case PRE_DIGITS: split_by_kind(&s, unicode_is_numeric); break;
    case PRE_WHITESPACE: split_words(&s); break;
    case PRE_WHITESPACE_SPLIT:
    case PRE_BERT_SPACES: split_by_kind(&s, unicode_is_space); break;
    case PRE_PUNCTUATION: split_by_kind(&s, unicode_is_punctuation); break;
    case PRE_FIXED_LENGTH: split_by_length(&s, p->length); break;
    case PRE_BYTE_LEVEL:
    case PRE_METASPACE: break;
    }
    if (c->failure == OK)
        splitter_end(&s);
}

/* The word of a remapped text, back as bytes. */
static void encode_remapped(const struct tok *t, struct tok_ctx *c, struct str word)
{
    size_t n = 0;
    if (!scratch_reserve(c, &c->word, word.n))
        return;
    if (byte_unspell(word, c->word.p, &n))
        word_encode(t, c, (struct str){c->word.p, n});
}

void pre_run(const struct tok *t, struct tok_ctx *c, size_t i, struct piece piece)
{
    if (c->failure != OK)
        return;
    if (i == t->pipe.n_pres) {
        if (t->pipe.remaps)
            encode_remapped(t, c, piece.text);
        else
            word_encode(t, c, piece.text);
        return;
    }
    switch (t->pipe.pres[i].kind) {
    case PRE_BYTE_LEVEL: run_byte_level(t, c, i, piece); break;
    case PRE_METASPACE: run_metaspace(t, c, i, piece); break;
    default: run_split(t, c, i, piece); break;
    }
}
