/* The gap rule and the batchings: whatever is planned around a request, its answer is the one it gives alone. */
#include "testing_sched.h"

static void run_some(const struct world_options *o, uint32_t n)
{
    struct world w;
    world_init(&w, o);
    for (uint32_t i = 0; i < n; i++) {
        world_submit(&w, world_request(1 + i * 37 % 150, 1 + i * 13 % 40, i));
        for (uint32_t k = 0; k < i % 3; k++)
            (void)world_turn(&w);
    }
    world_run(&w);
    assert_int_equal(w.n_done, n);
    assert_int_equal(w.n_ends[END_EOS] + w.n_ends[END_LENGTH], n);
    world_fini(&w);
}

static void one_request_gives_its_tokens(void **state)
{
    (void)state;
    struct world_options o = world_options_default();
    run_some(&o, 1);
}

static void every_batching_gives_the_same_tokens_at_both_depths(void **state)
{
    (void)state;
    static const enum batching all[] = {
        BATCH_CONTINUOUS, BATCH_PREFILL_FIRST, BATCH_STATIC, BATCH_INTERVAL, BATCH_RATIO};
    for (size_t b = 0; b < COUNT_OF(all); b++)
        for (uint32_t depth = 0; depth < 2; depth++) {
            struct world_options o = world_options_default();
            o.sched.batching = all[b];
            o.depth = depth;
            run_some(&o, 40);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_gives_its_tokens),
        cmocka_unit_test(every_batching_gives_the_same_tokens_at_both_depths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
