/* RMS norm: a block per row. The row is read once into registers when it is at most 16 elements a thread wide; sums are
 * taken per thread ascending, then by a fixed tree. */
#include "cuda/rows_f8.cuh"

#define THREADS     256
#define LOOKERS     16 /* blocks beside those of the rows, that look ahead */
#define AHEAD_BYTES ((uint64_t)12 << 20)
#define AHEAD_ROWS  64 /* more leave the memory no time */
#define HELD        4   /* float4 a thread */

/* The first quads of a row of this thread, zeros where there are none, and the sum of their squares. */
__device__ static float row_hold(const float4 *row, uint32_t quads, float4 (&held)[HELD])
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t at = threadIdx.x + i * blockDim.x;
        held[i] = at < quads ? row[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        sum += held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    }
    return sum;
}

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
    float sum = row_hold(row, quads, held);
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

/* The same, for products that read e4m3; a row is held whole. */
__global__ static void norm_f8_kernel(const float *x, const uint32_t *rows, uint32_t n, const float *gain, float eps,
    unsigned char *out, float *scales, uint32_t n_rows, struct ahead ahead)
{
    if (blockIdx.x >= n_rows) {
        look_ahead(ahead, (blockIdx.x - n_rows) * blockDim.x + threadIdx.x, LOOKERS * blockDim.x);
        return;
    }
    launch_wait();
    const float4 *row = (const float4 *)(x + (size_t)(rows != NULL ? rows[blockIdx.x] : blockIdx.x) * n);
    const float4 *gains = (const float4 *)gain;
    const uint32_t quads = n / 4;
    float4 held[HELD];
    float sum = row_hold(row, quads, held);
    const float inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t at = threadIdx.x + i * blockDim.x;
        const float4 g = at < quads ? gains[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        held[i] =
            make_float4(held[i].x * inv * g.x, held[i].y * inv * g.y, held[i].z * inv * g.z, held[i].w * inv * g.w);
    }
    row_to_f8(held, quads, out + (size_t)blockIdx.x * n, scales + blockIdx.x);
}

/* Whether it was done: every reader wants e4m3, and a block can hold the row. */
static bool norm_f8(struct dev *d, const struct norm_args *a, struct ahead ahead, uint32_t blocks)
{
    uint32_t threads = THREADS;
    while (threads * HELD * 4 < a->n && threads < 1024)
        threads *= 2;
    if (a->forms != ACT_F8 || !cuda_f8_rows(d, a->n_rows) || a->n % 16 != 0 || threads * HELD * 4 < a->n)
        return false;
    cuda_launch(d, norm_f8_kernel, dim3(blocks), threads, 0, a->x, a->rows, a->n, a->gain, a->eps, a->out->f8,
        a->out->f8_scale, a->n_rows, ahead);
    a->out->has_f8 = true;
    return true;
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
    const struct ahead ahead = cuda_ahead(d, a->n_rows <= AHEAD_ROWS ? AHEAD_BYTES : 0);
    const uint32_t blocks = a->n_rows + (ahead.bytes > 0 ? LOOKERS : 0);
    if (norm_f8(d, a, ahead, blocks))
        return;
    cuda_launch(d, a->n % 4 == 0 ? norm_kernel : norm_odd_kernel, dim3(blocks), THREADS, 0, a->x, a->rows, a->n,
        a->gain, a->eps, act_rows_of(a->out, a->forms), a->n_rows, ahead);
}
