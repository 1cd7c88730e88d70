/* What files call their dtypes: the numbers of GGUF and the strings of safetensors, each mapped to a row of tensor/.
 * The numbers are the file format's and never change; gaps are types that were withdrawn from it. */
#include "format/format_int.h"

static const struct {
    uint32_t id;
    enum dtype dtype;
} gguf_dtypes[] = {
    {0, DTYPE_F32},
    {1, DTYPE_F16},
    {2, DTYPE_Q4_0},
    {3, DTYPE_Q4_1},
    {6, DTYPE_Q5_0},
    {7, DTYPE_Q5_1},
    {8, DTYPE_Q8_0},
    {10, DTYPE_Q2_K},
    {11, DTYPE_Q3_K},
    {12, DTYPE_Q4_K},
    {13, DTYPE_Q5_K},
    {14, DTYPE_Q6_K},
    {15, DTYPE_Q8_K},
    {16, DTYPE_IQ2_XXS},
    {17, DTYPE_IQ2_XS},
    {18, DTYPE_IQ3_XXS},
    {19, DTYPE_IQ1_S},
    {20, DTYPE_IQ4_NL},
    {21, DTYPE_IQ3_S},
    {22, DTYPE_IQ2_S},
    {23, DTYPE_IQ4_XS},
    {24, DTYPE_I8},
    {25, DTYPE_I16},
    {26, DTYPE_I32},
    {27, DTYPE_I64},
    {28, DTYPE_F64},
    {29, DTYPE_IQ1_M},
    {30, DTYPE_BF16},
    {34, DTYPE_TQ1_0},
    {35, DTYPE_TQ2_0},
    {39, DTYPE_MXFP4},
    {40, DTYPE_NVFP4},
    {41, DTYPE_Q1_0},
};

static const struct {
    const char *name;
    enum dtype dtype;
} safetensors_dtypes[] = {
    {"F32", DTYPE_F32},
    {"F16", DTYPE_F16},
    {"BF16", DTYPE_BF16},
    {"F8_E4M3", DTYPE_F8_E4M3},
    {"F8_E5M2", DTYPE_F8_E5M2},
    {"F8_E8M0", DTYPE_F8_E8M0},
    {"I8", DTYPE_I8},
    {"U8", DTYPE_U8},
    {"I16", DTYPE_I16},
    {"U16", DTYPE_U16},
    {"I32", DTYPE_I32},
    {"U32", DTYPE_U32},
    {"I64", DTYPE_I64},
    {"U64", DTYPE_U64},
    {"F64", DTYPE_F64},
    {"BOOL", DTYPE_BOOL},
    {"C64", DTYPE_C64},
};

enum err dtype_of_gguf(uint32_t id, enum dtype *out, struct error *e)
{
    for (size_t i = 0; i < COUNT_OF(gguf_dtypes); i++) {
        if (gguf_dtypes[i].id == id) {
            *out = gguf_dtypes[i].dtype;
            return OK;
        }
    }
    return FAIL(e, ERR_UNSUPPORTED, "tensor type %u is unknown", id);
}

enum err dtype_of_safetensors(struct str name, enum dtype *out, struct error *e)
{
    for (size_t i = 0; i < COUNT_OF(safetensors_dtypes); i++) {
        if (str_is(name, safetensors_dtypes[i].name)) {
            *out = safetensors_dtypes[i].dtype;
            return OK;
        }
    }
    char shown[40];
    return FAIL(e, ERR_UNSUPPORTED, "dtype '%s' is unknown", str_show(name, shown, sizeof shown));
}
