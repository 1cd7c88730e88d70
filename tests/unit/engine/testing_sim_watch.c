/* The watcher between engine and fake runner: every plan is looked at before anything is done with it. What it checks
 * is written down from plan.h, not from the scheduler's code. */
#include "testing_sim.h"

#include "base/mem.h"

#include <string.h>

static struct sim_watch *self(struct runner *r)
{
    return (struct sim_watch *)(void *)r;
}

static enum err check_sizes(const struct sim_watch *w, const struct plan *p, struct error *e)
{
    const struct sched_options *const s = &w->c->sched;
    TRY(plan_check(p, p->bytes, e));
    const uint32_t budget = s->max_batched_tokens - w->c->plant_budget;
    if (p->step != w->last_step + 1)
        return FAIL(e, ERR_INTERNAL, "step %llu follows step %llu", (unsigned long long)p->step,
            (unsigned long long)w->last_step);
    if (plan_is_empty(p))
        return FAIL(e, ERR_INTERNAL, "a plan with nothing to do");
    if (p->n_rows > budget)
        return FAIL(e, ERR_INTERNAL, "a plan of %u rows; the budget is %u", p->n_rows, budget);
    if (p->n_seqs > s->max_num_seqs)
        return FAIL(e, ERR_INTERNAL, "a plan of %u sequences; at most %u run", p->n_seqs, s->max_num_seqs);
    if (p->n_out > MAX(s->out_max, s->max_num_seqs))
        return FAIL(e, ERR_INTERNAL, "a plan with %u outputs; at most %u", p->n_out, s->out_max);
    return OK;
}

static bool seq_is_prompt(const struct plan_seq *q, const struct slot_view *v)
{
    return v->request != NULL && q->first_pos + q->n_rows < v->request->o.n_prompt;
}

static enum err check_seq(const struct sim_watch *w, const struct plan *p, const struct plan_seq *q, uint32_t *row,
    const struct slot_view *v, struct error *e)
{
    const struct sched_options *const s = &w->c->sched;
    if (q->first_row != *row || q->n_rows == 0 || q->n_kv > s->context_max)
        return FAIL(e, ERR_INTERNAL, "slot %u has rows %u+%u, %u positions", q->slot, q->first_row, q->n_rows, q->n_kv);
    *row += q->n_rows;
    if (q->n_table != (q->n_kv + s->block_tokens - 1) / s->block_tokens)
        return FAIL(e, ERR_INTERNAL, "slot %u holds %u blocks for %u tokens", q->slot, q->n_table, q->n_kv);
    const uint32_t n_known = q->n_rows - q->n_spec;
    if (q->n_spec >= q->n_rows || q->n_spec > w->c->guess_k || (q->n_spec > 0 && (n_known != 1 || p->depth != 0)))
        return FAIL(e, ERR_INTERNAL, "slot %u has %u rows with %u guesses", q->slot, q->n_rows, q->n_spec);
    if (s->chunk_max != 0 && n_known > s->chunk_max)
        return FAIL(e, ERR_INTERNAL, "slot %u got a chunk of %u; the limit is %u", q->slot, n_known, s->chunk_max);
    if (v->request == NULL)
        return OK;
    const bool reaches_end = q->first_pos + n_known >= v->request->o.n_prompt;
    if (q->samples && !reaches_end)
        return FAIL(e, ERR_INTERNAL, "slot %u chooses a token in mid-prompt", q->slot);
    return OK;
}

/* No slot of the cache is written twice in a step, and prefill-first does not mix. */
static enum err check_rows(struct sim_watch *w, const struct plan *p, const struct slots *slots, struct error *e)
{
    uint32_t row = 0, n_prompts = 0, n_decodes = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *const q = &plan_seqs(p)[i];
        struct slot_view v;
        slots->view(slots->ctx, q->slot, &v);
        TRY(check_seq(w, p, q, &row, &v, e));
        if (v.request != NULL) {
            const uint32_t n_prompt = v.request->o.n_prompt;
            n_prompts += seq_is_prompt(q, &v);
            /* what was preempted or forked may come in with one row to compute: no decode yet */
            n_decodes += q->n_rows == 1 + q->n_spec && q->first_pos >= n_prompt && v.request->n_preempted == 0 &&
                         v.request->n_choices == 1;
        }
        for (uint32_t j = 0; j < i; j++)
            if (plan_seqs(p)[j].slot == q->slot)
                return FAIL(e, ERR_INTERNAL, "slot %u is twice in a plan", q->slot);
    }
    if (row != p->n_rows)
        return FAIL(e, ERR_INTERNAL, "%u rows of %u belong to a sequence", row, p->n_rows);
    if (w->c->sched.batching == BATCH_PREFILL_FIRST && n_prompts > 0 && n_decodes > 0)
        return FAIL(e, ERR_INTERNAL, "prefill-first mixed %u prompts and %u decodes", n_prompts, n_decodes);
    const uint32_t n_slots = w->c->kv.n_blocks * w->c->kv.block_tokens;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const uint32_t at = plan_kv_slot(p)[i];
        if (at == PLAN_NO_WRITE)
            continue;
        if (at >= n_slots || w->written[at] == (uint32_t)p->step)
            return FAIL(e, ERR_INTERNAL, "KV slot %u of %u is written twice in step %llu", at, n_slots,
                (unsigned long long)p->step);
        w->written[at] = (uint32_t)p->step;
    }
    return OK;
}

static enum err maybe_break(struct sim_watch *w, enum sim_break where, const struct plan *p, struct error *e)
{
    if (w->c->breaks != where || p->step < w->c->break_step)
        return OK;
    w->has_broken = true;
    return FAIL(e, ERR_IO, "the device broke in step %llu, as planned", (unsigned long long)p->step);
}

static enum err watch_forward(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    struct sim_watch *const w = self(r);
    if (w->has_broken)
        return FAIL(e, ERR_INTERNAL, "something was launched after a failure");
    TRY(check_sizes(w, p, e));
    TRY(check_rows(w, p, s, e));
    w->last_step = p->step;
    w->rows += p->n_rows;
    TRY(maybe_break(w, SIM_BREAK_FORWARD, p, e));
    return w->inner->ops->forward(w->inner, p, s, e);
}

static enum err watch_sample(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    TRY(maybe_break(self(r), SIM_BREAK_SAMPLE, p, e));
    return self(r)->inner->ops->sample(self(r)->inner, p, s, e);
}

static enum err watch_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct sim_watch *const w = self(r);
    TRY(maybe_break(w, SIM_BREAK_WAIT, p, e));
    TRY(w->inner->ops->wait(w->inner, p, out, e));
    for (uint32_t i = 0; i < out->n; i++)
        if (++w->tokens == w->c->plant_token_at)
            out->tokens[i].id = (out->tokens[i].id + 1) % w->c->fake.vocab;
    return OK;
}

static void watch_close(struct runner *r)
{
    struct sim_watch *const w = self(r);
    runner_close(w->inner);
    mem_free(w->written);
    mem_free(w);
}

enum err sim_watch_open(const struct sim_config *c, struct clock *clock, struct sim_watch **out, struct error *e)
{
    *out = NULL;
    struct sim_watch *const w = mem_zalloc(sizeof *w);
    uint32_t *const written = mem_array((size_t)c->kv.n_blocks * c->kv.block_tokens, sizeof *written);
    if (w == NULL || written == NULL) {
        mem_free(w);
        mem_free(written);
        return FAIL(e, ERR_NOMEM, "no memory for a simulation");
    }
    struct fake_runner_options o = c->fake;
    o.clock = clock;
    const struct runner_limits l = engine_runner_limits(&c->sched, &c->kv);
    w->written = written;
    w->c = c;
    w->ops = (struct runner_ops){.name = "watch",
        .depth = c->fake.depth,
        .forward = watch_forward,
        .sample = watch_sample,
        .wait = watch_wait,
        .close = watch_close};
    w->base.ops = &w->ops;
    const enum err err =
        fake_runner_open(&o, &l, c->kv.n_blocks, c->kv.n_host_blocks, c->kv.block_tokens, &w->inner, e);
    if (err != OK) {
        watch_close(&w->base);
        return err;
    }
    *out = w;
    return OK;
}
