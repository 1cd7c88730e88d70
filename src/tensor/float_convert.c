/* Rows of plain numbers to and from f32.
 *
 * Widening goes in runs of 32 with a known count: the compilers vectorise such loops at -O2, where they leave a loop of
 * unknown length scalar. The rows are read through unaligned copies, because a tensor may start at any byte of a file.
 */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <string.h>

#define RUN 32

/* A row function from an expression over one element `s` of type `type`. */
#define DEFINE_WIDEN(name, type, expression)                                                                           \
    static inline void name##_run(const unsigned char *restrict p, float *restrict dst, size_t n)                      \
    {                                                                                                                  \
        type in[RUN];                                                                                                  \
        memcpy(in, p, n * sizeof(type));                                                                               \
        for (size_t i = 0; i < n; i++) {                                                                               \
            const type s = in[i];                                                                                      \
            dst[i] = (expression);                                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    void name(const void *src, float *dst, size_t n)                                                                   \
    {                                                                                                                  \
        const unsigned char *p = src;                                                                                  \
        for (; n >= RUN; n -= RUN, dst += RUN, p += RUN * sizeof(type))                                                \
            name##_run(p, dst, RUN);                                                                                   \
        name##_run(p, dst, n);                                                                                         \
    }

#define DEFINE_NARROW(name, type, expression)                                                                          \
    void name(const float *src, void *dst, size_t n)                                                                   \
    {                                                                                                                  \
        unsigned char *p = dst;                                                                                        \
        for (size_t i = 0; i < n; i++, p += sizeof(type)) {                                                            \
            const float s = src[i];                                                                                    \
            const type r = (expression);                                                                               \
            memcpy(p, &r, sizeof r);                                                                                   \
        }                                                                                                              \
    }

DEFINE_WIDEN(f16_dequant, uint16_t, f16_to_f32(s))
DEFINE_WIDEN(bf16_dequant, uint16_t, bf16_to_f32(s))
DEFINE_WIDEN(f8_e4m3_dequant, uint8_t, f8_e4m3_to_f32(s))
DEFINE_WIDEN(f8_e5m2_dequant, uint8_t, f8_e5m2_to_f32(s))
DEFINE_WIDEN(i8_dequant, int8_t, (float)s)

DEFINE_NARROW(f16_quant, uint16_t, f16_from_f32(s))
DEFINE_NARROW(bf16_quant, uint16_t, bf16_from_f32(s))
DEFINE_NARROW(f8_e4m3_quant, uint8_t, f8_e4m3_from_f32(s))
DEFINE_NARROW(f8_e5m2_quant, uint8_t, f8_e5m2_from_f32(s))
DEFINE_NARROW(i8_quant, int8_t, (int8_t)(s == s ? fit_round(s, -128.0f, 127.0f) : 0))

void f32_dequant(const void *src, float *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

void f32_quant(const float *src, void *dst, size_t n)
{
    memcpy(dst, src, n * sizeof *src);
}
