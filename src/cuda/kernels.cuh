/* What the kernels of this room share: matrix-unit instructions, asynchronous copies, reductions over a block, rows of
 * activations in the forms their readers want, and launches that may overlap the tail of the kernel before them.
 *
 * Overlap (programmatic dependent launch, compute capability 9.0): a kernel started by cuda_launch may begin while the
 * one before it still runs. It must call launch_wait before it touches anything another kernel writes; before that it
 * may read weights, which nobody writes; attend_team.cu reads more, and says why it may. Every kernel of the room calls
 * it, so completion is passed down the stream. */
#ifndef CUDA_KERNELS_CUH
#define CUDA_KERNELS_CUH

#include "cuda/cuda_int.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define ALL_LANES  0xffffffffu
#define F16_MOST   65504.0f
#define LOG2E      1.4426950408889634f
#define SMEM_PLAIN ((size_t)48 << 10) /* more must be asked for by name */

/* ---- launches ------------------------------------------------------------------------------------------------------
 */

__device__ __forceinline__ void launch_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel may take free places on the chip from here on. Where blocks are large it is called when one has
 * little left to do: earlier, and the next kernel's crowd onto the few multiprocessors that have a place, which costs
 * more than it hides. Kernels that leave room beside them call it at once. */
__device__ __forceinline__ void launch_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* At once, whatever is being collected; `cluster` neighbours along x as a cluster. */
template <typename... P, typename... A>
void cuda_launch_now(
    struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, A... args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    c.gridDim = grid;
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = d->stream;
    c.attrs = attributes;
    c.numAttrs = d->capability < 90 ? 0 : cluster > 1 ? 2 : 1;
    if (shared > SMEM_PLAIN)
        cuda_note(d,
            (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            "cudaFuncSetAttribute");
    cuda_note(d, (int)cudaLaunchKernelEx(&c, kernel, P(args)...), "cudaLaunchKernelEx");
}

template <typename... P, typename... A>
void cuda_launch_beside(struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, A... args)
{
    cuda_launch_now(d, kernel, grid, threads, shared, 1, args...);
}

template <typename... P, typename... A>
void cuda_launch_cluster(
    struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, A... args)
{
    resident_flush(d);
    cuda_launch_now(d, kernel, grid, threads, shared, cluster, args...);
}

template <typename... P, typename... A>
void cuda_launch(struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, A... args)
{
    resident_flush(d);
    cuda_launch_beside(d, kernel, grid, threads, shared, args...);
}

/* ---- looking ahead -------------------------------------------------------------------------------------------------
 */

/* Piece i of n of what is read next, into the second-level cache. */
__device__ __forceinline__ void look_ahead(const struct ahead &a, uint32_t i, uint32_t n)
{
#if __CUDA_ARCH__ >= 900
    const uint64_t piece = (a.bytes / n + 15) / 16 * 16, at = i * piece;
    if (a.bytes > 0 && at < a.bytes) {
        const uint32_t bytes = (uint32_t)min(piece, a.bytes - at);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.p + at), "r"(bytes) : "memory");
    }
#endif
}

/* ---- the block ----------------------------------------------------------------------------------------------------
 */

/* The shared memory that a launch asked for. It lies behind what the kernel declares, so without a word about it at any
 * multiple of 16 bytes; asynchronous copies of neighbouring lanes are slow where their 128 bytes do not lie in line. */
#define SHARED_ROOM(name) extern __shared__ __align__(128) uint4 name[]

/* The block's first THREADS threads are here. */
template <int THREADS> __device__ __forceinline__ void meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* This warp is here: it is one then, and the compiler knows it. Named barriers 5 to 15, one for each of eight warps and
 * of three from the tenth on. */
__device__ __forceinline__ void meet_alone()
{
    const uint32_t warp = threadIdx.x / 32;
    asm volatile("bar.sync %0, 32;" ::"r"(warp < 8 ? 5 + warp : 4 + warp) : "memory");
}

/* Warps of the block, THREADS threads in all, are here, each kind at a place of its own: bar.sync, which is
 * barrier.sync.aligned, would say that all are at the same instruction. Each meets itself before: for warps that may be
 * parted the compiler has another way to the barrier, on which racecheck does not follow. */
template <int ID, int THREADS> __device__ __forceinline__ void meet_apart()
{
    __syncwarp(); /* so that what follows is not put under a condition, where racecheck loses count */
    meet_alone();
    asm volatile("barrier.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

/* Of the block's teams of THREADS neighbours, all threads of this one's are here. Named barriers 2 and on. */
template <int THREADS> __device__ __forceinline__ void meet_team()
{
    asm volatile("bar.sync %0, %1;" ::"r"(2 + threadIdx.x / THREADS), "n"(THREADS) : "memory");
}

/* THREADS threads are here, whole warps, all at the same instruction. */
template <int ID, int THREADS> __device__ __forceinline__ void meet_named()
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

/* What was there before; all that the block's threads wrote before they met is seen by whoever adds after it, and what
 * they read once they have met again was written before the last who added. By one thread. */
__device__ __forceinline__ uint32_t add_ordered(uint32_t *p, uint32_t x)
{
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(x) : "memory");
    return old;
}

/* A barrier over all blocks, which must be on the chip at once, in two halves, by one thread: this block has come; and
 * all have, `round` times. */
__device__ __forceinline__ void chip_add(uint32_t *counter)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ __forceinline__ void chip_see(const uint32_t *counter, uint32_t round)
{
    uint32_t seen;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    while (seen < round * gridDim.x);
}

/* Sums on their way between blocks: seen as they are written, each in one piece, and nothing is said about others. */
__device__ __forceinline__ float4 load_sums(const float4 *p)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_sums(float4 *p, float4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}

/* Not moved over the wait for others' sums. */
__device__ __forceinline__ float early_load(const float *p)
{
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p) : "memory");
    return x;
}

/* The 128 bytes there, into the second-level cache. */
__device__ __forceinline__ void fetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

/* The same, which the compiler may move. */
__device__ __forceinline__ void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* For all the compiler knows these change here, so it does not make them again later. A macro: behind a function's
 * references instructions come in another order. */
#define KEEP_REGISTERS(a, b, c, d, e, f) asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f))

/* The thread, found anew: what is made of it does not stay in registers from one phase to the next. */
__device__ __forceinline__ uint32_t thread_anew()
{
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* The same for another number. */
__device__ __forceinline__ uint32_t anew(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* ---- reductions ----------------------------------------------------------------------------------------------------
 */

/* Over the block, in a fixed order; every thread gets it. At most 32 warps. */
template <bool IS_MAX> __device__ inline float block_reduce(float x)
{
    __shared__ float part[32];
    for (int step = 16; step > 0; step /= 2) {
        const float y = __shfl_xor_sync(ALL_LANES, x, step);
        x = IS_MAX ? fmaxf(x, y) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    float all = part[0];
    for (unsigned i = 1; i < blockDim.x / 32; i++)
        all = IS_MAX ? fmaxf(all, part[i]) : all + part[i];
    __syncthreads();
    return all;
}

/* ---- clusters ------------------------------------------------------------------------------------------------------
 */

/* Everybody of the cluster is here, and sees what was written before. */
__device__ __forceinline__ void cluster_meet()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Everybody of the cluster is here; nothing is said about what was written. */
__device__ __forceinline__ void cluster_gather()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* What lies at the same place in block `rank` of the cluster. */
__device__ __forceinline__ float cluster_read(const float *shared, uint32_t rank)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t here = (uint32_t)__cvta_generic_to_shared(shared);
    uint32_t there;
    float x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
#else
    return *shared; /* a cluster of one */
#endif
}

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

/* Where rows go; NULL where nobody wants that form. */
struct act_rows {
    float *f32;
    __half *f16;
    __nv_bfloat16 *bf16;
};

inline struct act_rows act_rows_of(struct acts *a, uint32_t forms)
{
    a->has_f8 = false;
    struct act_rows r = {(forms & ACT_F32) ? a->f32 : NULL, (forms & (ACT_F16 | ACT_F8)) ? (__half *)a->f16 : NULL,
        (forms & ACT_BF16) ? (__nv_bfloat16 *)a->bf16 : NULL};
    return r;
}

/* Values beyond f16 become its largest, so that one outlier cannot make a row infinite; NaN stays NaN. */
__device__ __forceinline__ __half half_of(float x)
{
    return __float2half_rn(fabsf(x) > F16_MOST ? copysignf(F16_MOST, x) : x);
}

__device__ __forceinline__ float as_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

__device__ __forceinline__ void act_put(struct act_rows out, size_t at, float x)
{
    if (out.f32 != NULL)
        out.f32[at] = x;
    if (out.f16 != NULL)
        out.f16[at] = half_of(x);
    if (out.bf16 != NULL)
        out.bf16[at] = __float2bfloat16_rn(x);
}

__device__ __forceinline__ uint32_t pack_half(float lo, float hi)
{
    const __half2 h = __halves2half2(half_of(lo), half_of(hi));
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ uint32_t act_pair(__half, float lo, float hi)
{
    return pack_half(lo, hi);
}

__device__ __forceinline__ uint32_t act_pair(__nv_bfloat16, float lo, float hi)
{
    return pack_bf16(lo, hi);
}

/* Four neighbours at once; at is a multiple of 4. */
__device__ __forceinline__ void act_put4(struct act_rows out, size_t at, float4 x)
{
    if (out.f32 != NULL)
        *(float4 *)(out.f32 + at) = x;
    if (out.f16 != NULL)
        *(uint2 *)(out.f16 + at) = make_uint2(pack_half(x.x, x.y), pack_half(x.z, x.w));
    if (out.bf16 != NULL)
        *(uint2 *)(out.bf16 + at) = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
}

/* Two neighbours; at is even. */
__device__ __forceinline__ void act_put2(struct act_rows out, size_t at, float x, float y)
{
    if (out.f32 != NULL)
        *(float2 *)(out.f32 + at) = make_float2(x, y);
    if (out.f16 != NULL)
        *(uint32_t *)(out.f16 + at) = pack_half(x, y);
    if (out.bf16 != NULL)
        *(uint32_t *)(out.bf16 + at) = pack_bf16(x, y);
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float glu_of(float gate, float up, enum glu kind)
{
    /* beyond 2^126 the reciprocal is the limit: nothing */
    const float y = kind == GLU_SILU
                        ? gate * reciprocal_fast(1.0f + exp2_fast(-gate * LOG2E))
                        : 0.5f * gate * (1.0f + tanhf(0.797884561f * (gate + 0.044715f * gate * gate * gate)));
    return y * up;
}

/* Four neighbours of row r that a product left unscaled, from column `at` of matrix m. */
__device__ __forceinline__ float4 scaled4(const struct scales &s, float4 x, size_t r, int m, uint32_t at)
{
    if (s.row == NULL)
        return x;
    const float row = s.row[r];
    const float4 column = *(const float4 *)(s.column[m] + at);
    return make_float4(x.x * row * column.x, x.y * row * column.y, x.z * row * column.z, x.w * row * column.w);
}

/* ---- plain numbers -------------------------------------------------------------------------------------------------
 */

__device__ __forceinline__ float float_load(const void *p, size_t at, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F16: return __half2float(((const __half *)p)[at]);
    case DTYPE_BF16: return __bfloat162float(((const __nv_bfloat16 *)p)[at]);
    case DTYPE_F8_E4M3: return (float)((const __nv_fp8_e4m3 *)p)[at];
    default: return ((const float *)p)[at];
    }
}

__device__ __forceinline__ void float_store(void *p, size_t at, enum dtype dtype, float x)
{
    switch (dtype) {
    case DTYPE_F16: ((__half *)p)[at] = __float2half_rn(x); break;
    case DTYPE_BF16: ((__nv_bfloat16 *)p)[at] = __float2bfloat16_rn(x); break;
    case DTYPE_F8_E4M3: ((__nv_fp8_e4m3 *)p)[at] = __nv_fp8_e4m3(x); break;
    default: ((float *)p)[at] = x; break;
    }
}

/* ---- the matrix unit -----------------------------------------------------------------------------------------------
 */

/* c (16 x 8) += a (16 x 16) x b (16 x 8). Lane 4g+t holds rows g and g+8: a = {(g, 2t), (g+8, 2t), (g, 2t+8),
 * (g+8, 2t+8)}, two neighbours each; b = {(2t, g), (2t+8, g)}; c = {(g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)}. */
__device__ __forceinline__ void mma(
    __half, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma(
    __nv_bfloat16, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* c (16 x 8) += a (16 x 32) x b (32 x 8). Lane 4g+t holds a = {(g, 4t), (g+8, 4t), (g, 4t+16), (g+8, 4t+16)}, four
 * neighbours each; b = {(4t, g), (4t+16, g)}; c as floats have it. */
__device__ __forceinline__ void mma(
    int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A register that holds whatever it held. */
__device__ __forceinline__ uint32_t nothing()
{
    uint32_t x;
    asm("" : "=r"(x));
    return x;
}

/* For values that are known to be small: weights of attention, heads. */
__device__ __forceinline__ uint32_t pack2(__half, float lo, float hi)
{
    const __half2 h = __floats2half2_rn(lo, hi);
    return *(const uint32_t *)&h;
}

__device__ __forceinline__ uint32_t pack2(__nv_bfloat16, float lo, float hi)
{
    return pack_bf16(lo, hi);
}

/* Four 8 x 8 matrices of 16-bit elements; lane i names row i % 8 of matrix i / 8. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(uint32_t r[4], const void *shared_row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared_row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

/* An 8 x 8 matrix of 16-bit elements, of which lane 4g+t has (g, 2t) and (g, 2t+1): its columns become the rows. */
__device__ __forceinline__ uint32_t turn_matrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* 16 bytes from global to shared memory behind the thread's back; zeros when there is nothing to read. */
__device__ __forceinline__ void copy_async(void *shared, const void *global, bool there)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(n) : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* The same to an address, of what is surely there; its neighbours come along. */
__device__ __forceinline__ void copy16(uint32_t to, const unsigned char *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* All but the newest LEFT groups have arrived. */
template <int LEFT> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* 16 bytes of a weight: read once, so it shall not push anything out of the first-level cache. */
__device__ __forceinline__ uint4 load_once(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* What nobody writes, asked for at once. */
__device__ __forceinline__ float4 load_now(const float4 *p)
{
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}

/* What others wrote, past the first-level cache. */
__device__ __forceinline__ uint4 load_past(const void *p)
{
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* 16 bytes of shared memory where `own`; else v stays. */
__device__ __forceinline__ void load_own(uint4 &v, uint32_t at, bool own)
{
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "r"(at), "r"((uint32_t)own));
}

/* 16 bytes of global or shared memory, not moved over other loads. */
__device__ __forceinline__ uint4 load_shared(const void *p)
{
    uint4 v;
    asm volatile("ld.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

/* The larger one; NaN where one is. */
__device__ __forceinline__ float larger(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/* (a & b) | c in one instruction. */
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* (a & b) ^ c in one instruction. */
__device__ __forceinline__ uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

#endif
