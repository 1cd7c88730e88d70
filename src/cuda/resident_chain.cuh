/* The resident step of --deterministic, for 16-bit matrices: what resident.cuh does, but each output is one chain over
 * k, ascending, 16 at a time on the matrix unit, as flow.cuh and the library without cut sums have it, bit for bit.
 *
 * So a tile of 16 matrix rows belongs to one warp for all of its k, and the tiles of a block are taken in groups of up
 * to CHAIN_WARPS: the carrier brings the first stage of each tile of the group, then the second of each, and the warps
 * walk through k side by side. A chain cannot go faster than the matrix unit answers, some 33 cycles for 16 elements;
 * but what a block reads meanwhile takes longer, even where it has two tiles.
 *
 * Within 16 the order does not matter, so a lane takes elements 4t .. 4t+3 of each 16 of its two matrix rows and of its
 * activation row, 8 bytes each. In the ring the pieces of 32 bytes of a row change places by the row's number, so that
 * four rows' lanes meet in no bank; the pieces themselves stay whole, as asynchronous copies want them.
 *
 * Norms and the ends of products are resident.cuh's and skinny.cuh's; attention is in resident_chunks.cuh. */
#ifndef CUDA_RESIDENT_CHAIN_CUH
#define CUDA_RESIDENT_CHAIN_CUH

#include "cuda/resident.cuh"
#include "cuda/resident_chunks.cuh"

#define CHAIN_STEP   (CELL_ROW / 2)  /* elements of a stage */
#define CHAIN_SLOT   (16 * CELL_ROW) /* bytes of it */
#define CHAIN_FLIGHT 10              /* stages on their way; 5, 7 and 13 are slower */
#define CHAIN_PIECE  4               /* times 16 elements that a warp loads at once */

static_assert(CHAIN_WARPS == CHUNK_RUNS && CHAIN_WARPS * 32 == NORM_THREADS, "all of them do either");
static_assert(CHAIN_SLOT == Cell<FormatPlain<__half>>::SLOT, "slots are as large");

/* Tiles of a group, where a block has n. */
__device__ __forceinline__ uint32_t chain_width(uint32_t n)
{
    const uint32_t rounds = (n + CHAIN_WARPS - 1) / CHAIN_WARPS;
    return rounds > 0 ? (n + rounds - 1) / rounds : 0;
}

/* ---- carrying weights ----------------------------------------------------------------------------------------------
 */

/* A stage: 512 bytes of each of 16 rows, from byte `at` of them; nothing past `end`. */
__device__ __forceinline__ void chain_fetch(
    unsigned char *slot, const unsigned char *const from[4], uint32_t at, uint32_t end)
{
    const uint32_t lane = threadIdx.x % 32, u = lane % 8, row = lane / 8; /* and rows 4, 8, 12 behind it */
    const uint32_t to = shared_at(slot) + row * CELL_ROW + (u ^ row << 1) * 16;
    const bool whole = at + CELL_ROW <= end;
#pragma unroll
    for (uint32_t c = 0; c < CELL_ROW / 128; c++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (whole || at + c * 128 + u * 16 < end)
                copy16(to + i * 4 * CELL_ROW + c * 128, from[i] + c * 128);
}

/* rows: where the matrix rows of a group begin, [CHAIN_WARPS][16]. */
__device__ inline void chain_carry(
    const struct resident_args &a, const struct ring &ring, struct phase *described, const unsigned char **rows)
{
    const uint32_t lane = threadIdx.x % 32;
    struct carrier to = {};
    struct moving next;
    next.take(a.program + a.first_product);
    next.put(described);
    while (true) {
        const struct skinny_job &j = described->job;
        const uint32_t end = j.n_in * 2, next_product = described->next_product;
        if (next_product < a.n)
            next.take(a.program + next_product);
        const uint32_t n = tiles_here(j), width = chain_width(n);
        for (uint32_t first = 0; first < n; first += width) {
            const uint32_t now = min(width, n - first);
            __syncwarp();
            for (uint32_t i = lane; i < now * 16; i += 32)
                rows[i] = row_of(j, blockIdx.x + (first + i / 16) * gridDim.x, i % 16);
            __syncwarp();
            for (uint32_t at = 0; at < end; at += CELL_ROW)
                for (uint32_t i = 0; i < now; i++) {
                    const unsigned char *from[4];
#pragma unroll
                    for (uint32_t r = 0; r < 4; r++)
                        from[r] = rows[16 * i + lane / 8 + 4 * r] + at + lane % 8 * 16;
                    to.carry<CHAIN_FLIGHT>(ring, [&](unsigned char *slot) { chain_fetch(slot, from, at, end); });
                }
        }
        if (next_product >= a.n)
            break;
        __syncwarp();
        next.put(described);
    }
    copy_wait<0>();
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* What a lane has of CHAIN_PIECE times 16 elements: rows g and g + 8 of a tile, and its activation row. The weights are
 * the matrix unit's columns, eight rows each, since their pairs of a sum then lie in neighbouring registers as they
 * come; of the 16 rows of its tall operand the second eight are nobody's. */
template <typename T> struct ChainPiece {
    uint2 a[CHAIN_PIECE], b[CHAIN_PIECE], x[CHAIN_PIECE];

    /* From 32 bytes number `first` of a stage's rows on; row: the lane's first elements of the stage. */
    __device__ __forceinline__ void load(const unsigned char *slot, const uint16_t *row, uint32_t first)
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (uint32_t i = 0; i < CHAIN_PIECE; i++) {
            const unsigned char *from = slot + g * CELL_ROW + ((first + i) ^ (g & 3)) * 32 + t * 8;
            a[i] = *(const uint2 *)from;
            b[i] = *(const uint2 *)(from + 8 * CELL_ROW);
            x[i] = *(const uint2 *)(row + 16 * (first + i));
        }
    }

    __device__ __forceinline__ void multiply(float low[4], float high[4], uint32_t nothing) const
    {
#pragma unroll
        for (int i = 0; i < CHAIN_PIECE; i++) {
            mma(T(), low, x[i].x, x[i].y, x[i].y, nothing, a[i].x, a[i].y);
            mma(T(), high, x[i].x, x[i].y, x[i].y, nothing, b[i].x, b[i].y);
        }
    }
};

/* The chains of one tile: low of its first eight rows, high of the others. A piece is multiplied while the next one
 * comes out of shared memory. */
template <typename T>
__device__ __forceinline__ void chain_sum(uint32_t n_in, const uint16_t *row, const struct ring &ring,
    struct ring_place at, uint32_t step, float low[4], float high[4])
{
    constexpr uint32_t PIECES = CHAIN_STEP / 16;
    const uint32_t n_whole = n_in / CHAIN_STEP, rest = n_in % CHAIN_STEP / 16;
    ChainPiece<T> even, odd = {}; /* zeros at first, which change no bit */
    for (uint32_t s = 0; s < n_whole; s++) {
        const unsigned char *slot = ring.slot(at.slot);
        barrier_wait(ring.full_at(at.slot), at.parity);
#pragma unroll
        for (uint32_t first = 0; first < PIECES; first += 2 * CHAIN_PIECE) {
            even.load(slot, row, first);
            odd.multiply(low, high, nothing());
            odd.load(slot, row, first + CHAIN_PIECE);
            if (first + 2 * CHAIN_PIECE == PIECES)
                release(ring, at.slot, threadIdx.x % 32);
            even.multiply(low, high, nothing());
        }
        at.go(ring, step);
        row += CHAIN_STEP;
    }
    odd.multiply(low, high, nothing());
    if (rest == 0)
        return;
    barrier_wait(ring.full_at(at.slot), at.parity);
    for (uint32_t first = 0; first < rest; first += CHAIN_PIECE) { /* rows are whole 64 elements */
        odd.load(ring.slot(at.slot), row, first);
        odd.multiply(low, high, nothing());
    }
    release(ring, at.slot, threadIdx.x % 32);
}

/* Of the first eight pairs of rows of a tile, for activation rows 0 and 1: lanes 0 .. 3 have the even pairs of row 0,
 * lanes 4 .. 7 those of row 1; the odd ones go eight lanes up. */
struct chain_lane {
    uint32_t row, pair;
    bool has; /* what its tile's end is to be done with */

    __device__ __forceinline__ explicit chain_lane(const struct skinny_job &j)
    {
        static_assert(RESIDENT_ROWS == 2, "four lanes each");
        const uint32_t lane = threadIdx.x % 32;
        row = lane / 4 % 2;
        pair = lane % 4 * 2 + lane / 8 % 2;
        has = lane < 16 && row < j.n_rows;
    }
};

/* done: stages of this block before this phase, and after it. */
template <typename T>
__device__ void chain_product(const struct skinny_job &j, const uint16_t *room, const struct ring &ring, uint32_t &done,
    const struct end_in &early)
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const struct chain_lane mine(j);
    const uint32_t n_stages = (j.n_in + CHAIN_STEP - 1) / CHAIN_STEP, n = tiles_here(j), width = chain_width(n);
    /* nobody reads other columns */
    const uint16_t *row = room + (size_t)(g < j.n_rows ? g : 0) * resident_width(j.n_in) + 4 * t;
    for (uint32_t first = 0; first < n; first += width) {
        const uint32_t now = min(width, n - first);
        if (warp < now) {
            uint32_t ra, rb;
            tile_rows(j, blockIdx.x + (first + warp) * gridDim.x, mine.pair, ra, rb);
            struct end_in in = early;
            if (first > 0 && mine.has)
                in = end_load(j, mine.row, 0, ra, rb);
            float low[4] = {}, high[4] = {};
            chain_sum<T>(j.n_in, row, ring, ring_place(ring, done + warp), now, low, high);
            const float a = __shfl_up_sync(ALL_LANES, low[1], 8), b = __shfl_up_sync(ALL_LANES, high[1], 8);
            const bool odd = mine.pair % 2 == 1;
            if (mine.has)
                end_pair(j, mine.row, 0, ra, rb, odd ? a : low[0], odd ? b : high[0], in);
        }
        done += now * n_stages;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------
 */

/* And what the end of the warp's tile of the first group needs. */
struct chain_begun : begun {
    struct end_in end;

    __device__ __forceinline__ void load_end(const struct skinny_job &j)
    {
        const uint32_t warp = threadIdx.x / 32;
        const struct chain_lane mine(j);
        if (warp < chain_width(tiles_here(j)) && mine.has) {
            uint32_t ra, rb;
            tile_rows(j, blockIdx.x + warp * gridDim.x, mine.pair, ra, rb);
            end = end_load(j, mine.row, 0, ra, rb);
        }
    }

    __device__ __forceinline__ void load(const struct phase &p)
    {
        begun::load(p);
        end = {};
        if (p.is_end_steady)
            load_end(p.job);
    }
};

template <typename T>
__device__ void chain_phases(const struct resident_args &a, struct phase *described, struct chunk_seqs &seqs,
    const struct ring &ring, unsigned char *room)
{
    const bool describes = threadIdx.x / 32 == CHAIN_WARPS - 1; /* brings the next phase's, in place of the last */
    struct chunk_ahead &shared = *(struct chunk_ahead *)room;
    uint32_t done = 0;
    struct chain_begun ahead;
    struct moving next;
    launch_wait();
    if (threadIdx.x == 0 && a.first_attend < a.n) /* seen by all when the first rows are there */
        seqs.load(a.program[a.first_attend].attend.seqs, a.n_seqs, PARTS_MAX);
    ahead.load(described[0]);
    for (uint32_t i = 0; i < a.n; i++) {
        const struct phase &p = described[i % 2];
        if (describes && i + 1 < a.n)
            next.take(a.program + i + 1);
        if (!p.is_end_steady)
            ahead.load_end(p.job);
        load_rows<SetOne<FormatPlain<T>, CHAIN_WARPS>, FormatPlain<T>>(p, ahead, room);
        if (describes && i + 1 < a.n)
            next.put(described + (i + 1) % 2);
        chain_product<T>(p.job, (const uint16_t *)room, ring, done, ahead.end);
        if (i + 1 == a.n)
            break;
        chip_tell<CHAIN_WARPS>(a.barrier);
        const struct phase &q = described[(i + 1) % 2];
        if (q.kind == PHASE_ATTEND) {
            ++i;
            if (describes && i + 1 < a.n)
                next.take(a.program + i + 1);
            const struct chunk_first first = resident_chunks_ahead(q.attend, seqs, shared);
            if (describes && i + 1 < a.n)
                next.put(described + (i + 1) % 2);
            chip_wait<CHAIN_WARPS>(a.barrier, i);
            resident_chunks_phase(q.attend, seqs, shared, first);
            if (i + 1 == a.n)
                break;
            chip_tell<CHAIN_WARPS>(a.barrier);
        }
        ahead.load(described[(i + 1) % 2]);
        chip_wait<CHAIN_WARPS>(a.barrier, i + 1);
    }
    launch_next();
    if (threadIdx.x == 0 && atomicAdd(a.barrier, 1) == a.n * gridDim.x - 1)
        *a.barrier = 0;
}

template <typename T>
__global__ void __launch_bounds__((CHAIN_WARPS + 1) * 32, 1)
    chain_kernel(const __grid_constant__ struct resident_args a)
{
#if __CUDA_ARCH__ >= 900
    SHARED_ROOM(memory);
    __shared__ __align__(16) unsigned char described[3 * sizeof(struct phase)]; /* this, next; the carrier's */
    __shared__ uint64_t barriers[2 * RESIDENT_SLOTS];
    __shared__ struct chunk_seqs seqs;
    __shared__ const unsigned char *rows[CHAIN_WARPS * 16];
    const struct ring ring = {(unsigned char *)memory, shared_at(barriers), a.n_slots, a.slot_bytes};
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x < 2 * RESIDENT_SLOTS) /* full: a lane of the carrier each; free: one word of the warp's */
        barrier_init(&barriers[threadIdx.x], threadIdx.x < RESIDENT_SLOTS ? 32 : 1);
    struct phase *const phases = (struct phase *)described;
    if (warp == 0) {
        struct moving begin;
        begin.take(a.program);
        begin.put(phases);
    }
    __syncthreads();
    if (warp == CHAIN_WARPS)
        chain_carry(a, ring, phases + 2, rows);
    else
        chain_phases<T>(a, phases, seqs, ring, ring.room());
#endif
}

#endif
