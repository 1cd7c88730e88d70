/* Slim products: floats as they lie in the file. */
#include "cuda/slim.cuh"

void slim_plain(struct dev *d, enum format format, const struct skinny_job *j)
{
    if (format == FORMAT_F16)
        slim_run<FormatPlain<__half>>(d, j);
    else
        slim_run<FormatPlain<__nv_bfloat16>>(d, j);
}
