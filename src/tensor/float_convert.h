/* Conversions between f32 and the short floats, by bits alone: no F16C or other instruction set is assumed, so every
 * machine and compiler gives the same answer. Widening is exact. Narrowing rounds to nearest, ties to even. They assume
 * the default rounding mode. NaN stays NaN with its sign; which NaN is unspecified.
 *
 * Widening is written without branches on the value so that loops over rows vectorise. */
#ifndef TENSOR_FLOAT_CONVERT_H
#define TENSOR_FLOAT_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* yes where the condition holds, else no; as masks, because compilers turn a ?: here into a branch. */
static inline uint32_t bits_pick(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)(condition != 0);
    return (yes & mask) | (no & ~mask);
}

/* The f32 exponent field counts from 127 where f16 counts from 15: normal numbers move by 112. Infinity and NaN move
 * by 112 twice, from field 31 to 255. Subnormals are a small integer times 2^-24, exact in f32. */
static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = h & 0x7c00u;
    const uint32_t wide = (uint32_t)(h & 0x7fffu) << 13;
    const uint32_t normal = wide + (112u << 23) + bits_pick(exponent == 0x7c00u, 112u << 23, 0u);
    const uint32_t small = f32_bits((float)(int32_t)(h & 0x03ffu) * 0x1p-24f);
    return f32_of_bits(sign | bits_pick(exponent == 0, small, normal));
}

/* Subnormals: adding 0.5 puts the f16 unit 2^-24 at the last bit of the sum, so the addition itself rounds. */
static inline uint16_t f16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t a = u & 0x7fffffffu;
    uint32_t r;
    if (a > 0x7f800000u)
        r = 0x7e00u;
    else if (a >= 0x47800000u) /* 65536 and above, infinity included */
        r = 0x7c00u;
    else if (a >= 0x38800000u) { /* 2^-14, the smallest normal; from 65520 on the carry makes infinity */
        a += 0x0fffu + ((a >> 13) & 1u);
        r = (a - (112u << 23)) >> 13;
    } else
        r = f32_bits(f32_of_bits(a) + 0.5f) - f32_bits(0.5f);
    return (uint16_t)(sign | r);
}

static inline float bf16_to_f32(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x0040u; /* quiet, so that cutting the payload cannot make an infinity */
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* e4m3fn: exponent counts from 7, the top exponent is used for numbers, only all ones is NaN. */
static inline float f8_e4m3_to_f32(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24;
    const uint32_t a = b & 0x7fu;
    const uint32_t normal = bits_pick(a == 0x7fu, 0x7fc00000u, (a << 20) + (120u << 23));
    const uint32_t small = f32_bits((float)(int32_t)a * 0x1p-9f);
    return f32_of_bits(sign | bits_pick(a < 8u, small, normal));
}

static inline uint8_t f8_e4m3_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t sign = (u >> 24) & 0x80u;
    uint32_t a = u & 0x7fffffffu;
    uint32_t r;
    if (a >= 0x3c800000u) { /* 2^-6, the smallest normal; above 464 no number is near: NaN */
        a += 0x7ffffu + ((a >> 20) & 1u);
        r = (a - (120u << 23)) >> 20;
        r = r > 0x7fu ? 0x7fu : r;
    } else /* the unit 2^-9 is the last bit of sums near 2^14 */
        r = f32_bits(f32_of_bits(a) + 0x1p14f) - f32_bits(0x1p14f);
    return (uint8_t)(sign | r);
}

/* e5m2 is an f16 cut to its upper byte. */
static inline float f8_e5m2_to_f32(uint8_t b)
{
    return f16_to_f32((uint16_t)(b << 8));
}

static inline uint8_t f8_e5m2_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t sign = (u >> 24) & 0x80u;
    uint32_t a = u & 0x7fffffffu;
    uint32_t r;
    if (a > 0x7f800000u)
        r = 0x7eu;
    else if (a >= 0x47800000u)
        r = 0x7cu;
    else if (a >= 0x38800000u) { /* from 61440 on the carry makes infinity */
        a += 0xfffffu + ((a >> 21) & 1u);
        r = (a - (112u << 23)) >> 21;
    } else /* the unit 2^-16 is the last bit of sums near 2^7 */
        r = f32_bits(f32_of_bits(a) + 0x1p7f) - f32_bits(0x1p7f);
    return (uint8_t)(sign | r);
}

/* Half of the power of two an MXFP4 exponent byte means (mxfp4_values are doubled): 2^(e - 128). The first two are
 * subnormal in f32. 255 is taken as a number too, as files written by others expect. */
static inline float e8m0_half_to_f32(uint8_t e)
{
    return f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
