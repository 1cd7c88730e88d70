/* What the attention kernels share: the job, the plan of a step, and how a group of 16 positions is found.
 *
 * Positions of a sequence lie in blocks of a multiple of 16 tokens, a head's rows behind each other: so 16 positions
 * from a multiple of 16 are one run of bytes, found by one look into the block table. */
#ifndef CUDA_ATTEND_CUH
#define CUDA_ATTEND_CUH

#include "cuda/kernels.cuh"

#define PACK         16  /* (row, query head) pairs that share a kv head, in one tile of the decode kernel */
#define CHUNK        128 /* positions whose sums are one, where cuts may not depend on the batch: attend_chunks.cuh */
#define DECODE_PAIRS 64  /* of a sequence that is still decoded, several tiles of it one beside the other */

/* How the attention of this step is cut; made on the device once per step, since only it knows the lengths when a
 * recorded step is replayed. Sequences with few rows are decoded, as many rows at a time as a tile of the kernel holds,
 * in parts of `split` positions, which may run side by side; the others are cut into tiles of rows. */
struct plan_item {
    uint32_t counter; /* of finished parts: the first row, which no other tile has */
    uint32_t part, n_parts;
    uint32_t slot;      /* of (row 0, part 0) in dev.parts; row r of part p is at slot + p * n_rows + r */
    struct batch_seq s; /* the rows of one tile as if they were a sequence, so that a block finds all in one place */
};

struct plan_tile {
    uint32_t seq, first; /* rows of the sequence, counted from its first of this step */
};

/* Whom the parts are for: blocks, each of which takes one part of one kv head at a time, of `unit` positions at least;
 * of just as many where the cuts may not depend on the batch. A tile has so many rows. group: for attend_team.cu, whose
 * warps take so many positions at a time; else 0. */
struct cut {
    uint32_t blocks, n_kv_heads, unit, rows, group;
};

struct plan {
    uint32_t n_items, n_tiles, split;
    uint32_t unused; /* so that the items lie at a multiple of 16 bytes */
};

/* Items and tiles lie behind it. Where a part each is all that fits, there is an item for each tile of rows. */
__host__ __device__ inline uint32_t plan_items_max(uint32_t rows_max)
{
    return rows_max > PARTS_MAX ? rows_max : PARTS_MAX;
}

__host__ __device__ inline struct plan_item *plan_items(struct plan *p)
{
    return (struct plan_item *)(p + 1);
}

__host__ __device__ inline struct plan_tile *plan_tiles(struct plan *p, uint32_t rows_max)
{
    return (struct plan_tile *)(plan_items(p) + plan_items_max(rows_max));
}

inline size_t plan_bytes(uint32_t rows_max)
{
    return sizeof(struct plan) + plan_items_max(rows_max) * sizeof(struct plan_item) +
           2 * (size_t)rows_max * sizeof(struct plan_tile);
}

struct attend_job {
    const float *q; /* [row][n_heads][D] */
    uint32_t n_heads, n_kv_heads, per_kv, head_dim, window;
    float scale, cap;
    const uint32_t *pos, *seq, *table;
    const struct batch_seq *seqs;
    const unsigned char *blocks;
    uint64_t block_bytes, k_at, v_at;
    uint32_t block_tokens, row_bytes;
    enum dtype dtype;
    bool short_q; /* of sequences that are tiles, a row of queries begins with them as 16 bits: attend_wide.cu's type */
    const struct plan *plan;
    const struct plan_item *items;
    const struct plan_tile *tiles;
    float *parts, *part_sums; /* [PARTS_MAX][heads][D]; [PARTS_MAX][heads][2]: maximum, sum */
    uint32_t *arrived;        /* [row][kv heads], then the two of attend_team.cu; attend_wide.cu draws by the first */
    struct act_rows out;      /* [T][heads * D] */
    struct ahead ahead;
};

/* The first byte of position p's key row (and of its 15 neighbours' behind it), p a multiple of 16. */
__device__ __forceinline__ const unsigned char *position_at(
    const struct attend_job &j, const uint32_t *table, uint32_t kv_head, uint32_t p)
{
    const uint32_t block = p / j.block_tokens, at = p - block * j.block_tokens;
    return j.blocks + (uint64_t)table[block] * j.block_bytes + ((uint64_t)kv_head * j.block_tokens + at) * j.row_bytes;
}

/* The bytes of 16 positions of a Q8_0 cache lie as attend_cache.cuh says; from the first of them to element i of the
 * p-th position, and to the scale that it has. */
__device__ __forceinline__ uint32_t q8_value_at(uint32_t head_dim, uint32_t p, uint32_t i)
{
    return p * head_dim + i;
}

__device__ __forceinline__ uint32_t q8_scale_at(uint32_t head_dim, uint32_t p, uint32_t i)
{
    return 16 * head_dim + (p * ((head_dim + 31) / 32) + i / 32) * 2;
}

/* cap * tanh(s / cap), in units of log2 like every score: two special functions, no branches. */
__device__ __forceinline__ float capped(float s, float twice_over_cap, float cap_log2)
{
    return cap_log2 - __fdividef(2.0f * cap_log2, 1.0f + exp2_fast(s * twice_over_cap));
}

/* Scores of a lane, in units of log2, soft-capped where asked. */
template <int N> __device__ __forceinline__ void scale_scores(const struct attend_job &j, float *s)
{
    if (j.cap > 0.0f) {
        const float inside = 2.0f * LOG2E * j.scale / j.cap, outside = j.cap * LOG2E;
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = capped(s[i], inside, outside);
        return;
    }
    const float factor = j.scale * LOG2E;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = __fmul_rn(s[i], factor); /* never fused: the kernels that share this must round alike */
}

/* A sequence that is decoded; the others are tiles. */
__host__ __device__ inline bool attend_is_few(uint32_t n_rows, uint32_t per_kv)
{
    return n_rows == 1 || n_rows * per_kv <= DECODE_PAIRS;
}

/* Rows of a sequence in a tile of so many (row, head) pairs. */
__host__ __device__ inline uint32_t attend_rows(uint32_t pairs, uint32_t per_kv)
{
    return pairs / per_kv;
}

/* Parts of a context joined one after the other, for four neighbours of one (row, head): a part that a row does not see
 * changes no bit. */
struct joined {
    float most, sum;
    float4 y;
};

__device__ __forceinline__ struct joined joined_nothing()
{
    const struct joined j = {-INFINITY, 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
    return j;
}

__device__ __forceinline__ void joined_add(struct joined &j, float most, float sum, float4 x)
{
    if (most == -INFINITY)
        return;
    const float top = fmaxf(j.most, most), a = exp2_fast(j.most - top), b = exp2_fast(most - top);
    j.most = top;
    j.sum = __fmaf_rn(j.sum, a, sum * b);
    j.y = make_float4(__fmaf_rn(j.y.x, a, x.x * b), __fmaf_rn(j.y.y, a, x.y * b), __fmaf_rn(j.y.z, a, x.z * b),
        __fmaf_rn(j.y.w, a, x.w * b));
}

__device__ __forceinline__ float4 joined_result(const struct joined &j)
{
    const float inv = 1.0f / j.sum;
    return make_float4(j.y.x * inv, j.y.y * inv, j.y.z * inv, j.y.w * inv);
}

/* Join the parts of a sequence for one kv head, ascending. n_all: rows * query heads of it. AHEAD: parts that are
 * asked for at once. */
template <int THREADS, int D, int AHEAD = 4>
__device__ inline void attend_join(
    const struct attend_job &j, const struct plan_item &item, uint32_t kv_head, uint32_t n_all, uint32_t first_part)
{
    for (uint32_t i = threadIdx.x % THREADS; i < n_all * (D / 4); i += THREADS) {
        const uint32_t r = i / (D / 4), at = i % (D / 4) * 4, head = kv_head * j.per_kv + r % j.per_kv;
        const size_t first = (size_t)(item.slot + r / j.per_kv) * j.n_heads + head;
        const size_t step = (size_t)item.s.n_rows * j.n_heads;
        struct joined y = joined_nothing();
#pragma unroll AHEAD
        for (uint32_t p = first_part; p < item.n_parts; p++) {
            const size_t slot = first + p * step;
            const float2 stat = __ldcg((const float2 *)(j.part_sums + 2 * slot));
            joined_add(y, stat.x, stat.y, __ldcg((const float4 *)(j.parts + slot * D + at)));
        }
        act_put4(j.out, ((size_t)(item.s.first_row + r / j.per_kv) * j.n_heads + head) * D + at, joined_result(y));
    }
}

/* True in each of the block's first THREADS threads when it arrives last; the counter is zero again then. */
template <int THREADS> __device__ inline bool attend_is_last(uint32_t *counter, uint32_t expected)
{
    __shared__ bool last;
    meet<THREADS>();
    if (threadIdx.x == 0) {
        last = add_ordered(counter, 1) == expected - 1;
        if (last)
            *counter = 0;
    }
    meet<THREADS>();
    return last;
}

/* Launchers: attend_plan.cu, attend_decode.cu, attend_team.cu, attend_prefill.cu, attend_wide.cu, attend_chunks.cu,
 * attend_simple.cu. The plan: whether there was none of this step yet. */
bool attend_plan(struct dev *d, const struct batch *b, uint32_t per_kv, uint32_t rows_per_tile, const struct cut *cut);
uint32_t attend_tile_rows(uint32_t head_dim, uint32_t per_kv);
/* Few rows where cuts may depend on the batch. is_planned: the plan has been made right before. */
struct cut attend_team_cut(const struct dev *d, const struct batch *b, const struct attend_job *j);
void attend_team(struct dev *d, const struct batch *b, const struct attend_job *j, bool is_planned);
/* Few rows in fixed cuts. */
struct cut attend_cut(const struct dev *d, const struct attend_job *j);
void attend_decode(struct dev *d, const struct batch *b, const struct attend_job *j);
/* Tiles of PACK pairs, part after part: the same bits as attend_decode gives, for any number of rows. */
void attend_whole(struct dev *d, const struct batch *b, const struct attend_job *j);
/* The two of --deterministic where attend_wide can be: few rows by attend_chunks, many by attend_wide, alike. */
bool attend_has_chunks(const struct dev *d, const struct attend_job *j);
void attend_chunks(struct dev *d, const struct attend_job *j);
void attend_prefill(struct dev *d, const struct batch *b, const struct attend_job *j);
/* The same on the warpgroup's matrix unit, where it can be: rows of its tiles, 0 where it cannot. */
uint32_t attend_wide_rows(const struct dev *d, const struct attend_job *j);
void attend_wide(struct dev *d, const struct batch *b, const struct attend_job *j);
void attend_simple(struct dev *d, const struct batch *b, const struct attend_job *j);
/* attend.cu: the names of the kernels of few rows and of many, for people; and whether tiles are attend_wide's, which
 * takes their queries as 16 bits too. */
void attend_kernels(const struct dev *d, const struct kv_layer *layer, uint32_t head_dim, uint32_t per_kv,
    const char **few, const char **many);
bool attend_takes_short(const struct dev *d, const struct kv_layer *layer, uint32_t head_dim, uint32_t per_kv);

#endif
