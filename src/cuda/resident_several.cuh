/* The kernel behind resident.h for steps of 3 to EVEN_MOST rows with BF16 matrices: the products of even.cuh and the
 * attention of attend_team.cu as phases of one kernel, so that the ring of weights takes nearly all of a
 * multiprocessor's memory and is filled over the ends of ops.
 *
 * A block a multiprocessor. Two warpgroups do the work of a phase: they multiply, join and end as in even.cuh, or are
 * two teams of attend_team.cuh. Beside them
 *   one thread asks for weights, over all phases, as soon as a stage of the ring is free,
 *   one watches the barrier over the chip that stands between phases, and then asks for the activations of each stage,
 *   one warp brings the description of the next phase, and makes of squares what a norm divides by,
 *   one warp tells the others when the block is through with a phase, and clears the sums that it added.
 *
 * Joins. Where every tile of a product has two blocks or more to itself (even.cu cuts so, if it can), each of these
 * ends some of its rows, eight at a time: it puts down its other sums, and gets the others' of these. So a join is a
 * fourth of the bytes for each of four blocks, and ends are short. A block with parts of two tiles puts down both, the
 * second behind the first of all blocks. Otherwise as in even.cuh. The order of float operations is the same. Two
 * products behind each other put down in areas of their own.
 *
 * Norms. Where a product adds to the residual stream it also writes x times the gain of the norm that follows, rounded,
 * and the sum of the squares of its tile. Who reads it multiplies that, and divides its sums at the end by the root of
 * the mean square. So a norm costs no phase of its own. Order of float operations: squares of 16 outputs by a tree,
 * then 8 of these ascending, then the tiles ascending.
 *
 * Attention lies in the last stages of the ring, which are lent to it: the product behind it begins with the first
 * stage, and its weights fill those that are not lent while attention runs. What is the same in every layer lies in
 * shared memory: a team's first item, and its warps' parts of the block table.
 *
 * Activations have places of their own, fewer than there are stages: they are asked for when a phase has opened, which
 * is late, and come soon.
 *
 * What other blocks wrote is read behind the chip's barrier, by the copy engine too, which takes a fence of its own. */
#ifndef CUDA_RESIDENT_SEVERAL_CUH
#define CUDA_RESIDENT_SEVERAL_CUH

#include "cuda/attend_team.cuh"
#include "cuda/even.cuh"
#include "cuda/resident.h"

#define SEVERAL_THREADS (EVEN_THREADS + 128)
#define SEVERAL_WARPS   (EVEN_THREADS / 32) /* that multiply */
#define SEVERAL_TEAMS   (EVEN_THREADS / TEAM_THREADS)
#define SEVERAL_BYTES   ((uint32_t)222 << 10) /* of the ring, and what attention needs behind it */
#define SEVERAL_SLOTS   13                    /* of the ring, at most */
#define SEVERAL_ACTS    7                     /* places of activations: those of a stage come when a phase has opened */

/* Stages of weights on their way at once: whatever else is read stands in line behind them. So fewer when a phase
 * begins, whose first stages are asked for while the one before joins its sums and ends; attention joins none. */
#define SEVERAL_FLIGHT   4
#define SEVERAL_AHEAD    2
#define SEVERAL_TOGETHER 2 /* blocks whose sums are asked for at once */

/* As in resident.h, where the others need more. */
#define SEVERAL_WORK_REGISTERS  224
#define SEVERAL_OTHER_REGISTERS 56

static_assert(8 * SEVERAL_WORK_REGISTERS + 4 * SEVERAL_OTHER_REGISTERS <= 12 * 168, "as many as there are");
static_assert(SEVERAL_TEAMS <= TEAMS_MOST, "named barriers");
static_assert(SEVERAL_AHEAD <= SEVERAL_FLIGHT && SEVERAL_FLIGHT <= 8, "a byte for each");

template <int NT, int D> struct SeveralShape {
    using Attention = Team<CachePlain<__nv_bfloat16>, D, 1, NT == 4 && D == 128 ? 5 : TEAM_SIDES>;
    static constexpr uint32_t ROWS = EvenShape<NT>::ACTS, ALL_ROWS = SEVERAL_ACTS * ROWS;
    static constexpr uint32_t BYTES = SEVERAL_BYTES - TMA_ATOM - ALL_ROWS;
    static constexpr uint32_t SLOTS = BYTES / EVEN_WEIGHTS, REST = BYTES % EVEN_WEIGHTS;
    static constexpr uint32_t TEAM = TEAM_WARPS * Attention::RING, NEEDED = SEVERAL_TEAMS * TEAM;
    static constexpr uint32_t LENT = NEEDED > REST ? (NEEDED - REST + EVEN_WEIGHTS - 1) / EVEN_WEIGHTS : 0,
                              KEPT = SLOTS - LENT;
    static_assert(SLOTS <= SEVERAL_SLOTS && LENT < SLOTS && SEVERAL_ACTS <= SLOTS,
        "a barrier for each, and some for the weights");
};

struct several_phase {
    struct even_job f; /* a product */
    enum phase_kind kind;
    bool is_odd, is_last; /* of all phases, from 0 on; here, where they cost no register */
    bool has_rows;        /* SKINNY_QKV: its rows lie elsewhere than those of the one before */
    float eps;
    uint32_t norm;        /* how many phases before this one divide */
    const float *squares; /* of the rows it reads, [tiles][EVEN_MOST]; NULL = nothing is divided */
    /* SKINNY_ADD: for the norm behind it; gain NULL = none */
    const float *gain;
    __nv_bfloat16 *scaled;
    float *squares_out;
    struct attend_job attend;
};

struct several_args {
    const struct several_phase *program;
    uint32_t n, first_attend;
    uint32_t *barrier; /* zero between kernels */
};

/* What the parts of a block tell each other by. */
struct several_barriers {
    uint64_t full[SEVERAL_SLOTS], free[SEVERAL_SLOTS]; /* full: of the stage's weights; */
    uint64_t rows[SEVERAL_SLOTS];                      /* and of its activations */
    uint64_t opened;                                   /* a phase may read what those before it wrote */
    uint64_t normed;                                   /* inverse[] is this phase's */
    uint64_t lent;                                     /* attention has left its stages */
    uint64_t done;                                     /* this block is through with a phase */
};

/* Attention's first item of each team, which is the same in every layer, and each warp's part of the block table. */
#define SEVERAL_ENTRIES 24 /* of a warp, at most */
struct several_items {
    struct plan_item item[SEVERAL_TEAMS];
    const uint32_t *table; /* that the parts are of */
    struct several_entries {
        uint32_t lo, hi; /* positions; 0, 0 = they are not here */
        uint32_t entry[SEVERAL_ENTRIES];
    } of[SEVERAL_WARPS];
    uint32_t n;     /* items times kv heads */
    uint32_t split; /* as in the plan */
};

struct several_block {
    struct several_phase phase[2];
    struct several_barriers b;
    struct several_items items;
    struct even_rows rows;
    float inverse[EVEN_MOST];
    float squares[SEVERAL_WARPS][EVEN_MOST];
};

static_assert(sizeof(struct several_block) + SEVERAL_BYTES + 128 <= (227 << 10),
    "what a block may have; some of it is team_is_last's");

/* ---- those who bring -----------------------------------------------------------------------------------------------
 */

/* What the two threads need of a phase; the next one's is asked for a phase ahead. */
struct several_brief {
    enum phase_kind kind;
    uint32_t first, end, per_tile, group_runs; /* units of this block, and as even_job has them */

    __device__ __forceinline__ void load(const struct several_args &a, uint32_t i)
    {
        if (i < a.n) {
            const struct several_phase &p = a.program[i];
            kind = p.kind;
            first = even_first(p.f, blockIdx.x);
            end = even_first(p.f, blockIdx.x + 1);
            per_tile = p.f.per_tile;
            group_runs = p.f.group_runs;
        }
    }
};

template <int NT, int D>
__device__ __forceinline__ void several_weights(
    const struct several_args &a, unsigned char *stages, struct several_barriers &b)
{
    using S = SeveralShape<NT, D>;
    struct several_brief p = {}, next = {};
    struct even_at at = {0, ~0u, 0}; /* the first wait for a free stage is none */
    uint32_t n_lent = 0, n_asked = 0;
    uint64_t asked = 0; /* the stages that were asked for last, a byte each: its number, and the parity of its full */
    bool is_lent = false, is_behind_attention = false;
    p.load(a, 0);
    for (uint32_t i = 0; i < a.n; i++, p = next) {
        next.load(a, i + 1);
        if (i + 1 < a.n)
            tma_ready(&a.program[i + 1].f.w);
        if (is_lent && p.kind == PHASE_ATTEND) /* nobody has needed them */
            barrier_wait(&b.lent, n_lent++ & 1);
        if (p.kind == PHASE_ATTEND) {
            barrier_arrive(&b.lent);
            at.stage = 0;
            is_lent = is_behind_attention = true;
            continue;
        }
        const CUtensorMap *map = &a.program[i].f.w;
        const uint32_t begins = is_behind_attention ? SEVERAL_FLIGHT : SEVERAL_AHEAD;
        is_behind_attention = false;
        struct even_place place(p.first, p.per_tile);
        for (uint32_t unit = p.first; unit < p.end; unit++) {
            if (is_lent && at.stage >= S::KEPT) {
                barrier_wait(&b.lent, n_lent++ & 1);
                is_lent = false;
            }
            barrier_wait(&b.free[at.stage], at.parity());
            const uint32_t flight = unit - p.first < S::SLOTS ? begins : SEVERAL_FLIGHT;
            if (n_asked++ >= SEVERAL_FLIGHT) {
                const uint32_t oldest = (uint32_t)(asked >> 8 * (flight - 1)) & 255;
                if ((at.turned >> oldest / 2 & 1) == oldest % 2) /* else it has been asked for again */
                    barrier_wait(&b.full[oldest / 2], oldest % 2);
            }
            asked = asked << 8 | (2 * at.stage + (at.parity() ^ 1));
            barrier_arrive_expect(&b.full[at.stage], EVEN_WEIGHTS);
            even_fetch(map, p.group_runs, stages + at.stage * EVEN_WEIGHTS, place, &b.full[at.stage]);
            at.step(S::SLOTS, SEVERAL_ACTS);
            place.step();
        }
    }
}

template <int NT, int D>
__device__ __forceinline__ void several_rows(
    const struct several_args &a, unsigned char *acts, struct several_barriers &b)
{
    using S = SeveralShape<NT, D>;
    struct several_brief p = {}, next = {};
    struct even_at at = {0, ~0u, 0};
    p.load(a, 0);
    launch_wait();
    for (uint32_t i = 0; i < a.n; i++, p = next) {
        next.load(a, i + 1);
        if (i + 1 < a.n)
            tma_ready(&a.program[i + 1].f.act);
        const CUtensorMap *map = &a.program[i].f.act;
        struct even_place place(p.first, p.per_tile); /* here, since it takes a division */
        chip_see(a.barrier, i);
        global_ready();
        barrier_arrive(&b.opened);
        if (p.kind == PHASE_ATTEND) {
            at.stage = 0;
            continue;
        }
        for (uint32_t unit = p.first; unit < p.end; unit++) {
            if (unit >= p.first + SEVERAL_ACTS) { /* the unit before it that had this place; earlier phases are over */
                const uint32_t stage = (at.stage < SEVERAL_ACTS ? at.stage + S::SLOTS : at.stage) - SEVERAL_ACTS;
                barrier_wait(&b.free[stage], at.turned >> stage & 1);
            }
            barrier_arrive_expect(&b.rows[at.stage], S::ROWS);
            tma_load_rows(acts + at.act * S::ROWS, map, place.column * TMA_COLUMN, 0, &b.rows[at.stage]);
            at.step(S::SLOTS, SEVERAL_ACTS);
            place.step();
        }
    }
}

/* Those who work are through with a phase: nobody reads its description or inverse[] any more. And the next one's
 * description is there. */
__device__ __forceinline__ void several_meet()
{
    meet_apart<2 + SEVERAL_TEAMS, EVEN_THREADS + 32>(); /* named barriers below it are the block's and the teams' */
}

/* What the sums of a row are multiplied with. A lane a row. */
__device__ __forceinline__ float several_inverse(const struct several_phase &p, uint32_t row)
{
    constexpr uint32_t TOGETHER = 16;
    const uint32_t n = (p.f.j.n_in + EVEN_ROWS - 1) / EVEN_ROWS;
    float sum = 0.0f;
    for (uint32_t first = 0; first < n; first += TOGETHER) {
        float x[TOGETHER];
#pragma unroll
        for (uint32_t k = 0; k < TOGETHER; k++)
            x[k] = first + k < n ? __ldcg(p.squares + (first + k) * EVEN_MOST + row) : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < TOGETHER; k++)
            sum += x[k];
    }
    return rsqrtf(sum / (float)p.f.j.n_in + p.eps);
}

/* Words of a description, by a warp. */
__device__ __forceinline__ void several_describe(const struct several_phase *from, struct several_phase *to)
{
    static_assert(sizeof *from % 16 == 0, "moved in pieces of 16 bytes");
    for (uint32_t i = threadIdx.x % 32; i < sizeof *from / 16; i += 32)
        ((uint4 *)to)[i] = __ldg((const uint4 *)from + i);
    __syncwarp();
}

__device__ __forceinline__ void several_tell(const struct several_args &a, struct several_block &s)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = 0; i < a.n; i++) {
        const struct several_phase &p = s.phase[i % 2];
        barrier_wait(&s.b.opened, i & 1);
        if (p.kind == PHASE_PRODUCT && p.squares != NULL) {
            s.inverse[lane] = several_inverse(p, lane);
            barrier_arrive(&s.b.normed);
        }
        if (i + 1 < a.n)
            several_describe(a.program + i + 1, &s.phase[(i + 1) % 2]);
        several_meet();
    }
}

/* ---- products ------------------------------------------------------------------------------------------------------
 */

/* The end of SKINNY_ADD where a norm follows. */
template <int NT>
__device__ __forceinline__ void several_add(const struct several_phase &p, struct several_block &s, uint32_t tile,
    const struct even_ending<NT> &e, float2 gain, const float (&c)[NT][4])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_rows = p.f.j.n_rows, width = p.f.j.ldc;
    float *const stream = p.f.j.out, *const squares = p.squares_out;
    __nv_bfloat16 *const scaled = p.scaled;
    float x[2 * NT], y[2 * NT], sum[2 * NT];
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        x[i] = c[i / 2][i % 2] + e.in[i].x;
        y[i] = c[i / 2][2 + i % 2] + e.in[i].y;
        const uint32_t row = e.row(i);
        const bool is_there = e.is_there && row < n_rows;
        if (is_there) {
            float *to = stream + (size_t)row * width;
            to[e.ra] = x[i];
            to[e.rb] = y[i];
        }
        sum[i] = is_there ? x[i] * x[i] + y[i] * y[i] : 0.0f;
    }
    const auto row_at = [&](uint32_t row, uint32_t out) {
        return row < n_rows && e.is_there ? scaled + (size_t)row * width + out - lane / 4 : NULL;
    };
#pragma unroll
    for (int i = 0; i < 2 * NT; i++) {
        x[i] *= gain.x;
        y[i] *= gain.y;
    }
    even_store_turned<NT, __nv_bfloat16>(e, x, [&](uint32_t row) { return row_at(row, e.ra); });
    even_store_turned<NT, __nv_bfloat16>(e, y, [&](uint32_t row) { return row_at(row, e.rb); });
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
#pragma unroll
        for (int i = 0; i < 2 * NT; i++)
            sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], step);
#pragma unroll
    for (int i = 0; i < 2 * NT; i++)
        s.squares[warp][e.row(i)] = sum[i]; /* from all lanes that have the row; other eights have other places */
    meet<EVEN_THREADS>();
    if (threadIdx.x < 8 * NT) {
        const uint32_t row = e.first_row + threadIdx.x;
        float all = s.squares[0][row];
        for (int w = 1; w < SEVERAL_WARPS; w++)
            all += s.squares[w][row];
        squares[tile * EVEN_MOST + row] = all;
    }
}

/* What the end of a tile reads beside its sums, asked for long before it: it was written a layer ago, and may have left
 * the cache. */
template <int NT> struct several_ending {
    struct even_ending<NT> e;
    float2 gain;

    __device__ __forceinline__ void load(
        const struct several_phase &p, const struct even_rows &at, uint32_t tile, uint32_t first_row = 0)
    {
        const bool is_qkv = p.f.j.end == SKINNY_QKV;
        const struct even_beside from = is_qkv ? even_places<NT, SKINNY_QKV>(p.f, tile, first_row, e)
                                        : p.f.j.end == SKINNY_GLU
                                            ? even_places<NT, SKINNY_GLU>(p.f, tile, first_row, e)
                                            : even_places<NT, SKINNY_ADD>(p.f, tile, first_row, e);
        even_load_beside<NT>(p.f.j, at, from, is_qkv, e);
        gain = make_float2(0.0f, 0.0f);
        if (p.gain != NULL && e.is_there)
            gain = make_float2(early_load(p.gain + e.ra), early_load(p.gain + e.rb));
    }
};

/* The end of a tile whose sums are all there. */
template <int NT>
__device__ __forceinline__ void several_end(const struct several_phase &p, struct several_block &s, uint32_t tile,
    const struct several_ending<NT> &w, float (&c)[NT][4])
{
    const struct skinny_job j = p.f.j; /* in registers: what is written below might be it, for all the compiler knows */
    if (p.squares != NULL) {
        barrier_wait(&s.b.normed, p.norm & 1);
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            const float by = s.inverse[w.e.row(i)];
            c[i / 2][i % 2] *= by;
            c[i / 2][2 + i % 2] *= by;
        }
    }
    if (j.end == SKINNY_QKV)
        even_end<NT, SKINNY_QKV>(j, s.rows, w.e, c);
    else if (j.end == SKINNY_GLU)
        even_end<NT, SKINNY_GLU>(j, s.rows, w.e, c);
    else if (p.gain != NULL)
        several_add<NT>(p, s, tile, w.e, w.gain, c);
    else
        even_end<NT, SKINNY_ADD>(j, s.rows, w.e, c);
}

/* A tile that several blocks share, of which some have nothing else: these end it, some eights of rows each. */
struct several_share {
    uint32_t first, n;    /* its blocks */
    bool is_begun_before; /* the first of them has another tile before it: its sums of this one lie elsewhere */
    uint32_t eight, end;  /* those that this block ends */

    /* The sums of the tile's number k of blocks, for an eight. */
    template <int NT> __device__ __forceinline__ float4 *at(const struct even_job &f, uint32_t k, uint32_t i) const
    {
        const uint32_t slot = first + k + (k == 0 && is_begun_before ? gridDim.x : 0);
        return (float4 *)f.parts + (size_t)(slot * NT + i) * EVEN_THREADS;
    }
};

template <int NT>
__device__ __forceinline__ struct several_share several_share_of(const struct even_job &f, uint32_t tile)
{
    struct several_share share;
    const uint32_t begin = tile * f.per_tile, end = begin + f.per_tile, last = even_block(f, end - 1);
    share.first = even_block(f, begin);
    share.n = last - share.first + 1;
    share.is_begun_before = even_first(f, share.first) < begin;
    const uint32_t inner = share.first + share.is_begun_before;
    const uint32_t n_inner = last + (even_first(f, last + 1) <= end) - inner, mine = blockIdx.x - inner;
    const bool ends = blockIdx.x >= inner && mine < n_inner;
    share.eight = ends ? mine * NT / n_inner : 0;
    share.end = ends ? (mine + 1) * NT / n_inner : 0;
    return share;
}

/* All sums of this block's first N eights, block after block; its own are in `own`. */
template <int NT, int N>
__device__ __forceinline__ void several_join(
    const struct even_job &f, const struct several_share &share, const float4 (&own)[2], float (&sum)[2][4])
{
    constexpr uint32_t TOGETHER = 4;
    const uint32_t mine = blockIdx.x - share.first;
    for (uint32_t first = 0; first < share.n; first += TOGETHER) {
        float4 v[TOGETHER][N];
        bool all;
        do {
            all = true;
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (uint32_t k = 0; k < N; k++)
                    v[i][k] = first + i < share.n && first + i != mine
                                  ? load_sums(share.at<NT>(f, first + i, share.eight + k) + threadIdx.x)
                                  : own[k];
#pragma unroll
            for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
                for (uint32_t k = 0; k < N; k++)
                    all = all && (first + i >= share.n || first + i == mine || has_come(v[i][k]));
        } while (!all);
#pragma unroll
        for (uint32_t i = 0; i < TOGETHER; i++)
#pragma unroll
            for (uint32_t k = 0; k < N; k++)
                if (first + i == 0) {
                    sum[k][0] = v[i][k].x;
                    sum[k][1] = v[i][k].y;
                    sum[k][2] = v[i][k].z;
                    sum[k][3] = v[i][k].w;
                } else if (first + i < share.n)
                    part_add(sum[k], v[i][k]);
    }
}

/* The eights of a tile that this block ends, two at most: what it has itself is in c. */
template <int NT>
__device__ __forceinline__ void several_end_eights(const struct several_phase &p, struct several_block &s,
    uint32_t tile, const struct several_share &share, struct several_ending<1> &w, const float2 (&later)[2],
    const float (&c)[NT][4])
{
    static_assert(NT <= 4, "two blocks at least end them");
    const bool are_two = NT > 2 && share.end - share.eight == 2;
    float4 own[2];
    float sum[2][4] = {};
#pragma unroll
    for (uint32_t i = 0; i < NT; i++)
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            if (i == 0 || i == share.eight + k)
                own[k] = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
    if (are_two)
        several_join<NT, 2>(p.f, share, own, sum);
    else
        several_join<NT, 1>(p.f, share, own, sum);
    for (uint32_t eight = share.eight; eight < share.end; eight++) {
        float now[1][4] = {{sum[0][0], sum[0][1], sum[0][2], sum[0][3]}};
        several_end<1>(p, s, tile, w, now);
        w.e.first_row += 8;
#pragma unroll
        for (int i = 0; i < 2; i++)
            w.e.in[i] = later[i];
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[0][i] = sum[1][i];
    }
}

/* A product of such tiles: who has parts of two of them ends none. */
template <int NT, int D>
__device__ __forceinline__ void several_shared(
    const struct several_phase &p, struct several_block &s, const struct even_ring &ring, struct even_at &at)
{
    const struct even_job &f = p.f;
    const uint32_t first = even_first(f, blockIdx.x), end = even_first(f, blockIdx.x + 1), per_tile = f.per_tile;
    const uint32_t tile = first / per_tile;
    struct several_share share = {};
    several_ending<1> w = {};
    float2 later[2] = {}; /* of its second eight: what is read beside the sums */
    if (first < end && end <= (tile + 1) * per_tile)
        share = several_share_of<NT>(f, tile);
    for (uint32_t eight = share.end; eight-- > share.eight;) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            later[i] = w.e.in[i];
        w.load(p, s.rows, tile, 8 * eight);
    }
    barrier_wait(&s.b.opened, p.is_odd);
    float c[NT][4];
    for (uint32_t unit = first, slot = blockIdx.x; unit < end; slot += gridDim.x) {
        const uint32_t n = min(end, (unit / per_tile + 1) * per_tile) - unit;
        even_sum<__nv_bfloat16, NT, SeveralShape<NT, D>::SLOTS, SEVERAL_ACTS, true>(ring, threadIdx.x / 128, n, at, c);
#pragma unroll
        for (uint32_t i = 0; i < NT; i++)
            if (i < share.eight || i >= share.end)
                part_put(even_part<NT>(f, slot) + i * EVEN_THREADS, c[i]);
        unit += n;
    }
    if (share.eight < share.end)
        several_end_eights<NT>(p, s, tile, share, w, later, c);
    if (p.squares != NULL) /* whether a tile ended here or not */
        barrier_wait(&s.b.normed, p.norm & 1);
}

template <int NT, int D>
__device__ __forceinline__ void several_product(
    const struct several_phase &p, struct several_block &s, const struct even_ring &ring, struct even_at &at)
{
    const struct even_job &f = p.f;
    const uint32_t first = even_first(f, blockIdx.x), end = even_first(f, blockIdx.x + 1), per_tile = f.per_tile;
    uint32_t next = 0; /* tile that this block ends */
    struct several_ending<NT> w;
    for (uint32_t unit = first; unit < end;) {
        const uint32_t tile = unit / per_tile, n = min(end, (tile + 1) * per_tile) - unit;
        const bool is_end = unit == tile * per_tile; /* else another block has the tile's first units, and ends it */
        float c[NT][4];
        if (unit == first || tile > next) {
            next = is_end ? tile : tile + 1;
            if (next * per_tile < end)
                w.load(p, s.rows, next);
        }
        if (unit == first)
            barrier_wait(&s.b.opened, p.is_odd);
        even_sum<__nv_bfloat16, NT, SeveralShape<NT, D>::SLOTS, SEVERAL_ACTS, true>(ring, threadIdx.x / 128, n, at, c);
        if (is_end) {
            even_gather<NT, SEVERAL_TOGETHER, false>(f, tile, n, c);
            several_end<NT>(p, s, tile, w, c);
            if (p.gain != NULL && (tile + 1) * per_tile < end)
                meet<EVEN_THREADS>(); /* the next tile's squares take the places of this one's */
        } else
            even_put_down<NT>(f, c);
        unit += n;
    }
    if (first >= end)
        barrier_wait(&s.b.opened, p.is_odd);
    if (p.squares != NULL) /* whether a tile ended here or not */
        barrier_wait(&s.b.normed, p.norm & 1);
}

/* ---- attention -----------------------------------------------------------------------------------------------------
 */

/* A team's first item. The longest contexts come first: the block that has the longest of them has the shortest of the
 * next as well, or none. */
__device__ __forceinline__ uint32_t several_first(uint32_t team)
{
    return team * gridDim.x + (team % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
}

template <class T>
__device__ __forceinline__ void several_items_load(const struct several_args &a, struct several_items &items)
{
    const struct attend_job &j = a.program[a.first_attend].attend;
    const uint32_t lane = threadIdx.x % 32, team = threadIdx.x / TEAM_THREADS, first = several_first(team);
    const uint32_t n = j.plan->n_items * j.n_kv_heads, split = j.plan->split;
    struct several_items::several_entries &mine = items.of[threadIdx.x / 32];
    if (threadIdx.x == 0) {
        items.table = j.table;
        items.n = n;
        items.split = split;
    }
    if (lane == 0)
        mine.lo = mine.hi = 0;
    if (first >= n)
        return;
    const struct plan_item item = j.items[first / j.n_kv_heads];
    struct team_work w;
    if (threadIdx.x % TEAM_THREADS == 0)
        items.item[team] = item;
    if (!T::work_of(j, item, first % j.n_kv_heads, split, w) || w.lo >= w.hi)
        return;
    const uint32_t block = w.lo / j.block_tokens, n_blocks = (w.hi - 1) / j.block_tokens - block + 1;
    if (lane < SEVERAL_ENTRIES && lane < n_blocks)
        mine.entry[lane] = j.table[w.s.table_at + block + lane];
    if (lane == 0 && n_blocks <= SEVERAL_ENTRIES) {
        mine.lo = w.lo;
        mine.hi = w.hi;
    }
}

/* This warp's part of the table, where it is here. */
__device__ __forceinline__ const uint32_t *several_entry(
    const struct attend_job &j, const struct several_items &items, const struct team_work &w)
{
    const struct several_items::several_entries &mine = items.of[threadIdx.x / 32];
    return j.table == items.table && w.lo == mine.lo && w.hi <= mine.hi ? mine.entry : NULL;
}

template <int NT, int D>
__device__ __forceinline__ void several_attend(
    const struct several_phase &p, struct several_block &s, unsigned char *room)
{
    const struct attend_job &j = p.attend;
    using T = typename SeveralShape<NT, D>::Attention;
    const uint32_t team = threadIdx.x / TEAM_THREADS, first = several_first(team);
    unsigned char *const rings = room + team * SeveralShape<NT, D>::TEAM;
    if (first >= s.items.n)
        barrier_wait(&s.b.opened, p.is_odd);
    for (uint32_t i = first; i < s.items.n; i += SEVERAL_TEAMS * gridDim.x) {
        const struct plan_item item = i == first ? s.items.item[team] : j.items[i / j.n_kv_heads];
        struct team_work w;
        typename T::Ask ask;
        const bool is_seen = T::work_of(j, item, i % j.n_kv_heads, s.items.split, w);
        if (!T::is_old(w))
            barrier_wait(&s.b.opened, p.is_odd);
        if (is_seen)
            T::begin(j, w, team_ring<T::RING>(rings), ask, i == first ? several_entry(j, s.items, w) : NULL);
        barrier_wait(&s.b.opened, p.is_odd);
        if (is_seen)
            T::stream(j, w, team_ring<T::RING>(rings), ask);
        shared_ready(); /* the copy engine writes there next */
        __syncwarp();
        meet_team<TEAM_THREADS>();
        if (is_seen)
            T::finish(j, w, item, rings);
        __syncwarp();
        meet_team<TEAM_THREADS>();
    }
    if (threadIdx.x % 32 == 0)
        barrier_arrive(&s.b.lent);
}

/* ---- the kernel ----------------------------------------------------------------------------------------------------
 */

template <int NT, int D>
__device__ __forceinline__ void several_work(
    const struct several_args &a, struct several_block &s, unsigned char *stages, unsigned char *acts)
{
    using S = SeveralShape<NT, D>;
    const struct even_ring ring = {stages, acts, s.b.full, s.b.free, s.b.rows};
    struct even_at at = {0, 0, 0};
    launch_wait();
    if (a.first_attend < a.n)
        several_items_load<typename S::Attention>(a, s.items);
    __syncwarp();
    bool is_last = false;
    for (uint32_t odd = 0; !is_last; odd ^= 1) {
        const struct several_phase &p = s.phase[odd];
        if (p.has_rows) {
            even_rows_load(p.f.j, s.rows);
            __syncwarp();
            meet<EVEN_THREADS>();
        }
        if (p.kind == PHASE_PRODUCT && p.f.is_shared)
            several_shared<NT, D>(p, s, ring, at);
        else if (p.kind == PHASE_PRODUCT)
            several_product<NT, D>(p, s, ring, at);
        else {
            several_attend<NT, D>(p, s, stages + S::KEPT * EVEN_WEIGHTS); /* all met behind the product before it */
            at.stage = 0;
        }
        is_last = p.is_last;
        several_meet();
        if (threadIdx.x == 0)
            barrier_arrive(&s.b.done);
    }
    launch_next();
}

/* Others' sums that this block adds in a phase: visit(place of a block's sums of an eight). */
template <int NT, class Visit>
__device__ __forceinline__ void several_others(const struct several_phase &p, Visit &&visit)
{
    const struct even_job &f = p.f;
    const uint32_t first = even_first(f, blockIdx.x), end = even_first(f, blockIdx.x + 1);
    if (p.kind != PHASE_PRODUCT || first >= end)
        return;
    if (f.is_shared) {
        const struct several_share share = several_share_of<NT>(f, first / f.per_tile);
        for (uint32_t k = 0; k < share.n; k++)
            for (uint32_t i = share.eight; i < share.end; i++)
                visit(share.at<NT>(f, k, i));
        return;
    }
    const uint32_t tile = (end - 1) / f.per_tile, last = (tile + 1) * f.per_tile;
    if (tile * f.per_tile >= first && last > end)
        for (uint32_t k = blockIdx.x + 1; k <= even_block(f, last - 1); k++)
            for (uint32_t i = 0; i < NT; i++)
                visit((float4 *)f.parts + (size_t)(k * NT + i) * EVEN_THREADS);
}

/* Before the phase they come into the second-level cache, where they will be looked at until they are sums. By a warp,
 * as several_clear. */
__device__ __forceinline__ void several_fetch(const float4 *part)
{
    static_assert(EVEN_THREADS * sizeof *part == 32 * 128, "a line for each lane");
    fetch_line(part + threadIdx.x % 32 * 8);
}

/* They are cleared behind the phase, when nobody waits for it. */
__device__ __forceinline__ void several_clear(float4 *part)
{
    for (uint32_t i = threadIdx.x % 32; i < EVEN_THREADS; i += 32)
        store_sums(part + i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

/* This block has come, to all others: told by one thread, so that nobody else waits until what was written is seen. */
template <int NT> __device__ __forceinline__ void several_come(const struct several_args &a, struct several_barriers &b)
{
    const bool tells = threadIdx.x % 32 == 0;
    for (uint32_t i = 0; i < a.n; i++) {
        several_others<NT>(a.program[i], several_fetch);
        barrier_wait(&b.done, i & 1);
        __syncwarp(); /* nobody looks at it a round later */
        if (i + 1 < a.n && tells)
            chip_add(a.barrier);
        several_others<NT>(a.program[i], several_clear);
        __syncwarp(); /* what was cleared is before the next word to the others */
    }
    if (tells && atomicAdd(a.barrier, 1) == a.n * gridDim.x - 1)
        *a.barrier = 0;
}

template <int NT, int D>
__global__ void __launch_bounds__(SEVERAL_THREADS, 1) several_kernel(const __grid_constant__ struct several_args a)
{
#if __CUDA_ARCH__ >= 900
    SHARED_ROOM(memory);
    __shared__ __align__(alignof(struct several_block)) unsigned char block[sizeof(struct several_block)];
    struct several_block &s = *(struct several_block *)block;
    unsigned char *const acts = (unsigned char *)(((uintptr_t)memory + TMA_ATOM - 1) / TMA_ATOM * TMA_ATOM);
    unsigned char *const stages = acts + SeveralShape<NT, D>::ALL_ROWS; /* what is behind them attention has too */
    const uint32_t warp = threadIdx.x / 32;
    if (threadIdx.x < SEVERAL_SLOTS) {
        barrier_init(&s.b.full[threadIdx.x], 1);
        barrier_init(&s.b.rows[threadIdx.x], 1);
        barrier_init(&s.b.free[threadIdx.x], EVEN_GROUPS);
    } else if (threadIdx.x == 32) {
        barrier_init(&s.b.opened, 1);
        barrier_init(&s.b.normed, 32);
        barrier_init(&s.b.lent, SEVERAL_WARPS + 1); /* and who waits for it, which so is never two rounds behind */
        barrier_init(&s.b.done, 1);
    }
    barrier_publish();
    if (warp == 2)
        several_describe(a.program, &s.phase[0]);
    __syncthreads();
    if (warp < SEVERAL_WARPS) {
        warpgroup_registers_up<SEVERAL_WORK_REGISTERS>();
        several_work<NT, D>(a, s, stages, acts);
        return;
    }
    warpgroup_registers_down<SEVERAL_OTHER_REGISTERS>(); /* the others get the rest */
    if (threadIdx.x == EVEN_THREADS)
        several_weights<NT, D>(a, stages, s.b);
    else if (threadIdx.x == EVEN_THREADS + 32)
        several_rows<NT, D>(a, acts, s.b);
    else if (warp == SEVERAL_WARPS + 2)
        several_tell(a, s);
    else if (warp == SEVERAL_WARPS + 3)
        several_come<NT>(a, s.b);
#endif
}

#endif
