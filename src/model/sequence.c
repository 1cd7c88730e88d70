/* One sequence over a decoder; see sequence.h. Its block table is the identity. */
#include "model/sequence.h"

#include "base/mem.h"
#include "model/decoder_int.h"

#include <string.h>

struct sequence {
    struct decoder *d;
    uint32_t rows_max, n, reused;
    int32_t *ids;                         /* [context]: what is computed */
    uint32_t *table;                      /* [n_blocks]: 0, 1, 2... */
    uint32_t *pos, *seq, *slot, *out_row; /* [rows_max] */
    float *logits;                        /* [vocab] */
};

enum err sequence_new(struct decoder *d, struct sequence **out, struct error *e)
{
    *out = NULL;
    struct sequence *s = mem_zalloc(sizeof *s);
    if (s != NULL) {
        *s = (struct sequence){.d = d, .rows_max = d->o.rows_max};
        s->ids = mem_array(decoder_context(d), sizeof *s->ids);
        s->table = mem_array(d->kv.n_blocks, sizeof *s->table);
        s->pos = mem_array(s->rows_max, sizeof *s->pos);
        s->seq = mem_array(s->rows_max, sizeof *s->seq);
        s->slot = mem_array(s->rows_max, sizeof *s->slot);
        s->out_row = mem_array(s->rows_max, sizeof *s->out_row);
        s->logits = mem_array(decoder_vocab(d), sizeof *s->logits);
    }
    if (s == NULL || s->ids == NULL || s->table == NULL || s->pos == NULL || s->seq == NULL || s->slot == NULL ||
        s->out_row == NULL || s->logits == NULL) {
        sequence_free(s);
        return FAIL(e, ERR_NOMEM, "no memory for a sequence of %u tokens", decoder_context(d));
    }
    for (uint32_t i = 0; i < d->kv.n_blocks; i++)
        s->table[i] = i;
    *out = s;
    return OK;
}

void sequence_free(struct sequence *s)
{
    if (s == NULL)
        return;
    mem_free(s->ids);
    mem_free(s->table);
    mem_free(s->pos);
    mem_free(s->seq);
    mem_free(s->slot);
    mem_free(s->out_row);
    mem_free(s->logits);
    mem_free(s);
}

static enum err check_room(const struct sequence *s, uint64_t n, struct error *e)
{
    const uint64_t cached = (uint64_t)s->d->kv.n_blocks * s->d->kv.block_tokens;
    const uint64_t most = MIN(cached, (uint64_t)decoder_context(s->d));
    if (n > most)
        return FAIL(e, ERR_LIMIT, "%llu tokens do not fit into a context of %llu", (unsigned long long)n,
            (unsigned long long)most);
    return OK;
}

/* Compute ids[0..n) behind what is there, n at most rows_max; logits of all rows or of the last one. */
static enum err run_rows(struct sequence *s, const uint32_t *ids, uint32_t n, bool all_logits, struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= decoder_vocab(s->d))
            return FAIL(e, ERR_INVALID, "token %u is outside the vocabulary of %u", ids[i], decoder_vocab(s->d));
        s->ids[s->n + i] = (int32_t)ids[i];
        s->pos[i] = s->slot[i] = s->n + i; /* the table is the identity, so a slot is a position */
        s->out_row[i] = i;
    }
    const struct batch_seq one = {.n_rows = n, .n_kv = s->n + n};
    const uint32_t last = n - 1;
    const struct step step = {.n_rows = n,
        .n_seqs = 1,
        .n_out = all_logits ? n : 1,
        .n_table = s->d->kv.n_blocks,
        .token = s->ids + s->n,
        .pos = s->pos,
        .seq = s->seq,
        .seqs = &one,
        .table = s->table,
        .kv_slot = s->slot,
        .out_row = all_logits ? s->out_row : &last};
    TRY(decoder_step(s->d, &step, e));
    s->n += n;
    return OK;
}

enum err sequence_set(struct sequence *s, const uint32_t *ids, uint32_t n, bool (*should_stop)(void *ctx), void *ctx,
    const float **logits, struct error *e)
{
    if (n == 0)
        return FAIL(e, ERR_INVALID, "a prompt without tokens");
    TRY(check_room(s, n, e));
    uint32_t same = 0;
    while (same < n && same < s->n && s->ids[same] == (int32_t)ids[same])
        same++;
    same = MIN(same, n - 1); /* the last one is computed again for its logits */
    s->n = s->reused = same;
    while (s->n < n) {
        if (should_stop != NULL && should_stop(ctx))
            return FAIL(e, ERR_CANCELLED, "stopped");
        TRY(run_rows(s, ids + s->n, MIN(n - s->n, s->rows_max), false, e));
    }
    TRY(decoder_read_logits(s->d, 0, s->logits, e));
    *logits = s->logits;
    return OK;
}

enum err sequence_push(struct sequence *s, uint32_t id, const float **logits, struct error *e)
{
    TRY(check_room(s, (uint64_t)s->n + 1, e));
    TRY(run_rows(s, &id, 1, false, e));
    TRY(decoder_read_logits(s->d, 0, s->logits, e));
    *logits = s->logits;
    return OK;
}

enum err sequence_score(
    struct sequence *s, const uint32_t *ids, uint32_t n, sequence_row_fn *fn, void *ctx, struct error *e)
{
    TRY(check_room(s, n, e));
    s->n = s->reused = 0;
    const uint32_t chunk = MIN(s->rows_max, s->d->o.out_max);
    while (s->n < n) {
        const uint32_t first = s->n, now = MIN(n - first, chunk);
        TRY(run_rows(s, ids + first, now, true, e));
        for (uint32_t i = 0; i < now; i++) {
            TRY(decoder_read_logits(s->d, i, s->logits, e));
            if (!fn(ctx, first + i, s->logits))
                return OK;
        }
    }
    return OK;
}

uint32_t sequence_length(const struct sequence *s)
{
    return s->n;
}

uint32_t sequence_reused(const struct sequence *s)
{
    return s->reused;
}
