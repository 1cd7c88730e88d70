/* The cost model and what is sized by it: chunks under an inter-token target. */
#include "testing_sched.h"

#include "sched/sched_int.h"

#include <math.h>

/* A machine's time for rows at a mean context, with some noise that repeats. */
struct machine {
    double base, row, row_context, noise;
};

static double machine_ns(const struct machine *m, double rows, double context, uint32_t i)
{
    const double wobble = 1 + m->noise * ((double)(i * 2654435769u % 1000) / 500 - 1);
    return (m->base + m->row * rows + m->row_context * rows * context) * wobble;
}

static void learn(struct cost *c, const struct machine *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const double rows = i % 3 == 0 ? 300 + i * 7 % 400 : 1 + i % 60, context = 50 + i * 37 % 3000;
        cost_observe(c, rows, rows * context, machine_ns(m, rows, context, i));
    }
}

static bool is_near(double a, double b, double share)
{
    return fabs(a - b) <= share * b;
}

/* The three numbers come out within a tenth; a wrong slope would not pass for the right one. */
static void the_fit_finds_the_three_numbers_and_a_wrong_slope_does_not_pass(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 15, 0.05};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 500);
    assert_true(c.fit.fitted);
    assert_true(is_near(c.fit.base_ns, m.base, 0.1));
    assert_true(is_near(c.fit.row_ns, m.row, 0.1));
    assert_true(is_near(c.fit.row_context_ns, m.row_context, 0.1));
    const struct machine steep = {5e6, 50e3, 15, 0.05}; /* the twin */
    c = (struct cost){0};
    learn(&c, &steep, 500);
    assert_false(is_near(c.fit.row_ns, m.row, 0.1));
}

static void a_hiccup_moves_nothing_and_a_slower_machine_is_believed(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 15, 0.02};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 500);
    const double before = cost_predict(&c, 32, 32 * 500.0);
    cost_observe(&c, 32, 32 * 500.0, 1e12); /* a quarter of an hour in the debugger */
    assert_true(is_near(cost_predict(&c, 32, 32 * 500.0), before, 0.2));
    const struct machine slow = {10e6, 80e3, 30, 0.02};
    for (uint32_t i = 0; i < 150; i++)
        cost_observe(&c, 32, 32 * 500.0, machine_ns(&slow, 32, 500, i));
    assert_true(is_near(cost_predict(&c, 32, 32 * 500.0), 2 * before, 0.1));
}

static void no_number_is_ever_negative(void **state)
{
    (void)state;
    /* shrinking with context, or with rows: no such machine, but noise can look like it */
    static struct cost c;
    for (int k = 0; k < 3; k++) {
        c = (struct cost){0};
        for (uint32_t i = 0; i < 200; i++) {
            const double rows = 1 + i % 500, context = 1 + i * 31 % 4000;
            const double ns = k == 0 ? 1e7 - context * 1000 : k == 1 ? 1e7 - rows * 1000 : 1e6 * (double)(1 + i % 7);
            cost_observe(&c, rows, rows * context, ns);
        }
        assert_true(c.fit.fitted && c.fit.base_ns >= 0 && c.fit.row_ns >= 0 && c.fit.row_context_ns >= 0);
        assert_true(c.fit.base_ns + c.fit.row_ns + c.fit.row_context_ns > 0);
    }
}

static void an_hour_of_decoding_does_not_wash_prompts_out(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 15, 0.02};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 300);
    for (uint32_t i = 0; i < 100000; i++)
        cost_observe(&c, 8, 8 * 700.0, machine_ns(&m, 8, 700, i));
    assert_true(is_near(c.fit.row_ns, m.row, 0.1));
    assert_true(is_near(cost_predict(&c, 500, 500 * 1000.0), machine_ns(&m, 500, 1000, 500), 0.15));
}

/* Where the machine is not a straight line, what was measured there counts. */
static void a_prediction_is_corrected_by_its_class(void **state)
{
    (void)state;
    static struct cost c;
    c = (struct cost){0};
    for (uint32_t i = 0; i < 100; i++) {
        const double rows = i % 2 == 0 ? 8 : 100;
        cost_observe(&c, rows, rows * 64, 1e6 + rows * 1e4);
        cost_observe(&c, 400, 400 * 64.0, 3 * (1e6 + 400 * 1e4)); /* three times off the line */
    }
    assert_true(is_near(cost_predict(&c, 400, 400 * 64.0), 3 * (1e6 + 400 * 1e4), 0.05));
    assert_true(is_near(cost_predict(&c, 8, 8 * 64.0), 1e6 + 8e4, 0.05));
}

static void rows_for_a_target_take_just_that_long(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 15, 0};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 500);
    for (uint32_t pos = 0; pos < 100000; pos += 9999) {
        const double target = 20e6, rows = 8, context = 8 * 400.0;
        const uint32_t r = cost_rows(&c, rows, context, pos, target);
        const double ns = m.base + m.row * (rows + r) + m.row_context * (context + (double)r * pos + 0.5 * r * r);
        if (!(ns < 1.1 * target && ns > 0.85 * target))
            fail_msg("from position %u on %u rows take %g ns of %g", pos, r, ns, target);
    }
    assert_int_equal(cost_rows(&c, 8, 3200, 0, 4e6), 0); /* the streams alone take longer */
}

/* Behind a long context a row is a twentieth of a step: the nearest number of rows meets the target on the mean. The
 * twin, half a row less, which rounding down comes to, stays below it. */
static void chunks_fill_the_target_on_the_mean(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 150, 0};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 500);
    const double target = 20e6, rows = 8, context = 8 * 400.0;
    double sum = 0, below = 0;
    uint32_t n = 0;
    for (uint32_t pos = 3000; pos < 6000; pos += 7, n++) {
        const uint32_t r = cost_rows(&c, rows, context, pos, target);
        const double row = m.row + m.row_context * (pos + 0.5 * r);
        const double ns = m.base + m.row * rows + m.row_context * context + r * row;
        assert_in_range(r, 8, 40);
        sum += ns;
        below += ns - 0.5 * row;
    }
    assert_true(is_near(sum / n, target, 0.01));
    assert_false(is_near(below / n, target, 0.01));
}

/* Chunks on a machine that is half again as slow as all that was measured: within a few steps they fit; without
 * steering, the twin, the first class that is trusted decides, which takes longer. */
static void chunks_fit_soon_on_a_machine_that_became_slower(void **state)
{
    (void)state;
    const struct machine m = {5e6, 40e3, 15, 0}, slow = {7.5e6, 60e3, 22.5, 0};
    static struct cost c;
    double late[2] = {0};
    for (int steered = 0; steered < 2; steered++) {
        c = (struct cost){0};
        learn(&c, &m, 500);
        for (uint32_t step = 0; step < 6; step++) {
            const double target = 20e6, rows = 8, context = 8 * 400.0;
            const uint32_t r = cost_rows(&c, rows, context, 100 * step, target);
            const double all = context + (double)r * 100 * step + 0.5 * r * r;
            const double ns = slow.base + slow.row * (rows + r) + slow.row_context * all;
            if (steered)
                (void)cost_steer(&c, rows + r, all, ns);
            late[steered] = ns / target;
        }
    }
    assert_true(late[1] < 1.12);
    assert_true(late[0] > late[1] + 0.05);
}

/* Rows of all chunks of 120 steps of which every nth takes three quarters longer. */
static uint32_t rows_with_hiccups(uint32_t every)
{
    const struct machine m = {5e6, 40e3, 15, 0};
    static struct cost c;
    c = (struct cost){0};
    learn(&c, &m, 500);
    uint32_t sum = 0;
    for (uint32_t step = 1; step <= 120; step++) {
        const double target = 20e6, rows = 8, context = 8 * 400.0;
        const uint32_t r = cost_rows(&c, rows, context, 3000, target);
        const double all = context + (double)r * 3000 + 0.5 * r * r;
        const double ns = m.base + m.row * (rows + r) + m.row_context * all;
        cost_observe(&c, rows + r, all, cost_steer(&c, rows + r, all, step % every == 0 ? 1.75 * ns : ns));
        sum += r;
    }
    return sum;
}

/* One step in twelve is no reason for smaller chunks; every one of them is how the machine is. */
static void a_hiccup_does_not_make_chunks_small(void **state)
{
    (void)state;
    const double even = rows_with_hiccups(1000);
    assert_true(rows_with_hiccups(12) > 0.97 * even);
    assert_true(rows_with_hiccups(1) < 0.75 * even);
}

static void a_seed_counts_until_two_kinds_of_steps_were_measured(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.eos_every = 0;
    world_init(&w, &o);
    assert_false(sched_cost(w.s).fitted);
    sched_cost_seed(w.s, (struct step_cost){.base_ns = 1, .row_ns = 2, .row_context_ns = 3});
    assert_true(sched_cost(w.s).fitted && sched_cost(w.s).row_ns == 2);
    world_submit(&w, world_request(40, 10, 1));
    (void)world_turn(&w);
    assert_true(sched_cost(w.s).row_ns == 2);
    sched_cost_seed(w.s, (struct step_cost){.row_ns = 9}); /* too late: something was measured */
    assert_true(sched_cost(w.s).row_ns == 2);
    world_run(&w);
    assert_true(is_near(sched_cost(w.s).base_ns + sched_cost(w.s).row_ns, 1010000, 0.01));
    world_fini(&w);
}

/* ---- the target at work ---- */

struct latency {
    uint64_t worst_ns, prefill_ns;
    uint32_t steps;
};

static struct latency prompt_beside(uint64_t target_ns, double factor, double told)
{
    struct world w;
    struct world_options o = world_options_default();
    o.sched.max_batched_tokens = 2048;
    o.sched.max_num_seqs = 16;
    o.sched.context_max = 8192;
    o.sched.itl_target_ns = target_ns;
    o.sched.itl_factor = factor;
    o.n_blocks = 4000;
    o.eos_every = 0;
    o.base_ns = 2000000;
    o.row_ns = 20000;
    o.row_context_ns = 2;
    o.told = told;
    o.check_every_step = false;
    world_init(&w, &o);
    w.keep = true;
    struct request *streams[8], *big;
    for (uint32_t i = 0; i < 8; i++)
        world_submit(&w, streams[i] = world_request(32, 4000, i));
    for (int i = 0; i < 50; i++)
        (void)world_turn(&w);
    world_submit(&w, big = world_request(6000, 1, 99));
    struct latency l = {0};
    const uint64_t start = w.now;
    while (!request_is_done(big)) {
        (void)world_turn(&w);
        l.worst_ns = MAX(l.worst_ns, w.last_cost);
        l.steps++;
    }
    l.prefill_ns = w.now - start;
    sched_abort_all(w.s, END_ABORTED, NULL, w.now);
    for (uint32_t i = 0; i < 8; i++)
        request_free(streams[i]);
    request_free(big);
    world_fini(&w);
    return l;
}

static struct latency prompt_beside_streams(uint64_t target_ns, double told)
{
    return prompt_beside(target_ns, 0, told);
}

/* A decode step takes 2.2 ms; the target is five of them. */
static void under_a_target_streams_are_not_stalled_and_the_prompt_is_hardly_later(void **state)
{
    (void)state;
    const uint64_t target = 11000000;
    const struct latency open = prompt_beside_streams(0, 1), held = prompt_beside_streams(target, 1);
    assert_true(open.worst_ns > 4 * target); /* what it is about */
    assert_true(held.worst_ns < target + target / 5);
    assert_true(held.prefill_ns < open.prefill_ns + open.prefill_ns * 3 / 10);
}

/* The twin: a scheduler that is told half the truth breaks the target. */
static void a_wrong_slope_breaks_the_target(void **state)
{
    (void)state;
    const uint64_t target = 11000000;
    assert_true(prompt_beside_streams(target, 0.5).worst_ns > target + target / 2);
}

static void a_target_below_the_streams_still_lets_prompts_through(void **state)
{
    (void)state;
    const struct latency l = prompt_beside_streams(1000000, 1); /* below one decode step */
    assert_true(l.steps <= 6000 / 16 + 20);                     /* sixteen rows a step */
    assert_true(l.worst_ns < 4000000);
}

/* A factor of the 2.2 ms that the streams take alone counts where it is more than the target, and only there. */
static void a_target_grows_with_what_the_streams_take_alone(void **state)
{
    (void)state;
    const struct latency fixed = prompt_beside(1000000, 0, 1), grown = prompt_beside(1000000, 5, 1);
    assert_true(grown.steps < fixed.steps / 4);
    assert_true(grown.worst_ns > 9000000 && grown.worst_ns < 13500000);
    assert_int_equal(prompt_beside(11000000, 2, 1).worst_ns, prompt_beside(11000000, 0, 1).worst_ns);
    assert_int_equal(prompt_beside(0, 5, 1).worst_ns, prompt_beside(0, 0, 1).worst_ns); /* no target at all */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fit_finds_the_three_numbers_and_a_wrong_slope_does_not_pass),
        cmocka_unit_test(a_hiccup_moves_nothing_and_a_slower_machine_is_believed),
        cmocka_unit_test(no_number_is_ever_negative),
        cmocka_unit_test(an_hour_of_decoding_does_not_wash_prompts_out),
        cmocka_unit_test(a_prediction_is_corrected_by_its_class),
        cmocka_unit_test(rows_for_a_target_take_just_that_long),
        cmocka_unit_test(chunks_fill_the_target_on_the_mean),
        cmocka_unit_test(a_hiccup_does_not_make_chunks_small),
        cmocka_unit_test(chunks_fit_soon_on_a_machine_that_became_slower),
        cmocka_unit_test(a_seed_counts_until_two_kinds_of_steps_were_measured),
        cmocka_unit_test(under_a_target_streams_are_not_stalled_and_the_prompt_is_hardly_later),
        cmocka_unit_test(a_wrong_slope_breaks_the_target),
        cmocka_unit_test(a_target_below_the_streams_still_lets_prompts_through),
        cmocka_unit_test(a_target_grows_with_what_the_streams_take_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
