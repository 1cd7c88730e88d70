/* Measuring the machine; see measure.h.
 *
 * The products are the logits op over a random matrix in the model's dtype: with one row it reads weights as decoding
 * does, with many it computes as prefill does. Each is repeated until its share of the time is over and the best run
 * counts, since whatever else runs on the machine can only make it slower. */
#include "cli/measure.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/team.h"
#include "model/dummy.h"

#include <stdatomic.h>

#define READ_BYTES   (64 * MIB) /* beyond the caches of most machines */
#define MATRIX_BYTES (64 * MIB)
#define SHARE_NS     (60 * NS_PER_MS)
#define MANY_ROWS    64

struct reading {
    const uint64_t *words;
    size_t per_tile;
    _Atomic uint64_t sum; /* so that nothing is optimised away */
};

static void read_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    struct reading *r = ctx;
    const uint64_t *p = r->words + tile * r->per_tile;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= r->per_tile; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += p[i + k];
    for (size_t k = 1; k < 8; k++)
        sum[0] += sum[k];
    atomic_fetch_add(&r->sum, sum[0]);
}

static enum err measure_reading(uint32_t threads, struct measured *m, const struct clock *clock, struct error *e)
{
    enum { TILES = 64 };
    struct team *team;
    TRY(team_new(&team, threads, e));
    struct reading r = {.per_tile = READ_BYTES / sizeof(uint64_t) / TILES};
    uint64_t *words = mem_alloc(READ_BYTES);
    if (words == NULL) {
        team_free(team);
        return FAIL(e, ERR_NOMEM, "no memory to measure the machine");
    }
    for (size_t i = 0; i < READ_BYTES / sizeof *words; i++)
        words[i] = i; /* touched: an untouched page is not memory */
    r.words = words;
    const uint64_t start = clock_now(clock);
    for (int i = 0; i < 3 || clock_now(clock) - start < SHARE_NS / 2; i++) {
        const uint64_t before = clock_now(clock);
        team_run(team, TILES, read_tile, &r);
        const double rate = (double)READ_BYTES * 1e9 / (double)MAX(clock_now(clock) - before, 1u);
        m->read_bytes_s = MAX(m->read_bytes_s, rate);
        if (i >= 2 && clock_now(clock) - start > SHARE_NS)
            break;
    }
    mem_free(words);
    team_free(team);
    return OK;
}

/* A device with one matrix and rows to multiply it by. */
struct bench_rig {
    const struct ops *ops;
    struct dev *dev;
    struct dummy *dummy;
    struct weight w;
    struct acts *acts;
    float *x, *gain, *out;
    uint32_t n_in, n_out, rows;
};

static enum err rig_buffers(struct bench_rig *g, struct error *e)
{
    const struct ops *ops = g->ops;
    TRY(ops->dev_alloc(g->dev, sizeof(float) * g->rows * g->n_in, (void **)&g->x, e));
    TRY(ops->dev_alloc(g->dev, sizeof(float) * g->n_in, (void **)&g->gain, e));
    TRY(ops->dev_alloc(g->dev, sizeof(float) * g->rows * g->n_out, (void **)&g->out, e));
    TRY(ops->acts_new(g->dev, g->rows, g->n_in, g->w.wants, &g->acts, e));
    float *host = mem_array((size_t)g->rows * g->n_in, sizeof *host);
    if (host == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to measure the machine");
    for (size_t i = 0; i < (size_t)g->rows * g->n_in; i++)
        host[i] = (float)(i % 17) - 8.0f;
    ops->dev_write(g->dev, g->x, host, sizeof *host * g->rows * g->n_in);
    ops->dev_write(g->dev, g->gain, host, sizeof *host * g->n_in);
    mem_free(host);
    const struct norm_args norm = {
        .x = g->x, .n_rows = g->rows, .n = g->n_in, .gain = g->gain, .eps = 1e-5f, .forms = g->w.wants, .out = g->acts};
    ops->norm(g->dev, &norm);
    return ops->dev_wait(g->dev, e);
}

static bool makes_f8(const struct fit *f)
{
    return f->work_dtype == DTYPE_F8_E4M3 && f->main_dtype != DTYPE_F8_E4M3;
}

static enum err rig_init(struct bench_rig *g, const struct fit *f, uint32_t threads, struct error *e)
{
    const struct dev_options options = {
        .threads = threads, .rows_max = g->rows, .out_max = g->rows, .fp8 = makes_f8(f)};
    TRY(g->ops->dev_open(&options, &g->dev, e));
    TRY(dummy_new(f->main_dtype, 1, &g->dummy, e));
    const struct weight_source src = dummy_source(g->dummy);
    struct tensor_view v;
    TRY(src.find(src.ctx, "measure.weight", 1, g->n_out, g->n_in, &v, e));
    TRY(g->ops->weight_bind(g->dev, &v, 1, &g->w, e));
    return rig_buffers(g, e);
}

static void rig_fini(struct bench_rig *g)
{
    if (g->dev != NULL) {
        g->ops->weight_drop(g->dev, &g->w);
        g->ops->acts_free(g->dev, g->acts);
        g->ops->dev_free(g->dev, g->x);
        g->ops->dev_free(g->dev, g->gain);
        g->ops->dev_free(g->dev, g->out);
        g->ops->dev_close(g->dev);
    }
    dummy_free(g->dummy);
}

/* The best of the runs that fit into the time: nanoseconds of one. */
static enum err time_product(
    struct bench_rig *g, uint32_t rows, const struct clock *clock, uint64_t *best_ns, struct error *e)
{
    const struct logits_args a = {.in = g->acts, .n_rows = rows, .head = &g->w, .scale = 1.0f, .out = g->out};
    const uint64_t start = clock_now(clock);
    *best_ns = UINT64_MAX;
    do {
        const uint64_t before = clock_now(clock);
        g->ops->logits(g->dev, &a);
        TRY(g->ops->dev_wait(g->dev, e));
        *best_ns = MIN(*best_ns, MAX(clock_now(clock) - before, 1u));
    } while (clock_now(clock) - start + *best_ns / 2 < SHARE_NS);
    return OK;
}

static enum err measure_products(const struct ops *ops, const struct fit *f, uint32_t n_in, uint32_t n_out,
    uint32_t rows, uint32_t threads, const struct clock *clock, double *rate, struct error *e)
{
    struct bench_rig g = {.ops = ops, .n_in = n_in, .n_out = n_out, .rows = rows};
    uint64_t ns = 1;
    enum err err = rig_init(&g, f, threads, e);
    if (err == OK)
        err = time_product(&g, rows, clock, &ns, e);
    const double row_bytes = makes_f8(f) ? (double)n_in : (double)g.w.row_bytes;
    const double work = rows == 1 ? row_bytes * n_out : 2.0 * (double)rows * n_in * n_out;
    *rate = work * 1e9 / (double)ns;
    rig_fini(&g);
    return err;
}

enum err measure_machine(
    const struct ops *ops, const struct fit *f, uint32_t n_in, uint32_t threads, struct measured *m, struct error *e)
{
    struct clock clock;
    clock_init(&clock);
    const uint64_t start = clock_now(&clock);
    *m = (struct measured){0};
    size_t row_bytes = 0;
    if (dtype_bytes(f->work_dtype, n_in, &row_bytes, NULL) != OK)
        row_bytes = n_in; /* dummy weights take a smaller block then */
    const uint32_t n_out = (uint32_t)(MATRIX_BYTES / MAX(row_bytes, (size_t)1)) / 16 * 16;
    if (ops->memory_free == NULL)
        TRY(measure_reading(threads, m, &clock, e));
    TRY(measure_products(ops, f, n_in, MAX(n_out, 16u), 1, threads, &clock, &m->vector_bytes_s, e));
    const uint32_t few = MAX((1u << 19) / n_in / 16 * 16, 16u);
    TRY(measure_products(ops, f, n_in, few, MANY_ROWS, threads, &clock, &m->matrix_flops, e));
    m->seconds = (double)(clock_now(&clock) - start) / 1e9;
    return OK;
}
