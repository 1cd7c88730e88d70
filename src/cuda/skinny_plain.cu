/* Skinny products: floats as they lie in the file. */
#include "cuda/skinny.cuh"

void skinny_plain(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j)
{
    if (format == FORMAT_F16)
        skinny_run<FormatPlain<__half>>(d, nt, grid, j);
    else
        skinny_run<FormatPlain<__nv_bfloat16>>(d, nt, grid, j);
}
