/* Numbers of eight bits as the matrix unit takes them. */
#ifndef CUDA_E4M3_CUH
#define CUDA_E4M3_CUH

#include "cuda/kernels.cuh"

/* Four e4m3 numbers as two pairs: bytes 0 and 1, bytes 2 and 3. */
__device__ __forceinline__ void f8_pairs(uint32_t w, uint32_t out[2])
{
#if __CUDA_ARCH__ >= 890
    asm("{\n\t.reg .b16 lo, hi;\n\tmov.b32 {lo, hi}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, lo;\n\tcvt.rn.f16x2.e4m3x2 %1, "
        "hi;\n\t}"
        : "=r"(out[0]), "=r"(out[1])
        : "r"(w));
#else
    /* moved into the fields of an f16 it is the number times 2^-8 */
    const __half2 factor = __float2half2_rn(256.0f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t x = __byte_perm(w, 0, i == 0 ? 0x1404 : 0x3424);
        const uint32_t y = and_or(x >> 1, 0x3f803f80u, x & 0x80008000u);
        const __half2 z = __hmul2(*(const __half2 *)&y, factor);
        out[i] = *(const uint32_t *)&z;
    }
#endif
}

#endif
