/* The line that names a card and a model's kernels: how it reads. Which kernels they are is tests/cuda/test_describe's.
 */
#include "testing.h"

#include "cuda/describe.h"

static struct described described_8b(void)
{
    struct described r = {
        .card = {.name = "NVIDIA H200", .memory_bytes = 150ull << 30, .capability = 90, .n_units = 132},
        .resident_from = 1,
        .resident_to = 32,
        .format = "BF16",
        .many_from = 65,
        .decode = "team",
        .prompts = "wide",
        .head_dim = 128,
        .cache = "BF16"};
    for (uint32_t n = 1; n <= 2048; n++)
        described_add(&r, n, n <= 2 ? "skinny" : n <= 32 ? "even" : "cuBLASLt");
    return r;
}

static void the_line_names_the_card_and_every_way(void **state)
{
    (void)state;
    const struct described r = described_8b();
    char out[DESCRIBE_BYTES];
    described_text(&r, out);
    assert_string_equal(out,
        "NVIDIA H200 (9.0, 132 units, 150 GiB): decoding of 1 to 32 rows resident; BF16 products by skinny to 2 rows, "
        "even to 32, cuBLASLt beyond, gate and up by many from 65 where it fills the card; attention by team, of "
        "prompts by wide, heads of 128, BF16 cache");
}

static void what_a_model_does_not_take_is_not_named(void **state)
{
    (void)state;
    struct described r = described_8b();
    char out[DESCRIBE_BYTES];
    r.resident_from = r.resident_to = r.many_from = r.n_products = 0;
    r.decode = r.prompts = "simple";
    described_add(&r, 1, "plain");
    described_add(&r, 2, "plain");
    r.has_experts = true;
    described_text(&r, out);
    assert_string_equal(out, "NVIDIA H200 (9.0, 132 units, 150 GiB): BF16 products by plain, experts by skinny; "
                             "attention by simple, heads of 128, BF16 cache");
}

static void a_line_that_is_too_long_is_cut_off(void **state)
{
    (void)state;
    struct described r = described_8b();
    char name[2 * DESCRIBE_BYTES], out[DESCRIBE_BYTES];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    r.decode = name;
    for (uint32_t n = 0; n < 3 * DESCRIBED_WAYS; n++)
        described_add(&r, 2048 + n, n % 2 ? "one" : "another");
    described_text(&r, out);
    assert_int_equal(strlen(out), DESCRIBE_BYTES - 1);
    assert_int_equal(r.n_products, DESCRIBED_WAYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_names_the_card_and_every_way),
        cmocka_unit_test(what_a_model_does_not_take_is_not_named),
        cmocka_unit_test(a_line_that_is_too_long_is_cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
