/* Rotary positions in config.json. Three spellings are alive: "rope_theta" with "rope_scaling" beside it (and
 * "rope_local_base_freq" for Gemma 3); one "rope_parameters" object that holds theta and scaling; and
 * "rope_parameters" with one such object per layer kind ("full_attention", "sliding_attention"). Inside, the kind of
 * scaling is "rope_type", formerly "type". */
#include "format/format_int.h"

static enum err read_factors(const json_t *o, const char *key, float *out, uint32_t *n, struct error *e)
{
    const json_t *list = NULL;
    TRY(json_get_array(o, key, &list, e));
    const size_t count = json_array_size(list);
    if (count == 0 || count > MODEL_ROPE_FACTORS_MAX)
        return FAIL(e, ERR_INVALID, "field '%s' must list from 1 to %d numbers", key, MODEL_ROPE_FACTORS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *v = json_array_get(list, i);
        const double d = json_is_number(v) ? json_number_value(v) : 0;
        if (!(d > 0 && d < 1e6))
            return FAIL(e, ERR_INVALID, "field '%s[%zu]' must be a number above 0", key, i);
        out[i] = (float)d;
    }
    *n = (uint32_t)count;
    return OK;
}

static enum err read_longrope(const json_t *o, struct model_rope *r, struct error *e)
{
    uint32_t n_short = 0, n_long = 0;
    TRY(read_factors(o, "short_factor", r->short_factor, &n_short, e));
    TRY(read_factors(o, "long_factor", r->long_factor, &n_long, e));
    if (n_short != n_long)
        return FAIL(e, ERR_INVALID, "fields 'short_factor' and 'long_factor' list %u and %u numbers", n_short, n_long);
    r->n_factors = n_short;
    return OK;
}

/* Kind and parameters of a scaling object. */
static enum err read_scaling(const json_t *o, struct model_rope *r, struct error *e)
{
    static const struct {
        const char *name;
        enum rope_scaling scaling;
    } kinds[] = {
        {"default", ROPE_PLAIN},
        {"linear", ROPE_LINEAR},
        {"llama3", ROPE_LLAMA3},
        {"yarn", ROPE_YARN},
        {"longrope", ROPE_LONGROPE},
        {"su", ROPE_LONGROPE},
    };
    struct str kind = STR("default");
    uint64_t original = r->original_context;
    TRY(json_get_str(o, "type", &kind, e));
    TRY(json_get_str(o, "rope_type", &kind, e));
    size_t i = 0;
    while (i < COUNT_OF(kinds) && !str_is(kind, kinds[i].name))
        i++;
    if (i == COUNT_OF(kinds)) {
        char shown[40];
        return FAIL(e, ERR_UNSUPPORTED,
            "field 'rope_type' is '%s'; quern does default, linear, llama3, yarn and longrope",
            str_show(kind, shown, sizeof shown));
    }
    r->scaling = kinds[i].scaling;
    TRY(json_get_f64(o, "factor", 1, 1e6, &r->factor, e));
    TRY(json_get_f64(o, "low_freq_factor", 1e-3, 1e6, &r->low_freq, e));
    TRY(json_get_f64(o, "high_freq_factor", 1e-3, 1e6, &r->high_freq, e));
    TRY(json_get_f64(o, "beta_fast", 1e-3, 1e6, &r->beta_fast, e));
    TRY(json_get_f64(o, "beta_slow", 1e-3, 1e6, &r->beta_slow, e));
    TRY(json_get_f64(o, "attention_factor", 0, 1e6, &r->attention_factor, e));
    TRY(json_get_f64(o, "mscale", 0, 1e6, &r->mscale, e));
    TRY(json_get_f64(o, "mscale_all_dim", 0, 1e6, &r->mscale_all_dim, e));
    TRY(json_get_u64(o, "original_max_position_embeddings", 1, MODEL_CONTEXT_MAX, &original, e));
    r->original_context = (uint32_t)original;
    return r->scaling == ROPE_LONGROPE ? read_longrope(o, r, e) : OK;
}

static enum err read_parameters(const json_t *o, struct model_config *c, struct error *e)
{
    struct model_rope *r = &c->rope;
    const json_t *full = NULL, *local = NULL;
    TRY(json_get_object(o, "full_attention", &full, e));
    TRY(json_get_object(o, "sliding_attention", &local, e));
    if (full == NULL)
        full = o;
    TRY(json_get_f64(full, "rope_theta", 1, 1e12, &r->base, e));
    TRY(read_scaling(full, r, e));
    if (c->arch != ARCH_GEMMA3)
        r->base_local = r->base;
    return local == NULL ? OK : json_get_f64(local, "rope_theta", 1, 1e12, &r->base_local, e);
}

/* A yarn or longrope model that does not say how far it was trained scales from its context. */
static void derive_contexts(struct model_config *c)
{
    struct model_rope *r = &c->rope;
    if (r->scaling == ROPE_YARN && r->original_context == 0)
        r->original_context = c->context_length;
    if (r->scaling == ROPE_LONGROPE && r->factor <= 1 && r->original_context > 0)
        r->factor = MAX(1.0, (double)c->context_length / r->original_context);
}

enum err config_rope_from_json(const json_t *config, struct model_config *c, struct error *e)
{
    struct model_rope *r = &c->rope;
    const json_t *scaling = NULL, *parameters = NULL;
    uint64_t original = 0;
    double share = 1;
    TRY(json_get_f64(config, "rope_theta", 1, 1e12, &r->base, e));
    r->base_local = c->arch == ARCH_GEMMA3 ? 10000 : r->base;
    TRY(json_get_f64(config, "rope_local_base_freq", 1, 1e12, &r->base_local, e));
    TRY(json_get_u64(config, "original_max_position_embeddings", 1, MODEL_CONTEXT_MAX, &original, e));
    r->original_context = (uint32_t)original;
    TRY(json_get_object(config, "rope_scaling", &scaling, e));
    TRY(json_get_object(config, "rope_parameters", &parameters, e));
    if (scaling != NULL)
        TRY(read_scaling(scaling, r, e));
    if (parameters != NULL)
        TRY(read_parameters(parameters, c, e));
    TRY(json_get_f64(parameters, "partial_rotary_factor", 0.01, 1, &share, e));
    TRY(json_get_f64(config, "partial_rotary_factor", 0.01, 1, &share, e));
    r->dims = (uint32_t)((double)c->head_dim * share);
    derive_contexts(c);
    return OK;
}
