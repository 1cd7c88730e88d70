/* Attention inside a resident kernel where a row's bits may not depend on the batch: the sums of attend_chunks.cuh, bit
 * for bit, for one row a sequence and heads of 64 and 128.
 *
 * A block takes one chunk after the other of a sequence and a kv head. Each of its 8 warps scores 16 positions, whose
 * keys go from memory into registers; keys are the matrix unit's tall operand, the query heads its columns. The weights
 * meet in shared memory, and each warp has 16 elements of the head (heads of 64: four warps) over all positions, so
 * that no sum is cut. Its values come into registers too, two elements of four positions a step: nothing needs the
 * ring's memory. The next chunk's keys are asked for when these have been multiplied, and likewise the values; those
 * of the chunk behind it come into the second-level cache, in long pieces.
 *
 * Chunks that are seen lie one behind the other, those of a kv head of a sequence together, and are dealt out and
 * joined as in attend_chunks.cu: in stretches, a sequence's first one joined as it comes, the others by who ends last.
 * Where there are more than dev.parts holds, a stretch is all of a sequence and a kv head: the same bits. */
#ifndef CUDA_RESIDENT_CHUNKS_CUH
#define CUDA_RESIDENT_CHUNKS_CUH

#include "cuda/attend_chunks.cuh"
#include "cuda/resident.h"

static_assert(RESIDENT_HEADS * 128 / 4 <= CHUNK / 16 * 32, "a thread for each four neighbours of all heads");

#define CHUNK_RUNS    (CHUNK / 16) /* of 16 positions: one of a warp */
#define CHUNK_THREADS (CHUNK_RUNS * 32)
#define CHUNK_PARTS   8   /* that are asked for at once where they are joined */
#define CHUNK_PITCH   164 /* floats between heads, and 40 between quarters: no two lanes meet in a bank */

/* What is the same in every layer. In shared memory. */
struct chunk_seqs {
    struct batch_seq s[RESIDENT_ROWS];
    uint32_t n_chunks[RESIDENT_ROWS];
    uint32_t most; /* of all sequences, that are written side by side */

    /* By one thread. */
    __device__ __forceinline__ void load(const struct batch_seq *from, uint32_t n, uint32_t parts_max)
    {
        for (uint32_t i = 0; i < RESIDENT_ROWS; i++) {
            s[i] = i < n ? from[i] : batch_seq{};
            n_chunks[i] = s[i].n_rows > 0 ? (s[i].n_kv + CHUNK - 1) / CHUNK : 0; /* padding has none */
        }
        most = parts_max;
    }
};

/* How the chunks of a layer are dealt out: those of a sequence from item `base` on, `pitch` items a kv head. */
struct chunk_deal {
    struct {
        uint32_t begin, first, n_seen; /* what lies before is behind the window, and may be gone: positions, chunks */
        uint32_t base, pitch, slot;    /* slot: of its first part in dev.parts */
    } of[RESIDENT_ROWS];
    uint32_t n, stretch;

    __device__ __forceinline__ chunk_deal(const struct attend_job &j, const struct chunk_seqs &seqs)
    {
        uint32_t all = 0, widest = 1;
#pragma unroll
        for (uint32_t i = 0; i < RESIDENT_ROWS; i++) {
            const uint32_t end = seqs.s[i].n_kv;
            of[i].begin = j.window > 0 && end > j.window ? end - j.window : 0;
            of[i].first = of[i].begin / CHUNK;
            of[i].n_seen = seqs.n_chunks[i] > of[i].first ? seqs.n_chunks[i] - of[i].first : 0;
            of[i].slot = all;
            all += of[i].n_seen;
            widest = max(widest, of[i].n_seen);
        }
        const bool whole = all > seqs.most;
        n = 0;
#pragma unroll
        for (uint32_t i = 0; i < RESIDENT_ROWS; i++) {
            of[i].base = n;
            of[i].pitch = whole ? widest : of[i].n_seen;
            n += of[i].pitch * j.n_kv_heads;
        }
        stretch = whole ? widest : max((n + gridDim.x - 1) / gridDim.x, 1u);
    }
};

/* A chunk that a block works on: number `item` of all, `left` of them to the end of the stretch. */
struct chunk_at {
    uint32_t item, left, seq, kv_head, part;

    /* From item on, the first of this block's; false where there is none. */
    __device__ __forceinline__ bool find(const struct chunk_deal &deal)
    {
        static_assert(RESIDENT_ROWS == 2, "the first sequence or the second");
        while (item < deal.n) {
            seq = item >= deal.of[1].base;
            const auto &one = deal.of[0], &two = deal.of[1]; /* which may lie in registers */
            const uint32_t behind = item - (seq ? two.base : 0), pitch = seq ? two.pitch : one.pitch;
            const uint32_t k = behind % pitch;
            kv_head = behind / pitch;
            part = (seq ? two.first : one.first) + k;
            left = deal.stretch - item % deal.stretch;
            if (k < (seq ? two.n_seen : one.n_seen))
                return true;
            item += left + (gridDim.x - 1) * deal.stretch; /* behind a sequence that is not the longest */
        }
        return false;
    }
    /* The n-th behind it is of the same sequence and kv head, and in the same stretch. */
    __device__ __forceinline__ bool goes_on(const struct chunk_seqs &seqs, uint32_t n) const
    {
        return left > n && part + n < seqs.n_chunks[seq];
    }
    __device__ __forceinline__ void go_on()
    {
        item++;
        left--;
        part++;
    }
    /* The block's next one behind a stretch, or behind a sequence and kv head. */
    __device__ __forceinline__ bool next(const struct chunk_deal &deal)
    {
        item += left > 1 ? 1 : 1 + (gridDim.x - 1) * deal.stretch;
        return find(deal);
    }
};

/* The chunks of a sequence and a kv head: in how many stretches they lie, whether this is the first of those, and what
 * part the first is, all of whose chunks are joined in the place of its last. */
struct chunk_share {
    uint32_t n, joined;
    bool is_first;

    __device__ __forceinline__ chunk_share(const struct chunk_deal &deal, const struct chunk_at &at)
    {
        const uint32_t begin = deal.of[at.seq].base + at.kv_head * deal.of[at.seq].pitch, first = begin / deal.stretch;
        n = (begin + deal.of[at.seq].n_seen - 1) / deal.stretch - first + 1;
        joined = (first + 1) * deal.stretch - begin - 1;
        is_first = at.item < (first + 1) * deal.stretch;
    }
};

#define CHUNK_QUERY(D) ((D)*2 + 32) /* bytes from a head's to the next: four heads' lanes meet in no bank */

/* What the warps show each other. */
struct chunk_shared {
    uint2 q[RESIDENT_HEADS * CHUNK_QUERY(128) / 8];
    const unsigned char *at[3][CHUNK_RUNS]; /* runs of 16 positions: of this chunk, the next, and the one behind it */
    uint16_t weights[CHUNK_RUNS][32][4];    /* as the second product wants them */
    float exact[RESIDENT_HEADS * CHUNK_PITCH];
    float tops[CHUNK_RUNS][RESIDENT_HEADS], sums[RESIDENT_HEADS];
};

/* Where this warp's run of a chunk lies, for all; it is asked for. Where there is none, or nobody looks, it is the
 * nearest one: what comes from there is worth nothing. */
__device__ __forceinline__ const unsigned char *chunk_look(const struct attend_job &j, const struct batch_seq &s,
    uint32_t begin, uint32_t kv_head, uint32_t part, const unsigned char **all)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, from = part * CHUNK + 16 * warp;
    const uint32_t there = min(max(from, begin / 16 * 16), (s.n_kv - 1) / 16 * 16);
    const unsigned char *at = position_at(j, j.table + s.table_at, kv_head, there);
    if (lane == 0)
        all[warp] = at;
    if (lane < 2) {
        const struct ahead run = {at + (lane == 0 ? j.k_at : j.v_at), (uint64_t)16 * j.row_bytes};
        look_ahead(run, 0, 1);
    }
    return at;
}

template <typename T, int D> struct ResidentChunk {
    static constexpr uint32_t COLUMNS = D / 16; /* warps that have some */
    float most[2], sum[2], out[4];              /* of heads 2t and 2t + 1: elements 2g, then 2g + 1 of the warp's 16 */

    /* The queries: four neighbours of a head are a thread's, from memory and for all. */
    static __device__ __forceinline__ float4 load_q(
        const struct attend_job &j, const struct chunk_seqs &seqs, const struct chunk_at &c)
    {
        const uint32_t head = threadIdx.x / (D / 4), at = threadIdx.x % (D / 4) * 4;
        const size_t row = (size_t)seqs.s[c.seq].first_row * j.n_heads + c.kv_head * j.per_kv;
        return head < j.per_kv ? __ldcg((const float4 *)(j.q + (row + head) * D + at)) : make_float4(0, 0, 0, 0);
    }
    static __device__ __forceinline__ void put_q(struct chunk_shared &room, float4 q)
    {
        const uint32_t head = threadIdx.x / (D / 4), at = threadIdx.x % (D / 4);
        if (head < RESIDENT_HEADS)
            room.q[head * CHUNK_QUERY(D) / 8 + at] = make_uint2(pack2(T(), q.x, q.y), pack2(T(), q.z, q.w));
    }

    static __device__ __forceinline__ void load_k(
        const struct attend_job &j, const unsigned char *at, uint2 k[2][D / 16])
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const unsigned char *row = at + j.k_at + g * j.row_bytes + 8 * t;
#pragma unroll
        for (int half = 0; half < 2; half++, row += 8 * j.row_bytes)
#pragma unroll
            for (int i = 0; i < D / 16; i++)
                k[half][i] = __ldcg((const uint2 *)(row + 32 * i));
    }

    /* Elements 2g and 2g + 1 of the warp's 16, of positions 2t, 2t + 1, 2t + 8 and 2t + 9 of each run. `there` of the
     * chunk exist; in place of others comes the first of the run. */
    static __device__ __forceinline__ void load_v(
        const struct attend_job &j, const unsigned char *const *all, uint32_t there, uint32_t v[CHUNK_RUNS][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const uint32_t last = (there - 1) / 16, column = 32 * warp + 4 * g;
        uint32_t to[4], to_last[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t p = 2 * t + i % 2 + i / 2 * 8;
            to[i] = p * j.row_bytes + column;
            to_last[i] = 16 * last + p < there ? to[i] : column;
        }
#pragma unroll
        for (uint32_t n = 0; n < CHUNK_RUNS; n++) {
            const unsigned char *at = all[n] + j.v_at;
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[n][i] = __ldcg((const uint32_t *)(at + (n < last ? to[i] : to_last[i])));
        }
    }

    /* Scores of positions g and g + 8 of the warp's run, which begins `from`; what the row does not see is hidden. The
     * largest of each head, for all. Elements 4t .. 4t+3 of each 16 are the pairs 2t and 2t + 8 of the sum, for queries
     * and keys alike. */
    static __device__ __forceinline__ float score(const struct attend_job &j, uint32_t from, uint32_t begin,
        uint32_t end, const uint2 k[2][D / 16], struct chunk_shared &room, float s[4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const uint2 q = room.q[g * CHUNK_QUERY(D) / 8 + 4 * i + t];
            mma(T(), s, k[0][i].x, k[1][i].x, k[0][i].y, k[1][i].y, q.x, q.y);
        }
        const float factor = chunk_factor<4>(j, s);
        const uint32_t low = from + g, high = low + 8;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            s[c] = low >= begin && low < end ? s[c] : -INFINITY;
            s[2 + c] = high >= begin && high < end ? s[2 + c] : -INFINITY;
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

    __device__ __forceinline__ void begin()
    {
        most[0] = most[1] = -INFINITY;
        sum[0] = sum[1] = out[0] = out[1] = out[2] = out[3] = 0.0f;
    }

    /* The result where the block has all chunks that are seen, else the part. */
    __device__ __forceinline__ void write(const struct attend_job &j, const struct chunk_seqs &seqs,
        const struct chunk_deal &deal, const struct chunk_at &at, bool only) const
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t head = at.kv_head * j.per_kv + 2 * t + c;
            if (2 * t + c >= j.per_kv || warp >= COLUMNS)
                continue;
            const uint32_t part = deal.of[at.seq].slot + at.part - deal.of[at.seq].first;
            const size_t place = (size_t)(only ? seqs.s[at.seq].first_row : part) * j.n_heads + head;
            if (only) {
                const float inv = 1.0f / sum[c];
                act_put2(j.out, place * D + 16 * warp + 2 * g, out[c] * inv, out[2 + c] * inv);
                continue;
            }
            *(float2 *)(j.parts + place * D + 16 * warp + 2 * g) = make_float2(out[c], out[2 + c]);
            if (warp == 0 && g == 0)
                *(float2 *)(j.part_sums + 2 * place) = make_float2(most[c], sum[c]);
        }
    }

    /* The parts of a sequence and kv head, ascending; several are asked for at once, since behind a ring of weights on
     * their way each answer takes a thousand cycles and more. */
    static __device__ __forceinline__ void join_parts(const struct attend_job &j, const struct chunk_deal &deal,
        const struct chunk_at &at, const struct chunk_share &share, uint32_t row)
    {
        const uint32_t i = threadIdx.x, head = at.kv_head * j.per_kv + i / (D / 4), column = i % (D / 4) * 4;
        const uint32_t n = deal.of[at.seq].n_seen, slot = deal.of[at.seq].slot;
        if (i >= j.per_kv * (D / 4))
            return;
        struct joined y = joined_nothing();
        for (uint32_t p = share.joined; p < n; p += CHUNK_PARTS) {
            float2 stat[CHUNK_PARTS];
            float4 x[CHUNK_PARTS];
#pragma unroll
            for (int k = 0; k < CHUNK_PARTS; k++) {
                const size_t place = (size_t)(slot + min(p + k, n - 1)) * j.n_heads + head;
                stat[k] = __ldcg((const float2 *)(j.part_sums + 2 * place));
                x[k] = __ldcg((const float4 *)(j.parts + place * D + column));
            }
#pragma unroll
            for (int k = 0; k < CHUNK_PARTS; k++)
                if (p + k < n)
                    joined_add(y, stat[k].x, stat[k].y, x[k]);
        }
        act_put4(j.out, ((size_t)row * j.n_heads + head) * D + column, joined_result(y));
    }

    /* The block has done with the sequence and kv head: a result, or the last of what it knows of it, and perhaps of
     * all. */
    __device__ __forceinline__ void end(const struct attend_job &j, const struct chunk_seqs &seqs,
        const struct chunk_deal &deal, const struct chunk_at &at, const struct chunk_share &share) const
    {
        const uint32_t row = seqs.s[at.seq].first_row;
        write(j, seqs, deal, at, share.n == 1);
        if (share.n == 1 || !attend_is_last<CHUNK_THREADS>(&j.arrived[row * j.n_kv_heads + at.kv_head], share.n))
            return;
        join_parts(j, deal, at, share, row);
    }

    /* A chunk, whose keys and values are on their way. Those of the next one, where there is one, are asked for as soon
     * as there is room for them: own is where the warp's run of it lies, next_at says it of all. */
    __device__ __forceinline__ void fold(const struct attend_job &j, const struct batch_seq &s, uint32_t begin,
        uint32_t part, const unsigned char *own, const unsigned char *const *next_at, struct chunk_shared &room,
        uint2 k[2][D / 16], uint32_t v[CHUNK_RUNS][4])
    {
        const uint32_t warp = threadIdx.x / 32, lo = part * CHUNK;
        float x[4] = {}, y[4] = {}, top[2];
        const float factor = score(j, lo + 16 * warp, begin, s.n_kv, k, room, x);
        if (own != NULL)
            load_k(j, own, k);
        meet<CHUNK_THREADS>();
        weigh(room, factor, x, top);
        meet<CHUNK_THREADS>();
        if (warp < COLUMNS) {
            mix(room, v, y);
            if (own != NULL)
                load_v(j, next_at, s.n_kv - lo - CHUNK, v);
        }
        if (warp >= CHUNK_RUNS / 2)
            add_up(room);
        meet<CHUNK_THREADS>();
        join(top, room, y);
    }

    /* The chunks of one sequence and kv head that lie in a stretch, from `at` on, which ends as the last of them. own:
     * where the warp's run lies; room.at[0] says it of all. */
    __device__ __forceinline__ void run(const struct attend_job &j, const struct chunk_seqs &seqs,
        const struct chunk_deal &deal, struct chunk_at &at, const unsigned char *own, struct chunk_shared &room)
    {
        const struct batch_seq &s = seqs.s[at.seq];
        uint2 k[2][D / 16];
        uint32_t v[CHUNK_RUNS][4] = {};
        const float4 q = load_q(j, seqs, at);
        load_k(j, own, k);
        if (threadIdx.x / 32 < COLUMNS)
            load_v(j, room.at[0], s.n_kv - at.part * CHUNK, v);
        const uint32_t behind_window = deal.of[at.seq].begin;
        const unsigned char *next = NULL;
        if (at.goes_on(seqs, 1))
            next = chunk_look(j, s, behind_window, at.kv_head, at.part + 1, room.at[1]);
        const struct chunk_share share(deal, at);
        begin();
        put_q(room, q);
        meet<CHUNK_THREADS>();
        for (uint32_t side = 0;; side = (side + 1) % 3) {
            const unsigned char *const now = next;
            next = NULL;
            if (at.goes_on(seqs, 2))
                next = chunk_look(j, s, behind_window, at.kv_head, at.part + 2, room.at[(side + 2) % 3]);
            fold(j, s, behind_window, at.part, now, room.at[(side + 1) % 3], room, k, v);
            if (now == NULL)
                break;
            if (!share.is_first) {
                write(j, seqs, deal, at, false);
                begin();
            }
            at.go_on();
        }
        end(j, seqs, deal, at, share);
    }
};

/* What the phase is told ahead of the barrier. In shared memory, beside what the warps show each other. */
struct chunk_ahead {
    struct chunk_shared room;
    struct chunk_deal deal;
};

/* A block's first chunk, if it has one, and where the warp's run of it lies. */
struct chunk_first {
    struct chunk_at at;
    const unsigned char *own;
    bool has;
};

/* Ahead of the barrier: how the chunks are dealt out, and where the block's first lies. */
__device__ __forceinline__ struct chunk_first resident_chunks_ahead(
    const struct attend_job &j, const struct chunk_seqs &seqs, struct chunk_ahead &shared)
{
    const struct chunk_deal deal(j, seqs);
    struct chunk_first first = {{blockIdx.x * deal.stretch, 0, 0, 0, 0}, NULL, false};
    if (threadIdx.x == 0)
        shared.deal = deal;
    first.has = first.at.find(deal);
    if (!first.has)
        return first;
    const struct batch_seq &s = seqs.s[first.at.seq];
    const uint32_t begin = first.at.seq ? deal.of[1].begin : deal.of[0].begin;
    first.own = chunk_look(j, s, begin, first.at.kv_head, first.at.part, shared.room.at[0]);
    return first;
}

static __device__ __noinline__ void resident_chunks_phase(
    const struct attend_job &j, const struct chunk_seqs &seqs, struct chunk_ahead &shared, struct chunk_first first)
{
    const struct chunk_deal &deal = shared.deal;
    struct chunk_at &at = first.at;
    for (bool more = first.has; more;) {
        if (j.dtype == DTYPE_BF16 && j.head_dim == 128)
            ResidentChunk<__nv_bfloat16, 128>().run(j, seqs, deal, at, first.own, shared.room);
        else if (j.dtype == DTYPE_BF16)
            ResidentChunk<__nv_bfloat16, 64>().run(j, seqs, deal, at, first.own, shared.room);
        else if (j.head_dim == 128)
            ResidentChunk<__half, 128>().run(j, seqs, deal, at, first.own, shared.room);
        else
            ResidentChunk<__half, 64>().run(j, seqs, deal, at, first.own, shared.room);
        more = at.next(deal);
        if (!more)
            break;
        first.own = chunk_look(j, seqs.s[at.seq], deal.of[at.seq].begin, at.kv_head, at.part, shared.room.at[0]);
        meet<CHUNK_THREADS>();
    }
}

#endif
