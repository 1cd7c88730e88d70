/* WordPiece: the longest token that starts the word, then the longest continuation ("##...") of the rest; a word that
 * cannot be finished is unknown as a whole. WordLevel: the word is a token, or unknown. */
#include "text/tok_int.h"
#include "text/tok_unicode.h"

#include "base/limits.h"

static void push_unknown(const struct tok *t, struct tok_ctx *c)
{
    if (t->meta->unk == TOK_NONE)
        ctx_fail(c, ERR_INVALID, "a word is not in the vocabulary, which has no unknown token");
    else
        ctx_push(c, t->meta->unk);
}

static size_t count_chars(struct str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

/* The longest token at the start of rest; 0 when there is none. */
static size_t longest_token(const struct tok *t, struct tok_ctx *c, struct str rest, bool first, uint32_t *id)
{
    const struct str prefix = first ? (struct str){"", 0} : t->pipe.prefix;
    for (size_t end = MIN(rest.n, (size_t)TOK_NAME_BYTES_MAX); end > 0; end--) {
        if (end < rest.n && ((unsigned char)rest.p[end] & 0xC0) == 0x80)
            continue;
        c->word.n = 0;
        if (!scratch_add(c, &c->word, prefix) || !scratch_add(c, &c->word, (struct str){rest.p, end}))
            return 0;
        *id = tok_key_find(t, (struct str){c->word.p, c->word.n});
        if (*id != TOK_NONE)
            return end;
    }
    return 0;
}

void wordpiece_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    const size_t start = c->n_ids;
    if (count_chars(word) > t->meta->word_chars_max) {
        push_unknown(t, c);
        return;
    }
    for (size_t at = 0; at < word.n && c->failure == OK;) {
        uint32_t id;
        const size_t n = longest_token(t, c, (struct str){word.p + at, word.n - at}, at == 0, &id);
        if (n == 0) {
            c->n_ids = start;
            push_unknown(t, c);
            return;
        }
        if (!ctx_push(c, id))
            return;
        at += n;
    }
}

void wordlevel_encode(const struct tok *t, struct tok_ctx *c, struct str word)
{
    const uint32_t id = tok_key_find(t, word);
    if (id != TOK_NONE)
        ctx_push(c, id);
    else
        push_unknown(t, c);
}
