/* RMS norm: a block per row. The row is read once into registers when it is at most 16 elements a thread wide; sums are
 * taken per thread ascending, then by a fixed tree. */
#include "cuda/kernels.cuh"

#define THREADS     256
#define LOOKERS     16 /* blocks beside those of the rows, that look ahead */
#define AHEAD_BYTES ((uint64_t)12 << 20)
#define HELD        4 /* float4 a thread */

__global__ static void norm_kernel(const float *x, const uint32_t *rows, uint32_t n, const float *gain, float eps,
    struct act_rows out, uint32_t n_rows, struct ahead ahead)
{
    if (blockIdx.x >= n_rows) {
        look_ahead(ahead, (blockIdx.x - n_rows) * THREADS + threadIdx.x, LOOKERS * THREADS);
        return;
    }
    launch_wait();
    const float4 *row = (const float4 *)(x + (size_t)(rows != NULL ? rows[blockIdx.x] : blockIdx.x) * n);
    const float4 *gains = (const float4 *)gain;
    const uint32_t quads = n / 4;
    float4 held[HELD];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t at = threadIdx.x + i * blockDim.x;
        held[i] = at < quads ? row[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        sum += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    }
    for (uint32_t at = threadIdx.x + HELD * blockDim.x; at < quads; at += blockDim.x) {
        const float4 v = row[at];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
    for (uint32_t i = 0, at = threadIdx.x; at < quads; at += blockDim.x, i++) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i >= HELD)
            v = row[at];
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (k == i)
                v = held[k];
        const float4 g = gains[at];
        const float4 y = make_float4(v.x * inv * g.x, v.y * inv * g.y, v.z * inv * g.z, v.w * inv * g.w);
        act_put4(out, (size_t)blockIdx.x * n + 4 * at, y);
    }
}

/* Widths that are not whole quads. */
__global__ static void norm_odd_kernel(const float *x, const uint32_t *rows, uint32_t n, const float *gain, float eps,
    struct act_rows out, uint32_t n_rows, struct ahead)
{
    if (blockIdx.x >= n_rows)
        return;
    launch_wait();
    const float *row = x + (size_t)(rows != NULL ? rows[blockIdx.x] : blockIdx.x) * n;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += row[i] * row[i];
    const float inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        act_put(out, (size_t)blockIdx.x * n + i, row[i] * inv * gain[i]);
}

void cuda_norm(struct dev *d, const struct norm_args *a)
{
    if (!resident_norm(d, a))
        cuda_norm_now(d, a);
}

void cuda_norm_now(struct dev *d, const struct norm_args *a)
{
    const struct ahead ahead = cuda_ahead(d, a->n_rows, AHEAD_BYTES);
    const uint32_t blocks = a->n_rows + (ahead.bytes > 0 ? LOOKERS : 0);
    cuda_launch(d, a->n % 4 == 0 ? norm_kernel : norm_odd_kernel, dim3(blocks), THREADS, 0, a->x, a->rows, a->n,
        a->gain, a->eps, act_rows_of(a->out, a->forms), a->n_rows, ahead);
}
