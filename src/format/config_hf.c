/* Hyper-parameters out of config.json, generation_config.json and tokenizer_config.json. A multimodal model keeps its
 * language half in "text_config"; ids and the tying of embeddings may then stand outside it. Files often leave out what
 * equals the default of the class that wrote them, so the families' defaults are part of the format and listed here. */
#include "format/format_int.h"

#include <math.h>
#include <string.h>

static const struct config_keys hf_keys = {.name = {
                                               [KEY_CONTEXT] = "max_position_embeddings",
                                               [KEY_LAYERS] = "num_hidden_layers",
                                               [KEY_HIDDEN] = "hidden_size",
                                               [KEY_FFN] = "intermediate_size",
                                               [KEY_HEADS] = "num_attention_heads",
                                               [KEY_KV_HEADS] = "num_key_value_heads",
                                               [KEY_HEAD_DIM] = "head_dim",
                                               [KEY_VOCAB] = "vocab_size",
                                               [KEY_EXPERTS] = "num_experts",
                                               [KEY_EXPERTS_USED] = "num_experts_per_tok",
                                               [KEY_EXPERT_FFN] = "moe_intermediate_size",
                                               [KEY_WINDOW] = "sliding_window",
                                               [KEY_EPS] = "rms_norm_eps",
                                               [KEY_ATTN_SOFTCAP] = "attn_logit_softcapping",
                                               [KEY_FINAL_SOFTCAP] = "final_logit_softcapping",
                                               [KEY_BOS] = "bos_token_id",
                                               [KEY_EOS] = "eos_token_id",
                                               [KEY_PAD] = "pad_token_id",
                                               [KEY_ROPE_DIMS] = "partial_rotary_factor",
                                           }};

static bool is_gemma(const struct model_config *c)
{
    return c->arch == ARCH_GEMMA2 || c->arch == ARCH_GEMMA3;
}

static void set_family_defaults(struct model_config *c)
{
    c->norm_eps = 1e-6;
    switch (c->arch) {
    case ARCH_MIXTRAL:
        c->n_experts = 8;
        c->n_experts_used = 2;
        c->rope.base = 1e6;
        c->norm_topk = true;
        break;
    case ARCH_GEMMA2:
        c->n_heads = 8;
        c->n_kv_heads = 4;
        c->head_dim = 256;
        c->window = 4096;
        c->attn_softcap = 50;
        c->final_softcap = 30;
        break;
    case ARCH_GEMMA3:
        c->n_heads = 8;
        c->n_kv_heads = 4;
        c->head_dim = 256;
        c->vocab = 262208;
        c->context_length = 131072;
        c->window = 4096;
        c->rope.base = 1e6;
        c->qk_norm = true;
        break;
    case ARCH_QWEN2: c->qkv_bias = true; break;
    case ARCH_QWEN3:
    case ARCH_QWEN3MOE: c->qk_norm = true; break;
    default: break;
    }
    c->tied_embeddings = is_gemma(c);
    c->act = is_gemma(c) ? ACT_GELU_TANH : ACT_SILU;
}

/* See config_gguf.c: an unknown architecture is read as far as it goes, without a struct error. */
static enum err judged(const struct model_config *c, enum err err)
{
    return c->arch_known ? err : OK;
}

static enum err read_numbers(const json_t *o, struct model_config *c, struct error *e)
{
    for (size_t i = 0; i < n_config_wholes; i++) {
        const struct config_number *w = &config_wholes[i];
        uint64_t v = UINT64_MAX;
        TRY(judged(c, json_get_u64(o, hf_keys.name[w->key], w->min, w->max, &v, e)));
        if (w->key == KEY_EXPERTS) /* Mixtral's spelling */
            TRY(judged(c, json_get_u64(o, "num_local_experts", w->min, w->max, &v, e)));
        const uint32_t v32 = (uint32_t)v;
        if (v != UINT64_MAX)
            memcpy((char *)c + w->field, &v32, sizeof v32);
    }
    for (size_t i = 0; i < n_config_reals; i++) {
        const struct config_real *f = &config_reals[i];
        double v = NAN;
        TRY(judged(c, json_get_f64(o, hf_keys.name[f->key], f->min, f->max, &v, e)));
        if (!isnan(v))
            memcpy((char *)c + f->field, &v, sizeof v);
    }
    return OK;
}

static enum err read_layer_types(const json_t *types, struct model_config *c, struct error *e)
{
    if (json_array_size(types) != c->n_layers)
        return FAIL(e, ERR_INVALID, "field 'layer_types' has %zu entries; there are %u layers", json_array_size(types),
            c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0))
            return FAIL(
                e, ERR_UNSUPPORTED, "field 'layer_types[%u]' is neither full_attention nor sliding_attention", i);
        c->layer_is_local[i] = c->window > 0 && type[0] == 's';
    }
    return OK;
}

/* Which layers see only a window. Newer files list it; older ones leave it to the family. */
static enum err read_window(const json_t *o, struct model_config *c, struct error *e)
{
    const bool qwen = c->arch == ARCH_QWEN2 || c->arch == ARCH_QWEN3 || c->arch == ARCH_QWEN3MOE;
    const json_t *types = NULL;
    bool used = !qwen; /* Qwen states a window it does not use */
    TRY(json_get_bool(o, "use_sliding_window", &used, e));
    if (!used)
        c->window = 0;
    TRY(json_get_array(o, "layer_types", &types, e));
    if (types != NULL)
        return read_layer_types(types, c, e);
    uint64_t pattern = c->arch == ARCH_GEMMA2 ? 2 : c->arch == ARCH_GEMMA3 ? 6 : 0, first = 0;
    if (c->arch == ARCH_GEMMA3)
        TRY(json_get_u64(o, "sliding_window_pattern", 1, MODEL_LAYERS_MAX, &pattern, e));
    model_config_set_pattern(c, (uint32_t)pattern);
    if (qwen)
        TRY(json_get_u64(o, "max_window_layers", 0, UINT32_MAX, &first, e));
    for (uint64_t i = 0; i < MIN(first, (uint64_t)c->n_layers); i++)
        c->layer_is_local[i] = 0;
    return OK;
}

static enum err read_query_scale(const json_t *o, struct model_config *c, struct error *e)
{
    double scalar = is_gemma(c) ? 256 : c->head_dim;
    if (is_gemma(c))
        TRY(json_get_f64(o, "query_pre_attn_scalar", 1e-3, 1e6, &scalar, e));
    c->query_scale = scalar > 0 ? 1 / sqrt(scalar) : 0;
    return OK;
}

static enum err read_activation(const json_t *o, struct model_config *c, struct error *e)
{
    const char *key = is_gemma(c) ? "hidden_activation" : "hidden_act";
    struct str act = {0};
    TRY(json_get_str(o, key, &act, e));
    char shown[40];
    if (act.p == NULL)
        return OK;
    if (str_is(act, "silu") || str_is(act, "swish"))
        c->act = ACT_SILU;
    else if (str_is(act, "gelu_pytorch_tanh") || str_is(act, "gelu_new"))
        c->act = ACT_GELU_TANH;
    else
        return FAIL(e, ERR_UNSUPPORTED, "field '%s' is '%s'; quern does silu and gelu_pytorch_tanh", key,
            str_show(act, shown, sizeof shown));
    return OK;
}

/* Shapes of a family that this program does not do, stated by flags. */
static enum err refuse_variants(const json_t *o, struct error *e)
{
    bool mlp_bias = false;
    uint64_t sparse_step = 1;
    const json_t *dense = NULL;
    TRY(json_get_bool(o, "mlp_bias", &mlp_bias, e));
    TRY(json_get_u64(o, "decoder_sparse_step", 0, UINT32_MAX, &sparse_step, e));
    TRY(json_get_array(o, "mlp_only_layers", &dense, e));
    if (mlp_bias)
        return FAIL(e, ERR_UNSUPPORTED, "field 'mlp_bias' is true; quern does models without it");
    if (sparse_step != 1 || json_array_size(dense) > 0)
        return FAIL(
            e, ERR_UNSUPPORTED, "fields 'decoder_sparse_step' and 'mlp_only_layers' mix dense and expert layers");
    return OK;
}

static enum err read_flags(const json_t *o, struct model_config *c, struct error *e)
{
    TRY(json_get_bool(o, "attention_bias", &c->qkv_bias, e));
    if (c->arch == ARCH_QWEN3MOE)
        TRY(json_get_bool(o, "norm_topk_prob", &c->norm_topk, e));
    TRY(read_activation(o, c, e));
    return refuse_variants(o, e);
}

/* One id, or a list of them. */
static enum err read_eos(const json_t *o, struct model_config *c, struct error *e)
{
    const json_t *v = json_object_get(o, "eos_token_id");
    if (v == NULL || json_is_null(v))
        return OK;
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    if (n > MODEL_EOS_MAX)
        return FAIL(e, ERR_LIMIT, "field 'eos_token_id' lists %zu ids; the limit is %d", n, MODEL_EOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= MODEL_VOCAB_MAX)
            return FAIL(e, ERR_INVALID, "field 'eos_token_id' must be a token id or a list of them");
        model_config_add_eos(c, (uint64_t)json_integer_value(id));
    }
    return OK;
}

static enum err read_id(const json_t *o, const char *key, int64_t *out, struct error *e)
{
    const json_t *v = json_object_get(o, key);
    if (v == NULL || json_is_null(v))
        return OK;
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) >= MODEL_VOCAB_MAX)
        return FAIL(e, ERR_INVALID, "field '%s' must be a token id", key);
    *out = json_integer_value(v);
    return OK;
}

/* What may stand inside text_config or outside it; the inner one wins for single values. */
static enum err read_outer(const json_t *o, struct model_config *c, struct error *e)
{
    TRY(json_get_bool(o, "tie_word_embeddings", &c->tied_embeddings, e));
    TRY(read_id(o, "bos_token_id", &c->bos_id, e));
    TRY(read_id(o, "pad_token_id", &c->pad_id, e));
    return read_eos(o, c, e);
}

static enum err read_generation(const json_t *o, struct model_config *c, struct error *e)
{
    struct model_generation *g = &c->generation;
    uint64_t top_k = UINT64_MAX;
    if (!json_is_object(o))
        return FAIL(e, ERR_FORMAT, "generation_config.json must be a JSON object");
    TRY(json_get_f64(o, "temperature", 0, 100, &g->temperature, e));
    TRY(json_get_f64(o, "top_p", 0, 1, &g->top_p, e));
    TRY(json_get_f64(o, "min_p", 0, 1, &g->min_p, e));
    TRY(json_get_f64(o, "repetition_penalty", 1e-3, 100, &g->repetition_penalty, e));
    TRY(json_get_u64(o, "top_k", 0, INT32_MAX, &top_k, e));
    g->top_k = top_k == UINT64_MAX ? -1 : (int64_t)top_k;
    const json_t *sample = json_object_get(o, "do_sample");
    bool flag = false;
    TRY(json_get_bool(o, "do_sample", &flag, e));
    g->do_sample = sample == NULL || json_is_null(sample) ? -1 : flag;
    TRY(read_id(o, "bos_token_id", &c->bos_id, e));
    return read_eos(o, c, e);
}

static enum err read_body(const json_t *outer, const json_t *o, struct model_config *c, struct error *e)
{
    TRY(judged(c, config_quant_from_json(outer, c, e)));
    TRY(read_numbers(o, c, e));
    model_config_derive(c);
    TRY(judged(c, config_rope_from_json(o, c, e)));
    TRY(judged(c, read_window(o, c, e)));
    TRY(judged(c, read_query_scale(o, c, e)));
    TRY(judged(c, read_flags(o, c, e)));
    TRY(judged(c, read_outer(outer, c, e)));
    return o == outer ? OK : judged(c, read_outer(o, c, e));
}

enum err config_from_json(const json_t *config, const json_t *generation, struct model_config *c, struct error *e)
{
    struct str type = {0}, class = {0};
    const json_t *text = NULL, *classes = NULL;
    if (!json_is_object(config))
        return FAIL(e, ERR_FORMAT, "config.json must be a JSON object");
    TRY(json_get_object(config, "text_config", &text, e));
    const json_t *o = text == NULL ? config : text;
    TRY(json_get_str(config, "model_type", &type, e));
    TRY(json_get_str(o, "model_type", &type, e));
    TRY(json_get_array(config, "architectures", &classes, e));
    const json_t *first = json_array_get(classes, 0);
    class = json_is_string(first) ? (struct str){json_string_value(first), json_string_length(first)} : type;
    if (class.p == NULL)
        return FAIL(e, ERR_INVALID, "fields 'model_type' and 'architectures' are missing");
    model_config_copy_name(c->arch_name, class);
    const struct arch_row *row = arch_of_hf(type);
    if (row != NULL) {
        c->arch = row->arch;
        c->arch_known = true;
    }
    set_family_defaults(c);
    if (generation != NULL) /* first: its list of ends is the one that counts */
        TRY(judged(c, read_generation(generation, c, c->arch_known ? e : NULL)));
    TRY(read_body(config, o, c, c->arch_known ? e : NULL));
    if (c->pad_id >= (int64_t)c->vocab)
        c->pad_id = -1;
    return c->arch_known ? model_config_check(c, &hf_keys, e) : OK;
}
