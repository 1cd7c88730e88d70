/* Resident steps: blocks of Q8_0, Q4_0, Q4_K and Q6_K, mixed as files mix them. */
#include "cuda/resident.cuh"

void resident_run_quant(struct dev *d, size_t shared, const struct resident_args *a)
{
    cuda_launch(d, resident_kernel<SetQuant>, dim3(d->n_sms), resident_threads(SetQuant::WARPS), shared, *a);
}
