/* The kernel behind skinny.h. A block takes tiles of 16 output rows, one after the other; its 8 warps share k between
 * them in slices, each warp multiplies 16 weights rows with up to 8 * NT activation rows on the matrix unit (weights as
 * the 16-row operand, so one row of activations costs what eight do), and the 8 sums are joined in ascending order in
 * shared memory.
 *
 * Order of float operations for one output: warp w adds the slices w*F .. w*F+F-1 of each round of 8*F, ascending,
 * F being the format's flight (1 for more than 8 rows); the warps' sums are added ascending. It depends on the shape of
 * the matrix alone, not on the rows of the batch.
 *
 * Weights are asked for before launch_wait: nobody writes them, so their first bytes travel while the kernel before
 * this one ends. */
#ifndef CUDA_SKINNY_CUH
#define CUDA_SKINNY_CUH

#include "cuda/formats.cuh"
#include "cuda/skinny.h"

#define SKINNY_WARPS   8
#define SKINNY_THREADS (SKINNY_WARPS * 32)
#define SKINNY_STRIDE  20 /* floats between columns of sums: no two lanes meet in a bank */

/* ---- which rows a tile has -----------------------------------------------------------------------------------------
 */

/* Pair i of the heads q, k, v behind each other: the two rows that rope turns together, or two neighbours. */
__device__ __forceinline__ void head_rows(const struct skinny_heads &h, uint32_t i, uint32_t &a, uint32_t &b)
{
    const uint32_t half_head = h.head_dim / 2, head = i / half_head, at = i % half_head, turned = h.rope_dims / 2;
    const bool is_v = head >= h.n_heads + h.n_kv_heads;
    uint32_t lo = 2 * at, hi = 2 * at + 1;
    if (h.rope == ROPE_HALVES && !is_v && at < turned) {
        lo = at;
        hi = at + turned;
    }
    a = head * h.head_dim + lo;
    b = head * h.head_dim + hi;
}

/* The two matrix rows of lane group p (0..7) of a tile; the first of w0, the second of w0 or, for GLU, of w1. */
__device__ __forceinline__ void tile_rows(
    const struct skinny_job &j, uint32_t tile, uint32_t p, uint32_t &a, uint32_t &b)
{
    if (j.end == SKINNY_GLU)
        a = b = 8 * tile + p;
    else if (j.end == SKINNY_QKV) {
        head_rows(j.heads, j.heads.first_row / 2 + 8 * tile + p, a, b);
        a -= j.heads.first_row;
        b -= j.heads.first_row;
    } else {
        a = 16 * tile + p;
        b = a + 8;
    }
}

/* ---- what is done with the sums ------------------------------------------------------------------------------------
 */

__device__ __forceinline__ float finished(const struct skinny_job &j, float y)
{
    y *= j.scale;
    return j.cap > 0.0f ? j.cap * tanhf(y / j.cap) : y;
}

/* What an end needs beside the sums of a pair of outputs; loaded apart, so that it can be asked for early. */
struct end_in {
    float scale_a, scale_b; /* F8 */
    float a, b;             /* bias, and what is added to */
    float cos, sin;         /* QKV */
    uint32_t slot;
};

/* Which head a row of q, k, v belongs to: part 0, 1, 2 and the head within it. */
__device__ __forceinline__ uint32_t head_of(const struct skinny_heads &h, uint32_t row, uint32_t &local)
{
    const uint32_t head = row / h.head_dim, k_at = h.n_heads, v_at = h.n_heads + h.n_kv_heads;
    local = head < k_at ? head : head < v_at ? head - k_at : head - v_at;
    return head < k_at ? 0 : head < v_at ? 1 : 2;
}

__device__ __forceinline__ bool is_turned(const struct skinny_heads &h, uint32_t part, uint32_t lo, uint32_t &turn)
{
    turn = h.rope == ROPE_PAIRS ? lo / 2 : lo;
    return part < 2 && h.rope != ROPE_NONE && turn < h.rope_dims / 2 && lo < h.rope_dims;
}

__device__ __forceinline__ struct end_in end_load(
    const struct skinny_job &j, uint32_t row, uint32_t expert, uint32_t ra, uint32_t rb)
{
    struct end_in in = {1.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0.0f, 0};
    const size_t at = (size_t)expert * j.n_out;
    const bool is_glu = j.end == SKINNY_GLU, has_a = ra < j.n_out, has_b = rb < j.n_out;
    if (j.scale0 != NULL) {
        in.scale_a = has_a ? j.scale0[at + ra] : 0.0f;
        in.scale_b = has_b ? (is_glu ? j.scale1 : j.scale0)[at + rb] : 0.0f;
    }
    if (j.end == SKINNY_QKV) {
        const struct skinny_heads &h = j.heads;
        uint32_t local, turn;
        const uint32_t part = head_of(h, ra + h.first_row, local), lo = (ra + h.first_row) % h.head_dim;
        if (h.bias[part] != NULL) {
            in.a = h.bias[part][local * h.head_dim + lo];
            in.b = h.bias[part][local * h.head_dim + (rb + h.first_row) % h.head_dim];
        }
        if (is_turned(h, part, lo, turn)) {
            const float2 t = *(const float2 *)(h.rope_table + (size_t)h.pos[row] * h.rope_dims + 2 * turn);
            in.cos = t.x;
            in.sin = t.y;
        }
        in.slot = h.slot[row];
        return in;
    }
    const float *second = is_glu ? j.bias1 : j.bias0;
    in.a = j.bias0 != NULL && has_a ? j.bias0[at + ra] : 0.0f;
    in.b = second != NULL && has_b ? second[at + rb] : 0.0f;
    if (j.end == SKINNY_ADD) {
        in.a += has_a ? __ldcg(j.out + (size_t)row * j.ldc + ra) : 0.0f;
        in.b += has_b ? __ldcg(j.out + (size_t)row * j.ldc + rb) : 0.0f;
    }
    return in;
}

__device__ inline void end_heads(
    const struct skinny_job &j, uint32_t row, uint32_t ra, uint32_t rb, float a, float b, const struct end_in &in)
{
    const struct skinny_heads &h = j.heads;
    const uint32_t lo = (ra + h.first_row) % h.head_dim, hi = (rb + h.first_row) % h.head_dim;
    uint32_t local, turn;
    const uint32_t part = head_of(h, ra + h.first_row, local);
    a += in.a;
    b += in.b;
    if (is_turned(h, part, lo, turn)) {
        const float x = a; /* written out: every kernel that ends here must round alike */
        a = __fmaf_rn(x, in.cos, -__fmul_rn(b, in.sin));
        b = __fmaf_rn(x, in.sin, __fmul_rn(b, in.cos));
    }
    if (part == 0) {
        float *q = j.out + (size_t)row * j.ldc + local * h.head_dim;
        q[lo] = a;
        q[hi] = b;
        return;
    }
    if (in.slot == KV_SLOT_NONE)
        return;
    unsigned char *to = h.blocks + (uint64_t)(in.slot / h.block_tokens) * h.block_bytes +
                        (part == 1 ? h.k_at : h.v_at) +
                        ((uint64_t)local * h.block_tokens + in.slot % h.block_tokens) * h.row_bytes;
    float_store(to, lo, h.kv_dtype, a);
    float_store(to, hi, h.kv_dtype, b);
}

/* Rows ra and rb of one activation row have the sums a and b. */
__device__ inline void end_pair(const struct skinny_job &j, uint32_t row, uint32_t expert, uint32_t ra, uint32_t rb,
    float a, float b, const struct end_in &in)
{
    a = __fmul_rn(a, in.scale_a);
    b = __fmul_rn(b, in.scale_b);
    if (j.rounds) {
        a = as_bf16(a);
        b = as_bf16(b);
    }
    if (j.end == SKINNY_QKV) {
        end_heads(j, row, ra, rb, a, b, in);
        return;
    }
    a += in.a;
    b += in.b;
    if (j.end == SKINNY_GLU) {
        const struct act_rows out = {j.act_f32, (__half *)j.act_f16, (__nv_bfloat16 *)j.act_bf16};
        if (ra < j.n_out)
            act_put(out, (size_t)row * j.n_out + ra, glu_of(a, b, j.glu));
        return;
    }
    float *to = j.out + (size_t)row * j.ldc;
    const bool add = j.end == SKINNY_ADD;
    if (ra < j.n_out)
        to[ra] = add ? a : finished(j, a);
    if (rb < j.n_out)
        to[rb] = add ? b : finished(j, b);
}

/* ---- the product ---------------------------------------------------------------------------------------------------
 */

/* What a lane holds of one round of a warp: FLIGHT slices of two weight rows, and the same of its activation rows. */
template <class F, int NT> struct Round {
    static constexpr int FLIGHT = NT == 1 ? F::FLIGHT : 1;
    static constexpr uint32_t SLICE = 4 * F::E, STEP = SKINNY_WARPS * FLIGHT;
    typename F::Regs a[FLIGHT], b[FLIGHT];
    uint4 x[FLIGHT][F::E / 8][NT];

    __device__ __forceinline__ void weights(
        const unsigned char *row_a, const unsigned char *row_b, uint32_t slice, uint32_t lane_k, uint32_t n_in)
    {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            F::load(a[i], row_a, (slice + i) * SLICE + lane_k, n_in);
            F::load(b[i], row_b, (slice + i) * SLICE + lane_k, n_in);
        }
    }

    __device__ __forceinline__ void rows(const uint16_t *const act[NT], uint32_t slice, uint32_t lane_k, uint32_t n_in)
    {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
#pragma unroll
            for (int part = 0; part < F::E / 8; part++)
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint32_t k = (slice + i) * SLICE + lane_k + 8 * part;
                    x[i][part][n] = act[n] != NULL && k < n_in ? load_shared(act[n] + k) : make_uint4(0, 0, 0, 0);
                }
    }

    __device__ __forceinline__ void multiply(float acc[NT][4]) const
    {
        typename F::Type type;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)
#pragma unroll
            for (int part = 0; part < F::E / 8; part++) {
                uint32_t p[4], q[4];
                F::pairs(a[i], part, p);
                F::pairs(b[i], part, q);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    const uint4 v = x[i][part][n];
                    mma(type, acc[n], p[0], q[0], p[1], q[1], v.x, v.y);
                    mma(type, acc[n], p[2], q[2], p[3], q[3], v.z, v.w);
                }
            }
    }
};

/* The rows this block multiplies with: entry i of it is an activation row and an output row. */
struct skinny_rows {
    uint32_t expert, first, n; /* n: entries, at most 8 * NT */
};

__device__ __forceinline__ struct skinny_rows rows_of_block(const struct skinny_job &j, uint32_t most)
{
    struct skinny_rows r = {0, blockIdx.y * most, 0};
    if (j.groups != NULL) {
        const uint32_t *g = j.groups + 3 * blockIdx.y;
        r.expert = g[0];
        r.first = g[1];
        r.n = g[2];
    } else
        r.n = r.first < j.n_rows ? min(most, j.n_rows - r.first) : 0;
    return r;
}

/* The two weight rows of a lane in a tile. */
struct lane_rows {
    const unsigned char *a, *b;
};

__device__ __forceinline__ struct lane_rows rows_of_lane(
    const struct skinny_job &j, uint32_t tile, uint32_t g, uint32_t expert)
{
    uint32_t ra, rb;
    tile_rows(j, tile, g, ra, rb);
    const unsigned char *second = j.end == SKINNY_GLU ? j.w1 : j.w0;
    const uint64_t at = expert * j.mat_bytes;
    const struct lane_rows r = {j.w0 + at + (size_t)min(ra, j.n_out - 1) * j.row_bytes,
        second + at + (size_t)min(rb, j.n_out - 1) * j.row_bytes};
    return r;
}

/* A tile's sums of this warp; one holds its first round and comes back free. */
template <class F, int NT>
__device__ __forceinline__ void sum_tile(const struct skinny_job &j, const struct lane_rows &w, Round<F, NT> &one,
    const uint16_t *const act[NT], float acc[NT][4])
{
    using R = Round<F, NT>;
    const uint32_t lane_k = threadIdx.x % 4 * F::E, n_slices = (j.n_in + R::SLICE - 1) / R::SLICE;
    uint32_t slice = threadIdx.x / 32 * R::FLIGHT;
    R two; /* one is multiplied while two travels, and the other way round */
    one.rows(act, slice, lane_k, j.n_in);
    while (true) {
        const uint32_t next = slice + R::STEP;
        slice = next + R::STEP;
        if (next < n_slices) {
            two.weights(w.a, w.b, next, lane_k, j.n_in);
            two.rows(act, next, lane_k, j.n_in);
        }
        one.multiply(acc);
        if (next >= n_slices)
            return;
        if (slice < n_slices) {
            one.weights(w.a, w.b, slice, lane_k, j.n_in);
            one.rows(act, slice, lane_k, j.n_in);
        }
        two.multiply(acc);
        if (slice >= n_slices)
            return;
    }
}

/* Join the warps' sums of a tile and do what is to be done with them. */
template <int NT>
__device__ __forceinline__ void end_tile(const struct skinny_job &j, uint32_t tile, const struct skinny_rows &rows,
    const float acc[NT][4], float (*sums)[NT * 8][SKINNY_STRIDE])
{
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    __syncthreads(); /* the tile before is done with them */
#pragma unroll
    for (int n = 0; n < NT; n++) {
        sums[warp][n * 8 + 2 * t][g] = acc[n][0];
        sums[warp][n * 8 + 2 * t + 1][g] = acc[n][1];
        sums[warp][n * 8 + 2 * t][g + 8] = acc[n][2];
        sums[warp][n * 8 + 2 * t + 1][g + 8] = acc[n][3];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows.n * 8; i += SKINNY_THREADS) {
        const uint32_t p = i % 8, column = i / 8, at = rows.first + column;
        float a = 0.0f, b = 0.0f;
        for (int w = 0; w < SKINNY_WARPS; w++) {
            a += sums[w][column][p];
            b += sums[w][column][p + 8];
        }
        uint32_t ra, rb;
        tile_rows(j, tile, p, ra, rb);
        const uint32_t row = j.groups != NULL ? j.order[at] : at;
        end_pair(j, row, rows.expert, ra, rb, a, b, end_load(j, row, rows.expert, ra, rb));
    }
}

template <class F, int NT>
__global__ void __launch_bounds__(SKINNY_THREADS, 2) skinny_kernel(const __grid_constant__ struct skinny_job j)
{
    using R = Round<F, NT>;
    __shared__ float sums[SKINNY_WARPS][NT * 8][SKINNY_STRIDE];
    const uint32_t g = threadIdx.x % 32 / 4, lane_k = threadIdx.x % 4 * F::E, slice = threadIdx.x / 32 * R::FLIGHT;
    const uint32_t per_tile = j.end == SKINNY_GLU ? 8 : 16, n_tiles = (j.n_out + per_tile - 1) / per_tile;
    uint32_t tile = blockIdx.x;
    R one;
    struct lane_rows w = rows_of_lane(j, tile, g, 0);
    if (j.groups == NULL) /* which expert is known only when the kernels before are done */
        one.weights(w.a, w.b, slice, lane_k, j.n_in);
    launch_wait();
    const struct skinny_rows rows = rows_of_block(j, 8 * NT);
    if (rows.n == 0)
        return;
    if (j.groups != NULL) {
        w = rows_of_lane(j, tile, g, rows.expert);
        one.weights(w.a, w.b, slice, lane_k, j.n_in);
    }
    const uint16_t *act[NT];
    for (int n = 0; n < NT; n++) {
        const uint32_t i = n * 8 + g;
        uint32_t row = rows.first + i;
        if (j.groups != NULL && i < rows.n)
            row = j.order[row] / j.act_share;
        act[n] = i < rows.n ? (const uint16_t *)j.act + (size_t)row * j.n_in : NULL;
    }
    while (true) {
        float acc[NT][4] = {};
        sum_tile<F, NT>(j, w, one, act, acc);
        const uint32_t next = tile + gridDim.x;
        if (next < n_tiles) { /* its weights travel while this tile ends */
            w = rows_of_lane(j, next, g, rows.expert);
            one.weights(w.a, w.b, slice, lane_k, j.n_in);
        } else
            launch_next();
        end_tile<NT>(j, tile, rows, acc, sums);
        if (next >= n_tiles)
            return;
        tile = next;
    }
}

template <class F> void skinny_run(struct dev *d, uint32_t nt, dim3 grid, const struct skinny_job *j)
{
    if (nt == 1)
        cuda_launch(d, skinny_kernel<F, 1>, grid, SKINNY_THREADS, 0, *j);
    else
        cuda_launch(d, skinny_kernel<F, 2>, grid, SKINNY_THREADS, 0, *j);
}

#endif
