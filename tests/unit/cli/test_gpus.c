/* The list of GPUs in quern plan, of machines that are made up. */
#include "testing.h"

#include "cli/gpus.h"

static uint32_t n_cards;

static bool describe(uint32_t i, struct cuda_card *out)
{
    if (i >= n_cards)
        return false;
    *out = (struct cuda_card){.memory_bytes = 140ull << 30, .capability = i == 0 ? 90 : 75, .n_units = 132 - i};
    snprintf(out->name, sizeof out->name, i == 0 ? "NVIDIA H200" : "a \"T4\"");
    return true;
}

static uint64_t memory_free(uint32_t i)
{
    return (uint64_t)(100 + i) << 30;
}

/* What is printed, in a buffer that is never written out. */
static void assert_prints(const struct gpus *g, void (*print)(const struct gpus *g, struct out *out), const char *want)
{
    struct out out;
    struct error e = {0};
    out_init(&out, -1);
    print(g, &out);
    assert_int_equal(out.buf.n, strlen(want));
    assert_memory_equal(out.buf.p, want, strlen(want));
    out.buf.n = 0;
    assert_ok(e, out_fini(&out, &e));
}

static void every_card_is_listed_and_the_first_is_used(void **state)
{
    (void)state;
    n_cards = 2;
    struct gpus g = {.describe = describe, .memory_free = memory_free, .is_used = true};
    assert_prints(&g, gpus_print_text,
        "GPUs        0: NVIDIA H200, compute capability 9.0, 132 units, 100.0 GiB free of 140.0 GiB, used\n"
        "            1: a \"T4\", compute capability 7.5, 131 units, 101.0 GiB free of 140.0 GiB\n");
    assert_prints(&g, gpus_print_json,
        "[{\"name\":\"NVIDIA H200\",\"capability\":\"9.0\",\"units\":132,\"memory_bytes\":150323855360,"
        "\"free_bytes\":107374182400,\"used\":true},"
        "{\"name\":\"a \\\"T4\\\"\",\"capability\":\"7.5\",\"units\":131,\"memory_bytes\":150323855360,"
        "\"free_bytes\":108447924224,\"used\":false}]");
    g.is_used = false;
    n_cards = 1;
    assert_prints(&g, gpus_print_text,
        "GPUs        0: NVIDIA H200, compute capability 9.0, 132 units, 100.0 GiB free of 140.0 GiB\n");
}

static void a_machine_without_one_says_why_and_another_build_nothing(void **state)
{
    (void)state;
    n_cards = 0;
    struct gpus g = {.describe = describe, .memory_free = memory_free, .why = "no CUDA device is visible"};
    assert_prints(&g, gpus_print_text, "GPUs        no CUDA device is visible\n");
    assert_prints(&g, gpus_print_json, "[]");
    g = (struct gpus){0};
    assert_prints(&g, gpus_print_text, "");
    assert_prints(&g, gpus_print_json, "[]");
}

static void a_card_that_is_too_old_is_listed_and_says_so(void **state)
{
    (void)state;
    n_cards = 1;
    const struct gpus g = {.describe = describe, .memory_free = memory_free, .why = "it is too old"};
    assert_prints(&g, gpus_print_text,
        "GPUs        0: NVIDIA H200, compute capability 9.0, 132 units, 100.0 GiB free of 140.0 GiB\n"
        "            it is too old\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_card_is_listed_and_the_first_is_used),
        cmocka_unit_test(a_machine_without_one_says_why_and_another_build_nothing),
        cmocka_unit_test(a_card_that_is_too_old_is_listed_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
