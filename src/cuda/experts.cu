/* Mixtures of experts. Entries, (row, place in its route) pairs, are sorted by expert on the device; groups of up to
 * eight entries that share an expert are then multiplied together by the skinny kernel, so an expert's weights are read
 * once per eight rows. The experts' outputs lie behind each other until one kernel scales and adds them, in the route's
 * order. */
#include "cuda/kernels.cuh"
#include "cuda/skinny.h"

#define GROUP       8 /* entries: the skinny kernel's narrowest tile */
#define EXPERTS_MAX 512
#define TOP_MAX     32

/* ---- routing -------------------------------------------------------------------------------------------------------
 */

/* A warp per row: softmax over the router's logits, then top_k times the largest that is left. */
__global__ static void route_kernel(const float *in, const float *router, uint32_t n_in, uint32_t n_experts,
    const float *bias, uint32_t top_k, bool renorm, uint32_t *expert, float *weight)
{
    __shared__ float logit[EXPERTS_MAX];
    launch_wait();
    const uint32_t row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *x = in + (size_t)row * n_in;
    for (uint32_t e = warp; e < n_experts; e += blockDim.x / 32) {
        float sum = 0.0f;
        for (uint32_t k = lane; k < n_in; k += 32)
            sum += x[k] * router[(size_t)e * n_in + k];
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane == 0)
            logit[e] = sum + (bias != NULL ? bias[e] : 0.0f);
    }
    __syncthreads();
    if (threadIdx.x != 0) /* a few hundred numbers: one thread, one order */
        return;
    float most = -INFINITY, total = 0.0f, chosen = 0.0f;
    for (uint32_t e = 0; e < n_experts; e++)
        most = fmaxf(most, logit[e]);
    for (uint32_t e = 0; e < n_experts; e++) {
        logit[e] = expf(logit[e] - most);
        total += logit[e];
    }
    for (uint32_t k = 0; k < top_k; k++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < n_experts; e++)
            if (logit[e] > logit[best])
                best = e;
        expert[row * top_k + k] = best;
        weight[row * top_k + k] = logit[best] / total;
        chosen += logit[best] / total;
        logit[best] = -1.0f;
    }
    for (uint32_t k = 0; renorm && k < top_k; k++)
        weight[row * top_k + k] /= chosen;
}

void cuda_route(struct dev *d, const struct batch *b, const struct route_args *a)
{
    const struct matrix *m = matrix_of(a->router);
    cuda_launch(d, route_kernel, dim3(b->n_rows), 256, 0, (const float *)a->in->f32, (const float *)m->data, m->n_in,
        m->n_out, a->router->bias, a->top_k, a->renorm, a->expert, a->weight);
}

/* ---- sorting entries by expert -------------------------------------------------------------------------------------
 */

/* groups [n_groups][3], then order [n]. One block; entries of an expert keep their order. */
__global__ static void group_kernel(
    const uint32_t *expert, uint32_t n, uint32_t n_experts, uint32_t n_groups, uint32_t *groups, uint32_t *order)
{
    __shared__ uint32_t count[EXPERTS_MAX], at[EXPERTS_MAX];
    launch_wait();
    for (uint32_t e = threadIdx.x; e < n_experts; e += blockDim.x) {
        uint32_t c = 0;
        for (uint32_t i = 0; i < n; i++)
            c += expert[i] == e;
        count[e] = c;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t first = 0, g = 0;
        for (uint32_t e = 0; e < n_experts; e++) {
            at[e] = first;
            for (uint32_t i = 0; i < count[e]; i += GROUP, g++) {
                groups[3 * g] = e;
                groups[3 * g + 1] = first + i;
                groups[3 * g + 2] = min(GROUP, count[e] - i);
            }
            first += count[e];
        }
        for (; g < n_groups; g++)
            groups[3 * g] = groups[3 * g + 1] = groups[3 * g + 2] = 0;
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < n_experts; e += blockDim.x) {
        uint32_t to = at[e];
        for (uint32_t i = 0; i < n; i++)
            if (expert[i] == e)
                order[to++] = i;
    }
}

/* x[t] += sum over the route, ascending, of weight * out. */
__global__ static void mix_kernel(float *x, const float *out, const float *weight, uint32_t top_k, uint32_t n)
{
    launch_wait();
    const size_t row = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        float y = 0.0f;
        for (uint32_t k = 0; k < top_k; k++)
            y += weight[row * top_k + k] * out[(row * top_k + k) * n + i];
        x[row * n + i] += y;
    }
}

/* Groups of n entries: every expert may end with a group that is not full. */
static uint32_t groups_of(uint32_t n, uint32_t n_experts)
{
    return n / GROUP + (n < n_experts ? n : n_experts);
}

static struct skinny_job mixture_job(
    const struct weight *w, const struct acts *in, const uint32_t *groups, uint32_t n, uint32_t n_groups)
{
    const struct matrix *m = matrix_of(w);
    struct skinny_job j = {};
    j.w0 = m->data;
    j.scale0 = m->scales;
    j.bias0 = w->bias;
    j.row_bytes = m->row_bytes;
    j.n_in = m->n_in;
    j.n_out = m->n_out;
    j.mat_bytes = m->mat_bytes;
    j.act = m->format == FORMAT_BF16 ? in->bf16 : in->f16;
    j.n_rows = n;
    j.scale = 1.0f;
    j.groups = groups;
    j.order = groups + 3 * (size_t)n_groups;
    j.n_groups = n_groups;
    j.act_share = 1;
    return j;
}

bool cuda_experts_rooms(struct dev *d, uint32_t n_experts, uint32_t top_k)
{
    const size_t most = (size_t)d->rows_max * top_k, bytes = (4 * most + 3 * n_experts) * sizeof(uint32_t);
    return cuda_room(d, (void **)&d->groups, &d->groups_bytes, bytes) != NULL;
}

void cuda_experts(struct dev *d, const struct batch *b, const struct experts_args *a)
{
    const uint32_t n = b->n_rows * a->top_k, n_experts = a->gate->n_mats, n_groups = groups_of(n, n_experts);
    cuda_trace(d, a->gate, b->n_rows);
    if (!cuda_experts_rooms(d, n_experts, a->top_k))
        return;
    cuda_launch(d, group_kernel, dim3(1), 512, 0, (const uint32_t *)a->expert, n, n_experts, n_groups, d->groups,
        d->groups + 3 * (size_t)n_groups);
    struct skinny_job j = mixture_job(a->gate, a->in, d->groups, n, n_groups);
    const struct matrix *up = matrix_of(a->up);
    const struct act_rows out = act_rows_of(a->hidden, a->down->wants);
    j.end = SKINNY_GLU;
    j.w1 = up->data;
    j.scale1 = up->scales;
    j.bias1 = a->up->bias;
    j.act_share = a->top_k;
    j.glu = a->glu;
    j.act_f32 = out.f32;
    j.act_f16 = out.f16;
    j.act_bf16 = out.bf16;
    cuda_skinny(d, matrix_of(a->gate)->format, &j);
    struct skinny_job down = mixture_job(a->down, a->hidden, d->groups, n, n_groups);
    down.end = SKINNY_STORE;
    down.out = a->scratch;
    down.ldc = down.n_out;
    cuda_skinny(d, matrix_of(a->down)->format, &down);
    cuda_launch(d, mix_kernel, dim3(b->n_rows), 256, 0, a->x, (const float *)a->scratch, (const float *)a->weight,
        a->top_k, down.n_out);
}
