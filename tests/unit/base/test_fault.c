/* Fault injection itself: the loop that proves everything else must be right. */
#include "base_testing.h"

#include "base/mem.h"

static void the_nth_call_fails_once(void **state)
{
    (void)state;
    fault_arm(FAULT_ALLOC, 3, false);
    for (int i = 1; i <= 6; i++) {
        void *p = mem_alloc(1);
        assert_true((p == NULL) == (i == 3));
        mem_free(p);
    }
    assert_int_equal(fault_calls(FAULT_ALLOC), 6);
    assert_int_equal(fault_calls(FAULT_SYS), 0); /* kinds are apart */
    fault_arm(FAULT_ALLOC, 0, false);
    assert_int_equal(fault_calls(FAULT_ALLOC), 0);
    assert_false(fault_hit(FAULT_ALLOC));
}

static void sticky_faults_stay(void **state)
{
    (void)state;
    fault_arm(FAULT_SYS, 2, true);
    assert_false(fault_hit(FAULT_SYS));
    for (int i = 0; i < 5; i++)
        assert_true(fault_hit(FAULT_SYS));
    fault_arm(FAULT_SYS, 0, false);
    assert_false(fault_hit(FAULT_SYS));
}

static void specs_are_read_strictly(void **state)
{
    (void)state;
    struct error e;
    assert_ok(e, fault_arm_spec("sys:2", &e));
    assert_true(!fault_hit(FAULT_SYS) && fault_hit(FAULT_SYS) && !fault_hit(FAULT_SYS));
    assert_ok(e, fault_arm_spec("sys:1+", &e));
    assert_true(fault_hit(FAULT_SYS) && fault_hit(FAULT_SYS));
    fault_arm(FAULT_SYS, 0, false);
    static const char *const bad[] = {"", "alloc", "alloc:", "alloc:0", "alloc:x", "alloc:1x", "alloc:1++", "alloc: 1",
        "alloc:+1", "alloc:-1", "alloc: -1", "disk:1", "ALLOC:1"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_fails(e, ERR_INVALID, "is not alloc:N", fault_arm_spec(bad[i], &e));
    assert_false(fault_hit(FAULT_ALLOC));
}

/* A careless function, to see that the loop of the other tests catches it. */
static enum err ignores_its_second_allocation(void *ctx, struct error *e)
{
    (void)ctx;
    void *a = mem_alloc(1), *b = mem_alloc(1);
    const enum err err = a != NULL ? OK : FAIL(e, ERR_NOMEM, "a");
    mem_free(a);
    mem_free(b);
    return err;
}

static void a_swallowed_failure_is_seen(void **state)
{
    (void)state;
    struct error e = {0};
    fault_arm(FAULT_ALLOC, 1, false);
    assert_int_equal(ignores_its_second_allocation(NULL, &e), ERR_NOMEM);
    fault_arm(FAULT_ALLOC, 2, false);
    e = (struct error){0};
    const enum err err = ignores_its_second_allocation(NULL, &e);
    const uint64_t calls = fault_calls(FAULT_ALLOC);
    fault_arm(FAULT_ALLOC, 0, false);
    assert_true(err == OK && calls >= 2); /* exactly what fail_each calls "nobody noticed" */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nth_call_fails_once),
        cmocka_unit_test(sticky_faults_stay),
        cmocka_unit_test(specs_are_read_strictly),
        cmocka_unit_test(a_swallowed_failure_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
