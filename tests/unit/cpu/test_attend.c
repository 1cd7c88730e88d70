/* Attention over the paged cache against a softmax in double precision over the values the cache holds: windows, soft
 * caps, shared heads, several sequences, contexts over many tiles and blocks, every cache dtype. Each shape is also
 * compared with references that make one mistake, which must miss the bound. */
#include "testing_cpu.h"

#include "base/hash.h"
#include "base/mem.h"

#include <math.h>

#define BOUND 3e-6 /* |got - want| / largest |v| seen */

struct shape {
    enum dtype kv;
    uint32_t n_heads, n_kv_heads, head_dim, block_tokens, window;
    float cap;
    uint32_t past[2], rows[2]; /* of two sequences */
};

struct attention {
    const struct shape *s;
    struct rig rig;
    struct dev *d;
    struct kv_cache kv;
    struct kv_layer layer;
    uint32_t n_rows, per_seq; /* table entries of a sequence */
    uint32_t *table, *pos, *seq;
    struct batch_seq seqs[2];
    float *q;
    struct acts *out;
};

enum mistake {
    RIGHT,
    SEES_NEXT,      /* one position too far */
    MISSES_SELF,    /* one too few */
    WINDOW_PLUS,    /* the window one too wide */
    NO_WINDOW,      /* no window at all */
    NEXT_HEAD,      /* the kv head of the next group */
    HEADS_STRIPED,  /* query head h reads kv head h mod G */
    NO_SCALE,       /* scale 1 */
    NO_CAP,         /* scores not capped */
    OTHER_SEQUENCE, /* reads the other sequence */
    K_FOR_V,
    MISTAKES
};

/* Elements of the blocks that a head's row takes. */
static uint32_t whole(const struct shape *s)
{
    const struct dtype_info *info = dtype_info(s->kv);
    return kv_row_bytes(s->kv, s->head_dim) / info->block_bytes * info->block_elems;
}

static void read_kv(const struct attention *a, uint32_t s, uint32_t head, uint32_t pos, bool is_v, float *x)
{
    const uint32_t bt = a->s->block_tokens, block = a->table[s * a->per_seq + pos / bt];
    struct error e;
    unsigned char key[HEAD_DIM_MAX * sizeof(float)];
    const unsigned char *first = a->kv.blocks + block * a->kv.block_bytes + (is_v ? a->layer.v_at : a->layer.k_at) +
                                 (size_t)head * bt * a->layer.row_bytes;
    if (!is_v)
        key_get(&a->layer, first, pos % bt, key);
    float row[HEAD_DIM_MAX];
    assert_ok(e, dequant_row(a->s->kv, is_v ? first + pos % bt * a->layer.row_bytes : key, row, whole(a->s), &e));
    memcpy(x, row, a->s->head_dim * sizeof *x);
}

/* A cache of random rows in scattered blocks. */
static void make_cache(struct attention *a)
{
    const struct shape *s = a->s;
    const struct dtype_info *info = dtype_info(s->kv);
    const uint32_t bt = s->block_tokens;
    const uint32_t longest = MAX(s->past[0] + s->rows[0], s->past[1] + s->rows[1]);
    struct dice dice = {longest + bt};
    a->per_seq = (longest + bt - 1) / bt;
    a->layer = (struct kv_layer){.dtype = s->kv, .row_bytes = kv_row_bytes(s->kv, s->head_dim)};
    a->layer.v_at = (uint64_t)s->n_kv_heads * bt * a->layer.row_bytes;
    a->kv = (struct kv_cache){.n_blocks = 2 * a->per_seq, .block_tokens = bt, .block_bytes = 2 * a->layer.v_at};
    a->kv.blocks = room(a->kv.n_blocks * a->kv.block_bytes);
    a->table = room(sizeof(uint32_t) * a->kv.n_blocks);
    for (uint32_t i = 0; i < a->kv.n_blocks; i++)
        a->table[i] = i;
    dice_shuffle(&dice, a->table, a->kv.n_blocks);
    float x[256];
    for (size_t row = 0; row < a->kv.n_blocks * a->kv.block_bytes / a->layer.row_bytes; row++) {
        unsigned char bytes[sizeof x];
        const size_t in_block = row % (2 * (size_t)s->n_kv_heads * bt), first = row - in_block % bt;
        fill_noise(x, s->head_dim, 5000 + row, 1.0f);
        memset(x + s->head_dim, 0, (whole(s) - s->head_dim) * sizeof *x);
        info->quant(x, bytes, whole(s));
        if (in_block < (size_t)s->n_kv_heads * bt)
            key_put(&a->layer, a->kv.blocks + first * a->layer.row_bytes, (uint32_t)(in_block % bt), bytes);
        else
            memcpy(a->kv.blocks + row * a->layer.row_bytes, bytes, a->layer.row_bytes);
    }
}

static void attend(const struct attention *a, const struct batch *b, const float *q, struct acts *out)
{
    const struct shape *s = a->s;
    a->rig.ops->attend(a->d, b, &a->kv,
        &(struct attend_args){.q = q,
            .n_heads = s->n_heads,
            .n_kv_heads = s->n_kv_heads,
            .head_dim = s->head_dim,
            .scale = 0.4f,
            .cap = s->cap,
            .window = s->window,
            .layer = &a->layer,
            .forms = ACT_F32,
            .out = out});
}

static void attention_init(struct attention *a, const struct rig *rig, const struct shape *s, uint32_t threads)
{
    *a = (struct attention){.s = s, .rig = *rig, .n_rows = s->rows[0] + s->rows[1]};
    a->d = rig_open(rig, threads, a->n_rows);
    make_cache(a);
    const uint32_t q_n = s->n_heads * s->head_dim;
    a->pos = room(sizeof(uint32_t) * a->n_rows);
    a->seq = room(sizeof(uint32_t) * a->n_rows);
    a->q = room(sizeof(float) * a->n_rows * q_n);
    fill_noise(a->q, (size_t)a->n_rows * q_n, 7, 1.0f);
    a->out = acts_make(rig, a->d, a->n_rows, q_n, ACT_F32);
    for (uint32_t i = 0, row = 0; i < 2; row += s->rows[i++]) {
        a->seqs[i] = (struct batch_seq){
            .first_row = row, .n_rows = s->rows[i], .n_kv = s->past[i] + s->rows[i], .table_at = i * a->per_seq};
        for (uint32_t r = 0; r < s->rows[i]; r++) {
            a->pos[row + r] = s->past[i] + r;
            a->seq[row + r] = i;
        }
    }
    const uint32_t *const tables[] = {a->table};
    const struct batch b = {
        .n_rows = a->n_rows, .n_seqs = 2, .pos = a->pos, .seq = a->seq, .seqs = a->seqs, .tables = tables};
    attend(a, &b, a->q, a->out);
}

static void attention_fini(struct attention *a)
{
    mem_free(a->kv.blocks);
    mem_free(a->table);
    mem_free(a->pos);
    mem_free(a->seq);
    mem_free(a->q);
    a->rig.ops->acts_free(a->d, a->out);
    a->rig.ops->dev_close(a->d);
}

/* One row and head by the formula; two passes, no tiles. */
static void naive(const struct attention *a, enum mistake m, uint32_t row, uint32_t head, double *out, double *size)
{
    const struct shape *s = a->s;
    const uint32_t n = s->head_dim, pos = a->pos[row], per_kv = s->n_heads / s->n_kv_heads;
    const uint32_t seq = m == OTHER_SEQUENCE ? 1 - a->seq[row] : a->seq[row];
    const float *q = a->q + ((size_t)row * s->n_heads + head) * n;
    uint32_t kv_head = head / per_kv, end = pos + 1, first = 0;
    if (m == NEXT_HEAD)
        kv_head = (kv_head + 1) % s->n_kv_heads;
    if (m == HEADS_STRIPED)
        kv_head = head % s->n_kv_heads;
    if (m == SEES_NEXT)
        end++;
    if (m == MISSES_SELF)
        end--;
    const uint32_t window = m == NO_WINDOW ? 0 : s->window + (m == WINDOW_PLUS);
    if (window > 0 && pos + 1 > window)
        first = pos + 1 - window;
    double *score = room(sizeof(double) * (end + 1)), top = -INFINITY, sum = 0.0;
    float x[256];
    for (uint32_t p = first; p < end; p++) {
        read_kv(a, seq, kv_head, p, false, x);
        score[p] = 0.0;
        for (uint32_t i = 0; i < n; i++)
            score[p] += (double)q[i] * (double)x[i];
        score[p] *= m == NO_SCALE ? 1.0 : (double)0.4f;
        if (s->cap > 0 && m != NO_CAP)
            score[p] = (double)s->cap * tanh(score[p] / (double)s->cap);
        top = fmax(top, score[p]);
    }
    memset(out, 0, sizeof *out * n);
    for (uint32_t p = first; p < end; p++) {
        const double weight = exp(score[p] - top);
        sum += weight;
        read_kv(a, seq, kv_head, p, m != K_FOR_V, x);
        for (uint32_t i = 0; i < n; i++) {
            out[i] += weight * (double)x[i];
            *size = fmax(*size, fabs((double)x[i]));
        }
    }
    for (uint32_t i = 0; i < n; i++)
        out[i] /= sum;
    mem_free(score);
}

static double error_of(const struct attention *a, enum mistake m)
{
    const uint32_t n = a->s->head_dim;
    double worst = 0.0;
    for (uint32_t row = 0; row < a->n_rows; row += m == RIGHT ? 1 : 3)
        for (uint32_t h = 0; h < a->s->n_heads; h++) {
            double want[256], size = 0.0;
            if ((m == MISSES_SELF && (a->pos[row] == 0 || a->s->window == 1)) ||
                (m == SEES_NEXT && a->pos[row] + 1 >= a->seqs[a->seq[row]].n_kv) ||
                (m == OTHER_SEQUENCE && a->pos[row] >= a->seqs[1 - a->seq[row]].n_kv))
                continue;
            naive(a, m, row, h, want, &size);
            for (uint32_t i = 0; i < n; i++) {
                const double got = (double)a->out->f32[((size_t)row * a->s->n_heads + h) * n + i];
                const double error = fabs(got - want[i]) / size;
                worst = error <= worst ? worst : error;
            }
        }
    return worst;
}

/* Whether a mistake changes anything in this shape. */
static bool shows(const struct shape *s, enum mistake m)
{
    const uint32_t longest = MAX(s->past[0] + s->rows[0], s->past[1] + s->rows[1]);
    switch (m) {
    case WINDOW_PLUS:
    case NO_WINDOW: return s->window > 0 && longest > s->window + 2;
    case NEXT_HEAD: return s->n_kv_heads > 1;
    case HEADS_STRIPED: return s->n_kv_heads > 1 && s->n_heads > s->n_kv_heads;
    case NO_CAP: return s->cap > 0 && s->window != 1;
    case NO_SCALE: return s->window != 1;
    case MISSES_SELF: return s->window != 1;
    default: return true;
    }
}

static const struct shape shapes[] = {
    {DTYPE_F32, 4, 2, 64, 16, 0, 0.0f, {0, 300}, {70, 3}},
    {DTYPE_F16, 4, 2, 64, 32, 0, 0.0f, {500, 61}, {1, 40}},
    {DTYPE_BF16, 6, 2, 32, 48, 100, 0.0f, {250, 10}, {40, 5}},
    {DTYPE_Q8_0, 8, 1, 64, 16, 0, 5.0f, {129, 127}, {2, 2}},
    {DTYPE_Q4_0, 4, 4, 32, 32, 17, 2.0f, {0, 64}, {80, 64}},
    {DTYPE_F16, 3, 3, 20, 16, 64, 0.0f, {191, 63}, {5, 2}},
    {DTYPE_F16, 5, 1, 256, 16, 1, 0.0f, {30, 9}, {4, 7}},
    {DTYPE_F32, 80, 1, 8, 16, 0, 0.0f, {60, 0}, {9, 66}}, /* more heads on one kv head than a tile carries */
    {DTYPE_F16, 2, 1, 32, 16, 0, 0.0f, {1990, 2}, {3, 1}},
    {DTYPE_Q8_0, 4, 2, 80, 48, 0, 0.0f, {200, 3}, {9, 66}}, /* half a group is left */
    {DTYPE_Q4_0, 3, 1, 20, 16, 33, 0.0f, {70, 0}, {1, 30}},
};

static void attention_is_the_softmax_of_the_formula(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t i = 0; i < COUNT_OF(shapes); i++) {
            struct attention a;
            attention_init(&a, &rig, &shapes[i], 3);
            const double error = error_of(&a, RIGHT);
            if (!(error < BOUND))
                fail_msg("%s, shape %u: error %g", rig.ops->name, i, error);
            for (enum mistake m = RIGHT + 1; m < MISTAKES; m++)
                if (shows(&shapes[i], m) && !(error_of(&a, m) > 10 * BOUND))
                    fail_msg("shape %u: mistake %d passes with error %g", i, (int)m, error_of(&a, m));
            attention_fini(&a);
        }
}

/* Large scores: nothing overflows, and the largest takes all. */
static void huge_scores_give_the_value_of_the_largest(void **state)
{
    (void)state;
    const struct shape s = {DTYPE_F32, 1, 1, 32, 16, 0, 0.0f, {150, 3}, {1, 1}};
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct attention a;
        attention_init(&a, &rig, &s, 3);
        for (uint32_t i = 0; i < 2 * 32; i++)
            a.q[i] *= 3e4f;
        const uint32_t *const tables[] = {a.table};
        const struct batch b = {.n_rows = 2, .n_seqs = 2, .pos = a.pos, .seq = a.seq, .seqs = a.seqs, .tables = tables};
        attend(&a, &b, a.q, a.out);
        assert_true(error_of(&a, RIGHT) < BOUND);
        attention_fini(&a);
    }
}

/* Behind a long context a row's positions are shared out among the workers in runs of parts, differently for each
 * number of them; and a row alone is read from the cache in place. */
static void rows_behind_many_parts_have_the_same_bits_however_they_are_shared_out(void **state)
{
    (void)state;
    static const struct shape long_ones[] = {
        {DTYPE_F16, 6, 2, 32, 16, 0, 0.0f, {2550, 700}, {21, 1}},
        {DTYPE_F16, 3, 1, 64, 16, 1500, 0.0f, {3300, 40}, {11, 9}},
        {DTYPE_Q8_0, 3, 1, 32, 16, 0, 0.0f, {2040, 3}, {10, 1}}, /* the last rows see one part more */
    };
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t i = 0; i < COUNT_OF(long_ones); i++) {
            const struct shape *const s = &long_ones[i];
            const uint32_t n = s->n_heads * s->head_dim;
            struct attention a;
            attention_init(&a, &rig, s, 1);
            for (uint32_t threads = 2; threads < 8; threads++) {
                struct attention b;
                attention_init(&b, &rig, s, threads);
                assert_memory_equal(a.out->f32, b.out->f32, sizeof(float) * a.n_rows * n);
                attention_fini(&b);
            }
            struct acts *const one = acts_make(&rig, a.d, 1, n, ACT_F32);
            for (uint32_t r = 0; r < a.n_rows; r++) {
                const uint32_t *const tables[] = {a.table};
                struct batch_seq seq = a.seqs[a.seq[r]];
                seq.first_row = 0;
                seq.n_rows = 1;
                const uint32_t first = 0;
                const struct batch b = {
                    .n_rows = 1, .n_seqs = 1, .pos = a.pos + r, .seq = &first, .seqs = &seq, .tables = tables};
                attend(&a, &b, a.q + (size_t)r * n, one);
                assert_memory_equal(a.out->f32 + (size_t)r * n, one->f32, sizeof(float) * n);
            }
            rig.ops->acts_free(a.d, one);
            attention_fini(&a);
        }
}

static void the_plain_attention_has_these_bits(void **state)
{
    (void)state;
    const struct rig rig = {.ops = cpu_ops_by_name("cpu-ref")};
    uint64_t hash = 0;
    for (uint32_t i = 0; i < COUNT_OF(shapes); i++) {
        struct attention a;
        attention_init(&a, &rig, &shapes[i], 3);
        hash = hash64(a.out->f32, sizeof(float) * a.n_rows * a.out->n, hash);
        attention_fini(&a);
    }
    assert_int_equal(hash, 0xa5d78561979514bcu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_the_softmax_of_the_formula),
        cmocka_unit_test(huge_scores_give_the_value_of_the_largest),
        cmocka_unit_test(rows_behind_many_parts_have_the_same_bits_however_they_are_shared_out),
        cmocka_unit_test(the_plain_attention_has_these_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
