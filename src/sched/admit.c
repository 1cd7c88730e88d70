/* From the queue into the running set. The head of the queue goes in when there is a seat, rows to give, and blocks:
 * for all its known tokens (on-demand) or for all that it may ever hold (reserve), beside what those running still have
 * a claim on, and leaving the watermark free. When nothing runs, the watermark does not count, or an empty server could
 * refuse for ever what fits.
 *
 * The head is not overtaken: if it does not fit, nobody goes in. That is what bounds the wait of large requests. One
 * exception costs it nothing: a prompt that begins like one being computed right now steps aside until those blocks can
 * be found, or a burst of equal prompts would compute each of them (LATER, and for how long at most, below).
 *
 * Batchings are gates: continuous and prefill-first are always open; interval and ratio open now and then, static when
 * the batch before has ended. A gate that opens lets in as many as have seats and blocks, with or without rows in this
 * step. Sequences that have been in before (preempted ones, siblings of a computed prompt) pass closed gates. */
#include "sched/sched_int.h"

#include <string.h>

#define BLOCKED_PLANS_MAX 16   /* a head that did not fit is looked up again after so many plans, whatever happened */
#define ASIDE_PLANS_MAX   1024 /* in which a prompt waits for another's blocks: more than the longest prefill takes */

bool gate_is_open(const struct sched *s)
{
    const uint32_t n_busy = s->n_running - s->n_paused_running;
    switch (s->o.batching) {
    case BATCH_STATIC: return s->n_members == 0;
    case BATCH_INTERVAL: return n_busy == 0 || s->decodes_since >= s->o.interval;
    case BATCH_RATIO: return n_busy == 0 || s->n_new > s->o.ratio * n_busy;
    case BATCH_CONTINUOUS:
    case BATCH_PREFILL_FIRST: break;
    }
    return true;
}

static bool gate_admits_without_rows(const struct sched *s)
{
    return s->o.batching == BATCH_STATIC || s->o.batching == BATCH_INTERVAL || s->o.batching == BATCH_RATIO;
}

/* Positions that it has a claim on. */
static uint32_t seq_claim(const struct sched *s, const struct seq *q)
{
    return s->o.admission == ADMIT_RESERVE ? q->n_prompt + q->out_limit - 1 : seq_known(q);
}

static uint32_t claim_need(const struct sched *s, const struct seq *q)
{
    const uint32_t first_write = MAX(q->stored, q->computed);
    return kv_seq_need(s->kv, q->kv, MAX(seq_claim(s, q), first_write), first_write);
}

static int64_t slack_of(const struct sched *s, uint64_t promised)
{
    const bool is_empty = s->n_running == s->n_paused_running;
    return (int64_t)kv_available(s->kv) - (int64_t)promised - (is_empty ? 0 : (int64_t)s->watermark_blocks);
}

static uint64_t promised_blocks(const struct sched *s)
{
    uint64_t promised = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        promised += claim_need(s, &s->seqs[s->running[i]]);
    return promised;
}

/* A running sibling that has the whole prompt, and not only since this plan: rows of one step do not read what others
 * of the same step write. */
static const struct seq *fork_source(const struct sched *s, const struct seq *q)
{
    if (q->n_out > 0)
        return NULL;
    for (uint32_t slot = s->groups[q->group].first; slot != SLOT_NONE; slot = s->seqs[slot].sibling) {
        const struct seq *from = &s->seqs[slot];
        const uint32_t stored = from->last_step == s->step + 1 ? from->stored_before : from->stored;
        if (from != q && from->state == SEQ_RUNNING && stored >= q->n_prompt)
            return from;
    }
    return NULL;
}

static struct kv_key seq_key(const struct sched *s, const struct seq *q)
{
    return (struct kv_key){.numerics = s->o.numerics, .adapter = q->adapter, .salt = q->request->o.salt};
}

static bool seq_looks(const struct sched *s, const struct seq *q)
{
    return s->o.prefix_cache && !q->want_prompt && q->request->o.pool != POOL_MEAN;
}

/* Its known tokens in one piece; valid until the next call. */
static const uint32_t *seq_ids(struct sched *s, const struct seq *q)
{
    if (q->n_out == 0)
        return q->prompt;
    memcpy(s->scratch, q->prompt, q->n_prompt * sizeof *s->scratch);
    memcpy(s->scratch + q->n_prompt, q->ids, q->n_out * sizeof *s->scratch);
    return s->scratch;
}

/* Give a waiting sequence its place in kv, with what can be found. ERR_AGAIN: not now. */
static enum err seq_open(struct sched *s, const struct plan *plan, struct seq *q, const struct seq *from)
{
    const uint32_t n = q->n_prompt + q->n_out;
    assert(q->n_flying == 0); /* whoever preempted it made a plan, and the one before that is committed */
    if (from != NULL) {
        TRY(kv_seq_fork(s->kv, from->kv, q->n_prompt, &q->kv));
        q->stored = q->n_prompt;
        q->computed = q->n_prompt - 1;
        q->n_final = q->n_prompt;
        return OK;
    }
    uint32_t found;
    enum kv_hit hit;
    TRY(kv_seq_open(s->kv, seq_key(s, q), seq_ids(s, q), n, seq_looks(s, q), plan->step, &q->kv, &found, &hit));
    q->stored = q->n_final = found;
    q->computed = MIN(found, n - 1);
    return OK;
}

static void seq_unopen(struct sched *s, struct seq *q)
{
    kv_seq_close(s->kv, q->kv, 0); /* nothing was written but what kv itself keeps behind this step */
    q->kv = KV_SEQ_NONE;
    q->stored = q->computed = q->n_final = 0;
}

/* Is a running prompt about to publish a block that this one begins with and nobody has published yet? Only one that
 * got rows in the newest plan counts, so the wait is for work under way; and patience ends after so many plans. */
static bool should_step_aside(struct sched *s, struct seq *q)
{
    const uint32_t bt = s->o.block_tokens;
    if (q->queue != QUEUE_NEW || !seq_looks(s, q) || gate_admits_without_rows(s) || q->n_aside >= ASIDE_PLANS_MAX)
        return false;
    for (uint32_t i = s->n_running; i-- > 0;) {
        const struct seq *p = &s->seqs[s->running[i]];
        const uint32_t at = p->n_final / bt * bt, end = at + bt;
        if (end > p->n_prompt || end > q->n_prompt || p->last_step < s->step || p->adapter != q->adapter)
            continue;
        if (memcmp(p->prompt + at, q->prompt + at, bt * sizeof *p->prompt) != 0 ||
            memcmp(p->prompt, q->prompt, at * sizeof *p->prompt) != 0 || p->request->o.salt != q->request->o.salt)
            continue;
        if (kv_peek(s->kv, seq_key(s, q), q->prompt, end, NULL) < end) {
            q->n_aside++;
            return true;
        }
    }
    return false;
}

/* Not worth opening? With nothing to find it would fit, or with what can be found it may. */
static bool can_fit(struct sched *s, const struct seq *q, int64_t slack)
{
    const uint32_t need = blocks_for(s, seq_claim(s, q));
    if ((int64_t)need <= slack || !seq_looks(s, q))
        return (int64_t)need <= slack;
    uint32_t n_host; /* found, and takes blocks all the same */
    const uint32_t found = kv_peek(s->kv, seq_key(s, q), seq_ids(s, q), q->n_prompt + q->n_out, &n_host);
    return (int64_t)need - found / s->o.block_tokens + n_host <= slack;
}

static bool admit_waiting(struct sched *s, const struct plan *plan, struct seq *q, uint64_t promised, uint32_t *need)
{
    const struct seq *from = fork_source(s, q);
    *need = blocks_for(s, seq_claim(s, q));
    if ((from == NULL && !can_fit(s, q, slack_of(s, promised))) || seq_open(s, plan, q, from) != OK)
        return false;
    /* a fork makes the source copy too, when it writes on in the block they share */
    *need = claim_need(s, q) + (from != NULL && q->n_prompt % s->o.block_tokens != 0);
    if ((int64_t)*need <= slack_of(s, promised))
        return true;
    seq_unopen(s, q);
    return false;
}

static bool admit_swapped(struct sched *s, struct plan *plan, struct seq *q, uint64_t promised, uint32_t *need)
{
    *need = MAX(blocks_for(s, seq_claim(s, q)), q->n_blocks);
    if (q->n_blocks > plan->copies_max - plan->n_in_copies || (int64_t)*need > slack_of(s, promised))
        return false;
    uint32_t n;
    if (kv_swap_in(s->kv, q->kv, plan_in_copies(plan) + plan->n_in_copies, &n, plan->step) != OK)
        return false;
    plan->n_in_copies += n;
    return true;
}

/* Take the head in, blocks permitting. What it lacked is remembered, since looking a long prompt up in the prefix index
 * costs time: it is tried again when there is more room than then, or after some plans. */
static bool admit_blocks(struct sched *s, struct plan *plan, uint32_t slot, uint64_t promised)
{
    struct seq *q = &s->seqs[slot];
    const int64_t slack = slack_of(s, promised);
    if (s->blocked_slot == slot && slack <= s->blocked_slack && s->plans - s->blocked_plan < BLOCKED_PLANS_MAX)
        return false;
    s->blocked_slot = SLOT_NONE;
    uint32_t need;
    if (q->state == SEQ_SWAPPED ? admit_swapped(s, plan, q, promised, &need)
                                : admit_waiting(s, plan, q, promised, &need))
        return true;
    if (preempt_paused(s, plan, need))
        return false; /* with what they give it will fit: now or after the flying step */
    s->blocked_slot = slot;
    s->blocked_slack = slack;
    s->blocked_plan = s->plans;
    return false;
}

static void admitted(struct sched *s, const struct plan *plan, uint32_t slot, uint64_t now)
{
    struct seq *q = &s->seqs[slot];
    struct group *g = &s->groups[q->group];
    queue_remove(s, slot);
    seq_set_state(s, q, SEQ_RUNNING);
    q->out_at_admission = q->n_out;
    q->admitted_step = plan->step;
    running_insert(s, slot);
    if (g->is_admitted)
        return;
    g->is_admitted = true;
    s->n_members += g->n_live;
    q->request->t_admitted = now;
    q->request->n_cached = MIN(q->stored, q->n_prompt);
    tenant_charge(s, q->tenant, s->o.vtc_input_weight * (q->n_prompt - q->request->n_cached));
}

/* Rows in this step, if there are any left for it. */
static void admitted_rows(struct sched *s, struct plan *plan, uint32_t slot, struct budget *b)
{
    struct seq *q = &s->seqs[slot];
    q->share = b->rows > 0 && plan->n_seqs < plan->seqs_max ? budget_chunk(s, b, q) : 0;
    if (q->share > 0 && !step_emit(s, plan, slot))
        q->share = 0;
}

static bool has_time(const struct sched *s, const struct budget *b)
{
    return !b->is_timed || b->n_chunks == 0 || !s->cost.fit.fitted ||
           cost_rows(&s->cost, b->step_rows, b->step_row_context, 0, b->target_ns) > 0;
}

/* The head may not come in now for reasons that are not blocks. */
static bool admit_is_over(const struct sched *s, const struct budget *b, uint32_t slot)
{
    if (slot == SLOT_NONE)
        return true;
    if (!gate_admits_without_rows(s) && (b->rows == 0 || !has_time(s, b)))
        return true;
    const struct group *g = &s->groups[s->seqs[slot].group];
    return s->o.batching == BATCH_STATIC && !g->is_admitted && s->n_members > 0 &&
           s->n_members + g->n_live > s->o.max_num_seqs;
}

static void admit_queue(struct sched *s, struct plan *plan, uint64_t now, struct budget *b, bool is_open)
{
    uint64_t promised = promised_blocks(s);
    for (;;) {
        const uint32_t slot = queue_head(s, is_open), n_paused = s->n_paused_running;
        if (admit_is_over(s, b, slot))
            return;
        if (s->n_running == s->o.max_num_seqs && !preempt_paused(s, plan, 0))
            return;
        if (should_step_aside(s, &s->seqs[slot])) {
            if (sched_is_vtc(s) || s->n_aside == ASIDE_MAX)
                return; /* a tenant's counter would be lifted by leaving the queue: its turn waits with it */
            queue_remove(s, slot);
            s->aside[s->n_aside++] = slot;
            continue;
        }
        const bool is_in = admit_blocks(s, plan, slot, promised);
        if (s->n_paused_running < n_paused)
            promised = promised_blocks(s);
        if (!is_in && s->n_paused_running < n_paused && sched_fence(s) == 0)
            continue; /* blocks of paused ones have come free */
        if (!is_in)
            return;
        admitted(s, plan, slot, now);
        admitted_rows(s, plan, slot, b);
        promised += claim_need(s, &s->seqs[slot]);
    }
}

void admit(struct sched *s, struct plan *plan, uint64_t now, struct budget *b)
{
    const bool is_open = gate_is_open(s);
    if (s->has_preempted || b->decodes_only || queue_head(s, is_open) == SLOT_NONE)
        return;
    if (is_open)
        s->decodes_since = 0;
    admit_queue(s, plan, now, b, is_open);
    while (s->n_aside > 0)
        queue_put(s, s->aside[--s->n_aside]);
}
