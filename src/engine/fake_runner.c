/* A runner without a model; see runner.h. The next token is a hash of the context, read back through the block tables
 * as a model would read keys and values: so whatever the bookkeeping of blocks does wrong (a block in two hands, one
 * written while shared, a copy forgotten, a swap to the wrong place) changes an answer.
 *
 * Each KV slot holds the hash of all tokens up to its position, made from the slot of the position before and the
 * row's token. A row therefore costs the same at any context. With check_kv a slot also holds its token, and every
 * position of every context is proved: the chain of hashes from position 0, and, when the token is chosen, that the
 * tokens are those of the request.
 *
 * Time: a step is done at max(now, end of the step before) + its cost. On a virtual clock wait moves the clock there,
 * on a real one it sleeps; with depth 0 or 1 alike. */
#include "base/clock.h"
#include "base/mem.h"
#include "engine/runner.h"

#include <string.h>

#define CHAIN_START UINT64_C(0x9e3779b97f4a7c15)
#define HASH_ONE    UINT64_C(4503599627370496) /* 2^52: hashes above it, scaled, read as numbers in [0, 1) */

struct cell { /* one KV slot */
    uint64_t chain;
    uint32_t token, pos;
};

struct flight { /* what is kept of a step between forward and wait */
    uint64_t step, done_ns, cost_ns;
    uint32_t n, n_chains;
    uint64_t *chain;           /* [out_max] of each sampling sequence's last row, or of the last n_spec + 1 */
    struct step_token *tokens; /* [out_max] */
    struct token_logprob *top; /* [out_max][top_max] */
};

struct fake_runner {
    struct runner base;
    struct runner_ops ops;
    struct fake_runner_options o;
    struct runner_limits l;
    uint32_t block_tokens, n_blocks, n_host_blocks;
    struct cell *cells, *host; /* [blocks][block_tokens] */
    struct flight flights[2];  /* by step parity */
    uint64_t free_ns;          /* the device is free from then on */
    uint64_t *mask;            /* a bit per id */
    struct masks *beside;      /* or NULL */
    uint32_t *mask_row;        /* [seqs_max] of a plan's sequences; UINT32_MAX: none */
    struct grammar_walk *walk; /* behind guesses */
};

static uint64_t mix(uint64_t chain, uint64_t token, uint64_t pos)
{
    uint64_t x = chain ^ (token + 1) * UINT64_C(0xbf58476d1ce4e5b9) ^ (pos + 1) * UINT64_C(0x94d049bb133111eb);
    x = (x ^ (x >> 31)) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ (x >> 29)) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 32);
}

uint64_t fake_chain_start(uint32_t adapter)
{
    return CHAIN_START + adapter;
}

uint64_t fake_chain_add(uint64_t chain, uint32_t token, uint32_t pos)
{
    return mix(chain, token, pos);
}

static struct fake_runner *self(struct runner *r)
{
    return (struct fake_runner *)(void *)r;
}

static enum err copy_cells(struct cell *to, uint32_t n_to, const struct cell *from, uint32_t n_from,
    const struct kv_copy *c, uint32_t n, uint32_t block_tokens, struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].src >= n_from || c[i].dst >= n_to)
            return FAIL(
                e, ERR_INTERNAL, "copy of block %u to %u; there are %u and %u", c[i].src, c[i].dst, n_from, n_to);
        memcpy(to + (size_t)c[i].dst * block_tokens, from + (size_t)c[i].src * block_tokens, block_tokens * sizeof *to);
    }
    return OK;
}

static enum err do_copies(struct fake_runner *f, const struct plan *p, struct error *e)
{
    const uint32_t n = f->n_blocks, n_host = f->n_host_blocks, bt = f->block_tokens;
    TRY(copy_cells(f->host, n_host, f->cells, n, plan_evictions(p), p->n_evictions, bt, e));
    TRY(copy_cells(f->host, n_host, f->cells, n, plan_out_copies(p), p->n_out_copies, bt, e));
    TRY(copy_cells(f->cells, n, f->host, n_host, plan_restores(p), p->n_restores, bt, e));
    TRY(copy_cells(f->cells, n, f->host, n_host, plan_in_copies(p), p->n_in_copies, bt, e));
    return copy_cells(f->cells, n, f->cells, n, plan_copies(p), p->n_copies, bt, e);
}

/* The slot of a position of a sequence, through its table. */
static enum err slot_of(const struct fake_runner *f, const struct plan *p, const struct plan_seq *s, uint32_t pos,
    uint32_t *at, struct error *e)
{
    const uint32_t i = pos / f->block_tokens;
    if (i >= s->n_table)
        return FAIL(e, ERR_INTERNAL, "slot %u: position %u is behind its table of %u blocks", s->slot, pos, s->n_table);
    const uint32_t block = plan_table(p)[s->table_at + i];
    if (block >= f->n_blocks)
        return FAIL(e, ERR_INTERNAL, "slot %u: block %u of %u in its table", s->slot, block, f->n_blocks);
    *at = block * f->block_tokens + pos % f->block_tokens;
    return OK;
}

/* Every position before the first row holds what its predecessors say. */
static enum err prove_chain(
    const struct fake_runner *f, const struct plan *p, const struct plan_seq *s, struct error *e)
{
    uint64_t chain = fake_chain_start(s->adapter);
    for (uint32_t pos = 0; pos < s->first_pos; pos++) {
        uint32_t at;
        TRY(slot_of(f, p, s, pos, &at, e));
        const struct cell *c = &f->cells[at];
        chain = mix(chain, c->token, pos);
        if (c->pos != pos || c->chain != chain)
            return FAIL(e, ERR_INTERNAL, "step %llu, slot %u: KV slot %u is not its position %u",
                (unsigned long long)p->step, s->slot, at, pos);
    }
    return OK;
}

/* The token that the step before chose for this slot. */
static enum err gather(
    const struct fake_runner *f, const struct plan *p, uint32_t slot, uint32_t *token, struct error *e)
{
    const struct flight *before = &f->flights[(p->step - 1) & 1];
    for (uint32_t i = 0; before->step == p->step - 1 && i < before->n; i++)
        if (before->tokens[i].slot == slot) {
            /* where nothing was chosen its sequence is about to end, and any will do */
            *token = before->tokens[i].id < STEP_ID_OVER ? before->tokens[i].id : 0;
            return OK;
        }
    return FAIL(e, ERR_INTERNAL, "step %llu: slot %u waits for a token that the step before does not choose",
        (unsigned long long)p->step, slot);
}

/* One row: what it writes, and the chain up to it. */
static enum err run_row(struct fake_runner *f, const struct plan *p, const struct plan_seq *s, uint32_t row,
    uint64_t *chain, struct error *e)
{
    const uint32_t pos = plan_pos(p)[row], slot = plan_kv_slot(p)[row];
    uint32_t token, at;
    if (pos != s->first_pos + (row - s->first_row) || pos >= s->n_kv)
        return FAIL(e, ERR_INTERNAL, "row %u is at position %u", row, pos);
    if (plan_token(p)[row] == PLAN_TOKEN_FLYING)
        TRY(gather(f, p, s->slot, &token, e));
    else
        token = (uint32_t)plan_token(p)[row];
    if (token >= f->o.vocab)
        return FAIL(e, ERR_INTERNAL, "row %u has token %u of %u", row, token, f->o.vocab);
    *chain = mix(*chain, token, pos);
    TRY(slot_of(f, p, s, pos, &at, e));
    if (slot == PLAN_NO_WRITE) {
        if (f->cells[at].chain != *chain)
            return FAIL(e, ERR_INTERNAL, "slot %u: position %u is not written and was not there", s->slot, pos);
        return OK;
    }
    if (slot != at)
        return FAIL(e, ERR_INTERNAL, "slot %u: position %u is written to KV slot %u, not %u", s->slot, pos, slot, at);
    f->cells[at] = (struct cell){.chain = *chain, .token = token, .pos = pos};
    return OK;
}

/* Rows are written in one go before any is read back, as a model's layers do. */
static enum err run_seq(
    struct fake_runner *f, const struct plan *p, const struct plan_seq *s, struct flight *fl, struct error *e)
{
    uint64_t chain = fake_chain_start(s->adapter);
    if (s->n_rows == 0 || s->n_kv != s->first_pos + s->n_rows)
        return FAIL(
            e, ERR_INTERNAL, "slot %u: %u rows from %u, %u positions", s->slot, s->n_rows, s->first_pos, s->n_kv);
    if (f->o.check_kv)
        TRY(prove_chain(f, p, s, e));
    if (s->first_pos > 0) {
        uint32_t at;
        TRY(slot_of(f, p, s, s->first_pos - 1, &at, e));
        chain = f->cells[at].chain;
    }
    for (uint32_t i = 0; i < s->n_rows; i++) {
        TRY(run_row(f, p, s, s->first_row + i, &chain, e));
        if (s->samples != 0 && i + s->n_spec + 1 >= s->n_rows)
            fl->chain[fl->n_chains++] = chain;
    }
    return OK;
}

static uint64_t cost_of(const struct fake_runner *f, const struct plan *p)
{
    double ns = (double)f->o.base_ns + (double)f->o.row_ns * p->n_rows;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        ns += f->o.seq_context_ns * s->n_kv;
        ns += f->o.row_context_ns * s->n_rows * (s->first_pos + (s->n_rows + 1) * 0.5);
    }
    /* evictions go beside the step before */
    return (uint64_t)(ns + f->o.swap_ns_per_block * (p->n_out_copies + p->n_in_copies + p->n_restores));
}

static enum err check_sizes(const struct fake_runner *f, const struct plan *p, struct error *e)
{
    if (p->n_rows > f->l.rows_max || p->n_seqs > f->l.seqs_max || p->n_out > f->l.out_max ||
        p->n_table > f->l.table_max)
        return FAIL(e, ERR_INTERNAL, "a plan of %u rows, %u sequences, %u outputs, %u blocks is over the runner's size",
            p->n_rows, p->n_seqs, p->n_out, p->n_table);
    return OK;
}

static enum err fake_forward(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct fake_runner *f = self(r);
    (void)slots;
    struct flight *fl = &f->flights[p->step & 1];
    TRY(check_sizes(f, p, e));
    if (f->o.fail_at_step != 0 && p->step >= f->o.fail_at_step)
        return FAIL(e, ERR_IO, "the device failed at step %llu, as it was told to", (unsigned long long)p->step);
    fl->step = p->step;
    fl->n = fl->n_chains = 0;
    TRY(do_copies(f, p, e));
    for (uint32_t i = 0; i < p->n_seqs; i++)
        TRY(run_seq(f, p, &plan_seqs(p)[i], fl, e));
    fl->cost_ns = cost_of(f, p);
    if (f->o.clock != NULL) {
        const uint64_t now = clock_now(f->o.clock);
        f->free_ns = MAX(f->free_ns, now) + fl->cost_ns;
        fl->done_ns = f->free_ns;
    }
    return OK;
}

/* ---- choosing -----------------------------------------------------------------------------------------------------
 */

static bool is_banned(const struct slot_view *v, uint32_t id)
{
    for (uint32_t i = 0; i < v->n_banned; i++)
        if (v->banned[i] == id)
            return true;
    return false;
}

/* How far it is from id to the next one that a mask allows, or to the end of its word or of the vocabulary. */
static uint32_t to_next(const uint64_t *bits, uint32_t id, uint32_t vocab)
{
    const uint64_t rest = bits[id / 64] >> (id % 64);
    return MIN(rest != 0 ? (uint32_t)__builtin_ctzll(rest) : 64 - id % 64, vocab - id);
}

/* The first that may be, from the one that the hash says, round the vocabulary. */
uint32_t fake_choose(
    const struct fake_runner_options *o, const struct slot_view *v, uint64_t chain, struct row_mask mask)
{
    const struct sample_params *p = &v->choice->sample;
    const uint64_t h = p->temperature == 0.0f ? chain : mix(mix(chain, p->seed, p->choice), v->output_index, 0);
    uint32_t id = (uint32_t)(h >> 20) % o->vocab;
    if (o->eos_every != 0 && h % o->eos_every == 0)
        id = o->eos_id;
    for (uint32_t tries = 0, step; tries < o->vocab; tries += step) {
        step = mask.bits != NULL ? to_next(mask.bits, id, o->vocab) : 0;
        if (step == 0) {
            if (mask.is_forced || !is_banned(v, id))
                return id;
            step = 1;
        }
        id = (id + step) % o->vocab;
    }
    return STEP_ID_NONE;
}

/* The context is this request's own, token by token. */
static enum err prove_tokens(const struct fake_runner *f, const struct plan *p, const struct plan_seq *s,
    const struct slot_view *v, struct error *e)
{
    for (uint32_t pos = 0; pos < s->n_kv - s->n_spec; pos++) {
        uint32_t at;
        TRY(slot_of(f, p, s, pos, &at, e));
        const uint32_t n_prompt = v->request->o.n_prompt;
        const uint32_t want = pos < n_prompt ? v->request->o.prompt[pos] : v->choice->ids[pos - n_prompt];
        if (f->cells[at].token != want)
            return FAIL(e, ERR_INTERNAL, "step %llu, slot %u: position %u holds token %u instead of %u",
                (unsigned long long)p->step, s->slot, pos, f->cells[at].token, want);
    }
    return OK;
}

static void fill_logprobs(
    struct flight *fl, uint32_t i, uint64_t chain, const struct slot_view *v, const struct fake_runner *f)
{
    struct step_token *t = &fl->tokens[i];
    t->logprob = -(float)(double)(chain % HASH_ONE) / (float)HASH_ONE;
    t->n_top = MIN(MIN(v->request->o.n_top, f->l.top_max), f->o.vocab);
    t->top = fl->top + (size_t)i * f->l.top_max;
    for (uint32_t k = 0; k < t->n_top; k++)
        t->top[k] = (struct token_logprob){.id = (t->id + k) % f->o.vocab, .logprob = t->logprob - (float)k};
}

/* The tokens of one sequence, from the chains of its last rows: until one is not what was guessed. */
static void choose_seq(const struct fake_runner *f, const struct plan *p, const struct plan_seq *s,
    const struct slot_view *v, uint32_t mask_row, const uint64_t *chain, struct flight *fl)
{
    const int32_t *guess = plan_token(p) + s->first_row + s->n_rows - s->n_spec;
    const struct grammar_walk *walk = v->request != NULL ? v->choice->walk : NULL;
    for (uint32_t i = 0; i <= s->n_spec; i++) {
        const uint32_t k = fl->n++;
        fl->tokens[k] = (struct step_token){.slot = s->slot};
        if (v->request == NULL) /* it has ended: any token will do */
            return;
        const struct slot_view at = slot_view_later(v, i);
        const struct row_mask mask = i == 0 && mask_row != UINT32_MAX ? masks_row(f->beside, mask_row)
                                                                      : choose_mask(&at, walk, f->mask, f->o.vocab);
        fl->tokens[k].id = fake_choose(&f->o, &at, chain[i], mask);
        if (fl->tokens[k].id == STEP_ID_NONE)
            fl->tokens[k].id = choose_none(&at, walk, mask, f->o.vocab);
        if (v->request->o.want_logprobs || v->request->o.n_top > 0)
            fill_logprobs(fl, k, chain[i], v, f);
        if (i < s->n_spec && guess[i] != (int32_t)fl->tokens[k].id)
            return;
        if (walk != NULL && i == 0)
            grammar_walk_copy(f->walk, walk);
        if (walk != NULL && i < s->n_spec && grammar_accept(f->walk, fl->tokens[k].id, &(struct error){0}) != OK)
            return; /* an end token: nothing follows */
        walk = walk != NULL ? f->walk : NULL;
    }
}

/* Masks of all rows with a grammar, by other threads; the device has its step already. */
static void make_masks(struct fake_runner *f, const struct plan *p, const struct slots *slots)
{
    uint32_t n = 0;
    masks_clear(f->beside);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct slot_view v;
        slots->view(slots->ctx, plan_seqs(p)[i].slot, &v);
        const bool wants = plan_seqs(p)[i].samples != 0 && v.request != NULL && v.choice->walk != NULL;
        f->mask_row[i] = wants ? masks_add(f->beside, &v, v.choice->walk) : UINT32_MAX;
        n += wants;
    }
    masks_start(f->beside);
    if (f->o.masks.busy != NULL)
        f->o.masks.busy(f->o.masks.ctx, n);
    masks_join(f->beside);
}

static enum err fake_sample(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct fake_runner *f = self(r);
    struct flight *fl = &f->flights[p->step & 1];
    uint32_t n = 0;
    if (f->beside != NULL)
        make_masks(f, p, slots);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        struct slot_view v;
        slots->view(slots->ctx, s->slot, &v);
        if (v.request != NULL && f->o.check_kv)
            TRY(prove_tokens(f, p, s, &v, e));
        if (!s->samples)
            continue;
        choose_seq(f, p, s, &v, f->beside != NULL ? f->mask_row[i] : UINT32_MAX, fl->chain + n, fl);
        n += s->n_spec + 1;
    }
    return OK;
}

static enum err fake_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct fake_runner *f = self(r);
    struct flight *fl = &f->flights[p->step & 1];
    if (fl->step != p->step)
        return FAIL(e, ERR_INTERNAL, "step %llu was never launched", (unsigned long long)p->step);
    if (f->o.clock != NULL) {
        const uint64_t now = clock_now(f->o.clock);
        if (now < fl->done_ns)
            clock_sleep(f->o.clock, fl->done_ns - now);
    }
    *out = (struct step_result){.step = p->step, .cost_ns = fl->cost_ns, .n = fl->n, .tokens = fl->tokens};
    return OK;
}

static void fake_close(struct runner *r)
{
    struct fake_runner *f = self(r);
    for (size_t i = 0; i < COUNT_OF(f->flights); i++) {
        mem_free(f->flights[i].chain);
        mem_free(f->flights[i].tokens);
        mem_free(f->flights[i].top);
    }
    masks_free(f->beside);
    mem_free(f->mask_row);
    mem_free(f->cells);
    mem_free(f->host);
    mem_free(f->mask);
    mem_free(f->walk);
    mem_free(f);
}

enum err fake_runner_open(const struct fake_runner_options *o, const struct runner_limits *l, uint32_t n_blocks,
    uint32_t n_host_blocks, uint32_t block_tokens, struct runner **out, struct error *e)
{
    *out = NULL;
    assert(o->vocab > 0 && n_blocks > 0 && block_tokens > 0 && o->depth <= 1);
    struct fake_runner *f = mem_zalloc(sizeof *f);
    if (f == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner");
    f->ops = (struct runner_ops){.name = "fake",
        .depth = o->depth,
        .forward = fake_forward,
        .sample = fake_sample,
        .wait = fake_wait,
        .close = fake_close};
    f->base.ops = &f->ops;
    f->o = *o;
    f->l = *l;
    f->block_tokens = block_tokens;
    f->n_blocks = n_blocks;
    f->n_host_blocks = n_host_blocks;
    f->cells = mem_array((size_t)n_blocks * block_tokens, sizeof *f->cells);
    f->host = mem_array((size_t)n_host_blocks * block_tokens, sizeof *f->host);
    f->mask = mem_array((o->vocab + 63) / 64, sizeof *f->mask);
    f->walk = mem_zalloc(grammar_walk_bytes());
    f->mask_row = mem_array(l->seqs_max, sizeof *f->mask_row);
    bool ok = f->cells != NULL && f->host != NULL && f->mask != NULL && f->walk != NULL && f->mask_row != NULL;
    for (size_t i = 0; i < COUNT_OF(f->flights); i++) {
        struct flight *fl = &f->flights[i];
        fl->chain = mem_array(l->out_max, sizeof *fl->chain);
        fl->tokens = mem_array(l->out_max, sizeof *fl->tokens);
        fl->top = mem_array((size_t)l->out_max * l->top_max, sizeof *fl->top);
        ok = ok && fl->chain != NULL && fl->tokens != NULL && fl->top != NULL;
    }
    if (!ok) {
        fake_close(&f->base);
        return FAIL(e, ERR_NOMEM, "no memory for a runner of %u blocks", n_blocks);
    }
    if (o->masks.threads > 0) {
        const enum err err = masks_new(l->seqs_max, o->vocab, o->masks.threads, NULL, &f->beside, e);
        if (err != OK) {
            fake_close(&f->base);
            return err;
        }
        masks_watch(f->beside, o->masks.made, o->masks.ctx);
    }
    *out = &f->base;
    return OK;
}

void runner_close(struct runner *r)
{
    if (r != NULL)
        r->ops->close(r);
}
