/* Attention inside a resident kernel where a row's bits may not depend on the batch: the sums of attend_chunks.cuh, bit
 * for bit, for one row a sequence and heads of 64 and 128.
 *
 * A block takes a chunk of a sequence and a kv head. Each of its 8 warps scores 16 positions, whose keys go from memory
 * into registers; keys are the matrix unit's tall operand, the query heads its columns. The weights meet in shared
 * memory, and each warp has 16 elements of the head (heads of 64: four warps) over all positions, so that no sum is
 * cut. Its values come into registers too, two elements of four positions a step: nothing needs the ring's memory.
 *
 * Chunks of a sequence are joined ascending by the block that finishes last. Where there are more than dev.parts holds,
 * a block takes all chunks of a sequence and a kv head one after the other: the same bits. */
#ifndef CUDA_RESIDENT_CHUNKS_CUH
#define CUDA_RESIDENT_CHUNKS_CUH

#include "cuda/attend_chunks.cuh"
#include "cuda/resident.h"

#define CHUNK_RUNS    (CHUNK / 16) /* of 16 positions: one of a warp */
#define CHUNK_THREADS (CHUNK_RUNS * 32)
#define CHUNK_PITCH   164 /* floats between heads, and 40 between quarters: no two lanes meet in a bank */

/* What is the same in every layer. In shared memory. */
struct chunk_seqs {
    struct batch_seq s[RESIDENT_ROWS];
    uint32_t n_chunks[RESIDENT_ROWS];
    bool whole; /* all chunks of a sequence in one block */

    /* By one thread. */
    __device__ __forceinline__ void load(const struct batch_seq *from, uint32_t n)
    {
        uint32_t all = 0;
        for (uint32_t i = 0; i < RESIDENT_ROWS; i++) {
            s[i] = i < n ? from[i] : batch_seq{};
            n_chunks[i] = s[i].n_rows > 0 ? (s[i].n_kv + CHUNK - 1) / CHUNK : 0; /* padding has none */
            all += n_chunks[i];
        }
        whole = all > PARTS_MAX;
    }
    __device__ __forceinline__ uint32_t n_items(const struct attend_job &j) const
    {
        return (whole ? RESIDENT_ROWS : n_chunks[0] + n_chunks[1]) * j.n_kv_heads;
    }
};

/* Chunks part .. end-1 of a sequence and a kv head; those before `first` are behind the window, and may be gone. */
struct chunk_item {
    struct batch_seq s;
    uint32_t kv_head, part, end, first, begin, slot, n_chunks;

    __device__ __forceinline__ chunk_item(const struct attend_job &j, const struct chunk_seqs &all, uint32_t i)
    {
        static_assert(RESIDENT_ROWS == 2, "the first sequence or the second");
        uint32_t c = i / j.n_kv_heads;
        const bool second = all.whole ? c > 0 : c >= all.n_chunks[0];
        kv_head = i % j.n_kv_heads;
        s = all.s[second];
        slot = second ? all.n_chunks[0] : 0;
        n_chunks = all.n_chunks[second];
        c -= all.whole ? c : slot;
        begin = j.window > 0 && s.n_kv > j.window ? s.n_kv - j.window : 0;
        first = begin / CHUNK;
        part = all.whole ? first : c;
        end = all.whole ? n_chunks : c + 1;
    }
    __device__ __forceinline__ bool is_seen() const
    {
        return part >= first && part < end;
    }
    __device__ __forceinline__ bool is_all() const
    {
        return part == first && end == n_chunks;
    }
};

/* What the warps show each other. */
struct chunk_shared {
    const unsigned char *at[CHUNK_RUNS]; /* runs of 16 positions; NULL where there are none, or nobody looks */
    uint16_t weights[CHUNK_RUNS][32][4]; /* as the second product wants them */
    float exact[RESIDENT_HEADS * CHUNK_PITCH];
    float tops[CHUNK_RUNS][RESIDENT_HEADS], sums[RESIDENT_HEADS];
};

/* Where this warp's run of chunk `part` lies, for all. */
__device__ __forceinline__ const unsigned char *chunk_look(
    const struct attend_job &j, const struct chunk_item &item, uint32_t part, struct chunk_shared &room)
{
    const uint32_t warp = threadIdx.x / 32, from = part * CHUNK + 16 * warp;
    const bool there = from < item.s.n_kv && from + 16 > item.begin;
    const unsigned char *at = there ? position_at(j, j.table + item.s.table_at, item.kv_head, from) : NULL;
    if (threadIdx.x % 32 == 0)
        room.at[warp] = at;
    return at;
}

template <typename T, int D> struct ResidentChunk {
    static constexpr uint32_t COLUMNS = D / 16; /* warps that have some */
    uint32_t q[D / 16][2];
    float most[2], sum[2], out[4]; /* of heads 2t and 2t + 1: elements 2g, then 2g + 1 of the warp's 16 */

    /* Elements 4t .. 4t+3 of each 16 are the pairs 2t and 2t + 8 of the sum, for queries and keys alike. */
    __device__ __forceinline__ void load_q(const struct attend_job &j, const struct chunk_item &item)
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, head = item.kv_head * j.per_kv + g;
        const float *from = j.q + ((size_t)item.s.first_row * j.n_heads + (g < j.per_kv ? head : 0)) * D + 4 * t;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const float4 x = __ldcg((const float4 *)(from + 16 * i));
            q[i][0] = g < j.per_kv ? pack2(T(), x.x, x.y) : 0;
            q[i][1] = g < j.per_kv ? pack2(T(), x.z, x.w) : 0;
        }
    }

    static __device__ __forceinline__ void load_k(
        const struct attend_job &j, const unsigned char *at, uint2 k[2][D / 16])
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const uint2 none = make_uint2(0, 0);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < D / 16; i++) /* positions that do not exist are hidden behind the product */
                k[half][i] =
                    at != NULL ? __ldcg((const uint2 *)(at + j.k_at + (size_t)(g + 8 * half) * j.row_bytes) + 4 * i + t)
                               : none;
    }

    /* Elements 2g and 2g + 1 of the warp's 16, of positions 2t, 2t + 1, 2t + 8 and 2t + 9 of each run. */
    static __device__ __forceinline__ void load_v(
        const struct attend_job &j, const struct chunk_shared &room, uint32_t there, uint32_t v[CHUNK_RUNS][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < CHUNK_RUNS; n++) {
            const unsigned char *at = room.at[n];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t p = 2 * t + i % 2 + i / 2 * 8;
                v[n][i] = at != NULL && 16 * n + p < there
                              ? __ldcg((const uint32_t *)(at + j.v_at + (size_t)p * j.row_bytes) + 8 * warp + g)
                              : 0;
            }
        }
    }

    /* Scores of positions g and g + 8 of the warp's run; what the row does not see is hidden. The largest of each head,
     * for all. */
    __device__ __forceinline__ float score(const struct attend_job &j, const struct chunk_item &item, uint32_t from,
        const uint2 k[2][D / 16], struct chunk_shared &room, float s[4]) const
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < D / 16; i++)
            mma(T(), s, k[0][i].x, k[1][i].x, k[0][i].y, k[1][i].y, q[i][0], q[i][1]);
        const float factor = chunk_factor<4>(j, s);
        const uint32_t low = from + g, high = low + 8;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            s[c] = low >= item.begin && low < item.s.n_kv ? s[c] : -INFINITY;
            s[2 + c] = high >= item.begin && high < item.s.n_kv ? s[2 + c] : -INFINITY;
            float top = fmaxf(s[c], s[2 + c]);
            for (int lanes = 4; lanes < 32; lanes *= 2)
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, lanes));
            if (g == 0)
                room.tops[warp][2 * t + c] = top;
        }
        return factor;
    }

    /* The run's weights, for all: rounded, and as they are. */
    static __device__ __forceinline__ void weigh(
        struct chunk_shared &room, float factor, const float s[4], float top[2])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t head = 2 * t + c;
            float all = -INFINITY;
#pragma unroll
            for (int k = 0; k < CHUNK_RUNS; k++)
                all = fmaxf(all, room.tops[k][head]);
            top[c] = chunk_most(all, factor);
            const float base = top[c] == -INFINITY ? 0.0f : top[c];
            const float x = exp2_fast(__fmaf_rn(s[c], factor, -base)),
                        y = exp2_fast(__fmaf_rn(s[2 + c], factor, -base));
            const uint32_t both = pack2(T(), x, y);
            uint16_t *to = &room.weights[warp][4 * head + g / 2][g % 2];
            to[0] = (uint16_t)both;
            to[2] = (uint16_t)(both >> 16);
            float *exact = &room.exact[head * CHUNK_PITCH + warp / 2 * 40 + warp % 2 * 16 + g];
            exact[0] = x;
            exact[8] = y;
        }
    }

    /* The sums of weights as chunk_sum takes them, by four warps of two heads each: a lane has what a lane of four has
     * of a quarter. */
    static __device__ __forceinline__ void add_up(struct chunk_shared &room)
    {
        const uint32_t lane = threadIdx.x % 32, t = lane % 4, quarter = lane / 4 % 4;
        const uint32_t head = threadIdx.x / 32 % 4 * 2 + lane / 16;
        const float *from = &room.exact[head * CHUNK_PITCH + quarter * 40 + 2 * t];
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < CHUNK_QUARTER / 8; n++) {
            const float2 x = *(const float2 *)(from + 8 * n);
            sum = __fadd_rn(__fadd_rn(sum, x.x), x.y);
        }
        const int first = (int)(lane / 16 * 16 + t);
        const float all = chunk_sum(__shfl_sync(ALL_LANES, sum, first), __shfl_sync(ALL_LANES, sum, first + 4),
            __shfl_sync(ALL_LANES, sum, first + 8), __shfl_sync(ALL_LANES, sum, first + 12));
        if (lane % 16 == 0)
            room.sums[head] = all;
    }

    static __device__ __forceinline__ void mix(
        const struct chunk_shared &room, const uint32_t v[CHUNK_RUNS][4], float y[4])
    {
#pragma unroll
        for (int n = 0; n < CHUNK_RUNS; n++) {
            const uint2 w = *(const uint2 *)room.weights[n][threadIdx.x % 32];
            mma(T(), y, __byte_perm(v[n][0], v[n][1], 0x5410), __byte_perm(v[n][0], v[n][1], 0x7632),
                __byte_perm(v[n][2], v[n][3], 0x5410), __byte_perm(v[n][2], v[n][3], 0x7632), w.x, w.y);
        }
    }

    /* A chunk to what there is of those before it. */
    __device__ __forceinline__ void join(const float top[2], const struct chunk_shared &room, const float y[4])
    {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float old, fresh;
            chunk_shares(most[c], top[c], old, fresh);
            sum[c] = chunk_add(sum[c], old, room.sums[threadIdx.x % 4 * 2 + c], fresh);
            out[c] = chunk_add(out[c], old, y[c], fresh);
            out[2 + c] = chunk_add(out[2 + c], old, y[2 + c], fresh);
        }
    }

    /* at: where the warp's run lies, which all know. */
    __device__ __forceinline__ void fold(const struct attend_job &j, const struct chunk_item &item, uint32_t part,
        const unsigned char *at, struct chunk_shared &room)
    {
        const uint32_t warp = threadIdx.x / 32, lo = part * CHUNK;
        uint2 k[2][D / 16];
        uint32_t v[CHUNK_RUNS][4] = {};
        float s[4] = {}, y[4] = {}, top[2];
        load_k(j, at, k);
        const float factor = score(j, item, lo + 16 * warp, k, room, s);
        if (warp < COLUMNS)
            load_v(j, room, min(item.s.n_kv - lo, (uint32_t)CHUNK), v);
        meet<CHUNK_THREADS>();
        weigh(room, factor, s, top);
        meet<CHUNK_THREADS>();
        if (warp < COLUMNS)
            mix(room, v, y);
        if (warp >= CHUNK_RUNS / 2)
            add_up(room);
        meet<CHUNK_THREADS>();
        join(top, room, y);
    }

    /* The result where these are all chunks that are seen, else the part. */
    __device__ __forceinline__ void write(const struct attend_job &j, const struct chunk_item &item) const
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t head = item.kv_head * j.per_kv + 2 * t + c;
            if (2 * t + c >= j.per_kv || warp >= COLUMNS)
                continue;
            const size_t place = item.is_all() ? item.s.first_row : item.slot + item.part,
                         at = place * j.n_heads + head;
            if (item.is_all()) {
                const float inv = 1.0f / sum[c];
                act_put2(j.out, at * D + 16 * warp + 2 * g, out[c] * inv, out[2 + c] * inv);
                continue;
            }
            *(float2 *)(j.parts + at * D + 16 * warp + 2 * g) = make_float2(out[c], out[2 + c]);
            if (warp == 0 && g == 0)
                *(float2 *)(j.part_sums + 2 * at) = make_float2(most[c], sum[c]);
        }
    }

    /* known: where the warp's run of the first chunk lies is known to all, and it is `at`. */
    __device__ __forceinline__ void run(const struct attend_job &j, const struct chunk_item &item, bool known,
        const unsigned char *at, struct chunk_shared &room)
    {
        most[0] = most[1] = -INFINITY;
        sum[0] = sum[1] = out[0] = out[1] = out[2] = out[3] = 0.0f;
        load_q(j, item);
        for (uint32_t part = item.part; part < item.end; part++) {
            if (!known) {
                at = chunk_look(j, item, part, room);
                meet<CHUNK_THREADS>();
            }
            known = false;
            fold(j, item, part, at, room);
        }
        write(j, item);
        const uint32_t n = item.n_chunks - item.first;
        if (!item.is_all() &&
            attend_is_last<CHUNK_THREADS>(&j.arrived[item.s.first_row * j.n_kv_heads + item.kv_head], n)) {
            const struct plan_item parts = {item.s.first_row, item.part, item.n_chunks, item.slot, item.s};
            attend_join<CHUNK_THREADS, D, 8>(j, parts, item.kv_head, j.per_kv, item.first);
        }
    }
};

/* Ahead of the barrier: where the runs of the block's first chunk lie. They are asked for. */
__device__ __forceinline__ const unsigned char *resident_chunks_ahead(
    const struct attend_job &j, const struct chunk_seqs &seqs, struct chunk_shared &room)
{
    if (blockIdx.x >= seqs.n_items(j))
        return NULL;
    const struct chunk_item item(j, seqs, blockIdx.x);
    if (!item.is_seen())
        return NULL;
    const unsigned char *at = chunk_look(j, item, item.part, room);
    if (at != NULL && threadIdx.x % 32 < 2) {
        const struct ahead run = {at + (threadIdx.x % 32 == 0 ? j.k_at : j.v_at), (uint64_t)16 * j.row_bytes};
        look_ahead(run, 0, 1);
    }
    return at;
}

__device__ inline void resident_chunks_phase(
    const struct attend_job &j, const struct chunk_seqs &seqs, struct chunk_shared &room, const unsigned char *at)
{
    const uint32_t n = seqs.n_items(j);
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct chunk_item item(j, seqs, i);
        const bool known = i == blockIdx.x;
        if (!item.is_seen())
            continue;
        if (j.dtype == DTYPE_BF16 && j.head_dim == 128)
            ResidentChunk<__nv_bfloat16, 128>().run(j, item, known, at, room);
        else if (j.dtype == DTYPE_BF16)
            ResidentChunk<__nv_bfloat16, 64>().run(j, item, known, at, room);
        else if (j.head_dim == 128)
            ResidentChunk<__half, 128>().run(j, item, known, at, room);
        else
            ResidentChunk<__half, 64>().run(j, item, known, at, room);
    }
}

#endif
