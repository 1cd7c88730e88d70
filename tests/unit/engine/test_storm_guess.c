/* Law 1 in storms of guesses: the 4M model with n-grams and with the 1M model as its draft, one to eight guesses at a
 * time. Greedy answers on 500 prompts, and answers of every way to sample, equal those without guesses bit by bit. */
#include "engine/testing_storm.h"

static const struct storm_model model = {.shape = "tiny-4m",
    .path = "tests/data/tiny/tiny-4m-q8_0.gguf",
    .draft_path = "tests/data/tiny/tiny-1m-q8_0.gguf",
    .kv = DTYPE_F16};

static void guesses_change_no_greedy_answer(void **state)
{
    struct storm_model m = model;
    m.n_requests = STORM_SANITIZED ? 12 : 500;
    m.is_greedy = true;
    m.only = 3u << 16; /* of the storms of guesses; the others are other tests' */
    storm_run(&m);
    (void)state;
}

static void guesses_change_no_sampled_answer(void **state)
{
    struct storm_model m = model;
    m.n_requests = STORM_SANITIZED ? 16 : 60;
    m.only = 0x1ecu << 16;
    storm_run(&m);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_change_no_greedy_answer),
        cmocka_unit_test(guesses_change_no_sampled_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
