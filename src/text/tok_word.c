/* Words on their way to the model: the word cache, and cutting the long words of character vocabularies.
 *
 * Text repeats itself: nine words of ten were seen a moment ago. Each thread keeps the ids of the last words in a small
 * two-way table; a word and its ids share one cache line, which bounds both (24 bytes, 9 ids; longer ones are encoded
 * every time).
 *
 * SentencePiece vocabularies do not split text at all: a page without line breaks is one word. But no merge can reach
 * across two characters that stand side by side in no merge result, so the word may be cut there without changing
 * anything. Which pairs do stand side by side is kept as a bitmap of hashes (SEC_BIGRAMS): a collision leaves a cut
 * out, which is harmless. */
#include "text/tok_int.h"
#include "text/tok_tables.h"
#include "text/tok_unicode.h"

#include <string.h>

#define WORD_BYTES 24
#define WORD_IDS   9
#define WORD_SLOTS (1u << 14)

struct word_slot {
    uint64_t key[3];
    uint8_t n_bytes, n_ids;
    uint16_t unused;
    uint32_t ids[WORD_IDS];
};
_Static_assert(sizeof(struct word_slot) == 64, "a cache line");

/* ---- characters that may be merged ---- */

static inline uint64_t bigram_hash(uint32_t a, uint32_t b)
{
    return (((uint64_t)a << 32 | b) + 1) * 0xD6E8FEB86659FD93u;
}

bool bigrams_has(const struct tok *t, uint32_t a, uint32_t b)
{
    const uint64_t *words = t->sec[SEC_BIGRAMS].p;
    const uint64_t bits = t->sec[SEC_BIGRAMS].bytes * 8;
    const uint64_t bit = bigram_hash(a, b) >> 20 & (bits - 1);
    return (words[bit >> 6] >> (bit & 63) & 1) != 0;
}

enum err bigrams_build(struct tok_build *b, struct tok *t, struct error *e)
{
    const json_t *model = json_object_get(b->spec, "model");
    if (json_object_get(model, "continuing_subword_prefix") != NULL ||
        json_object_get(model, "end_of_word_suffix") != NULL || (b->meta.flags & META_IGNORE_MERGES) != 0)
        return OK;
    size_t pairs = 0;
    for (size_t i = 0; i < b->n_merges; i++) {
        if ((b->flags[b->merges[i].left] | b->flags[b->merges[i].right]) & VOCAB_BYTE)
            return OK; /* bytes of a character would merge with its neighbours */
        pairs += b->names[b->merges[i].id].n / 2;
    }
    size_t words = 64;
    while (words * 8 < pairs && words < (1u << 18))
        words *= 2;
    TRY(tok_own(t, SEC_BIGRAMS, mem_array(words, sizeof(uint64_t)), words * sizeof(uint64_t), e));
    uint64_t *bits = t->owned[SEC_BIGRAMS];
    uint32_t last_id = TOK_NONE;
    for (size_t i = 0; i < b->n_merges; i++) {
        const struct str name = b->names[b->merges[i].id];
        if (b->merges[i].id == last_id)
            continue;
        last_id = b->merges[i].id;
        if (!utf8_is_valid(name))
            return FAIL(e, ERR_FORMAT, "token %u is not valid UTF-8", last_id);
        uint32_t previous = 0;
        for (size_t at = 0, n = 0; at < name.n; at += n) {
            const uint32_t c = utf8_get(name.p + at, &n);
            const uint64_t bit = bigram_hash(previous, c) >> 20 & (words * 64 - 1);
            if (at > 0)
                bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
            previous = c;
        }
    }
    b->meta.flags |= META_CHAR_SPLIT;
    return OK;
}

/* ---- the cache ---- */

static inline uint64_t load64(const char *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint32_t load32(const char *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* The last n < 8 bytes of a word of `all` bytes ending at end, as a number; reads nothing outside the word. */
static inline uint64_t load_tail(const char *end, size_t n, size_t all)
{
    if (n == 0)
        return 0;
    if (all >= 8)
        return load64(end - 8) >> (8 * (8 - n));
    const char *p = end - n;
    if (n >= 4)
        return load32(p) | (uint64_t)load32(end - 4) << (8 * (n - 4));
    return (uint64_t)(unsigned char)p[0] | (uint64_t)(unsigned char)p[n >> 1] << (8 * (n >> 1)) |
           (uint64_t)(unsigned char)p[n - 1] << (8 * (n - 1));
}

static inline void load_key(struct str word, uint64_t key[3])
{
    key[0] = word.n >= 8 ? load64(word.p) : load_tail(word.p + word.n, word.n, word.n);
    key[1] = word.n >= 16 ? load64(word.p + 8) : word.n > 8 ? load_tail(word.p + word.n, word.n - 8, word.n) : 0;
    key[2] = word.n == 24 ? load64(word.p + 16) : word.n > 16 ? load_tail(word.p + word.n, word.n - 16, word.n) : 0;
}

static inline bool slot_is(const struct word_slot *s, const uint64_t key[3], size_t n)
{
    return s->n_bytes == n && s->key[0] == key[0] && s->key[1] == key[1] && s->key[2] == key[2];
}

static void model_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    switch ((enum tok_model_kind)t->meta->model) {
    case TOK_BPE: bpe_encode(t, c, word); break;
    case TOK_UNIGRAM: unigram_encode(t, c, word); break;
    case TOK_WORDPIECE: wordpiece_encode(t, c, word); break;
    case TOK_WORDLEVEL: wordlevel_encode(t, c, word); break;
    }
}

enum err words_reset(struct tok_ctx *c, uint64_t serial)
{
    if (c->words == NULL)
        c->words = mem_aligned(64, WORD_SLOTS * sizeof *c->words);
    if (c->words == NULL)
        return ctx_fail(c, ERR_NOMEM, "no memory for the word cache");
    if (c->words_serial != serial)
        memset(c->words, 0, WORD_SLOTS * sizeof *c->words);
    c->words_serial = serial;
    return OK;
}

static void encode_cached(const struct tok *t, struct tok_ctx *c, struct str word)
{
    if (word.n > WORD_BYTES || word.n == 0) {
        model_encode(t, c, word);
        return;
    }
    uint64_t key[3];
    load_key(word, key);
    const uint64_t h = (key[0] * 0x9E3779B97F4A7C15u ^ key[1] * 0xC2B2AE3D27D4EB4Fu ^ key[2] * 0xD6E8FEB86659FD93u) +
                       word.n * 0xA0761D6478BD642Fu;
    struct word_slot *set = c->words + ((h ^ h >> 31) * 0x9E3779B97F4A7C15u >> 40 & (WORD_SLOTS - 2));
    const struct word_slot *hit = slot_is(set, key, word.n) ? set : slot_is(set + 1, key, word.n) ? set + 1 : NULL;
    if (hit != NULL) {
        if (c->cap_ids - c->n_ids < WORD_IDS && !ctx_grow_ids(c, WORD_IDS))
            return;
        memcpy(c->ids + c->n_ids, hit->ids, sizeof hit->ids);
        c->n_ids += hit->n_ids;
        return;
    }
    const size_t start = c->n_ids;
    model_encode(t, c, word);
    const size_t n = c->n_ids - start;
    if (c->failure != OK || n > WORD_IDS)
        return;
    set[1] = set[0];
    memcpy(set->key, key, sizeof key);
    set->n_bytes = (uint8_t)word.n;
    set->n_ids = (uint8_t)n;
    memcpy(set->ids, c->ids + start, n * sizeof *c->ids);
}

/* Unknown characters on both sides of a cut still become one token where the model fuses them. */
static void fuse_unknown(const struct tok *t, struct tok_ctx *c, size_t word_start, size_t start)
{
    const uint32_t unk = t->meta->unk;
    if ((t->meta->flags & META_FUSE_UNK) == 0 || unk == TOK_NONE || start == word_start || c->n_ids == start)
        return;
    if (c->ids[start - 1] != unk || c->ids[start] != unk)
        return;
    memmove(c->ids + start, c->ids + start + 1, (c->n_ids - start - 1) * sizeof *c->ids);
    c->n_ids--;
}

void word_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    if ((t->meta->flags & META_CHAR_SPLIT) == 0) {
        encode_cached(t, c, word);
        return;
    }
    const size_t word_start = c->n_ids;
    size_t from = 0, n = 0;
    uint32_t previous = 0;
    for (size_t at = 0; at < word.n; at += n) {
        const uint32_t ch = utf8_get(word.p + at, &n);
        if (at > from && !bigrams_has(t, previous, ch)) {
            const size_t start = c->n_ids;
            encode_cached(t, c, (struct str){word.p + from, at - from});
            fuse_unknown(t, c, word_start, start);
            from = at;
        }
        previous = ch;
    }
    const size_t start = c->n_ids;
    encode_cached(t, c, (struct str){word.p + from, word.n - from});
    fuse_unknown(t, c, word_start, start);
}
