/* Skinny products: four bits and a scale per 32. */
#include "cuda/skinny.cuh"

void skinny_nibbles(struct dev *d, enum format format, uint32_t nt, dim3 grid, const struct skinny_job *j)
{
    if (format == FORMAT_Q4)
        skinny_run<FormatQ4>(d, nt, grid, j);
    else
        skinny_run<FormatQ4M>(d, nt, grid, j);
}
