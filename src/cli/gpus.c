/* See gpus.h. */
#include "cli/gpus.h"

#include "cli/inspect_int.h"

void gpus_find(struct gpus *g, const struct ops *ops)
{
    *g = (struct gpus){0};
#ifdef QUERN_CUDA
    const struct ops *cuda = cuda_ops(&g->why);
    g->describe = cuda_describe;
    g->memory_free = cuda_memory_free;
    g->is_used = cuda != NULL && cuda == ops;
    if (cuda != NULL)
        g->why = NULL;
#else
    (void)ops;
#endif
}

void gpus_print_text(const struct gpus *g, struct out *out)
{
    struct cuda_card c;
    char free_bytes[24], all[24];
    uint32_t n = 0;
    for (; g->describe != NULL && g->describe(n, &c); n++)
        out_printf(out, "%-11s %u: %s, compute capability %u.%u, %u units, %s free of %s%s\n", n == 0 ? "GPUs" : "", n,
            c.name, c.capability / 10, c.capability % 10, c.n_units, inspect_show_bytes(g->memory_free(n), free_bytes),
            inspect_show_bytes(c.memory_bytes, all), n == 0 && g->is_used ? ", used" : "");
    if (g->why != NULL)
        out_printf(out, "%-11s %s\n", n == 0 ? "GPUs" : "", g->why);
}

void gpus_print_json(const struct gpus *g, struct out *out)
{
    struct cuda_card c;
    out_text(out, "[");
    for (uint32_t i = 0; g->describe != NULL && g->describe(i, &c); i++) {
        out_text(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        out_json_str(out, str_of(c.name));
        out_printf(out, ",\"capability\":\"%u.%u\",\"units\":%u,\"memory_bytes\":%llu,\"free_bytes\":%llu,\"used\":%s}",
            c.capability / 10, c.capability % 10, c.n_units, (unsigned long long)c.memory_bytes,
            (unsigned long long)g->memory_free(i), i == 0 && g->is_used ? "true" : "false");
    }
    out_text(out, "]");
}
