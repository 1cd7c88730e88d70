/* The barriers and copies of src/cuda/tma.cuh, on the host. A barrier: how many bytes are still to come, how many
 * arrive, how many are missing, the round. What a copy will overwrite is NaN from when it is asked for, and it arrives
 * when somebody waits for its barrier: whoever reads too early or leaves too late is found out. So is who writes what
 * is being copied: that arrives as NaN. */
#ifndef EMULATOR_TMA_CUH
#define EMULATOR_TMA_CUH

#include "cuda/kernels.cuh"

#include <cuda.h>
#include <map>

#define TMA_COLUMN 128
#define TMA_ATOM   1024
#define TMA_RUN    16
#define TMA_STEP   128
#define TMA_NONE   (-1)

bool tma_map(struct dev *d, CUtensorMap *map, const void *matrix, uint64_t n_rows, uint64_t row_bytes, uint64_t pitch,
    uint32_t rows, uint32_t cols);
bool tma_map_boxes(struct dev *d, CUtensorMap *map, const void *base, uint32_t rank, const uint64_t *sizes,
    const uint64_t *strides, const uint32_t *box);
bool tma_map_runs(struct dev *d, CUtensorMap *map, const void *memory, uint32_t row_bytes, uint32_t cols);

/* ---- addresses in shared memory, counted from a multiple of TMA_ATOM -----------------------------------------------
 */

inline uint32_t shared_at(const void *p)
{
    const ptrdiff_t at = (const unsigned char *)p - emulated_room();
    assert(at == (int32_t)at);
    return (uint32_t)at;
}
inline unsigned char *emulated_at(uint32_t at)
{
    return emulated_room() + (int32_t)at;
}

/* ---- barriers ------------------------------------------------------------------------------------------------------
 */

struct emulated_barrier {
    int32_t bytes;
    uint16_t arrivals, missing_round; /* missing * 2 + round */
};

/* A copy on its way: what it is of, and what that was when it was asked for. */
struct emulated_map {
    const unsigned char *base;
    uint64_t sizes[5], strides[5];
    uint16_t box[5];
};
struct emulated_load {
    unsigned char *to;
    emulated_map map; /* base NULL: neighbouring bytes */
    int32_t place[5];
    const unsigned char *from;
    std::vector<unsigned char> bytes;
    bool is_young;
    std::vector<emulated_copy> copies; /* where it is a thread's own, and an arrival */
};
extern std::map<uint64_t *, std::vector<emulated_load>> emulated_loads; /* by barrier */

inline void emulated_settle(uint64_t *b, int32_t bytes, uint32_t arrived)
{
    emulated_barrier x = emulated_bits<emulated_barrier>(*b);
    x.bytes += bytes;
    if (x.missing_round / 2 < arrived || x.arrivals == 0)
        emulated_fail("more arrive at a barrier than it expects");
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
inline void global_ready()
{
}
inline void tma_accept(const CUtensorMap *)
{
}
inline void barrier_arrive(uint64_t *b)
{
    emulated_settle(b, 0, 1);
    emulated_tell();
}
inline void barrier_arrive(uint32_t at)
{
    barrier_arrive((uint64_t *)emulated_at(at));
}
inline void barrier_arrive_at(uint32_t at, uint32_t rank)
{
    barrier_arrive((uint64_t *)emulated_there(emulated_at(at), rank));
}
inline void barrier_arrive_expect(uint64_t *b, uint32_t bytes)
{
    emulated_settle(b, (int32_t)bytes, 1);
}
inline void barrier_arrive_expect(uint32_t at, uint32_t bytes)
{
    barrier_arrive_expect((uint64_t *)emulated_at(at), bytes);
}

/* What this thread has asked for so far, and has not waited for, comes with its arrival. */
inline void barrier_arrive_copied(uint32_t at)
{
    emulated_copies &mine = emulated_now->copies;
    emulated_load l = {};
    std::swap(l.copies, mine.open);
    for (auto &group : mine.groups)
        l.copies.insert(l.copies.end(), group.begin(), group.end()), group.clear();
    emulated_loads[(uint64_t *)emulated_at(at)].push_back(l);
}

/* The bytes of a box, row by row; zeros outside of the matrix. */
inline std::vector<unsigned char> emulated_gather(const emulated_load &l)
{
    if (l.map.base == NULL)
        return std::vector<unsigned char>(l.from, l.from + l.bytes.size());
    const uint16_t *box = l.map.box;
    std::vector<unsigned char> out((size_t)TMA_COLUMN * box[1] * box[2] * box[3] * box[4]);
    for (size_t i = 0; i < out.size() / TMA_COLUMN; i++) {
        uint64_t at[5] = {(uint64_t)(int64_t)l.place[0]}, left = i;
        const unsigned char *from = l.map.base + l.place[0];
        bool is_there = true;
        for (int k = 1; k < 5; k++) {
            at[k] = (uint64_t)((int64_t)l.place[k] + (int64_t)(left % box[k]));
            left /= box[k];
            is_there = is_there && at[k] < l.map.sizes[k];
            from += at[k] * l.map.strides[k];
        }
        if (is_there && at[0] < l.map.sizes[0])
            std::memcpy(&out[i * TMA_COLUMN], from, std::min<uint64_t>(TMA_COLUMN, l.map.sizes[0] - at[0]));
    }
    return out;
}

/* Units of 16 bytes of a box are swapped by the rows of 128 bytes that they come to lie in. */
inline void emulated_arrive(const emulated_load &l, uint64_t *b)
{
    const size_t n = l.bytes.size();
    for (const emulated_copy &c : l.copies)
        emulated_arrive(c);
    if (n == 0) {
        emulated_settle(b, 0, 1);
        return;
    }
    if (!l.is_young && emulated_gather(l) == l.bytes)
        for (size_t u = 0; u < n; u += 16)
            std::memcpy(l.to + (l.map.base == NULL ? u : u ^ (u >> 7 & 7) << 4), &l.bytes[u], 16);
    emulated_settle(b, -(int32_t)n, 0);
}

inline bool barrier_is_over(uint64_t *b, uint32_t parity)
{
    const auto found = emulated_loads.find(b);
    if (found != emulated_loads.end()) {
        for (const emulated_load &l : found->second)
            emulated_arrive(l, b);
        emulated_loads.erase(found);
    }
    return (emulated_bits<emulated_barrier>(*b).missing_round & 1) != parity;
}
inline bool barrier_is_over(uint32_t at, uint32_t parity)
{
    return barrier_is_over((uint64_t *)emulated_at(at), parity);
}
inline void barrier_wait(uint64_t *b, uint32_t parity)
{
    if (!emulated_hurries || !emulated_hurries())
        emulated_until([&] { return barrier_is_over(b, parity); });
}
inline void barrier_wait(uint32_t at, uint32_t parity)
{
    barrier_wait((uint64_t *)emulated_at(at), parity);
}
inline void barrier_wait(uint32_t at, uint32_t beside, uint32_t parity)
{
    barrier_wait(at, parity);
    barrier_wait(beside, parity);
}

/* ---- boxes ---------------------------------------------------------------------------------------------------------
 */

inline void emulated_ask(emulated_load &l, uint64_t *b)
{
    if (l.map.base != NULL && (uintptr_t)l.to % TMA_ATOM != 0)
        emulated_fail("a box does not lie at a multiple of 1 KB");
    l.is_young = !emulated_now->has_waited && emulated_is_young && emulated_is_young(l.from);
    l.bytes = emulated_gather(l);
    std::memset(l.to, 0xff, l.bytes.size());
    emulated_loads[b].push_back(l);
}
inline void emulated_ask_box(void *to, const CUtensorMap *map, const int32_t (&place)[5], uint64_t *b)
{
    emulated_load l = {(unsigned char *)to, {}, {}, NULL, {}, false, {}};
    std::memcpy(&l.map, (const void *)map, sizeof l.map);
    std::copy(place, place + 5, l.place);
    l.from = l.map.base;
    emulated_ask(l, b);
}

inline void tma_load(void *to, const CUtensorMap *map, uint32_t col, uint32_t row, uint64_t *b)
{
    emulated_ask_box(to, map, {0, (int32_t)row, (int32_t)col, 0, 0}, b);
}
inline void tma_load_rows(void *to, const CUtensorMap *map, uint32_t at, uint32_t row, uint64_t *b)
{
    emulated_ask_box(to, map, {(int32_t)at, (int32_t)row, 0, 0, 0}, b);
}
inline void tma_load_for(uint32_t to, const CUtensorMap *map, uint32_t at, uint32_t row, uint32_t b, uint16_t who)
{
    for (uint32_t rank = 0; rank < 16; rank++)
        if (who >> rank & 1)
            emulated_ask_box(emulated_there(emulated_at(to), rank), map, {(int32_t)at, (int32_t)row, 0, 0, 0},
                (uint64_t *)emulated_there(emulated_at(b), rank));
}
inline void tma_load_runs(void *to, const CUtensorMap *map, uint32_t at, uint32_t run, uint32_t group, uint64_t *b)
{
    emulated_ask_box(to, map, {(int32_t)at, 0, 0, (int32_t)run, (int32_t)group}, b);
}
inline void tma_load_run(void *to, const CUtensorMap *map, int32_t step, uint64_t *b)
{
    emulated_ask_box(to, map, {0, 0, 0, 0, step}, b);
}
inline void tma_load_bytes(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    assert((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0 && bytes % 16 == 0);
    emulated_load l = {(unsigned char *)to, {}, {}, (const unsigned char *)from, {}, false, {}};
    l.bytes.resize(bytes);
    emulated_ask(l, b);
}
inline void tma_ready(const CUtensorMap *)
{
}

#endif
