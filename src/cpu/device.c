/* The CPU as a device: the worker team, each worker's scratch, memory, weights and activations. Weights are used where
 * they lie, in the file's map. */
#include "base/mem.h"
#include "cpu/cpu_int.h"

#include <string.h>

#define MEMORY_ALIGN 64 /* a cache line, and the widest vector */

static void worker_fini(struct worker *w)
{
    mem_free(w->row.q);
    mem_free(w->row.scale);
    mem_free(w->row.min);
    mem_free(w->row.f32);
    mem_free(w->k);
    mem_free(w->v);
    mem_free(w->out);
    mem_free(w->max);
    mem_free(w->sum);
}

static bool worker_init(struct worker *w)
{
    w->k = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_TILE * HEAD_DIM_MAX);
    w->v = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_TILE * HEAD_DIM_MAX);
    w->out = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX * HEAD_DIM_MAX);
    w->max = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX);
    w->sum = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX);
    return w->k != NULL && w->v != NULL && w->out != NULL && w->max != NULL && w->sum != NULL;
}

/* What the ops keep about a batch. The lists of pairs cost no memory until a mixture touches their pages. */
static bool make_lists(struct dev *d)
{
    const size_t n_pairs = (size_t)d->rows_max * MODEL_EXPERTS_USED_MAX;
    d->chunks = mem_array(d->rows_max, sizeof *d->chunks);
    d->pair_row = mem_array(n_pairs, sizeof *d->pair_row);
    d->pair_place = mem_array(n_pairs, sizeof *d->pair_place);
    d->expert_first = mem_array(MODEL_EXPERTS_MAX + 1, sizeof *d->expert_first);
    return d->chunks != NULL && d->pair_row != NULL && d->pair_place != NULL && d->expert_first != NULL;
}

enum err cpu_dev_open(const struct kernels *k, const struct dev_options *o, struct dev **out, struct error *e)
{
    *out = NULL;
    struct dev *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the CPU device");
    d->k = k;
    d->rows_max = o->rows_max;
    const uint32_t threads = o->threads != 0 ? o->threads : team_cores();
    enum err err = team_new(&d->team, threads, e);
    if (err == OK) {
        team_flush_denormals();
        d->workers = mem_array(threads, sizeof *d->workers);
        bool ok = d->workers != NULL;
        for (uint32_t i = 0; ok && i < threads; i++)
            ok = worker_init(&d->workers[i]);
        if (!ok)
            err = FAIL(e, ERR_NOMEM, "no memory for the scratch of %u threads", threads);
    }
    if (err == OK && !make_lists(d))
        err = FAIL(e, ERR_NOMEM, "no memory for batches of %u rows", o->rows_max);
    if (err != OK) {
        cpu_dev_close(d);
        return err;
    }
    *out = d;
    return OK;
}

void cpu_dev_close(struct dev *d)
{
    if (d == NULL)
        return;
    for (uint32_t i = 0; d->workers != NULL && i < team_size(d->team); i++)
        worker_fini(&d->workers[i]);
    mem_free(d->workers);
    mem_free(d->chunks);
    mem_free(d->pair_row);
    mem_free(d->pair_place);
    mem_free(d->expert_first);
    team_free(d->team);
    mem_free(d);
}

enum err cpu_dev_alloc(struct dev *d, size_t bytes, void **out, struct error *e)
{
    (void)d;
    *out = mem_aligned(MEMORY_ALIGN, bytes);
    if (*out == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a buffer of %zu bytes", bytes);
    memset(*out, 0, bytes);
    return OK;
}

void cpu_dev_free(struct dev *d, void *p)
{
    (void)d;
    mem_free(p);
}

void cpu_dev_write(struct dev *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
}

void cpu_dev_read(struct dev *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
}

enum err cpu_dev_wait(struct dev *d, struct error *e)
{
    (void)d;
    (void)e;
    return OK; /* ops join before they return, and memory does not fault */
}

/* Workers' rows grow with the widest weight; only while a model is loaded, never in a step. */
static enum err widen_workers(struct dev *d, uint32_t n_in, struct error *e)
{
    if (n_in <= d->n_in_max)
        return OK;
    for (uint32_t i = 0; i < team_size(d->team); i++) {
        struct unpacked *u = &d->workers[i].row;
        mem_free(u->q);
        mem_free(u->scale);
        mem_free(u->min);
        mem_free(u->f32);
        u->q = mem_aligned(MEMORY_ALIGN, n_in);
        u->scale = mem_aligned(MEMORY_ALIGN, sizeof(float) * (n_in / SUB_GROUP + 1));
        u->min = mem_aligned(MEMORY_ALIGN, sizeof(float) * (n_in / SUB_GROUP + 1));
        u->f32 = mem_aligned(MEMORY_ALIGN, sizeof(float) * n_in);
        if (u->q == NULL || u->scale == NULL || u->min == NULL || u->f32 == NULL) {
            d->n_in_max = 0;
            return FAIL(e, ERR_NOMEM, "no memory for weight rows of %u elements", n_in);
        }
    }
    d->n_in_max = n_in;
    return OK;
}

enum err cpu_weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e)
{
    *w = (struct weight){0};
    const struct dtype_info *info = dtype_info(v->dtype);
    const bool quantised = can_unpack(v->dtype);
    if (!quantised && !((info->flags & DTYPE_IS_FLOAT) && info->dequant != NULL))
        return FAIL(e, ERR_UNSUPPORTED, "weights of type %s are not supported on the CPU", info->name);
    assert((v->n_dims == 2 || (v->n_dims == 3 && n_views == 1)) && n_views > 0);
    const uint64_t n_out = v->shape[v->n_dims - 2], n_in = v->shape[v->n_dims - 1];
    const uint64_t n_mats = v->n_dims == 3 ? v->shape[0] : n_views;
    if (n_out == 0 || n_in == 0 || n_mats == 0 || n_out > UINT32_MAX || n_in > UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "a weight has an empty or oversized dimension");
    if (n_mats > MODEL_EXPERTS_MAX)
        return FAIL(
            e, ERR_LIMIT, "a weight has %llu experts; the limit is %d", (unsigned long long)n_mats, MODEL_EXPERTS_MAX);
    TRY(widen_workers(d, (uint32_t)n_in, e));
    const void **mat = mem_array(n_mats, sizeof *mat);
    if (mat == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to bind a weight of %llu matrices", (unsigned long long)n_mats);
    for (uint64_t i = 0; i < n_mats; i++)
        mat[i] = n_views > 1 ? v[i].data : (const char *)v->data + i * (v->bytes / n_mats);
    *w = (struct weight){.dtype = v->dtype,
        .n_out = (uint32_t)n_out,
        .n_in = (uint32_t)n_in,
        .n_mats = (uint32_t)n_mats,
        .wants = quantised ? ACT_Q8 : ACT_F32,
        .row_bytes = tensor_row_bytes(v),
        .mat = mat,
        .packed = mat};
    return OK;
}

void cpu_weight_drop(struct dev *d, struct weight *w)
{
    (void)d;
    mem_free(w->packed); /* the list of matrices; the matrices are the file's */
    *w = (struct weight){0};
}

enum err cpu_acts_new(struct dev *d, uint32_t rows, uint32_t n, uint32_t forms, struct acts **out, struct error *e)
{
    *out = NULL;
    assert((forms & ACT_Q8) == 0 || n % ACT_GROUP == 0);
    struct acts *a = mem_zalloc(sizeof *a);
    size_t elems;
    if (a == NULL || !size_mul(rows, n, &elems) || elems > SIZE_MAX / sizeof(float)) {
        mem_free(a);
        return FAIL(e, ERR_NOMEM, "no memory for %u activation rows of %u", rows, n);
    }
    *a = (struct acts){.rows = rows, .n = n, .forms = forms};
    a->f32 = mem_aligned(MEMORY_ALIGN, elems * sizeof(float));
    bool ok = a->f32 != NULL;
    if (forms & ACT_Q8) {
        a->q = mem_aligned(MEMORY_ALIGN, elems);
        a->scale = mem_aligned(MEMORY_ALIGN, elems / ACT_GROUP * sizeof(float));
        a->sum16 = mem_aligned(MEMORY_ALIGN, elems / SUB_GROUP * sizeof(int16_t));
        ok = ok && a->q != NULL && a->scale != NULL && a->sum16 != NULL;
    }
    if (!ok) {
        cpu_acts_free(d, a);
        return FAIL(e, ERR_NOMEM, "no memory for %u activation rows of %u", rows, n);
    }
    *out = a;
    return OK;
}

void cpu_acts_free(struct dev *d, struct acts *a)
{
    (void)d;
    if (a == NULL)
        return;
    mem_free(a->f32);
    mem_free(a->q);
    mem_free(a->scale);
    mem_free(a->sum16);
    mem_free(a);
}
