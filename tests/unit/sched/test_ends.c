/* How sequences end: by their own tokens, by their asker, by time; each exactly once, with everything given back. */
#include "testing_sched.h"

/* ---- by tokens ---- */

static void a_stop_id_ends_and_is_the_last_id(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.eos_every = 3;
    world_init(&w, &o);
    for (uint32_t i = 0; i < 20; i++)
        world_submit(&w, world_request(5 + i, 200, i));
    world_run(&w);
    assert_int_equal(w.n_ends[END_EOS], 20); /* the world checks that the last id is the end */
    world_fini(&w);
}

static void below_min_tokens_stop_ids_are_banned(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.eos_every = 2;
    world_init(&w, &o);
    w.keep = true;
    struct request_options ro = world_request_options();
    ro.min_tokens = 30;
    ro.max_tokens = 200;
    ro.banned_ids = (const uint32_t[]){55, 56};
    ro.n_banned_ids = 2;
    struct request *r[6];
    for (uint32_t i = 0; i < 6; i++)
        world_submit(&w, r[i] = world_request_like(&ro, 5 + i, 0, 0, i));
    world_run(&w);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(r[i]->choices[0].n_out > 30);
        request_free(r[i]);
    }
    world_fini(&w);
}

/* The world expects the end of thinking where the budget says, whatever is planned around it. */
static void a_budget_for_thinking_forces_its_end(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 8; k++) {
        struct world w;
        struct world_options o = world_options_default();
        o.depth = k & 1;
        o.eos_every = 0;
        o.sched.preempt_every = (k & 2) != 0 ? 3 : 0;
        world_init(&w, &o);
        w.keep = true;
        struct request_options ro = world_request_options();
        ro.max_tokens = 60;
        ro.think_budget = 5 + k;
        ro.think_begin = 500;
        ro.think_end = 501;
        ro.is_thinking = k < 4;
        ro.n_choices = 2;
        struct request *r[5];
        for (uint32_t i = 0; i < 5; i++)
            world_submit(&w, r[i] = world_request_like(&ro, 5 + i, 0, 0, i));
        world_run(&w);
        for (uint32_t i = 0; i < 5; i++) {
            if (ro.is_thinking) /* a hash does not choose 501 by itself so soon */
                assert_int_equal(r[i]->choices[0].ids[ro.think_budget], 501);
            request_free(r[i]);
        }
        world_fini(&w);
    }
}

/* A channel: thinking begins with several tokens, may begin again, and the budget is for all of it. */
static void a_budget_for_thinking_holds_for_channels(void **state)
{
    (void)state;
    static const char bytes[] = "abcdefghijklmn";
    static const uint32_t offsets[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    static const uint8_t flags[14];
    const struct vocab_view letters = {.n = 14, .bytes = bytes, .offsets = offsets, .flags = flags};
    uint32_t forced = 0, twice = 0;
    for (uint32_t k = 0; k < 8; k++) {
        struct world w;
        struct world_options o = world_options_default();
        o.depth = k & 1;
        o.eos_every = 0;
        o.n_ids = 4;
        o.sched.preempt_every = (k & 2) != 0 ? 3 : 0;
        world_init(&w, &o);
        w.keep = true;
        struct request_options ro = world_request_options();
        ro.max_tokens = 120;
        ro.think_budget = 3 + k;
        ro.vocab = &letters;
        ro.think_mark = 10;
        ro.think_head = k < 4 ? STR("l") : STR("ll");
        ro.think_begin = 12;
        ro.think_end = 13;
        struct request *r[5];
        for (uint32_t i = 0; i < 5; i++)
            world_submit(&w, r[i] = world_request_like(&ro, 5 + i, 0, 0, i));
        world_run(&w);
        for (uint32_t i = 0; i < 5; i++) {
            const uint32_t *ids = r[i]->choices[0].ids;
            uint32_t thought = 0, begun = 0;
            bool inside = false;
            for (uint32_t n = 0; n < r[i]->choices[0].n_out; n++) {
                inside &= ids[n] != 13;
                thought += inside;
                const uint32_t n_head = (uint32_t)ro.think_head.n;
                if (!inside && n > n_head && ids[n] == 12 && ids[n - 1] == 11 && ids[n - n_head] == 11 &&
                    ids[n - n_head - 1] == 10) {
                    inside = true;
                    begun++;
                }
            }
            assert_true(thought <= ro.think_budget);
            forced += thought == ro.think_budget;
            twice += begun > 1;
            request_free(r[i]);
        }
        world_fini(&w);
    }
    assert_true(forced > 3 && twice > 3);
}

static void the_context_is_a_length_too(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.context_max = 64;
    o.eos_every = 0;
    for (o.depth = 0; o.depth < 2; o.depth++) {
        world_init(&w, &o);
        w.keep = true;
        struct request *r = world_request(63, 500, 1);
        world_submit(&w, r);
        world_run(&w);
        assert_int_equal(r->choices[0].n_out, 1);
        assert_int_equal(r->choices[0].end, END_LENGTH);
        assert_int_equal(w.rows_total, 63); /* nothing is computed behind the last token */
        request_free(r);
        world_fini(&w);
    }
}

static void one_step_ahead_computes_at_most_one_surplus_row_for_an_end(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.eos_every = 4;
    o.depth = 1;
    world_init(&w, &o);
    for (uint32_t i = 0; i < 20; i++)
        world_submit(&w, world_request(5, 100, i));
    world_run(&w);
    struct sched_stats st;
    sched_stats(w.s, &st);
    assert_int_equal(w.n_ends[END_EOS], 20);
    assert_int_equal(st.surplus_rows, 20);
    world_fini(&w);
}

static void every_chosen_token_is_in_the_history_once(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 4; k++) {
        struct world w;
        struct world_options o = world_options_default();
        o.depth = k & 1;
        o.sched.preempt_every = 3; /* recomputing a token is not choosing it again */
        o.sched.preempt = (k & 2) != 0 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        o.eos_every = 0;
        world_init(&w, &o);
        w.keep = true;
        struct request_options ro = world_request_options();
        ro.max_tokens = 50;
        ro.n_choices = 2;
        ro.sample.presence_penalty = 0.5f;
        struct request *r = world_request_like(&ro, 20, 0, 0, 1);
        world_submit(&w, r);
        world_run(&w);
        for (uint32_t c = 0; c < 2; c++) {
            uint32_t n = 0;
            for (uint32_t id = 0; id < WORLD_VOCAB; id++)
                n += sample_history_count(&r->choices[c].history, id);
            assert_int_equal(n, 50);
            for (uint32_t i = 0; i < 50; i++)
                assert_true(sample_history_count(&r->choices[c].history, r->choices[c].ids[i]) > 0);
        }
        request_free(r);
        world_fini(&w);
    }
}

/* A vocabulary where id i is the letter 'a' + i % 26. */
static char letters[WORLD_VOCAB];
static uint32_t offsets[WORLD_VOCAB + 1];
static uint8_t flags[WORLD_VOCAB];
static const struct vocab_view vocab = {WORLD_VOCAB, letters, offsets, flags};

static void stop_strings_end_where_they_are_found(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WORLD_VOCAB; i++) {
        letters[i] = (char)('a' + i % 26);
        offsets[i + 1] = i + 1;
    }
    struct world w;
    struct world_options o = world_options_default();
    o.eos_every = 0;
    for (o.depth = 0; o.depth < 2; o.depth++) {
        world_init(&w, &o);
        w.keep = true;
        struct error e;
        struct request_options ro = world_request_options();
        ro.max_tokens = 200;
        ro.vocab = &vocab;
        ro.vocab_size = WORLD_VOCAB;
        /* learn the answer, then ask for it to stop at two of its letters */
        struct request *r = world_request_like(&ro, 9, 0, 0, 3);
        uint32_t ids[200];
        assert_int_equal(world_expected(&w, r, 0, ids), 200);
        request_free(r);
        const char stop[2] = {letters[ids[50]], letters[ids[51]]};
        uint32_t first = 0;
        while (letters[ids[first]] != stop[0] || letters[ids[first + 1]] != stop[1])
            first++;
        const struct str stops[] = {STR("zzzzzz"), {stop, 2}};
        assert_ok(e, stop_set_new(&ro.stops, stops, 2, &e));
        r = world_request_like(&ro, 9, 0, 0, 3);
        world_submit(&w, r);
        world_run(&w);
        assert_int_equal(r->choices[0].end, END_STOP);
        assert_int_equal(r->choices[0].stop_index, 1);
        assert_int_equal(r->choices[0].n_out, first + 2);
        assert_int_equal(r->choices[0].text_bytes, first);
        request_free(r);
        world_fini(&w);
    }
}

static void a_row_without_a_choice_fails_its_request_only(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    world_init(&w, &o);
    w.keep = true;
    struct request *r[2];
    for (uint32_t i = 0; i < 2; i++)
        world_submit(&w, r[i] = world_request(5, 10, i));
    assert_true(sched_plan(w.s, w.now, false, w.plans[0]));
    struct step_token t[2];
    for (uint32_t i = 0; i < 2; i++) {
        t[i] = (struct step_token){.slot = plan_seqs(w.plans[0])[i].slot, .id = i == 0 ? UINT32_MAX : 77};
    }
    const struct step_result result = {.step = 1, .cost_ns = 1, .n = 2, .tokens = t};
    sched_commit(w.s, w.plans[0], &result, 5);
    assert_int_equal(r[0]->choices[0].end, END_FAILED);
    assert_non_null(strstr(r[0]->error.text, "not numbers"));
    assert_int_equal(r[1]->choices[0].end, END_NONE);
    assert_int_equal(r[1]->choices[0].ids[0], 77);
    const struct error why = {.code = ERR_IO, .text = "the card fell out"};
    r[1]->choices[0].n_out = 0; /* 77 is not what the world expects */
    sched_abort_all(w.s, END_FAILED, &why, 6);
    assert_int_equal(r[1]->choices[0].end, END_FAILED);
    assert_string_equal(r[1]->error.text, "the card fell out");
    assert_true(sched_is_idle(w.s));
    request_free(r[0]);
    request_free(r[1]);
    world_fini(&w);
}

/* What a step says about a token goes into the choice, with holes where it had fewer alternatives. */
static void log_probabilities_are_kept_with_their_token(void **state)
{
    (void)state;
    struct world w;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.n_top = 2;
    struct request *r = world_request_like(&ro, 5, 0, 0, 1);
    w.keep = true;
    world_submit(&w, r);
    assert_true(sched_plan(w.s, w.now, false, w.plans[0]));
    struct token_logprob top = {.id = 31, .logprob = -0.25f};
    struct step_token t = {.slot = plan_seqs(w.plans[0])[0].slot, .id = 31, .logprob = -0.25f, .n_top = 1, .top = &top};
    const struct step_result result = {.step = 1, .cost_ns = 1, .n = 1, .tokens = &t};
    sched_commit(w.s, w.plans[0], &result, 5);
    const struct choice *c = &r->choices[0];
    assert_true(c->logprobs[0] == -0.25f);
    assert_int_equal(c->top[0].id, 31);
    assert_int_equal(c->top[1].id, UINT32_MAX);
    assert_int_equal(r->t_first_token, 5);
    r->choices[0].n_out = 0; /* 31 is not what the world expects */
    sched_abort_all(w.s, END_ABORTED, NULL, 6);
    request_free(r);
    world_fini(&w);
}

/* The end of everything, with a plan in the air that names somebody who left before. */
static void abort_gives_back_what_flying_plans_name(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.depth = 1;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[3];
    for (uint32_t i = 0; i < 3; i++)
        world_submit(&w, r[i] = world_request(5, 50, i));
    for (int i = 0; i < 5; i++)
        (void)world_turn(&w);
    atomic_store(&r[1]->cancel, true);
    sched_sweep(w.s, w.now);
    assert_int_equal(w.n_done, 0);
    sched_abort_all(w.s, END_ABORTED, NULL, w.now);
    w.flying = false;
    assert_int_equal(w.n_done, 3);
    assert_int_equal(w.n_ends[END_CANCELLED], 1);
    assert_int_equal(w.n_ends[END_ABORTED], 2);
    world_check(&w);
    for (uint32_t i = 0; i < 3; i++)
        request_free(r[i]);
    world_fini(&w);
}

/* ---- by the asker and by time ---- */

/* Cancel after every number of turns, with everything going on around it. */
static void cancel_at_every_point_gives_everything_back(void **state)
{
    (void)state;
    for (uint32_t at = 0; at < 60; at++)
        for (uint32_t k = 0; k < 4; k++) {
            struct world w;
            struct world_options o = world_options_default();
            o.depth = k & 1;
            o.n_blocks = 24;
            o.sched.watermark = 0;
            o.sched.preempt = (k & 2) != 0 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
            o.eos_every = 0;
            world_init(&w, &o);
            w.keep = true;
            struct request_options ro = world_request_options();
            ro.max_tokens = 30;
            struct request *r[4];
            for (uint32_t i = 0; i < 4; i++) {
                ro.n_choices = 1 + (i == 1) * 3;
                world_submit(&w, r[i] = world_request_like(&ro, 60 + 20 * i, 0, 0, i));
            }
            for (uint32_t t = 0; t < at; t++)
                (void)world_turn(&w);
            atomic_store(&r[at % 4]->cancel, true);
            sched_sweep(w.s, w.now);
            world_run(&w); /* kv_check and sched_check after every step, and no block held at the end */
            assert_int_equal(w.n_done, 4);
            for (uint32_t i = 0; i < 4; i++)
                request_free(r[i]);
            world_fini(&w);
        }
}

/* A slot that ended after its plan was launched has no view, and its request comes back only with that plan. */
static void a_request_comes_back_when_no_plan_names_it(void **state)
{
    (void)state;
    struct world w;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct request *r = world_request(5, 10, 1);
    world_submit(&w, r);
    assert_true(sched_plan(w.s, w.now, false, w.plans[0]));
    const uint32_t slot = plan_seqs(w.plans[0])[0].slot;
    struct slot_view v;
    sched_slot_view(w.s, slot, &v);
    assert_ptr_equal(v.request, r);
    atomic_store(&r->cancel, true);
    sched_sweep(w.s, w.now);
    world_check(&w);
    assert_int_equal(r->choices[0].end, END_CANCELLED);
    assert_int_equal(w.n_done, 0);
    assert_false(sched_is_idle(w.s));
    assert_false(sched_can_run(w.s));
    sched_slot_view(w.s, slot, &v);
    assert_null(v.request);
    const struct step_result nothing = {.step = 1, .cost_ns = 1};
    sched_commit(w.s, w.plans[0], &nothing, 9);
    assert_int_equal(w.n_done, 1);
    assert_true(sched_is_idle(w.s));
    world_fini(&w);
}

static void a_deadline_ends_wherever_the_request_is(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.max_num_seqs = 1;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request_options ro = world_request_options();
    ro.max_tokens = 500;
    ro.deadline_ns = 50000000;
    struct request *r[2];
    for (uint32_t i = 0; i < 2; i++)
        world_submit(&w, r[i] = world_request_like(&ro, 10, 0, 0, i));
    assert_int_equal(sched_next_deadline(w.s), 1 + 50000000);
    while (w.now < 50000001)
        (void)world_turn(&w);
    assert_int_equal(w.n_done, 0);
    sched_sweep(w.s, 50000000);
    assert_int_equal(w.n_done, 0); /* a nanosecond early is early */
    sched_sweep(w.s, w.now);
    assert_int_equal(w.n_done, 2);
    assert_int_equal(r[0]->choices[0].end, END_DEADLINE); /* running, with tokens */
    assert_true(r[0]->choices[0].n_out > 10);
    assert_int_equal(r[1]->choices[0].end, END_DEADLINE); /* waiting */
    assert_true(sched_next_deadline(w.s) == UINT64_MAX);
    request_free(r[0]);
    request_free(r[1]);
    world_fini(&w);
}

static void who_waits_too_long_is_told_busy(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.max_num_seqs = 1;
    o.sched.wait_max_ns = 20000000;
    o.eos_every = 0;
    world_init(&w, &o);
    for (uint32_t i = 0; i < 3; i++)
        world_submit(&w, world_request(10, 100, i));
    (void)world_turn(&w);
    w.now = 20000001;
    sched_sweep(w.s, w.now);
    assert_int_equal(w.n_ends[END_BUSY], 2);
    world_run(&w);
    assert_int_equal(w.n_ends[END_LENGTH], 1); /* the running one is not concerned */
    world_fini(&w);
}

static void a_reader_that_stops_pauses_its_own_request_and_expires(void **state)
{
    (void)state;
    for (uint32_t depth = 0; depth < 2; depth++) {
        struct world w;
        struct world_options o = world_options_default();
        o.sched.pause_max_ns = 1000000000;
        o.eos_every = 0;
        o.depth = depth;
        world_init(&w, &o);
        w.keep = true;
        struct request_options ro = world_request_options();
        ro.max_tokens = 40;
        struct request *other = world_request_like(&ro, 10, 0, 0, 2);
        ro.read_window = 5;
        struct request *r = world_request_like(&ro, 10, 0, 0, 1);
        world_submit(&w, r);
        world_submit(&w, other);
        while (!request_is_done(other))
            (void)world_turn(&w);
        assert_int_equal(r->choices[0].n_out, 5); /* never more than the window */
        while (world_turn(&w))
            ;
        assert_false(sched_can_run(w.s)); /* nothing to do but wait for the reader */
        atomic_store(&r->n_read, 3);
        sched_sweep(w.s, w.now);
        while (world_turn(&w))
            ;
        assert_int_equal(r->choices[0].n_out, 8);
        const uint64_t until = sched_next_deadline(w.s);
        assert_in_range(until, w.now, w.now + 1000000000);
        sched_sweep(w.s, until - 1);
        assert_int_equal(r->choices[0].end, END_NONE);
        sched_sweep(w.s, until);
        assert_int_equal(r->choices[0].end, END_EXPIRED);
        request_free(r);
        request_free(other);
        world_fini(&w);
    }
}

/* A choice that has not come to run cannot have been read: its siblings do not pause for that. */
static void a_waiting_choice_does_not_pause_its_siblings(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.max_num_seqs = 1;
    o.eos_every = 0;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.n_choices = 2;
    ro.read_window = 3;
    world_submit(&w, world_request_like(&ro, 10, 0, 0, 1));
    for (int i = 0; i < 20; i++)
        (void)world_turn(&w);
    struct sched_stats st;
    sched_stats(w.s, &st);
    assert_true(st.output_tokens >= 16); /* the first choice is through, unread as it is */
    sched_abort_all(w.s, END_ABORTED, NULL, w.now);
    assert_int_equal(w.n_ends[END_ABORTED], 1);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_id_ends_and_is_the_last_id),
        cmocka_unit_test(below_min_tokens_stop_ids_are_banned),
        cmocka_unit_test(a_budget_for_thinking_forces_its_end),
        cmocka_unit_test(a_budget_for_thinking_holds_for_channels),
        cmocka_unit_test(the_context_is_a_length_too),
        cmocka_unit_test(one_step_ahead_computes_at_most_one_surplus_row_for_an_end),
        cmocka_unit_test(every_chosen_token_is_in_the_history_once),
        cmocka_unit_test(stop_strings_end_where_they_are_found),
        cmocka_unit_test(a_row_without_a_choice_fails_its_request_only),
        cmocka_unit_test(log_probabilities_are_kept_with_their_token),
        cmocka_unit_test(abort_gives_back_what_flying_plans_name),
        cmocka_unit_test(cancel_at_every_point_gives_everything_back),
        cmocka_unit_test(a_request_comes_back_when_no_plan_names_it),
        cmocka_unit_test(a_deadline_ends_wherever_the_request_is),
        cmocka_unit_test(who_waits_too_long_is_told_busy),
        cmocka_unit_test(a_reader_that_stops_pauses_its_own_request_and_expires),
        cmocka_unit_test(a_waiting_choice_does_not_pause_its_siblings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
