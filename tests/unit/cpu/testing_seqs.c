/* Law 1 for qkv and attend: sequences run token by token, alone, on one thread, in blocks of 16; then again in random
 * chunks beside each other (one of them full of NaN, one of infinity), in other block sizes and scattered blocks, with
 * rows of padding behind, a poisoned cache, freed blocks behind the window, on 1, 2 and 3 threads. q, the attention's
 * output and the cache's bytes must be the same for every token. */
#include "testing_cpu.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tensor/fmath.h"

#define SEQS       6
#define SEQ_NAN    4 /* company only: its own rows are compared as NaN */
#define SEQ_INF    5
#define ROWS_MAX   72 /* 64 of sequences and some padding */
#define PADDING    8
#define BLOCKS_MAX 128

struct paged {
    const struct rig *rig;
    const struct seq_check *c;
    struct dev *d;
    uint32_t hidden, threads;
    int poison;
    struct matrix wq, wk, wv;
    struct acts *in, *out;
    float *gain, *rope, *q, *scratch;
    struct kv_layer layer;
    struct kv_cache kv;
    uint32_t table[SEQS][BLOCKS_MAX];
};

/* All that is compared, by sequence and position. */
struct record {
    uint32_t row_bytes;
    struct result q, out;
    unsigned char *kv; /* [SEQS * len][2][n_kv_heads][row_bytes] */
};

static uint32_t seq_len(const struct seq_check *c, uint32_t s)
{
    return s == 0 ? c->len : 1 + (uint32_t)(s * 7919 + c->seed * 31) % c->len;
}

static void hidden_row(const struct paged *p, uint32_t s, uint32_t pos, float *x)
{
    enum row_kind kind = pos % 5 == 3 ? ROW_LARGE : pos % 7 == 5 ? ROW_OUTLIER : ROW_PLAIN;
    if (s == SEQ_NAN)
        kind = pos % 2 ? ROW_ALL_NAN : ROW_ONE_NAN;
    if (s == SEQ_INF)
        kind = pos % 2 ? ROW_INF : ROW_HUGE;
    fill_row(x, p->hidden, kind, p->c->seed * 9973 + s * 1000 + pos);
    if (kind == ROW_LARGE)
        for (uint32_t i = 0; i < p->hidden; i++)
            x[i] *= 1e-3f;
}

/* Tables of blocks in the given order; the cache poisoned, so that what is read without being written is seen. */
static void make_cache(struct paged *p, uint32_t block_tokens, struct dice *dice)
{
    const struct seq_check *c = p->c;
    p->layer.dtype = c->kv;
    p->layer.row_bytes = kv_row_bytes(c->kv, c->head_dim);
    const uint64_t part = (uint64_t)c->n_kv_heads * block_tokens * p->layer.row_bytes;
    p->layer.k_at = 32; /* another layer would lie before and behind */
    p->layer.v_at = 32 + part + 16;
    uint32_t order[BLOCKS_MAX * SEQS];
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQS; s++)
        n += (seq_len(c, s) + block_tokens - 1) / block_tokens;
    n += 3; /* blocks of nobody */
    assert_true(n <= COUNT_OF(order));
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    if (dice != NULL)
        dice_shuffle(dice, order, n);
    p->kv = (struct kv_cache){
        .n_blocks = n, .block_tokens = block_tokens, .block_bytes = (p->layer.v_at + part + 63) / 32 * 32};
    p->kv.blocks = room(p->kv.n_blocks * p->kv.block_bytes);
    memset(p->kv.blocks, p->poison, p->kv.n_blocks * p->kv.block_bytes);
    for (uint32_t s = 0, at = 0; s < SEQS; s++)
        for (uint32_t i = 0; i * block_tokens < seq_len(c, s); i++)
            p->table[s][i] = order[at++];
}

static void paged_init(struct paged *p, const struct rig *rig, const struct seq_check *c, uint32_t threads)
{
    const uint32_t n = c->head_dim, q_n = c->n_heads * n, kv_n = c->n_kv_heads * n;
    *p = (struct paged){.rig = rig,
        .c = c,
        .threads = threads,
        .poison = POISON_NAN,
        .hidden = c->hidden > 0 ? c->hidden : inner_of(c->weight)};
    p->d = rig_open(rig, threads, ROWS_MAX);
    matrix_make(&p->wq, rig, p->d, c->weight, 1, q_n, p->hidden, c->seed + 1, true);
    matrix_make(&p->wk, rig, p->d, c->weight, 1, kv_n, p->hidden, c->seed + 2, false);
    matrix_make(&p->wv, rig, p->d, c->weight, 1, kv_n, p->hidden, c->seed + 3, true);
    p->in = acts_make(rig, p->d, ROWS_MAX, p->hidden, p->wq.w.wants | ACT_F32);
    p->out = acts_make(rig, p->d, ROWS_MAX, q_n, q_n % ACT_GROUP == 0 ? ACT_F32 | ACT_Q16 : ACT_F32);
    p->gain = room(sizeof(float) * n);
    fill_noise(p->gain, n, c->seed + 4, 1.0f);
    p->rope = room(sizeof(float) * c->len * MAX(c->rope_dims, 2u));
    for (uint32_t pos = 0; pos < c->len; pos++)
        for (uint32_t i = 0; i < c->rope_dims / 2; i++) {
            double s, co;
            d_sincos((double)pos * d_pow(10000.0, -2.0 * i / c->rope_dims), &s, &co);
            p->rope[(size_t)pos * c->rope_dims + 2 * i] = (float)co;
            p->rope[(size_t)pos * c->rope_dims + 2 * i + 1] = (float)s;
        }
    p->q = room(sizeof(float) * ROWS_MAX * q_n);
    p->scratch = room(sizeof(float) * ROWS_MAX * 2 * kv_n);
}

static void paged_fini(struct paged *p)
{
    matrix_drop(&p->wq, p->rig, p->d);
    matrix_drop(&p->wk, p->rig, p->d);
    matrix_drop(&p->wv, p->rig, p->d);
    p->rig->ops->acts_free(p->d, p->in);
    p->rig->ops->acts_free(p->d, p->out);
    mem_free(p->gain);
    mem_free(p->rope);
    mem_free(p->q);
    mem_free(p->scratch);
    p->rig->ops->dev_close(p->d);
}

/* Which rows a step has. */
struct step {
    uint32_t n_rows, n_seqs; /* n_rows with padding */
    uint32_t of[SEQS];       /* batch sequence -> sequence */
    struct batch_seq seqs[SEQS];
    uint32_t pos[ROWS_MAX], seq[ROWS_MAX], slot[ROWS_MAX];
    int32_t token[ROWS_MAX];
    uint32_t tables[SEQS * BLOCKS_MAX];
};

static void step_add(struct step *st, const struct paged *p, uint32_t s, uint32_t done, uint32_t n)
{
    const uint32_t bt = p->kv.block_tokens, at = st->n_seqs * BLOCKS_MAX;
    st->of[st->n_seqs] = s;
    st->seqs[st->n_seqs] = (struct batch_seq){.first_row = st->n_rows, .n_rows = n, .n_kv = done + n, .table_at = at};
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) /* what no row may look at is not there */
        st->tables[at + i] = i * bt < done + n && (p->c->window == 0 || (i + 1) * bt + p->c->window > done + 1)
                                 ? p->table[s][i]
                                 : KV_BLOCK_NONE;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = st->n_rows + i, pos = done + i;
        st->pos[row] = pos;
        st->seq[row] = st->n_seqs;
        st->slot[row] = p->table[s][pos / bt] * bt + pos % bt;
    }
    st->n_rows += n;
    st->n_seqs++;
}

static void run_step(struct paged *p, struct step *st, uint32_t padding, struct record *r)
{
    const struct seq_check *c = p->c;
    const struct ops *ops = p->rig->ops;
    const uint32_t q_n = c->n_heads * c->head_dim, n_real = st->n_rows;
    float x[256];
    acts_poison(p->in, p->poison);
    acts_poison(p->out, p->poison);
    memset(p->q, p->poison, sizeof(float) * ROWS_MAX * q_n);
    memset(p->scratch, p->poison, sizeof(float) * ROWS_MAX * 2 * c->n_kv_heads * c->head_dim);
    for (uint32_t i = 0; i < n_real; i++) {
        hidden_row(p, st->of[st->seq[i]], st->pos[i], x);
        acts_put(p->d, p->in, i, x);
    }
    for (uint32_t i = n_real; i < n_real + padding; i++) {
        fill_row(x, p->hidden, i % 2 ? ROW_ALL_NAN : ROW_PLAIN, i);
        acts_put(p->d, p->in, i, x);
        st->pos[i] = st->seq[i] = 0;
        st->slot[i] = KV_SLOT_NONE;
    }
    const uint32_t *const tables[] = {NULL, st->tables};
    const uint32_t *const slots[] = {NULL, st->slot};
    const struct batch batch = {.n_rows = n_real + padding,
        .n_seqs = st->n_seqs,
        .token = st->token,
        .pos = st->pos,
        .seq = st->seq,
        .seqs = st->seqs,
        .tables = tables,
        .kv_slot = slots};
    p->layer.group = 1;
    rig_threads = p->threads;
    ops->qkv(p->d, &batch, &p->kv,
        &(struct qkv_args){.in = p->in,
            .wq = &p->wq.w,
            .wk = &p->wk.w,
            .wv = &p->wv.w,
            .q_gain = c->qk_norm ? p->gain : NULL,
            .k_gain = c->qk_norm ? p->gain : NULL,
            .norm_eps = 1e-6f,
            .rope = c->rope,
            .rope_dims = c->rope_dims,
            .rope_table = p->rope,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .layer = &p->layer,
            .scratch = p->scratch,
            .q = p->q});
    ops->attend(p->d, &batch, &p->kv,
        &(struct attend_args){.q = p->q,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .scale = 0.3f,
            .cap = c->cap,
            .window = c->window,
            .layer = &p->layer,
            .forms = p->out->forms,
            .out = p->out});
    for (uint32_t i = 0; i < n_real; i++) {
        const uint32_t to = st->of[st->seq[i]] * c->len + st->pos[i];
        memcpy(r->q.floats + (size_t)to * q_n, p->q + (size_t)i * q_n, sizeof(float) * q_n);
        acts_get(p->out, i, &r->out, to);
    }
}

/* What the cache holds, in the order of positions. */
static void read_cache(const struct paged *p, struct record *r)
{
    const uint32_t heads = p->c->n_kv_heads, bytes = p->layer.row_bytes, bt = p->kv.block_tokens;
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t pos = 0; pos < seq_len(p->c, s); pos++) {
            const unsigned char *block = p->kv.blocks + p->table[s][pos / bt] * p->kv.block_bytes;
            unsigned char *to = r->kv + (size_t)(s * p->c->len + pos) * 2 * heads * bytes;
            for (uint32_t h = 0; h < heads; h++) {
                const uint64_t head = (uint64_t)h * bt * bytes;
                key_get(&p->layer, block + p->layer.k_at + head, pos % bt, to + (size_t)h * bytes);
                memcpy(to + (size_t)(heads + h) * bytes, block + p->layer.v_at + head + (uint64_t)(pos % bt) * bytes,
                    bytes);
            }
        }
}

static void record_make(struct record *r, const struct paged *p)
{
    const struct seq_check *c = p->c;
    r->row_bytes = 2 * c->n_kv_heads * p->layer.row_bytes;
    result_make(&r->q, SEQS * c->len, c->n_heads * c->head_dim, 0);
    result_make(&r->out, SEQS * c->len, acts_floats(p->out), acts_bytes(p->out));
    r->kv = room((size_t)SEQS * c->len * r->row_bytes);
}

static void record_drop(struct record *r)
{
    result_drop(&r->q);
    result_drop(&r->out);
    mem_free(r->kv);
}

/* Every sequence to its end, one token a step. */
static void run_alone(struct paged *p, struct step *st, struct record *r)
{
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t done = 0; done < seq_len(p->c, s); done++) {
            st->n_rows = st->n_seqs = 0;
            step_add(st, p, s, done, 1);
            run_step(p, st, 0, r);
        }
    read_cache(p, r);
}

/* All sequences together, in random chunks; returns the most rows of a step. */
static uint32_t run_together(struct paged *p, struct step *st, struct dice *dice, struct record *r)
{
    uint32_t done[SEQS] = {0}, order[SEQS], most = 0;
    for (uint32_t s = 0; s < SEQS; s++)
        order[s] = s;
    for (bool more = true; more;) {
        more = false;
        st->n_rows = st->n_seqs = 0;
        dice_shuffle(dice, order, SEQS);
        for (uint32_t i = 0; i < SEQS; i++) {
            const uint32_t s = order[i], left = seq_len(p->c, s) - done[s], free_rows = ROWS_MAX - PADDING - st->n_rows;
            const uint32_t want = dice_below(dice, 3) == 0 ? 1 : dice_below(dice, 64);
            const uint32_t n = MIN(MIN(want, left), free_rows);
            if (n > 0)
                step_add(st, p, s, done[s], n);
            done[s] += n;
            more = more || done[s] < seq_len(p->c, s);
        }
        if (st->n_rows > 0)
            run_step(p, st, dice_below(dice, PADDING + 1), r);
        most = MAX(most, st->n_rows);
    }
    read_cache(p, r);
    return most;
}

struct verdict check_seqs(const struct rig *rig, const struct seq_check *c)
{
    struct paged p;
    struct record alone, company;
    struct verdict v = {0};
    struct dice dice = {c->seed};
    struct step *st = room(sizeof *st);
    paged_init(&p, rig, c, 1);
    p.poison = POISON_NUMBER;
    make_cache(&p, 16, NULL);
    record_make(&alone, &p);
    record_make(&company, &p);
    run_alone(&p, st, &alone);
    mem_free(p.kv.blocks);
    paged_fini(&p);
    for (uint32_t round = 0; round < c->rounds; round++) {
        static const uint32_t block_tokens[] = {32, 16, 48};
        paged_init(&p, rig, c, 3 - round % 3);
        make_cache(&p, block_tokens[(round + round / 3) % 3], &dice);
        v.rows_in_batch_max = MAX(v.rows_in_batch_max, run_together(&p, st, &dice, &company));
        for (uint32_t s = 0; s < SEQS; s++)
            for (uint32_t pos = 0; pos < seq_len(c, s); pos++) {
                const uint32_t at = s * c->len + pos;
                const bool same_kv = s == SEQ_NAN ||
                                     s == SEQ_INF || /* bits of NaN may differ; what they do to others is seen there */
                                     memcmp(alone.kv + (size_t)at * alone.row_bytes,
                                         company.kv + (size_t)at * alone.row_bytes, alone.row_bytes) == 0;
                v.differ += !same_kv || !result_same(&alone.q, at, &company.q, at) ||
                            !result_same(&alone.out, at, &company.out, at);
                v.rows++;
            }
        mem_free(p.kv.blocks);
        paged_fini(&p);
    }
    record_drop(&alone);
    record_drop(&company);
    mem_free(st);
    return v;
}
