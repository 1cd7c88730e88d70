/* Products of up to 64 rows with 16-bit float weights, on cards with a copy engine. A block streams its weight rows
 * through a ring in shared memory: one thread asks for boxes of them, and of the activations beside them (tma.cuh), as
 * soon as a place in the ring is free; the other warps have 16 weight rows each and multiply what has come.
 *
 * Order of float operations for one output: one chain over k, ascending, 16 at a time on the matrix unit. That is also
 * what the library's kernels do when they do not cut k, bit for bit, on every card that was tried; --deterministic
 * stands on it, and tries it when it starts (products.cu).
 *
 * The weights of the first places are asked for before launch_wait, since nobody writes them, and the next kernel is
 * let onto the chip at once: two blocks fit on a multiprocessor, so that its ring is full when this one ends.
 *
 * A tile is 16 rows: 8 pairs of rows as tile_rows has them. The tiles of a block are neighbours, taken `width` at a
 * time. A step is FLOW_COLS columns of FLOW_K inputs of the tiles that are taken together:
 *   STORE, ADD  one box of 16 * width rows
 *   GLU         a box of 8 * width rows of each matrix
 *   QKV         two boxes of 8 rows for each tile, since what rope turns together lies half a head apart
 * then a box of the activations. */
#ifndef CUDA_FLOW_CUH
#define CUDA_FLOW_CUH

#include "cuda/skinny.cuh"
#include "cuda/tma.cuh"

#define FLOW_WARPS  8                   /* that multiply, at most */
#define FLOW_COLS   2                   /* columns of a step */
#define FLOW_K      64                  /* inputs of a column */
#define FLOW_STAGES 16                  /* of the ring, at most */
#define FLOW_BYTES  ((size_t)104 << 10) /* of the ring: two blocks on a multiprocessor */

#define FLOW_RUN (8 * TMA_COLUMN * FLOW_COLS) /* bytes of 8 rows of a step; the activations lie behind the weights */

struct flow_job {
    CUtensorMap w0, w1, act;
    struct skinny_job j;
    uint32_t n_tiles, each; /* tiles in all, and of a block */
    uint32_t width, stages, stage_bytes;
};

/* Where a lane's weight row of a tile lies in a stage: in which box, and where in a column of it. */
struct flow_place {
    uint32_t at;    /* bytes: of the box, and of the row in its first column */
    uint32_t pitch; /* bytes of a column of the box */
    uint32_t swap;  /* row % 8 */
};

__device__ __forceinline__ bool is_interleaved(const struct skinny_job &j, uint32_t tile)
{
    uint32_t a, b;
    tile_rows(j, tile, 0, a, b);
    return j.end == SKINNY_QKV && b == a + 1;
}

/* Row r of tile `local` of those taken together: 0..7 the first rows of the pairs, 8..15 the second. */
__device__ __forceinline__ struct flow_place flow_place_of(
    const struct flow_job &f, uint32_t tile, uint32_t local, uint32_t r)
{
    uint32_t box = 0, row = 16 * local + r, rows = 16 * f.width;
    if (f.j.end == SKINNY_GLU) {
        box = r / 8 * f.width * FLOW_RUN;
        row = 8 * local + r % 8;
        rows = 8 * f.width;
    } else if (f.j.end == SKINNY_QKV) {
        const uint32_t at = is_interleaved(f.j, tile) ? r % 8 * 2 + r / 8 : r;
        box = (2 * local + at / 8) * FLOW_RUN;
        row = at % 8;
        rows = 8;
    }
    const struct flow_place p = {box + row * TMA_COLUMN, rows * TMA_COLUMN, row % 8};
    return p;
}

/* The weights of a step, from column col on, of the tiles from `first`. By one thread. */
__device__ __forceinline__ void flow_fetch(
    const struct flow_job &f, unsigned char *to, uint32_t first, uint32_t col, uint64_t *full)
{
    if (f.j.end == SKINNY_GLU) {
        tma_load(to, &f.w0, col, 8 * first, full);
        tma_load(to + f.width * FLOW_RUN, &f.w1, col, 8 * first, full);
    } else if (f.j.end != SKINNY_QKV)
        tma_load(to, &f.w0, col, 16 * first, full);
    else
        for (uint32_t i = 0; i < f.width; i++) {
            uint32_t a, b;
            tile_rows(f.j, min(first + i, f.n_tiles - 1), 0, a, b);
            tma_load(to + 2 * i * FLOW_RUN, &f.w0, col, a, full);
            tma_load(to + (2 * i + 1) * FLOW_RUN, &f.w0, col, b == a + 1 ? a + 8 : b, full);
        }
}

struct flow_ring {
    unsigned char *stages;
    uint64_t *full, *free;
};

__device__ __forceinline__ void flow_carry(
    const struct flow_job &f, const struct flow_ring &ring, uint32_t first, uint32_t n, uint32_t n_steps)
{
    const uint32_t rounds = (n + f.width - 1) / f.width, all = rounds * n_steps, ahead = min(all, f.stages);
    const uint32_t act_at = 2 * f.width * FLOW_RUN;
    for (uint32_t i = 0; i < ahead; i++) {
        barrier_arrive_expect(&ring.full[i], f.stage_bytes);
        flow_fetch(f, ring.stages + (size_t)i * f.stage_bytes, first + i / n_steps * f.width, i % n_steps * FLOW_COLS,
            &ring.full[i]);
    }
    launch_wait();
    for (uint32_t i = 0; i < all; i++) {
        const uint32_t stage = i % f.stages, round = i / f.stages;
        unsigned char *to = ring.stages + (size_t)stage * f.stage_bytes;
        const uint32_t col = i % n_steps * FLOW_COLS;
        if (round > 0) {
            barrier_wait(&ring.free[stage], (round - 1) & 1);
            barrier_arrive_expect(&ring.full[stage], f.stage_bytes);
            flow_fetch(f, to, first + i / n_steps * f.width, col, &ring.full[stage]);
        }
        tma_load(to + act_at, &f.act, col, 0, &ring.full[stage]);
    }
    launch_next(); /* what is left comes from shared memory */
}

/* A column of a stage as the matrix unit takes it: 16 weight rows, 8 * NT activation rows, FLOW_K inputs. */
template <typename T, int NT> struct FlowColumn {
    uint32_t a[4][4], b[NT][2][4];

    __device__ __forceinline__ void load(
        const unsigned char *stage, const struct flow_place &w, uint32_t act_at, uint32_t c)
    {
        const uint32_t lane = threadIdx.x % 32, r = lane % 8;
        const unsigned char *from = stage + w.at + c * w.pitch, *x = stage + act_at + c * NT * 8 * TMA_COLUMN;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) /* rows lane % 16, inputs 16 i + 8 (lane / 16) */
            load_matrices<false>(a[i], from + ((2 * i + lane / 16) ^ w.swap) * 16);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) /* row 8 n + lane % 8, inputs 32 i + 8 (lane / 8) */
                load_matrices<false>(b[n][i], x + (n * 8 + r) * TMA_COLUMN + ((4 * i + lane / 8) ^ r) * 16);
    }

    __device__ __forceinline__ void multiply(float acc[NT][4]) const
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
                mma(T(), acc[n], a[i][0], a[i][1], a[i][2], a[i][3], b[n][i / 2][i % 2 * 2],
                    b[n][i / 2][i % 2 * 2 + 1]);
    }
};

/* Where a warp is in the ring. */
struct flow_at {
    uint32_t stage, parity;
};

/* The sums of one tile. A column is multiplied while the next one comes out of shared memory; a place is free when what
 * it held has been multiplied. */
template <typename T, int NT>
__device__ __forceinline__ void flow_sum(const struct flow_job &f, const struct flow_ring &ring,
    const struct flow_place &w, uint32_t n_steps, struct flow_at &at, float acc[NT][4])
{
    static_assert(FLOW_COLS == 2, "one column in hand, one on its way");
    const uint32_t act_at = 2 * f.width * FLOW_RUN;
    FlowColumn<T, NT> even, odd;
    barrier_wait(&ring.full[at.stage], at.parity);
    even.load(ring.stages + (size_t)at.stage * f.stage_bytes, w, act_at, 0);
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint32_t stage = at.stage;
        odd.load(ring.stages + (size_t)stage * f.stage_bytes, w, act_at, 1);
        even.multiply(acc);
        if (++at.stage == f.stages) {
            at.stage = 0;
            at.parity ^= 1;
        }
        if (i + 1 < n_steps) {
            barrier_wait(&ring.full[at.stage], at.parity);
            even.load(ring.stages + (size_t)at.stage * f.stage_bytes, w, act_at, 0);
        }
        odd.multiply(acc);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&ring.free[stage]);
    }
}

template <int NT>
__device__ __forceinline__ void flow_end(const struct skinny_job &j, uint32_t tile, const float acc[NT][4])
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t ra, rb;
    tile_rows(j, tile, g, ra, rb);
    if (ra >= j.n_out) /* and so is rb */
        return;
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t row = n * 8 + 2 * t + c;
            if (row < j.n_rows)
                end_pair(j, row, 0, ra, rb, acc[n][c], acc[n][2 + c], end_load(j, row, 0, ra, rb));
        }
}

template <typename T, int NT>
__global__ void __launch_bounds__((FLOW_WARPS + 1) * 32, NT < 4 ? 2 : 1)
    flow_kernel(const __grid_constant__ struct flow_job f)
{
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[2 * FLOW_STAGES];
    const uint32_t warp = threadIdx.x / 32, first = blockIdx.x * f.each, n = min(f.each, f.n_tiles - first);
    const uint32_t n_steps = (f.j.n_in + FLOW_K * FLOW_COLS - 1) / (FLOW_K * FLOW_COLS);
    const struct flow_ring ring = {
        (unsigned char *)(((uintptr_t)memory + TMA_ATOM - 1) / TMA_ATOM * TMA_ATOM), barriers, barriers + FLOW_STAGES};
    if (threadIdx.x < 2 * FLOW_STAGES)
        barrier_init(&barriers[threadIdx.x], threadIdx.x < FLOW_STAGES ? 1 : f.width);
    barrier_publish();
    __syncthreads();
    if (warp == f.width) {
        if (threadIdx.x % 32 == 0)
            flow_carry(f, ring, first, n, n_steps);
        return;
    }
    launch_wait();
    struct flow_at at = {0, 0};
    for (uint32_t taken = 0; taken < n; taken += f.width) {
        const uint32_t tile = first + taken + warp;
        const struct flow_place w = flow_place_of(f, min(tile, f.n_tiles - 1), warp, threadIdx.x % 16);
        float acc[NT][4] = {};
        flow_sum<T, NT>(f, ring, w, n_steps, at, acc);
        if (taken + warp < n)
            flow_end<NT>(f.j, tile, acc);
    }
}

template <typename T, int NT> void flow_launch(struct dev *d, struct flow_job *f)
{
    if (!tma_map(
            d, &f->act, f->j.act, f->j.n_rows, (uint64_t)f->j.n_in * 2, (uint64_t)f->j.n_in * 2, 8 * NT, FLOW_COLS))
        return;
    f->stage_bytes = (16 * f->width + 8 * NT) * TMA_COLUMN * FLOW_COLS;
    f->stages = (uint32_t)min((size_t)FLOW_STAGES, FLOW_BYTES / f->stage_bytes);
    const size_t shared = (size_t)f->stages * f->stage_bytes + TMA_ATOM;
    cuda_launch(d, flow_kernel<T, NT>, dim3((f->n_tiles + f->each - 1) / f->each), (f->width + 1) * 32, shared, *f);
}

template <typename T> void flow_run(struct dev *d, struct flow_job *f)
{
    if (f->j.n_rows <= 8)
        flow_launch<T, 1>(d, f);
    else if (f->j.n_rows <= 16)
        flow_launch<T, 2>(d, f);
    else if (f->j.n_rows <= 32)
        flow_launch<T, 4>(d, f);
    else
        flow_launch<T, 8>(d, f);
}

#endif
