/* The kernel behind resident.h. A block a multiprocessor, which walks the phases; a barrier over the chip between them.
 *
 * Weights. One warp, the carrier, walks the stages of all phases in the order in which they will be multiplied, and
 * asks for each as soon as a place in the ring is free, whatever phase it belongs to. A stage is full when its bytes
 * have come, and its place is free when the warp whose it is has it in registers.
 *
 * Products. A block takes tiles of 16 matrix rows in turn. k is cut into stages (resident_cells.cuh), which the warps
 * take in turn; a warp sums one from zero on the matrix unit, even and odd slices apart; quantised ones in whole
 * numbers (resident_whole.cuh). The sums of a tile's stages are added ascending. So the order of float operations
 * belongs to the shape of the matrix alone.
 *
 * Ends. The other three warps of the carrier's group add up the sums of tiles and do what is to be done with them; what
 * they need beside them they have asked for long before.
 *
 * Between two phases a block waits some thousand cycles for the others. What the next phase reads that no other block
 * writes now is asked for then: gains, the first weights, the cache of short contexts.
 *
 * What other blocks wrote is read past the first-level cache. */
#ifndef CUDA_RESIDENT_CUH
#define CUDA_RESIDENT_CUH

#include "cuda/resident.h"
#include "cuda/resident_attend.cuh"
#include "cuda/resident_cells.cuh"
#include "cuda/resident_multiply.cuh"
#include "cuda/resident_whole.cuh"
#include "cuda/skinny.cuh"
#include "cuda/wgmma.cuh"

/* Warps that multiply, of a block; measured, docs/benchmarks.md. */
#define PLAIN_WARPS  8
#define F8_WARPS     8
#define QUANT_WARPS  8
#define END_THREADS  96  /* three warps that end tiles */
#define DESCRIBED    3   /* phases in shared memory: this, the next, and one that comes or goes */
#define NORM_THREADS 256 /* as norm.cu has, so that the sum is taken in the same order */

/* ---- sets of formats -----------------------------------------------------------------------------------------------
 */

template <class F, int W> struct SetOne {
    static constexpr int WARPS = W;
    static constexpr bool IS_WHOLE = false; /* products in whole numbers */
    template <class V> static __device__ __forceinline__ void visit(enum format, V &&v)
    {
        v(F());
    }
};

struct SetQuant {
    static constexpr int WARPS = QUANT_WARPS;
    static constexpr bool IS_WHOLE = true;
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
    unsigned char *slots;
    uint32_t barriers; /* of each slot, by address: full; behind those free */
    uint32_t n, bytes; /* slots; bytes of one */

    __device__ __forceinline__ unsigned char *slot(uint32_t i) const
    {
        return slots + i * bytes;
    }
    __device__ __forceinline__ uint32_t full_at(uint32_t i) const
    {
        return barriers + 8 * i;
    }
    __device__ __forceinline__ uint32_t free_at(uint32_t i) const
    {
        return barriers + 8 * (RESIDENT_SLOTS + i);
    }
    /* What lies behind the slots. */
    __device__ __forceinline__ unsigned char *room() const
    {
        return slots + n * bytes;
    }
    /* The same for one kind of warp: in registers of its own, and not made for every use. */
    __device__ __forceinline__ struct ring found_anew() const
    {
        const struct ring r = {
            (unsigned char *)__cvta_shared_to_generic(anew(shared_at(slots))), anew(barriers), anew(n), bytes};
        return r;
    }
};

/* Where a warp is in the ring: its next stage lies `step` places on, no more than there are. */
struct ring_place {
    uint32_t slot, parity;

    __device__ __forceinline__ ring_place(const struct ring &ring, uint32_t stage)
        : slot(stage % ring.n), parity(stage / ring.n & 1)
    {
    }
    __device__ __forceinline__ void go(const struct ring &ring, uint32_t step)
    {
        slot += step;
        if (slot >= ring.n) {
            slot -= ring.n;
            parity ^= 1;
        }
    }
};

/* ---- phases --------------------------------------------------------------------------------------------------------
 */

/* A phase on its way from memory to shared memory, by one warp: taken at the start of a phase and put down at its end,
 * so that nobody waits for it. */
struct moving {
    static constexpr uint32_t WORDS = (sizeof(struct phase) / 8 + 31) / 32;
    uint2 word[WORDS];

    __device__ __forceinline__ void take(const struct phase *from)
    {
        static_assert(sizeof(struct phase) % 8 == 0, "moved in words");
#pragma unroll
        for (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t at = threadIdx.x % 32 + 32 * i;
            word[i] = at < sizeof(struct phase) / 8 ? __ldg((const uint2 *)from + at) : make_uint2(0, 0);
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

__device__ __forceinline__ const unsigned char *row_of(const struct skinny_job &j, uint32_t tile, uint32_t r)
{
    uint32_t a, b;
    tile_rows(j, tile, r % 8, a, b);
    const bool second = r >= 8;
    const unsigned char *base = second && j.end == SKINNY_GLU ? j.w1 : j.w0;
    return base + (size_t)min(second ? b : a, j.n_out - 1) * j.row_bytes;
}

/* Where the carrier is in the ring. */
struct carrier {
    uint32_t slot, round;

    /* A stage to the next place as soon as that is free; FLIGHT are on their way at most. */
    template <int FLIGHT, class Fetch> __device__ __forceinline__ void carry(const struct ring &ring, Fetch &&fetch)
    {
        if (round > 0)
            barrier_wait(ring.free_at(slot), (round - 1) & 1);
        fetch(ring.slot(slot));
        barrier_arrive_copied(ring.full_at(slot));
        copy_commit();
        copy_wait<FLIGHT - 1>();
        if (++slot == ring.n) {
            slot = 0;
            round++;
        }
    }
};

template <class Set>
__device__ void carry(const struct resident_args &a, const struct ring &ring, struct phase *described)
{
    const uint32_t lane = lane_anew();
    struct carrier to = {};
    struct moving next;
    next.take(a.program + a.first_product);
    next.put(described);
    while (true) {
        const struct skinny_job &j = described->job;
        const uint32_t n_tiles = tiles_of(j), n_in = j.n_in, next_product = described->next_product;
        if (next_product < a.n)
            next.take(a.program + next_product);
        Set::visit(described->format, [&](auto f) {
            using C = Cell<decltype(f)>;
            for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
                struct cell_rows rows;
#pragma unroll
                for (int r = 0; r < 4; r++)
                    rows.unit[r] = row_of(j, tile, lane / 8 + 4 * r) + lane % 8 * 16;
                rows.rest = row_of(j, tile, lane % 16);
                for (uint32_t k = 0; k < n_in; k += C::STEP)
                    to.carry<C::FLIGHT>(ring, [&](unsigned char *slot) { C::fetch(slot, rows, k, n_in); });
            }
        });
        if (next_product >= a.n)
            break;
        __syncwarp();
        next.put(described);
    }
    copy_wait<0>();
}

/* ---- before the barrier --------------------------------------------------------------------------------------------
 */

#define GAINS 4 /* quads of a row that a thread of a norm holds */

/* What a product's rows need beside themselves, asked for while the blocks wait for each other: the gains of its norm.
 * Behind a ring of weights on their way they would take microseconds. */
struct begun {
    float4 gain[GAINS];

    __device__ __forceinline__ void load(const struct phase &p)
    {
#pragma unroll
        for (int i = 0; i < GAINS; i++) {
            const uint32_t at = threadIdx.x + i * NORM_THREADS;
            const bool there = p.x != NULL && threadIdx.x < NORM_THREADS && at < p.job.n_in / 4;
            gain[i] = there ? load_now((const float4 *)p.gain + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
};

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

/* The sum over the multiplying warps, ascending; as block_reduce. r: the row, so that rows one after the other have
 * room of their own. */
template <int WARPS> __device__ __forceinline__ float warps_sum(float x, uint32_t r)
{
    __shared__ float parts[RESIDENT_ROWS][WARPS];
    float *part = parts[r];
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    meet<WARPS * 32>();
    float all = part[0];
    for (int i = 1; i < WARPS; i++)
        all += part[i];
    return all;
}

/* Row r of x, normalised, zeros behind it; norm.cu's arithmetic. put(at, step, end, numbers) gets quads at, at + step,
 * ... of it, of which those below end are to be kept. Whole warps put. */
template <int WARPS, class Put>
__device__ __forceinline__ void rows_normed(const struct phase &p, uint32_t r, const struct begun &ahead, Put &&put)
{
    const uint32_t n = p.job.n_in, quads = n / 4, thread = thread_anew();
    const float4 *row = (const float4 *)(p.x + (size_t)(p.rows != NULL ? p.rows[r] : r) * n);
    const float4 *gains = (const float4 *)p.gain;
    const bool mine = thread < NORM_THREADS;
    float4 held[GAINS];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < GAINS; i++) {
        const uint32_t at = thread + i * NORM_THREADS;
        held[i] = mine && at < quads ? __ldcg(row + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < GAINS; i++)
        sum += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    for (uint32_t at = thread + GAINS * NORM_THREADS; mine && at < quads; at += NORM_THREADS) {
        const float4 v = __ldcg(row + at);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float inv = rsqrtf(warps_sum<WARPS>(sum, r) / (float)n + p.eps);
    const uint32_t all = resident_width(n) / 4, end = mine ? all : 0;
#pragma unroll
    for (int i = 0; i < GAINS; i++) {
        const float4 v = held[i], g = ahead.gain[i];
        held[i] = make_float4(v.x * inv * g.x, v.y * inv * g.y, v.z * inv * g.z, v.w * inv * g.w);
    }
    put(thread, NORM_THREADS, end, held);
    for (uint32_t first = GAINS * NORM_THREADS; first < all; first += NORM_THREADS) {
        const uint32_t at = first + thread;
        float4 one[1] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
        if (mine && at < quads) {
            const float4 v = __ldcg(row + at), g = __ldg(gains + at);
            one[0] = make_float4(v.x * inv * g.x, v.y * inv * g.y, v.z * inv * g.z, v.w * inv * g.w);
        }
        put(at, NORM_THREADS, end, one);
    }
}

/* The same as 16-bit numbers. */
template <typename T, int WARPS>
__device__ __forceinline__ void rows_short(const struct phase &p, uint32_t r, const struct begun &ahead, uint16_t *to)
{
    rows_normed<WARPS>(p, r, ahead, [&](uint32_t at, uint32_t step, uint32_t end, const auto &v) {
#pragma unroll
        for (uint32_t i = 0; i < sizeof v / sizeof v[0]; i++)
            if (at + i * step < end)
                *(uint2 *)(to + 4 * (at + i * step)) =
                    make_uint2(act_pair(T(), v[i].x, v[i].y), act_pair(T(), v[i].z, v[i].w));
    });
}

/* Row r of a phase as whole numbers. */
template <int WARPS, class F>
__device__ __forceinline__ void rows_whole(
    const struct phase &p, uint32_t r, const struct begun &ahead, const uint4 *from, const WholeRow<F> &to)
{
    if (p.x == NULL)
        whole_halves<WARPS>(from, p.job.n_in, to);
    else
        rows_normed<WARPS>(
            p, r, ahead, [&](uint32_t at, uint32_t step, uint32_t end, const auto &v) { to.put4(at, step, end, v); });
}

/* A phase's activation rows into the room, zeros behind each: [rows][width], or as whole numbers. */
template <class Set, class F>
__device__ __forceinline__ void load_rows(const struct phase &p, const struct begun &ahead, unsigned char *room)
{
    constexpr int WARPS = Set::WARPS;
    const uint32_t n = p.job.n_in, width = resident_width(n);
    for (uint32_t r = 0; r < p.job.n_rows; r++) {
        const uint4 *from = (const uint4 *)((const uint16_t *)p.job.act + (size_t)r * n);
        if constexpr (Set::IS_WHOLE)
            rows_whole<WARPS>(
                p, r, ahead, from, WholeRow<F>(room + (size_t)r * resident_row_bytes(RESIDENT_QUANT, n), n));
        else {
            uint16_t *to = (uint16_t *)room + (size_t)r * width;
            if (p.x == NULL)
                for (uint32_t i = threadIdx.x; i < width / 8; i += WARPS * 32)
                    ((uint4 *)to)[i] = i < n / 8 ? __ldcg(from + i) : make_uint4(0, 0, 0, 0);
            else
                rows_short<typename F::Type, WARPS>(p, r, ahead, to);
        }
    }
    meet<WARPS * 32>();
}

/* ---- stages in registers -------------------------------------------------------------------------------------------
 */

/* A warp takes a whole stage into registers before it multiplies, so that its slot is free again at once. Its first one
 * of a phase it takes while the blocks wait for each other, if it has come: the ring is longer by that. What it held is
 * not set anew when it is done with: another value in its place would be copied for every stage. */
struct holding {
    struct held_stage stage;
    bool is_full;
};

/* The stages of this block's tiles from `first` on whose sums are added together; step: elements of one. */
struct stages {
    uint32_t each, at_once, n;
    __device__ __forceinline__ stages(const struct skinny_job &j, uint32_t first, uint32_t step)
        : each((j.n_in + step - 1) / step), at_once(max(1u, RESIDENT_SUMS / (each * j.n_rows))),
          n(min(at_once, tiles_here(j) - first) * each)
    {
    }
};

template <class Set, class F> struct Stages : stages {
    __device__ __forceinline__ Stages(const struct skinny_job &j, uint32_t first) : stages(j, first, Cell<F>::STEP)
    {
    }
    /* The warp's first. */
    static __device__ __forceinline__ uint32_t mine(uint32_t done)
    {
        return (threadIdx.x / 32 + Set::WARPS - done % Set::WARPS) % Set::WARPS;
    }
    static __device__ __forceinline__ bool is_held(const struct skinny_job &j, uint32_t k)
    {
        return k + Cell<F>::STEP <= j.n_in && (!Set::IS_WHOLE || j.n_rows == 1);
    }
};

/* The slot's bytes have been read. */
__device__ __forceinline__ void release(const struct ring &ring, uint32_t slot, uint32_t lane)
{
    __syncwarp();
    if (lane == 0)
        barrier_arrive(ring.free_at(slot));
}

/* A warp's stages of a phase, one after the other: the i-th of those whose sums are added together, where it begins in
 * its tile, and where it lies. */
template <class Set, class F> struct Walk {
    uint32_t i, of_tile;
    struct ring_place at;

    __device__ __forceinline__ Walk(const struct ring &ring, const Stages<Set, F> &stages, uint32_t done)
        : i(stages.mine(done)), of_tile(i % stages.each), at(ring, done + i)
    {
    }
    __device__ __forceinline__ void go(const struct ring &ring, const Stages<Set, F> &stages)
    {
        i += Set::WARPS;
        at.go(ring, Set::WARPS);
        for (of_tile += Set::WARPS; of_tile >= stages.each;)
            of_tile -= stages.each;
    }
    __device__ __forceinline__ uint32_t k() const
    {
        return of_tile * Cell<F>::STEP;
    }
};

/* Take the stage, if it is one that is held. WAITS: else only if it has come. */
template <bool WAITS, class Set, class F>
__device__ __forceinline__ void take_stage(
    const struct skinny_job &j, const struct ring &ring, const Walk<Set, F> &w, uint32_t lane, struct holding &held)
{
    if (!Stages<Set, F>::is_held(j, w.k()))
        return;
    if (WAITS)
        barrier_wait(ring.full_at(w.at.slot), w.at.parity);
    else if (!__all_sync(ALL_LANES, barrier_is_over(ring.full_at(w.at.slot), w.at.parity)))
        return;
    Cell<F>::hold(held.stage, ring.slot(w.at.slot), lane, w.k());
    release(ring, w.at.slot, lane);
    held.is_full = true;
}

/* The first stage of a phase that is to come. */
template <class Set, class F>
__device__ __forceinline__ void hold_ahead(
    const struct skinny_job &j, const struct ring &ring, uint32_t done, struct holding &held)
{
    if (tiles_here(j) == 0)
        return;
    const Stages<Set, F> stages(j, 0);
    const Walk<Set, F> w(ring, stages, done);
    if (w.i < stages.n)
        take_stage<false>(j, ring, w, lane_anew(), held);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------
 */

/* Meetings of those who multiply with those who end: the sums are there, or read; the next phase may begin. And of
 * those who end alone. */
enum { MEET_SUMS = 2, MEET_OPEN, MEET_ENDS };

template <class Set, int ID> __device__ __forceinline__ void meet_all()
{
    meet_apart<ID, Set::WARPS * 32 + END_THREADS>();
}

__device__ __forceinline__ void meet_ends()
{
    meet_named<(int)MEET_ENDS, END_THREADS>();
}

/* A pair of outputs: where its sums lie, and what its end needs beside them. */
struct ending {
    uint32_t from, column, ra, rb;
    struct end_in in;

    /* Pair i of the tiles of this block from `first` on. */
    __device__ __forceinline__ void find(const struct skinny_job &j, uint32_t first, uint32_t n_stages, uint32_t i)
    {
        const uint32_t each = j.n_rows * 8, local = i / each, p = i % 8;
        column = i % each / 8;
        from = (local * n_stages * j.n_rows + column) * 16 + p;
        tile_rows(j, blockIdx.x + (first + local) * gridDim.x, p, ra, rb);
        in = end_load(j, column, 0, ra, rb);
    }

    /* Add the stages, ascending, and do what is to be done with them. */
    __device__ __forceinline__ void end(const struct skinny_job &j, uint32_t n_stages, const float *sums) const
    {
        const uint32_t step = j.n_rows * 16;
        float a = 0.0f, b = 0.0f;
#pragma unroll 8
        for (uint32_t s = 0; s < n_stages; s++) {
            a += sums[from + s * step];
            b += sums[from + s * step + 8];
        }
        end_pair(j, column, 0, ra, rb, a, b, in);
    }
};

/* The ends of this block's tiles, whose stages have `step` elements. What the first two pairs of a thread need is there
 * before their sums are. */
template <class Set>
__device__ __forceinline__ void end_tiles(const struct skinny_job &j, uint32_t step, const float *sums, uint32_t thread)
{
    const uint32_t n_tiles = tiles_here(j);
    if (n_tiles == 0)
        meet_all<Set, MEET_SUMS>();
    for (uint32_t first = 0; first < n_tiles;) {
        const struct stages s(j, first, step);
        const uint32_t n = s.n / s.each * j.n_rows * 8;
        struct ending now, next;
        if (thread < n)
            now.find(j, first, s.each, thread);
        if (thread + END_THREADS < n)
            next.find(j, first, s.each, thread + END_THREADS);
        meet_all<Set, MEET_SUMS>();
        for (uint32_t i = thread; i < n; i += END_THREADS) {
            now.end(j, s.each, sums);
            now = next;
            if (i + 2 * END_THREADS < n)
                next.find(j, first, s.each, i + 2 * END_THREADS);
        }
        first += s.at_once;
        if (first < n_tiles)
            meet_all<Set, MEET_SUMS>();
    }
}

/* A stage's sums, as the matrix unit has them. */
template <class Set, class F>
__device__ __forceinline__ void run_stage(const struct skinny_job &j, const unsigned char *room,
    const struct ring &ring, const Walk<Set, F> &w, uint32_t lane, struct holding &held, float acc[4])
{
    const uint32_t g = lane / 4, n_in = j.n_in, k = w.k();
    const uint16_t *row = (const uint16_t *)room + (size_t)(g < j.n_rows ? g : 0) * resident_width(n_in) +
                          k; /* nobody reads other columns */
    if (held.is_full) {
        if constexpr (Set::IS_WHOLE)
            whole_held<F>(held.stage, room, k, n_in, lane, acc);
        else
            multiply_held<F>(held.stage, row, lane, acc);
        held.is_full = false;
        return;
    }
    const unsigned char *weights = ring.slot(w.at.slot);
    barrier_wait(ring.full_at(w.at.slot), w.at.parity);
    if constexpr (!Set::IS_WHOLE)
        multiply<F>(weights, row, k, n_in, lane, acc);
    else if (j.n_rows == 1)
        whole_stage<F, 1>(weights, room, k, n_in, lane, acc);
    else
        whole_stage<F, 2>(weights, room, k, n_in, lane, acc);
    release(ring, w.at.slot, lane);
}

/* What the matrix unit has of a stage goes to where sums are added. */
__device__ __forceinline__ void put_sums(float *to, uint32_t n_rows, uint32_t lane, const float acc[4])
{
    const uint32_t g = lane / 4, t = lane % 4;
    if (2 * t < n_rows) {
        to[2 * t * 16 + g] = acc[0];
        to[2 * t * 16 + g + 8] = acc[2];
    }
    if (2 * t + 1 < n_rows) {
        to[(2 * t + 1) * 16 + g] = acc[1];
        to[(2 * t + 1) * 16 + g + 8] = acc[3];
    }
}

/* done: stages of this block before this phase, and after it. */
template <class Set, class F>
__device__ __forceinline__ void run_product(const struct skinny_job &j, const unsigned char *room, float *sums,
    const struct ring &ring, struct holding &held, uint32_t &done)
{
    const uint32_t lane = lane_anew(), n_tiles = tiles_here(j);
    for (uint32_t first = 0; first < n_tiles;) {
        const Stages<Set, F> stages(j, first);
        for (Walk<Set, F> w(ring, stages, done); w.i < stages.n; w.go(ring, stages)) {
            if (!held.is_full)
                take_stage<true>(j, ring, w, lane, held);
            float acc[4] = {};
            run_stage(j, room, ring, w, lane, held, acc);
            put_sums(sums + (size_t)w.i * j.n_rows * 16, j.n_rows, lane, acc);
        }
        done += stages.n;
        meet_all<Set, MEET_SUMS>();
        first += stages.at_once;
        if (first < n_tiles)
            meet_all<Set, MEET_SUMS>();
    }
    if (n_tiles == 0)
        meet_all<Set, MEET_SUMS>();
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------
 */

/* The chip's barrier by those who multiply: what they wrote is seen by the others, and what the others wrote by them.
 */
template <int WARPS> __device__ __forceinline__ void chip_tell(uint32_t *counter)
{
    meet<WARPS * 32>();
    if (threadIdx.x == 0)
        chip_add(counter);
}

template <int WARPS> __device__ __forceinline__ void chip_wait(const uint32_t *counter, uint32_t round)
{
    if (threadIdx.x == 0)
        chip_see(counter, round);
    __syncwarp();
    meet<WARPS * 32>();
}

/* The warps that end tiles. They also bring descriptions, tell when the block is through with a product, and see when
 * all blocks are: those who multiply are at the next phase's first weights meanwhile. */
template <class Set>
__device__ __forceinline__ void run_ends(const struct resident_args &a, struct phase *described, const float *sums)
{
    const uint32_t thread = thread_anew() - (Set::WARPS + 1) * 32;
    launch_wait();
    for (uint32_t i = 0;; i++) {
        const struct phase &p = described[i % DESCRIBED];
        if (thread < 32 && i + 2 < a.n) { /* in place of the one before this, which nobody reads any more */
            struct moving next;
            next.take(a.program + i + 2);
            next.put(described + (i + 2) % DESCRIBED);
        }
        if (p.kind == PHASE_PRODUCT) {
            uint32_t step;
            Set::visit(p.format, [&](auto f) { step = Cell<decltype(f)>::STEP; });
            end_tiles<Set>(p.job, step, sums, thread);
        }
        if (i + 1 == a.n)
            break;
        if (p.kind == PHASE_PRODUCT) {
            meet_ends();
            if (thread == 0)
                chip_add(a.barrier);
        }
        if (thread == 0)
            chip_see(a.barrier, i + 1);
        __syncwarp();
        meet_all<Set, MEET_OPEN>();
    }
    if (thread == 0 && atomicAdd(a.barrier, 1) == a.n * gridDim.x - 1)
        *a.barrier = 0;
}

template <class Set>
__device__ __forceinline__ void run_phases(const struct resident_args &a, struct phase *described,
    struct attend_first &first, const struct ring &ring, unsigned char *room, float *sums)
{
    constexpr int WARPS = Set::WARPS;
    uint32_t done = 0;
    launch_wait();
    if (threadIdx.x == 0 && a.first_attend < a.n) { /* seen by all when the first rows are there */
        const struct phase &p = a.program[a.first_attend];
        attend_first_load(p.attend, &first);
    }
    for (uint32_t i = 0; i < a.n; i++) {
        const struct phase &p = described[i % DESCRIBED];
        Set::visit(p.format, [&](auto f) {
            using F = decltype(f);
            struct begun ahead;
            struct holding held = {}; /* zeros: what need not be set would be kept from phase to phase */
            ahead.load(p);
            if constexpr (!Set::IS_WHOLE) /* there it would take more registers than there are */
                hold_ahead<Set, F>(p.job, ring, done, held);
            if (i > 0)
                meet_all<Set, MEET_OPEN>();
            load_rows<Set, F>(p, ahead, room);
            run_product<Set, F>(p.job, room, sums, ring, held, done);
        });
        if (i + 1 == a.n)
            break;
        const struct phase &q = described[(i + 1) % DESCRIBED];
        if (q.kind == PHASE_ATTEND) {
            resident_attend_phase<WARPS>(q.attend, room, first, [] { meet_all<Set, MEET_OPEN>(); });
            i++;
            if (i + 1 == a.n)
                break;
            chip_tell<WARPS>(a.barrier);
        }
    }
    launch_next();
}

template <class Set>
__global__ void __launch_bounds__(resident_threads(Set::WARPS), 1)
    resident_kernel(const __grid_constant__ struct resident_args a)
{
#if __CUDA_ARCH__ >= 900
    SHARED_ROOM(shared);
    __shared__ __align__(16) unsigned char described[(DESCRIBED + 1) * sizeof(struct phase)]; /* and the carrier's */
    __shared__ uint64_t barriers[2 * RESIDENT_SLOTS];
    __shared__ struct attend_first first;
    const uint32_t warp = thread_anew() / 32;
    if (threadIdx.x < 2 * RESIDENT_SLOTS) /* full: a lane of the carrier each; free: one word of the warp's */
        barrier_init(&barriers[threadIdx.x], threadIdx.x < RESIDENT_SLOTS ? 32 : 1);
    const struct ring made = {(unsigned char *)shared, shared_at(barriers), a.n_slots, a.slot_bytes};
    struct phase *const phases = (struct phase *)described;
    if (warp < 2 && warp < a.n) {
        struct moving begin;
        begin.take(a.program + warp);
        begin.put(phases + warp);
    }
    __syncthreads();
    if (warp >= Set::WARPS) {
        warpgroup_registers_down<RESIDENT_OTHER_REGISTERS>();
        const struct ring ring = made.found_anew();
        if (warp == Set::WARPS)
            carry<Set>(a, ring, phases + DESCRIBED);
        else
            run_ends<Set>(a, phases, (const float *)(ring.room() + a.room_bytes));
    } else {
        warpgroup_registers_up<RESIDENT_WORK_REGISTERS>();
        const struct ring ring = made.found_anew();
        run_phases<Set>(a, phases, first, ring, ring.room(), (float *)(ring.room() + a.room_bytes));
    }
#endif
}

#endif
