/* Projection back into the residual stream. */
#include "cuda/kernels.cuh"

/* x += post_norm(y + bias), or x += bias where the product itself added (y NULL). */
__global__ static void add_kernel(
    float *x, const void *y, enum dtype y_dtype, const float *bias, const float *gain, float eps, uint32_t n)
{
    launch_wait();
    float *to = x + (size_t)blockIdx.x * n;
    const size_t from = (size_t)blockIdx.x * n;
    float sum = 0.0f, inv = 1.0f;
    if (gain != NULL) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const float v = float_load(y, from + i, y_dtype) + (bias != NULL ? bias[i] : 0.0f);
            sum += v * v;
        }
        inv = rsqrtf(block_reduce<false>(sum) / (float)n + eps);
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = (y != NULL ? float_load(y, from + i, y_dtype) : 0.0f) + (bias != NULL ? bias[i] : 0.0f);
        to[i] += gain != NULL ? v * inv * gain[i] : v;
    }
}

void cuda_project(struct dev *d, const struct batch *b, const struct project_args *a)
{
    const struct matrix *m = matrix_of(a->w);
    const uint32_t n = a->w->n_out;
    cuda_trace(d, a->w);
    /* The library's F8 products write bf16 only, so the sum is taken here. */
    const bool small = cuda_is_skinny(d, m, b->n_rows), bf16 = !small && m->format == FORMAT_F8;
    const bool direct = a->post_gain == NULL && !bf16;
    struct product p = {m, n, b->n_rows, a->in, direct ? (void *)a->x : (void *)a->scratch, n, direct, bf16};
    cuda_product(d, &p);
    if (!direct || a->w->bias != NULL)
        cuda_launch(d, add_kernel, dim3(b->n_rows), 256, 0, a->x,
            direct ? (const void *)NULL : (const void *)a->scratch, bf16 ? DTYPE_BF16 : DTYPE_F32, a->w->bias,
            a->post_gain, a->post_eps, n);
}
