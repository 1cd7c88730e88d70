/* Eight elements of a packed row of any quantised format as f16 pairs, outside of a product. */
#ifndef CUDA_UNPACK_CUH
#define CUDA_UNPACK_CUH

#include "cuda/formats.cuh"

template <class F>
__device__ __forceinline__ void format_eight_of(const unsigned char *row, uint32_t k, uint32_t n_in, uint32_t out[4])
{
    typename F::Regs r;
    F::load(r, row, k / F::E * F::E, n_in);
    const uint32_t part = k % F::E / 8;
#pragma unroll
    for (uint32_t i = 0; i < F::E / 8; i++)
        if (i == part)
            F::pairs(r, i, out);
}

/* k is a multiple of 8. F8 comes without its factor and scale. */
__device__ inline void format_eight(
    enum format format, const unsigned char *row, uint32_t k, uint32_t n_in, uint32_t out[4])
{
    switch (format) {
    case FORMAT_F8: format_eight_of<FormatF8>(row, k, n_in, out); break;
    case FORMAT_Q8: format_eight_of<FormatQ8>(row, k, n_in, out); break;
    case FORMAT_Q4: format_eight_of<FormatQ4>(row, k, n_in, out); break;
    case FORMAT_Q4M: format_eight_of<FormatQ4M>(row, k, n_in, out); break;
    case FORMAT_Q4K: format_eight_of<FormatQ4K>(row, k, n_in, out); break;
    case FORMAT_Q6K: format_eight_of<FormatQ6K>(row, k, n_in, out); break;
    default: break;
    }
}

#endif
