/* Hyper-parameters out of GGUF metadata: what the keys say, what the tensors say, what the family knows, bad values. */
#include "format/model_maker.h"

#include <math.h>

static struct error e;

/* A model being put together: fields and tensors are appended, the counts written at the end. */
struct recipe {
    struct buf fields, tensors;
    uint64_t n_fields, n_tensors, at;
    const char *arch;
};

static const char *key_of(const struct recipe *r, const char *key)
{
    static char full[128];
    if (strncmp(key, "general.", 8) == 0 || strncmp(key, "tokenizer.", 10) == 0)
        return key;
    snprintf(full, sizeof full, "%s.%s", r->arch, key);
    return full;
}

static void add_u32(struct recipe *r, const char *key, uint32_t v)
{
    mk_key_u32(&r->fields, key_of(r, key), v);
    r->n_fields++;
}

static void add_f32(struct recipe *r, const char *key, float v)
{
    mk_key_f32(&r->fields, key_of(r, key), v);
    r->n_fields++;
}

static void add_str(struct recipe *r, const char *key, const char *v)
{
    mk_key_str(&r->fields, key_of(r, key), v);
    r->n_fields++;
}

static void add_tensor(struct recipe *r, const char *name, uint64_t n)
{
    mk_tensor(&r->tensors, name, 1, &n, 0, r->at);
    r->at += (n * 4 + 31) / 32 * 32;
    r->n_tensors++;
}

/* The numbers every family has, except the one named by skip. */
static void begin(struct recipe *r, const char *arch, const char *skip)
{
    static const struct {
        const char *key;
        uint32_t v;
    } numbers[] = {{"context_length", 4096}, {"block_count", 6}, {"embedding_length", 64}, {"feed_forward_length", 128},
        {"attention.head_count", 4}, {"attention.head_count_kv", 2}, {"vocab_size", 1000}};
    *r = (struct recipe){.arch = arch};
    buf_init(&r->fields, MIB);
    buf_init(&r->tensors, MIB);
    add_str(r, "general.architecture", arch);
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (strcmp(numbers[i].key, skip) != 0)
            add_u32(r, numbers[i].key, numbers[i].v);
    if (strcmp(skip, "attention.layer_norm_rms_epsilon") != 0)
        add_f32(r, "attention.layer_norm_rms_epsilon", 1e-6f);
}

/* Write, open, read the record. Pointers of the record to tensors are gone after this. */
static enum err finish(struct recipe *r, struct model_config *c)
{
    struct buf b;
    struct model_source *s;
    struct error mine = {0};
    mk_start(&b, 3, r->n_tensors, r->n_fields);
    buf_add(&b, buf_str(&r->fields));
    buf_add(&b, buf_str(&r->tensors));
    mk_pad(&b, 32);
    mk_bytes(&b, r->at);
    assert_ok(mine, model_source_open(maker_put("c.gguf", buf_str(&b)), &s, &mine));
    const enum err err = model_config_read(s, c, &e);
    model_source_close(s);
    buf_fini(&b);
    buf_fini(&r->fields);
    buf_fini(&r->tensors);
    return err;
}

static void llama_reads_keys_and_tensors(void **state)
{
    (void)state;
    struct recipe r;
    struct model_config c;
    begin(&r, "llama", "");
    add_f32(&r, "rope.freq_base", 500000);
    add_u32(&r, "rope.dimension_count", 16);
    add_u32(&r, "tokenizer.ggml.bos_token_id", 1);
    add_u32(&r, "tokenizer.ggml.eos_token_id", 2);
    add_u32(&r, "tokenizer.ggml.eot_token_id", 9);
    add_f32(&r, "general.sampling.temp", 0.5f);
    add_tensor(&r, "rope_freqs.weight", 8);
    assert_ok(e, finish(&r, &c));
    assert_true(c.arch_known);
    assert_int_equal(c.arch, ARCH_LLAMA);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope.scaling, ROPE_LLAMA3);
    assert_true(c.rope.base == 500000 && c.tied_embeddings);
    assert_int_equal(c.bos_id, 1);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 9);
    assert_int_equal(c.add_bos, -1);
    assert_true(c.generation.temperature == 0.5);
    assert_true(fabs(c.query_scale - 0.25) < 1e-12);

    begin(&r, "llama", "");
    add_u32(&r, "expert_count", 8);
    add_u32(&r, "expert_used_count", 2);
    add_tensor(&r, "output.weight", 8);
    assert_ok(e, finish(&r, &c));
    assert_int_equal(c.arch, ARCH_MIXTRAL);
    assert_int_equal(c.expert_ffn, 128);
    assert_true(c.norm_topk && !c.tied_embeddings);
}

static void families_know_what_their_files_leave_out(void **state)
{
    (void)state;
    struct recipe r;
    struct model_config c;
    begin(&r, "gemma2", "");
    add_u32(&r, "attention.key_length", 32);
    add_u32(&r, "attention.value_length", 32);
    add_u32(&r, "attention.sliding_window", 512);
    add_f32(&r, "attn_logit_softcapping", 50);
    assert_ok(e, finish(&r, &c));
    assert_int_equal(c.act, ACT_GELU_TANH);
    assert_true(c.layer_is_local[0] && !c.layer_is_local[1] && c.attn_softcap == 50);

    begin(&r, "gemma3", "block_count");
    add_u32(&r, "block_count", 62);
    add_u32(&r, "attention.key_length", 128);
    add_u32(&r, "attention.value_length", 128);
    add_u32(&r, "attention.sliding_window", 512);
    add_f32(&r, "rope.freq_base", 1e6f);
    add_str(&r, "rope.scaling.type", "linear");
    add_f32(&r, "rope.scaling.factor", 8);
    add_tensor(&r, "blk.0.attn_q_norm.weight", 128);
    assert_ok(e, finish(&r, &c));
    assert_true(c.layer_is_local[4] && !c.layer_is_local[5] && c.qk_norm);
    assert_true(c.rope.base == 1e6 && c.rope.base_local == 1e4 && c.rope.factor == 8);
    assert_true(fabs(c.query_scale - 0.25) < 1e-12); /* the 27B divides by hidden / heads */

    begin(&r, "phi3", "");
    add_u32(&r, "rope.dimension_count", 12);
    add_u32(&r, "rope.scaling.original_context_length", 1024);
    add_f32(&r, "rope.scaling.attn_factor", 1.25f);
    add_tensor(&r, "rope_factors_long.weight", 6);
    add_tensor(&r, "rope_factors_short.weight", 6);
    assert_ok(e, finish(&r, &c));
    assert_int_equal(c.rope.scaling, ROPE_LONGROPE);
    assert_true(c.rope.factor == 4 && c.rope.attention_factor == 1.25);

    begin(&r, "qwen3moe", "");
    add_u32(&r, "expert_count", 16);
    add_u32(&r, "expert_used_count", 4);
    add_u32(&r, "expert_feed_forward_length", 24);
    assert_ok(e, finish(&r, &c));
    assert_int_equal(c.arch, ARCH_QWEN3MOE);
    assert_int_equal(c.expert_ffn, 24);
}

static void one_number_per_layer_is_taken_when_all_are_equal(void **state)
{
    (void)state;
    struct recipe r;
    struct model_config c;
    for (uint32_t last = 2; last <= 4; last += 2) {
        begin(&r, "llama", "attention.head_count_kv");
        mk_key_array(&r.fields, "llama.attention.head_count_kv", GGUF_I32, 6);
        r.n_fields++;
        for (uint32_t i = 0; i < 6; i++)
            mk_u32(&r.fields, i < 5 ? 2 : last);
        if (last == 2) {
            assert_ok(e, finish(&r, &c));
            assert_int_equal(c.n_kv_heads, 2);
        } else
            assert_fails(e, ERR_UNSUPPORTED, "'llama.attention.head_count_kv' differs", finish(&r, &c));
    }
}

static void an_unknown_architecture_is_described_not_refused(void **state)
{
    (void)state;
    struct recipe r;
    struct model_config c;
    begin(&r, "rwkv7", "block_count");
    add_str(&r, "block_count", "lots");
    add_str(&r, "rope.scaling.type", "odd");
    assert_ok(e, finish(&r, &c));
    assert_false(c.arch_known);
    assert_string_equal(c.arch_name, "rwkv7");
    assert_int_equal(c.hidden, 64);
    assert_int_equal(c.n_layers, 0);
    begin(&r, "", "");
    assert_ok(e, finish(&r, &c));
    assert_false(c.arch_known);
}

static void every_number_is_checked_and_named(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool optional;
    } keys[] = {{"context_length", false}, {"block_count", false}, {"embedding_length", false},
        {"feed_forward_length", false}, {"attention.head_count", false}, {"attention.head_count_kv", true},
        {"vocab_size", false}, {"attention.layer_norm_rms_epsilon", false}};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        struct recipe r;
        struct model_config c;
        char quoted[64];
        snprintf(quoted, sizeof quoted, "'llama.%s'", keys[i].key);
        begin(&r, "llama", keys[i].key);
        if (keys[i].optional)
            assert_ok(e, finish(&r, &c));
        else
            assert_fails(e, ERR_INVALID, quoted, finish(&r, &c));
        begin(&r, "llama", keys[i].key);
        add_u32(&r, keys[i].key, 0);
        assert_fails(e, ERR_INVALID, quoted, finish(&r, &c));
        begin(&r, "llama", keys[i].key);
        add_u32(&r, keys[i].key, UINT32_MAX);
        assert_fails(e, ERR_INVALID, quoted, finish(&r, &c));
        begin(&r, "llama", keys[i].key);
        add_str(&r, keys[i].key, "7");
        assert_fails(e, ERR_INVALID, quoted, finish(&r, &c));
        begin(&r, "llama", keys[i].key);
        add_f32(&r, keys[i].key, NAN);
        assert_fails(e, ERR_INVALID, quoted, finish(&r, &c));
    }
}

static void bad_values_are_refused_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *key;
        uint32_t whole;
        float real;       /* used when whole is 0 and text NULL */
        const char *text; /* used when given */
        enum err code;
        const char *part;
    } bads[] = {
        {"llama", "attention.key_length", 15, 0, NULL, ERR_INVALID, "'llama.attention.key_length' is 15"},
        {"llama", "rope.freq_base", 0, NAN, NULL, ERR_INVALID, "'llama.rope.freq_base' is nan"},
        {"llama", "rope.freq_base", 0, INFINITY, NULL, ERR_INVALID, "'llama.rope.freq_base'"},
        {"llama", "rope.dimension_count", 18, 0, NULL, ERR_INVALID, "'llama.rope.dimension_count' gives 18"},
        {"llama", "rope.dimension_count", 7, 0, NULL, ERR_INVALID, "'llama.rope.dimension_count' gives 7"},
        {"llama", "rope.scaling.type", 0, 0, "spiral", ERR_UNSUPPORTED, "'spiral'; quern does none, linear,"},
        {"llama", "rope.scaling.type", 0, 0, "yarn", ERR_INVALID, "original context"},
        {"llama", "rope.scaling.factor", 0, NAN, NULL, ERR_INVALID, "'llama.rope.scaling.factor'"},
        {"llama", "attention.value_length", 8, 0, NULL, ERR_UNSUPPORTED, "'llama.attention.value_length' is 8"},
        {"llama", "attention.sliding_window", 0, 0, "x", ERR_INVALID, "'llama.attention.sliding_window'"},
        {"qwen2", "expert_count", 4, 0, NULL, ERR_UNSUPPORTED, "'qwen2.expert_count' is 4"},
        {"qwen3moe", "expert_used_count", 4, 0, NULL, ERR_INVALID, "'qwen3moe.expert_count' is missing"},
        {"gemma2", "final_logit_softcapping", 0, NAN, NULL, ERR_INVALID, "'gemma2.final_logit_softcapping'"},
        {"llama", "tokenizer.ggml.eos_token_id", 1000, 0, NULL, ERR_INVALID, "'tokenizer.ggml.eos_token_id' is 1000"},
        {"llama", "tokenizer.ggml.bos_token_id", 1000, 0, NULL, ERR_INVALID, "'tokenizer.ggml.bos_token_id' is 1000"},
        {"llama", "tokenizer.ggml.add_bos_token", 1, 0, NULL, ERR_INVALID, "'tokenizer.ggml.add_bos_token'"},
    };
    for (size_t i = 0; i < COUNT_OF(bads); i++) {
        struct recipe r;
        struct model_config c;
        begin(&r, bads[i].arch, "");
        if (bads[i].text != NULL)
            add_str(&r, bads[i].key, bads[i].text);
        else if (bads[i].whole != 0)
            add_u32(&r, bads[i].key, bads[i].whole);
        else
            add_f32(&r, bads[i].key, bads[i].real);
        assert_fails(e, bads[i].code, bads[i].part, finish(&r, &c));
    }
}

static void rope_tensors_of_another_length_are_refused(void **state)
{
    (void)state;
    struct recipe r;
    struct model_config c;
    begin(&r, "llama", "");
    add_tensor(&r, "rope_freqs.weight", 7);
    assert_fails(e, ERR_INVALID, "tensor 'rope_freqs.weight' must have 8", finish(&r, &c));
}

static void a_file_without_architecture_is_refused(void **state)
{
    (void)state;
    struct model_source *s;
    struct model_config c;
    struct buf b;
    mk_start(&b, 3, 0, 0);
    assert_ok(e, model_source_open(maker_put("none.gguf", buf_str(&b)), &s, &e));
    assert_fails(e, ERR_INVALID, "'general.architecture' is missing", model_config_read(s, &c, &e));
    model_source_close(s);
    buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_reads_keys_and_tensors),
        cmocka_unit_test(families_know_what_their_files_leave_out),
        cmocka_unit_test(one_number_per_layer_is_taken_when_all_are_equal),
        cmocka_unit_test(an_unknown_architecture_is_described_not_refused),
        cmocka_unit_test(every_number_is_checked_and_named),
        cmocka_unit_test(bad_values_are_refused_by_key),
        cmocka_unit_test(rope_tensors_of_another_length_are_refused),
        cmocka_unit_test(a_file_without_architecture_is_refused),
    };
    return cmocka_run_group_tests(tests, maker_setup, maker_teardown);
}
