/* Attention inside a resident kernel: one row a sequence, heads of 64 and 128.
 *
 * Warps take groups of 16 positions of a part in turn, and keys and values go from memory into registers: nothing waits
 * for the ring of weights, and no shared memory is needed but for the join. Keys are the matrix unit's tall operand (16
 * positions), the query heads its columns; a lane holds 8 neighbouring elements of a key, which is an order of k like
 * any other. Values are the tall operand of the second product, an element of the head a row: two positions' words give
 * a pair for two elements. The weights between turn by a transposition of registers.
 *
 * What a block's first item needs of the cache is asked for before the barrier that the phase waits for: each warp's
 * first group comes into its registers, all but the newest position, which the phase before writes; the next one comes
 * into the second-level cache.
 *
 * Parts of a sequence are joined by the block that finishes last, as in attend_team.cu. */
#ifndef CUDA_RESIDENT_ATTEND_CUH
#define CUDA_RESIDENT_ATTEND_CUH

#include "cuda/formats.cuh"
#include "cuda/resident.h"

/* What a warp has of a part: columns are heads 2t and 2t + 1. */
template <int D> struct Held {
    float top[2], sum[2], out[D / 16][4];
};

/* A group of 16 positions of the cache: where it lies, and what a lane has of it. */
template <int D> struct Group {
    const unsigned char *at; /* NULL = nothing was asked for */
    uint4 k[2][D / 32], v[4][D / 64];
};

template <typename T, int D> struct Small {
    /* Keys and values of the 16 positions at `at`, from p on; those that do not exist are the first of the group, and
     * weigh nothing. Of them those that are wanted(position). */
    template <class Wanted>
    static __device__ __forceinline__ void load(
        const struct attend_job &j, const unsigned char *at, uint32_t p, uint32_t end, Group<D> &to, Wanted &&wanted)
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = p + g + 8 * half < end ? g + 8 * half : 0;
            if (wanted(p + row))
#pragma unroll
                for (int i = 0; i < D / 32; i++)
                    to.k[half][i] = load_past(at + j.k_at + (size_t)row * j.row_bytes + (32 * i + 8 * t) * 2);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t which = 2 * t + i % 2 + i / 2 * 8, row = p + which < end ? which : 0;
            if (wanted(p + row))
#pragma unroll
                for (int h = 0; h < D / 64; h++)
                    to.v[i][h] = load_past(at + j.v_at + (size_t)row * j.row_bytes + (64 * h + 8 * g) * 2);
        }
    }

    /* The query heads as columns: pairs of the elements that a lane's keys have. */
    static __device__ __forceinline__ void load_q(
        const struct attend_job &j, uint32_t row, uint32_t kv_head, uint32_t q[D / 32][4])
    {
        const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const float *from = j.q + ((size_t)row * j.n_heads + kv_head * j.per_kv + (g < j.per_kv ? g : 0)) * D + 8 * t;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float4 a = __ldcg((const float4 *)(from + 32 * i)), b = __ldcg((const float4 *)(from + 32 * i + 4));
            const bool there = g < j.per_kv;
            q[i][0] = there ? pack2(T(), a.x, a.y) : 0;
            q[i][1] = there ? pack2(T(), a.z, a.w) : 0;
            q[i][2] = there ? pack2(T(), b.x, b.y) : 0;
            q[i][3] = there ? pack2(T(), b.z, b.w) : 0;
        }
    }

    static __device__ __forceinline__ void fold(const struct attend_job &j, uint32_t p, uint32_t begin, uint32_t end,
        const uint32_t q[D / 32][4], const Group<D> &group, Held<D> &h)
    {
        const uint32_t g = threadIdx.x % 32 / 4;
        const auto &k = group.k;
        const auto &v = group.v;
        float s[4] = {};
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            mma(T(), s, k[0][i].x, k[1][i].x, k[0][i].y, k[1][i].y, q[i][0], q[i][1]);
            mma(T(), s, k[0][i].z, k[1][i].z, k[0][i].w, k[1][i].w, q[i][2], q[i][3]);
        }
        scale_scores<4>(j, s);
        float shrink[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const bool low = p + g >= begin && p + g < end, high = p + g + 8 >= begin && p + g + 8 < end;
            s[c] = low ? s[c] : -INFINITY;
            s[2 + c] = high ? s[2 + c] : -INFINITY;
            float most = fmaxf(h.top[c], fmaxf(s[c], s[2 + c]));
            for (int lanes = 4; lanes < 32; lanes *= 2)
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lanes));
            const float base = most == -INFINITY ? 0.0f : most;
            shrink[c] = exp2_fast(h.top[c] - base);
            h.top[c] = most;
            s[c] = exp2_fast(s[c] - base);
            s[2 + c] = exp2_fast(s[2 + c] - base);
            h.sum[c] = h.sum[c] * shrink[c] + s[c] + s[2 + c];
        }
        const uint32_t b0 = turn_matrix(pack2(T(), s[0], s[1])), b1 = turn_matrix(pack2(T(), s[2], s[3]));
#pragma unroll
        for (int half = 0; half < D / 64; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float *o = h.out[4 * half + i];
                o[0] *= shrink[0];
                o[1] *= shrink[1];
                o[2] *= shrink[0];
                o[3] *= shrink[1];
                const uint32_t w0 = word_of(v[0][half], i), w1 = word_of(v[1][half], i);
                const uint32_t w2 = word_of(v[2][half], i), w3 = word_of(v[3][half], i);
                mma(T(), o, __byte_perm(w0, w1, 0x5410), __byte_perm(w0, w1, 0x7632), __byte_perm(w2, w3, 0x5410),
                    __byte_perm(w2, w3, 0x7632), b0, b1);
            }
    }

    /* The warps' results side by side: room[warp][head][D], stats[warp][head] = {maximum, sum}. */
    static __device__ __forceinline__ void share(Held<D> &h, uint32_t per_kv, float *room, float *stats)
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t head = 2 * t + c;
            for (int lanes = 4; lanes < 32; lanes *= 2)
                h.sum[c] += __shfl_xor_sync(ALL_LANES, h.sum[c], lanes);
            if (head >= per_kv)
                continue;
            if (g == 0) {
                stats[(warp * RESIDENT_HEADS + head) * 2] = h.top[c];
                stats[(warp * RESIDENT_HEADS + head) * 2 + 1] = h.sum[c];
            }
            float *to = room + ((size_t)warp * per_kv + head) * D + 8 * g;
#pragma unroll
            for (int half = 0; half < D / 64; half++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    *(float2 *)(to + 64 * half + 2 * i) =
                        make_float2(h.out[4 * half + i][c], h.out[4 * half + i][2 + c]);
        }
    }
};

/* Add the warps' results, ascending: the result when there is one part, else the part. */
template <int WARPS, int D>
__device__ void write_small(const struct attend_job &j, const struct plan_item &item, uint32_t kv_head, bool only,
    const float *room, const float *stats)
{
    for (uint32_t i = threadIdx.x; i < j.per_kv * (D / 4); i += WARPS * 32) {
        const uint32_t r = i / (D / 4), at = i % (D / 4) * 4, head = kv_head * j.per_kv + r;
        float most = -INFINITY, sum = 0.0f;
        for (int w = 0; w < WARPS; w++)
            most = fmaxf(most, stats[(w * RESIDENT_HEADS + r) * 2]);
        float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int w = 0; w < WARPS; w++) {
            const float top = stats[(w * RESIDENT_HEADS + r) * 2];
            if (top == -INFINITY)
                continue;
            const float f = exp2_fast(top - most);
            const float4 x = *(const float4 *)(room + ((size_t)w * j.per_kv + r) * D + at);
            sum += stats[(w * RESIDENT_HEADS + r) * 2 + 1] * f;
            y = make_float4(y.x + x.x * f, y.y + x.y * f, y.z + x.z * f, y.w + x.w * f);
        }
        if (only) {
            const float inv = 1.0f / sum;
            y = make_float4(y.x * inv, y.y * inv, y.z * inv, y.w * inv);
            act_put4(j.out, ((size_t)item.s.first_row * j.n_heads + head) * D + at, y);
            continue;
        }
        const size_t slot = (size_t)(item.slot + item.part) * j.n_heads + head;
        *(float4 *)(j.parts + slot * D + at) = y;
        if (at == 0)
            *(float2 *)(j.part_sums + 2 * slot) = make_float2(most, sum);
    }
}

/* Positions of an item: what its sequence sees from `begin` on, what the item has of it, and the warp's first group. */
struct reach {
    uint32_t begin, lo, hi, p;
    __device__ __forceinline__ reach(const struct attend_job &j, const struct plan_item &item, uint32_t split)
    {
        const uint32_t end = item.s.n_kv;
        begin = j.window > 0 && end > j.window ? end - j.window : 0;
        lo = max(item.part * split, begin / 16 * 16);
        hi = min((item.part + 1) * split, end);
        p = lo + threadIdx.x / 32 * 16;
    }
};

/* group: what there is of the warp's first one. */
template <int WARPS, typename T, int D>
__device__ __forceinline__ void attend_item(const struct attend_job &j, const struct plan_item &item, uint32_t kv_head,
    uint32_t split, Group<D> &group, float *room, float *stats)
{
    using S = Small<T, D>;
    const struct reach r(j, item, split);
    const uint32_t first_part = r.begin / split;
    if (item.part < first_part)
        return;
    const uint32_t *table = j.table + item.s.table_at, newest = item.s.n_kv - 1;
    uint32_t q[D / 32][4];
    Held<D> h = {};
    h.top[0] = h.top[1] = -INFINITY;
    S::load_q(j, item.s.first_row, kv_head, q);
    for (uint32_t p = r.p; p < r.hi; p += WARPS * 16) {
        if (group.at != NULL)
            S::load(j, group.at, p, r.hi, group, [&](uint32_t at) { return at == newest; });
        else
            S::load(j, position_at(j, table, kv_head, p), p, r.hi, group, [](uint32_t) { return true; });
        group.at = NULL;
        S::fold(j, p, r.begin, r.hi, q, group, h);
    }
    S::share(h, j.per_kv, room, stats);
    meet<WARPS * 32>();
    const uint32_t n_parts = item.n_parts - first_part;
    write_small<WARPS, D>(j, item, kv_head, n_parts == 1, room, stats);
    if (n_parts > 1 && attend_is_last<WARPS * 32>(&j.arrived[item.counter * j.n_kv_heads + kv_head], n_parts))
        attend_join<WARPS * 32, D>(j, item, kv_head, j.per_kv, first_part);
    meet<WARPS * 32>();
}

/* What is the same in every layer: the block's first item. In shared memory. */
struct attend_first {
    uint32_t n_items, split;
    struct plan_item item;
};

/* By one thread. */
__device__ inline void attend_first_load(const struct attend_job &j, struct attend_first *first)
{
    first->n_items = j.plan->n_items;
    first->split = j.plan->split;
    first->item = j.items[min(blockIdx.x / j.n_kv_heads, PARTS_MAX - 1)];
}

/* Ahead of the barrier: the warp's first group of the cache is asked for, and so is the one behind it. */
template <int WARPS, typename T, int D>
__device__ __forceinline__ void attend_ahead(
    const struct attend_job &j, const struct attend_first &first, Group<D> &group)
{
    group = {};
    if (blockIdx.x >= first.n_items * j.n_kv_heads)
        return;
    const struct reach r(j, first.item, first.split);
    if (r.p >= r.hi)
        return;
    const uint32_t *table = j.table + first.item.s.table_at, kv_head = blockIdx.x % j.n_kv_heads;
    const uint32_t newest = first.item.s.n_kv - 1;
    group.at = position_at(j, table, kv_head, r.p);
    Small<T, D>::load(j, group.at, r.p, r.hi, group, [&](uint32_t at) { return at != newest; });
    if (r.p + WARPS * 16 >= r.hi)
        return;
    const unsigned char *next = position_at(j, table, kv_head, r.p + WARPS * 16);
    for (uint32_t i = threadIdx.x % 32 * 128; i < 16 * j.row_bytes; i += 32 * 128) {
        prefetch_line(next + j.k_at + i);
        prefetch_line(next + j.v_at + i);
    }
}

template <int WARPS, typename T, int D, class Open>
__device__ __forceinline__ void attend_items(
    const struct attend_job &j, unsigned char *room, const struct attend_first &first, Open &&open)
{
    float *stats = (float *)room, *joined = stats + WARPS * RESIDENT_HEADS * 2;
    const uint32_t n = first.n_items * j.n_kv_heads, split = first.split;
    Group<D> group;
    attend_ahead<WARPS, T>(j, first, group);
    __syncwarp(); /* lanes that asked for less are here already, and a meeting is of whole warps */
    open();
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        const struct plan_item item = i == blockIdx.x ? first.item : j.items[i / j.n_kv_heads];
        attend_item<WARPS, T>(j, item, i % j.n_kv_heads, split, group, joined, stats);
    }
}

/* open() waits for the barrier in front of the phase. */
template <int WARPS, class Open>
__device__ __forceinline__ void resident_attend_phase(
    const struct attend_job &j, unsigned char *room, const struct attend_first &first, Open &&open)
{
    if (j.dtype == DTYPE_BF16 && j.head_dim == 128)
        attend_items<WARPS, __nv_bfloat16, 128>(j, room, first, open);
    else if (j.dtype == DTYPE_BF16)
        attend_items<WARPS, __nv_bfloat16, 64>(j, room, first, open);
    else if (j.head_dim == 128)
        attend_items<WARPS, __half, 128>(j, room, first, open);
    else
        attend_items<WARPS, __half, 64>(j, room, first, open);
}

#endif
