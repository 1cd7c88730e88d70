/* Who is next. One rule for all orders: the smallest rank (key, ticket) is served first, and the key is fixed when the
 * request is taken in: its arrival, moved by what the order is about.
 *
 *   fcfs       the ticket alone
 *   priority   arrival + priority x 60 s: a step of priority is worth a minute of waiting
 *   sjf        arrival + 10 ms for each prompt token that the prefix cache did not have then
 *   deadline   arrival + TTFT target; 10 s for those without one
 *   vtc        the ticket, among those of the tenant whose counter is smallest
 *
 * Fixed keys age by themselves: everything that arrives later starts later, so a low priority or a long prompt is
 * overtaken only by what arrives within a time that its own numbers bound. They also make the order one that heaps can
 * keep, and preemption one that provably ends (sched_int.h).
 *
 * There are two queues: NEW for sequences of requests that were never admitted, AGAIN for those that were (preempted
 * ones, and siblings whose prompt is there). Batchings that close their gate close it to NEW only.
 *
 * A queue is a pairing heap linked through the slots: putting is O(1), taking O(log n) in the long run, and a cancelled
 * sequence is taken out of the middle without searching. With vtc each tenant has its own. */
#include "sched/sched_int.h"

#define PRIORITY_STEP_NS    INT64_C(60000000000)
#define PRIORITY_MAX        1000000 /* two years of waiting; keeps the key inside 64 bits */
#define SJF_TOKEN_NS        INT64_C(10000000)
#define DEADLINE_DEFAULT_NS INT64_C(10000000000)

int64_t queue_key(const struct sched *s, const struct request *r, uint64_t now)
{
    const int64_t arrival = (int64_t)MIN(now, (uint64_t)INT64_MAX / 4);
    const struct request_options *o = &r->o;
    switch (s->o.order) {
    case ORDER_PRIORITY:
        return arrival + MAX(-PRIORITY_MAX, MIN(PRIORITY_MAX, (int64_t)o->priority)) * PRIORITY_STEP_NS;
    case ORDER_SJF: {
        const struct kv_key key = {.numerics = s->o.numerics, .adapter = o->adapter, .salt = o->salt};
        const bool looks = s->o.prefix_cache && !o->want_prompt_logprobs && o->pool != POOL_MEAN;
        const uint32_t found = looks ? kv_peek(s->kv, key, o->prompt, o->n_prompt, NULL) : 0;
        return arrival + (int64_t)(o->n_prompt - found) * SJF_TOKEN_NS;
    }
    case ORDER_DEADLINE:
        return arrival + (o->ttft_target_ns == 0 ? DEADLINE_DEFAULT_NS
                                                 : (int64_t)MIN(o->ttft_target_ns, (uint64_t)INT64_MAX / 4));
    case ORDER_FCFS:
    case ORDER_VTC: break;
    }
    return 0;
}

/* ---- the heap: child = first child; next, prev = siblings; the first child's prev is its parent ---- */

static uint32_t meld(struct seq *seqs, uint32_t a, uint32_t b)
{
    if (a == SLOT_NONE)
        return b;
    if (b == SLOT_NONE)
        return a;
    if (seq_before(&seqs[b], &seqs[a])) {
        const uint32_t swap = a;
        a = b;
        b = swap;
    }
    seqs[b].next = seqs[a].child;
    if (seqs[a].child != SLOT_NONE)
        seqs[seqs[a].child].prev = b;
    seqs[b].prev = a;
    seqs[a].child = b;
    return a;
}

/* The children of a root that goes away become one heap: in pairs from the left, then all from the right. */
static uint32_t meld_children(struct seq *seqs, uint32_t first)
{
    uint32_t pairs = SLOT_NONE; /* a stack, linked by next */
    while (first != SLOT_NONE) {
        const uint32_t a = first, b = seqs[a].next;
        const uint32_t rest = b != SLOT_NONE ? seqs[b].next : SLOT_NONE;
        seqs[a].next = seqs[a].prev = SLOT_NONE;
        if (b != SLOT_NONE)
            seqs[b].next = seqs[b].prev = SLOT_NONE;
        const uint32_t pair = meld(seqs, a, b);
        seqs[pair].next = pairs;
        pairs = pair;
        first = rest;
    }
    uint32_t root = SLOT_NONE;
    while (pairs != SLOT_NONE) {
        const uint32_t rest = seqs[pairs].next;
        seqs[pairs].next = SLOT_NONE;
        root = meld(seqs, root, pairs);
        pairs = rest;
    }
    return root;
}

static void heap_put(struct seq *seqs, uint32_t *root, uint32_t slot)
{
    seqs[slot].child = seqs[slot].next = seqs[slot].prev = SLOT_NONE;
    *root = meld(seqs, *root, slot);
}

static void heap_remove(struct seq *seqs, uint32_t *root, uint32_t slot)
{
    struct seq *q = &seqs[slot];
    const uint32_t below = meld_children(seqs, q->child);
    if (*root == slot) {
        *root = below;
        return;
    }
    if (seqs[q->prev].child == slot)
        seqs[q->prev].child = q->next;
    else
        seqs[q->prev].next = q->next;
    if (q->next != SLOT_NONE)
        seqs[q->next].prev = q->prev;
    *root = meld(seqs, *root, below);
}

/* ---- queues ---- */

static uint32_t *root_of(struct sched *s, const struct seq *q)
{
    if (q->queue == QUEUE_AGAIN)
        return &s->again_root;
    return sched_is_vtc(s) ? &s->tenants[q->tenant].root : &s->new_root;
}

/* Prompt tokens that it still has to compute, as far as one knows before looking for a prefix. */
static uint32_t tokens_ahead(const struct seq *q)
{
    if (q->state == SEQ_SWAPPED)
        return q->n_prompt - MIN(q->n_prompt, q->computed);
    return q->i_choice > 0 && q->n_out == 0 ? 1 : q->n_prompt;
}

void queue_put(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert(q->queue == QUEUE_NONE && !q->is_paused && (q->state == SEQ_WAITING || q->state == SEQ_SWAPPED));
    q->queue = s->groups[q->group].is_admitted ? QUEUE_AGAIN : QUEUE_NEW;
    q->queued_tokens = tokens_ahead(q);
    s->waiting_tokens += q->queued_tokens;
    if (q->queue == QUEUE_NEW)
        s->n_new++;
    else
        s->n_again++;
    uint32_t *root = root_of(s, q);
    const bool was_empty = *root == SLOT_NONE;
    heap_put(s->seqs, root, slot);
    if (q->queue == QUEUE_NEW && sched_is_vtc(s) && was_empty)
        tenant_activate(s, q->tenant);
}

void queue_remove(struct sched *s, uint32_t slot)
{
    struct seq *q = &s->seqs[slot];
    assert(q->queue != QUEUE_NONE);
    uint32_t *root = root_of(s, q);
    heap_remove(s->seqs, root, slot);
    s->waiting_tokens -= q->queued_tokens;
    if (q->queue == QUEUE_NEW)
        s->n_new--;
    else
        s->n_again--;
    if (q->queue == QUEUE_NEW && sched_is_vtc(s) && *root == SLOT_NONE)
        tenant_deactivate(s, q->tenant);
    q->queue = QUEUE_NONE;
    q->queued_tokens = 0;
}

uint32_t queue_head(struct sched *s, bool new_ones)
{
    const uint32_t again = s->again_root;
    if (!new_ones || s->n_new == 0)
        return again;
    /* what was admitted before has been charged to its tenant already: it goes first */
    if (sched_is_vtc(s))
        return again != SLOT_NONE ? again : s->tenants[tenant_least(s)].root;
    if (again != SLOT_NONE && seq_before(&s->seqs[again], &s->seqs[s->new_root]))
        return again;
    return s->new_root;
}

/* ---- checking: every queued slot is found from its root, in order, once ---- */

static enum err heap_check(const struct sched *s, uint32_t root, enum queue_id queue, uint32_t *n, struct error *e)
{
    /* depth first without a stack: down by child, on by next, up by prev */
    uint32_t at = root;
    if (root != SLOT_NONE && (s->seqs[root].next != SLOT_NONE || s->seqs[root].prev != SLOT_NONE))
        return FAIL(e, ERR_INTERNAL, "slot %u is the root of a queue and has siblings", root);
    while (at != SLOT_NONE) {
        const struct seq *q = &s->seqs[at];
        if (q->queue != queue || ++*n > s->n_slots)
            return FAIL(e, ERR_INTERNAL, "slot %u is in queue %d, and says %d", at, (int)queue, (int)q->queue);
        if (q->child != SLOT_NONE) {
            if (s->seqs[q->child].prev != at || seq_before(&s->seqs[q->child], q))
                return FAIL(e, ERR_INTERNAL, "slot %u is above slot %u in the queue, wrongly", at, q->child);
            at = q->child;
            continue;
        }
        while (at != SLOT_NONE && s->seqs[at].next == SLOT_NONE) { /* up to the parent of this row of siblings */
            while (at != root && s->seqs[s->seqs[at].prev].child != at)
                at = s->seqs[at].prev;
            at = at == root ? SLOT_NONE : s->seqs[at].prev;
        }
        if (at == SLOT_NONE)
            break;
        const uint32_t next = s->seqs[at].next;
        if (s->seqs[next].prev != at)
            return FAIL(e, ERR_INTERNAL, "slot %u is beside slot %u in the queue, wrongly", at, next);
        if (seq_before(&s->seqs[next], &s->seqs[root]))
            return FAIL(e, ERR_INTERNAL, "slot %u comes before the head of its queue", next);
        at = next;
    }
    return OK;
}

enum err queue_check(const struct sched *s, struct error *e)
{
    uint32_t n_new = 0, n_again = 0;
    TRY(heap_check(s, s->again_root, QUEUE_AGAIN, &n_again, e));
    TRY(heap_check(s, s->new_root, QUEUE_NEW, &n_new, e));
    for (uint32_t t = 0; t < s->o.tenants_max; t++)
        TRY(heap_check(s, s->tenants[t].root, QUEUE_NEW, &n_new, e));
    if (n_new != s->n_new || n_again != s->n_again)
        return FAIL(e, ERR_INTERNAL, "the queues hold %u + %u sequences, %u + %u are counted", n_new, n_again, s->n_new,
            s->n_again);
    return OK;
}
