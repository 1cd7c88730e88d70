/* Blocks whose integers are indices: IQ4_NL and IQ4_XS share a list spaced like the values of trained weights, MXFP4
 * has the sixteen numbers of a 4-bit float.
 *
 * MXFP4 is quantised as its specification says: the shared exponent is the one of the largest element less two, and
 * each element takes the nearest number, the lower index on a tie. The exponent is read from the bits, so it is the
 * exact floor of the logarithm; code that takes a rounded logarithm differs in the last bits below a power of two. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <math.h>
#include <string.h>

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static const struct signed_shape iq4_nl_shape = {
    .n_elems = QK, .sub_elems = QK, .sc_max = 1, .v_min = -127, .v_max = 113, .values = iq4_values};
static const struct signed_shape iq4_xs_shape = {
    .n_elems = QK_K, .sub_elems = QK, .sc_max = 32, .v_min = -127, .v_max = 113, .values = iq4_values};

static inline void dequant_indexed(const uint8_t *qs, const int8_t *values, float d, float *restrict dst)
{
    for (int j = 0; j < QK / 2; j++) {
        dst[j] = d * (float)values[qs[j] & 0x0f];
        dst[j + QK / 2] = d * (float)values[qs[j] >> 4];
    }
}

void iq4_nl_dequant(const void *src, float *dst, size_t n)
{
    const struct block_iq4_nl *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK)
        dequant_indexed(b->qs, iq4_values, f16_to_f32(b->d), dst);
}

void iq4_xs_dequant(const void *src, float *dst, size_t n)
{
    const struct block_iq4_xs *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (size_t j = 0; j < 8; j++, dst += QK) {
            const int low = b->scales_l[j / 2] >> (4 * (j % 2)) & 0x0f;
            const int high = b->scales_h >> (2 * j) & 3;
            dequant_indexed(b->qs + 16 * j, iq4_values, d * (float)((low | high << 4) - 32), dst);
        }
    }
}

void mxfp4_dequant(const void *src, float *dst, size_t n)
{
    const struct block_mxfp4 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK)
        dequant_indexed(b->qs, mxfp4_values, e8m0_half_to_f32(b->e), dst);
}

/* The index of a value that is in the list. */
static uint8_t iq4_index(int8_t v)
{
    int index = 0;
    for (int j = 1; j < 16; j++)
        index += v >= iq4_values[j];
    return (uint8_t)index;
}

static void iq4_pack(const int8_t *v, uint8_t *qs)
{
    for (int j = 0; j < QK / 2; j++)
        qs[j] = (uint8_t)(iq4_index(v[j]) | iq4_index(v[j + QK / 2]) << 4);
}

void iq4_nl_quant(const float *src, void *dst, size_t n)
{
    struct block_iq4_nl *b = dst;
    struct signed_block a;
    for (size_t i = 0; i < n; i += QK, b++) {
        fit_signed_block(&iq4_nl_shape, src + i, &a);
        b->d = a.d;
        iq4_pack(a.v, b->qs);
    }
}

void iq4_xs_quant(const float *src, void *dst, size_t n)
{
    struct block_iq4_xs *b = dst;
    struct signed_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_signed_block(&iq4_xs_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        for (size_t j = 0; j < 8; j++) {
            const int sc = a.sc[j] + 32;
            b->scales_l[j / 2] |= (uint8_t)((sc & 0x0f) << (4 * (j % 2)));
            b->scales_h = (uint16_t)(b->scales_h | sc >> 4 << (2 * j));
            iq4_pack(a.v + QK * j, b->qs + 16 * j);
        }
    }
}

static uint8_t mxfp4_nearest(float x, float d)
{
    int best = 0;
    float best_err = fabsf(d * (float)mxfp4_values[0] - x);
    for (int j = 1; j < 16; j++) {
        const float err = fabsf(d * (float)mxfp4_values[j] - x);
        best = err < best_err ? j : best;
        best_err = err < best_err ? err : best_err;
    }
    return (uint8_t)best;
}

void mxfp4_quant(const float *src, void *dst, size_t n)
{
    struct block_mxfp4 *b = dst;
    for (size_t i = 0; i < n; i += QK, b++, src += QK) {
        float max = 0.0f;
        for (int j = 0; j < QK; j++)
            max = fabsf(src[j]) > max ? fabsf(src[j]) : max;
        const int e = (int)(f32_bits(max) >> 23) - 2; /* both exponents count from 127; subnormals end below zero */
        b->e = (uint8_t)(e > 0 ? e : 0);
        const float d = e8m0_half_to_f32(b->e);
        for (int j = 0; j < QK / 2; j++)
            b->qs[j] = (uint8_t)(mxfp4_nearest(src[j], d) | mxfp4_nearest(src[j + QK / 2], d) << 4);
    }
}
