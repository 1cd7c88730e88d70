/* A smaller model that guesses; see propose.h. What the scheduler does for the model is done here in small: a sequence
 * has tokens that the draft has seen, and each round closes the gap.
 *
 *       0 .......... base ......... seen              base: tokens known when it guessed last; guesses behind
 *       |<-- known -->|<- guesses ->|
 *
 * When guesses are wanted again, more tokens are known: as far as they agree with what was guessed, their keys and
 * values are there already; the rest is cut off. So a sequence that is asked about at every step lacks one token, or
 * two when all guesses held. A new one lacks its prompt, and catches up over some turns without guessing.
 *
 * Blocks belong to whoever guessed last: when the pool runs out, the sequence that was asked about longest ago loses
 * its own, and would catch up again. Nobody tells this file that a sequence has ended; a ticket that is not the slot's
 * any more says so. Full blocks are published, so sequences that begin alike catch up once.
 *
 * The choosing is that of the model's runner (choose.h, or ask.h where the device chooses), draws included. */
#include "base/limits.h"
#include "base/mem.h"
#include "engine/ask.h"
#include "engine/propose.h"
#include "kv/kv.h"
#include "model/model.h"

#include <math.h>
#include <string.h>

#define NO_ONE UINT32_MAX

struct draft_seq { /* by the scheduler's slot */
    uint64_t ticket;
    bool is_open;
    struct kv_seq kv;
    uint32_t seen, base;
    uint32_t n_guess, guess[SPEC_K_MAX];
    uint64_t used; /* the turn in which it was asked about last */
    uint32_t rows; /* in the round being made */
    bool is_level; /* nothing known is unseen */
};

struct draft {
    struct proposer base;
    struct draft_options o;
    struct kv *kv;
    struct draft_seq *seqs; /* [slots_max] */
    uint32_t *open;         /* [n_open] slots with blocks */
    uint32_t n_open, opens_max;
    uint64_t turn;
    uint32_t vocab; /* of the draft */
    struct sampler *sampler;
    struct grammar_walk *walk; /* behind what was guessed */
    float *row;                /* [vocab of the model], padded */
    uint32_t *ids;             /* [context_max] known tokens in one piece */
    uint32_t *best;            /* [seqs_max] */
    struct asks asks;          /* of a device that chooses by itself; cap 0: the host chooses */
    struct sample_got *got;    /* [seqs_max] */
    uint64_t *masks;           /* [seqs_max][words], where the device copies them from; else room for one */
    uint32_t n_masks, words;   /* words: of a mask */
    uint32_t *out_ask;         /* [seqs_max] which ask an output row is of */
    struct step step;          /* arrays below */
    int32_t *token;            /* [rows_max] */
    uint32_t *pos, *seq_of, *kv_slot, *out_row, *table;
    struct batch_seq *batch;
};

static struct draft *self(struct proposer *p)
{
    return (struct draft *)(void *)p;
}

static uint32_t token_at(const struct spec_ask *a, const struct draft_seq *q, uint32_t pos)
{
    const uint32_t n_prompt = a->request->o.n_prompt, known = n_prompt + a->n_out;
    return pos < n_prompt ? a->request->o.prompt[pos]
           : pos < known  ? a->choice->ids[pos - n_prompt]
                          : q->guess[pos - known];
}

/* ---- who has blocks ---- */

static void seq_close(struct draft *d, uint32_t slot)
{
    struct draft_seq *q = &d->seqs[slot];
    if (!q->is_open)
        return;
    kv_seq_close(d->kv, q->kv, 0);
    *q = (struct draft_seq){0};
    for (uint32_t i = 0; i < d->n_open; i++)
        if (d->open[i] == slot) {
            d->open[i] = d->open[--d->n_open];
            return;
        }
}

/* The one asked about longest ago gives its blocks up; false: only those of this turn are left. */
static bool evict(struct draft *d)
{
    uint32_t oldest = NO_ONE;
    for (uint32_t i = 0; i < d->n_open; i++) {
        const uint32_t slot = d->open[i];
        if (d->seqs[slot].used != d->turn && (oldest == NO_ONE || d->seqs[slot].used < d->seqs[oldest].used))
            oldest = slot;
    }
    if (oldest == NO_ONE)
        return false;
    seq_close(d, oldest);
    return true;
}

static bool seq_open(struct draft *d, const struct spec_ask *a, uint32_t known)
{
    struct draft_seq *q = &d->seqs[a->slot];
    const struct request_options *o = &a->request->o;
    enum kv_hit hit;
    memcpy(d->ids, o->prompt, o->n_prompt * sizeof *d->ids);
    memcpy(d->ids + o->n_prompt, a->choice->ids, a->n_out * sizeof *d->ids);
    const struct kv_key key = {.adapter = o->adapter, .salt = o->salt};
    struct draft_seq made = {.ticket = a->ticket, .is_open = true};
    if (d->n_open == d->opens_max && !evict(d))
        return false;
    if (kv_seq_open(d->kv, key, d->ids, known, true, 0, &made.kv, &made.seen, &hit) != OK)
        return false;
    made.base = made.seen;
    *q = made;
    d->open[d->n_open++] = a->slot;
    return true;
}

/* What of the sequence the draft has seen and still holds: at most all known tokens but the last. */
static bool seq_level(struct draft *d, const struct spec_ask *a)
{
    struct draft_seq *q = &d->seqs[a->slot];
    const uint32_t known = a->request->o.n_prompt + a->n_out;
    if (known + a->k > d->o.context_max)
        return false;
    if (q->is_open && q->ticket != a->ticket)
        seq_close(d, a->slot);
    if (!q->is_open && !seq_open(d, a, known))
        return false;
    uint32_t right = q->base;
    while (right < MIN(q->seen, known) && token_at(a, q, right) == q->guess[right - q->base])
        right++;
    q->seen = MIN(MIN(q->seen, right), known - 1);
    q->base = known;
    q->n_guess = 0;
    q->used = d->turn;
    return true;
}

/* Blocks for what is known and the guesses to come. */
static bool seq_grow(struct draft *d, uint32_t slot, uint32_t n_tokens)
{
    struct draft_seq *q = &d->seqs[slot];
    struct kv_copy copy;
    uint32_t n_copies;
    kv_seq_truncate(d->kv, q->kv, q->seen, 0);
    while (kv_seq_grow(d->kv, q->kv, n_tokens, q->seen, &copy, &n_copies, 0) != OK)
        if (!evict(d))
            return false;
    if (n_copies > 0)
        decoder_copy_blocks(d->o.decoder, &copy.src, &copy.dst, 1); /* before anybody can take the source */
    return true;
}

/* ---- one step of the draft ---- */

static void step_begin(struct draft *d)
{
    d->step.n_rows = d->step.n_seqs = d->step.n_out = d->step.n_table = 0;
    d->step.want_best = true;
}

/* Rows from `seen` on; the last wants a guess when nothing is unseen behind it. */
static bool step_add(struct draft *d, const struct spec_ask *a, uint32_t i_ask, uint32_t n, bool wants)
{
    struct draft_seq *q = &d->seqs[a->slot];
    struct step *s = &d->step;
    uint32_t n_blocks;
    const uint32_t *table = kv_seq_table(d->kv, q->kv, &n_blocks), bt = d->o.block_tokens;
    if (s->n_seqs == d->o.seqs_max || n > d->o.rows_max - s->n_rows || n_blocks > d->o.table_max - s->n_table)
        return false;
    for (uint32_t k = 0; k < n; k++)
        if (token_at(a, q, q->seen + k) >= d->vocab)
            return false; /* a token that the draft does not have: nothing can be said behind it */
    d->batch[s->n_seqs] =
        (struct batch_seq){.first_row = s->n_rows, .n_rows = n, .n_kv = q->seen + n, .table_at = s->n_table};
    memcpy(d->table + s->n_table, table, n_blocks * sizeof *table);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t row = s->n_rows + k, pos = q->seen + k;
        d->token[row] = (int32_t)token_at(a, q, pos);
        d->pos[row] = pos;
        d->seq_of[row] = s->n_seqs;
        d->kv_slot[row] = table[pos / bt] * bt + pos % bt;
    }
    if (wants) {
        d->out_ask[s->n_out] = i_ask;
        d->out_row[s->n_out++] = s->n_rows + n - 1;
        s->want_best = s->want_best && choose_is_plain(a->request);
    }
    s->n_rows += n;
    s->n_table += n_blocks;
    s->n_seqs++;
    q->rows = n;
    return true;
}

/* The draft's logits as long as the model's. */
static enum err read_row(struct draft *d, uint32_t i, const float **out, struct error *e)
{
    *out = d->vocab >= d->o.vocab ? decoder_lend_logits(d->o.decoder, i) : NULL;
    if (*out != NULL)
        return OK;
    TRY(decoder_read_logits(d->o.decoder, i, d->row, e));
    for (uint32_t k = d->vocab; k < d->o.vocab; k++)
        d->row[k] = -INFINITY;
    *out = d->row;
    return OK;
}

/* Where its grammar stands behind its guesses; false: they have come to an end. */
static bool walk_guesses(struct draft *d, const struct slot_view *v, const struct draft_seq *q)
{
    struct error nothing = {0};
    if (v->choice->walk == NULL)
        return true;
    grammar_walk_copy(d->walk, v->choice->walk);
    for (uint32_t i = 0; i < q->n_guess; i++)
        if (grammar_accept(d->walk, q->guess[i], &nothing) != OK)
            return false;
    return true;
}

/* The best of each row: sent after the step, or read where the host computes. */
static enum err read_best(struct draft *d, struct error *e)
{
    if (!decoder_is_ahead(d->o.decoder))
        return decoder_read_best(d->o.decoder, d->best, e);
    decoder_send_best(d->o.decoder, 0);
    return decoder_sent_best(d->o.decoder, 0, d->step.n_out, d->best, e);
}

/* Of a step that nobody needs anything of, so that it is over: the model's comes next, on a stream of its own, and of
 * two kernels that each want all of the chip some blocks of both could be there and wait for the others for ever. */
static enum err step_over(struct draft *d, struct error *e)
{
    return decoder_is_ahead(d->o.decoder) ? read_best(d, e) : OK;
}

/* Which ids the next guess may be. A grammar's are written behind the masks so far; those that a request allows lie in
 * it. */
static struct row_mask mask_of(struct draft *d, const struct slot_view *v)
{
    uint64_t *room = d->masks + (size_t)d->n_masks * d->words;
    return choose_mask(v, v->choice->walk != NULL ? d->walk : NULL, room, d->o.vocab);
}

/* Asked of the device; false: the host has to choose. */
static bool ask_row(struct draft *d, const struct slot_view *v, const struct draft_seq *q, uint32_t i)
{
    const struct row_mask mask = mask_of(d, v);
    if (mask.bits != NULL)
        memmove(d->masks + (size_t)d->n_masks * d->words, mask.bits, d->words * sizeof *mask.bits);
    const uint32_t number = mask.bits != NULL ? d->n_masks : SAMPLE_NO_MASK;
    if (!asks_add(&d->asks, v, q->guess, q->n_guess, number, mask.is_forced, i, 0))
        return false;
    d->asks.ask[d->asks.n - 1].want_logprob = false;
    d->n_masks += mask.bits != NULL;
    return true;
}

static enum err choose_row(struct draft *d, const struct slot_view *v, struct draft_seq *q, uint32_t i, struct error *e)
{
    struct sample_result got = {0};
    const float *logits;
    struct error nothing = {0};
    TRY(read_row(d, i, &logits, e));
    if (choose_token(d->sampler, logits, v, q->guess, q->n_guess, mask_of(d, v), 0, &got, &nothing) == OK)
        q->guess[q->n_guess++] = got.id;
    return OK;
}

/* Guesses of requests that want more than the best: asked of the device as far as it can choose. */
static enum err choose_rows(struct draft *d, const struct spec_ask *asks, const struct slots *slots, struct error *e)
{
    d->n_masks = 0;
    asks_clear(&d->asks);
    for (uint32_t i = 0; i < d->step.n_out; i++) {
        struct draft_seq *q = &d->seqs[asks[d->out_ask[i]].slot];
        struct slot_view v;
        slots->view(slots->ctx, asks[d->out_ask[i]].slot, &v);
        if (v.request != NULL && walk_guesses(d, &v, q) && (d->asks.cap == 0 || !ask_row(d, &v, q, i)))
            TRY(choose_row(d, &v, q, i, e));
    }
    if (d->asks.n == 0)
        return step_over(d, e);
    decoder_sample(d->o.decoder,
        &(struct decoder_asks){.ask = d->asks.ask,
            .words = d->asks.words,
            .masks = d->masks,
            .n = d->asks.n,
            .n_words = d->asks.n_words,
            .n_masks = d->n_masks},
        0, false);
    TRY(decoder_sampled(d->o.decoder, 0, d->asks.n, d->got, NULL, e));
    for (uint32_t k = 0; k < d->asks.n; k++) {
        struct draft_seq *q = &d->seqs[asks[d->out_ask[d->asks.ask[k].row]].slot];
        if (d->got[k].id != UINT32_MAX)
            q->guess[q->n_guess++] = d->got[k].id;
    }
    return OK;
}

static enum err step_run(struct draft *d, const struct spec_ask *asks, const struct slots *slots, struct error *e)
{
    if (d->step.n_rows == 0)
        return OK;
    TRY(decoder_step(d->o.decoder, &d->step, e));
    if (d->step.n_out == 0)
        return step_over(d, e);
    if (!d->step.want_best)
        return choose_rows(d, asks, slots, e);
    TRY(read_best(d, e));
    for (uint32_t i = 0; i < d->step.n_out; i++) {
        struct draft_seq *q = &d->seqs[asks[d->out_ask[i]].slot];
        q->guess[q->n_guess++] = d->best[i];
    }
    return OK;
}

/* Compute what was added; the rows are seen then. */
static enum err step_end(
    struct draft *d, const struct spec_ask *asks, uint32_t n, const struct slots *slots, struct error *e)
{
    TRY(step_run(d, asks, slots, e));
    for (uint32_t i = 0; i < n; i++) {
        struct draft_seq *q = &d->seqs[asks[i].slot];
        q->seen += q->used == d->turn ? q->rows : 0;
        q->rows = 0;
    }
    return OK;
}

/* ---- the rounds ---- */

/* Everybody's unseen tokens: first those that lack few, so that a long prompt does not stop the others. */
static enum err catch_up(
    struct draft *d, const struct spec_ask *asks, uint32_t n, const struct slots *slots, struct error *e)
{
    step_begin(d);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n; i++) {
            struct draft_seq *q = &d->seqs[asks[i].slot];
            if (q->used != d->turn || q->rows > 0)
                continue;
            const uint32_t gap = q->base - q->seen, room = d->o.rows_max - d->step.n_rows;
            const bool lacks_few = gap <= SPEC_K_MAX;
            if (lacks_few != (pass == 0) || room == 0)
                continue;
            const uint32_t rows = MIN(gap, room);
            if (!seq_grow(d, asks[i].slot, rows == gap ? q->base + asks[i].k - 1 : q->seen + rows))
                continue;
            q->is_level = rows == gap;
            if (!step_add(d, &asks[i], i, rows, rows == gap))
                q->is_level = false;
        }
    return step_end(d, asks, n, slots, e);
}

static enum err next_round(struct draft *d, const struct spec_ask *asks, uint32_t n, uint32_t round,
    const struct slots *slots, struct error *e)
{
    step_begin(d);
    for (uint32_t i = 0; i < n; i++) {
        struct draft_seq *q = &d->seqs[asks[i].slot];
        if (q->used != d->turn || !q->is_level || asks[i].k <= round || q->n_guess != round)
            continue;
        if (!step_add(d, &asks[i], i, 1, true))
            q->is_level = false;
    }
    return step_end(d, asks, n, slots, e);
}

static enum err draft_propose(struct proposer *p, const struct spec_ask *asks, uint32_t n, const struct slots *slots,
    struct guesses *out, struct error *e)
{
    struct draft *d = self(p);
    uint32_t rounds = 0;
    d->turn++;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_seq *q = &d->seqs[asks[i].slot];
        if (seq_level(d, &asks[i])) {
            q->is_level = false;
            q->rows = 0;
            rounds = MAX(rounds, asks[i].k);
        }
    }
    TRY(catch_up(d, asks, n, slots, e));
    for (uint32_t round = 1; round < rounds; round++)
        TRY(next_round(d, asks, n, round, slots, e));
    for (uint32_t i = 0; i < n; i++) {
        struct draft_seq *q = &d->seqs[asks[i].slot];
        if (q->used != d->turn)
            continue;
        kv_seq_truncate(d->kv, q->kv, q->seen, 0);
        kv_seq_publish(d->kv, q->kv, asks[i].request->o.prompt, asks[i].request->o.n_prompt, asks[i].choice->ids,
            MIN(q->seen, q->base));
        out[i].n = q->n_guess;
        out[i].trust = SPEC_SURE;
        memcpy(out[i].ids, q->guess, q->n_guess * sizeof *q->guess);
    }
    return OK;
}

static enum err draft_check(const struct proposer *p, struct error *e)
{
    return kv_check(((const struct draft *)(const void *)p)->kv, e);
}

/* ---- making one ---- */

/* All but its decoder, which must still be there. */
static void draft_free(struct draft *d)
{
    if (d->asks.cap > 0)
        decoder_host_free(d->o.decoder, d->masks);
    else
        mem_free(d->masks);
    kv_free(d->kv);
    sampler_free(d->sampler);
    asks_fini(&d->asks);
    mem_free(d->got);
    mem_free(d->walk);
    mem_free(d->seqs);
    mem_free(d->open);
    mem_free(d->row);
    mem_free(d->ids);
    mem_free(d->best);
    mem_free(d->out_ask);
    mem_free(d->token);
    mem_free(d->pos);
    mem_free(d->seq_of);
    mem_free(d->kv_slot);
    mem_free(d->out_row);
    mem_free(d->table);
    mem_free(d->batch);
    mem_free(d);
}

static void draft_close(struct proposer *p)
{
    struct decoder *decoder = self(p)->o.decoder;
    draft_free(self(p));
    decoder_close(decoder);
}

/* A device chooses where its ids are the model's. */
static enum err make_choosing(struct draft *d, struct error *e)
{
    const struct draft_options *o = &d->o;
    d->words = (o->vocab + 63) / 64;
    if (decoder_is_ahead(o->decoder) && d->vocab == o->vocab) {
        TRY(asks_init(&d->asks, o->seqs_max, ENGINE_ASK_WORDS, e));
        d->got = mem_array(o->seqs_max, sizeof *d->got);
        d->masks = decoder_host_new(o->decoder, (size_t)o->seqs_max * d->words * sizeof *d->masks);
    } else
        d->masks = mem_array(d->words, sizeof *d->masks);
    if (d->masks == NULL || (d->asks.cap > 0 && d->got == NULL))
        return FAIL(e, ERR_NOMEM, "no memory for the masks of a draft of %u sequences", o->seqs_max);
    return sampler_new(o->vocab, &d->sampler, e);
}

static enum err make_room(struct draft *d, struct error *e)
{
    const struct draft_options *o = &d->o;
    d->seqs = mem_array(o->slots_max, sizeof *d->seqs);
    d->open = mem_array(d->opens_max, sizeof *d->open);
    d->row = mem_array(MAX(o->vocab, d->vocab), sizeof *d->row);
    d->ids = mem_array(o->context_max, sizeof *d->ids);
    d->best = mem_array(o->seqs_max, sizeof *d->best);
    d->out_ask = mem_array(o->seqs_max, sizeof *d->out_ask);
    d->token = mem_array(o->rows_max, sizeof *d->token);
    d->pos = mem_array(o->rows_max, sizeof *d->pos);
    d->seq_of = mem_array(o->rows_max, sizeof *d->seq_of);
    d->kv_slot = mem_array(o->rows_max, sizeof *d->kv_slot);
    d->out_row = mem_array(o->seqs_max, sizeof *d->out_row);
    d->table = mem_array(o->table_max, sizeof *d->table);
    d->batch = mem_array(o->seqs_max, sizeof *d->batch);
    d->walk = mem_zalloc(grammar_walk_bytes());
    if (d->seqs == NULL || d->open == NULL || d->row == NULL || d->ids == NULL || d->best == NULL ||
        d->out_ask == NULL || d->token == NULL || d->pos == NULL || d->seq_of == NULL || d->kv_slot == NULL ||
        d->out_row == NULL || d->table == NULL || d->batch == NULL || d->walk == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a draft of %u sequences", o->seqs_max);
    d->step.token = d->token;
    d->step.pos = d->pos;
    d->step.seq = d->seq_of;
    d->step.seqs = d->batch;
    d->step.table = d->table;
    d->step.kv_slot = d->kv_slot;
    d->step.out_row = d->out_row;
    TRY(make_choosing(d, e));
    const struct kv_options kv = {.n_blocks = o->n_blocks,
        .block_tokens = o->block_tokens,
        .seqs_max = d->opens_max,
        .seq_blocks_max = (o->context_max + o->block_tokens - 1) / o->block_tokens,
        .prefix_cache = true};
    return kv_new(&kv, &d->kv, e);
}

enum err draft_proposer_open(const struct draft_options *o, struct proposer **out, struct error *e)
{
    static const struct proposer_ops ops = {
        .name = "draft", .propose = draft_propose, .check = draft_check, .close = draft_close};
    *out = NULL;
    struct draft *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a draft");
    d->base.ops = &ops;
    d->o = *o;
    d->vocab = decoder_vocab(o->decoder);
    d->opens_max = 2 * o->seqs_max;
    const enum err err = make_room(d, e);
    if (err != OK) {
        draft_free(d); /* its decoder stays the caller's */
        return err;
    }
    *out = &d->base;
    return OK;
}
