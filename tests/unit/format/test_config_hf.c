/* Hyper-parameters out of config.json: each family as its publishers write it (shapes shortened), and bad values. */
#include "format/format_int.h"
#include "format/model_maker.h"

#include <math.h>

static struct error e;

static enum err read_texts(const char *config, const char *generation, struct model_config *c)
{
    json_t *doc, *gen = NULL;
    struct error mine = {0};
    assert_ok(mine, json_parse(str_of(config), &doc, &mine));
    if (generation != NULL)
        assert_ok(mine, json_parse(str_of(generation), &gen, &mine));
    model_config_init(c);
    const enum err err = config_from_json(doc, gen, c, &e);
    json_decref(doc);
    json_decref(gen);
    return err;
}

static struct model_config read_good(const char *config)
{
    struct model_config c;
    assert_ok(e, read_texts(config, NULL, &c));
    assert_true(c.arch_known);
    return c;
}

#define SHAPE                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":6,\"num_attention_heads\":4,"                  \
    "\"num_key_value_heads\":2,\"vocab_size\":1000,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,"

static void llama_has_its_rope_scaling(void **state)
{
    (void)state;
    const struct model_config c =
        read_good("{" SHAPE "\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"rope_theta\":500000.0,"
                  "\"rope_scaling\":{\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                  "\"original_max_position_embeddings\":2048,\"rope_type\":\"llama3\"},"
                  "\"bos_token_id\":10,\"eos_token_id\":[11,12,13],\"tie_word_embeddings\":true}");
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_string_equal(c.arch_name, "LlamaForCausalLM");
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope.dims, 16);
    assert_true(c.rope.base == 500000 && c.rope.base_local == 500000 && c.rope.factor == 32);
    assert_int_equal(c.rope.scaling, ROPE_LLAMA3);
    assert_int_equal(c.rope.original_context, 2048);
    assert_true(c.tied_embeddings && !c.qkv_bias && !c.qk_norm);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos_ids[2], 13);
    assert_int_equal(c.bos_id, 10);
    assert_true(fabs(c.query_scale - 0.25) < 1e-12);
    assert_int_equal(c.window, 0);
}

static void mistral_sees_a_window_in_every_layer(void **state)
{
    (void)state;
    const struct model_config c =
        read_good("{" SHAPE "\"model_type\":\"mistral\",\"sliding_window\":1024,\"head_dim\":32}");
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_int_equal(c.window, 1024);
    assert_int_equal(c.head_dim, 32);
    assert_true(c.layer_is_local[0] && c.layer_is_local[5]);
    assert_false(c.tied_embeddings);
}

static void qwen_states_a_window_it_does_not_use(void **state)
{
    (void)state;
    const struct model_config a = read_good("{" SHAPE "\"model_type\":\"qwen2\",\"sliding_window\":1024,"
                                            "\"use_sliding_window\":false,\"max_window_layers\":4}");
    assert_int_equal(a.window, 0);
    assert_false(a.layer_is_local[5]);
    assert_true(a.qkv_bias);
    const struct model_config b = read_good("{" SHAPE "\"model_type\":\"qwen2\",\"sliding_window\":1024,"
                                            "\"use_sliding_window\":true,\"max_window_layers\":4}");
    assert_int_equal(b.window, 1024);
    assert_true(!b.layer_is_local[3] && b.layer_is_local[4] && b.layer_is_local[5]);
    const struct model_config silent = read_good("{" SHAPE "\"model_type\":\"qwen2\",\"sliding_window\":1024}");
    assert_int_equal(silent.window, 0);
    const struct model_config q3 = read_good("{" SHAPE "\"model_type\":\"qwen3\",\"head_dim\":128,"
                                             "\"attention_bias\":false,\"rope_scaling\":{\"rope_type\":\"yarn\","
                                             "\"factor\":4.0,\"original_max_position_embeddings\":1024}}");
    assert_true(q3.qk_norm && !q3.qkv_bias);
    assert_int_equal(q3.rope.scaling, ROPE_YARN);
    assert_int_equal(q3.head_dim, 128);
}

static void mixtures_have_their_experts(void **state)
{
    (void)state;
    const struct model_config a = read_good("{" SHAPE "\"model_type\":\"mixtral\",\"num_local_experts\":8,"
                                            "\"num_experts_per_tok\":2,\"sliding_window\":null}");
    assert_int_equal(a.arch, ARCH_MIXTRAL);
    assert_int_equal(a.n_experts, 8);
    assert_int_equal(a.n_experts_used, 2);
    assert_int_equal(a.expert_ffn, 128);
    assert_true(a.norm_topk);
    const struct model_config b =
        read_good("{" SHAPE "\"model_type\":\"qwen3_moe\",\"num_experts\":128,"
                  "\"num_experts_per_tok\":8,\"moe_intermediate_size\":48,"
                  "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]}");
    assert_int_equal(b.arch, ARCH_QWEN3MOE);
    assert_int_equal(b.expert_ffn, 48);
    assert_true(b.norm_topk && b.qk_norm);
}

static void gemma_2_alternates_and_caps(void **state)
{
    (void)state;
    const struct model_config c = read_good("{" SHAPE "\"model_type\":\"gemma2\",\"head_dim\":16,"
                                            "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_act\":\"gelu\","
                                            "\"query_pre_attn_scalar\":144,\"sliding_window\":512,"
                                            "\"attn_logit_softcapping\":50.0,\"final_logit_softcapping\":30.0}");
    assert_int_equal(c.act, ACT_GELU_TANH);
    assert_true(c.tied_embeddings);
    assert_true(c.attn_softcap == 50 && c.final_softcap == 30);
    assert_true(fabs(c.query_scale - 1.0 / 12) < 1e-12);
    assert_true(c.layer_is_local[0] && !c.layer_is_local[1] && c.layer_is_local[2]);
}

static void gemma_3_reads_its_text_half_and_its_defaults(void **state)
{
    (void)state;
    const struct model_config c = read_good(
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],"
        "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
        "\"num_hidden_layers\":34,\"sliding_window\":1024,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}"
        "}");
    assert_int_equal(c.arch, ARCH_GEMMA3);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.vocab, 262208);
    assert_int_equal(c.n_eos, 2);
    assert_true(c.rope.base == 1e6 && c.rope.base_local == 1e4 && c.rope.factor == 8);
    assert_int_equal(c.rope.scaling, ROPE_LINEAR);
    assert_true(c.layer_is_local[0] && c.layer_is_local[4] && !c.layer_is_local[5] && !c.layer_is_local[11]);
    assert_true(c.qk_norm && c.attn_softcap == 0);
    const struct model_config n = read_good(
        "{" SHAPE "\"model_type\":\"gemma3_text\",\"head_dim\":16,\"sliding_window\":512,"
        "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
        "\"sliding_attention\",\"full_attention\"],\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\","
        "\"factor\":4.0,\"rope_theta\":2000000.0},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":5000."
        "0}}}");
    assert_true(!n.layer_is_local[0] && n.layer_is_local[1] && !n.layer_is_local[5]);
    assert_true(n.rope.base == 2e6 && n.rope.base_local == 5000 && n.rope.factor == 4);
}

static void phi_3_has_longrope_over_part_of_the_head(void **state)
{
    (void)state;
    const struct model_config c = read_good(
        "{" SHAPE "\"model_type\":\"phi3\",\"original_max_position_embeddings\":1024,\"partial_rotary_factor\":0.75,"
        "\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1.1,1.2,1.3,1.4,1.5],"
        "\"long_factor\":[2,2.1,2.2,2.3,2.4,2.5]}}");
    assert_int_equal(c.arch, ARCH_PHI3);
    assert_int_equal(c.rope.dims, 12);
    assert_int_equal(c.rope.scaling, ROPE_LONGROPE);
    assert_int_equal(c.rope.n_factors, 6);
    assert_true(c.rope.long_factor[5] == 2.5f && c.rope.short_factor[1] == 1.1f);
    assert_true(c.rope.factor == 4);
}

static void generation_settings_come_along(void **state)
{
    (void)state;
    struct model_config c;
    assert_ok(
        e, read_texts("{" SHAPE "\"model_type\":\"qwen3\",\"eos_token_id\":7}",
               "{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"do_sample\":true,\"eos_token_id\":[5,7]}", &c));
    assert_true(c.generation.temperature == 0.6 && c.generation.top_p == 0.95 && isnan(c.generation.min_p));
    assert_int_equal(c.generation.top_k, 20);
    assert_int_equal(c.generation.do_sample, 1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0], 5);
    assert_fails(
        e, ERR_INVALID, "'temperature'", read_texts("{" SHAPE "\"model_type\":\"qwen3\"}", "{\"temperature\":-1}", &c));
}

static void an_unknown_architecture_is_described_not_refused(void **state)
{
    (void)state;
    struct model_config c;
    assert_ok(
        e, read_texts("{\"model_type\":\"mamba\",\"architectures\":[\"MambaForCausalLM\"],\"hidden_size\":768,"
                      "\"num_hidden_layers\":\"many\",\"rope_scaling\":{\"rope_type\":\"odd\"},\"vocab_size\":50280}",
               NULL, &c));
    assert_false(c.arch_known);
    assert_int_equal(c.arch, ARCH_UNKNOWN);
    assert_string_equal(c.arch_name, "MambaForCausalLM");
    assert_int_equal(c.hidden, 768);
    assert_int_equal(c.vocab, 50280);
    assert_int_equal(c.n_layers, 0);
}

static void bad_values_are_refused_by_key(void **state)
{
    (void)state;
#define WITH(extra)  "{" SHAPE "\"model_type\":\"llama\"," extra "}"
#define GEMMA(extra) "{" SHAPE "\"model_type\":\"gemma2\",\"head_dim\":16," extra "}"
    static const struct {
        const char *config;
        enum err code;
        const char *part;
    } bads[] = {
        {"[]", ERR_FORMAT, "config.json must be a JSON object"},
        {"{}", ERR_INVALID, "'model_type' and 'architectures' are missing"},
        {"{\"model_type\":7}", ERR_INVALID, "'model_type'"},
        {"{\"model_type\":\"llama\"}", ERR_INVALID, "'max_position_embeddings' is missing"},
        {WITH("\"head_dim\":0"), ERR_INVALID, "'head_dim'"},
        {WITH("\"head_dim\":15"), ERR_INVALID, "'head_dim' is 15; it must be even"},
        {WITH("\"head_dim\":100000"), ERR_INVALID, "'head_dim'"},
        {WITH("\"head_dim\":-4"), ERR_INVALID, "'head_dim'"},
        {WITH("\"rope_theta\":0"), ERR_INVALID, "'rope_theta'"},
        {WITH("\"rope_theta\":\"x\""), ERR_INVALID, "'rope_theta'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}"), ERR_UNSUPPORTED, "'dynamic'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}"), ERR_INVALID, "'factor'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2}"), ERR_INVALID, "original context"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":2,\"original_max_position_embeddings\":64,"
              "\"low_freq_factor\":4,\"high_freq_factor\":4}"),
            ERR_INVALID, "'high_freq_factor'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[]}"), ERR_INVALID,
            "'long_factor'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[0]}"), ERR_INVALID,
            "'long_factor[0]'"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1],"
              "\"original_max_position_embeddings\":64}"),
            ERR_INVALID, "16 dimensions need 8"},
        {WITH("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1,1]}"), ERR_INVALID,
            "list 1 and 2 numbers"},
        {WITH("\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"), ERR_LIMIT, "lists 17 ids"},
        {WITH("\"partial_rotary_factor\":2"), ERR_INVALID, "'partial_rotary_factor'"},
        {WITH("\"eos_token_id\":1000"), ERR_INVALID, "'eos_token_id' is 1000"},
        {WITH("\"eos_token_id\":\"x\""), ERR_INVALID, "'eos_token_id'"},
        {WITH("\"bos_token_id\":5000"), ERR_INVALID, "'bos_token_id'"},
        {WITH("\"hidden_act\":\"relu\""), ERR_UNSUPPORTED, "'hidden_act' is 'relu'; quern does silu"},
        {WITH("\"mlp_bias\":true"), ERR_UNSUPPORTED, "'mlp_bias'"},
        {WITH("\"num_local_experts\":4"), ERR_UNSUPPORTED, "'num_experts'"},
        {WITH("\"layer_types\":[\"full_attention\"]"), ERR_INVALID, "'layer_types' has 1 entries"},
        {GEMMA("\"query_pre_attn_scalar\":0"), ERR_INVALID, "'query_pre_attn_scalar'"},
        {GEMMA("\"attn_logit_softcapping\":-1"), ERR_INVALID, "'attn_logit_softcapping'"},
        {"{" SHAPE "\"model_type\":\"qwen3_moe\",\"num_experts\":4,\"num_experts_per_tok\":5,"
         "\"moe_intermediate_size\":8}",
            ERR_INVALID, "'num_experts_per_tok' is 5"},
        {"{" SHAPE "\"model_type\":\"qwen3_moe\"}", ERR_INVALID, "'num_experts' is missing"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct model_config c;
        assert_fails(e, bads[i].code, bads[i].part, read_texts(bads[i].config, NULL, &c));
    }
}

/* Each number of the shape set to values it must not have; the answer names it. */
static void every_number_of_the_shape_is_checked(void **state)
{
    (void)state;
    static const char *const keys[] = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps"};
    static const char *const values[] = {"0", "-1", "4294967296", "\"7\"", "1e300", "[]"};
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        for (size_t v = 0; v < COUNT_OF(values); v++) {
            json_t *doc, *value;
            struct model_config c;
            assert_ok(e, json_parse(STR("{" SHAPE "\"model_type\":\"llama\"}"), &doc, &e));
            assert_ok(e, json_parse(str_of(values[v]), &value, &e));
            assert_int_equal(json_object_set_new(doc, keys[k], value), 0);
            char quoted[64];
            snprintf(quoted, sizeof quoted, "'%s'", keys[k]);
            model_config_init(&c);
            assert_fails(e, ERR_INVALID, quoted, config_from_json(doc, NULL, &c, &e));
            json_decref(doc);
        }
    }
}

static void heads_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    struct model_config c;
    assert_fails(e, ERR_INVALID, "'num_key_value_heads' is 3",
        read_texts(
            "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":1,\"num_hidden_layers\":1,"
            "\"num_attention_heads\":4,\"num_key_value_heads\":3,\"vocab_size\":9,\"max_position_embeddings\":9}",
            NULL, &c));
    assert_fails(e, ERR_INVALID, "'head_dim' is missing",
        read_texts("{\"model_type\":\"llama\",\"hidden_size\":65,\"intermediate_size\":1,\"num_hidden_layers\":1,"
                   "\"num_attention_heads\":4,\"vocab_size\":9,\"max_position_embeddings\":9}",
            NULL, &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_has_its_rope_scaling),
        cmocka_unit_test(mistral_sees_a_window_in_every_layer),
        cmocka_unit_test(qwen_states_a_window_it_does_not_use),
        cmocka_unit_test(mixtures_have_their_experts),
        cmocka_unit_test(gemma_2_alternates_and_caps),
        cmocka_unit_test(gemma_3_reads_its_text_half_and_its_defaults),
        cmocka_unit_test(phi_3_has_longrope_over_part_of_the_head),
        cmocka_unit_test(generation_settings_come_along),
        cmocka_unit_test(an_unknown_architecture_is_described_not_refused),
        cmocka_unit_test(bad_values_are_refused_by_key),
        cmocka_unit_test(every_number_of_the_shape_is_checked),
        cmocka_unit_test(heads_that_do_not_divide_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
