/* Any text as config.json and, after a NUL byte, generation_config.json: a checked record or a sentence. */
#include "format/format_int.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *cut = memchr(data, 0, n);
    const struct str first = {(const char *)data, cut == NULL ? n : (size_t)(cut - data)};
    json_t *config = NULL, *generation = NULL;
    struct error e = {0};
    if (json_parse(first, &config, &e) != OK)
        return 0;
    if (cut != NULL && json_parse((struct str){(const char *)cut + 1, n - first.n - 1}, &generation, NULL) != OK)
        generation = NULL;
    struct model_config c;
    model_config_init(&c);
    const enum err err = config_from_json(config, generation, &c, &e);
    assert(err == e.code);
    if (err == OK && c.arch_known) {
        assert(c.n_layers > 0 && c.n_layers <= MODEL_LAYERS_MAX && c.n_heads % c.n_kv_heads == 0);
        assert(c.norm_eps > 0 && c.rope.base >= 1 && c.rope.factor >= 1 && c.query_scale > 0);
        assert(c.rope.dims % 2 == 0 && c.rope.dims <= c.head_dim);
        assert(c.n_experts == 0 || (c.n_experts_used >= 1 && c.n_experts_used <= c.n_experts));
        for (uint32_t i = 0; i < c.n_eos; i++)
            assert(c.eos_ids[i] < c.vocab);
    }
    json_decref(config);
    json_decref(generation);
    return 0;
}
