/* Products of 3 to 32 rows with 16-bit float weights, on cards with a copy engine and a warpgroup's matrix unit. The
 * weights are the tall operand, so that 8 * NT activation rows cost what they are.
 *
 * A tile is 128 weight rows, a unit of work is a tile's next EVEN_K inputs. All units of the product, tile by tile, are
 * shared out in stretches of the same length, one to a block and one block to a multiprocessor, but for a few that have
 * none (even.cu): so multiprocessors read as many bytes as each other, whatever the shape of the matrix. One thread
 * asks for units, and for the activations beside them, through a ring (tma.cuh); two warpgroups have 64 weight rows
 * each.
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

#include <type_traits>

#define EVEN_ROWS    128 /* of a tile */
#define EVEN_K       64  /* inputs of a unit: a column */
#define EVEN_GROUPS  2   /* warpgroups */
#define EVEN_THREADS (EVEN_GROUPS * 128)
#define EVEN_STAGES  12                    /* of a ring, at most */
#define EVEN_BYTES   ((uint32_t)110 << 10) /* of the ring: two blocks on a multiprocessor */

#define EVEN_WEIGHTS (EVEN_ROWS * TMA_COLUMN) /* bytes of a unit */

template <int NT> struct EvenShape {
    static constexpr uint32_t ACTS = 8 * NT * TMA_COLUMN, STAGE = EVEN_WEIGHTS + ACTS; /* bytes */
    static constexpr uint32_t STAGES = (EVEN_BYTES - TMA_ATOM) / STAGE, BYTES = STAGES * STAGE + TMA_ATOM;
    static constexpr uint32_t TOGETHER = NT > 2 ? 2 : 4; /* blocks whose sums are asked for at once */
    static_assert(STAGES <= EVEN_STAGES, "a barrier for each");
};

struct even_job {
    CUtensorMap w, act;
    struct skinny_job j;
    uint32_t n_units, per_tile; /* per_tile: units */
    uint32_t n_blocks;          /* that have some */
    uint32_t group_runs;        /* pairs of runs of a group: of a head, or of all */
    float *parts;               /* [blocks][EVEN_ROWS * 8 * NT], zero between kernels */
    bool is_shared;             /* every tile has two blocks at least that have nothing else */
};

/* NT for so many rows: 1, 2 or 4. */
inline uint32_t even_eights(uint32_t n_rows)
{
    return n_rows <= 8 ? 1 : n_rows <= 16 ? 2 : 4;
}

/* even.cu: how a product is cut, and its rows and matrix for the copy engine; false on failure, which is noted. */
bool even_describe(struct dev *d, const struct skinny_job *j, struct even_job *f);

/* The first unit of a block, and the block of a unit. */
__device__ __forceinline__ uint32_t even_first(const struct even_job &f, uint32_t block)
{
    return (uint32_t)((uint64_t)min(block, f.n_blocks) * f.n_units / f.n_blocks);
}

__device__ __forceinline__ uint32_t even_block(const struct even_job &f, uint32_t unit)
{
    return (uint32_t)(((uint64_t)(unit + 1) * f.n_blocks - 1) / f.n_units);
}

struct even_ring {
    unsigned char *stages, *acts; /* weights; activations, of which there may be fewer */
    uint64_t *full, *free;
    uint64_t *rows; /* of the activations, where full is of the weights alone, else NULL */
};

/* A unit's place, in tiles of so many. */
struct even_place {
    uint32_t tile, column, per_tile;

    __device__ __forceinline__ even_place(uint32_t unit, uint32_t per_tile)
        : tile(unit / per_tile), column(unit % per_tile), per_tile(per_tile)
    {
    }
    __device__ __forceinline__ void step()
    {
        if (++column == per_tile) {
            column = 0;
            tile++;
        }
    }
};

/* The weights of the unit there. By one thread. */
__device__ __forceinline__ void even_fetch(
    const CUtensorMap *map, uint32_t group_runs, unsigned char *to, const struct even_place &at, uint64_t *full)
{
    const uint32_t run = at.tile * (EVEN_ROWS / 16), group = run / group_runs;
    tma_load_runs(to, map, at.column * TMA_COLUMN, run - group * group_runs, group, full);
}

/* Units first .. end-1 into the ring. By one thread. */
template <int NT>
__device__ __forceinline__ void even_carry(
    const struct even_job &f, const struct even_ring &ring, uint32_t first, uint32_t end)
{
    using S = EvenShape<NT>;
    struct even_place at(first, f.per_tile), act = at;
    const uint32_t ahead = min(end - first, S::STAGES);
    uint32_t stage = 0, round = 0;
    tma_ready(&f.act);
    for (uint32_t i = 0; i < ahead; i++) {
        barrier_arrive_expect(&ring.full[i], S::STAGE);
        even_fetch(&f.w, f.group_runs, ring.stages + i * EVEN_WEIGHTS, at, &ring.full[i]);
        at.step();
    }
    launch_wait();
    for (uint32_t i = 0; i < ahead; i++) {
        tma_load_rows(ring.acts + i * S::ACTS, &f.act, act.column * TMA_COLUMN, 0, &ring.full[i]);
        act.step();
    }
    for (uint32_t i = first + ahead; i < end; i++) {
        barrier_wait(&ring.free[stage], round & 1);
        barrier_arrive_expect(&ring.full[stage], S::STAGE);
        even_fetch(&f.w, f.group_runs, ring.stages + stage * EVEN_WEIGHTS, at, &ring.full[stage]);
        tma_load_rows(ring.acts + stage * S::ACTS, &f.act, at.column * TMA_COLUMN, 0, &ring.full[stage]);
        at.step();
        if (++stage == S::STAGES) {
            stage = 0;
            round++;
        }
    }
}

/* Where somebody is in a ring: the next stage, for each of them the parity of its barriers; the next activations. */
struct even_at {
    uint32_t stage, turned, act;

    __device__ __forceinline__ uint32_t parity() const
    {
        return turned >> stage & 1;
    }
    __device__ __forceinline__ void step(uint32_t n_stages, uint32_t n_acts)
    {
        turned ^= 1u << stage;
        stage = stage + 1 == n_stages ? 0 : stage + 1;
        act = act + 1 == n_acts ? 0 : act + 1;
    }
};

/* The sums of n units of one tile. A stage is left when the products of the next are on their way. APART: activations
 * have barriers of their own. Where a unit lies is taken from one lane: so the compiler sees that it is the same in
 * all, and keeps it where the matrix unit reads it, instead of moving it there before every product. */
template <typename T, int NT, uint32_t STAGES, uint32_t ACTS, bool APART>
__device__ __forceinline__ void even_sum(
    const struct even_ring &ring, uint32_t group, uint32_t n, struct even_at &at, float (&c)[NT][4])
{
    using S = EvenShape<NT>;
    const uint32_t half = group * (EVEN_WEIGHTS / EVEN_GROUPS);
    uint32_t stages = shared_at(ring.stages) + half, acts = shared_at(ring.acts), full = shared_at(ring.full);
    uint32_t rows = APART ? shared_at(ring.rows) : 0, free = shared_at(ring.free), last = 0;
    uint32_t leads = threadIdx.x % 128 == 0;
    KEEP_REGISTERS(stages, acts, full, rows, free, leads); /* else they are made for every unit */
    const auto leave = [&](uint32_t stage) {
        if (leads)
            barrier_arrive(free + stage * (uint32_t)sizeof *ring.free);
    };
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t unit = __shfl_sync(ALL_LANES, stages + at.stage * EVEN_WEIGHTS, 0);
        const uint32_t row = __shfl_sync(ALL_LANES, acts + at.act * S::ACTS, 0);
        const uint32_t barrier = at.stage * (uint32_t)sizeof *ring.full;
        if (APART)
            barrier_wait(full + barrier, rows + barrier, at.parity());
        else
            barrier_wait(full + barrier, at.parity());
        const uint64_t a = wgmma_at(unit, TMA_ATOM, 0), b = wgmma_at(row, TMA_ATOM, 0);
        wgmma_begin();
#pragma unroll
        for (uint32_t k = 0; k < EVEN_K / 16; k++) /* 32 bytes further */
            wgmma_rows(T(), c, wgmma_further(a, 2 * k), wgmma_further(b, 2 * k), i > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (i > 0)
            leave(last);
        last = at.stage;
        at.step(STAGES, ACTS);
    }
    wgmma_wait();
    wgmma_hold(c);
    if (n > 0)
        leave(last);
}

/* Sums on their way between blocks: a zero says that nothing has come yet, so a sum that is zero goes as -0. */
__device__ __forceinline__ float part_of(float x)
{
    return x == 0.0f ? -0.0f : x;
}

__device__ __forceinline__ void part_put(float4 *to, const float (&c)[4])
{
    store_sums(to, make_float4(part_of(c[0]), part_of(c[1]), part_of(c[2]), part_of(c[3])));
}

__device__ __forceinline__ bool has_come(float4 v)
{
    return __float_as_uint(v.x) != 0 && __float_as_uint(v.y) != 0 && __float_as_uint(v.z) != 0 &&
           __float_as_uint(v.w) != 0;
}

__device__ __forceinline__ void part_add(float (&c)[4], float4 v)
{
    c[0] += v.x;
    c[1] += v.y;
    c[2] += v.z;
    c[3] += v.w;
}

/* Where this thread's sums of a block's first tile lie. */
template <int NT> __device__ __forceinline__ float4 *even_part(const struct even_job &f, uint32_t block)
{
    return (float4 *)f.parts + (size_t)block * NT * EVEN_THREADS + threadIdx.x;
}

/* Those of blocks first .. last, when they have come, one after the other onto c; so many are asked for at once. */
template <int NT, uint32_t TOGETHER, bool CLEARS>
__device__ __forceinline__ void even_join(const struct even_job &f, uint32_t first, uint32_t last, float (&c)[NT][4])
{
    for (uint32_t b = first; b <= last; b += TOGETHER) {
        float4 v[TOGETHER][NT];
        bool all;
        do {
            all = true;
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int n = 0; n < NT && b + i <= last; n++)
                    v[i][n] = load_sums(even_part<NT>(f, b + i) + n * EVEN_THREADS);
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (int n = 0; n < NT && b + i <= last; n++)
                    all = all && has_come(v[i][n]);
        } while (!all);
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++)
            if (b + i <= last)
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    part_add(c[n], v[i][n]);
                    if (CLEARS)
                        store_sums(even_part<NT>(f, b + i) + n * EVEN_THREADS, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
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

/* Where the rows of a step are, for QKV: their positions, and their places behind the first of a kv head. */
#define EVEN_NOWHERE UINT64_MAX
struct even_rows {
    uint32_t pos[EVEN_MOST];
    uint64_t at[EVEN_MOST];
};

/* A row each for the first threads. */
__device__ __forceinline__ void even_rows_load(const struct skinny_job &j, struct even_rows &to)
{
    const struct skinny_heads &h = j.heads;
    if (threadIdx.x < j.n_rows) {
        const uint32_t slot = h.slot[threadIdx.x], block = slot / h.block_tokens;
        to.pos[threadIdx.x] = h.pos[threadIdx.x];
        to.at[threadIdx.x] =
            slot == KV_SLOT_NONE ? EVEN_NOWHERE : block * h.block_bytes + (slot - block * h.block_tokens) * h.row_bytes;
    }
}

/* The head of a lane's two matrix rows: where they lie in it, and what becomes of them. */
struct even_head {
    uint32_t part, local, lo, hi; /* part: q, k or v; the head of it; elements */
    uint32_t turn;                /* of the rope table; UINT32_MAX = is not turned */
    uint64_t at;                  /* of a row's queries, in floats; of a position's place in the cache, in bytes */
};

__device__ __forceinline__ struct even_head even_head_of(const struct skinny_heads &h, uint32_t ra, uint32_t rb)
{
    struct even_head e;
    uint32_t turn;
    e.part = head_of(h, ra + h.first_row, e.local);
    e.lo = (ra + h.first_row) % h.head_dim;
    e.hi = (rb + h.first_row) % h.head_dim;
    e.turn = is_turned(h, e.part, e.lo, turn) ? turn : UINT32_MAX;
    e.at = e.part == 0 ? (uint64_t)e.local * h.head_dim
                       : (uint64_t)e.local * h.block_tokens * h.row_bytes + (e.part == 1 ? h.k_at : h.v_at);
    return e;
}

/* The activation row of a lane's i-th pair of sums, which are c[i / 2][i % 2] and c[i / 2][2 + i % 2]. */
__device__ __forceinline__ uint32_t even_row(int i)
{
    return (uint32_t)i / 2 * 8 + 2 * (threadIdx.x % 4) + i % 2;
}

/* The rows of a lane at the end of a tile, and what is read beside their sums. */
template <int NT> struct even_ending {
    uint32_t ra, rb;
    bool is_there;      /* ra, and so is rb */
    uint32_t first_row; /* of the activations */
    struct even_head head;
    float2 bias;
    float2 in[2 * NT]; /* of each of its activation rows: what is added to, or cos and sin */

    __device__ __forceinline__ uint32_t row(int i) const
    {
        return first_row + even_row(i);
    }
};

/* Where that lies: for an activation row behind the two, row or position times step. NULL = nothing is read. */
struct even_beside {
    const float *a, *b;
    uint32_t step;
    const float *bias_a, *bias_b;
};

template <int END>
__device__ __forceinline__ struct even_beside even_beside_of(
    const struct skinny_job &j, uint32_t ra, uint32_t rb, const struct even_head &head)
{
    struct even_beside from = {NULL, NULL, 0, NULL, NULL};
    if (END == SKINNY_ADD) {
        from.a = j.out + ra;
        from.b = j.out + rb;
        from.step = j.ldc;
    } else if (END == SKINNY_QKV) {
        const struct skinny_heads &h = j.heads;
        const float *bias = h.bias[head.part];
        if (head.turn != UINT32_MAX) {
            from.a = h.rope_table + 2 * head.turn;
            from.b = from.a + 1;
            from.step = h.rope_dims;
        }
        if (bias != NULL) {
            from.bias_a = bias + head.local * h.head_dim + head.lo;
            from.bias_b = bias + head.local * h.head_dim + head.hi;
        }
    } else if (END == SKINNY_GLU) {
        from.bias_a = j.bias0 != NULL ? j.bias0 + ra : NULL;
        from.bias_b = j.bias1 != NULL ? j.bias1 + rb : NULL;
    }
    return from;
}

/* The places of an ending, and then what lies there. */
template <int NT, int END>
__device__ __forceinline__ struct even_beside even_places(
    const struct even_job &f, uint32_t tile, uint32_t first_row, struct even_ending<NT> &e)
{
    e.first_row = first_row;
    even_lane<END>(f, tile, e.ra, e.rb);
    e.is_there = e.ra < f.j.n_out;
    if (END == SKINNY_QKV)
        e.head = even_head_of(f.j.heads, e.ra, e.rb);
    return even_beside_of<END>(f.j, e.ra, e.rb, e.head);
}

template <int NT>
__device__ __forceinline__ void even_load_beside(const struct skinny_job &j, const struct even_rows &at,
    const struct even_beside &from, bool is_qkv, struct even_ending<NT> &e)
{
    e.bias.x = e.is_there && from.bias_a != NULL ? early_load(from.bias_a) : 0.0f;
    e.bias.y = e.is_there && from.bias_b != NULL ? early_load(from.bias_b) : 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const uint32_t row = min(e.row(i), j.n_rows - 1);
        const size_t behind = (size_t)(is_qkv ? at.pos[row] : row) * from.step;
        e.in[i] = make_float2(0.0f, 0.0f);
        if (e.is_there && from.a != NULL)
            e.in[i] = make_float2(early_load(from.a + behind), early_load(from.b + behind));
    }
}

/* A lane's numbers of one output, of its activation rows in order, as 16 bits: where they lie for neighbouring outputs
 * in neighbouring lanes, a lane gets two outputs of one row and writes both. at(row): where that row's first output of
 * these eight goes; NULL = nowhere. By whole warps. */
template <int NT, typename T, class At>
__device__ __forceinline__ void even_store_turned(const struct even_ending<NT> &e, const float (&x)[2 * NT], At &&at)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t two[NT];
#pragma unroll
    for (int i = 0; i < NT; i++)
        two[i] = turn_matrix(act_pair(T(), x[2 * i], x[2 * i + 1]));
#pragma unroll
    for (int i = 0; i < NT; i++) {
        T *const to = at(e.first_row + 8 * i + lane / 4);
        if (to != NULL)
            *(uint32_t *)(to + 2 * (lane % 4)) = two[i];
    }
}

/* Keys or values of 16 bits; those beyond f16 become its largest, as activations do. */
template <int NT, typename T>
__device__ __forceinline__ void even_store_heads(const struct skinny_job &j, const struct even_rows &at,
    const struct even_ending<NT> &e, const float (&x)[2 * NT], const float (&y)[2 * NT])
{
    const auto place = [&](uint32_t row, uint32_t element) {
        const bool is_there = row < j.n_rows && at.at[row] != EVEN_NOWHERE;
        return is_there ? (T *)(j.heads.blocks + at.at[row] + e.head.at) + element : (T *)NULL;
    };
    if (e.head.hi == e.head.lo + 1) { /* rope turns neighbours */
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            T *const to = place(e.row(i), e.head.lo);
            if (to != NULL)
                *(uint32_t *)to = act_pair(T(), x[i], y[i]);
        }
        return;
    }
    const uint32_t g = threadIdx.x % 32 / 4;
    even_store_turned<NT, T>(e, x, [&](uint32_t row) { return place(row, e.head.lo - g); });
    even_store_turned<NT, T>(e, y, [&](uint32_t row) { return place(row, e.head.hi - g); });
}

/* As end_heads, all rows of a lane. */
template <int NT>
__device__ __forceinline__ void even_end_heads(
    const struct skinny_job &j, const struct even_rows &at, const struct even_ending<NT> &e, const float (&c)[NT][4])
{
    float x[2 * NT], y[2 * NT];
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        const float a = c[i / 2][i % 2] + e.bias.x, b = c[i / 2][2 + i % 2] + e.bias.y;
        const bool is_turned = e.head.turn != UINT32_MAX;
        x[i] = is_turned ? __fmaf_rn(a, e.in[i].x, -__fmul_rn(b, e.in[i].y)) : a;
        y[i] = is_turned ? __fmaf_rn(a, e.in[i].y, __fmul_rn(b, e.in[i].x)) : b;
    }
    if (e.head.part == 0) {
#pragma unroll
        for (int i = 0; i < 2 * NT; i++)
            if (e.row(i) < j.n_rows) {
                float *q = j.out + (size_t)e.row(i) * j.ldc + e.head.at;
                q[e.head.lo] = x[i];
                q[e.head.hi] = y[i];
            }
    } else if (j.heads.kv_dtype == DTYPE_BF16)
        even_store_heads<NT, __nv_bfloat16>(j, at, e, x, y);
    else if (j.heads.kv_dtype == DTYPE_F16)
        even_store_heads<NT, __half>(j, at, e, x, y);
    else
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            const uint32_t row = e.row(i);
            if (row < j.n_rows && at.at[row] != EVEN_NOWHERE) {
                unsigned char *to = j.heads.blocks + at.at[row] + e.head.at;
                float_store(to, e.head.lo, j.heads.kv_dtype, x[i]);
                float_store(to, e.head.hi, j.heads.kv_dtype, y[i]);
            }
        }
}

/* As act_put of the gated, all rows of a lane. */
template <int NT>
__device__ __forceinline__ void even_end_glu(
    const struct skinny_job &j, const struct even_ending<NT> &e, const float (&c)[NT][4])
{
    const bool is_swapped = j.w1 < j.w0; /* boxes begin with the lower address */
    const uint32_t first = e.ra - threadIdx.x % 32 / 4;
    float y[2 * NT];
    const auto gated = [&](auto kind) {
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            const float a = c[i / 2][i % 2], b = c[i / 2][2 + i % 2];
            y[i] = glu_of((is_swapped ? b : a) + e.bias.x, (is_swapped ? a : b) + e.bias.y, decltype(kind)::value);
        }
    };
    if (j.glu == GLU_SILU)
        gated(std::integral_constant<enum glu, GLU_SILU>());
    else
        gated(std::integral_constant<enum glu, GLU_GELU>());
    if (j.act_bf16 != NULL)
        even_store_turned<NT, __nv_bfloat16>(e, y, [&](uint32_t row) {
            return row < j.n_rows ? (__nv_bfloat16 *)j.act_bf16 + (size_t)row * j.n_out + first : NULL;
        });
    if (j.act_f16 != NULL)
        even_store_turned<NT, __half>(e, y,
            [&](uint32_t row) { return row < j.n_rows ? (__half *)j.act_f16 + (size_t)row * j.n_out + first : NULL; });
#pragma unroll
    for (int i = 0; i < 2 * NT; i++)
        if (j.act_f32 != NULL && e.row(i) < j.n_rows)
            j.act_f32[(size_t)e.row(i) * j.n_out + e.ra] = y[i];
}

/* All of the sums of a tile of which this block has the first n units: those who have the others put theirs down. */
template <int NT, uint32_t TOGETHER, bool CLEARS>
__device__ __forceinline__ void even_gather(const struct even_job &f, uint32_t tile, uint32_t n, float (&c)[NT][4])
{
    if (n < f.per_tile)
        even_join<NT, TOGETHER, CLEARS>(f, blockIdx.x + 1, even_block(f, (tile + 1) * f.per_tile - 1), c);
}

/* What is to be done with them. Whole warps are there, or not: the rows of a matrix come in sixteens. */
template <int NT, int END>
__device__ __forceinline__ void even_end(
    const struct skinny_job &j, const struct even_rows &at, const struct even_ending<NT> &e, const float (&c)[NT][4])
{
    if (!e.is_there)
        return;
    if constexpr (END == SKINNY_QKV)
        even_end_heads<NT>(j, at, e, c);
    else if constexpr (END == SKINNY_GLU)
        even_end_glu<NT>(j, e, c);
    else
#pragma unroll
        for (int i = 0; i < 2 * NT; i++)
            if (e.row(i) < j.n_rows) {
                float *to = j.out + (size_t)e.row(i) * j.ldc;
                to[e.ra] = c[i / 2][i % 2] + e.in[i].x;
                to[e.rb] = c[i / 2][2 + i % 2] + e.in[i].y;
            }
}

/* What this block has of a tile whose first units are another's. */
template <int NT> __device__ __forceinline__ void even_put_down(const struct even_job &f, const float (&c)[NT][4])
{
#pragma unroll
    for (int i = 0; i < NT; i++)
        part_put(even_part<NT>(f, blockIdx.x) + i * EVEN_THREADS, c[i]);
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
    unsigned char *const stages = (unsigned char *)(((uintptr_t)memory + TMA_ATOM - 1) / TMA_ATOM * TMA_ATOM);
    const struct even_ring ring = {stages, stages + S::STAGES * EVEN_WEIGHTS, barriers, barriers + EVEN_STAGES, NULL};
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
    if (END == SKINNY_QKV)
        even_rows_load(f.j, rows);
    meet<EVEN_THREADS>();
    struct even_at at = {0, 0, 0};
    for (uint32_t unit = first; unit < end;) {
        const uint32_t tile = unit / f.per_tile, n = min(end, (tile + 1) * f.per_tile) - unit;
        float c[NT][4];
        even_sum<T, NT, S::STAGES, S::STAGES, false>(ring, group, n, at, c);
        if (unit == tile * f.per_tile) { /* what is read beside the others' sums comes while they are waited for */
            struct even_ending<NT> e;
            even_load_beside<NT>(f.j, rows, even_places<NT, END>(f, tile, 0, e), END == SKINNY_QKV, e);
            even_gather<NT, S::TOGETHER, true>(f, tile, n, c);
            even_end<NT, END>(f.j, rows, e, c);
        } else
            even_put_down<NT>(f, c);
        unit += n;
    }
}

#endif
