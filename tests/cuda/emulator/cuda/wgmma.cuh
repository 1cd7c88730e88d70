/* What src/cuda/wgmma.cuh gives to kernels, on the host: descriptions are read as the machine reads them, with the
 * place counted from the block's shared memory. */
#ifndef EMULATOR_WGMMA_CUH
#define EMULATOR_WGMMA_CUH

#include "cuda/kernels.cuh"

inline uint64_t wgmma_at(const void *shared, uint32_t rows, uint32_t columns)
{
    const uint64_t at = (uint64_t)((const unsigned char *)shared - emulated_block().shared);
    assert(at % 16 == 0 && at < 1 << 18);
    return at >> 4 | (uint64_t)(columns >> 4) << 16 | (uint64_t)(rows >> 4) << 32 | (uint64_t)1 << 62;
}
inline void shared_ready()
{
}
inline void wgmma_begin()
{
}
inline void wgmma_commit()
{
}
inline void wgmma_wait()
{
}
template <int N> void warpgroup_registers_down()
{
}
template <int N> void warpgroup_registers_up()
{
}

/* A 16-bit element so many bytes behind what a description names, units swapped by the rows they lie in. */
template <class T> float emulated_element(T type, uint64_t description, uint32_t bytes)
{
    assert(description >> 62 == 1);
    const uintptr_t at = (uintptr_t)emulated_block().shared + ((description & 0x3fff) << 4) + bytes;
    return emulated_half(type, *(const uint16_t *)(at ^ (at >> 7 & 7) << 4), 0);
}
inline uint32_t emulated_rows(uint64_t description)
{
    return (uint32_t)(description >> 32 & 0x3fff) << 4;
}
inline uint32_t emulated_columns(uint64_t description)
{
    return (uint32_t)(description >> 16 & 0x3fff) << 4;
}

template <class T> void wgmma_keys(T type, float (&c)[16][4], uint64_t a, uint64_t b, bool adds)
{
    const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    for (uint32_t e = 0; e < 64; e++) {
        const uint32_t row = first + e % 4 / 2 * 8, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        float sum = 0.0f;
        for (uint32_t k = 0; k < 16; k++)
            sum += emulated_element(type, a, row / 8 * emulated_rows(a) + row % 8 * 128 + 2 * k) *
                   emulated_element(type, b, column / 8 * emulated_rows(b) + column % 8 * 128 + 2 * k);
        c[e / 4][e % 4] = (adds ? c[e / 4][e % 4] : 0.0f) + sum;
    }
}

template <class T, int N> void wgmma_values(T type, float (&c)[N][4], const uint32_t (&a)[4], uint64_t b)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side(), g = lane / 4;
    std::memcpy(w.a[side][lane], a, sizeof a);
    emulated_meet_warp();
    for (uint32_t e = 0; e < 4 * N; e++) {
        const uint32_t low_row = e % 4 / 2, column = e / 4 * 8 + lane % 4 * 2 + e % 2;
        float sum = 0.0f;
        for (uint32_t k = 0; k < 16; k++)
            sum += emulated_half(type, w.a[side][4 * g + k % 8 / 2][low_row + k / 8 * 2], k % 2) *
                   emulated_element(type, b,
                       column / 64 * emulated_columns(b) + k / 8 * emulated_rows(b) + k % 8 * 128 + column % 64 * 2);
        c[e / 4][e % 4] += sum;
    }
}

#endif
