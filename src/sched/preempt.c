/* Running sequences that give their blocks up. Paused ones go first, then the one of highest rank; never one of lower
 * rank than whoever needs the blocks (why this ends: sched_int.h).
 *
 * Swapped, the blocks are copied to the host and the sequence continues where it was. Recomputing, all is forgotten but
 * the tokens, and they go through the model again (found in the prefix cache, if they are still there). The tokens are
 * the same either way; only time differs, so the cost model decides, unless an option does.
 *
 * While a step flies, what is given up is not free before that step is done. Then nobody gets rows for it in this plan;
 * what is expected back is counted, so that not more is taken than needed. */
#include "sched/sched_int.h"

static bool should_swap(const struct sched *s, const struct plan *plan, const struct seq *q, uint32_t n_blocks)
{
    if (s->o.preempt == PREEMPT_RECOMPUTE || s->n_swapped >= s->o.max_num_seqs)
        return false;
    if (n_blocks == 0 || n_blocks > plan->copies_max - plan->n_out_copies)
        return false;
    if (q->admitted_step == plan->step) /* what this plan brings in comes behind what it takes out */
        return false;
    if (s->o.preempt == PREEMPT_SWAP)
        return true;
    if (!s->cost.fit.fitted)
        return false;
    const double n = q->computed, f = s->cost.fit.row_ns, g = s->cost.fit.row_context_ns;
    return 2.0 * s->o.swap_ns_per_block * n_blocks < f * n + g * n * n / 2;
}

/* Out of running[i], which becomes a hole; the caller closes the holes. */
static void preempt(struct sched *s, struct plan *plan, uint32_t i)
{
    const uint32_t slot = s->running[i];
    struct seq *q = &s->seqs[slot];
    uint32_t n_blocks, n_copies = 0;
    (void)kv_seq_table(s->kv, q->kv, &n_blocks);
    s->running[i] = SLOT_NONE;
    s->n_holes++;
    if (q->is_paused)
        s->n_paused_running--;
    const bool swaps =
        should_swap(s, plan, q, n_blocks) &&
        kv_swap_out(s->kv, q->kv, plan_out_copies(plan) + plan->n_out_copies, &n_copies, sched_fence(s)) == OK;
    if (swaps) {
        plan->n_out_copies += n_copies;
        q->n_blocks = n_blocks;
        seq_set_state(s, q, SEQ_SWAPPED);
        s->stats.preempted_swap++;
    } else {
        kv_seq_close(s->kv, q->kv, sched_fence(s));
        q->kv = KV_SEQ_NONE;
        q->computed = q->stored = q->n_final = q->n_published = 0;
        seq_set_state(s, q, SEQ_WAITING);
        s->stats.preempted_recompute++;
    }
    q->request->n_preempted++;
    q->share = q->n_guess = q->n_spec = q->n_shadow = 0;
    s->expected_blocks += sched_fence(s) != 0 ? n_blocks : 0;
    if (!q->is_paused)
        queue_put(s, slot);
}

/* The running sequence that is to go, above index `after`, or any paused one but that; SLOT_NONE: nobody. */
static uint32_t choose_victim(const struct sched *s, uint32_t after, bool paused_only)
{
    for (uint32_t i = s->n_running; s->n_paused_running > 0 && i-- > 0;)
        if (s->running[i] != SLOT_NONE && i != after && s->seqs[s->running[i]].is_paused)
            return i;
    for (uint32_t i = s->n_running; !paused_only && i-- > after + 1;)
        if (s->running[i] != SLOT_NONE)
            return i;
    return SLOT_NONE;
}

bool preempt_for(struct sched *s, struct plan *plan, uint32_t i_running)
{
    const struct seq *q = &s->seqs[s->running[i_running]];
    const uint32_t end = q->computed + q->share, first_write = MAX(q->computed, q->stored);
    for (;;) {
        const uint32_t need = kv_seq_need(s->kv, q->kv, end, first_write), there = kv_available(s->kv);
        if (need <= there)
            return true;
        if (need - there <= s->expected_blocks) { /* they are on their way */
            s->expected_blocks -= need - there;
            return false;
        }
        const uint32_t victim = choose_victim(s, i_running, false);
        if (victim == SLOT_NONE)
            return false;
        if (!s->seqs[s->running[victim]].is_paused)
            s->has_preempted = true;
        preempt(s, plan, victim);
    }
}

void preempt_forced(struct sched *s, struct plan *plan)
{
    for (uint32_t i = s->n_running; i-- > 0;) {
        const struct seq *q = &s->seqs[s->running[i]];
        if (q->n_out > q->out_at_admission) { /* it came forward since, so this cannot go on for ever */
            preempt(s, plan, i);
            s->has_preempted = true;
            break;
        }
    }
    running_close_holes(s);
}

bool preempt_paused(struct sched *s, struct plan *plan, uint32_t n_blocks)
{
    uint64_t given = 0;
    bool any = false;
    while (s->n_paused_running > 0 && (!any || given < n_blocks)) {
        const uint32_t i = choose_victim(s, SLOT_NONE, true);
        if (i == SLOT_NONE || s->seqs[s->running[i]].last_step == plan->step)
            break;
        uint32_t held;
        (void)kv_seq_table(s->kv, s->seqs[s->running[i]].kv, &held);
        given += held;
        any = true;
        preempt(s, plan, i);
        running_close_holes(s);
    }
    return any;
}
