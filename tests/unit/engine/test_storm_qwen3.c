/* Law 1 in storms, on qwen3-0.6b made small; see testing_storm.h. */
#include "engine/testing_storm.h"

static void storms_change_no_answer(void **state)
{
    const struct storm_model m = {
        .shape = "qwen3-0.6b", .weights = DTYPE_Q4_K, .kv = DTYPE_Q8_0, .window = 24, .n_requests = STORM_REQUESTS};
    storm_run(&m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms_change_no_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
