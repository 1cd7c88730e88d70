/* The hyper-parameter record: the families, the ranges, and the checks that do not depend on the file format. The
 * readers (config_gguf.c, config_hf.c) fill the record and pass it through model_config_check, which later code relies
 * on: counts are in their limits, heads divide, every size a weight is shaped by is at least 1.
 *
 * An unknown architecture is described as far as its file allows and is never refused here; whoever wants to run it
 * refuses it by name. */
#include "format/format_int.h"

#include <math.h>
#include <string.h>

static const struct arch_row arch_rows[] = {
    {ARCH_LLAMA, "llama", "llama", {"llama", "mistral"}},
    {ARCH_MIXTRAL, "mixtral", NULL, {"mixtral"}},
    {ARCH_QWEN2, "qwen2", "qwen2", {"qwen2"}},
    {ARCH_QWEN3, "qwen3", "qwen3", {"qwen3"}},
    {ARCH_QWEN3MOE, "qwen3moe", "qwen3moe", {"qwen3_moe"}},
    {ARCH_GEMMA2, "gemma2", "gemma2", {"gemma2"}},
    {ARCH_GEMMA3, "gemma3", "gemma3", {"gemma3_text", "gemma3"}},
    {ARCH_PHI3, "phi3", "phi3", {"phi3"}},
};
_Static_assert(COUNT_OF(arch_rows) == ARCH_COUNT - 1, "every known architecture has a row");

#define WHOLE(key, field, min, max)                                                                                    \
    {                                                                                                                  \
        (key), offsetof(struct model_config, field), (min), (max)                                                      \
    }
const struct config_number config_wholes[] = {
    WHOLE(KEY_CONTEXT, context_length, 1, MODEL_CONTEXT_MAX),
    WHOLE(KEY_LAYERS, n_layers, 1, MODEL_LAYERS_MAX),
    WHOLE(KEY_HIDDEN, hidden, 1, MODEL_HIDDEN_MAX),
    WHOLE(KEY_FFN, ffn, 0, MODEL_FFN_MAX),
    WHOLE(KEY_HEADS, n_heads, 1, MODEL_HEADS_MAX),
    WHOLE(KEY_KV_HEADS, n_kv_heads, 1, MODEL_HEADS_MAX),
    WHOLE(KEY_HEAD_DIM, head_dim, 1, MODEL_HEAD_DIM_MAX),
    WHOLE(KEY_VOCAB, vocab, 1, MODEL_VOCAB_MAX),
    WHOLE(KEY_EXPERTS, n_experts, 0, MODEL_EXPERTS_MAX),
    WHOLE(KEY_EXPERTS_USED, n_experts_used, 0, MODEL_EXPERTS_MAX),
    WHOLE(KEY_EXPERT_FFN, expert_ffn, 0, MODEL_FFN_MAX),
    WHOLE(KEY_WINDOW, window, 0, MODEL_CONTEXT_MAX),
};
const size_t n_config_wholes = COUNT_OF(config_wholes);

const struct config_real config_reals[] = {
    WHOLE(KEY_EPS, norm_eps, 1e-12, 0.1),
    WHOLE(KEY_ATTN_SOFTCAP, attn_softcap, 0, 1e6),
    WHOLE(KEY_FINAL_SOFTCAP, final_softcap, 0, 1e6),
};
const size_t n_config_reals = COUNT_OF(config_reals);

const struct arch_row *arch_of_gguf(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(arch_rows); i++)
        if (arch_rows[i].gguf_name != NULL && str_is(name, arch_rows[i].gguf_name))
            return &arch_rows[i];
    return NULL;
}

const struct arch_row *arch_of_hf(struct str model_type)
{
    for (size_t i = 0; i < COUNT_OF(arch_rows); i++)
        for (size_t j = 0; j < COUNT_OF(arch_rows[i].hf_types); j++)
            if (arch_rows[i].hf_types[j] != NULL && str_is(model_type, arch_rows[i].hf_types[j]))
                return &arch_rows[i];
    return NULL;
}

const char *model_arch_name(enum model_arch arch)
{
    for (size_t i = 0; i < COUNT_OF(arch_rows); i++)
        if (arch_rows[i].arch == arch)
            return arch_rows[i].name;
    return "unknown";
}

void model_config_init(struct model_config *c)
{
    *c = (struct model_config){.bos_id = -1, .pad_id = -1, .add_bos = -1};
    c->rope.base = 10000;
    c->rope.factor = 1;
    c->rope.low_freq = 1;
    c->rope.high_freq = 4;
    c->rope.beta_fast = 32;
    c->rope.beta_slow = 1;
    c->generation = (struct model_generation){
        .temperature = NAN, .top_p = NAN, .min_p = NAN, .repetition_penalty = NAN, .top_k = -1, .do_sample = -1};
}

void model_config_copy_name(char out[MODEL_NAME_BYTES_MAX], struct str name)
{
    str_show(name, out, MODEL_NAME_BYTES_MAX);
}

void model_config_add_eos(struct model_config *c, uint64_t id)
{
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id)
            return;
    if (c->n_eos < MODEL_EOS_MAX && id < UINT32_MAX)
        c->eos_ids[c->n_eos++] = (uint32_t)id;
}

void model_config_set_pattern(struct model_config *c, uint32_t pattern)
{
    const uint32_t n = MIN(c->n_layers, (uint32_t)MODEL_LAYERS_MAX);
    for (uint32_t i = 0; i < n; i++)
        c->layer_is_local[i] = c->window > 0 && (pattern == 0 || (i + 1) % pattern != 0);
}

void model_config_derive(struct model_config *c)
{
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->head_dim == 0 && c->n_heads > 0 && c->hidden % c->n_heads == 0)
        c->head_dim = c->hidden / c->n_heads;
    if (c->n_experts > 0 && c->expert_ffn == 0)
        c->expert_ffn = c->ffn;
}

static enum err check_shapes(const struct model_config *c, const struct config_keys *k, struct error *e)
{
    for (size_t i = 0; i < n_config_wholes; i++) {
        const struct config_number *w = &config_wholes[i];
        uint32_t v;
        memcpy(&v, (const char *)c + w->field, sizeof v);
        if (w->min > 0 && v == 0 && w->key != KEY_HEAD_DIM)
            return FAIL(e, ERR_INVALID, "key '%s' is missing", k->name[w->key]);
        if (v > w->max)
            return FAIL(
                e, ERR_LIMIT, "key '%s' is %u; the limit is %llu", k->name[w->key], v, (unsigned long long)w->max);
    }
    if (c->head_dim == 0)
        return FAIL(e, ERR_INVALID, "key '%s' is missing, and %s (%u) is not a multiple of %s (%u)",
            k->name[KEY_HEAD_DIM], k->name[KEY_HIDDEN], c->hidden, k->name[KEY_HEADS], c->n_heads);
    if (c->n_heads % c->n_kv_heads != 0)
        return FAIL(e, ERR_INVALID, "key '%s' is %u, which does not divide the %u of '%s'", k->name[KEY_KV_HEADS],
            c->n_kv_heads, c->n_heads, k->name[KEY_HEADS]);
    if (c->head_dim % 2 != 0)
        return FAIL(e, ERR_INVALID, "key '%s' is %u; it must be even", k->name[KEY_HEAD_DIM], c->head_dim);
    return OK;
}

static enum err check_experts(const struct model_config *c, const struct config_keys *k, struct error *e)
{
    const bool mixture = c->arch == ARCH_MIXTRAL || c->arch == ARCH_QWEN3MOE;
    if (!mixture && c->n_experts > 0)
        return FAIL(e, ERR_UNSUPPORTED, "key '%s' is %u; %s is known as a dense model only", k->name[KEY_EXPERTS],
            c->n_experts, model_arch_name(c->arch));
    if (!mixture)
        return c->ffn > 0 ? OK : FAIL(e, ERR_INVALID, "key '%s' is missing", k->name[KEY_FFN]);
    if (c->n_experts == 0)
        return FAIL(e, ERR_INVALID, "key '%s' is missing", k->name[KEY_EXPERTS]);
    if (c->n_experts_used == 0 || c->n_experts_used > c->n_experts)
        return FAIL(e, ERR_INVALID, "key '%s' is %u; it must be from 1 to %u", k->name[KEY_EXPERTS_USED],
            c->n_experts_used, c->n_experts);
    if (c->expert_ffn == 0)
        return FAIL(e, ERR_INVALID, "key '%s' is missing", k->name[KEY_EXPERT_FFN]);
    return OK;
}

static enum err check_rope(const struct model_rope *r, uint32_t head_dim, const struct config_keys *k, struct error *e)
{
    if (r->dims == 0 || r->dims > head_dim || r->dims % 2 != 0)
        return FAIL(e, ERR_INVALID, "key '%s' gives %u; it must be even, from 2 to the head size %u",
            k->name[KEY_ROPE_DIMS], r->dims, head_dim);
    if (r->n_factors != 0 && r->n_factors != r->dims / 2)
        return FAIL(
            e, ERR_INVALID, "the longrope factors are %u; %u dimensions need %u", r->n_factors, r->dims, r->dims / 2);
    const struct model_tensor *tensors[] = {r->freqs, r->freqs_short, r->freqs_long};
    for (size_t i = 0; i < COUNT_OF(tensors); i++) {
        const struct model_tensor *t = tensors[i];
        char shown[80];
        if (t != NULL && (t->view.dtype != DTYPE_F32 || tensor_n_elems(&t->view) != r->dims / 2))
            return FAIL(e, ERR_INVALID, "tensor '%s' must have %u F32 numbers", str_show(t->name, shown, sizeof shown),
                r->dims / 2);
    }
    if (r->scaling == ROPE_LONGROPE && r->n_factors == 0 && (r->freqs_short == NULL || r->freqs_long == NULL))
        return FAIL(e, ERR_INVALID, "longrope scaling without its short and long factors");
    if ((r->scaling == ROPE_YARN || r->scaling == ROPE_LONGROPE || (r->scaling == ROPE_LLAMA3 && r->freqs == NULL)) &&
        r->original_context == 0)
        return FAIL(e, ERR_INVALID, "rope scaling needs the original context length, which the file does not say");
    if (r->scaling == ROPE_LLAMA3 && !(r->high_freq > r->low_freq))
        return FAIL(e, ERR_INVALID, "field 'high_freq_factor' must be above 'low_freq_factor'");
    return OK;
}

enum err model_config_check(const struct model_config *c, const struct config_keys *k, struct error *e)
{
    TRY(check_shapes(c, k, e));
    TRY(check_experts(c, k, e));
    TRY(check_rope(&c->rope, c->head_dim, k, e));
    if (!(c->norm_eps > 0))
        return FAIL(e, ERR_INVALID, "key '%s' is missing", k->name[KEY_EPS]);
    if (c->bos_id >= (int64_t)c->vocab)
        return FAIL(e, ERR_INVALID, "key '%s' is %lld; the vocabulary has %u tokens", k->name[KEY_BOS],
            (long long)c->bos_id, c->vocab);
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] >= c->vocab)
            return FAIL(e, ERR_INVALID, "key '%s' is %u; the vocabulary has %u tokens", k->name[KEY_EOS], c->eos_ids[i],
                c->vocab);
    return OK;
}
