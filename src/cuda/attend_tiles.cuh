/* What the kernels that take many rows share: which rows a tile has, the softmax between the two products, and the end.
 * A warp owns 16 * M (row, query head) pairs; a lane has of each 16 what the matrix unit gives it. */
#ifndef CUDA_ATTEND_TILES_CUH
#define CUDA_ATTEND_TILES_CUH

#include "cuda/attend_cache.cuh"

struct tile_work {
    struct batch_seq s;
    const uint32_t *table;
    uint32_t kv_head, first, n_pairs; /* first row of the step, pairs of it */
    uint32_t pos;                     /* of the first row */
    uint32_t begin, end;              /* positions that some row sees */
};

__device__ inline struct tile_work work_of(
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

/* Rows: how a lane's outputs lie (CacheRows). */
template <class Rows, int M, int KEYS, int D> struct Tiles {
    /* s becomes weights; top and sum go on, and what came out before shrinks. limit: the end of what each of the lane's
     * rows sees. Scores are kept as the products came out, and meet their factor in the exponent. */
    static __device__ __forceinline__ void soften(const struct attend_job &j, uint32_t p, bool masked,
        const uint32_t limit[M][2], float s[M][KEYS / 8][4], float top[M][2], float sum[M][2], float shrink[M][2])
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
                shrink[m][half] = exp2_fast(top[m][half] * factor - base);
                top[m][half] = most;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float &x = s[m][n][2 * half + i];
                        x = exp2_fast(fmaf(x, factor, -base));
                    }
                float total = sum[m][half] * shrink[m][half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n += 2) /* by fours, so that few wait for the last exponent */
                    total += (s[m][n][2 * half] + s[m][n][2 * half + 1]) +
                             (s[m][n + 1][2 * half] + s[m][n + 1][2 * half + 1]);
                sum[m][half] = total;
            }
    }

    static __device__ __forceinline__ void shrink_out(const float shrink[M][2], float out[M][D / 8][4])
    {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    out[m][n][i] *= shrink[m][i / 2];
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

    /* LANES: a row's sum is what its four lanes have. */
    template <bool LANES = true>
    static __device__ __forceinline__ void write(
        const struct attend_job &j, const struct tile_work &w, float sum[M][2], float out[M][D / 8][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float total = sum[m][half];
                if (LANES) {
                    total += __shfl_xor_sync(ALL_LANES, total, 1);
                    total += __shfl_xor_sync(ALL_LANES, total, 2);
                }
                const uint32_t pair = (warp * M + m) * 16 + g + 8 * half;
                if (pair >= w.n_pairs)
                    continue;
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                const size_t at = (row * j.n_heads + head) * D;
                const float inv = 1.0f / total;
#pragma unroll
                for (int n = 0; n < D / 16; n++) {
                    const float *x = &out[m][2 * n][2 * half], *y = &out[m][2 * n + 1][2 * half];
                    Rows::act4(j.out, at + 16 * n, x[0] * inv, x[1] * inv, y[0] * inv, y[1] * inv);
                }
            }
    }
};

#endif
