/* Rows of activations as e4m3 with a scale each, by the block that makes them. */
#ifndef CUDA_ROWS_F8_CUH
#define CUDA_ROWS_F8_CUH

#include "cuda/kernels.cuh"

/* A row as e4m3: scale = max|x| / 448, so that the largest is representable; a row of zeros has scale 0. Every thread
 * of the block has some quads of it, those at threadIdx.x, + blockDim.x, ...; all that it does not have are zeros. */
template <int QUADS>
__device__ __forceinline__ void row_to_f8(const float4 (&x)[QUADS], uint32_t quads, unsigned char *row, float *scale)
{
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++)
        most = fmaxf(most, fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)), fmaxf(fabsf(x[i].z), fabsf(x[i].w))));
    most = block_reduce<true>(most);
    const float inverse = most > 0.0f ? 448.0f / most : 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const uint32_t at = threadIdx.x + i * blockDim.x;
        const uint32_t lo =
            __nv_cvt_float2_to_fp8x2(make_float2(x[i].x * inverse, x[i].y * inverse), __NV_SATFINITE, __NV_E4M3);
        const uint32_t hi =
            __nv_cvt_float2_to_fp8x2(make_float2(x[i].z * inverse, x[i].w * inverse), __NV_SATFINITE, __NV_E4M3);
        if (at < quads)
            *(uint32_t *)(row + 4 * at) = lo | hi << 16;
    }
    if (threadIdx.x == 0)
        *scale = most / 448.0f;
}

#endif
