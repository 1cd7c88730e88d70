/* The sums of attention where a row's bits may not depend on the batch, on cards and caches that the warpgroup's matrix
 * unit takes (attend_chunks). Positions are taken CHUNK at a time, from multiples of it, and of each chunk a row has a
 * result of its own, whatever other rows or chunks are taken with it:
 *
 *   scores    one chain over the head, 16 elements at a time, ascending
 *   most      the largest that the row sees, times the factor (soft caps: after them, the factor is one)
 *   weights   2^(score * factor - most), rounded once more on their way into the second product
 *   sum       a lane of four has positions 8n+2t and 8n+2t+1; it adds 32 positions ascending, then the four such sums;
 *             then lanes t and t^1, then t and t^2
 *   output    one chain over the positions from zero, 16 at a time, ascending
 *
 * and the chunks are joined ascending, as `joined` in attend.cuh does it. Chunks and runs of 16 positions that a row
 * does not see change no bit, so it does not matter who skips them. One chain of m16n8k16 and one of the warpgroup's
 * products are the same sums, in whatever order each 16 lie: dev.chained says that this was tried on the card. */
#ifndef CUDA_ATTEND_CHUNKS_CUH
#define CUDA_ATTEND_CHUNKS_CUH

#include "cuda/attend_tiles.cuh"

#define CHUNK_QUARTER (CHUNK / 4) /* positions that a lane adds up in one go */

/* What scores are multiplied by; before it, soft caps. */
template <int N> __device__ __forceinline__ float chunk_factor(const struct attend_job &j, float *s)
{
    if (j.cap > 0.0f) {
        scale_scores<N>(j, s);
        return 1.0f;
    }
    return j.scale * LOG2E;
}

/* -INFINITY where the row sees nothing of the chunk. */
__device__ __forceinline__ float chunk_most(float top, float factor)
{
    return top == -INFINITY ? -INFINITY : __fmul_rn(top, factor);
}

/* A quarter's scores of row g + 8 * half become weights; what this lane has of their sum. */
__device__ __forceinline__ float chunk_weigh(float (*s)[4], int half, float factor, float most)
{
    const float base = most == -INFINITY ? 0.0f : most;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < CHUNK_QUARTER / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float &x = s[n][2 * half + i];
            x = exp2_fast(__fmaf_rn(x, factor, -base));
            sum = __fadd_rn(sum, x);
        }
    return sum;
}

/* The sum of a row from its lanes' quarters. */
__device__ __forceinline__ float chunk_sum(float a, float b, float c, float d)
{
    float sum = __fadd_rn(__fadd_rn(__fadd_rn(a, b), c), d);
    sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, 2));
}

/* The factors that joined_add finds: of what there is, and of the chunk that comes. */
__device__ __forceinline__ void chunk_shares(float &most, float comes, float &old, float &fresh)
{
    const float top = fmaxf(most, comes), base = top == -INFINITY ? 0.0f : top;
    old = exp2_fast(__fsub_rn(most, base));
    fresh = exp2_fast(__fsub_rn(comes, base));
    most = top;
}

__device__ __forceinline__ float chunk_add(float x, float old, float y, float fresh)
{
    return __fmaf_rn(x, old, __fmul_rn(y, fresh));
}

#endif
