/* Is every number of a tensor finite? Asked of each weight once, when it is bound: a NaN in a scale would otherwise
 * come out as nonsense text hours later. Quantised blocks need only their scales looked at. */
#ifndef TENSOR_FINITE_H
#define TENSOR_FINITE_H

#include "tensor/tensor.h"

/* False with *bad set to the first element (or first element of the block) that is not. Types without a conversion are
 * taken as finite: nobody can bind them. */
bool tensor_is_finite(const struct tensor_view *v, uint64_t *bad);

/* The same of n F16 numbers side by side, any alignment. */
bool f16_row_is_finite(const void *p, size_t n);

/* Bytes of a block's f16 scales: how many there are and where. 0 for types whose scale is no f16. */
uint32_t quant_scale_offsets(enum dtype dtype, uint32_t offsets[2]);

#endif
