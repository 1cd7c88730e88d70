/* Rings and wakes: order, fullness, many threads, and no lost wake. */
#include "base_testing.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/ring.h"

#include <pthread.h>
#include <sched.h>

/* Against a plain queue, both kinds, item sizes that are no multiple of anything. */
static void a_ring_is_a_bounded_queue(void **state)
{
    (void)state;
    struct error e;
    static const size_t sizes[] = {1, 8, 13, 100};
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (unsigned kind = RING_SPSC; kind <= RING_MPSC; kind++) {
            struct ring r;
            assert_ok(e, ring_init(&r, (enum ring_kind)kind, 8, sizes[s], NULL, &e));
            unsigned char item[100], want[100];
            uint64_t put = 0, taken = 0;
            for (uint64_t i = 0; i < 5000; i++) {
                assert_int_equal(ring_count(&r), put - taken);
                assert_true(ring_is_empty(&r) == (put == taken));
                if (rnd(10 + s, i) % 100 < (i / 500 % 2 ? 70 : 30)) {
                    memset(item, (int)(put & 0xff), sizeof item);
                    const enum err err = ring_put(&r, item);
                    assert_int_equal(err, put - taken == 8 ? ERR_AGAIN : OK);
                    put += err == OK;
                } else {
                    const enum err err = ring_take(&r, item);
                    assert_int_equal(err, put == taken ? ERR_AGAIN : OK);
                    if (err == OK) {
                        memset(want, (int)(taken++ & 0xff), sizeof want);
                        assert_memory_equal(item, want, sizes[s]);
                    }
                }
            }
            ring_fini(&r);
        }
}

static void limits_are_answers(void **state)
{
    (void)state;
    struct error e;
    struct ring r;
    assert_fails(e, ERR_LIMIT, "the limits are", ring_init(&r, RING_SPSC, 2 * RING_SLOTS_MAX, 8, NULL, &e));
    assert_fails(e, ERR_LIMIT, "the limits are", ring_init(&r, RING_SPSC, 8, RING_ITEM_BYTES_MAX + 1, NULL, &e));
    ring_fini(&r);
}

static enum err case_init(void *ctx, struct error *e)
{
    (void)ctx;
    struct ring r;
    struct wake w;
    enum err err = wake_init(&w, e);
    if (err == OK) {
        err = ring_init(&r, RING_SPSC, 8, 8, &w, e);
        ring_fini(&r);
    }
    wake_fini(&w);
    return err;
}

static void failing_calls_are_answers(void **state)
{
    (void)state;
    assert_int_equal(fail_each(FAULT_SYS, case_init, NULL), 1);
    assert_int_equal(fail_each(FAULT_ALLOC, case_init, NULL), 1);
}

static void putting_allocates_nothing(void **state)
{
    (void)state;
    struct error e;
    struct ring r;
    assert_ok(e, ring_init(&r, RING_MPSC, 8, 8, NULL, &e));
    const uint64_t before = mem_thread_allocs();
    uint64_t v = 1;
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ring_put(&r, &v), OK);
        assert_int_equal(ring_take(&r, &v), OK);
    }
    assert_int_equal(mem_thread_allocs(), before);
    ring_fini(&r);
}

static void a_wake_signals_only_who_sleeps(void **state)
{
    (void)state;
    struct error e;
    struct wake w;
    struct ring r;
    assert_ok(e, wake_init(&w, &e));
    assert_ok(e, ring_init(&r, RING_SPSC, 8, 8, &w, &e));
    uint64_t v = 7, n = 0;
    assert_int_equal(ring_put(&r, &v), OK);
    assert_int_equal(read(w.fd, &n, sizeof n), -1); /* nobody slept: no system call was made */
    assert_int_equal(ring_take(&r, &v), OK);
    wake_arm(&w);
    assert_true(ring_is_empty(&r));
    assert_int_equal(wake_wait(&w, NS_PER_MS), ERR_AGAIN);
    wake_arm(&w);
    assert_int_equal(ring_put(&r, &v), OK);
    assert_int_equal(ring_put(&r, &v), OK);
    assert_int_equal(wake_wait(&w, UINT64_MAX), OK); /* the signal waits for us */
    assert_int_equal(read(w.fd, &n, sizeof n), -1);  /* and was one, and is swallowed */
    wake_arm(&w);
    wake_signal(&w);
    wake_disarm(&w);
    wake_arm(&w);
    assert_int_equal(wake_wait(&w, NS_PER_MS), ERR_AGAIN);
    ring_fini(&r);
    wake_fini(&w);
}

struct item {
    uint32_t producer;
    uint32_t number;
    uint64_t check;
};

static atomic_uint n_waiting; /* producers start together, or they would hardly meet */

struct feed {
    struct ring *ring;
    uint32_t producer, n;
    bool dawdles; /* sleeps now and then, so that the consumer does too */
};

static uint64_t check_of(uint32_t producer, uint32_t number)
{
    return rnd(producer, number);
}

static void *produce(void *arg)
{
    struct feed *f = arg;
    atomic_fetch_sub(&n_waiting, 1);
    while (atomic_load(&n_waiting) > 0)
        sched_yield();
    for (uint32_t i = 0; i < f->n; i++) {
        const struct item item = {f->producer, i, check_of(f->producer, i)};
        while (ring_put(f->ring, &item) != OK)
            sched_yield();
        if (f->dawdles && rnd(99, i) % 64 == 0)
            usleep(50);
    }
    return NULL;
}

/* Everything arrives once, whole, and in each producer's order; the consumer sleeps without a time limit, so a lost
 * wake hangs the test. */
static void feed_through(enum ring_kind kind, uint32_t n_producers, uint32_t n_slots, uint32_t n_each, bool dawdles)
{
    struct error e;
    struct wake w;
    struct ring r;
    struct feed feeds[4];
    pthread_t threads[4];
    uint32_t next[4] = {0};
    assert_ok(e, wake_init(&w, &e));
    assert_ok(e, ring_init(&r, kind, n_slots, sizeof(struct item), &w, &e));
    atomic_store(&n_waiting, n_producers);
    for (uint32_t i = 0; i < n_producers; i++) {
        feeds[i] = (struct feed){&r, i, n_each, dawdles};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &feeds[i]), 0);
    }
    for (uint64_t got = 0; got < (uint64_t)n_producers * n_each;) {
        struct item item;
        while (ring_take(&r, &item) == OK) {
            assert_true(item.producer < n_producers);
            assert_int_equal(item.number, next[item.producer]);
            assert_true(item.check == check_of(item.producer, item.number));
            next[item.producer]++;
            got++;
        }
        if (got == (uint64_t)n_producers * n_each)
            break;
        wake_arm(&w);
        if (ring_is_empty(&r))
            (void)wake_wait(&w, UINT64_MAX);
        else
            wake_disarm(&w);
    }
    for (uint32_t i = 0; i < n_producers; i++)
        pthread_join(threads[i], NULL);
    assert_true(ring_is_empty(&r));
    ring_fini(&r);
    wake_fini(&w);
}

static void one_producer_loses_nothing(void **state)
{
    (void)state;
    feed_through(RING_SPSC, 1, 64, 50000, false);
    feed_through(RING_SPSC, 1, 2, 5000, false);
    feed_through(RING_SPSC, 1, 16, 2000, true);
}

static void many_producers_lose_nothing(void **state)
{
    (void)state;
    feed_through(RING_MPSC, 4, 1024, 50000, false);
    feed_through(RING_MPSC, 4, 2, 2000, false);
    feed_through(RING_MPSC, 3, 16, 1000, true);
}

/* Several rings on one wake, as the engine has. */
static void two_rings_share_a_wake(void **state)
{
    (void)state;
    struct error e;
    struct wake w;
    struct ring r[2];
    struct feed feeds[2];
    pthread_t threads[2];
    assert_ok(e, wake_init(&w, &e));
    atomic_store(&n_waiting, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_ok(e, ring_init(&r[i], RING_SPSC, 4, sizeof(struct item), &w, &e));
        feeds[i] = (struct feed){&r[i], i, 2000, true};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &feeds[i]), 0);
    }
    for (uint32_t got = 0; got < 4000;) {
        struct item item;
        for (uint32_t i = 0; i < 2; i++)
            while (ring_take(&r[i], &item) == OK) {
                assert_int_equal(item.producer, i);
                got++;
            }
        wake_arm(&w);
        if (got < 4000 && ring_is_empty(&r[0]) && ring_is_empty(&r[1]))
            (void)wake_wait(&w, UINT64_MAX);
        else
            wake_disarm(&w);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ring_fini(&r[i]);
    }
    wake_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_is_a_bounded_queue),
        cmocka_unit_test(limits_are_answers),
        cmocka_unit_test(failing_calls_are_answers),
        cmocka_unit_test(putting_allocates_nothing),
        cmocka_unit_test(a_wake_signals_only_who_sleeps),
        cmocka_unit_test(one_producer_loses_nothing),
        cmocka_unit_test(many_producers_lose_nothing),
        cmocka_unit_test(two_rings_share_a_wake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
