/* Attention of sequences with many rows: a flash kernel over tiles of rows.
 *
 * A block takes a tile of (row, query head) pairs that share a kv head: TILE of them, rows outermost. Its 4 warps own
 * 16 * M pairs each and share keys and values, which come KEYS positions at a time through a double buffer. Scores,
 * softmax and output stay in registers; positions are walked ascending from a multiple of KEYS. */
#include "cuda/attend_tiles.cuh"

#define WARPS   4
#define THREADS (WARPS * 32)

template <int D> struct PrefillTile {
    static constexpr int M = D <= 128 ? 2 : 1; /* tiles of 16 pairs a warp: as many as its registers hold */
    static constexpr int KEYS = D <= 128 ? 64 : 32;
    static constexpr int TILE = WARPS * 16 * M;
    static constexpr int ROW = D + 8; /* of queries, in elements: an odd number of 16 bytes */
};

template <class C, int D> struct PrefillShape : PrefillTile<D> {
    using Tile = PrefillTile<D>;
    using Rows = CacheRows<C, D, Tile::KEYS>;
    static constexpr size_t BYTES = (size_t)Tile::TILE * Tile::ROW * 2 + 4 * (size_t)Rows::ROOM;
};

template <class C, int D>
struct Prefill : Tiles<typename PrefillShape<C, D>::Rows, PrefillTile<D>::M, PrefillTile<D>::KEYS, D> {
    using T = typename C::Type;
    using Shape = PrefillShape<C, D>;
    using Rows = typename Shape::Rows;
    static constexpr int M = Shape::M, KEYS = Shape::KEYS, ROW = Shape::ROW, CHUNKS = (D + 31) / 32;

    /* Keys and values of positions p .. p+KEYS-1; a warp asks for runs of 16. */
    static __device__ __forceinline__ void fetch(
        const struct attend_job &j, const struct tile_work &w, unsigned char *to, uint32_t p)
    {
        const uint32_t warp = threadIdx.x / 32;
        for (uint32_t group = warp; group < KEYS / 16; group += WARPS) {
            const uint32_t from = p + group * 16;
            const uint32_t there = from < w.end && from + 16 > w.begin ? w.s.n_kv - from : 0;
            const unsigned char *at = there > 0 ? position_at(j, w.table, w.kv_head, from) : j.blocks;
            Rows::fetch(to, group, at + j.k_at, there);
            Rows::fetch(to + Rows::ROOM, group, at + j.v_at, there);
        }
        copy_commit();
    }

    static __device__ __forceinline__ void load_q(const struct attend_job &j, const struct tile_work &w, T *to)
    {
        for (uint32_t i = threadIdx.x; i < Shape::TILE * (D / 4); i += THREADS) {
            const uint32_t pair = i / (D / 4), column = i % (D / 4) * 4;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (pair < w.n_pairs) {
                const size_t row = w.first + pair / j.per_kv, head = w.kv_head * j.per_kv + pair % j.per_kv;
                x = *(const float4 *)(j.q + (row * j.n_heads + head) * D + column);
            }
            *(uint32_t *)(to + pair * ROW + Rows::query_low(column)) = pack2(T(), x.x, x.y);
            *(uint32_t *)(to + pair * ROW + Rows::query_high(column)) = pack2(T(), x.z, x.w);
        }
    }

    static __device__ __forceinline__ void scores(const T *q, const unsigned char *keys, float s[M][KEYS / 8][4])
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint32_t a[2][M][4];
#pragma unroll
            for (int d = 2 * c; d < 2 * c + 2 && d < D / 16; d++)
#pragma unroll
                for (int m = 0; m < M; m++)
                    load_matrices<false>(
                        a[d % 2][m], q + ((warp * M + m) * 16 + lane % 16) * ROW + 16 * d + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t b[2][4];
                Rows::keys(keys, n, c, b);
#pragma unroll
                for (int d = 0; d < 2 && 2 * c + d < D / 16; d++)
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        const uint32_t *x = a[d][m];
                        mma(T(), s[m][2 * n], x[0], x[1], x[2], x[3], b[d][0], b[d][1]);
                        mma(T(), s[m][2 * n + 1], x[0], x[1], x[2], x[3], b[d][2], b[d][3]);
                    }
            }
        }
    }

    /* there: positions from the first of these that exist. */
    static __device__ __forceinline__ void mix(
        const unsigned char *values, uint32_t there, const float s[M][KEYS / 8][4], float out[M][D / 8][4])
    {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            uint32_t a[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
                a[m][0] = pack2(T(), s[m][2 * k][0], s[m][2 * k][1]);
                a[m][1] = pack2(T(), s[m][2 * k][2], s[m][2 * k][3]);
                a[m][2] = pack2(T(), s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
                a[m][3] = pack2(T(), s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                uint32_t b[2][4];
                Rows::values(values, k, c, there > 16 * k ? there - 16 * k : 0, b);
#pragma unroll
                for (int n = 2 * c; n < 2 * c + 2 && n < D / 16; n++)
#pragma unroll
                    for (int m = 0; m < M; m++) {
                        mma(T(), out[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[n % 2][0], b[n % 2][1]);
                        mma(T(), out[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[n % 2][2], b[n % 2][3]);
                    }
            }
        }
    }
};

template <class C, int D>
__global__ void __launch_bounds__(THREADS) prefill_kernel(const __grid_constant__ struct attend_job j)
{
    using S = Prefill<C, D>;
    using Shape = PrefillShape<C, D>;
    SHARED_ROOM(memory);
    typename C::Type *q = (typename C::Type *)memory;
    unsigned char *kv = (unsigned char *)(q + Shape::TILE * Shape::ROW);
    launch_wait();
    if (blockIdx.y >= j.plan->n_tiles)
        return;
    const struct tile_work w = work_of(j, j.tiles[blockIdx.y], blockIdx.x, attend_rows(Shape::TILE, j.per_kv));
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    uint32_t limit[S::M][2];
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            limit[m][half] = min(w.pos + ((warp * S::M + m) * 16 + g + 8 * half) / j.per_kv + 1, w.end);
    float out[S::M][D / 8][4] = {}, top[S::M][2], sum[S::M][2];
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            top[m][half] = -INFINITY;
            sum[m][half] = 0.0f;
        }
    uint32_t p = w.begin / Shape::KEYS * Shape::KEYS;
    constexpr int STAGE = 2 * Shape::Rows::ROOM;
    S::fetch(j, w, kv, p);
    S::load_q(j, w, q);
    for (int stage = 0; p < w.end; p += Shape::KEYS, stage ^= 1) {
        if (p + Shape::KEYS < w.end)
            S::fetch(j, w, kv + (stage ^ 1) * STAGE, p + Shape::KEYS);
        else
            copy_commit();
        copy_wait<1>();
        __syncthreads();
        float s[S::M][Shape::KEYS / 8][4] = {};
        const unsigned char *keys = kv + stage * STAGE;
        S::scores(q, keys, s);
        const bool masked = p + Shape::KEYS > w.pos + 1 || (j.window > 0 && p + j.window < w.end);
        float shrink[Shape::M][2];
        S::soften(j, p, masked, limit, s, top, sum, shrink);
        S::shrink_out(shrink, out);
        S::mix(keys + Shape::Rows::ROOM, w.s.n_kv - p, s, out);
        __syncthreads();
    }
    S::write(j, w, sum, out);
}

template <class C, int D> static void run(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const uint32_t rows = attend_rows(PrefillTile<D>::TILE, j->per_kv);
    const uint32_t tiles = (b->n_rows + rows - 1) / rows + b->n_seqs; /* at most; the plan knows how many */
    cuda_launch(d, prefill_kernel<C, D>, dim3(j->n_kv_heads, tiles), THREADS, PrefillShape<C, D>::BYTES, *j);
}

uint32_t attend_tile_rows(uint32_t head_dim, uint32_t per_kv)
{
    return attend_rows(head_dim <= 128 ? PrefillTile<128>::TILE : PrefillTile<256>::TILE, per_kv);
}

void attend_prefill(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    attend_visit(j, [&](auto c, auto n) { run<decltype(c), decltype(n)::D>(d, b, j); });
}
