/* Attention of sequences with few rows (decoding, or a few drafted tokens): a flash kernel over parts of the context.
 *
 * A block takes one part (SPLIT positions at a multiple of SPLIT) of one sequence and one kv head, for all the query
 * heads that share it: they are the rows of the matrix unit's tile, so keys and values are read once. Its 4 warps take
 * groups of 16 positions in turn, each through its own double buffer in shared memory; at the end the warps' maxima,
 * sums and outputs are joined in ascending order. Blocks are as many as the chip holds and walk the plan.
 *
 * Parts of a sequence are joined by whichever block finishes last, in ascending order: the cuts and the order belong to
 * the sequence, so neither the batch nor the order of arrival changes a bit. */
#include "cuda/attend.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define STAGES  2
#define GROUP   16 /* positions */

template <int D> struct DecodeShape {
    static constexpr int ROW = D + 8; /* elements; an odd number of 16 bytes, so that no two rows meet in a bank */
    static constexpr int STAGE = 2 * GROUP * ROW;
    static constexpr size_t BYTES = (size_t)WARPS * STAGES * STAGE * 2;
    static_assert(BYTES >= (size_t)WARPS * PACK * D * 4, "the warps' outputs are joined in the same room");
};

/* What a block works on. */
struct part_work {
    struct batch_seq s;
    const uint32_t *table;
    uint32_t lo, hi;         /* positions of this part, hi not included */
    uint32_t kv_head, n_all; /* rows * query heads of it */
    uint32_t first_part;     /* parts below it are wholly behind the window */
};

template <typename T, int D> struct Decode {
    using Shape = DecodeShape<D>;

    /* Ask for a group's keys and values; positions that do not exist are zeros, so that nothing foreign is touched. */
    static __device__ __forceinline__ void fetch(
        const struct attend_job &j, const struct part_work &w, T *to, uint32_t p)
    {
        const uint32_t lane = threadIdx.x % 32;
        if (p < w.hi) {
            const unsigned char *at = position_at(j, w.table, w.kv_head, p);
#pragma unroll
            for (int i = 0; i < GROUP * D / 8 / 32; i++) {
                const uint32_t c = lane + 32 * i, row = c / (D / 8), column = c % (D / 8) * 8;
                const bool there = p + row < w.hi;
                copy_async(to + row * Shape::ROW + column, at + j.k_at + (size_t)c * 16, there);
                copy_async(to + (GROUP + row) * Shape::ROW + column, at + j.v_at + (size_t)c * 16, there);
            }
        }
        copy_commit();
    }

    static __device__ __forceinline__ void load_q(
        const struct attend_job &j, const struct part_work &w, uint32_t q[D / 16][4])
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t r = g + 8 * half, row = w.s.first_row + r / j.per_kv;
            const float *from = j.q + ((size_t)row * j.n_heads + w.kv_head * j.per_kv + r % j.per_kv) * D + 2 * t;
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
                float2 lo = make_float2(0.0f, 0.0f), hi = lo;
                if (r < w.n_all) {
                    lo = *(const float2 *)(from + 16 * k);
                    hi = *(const float2 *)(from + 16 * k + 8);
                }
                q[k][half] = pack2(T(), lo.x, lo.y);
                q[k][2 + half] = pack2(T(), hi.x, hi.y);
            }
        }
    }

    /* Fold 16 positions from p into (top, sum, out). begin and end bound what rows g and g + 8 see. */
    static __device__ __forceinline__ void fold(const struct attend_job &j, const T *kv, uint32_t p,
        const uint32_t q[D / 16][4], const uint32_t begin[2], const uint32_t end[2], float top[2], float sum[2],
        float out[D / 8][4])
    {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4;
        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t b[4];
            load_matrices<false>(b, kv + (lane / 16 * 8 + lane % 8) * Shape::ROW + 16 * k + lane / 8 % 2 * 8);
            mma(T(), s[0], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
            mma(T(), s[1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
        }
        float shrink[2];
        scale_scores<8>(j, &s[0][0]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = top[half];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = s[i / 2][2 * half + i % 2];
                const uint32_t at = p + i / 2 * 8 + 2 * t + i % 2;
                x = at >= begin[half] && at < end[half] ? x : -INFINITY;
                most = fmaxf(most, x);
            }
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
            const float base = most == -INFINITY ? 0.0f : most;
            shrink[half] = exp2_fast(top[half] - base);
            top[half] = most;
            sum[half] = __fmul_rn(sum[half], shrink[half]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &x = s[i / 2][2 * half + i % 2];
                x = exp2_fast(__fsub_rn(x, base));
                sum[half] = __fadd_rn(sum[half], x);
            }
        }
        const uint32_t a0 = pack2(T(), s[0][0], s[0][1]), a1 = pack2(T(), s[0][2], s[0][3]);
        const uint32_t a2 = pack2(T(), s[1][0], s[1][1]), a3 = pack2(T(), s[1][2], s[1][3]);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][0] *= shrink[0];
            out[n][1] *= shrink[0];
            out[n][2] *= shrink[1];
            out[n][3] *= shrink[1];
        }
        const T *v = kv + GROUP * Shape::ROW;
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices<true>(b, v + (lane / 8 % 2 * 8 + lane % 8) * Shape::ROW + 16 * n + lane / 16 * 8);
            mma(T(), out[2 * n], a0, a1, a2, a3, b[0], b[1]);
            mma(T(), out[2 * n + 1], a0, a1, a2, a3, b[2], b[3]);
        }
    }

    /* The warps' results of a part into shared memory, scaled to their common maximum. Returns nothing: room[w][r][D]
     * and stats[w][r] = {maximum, sum}. */
    static __device__ __forceinline__ void share(
        float top[2], float sum[2], float out[D / 8][4], float *room, float (*stats)[PACK][2], uint32_t n_all)
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 1);
            sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 2);
            if (t == 0) {
                stats[warp][g + 8 * half][0] = top[half];
                stats[warp][g + 8 * half][1] = sum[half];
            }
        }
        __syncthreads(); /* also: nobody reads keys and values any more */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t r = g + 8 * half;
            if (r >= n_all)
                continue;
            float most = -INFINITY;
            for (int w = 0; w < WARPS; w++)
                most = fmaxf(most, stats[w][r][0]);
            const float factor = top[half] == -INFINITY ? 0.0f : exp2_fast(top[half] - most);
            float *to = room + ((size_t)warp * PACK + r) * D + 2 * t;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(to + 8 * n) = make_float2(out[n][2 * half] * factor, out[n][2 * half + 1] * factor);
        }
        __syncthreads();
    }
};

/* The common maximum of the warps for row r, and the sum relative to it. */
__device__ static void join_stats(float (*stats)[PACK][2], uint32_t r, float &most, float &sum)
{
    most = -INFINITY;
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, stats[w][r][0]);
    sum = 0.0f;
    for (int w = 0; w < WARPS; w++)
        sum = stats[w][r][0] == -INFINITY ? sum : __fmaf_rn(stats[w][r][1], exp2_fast(stats[w][r][0] - most), sum);
}

template <int D> __device__ static float4 sum_of_warps(const float *room, uint32_t r, uint32_t at)
{
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int k = 0; k < WARPS; k++) {
        const float4 x = *(const float4 *)(room + ((size_t)k * PACK + r) * D + at);
        y = make_float4(y.x + x.x, y.y + x.y, y.z + x.z, y.w + x.w);
    }
    return y;
}

/* Write what the block has: the result when there is one part, else the part. */
template <int D>
__device__ static void write_part(const struct attend_job &j, const struct part_work &w, const struct plan_item &item,
    const float *room, float (*stats)[PACK][2])
{
    const bool only = item.n_parts - w.first_part == 1;
    for (uint32_t i = threadIdx.x; i < w.n_all * (D / 4); i += THREADS) {
        const uint32_t r = i / (D / 4), at = i % (D / 4) * 4, head = w.kv_head * j.per_kv + r % j.per_kv;
        float most, sum;
        join_stats(stats, r, most, sum);
        const float4 y = sum_of_warps<D>(room, r, at);
        if (only) {
            struct joined all = joined_nothing();
            joined_add(all, most, sum, y);
            act_put4(j.out, ((size_t)(w.s.first_row + r / j.per_kv) * j.n_heads + head) * D + at, joined_result(all));
            continue;
        }
        const size_t slot = (size_t)(item.slot + item.part * w.s.n_rows + r / j.per_kv) * j.n_heads + head;
        *(float4 *)(j.parts + slot * D + at) = y;
        if (at == 0)
            *(float2 *)(j.part_sums + 2 * slot) = make_float2(most, sum);
    }
}

__device__ static bool work_of(
    const struct attend_job &j, const struct plan_item &item, uint32_t kv_head, uint32_t split, struct part_work &w)
{
    w.s = item.s;
    w.table = j.table + w.s.table_at;
    w.kv_head = kv_head;
    w.n_all = w.s.n_rows * j.per_kv;
    const uint32_t first_pos = w.s.n_kv - w.s.n_rows;
    const uint32_t begin = j.window > 0 && first_pos + 1 > j.window ? first_pos + 1 - j.window : 0;
    w.first_part = begin / split;
    w.lo = max(item.part * split, begin / GROUP * GROUP);
    w.hi = min((item.part + 1) * split, w.s.n_kv);
    return item.part >= w.first_part;
}

/* A part's results of the warps, in memory and stats. */
template <typename T, int D>
__device__ void decode_part(const struct attend_job &j, const struct part_work &w, T *memory, float (*stats)[PACK][2])
{
    using S = Decode<T, D>;
    using Shape = DecodeShape<D>;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    T *mine = memory + (size_t)warp * STAGES * Shape::STAGE;
    uint32_t q[D / 16][4], begin[2], end[2];
    float out[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (int half = 0; half < 2; half++) {
        const uint32_t pos = w.s.n_kv - w.s.n_rows + (g + 8 * half) / j.per_kv;
        end[half] = min(pos + 1, w.hi);
        begin[half] = j.window > 0 && pos + 1 > j.window ? pos + 1 - j.window : 0;
    }
    /* Groups are a warp's by their place in the context, so that what a tile begins with changes no sum. */
    uint32_t p = w.lo / (WARPS * GROUP) * (WARPS * GROUP) + warp * GROUP;
    p += p < w.lo ? WARPS * GROUP : 0;
    for (int i = 0; i < STAGES; i++)
        S::fetch(j, w, mine + i * Shape::STAGE, p + i * WARPS * GROUP);
    S::load_q(j, w, q);
    for (int stage = 0; p < w.hi; p += WARPS * GROUP, stage = (stage + 1) % STAGES) {
        copy_wait<STAGES - 1>();
        __syncwarp();
        S::fold(j, mine + stage * Shape::STAGE, p, q, begin, end, top, sum, out);
        __syncwarp();
        S::fetch(j, w, mine + stage * Shape::STAGE, p + STAGES * WARPS * GROUP);
    }
    copy_wait<0>();
    S::share(top, sum, out, (float *)memory, stats, w.n_all);
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS) decode_kernel(const __grid_constant__ struct attend_job j)
{
    SHARED_ROOM(memory);
    __shared__ float stats[WARPS][PACK][2];
    look_ahead(j.ahead, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
    launch_wait();
    const uint32_t n = j.plan->n_items * j.n_kv_heads, split = j.plan->split;
    struct plan_item next = j.plan->items[blockIdx.x / j.n_kv_heads]; /* whatever it is when there is none */
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct plan_item item = next;
        if (i + gridDim.x < n) /* on its way while this one is computed */
            next = j.plan->items[(i + gridDim.x) / j.n_kv_heads];
        struct part_work w;
        if (!work_of(j, item, i % j.n_kv_heads, split, w))
            continue;
        decode_part<T, D>(j, w, (T *)memory, stats);
        write_part<D>(j, w, item, (const float *)memory, stats);
        const uint32_t n_parts = item.n_parts - w.first_part;
        if (n_parts > 1 && attend_is_last<THREADS>(&j.arrived[item.counter * j.n_kv_heads + w.kv_head], n_parts))
            attend_join<THREADS, D>(j, item, w.kv_head, w.n_all, w.first_part);
        __syncthreads(); /* the room and the stats are free again */
    }
}

/* A tile of rows and all parts of its context, one after the other: what decode_kernel's blocks do side by side. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS) whole_kernel(const __grid_constant__ struct attend_job j)
{
    SHARED_ROOM(memory);
    __shared__ float stats[WARPS][PACK][2];
    constexpr int HELD = (PACK * (D / 4) + THREADS - 1) / THREADS;
    launch_wait();
    const uint32_t n = j.plan->n_tiles * j.n_kv_heads, split = j.plan->split, rows = PACK / j.per_kv;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct plan_tile tile = j.plan->tiles[i / j.n_kv_heads];
        const struct batch_seq s = j.seqs[tile.seq];
        const uint32_t n_rows = min(rows, s.n_rows - tile.first);
        struct plan_item item = {};
        item.s = {s.first_row + tile.first, n_rows, s.n_kv - (s.n_rows - tile.first - n_rows), s.table_at};
        item.n_parts = (item.s.n_kv + split - 1) / split;
        struct joined held[HELD];
        for (int h = 0; h < HELD; h++)
            held[h] = joined_nothing();
        struct part_work w;
        for (; item.part < item.n_parts; item.part++) {
            if (!work_of(j, item, i % j.n_kv_heads, split, w))
                continue;
            decode_part<T, D>(j, w, (T *)memory, stats);
#pragma unroll
            for (int h = 0; h < HELD; h++) {
                const uint32_t at = threadIdx.x + h * THREADS, r = at / (D / 4);
                float most, sum;
                if (r < w.n_all) {
                    join_stats(stats, r, most, sum);
                    joined_add(held[h], most, sum, sum_of_warps<D>((const float *)memory, r, at % (D / 4) * 4));
                }
            }
            __syncthreads(); /* the room and the stats are free again */
        }
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const uint32_t at = threadIdx.x + h * THREADS, r = at / (D / 4);
            const uint32_t head = w.kv_head * j.per_kv + r % j.per_kv;
            if (r < w.n_all)
                act_put4(j.out, ((size_t)(item.s.first_row + r / j.per_kv) * j.n_heads + head) * D + at % (D / 4) * 4,
                    joined_result(held[h]));
        }
    }
}

template <typename T, int D> static void run(struct dev *d, const struct attend_job *j, bool whole)
{
    const size_t bytes = DecodeShape<D>::BYTES;
    const uint32_t per_sm = D <= 128 ? 3 : 1;
    cuda_launch(d, whole ? whole_kernel<T, D> : decode_kernel<T, D>, dim3(d->n_sms * per_sm), THREADS, bytes, *j);
}

template <typename T> static void run_size(struct dev *d, const struct attend_job *j, bool whole)
{
    switch (j->head_dim) {
    case 64: run<T, 64>(d, j, whole); break;
    case 80: run<T, 80>(d, j, whole); break;
    case 96: run<T, 96>(d, j, whole); break;
    case 128: run<T, 128>(d, j, whole); break;
    default: run<T, 256>(d, j, whole); break;
    }
}

void attend_decode(struct dev *d, const struct batch *, const struct attend_job *j)
{
    if (j->dtype == DTYPE_F16)
        run_size<__half>(d, j, false);
    else
        run_size<__nv_bfloat16>(d, j, false);
}

void attend_whole(struct dev *d, const struct batch *, const struct attend_job *j)
{
    if (j->dtype == DTYPE_F16)
        run_size<__half>(d, j, true);
    else
        run_size<__nv_bfloat16>(d, j, true);
}
