/* The kernel behind resident.h. A block a multiprocessor, which walks the phases; a barrier over the chip between them.
 *
 * Weights. One warp, the carrier, walks the stages of all phases in the order in which they will be multiplied, and
 * asks the copy engine for each as soon as a place in the ring is free, whatever phase it belongs to. A stage is full
 * when its bytes have come, and free when the warp that multiplied it says so.
 *
 * Products. A block takes tiles of 16 matrix rows in turn. k is cut into stages (resident_cells.cuh), which the warps
 * take in turn; a warp sums one from zero on the matrix unit, even and odd slices apart. The sums of a tile's stages
 * are added ascending. So the order of float operations belongs to the shape of the matrix alone.
 *
 * A block says that it is done with a phase, asks for what it needs of the next that nobody writes meanwhile, and then
 * waits for the others. What other blocks wrote is read past the first-level cache. */
#ifndef CUDA_RESIDENT_CUH
#define CUDA_RESIDENT_CUH

#include "cuda/resident.h"
#include "cuda/resident_attend.cuh"
#include "cuda/resident_cells.cuh"
#include "cuda/skinny.cuh"

/* Warps that multiply; measured, docs/benchmarks.md. One more carries. */
#define PLAIN_WARPS  11
#define F8_WARPS     11
#define QUANT_WARPS  9
#define NORM_THREADS 256 /* as norm.cu has, so that the sum is taken in the same order */

/* ---- sets of formats -----------------------------------------------------------------------------------------------
 */

template <class F, int W> struct SetOne {
    static constexpr int WARPS = W;
    static constexpr uint32_t REST = Cell<F>::REST;
    template <class V> static __device__ __forceinline__ void visit(enum format, V &&v)
    {
        v(F());
    }
};

struct SetQuant {
    static constexpr int WARPS = QUANT_WARPS;
    static constexpr uint32_t REST = Cell<FormatQ4K>::REST;
    template <class V> static __device__ __forceinline__ void visit(enum format f, V &&v)
    {
        switch (f) {
        case FORMAT_Q4: v(FormatQ4()); break;
        case FORMAT_Q4K: v(FormatQ4K()); break;
        case FORMAT_Q6K: v(FormatQ6K()); break;
        default: v(FormatQ8()); break;
        }
    }
};

/* ---- the ring ------------------------------------------------------------------------------------------------------
 */

struct ring {
    unsigned char *values, *rest;
    uint64_t *full, *free; /* barriers of each slot, in shared memory */
    uint32_t n, rest_bytes;

    __device__ __forceinline__ struct cell at(uint32_t slot) const
    {
        const struct cell c = {values + (size_t)slot * CELL_VALUES, rest + (size_t)slot * rest_bytes};
        return c;
    }
};

/* This thread's copies so far have come: an arrival, when it is so. */
__device__ __forceinline__ void barrier_arrive_copied(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(b)) : "memory");
}

/* What was written here by copies of threads may be written by the copy engine next. */
__device__ __forceinline__ void ring_hand_over()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* The multiplying warps meet; the carrier has no part in it. */
template <int WARPS> __device__ __forceinline__ void warps_meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory");
}

/* ---- phases --------------------------------------------------------------------------------------------------------
 */

/* A phase on its way from memory to shared memory, by one warp: taken at the start of a phase and put down at its end,
 * so that nobody waits for it. */
struct moving {
    static constexpr uint32_t WORDS = (sizeof(struct phase) / 8 + 31) / 32;
    uint2 word[WORDS];

    __device__ __forceinline__ void take(const struct planned *from)
    {
        static_assert(sizeof(struct phase) % 8 == 0, "moved in words");
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t at = threadIdx.x % 32 + 32 * i;
            word[i] = at < sizeof(struct phase) / 8 ? __ldg((const uint2 *)&from->phase + at) : make_uint2(0, 0);
        }
    }

    __device__ __forceinline__ void put(struct phase *to) const
    {
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t at = threadIdx.x % 32 + 32 * i;
            if (at < sizeof(struct phase) / 8)
                ((uint2 *)to)[at] = word[i];
        }
        __syncwarp();
    }
};

/* ---- carrying weights ----------------------------------------------------------------------------------------------
 */

__device__ __forceinline__ uint32_t tiles_of(const struct skinny_job &j)
{
    const uint32_t per_tile = j.end == SKINNY_GLU ? 8 : 16;
    return (j.n_out + per_tile - 1) / per_tile;
}

/* Tiles of this block. */
__device__ __forceinline__ uint32_t tiles_here(const struct skinny_job &j)
{
    const uint32_t n = tiles_of(j);
    return blockIdx.x < n ? (n - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
}

/* The two runs of 8 matrix rows of a tile. Lane group p ends rows a(p) and b(p) (tile_rows): p and p + 8 of the 16, or,
 * where those are neighbours, 2p and 2p + 1. */
struct tile_runs {
    uint32_t first[2];
    bool are_neighbours;
};

__device__ __forceinline__ struct tile_runs runs_of(const struct skinny_job &j, uint32_t tile)
{
    uint32_t a, b;
    tile_rows(j, tile, 0, a, b);
    const bool near = j.end == SKINNY_QKV && b == a + 1;
    const struct tile_runs runs = {{a, near ? a + 8 : b}, near};
    return runs;
}

/* Row r of the 16 of a tile, or the matrix' last. */
__device__ __forceinline__ const unsigned char *row_of(
    const struct skinny_job &j, const struct tile_runs &runs, uint32_t r)
{
    const unsigned char *base = r >= 8 && j.end == SKINNY_GLU ? j.w1 : j.w0;
    const uint32_t row = r % 8 + (r >= 8 ? runs.first[1] : runs.first[0]);
    return base + (size_t)min(row, j.n_out - 1) * j.row_bytes;
}

/* The maps of a product will be read: they were written by the host, which each block must ask to see. */
__device__ __forceinline__ void maps_take(const struct planned *p)
{
#if __CUDA_ARCH__ >= 900
    for (int i = 0; i < 2; i++) {
        asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&p->map[i]) : "memory");
        tma_prefetch(&p->map[i]);
    }
#endif
}

/* The stages of a phase, by the carrier; one lane asks for boxes, all for what lies beside the values. */
template <class Set, class F>
__device__ __forceinline__ void carry_phase(
    const struct skinny_job &j, const CUtensorMap *map, const struct ring &ring, uint32_t &slot, uint32_t &round)
{
    using C = Cell<F>;
    constexpr uint32_t BOX = C::COLS * TMA_ATOM;
    const uint32_t lane = threadIdx.x % 32, n_tiles = tiles_of(j), n_in = j.n_in;
    const CUtensorMap *second = j.end == SKINNY_GLU ? map + 1 : map;
    if (Set::REST == 0 && lane > 0)
        return;
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const struct tile_runs runs = runs_of(j, tile);
        const unsigned char *row = Set::REST > 0 ? row_of(j, runs, lane % 16) : NULL;
        for (uint32_t k = 0, col = 0; k < n_in; k += C::STEP, col += C::COLS) {
            if (round > 0)
                barrier_wait(&ring.free[slot], (round - 1) & 1);
            const struct cell c = ring.at(slot);
            if (lane == 0) {
                barrier_arrive_expect(&ring.full[slot], 2 * BOX);
                tma_load(c.values, map, col, runs.first[0], &ring.full[slot]);
                tma_load(c.values + BOX, second, col, runs.first[1], &ring.full[slot]);
            }
            if (Set::REST > 0) {
                C::rest(c, row, k, n_in);
                barrier_arrive_copied(&ring.full[slot]);
            }
            if (++slot == ring.n) {
                slot = 0;
                round++;
            }
        }
    }
}

template <class Set>
__device__ void carry(const struct resident_args &a, const struct ring &ring, struct phase *described)
{
    uint32_t slot = 0, round = 0, now = a.first_product;
    const bool asks = threadIdx.x % 32 == 0;
    struct moving next;
    next.take(a.program + now);
    if (asks)
        maps_take(a.program + now);
    next.put(described);
    while (true) {
        const uint32_t next_product = described->next_product;
        if (next_product < a.n) {
            next.take(a.program + next_product);
            if (asks)
                maps_take(a.program + next_product);
        }
        Set::visit(described->format,
            [&](auto f) { carry_phase<Set, decltype(f)>(described->job, a.program[now].map, ring, slot, round); });
        __syncwarp();
        if (next_product >= a.n)
            break;
        now = next_product;
        next.put(described);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

/* The sum over the multiplying warps, ascending; as block_reduce. They meet again before the same place is used. */
template <int WARPS> __device__ __forceinline__ float warps_sum(float x, uint32_t place)
{
    __shared__ float parts[RESIDENT_ROWS][WARPS];
    float *part = parts[place];
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    warps_meet<WARPS>();
    float all = part[0];
    for (int i = 1; i < WARPS; i++)
        all += part[i];
    return all;
}

/* What a phase needs that is known before the others are done with the one before. */
struct early {
    struct end_in end; /* of a thread's first pair of outputs */
    float4 gain[4];    /* of its part of a norm */
};

__device__ __forceinline__ void load_gains(const struct phase &p, float4 gain[4])
{
    const float4 *gains = (const float4 *)p.gain;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = threadIdx.x + i * NORM_THREADS;
        const bool there = p.x != NULL && threadIdx.x < NORM_THREADS && at < p.job.n_in / 4;
        gain[i] = there ? __ldg(gains + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Row r of x, normalised, as 16-bit numbers into shared memory; norm.cu's arithmetic. */
template <typename T, int WARPS>
__device__ void rows_normed(const struct phase &p, uint32_t r, const float4 gain[4], uint16_t *to)
{
    const uint32_t n = p.job.n_in, quads = n / 4;
    const float4 *row = (const float4 *)(p.x + (size_t)(p.rows != NULL ? p.rows[r] : r) * n);
    const float4 *gains = (const float4 *)p.gain;
    const bool mine = threadIdx.x < NORM_THREADS;
    float4 held[4];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = threadIdx.x + i * NORM_THREADS;
        const bool there = mine && at < quads;
        held[i] = there ? __ldcg(row + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    for (uint32_t at = threadIdx.x + 4 * NORM_THREADS; mine && at < quads; at += NORM_THREADS) {
        const float4 v = __ldcg(row + at);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float inv = rsqrtf(warps_sum<WARPS>(sum, r) / (float)n + p.eps);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = threadIdx.x + i * NORM_THREADS;
        const float4 v = held[i], g = gain[i];
        if (mine && at < quads)
            *(uint2 *)(to + 4 * at) = make_uint2(
                act_pair(T(), v.x * inv * g.x, v.y * inv * g.y), act_pair(T(), v.z * inv * g.z, v.w * inv * g.w));
    }
    for (uint32_t at = threadIdx.x + 4 * NORM_THREADS; mine && at < quads; at += NORM_THREADS) {
        const float4 v = __ldcg(row + at), g = __ldg(gains + at);
        *(uint2 *)(to + 4 * at) = make_uint2(
            act_pair(T(), v.x * inv * g.x, v.y * inv * g.y), act_pair(T(), v.z * inv * g.z, v.w * inv * g.w));
    }
}

/* A phase's activation rows into the room, [rows][width], zeros behind each. */
template <int WARPS> __device__ inline void load_rows(const struct phase &p, const float4 gain[4], uint16_t *room)
{
    const uint32_t n = p.job.n_in, width = resident_width(n);
    for (uint32_t r = 0; r < p.job.n_rows; r++) {
        uint16_t *to = room + (size_t)r * width;
        for (uint32_t i = n + threadIdx.x; i < width; i += WARPS * 32)
            to[i] = 0;
        if (p.x == NULL) {
            const uint4 *from = (const uint4 *)((const uint16_t *)p.job.act + (size_t)r * n);
            for (uint32_t i = threadIdx.x; i < n / 8; i += WARPS * 32)
                ((uint4 *)to)[i] = __ldcg(from + i);
        } else if (p.format == FORMAT_BF16)
            rows_normed<__nv_bfloat16, WARPS>(p, r, gain, to);
        else
            rows_normed<__half, WARPS>(p, r, gain, to);
    }
    warps_meet<WARPS>();
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* A slice of a stage: 16 weight rows with the activation row of each lane's column. */
template <class F>
__device__ __forceinline__ void multiply_slice(
    const struct cell &cell, const uint16_t *row, uint32_t k, uint32_t slice, bool there, float acc[4])
{
    typename F::Type type;
    typename F::Regs a, b;
    const uint32_t r = cell_row(threadIdx.x % 32 / 4), t = threadIdx.x % 4, e = slice * 4 * F::E + t * F::E;
    Cell<F>::get(a, cell, r, e, k);
    Cell<F>::get(b, cell, r + 8, e, k);
#pragma unroll
    for (int part = 0; part < F::E / 8; part++) {
        const uint4 v = there ? *(const uint4 *)(row + k + e + 8 * part) : make_uint4(0, 0, 0, 0);
        uint32_t p[4], q[4];
        F::pairs(a, part, p);
        F::pairs(b, part, q);
        mma(type, acc, p[0], q[0], p[1], q[1], v.x, v.y);
        mma(type, acc, p[2], q[2], p[3], q[3], v.z, v.w);
    }
}

/* A stage: elements from k on. A row's last slice may lack a partner. */
template <class F>
__device__ __forceinline__ void multiply(
    const struct cell &cell, const uint16_t *row, uint32_t k, uint32_t n, bool there, float acc[4])
{
    constexpr uint32_t SLICE = 4 * F::E, ALL = Cell<F>::STEP / SLICE;
    const uint32_t n_slices = (min(Cell<F>::STEP, n - k) + SLICE - 1) / SLICE;
    float odd[4] = {};
    if (n_slices == ALL) { /* written out, so that all that is loaded can be on its way at once */
#pragma unroll
        for (uint32_t slice = 0; slice < ALL; slice += 2) {
            multiply_slice<F>(cell, row, k, slice, there, acc);
            multiply_slice<F>(cell, row, k, slice + 1, there, odd);
        }
    } else {
        uint32_t slice = 0;
        for (; slice + 1 < n_slices; slice += 2) {
            multiply_slice<F>(cell, row, k, slice, there, acc);
            multiply_slice<F>(cell, row, k, slice + 1, there, odd);
        }
        if (slice < n_slices)
            multiply_slice<F>(cell, row, k, slice, there, acc);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        acc[i] += odd[i];
}

/* Add the stages of each of n tiles, ascending, and do what is to be done with them. */
template <int WARPS>
__device__ __forceinline__ void finish_tiles(const struct skinny_job &j, uint32_t first, uint32_t n, uint32_t n_stages,
    const float *sums, const struct early &early)
{
    const uint32_t n_rows = j.n_rows, each = n_rows * 8;
    for (uint32_t i = threadIdx.x; i < n * each; i += WARPS * 32) {
        const uint32_t local = i / each, p = i % 8, column = i % each / 8;
        const uint32_t tile = blockIdx.x + (first + local) * gridDim.x;
        const bool near = runs_of(j, tile).are_neighbours;
        const float *from = sums + ((size_t)local * n_stages * n_rows + column) * 16 + (near ? 2 * p : p);
        const uint32_t second = near ? 1 : 8;
        float a = 0.0f, b = 0.0f;
#pragma unroll 4
        for (uint32_t s = 0; s < n_stages; s++) {
            a += from[s * n_rows * 16];
            b += from[s * n_rows * 16 + second];
        }
        uint32_t ra, rb;
        tile_rows(j, tile, p, ra, rb);
        const bool is_first = first == 0 && i == threadIdx.x;
        end_pair(j, column, 0, ra, rb, a, b, is_first ? early.end : end_load(j, column, 0, ra, rb));
    }
}

/* A thread's first pair of outputs, if it has one. */
__device__ __forceinline__ bool first_pair(const struct skinny_job &j, uint32_t &column, uint32_t &ra, uint32_t &rb)
{
    const uint32_t each = j.n_rows * 8, local = threadIdx.x / each;
    if (local >= tiles_here(j))
        return false;
    column = threadIdx.x % each / 8;
    tile_rows(j, blockIdx.x + local * gridDim.x, threadIdx.x % 8, ra, rb);
    return true;
}

/* What a product will need of what this step does not write; of what it adds to, only where that is old enough. */
__device__ __forceinline__ void load_early(const struct phase &p, struct early &early)
{
    uint32_t column, ra, rb;
    early = {};
    if (p.kind != PHASE_PRODUCT)
        return;
    load_gains(p, early.gain);
    if (first_pair(p.job, column, ra, rb)) {
        early.end = end_load_fixed(p.job, column, 0, ra, rb);
        if (p.is_sum_old)
            end_load_sum(p.job, column, ra, rb, early.end);
    }
}

/* done: stages of this block before this phase, and after it. */
template <class Set>
__device__ void run_product(const struct phase &p, const uint16_t *room, float *sums, const struct ring &ring,
    uint32_t &done, const struct early &early)
{
    const struct skinny_job &j = p.job;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t n_in = j.n_in, n_rows = j.n_rows, n_tiles = tiles_here(j);
    const bool there = g < n_rows;
    const uint16_t *row = room + (size_t)(there ? g : 0) * resident_width(n_in);
    Set::visit(p.format, [&](auto f) {
        using F = decltype(f);
        constexpr uint32_t STEP = Cell<F>::STEP;
        const uint32_t n_stages = (n_in + STEP - 1) / STEP, at_once = max(1u, RESIDENT_SUMS / n_stages);
        for (uint32_t first = 0; first < n_tiles; first += at_once) {
            const uint32_t tiles = min(at_once, n_tiles - first), n = tiles * n_stages;
            for (uint32_t i = (warp + Set::WARPS - done % Set::WARPS) % Set::WARPS; i < n; i += Set::WARPS) {
                const uint32_t stage = done + i, slot = stage % ring.n, k = i % n_stages * STEP;
                float acc[4] = {};
                barrier_wait(&ring.full[slot], stage / ring.n & 1);
                multiply<F>(ring.at(slot), row, k, n_in, there, acc);
                if (Set::REST > 0 && Cell<F>::REST == 0)
                    ring_hand_over();
                __syncwarp();
                if (threadIdx.x % 32 == 0)
                    barrier_arrive(&ring.free[slot]);
                float *to = sums + (size_t)i * n_rows * 16 + cell_row(g);
                if (2 * t < n_rows) {
                    to[2 * t * 16] = acc[0];
                    to[2 * t * 16 + 8] = acc[2];
                }
                if (2 * t + 1 < n_rows) {
                    to[(2 * t + 1) * 16] = acc[1];
                    to[(2 * t + 1) * 16 + 8] = acc[3];
                }
            }
            done += n;
            warps_meet<Set::WARPS>();
            finish_tiles<Set::WARPS>(j, first, tiles, n_stages, sums, early);
            if (first + at_once < n_tiles)
                warps_meet<Set::WARPS>();
        }
    });
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------
 */

/* This block is done with its phase: what its warps wrote may be read by whoever sees the others come too. */
template <int WARPS> __device__ __forceinline__ void chip_arrive(uint32_t *counter)
{
    warps_meet<WARPS>();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/* All blocks have arrived `round` times. */
template <int WARPS> __device__ __forceinline__ void chip_wait(const uint32_t *counter, uint32_t round)
{
    if (threadIdx.x == 0) {
        uint32_t seen;
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
        while (seen < round * gridDim.x);
    }
    warps_meet<WARPS>();
}

template <class Set>
__device__ void run_phases(
    const struct resident_args &a, struct phase *described, const struct ring &ring, unsigned char *room, float *sums)
{
    const uint32_t warp = threadIdx.x / 32;
    uint32_t done = 0;
    struct attend_first first = {};
    struct moving next;
    struct early early;
    launch_wait();
    load_early(described[0], early);
    for (uint32_t i = 0; i < a.n; i++) {
        const struct phase &p = described[i % 2];
        if (warp == Set::WARPS - 1 && i + 1 < a.n)
            next.take(a.program + i + 1);
        if (p.kind == PHASE_ATTEND)
            resident_attend_phase<Set::WARPS>(p.attend, room, first);
        else {
            uint32_t column, ra, rb;
            if (!p.is_sum_old && first_pair(p.job, column, ra, rb))
                end_load_sum(p.job, column, ra, rb, early.end);
            load_rows<Set::WARPS>(p, early.gain, (uint16_t *)room);
            run_product<Set>(p, (const uint16_t *)room, sums, ring, done, early);
        }
        if (i + 1 == a.n)
            break;
        if (warp == Set::WARPS - 1) /* in place of the phase before this one */
            next.put(described + (i + 1) % 2);
        chip_arrive<Set::WARPS>(a.barrier);
        load_early(described[(i + 1) % 2], early);
        chip_wait<Set::WARPS>(a.barrier, i + 1);
    }
    launch_next();
    if (threadIdx.x == 0 && atomicAdd(a.barrier, 1) == a.n * gridDim.x - 1)
        *a.barrier = 0;
}

template <class Set>
__global__ void __launch_bounds__((Set::WARPS + 1) * 32, 1)
    resident_kernel(const __grid_constant__ struct resident_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ uint4 shared[];
    __shared__ __align__(16) unsigned char described[3 * sizeof(struct phase)]; /* this, next; the carrier's */
    __shared__ uint64_t barriers[2 * RESIDENT_SLOTS];
    unsigned char *values = (unsigned char *)shared;
    values += (TMA_ATOM - shared_at(values) % TMA_ATOM) % TMA_ATOM;
    const struct ring ring = {
        values, values + (size_t)a.n_slots * CELL_VALUES, barriers, barriers + RESIDENT_SLOTS, a.n_slots, Set::REST};
    unsigned char *room = ring.rest + (size_t)ring.n * Set::REST;
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x < 2 * RESIDENT_SLOTS) { /* full: who asks for boxes, and each lane; free: one word of the warp's */
        barrier_init(&barriers[threadIdx.x], threadIdx.x < RESIDENT_SLOTS && Set::REST > 0 ? 33 : 1);
        barrier_publish();
    }
    struct phase *const phases = (struct phase *)described;
    if (warp == 0) {
        struct moving first;
        first.take(a.program);
        first.put(phases);
    }
    __syncthreads();
    if (warp == Set::WARPS)
        carry<Set>(a, ring, phases + 2);
    else
        run_phases<Set>(a, phases, ring, room, (float *)(room + a.room_bytes));
#endif
}

#endif
