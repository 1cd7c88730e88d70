/* Private to cuda/: the device, how weights lie in its memory, and the launchers that device.cu puts into the table. */
#ifndef CUDA_CUDA_INT_H
#define CUDA_CUDA_INT_H

#include "cuda/cuda.h"

#include <cublasLt.h>
#include <cuda_runtime.h>

#define GRAPHS_MAX  64   /* recorded step shapes; decode batches come in buckets, the least used is thrown out */
#define DROPPED_MAX 8    /* recordings on their way out: more than are dropped while the step before runs */
#define PLANS_MAX   256  /* matrix shapes whose cuBLASLt algorithm is remembered */
#define TRACE_MAX   1024 /* products of a step that are remembered */
#define SLABS_MAX   256  /* pieces of device memory that weights are cut from */
#define LT_BYTES    ((size_t)64 << 20) /* workspace cuBLASLt is given; its documentation asks for 32 MiB on Hopper */
#define SPARE_BYTES                                                                                                    \
    ((uint64_t)512 << 20) /* see ops.h: half of it for workspace, code of kernels and recordings, counted roughly */
#define WRITE_BYTES                                                                                                    \
    ((size_t)16 << 20) /* of the ring that small writes to the device go through; an eighth at most each */
#define READ_BYTES  ((size_t)1 << 20) /* of the room that small reads come back to */
#define FETCH_EACH  256               /* bytes for each output row that are read later */
#define UNPACK_ROWS 4096              /* rows of a quantised matrix that are made f16 at a time for a large product */
#define PARTS_MAX   4096              /* (row, part of the context) pairs of one step; more make the parts longer */
#define SPLIT       256               /* positions of a part of attend_whole, whose cuts may not depend on the batch */

/* A form of this room alone: e4m3 with a scale per row, where products with F8 matrices of that many rows read that
 * (cuda_f8_rows) and whoever makes the row sees all of it; otherwise f16. */
#define ACT_F8 (1u << 16)

/* Activation rows in the types products read; NULL unless asked for. */
struct acts {
    uint32_t rows, n, forms;
    float *f32;
    void *f16, *bf16;  /* __half, __nv_bfloat16 */
    unsigned char *f8; /* and f8_scale, per row */
    float *f8_scale;
    bool has_f8; /* it was written in f8, and not in f16 */
};

/* How the rows of a matrix lie in device memory; formats.cuh has the layouts. */
enum format {
    FORMAT_F32,
    FORMAT_F16,
    FORMAT_BF16,
    FORMAT_F8,  /* e4m3, one f32 scale per row beside it */
    FORMAT_Q8,  /* Q8_0 */
    FORMAT_Q4,  /* Q4_0 */
    FORMAT_Q4M, /* Q4_1 */
    FORMAT_Q4K, /* Q4_K */
    FORMAT_Q6K, /* Q6_K */
};

/* weight.packed points to this, in host memory. */
struct matrix {
    enum format format;
    uint32_t n_out, n_in;
    uint32_t row_bytes; /* from one row to the next, a multiple of 16 for all but odd float widths */
    uint64_t mat_bytes; /* from one expert's matrix to the next */
    unsigned char *data;
    float *scales; /* FORMAT_F8: [n_mats][n_out], else NULL */
    uint32_t slab, scales_slab;
};

enum slab_kind { SLAB_MATRICES, SLAB_SCALES, SLAB_KINDS };

struct slab {
    unsigned char *p; /* NULL = free */
    enum slab_kind kind;
    size_t bytes, used;
    uint32_t n_weights;
};

struct lt_plan {
    uint32_t m, n, k, ldw, ldc;
    cudaDataType type, out_type;
    bool is_scaled, adds, is_chosen;
    uint64_t used;
    cublasLtMatmulAlgo_t algo;
};

struct graph {
    struct graph_key key;
    cudaGraphExec_t exec; /* NULL = free */
    bool may_reside;
    uint64_t used;
};

/* A recording that was thrown out, which may still run: destroyed when its place is needed again. */
struct dropped {
    cudaGraphExec_t exec; /* NULL = none */
    cudaEvent_t done;     /* behind its last launch */
};

/* Weights that the ops after this one will read, to be brought into the second-level cache while the memory has little
 * else to do. */
struct ahead {
    const unsigned char *p;
    uint64_t bytes; /* 0 = nothing known */
};

struct upload;   /* upload.cu: weights on their way */
struct resident; /* resident.cu: a step of few rows, as it is collected */
struct chooser;  /* choose.cu: what was looked at, and what was chosen */
struct plan;     /* attend_plan.cu: how the attention of this step is cut */

struct dev {
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *lt_workspace;
    unsigned char *pinned; /* host memory that copies may start from: a ring of WRITE_BYTES, then READ_BYTES */
    size_t pinned_used;    /* of the half that is written now */
    uint32_t pinned_side;
    cudaEvent_t pinned_half[2]; /* copies from each half of the ring are done */
    uint32_t rows_max, out_max;
    uint32_t capability, n_sms;
    bool fp8, deterministic;
    bool chained;     /* --deterministic may use the library: cuda_is_chained */
    bool short_q;     /* as attend_job's: from a layer's qkv to its attend, which takes it back */
    bool is_counting; /* cuda_room counts and takes nothing */
    bool is_running;  /* all rooms are there */
    uint64_t room_bytes;
    int failed;        /* the first cudaError_t or 1000 + cublasStatus_t; 0 = none */
    const char *where; /* the call that failed */

    struct slab slabs[SLABS_MAX];
    uint32_t slab_open[SLAB_KINDS]; /* the one that is cut from, if it is of that kind */
    uint64_t weight_bytes;          /* taken so far */
    uint64_t weights_to_come;       /* all of them, by somebody's count; 0 = not known */
    struct upload *upload;          /* NULL = nothing is being loaded */
    void *staging;                  /* device room for the file's bytes of a matrix that is repacked */
    size_t staging_bytes;
    void *unpacked; /* [UNPACK_ROWS][widest quantised row] f16, for large products */
    size_t unpacked_bytes;
    unsigned char *acts_f8; /* [rows_max][widest F8 row], and a scale per row */
    float *acts_scale;
    size_t acts_f8_bytes;
    uint32_t *groups; /* experts.cu: rows sorted by expert */
    size_t groups_bytes;
    void *asks, *asks_host;  /* sample.cu: what is asked, its lists, and logits as they were changed */
    uint32_t *words, *masks; /* words: ENGINE_ASK_WORDS */
    float *adjusted;
    size_t asks_bytes, words_bytes, masks_bytes, adjusted_bytes;
    cudaStream_t aside; /* what comes by this one need not wait for the step */
    cudaEvent_t aside_there, aside_read;
    cudaStream_t moves; /* move_blocks.cu */
    cudaEvent_t moves_from, moves_done;
    unsigned char *fetched; /* host memory that copies end in: two sides of fetch_bytes */
    size_t fetch_bytes;
    cudaEvent_t fetch_done[2];

    struct plan *plan;
    float *parts;      /* [PARTS_MAX][heads][D], then [PARTS_MAX][heads][2] */
    uint32_t *arrived; /* counters of finished parts and of drawn tiles, zero between kernels */
    size_t plan_bytes, parts_bytes, arrived_bytes;
    uint64_t batch_version, planned_version; /* the batch arrays changed; the plan belongs to them */
    uint32_t planned_kind;

    struct lt_plan plans[PLANS_MAX];
    uint32_t n_plans;
    struct chooser *chooser; /* NULL = the library chooses */
    bool is_looking;         /* ops are looked at: nothing is computed */
    /* The matrices of the step before, in the order of its ops, which is this step's too: how one knows what is next.
     */
    struct ahead trace[TRACE_MAX];
    uint32_t n_trace, trace_at;
    struct graph graphs[GRAPHS_MAX];
    uint32_t slot; /* of graphs: the one that is being recorded */
    struct dropped dropped[DROPPED_MAX];
    uint32_t n_dropped;
    uint64_t clock;
    struct graph_key recording;
    bool is_recording;
    struct resident *resident;
    bool is_collecting; /* ops are written down for a resident kernel */
    float *even_parts;  /* even.cuh: sums on their way between blocks; zero between kernels */
    size_t even_parts_bytes;
    bool is_even; /* the last product was even.cuh's; of qkv's: so is the projection's, nearly always */
};

/* Keep the first failure. */
void cuda_note(struct dev *d, int status, const char *where);
#define CUDA_DO(d, call) cuda_note((d), (int)(call), #call)

/* Room that is made once, at the size first asked for or grown: before the first step, by the functions that each file
 * with a room has for it and by binding. When rooms_make is done, one that is too small is a failure; a device that is
 * used without it makes them in its first steps. NULL on failure, which is noted. */
void *cuda_room(struct dev *d, void **p, size_t *have, size_t want);

/* Bytes to the device in stream order; the caller has them back at once. */
void cuda_write(struct dev *d, void *to, const void *from, size_t bytes);
/* From memory of host_new, beside what the stream is at; what is put on the stream next finds it there. When that has
 * been put there, cuda_aside_read says so: the next write waits for it. */
void cuda_write_aside(struct dev *d, void *to, const void *from, size_t bytes);
void cuda_aside_read(struct dev *d);

/* weights.cu */
enum err cuda_weight_bind(
    struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e);
void cuda_weight_drop(struct dev *d, struct weight *w);
void cuda_slabs_free(struct dev *d);
static inline const struct matrix *matrix_of(const struct weight *w)
{
    return (const struct matrix *)w->packed;
}
/* b's rows follow a's in memory, so that both are one matrix. */
bool cuda_adjacent(const struct weight *a, const struct weight *b);

/* upload.cu: rows of a tensor, looked through for values that are not finite (ERR_FORMAT), to a place on the device.
 * When the card has failed nothing more is read, and whoever waits is told. The end gives the room back. */
enum err cuda_upload(
    struct dev *d, const struct tensor_view *v, uint64_t first, uint64_t n_rows, unsigned char *to, struct error *e);
void cuda_upload_end(struct dev *d);

/* ahead.cu: an op with products says which matrix is its first; an op without asks what comes next, at most so much. */
void cuda_trace_start(struct dev *d);
void cuda_trace(struct dev *d, const struct weight *w, uint32_t n_rows);
struct ahead cuda_ahead(const struct dev *d, uint64_t most);

/* resident.cu. Recording begins and ends; true from the three: the op is part of the kernel to come. flush launches
 * what was collected, and comes before whatever else is launched. The program lies in a place of the recording's slot.
 * One that is not worth keeping: the next will know better what to collect. */
bool resident_is_allowed(void);
void resident_begin(struct dev *d, uint32_t n_rows);
bool resident_end(struct dev *d);  /* whether the recording is worth keeping */
void resident_send(struct dev *d); /* its program to its place, before the recording is launched */
bool resident_rooms(struct dev *d, const struct step_sizes *s);
/* Which steps of this model come to be such a kernel: those of 1 to RESIDENT_ROWS rows, and of more. */
void resident_takes(const struct dev *d, const struct describe_args *a, bool *few, bool *several);
void resident_free(struct dev *d);
void resident_flush(struct dev *d);
bool resident_norm(struct dev *d, const struct norm_args *a);
void resident_norm_read(struct dev *d); /* nobody else will read what was normalised last */
struct skinny_job;
struct attend_job;
bool resident_product(struct dev *d, enum format format, const struct skinny_job *j, const struct acts *in);
bool resident_attend(struct dev *d, const struct batch *b, const struct attend_job *j);
void cuda_norm_now(struct dev *d, const struct norm_args *a);

/* products.cu: out[t * ldc + o] = sum over k of in[t][k] * m[o][k] (+ out when add), for the rows of m and, when they
 * are adjacent, of what follows it: n_out may span several. f32, or bf16 when bf16_out. */
struct product {
    const struct matrix *m;
    uint32_t n_out, n_rows;
    const struct acts *in;
    void *out;
    uint32_t ldc;
    bool add, bf16_out;
    bool unscaled; /* F8, into bf16: whoever reads it scales it */
};
/* What a reader of an unscaled product does: output o of row r times row[r] and column[o], the columns of one to three
 * matrices. row NULL = nothing is left to do. */
struct scales {
    const float *row, *column[3];
};
/* Whether a product of so many rows is better left unscaled. The library has one kernel that scales rows and columns,
 * with tiles of 128 rows, and many that do not. */
bool cuda_leaves_scales(const struct dev *d, const struct matrix *m, uint32_t n_rows);
/* The scales of rows that an F8 product has read. */
const float *cuda_row_scales(const struct dev *d, const struct acts *in);
void cuda_product(struct dev *d, const struct product *p);
/* Whether a product of so many rows with this matrix is better made by cuda_skinny, and by which of its kernels. */
bool cuda_is_skinny(const struct dev *d, const struct matrix *m, uint32_t n_rows);
enum cuda_way cuda_way_of(const struct dev *d, enum format format, uint32_t n_out, uint32_t n_in, uint32_t n_rows);
/* Whether gate and up of so many rows, both of this shape, are better made by cuda_many. */
bool cuda_is_many(const struct dev *d, const struct matrix *m, uint32_t n_rows);
/* Whether the library's sums, where it does not cut them, are those of flow.cuh on this card, bit for bit. */
bool cuda_is_chained(struct dev *d);
/* Whether a product of so many rows with any F8 matrix reads e4m3: of the number of rows alone. */
bool cuda_f8_rows(const struct dev *d, uint32_t n_rows);
/* Whether products that the library might make are plain.cu's: it cannot be held to one order there. */
bool cuda_is_plain(const struct dev *d, enum format format, uint32_t n_in);
/* plain.cu: the same for floats in any width, each output in an order of its own. */
void cuda_product_plain(struct dev *d, const struct product *p);
/* Whether large products with this matrix may write bf16. */
bool cuda_gives_bf16(const struct dev *d, const struct matrix *m);
/* For measure.cu: an n x n x n product in bf16, or in e4m3 with scales [2][n], into bf16. */
void cuda_square_product(
    struct dev *d, bool f8, uint32_t n, const void *w, const void *a, const float *scales, void *out);
/* unpack.cu: rows first .. first+n-1 of a quantised matrix as f16 [n][n_in] into d->unpacked. */
void cuda_unpack(struct dev *d, const struct matrix *m, uint32_t first, uint32_t n);
/* unpack.cu: activation rows as e4m3 with a scale per row, into d->acts_f8 and d->acts_scale. */
void cuda_rows_to_f8(struct dev *d, const struct acts *in, uint32_t n_rows);

/* choose.cu. Open: false when there is no memory. The three of the table. */
bool cuda_choose_open(struct dev *d, const char *dir);
void cuda_choose_close(struct dev *d);
uint32_t cuda_look_begin(struct dev *d, uint32_t i);
void cuda_look_end(struct dev *d);
void cuda_choose(struct dev *d, struct device_choices *out);
/* measure.cu: random numbers of no extreme size, in any type of 16 bits or more, or in e4m3. */
void cuda_noise(struct dev *d, void *to, size_t bytes, bool f8);

/* describe.cu: ops.describe. */
void cuda_describe_rows(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES]);
/* even.cu */
bool cuda_even_rooms(struct dev *d);

/* One op each. */
void cuda_embed(struct dev *d, const struct batch *b, const struct embed_args *a);
void cuda_norm(struct dev *d, const struct norm_args *a);
void cuda_qkv(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a);
bool cuda_attend_rooms(struct dev *d, uint32_t n_heads, uint32_t n_kv_heads, uint32_t head_dim);
void cuda_attend(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a);
void cuda_project(struct dev *d, const struct batch *b, const struct project_args *a);
void cuda_gate_up(struct dev *d, const struct batch *b, const struct gate_up_args *a);
void cuda_route(struct dev *d, const struct batch *b, const struct route_args *a);
bool cuda_experts_rooms(struct dev *d, uint32_t n_experts, uint32_t top_k);
void cuda_experts(struct dev *d, const struct batch *b, const struct experts_args *a);
void cuda_logits(struct dev *d, const struct logits_args *a);
void cuda_argmax(struct dev *d, const struct argmax_args *a);
bool cuda_sample_open(struct dev *d);              /* host memory for what is asked; dev_close frees it */
bool cuda_sample_rooms(struct dev *d, uint32_t n); /* of a vocabulary of n */
void cuda_sample(struct dev *d, const struct sample_args *a);
void cuda_tokens_take(struct dev *d, int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n);
void cuda_copy_blocks(struct dev *d, const struct copy_blocks_args *a);
void cuda_move_blocks(struct dev *d, const struct move_blocks_args *a);

#endif
