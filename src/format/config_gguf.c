/* Hyper-parameters out of GGUF metadata. The keys are "<architecture>.<name>"; what the converters leave out is known
 * from the family (the window pattern of Gemma, the query scale of its largest members) or seen in the tensors (biases,
 * norms, a missing output matrix). */
#include "format/format_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const key_names[KEY_COUNT] = {
    [KEY_CONTEXT] = "context_length",
    [KEY_LAYERS] = "block_count",
    [KEY_HIDDEN] = "embedding_length",
    [KEY_FFN] = "feed_forward_length",
    [KEY_HEADS] = "attention.head_count",
    [KEY_KV_HEADS] = "attention.head_count_kv",
    [KEY_HEAD_DIM] = "attention.key_length",
    [KEY_VOCAB] = "vocab_size",
    [KEY_EXPERTS] = "expert_count",
    [KEY_EXPERTS_USED] = "expert_used_count",
    [KEY_EXPERT_FFN] = "expert_feed_forward_length",
    [KEY_WINDOW] = "attention.sliding_window",
    [KEY_EPS] = "attention.layer_norm_rms_epsilon",
    [KEY_ATTN_SOFTCAP] = "attn_logit_softcapping",
    [KEY_FINAL_SOFTCAP] = "final_logit_softcapping",
    [KEY_ROPE_DIMS] = "rope.dimension_count",
    [KEY_BOS] = "tokenizer.ggml.bos_token_id",
    [KEY_EOS] = "tokenizer.ggml.eos_token_id",
    [KEY_PAD] = "tokenizer.ggml.padding_token_id",
};

struct gguf_config {
    const struct model_source *s;
    const struct gguf *g;
    const char *arch; /* prefix of the keys */
    struct config_keys keys;
    char key[CONFIG_KEY_MAX]; /* the last one made by arch_key */
};

static const char *arch_key(struct gguf_config *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return r->key;
}

static void make_keys(struct gguf_config *r)
{
    for (int i = 0; i < KEY_COUNT; i++) {
        const bool global = i == KEY_BOS || i == KEY_EOS || i == KEY_PAD;
        snprintf(r->keys.name[i], CONFIG_KEY_MAX, "%s", global ? key_names[i] : arch_key(r, key_names[i]));
    }
}

static bool has_tensor(const struct gguf_config *r, const char *name)
{
    return model_tensor_find(r->s, str_of(name)) != NULL;
}

/* A number, or an array of one number per layer that are all the same. */
static enum err get_layers_u64(
    const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, key);
    if (f == NULL || f->type != GGUF_ARRAY)
        return gguf_get_u64(g, key, min, max, out, e);
    struct gguf_array a = f->array;
    int64_t first, v;
    if (!gguf_next_i64(&a, &first))
        return FAIL(e, ERR_INVALID, "key '%s' must be a whole number or an array of them", key);
    while (gguf_next_i64(&a, &v))
        if (v != first)
            return FAIL(e, ERR_UNSUPPORTED, "key '%s' differs from layer to layer", key);
    if (first < 0 || (uint64_t)first < min || (uint64_t)first > max)
        return FAIL(e, ERR_INVALID, "key '%s' is %lld; it must be from %llu to %llu", key, (long long)first,
            (unsigned long long)min, (unsigned long long)max);
    *out = (uint64_t)first;
    return OK;
}

/* What a failed read means: an error for a known architecture, nothing for an unknown one (whose readers are given no
 * struct error to write to). */
static enum err judged(const struct model_config *c, enum err err)
{
    return c->arch_known ? err : OK;
}

static enum err read_numbers(struct gguf_config *r, struct model_config *c, struct error *e)
{
    for (size_t i = 0; i < n_config_wholes; i++) {
        const struct config_number *w = &config_wholes[i];
        uint64_t v = UINT64_MAX;
        TRY(judged(c, get_layers_u64(r->g, r->keys.name[w->key], w->min, w->max, &v, e)));
        const uint32_t v32 = (uint32_t)v;
        if (v != UINT64_MAX)
            memcpy((char *)c + w->field, &v32, sizeof v32);
    }
    for (size_t i = 0; i < n_config_reals; i++) {
        const struct config_real *f = &config_reals[i];
        double v = NAN;
        TRY(judged(c, gguf_get_f64(r->g, r->keys.name[f->key], f->min, f->max, &v, e)));
        if (!isnan(v))
            memcpy((char *)c + f->field, &v, sizeof v);
    }
    return OK;
}

static enum err read_vocab(struct gguf_config *r, struct model_config *c, struct error *e)
{
    const struct gguf_field *tokens = gguf_find(r->g, "tokenizer.ggml.tokens");
    if (tokens == NULL || tokens->type != GGUF_ARRAY)
        return OK;
    if (tokens->array.n == 0 || tokens->array.n > MODEL_VOCAB_MAX)
        return FAIL(e, ERR_INVALID, "key 'tokenizer.ggml.tokens' has %llu tokens; it must have from 1 to %u",
            (unsigned long long)tokens->array.n, MODEL_VOCAB_MAX);
    if (c->vocab == 0)
        c->vocab = (uint32_t)tokens->array.n;
    return OK;
}

static enum err read_token_ids(struct gguf_config *r, struct model_config *c, struct error *e)
{
    static const char *const ends[] = {
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    TRY(gguf_get_i64(r->g, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &c->bos_id, e));
    TRY(gguf_get_i64(r->g, "tokenizer.ggml.padding_token_id", 0, UINT32_MAX, &c->pad_id, e));
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        int64_t id = -1;
        TRY(gguf_get_i64(r->g, ends[i], 0, UINT32_MAX - 1, &id, e));
        if (id >= 0)
            model_config_add_eos(c, (uint64_t)id);
    }
    /* Some files state "none" as the largest number the type holds. */
    if (c->bos_id == UINT32_MAX)
        c->bos_id = -1;
    if (c->pad_id >= (int64_t)c->vocab)
        c->pad_id = -1;
    const struct gguf_field *f = gguf_find(r->g, "tokenizer.ggml.add_bos_token");
    bool add = false;
    TRY(gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &add, e));
    c->add_bos = f == NULL ? -1 : add;
    return OK;
}

static enum err read_rope_scaling(struct gguf_config *r, struct model_rope *rope, struct error *e)
{
    struct str type = {0};
    uint64_t original = 0;
    TRY(gguf_get_str(r->g, arch_key(r, "rope.scaling.type"), &type, e));
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scale_linear"), 1, 1e6, &rope->factor, e)); /* the old spelling */
    if (rope->factor > 1)
        rope->scaling = ROPE_LINEAR;
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scaling.factor"), 0, 1e6, &rope->factor, e));
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scaling.attn_factor"), 0, 1e6, &rope->attention_factor, e));
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scaling.yarn_attn_factor"), 0, 1e6, &rope->attention_factor, e));
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scaling.yarn_beta_fast"), 1e-3, 1e6, &rope->beta_fast, e));
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.scaling.yarn_beta_slow"), 1e-3, 1e6, &rope->beta_slow, e));
    TRY(gguf_get_u64(r->g, arch_key(r, "rope.scaling.original_context_length"), 0, MODEL_CONTEXT_MAX, &original, e));
    rope->original_context = (uint32_t)original;
    if (rope->factor < 1) /* written as 0 where there is none */
        rope->factor = 1;
    if (type.p == NULL)
        return OK;
    char shown[40];
    if (str_is(type, "none"))
        rope->scaling = ROPE_PLAIN;
    else if (str_is(type, "linear"))
        rope->scaling = ROPE_LINEAR;
    else if (str_is(type, "yarn"))
        rope->scaling = ROPE_YARN;
    else if (str_is(type, "longrope"))
        rope->scaling = ROPE_LONGROPE;
    else
        return FAIL(e, ERR_UNSUPPORTED, "key '%s' is '%s'; quern does none, linear, yarn and longrope",
            arch_key(r, "rope.scaling.type"), str_show(type, shown, sizeof shown));
    return OK;
}

static enum err read_rope(struct gguf_config *r, struct model_config *c, struct error *e)
{
    struct model_rope *rope = &c->rope;
    uint64_t dims = c->head_dim;
    TRY(gguf_get_u64(r->g, r->keys.name[KEY_ROPE_DIMS], 2, MODEL_HEAD_DIM_MAX, &dims, e));
    rope->dims = (uint32_t)dims;
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.freq_base"), 1, 1e12, &rope->base, e));
    rope->base_local = c->arch == ARCH_GEMMA3 ? 10000 : rope->base;
    TRY(gguf_get_f64(r->g, arch_key(r, "rope.freq_base_swa"), 1, 1e12, &rope->base_local, e));
    TRY(read_rope_scaling(r, rope, e));
    rope->freqs = model_tensor_find(r->s, STR("rope_freqs.weight"));
    rope->freqs_short = model_tensor_find(r->s, STR("rope_factors_short.weight"));
    rope->freqs_long = model_tensor_find(r->s, STR("rope_factors_long.weight"));
    if (rope->scaling == ROPE_PLAIN && rope->freqs != NULL)
        rope->scaling = ROPE_LLAMA3;
    if (rope->freqs_short != NULL && rope->freqs_long != NULL)
        rope->scaling = ROPE_LONGROPE;
    if (rope->scaling == ROPE_LONGROPE && rope->original_context > 0 && rope->factor <= 1)
        rope->factor = MAX(1.0, (double)c->context_length / rope->original_context);
    return OK;
}

/* Which layers see only a window. The key is a period, or a flag per layer; without it the family knows. */
static enum err read_window(struct gguf_config *r, struct model_config *c, struct error *e)
{
    uint64_t pattern = c->arch == ARCH_GEMMA2 ? 2 : c->arch == ARCH_GEMMA3 ? 6 : 0;
    const char *key = arch_key(r, "attention.sliding_window_pattern");
    const struct gguf_field *f = gguf_find(r->g, key);
    if (f == NULL || f->type != GGUF_ARRAY) {
        TRY(gguf_get_u64(r->g, key, 0, MODEL_LAYERS_MAX, &pattern, e));
        model_config_set_pattern(c, (uint32_t)pattern);
        return OK;
    }
    if (f->array.type != GGUF_BOOL || f->array.n != c->n_layers)
        return FAIL(e, ERR_INVALID, "key '%s' must have one bool for each of %u layers", key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_local[i] = c->window > 0 && f->array.p[i] != 0;
    return OK;
}

static enum err read_query_scale(struct gguf_config *r, struct model_config *c, struct error *e)
{
    const bool gemma_27b =
        (c->arch == ARCH_GEMMA2 && c->n_layers == 46) || (c->arch == ARCH_GEMMA3 && c->n_layers == 62);
    double scale = 0;
    TRY(gguf_get_f64(r->g, arch_key(r, "attention.scale"), 0, 1e3, &scale, e));
    if (scale > 0)
        c->query_scale = scale;
    else if (gemma_27b && c->n_heads > 0) /* these two divide by hidden / heads, not by the head size */
        c->query_scale = 1 / sqrt((double)c->hidden / c->n_heads);
    else
        c->query_scale = c->head_dim > 0 ? 1 / sqrt((double)c->head_dim) : 0;
    return OK;
}

static enum err read_sampling(const struct gguf *g, struct model_generation *out, struct error *e)
{
    TRY(gguf_get_f64(g, "general.sampling.temp", 0, 100, &out->temperature, e));
    TRY(gguf_get_f64(g, "general.sampling.top_p", 0, 1, &out->top_p, e));
    TRY(gguf_get_f64(g, "general.sampling.min_p", 0, 1, &out->min_p, e));
    TRY(gguf_get_f64(g, "general.sampling.penalty_repeat", 1e-3, 100, &out->repetition_penalty, e));
    return gguf_get_i64(g, "general.sampling.top_k", 0, INT32_MAX, &out->top_k, e);
}

static enum err check_value_length(struct gguf_config *r, const struct model_config *c, struct error *e)
{
    uint64_t n = c->head_dim;
    const char *key = arch_key(r, "attention.value_length");
    TRY(gguf_get_u64(r->g, key, 1, MODEL_HEAD_DIM_MAX, &n, e));
    if (n != c->head_dim)
        return FAIL(e, ERR_UNSUPPORTED, "key '%s' is %llu, other than the key length %u", key, (unsigned long long)n,
            c->head_dim);
    return OK;
}

static enum err read_all(struct gguf_config *r, struct model_config *c, struct error *e)
{
    TRY(read_numbers(r, c, e));
    TRY(judged(c, read_vocab(r, c, e)));
    model_config_derive(c);
    if (c->arch == ARCH_LLAMA && c->n_experts > 0)
        c->arch = ARCH_MIXTRAL;
    TRY(judged(c, check_value_length(r, c, e)));
    TRY(judged(c, read_rope(r, c, e)));
    TRY(judged(c, read_window(r, c, e)));
    TRY(judged(c, read_query_scale(r, c, e)));
    TRY(judged(c, read_token_ids(r, c, e)));
    TRY(judged(c, read_sampling(r->g, &c->generation, e)));
    c->norm_topk = c->n_experts > 0;
    TRY(judged(c, gguf_get_bool(r->g, arch_key(r, "expert_weights_norm"), &c->norm_topk, e)));
    c->act = c->arch == ARCH_GEMMA2 || c->arch == ARCH_GEMMA3 ? ACT_GELU_TANH : ACT_SILU;
    c->tied_embeddings = !has_tensor(r, "output.weight");
    c->qkv_bias = has_tensor(r, "blk.0.attn_q.bias") || has_tensor(r, "blk.0.attn_qkv.bias");
    c->qk_norm = has_tensor(r, "blk.0.attn_q_norm.weight");
    return OK;
}

enum err config_from_gguf(const struct model_source *s, struct model_config *c, struct error *e)
{
    struct gguf_config r = {.s = s, .g = model_source_gguf(s)};
    struct str arch = {0}, name = {0};
    TRY(gguf_get_str(r.g, "general.architecture", &arch, e));
    if (arch.p == NULL)
        return FAIL(e, ERR_INVALID, "key 'general.architecture' is missing");
    TRY(gguf_get_str(r.g, "general.name", &name, e));
    model_config_copy_name(c->arch_name, arch);
    model_config_copy_name(c->name, name);
    const struct arch_row *row = arch_of_gguf(arch);
    if (row != NULL) {
        c->arch = row->arch;
        c->arch_known = true;
    }
    char prefix[40]; /* of an unknown architecture only so much as any real name has */
    r.arch = str_show(arch, prefix, sizeof prefix);
    make_keys(&r);
    TRY(read_all(&r, c, c->arch_known ? e : NULL));
    return c->arch_known ? model_config_check(c, &r.keys, e) : OK;
}
