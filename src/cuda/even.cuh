/* Products of 3 to 32 rows with 16-bit float weights, on cards with a copy engine and a warpgroup's matrix unit. The
 * weights are the tall operand, so that 8 * NT activation rows cost what they are.
 *
 * A tile is 128 weight rows, a unit of work is a tile's next EVEN_K inputs. All units of the product, tile by tile, are
 * shared out in stretches of the same length, one to a block and one block to a multiprocessor: so every multiprocessor
 * reads as many bytes as the others, whatever the shape of the matrix. One thread asks for units, and for the
 * activations beside them, through a ring (tma.cuh); two warpgroups have 64 weight rows each.
 *
 * Where a tile's inputs are shared by several blocks the one that has its first, which it reaches at its own end, gets
 * the sums of the others, and adds them. They lie down without a fence or a counter: a place is zero until a sum, which
 * never is, has come. All blocks are on the chip at once, or will be when what came before them has left it;
 * so processes that share a card must take turns on it, as they do without MPS.
 * Order of float operations for one output: a block's inputs ascending, 16 at a time, then the blocks ascending. It
 * depends on the shape of the matrix and on the card, not on the rows beside one or on who comes first.
 *
 * The weights of the first units are asked for before launch_wait, since nobody writes them, and the next kernel is let
 * onto the chip at once: two blocks fit on a multiprocessor, unless both add (even.cu), so that its ring is full when
 * this one ends. Attention, behind QKV, is let in when the last unit has been asked for: what it asks for first would
 * stand before that.
 *
 * A tile lies in shared memory in runs of 8 rows, by turns of two kinds, which is what a lane has of them: its sums c0
 * and c1 are those of row g of one run, c2 and c3 those of row g of the other (even_lane). A box takes them from where
 * they belong (even.cu):
 *   STORE, ADD  rows 0..7 and 8..15 of 16
 *   GLU         8 rows of the first matrix and of the second
 *   QKV         what rope turns together: neighbours, or rows half a head apart */
#ifndef CUDA_EVEN_CUH
#define CUDA_EVEN_CUH

#include "cuda/skinny.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

#define EVEN_ROWS    128 /* of a tile */
#define EVEN_K       64  /* inputs of a unit: a column */
#define EVEN_GROUPS  2   /* warpgroups */
#define EVEN_THREADS (EVEN_GROUPS * 128)
#define EVEN_STAGES  12                    /* of a ring, at most */
#define EVEN_BYTES   ((uint32_t)110 << 10) /* of the ring: two blocks on a multiprocessor */

#define EVEN_WEIGHTS (EVEN_ROWS * TMA_COLUMN) /* bytes of a unit */

template <int NT> struct EvenShape {
    static constexpr uint32_t STAGE = EVEN_WEIGHTS + 8 * NT * TMA_COLUMN;
    static constexpr uint32_t STAGES = (EVEN_BYTES - TMA_ATOM) / STAGE, BYTES = STAGES * STAGE + TMA_ATOM;
    static_assert(STAGES <= EVEN_STAGES, "a barrier for each");
};

struct even_job {
    CUtensorMap w, act;
    struct skinny_job j;
    uint32_t n_units, per_tile; /* per_tile: units */
    uint32_t group_runs;        /* pairs of runs of a group: of a head, or of all */
    float *parts;               /* [blocks][EVEN_ROWS * 8 * NT], zero between kernels */
};

/* The first unit of a block, and the block of a unit. */
__device__ __forceinline__ uint32_t even_first(const struct even_job &f, uint32_t block)
{
    return (uint32_t)((uint64_t)block * f.n_units / gridDim.x);
}

__device__ __forceinline__ uint32_t even_block(const struct even_job &f, uint32_t unit)
{
    return (uint32_t)(((uint64_t)(unit + 1) * gridDim.x - 1) / f.n_units);
}

/* The box at pair of runs `run` of group `group`. By one thread. */
__device__ __forceinline__ void even_load_weights(
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

__device__ __forceinline__ void even_load_rows(void *to, const CUtensorMap *map, uint32_t at, uint32_t row, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
                 "%4}], [%2];" ::"r"(shared_at(to)),
                 "l"(map), "r"(shared_at(b)), "r"(at), "r"(row)
                 : "memory");
#endif
}

__device__ __forceinline__ void even_ready(const CUtensorMap *map)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

__device__ __forceinline__ void even_fetch(
    const struct even_job &f, unsigned char *to, uint32_t tile, uint32_t column, uint64_t *full)
{
    const uint32_t run = tile * (EVEN_ROWS / 16), group = run / f.group_runs;
    even_load_weights(to, &f.w, column * TMA_COLUMN, run - group * f.group_runs, group, full);
}

struct even_ring {
    unsigned char *stages;
    uint64_t *full, *free;
};

/* A unit's place. */
struct even_place {
    uint32_t tile, column;
};

__device__ __forceinline__ void even_step(const struct even_job &f, struct even_place &p)
{
    if (++p.column == f.per_tile) {
        p.column = 0;
        p.tile++;
    }
}

/* Units first .. end-1 into the ring. By one thread. */
template <int NT>
__device__ __forceinline__ void even_carry(
    const struct even_job &f, const struct even_ring &ring, uint32_t first, uint32_t end)
{
    using S = EvenShape<NT>;
    struct even_place at = {first / f.per_tile, first % f.per_tile}, act = at;
    const uint32_t ahead = min(end - first, S::STAGES);
    uint32_t stage = 0, round = 0;
    even_ready(&f.act);
    for (uint32_t i = 0; i < ahead; i++) {
        barrier_arrive_expect(&ring.full[i], S::STAGE);
        even_fetch(f, ring.stages + i * S::STAGE, at.tile, at.column, &ring.full[i]);
        even_step(f, at);
    }
    launch_wait();
    for (uint32_t i = 0; i < ahead; i++) {
        even_load_rows(ring.stages + i * S::STAGE + EVEN_WEIGHTS, &f.act, act.column * TMA_COLUMN, 0, &ring.full[i]);
        even_step(f, act);
    }
    for (uint32_t i = first + ahead; i < end; i++) {
        unsigned char *to = ring.stages + stage * S::STAGE;
        barrier_wait(&ring.free[stage], round & 1);
        barrier_arrive_expect(&ring.full[stage], S::STAGE);
        even_fetch(f, to, at.tile, at.column, &ring.full[stage]);
        even_load_rows(to + EVEN_WEIGHTS, &f.act, at.column * TMA_COLUMN, 0, &ring.full[stage]);
        even_step(f, at);
        if (++stage == S::STAGES) {
            stage = 0;
            round++;
        }
    }
}

/* Where a warpgroup is in the ring. */
struct even_at {
    uint32_t stage, parity;
};

/* The sums of n units of one tile. */
template <typename T, int NT>
__device__ __forceinline__ void even_sum(
    const struct even_ring &ring, uint32_t group, uint32_t n, struct even_at &at, float (&c)[NT][4])
{
    using S = EvenShape<NT>;
    for (uint32_t i = 0; i < n; i++) {
        unsigned char *stage = ring.stages + at.stage * S::STAGE;
        barrier_wait(&ring.full[at.stage], at.parity);
        const uint64_t a = wgmma_at(stage + group * (EVEN_WEIGHTS / EVEN_GROUPS), TMA_ATOM, 0);
        const uint64_t b = wgmma_at(stage + EVEN_WEIGHTS, TMA_ATOM, 0);
        wgmma_begin();
#pragma unroll
        for (uint32_t k = 0; k < EVEN_K / 16; k++) /* 32 bytes further */
            wgmma_rows(T(), c, a + 2 * k, b + 2 * k, i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait();
        if (threadIdx.x % 128 == 0)
            barrier_arrive(&ring.free[at.stage]);
        if (++at.stage == S::STAGES) {
            at.stage = 0;
            at.parity ^= 1;
        }
    }
}

/* Sums on their way between blocks: a zero says that nothing has come yet, so a sum that is zero goes as -0. */
__device__ __forceinline__ float4 part_load(const float4 *p)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ void part_store(float4 *p, float4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

__device__ __forceinline__ float part_of(float x)
{
    return x == 0.0f ? -0.0f : x;
}

__device__ __forceinline__ bool has_come(float4 v)
{
    return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
           __float_as_uint(v.w) != 0;
}

/* Where this thread's sums of a block's first tile lie. */
template <int NT> __device__ __forceinline__ float4 *even_part(const struct even_job &f, uint32_t block)
{
    return (float4 *)f.parts + (size_t)block * NT * EVEN_THREADS + threadIdx.x;
}

/* Those of blocks first .. last, when they have come, one after the other onto c. */
template <int NT>
__device__ __forceinline__ void even_join(const struct even_job &f, uint32_t first, uint32_t last, float (&c)[NT][4])
{
    constexpr uint32_t TOGETHER = NT > 2 ? 2 : 4;
    for (uint32_t b = first; b <= last; b += TOGETHER) {
        float4 v[TOGETHER][NT];
        bool all;
        do {
            all = true;
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    v[i][n] = part_load(even_part<NT>(f, min(b + i, last)) + n * EVEN_THREADS);
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int n = 0; n < NT; n++)
                    all = all && has_come(v[i][n]);
        } while (!all);
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++)
            if (b + i <= last)
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    c[n][0] += v[i][n].x;
                    c[n][1] += v[i][n].y;
                    c[n][2] += v[i][n].z;
                    c[n][3] += v[i][n].w;
                    part_store(even_part<NT>(f, b + i) + n * EVEN_THREADS, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
                }
    }
}

/* The two matrix rows whose sums a lane has. */
template <int END>
__device__ __forceinline__ void even_lane(const struct even_job &f, uint32_t tile, uint32_t &ra, uint32_t &rb)
{
    const uint32_t pair = tile * (EVEN_ROWS / 16) + threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    const struct skinny_heads &h = f.j.heads;
    if (END == SKINNY_GLU)
        ra = rb = 8 * pair + g;
    else if (END == SKINNY_QKV && h.rope == ROPE_HALVES) {
        const uint32_t head = pair / f.group_runs;
        ra = head * h.head_dim + 8 * (pair - head * f.group_runs) + g;
        rb = ra + h.head_dim / 2;
    } else if (END == SKINNY_QKV) {
        ra = 16 * pair + 2 * g;
        rb = ra + 1;
    } else {
        ra = 16 * pair + g;
        rb = ra + 8;
    }
}

/* Not moved over the wait for others' sums. */
__device__ __forceinline__ float early_load(const float *p)
{
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
    return x;
}

/* Where the rows of a step are, for QKV. */
struct even_rows {
    uint32_t pos[EVEN_MOST], slot[EVEN_MOST];
};

/* What is read beside the sums of lane t's two rows of each eight: a, b what is added to, or cos and sin. */
template <int END, int NT>
__device__ __forceinline__ void even_end_load(
    const struct skinny_job &j, const struct even_rows &at, uint32_t ra, uint32_t rb, float2 (&in)[2 * NT])
{
    const struct skinny_heads &h = j.heads;
    uint32_t local, turn = 0;
    const bool turned =
        END == SKINNY_QKV && is_turned(h, head_of(h, ra + h.first_row, local), (ra + h.first_row) % h.head_dim, turn);
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const uint32_t row = min(i / 2 * 8 + 2 * (threadIdx.x % 4) + i % 2, j.n_rows - 1);
        in[i] = make_float2(END == SKINNY_QKV ? 1.0f : 0.0f, 0.0f);
        if (END == SKINNY_ADD) {
            in[i].x = early_load(j.out + (size_t)row * j.ldc + ra);
            in[i].y = early_load(j.out + (size_t)row * j.ldc + rb);
        } else if (turned) {
            const float *table = h.rope_table + (size_t)at.pos[row] * h.rope_dims + 2 * turn;
            in[i].x = early_load(table);
            in[i].y = early_load(table + 1);
        }
    }
}

/* Of a lane's two matrix rows. */
template <int END> __device__ __forceinline__ float2 even_bias(const struct skinny_job &j, uint32_t ra, uint32_t rb)
{
    float2 bias = make_float2(0.0f, 0.0f);
    if (END == SKINNY_QKV) {
        const struct skinny_heads &h = j.heads;
        uint32_t local;
        const float *from = h.bias[head_of(h, ra + h.first_row, local)];
        if (from != NULL) {
            bias.x = from[local * h.head_dim + (ra + h.first_row) % h.head_dim];
            bias.y = from[local * h.head_dim + (rb + h.first_row) % h.head_dim];
        }
    } else if (END == SKINNY_GLU) {
        bias.x = j.bias0 != NULL ? j.bias0[ra] : 0.0f;
        bias.y = j.bias1 != NULL ? j.bias1[rb] : 0.0f;
    }
    return bias;
}

template <int END>
__device__ __forceinline__ void even_end_pair(const struct skinny_job &j, const struct even_rows &at, uint32_t row,
    uint32_t ra, uint32_t rb, float a, float b, float2 bias, float2 in)
{
    if (END == SKINNY_QKV) {
        end_heads(j, row, ra, rb, a, b, {1.0f, 1.0f, bias.x, bias.y, in.x, in.y, at.slot[row]});
    } else if (END == SKINNY_GLU) {
        const struct act_rows out = {j.act_f32, (__half *)j.act_f16, (__nv_bfloat16 *)j.act_bf16};
        act_put(out, (size_t)row * j.n_out + ra, glu_of(a + bias.x, b + bias.y, j.glu));
    } else {
        float *to = j.out + (size_t)row * j.ldc;
        to[ra] = a + in.x;
        to[rb] = b + in.y;
    }
}

/* The end of a tile of which this block has the first n units: those who have the others put their sums down. What is
 * read beside them comes while they are waited for. */
template <int NT, int END>
__device__ __forceinline__ void even_end(
    const struct even_job &f, const struct even_rows &at, uint32_t tile, uint32_t n, float (&c)[NT][4])
{
    const bool is_swapped = END == SKINNY_GLU && f.j.w1 < f.j.w0; /* boxes begin with the lower address */
    uint32_t ra, rb;
    even_lane<END>(f, tile, ra, rb);
    const bool is_there = ra < f.j.n_out; /* and so is rb */
    float2 in[2 * NT];
    if (is_there)
        even_end_load<END, NT>(f.j, at, ra, rb, in);
    if (n < f.per_tile)
        even_join<NT>(f, blockIdx.x + 1, even_block(f, (tile + 1) * f.per_tile - 1), c);
    if (!is_there)
        return;
    const float2 bias = even_bias<END>(f.j, ra, rb);
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const uint32_t row = i / 2 * 8 + 2 * (threadIdx.x % 4) + i % 2;
        const float a = c[i / 2][i % 2], b = c[i / 2][2 + i % 2];
        if (row < f.j.n_rows)
            even_end_pair<END>(f.j, at, row, ra, rb, is_swapped ? b : a, is_swapped ? a : b, bias, in[i]);
    }
}

template <typename T, int NT, int END>
__global__ void __launch_bounds__(EVEN_THREADS + 32, 2) even_kernel(const __grid_constant__ struct even_job f)
{
    using S = EvenShape<NT>;
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[2 * EVEN_STAGES];
    __shared__ struct even_rows rows;
    if (END != SKINNY_QKV)
        launch_next();
    const uint32_t group = threadIdx.x / 128, first = even_first(f, blockIdx.x), end = even_first(f, blockIdx.x + 1);
    const struct even_ring ring = {
        (unsigned char *)(((uintptr_t)memory + TMA_ATOM - 1) / TMA_ATOM * TMA_ATOM), barriers, barriers + EVEN_STAGES};
    if (threadIdx.x < 2 * EVEN_STAGES)
        barrier_init(&barriers[threadIdx.x], threadIdx.x < EVEN_STAGES ? 1 : EVEN_GROUPS);
    barrier_publish();
    __syncthreads();
    if (group == EVEN_GROUPS) {
        if (threadIdx.x % 32 == 0) {
            even_carry<NT>(f, ring, first, end);
            if (END == SKINNY_QKV)
                launch_next();
        }
        return;
    }
    launch_wait();
    if (END == SKINNY_QKV && threadIdx.x < f.j.n_rows) {
        rows.pos[threadIdx.x] = f.j.heads.pos[threadIdx.x];
        rows.slot[threadIdx.x] = f.j.heads.slot[threadIdx.x];
    }
    meet<EVEN_THREADS>();
    struct even_at at = {0, 0};
    for (uint32_t unit = first; unit < end;) {
        const uint32_t tile = unit / f.per_tile, n = min(end, (tile + 1) * f.per_tile) - unit;
        float c[NT][4];
        even_sum<T, NT>(ring, group, n, at, c);
        if (unit == tile * f.per_tile)
            even_end<NT, END>(f, rows, tile, n, c);
        else
#pragma unroll
            for (int i = 0; i < NT; i++)
                part_store(even_part<NT>(f, blockIdx.x) + i * EVEN_THREADS,
                    make_float4(part_of(c[i][0]), part_of(c[i][1]), part_of(c[i][2]), part_of(c[i][3])));
        unit += n;
    }
}

#endif
