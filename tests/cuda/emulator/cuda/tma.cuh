/* The barriers and copies of src/cuda/tma.cuh, on the host. A barrier: how many bytes are still to come, how many
 * arrive, how many are missing, the round. Copies arrive when somebody waits for their barrier. */
#ifndef EMULATOR_TMA_CUH
#define EMULATOR_TMA_CUH

#include "cuda/kernels.cuh"

#include <cuda.h>

#define TMA_RUN  16
#define TMA_STEP 128
#define TMA_NONE (-1)

struct emulated_barrier {
    int32_t bytes;
    uint16_t arrivals, missing_round; /* missing * 2 + round */
};

struct emulated_load {
    uint64_t *barrier;
    unsigned char *to;
    const unsigned char *from; /* NULL: zeros */
    uint32_t row_bytes, cols;  /* a run; cols 0: row_bytes as they lie */
};

inline std::vector<emulated_load> emulated_loads;

inline void emulated_settle(uint64_t *b, int32_t bytes, uint32_t arrived)
{
    emulated_barrier x = emulated_bits<emulated_barrier>(*b);
    x.bytes += bytes;
    assert(x.missing_round / 2 >= arrived);
    x.missing_round = (uint16_t)(x.missing_round - 2 * arrived);
    if (x.missing_round / 2 == 0 && x.bytes == 0)
        x.missing_round = (uint16_t)(2 * x.arrivals + (x.missing_round & 1 ^ 1));
    *b = emulated_bits<uint64_t>(x);
}

inline void barrier_init(uint64_t *b, uint32_t arrivals)
{
    *b = emulated_bits<uint64_t>(emulated_barrier{0, (uint16_t)arrivals, (uint16_t)(2 * arrivals)});
}
inline void barrier_publish()
{
}
inline void barrier_arrive(uint64_t *b)
{
    emulated_settle(b, 0, 1);
}
inline void barrier_arrive_expect(uint64_t *b, uint32_t bytes)
{
    emulated_settle(b, (int32_t)bytes, 1);
}

/* Units of 16 bytes are swapped by the rows of 128 bytes that they come to lie in. */
inline void emulated_arrive(const emulated_load &l)
{
    if (l.cols == 0) {
        std::memcpy(l.to, l.from, l.row_bytes);
        emulated_settle(l.barrier, -(int32_t)l.row_bytes, 0);
        return;
    }
    for (uint32_t row = 0; row < TMA_RUN; row++)
        for (uint32_t u = 0; u < 8 * l.cols; u++) {
            unsigned char *to = l.to + (row / 8 * l.cols + u / 8) * 1024 + row % 8 * 128 + (u % 8 ^ row % 8) * 16;
            if (l.from != NULL)
                std::memcpy(to, l.from + row * l.row_bytes + u * 16, 16);
            else
                std::memset(to, 0, 16);
        }
    emulated_settle(l.barrier, -(int32_t)(TMA_RUN * 128 * l.cols), 0);
}

inline void barrier_wait(uint64_t *b, uint32_t parity)
{
    while ((emulated_bits<emulated_barrier>(*(volatile uint64_t *)b).missing_round & 1) == parity) {
        for (size_t i = 0; i < emulated_loads.size();)
            if (emulated_loads[i].barrier == b) {
                emulated_arrive(emulated_loads[i]);
                emulated_loads.erase(emulated_loads.begin() + (ptrdiff_t)i);
            } else
                i++;
        emulated_yield();
    }
}

struct emulated_map {
    const unsigned char *memory;
    uint32_t row_bytes, cols;
};

inline bool tma_map_runs(struct dev *, CUtensorMap *map, const void *memory, uint32_t row_bytes, uint32_t cols)
{
    const emulated_map m = {(const unsigned char *)memory, row_bytes, cols};
    std::memcpy(map, &m, sizeof m);
    return true;
}
inline void tma_load_run(void *to, const CUtensorMap *map, int32_t step, uint64_t *b)
{
    emulated_map m;
    std::memcpy(&m, map, sizeof m);
    assert((uintptr_t)to % 1024 == 0);
    emulated_loads.push_back(
        {b, (unsigned char *)to, step < 0 ? NULL : m.memory + (int64_t)step * TMA_STEP, m.row_bytes, m.cols});
}
inline void tma_load_bytes(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    assert((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0 && bytes % 16 == 0);
    emulated_loads.push_back({b, (unsigned char *)to, (const unsigned char *)from, bytes, 0});
}

#endif
