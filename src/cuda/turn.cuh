/* Words turned between lanes: a lane of four that holds two neighbours of each of four runs of eight gets a whole run,
 * so that it writes 16 bytes. */
#ifndef CUDA_TURN_CUH
#define CUDA_TURN_CUH

#include "cuda/kernels.cuh"

/* Four words of each lane of four become the same word of all four. */
__device__ __forceinline__ void turn_words(uint32_t (&x)[4])
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int step = 2; step > 0; step /= 2) {
        const bool high = (t & step) != 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int low = step == 2 ? k : 2 * k, up = low + step;
            const uint32_t other = __shfl_xor_sync(ALL_LANES, high ? x[low] : x[up], step);
            (high ? x[low] : x[up]) = other;
        }
    }
}

#endif
