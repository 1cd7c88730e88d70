/* The gap rule, prefix hits, forks and the batchings: whatever is planned around a request, its answer is the one it
 * gives alone. */
#include "testing_sched.h"

static void run_some(const struct world_options *o, uint32_t n)
{
    struct world w;
    world_init(&w, o);
    for (uint32_t i = 0; i < n; i++) {
        world_submit(&w, world_request(1 + i * 37 % 150, 1 + i * 13 % 40, i));
        for (uint32_t k = 0; k < i % 3; k++)
            (void)world_turn(&w);
    }
    world_run(&w);
    assert_int_equal(w.n_done, n);
    assert_int_equal(w.n_ends[END_EOS] + w.n_ends[END_LENGTH], n);
    world_fini(&w);
}

static void every_batching_gives_the_same_tokens_at_both_depths(void **state)
{
    (void)state;
    static const enum batching all[] = {
        BATCH_CONTINUOUS, BATCH_PREFILL_FIRST, BATCH_STATIC, BATCH_INTERVAL, BATCH_RATIO};
    for (size_t b = 0; b < COUNT_OF(all); b++)
        for (uint32_t depth = 0; depth < 2; depth++) {
            struct world_options o = world_options_default();
            o.sched.batching = all[b];
            o.depth = depth;
            run_some(&o, 40);
        }
}

static void every_chunk_size_gives_the_same_tokens(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 2, 15, 16, 17, 64, 512};
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        struct world_options o = world_options_default();
        o.sched.chunk_max = chunks[i];
        o.sched.max_batched_tokens = 512;
        o.depth = i & 1;
        run_some(&o, 20);
    }
}

/* ---- what a step is made of ---- */

struct mix_count {
    uint32_t n_mixed, n_prompt, n_decode, streak, longest_streak;
};

static void count_mix(struct world *w, const struct plan *p)
{
    struct mix_count *m = w->user;
    bool decode = false, chunk = false;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        if (plan_seqs(p)[i].n_rows > 1)
            chunk = true;
        else
            decode = true;
    }
    m->n_mixed += decode && chunk;
    m->n_prompt += chunk;
    m->n_decode += decode;
    m->streak = decode ? 0 : m->streak + 1;
    m->longest_streak = MAX(m->longest_streak, m->streak);
}

static struct mix_count mix_of(enum batching batching, uint32_t max_steps)
{
    struct mix_count m = {0};
    struct world w;
    struct world_options o = world_options_default();
    o.sched.batching = batching;
    o.sched.prefill_first_max_steps = max_steps;
    o.sched.chunk_max = 16;
    o.sched.max_batched_tokens = 16;
    o.eos_every = 0;
    world_init(&w, &o);
    w.on_commit = count_mix;
    w.user = &m;
    world_submit(&w, world_request(16, 200, 1));
    (void)world_turn(&w);
    (void)world_turn(&w);
    m = (struct mix_count){0};
    for (uint32_t i = 0; i < 6; i++)
        world_submit(&w, world_request(160, 2, 2 + i));
    while (w.n_done < 6)
        (void)world_turn(&w);
    world_run(&w);
    world_fini(&w);
    return m;
}

static void continuous_mixes_chunks_with_decodes(void **state)
{
    (void)state;
    const struct mix_count m = mix_of(BATCH_CONTINUOUS, 1);
    assert_true(m.n_mixed > 50);
    assert_int_equal(m.longest_streak, 0); /* the stream gets a row in every step */
}

static void prefill_first_never_mixes_and_decodes_wait_a_bounded_time(void **state)
{
    (void)state;
    const struct mix_count three = mix_of(BATCH_PREFILL_FIRST, 3), nine = mix_of(BATCH_PREFILL_FIRST, 9);
    assert_int_equal(three.n_mixed, 0);
    assert_int_equal(three.longest_streak, 3);
    assert_int_equal(nine.longest_streak, 9);
}

/* ---- static, interval, ratio ---- */

static uint32_t n_admitted(struct request *const *r, uint32_t n)
{
    uint32_t in = 0;
    for (uint32_t i = 0; i < n; i++)
        in += r[i]->t_admitted != 0;
    return in;
}

static void a_static_batch_starts_and_ends_together(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.batching = BATCH_STATIC;
    o.sched.max_num_seqs = 4;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[10];
    for (uint32_t i = 0; i < 10; i++)
        world_submit(&w, r[i] = world_request(10 + i, i % 4 == 3 ? 30 : 2, i));
    (void)world_turn(&w);
    assert_int_equal(n_admitted(r, 10), 4); /* together, though the budget has rows for less */
    while (w.n_done < 3) {
        (void)world_turn(&w);
        assert_int_equal(n_admitted(r, 10), 4);
    }
    assert_int_equal(r[3]->choices[0].end, END_NONE);
    while (w.n_done < 4) { /* three seats stay empty until the long one has ended */
        assert_int_equal(n_admitted(r, 10), 4);
        (void)world_turn(&w);
    }
    (void)world_turn(&w);
    assert_int_equal(n_admitted(r, 10), 8);
    world_run(&w);
    for (uint32_t i = 0; i < 10; i++)
        request_free(r[i]);
    world_fini(&w);
}

static void interval_lets_in_every_n_decode_steps(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.batching = BATCH_INTERVAL;
    o.sched.interval = 7;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[2];
    world_submit(&w, r[0] = world_request(8, 40, 1));
    (void)world_turn(&w);
    world_submit(&w, r[1] = world_request(8, 40, 2));
    uint32_t turns = 0;
    while (r[1]->t_admitted == 0) {
        (void)world_turn(&w);
        turns++;
    }
    assert_int_equal(turns, 8); /* after seven decode steps */
    world_run(&w);
    request_free(r[0]);
    request_free(r[1]);
    world_fini(&w);
}

static void ratio_lets_in_when_enough_wait(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.batching = BATCH_RATIO;
    o.sched.ratio = 0.5;
    o.eos_every = 0;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[7];
    for (uint32_t i = 0; i < 4; i++)
        world_submit(&w, r[i] = world_request(8, 40, i));
    (void)world_turn(&w);
    assert_int_equal(n_admitted(r, 4), 4);
    for (uint32_t i = 4; i < 7; i++) {
        assert_int_equal(n_admitted(r, 4), 4);
        world_submit(&w, r[i] = world_request(8, 40, i));
        (void)world_turn(&w);
        assert_int_equal(n_admitted(r + 4, i - 3), i == 6 ? 3 : 0); /* 3 of 4 is more than half */
    }
    world_run(&w);
    for (uint32_t i = 0; i < 7; i++)
        request_free(r[i]);
    world_fini(&w);
}

/* ---- prefix hits and forks ---- */

static void an_exact_hit_computes_one_token_and_writes_nothing(void **state)
{
    (void)state;
    struct world w;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 1;
    world_submit(&w, world_request_like(&ro, 64, 64, 5, 1));
    world_run(&w);
    assert_int_equal(w.rows_total, 64);
    world_submit(&w, world_request_like(&ro, 64, 64, 5, 2));
    assert_true(sched_plan(w.s, w.now, false, w.plans[0]));
    assert_int_equal(w.plans[0]->n_rows, 1);
    assert_int_equal(plan_kv_slot(w.plans[0])[0], PLAN_NO_WRITE);
    assert_int_equal(plan_pos(w.plans[0])[0], 63);
    sched_abort_all(w.s, END_ABORTED, NULL, w.now);
    world_fini(&w);
}

static uint64_t rows_of_a_burst(bool cached, uint32_t budget, enum queue_order order)
{
    struct world w;
    struct world_options o = world_options_default();
    o.sched.prefix_cache = cached;
    o.sched.max_num_seqs = 64;
    o.sched.out_max = 64;
    o.sched.max_batched_tokens = budget;
    o.sched.context_max = 2048;
    o.sched.order = order;
    o.n_blocks = 6000;
    o.depth = 1;
    o.check_every_step = false;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.max_tokens = 1;
    for (uint32_t i = 0; i < 64; i++)
        world_submit(&w, world_request_like(&ro, 1032, 1024, 5, i));
    world_run(&w);
    const uint64_t rows = w.rows_total;
    world_fini(&w);
    return rows;
}

/* Even when all of them come at once and the budget has room for many: those behind the first step aside. */
static void a_prefix_shared_by_a_burst_is_computed_once(void **state)
{
    (void)state;
    static const uint32_t budgets[] = {512, 2048, 16384};
    for (size_t i = 0; i < COUNT_OF(budgets); i++) {
        assert_int_equal(rows_of_a_burst(false, budgets[i], ORDER_FCFS), 64 * 1032);
        assert_int_equal(rows_of_a_burst(true, budgets[i], ORDER_FCFS), 1032 + 63 * 8);
        assert_int_equal(rows_of_a_burst(true, budgets[i], ORDER_VTC), 1032 + 63 * 8);
    }
}

static void who_steps_aside_holds_up_nobody(void **state)
{
    (void)state;
    struct world w;
    const struct world_options o = world_options_default();
    world_init(&w, &o);
    w.keep = true;
    struct request_options ro = world_request_options();
    struct request *r[3];
    world_submit(&w, r[0] = world_request_like(&ro, 300, 280, 5, 1));
    world_submit(&w, r[1] = world_request_like(&ro, 300, 280, 5, 2));
    world_submit(&w, r[2] = world_request(30, 4, 3)); /* nothing in common */
    while (r[1]->t_admitted == 0)
        (void)world_turn(&w);
    assert_true(r[2]->t_admitted != 0 && r[2]->t_admitted < r[1]->t_admitted);
    assert_int_equal(r[1]->n_cached, 272);
    world_run(&w);
    for (uint32_t i = 0; i < 3; i++)
        request_free(r[i]);
    world_fini(&w);
}

static void choices_share_the_blocks_of_the_prompt(void **state)
{
    (void)state;
    for (uint32_t depth = 0; depth < 2; depth++)
        for (uint32_t n_prompt = 94; n_prompt <= 97; n_prompt++) {
            struct world w;
            struct world_options o = world_options_default();
            o.sched.prefix_cache = false; /* sharing is by fork, not by finding */
            o.sched.max_batched_tokens = 128;
            o.eos_every = 0;
            o.depth = depth;
            world_init(&w, &o);
            struct request_options ro = world_request_options();
            ro.n_choices = 8;
            ro.max_tokens = 20;
            world_submit(&w, world_request_like(&ro, n_prompt, 0, 0, 1));
            for (int i = 0; i < 4; i++)
                (void)world_turn(&w);
            struct sched_stats st;
            struct kv_stats ks;
            sched_stats(w.s, &st);
            kv_stats(w.kv, &ks);
            assert_int_equal(st.n_running, 8);
            assert_true(ks.n_held <= 6 + 8 * 2); /* six full ones once, and what each has of its own */
            world_run(&w);
            assert_int_equal(w.rows_total, n_prompt + 7 + 8 * 19); /* the prompt once, its last token for the others */
            world_fini(&w);
        }
}

static void prompt_logprobs_want_every_row_and_share_the_room(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.sched.out_max = 10;
    world_init(&w, &o);
    struct request_options ro = world_request_options();
    ro.want_prompt_logprobs = true;
    ro.n_choices = 2;
    for (uint32_t i = 0; i < 3; i++)
        world_submit(&w, world_request_like(&ro, 64, 64, 5, i)); /* equal prompts: none may be found */
    uint32_t outs = 0;
    while (world_turn(&w))
        for (uint32_t i = 0; i < w.plans[(w.turn + 1) & 1]->n_seqs; i++) {
            const struct plan_seq *q = &plan_seqs(w.plans[(w.turn + 1) & 1])[i];
            if (q->first_pos + q->n_rows <= 64)
                outs += q->n_out;
        }
    assert_true(outs >= 3 * 64);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batching_gives_the_same_tokens_at_both_depths),
        cmocka_unit_test(every_chunk_size_gives_the_same_tokens),
        cmocka_unit_test(continuous_mixes_chunks_with_decodes),
        cmocka_unit_test(prefill_first_never_mixes_and_decodes_wait_a_bounded_time),
        cmocka_unit_test(a_static_batch_starts_and_ends_together),
        cmocka_unit_test(interval_lets_in_every_n_decode_steps),
        cmocka_unit_test(ratio_lets_in_when_enough_wait),
        cmocka_unit_test(an_exact_hit_computes_one_token_and_writes_nothing),
        cmocka_unit_test(a_prefix_shared_by_a_burst_is_computed_once),
        cmocka_unit_test(who_steps_aside_holds_up_nobody),
        cmocka_unit_test(choices_share_the_blocks_of_the_prompt),
        cmocka_unit_test(prompt_logprobs_want_every_row_and_share_the_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
