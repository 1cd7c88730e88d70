/* The table of dtypes, one row each, and what follows from a row alone: sizes, names, and the dispatch of conversions.
 * A new dtype is an enumerator in tensor.h, a row here, its conversions in the file of its family, and a row in the
 * tests. */
#include "tensor/tensor_int.h"

#include <ctype.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define W DTYPE_IS_WEIGHT
#define Q DTYPE_IS_QUANTISED
#define F DTYPE_IS_FLOAT

/* A dtype that quern converts: its block struct or type, and the functions <stem>_dequant and <stem>_quant. */
#define CODEC(id, elems, type, flag_bits, stem, max)                                                                   \
    [DTYPE_##id] = {#id, (elems), sizeof(type), (flag_bits), stem##_dequant, stem##_quant, (max)}
/* A dtype that is only described. */
#define PLAIN(id, bytes_, flag_bits) [DTYPE_##id] = {#id, 1, (bytes_), (flag_bits), NULL, NULL, 0}
#define BLOCK(id, elems, bytes_)     [DTYPE_##id] = {#id, (elems), (bytes_), Q, NULL, NULL, 0}

static const struct dtype_info table[DTYPE_COUNT] = {
    CODEC(F32, 1, float, W | F, f32, 0),
    CODEC(F16, 1, uint16_t, W | F, f16, 0),
    CODEC(BF16, 1, uint16_t, W | F, bf16, 0),
    CODEC(F8_E4M3, 1, uint8_t, W | F, f8_e4m3, 0),
    CODEC(F8_E5M2, 1, uint8_t, W | F, f8_e5m2, 0),
    CODEC(I8, 1, int8_t, 0, i8, 0),

    PLAIN(F64, 8, F),
    PLAIN(I16, 2, 0),
    PLAIN(I32, 4, 0),
    PLAIN(I64, 8, 0),
    PLAIN(U8, 1, 0),
    PLAIN(U16, 2, 0),
    PLAIN(U32, 4, 0),
    PLAIN(U64, 8, 0),
    PLAIN(BOOL, 1, 0),
    PLAIN(C64, 8, 0),
    PLAIN(F8_E8M0, 1, F),

    CODEC(Q4_0, QK, struct block_q4_0, W | Q, q4_0, F16_MAX),
    CODEC(Q4_1, QK, struct block_q4_1, W | Q, q4_1, F16_MAX),
    CODEC(Q5_0, QK, struct block_q5_0, W | Q, q5_0, F16_MAX),
    CODEC(Q5_1, QK, struct block_q5_1, W | Q, q5_1, F16_MAX),
    CODEC(Q8_0, QK, struct block_q8_0, W | Q, q8_0, F16_MAX),
    CODEC(Q2_K, QK_K, struct block_q2_k, W | Q, q2_k, F16_MAX),
    CODEC(Q3_K, QK_K, struct block_q3_k, W | Q, q3_k, F16_MAX),
    CODEC(Q4_K, QK_K, struct block_q4_k, W | Q, q4_k, F16_MAX),
    CODEC(Q5_K, QK_K, struct block_q5_k, W | Q, q5_k, F16_MAX),
    CODEC(Q6_K, QK_K, struct block_q6_k, W | Q, q6_k, F16_MAX),
    CODEC(Q8_K, QK_K, struct block_q8_k, Q, q8_k, FLT_MAX),
    CODEC(IQ4_NL, QK, struct block_iq4_nl, W | Q, iq4_nl, F16_MAX),
    CODEC(IQ4_XS, QK_K, struct block_iq4_xs, W | Q, iq4_xs, F16_MAX),
    CODEC(MXFP4, QK, struct block_mxfp4, W | Q, mxfp4, FLT_MAX),

    BLOCK(IQ1_S, 256, 50),
    BLOCK(IQ1_M, 256, 56),
    BLOCK(IQ2_XXS, 256, 66),
    BLOCK(IQ2_XS, 256, 74),
    BLOCK(IQ2_S, 256, 82),
    BLOCK(IQ3_XXS, 256, 98),
    BLOCK(IQ3_S, 256, 110),
    BLOCK(TQ1_0, 256, 54),
    BLOCK(TQ2_0, 256, 66),
    BLOCK(NVFP4, 64, 36),
    BLOCK(Q1_0, 128, 18),
};

const struct dtype_info *dtype_info(enum dtype dtype)
{
    assert((unsigned)dtype < DTYPE_COUNT);
    return &table[dtype];
}

const char *dtype_name(enum dtype dtype)
{
    return dtype_info(dtype)->name;
}

static bool name_is(struct str text, const char *name)
{
    if (text.n != strlen(name))
        return false;
    for (size_t i = 0; i < text.n; i++)
        if (toupper((unsigned char)text.p[i]) != name[i])
            return false;
    return true;
}

enum err dtype_by_name(struct str name, enum dtype *out, struct error *e)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (name_is(name, table[i].name)) {
            *out = (enum dtype)i;
            return OK;
        }
    char shown[64];
    return FAIL(e, ERR_NOT_FOUND, "no dtype is called '%s'", str_show(name, shown, sizeof shown));
}

enum err dtype_bytes(enum dtype dtype, uint64_t n_elems, size_t *bytes, struct error *e)
{
    const struct dtype_info *info = dtype_info(dtype);
    if (n_elems % info->block_elems != 0)
        return FAIL(e, ERR_FORMAT, "%" PRIu64 " elements are not whole blocks of %s, which has %u", n_elems, info->name,
            (unsigned)info->block_elems);
    const uint64_t n_blocks = n_elems / info->block_elems;
    if (n_blocks > SIZE_MAX || !size_mul((size_t)n_blocks, info->block_bytes, bytes))
        return FAIL(
            e, ERR_FORMAT, "%" PRIu64 " elements of %s take more bytes than can be addressed", n_elems, info->name);
    return OK;
}

/* What both directions ask first. */
static enum err check_row(const struct dtype_info *info, bool has_conversion, size_t n, struct error *e)
{
    if (!has_conversion)
        return FAIL(e, ERR_UNSUPPORTED, "quern has no conversion for dtype %s", info->name);
    if (n % info->block_elems != 0)
        return FAIL(e, ERR_INVALID, "a row of %zu elements is not whole blocks of %s, which has %u", n, info->name,
            (unsigned)info->block_elems);
    return OK;
}

enum err dequant_row(enum dtype dtype, const void *src, float *dst, size_t n, struct error *e)
{
    const struct dtype_info *info = dtype_info(dtype);
    TRY(check_row(info, info->dequant != NULL, n, e));
    if (n > 0)
        info->dequant(src, dst, n);
    return OK;
}

enum err quant_row(enum dtype dtype, const float *src, void *dst, size_t n, struct error *e)
{
    const struct dtype_info *info = dtype_info(dtype);
    TRY(check_row(info, info->quant != NULL, n, e));
    if (info->quant_max > 0)
        for (size_t i = 0; i < n; i++)
            if (!(fabsf(src[i]) <= info->quant_max))
                return FAIL(e, ERR_INVALID, "element %zu of the row is %g; %s takes finite values up to %g", i,
                    (double)src[i], info->name, (double)info->quant_max);
    if (n > 0)
        info->quant(src, dst, n);
    return OK;
}
