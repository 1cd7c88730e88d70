/* Fairness between tenants: the bound of the virtual token counters, weights, and the lift. */
#include "testing_sched.h"

#define TENANTS 3

/* Keep every tenant backlogged for n steps and say what each was served, in weighted tokens per weight. */
struct fair_setup {
    enum queue_order order;
    uint32_t n_tenants;
    double weight[TENANTS];
    uint32_t prompt[TENANTS], out[TENANTS]; /* lengths of each tenant's requests */
    uint32_t backlog[TENANTS];              /* requests kept waiting */
};

static void serve(const struct fair_setup *f, double worst[TENANTS][TENANTS], double *bound, double counters[TENANTS])
{
    struct world w;
    struct world_options o = world_options_default();
    o.sched.order = f->order;
    o.sched.max_num_seqs = 4;
    o.sched.queue_max = 256;
    o.n_blocks = 1000;
    o.eos_every = 0;
    o.check_every_step = false;
    world_init(&w, &o);
    double longest = 0, least = 1e9;
    for (uint32_t t = 0; t < f->n_tenants; t++) {
        sched_tenant_weight(w.s, t, f->weight[t]);
        longest = MAX(longest, f->prompt[t]);
        least = MIN(least, f->weight[t]);
    }
    uint64_t seed = 0;
    struct request *live[512];
    uint32_t n_live = 0;
    w.keep = true;
    double served[TENANTS] = {0};
    for (uint32_t step = 0; step < 3000; step++) {
        uint32_t waiting[TENANTS] = {0};
        for (uint32_t i = 0; i < n_live; i++)
            waiting[live[i]->o.tenant] += live[i]->t_admitted == 0;
        for (uint32_t t = 0; t < f->n_tenants; t++)
            for (; waiting[t] < f->backlog[t]; waiting[t]++) {
                struct request_options ro = world_request_options();
                ro.tenant = t;
                ro.max_tokens = f->out[t];
                live[n_live] = world_request_like(&ro, f->prompt[t], 0, 0, seed++);
                world_submit(&w, live[n_live++]);
            }
        (void)world_turn(&w);
        for (uint32_t t = 0; t < f->n_tenants; t++)
            served[t] = sched_tenant_counter(w.s, t);
        for (uint32_t a = 0; a < f->n_tenants; a++)
            for (uint32_t b = 0; b < f->n_tenants; b++)
                worst[a][b] = MAX(worst[a][b], served[a] - served[b]);
        for (uint32_t i = n_live; i-- > 0;)
            if (request_is_done(live[i])) {
                request_free(live[i]);
                live[i] = live[--n_live];
            }
    }
    for (uint32_t t = 0; t < f->n_tenants; t++)
        counters[t] = sched_tenant_counter(w.s, t);
    /* a full batch: four sequences of the longest kind */
    const double batch = 4.0 * (longest + 64);
    *bound = 2 * MAX(o.sched.vtc_input_weight * longest, o.sched.vtc_output_weight * batch) / least;
    sched_abort_all(w.s, END_ABORTED, NULL, w.now);
    for (uint32_t i = 0; i < n_live; i++)
        request_free(live[i]);
    world_fini(&w);
}

static double worst_gap(const struct fair_setup *f, double *bound, double counters[TENANTS])
{
    double worst[TENANTS][TENANTS] = {{0}}, all = 0;
    serve(f, worst, bound, counters);
    for (uint32_t a = 0; a < f->n_tenants; a++)
        for (uint32_t b = 0; b < f->n_tenants; b++)
            all = MAX(all, worst[a][b]);
    return all;
}

static void two_tenants_stay_within_the_bound_whatever_they_send(void **state)
{
    (void)state;
    const struct fair_setup f = {
        .order = ORDER_VTC, .n_tenants = 2, .weight = {1, 1}, .prompt = {100, 10}, .out = {10, 40}, .backlog = {40, 2}};
    double bound, counters[TENANTS];
    assert_true(worst_gap(&f, &bound, counters) < bound);
    assert_true(counters[0] > 5 * bound); /* the run was long enough for the bound to mean something */
}

/* The twin: the same traffic in the order of arrival breaks the same bound. */
static void first_come_first_served_breaks_the_bound(void **state)
{
    (void)state;
    const struct fair_setup f = {.order = ORDER_FCFS,
        .n_tenants = 2,
        .weight = {1, 1},
        .prompt = {100, 10},
        .out = {10, 40},
        .backlog = {40, 2}};
    double bound, counters[TENANTS];
    assert_true(worst_gap(&f, &bound, counters) > bound);
}

static void three_tenants_share_by_weight(void **state)
{
    (void)state;
    const struct fair_setup f = {.order = ORDER_VTC,
        .n_tenants = 3,
        .weight = {1, 2, 4},
        .prompt = {30, 60, 20},
        .out = {20, 10, 30},
        .backlog = {8, 8, 8}};
    double bound, counters[TENANTS];
    assert_true(worst_gap(&f, &bound, counters) < bound); /* counters are per weight: equal ones mean 1 : 2 : 4 */
    assert_true(counters[0] > 2 * bound);
}

static void a_tenant_that_was_away_has_saved_nothing(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.order = ORDER_VTC;
    o.sched.max_num_seqs = 1;
    o.eos_every = 0;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 10;
    for (uint32_t i = 0; i < 20; i++)
        world_submit(&w, world_request_like(&ro, 40, 0, 0, i));
    while (w.n_done < 10)
        (void)world_turn(&w);
    const double before = sched_tenant_counter(w.s, 0);
    assert_true(before > 9 * (40 + 2 * 10) - 1);
    ro.tenant = 1;
    world_submit(&w, world_request_like(&ro, 40, 0, 0, 77));
    assert_true(sched_tenant_counter(w.s, 1) == before); /* not 0, which would be ten turns in a row */
    world_run(&w);
    /* after a quiet time the last one that was backlogged counts */
    ro.tenant = 2;
    world_submit(&w, world_request_like(&ro, 40, 0, 0, 78));
    assert_true(sched_tenant_counter(w.s, 2) >= before);
    world_run(&w);
    world_fini(&w);
}

static void found_tokens_are_not_charged(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.order = ORDER_VTC;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 1;
    world_submit(&w, world_request_like(&ro, 64, 64, 5, 1));
    world_run(&w);
    assert_true(sched_tenant_counter(w.s, 0) == 64 + 2);
    world_submit(&w, world_request_like(&ro, 65, 64, 5, 2));
    world_run(&w);
    assert_true(sched_tenant_counter(w.s, 0) == 64 + 2 + 1 + 2);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_tenants_stay_within_the_bound_whatever_they_send),
        cmocka_unit_test(first_come_first_served_breaks_the_bound),
        cmocka_unit_test(three_tenants_share_by_weight),
        cmocka_unit_test(a_tenant_that_was_away_has_saved_nothing),
        cmocka_unit_test(found_tokens_are_not_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
