/* Slim products: a byte a weight. */
#include "cuda/slim.cuh"

void slim_bytes(struct dev *d, enum format format, const struct skinny_job *j)
{
    if (format == FORMAT_F8)
        slim_run<FormatF8>(d, j);
    else
        slim_run<FormatQ8>(d, j);
}
