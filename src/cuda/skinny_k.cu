/* Skinny products: super-blocks of 256. */
#include "cuda/skinny.cuh"

void skinny_k(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j)
{
    if (format == FORMAT_Q4K)
        skinny_run<FormatQ4K>(d, nt, grid, j);
    else
        skinny_run<FormatQ6K>(d, nt, grid, j);
}
