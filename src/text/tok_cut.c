/* How a tokenizer cuts a piece out of the middle of a text, for grammars; see text.h. A text that begins with a space
 * nobody wrote (SentencePiece) is encoded behind a newline, whose tokens are dropped again. */
#include "base/limits.h"
#include "base/mem.h"
#include "base/vocab.h"
#include "text/text.h"

#include <pthread.h>
#include <string.h>

#define CUT_BYTES_MAX 4096 /* far more than a grammar forces in one go */

struct tok_cutter {
    pthread_mutex_t lock;
    const struct tok *tok;
    struct tok_ctx *ctx;
    char text[CUT_BYTES_MAX + 1];
};

enum err tok_cutter_new(const struct tok *t, struct tok_cutter **out, struct error *e)
{
    *out = NULL;
    struct tok_cutter *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to cut texts");
    const enum err err = tok_ctx_new(&c->ctx, e);
    if (err != OK) {
        mem_free(c);
        return err;
    }
    (void)pthread_mutex_init(&c->lock, NULL);
    c->tok = t;
    *out = c;
    return OK;
}

void tok_cutter_free(struct tok_cutter *c)
{
    if (c == NULL)
        return;
    (void)pthread_mutex_destroy(&c->lock);
    tok_ctx_free(c->ctx);
    mem_free(c);
}

/* How many tokens make up the lead and the newline; SIZE_MAX: they end elsewhere. */
static size_t lead_tokens(const struct tok *t, struct tok_ids ids, size_t lead)
{
    size_t bytes = 0, n = 0;
    for (; n < ids.n && bytes < lead; n++)
        bytes += vocab_bytes(tok_vocab(t), ids.p[n]).n;
    return bytes == lead ? n : SIZE_MAX;
}

static uint32_t cut_locked(struct tok_cutter *c, struct str text, uint32_t *ids, uint32_t max)
{
    const uint32_t spaces = tok_lead_rule(c->tok).spaces;
    const size_t before = spaces > 0 ? 1 : 0;
    struct tok_ids got;
    struct error e = {0};
    c->text[0] = '\n';
    memcpy(c->text + before, text.p, text.n);
    if (tok_encode_user(c->tok, c->ctx, (struct str){c->text, text.n + before}, false, &got, &e) != OK)
        return 0;
    const size_t skip = spaces > 0 ? lead_tokens(c->tok, got, spaces + before) : 0;
    if (skip > got.n || got.n - skip > max)
        return 0;
    memcpy(ids, got.p + skip, (got.n - skip) * sizeof *ids);
    return (uint32_t)(got.n - skip);
}

uint32_t tok_cutter_cut(void *cutter, struct str text, uint32_t *ids, uint32_t max)
{
    struct tok_cutter *c = cutter;
    if (text.n == 0 || text.n >= CUT_BYTES_MAX)
        return 0;
    (void)pthread_mutex_lock(&c->lock);
    const uint32_t n = cut_locked(c, text, ids, max);
    (void)pthread_mutex_unlock(&c->lock);
    return n;
}
