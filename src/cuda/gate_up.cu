/* The gated feed-forward's first half. Few rows, and many with 16-bit floats: one kernel makes both products and the
 * gate. Otherwise gate and up as one product when they lie behind each other, then the gate. */
#include "cuda/rows_f8.cuh"
#include "cuda/skinny.h"

#define HELD 8 /* quads of a row that a thread holds when its block has all of it, */
#define EACH 2 /* and otherwise */

/* Rows of 2n: gate then up; f32 or bf16. */
struct glu_job {
    const void *gate_up;
    const float *gate_bias, *up_bias;
    struct scales left;
    uint32_t n;
    enum glu kind;
};

/* Four neighbours as they lie in memory, asked for before any is used. */
template <bool BF16> struct Quad;

template <> struct Quad<true> {
    uint2 v;
    __device__ __forceinline__ void load(const void *p, size_t at)
    {
        v = *(const uint2 *)((const __nv_bfloat16 *)p + at);
    }
    __device__ __forceinline__ float4 get() const
    {
        return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
            __uint_as_float(v.y & 0xffff0000u));
    }
};

template <> struct Quad<false> {
    float4 v;
    __device__ __forceinline__ void load(const void *p, size_t at)
    {
        v = *(const float4 *)((const float *)p + at);
    }
    __device__ __forceinline__ float4 get() const
    {
        return v;
    }
};

__device__ __forceinline__ float4 biased(float4 x, const float *bias, uint32_t at)
{
    if (bias == NULL)
        return x;
    const float4 b = *(const float4 *)(bias + at);
    return make_float4(x.x + b.x, x.y + b.y, x.z + b.z, x.w + b.w);
}

__device__ __forceinline__ float4 glu_quad(const struct glu_job &j, float4 gate, float4 up, size_t row, uint32_t at)
{
    const float4 g = biased(scaled4(j.left, gate, row, 0, at), j.gate_bias, at);
    const float4 u = biased(scaled4(j.left, up, row, 1, at), j.up_bias, at);
    return make_float4(
        glu_of(g.x, u.x, j.kind), glu_of(g.y, u.y, j.kind), glu_of(g.z, u.z, j.kind), glu_of(g.w, u.w, j.kind));
}

/* N quads of a row that this thread has, blockDim.x apart from quad `first` on; zeros behind the row's end. */
template <bool BF16, int N>
__device__ __forceinline__ void glu_quads(const struct glu_job &j, size_t row, uint32_t first, float4 (&y)[N])
{
    Quad<BF16> gate[N] = {}, up[N] = {};
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t at = 4 * (first + i * blockDim.x);
        if (at < j.n) {
            gate[i].load(j.gate_up, row * 2 * j.n + at);
            up[i].load(j.gate_up, row * 2 * j.n + j.n + at);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t at = 4 * (first + i * blockDim.x);
        y[i] = at < j.n ? glu_quad(j, gate[i].get(), up[i].get(), row, at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

template <bool BF16> __global__ void glu_kernel(const __grid_constant__ struct glu_job j, struct act_rows out)
{
    launch_wait();
    const uint32_t first = blockIdx.y * EACH * blockDim.x + threadIdx.x;
    float4 y[EACH];
    glu_quads<BF16>(j, blockIdx.x, first, y);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t at = 4 * (first + i * blockDim.x);
        if (at < j.n)
            act_put4(out, (size_t)blockIdx.x * j.n + at, y[i]);
    }
}

/* For a product that reads e4m3: a block a row, which it holds whole. */
template <bool BF16>
__global__ void __launch_bounds__(1024)
    glu_f8_kernel(const __grid_constant__ struct glu_job j, unsigned char *out, float *scales)
{
    launch_wait();
    float4 held[HELD];
    glu_quads<BF16>(j, blockIdx.x, threadIdx.x, held);
    row_to_f8(held, j.n / 4, out + (size_t)blockIdx.x * j.n, scales + blockIdx.x);
}

/* Widths that are not whole quads. */
__global__ static void glu_odd_kernel(
    const float *gate_up, const float *gate_bias, const float *up_bias, uint32_t n, enum glu kind, struct act_rows out)
{
    launch_wait();
    const float *gate = gate_up + (size_t)blockIdx.x * 2 * n, *up = gate + n;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const float g = gate[i] + (gate_bias != NULL ? gate_bias[i] : 0.0f);
        const float u = up[i] + (up_bias != NULL ? up_bias[i] : 0.0f);
        act_put(out, (size_t)blockIdx.x * n + i, glu_of(g, u, kind));
    }
}

/* Both products and the gate as one; rounds: the products become bf16 first. */
static struct skinny_job gate_up_job(const struct batch *b, const struct gate_up_args *a, bool rounds)
{
    const struct matrix *gate = matrix_of(a->gate), *up = matrix_of(a->up);
    struct skinny_job j = {};
    j.end = SKINNY_GLU;
    j.w0 = gate->data;
    j.w1 = up->data;
    j.scale0 = gate->scales;
    j.scale1 = up->scales;
    j.bias0 = a->gate->bias;
    j.bias1 = a->up->bias;
    j.row_bytes = gate->row_bytes;
    j.n_in = gate->n_in;
    j.n_out = gate->n_out;
    j.act = skinny_act(gate->format, a->in);
    j.n_rows = b->n_rows;
    j.glu = a->glu;
    j.rounds = rounds;
    const struct act_rows out = act_rows_of(a->out, a->forms);
    j.act_f32 = out.f32;
    j.act_f16 = out.f16;
    j.act_bf16 = out.bf16;
    return j;
}

void cuda_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a)
{
    const struct matrix *gate = matrix_of(a->gate), *up = matrix_of(a->up);
    const uint32_t n = a->gate->n_out;
    const bool gives_bf16 = n % 4 == 0 && cuda_gives_bf16(d, gate) && cuda_gives_bf16(d, up);
    cuda_trace(d, a->gate, b->n_rows);
    if (gate->format == up->format && cuda_is_skinny(d, gate, b->n_rows)) {
        const struct skinny_job j = gate_up_job(b, a, d->deterministic && gives_bf16);
        if (!resident_product(d, gate->format, &j, a->in))
            cuda_skinny(d, gate->format, &j);
        return;
    }
    if (gate->format == up->format && a->forms == (gate->format == FORMAT_F16 ? ACT_F16 : ACT_BF16) &&
        cuda_is_many(d, gate, b->n_rows)) {
        const struct skinny_job j = gate_up_job(b, a, false); /* which rounds by itself */
        cuda_many(d, gate->format, &j);
        return;
    }
    const bool bf16 = gives_bf16 && !cuda_is_skinny(d, gate, b->n_rows) && !cuda_is_skinny(d, up, b->n_rows);
    const bool unscaled = bf16 && cuda_leaves_scales(d, gate, b->n_rows) && cuda_leaves_scales(d, up, b->n_rows);
    const size_t bytes = bf16 ? 2 : 4;
    if (cuda_adjacent(a->gate, a->up)) {
        const struct product both = {gate, 2 * n, b->n_rows, a->in, a->scratch, 2 * n, false, bf16, unscaled};
        cuda_product(d, &both);
    } else {
        const struct product one = {gate, n, b->n_rows, a->in, a->scratch, 2 * n, false, bf16, unscaled};
        const struct product two = {
            up, n, b->n_rows, a->in, (char *)a->scratch + n * bytes, 2 * n, false, bf16, unscaled};
        cuda_product(d, &one);
        cuda_product(d, &two);
    }
    if (n % 4 != 0) {
        cuda_launch(d, glu_odd_kernel, dim3(b->n_rows), 256, 0, (const float *)a->scratch, a->gate->bias, a->up->bias,
            n, a->glu, act_rows_of(a->out, a->forms));
        return;
    }
    const struct scales left = {unscaled ? cuda_row_scales(d, a->in) : NULL, {gate->scales, up->scales}};
    const struct glu_job j = {a->scratch, a->gate->bias, a->up->bias, left, n, a->glu};
    const uint32_t threads = n <= 512 * HELD * 4 ? 512 : 1024;
    const struct act_rows out = act_rows_of(a->out, a->forms);
    if (a->forms == ACT_F8 && cuda_f8_rows(d, b->n_rows) && n % 16 == 0 && n <= threads * HELD * 4) {
        cuda_launch(d, bf16 ? glu_f8_kernel<true> : glu_f8_kernel<false>, dim3(b->n_rows), threads, 0, j, a->out->f8,
            a->out->f8_scale);
        a->out->has_f8 = true;
    } else
        cuda_launch(d, bf16 ? glu_kernel<true> : glu_kernel<false>,
            dim3(b->n_rows, (n / 4 + 256 * EACH - 1) / (256 * EACH)), 256, 0, j, out);
}
