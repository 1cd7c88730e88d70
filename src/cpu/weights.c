/* Weights on the CPU. The plain kernels use them where they lie, in the file's map; the x86 kernels read a packed copy
 * (pack.h) that the worker team makes when a weight is bound, panel by panel. A matrix that only embed reads is not
 * copied. Copies lie in slabs of huge pages: small matrices share them. Whoever packs rows also looks through them for
 * values that are not finite, while they are in its cache: where the copy keeps its scales as f16 side by side it is
 * the copy that is looked through, which costs a tenth. */
#include "base/mem.h"
#include "cpu/pack.h"
#include "tensor/finite.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define MEMORY_ALIGN 64
#define HUGE_PAGE    ((size_t)2 << 20)
#define SLAB_BYTES   ((size_t)64 << 20) /* pages far behind the last weight are never touched */
#define PANELS_EACH  4                  /* a worker looks through and packs at a time */
#define PAGES_LEAST  2                  /* huge pages that are made ready at once, so that two cores clear one each */

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

#if defined(__x86_64__)
/* ---- slabs ------------------------------------------------------------------------------------------------------- */

static struct slab *slab_for(struct dev *d, size_t bytes)
{
    if (d->slabs != NULL && d->slabs->bytes - d->slabs->used >= bytes)
        return d->slabs;
    struct slab *s = mem_zalloc(sizeof *s);
    if (s == NULL)
        return NULL;
    s->bytes = (MAX(bytes, SLAB_BYTES) + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    s->p = mem_aligned(HUGE_PAGE, s->bytes);
    if (s->p == NULL && bytes < SLAB_BYTES) { /* a small machine */
        s->bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
        s->p = mem_aligned(HUGE_PAGE, s->bytes);
    }
    if (s->p == NULL) {
        mem_free(s);
        return NULL;
    }
    madvise(s->p, s->bytes, MADV_HUGEPAGE); /* a wish */
    s->next = d->slabs;
    d->slabs = s;
    return s;
}

static void slab_give(struct dev *d, struct slab *s)
{
    if (--s->n_weights > 0)
        return;
    struct slab **at = &d->slabs;
    while (*at != s) {
        assert(*at != NULL);
        at = &(*at)->next;
    }
    *at = s->next;
    mem_free(s->p);
    mem_free(s);
}

static void touch_page(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    *((volatile unsigned char *)ctx + tile * HUGE_PAGE) = 0;
}

/* Pages up to what is used now are touched by one worker each, before anybody packs into them: of two who write into
 * the same new page at once both would clear one, and one of them for nothing. */
static void ready_pages(struct dev *d, struct slab *s)
{
    if (s->used <= s->ready)
        return;
    const size_t end = (s->used + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    const size_t to = MIN(MAX(end, s->ready + PAGES_LEAST * HUGE_PAGE), s->bytes);
    cpu_run(d, (uint32_t)((to - s->ready) / HUGE_PAGE), touch_page, s->p + s->ready);
    s->ready = to;
}

static enum err take_room(struct dev *d, const struct weight *w, struct packed *p, struct error *e)
{
    pack_plan(p, w->dtype, w->n_out, w->n_in);
    size_t bytes;
    if (!size_mul(p->mat_bytes, w->n_mats, &bytes) || (p->slab = slab_for(d, bytes)) == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for weights: %zu bytes", bytes);
    p->base = p->slab->p + p->slab->used;
    p->slab->used += bytes;
    p->slab->n_weights++;
    ready_pages(d, p->slab);
    return OK;
}

/* F16 numbers side by side behind a panel's integers; 0 where the scales are kept otherwise. */
static size_t f16_scales(const struct packed *p, uint32_t n_in)
{
    const size_t n = (size_t)(n_in / ACT_GROUP) * PANEL_COLS;
    return p->scales == SCALE_D ? n : p->scales == SCALE_DM ? 2 * n : 0;
}

/* False when one of the f16 scales it packed is not finite; other values are not looked at. */
static bool pack_rows(
    struct dev *d, const struct weight *w, uint32_t mat, uint32_t first, uint32_t end, uint32_t worker)
{
    const struct packed *p = w->packed;
    bool fine = true;
    for (uint32_t i = first / PANEL_COLS; i * PANEL_COLS < end; i++) {
        const uint32_t row = i * PANEL_COLS, n_rows = MIN(w->n_out - row, (uint32_t)PANEL_COLS);
        unsigned char *out = p->base + mat * p->mat_bytes + i * p->panel_bytes;
        if (n_rows < PANEL_COLS)
            memset(out, 0, p->panel_bytes);
        pack_panel(p, w->dtype, (const unsigned char *)w->mat[mat] + row * w->row_bytes, w->row_bytes, n_rows, w->n_in,
            &d->workers[worker].row, out);
        fine = f16_row_is_finite(out + p->scale_at, f16_scales(p, w->n_in)) && fine;
    }
    return fine;
}
#endif

/* ---- taking the rows over ------------------------------------------------------------------------------------------
 */

struct take_job {
    struct dev *d;
    const struct weight *w;
    uint32_t tiles_each;  /* of one matrix */
    _Atomic uint64_t bad; /* the first element that is not finite, counted over all matrices; UINT64_MAX = none */
};

_Static_assert(TENSOR_DIMS_MAX == 8, "the shape below has as many");

static bool rows_are_finite(const struct weight *w, uint32_t mat, uint32_t first, uint32_t n, uint64_t *bad)
{
    const struct tensor_view rows = {.dtype = w->dtype,
        .n_dims = 2,
        .shape = {n, w->n_in, 1, 1, 1, 1, 1, 1},
        .data = (const unsigned char *)w->mat[mat] + first * w->row_bytes,
        .bytes = n * w->row_bytes};
    if (tensor_is_finite(&rows, bad))
        return true;
    *bad += ((uint64_t)mat * w->n_out + first) * w->n_in;
    return false;
}

static void take_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    struct take_job *j = ctx;
    const struct weight *w = j->w;
    const uint32_t mat = tile / j->tiles_each, first = tile % j->tiles_each * PANELS_EACH * PANEL_COLS;
    const uint32_t n = MIN(w->n_out - first, (uint32_t)PANELS_EACH * PANEL_COLS);
    bool look = true;
#if defined(__x86_64__)
    const struct packed *p = w->packed;
    if (p->base != NULL) {
        const bool fine = pack_rows(j->d, w, mat, first, first + n, worker);
        look = !fine || f16_scales(p, w->n_in) == 0;
    }
#else
    (void)worker;
#endif
    uint64_t bad, least = atomic_load(&j->bad);
    if (look && !rows_are_finite(w, mat, first, n, &bad))
        while (bad < least && !atomic_compare_exchange_weak(&j->bad, &least, bad))
            ;
}

static enum err take_rows(struct dev *d, const struct weight *w, struct error *e)
{
    struct take_job job = {.d = d, .w = w, .bad = UINT64_MAX};
    job.tiles_each = (w->n_out + PANELS_EACH * PANEL_COLS - 1) / (PANELS_EACH * PANEL_COLS);
    cpu_run_near(d, job.tiles_each * w->n_mats, take_tile, &job);
    const uint64_t bad = atomic_load(&job.bad);
    return bad == UINT64_MAX
               ? OK
               : FAIL(e, ERR_FORMAT, "it holds a value that is not finite, near element %llu", (unsigned long long)bad);
}

/* ---- the contract ---------------------------------------------------------------------------------------------------
 */

static enum err check_view(const struct tensor_view *v, uint32_t n_views, uint64_t *n_mats, struct error *e)
{
    const struct dtype_info *info = dtype_info(v->dtype);
    if (!can_unpack(v->dtype) && !((info->flags & DTYPE_IS_FLOAT) && info->dequant != NULL))
        return FAIL(e, ERR_UNSUPPORTED, "weights of type %s are not supported on the CPU", info->name);
    assert((v->n_dims == 2 || (v->n_dims == 3 && n_views == 1)) && n_views > 0);
    const uint64_t n_out = v->shape[v->n_dims - 2], n_in = v->shape[v->n_dims - 1];
    *n_mats = v->n_dims == 3 ? v->shape[0] : n_views;
    if (n_out == 0 || n_in == 0 || *n_mats == 0 || n_out > UINT32_MAX - PANEL_COLS || n_in > UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "a weight has an empty or oversized dimension");
    if (*n_mats > MODEL_EXPERTS_MAX)
        return FAIL(
            e, ERR_LIMIT, "a weight has %llu experts; the limit is %d", (unsigned long long)*n_mats, MODEL_EXPERTS_MAX);
    return OK;
}

enum err cpu_weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e)
{
    const enum weight_use use = w->use;
    *w = (struct weight){0};
    uint64_t n_mats = 0;
    TRY(check_view(v, n_views, &n_mats, e));
    const uint32_t n_in = (uint32_t)v->shape[v->n_dims - 1];
    TRY(widen_workers(d, n_in, e));
    struct packed *p = mem_zalloc(sizeof *p);
    const void **mat = mem_array(n_mats, sizeof *mat);
    if (p == NULL || mat == NULL) {
        mem_free(p);
        mem_free(mat);
        return FAIL(e, ERR_NOMEM, "no memory to bind a weight of %llu matrices", (unsigned long long)n_mats);
    }
    for (uint64_t i = 0; i < n_mats; i++)
        mat[i] = n_views > 1 ? v[i].data : (const char *)v->data + i * (v->bytes / n_mats);
    p->mat = mat;
    *w = (struct weight){.dtype = v->dtype,
        .n_out = (uint32_t)v->shape[v->n_dims - 2],
        .n_in = n_in,
        .n_mats = (uint32_t)n_mats,
        .use = use,
        .wants = can_unpack(v->dtype) ? ACT_Q16 : ACT_F32,
        .row_bytes = tensor_row_bytes(v),
        .mat = mat,
        .packed = p};
    enum err err = OK;
#if defined(__x86_64__)
    if (d->k->room_bytes != 0 && use == WEIGHT_PRODUCT)
        err = take_room(d, w, p, e);
#endif
    if (err == OK)
        err = take_rows(d, w, e);
    if (err != OK)
        cpu_weight_drop(d, w);
    return err;
}

void cpu_weight_drop(struct dev *d, struct weight *w)
{
    struct packed *p = w->packed;
    if (p != NULL) {
#if defined(__x86_64__)
        if (p->slab != NULL)
            slab_give(d, p->slab);
#endif
        mem_free(p->mat);
        mem_free(p);
    }
    (void)d;
    *w = (struct weight){0};
}
