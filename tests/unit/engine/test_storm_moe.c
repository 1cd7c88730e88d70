/* Law 1 in storms, on qwen3-30b-a3b made small with random weights, and on a small trained model with experts, whose
 * own tokenizer takes part in the grammars; see testing_storm.h. */
#include "engine/testing_storm.h"

static void storms_change_no_answer(void **state)
{
    const struct storm_model m = {
        .shape = "qwen3-30b-a3b", .weights = DTYPE_F16, .kv = DTYPE_F32, .window = 0, .n_requests = STORM_REQUESTS};
    storm_run(&m);
    (void)state;
}

static void storms_change_no_answer_of_a_trained_model(void **state)
{
    const struct storm_model m = {.shape = "tiny-moe",
        .path = "tests/data/tiny/tiny-moe-q8_0.gguf",
        .kv = DTYPE_F16,
        .n_requests = STORM_SANITIZED ? 16 : 60, /* noise; swapping, late; far */
        .only = 1u << 0 | 1u << 7 | 1u << 12};
    storm_run(&m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storms_change_no_answer),
        cmocka_unit_test(storms_change_no_answer_of_a_trained_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
