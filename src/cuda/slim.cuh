/* Products of some rows, 2 to 64 at a time: like skinny.cuh the weights go from memory into registers, once, and what
 * an op does with the sums is done where they come out; but a block takes 128 weight rows, 16 a warp, and its warps
 * share the activations, which come through shared memory. So what is read beside the weights is an eighth of what
 * skinny's blocks read.
 *
 * A tall matrix gives each block a tile and all its inputs. Where that would leave multiprocessors idle the inputs are
 * cut into chains (slim_shape.h), the chains of a tile are a cluster of blocks, and at the end each of them joins a
 * share of the tile's sums, read from its neighbours' shared memory.
 *
 * Order of float operations for one output: slices of a chain ascending into one sum on the matrix unit, then the
 * chains ascending. It depends on the shape and the format of the matrix, and on nothing else.
 *
 * Activations: chunks of KC inputs of all rows, three buffers; chunk c+2 is asked for when chunk c is begun, into the
 * buffer that everybody has left by then. */
#ifndef CUDA_SLIM_CUH
#define CUDA_SLIM_CUH

#include "cuda/skinny.cuh"
#include "cuda/slim_shape.h"

#define SLIM_THREADS (SLIM_WARPS * 32)
#define SLIM_BUFFERS 3

static_assert(SLIM_THREADS == SKINNY_THREADS && SLIM_ROWS == SLIM_WARPS * 16, "a tile of 16 rows a warp");

template <class F, int NT> struct SlimShape {
    static constexpr int FLIGHT = NT * F::E > 128 ? 1 : F::FLIGHT; /* in registers, beside 4 * NT sums */
    static constexpr uint32_t SLICE = 4 * F::E, ROUND = FLIGHT * SLICE;
    static constexpr uint32_t KC = NT == 1 ? 1024 : 2048 / NT; /* inputs of a chunk */
    static constexpr uint32_t ROUNDS = KC / ROUND;
    static constexpr size_t BUFFER = (size_t)8 * NT * KC; /* elements */
    static constexpr size_t SUMS = (size_t)SLIM_WARPS * NT * 8 * SKINNY_STRIDE * sizeof(float);
    static constexpr size_t BYTES = SLIM_BUFFERS * BUFFER * 2 > SUMS ? SLIM_BUFFERS *BUFFER * 2 : SUMS;
    static_assert(KC % ROUND == 0 && KC % 64 == 0 && F::FLIGHT % FLIGHT == 0, "rounds fill chunks");
};

/* ---- the product ---------------------------------------------------------------------------------------------------
 */

/* FLIGHT slices of a lane's two weight rows. */
template <class F, int NT> struct SlimRound {
    using S = SlimShape<F, NT>;
    typename F::Regs a[S::FLIGHT], b[S::FLIGHT];

    __device__ __forceinline__ void load(const struct lane_rows &w, uint32_t slice, uint32_t lane_k, uint32_t n_in)
    {
#pragma unroll
        for (int i = 0; i < S::FLIGHT; i++) {
            F::load(a[i], w.a, (slice + i) * S::SLICE + lane_k, n_in);
            F::load(b[i], w.b, (slice + i) * S::SLICE + lane_k, n_in);
        }
    }

    /* act: the buffer from row g on; slice: within the chunk. */
    __device__ __forceinline__ void multiply(const uint16_t *act, uint32_t slice, float acc[NT][4]) const
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        typename F::Type type;
#pragma unroll
        for (int i = 0; i < S::FLIGHT; i++)
#pragma unroll
            for (int part = 0; part < F::E / 8; part++) {
                uint32_t p[4], q[4];
                F::pairs(a[i], part, p);
                F::pairs(b[i], part, q);
                const uint32_t u = slim_unit(F::E, (slice + i) * (F::E / 2) + t * (F::E / 8) + part, g);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint4 v = *(const uint4 *)(act + (size_t)n * 8 * S::KC + u * 8);
                    mma(type, acc[n], p[0], q[0], p[1], q[1], v.x, v.y);
                    mma(type, acc[n], p[2], q[2], p[3], q[3], v.z, v.w);
                }
            }
    }
};

/* Inputs k0 .. k0+KC-1 of the block's rows, below end; those behind n_in are zeros. */
template <class F, int NT>
__device__ __forceinline__ void slim_fetch(
    const struct skinny_job &j, const struct skinny_rows &rows, uint16_t *to, uint32_t k0, uint32_t end)
{
    using S = SlimShape<F, NT>;
    constexpr uint32_t UNITS = S::KC / 8;
    const uint16_t *act = (const uint16_t *)j.act + (size_t)rows.first * j.n_in;
    if (k0 < end)
        for (uint32_t i = threadIdx.x; i < rows.n * UNITS; i += SLIM_THREADS) {
            const uint32_t r = i / UNITS, u = i % UNITS, k = k0 + 8 * u;
            const bool there = k < j.n_in;
            if (k < end)
                copy_async(to + (size_t)r * S::KC + slim_unit(F::E, u, r) * 8,
                    there ? act + (size_t)r * j.n_in + k : act, there);
        }
    copy_commit();
}

/* The sums of this warp's 16 rows over the block's chain; first holds the weights of its first round. */
template <class F, int NT>
__device__ __forceinline__ void slim_sum(const struct skinny_job &j, const struct skinny_rows &rows,
    const struct lane_rows &w, uint32_t lo, uint32_t hi, SlimRound<F, NT> &first, uint16_t *memory, float acc[NT][4])
{
    using S = SlimShape<F, NT>;
    const uint32_t lane_k = threadIdx.x % 4 * F::E, mine = threadIdx.x % 32 / 4 * S::KC;
    const uint32_t n = (hi - lo + S::FLIGHT - 1) / S::FLIGHT, from = lo * S::SLICE, end = from + n * S::ROUND;
    SlimRound<F, NT> second;
    const uint16_t *act = memory;
    slim_fetch<F, NT>(j, rows, memory, from, end);
    slim_fetch<F, NT>(j, rows, memory + S::BUFFER, from + S::KC, end);
    uint32_t chunk = 0, buffer = 0;
    const auto enter = [&](uint32_t r) { /* the chunk of round r is there, and the one after the next on its way */
        if (r % S::ROUNDS != 0)
            return;
        copy_wait<1>();
        __syncthreads();
        act = memory + buffer * S::BUFFER + mine;
        const uint32_t free = buffer == 0 ? 2 : buffer - 1; /* which was read in the chunk before */
        slim_fetch<F, NT>(j, rows, memory + free * S::BUFFER, from + (chunk + 2) * S::KC, end);
        buffer = buffer == 2 ? 0 : buffer + 1;
        chunk++;
    };
    for (uint32_t r = 0; r < n; r += 2) {
        enter(r);
        if (r + 1 < n)
            second.load(w, lo + (r + 1) * S::FLIGHT, lane_k, j.n_in);
        first.multiply(act, r % S::ROUNDS * S::FLIGHT, acc);
        if (r + 1 == n)
            break;
        enter(r + 1);
        if (r + 2 < n)
            first.load(w, lo + (r + 2) * S::FLIGHT, lane_k, j.n_in);
        second.multiply(act, (r + 1) % S::ROUNDS * S::FLIGHT, acc);
    }
    copy_wait<0>();
}

/* Join the chains of a tile: each block of the cluster a share of the sums. */
template <int NT>
__device__ __forceinline__ void slim_end(const struct skinny_job &j, const struct skinny_rows &rows, uint32_t tile,
    uint32_t chains, uint32_t chain, const float acc[NT][4], float (*sums)[NT * 8][SKINNY_STRIDE])
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    __syncthreads(); /* the activations are done with */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        sums[warp][n * 8 + 2 * t][g] = acc[n][0];
        sums[warp][n * 8 + 2 * t + 1][g] = acc[n][1];
        sums[warp][n * 8 + 2 * t][g + 8] = acc[n][2];
        sums[warp][n * 8 + 2 * t + 1][g + 8] = acc[n][3];
    }
    __syncthreads();
    if (chains > 1)
        cluster_meet();
    for (uint32_t i = chain * SLIM_THREADS + threadIdx.x; i < rows.n * 8 * SLIM_WARPS; i += chains * SLIM_THREADS) {
        const uint32_t p = i % 8, m = i / 8 % SLIM_WARPS, column = i / (8 * SLIM_WARPS), row = rows.first + column;
        uint32_t ra, rb;
        tile_rows(j, tile * SLIM_WARPS + m, p, ra, rb);
        if (ra >= j.n_out) /* and so is rb */
            continue;
        const struct end_in in = end_load(j, row, 0, ra, rb);
        const float *from = &sums[m][column][p];
        float a = 0.0f, b = 0.0f;
#pragma unroll 4
        for (uint32_t c = 0; c < chains; c++) {
            a += cluster_read(from, c);
            b += cluster_read(from + 8, c);
        }
        end_pair(j, row, 0, ra, rb, a, b, in);
    }
    if (chains > 1)
        cluster_meet(); /* nobody goes while others read */
}

/* grid: x = chains of a tile, row groups; y = tiles. So the row groups of a tile run side by side, and find its weights
 * in the cache. */
template <class F, int NT>
__global__ void __launch_bounds__(SLIM_THREADS, 2)
    slim_kernel(const __grid_constant__ struct skinny_job j, uint32_t chains)
{
    using S = SlimShape<F, NT>;
    SHARED_ROOM(memory);
    const uint32_t chain = blockIdx.x % chains, group = blockIdx.x / chains, tile = blockIdx.y;
    const uint32_t n_slices = (j.n_in + S::SLICE - 1) / S::SLICE, most = 8 * NT;
    const struct lane_rows w = rows_of_lane(j, tile * SLIM_WARPS + threadIdx.x / 32, threadIdx.x % 32 / 4, 0);
    uint32_t lo, hi;
    slim_range(n_slices, chains, F::FLIGHT, chain, &lo, &hi);
    SlimRound<F, NT> first;
    first.load(w, lo, threadIdx.x % 4 * F::E, j.n_in);
    launch_wait();
    const struct skinny_rows rows = {0, group * most, min(most, j.n_rows - group * most)};
    float acc[NT][4] = {};
    slim_sum<F, NT>(j, rows, w, lo, hi, first, (uint16_t *)memory, acc);
    launch_next();
    slim_end<NT>(j, rows, tile, chains, chain, acc, (float(*)[NT * 8][SKINNY_STRIDE]) memory);
}

template <class F, int NT> void slim_launch(struct dev *d, const struct skinny_job *j)
{
    const bool is_glu = j->end == SKINNY_GLU;
    const uint32_t n_rows = is_glu ? 2 * j->n_out : j->n_out, tiles = (n_rows + SLIM_ROWS - 1) / SLIM_ROWS;
    const uint32_t chains = d->capability >= 90 ? slim_chains(n_rows, j->n_in) : 1;
    const uint32_t groups = (j->n_rows + 8 * NT - 1) / (8 * NT);
    cuda_launch_cluster(
        d, slim_kernel<F, NT>, dim3(chains * groups, tiles), SLIM_THREADS, SlimShape<F, NT>::BYTES, chains, *j, chains);
}

template <class F> void slim_run(struct dev *d, const struct skinny_job *j)
{
    if (j->n_rows <= 8)
        slim_launch<F, 1>(d, j);
    else if (j->n_rows <= 16)
        slim_launch<F, 2>(d, j);
    else if (j->n_rows <= 32)
        slim_launch<F, 4>(d, j);
    else
        slim_launch<F, 8>(d, j);
}

#endif
