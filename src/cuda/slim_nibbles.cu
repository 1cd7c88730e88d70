/* Slim products: four bits and a scale per 32. */
#include "cuda/slim.cuh"

void slim_nibbles(struct dev *d, enum format format, const struct skinny_job *j)
{
    if (format == FORMAT_Q4)
        slim_run<FormatQ4>(d, j);
    else
        slim_run<FormatQ4M>(d, j);
}
