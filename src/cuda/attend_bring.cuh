/* What the two sides of attend_wide.cu share, and the side that brings: which tile is next, its keys and its values.
 *
 * Keys and values lie in places of a ring, KEYS positions each: keys, values, keys and so on; a barrier of each place
 * says that it is full, another that it is free. Each of four warps has its own two of a place's eight runs of 16
 * positions. Which tile comes next is drawn from a counter by one of them, which writes it down for the others; it may
 * be two tiles ahead of those who multiply, and there is room for more.
 *
 * Queries, keys and values lie in columns of 128 bytes as the matrix unit reads them (wgmma.cuh): eight rows of
 * elements 64c .. 64c+63 an atom; of keys and values the atoms of the same eight rows lie behind each other, as the
 * copy engine leaves a run of 16 positions (tma.cuh).
 *
 * F8 comes into a room of its own first, and each warp makes its runs f16, which is exact, on their way to their place.
 */
#ifndef CUDA_ATTEND_BRING_CUH
#define CUDA_ATTEND_BRING_CUH

#include "cuda/attend_tiles.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma.cuh"

#define GROUP  128 /* threads of a warpgroup */
#define TILE   128
#define KEYS   CHUNK
#define PLACES 4
#define RAWS   4    /* of F8: three are on their way while one is made f16 */
#define NOTES  8    /* tiles that are written down */
#define ATOM   1024 /* bytes: eight rows of a column */

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

/* A tile as it is written down. */
struct note {
    struct tile_work w;
    bool there; /* else that was all */
};

/* Barriers: of each place; of each warpgroup that multiplies, its turn and its queries; of each tile that is written
 * down; of each warp that brings, a run that is not whole, and its rooms of raw bytes. */
enum {
    FULL,
    FREE = FULL + PLACES,
    TURN = FREE + PLACES,
    ASKED = TURN + 2,
    TOLD = ASKED + 2,
    TORN = TOLD + NOTES,
    RAW = TORN + 4,
    BARRIERS = RAW + 4 * RAWS
};

struct ring {
    unsigned char *q, *places, *raws;
    struct note *notes;
    uint64_t *b;
};

/* Who arrives. */
__device__ static uint32_t arrivals_at(uint32_t i, bool raw)
{
    return i < FREE    ? (raw ? GROUP : 4) /* threads or warps that bring */
           : i < TURN  ? 8                 /* warps that multiply */
           : i < ASKED ? 4                 /* those of the other warpgroup */
           : i < TOLD  ? GROUP
                       : 1;
}

/* ---- queries -------------------------------------------------------------------------------------------------------
 */

/* Pairs from..to of a tile by THREADS threads, of which this is the i-th; EACH units are asked for before the first is
 * needed. */
template <class T, int D, int THREADS, int EACH>
__device__ __forceinline__ void load_q(
    const struct attend_job &j, const struct tile_work &w, unsigned char *room, uint32_t from, uint32_t to, uint32_t i)
{
    constexpr uint32_t UNITS = D / 8;
    for (uint32_t unit = from * UNITS + i; unit < to * UNITS; unit += EACH * THREADS) {
        float4 x[EACH][2] = {};
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const uint32_t pair = (unit + k * THREADS) / UNITS, u = (unit + k * THREADS) % UNITS;
            if (pair < min(w.n_pairs, to)) {
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                const float4 *at = (const float4 *)(j.q + (row * j.n_heads + head) * D + 8 * u);
                x[k][0] = at[0];
                x[k][1] = at[1];
            }
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const uint32_t pair = (unit + k * THREADS) / UNITS, u = (unit + k * THREADS) % UNITS;
            const float4 a = x[k][0], b = x[k][1];
            if (pair < to)
                *(uint4 *)(room + unit_at(TILE, pair, u)) =
                    make_uint4(pack2(T(), a.x, a.y), pack2(T(), a.z, a.w), pack2(T(), b.x, b.y), pack2(T(), b.z, b.w));
        }
    }
}

/* Whether they lie as 16 bits already. */
__device__ __forceinline__ bool has_short_q(const struct attend_job &j, const struct tile_work &w)
{
    return j.short_q && !attend_is_few(w.s.n_rows, j.per_kv);
}

/* The same of those, asked for: they are there when copies have been waited for. */
template <int D, int THREADS>
__device__ __forceinline__ void ask_q(
    const struct attend_job &j, const struct tile_work &w, unsigned char *room, uint32_t from, uint32_t to, uint32_t i)
{
    constexpr uint32_t UNITS = D / 8, STEP = THREADS / UNITS;
    const uint32_t u = i % UNITS, first = w.kv_head * j.per_kv;
    uint32_t pair = from + i / UNITS, row = pair / j.per_kv, head = pair % j.per_kv;
    for (; pair < to; pair += STEP) {
        const float *at = j.q + (size_t)(w.first + row) * j.n_heads * D;
        copy_async(room + unit_at(TILE, pair, u), (const uint16_t *)at + (first + head) * D + 8 * u, pair < w.n_pairs);
        row += STEP / j.per_kv;
        head += STEP % j.per_kv;
        if (head >= j.per_kv) {
            head -= j.per_kv;
            row++;
        }
    }
}

/* ---- keys and values -----------------------------------------------------------------------------------------------
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

__device__ static bool is_in(const struct span &s, uint32_t p)
{
    return p >= s.begin && p < s.end;
}

/* Where a lane's run of each round lies. The block of the next is asked for a round before it is needed. */
struct runs {
    uint32_t p, index, at; /* position; entry of the table, and positions before it in that block */
    uint32_t step, rest;   /* from one round to the next */
    uint32_t block;
};

__device__ __forceinline__ void look_up(const struct tile_work &w, const struct span &s, struct runs &u)
{
    u.block = is_in(s, u.p) ? w.table[u.index] : 0;
}

__device__ __forceinline__ struct runs runs_from(
    const struct attend_job &j, const struct tile_work &w, const struct span &s, uint32_t p)
{
    struct runs u = {p, p / j.block_tokens, p % j.block_tokens, KEYS / j.block_tokens, KEYS % j.block_tokens, 0};
    look_up(w, s, u);
    return u;
}

/* Bytes from the cache's first to the keys of this round's run; then it is the next round's. */
__device__ __forceinline__ uint64_t next_run(
    const struct attend_job &j, const struct tile_work &w, const struct span &s, struct runs &u)
{
    const uint64_t found =
        u.block * j.block_bytes + ((uint64_t)w.kv_head * j.block_tokens + u.at) * j.row_bytes + j.k_at;
    u.p += KEYS;
    u.index += u.step;
    u.at += u.rest;
    if (u.at >= j.block_tokens) {
        u.at -= j.block_tokens;
        u.index++;
    }
    look_up(w, s, u);
    return found;
}

/* Of the t-th place of all. */
__device__ __forceinline__ void wait_free(const struct ring &r, uint32_t t)
{
    if (t >= PLACES)
        barrier_wait(&r.b[FREE + t % PLACES], (t / PLACES - 1) & 1);
}

/* A tile's keys and values, behind `done` rounds of other tiles: by each warp its share. */
template <class C, int D> struct Bring {
    using Shape = WideShape<C, D>;
    static constexpr int RUN = Shape::COLUMNS * 2 * ATOM;

    /* The values behind the last position may be anything, and nothing times anything is not nothing. */
    static __device__ void mend(uint64_t *come, const struct span &s, unsigned char *to, uint32_t p, uint32_t n)
    {
        constexpr uint32_t UNITS = D / 8;
        barrier_wait(come, n & 1);
        for (uint32_t i = threadIdx.x % 32; i < (s.end - s.there) * UNITS; i += 32)
            *(uint4 *)(to + place_at<Shape::COLUMNS>(s.there - p + i / UNITS, i % UNITS)) = make_uint4(0, 0, 0, 0);
        shared_ready();
        __syncwarp();
    }

    /* torn: runs that had to be mended. */
    static __device__ __forceinline__ void tile(const struct attend_job &j, const CUtensorMap *map,
        const struct tile_work &w, const struct ring &r, uint32_t done, uint32_t &torn)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, run = 2 * warp + lane % 2;
        const struct span s = span_of(w);
        uint32_t p = w.begin / KEYS * KEYS;
        struct runs u = runs_from(j, w, s, p + run * TMA_RUN);
        for (uint32_t t = 2 * done; t < 2 * (done + rounds_of(w)); p += KEYS) {
            const uint32_t mine = p + run * TMA_RUN, last = p + (2 * warp + 2) * TMA_RUN;
            const uint64_t at = next_run(j, w, s, u);
            for (uint32_t kind = 0; kind < 2; kind++, t++) {
                unsigned char *const to = r.places + t % PLACES * Shape::PLACE;
                const bool is_torn = kind == 1 && last >= s.end && last < s.end + 2 * TMA_RUN && s.end > s.there;
                uint64_t *const full = &r.b[FULL + t % PLACES], *const first = is_torn ? &r.b[TORN + warp] : full;
                wait_free(r, t);
                if (lane == 0)
                    barrier_arrive_expect(first, 2 * RUN);
                __syncwarp();
                if (lane < 2)
                    tma_load_run(to + run * RUN, map,
                        is_in(s, mine) ? (int32_t)((at + kind * (j.v_at - j.k_at)) / TMA_STEP) : TMA_NONE, first);
                if (is_torn) {
                    mend(first, s, to, p, torn++);
                    if (lane == 0)
                        barrier_arrive(full);
                }
            }
        }
    }
};

template <int D> struct Bring<CacheF8, D> {
    using Shape = WideShape<CacheF8, D>;
    static constexpr int UNITS = D / 16, RUN = TMA_RUN * D; /* of 16 bytes, of a row; bytes */

    /* Ask for this warp's keys or values of positions p on, as the t-th of all. */
    static __device__ __forceinline__ void ask(
        const struct ring &r, const struct span &s, uint32_t t, uint32_t p, const unsigned char *from)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, mine = p + 2 * warp * TMA_RUN;
        uint64_t *const full = &r.b[RAW + t % RAWS * 4 + warp];
        if (lane == 0)
            barrier_arrive_expect(full, (is_in(s, mine) + is_in(s, mine + TMA_RUN)) * RUN);
        __syncwarp();
        if (lane < 2 && is_in(s, mine + lane * TMA_RUN))
            tma_load_bytes(r.raws + t % RAWS * Shape::RAW + (2 * warp + lane) * RUN, from, RUN, full);
    }

    /* Lanes lie so that neither reads nor writes meet in a bank: eight have the halves of two rows. */
    static __device__ __forceinline__ void widen(
        const unsigned char *raw, unsigned char *to, const struct span &s, uint32_t p)
    {
        constexpr int ROWS = 32 / UNITS, EACH = 2 * TMA_RUN / ROWS; /* of a warp at once; times */
        const uint32_t lane = threadIdx.x % 32, u = lane % UNITS;
        const uint32_t row = threadIdx.x / 32 % 4 * 2 * TMA_RUN + (lane / UNITS ^ u / (UNITS / 2));
        const uint32_t first[2] = {place_at<Shape::COLUMNS>(row, 2 * u),
            place_at<Shape::COLUMNS>(row + ROWS, 2 * u)}; /* then the same again */
        const bool whole = p >= s.begin && p + KEYS <= s.end && p + KEYS <= s.there;
        raw += (row * UNITS + u) * 16;
#pragma unroll
        for (int n = 0; n < EACH; n += 4) {
            uint4 bytes[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t at = p + row + (n + k) * ROWS;
                bytes[k] = *(const uint4 *)(raw + (n + k) * 32 * 16);
                if (!whole && (at < s.begin || at >= s.end || at >= s.there))
                    bytes[k] = make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t behind = (n + k) / 2 * (2 * ROWS / 8) * Shape::COLUMNS * ATOM;
                uint32_t pairs[8];
                f8_pairs(bytes[k].x, pairs);
                f8_pairs(bytes[k].y, pairs + 2);
                f8_pairs(bytes[k].z, pairs + 4);
                f8_pairs(bytes[k].w, pairs + 6);
                *(uint4 *)(to + first[k % 2] + behind) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                *(uint4 *)(to + (first[k % 2] ^ 16) + behind) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
            }
        }
    }

    static __device__ __forceinline__ void tile(const struct attend_job &j, const CUtensorMap *,
        const struct tile_work &w, const struct ring &r, uint32_t done, uint32_t &)
    {
        const uint32_t first = w.begin / KEYS * KEYS, end = 2 * (done + rounds_of(w));
        const uint32_t mine = first + (threadIdx.x / 32 % 4 * 2 + threadIdx.x % 2) * TMA_RUN;
        const struct span s = span_of(w);
        struct runs u = runs_from(j, w, s, mine);
        uint32_t asked = 2 * done;
        uint64_t at = 0;
        for (uint32_t t = asked; t < end; t++) {
            for (; asked < min(t + RAWS, end); asked++) {
                const bool values = asked % 2 != 0;
                at = values ? at + j.v_at - j.k_at : next_run(j, w, s, u);
                ask(r, s, asked, first + (asked / 2 - done) * KEYS, j.blocks + at);
            }
            barrier_wait(&r.b[RAW + t % RAWS * 4 + threadIdx.x / 32 % 4], t / RAWS & 1);
            wait_free(r, t);
            widen(
                r.raws + t % RAWS * Shape::RAW, r.places + t % PLACES * Shape::PLACE, s, first + (t / 2 - done) * KEYS);
            shared_ready();
            barrier_arrive(&r.b[FULL + t % PLACES]);
            __syncwarp(); /* nobody reads what is asked for next */
        }
    }
};

/* ---- tiles ---------------------------------------------------------------------------------------------------------
 */

__device__ static struct tile_work tile_at(const struct attend_job &j, uint32_t i)
{
    return work_of(j, j.tiles[i / j.n_kv_heads], i % j.n_kv_heads, attend_rows(TILE, j.per_kv));
}

/* The n-th tile of this block, once it is written down; it stays until this warpgroup is through with it. */
__device__ __forceinline__ const struct note &note_of(const struct ring &r, uint32_t n)
{
    barrier_wait(&r.b[TOLD + n % NOTES], n / NOTES & 1);
    return r.notes[n % NOTES];
}

/* All tiles of a block. Its first is its own; of the others, whoever is free draws the next: the first warp does so
 * while it brings the one before, and writes tiles down before it brings them. Each block draws once in vain, so of n
 * tiles there are n draws, the last of which puts the counter back. */
template <class C, int D>
__device__ void bring_all(const struct attend_job &j, const CUtensorMap *map, const struct ring &r, uint32_t n)
{
    const bool leads = threadIdx.x % GROUP == 0, draws = leads && n > gridDim.x;
    uint32_t torn = 0, done = 0, next = blockIdx.x;
    for (uint32_t k = 0;; k++) {
        if (leads) {
            struct note &mine = r.notes[k % NOTES];
            mine.there = next < n;
            if (next < n)
                mine.w = tile_at(j, next);
            barrier_arrive(&r.b[TOLD + k % NOTES]);
        }
        const struct note &note = note_of(r, k);
        if (!note.there)
            return;
        const struct tile_work w = note.w;
        uint32_t drawn = n;
        if (draws)
            drawn = atomicAdd(j.arrived, 1u);
        Bring<C, D>::tile(j, map, w, r, done, torn);
        done += rounds_of(w);
        if (draws && drawn == n - 1)
            *j.arrived = 0;
        next = draws ? gridDim.x + drawn : n;
    }
}

#endif
