/* Products of quantised weights inside a resident kernel, in whole numbers: a block's values go to the matrix unit as
 * signed bytes, and its scale is taken to what comes out. Making them floats first is four times the work.
 *
 * Activations. 32 neighbours share a scale, the largest of them over WHOLE_MOST, and are whole numbers of 16 bits in
 * two signed bytes each, 256 * high + low: what is rounded away is 2^-16 of the largest, no more than f16 would lose.
 *
 * A lane's part of a slice (formats.cuh) has scales of its own, and the matrix unit adds over the four lanes of a row.
 * So each lane's activations stand in columns of their own: those that lane t's weights meet in column 2t (high bytes)
 * and 2t + 1 (low bytes), zeros in the others; which is where lane t's sums come out. One row takes all eight columns.
 * Of the 32 lanes that hold a column's elements only those with g / 2 == t have any; the others' registers are zero.
 *
 * A row in the room: pieces of 16 elements, their high bytes and their low ones, in the order in which the lanes read
 * them, so that the eight of a slice lie side by side; then for each 32 the scale, and scale times sum. Beside nibbles
 * the elements of eight lie as those do.
 *
 * Whole<F>: what the bytes are to be multiplied by to be the format's values (FACTOR), how many scales a lane's part
 * has (CHAINS), whether sums of activations are wanted (SUMS); words() makes two registers of bytes of the i-th eight;
 * fold() adds what came out. */
#ifndef CUDA_RESIDENT_WHOLE_CUH
#define CUDA_RESIDENT_WHOLE_CUH

#include "cuda/resident.h"
#include "cuda/resident_cells.cuh"

#define WHOLE_MOST  32512.0f    /* 127 * 256: both bytes fit */
#define WHOLE_LEAST 1e-30f      /* smaller ones are nothing, so that no quotient overflows */
#define WHOLE_MAGIC 12582912.0f /* 1.5 * 2^23: its last bit is worth 1 */
#define WHOLE_BATCH 7           /* loads of a thread on their way */

__device__ __forceinline__ uint32_t lane_anew()
{
    return thread_anew() % 32;
}

/* ---- formats -------------------------------------------------------------------------------------------------------
 */

/* What came out for one row: high bytes' and low bytes' sums. */
__device__ __forceinline__ float whole_sum(const int32_t c[2])
{
    return (float)(c[0] * 256 + c[1]);
}

/* To the left, or to the right where by is negative. */
__device__ __forceinline__ uint32_t shifted(uint32_t x, int by)
{
    return by < 0 ? x >> -by : x << by;
}

template <class F> struct Whole;

template <> struct Whole<FormatQ8> {
    static constexpr int CHAINS = 1;
    static constexpr bool SUMS = false;
    static constexpr float FACTOR = 1.0f;
    static __device__ __forceinline__ void words(const FormatQ8::Regs &w, int i, uint32_t &first, uint32_t &second)
    {
        first = word_of(w.v, 2 * i);
        second = word_of(w.v, 2 * i + 1);
    }
    static __device__ __forceinline__ void fold(
        const FormatQ8::Regs &w, float2 s, const int32_t (*c)[4], int row, float &sum)
    {
        sum = fmaf(whole_sum(c[0] + row), s.x * __half2float(w.s), sum);
    }
};

template <> struct Whole<FormatQ4> {
    static constexpr int CHAINS = 1;
    static constexpr bool SUMS = false;
    static constexpr float FACTOR = 1.0f / 16;
    static __device__ __forceinline__ void words(const FormatQ4::Regs &w, int i, uint32_t &first, uint32_t &second)
    {
        const uint32_t v = word_of(w.v, i);
        first = and_xor(v << 4, 0xf0f0f0f0u, 0x80808080u);
        second = and_xor(v, 0xf0f0f0f0u, 0x80808080u);
    }
    static __device__ __forceinline__ void fold(
        const FormatQ4::Regs &w, float2 s, const int32_t (*c)[4], int row, float &sum)
    {
        sum = fmaf(whole_sum(c[0] + row), s.x * __half2float(w.s), sum);
    }
};

template <> struct Whole<FormatQ4K> {
    static constexpr int CHAINS = 1;
    static constexpr bool SUMS = true;
    static constexpr float FACTOR = 1.0f;
    static __device__ __forceinline__ void words(const FormatQ4K::Regs &w, int i, uint32_t &first, uint32_t &second)
    {
        const uint32_t v = word_of(w.v, i);
        first = v & 0x0f0f0f0fu;
        second = v >> 4 & 0x0f0f0f0fu;
    }
    static __device__ __forceinline__ void fold(
        const FormatQ4K::Regs &w, float2 s, const int32_t (*c)[4], int row, float &sum)
    {
        const float2 d = __half22float2(as_h2(w.d));
        const int32_t scaled = (c[0][row] * 256 + c[0][row + 1]) * (int32_t)(w.sm & 0xff); /* below 2^30 */
        sum = fmaf((float)scaled, s.x * d.x, sum);
        sum = fmaf((float)(w.sm >> 8), -(s.y * d.y), sum);
    }
};

template <> struct Whole<FormatQ6K> {
    static constexpr int CHAINS = 2;
    static constexpr bool SUMS = false;
    static constexpr float FACTOR = 1.0f / 4;
    static __device__ __forceinline__ void words(const FormatQ6K::Regs &w, int i, uint32_t &first, uint32_t &second)
    {
        const uint32_t v = word_of(w.v, i);
        const uint32_t h = i < 2 ? w.h.x : w.h.y;
        const int by = i % 2 == 0 ? 6 : -2; /* the first pair of bits to bits 6 and 7 */
        first = and_xor(shifted(h, by), 0x00c000c0u, 0x80808080u);
        first = and_xor(shifted(h, by + 4), 0xc000c000u, first);
        first = and_xor(v << 2, 0x3c3c3c3cu, first);
        second = and_xor(shifted(h, by - 2), 0x00c000c0u, 0x80808080u);
        second = and_xor(shifted(h, by + 2), 0xc000c000u, second);
        second = and_xor(v >> 2, 0x3c3c3c3cu, second);
    }
    static __device__ __forceinline__ void fold(
        const FormatQ6K::Regs &w, float2 s, const int32_t (*c)[4], int row, float &sum)
    {
        const float low = (float)(int32_t)(signed char)(w.s & 0xff), high = (float)((int32_t)(w.s << 16) >> 24);
        const float both = fmaf(whole_sum(c[1] + row), high, whole_sum(c[0] + row) * low);
        sum = fmaf(both, s.x * __half2float(w.d), sum);
    }
};

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

/* Four numbers: their bytes, in order, and what they add up to. */
struct whole4 {
    uint32_t high, low;
    int32_t sum;
    __device__ __forceinline__ whole4(float a, float b, float c, float d, float inverse)
    {
        const float magic = WHOLE_MAGIC + 128.0f; /* 128 more rounds the high byte */
        const uint32_t x = __float_as_uint(fmaf(a, inverse, magic)), y = __float_as_uint(fmaf(b, inverse, magic));
        const uint32_t z = __float_as_uint(fmaf(c, inverse, magic)), w = __float_as_uint(fmaf(d, inverse, magic));
        const uint32_t xy = __byte_perm(x, y, 0x5140), zw = __byte_perm(z, w, 0x5140);
        high = __byte_perm(xy, zw, 0x7632);
        low = __byte_perm(xy, zw, 0x5410) ^ 0x80808080u;
        sum = (int32_t)(x + y + z + w - 4 * __float_as_uint(magic));
    }
};

/* Where a row goes. What several lanes hold of 32 neighbours they settle together, so whole warps call; N things at a
 * time, so that one's shuffles are done while another's are waited for. */
template <class F> struct WholeRow {
    static constexpr bool NIBBLES = F::E == 32;
    unsigned char *bytes;
    float2 *scales;

    __device__ __forceinline__ WholeRow(unsigned char *room, uint32_t n)
        : bytes(room), scales((float2 *)(room + resident_width(n) * 2))
    {
    }

    static __device__ __forceinline__ float inverse(float most)
    {
        return most > WHOLE_LEAST ? WHOLE_MOST * reciprocal_fast(most) : 0.0f;
    }

    /* The largest, or the sum, of all that LANES neighbours have. */
    template <int LANES, int N> static __device__ __forceinline__ void share(float (&most)[N])
    {
#pragma unroll
        for (int step = 1; step < LANES; step *= 2)
#pragma unroll
            for (int i = 0; i < N; i++)
                most[i] = larger(most[i], __shfl_xor_sync(ALL_LANES, most[i], step));
    }
    template <int LANES, int N> static __device__ __forceinline__ void share(int32_t (&sum)[N])
    {
#pragma unroll
        for (int step = 1; step < LANES; step *= 2)
#pragma unroll
            for (int i = 0; i < N; i++)
                sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], step);
    }

    /* The bytes of eight neighbours from element e on, as they lie: high ones (part 0) or low ones. */
    __device__ __forceinline__ void put(uint32_t e, uint32_t part, uint32_t first, uint32_t second) const
    {
        const uint32_t piece = e / 16, place = NIBBLES ? piece / 8 * 8 + piece % 2 * 4 + piece / 2 % 4 : piece;
        *(uint2 *)(bytes + place * 32 + part * 16 + e % 16) = make_uint2(first, second);
    }

    __device__ __forceinline__ void put_scale(uint32_t e, float most, int32_t sum) const
    {
        const float scale = most * (Whole<F>::FACTOR / WHOLE_MOST);
        if (e % 32 == 0)
            scales[e / 32] = make_float2(scale, scale * (float)sum);
    }

    /* Elements 4a .. 4a + 3 for a = at, at + step, ..., below end. */
    template <int N>
    __device__ __forceinline__ void put4(uint32_t at, uint32_t step, uint32_t end, const float4 (&v)[N]) const
    {
        float most[N];
        int32_t sum[N];
        uint32_t mine[N], got[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            most[i] = larger(larger(fabsf(v[i].x), fabsf(v[i].y)), larger(fabsf(v[i].z), fabsf(v[i].w)));
        share<8>(most);
        const bool odd = at % 2 != 0; /* the even lane of two puts the high bytes of both, the odd one the low ones */
#pragma unroll
        for (int i = 0; i < N; i++) {
            const struct whole4 q(v[i].x, v[i].y, v[i].z, v[i].w, inverse(most[i]));
            mine[i] = odd ? q.low : q.high;
            got[i] = __shfl_xor_sync(ALL_LANES, odd ? q.high : q.low, 1);
            sum[i] = q.sum;
        }
        if (Whole<F>::SUMS)
            share<8>(sum);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at + i * step < end) {
                const uint32_t a = odd ? got[i] : mine[i], b = odd ? mine[i] : got[i];
                put((at + i * step) / 2 * 8, odd, NIBBLES ? __byte_perm(a, b, 0x5140) : a,
                    NIBBLES ? __byte_perm(a, b, 0x7362) : b);
                put_scale((at + i * step) * 4, most[i], sum[i]);
            }
    }

    /* Elements 8a .. 8a + 7 from f16, likewise. */
    template <int N>
    __device__ __forceinline__ void put8(uint32_t at, uint32_t step, uint32_t end, const uint4 *v) const
    {
        float most[N];
        int32_t sum[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const __half2 pair = __hmax2_nan(__hmax2_nan(__habs2(as_h2(v[i].x)), __habs2(as_h2(v[i].y))),
                __hmax2_nan(__habs2(as_h2(v[i].z)), __habs2(as_h2(v[i].w))));
            most[i] = larger(__low2float(pair), __high2float(pair));
        }
        share<4>(most);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float2 a = __half22float2(as_h2(v[i].x)), b = __half22float2(as_h2(v[i].y));
            const float2 c = __half22float2(as_h2(v[i].z)), d = __half22float2(as_h2(v[i].w));
            const float by = inverse(most[i]);
            const struct whole4 p = NIBBLES ? whole4(a.x, c.x, a.y, c.y, by) : whole4(a.x, a.y, b.x, b.y, by);
            const struct whole4 q = NIBBLES ? whole4(b.x, d.x, b.y, d.y, by) : whole4(c.x, c.y, d.x, d.y, by);
            sum[i] = p.sum + q.sum;
            if (at + i * step < end) {
                put((at + i * step) * 8, 0, p.high, q.high);
                put((at + i * step) * 8, 1, p.low, q.low);
            }
        }
        if (Whole<F>::SUMS)
            share<4>(sum);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (at + i * step < end)
                put_scale((at + i * step) * 8, most[i], sum[i]);
    }
};

/* A row of n f16 numbers that other blocks wrote. */
template <int WARPS, class F>
__device__ __forceinline__ void whole_halves(const uint4 *from, uint32_t n, const WholeRow<F> &to)
{
    constexpr uint32_t STEP = WARPS * 32;
    static_assert(WHOLE_BATCH % 2 == 1, "pairs and one");
    const uint32_t thread = thread_anew();
    const uint32_t end = resident_width(n) / 8;
    for (uint32_t first = 0; first < end; first += WHOLE_BATCH * STEP) {
        uint4 v[WHOLE_BATCH];
#pragma unroll
        for (uint32_t i = 0; i < WHOLE_BATCH; i++) {
            const uint32_t at = first + thread + i * STEP;
            v[i] = at < n / 8 ? __ldcg(from + at) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t i = 0; i + 1 < WHOLE_BATCH; i += 2)
            if (first + i * STEP < end)
                to.template put8<2>(first + thread + i * STEP, STEP, end, v + i);
        if (first + (WHOLE_BATCH - 1) * STEP < end)
            to.template put8<1>(first + thread + (WHOLE_BATCH - 1) * STEP, STEP, end, v + WHOLE_BATCH - 1);
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* A lane's view of N activation rows from a stage's first element on. */
template <class F, int N> struct WholeStage {
    static constexpr uint32_t SLICE = 4 * F::E, ALL = Cell<F>::STEP / SLICE, PIECES = F::E / 16;
    const float2 *scales;
    uint32_t bytes, row_bytes, lane;
    float sum[N][2];

    __device__ __forceinline__ WholeStage(const unsigned char *room, uint32_t k, uint32_t n, uint32_t lane)
        : scales((const float2 *)(room + resident_width(n) * 2) + k / 32),
          bytes(shared_at(room) + k * 2 + lane % 4 * 32 + lane / 4 % 2 * 16),
          row_bytes(resident_row_bytes(RESIDENT_QUANT, n)), lane(lane), sum()
    {
    }

    /* Slice i, with the weights of rows g and g + 8; b: zero before the first, and nobody else's. */
    __device__ __forceinline__ void slice(
        uint32_t i, const typename F::Regs &one, const typename F::Regs &two, uint4 (&b)[N][PIECES])
    {
        using W = Whole<F>;
        const bool own = lane / 8 == lane % 4;
        float2 s[N];
        int32_t c[N][W::CHAINS][4] = {};
#pragma unroll
        for (int r = 0; r < N; r++) {
#pragma unroll
            for (uint32_t p = 0; p < PIECES; p++)
                load_own(b[r][p], bytes + r * row_bytes + i * SLICE * 2 + p * 128, own);
            const float2 *at = scales + (i * SLICE + lane % 4 * F::E) / 32;
            s[r] = *(const float2 *)((const unsigned char *)at + r * row_bytes);
        }
#pragma unroll
        for (int j = 0; j < F::E / 8; j++) {
            uint32_t p[2], q[2];
            W::words(one, j, p[0], p[1]);
            W::words(two, j, q[0], q[1]);
#pragma unroll
            for (int r = 0; r < N; r++)
                mma(c[r][j * W::CHAINS * 8 / F::E], p[0], q[0], p[1], q[1], word_of(b[r][j / 2], j % 2 * 2),
                    word_of(b[r][j / 2], j % 2 * 2 + 1));
        }
#pragma unroll
        for (int r = 0; r < N; r++) {
            W::fold(one, s[r], c[r], 0, sum[r][0]);
            W::fold(two, s[r], c[r], 2, sum[r][1]);
        }
    }

    /* As the matrix unit has sums, of rows 0 and 1 in its columns 0 and 1. */
    __device__ __forceinline__ void end(float acc[4]) const
    {
#pragma unroll
        for (int r = 0; r < N; r++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = sum[r][half];
                x += __shfl_xor_sync(ALL_LANES, x, 1);
                x += __shfl_xor_sync(ALL_LANES, x, 2);
                acc[2 * half + r] = x;
            }
    }
};

/* One row and a whole stage that is in registers. */
template <class F>
__device__ __forceinline__ void whole_held(
    const struct held_stage &held, const unsigned char *room, uint32_t k, uint32_t n, uint32_t lane, float acc[4])
{
    using S = WholeStage<F, 1>;
    S stage(room, k, n, lane);
    uint4 b[2][1][S::PIECES] = {};
#pragma unroll
    for (uint32_t i = 0; i < S::ALL; i++) {
        typename F::Regs one, two;
        Cell<F>::take(one, held, i, 0);
        Cell<F>::take(two, held, i, 1);
        stage.slice(i, one, two, b[i % 2]);
    }
    stage.end(acc);
}

/* Any stage, from the ring. */
template <class F, int N>
__device__ __forceinline__ void whole_stage(
    const unsigned char *slot, const unsigned char *room, uint32_t k, uint32_t n, uint32_t lane, float acc[4])
{
    using S = WholeStage<F, N>;
    S stage(room, k, n, lane);
    uint4 b[N][S::PIECES] = {};
    const uint32_t n_slices = (min(Cell<F>::STEP, n - k) + S::SLICE - 1) / S::SLICE;
    for (uint32_t i = 0; i < n_slices; i++) {
        const uint32_t e = i * S::SLICE + lane % 4 * F::E;
        typename F::Regs one, two;
        Cell<F>::get(one, slot, lane / 4, e, k);
        Cell<F>::get(two, slot, lane / 4 + 8, e, k);
        stage.slice(i, one, two, b);
    }
    stage.end(acc);
}

#endif
