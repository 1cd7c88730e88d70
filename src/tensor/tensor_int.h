/* Private to tensor/: the conversions that the table in dtype.c points at, and the scale search the quantisers share.
 */
#ifndef TENSOR_TENSOR_INT_H
#define TENSOR_TENSOR_INT_H

#include "tensor/quant.h"
#include "tensor/tensor.h"

/* float_convert.c */
dequant_fn f32_dequant, f16_dequant, bf16_dequant, f8_e4m3_dequant, f8_e5m2_dequant, i8_dequant;
quant_fn f32_quant, f16_quant, bf16_quant, f8_e4m3_quant, f8_e5m2_quant, i8_quant;

/* quant_legacy.c */
dequant_fn q4_0_dequant, q4_1_dequant, q5_0_dequant, q5_1_dequant, q8_0_dequant;
quant_fn q4_0_quant, q4_1_quant, q5_0_quant, q5_1_quant, q8_0_quant;

/* quant_k.c, quant_k_pack.c */
dequant_fn q2_k_dequant, q3_k_dequant, q4_k_dequant, q5_k_dequant, q6_k_dequant, q8_k_dequant;
quant_fn q2_k_quant, q3_k_quant, q4_k_quant, q5_k_quant, q6_k_quant, q8_k_quant;

/* quant_iq.c */
dequant_fn iq4_nl_dequant, iq4_xs_dequant, mxfp4_dequant;
quant_fn iq4_nl_quant, iq4_xs_quant, mxfp4_quant;

/* quant_fit.c: the search for scales. Inputs are finite and at most F16_MAX in size (quant_row has checked). */

#define F16_MAX 65504.0f

/* What a super-block of the form x = (d * sc) * q - (dmin * mn) is made of, before packing. */
struct affine_shape {
    int sub_elems; /* 16 or 32 */
    int q_max;     /* q is 0..q_max */
    int sc_max;    /* sc and mn are 0..sc_max */
};
struct affine_block {
    uint16_t d, dmin; /* f16 bits */
    uint8_t sc[16], mn[16];
    uint8_t q[QK_K];
};
void fit_affine_block(const struct affine_shape *shape, const float *x, struct affine_block *out);

/* The same for x = (d * sc) * v, where v is one of a list of integers with or without gaps. With one sub-block the
 * whole is x = d * v and sc is 1. */
struct signed_shape {
    int n_elems, sub_elems;
    int sc_max;           /* sc is -sc_max..sc_max - 1 */
    int v_min, v_max;     /* v is any integer in between... */
    const int8_t *values; /* ...or, when not NULL, one of these 16, ascending */
};
struct signed_block {
    uint16_t d; /* f16 bits */
    int8_t sc[16];
    int8_t v[QK_K];
};
void fit_signed_block(const struct signed_shape *shape, const float *x, struct signed_block *out);

/* Nearest integer, ties to even, of lo <= v <= hi clamped to that range (NaN gives lo); |lo|, |hi| <= 2^22. The sum
 * with 1.5 * 2^23 has a last bit worth 1, so the addition rounds; unlike lrintf this vectorises everywhere. */
static inline int fit_round(float v, float lo, float hi)
{
    const float magic = 0x1.8p23f;
    const float clamped = v > lo ? (v < hi ? v : hi) : lo;
    const float sum = clamped + magic;
    int32_t bits;
    __builtin_memcpy(&bits, &sum, sizeof bits);
    return bits - 0x4b400000;
}

#endif
