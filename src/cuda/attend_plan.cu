/* The plan of a step's attention: one block walks the sequences. */
#include "cuda/attend.cuh"

#define THREADS    1024
#define SPLIT_FREE 1024 /* where the search for a length starts when it may depend on the batch */
#define ROUNDS     8    /* parts per block of the decode kernel, at most */

/* Exclusive sum over the block; total in every thread. */
__device__ static uint32_t scan(uint32_t x, uint32_t &total)
{
    __shared__ uint32_t part[THREADS / 32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = x;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t y = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? y : 0;
    }
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    total = 0;
    for (uint32_t i = 0; i < THREADS / 32; i++) {
        before += i < warp ? part[i] : 0;
        total += part[i];
    }
    __syncthreads();
    return before + sum - x;
}

__device__ static bool is_decode(const struct batch_seq &s, uint32_t per_kv)
{
    return s.n_rows == 1 || s.n_rows * per_kv <= DECODE_PAIRS;
}

/* Tile i of a sequence's rows, `rows` at a time: a sequence that ends with its own last row. */
__device__ static struct batch_seq tile_of(const struct batch_seq &s, uint32_t i, uint32_t rows)
{
    const uint32_t first = i * rows, n = min(rows, s.n_rows - first);
    const struct batch_seq t = {s.first_row + first, n, s.n_kv - (s.n_rows - first - n), s.table_at};
    return t;
}

/* Parts of all tiles of a sequence, and how many places they take. */
__device__ static uint32_t parts_of(const struct batch_seq &s, uint32_t per_kv, uint32_t split, uint32_t &places)
{
    const uint32_t rows = PACK / per_kv;
    uint32_t parts = 0;
    places = 0;
    for (uint32_t i = 0; i * rows < s.n_rows; i++) {
        const struct batch_seq t = tile_of(s, i, rows);
        const uint32_t n = (t.n_kv + split - 1) / split;
        parts += n;
        places += n * t.n_rows;
    }
    return parts;
}

/* Places that the parts of all sequences take at this split; the plan doubles it until they fit. */
__device__ static uint32_t parts_at(const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, uint32_t split)
{
    uint32_t mine = 0, places, total;
    for (uint32_t i = threadIdx.x; i < n_seqs; i += THREADS)
        if (is_decode(seqs[i], per_kv)) {
            parts_of(seqs[i], per_kv, split, places);
            mine += places;
        }
    scan(mine, total);
    return total;
}

/* fixed: cuts that depend on the sequence alone. Otherwise parts are long, since each costs some microseconds beside
 * its bytes, but there are `least` of them, so that every block of the decode kernel has one, where the context allows
 * it. */
__global__ static void plan_kernel(const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv,
    uint32_t rows_per_tile, bool fixed, uint32_t least, uint32_t shortest, struct plan *plan)
{
    launch_wait();
    uint32_t split = fixed ? SPLIT : SPLIT_FREE;
    const uint32_t most = fixed ? PARTS_MAX : min(ROUNDS * least, PARTS_MAX);
    while (!fixed && split > shortest && parts_at(seqs, n_seqs, per_kv, split) < least)
        split /= 2;
    const bool whole = fixed && parts_at(seqs, n_seqs, per_kv, split) > most; /* everybody as tiles: the same bits */
    while (!fixed && parts_at(seqs, n_seqs, per_kv, split) > most && split < 1u << 30)
        split *= 2;
    uint32_t items = 0, slots = 0, tiles = 0;
    for (uint32_t base = 0; base < n_seqs; base += THREADS) {
        const uint32_t i = base + threadIdx.x;
        struct batch_seq s = {};
        if (i < n_seqs)
            s = seqs[i];
        const bool decode = s.n_rows > 0 && !whole && is_decode(s, per_kv), prefill = s.n_rows > 0 && !decode;
        uint32_t places = 0;
        const uint32_t parts = decode ? parts_of(s, per_kv, split, places) : 0;
        const uint32_t my_tiles = prefill ? (s.n_rows + rows_per_tile - 1) / rows_per_tile : 0;
        uint32_t n_items, n_slots, n_tiles;
        uint32_t item = items + scan(parts, n_items), slot = slots + scan(places, n_slots);
        const uint32_t tile = tiles + scan(my_tiles, n_tiles);
        for (uint32_t k = 0; decode && k * (PACK / per_kv) < s.n_rows; k++) {
            const struct batch_seq rows = tile_of(s, k, PACK / per_kv);
            const uint32_t n = (rows.n_kv + split - 1) / split;
            for (uint32_t p = 0; p < n && item < PARTS_MAX; p++) {
                const struct plan_item one = {rows.first_row, p, n, slot, rows};
                plan->items[item++] = one;
            }
            slot += n * rows.n_rows;
        }
        for (uint32_t t = 0; t < my_tiles; t++) { /* the last rows see most, so they start first */
            const struct plan_tile one = {i, (my_tiles - 1 - t) * rows_per_tile};
            plan->tiles[tile + t] = one;
        }
        items += n_items;
        slots += n_slots;
        tiles += n_tiles;
    }
    if (threadIdx.x == 0) {
        plan->n_items = items;
        plan->n_tiles = tiles;
        plan->split = split;
    }
}

void attend_plan(
    struct dev *d, const struct batch *b, uint32_t per_kv, uint32_t rows_per_tile, uint32_t blocks, uint32_t shortest)
{
    if (d->planned_version == d->batch_version && d->planned_per_kv == per_kv)
        return;
    cuda_launch_beside(d, plan_kernel, dim3(1), THREADS, 0, b->seqs, b->n_seqs, per_kv, rows_per_tile, d->deterministic,
        blocks, shortest, d->plan);
    d->planned_version = d->batch_version;
    d->planned_per_kv = per_kv;
}
