/* Attention of sequences with many rows on the warpgroup's matrix unit: heads of 64 and 128, caches of 16 bits.
 *
 * A block takes a tile of TILE (row, query head) pairs that share a kv head, rows outermost. Each of its warpgroups
 * owns 64 of them; all share keys and values, which come KEYS positions at a time through a double buffer. Queries,
 * keys and values lie in columns of 128 bytes as the matrix unit reads them (wgmma.cuh): elements 64c .. 64c+63 of all
 * rows, then the next. While one warpgroup works out its softmax the others multiply. Positions are walked ascending.
 */
#include "cuda/attend_tiles.cuh"
#include "cuda/wgmma.cuh"

#define WARPGROUPS 3
#define THREADS    (WARPGROUPS * 128)
#define KEYS       64
#define TILE       (WARPGROUPS * 64)
#define ATOM       1024 /* bytes: eight rows of a column */

template <int D> struct WideShape {
    static constexpr int COLUMNS = D / 64;
    static constexpr int Q = COLUMNS * TILE * 128, KV = COLUMNS * KEYS * 128, STAGE = 2 * KV; /* bytes */
    static constexpr size_t BYTES = (size_t)ATOM + Q + 2 * STAGE;
};

/* Where 16-byte unit u of a row lies, in columns of n rows. */
__device__ static uint32_t unit_at(uint32_t n, uint32_t row, uint32_t u)
{
    return (u / 8 * n + row) * 128 + (u % 8 ^ row % 8) * 16;
}

template <typename T, int D> struct Wide : Tiles<CacheRows<CachePlain<T>, D, KEYS>, 1, KEYS, D> {
    using Shape = WideShape<D>;

    /* Keys and values of positions p .. p+KEYS-1: each of eight warps asks for a run of 16. */
    static __device__ __forceinline__ void fetch(
        const struct attend_job &j, const struct tile_work &w, unsigned char *to, uint32_t p)
    {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 2;
        if (group < KEYS / 16) {
            const uint32_t from = p + group * 16;
            const uint32_t there = from < w.end && from + 16 > w.begin ? w.s.n_kv - from : 0;
            const unsigned char *at = there > 0 ? position_at(j, w.table, w.kv_head, from) : j.blocks;
            at += warp % 2 == 0 ? j.k_at : j.v_at;
            to += warp % 2 * Shape::KV;
#pragma unroll
            for (int i = 0; i < 16 * D / 8 / 32; i++) {
                const uint32_t c = lane + 32 * i, row = c / (D / 8);
                copy_async(to + unit_at(KEYS, group * 16 + row, c % (D / 8)), at + (size_t)c * 16, row < there);
            }
        }
        copy_commit();
    }

    static __device__ __forceinline__ void load_q(
        const struct attend_job &j, const struct tile_work &w, unsigned char *to)
    {
        for (uint32_t i = threadIdx.x; i < TILE * (D / 8); i += THREADS) {
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

    static __device__ __forceinline__ void scores(
        const unsigned char *q, const unsigned char *keys, float (&s)[KEYS / 8][4])
    {
        q += threadIdx.x / 128 * 64 * 128;
        wgmma_begin();
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            wgmma_keys(T(), s, wgmma_at(q + d / 4 * TILE * 128 + d % 4 * 32, ATOM, 16),
                wgmma_at(keys + d / 4 * KEYS * 128 + d % 4 * 32, ATOM, 16), d > 0);
        wgmma_end();
    }

    static __device__ __forceinline__ void mix(
        const unsigned char *values, const float (&s)[KEYS / 8][4], float (&out)[D / 8][4])
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
            wgmma_values(T(), out, a[k], wgmma_at(values + k * 2 * ATOM, ATOM, KEYS * 128));
        wgmma_end();
    }
};

template <typename T, int D>
__global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ struct attend_job j)
{
    using S = Wide<T, D>;
    using Shape = WideShape<D>;
    SHARED_ROOM(memory);
    unsigned char *q = (unsigned char *)(((uintptr_t)memory + ATOM - 1) / ATOM * ATOM), *kv = q + Shape::Q;
    launch_wait();
    if (blockIdx.y >= j.plan->n_tiles)
        return;
    const struct tile_work w = work_of(j, j.plan->tiles[blockIdx.y], blockIdx.x, attend_rows(TILE, j.per_kv));
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
    uint32_t limit[1][2];
    for (int half = 0; half < 2; half++)
        limit[0][half] = min(w.pos + (warp * 16 + g + 8 * half) / j.per_kv + 1, w.end);
    float out[1][D / 8][4] = {}, top[1][2] = {{-INFINITY, -INFINITY}}, sum[1][2] = {};
    uint32_t p = w.begin / KEYS * KEYS;
    S::fetch(j, w, kv, p);
    S::load_q(j, w, q);
    for (int stage = 0; p < w.end; p += KEYS, stage ^= 1) {
        if (p + KEYS < w.end)
            S::fetch(j, w, kv + (stage ^ 1) * Shape::STAGE, p + KEYS);
        else
            copy_commit();
        copy_wait<1>();
        shared_ready();
        __syncthreads();
        float s[1][KEYS / 8][4] = {};
        const unsigned char *keys = kv + stage * Shape::STAGE;
        S::scores(q, keys, s[0]);
        const bool masked = p + KEYS > w.pos + 1 || (j.window > 0 && p + j.window < w.end);
        S::soften(j, p, masked, limit, s, top, sum, out);
        S::mix(keys + Shape::KV, s[0], out[0]);
        __syncthreads();
    }
    S::write(j, w, sum, out);
}

template <typename T, int D> static void run(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    const uint32_t rows = attend_rows(TILE, j->per_kv);
    const uint32_t tiles = (b->n_rows + rows - 1) / rows + b->n_seqs; /* at most; the plan knows how many */
    cuda_launch(d, wide_kernel<T, D>, dim3(j->n_kv_heads, tiles), THREADS, WideShape<D>::BYTES, *j);
}

static bool is_allowed = true;

extern "C" void cuda_allow_wide(bool allow)
{
    is_allowed = allow;
}

uint32_t attend_wide_rows(const struct dev *d, const struct attend_job *j)
{
    const bool has = is_allowed && d->capability >= 90 && (j->head_dim == 64 || j->head_dim == 128) &&
                     (j->dtype == DTYPE_F16 || j->dtype == DTYPE_BF16);
    return has ? attend_rows(TILE, j->per_kv) : 0;
}

void attend_wide(struct dev *d, const struct batch *b, const struct attend_job *j)
{
    if (j->dtype == DTYPE_F16)
        j->head_dim == 64 ? run<__half, 64>(d, b, j) : run<__half, 128>(d, b, j);
    else
        j->head_dim == 64 ? run<__nv_bfloat16, 64>(d, b, j) : run<__nv_bfloat16, 128>(d, b, j);
}
