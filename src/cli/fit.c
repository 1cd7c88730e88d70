/* Words of options to what model/fit.h counts with; see fit.h. */
#include "cli/fit.h"

enum dtype fit_kv_dtype(int choice)
{
    static const enum dtype dtypes[KV_DTYPE_COUNT] = {[KV_AUTO] = FIT_KV_AUTO,
        [KV_F32] = DTYPE_F32,
        [KV_F16] = DTYPE_F16,
        [KV_BF16] = DTYPE_BF16,
        [KV_FP8] = DTYPE_F8_E4M3,
        [KV_Q8_0] = DTYPE_Q8_0,
        [KV_Q4_0] = DTYPE_Q4_0};
    return dtypes[choice];
}

enum dtype fit_weight_dtype(int choice)
{
    enum dtype dtype = DTYPE_Q8_0;
    const enum err err = choice == 0 ? OK : dtype_by_name(str_of(option_weight_dtypes[choice]), &dtype, NULL);
    assert(err == OK); /* every word of the option is a name */
    (void)err;
    return dtype;
}

struct fit_wants fit_wants_of(const struct options *o, uint32_t rows, uint32_t out_rows)
{
    return (struct fit_wants){.kv_dtype = fit_kv_dtype(o->kv_cache_dtype),
        .dummy_dtype = fit_weight_dtype(o->weight_dtype),
        .fp8 = o->quantization == QUANTIZATION_FP8,
        .memory_bytes = o->memory_bytes,
        .rows = rows,
        .out_rows = out_rows};
}
