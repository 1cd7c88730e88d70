/* RMS norm: a block per row. The row is read once into registers when it is at most 16 elements a thread wide; sums are
 * taken per thread ascending, then by a fixed tree. */
#include "cuda/rows_f8.cuh"

#define THREADS     256
#define LOOKERS     16 /* blocks beside those of the rows, that look ahead */
#define AHEAD_BYTES ((uint64_t)12 << 20)
#define AHEAD_ROWS  64 /* more leave the memory no time */
#define HELD        4  /* float4 a thread */

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

__device__ __forceinline__ float4 normed(float4 v, float inv, float4 g)
{
    return make_float4(v.x * inv * g.x, v.y * inv * g.y, v.z * inv * g.z, v.w * inv * g.w);
}

/* Gains are weights: they are asked for before the kernel before this one ends, and what comes next may settle beside
 * it, which is what the few registers are for (even.cuh). */
__global__ static void __launch_bounds__(THREADS, 5) norm_kernel(const float *x, const uint32_t *rows, uint32_t n,
    const float *gain, float eps, struct act_rows out, uint32_t n_rows, struct ahead ahead)
{
    launch_next();
    if (blockIdx.x >= n_rows) {
        look_ahead(ahead, (blockIdx.x - n_rows) * THREADS + threadIdx.x, LOOKERS * THREADS);
        return;
    }
    const float4 *gains = (const float4 *)gain + threadIdx.x;
    const uint32_t quads = n / 4;
    float4 held[HELD], g[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        g[i] = threadIdx.x + i * THREADS < quads ? gains[i * THREADS] : make_float4(0, 0, 0, 0);
    launch_wait();
    x += (size_t)(rows != NULL ? rows[blockIdx.x] : blockIdx.x) * n;
    float sum = row_hold((const float4 *)x, quads, held);
#pragma unroll 1
    for (uint32_t at = threadIdx.x + HELD * THREADS; at < quads; at += THREADS) {
        const float4 v = ((const float4 *)x)[at];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
    const size_t to = (size_t)blockIdx.x * n + 4 * threadIdx.x;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (threadIdx.x + i * THREADS < quads)
            act_put4(out, to + 4 * i * THREADS, normed(held[i], inv, g[i]));
#pragma unroll 1
    for (uint32_t i = HELD * THREADS; threadIdx.x + i < quads; i += THREADS)
        act_put4(out, to + 4 * i, normed(((const float4 *)x)[threadIdx.x + i], inv, gains[i]));
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
        held[i] = normed(held[i], inv, g);
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
