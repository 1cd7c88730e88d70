/* Law 1, held by memcmp: the value of a row depends on that row's inputs alone. For every variant in the table, op,
 * weight dtype and KV dtype, a row in random company has the bits it has alone (the checks are in testing_rows.c and
 * testing_seqs.c; that they can fail is shown in test_violations.c). A new variant is covered by being in the table. */
#include "testing_cpu.h"

#include "base/mem.h"

#include <pthread.h>

static void expect_same(const char *variant, const char *what, enum dtype weight, enum dtype kv, struct verdict v)
{
    assert_true(v.rows > 0 && v.rows_in_batch_max > 32);
    if (v.differ > 0)
        fail_msg("%s: %s, %s weights, %s cache: %llu of %llu rows differ in company", variant, what, dtype_name(weight),
            dtype_name(kv), (unsigned long long)v.differ, (unsigned long long)v.rows);
}

static void a_row_in_company_equals_the_row_alone_for_every_op_and_dtype(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t rows = 0;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t += STRIDE)
            for (enum row_op op = 0; op < ROW_OPS; op++) {
                const struct row_check c = {.op = op, .dtype = weight_dtypes[t], .rounds = ROUNDS, .seed = 1 + t + op};
                const struct verdict v = check_rows(&rig, &c);
                expect_same(rig.ops->name, row_op_name(op), c.dtype, DTYPE_F32, v);
                rows += v.rows;
            }
    print_message("%llu rows compared\n", (unsigned long long)rows);
}

static void a_token_in_company_equals_the_token_alone_for_every_weight_dtype(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t += STRIDE) {
            const struct seq_check c = {.weight = weight_dtypes[t],
                .kv = kv_dtypes[t % n_kv_dtypes],
                .n_heads = 4,
                .n_kv_heads = 2,
                .head_dim = 32,
                .rope = t % 2 ? ROPE_PAIRS : ROPE_HALVES,
                .rope_dims = 32,
                .qk_norm = t % 3 == 0,
                .len = 70,
                .rounds = ROUNDS,
                .seed = 100 + t};
            expect_same(rig.ops->name, "qkv and attend", c.weight, c.kv, check_seqs(&rig, &c));
        }
}

static void a_token_in_company_equals_the_token_alone_for_every_cache_and_shape(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_heads, n_kv_heads, head_dim, window, rope_dims;
        float cap;
    } shapes[] = {
        {4, 2, 32, 0, 32, 0.0f}, {8, 1, 32, 0, 32, 0.0f}, /* all heads share one */
        {2, 2, 64, 40, 16, 50.0f}, /* none do; a window below a tile, a soft cap, partial rotary */
        {6, 2, 32, 100, 0, 0.0f},  /* a window over a tile, no rotary */
        {3, 3, 96, 1, 96, 0.0f},   /* a token sees itself only */
    };
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t n = 0; n < n_kv_dtypes * COUNT_OF(shapes); n += STRIDE) {
            const uint32_t k = n / COUNT_OF(shapes), i = n % COUNT_OF(shapes);
            const struct seq_check c = {.weight = DTYPE_F32,
                .kv = kv_dtypes[k],
                .hidden = 21,
                .n_heads = shapes[i].n_heads,
                .n_kv_heads = shapes[i].n_kv_heads,
                .head_dim = shapes[i].head_dim,
                .window = shapes[i].window,
                .cap = shapes[i].cap,
                .rope = shapes[i].rope_dims > 0 ? ROPE_HALVES : ROPE_NONE,
                .rope_dims = shapes[i].rope_dims,
                .len = SHORT(150),
                .rounds = ROUNDS,
                .seed = 500 + k * 10 + i};
            expect_same(rig.ops->name, "qkv and attend", c.weight, c.kv, check_seqs(&rig, &c));
        }
}

/* Heads that are not whole groups, of activations or of the cache; and more query heads per kv head than one tile
 * carries. */
static void odd_heads_and_very_shared_heads_keep_the_law(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct seq_check c = {.weight = DTYPE_F16,
            .kv = DTYPE_F16,
            .hidden = 21,
            .n_heads = 8,
            .n_kv_heads = 2,
            .head_dim = 20,
            .rope = ROPE_PAIRS,
            .rope_dims = 10,
            .len = SHORT(140),
            .rounds = ROUNDS,
            .seed = 900};
        expect_same(rig.ops->name, "heads of 20", c.weight, c.kv, check_seqs(&rig, &c));
        c.kv = DTYPE_Q8_0;
        c.head_dim = 80;
        expect_same(rig.ops->name, "heads of 80", c.weight, c.kv, check_seqs(&rig, &c));
        c.kv = DTYPE_F16;
        c.n_heads = 70;
        c.n_kv_heads = 1;
        c.head_dim = 8;
        c.rope_dims = 8;
        c.len = 80;
        expect_same(rig.ops->name, "70 heads on one", c.weight, c.kv, check_seqs(&rig, &c));
    }
}

/* The whole check again from a thread that did not open the device: denormals must still be flushed alike. */
struct driver {
    const struct rig *rig;
    struct dev *d;
    const struct matrix *w;
    struct acts *in;
    float *x, *scratch;
};

static void *drive(void *arg)
{
    const struct driver *v = arg;
    const struct batch b = {.n_rows = 1};
    v->rig->ops->project(
        v->d, &b, &(struct project_args){.in = v->in, .w = &v->w->w, .scratch = v->scratch, .x = v->x});
    return NULL;
}

static void denormals_are_flushed_whichever_thread_drives_the_device(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct driver v = {.rig = &rig, .d = rig_open(&rig, 1, 1)};
        struct matrix w;
        float row[64];
        float results[2][1024];
        matrix_make(&w, &rig, v.d, DTYPE_F32, 1, 1024, 64, 3, false);
        fill_row(row, 64, ROW_TINY, 4); /* products with weights of 0.2 are denormal */
        for (uint32_t i = 0; i < 64; i++)
            row[i] *= 0.1f;
        v.w = &w;
        v.in = acts_make(&rig, v.d, 1, 64, ACT_F32);
        v.scratch = room(sizeof(float) * 1024);
        acts_put(v.d, v.in, 0, row);
        for (int other = 0; other < 2; other++) {
            v.x = results[other];
            memset(v.x, 0, sizeof results[other]);
            pthread_t thread;
            if (other) {
                assert_int_equal(pthread_create(&thread, NULL, drive, &v), 0);
                assert_int_equal(pthread_join(thread, NULL), 0);
            } else {
                drive(&v);
            }
        }
        assert_memory_equal(results[0], results[1], sizeof results[0]);
        matrix_drop(&w, &rig, v.d);
        rig.ops->acts_free(v.d, v.in);
        mem_free(v.scratch);
        rig.ops->dev_close(v.d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_in_company_equals_the_row_alone_for_every_op_and_dtype),
        cmocka_unit_test(a_token_in_company_equals_the_token_alone_for_every_weight_dtype),
        cmocka_unit_test(a_token_in_company_equals_the_token_alone_for_every_cache_and_shape),
        cmocka_unit_test(odd_heads_and_very_shared_heads_keep_the_law),
        cmocka_unit_test(denormals_are_flushed_whichever_thread_drives_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
