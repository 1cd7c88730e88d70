/* How a slim product (slim.cuh) is cut, in plain functions of host and device, so that tests without a card hold them
 * to account. */
#ifndef CUDA_SLIM_SHAPE_H
#define CUDA_SLIM_SHAPE_H

#include <stdint.h>

#ifdef __CUDACC__
#define SLIM_FN static __host__ __device__ __forceinline__
#else
#define SLIM_FN static inline
#endif

#define SLIM_WARPS  8   /* of a block, each with 16 weight rows of its tile */
#define SLIM_ROWS   128 /* weight rows of a tile */
#define SLIM_CHAINS 8   /* blocks that share the inputs of a tile, at most: what a cluster is promised to hold */
#define SLIM_BLOCKS 180 /* enough to keep any card's memory busy */
#define SLIM_LEAST  256 /* inputs of a chain, at least */

/* Into how many chains the sums over n_in are cut: by the shape of the matrix alone, never by rows or by the card, so
 * that the order of float operations is the matrix's. n_rows: of the matrix, gate and up together. */
SLIM_FN uint32_t slim_chains(uint32_t n_rows, uint32_t n_in)
{
    const uint32_t tiles = (n_rows + SLIM_ROWS - 1) / SLIM_ROWS;
    uint32_t n = 1;
    while (n < SLIM_CHAINS && tiles * n < SLIM_BLOCKS && n_in / (2 * n) >= SLIM_LEAST)
        n *= 2;
    return n;
}

/* Slices lo .. hi-1 of n are chain i's: whole flights, ascending, every slice in one chain. */
SLIM_FN void slim_range(uint32_t n, uint32_t chains, uint32_t flight, uint32_t i, uint32_t *lo, uint32_t *hi)
{
    const uint32_t each = ((n + chains - 1) / chains + flight - 1) / flight * flight;
    *lo = i * each < n ? i * each : n;
    *hi = (i + 1) * each < n ? (i + 1) * each : n;
}

/* Where 16-byte unit u of an activation row lies in shared memory, within the row. Eight neighbouring lanes read unit
 * (E/2) * slice + (E/8) * t + part of rows g and g + 1, t = 0..3; they must meet in no bank, of which there are eight
 * of 16 bytes. e: elements of a lane in a slice, 8, 16 or 32. */
SLIM_FN uint32_t slim_unit(uint32_t e, uint32_t u, uint32_t row)
{
    const uint32_t odd = row & 1;
    return e == 8 ? u ^ odd << 2 : e == 16 ? u ^ odd : u ^ ((u >> 3 & 1) | odd << 1);
}

#endif
