/* The model as a runner: a plan becomes a struct step, the step's logits become tokens; see runner.h. On a device that
 * is asynchronous and chooses by itself, runner_ahead.c takes over; here is what both need.
 *
 * Choosing. When every row of a step is plainly greedy (temperature 0 and nothing that changes or reports logits), the
 * device itself finds the largest and only indices come back. Otherwise the rows are sampled one by one by sample/: on
 * a device whose memory is the host's in place, without a copy, its threads sharing the rows; elsewhere rows are
 * fetched some at a time, and a few threads choose among the last ones while the next ones come. Which way a row goes
 * never changes its token. The rows of a sequence with guesses are one piece of work, row after row, until a guess is
 * wrong.
 *
 * Grammars. A row's mask is made by the worker that chooses its token; where rows have to be fetched, all masks are
 * made before, by those threads, while the device computes (masks.h). Either way the walk stands behind the newest
 * token, since the step before has been committed by then. Behind a guess that was right it is a copy that goes on.
 *
 * Swap space is host memory of the device's own choosing. Blocks go there and come back by themselves, beside the step
 * that runs and before the one of their plan; nobody waits for them here. */
#include "base/mem.h"
#include "base/team.h"
#include "engine/runner_int.h"

#include <string.h>

/* ---- forward ------------------------------------------------------------------------------------------------------
 */

static void split(struct model_runner *m, const struct kv_copy *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        m->src[i] = c[i].src;
        m->dst[i] = c[i].dst;
    }
}

enum way { EVICT, SWAP_OUT, BRING_IN };

static enum err move(struct model_runner *m, enum way way, const struct kv_copy *c, uint32_t n, struct error *e)
{
    const bool is_out = way != BRING_IN;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t place = is_out ? c[i].dst : c[i].src;
        if (place >= m->n_host_blocks)
            return FAIL(
                e, ERR_INTERNAL, "swap %s host block %u of %u", is_out ? "to" : "from", place, m->n_host_blocks);
    }
    split(m, c, n);
    if (n > 0)
        decoder_move_blocks(m->d,
            (struct move_blocks_args){
                .host = m->host, .src = m->src, .dst = m->dst, .n = n, .is_out = is_out, .waits = way == SWAP_OUT});
    return OK;
}

/* In the plan's order. */
static enum err do_copies(struct model_runner *m, const struct plan *p, struct error *e)
{
    TRY(move(m, EVICT, plan_evictions(p), p->n_evictions, e));
    TRY(move(m, SWAP_OUT, plan_out_copies(p), p->n_out_copies, e));
    TRY(move(m, BRING_IN, plan_restores(p), p->n_restores, e));
    TRY(move(m, BRING_IN, plan_in_copies(p), p->n_in_copies, e));
    split(m, plan_copies(p), p->n_copies);
    if (p->n_copies > 0)
        decoder_copy_blocks(m->d, m->src, m->dst, p->n_copies);
    return OK;
}

bool runner_all_greedy(const struct plan *p, const struct slots *slots)
{
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct slot_view v;
        if (plan_seqs(p)[i].n_out == 0)
            continue;
        slots->view(slots->ctx, plan_seqs(p)[i].slot, &v);
        if (v.request != NULL && !choose_is_plain(v.request))
            return false;
    }
    return true;
}

static enum err check_sizes(const struct model_runner *m, const struct plan *p, struct error *e)
{
    if (p->n_rows > m->l.rows_max || p->n_seqs > m->l.seqs_max || p->n_out > m->l.out_max ||
        p->n_table > m->l.table_max || p->n_copies > m->l.copies_max || p->n_out_copies > m->l.copies_max ||
        p->n_in_copies > m->l.copies_max || p->n_evictions > m->l.copies_max || p->n_restores > m->l.copies_max)
        return FAIL(e, ERR_INTERNAL, "a plan of %u rows, %u sequences, %u outputs, %u blocks is over the runner's size",
            p->n_rows, p->n_seqs, p->n_out, p->n_table);
    return OK;
}

enum err runner_forward(
    struct model_runner *m, const struct plan *p, const int32_t *token, bool wants_best, struct error *e)
{
    TRY(check_sizes(m, p, e));
    TRY(do_copies(m, p, e));
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        m->seqs[i] = (struct batch_seq){
            .first_row = s->first_row, .n_rows = s->n_rows, .n_kv = s->n_kv, .table_at = s->table_at};
    }
    const struct step step = {.n_rows = p->n_rows,
        .n_seqs = p->n_seqs,
        .n_out = p->n_out,
        .n_table = p->n_table,
        .token = token,
        .pos = plan_pos(p),
        .seq = plan_seq_of_row(p),
        .seqs = m->seqs,
        .table = plan_table(p),
        .kv_slot = plan_kv_slot(p),
        .out_row = plan_out_row(p),
        .want_best = wants_best};
    return p->n_rows > 0 ? decoder_step(m->d, &step, e) : OK; /* a step may be copies alone */
}

static enum err model_forward(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    m->start_ns = clock_now(&m->clock);
    m->wants_best = p->n_out > 0 && runner_all_greedy(p, slots);
    return runner_forward(m, p, plan_token(p), m->wants_best, e);
}

/* ---- sample -------------------------------------------------------------------------------------------------------
 */

/* Which output row is for what. */
void runner_make_jobs(struct model_runner *m, const struct plan *p, const struct slots *slots)
{
    m->n_jobs = m->n_tokens = m->n_prompts = 0;
    m->mask_wait_ns = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        struct slot_view v;
        if (s->n_out == 0)
            continue;
        slots->view(slots->ctx, s->slot, &v);
        for (uint32_t k = 0; k < s->n_out; k++) {
            const uint32_t out = s->first_out + k;
            struct row_job *j = &m->jobs[out];
            const bool is_token = s->samples != 0 && k + s->n_spec + 1 >= s->n_out;
            *j = (struct row_job){.seq = s, .samples = is_token, .view = v};
            j->pos = plan_pos(p)[plan_out_row(p)[out]];
            if (is_token) {
                const bool is_first = k + s->n_spec + 1 == s->n_out;
                j->i = m->n_tokens++;
                m->tokens[j->i] = (struct step_token){.slot = is_first ? s->slot : SLOT_UNUSED,
                    .id = v.request == NULL ? 0 : UINT32_MAX,
                    .top = m->token_top + (size_t)j->i * m->l.top_max};
                if (!is_first)
                    j->view.request = NULL;
            } else if (v.request != NULL && v.request->prompt_logprobs != NULL && j->pos + 1 < v.request->o.n_prompt) {
                j->i = m->n_prompts++;
                m->prompts[j->i] = (struct step_prompt){
                    .slot = s->slot, .pos = j->pos + 1, .top = m->prompt_top + (size_t)j->i * m->l.top_max};
            } else
                j->view.request = NULL;
        }
    }
    m->n_jobs = p->n_out;
}

const uint32_t *runner_guesses(const struct plan *p, const struct plan_seq *s)
{
    return (const uint32_t *)(plan_token(p) + s->first_row + s->n_rows - s->n_spec);
}

bool runner_is_guessed(const struct plan *p, const struct plan_seq *s, uint32_t i, uint32_t id)
{
    return runner_guesses(p, s)[i] == id;
}

/* The tokens of a sequence: one, or as many as its guesses hold and one more. */
static void choose(struct model_runner *m, const struct row_job *j, const float *logits, uint32_t worker)
{
    const uint32_t slot = j->seq->slot, first = (uint32_t)(j - m->jobs);
    const struct grammar_walk *walk = j->view.choice->walk;
    struct grammar_walk *later = (struct grammar_walk *)(void *)(m->walks + worker * m->walk_bytes);
    uint64_t *room = m->masks + (size_t)first * m->mask_words;
    uint32_t chosen[SPEC_K_MAX + 1];
    for (uint32_t i = 0;; i++) {
        struct step_token *t = &m->tokens[j->i + i];
        struct sample_result got = {.top = t->top};
        struct error e = {0};
        t->slot = slot;
        const struct slot_view at = slot_view_later(&j->view, i);
        const struct row_mask mask = i == 0 && j->has_mask ? j->mask : choose_mask(&at, walk, room, m->vocab);
        if (choose_token(m->samplers[worker], logits, &j->view, chosen, i, mask, m->l.top_max, &got, &e) != OK) {
            t->id = choose_none(&at, walk, mask, m->vocab); /* the request ends by itself */
            return;
        }
        t->id = chosen[i] = got.id;
        t->logprob = got.logprob;
        t->n_top = got.n_top;
        if (i == j->seq->n_spec || !runner_is_guessed(m->plan, j->seq, i, got.id))
            return;
        if (walk != NULL && i == 0)
            grammar_walk_copy(later, walk);
        if (walk != NULL && grammar_accept(later, got.id, &e) != OK)
            return; /* an end token: nothing follows */
        walk = walk != NULL ? later : NULL;
        logits = decoder_lend_logits(m->d, first + i + 1);
        if (logits == NULL) {
            if (decoder_read_logits(m->d, first + i + 1, m->row, &e) != OK)
                return; /* what was chosen so far holds */
            logits = m->row;
        }
    }
}

/* Log-probability, rank and alternatives of the prompt's next token; the last two as the greedy sampler sees them. */
static void score(struct model_runner *m, const struct row_job *j, const float *logits, struct sampler *sampler)
{
    const struct request *r = j->view.request;
    struct step_prompt *p = &m->prompts[j->i];
    const uint32_t id = r->o.prompt[p->pos];
    struct sample_params greedy = sample_params_default();
    greedy.temperature = 0.0f;
    const struct sample_row row = {
        .logits = logits, .params = &greedy, .n_top = MIN(r->o.n_top, m->l.top_max), .want_logprob = true};
    struct sample_result got = {.top = p->top};
    struct error e = {0};
    if (id < m->vocab)
        p->logprob = (float)((double)logits[id] - sample_log_sum_exp(logits, m->vocab));
    p->rank = 1;
    for (uint32_t i = 0; id < m->vocab && i < m->vocab; i++)
        p->rank += logits[i] > logits[id];
    if (row.n_top > 0 && sample_token(sampler, &row, &got, &e) == OK)
        p->n_top = got.n_top;
}

static void run_job(void *ctx, uint32_t out, uint32_t worker)
{
    struct model_runner *m = ctx;
    const struct row_job *j = &m->jobs[out];
    if (j->view.request == NULL)
        return;
    const float *logits = j->logits != NULL ? j->logits : decoder_lend_logits(m->d, out);
    if (j->samples)
        choose(m, j, logits, worker);
    else
        score(m, j, logits, m->samplers[worker]);
}

enum err runner_choose_here(struct model_runner *m, uint32_t out, struct error *e)
{
    TRY(decoder_read_logits(m->d, out, m->row, e));
    m->jobs[out].logits = m->row;
    run_job(m, out, 0);
    return OK;
}

struct chunk_job {
    struct model_runner *m;
    const uint32_t *jobs;
};

static void run_chunk(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct chunk_job *c = ctx;
    run_job(c->m, c->jobs[tile], worker);
}

static bool has_guesses(const struct row_job *j)
{
    return j->samples && j->seq->n_spec > 0;
}

/* Of a row, and of those behind it as far as its grammar takes the guesses: no other can be reached. */
static void add_masks(struct model_runner *m, uint32_t out)
{
    struct row_job *j = &m->jobs[out];
    const struct grammar_walk *walk = j->view.choice->walk;
    j->mask_row = masks_add(m->beside, &j->view, walk);
    for (j->n_masks = 1; m->later != NULL && j->n_masks <= j->seq->n_spec; j->n_masks++) {
        struct grammar_walk *next = (struct grammar_walk *)(void *)(m->later + (out + j->n_masks) * m->walk_bytes);
        const struct slot_view at = slot_view_later(&j->view, j->n_masks);
        struct error e = {0};
        grammar_walk_copy(next, walk);
        if (grammar_accept(next, runner_guesses(m->plan, j->seq)[j->n_masks - 1], &e) != OK)
            return;
        masks_add(m->beside, &at, next);
        walk = next;
    }
}

static void start_masks(struct model_runner *m)
{
    masks_clear(m->beside);
    for (uint32_t i = 0; i < m->n_jobs; i++) {
        struct row_job *j = &m->jobs[i];
        j->has_mask = j->view.request != NULL && j->samples && j->view.choice->walk != NULL;
        if (j->has_mask)
            add_masks(m, i);
    }
    masks_start(m->beside);
}

static void take_masks(struct model_runner *m)
{
    for (uint32_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i].has_mask)
            m->jobs[i].mask = masks_row(m->beside, m->jobs[i].mask_row);
}

void runner_make_masks(struct model_runner *m)
{
    start_masks(m);
    m->mask_wait_ns = masks_wait(m->beside);
    take_masks(m);
}

/* Masks while the device is still at work, which the first fetch waits for; then rows, some at a time. */
static enum err sample_fetched(struct model_runner *m, struct error *e)
{
    struct team *team = masks_team(m->beside);
    struct chunk_job work[2] = {{m, m->chunk[0]}, {m, m->chunk[1]}};
    enum err err = OK;
    start_masks(m);
    for (uint32_t i = 0, turn = 0; err == OK && i < m->n_jobs; turn++) {
        float *room = m->fetched + (size_t)(turn % 2) * FETCH_ROWS * m->vocab;
        uint32_t n = 0;
        for (; i < m->n_jobs && n < FETCH_ROWS && err == OK; i++) {
            struct row_job *j = &m->jobs[i];
            if (j->view.request == NULL || has_guesses(j))
                continue;
            err = decoder_read_logits(m->d, i, room + (size_t)n * m->vocab, e);
            j->logits = room + (size_t)n * m->vocab;
            m->chunk[turn % 2][n++] = i;
        }
        if (turn == 0) {
            masks_join(m->beside);
            take_masks(m);
        } else
            team_join(team);
        team_start(team, err == OK ? n : 0, run_chunk, &work[turn % 2]);
    }
    team_join(team);
    for (uint32_t i = 0; err == OK && i < m->n_jobs; i++) { /* these read the device themselves */
        const struct row_job *j = &m->jobs[i];
        if (j->view.request == NULL || !has_guesses(j))
            continue;
        err = runner_choose_here(m, i, e);
    }
    return err;
}

static enum err sample_rows(struct model_runner *m, struct error *e)
{
    if (m->beside != NULL)
        return m->n_jobs > 0 ? sample_fetched(m, e) : OK;
    if (m->n_jobs > 0)
        decoder_host_run(m->d, m->n_jobs, run_job, m);
    return decoder_wait(m->d, e);
}

void runner_take_best(struct model_runner *m)
{
    for (uint32_t out = 0; out < m->n_jobs; out++) {
        const struct row_job *j = &m->jobs[out];
        if (!j->samples || m->tokens[j->i].slot == SLOT_UNUSED)
            continue;
        m->tokens[j->i].id = m->best[out];
        for (uint32_t i = 0; i < j->seq->n_spec && runner_is_guessed(m->plan, j->seq, i, m->best[out + i]); i++) {
            m->tokens[j->i + i + 1].slot = j->seq->slot;
            m->tokens[j->i + i + 1].id = m->best[out + i + 1];
        }
        out += j->seq->n_spec;
    }
}

/* Hidden states for those who asked for a vector. */
enum err runner_read_pools(struct model_runner *m, const struct plan *p, const struct slots *slots, struct error *e)
{
    uint32_t n_rows = 0;
    m->n_pools = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &plan_seqs(p)[i];
        struct slot_view v;
        slots->view(slots->ctx, s->slot, &v);
        if (v.request == NULL || v.request->o.pool == POOL_NONE)
            continue;
        const uint32_t n_prompt = v.request->o.n_prompt, end = MIN(s->first_pos + s->n_rows, n_prompt);
        const uint32_t from = v.request->o.pool == POOL_LAST ? MAX(n_prompt - 1, s->first_pos) : s->first_pos;
        if (from >= end)
            continue;
        float *rows = m->hidden + (size_t)n_rows * m->n_hidden;
        TRY(decoder_read_hidden(m->d, s->first_row + (from - s->first_pos), end - from, rows, e));
        m->pools[m->n_pools++] = (struct step_pool){.slot = s->slot, .pos = from, .n_rows = end - from, .rows = rows};
        n_rows += end - from;
    }
    return OK;
}

/* What lies behind a wrong guess was never chosen. */
void runner_drop_unused(struct model_runner *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i].slot != SLOT_UNUSED)
            m->tokens[n++] = m->tokens[i];
    m->n_tokens = n;
}

static enum err model_sample(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    runner_make_jobs(m, p, slots);
    m->plan = p;
    if (m->wants_best) {
        TRY(decoder_read_best(m->d, m->best, e));
        runner_take_best(m);
    } else
        TRY(sample_rows(m, e));
    runner_drop_unused(m);
    TRY(runner_read_pools(m, p, slots, e));
    m->step = p->step;
    m->cost_ns = clock_now(&m->clock) - m->start_ns;
    return OK;
}

void runner_result(const struct model_runner *m, const struct plan *p, struct step_result *out)
{
    *out = (struct step_result){.step = p->step,
        .cost_ns = m->cost_ns,
        .mask_wait_ns = m->mask_wait_ns,
        .n = m->n_tokens,
        .tokens = m->tokens,
        .n_prompts = m->n_prompts,
        .prompts = m->prompts,
        .n_pools = m->n_pools,
        .pools = m->pools};
}

static enum err model_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    if (m->step != p->step)
        return FAIL(e, ERR_INTERNAL, "step %llu was never launched", (unsigned long long)p->step);
    runner_result(m, p, out);
    return OK;
}

/* ---- making one ---------------------------------------------------------------------------------------------------
 */

void model_runner_close(struct model_runner *m)
{
    runner_ahead_close(m);
    for (uint32_t i = 0; m->samplers != NULL && i < m->n_workers; i++)
        sampler_free(m->samplers[i]);
    mem_free(m->samplers);
    masks_free(m->beside);
    decoder_host_free(m->d, m->beside_room);
    mem_free(m->fetched);
    mem_free(m->masks);
    mem_free(m->walks);
    mem_free(m->later);
    decoder_host_free(m->d, m->host);
    mem_free(m->seqs);
    mem_free(m->src);
    mem_free(m->dst);
    mem_free(m->row);
    mem_free(m->jobs);
    mem_free(m->best);
    mem_free(m->tokens);
    mem_free(m->prompts);
    mem_free(m->token_top);
    mem_free(m->prompt_top);
    mem_free(m->hidden);
    mem_free(m->pools);
    mem_free(m);
}

static void model_close(struct runner *r)
{
    model_runner_close(model_runner_of(r));
}

static enum err make_room(struct model_runner *m, struct error *e)
{
    const struct runner_limits *l = &m->l;
    m->seqs = mem_array(l->seqs_max, sizeof *m->seqs);
    m->src = mem_array(l->copies_max, sizeof *m->src);
    m->dst = mem_array(l->copies_max, sizeof *m->dst);
    m->row = mem_array(m->vocab, sizeof *m->row);
    m->jobs = mem_array(l->out_max, sizeof *m->jobs);
    m->best = mem_array(l->out_max, sizeof *m->best);
    m->tokens = mem_array(l->out_max, sizeof *m->tokens);
    m->prompts = mem_array(l->out_max, sizeof *m->prompts);
    m->token_top = mem_array((size_t)l->out_max * l->top_max, sizeof *m->token_top);
    m->prompt_top = mem_array((size_t)l->out_max * l->top_max, sizeof *m->prompt_top);
    m->samplers = mem_array(m->n_workers, sizeof(struct sampler *));
    m->hidden = mem_array((size_t)l->rows_max * m->n_hidden, sizeof *m->hidden);
    m->pools = mem_array(l->seqs_max, sizeof *m->pools);
    m->masks = mem_array((size_t)l->out_max * m->mask_words, sizeof *m->masks);
    m->walks = mem_array(m->n_workers, m->walk_bytes);
    if (m->seqs == NULL || m->src == NULL || m->dst == NULL || m->row == NULL || m->jobs == NULL || m->best == NULL ||
        m->tokens == NULL || m->prompts == NULL || m->token_top == NULL || m->prompt_top == NULL ||
        m->samplers == NULL || m->masks == NULL || m->walks == NULL || m->hidden == NULL || m->pools == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner of %u rows", l->rows_max);
    if (m->n_host_blocks > 0) {
        m->host = decoder_host_new(m->d, m->n_host_blocks * m->block_bytes);
        if (m->host == NULL)
            return FAIL(e, ERR_NOMEM, "no host memory for a swap space of %llu MiB; lower --swap-space",
                (unsigned long long)(m->n_host_blocks * m->block_bytes >> 20));
    }
    if (!decoder_lends_logits(m->d)) {
        m->fetched = mem_array((size_t)2 * FETCH_ROWS * m->vocab, sizeof *m->fetched);
        if (m->fetched == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for the logits of %d rows", 2 * FETCH_ROWS);
        if (decoder_is_ahead(m->d)) {
            m->beside_room = decoder_host_new(m->d, (size_t)l->out_max * m->mask_words * sizeof *m->beside_room);
            m->later = mem_array(l->out_max, m->walk_bytes);
            if (m->beside_room == NULL || m->later == NULL)
                return FAIL(e, ERR_NOMEM, "no memory for %u masks", l->out_max);
        }
        TRY(masks_new(l->out_max, m->vocab, m->n_workers, m->beside_room, &m->beside, e));
    }
    for (uint32_t i = 0; i < m->n_workers; i++)
        TRY(sampler_new(m->vocab, &m->samplers[i], e));
    return OK;
}

static const struct runner_ops model_ops = {.name = "model",
    .depth = 0,
    .forward = model_forward,
    .sample = model_sample,
    .wait = model_wait,
    .close = model_close};

enum err model_runner_open(
    struct decoder *d, const struct runner_limits *l, uint32_t n_host_blocks, struct runner **out, struct error *e)
{
    *out = NULL;
    struct model_runner *m = mem_zalloc(sizeof *m);
    if (m == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner");
    m->base.ops = &model_ops;
    m->d = d;
    m->l = *l;
    m->vocab = decoder_vocab(d);
    m->n_hidden = decoder_hidden(d);
    m->n_host_blocks = n_host_blocks;
    m->n_workers = decoder_lends_logits(d) ? decoder_host_workers(d) : masks_threads();
    m->block_bytes = decoder_block_bytes(d);
    m->mask_words = (m->vocab + 63) / 64;
    m->walk_bytes = (grammar_walk_bytes() + 63) / 64 * 64; /* a line of its own for each */
    clock_init(&m->clock);
    enum err err = make_room(m, e);
    if (err == OK && decoder_is_ahead(d)) {
        err = runner_ahead_open(m, e);
        m->base.ops = &runner_ahead_ops;
    }
    if (err != OK) {
        model_runner_close(m);
        return err;
    }
    *out = &m->base;
    return OK;
}
