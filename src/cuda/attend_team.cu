/* Attention of sequences with few rows (decoding, or a few drafted tokens) where cuts may depend on the batch: the
 * cache is streamed by warps, each through a ring of its own, and none waits for another before it has all its sums.
 *
 * A block takes one part of a context (attend_plan.cu: nearly always the whole of it) for one kv head, for all the
 * query heads that share it. Each of its 4 warps has a stretch of it, and they join what they have in shared memory, in
 * ascending order. Blocks are as many as the chip holds; where there are more parts, a block draws its next one when it
 * is through, since not all multiprocessors read equally fast; those of long contexts come first. Parts are joined by
 * whoever ends last, in ascending order, so the order of arrival changes no bit.
 *
 * Keys and values of a group of positions come by turns through the ring.
 *
 * What a warp reads first has been written long ago: the plan, the block table, groups of positions older than the rows
 * of this step. So it asks for it before launch_wait. That takes more than that the kernel before this one has waited:
 * kernels let the next in before their own wait, so several before it may still run. But this kernel lets the next in
 * behind its wait; so whatever came before the attention of one layer has ended before anything behind it begins, the
 * attention of the next layer included. The sequences, the table and copies of blocks come by copies, before a step's
 * first kernel, which starts when they are done. What remains is the attention right behind the plan: it waits first.
 *
 * Where the product behind it is even.cuh's, which asks for its first weights before its own wait, that is let onto the
 * chip at once: with as few rows as it takes half of the places are free.
 *
 * Both products are turned: positions, then elements of the values, are the tall side of the matrix unit's tile, and
 * the (row, query head) pairs that share the kv head its 8 columns, so that one row of a few heads leaves less of the
 * tile unused. Weights come out of the first product turned and are turned back in registers. Maxima are compared by a
 * vote: lanes exchange them, and sums are rescaled, only when some maximum grows. */
#include "cuda/attend_team.cuh"

/* Blocks of a multiprocessor: as many as there are registers and room for. */
static constexpr int blocks_of(bool scaled, int head_dim, uint32_t pairs)
{
    return head_dim > 128 ? 2 : pairs > 8 && scaled ? 2 : pairs > 8 || scaled ? 3 : 4;
}

/* Q: times 8 (row, head) pairs of a tile. draws: how often a block has drawn an item, and how many blocks will not draw
 * again; zero between kernels. asks_early, lets_in: see above. */
template <class C, int D, int Q>
__global__ void __launch_bounds__(TEAM_THREADS, blocks_of(C::SCALED, D, 8 * Q))
    team_kernel(const __grid_constant__ struct attend_job j, uint32_t *draws, bool asks_early, bool lets_in)
{
    using S = Team<C, D, Q>;
    SHARED_ROOM(memory);
    __shared__ uint32_t drawn;
    unsigned char *rings = (unsigned char *)memory;
    look_ahead(j.ahead, blockIdx.x * TEAM_THREADS + threadIdx.x, gridDim.x * TEAM_THREADS);
    if (!asks_early)
        launch_wait();
    const uint32_t n = j.plan->n_items * j.n_kv_heads, split = j.plan->split;
    const bool draw = n > gridDim.x;
    if (blockIdx.x >= n)
        launch_wait();
    for (uint32_t i = blockIdx.x; i < n;) {
        const struct plan_item item = j.items[i / j.n_kv_heads];
        struct team_work w;
        typename S::Ask ask;
        const bool is_seen = S::work_of(j, item, i % j.n_kv_heads, split, w), is_first = i == blockIdx.x;
        if (is_first && !S::is_old(w))
            launch_wait();
        if (is_seen)
            S::begin(j, w, team_ring<S::RING>(rings), ask);
        if (is_first) {
            launch_wait();
            if (lets_in)
                launch_next();
        }
        if (is_seen)
            S::stream(j, w, team_ring<S::RING>(rings), ask);
        if (draw && threadIdx.x == 0)
            drawn = gridDim.x + atomicAdd(draws, 1u);
        __syncthreads();
        if (is_seen)
            S::finish(j, w, item, rings);
        i = draw ? drawn : n;
        __syncthreads(); /* the rooms are free again */
    }
    if (draw && threadIdx.x == 0 && add_ordered(draws + 1, 1) == gridDim.x - 1)
        draws[0] = draws[1] = 0;
}

/* Pairs of a tile: two tiles of 8 columns where guesses are verified, which read the cache once. */
static uint32_t pairs_of(const struct batch *b, const struct attend_job *j)
{
    const uint32_t most = b->seq_rows * j->per_kv;
    return j->per_kv > 8 || (most > 8 && most <= DECODE_PAIRS) ? 16 : 8;
}

template <class C, int D, int Q> static void run_pairs(struct dev *d, const struct attend_job *j, bool is_planned)
{
    cuda_launch(d, team_kernel<C, D, Q>, dim3(d->n_sms * blocks_of(C::SCALED, D, 8 * Q)), TEAM_THREADS,
        (size_t)TEAM_WARPS * Team<C, D, Q>::RING, *j, j->arrived + (size_t)d->rows_max * j->n_kv_heads, !is_planned,
        d->is_even);
}

template <class C, int D> static void run(struct dev *d, const struct attend_job *j, uint32_t pairs, bool is_planned)
{
    if (pairs > 8)
        run_pairs<C, D, 2>(d, j, is_planned);
    else
        run_pairs<C, D, 1>(d, j, is_planned);
}

struct cut attend_team_cut(const struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const bool bytes = j->dtype != DTYPE_F16 && j->dtype != DTYPE_BF16;
    const uint32_t pairs = pairs_of(b, j), group = (uint32_t)team_group(bytes, (int)j->head_dim);
    const uint32_t blocks = d->n_sms * blocks_of(j->dtype == DTYPE_Q8_0, (int)j->head_dim, pairs);
    return {blocks, j->n_kv_heads, TEAM_WARPS * group, attend_rows(pairs, j->per_kv), group};
}

void attend_team(struct dev *d, const struct batch *b, const struct attend_job *j, bool is_planned)
{
    const uint32_t pairs = pairs_of(b, j);
    attend_visit(j, [&](auto c, auto n) { run<decltype(c), decltype(n)::D>(d, j, pairs, is_planned); });
}
