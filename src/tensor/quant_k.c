/* K-quantised super-blocks to f32. The packing is described at the structs in quant.h; the quantisers are in
 * quant_k_pack.c.
 *
 * Every sub-block's scale is made once in f32 (d times a small integer, one rounding), then each element takes one
 * multiplication and, where there is a min, one subtraction. Inner loops have a constant count and no branches. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

/* Sub-block j of the 12 bytes that hold 8 six-bit scales and 8 six-bit mins: the first four of each lie in the low six
 * bits of bytes 0-3 and 4-7; the last four have their low nibbles in bytes 8-11 and their high pairs in the two bits
 * that the first eight bytes leave free. */
static inline void scale_min_unpack(const uint8_t *s, size_t j, int *sc, int *mn)
{
    if (j < 4) {
        *sc = s[j] & 0x3f;
        *mn = s[j + 4] & 0x3f;
    } else {
        *sc = (s[j + 4] & 0x0f) | (s[j - 4] >> 6) << 4;
        *mn = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

void q2_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q2_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
        for (size_t j = 0; j < 16; j++, dst += 16) {
            const uint8_t *q = b->qs + 32 * (j / 8) + 16 * (j % 2);
            const size_t shift = 2 * (j / 2 % 4);
            const float dl = d * (float)(b->scales[j] & 0x0f);
            const float ml = dmin * (float)(b->scales[j] >> 4);
            for (int k = 0; k < 16; k++)
                dst[k] = dl * (float)(q[k] >> shift & 3) - ml;
        }
    }
}

void q3_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q3_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (size_t j = 0; j < 16; j++, dst += 16) {
            const uint8_t *q = b->qs + 32 * (j / 8) + 16 * (j % 2);
            const uint8_t *h = b->hmask + 16 * (j % 2);
            const size_t shift = 2 * (j / 2 % 4), bit = j / 2;
            const int low = b->scales[j % 8] >> (4 * (j / 8)) & 0x0f;
            const int high = b->scales[8 + j % 4] >> (2 * (j / 4)) & 3;
            const float dl = d * (float)((low | high << 4) - 32);
            for (int k = 0; k < 16; k++)
                dst[k] = dl * (float)((q[k] >> shift & 3) + 4 * (h[k] >> bit & 1) - 4);
        }
    }
}

void q4_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q4_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
        for (size_t j = 0; j < 8; j++, dst += 32) {
            const uint8_t *q = b->qs + 32 * (j / 2);
            const size_t shift = 4 * (j % 2);
            int sc, mn;
            scale_min_unpack(b->scales, j, &sc, &mn);
            const float dl = d * (float)sc, ml = dmin * (float)mn;
            for (int k = 0; k < 32; k++)
                dst[k] = dl * (float)(q[k] >> shift & 0x0f) - ml;
        }
    }
}

void q5_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q5_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
        for (size_t j = 0; j < 8; j++, dst += 32) {
            const uint8_t *q = b->qs + 32 * (j / 2), *h = b->qh;
            const size_t shift = 4 * (j % 2);
            int sc, mn;
            scale_min_unpack(b->scales, j, &sc, &mn);
            const float dl = d * (float)sc, ml = dmin * (float)mn;
            for (int k = 0; k < 32; k++)
                dst[k] = dl * (float)((q[k] >> shift & 0x0f) | (h[k] >> j & 1) << 4) - ml;
        }
    }
}

void q6_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q6_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (size_t j = 0; j < 16; j++, dst += 16) {
            const uint8_t *l = b->ql + 64 * (j / 8) + 16 * (j % 4);
            const uint8_t *h = b->qh + 32 * (j / 8) + 16 * (j % 2);
            const size_t l_shift = 4 * (j / 4 % 2), h_shift = 2 * (j / 2 % 4);
            const float dl = d * (float)b->scales[j];
            for (int k = 0; k < 16; k++)
                dst[k] = dl * (float)(((l[k] >> l_shift & 0x0f) | (h[k] >> h_shift & 3) << 4) - 32);
        }
    }
}

void q8_k_dequant(const void *src, float *restrict dst, size_t n)
{
    const struct block_q8_k *b = src;
    for (size_t i = 0; i < n; i += QK_K, b++, dst += QK_K) {
        const float d = b->d;
        for (int k = 0; k < QK_K; k++)
            dst[k] = d * (float)b->qs[k];
    }
}
