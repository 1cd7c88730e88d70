/* The table of variants: first match wins, fastest first. */
#include "cpu/cpu_int.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
bool cpu_has_avx2(void)
{
    unsigned a, b, c, d;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C); /* clang's builtin does not know its name */
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

static enum err open_avx512(const struct dev_options *o, struct dev **out, struct error *e)
{
    return cpu_dev_open(&kernels_avx512, o, out, e);
}

static enum err open_avx2(const struct dev_options *o, struct dev **out, struct error *e)
{
    return cpu_dev_open(&kernels_avx2, o, out, e);
}
#endif

static enum err open_ref(const struct dev_options *o, struct dev **out, struct error *e)
{
    return cpu_dev_open(&kernels_ref, o, out, e);
}

#define CPU_KV_DTYPES                                                                                                  \
    (1ull << DTYPE_F32 | 1ull << DTYPE_F16 | 1ull << DTYPE_BF16 | 1ull << DTYPE_Q8_0 | 1ull << DTYPE_Q4_0)

/* One ops table per kernel table; they differ only in what opens the device. */
#define CPU_OPS(variant, open_fn)                                                                                      \
    {                                                                                                                  \
        .name = (variant), .kv_dtypes = CPU_KV_DTYPES, .checks_weights = true, .dev_open = (open_fn),                  \
        .dev_close = cpu_dev_close, .dev_alloc = cpu_dev_alloc, .dev_free = cpu_dev_free, .dev_write = cpu_dev_write,  \
        .dev_read = cpu_dev_read, .dev_wait = cpu_dev_wait, .describe = cpu_describe, .weight_bind = cpu_weight_bind,  \
        .weight_drop = cpu_weight_drop, .acts_new = cpu_acts_new, .acts_free = cpu_acts_free, .embed = cpu_embed,      \
        .norm = cpu_norm, .qkv = cpu_qkv, .attend = cpu_attend, .project = cpu_project, .gate_up = cpu_gate_up,        \
        .route = cpu_route, .experts = cpu_experts, .logits = cpu_logits, .argmax = cpu_argmax,                        \
        .copy_blocks = cpu_copy_blocks, .move_blocks = cpu_move_blocks, .host_new = cpu_host_new,                      \
        .host_free = cpu_host_free, .host_workers = cpu_host_workers, .host_run = cpu_host_run,                        \
    }

static const struct {
    const struct kernels *kernels;
    struct ops ops;
} variants[] = {
#if defined(__x86_64__)
    {&kernels_avx512, CPU_OPS("cpu-avx512", open_avx512)},
    {&kernels_avx2, CPU_OPS("cpu-avx2", open_avx2)},
#endif
    {&kernels_ref, CPU_OPS("cpu-ref", open_ref)},
};

const struct ops *cpu_ops(void)
{
    for (size_t i = 0; i < COUNT_OF(variants); i++)
        if (variants[i].kernels->runs_here())
            return &variants[i].ops;
    return NULL; /* not reached: the plain row runs anywhere */
}

const struct ops *cpu_ops_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(variants); i++)
        if (strcmp(variants[i].ops.name, name) == 0)
            return variants[i].kernels->runs_here() ? &variants[i].ops : NULL;
    return NULL;
}

const struct ops *cpu_ops_at(uint32_t i)
{
    return i < COUNT_OF(variants) ? &variants[i].ops : NULL;
}

uint64_t cpu_peak(const struct ops *ops, bool integers, uint64_t rounds)
{
    for (size_t i = 0; i < COUNT_OF(variants); i++)
        if (&variants[i].ops == ops && variants[i].kernels->peak != NULL)
            return variants[i].kernels->peak(integers, rounds);
    return 0;
}
