/* Gate and up of many rows with 16-bit float weights, on cards with a copy engine and a warpgroup's matrix unit, and
 * the gate where the sums come out.
 *
 * A tile is MANY_ROWS activation rows by N weight rows: N / 2 of gate, then as many of up, so that a lane has both sums
 * of an output. Blocks stay, one to a multiprocessor, and take tiles in turn; one thread asks for their columns of
 * MANY_K inputs through a ring (tma.cuh), over the ends of tiles, and two warpgroups have 64 activation rows each,
 * their next products begun before the last are done.
 *
 * Two neighbouring blocks are a cluster and have neighbouring tiles: below each other where the number of tiles of rows
 * is even, and one brings gate and the other up for both; otherwise beside each other, with half of the activations
 * each. A place of the ring is free when both have read it.
 *
 * Order of float operations for one output: one chain over the inputs, ascending, 16 at a time, whatever the tile; of
 * BF16 matrices both sums are rounded to bf16 before the gate, as the library's are. */
#ifndef CUDA_MANY_CUH
#define CUDA_MANY_CUH

#include "cuda/skinny.h"
#include "cuda/tma.cuh"
#include "cuda/turn.cuh"
#include "cuda/wgmma.cuh"

#define MANY_ROWS    128 /* of a tile */
#define MANY_K       64  /* inputs of a stage: a column */
#define MANY_THREADS 256 /* that multiply */
#define MANY_STAGES  5   /* of a ring, at most */
#define MANY_BYTES   ((uint32_t)226 << 10)
#define MANY_PAIR    2 /* blocks of a cluster */

template <int N> struct ManyShape {
    static constexpr uint32_t ACTS = MANY_ROWS * TMA_COLUMN, HALF = N / 2 * TMA_COLUMN, STAGE = ACTS + 2 * HALF;
    static constexpr uint32_t MOST = (MANY_BYTES - TMA_ATOM) / STAGE;
    static constexpr uint32_t STAGES = MOST < MANY_STAGES ? MOST : MANY_STAGES, BYTES = STAGES * STAGE + TMA_ATOM;
};

struct many_job {
    CUtensorMap w[2], act; /* boxes: N / 2 weight rows; the activation rows that one block brings */
    struct skinny_job j;
    uint32_t n_columns;      /* of a tile */
    bool is_high;            /* a pair's tiles are below each other */
    uint32_t n_high, n_wide; /* pairs of tiles below each other, and beside each other */
    uint32_t n_run; /* of n_high that are gone through before the next weights: what the second-level cache keeps */
};

/* Addresses in shared memory: stages of ManyShape::STAGE bytes, barriers of 8. */
struct many_ring {
    uint32_t stages, full, free;
};

/* A tile's first activation row and first output. */
struct many_place {
    uint32_t row, out;
};

/* This block's tile of the i-th pair. */
template <int N> __device__ __forceinline__ struct many_place many_at(const struct many_job &f, uint32_t i)
{
    const uint32_t rank = blockIdx.x % MANY_PAIR, first = i / (f.n_run * f.n_wide) * f.n_run;
    const uint32_t n = min(f.n_run, f.n_high - first), k = i - first * f.n_wide;
    const uint32_t high = first + k % n, wide = k / n;
    return {(f.is_high ? MANY_PAIR * high + rank : high) * MANY_ROWS,
        (f.is_high ? wide : MANY_PAIR * wide + rank) * (N / 2)};
}

/* What a block brings of every column: a box of activations, and one of weights or both. */
struct many_part {
    uint32_t acts_at, weights_at; /* in a stage */
    uint32_t row;                 /* of a tile's activations */
    const CUtensorMap *w;
    bool is_both;
    uint16_t acts_for, weights_for; /* bits of blocks */
};

template <int N> __device__ __forceinline__ struct many_part many_part_of(const struct many_job &f)
{
    using S = ManyShape<N>;
    const uint32_t rank = blockIdx.x % MANY_PAIR, row = f.is_high ? 0 : rank * (MANY_ROWS / MANY_PAIR);
    const uint16_t all = (1 << MANY_PAIR) - 1, mine = (uint16_t)(1 << rank);
    return {row * TMA_COLUMN, S::ACTS + (f.is_high ? rank * S::HALF : 0), row, f.is_high ? &f.w[rank] : f.w, !f.is_high,
        f.is_high ? mine : all, f.is_high ? all : mine};
}

template <int N>
__device__ __forceinline__ void many_load_weights(
    const struct many_part &p, const struct many_ring &ring, uint32_t stage, uint32_t column, uint32_t out)
{
    using S = ManyShape<N>;
    const uint32_t to = ring.stages + stage * S::STAGE + p.weights_at, full = ring.full + 8 * stage;
    tma_load_for(to, p.w, column * TMA_COLUMN, out, full, p.weights_for);
    if (p.is_both)
        tma_load_for(to + S::HALF, p.w + 1, column * TMA_COLUMN, out, full, p.weights_for);
}

template <int N>
__device__ __forceinline__ void many_load_acts(const struct many_job &f, const struct many_part &p,
    const struct many_ring &ring, uint32_t stage, uint32_t column, uint32_t row)
{
    tma_load_for(ring.stages + stage * ManyShape<N>::STAGE + p.acts_at, &f.act, column * TMA_COLUMN, row + p.row,
        ring.full + 8 * stage, p.acts_for);
}

/* Where somebody is in the ring. */
struct many_turn {
    uint32_t stage, parity;
};

template <int N> __device__ __forceinline__ void many_step(struct many_turn &t)
{
    if (++t.stage == ManyShape<N>::STAGES) {
        t.stage = 0;
        t.parity ^= 1;
    }
}

/* All columns of this block's tiles into the ring, the first weights before what is before this kernel has ended. By
 * one thread. */
template <int N> __device__ __forceinline__ void many_carry(const struct many_job &f, const struct many_ring &ring)
{
    using S = ManyShape<N>;
    const struct many_part part = many_part_of<N>(f);
    const uint32_t ahead = min(S::STAGES, f.n_columns);
    uint32_t pair = blockIdx.x / MANY_PAIR, column = ahead;
    struct many_place at = many_at<N>(f, pair);
    struct many_turn turn = {0, 1}; /* the round before a barrier's first counts as over */
    for (uint32_t i = 0; i < ahead; i++, many_step<N>(turn)) {
        barrier_arrive_expect(ring.full + 8 * i, S::STAGE);
        many_load_weights<N>(part, ring, i, i, at.out);
    }
    launch_wait();
    for (uint32_t i = 0; i < ahead; i++)
        many_load_acts<N>(f, part, ring, i, i, at.row);
    while (true) {
        for (; column < f.n_columns; column++, many_step<N>(turn)) {
            barrier_wait(ring.free + 8 * turn.stage, turn.parity);
            barrier_arrive_expect(ring.full + 8 * turn.stage, S::STAGE);
            many_load_weights<N>(part, ring, turn.stage, column, at.out);
            many_load_acts<N>(f, part, ring, turn.stage, column, at.row);
        }
        pair += gridDim.x / MANY_PAIR;
        if (pair >= f.n_high * f.n_wide)
            break;
        at = many_at<N>(f, pair);
        column = 0;
    }
    launch_next();
    for (uint32_t i = 0; i < S::STAGES; i++, many_step<N>(turn)) /* all that the other block sends here has come */
        barrier_wait(ring.free + 8 * turn.stage, turn.parity);
}

/* This warpgroup has read a place: both blocks are told. What was read needs no order but the matrix unit's own. */
__device__ __forceinline__ void many_leave(uint32_t b)
{
    if (threadIdx.x % 128 < MANY_PAIR)
        barrier_arrive_at(b, threadIdx.x % 128);
}

/* The sums of a tile. */
template <typename T, int N>
__device__ __forceinline__ void many_sum(
    const struct many_ring &ring, uint32_t n_columns, struct many_turn &turn, float (&c)[N / 8][4])
{
    using S = ManyShape<N>;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n_columns; i++) {
        const uint32_t stage = ring.stages + turn.stage * S::STAGE;
        barrier_wait(ring.full + 8 * turn.stage, turn.parity);
        const uint64_t a = wgmma_at(stage + threadIdx.x / 128 * (S::ACTS / 2), TMA_ATOM, 0);
        const uint64_t b = wgmma_at(stage + S::ACTS, TMA_ATOM, 0);
        wgmma_begin();
#pragma unroll
        for (uint32_t k = 0; k < MANY_K / 16; k++) /* 32 bytes further */
            wgmma_rows(T(), c, a + 2 * k, b + 2 * k, i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (i > 0)
            many_leave(last);
        last = ring.free + 8 * turn.stage;
        many_step<N>(turn);
    }
    wgmma_wait();
    many_leave(last);
    wgmma_hold(c);
}

/* Two neighbouring sums as the gate reads them. */
__device__ __forceinline__ float2 many_rounded(__nv_bfloat16, float x, float y)
{
    const uint32_t both = pack_bf16(x, y);
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

__device__ __forceinline__ float2 many_rounded(__half, float x, float y)
{
    return make_float2(x, y);
}

__device__ __forceinline__ float2 many_biased(float2 x, const float *bias, uint32_t o)
{
    const float2 b = bias != NULL ? *(const float2 *)(bias + o) : make_float2(0.0f, 0.0f);
    return make_float2(x.x + b.x, x.y + b.y);
}

/* The end of a tile; what kind it is, and whether it has biases, the compiler knows. Rows are written 16 bytes at a
 * time. */
template <typename T, int N>
__device__ __forceinline__ void many_end(
    const struct skinny_job &j, enum glu kind, bool is_biased, const struct many_place &at, const float (&c)[N / 8][4])
{
    constexpr int RUNS = N / 16;
    const uint32_t t = threadIdx.x % 4, row = at.row + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const uint32_t runs = at.out < j.n_out ? (j.n_out - at.out) / 8 : 0; /* that there are */
    T *const out = (T *)(j.act_f16 != NULL ? j.act_f16 : j.act_bf16) + (size_t)row * j.n_out + at.out + 8 * t;
#pragma unroll
    for (int n = 0; n < RUNS; n += 4)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4] = {};
#pragma unroll
            for (int k = 0; k < 4 && n + k < RUNS; k++) {
                const float *gate = c[n + k] + 2 * half, *up = c[RUNS + n + k] + 2 * half;
                float2 g = many_rounded(T(), gate[0], gate[1]), u = many_rounded(T(), up[0], up[1]);
                if (is_biased && n + k < runs) {
                    g = many_biased(g, j.bias0, at.out + 8 * (n + k) + 2 * t);
                    u = many_biased(u, j.bias1, at.out + 8 * (n + k) + 2 * t);
                }
                x[k] = act_pair(T(), glu_of(g.x, u.x, kind), glu_of(g.y, u.y, kind));
            }
            turn_words(x);
            if (n + t < min(runs, RUNS) && row + 8 * half < j.n_rows)
                *(uint4 *)(out + (size_t)(8 * half) * j.n_out + 8 * n) = make_uint4(x[0], x[1], x[2], x[3]);
        }
}

template <typename T, int N>
__global__ void __launch_bounds__(MANY_THREADS + 32, 1) many_kernel(const __grid_constant__ struct many_job f)
{
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[2 * MANY_STAGES];
    const struct many_ring ring = {(shared_at(memory) + TMA_ATOM - 1) / TMA_ATOM * TMA_ATOM, shared_at(barriers),
        shared_at(barriers + MANY_STAGES)};
    if (threadIdx.x < 2 * MANY_STAGES)
        barrier_init(&barriers[threadIdx.x], threadIdx.x < MANY_STAGES ? 1 : MANY_PAIR * MANY_THREADS / 128);
    barrier_publish();
    cluster_gather();
    if (threadIdx.x >= MANY_THREADS) {
        if (threadIdx.x == MANY_THREADS)
            many_carry<N>(f, ring);
        __syncwarp();
    } else {
        const bool is_biased = f.j.bias0 != NULL || f.j.bias1 != NULL;
        struct many_turn turn = {0, 0};
        launch_wait();
        for (uint32_t pair = blockIdx.x / MANY_PAIR; pair < f.n_high * f.n_wide; pair += gridDim.x / MANY_PAIR) {
            const struct many_place at = many_at<N>(f, pair);
            float c[N / 8][4];
            many_sum<T, N>(ring, f.n_columns, turn, c);
            if (f.j.glu == GLU_SILU && !is_biased)
                many_end<T, N>(f.j, GLU_SILU, false, at, c);
            else if (f.j.glu == GLU_SILU)
                many_end<T, N>(f.j, GLU_SILU, true, at, c);
            else
                many_end<T, N>(f.j, GLU_GELU, is_biased, at, c);
        }
    }
    cluster_gather();
}

#endif
