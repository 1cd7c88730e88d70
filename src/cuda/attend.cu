/* Paged attention, the simple one: a block per row and query head walks the visible positions in tiles, a thread per
 * position for the scores and a thread per element for the output, with an online softmax between tiles. It reads the
 * length from device memory, so a captured step serves any context. */
#include "cuda/cuda_int.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define TILE 128 /* positions, and threads of a block */

struct attend_job {
    const float *q;
    uint32_t n_heads, per_kv, head_dim, window;
    float scale, cap;
    const uint32_t *pos, *seq, *table;
    const struct batch_seq *seqs;
    const unsigned char *blocks;
    uint64_t block_bytes, k_at, v_at;
    uint32_t block_tokens, row_bytes;
    float *out;
    __half *out_f16;
    __nv_bfloat16 *out_bf16;
};

__device__ static float element(const float *p, uint32_t i)
{
    return p[i];
}

__device__ static float element(const __half *p, uint32_t i)
{
    return __half2float(p[i]);
}

__device__ static float element(const __nv_bfloat16 *p, uint32_t i)
{
    return __bfloat162float(p[i]);
}

/* Maximum or sum over the block; every thread gets it. */
template <bool IS_MAX> __device__ static float reduce(float x, float *part)
{
    for (int step = 16; step > 0; step /= 2) {
        const float y = __shfl_xor_sync(0xffffffffu, x, step);
        x = IS_MAX ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    float all = part[0];
    for (int i = 1; i < TILE / 32; i++)
        all = IS_MAX ? fmaxf(all, part[i]) : all + part[i];
    __syncthreads();
    return all;
}

template <typename T> __global__ static void attend_kernel(struct attend_job j)
{
    extern __shared__ float shared[]; /* q, out: head_dim each */
    __shared__ float weight[TILE], part[TILE / 32];
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
            const unsigned char *block = j.blocks + (uint64_t)table[p / j.block_tokens] * j.block_bytes;
            const T *k =
                (const T *)(block + j.k_at + ((uint64_t)kv_head * j.block_tokens + p % j.block_tokens) * j.row_bytes);
            s = 0.0f;
            for (uint32_t i = 0; i < n; i++)
                s += q[i] * element(k, i);
            s *= j.scale;
            if (j.cap > 0.0f)
                s = j.cap * tanhf(s / j.cap);
        }
        const float new_top = fmaxf(top, reduce<true>(s, part));
        const float shrink = expf(top - new_top);
        weight[threadIdx.x] = visible ? expf(s - new_top) : 0.0f;
        sum = sum * shrink + reduce<false>(weight[threadIdx.x], part);
        top = new_top;
        for (uint32_t i = threadIdx.x; i < n; i += TILE) {
            float acc = out[i] * shrink;
            for (uint32_t t = lo < begin ? begin - lo : 0; t < TILE && lo + t < end; t++) {
                const uint32_t at = lo + t;
                const unsigned char *block = j.blocks + (uint64_t)table[at / j.block_tokens] * j.block_bytes;
                const T *v = (const T *)(block + j.v_at +
                                         ((uint64_t)kv_head * j.block_tokens + at % j.block_tokens) * j.row_bytes);
                acc += weight[t] * element(v, i);
            }
            out[i] = acc;
        }
        __syncthreads();
    }
    for (uint32_t i = threadIdx.x; i < n; i += TILE) {
        const size_t at = ((size_t)row * j.n_heads + head) * n + i;
        const float y = out[i] / sum;
        j.out[at] = y;
        if (j.out_f16 != NULL)
            j.out_f16[at] = __float2half_rn(y);
        if (j.out_bf16 != NULL)
            j.out_bf16[at] = __float2bfloat16_rn(y);
    }
}

void cuda_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a)
{
    struct attend_job j = {};
    j.q = a->q;
    j.n_heads = a->n_heads;
    j.per_kv = a->n_heads / a->n_kv_heads;
    j.head_dim = a->head_dim;
    j.window = a->window;
    j.scale = a->scale;
    j.cap = a->cap;
    j.pos = b->pos;
    j.seq = b->seq;
    j.seqs = b->seqs;
    j.table = b->tables[a->layer->group];
    j.blocks = kv->blocks;
    j.block_bytes = kv->block_bytes;
    j.block_tokens = kv->block_tokens;
    j.k_at = a->layer->k_at;
    j.v_at = a->layer->v_at;
    j.row_bytes = a->layer->row_bytes;
    j.out = a->out->f32;
    j.out_f16 = (a->forms & ACT_F16) ? (__half *)a->out->f16 : NULL;
    j.out_bf16 = (a->forms & ACT_BF16) ? (__nv_bfloat16 *)a->out->bf16 : NULL;
    const dim3 grid(b->n_rows, a->n_heads);
    const size_t shared = 2 * a->head_dim * sizeof(float);
    if (a->layer->dtype == DTYPE_F16)
        attend_kernel<__half><<<grid, TILE, shared, d->stream>>>(j);
    else if (a->layer->dtype == DTYPE_BF16)
        attend_kernel<__nv_bfloat16><<<grid, TILE, shared, d->stream>>>(j);
    else
        attend_kernel<float><<<grid, TILE, shared, d->stream>>>(j);
    CUDA_DO(d, cudaGetLastError());
}
