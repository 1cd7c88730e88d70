/* Conversions of whole matrices and rows for the library's large products: quantised weights to f16, activations to
 * e4m3. Eight elements a thread. */
#include "cuda/formats.cuh"
#include "cuda/unpack.cuh"

__global__ static void unpack_kernel(
    const unsigned char *rows, enum format format, uint32_t row_bytes, uint32_t n_in, uint4 *out)
{
    const unsigned char *row = rows + (size_t)blockIdx.x * row_bytes;
    launch_wait();
    for (uint32_t i = threadIdx.x; i < n_in / 8; i += blockDim.x) {
        uint32_t pairs[4];
        format_eight(format, row, 8 * i, n_in, pairs);
        out[(size_t)blockIdx.x * (n_in / 8) + i] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
}

void cuda_unpack(struct dev *d, const struct matrix *m, uint32_t first, uint32_t n)
{
    cuda_launch(d, unpack_kernel, dim3(n), 128, 0, (const unsigned char *)m->data + (size_t)first * m->row_bytes,
        m->format, m->row_bytes, m->n_in, (uint4 *)d->unpacked);
}

__global__ static void rows_to_f8_kernel(const __half *in, uint32_t n, unsigned char *out, float *scales)
{
    launch_wait();
    const uint4 *row = (const uint4 *)(in + (size_t)blockIdx.x * n);
    float most = 0.0f;
    for (uint32_t i = threadIdx.x; i < n / 8; i += blockDim.x) {
        const uint4 v = row[i];
        for (int k = 0; k < 4; k++) {
            const float2 x = __half22float2(as_h2(word_of(v, k)));
            most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        }
    }
    most = block_reduce<true>(most);
    const float inverse = most > 0.0f ? 448.0f / most : 0.0f;
    for (uint32_t i = threadIdx.x; i < n / 8; i += blockDim.x) {
        const uint4 v = row[i];
        uint32_t packed[2] = {0, 0};
        for (int k = 0; k < 4; k++) {
            float2 x = __half22float2(as_h2(word_of(v, k)));
            x.x *= inverse;
            x.y *= inverse;
            const uint32_t pair = __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3);
            packed[k / 2] |= pair << (16 * (k % 2));
        }
        *(uint2 *)(out + (size_t)blockIdx.x * n + 8 * i) = make_uint2(packed[0], packed[1]);
    }
    if (threadIdx.x == 0)
        scales[blockIdx.x] = most / 448.0f;
}

void cuda_rows_to_f8(struct dev *d, const struct acts *in, uint32_t n_rows)
{
    cuda_launch(d, rows_to_f8_kernel, dim3(n_rows), 256, 0, (const __half *)in->f16, in->n, d->acts_f8, d->acts_scale);
}
