/* The table of architectures; see arch.h. */
#include "model/arch.h"

static const struct arch *const archs[] = {
    &arch_llama, &arch_mixtral, &arch_qwen2, &arch_qwen3, &arch_qwen3moe, &arch_gemma2, &arch_gemma3, &arch_phi3};

const struct arch *arch_find(enum model_arch id)
{
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (archs[i]->id == id)
            return archs[i];
    return NULL;
}
