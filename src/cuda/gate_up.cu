/* The gated feed-forward's first half. Few rows: one kernel makes both products and the gate. Many: gate and up as one
 * product when they lie behind each other, then the gate. */
#include "cuda/rows_f8.cuh"
#include "cuda/skinny.h"

#define HELD 8 /* quads of a row that a thread holds */

/* Rows of 2n: gate then up. */
struct glu_job {
    const void *gate_up; /* f32 or bf16 */
    bool is_bf16;
    const float *gate_bias, *up_bias;
    uint32_t n;
    enum glu kind;
};

/* Four neighbours of a row, from element `at`. */
__device__ static float4 glu_quad(const struct glu_job &j, size_t row, uint32_t at)
{
    const size_t from = row * 2 * j.n + at;
    float g[4], u[4];
    if (j.is_bf16) {
        const uint2 a = *(const uint2 *)((const __nv_bfloat16 *)j.gate_up + from);
        const uint2 b = *(const uint2 *)((const __nv_bfloat16 *)j.gate_up + from + j.n);
        const uint32_t words[4] = {a.x, a.y, b.x, b.y};
        for (int k = 0; k < 2; k++) {
            g[2 * k] = __uint_as_float(words[k] << 16);
            g[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
            u[2 * k] = __uint_as_float(words[2 + k] << 16);
            u[2 * k + 1] = __uint_as_float(words[2 + k] & 0xffff0000u);
        }
    } else {
        *(float4 *)g = *(const float4 *)((const float *)j.gate_up + from);
        *(float4 *)u = *(const float4 *)((const float *)j.gate_up + from + j.n);
    }
    for (int k = 0; k < 4; k++) {
        g[k] += j.gate_bias != NULL ? j.gate_bias[at + k] : 0.0f;
        u[k] += j.up_bias != NULL ? j.up_bias[at + k] : 0.0f;
        g[k] = glu_of(g[k], u[k], j.kind);
    }
    return make_float4(g[0], g[1], g[2], g[3]);
}

/* Four neighbours a thread. */
__global__ static void glu_kernel(const __grid_constant__ struct glu_job j, struct act_rows out)
{
    launch_wait();
    const uint32_t at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const size_t row = blockIdx.y;
    if (at < j.n)
        act_put4(out, row * j.n + at, glu_quad(j, row, at));
}

/* For a product that reads e4m3: a block a row, which it holds whole. */
__global__ static void glu_f8_kernel(const __grid_constant__ struct glu_job j, unsigned char *out, float *scales)
{
    launch_wait();
    float4 held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t at = 4 * (threadIdx.x + i * blockDim.x);
        held[i] = at < j.n ? glu_quad(j, blockIdx.x, at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
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

static void gate_up_skinny(struct dev *d, const struct batch *b, const struct gate_up_args *a)
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
    j.rounds = d->deterministic && j.n_out % 4 == 0 && cuda_gives_bf16(d, gate) && cuda_gives_bf16(d, up);
    const struct act_rows out = act_rows_of(a->out, a->forms);
    j.act_f32 = out.f32;
    j.act_f16 = out.f16;
    j.act_bf16 = out.bf16;
    if (!resident_product(d, gate->format, &j, a->in))
        cuda_skinny(d, gate->format, &j);
}

void cuda_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a)
{
    const struct matrix *gate = matrix_of(a->gate), *up = matrix_of(a->up);
    const uint32_t n = a->gate->n_out;
    cuda_trace(d, a->gate);
    if (gate->format == up->format && cuda_is_skinny(d, gate, b->n_rows)) {
        gate_up_skinny(d, b, a);
        return;
    }
    const bool bf16 = n % 4 == 0 && cuda_gives_bf16(d, gate) && cuda_gives_bf16(d, up) &&
                      !cuda_is_skinny(d, gate, b->n_rows) && !cuda_is_skinny(d, up, b->n_rows);
    const size_t bytes = bf16 ? 2 : 4;
    if (cuda_adjacent(a->gate, a->up)) {
        const struct product both = {gate, 2 * n, b->n_rows, a->in, a->scratch, 2 * n, false, bf16};
        cuda_product(d, &both);
    } else {
        const struct product one = {gate, n, b->n_rows, a->in, a->scratch, 2 * n, false, bf16};
        const struct product two = {up, n, b->n_rows, a->in, (char *)a->scratch + n * bytes, 2 * n, false, bf16};
        cuda_product(d, &one);
        cuda_product(d, &two);
    }
    if (n % 4 != 0) {
        cuda_launch(d, glu_odd_kernel, dim3(b->n_rows), 256, 0, (const float *)a->scratch, a->gate->bias, a->up->bias,
            n, a->glu, act_rows_of(a->out, a->forms));
        return;
    }
    const struct glu_job j = {a->scratch, bf16, a->gate->bias, a->up->bias, n, a->glu};
    const uint32_t threads = n <= 512 * HELD * 4 ? 512 : 1024;
    const struct act_rows out = act_rows_of(a->out, a->forms);
    if (a->forms == ACT_F8 && cuda_f8_rows(d, b->n_rows) && n % 16 == 0 && n <= threads * HELD * 4) {
        cuda_launch(d, glu_f8_kernel, dim3(b->n_rows), threads, 0, j, a->out->f8, a->out->f8_scale);
        a->out->has_f8 = true;
    } else
        cuda_launch(d, glu_kernel, dim3((n / 4 + 255) / 256, b->n_rows), 256, 0, j, out);
}
