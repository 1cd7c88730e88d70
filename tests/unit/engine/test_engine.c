/* The engine's promises, over a fake runner: one final notice for every request in every state, nothing shared that
 * should not be, sleep when idle. */
#include "engine/testing_engine.h"

#include "base/fault.h"

#include <pthread.h>
#include <time.h>

static uint32_t n_out(const struct request *r)
{
    return atomic_load(&r->choices[0].n_out);
}

static int end_of(const struct request *r)
{
    return atomic_load(&r->choices[0].end);
}

static void a_request_is_answered(void **state)
{
    struct rig r;
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        f.depth = depth;
        rig_open_fake(&r, &o, &f);
        const struct request_options ask = rig_ask(40, 20);
        struct request *q = rig_submit(&r, &ask);
        rig_wait(&r, 1);
        assert_int_equal(n_out(q), 20);
        assert_int_equal(end_of(q), END_LENGTH);
        assert_true(q->t_arrival <= q->t_admitted && q->t_admitted <= q->t_first_token && q->t_first_token <= q->t_end);
        request_free(q);
        rig_close(&r);
    }
    (void)state;
}

/* The same ids at depth 0 and 1, alone and in company, with the cache and without. */
static void company_changes_nothing(void **state)
{
    enum { N = 24 };
    uint32_t want[N][24];
    for (uint32_t variant = 0; variant < 4; variant++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        struct request *q[N];
        f.depth = variant & 1;
        o.sched.preempt_every = variant >= 2 ? 3 : 0;
        o.sched.prefix_cache = o.kv.prefix_cache = variant != 0;
        rig_open_fake(&r, &o, &f);
        for (uint32_t i = 0; i < N; i++) {
            struct request_options ask = rig_ask(20 + 3 * i, 1 + i);
            ask.sample.seed = i;
            q[i] = rig_submit(&r, &ask);
            if (variant == 0)
                rig_wait(&r, 1);
        }
        if (variant != 0)
            rig_wait(&r, N);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(n_out(q[i]), 1 + i);
            if (variant == 0)
                memcpy(want[i], q[i]->choices[0].ids, (1 + i) * sizeof want[i][0]);
            else
                assert_memory_equal(want[i], q[i]->choices[0].ids, (1 + i) * sizeof want[i][0]);
            request_free(q[i]);
        }
        assert_int_equal(engine_state(r.en), ENGINE_READY);
        rig_close(&r);
    }
    (void)state;
}

static void a_cancelled_request_comes_back_at_once(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        f.depth = depth;
        rig_open_fake(&r, &o, &f);
        f.clock = &r.clock;
        const struct request_options ask = rig_ask(40, 400);
        struct request *a = rig_submit(&r, &ask), *b = rig_submit(&r, &ask);
        engine_cancel(r.client, a);
        rig_wait(&r, 2);
        assert_int_equal(end_of(b), END_LENGTH);
        assert_true(end_of(a) == END_CANCELLED || n_out(a) == 400);
        request_free(a);
        request_free(b);
        rig_close(&r);
    }
    (void)state;
}

static void a_failing_device_answers_everyone(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        struct error e = {0};
        uint64_t retry_ms;
        struct request *q[12];
        uint32_t n = 0; /* that it took; a slow thread finds it failed before it has asked for all */
        f.depth = depth;
        f.fail_at_step = 7;
        rig_open_fake(&r, &o, &f);
        const struct request_options ask = rig_ask(40, 100);
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            q[i] = rig_request(&ask);
            n += n == i && engine_submit(r.client, q[i], &retry_ms, &e) == OK;
        }
        assert_true(n > 0);
        rig_wait(&r, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(end_of(q[i]), END_FAILED);
            assert_non_null(strstr(q[i]->error.text, "as it was told to"));
        }
        assert_int_equal(engine_state(r.en), ENGINE_FAILED);
        engine_error(r.en, &e);
        assert_non_null(strstr(e.text, "step 7"));
        assert_fails(e, ERR_INTERNAL, "step 7", engine_submit(r.client, q[0], &retry_ms, &e));
        for (uint32_t i = 0; i < COUNT_OF(q); i++)
            request_free(q[i]);
        rig_close(&r);
    }
    (void)state;
}

static void draining_finishes_what_there_is_and_takes_nothing_new(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct error e;
    uint64_t retry_ms;
    rig_open_fake(&r, &o, &f);
    const struct request_options ask = rig_ask(40, 200);
    struct request *q = rig_submit(&r, &ask), *late = rig_request(&ask);
    engine_drain(r.en);
    assert_fails(e, ERR_CANCELLED, "engine is", engine_submit(r.client, late, &retry_ms, &e));
    rig_wait(&r, 1);
    assert_int_equal(n_out(q), 200);
    for (int i = 0; i < 2000 && engine_state(r.en) != ENGINE_STOPPED; i++)
        clock_sleep(&r.clock, NS_PER_MS);
    assert_int_equal(engine_state(r.en), ENGINE_STOPPED);
    request_free(q);
    request_free(late);
    rig_close(&r);
    (void)state;
}

static void abort_ends_everything_now(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        struct request *q[10];
        f.depth = depth;
        rig_open_fake(&r, &o, &f);
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            const struct request_options ask = rig_ask(100, 400);
            q[i] = rig_submit(&r, &ask);
        }
        engine_abort(r.en);
        rig_wait(&r, COUNT_OF(q));
        uint32_t aborted = 0;
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            aborted += end_of(q[i]) == END_ABORTED;
            request_free(q[i]);
        }
        assert_true(aborted > 0);
        rig_close(&r);
    }
    (void)state;
}

static void an_unread_answer_pauses_only_itself(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    rig_open_fake(&r, &o, &f);
    struct request_options ask = rig_ask(20, 100);
    struct request *fast = rig_submit(&r, &ask);
    ask.read_window = 8;
    struct request *slow = rig_submit(&r, &ask);
    rig_wait(&r, 1);
    assert_int_equal(n_out(fast), 100);
    for (int i = 0; i < 200 && n_out(slow) < 8; i++)
        clock_sleep(&r.clock, NS_PER_MS);
    assert_true(n_out(slow) >= 8 && n_out(slow) < 12);
    atomic_store(&slow->n_read, 1000);
    engine_read_on(r.client, slow);
    rig_wait(&r, 1);
    assert_int_equal(n_out(slow), 100);
    request_free(fast);
    request_free(slow);
    rig_close(&r);
    (void)state;
}

static double thread_seconds(pthread_t thread)
{
    clockid_t id;
    struct timespec t;
    assert_int_equal(pthread_getcpuclockid(thread, &id), 0);
    assert_int_equal(clock_gettime(id, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void at_rest_it_sleeps_and_wakes_quickly(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    double best = 1.0;
    rig_open_fake(&r, &o, &f);
    const struct request_options ask = rig_ask(20, 1);
    for (int i = 0; i < 20; i++) {
        clock_sleep(&r.clock, 5 * NS_PER_MS);
        const uint64_t start = clock_now(&r.clock);
        struct request *q = rig_submit(&r, &ask);
        rig_wait(&r, 1);
        best = MIN(best, (double)(clock_now(&r.clock) - start) / 1e9);
        request_free(q);
    }
    assert_true(best < 0.001); /* there and back, with a step in between */
    const double before = thread_seconds(r.en->thread);
    clock_sleep(&r.clock, 200 * NS_PER_MS);
    assert_true(thread_seconds(r.en->thread) - before < 0.002);
    assert_int_equal(engine_stuck_ns(r.en), 0);
    rig_close(&r);
    (void)state;
}

static void the_engine_thread_does_not_allocate(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        struct request *q[40];
        f.depth = depth;
        f.eos_every = 50;
        rig_open_fake(&r, &o, &f);
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            struct request_options ask = rig_ask(10 + 7 * i, 30);
            const uint32_t eos = 0;
            ask.stop_ids = &eos;
            ask.n_stop_ids = 1;
            ask.n_choices = 1 + i % 3 % 2;
            ask.n_top = i % 2 * 5;
            q[i] = rig_submit(&r, &ask);
            if (i % 9 == 0)
                engine_cancel(r.client, q[i]);
        }
        rig_wait(&r, COUNT_OF(q));
        assert_int_equal(atomic_load(&r.en->allocs), 0);
        struct engine_stats *stats = mem_zalloc(sizeof *stats);
        assert_non_null(stats);
        for (int i = 0; i < 1000 && stats->requests < COUNT_OF(q); i++) { /* told of behind the last notice */
            clock_sleep(&r.clock, NS_PER_MS);
            engine_stats(r.en, stats);
        }
        assert_int_equal(stats->requests, COUNT_OF(q));
        assert_true(stats->steps > 0 && stats->hist[HIST_TTFT].n > 0 && stats->hist[HIST_ITL].n > 0);
        mem_free(stats);
        for (uint32_t i = 0; i < COUNT_OF(q); i++)
            request_free(q[i]);
        rig_close(&r);
    }
    (void)state;
}

struct asker {
    struct rig *r;
    uint64_t seed;
    uint32_t answered;
    pthread_t thread;
};

/* A client thread of its own: asks, cancels some, takes all back. */
static void *ask_much(void *ctx)
{
    struct asker *a = ctx;
    struct engine_client *c;
    struct error e = {0};
    uint32_t inside = 0, sent = 0;
    if (engine_client_new(a->r->en, &c, &e) != OK)
        return NULL;
    uint32_t prompt[50];
    for (uint32_t i = 0; i < COUNT_OF(prompt); i++)
        prompt[i] = (uint32_t)((i * 7 + a->seed) % 97);
    while (sent < 60 || inside > 0) {
        struct notice n;
        struct request_options o = {.prompt = prompt,
            .n_prompt = 1 + (uint32_t)(sent * a->seed) % 50,
            .max_tokens = 1 + sent % 17,
            .n_choices = 1 + sent % 2,
            .read_window = sent % 3 == 0 ? 4 : 0,
            .sample = sample_params_default()};
        struct request *q = NULL;
        uint64_t retry_ms;
        if (sent < 60 && inside < 8 && request_new(&o, &q, &e) == OK) {
            if (engine_submit(c, q, &retry_ms, NULL) == OK) {
                inside++;
                sent++;
                if (sent % 5 == 0)
                    engine_cancel(c, q);
            } else
                request_free(q);
        }
        while (engine_client_next(c, &n) == OK) {
            if (n.is_final) {
                a->answered++;
                inside--;
                request_free(n.request);
            } else {
                atomic_store(&n.request->n_read, 1000);
                engine_read_on(c, n.request);
            }
        }
        if (inside == 8 || sent == 60)
            sched_yield();
    }
    engine_client_free(c);
    return NULL;
}

static void many_clients_at_once(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        struct asker askers[3];
        f.depth = depth;
        o.check_every_step = false;
        rig_open_fake(&r, &o, &f);
        for (uint32_t i = 0; i < COUNT_OF(askers); i++) {
            askers[i] = (struct asker){.r = &r, .seed = i + 1};
            assert_int_equal(pthread_create(&askers[i].thread, NULL, ask_much, &askers[i]), 0);
        }
        struct engine_stats *stats = mem_zalloc(sizeof *stats);
        uint8_t map[64];
        assert_non_null(stats);
        for (uint32_t i = 0; i < 50; i++) {
            engine_stats(r.en, stats);
            assert_true(stats->kv.n_free + stats->kv.n_held + stats->kv.n_cached + stats->kv.n_parked == 64);
            assert_int_equal(engine_kv_map(r.en, map, sizeof map), 64);
        }
        mem_free(stats);
        for (uint32_t i = 0; i < COUNT_OF(askers); i++) {
            pthread_join(askers[i].thread, NULL);
            assert_int_equal(askers[i].answered, 60);
        }
        assert_int_equal(engine_state(r.en), ENGINE_READY);
        rig_close(&r);
    }
    (void)state;
}

static void a_step_that_hangs_is_seen_from_outside(void **state)
{
    struct rig r;
    struct clock real;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    clock_init(&real);
    f.clock = &real;
    f.base_ns = 150 * NS_PER_MS;
    rig_open_fake(&r, &o, &f);
    const struct request_options ask = rig_ask(20, 1);
    struct request *q = rig_submit(&r, &ask);
    uint64_t most = 0;
    for (int i = 0; i < 60; i++) {
        clock_sleep(&real, 2 * NS_PER_MS);
        most = MAX(most, engine_stuck_ns(r.en));
    }
    assert_true(most > 50 * NS_PER_MS);
    rig_wait(&r, 1);
    for (int i = 0; i < 1000 && engine_stuck_ns(r.en) != 0; i++)
        clock_sleep(&real, NS_PER_MS);
    assert_int_equal(engine_stuck_ns(r.en), 0);
    request_free(q);
    rig_close(&r);
    (void)state;
}

static void what_cannot_run_is_refused_at_once(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct error e;
    uint64_t retry_ms;
    rig_open_fake(&r, &o, &f);
    struct request_options ask = rig_ask(512, 1);
    struct request *q = rig_request(&ask);
    assert_fails(e, ERR_LIMIT, "context of 512", engine_submit(r.client, q, &retry_ms, &e));
    request_free(q);
    ask = rig_ask(5, 1);
    ask.n_top = 21;
    q = rig_request(&ask);
    assert_fails(e, ERR_LIMIT, "alternatives", engine_submit(r.client, q, &retry_ms, &e));
    request_free(q);
    rig_close(&r);
    (void)state;
}

static void virtual_time_is_the_runners_cost(void **state)
{
    struct rig r;
    struct clock clock;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    clock_init_virtual(&clock, 0);
    f.clock = &clock;
    f.base_ns = NS_PER_MS;
    f.row_ns = 1000;
    o.no_thread = true;
    rig_open_fake(&r, &o, &f);
    const struct request_options ask = rig_ask(64, 10);
    struct request *q = rig_submit(&r, &ask);
    rig_wait(&r, 1);
    assert_int_equal(clock_now(&clock), 10 * NS_PER_MS + (64 + 9) * 1000);
    assert_int_equal(q->t_end - q->t_arrival, clock_now(&clock));
    request_free(q);
    rig_close(&r);
    (void)state;
}

/* On a virtual clock: turns while there is something to do, then straight to the next time that matters. */
static void run_until_done(struct rig *r, struct clock *clock, const struct request *q)
{
    for (int i = 0; i < 10000 && !request_is_done(q); i++) {
        uint64_t next_ns;
        if (!engine_turn(r->en, &next_ns) && !request_is_done(q)) {
            assert_true(next_ns != UINT64_MAX && next_ns > clock_now(clock));
            clock_advance(clock, next_ns - clock_now(clock));
        }
    }
    assert_true(request_is_done(q));
    rig_wait(r, 1);
}

static void time_ends_what_takes_too_long(void **state)
{
    for (uint32_t depth = 0; depth <= 1; depth++) {
        struct rig r;
        struct clock clock;
        struct engine_options o = rig_options();
        struct fake_runner_options f = rig_fake();
        clock_init_virtual(&clock, 0);
        f.clock = &clock;
        f.base_ns = NS_PER_MS;
        f.depth = depth;
        o.no_thread = true;
        o.sched.pause_max_ns = 500 * NS_PER_MS;
        rig_open_fake(&r, &o, &f);
        struct request_options ask = rig_ask(10, 400);
        ask.deadline_ns = 50 * NS_PER_MS;
        struct request *q = rig_submit(&r, &ask);
        run_until_done(&r, &clock, q);
        assert_int_equal(end_of(q), END_DEADLINE);
        assert_true(q->t_end - q->t_arrival >= 50 * NS_PER_MS && q->t_end - q->t_arrival < 53 * NS_PER_MS);
        assert_true(n_out(q) > 45 && n_out(q) <= 50);
        request_free(q);
        ask.deadline_ns = 0;
        ask.read_window = 5; /* and nobody reads */
        q = rig_submit(&r, &ask);
        run_until_done(&r, &clock, q);
        assert_int_equal(end_of(q), END_EXPIRED);
        assert_true(q->t_end - q->t_arrival >= 500 * NS_PER_MS && n_out(q) < 10);
        request_free(q);
        rig_close(&r);
    }
    (void)state;
}

static void a_full_queue_is_busy_at_once(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct request *q[30];
    uint32_t busy = 0;
    uint64_t next_ns, retry_ms = 0;
    o.sched.queue_max = 8;
    o.no_thread = true;
    rig_open_fake(&r, &o, &f);
    for (uint32_t i = 0; i < COUNT_OF(q); i++) {
        const struct request_options ask = rig_ask(10, 20);
        q[i] = rig_request(&ask);
        if (engine_submit(r.client, q[i], &retry_ms, NULL) != OK) {
            assert_true(retry_ms > 0);
            request_free(q[i]);
            q[i] = NULL;
            busy++;
        }
        if (i == 15)
            engine_turn(r.en, &next_ns);
    }
    assert_true(busy > 5 && busy < COUNT_OF(q) - 8);
    rig_wait(&r, COUNT_OF(q) - busy);
    for (uint32_t i = 0; i < COUNT_OF(q); i++)
        request_free(q[i]);
    rig_close(&r);
    (void)state;
}

/* Whichever allocation or system call fails, engine_new says so and leaves nothing behind. */
static void a_failing_start_is_an_error(void **state)
{
    for (int kind = 0; kind < FAULT_COUNT; kind++)
        for (uint64_t nth = 1; nth < 200; nth++) {
            struct engine_options o = rig_options();
            const struct fake_runner_options f = rig_fake();
            struct clock clock;
            struct error e = {0};
            struct engine *en = NULL;
            struct engine_client *c = NULL;
            clock_init(&clock);
            o.clock = &clock;
            o.kv.seqs_max = sched_slots(&o.sched);
            const struct runner_limits l = engine_runner_limits(&o.sched, &o.kv);
            fault_arm((enum fault_kind)kind, nth, false);
            enum err err = fake_runner_open(&f, &l, o.kv.n_blocks, 8, 16, &o.runner, &e);
            if (err == OK) {
                err = engine_new(&o, &en, &e);
                if (err != OK)
                    runner_close(o.runner);
            }
            if (err == OK)
                err = engine_client_new(en, &c, &e);
            const uint64_t calls = fault_calls((enum fault_kind)kind);
            fault_arm((enum fault_kind)kind, 0, false);
            assert_true(err == OK || (e.text[0] != '\0' && (err == ERR_NOMEM || err == ERR_IO)));
            engine_client_free(c);
            engine_free(en);
            if (err == OK && calls < nth)
                break;
            assert_true(err != OK);
            assert_true(nth + 1 < 200);
        }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_answered),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(a_cancelled_request_comes_back_at_once),
        cmocka_unit_test(a_failing_device_answers_everyone),
        cmocka_unit_test(draining_finishes_what_there_is_and_takes_nothing_new),
        cmocka_unit_test(abort_ends_everything_now),
        cmocka_unit_test(an_unread_answer_pauses_only_itself),
        cmocka_unit_test(at_rest_it_sleeps_and_wakes_quickly),
        cmocka_unit_test(the_engine_thread_does_not_allocate),
        cmocka_unit_test(many_clients_at_once),
        cmocka_unit_test(a_step_that_hangs_is_seen_from_outside),
        cmocka_unit_test(what_cannot_run_is_refused_at_once),
        cmocka_unit_test(virtual_time_is_the_runners_cost),
        cmocka_unit_test(time_ends_what_takes_too_long),
        cmocka_unit_test(a_full_queue_is_busy_at_once),
        cmocka_unit_test(a_failing_start_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
