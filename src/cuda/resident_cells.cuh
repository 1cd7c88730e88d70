/* How the ring of a resident kernel holds weights. A stage is a piece of k of 16 matrix rows: 512 bytes of values a row
 * (half of it for Q6K) and what belongs to them. Values lie in units of 16 bytes, those of odd rows with neighbouring
 * fours swapped, so that the eight lanes that read together meet in no bank. (Bulk copies, a row each, were tried: one
 * takes some 65 cycles whatever its size, so rows this short came at 80% of the memory's rate and less.)
 *
 * Cell<F>: STEP elements of a stage, SLOT bytes of it, FLIGHT stages on their way; fetch() asks for a stage from
 * element k of rows of n, by one warp; get() fills the format's registers with what lane t needs of one row, e elements
 * into the stage. */
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

__device__ __forceinline__ void copy16(uint32_t to, const unsigned char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Columns of 128 bytes of 16 rows, from byte `at` of each; nothing past `end`. ROW: bytes between rows. */
template <uint32_t ROW>
__device__ __forceinline__ void fetch_units(unsigned char *slot, const struct cell_rows &w, uint32_t at, uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32, u = lane % 8, row = lane / 8;
    const uint32_t to = shared_at(slot) + row * ROW + (u ^ (row & 1) << 2) * 16;
    const bool whole = at + ROW <= end;
#pragma unroll
    for (uint32_t c = 0; c < ROW / 128; c++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (whole || at + c * 128 + u * 16 < end)
                copy16(to + i * 4 * ROW + c * 128, w.unit[i] + at + c * 128);
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
    const uint32_t lane = threadIdx.x % 32, row = lane % 16;
    for (uint32_t u = lane / 16; u < UNITS; u += 2)
        if (at + u * 16 < end)
            copy16(shared_at(slot) + row * PITCH + u * 16, from + at + u * 16);
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
};

#endif
