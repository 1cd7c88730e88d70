/* Random histories: requests of every kind arrive, are cancelled, stall and run out of blocks, under every policy, and
 * after each step all rules of sched and kv hold. The world compares every token. */
#include "testing_sched.h"

#include "base/rng.h"

#include <stdlib.h>

struct dice {
    uint64_t seed, n;
};

static uint32_t roll(struct dice *d, uint32_t below)
{
    return (uint32_t)(rng_u64((struct rng_key){.seed = d->seed, .index = d->n++, .purpose = RNG_DUMMY}) % below);
}

static struct world_options random_options(struct dice *d)
{
    struct world_options o = world_options_default();
    static const uint32_t blocks[] = {70, 90, 128, 400};
    o.n_blocks = blocks[roll(d, 4)];
    o.n_host_blocks = roll(d, 2) * 200;
    o.depth = roll(d, 2);
    o.eos_every = roll(d, 2) * 30;
    o.sched.max_num_seqs = 1 + roll(d, 12);
    o.sched.max_batched_tokens = o.sched.max_num_seqs + roll(d, 200);
    o.sched.out_max = o.sched.max_num_seqs + roll(d, 20);
    o.sched.batching = (enum batching)roll(d, 5);
    o.sched.interval = 1 + roll(d, 8);
    o.sched.ratio = roll(d, 3) * 0.5;
    o.sched.prefill_first_max_steps = 1 + roll(d, 4);
    o.sched.order = (enum queue_order)roll(d, 5);
    o.sched.admission = (enum admission)roll(d, 2);
    o.sched.watermark = roll(d, 3) * 0.05;
    o.sched.itl_target_ns = roll(d, 2) * UINT64_C(1500000);
    o.sched.itl_factor = roll(d, 3) * 1.5;
    o.sched.chunk_max = roll(d, 2) * (1 + roll(d, 40));
    o.sched.preempt = (enum preempt_mode)roll(d, 3);
    o.sched.preempt_every = roll(d, 3) == 0 ? 1 + roll(d, 6) : 0;
    o.sched.swap_ns_per_block = roll(d, 2) * 1e5;
    o.sched.prefix_cache = roll(d, 4) != 0;
    o.sched.pause_max_ns = UINT64_C(50000000);
    o.sched.wait_max_ns = roll(d, 4) == 0 ? UINT64_C(200000000) : 0;
    return o;
}

static struct request *random_request(struct dice *d, uint64_t seed)
{
    struct request_options o = world_request_options();
    o.max_tokens = 1 + roll(d, 60);
    o.n_choices = roll(d, 4) == 0 ? 1 + roll(d, 5) : 1;
    o.min_tokens = roll(d, 4) == 0 ? roll(d, 20) : 0;
    o.tenant = roll(d, 4);
    o.priority = (int32_t)roll(d, 5) - 2;
    o.ttft_target_ns = roll(d, 2) * UINT64_C(1000000) * roll(d, 100);
    o.deadline_ns = roll(d, 8) == 0 ? UINT64_C(1000000) * (1 + roll(d, 400)) : 0;
    o.read_window = roll(d, 4) == 0 ? 1 + roll(d, 8) : 0;
    o.want_prompt_logprobs = roll(d, 10) == 0;
    o.salt = roll(d, 8) == 0;
    const uint32_t n_prompt = 1 + roll(d, roll(d, 5) == 0 ? 600 : 100);
    return world_request_like(&o, n_prompt, roll(d, 2) * roll(d, n_prompt + 1), roll(d, 3), seed);
}

struct story {
    struct request *live[64];
    uint32_t n;
};

static void forget_done(struct world *w, struct story *st)
{
    for (uint32_t i = st->n; i-- > 0;)
        if (st->live[i]->user != NULL) {
            request_free(st->live[i]);
            st->live[i] = st->live[--st->n];
        }
    (void)w;
}

/* One thing that an asker may do. */
static void happen(struct world *w, struct dice *d, struct story *st, uint64_t seed)
{
    struct error e = {0};
    uint64_t retry;
    if (st->n < 64 && roll(d, 3) == 0) {
        struct request *r = random_request(d, seed);
        if (sched_submit(w->s, r, w->now, &retry, &e) == OK)
            st->live[st->n++] = r;
        else
            request_free(r);
    }
    if (st->n == 0)
        return;
    struct request *r = st->live[roll(d, st->n)];
    if (roll(d, 25) == 0)
        atomic_store(&r->cancel, true);
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (r->choices[i].end == END_NONE)
            least = MIN(least, r->choices[i].n_out);
    if (least != UINT32_MAX && roll(d, 2) == 0)
        atomic_store(&r->n_read, least);
    if (roll(d, 3) == 0 || w->now >= sched_next_deadline(w->s))
        sched_sweep(w->s, w->now);
}

static void mark_done(struct world *w, struct request *r)
{
    (void)w;
    r->user = r;
}

static void one_story(uint64_t seed)
{
    struct dice d = {.seed = seed};
    struct world w;
    struct story st = {.n = 0};
    const struct world_options o = random_options(&d);
    world_init(&w, &o);
    w.keep = true;
    w.on_kept = mark_done;
    for (uint32_t t = 0; t < 300; t++) {
        happen(&w, &d, &st, seed * 1000 + t);
        if (!world_turn(&w) && roll(&d, 2) == 0)
            w.now += 1000000;
        forget_done(&w, &st);
    }
    world_run(&w);
    forget_done(&w, &st);
    if (st.n != 0 || !sched_is_idle(w.s))
        fail_msg("seed %llu: %u requests never came back", (unsigned long long)seed, st.n);
    world_fini(&w);
}

static void random_histories_keep_every_rule_and_every_token(void **state)
{
    (void)state;
    const char *from = getenv("SCHED_STORM_FROM"), *count = getenv("SCHED_STORM_COUNT");
    const uint64_t first = from != NULL ? strtoull(from, NULL, 10) : 1;
    const uint64_t n = count != NULL ? strtoull(count, NULL, 10) : 80;
    for (uint64_t seed = first; seed < first + n; seed++) {
        one_story(seed);
    }
}

/* The same calls give the same plans. */
static void a_history_repeats_exactly(void **state)
{
    (void)state;
    uint64_t sums[2][2];
    for (int run = 0; run < 2; run++) {
        struct dice d = {.seed = 5};
        struct world w;
        struct world_options o = random_options(&d);
        o.sched.queue_max = 64;
        world_init(&w, &o);
        for (uint32_t i = 0; i < 30; i++) {
            world_submit(&w, world_request(1 + roll(&d, 200), 1 + roll(&d, 30), i));
            (void)world_turn(&w);
        }
        world_run(&w);
        sums[run][0] = w.rows_total;
        sums[run][1] = w.now;
        world_fini(&w);
    }
    assert_true(sums[0][0] == sums[1][0] && sums[0][1] == sums[1][1]);
}

static void nothing_is_allocated_after_the_start(void **state)
{
    (void)state;
    struct world w;
    struct world_options o = world_options_default();
    o.n_blocks = 70;
    o.sched.preempt = PREEMPT_SWAP;
    world_init(&w, &o);
    w.keep = true;
    struct request *r[12];
    for (uint32_t i = 0; i < 12; i++)
        r[i] = world_request(20 + 9 * i, 40, i);
    const uint64_t before = mem_thread_allocs();
    for (uint32_t i = 0; i < 12; i++)
        world_submit(&w, r[i]);
    while (w.n_done == 0)
        (void)world_turn(&w);
    const uint64_t allocs = mem_thread_allocs() - before;
    world_run(&w);
    for (uint32_t i = 0; i < 12; i++)
        request_free(r[i]);
    world_fini(&w);
    assert_true(allocs <= 1); /* the test's own comparison of the first answer */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_keep_every_rule_and_every_token),
        cmocka_unit_test(a_history_repeats_exactly),
        cmocka_unit_test(nothing_is_allocated_after_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
