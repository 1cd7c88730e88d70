/* The quantised blocks, byte for byte as GGUF stores them. Every struct has its size asserted beside it, and the table
 * in dtype.c takes its sizes from here, so a layout cannot drift from what the rest of the program believes.
 *
 * Notation: x is the value of an element, q the small integer stored for it, d a scale. `uint16_t d` is the bit
 * pattern of an f16 (float_convert.h reads it). The formulas are evaluated in f32, left to right, without fused
 * multiply-add; that order is part of the format here, since results are compared bit for bit.
 *
 * All structs are packed: a row may start at any byte of a mapped file, and a struct of alignment 1 lets the compiler
 * emit loads that are right anywhere. */
#ifndef TENSOR_QUANT_H
#define TENSOR_QUANT_H

#include <assert.h>
#include <stdint.h>

#define QUANT_PACKED __attribute__((packed))

#define QK   32  /* elements in a small block */
#define QK_K 256 /* elements in a super-block */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "blocks are read in place, so the machine is little endian");

/* Small blocks. Nibbles: qs[i] holds element i below and element i + 16 above. */

struct QUANT_PACKED block_q4_0 { /* x = d * (q - 8) */
    uint16_t d;
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_q4_0) == 18, "Q4_0");

struct QUANT_PACKED block_q4_1 { /* x = d * q + m */
    uint16_t d, m;
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_q4_1) == 20, "Q4_1");

struct QUANT_PACKED block_q5_0 { /* x = d * (q - 16); bit i of qh is the fifth bit of element i */
    uint16_t d;
    uint32_t qh;
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_q5_0) == 22, "Q5_0");

struct QUANT_PACKED block_q5_1 { /* x = d * q + m; qh as in Q5_0 */
    uint16_t d, m;
    uint32_t qh;
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_q5_1) == 24, "Q5_1");

struct QUANT_PACKED block_q8_0 { /* x = q * d */
    uint16_t d;
    int8_t qs[QK];
};
static_assert(sizeof(struct block_q8_0) == 34, "Q8_0");

/* Super-blocks: 256 elements in sub-blocks of 16 or 32, whose own small integer scales share one or two f16. */

struct QUANT_PACKED block_q2_k { /* x = (d * sc) * q - (dmin * mn), sub-blocks of 16 */
    uint8_t scales[QK_K / 16];   /* sc below, mn above */
    uint8_t qs[QK_K / 4];        /* element 128h + 32s + i: bits 2s of qs[32h + i] */
    uint16_t d, dmin;
};
static_assert(sizeof(struct block_q2_k) == 84, "Q2_K");

struct QUANT_PACKED block_q3_k { /* x = (d * (sc - 32)) * (q - 4), sub-blocks of 16 */
    uint8_t hmask[QK_K / 8];     /* element 32b + i: bit b of hmask[i] is the third bit of q */
    uint8_t qs[QK_K / 4];        /* the low two bits, as in Q2_K */
    uint8_t scales[12]; /* 16 six-bit numbers: low nibble of j at scales[j % 8], high pair at scales[8 + j % 4] */
    uint16_t d;
};
static_assert(sizeof(struct block_q3_k) == 110, "Q3_K");

struct QUANT_PACKED block_q4_k { /* x = (d * sc) * q - (dmin * mn), sub-blocks of 32 */
    uint16_t d, dmin;
    uint8_t scales[12];   /* 8 pairs of six-bit numbers; quant_k.c unpacks them */
    uint8_t qs[QK_K / 2]; /* element 64g + i: low nibble of qs[32g + i]; element 64g + 32 + i: the high one */
};
static_assert(sizeof(struct block_q4_k) == 144, "Q4_K");

struct QUANT_PACKED block_q5_k { /* as Q4_K with a fifth bit */
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[QK_K / 8]; /* element 32b + i: bit b of qh[i] */
    uint8_t qs[QK_K / 2];
};
static_assert(sizeof(struct block_q5_k) == 176, "Q5_K");

struct QUANT_PACKED block_q6_k { /* x = (d * sc) * (q - 32), sub-blocks of 16 */
    uint8_t ql[QK_K / 2];        /* element 128h + 64s + i: nibble s of ql[64h + i] */
    uint8_t qh[QK_K / 4];        /* element 128h + 32s + i: bits 2s of qh[32h + i] are the high two of q */
    int8_t scales[QK_K / 16];
    uint16_t d;
};
static_assert(sizeof(struct block_q6_k) == 210, "Q6_K");

struct QUANT_PACKED block_q8_k { /* x = d * q; activations facing K-quantised weights, never stored in files */
    float d;
    int8_t qs[QK_K];
    int16_t bsums[QK_K / 16]; /* sums of 16 q each, which kernels multiply with the mins of the weights */
};
static_assert(sizeof(struct block_q8_k) == 292, "Q8_K");

/* Blocks whose integers are indices into a fixed list of values. */

struct QUANT_PACKED block_iq4_nl { /* x = d * iq4_values[q] */
    uint16_t d;
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_iq4_nl) == 18, "IQ4_NL");

struct QUANT_PACKED block_iq4_xs { /* x = (d * (sc - 32)) * iq4_values[q], sub-blocks of 32 */
    uint16_t d;
    uint16_t scales_h;           /* bits 2b: the high two of sub-block b's sc */
    uint8_t scales_l[QK_K / 64]; /* nibble b % 2 of scales_l[b / 2]: the low four */
    uint8_t qs[QK_K / 2];        /* 16 bytes per sub-block, nibbles as in the small blocks */
};
static_assert(sizeof(struct block_iq4_xs) == 136, "IQ4_XS");

struct QUANT_PACKED block_mxfp4 { /* x = 2^(e - 128) * mxfp4_values[q] */
    uint8_t e;                    /* the shared exponent of the OCP microscaling format */
    uint8_t qs[QK / 2];
};
static_assert(sizeof(struct block_mxfp4) == 17, "MXFP4");

extern const int8_t iq4_values[16];   /* spaced for values that crowd around zero */
extern const int8_t mxfp4_values[16]; /* e2m1 numbers times two, so that they are integers */

#endif
