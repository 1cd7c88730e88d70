/* What src/cuda/wgmma.cuh gives to kernels, on the host: descriptions are read as the machine reads them, with the
 * place counted from the block's shared memory. */
#ifndef EMULATOR_WGMMA_CUH
#define EMULATOR_WGMMA_CUH

#include "cuda/kernels.cuh"

inline uint64_t wgmma_at(uint32_t at, uint32_t rows, uint32_t columns)
{
    assert(at % 16 == 0 && at < 1 << 18);
    return at >> 4 | (uint64_t)(columns >> 4) << 16 | (uint64_t)(rows >> 4) << 32 | (uint64_t)1 << 62;
}
inline uint64_t wgmma_at(const void *shared, uint32_t rows, uint32_t columns)
{
    return wgmma_at((uint32_t)((const unsigned char *)shared - emulated_room()), rows, columns);
}
inline uint64_t wgmma_further(uint64_t at, uint32_t units)
{
    return at + units;
}
inline void shared_ready()
{
}
inline void wgmma_begin()
{
}
inline void wgmma_commit()
{
    emulated_now->n_commits++;
}

/* The four warps are one here: none goes on before the others' products are done. */
template <int LEFT = 0> void wgmma_wait()
{
    auto &products = emulated_now->products;
    size_t n = 0;
    while (n < products.size() && products[n].group + LEFT < emulated_now->n_commits)
        products[n].run(products[n]), n++;
    products.erase(products.begin(), products.begin() + (ptrdiff_t)n);
    emulated_meet(emulated_block().group[threadIdx.x / 128], 128);
}
template <int N> void wgmma_hold(float (&)[N][4])
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
    const uintptr_t at = (uintptr_t)emulated_room() + ((description & 0x3fff) << 4) + bytes;
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

/* Sums of rows x and of a column, as good as exact: c[0] of the first row, c[2] of the second. */
inline void emulated_add(float *c, const double (&x)[2][16], const double (&y)[16], bool adds)
{
    for (int row = 0; row < 2; row++) {
        double sum = 0.0;
        for (int k = 0; k < 16; k++)
            sum += x[row][k] * y[k];
        c[2 * row] = (adds ? c[2 * row] : 0.0f) + (float)sum;
    }
}

/* Rows of both are k; N columns of eight. */
template <class T, int N> void emulated_rows_by_rows(const emulated_product &p)
{
    const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    double x[2][16];
    for (uint32_t k = 0; k < 32; k++) {
        const uint32_t row = first + k / 16 * 8;
        x[k / 16][k % 16] = emulated_element(T(), p.a, row / 8 * emulated_rows(p.a) + row % 8 * 128 + k % 16 * 2);
    }
    for (uint32_t e = 0; e < 2 * N; e++) {
        const uint32_t column = e / 2 * 8 + lane % 4 * 2 + e % 2;
        double y[16];
        for (uint32_t k = 0; k < 16; k++)
            y[k] = emulated_element(T(), p.b, column / 8 * emulated_rows(p.b) + column % 8 * 128 + 2 * k);
        emulated_add(p.c + e / 2 * 4 + e % 2, x, y, p.adds);
    }
}

template <class T, int N> void wgmma_rows(T, float (&c)[N][4], uint64_t a, uint64_t b, bool adds)
{
    emulated_now->products.push_back({emulated_rows_by_rows<T, N>, &c[0][0], a, b, adds, emulated_now->n_commits});
}

template <class T> void wgmma_keys(T type, float (&c)[16][4], uint64_t a, uint64_t b, bool adds)
{
    wgmma_rows(type, c, a, b, adds);
}

template <class T, int N> void wgmma_values(T type, float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool adds)
{
    emulated_warp &w = emulated_lanes();
    const uint32_t lane = threadIdx.x % 32, side = emulated_side(), g = lane / 4;
    std::memcpy(w.a[side][lane], a, sizeof a);
    emulated_meet_warp();
    double x[2][16];
    for (uint32_t k = 0; k < 32; k++)
        x[k / 16][k % 16] = emulated_half(type, w.a[side][4 * g + k % 8 / 2][k / 16 + k % 16 / 8 * 2], k % 2);
    for (uint32_t e = 0; e < 2 * N; e++) {
        const uint32_t column = e / 2 * 8 + lane % 4 * 2 + e % 2;
        double y[16];
        for (uint32_t k = 0; k < 16; k++)
            y[k] = emulated_element(
                type, b, column / 64 * emulated_columns(b) + k / 8 * emulated_rows(b) + k % 8 * 128 + column % 64 * 2);
        emulated_add(&c[e / 2][e % 2], x, y, adds);
    }
}

#endif
