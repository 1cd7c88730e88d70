/* Attention of sequences with many rows on the warpgroup's matrix unit: heads of 64 and 128, caches of 16 bits and F8.
 *
 * A block takes a tile of TILE (row, query head) pairs that share a kv head, rows outermost. Each of two warpgroups
 * owns 64 of them. A third brings keys and values, KEYS positions at a time, into a ring of PLACES: keys, values, keys
 * and so on; a barrier of each place says that it is full, another that it is free. The two go their own way, but
 * multiply their queries by turns, so that one works out its softmax while the other keeps the matrix unit busy.
 * Positions are walked ascending. With --deterministic the sums are those of attend_chunks.cuh.
 *
 * Queries, keys and values lie in columns of 128 bytes as the matrix unit reads them (wgmma.cuh): elements 64c ..
 * 64c+63 of all rows, then the next. F8 comes into a room of its own first, and is made f16, which is exact, on its way
 * to its place: each thread has what it asked for itself. */
#include "cuda/attend_chunks.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

#define GROUP   128 /* threads of a warpgroup */
#define THREADS (3 * GROUP)
#define TILE    128
#define KEYS    CHUNK
#define PLACES  4
#define RAWS    4    /* of F8: three are on their way while one is made f16 */
#define ATOM    1024 /* bytes: eight rows of a column */

/* Registers of a thread that multiplies, and of one that brings. */
#define REGISTERS_MANY 224
#define REGISTERS_FEW  56

template <class C, int D> struct WideShape {
    static constexpr int COLUMNS = D / 64;
    static constexpr int Q = COLUMNS * TILE * 128, PLACE = COLUMNS * KEYS * 128; /* bytes */
    static constexpr int RAW = C::BYTES ? KEYS * D : 0;
    static constexpr size_t BYTES = (size_t)ATOM + Q + PLACES * PLACE + RAWS * RAW;
};

/* Where 16-byte unit u of a row lies, in columns of n rows. */
__device__ static uint32_t unit_at(uint32_t n, uint32_t row, uint32_t u)
{
    return (u / 8 * n + row) * 128 + (u % 8 ^ row % 8) * 16;
}

/* Times that a tile's rows meet KEYS positions. */
__device__ static uint32_t rounds_of(const struct tile_work &w)
{
    return (w.end - w.begin / KEYS * KEYS + KEYS - 1) / KEYS;
}

struct ring {
    unsigned char *places;
    uint64_t *full, *free, *turn; /* barriers: of each place, of each warpgroup that multiplies; */
    uint64_t *asked;              /* the queries have come; with tiles one after the other: and are done with, before */
};

/* ---- bringing ------------------------------------------------------------------------------------------------------
 */

template <class C, int D> struct Bring {
    using Shape = WideShape<C, D>;
    static constexpr int UNITS = C::BYTES ? D / 16 : D / 8; /* of 16 bytes, of a row in the cache */
    static constexpr int RUN = 16 * UNITS;                  /* of 16 positions */
    static constexpr int RUNS = KEYS / 16 / 4;              /* of a warp */

    /* Ask for the keys (t even) or values (t odd) of positions from p on, each warp for runs of 16, which lie behind
     * each other; whatever lies there where none exists. */
    static __device__ __forceinline__ void ask(
        const struct attend_job &j, const struct tile_work &w, unsigned char *to, uint32_t p, uint32_t t)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        if (p < w.end) {
            const unsigned char *at[RUNS];
            uint32_t there[RUNS];
#pragma unroll
            for (int k = 0; k < RUNS; k++) {
                const uint32_t from = p + (warp + 4 * k) * 16;
                there[k] = from < w.end && from + 16 > w.begin ? w.s.n_kv - from : 0;
                at[k] = there[k] > 0 ? position_at(j, w.table, w.kv_head, from) : j.blocks;
                at[k] += (t % 2 == 0 ? j.k_at : j.v_at) + lane * 16;
            }
#pragma unroll
            for (int k = 0; k < RUNS; k++)
#pragma unroll
                for (uint32_t c = 0; c < RUN; c += 32) {
                    const uint32_t i = lane + c, row = i / UNITS, run = warp + 4 * k;
                    copy_async(to + (C::BYTES ? (run * RUN + i) * 16 : unit_at(KEYS, run * 16 + row, i % UNITS)),
                        at[k] + c * 16, row < there[k]);
                }
        }
        copy_commit();
    }

    /* What this thread asked for, to its place. */
    static __device__ __forceinline__ void widen(const unsigned char *raw, unsigned char *to)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int k = 0; k < RUNS; k++)
#pragma unroll 2
            for (uint32_t c = 0; c < RUN; c += 32) {
                const uint32_t i = lane + c, row = (warp + 4 * k) * 16 + i / UNITS, u = i % UNITS;
                const uint4 bytes = *(const uint4 *)(raw + ((warp + 4 * k) * RUN + i) * 16);
                uint32_t pairs[8];
                f8_pairs(bytes.x, pairs);
                f8_pairs(bytes.y, pairs + 2);
                f8_pairs(bytes.z, pairs + 4);
                f8_pairs(bytes.w, pairs + 6);
                *(uint4 *)(to + unit_at(KEYS, row, 2 * u)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                *(uint4 *)(to + unit_at(KEYS, row, 2 * u + 1)) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
            }
    }

    static __device__ __forceinline__ void wait_free(const struct ring &r, uint32_t t)
    {
        if (t >= PLACES)
            barrier_wait(&r.free[t % PLACES], (t / PLACES - 1) & 1);
    }

    static __device__ __forceinline__ void tell_full(const struct ring &r, uint32_t t)
    {
        shared_ready();
        barrier_arrive(&r.full[t % PLACES]);
    }

    /* All of a tile's keys and values, n of both together, behind `done` of other tiles. 16 bits: two are on their way
     * while a third is asked for. */
    static __device__ void all(const struct attend_job &j, const struct tile_work &w, const struct ring &r,
        unsigned char *raw, uint32_t done, uint32_t n)
    {
        const uint32_t first = w.begin / KEYS * KEYS;
        if constexpr (C::BYTES) {
            for (uint32_t t = 0; t < RAWS - 1; t++)
                ask(j, w, raw + t * Shape::RAW, first + t / 2 * KEYS, t);
            for (uint32_t t = 0; t < n; t++) {
                const uint32_t next = t + RAWS - 1;
                ask(j, w, raw + next % RAWS * Shape::RAW, first + next / 2 * KEYS, next);
                copy_wait<RAWS - 1>();
                wait_free(r, done + t);
                widen(raw + t % RAWS * Shape::RAW, r.places + (done + t) % PLACES * Shape::PLACE);
                tell_full(r, done + t);
            }
        } else {
            for (uint32_t t = 0; t < n; t++) {
                wait_free(r, done + t);
                ask(j, w, r.places + (done + t) % PLACES * Shape::PLACE, first + t / 2 * KEYS, t);
                copy_wait<2>();
                if (t >= 2)
                    tell_full(r, done + t - 2);
            }
            copy_wait<0>();
            tell_full(r, done + n - 2);
            tell_full(r, done + n - 1);
        }
        copy_wait<0>();
    }
};

/* ---- multiplying ---------------------------------------------------------------------------------------------------
 */

template <class C, int D, bool FIXED>
struct Wide : Tiles<CacheRows<CachePlain<typename C::Type>, D, KEYS>, 1, KEYS, D> {
    using T = typename C::Type;
    using Shape = WideShape<C, D>;

    static __device__ __forceinline__ void load_q(
        const struct attend_job &j, const struct tile_work &w, unsigned char *to)
    {
        for (uint32_t i = threadIdx.x; i < TILE * (D / 8); i += 2 * GROUP) {
            const uint32_t pair = i / (D / 8), u = i % (D / 8);
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f), y = x;
            if (pair < w.n_pairs) {
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                const float4 *from = (const float4 *)(j.q + (row * j.n_heads + head) * D + 8 * u);
                x = from[0];
                y = from[1];
            }
            *(uint4 *)(to + unit_at(TILE, pair, u)) =
                make_uint4(pack2(T(), x.x, x.y), pack2(T(), x.z, x.w), pack2(T(), y.x, y.y), pack2(T(), y.z, y.w));
        }
    }

    /* Begun; done at wgmma_wait. */
    static __device__ __forceinline__ void scores(
        const unsigned char *q, const unsigned char *keys, float (&s)[KEYS / 8][4])
    {
        q += threadIdx.x / GROUP * 64 * 128;
        wgmma_begin();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            wgmma_keys(T(), s, wgmma_at(q + d / 4 * TILE * 128 + d % 4 * 32, ATOM, 16),
                wgmma_at(keys + d / 4 * KEYS * 128 + d % 4 * 32, ATOM, 16), d > 0);
        wgmma_commit();
    }

    static __device__ __forceinline__ void mix(
        const unsigned char *values, const float (&s)[KEYS / 8][4], float (&out)[D / 8][4], bool adds)
    {
        uint32_t a[KEYS / 16][4];
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            a[k][0] = pack2(T(), s[2 * k][0], s[2 * k][1]);
            a[k][1] = pack2(T(), s[2 * k][2], s[2 * k][3]);
            a[k][2] = pack2(T(), s[2 * k + 1][0], s[2 * k + 1][1]);
            a[k][3] = pack2(T(), s[2 * k + 1][2], s[2 * k + 1][3]);
        }
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++)
            wgmma_values(T(), out, a[k], wgmma_at(values + k * 2 * ATOM, ATOM, KEYS * 128), adds || k > 0);
        wgmma_commit();
        wgmma_wait();
    }

    /* The keys of round i are here, and it is this warpgroup's turn. */
    static __device__ __forceinline__ void await_turn(const struct ring &r, uint32_t i)
    {
        const uint32_t mine = threadIdx.x / GROUP, place = 2 * i % PLACES;
        barrier_wait(&r.full[place], 2 * i / PLACES & 1);
        if (mine == 1 || i > 0)
            barrier_wait(&r.turn[mine], (mine == 1 ? i : i - 1) & 1);
    }

    /* Queries times keys of round i, when it is this warpgroup's turn; then it is the other's. */
    static __device__ __forceinline__ void take_turn(
        const struct ring &r, uint32_t i, const unsigned char *q, float (&s)[KEYS / 8][4])
    {
        const uint32_t mine = threadIdx.x / GROUP, place = 2 * i % PLACES;
        await_turn(r, i);
        scores(q, r.places + place * Shape::PLACE, s);
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.turn[1 - mine]);
        wgmma_wait();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.free[place]);
    }

    static __device__ __forceinline__ void meet_at(uint64_t *barrier, uint32_t parity)
    {
        barrier_arrive(barrier);
        barrier_wait(barrier, parity);
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

    /* A chunk by itself, then joined with those before it. */
    static __device__ __forceinline__ void mix_apart(const unsigned char *values, const float (&s)[KEYS / 8][4],
        const float old[2], const float fresh[2], float (&out)[D / 8][4])
    {
        float chunk[D / 8][4];
        mix(values, s, chunk, false);
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[n][i] = chunk_add(out[n][i], old[i / 2], chunk[n][i], fresh[i / 2]);
    }

    /* The second warpgroup where a tile has no rows for it: leaves its turns, and the places, to the first. */
    static __device__ __forceinline__ void sit_out(const struct ring &r, uint32_t done, uint32_t rounds)
    {
        for (uint32_t i = done; i < done + rounds; i++) {
            await_turn(r, i);
            __syncwarp(); /* nobody is still looking at what moves on now */
            if (threadIdx.x % 32 == 0) {
                barrier_arrive(&r.turn[0]);
                barrier_arrive(&r.free[2 * i % PLACES]);
            }
            barrier_wait(&r.full[(2 * i + 1) % PLACES], (2 * i + 1) / PLACES & 1);
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(&r.free[(2 * i + 1) % PLACES]);
        }
    }

    /* A tile, behind `done` rounds of others. */
    static __device__ void all(
        const struct attend_job &j, const struct tile_work &w, const struct ring &r, unsigned char *q, uint32_t done)
    {
        if (FIXED)
            meet_at(r.asked, 0);
        load_q(j, w, q);
        shared_ready();
        meet_at(r.asked, FIXED);
        if (FIXED && threadIdx.x / GROUP * 64 >= w.n_pairs) {
            sit_out(r, done, rounds_of(w));
            return;
        }
        const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        uint32_t limit[1][2];
        for (int half = 0; half < 2; half++)
            limit[0][half] = min(w.pos + (warp * 16 + g + 8 * half) / j.per_kv + 1, w.end);
        float out[1][D / 8][4] = {}, top[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
        uint32_t p = w.begin / KEYS * KEYS;
        for (uint32_t i = done; p < w.end; p += KEYS, i++) {
            float s[1][KEYS / 8][4];
            take_turn(r, i, q, s[0]);
            const bool masked = p + KEYS > w.pos + 1 || (j.window > 0 && p + j.window < w.end);
            float old[2], fresh[2];
            if (FIXED)
                weigh(j, p, masked, limit, s, top[0], sum[0], old, fresh);
            else
                Wide::soften(j, p, masked, limit, s, top, sum, out);
            const uint32_t place = (2 * i + 1) % PLACES;
            barrier_wait(&r.full[place], (2 * i + 1) / PLACES & 1);
            if (FIXED)
                mix_apart(r.places + place * Shape::PLACE, s[0], old, fresh, out[0]);
            else
                mix(r.places + place * Shape::PLACE, s[0], out[0], true);
            if (threadIdx.x % 32 == 0)
                barrier_arrive(&r.free[place]);
        }
        Wide::template write<!FIXED>(j, w, sum, out);
    }
};

__device__ static struct tile_work tile_at(const struct attend_job &j, uint32_t i)
{
    return work_of(j, j.tiles[i / j.n_kv_heads], i % j.n_kv_heads, attend_rows(TILE, j.per_kv));
}

/* n when there is none. */
template <bool FIXED> __device__ static uint32_t next_tile(uint32_t i, uint32_t n)
{
    return FIXED ? i + gridDim.x : n;
}

/* A block has one tile; with --deterministic it may have one behind the other, since a step of few rows, where tiles
 * come only when there are too many parts, must not cost a block for each that there could be. */
template <class C, int D, bool FIXED>
__global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ struct attend_job j)
{
    using S = Wide<C, D, FIXED>;
    using Shape = WideShape<C, D>;
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[2 * PLACES + 3];
    unsigned char *q = (unsigned char *)(((uintptr_t)memory + ATOM - 1) / ATOM * ATOM), *places = q + Shape::Q;
    const struct ring r = {places, barriers, barriers + PLACES, barriers + 2 * PLACES, barriers + 2 * PLACES + 2};
    if (threadIdx.x <
        2 * PLACES + 3) /* who arrives: those that bring; warps that multiply, of both, of the other; all */
        barrier_init(&barriers[threadIdx.x], threadIdx.x < PLACES           ? GROUP
                                             : threadIdx.x < 2 * PLACES     ? 8
                                             : threadIdx.x < 2 * PLACES + 2 ? 4
                                                                            : 2 * GROUP);
    __syncthreads();
    launch_wait();
    const uint32_t n = j.plan->n_tiles * j.n_kv_heads;
    if (blockIdx.x >= n)
        return;
    if (threadIdx.x / GROUP == 2) {
        warpgroup_registers_down<REGISTERS_FEW>();
        for (uint32_t i = blockIdx.x, done = 0; i < n; i = next_tile<FIXED>(i, n)) {
            const struct tile_work w = tile_at(j, i);
            Bring<C, D>::all(j, w, r, places + PLACES * Shape::PLACE, 2 * done, 2 * rounds_of(w));
            done += rounds_of(w);
        }
    } else {
        warpgroup_registers_up<REGISTERS_MANY>();
        for (uint32_t i = blockIdx.x, done = 0; i < n; i = next_tile<FIXED>(i, n)) {
            const struct tile_work w = tile_at(j, i);
            S::all(j, w, r, q, done);
            done += rounds_of(w);
        }
    }
}

template <class C, int D> static void run(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const uint32_t rows = attend_rows(TILE, j->per_kv);
    const uint32_t tiles = (b->n_rows + rows - 1) / rows + b->n_seqs; /* at most; the plan knows how many */
    const bool many = b->seq_rows * j->per_kv > DECODE_PAIRS;
    if (d->deterministic)
        cuda_launch(d, wide_kernel<C, D, true>, dim3(many ? tiles * j->n_kv_heads : d->n_sms), THREADS,
            WideShape<C, D>::BYTES, *j);
    else
        cuda_launch(d, wide_kernel<C, D, false>, dim3(tiles * j->n_kv_heads), THREADS, WideShape<C, D>::BYTES, *j);
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
