/* The plain C kernels: the oracle of every faster variant, and the row that runs on any machine. The arithmetic is the
 * one written in cpu.h, word for word; nothing here is clever. */
#include "cpu/cpu_int.h"
#include "tensor/fmath.h"

#include <math.h>
#include <string.h>

#define LANES 8

static float join_lanes(const float acc[LANES])
{
    return ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
}

static float dot_f32(const float *a, const float *b, uint32_t n)
{
    float acc[LANES] = {0};
    uint32_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (uint32_t j = 0; j < LANES; j++)
            acc[j] += a[k + j] * b[k + j];
    for (; k < n; k++)
        acc[k % LANES] += a[k] * b[k];
    return join_lanes(acc);
}

static int32_t dot_i16(const int8_t *a, const int16_t *b)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < SUB_GROUP; i++)
        sum += a[i] * b[i];
    return sum;
}

static float dot_q16(const struct unpacked *w, const struct acts *in, size_t row)
{
    float acc = 0.0f;
    for (uint32_t g = 0; g < in->n / ACT_GROUP; g++) {
        const struct groups a = groups_from(&in->groups, acts_group(in, row, g));
        for (uint32_t h = 0; h < ACT_GROUP / SUB_GROUP; h++) {
            const uint32_t sub = g * (ACT_GROUP / SUB_GROUP) + h;
            acc += (w->scale[sub] * *a.scale) * (float)dot_i16(w->q + sub * SUB_GROUP, a.q + h * SUB_GROUP);
            if (w->has_min)
                acc += w->min[sub] * a.sum16[h];
        }
    }
    return acc;
}

static void product_ref(struct worker *wk, const struct product *p, uint32_t lo, uint32_t hi)
{
    const struct weight *w = p->w;
    const struct acts *in = p->in;
    const uint32_t n = w->n_in;
    const bool quantised = can_unpack(w->dtype);
    const char *mat = w->mat[p->mat];
    for (uint32_t o = lo; o < hi; o++) {
        const void *row = mat + o * w->row_bytes;
        if (quantised)
            unpack_row(w->dtype, row, n, &wk->row);
        else
            dtype_info(w->dtype)->dequant(row, wk->row.f32, n);
        const float bias = w->bias != NULL ? w->bias[(size_t)p->mat * w->n_out + o] : 0.0f;
        for (uint32_t i = 0; i < p->n_rows; i++) {
            const size_t r = p->in_rows != NULL ? p->in_rows[i] : p->first_row + i;
            const float y = quantised ? dot_q16(&wk->row, in, r) : dot_f32(in->f32 + r * n, wk->row.f32, n);
            p->out[i * p->out_stride + o] = w->bias != NULL ? y + bias : y;
        }
    }
}

static void norm_row_ref(const float *x, const float *gain, float eps, uint32_t n, float *out)
{
    const float inv = 1.0f / sqrtf(dot_f32(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * inv * gain[i];
}

static int32_t sum_i16(const int16_t *q)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < SUB_GROUP; i++)
        sum += q[i];
    return sum;
}

static void quant_groups_ref(const float *x, uint32_t n_groups, const struct groups *to)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        const float *v = x + g * ACT_GROUP;
        int16_t *q = to->q + g * ACT_GROUP;
        float most = 0.0f;
        bool finite = true;
        for (uint32_t i = 0; i < ACT_GROUP; i++) {
            const float a = fabsf(v[i]);
            finite = finite && a <= 3.402823466e38f;
            most = a > most ? a : most;
        }
        const bool counts = finite && most >= ACT_SMALLEST;
        const float inv = counts ? ACT_MAX / most : 0.0f, scale = counts ? most / ACT_MAX : finite ? 0.0f : NAN;
        for (uint32_t i = 0; i < ACT_GROUP; i++)
            q[i] = (int16_t)(counts ? rintf(v[i] * inv) : 0.0f);
        const int32_t low = sum_i16(q), high = sum_i16(q + SUB_GROUP);
        to->scale[g] = scale;
        to->sum[g] = scale * (float)(low + high);
        to->sum16[2 * g] = scale * (float)low;
        to->sum16[2 * g + 1] = scale * (float)high;
    }
}

static void glu_ref(enum glu kind, const float *gate, const float *up, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (kind == GLU_SILU ? f_silu(gate[i]) : f_gelu(gate[i])) * up[i];
}

static void scale_cap_ref(float *x, uint32_t n, float scale, float cap)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap > 0.0f ? f_softcap(x[i] * scale, cap) : x[i] * scale;
}

static bool runs_anywhere(void)
{
    return true;
}

const struct kernels kernels_ref = {
    .name = "cpu-ref",
    .runs_here = runs_anywhere,
    .product = product_ref,
    .norm_row = norm_row_ref,
    .quant_groups = quant_groups_ref,
    .glu = glu_ref,
    .scale_cap = scale_cap_ref,
    .attend = attend_ref,
};
