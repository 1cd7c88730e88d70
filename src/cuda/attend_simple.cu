/* Attention for head sizes and cache types without a kernel of their own: a block per row and query head walks the
 * visible positions in tiles, a thread per position for the scores and a thread per element for the output, with an
 * online softmax between tiles. */
#include "cuda/attend.cuh"

extern "C" {
#include "tensor/quant.h"
}

#define TILE 128 /* positions, and threads of a block */

__device__ static float element(const unsigned char *row, uint32_t i, enum dtype dtype)
{
    if (dtype == DTYPE_Q8_0) {
        const struct block_q8_0 *b = (const struct block_q8_0 *)row + i / 32;
        return (float)b->qs[i % 32] * __half2float(__ushort_as_half(b->d));
    }
    return float_load(row, i, dtype);
}

__device__ static const unsigned char *row_at(
    const struct attend_job &j, const uint32_t *table, uint32_t kv_head, uint32_t p)
{
    return j.blocks + (uint64_t)table[p / j.block_tokens] * j.block_bytes +
           ((uint64_t)kv_head * j.block_tokens + p % j.block_tokens) * j.row_bytes;
}

__global__ static void simple_kernel(const __grid_constant__ struct attend_job j)
{
    extern __shared__ float shared[]; /* q, out: head_dim each */
    __shared__ float weight[TILE];
    launch_wait();
    const uint32_t row = blockIdx.x, head = blockIdx.y, n = j.head_dim, kv_head = head / j.per_kv;
    const uint32_t *table = j.table + j.seqs[j.seq[row]].table_at;
    float *q = shared, *out = shared + n;
    for (uint32_t i = threadIdx.x; i < n; i += TILE) {
        q[i] = j.q[((size_t)row * j.n_heads + head) * n + i];
        out[i] = 0.0f;
    }
    __syncthreads();
    const uint32_t end = j.pos[row] + 1, begin = j.window > 0 && end > j.window ? end - j.window : 0;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t lo = begin / TILE * TILE; lo < end; lo += TILE) {
        const uint32_t p = lo + threadIdx.x;
        const bool visible = p >= begin && p < end;
        float s = -INFINITY;
        if (visible) {
            const unsigned char *k = row_at(j, table, kv_head, p) + j.k_at;
            s = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                s += q[i] * element(k, i, j.dtype);
            scale_scores<1>(j, &s);
        }
        const float most = fmaxf(top, block_reduce<true>(s));
        const float shrink = exp2_fast(top - most);
        weight[threadIdx.x] = visible ? exp2_fast(s - most) : 0.0f;
        sum = sum * shrink + block_reduce<false>(weight[threadIdx.x]);
        top = most;
        for (uint32_t i = threadIdx.x; i < n; i += TILE) {
            float acc = out[i] * shrink;
            for (uint32_t t = lo < begin ? begin - lo : 0; t < TILE && lo + t < end; t++)
                acc += weight[t] * element(row_at(j, table, kv_head, lo + t) + j.v_at, i, j.dtype);
            out[i] = acc;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < n; i += TILE)
        act_put(j.out, ((size_t)row * j.n_heads + head) * n + i, out[i] / sum);
}

void attend_simple(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    cuda_launch(d, simple_kernel, dim3(b->n_rows, j->n_heads), TILE, 2 * j->head_dim * sizeof(float), *j);
}
