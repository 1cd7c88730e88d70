/* What choosing on the device shares (sample.cu, sample_wide.cuh): the room of a block, the host's arithmetic, sums and
 * bests over the block. */
#ifndef CUDA_SAMPLE_CUH
#define CUDA_SAMPLE_CUH

#include "cuda/kernels.cuh"

#include <cfloat>

#define THREADS   1024
#define NEAR      14.0f /* as in sample.c */
#define BINS      2048
#define CANDS     2048
#define TOP_K_MAX 1024
#define NO_ID     UINT32_MAX

static_assert(BINS == 2 * THREADS && CANDS == 2 * THREADS, "two a thread");

struct cand {
    float key;
    uint32_t id;
};

/* What the threads of a block share. */
struct sampler_room {
    struct cand cands[CANDS];
    float e[CANDS];
    union {
        uint32_t bins[BINS];
        double sums[THREADS];
        struct cand best[THREADS];
        unsigned long long weights[THREADS]; /* of runs of ids, or of 256 digits */
    };
    uint32_t warps[THREADS / 32];
    uint32_t n, cut;
    double total;
    uint32_t id; /* what was chosen */
};

/* ---- arithmetic of the host ----------------------------------------------------------------------------------------
 */

/* tensor/fmath.c's f_exp, operation by operation. */
__device__ static float exp_exact(float x)
{
    if (x != x)
        return x;
    if (x > 88.72f)
        return INFINITY;
    if (x < -87.3f)
        return 0.0f;
    const float shift = 12582912.0f;
    const float n = __fsub_rn(__fadd_rn(__fmul_rn(x, 1.44269504f), shift), shift);
    const float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.693115234375f)), __fmul_rn(n, 3.19461833e-5f));
    float p = 1.0f / 5040.0f;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    const int half = (int)n / 2;
    const float a = __uint_as_float((uint32_t)(half + 127) << 23);
    const float b = __uint_as_float((uint32_t)((int)n - half + 127) << 23);
    return __fmul_rn(__fmul_rn(p, a), b);
}

/* Its d_log, for positive finite x. */
__device__ static double log_exact(double x)
{
    const uint64_t bits = (uint64_t)__double_as_longlong(x);
    int e = (int)(bits >> 52) - 1023;
    double m = __longlong_as_double((long long)((bits & 0xfffffffffffffu) | 0x3ff0000000000000u));
    if (m > 1.4142135623730951) {
        m = __dmul_rn(m, 0.5);
        e++;
    }
    const double s = __ddiv_rn(__dsub_rn(m, 1.0), __dadd_rn(m, 1.0)), s2 = __dmul_rn(s, s);
    double p = 0.0;
    for (int k = 12; k >= 0; k--)
        p = __dadd_rn(__dmul_rn(p, s2), 1.0 / (2 * k + 1));
    return __dadd_rn(__dmul_rn((double)e, 0.6931471805599453), __dmul_rn(__dmul_rn(2.0, s), p));
}

/* Step 5 of one logit. */
__device__ __forceinline__ float scaled(float l, float top, float temperature)
{
    const float v = __fdiv_rn(__fsub_rn(l, top), temperature), finite = v < -FLT_MAX ? -FLT_MAX : v;
    return l == top ? 0.0f : l == -INFINITY ? -INFINITY : finite;
}

/* ---- over the block ------------------------------------------------------------------------------------------------
 */

/* By key, then by lower id; NO_ID is behind everything. */
__device__ __forceinline__ bool comes_before(const struct cand &a, const struct cand &b)
{
    return a.id != NO_ID && (b.id == NO_ID || a.key > b.key || (a.key == b.key && a.id < b.id));
}

/* The first of all threads' candidates, in every thread. */
__device__ static struct cand first_of_block(struct sampler_room &room, struct cand mine)
{
    room.best[threadIdx.x] = mine;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && comes_before(room.best[threadIdx.x + half], room.best[threadIdx.x]))
            room.best[threadIdx.x] = room.best[threadIdx.x + half];
    }
    __syncthreads();
    const struct cand first = room.best[0];
    __syncthreads();
    return first;
}

/* The largest of x that comes behind `after` (NO_ID: behind nothing), NaN being nowhere. */
__device__ __noinline__ static struct cand best_after(
    struct sampler_room &room, const float *x, uint32_t n, struct cand after)
{
    struct cand mine = {0.0f, NO_ID};
    const auto consider = [&](float key, uint32_t i) {
        const struct cand c = {key, i};
        if (c.key == c.key && (after.id == NO_ID || comes_before(after, c)) && comes_before(c, mine))
            mine = c;
    };
    const uint32_t quads = n % 4 == 0 ? n / 4 : 0; /* then every row begins at a multiple of 16 bytes */
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < quads; i += THREADS) {
        const float4 v = ((const float4 *)x)[i];
        consider(v.x, 4 * i);
        consider(v.y, 4 * i + 1);
        consider(v.z, 4 * i + 2);
        consider(v.w, 4 * i + 3);
    }
    for (uint32_t i = 4 * quads + threadIdx.x; i < n; i += THREADS)
        consider(x[i], i);
    return first_of_block(room, mine);
}

/* Sum of what the threads before this one have; all of it in room.n. */
__device__ static uint32_t sum_before(struct sampler_room &room, uint32_t x)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = x;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t y = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? y : 0;
    }
    if (lane == 31)
        room.warps[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        before += i < warp ? room.warps[i] : 0;
        all += room.warps[i];
    }
    if (threadIdx.x == 0)
        room.n = all;
    __syncthreads();
    return before + sum - x;
}

/* The ids of this thread when the vocabulary is cut into runs. */
struct run {
    uint32_t lo, hi;
};

__device__ __forceinline__ struct run run_of(uint32_t n, uint32_t thread)
{
    const uint32_t each = (n + THREADS - 1) / THREADS;
    const struct run r = {min(thread * each, n), min((thread + 1) * each, n)};
    return r;
}

/* The sum of f over all ids, in double: runs of ids, then the runs ascending. room.sums[i] is what comes before run i,
 * room.total all of it. */
template <typename F> __device__ static void sum_all(struct sampler_room &room, uint32_t n, F f)
{
    const struct run r = run_of(n, threadIdx.x);
    double sum = 0.0;
    for (uint32_t i = r.lo; i < r.hi; i++)
        sum += (double)f(i);
    room.sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0.0;
        for (uint32_t i = 0; i < THREADS; i++) {
            const double mine = room.sums[i];
            room.sums[i] = all;
            all += mine;
        }
        room.total = all;
    }
    __syncthreads();
}

#endif
