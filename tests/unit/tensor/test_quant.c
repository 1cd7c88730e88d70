/* Conversions of rows: hand-made blocks, refusals, edges, and the promise that the same floats give the same bytes on
 * every compiler. The comparison with independent implementations is in tests/py/test_tensor_*.py. */
#include "testing.h"

#include "base/hash.h"
#include "tensor/float_convert.h"
#include "tensor/quant.h"
#include "tensor/tensor.h"

#include <math.h>

#define ROW        1024
#define ROW_BYTES  (4 * ROW + 64)
#define F16_HALF   0x3800
#define F16_ONE    0x3c00
#define F16_TWO    0x4000
#define BLOCK_FILL 0xa5

static void read_row(enum dtype dtype, const void *src, float *dst, size_t n)
{
    struct error err;
    assert_ok(err, dequant_row(dtype, src, dst, n, &err));
}

/* Numbers from a seed, near normal, made of exact operations only: sums of four 16-bit integers, times a power of 2. */
static void fill_row(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        int32_t sum = -4 * 32768;
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (int32_t)(seed >> 16);
        }
        x[i] = (float)sum * (i / 256 % 2 == 0 ? 0x1p-20f : 0x1p-17f);
    }
}

static void small_blocks_read_as_worked_out_by_hand(void **state)
{
    (void)state;
    float y[QK];
    struct block_q4_0 q4_0 = {.d = F16_HALF};
    q4_0.qs[0] = 0xf1; /* element 0: 1, element 16: 15 */
    read_row(DTYPE_Q4_0, &q4_0, y, QK);
    assert_true(y[0] == 0.5f * (1 - 8) && y[16] == 0.5f * (15 - 8) && y[1] == -4.0f && y[31] == -4.0f);

    struct block_q5_1 q5_1 = {.d = F16_TWO, .m = F16_ONE, .qh = 1u << 3 | 1u << 31};
    q5_1.qs[3] = 0x20;
    read_row(DTYPE_Q5_1, &q5_1, y, QK);
    assert_true(y[3] == 2.0f * 16 + 1 && y[19] == 2.0f * 2 + 1 && y[31] == 33.0f && y[0] == 1.0f);

    struct block_q8_0 q8_0 = {.d = F16_TWO, .qs = {[0] = -128, [31] = 127}};
    read_row(DTYPE_Q8_0, &q8_0, y, QK);
    assert_true(y[0] == -256.0f && y[31] == 254.0f && y[7] == 0.0f);

    struct block_mxfp4 mx = {.e = 128}; /* 2^0 over doubled values */
    mx.qs[5] = 0xf7;
    read_row(DTYPE_MXFP4, &mx, y, QK);
    assert_true(y[5] == 12.0f && y[21] == -12.0f && y[0] == 0.0f);
}

static void super_blocks_read_as_worked_out_by_hand(void **state)
{
    (void)state;
    float y[QK_K];
    struct block_q4_k q4 = {.d = F16_ONE, .dmin = F16_ONE};
    q4.scales[1] = 5;          /* sc of sub-block 1 */
    q4.scales[5] = 3;          /* its min */
    q4.scales[2] = 2 << 6;     /* high bits of the sc of sub-block 6 */
    q4.scales[10] = 0x07;      /* its low bits: 0x27 */
    q4.qs[0] = 0xb0;           /* element 32 */
    q4.qs[32 * 3 + 31] = 0x09; /* element 6 * 32 + 31 */
    read_row(DTYPE_Q4_K, &q4, y, QK_K);
    assert_true(y[32] == 5.0f * 11 - 3 && y[33] == -3.0f && y[6 * 32 + 31] == 39.0f * 9 && y[0] == 0.0f);

    struct block_q6_k q6 = {.d = F16_HALF, .scales = {[0] = 2, [9] = -4}};
    q6.ql[0] = 0x0f; /* element 0: 15 | 3 << 4 */
    q6.qh[0] = 0x03;
    q6.ql[64 + 16] = 0x01; /* element 144, of sub-block 9 */
    read_row(DTYPE_Q6_K, &q6, y, QK_K);
    assert_true(y[0] == 1.0f * (63 - 32) && y[1] == -32.0f && y[144] == -2.0f * (1 - 32) && y[64] == 0.0f);

    struct block_q8_k q8 = {.d = 0.25f, .qs = {[255] = -127}};
    read_row(DTYPE_Q8_K, &q8, y, QK_K);
    assert_true(y[255] == -31.75f && y[0] == 0.0f);
}

static void quant_of_zeros_reads_back_as_zeros_in_every_dtype(void **state)
{
    (void)state;
    struct error err;
    static const float zeros[ROW];
    static unsigned char bytes[ROW_BYTES];
    static float back[ROW];
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_info((enum dtype)i)->quant == NULL)
            continue;
        memset(bytes, BLOCK_FILL, sizeof bytes);
        assert_ok(err, quant_row((enum dtype)i, zeros, bytes, ROW, &err));
        read_row((enum dtype)i, bytes, back, ROW);
        for (size_t k = 0; k < ROW; k++)
            assert_true(back[k] == 0.0f);
    }
}

static void rows_are_written_whole_and_not_beyond(void **state)
{
    (void)state;
    struct error err;
    static float x[ROW], back[ROW + 1];
    static unsigned char bytes[ROW_BYTES];
    fill_row(x, ROW, 3);
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        if (info->quant == NULL)
            continue;
        size_t n;
        assert_ok(err, dtype_bytes((enum dtype)i, ROW, &n, &err));
        memset(bytes, BLOCK_FILL, sizeof bytes);
        assert_ok(err, quant_row((enum dtype)i, x, bytes + 1, ROW, &err)); /* odd address on purpose */
        assert_int_equal(bytes[0], BLOCK_FILL);
        assert_int_equal(bytes[1 + n], BLOCK_FILL);
        back[ROW] = 77.0f;
        read_row((enum dtype)i, bytes + 1, back, ROW);
        assert_true(back[ROW] == 77.0f);
    }
}

static void empty_rows_are_fine(void **state)
{
    (void)state;
    struct error err;
    assert_ok(err, dequant_row(DTYPE_Q4_K, NULL, NULL, 0, &err));
    assert_ok(err, quant_row(DTYPE_F32, NULL, NULL, 0, &err));
}

static void partial_blocks_and_described_dtypes_are_refused(void **state)
{
    (void)state;
    struct error err;
    float x[QK_K] = {0};
    unsigned char bytes[1024];
    assert_fails(err, ERR_INVALID, "31", quant_row(DTYPE_Q4_0, x, bytes, 31, &err));
    assert_fails(err, ERR_INVALID, "Q6_K", dequant_row(DTYPE_Q6_K, bytes, x, 255, &err));
    assert_fails(err, ERR_UNSUPPORTED, "IQ2_XXS", dequant_row(DTYPE_IQ2_XXS, bytes, x, 256, &err));
    assert_fails(err, ERR_UNSUPPORTED, "I64", quant_row(DTYPE_I64, x, bytes, 1, &err));
}

static void values_no_block_can_hold_are_refused_before_writing(void **state)
{
    (void)state;
    struct error err;
    float x[QK_K] = {0};
    unsigned char bytes[1024];
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (dtype_info((enum dtype)i)->quant_max == 0)
            continue;
        for (size_t k = 0; k < COUNT_OF(bad); k++) {
            memset(bytes, BLOCK_FILL, sizeof bytes);
            x[200] = bad[k];
            assert_fails(err, ERR_INVALID, "element 200", quant_row((enum dtype)i, x, bytes, QK_K, &err));
            assert_int_equal(bytes[0], BLOCK_FILL);
        }
    }
    x[200] = 65505.0f;
    assert_fails(err, ERR_INVALID, "65504", quant_row(DTYPE_Q4_K, x, bytes, QK_K, &err));
    x[200] = 3e38f; /* Q8_K and MXFP4 have wide scales */
    assert_ok(err, quant_row(DTYPE_Q8_K, x, bytes, QK_K, &err));
    assert_ok(err, quant_row(DTYPE_MXFP4, x, bytes, QK_K, &err));
}

static void subnormal_values_give_defined_blocks(void **state)
{
    (void)state;
    struct error err;
    float x[QK_K], back[QK_K];
    unsigned char bytes[1024];
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const struct dtype_info *info = dtype_info((enum dtype)i);
        if (info->quant == NULL)
            continue;
        for (uint32_t shift = 0; shift < 23; shift++) {
            for (size_t k = 0; k < QK_K; k++)
                x[k] = f32_of_bits((k % 3 == 0 ? 0x80000000u : 0u) | (uint32_t)(k % 7) << shift);
            assert_ok(err, quant_row((enum dtype)i, x, bytes, QK_K, &err));
            read_row((enum dtype)i, bytes, back, QK_K);
            for (size_t k = 0; k < QK_K; k++)
                assert_true(fabsf(back[k]) < 0x1p-120f);
        }
    }
}

/* A change of these numbers means that files quantised by this version differ from those of the last: be sure it is
 * meant. Sums of the bytes of fill_row(…, 1), 64 Ki elements. */
static void quantised_bytes_are_the_same_on_every_compiler(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype;
        uint64_t hash;
    } rows[] = {
        {DTYPE_F16, 0xd8d0f3ea44153351},
        {DTYPE_BF16, 0x65278786216c50a4},
        {DTYPE_F8_E4M3, 0xa32aa94212d307c2},
        {DTYPE_F8_E5M2, 0x4ae5b7cf6adeeeed},
        {DTYPE_I8, 0x589e0872fd8a5010},
        {DTYPE_Q4_0, 0xff709e491f3b3b05},
        {DTYPE_Q4_1, 0xc0e612f2e001351b},
        {DTYPE_Q5_0, 0x2f9ff88cf1b6bd0e},
        {DTYPE_Q5_1, 0x5de908887ca2921f},
        {DTYPE_Q8_0, 0x97e2c278e587b8c8},
        {DTYPE_Q2_K, 0x84f6d5c5d7df083c},
        {DTYPE_Q3_K, 0x6cb53ea8bbb70fa8},
        {DTYPE_Q4_K, 0x5c8cabeff0785cc0},
        {DTYPE_Q5_K, 0x277802c77f090b28},
        {DTYPE_Q6_K, 0x4e658fcfff4b75ba},
        {DTYPE_Q8_K, 0x83baedddf53c4019},
        {DTYPE_IQ4_NL, 0x051b4547b492b277},
        {DTYPE_IQ4_XS, 0x967fa04d07c11605},
        {DTYPE_MXFP4, 0xdc5f8c0ebe797edb},
    };
    enum { N = 64 * 1024 };
    static float x[N];
    static unsigned char bytes[4 * N];
    struct error err;
    fill_row(x, N, 1);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        size_t n;
        assert_ok(err, dtype_bytes(rows[i].dtype, N, &n, &err));
        assert_ok(err, quant_row(rows[i].dtype, x, bytes, N, &err));
        const uint64_t got = hash64(bytes, n, 0);
        if (got != rows[i].hash)
            fail_msg("%s: bytes hash to 0x%016llx", dtype_name(rows[i].dtype), (unsigned long long)got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_blocks_read_as_worked_out_by_hand),
        cmocka_unit_test(super_blocks_read_as_worked_out_by_hand),
        cmocka_unit_test(quant_of_zeros_reads_back_as_zeros_in_every_dtype),
        cmocka_unit_test(rows_are_written_whole_and_not_beyond),
        cmocka_unit_test(empty_rows_are_fine),
        cmocka_unit_test(partial_blocks_and_described_dtypes_are_refused),
        cmocka_unit_test(values_no_block_can_hold_are_refused_before_writing),
        cmocka_unit_test(subnormal_values_give_defined_blocks),
        cmocka_unit_test(quantised_bytes_are_the_same_on_every_compiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
