/* Attention of sequences with many rows: a flash kernel over tiles of rows.
 *
 * A block takes a tile of (row, query head) pairs that share a kv head: TILE of them, rows outermost. Its 4 warps own
 * 16 * M pairs each and share keys and values, which come KEYS positions at a time through a double buffer. Scores,
 * softmax and output stay in registers; positions are walked ascending from a multiple of KEYS. */
#include "cuda/attend.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)

template <int D> struct PrefillShape {
    static constexpr int M = D <= 128 ? 2 : 1; /* tiles of 16 pairs a warp: as many as its registers hold */
    static constexpr int KEYS = D <= 128 ? 64 : 32;
    static constexpr int TILE = WARPS * 16 * M;
    static constexpr int ROW = D + 8; /* see attend_decode.cu */
    static constexpr size_t BYTES = (size_t)(TILE + 4 * KEYS) * ROW * 2;
};

struct tile_work {
    struct batch_seq s;
    const uint32_t *table;
    uint32_t kv_head, first, n_pairs; /* first row of the step, pairs of it */
    uint32_t pos;                     /* of the first row */
    uint32_t begin, end;              /* positions that some row sees */
};

template <typename T, int D> struct Prefill {
    using Shape = PrefillShape<D>;
    static constexpr int M = Shape::M, KEYS = Shape::KEYS, ROW = Shape::ROW;

    /* Keys and values of positions p .. p+KEYS-1; a warp asks for runs of 16. */
    static __device__ __forceinline__ void fetch(
        const struct attend_job &j, const struct tile_work &w, T *to, uint32_t p)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        for (uint32_t group = warp; group < KEYS / 16; group += WARPS) {
            const uint32_t from = p + group * 16;
            const bool any = from < w.end && from + 16 > w.begin;
            const unsigned char *at = any ? position_at(j, w.table, w.kv_head, from) : j.blocks;
#pragma unroll
            for (int i = 0; i < 16 * D / 8 / 32; i++) {
                const uint32_t c = lane + 32 * i, row = c / (D / 8), column = c % (D / 8) * 8;
                const bool there = any && from + row < w.s.n_kv;
                T *k = to + (group * 16 + row) * ROW + column;
                copy_async(k, at + j.k_at + (size_t)c * 16, there);
                copy_async(k + KEYS * ROW, at + j.v_at + (size_t)c * 16, there);
            }
        }
        copy_commit();
    }

    static __device__ __forceinline__ void load_q(const struct attend_job &j, const struct tile_work &w, T *to)
    {
        for (uint32_t i = threadIdx.x; i < Shape::TILE * (D / 4); i += THREADS) {
            const uint32_t pair = i / (D / 4), column = i % (D / 4) * 4;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (pair < w.n_pairs) {
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                x = *(const float4 *)(j.q + (row * j.n_heads + head) * D + column);
            }
            *(uint2 *)(to + pair * ROW + column) = make_uint2(pack2(T(), x.x, x.y), pack2(T(), x.z, x.w));
        }
    }

    static __device__ __forceinline__ void scores(const T *q, const T *k, float s[M][KEYS / 8][4])
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++)
                load_matrices<false>(a[m], q + ((warp * M + m) * 16 + lane % 16) * ROW + 16 * d + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t b[4];
                load_matrices<false>(b, k + (16 * n + lane / 16 * 8 + lane % 8) * ROW + 16 * d + lane / 8 % 2 * 8);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma(T(), s[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                    mma(T(), s[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
                }
            }
        }
    }

    /* s becomes weights; top and sum go on, out shrinks. limit: the end of what each of the lane's rows sees. Scores
     * are kept as the products came out, and meet their factor in the exponent. */
    static __device__ __forceinline__ void soften(const struct attend_job &j, uint32_t p, bool masked,
        const uint32_t limit[M][2], float s[M][KEYS / 8][4], float top[M][2], float sum[M][2], float out[M][D / 8][4])
    {
        float factor = j.scale * LOG2E;
        if (j.cap > 0.0f) {
            scale_scores<M * KEYS / 8 * 4>(j, &s[0][0][0]);
            factor = 1.0f;
        }
        if (masked)
            hide(j, p, limit, s);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float most = top[m][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
                    most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
                const float base = most == -INFINITY ? 0.0f : most * factor;
                const float shrink = exp2_fast(top[m][half] * factor - base);
                top[m][half] = most;
                float total = sum[m][half] * shrink;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float &x = s[m][n][2 * half + i];
                        x = exp2_fast(fmaf(x, factor, -base));
                        total += x;
                    }
                sum[m][half] = total;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    out[m][n][2 * half] *= shrink;
                    out[m][n][2 * half + 1] *= shrink;
                }
            }
    }

    /* What a row does not see. */
    static __device__ __forceinline__ void hide(
        const struct attend_job &j, uint32_t p, const uint32_t limit[M][2], float s[M][KEYS / 8][4])
    {
        const uint32_t t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t end = limit[m][half], begin = j.window > 0 && end > j.window ? end - j.window : 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint32_t at = p + 8 * n + 2 * t + i;
                        if (at >= end || at < begin)
                            s[m][n][2 * half + i] = -INFINITY;
                    }
            }
    }

    static __device__ __forceinline__ void mix(const T *v, const float s[M][KEYS / 8][4], float out[M][D / 8][4])
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                a[m][0] = pack2(T(), s[m][2 * k][0], s[m][2 * k][1]);
                a[m][1] = pack2(T(), s[m][2 * k][2], s[m][2 * k][3]);
                a[m][2] = pack2(T(), s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
                a[m][3] = pack2(T(), s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t b[4];
                load_matrices<true>(b, v + (16 * k + lane / 8 % 2 * 8 + lane % 8) * ROW + 16 * n + lane / 16 * 8);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    mma(T(), out[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
                    mma(T(), out[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
                }
            }
        }
    }

    static __device__ __forceinline__ void write(
        const struct attend_job &j, const struct tile_work &w, float sum[M][2], float out[M][D / 8][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum[m][half];
                total += __shfl_xor_sync(ALL_LANES, total, 1);
                total += __shfl_xor_sync(ALL_LANES, total, 2);
                const uint32_t pair = (warp * M + m) * 16 + g + 8 * half;
                if (pair >= w.n_pairs)
                    continue;
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                const size_t at = (row * j.n_heads + head) * D + 2 * t;
                const float inv = 1.0f / total;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    const float x = out[m][n][2 * half] * inv, y = out[m][n][2 * half + 1] * inv;
                    if (j.out.f32 != NULL)
                        *(float2 *)(j.out.f32 + at + 8 * n) = make_float2(x, y);
                    if (j.out.f16 != NULL)
                        *(uint32_t *)(j.out.f16 + at + 8 * n) = pack_half(x, y);
                    if (j.out.bf16 != NULL)
                        *(uint32_t *)(j.out.bf16 + at + 8 * n) = pack_bf16(x, y);
                }
            }
    }
};

__device__ static struct tile_work work_of(
    const struct attend_job &j, const struct plan_tile &tile, uint32_t kv_head, uint32_t rows)
{
    struct tile_work w;
    w.s = j.seqs[tile.seq];
    w.table = j.table + w.s.table_at;
    w.kv_head = kv_head;
    w.first = w.s.first_row + tile.first;
    const uint32_t n = min(rows, w.s.n_rows - tile.first);
    w.n_pairs = n * j.per_kv;
    w.pos = w.s.n_kv - w.s.n_rows + tile.first;
    w.begin = j.window > 0 && w.pos + 1 > j.window ? w.pos + 1 - j.window : 0;
    w.end = w.pos + n;
    return w;
}

template <typename T, int D>
__global__ void __launch_bounds__(THREADS) prefill_kernel(const __grid_constant__ struct attend_job j)
{
    using S = Prefill<T, D>;
    using Shape = PrefillShape<D>;
    extern __shared__ uint4 memory[];
    T *q = (T *)memory, *kv = q + Shape::TILE * Shape::ROW;
    launch_wait();
    if (blockIdx.y >= j.plan->n_tiles)
        return;
    const struct tile_work w = work_of(j, j.plan->tiles[blockIdx.y], blockIdx.x, attend_rows(Shape::TILE, j.per_kv));
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    uint32_t limit[S::M][2];
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            limit[m][half] = min(w.pos + ((warp * S::M + m) * 16 + g + 8 * half) / j.per_kv + 1, w.end);
    float out[S::M][D / 8][4] = {}, top[S::M][2], sum[S::M][2];
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[m][half] = -INFINITY;
            sum[m][half] = 0.0f;
        }
    uint32_t p = w.begin / Shape::KEYS * Shape::KEYS;
    constexpr int STAGE = 2 * Shape::KEYS * Shape::ROW;
    S::fetch(j, w, kv, p);
    S::load_q(j, w, q);
    for (int stage = 0; p < w.end; p += Shape::KEYS, stage ^= 1) {
        if (p + Shape::KEYS < w.end)
            S::fetch(j, w, kv + (stage ^ 1) * STAGE, p + Shape::KEYS);
        else
            copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[S::M][Shape::KEYS / 8][4] = {};
        const T *keys = kv + stage * STAGE;
        S::scores(q, keys, s);
        const bool masked = p + Shape::KEYS > w.pos + 1 || (j.window > 0 && p + j.window < w.end);
        S::soften(j, p, masked, limit, s, top, sum, out);
        S::mix(keys + Shape::KEYS * Shape::ROW, s, out);
        __syncthreads();
    }
    S::write(j, w, sum, out);
}

template <typename T, int D> static void run(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const uint32_t rows = attend_rows(PrefillShape<D>::TILE, j->per_kv);
    const uint32_t tiles = (b->n_rows + rows - 1) / rows + b->n_seqs; /* at most; the plan knows how many */
    cuda_launch(d, prefill_kernel<T, D>, dim3(j->n_kv_heads, tiles), THREADS, PrefillShape<D>::BYTES, *j);
}

template <typename T> static void run_size(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    switch (j->head_dim) {
    case 64: run<T, 64>(d, b, j); break;
    case 80: run<T, 80>(d, b, j); break;
    case 96: run<T, 96>(d, b, j); break;
    case 128: run<T, 128>(d, b, j); break;
    default: run<T, 256>(d, b, j); break;
    }
}

uint32_t attend_tile_rows(uint32_t head_dim, uint32_t per_kv)
{
    return attend_rows(head_dim <= 128 ? PrefillShape<128>::TILE : PrefillShape<256>::TILE, per_kv);
}

void attend_prefill(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    if (j->dtype == DTYPE_F16)
        run_size<__half>(d, b, j);
    else
        run_size<__nv_bfloat16>(d, b, j);
}
