/* Queries, keys and values. Few rows of a model without head norms: one kernel makes the three products, turns the
 * heads and writes the cache. Otherwise the three products, as one where the weights lie behind each other, into
 * scratch; then another kernel does the rest. Queries that attend_wide.cu reads are left as 16 bits, rounded as it
 * would do it. */
#include "cuda/attend.cuh"
#include "cuda/skinny.h"

#define HEADS_PER_BLOCK 4
#define HEADS_EACH      4    /* of a warp, that are loaded together */
#define EIGHTS_LEAST    1024 /* rows from which heads_many_kernel is the faster */
#define EIGHTS_THREADS  128
#define EIGHTS_EACH     3 /* times four heads of a warp, that are loaded together */

struct heads_job {
    const void *in;       /* [T][(Q + 2G) * D], f32 or bf16 */
    bool in_bf16, rounds; /* rounds: as skinny_job's */
    struct scales left;   /* columns: queries, keys, values */
    uint32_t n_rows;
    float *q;
    bool short_q; /* as attend_job's */
    const uint32_t *seq;
    const struct batch_seq *seqs;
    const float *q_gain, *k_gain;
    float eps;
    struct skinny_heads h;
};

/* Whether this row's queries become 16 bits. */
__device__ __forceinline__ bool is_short(const struct heads_job &j, uint32_t row)
{
    return j.short_q && !attend_is_few(j.seqs[j.seq[row]].n_rows, j.h.n_heads / j.h.n_kv_heads);
}

/* The largest of LANES neighbours. */
template <int LANES> __device__ static float largest(float x)
{
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* Where a head's row lies in the cache; of a Q8_0 cache, the first byte of its 16 positions. */
__device__ static unsigned char *head_at(const struct skinny_heads &h, uint32_t slot, uint32_t local, bool is_k)
{
    const uint32_t block = slot / h.block_tokens, at = slot - block * h.block_tokens;
    return h.blocks + (uint64_t)block * h.block_bytes + (is_k ? h.k_at : h.v_at) +
           ((uint64_t)local * h.block_tokens + (h.kv_dtype == DTYPE_Q8_0 ? at / 16 * 16 : at)) * h.row_bytes;
}

/* A Q8_0 group of the cache: up to 32 elements, one a lane. at: of its position, counted in its 16. */
__device__ static void store_group(unsigned char *to, uint32_t head_dim, uint32_t at, uint32_t i, float x)
{
    const float most = largest<32>(fabsf(x)), inverse = most > 0.0f ? 127.0f / most : 0.0f;
    if (i < head_dim)
        to[q8_value_at(head_dim, at, i)] = (unsigned char)__float2int_rn(x * inverse);
    if (i % 32 == 0)
        *(__half *)(to + q8_scale_at(head_dim, at, i)) = __float2half_rn(most / 127.0f);
}

__device__ static void store_head(
    const struct skinny_heads &h, const float *head, uint32_t local, bool is_k, uint32_t row)
{
    const uint32_t slot = h.slot[row];
    if (slot == KV_SLOT_NONE)
        return;
    unsigned char *to = head_at(h, slot, local, is_k);
    if (h.kv_dtype == DTYPE_Q8_0) {
        for (uint32_t first = 0; first < h.head_dim; first += 32) {
            const uint32_t i = first + threadIdx.x % 32;
            store_group(to, h.head_dim, slot % 16, i, i < h.head_dim ? head[i] : 0.0f);
        }
        return;
    }
    for (uint32_t i = threadIdx.x % 32; i < h.head_dim; i += 32)
        float_store(to, i, h.kv_dtype, head[i]);
}

/* Rounded as end_heads does it. */
__device__ __forceinline__ void turn(float &a, float &b, float2 t)
{
    const float x = a;
    a = __fmaf_rn(x, t.x, -__fmul_rn(b, t.y));
    b = __fmaf_rn(x, t.y, __fmul_rn(b, t.x));
}

__global__ static void heads_kernel(const __grid_constant__ struct heads_job j)
{
    SHARED_ROOM(all_heads);
    launch_wait();
    const struct skinny_heads &h = j.h;
    const uint32_t lane = threadIdx.x % 32, n = h.head_dim, n_all = h.n_heads + 2 * h.n_kv_heads;
    const uint32_t head = blockIdx.y * HEADS_PER_BLOCK + threadIdx.x / 32, row = blockIdx.x;
    if (head >= n_all)
        return;
    float *x = (float *)all_heads + threadIdx.x / 32 * n;
    const uint32_t part = head < h.n_heads ? 0 : head < h.n_heads + h.n_kv_heads ? 1 : 2;
    const uint32_t local = head - (part == 0 ? 0 : part == 1 ? h.n_heads : h.n_heads + h.n_kv_heads);
    const float *bias = h.bias[part], *gain = part == 0 ? j.q_gain : part == 1 ? j.k_gain : NULL;
    const float *scale = j.left.column[part], row_scale = j.left.row != NULL ? j.left.row[row] : 0.0f;
    const size_t from = ((size_t)row * n_all + head) * n;
    float sum = 0.0f;
    for (uint32_t i = lane; i < n; i += 32) {
        float y = float_load(j.in, from + i, j.in_bf16 ? DTYPE_BF16 : DTYPE_F32);
        y *= j.left.row != NULL ? row_scale * scale[local * n + i] : 1.0f;
        const float v = (j.rounds ? as_bf16(y) : y) + (bias != NULL ? bias[local * n + i] : 0.0f);
        x[i] = v;
        sum += v * v;
    }
    if (gain != NULL) {
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        const float inv = rsqrtf(sum / (float)n + j.eps);
        for (uint32_t i = lane; i < n; i += 32)
            x[i] *= inv * gain[i];
    }
    __syncwarp();
    const uint32_t half = part < 2 && h.rope != ROPE_NONE ? h.rope_dims / 2 : 0;
    const float2 *table = (const float2 *)(h.rope_table + (size_t)h.pos[row] * h.rope_dims);
    for (uint32_t i = lane; i < half; i += 32) {
        const uint32_t a = h.rope == ROPE_PAIRS ? 2 * i : i, b = h.rope == ROPE_PAIRS ? 2 * i + 1 : i + half;
        turn(x[a], x[b], table[i]);
    }
    __syncwarp();
    if (part > 0) {
        store_head(h, x, local, part == 1, row);
        return;
    }
    float *q = j.q + (size_t)row * h.n_heads * n;
    const bool shorter = is_short(j, row);
    for (uint32_t i = lane; i < n; i += 32)
        if (shorter)
            float_store(q, local * n + i, h.kv_dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F16, x[i]);
        else
            q[local * n + i] = x[i];
}

__device__ __forceinline__ uint32_t pack_short(enum dtype dtype, float lo, float hi)
{
    return dtype == DTYPE_BF16 ? pack_bf16(lo, hi) : pack2(__half(), lo, hi);
}

/* Elements e and e + 1 of a head of 128 into the cache; 16 neighbouring lanes have 32 neighbouring elements. */
__device__ static void store_two(
    const struct skinny_heads &h, unsigned char *to, uint32_t at, uint32_t e, float x, float y)
{
    switch (h.kv_dtype) {
    case DTYPE_F16: *(uint32_t *)(to + 2 * e) = pack2(__half(), x, y); break;
    case DTYPE_F8_E4M3:
        *(__nv_fp8x2_storage_t *)(to + e) = __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
        break;
    case DTYPE_Q8_0: {
        const float most = largest<16>(fmaxf(fabsf(x), fabsf(y))), inverse = most > 0.0f ? 127.0f / most : 0.0f;
        const uint32_t a = (uint32_t)__float2int_rn(x * inverse) & 255, b = (uint32_t)__float2int_rn(y * inverse) & 255;
        *(unsigned short *)(to + q8_value_at(128, at, e)) = (unsigned short)(a | b << 8);
        if (e % 32 == 0)
            *(__half *)(to + q8_scale_at(128, at, e)) = __float2half_rn(most / 127.0f);
        break;
    }
    default: *(uint32_t *)(to + 2 * e) = pack_bf16(x, y); break;
    }
}

/* What all heads of a row need. */
struct turns {
    uint32_t slot;
    float row_scale;
    bool is_short;
    float4 pairs; /* HALVES: pairs 2l and 2l+1 */
    float2 low, high;
};

/* A head of 128: a and b are elements 2l, 2l+1 and the two 64 further. */
__device__ static void head_128(const struct heads_job &j, const struct turns &t, uint32_t head, uint32_t a, uint32_t b)
{
    const struct skinny_heads &h = j.h;
    const uint32_t lane = threadIdx.x % 32, row = blockIdx.x;
    float x0 = __uint_as_float(a << 16), x1 = __uint_as_float(a & 0xffff0000u);
    float y0 = __uint_as_float(b << 16), y1 = __uint_as_float(b & 0xffff0000u);
    const bool is_v = head >= h.n_heads + h.n_kv_heads, is_q = head < h.n_heads;
    const uint32_t local = head - (is_q ? 0 : h.n_heads + (is_v ? h.n_kv_heads : 0));
    if (j.left.row != NULL) {
        const float *scale = j.left.column[is_q ? 0 : is_v ? 2 : 1] + local * 128;
        const float2 s = *(const float2 *)(scale + 2 * lane), u = *(const float2 *)(scale + 64 + 2 * lane);
        x0 *= t.row_scale * s.x;
        x1 *= t.row_scale * s.y;
        y0 *= t.row_scale * u.x;
        y1 *= t.row_scale * u.y;
    }
    if (!is_v && h.rope == ROPE_HALVES) {
        turn(x0, y0, make_float2(t.pairs.x, t.pairs.y));
        turn(x1, y1, make_float2(t.pairs.z, t.pairs.w));
    } else if (!is_v) {
        turn(x0, x1, t.low);
        turn(y0, y1, t.high);
    }
    if (is_q && t.is_short) {
        uint32_t *q = (uint32_t *)(j.q + (size_t)row * h.n_heads * 128) + head * 64;
        q[lane] = pack_short(h.kv_dtype, x0, x1);
        q[lane + 32] = pack_short(h.kv_dtype, y0, y1);
    } else if (is_q) {
        float2 *q = (float2 *)(j.q + ((size_t)row * h.n_heads + head) * 128);
        q[lane] = make_float2(x0, x1);
        q[lane + 32] = make_float2(y0, y1);
    } else if (t.slot != KV_SLOT_NONE) {
        unsigned char *to = head_at(h, t.slot, local, !is_v);
        store_two(h, to, t.slot % 16, 2 * lane, x0, x1);
        store_two(h, to, t.slot % 16, 2 * lane + 64, y0, y1);
    }
}

/* Heads of 128 that turn whole, from bf16, into a cache of 16 or 8 bits, without norms: a lane holds elements 2l, 2l+1
 * and the two 64 further, so whatever turns together is its own. A warp takes a row and head. */
__global__ static void heads_128_kernel(const __grid_constant__ struct heads_job j)
{
    launch_wait();
    launch_next(); /* attention's blocks are there when this ends */
    const struct skinny_heads &h = j.h;
    const uint32_t lane = threadIdx.x % 32, n_all = h.n_heads + 2 * h.n_kv_heads, row = blockIdx.x;
    const uint32_t warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const uint32_t *in = (const uint32_t *)j.in + (size_t)row * n_all * 64 + lane;
    uint32_t a[HEADS_EACH], b[HEADS_EACH];
#pragma unroll
    for (uint32_t i = 0; i < HEADS_EACH; i++) { /* all on their way before the first is used */
        const uint32_t head = warp + i * n_warps;
        a[i] = head < n_all ? __ldg(in + head * 64) : 0;
        b[i] = head < n_all ? __ldg(in + head * 64 + 32) : 0;
    }
    struct turns t;
    t.slot = h.slot[row];
    t.row_scale = j.left.row != NULL ? j.left.row[row] : 0.0f;
    t.is_short = is_short(j, row);
    const float *table = h.rope_table + (size_t)h.pos[row] * 128;
    t.pairs = *(const float4 *)(table + 4 * lane);
    t.low = *(const float2 *)(table + 2 * lane);
    t.high = *(const float2 *)(table + 64 + 2 * lane);
#pragma unroll
    for (uint32_t i = 0; i < HEADS_EACH; i++)
        if (warp + i * n_warps < n_all)
            head_128(j, t, warp + i * n_warps, a[i], b[i]);
    for (uint32_t head = warp + HEADS_EACH * n_warps; head < n_all; head += n_warps)
        head_128(j, t, head, __ldg(in + head * 64), __ldg(in + head * 64 + 32));
}

/* The same for many rows, where bytes are what counts. A lane holds eight neighbouring elements of a head and the eight
 * that lie 64 further; a warp has four heads. */
struct eights {
    float x[2][8]; /* elements 8l .. 8l+7, l = lane % 8; those 64 further */
};

struct eight_turns {
    uint32_t slot;
    float row_scale;
    bool is_short;
    float t[16]; /* cos and sin of: HALVES: pairs 8l .. 8l+7; PAIRS: 4l .. 4l+3, and those 32 further */
};

__device__ __forceinline__ struct eight_turns eight_turns_of(const struct heads_job &j, uint32_t row)
{
    const struct skinny_heads &h = j.h;
    const uint32_t l = threadIdx.x % 8;
    const bool halves = h.rope == ROPE_HALVES;
    const float *table = h.rope_table + (size_t)h.pos[row] * 128 + (halves ? 16 : 8) * l;
    struct eight_turns t;
    t.slot = h.slot[row];
    t.row_scale = j.left.row != NULL ? j.left.row[row] : 0.0f;
    t.is_short = is_short(j, row);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 x = *(const float4 *)(table + i / 2 * (halves ? 8 : 64) + i % 2 * 4);
        t.t[4 * i] = x.x;
        t.t[4 * i + 1] = x.y;
        t.t[4 * i + 2] = x.z;
        t.t[4 * i + 3] = x.w;
    }
    return t;
}

__device__ __forceinline__ void turn_eights(enum rope_style rope, const struct eight_turns &t, struct eights &e)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 by = make_float2(t.t[2 * i], t.t[2 * i + 1]);
        if (rope == ROPE_HALVES)
            turn(e.x[0][i], e.x[1][i], by);
        else
            turn(e.x[i / 4][2 * (i % 4)], e.x[i / 4][2 * (i % 4) + 1], by);
    }
}

__device__ __forceinline__ uint4 short_eight(enum dtype dtype, const float x[8])
{
    return make_uint4(pack_short(dtype, x[0], x[1]), pack_short(dtype, x[2], x[3]), pack_short(dtype, x[4], x[5]),
        pack_short(dtype, x[6], x[7]));
}

/* Bytes of four neighbours. */
__device__ __forceinline__ uint32_t f8_four(const float x[4])
{
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}

__device__ __forceinline__ uint32_t q8_four(const float x[4], float inverse)
{
    uint32_t bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bytes |= ((uint32_t)__float2int_rn(x[i] * inverse) & 255) << 8 * i;
    return bytes;
}

/* Elements e .. e+7 into the cache. at: of their position, counted in its 16; most: of a Q8_0 group, the largest. */
__device__ __forceinline__ void store_eight(
    const struct skinny_heads &h, unsigned char *to, uint32_t at, uint32_t e, const float x[8], float most)
{
    if (h.kv_dtype == DTYPE_F8_E4M3) {
        *(uint2 *)(to + e) = make_uint2(f8_four(x), f8_four(x + 4));
    } else if (h.kv_dtype == DTYPE_Q8_0) {
        const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
        *(uint2 *)(to + q8_value_at(128, at, e)) = make_uint2(q8_four(x, inverse), q8_four(x + 4, inverse));
        if (e % 32 == 0)
            *(__half *)(to + q8_scale_at(128, at, e)) = __float2half_rn(most / 127.0f);
    } else {
        *(uint4 *)(to + 2 * e) = short_eight(h.kv_dtype, x);
    }
}

/* The largest of the lane's group of 32, which four lanes have. */
__device__ __forceinline__ float most_of_group(const float x[8])
{
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = fmaxf(most, fabsf(x[i]));
    return largest<4>(most);
}

__device__ __forceinline__ void put_q(
    const struct heads_job &j, const struct eight_turns &t, uint32_t row, uint32_t head, const struct eights &e)
{
    float *const q = j.q + (size_t)row * j.h.n_heads * 128;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *x = e.x[i];
        const uint32_t at = head * 128 + i * 64 + threadIdx.x % 8 * 8;
        if (t.is_short) {
            *(uint4 *)((uint16_t *)q + at) = short_eight(j.h.kv_dtype, x);
        } else {
            *(float4 *)(q + at) = make_float4(x[0], x[1], x[2], x[3]);
            *(float4 *)(q + at + 4) = make_float4(x[4], x[5], x[6], x[7]);
        }
    }
}

/* The lane's eights of a head, as they were loaded; all lanes of the warp come here, whether theirs exists or not. */
__device__ __forceinline__ void head_eights(
    const struct heads_job &j, const struct eight_turns &t, uint32_t row, uint32_t head, const uint4 (&in)[2])
{
    const struct skinny_heads &h = j.h;
    const uint32_t first = threadIdx.x % 8 * 8, n_turned = h.n_heads + h.n_kv_heads;
    const bool is_q = head < h.n_heads, is_v = head >= n_turned, is_there = head < n_turned + h.n_kv_heads;
    const uint32_t local = head - (is_q ? 0 : is_v ? n_turned : h.n_heads);
    struct eights e;
    float most[2] = {};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t *words = &in[i / 8].x, w = words[i % 8 / 2];
        e.x[i / 8][i % 8] = __uint_as_float(i % 2 == 0 ? w << 16 : w & 0xffff0000u);
    }
    if (j.left.row != NULL && is_there) {
        const float *scale = j.left.column[is_q ? 0 : is_v ? 2 : 1] + local * 128 + first;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 by = *(const float4 *)(scale + i / 2 * 64 + i % 2 * 4);
            float *x = e.x[i / 2] + i % 2 * 4;
            x[0] *= t.row_scale * by.x;
            x[1] *= t.row_scale * by.y;
            x[2] *= t.row_scale * by.z;
            x[3] *= t.row_scale * by.w;
        }
    }
    if (!is_v)
        turn_eights(h.rope, t, e);
    if (h.kv_dtype == DTYPE_Q8_0)
#pragma unroll
        for (int i = 0; i < 2; i++)
            most[i] = most_of_group(e.x[i]);
    if (!is_there)
        return;
    if (is_q) {
        put_q(j, t, row, head, e);
    } else if (t.slot != KV_SLOT_NONE) {
        unsigned char *to = head_at(h, t.slot, local, !is_v);
#pragma unroll
        for (int i = 0; i < 2; i++)
            store_eight(h, to, t.slot % 16, first + i * 64, e.x[i], most[i]);
    }
}

/* A block takes a row. */
__global__ static void __launch_bounds__(EIGHTS_THREADS) heads_many_kernel(const __grid_constant__ struct heads_job j)
{
    constexpr uint32_t STEP = EIGHTS_THREADS / 8;
    launch_wait();
    launch_next();
    const uint32_t row = blockIdx.x, n_all = j.h.n_heads + 2 * j.h.n_kv_heads;
    const uint4 *const in = (const uint4 *)j.in + (size_t)row * n_all * 16 + threadIdx.x % 8;
    struct eight_turns t;
    for (uint32_t first = threadIdx.x / 8; first / 4 * 4 < n_all; first += EIGHTS_EACH * STEP) {
        uint4 loaded[EIGHTS_EACH][2] = {};
#pragma unroll
        for (int i = 0; i < EIGHTS_EACH; i++)
            if (first + i * STEP < n_all) {
                loaded[i][0] = __ldg(in + (first + i * STEP) * 16);
                loaded[i][1] = __ldg(in + (first + i * STEP) * 16 + 8);
            }
        if (first < STEP) /* the first time, behind the loads */
            t = eight_turns_of(j, row);
#pragma unroll
        for (int i = 0; i < EIGHTS_EACH; i++)
            if ((first + i * STEP) / 4 * 4 < n_all)
                head_eights(j, t, row, first + i * STEP, loaded[i]);
    }
}

static bool is_plain_128(const struct heads_job *j)
{
    const struct skinny_heads *h = &j->h;
    return j->in_bf16 && h->head_dim == 128 && h->rope_dims == 128 && h->rope != ROPE_NONE && j->q_gain == NULL &&
           j->k_gain == NULL && h->bias[0] == NULL && h->bias[1] == NULL && h->bias[2] == NULL &&
           h->kv_dtype != DTYPE_F32;
}

static struct skinny_heads heads_of(const struct batch *b, const struct kv_cache *kv, const struct qkv_args *a)
{
    const struct kv_layer *layer = a->layer;
    struct skinny_heads h = {};
    h.n_heads = a->n_heads;
    h.n_kv_heads = a->n_kv_heads;
    h.head_dim = a->head_dim;
    h.rope_dims = a->rope == ROPE_NONE ? 0 : a->rope_dims;
    h.rope = a->rope;
    h.rope_table = a->rope_table;
    h.pos = b->pos;
    h.slot = b->kv_slot[layer->group];
    h.blocks = kv->blocks;
    h.block_bytes = kv->block_bytes;
    h.k_at = layer->k_at;
    h.v_at = layer->v_at;
    h.block_tokens = kv->block_tokens;
    h.row_bytes = layer->row_bytes;
    h.kv_dtype = layer->dtype;
    h.bias[0] = a->wq->bias;
    h.bias[1] = a->wk->bias;
    h.bias[2] = a->wv->bias;
    return h;
}

/* One launch per run of weights that lie behind each other. */
static void qkv_skinny(
    struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct qkv_args *a, bool rounds)
{
    const struct weight *const w[3] = {a->wq, a->wk, a->wv};
    uint32_t first = 0;
    for (int i = 0; i < 3;) {
        uint32_t rows = w[i]->n_out;
        int next = i + 1;
        while (next < 3 && cuda_adjacent(w[next - 1], w[next]))
            rows += w[next++]->n_out;
        const struct matrix *m = matrix_of(w[i]);
        struct skinny_job j = {};
        j.end = SKINNY_QKV;
        j.w0 = m->data;
        j.scale0 = m->scales;
        j.row_bytes = m->row_bytes;
        j.n_in = m->n_in;
        j.n_out = rows;
        j.act = skinny_act(m->format, a->in);
        j.n_rows = b->n_rows;
        j.out = a->q;
        j.ldc = a->n_heads * a->head_dim;
        j.rounds = rounds;
        j.heads = heads_of(b, kv, a);
        j.heads.first_row = first;
        if (!resident_product(d, m->format, &j, a->in))
            cuda_skinny(d, m->format, &j);
        first += rows;
        i = next;
    }
}

static void qkv_products(struct dev *d, const struct batch *b, const struct qkv_args *a, bool bf16, bool unscaled)
{
    const struct weight *const w[3] = {a->wq, a->wk, a->wv};
    const uint32_t all = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    uint32_t first = 0;
    for (int i = 0; i < 3;) {
        uint32_t rows = w[i]->n_out;
        int next = i + 1;
        while (next < 3 && cuda_adjacent(w[next - 1], w[next]))
            rows += w[next++]->n_out;
        const struct product p = {matrix_of(w[i]), rows, b->n_rows, a->in, (char *)a->scratch + first * (bf16 ? 2 : 4),
            all, false, bf16, unscaled};
        cuda_product(d, &p);
        first += rows;
        i = next;
    }
}

void cuda_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    const struct weight *const w[3] = {a->wq, a->wk, a->wv};
    bool skinny = true, bf16 = true, rounds = d->deterministic, unscaled = true, is_even = false;
    cuda_trace(d, a->wq, b->n_rows);
    for (int i = 0; i < 3; i++) {
        const bool small = cuda_is_skinny(d, matrix_of(w[i]), b->n_rows);
        skinny = skinny && small;
        is_even =
            is_even || cuda_way_of(d, matrix_of(w[i])->format, w[i]->n_out, w[i]->n_in, b->n_rows) == CUDA_WAY_EVEN;
        bf16 = bf16 && !small && cuda_gives_bf16(d, matrix_of(w[i]));
        rounds = rounds && cuda_gives_bf16(d, matrix_of(w[i]));
        unscaled = unscaled && bf16 && cuda_leaves_scales(d, matrix_of(w[i]), b->n_rows);
    }
    const bool plain_kv = a->layer->dtype != DTYPE_Q8_0;
    /* Where flow.cuh cannot take the heads, another kernel would, with other sums than many rows have. */
    const bool alike = !d->deterministic || !d->chained || flow_has_heads(a->head_dim, a->rope_dims);
    const bool has_heads = !is_even || even_has_heads(a->head_dim, a->rope_dims, a->rope);
    if (skinny && plain_kv && a->q_gain == NULL && a->k_gain == NULL && a->head_dim % 16 == 0 && alike && has_heads) {
        qkv_skinny(d, b, kv, a, rounds);
        return;
    }
    const uint32_t per_kv = a->n_heads / a->n_kv_heads;
    d->short_q = !attend_is_few(b->seq_rows, per_kv) && attend_takes_short(d, a->layer, a->head_dim, per_kv);
    qkv_products(d, b, a, bf16, unscaled);
    struct heads_job j = {};
    j.in = a->scratch;
    j.in_bf16 = bf16;
    j.rounds = rounds;
    j.left = {unscaled ? cuda_row_scales(d, a->in) : NULL,
        {matrix_of(a->wq)->scales, matrix_of(a->wk)->scales, matrix_of(a->wv)->scales}};
    j.n_rows = b->n_rows;
    j.q = a->q;
    j.short_q = d->short_q;
    j.seq = b->seq;
    j.seqs = b->seqs;
    j.q_gain = a->q_gain;
    j.k_gain = a->k_gain;
    j.eps = a->norm_eps;
    j.h = heads_of(b, kv, a);
    const uint32_t n_all = a->n_heads + 2 * a->n_kv_heads;
    if (is_plain_128(&j)) {
        if (b->n_rows < EIGHTS_LEAST)
            cuda_launch(d, heads_128_kernel, dim3(b->n_rows), 512, 0, j);
        else
            cuda_launch(d, heads_many_kernel, dim3(b->n_rows), EIGHTS_THREADS, 0, j);
        return;
    }
    cuda_launch(d, heads_kernel, dim3(b->n_rows, (n_all + HEADS_PER_BLOCK - 1) / HEADS_PER_BLOCK), HEADS_PER_BLOCK * 32,
        HEADS_PER_BLOCK * a->head_dim * sizeof(float), j);
}
