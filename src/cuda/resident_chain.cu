/* Resident steps of --deterministic: 16-bit matrices. */
#include "cuda/resident_chain.cuh"

void resident_run_chain(struct dev *d, enum resident_set set, size_t shared, const struct resident_args *a)
{
    if (set == RESIDENT_CHAIN_BF16)
        cuda_launch(d, chain_kernel<__nv_bfloat16>, dim3(d->n_sms), (CHAIN_WARPS + 1) * 32, shared, *a);
    else
        cuda_launch(d, chain_kernel<__half>, dim3(d->n_sms), (CHAIN_WARPS + 1) * 32, shared, *a);
}

uint32_t resident_chain_room(void)
{
    return (sizeof(struct chunk_ahead) + 15) / 16 * 16;
}
