/* Attention on the CPU: how a step's rows are cut into tiles for the worker team, whichever kernels compute them. A
 * tile is some rows of one sequence and one kv head. Cuts change nothing but the time: a row's arithmetic is the same
 * in any company (law 1), and a context is cut only at its parts, which the arithmetic has anyway. */
#include "cpu/cpu_int.h"

#include <string.h>

#define TILE_ROWS 4 /* rows that are joined or finished at once */

static uint32_t tiles_of(uint32_t n, uint32_t per_tile)
{
    return (n + per_tile - 1) / per_tile;
}

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
 * end; so positions are shared out too, at the cuts that the arithmetic has anyway. A run of parts is what a worker
 * takes at once: long ones first, since what it leaves behind for others to join goes through memory, then shorter
 * ones, so that the cores end together. The run that begins a context joins what it computes; others leave each part by
 * itself, for whoever joins them all in the end. */

#define PARTS_TILES 256 /* tiles of the plain cut; more of them are work enough */
#define PARTS_SHARE 8   /* a tile may be this part of a core's share */
#define RUNS_MAX    1024

#define SHORT_ROWS   16 /* rows of a chunk behind less than a part */
#define CHUNKS_TRIED 3
#define CHUNK_COST   2 /* rows' worth: bringing in keys and values */

struct parts_run {
    uint32_t tile, first, n; /* parts, counted from the tile's first */
};

struct parts_job {
    struct attend_job *j;
    uint32_t n_runs;
    struct parts_run runs[RUNS_MAX];
    uint32_t joined[PARTS_TILES]; /* parts of a tile's first run; 0: that is all of it */
    uint32_t n_parts[PARTS_TILES];
    uint32_t slice[PARTS_TILES + 1]; /* the first of a tile's slices of rows, which are joined at once */
    size_t at[PARTS_TILES];          /* a tile's floats in partials: what its first run joined, then part by part */
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

/* Floats that a tile leaves behind for one part. */
static size_t part_floats(const struct attend_tile *t)
{
    const size_t pair = 2 * ATTN_LANES + tiles_of(t->args->head_dim, ATTN_LANES) * (size_t)ATTN_LANES;
    return t->n_rows * t->n_heads * pair;
}

static void attend_run(void *ctx, uint32_t tile, uint32_t worker)
{
    const struct parts_job *p = ctx;
    const struct parts_run *r = &p->runs[tile];
    struct attend_tile t = attend_tile_of(p->j, r->tile);
    const uint32_t joined = p->joined[r->tile];
    if (joined > 0) {
        t.part = first_part(&t) + r->first;
        t.n_parts = r->n;
        t.partial = p->j->d->partials + p->at[r->tile];
        if (r->first > 0)
            t.partial += (1 + r->first - joined) * part_floats(&t);
    }
    p->j->d->k->attend(&p->j->d->workers[worker], &t);
    if (joined == 0)
        finish_heads(p->j, &t);
}

static void attend_join_rows(void *ctx, uint32_t slice, uint32_t worker)
{
    const struct parts_job *p = ctx;
    uint32_t i = 0;
    while (slice >= p->slice[i + 1])
        i++;
    struct attend_tile t = attend_tile_of(p->j, i);
    const size_t step = part_floats(&t);
    const uint32_t row = (slice - p->slice[i]) * TILE_ROWS;
    t.partial = p->j->d->partials + p->at[i] + step / t.n_rows * row;
    t.part = first_part(&t) + p->joined[i];
    t.n_parts = p->n_parts[i] - p->joined[i];
    t.first_row += row;
    t.n_rows = MIN(t.n_rows - row, (uint32_t)TILE_ROWS);
    p->j->d->k->attend_join(&p->j->d->workers[worker], &t, step);
    finish_heads(p->j, &t);
}

/* The runs of all tiles; false when what they leave does not fit. work: of all tiles, in parts and pairs. */
static bool cut_runs(struct parts_job *p, uint32_t n_tiles, uint64_t work)
{
    const uint32_t n_workers = team_size(p->j->d->team);
    size_t floats = 0;
    for (uint32_t i = 0; i < n_tiles; i++) {
        const struct attend_tile t = attend_tile_of(p->j, i);
        const uint32_t n_parts = p->n_parts[i], n_pairs = t.n_rows * t.n_heads;
        p->at[i] = floats;
        for (uint32_t at = 0, n; at < n_parts; at += n) {
            n = (uint32_t)MIN(MAX(work / n_workers / n_pairs, 1u), n_parts - at);
            if (p->n_runs + n_tiles - i >= RUNS_MAX)
                n = n_parts - at;
            work -= (uint64_t)n * n_pairs;
            if (at == 0 && n < n_parts) {
                p->joined[i] = n;
                floats += (1 + n_parts - n) * part_floats(&t);
            }
            p->runs[p->n_runs++] = (struct parts_run){i, at, n};
        }
        p->slice[i + 1] = p->slice[i] + (p->joined[i] > 0 ? tiles_of(t.n_rows, TILE_ROWS) : 0);
    }
    return floats <= PARTIAL_FLOATS;
}

/* False when it would not pay or not fit. It pays when one tile is more than a fraction of what each core has to do. */
static bool attend_in_parts(struct attend_job *j, uint32_t n_tiles)
{
    struct dev *d = j->d;
    if (d->k->attend_join == NULL || team_size(d->team) == 1 || n_tiles > PARTS_TILES)
        return false;
    struct parts_job parts, *p = &parts;
    p->j = j;
    p->n_runs = p->slice[0] = 0;
    memset(p->joined, 0, n_tiles * sizeof *p->joined);
    uint64_t work = 0, most = 0;
    for (uint32_t i = 0; i < n_tiles; i++) {
        const struct attend_tile t = attend_tile_of(j, i);
        p->n_parts[i] = parts_of(&t);
        const uint64_t own = (uint64_t)p->n_parts[i] * t.n_rows * t.n_heads;
        work += own;
        most = p->n_parts[i] > 1 ? MAX(most, own) : most;
    }
    if (most * team_size(d->team) * PARTS_SHARE < work || most == 0 || !cut_runs(p, n_tiles, work))
        return false;
    cpu_run(d, p->n_runs, attend_run, p);
    cpu_run(d, p->slice[n_tiles], attend_join_rows, p);
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
    const bool all_decode = b->n_rows <= b->n_seqs; /* tiles alike, and each worker asks for its neighbour's */
    if (!attend_in_parts(&job, n_tiles))
        (all_decode ? cpu_run_near : cpu_run)(d, n_tiles, attend_one, &job);
    if (!job.finish_here)
        cpu_run(d, tiles_of(b->n_rows, TILE_ROWS), attend_finish_rows, &job);
}
