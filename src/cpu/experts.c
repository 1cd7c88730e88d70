/* Mixtures of experts on the CPU. Rows are grouped by expert so that each expert's weights are read once; each (row,
 * expert) pair is computed as if alone, and a row adds its experts in the order of its route. */
#include "base/limits.h"
#include "cpu/cpu_int.h"
#include "tensor/fmath.h"

#include <string.h>

#define TILE_COLS 32 /* one activation group */
#define TILE_ROWS 8

struct route_job {
    struct dev *d;
    const struct batch *b;
    const struct route_args *a;
};

/* Softmax in index order, then the top_k by value, ties to the lower index. */
static void pick_experts(const struct route_args *a, const float *logits, uint32_t n, uint32_t *expert, float *weight)
{
    /* cppcheck-suppress uninitvar ; the caller's product wrote them */
    float p[MODEL_EXPERTS_MAX], top = logits[0], sum = 0.0f;
    for (uint32_t i = 1; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (uint32_t i = 0; i < n; i++) {
        p[i] = f_exp(logits[i] - top);
        sum += p[i];
    }
    float chosen = 0.0f;
    for (uint32_t j = 0; j < a->top_k; j++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < n; i++)
            if (p[i] >= 0.0f && (best == UINT32_MAX || p[i] > p[best]))
                best = i;
        if (best == UINT32_MAX) /* a row of NaN: any expert will do, the row stays NaN */
            best = j;
        expert[j] = best;
        weight[j] = p[best] / sum; /* NOLINT(clang-analyzer-core.*): best < n, top_k is at most n */
        chosen += weight[j];
        p[best] = -1.0f;
    }
    for (uint32_t j = 0; a->renorm && j < a->top_k; j++)
        weight[j] /= chosen;
}

static void route_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct route_job *j = ctx;
    const struct route_args *a = j->a;
    for (uint32_t r = tile * TILE_ROWS; r < MIN((tile + 1) * TILE_ROWS, j->b->n_rows); r++) {
        float logits[MODEL_EXPERTS_MAX];
        const struct product p = {
            .w = a->router, .in = a->in, .in_rows = &r, .n_rows = 1, .out = logits, .out_stride = a->router->n_out};
        j->d->k->product(&j->d->workers[worker], &p, 0, a->router->n_out);
        pick_experts(a, logits, a->router->n_out, a->expert + (size_t)r * a->top_k, a->weight + (size_t)r * a->top_k);
    }
}

void cpu_route(struct dev *d, const struct batch *b, const struct route_args *a)
{
    assert(a->router->n_out <= MODEL_EXPERTS_MAX && a->top_k <= MODEL_EXPERTS_USED_MAX);
    struct route_job job = {d, b, a};
    cpu_run(d, (b->n_rows + TILE_ROWS - 1) / TILE_ROWS, route_tile, &job);
}

struct experts_job {
    struct dev *d;
    const struct batch *b;
    const struct experts_args *a;
    uint32_t n_col_tiles;
};

/* Sort the pairs by expert; stable, so a row's experts keep no order here and need none. */
static void sort_pairs(struct dev *d, uint32_t n_rows, const struct experts_args *a)
{
    const uint32_t n_pairs = n_rows * a->top_k, n_experts = a->gate->n_mats;
    uint32_t *first = d->expert_first;
    memset(first, 0, sizeof *first * (n_experts + 1));
    for (uint32_t i = 0; i < n_pairs; i++)
        first[a->expert[i] + 1]++;
    for (uint32_t e = 0; e < n_experts; e++)
        first[e + 1] += first[e];
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t place = first[a->expert[i]]++;
        d->pair_place[i] = place;
        d->pair_row[place] = i / a->top_k;
    }
    for (uint32_t e = n_experts; e > 0; e--) /* the loop above moved every start to its end */
        first[e] = first[e - 1];
    first[0] = 0;
}

static void gate_up_pairs(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct experts_job *j = ctx;
    const struct experts_args *a = j->a;
    const uint32_t e = tile / j->n_col_tiles, n = a->gate->n_out;
    const uint32_t lo = tile % j->n_col_tiles * TILE_COLS, hi = MIN(lo + TILE_COLS, n);
    const uint32_t first = j->d->expert_first[e], count = j->d->expert_first[e + 1] - first;
    if (count == 0)
        return;
    float *out = a->scratch + (size_t)first * 2 * n;
    struct product p = {.w = a->gate,
        .mat = e,
        .in = a->in,
        .in_rows = j->d->pair_row + first,
        .n_rows = count,
        .out = out,
        .out_stride = (size_t)2 * n};
    j->d->k->product(&j->d->workers[worker], &p, lo, hi);
    p.w = a->up;
    p.out = out + n;
    j->d->k->product(&j->d->workers[worker], &p, lo, hi);
    for (uint32_t i = 0; i < count; i++) {
        const float *gate = out + (size_t)i * 2 * n + lo;
        j->d->k->glu(a->glu, gate, gate + n, hi - lo, a->hidden->f32 + (size_t)(first + i) * n + lo);
        acts_finish(j->d->k, a->hidden, a->down->wants, first + i, lo, hi - lo);
    }
}

static void down_pairs(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct experts_job *j = ctx;
    const struct experts_args *a = j->a;
    const uint32_t e = tile / j->n_col_tiles, n = a->down->n_out;
    const uint32_t lo = tile % j->n_col_tiles * TILE_COLS, hi = MIN(lo + TILE_COLS, n);
    const uint32_t first = j->d->expert_first[e], count = j->d->expert_first[e + 1] - first;
    if (count == 0)
        return;
    const struct product p = {.w = a->down,
        .mat = e,
        .in = a->hidden, /* its rows are in pair order already */
        .first_row = first,
        .n_rows = count,
        .out = a->scratch + (size_t)first * n,
        .out_stride = n};
    j->d->k->product(&j->d->workers[worker], &p, lo, hi);
}

static void combine_rows(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct experts_job *j = ctx;
    const struct experts_args *a = j->a;
    const uint32_t n = a->down->n_out;
    for (uint32_t r = tile * TILE_ROWS; r < MIN((tile + 1) * TILE_ROWS, j->b->n_rows); r++)
        for (uint32_t o = 0; o < n; o++) {
            float y = 0.0f;
            for (uint32_t k = 0; k < a->top_k; k++) {
                const size_t i = (size_t)r * a->top_k + k;
                y += a->weight[i] * a->scratch[(size_t)j->d->pair_place[i] * n + o];
            }
            a->x[(size_t)r * n + o] += y;
        }
}

void cpu_experts(struct dev *d, const struct batch *b, const struct experts_args *a)
{
    assert(a->top_k <= MODEL_EXPERTS_USED_MAX);
    sort_pairs(d, b->n_rows, a);
    struct experts_job job = {d, b, a, (a->gate->n_out + TILE_COLS - 1) / TILE_COLS};
    cpu_run(d, a->gate->n_mats * job.n_col_tiles, gate_up_pairs, &job);
    job.n_col_tiles = (a->down->n_out + TILE_COLS - 1) / TILE_COLS;
    cpu_run(d, a->gate->n_mats * job.n_col_tiles, down_pairs, &job);
    cpu_run(d, (b->n_rows + TILE_ROWS - 1) / TILE_ROWS, combine_rows, &job);
}
