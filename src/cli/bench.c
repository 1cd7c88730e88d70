/* Measuring a model; see bench.h. The block table is the identity, sequence after sequence. */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/mem.h"

#define BLOCK_TOKENS 16

struct bench {
    struct decoder *d;
    struct clock clock;
    uint32_t blocks_each; /* of a sequence when there are BENCH_SEQS of them */
    uint32_t n_blocks, context, vocab;
    int32_t token[BENCH_ROWS];
    uint32_t pos[BENCH_ROWS], seq[BENCH_ROWS], slot[BENCH_ROWS], out_row[BENCH_SEQS];
    struct batch_seq seqs[BENCH_SEQS];
    uint32_t *table;
    float *logits;
};

void bench_options(struct decoder_options *o, uint32_t context)
{
    o->rows_max = BENCH_ROWS;
    o->out_max = BENCH_SEQS;
    o->seqs_max = BENCH_SEQS;
    o->context_max = context;
    o->block_tokens = BLOCK_TOKENS;
    const uint32_t one = (context + BLOCK_TOKENS - 1) / BLOCK_TOKENS; /* one long sequence, or sixteen short ones */
    o->n_blocks = MAX(one, BENCH_SEQS * (MIN(context, 512u) + BLOCK_TOKENS - 1) / BLOCK_TOKENS);
}

enum err bench_new(struct decoder *d, const struct decoder_options *o, struct bench **out, struct error *e)
{
    *out = NULL;
    struct bench *b = mem_zalloc(sizeof *b);
    if (b != NULL) {
        b->d = d;
        clock_init(&b->clock);
        b->n_blocks = o->n_blocks;
        b->blocks_each = o->n_blocks / BENCH_SEQS;
        b->context = o->context_max;
        b->vocab = decoder_vocab(d);
        b->table = mem_array(b->n_blocks, sizeof *b->table);
        b->logits = mem_array(b->vocab, sizeof *b->logits);
    }
    if (b == NULL || b->table == NULL || b->logits == NULL) {
        bench_free(b);
        return FAIL(e, ERR_NOMEM, "no memory to measure a model");
    }
    for (uint32_t i = 0; i < b->n_blocks; i++)
        b->table[i] = i;
    *out = b;
    return OK;
}

void bench_free(struct bench *b)
{
    if (b == NULL)
        return;
    mem_free(b->table);
    mem_free(b->logits);
    mem_free(b);
}

/* n rows of each of n_seqs sequences at positions from .. from+n-1. */
static enum err step(struct bench *b, uint32_t n_seqs, uint32_t from, uint32_t n, bool want_logits, struct error *e)
{
    assert(n_seqs <= BENCH_SEQS && n_seqs * n <= BENCH_ROWS && from + n <= b->context);
    for (uint32_t s = 0, row = 0; s < n_seqs; s++) {
        const uint32_t first_block = n_seqs == 1 ? 0 : s * b->blocks_each;
        b->seqs[s] = (struct batch_seq){.first_row = row, .n_rows = n, .n_kv = from + n, .table_at = first_block};
        for (uint32_t i = 0; i < n; i++, row++) {
            b->pos[row] = from + i;
            b->seq[row] = s;
            b->slot[row] = first_block * BLOCK_TOKENS + from + i;
            b->token[row] = (int32_t)((from + i + 1 + s * 31) * 2654435761u % b->vocab);
        }
        b->out_row[s] = row - 1;
    }
    const struct step now = {.n_rows = n_seqs * n,
        .n_seqs = n_seqs,
        .n_out = want_logits ? n_seqs : 0,
        .n_table = b->n_blocks,
        .token = b->token,
        .pos = b->pos,
        .seq = b->seq,
        .seqs = b->seqs,
        .table = b->table,
        .kv_slot = b->slot,
        .out_row = b->out_row};
    TRY(decoder_step(b->d, &now, e));
    return want_logits ? decoder_read_logits(b->d, 0, b->logits, e) : OK; /* reading waits for the device */
}

static enum err fill_to(struct bench *b, uint32_t n_seqs, uint32_t to, struct error *e)
{
    for (uint32_t at = 0; at < to;) {
        const uint32_t n = MIN(to - at, BENCH_ROWS / n_seqs);
        TRY(step(b, n_seqs, at, n, at + n == to, e));
        at += n;
    }
    return OK;
}

enum err bench_prefill(struct bench *b, uint32_t n, double *seconds, struct error *e)
{
    const uint64_t start = clock_now(&b->clock);
    TRY(fill_to(b, 1, n, e));
    *seconds = (double)(clock_now(&b->clock) - start) / 1e9;
    return OK;
}

enum err bench_decode(
    struct bench *b, uint32_t n_seqs, uint32_t from, uint32_t n, bool fill, double *seconds, struct error *e)
{
    if (fill)
        TRY(fill_to(b, n_seqs, from, e));
    const uint64_t start = clock_now(&b->clock);
    for (uint32_t i = 0; i < n; i++)
        TRY(step(b, n_seqs, from + i, 1, true, e));
    *seconds = (double)(clock_now(&b->clock) - start) / 1e9;
    return OK;
}
