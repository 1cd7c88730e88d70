/* Doors for bench/device_check.py: single ops of any backend on made-up data. The checks compare what comes out here
 * with arithmetic in numpy or with another backend. */
#include "base/mem.h"
#include "cpu/cpu.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "../unit/testing_asks.h"

#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static const struct ops *backend(const char *name)
{
#ifdef QUERN_CUDA
    const char *why;
    if (strcmp(name, "cuda") == 0)
        return cuda_ops(&why);
#endif
    return cpu_ops_by_name(name);
}

/* ---- single ops ----------------------------------------------------------------------------------------------------
 */

/* A device with what a test has made on it, all freed together. */
struct rig {
    const struct ops *ops;
    struct dev *d;
    void *memory[32];
    struct weight *weights[16];
    void *host[32];
    struct acts *acts[8];
    uint32_t n_memory, n_weights, n_host, n_acts;
    struct error e;
};

/* Where products choose among the library's algorithms, and where that is kept; what came of it last. */
static const char *choices_dir;
static struct device_choices choices_made;

EXPORT void quern_op_choose(const char *dir, int last)
{
    static char kept[4096];
    snprintf(kept, sizeof kept, "%s", dir != NULL ? dir : "");
    choices_dir = dir != NULL ? kept : NULL;
#ifdef QUERN_CUDA
    cuda_choose_last(last != 0);
#endif
    (void)last;
}

EXPORT uint32_t quern_op_chosen(void)
{
    return choices_made.n_chosen;
}

/* Rows that buffers must have: more than the test has, so that its rows lie between two that are looked at. */
static uint32_t rig_room(uint32_t rows)
{
    return choices_dir != NULL ? rows + rows / 2 + 1 : rows;
}

static bool rig_open(struct rig *r, const char *name, uint32_t rows, bool fp8)
{
    memset(r, 0, sizeof *r);
    r->ops = backend(name);
    const struct dev_options o = {
        .threads = 1, .rows_max = rows, .out_max = rows, .fp8 = fp8, .choices_dir = choices_dir};
    return r->ops != NULL && r->ops->dev_open(&o, &r->d, &r->e) == OK;
}

static int rig_close(struct rig *r)
{
    if (r->d != NULL) {
        (void)r->ops->dev_wait(r->d, &r->e);
        for (uint32_t i = 0; i < r->n_weights; i++)
            r->ops->weight_drop(r->d, r->weights[i]);
        for (uint32_t i = 0; i < r->n_acts; i++)
            r->ops->acts_free(r->d, r->acts[i]);
        for (uint32_t i = 0; i < r->n_memory; i++)
            r->ops->dev_free(r->d, r->memory[i]);
        r->ops->dev_close(r->d);
    }
    for (uint32_t i = 0; i < r->n_host; i++)
        mem_free(r->host[i]);
    if (r->e.code != OK)
        fprintf(stderr, "%s\n", r->e.text);
    return (int)r->e.code;
}

static void *rig_memory(struct rig *r, const void *from, size_t bytes)
{
    void *p = NULL;
    if (r->ops->dev_alloc(r->d, bytes, &p, &r->e) == OK) {
        r->memory[r->n_memory++] = p;
        if (from != NULL)
            r->ops->dev_write(r->d, p, from, bytes);
    }
    return p;
}

/* Bind [n_mats][n_out][n_in] floats as dtype; they become what the dtype makes of them. */
static bool rig_weight(
    struct rig *r, enum dtype dtype, uint32_t n_mats, uint32_t n_out, uint32_t n_in, float *values, struct weight *w)
{
    const uint64_t shape[] = {n_mats, n_out, n_in};
    const uint32_t dims = n_mats > 1 ? 3 : 2;
    struct tensor_view v;
    size_t bytes;
    if (tensor_shape_bytes(dtype, dims, shape + 3 - dims, &bytes, &r->e) != OK)
        return false;
    void *p = mem_aligned(64, bytes);
    if (p == NULL)
        return false;
    r->host[r->n_host++] = p;
    const uint64_t n = (uint64_t)n_mats * n_out * n_in;
    memset(w, 0, sizeof *w);
    if (quant_row(dtype, values, p, n, &r->e) != OK || dequant_row(dtype, p, values, n, &r->e) != OK ||
        tensor_view_init(&v, dtype, dims, shape + 3 - dims, p, bytes, &r->e) != OK ||
        r->ops->weight_bind(r->d, &v, 1, w, &r->e) != OK)
        return false;
    r->weights[r->n_weights++] = w;
    return true;
}

static struct acts *rig_acts(struct rig *r, uint32_t rows, uint32_t n, uint32_t forms)
{
    struct acts *a = NULL;
    if (r->ops->acts_new(r->d, rows, n, forms, &a, &r->e) == OK)
        r->acts[r->n_acts++] = a;
    return a;
}

static void rig_norm(
    struct rig *r, const float *x, const float *gain, uint32_t rows, uint32_t n, uint32_t forms, struct acts *out)
{
    r->ops->norm(r->d,
        &(struct norm_args){.x = x, .n_rows = rows, .n = n, .gain = gain, .eps = 1e-5f, .forms = forms, .out = out});
}

static float *ones(struct rig *r, uint32_t n)
{
    float *host = mem_array(n, sizeof *host);
    if (host == NULL)
        return NULL;
    r->host[r->n_host++] = host;
    for (uint32_t i = 0; i < n; i++)
        host[i] = 1.0f;
    return rig_memory(r, host, n * sizeof *host);
}

/* What nobody has made yet must not be read: bytes of 0xff, which are NaN in every float type; and rows of activations,
 * whatever they look like inside: the norm of NaN. */
static void rig_poison(struct rig *r, void *p, size_t bytes)
{
    void *nans = p != NULL ? mem_aligned(64, bytes) : NULL;
    if (nans == NULL)
        return;
    r->host[r->n_host++] = nans;
    memset(nans, 0xff, bytes);
    r->ops->dev_write(r->d, p, nans, bytes);
}

static void rig_poison_acts(struct rig *r, uint32_t rows, uint32_t n, uint32_t forms, struct acts *a)
{
    float *gain = ones(r, n), *x = rig_memory(r, NULL, (size_t)rows * n * sizeof *x);
    rig_poison(r, x, (size_t)rows * n * sizeof *x);
    if (x != NULL && gain != NULL && a != NULL)
        rig_norm(r, x, gain, rows, n, forms, a);
}

/* Ops as a step that is recorded, where the backend records; on CUDA, as one kernel where it can be. 2: but for the
 * norm before a product, so that the product reads rows in the form that is kept. */
static bool is_recorded, is_norm_apart;

EXPORT void quern_op_record(int on)
{
    is_recorded = on != 0;
    is_norm_apart = on == 2;
#ifdef QUERN_CUDA
    cuda_allow_resident(true);
#endif
}

/* Which kernels make products on CUDA: enum cuda_way. */
EXPORT void quern_op_prefer(int way)
{
#ifdef QUERN_CUDA
    cuda_prefer((enum cuda_way)way);
#endif
    (void)way;
}

EXPORT uint64_t quern_op_many_launches(void)
{
#ifdef QUERN_CUDA
    return cuda_many_launches();
#else
    return 0;
#endif
}

EXPORT void quern_op_wide(int on)
{
#ifdef QUERN_CUDA
    cuda_allow_wide(on != 0);
#endif
    (void)on;
}

static void rig_begin(struct rig *r, uint32_t rows)
{
    if (is_recorded && r->ops->graph_begin != NULL)
        r->ops->graph_begin(r->d, (struct graph_key){.n_rows = rows, .n_seqs = rows, .n_out = rows, .seq_rows = 1});
}

static void rig_end(struct rig *r)
{
    if (is_recorded && r->ops->graph_end != NULL)
        r->ops->graph_end(r->d);
}

/* What a test computes, with any number of rows. */
typedef void rig_ops(struct rig *r, void *ctx, uint32_t rows);

/* As a model does before its first step. Buffers are zeros behind it. */
static void rig_rehearse(struct rig *r, rig_ops *fn, void *ctx)
{
    uint32_t rows;
    if (choices_dir == NULL || r->ops->look_begin == NULL)
        return;
    for (uint32_t i = 0; (rows = r->ops->look_begin(r->d, i)) > 0; i++) {
        fn(r, ctx, rows);
        r->ops->look_end(r->d);
    }
    r->ops->choose(r->d, &choices_made);
}

struct product_test {
    struct weight head;
    struct acts *in;
    float *x, *gain, *y;
};

static void product_ops(struct rig *r, void *ctx, uint32_t rows)
{
    struct product_test *t = ctx;
    if (!is_norm_apart)
        rig_norm(r, t->x, t->gain, rows, t->head.n_in, t->head.wants, t->in);
    r->ops->logits(
        r->d, &(struct logits_args){.in = t->in, .n_rows = rows, .head = &t->head, .scale = 1.0f, .out = t->y});
}

/* out [rows][n_out] = norm(x) x w; w [n_out][n_in] comes back as the dtype holds it. 0 or an error code. */
EXPORT int quern_op_product(const char *name, const char *dtype_text, int fp8, uint32_t rows, uint32_t n_out,
    uint32_t n_in, const float *x, float *w, float *out)
{
    struct rig r;
    struct product_test t;
    enum dtype dtype;
    const uint32_t room = rig_room(rows);
    if (dtype_by_name(str_of(dtype_text), &dtype, NULL) == OK && rig_open(&r, name, room, fp8 != 0) &&
        rig_weight(&r, dtype, 1, n_out, n_in, w, &t.head)) {
        t.x = rig_memory(&r, NULL, (size_t)room * n_in * sizeof *x);
        t.gain = ones(&r, n_in);
        t.y = rig_memory(&r, NULL, (size_t)room * n_out * sizeof *out);
        t.in = rig_acts(&r, room, n_in, t.head.wants);
        if (t.x != NULL && t.gain != NULL && t.y != NULL && t.in != NULL) {
            rig_rehearse(&r, product_ops, &t);
            r.ops->dev_write(r.d, t.x, x, (size_t)rows * n_in * sizeof *x);
            r.ops->dev_write(r.d, t.y, out, (size_t)rows * n_out * sizeof *out); /* poisoned by the caller */
            if (is_norm_apart)
                rig_norm(&r, t.x, t.gain, rows, n_in, t.head.wants, t.in);
            rig_begin(&r, rows);
            product_ops(&r, &t, rows);
            rig_end(&r);
            r.ops->dev_read(r.d, out, t.y, (size_t)rows * n_out * sizeof *out);
        }
    }
    return rig_close(&r);
}

struct feed_test {
    struct weight gate, up, down, router; /* no router: dense */
    enum glu glu;
    uint32_t n, top_k, *expert;
    float *x, *gain, *scratch, *weight;
    struct acts *in, *hidden;
};

static void feed_ops(struct rig *r, void *ctx, uint32_t rows)
{
    struct feed_test *t = ctx;
    const struct batch b = {.n_rows = rows, .n_seqs = rows};
    rig_norm(r, t->x, t->gain, rows, t->n, t->gate.wants | t->up.wants | t->router.wants, t->in);
    if (t->router.n_out == 0) {
        r->ops->gate_up(r->d, &b,
            &(struct gate_up_args){.in = t->in,
                .gate = &t->gate,
                .up = &t->up,
                .glu = t->glu,
                .scratch = t->scratch,
                .forms = t->down.wants,
                .out = t->hidden});
        r->ops->project(
            r->d, &b, &(struct project_args){.in = t->hidden, .w = &t->down, .scratch = t->scratch, .x = t->x});
        return;
    }
    r->ops->route(r->d, &b,
        &(struct route_args){.in = t->in,
            .router = &t->router,
            .top_k = t->top_k,
            .renorm = true,
            .expert = t->expert,
            .weight = t->weight});
    r->ops->experts(r->d, &b,
        &(struct experts_args){.in = t->in,
            .gate = &t->gate,
            .up = &t->up,
            .down = &t->down,
            .top_k = t->top_k,
            .expert = t->expert,
            .weight = t->weight,
            .hidden = t->hidden,
            .scratch = t->scratch,
            .x = t->x});
}

/* x [rows][n] += (glu(a x gate) * (a x up)) x down with a = norm(x); experts > 0: a mixture, routed by router. gelu:
 * that kind instead of silu; biases [2][ffn] of gate and up, or NULL: both of dense ones alone. */
EXPORT int quern_op_feed_forward(const char *name, const char *dtype_text, int fp8, uint32_t rows, uint32_t n,
    uint32_t ffn, uint32_t experts, uint32_t top_k, float *router_w, float *gate_w, float *up_w, float *down_w,
    float *x, int gelu, const float *biases)
{
    struct rig r;
    struct feed_test t = {.glu = gelu != 0 ? GLU_GELU : GLU_SILU, .n = n, .top_k = experts > 0 ? top_k : 1};
    enum dtype dtype;
    const uint32_t mats = experts > 0 ? experts : 1, room = rig_room(rows), k = t.top_k;
    if (dtype_by_name(str_of(dtype_text), &dtype, NULL) == OK && rig_open(&r, name, room, fp8 != 0) &&
        rig_weight(&r, dtype, mats, ffn, n, gate_w, &t.gate) && rig_weight(&r, dtype, mats, ffn, n, up_w, &t.up) &&
        rig_weight(&r, dtype, mats, n, ffn, down_w, &t.down) &&
        (experts == 0 || rig_weight(&r, DTYPE_F32, 1, experts, n, router_w, &t.router))) {
        t.x = rig_memory(&r, NULL, (size_t)room * n * sizeof *x);
        t.gain = ones(&r, n);
        t.scratch = rig_memory(&r, NULL, (size_t)room * k * MAX(2 * ffn, n) * sizeof *t.scratch);
        t.expert = rig_memory(&r, NULL, (size_t)room * k * sizeof *t.expert);
        t.weight = rig_memory(&r, NULL, (size_t)room * k * sizeof *t.weight);
        t.in = rig_acts(&r, room, n, t.gate.wants | t.up.wants | t.router.wants);
        t.hidden = rig_acts(&r, room * k, ffn, t.down.wants);
        if (biases != NULL) {
            t.gate.bias = rig_memory(&r, biases, ffn * sizeof *biases);
            t.up.bias = rig_memory(&r, biases + ffn, ffn * sizeof *biases);
        }
        rig_rehearse(&r, feed_ops, &t);
        r.ops->dev_write(r.d, t.x, x, (size_t)rows * n * sizeof *x);
        rig_poison(&r, t.scratch, (size_t)rows * k * MAX(2 * ffn, n) * sizeof *t.scratch);
        rig_poison(&r, t.weight, (size_t)rows * k * sizeof *t.weight);
        rig_poison_acts(&r, rows * k, ffn, t.down.wants, t.hidden);
        rig_begin(&r, rows);
        feed_ops(&r, &t, rows);
        rig_end(&r);
        r.ops->dev_read(r.d, x, t.x, (size_t)rows * n * sizeof *x);
    }
    return rig_close(&r);
}

/* What an attention test is made of. */
struct attention_case {
    uint32_t n_heads, n_kv_heads, head_dim, window, rope, rope_dims, qk_norm, hidden, block_tokens, n_seqs;
    float cap;
    const uint32_t *before, *rows; /* [n_seqs]: positions that exist, rows of the step that is looked at */
};

/* The rows [from, from + n) of every sequence as one step. Tables lie backwards, so that ignoring them is wrong. */
struct attention_run {
    struct rig r;
    struct weight wq, wk, wv, same;
    struct kv_cache kv;
    struct kv_layer layer;
    struct batch b;
    float *gain, *heads_gain, *rope, *q, *scratch, *x, *out;
    struct acts *normed, *attended;
    const uint32_t *tables[1], *slots[1];
    uint32_t *token, *pos, *seq, *slot, *table, blocks_each;
    struct batch_seq *seqs;
};

static uint32_t attention_batch(
    struct attention_run *a, const struct attention_case *c, const uint32_t *from, const uint32_t *n)
{
    uint32_t row = 0, *pos = a->pos, *seq = a->seq, *slot = a->slot;
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        a->seqs[s] = (struct batch_seq){
            .first_row = row, .n_rows = n[s], .n_kv = from[s] + n[s], .table_at = s * a->blocks_each};
        for (uint32_t i = 0; i < n[s]; i++, row++) {
            pos[row] = from[s] + i;
            seq[row] = s;
            slot[row] = a->table[s * a->blocks_each + pos[row] / c->block_tokens] * c->block_tokens +
                        pos[row] % c->block_tokens;
        }
    }
    const struct ops *ops = a->r.ops;
    ops->dev_write(a->r.d, (void *)(uintptr_t)a->b.pos, pos, row * sizeof *pos);
    ops->dev_write(a->r.d, (void *)(uintptr_t)a->b.seq, seq, row * sizeof *seq);
    ops->dev_write(a->r.d, (void *)(uintptr_t)a->slots[0], slot, row * sizeof *slot);
    ops->dev_write(a->r.d, (void *)(uintptr_t)a->b.seqs, a->seqs, c->n_seqs * sizeof *a->seqs);
    a->b.n_rows = row;
    a->b.n_seqs = c->n_seqs;
    a->b.seq_rows = 0;
    for (uint32_t s = 0; s < c->n_seqs; s++)
        a->b.seq_rows = MAX(a->b.seq_rows, n[s]);
    return row;
}

static void attention_step(struct attention_run *a, const struct attention_case *c, const float *x, bool attend)
{
    const struct ops *ops = a->r.ops;
    const uint32_t rows = a->b.n_rows, forms = a->wq.wants;
    ops->dev_write(a->r.d, a->x, x, (size_t)rows * c->hidden * sizeof *x);
    if (attend)
        rig_begin(&a->r, rows);
    rig_norm(&a->r, a->x, a->gain, rows, c->hidden, forms, a->normed);
    ops->qkv(a->r.d, &a->b, &a->kv,
        &(struct qkv_args){.in = a->normed,
            .wq = &a->wq,
            .wk = &a->wk,
            .wv = &a->wv,
            .q_gain = c->qk_norm ? a->heads_gain : NULL,
            .k_gain = c->qk_norm ? a->heads_gain : NULL,
            .norm_eps = 1e-5f,
            .rope = (enum rope_style)c->rope,
            .rope_dims = c->rope_dims,
            .rope_table = a->rope,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .layer = &a->layer,
            .scratch = a->scratch,
            .q = a->q});
    if (!attend)
        return;
    ops->attend(a->r.d, &a->b, &a->kv,
        &(struct attend_args){.q = a->q,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .scale = 0.02f,
            .cap = c->cap,
            .window = c->window,
            .layer = &a->layer,
            .forms = ACT_F32,
            .out = a->attended});
    ops->project(
        a->r.d, &a->b, &(struct project_args){.in = a->attended, .w = &a->same, .scratch = a->scratch, .x = a->out});
    rig_end(&a->r);
}

static bool attention_open(struct attention_run *a, const struct attention_case *c, const char *name, enum dtype weight,
    enum dtype kv, uint32_t rows, uint32_t longest, float *w[3], float *identity)
{
    const uint32_t q_n = c->n_heads * c->head_dim, kv_n = c->n_kv_heads * c->head_dim;
    const uint32_t row_bytes = kv_row_bytes(kv, c->head_dim);
    if (!rig_open(&a->r, name, rows, false) || !rig_weight(&a->r, weight, 1, q_n, c->hidden, w[0], &a->wq) ||
        !rig_weight(&a->r, weight, 1, kv_n, c->hidden, w[1], &a->wk) ||
        !rig_weight(&a->r, weight, 1, kv_n, c->hidden, w[2], &a->wv) ||
        !rig_weight(&a->r, DTYPE_F32, 1, q_n, q_n, identity, &a->same))
        return false;
    struct rig *r = &a->r;
    a->blocks_each = (longest + c->block_tokens - 1) / c->block_tokens;
    const uint32_t n_blocks = c->n_seqs * a->blocks_each;
    const uint64_t part = (uint64_t)row_bytes * c->n_kv_heads * c->block_tokens;
    a->layer = (struct kv_layer){.dtype = kv, .row_bytes = row_bytes, .k_at = 0, .v_at = part};
    a->kv = (struct kv_cache){.n_blocks = n_blocks, .block_tokens = c->block_tokens, .block_bytes = 2 * part};
    a->kv.blocks = rig_memory(r, NULL, 2 * part * n_blocks);
    void *nans = mem_aligned(64, 2 * part * n_blocks); /* what nobody wrote must not be read */
    a->table = mem_array(n_blocks, sizeof *a->table);
    uint32_t *arrays = mem_array((size_t)rows * 4, sizeof *arrays);
    a->seqs = mem_array(c->n_seqs, sizeof *a->seqs);
    if (nans == NULL || a->table == NULL || arrays == NULL || a->seqs == NULL)
        return false;
    memset(nans, 0xff, 2 * part * n_blocks);
    r->ops->dev_write(r->d, a->kv.blocks, nans, 2 * part * n_blocks);
    void *const keep[] = {nans, a->table, arrays, a->seqs};
    for (size_t i = 0; i < COUNT_OF(keep); i++)
        r->host[r->n_host++] = keep[i];
    for (uint32_t i = 0; i < n_blocks; i++)
        a->table[i] = n_blocks - 1 - i;
    a->pos = arrays;
    a->seq = arrays + rows;
    a->slot = arrays + 2 * rows;
    a->gain = ones(r, c->hidden);
    a->heads_gain = ones(r, c->head_dim);
    a->x = rig_memory(r, NULL, (size_t)rows * c->hidden * sizeof(float));
    a->q = rig_memory(r, NULL, (size_t)rows * q_n * sizeof(float));
    a->scratch = rig_memory(r, NULL, (size_t)rows * MAX(q_n + 2 * kv_n, c->hidden) * sizeof(float));
    a->out = rig_memory(r, NULL, (size_t)rows * q_n * sizeof(float));
    a->normed = rig_acts(r, rows, c->hidden, a->wq.wants);
    a->attended = rig_acts(r, rows, q_n, ACT_F32);
    a->tables[0] = rig_memory(r, a->table, n_blocks * sizeof *a->table);
    a->slots[0] = rig_memory(r, NULL, rows * sizeof(uint32_t));
    a->b = (struct batch){.pos = rig_memory(r, NULL, rows * sizeof(uint32_t)),
        .seq = rig_memory(r, NULL, rows * sizeof(uint32_t)),
        .seqs = rig_memory(r, NULL, c->n_seqs * sizeof(struct batch_seq)),
        .tables = a->tables,
        .kv_slot = a->slots};
    return a->r.e.code == OK;
}

/* Attention's output [rows of all sequences][n_heads * head_dim] of the last rows, after the positions before were
 * written from x_before. identity is q_n x q_n. */
EXPORT int quern_op_attention(const char *name, const char *weight_text, const char *kv_text,
    const struct attention_case *c, float *wq, float *wk, float *wv, float *identity, const float *rope,
    const float *x_before, const float *x, float *out)
{
    struct attention_run a;
    memset(&a, 0, sizeof a);
    enum dtype weight, kv;
    uint32_t n_before = 0, n_rows = 0, longest = 1, zero[64] = {0};
    if (c->n_seqs > COUNT_OF(zero))
        return -1;
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        n_before += c->before[s];
        n_rows += c->rows[s];
        longest = MAX(longest, c->before[s] + c->rows[s]);
    }
    float *const w[3] = {wq, wk, wv};
    const size_t width = (size_t)c->n_heads * c->head_dim;
    if (dtype_by_name(str_of(weight_text), &weight, NULL) != OK || dtype_by_name(str_of(kv_text), &kv, NULL) != OK)
        return -1;
    memset(out, 0, n_rows * width * sizeof *out);
    if (attention_open(&a, c, name, weight, kv, MAX(n_before, n_rows), longest, (float **)w, identity)) {
        a.rope = rig_memory(&a.r, rope, (size_t)longest * MAX(c->rope_dims, 1u) * sizeof *rope);
        if (n_before > 0) {
            attention_batch(&a, c, zero, c->before);
            attention_step(&a, c, x_before, false);
        }
        attention_batch(&a, c, c->before, c->rows);
        rig_poison(&a.r, a.q, n_rows * width * sizeof *a.q);
        rig_poison_acts(&a.r, n_rows, (uint32_t)width, ACT_F32, a.attended);
        attention_step(&a, c, x, true);
        a.r.ops->dev_read(a.r.d, out, a.out, n_rows * width * sizeof *out);
    }
    return rig_close(&a.r);
}

/* Choosing from logits [rows][n]: n_asks asks, by the device of that name or, for "here", by sample/. */
EXPORT int quern_op_sample(const char *name, const float *logits, uint32_t rows, uint32_t n,
    const struct sample_ask *asks, uint32_t n_asks, const uint32_t *words, uint32_t n_words, const uint64_t *masks,
    uint32_t n_masks, struct sample_got *got, struct sample_top *top)
{
    struct rig r = {0};
    struct sample_args a = {.x = logits,
        .n = n,
        .n_asks = n_asks,
        .n_words = n_words,
        .n_masks = n_masks,
        .asks = asks,
        .words = words,
        .masks = masks,
        .out = got,
        .top = top};
    if (strcmp(name, "here") == 0) {
        struct sampler *s = NULL;
        if (sampler_new(n, &s, &r.e) != OK)
            return (int)r.e.code;
        for (uint32_t i = 0; i < n_asks; i++)
            ask_here(s, &a, i, &got[i], top + (size_t)i * SAMPLE_TOP_MAX);
        sampler_free(s);
        return 0;
    }
    if (!rig_open(&r, name, rows, false) || r.ops->sample == NULL)
        return rig_close(&r) != 0 ? (int)r.e.code : -1;
    const size_t got_bytes = n_asks * sizeof *got, top_bytes = (size_t)n_asks * SAMPLE_TOP_MAX * sizeof *top;
    a.x = rig_memory(&r, logits, (size_t)rows * n * sizeof *logits);
    a.out = rig_memory(&r, NULL, got_bytes);
    a.top = rig_memory(&r, NULL, top_bytes);
    a.chosen = rig_memory(&r, NULL, rows * sizeof *a.chosen);
    uint32_t *chosen = mem_array(rows, sizeof *chosen);
    const size_t mask_bytes = (size_t)n_masks * ((n + 63) / 64) * sizeof *masks;
    uint64_t *room = r.ops->host_new(r.d, MAX(mask_bytes, sizeof *room));
    if (a.x != NULL && a.out != NULL && a.top != NULL && a.chosen != NULL && chosen != NULL && room != NULL) {
        memcpy(room, masks, mask_bytes);
        a.masks = room;
        r.ops->sample(r.d, &a);
        r.ops->dev_read(r.d, got, a.out, got_bytes);
        r.ops->dev_read(r.d, top, a.top, top_bytes);
        r.ops->dev_read(r.d, chosen, a.chosen, rows * sizeof *chosen);
        for (uint32_t i = 0; i < n_asks; i++)
            if (chosen[asks[i].row] != got[i].id && r.e.code == OK)
                FAIL(&r.e, ERR_INTERNAL, "row %u: %u was chosen, and %u is where the next step looks", asks[i].row,
                    got[i].id, chosen[asks[i].row]);
    }
    mem_free(chosen);
    r.ops->host_free(r.d, room);
    return rig_close(&r);
}
