/* How the ring of a resident kernel holds weights. A stage is a piece of k of 16 matrix rows: 512 bytes of values a row
 * (half of it for Q6K) and what belongs to them. Values lie in units of 16 bytes, those of odd rows with neighbouring
 * fours swapped, so that the eight lanes that read together meet in no bank. (Bulk copies, a row each, were tried: one
 * takes some 65 cycles whatever its size, so rows this short came at 80% of the memory's rate and less.)
 *
 * Cell<F>: STEP elements of a stage, SLOT bytes of it, FLIGHT stages on their way; fetch() asks for a stage from
 * element k of rows of n, by one warp; get() fills the format's registers with what lane t needs of one row, e elements
 * into the stage; hold() takes all that a lane needs of a whole stage into registers, and take() fills the format's
 * with what is there of a slice of the lane's first row or its second. */
#ifndef CUDA_RESIDENT_CELLS_CUH
#define CUDA_RESIDENT_CELLS_CUH

#include "cuda/formats.cuh"
#include "cuda/tma.cuh"

#define CELL_ROW 512 /* bytes of values of a row */

/* Bytes of stages on their way: more would stand in line, and whatever else is read behind them. */
#define CELL_AHEAD (56 << 10)

/* The rows of a tile as a lane of the carrier asks for them: its unit of rows lane/8 + 4i, and row lane%16. */
struct cell_rows {
    const unsigned char *unit[4], *rest;
};

/* Columns of 128 bytes of 16 rows, from byte `at` of each; nothing past `end`. ROW: bytes between rows. Addresses
 * differ by constants, which cost nothing: one that is made for each copy waits until the copy before has read its own.
 */
template <uint32_t ROW>
__device__ __forceinline__ void fetch_units(unsigned char *slot, const struct cell_rows &w, uint32_t at, uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32, u = lane % 8, row = lane / 8;
    const uint32_t to = shared_at(slot) + row * ROW + (u ^ (row & 1) << 2) * 16;
    const unsigned char *from[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        from[i] = w.unit[i] + at;
    if (at + ROW <= end) {
#pragma unroll
        for (uint32_t c = 0; c < ROW / 128; c++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                copy16(to + i * 4 * ROW + c * 128, from[i] + c * 128);
        return;
    }
    for (uint32_t c = 0; c < ROW / 128; c++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (at + c * 128 + u * 16 < end)
                copy16(to + i * 4 * ROW + c * 128, from[i] + c * 128);
}

/* Unit u of a row. */
template <uint32_t ROW> __device__ __forceinline__ uint4 unit_of(const unsigned char *slot, uint32_t row, uint32_t u)
{
    return *(const uint4 *)(slot + row * ROW + (u ^ (row & 1) << 2) * 16);
}

/* UNITS a row of what lies beside the values, from byte `at` of it to `end`; PITCH bytes apart. */
template <uint32_t UNITS, uint32_t PITCH>
__device__ __forceinline__ void fetch_rest(unsigned char *slot, const unsigned char *from, uint32_t at, uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, first = lane / 16;
    const uint32_t to = shared_at(slot) + row * PITCH + first * 16;
    from += at + first * 16;
#pragma unroll
    for (uint32_t u = 0; u < UNITS; u += 2)
        if (u + first < UNITS && at + (u + first) * 16 < end)
            copy16(to + u * 16, from + u * 16);
}

/* What a lane has of a stage: rows g and g + 8 by turns, slice by slice. */
struct held_stage {
    uint4 unit[16];
    uint32_t rest[16];
};

template <uint32_t ROW>
__device__ __forceinline__ void hold_units(struct held_stage &h, const unsigned char *slot, uint32_t lane)
{
#pragma unroll
    for (uint32_t i = 0; i < ROW / 32; i++)
        h.unit[i] = unit_of<ROW>(slot, lane / 4 + i % 2 * 8, i / 2 * 4 + lane % 4);
}

/* Two 16-bit numbers, STEP bytes apart, as one register. */
template <uint32_t STEP> __device__ __forceinline__ uint32_t shorts_at(const unsigned char *p)
{
    const uint32_t low = *(const unsigned short *)p, high = *(const unsigned short *)(p + STEP);
    return low | high << 16;
}

__device__ __forceinline__ unsigned short short_of(uint32_t w, int second)
{
    return (unsigned short)(second ? w >> 16 : w);
}

template <class F> struct Cell;

template <typename T> struct Cell<FormatPlain<T>> {
    static constexpr uint32_t STEP = 256, SLOT = 16 * CELL_ROW, FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        fetch_units<CELL_ROW>(slot, w, k * 2, n * 2);
    }
    static __device__ __forceinline__ void get(
        typename FormatPlain<T>::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<CELL_ROW>(slot, row, e / 8);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t)
    {
        hold_units<CELL_ROW>(h, slot, lane);
    }
    static __device__ __forceinline__ void take(
        typename FormatPlain<T>::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
    }
};

template <> struct Cell<FormatF8> {
    static constexpr uint32_t STEP = 512, SLOT = 16 * CELL_ROW, FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        fetch_units<CELL_ROW>(slot, w, k, n);
    }
    static __device__ __forceinline__ void get(
        FormatF8::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<CELL_ROW>(slot, row, e / 16);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t)
    {
        hold_units<CELL_ROW>(h, slot, lane);
    }
    static __device__ __forceinline__ void take(
        FormatF8::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
    }
};

/* Behind the values of all rows: scales, 16 bytes further apart than they are long. */
template <> struct Cell<FormatQ8> {
    static constexpr uint32_t STEP = 512, SCALES = 16 * CELL_ROW, ROW = 48, SLOT = SCALES + 16 * ROW,
                              FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_units<CELL_ROW>(slot, w, k, width);
        fetch_rest<2, ROW>(slot + SCALES, w.rest + width, k / 16, width / 16);
    }
    static __device__ __forceinline__ void get(
        FormatQ8::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<CELL_ROW>(slot, row, e / 16);
        r.s = *(const __half *)(slot + SCALES + row * ROW + e / 32 * 2);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t)
    {
        hold_units<CELL_ROW>(h, slot, lane);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            h.rest[i] = shorts_at<8 * ROW>(slot + SCALES + lane / 4 * ROW + (i * 2 + lane % 4 / 2) * 2);
    }
    static __device__ __forceinline__ void take(
        FormatQ8::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
        r.s = __ushort_as_half(short_of(h.rest[slice], second));
    }
};

template <> struct Cell<FormatQ4> {
    static constexpr uint32_t STEP = 1024, SCALES = 16 * CELL_ROW, ROW = 80, SLOT = SCALES + 16 * ROW,
                              FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_units<CELL_ROW>(slot, w, k / 2, width / 2);
        fetch_rest<4, ROW>(slot + SCALES, w.rest + width / 2, k / 16, width / 16);
    }
    static __device__ __forceinline__ void get(
        FormatQ4::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<CELL_ROW>(slot, row, e / 32);
        r.s = *(const __half *)(slot + SCALES + row * ROW + e / 16);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t)
    {
        hold_units<CELL_ROW>(h, slot, lane);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            h.rest[i] = shorts_at<8 * ROW>(slot + SCALES + lane / 4 * ROW + (i * 4 + lane % 4) * 2);
    }
    static __device__ __forceinline__ void take(
        FormatQ4::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
        r.s = __ushort_as_half(short_of(h.rest[slice], second));
    }
};

template <> struct Cell<FormatQ4K> {
    static constexpr uint32_t STEP = 1024, SCALES = 16 * CELL_ROW, ROW = 80, D = SCALES + 16 * ROW, D_ROW = 16,
                              SLOT = D + 16 * D_ROW, FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_units<CELL_ROW>(slot, w, k / 2, width / 2);
        fetch_rest<4, ROW>(slot + SCALES, w.rest + width / 2, k / 16, width / 16);
        fetch_rest<1, D_ROW>(slot + D, w.rest + width / 2 + width / 16, k / 64, width / 64);
    }
    static __device__ __forceinline__ void get(
        FormatQ4K::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<CELL_ROW>(slot, row, e / 32);
        r.sm = *(const unsigned short *)(slot + SCALES + row * ROW + e / 16);
        r.d = *(const uint32_t *)(slot + D + row * D_ROW + e / 256 * 4);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t)
    {
        hold_units<CELL_ROW>(h, slot, lane);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            h.rest[i] = shorts_at<8 * ROW>(slot + SCALES + lane / 4 * ROW + (i * 4 + lane % 4) * 2);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint4 d = *(const uint4 *)(slot + D + (lane / 4 + i * 8) * D_ROW);
            for (int j = 0; j < 4; j++)
                h.rest[8 + 4 * i + j] = word_of(d, j);
        }
    }
    static __device__ __forceinline__ void take(
        FormatQ4K::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
        r.sm = short_of(h.rest[slice], second);
        r.d = h.rest[8 + 4 * second + slice / 2];
    }
};

template <> struct Cell<FormatQ6K> {
    static constexpr uint32_t STEP = 512, HALF = CELL_ROW / 2, HIGH = 16 * HALF, HIGH_ROW = 144,
                              SCALES = HIGH + 16 * HIGH_ROW, ROW = 48, D = SCALES + 16 * ROW, D_ROW = 16,
                              SLOT = D + 16 * D_ROW, FLIGHT = CELL_AHEAD / SLOT;
    static __device__ __forceinline__ void fetch(unsigned char *slot, const struct cell_rows &w, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_units<HALF>(slot, w, k / 2, width / 2);
        fetch_rest<8, HIGH_ROW>(slot + HIGH, w.rest + width / 2, k / 4, width / 4);
        fetch_rest<2, ROW>(slot + SCALES, w.rest + width / 2 + width / 4, k / 16, width / 16);
        fetch_rest<1, D_ROW>(slot + D, w.rest + width / 2 + width / 4 + width / 16, k / 2048 * 16, width / 128);
    }
    static __device__ __forceinline__ void get(
        FormatQ6K::Regs &r, const unsigned char *slot, uint32_t row, uint32_t e, uint32_t k)
    {
        r.v = unit_of<HALF>(slot, row, e / 32);
        r.h = *(const uint2 *)(slot + HIGH + row * HIGH_ROW + e / 4);
        r.s = *(const unsigned short *)(slot + SCALES + row * ROW + e / 16);
        r.d = *(const __half *)(slot + D + row * D_ROW + (k + e) / 256 % 8 * 2);
    }
    static __device__ __forceinline__ void hold(
        struct held_stage &h, const unsigned char *slot, uint32_t lane, uint32_t k)
    {
        hold_units<HALF>(h, slot, lane);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t at = i * 4 + lane % 4;
            const unsigned char *high = slot + HIGH + lane / 4 * HIGH_ROW + at * 8;
            const uint2 one = *(const uint2 *)high, two = *(const uint2 *)(high + 8 * HIGH_ROW);
            h.unit[8 + i] = make_uint4(one.x, one.y, two.x, two.y);
            h.rest[i] = shorts_at<8 * ROW>(slot + SCALES + lane / 4 * ROW + at * 2);
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            h.rest[4 + i] = *(const uint32_t *)(slot + D + (lane / 4 + i * 8) * D_ROW + k / 256 % 8 * 2);
    }
    static __device__ __forceinline__ void take(
        FormatQ6K::Regs &r, const struct held_stage &h, uint32_t slice, int second)
    {
        r.v = h.unit[2 * slice + second];
        const uint4 high = h.unit[8 + slice];
        r.h = second ? make_uint2(high.z, high.w) : make_uint2(high.x, high.y);
        r.s = short_of(h.rest[slice], second);
        r.d = __ushort_as_half(short_of(h.rest[4 + second], (int)slice / 2));
    }
};

#endif
