/* Slim products: super-blocks of 256. */
#include "cuda/slim.cuh"

void slim_k(struct dev *d, enum format format, const struct skinny_job *j)
{
    if (format == FORMAT_Q4K)
        slim_run<FormatQ4K>(d, j);
    else
        slim_run<FormatQ6K>(d, j);
}
