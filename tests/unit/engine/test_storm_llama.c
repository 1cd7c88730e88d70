/* Law 1 in storms, on smollm2-135m made small; see testing_storm.h. */
#include "engine/testing_storm.h"

static void storms_change_no_answer(void **state)
{
    const struct storm_model m = {
        .shape = "smollm2-135m", .weights = DTYPE_Q8_0, .kv = DTYPE_F16, .window = 0, .n_requests = STORM_REQUESTS};
    storm_run(&m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(storms_change_no_answer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
