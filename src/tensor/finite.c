/* Looking for NaN and infinity; see finite.h. Scans run over bit patterns, so that they vectorise and no float is made.
 */
#include "tensor/finite.h"

#include "tensor/quant.h"

#include <stddef.h>
#include <string.h>

#define NONE UINT64_MAX

uint32_t quant_scale_offsets(enum dtype dtype, uint32_t offsets[2])
{
    switch (dtype) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS: offsets[0] = 0; return 1;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: offsets[0] = 0, offsets[1] = 2; return 2;
    case DTYPE_Q2_K:
        offsets[0] = offsetof(struct block_q2_k, d), offsets[1] = offsetof(struct block_q2_k, dmin);
        return 2;
    case DTYPE_Q3_K: offsets[0] = offsetof(struct block_q3_k, d); return 1;
    case DTYPE_Q6_K: offsets[0] = offsetof(struct block_q6_k, d); return 1;
    default: return 0;
    }
}

/* A number whose exponent bits are all ones carries into the bit above them when their lowest is added. So each looks
 * at many with nothing but and, add and or, and only a piece with a bad one in it is gone through again. */
#define PIECE 64

static uint32_t carries_16(uint16_t bits, uint16_t exponent)
{
    return ((uint32_t)(bits & exponent) + (exponent & -(uint32_t)exponent)) & (uint32_t)~exponent;
}

/* First of n 16-bit floats, stride bytes apart, whose exponent is all ones. */
static uint64_t find_bad_16(const unsigned char *p, uint64_t n, size_t stride, uint16_t exponent)
{
    for (uint64_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, p + i * stride, sizeof bits);
        if ((bits & exponent) == exponent)
            return i;
    }
    return NONE;
}

/* The same side by side. */
static uint64_t find_bad_row_16(const unsigned char *p, uint64_t n, uint16_t exponent)
{
    uint64_t i = 0;
    for (; i + PIECE <= n; i += PIECE) {
        uint16_t bits[PIECE];
        uint32_t bad = 0;
        memcpy(bits, p + i * sizeof *bits, sizeof bits);
        for (int k = 0; k < PIECE; k++)
            bad |= carries_16(bits[k], exponent);
        if (bad != 0)
            break;
    }
    const uint64_t at = find_bad_16(p + i * sizeof(uint16_t), n - i, sizeof(uint16_t), exponent);
    return at == NONE ? NONE : i + at;
}

bool f16_row_is_finite(const void *p, size_t n)
{
    return find_bad_row_16(p, n, 0x7c00) == NONE;
}

/* First of n blocks with a scale that is not finite, in one pass. */
static uint64_t find_bad_scale(
    const unsigned char *p, uint64_t n, size_t block, const uint32_t *offsets, uint32_t n_scales)
{
    uint64_t i = 0;
    const uint32_t first = offsets[0], second = offsets[n_scales - 1];
    for (; i + PIECE <= n; i += PIECE, p += PIECE * block) {
        uint32_t bad = 0;
        for (size_t k = 0; k < PIECE; k++) {
            uint16_t a, b;
            memcpy(&a, p + k * block + first, sizeof a);
            memcpy(&b, p + k * block + second, sizeof b);
            bad |= carries_16(a, 0x7c00) | carries_16(b, 0x7c00);
        }
        if (bad != 0)
            break;
    }
    const uint64_t a = find_bad_16(p + first, n - i, block, 0x7c00), b = find_bad_16(p + second, n - i, block, 0x7c00);
    return MIN(a, b) == NONE ? NONE : i + MIN(a, b);
}

static uint64_t find_bad_32(const unsigned char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p + i * sizeof bits, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return i;
    }
    return NONE;
}

/* e4m3 has NaN only at all ones; e5m2 has infinities and NaNs at exponent 31. */
static uint64_t find_bad_8(const unsigned char *p, uint64_t n, uint8_t mask)
{
    for (uint64_t i = 0; i < n; i++)
        if ((p[i] & mask) == mask)
            return i;
    return NONE;
}

/* The shared exponent alone is a number, but times an element of up to 12 it can be beyond f32. */
static uint64_t find_bad_mxfp4(const struct block_mxfp4 *b, uint64_t n_blocks)
{
    for (uint64_t i = 0; i < n_blocks; i++) {
        float x[QK];
        if (b[i].e < 253) /* 12 * 2^(252 - 128) < 2^128 */
            continue;
        dtype_info(DTYPE_MXFP4)->dequant(&b[i], x, QK);
        if (find_bad_32((const unsigned char *)x, QK) != NONE)
            return i * QK;
    }
    return NONE;
}

bool tensor_is_finite(const struct tensor_view *v, uint64_t *bad)
{
    const unsigned char *p = v->data;
    const uint64_t n = tensor_n_elems(v);
    const struct dtype_info *info = dtype_info(v->dtype);
    uint64_t at = NONE;
    uint32_t offsets[2], n_scales;
    switch (v->dtype) {
    case DTYPE_F32: at = find_bad_32(p, n); break;
    case DTYPE_F16: at = find_bad_row_16(p, n, 0x7c00); break;
    case DTYPE_BF16: at = find_bad_row_16(p, n, 0x7f80); break;
    case DTYPE_F8_E4M3: at = find_bad_8(p, n, 0x7f); break;
    case DTYPE_F8_E5M2: at = find_bad_8(p, n, 0x7c); break;
    case DTYPE_MXFP4: at = find_bad_mxfp4(v->data, n / QK); break;
    default:
        n_scales = quant_scale_offsets(v->dtype, offsets);
        if (n_scales > 0)
            at = find_bad_scale(p, n / info->block_elems, info->block_bytes, offsets, n_scales);
        if (at != NONE)
            at *= info->block_elems;
    }
    *bad = at;
    return at == NONE;
}
