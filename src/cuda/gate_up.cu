/* The gated feed-forward's first half. Few rows: one kernel makes both products and the gate. Many: gate and up as one
 * product when they lie behind each other, then the gate. */
#include "cuda/kernels.cuh"
#include "cuda/skinny.h"

/* Four neighbours a thread; rows of 2n: gate then up. */
__global__ static void glu_kernel(const void *gate_up, bool is_bf16, const float *gate_bias, const float *up_bias,
    uint32_t n, enum glu kind, struct act_rows out)
{
    launch_wait();
    const uint32_t at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const size_t row = blockIdx.y, from = row * 2 * n + at;
    if (at < n) {
        float g[4], u[4];
        if (is_bf16) {
            const uint2 a = *(const uint2 *)((const __nv_bfloat16 *)gate_up + from);
            const uint2 b = *(const uint2 *)((const __nv_bfloat16 *)gate_up + from + n);
            const uint32_t words[4] = {a.x, a.y, b.x, b.y};
            for (int k = 0; k < 2; k++) {
                g[2 * k] = __uint_as_float(words[k] << 16);
                g[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
                u[2 * k] = __uint_as_float(words[2 + k] << 16);
                u[2 * k + 1] = __uint_as_float(words[2 + k] & 0xffff0000u);
            }
        } else {
            *(float4 *)g = *(const float4 *)((const float *)gate_up + from);
            *(float4 *)u = *(const float4 *)((const float *)gate_up + from + n);
        }
        for (int k = 0; k < 4; k++) {
            g[k] += gate_bias != NULL ? gate_bias[at + k] : 0.0f;
            u[k] += up_bias != NULL ? up_bias[at + k] : 0.0f;
            g[k] = glu_of(g[k], u[k], kind);
        }
        act_put4(out, row * n + at, make_float4(g[0], g[1], g[2], g[3]));
    }
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
    cuda_launch(d, glu_kernel, dim3((n / 4 + 255) / 256, b->n_rows), 256, 0, (const void *)a->scratch, bf16,
        a->gate->bias, a->up->bias, n, a->glu, act_rows_of(a->out, a->forms));
}
