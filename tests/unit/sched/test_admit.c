/* Admission: reserve, watermark, bounds of the queue, what can never run. */
#include "testing_sched.h"

static uint64_t preemptions(const struct world *w)
{
    struct sched_stats st;
    sched_stats(w->s, &st);
    return st.preempted_swap + st.preempted_recompute;
}

static uint64_t preemptions_of(enum admission admission, bool forks)
{
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 40;
    o.sched.admission = admission;
    o.sched.watermark = 0;
    o.eos_every = 0;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 100;
    ro.n_choices = forks ? 3 : 1;
    for (uint32_t i = 0; i < 12; i++)
        world_submit(&w, world_request_like(&ro, 30 + i, 20, 1, i));
    world_run(&w);
    assert_int_equal(w.n_done, 12);
    const uint64_t n = preemptions(&w);
    world_fini(&w);
    return n;
}

static void reserve_never_preempts_where_on_demand_does(void **state)
{
    (void)state;
    assert_int_equal(preemptions_of(ADMIT_RESERVE, false), 0);
    assert_int_equal(preemptions_of(ADMIT_RESERVE, true), 0);
    assert_true(preemptions_of(ADMIT_ON_DEMAND, false) > 0); /* the same traffic has reason to */
}

static void the_watermark_keeps_blocks_free_for_those_running(void **state)
{
    (void)state;
    for (int marked = 0; marked < 2; marked++) {
        struct world w;
        struct world_options o = world_options_default();
        o.n_blocks = 40;
        o.sched.watermark = marked ? 0.5 : 0;
        o.sched.prefix_cache = false;
        o.eos_every = 0;
        world_init(&w, &o);
        for (uint32_t i = 0; i < 8; i++)
            world_submit(&w, world_request(70, 20, i)); /* 5 blocks each */
        uint32_t most = 0;
        while (world_turn(&w)) {
            struct sched_stats st;
            sched_stats(w.s, &st);
            most = MAX(most, st.n_running);
            if (w.n_done > 0)
                break;
        }
        assert_int_equal(most, marked ? 4 : 8);
        world_run(&w);
        world_fini(&w);
    }
}

static void an_empty_server_takes_what_fits_whatever_the_watermark(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 10;
    o.sched.watermark = 0.9;
    world_init(&w, &o);
    world_submit(&w, world_request(150, 11, 1)); /* all ten blocks */
    world_submit(&w, world_request(150, 11, 2));
    world_run(&w);
    assert_int_equal(w.n_done, 2);
    world_fini(&w);
}

static void what_can_never_run_is_refused_with_the_number(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 10;
    o.sched.queue_max = 4;
    world_init(&w, &o);
    struct error e;
    uint64_t retry;
    struct request *r = world_request(1024, 1, 1);
    assert_fails(e, ERR_LIMIT, "1024 tokens; the context is 1024", sched_submit(w.s, r, 1, &retry, &e));
    request_free(r);
    r = world_request(150, 12, 1);
    assert_fails(e, ERR_LIMIT, "need 11 KV blocks of 16 tokens; there are 10", sched_submit(w.s, r, 1, &retry, &e));
    request_free(r);
    struct request_options ro = world_request_options();
    ro.n_choices = 5;
    r = world_request_like(&ro, 4, 0, 0, 1);
    assert_fails(e, ERR_LIMIT, "n is 5; the queue holds 4", sched_submit(w.s, r, 1, &retry, &e));
    request_free(r);
    ro.n_choices = 1;
    ro.tenant = 4;
    r = world_request_like(&ro, 4, 0, 0, 1);
    assert_fails(e, ERR_INVALID, "tenant 4", sched_submit(w.s, r, 1, &retry, &e));
    request_free(r);
    assert_true(sched_is_idle(w.s));
    world_fini(&w);
}

static void a_full_queue_answers_busy_with_a_time_that_the_backlog_gives(void **state)
{
    (void)state;
    uint64_t retry_of[2];
    for (int slow = 0; slow < 2; slow++) {
        struct world w;
        struct world_options o = world_options_default();
        o.sched.queue_max = 10;
        o.sched.max_num_seqs = 2;
        o.base_ns = slow ? 400000000 : 40000000;
        world_init(&w, &o);
        struct error e;
        uint64_t retry;
        for (uint32_t i = 0; i < 10; i++)
            world_submit(&w, world_request(200, 20, i));
        for (int i = 0; i < 3; i++)
            (void)world_turn(&w);
        for (uint32_t i = 0;; i++) {
            struct request *r = world_request(200, 20, 100 + i);
            const enum err err = sched_submit(w.s, r, w.now, &retry, &e);
            if (err != OK) {
                assert_int_equal(err, ERR_AGAIN);
                request_free(r);
                break;
            }
        }
        retry_of[slow] = retry;
        struct sched_stats st;
        sched_stats(w.s, &st);
        assert_int_equal(st.retry_ns, retry);
        world_run(&w);
        world_fini(&w);
    }
    /* at 64 rows in 40 ms, half of 10 x (200 + about 128) rows take about a second */
    assert_in_range(retry_of[0], UINT64_C(500000000), UINT64_C(3000000000));
    assert_in_range(retry_of[1], 8 * retry_of[0], 12 * retry_of[0]); /* ten times slower, ten times longer */
}

static void queued_tokens_are_bounded_but_one_request_always_fits(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.queue_tokens_max = 100;
    world_init(&w, &o);
    struct error e;
    uint64_t retry;
    world_submit(&w, world_request(500, 2, 1)); /* longer than the bound, and alone */
    struct request *r = world_request(1, 2, 2);
    assert_fails(e, ERR_AGAIN, "prompts of 500 tokens wait; the queue holds 100", sched_submit(w.s, r, 1, &retry, &e));
    (void)world_turn(&w); /* the first runs now */
    world_submit(&w, r);
    world_run(&w);
    world_fini(&w);
}

static void a_tenant_may_fill_only_its_share_while_others_wait(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.queue_max = 10;
    o.sched.tenant_queue_share = 0.5;
    world_init(&w, &o);
    struct error e;
    uint64_t retry;
    struct request_options a = world_request_options(), b = a;
    b.tenant = 1;
    world_submit(&w, world_request_like(&b, 9, 0, 0, 1));
    for (uint32_t i = 0; i < 5; i++)
        world_submit(&w, world_request_like(&a, 9, 0, 0, i));
    struct request *r = world_request_like(&a, 9, 0, 0, 9);
    assert_fails(e, ERR_AGAIN, "its share of the queue is 5", sched_submit(w.s, r, 1, &retry, &e));
    world_submit(&w, world_request_like(&b, 9, 0, 0, 2)); /* the other one has room */
    world_run(&w);
    for (uint32_t i = 0; i < 6; i++) /* alone it may fill all of it */
        world_submit(&w, world_request_like(&a, 9, 0, 0, i));
    world_submit(&w, r);
    world_run(&w);
    world_fini(&w);
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    struct error e;
    struct sched *s;
    struct sched_options o = sched_options_default();
    o.max_batched_tokens = o.max_num_seqs - 1;
    assert_fails(e, ERR_INVALID, "max_batched_tokens", sched_new(&o, NULL, &s, &e));
    o = sched_options_default();
    o.watermark = 2;
    assert_fails(e, ERR_INVALID, "watermark", sched_new(&o, NULL, &s, &e));
    o = sched_options_default();
    o.batching = BATCH_INTERVAL;
    o.interval = 0;
    assert_fails(e, ERR_INVALID, "interval", sched_new(&o, NULL, &s, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve_never_preempts_where_on_demand_does),
        cmocka_unit_test(the_watermark_keeps_blocks_free_for_those_running),
        cmocka_unit_test(an_empty_server_takes_what_fits_whatever_the_watermark),
        cmocka_unit_test(what_can_never_run_is_refused_with_the_number),
        cmocka_unit_test(a_full_queue_answers_busy_with_a_time_that_the_backlog_gives),
        cmocka_unit_test(queued_tokens_are_bounded_but_one_request_always_fits),
        cmocka_unit_test(a_tenant_may_fill_only_its_share_while_others_wait),
        cmocka_unit_test(bad_options_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
