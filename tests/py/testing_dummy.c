/* See testing_dummy.h. */
#include "testing_dummy.h"

#include "cpu/cpu.h"
#ifdef QUERN_CUDA
#include "cuda/cuda.h"
#endif
#include "model/fit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum err testing_ops(const char *device, const struct ops **out, struct error *e)
{
    const char *why = "this build has no CUDA";
    *out = strcmp(device, "cpu") == 0 ? cpu_ops() : cpu_ops_by_name(device);
#ifdef QUERN_CUDA
    if (strcmp(device, "cuda") == 0)
        *out = cuda_ops(&why);
#endif
    return *out != NULL ? OK : FAIL(e, ERR_UNSUPPORTED, "%s: %s", device, why);
}

enum err testing_config(const char *shape, struct model_config *cfg, struct error *e)
{
    uint32_t head_dim;
    const bool is_thin = sscanf(shape, "thin-%u", &head_dim) == 1;
    if (!is_thin && sscanf(shape, "small-%u", &head_dim) != 1)
        return dummy_config(shape, cfg, e);
    TRY(dummy_config("llama-3.2-1b", cfg, e));
    cfg->n_layers = 2;
    cfg->hidden = 512;
    cfg->ffn = 768;
    cfg->vocab = 1040;
    cfg->n_heads = is_thin ? 2 : cfg->hidden / head_dim;
    cfg->n_kv_heads = 2;
    cfg->head_dim = cfg->rope.dims = head_dim;
    cfg->query_scale = 1.0 / sqrt((double)head_dim);
    return OK;
}

uint64_t testing_weight_bytes(const struct model_config *cfg, const struct model_source *source, enum dtype dtype,
    const struct decoder_options *o)
{
    struct fit f;
    const struct fit_wants w = {.kv_dtype = o->kv_dtype,
        .dummy_dtype = dtype,
        .fp8 = o->fp8,
        .ops = o->ops,
        .rows = o->rows_max,
        .out_rows = o->out_max};
    return fit_measure(&f, cfg, source, &w, NULL) == OK ? f.weight_bytes : 0;
}
