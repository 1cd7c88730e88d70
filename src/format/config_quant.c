/* quantization_config of config.json: whether quern reads what was done to the weights. What it does not read is no
 * error of the file but a sentence in the record, since random weights of that shape are another matter. How many
 * numbers share a scale is not taken from here: the shapes of the scales say it (model/scales.c). */
#include "format/format_int.h"

#include <stdio.h>

/* One of compressed-tensors' groups; what it leaves out has the default of the class that wrote it. */
static enum err read_group(const json_t *group, struct model_config *c, struct error *e)
{
    const json_t *weights = NULL, *inputs = NULL, *outputs = NULL;
    struct str type = STR("int"), strategy = STR("tensor");
    uint64_t bits = 8;
    bool symmetric = true, dynamic = false;
    char shown[40];
    TRY(json_get_object(group, "weights", &weights, e));
    TRY(json_get_object(group, "input_activations", &inputs, e));
    TRY(json_get_object(group, "output_activations", &outputs, e));
    TRY(json_get_str(weights, "type", &type, e));
    TRY(json_get_str(weights, "strategy", &strategy, e));
    TRY(json_get_u64(weights, "num_bits", 1, 64, &bits, e));
    TRY(json_get_bool(weights, "symmetric", &symmetric, e));
    const bool is_int = str_is(type, "int");
    if (weights == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "field 'weights' is missing; quern reads groups of quantised weights");
    if (!is_int && !str_is(type, "float"))
        return FAIL(e, ERR_UNSUPPORTED, "field 'weights.type' is '%s'; quern reads int and float",
            str_show(type, shown, sizeof shown));
    if (bits != 8)
        return FAIL(e, ERR_UNSUPPORTED, "field 'weights.num_bits' is %u; quern reads 8", (unsigned)bits);
    if (!str_is(strategy, "tensor") && !str_is(strategy, "channel") && !(is_int && str_is(strategy, "group")))
        return FAIL(e, ERR_UNSUPPORTED,
            "field 'weights.strategy' is '%s'; quern reads tensor, channel and, of int, group",
            str_show(strategy, shown, sizeof shown));
    if (!is_int) {
        c->quant_is_f8 = true;
        return OK;
    }
    if (!symmetric)
        return FAIL(e, ERR_UNSUPPORTED, "field 'weights.symmetric' is false; quern reads int without zero points");
    TRY(json_get_bool(inputs, "dynamic", &dynamic, e));
    if ((inputs != NULL && !dynamic) || outputs != NULL)
        return FAIL(e, ERR_UNSUPPORTED,
            "field '%s' has scales of its own; quern reads int with dynamic input_activations or none",
            outputs != NULL ? "output_activations" : "input_activations");
    c->quant_is_i8 = true;
    return OK;
}

static enum err read_groups(const json_t *quant, struct model_config *c, struct error *e)
{
    const json_t *groups = NULL;
    const char *key;
    json_t *group;
    char shown[40];
    TRY(json_get_object(quant, "config_groups", &groups, e));
    json_object_foreach((json_t *)(uintptr_t)groups, key, group) if (read_group(group, c, e) != OK) return error_prefix(
        e, "quantization_config, %s", str_show(str_of(key), shown, sizeof shown));
    return json_object_size(groups) > 0
               ? OK
               : FAIL(
                     e, ERR_UNSUPPORTED, "field 'quantization_config.config_groups' is empty; quern reads one or more");
}

enum err config_quant_from_json(const json_t *config, struct model_config *c, struct error *e)
{
    const json_t *quant = NULL;
    struct str method = {0};
    struct error why = {0};
    TRY(json_get_object(config, "compression_config", &quant, e)); /* compressed-tensors' first spelling */
    TRY(json_get_object(config, "quantization_config", &quant, e));
    TRY(json_get_str(quant, "quant_method", &method, e));
    model_config_copy_name(c->quant_method, method);
    const json_t *blocks = json_object_get(quant, "weight_block_size");
    enum err err = OK;
    if (str_is(method, "compressed-tensors"))
        err = read_groups(quant, c, &why);
    else if (method.n > 0 && !str_is(method, "fp8"))
        err = FAIL(&why, ERR_UNSUPPORTED,
            "quantisation method '%s' is not supported; quern reads fp8 and compressed-tensors", c->quant_method);
    else if (blocks != NULL && !json_is_null(blocks))
        err = FAIL(&why, ERR_UNSUPPORTED,
            "field 'quantization_config.weight_block_size' is there; quern reads fp8 with a scale per matrix or row");
    else
        c->quant_is_f8 = method.n > 0;
    if (err != OK)
        snprintf(c->quant_refusal, sizeof c->quant_refusal, "%s", why.text);
    return OK;
}
