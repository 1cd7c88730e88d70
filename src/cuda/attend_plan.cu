/* The plan of a step's attention: one block walks the sequences. */
#include "cuda/attend.cuh"

#define THREADS    1024
#define SPLIT_FREE 1024 /* where the search for a length starts when it may depend on the batch */
#define ROUNDS     8    /* parts per block of the decode kernel, at most; */
#define LENGTHS    64   /* beyond it so many lengths are tried, */
#define PART_TAX   56   /* where a part costs so many positions beside its own */

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

/* Places that the parts of all sequences take at this split. */
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

/* Lengths that are tried, ascending: eight to every doubling. */
__device__ static uint32_t length_of(uint32_t i)
{
    return SPLIT_FREE / 8 * (8 + i % 8) << i / 8;
}

/* For contexts that make many parts of any length: the one that keeps the blocks busy for the shortest time. Each takes
 * one part of one kv head after the other, and few blocks may have one more than the others. */
__device__ static uint32_t best_split(
    const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, const struct cut &c)
{
    __shared__ uint32_t parts[LENGTHS], places[LENGTHS];
    if (threadIdx.x < LENGTHS)
        parts[threadIdx.x] = places[threadIdx.x] = 0;
    __syncthreads();
    uint32_t my_parts = 0, my_places = 0;
    for (uint32_t i = threadIdx.x / LENGTHS; i < n_seqs; i += THREADS / LENGTHS)
        if (is_decode(seqs[i], per_kv)) {
            uint32_t n;
            my_parts += parts_of(seqs[i], per_kv, length_of(threadIdx.x % LENGTHS), n);
            my_places += n;
        }
    atomicAdd(&parts[threadIdx.x % LENGTHS], my_parts);
    atomicAdd(&places[threadIdx.x % LENGTHS], my_places);
    __syncthreads();
    uint32_t best = 1u << 30;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < LENGTHS; i++) {
        const uint64_t rounds = (parts[i] * c.n_kv_heads + c.blocks - 1) / c.blocks;
        if (places[i] <= PARTS_MAX && rounds * (length_of(i) + PART_TAX) < least) {
            least = rounds * (length_of(i) + PART_TAX);
            best = length_of(i);
        }
    }
    return best;
}

/* Parts are long, since each costs some microseconds beside its bytes, but every block of the decode kernel has one
 * where the context allows it. */
__device__ static uint32_t free_split(
    const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, const struct cut &c)
{
    const uint32_t least = c.blocks / c.n_kv_heads;
    uint32_t split = SPLIT_FREE;
    while (split > c.unit && parts_at(seqs, n_seqs, per_kv, split) < least)
        split = max(split / 2, c.unit);
    return parts_at(seqs, n_seqs, per_kv, split) > min(ROUNDS * least, PARTS_MAX) ? best_split(seqs, n_seqs, per_kv, c)
                                                                                  : split;
}

/* fixed: cuts that depend on the sequence alone. */
__global__ static void plan_kernel(const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv,
    uint32_t rows_per_tile, bool fixed, struct cut cut, struct plan *plan, uint32_t rows_max)
{
    launch_wait();
    const uint32_t split = fixed ? cut.unit : free_split(seqs, n_seqs, per_kv, cut);
    const bool whole =
        fixed && parts_at(seqs, n_seqs, per_kv, split) > PARTS_MAX; /* everybody as tiles: the same bits */
    struct plan_item *const all_items = plan_items(plan);
    struct plan_tile *const all_tiles = plan_tiles(plan, rows_max);
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
            for (uint32_t p = 0; p < n && item < plan_items_max(rows_max); p++) {
                const struct plan_item one = {rows.first_row, p, n, slot, rows};
                all_items[item++] = one;
            }
            slot += n * rows.n_rows;
        }
        for (uint32_t t = 0; t < my_tiles; t++) { /* the last rows see most, so they start first */
            const struct plan_tile one = {i, (my_tiles - 1 - t) * rows_per_tile};
            all_tiles[tile + t] = one;
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

void attend_plan(struct dev *d, const struct batch *b, uint32_t per_kv, uint32_t rows_per_tile, const struct cut *cut)
{
    if (d->planned_version == d->batch_version && d->planned_per_kv == per_kv)
        return;
    cuda_launch_beside(d, plan_kernel, dim3(1), THREADS, 0, b->seqs, b->n_seqs, per_kv, rows_per_tile, d->deterministic,
        *cut, d->plan, d->rows_max);
    d->planned_version = d->batch_version;
    d->planned_per_kv = per_kv;
}
