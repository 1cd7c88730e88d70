/* Doors of tensor/ for the Python oracle tests. Dtypes are passed by name: the enum's values are no contract. */
#include "tensor/tensor.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Returns enum err; the sentence of a failure goes to text (512 bytes). */
static int answer(enum err code, const struct error *e, char *text)
{
    memcpy(text, e->text, ERROR_TEXT_MAX);
    return (int)code;
}

EXPORT int quern_testing_dtype(
    const char *name, uint32_t *block_elems, uint32_t *block_bytes, uint32_t *flags, int *has_conversion)
{
    enum dtype dtype;
    if (dtype_by_name(str_of(name), &dtype, NULL) != OK)
        return (int)ERR_NOT_FOUND;
    const struct dtype_info *info = dtype_info(dtype);
    *block_elems = info->block_elems;
    *block_bytes = info->block_bytes;
    *flags = info->flags;
    *has_conversion = info->dequant != NULL && info->quant != NULL;
    return (int)OK;
}

EXPORT int quern_testing_dequant_row(const char *name, const void *src, float *dst, size_t n, char *text)
{
    struct error e = {0};
    enum dtype dtype;
    if (dtype_by_name(str_of(name), &dtype, &e) != OK)
        return answer(e.code, &e, text);
    return answer(dequant_row(dtype, src, dst, n, &e), &e, text);
}

EXPORT int quern_testing_quant_row(const char *name, const float *src, void *dst, size_t n, char *text)
{
    struct error e = {0};
    enum dtype dtype;
    if (dtype_by_name(str_of(name), &dtype, &e) != OK)
        return answer(e.code, &e, text);
    return answer(quant_row(dtype, src, dst, n, &e), &e, text);
}
