/* The ops on the CPU: how each is cut into tiles for the worker team. Tiles are output columns or rows, never parts of
 * a sum, and a tile finishes what it made (bias, rope, KV write, activation, quantisation) while it is in cache. */
#include "cpu/cpu_int.h"

#include <math.h>
#include <string.h>

#define F16_NAN       0x7e00
#define TILE_COLS     32  /* output columns a tile makes: one activation group, so that a tile can quantise its own */
#define TILE_COLS_TOP 128 /* the vocabulary is wide; fewer claims */
#define TILE_ROWS     4   /* rows a row-wise tile handles */

#define GRID_ROWS 132 /* rows of a product tile at most: their activations stay in a core's cache */
#define GRID_MANY 16  /* rows from which on a tile takes more columns */
#define TILE_COST 4   /* columns' worth */

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
static uint32_t grid_cols(uint32_t n_workers, uint32_t n_cols, uint32_t row_parts)
{
    uint32_t best = TILE_COLS, least = UINT32_MAX;
    for (uint32_t cols = TILE_COLS_TOP; cols >= TILE_COLS; cols -= TILE_COLS) {
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
    const uint32_t cols = many ? MAX(cols_each, grid_cols(team_size(d->team), n_cols, parts)) : cols_each;
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
        const struct groups to = groups_from(&a->groups, acts_group(a, row, g));
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
    for (uint32_t at = 0; at < n; at += info->block_elems, to += info->block_bytes) {
        bool fits = true;
        for (uint32_t i = 0; i < info->block_elems; i++)
            fits = fits && fabsf(x[at + i]) <= info->quant_max;
        if (fits) {
            info->quant(x + at, to, info->block_elems);
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
    cpu_run(d, job.grid.n_cols * job.grid.n_rows, qkv_tile, &job);
}

/* ---- attend: a tile is some rows of one sequence and one kv head ------------------------------------------------ */

struct attend_job {
    struct dev *d;
    const struct batch *b;
    const struct kv_cache *kv;
    const struct attend_args *a;
    uint32_t heads_each, n_parts; /* query heads of one kv head are cut into parts of heads_each */
    bool finish_here;             /* the heads of a tile are whole activation groups */
};

static struct attend_tile attend_tile_of(const struct attend_job *j, uint32_t tile)
{
    const struct attend_args *a = j->a;
    const uint32_t per_kv = a->n_heads / a->n_kv_heads;
    const struct row_chunk *c = &j->d->chunks[tile / (a->n_kv_heads * j->n_parts)];
    const uint32_t kv_head = tile / j->n_parts % a->n_kv_heads, from = tile % j->n_parts * j->heads_each;
    return (struct attend_tile){.args = a,
        .batch = j->b,
        .kv = j->kv,
        .seq = &j->b->seqs[c->seq],
        .first_row = c->first_row,
        .n_rows = c->n_rows,
        .kv_head = kv_head,
        .first_head = kv_head * per_kv + from,
        .n_heads = MIN(j->heads_each, per_kv - from)};
}

static void finish_heads(const struct attend_job *j, const struct attend_tile *t)
{
    const uint32_t n = j->a->head_dim;
    for (uint32_t r = 0; j->finish_here && r < t->n_rows; r++)
        acts_finish(j->d->k, j->a->out, j->a->forms, t->first_row + r, t->first_head * n, t->n_heads * n);
}

static void attend_one(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct attend_job *j = ctx;
    const struct attend_tile t = attend_tile_of(j, tile);
    j->d->k->attend(&j->d->workers[worker], &t);
    finish_heads(j, &t);
}

static void attend_finish_rows(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct attend_job *j = ctx;
    for (uint32_t r = tile * TILE_ROWS; r < MIN((tile + 1) * TILE_ROWS, j->b->n_rows); r++)
        acts_finish(j->d->k, j->a->out, j->a->forms, r, 0, j->a->out->n);
}

/* Parts: with few sequences and long contexts there are more cores than kv heads, or a few tiles that take long at the
 * end; so positions are shared out too, at the cuts that the arithmetic has anyway. */

#define PARTS_TILES 256 /* tiles of the plain cut; more of them are work enough */
#define PARTS_SHARE 8   /* a tile may be this part of a core's share */

#define SHORT_ROWS   16 /* rows of a chunk behind less than a part */
#define CHUNKS_TRIED 3
#define CHUNK_COST   1 /* rows' worth: bringing in keys and values */

struct parts_job {
    struct attend_job *j;
    uint32_t n_all;                  /* parts of all tiles */
    uint32_t first[PARTS_TILES + 1]; /* of each tile, among all parts */
    size_t at[PARTS_TILES];          /* a tile's floats in partials */
};

static uint32_t first_part(const struct attend_tile *t)
{
    const uint32_t pos = t->batch->pos[t->first_row], window = t->args->window;
    return (window > 0 && pos + 1 > window ? pos + 1 - window : 0) / ATTN_PART;
}

static uint32_t parts_of(const struct attend_tile *t)
{
    return t->batch->pos[t->first_row + t->n_rows - 1] / ATTN_PART - first_part(t) + 1;
}

static size_t pair_floats(const struct attend_args *a)
{
    return 2 * ATTN_LANES + tiles_of(a->head_dim, ATTN_LANES) * (size_t)ATTN_LANES;
}

static void attend_one_part(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct parts_job *p = ctx;
    uint32_t i = 0;
    while (tile >= p->first[i + 1])
        i++;
    struct attend_tile t = attend_tile_of(p->j, i);
    const uint32_t k = tile - p->first[i];
    t.part = first_part(&t) + k;
    t.partial = p->j->d->partials + p->at[i] + (size_t)k * t.n_rows * t.n_heads * pair_floats(t.args);
    p->j->d->k->attend(&p->j->d->workers[worker], &t);
}

static void attend_join_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct parts_job *p = ctx;
    struct attend_tile t = attend_tile_of(p->j, tile);
    t.part = first_part(&t);
    t.partial = p->j->d->partials + p->at[tile];
    p->j->d->k->attend_join(&p->j->d->workers[worker], &t, p->first[tile + 1] - p->first[tile]);
    finish_heads(p->j, &t);
}

/* False when it would not pay or not fit. It pays when one tile is more than a fraction of what each core has to do. */
static bool attend_in_parts(struct attend_job *j, uint32_t n_tiles)
{
    struct dev *d = j->d;
    if (d->k->attend_join == NULL || team_size(d->team) == 1 || n_tiles > PARTS_TILES)
        return false;
    struct parts_job parts = {.j = j}, *p = &parts;
    size_t floats = 0;
    uint64_t work = 0, most = 0;
    for (uint32_t i = 0; i < n_tiles; i++) {
        const struct attend_tile t = attend_tile_of(j, i);
        const uint32_t n = parts_of(&t), n_pairs = t.n_rows * t.n_heads;
        p->at[i] = floats;
        p->first[i] = p->n_all;
        p->n_all += n;
        floats += (size_t)n * n_pairs * pair_floats(j->a);
        work += (uint64_t)n * n_pairs;
        most = MAX(most, (uint64_t)n * n_pairs);
    }
    p->first[n_tiles] = p->n_all;
    if (p->n_all == n_tiles || floats > PARTIAL_FLOATS || most * team_size(d->team) * PARTS_SHARE < work)
        return false;
    cpu_run(d, p->n_all, attend_one_part, p);
    cpu_run(d, n_tiles, attend_join_tile, p);
    return true;
}

/* Into how many chunks a sequence's rows are cut. Behind a long context as few as can be, since each brings in all of
 * it; unless a few more let the cores end together. Behind a short one there are no parts to share out, so there must
 * be chunks enough. */
static uint32_t chunks_for(const struct dev *d, const struct batch *b, const struct batch_seq *s, uint32_t rows_max,
    uint32_t n_heads) /* tiles of a chunk and a part */
{
    const uint32_t parts = b->pos[s->first_row] / ATTN_PART + 1;
    const uint32_t fewest = tiles_of(s->n_rows, parts == 1 ? MIN(rows_max, (uint32_t)SHORT_ROWS) : rows_max);
    uint32_t best = fewest, least = UINT32_MAX;
    for (uint32_t n = fewest; n < MIN(fewest + CHUNKS_TRIED, s->n_rows + 1); n++) {
        const uint32_t share =
            tiles_of(n * n_heads * parts, team_size(d->team)) * (tiles_of(s->n_rows, n) + CHUNK_COST);
        if (share < least) {
            least = share;
            best = n;
        }
    }
    return best;
}

/* Rows of all sequences in chunks, as even as they go. The last come first: those are prompts and what sees most, and
 * what is short fills the gaps at the end. */
static uint32_t cut_rows(struct dev *d, const struct batch *b, uint32_t rows_max, uint32_t n_heads)
{
    uint32_t n_chunks = 0;
    for (uint32_t seq = b->n_seqs; seq-- > 0;) {
        const struct batch_seq *s = &b->seqs[seq];
        const uint32_t n = s->n_rows > 0 ? chunks_for(d, b, s, rows_max, n_heads) : 0; /* padding has no rows */
        for (uint32_t i = n, end = s->n_rows; i > 0; i--) {
            const uint32_t some = tiles_of(end, i);
            end -= some;
            d->chunks[n_chunks++] = (struct row_chunk){.seq = seq, .first_row = s->first_row + end, .n_rows = some};
        }
    }
    return n_chunks;
}

void cpu_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a)
{
    const uint32_t per_kv = a->n_heads / a->n_kv_heads, heads_each = MIN(per_kv, (uint32_t)ATTN_ROWS_MAX);
    assert(a->head_dim <= HEAD_DIM_MAX);
    struct attend_job job = {d, b, kv, a, heads_each, tiles_of(per_kv, heads_each), false};
    const uint32_t n_chunks = cut_rows(d, b, ATTN_ROWS_MAX / heads_each, a->n_kv_heads * job.n_parts);
    const uint32_t last = per_kv - (job.n_parts - 1) * heads_each; /* heads of the last part */
    job.finish_here =
        (a->forms & ACT_Q16) == 0 || (heads_each * a->head_dim % ACT_GROUP == 0 && last * a->head_dim % ACT_GROUP == 0);
    const uint32_t n_tiles = n_chunks * a->n_kv_heads * job.n_parts;
    if (!attend_in_parts(&job, n_tiles))
        cpu_run(d, n_tiles, attend_one, &job);
    if (!job.finish_here)
        cpu_run(d, tiles_of(b->n_rows, TILE_ROWS), attend_finish_rows, &job);
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
    cpu_run(d, job.grid.n_cols * job.grid.n_rows, project_tile, &job);
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
    cpu_run(d, job.grid.n_cols * job.grid.n_rows, gate_up_tile, &job);
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
    cpu_run(d, job.grid.n_cols * job.grid.n_rows, logits_tile, &job);
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
