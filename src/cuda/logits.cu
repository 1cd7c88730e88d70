/* Logits, and the largest of them. */
#include "cuda/kernels.cuh"

#define THREADS 1024

__global__ static void cap_kernel(float *x, uint32_t n, float scale, float cap)
{
    launch_wait();
    float *row = x + (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float y = row[i] * scale;
        row[i] = cap > 0.0f ? cap * tanhf(y / cap) : y;
    }
}

void cuda_logits(struct dev *d, const struct logits_args *a)
{
    const struct matrix *m = matrix_of(a->head);
    cuda_trace(d, a->head, a->n_rows);
    const uint32_t n = a->head->n_out;
    const struct product p = {m, n, a->n_rows, a->in, a->out, n, false, false};
    cuda_product(d, &p);
    resident_norm_read(d);
    if (a->scale != 1.0f || a->cap > 0.0f)
        cuda_launch(d, cap_kernel, dim3(a->n_rows), THREADS, 0, a->out, n, a->scale, a->cap);
}

/* Better: larger, or as large at a lower index. */
__device__ static bool beats(float x, uint32_t i, float y, uint32_t k)
{
    return i != UINT32_MAX && (k == UINT32_MAX || x > y || (x == y && i < k));
}

/* Indices come ascending, so only a larger value replaces. */
__device__ __forceinline__ void consider(float v, uint32_t i, float &best, uint32_t &where)
{
    if (v == v && (where == UINT32_MAX || v > best)) {
        best = v;
        where = i;
    }
}

__global__ static void argmax_kernel(const float *x, uint32_t n, uint32_t *out)
{
    __shared__ float top[THREADS];
    __shared__ uint32_t at[THREADS];
    launch_wait();
    const float *row = x + (size_t)blockIdx.x * n;
    float best = 0.0f;
    uint32_t where = UINT32_MAX;
    const bool whole = n % 4 == 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; whole && i < n / 4; i += THREADS) {
        const float4 v = ((const float4 *)row)[i];
        consider(v.x, 4 * i, best, where);
        consider(v.y, 4 * i + 1, best, where);
        consider(v.z, 4 * i + 2, best, where);
        consider(v.w, 4 * i + 3, best, where);
    }
    for (uint32_t i = threadIdx.x; !whole && i < n; i += THREADS)
        consider(row[i], i, best, where);
    top[threadIdx.x] = best;
    at[threadIdx.x] = where;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        const uint32_t other = threadIdx.x + half;
        if (threadIdx.x < half && beats(top[other], at[other], top[threadIdx.x], at[threadIdx.x])) {
            top[threadIdx.x] = top[other];
            at[threadIdx.x] = at[other];
        }
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = at[0];
}

void cuda_argmax(struct dev *d, const struct argmax_args *a)
{
    cuda_launch(d, argmax_kernel, dim3(a->n_rows), THREADS, 0, a->x, a->n, a->out);
}
