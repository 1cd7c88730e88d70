/* Pieces of matrices brought into shared memory by the copy engine (compute capability 9.0): one thread asks for a box
 * of rows, nothing else of the multiprocessor is busy with it, and a barrier in shared memory says when it has come.
 *
 * A matrix of 16-byte multiples is seen as columns of 128 bytes: a box is `rows` neighbouring rows of `cols`
 * neighbouring columns, and lies in shared memory column by column, [cols][rows][128 bytes], from a multiple of 1 KB.
 * Within a row of a column the 16-byte units are swapped: unit u lies at u ^ (row % 8), so that eight rows' units of
 * one number meet in no bank. What lies outside of the matrix comes as zeros. */
#ifndef CUDA_TMA_CUH
#define CUDA_TMA_CUH

#include "cuda/cuda_int.h"

#include <cuda.h>

#define TMA_COLUMN 128  /* bytes of a column */
#define TMA_ATOM   1024 /* bytes that boxes are aligned to */

/* tma.cu: the matrix of n_rows rows of row_bytes, which lie pitch bytes apart, in boxes of rows x cols; false where the
 * driver refuses, which is noted. */
bool tma_map(struct dev *d, CUtensorMap *map, const void *matrix, uint64_t n_rows, uint64_t row_bytes, uint64_t pitch,
    uint32_t rows, uint32_t cols);

/* The same for a box of up to five dimensions, the first in bytes; strides are of the others. */
bool tma_map_boxes(struct dev *d, CUtensorMap *map, const void *base, uint32_t rank, const uint64_t *sizes,
    const uint64_t *strides, const uint32_t *box);

/* Runs of TMA_RUN neighbouring rows of row_bytes, from any multiple of TMA_STEP bytes behind `memory` on: a run lies in
 * shared memory as [2][cols][8 rows][128 bytes], so runs behind each other are columns in atoms of eight rows. */
#define TMA_RUN  16
#define TMA_STEP 128
#define TMA_NONE (-1) /* a run of zeros */
bool tma_map_runs(struct dev *d, CUtensorMap *map, const void *memory, uint32_t row_bytes, uint32_t cols);

#ifdef __CUDACC__

__device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers in shared memory: by pointer, or by address where much is done with it -------------------------------
 */

__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t at)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    barrier_arrive(shared_at(b));
}

/* At the barrier that lies there in block `rank` of the cluster. */
__device__ __forceinline__ void barrier_arrive_at(uint32_t at, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(at),
                 "r"(rank)
                 : "memory");
#endif
}

/* An arrival, and so many bytes to come. */
__device__ __forceinline__ void barrier_arrive_expect(uint32_t at, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive_expect(uint64_t *b, uint32_t bytes)
{
    barrier_arrive_expect(shared_at(b), bytes);
}

/* This thread's copies so far have come: an arrival, when it is so. */
__device__ __forceinline__ void barrier_arrive_copied(uint32_t at)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}

/* The barrier's round of this parity is over: whether; and wait until. */
__device__ __forceinline__ bool barrier_is_over(uint32_t at, uint32_t parity)
{
    uint32_t done = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(at), "r"(parity)
                 : "memory");
#endif
    return done != 0;
}

__device__ __forceinline__ bool barrier_is_over(uint64_t *b, uint32_t parity)
{
    return barrier_is_over(shared_at(b), parity);
}

__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at), "r"(parity)
                     : "memory");
    while (done == 0);
#endif
}

__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity)
{
    barrier_wait(shared_at(b), parity);
}

/* Both are: they are asked at once. */
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t beside, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do
        asm volatile("{ .reg .pred p, q; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %3; "
                     "mbarrier.try_wait.parity.shared::cta.b64 q, [%2], %3; and.pred p, p, q; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(at), "r"(beside), "r"(parity)
                     : "memory");
    while (done == 0);
#endif
}

/* Barriers that were just made are seen by the copy engine too. */
__device__ __forceinline__ void barrier_publish()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* What this thread saw of global memory is seen by the copy engine too. */
__device__ __forceinline__ void global_ready()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/* ---- boxes ---------------------------------------------------------------------------------------------------------
 */

/* A description in device memory may have been written over: this multiprocessor's copy engine, which keeps what it has
 * read of that place from kernel to kernel, reads it again. */
__device__ __forceinline__ void tma_accept(const CUtensorMap *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
#endif
}

/* The box from column `col` and row `row` on; b gets its bytes. By one thread. */
__device__ __forceinline__ void tma_load(void *to, const CUtensorMap *map, uint32_t col, uint32_t row, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
                 "%5}], [%2];" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(0), "r"(row), "r"(col)
                 : "memory");
#endif
}

/* A matrix in boxes of two dimensions: the box from byte `at` of row `row` on. */
__device__ __forceinline__ void tma_load_rows(void *to, const CUtensorMap *map, uint32_t at, uint32_t row, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4}], [%2];" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(at), "r"(row)
                 : "memory");
#endif
}

/* The same for some blocks of the cluster, a bit each: at the same place in each, whose own barrier gets the bytes. */
__device__ __forceinline__ void tma_load_for(
    uint32_t to, const CUtensorMap *map, uint32_t at, uint32_t row, uint32_t b, uint16_t who)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(b), "r"(at), "r"(row), "h"(who)
                 : "memory");
#endif
}

/* In boxes of five: the one from byte `at` and pair of runs `run` of group `group` on, which is read once. */
__device__ __forceinline__ void tma_load_runs(
    void *to, const CUtensorMap *map, uint32_t at, uint32_t run, uint32_t group, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4, %4, %5, %6}], [%2], %7;" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(at), "r"(0), "r"(run), "r"(group), "l"(policy)
                 : "memory");
#endif
}

/* The description will be read soon. */
__device__ __forceinline__ void tma_ready(const CUtensorMap *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

/* The run from `step` steps behind the memory's first byte on, or TMA_NONE; b gets its bytes. */
__device__ __forceinline__ void tma_load_run(void *to, const CUtensorMap *map, int32_t step, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3, "
                 "%3, %3, %4}], [%2];" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(0), "r"(step)
                 : "memory");
#endif
}

/* Neighbouring bytes as they lie, a multiple of 16. */
__device__ __forceinline__ void tma_load_bytes(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %3, [%2];" ::"r"(shared_at(to)),
        "l"(from), "r"(shared_at(b)), "r"(bytes)
        : "memory");
#endif
}

#endif
#endif
