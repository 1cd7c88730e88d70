/* The warpgroup's matrix unit (compute capability 9.0): four neighbouring warps multiply 64 rows by a matrix in shared
 * memory, and go on while it works.
 *
 * Shared memory lies in columns of 128 bytes as tma.cuh has them: rows of 128 bytes, eight of them an atom of 1 KB at a
 * multiple of 1 KB, 16-byte unit u of row r at u ^ (r % 8). A description names the first byte and how far it is to the
 * next eight rows (`rows`), and to the next column where the matrix is several wide (`columns`).
 *
 * Warp w of the four has rows 16w .. 16w+15; what a lane holds of the result and of a first operand in registers is as
 * with mma in kernels.cuh. What others wrote to shared memory must be told by shared_ready before they meet. */
#ifndef CUDA_WGMMA_CUH
#define CUDA_WGMMA_CUH

#include "cuda/kernels.cuh"

__device__ __forceinline__ uint64_t wgmma_at(uint32_t at, uint32_t rows, uint32_t columns)
{
    return (at & 0x3ffff) >> 4 | (uint64_t)(columns >> 4) << 16 | (uint64_t)(rows >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ uint64_t wgmma_at(const void *shared, uint32_t rows, uint32_t columns)
{
    return wgmma_at((uint32_t)__cvta_generic_to_shared(shared), rows, columns);
}

/* So many 16 bytes further in the same column; addresses take the lower word alone. */
__device__ __forceinline__ uint64_t wgmma_further(uint64_t at, uint32_t units)
{
    return (at & ~(uint64_t)UINT32_MAX) | (uint32_t)((uint32_t)at + units);
}

/* This thread's writes to shared memory are seen by the matrix unit. */
__device__ __forceinline__ void shared_ready()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Before the first product of some, around registers that were changed. */
__device__ __forceinline__ void wgmma_begin()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

/* What was begun goes on by itself from here, */
__device__ __forceinline__ void wgmma_commit()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* and is done here, all but the newest LEFT of it. */
template <int LEFT = 0> __device__ __forceinline__ void wgmma_wait()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

/* Whoever reads these sums does so behind this line. */
template <int N> __device__ __forceinline__ void wgmma_hold(float (&c)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
}

/* This warpgroup's threads give registers back, or take them: N each from here on. */
template <int N> __device__ __forceinline__ void warpgroup_registers_down()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

template <int N> __device__ __forceinline__ void warpgroup_registers_up()
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* The sums of eight neighbouring columns of eight, and the names of the first 32 and more of them. */
#define SUMS_OF(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define SUMS(c, i)                                                                                                     \
    SUMS_OF(c, i), SUMS_OF(c, i + 1), SUMS_OF(c, i + 2), SUMS_OF(c, i + 3), SUMS_OF(c, i + 4), SUMS_OF(c, i + 5),      \
        SUMS_OF(c, i + 6), SUMS_OF(c, i + 7)
#define NAMES_32                                                                                                       \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                           \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                                       \
    NAMES_32                                                                                                           \
    ", "                                                                                                               \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                                 \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_96                                                                                                       \
    NAMES_64                                                                                                           \
    ", "                                                                                                               \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                                 \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_112                                                                                                      \
    NAMES_96                                                                                                           \
    ", "                                                                                                               \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_128                                                                                                      \
    NAMES_112                                                                                                          \
    ", "                                                                                                               \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define NAMES_4  "%0, %1, %2, %3"
#define NAMES_8  NAMES_4 ", %4, %5, %6, %7"
#define NAMES_16 NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#if __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA(...) (void)0
#endif

/* rows: c (64 x 8, 16, 32, 192, 224 or 256) = or += a x b^T, 16 elements of each: rows of both are k.
 * keys: c (64 x 128) = or += a x b^T, 16 elements of each: rows of both are k.
 * values: c (64 x 64, or 128) = or += a x b: 16 rows of b are k, its columns lie behind each other. */
#define WGMMA_ROWS(T, type, NT, shape, names, a_at, b_at, adds_at, ...)                                                \
    __device__ __forceinline__ void wgmma_rows(T, float(&c)[NT][4], uint64_t a, uint64_t b, bool adds)                 \
    {                                                                                                                  \
        WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " adds_at ", 0;\n\twgmma.mma_async.sync.aligned.m64" shape         \
              "k16.f32." type " {" names "}, " a_at ", " b_at ", p, 1, 1, 0, 0;\n\t}"                                  \
              : __VA_ARGS__                                                                                            \
              : "l"(a), "l"(b), "r"((uint32_t)adds));                                                                  \
    }
#define WGMMA_OF(T, type)                                                                                              \
    WGMMA_ROWS(T, type, 1, "n8", NAMES_4, "%4", "%5", "%6", SUMS_OF(c, 0))                                             \
    WGMMA_ROWS(T, type, 2, "n16", NAMES_8, "%8", "%9", "%10", SUMS_OF(c, 0), SUMS_OF(c, 1))                            \
    WGMMA_ROWS(                                                                                                        \
        T, type, 4, "n32", NAMES_16, "%16", "%17", "%18", SUMS_OF(c, 0), SUMS_OF(c, 1), SUMS_OF(c, 2), SUMS_OF(c, 3))  \
    WGMMA_ROWS(T, type, 24, "n192", NAMES_96, "%96", "%97", "%98", SUMS(c, 0), SUMS(c, 8), SUMS(c, 16))                \
    WGMMA_ROWS(T, type, 28, "n224", NAMES_112, "%112", "%113", "%114", SUMS(c, 0), SUMS(c, 8), SUMS(c, 16),            \
        SUMS_OF(c, 24), SUMS_OF(c, 25), SUMS_OF(c, 26), SUMS_OF(c, 27))                                                \
    WGMMA_ROWS(                                                                                                        \
        T, type, 32, "n256", NAMES_128, "%128", "%129", "%130", SUMS(c, 0), SUMS(c, 8), SUMS(c, 16), SUMS(c, 24))      \
    __device__ __forceinline__ void wgmma_keys(T, float(&c)[16][4], uint64_t a, uint64_t b, bool adds)                 \
    {                                                                                                                  \
        WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %66, 0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." type      \
              " {" NAMES_64 "}, %64, %65, p, 1, 1, 0, 0;\n\t}"                                                         \
              : SUMS(c, 0), SUMS(c, 8)                                                                                 \
              : "l"(a), "l"(b), "r"((uint32_t)adds));                                                                  \
    }                                                                                                                  \
    __device__ __forceinline__ void wgmma_values(T, float(&c)[8][4], const uint32_t(&a)[4], uint64_t b, bool adds)     \
    {                                                                                                                  \
        WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32." type       \
              " {" NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n\t}"                                           \
              : SUMS(c, 0)                                                                                             \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));                              \
    }                                                                                                                  \
    __device__ __forceinline__ void wgmma_values(T, float(&c)[16][4], const uint32_t(&a)[4], uint64_t b, bool adds)    \
    {                                                                                                                  \
        WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32." type      \
              " {" NAMES_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n\t}"                                           \
              : SUMS(c, 0), SUMS(c, 8)                                                                                 \
              : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((uint32_t)adds));                              \
    }

WGMMA_OF(__half, "f16.f16")
WGMMA_OF(__nv_bfloat16, "bf16.bf16")

#undef WGMMA_OF
#undef WGMMA
#undef WGMMA_ROWS
#undef NAMES_128
#undef NAMES_112
#undef NAMES_96
#undef NAMES_64
#undef NAMES_32
#undef NAMES_16
#undef NAMES_8
#undef NAMES_4
#undef SUMS
#undef SUMS_OF

#endif
