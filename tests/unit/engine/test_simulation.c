/* A few short histories of the simulator in every build, with sanitizers too; bench/sim runs the long ones. And the
 * test of the test: planted faults are found. */
#include "testing.h"

#include "testing_sim.h"

static struct sim_totals run(uint64_t first, uint64_t n, double seconds)
{
    struct sim_totals totals = {0};
    for (uint64_t seed = first; seed < first + n; seed++) {
        const struct sim_config c = sim_draw(seed, seconds);
        struct error e = {0};
        if (sim_run(&c, &totals, &e) != OK)
            fail_msg("%s", e.text);
    }
    return totals;
}

static void every_policy_keeps_its_promises_through_a_short_life(void **state)
{
    (void)state;
    const struct sim_totals t = run(1, 300, 40);
    /* A history that does not meet these proves nothing about them. */
    assert_true(t.requests > 1000 && t.compared_tokens > 5000 && t.hits > 50 && t.copied > 5);
    assert_true(t.preempted_swap > 5 && t.preempted_recompute > 5 && t.fair_pairs > 5);
    assert_true(t.kept > 100 && t.kept < t.evicted && t.restored > 0);
    assert_true(t.jumped > 1000);
    assert_true(t.ended[END_EOS] > 0 && t.ended[END_STOP] > 0 && t.ended[END_LENGTH] > 0 && t.ended[END_CANCELLED] > 0);
    assert_true(t.guesses > 1000 && t.guesses_held > 300 && t.guesses_held < t.guesses);
    assert_true(t.ended[END_DEADLINE] > 0 && t.ended[END_ABORTED] > 0 && t.refused_busy + t.ended[END_BUSY] > 0);
}

static void one_seed_is_one_history(void **state)
{
    (void)state;
    const struct sim_totals a = run(17, 1, 120), b = run(17, 1, 120);
    assert_memory_equal(&a, &b, sizeof a);
}

static struct sim_config healthy(void)
{
    struct sim_config c = sim_draw(1, 300);
    c.breaks = SIM_BREAK_NONE;
    c.load = 1;
    return c;
}

static void a_budget_that_is_passed_is_seen(void **state)
{
    (void)state;
    struct sim_totals t = {0};
    struct error e = {0};
    struct sim_config c = healthy();
    c.plant_budget = c.sched.max_batched_tokens - 1;
    if (c.sched.max_batched_tokens == 1)
        skip();
    assert_fails(e, ERR_INTERNAL, "the budget is 1", sim_run(&c, &t, &e));
}

static void a_token_that_is_changed_on_its_way_is_seen(void **state)
{
    (void)state;
    struct sim_totals t = {0};
    struct error e = {0};
    struct sim_config c = healthy();
    c.plant_token_at = 40;
    assert_fails(e, ERR_INTERNAL, "", sim_run(&c, &t, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_keeps_its_promises_through_a_short_life),
        cmocka_unit_test(one_seed_is_one_history),
        cmocka_unit_test(a_budget_that_is_passed_is_seen),
        cmocka_unit_test(a_token_that_is_changed_on_its_way_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
