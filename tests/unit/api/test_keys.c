/* Keys and tenants: who a key belongs to, what a reload keeps, and budgets that cannot be overshot. */
#include "testing.h"

#include "api/api_int.h"

#define NEW                                                                                                            \
    struct error e = {0};                                                                                              \
    struct keys k;                                                                                                     \
    assert_ok(e, keys_init(&k, &e))

/* SHA-256 of "test" and of "other". */
#define TEST  "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
#define OTHER "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"

static void keys_belong_to_their_tenants(void **state)
{
    (void)state;
    NEW;
    const char *const plain[] = {"boss"};
    assert_false(atomic_load(&k.required));
    assert_int_equal(keys_find(&k, STR("test")), -1);
    assert_ok(e,
        keys_parse(&k, plain, 1,
            STR("{\"tenants\":[{\"name\":\"a\",\"keys\":[\"" TEST "\"]},{\"name\":\"b\",\"keys\":[\"" OTHER "\"]}]}"),
            &e));
    assert_true(atomic_load(&k.required));
    assert_int_equal(keys_find(&k, STR("boss")), 0);
    assert_int_equal(keys_find(&k, STR("test")), 1);
    assert_int_equal(keys_find(&k, STR("other")), 2);
    assert_int_equal(keys_find(&k, STR("tesT")), -1);
    assert_int_equal(keys_find(&k, STR("")), -1);
    keys_fini(&k);
}

static void a_reload_keeps_indices_and_a_wrong_file_changes_nothing(void **state)
{
    (void)state;
    NEW;
    assert_ok(e,
        keys_parse(&k, NULL, 0,
            STR("{\"tenants\":[{\"name\":\"a\",\"keys\":[\"" TEST "\"]},{\"name\":\"b\",\"keys\":[\"" OTHER "\"]}]}"),
            &e));
    assert_ok(e, keys_parse(&k, NULL, 0, STR("{\"tenants\":[{\"name\":\"b\",\"keys\":[\"" OTHER "\"]}]}"), &e));
    assert_int_equal(keys_find(&k, STR("other")), 2);
    assert_int_equal(keys_find(&k, STR("test")), -1);
    assert_fails(e, ERR_INVALID, "SHA-256",
        keys_parse(&k, NULL, 0, STR("{\"tenants\":[{\"name\":\"c\",\"keys\":[\"1\"]}]}"), &e));
    assert_int_equal(keys_find(&k, STR("other")), 2);
    assert_int_equal(k.n_tenants, 3);
    keys_fini(&k);
}

static void a_file_without_keys_locks_everybody_out(void **state)
{
    (void)state;
    NEW;
    assert_ok(e, keys_parse(&k, NULL, 0, STR("{\"tenants\":[]}"), &e));
    assert_true(atomic_load(&k.required));
    keys_fini(&k);
}

static void budgets_are_reserved_and_settled(void **state)
{
    (void)state;
    NEW;
    struct api_error ae = {0};
    const uint64_t now = 1000 * NS_PER_S;
    assert_ok(e, keys_parse(&k, NULL, 0, STR("{\"tenants\":[{\"name\":\"a\",\"tokens_per_min\":600}]}"), &e));
    assert_true(tenant_take(&k, 1, 400, now, &ae));
    assert_false(tenant_take(&k, 1, 400, now, &ae)); /* 200 are left */
    assert_int_equal(ae.status, 429);
    assert_int_equal(ae.retry_s, 20); /* 200 more at 10 a second */
    ae = (struct api_error){0};
    assert_true(tenant_take(&k, 1, 200, now, &ae));
    tenant_settle(&k, 1, 400, 100); /* 300 come back */
    assert_true(tenant_take(&k, 1, 300, now, &ae));
    assert_false(tenant_take(&k, 1, 1, now, &ae));
    ae = (struct api_error){0};
    assert_true(tenant_take(&k, 1, 10, now + NS_PER_S, &ae));          /* refilled */
    assert_false(tenant_take(&k, 1, 601, now + 3600 * NS_PER_S, &ae)); /* can never be */
    assert_int_equal(ae.retry_s, 0);
    ae = (struct api_error){0};
    assert_true(tenant_take(&k, 1, 600, now + 3600 * NS_PER_S, &ae)); /* an hour fills it no higher than a minute's */
    assert_false(tenant_take(&k, 1, 600, now + 3600 * NS_PER_S, &ae));
    ae = (struct api_error){0};
    assert_true(tenant_take(&k, 0, 1000000, now, &ae)); /* the common one has no limit */
    keys_fini(&k);
}

static void requests_per_minute_are_counted(void **state)
{
    (void)state;
    NEW;
    struct api_error ae = {0};
    assert_ok(e, keys_parse(&k, NULL, 0, STR("{\"tenants\":[{\"name\":\"a\",\"requests_per_min\":2}]}"), &e));
    assert_true(tenant_take(&k, 1, 1, NS_PER_S, &ae));
    assert_true(tenant_take(&k, 1, 1, NS_PER_S, &ae));
    assert_false(tenant_take(&k, 1, 1, NS_PER_S, &ae));
    assert_int_equal(ae.retry_s, 30);
    ae = (struct api_error){0};
    assert_true(tenant_take(&k, 1, 1, 31 * NS_PER_S, &ae));
    keys_fini(&k);
}

static void models_may_be_restricted(void **state)
{
    (void)state;
    NEW;
    assert_ok(e, keys_parse(&k, NULL, 0, STR("{\"tenants\":[{\"name\":\"a\",\"models\":[\"x\"]}]}"), &e));
    assert_true(tenant_may_use(&k, 1, STR("x")));
    assert_false(tenant_may_use(&k, 1, STR("y")));
    assert_true(tenant_may_use(&k, 0, STR("y")));
    keys_fini(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_belong_to_their_tenants),
        cmocka_unit_test(a_reload_keeps_indices_and_a_wrong_file_changes_nothing),
        cmocka_unit_test(a_file_without_keys_locks_everybody_out),
        cmocka_unit_test(budgets_are_reserved_and_settled),
        cmocka_unit_test(requests_per_minute_are_counted),
        cmocka_unit_test(models_may_be_restricted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
