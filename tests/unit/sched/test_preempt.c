/* Preemption: by swap or recomputing, by cost or by force; the oldest goes on, paused ones go first, and every answer
 * stays the same. The world compares the answers. */
#include "testing_sched.h"

static struct sched_stats stats_of(const struct world *w)
{
    struct sched_stats st;
    sched_stats(w->s, &st);
    return st;
}

static struct sched_stats run_tight(enum preempt_mode mode, uint32_t depth, uint32_t n_host, double swap_ns, bool cache)
{
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 30;
    o.n_host_blocks = n_host;
    o.depth = depth;
    o.sched.preempt = mode;
    o.sched.swap_ns_per_block = swap_ns;
    o.sched.watermark = 0;
    o.sched.prefix_cache = cache;
    o.eos_every = 0;
    world_init(&w, &o);
    for (uint32_t i = 0; i < 10; i++)
        world_submit(&w, world_request(40 + i, 90, i));
    world_run(&w);
    assert_int_equal(w.n_ends[END_LENGTH], 10);
    const struct sched_stats st = stats_of(&w);
    world_fini(&w);
    return st;
}

static void recomputing_gives_the_same_tokens(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        const struct sched_stats st = run_tight(PREEMPT_RECOMPUTE, k & 1, 100, 0, k > 1);
        assert_true(st.preempted_recompute > 5);
        assert_int_equal(st.preempted_swap, 0);
    }
}

static void swapping_gives_the_same_tokens(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        const struct sched_stats st = run_tight(PREEMPT_SWAP, k & 1, 200, 0, k > 1);
        assert_true(st.preempted_swap > 5);
        assert_int_equal(st.preempted_recompute, 0);
        assert_int_equal(st.prompt_tokens, 40 * 10 + 45); /* each prompt computed once */
    }
}

static void without_host_memory_swapping_becomes_recomputing(void **state)
{
    (void)state;
    const struct sched_stats none = run_tight(PREEMPT_SWAP, 0, 0, 0, false),
                             few = run_tight(PREEMPT_SWAP, 1, 9, 0, false);
    assert_int_equal(none.preempted_swap, 0);
    assert_true(none.preempted_recompute > 5);
    assert_true(few.preempted_swap > 0 && few.preempted_recompute > 0);
}

/* A block is 16 rows at 10 us: swapping it out and in at 60 us is cheaper, at 600 us it is not. */
static void the_cheaper_way_is_taken(void **state)
{
    (void)state;
    const struct sched_stats cheap = run_tight(PREEMPT_AUTO, 0, 200, 60e3, false);
    const struct sched_stats dear = run_tight(PREEMPT_AUTO, 0, 200, 600e3, false);
    assert_true(cheap.preempted_swap > 5 && cheap.preempted_recompute == 0);
    assert_true(dear.preempted_swap == 0 && dear.preempted_recompute > 5);
}

static void the_oldest_is_never_preempted(void **state)
{
    (void)state;
    for (uint32_t depth = 0; depth < 2; depth++) {
        struct world w;
        struct world_options o = world_options_default();
        o.n_blocks = 30;
        o.depth = depth;
        o.sched.watermark = 0;
        o.sched.order = depth ? ORDER_PRIORITY : ORDER_FCFS;
        o.eos_every = 0;
        world_init(&w, &o);
        w.keep = true;
        struct request *r[10];
        for (uint32_t i = 0; i < 10; i++) {
            struct request_options ro = world_request_options();
            ro.max_tokens = 90;
            ro.priority = i == 4 ? -1 : 0;
            world_submit(&w, r[i] = world_request_like(&ro, 40 + i, 0, 0, i));
        }
        world_run(&w);
        assert_int_equal(r[depth ? 4 : 0]->n_preempted, 0);
        uint32_t n = 0;
        for (uint32_t i = 0; i < 10; i++)
            n += r[i]->n_preempted;
        assert_true(n > 0);
        for (uint32_t i = 0; i < 10; i++)
            request_free(r[i]);
        world_fini(&w);
    }
}

static void forced_preemption_every_few_steps_changes_no_token(void **state)
{
    (void)state;
    for (uint32_t every = 1; every <= 5; every++)
        for (uint32_t k = 0; k < 8; k++) {
            struct world w;
            struct world_options o = world_options_default();
            o.depth = k & 1;
            o.sched.preempt = (k & 2) != 0 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
            o.sched.prefix_cache = (k & 4) != 0;
            o.sched.preempt_every = every;
            world_init(&w, &o);
            struct request_options ro = world_request_options();
            ro.max_tokens = 40;
            for (uint32_t i = 0; i < 6; i++) {
                ro.n_choices = 1 + i % 3;
                world_submit(&w, world_request_like(&ro, 10 + 30 * i, 0, 0, i));
            }
            world_run(&w);
            assert_int_equal(w.n_done, 6);
            const struct sched_stats st = stats_of(&w);
            assert_true(st.preempted_swap + st.preempted_recompute > 5);
            world_fini(&w);
        }
}

static void paused_ones_are_the_first_victims(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 24;
    o.sched.watermark = 0;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request_options ro = world_request_options();
    ro.max_tokens = 100;
    ro.read_window = 4;
    struct request *r[3];
    world_submit(&w, r[0] = world_request_like(&ro, 100, 0, 0, 0)); /* the oldest, but nobody reads it */
    ro.read_window = 0;
    for (uint32_t i = 1; i < 3; i++)
        world_submit(&w, r[i] = world_request_like(&ro, 100, 0, 0, i));
    while (r[0]->n_preempted == 0)
        (void)world_turn(&w);
    assert_int_equal(r[1]->n_preempted + r[2]->n_preempted, 0);
    assert_int_equal(r[0]->choices[0].n_out, 4);
    assert_int_equal(stats_of(&w).n_paused, 1);
    atomic_store(&r[0]->n_read, 4); /* it is read, and goes on where it was */
    r[0]->o.read_window = 0;
    sched_sweep(w.s, w.now);
    assert_int_equal(stats_of(&w).n_paused, 0);
    while (!request_is_done(r[0])) {
        atomic_store(&r[0]->n_read, r[0]->choices[0].n_out);
        sched_sweep(w.s, w.now);
        (void)world_turn(&w);
    }
    world_run(&w);
    for (uint32_t i = 0; i < 3; i++)
        request_free(r[i]);
    world_fini(&w);
}

/* Readers that stopped hold seats and blocks; those behind them in the queue get both. */
static void paused_ones_make_room_for_the_queue(void **state)
{
    (void)state;
    for (uint32_t tight = 0; tight < 2; tight++)
        for (uint32_t depth = 0; depth < 2; depth++) {
            struct world w;
            struct world_options o = world_options_default();
            o.sched.max_num_seqs = tight ? 8 : 2;
            o.n_blocks = tight ? 20 : 200;
            o.sched.pause_max_ns = 0; /* never expires */
            o.depth = depth;
            o.eos_every = 0;
            world_init(&w, &o);
            w.keep = true;
            struct request_options ro = world_request_options();
            ro.read_window = 2;
            struct request *r[4];
            for (uint32_t i = 0; i < 4; i++) {
                ro.read_window = i < 2 ? 2 : 0;
                world_submit(&w, r[i] = world_request_like(&ro, 120, 0, 0, i));
            }
            for (uint32_t i = 0; i < 200 && w.n_done < 2; i++)
                (void)world_turn(&w);
            assert_true(request_is_done(r[2]) && request_is_done(r[3]));
            for (uint32_t i = 0; i < 2; i++)
                atomic_store(&r[i]->cancel, true);
            sched_sweep(w.s, w.now);
            world_run(&w);
            for (uint32_t i = 0; i < 4; i++)
                request_free(r[i]);
            world_fini(&w);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputing_gives_the_same_tokens),
        cmocka_unit_test(swapping_gives_the_same_tokens),
        cmocka_unit_test(without_host_memory_swapping_becomes_recomputing),
        cmocka_unit_test(the_cheaper_way_is_taken),
        cmocka_unit_test(the_oldest_is_never_preempted),
        cmocka_unit_test(forced_preemption_every_few_steps_changes_no_token),
        cmocka_unit_test(paused_ones_are_the_first_victims),
        cmocka_unit_test(paused_ones_make_room_for_the_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
