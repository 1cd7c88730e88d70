/* Resident steps: 16-bit matrices. */
#include "cuda/resident.cuh"

using SetBf16 = SetOne<FormatPlain<__nv_bfloat16>, PLAIN_WARPS>;
using SetF16 = SetOne<FormatPlain<__half>, PLAIN_WARPS>;
using SetF8 = SetOne<FormatF8, F8_WARPS>;

void resident_run_plain(struct dev *d, enum resident_set set, size_t shared, const struct resident_args *a)
{
    if (set == RESIDENT_BF16)
        cuda_launch(d, resident_kernel<SetBf16>, dim3(d->n_sms), resident_threads(SetBf16::WARPS), shared, *a);
    else
        cuda_launch(d, resident_kernel<SetF16>, dim3(d->n_sms), resident_threads(SetF16::WARPS), shared, *a);
}

uint32_t resident_warps(enum resident_set set)
{
    switch (set) {
    case RESIDENT_F8: return SetF8::WARPS;
    case RESIDENT_QUANT: return SetQuant::WARPS;
    case RESIDENT_CHAIN_BF16:
    case RESIDENT_CHAIN_F16: return CHAIN_WARPS;
    default: return SetBf16::WARPS;
    }
}

uint32_t resident_slot_bytes(enum format format)
{
    switch (format) {
    case FORMAT_F8: return Cell<FormatF8>::SLOT;
    case FORMAT_Q8: return Cell<FormatQ8>::SLOT;
    case FORMAT_Q4: return Cell<FormatQ4>::SLOT;
    case FORMAT_Q4K: return Cell<FormatQ4K>::SLOT;
    case FORMAT_Q6K: return Cell<FormatQ6K>::SLOT;
    default: return Cell<FormatPlain<__half>>::SLOT;
    }
}
