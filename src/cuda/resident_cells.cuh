/* How the ring of a resident kernel holds weights. A stage is a piece of k of 16 matrix rows: 512 bytes of values a row
 * (half of it for Q6K), which the copy engine brings as two boxes of 8 neighbouring rows (tma.cuh), and what belongs to
 * them, which a warp brings. (Bulk copies, a row each, were tried: one takes some 65 cycles whatever its size.)
 *
 * Eight lanes read together: four units of the rows of two neighbouring lane groups. Boxes swap units by the row, so
 * that groups 2i and 2i + 1 take rows i and i + 4, and meet in no bank (cell_row).
 *
 * Cell<F>: STEP elements of a stage, COLS columns of its boxes, REST bytes beside them; rest() asks for what lies
 * beside the values of a stage from element k of a row of n, by one warp, lane % 16 being the row; get() fills the
 * format's registers with what a lane needs of one row, e elements into the stage. */
#ifndef CUDA_RESIDENT_CELLS_CUH
#define CUDA_RESIDENT_CELLS_CUH

#include "cuda/formats.cuh"
#include "cuda/tma.cuh"

#define CELL_VALUES 8192 /* bytes of the two boxes of a stage */

/* Where a stage lies. */
struct cell {
    unsigned char *values, *rest;
};

__device__ __forceinline__ void copy16(uint32_t to, const unsigned char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* The row of a box that lane group g reads. */
__device__ __forceinline__ uint32_t cell_row(uint32_t g)
{
    return g / 2 + g % 2 * 4;
}

/* Unit u of row 0..15 of a stage. */
template <uint32_t COLS> __device__ __forceinline__ uint4 unit_of(const struct cell &c, uint32_t row, uint32_t u)
{
    return *(const uint4 *)(c.values + row / 8 * (COLS * TMA_ATOM) + tma_unit(8, row % 8, u));
}

/* UNITS a row of what lies beside the values, from byte `at` of it to `end`; PITCH bytes apart. */
template <uint32_t UNITS, uint32_t PITCH>
__device__ __forceinline__ void fetch_rest(unsigned char *to, const unsigned char *from, uint32_t at, uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32, row = lane % 16;
    for (uint32_t u = lane / 16; u < UNITS; u += 2)
        if (at + u * 16 < end)
            copy16(shared_at(to) + row * PITCH + u * 16, from + at + u * 16);
}

template <class F> struct Cell;

template <typename T> struct Cell<FormatPlain<T>> {
    static constexpr uint32_t STEP = 256, COLS = 4, REST = 0;
    static __device__ __forceinline__ void rest(const struct cell &, const unsigned char *, uint32_t, uint32_t)
    {
    }
    static __device__ __forceinline__ void get(
        typename FormatPlain<T>::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<COLS>(c, row, e / 8);
    }
};

template <> struct Cell<FormatF8> {
    static constexpr uint32_t STEP = 512, COLS = 4, REST = 0;
    static __device__ __forceinline__ void rest(const struct cell &, const unsigned char *, uint32_t, uint32_t)
    {
    }
    static __device__ __forceinline__ void get(
        FormatF8::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<COLS>(c, row, e / 16);
    }
};

/* Beside the values: scales, 16 bytes further apart than they are long. */
template <> struct Cell<FormatQ8> {
    static constexpr uint32_t STEP = 512, COLS = 4, ROW = 48, REST = 16 * ROW;
    static __device__ __forceinline__ void rest(const struct cell &c, const unsigned char *row, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_rest<2, ROW>(c.rest, row + width, k / 16, width / 16);
    }
    static __device__ __forceinline__ void get(
        FormatQ8::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<COLS>(c, row, e / 16);
        r.s = *(const __half *)(c.rest + row * ROW + e / 32 * 2);
    }
};

template <> struct Cell<FormatQ4> {
    static constexpr uint32_t STEP = 1024, COLS = 4, ROW = 80, REST = 16 * ROW;
    static __device__ __forceinline__ void rest(const struct cell &c, const unsigned char *row, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_rest<4, ROW>(c.rest, row + width / 2, k / 16, width / 16);
    }
    static __device__ __forceinline__ void get(
        FormatQ4::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<COLS>(c, row, e / 32);
        r.s = *(const __half *)(c.rest + row * ROW + e / 16);
    }
};

template <> struct Cell<FormatQ4K> {
    static constexpr uint32_t STEP = 1024, COLS = 4, ROW = 80, D = 16 * ROW, D_ROW = 16, REST = D + 16 * D_ROW;
    static __device__ __forceinline__ void rest(const struct cell &c, const unsigned char *row, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_rest<4, ROW>(c.rest, row + width / 2, k / 16, width / 16);
        fetch_rest<1, D_ROW>(c.rest + D, row + width / 2 + width / 16, k / 64, width / 64);
    }
    static __device__ __forceinline__ void get(
        FormatQ4K::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t)
    {
        r.v = unit_of<COLS>(c, row, e / 32);
        r.sm = *(const unsigned short *)(c.rest + row * ROW + e / 16);
        r.d = *(const uint32_t *)(c.rest + D + row * D_ROW + e / 256 * 4);
    }
};

/* The second half of the values' place takes what is beside them. */
template <> struct Cell<FormatQ6K> {
    static constexpr uint32_t STEP = 512, COLS = 2, HIGH = 2 * COLS * TMA_ATOM, HIGH_ROW = 144,
                              SCALES = HIGH + 16 * HIGH_ROW, ROW = 48, D = SCALES + 16 * ROW, D_ROW = 16, REST = 0;
    static_assert(D + 16 * D_ROW <= CELL_VALUES, "all in one place");
    static __device__ __forceinline__ void rest(const struct cell &c, const unsigned char *row, uint32_t k, uint32_t n)
    {
        const uint32_t width = format_width(n);
        fetch_rest<8, HIGH_ROW>(c.values + HIGH, row + width / 2, k / 4, width / 4);
        fetch_rest<2, ROW>(c.values + SCALES, row + width / 2 + width / 4, k / 16, width / 16);
        fetch_rest<1, D_ROW>(c.values + D, row + width / 2 + width / 4 + width / 16, k / 2048 * 16, width / 128);
    }
    static __device__ __forceinline__ void get(
        FormatQ6K::Regs &r, const struct cell &c, uint32_t row, uint32_t e, uint32_t k)
    {
        r.v = unit_of<COLS>(c, row, e / 32);
        r.h = *(const uint2 *)(c.values + HIGH + row * HIGH_ROW + e / 4);
        r.s = *(const unsigned short *)(c.values + SCALES + row * ROW + e / 16);
        r.d = *(const __half *)(c.values + D + row * D_ROW + (k + e) / 256 % 8 * 2);
    }
};

#endif
