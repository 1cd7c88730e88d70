/* The barriers in shared memory of src/cuda/tma.cuh, on the host: how many arrive, how many are missing, the round. */
#ifndef EMULATOR_TMA_CUH
#define EMULATOR_TMA_CUH

#include "cuda/kernels.cuh"

inline void barrier_init(uint64_t *b, uint32_t arrivals)
{
    *b = (uint64_t)arrivals << 32 | arrivals << 1;
}
inline void barrier_arrive(uint64_t *b)
{
    const uint64_t arrivals = *b >> 32, missing = (*b >> 1 & 0x7fffffff) - 1, round = *b & 1;
    *b = arrivals << 32 | (missing > 0 ? missing << 1 | round : arrivals << 1 | (round ^ 1));
}
inline void barrier_wait(uint64_t *b, uint32_t parity)
{
    while ((*(volatile uint64_t *)b & 1) == parity)
        emulated_yield();
}

#endif
