/* f32 to K-quantised super-blocks: quant_fit.c finds the numbers, this file puts them into their bits. Each packer is
 * the mirror of its reader in quant_k.c. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <math.h>
#include <string.h>

static const struct affine_shape q2_k_shape = {.sub_elems = 16, .q_max = 3, .sc_max = 15};
static const struct affine_shape q4_k_shape = {.sub_elems = 32, .q_max = 15, .sc_max = 63};
static const struct affine_shape q5_k_shape = {.sub_elems = 32, .q_max = 31, .sc_max = 63};
static const struct signed_shape q3_k_shape = {.n_elems = QK_K, .sub_elems = 16, .sc_max = 32, .v_min = -4, .v_max = 3};
static const struct signed_shape q6_k_shape = {
    .n_elems = QK_K, .sub_elems = 16, .sc_max = 128, .v_min = -32, .v_max = 31};

void q2_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q2_k *b = dst;
    struct affine_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_affine_block(&q2_k_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        b->dmin = a.dmin;
        for (int j = 0; j < 16; j++)
            b->scales[j] = (uint8_t)(a.sc[j] | a.mn[j] << 4);
        for (int k = 0; k < QK_K; k++)
            b->qs[32 * (k / 128) + k % 32] |= (uint8_t)(a.q[k] << (2 * (k / 32 % 4)));
    }
}

void q3_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q3_k *b = dst;
    struct signed_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_signed_block(&q3_k_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        for (int j = 0; j < 16; j++) {
            const int sc = a.sc[j] + 32;
            b->scales[j % 8] |= (uint8_t)((sc & 0x0f) << (4 * (j / 8)));
            b->scales[8 + j % 4] |= (uint8_t)(sc >> 4 << (2 * (j / 4)));
        }
        for (int k = 0; k < QK_K; k++) {
            const int q = a.v[k] + 4;
            b->qs[32 * (k / 128) + k % 32] |= (uint8_t)((q & 3) << (2 * (k / 32 % 4)));
            b->hmask[k % 32] |= (uint8_t)(q >> 2 << (k / 32));
        }
    }
}

/* The mirror of scale_min_unpack in quant_k.c; s is zero before. */
static void scale_min_pack(uint8_t *s, const uint8_t *sc, const uint8_t *mn)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | (sc[j + 4] >> 4) << 6);
        s[j + 4] = (uint8_t)(mn[j] | (mn[j + 4] >> 4) << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 0x0f) | (mn[j + 4] & 0x0f) << 4);
    }
}

void q4_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q4_k *b = dst;
    struct affine_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_affine_block(&q4_k_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        b->dmin = a.dmin;
        scale_min_pack(b->scales, a.sc, a.mn);
        for (int k = 0; k < QK_K; k++)
            b->qs[32 * (k / 64) + k % 32] |= (uint8_t)(a.q[k] << (4 * (k / 32 % 2)));
    }
}

void q5_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q5_k *b = dst;
    struct affine_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_affine_block(&q5_k_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        b->dmin = a.dmin;
        scale_min_pack(b->scales, a.sc, a.mn);
        for (int k = 0; k < QK_K; k++) {
            b->qs[32 * (k / 64) + k % 32] |= (uint8_t)((a.q[k] & 0x0f) << (4 * (k / 32 % 2)));
            b->qh[k % 32] |= (uint8_t)(a.q[k] >> 4 << (k / 32));
        }
    }
}

void q6_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q6_k *b = dst;
    struct signed_block a;
    for (size_t i = 0; i < n; i += QK_K, b++) {
        fit_signed_block(&q6_k_shape, src + i, &a);
        memset(b, 0, sizeof *b);
        b->d = a.d;
        memcpy(b->scales, a.sc, sizeof b->scales);
        for (int k = 0; k < QK_K; k++) {
            const int q = a.v[k] + 32;
            b->ql[64 * (k / 128) + k % 64] |= (uint8_t)((q & 0x0f) << (4 * (k / 64 % 2)));
            b->qh[32 * (k / 128) + k % 32] |= (uint8_t)(q >> 4 << (2 * (k / 32 % 4)));
        }
    }
}

/* Q8_K is made from activations at run time: one scale, which maps the element of largest size to -127. A block
 * too small for the inverse to be finite is zero. */
void q8_k_quant(const float *src, void *dst, size_t n)
{
    struct block_q8_k *b = dst;
    for (size_t i = 0; i < n; i += QK_K, b++, src += QK_K) {
        float max = 0.0f;
        for (int k = 0; k < QK_K; k++)
            max = fabsf(src[k]) > fabsf(max) ? src[k] : max;
        memset(b, 0, sizeof *b);
        const float inverse = -127.0f / max;
        if (!isfinite(inverse))
            continue;
        b->d = 1.0f / inverse;
        for (int k = 0; k < QK_K; k++)
            b->qs[k] = (int8_t)fit_round(inverse * src[k], -127.0f, 127.0f);
        for (int j = 0; j < QK_K / 16; j++) {
            int sum = 0;
            for (int k = 0; k < 16; k++)
                sum += b->qs[16 * j + k];
            b->bsums[j] = (int16_t)sum;
        }
    }
}
