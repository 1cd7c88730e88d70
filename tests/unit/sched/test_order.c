/* Who is served first, and that nobody waits for ever. */
#include "testing_sched.h"

#define N 6

/* The order in which requests that all wait come to run, one at a time. */
static void order_of(enum queue_order order, struct request_options ro[N], const uint32_t n_prompt[N],
    const uint64_t arrival[N], uint32_t out[N])
{
    struct world w;
    struct world_options o = world_options_default();
    o.sched.order = order;
    o.sched.max_num_seqs = 1;
    o.sched.context_max = 3000;
    o.n_blocks = 300;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[N];
    struct error e;
    uint64_t retry;
    for (uint32_t i = 0; i < N; i++) {
        r[i] = world_request_like(&ro[i], n_prompt[i], 0, 0, i);
        r[i]->t_arrival = arrival[i];
        assert_ok(e, sched_submit(w.s, r[i], arrival[i], &retry, &e));
    }
    w.now = 1000000000;
    world_run(&w);
    for (uint32_t k = 0; k < N; k++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < N; i++)
            if (r[i]->t_admitted < r[best]->t_admitted)
                best = i;
        out[k] = best;
        r[best]->t_admitted = UINT64_MAX;
    }
    for (uint32_t i = 0; i < N; i++)
        request_free(r[i]);
    world_fini(&w);
}

static void defaults(struct request_options ro[N], uint32_t n_prompt[N], uint64_t arrival[N])
{
    for (uint32_t i = 0; i < N; i++) {
        ro[i] = world_request_options();
        ro[i].max_tokens = 3;
        n_prompt[i] = 20;
        arrival[i] = 1000 + i;
    }
}

static void fcfs_is_by_arrival(void **state)
{
    (void)state;
    struct request_options ro[N];
    uint32_t n_prompt[N], got[N];
    uint64_t arrival[N];
    defaults(ro, n_prompt, arrival);
    n_prompt[0] = 200;
    ro[5].priority = -3;
    order_of(ORDER_FCFS, ro, n_prompt, arrival, got);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(got[i], i);
}

static void priority_is_by_priority_then_arrival_and_a_step_is_worth_a_minute(void **state)
{
    (void)state;
    struct request_options ro[N];
    uint32_t n_prompt[N], got[N];
    uint64_t arrival[N];
    defaults(ro, n_prompt, arrival);
    static const int32_t priority[N] = {1, 0, -1, 0, 1, -1};
    for (uint32_t i = 0; i < N; i++)
        ro[i].priority = priority[i];
    arrival[5] = UINT64_C(130000000000); /* 130 s later: the two steps to 1 are worth 120 s */
    order_of(ORDER_PRIORITY, ro, n_prompt, arrival, got);
    static const uint32_t want[N] = {2, 1, 3, 0, 4, 5};
    assert_memory_equal(got, want, sizeof want);
    arrival[5] = UINT64_C(110000000000);
    order_of(ORDER_PRIORITY, ro, n_prompt, arrival, got);
    static const uint32_t sooner[N] = {2, 1, 3, 5, 0, 4};
    assert_memory_equal(got, sooner, sizeof sooner);
    ro[5].priority = INT32_MIN; /* the largest wish is still a number */
    order_of(ORDER_PRIORITY, ro, n_prompt, arrival, got);
    assert_int_equal(got[0], 5);
}

static void sjf_is_by_prompt_and_ages(void **state)
{
    (void)state;
    struct request_options ro[N];
    uint32_t n_prompt[N] = {500, 100, 300, 20, 100, 20}, got[N];
    uint64_t arrival[N];
    uint32_t unused[N];
    defaults(ro, unused, arrival);
    arrival[5] = UINT64_C(3900000000); /* 3.9 s later: 380 tokens less are worth 3.8 s at 10 ms */
    order_of(ORDER_SJF, ro, n_prompt, arrival, got);
    static const uint32_t want[N] = {3, 1, 4, 2, 5, 0};
    assert_memory_equal(got, want, sizeof want);
}

static void deadline_is_by_target(void **state)
{
    (void)state;
    struct request_options ro[N];
    uint32_t n_prompt[N], got[N];
    uint64_t arrival[N];
    defaults(ro, n_prompt, arrival);
    static const uint64_t target_ms[N] = {0, 5000, 100, 20000, 5000, 1};
    for (uint32_t i = 0; i < N; i++)
        ro[i].ttft_target_ns = target_ms[i] * 1000000;
    order_of(ORDER_DEADLINE, ro, n_prompt, arrival, got);
    static const uint32_t want[N] = {5, 2, 1, 4, 0, 3}; /* none counts as 10 s */
    assert_memory_equal(got, want, sizeof want);
}

/* A stream of small urgent requests does not keep a large lazy one waiting for ever. */
static void nobody_starves_under_any_order(void **state)
{
    (void)state;
    static const enum queue_order orders[] = {ORDER_FCFS, ORDER_PRIORITY, ORDER_VTC, ORDER_SJF, ORDER_DEADLINE};
    for (size_t k = 0; k < COUNT_OF(orders); k++) {
        struct world w;
        struct world_options o = world_options_default();
        o.sched.order = orders[k];
        o.sched.max_num_seqs = 2;
        o.sched.tenants_max = 2;
        o.base_ns = UINT64_C(50000000);
        o.eos_every = 0;
        o.check_every_step = false;
        world_init(&w, &o);
        w.keep = true;
        struct request_options lazy = world_request_options(), urgent = world_request_options();
        lazy.priority = 2;
        lazy.ttft_target_ns = UINT64_C(60000000000);
        lazy.max_tokens = urgent.max_tokens = 4;
        lazy.tenant = 1;
        struct request *all[4096], *r = NULL;
        uint32_t n = 0;
        while (r == NULL || r->choices[0].end == END_NONE) {
            struct sched_stats st;
            sched_stats(w.s, &st);
            while (st.n_waiting < 6 && n < 4095) {
                world_submit(&w, all[n] = world_request_like(&urgent, 8, 0, 0, n));
                n++;
                sched_stats(w.s, &st);
                if (n == 5) {
                    world_submit(&w, r = world_request_like(&lazy, 300, 0, 0, 99));
                }
            }
            (void)world_turn(&w);
            if (n >= 4095)
                fail_msg("order %d: served %u others in between", (int)orders[k], n);
        }
        assert_int_equal(r->choices[0].end, END_LENGTH);
        world_run(&w);
        for (uint32_t i = 0; i < n; i++)
            request_free(all[i]);
        request_free(r);
        world_fini(&w);
    }
}

static void a_large_head_is_not_overtaken(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 20;
    o.sched.watermark = 0;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[3];
    world_submit(&w, r[0] = world_request(64, 60, 1));
    (void)world_turn(&w);
    world_submit(&w, r[1] = world_request(300, 4, 2)); /* 19 blocks: only when the first is gone */
    world_submit(&w, r[2] = world_request(8, 4, 3));   /* would fit beside the first */
    world_run(&w);
    assert_true(r[1]->t_admitted >= r[0]->t_end);
    assert_true(r[2]->t_admitted >= r[1]->t_admitted);
    for (uint32_t i = 0; i < 3; i++)
        request_free(r[i]);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fcfs_is_by_arrival),
        cmocka_unit_test(priority_is_by_priority_then_arrival_and_a_step_is_worth_a_minute),
        cmocka_unit_test(sjf_is_by_prompt_and_ages),
        cmocka_unit_test(deadline_is_by_target),
        cmocka_unit_test(nobody_starves_under_any_order),
        cmocka_unit_test(a_large_head_is_not_overtaken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
