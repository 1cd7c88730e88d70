/* Attention of sequences with many rows on the warpgroup's matrix unit: heads of 64 and 128, caches of 16 bits and F8.
 *
 * A block takes tiles of TILE (row, query head) pairs that share a kv head, rows outermost, one after the other. Each
 * of two warpgroups owns 64 pairs. A third brings keys and values, KEYS positions at a time, which are walked ascending
 * (attend_bring.cuh); queries that lie as 16 bits already are asked for while the tile before ends.
 *
 * The two multiply by turns, so that one works out its softmax while the other keeps the matrix unit busy; in one turn
 * the queries by the next keys and the last weights by their values. With --deterministic the sums are those of
 * attend_chunks.cuh, whose chunks have results of their own: there is no room for two products' sums then, and values
 * have no turn. */
#include "cuda/attend_bring.cuh"
#include "cuda/attend_chunks.cuh"
#include "cuda/turn.cuh"

#define THREADS (3 * GROUP)

/* Registers of a thread that multiplies, and of one that brings: two and one, together what three have at the start. */
template <class C> struct WideRegisters {
    static constexpr int MANY = C::BYTES ? 208 : 224, FEW = 3 * 168 - 2 * MANY;
};

template <class C, int D, bool FIXED>
struct Wide : Tiles<CacheRows<CachePlain<typename C::Type>, D, KEYS>, 1, KEYS, D> {
    using T = typename C::Type;
    using Shape = WideShape<C, D>;

    /* Begun; done at wgmma_wait. */
    static __device__ __forceinline__ void scores(
        const unsigned char *q, const unsigned char *keys, float (&s)[KEYS / 8][4])
    {
        q += threadIdx.x / GROUP * 64 * 128;
        wgmma_hold(s);
        wgmma_begin();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            wgmma_keys(T(), s, wgmma_at(q + d / 4 * TILE * 128 + d % 4 * 32, ATOM, 16),
                wgmma_at(keys + d / 4 * ATOM + d % 4 * 32, Shape::COLUMNS * ATOM, 16), d > 0);
        wgmma_commit();
    }

    /* Weights as the second product's tall operand. */
    static __device__ __forceinline__ void pack(const float (&s)[KEYS / 8][4], uint32_t (&a)[KEYS / 16][4])
    {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            a[k][0] = pack2(T(), s[2 * k][0], s[2 * k][1]);
            a[k][1] = pack2(T(), s[2 * k][2], s[2 * k][3]);
            a[k][2] = pack2(T(), s[2 * k + 1][0], s[2 * k + 1][1]);
            a[k][3] = pack2(T(), s[2 * k + 1][2], s[2 * k + 1][3]);
        }
    }

    /* Begun; done at wgmma_wait. */
    static __device__ __forceinline__ void mix(
        const unsigned char *values, const uint32_t (&a)[KEYS / 16][4], float (&out)[D / 8][4], bool adds)
    {
        wgmma_hold(out);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            wgmma_values(T(), out, a[k], wgmma_at(values + k * 2 * Shape::COLUMNS * ATOM, Shape::COLUMNS * ATOM, ATOM),
                adds || k > 0);
        wgmma_commit();
    }

    /* The keys of round i are here, and it is this warpgroup's turn. */
    static __device__ __forceinline__ void await_turn(const struct ring &r, uint32_t i)
    {
        const uint32_t mine = threadIdx.x / GROUP, place = 2 * i % PLACES;
        barrier_wait(&r.b[FULL + place], 2 * i / PLACES & 1);
        if (mine == 1 || i > 0)
            barrier_wait(&r.b[TURN + mine], (mine == 1 ? i : i - 1) & 1);
    }

    /* Queries times keys of round i are begun, when it is this warpgroup's turn. */
    static __device__ __forceinline__ void take_turn(const struct ring &r, uint32_t i, float (&s)[KEYS / 8][4])
    {
        await_turn(r, i);
        scores(r.q, r.places + 2 * i % PLACES * Shape::PLACE, s);
    }

    static __device__ __forceinline__ void pass_turn(const struct ring &r)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.b[TURN + 1 - threadIdx.x / GROUP]);
    }

    /* The t-th place of all is read no more. */
    static __device__ __forceinline__ void leave(const struct ring &r, uint32_t t)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.b[FREE + t % PLACES]);
    }

    /* The values of round i, once they are here. */
    static __device__ __forceinline__ const unsigned char *values_of(const struct ring &r, uint32_t i)
    {
        const uint32_t t = 2 * i + 1;
        barrier_wait(&r.b[FULL + t % PLACES], t / PLACES & 1);
        return r.places + t % PLACES * Shape::PLACE;
    }

    static __device__ __forceinline__ void meet_at(uint64_t *barrier, uint32_t parity)
    {
        barrier_arrive(barrier);
        barrier_wait(barrier, parity);
    }

    static __device__ __forceinline__ bool has_rows(const struct tile_work &w)
    {
        return threadIdx.x / GROUP * 64 < w.n_pairs;
    }

    /* This warpgroup's queries of a tile are asked for, when it is through with those before; */
    static __device__ __forceinline__ void begin_q(
        const struct attend_job &j, const struct note &n, const struct ring &r)
    {
        const uint32_t mine = threadIdx.x / GROUP, from = mine * 64;
        if (!n.there || !has_rows(n.w))
            return;
        meet_at(&r.b[ASKED + mine], 0);
        if (has_short_q(j, n.w))
            ask_q<D, GROUP>(j, n.w, r.q, from, from + 64, threadIdx.x % GROUP);
    }

    /* and are there. */
    static __device__ __forceinline__ void end_q(
        const struct attend_job &j, const struct tile_work &w, const struct ring &r)
    {
        const uint32_t mine = threadIdx.x / GROUP, from = mine * 64;
        if (has_short_q(j, w)) {
            copy_commit();
            copy_wait<0>();
        } else {
            load_q<T, D, GROUP, TILE / 2 * (D / 8) / GROUP>(j, w, r.q, from, from + 64, threadIdx.x % GROUP);
        }
        shared_ready();
        meet_at(&r.b[ASKED + mine], 1);
    }

    /* A chunk's weights instead of its scores, and what share of the output the old and the fresh have. */
    static __device__ __forceinline__ void weigh(const struct attend_job &j, uint32_t p, bool masked,
        const uint32_t limit[1][2], float s[1][KEYS / 8][4], float most[2], float sum[2], float old[2], float fresh[2])
    {
        const float factor = chunk_factor<KEYS / 8 * 4>(j, &s[0][0][0]);
        if (masked)
            Wide::hide(j, p, limit, s);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, lane[4];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                top = fmaxf(top, fmaxf(s[0][n][2 * half], s[0][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            const float comes = chunk_most(top, factor);
#pragma unroll
            for (int k = 0; k < 4; k++)
                lane[k] = chunk_weigh(&s[0][k * (CHUNK_QUARTER / 8)], half, factor, comes);
            chunk_shares(most[half], comes, old[half], fresh[half]);
            sum[half] = chunk_add(sum[half], old[half], chunk_sum(lane[0], lane[1], lane[2], lane[3]), fresh[half]);
        }
    }

    static __device__ __forceinline__ bool is_masked(const struct attend_job &j, uint32_t pos, uint32_t end, uint32_t p)
    {
        return p + KEYS > pos + 1 || (j.window > 0 && p + j.window < end);
    }

    /* The rounds of a tile: a chunk by itself, then joined with those before it. next: the tile behind it. */
    static __device__ __forceinline__ void walk_apart(const struct attend_job &j, const struct tile_work &w,
        const struct ring &r, uint32_t i, uint32_t next, const uint32_t limit[1][2], float sum[1][2],
        float (&out)[1][D / 8][4])
    {
        const uint32_t pos = w.pos, end = w.end;
        float most[2] = {-INFINITY, -INFINITY};
        for (uint32_t p = w.begin / KEYS * KEYS; p < end; p += KEYS, i++) {
            float s[1][KEYS / 8][4], chunk[D / 8][4], old[2], fresh[2];
            uint32_t a[KEYS / 16][4];
            take_turn(r, i, s[0]);
            pass_turn(r);
            wgmma_wait();
            wgmma_hold(s[0]);
            leave(r, 2 * i);
            weigh(j, p, is_masked(j, pos, end, p), limit, s, most, sum[0], old, fresh);
            pack(s[0], a);
            mix(values_of(r, i), a, chunk, false);
            wgmma_wait();
            wgmma_hold(chunk);
            leave(r, 2 * i + 1);
#pragma unroll
            for (int n = 0; n < D / 8; n++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    out[0][n][k] = chunk_add(out[0][n][k], old[k / 2], chunk[n][k], fresh[k / 2]);
        }
        begin_q(j, note_of(r, next), r);
    }

    /* The same with one maximum for all: values follow a round behind the keys. */
    static __device__ __forceinline__ void walk(const struct attend_job &j, const struct tile_work &w,
        const struct ring &r, uint32_t i, uint32_t next, const uint32_t limit[1][2], float sum[1][2],
        float (&out)[1][D / 8][4])
    {
        const uint32_t pos = w.pos, end = w.end;
        float s[1][KEYS / 8][4], most[1][2] = {{-INFINITY, -INFINITY}}, shrink[1][2];
        uint32_t a[KEYS / 16][4], p = w.begin / KEYS * KEYS;
        take_turn(r, i, s[0]);
        pass_turn(r);
        wgmma_wait();
        wgmma_hold(s[0]);
        leave(r, 2 * i);
        Wide::soften(j, p, is_masked(j, pos, end, p), limit, s, most, sum, shrink);
        pack(s[0], a);
        for (p += KEYS, i++; p < end; p += KEYS, i++) {
            take_turn(r, i, s[0]);
            mix(values_of(r, i - 1), a, out[0], true);
            pass_turn(r);
            wgmma_wait();
            wgmma_hold(s[0]);
            wgmma_hold(out[0]);
            leave(r, 2 * i);
            leave(r, 2 * i - 1);
            Wide::soften(j, p, is_masked(j, pos, end, p), limit, s, most, sum, shrink);
            Wide::shrink_out(shrink, out);
            pack(s[0], a);
        }
        mix(values_of(r, i - 1), a, out[0], true);
        begin_q(j, note_of(r, next), r);
        wgmma_wait();
        wgmma_hold(out[0]);
        leave(r, 2 * i - 1);
    }

    /* The second warpgroup where a tile has no rows for it: leaves its turns, and the places, to the first. */
    static __device__ __forceinline__ void sit_out(const struct ring &r, uint32_t done, uint32_t rounds)
    {
        for (uint32_t i = done; i < done + rounds; i++) {
            await_turn(r, i);
            __syncwarp(); /* nobody is still looking at what moves on now */
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(&r.b[TURN]);
                barrier_arrive(&r.b[FREE + 2 * i % PLACES]);
            }
            barrier_wait(&r.b[FULL + (2 * i + 1) % PLACES], (2 * i + 1) / PLACES & 1);
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(&r.b[FREE + (2 * i + 1) % PLACES]);
        }
    }

    /* As Tiles::write, where only 16 bits are wanted: 16 bytes at a time. */
    template <class A>
    static __device__ __forceinline__ void write_short(
        const struct attend_job &j, const struct tile_work &w, A *to, const float sum[2], const float (&out)[D / 8][4])
    {
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t pair = warp * 16 + g + 8 * half;
            const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
            const float inv = 1.0f / sum[half];
            A *const at = to + (row * j.n_heads + head) * D + 8 * t;
#pragma unroll
            for (int n = 0; n < D / 8; n += 4) {
                uint32_t x[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[k] = act_pair(A(), out[n + k][2 * half] * inv, out[n + k][2 * half + 1] * inv);
                turn_words(x);
                if (pair < w.n_pairs)
                    *(uint4 *)(at + 8 * n) = make_uint4(x[0], x[1], x[2], x[3]);
            }
        }
    }

    static __device__ __forceinline__ void finish(
        const struct attend_job &j, const struct tile_work &w, float (&sum)[1][2], float (&out)[1][D / 8][4])
    {
        if (j.out.f32 != NULL) {
            Wide::template write<!FIXED>(j, w, sum, out);
            return;
        }
        if (!FIXED)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                sum[0][half] += __shfl_xor_sync(ALL_LANES, sum[0][half], 1);
                sum[0][half] += __shfl_xor_sync(ALL_LANES, sum[0][half], 2);
            }
        if (j.out.f16 != NULL)
            write_short(j, w, j.out.f16, sum[0], out[0]);
        if (j.out.bf16 != NULL)
            write_short(j, w, j.out.bf16, sum[0], out[0]);
    }

    /* A tile, behind `done` rounds of others; next: the one behind it. */
    static __device__ __forceinline__ void tile(
        const struct attend_job &j, const struct tile_work &w, const struct ring &r, uint32_t done, uint32_t next)
    {
        if (!has_rows(w)) {
            sit_out(r, done, rounds_of(w));
            begin_q(j, note_of(r, next), r);
            return;
        }
        end_q(j, w, r);
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        uint32_t limit[1][2];
        for (int half = 0; half < 2; half++)
            limit[0][half] = min(w.pos + (warp * 16 + g + 8 * half) / j.per_kv + 1, w.end);
        float out[1][D / 8][4] = {}, sum[1][2] = {};
        if (FIXED)
            walk_apart(j, w, r, done, next, limit, sum, out);
        else
            walk(j, w, r, done, next, limit, sum, out);
        finish(j, w, sum, out);
    }
};

template <class C, int D, bool FIXED>
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct attend_job j, const __grid_constant__ CUtensorMap map)
{
    using Shape = WideShape<C, D>;
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[BARRIERS];
    __shared__ struct note notes[NOTES];
    unsigned char *const q = (unsigned char *)memory + (ATOM - (uintptr_t)memory % ATOM) % ATOM;
    unsigned char *const places = q + Shape::Q;
    const struct ring r = {q, places, places + PLACES * Shape::PLACE, notes, barriers};
    if (threadIdx.x < BARRIERS) {
        barrier_init(&barriers[threadIdx.x], arrivals_at(threadIdx.x, C::BYTES));
        barrier_publish();
    }
    __syncthreads();
    launch_wait();
    const uint32_t n = j.plan->n_tiles * j.n_kv_heads;
    if (blockIdx.x >= n)
        return;
    if (threadIdx.x / GROUP == 2) {
        warpgroup_registers_down<WideRegisters<C>::FEW>();
        bring_all<C, D>(j, &map, r, n);
    } else {
        warpgroup_registers_up<WideRegisters<C>::MANY>();
        Wide<C, D, FIXED>::begin_q(j, note_of(r, 0), r);
        for (uint32_t k = 0, done = 0;; k++) {
            const struct note &mine = note_of(r, k);
            if (!mine.there)
                return;
            const uint32_t rounds = rounds_of(mine.w);
            Wide<C, D, FIXED>::tile(j, mine.w, r, done, k + 1);
            done += rounds;
        }
    }
}

template <class C, int D> static void run(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const uint32_t rows = attend_rows(TILE, j->per_kv);
    const uint32_t tiles = (b->n_rows + rows - 1) / rows + b->n_seqs; /* at most; the plan knows how many */
    CUtensorMap map = {};
    if (!C::BYTES && !tma_map_runs(d, &map, j->blocks, j->row_bytes, WideShape<C, D>::COLUMNS))
        return;
    const dim3 grid(tiles * j->n_kv_heads < d->n_sms ? tiles * j->n_kv_heads : d->n_sms);
    if (d->deterministic)
        cuda_launch(d, wide_kernel<C, D, true>, grid, THREADS, WideShape<C, D>::BYTES, *j, map);
    else
        cuda_launch(d, wide_kernel<C, D, false>, grid, THREADS, WideShape<C, D>::BYTES, *j, map);
}

template <class C> static void run_size(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    if (j->head_dim == 64)
        run<C, 64>(d, b, j);
    else
        run<C, 128>(d, b, j);
}

static bool is_allowed = true;

extern "C" void cuda_allow_wide(bool allow)
{
    is_allowed = allow;
}

uint32_t attend_wide_rows(const struct dev *d, const struct attend_job *j)
{
    const bool has = is_allowed && d->capability >= 90 && (j->head_dim == 64 || j->head_dim == 128) &&
                     (j->dtype == DTYPE_F16 || j->dtype == DTYPE_BF16 || j->dtype == DTYPE_F8_E4M3);
    return has ? attend_rows(TILE, j->per_kv) : 0;
}

void attend_wide(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    switch (j->dtype) {
    case DTYPE_F16: run_size<CachePlain<__half>>(d, b, j); break;
    case DTYPE_F8_E4M3: run_size<CacheF8>(d, b, j); break;
    default: run_size<CachePlain<__nv_bfloat16>>(d, b, j); break;
    }
}
