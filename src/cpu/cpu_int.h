/* Private to cpu/: the device, the activations, and the kernel table that a variant fills. */
#ifndef CPU_CPU_INT_H
#define CPU_CPU_INT_H

#include "base/limits.h"
#include "base/team.h"
#include "cpu/cpu.h"

#include <stdatomic.h>

#define ACT_GROUP  32       /* activations share a scale in groups of this many; every weight block is a multiple */
#define SUB_GROUP  16       /* the finest scale any weight type has */
#define ACT_BLOCK  8        /* groups of a row that lie together */
#define ACT_BYTES  64       /* of a group's integers, taken apart */
#define ACT_STARTS 8        /* see x86_product_few.h */
#define ACT_MAX    32767.0f /* the largest integer an activation is rounded to */
#define ACT_SMALLEST                                                                                                   \
    0x1p-100f              /* a group whose largest |x| is below counts as zeros: ACT_MAX / max must not overflow      \
                            */
#define ATTN_TILE      64  /* positions; part of the definition of attention, see cpu.h */
#define ATTN_PART      512 /* positions; the x86 kernels join attention from parts of this many, see x86_attend.h */
#define KEY_GROUP      16  /* tokens of a block whose keys lie turned; blocks hold multiples of it */
#define ATTN_ROWS_MAX  128 /* (row, head) pairs one attention tile carries; bounds a worker's scratch */
#define ATTN_LANES     16  /* sums a pair carries at most */
#define HEAD_DIM_MAX   MODEL_HEAD_DIM_MAX
#define PARTIAL_FLOATS ((size_t)1 << 21) /* 8 MB, touched only as far as used: 32 heads of 128 over 128k positions */

/* Groups of activations as integers. Element k is scale[k / 32] * q[k]. */
struct groups {
    int16_t *q;   /* [groups][32], each four in the order that the kernels like */
    float *scale; /* [groups] */
    float *sum;   /* [groups]: scale * the sum of q */
    float *sum16; /* [groups][2]: the same of each half */
    /* Of a few rows, or NULL: what x86_product_few.h reads. */
    uint8_t *bytes;  /* [groups][64]: the upper bytes of q, which have the sign, then the lower ones; 0 1 2 3... */
    int32_t *starts; /* [groups][8] */
};

/* n elements a row; f32 is always there, the groups when ACT_Q16 was asked for. Eight groups of a row lie together,
 * then those of the next row: what a tile of a product reads is one piece of memory. Floats lie so too, a second time,
 * where ACT_F32 was asked for and the kernels pack: rows that lie a power of two apart push each other out of the
 * cache. */
struct acts {
    uint32_t rows, n, forms;
    float *f32;           /* [rows][n] */
    float *blocks;        /* [n / 256, rounded up][rows][256], or NULL */
    struct groups groups; /* [n / 256, rounded up][rows][8]; bytes and starts are NULL */
    uint32_t few;         /* rows, the first ones, that have bytes and starts: [n / 256, rounded up][few][8] */
    uint8_t *bytes;
    int32_t *starts;
};

/* Where element k of a row lies in blocks. */
static inline float *acts_block(const struct acts *a, size_t row, size_t k)
{
    const size_t n = ACT_BLOCK * ACT_GROUP;
    return a->blocks + (k / n * a->rows + row) * n + k % n;
}

/* Where group g of a row lies. */
static inline size_t acts_group(const struct acts *a, size_t row, size_t g)
{
    return (g / ACT_BLOCK * a->rows + row) * ACT_BLOCK + g % ACT_BLOCK;
}

static inline struct groups groups_from(const struct groups *g, size_t at)
{
    struct groups to = {.q = g->q + at * ACT_GROUP, .scale = g->scale + at, .sum = g->sum + at};
    to.sum16 = g->sum16 + 2 * at;
    if (g->bytes != NULL) {
        to.bytes = g->bytes + at * ACT_BYTES;
        to.starts = g->starts + at * ACT_STARTS;
    }
    return to;
}

/* The groups of a row from g on, up to the end of their eight. */
static inline struct groups acts_groups(const struct acts *a, size_t row, size_t g)
{
    struct groups to = groups_from(&a->groups, acts_group(a, row, g));
    if (row < a->few) {
        const size_t at = (g / ACT_BLOCK * a->few + row) * ACT_BLOCK + g % ACT_BLOCK;
        to.bytes = a->bytes + at * ACT_BYTES;
        to.starts = a->starts + at * ACT_STARTS;
    }
    return to;
}

/* A weight row taken apart: element k is scale[k / 16] * q[k] + min[k / 16]. */
struct unpacked {
    int8_t *q;    /* [n_in] */
    float *scale; /* [n_in / SUB_GROUP] */
    float *min;   /* [n_in / SUB_GROUP] */
    float *f32;   /* [n_in], for float weights */
    bool has_min;
};

/* One worker's own memory. */
struct worker {
    struct unpacked row;
    float *k, *v;     /* [ATTN_TILE][HEAD_DIM_MAX] */
    float *out;       /* [ATTN_ROWS_MAX][HEAD_DIM_MAX] */
    float *max, *sum; /* [ATTN_ROWS_MAX], [ATTN_ROWS_MAX][ATTN_LANES] */
    /* The rest is there when kernels->room_bytes is not 0. */
    void *product;       /* kernels->room_bytes */
    float *score;        /* [ATTN_ROWS_MAX][ATTN_TILE] */
    float *shrink;       /* [ATTN_ROWS_MAX] */
    float *total;        /* [ATTN_ROWS_MAX][2 * ATTN_LANES + HEAD_DIM_MAX] */
    const float **query; /* [ATTN_ROWS_MAX] */
};

/* Keys of a type whose elements stand alone lie turned in the cache: of each 16 tokens first all elements 0, then all
 * elements 1... So scores of 16 positions are made side by side from what is loaded. A group takes the bytes that its
 * 16 rows would. */
static inline bool keys_lie_turned(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

/* One token's key from or to a row of its own. head: where the kv head's keys begin in the token's block. */
void key_get(const struct kv_layer *layer, const unsigned char *head, uint32_t token, unsigned char *row);
void key_put(const struct kv_layer *layer, unsigned char *head, uint32_t token, const unsigned char *row);

/* Rows of one product. in_rows picks activation rows (experts); NULL = first_row, first_row + 1... */
struct product {
    const struct weight *w;
    uint32_t mat;
    const struct acts *in;
    const uint32_t *in_rows;
    uint32_t first_row, n_rows;
    float *out; /* out[i * out_stride + column] */
    size_t out_stride;
};

/* Some consecutive rows of one sequence and one kv head with its query heads, or some of them. */
struct attend_tile {
    const struct attend_args *args;
    const struct batch *batch;
    const struct kv_cache *kv;
    const struct batch_seq *seq;
    uint32_t first_row, n_rows; /* batch rows */
    uint32_t kv_head;
    uint32_t first_head, n_heads; /* query heads; n_rows * n_heads <= ATTN_ROWS_MAX */
    /* partial not NULL: compute only these parts of the context, and leave each there, [part][pair]; when they begin
     * it, joined, as one. When joining: what was joined, then these. */
    float *partial;
    uint32_t part, n_parts;
};

/* What a variant provides. Every kernel computes rows as cpu.h defines them or as the variant's file says. */
struct kernels {
    const char *name;
    bool (*runs_here)(void);
    /* Columns [lo, hi) of all rows of p, bias added. */
    void (*product)(struct worker *w, const struct product *p, uint32_t lo, uint32_t hi);
    /* out may be x. */
    void (*norm_row)(const float *x, const float *gain, float eps, uint32_t n, float *out);
    void (*quant_groups)(const float *x, uint32_t n_groups, const struct groups *to);
    void (*glu)(enum glu kind, const float *gate, const float *up, uint32_t n, float *out);
    void (*scale_cap)(float *x, uint32_t n, float scale, float cap); /* x * scale, soft-capped when cap > 0 */
    void (*attend)(struct worker *w, const struct attend_tile *t);
    /* What follows may be NULL or 0: the plain code is used then. */
    size_t room_bytes; /* weights are packed (pack.h) and a worker has the room that the kernels ask for */
    uint32_t few_rows; /* up to so many rows products want bytes and starts */
    void (*attend_join)(struct worker *w, const struct attend_tile *t, size_t step); /* floats from part to part */
    void (*rope)(enum rope_style style, uint32_t dims, const float *table, float *x);
    bool (*to_kv)(enum dtype dtype, const float *x, uint32_t n, unsigned char *to); /* false: not this dtype */
    uint64_t (*peak)(bool integers, uint64_t rounds);                               /* cpu_peak in cpu.h */
    void (*add_row)(float *x, const float *y, uint32_t n);                          /* x += y */
};

/* Consecutive rows of one sequence. */
struct row_chunk {
    uint32_t seq, first_row, n_rows;
};

/* Memory for packed weights, in huge pages where the system gives them; freed with the last weight in it. */
struct slab {
    struct slab *next;
    unsigned char *p;
    size_t bytes, used, ready; /* ready: its pages are there */
    uint32_t n_weights;
};

/* The tiles of a job that one worker takes first. */
struct stretch {
    _Alignas(64) _Atomic uint32_t next; /* may run past the end, by a try of each worker */
    uint32_t end;
};

struct dev {
    struct team *team;
    struct stretch *stretches; /* [team_size] */
    struct slab *slabs;
    float *partials; /* [PARTIAL_FLOATS]: attention computed in parts */
    const struct kernels *k;
    struct worker *workers; /* [team_size] */
    uint32_t rows_max;
    uint32_t n_in_max;        /* widest weight bound so far; sizes workers' rows */
    struct row_chunk *chunks; /* [rows_max]: how attention cuts this batch */
    /* Mixtures. A pair is one row's one expert; pairs are sorted by expert. */
    uint32_t *pair_row;     /* [rows_max * MODEL_EXPERTS_USED_MAX]: sorted pair -> row */
    uint32_t *pair_place;   /* [rows_max * MODEL_EXPERTS_USED_MAX]: row * top_k + j -> sorted pair */
    uint32_t *expert_first; /* [MODEL_EXPERTS_MAX + 1]: first sorted pair of each expert */
    bool failed;            /* --fault device:N */
};

extern const struct kernels kernels_ref;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2, kernels_avx512;
/* variants.c, which is compiled for any machine: with FMA and F16C; with those and F, BW, DQ, VL and VNNI. */
bool cpu_has_avx2(void);
bool cpu_has_avx512(void);
#endif

/* unpack.c: one weight row of any quantised dtype into q, scale, min. */
bool can_unpack(enum dtype dtype);
void unpack_row(enum dtype dtype, const void *row, uint32_t n, struct unpacked *out);

/* ops_cpu.c: team_run for an op. The thread that drives the device may not be the one that opened it, and its share of
 * the tiles must round as the workers' do. */
void cpu_run(struct dev *d, uint32_t n_tiles, team_fn *fn, void *ctx);

/* The same, where a tile asks for what the next one will read: each worker gets neighbours, and only who has done all
 * of its own takes those of others. */
void cpu_run_near(struct dev *d, uint32_t n_tiles, team_fn *fn, void *ctx);

/* ops_cpu.c: the ops over a device's kernels. */
void cpu_embed(struct dev *d, const struct batch *b, const struct embed_args *a);
void cpu_norm(struct dev *d, const struct norm_args *a);
void cpu_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a);
void cpu_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a);
void cpu_project(struct dev *d, const struct batch *b, const struct project_args *a);
void cpu_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a);
void cpu_logits(struct dev *d, const struct logits_args *a);
void cpu_argmax(struct dev *d, const struct argmax_args *a);
void cpu_copy_blocks(struct dev *d, const struct copy_blocks_args *a);
void cpu_move_blocks(struct dev *d, const struct move_blocks_args *a);

/* experts.c */
void cpu_route(struct dev *d, const struct batch *b, const struct route_args *a);
void cpu_experts(struct dev *d, const struct batch *b, const struct experts_args *a);

/* Make the asked-for forms of elements [at, at + n) of a row whose f32 is written; at and n are whole groups for Q16.
 */
void acts_finish(const struct kernels *k, struct acts *a, uint32_t forms, size_t row, uint32_t at, uint32_t n);

/* attend_ref.c */
void attend_ref(struct worker *w, const struct attend_tile *t);

/* device.c */
enum err cpu_dev_open(
    const struct kernels *k, const struct dev_options *o, struct dev **out, struct error *e) MUST_CHECK;
void cpu_dev_close(struct dev *d);
enum err cpu_dev_alloc(struct dev *d, size_t bytes, void **out, struct error *e) MUST_CHECK;
void cpu_dev_free(struct dev *d, void *p);
void cpu_dev_write(struct dev *d, void *to, const void *from, size_t bytes);
void cpu_dev_read(struct dev *d, void *to, const void *from, size_t bytes);
void *cpu_host_new(struct dev *d, size_t bytes);
void cpu_host_free(struct dev *d, void *p);
enum err cpu_dev_wait(struct dev *d, struct error *e) MUST_CHECK;
void cpu_describe(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES]);
uint32_t cpu_host_workers(const struct dev *d);
void cpu_host_run(struct dev *d, uint32_t n, void (*fn)(void *ctx, uint32_t tile, uint32_t worker), void *ctx);
enum err cpu_weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e) MUST_CHECK;
void cpu_weight_drop(struct dev *d, struct weight *w);
enum err cpu_acts_new(
    struct dev *d, uint32_t rows, uint32_t n, uint32_t forms, struct acts **out, struct error *e) MUST_CHECK;
void cpu_acts_free(struct dev *d, struct acts *a);

#endif
