/* sched_plan: the next step. Everything here is in the order of rank, oldest first, so that blocks run out for the
 * youngest; and in three passes: shares (budget.c), rows for those running, then the queue (admit.c).
 *
 * A sequence that lacks blocks takes them from those behind it (preempt.c), or goes without rows this time. It keeps
 * what it holds then: whoever is before it may take it. */
#include "sched/sched_int.h"

#include <string.h>

/* The token at a position, which is known: of the prompt, chosen, or still flying. */
static int32_t token_at(const struct seq *q, uint32_t pos)
{
    if (pos < q->n_prompt)
        return (int32_t)q->prompt[pos];
    const uint32_t i = pos - q->n_prompt;
    if (i + 1 == q->n_out)
        return (int32_t)q->last_id;
    return i < q->n_out ? (int32_t)q->ids[i] : PLAN_TOKEN_FLYING;
}

static void emit_rows(struct sched *s, struct plan *plan, const struct seq *q, const struct plan_seq *ps)
{
    const uint32_t bt = s->o.block_tokens;
    const uint32_t *table = plan_table(plan) + ps->table_at;
    int32_t *token = plan_token(plan) + plan->n_rows;
    uint32_t *pos = plan_pos(plan) + plan->n_rows, *of = plan_seq_of_row(plan) + plan->n_rows;
    uint32_t *kv_slot = plan_kv_slot(plan) + plan->n_rows;
    for (uint32_t k = 0; k < ps->n_rows; k++) {
        const uint32_t p = ps->first_pos + k;
        token[k] = k + ps->n_spec < ps->n_rows ? token_at(q, p) : (int32_t)q->guess[k + ps->n_spec - ps->n_rows];
        pos[k] = p;
        of[k] = plan->n_seqs;
        kv_slot[k] = p < q->stored ? PLAN_NO_WRITE : table[p / bt] * bt + p % bt;
    }
    for (uint32_t k = 0; k < ps->n_out; k++)
        plan_out_row(plan)[plan->n_out + k] = ps->first_row + ps->n_rows - ps->n_out + k;
}

/* The numbers of the sequence after its rows are in the plan. */
static void emit_done(struct sched *s, const struct plan *plan, struct seq *q, const struct plan_seq *ps)
{
    const uint32_t end = ps->first_pos + ps->n_rows - ps->n_spec;
    s->stats.prompt_tokens += MIN(end, q->n_prompt) - MIN(ps->first_pos, q->n_prompt);
    q->stored_before = q->stored;
    q->computed = end;
    q->stored = MAX(q->stored, end + ps->n_spec);
    q->n_flying += ps->samples;
    q->n_plans++;
    q->last_step = plan->step;
    struct group *g = &s->groups[q->group];
    if (q->i_choice == 0 && end >= q->n_prompt && !g->is_forkable && g->n_slots > 1) {
        g->is_forkable = true;
        s->forkable[s->n_forkable++] = q->group;
    }
}

bool step_emit(struct sched *s, struct plan *plan, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    const uint32_t known_end = q->computed + q->share, end = known_end + q->n_spec;
    const uint32_t first_write = MAX(q->computed, q->stored);
    const uint32_t n_blocks = MAX(blocks_for(s, end), blocks_for(s, q->stored));
    if (plan->n_seqs == plan->seqs_max || n_blocks > plan->table_max - plan->n_table ||
        plan->n_copies == plan->copies_max)
        return false;
    if (end > q->stored) {
        struct kv_copy copy;
        uint32_t n_copies;
        if (kv_seq_grow(s->kv, q->kv, end, first_write, &copy, &n_copies, plan->step) != OK)
            return false;
        if (n_copies > 0)
            plan_copies(plan)[plan->n_copies++] = copy;
    }
    const bool samples = known_end == seq_known(q);
    uint32_t n_table;
    const uint32_t *table = kv_seq_table(s->kv, q->kv, &n_table);
    assert(n_table == n_blocks);
    struct plan_seq *ps = &plan_seqs(plan)[plan->n_seqs];
    *ps = (struct plan_seq){.slot = slot,
        .adapter = q->adapter,
        .first_row = plan->n_rows,
        .n_rows = q->share + q->n_spec,
        .first_pos = q->computed,
        .n_kv = end,
        .table_at = plan->n_table,
        .n_table = n_table,
        .first_out = plan->n_out,
        .n_spec = q->n_spec,
        .n_out = q->want_prompt && q->computed < q->n_prompt ? q->share : samples + q->n_spec,
        .samples = samples};
    memcpy(plan_table(plan) + plan->n_table, table, n_table * sizeof *table);
    emit_rows(s, plan, q, ps);
    plan->n_table += n_table;
    plan->n_rows += ps->n_rows;
    plan->n_out += ps->n_out;
    plan->n_seqs++;
    emit_done(s, plan, q, ps);
    return true;
}

void forks_release(struct sched *s, uint32_t group)
{
    for (uint32_t slot = s->groups[group].first; slot != SLOT_NONE; slot = s->seqs[slot].sibling) {
        struct seq *q = &s->seqs[slot];
        if (q->state != SEQ_FORKING)
            continue;
        seq_set_state(s, q, SEQ_WAITING);
        queue_put(s, slot);
    }
}

/* Nobody is preempted for a guess: where it needs blocks, one is left for everybody behind. */
static bool has_room_to_guess(const struct sched *s, const struct seq *q)
{
    const uint32_t need = kv_seq_need(s->kv, q->kv, q->computed + q->share + q->n_spec, MAX(q->computed, q->stored));
    return need == 0 || kv_available(s->kv) >= need + s->n_running;
}

static void emit_running(struct sched *s, struct plan *plan)
{
    for (uint32_t i = 0; i < s->n_running; i++) {
        const uint32_t slot = s->running[i];
        if (slot == SLOT_NONE || s->seqs[slot].share == 0)
            continue;
        if (s->seqs[slot].n_spec > 0 && !has_room_to_guess(s, &s->seqs[slot]))
            s->seqs[slot].n_spec = 0;
        bool is_in = step_emit(s, plan, slot);
        if (!is_in && s->seqs[slot].n_spec > 0) {
            s->seqs[slot].n_spec = 0;
            is_in = step_emit(s, plan, slot);
        }
        if (!is_in && preempt_for(s, plan, i))
            (void)step_emit(s, plan, slot);
    }
    running_close_holes(s);
}

static struct budget plan_pass(struct sched *s, struct plan *plan, uint64_t now, bool decodes_only, bool prompts_only)
{
    struct budget b = {.decodes_only = decodes_only, .prompts_only = prompts_only};
    budget_share(s, plan, now, &b);
    emit_running(s, plan);
    admit(s, plan, now, &b);
    return b;
}

/* Prompts as long as there are any, but streams at least every prefill_first_max_steps. */
static void plan_prefill_first(struct sched *s, struct plan *plan, uint64_t now)
{
    bool streams = s->prefill_streak >= s->o.prefill_first_max_steps;
    struct budget b = plan_pass(s, plan, now, streams, !streams);
    if (plan->n_rows == 0 && !s->has_preempted) {
        streams = !streams;
        b = plan_pass(s, plan, now, streams, !streams);
    }
    s->prefill_streak = streams || b.n_streams == 0 ? 0 : s->prefill_streak + 1;
}

bool sched_plan(struct sched *s, uint64_t now, bool flying, struct plan *plan)
{
    assert(flying == (s->committed < s->step) && s->step - s->committed <= 1);
    assert(!flying || s->n_speculating == 0); /* depth 0 */
    plan_reset(plan);
    plan->step = s->step + 1;
    plan->now_ns = now;
    plan->depth = flying;
    s->plans++;
    s->looks++;
    s->has_preempted = false;
    s->expected_blocks = 0;
    for (uint32_t i = 0; i < s->n_forkable; i++) /* a group given back meanwhile is not forkable, and has no siblings */
        if (s->groups[s->forkable[i]].is_forkable)
            forks_release(s, s->forkable[i]);
    s->n_forkable = 0;
    struct kv_tier tier = {.out = plan_evictions(plan), .in = plan_restores(plan), .max = plan->copies_max};
    kv_tier_use(s->kv, &tier);
    if (s->o.preempt_every > 0 && s->plans % s->o.preempt_every == 0)
        preempt_forced(s, plan);
    if (s->n_running == 0 && !flying) /* the only one was forced out: somebody must come in, or the loop would rest */
        s->has_preempted = false;
    if (s->o.batching == BATCH_PREFILL_FIRST) {
        plan_prefill_first(s, plan, now);
    } else {
        const struct budget b = plan_pass(s, plan, now, false, false);
        s->decodes_since += b.n_streams > 0;
    }
    kv_tier_use(s->kv, NULL);
    plan->n_evictions = tier.n_out;
    plan->n_restores = tier.n_in;
    if (plan_is_empty(plan))
        return false;
    s->step = plan->step;
    return true;
}
