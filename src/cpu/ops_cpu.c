/* The ops on the CPU: how each is cut into tiles for the worker team. Tiles are output columns or rows, never parts of
 * a sum, and a tile finishes what it made (bias, rope, KV write, activation, quantisation) while it is in cache. */
#include "cpu/cpu_int.h"
#include "tensor/quant.h"

#include <math.h>
#include <string.h>

#define F16_NAN       0x7e00
#define TILE_COLS     32  /* output columns a tile makes: one activation group, so that a tile can quantise its own */
#define TILE_COLS_TOP 128 /* the vocabulary is wide; fewer claims */
#define TILE_ROWS     4   /* rows a row-wise tile handles */

#define GRID_ROWS 132 /* rows of a product tile at most: their activations stay in a core's cache */
#define GRID_MANY 16  /* rows from which on a tile takes more columns */
#define GRID_FEW  24  /* rows up to which no more than FEW_COLS: what they read once is the weights */
#define FEW_COLS  64
#define TILE_COST 4 /* columns' worth */

static uint32_t tiles_of(uint32_t n, uint32_t per_tile)
{
    return (n + per_tile - 1) / per_tile;
}

/* How a product's rows and columns are cut. Tiles that share rows are neighbours. */
struct grid {
    uint32_t cols, rows, n_cols, n_rows;
};

/* Columns of a tile of many rows: wider ones save work, but the cores should end together. So the width whose largest
 * share is the least, counted in columns and a few more for what a tile costs besides. */
static uint32_t grid_cols(uint32_t n_workers, uint32_t n_cols, uint32_t row_parts, uint32_t most)
{
    uint32_t best = TILE_COLS, least = UINT32_MAX;
    for (uint32_t cols = most; cols >= TILE_COLS; cols -= TILE_COLS) {
        const uint32_t share = tiles_of(tiles_of(n_cols, cols) * row_parts, n_workers) * (cols + TILE_COST);
        if (share < least) {
            least = share;
            best = cols;
        }
    }
    return best;
}

static struct grid grid_of(const struct dev *d, uint32_t n_rows, uint32_t n_cols, uint32_t cols_each)
{
    const uint32_t parts = tiles_of(n_rows, GRID_ROWS);
    const bool many = n_rows >= GRID_MANY && n_cols > 0;
    const uint32_t most = n_rows <= GRID_FEW ? FEW_COLS : TILE_COLS_TOP;
    const uint32_t cols = many ? MAX(cols_each, grid_cols(team_size(d->team), n_cols, parts, most)) : cols_each;
    const uint32_t rows = tiles_of(tiles_of(n_rows, MAX(parts, 1u)), 12) * 12; /* even parts of whole row tiles */
    return (struct grid){cols, MAX(rows, 1u), tiles_of(n_cols, cols), tiles_of(n_rows, MAX(rows, 1u))};
}

/* What a tile of a grid covers. */
struct area {
    uint32_t lo, hi, row, n_rows;
};

static struct area area_of(const struct grid *g, uint32_t tile, uint32_t n_rows, uint32_t n_cols)
{
    const uint32_t lo = tile % g->n_cols * g->cols, row = tile / g->n_cols * g->rows;
    return (struct area){lo, MIN(lo + g->cols, n_cols), row, MIN(g->rows, n_rows - row)};
}

void cpu_run(struct dev *d, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    team_flush_denormals();
    team_run(d->team, n_tiles, fn, ctx);
}

/* ---- neighbouring tiles for one worker --------------------------------------------------------------------------- */

struct near_job {
    struct dev *d;
    team_fn *fn;
    void *ctx;
};

/* There are as many calls as tiles, and each takes one: its worker's next, or that of the first who has any left. */
static void near_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct near_job *j = ctx;
    const uint32_t n = team_size(j->d->team);
    (void)tile;
    for (uint32_t i = 0; i < n; i++) {
        struct stretch *s = &j->d->stretches[(worker + i) % n];
        if (atomic_load_explicit(&s->next, memory_order_relaxed) >= s->end)
            continue;
        const uint32_t mine = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (mine < s->end) {
            j->fn(j->ctx, mine, worker);
            return;
        }
    }
    assert(false);
}

void cpu_run_near(struct dev *d, uint32_t n_tiles, team_fn *fn, void *ctx)
{
    struct near_job job = {d, fn, ctx};
    const uint32_t n = team_size(d->team);
    for (uint32_t i = 0; i < n; i++) {
        struct stretch *s = &d->stretches[i];
        atomic_store_explicit(&s->next, (uint32_t)((uint64_t)n_tiles * i / n), memory_order_relaxed);
        s->end = (uint32_t)((uint64_t)n_tiles * (i + 1) / n);
    }
    cpu_run(d, n_tiles, near_tile, &job);
}

void acts_finish(const struct kernels *k, struct acts *a, uint32_t forms, size_t row, uint32_t at, uint32_t n)
{
    const float *x = a->f32 + row * a->n;
    if ((forms & ACT_F32) && a->blocks != NULL)
        for (uint32_t i = at, end = at + n, some; i < end; i += some) {
            some = MIN(end - i, ACT_BLOCK * ACT_GROUP - i % (ACT_BLOCK * ACT_GROUP));
            memcpy(acts_block(a, row, i), x + i, some * sizeof *x);
        }
    if ((forms & ACT_Q16) == 0)
        return;
    assert((a->forms & ACT_Q16) && at % ACT_GROUP == 0 && n % ACT_GROUP == 0);
    for (uint32_t g = at / ACT_GROUP, end = (at + n) / ACT_GROUP, some; g < end; g += some) {
        some = MIN(end - g, ACT_BLOCK - g % ACT_BLOCK);
        const struct groups to = acts_groups(a, row, g);
        k->quant_groups(x + (size_t)g * ACT_GROUP, some, &to);
    }
}

/* ---- embed --------------------------------------------------------------------------------------------------- */

struct embed_job {
    const struct batch *b;
    const struct embed_args *a;
};

static void embed_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct embed_job *j = ctx;
    const struct weight *w = j->a->table;
    const uint32_t n = w->n_in;
    for (uint32_t r = tile * TILE_ROWS; r < MIN((tile + 1) * TILE_ROWS, j->b->n_rows); r++) {
        const size_t id = (size_t)j->b->token[r];
        assert(id < w->n_out);
        float *out = j->a->out + (size_t)r * n;
        dtype_info(w->dtype)->dequant((const char *)w->mat[0] + id * w->row_bytes, out, n);
        for (uint32_t i = 0; i < n; i++)
            out[i] *= j->a->scale;
    }
}

void cpu_embed(struct dev *d, const struct batch *b, const struct embed_args *a)
{
    struct embed_job job = {b, a};
    cpu_run(d, tiles_of(b->n_rows, TILE_ROWS), embed_tile, &job);
}

/* ---- norm ---------------------------------------------------------------------------------------------------- */

struct norm_job {
    const struct kernels *k;
    const struct norm_args *a;
};

static void norm_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct norm_job *j = ctx;
    const struct norm_args *a = j->a;
    for (uint32_t i = tile * TILE_ROWS; i < MIN((tile + 1) * TILE_ROWS, a->n_rows); i++) {
        const size_t from = a->rows != NULL ? a->rows[i] : i;
        j->k->norm_row(a->x + from * a->n, a->gain, a->eps, a->n, a->out->f32 + (size_t)i * a->n);
        acts_finish(j->k, a->out, a->forms, i, 0, a->n);
    }
}

void cpu_norm(struct dev *d, const struct norm_args *a)
{
    assert(a->out->n == a->n && a->n_rows <= a->out->rows);
    struct norm_job job = {d->k, a};
    cpu_run(d, tiles_of(a->n_rows, TILE_ROWS), norm_tile, &job);
}

/* ---- qkv: a tile is some rows of one head, of q, k or v ---------------------------------------------------------- */

struct qkv_job {
    struct dev *d;
    const struct batch *b;
    struct kv_cache *kv;
    const struct qkv_args *a;
    struct grid grid; /* columns by heads */
};

static void rope_row(enum rope_style style, uint32_t dims, const float *table, float *x)
{
    const uint32_t half = dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t first = style == ROPE_PAIRS ? 2 * i : i;
        const uint32_t second = style == ROPE_PAIRS ? 2 * i + 1 : i + half;
        const float c = table[2 * i], s = table[2 * i + 1];
        const float x0 = x[first], x1 = x[second];
        x[first] = x0 * c - x1 * s;
        x[second] = x0 * s + x1 * c;
    }
}

static void turn_head(const struct qkv_job *j, const float *gain, uint32_t row, float *x)
{
    if (gain != NULL)
        j->d->k->norm_row(x, gain, j->a->norm_eps, j->a->head_dim, x);
    const uint32_t dims = j->a->rope_dims;
    const float *table = j->a->rope_table + (size_t)j->b->pos[row] * dims;
    if (j->a->rope != ROPE_NONE)
        (j->d->k->rope != NULL ? j->d->k->rope : rope_row)(j->a->rope, dims, table, x);
}

/* Round a row into the cache. A quantised group that holds NaN, infinity or more than its scale can say becomes NaN as
 * a whole; it belongs to one token of one sequence, which is lost anyway. */
static void round_row(const struct kv_layer *layer, const float *x, unsigned char *to, uint32_t n)
{
    const struct dtype_info *info = dtype_info(layer->dtype);
    if ((info->flags & DTYPE_IS_QUANTISED) == 0) {
        info->quant(x, to, n);
        return;
    }
    for (uint32_t at = 0; at < n; at += QK, to += info->block_bytes) {
        float group[QK] = {0};
        memcpy(group, x + at, MIN(n - at, (uint32_t)QK) * sizeof *x);
        bool fits = true;
        for (uint32_t i = 0; i < QK; i++)
            fits = fits && fabsf(group[i]) <= info->quant_max;
        if (fits) {
            info->quant(group, to, QK);
        } else {
            memset(to, 0, info->block_bytes);
            memcpy(to, &(uint16_t){F16_NAN}, sizeof(uint16_t)); /* Q8_0 and Q4_0 begin with their scale */
        }
    }
}

static void write_kv(const struct qkv_job *j, bool is_v, uint32_t head, uint32_t row, const float *x)
{
    const struct kv_layer *layer = j->a->layer;
    const uint32_t slot = j->b->kv_slot[layer->group][row];
    if (slot == KV_SLOT_NONE)
        return;
    const uint32_t block = slot / j->kv->block_tokens, token = slot % j->kv->block_tokens;
    assert(block < j->kv->n_blocks);
    unsigned char *first = j->kv->blocks + (uint64_t)block * j->kv->block_bytes + (is_v ? layer->v_at : layer->k_at) +
                           (uint64_t)head * j->kv->block_tokens * layer->row_bytes;
    unsigned char key[HEAD_DIM_MAX * sizeof(float)];
    unsigned char *to = is_v ? first + (uint64_t)token * layer->row_bytes : key;
    if (j->d->k->to_kv == NULL || !j->d->k->to_kv(layer->dtype, x, j->a->head_dim, to))
        round_row(layer, x, to, j->a->head_dim);
    if (!is_v)
        key_put(layer, first, token, key);
}

static void qkv_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct qkv_job *j = ctx;
    const struct qkv_args *a = j->a;
    const uint32_t n = a->head_dim, kv_n = a->n_kv_heads * n;
    const struct area at = area_of(&j->grid, tile, j->b->n_rows, (a->n_heads + 2 * a->n_kv_heads) * n);
    const uint32_t all = at.lo / n; /* the head, counted over q, k and v */
    const bool is_q = all < a->n_heads, is_v = all >= a->n_heads + a->n_kv_heads;
    const uint32_t head = all - (is_q ? 0 : a->n_heads) - (is_v ? a->n_kv_heads : 0);
    float *out = is_q ? a->q : a->scratch + (is_v ? kv_n : 0);
    struct product p = {.w = is_q   ? a->wq
                             : is_v ? a->wv
                                    : a->wk,
        .in = a->in,
        .first_row = at.row,
        .n_rows = at.n_rows};
    p.out_stride = is_q ? (size_t)a->n_heads * n : (size_t)2 * kv_n;
    p.out = out + at.row * p.out_stride;
    j->d->k->product(&j->d->workers[worker], &p, head * n, (head + 1) * n);
    for (uint32_t i = 0; i < at.n_rows; i++) {
        float *x = p.out + i * p.out_stride + head * n;
        if (!is_v)
            turn_head(j, is_q ? a->q_gain : a->k_gain, at.row + i, x);
        if (!is_q)
            write_kv(j, is_v, head, at.row + i, x);
    }
}

void cpu_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    assert(a->head_dim <= HEAD_DIM_MAX && a->rope_dims <= a->head_dim && b->n_rows <= d->rows_max);
    struct qkv_job job = {d, b, kv, a, grid_of(d, b->n_rows, 0, a->head_dim)};
    job.grid.cols = a->head_dim;
    job.grid.n_cols = a->n_heads + 2 * a->n_kv_heads;
    cpu_run_near(d, job.grid.n_cols * job.grid.n_rows, qkv_tile, &job);
}

/* ---- project ---------------------------------------------------------------------------------------------------- */

struct project_job {
    struct dev *d;
    const struct batch *b;
    const struct project_args *a;
    struct grid grid;
};

static void add_row(const struct kernels *k, float *x, const float *y, uint32_t n)
{
    if (k->add_row != NULL) {
        k->add_row(x, y, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void project_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct project_job *j = ctx;
    const struct project_args *a = j->a;
    const uint32_t n = a->w->n_out;
    const struct area at = area_of(&j->grid, tile, j->b->n_rows, n);
    float *out = a->scratch + (size_t)at.row * n;
    const struct product p = {
        .w = a->w, .in = a->in, .first_row = at.row, .n_rows = at.n_rows, .out = out, .out_stride = n};
    j->d->k->product(&j->d->workers[worker], &p, at.lo, at.hi);
    for (uint32_t i = 0; a->post_gain == NULL && i < at.n_rows; i++) {
        const size_t from = (size_t)(at.row + i) * n + at.lo;
        add_row(j->d->k, a->x + from, a->scratch + from, at.hi - at.lo);
    }
}

static void post_norm_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct project_job *j = ctx;
    const struct project_args *a = j->a;
    const uint32_t n = a->w->n_out;
    for (uint32_t r = tile * TILE_ROWS; r < MIN((tile + 1) * TILE_ROWS, j->b->n_rows); r++) {
        float *y = a->scratch + (size_t)r * n;
        j->d->k->norm_row(y, a->post_gain, a->post_eps, n, y);
        add_row(j->d->k, a->x + (size_t)r * n, y, n);
    }
}

void cpu_project(struct dev *d, const struct batch *b, const struct project_args *a)
{
    assert(a->in->n == a->w->n_in);
    struct project_job job = {d, b, a, grid_of(d, b->n_rows, a->w->n_out, TILE_COLS)};
    cpu_run_near(d, job.grid.n_cols * job.grid.n_rows, project_tile, &job);
    if (a->post_gain != NULL)
        cpu_run(d, tiles_of(b->n_rows, TILE_ROWS), post_norm_tile, &job);
}

/* ---- gate and up ------------------------------------------------------------------------------------------------ */

struct gate_up_job {
    struct dev *d;
    const struct batch *b;
    const struct gate_up_args *a;
    struct grid grid;
};

static void gate_up_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct gate_up_job *j = ctx;
    const struct gate_up_args *a = j->a;
    const uint32_t n = a->gate->n_out;
    const struct area at = area_of(&j->grid, tile, j->b->n_rows, n);
    float *out = a->scratch + (size_t)at.row * 2 * n;
    struct product p = {
        .w = a->gate, .in = a->in, .first_row = at.row, .n_rows = at.n_rows, .out = out, .out_stride = (size_t)2 * n};
    j->d->k->product(&j->d->workers[worker], &p, at.lo, at.hi);
    p.w = a->up;
    p.out = out + n;
    j->d->k->product(&j->d->workers[worker], &p, at.lo, at.hi);
    for (uint32_t i = 0; i < at.n_rows; i++) {
        const float *gate = out + (size_t)i * 2 * n + at.lo;
        j->d->k->glu(a->glu, gate, gate + n, at.hi - at.lo, a->out->f32 + (size_t)(at.row + i) * n + at.lo);
        acts_finish(j->d->k, a->out, a->forms, at.row + i, at.lo, at.hi - at.lo);
    }
}

void cpu_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a)
{
    assert(a->out->n == a->gate->n_out && a->up->n_out == a->gate->n_out);
    struct gate_up_job job = {d, b, a, grid_of(d, b->n_rows, a->gate->n_out, TILE_COLS)};
    cpu_run_near(d, job.grid.n_cols * job.grid.n_rows, gate_up_tile, &job);
}

/* ---- logits ----------------------------------------------------------------------------------------------------- */

struct logits_job {
    struct dev *d;
    const struct logits_args *a;
    struct grid grid;
};

static void logits_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct logits_job *j = ctx;
    const struct logits_args *a = j->a;
    const uint32_t n = a->head->n_out;
    const struct area at = area_of(&j->grid, tile, a->n_rows, n);
    float *out = a->out + (size_t)at.row * n;
    const struct product p = {
        .w = a->head, .in = a->in, .first_row = at.row, .n_rows = at.n_rows, .out = out, .out_stride = n};
    j->d->k->product(&j->d->workers[worker], &p, at.lo, at.hi);
    for (uint32_t i = 0; i < at.n_rows; i++)
        j->d->k->scale_cap(out + (size_t)i * n + at.lo, at.hi - at.lo, a->scale, a->cap);
}

void cpu_logits(struct dev *d, const struct logits_args *a)
{
    struct logits_job job = {d, a, grid_of(d, a->n_rows, a->head->n_out, TILE_COLS_TOP)};
    cpu_run_near(d, job.grid.n_cols * job.grid.n_rows, logits_tile, &job);
}

static void argmax_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct argmax_args *a = ctx;
    const float *x = a->x + (size_t)tile * a->n;
    uint32_t best = UINT32_MAX;
    float top = 0.0f;
    for (uint32_t i = 0; i < a->n; i++)
        if (x[i] == x[i] && (best == UINT32_MAX || x[i] > top)) {
            best = i;
            top = x[i];
        }
    a->out[tile] = best;
}

void cpu_argmax(struct dev *d, const struct argmax_args *a)
{
    struct argmax_args job = *a;
    cpu_run(d, a->n_rows, argmax_tile, &job);
}

void cpu_copy_blocks(struct dev *d, const struct copy_blocks_args *a)
{
    (void)d;
    assert(a->from->block_bytes == a->to->block_bytes);
    for (uint32_t i = 0; i < a->n; i++) {
        assert(a->src[i] < a->from->n_blocks && a->dst[i] < a->to->n_blocks);
        memmove(a->to->blocks + (uint64_t)a->dst[i] * a->to->block_bytes,
            a->from->blocks + (uint64_t)a->src[i] * a->from->block_bytes, a->to->block_bytes);
    }
}

void cpu_move_blocks(struct dev *d, const struct move_blocks_args *a)
{
    const uint64_t bytes = a->kv->block_bytes;
    (void)d;
    for (uint32_t i = 0; i < a->n; i++) {
        assert((a->is_out ? a->src[i] : a->dst[i]) < a->kv->n_blocks);
        if (a->is_out)
            memcpy(a->host + a->dst[i] * bytes, a->kv->blocks + a->src[i] * bytes, bytes);
        else
            memcpy(a->kv->blocks + a->dst[i] * bytes, a->host + a->src[i] * bytes, bytes);
    }
}
