/* The work of attend_team.cu, whose comment says how it is done: one part of a context by a team of 4 warps. A block
 * may have several teams side by side (resident_several.cuh). */
#ifndef CUDA_ATTEND_TEAM_CUH
#define CUDA_ATTEND_TEAM_CUH

#include "cuda/attend_cache.cuh"

#define TEAM_WARPS   4
#define TEAM_THREADS (TEAM_WARPS * 32)
#define TEAM_SIDES   3 /* of a ring: groups of keys or of values */
#define TEAMS_MOST   2 /* of a block */

/* Positions of a group. */
constexpr int team_group(bool bytes, int head_dim)
{
    return head_dim * (bytes ? 1 : 2) <= 128 ? 32 : 16;
}

/* As attend_is_last, for a team. */
__device__ inline bool team_is_last(uint32_t *counter, uint32_t expected)
{
    __shared__ bool last[TEAMS_MOST];
    bool &mine = last[threadIdx.x / TEAM_THREADS];
    meet_team<TEAM_THREADS>();
    if (threadIdx.x % TEAM_THREADS == 0) {
        mine = add_ordered(counter, 1) == expected - 1;
        if (mine)
            *counter = 0;
    }
    meet_team<TEAM_THREADS>();
    return mine;
}

/* A warp's ring of its team's. */
template <int BYTES> __device__ __forceinline__ unsigned char *team_ring(unsigned char *rings)
{
    return rings + threadIdx.x / 32 % TEAM_WARPS * BYTES;
}

/* What a warp works on. */
struct team_work {
    struct batch_seq s;
    uint32_t kv_head, n_all; /* rows * query heads of it */
    uint32_t begin;          /* what lies before is behind every row's window, and may be gone */
    uint32_t first_part;     /* parts below it are wholly behind the window */
    uint32_t lo, hi;         /* positions of this warp, hi not included */
};

/* Where a warp has got to with asking. */
template <int N> struct team_ask {
    uint32_t p;
    const uint32_t *entry; /* of the block table, and the place of p in this block */
    uint32_t in_block;
    const unsigned char *from[N]; /* this group's */
};

template <class C, int D, int Q, int SIDES = TEAM_SIDES> struct Team {
    using T = typename C::Type;
    static constexpr int GROUP = team_group(C::BYTES, D), N = GROUP / 16, TILES = D / 16, CHUNKS = (D + 31) / 32;
    using Rows = CacheRows<C, D, GROUP>;
    using Ask = struct team_ask<N>;
    static_assert(SIDES % 2 == 1, "keys and values come by turns");
    static constexpr int WIDTH = D + 4; /* floats of a column that is shown: columns begin in banks of their own */
    static constexpr int SHOWN = 8 * Q * (WIDTH + 2) * 4, ASKED = SIDES * Rows::ROOM; /* bytes of a warp */
    static constexpr int RING = ((SHOWN > ASKED ? SHOWN : ASKED) + 127) / 128 * 128;

    /* A warp's share of a part; false when every row is past it. */
    static __device__ __forceinline__ bool work_of(
        const struct attend_job &j, const struct plan_item &item, uint32_t kv_head, uint32_t split, struct team_work &w)
    {
        const uint32_t first_pos = item.s.n_kv - item.s.n_rows, k = threadIdx.x / 32 % TEAM_WARPS;
        w.s = item.s;
        w.kv_head = kv_head;
        w.n_all = w.s.n_rows * j.per_kv;
        w.begin = j.window > 0 && first_pos + 1 > j.window ? first_pos + 1 - j.window : 0;
        w.first_part = w.begin / split;
        const uint32_t lo = max(item.part * split, w.begin / GROUP * GROUP);
        const uint32_t hi = min((item.part + 1) * split, w.s.n_kv), n = (hi - lo + GROUP - 1) / GROUP;
        w.lo = lo + n * k / TEAM_WARPS * GROUP;
        w.hi = min(hi, lo + n * (k + 1) / TEAM_WARPS * GROUP);
        return item.part >= w.first_part;
    }

    static __device__ __forceinline__ void ask_first(
        const struct attend_job &j, const struct team_work &w, const uint32_t *entry, Ask &ask)
    {
        const uint32_t block = w.lo / j.block_tokens;
        ask.p = w.lo;
        ask.entry = entry != NULL ? entry : j.table + w.s.table_at + block;
        ask.in_block = w.lo - block * j.block_tokens;
    }

    /* Of 16 positions, those that exist and are seen; the others are zeros, so that nothing foreign is touched. */
    static __device__ __forceinline__ uint32_t there(const struct team_work &w, uint32_t p)
    {
        return p < w.hi && (N == 1 || p + 16 > w.begin) ? w.hi - p : 0;
    }

    static __device__ __forceinline__ void bring(unsigned char *to, int n, const unsigned char *from, uint32_t there)
    {
        if (there >= 16)
            Rows::fetch(to, n, from, 16);
        else
            Rows::fetch(to, n, from, there);
    }

    static __device__ __forceinline__ void ask_keys(
        const struct attend_job &j, const struct team_work &w, unsigned char *to, Ask &ask)
    {
        if (ask.p < w.hi) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                const uint32_t n_there = there(w, ask.p + 16 * n);
                ask.from[n] = j.blocks + (uint64_t)w.kv_head * j.block_tokens * j.row_bytes;
                if (n_there > 0)
                    ask.from[n] += *ask.entry * j.block_bytes + ask.in_block * j.row_bytes;
                ask.in_block += 16;
                if (ask.in_block == j.block_tokens) {
                    ask.in_block = 0;
                    ask.entry++;
                }
                bring(to, n, ask.from[n] + j.k_at, n_there);
            }
        }
        copy_commit();
    }

    /* The values of the same group; then comes the next. */
    static __device__ __forceinline__ void ask_values(
        const struct attend_job &j, const struct team_work &w, unsigned char *to, Ask &ask)
    {
        if (ask.p < w.hi) {
#pragma unroll
            for (int n = 0; n < N; n++)
                bring(to, n, ask.from[n] + j.v_at, there(w, ask.p + 16 * n));
            ask.p += GROUP;
        }
        copy_commit();
    }

    static __device__ __forceinline__ void scores(
        const unsigned char *keys, const uint32_t q[D / 16][4], float s[N][Q][4])
    {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint32_t b[2][4];
                Rows::keys(keys, n, c, b);
#pragma unroll
                for (int k = 2 * c; k < 2 * c + 2 && k < TILES; k++)
#pragma unroll
                    for (int i = 0; i < Q; i++) {
                        const uint32_t *a = b[k % 2];
                        mma(T(), s[n][i], a[0], a[2], a[1], a[3], q[k][i], q[k][2 + i]);
                    }
            }
    }

    /* What a lane's two columns of each 8 do not see. */
    static __device__ __forceinline__ void hide(
        const struct attend_job &j, const struct batch_seq &rows, uint32_t p, float s[N][Q][4])
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < 2 * Q; i++) {
            const uint32_t end = rows.n_kv - rows.n_rows + (i / 2 * 8 + 2 * t + i % 2) / j.per_kv + 1;
            const uint32_t begin = j.window > 0 && end > j.window ? end - j.window : 0;
#pragma unroll
            for (int k = 0; k < 2 * N; k++) {
                float &x = s[k / 2][i / 2][k % 2 * 2 + i % 2];
                const uint32_t at = p + 8 * k + g;
                x = at >= begin && at < end ? x : -INFINITY;
            }
        }
    }

    static __device__ __forceinline__ bool all_see(const struct attend_job &j, const struct batch_seq &rows, uint32_t p)
    {
        return p + GROUP <= rows.n_kv - rows.n_rows + 1 && (j.window == 0 || p + j.window >= rows.n_kv);
    }

    /* Scores become weights in units of the largest so far. */
    static __device__ __forceinline__ void weigh(
        float factor, float s[N][Q][4], float top[2 * Q], float sum[2 * Q], float out[TILES][Q][4])
    {
        float most[2 * Q];
        bool grows = false;
#pragma unroll
        for (int i = 0; i < 2 * Q; i++) {
            most[i] = top[i];
#pragma unroll
            for (int k = 0; k < 2 * N; k++)
                most[i] = fmaxf(most[i], s[k / 2][i / 2][k % 2 * 2 + i % 2]);
            grows = grows || most[i] > top[i];
        }
        if (__any_sync(ALL_LANES, grows)) {
#pragma unroll
            for (int i = 0; i < 2 * Q; i++) {
                for (int step = 4; step < 32; step *= 2)
                    most[i] = fmaxf(most[i], __shfl_xor_sync(ALL_LANES, most[i], step));
                const float base = most[i] == -INFINITY ? 0.0f : most[i];
                const float shrink = exp2_fast((top[i] - base) * factor);
                top[i] = most[i];
                sum[i] *= shrink;
#pragma unroll
                for (int k = 0; k < TILES; k++) {
                    out[k][i / 2][i % 2] *= shrink;
                    out[k][i / 2][2 + i % 2] *= shrink;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * Q; i++) {
            const float base = top[i] == -INFINITY ? 0.0f : top[i] * factor;
#pragma unroll
            for (int k = 0; k < 2 * N; k++) {
                float &x = s[k / 2][i / 2][k % 2 * 2 + i % 2];
                x = exp2_fast(__fmaf_rn(x, factor, -base));
                sum[i] += x;
            }
        }
    }

    /* out += values x weights; there: positions from the group's first on that exist. */
    static __device__ __forceinline__ void mix(
        const unsigned char *values, uint32_t there, const float s[N][Q][4], float out[TILES][Q][4])
    {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t w[Q][2];
#pragma unroll
            for (int i = 0; i < 2 * Q; i++)
                w[i / 2][i % 2] = turn_matrix(pack2(T(), s[n][i / 2][i % 2 * 2], s[n][i / 2][i % 2 * 2 + 1]));
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                uint32_t b[2][4];
                Rows::values(values, n, c, there > 16 * n ? there - 16 * n : 0, b);
#pragma unroll
                for (int k = 2 * c; k < 2 * c + 2 && k < TILES; k++)
#pragma unroll
                    for (int i = 0; i < Q; i++) {
                        const uint32_t *a = b[k % 2];
                        mma(T(), out[k][i], a[0], a[2], a[1], a[3], w[i][0], w[i][1]);
                    }
            }
        }
    }

    /* Where pair r (of row and query head) of a tile lies, in rows of one head. */
    static __device__ __forceinline__ size_t place(
        const struct attend_job &j, uint32_t kv_head, uint32_t first, uint32_t r)
    {
        const uint32_t row = r < j.per_kv ? 0 : r / j.per_kv;
        return (size_t)(first + row) * j.n_heads + kv_head * j.per_kv + r - row * j.per_kv;
    }

    /* A warp's maxima, in units of log2, and sums. */
    static __device__ __forceinline__ void total(
        float factor, const float top[2 * Q], float most[2 * Q], float sum[2 * Q])
    {
#pragma unroll
        for (int i = 0; i < 2 * Q; i++) {
            most[i] = top[i] == -INFINITY ? -INFINITY : top[i] * factor;
            for (int step = 4; step < 32; step *= 2)
                sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], step);
        }
    }

    /* What a warp has, for the others. */
    static __device__ __forceinline__ void show(
        float *room, uint32_t n_all, const float most[2 * Q], const float sum[2 * Q], const float out[TILES][Q][4])
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2 * Q; i++)
            if (lane < 4)
                *(float2 *)(room + 8 * Q * WIDTH + 2 * (i / 2 * 8 + 2 * lane + i % 2)) = make_float2(most[i], sum[i]);
#pragma unroll
        for (int h = 0; h < 2 * Q; h++) {
            const uint32_t column = h / 2 * 8 + 2 * (lane % 4) + h % 2;
            float *to = room + column * WIDTH + lane / 4 * (C::BYTES ? 2 : 1); /* a tile's halves: every second one */
            if (column < n_all)
#pragma unroll
                for (int k = 0; k < TILES; k++) {
                    to[16 * k] = out[k][h / 2][h % 2];
                    to[16 * k + (C::BYTES ? 1 : 8)] = out[k][h / 2][2 + h % 2];
                }
        }
    }

    /* What the warps have, joined: the result where there is one part, else the part. */
    static __device__ __forceinline__ void join(
        const struct attend_job &j, const struct team_work &w, const struct plan_item &item, const unsigned char *rings)
    {
        const bool only = item.n_parts - w.first_part == 1;
        for (uint32_t i = threadIdx.x % TEAM_THREADS; i < w.n_all * (D / 4); i += TEAM_THREADS) {
            const uint32_t r = i / (D / 4), at = i % (D / 4) * 4;
            struct joined y = joined_nothing();
#pragma unroll
            for (int k = 0; k < TEAM_WARPS; k++) {
                const float *room = (const float *)(rings + k * RING);
                const float2 stat = *(const float2 *)(room + 8 * Q * WIDTH + 2 * r);
                joined_add(y, stat.x, stat.y, *(const float4 *)(room + r * WIDTH + at));
            }
            if (only) {
                act_put4(j.out, place(j, w.kv_head, w.s.first_row, r) * D + at, joined_result(y));
                continue;
            }
            const size_t slot = place(j, w.kv_head, item.slot + item.part * w.s.n_rows, r);
            *(float4 *)(j.parts + slot * D + at) = y.y;
            if (at == 0)
                *(float2 *)(j.part_sums + 2 * slot) = make_float2(y.most, y.sum);
        }
    }

    /* What begin asks for is older than the rows of this step, of which a sequence that is decoded has few. */
    static __device__ __forceinline__ bool is_old(const struct team_work &w)
    {
        return min(w.hi, w.lo + (SIDES + 1) / 2 * GROUP) + DECODE_PAIRS <= w.s.n_kv;
    }

    /* The ring is filled with the first of a warp's share. entry: where its part of the block table lies, NULL = in the
     * table. */
    static __device__ __forceinline__ void begin(const struct attend_job &j, const struct team_work &w,
        unsigned char *ring, Ask &ask, const uint32_t *entry = NULL)
    {
        ask_first(j, w, entry, ask);
        ask_keys(j, w, ring, ask);
#pragma unroll
        for (int i = 1; i < SIDES; i += 2) {
            ask_values(j, w, ring + i * Rows::ROOM, ask);
            ask_keys(j, w, ring + (i + 1) * Rows::ROOM, ask);
        }
    }

    /* The share, to its sums, which the warp shows to the others. */
    static __device__ __forceinline__ void stream(
        const struct attend_job &j, const struct team_work &w, unsigned char *ring, Ask &ask)
    {
        constexpr int ROOM = Rows::ROOM;
        uint32_t q[D / 16][4];
        float top[2 * Q], sum[2 * Q] = {}, out[TILES][Q][4] = {}, most[2 * Q];
        const float factor = j.cap > 0.0f ? 1.0f : j.scale * LOG2E;
        load_queries<C, D>(j, w.s.first_row, w.kv_head, w.n_all, q);
        for (int i = 0; i < 2 * Q; i++)
            top[i] = -INFINITY;
        uint32_t side = 0;
        for (uint32_t p = w.lo; p < w.hi; p += GROUP) {
            float s[N][Q][4] = {};
            unsigned char *here = ring + side * ROOM;
            copy_wait<SIDES - 1>();
            __syncwarp();
            scores(here, q, s);
            __syncwarp();
            ask_values(j, w, here, ask); /* of a later group: the number of sides is odd */
            if (j.cap > 0.0f)
                scale_scores<4 * N * Q>(j, &s[0][0][0]);
            if (!all_see(j, w.s, p))
                hide(j, w.s, p, s);
            weigh(factor, s, top, sum, out);
            side = side + 1 == SIDES ? 0 : side + 1;
            here = ring + side * ROOM;
            copy_wait<SIDES - 1>();
            __syncwarp();
            mix(here, w.hi - p, s, out);
            __syncwarp();
            ask_keys(j, w, here, ask);
            side = side + 1 == SIDES ? 0 : side + 1;
        }
        copy_wait<0>();
        total(factor, top, most, sum);
        __syncwarp();
        show((float *)ring, w.n_all, most, sum, out);
    }

    /* What the warps show becomes the result, or a part of it. By the whole team, when all of it have shown. */
    static __device__ __forceinline__ void finish(
        const struct attend_job &j, const struct team_work &w, const struct plan_item &item, const unsigned char *rings)
    {
        const uint32_t n_parts = item.n_parts - w.first_part;
        join(j, w, item, rings);
        if (n_parts > 1 && team_is_last(&j.arrived[item.counter * j.n_kv_heads + w.kv_head], n_parts))
            attend_join<TEAM_THREADS, D, 8>(j, item, w.kv_head, w.n_all, w.first_part);
    }
};

#endif
