/* What a decoder tells a backend about its model when it asks for the line of chosen kernels, and what the CPU says. */
#include "base/mem.h"
#include "model/testing_model.h"

static struct describe_args told;

static void listen(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES])
{
    (void)d;
    told = *a;
    snprintf(out, DESCRIBE_BYTES, "heard");
}

/* Its line, or what the device was told when listening. */
static void describe(const char *name, enum dtype dtype, bool listens, char out[DESCRIBE_BYTES])
{
    struct rig r;
    struct error e;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    rig_small_config(name, cfg);
    assert_ok(e, rig_open_dummy(&r, cfg, dtype, 1, &e));
    static struct ops ops;
    ops = *r.d->ops;
    ops.describe = listen;
    if (listens)
        r.d->ops = &ops;
    assert_string_not_equal(decoder_describe(r.d, out), "");
    rig_close(&r);
    mem_free(cfg);
}

static void a_layer_is_plain_where_nothing_stands_between_its_products(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool is_plain, is_dense;
    } models[] = {{"llama-3.2-1b", true, true}, {"qwen3-0.6b", false, true}, {"mixtral-8x7b", false, false}};
    char out[DESCRIBE_BYTES];
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        describe(models[i].name, DTYPE_BF16, true, out);
        assert_string_equal(out, "heard");
        assert_int_equal(told.is_plain, models[i].is_plain);
        assert_int_equal(told.gate != NULL, models[i].is_dense);
        assert_int_equal(told.down != NULL, models[i].is_dense);
        assert_true(told.q != NULL && told.o != NULL && told.head != NULL);
        assert_int_equal(told.head_dim, 64);
        assert_int_equal(told.rope_dims, 64);
    }
}

static void the_cpu_names_its_row_and_the_way_of_the_products(void **state)
{
    (void)state;
    char out[DESCRIBE_BYTES];
    describe("llama-3.2-1b", DTYPE_Q8_0, false, out);
    assert_memory_equal(out, cpu_ops()->name, strlen(cpu_ops()->name));
    assert_non_null(strstr(out, ": Q8_0 products in 16-bit integers, "));
    assert_non_null(strstr(out, ", heads of 64, F16 cache"));
    describe("llama-3.2-1b", DTYPE_BF16, false, out);
    assert_non_null(strstr(out, ": BF16 products in f32, "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_is_plain_where_nothing_stands_between_its_products),
        cmocka_unit_test(the_cpu_names_its_row_and_the_way_of_the_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
