/* The small blocks: 32 elements, one or two f16 each. Their quantisers are defined by the format's reference to the
 * last bit (one division by the extreme value, no search), so files made here equal files made elsewhere.
 *
 * In that definition the integers follow from the f32 scale, before it is rounded to f16. A scale so small that its
 * inverse is not finite counts as zero; the reference leaves that case undefined. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <math.h>

static float inverse_or_zero(float d)
{
    const float inverse = 1.0f / d;
    return isfinite(inverse) ? inverse : 0.0f;
}

/* The element of largest size, with its sign; the first of equals. */
static float signed_max(const float *x)
{
    float best = x[0];
    for (int i = 1; i < QK; i++)
        best = fabsf(x[i]) > fabsf(best) ? x[i] : best;
    return best;
}

static void min_max(const float *x, float *min, float *max)
{
    *min = *max = x[0];
    for (int i = 1; i < QK; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

/* v is at least 0 but for the last bit of rounding; cut, not rounded: callers add the half themselves. */
static uint8_t cut(float v, int q_max)
{
    const int q = (int)v;
    return (uint8_t)(q < 0 ? 0 : q > q_max ? q_max : q);
}

static void pack_nibbles(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < QK / 2; i++)
        qs[i] = (uint8_t)((q[i] & 0x0f) | q[i + QK / 2] << 4);
}

static uint32_t pack_fifth_bits(const uint8_t *q)
{
    uint32_t qh = 0;
    for (int i = 0; i < QK; i++)
        qh |= (uint32_t)(q[i] >> 4) << i;
    return qh;
}

/* q = the 4-bit or 5-bit numbers of a block with a symmetric range; returns the f32 scale. */
static float quant_symmetric(const float *x, int half, uint8_t *q)
{
    const float d = signed_max(x) / (float)-half;
    const float inverse = inverse_or_zero(d);
    for (int i = 0; i < QK; i++)
        q[i] = cut(x[i] * inverse + ((float)half + 0.5f), 2 * half - 1);
    return d;
}

/* The same between the smallest and the largest element. */
static float quant_between(const float *x, int q_max, uint8_t *q, float *min)
{
    float max;
    min_max(x, min, &max);
    const float d = (max - *min) / (float)q_max;
    const float inverse = inverse_or_zero(d);
    for (int i = 0; i < QK; i++)
        q[i] = cut((x[i] - *min) * inverse + 0.5f, q_max);
    return d;
}

void q4_0_quant(const float *src, void *dst, size_t n)
{
    struct block_q4_0 *b = dst;
    uint8_t q[QK];
    for (size_t i = 0; i < n; i += QK, b++) {
        b->d = f16_from_f32(quant_symmetric(src + i, 8, q));
        pack_nibbles(q, b->qs);
    }
}

void q4_1_quant(const float *src, void *dst, size_t n)
{
    struct block_q4_1 *b = dst;
    uint8_t q[QK];
    for (size_t i = 0; i < n; i += QK, b++) {
        float min;
        b->d = f16_from_f32(quant_between(src + i, 15, q, &min));
        b->m = f16_from_f32(min);
        pack_nibbles(q, b->qs);
    }
}

void q5_0_quant(const float *src, void *dst, size_t n)
{
    struct block_q5_0 *b = dst;
    uint8_t q[QK];
    for (size_t i = 0; i < n; i += QK, b++) {
        b->d = f16_from_f32(quant_symmetric(src + i, 16, q));
        b->qh = pack_fifth_bits(q);
        pack_nibbles(q, b->qs);
    }
}

void q5_1_quant(const float *src, void *dst, size_t n)
{
    struct block_q5_1 *b = dst;
    uint8_t q[QK];
    for (size_t i = 0; i < n; i += QK, b++) {
        float min;
        b->d = f16_from_f32(quant_between(src + i, 31, q, &min));
        b->m = f16_from_f32(min);
        b->qh = pack_fifth_bits(q);
        pack_nibbles(q, b->qs);
    }
}

/* Ties away from zero here: so the reference has it. */
void q8_0_quant(const float *src, void *dst, size_t n)
{
    struct block_q8_0 *b = dst;
    for (size_t i = 0; i < n; i += QK, b++) {
        const float d = fabsf(signed_max(src + i)) / 127.0f;
        const float inverse = inverse_or_zero(d);
        b->d = f16_from_f32(d);
        for (int j = 0; j < QK; j++)
            b->qs[j] = (int8_t)roundf(src[i + (size_t)j] * inverse);
    }
}

void q4_0_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q4_0 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK) {
        const float d = f16_to_f32(b->d);
        for (int j = 0; j < QK / 2; j++) {
            dst[j] = d * (float)((b->qs[j] & 0x0f) - 8);
            dst[j + QK / 2] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void q4_1_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q4_1 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK) {
        const float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
        for (int j = 0; j < QK / 2; j++) {
            dst[j] = d * (float)(b->qs[j] & 0x0f) + m;
            dst[j + QK / 2] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

/* Bit i of a word as a mask from a table: SSE2 cannot shift each lane by its own count. */
#define BITS_4(i) 1u << (i), 2u << (i), 4u << (i), 8u << (i)
static const uint32_t bit_of[QK] = {
    BITS_4(0), BITS_4(4), BITS_4(8), BITS_4(12), BITS_4(16), BITS_4(20), BITS_4(24), BITS_4(28)};

static inline uint32_t fifth_bit(uint32_t qh, int i)
{
    return (qh & bit_of[i]) == bit_of[i] ? 16u : 0u;
}

void q5_0_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q5_0 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK) {
        const float d = f16_to_f32(b->d);
        const uint32_t qh = b->qh;
        for (int j = 0; j < QK / 2; j++) {
            dst[j] = d * (float)(int)(((b->qs[j] & 0x0fu) | fifth_bit(qh, j)) - 16u);
            dst[j + QK / 2] = d * (float)(int)((b->qs[j] >> 4 | fifth_bit(qh, j + QK / 2)) - 16u);
        }
    }
}

void q5_1_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q5_1 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK) {
        const float d = f16_to_f32(b->d), m = f16_to_f32(b->m);
        const uint32_t qh = b->qh;
        for (int j = 0; j < QK / 2; j++) {
            dst[j] = d * (float)(int)((b->qs[j] & 0x0fu) | fifth_bit(qh, j)) + m;
            dst[j + QK / 2] = d * (float)(int)(b->qs[j] >> 4 | fifth_bit(qh, j + QK / 2)) + m;
        }
    }
}

void q8_0_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q8_0 *b = src;
    for (size_t i = 0; i < n; i += QK, b++, dst += QK) {
        const float d = f16_to_f32(b->d);
        for (int j = 0; j < QK; j++)
            dst[j] = (float)b->qs[j] * d;
    }
}
