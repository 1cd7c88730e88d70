/* Shapes and views. All arithmetic that meets numbers from a file happens in tensor_shape_bytes; once a view exists,
 * its products are known to fit and the accessors do not check again. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

enum err tensor_shape_bytes(enum dtype dtype, uint32_t n_dims, const uint64_t *shape, size_t *bytes, struct error *e)
{
    const struct dtype_info *info = dtype_info(dtype);
    if (n_dims > TENSOR_DIMS_MAX)
        return FAIL(e, ERR_LIMIT, "%" PRIu32 " dimensions are more than the maximum of %d", n_dims, TENSOR_DIMS_MAX);
    const uint64_t row = n_dims > 0 ? shape[n_dims - 1] : 1;
    if (row % info->block_elems != 0)
        return FAIL(e, ERR_FORMAT,
            "dimension %" PRIu32 " has %" PRIu64 " elements, not whole blocks of %s, which has %u",
            n_dims > 0 ? n_dims - 1 : 0, row, info->name, (unsigned)info->block_elems);
    uint64_t n_elems = 1;
    bool is_empty = false;
    for (uint32_t i = 0; i < n_dims; i++) {
        is_empty = is_empty || shape[i] == 0;
        /* zeros are left out of the product, so that an absurd dimension beside one is still refused */
        if (shape[i] != 0 && __builtin_mul_overflow(n_elems, shape[i], &n_elems))
            return FAIL(
                e, ERR_FORMAT, "dimension %" PRIu32 " of %" PRIu64 " overflows the number of elements", i, shape[i]);
    }
    if (is_empty)
        n_elems = 0;
    return dtype_bytes(dtype, n_elems, bytes, e);
}

enum err tensor_view_init(struct tensor_view *v, enum dtype dtype, uint32_t n_dims, const uint64_t *shape,
    const void *data, size_t bytes, struct error *e)
{
    size_t want = 0;
    TRY(tensor_shape_bytes(dtype, n_dims, shape, &want, e));
    if (bytes != want)
        return FAIL(
            e, ERR_FORMAT, "the shape needs %zu bytes of %s, but there are %zu", want, dtype_name(dtype), bytes);
    *v = (struct tensor_view){.dtype = dtype, .n_dims = n_dims, .data = data, .bytes = bytes};
    for (uint32_t i = 0; i < TENSOR_DIMS_MAX; i++)
        v->shape[i] = i < n_dims ? shape[i] : 1;
    return OK;
}

uint64_t tensor_row_elems(const struct tensor_view *v)
{
    return v->n_dims > 0 ? v->shape[v->n_dims - 1] : 1;
}

uint64_t tensor_n_rows(const struct tensor_view *v)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i + 1 < v->n_dims; i++)
        n *= v->shape[i];
    return n;
}

uint64_t tensor_n_elems(const struct tensor_view *v)
{
    return tensor_n_rows(v) * tensor_row_elems(v);
}

size_t tensor_row_bytes(const struct tensor_view *v)
{
    const struct dtype_info *info = dtype_info(v->dtype);
    return (size_t)(tensor_row_elems(v) / info->block_elems) * info->block_bytes;
}

const void *tensor_row(const struct tensor_view *v, uint64_t i_row)
{
    assert(i_row < tensor_n_rows(v));
    return (const unsigned char *)v->data + (size_t)i_row * tensor_row_bytes(v);
}
