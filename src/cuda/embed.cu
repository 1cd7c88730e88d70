/* Embedding: a row of the table per token, whatever format the table lies in. Eight elements a thread where the width
 * allows it. */
#include "cuda/unpack.cuh"

__global__ static void embed_kernel(const int32_t *token, struct matrix m, const float *scales, float scale, float *out)
{
    launch_wait();
    const uint32_t id = (uint32_t)token[blockIdx.x];
    const unsigned char *row = m.data + (size_t)id * m.row_bytes;
    float *to = out + (size_t)blockIdx.x * m.n_in;
    if (m.format == FORMAT_F32 || m.format == FORMAT_F16 || m.format == FORMAT_BF16) {
        const enum dtype dtype = m.format == FORMAT_F32 ? DTYPE_F32 : m.format == FORMAT_F16 ? DTYPE_F16 : DTYPE_BF16;
        for (uint32_t i = threadIdx.x; i < m.n_in; i += blockDim.x)
            to[i] = float_load(row, i, dtype) * scale;
        return;
    }
    const float all = scale * (scales != NULL ? scales[id] : 1.0f);
    for (uint32_t i = threadIdx.x; i < m.n_in / 8; i += blockDim.x) {
        uint32_t pairs[4];
        format_eight(m.format, row, 8 * i, m.n_in, pairs);
        for (int p = 0; p < 4; p++) {
            const float2 x = __half22float2(as_h2(pairs[p]));
            to[8 * i + 2 * p] = x.x * all;
            to[8 * i + 2 * p + 1] = x.y * all;
        }
    }
}

void cuda_embed(struct dev *d, const struct batch *b, const struct embed_args *a)
{
    const struct matrix *m = matrix_of(a->table);
    cuda_trace_start(d);
    cuda_launch(d, embed_kernel, dim3(b->n_rows), 256, 0, b->token, *m, (const float *)m->scales, a->scale, a->out);
}
