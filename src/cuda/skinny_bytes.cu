/* Skinny products: a byte a weight. */
#include "cuda/skinny.cuh"

void skinny_bytes(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j)
{
    if (format == FORMAT_F8)
        skinny_run<FormatF8>(d, nt, grid, j);
    else
        skinny_run<FormatQ8>(d, nt, grid, j);
}
