/* Descriptions of matrices for the copy engine. Host code. The driver's function is asked for by name, so that the
 * program links and starts without a driver. */
#include "cuda/tma.cuh"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
    const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

bool tma_map_boxes(struct dev *d, CUtensorMap *map, const void *base, uint32_t rank, const uint64_t *sizes,
    const uint64_t *strides, const uint32_t *box)
{
    static encode_fn encode;
    if (encode == NULL) {
        void *found = NULL;
        cudaDriverEntryPointQueryResult how;
        CUDA_DO(d, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how));
        encode = (encode_fn)found;
    }
    static_assert(sizeof(cuuint64_t) == sizeof *sizes && sizeof(cuuint32_t) == sizeof *box, "the driver's types");
    const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    const bool made =
        encode != NULL && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, rank, (void *)base, (const cuuint64_t *)sizes,
                              (const cuuint64_t *)strides, (const cuuint32_t *)box, every,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
    if (!made)
        cuda_note(d, (int)cudaErrorInvalidValue, "cuTensorMapEncodeTiled");
    return made;
}

bool tma_map(struct dev *d, CUtensorMap *map, const void *matrix, uint64_t n_rows, uint64_t row_bytes, uint64_t pitch,
    uint32_t rows, uint32_t cols)
{
    const uint64_t sizes[3] = {TMA_COLUMN, n_rows, (row_bytes + TMA_COLUMN - 1) / TMA_COLUMN};
    const uint64_t strides[2] = {pitch, TMA_COLUMN};
    const uint32_t box[3] = {TMA_COLUMN, rows, cols};
    return tma_map_boxes(d, map, matrix, 3, sizes, strides, box);
}

bool tma_map_runs(struct dev *d, CUtensorMap *map, const void *memory, uint32_t row_bytes, uint32_t cols)
{
    const uint64_t sizes[5] = {TMA_COLUMN, 8, cols, TMA_RUN / 8, (uint64_t)1 << 31};
    const uint64_t strides[4] = {row_bytes, TMA_COLUMN, 8 * (uint64_t)row_bytes, TMA_STEP};
    const uint32_t box[5] = {TMA_COLUMN, 8, cols, TMA_RUN / 8, 1};
    return tma_map_boxes(d, map, memory, 5, sizes, strides, box);
}
