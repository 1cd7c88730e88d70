/* The search for NaN and infinity in tensors: every bit pattern of the short floats, every scale of every block type,
 * and the first bad place of several. */
#include "testing.h"

#include "tensor/finite.h"
#include "tensor/quant.h"

#include <math.h>

static bool is_finite(enum dtype dtype, const void *data, uint64_t n, uint64_t *bad)
{
    struct tensor_view v;
    struct error e;
    size_t bytes;
    assert_ok(e, dtype_bytes(dtype, n, &bytes, &e));
    assert_ok(e, tensor_view_init(&v, dtype, 1, &n, data, bytes, &e));
    return tensor_is_finite(&v, bad);
}

/* Each pattern of 8 or 16 bits alone in a row: found exactly when its value is not finite. */
static void every_pattern_of_the_short_floats_is_judged_by_its_value(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2};
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        const uint32_t bytes = dtype_info(types[t])->block_bytes;
        for (uint32_t pattern = 0; pattern < 1u << (8 * bytes); pattern++) {
            unsigned char row[3 * 2] = {0};
            float value;
            uint64_t bad = 7;
            memcpy(row + bytes, &pattern, bytes); /* the middle one; little endian */
            dtype_info(types[t])->dequant(row + bytes, &value, 1);
            const bool want = isfinite(value);
            assert_true(is_finite(types[t], row, 3, &bad) == want && (want || bad == 1));
        }
    }
}

static void f32_is_judged_by_its_exponent(void **state)
{
    (void)state;
    static const float good[] = {0.0f, -0.0f, 3.4028235e38f, -3.4028235e38f, 1e-45f};
    static const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY};
    float row[50];
    uint64_t bad;
    for (size_t i = 0; i < COUNT_OF(row); i++)
        row[i] = good[i % COUNT_OF(good)];
    assert_true(is_finite(DTYPE_F32, row, 50, &bad));
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const float was = row[i];
        row[i] = wrong[i % COUNT_OF(wrong)];
        assert_true(!is_finite(DTYPE_F32, row, 50, &bad) && bad == i);
        row[i] = was;
    }
    row[49] = row[30] = NAN;
    assert_true(!is_finite(DTYPE_F32, row, 50, &bad) && bad == 30);
    assert_true(is_finite(DTYPE_F32, row, 0, &bad));
}

/* For every type that can hold weights: a bad scale anywhere is found, and the dequantised block shows why. */
static void every_scale_of_every_block_type_is_looked_at(void **state)
{
    (void)state;
    static const uint16_t wrong[] = {0x7c00, 0xfc00, 0x7e00, 0xffff};
    for (enum dtype t = 0; t < DTYPE_COUNT; t++) {
        const struct dtype_info *info = dtype_info(t);
        if ((info->flags & DTYPE_IS_WEIGHT) == 0 || (info->flags & DTYPE_IS_QUANTISED) == 0 || t == DTYPE_MXFP4)
            continue;
        unsigned char blocks[3 * 256];
        uint32_t at[2];
        uint64_t bad;
        const uint32_t n = quant_scale_offsets(t, at);
        assert_true(n == 1 || n == 2);
        memset(blocks, 0x11, sizeof blocks);
        assert_true(is_finite(t, blocks, (uint64_t)3 * info->block_elems, &bad));
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t b = 0; b < 3; b++)
                for (size_t k = 0; k < COUNT_OF(wrong); k++) {
                    float x[256];
                    bool finite = true;
                    memset(blocks, 0x11, sizeof blocks);
                    memcpy(blocks + (size_t)b * info->block_bytes + at[i], &wrong[k], 2);
                    assert_false(is_finite(t, blocks, (uint64_t)3 * info->block_elems, &bad));
                    assert_int_equal(bad, (uint64_t)b * info->block_elems);
                    info->dequant(blocks + (size_t)b * info->block_bytes, x, info->block_elems);
                    for (uint32_t j = 0; j < info->block_elems; j++)
                        finite = finite && isfinite(x[j]);
                    assert_false(finite); /* so the offset is that of a scale */
                }
        if (n == 2) { /* the second scale is bad in an earlier block than the first */
            memset(blocks, 0x11, sizeof blocks);
            memcpy(blocks + 2 * (size_t)info->block_bytes + at[0], &wrong[2], 2);
            memcpy(blocks + info->block_bytes + at[1], &wrong[2], 2);
            assert_true(!is_finite(t, blocks, (uint64_t)3 * info->block_elems, &bad) && bad == info->block_elems);
        }
    }
}

static void mxfp4_is_judged_by_what_its_exponent_does_to_its_elements(void **state)
{
    (void)state;
    for (uint32_t e = 0; e < 256; e++)
        for (uint32_t q = 0; q < 16; q++) {
            struct block_mxfp4 b[2] = {{.e = 127}, {.e = (uint8_t)e}};
            float x[QK];
            bool finite = true;
            uint64_t bad;
            b[1].qs[9] = (uint8_t)(q << 4);
            dtype_info(DTYPE_MXFP4)->dequant(&b[1], x, QK);
            for (uint32_t i = 0; i < QK; i++)
                finite = finite && isfinite(x[i]);
            assert_true(is_finite(DTYPE_MXFP4, b, 2 * QK, &bad) == finite && (finite || bad == QK));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_of_the_short_floats_is_judged_by_its_value),
        cmocka_unit_test(f32_is_judged_by_its_exponent),
        cmocka_unit_test(every_scale_of_every_block_type_is_looked_at),
        cmocka_unit_test(mxfp4_is_judged_by_what_its_exponent_does_to_its_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
