/* Projection back into the residual stream. */
#include "cuda/kernels.cuh"

/* x += post_norm(y + bias), or x += bias where the product itself added (y NULL). */
__global__ static void add_kernel(float *x, const float *y, const float *bias, const float *gain, float eps, uint32_t n)
{
    launch_wait();
    float *to = x + (size_t)blockIdx.x * n;
    const size_t from = (size_t)blockIdx.x * n;
    float sum = 0.0f, inv = 1.0f;
    if (gain != NULL) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const float v = y[from + i] + (bias != NULL ? bias[i] : 0.0f);
            sum += v * v;
        }
        inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = (y != NULL ? y[from + i] : 0.0f) + (bias != NULL ? bias[i] : 0.0f);
        to[i] += gain != NULL ? v * inv * gain[i] : v;
    }
}

/* x += y, which a product left unscaled, by four neighbours. */
__global__ static void add_scaled_kernel(float *x, const __nv_bfloat16 *y, struct scales left, uint32_t n)
{
    launch_wait();
    const uint32_t at = 4 * (blockIdx.y * blockDim.x + threadIdx.x);
    const size_t from = (size_t)blockIdx.x * n + at;
    if (at >= n)
        return;
    const uint2 w = *(const uint2 *)(y + from);
    const float4 v = make_float4(__uint_as_float(w.x << 16), __uint_as_float(w.x & 0xffff0000u),
        __uint_as_float(w.y << 16), __uint_as_float(w.y & 0xffff0000u));
    const float4 old = *(const float4 *)(x + from), s = scaled4(left, v, blockIdx.x, 0, at);
    *(float4 *)(x + from) = make_float4(old.x + s.x, old.y + s.y, old.z + s.z, old.w + s.w);
}

void cuda_project(struct dev *d, const struct batch *b, const struct project_args *a)
{
    const struct matrix *m = matrix_of(a->w);
    const uint32_t n = a->w->n_out;
    cuda_trace(d, a->w, b->n_rows);
    if (a->post_gain == NULL && a->w->bias == NULL && n % 4 == 0 && cuda_leaves_scales(d, m, b->n_rows)) {
        const struct product p = {m, n, b->n_rows, a->in, a->scratch, n, false, true, true};
        cuda_product(d, &p);
        const struct scales left = {cuda_row_scales(d, a->in), {m->scales}};
        cuda_launch(d, add_scaled_kernel, dim3(b->n_rows, (n / 4 + 255) / 256), 256, 0, a->x,
            (const __nv_bfloat16 *)a->scratch, left, n);
        return;
    }
    const bool direct = a->post_gain == NULL;
    const struct product p = {m, n, b->n_rows, a->in, direct ? (void *)a->x : (void *)a->scratch, n, direct, false};
    cuda_product(d, &p);
    if (!direct || a->w->bias != NULL)
        cuda_launch(d, add_kernel, dim3(b->n_rows), 256, 0, a->x,
            direct ? (const float *)NULL : (const float *)a->scratch, a->w->bias, a->post_gain, a->post_eps, n);
}
