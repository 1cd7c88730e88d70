/* Resident steps: F8 matrices. */
#include "cuda/resident.cuh"

using SetF8 = SetOne<FormatF8, F8_WARPS>;

void resident_run_bytes(struct dev *d, size_t shared, const struct resident_args *a)
{
    cuda_launch(d, resident_kernel<SetF8>, dim3(d->n_sms), resident_threads(SetF8::WARPS), shared, *a);
}
