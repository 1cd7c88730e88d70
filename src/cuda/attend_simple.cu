/* Attention for head sizes and cache types without a kernel of their own: a block per row and query head walks the
 * visible positions in tiles, a thread per position for the scores and a thread per element for the output, with an
 * online softmax between tiles. */
#include "cuda/attend.cuh"

#define TILE 128 /* positions, and threads of a block */

/* Element i of position p; at: the first byte of its 16. */
__device__ static float element(const struct attend_job &j, const unsigned char *at, uint32_t p, uint32_t i)
{
    p %= 16;
    if (j.dtype == DTYPE_Q8_0)
        return (float)(int8_t)at[q8_value_at(j.head_dim, p, i)] *
               __half2float(*(const __half *)(at + q8_scale_at(j.head_dim, p, i)));
    return float_load(at + (size_t)p * j.row_bytes, i, j.dtype);
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
            const unsigned char *k = position_at(j, table, kv_head, p / 16 * 16) + j.k_at;
            s = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                s += q[i] * element(j, k, p, i);
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
                acc += weight[t] * element(j, position_at(j, table, kv_head, (lo + t) / 16 * 16) + j.v_at, lo + t, i);
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
