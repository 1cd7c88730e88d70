/* Row-wise kernels: embedding, norms, rope with the KV write, residuals, gated activations. One block per row (or per
 * row and head); sums inside a row are taken by a fixed tree, so these kernels do not depend on the batch. */
#include "cuda/cuda_int.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define THREADS 256

/* Sum over the block, the same in every thread. */
__device__ static float block_sum(float x)
{
    __shared__ float part[32];
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        sum += part[i];
    __syncthreads();
    return sum;
}

/* Where a row's activations go. */
struct act_rows {
    float *f32;
    __half *f16;
    __nv_bfloat16 *bf16;
};

static struct act_rows rows_of(struct acts *a, uint32_t forms)
{
    struct act_rows r = {
        a->f32, (forms & ACT_F16) ? (__half *)a->f16 : NULL, (forms & ACT_BF16) ? (__nv_bfloat16 *)a->bf16 : NULL};
    return r;
}

__device__ static void put(struct act_rows out, size_t at, float x)
{
    out.f32[at] = x;
    if (out.f16 != NULL)
        out.f16[at] = __float2half_rn(x);
    if (out.bf16 != NULL)
        out.bf16[at] = __float2bfloat16_rn(x);
}

__device__ static float load_float(const void *p, size_t at, enum dtype dtype)
{
    if (dtype == DTYPE_F16)
        return __half2float(((const __half *)p)[at]);
    if (dtype == DTYPE_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)p)[at]);
    return ((const float *)p)[at];
}

__device__ static void store_float(void *p, size_t at, enum dtype dtype, float x)
{
    if (dtype == DTYPE_F16)
        ((__half *)p)[at] = __float2half_rn(x);
    else if (dtype == DTYPE_BF16)
        ((__nv_bfloat16 *)p)[at] = __float2bfloat16_rn(x);
    else
        ((float *)p)[at] = x;
}

__global__ static void embed_kernel(
    const int32_t *token, const void *table, enum dtype dtype, uint32_t n, float scale, float *out)
{
    const size_t from = (size_t)token[blockIdx.x] * n, to = (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        out[to + i] = load_float(table, from + i, dtype) * scale;
}

void cuda_embed(struct dev *d, const struct batch *b, const struct embed_args *a)
{
    const struct weight *w = a->table;
    embed_kernel<<<b->n_rows, THREADS, 0, d->stream>>>(b->token, w->packed, w->dtype, w->n_in, a->scale, a->out);
    CUDA_DO(d, cudaGetLastError());
}

__global__ static void norm_kernel(
    const float *x, const uint32_t *rows, uint32_t n, const float *gain, float eps, struct act_rows out)
{
    const float *row = x + (size_t)(rows != NULL ? rows[blockIdx.x] : blockIdx.x) * n;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += row[i] * row[i];
    const float inv = rsqrtf(block_sum(sum) / (float)n + eps);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        put(out, (size_t)blockIdx.x * n + i, row[i] * inv * gain[i]);
}

void cuda_norm(struct dev *d, const struct norm_args *a)
{
    norm_kernel<<<a->n_rows, THREADS, 0, d->stream>>>(a->x, a->rows, a->n, a->gain, a->eps, rows_of(a->out, a->forms));
    CUDA_DO(d, cudaGetLastError());
}

/* x += post_norm(y + bias), or x += bias where y was added by the product itself (y NULL). */
__global__ static void add_kernel(float *x, const float *y, const float *bias, const float *gain, float eps, uint32_t n)
{
    float *to = x + (size_t)blockIdx.x * n;
    const float *from = y != NULL ? y + (size_t)blockIdx.x * n : NULL;
    float sum = 0.0f, inv = 1.0f;
    if (gain != NULL) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const float v = from[i] + (bias != NULL ? bias[i] : 0.0f);
            sum += v * v;
        }
        inv = rsqrtf(block_sum(sum) / (float)n + eps);
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = (from != NULL ? from[i] : 0.0f) + (bias != NULL ? bias[i] : 0.0f);
        to[i] += gain != NULL ? v * inv * gain[i] : v;
    }
}

void cuda_project(struct dev *d, const struct batch *b, const struct project_args *a)
{
    const uint32_t n = a->w->n_out;
    if (a->post_gain == NULL) {
        cuda_product(d, a->w, a->in, b->n_rows, a->x, n, 1.0f);
        if (a->w->bias != NULL)
            add_kernel<<<b->n_rows, THREADS, 0, d->stream>>>(a->x, NULL, a->w->bias, NULL, 0.0f, n);
    } else {
        cuda_product(d, a->w, a->in, b->n_rows, a->scratch, n, 0.0f);
        add_kernel<<<b->n_rows, THREADS, 0, d->stream>>>(a->x, a->scratch, a->w->bias, a->post_gain, a->post_eps, n);
    }
    CUDA_DO(d, cudaGetLastError());
}

/* One block per row and head: bias, norm of the head, rope, and for k and v the rounding into the cache. */
struct head_job {
    float *x; /* first element of row 0 */
    uint32_t row_stride, n_heads, head_dim;
    const float *bias, *gain; /* gain [head_dim], bias [n_heads * head_dim]; NULL = none */
    float eps;
    enum rope_style rope;
    uint32_t rope_dims;
    const float *rope_table;
    const uint32_t *pos;
    /* NULL slot: q, which stays where it is */
    const uint32_t *slot;
    unsigned char *blocks;
    uint64_t block_bytes, part_at;
    uint32_t block_tokens, row_bytes;
    enum dtype kv_dtype;
};

__global__ static void head_kernel(struct head_job j)
{
    extern __shared__ float head[];
    const uint32_t row = blockIdx.x, h = blockIdx.y, n = j.head_dim;
    float *x = j.x + (size_t)row * j.row_stride + (size_t)h * n;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        head[i] = x[i] + (j.bias != NULL ? j.bias[h * n + i] : 0.0f);
        sum += head[i] * head[i];
    }
    if (j.gain != NULL) {
        const float inv = rsqrtf(block_sum(sum) / (float)n + j.eps);
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            head[i] *= inv * j.gain[i];
    }
    __syncthreads();
    const uint32_t half = j.rope != ROPE_NONE ? j.rope_dims / 2 : 0;
    const float *table = j.rope_table + (size_t)j.pos[row] * j.rope_dims;
    for (uint32_t i = threadIdx.x; i < half; i += blockDim.x) {
        const uint32_t a = j.rope == ROPE_PAIRS ? 2 * i : i, b = j.rope == ROPE_PAIRS ? 2 * i + 1 : i + half;
        const float c = table[2 * i], s = table[2 * i + 1], x0 = head[a], x1 = head[b];
        head[a] = x0 * c - x1 * s;
        head[b] = x0 * s + x1 * c;
    }
    __syncthreads();
    if (j.slot == NULL) {
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            x[i] = head[i];
        return;
    }
    const uint32_t slot = j.slot[row];
    if (slot == KV_SLOT_NONE)
        return;
    unsigned char *to = j.blocks + (uint64_t)(slot / j.block_tokens) * j.block_bytes + j.part_at +
                        ((uint64_t)h * j.block_tokens + slot % j.block_tokens) * j.row_bytes;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        store_float(to, i, j.kv_dtype, head[i]);
}

void cuda_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    const uint32_t n = a->head_dim, q_n = a->n_heads * n, kv_n = a->n_kv_heads * n;
    const struct kv_layer *layer = a->layer;
    cuda_product(d, a->wq, a->in, b->n_rows, a->q, q_n, 0.0f);
    cuda_product(d, a->wk, a->in, b->n_rows, a->scratch, 2 * kv_n, 0.0f);
    cuda_product(d, a->wv, a->in, b->n_rows, a->scratch + kv_n, 2 * kv_n, 0.0f);
    struct head_job q = {};
    q.x = a->q;
    q.row_stride = q_n;
    q.n_heads = a->n_heads;
    q.head_dim = n;
    q.bias = a->wq->bias;
    q.gain = a->q_gain;
    q.eps = a->norm_eps;
    q.rope = a->rope;
    q.rope_dims = a->rope_dims;
    q.rope_table = a->rope_table;
    q.pos = b->pos;
    struct head_job k = q;
    k.x = a->scratch;
    k.row_stride = 2 * kv_n;
    k.n_heads = a->n_kv_heads;
    k.bias = a->wk->bias;
    k.gain = a->k_gain;
    k.slot = b->kv_slot[layer->group];
    k.blocks = kv->blocks;
    k.block_bytes = kv->block_bytes;
    k.block_tokens = kv->block_tokens;
    k.row_bytes = layer->row_bytes;
    k.part_at = layer->k_at;
    k.kv_dtype = layer->dtype;
    struct head_job v = k;
    v.x = a->scratch + kv_n;
    v.bias = a->wv->bias;
    v.gain = NULL;
    v.rope = ROPE_NONE;
    v.part_at = layer->v_at;
    const size_t shared = n * sizeof(float);
    head_kernel<<<dim3(b->n_rows, a->n_heads), 64, shared, d->stream>>>(q);
    head_kernel<<<dim3(b->n_rows, a->n_kv_heads), 64, shared, d->stream>>>(k);
    head_kernel<<<dim3(b->n_rows, a->n_kv_heads), 64, shared, d->stream>>>(v);
    CUDA_DO(d, cudaGetLastError());
}

__global__ static void glu_kernel(
    const float *gate_up, const float *gate_bias, const float *up_bias, uint32_t n, enum glu kind, struct act_rows out)
{
    const float *gate = gate_up + (size_t)blockIdx.x * 2 * n, *up = gate + n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float g = gate[i] + (gate_bias != NULL ? gate_bias[i] : 0.0f);
        const float u = up[i] + (up_bias != NULL ? up_bias[i] : 0.0f);
        const float y = kind == GLU_SILU ? g / (1.0f + expf(-g))
                                         : 0.5f * g * (1.0f + tanhf(0.797884561f * (g + 0.044715f * g * g * g)));
        put(out, (size_t)blockIdx.x * n + i, y * u);
    }
}

void cuda_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a)
{
    const uint32_t n = a->gate->n_out;
    cuda_product(d, a->gate, a->in, b->n_rows, a->scratch, 2 * n, 0.0f);
    cuda_product(d, a->up, a->in, b->n_rows, a->scratch + n, 2 * n, 0.0f);
    glu_kernel<<<b->n_rows, THREADS, 0, d->stream>>>(
        a->scratch, a->gate->bias, a->up->bias, n, a->glu, rows_of(a->out, a->forms));
    CUDA_DO(d, cudaGetLastError());
}

__global__ static void cap_kernel(float *x, uint32_t n, float scale, float cap)
{
    float *row = x + (size_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float y = row[i] * scale;
        row[i] = cap > 0.0f ? cap * tanhf(y / cap) : y;
    }
}

void cuda_logits(struct dev *d, const struct logits_args *a)
{
    const uint32_t n = a->head->n_out;
    cuda_product(d, a->head, a->in, a->n_rows, a->out, n, 0.0f);
    if (a->scale != 1.0f || a->cap > 0.0f)
        cap_kernel<<<a->n_rows, THREADS, 0, d->stream>>>(a->out, n, a->scale, a->cap);
    CUDA_DO(d, cudaGetLastError());
}

/* Better: larger, or as large at a lower index. */
__device__ static bool beats(float x, uint32_t i, float y, uint32_t k)
{
    return i != UINT32_MAX && (k == UINT32_MAX || x > y || (x == y && i < k));
}

__global__ static void argmax_kernel(const float *x, uint32_t n, uint32_t *out)
{
    __shared__ float top[THREADS];
    __shared__ uint32_t at[THREADS];
    const float *row = x + (size_t)blockIdx.x * n;
    float best = 0.0f;
    uint32_t where = UINT32_MAX;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        if (row[i] == row[i] && beats(row[i], i, best, where)) {
            best = row[i];
            where = i;
        }
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
    argmax_kernel<<<a->n_rows, THREADS, 0, d->stream>>>(a->x, a->n, a->out);
    CUDA_DO(d, cudaGetLastError());
}

void cuda_copy_blocks(struct dev *d, const struct copy_blocks_args *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        CUDA_DO(d, cudaMemcpyAsync(a->to->blocks + (uint64_t)a->dst[i] * a->to->block_bytes,
                       a->from->blocks + (uint64_t)a->src[i] * a->from->block_bytes, a->to->block_bytes,
                       cudaMemcpyDeviceToDevice, d->stream));
}
