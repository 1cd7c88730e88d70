/* The rules of sched_int.h, looked at one by one. */
#include "sched/sched_int.h"

struct tally {
    uint32_t waiting, forking, swapped, running, paused, paused_running, members, slots;
    uint64_t tokens;
};

static enum err check_blocks(const struct sched *s, uint32_t slot, const struct seq *q, struct error *e)
{
    const bool has_kv = q->kv.v != KV_SEQ_NONE.v;
    if (has_kv != (q->state == SEQ_RUNNING || q->state == SEQ_SWAPPED))
        return FAIL(e, ERR_INTERNAL, "slot %u in state %d %s blocks", slot, (int)q->state, has_kv ? "has" : "has no");
    if (!has_kv)
        return OK;
    uint32_t n_blocks = q->n_blocks;
    if (kv_seq_is_swapped(s->kv, q->kv) != (q->state == SEQ_SWAPPED))
        return FAIL(e, ERR_INTERNAL, "slot %u is swapped in one place and not in another", slot);
    if (q->state == SEQ_RUNNING)
        (void)kv_seq_table(s->kv, q->kv, &n_blocks);
    if (n_blocks != blocks_for(s, q->stored))
        return FAIL(e, ERR_INTERNAL, "slot %u holds %u blocks for %u positions", slot, n_blocks, q->stored);
    if (q->n_final > q->computed + 1 || q->computed > q->stored || q->computed > seq_known(q))
        return FAIL(e, ERR_INTERNAL, "slot %u: %u final, %u computed, %u stored, %u known", slot, q->n_final,
            q->computed, q->stored, seq_known(q));
    return OK;
}

static enum err check_slot(const struct sched *s, uint32_t slot, struct tally *t, struct error *e)
{
    const struct seq *q = &s->seqs[slot];
    if (q->state == SEQ_FREE)
        return OK;
    t->slots++;
    if (q->state == SEQ_ENDED)
        return q->n_plans == 0 ? FAIL(e, ERR_INTERNAL, "slot %u has ended and nobody names it", slot) : OK;
    t->waiting += q->state == SEQ_WAITING;
    t->forking += q->state == SEQ_FORKING;
    t->swapped += q->state == SEQ_SWAPPED;
    t->running += q->state == SEQ_RUNNING;
    t->paused += q->is_paused;
    t->paused_running += q->is_paused && q->state == SEQ_RUNNING;
    t->members += s->groups[q->group].is_admitted;
    t->tokens += q->queued_tokens;
    const bool should_queue = (q->state == SEQ_WAITING || q->state == SEQ_SWAPPED) && !q->is_paused;
    if (should_queue != (q->queue != QUEUE_NONE))
        return FAIL(e, ERR_INTERNAL, "slot %u in state %d is in queue %d", slot, (int)q->state, (int)q->queue);
    if (q->request != s->groups[q->group].request || q->n_out > q->out_limit ||
        atomic_load_explicit(&q->choice->n_out, memory_order_relaxed) != q->n_out)
        return FAIL(e, ERR_INTERNAL, "slot %u: its choice has not %u tokens", slot, q->n_out);
    if (q->n_plans > s->step - s->committed || q->n_flying + q->n_dropped > q->n_plans)
        return FAIL(e, ERR_INTERNAL, "slot %u: %u plans name it, %u tokens fly", slot, q->n_plans, q->n_flying);
    return check_blocks(s, slot, q, e);
}

static enum err check_counts(const struct sched *s, const struct tally *t, struct error *e)
{
    const struct {
        const char *name;
        uint64_t counted, found;
    } counts[] = {
        {"waiting", s->n_waiting, t->waiting},
        {"forking", s->n_forking, t->forking},
        {"swapped", s->n_swapped, t->swapped},
        {"running", s->n_running, t->running},
        {"paused", s->n_paused, t->paused},
        {"paused and running", s->n_paused_running, t->paused_running},
        {"admitted", s->n_members, t->members},
        {"waiting tokens", s->waiting_tokens, t->tokens},
    };
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        if (counts[i].counted != counts[i].found)
            return FAIL(e, ERR_INTERNAL, "%llu %s, %llu are counted", (unsigned long long)counts[i].found,
                counts[i].name, (unsigned long long)counts[i].counted);
    if (s->n_running > s->o.max_num_seqs || s->n_swapped > s->o.max_num_seqs)
        return FAIL(e, ERR_INTERNAL, "%u run and %u are swapped; the limit is %u", s->n_running, s->n_swapped,
            s->o.max_num_seqs);
    return OK;
}

static enum err check_groups(const struct sched *s, uint32_t n_slots, struct error *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_live_groups; i++) {
        const struct group *g = &s->groups[s->live[i]];
        uint32_t slots = 0, live = 0;
        for (uint32_t slot = g->first; slot != SLOT_NONE && slots <= s->n_slots; slot = s->seqs[slot].sibling) {
            slots++;
            live += s->seqs[slot].state != SEQ_ENDED;
        }
        if (g->at != i || slots != g->n_slots || live != g->n_live || slots == 0)
            return FAIL(e, ERR_INTERNAL, "group %u has %u slots, %u live; %u, %u are counted", s->live[i], slots, live,
                g->n_slots, g->n_live);
        n += slots;
    }
    return n == n_slots ? OK : FAIL(e, ERR_INTERNAL, "%u slots are taken, groups have %u", n_slots, n);
}

enum err sched_check(const struct sched *s, struct error *e)
{
    struct tally t = {0};
    for (uint32_t i = 0; i < s->n_slots; i++)
        TRY(check_slot(s, i, &t, e));
    TRY(check_counts(s, &t, e));
    TRY(check_groups(s, t.slots, e));
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct seq *q = &s->seqs[s->running[i]];
        if (q->state != SEQ_RUNNING || (i > 0 && !seq_before(&s->seqs[s->running[i - 1]], q)))
            return FAIL(e, ERR_INTERNAL, "slot %u is out of order in the running set", s->running[i]);
    }
    TRY(queue_check(s, e));
    return tenants_check(s, e);
}
