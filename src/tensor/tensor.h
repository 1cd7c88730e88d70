/* tensor: what numbers look like in memory. Owns the table of dtypes, the quantised block layouts (quant.h), the plain
 * C conversions between every dtype and f32, and the view by which the other rooms name a tensor's bytes.
 *
 * It knows no file format: the numbers GGUF gives to its types and the strings of safetensors are mapped to enum dtype
 * by format/. It allocates nothing and owns no bytes: a view borrows what somebody else keeps alive (usually a map).
 *
 * A block is the smallest unit a dtype can be cut into: 1 element for plain numbers, 32 or 256 elements that share
 * scales for the quantised ones. Blocks run along the last dimension, so a row is always whole blocks and a row is the
 * unit of conversion. All layouts are little endian, as the files are.
 *
 * Conversions to f32 are exact in the sense of the format: one fixed float expression per dtype, no fused multiply-add,
 * equal bit for bit on every compiler. Conversions from f32 are deterministic.
 *
 * Threads: any; nothing here has state. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include "base/base.h"
#include "base/limits.h"

/* One row of the table in dtype.c each. The values are ours and may change: never write them to a file. */
enum dtype {
    /* plain numbers that quern converts */
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F8_E4M3, /* the "fn" kind: no infinity, 0x7f and 0xff are NaN, largest 448 */
    DTYPE_F8_E5M2, /* IEEE-like: infinities and NaNs, largest 57344 */
    DTYPE_I8,

    /* plain numbers that are only described: sizes are known, there is no conversion */
    DTYPE_F64,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_U16,
    DTYPE_U32,
    DTYPE_U64,
    DTYPE_BOOL, /* one byte */
    DTYPE_C64,  /* two f32 */
    DTYPE_F8_E8M0,

    /* GGUF blocks that quern converts; layouts in quant.h */
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_Q8_K,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_MXFP4,

    /* GGUF blocks that are only described, so that a file that holds them can be inspected and refused by name */
    DTYPE_IQ1_S,
    DTYPE_IQ1_M,
    DTYPE_IQ2_XXS,
    DTYPE_IQ2_XS,
    DTYPE_IQ2_S,
    DTYPE_IQ3_XXS,
    DTYPE_IQ3_S,
    DTYPE_TQ1_0,
    DTYPE_TQ2_0,
    DTYPE_NVFP4,
    DTYPE_Q1_0,

    DTYPE_COUNT
};

enum dtype_flag {
    DTYPE_IS_WEIGHT = 1u << 0, /* a model may hold its matrices in it: self-contained, and quern converts it to f32 */
    DTYPE_IS_QUANTISED = 1u << 1, /* blocks with shared scales */
    DTYPE_IS_FLOAT = 1u << 2,     /* plain floating point, one number per element */
};

/* Convert n elements, a multiple of the block's, between a row and f32. src and dst do not overlap. Rows need no
 * alignment beyond 1: the block structs are packed by their nature and plain numbers are read by bytes. */
typedef void dequant_fn(const void *src, float *dst, size_t n);
typedef void quant_fn(const float *src, void *dst, size_t n);

struct dtype_info {
    const char *name;     /* "Q4_K": as GGUF and safetensors spell it */
    uint16_t block_elems; /* at least 1 */
    uint16_t block_bytes; /* at least 1 */
    uint32_t flags;       /* of enum dtype_flag */
    dequant_fn *dequant;  /* NULL when the dtype is only described */
    quant_fn *quant;      /* NULL when the dtype is only described; quant_row checks the values first */
    float quant_max;      /* largest |x| quant takes, so that no scale overflows; 0 = every value, NaN included */
};

/* The row of a dtype; dtype < DTYPE_COUNT. */
const struct dtype_info *dtype_info(enum dtype dtype);
const char *dtype_name(enum dtype dtype);

/* By name, letter case ignored; ERR_NOT_FOUND names the text. */
enum err dtype_by_name(struct str name, enum dtype *out, struct error *e) MUST_CHECK;

/* Bytes of n_elems in whole blocks. ERR_FORMAT for a partial block or a size beyond size_t. */
enum err dtype_bytes(enum dtype dtype, uint64_t n_elems, size_t *bytes, struct error *e) MUST_CHECK;

/* A tensor somebody else keeps in memory. Row-major and contiguous: shape[0] is the outermost dimension and
 * shape[n_dims - 1] the row, which is whole blocks; so a weight matrix is [out][in], as in HF checkpoints, whatever
 * order its file lists the dimensions in. */
struct tensor_view {
    enum dtype dtype;
    uint32_t n_dims;                 /* 0 = a scalar, one element */
    uint64_t shape[TENSOR_DIMS_MAX]; /* elements; those from n_dims on are 1 */
    const void *data;                /* borrowed */
    size_t bytes;                    /* all of it: rows x row bytes */
};

/* Bytes a tensor of that shape takes. Checks the number of dimensions, the products and that rows are whole blocks;
 * ERR_FORMAT (or ERR_LIMIT for n_dims) names the dimension. A dimension of 0 gives 0 bytes. */
enum err tensor_shape_bytes(
    enum dtype dtype, uint32_t n_dims, const uint64_t *shape, size_t *bytes, struct error *e) MUST_CHECK;

/* Fill a view over data, which must be exactly the bytes the shape asks for. */
enum err tensor_view_init(struct tensor_view *v, enum dtype dtype, uint32_t n_dims, const uint64_t *shape,
    const void *data, size_t bytes, struct error *e) MUST_CHECK;

uint64_t tensor_n_elems(const struct tensor_view *v);
uint64_t tensor_n_rows(const struct tensor_view *v); /* product of all dimensions but the last; 1 for a scalar */
uint64_t tensor_row_elems(const struct tensor_view *v);
size_t tensor_row_bytes(const struct tensor_view *v);
const void *tensor_row(const struct tensor_view *v, uint64_t i_row); /* i_row < tensor_n_rows */

/* Convert n elements of any dtype that has a conversion; ERR_UNSUPPORTED names a dtype that has none, ERR_INVALID a
 * partial block. The same inputs give the same bytes on every machine. */
enum err dequant_row(enum dtype dtype, const void *src, float *dst, size_t n, struct error *e) MUST_CHECK;

/* The other way. Plain floats round to nearest, ties to even; beyond the range they become infinity (NaN in F8_E4M3,
 * which has none). I8 rounds likewise, saturates, and takes NaN as 0. The quantised types refuse a value that is
 * not finite or is larger than their scales can hold: ERR_INVALID names the element, and dst is untouched. */
enum err quant_row(enum dtype dtype, const float *src, void *dst, size_t n, struct error *e) MUST_CHECK;

#endif
