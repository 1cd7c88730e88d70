/* Attention of sequences with few rows in fixed cuts, for --deterministic where attend_chunks.cu cannot be: a flash
 * kernel over parts of the context.
 *
 * A block takes one part (as many positions as the plan says, at a multiple of it) of one sequence and one kv head, for
 * all the query heads that share it: they are the rows of the matrix unit's tile, so keys and values are read once. Its
 * 4 warps take groups of 16 positions (32 of a cache of bytes, which is as many bytes) in turn, each through its own
 * double buffer in shared memory; at the end the warps' maxima, sums and outputs are joined in ascending order. Blocks
 * are as many as the chip holds and walk the plan.
 *
 * Parts of a sequence are joined by whichever block finishes last, in ascending order, so the order of arrival changes
 * no bit; the cuts belong to the sequence, and neither does the batch. */
#include "cuda/attend_cache.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define STAGES  2

template <int D> constexpr int BLOCKS = D <= 128 ? 3 : 1; /* of a multiprocessor */
template <class C, int D> constexpr int WHOLE_BLOCKS = D <= 128 ? (C::BYTES ? 2 : 3) : 1;

template <class C, int D> struct DecodeShape {
    static constexpr int N = C::BYTES ? 2 : 1, GROUP = 16 * N;     /* positions of a group */
    static constexpr int STAGE = 2 * CacheRows<C, D, GROUP>::ROOM; /* bytes */
    static constexpr size_t BYTES = (size_t)WARPS * STAGES * STAGE;
    static_assert(BYTES >= (size_t)WARPS * PACK * D * 4, "the warps' outputs are joined in the same room");
};

/* What a block works on. */
struct part_work {
    struct batch_seq s;
    const uint32_t *table;
    uint32_t lo, hi;         /* positions of this part, hi not included */
    uint32_t begin;          /* what lies before is behind every row's window, and may be gone */
    uint32_t kv_head, n_all; /* rows * query heads of it */
    uint32_t first_part;     /* parts below it are wholly behind the window */
};

template <class C, int D> struct Decode {
    using T = typename C::Type;
    using Shape = DecodeShape<C, D>;
    static constexpr int N = Shape::N, GROUP = Shape::GROUP, CHUNKS = (D + 31) / 32;
    using Rows = CacheRows<C, D, GROUP>;

    /* Of a group of 16, something; the first 16 of a part always are. */
    static __device__ __forceinline__ bool is_there(const struct part_work &w, uint32_t from)
    {
        return N == 1 || (from < w.hi && from + 16 > w.begin);
    }

    /* Ask for a group's keys and values; positions that do not exist are zeros, so that nothing foreign is touched. */
    static __device__ __forceinline__ void fetch(
        const struct attend_job &j, const struct part_work &w, unsigned char *to, uint32_t p)
    {
        if (p < w.hi) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const uint32_t from = p + 16 * n, there = is_there(w, from) ? w.hi - from : 0;
                const unsigned char *at = there > 0 ? position_at(j, w.table, w.kv_head, from) : j.blocks;
                Rows::fetch(to, n, at + j.k_at, there);
                Rows::fetch(to + Rows::ROOM, n, at + j.v_at, there);
            }
        }
        copy_commit();
    }

    static __device__ __forceinline__ void scores(
        const unsigned char *keys, const uint32_t q[D / 16][4], float s[2 * N][4])
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint32_t b[2][4];
                Rows::keys(keys, n, c, b);
#pragma unroll
                for (int k = 2 * c; k < 2 * c + 2 && k < D / 16; k++) {
                    mma(T(), s[2 * n], q[k][0], q[k][1], q[k][2], q[k][3], b[k % 2][0], b[k % 2][1]);
                    mma(T(), s[2 * n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[k % 2][2], b[k % 2][3]);
                }
            }
    }

    /* out += s x values; hi: the end of the positions that exist. */
    static __device__ __forceinline__ void mix(
        const unsigned char *values, uint32_t p, uint32_t hi, const float s[2 * N][4], float out[D / 8][4])
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t a0 = pack2(T(), s[2 * n][0], s[2 * n][1]), a1 = pack2(T(), s[2 * n][2], s[2 * n][3]);
            const uint32_t a2 = pack2(T(), s[2 * n + 1][0], s[2 * n + 1][1]);
            const uint32_t a3 = pack2(T(), s[2 * n + 1][2], s[2 * n + 1][3]);
            const uint32_t there = hi > p + 16 * n ? hi - (p + 16 * n) : 0;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                uint32_t b[2][4];
                Rows::values(values, n, c, there, b);
#pragma unroll
                for (int k = 2 * c; k < 2 * c + 2 && k < D / 16; k++) {
                    mma(T(), out[2 * k], a0, a1, a2, a3, b[k % 2][0], b[k % 2][1]);
                    mma(T(), out[2 * k + 1], a0, a1, a2, a3, b[k % 2][2], b[k % 2][3]);
                }
            }
        }
    }

    /* Fold a group from p into (top, sum, out). begin and end bound what rows g and g + 8 see. */
    static __device__ __forceinline__ void fold(const struct attend_job &j, const unsigned char *kv, uint32_t p,
        uint32_t hi, const uint32_t q[D / 16][4], const uint32_t begin[2], const uint32_t end[2], float top[2],
        float sum[2], float out[D / 8][4])
    {
        const uint32_t t = threadIdx.x % 4;
        float s[2 * N][4] = {}, shrink[2];
        scores(kv, q, s);
        scale_scores<8 * N>(j, &s[0][0]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = top[half];
#pragma unroll
            for (int i = 0; i < 4 * N; i++) {
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
            for (int i = 0; i < 4 * N; i++) {
                float &x = s[i / 2][2 * half + i % 2];
                x = exp2_fast(__fsub_rn(x, base));
                sum[half] = __fadd_rn(sum[half], x);
            }
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            out[n][0] *= shrink[0];
            out[n][1] *= shrink[0];
            out[n][2] *= shrink[1];
            out[n][3] *= shrink[1];
        }
        mix(kv + Rows::ROOM, p, hi, s, out);
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
            float *to = room + ((size_t)warp * PACK + r) * D;
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                const float *x = &out[2 * n][2 * half], *y = &out[2 * n + 1][2 * half];
                Rows::put4(to + 16 * n, x[0] * factor, x[1] * factor, y[0] * factor, y[1] * factor);
            }
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

template <int GROUP>
__device__ static bool work_of(
    const struct attend_job &j, const struct plan_item &item, uint32_t kv_head, uint32_t split, struct part_work &w)
{
    w.s = item.s;
    w.table = j.table + w.s.table_at;
    w.kv_head = kv_head;
    w.n_all = w.s.n_rows * j.per_kv;
    const uint32_t first_pos = w.s.n_kv - w.s.n_rows;
    w.begin = j.window > 0 && first_pos + 1 > j.window ? first_pos + 1 - j.window : 0;
    w.first_part = w.begin / split;
    w.lo = max(item.part * split, w.begin / GROUP * GROUP);
    w.hi = min((item.part + 1) * split, w.s.n_kv);
    return item.part >= w.first_part;
}

/* A part's results of the warps, in memory and stats. */
template <class C, int D>
__device__ void decode_part(
    const struct attend_job &j, const struct part_work &w, unsigned char *memory, float (*stats)[PACK][2])
{
    using S = Decode<C, D>;
    using Shape = DecodeShape<C, D>;
    constexpr int GROUP = Shape::GROUP;
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    unsigned char *mine = memory + (size_t)warp * STAGES * Shape::STAGE;
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
    load_queries<C, D>(j, w.s.first_row, w.kv_head, w.n_all, q);
    for (int stage = 0; p < w.hi; p += WARPS * GROUP, stage = (stage + 1) % STAGES) {
        copy_wait<STAGES - 1>();
        __syncwarp();
        S::fold(j, mine + stage * Shape::STAGE, p, w.hi, q, begin, end, top, sum, out);
        __syncwarp();
        S::fetch(j, w, mine + stage * Shape::STAGE, p + STAGES * WARPS * GROUP);
    }
    copy_wait<0>();
    S::share(top, sum, out, (float *)memory, stats, w.n_all);
}

template <class C, int D>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>) decode_kernel(const __grid_constant__ struct attend_job j)
{
    SHARED_ROOM(memory);
    __shared__ float stats[WARPS][PACK][2];
    look_ahead(j.ahead, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
    launch_wait();
    const uint32_t n = j.plan->n_items * j.n_kv_heads, split = j.plan->split;
    struct plan_item next = j.items[blockIdx.x / j.n_kv_heads]; /* whatever it is when there is none */
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct plan_item item = next;
        if (i + gridDim.x < n) /* on its way while this one is computed */
            next = j.items[(i + gridDim.x) / j.n_kv_heads];
        struct part_work w;
        if (!work_of<DecodeShape<C, D>::GROUP>(j, item, i % j.n_kv_heads, split, w))
            continue;
        decode_part<C, D>(j, w, (unsigned char *)memory, stats);
        write_part<D>(j, w, item, (const float *)memory, stats);
        const uint32_t n_parts = item.n_parts - w.first_part;
        if (n_parts > 1 && attend_is_last<THREADS>(&j.arrived[item.counter * j.n_kv_heads + w.kv_head], n_parts))
            attend_join<THREADS, D>(j, item, w.kv_head, w.n_all, w.first_part);
        __syncthreads(); /* the room and the stats are free again */
    }
}

/* A tile of rows and all parts of its context, one after the other: what decode_kernel's blocks do side by side. */
template <class C, int D>
__global__ void __launch_bounds__(THREADS, WHOLE_BLOCKS<C, D>) whole_kernel(const __grid_constant__ struct attend_job j)
{
    SHARED_ROOM(memory);
    __shared__ float stats[WARPS][PACK][2];
    constexpr int HELD = (PACK * (D / 4) + THREADS - 1) / THREADS;
    launch_wait();
    const uint32_t n = j.plan->n_tiles * j.n_kv_heads, split = j.plan->split, rows = PACK / j.per_kv;
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct plan_tile tile = j.tiles[i / j.n_kv_heads];
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
            if (!work_of<DecodeShape<C, D>::GROUP>(j, item, i % j.n_kv_heads, split, w))
                continue;
            decode_part<C, D>(j, w, (unsigned char *)memory, stats);
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

template <class C, int D> static void run(struct dev *d, const struct attend_job *j, bool whole)
{
    const size_t bytes = DecodeShape<C, D>::BYTES;
    cuda_launch(d, whole ? whole_kernel<C, D> : decode_kernel<C, D>, dim3(d->n_sms * BLOCKS<D>), THREADS, bytes, *j);
}

struct cut attend_cut(const struct dev *d, const struct attend_job *j)
{
    const uint32_t blocks = d->n_sms * (j->head_dim <= 128 ? BLOCKS<128> : BLOCKS<256>);
    return {blocks, j->n_kv_heads, attend_has_chunks(d, j) ? CHUNK : (uint32_t)SPLIT, attend_rows(PACK, j->per_kv), 0};
}

void attend_decode(struct dev *d, const struct batch *, const struct attend_job *j)
{
    attend_visit(j, [&](auto c, auto n) { run<decltype(c), decltype(n)::D>(d, j, false); });
}

void attend_whole(struct dev *d, const struct batch *, const struct attend_job *j)
{
    attend_visit(j, [&](auto c, auto n) { run<decltype(c), decltype(n)::D>(d, j, true); });
}
