/* sched_check finds what it is there for: each rule is broken once, by hand, and must be named. */
#include "testing_sched.h"

#include "sched/sched_int.h"

/* Running, waiting, swapped, forking, paused, flying: one of each. */
static void busy_world(struct world *w, struct request **paused)
{
    struct world_options o = world_options_default();
    o.sched.order = ORDER_VTC;
    o.sched.max_num_seqs = 3;
    o.sched.preempt = PREEMPT_SWAP;
    o.eos_every = 0;
    o.depth = 1;
    world_init(w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 200;
    ro.read_window = 2;
    world_submit(w, *paused = world_request_like(&ro, 10, 0, 0, 1));
    for (int i = 0; i < 6; i++)
        (void)world_turn(w);
    ro.read_window = 0;
    ro.n_choices = 2;
    for (uint32_t i = 0; i < 5; i++) {
        ro.tenant = i % 3;
        world_submit(w, world_request_like(&ro, 40 + i, 0, 0, 2 + i));
    }
    for (int i = 0; i < 6; i++)
        (void)world_turn(w);
}

static void finish(struct world *w)
{
    sched_abort_all(w->s, END_ABORTED, NULL, w->now);
    w->flying = false;
    world_fini(w);
}

struct breach {
    const char *says;
    void *at;
    size_t bytes;
    uint64_t add;
};

static uint64_t number_add(const struct breach *b, uint64_t by)
{
    uint64_t v = 0;
    memcpy(&v, b->at, b->bytes);
    const uint64_t changed = v + by;
    memcpy(b->at, &changed, b->bytes);
    return v;
}

static struct seq *in_state(struct world *w, enum seq_state state)
{
    for (uint32_t i = 0; i < w->s->n_slots; i++)
        if (w->s->seqs[i].state == state && !w->s->seqs[i].is_paused)
            return &w->s->seqs[i];
    fail_msg("nobody is in state %d", (int)state);
    return NULL;
}

#define BREACH(text, field, by)                                                                                        \
    {                                                                                                                  \
        (text), &(field), sizeof(field), (by)                                                                          \
    }

static void every_broken_rule_is_named(void **state)
{
    (void)state;
    struct world w;
    struct request *paused;
    busy_world(&w, &paused);
    struct sched *s = w.s;
    struct seq *run = in_state(&w, SEQ_RUNNING), *wait = in_state(&w, SEQ_WAITING), *fork = in_state(&w, SEQ_FORKING);
    struct seq *swapped = NULL;
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->seqs[i].state == SEQ_SWAPPED)
            swapped = &s->seqs[i];
    assert_non_null(swapped); /* the unread one made room */
    const struct breach breaches[] = {
        BREACH("waiting, ", s->n_waiting, 1),
        BREACH("forking, ", s->n_forking, 1),
        BREACH("swapped, ", s->n_swapped, 1),
        BREACH("paused, ", s->n_paused, 1),
        BREACH("paused and running, ", s->n_paused_running, 1),
        BREACH("admitted, ", s->n_members, 1),
        BREACH("waiting tokens, ", s->waiting_tokens, 1),
        BREACH("the queues hold", s->n_new, 1),
        BREACH("tenants are backlogged", s->n_active, 1),
        BREACH("blocks for", run->stored, 16),
        BREACH("computed", run->computed, 5000),
        BREACH("plans name it", run->n_plans, 7),
        BREACH("has not", run->n_out, 1),
        BREACH("has no blocks", fork->state, SEQ_RUNNING - SEQ_FORKING),
        BREACH("is in queue", wait->queue, (uint64_t)0 - wait->queue),
        BREACH("is swapped in one place", swapped->state, (uint64_t)SEQ_RUNNING - SEQ_SWAPPED),
        BREACH("slots", s->groups[run->group].n_slots, 1),
        BREACH("live", s->groups[run->group].n_live, 1),
        BREACH("order in the running set", s->seqs[s->running[1]].ticket, (uint64_t)-1000),
    };
    struct error e;
    assert_ok(e, sched_check(s, &e));
    for (size_t i = 0; i < COUNT_OF(breaches); i++) {
        (void)number_add(&breaches[i], breaches[i].add);
        assert_fails(e, ERR_INTERNAL, breaches[i].says, sched_check(s, &e));
        (void)number_add(&breaches[i], (uint64_t)0 - breaches[i].add);
        assert_ok(e, sched_check(s, &e));
    }
    finish(&w);
}

static void a_queue_out_of_order_is_named(void **state)
{
    (void)state;
    struct world w;
    struct request *paused;
    struct error e;
    busy_world(&w, &paused);
    for (uint32_t i = 0; i < 8; i++)
        world_submit(&w, world_request(20, 20, 50 + i)); /* all of tenant 0 */
    struct seq *seqs = w.s->seqs;
    const uint32_t root = w.s->tenants[0].root;
    const uint32_t below = seqs[root].child;
    assert_true(below != SLOT_NONE);
    seqs[below].key = -1;
    assert_fails(e, ERR_INTERNAL, "in the queue, wrongly", sched_check(w.s, &e));
    seqs[below].key = 0;
    w.s->tenants[0].heap_key += 1e9;
    assert_fails(e, ERR_INTERNAL, "out of order", sched_check(w.s, &e));
    w.s->tenants[0].heap_key -= 1e9;
    assert_ok(e, sched_check(w.s, &e));
    finish(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broken_rule_is_named),
        cmocka_unit_test(a_queue_out_of_order_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
