/* The CPU as a device: the worker team, each worker's scratch, memory and activations. Weights are in weights.c. */
#include "base/fault.h"
#include "base/mem.h"
#include "cpu/pack.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MEMORY_ALIGN 64                /* a cache line, and the widest vector */
#define HUGE_PAGE    ((size_t)2 << 20) /* where buffers begin that may have them */

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
    mem_free(w->product);
    mem_free(w->score);
    mem_free(w->shrink);
    mem_free(w->total);
    mem_free(w->query);
}

static bool worker_init_room(struct worker *w, size_t room_bytes)
{
    w->product = mem_aligned(MEMORY_ALIGN, room_bytes);
    w->score = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX * ATTN_TILE);
    w->shrink = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX);
    w->total = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX * (2 * ATTN_LANES + HEAD_DIM_MAX));
    w->query = mem_array(ATTN_ROWS_MAX, sizeof *w->query);
    const bool ok = w->product != NULL && w->score != NULL && w->shrink != NULL && w->total != NULL && w->query != NULL;
    if (ok) /* columns of a tile that hold no position are computed and dropped; let them be numbers */
        memset(w->score, 0, sizeof(float) * ATTN_ROWS_MAX * ATTN_TILE);
    return ok;
}

static bool worker_init(struct worker *w, const struct kernels *k)
{
    if (k->room_bytes != 0 && !worker_init_room(w, k->room_bytes))
        return false;
    w->k = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_TILE * HEAD_DIM_MAX);
    w->v = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_TILE * HEAD_DIM_MAX);
    w->out = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX * HEAD_DIM_MAX);
    w->max = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX);
    w->sum = mem_aligned(MEMORY_ALIGN, sizeof(float) * ATTN_ROWS_MAX * ATTN_LANES);
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
    if (d->k->attend_join != NULL && (d->partials = mem_array(PARTIAL_FLOATS, sizeof *d->partials)) == NULL)
        return false;
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
        d->stretches = mem_aligned(MEMORY_ALIGN, threads * sizeof *d->stretches);
        bool ok = d->workers != NULL && d->stretches != NULL;
        for (uint32_t i = 0; ok && i < threads; i++)
            ok = worker_init(&d->workers[i], k);
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
    mem_free(d->stretches);
    mem_free(d->chunks);
    mem_free(d->pair_row);
    mem_free(d->pair_place);
    mem_free(d->expert_first);
    mem_free(d->partials);
    assert(d->slabs == NULL); /* weights are dropped before their device is closed */
    team_free(d->team);
    mem_free(d);
}

/* Zeroed by the system, which does it page by page when they are first used: a large KV cache costs nothing until then.
 * What the allocator gave is remembered in front of the aligned buffer. */
enum err cpu_dev_alloc(struct dev *d, size_t bytes, void **out, struct error *e)
{
    (void)d;
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : MEMORY_ALIGN;
    size_t with_room;
    char *p = size_add(bytes, align + sizeof p, &with_room) ? mem_zalloc(with_room) : NULL;
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a buffer of %zu bytes", bytes);
    char *at = (char *)(((uintptr_t)p + sizeof p + align - 1) & ~(uintptr_t)(align - 1));
    memcpy(at - sizeof p, &p, sizeof p);
    if (align == HUGE_PAGE)
        madvise(at, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE); /* a wish: fewer misses of the address cache */
    *out = at;
    return OK;
}

void cpu_dev_free(struct dev *d, void *p)
{
    (void)d;
    if (p == NULL)
        return;
    void *given;
    memcpy(&given, (char *)p - sizeof given, sizeof given);
    mem_free(given);
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

/* Zeroed by the system, as above: swap space costs nothing until it is used. */
void *cpu_host_new(struct dev *d, size_t bytes)
{
    (void)d;
    return mem_zalloc(bytes);
}

void cpu_host_free(struct dev *d, void *p)
{
    (void)d;
    mem_free(p);
}

enum err cpu_dev_wait(struct dev *d, struct error *e)
{
    d->failed = d->failed || fault_hit(FAULT_DEVICE);
    /* ops join before they return, and memory does not fault: only a test does */
    return d->failed ? FAIL(e, ERR_INTERNAL, "the device failed, as it was told to") : OK;
}

void cpu_describe(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES])
{
    const struct weight *w = a->gate != NULL ? a->gate : a->q;
    const struct packed *p = d->k->room_bytes > 0 ? w->packed : NULL;
    char few[48] = "";
    if (p != NULL && p->form <= PACK_6 && d->k->few_rows > 0)
        snprintf(few, sizeof few, ", 2 to %u rows from bytes", MIN(d->k->few_rows, d->rows_max));
    snprintf(out, DESCRIBE_BYTES, "%s, %u thread%s: %s products in %s, %s%s; attention %s, heads of %u, %s cache",
        d->k->name, team_size(d->team), team_size(d->team) == 1 ? "" : "s", dtype_name(w->dtype),
        (w->wants & ACT_Q16) != 0 ? "16-bit integers" : "f32", p != NULL ? "packed panels" : "row by row", few,
        d->k->attend_join != NULL ? "in parts" : "in one piece", a->head_dim, dtype_name(a->layer->dtype));
}

uint32_t cpu_host_workers(const struct dev *d)
{
    return team_size(d->team);
}

void cpu_host_run(struct dev *d, uint32_t n, void (*fn)(void *ctx, uint32_t tile, uint32_t worker), void *ctx)
{
    team_run(d->team, n, fn, ctx);
}

enum err cpu_acts_new(struct dev *d, uint32_t rows, uint32_t n, uint32_t forms, struct acts **out, struct error *e)
{
    *out = NULL;
    assert((forms & ACT_Q16) == 0 || n % ACT_GROUP == 0);
    struct acts *a = mem_zalloc(sizeof *a);
    size_t elems;
    if (a == NULL || !size_mul(rows, (size_t)n + ACT_BLOCK * ACT_GROUP, &elems) || elems > SIZE_MAX / sizeof(float)) {
        mem_free(a);
        return FAIL(e, ERR_NOMEM, "no memory for %u activation rows of %u", rows, n);
    }
    *a = (struct acts){.rows = rows, .n = n, .forms = forms};
    a->f32 = mem_aligned(MEMORY_ALIGN, (size_t)rows * n * sizeof(float));
    bool ok = a->f32 != NULL;
    if ((forms & ACT_F32) && d->k->room_bytes != 0) {
        const size_t n_blocks = ((size_t)n + ACT_BLOCK * ACT_GROUP - 1) / (ACT_BLOCK * ACT_GROUP);
        a->blocks = mem_aligned(MEMORY_ALIGN, n_blocks * rows * ACT_BLOCK * ACT_GROUP * sizeof *a->blocks);
        ok = ok && a->blocks != NULL;
    }
    if (forms & ACT_Q16) {
        struct groups *g = &a->groups;
        const size_t n_groups = acts_group(a, 0, (n / ACT_GROUP + ACT_BLOCK - 1) & ~(size_t)(ACT_BLOCK - 1));
        g->q = mem_aligned(MEMORY_ALIGN, n_groups * ACT_GROUP * sizeof *g->q);
        g->scale = mem_aligned(MEMORY_ALIGN, n_groups * sizeof *g->scale);
        g->sum = mem_aligned(MEMORY_ALIGN, n_groups * sizeof *g->sum);
        g->sum16 = mem_aligned(MEMORY_ALIGN, n_groups * 2 * sizeof *g->sum16);
        ok = ok && g->q != NULL && g->scale != NULL && g->sum != NULL && g->sum16 != NULL;
        a->few = MIN(rows, d->k->few_rows);
        if (a->few > 0) {
            const size_t n_few = n_groups / rows * a->few;
            a->bytes = mem_aligned(MEMORY_ALIGN, n_few * ACT_BYTES);
            a->starts = mem_aligned(MEMORY_ALIGN, n_few * ACT_STARTS * sizeof *a->starts);
            ok = ok && a->bytes != NULL && a->starts != NULL;
        }
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
    mem_free(a->blocks);
    mem_free(a->groups.q);
    mem_free(a->groups.scale);
    mem_free(a->groups.sum);
    mem_free(a->groups.sum16);
    mem_free(a->bytes);
    mem_free(a->starts);
    mem_free(a);
}
