/* The plan of a step's attention: one block walks the sequences. */
#include "cuda/attend.cuh"

#define THREADS    1024
#define SPLIT_FREE 1024 /* where the search for a length starts when it may depend on the batch */
#define ROUNDS     8    /* parts per block of a resident kernel, at most; */
#define LENGTHS    64   /* beyond it so many lengths are tried, */
#define PART_TAX   56   /* where a part costs so many positions beside its own */

/* For attend_team.cu, in groups of positions: */
#define CUT_TAX     48 /* what a cut costs */
#define ROUND_LEAST 64 /* of a block, so that it has several parts; */
#define TEAM_ROUNDS 6  /* so many at most */
#define WHOLE       (1u << 30)

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

/* Tile i of a sequence's rows, `rows` at a time: a sequence that ends with its own last row. */
__device__ static struct batch_seq tile_of(const struct batch_seq &s, uint32_t i, uint32_t rows)
{
    const uint32_t first = i * rows, n = min(rows, s.n_rows - first);
    const struct batch_seq t = {s.first_row + first, n, s.n_kv - (s.n_rows - first - n), s.table_at};
    return t;
}

/* Parts of all tiles of a sequence, and how many places they take. */
__device__ static uint32_t parts_of(const struct batch_seq &s, uint32_t rows, uint32_t split, uint32_t &places)
{
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
__device__ static uint32_t parts_at(
    const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, uint32_t rows, uint32_t split)
{
    uint32_t mine = 0, places, total;
    for (uint32_t i = threadIdx.x; i < n_seqs; i += THREADS)
        if (attend_is_few(seqs[i].n_rows, per_kv)) {
            parts_of(seqs[i], rows, split, places);
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
        if (attend_is_few(seqs[i].n_rows, per_kv)) {
            uint32_t n;
            my_parts += parts_of(seqs[i], c.rows, length_of(threadIdx.x % LENGTHS), n);
            my_places += n;
        }
    atomicAdd(&parts[threadIdx.x % LENGTHS], my_parts);
    atomicAdd(&places[threadIdx.x % LENGTHS], my_places);
    __syncthreads();
    uint32_t best = WHOLE;
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

/* Parts are long, since each costs some microseconds beside its bytes, but every block of a resident kernel has
 * one where the context allows it. */
__device__ static uint32_t free_split(
    const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, const struct cut &c)
{
    const uint32_t least = c.blocks / c.n_kv_heads;
    uint32_t split = SPLIT_FREE;
    while (split > c.unit && parts_at(seqs, n_seqs, per_kv, c.rows, split) < least)
        split = max(split / 2, c.unit);
    const uint32_t places = parts_at(seqs, n_seqs, per_kv, c.rows, split);
    return places > min(ROUNDS * least, PARTS_MAX) ? best_split(seqs, n_seqs, per_kv, c) : split;
}

/* The largest of the block's. */
__device__ static uint32_t most_of(uint32_t x)
{
    __shared__ uint32_t most;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    atomicMax(&most, x);
    __syncthreads();
    return most;
}

/* Positions of a part for attend_team.cu. A cut costs some microseconds at the end, when nobody reads any more, so
 * contexts stay whole unless one would outlast a block's share of all by far. Then each block has one part; or, where
 * that were long ones, some, of which the fast ones take more. */
__device__ static uint32_t team_split(
    const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv, const struct cut &c)
{
    const uint32_t blocks = max(c.blocks / c.n_kv_heads, 1u); /* of a kv head */
    uint32_t mine = 0, longest = 0, n_groups;
    for (uint32_t i = threadIdx.x; i < n_seqs; i += THREADS)
        if (attend_is_few(seqs[i].n_rows, per_kv) && seqs[i].n_rows > 0) {
            const uint32_t groups = (seqs[i].n_kv + c.group - 1) / c.group;
            mine += (seqs[i].n_rows + c.rows - 1) / c.rows * groups;
            longest = max(longest, groups);
        }
    scan(mine, n_groups);
    const uint32_t each = (n_groups + blocks - 1) / blocks; /* groups of a block */
    if (most_of(longest) <= each + CUT_TAX)
        return WHOLE;
    const uint32_t rounds = min(max(each / ROUND_LEAST, 1u), TEAM_ROUNDS);
    uint32_t split = max((each + rounds - 1) / rounds, c.unit / c.group) * c.group;
    for (int i = 0; i < 8 && parts_at(seqs, n_seqs, per_kv, c.rows, split) > min(rounds * blocks, PARTS_MAX); i++)
        split += (split / c.group + 15) / 16 * c.group; /* no parts that would be a round of their own */
    while (split < WHOLE && parts_at(seqs, n_seqs, per_kv, c.rows, split) > PARTS_MAX)
        split *= 2;
    return split;
}

/* This thread's sequence: the first threads have the longest contexts, so that blocks which draw one part after the
 * other end at about the same time. */
__device__ static uint32_t by_length(const struct batch_seq *seqs, uint32_t n_seqs)
{
    __shared__ uint32_t length[THREADS], order[THREADS];
    const uint32_t mine = threadIdx.x < n_seqs ? seqs[threadIdx.x].n_kv : 0;
    length[threadIdx.x] = mine;
    order[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < n_seqs) {
        uint32_t before = 0;
        for (uint32_t i = 0; i < n_seqs; i++)
            before += length[i] > mine || (length[i] == mine && i < threadIdx.x) ? 1 : 0;
        order[before] = threadIdx.x;
    }
    __syncthreads();
    return order[threadIdx.x];
}

/* fixed: cuts that depend on the sequence alone. */
__global__ static void plan_kernel(const struct batch_seq *seqs, uint32_t n_seqs, uint32_t per_kv,
    uint32_t rows_per_tile, bool fixed, struct cut cut, struct plan *plan, uint32_t rows_max)
{
    launch_wait();
    const uint32_t split = fixed           ? cut.unit
                           : cut.group > 0 ? team_split(seqs, n_seqs, per_kv, cut)
                                           : free_split(seqs, n_seqs, per_kv, cut);
    const bool whole =
        fixed && parts_at(seqs, n_seqs, per_kv, cut.rows, split) > PARTS_MAX; /* everybody as tiles: the same bits */
    struct plan_item *const all_items = plan_items(plan);
    struct plan_tile *const all_tiles = plan_tiles(plan, rows_max);
    const uint32_t ordered = n_seqs <= THREADS ? by_length(seqs, n_seqs) : threadIdx.x;
    uint32_t items = 0, slots = 0, tiles = 0;
    for (uint32_t base = 0; base < n_seqs; base += THREADS) {
        const uint32_t i = base + ordered;
        struct batch_seq s = {};
        if (i < n_seqs)
            s = seqs[i];
        const bool decode = s.n_rows > 0 && !whole && attend_is_few(s.n_rows, per_kv),
                   prefill = s.n_rows > 0 && !decode;
        uint32_t places = 0;
        const uint32_t parts = decode ? parts_of(s, cut.rows, split, places) : 0;
        const uint32_t my_tiles = prefill ? (s.n_rows + rows_per_tile - 1) / rows_per_tile : 0;
        uint32_t n_items, n_slots, n_tiles;
        uint32_t item = items + scan(parts, n_items), slot = slots + scan(places, n_slots);
        const uint32_t tile = tiles + scan(my_tiles, n_tiles);
        for (uint32_t k = 0; decode && k * cut.rows < s.n_rows; k++) {
            const struct batch_seq rows = tile_of(s, k, cut.rows);
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

bool attend_plan(struct dev *d, const struct batch *b, uint32_t per_kv, uint32_t rows_per_tile, const struct cut *cut)
{
    /* layers of other heads may be cut otherwise */
    const uint32_t kind = per_kv | cut->rows << 8 | cut->group << 16 | rows_per_tile << 24;
    if (d->planned_version == d->batch_version && d->planned_kind == kind)
        return false;
    cuda_launch_beside(d, plan_kernel, dim3(1), THREADS, 0, b->seqs, b->n_seqs, per_kv, rows_per_tile, d->deterministic,
        *cut, d->plan, d->rows_max);
    d->planned_version = d->batch_version;
    d->planned_kind = kind;
    return true;
}
