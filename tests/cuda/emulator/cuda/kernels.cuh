/* What src/cuda/kernels.cuh gives to kernels, on the host: the kernels of the room, compiled as plain C++ with this
 * header in the place of that one, run without a card. A thread of the device is a fiber; fibers take turns, and a
 * barrier is a turn that waits. So indices, bounds, barriers and the order of sums are tested as they are written. What
 * is not: the machine's own (memory ordering, overlap of launches, how fast it is).
 *
 * Blocks run one after the other; where all threads of one wait for another block, the next is begun, and they take
 * turns. When nobody can go on the test ends. Shared memory begins as NaN. Asynchronous copies arrive only when they
 * are waited for, so that a missing wait is seen; those that are asked for before launch_wait, of what the kernel
 * before writes (emulated_is_young), arrive as NaN. */
#ifndef EMULATOR_KERNELS_CUH
#define EMULATOR_KERNELS_CUH

#include "cuda/cuda_int.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#undef NDEBUG /* what is asserted here is tested */
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __noinline__
#undef __shared__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __noinline__
#define __shared__ static thread_local /* of the thread that has the block's fibers */

#define ALL_LANES         0xffffffffu
#define F16_MOST          65504.0f
#define LOG2E             1.4426950408889634f
#define SHARED_ROOM(name) uint4 *name = (uint4 *)emulated_block().shared

/* ---- fibers --------------------------------------------------------------------------------------------------------
 */

struct emulated_meeting {
    size_t n_here, expected;
    uint64_t turn;
};

struct emulated_block_state {
    unsigned char *shared;
    uint3 index;
    emulated_meeting named[16], group[8]; /* group: of a warpgroup */
};

/* What the lanes of a warp show each other; two sides, so that one meeting an exchange is enough. */
struct emulated_warp {
    emulated_meeting meeting;
    uint64_t n_shown[32];
    uint32_t a[2][32][4], b[2][32][2], word[2][32];
    const void *row[2][32];
};

/* 16 bytes on their way, and what they were when they were asked for: if somebody writes them meanwhile, NaN arrives.
 */
struct emulated_copy {
    void *to;
    const void *from; /* NULL: zeros */
    uint4 was;
    bool is_young;
};

struct emulated_copies {
    std::vector<std::vector<emulated_copy>> groups;
    std::vector<emulated_copy> open;
};

/* A product of a warpgroup's matrix unit, until it is waited for. */
struct emulated_product {
    void (*run)(const emulated_product &);
    float *c;
    uint64_t a, b;
    bool adds;
    uint32_t group; /* commits before it */
};

struct emulated_fiber {
    void *sp;
    std::unique_ptr<unsigned char[]> stack;
    uint3 thread;
    bool is_done, has_waited, lags;
    emulated_copies copies;
    std::vector<emulated_product> products;
    uint32_t n_commits;
};

extern __thread emulated_fiber *emulated_now;
extern uint3 emulated_grid, emulated_size;
extern std::function<bool(const void *)> emulated_is_young; /* empty: nothing is */
extern std::function<bool()> emulated_hurries;              /* plants an error: who does not wait at barriers */
extern std::function<bool()> emulated_lags;                 /* who goes on only when nobody else of any block can */
extern bool emulated_is_backwards;                          /* the last block and the last thread come first */

emulated_block_state &emulated_block();
emulated_warp &emulated_lanes();
unsigned char *emulated_room();                                   /* where addresses in shared memory begin */
unsigned char *emulated_there(const void *shared, uint32_t rank); /* the same place in a block of the cluster */
[[noreturn]] void emulated_fail(const char *what);
void emulated_yield();
void emulated_go_on(); /* what was waited for has come */
void emulated_tell();  /* others may go on: they do so at once */
void emulated_meet(emulated_meeting &m, size_t expected);
void emulated_meet_cluster();
void emulated_start_again(); /* in a child process, which has no threads but one */
void emulated_run(dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, const std::function<void()> &body);

template <class Done> void emulated_until(Done &&done)
{
    while (!done())
        emulated_yield();
    emulated_go_on();
}

#define threadIdx (emulated_now->thread)
#define blockIdx  (emulated_block().index)
#define gridDim   emulated_grid
#define blockDim  emulated_size

inline void __syncthreads()
{
    emulated_meet(emulated_block().named[0], emulated_size.x);
}
inline void emulated_meet_warp()
{
    emulated_meet(emulated_lanes().meeting, 32);
}
inline void __syncwarp()
{
    emulated_meet_warp();
}
template <int THREADS> inline void meet()
{
    emulated_meet(emulated_block().named[1], THREADS);
}
inline void meet_alone()
{
    emulated_meet_warp();
}
template <int ID, int THREADS> inline void meet_apart()
{
    emulated_meet(emulated_block().named[ID], THREADS);
}
template <int ID, int THREADS> inline void meet_named()
{
    emulated_meet(emulated_block().named[ID], THREADS);
}
template <int THREADS> inline void meet_team()
{
    emulated_meet(emulated_block().named[2 + threadIdx.x / THREADS], THREADS);
}
inline void cluster_meet()
{
    emulated_meet_cluster();
}
inline void cluster_gather()
{
    emulated_meet_cluster();
}
inline float cluster_read(const float *shared, uint32_t rank)
{
    return *(const float *)emulated_there(shared, rank);
}

/* ---- launches ------------------------------------------------------------------------------------------------------
 */

inline void launch_wait()
{
    emulated_now->has_waited = true;
}
inline void launch_next()
{
}
inline void __threadfence()
{
}
inline void look_ahead(const struct ahead &, uint32_t, uint32_t)
{
}

template <typename... P, typename... A>
void cuda_launch_cluster(
    struct dev *, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, uint32_t cluster, A... args)
{
    emulated_run(grid, threads, shared, cluster, [=] { kernel(P(args)...); });
}
template <typename... P, typename... A>
void cuda_launch(struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, A... args)
{
    cuda_launch_cluster(d, kernel, grid, threads, shared, 1, args...);
}
template <typename... P, typename... A>
void cuda_launch_beside(struct dev *d, void (*kernel)(P...), dim3 grid, uint32_t threads, size_t shared, A... args)
{
    cuda_launch_cluster(d, kernel, grid, threads, shared, 1, args...);
}

/* ---- arithmetic ----------------------------------------------------------------------------------------------------
 */

inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fsub_rn(float a, float b)
{
    return a - b;
}
inline float __fmul_rn(float a, float b)
{
    return a * b;
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}
inline double __dsub_rn(double a, double b)
{
    return a - b;
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline double __ddiv_rn(double a, double b)
{
    return a / b;
}
inline float __fdividef(float a, float b)
{
    return a / b;
}
inline float rsqrtf(float x)
{
    return 1.0f / std::sqrt(x);
}
inline float exp2_fast(float x)
{
    return std::exp2(x);
}
template <class To, class From> To emulated_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
inline float __uint_as_float(uint32_t x)
{
    return emulated_bits<float>(x);
}
inline int __float2int_rn(float x)
{
    return (int)std::nearbyint(x);
}
inline uint32_t __float_as_uint(float x)
{
    return emulated_bits<uint32_t>(x);
}
inline long long __double_as_longlong(double x)
{
    return emulated_bits<long long>(x);
}
inline double __longlong_as_double(long long x)
{
    return emulated_bits<double>(x);
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    const auto one = [](__half x, __half y, __half z) {
        return __double2half((double)__half2float(x) * (double)__half2float(y) + (double)__half2float(z));
    };
    return __halves2half2(
        one(__low2half(a), __low2half(b), __low2half(c)), one(__high2half(a), __high2half(b), __high2half(c)));
}
inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c)
{
    return (a & b) | c;
}
inline uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c)
{
    return (a & b) ^ c;
}
inline float larger(float a, float b)
{
    return a != a || b != b ? NAN : std::max(a, b);
}
inline float reciprocal_fast(float x)
{
    return 1.0f / x;
}
inline uint32_t thread_anew()
{
    return threadIdx.x;
}
inline uint32_t nothing()
{
    return 0x7fc17fc1u;
}
inline uint32_t anew(uint32_t x)
{
    return x;
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select)
{
    const uint64_t bytes = (uint64_t)y << 32 | x;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(bytes >> 8 * (select >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
using std::isfinite;
template <class A, class B> auto min(A a, B b)
{
    using C = std::common_type_t<A, B>;
    return std::min<C>((C)a, (C)b);
}
template <class A, class B> auto max(A a, B b)
{
    using C = std::common_type_t<A, B>;
    return std::max<C>((C)a, (C)b);
}
template <class T, class U> T atomicAdd(T *p, U x)
{
    const T before = *p;
    *p += x;
    return before;
}

inline uint32_t add_ordered(uint32_t *p, uint32_t x)
{
    return atomicAdd(p, x);
}
inline void chip_add(uint32_t *counter)
{
    ++*counter;
    emulated_tell();
}
inline void chip_see(const uint32_t *counter, uint32_t round)
{
    emulated_until([&] { return *(const volatile uint32_t *)counter >= round * gridDim.x; });
}
template <class T> T atomicMax(T *p, T x)
{
    const T before = *p;
    *p = std::max(before, x);
    return before;
}

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

template <class T> T __ldg(const T *p)
{
    return *p;
}
template <class T> T __ldcg(const T *p)
{
    return *p;
}
inline uint4 load_once(const void *p)
{
    assert((uintptr_t)p % 16 == 0);
    return *(const uint4 *)p;
}
inline uint4 load_shared(const void *p)
{
    assert((uintptr_t)p % 16 == 0);
    return *(const uint4 *)p;
}
/* Whoever asks for sums that have not come lets others go on. */
inline float4 load_sums(const float4 *p)
{
    const float4 v = *p;
    for (const float x : {v.x, v.y, v.z, v.w})
        if (emulated_bits<uint32_t>(x) == 0) {
            emulated_yield();
            break;
        }
    return v;
}
inline void store_sums(float4 *p, float4 v)
{
    *p = v;
}
inline float early_load(const float *p)
{
    return *p;
}
inline void fetch_line(const void *)
{
}
#define KEEP_REGISTERS(...)
inline void prefetch_line(const void *)
{
}
inline float4 load_now(const float4 *p)
{
    return *p;
}
inline uint4 load_past(const void *p)
{
    assert((uintptr_t)p % 16 == 0);
    return *(const uint4 *)p;
}
inline void *__cvta_shared_to_generic(size_t at)
{
    return emulated_room() + (int32_t)at;
}
inline void load_own(uint4 &v, uint32_t at, bool own)
{
    if (own)
        v = load_past(__cvta_shared_to_generic(at));
}
inline void copy_async(void *to, const void *from, bool there)
{
    assert((uintptr_t)to % 16 == 0 && (!there || (uintptr_t)from % 16 == 0));
    const bool young = there && !emulated_now->has_waited && emulated_is_young && emulated_is_young(from);
    emulated_now->copies.open.push_back({to, there ? from : NULL, there ? *(const uint4 *)from : uint4{}, young});
    std::memset(to, 0xff, 16);
}
inline void emulated_arrive(const emulated_copy &c)
{
    if (c.from == NULL || (!c.is_young && std::memcmp(c.from, &c.was, 16) == 0))
        std::memcpy(c.to, &c.was, 16);
}
inline void copy16(uint32_t to, const unsigned char *from)
{
    copy_async(__cvta_shared_to_generic(to), from, true);
}
inline void copy_commit()
{
    emulated_now->copies.groups.push_back(emulated_now->copies.open);
    emulated_now->copies.open.clear();
}
template <int LEFT> void copy_wait()
{
    auto &groups = emulated_now->copies.groups;
    while (groups.size() > LEFT) {
        for (const emulated_copy &c : groups[0])
            emulated_arrive(c);
        groups.erase(groups.begin());
    }
}

/* ---- activations ---------------------------------------------------------------------------------------------------
 */

struct act_rows {
    float *f32;
    __half *f16;
    __nv_bfloat16 *bf16;
};
inline struct act_rows act_rows_of(struct acts *a, uint32_t forms)
{
    a->has_f8 = false;
    return {(forms & ACT_F32) ? a->f32 : NULL, (forms & (ACT_F16 | ACT_F8)) ? (__half *)a->f16 : NULL,
        (forms & ACT_BF16) ? (__nv_bfloat16 *)a->bf16 : NULL};
}
inline float as_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

inline __half half_of(float x)
{
    return __float2half_rn(std::fabs(x) > F16_MOST ? std::copysign(F16_MOST, x) : x);
}
inline void act_put(struct act_rows out, size_t at, float x)
{
    if (out.f32 != NULL)
        out.f32[at] = x;
    if (out.f16 != NULL)
        out.f16[at] = half_of(x);
    if (out.bf16 != NULL)
        out.bf16[at] = __float2bfloat16_rn(x);
}
inline void act_put4(struct act_rows out, size_t at, float4 x)
{
    act_put(out, at, x.x);
    act_put(out, at + 1, x.y);
    act_put(out, at + 2, x.z);
    act_put(out, at + 3, x.w);
}
inline void act_put2(struct act_rows out, size_t at, float x, float y)
{
    act_put(out, at, x);
    act_put(out, at + 1, y);
}
inline float glu_of(float gate, float up, enum glu kind)
{
    return up * (kind == GLU_SILU
                        ? gate / (1.0f + std::exp(-gate))
                        : 0.5f * gate * (1.0f + std::tanh(0.797884561f * (gate + 0.044715f * gate * gate * gate))));
}
inline float4 scaled4(const struct scales &s, float4 x, size_t r, int m, uint32_t at)
{
    if (s.row == NULL)
        return x;
    const float row = s.row[r], *column = s.column[m] + at;
    return make_float4(x.x * row * column[0], x.y * row * column[1], x.z * row * column[2], x.w * row * column[3]);
}
inline float float_load(const void *p, size_t at, enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[at]) : ((const float *)p)[at];
}
inline void float_store(void *p, size_t at, enum dtype dtype, float x)
{
    switch (dtype) {
    case DTYPE_F16: ((__half *)p)[at] = __float2half_rn(x); break;
    case DTYPE_BF16: ((__nv_bfloat16 *)p)[at] = __float2bfloat16_rn(x); break;
    case DTYPE_F8_E4M3: ((__nv_fp8_e4m3 *)p)[at] = __nv_fp8_e4m3(x); break;
    default: ((float *)p)[at] = x; break;
    }
}

/* ---- the warp and its matrix unit -----------------------------------------------------------------------------------
 */

/* Which side this lane shows its next thing on. */
inline uint32_t emulated_side()
{
    return (uint32_t)(emulated_lanes().n_shown[threadIdx.x % 32]++ & 1);
}
template <class T> T emulated_exchange(T x, uint32_t lane)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t side = emulated_side();
    w.word[side][threadIdx.x % 32] = emulated_bits<uint32_t>(x);
    emulated_meet_warp();
    return emulated_bits<T>(w.word[side][lane]);
}
template <class T> T __shfl_sync(unsigned, T x, int lane)
{
    return emulated_exchange(x, (uint32_t)lane);
}
template <class T> T __shfl_up_sync(unsigned, T x, int step)
{
    const uint32_t lane = threadIdx.x % 32;
    return emulated_exchange(x, lane >= (uint32_t)step ? lane - step : lane);
}
template <class T> T __shfl_xor_sync(unsigned, T x, int other)
{
    return emulated_exchange(x, threadIdx.x % 32 ^ other);
}
inline bool __any_sync(unsigned, bool x)
{
    uint32_t any = x;
    for (int step = 1; step < 32; step *= 2)
        any |= emulated_exchange(any, threadIdx.x % 32 ^ step);
    return any != 0;
}

inline bool __all_sync(unsigned lanes, bool x)
{
    return !__any_sync(lanes, !x);
}

template <bool IS_MAX> float block_reduce(float x)
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

inline float emulated_half(__half, uint32_t word, int high)
{
    return __half2float(__ushort_as_half((unsigned short)(word >> 16 * high)));
}
inline float emulated_half(__nv_bfloat16, uint32_t word, int high)
{
    return __uint_as_float(word >> 16 * high << 16);
}

/* The layout is written above mma in src/cuda/kernels.cuh. */
template <class T>
void mma(T type, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side(), g = lane / 4, t = lane % 4;
    const uint32_t a[4] = {a0, a1, a2, a3};
    std::memcpy(w.a[side][lane], a, sizeof a);
    w.b[side][lane][0] = b0;
    w.b[side][lane][1] = b1;
    emulated_meet_warp();
    for (int e = 0; e < 4; e++) {
        const uint32_t low_row = e / 2, column = 2 * t + e % 2;
        double sum = 0.0; /* as good as exact, so that the order within 16 does not matter, as on the card */
        for (uint32_t k = 0; k < 16; k++)
            sum += (double)emulated_half(type, w.a[side][4 * g + k % 8 / 2][low_row + k / 8 * 2], k % 2) *
                   emulated_half(type, w.b[side][4 * column + k % 8 / 2][k / 8], k % 2);
        c[e] += (float)sum;
    }
}

inline void mma(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side(), g = lane / 4, t = lane % 4;
    const uint32_t a[4] = {a0, a1, a2, a3};
    const auto byte = [](uint32_t word, uint32_t k) { return (int32_t)(int8_t)(word >> 8 * (k % 4)); };
    std::memcpy(w.a[side][lane], a, sizeof a);
    w.b[side][lane][0] = b0;
    w.b[side][lane][1] = b1;
    emulated_meet_warp();
    for (uint32_t e = 0; e < 4; e++)
        for (uint32_t k = 0; k < 32; k++)
            c[e] += byte(w.a[side][4 * g + k % 16 / 4][e / 2 + k / 16 * 2], k) *
                    byte(w.b[side][4 * (2 * t + e % 2) + k % 16 / 4][k / 16], k);
}

inline uint32_t pack2(__half, float low, float high)
{
    return emulated_bits<uint32_t>(__floats2half2_rn(low, high));
}
inline uint32_t pack2(__nv_bfloat16, float low, float high)
{
    return emulated_bits<uint32_t>(__floats2bfloat162_rn(low, high));
}
inline uint32_t pack_bf16(float low, float high)
{
    return pack2(__nv_bfloat16(), low, high);
}

inline uint32_t act_pair(__half, float x, float y)
{
    return emulated_bits<uint32_t>(__halves2half2(half_of(x), half_of(y)));
}
inline uint32_t act_pair(__nv_bfloat16, float x, float y)
{
    return pack_bf16(x, y);
}

/* Matrix m's row i is the address that lane 8m + i gave. A lane gets two neighbours of row lane / 4, or of its column.
 */
template <bool TRANSPOSED> void load_matrices(uint32_t r[4], const void *shared_row)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side();
    w.row[side][lane] = shared_row;
    emulated_meet_warp();
    for (uint32_t m = 0; m < 4; m++) {
        const auto at = [&](uint32_t i, uint32_t k) { return (uint32_t)((const uint16_t *)w.row[side][8 * m + i])[k]; };
        const uint32_t one = 2 * (lane % 4), two = one + 1, other = lane / 4;
        r[m] = TRANSPOSED ? at(one, other) | at(two, other) << 16 : at(other, one) | at(other, two) << 16;
    }
}

inline uint32_t turn_matrix(uint32_t x)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side(), row = lane / 4, one = 8 * (lane % 4) + row / 2;
    w.word[side][lane] = x;
    emulated_meet_warp();
    const uint32_t low = w.word[side][one], high = w.word[side][one + 4];
    return row % 2 == 0 ? (low & 0xffff) | high << 16 : low >> 16 | (high & 0xffff0000u);
}

#endif
