/* Choosing among any number of candidates, for what the quick way (sample.cu) has no room for: flat distributions, a
 * large top-k. Nothing is sorted. What is kept is always a beginning of the order by (logit, id), so it is known by its
 * last element, which is found digit by digit: weights of all candidates by the digit of their logit, the digit in
 * which the sum passes the aim, then the next digit among those. Weights are integers, exponentials times 2^44, whose
 * sums do not depend on who adds first. */
#ifndef CUDA_SAMPLE_WIDE_CUH
#define CUDA_SAMPLE_WIDE_CUH

#include "cuda/sample.cuh"

#define WIDE_ONE 0x1p44f /* the weight of the most likely: 2^17 of them stay below 2^64 */

typedef unsigned long long wide_t;

/* The candidates: those up to (mark, id), of at least the probability `floor` over the largest one's. */
struct wide_set {
    const float *l;
    uint32_t n;
    float top, temperature, floor;
    uint32_t mark, id;

    /* Logits less the maximum are not above zero, so the bits of their size order them, the likely ones first. False:
     * not one of the set. counts: every candidate weighs one. */
    __device__ __forceinline__ bool at(uint32_t i, bool counts, uint32_t &place, wide_t &weight) const
    {
        const float v = scaled(l[i], top, temperature);
        place = __float_as_uint(0.0f - v);
        if (!(v >= -FLT_MAX) || place > mark || (place == mark && i > id))
            return false;
        const float e = exp_exact(v);
        weight = counts ? 1 : (wide_t)__fmul_rn(e, WIDE_ONE);
        return e >= floor;
    }
};

/* All weights of the set, in every thread. */
__device__ static wide_t wide_total(struct sampler_room &room, const struct wide_set &s, bool counts)
{
    wide_t sum = 0;
    for (uint32_t i = threadIdx.x; i < s.n; i += THREADS) {
        uint32_t place;
        wide_t weight;
        if (s.at(i, counts, place, weight))
            sum += weight;
    }
    room.weights[threadIdx.x] = sum;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            room.weights[threadIdx.x] += room.weights[threadIdx.x + half];
    }
    __syncthreads();
    sum = room.weights[0];
    __syncthreads();
    return sum;
}

/* The id of the set's element number `nth`, by ascending id, of those whose place is `place` (any: of all, by weight:
 * the first whose running sum is above nth). Comes back in every thread. */
__device__ static uint32_t wide_by_id(
    struct sampler_room &room, const struct wide_set &s, bool counts, bool any, uint32_t place, wide_t nth)
{
    const struct run r = run_of(s.n, threadIdx.x);
    uint32_t p, found = NO_ID;
    wide_t w, sum = 0;
    for (uint32_t i = r.lo; i < r.hi; i++)
        if (s.at(i, counts, p, w) && (any || p == place))
            sum += w;
    room.weights[threadIdx.x] = sum;
    if (threadIdx.x == 0)
        room.id = NO_ID;
    __syncthreads();
    if (threadIdx.x == 0) {
        wide_t before = 0;
        for (uint32_t i = 0; i < THREADS; i++) {
            const wide_t mine = room.weights[i];
            room.weights[i] = before;
            before += mine;
        }
    }
    __syncthreads();
    wide_t upto = room.weights[threadIdx.x];
    if (upto <= nth && upto + sum > nth)
        for (uint32_t i = r.lo; i < r.hi && found == NO_ID; i++)
            if (s.at(i, counts, p, w) && (any || p == place)) {
                upto += w;
                found = upto > nth ? i : NO_ID;
            }
    if (found != NO_ID)
        room.id = found;
    __syncthreads();
    const uint32_t id = room.id;
    __syncthreads();
    return id;
}

/* The element of the order at which the running sum is first above aim, which the set's total is: (mark, id). */
__device__ static void wide_by_order(
    struct sampler_room &room, const struct wide_set &s, bool counts, wide_t aim, uint32_t &mark, uint32_t &id)
{
    uint32_t known = 0;
    wide_t before = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            room.weights[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < s.n; i += THREADS) {
            uint32_t place;
            wide_t weight;
            if (s.at(i, counts, place, weight) && (shift == 24 || place >> (shift + 8) == known))
                atomicAdd(&room.weights[place >> shift & 255], weight);
        }
        __syncthreads();
        wide_t sum = before; /* every thread goes the same way */
        uint32_t digit = 0;
        while (digit < 255 && sum + room.weights[digit] <= aim)
            sum += room.weights[digit++];
        before = sum;
        known = known << 8 | digit;
        __syncthreads();
    }
    /* Those of one place weigh the same, so the ids decide. */
    const uint32_t nth = wide_by_id(room, s, counts, false, known, aim - before);
    mark = known; /* which may be the set's own */
    id = nth;
}

/* Steps 6 to 8 and 10. Which order candidates lie in when nothing has to order them is sample.c's business: by id. */
__device__ static void wide_draw(
    struct sampler_room &room, const struct sample_ask &a, double draw, const float *l, uint32_t n, float top)
{
    struct wide_set s = {l, n, top, a.temperature, 0.0f, UINT32_MAX, UINT32_MAX};
    bool is_ordered = a.top_p < 1.0f;
    if (a.top_k > 0) {
        const wide_t all = wide_total(room, s, true);
        const struct wide_set near_set = {l, n, top, a.temperature, 0.0f, __float_as_uint(NEAR), UINT32_MAX};
        const wide_t near = wide_total(room, near_set, true);
        is_ordered = is_ordered || near > a.top_k || (near < a.top_k && all > a.top_k);
        if (all > a.top_k)
            wide_by_order(room, s, true, a.top_k - 1, s.mark, s.id);
    }
    if (a.top_p < 1.0f) {
        const wide_t need = (wide_t)((double)a.top_p * (double)wide_total(room, s, false));
        wide_by_order(room, s, false, need > 0 ? need - 1 : 0, s.mark, s.id);
    }
    s.floor = a.min_p;
    const wide_t total = wide_total(room, s, false), aim = min((wide_t)(draw * (double)total), total - 1);
    uint32_t mark, id;
    if (is_ordered)
        wide_by_order(room, s, false, aim, mark, id);
    else
        id = wide_by_id(room, s, false, true, 0, aim);
    if (threadIdx.x == 0)
        room.id = id;
    __syncthreads();
}

#endif
