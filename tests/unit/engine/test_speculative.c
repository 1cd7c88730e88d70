/* Guesses change no answer, whoever makes them, and save steps when they are right: scripted proposers over the fake
 * runner, in which any mistake with blocks or tokens changes an answer. */
#include "engine/testing_engine.h"
#include "engine/testing_sim.h"

#define ASKS 24

struct result {
    uint32_t ids[ASKS][64], n[ASKS], end[ASKS];
    uint64_t steps, drafted, accepted, rows_left;
    struct spec_stats spec;
};

static struct request_options ask_of(uint32_t i, enum spec_method method, uint32_t k)
{
    static const uint32_t stops[] = {5, 9};
    struct request_options o = rig_ask(3 + i * 5 % 60, 20 + i % 40);
    o.sample.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    o.sample.seed = i;
    o.stop_ids = stops;
    o.n_stop_ids = i % 3 == 0 ? 2 : 0;
    o.min_tokens = i % 4 == 0 ? 7 : 0;
    o.want_logprobs = i % 5 == 0;
    o.spec = method;
    o.spec_k = k;
    o.ngram_min = 1;
    o.ngram_max = 4;
    return o;
}

/* All requests at once, through an engine with that proposer. */
static void run(struct result *out, enum spec_method method, uint32_t k, enum script script, uint32_t depth)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct request *q[ASKS];
    static struct engine_stats s;
    memset(out, 0, sizeof *out);
    f.depth = depth;
    o.no_thread = true;
    o.sched.out_max = 64;
    o.vocab = f.vocab;
    o.draft = script_proposer_new(script, &f, 7);
    rig_open_fake(&r, &o, &f);
    for (uint32_t i = 0; i < ASKS; i++) {
        const struct request_options ask = ask_of(i, method, k);
        q[i] = rig_submit(&r, &ask);
    }
    rig_wait(&r, ASKS);
    engine_stats(r.en, &s);
    out->steps = s.steps;
    out->spec = s.sched.spec;
    for (uint32_t i = 0; i < ASKS; i++) {
        out->n[i] = atomic_load(&q[i]->choices[0].n_out);
        out->end[i] = (uint32_t)atomic_load(&q[i]->choices[0].end);
        memcpy(out->ids[i], q[i]->choices[0].ids, out->n[i] * sizeof(uint32_t));
        out->drafted += q[i]->spec_drafted;
        out->accepted += q[i]->spec_accepted;
        assert_true(q[i]->spec_accepted <= q[i]->spec_drafted && q[i]->spec_accepted < out->n[i]);
        request_free(q[i]);
    }
    assert_int_equal(out->drafted, out->spec.tokens);
    assert_int_equal(out->accepted, out->spec.accepted);
    assert_int_equal(s.output_tokens, s.sched.output_tokens);
    rig_close(&r);
}

static void assert_same_answers(const struct result *a, const struct result *b)
{
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_memory_equal(a->n, b->n, sizeof a->n);
    assert_memory_equal(a->end, b->end, sizeof a->end);
}

static void no_script_changes_an_answer(void **state)
{
    static struct result plain, got;
    run(&plain, SPEC_NONE, 1, SCRIPT_RIGHT, 0);
    assert_int_equal(plain.spec.tokens, 0);
    for (uint32_t depth = 0; depth < 2; depth++)
        for (uint32_t k = 1; k <= SPEC_K_MAX; k++)
            for (int script = SCRIPT_RIGHT; script <= SCRIPT_OUTSIDE; script++) {
                run(&got, SPEC_DRAFT, k, (enum script)script, depth);
                assert_same_answers(&got, &plain);
                if (script == SCRIPT_WRONG)
                    assert_int_equal(got.accepted, 0);
                if (script == SCRIPT_RIGHT) {
                    /* a stop in the middle of the guesses drops those behind it */
                    assert_true(got.accepted > got.drafted / 2 && got.steps < plain.steps);
                    assert_true(k < 4 || got.steps * 2 < plain.steps);
                }
            }
    (void)state;
}

static void ngrams_change_no_answer(void **state)
{
    static struct result plain, got;
    run(&plain, SPEC_NONE, 1, SCRIPT_RIGHT, 0);
    for (uint32_t k = 1; k <= SPEC_K_MAX; k++) {
        run(&got, SPEC_NGRAM, k, SCRIPT_RIGHT, k % 2);
        assert_same_answers(&got, &plain);
        assert_true(got.spec.offered > 0);
    }
    (void)state;
}

/* With guesses off, the same steps with the same rows as if there were no such thing. */
static void without_guesses_nothing_is_planned_otherwise(void **state)
{
    static struct result plain, none;
    run(&plain, SPEC_NONE, 1, SCRIPT_RIGHT, 0);
    run(&none, SPEC_NONE, 8, SCRIPT_WRONG, 0);
    assert_same_answers(&plain, &none);
    assert_int_equal(plain.steps, none.steps);
    (void)state;
}

/* While a plan with guesses flies its sequence is cancelled: every block comes back. */
static void cancelled_in_mid_verify_gives_everything_back(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    static struct engine_stats s;
    uint64_t next_ns;
    f.depth = 1;
    o.no_thread = true;
    o.sched.prefix_cache = o.kv.prefix_cache = false;
    o.vocab = f.vocab;
    o.draft = script_proposer_new(SCRIPT_RIGHT, &f, 7);
    rig_open_fake(&r, &o, &f);
    for (uint32_t turns = 3; turns < 12; turns++) {
        struct request_options ask = ask_of(0, SPEC_DRAFT, 8);
        ask.max_tokens = 200;
        ask.n_stop_ids = 0;
        struct request *q = rig_submit(&r, &ask);
        for (uint32_t i = 0; i < turns; i++)
            engine_turn(r.en, &next_ns);
        assert_non_null(r.en->flying);
        assert_true(plan_seqs(r.en->flying)[0].n_spec > 0);
        engine_cancel(r.client, q);
        rig_wait(&r, 1);
        assert_int_equal(atomic_load(&q->choices[0].end), END_CANCELLED);
        request_free(q);
        engine_turn(r.en, &next_ns);
        engine_stats(r.en, &s);
        assert_int_equal(s.kv.n_held + s.kv.n_parked, 0);
    }
    rig_close(&r);
    (void)state;
}

/* Where a row costs what a token costs, guesses are not verified for long; where it costs nothing, they are. */
static void the_cost_model_turns_guesses_off_and_on(void **state)
{
    uint64_t drafted[2];
    for (int is_dear = 0; is_dear < 2; is_dear++) {
        struct rig r;
        struct clock clock;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        clock_init_virtual(&clock, 0);
        f.clock = &clock;
        f.base_ns = is_dear ? 0 : 1000000;
        f.row_ns = is_dear ? 1000000 : 1000;
        o.no_thread = true;
        o.vocab = f.vocab;
        o.draft = script_proposer_new(SCRIPT_MIXED, &f, 7);
        rig_open_fake(&r, &o, &f);
        struct request_options ask = ask_of(1, SPEC_DRAFT, 4);
        ask.max_tokens = 400;
        struct request *q = rig_submit(&r, &ask);
        rig_wait(&r, 1);
        drafted[is_dear] = q->spec_drafted;
        assert_int_equal(atomic_load(&q->choices[0].n_out), 400);
        request_free(q);
        rig_close(&r);
    }
    assert_true(drafted[0] > 300);
    assert_in_range(drafted[1], 1, 40); /* until something was measured, and probes */
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_script_changes_an_answer),
        cmocka_unit_test(ngrams_change_no_answer),
        cmocka_unit_test(without_guesses_nothing_is_planned_otherwise),
        cmocka_unit_test(cancelled_in_mid_verify_gives_everything_back),
        cmocka_unit_test(the_cost_model_turns_guesses_off_and_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
