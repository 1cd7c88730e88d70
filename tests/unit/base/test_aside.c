/* An errand: done on another thread, or here when there is none; its error comes back with it. */
#include "testing.h"

#include "base/aside.h"
#include "base/fault.h"

struct work {
    pthread_t by;
    bool fails;
    int done;
};

static enum err do_work(void *ctx, struct error *e)
{
    struct work *w = ctx;
    w->by = pthread_self();
    w->done++;
    return w->fails ? FAIL(e, ERR_LIMIT, "it was too much") : OK;
}

static void an_errand_is_done_once_on_a_thread_of_its_own(void **state)
{
    (void)state;
    struct aside a;
    struct error e = {0};
    struct work w = {0};
    aside_start(&a, do_work, &w);
    assert_ok(e, aside_join(&a, &e));
    assert_int_equal(w.done, 1);
    assert_false(pthread_equal(w.by, pthread_self()));
    assert_false(atomic_load(&a.failed));
}

static void its_error_comes_back_and_the_first_one_stays(void **state)
{
    (void)state;
    struct aside a;
    struct error e = {0};
    struct work w = {.fails = true};
    aside_start(&a, do_work, &w);
    assert_fails(e, ERR_LIMIT, "too much", aside_join(&a, &e));
    assert_true(atomic_load(&a.failed));
    struct error other = {0};
    assert_int_equal(FAIL(&other, ERR_IO, "before"), ERR_IO);
    aside_start(&a, do_work, &w);
    assert_int_equal(aside_join(&a, &other), ERR_LIMIT);
    assert_string_equal(other.text, "before");
    aside_start(&a, do_work, &w);
    assert_int_equal(aside_join(&a, NULL), ERR_LIMIT);
}

static void without_a_thread_the_caller_does_it(void **state)
{
    (void)state;
    struct aside a;
    struct error e = {0};
    struct work w = {.fails = true};
    fault_arm(FAULT_SYS, 1, false);
    aside_start(&a, do_work, &w);
    fault_arm(FAULT_SYS, 0, false);
    assert_int_equal(w.done, 1);
    assert_true(pthread_equal(w.by, pthread_self()));
    assert_fails(e, ERR_LIMIT, "too much", aside_join(&a, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_errand_is_done_once_on_a_thread_of_its_own),
        cmocka_unit_test(its_error_comes_back_and_the_first_one_stays),
        cmocka_unit_test(without_a_thread_the_caller_does_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
