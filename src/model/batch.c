/* The arrays of a step. They lie behind each other in one run of bytes, written by one copy, laid out by the sizes of
 * the step's bucket alone: so a recorded step finds them where they lay when it was recorded, whatever it holds now.
 *
 * Buckets. Where steps are recorded, a step that comes again and again in slightly different sizes (decoding, verifying
 * guesses) is filled up to one of a few sizes with rows of padding: token 0 at position 0 of the first sequence, which
 * write no keys; and with sequences of no rows. A recording costs milliseconds, a row of padding next to nothing. A
 * mixture of experts is not filled up: rows of padding would make it read experts that nobody asked for. */
#include "model/decoder_int.h"

#include <string.h>

#define EXACT_ROWS 16u /* up to so many rows a step is its own bucket: one stream, with or without guesses */
_Static_assert(EXACT_ROWS >= GRAPH_SEQ_ROWS, "a step of one sequence has no padding: kernels are chosen by its rows");

static uint32_t round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* Rows of a bucket: at most an eighth of them, and seven, are padding. */
static uint32_t rows_bucket(uint32_t n)
{
    return n <= EXACT_ROWS ? n : n <= 64 ? round_up(n, 8) : n <= 512 ? round_up(n, 16) : round_up(n, 64);
}

static uint32_t seqs_bucket(uint32_t n)
{
    return n <= 4 ? n : n <= 16 ? round_up(n, 4) : round_up(n, 8);
}

static uint32_t power_of_two(uint32_t n)
{
    uint32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

struct graph_key decoder_bucket(const struct step *s, const struct decoder_options *o, bool fills)
{
    struct graph_key key = {.n_rows = s->n_rows, .n_seqs = s->n_seqs, .n_out = s->n_out, .want_best = s->want_best};
    for (uint32_t i = 0; i < s->n_seqs; i++)
        key.seq_rows = MAX(key.seq_rows, s->seqs[i].n_rows);
    key.seq_rows = power_of_two(MAX(key.seq_rows, 1u));
    const bool decodes = s->n_rows == s->n_seqs && s->n_out == s->n_rows;
    const bool verifies = s->n_out == s->n_rows && s->n_rows <= GRAPH_VERIFY_ROWS && key.seq_rows <= GRAPH_SEQ_ROWS;
    if (!fills || !(decodes || verifies))
        return key;
    const uint32_t rows = rows_bucket(s->n_rows), seqs = decodes ? rows : seqs_bucket(s->n_seqs);
    if (rows > o->rows_max || rows > o->out_max || seqs > o->seqs_max)
        return key;
    key.n_rows = key.n_out = rows;
    key.n_seqs = seqs;
    return key;
}

/* ---- where what lies ----------------------------------------------------------------------------------------------
 */

/* In words; every array begins at a multiple of 16 bytes. */
struct layout {
    size_t token, pos, seq, slot, out_row, seqs, table;
};

static size_t quads(size_t words)
{
    return (words + 3) / 4 * 4;
}

static struct layout layout_of(uint32_t n_rows, uint32_t n_seqs, uint32_t n_out)
{
    struct layout l = {0};
    l.pos = l.token + quads(n_rows);
    l.seq = l.pos + quads(n_rows);
    l.slot = l.seq + quads(n_rows);
    l.out_row = l.slot + quads(n_rows);
    l.seqs = l.out_row + quads(n_out);
    l.table = l.seqs + n_seqs * (sizeof(struct batch_seq) / sizeof(uint32_t));
    return l;
}

size_t decoder_batch_words(const struct decoder_options *o, uint32_t table_max)
{
    return layout_of(o->rows_max, o->seqs_max, o->out_max).table + table_max;
}

/* n words of from, then value up to `all`. */
static void fill(uint32_t *to, const void *from, uint32_t n, uint32_t all, uint32_t value)
{
    if (n > 0)
        memcpy(to, from, n * sizeof *to);
    for (uint32_t i = n; i < all; i++)
        to[i] = value;
}

void decoder_batch_name(struct decoder *d, struct graph_key key)
{
    const struct layout l = layout_of(key.n_rows, key.n_seqs, key.n_out);
    uint32_t *b = d->batch_room;
    d->tables[0] = b + l.table;
    d->slots[0] = b + l.slot;
    d->batch = (struct batch){.n_rows = key.n_rows,
        .n_seqs = key.n_seqs,
        .n_out = key.n_out,
        .seq_rows = key.seq_rows,
        .token = (const int32_t *)(const void *)(b + l.token),
        .pos = b + l.pos,
        .seq = b + l.seq,
        .seqs = (const struct batch_seq *)(const void *)(b + l.seqs),
        .out_row = b + l.out_row,
        .tables = d->tables,
        .kv_slot = d->slots};
}

void decoder_batch_write(struct decoder *d, const struct step *s, struct graph_key key)
{
    const struct layout l = layout_of(key.n_rows, key.n_seqs, key.n_out);
    uint32_t *h = d->batch_host;
    fill(h + l.token, s->token, s->n_rows, key.n_rows, 0);
    fill(h + l.pos, s->pos, s->n_rows, key.n_rows, 0);
    fill(h + l.seq, s->seq, s->n_rows, key.n_rows, 0);
    fill(h + l.slot, s->kv_slot, s->n_rows, key.n_rows, KV_SLOT_NONE);
    fill(h + l.out_row, s->out_row, s->n_out, key.n_out, 0);
    memset(h + l.seqs, 0, key.n_seqs * sizeof *s->seqs);
    memcpy(h + l.seqs, s->seqs, s->n_seqs * sizeof *s->seqs);
    memcpy(h + l.table, s->table, s->n_table * sizeof *s->table);
    d->ops->dev_write(d->dev, d->batch_room, h, (l.table + s->n_table) * sizeof *h);
    decoder_batch_name(d, key);
    d->n_rows = s->n_rows;
    d->n_out = s->n_out;
}
