/* The CPU as a device: what it binds and refuses, its memory, the table of variants, and failing allocations. */
#include "testing_cpu.h"

#include "base/fault.h"
#include "base/mem.h"

#include <math.h>

static void every_weight_dtype_of_the_tensor_room_is_bound_and_no_other(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 1, 1);
        uint32_t bound = 0;
        static unsigned char bytes[8192];
        for (enum dtype t = 0; t < DTYPE_COUNT; t++) {
            const struct dtype_info *info = dtype_info(t);
            struct tensor_view v;
            struct weight w = {0};
            struct error e;
            const uint64_t shape[] = {2, 256};
            assert_ok(
                e, tensor_view_init(&v, t, 2, shape, bytes, (size_t)512 / info->block_elems * info->block_bytes, &e));
            if (info->flags & DTYPE_IS_WEIGHT) {
                assert_ok(e, rig.ops->weight_bind(d, &v, 1, &w, &e));
                assert_int_equal(w.wants, info->flags & DTYPE_IS_QUANTISED ? ACT_Q16 : ACT_F32);
                assert_true(w.n_out == 2 && w.n_in == 256 && w.n_mats == 1);
                rig.ops->weight_drop(d, &w);
                bound++;
            } else {
                assert_fails(e, ERR_UNSUPPORTED, info->name, rig.ops->weight_bind(d, &v, 1, &w, &e));
            }
        }
        assert_int_equal(bound, n_weight_dtypes); /* the tests go through all of them */
        rig.ops->dev_close(d);
    }
}

static void stacks_and_lists_of_matrices_bind_alike(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 1, 1);
        float data[3][4][8] = {0};
        struct tensor_view stack, each[3];
        struct weight a = {0}, b = {0};
        struct error e;
        assert_ok(e, tensor_view_init(&stack, DTYPE_F32, 3, (const uint64_t[]){3, 4, 8}, data, sizeof data, &e));
        for (int i = 0; i < 3; i++)
            assert_ok(
                e, tensor_view_init(&each[i], DTYPE_F32, 2, (const uint64_t[]){4, 8}, data[i], sizeof data[i], &e));
        assert_ok(e, rig.ops->weight_bind(d, &stack, 1, &a, &e));
        assert_ok(e, rig.ops->weight_bind(d, each, 3, &b, &e));
        assert_true(a.n_mats == 3 && b.n_mats == 3 && a.n_out == 4 && b.n_in == 8);
        for (int i = 0; a.mat != NULL && i < 3; i++)
            assert_true(a.mat[i] == data[i] && b.mat[i] == data[i]);
        rig.ops->weight_drop(d, &a);
        rig.ops->weight_drop(d, &b);
        rig.ops->dev_close(d);
    }
}

static void impossible_shapes_are_refused(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 1, 1);
        struct tensor_view v;
        struct weight w = {0};
        struct error e;
        static float data[(MODEL_EXPERTS_MAX + 1) * 2];
        assert_ok(e, tensor_view_init(&v, DTYPE_F32, 2, (const uint64_t[]){0, 8}, data, 0, &e));
        assert_fails(e, ERR_LIMIT, "empty", rig.ops->weight_bind(d, &v, 1, &w, &e));
        assert_ok(e,
            tensor_view_init(&v, DTYPE_F32, 3, (const uint64_t[]){MODEL_EXPERTS_MAX + 1, 1, 2}, data, sizeof data, &e));
        assert_fails(e, ERR_LIMIT, "experts", rig.ops->weight_bind(d, &v, 1, &w, &e));
        rig.ops->dev_close(d);
    }
}

/* Whatever worker meets them, the first is named; also in a matrix that is only looked up. */
static void values_that_are_not_finite_are_refused_and_the_first_is_named(void **state)
{
    (void)state;
    enum { ROWS = 300, N = 32 };
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 4, 1);
        static float data[2][ROWS][N];
        struct tensor_view v;
        struct error e;
        memset(data, 0, sizeof data);
        assert_ok(e, tensor_view_init(&v, DTYPE_F32, 3, (const uint64_t[]){2, ROWS, N}, data, sizeof data, &e));
        for (enum weight_use use = WEIGHT_PRODUCT; use <= WEIGHT_ROWS; use++) {
            struct weight w = {.use = use};
            assert_ok(e, rig.ops->weight_bind(d, &v, 1, &w, &e));
            rig.ops->weight_drop(d, &w);
            w.use = use;
            data[1][299][31] = INFINITY;
            assert_fails(e, ERR_FORMAT, "near element 19199", rig.ops->weight_bind(d, &v, 1, &w, &e));
            assert_null(w.packed);
            w.use = use;
            data[1][130][7] = NAN;
            assert_fails(e, ERR_FORMAT, "near element 13767", rig.ops->weight_bind(d, &v, 1, &w, &e));
            data[1][299][31] = data[1][130][7] = 0;
        }
        rig.ops->dev_close(d);
    }
}

static void memory_is_zeroed_aligned_and_moves_both_ways(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 1, 1);
        struct error e;
        void *p;
        char text[32] = {0};
        assert_ok(e, rig.ops->dev_alloc(d, 1000, &p, &e));
        assert_true((uintptr_t)p % 64 == 0);
        for (int i = 0; i < 1000; i++)
            assert_int_equal(((unsigned char *)p)[i], 0);
        rig.ops->dev_write(d, (char *)p + 500, "written", 8);
        rig.ops->dev_read(d, text, (char *)p + 500, 8);
        assert_string_equal(text, "written");
        assert_ok(e, rig.ops->dev_wait(d, &e));
        rig.ops->dev_free(d, p);
        rig.ops->dev_close(d);
    }
}

/* Everything that allocates, with allocation number n failing: a typed error or success, and no leak (the address
 * sanitizer sees those). */
static enum err make_all(const struct ops *ops, struct error *e)
{
    struct dev *d = NULL;
    struct acts *a = NULL;
    struct weight w = {0};
    void *p = NULL;
    static float data[2 * 64];
    struct tensor_view v = {
        .dtype = DTYPE_F32, .n_dims = 2, .shape = {2, 64, 1, 1}, .data = data, .bytes = sizeof data};
    enum err err = ops->dev_open(&(struct dev_options){.threads = 2, .rows_max = 4, .out_max = 4}, &d, e);
    if (err != OK)
        return err;
    err = ops->weight_bind(d, &v, 1, &w, e);
    if (err == OK)
        err = ops->acts_new(d, 4, 64, ACT_F32 | ACT_Q16, &a, e);
    if (err == OK)
        err = ops->dev_alloc(d, 100, &p, e);
    ops->dev_free(d, p);
    ops->acts_free(d, a);
    ops->weight_drop(d, &w);
    ops->dev_close(d);
    return err;
}

static void a_failing_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        uint32_t failed = 0;
        for (uint64_t n = 1;; n++) {
            struct error e = {0};
            fault_arm(FAULT_ALLOC, n, false);
            const enum err err = make_all(rig.ops, &e);
            const uint64_t calls = fault_calls(FAULT_ALLOC);
            fault_arm(FAULT_ALLOC, 0, false);
            if (calls < n) {
                assert_int_equal(err, OK);
                break;
            }
            assert_true(err == ERR_NOMEM || err == OK); /* a large slab that fails may be tried smaller */
            assert_true((err == OK) == (e.text[0] == '\0'));
            failed += err != OK;
        }
        assert_true(failed > 15);
    }
}

static void variants_are_found_by_name_and_the_best_is_one_of_them(void **state)
{
    (void)state;
    assert_non_null(cpu_ops_by_name("cpu-ref"));
    assert_null(cpu_ops_by_name("cpu-none"));
    bool found = false;
    for (uint32_t i = 0; cpu_ops_at(i) != NULL; i++)
        found = found || cpu_ops_at(i) == cpu_ops();
    assert_true(found);
}

static void ops_allocate_nothing(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 2, 8);
        struct matrix m;
        float x[8 * 64] = {0}, gain[64] = {0}, scratch[8 * 64], out[8 * 64];
        matrix_make(&m, &rig, d, DTYPE_Q8_0, 1, 64, 64, 1, false);
        struct acts *a = acts_make(&rig, d, 8, 64, ACT_F32 | ACT_Q16);
        const uint64_t before = mem_thread_allocs();
        rig.ops->norm(
            d, &(struct norm_args){
                   .x = x, .n_rows = 8, .n = 64, .gain = gain, .eps = 1e-5f, .forms = ACT_F32 | ACT_Q16, .out = a});
        rig.ops->project(
            d, &(struct batch){.n_rows = 8}, &(struct project_args){.in = a, .w = &m.w, .scratch = scratch, .x = x});
        rig.ops->logits(d, &(struct logits_args){.in = a, .n_rows = 8, .head = &m.w, .scale = 1.0f, .out = out});
        assert_int_equal(mem_thread_allocs(), before);
        rig.ops->acts_free(d, a);
        matrix_drop(&m, &rig, d);
        rig.ops->dev_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_dtype_of_the_tensor_room_is_bound_and_no_other),
        cmocka_unit_test(stacks_and_lists_of_matrices_bind_alike),
        cmocka_unit_test(impossible_shapes_are_refused),
        cmocka_unit_test(values_that_are_not_finite_are_refused_and_the_first_is_named),
        cmocka_unit_test(memory_is_zeroed_aligned_and_moves_both_ways),
        cmocka_unit_test(a_failing_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(variants_are_found_by_name_and_the_best_is_one_of_them),
        cmocka_unit_test(ops_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
