/* q, k and v against double precision: products with bias, the norm of each head, both rope styles whole and partial,
 * the rounding into the cache and the slot it goes to; and block copies. Each bound has planted mistakes. */
#include "testing_cpu.h"

#include "base/mem.h"

#include <math.h>

#define H     60
#define Q     4u
#define G     2u
#define D     32u
#define T     7
#define BT    16
#define N_BLK 6
#define BASE  10000.0
#define BOUND 5e-6 /* |got - want| / (1 + |want|), F32 cache */

struct setup {
    enum rope_style rope;
    uint32_t rope_dims;
    bool norm;
};

enum mistake {
    RIGHT,
    NEXT_POSITION,
    OTHER_BASE,
    OTHER_STYLE,
    TURNED_BACK, /* sine negated */
    WHOLE_HEAD,  /* rope over all of a partial head */
    NO_NORM,
    NORM_AFTER_ROPE,
    SWAPPED_HEADS,
    V_TURNED,
    MISTAKES
};

struct world {
    struct rig rig;
    const struct setup *s;
    struct dev *d;
    struct matrix wq, wk, wv;
    struct acts *in;
    struct kv_cache kv;
    struct kv_layer layer;
    uint32_t pos[T], slot[T];
    float x[T][H], gain[D], q[T][Q * D];
    float *table;
};

static const uint32_t blocks[N_BLK] = {3, 0, 5, 1, 4, 2};

static void fill_table(float *table, uint32_t n_pos, uint32_t dims)
{
    for (uint32_t p = 0; p < n_pos; p++)
        for (uint32_t i = 0; i < dims / 2; i++) {
            const double angle = p * pow(BASE, -2.0 * i / dims);
            table[(size_t)p * dims + 2 * i] = (float)cos(angle);
            table[(size_t)p * dims + 2 * i + 1] = (float)sin(angle);
        }
}

static void world_init(struct world *w, const struct rig *rig, const struct setup *s, enum dtype kv, uint64_t seed)
{
    *w = (struct world){.rig = *rig, .s = s, .d = rig_open(rig, 2, T)};
    matrix_make(&w->wq, rig, w->d, DTYPE_F32, 1, Q * D, H, seed, true);
    matrix_make(&w->wk, rig, w->d, DTYPE_F32, 1, G * D, H, seed + 1, true);
    matrix_make(&w->wv, rig, w->d, DTYPE_F32, 1, G * D, H, seed + 2, false);
    w->in = acts_make(rig, w->d, T, H, ACT_F32);
    w->layer = (struct kv_layer){.dtype = kv, .row_bytes = kv_row_bytes(kv, D)};
    w->layer.k_at = 8;
    w->layer.v_at = 8 + (uint64_t)G * BT * w->layer.row_bytes;
    w->kv = (struct kv_cache){
        .n_blocks = N_BLK, .block_tokens = BT, .block_bytes = 16 + (uint64_t)2 * G * BT * w->layer.row_bytes};
    w->kv.blocks = room(N_BLK * w->kv.block_bytes);
    memset(w->kv.blocks, 0xa5, N_BLK * w->kv.block_bytes);
    fill_noise(w->gain, D, seed + 3, 1.0f);
    w->table = room(sizeof(float) * N_BLK * BT * D);
    fill_table(w->table, N_BLK * BT, s->rope_dims > 0 ? s->rope_dims : 2);
    for (uint32_t i = 0; i < T; i++) {
        fill_noise(w->x[i], H, seed + 10 + i, 1.0f);
        acts_put(w->d, w->in, i, w->x[i]);
        w->pos[i] = i < 3 ? i : 10 * i + i; /* 0 1 2 33 44 55 66 */
        w->slot[i] = i == 4 ? KV_SLOT_NONE : blocks[w->pos[i] / BT] * BT + w->pos[i] % BT;
    }
}

static void run(struct world *w)
{
    float scratch[T * 2 * G * D];
    const uint32_t *const slots[] = {w->slot};
    const struct batch b = {.n_rows = T, .pos = w->pos, .kv_slot = slots};
    w->rig.ops->qkv(w->d, &b, &w->kv,
        &(struct qkv_args){.in = w->in,
            .wq = &w->wq.w,
            .wk = &w->wk.w,
            .wv = &w->wv.w,
            .q_gain = w->s->norm ? w->gain : NULL,
            .k_gain = w->s->norm ? w->gain : NULL,
            .norm_eps = 1e-6f,
            .rope = w->s->rope,
            .rope_dims = w->s->rope_dims,
            .rope_table = w->table,
            .n_heads = Q,
            .n_kv_heads = G,
            .head_dim = D,
            .layer = &w->layer,
            .scratch = scratch,
            .q = w->q[0]});
}

static void world_fini(struct world *w)
{
    matrix_drop(&w->wq, &w->rig, w->d);
    matrix_drop(&w->wk, &w->rig, w->d);
    matrix_drop(&w->wv, &w->rig, w->d);
    w->rig.ops->acts_free(w->d, w->in);
    mem_free(w->kv.blocks);
    mem_free(w->table);
    w->rig.ops->dev_close(w->d);
}

static void naive_norm(const float *gain, double *x)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < D; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < D; i++)
        x[i] *= (double)gain[i] / sqrt(sum / D + 1e-6);
}

static void naive_rope(const struct setup *s, enum mistake m, uint32_t pos, double *x)
{
    const uint32_t dims = m == WHOLE_HEAD ? D : s->rope_dims;
    const bool pairs = (s->rope == ROPE_PAIRS) != (m == OTHER_STYLE);
    for (uint32_t i = 0; s->rope != ROPE_NONE && i < dims / 2; i++) {
        const double base = m == OTHER_BASE ? 500000.0 : BASE;
        const double angle = (pos + (m == NEXT_POSITION)) * pow(base, -2.0 * i / dims);
        const double c = cos(angle), sn = m == TURNED_BACK ? -sin(angle) : sin(angle);
        double *a = x + (pairs ? 2 * i : i), *b = x + (pairs ? 2 * i + 1 : i + dims / 2);
        const double turned = *a * c - *b * sn;
        *b = *a * sn + *b * c;
        *a = turned;
    }
}

static void naive_head(const struct world *w, const struct matrix *m, uint32_t row, uint32_t head, enum mistake k,
    bool turn, double out[D])
{
    float weights[H];
    for (uint32_t i = 0; i < D; i++) {
        matrix_row(m, 0, head * D + i, weights);
        out[i] = m->bias != NULL ? (double)m->bias[head * D + i] : 0.0;
        for (uint32_t j = 0; j < H; j++)
            out[i] += (double)w->x[row][j] * (double)weights[j];
    }
    if (!turn)
        return;
    if (w->s->norm && k != NO_NORM && k != NORM_AFTER_ROPE)
        naive_norm(w->gain, out);
    naive_rope(w->s, k, w->pos[row], out);
    if (w->s->norm && k == NORM_AFTER_ROPE)
        naive_norm(w->gain, out);
}

/* Where a head's keys or values of a row's block begin, in bytes from the first block. */
static size_t head_at(const struct world *w, uint32_t row, uint32_t head, bool is_v)
{
    return blocks[w->pos[row] / BT] * w->kv.block_bytes + (is_v ? w->layer.v_at : w->layer.k_at) +
           (size_t)head * BT * w->layer.row_bytes;
}

/* A row of the cache; a key's until the next is asked for. */
static const unsigned char *cached(const struct world *w, uint32_t row, uint32_t head, bool is_v)
{
    static _Alignas(float) unsigned char key[D * sizeof(float)];
    const unsigned char *first = w->kv.blocks + head_at(w, row, head, is_v);
    if (is_v)
        return first + w->pos[row] % BT * w->layer.row_bytes;
    key_get(&w->layer, first, w->pos[row] % BT, key);
    return key;
}

static double head_error(const float *got, const double *want)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < D; i++) {
        const double error = fabs((double)got[i] - want[i]) / (1.0 + fabs(want[i]));
        worst = error <= worst ? worst : error;
    }
    return worst;
}

static double error_of(const struct world *w, enum mistake m)
{
    double want[D], worst = 0.0;
    const uint32_t other = m == SWAPPED_HEADS;
    for (uint32_t row = 0; row < T; row++) {
        for (uint32_t h = 0; h < Q; h++) {
            naive_head(w, &w->wq, row, h ^ other, m, true, want);
            worst = fmax(worst, head_error(w->q[row] + h * D, want));
        }
        for (uint32_t h = 0; w->slot[row] != KV_SLOT_NONE && h < G; h++) {
            naive_head(w, &w->wk, row, h ^ other, m, true, want);
            worst = fmax(worst, head_error((const float *)(const void *)cached(w, row, h, false), want));
            naive_head(w, &w->wv, row, h ^ other, m, m == V_TURNED, want);
            worst = fmax(worst, head_error((const float *)(const void *)cached(w, row, h, true), want));
        }
    }
    return worst;
}

static bool shows(const struct setup *s, enum mistake m)
{
    if (m == NO_NORM)
        return s->norm;
    if (m == NORM_AFTER_ROPE)
        return s->norm && s->rope != ROPE_NONE;
    if (m == V_TURNED)
        return s->norm || s->rope != ROPE_NONE;
    if (m == WHOLE_HEAD)
        return s->rope != ROPE_NONE && s->rope_dims < D;
    return m == SWAPPED_HEADS || s->rope != ROPE_NONE;
}

static const struct setup setups[] = {
    {ROPE_NONE, 0, false},
    {ROPE_NONE, 0, true},
    {ROPE_PAIRS, D, false},
    {ROPE_PAIRS, D, true},
    {ROPE_HALVES, D, false},
    {ROPE_HALVES, D, true},
    {ROPE_HALVES, 12, false},
    {ROPE_PAIRS, 8, true},
};

static void queries_keys_and_values_follow_the_formula(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t i = 0; i < COUNT_OF(setups); i++) {
            struct world w;
            world_init(&w, &rig, &setups[i], DTYPE_F32, 200 + i);
            run(&w);
            const double error = error_of(&w, RIGHT);
            if (!(error < BOUND))
                fail_msg("%s, setup %u: error %g", rig.ops->name, i, error);
            for (enum mistake m = RIGHT + 1; m < MISTAKES; m++)
                if (shows(&setups[i], m) && !(error_of(&w, m) > 10 * BOUND))
                    fail_msg("setup %u: mistake %d passes with error %g", i, (int)m, error_of(&w, m));
            world_fini(&w);
        }
}

/* The cache holds exactly what the conversion of that dtype makes of the f32 row, at the row's slot; and nothing else
 * in the cache is touched. */
static void the_cache_takes_rounded_rows_at_their_slots_and_nothing_else(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t k = 0; k < n_kv_dtypes; k++) {
            struct world exact, w;
            struct error e;
            world_init(&exact, &rig, &setups[5], DTYPE_F32, 300);
            world_init(&w, &rig, &setups[5], kv_dtypes[k], 300);
            run(&exact);
            run(&w);
            unsigned char *expected = room(N_BLK * w.kv.block_bytes);
            memset(expected, 0xa5, N_BLK * w.kv.block_bytes);
            for (uint32_t row = 0; row < T; row++)
                for (uint32_t h = 0; w.slot[row] != KV_SLOT_NONE && h < 2 * G; h++) {
                    const float *x = (const float *)(const void *)cached(&exact, row, h % G, h >= G);
                    unsigned char bytes[D * sizeof(float)];
                    unsigned char *first = expected + head_at(&w, row, h % G, h >= G);
                    assert_ok(e, quant_row(kv_dtypes[k], x, bytes, D, &e));
                    if (h >= G)
                        memcpy(first + w.pos[row] % BT * w.layer.row_bytes, bytes, w.layer.row_bytes);
                    else
                        key_put(&w.layer, first, w.pos[row] % BT, bytes);
                }
            assert_memory_equal(expected, w.kv.blocks, N_BLK * w.kv.block_bytes);
            assert_memory_equal(exact.q, w.q, sizeof w.q);
            mem_free(expected);
            world_fini(&exact);
            world_fini(&w);
        }
}

/* A quantised group cannot say NaN or infinity in its integers: it becomes NaN as a whole, and its neighbours stay. */
static void a_bad_value_makes_its_quantised_group_nan_and_no_other(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t k = 3; k < n_kv_dtypes; k++)
            for (uint32_t i = 0; i < COUNT_OF(bad); i++) {
                struct world w;
                float x[D];
                struct error e;
                world_init(&w, &rig, &setups[0], kv_dtypes[k], 400);
                w.x[1][5] = bad[i];
                acts_put(w.d, w.in, 1, w.x[1]);
                run(&w);
                for (uint32_t row = 0; row < 3; row++)
                    for (uint32_t h = 0; h < 2 * G; h++) {
                        assert_ok(e, dequant_row(kv_dtypes[k], cached(&w, row, h % G, h >= G), x, D, &e));
                        for (uint32_t j = 0; j < D; j++)
                            assert_true(row == 1 ? isnan(x[j]) : isfinite(x[j]));
                    }
                world_fini(&w);
            }
}

static void blocks_are_copied_in_order_within_and_between_caches(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 2, 1);
        unsigned char a[5][48], b[3][48];
        struct kv_cache from = {.blocks = a[0], .n_blocks = 5, .block_tokens = 16, .block_bytes = 48};
        struct kv_cache to = {.blocks = b[0], .n_blocks = 3, .block_tokens = 16, .block_bytes = 48};
        for (int i = 0; i < 5; i++)
            memset(a[i], i, 48);
        memset(b, 0xee, sizeof b);
        rig.ops->copy_blocks(
            d, &(struct copy_blocks_args){
                   .from = &from, .to = &to, .src = (const uint32_t[]){4, 1}, .dst = (const uint32_t[]){0, 2}, .n = 2});
        assert_true(b[0][0] == 4 && b[0][47] == 4 && b[1][0] == 0xee && b[1][47] == 0xee && b[2][0] == 1);
        rig.ops->copy_blocks(d, &(struct copy_blocks_args){.from = &from,
                                    .to = &from,
                                    .src = (const uint32_t[]){0, 1, 3},
                                    .dst = (const uint32_t[]){1, 2, 3},
                                    .n = 3});
        assert_true(a[1][0] == 0 && a[2][0] == 0 && a[2][47] == 0 && a[3][0] == 3 && a[4][0] == 4);
        rig.ops->dev_close(d);
    }
}

static void blocks_go_to_the_host_and_come_back(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 2, 1);
        unsigned char a[3][48];
        const struct kv_cache kv = {.blocks = a[0], .n_blocks = 3, .block_tokens = 16, .block_bytes = 48};
        unsigned char *host = rig.ops->host_new(d, (size_t)4 * 48);
        assert_non_null(host);
        for (int i = 0; i < 3; i++)
            memset(a[i], i + 1, 48);
        struct move_blocks_args m = {.kv = &kv,
            .host = host,
            .src = (const uint32_t[]){2, 0},
            .dst = (const uint32_t[]){3, 1},
            .n = 2,
            .is_out = true,
            .waits = true};
        rig.ops->move_blocks(d, &m);
        assert_true(host[0] == 0 && host[48] == 1 && host[95] == 1 && host[96] == 0 && host[144] == 3);
        m.src = (const uint32_t[]){3, 1};
        m.dst = (const uint32_t[]){0, 1};
        m.is_out = false;
        rig.ops->move_blocks(d, &m);
        assert_true(a[0][0] == 3 && a[0][47] == 3 && a[1][0] == 1 && a[1][47] == 1 && a[2][0] == 3);
        rig.ops->host_free(d, host);
        rig.ops->dev_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_keys_and_values_follow_the_formula),
        cmocka_unit_test(the_cache_takes_rounded_rows_at_their_slots_and_nothing_else),
        cmocka_unit_test(a_bad_value_makes_its_quantised_group_nan_and_no_other),
        cmocka_unit_test(blocks_are_copied_in_order_within_and_between_caches),
        cmocka_unit_test(blocks_go_to_the_host_and_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
