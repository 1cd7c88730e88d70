/* Law 1 for the ops that work row by row: every row of a pool is computed alone on one thread, then batches are drawn
 * from the pool (any rows, any order, repeated, 1 to 65 of them, NaN and infinity among them), with outputs and scratch
 * poisoned, on 1, 2 and 3 threads; each row must come out with the bits it had alone. */
#include "testing_cpu.h"

#include "base/mem.h"

#define POOL      60
#define BATCH_MAX 65 /* one row and 64 others */
#define VOCAB     300
#define N_OUT     101 /* not whole tiles of columns */
#define ROUTER    17
#define TOP_K     5
#define EXPERTS   4
#define USED      3 /* two would hide their order: a + b is b + a */

struct bench {
    const struct rig *rig;
    const struct row_check *c;
    struct dev *d;
    uint32_t threads, h, f, round;
    int poison;
    struct matrix a, b, down;
    struct acts *in, *out, *hidden;
    float *pool;               /* [POOL][h] */
    float *gain;               /* [max(h, N_OUT)] */
    float *x, *scratch, *used; /* rows in and out, scratch, expert weights */
    uint32_t *expert;
};

const char *row_op_name(enum row_op op)
{
    static const char *const names[ROW_OPS] = {
        "embed", "norm", "project", "project with post norm", "gate_up", "route", "experts", "logits"};
    return names[op];
}

static void make_matrices(struct bench *b)
{
    const enum dtype t = b->c->dtype;
    const uint64_t seed = b->c->seed * 1000;
    switch (b->c->op) {
    case OP_EMBED:
    case OP_LOGITS: matrix_make(&b->a, b->rig, b->d, t, 1, VOCAB, b->h, seed, false); break;
    case OP_PROJECT:
    case OP_POST_NORM: matrix_make(&b->a, b->rig, b->d, t, 1, N_OUT, b->h, seed, true); break;
    case OP_ROUTE: matrix_make(&b->a, b->rig, b->d, t, 1, ROUTER, b->h, seed, false); break;
    case OP_GATE_UP:
        matrix_make(&b->a, b->rig, b->d, t, 1, b->f, b->h, seed, true);
        matrix_make(&b->b, b->rig, b->d, t, 1, b->f, b->h, seed + 10, false);
        break;
    case OP_EXPERTS:
        matrix_make(&b->a, b->rig, b->d, t, EXPERTS, b->f, b->h, seed, false);
        matrix_make(&b->b, b->rig, b->d, t, EXPERTS, b->f, b->h, seed + 10, false);
        matrix_make(&b->down, b->rig, b->d, t, EXPERTS, 37, b->f, seed + 20, false);
        break;
    default: break;
    }
}

static void bench_init(struct bench *b, const struct rig *rig, const struct row_check *c, uint32_t threads)
{
    const uint32_t n = inner_of(c->dtype);
    const uint32_t forms = n % ACT_GROUP == 0 ? ACT_F32 | ACT_Q16 : ACT_F32;
    *b = (struct bench){.rig = rig, .c = c, .threads = threads, .poison = POISON_NAN, .h = n, .f = n};
    b->d = rig_open(rig, threads, BATCH_MAX);
    make_matrices(b);
    b->in = acts_make(rig, b->d, BATCH_MAX, n, forms);
    b->out = acts_make(rig, b->d, BATCH_MAX, n, forms);
    b->hidden = acts_make(rig, b->d, BATCH_MAX * USED, n, forms);
    b->pool = room(sizeof(float) * POOL * n);
    for (uint32_t i = 0; i < POOL; i++)
        fill_row(b->pool + (size_t)i * n, n, i % 2 ? i / 2 % ROW_KINDS : ROW_PLAIN, c->seed * 77 + i);
    b->gain = room(sizeof(float) * (n + N_OUT));
    fill_noise(b->gain, n + N_OUT, c->seed + 5, 1.0f);
    b->x = room(sizeof(float) * BATCH_MAX * VOCAB);
    b->scratch = room(sizeof(float) * BATCH_MAX * USED * 2 * MAX(n, (uint32_t)VOCAB));
    b->used = room(sizeof(float) * BATCH_MAX * TOP_K);
    b->expert = room(sizeof(uint32_t) * BATCH_MAX * TOP_K);
}

static void bench_fini(struct bench *b)
{
    matrix_drop(&b->a, b->rig, b->d);
    matrix_drop(&b->b, b->rig, b->d);
    matrix_drop(&b->down, b->rig, b->d);
    b->rig->ops->acts_free(b->d, b->in);
    b->rig->ops->acts_free(b->d, b->out);
    b->rig->ops->acts_free(b->d, b->hidden);
    mem_free(b->pool);
    mem_free(b->gain);
    mem_free(b->x);
    mem_free(b->scratch);
    mem_free(b->used);
    mem_free(b->expert);
    b->rig->ops->dev_close(b->d);
}

/* The size of a row's result. */
static void bench_result(const struct bench *b, uint32_t rows, struct result *r)
{
    switch (b->c->op) {
    case OP_EMBED: result_make(r, rows, b->h, 0); break;
    case OP_NORM:
    case OP_GATE_UP: result_make(r, rows, acts_floats(b->out), acts_bytes(b->out)); break;
    case OP_ROUTE: result_make(r, rows, TOP_K, TOP_K * sizeof(uint32_t)); break;
    case OP_EXPERTS: result_make(r, rows, 37, 0); break;
    case OP_LOGITS: result_make(r, rows, VOCAB, 0); break;
    default: result_make(r, rows, N_OUT, 0); break;
    }
}

static void get_floats(const float *x, uint32_t n_rows, struct result *r)
{
    memcpy(r->floats, x, sizeof(float) * n_rows * r->n_floats);
}

/* A residual stream that is the pool row's own. */
static void put_residual(struct bench *b, const uint32_t *pick, uint32_t n_rows, uint32_t n)
{
    for (uint32_t i = 0; i < n_rows; i++)
        fill_noise(b->x + (size_t)i * n, n, b->c->seed * 31 + pick[i], 1.0f);
}

static void run_norm(struct bench *b, const uint32_t *pick, uint32_t n_rows, struct result *r)
{
    struct norm_args a = {
        .n_rows = n_rows, .n = b->h, .gain = b->gain, .eps = 1e-6f, .forms = b->out->forms, .out = b->out};
    if (b->round % 2 == 0) {
        a.x = b->pool;
        a.rows = pick;
    } else {
        for (uint32_t i = 0; i < n_rows; i++)
            memcpy(b->scratch + (size_t)i * b->h, b->pool + (size_t)pick[i] * b->h, b->h * sizeof(float));
        a.x = b->scratch;
    }
    b->rig->ops->norm(b->d, &a);
    for (uint32_t i = 0; i < n_rows; i++)
        acts_get(b->out, i, r, i);
}

static void run_project(struct bench *b, const struct batch *batch, const uint32_t *pick, struct result *r)
{
    put_residual(b, pick, batch->n_rows, N_OUT);
    b->rig->ops->project(b->d, batch,
        &(struct project_args){.in = b->in,
            .w = &b->a.w,
            .post_gain = b->c->op == OP_POST_NORM ? b->gain : NULL,
            .post_eps = 1e-6f,
            .scratch = b->scratch,
            .x = b->x});
    get_floats(b->x, batch->n_rows, r);
}

static void run_experts(struct bench *b, const struct batch *batch, const uint32_t *pick, struct result *r)
{
    put_residual(b, pick, batch->n_rows, 37);
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        struct dice own = {b->c->seed * 13 + pick[i]};
        uint32_t order[EXPERTS] = {0, 1, 2, 3};
        dice_shuffle(&own, order, EXPERTS);
        for (uint32_t j = 0; j < USED; j++) {
            b->expert[i * USED + j] = order[j];
            b->used[i * USED + j] = 0.2f + (float)dice_below(&own, 1000) * 0.0005f;
        }
    }
    b->rig->ops->experts(b->d, batch,
        &(struct experts_args){.in = b->in,
            .gate = &b->a.w,
            .up = &b->b.w,
            .down = &b->down.w,
            .glu = GLU_SILU,
            .top_k = USED,
            .expert = b->expert,
            .weight = b->used,
            .hidden = b->hidden,
            .scratch = b->scratch,
            .x = b->x});
    get_floats(b->x, batch->n_rows, r);
}

static void run_rest(struct bench *b, const struct batch *batch, struct result *r)
{
    const struct ops *ops = b->rig->ops;
    switch (b->c->op) {
    case OP_EMBED:
        ops->embed(b->d, batch, &(struct embed_args){.table = &b->a.w, .scale = 1.7f, .out = b->x});
        get_floats(b->x, batch->n_rows, r);
        break;
    case OP_GATE_UP:
        ops->gate_up(b->d, batch,
            &(struct gate_up_args){.in = b->in,
                .gate = &b->a.w,
                .up = &b->b.w,
                .glu = b->c->seed % 2 ? GLU_SILU : GLU_GELU,
                .scratch = b->scratch,
                .forms = b->out->forms,
                .out = b->out});
        for (uint32_t i = 0; i < batch->n_rows; i++)
            acts_get(b->out, i, r, i);
        break;
    case OP_ROUTE:
        ops->route(b->d, batch,
            &(struct route_args){.in = b->in,
                .router = &b->a.w,
                .top_k = TOP_K,
                .renorm = b->c->seed % 2,
                .expert = b->expert,
                .weight = b->used});
        get_floats(b->used, batch->n_rows, r);
        memcpy(r->bytes, b->expert, (size_t)batch->n_rows * r->n_bytes);
        break;
    default:
        ops->logits(b->d, &(struct logits_args){.in = b->in,
                              .n_rows = batch->n_rows,
                              .head = &b->a.w,
                              .scale = 0.5f,
                              .cap = b->c->seed % 2 ? 30.0f : 0.0f,
                              .out = b->x});
        get_floats(b->x, batch->n_rows, r);
    }
}

static void run_rows(struct bench *b, const uint32_t *pick, uint32_t n_rows, struct result *r)
{
    int32_t token[BATCH_MAX];
    acts_poison(b->in, b->poison);
    acts_poison(b->out, b->poison);
    acts_poison(b->hidden, b->poison);
    memset(b->x, b->poison, sizeof(float) * BATCH_MAX * VOCAB);
    memset(b->scratch, b->poison, sizeof(float) * BATCH_MAX * USED * 2 * MAX(b->h, (uint32_t)VOCAB));
    memset(b->used, b->poison, sizeof(float) * BATCH_MAX * TOP_K);
    memset(b->expert, b->poison, sizeof(uint32_t) * BATCH_MAX * TOP_K);
    for (uint32_t i = 0; i < n_rows; i++) {
        token[i] = (int32_t)(pick[i] * 7 % VOCAB);
        acts_put(b->d, b->in, i, b->pool + (size_t)pick[i] * b->h);
    }
    const struct batch batch = {.n_rows = n_rows, .token = token};
    rig_threads = b->threads;
    if (b->c->op == OP_NORM)
        run_norm(b, pick, n_rows, r);
    else if (b->c->op == OP_PROJECT || b->c->op == OP_POST_NORM)
        run_project(b, &batch, pick, r);
    else if (b->c->op == OP_EXPERTS)
        run_experts(b, &batch, pick, r);
    else
        run_rest(b, &batch, r);
    b->round++;
}

struct verdict check_rows(const struct rig *rig, const struct row_check *c)
{
    struct bench b;
    struct result alone, one, many;
    struct verdict v = {0};
    struct dice dice = {c->seed};
    bench_init(&b, rig, c, 1);
    b.poison = POISON_NUMBER;
    bench_result(&b, POOL, &alone);
    bench_result(&b, 1, &one);
    bench_result(&b, BATCH_MAX, &many);
    for (uint32_t i = 0; i < POOL; i++) {
        run_rows(&b, &i, 1, &one);
        memcpy(alone.floats + (size_t)i * one.n_floats, one.floats, one.n_floats * sizeof(float));
        memcpy(alone.bytes + (size_t)i * one.n_bytes, one.bytes, one.n_bytes);
    }
    bench_fini(&b);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        bench_init(&b, rig, c, threads);
        for (uint32_t round = 0; round < c->rounds; round++) {
            uint32_t pick[BATCH_MAX];
            const uint32_t n = round == 0 ? BATCH_MAX : 1 + dice_below(&dice, BATCH_MAX);
            for (uint32_t i = 0; i < n; i++)
                pick[i] = dice_below(&dice, POOL);
            run_rows(&b, pick, n, &many);
            for (uint32_t i = 0; i < n; i++)
                v.differ += !result_same(&alone, pick[i], &many, i);
            v.rows += n;
            v.rows_in_batch_max = MAX(v.rows_in_batch_max, n);
        }
        bench_fini(&b);
    }
    result_drop(&alone);
    result_drop(&one);
    result_drop(&many);
    return v;
}
