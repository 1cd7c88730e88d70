/* Products of a resident kernel on the matrix unit as floats: one stage of the ring with the activation rows in the
 * room. Even and odd slices are summed apart, then added. */
#ifndef CUDA_RESIDENT_MULTIPLY_CUH
#define CUDA_RESIDENT_MULTIPLY_CUH

#include "cuda/resident_cells.cuh"

/* A slice of a stage: 16 weight rows with the activation row of each lane's column, from the lane's first element. */
template <class F>
__device__ __forceinline__ void multiply_slice(
    const typename F::Regs &a, const typename F::Regs &b, const uint16_t *row, float acc[4])
{
    typename F::Type type;
#pragma unroll
    for (int part = 0; part < F::E / 8; part++) {
        const uint4 v = *(const uint4 *)(row + 8 * part);
        uint32_t p[4], q[4];
        F::pairs(a, part, p);
        F::pairs(b, part, q);
        mma(type, acc, p[0], q[0], p[1], q[1], v.x, v.y);
        mma(type, acc, p[2], q[2], p[3], q[3], v.z, v.w);
    }
}

/* A whole stage that is in registers; row: from the stage's first element on. */
template <class F>
__device__ __forceinline__ void multiply_held(
    const struct held_stage &held, const uint16_t *row, uint32_t lane, float acc[4])
{
    constexpr uint32_t SLICE = 4 * F::E;
    float odd[4] = {};
#pragma unroll
    for (uint32_t i = 0; i < Cell<F>::STEP / SLICE; i++) {
        typename F::Regs a, b;
        Cell<F>::take(a, held, i, 0);
        Cell<F>::take(b, held, i, 1);
        multiply_slice<F>(a, b, row + i * SLICE + lane % 4 * F::E, i % 2 == 0 ? acc : odd);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        acc[i] += odd[i];
}

/* Any stage, from the ring: elements from k on. Sums as those of a whole one. */
template <class F>
__device__ __forceinline__ void multiply(
    const unsigned char *slot, const uint16_t *row, uint32_t k, uint32_t n, uint32_t lane, float acc[4])
{
    constexpr uint32_t SLICE = 4 * F::E;
    const uint32_t n_slices = (min(Cell<F>::STEP, n - k) + SLICE - 1) / SLICE;
    float odd[4] = {};
    for (uint32_t i = 0; i < n_slices; i += 2)
#pragma unroll
        for (uint32_t j = i; j < i + 2; j++)
            if (j < n_slices) {
                typename F::Regs a, b;
                const uint32_t e = j * SLICE + lane % 4 * F::E;
                Cell<F>::get(a, slot, lane / 4, e, k);
                Cell<F>::get(b, slot, lane / 4 + 8, e, k);
                multiply_slice<F>(a, b, row + e, j == i ? acc : odd);
            }
#pragma unroll
    for (int i = 0; i < 4; i++)
        acc[i] += odd[i];
}

#endif
