/* Ends, pauses and deadlines. Every end of a sequence goes through seq_end, once: the state says so.
 *
 * A reader that is behind pauses its own sequence only. With several choices the reader tells the least that it has
 * read of any unfinished one; so a choice counts as unread only beyond what the slowest of them has published, or a
 * choice that waits in the queue would pause the others in the reader's name. */
#include "sched/sched_int.h"

#define MEAN_OUT_SAMPLES 64

static void choice_publish_end(struct seq *q, enum req_end why, uint64_t now)
{
    struct choice *c = q->choice;
    if (q->request->o.vocab != NULL) {
        c->text_bytes = c->stop_state.bytes;
        c->stop_index = c->stop_state.stop_index;
    }
    q->request->t_end = now;
    atomic_store_explicit(&c->end, (int)why, memory_order_release);
}

static void mean_out_observe(struct sched *s, const struct seq *q, enum req_end why)
{
    if (why == END_EOS || why == END_STOP || why == END_LENGTH)
        s->mean_out += (q->n_out - s->mean_out) / MEAN_OUT_SAMPLES;
}

void seq_end(struct sched *s, uint32_t slot, enum req_end why, uint64_t now)
{
    struct seq *q = &s->seqs[slot];
    struct group *g = &s->groups[q->group];
    assert(q->state != SEQ_FREE && q->state != SEQ_ENDED);
    if (q->queue != QUEUE_NONE)
        queue_remove(s, slot);
    if (q->state == SEQ_RUNNING)
        running_remove(s, slot);
    if (q->is_paused) {
        s->n_paused--;
        s->n_paused_running -= q->state == SEQ_RUNNING;
        q->is_paused = false;
    }
    if (q->kv.v != KV_SEQ_NONE.v)
        kv_seq_close(s->kv, q->kv, sched_fence(s));
    q->kv = KV_SEQ_NONE;
    seq_set_state(s, q, SEQ_ENDED);
    if (slot == s->blocked_slot)
        s->blocked_slot = SLOT_NONE;
    g->n_live--;
    s->n_speculating -= q->spec_k > 0;
    s->n_members -= g->is_admitted;
    mean_out_observe(s, q, why);
    choice_publish_end(q, why, now);
    if (q->i_choice == 0 && g->n_live > 0 && g->is_admitted)
        forks_release(s, q->group); /* nobody will compute the prompt for them */
    if (g->n_live > 0 && s->events.on_progress != NULL)
        s->events.on_progress(s->events.ctx, q->request);
    if (q->n_plans == 0)
        slot_give(s, slot);
}

static void group_end(struct sched *s, uint32_t group, enum req_end why, uint64_t now)
{
    uint32_t next;
    for (uint32_t slot = s->groups[group].first; slot != SLOT_NONE; slot = next) {
        next = s->seqs[slot].sibling;
        if (s->seqs[slot].state != SEQ_ENDED)
            seq_end(s, slot, why, now);
    }
}

/* ---- pauses ---- */

/* What the asker has set, once for each call of sweep or plan. */
static void group_look(const struct sched *s, struct group *g)
{
    const struct request *r = g->request;
    if (g->seen_at == s->looks)
        return;
    const bool cancel = atomic_load_explicit(&r->cancel, memory_order_relaxed);
    const uint32_t n_read = atomic_load_explicit(&r->n_read, memory_order_relaxed);
    const bool is_news = cancel != g->seen_cancel || n_read != g->seen_read;
    g->seen_at = s->looks;
    g->seen_cancel = cancel;
    g->seen_read = n_read;
    if (is_news && s->events.on_look != NULL)
        s->events.on_look(s->events.ctx, r, cancel, n_read);
}

bool seq_is_behind(const struct sched *s, const struct seq *q)
{
    if (q->read_window == 0)
        return false;
    group_look(s, &s->groups[q->group]);
    const uint32_t read = s->groups[q->group].seen_read;
    const uint32_t out = q->n_out + q->n_flying;
    if (out < read || out - read < q->read_window)
        return false;
    for (uint32_t slot = s->groups[q->group].first; slot != SLOT_NONE; slot = s->seqs[slot].sibling)
        if (s->seqs[slot].state != SEQ_ENDED && s->seqs[slot].n_out <= read)
            return s->groups[q->group].n_live == 1; /* the slowest has been read: the reader is not to blame */
    return true;
}

void seq_pause(struct sched *s, struct seq *q, uint64_t now)
{
    assert(!q->is_paused && q->queue == QUEUE_NONE);
    q->is_paused = true;
    q->paused_since = now;
    s->n_paused++;
    s->n_paused_running += q->state == SEQ_RUNNING;
    if (s->o.pause_max_ns > 0)
        s->next_deadline = MIN(s->next_deadline, now + s->o.pause_max_ns);
}

void seq_resume(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert(q->is_paused);
    q->is_paused = false;
    s->n_paused--;
    s->n_paused_running -= q->state == SEQ_RUNNING;
    if (q->state != SEQ_RUNNING)
        queue_put(s, slot);
}

/* ---- the sweep ---- */

/* Why a whole request ends now; END_NONE: it goes on. *next becomes no later than when that may change by itself. */
static enum req_end group_is_over(const struct sched *s, const struct group *g, uint64_t now, uint64_t *next)
{
    const struct request *r = g->request;
    if (g->seen_cancel)
        return END_CANCELLED;
    if (r->o.deadline_ns > 0) {
        if (now >= r->t_arrival + r->o.deadline_ns)
            return END_DEADLINE;
        *next = MIN(*next, r->t_arrival + r->o.deadline_ns);
    }
    if (s->o.wait_max_ns > 0 && !g->is_admitted) {
        if (now >= r->t_arrival + s->o.wait_max_ns)
            return END_BUSY;
        *next = MIN(*next, r->t_arrival + s->o.wait_max_ns);
    }
    return END_NONE;
}

/* The reader may have come on, or be gone for too long. */
static void sweep_paused(struct sched *s, uint32_t slot, uint64_t now, uint64_t *next)
{
    struct seq *q = &s->seqs[slot];
    if (!q->is_paused)
        return;
    if (!seq_is_behind(s, q)) {
        seq_resume(s, slot);
    } else if (s->o.pause_max_ns > 0) {
        if (now - q->paused_since >= s->o.pause_max_ns)
            seq_end(s, slot, END_EXPIRED, now);
        else
            *next = MIN(*next, q->paused_since + s->o.pause_max_ns);
    }
}

void sched_sweep(struct sched *s, uint64_t now)
{
    uint64_t next_deadline = UINT64_MAX;
    s->looks++;
    for (uint32_t i = s->n_live_groups; i-- > 0;) { /* an end puts the last one here, which has been seen */
        const uint32_t group = s->live[i];
        struct group *g = &s->groups[group];
        group_look(s, g);
        const enum req_end why = g->n_live > 0 ? group_is_over(s, g, now, &next_deadline) : END_NONE;
        if (why != END_NONE) {
            group_end(s, group, why, now);
            continue;
        }
        uint32_t next;
        for (uint32_t slot = g->first; s->n_paused > 0 && slot != SLOT_NONE; slot = next) {
            next = s->seqs[slot].sibling;
            sweep_paused(s, slot, now, &next_deadline);
        }
    }
    s->next_deadline = next_deadline;
}

void sched_abort_all(struct sched *s, enum req_end why, const struct error *e, uint64_t now)
{
    s->committed = s->step;
    kv_fence_done(s->kv, s->step);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct seq *q = &s->seqs[i];
        q->n_plans = q->n_flying = q->n_dropped = 0;
        if (q->state == SEQ_ENDED)
            slot_give(s, i);
    }
    while (s->n_live_groups > 0) {
        const uint32_t group = s->live[s->n_live_groups - 1];
        if (e != NULL && s->groups[group].request->error.code == OK)
            s->groups[group].request->error = *e;
        group_end(s, group, why, now);
    }
}
