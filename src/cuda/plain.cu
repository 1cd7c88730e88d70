/* Products of floats that no other kernel of ours takes (F32, odd widths), where a row may not depend on its company: a
 * warp for each output, its lanes a thirty-second of the inputs each, then a fixed tree. Slow, and only routers and
 * tiny models need it. */
#include "cuda/kernels.cuh"

#define WARPS 8

__global__ static void plain_kernel(const unsigned char *w, const void *act, enum dtype dtype, uint32_t row_bytes,
    uint32_t n_in, uint32_t n_out, float *out, uint32_t ldc, bool add)
{
    launch_wait();
    const uint32_t o = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t row = blockIdx.y;
    if (o >= n_out)
        return;
    float sum = 0.0f;
    for (uint32_t k = lane; k < n_in; k += 32)
        sum = __fmaf_rn(float_load(w + (size_t)o * row_bytes, k, dtype), float_load(act, row * n_in + k, dtype), sum);
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (lane == 0)
        out[row * ldc + o] = add ? out[row * ldc + o] + sum : sum;
}

void cuda_product_plain(struct dev *d, const struct product *p)
{
    const struct matrix *m = p->m;
    const bool f32 = m->format == FORMAT_F32, bf16 = m->format == FORMAT_BF16;
    const void *act = f32 ? (const void *)p->in->f32 : bf16 ? p->in->bf16 : p->in->f16;
    cuda_launch(d, plain_kernel, dim3((p->n_out + WARPS - 1) / WARPS, p->n_rows), WARPS * 32, 0,
        (const unsigned char *)m->data, act,
        f32    ? DTYPE_F32
        : bf16 ? DTYPE_BF16
               : DTYPE_F16,
        m->row_bytes, m->n_in, p->n_out, (float *)p->out, p->ldc, p->add);
}
