/* The table of dtypes, sizes and views: numbers that come from untrusted files end here. */
#include "testing.h"

#include "tensor/tensor.h"

#include <ctype.h>

static void dtype_table_has_a_complete_row_for_every_dtype(void **state)
{
    (void)state;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        assert_non_null(info->name);
        assert_true(info->block_elems >= 1);
        assert_true(info->block_bytes >= 1);
        assert_int_equal(info->dequant == NULL, info->quant == NULL);
        if (info->flags & DTYPE_IS_WEIGHT)
            assert_non_null(info->dequant);
        assert_int_equal((info->flags & DTYPE_IS_QUANTISED) != 0, info->block_elems > 1);
        if (info->quant != NULL)
            assert_int_equal(info->quant_max > 0, info->block_elems > 1);
    }
}

static void dtype_by_name_finds_every_name_in_either_case_and_no_other(void **state)
{
    (void)state;
    struct error err;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        enum dtype got = DTYPE_COUNT;
        assert_ok(err, dtype_by_name(str_of(dtype_name((enum dtype)i)), &got, &err));
        assert_int_equal(got, i);
        char lower[32];
        size_t n = 0;
        for (const char *p = dtype_name((enum dtype)i); *p != '\0'; p++)
            lower[n++] = (char)tolower((unsigned char)*p);
        got = DTYPE_COUNT;
        assert_ok(err, dtype_by_name((struct str){lower, n}, &got, &err));
        assert_int_equal(got, i);
    }
    enum dtype got;
    assert_fails(err, ERR_NOT_FOUND, "q4", dtype_by_name(STR("q4"), &got, &err));
    assert_fails(err, ERR_NOT_FOUND, "Q4_KX", dtype_by_name(STR("Q4_KX"), &got, &err));
    assert_fails(err, ERR_NOT_FOUND, "''", dtype_by_name(STR(""), &got, &err));
    assert_fails(err, ERR_NOT_FOUND, "\\x01", dtype_by_name(STR("\x01"), &got, &err));
}

static void dtype_bytes_counts_whole_blocks(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        uint64_t n;
        size_t bytes;
    } rows[] = {{DTYPE_F32, 3, 12}, {DTYPE_F16, 3, 6}, {DTYPE_BF16, 1, 2}, {DTYPE_F8_E4M3, 7, 7}, {DTYPE_I8, 5, 5},
        {DTYPE_BOOL, 5, 5}, {DTYPE_I64, 2, 16}, {DTYPE_Q4_0, 64, 36}, {DTYPE_Q4_1, 32, 20}, {DTYPE_Q5_0, 32, 22},
        {DTYPE_Q5_1, 32, 24}, {DTYPE_Q8_0, 4096, 4352}, {DTYPE_Q2_K, 256, 84}, {DTYPE_Q3_K, 256, 110},
        {DTYPE_Q4_K, 512, 288}, {DTYPE_Q5_K, 256, 176}, {DTYPE_Q6_K, 256, 210}, {DTYPE_Q8_K, 256, 292},
        {DTYPE_IQ4_NL, 32, 18}, {DTYPE_IQ4_XS, 256, 136}, {DTYPE_MXFP4, 32, 17}, {DTYPE_Q4_K, 0, 0}};
    struct error err;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t bytes = 1;
        assert_ok(err, dtype_bytes(rows[i].dtype, rows[i].n, &bytes, &err));
        assert_int_equal(bytes, rows[i].bytes);
    }
}

static void dtype_bytes_refuses_partial_blocks(void **state)
{
    (void)state;
    struct error err;
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        if (info->block_elems == 1)
            continue;
        size_t bytes;
        assert_fails(err, ERR_FORMAT, info->name, dtype_bytes((enum dtype)i, 1, &bytes, &err));
        assert_fails(err, ERR_FORMAT, "whole blocks", dtype_bytes((enum dtype)i, info->block_elems - 1u, &bytes, &err));
        assert_fails(err, ERR_FORMAT, "whole blocks", dtype_bytes((enum dtype)i, info->block_elems + 1u, &bytes, &err));
    }
}

static void dtype_bytes_refuses_what_overflows_and_takes_the_largest_that_does_not(void **state)
{
    (void)state;
    struct error err;
    size_t bytes;
    assert_ok(err, dtype_bytes(DTYPE_F32, UINT64_MAX / 4, &bytes, &err));
    assert_true(bytes == UINT64_MAX / 4 * 4);
    assert_fails(err, ERR_FORMAT, "more bytes", dtype_bytes(DTYPE_F32, UINT64_MAX / 4 + 1, &bytes, &err));
    assert_fails(err, ERR_FORMAT, "more bytes", dtype_bytes(DTYPE_F64, UINT64_MAX, &bytes, &err));
    /* Q8_0 is 34 bytes for 32 elements: larger than its element count */
    assert_fails(err, ERR_FORMAT, "more bytes", dtype_bytes(DTYPE_Q8_0, UINT64_MAX - 31, &bytes, &err));
    assert_ok(err, dtype_bytes(DTYPE_Q4_K, UINT64_MAX - 255, &bytes, &err));
    assert_true(bytes == (UINT64_MAX / 256) * 144);
}

static void tensor_shape_bytes_multiplies_dimensions(void **state)
{
    (void)state;
    struct error err;
    size_t bytes;
    assert_ok(err, tensor_shape_bytes(DTYPE_F32, 0, NULL, &bytes, &err));
    assert_int_equal(bytes, 4);
    assert_ok(err, tensor_shape_bytes(DTYPE_Q4_0, 2, (const uint64_t[]){3, 64}, &bytes, &err));
    assert_int_equal(bytes, 3 * 36);
    assert_ok(err, tensor_shape_bytes(DTYPE_F16, 3, (const uint64_t[]){5, 0, 7}, &bytes, &err));
    assert_int_equal(bytes, 0);
    const uint64_t ones[TENSOR_DIMS_MAX] = {1, 1, 1, 1, 1, 1, 1, 9};
    assert_ok(err, tensor_shape_bytes(DTYPE_U8, TENSOR_DIMS_MAX, ones, &bytes, &err));
    assert_int_equal(bytes, 9);
}

static void tensor_shape_bytes_refuses_rows_of_partial_blocks_even_when_the_whole_divides(void **state)
{
    (void)state;
    struct error err;
    size_t bytes;
    assert_fails(
        err, ERR_FORMAT, "dimension 1", tensor_shape_bytes(DTYPE_Q4_0, 2, (const uint64_t[]){32, 16}, &bytes, &err));
    assert_fails(err, ERR_FORMAT, "dimension 0", tensor_shape_bytes(DTYPE_Q4_0, 0, NULL, &bytes, &err));
}

static void tensor_shape_bytes_refuses_overflow_and_too_many_dimensions(void **state)
{
    (void)state;
    struct error err;
    size_t bytes;
    const uint64_t big = (uint64_t)1 << 33;
    assert_fails(
        err, ERR_FORMAT, "dimension 1", tensor_shape_bytes(DTYPE_I8, 2, (const uint64_t[]){big, big}, &bytes, &err));
    /* an overflow is not hidden by a zero beside it, whatever the order */
    assert_fails(
        err, ERR_FORMAT, "dimension 2", tensor_shape_bytes(DTYPE_I8, 3, (const uint64_t[]){0, big, big}, &bytes, &err));
    assert_fails(
        err, ERR_FORMAT, "dimension 1", tensor_shape_bytes(DTYPE_I8, 3, (const uint64_t[]){big, big, 0}, &bytes, &err));
    assert_fails(err, ERR_FORMAT, "more bytes",
        tensor_shape_bytes(DTYPE_F32, 2, (const uint64_t[]){big, (uint64_t)1 << 30}, &bytes, &err));
    const uint64_t shape[TENSOR_DIMS_MAX + 1] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_fails(
        err, ERR_LIMIT, "9 dimensions", tensor_shape_bytes(DTYPE_F32, TENSOR_DIMS_MAX + 1, shape, &bytes, &err));
}

static void tensor_view_knows_its_rows(void **state)
{
    (void)state;
    struct error err;
    static const unsigned char data[2 * 3 * 288];
    struct tensor_view v;
    const uint64_t shape[] = {2, 3, 512};
    assert_ok(err, tensor_view_init(&v, DTYPE_Q4_K, 3, shape, data, sizeof data, &err));
    assert_int_equal(tensor_n_elems(&v), 2 * 3 * 512);
    assert_int_equal(tensor_n_rows(&v), 6);
    assert_int_equal(tensor_row_elems(&v), 512);
    assert_int_equal(tensor_row_bytes(&v), 288);
    assert_ptr_equal(tensor_row(&v, 0), data);
    assert_ptr_equal(tensor_row(&v, 5), data + 5 * 288);
    assert_int_equal(v.shape[2], 512);
    assert_int_equal(v.shape[3], 1);
    assert_int_equal(v.shape[TENSOR_DIMS_MAX - 1], 1);

    assert_ok(err, tensor_view_init(&v, DTYPE_F32, 0, NULL, data, 4, &err));
    assert_int_equal(tensor_n_elems(&v), 1);
    assert_int_equal(tensor_n_rows(&v), 1);
    assert_int_equal(tensor_row_bytes(&v), 4);

    assert_ok(err, tensor_view_init(&v, DTYPE_F32, 2, (const uint64_t[]){0, 5}, data, 0, &err));
    assert_int_equal(tensor_n_elems(&v), 0);
    assert_int_equal(tensor_n_rows(&v), 0);
}

static void tensor_view_refuses_bytes_that_are_not_the_shape(void **state)
{
    (void)state;
    struct error err;
    static const unsigned char data[64];
    struct tensor_view v;
    assert_fails(err, ERR_FORMAT, "needs 24 bytes",
        tensor_view_init(&v, DTYPE_F32, 2, (const uint64_t[]){2, 3}, data, 23, &err));
    assert_fails(
        err, ERR_FORMAT, "are 25", tensor_view_init(&v, DTYPE_F32, 2, (const uint64_t[]){2, 3}, data, 25, &err));
    assert_fails(
        err, ERR_FORMAT, "whole blocks", tensor_view_init(&v, DTYPE_Q8_0, 1, (const uint64_t[]){33}, data, 34, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_table_has_a_complete_row_for_every_dtype),
        cmocka_unit_test(dtype_by_name_finds_every_name_in_either_case_and_no_other),
        cmocka_unit_test(dtype_bytes_counts_whole_blocks),
        cmocka_unit_test(dtype_bytes_refuses_partial_blocks),
        cmocka_unit_test(dtype_bytes_refuses_what_overflows_and_takes_the_largest_that_does_not),
        cmocka_unit_test(tensor_shape_bytes_multiplies_dimensions),
        cmocka_unit_test(tensor_shape_bytes_refuses_rows_of_partial_blocks_even_when_the_whole_divides),
        cmocka_unit_test(tensor_shape_bytes_refuses_overflow_and_too_many_dimensions),
        cmocka_unit_test(tensor_view_knows_its_rows),
        cmocka_unit_test(tensor_view_refuses_bytes_that_are_not_the_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
