/* Attention of sequences with few rows in chunks (attend_chunks.cuh), for --deterministic: what attend_wide.cu gives
 * bit for bit, for as many rows as a tile of the matrix unit holds.
 *
 * A block takes one chunk after the other of one sequence and one kv head, for all (row, query head) pairs of a tile.
 * Each of its 4 warps brings and scores a quarter of the keys; the weights then meet in shared memory, and each warp
 * has a quarter of the output's columns (heads of 64: two warps, a half) over all positions, so that no sum is ever
 * cut. While a warp goes on with its scores the next chunk's keys are on their way into the room that they have left,
 * and likewise the values.
 *
 * The chunks of a step lie one behind the other, those of a kv head of a sequence together, and are dealt out in
 * stretches, one to each block that the chip holds. A block that has a sequence's first chunk joins the others of its
 * stretch to it as they come; chunks behind a cut are written by themselves, since they can be joined only to all that
 * lies before them, and whoever ends the last stretch of a sequence does that. So the cuts, which depend on the batch,
 * change no bit, and where there are many sequences hardly anything but results is written. */
#include "cuda/attend_chunks.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)
#define RUNS    (CHUNK / 16 / WARPS) /* of 16 positions, of a warp */

/* Of a multiprocessor: as many as there is room for. */
template <class C> constexpr int BLOCKS = C::BYTES ? 4 : 3;

/* Where layers have a window many chunks lie behind it: short stretches, so that each block has its share of the rest.
 */
#define WINDOW_STRETCH 4

/* The chunk that a block works on: number `at` of all. */
struct chunk_work {
    uint32_t at, kv_head;
    struct plan_item item;

    /* Chunk 0 of this sequence and kv head, and the last. */
    __device__ __forceinline__ uint32_t first() const
    {
        return at - item.part;
    }
    __device__ __forceinline__ uint32_t last() const
    {
        return first() + item.n_parts - 1;
    }
    /* The chunk's positions, hi not included. */
    __device__ __forceinline__ uint32_t lo() const
    {
        return item.part * CHUNK;
    }
    __device__ __forceinline__ uint32_t hi() const
    {
        return min(lo() + CHUNK, item.s.n_kv);
    }
    /* What lies before is behind every row's window, and may be gone. */
    __device__ __forceinline__ uint32_t begin(const struct attend_job &j) const
    {
        const uint32_t first_pos = item.s.n_kv - item.s.n_rows;
        return j.window > 0 && first_pos + 1 > j.window ? first_pos + 1 - j.window : 0;
    }
    __device__ __forceinline__ uint32_t first_seen(const struct attend_job &j) const
    {
        return first() + begin(j) / CHUNK;
    }
    /* Rows * query heads of the kv head. */
    __device__ __forceinline__ uint32_t n_all(const struct attend_job &j) const
    {
        return item.s.n_rows * j.per_kv;
    }
};

/* How all chunks are dealt out. */
struct chunk_deal {
    uint32_t n, stretch;

    __device__ __forceinline__ uint32_t stretch_of(uint32_t at) const
    {
        return at / stretch;
    }
    __device__ __forceinline__ uint32_t end_of(uint32_t at) const
    {
        return min(n, (stretch_of(at) + 1) * stretch);
    }
};

__device__ static struct chunk_deal chunk_deal_of(const struct attend_job &j)
{
    const uint32_t n = j.plan->n_items * j.n_kv_heads, all = max((n + gridDim.x - 1) / gridDim.x, 1u);
    return {n, j.window > 0 ? min(all, (uint32_t)WINDOW_STRETCH) : all};
}

/* The chunk behind the end of a block's stretch is the first of its next one. */
__device__ __forceinline__ uint32_t chunk_behind(const struct chunk_deal &deal, uint32_t at)
{
    return at % deal.stretch == 0 ? at + (gridDim.x - 1) * deal.stretch : at;
}

/* From chunk w.at on, the first of this block's that some row sees; none when w.at ends as n or more. */
__device__ static void chunk_find(const struct attend_job &j, const struct chunk_deal &deal, struct chunk_work &w)
{
    while (w.at < deal.n) {
        const uint32_t i = w.at / j.n_kv_heads;
        w.item = j.items[i];
        const uint32_t behind = w.at - (i - w.item.part) * j.n_kv_heads; /* the sequence's first, of any kv head */
        w.kv_head = behind / w.item.n_parts;
        w.item.part = behind % w.item.n_parts;
        const uint32_t seen = w.first_seen(j), end = deal.end_of(w.at);
        if (w.at >= seen)
            break;
        w.at = seen < end ? seen : chunk_behind(deal, end);
    }
}

/* The chunk behind w: still of this sequence and kv head and in the same stretch (goes_on), or the block's next. */
__device__ __forceinline__ void chunk_next(
    const struct attend_job &j, const struct chunk_deal &deal, bool goes_on, struct chunk_work &w)
{
    w.at++;
    w.item.part++;
    if (goes_on)
        return;
    w.at = w.at < deal.n ? chunk_behind(deal, w.at) : deal.n;
    chunk_find(j, deal, w);
}

/* Where a warp's quarter of a chunk lies. */
struct chunk_runs {
    const unsigned char *at[RUNS];
    uint32_t there[RUNS]; /* positions, if more than 0; none where nobody looks */
};

/* What has come of a sequence so far. */
struct chunk_joined {
    float most[2], sum[2], out[4][4];
};

/* What the warps show each other. */
struct chunk_room {
    uint4 weights[CHUNK / 16][32]; /* as the second product wants them */
    float tops[WARPS][PACK];
    float2 sums[WARPS][32];
};

template <class C, int D> struct Chunks {
    using T = typename C::Type;
    using Rows = CacheRows<C, D, CHUNK>;
    static constexpr size_t BYTES = 2 * (size_t)Rows::ROOM;
    static constexpr int COLUMNS = D / 32; /* warps that have some */

    static __device__ __forceinline__ struct chunk_runs look(const struct attend_job &j, const struct chunk_work &w)
    {
        struct chunk_runs r;
#pragma unroll
        for (int k = 0; k < RUNS; k++) {
            const uint32_t from = w.lo() + 16 * (threadIdx.x / 32 * RUNS + k);
            r.there[k] = from < w.hi() && from + 16 > w.begin(j) ? w.hi() - from : 0;
            r.at[k] = r.there[k] > 0 ? position_at(j, j.table + w.item.s.table_at, w.kv_head, from) : j.blocks;
        }
        return r;
    }

    /* A warp asks for its quarter of the keys, or of the values. Of 16 positions those that do not exist are zeros;
     * where none is seen, whatever was there. */
    static __device__ __forceinline__ void fetch(const struct chunk_runs &r, unsigned char *to, uint64_t kind_at)
    {
#pragma unroll
        for (int k = 0; k < RUNS; k++)
            if (r.there[k] > 0)
                Rows::fetch(to, threadIdx.x / 32 * RUNS + k, r.at[k] + kind_at, r.there[k]);
        copy_commit();
    }

    /* Of this warp's quarter. */
    static __device__ __forceinline__ void scores(
        const unsigned char *keys, const uint32_t q[D / 16][4], float s[2 * RUNS][4])
    {
#pragma unroll
        for (int c = 0; c < D / 32; c++)
#pragma unroll
            for (int n = 0; n < RUNS; n++) {
                uint32_t b[2][4];
                Rows::keys(keys, threadIdx.x / 32 * RUNS + n, c, b);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t *a = q[2 * c + i];
                    mma(T(), s[2 * n], a[0], a[1], a[2], a[3], b[i][0], b[i][1]);
                    mma(T(), s[2 * n + 1], a[0], a[1], a[2], a[3], b[i][2], b[i][3]);
                }
            }
    }

    /* What rows g and g + 8 do not see; the largest that they do, of this warp's quarter, for all. */
    static __device__ __forceinline__ void hide(
        const struct attend_job &j, const struct chunk_work &w, struct chunk_room &room, float s[2 * RUNS][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t pos = w.item.s.n_kv - w.item.s.n_rows + (g + 8 * half) / j.per_kv;
            const uint32_t end = min(pos + 1, w.hi()),
                           begin = j.window > 0 && pos + 1 > j.window ? pos + 1 - j.window : 0;
            float top = -INFINITY;
#pragma unroll
            for (int n = 0; n < 2 * RUNS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = s[n][2 * half + i];
                    const uint32_t at = w.lo() + warp * CHUNK_QUARTER + 8 * n + 2 * t + i;
                    x = at >= begin && at < end ? x : -INFINITY;
                    top = fmaxf(top, x);
                }
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            if (t == 0)
                room.tops[warp][g + 8 * half] = top;
        }
    }

    /* The quarter's weights and their sums, for all. */
    static __device__ __forceinline__ void weigh(
        struct chunk_room &room, float factor, float s[2 * RUNS][4], float most[2])
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float sum[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY;
#pragma unroll
            for (int k = 0; k < WARPS; k++)
                top = fmaxf(top, room.tops[k][lane / 4 + 8 * half]);
            most[half] = chunk_most(top, factor);
            sum[half] = chunk_weigh(s, half, factor, most[half]);
        }
        room.sums[warp][lane] = make_float2(sum[0], sum[1]);
#pragma unroll
        for (int n = 0; n < RUNS; n++) {
            const float *x = s[2 * n], *y = s[2 * n + 1];
            room.weights[warp * RUNS + n][lane] = make_uint4(
                pack2(T(), x[0], x[1]), pack2(T(), x[2], x[3]), pack2(T(), y[0], y[1]), pack2(T(), y[2], y[3]));
        }
    }

    static __device__ __forceinline__ void mix_run(
        const unsigned char *values, const struct chunk_room &room, int k, uint32_t there, float out[4][4])
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const uint4 a = room.weights[k][lane];
        uint32_t b[2][4];
        Rows::values(values, k, warp, there, b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mma(T(), out[2 * i], a.x, a.y, a.z, a.w, b[i][0], b[i][1]);
            mma(T(), out[2 * i + 1], a.x, a.y, a.z, a.w, b[i][2], b[i][3]);
        }
    }

    /* This warp's 32 columns over all positions that are seen. */
    static __device__ __forceinline__ void mix(const struct attend_job &j, const struct chunk_work &w,
        const unsigned char *values, const struct chunk_room &room, float out[4][4])
    {
        if (w.hi() - w.lo() == CHUNK && w.begin(j) <= w.lo()) {
#pragma unroll
            for (int k = 0; k < CHUNK / 16; k++)
                mix_run(values, room, k, 16, out);
            return;
        }
#pragma unroll 1
        for (uint32_t k = w.begin(j) > w.lo() ? (w.begin(j) - w.lo()) / 16 : 0; w.lo() + 16 * k < w.hi(); k++)
            mix_run(values, room, (int)k, w.hi() - w.lo() - 16 * k, out);
    }

    /* A chunk to what there is of the chunks before it. */
    static __device__ __forceinline__ void join(
        struct chunk_joined &all, const float most[2], const float sum[2], const float out[4][4])
    {
        float old[2], fresh[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            chunk_shares(all.most[half], most[half], old[half], fresh[half]);
            all.sum[half] = chunk_add(all.sum[half], old[half], sum[half], fresh[half]);
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all.out[n][i] = chunk_add(all.out[n][i], old[i / 2], out[n][i], fresh[i / 2]);
    }

    /* The result where the block has all chunks of the sequence, else the part. */
    static __device__ __forceinline__ void write(
        const struct attend_job &j, const struct chunk_work &w, bool only, const struct chunk_joined &all)
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t r = g + 8 * half, head = w.kv_head * j.per_kv + r % j.per_kv;
            if (r >= w.n_all(j))
                continue;
            const size_t place =
                only ? w.item.s.first_row + r / j.per_kv : w.item.slot + w.item.part * w.item.s.n_rows + r / j.per_kv;
            const size_t slot = place * j.n_heads + head;
            const float inv = 1.0f / all.sum[half];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *x = &all.out[2 * i][2 * half], *y = &all.out[2 * i + 1][2 * half];
                const size_t at = slot * D + 32 * warp + 16 * i;
                if (only)
                    Rows::act4(j.out, at, x[0] * inv, x[1] * inv, y[0] * inv, y[1] * inv);
                else
                    Rows::put4(j.parts + at, x[0], x[1], y[0], y[1]);
            }
            if (!only && warp == 0 && t == 0)
                *(float2 *)(j.part_sums + 2 * slot) = make_float2(all.most[half], all.sum[half]);
        }
    }

    /* The block has done with the sequence: a result, or the last of what it knows of it, and perhaps of all. */
    static __device__ __forceinline__ void end(const struct attend_job &j, const struct chunk_deal &deal,
        const struct chunk_work &w, const struct chunk_joined &all)
    {
        const uint32_t seen = w.first_seen(j), n = deal.stretch_of(w.last()) - deal.stretch_of(seen) + 1;
        if (threadIdx.x / 32 < COLUMNS)
            write(j, w, n == 1, all);
        if (n > 1 && attend_is_last<THREADS>(&j.arrived[w.item.s.first_row * j.n_kv_heads + w.kv_head], n))
            attend_join<THREADS, D, 8>(j, w.item, w.kv_head, w.n_all(j), deal.end_of(seen) - 1 - w.first());
    }
};

template <class C, int D>
__global__ void __launch_bounds__(THREADS, BLOCKS<C>) chunk_kernel(const __grid_constant__ struct attend_job j)
{
    using S = Chunks<C, D>;
    SHARED_ROOM(memory);
    __shared__ struct chunk_room room;
    unsigned char *keys = (unsigned char *)memory, *values = keys + S::Rows::ROOM;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    look_ahead(j.ahead, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
    launch_wait();
    const struct chunk_deal deal = chunk_deal_of(j);
    struct chunk_work w = {blockIdx.x * deal.stretch}, next;
    chunk_find(j, deal, w);
    if (w.at >= deal.n)
        return;
    struct chunk_runs runs = S::look(j, w);
    S::fetch(runs, keys, j.k_at);
    S::fetch(runs, values, j.v_at);
    uint32_t q[D / 16][4];
    struct chunk_joined all = {};
    bool goes_on = false, joins = false; /* the first chunk that is seen, and so those behind it, lie in this stretch */
    uint32_t behind = 0;                 /* the end of the stretch, or of the sequence */
    for (; w.at < deal.n; w = next) {
        float s[2 * RUNS][4] = {}, most[2], sum[2], out[4][4] = {};
        if (!goes_on) {
            load_queries<C, D>(j, w.item.s.first_row, w.kv_head, w.n_all(j), q);
            joins = deal.stretch_of(w.at) == deal.stretch_of(w.first_seen(j));
            behind = min(deal.end_of(w.at), w.last() + 1);
        }
        if (!goes_on || !joins)
            all = {{-INFINITY, -INFINITY}};
        goes_on = w.at + 1 < behind;
        next = w;
        chunk_next(j, deal, goes_on, next);
        const bool more = next.at < deal.n;
        if (more)
            runs = S::look(j, next);
        copy_wait<1>();
        __syncwarp(); /* the quarter's keys are here */
        if (w.lo() + warp * CHUNK_QUARTER < w.hi())
            S::scores(keys, q, s);
        __syncwarp();
        if (more)
            S::fetch(runs, keys, j.k_at);
        else
            copy_commit();
        const float factor = chunk_factor<8 * RUNS>(j, &s[0][0]);
        S::hide(j, w, room, s);
        __syncthreads();
        S::weigh(room, factor, s, most);
        copy_wait<1>();
        __syncthreads(); /* all values are here, and all weights */
        if (warp < S::COLUMNS)
            S::mix(j, w, values, room, out);
        const float2 *quarter = &room.sums[0][lane];
        sum[0] = chunk_sum(quarter[0].x, quarter[32].x, quarter[64].x, quarter[96].x);
        sum[1] = chunk_sum(quarter[0].y, quarter[32].y, quarter[64].y, quarter[96].y);
        __syncthreads(); /* nobody reads them any more */
        if (more)
            S::fetch(runs, values, j.v_at);
        else
            copy_commit();
        S::join(all, most, sum, out);
        if (!goes_on)
            S::end(j, deal, w, all);
        else if (!joins && warp < S::COLUMNS)
            S::write(j, w, false, all);
    }
}

template <class C> static void run_size(struct dev *d, const struct attend_job *j)
{
    const dim3 blocks(d->n_sms * BLOCKS<C>);
    if (j->head_dim == 64)
        cuda_launch(d, chunk_kernel<C, 64>, blocks, THREADS, Chunks<C, 64>::BYTES, *j);
    else
        cuda_launch(d, chunk_kernel<C, 128>, blocks, THREADS, Chunks<C, 128>::BYTES, *j);
}

bool attend_has_chunks(const struct dev *d, const struct attend_job *j)
{
    return d->deterministic && d->chained && attend_wide_rows(d, j) > 0;
}

void attend_chunks(struct dev *d, const struct attend_job *j)
{
    switch (j->dtype) {
    case DTYPE_F16: run_size<CachePlain<__half>>(d, j); break;
    case DTYPE_F8_E4M3: run_size<CacheF8>(d, j); break;
    default: run_size<CachePlain<__nv_bfloat16>>(d, j); break;
    }
}
