/* The checks of law 1 can fail: one planted violation per class, each of a kind that a fast kernel could commit, and
 * each caught. The faults live in a copy of the plain kernels, or in a copy of the ops where they are the
 * orchestration's. */
#include "testing_cpu.h"

#include "base/mem.h"
#include "tensor/fmath.h"

#include <math.h>
#include <stdatomic.h>

/* ---- products ------------------------------------------------------------------------------------------------- */

static void each_out(const struct product *p, uint32_t lo, uint32_t hi, float factor)
{
    for (uint32_t i = 0; i < p->n_rows; i++)
        for (uint32_t o = lo; o < hi; o++)
            p->out[i * p->out_stride + o] *= factor;
}

/* Scaled by the size of the batch: a mean over the wrong axis. */
static void product_by_batch(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    kernels_ref.product(w, p, lo, hi);
    each_out(p, lo, hi, 1.0f + (float)p->n_rows * 0x1p-20f);
}

/* sum over k of row r and column o from the dequantised weight, cut into parts that are summed first. */
static float dot_in_parts(const float *a, const float *b, uint32_t n, uint32_t parts)
{
    float sum = 0.0f;
    for (uint32_t part = 0; part < parts; part++) {
        float some = 0.0f;
        for (uint32_t k = n * part / parts; k < n * (part + 1) / parts; k++)
            some += a[k] * b[k];
        sum += some;
    }
    return sum;
}

static void product_in_parts(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi, uint32_t parts)
{
    const uint32_t n = p->w->n_in;
    for (uint32_t o = lo; o < hi; o++) {
        const char *row = (const char *)p->w->mat[p->mat] + o * p->w->row_bytes;
        dtype_info(p->w->dtype)->dequant(row, w->row.f32, n);
        for (uint32_t i = 0; i < p->n_rows; i++) {
            const size_t r = p->in_rows != NULL ? p->in_rows[i] : i;
            p->out[i * p->out_stride + o] = dot_in_parts(p->in->f32 + r * n, w->row.f32, n, parts);
        }
    }
}

/* K shared out among the threads. */
static void product_k_by_threads(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    product_in_parts(w, p, lo, hi, rig_threads);
}

/* Another order of summation once there are enough rows for a tile. */
static void product_by_shape(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    product_in_parts(w, p, lo, hi, p->n_rows >= 4 ? 4 : 1);
}

/* Float weights for many rows, 8-bit activations for one: two arithmetics for one weight. */
static void product_two_ways(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    if (p->n_rows >= 16)
        product_in_parts(w, p, lo, hi, 1);
    else
        kernels_ref.product(w, p, lo, hi);
}

/* A neighbour times zero, which nobody sees until the neighbour is NaN. */
static void product_zero_times_neighbour(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    kernels_ref.product(w, p, lo, hi);
    for (uint32_t i = 0; i + 1 < p->n_rows; i++)
        for (uint32_t o = lo; o < hi; o++)
            p->out[i * p->out_stride + o] += 0.0f * p->out[(i + 1) * p->out_stride + o];
}

/* Adds to what the buffer held. */
static void product_into_dirt(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi)
{
    float before[256];
    assert(p->n_rows <= COUNT_OF(before));
    for (uint32_t o = lo; o < hi; o++) {
        for (uint32_t i = 0; i < p->n_rows; i++)
            before[i] = p->out[i * p->out_stride + o];
        kernels_ref.product(w, p, o, o + 1);
        for (uint32_t i = 0; i < p->n_rows; i++)
            p->out[i * p->out_stride + o] += 0.0f * before[i];
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------- */

static _Thread_local float last_seen;

/* The sum of squares leans on the row before. */
static void norm_leans_on_neighbour(const float *x, const float *gain, float eps, uint32_t n, float *out)
{
    const float first = fabsf(x[0]) < 1e4f ? fabsf(x[0]) : 1.0f;
    kernels_ref.norm_row(x, gain, eps + 1e-3f * last_seen, n, out);
    last_seen = first;
}

/* One scale for a tile of rows: never smaller than that of the group before. */
static void quant_by_tile(const float *x, uint32_t n_groups, const struct groups *to)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        float v[ACT_GROUP];
        memcpy(v, x + (size_t)g * ACT_GROUP, sizeof v);
        const float most = fabsf(v[0]);
        if (last_seen > most && last_seen < 1e3f)
            v[0] = v[0] < 0 ? -last_seen : last_seen;
        last_seen = most;
        const struct groups one = groups_from(to, g);
        kernels_ref.quant_groups(v, 1, &one);
    }
}

static atomic_uint glu_calls;

/* Now and then another exp. */
static void glu_sometimes_other(enum glu kind, const float *gate, const float *up, uint32_t n, float *out)
{
    kernels_ref.glu(kind, gate, up, n, out);
    if (atomic_fetch_add(&glu_calls, 1) % 7 == 3)
        for (uint32_t i = 0; i < n; i++)
            out[i] = gate[i] / (1.0f + expf(-gate[i]) * 1.0000001f) * up[i];
}

/* The cap depends on how many columns a tile has, and a tile on how the vocabulary is cut among threads. */
static void cap_by_threads(float *x, uint32_t n, float scale, float cap)
{
    kernels_ref.scale_cap(x, n, scale, cap * (1.0f + 0x1p-20f * (float)(rig_threads - 1)));
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

enum attend_fault {
    TILES_FROM_CHUNK,  /* tiles start at the chunk's first position */
    TILES_OF_BLOCKS,   /* a tile is a block */
    MAX_SEES_MASKED,   /* the maximum runs over the chunk's last position */
    ZERO_TIMES_MASKED, /* masked entries are multiplied by zero instead of left out */
    SPLIT_BY_THREADS,  /* the context is cut by the number of threads */
    NO_FAULT
};

static void load_row(const struct attend_tile *t, uint32_t pos, bool is_v, float *x)
{
    const struct kv_layer *layer = t->args->layer;
    const uint32_t *table = t->batch->tables[layer->group] + t->seq->table_at;
    const uint32_t bt = t->kv->block_tokens;
    const unsigned char *block = t->kv->blocks + table[pos / bt] * t->kv->block_bytes;
    const unsigned char *first =
        block + (is_v ? layer->v_at : layer->k_at) + (uint64_t)t->kv_head * bt * layer->row_bytes;
    unsigned char key[HEAD_DIM_MAX * sizeof(float)];
    if (!is_v)
        key_get(layer, first, pos % bt, key);
    dtype_info(layer->dtype)
        ->dequant(is_v ? first + (uint64_t)(pos % bt) * layer->row_bytes : key, x, t->args->head_dim);
}

struct running {
    float max, sum, out[HEAD_DIM_MAX];
};

/* Positions [from, to) of one row and head, as cpu.h defines a tile; seen_to is where the maximum looks. */
static void fold_tile(struct running *s, const struct attend_tile *t, const float *q, uint32_t from, uint32_t to,
    uint32_t seen_to, bool zero_times)
{
    const uint32_t n = t->args->head_dim;
    float k[HEAD_DIM_MAX], v[HEAD_DIM_MAX], score[256], top = s->max;
    assert(seen_to - from <= COUNT_OF(score));
    for (uint32_t p = from; p < seen_to; p++) {
        float acc[8] = {0};
        load_row(t, p, false, k);
        for (uint32_t i = 0; i < n; i++)
            acc[i % 8] += q[i] * k[i];
        score[p - from] =
            t->args->scale * (((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7])));
        if ((p < to || !zero_times) && score[p - from] > top)
            top = score[p - from];
    }
    const float shrink = f_exp(s->max - top);
    s->max = top;
    s->sum *= shrink;
    for (uint32_t i = 0; i < n; i++)
        s->out[i] *= shrink;
    for (uint32_t p = from; p < (zero_times ? seen_to : to); p++) {
        const float weight = p < to ? f_exp(score[p - from] - top) : 0.0f;
        load_row(t, p, true, v);
        s->sum += weight;
        for (uint32_t i = 0; i < n; i++)
            s->out[i] += weight * v[i];
    }
}

static void attend_with(enum attend_fault fault, const struct attend_tile *t)
{
    const struct attend_args *a = t->args;
    const uint32_t n = a->head_dim, first = t->batch->pos[t->first_row], bt = t->kv->block_tokens;
    const uint32_t last = t->batch->pos[t->first_row + t->n_rows - 1];
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t h = t->first_head; h < t->first_head + t->n_heads; h++) {
            const size_t at = ((size_t)(t->first_row + r) * a->n_heads + h) * n;
            const uint32_t pos = t->batch->pos[t->first_row + r];
            struct running s = {.max = -3.402823466e38f};
            uint32_t size = ATTN_TILE, to;
            if (fault == TILES_OF_BLOCKS)
                size = bt;
            if (fault == SPLIT_BY_THREADS)
                size = (pos + rig_threads) / rig_threads;
            for (uint32_t from = 0; from <= pos; from = to) {
                to = MIN(from + MIN(size, 256u), pos + 1);
                if (fault == TILES_FROM_CHUNK && from < first && first < to)
                    to = first;
                uint32_t seen_to = to;
                if (fault == MAX_SEES_MASKED)
                    seen_to = MIN(from + ATTN_TILE, last + 1);
                if (fault == ZERO_TIMES_MASKED)
                    seen_to = MIN(from + ATTN_TILE, (pos / bt + 1) * bt);
                fold_tile(&s, t, a->q + at, from, to, seen_to, fault == ZERO_TIMES_MASKED);
            }
            for (uint32_t i = 0; i < n; i++)
                a->out->f32[at + i] = s.out[i] / s.sum;
        }
}

#define ATTEND(name, fault)                                                                                            \
    static void name(struct worker *w, const struct attend_tile *t)                                                    \
    {                                                                                                                  \
        (void)w;                                                                                                       \
        attend_with(fault, t);                                                                                         \
    }
ATTEND(attend_no_fault, NO_FAULT)
ATTEND(attend_tiles_from_chunk, TILES_FROM_CHUNK)
ATTEND(attend_tiles_of_blocks, TILES_OF_BLOCKS)
ATTEND(attend_max_sees_masked, MAX_SEES_MASKED)
ATTEND(attend_zero_times_masked, ZERO_TIMES_MASKED)
ATTEND(attend_split_by_threads, SPLIT_BY_THREADS)

/* ---- orchestration ---------------------------------------------------------------------------------------------- */

/* Padding writes into the first slot. */
static void qkv_padding_writes(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    uint32_t slots[128];
    const uint32_t group = a->layer->group;
    assert(b->n_rows <= COUNT_OF(slots) && group == 1);
    for (uint32_t i = 0; i < b->n_rows; i++)
        slots[i] = b->kv_slot[group][i] == KV_SLOT_NONE ? 0 : b->kv_slot[group][i];
    const uint32_t *const all[] = {NULL, slots};
    struct batch wrong = *b;
    wrong.kv_slot = all;
    cpu_qkv(d, &wrong, kv, a);
}

/* A cache scale for several tokens: each takes the rounding of the largest token beside it in the chunk. */
static void qkv_scale_by_chunk(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a)
{
    cpu_qkv(d, b, kv, a);
    const struct dtype_info *info = dtype_info(a->layer->dtype);
    const uint32_t bt = kv->block_tokens, n = a->head_dim;
    for (uint32_t i = 0; i + 1 < b->n_rows; i++) {
        const uint32_t slot = b->kv_slot[a->layer->group][i];
        if (slot == KV_SLOT_NONE || b->kv_slot[a->layer->group][i + 1] == KV_SLOT_NONE || b->seq[i] != b->seq[i + 1])
            continue;
        unsigned char *row =
            kv->blocks + slot / bt * kv->block_bytes + a->layer->k_at + slot % bt * a->layer->row_bytes;
        float x[HEAD_DIM_MAX];
        info->dequant(row, x, n);
        for (uint32_t k = 0; k < n; k++)
            if (!(fabsf(x[k]) < 1e4f))
                return;
        x[0] += x[0] < 0 ? -0.25f : 0.25f;
        info->quant(x, row, n);
    }
}

/* Experts added in the order of their load in this batch. */
static void experts_by_load(struct dev *d, const struct batch *b, const struct experts_args *a)
{
    uint32_t load[64] = {0}, expert[256];
    float weight[256];
    const uint32_t n = b->n_rows * a->top_k;
    assert(n <= COUNT_OF(expert));
    for (uint32_t i = 0; i < n; i++)
        load[a->expert[i]]++;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i; /* insertion into the row's list, the busiest first */
        for (; at % a->top_k != 0 && load[expert[at - 1]] < load[a->expert[i]]; at--) {
            expert[at] = expert[at - 1];
            weight[at] = weight[at - 1];
        }
        expert[at] = a->expert[i];
        weight[at] = a->weight[i];
    }
    struct experts_args other = *a;
    other.expert = expert;
    other.weight = weight;
    cpu_experts(d, b, &other);
}

/* A row too many for an expert is dropped: a capacity, as trained mixtures have it. */
static void experts_with_capacity(struct dev *d, const struct batch *b, const struct experts_args *a)
{
    uint32_t load[64] = {0};
    float weight[256];
    assert(b->n_rows * a->top_k <= COUNT_OF(weight));
    for (uint32_t i = 0; i < b->n_rows * a->top_k; i++)
        weight[i] = ++load[a->expert[i]] > 8 ? 0.0f : a->weight[i];
    struct experts_args other = *a;
    other.weight = weight;
    cpu_experts(d, b, &other);
}

/* ---- the tests -------------------------------------------------------------------------------------------------- */

static const struct ops *plain_ops(void)
{
    const struct ops *ops = cpu_ops_by_name("cpu-ref");
    assert_non_null(ops);
    return ops;
}

static uint64_t rows_that_differ(const struct kernels *k, const struct ops *ops, enum row_op op, enum dtype dtype)
{
    const struct rig rig = {.ops = ops, .kernels = k};
    const struct row_check c = {.op = op, .dtype = dtype, .rounds = ROUNDS, .seed = 4711};
    return check_rows(&rig, &c).differ;
}

static uint64_t tokens_that_differ(const struct kernels *k, const struct ops *ops, enum dtype kv)
{
    const struct rig rig = {.ops = ops, .kernels = k};
    const struct seq_check c = {.weight = DTYPE_F32,
        .kv = kv,
        .n_heads = 2,
        .n_kv_heads = 1,
        .head_dim = 32,
        .rope = ROPE_HALVES,
        .rope_dims = 32,
        .len = 150,
        .rounds = ROUNDS,
        .seed = 4712};
    return check_seqs(&rig, &c).differ;
}

#define CATCH(differ)                                                                                                  \
    do {                                                                                                               \
        const uint64_t n_ = (differ);                                                                                  \
        if (n_ == 0)                                                                                                   \
            fail_msg("a planted fault was not caught: %s", #differ);                                                   \
    } while (0)

static void faults_of_products_are_caught(void **state)
{
    (void)state;
    const struct ops *ops = plain_ops();
    struct kernels k = kernels_ref;
    assert_int_equal(rows_that_differ(&k, ops, OP_PROJECT, DTYPE_F32), 0);
    k.product = product_by_batch;
    CATCH(rows_that_differ(&k, ops, OP_PROJECT, DTYPE_F32));
    CATCH(rows_that_differ(&k, ops, OP_GATE_UP, DTYPE_Q4_K));
    CATCH(rows_that_differ(&k, ops, OP_LOGITS, DTYPE_Q8_0));
    CATCH(rows_that_differ(&k, ops, OP_EXPERTS, DTYPE_Q4_0));
    CATCH(tokens_that_differ(&k, ops, DTYPE_F32));
    k.product = product_k_by_threads;
    CATCH(rows_that_differ(&k, ops, OP_PROJECT, DTYPE_F16));
    CATCH(rows_that_differ(&k, ops, OP_ROUTE, DTYPE_F32));
    k.product = product_by_shape;
    CATCH(rows_that_differ(&k, ops, OP_PROJECT, DTYPE_BF16));
    k.product = product_two_ways;
    CATCH(rows_that_differ(&k, ops, OP_PROJECT, DTYPE_Q6_K));
    k.product = product_zero_times_neighbour;
    CATCH(rows_that_differ(&k, ops, OP_LOGITS, DTYPE_F32));
    k.product = product_into_dirt;
    CATCH(rows_that_differ(&k, ops, OP_GATE_UP, DTYPE_F32));
}

static void faults_of_rows_are_caught(void **state)
{
    (void)state;
    const struct ops *ops = plain_ops();
    struct kernels k = kernels_ref;
    k.norm_row = norm_leans_on_neighbour;
    CATCH(rows_that_differ(&k, ops, OP_NORM, DTYPE_F32));
    CATCH(rows_that_differ(&k, ops, OP_POST_NORM, DTYPE_F32));
    k = kernels_ref;
    k.quant_groups = quant_by_tile;
    CATCH(rows_that_differ(&k, ops, OP_NORM, DTYPE_Q8_0));
    CATCH(rows_that_differ(&k, ops, OP_GATE_UP, DTYPE_Q8_0));
    k = kernels_ref;
    k.glu = glu_sometimes_other;
    CATCH(rows_that_differ(&k, ops, OP_GATE_UP, DTYPE_F32));
    CATCH(rows_that_differ(&k, ops, OP_EXPERTS, DTYPE_F32));
    k = kernels_ref;
    k.scale_cap = cap_by_threads;
    CATCH(rows_that_differ(&k, ops, OP_LOGITS, DTYPE_F32));
}

static void faults_of_attention_are_caught(void **state)
{
    (void)state;
    const struct ops *ops = plain_ops();
    struct kernels k = kernels_ref;
    k.attend = attend_no_fault; /* the harness of the faults itself is faultless */
    assert_int_equal(tokens_that_differ(&k, ops, DTYPE_F16), 0);
    k.attend = attend_tiles_from_chunk;
    CATCH(tokens_that_differ(&k, ops, DTYPE_F16));
    k.attend = attend_tiles_of_blocks;
    CATCH(tokens_that_differ(&k, ops, DTYPE_F16));
    k.attend = attend_max_sees_masked;
    CATCH(tokens_that_differ(&k, ops, DTYPE_F16));
    k.attend = attend_zero_times_masked;
    CATCH(tokens_that_differ(&k, ops, DTYPE_F16));
    k.attend = attend_split_by_threads;
    CATCH(tokens_that_differ(&k, ops, DTYPE_F16));
}

static void faults_of_the_orchestration_are_caught(void **state)
{
    (void)state;
    struct ops ops = *plain_ops();
    ops.qkv = qkv_padding_writes;
    CATCH(tokens_that_differ(NULL, &ops, DTYPE_F16));
    ops.qkv = qkv_scale_by_chunk;
    CATCH(tokens_that_differ(NULL, &ops, DTYPE_Q8_0));
    ops = *plain_ops();
    ops.experts = experts_by_load;
    CATCH(rows_that_differ(NULL, &ops, OP_EXPERTS, DTYPE_F32));
    ops.experts = experts_with_capacity;
    CATCH(rows_that_differ(NULL, &ops, OP_EXPERTS, DTYPE_F32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_products_are_caught),
        cmocka_unit_test(faults_of_rows_are_caught),
        cmocka_unit_test(faults_of_attention_are_caught),
        cmocka_unit_test(faults_of_the_orchestration_are_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
