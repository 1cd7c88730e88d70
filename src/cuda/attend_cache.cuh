/* Keys and values on their way from the cache to the matrix unit: how 16 positions of a kv head lie in the cache, how
 * they are brought into shared memory, and how a warp makes 16-bit pairs of them in registers.
 *
 *   F16, BF16  rows of D elements
 *   F8         rows of D bytes, e4m3; made f16 behind the load, which is exact
 *   Q8         16 rows of D signed bytes; then, for each of the 16 positions, an f16 scale per 32 elements. These are
 *              the bytes of 16 rows of Q8_0 in another order, so that whatever is asked for at once is aligned; of
 *              what is left of the last 32 only those that there are
 *
 * Bytes are loaded as matrices of 16-bit words, each of which is two neighbours of a row. So a lane holds other
 * elements than with 16-bit caches, and both products are told so: in the first, elements 4t .. 4t+3 of each 16 are the
 * pairs (2t, 2t+1) and (2t+8, 2t+9) of the sum, for keys and queries alike; in the second, columns of the two tiles of
 * 16 elements are the even and the odd ones. */
#ifndef CUDA_ATTEND_CACHE_CUH
#define CUDA_ATTEND_CACHE_CUH

#include "cuda/attend.cuh"
#include "cuda/e4m3.cuh"

template <typename T> struct CachePlain {
    using Type = T;
    static constexpr bool BYTES = false, SCALED = false;
};

struct CacheF8 {
    using Type = __half;
    static constexpr bool BYTES = true, SCALED = false;
};

struct CacheQ8 {
    using Type = __half;
    static constexpr bool BYTES = true, SCALED = true;
};

/* Four signed bytes as two pairs, each pair times its own scales. */
__device__ __forceinline__ void q8_pairs(uint32_t w, __half2 scale, uint32_t out[2])
{
    const uint32_t magic = 0x64006400u, u = w ^ 0x80808080u; /* 1024 in both halves: its last bit is worth 1 */
    const __half2 zero = __float2half2_rn(1152.0f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t x = __byte_perm(u, magic, i == 0 ? 0x5150 : 0x5352);
        const __half2 y = __hmul2(__hsub2(*(const __half2 *)&x, zero), scale);
        out[i] = *(const uint32_t *)&y;
    }
}

/* N positions of one kind (keys, or values) in shared memory; a multiple of 16. */
template <class C, int D, int N> struct CacheRows {
    using T = typename C::Type;
    static constexpr int ELEMENT = C::BYTES ? 1 : 2;
    /* an odd number of 16 bytes, so that no two of 8 rows meet in a bank */
    static constexpr int ROW = (D * ELEMENT / 16 | 1) * 16;
    static constexpr int SCALES = (D + 31) / 32;
    static constexpr int ROOM = N * ROW + (C::SCALED ? (N * SCALES * 2 + 15) / 16 * 16 : 0); /* bytes */
    static constexpr int PIECES = D * ELEMENT;                                               /* of 16 bytes: 16 rows */
    static_assert(D % 16 == 0 && N % 16 == 0);

    /* A warp asks for the 16 positions at `from` as positions 16n of the room; the first `there` of them exist, the
     * others are zeros. */
    static __device__ __forceinline__ void fetch(unsigned char *room, int n, const unsigned char *from, uint32_t there)
    {
        const uint32_t lane = threadIdx.x % 32;
        constexpr int EACH = PIECES / 16; /* of a row */
#pragma unroll
        for (int i = 0; i < (PIECES + 31) / 32; i++) {
            const uint32_t c = lane + 32 * i, row = c / EACH, column = c % EACH;
            if (PIECES % 32 == 0 || c < PIECES)
                copy_async(room + (16 * n + row) * ROW + 16 * column, from + (size_t)c * 16, row < there);
        }
        if (C::SCALED && lane < SCALES * 2) /* those of positions that do not exist are left out where they are read */
            copy_async(room + N * ROW + (n * SCALES * 2 + lane) * 16, from + (size_t)(PIECES + lane) * 16, there > 0);
    }

    static __device__ __forceinline__ __half scale_at(const unsigned char *room, uint32_t position, int c)
    {
        return ((const __half *)(room + N * ROW))[position * SCALES + c];
    }

    /* Of positions `at` and the next; zero for those that do not exist. */
    static __device__ __forceinline__ __half2 two_scales(
        const unsigned char *room, int n, uint32_t at, int c, uint32_t there)
    {
        const __half none = __ushort_as_half(0);
        return __halves2half2(at < there ? scale_at(room, 16 * n + at, c) : none,
            at + 1 < there ? scale_at(room, 16 * n + at + 1, c) : none);
    }

    /* The words of four matrices: positions 16n + 0..7 and 16n + 8..15 of elements 32c .. 32c+15, then of the next 16
     * (or, behind the last, the same again). */
    template <bool TRANSPOSED>
    static __device__ __forceinline__ void words(const unsigned char *room, int n, int c, uint32_t w[4])
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t column = min(2 * c + lane / 16, (uint32_t)D / 16 - 1);
        load_matrices<TRANSPOSED>(w, room + (16 * n + lane % 16) * ROW + 16 * column);
    }

    /* Keys 16n .. 16n+15 as columns, for the sums over elements 32c .. 32c+15 (b[0]) and the next 16 (b[1], when there
     * are): two registers for the first 8 positions, two for the others. */
    static __device__ __forceinline__ void keys(const unsigned char *room, int n, int c, uint32_t b[2][4])
    {
        const uint32_t lane = threadIdx.x % 32;
        if constexpr (!C::BYTES) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (2 * c + i < D / 16)
                    load_matrices<false>(
                        b[i], room + (16 * n + lane / 16 * 8 + lane % 8) * ROW + 32 * (2 * c + i) + lane / 8 % 2 * 16);
            return;
        }
        uint32_t w[4];
        words<false>(room, n, c, w);
        __half2 scale[2] = {};
        if constexpr (C::SCALED) {
            scale[0] = __half2half2(scale_at(room, 16 * n + lane / 4, c));
            scale[1] = __half2half2(scale_at(room, 16 * n + 8 + lane / 4, c));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (C::SCALED)
                q8_pairs(w[i], scale[i % 2], &b[i / 2][i % 2 * 2]);
            else
                f8_pairs(w[i], &b[i / 2][i % 2 * 2]);
        }
    }

    /* Values 16n .. 16n+15 as the rows of the sum, for the two tiles of elements 32c .. 32c+15 (b[0]) and of the next
     * 16 (b[1], when there are): two registers for each tile. there: positions of these 16 that exist. */
    static __device__ __forceinline__ void values(
        const unsigned char *room, int n, int c, uint32_t there, uint32_t b[2][4])
    {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4;
        if constexpr (!C::BYTES) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (2 * c + i < D / 16)
                    load_matrices<true>(
                        b[i], room + (16 * n + lane / 8 % 2 * 8 + lane % 8) * ROW + 32 * (2 * c + i) + lane / 16 * 16);
            return;
        }
        uint32_t w[4];
        words<true>(room, n, c, w);
        __half2 scale[2] = {};
        if constexpr (C::SCALED) {
            scale[0] = two_scales(room, n, 2 * t, c, there);
            scale[1] = two_scales(room, n, 2 * t + 8, c, there);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t turned = __byte_perm(w[i], 0, 0x3120); /* even elements of both positions, odd ones */
            uint32_t pairs[2];
            if constexpr (C::SCALED)
                q8_pairs(turned, scale[i % 2], pairs);
            else
                f8_pairs(turned, pairs);
            b[i / 2][i % 2] = pairs[0];
            b[i / 2][2 + i % 2] = pairs[1];
        }
    }

    /* What a lane has of 16 outputs of a row: x of the first tile, y of the second. */
    static __device__ __forceinline__ void put4(float *row, float x0, float x1, float y0, float y1)
    {
        const uint32_t t = threadIdx.x % 4;
        if constexpr (C::BYTES)
            *(float4 *)(row + 4 * t) = make_float4(x0, y0, x1, y1);
        else {
            *(float2 *)(row + 2 * t) = make_float2(x0, x1);
            *(float2 *)(row + 8 + 2 * t) = make_float2(y0, y1);
        }
    }

    static __device__ __forceinline__ void act4(
        const struct act_rows &out, size_t at, float x0, float x1, float y0, float y1)
    {
        const uint32_t t = threadIdx.x % 4;
        if constexpr (C::BYTES)
            act_put4(out, at + 4 * t, make_float4(x0, y0, x1, y1));
        else {
            act_put2(out, at + 2 * t, x0, x1);
            act_put2(out, at + 8 + 2 * t, y0, y1);
        }
    }

    /* Four neighbours of 16 elements of a query, at column 4t: where the pairs of the sum lie. */
    static __device__ __forceinline__ int query_low(int column)
    {
        return C::BYTES ? column / 16 * 16 + column % 16 / 2 : column;
    }
    static __device__ __forceinline__ int query_high(int column)
    {
        return C::BYTES ? query_low(column) + 8 : column + 2;
    }
};

/* The queries of n_all (row, head) pairs that share a kv head, as the first product's tall operand: 16 pairs, zeros
 * behind the last. */
template <class C, int D>
__device__ __forceinline__ void load_queries(
    const struct attend_job &j, uint32_t first_row, uint32_t kv_head, uint32_t n_all, uint32_t q[D / 16][4])
{
    using T = typename C::Type;
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr int LOW = C::BYTES ? 4 : 2, HIGH = C::BYTES ? 2 : 8; /* a lane's first pair; from it to the second */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = g + 8 * half, row = first_row + r / j.per_kv;
        const float *from = j.q + ((size_t)row * j.n_heads + kv_head * j.per_kv + r % j.per_kv) * D + LOW * t;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            float2 lo = make_float2(0.0f, 0.0f), hi = lo;
            if (r < n_all) {
                lo = *(const float2 *)(from + 16 * k);
                hi = *(const float2 *)(from + 16 * k + HIGH);
            }
            q[k][half] = pack2(T(), lo.x, lo.y);
            q[k][2 + half] = pack2(T(), hi.x, hi.y);
        }
    }
}

/* ---- which kernel --------------------------------------------------------------------------------------------------
 */

template <int N> struct HeadSize {
    static constexpr int D = N;
};

template <class C, class V> void attend_size(const struct attend_job *j, V &&v)
{
    switch (j->head_dim) {
    case 64: v(C(), HeadSize<64>()); break;
    case 80: v(C(), HeadSize<80>()); break;
    case 96: v(C(), HeadSize<96>()); break;
    case 128: v(C(), HeadSize<128>()); break;
    default: v(C(), HeadSize<256>()); break;
    }
}

/* v(cache, size) of what the job's cache and heads are. Host code. */
template <class V> void attend_visit(const struct attend_job *j, V &&v)
{
    switch (j->dtype) {
    case DTYPE_F16: attend_size<CachePlain<__half>>(j, v); break;
    case DTYPE_F8_E4M3: attend_size<CacheF8>(j, v); break;
    case DTYPE_Q8_0: attend_size<CacheQ8>(j, v); break;
    default: attend_size<CachePlain<__nv_bfloat16>>(j, v); break;
    }
}

#endif
