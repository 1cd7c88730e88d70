/* Attention of sequences with many rows on the warpgroup's matrix unit: heads of 64 and 128, caches of 16 bits and F8.
 *
 * A block takes a tile of TILE (row, query head) pairs that share a kv head, rows outermost. Each of two warpgroups
 * owns 64 of them. A third brings keys and values, KEYS positions at a time, into a ring of PLACES: keys, values, keys
 * and so on; a barrier of each place says that it is full, another that it is free. Positions are walked ascending.
 *
 * Each of the two has the products of the next keys and of the last values under way while it works out its softmax,
 * and they begin them by turns, so that one keeps the matrix unit busy while the other does not. With --deterministic
 * the sums are those of attend_chunks.cuh, whose chunks have results of their own: there is no room for two products'
 * sums then, and only the turns are left.
 *
 * Queries, keys and values lie in columns of 128 bytes as the matrix unit reads them (wgmma.cuh): eight rows of
 * elements 64c .. 64c+63 an atom; of keys and values the atoms of the same eight rows lie behind each other, as the
 * copy engine leaves a run of 16 positions (tma.cuh). F8 comes into a room of its own first, and is made f16, which is
 * exact, on its way to its place. */
#include "cuda/attend_chunks.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

#define GROUP   128 /* threads of a warpgroup */
#define THREADS (3 * GROUP)
#define TILE    128
#define KEYS    CHUNK
#define RUNS    (KEYS / TMA_RUN)
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

/* Where 16-byte unit u of a row lies, in columns of n rows, */
__device__ static uint32_t unit_at(uint32_t n, uint32_t row, uint32_t u)
{
    return (u / 8 * n + row) * 128 + (u % 8 ^ row % 8) * 16;
}

/* and in a place. */
template <int COLUMNS> __device__ static uint32_t place_at(uint32_t row, uint32_t u)
{
    return (row / 8 * COLUMNS + u / 8) * ATOM + row % 8 * 128 + (u % 8 ^ row % 8) * 16;
}

/* Times that a tile's rows meet KEYS positions. */
__device__ static uint32_t rounds_of(const struct tile_work &w)
{
    return (w.end - w.begin / KEYS * KEYS + KEYS - 1) / KEYS;
}

struct ring {
    unsigned char *places, *raws;
    uint64_t *full, *free, *turn; /* barriers: of each place, of each warpgroup that multiplies; */
    uint64_t *asked;              /* the queries have come; with tiles one after the other: and are done with, before */
    uint64_t *torn;               /* a run that is not yet whole has come */
    uint64_t *raw_full, *raw_free;
};

#define BARRIERS (2 * PLACES + 4 + 2 * RAWS)

__device__ static struct ring ring_of(unsigned char *places, unsigned char *raws, uint64_t *b)
{
    const struct ring r = {places, raws, b, b + PLACES, b + 2 * PLACES, b + 2 * PLACES + 2, b + 2 * PLACES + 3,
        b + 2 * PLACES + 4, b + 2 * PLACES + 4 + RAWS};
    return r;
}

/* Who arrives at barrier i: of 16 bits one thread brings, of F8 all of its warpgroup. */
__device__ static uint32_t arrivals_at(uint32_t i, bool raw)
{
    return i < PLACES                  ? (raw ? GROUP : 1)
           : i < 2 * PLACES            ? 8 /* warps that multiply */
           : i < 2 * PLACES + 2        ? 4 /* those of the other warpgroup */
           : i == 2 * PLACES + 2       ? 2 * GROUP
           : i < 2 * PLACES + 4 + RAWS ? 1
                                       : 4; /* warps that bring */
}

/* ---- bringing ------------------------------------------------------------------------------------------------------
 */

/* Runs of 16 positions of a tile. */
struct span {
    uint32_t begin, end; /* runs that some row sees */
    uint32_t there;      /* positions that exist */
};

__device__ static struct span span_of(const struct tile_work &w)
{
    const struct span s = {w.begin / TMA_RUN * TMA_RUN, (w.end + TMA_RUN - 1) / TMA_RUN * TMA_RUN, w.s.n_kv};
    return s;
}

/* Bytes from the cache's first to the keys of 16 positions. */
__device__ static uint64_t run_at(const struct attend_job &j, const struct tile_work &w, uint32_t block, uint32_t p)
{
    return block * j.block_bytes + ((uint64_t)w.kv_head * j.block_tokens + p % j.block_tokens) * j.row_bytes + j.k_at;
}

__device__ static bool is_in(const struct span &s, uint32_t p)
{
    return p >= s.begin && p < s.end;
}

/* Of positions p on, the block that they lie in; it is asked for a round before it is needed. */
__device__ static uint32_t block_of(
    const struct attend_job &j, const struct tile_work &w, const struct span &s, uint32_t p)
{
    return is_in(s, p) ? w.table[p / j.block_tokens] : 0;
}

__device__ static void wait_free(const struct ring &r, uint32_t t)
{
    if (t >= PLACES)
        barrier_wait(&r.free[t % PLACES], (t / PLACES - 1) & 1);
}

/* 16 bits: the first warp alone, a lane for each run; the copy engine brings them to where they are read. */
template <class C, int D> struct Bring {
    using Shape = WideShape<C, D>;
    static constexpr int RUN = Shape::COLUMNS * 2 * ATOM;

    /* The values behind the last position may be anything, and nothing times anything is not nothing. */
    static __device__ void mend(const struct ring &r, const struct span &s, unsigned char *to, uint32_t p, uint32_t n)
    {
        constexpr uint32_t UNITS = D / 8;
        barrier_wait(r.torn, n & 1);
        for (uint32_t i = threadIdx.x % 32; i < (s.end - s.there) * UNITS; i += 32)
            *(uint4 *)(to + place_at<Shape::COLUMNS>(s.there - p + i / UNITS, i % UNITS)) = make_uint4(0, 0, 0, 0);
        shared_ready();
        __syncwarp();
    }

    /* All of a tile's keys and values, `rounds` of each, behind `done` of other tiles. torn: runs that had to be
     * mended. */
    static __device__ void all(const struct attend_job &j, const CUtensorMap *map, const struct tile_work &w,
        const struct ring &r, uint32_t done, uint32_t rounds, uint32_t &torn)
    {
        const uint32_t lane = threadIdx.x % 32;
        const struct span s = span_of(w);
        if (threadIdx.x / 32 % 4 > 0)
            return;
        uint32_t p = w.begin / KEYS * KEYS, block = block_of(j, w, s, p + lane % RUNS * TMA_RUN);
        for (uint32_t t = 2 * done; t < 2 * (done + rounds); p += KEYS) {
            const uint32_t mine = p + lane % RUNS * TMA_RUN;
            const uint64_t at = run_at(j, w, block, mine);
            block = block_of(j, w, s, mine + KEYS);
            for (uint32_t kind = 0; kind < 2; kind++, t++) {
                uint64_t *const full = &r.full[t % PLACES];
                unsigned char *const to = r.places + t % PLACES * Shape::PLACE;
                const bool is_torn = kind == 1 && p + KEYS > s.there && s.end > s.there;
                wait_free(r, t);
                if (lane == 0)
                    barrier_arrive_expect(is_torn ? r.torn : full, Shape::PLACE);
                __syncwarp();
                if (lane < RUNS)
                    tma_load_run(to + lane * RUN, map,
                        is_in(s, mine) ? (int32_t)((at + kind * (j.v_at - j.k_at)) / TMA_STEP) : TMA_NONE,
                        is_torn ? r.torn : full);
                if (is_torn) {
                    mend(r, s, to, p, torn++);
                    if (lane == 0)
                        barrier_arrive(full);
                }
            }
        }
    }
};

/* F8: the copy engine brings runs as they lie, for which the first warp asks, and all four make them f16. */
template <int D> struct Bring<CacheF8, D> {
    using Shape = WideShape<CacheF8, D>;
    static constexpr int UNITS = D / 16, RUN = TMA_RUN * D; /* of 16 bytes, of a row; bytes */

    /* Ask for the keys (kind 0) or values of positions p on, as the t-th of all. */
    static __device__ __forceinline__ void ask(const struct attend_job &j, const struct ring &r, const struct span &s,
        uint32_t t, uint32_t p, const unsigned char *from)
    {
        const uint32_t lane = threadIdx.x % 32, first = max(p, s.begin), last = min(p + KEYS, s.end);
        uint64_t *const full = &r.raw_full[t % RAWS];
        if (t >= RAWS)
            barrier_wait(&r.raw_free[t % RAWS], (t / RAWS - 1) & 1);
        if (lane == 0)
            barrier_arrive_expect(full, (last - first) * D);
        __syncwarp();
        if (lane < RUNS && is_in(s, p + lane * TMA_RUN))
            tma_load_bytes(r.raws + t % RAWS * Shape::RAW + lane * RUN, from, RUN, full);
    }

    /* Lanes lie so that neither reads nor writes meet in a bank: eight have the halves of two rows. */
    static __device__ __forceinline__ void widen(
        const unsigned char *raw, unsigned char *to, const struct span &s, uint32_t p)
    {
        constexpr int EACH = KEYS * UNITS / GROUP, ROWS = GROUP / UNITS;
        const uint32_t i = threadIdx.x % GROUP, u = i % UNITS, row = i / UNITS ^ u / (UNITS / 2);
        const bool whole = p >= s.begin && p + KEYS <= s.end && p + KEYS <= s.there;
        unsigned char *const even = to + place_at<Shape::COLUMNS>(row, 2 * u);
        unsigned char *const odd = to + place_at<Shape::COLUMNS>(row, 2 * u + 1);
        raw += (row * UNITS + u) * 16;
#pragma unroll
        for (int n = 0; n < EACH; n += 4) {
            uint4 bytes[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                bytes[k] = *(const uint4 *)(raw + (n + k) * ROWS * UNITS * 16);
                const uint32_t at = p + row + (n + k) * ROWS;
                if (!whole && (at < s.begin || at >= s.end || at >= s.there))
                    bytes[k] = make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t behind = (n + k) * (ROWS / 8) * Shape::COLUMNS * ATOM;
                uint32_t pairs[8];
                f8_pairs(bytes[k].x, pairs);
                f8_pairs(bytes[k].y, pairs + 2);
                f8_pairs(bytes[k].z, pairs + 4);
                f8_pairs(bytes[k].w, pairs + 6);
                *(uint4 *)(even + behind) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                *(uint4 *)(odd + behind) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
            }
        }
    }

    static __device__ void all(const struct attend_job &j, const CUtensorMap *, const struct tile_work &w,
        const struct ring &r, uint32_t done, uint32_t rounds, uint32_t &)
    {
        const uint32_t lane = threadIdx.x % 32, first = w.begin / KEYS * KEYS, mine = first + lane % RUNS * TMA_RUN;
        const struct span s = span_of(w);
        const bool asks = threadIdx.x / 32 % 4 == 0;
        uint32_t asked = 2 * done, block = asks ? block_of(j, w, s, mine) : 0;
        uint64_t at = 0;
        const auto ask_next = [&] {
            const uint32_t i = asked - 2 * done, p = i / 2 * KEYS;
            if (i % 2 == 0) {
                at = run_at(j, w, block, mine + p);
                block = block_of(j, w, s, mine + p + KEYS);
            }
            ask(j, r, s, asked++, first + p, j.blocks + at + i % 2 * (j.v_at - j.k_at));
        };
        for (uint32_t t = 2 * done; t < 2 * (done + rounds); t++) {
            while (asks && asked < min(t + RAWS - 1, 2 * (done + rounds)))
                ask_next();
            barrier_wait(&r.raw_full[t % RAWS], t / RAWS & 1);
            wait_free(r, t);
            widen(
                r.raws + t % RAWS * Shape::RAW, r.places + t % PLACES * Shape::PLACE, s, first + (t / 2 - done) * KEYS);
            shared_ready();
            barrier_arrive(&r.full[t % PLACES]);
            __syncwarp();
            if (lane == 0)
                barrier_arrive(&r.raw_free[t % RAWS]);
        }
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
        constexpr int UNITS = D / 8, EACH = TILE * UNITS / (2 * GROUP);
        const uint32_t u = threadIdx.x % UNITS, first = threadIdx.x / UNITS;
        float4 x[EACH][2] = {};
#pragma unroll
        for (int i = 0; i < EACH; i++) { /* all are asked for before the first is needed */
            const uint32_t pair = first + i * (2 * GROUP / UNITS);
            if (pair < w.n_pairs) {
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                const float4 *from = (const float4 *)(j.q + (row * j.n_heads + head) * D + 8 * u);
                x[i][0] = from[0];
                x[i][1] = from[1];
            }
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float4 a = x[i][0], b = x[i][1];
            *(uint4 *)(to + unit_at(TILE, first + i * (2 * GROUP / UNITS), u)) =
                make_uint4(pack2(T(), a.x, a.y), pack2(T(), a.z, a.w), pack2(T(), b.x, b.y), pack2(T(), b.z, b.w));
        }
    }

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
        barrier_wait(&r.full[place], 2 * i / PLACES & 1);
        if (mine == 1 || i > 0)
            barrier_wait(&r.turn[mine], (mine == 1 ? i : i - 1) & 1);
    }

    /* Queries times keys of round i are begun, when it is this warpgroup's turn. */
    static __device__ __forceinline__ void take_turn(
        const struct ring &r, uint32_t i, const unsigned char *q, float (&s)[KEYS / 8][4])
    {
        await_turn(r, i);
        scores(q, r.places + 2 * i % PLACES * Shape::PLACE, s);
    }

    static __device__ __forceinline__ void pass_turn(const struct ring &r)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.turn[1 - threadIdx.x / GROUP]);
    }

    /* The t-th place of all is read no more. */
    static __device__ __forceinline__ void leave(const struct ring &r, uint32_t t)
    {
        if (threadIdx.x % 32 == 0)
            barrier_arrive(&r.free[t % PLACES]);
    }

    /* The values of round i, once they are here. */
    static __device__ __forceinline__ const unsigned char *values_of(const struct ring &r, uint32_t i)
    {
        const uint32_t t = 2 * i + 1;
        barrier_wait(&r.full[t % PLACES], t / PLACES & 1);
        return r.places + t % PLACES * Shape::PLACE;
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

    static __device__ __forceinline__ bool is_masked(const struct attend_job &j, const struct tile_work &w, uint32_t p)
    {
        return p + KEYS > w.pos + 1 || (j.window > 0 && p + j.window < w.end);
    }

    /* The rounds of a tile: a chunk by itself, then joined with those before it. */
    static __device__ __forceinline__ void walk_apart(const struct attend_job &j, const struct tile_work &w,
        const struct ring &r, const unsigned char *q, uint32_t i, const uint32_t limit[1][2], float sum[1][2],
        float (&out)[1][D / 8][4])
    {
        float most[2] = {-INFINITY, -INFINITY};
        for (uint32_t p = w.begin / KEYS * KEYS; p < w.end; p += KEYS, i++) {
            float s[1][KEYS / 8][4], chunk[D / 8][4], old[2], fresh[2];
            uint32_t a[KEYS / 16][4];
            take_turn(r, i, q, s[0]);
            pass_turn(r);
            wgmma_wait();
            wgmma_hold(s[0]);
            leave(r, 2 * i);
            weigh(j, p, is_masked(j, w, p), limit, s, most, sum[0], old, fresh);
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
    }

    /* The softmax ends here, before the wait that follows: left alone, the compiler waits first. What is asked for
     * never comes true, but only the sums can tell. */
    static __device__ __forceinline__ void end_softmax(const struct ring &r, const float sum[2])
    {
        if (sum[0] + sum[1] < 0.0f)
            barrier_arrive(r.asked);
    }

    /* The same with one maximum for all: values follow a round behind the keys. */
    static __device__ __forceinline__ void walk(const struct attend_job &j, const struct tile_work &w,
        const struct ring &r, const unsigned char *q, uint32_t i, const uint32_t limit[1][2], float sum[1][2],
        float (&out)[1][D / 8][4])
    {
        float s[1][KEYS / 8][4], most[1][2] = {{-INFINITY, -INFINITY}}, shrink[1][2];
        uint32_t a[KEYS / 16][4], p = w.begin / KEYS * KEYS;
        take_turn(r, i, q, s[0]);
        pass_turn(r);
        wgmma_wait();
        wgmma_hold(s[0]);
        leave(r, 2 * i);
        Wide::soften(j, p, is_masked(j, w, p), limit, s, most, sum, shrink);
        pack(s[0], a);
        for (p += KEYS, i++; p < w.end; p += KEYS, i++) {
            take_turn(r, i, q, s[0]);
            mix(values_of(r, i - 1), a, out[0], true);
            pass_turn(r);
            wgmma_wait<1>();
            wgmma_hold(s[0]);
            leave(r, 2 * i);
            Wide::soften(j, p, is_masked(j, w, p), limit, s, most, sum, shrink);
            end_softmax(r, sum[0]);
            wgmma_wait();
            wgmma_hold(out[0]);
            leave(r, 2 * i - 1);
            Wide::shrink_out(shrink, out);
            pack(s[0], a);
        }
        mix(values_of(r, i - 1), a, out[0], true);
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
        float out[1][D / 8][4] = {}, sum[1][2] = {};
        if (FIXED)
            walk_apart(j, w, r, q, done, limit, sum, out);
        else
            walk(j, w, r, q, done, limit, sum, out);
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
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct attend_job j, const __grid_constant__ CUtensorMap map)
{
    using S = Wide<C, D, FIXED>;
    using Shape = WideShape<C, D>;
    SHARED_ROOM(memory);
    __shared__ uint64_t barriers[BARRIERS];
    unsigned char *q = (unsigned char *)memory + (ATOM - (uintptr_t)memory % ATOM) % ATOM, *places = q + Shape::Q;
    const struct ring r = ring_of(places, places + PLACES * Shape::PLACE, barriers);
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
        warpgroup_registers_down<REGISTERS_FEW>();
        for (uint32_t i = blockIdx.x, done = 0, torn = 0; i < n; i = next_tile<FIXED>(i, n)) {
            const struct tile_work w = tile_at(j, i);
            Bring<C, D>::all(j, &map, w, r, done, rounds_of(w), torn);
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
    CUtensorMap map = {};
    if (!C::BYTES && !tma_map_runs(d, &map, j->blocks, j->row_bytes, WideShape<C, D>::COLUMNS))
        return;
    if (d->deterministic)
        cuda_launch(d, wide_kernel<C, D, true>, dim3(many ? tiles * j->n_kv_heads : d->n_sms), THREADS,
            WideShape<C, D>::BYTES, *j, map);
    else
        cuda_launch(d, wide_kernel<C, D, false>, dim3(tiles * j->n_kv_heads), THREADS, WideShape<C, D>::BYTES, *j, map);
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
