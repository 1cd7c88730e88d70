/* How a row of a matrix lies in device memory, and how the matrix unit gets it.
 *
 * Float rows lie as in the file. Quantised rows are repacked when they are bound, at the width rounded up to 256:
 *
 *   Q8   values int8 in order; then one f16 scale per 32
 *   Q4   nibbles; then one f16 scale per 32                       x = s * (q - 8)
 *   Q4M  nibbles; then f16 scale and f16 minimum per 32           x = s * q + m
 *   Q4K  nibbles; then u8 scale and u8 minimum per 32; then f16 d and dmin per 256   x = (d*sc)*q - dmin*mn
 *   Q6K  nibbles; then the high pairs of bits, 8 bytes per 32; then s8 scale per 16; then f16 d per 256
 *   F8   e4m3 in order; the scale of the row is in matrix.scales
 *
 * Nibbles: 8 neighbours share a 32-bit word; element j lies at nibble j/2 when even, 4 + j/2 when odd, so that one mask
 * takes out a pair for the two halves of a register. High pairs: word h of 16 elements; pair p (elements 2p, 2p+1) at
 * bits 2p and 16 + 2p.
 *
 * A product takes a slice of 4 * E elements of 16 rows at a time, E elements of two rows per lane (16 bytes of values).
 * The order of k inside a slice is the lane's, for weights and activations alike, which a sum does not mind: so no
 * value is ever shuffled between lanes. Padding has scale zero.
 *
 * A format F gives: Type (what the matrix unit multiplies in), E, slices in flight, struct Regs; load() reads a lane's
 * part of a slice of one row; pairs() makes 8 elements (i-th eighth of E) of it into four registers. */
#ifndef CUDA_FORMATS_CUH
#define CUDA_FORMATS_CUH

#include "cuda/e4m3.cuh"

#define ROW_PAD 256

__host__ __device__ inline uint32_t format_width(uint32_t n_in)
{
    return (n_in + ROW_PAD - 1) / ROW_PAD * ROW_PAD;
}

/* Bytes of a packed row; a multiple of 16 but for floats of odd widths. */
__host__ __device__ inline uint32_t format_row_bytes(enum format f, uint32_t n_in)
{
    const uint32_t w = format_width(n_in);
    uint32_t n = 0;
    switch (f) {
    case FORMAT_F32: return n_in * 4;
    case FORMAT_F16:
    case FORMAT_BF16: return n_in * 2;
    case FORMAT_F8: return n_in;
    case FORMAT_Q8: n = w + w / 16; break;
    case FORMAT_Q4: n = w / 2 + w / 16; break;
    case FORMAT_Q4M: n = w / 2 + w / 8; break;
    case FORMAT_Q4K: n = w / 2 + w / 16 + w / 64; break;
    case FORMAT_Q6K: n = w / 2 + w / 4 + w / 16 + w / 128; break;
    }
    return (n + 15) / 16 * 16;
}

__device__ __forceinline__ uint32_t h2(__half2 h)
{
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ __half2 as_h2(uint32_t u)
{
    return *(const __half2 *)&u;
}

__device__ __forceinline__ __half half_at(const unsigned char *p)
{
    const unsigned short u = __ldg((const unsigned short *)p);
    return __ushort_as_half(u);
}

__device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

#define HALF_MAGIC 0x64006400u /* 1024 in both halves: its last mantissa bit is worth 1 */

/* Four pairs of nibbles as 0..15, exactly. */
__device__ __forceinline__ void nibble_pairs(uint32_t w, float zero, uint32_t out[4])
{
    const __half2 low = __float2half2_rn(1024.0f + zero), high = __float2half2_rn(-64.0f - zero);
    const __half2 sixteenth = __float2half2_rn(0.0625f);
    const uint32_t w8 = w >> 8;
    out[0] = h2(__hsub2(as_h2(and_or(w, 0x000f000fu, HALF_MAGIC)), low));
    out[1] = h2(__hfma2(as_h2(and_or(w, 0x00f000f0u, HALF_MAGIC)), sixteenth, high));
    out[2] = h2(__hsub2(as_h2(and_or(w8, 0x000f000fu, HALF_MAGIC)), low));
    out[3] = h2(__hfma2(as_h2(and_or(w8, 0x00f000f0u, HALF_MAGIC)), sixteenth, high));
}

template <typename T> struct FormatPlain {
    using Type = T;
    static constexpr int E = 8, FLIGHT = 4;
    struct Regs {
        uint4 v;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        r.v = k < n_in ? load_once(row + (size_t)k * 2) : make_uint4(0, 0, 0, 0);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int, uint32_t out[4])
    {
        out[0] = r.v.x;
        out[1] = r.v.y;
        out[2] = r.v.z;
        out[3] = r.v.w;
    }
};

struct FormatF8 {
    using Type = __half;
    static constexpr int E = 16, FLIGHT = 2;
    struct Regs {
        uint4 v;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        r.v = k < n_in ? load_once(row + k) : make_uint4(0, 0, 0, 0);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        f8_pairs(word_of(r.v, 2 * i), out);
        f8_pairs(word_of(r.v, 2 * i + 1), out + 2);
    }
};

struct FormatQ8 {
    using Type = __half;
    static constexpr int E = 16, FLIGHT = 2;
    struct Regs {
        uint4 v;
        __half s;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        const uint32_t w = format_width(n_in);
        const bool there = k < w;
        r.v = there ? load_once(row + k) : make_uint4(0, 0, 0, 0);
        r.s = there ? half_at(row + w + k / 32 * 2) : __ushort_as_half(0);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        const uint32_t w0 = word_of(r.v, 2 * i) ^ 0x80808080u, w1 = word_of(r.v, 2 * i + 1) ^ 0x80808080u;
        const __half2 zero = __float2half2_rn(1152.0f), s = __half2half2(r.s);
        out[0] = h2(__hmul2(__hsub2(as_h2(__byte_perm(w0, HALF_MAGIC, 0x5150)), zero), s));
        out[1] = h2(__hmul2(__hsub2(as_h2(__byte_perm(w0, HALF_MAGIC, 0x5352)), zero), s));
        out[2] = h2(__hmul2(__hsub2(as_h2(__byte_perm(w1, HALF_MAGIC, 0x5150)), zero), s));
        out[3] = h2(__hmul2(__hsub2(as_h2(__byte_perm(w1, HALF_MAGIC, 0x5352)), zero), s));
    }
};

struct FormatQ4 {
    using Type = __half;
    static constexpr int E = 32, FLIGHT = 2;
    struct Regs {
        uint4 v;
        __half s;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        const uint32_t w = format_width(n_in);
        const bool there = k < w;
        r.v = there ? load_once(row + k / 2) : make_uint4(0, 0, 0, 0);
        r.s = there ? half_at(row + w / 2 + k / 16) : __ushort_as_half(0);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        const __half2 s = __half2half2(r.s);
        nibble_pairs(word_of(r.v, i), 8.0f, out);
        for (int p = 0; p < 4; p++)
            out[p] = h2(__hmul2(as_h2(out[p]), s));
    }
};

struct FormatQ4M {
    using Type = __half;
    static constexpr int E = 32, FLIGHT = 2;
    struct Regs {
        uint4 v;
        __half2 s, m;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        const uint32_t w = format_width(n_in);
        const bool there = k < w;
        r.v = there ? load_once(row + k / 2) : make_uint4(0, 0, 0, 0);
        const __half2 sm = as_h2(there ? __ldg((const uint32_t *)(row + w / 2 + k / 8)) : 0);
        r.s = __low2half2(sm);
        r.m = __high2half2(sm);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        nibble_pairs(word_of(r.v, i), 0.0f, out);
        for (int p = 0; p < 4; p++)
            out[p] = h2(__hfma2(as_h2(out[p]), r.s, r.m));
    }
};

struct FormatQ4K {
    using Type = __half;
    static constexpr int E = 32, FLIGHT = 2;
    struct Regs {
        uint4 v;
        uint32_t sm, d;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        const uint32_t w = format_width(n_in);
        const bool there = k < w;
        r.v = there ? load_once(row + k / 2) : make_uint4(0, 0, 0, 0);
        r.sm = there ? __ldg((const unsigned short *)(row + w / 2 + k / 16)) : 0;
        r.d = there ? __ldg((const uint32_t *)(row + w / 2 + w / 16 + k / 256 * 4)) : 0;
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        const float2 d = __half22float2(as_h2(r.d));
        const __half2 s = __float2half2_rn(d.x * (float)(r.sm & 0xff)), m = __float2half2_rn(-d.y * (float)(r.sm >> 8));
        nibble_pairs(word_of(r.v, i), 0.0f, out);
        for (int p = 0; p < 4; p++)
            out[p] = h2(__hfma2(as_h2(out[p]), s, m));
    }
};

struct FormatQ6K {
    using Type = __half;
    static constexpr int E = 32, FLIGHT = 2;
    struct Regs {
        uint4 v;
        uint2 h;
        uint32_t s;
        __half d;
    };
    static __device__ __forceinline__ void load(Regs &r, const unsigned char *row, uint32_t k, uint32_t n_in)
    {
        const uint32_t w = format_width(n_in);
        const bool there = k < w;
        const unsigned char *high = row + w / 2, *scale = high + w / 4, *d = scale + w / 16;
        r.v = there ? load_once(row + k / 2) : make_uint4(0, 0, 0, 0);
        r.h = there ? __ldg((const uint2 *)(high + k / 4)) : make_uint2(0, 0);
        r.s = there ? __ldg((const unsigned short *)(scale + k / 16)) : 0;
        r.d = there ? half_at(d + k / 256 * 2) : __ushort_as_half(0);
    }
    static __device__ __forceinline__ void pairs(const Regs &r, int i, uint32_t out[4])
    {
        const uint32_t w = word_of(r.v, i), h = i < 2 ? r.h.x : r.h.y;
        const int scale = (int)(signed char)(i < 2 ? r.s & 0xff : r.s >> 8);
        const __half2 s = __float2half2_rn(__half2float(r.d) * (float)scale), zero = __float2half2_rn(1056.0f);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const int bit = 2 * (4 * (i % 2) + p); /* of this pair in h; wanted at bit 4 */
            const uint32_t high = bit <= 4 ? h << (4 - bit) : h >> (bit - 4);
            const uint32_t q = and_or(w >> (4 * p), 0x000f000fu, and_or(high, 0x00300030u, HALF_MAGIC));
            out[p] = h2(__hmul2(__hsub2(as_h2(q), zero), s));
        }
    }
};

#endif
