/* Dummy weights: every named shape binds in many types, seeds reproduce bits, and a decoder refuses what it cannot do.
 */
#include "base/mem.h"
#include "model/fit.h"
#include "model/testing_model.h"

#include <math.h>

static const int32_t ids[] = {1, 500, 7, 7, 300, 42, 99, 511};
#define N_IDS COUNT_OF(ids)
#define VOCAB 512u

static void run_dummy(const char *name, enum dtype dtype, uint64_t seed, float *out)
{
    struct error e;
    struct rig r;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    assert_non_null(cfg);
    rig_small_config(name, cfg);
    assert_ok(e, rig_open_dummy(&r, cfg, dtype, seed, &e));
    rig_run(&r, ids, N_IDS, out);
    rig_close(&r);
    mem_free(cfg);
}

static void every_shape_binds_and_gives_finite_logits(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {
        DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_MXFP4};
    static float logits[N_IDS * VOCAB];
    size_t n;
    const char *const *names = dummy_names(&n);
    assert_int_equal(n, 6);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < COUNT_OF(dtypes); j++) {
            run_dummy(names[i], dtypes[j], 1, logits);
            double sum = 0;
            for (size_t k = 0; k < COUNT_OF(logits); k++) {
                if (!isfinite(logits[k]))
                    fail_msg("%s in %s: logit %zu is not finite", names[i], dtype_name(dtypes[j]), k);
                sum += (double)logits[k] * (double)logits[k];
            }
            const double rms = sqrt(sum / COUNT_OF(logits));
            if (!(rms > 0.05 && rms < 50)) /* neither dead nor exploding */
                fail_msg("%s in %s: logits of size %g", names[i], dtype_name(dtypes[j]), rms);
        }
}

static void seed_decides_every_bit(void **state)
{
    (void)state;
    static float a[N_IDS * VOCAB], b[N_IDS * VOCAB];
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_Q4_K};
    for (size_t j = 0; j < COUNT_OF(dtypes); j++) {
        run_dummy("qwen3-30b-a3b", dtypes[j], 7, a);
        run_dummy("qwen3-30b-a3b", dtypes[j], 7, b);
        assert_memory_equal(a, b, sizeof a);
        run_dummy("qwen3-30b-a3b", dtypes[j], 8, b);
        assert_memory_not_equal(a, b, sizeof a);
    }
}

static void shapes_are_those_of_the_models(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double billions; /* parameters, as published */
    } known[] = {{"smollm2-135m", 0.135}, {"qwen3-0.6b", 0.596}, {"llama-3.2-1b", 1.236}, {"llama-3.1-8b", 8.03},
        {"mixtral-8x7b", 46.7}, {"qwen3-30b-a3b", 30.5}};
    struct error e;
    struct model_config *c = mem_zalloc(sizeof *c);
    assert_non_null(c);
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        assert_ok(e, dummy_config(known[i].name, c, &e));
        const double heads = 2.0 * (c->n_heads + c->n_kv_heads) * c->head_dim * c->hidden;
        const double ffn = 3.0 * c->hidden * (c->n_experts > 0 ? (double)c->n_experts * c->expert_ffn : c->ffn);
        const double router = (double)c->n_experts * c->hidden;
        const double words = (double)c->vocab * c->hidden * (c->tied_embeddings ? 1 : 2);
        const double billions = (c->n_layers * (heads + ffn + router) + words) / 1e9;
        if (fabs(billions / known[i].billions - 1) > 0.01)
            fail_msg("%s has %.3f billion parameters", known[i].name, billions);
    }
    assert_fails(e, ERR_NOT_FOUND, "llama-3.1-8b", dummy_config("llama-9", c, &e));
    mem_free(c);
}

static void type_that_holds_no_weights_is_refused(void **state)
{
    (void)state;
    struct error e;
    struct dummy *d;
    assert_fails(e, ERR_INVALID, "I32", dummy_new(DTYPE_I32, 1, &d, &e));
    assert_null(d);
}

static void decoder_refuses_what_it_cannot_hold(void **state)
{
    (void)state;
    struct error e;
    struct rig r;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    assert_non_null(cfg);
    rig_small_config("mixtral-8x7b", cfg);
    cfg->n_experts = cfg->n_experts_used = MODEL_EXPERTS_USED_MAX + 1;
    assert_fails(e, ERR_LIMIT, "65", rig_open_dummy(&r, cfg, DTYPE_F16, 1, &e));
    rig_close(&r);
    rig_small_config("llama-3.2-1b", cfg);
    cfg->arch_known = false;
    snprintf(cfg->arch_name, sizeof cfg->arch_name, "strange");
    assert_fails(e, ERR_UNSUPPORTED, "'strange'", rig_open_dummy(&r, cfg, DTYPE_F16, 1, &e));
    rig_close(&r);
    mem_free(cfg);
}

static void step_over_the_decoders_size_is_an_error(void **state)
{
    (void)state;
    struct error e;
    struct rig r;
    const struct decoder_options o = rig_options(64);
    rig_open_tiny(&r, &o);
    uint32_t zero[32] = {0};
    int32_t tokens[32] = {0};
    const struct batch_seq one = {.n_rows = 1, .n_kv = 1};
    struct step s = {.n_rows = 1,
        .n_seqs = 1,
        .n_out = 1,
        .n_table = 1,
        .token = tokens,
        .pos = zero,
        .seq = zero,
        .seqs = &one,
        .table = zero,
        .kv_slot = zero,
        .out_row = zero};
    assert_ok(e, decoder_step(r.d, &s, &e));
    s.n_rows = 17;
    assert_fails(e, ERR_INTERNAL, "17 rows", decoder_step(r.d, &s, &e));
    s.n_rows = 1;
    s.n_seqs = 2;
    assert_fails(e, ERR_INTERNAL, "2 sequences", decoder_step(r.d, &s, &e));
    s.n_seqs = 1;
    tokens[0] = (int32_t)decoder_vocab(r.d);
    assert_fails(e, ERR_INTERNAL, "row 0", decoder_step(r.d, &s, &e));
    tokens[0] = 0;
    zero[0] = 64;
    assert_fails(e, ERR_INTERNAL, "position 64", decoder_step(r.d, &s, &e));
    rig_close(&r);
}

static void fp8_counts_a_byte_an_element_where_it_will_be_made(void **state)
{
    (void)state;
    struct error e;
    struct fit plain, f8;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    assert_non_null(cfg);
    assert_ok(e, dummy_config("llama-3.1-8b", cfg, &e));
    struct ops can = {.name = "card", .has_fp8 = true}, cannot = {.name = "host"};
    struct fit_wants w = {.kv_dtype = DTYPE_F8_E4M3, .dummy_dtype = DTYPE_BF16, .ops = &can, .rows = 1, .out_rows = 1};
    assert_ok(e, fit_measure(&plain, cfg, NULL, &w, &e));
    w.fp8 = true;
    assert_ok(e, fit_measure(&f8, cfg, NULL, &w, &e));
    assert_int_equal(f8.work_dtype, DTYPE_F8_E4M3);
    assert_int_equal(f8.main_dtype, DTYPE_BF16);
    assert_int_equal(plain.kv_token_bytes, 2 * 32 * 8 * 128);
    const uint64_t table = (uint64_t)2 * 128256 * 4096; /* of the embeddings, which stay as they are */
    const uint64_t rows = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096) + 128256;
    assert_int_equal(f8.weight_bytes, (plain.weight_bytes - table) / 2 + table + rows * sizeof(float));
    w.ops = &cannot;
    assert_fails(e, ERR_UNSUPPORTED, "host cannot", fit_measure(&f8, cfg, NULL, &w, &e));
    w.fp8 = false;
    w.dummy_dtype = DTYPE_F8_E4M3;
    assert_ok(e, fit_measure(&f8, cfg, NULL, &w, &e)); /* a checkpoint in F8 */
    assert_int_equal(f8.work_dtype, DTYPE_BF16);
    assert_int_equal(f8.active_bytes, plain.active_bytes);
    w.fp8 = true;
    w.dummy_dtype = DTYPE_Q4_K;
    assert_fails(e, ERR_UNSUPPORTED, "mostly Q4_K", fit_measure(&f8, cfg, NULL, &w, &e));
    mem_free(cfg);
}

static void a_cache_is_bf16_where_a_device_likes_it_beside_such_weights(void **state)
{
    (void)state;
    struct error e;
    struct fit f;
    struct model_config *cfg = mem_zalloc(sizeof *cfg);
    assert_non_null(cfg);
    assert_ok(e, dummy_config("llama-3.1-8b", cfg, &e));
    const struct ops likes = {.name = "card", .has_fp8 = true, .likes_bf16 = true}, host = {.name = "host"};
    const struct {
        const struct ops *ops;
        bool fp8;
        enum dtype weights, asked, got;
    } cases[] = {{&likes, false, DTYPE_BF16, FIT_KV_AUTO, DTYPE_BF16},
        {&likes, true, DTYPE_BF16, FIT_KV_AUTO, DTYPE_BF16}, {&likes, false, DTYPE_F8_E4M3, FIT_KV_AUTO, DTYPE_BF16},
        {&likes, false, DTYPE_F16, FIT_KV_AUTO, DTYPE_F16}, {&likes, false, DTYPE_Q4_K, FIT_KV_AUTO, DTYPE_F16},
        {&likes, false, DTYPE_BF16, DTYPE_F16, DTYPE_F16}, {&likes, false, DTYPE_Q8_0, DTYPE_BF16, DTYPE_BF16},
        {&host, false, DTYPE_BF16, FIT_KV_AUTO, DTYPE_F16}, {NULL, false, DTYPE_BF16, FIT_KV_AUTO, DTYPE_F16}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct fit_wants w = {.kv_dtype = cases[i].asked,
            .dummy_dtype = cases[i].weights,
            .fp8 = cases[i].fp8,
            .ops = cases[i].ops,
            .rows = 1,
            .out_rows = 1};
        assert_ok(e, fit_measure(&f, cfg, NULL, &w, &e));
        assert_int_equal(f.kv_dtype, cases[i].got);
    }
    mem_free(cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_binds_and_gives_finite_logits),
        cmocka_unit_test(seed_decides_every_bit),
        cmocka_unit_test(shapes_are_those_of_the_models),
        cmocka_unit_test(type_that_holds_no_weights_is_refused),
        cmocka_unit_test(decoder_refuses_what_it_cannot_hold),
        cmocka_unit_test(step_over_the_decoders_size_is_an_error),
        cmocka_unit_test(fp8_counts_a_byte_an_element_where_it_will_be_made),
        cmocka_unit_test(a_cache_is_bf16_where_a_device_likes_it_beside_such_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
