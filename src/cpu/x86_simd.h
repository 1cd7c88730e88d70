/* Sixteen floats at a time, the vocabulary of the x86 kernels. The bodies (x86_*.h) are written once over it and
 * compiled twice: as two AVX2 registers, or as one AVX-512 register where QUERN_AVX512 is defined. Every operation acts
 * lane by lane with one rounding, and the reductions are one fixed tree, so both give the same bits.
 *
 * Included once by each variant's .c file; everything is static. */
#ifndef CPU_X86_SIMD_H
#define CPU_X86_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VF 16 /* lanes */
/* The bits of 1.5 * 2^23. An integer below 2^22 added to them is added to the float: no conversion is needed. */
#define INT_IN_FLOAT       0x4b400000
#define INT_IN_FLOAT_VALUE 0x1.8p23f
#define INLINE             static inline __attribute__((always_inline))
/* A loop that must be unrolled: its index picks registers. */
#if defined(__has_feature) /* clang; gcc 12 has other names */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SIMD_SANITIZED
#endif
#endif
/* gcc warns then that it will not unroll, and clang takes minutes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SIMD_SANITIZED)
#define EACH(i, n) for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++) /* NOLINT(bugprone-macro-parentheses) */
#endif

#ifdef QUERN_AVX512

struct vf {
    __m512 v;
};
struct vi {
    __m512i v;
};

#define VF_OP2(name, op)                                                                                               \
    INLINE struct vf name(struct vf a, struct vf b)                                                                    \
    {                                                                                                                  \
        return (struct vf){op(a.v, b.v)};                                                                              \
    }
VF_OP2(vf_add, _mm512_add_ps)
VF_OP2(vf_sub, _mm512_sub_ps)
VF_OP2(vf_mul, _mm512_mul_ps)
VF_OP2(vf_div, _mm512_div_ps)
VF_OP2(vf_max, _mm512_max_ps) /* b where either is NaN */
VF_OP2(vf_min, _mm512_min_ps) /* likewise */

INLINE struct vf vf_set(float x)
{
    return (struct vf){_mm512_set1_ps(x)};
}
INLINE struct vf vf_load(const float *p)
{
    return (struct vf){_mm512_loadu_ps(p)};
}
INLINE void vf_store(float *p, struct vf a)
{
    _mm512_storeu_ps(p, a.v);
}
/* a in a register from here on: left alone, compilers load it again for each use, and loads are dear. */
INLINE void vf_keep(struct vf *a)
{
    __asm__("" : "+v"(a->v));
}
INLINE void vi_keep(struct vi *a)
{
    __asm__("" : "+v"(a->v));
}
INLINE struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
INLINE struct vf vf_fnma(struct vf a, struct vf b, struct vf c) /* c - a * b */
{
    return (struct vf){_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
INLINE struct vf vf_round(struct vf a)
{
    return (struct vf){_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
/* yes where a < b, else no. */
INLINE struct vf vf_if_less(struct vf a, struct vf b, struct vf yes, struct vf no)
{
    return (struct vf){_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
/* yes in lanes from .. to-1, else no. */
INLINE struct vf vf_if_lane(int from, int to, struct vf yes, struct vf no)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 m =
        _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(from)) & _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(to));
    return (struct vf){_mm512_mask_blend_ps(m, no.v, yes.v)};
}
/* 2^n for whole n in -126 .. 127. */
INLINE struct vf vf_exp2_whole(struct vf n)
{
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return (struct vf){_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
INLINE struct vf vf_of_f16(const void *p)
{
    return (struct vf){_mm512_cvtph_ps(_mm256_loadu_si256(p))};
}
INLINE struct vf vf_of_bf16(const void *p)
{
    return (struct vf){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16))};
}
INLINE struct vf vf_of_i8(__m128i x)
{
    return (struct vf){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))};
}
INLINE struct vf vf_of_u8(__m128i x)
{
    return (struct vf){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x))};
}
INLINE struct vf vf_of_vi(struct vi a)
{
    return (struct vf){_mm512_cvtepi32_ps(a.v)};
}
INLINE void vf_to_f16(void *p, struct vf a)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* The float's bits without the sign, as integers. */
INLINE struct vi vf_abs_bits(struct vf a)
{
    return (struct vi){_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
INLINE struct vi vi_max(struct vi a, struct vi b)
{
    return (struct vi){_mm512_max_epi32(a.v, b.v)};
}
INLINE int32_t vi_top(struct vi a)
{
    return _mm512_reduce_max_epi32(a.v);
}
INLINE int32_t vi_total(struct vi a)
{
    return _mm512_reduce_add_epi32(a.v);
}
/* Rounded to nearest, ties to even. */
INLINE struct vi vi_of_vf(struct vf a)
{
    return (struct vi){_mm512_cvtps_epi32(a.v)};
}
/* As 16 bits, each four in the order 0 2 1 3. */
INLINE void vi_to_pairs(int16_t *p, struct vi a)
{
    const __m256i x = _mm512_cvtsepi32_epi16(a.v);
    _mm256_storeu_si256((__m256i *)p, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(x, 0xd8), 0xd8));
}
#define VI_OP2(name, op)                                                                                               \
    INLINE struct vi name(struct vi a, struct vi b)                                                                    \
    {                                                                                                                  \
        return (struct vi){op(a.v, b.v)};                                                                              \
    }
#define VI_SHIFT(name, op)                                                                                             \
    INLINE struct vi name(struct vi a, int n)                                                                          \
    {                                                                                                                  \
        return (struct vi){op(a.v, _mm512_set1_epi16((short)n))};                                                      \
    }
VI_OP2(vi_and, _mm512_and_si512)
VI_OP2(vi_or, _mm512_or_si512)
VI_OP2(vi_sub16, _mm512_sub_epi16)
VI_OP2(vi_add32, _mm512_add_epi32)
VI_SHIFT(vi_left16, _mm512_sllv_epi16)
VI_SHIFT(vi_right16, _mm512_srlv_epi16)
VI_SHIFT(vi_right16_signed, _mm512_srav_epi16)
INLINE struct vi vi_set16(int x)
{
    return (struct vi){_mm512_set1_epi16((short)x)};
}
INLINE struct vi vi_set32(int32_t x)
{
    return (struct vi){_mm512_set1_epi32(x)};
}
INLINE struct vi vi_load(const void *p)
{
    return (struct vi){_mm512_loadu_si512(p)};
}
INLINE void vi_store(void *p, struct vi a)
{
    _mm512_storeu_si512(p, a.v);
}
/* Pairs of 16 bits multiplied, their two products added to 32 bits. */
INLINE struct vi vi_dot_first(struct vi a, struct vi b)
{
    return (struct vi){_mm512_dpwssd_epi32(_mm512_setzero_si512(), a.v, b.v)};
}
INLINE struct vi vi_dot(struct vi sum, struct vi a, struct vi b)
{
    return (struct vi){_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
}
/* Fours of bytes multiplied, a's without a sign, b's with one, their four products added to 32 bits. Written as it is,
 * since gcc moves the sums of the intrinsic from register to register. */
INLINE struct vi vi_dot_bytes(struct vi sum, struct vi a, struct vi b)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
    return sum;
}
/* The float whose bits these are. */
INLINE struct vf vf_of_bits(struct vi a)
{
    return (struct vf){_mm512_castsi512_ps(a.v)};
}
INLINE struct vi vi_and_xor(struct vi a, struct vi b, struct vi c) /* (a and b) xor c */
{
    return (struct vi){_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0x6a)};
}
INLINE struct vi vi_and_or(struct vi a, struct vi b, struct vi c) /* (a and b) or c */
{
    return (struct vi){_mm512_ternarylogic_epi32(a.v, b.v, c.v, 0xea)};
}
INLINE struct vf vf_abs(struct vf a)
{
    return (struct vf){_mm512_castsi512_ps(vf_abs_bits(a).v)};
}
/* a with the sign of s. */
INLINE struct vf vf_sign_of(struct vf a, struct vf s)
{
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(s.v), _mm512_set1_epi32((int)0x80000000));
    return (struct vf){_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a.v), sign))};
}
INLINE __m256 vf_halves_sum(struct vf a)
{
    return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
INLINE __m256 vf_halves_max(struct vf a)
{
    return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
/* Element pairs (x0, x1) turned by (cos, sin) pairs: x0 c - x1 s, x1 c + x0 s. */
INLINE struct vf vf_turn_pairs(struct vf x, struct vf cs)
{
    const __m512 c = _mm512_moveldup_ps(cs.v), s = _mm512_movehdup_ps(cs.v);
    return (struct vf){_mm512_fmaddsub_ps(x.v, c, _mm512_mul_ps(_mm512_permute_ps(x.v, 0xb1), s))};
}
/* The cosines and the sines of sixteen pairs. */
INLINE void vf_split_pairs(const float *p, struct vf *c, struct vf *s)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    *c = (struct vf){_mm512_permutex2var_ps(a, even, b)};
    *s = (struct vf){_mm512_permutex2var_ps(a, odd, b)};
}

#else /* AVX2: two registers */

struct vf {
    __m256 lo, hi;
};
struct vi {
    __m256i lo, hi;
};

#define VF_OP2(name, op)                                                                                               \
    INLINE struct vf name(struct vf a, struct vf b)                                                                    \
    {                                                                                                                  \
        return (struct vf){op(a.lo, b.lo), op(a.hi, b.hi)};                                                            \
    }
VF_OP2(vf_add, _mm256_add_ps)
VF_OP2(vf_sub, _mm256_sub_ps)
VF_OP2(vf_mul, _mm256_mul_ps)
VF_OP2(vf_div, _mm256_div_ps)
VF_OP2(vf_max, _mm256_max_ps)
VF_OP2(vf_min, _mm256_min_ps)

INLINE struct vf vf_set(float x)
{
    const __m256 v = _mm256_set1_ps(x);
    return (struct vf){v, v};
}
INLINE struct vf vf_load(const float *p)
{
    return (struct vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void vf_store(float *p, struct vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
INLINE void vf_keep(struct vf *a)
{
    __asm__("" : "+x"(a->lo), "+x"(a->hi));
}
INLINE void vi_keep(struct vi *a)
{
    __asm__("" : "+x"(a->lo), "+x"(a->hi));
}
INLINE struct vf vf_fma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE struct vf vf_fnma(struct vf a, struct vf b, struct vf c)
{
    return (struct vf){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE struct vf vf_round(struct vf a)
{
    return (struct vf){_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
        _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
INLINE struct vf vf_if_less(struct vf a, struct vf b, struct vf yes, struct vf no)
{
    return (struct vf){_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
        _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
INLINE __m256 blend_lanes(__m256i lane, int from, int to, __m256 yes, __m256 no)
{
    const __m256i m = _mm256_andnot_si256(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(from), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lane));
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(m));
}
INLINE struct vf vf_if_lane(int from, int to, struct vf yes, struct vf no)
{
    return (struct vf){blend_lanes(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), from, to, yes.lo, no.lo),
        blend_lanes(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), from, to, yes.hi, no.hi)};
}
INLINE __m256 exp2_whole8(__m256 n)
{
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
INLINE struct vf vf_exp2_whole(struct vf n)
{
    return (struct vf){exp2_whole8(n.lo), exp2_whole8(n.hi)};
}
INLINE struct vf vf_of_f16(const void *p)
{
    const __m128i *h = p;
    return (struct vf){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
INLINE __m256 of_bf16_8(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE struct vf vf_of_bf16(const void *p)
{
    const __m128i *h = p;
    return (struct vf){of_bf16_8(_mm_loadu_si128(h)), of_bf16_8(_mm_loadu_si128(h + 1))};
}
INLINE struct vf vf_of_i8(__m128i x)
{
    return (struct vf){
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
INLINE struct vf vf_of_u8(__m128i x)
{
    return (struct vf){
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
INLINE struct vf vf_of_vi(struct vi a)
{
    return (struct vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
INLINE void vf_to_f16(void *p, struct vf a)
{
    __m128i *h = p;
    _mm_storeu_si128(h, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE struct vi vf_abs_bits(struct vf a)
{
    const __m256i m = _mm256_set1_epi32(0x7fffffff);
    return (struct vi){_mm256_and_si256(_mm256_castps_si256(a.lo), m), _mm256_and_si256(_mm256_castps_si256(a.hi), m)};
}
INLINE struct vi vi_max(struct vi a, struct vi b)
{
    return (struct vi){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
INLINE int32_t vi_top(struct vi a)
{
    const __m256i m = _mm256_max_epi32(a.lo, a.hi);
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE int32_t vi_total(struct vi a)
{
    const __m256i m = _mm256_add_epi32(a.lo, a.hi);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE struct vi vi_of_vf(struct vf a)
{
    return (struct vi){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
INLINE __m128i pairs8(__m256i a)
{
    const __m128i x = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return _mm_shufflehi_epi16(_mm_shufflelo_epi16(x, 0xd8), 0xd8);
}
INLINE void vi_to_pairs(int16_t *p, struct vi a)
{
    _mm_storeu_si128((__m128i *)p, pairs8(a.lo));
    _mm_storeu_si128((__m128i *)p + 1, pairs8(a.hi));
}
#define VI_OP2(name, op)                                                                                               \
    INLINE struct vi name(struct vi a, struct vi b)                                                                    \
    {                                                                                                                  \
        return (struct vi){op(a.lo, b.lo), op(a.hi, b.hi)};                                                            \
    }
#define VI_SHIFT(name, op)                                                                                             \
    INLINE struct vi name(struct vi a, int n)                                                                          \
    {                                                                                                                  \
        return (struct vi){op(a.lo, n), op(a.hi, n)};                                                                  \
    }
VI_OP2(vi_and, _mm256_and_si256)
VI_OP2(vi_or, _mm256_or_si256)
VI_OP2(vi_sub16, _mm256_sub_epi16)
VI_OP2(vi_add32, _mm256_add_epi32)
VI_SHIFT(vi_left16, _mm256_slli_epi16)
VI_SHIFT(vi_right16, _mm256_srli_epi16)
VI_SHIFT(vi_right16_signed, _mm256_srai_epi16)
INLINE struct vi vi_set16(int x)
{
    const __m256i v = _mm256_set1_epi16((short)x);
    return (struct vi){v, v};
}
INLINE struct vi vi_set32(int32_t x)
{
    const __m256i v = _mm256_set1_epi32(x);
    return (struct vi){v, v};
}
INLINE struct vi vi_load(const void *p)
{
    return (struct vi){_mm256_loadu_si256(p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
INLINE void vi_store(void *p, struct vi a)
{
    _mm256_storeu_si256(p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
VI_OP2(vi_dot_first, _mm256_madd_epi16)
INLINE struct vi vi_dot(struct vi sum, struct vi a, struct vi b)
{
    return vi_add32(sum, vi_dot_first(a, b));
}
INLINE struct vf vf_abs(struct vf a)
{
    const struct vi b = vf_abs_bits(a);
    return (struct vf){_mm256_castsi256_ps(b.lo), _mm256_castsi256_ps(b.hi)};
}
INLINE struct vf vf_sign_of(struct vf a, struct vf s)
{
    const __m256 m = _mm256_set1_ps(-0.0f);
    return (struct vf){_mm256_or_ps(a.lo, _mm256_and_ps(s.lo, m)), _mm256_or_ps(a.hi, _mm256_and_ps(s.hi, m))};
}
INLINE __m256 vf_halves_sum(struct vf a)
{
    return _mm256_add_ps(a.lo, a.hi);
}
INLINE __m256 vf_halves_max(struct vf a)
{
    return _mm256_max_ps(a.lo, a.hi);
}
INLINE __m256 turn_pairs8(__m256 x, __m256 cs)
{
    const __m256 c = _mm256_moveldup_ps(cs), s = _mm256_movehdup_ps(cs);
    return _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), s));
}
INLINE struct vf vf_turn_pairs(struct vf x, struct vf cs)
{
    return (struct vf){turn_pairs8(x.lo, cs.lo), turn_pairs8(x.hi, cs.hi)};
}
INLINE __m256 straighten(__m256 x) /* shuffle_ps works within 128 bits: put the middle quarters right */
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}
INLINE void vf_split_pairs(const float *p, struct vf *c, struct vf *s)
{
    const __m256 x0 = _mm256_loadu_ps(p), x1 = _mm256_loadu_ps(p + 8);
    const __m256 x2 = _mm256_loadu_ps(p + 16), x3 = _mm256_loadu_ps(p + 24);
    *c = (struct vf){straighten(_mm256_shuffle_ps(x0, x1, 0x88)), straighten(_mm256_shuffle_ps(x2, x3, 0x88))};
    *s = (struct vf){straighten(_mm256_shuffle_ps(x0, x1, 0xdd)), straighten(_mm256_shuffle_ps(x2, x3, 0xdd))};
}

#endif

/* ---- the same for both ------------------------------------------------------------------------------------------ */

/* The tree: lane i with i + 8, then i + 4, i + 2, i + 1. */
INLINE float vf_total(struct vf a)
{
    const __m256 x = vf_halves_sum(a);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
INLINE float vf_top(struct vf a)
{
    const __m256 x = vf_halves_max(a);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}
/* The first n of sixteen floats, the rest zero. */
INLINE struct vf vf_load_n(const float *p, uint32_t n)
{
    float x[VF] = {0};
    memcpy(x, p, n * sizeof *x);
    return vf_load(x);
}
INLINE void vf_store_n(float *p, struct vf a, uint32_t n)
{
    float x[VF];
    vf_store(x, a);
    memcpy(p, x, n * sizeof *x);
}

/* exp: x = n ln 2 + r, a Taylor sum in r by fma, times 2^n. 0 below -87.3; above 88 as at 88, so never infinite; NaN
 * stays. Within 2 ulp. */
INLINE struct vf vf_exp(struct vf x)
{
    const struct vf small = vf_set(-87.3f);
    const struct vf c = vf_max(small, vf_min(vf_set(88.0f), x));
    const struct vf n = vf_round(vf_mul(c, vf_set(1.44269504f)));
    const struct vf r = vf_fnma(n, vf_set(3.19461833e-5f), vf_fnma(n, vf_set(0.693115234375f), c));
    struct vf p = vf_set(1.0f / 5040.0f);
    p = vf_fma(p, r, vf_set(1.0f / 720.0f));
    p = vf_fma(p, r, vf_set(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_if_less(x, small, vf_set(0.0f), vf_mul(p, vf_exp2_whole(n)));
}

/* tanh |x| = 1 - 2 / (exp(2 |x|) + 1). */
INLINE struct vf vf_tanh(struct vf x)
{
    const struct vf a = vf_abs(x);
    const struct vf e = vf_exp(vf_add(a, a));
    const struct vf t = vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(e, vf_set(1.0f))));
    return vf_sign_of(t, x);
}

#endif
