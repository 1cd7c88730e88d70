/* ops: THE contract between the models and the machines that compute them. A backend (cpu/, cuda/) fills one const
 * struct ops; model/ calls it in order; nothing else knows how numbers are made.
 *
 * Shapes are written [outer][inner], row-major. T = rows (tokens) of this step, H = hidden size, D = head dimension,
 * Q/G = query heads and key/value heads, F = feed-forward size, V = vocabulary. Every matrix product takes a weight of
 * shape [out][in] and computes, for each activation row a and output column o, sum over k of a[k] * w[o][k].
 *
 * Law 1 (same request, same bytes). The value of an output row depends on that row's inputs alone: not on T, on the
 * other rows, on the thread count or on how a prompt was cut. Each backend writes down the order of its float
 * operations next to the op; tests/unit/cpu/test_invariance.c holds every op to it by memcmp. Rows of padding
 * (kv_slot = KV_SLOT_NONE in a captured graph's bucket) are computed like any other and write no KV.
 *
 * Activations travel between ops as struct acts: rows of f32, plus, where a following product has quantised weights,
 * the same rows as integers in groups. The producer makes the forms that its consumers asked for (weight.wants), so a
 * row is quantised once however many products read it. What a form looks like inside is the backend's business.
 *
 * Calls return at once on an asynchronous device and never fail by themselves: shapes, dtypes and capacities are
 * checked when weights are bound and buffers made. A device fault is sticky and comes out of dev_wait.
 *
 * Pointers in arguments are device memory (dev_alloc) unless marked host. Outputs never alias inputs unless said.
 * scratch is room for intermediate rows, of the size given at each op; its content means nothing before and after.
 *
 * Threads: one thread drives a device. Two devices may live in one process. */
#ifndef TENSOR_OPS_H
#define TENSOR_OPS_H

#include "tensor/tensor.h"

struct dev;  /* a backend's device: stream or worker team, workspace, its memory */
struct acts; /* activations in the backend's forms; made by ops->acts_new */

/* ---- weights ------------------------------------------------------------------------------------------------- */

/* Forms of activation rows that a product with this weight reads. */
enum act_form {
    ACT_F32 = 1u << 0, /* float weights, and anything that is not a product */
    ACT_Q16 = 1u << 1, /* quantised weights: 16 bits in groups of 32, see cpu/cpu.h for the arithmetic */
    ACT_F16 = 1u << 2, /* float weights on devices whose matrix units take 16-bit inputs only */
    ACT_BF16 = 1u << 3,
};

/* What a matrix is for. Read by weight_bind, so set before it. */
enum weight_use {
    WEIGHT_PRODUCT, /* products, and embed when it is tied to the head */
    WEIGHT_ROWS,    /* embed alone: a backend need not prepare it for products */
};

/* A matrix bound to a device: checked once, then trusted. A mixture of experts has n_mats matrices of one shape. */
struct weight {
    enum weight_use use;
    enum dtype dtype;
    uint32_t n_out, n_in;
    uint32_t n_mats;        /* 1, or the number of experts */
    uint32_t wants;         /* of enum act_form */
    size_t row_bytes;       /* n_in elements in the file's layout */
    const void *const *mat; /* [n_mats] in the file's layout; NULL when the backend keeps only its own */
    void *packed;           /* the backend's own; it alone reads and frees it */
    const float *bias;      /* [n_mats][n_out] device memory, or NULL; set by the binder, not owned */
    const float *scales;    /* host, read by weight_bind where ops.has_fp8: [n_mats][n_out] of F8_E4M3 rows; NULL = 1 */
};

/* ---- the batch ------------------------------------------------------------------------------------------------- */

#define KV_SLOT_NONE  UINT32_MAX /* this row writes no KV */
#define KV_BLOCK_NONE UINT32_MAX /* a block table entry freed behind a sliding window */

/* One sequence's rows in this step. Its rows are contiguous and at ascending consecutive positions. One without rows is
 * padding of a captured graph's bucket. */
struct batch_seq {
    uint32_t first_row, n_rows;
    uint32_t n_kv;     /* positions 0 .. n_kv-1 exist after this step's writes; the last row is at n_kv - 1 */
    uint32_t table_at; /* its block table starts at tables[group][table_at] */
};

/* Batch metadata at a fixed address, so that a graph captured for a bucket of rows can be replayed: only contents
 * change. Arrays are device memory of the capacity the batch was made with. */
struct batch {
    uint32_t n_rows, n_seqs, n_out; /* host; a captured graph sees only the bucket sizes */
    uint32_t seq_rows;              /* host: no sequence has more rows than these */
    const int32_t *token;           /* [n_rows] ids */
    const uint32_t *pos;            /* [n_rows] absolute position in its sequence */
    const uint32_t *seq;            /* [n_rows] index into seqs */
    const struct batch_seq *seqs;   /* [n_seqs] */
    const uint32_t *out_row;        /* [n_out] rows whose logits are wanted, ascending */
    const uint32_t *const
        *tables; /* [kv group] -> block ids, all sequences behind each other; host array of device pointers */
    const uint32_t *const *kv_slot; /* [kv group] -> [n_rows] block * block_tokens + offset, or KV_SLOT_NONE */
};

/* ---- the paged KV cache ------------------------------------------------------------------------------------------ */

/* Where one layer's keys and values lie inside a block: [kv head][token][D], K then V. A row is one head of one token;
 * its dtype is F32, F16, BF16, F8_E4M3, Q8_0 or Q4_0 (the last two quantised per token and head in groups of 32, when
 * it is written; what a head of 80 leaves of its last group is zeros). A backend may lay the keys, and the values, of
 * each 16 tokens of a head out in another order within their bytes: everybody else copies whole blocks. */
struct kv_layer {
    uint32_t group; /* which block table */
    enum dtype dtype;
    uint32_t row_bytes;  /* of D elements */
    uint64_t k_at, v_at; /* bytes from the start of the block */
};

static inline uint32_t kv_row_bytes(enum dtype dtype, uint32_t head_dim)
{
    const struct dtype_info *info = dtype_info(dtype);
    return (head_dim + info->block_elems - 1) / info->block_elems * info->block_bytes;
}

struct kv_cache {
    unsigned char *blocks; /* [n_blocks][block_bytes] */
    uint32_t n_blocks;
    uint32_t block_tokens; /* a multiple of 16; never a kernel constant */
    uint64_t block_bytes;
};

/* ---- op arguments ------------------------------------------------------------------------------------------------ */

/* out[t] = scale * row token[t] of table. */
struct embed_args {
    const struct weight *table; /* [V][H] */
    float scale;
    float *out; /* [T][H] */
};

/* out[i] = x[rows ? rows[i] : i] normalised: x / sqrt(mean(x^2) + eps) * gain. */
struct norm_args {
    const float *x;       /* [..][n] */
    const uint32_t *rows; /* [n_rows] or NULL */
    uint32_t n_rows, n;
    const float *gain; /* [n] */
    float eps;
    uint32_t forms; /* of enum act_form: what the readers of out want */
    struct acts *out;
};

enum rope_style {
    ROPE_NONE,
    ROPE_PAIRS,  /* element 2i turns with 2i+1: GGUF files of the Llama family */
    ROPE_HALVES, /* element i turns with i + rot/2: HF checkpoints and all other GGUF families */
};

/* q, k, v = in x (wq, wk, wv) + bias; q and k heads normalised by q_gain, k_gain where given; both turned by rope at
 * the row's position; k and v rounded into the cache at the row's slot. Only q stays as f32, or as the attend behind it
 * reads it. */
struct qkv_args {
    const struct acts *in;             /* [T][H] */
    const struct weight *wq, *wk, *wv; /* [Q*D][H], [G*D][H], [G*D][H] */
    const float *q_gain, *k_gain;      /* [D] or NULL */
    float norm_eps;
    enum rope_style rope;
    uint32_t rope_dims;      /* how many leading elements of a head turn; even, at most D */
    const float *rope_table; /* [position][rope_dims/2][cos, sin] */
    uint32_t n_heads, n_kv_heads, head_dim;
    const struct kv_layer *layer;
    float *scratch; /* [T][(Q+2*G)*D] */
    float *q;       /* [T][Q][D] */
};

/* For each row and head: softmax over the visible positions of scale * q.k (soft-capped: cap * tanh(s / cap) when cap
 * > 0), times v. Visible: 0 <= p <= pos, and p > pos - window when window > 0. Query head h reads kv head h / (Q/G). */
struct attend_args {
    const float *q; /* [T][Q][D] */
    uint32_t n_heads, n_kv_heads, head_dim;
    float scale, cap;
    uint32_t window; /* 0 = all */
    const struct kv_layer *layer;
    uint32_t forms;
    struct acts *out; /* [T][Q*D] */
};

/* x[t] += post(in[t] x w + bias), post = RMS norm with post_gain where given. x is the residual stream. */
struct project_args {
    const struct acts *in;
    const struct weight *w; /* [H][n_in] */
    const float *post_gain; /* [H] or NULL */
    float post_eps;
    float *scratch; /* [T][H] */
    float *x;       /* [T][H], in and out */
};

enum glu {
    GLU_SILU, /* x / (1 + exp(-x)) */
    GLU_GELU, /* the tanh form */
};

/* out[t] = glu(in[t] x gate) * (in[t] x up). */
struct gate_up_args {
    const struct acts *in;
    const struct weight *gate, *up; /* [F][H] */
    enum glu glu;
    float *scratch; /* [T][2*F] */
    uint32_t forms;
    struct acts *out; /* [T][F] */
};

/* Pick top_k of n_experts for each row: softmax over the router's logits in f32, ties to the lower index, experts
 * listed by descending weight; weights divided by their sum when renorm. */
struct route_args {
    const struct acts *in;
    const struct weight *router; /* [n_experts][H] */
    uint32_t top_k;
    bool renorm;
    uint32_t *expert; /* [T][top_k] */
    float *weight;    /* [T][top_k] */
};

/* The feed-forward of a mixture: y[t] = sum over j ascending in the route, from zero, of
 * weight[t][j] * (glu(in[t] x gate_e) * (in[t] x up_e)) x down_e, e = expert[t][j]; then x[t] += y[t]. */
struct experts_args {
    const struct acts *in;
    const struct weight *gate, *up, *down; /* n_mats = n_experts */
    enum glu glu;
    uint32_t top_k;
    const uint32_t *expert; /* [T][top_k] */
    const float *weight;    /* [T][top_k] */
    struct acts *hidden;    /* room for [T*top_k][F], in the forms that down wants */
    float *scratch;         /* [T*top_k][max(2*F, H)] */
    float *x;               /* [T][H], in and out */
};

/* out[i] = in[i] x head, soft-capped like attention scores when cap > 0. */
struct logits_args {
    const struct acts *in; /* [n_out][H] */
    uint32_t n_rows;
    const struct weight *head; /* [V][H] */
    float scale, cap;
    float *out; /* [n_out][V] */
};

/* out[i] = the index of the largest of x[i], ties to the lower one; NaN never wins, UINT32_MAX for a row of nothing
 * else. Greedy decoding without penalties needs no more, so the logits stay on the device. */
struct argmax_args {
    const float *x; /* [n_rows][n] */
    uint32_t n_rows, n;
    uint32_t *out; /* [n_rows] */
};

/* One row of logits to choose from, by the definition in sample/sample.h, without typical-p; what it lists lies among
 * the words of the call, at the given places. */
#define SAMPLE_NO_MASK UINT32_MAX
#define SAMPLE_TOP_MAX 20 /* of n_top */
struct sample_ask {
    uint64_t seed, index; /* of the draw, with choice: base/rng.h */
    uint32_t choice;
    uint32_t row;                          /* of the logits */
    uint32_t top_k;                        /* 0 = off */
    float temperature, top_p, min_p;       /* 0 = greedy; 1 = off; 0 = off */
    float repetition, presence, frequency; /* 1, 0, 0 = off */
    uint32_t mask;                         /* its number among the masks, or SAMPLE_NO_MASK */
    uint32_t banned_at, n_banned;          /* ids */
    uint32_t bias_at, n_bias;              /* id, bits of an f32 */
    uint32_t history_at, n_history;        /* id, count in the output; each id once */
    uint32_t n_top;                        /* log-probabilities wanted beside the chosen one's */
    uint32_t want_logprob;
};

struct sample_top {
    uint32_t id;
    float logprob;
};

struct sample_got {
    uint32_t id; /* UINT32_MAX: nothing is allowed */
    float logprob;
    uint32_t n_top, unused;
};

/* out[i] and top[i] for asks[i], and chosen[asks[i].row] = its id, where the next step finds it. It is the token that
 * sample/ gives for these logits, but for sums over many tokens, which are taken in another order: those of the whole
 * vocabulary (top-p without top-k; a draw that nothing has cut) in double, where a draw within 1e-12 of a border may
 * fall to the other side, and a log-probability may differ in its last bit; and where a cut does not fall among the
 * 2048 most likely tokens, in fixed point, where the same may happen within 1e-8. */
struct sample_args {
    const float *x; /* [rows][n] */
    uint32_t n, n_asks, n_words, n_masks;
    const struct sample_ask *asks; /* host */
    const uint32_t *words;         /* host; lists */
    const uint64_t *masks;         /* of host_new: [n_masks][(n + 63) / 64], a bit for each id; what is there does not
                                      change before what was chosen has been fetched */
    struct sample_got *out;        /* [n_asks] */
    struct sample_top *top;        /* [n_asks][SAMPLE_TOP_MAX] */
    uint32_t *chosen;
};

/* Copy whole blocks, for forks: dst[i] <- src[i] in ascending i. The two caches may be the same one. */
struct copy_blocks_args {
    const struct kv_cache *from;
    struct kv_cache *to;
    const uint32_t *src, *dst; /* host */
    uint32_t n;
};

/* Move whole blocks between a cache and host memory: dst[i] <- src[i] in ascending i, one side blocks of the cache, the
 * other places of block_bytes in the host's memory.
 *
 * The order, which the device keeps; the caller waits for nothing. Moves are made in the order of the calls. One that
 * waits begins behind the ops that were called before it. Any other begins beside whatever the device is at: nothing in
 * flight may touch its blocks (kv.h's fences). Ops that are called behind a move begin when it is done; so when one of
 * them is known to be done, the host's memory is the caller's again. */
struct move_blocks_args {
    const struct kv_cache *kv;
    unsigned char *host;       /* of host_new */
    const uint32_t *src, *dst; /* host; read before the return */
    uint32_t n;
    bool is_out, waits; /* to the host; for the ops before */
};

/* ---- the contract ------------------------------------------------------------------------------------------------ */

/* What a recorded step depends on; all else is in device memory. */
struct graph_key {
    uint32_t n_rows, n_seqs, n_out;
    uint32_t seq_rows; /* no sequence has more rows: a power of two */
    bool want_best;
};

/* Steps that are worth recording: one row of each sequence (decoding), or few rows that all want logits, few of each
 * sequence (verifying guesses). Prompts hardly ever come again in the same shape. */
#define GRAPH_VERIFY_ROWS 64u
#define GRAPH_SEQ_ROWS    16u
static inline bool graph_is_worth(struct graph_key k)
{
    const bool verifies = k.n_out == k.n_rows && k.n_rows <= GRAPH_VERIFY_ROWS && k.seq_rows <= GRAPH_SEQ_ROWS;
    return k.n_rows == k.n_seqs || verifies;
}

/* What a device is opened with; capacities bound every later call. */
struct dev_options {
    uint32_t threads;      /* CPU: worker team size, 0 = one per core */
    uint32_t rows_max;     /* most rows of one step */
    uint32_t out_max;      /* most rows of one step that want logits */
    uint64_t weight_bytes; /* that will be bound, by somebody's count; 0 = not known */
    bool deterministic;
    bool fp8;                /* keep float matrices as F8_E4M3 with a scale per output row; only where ops.has_fp8 */
    const char *choices_dir; /* where a device keeps what it has measured; NULL or "" = it measures nothing. Copied */
};
#define F8_ROWS_LEAST 512 /* with fp8: matrices of fewer rows (a router) stay as they are */

/* What ops->choose has done. */
struct device_choices {
    uint32_t n_shapes, n_measured, n_chosen; /* n_chosen: those for which another way than the usual was faster */
    bool was_read;                           /* from the file of an earlier start; nothing was measured */
    double seconds;                          /* that it took */
    uint64_t hash;                           /* of what was chosen, on which bits depend; 0 = nothing was */
};

/* What describe is asked about: the matrices of a model's first layer and its head, and its attention. */
struct describe_args {
    const struct weight *q, *o, *gate, *down, *head; /* gate and down are NULL in a mixture */
    bool is_plain; /* nothing between a layer's products but its attention: no experts, no norms of heads or behind a
                      projection, no bias of one */
    const struct kv_layer *layer;
    uint32_t n_heads, n_kv_heads, head_dim, rope_dims;
    enum rope_style rope;
};
#define DESCRIBE_BYTES 512

/* What the rooms of a device are sized by: its steps, and the model that they compute. */
struct step_sizes {
    uint32_t rows_max, out_max; /* as dev_options' */
    uint32_t vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim;
    uint32_t n_experts, top_k; /* 0 without a mixture */
};

struct ops {
    const char *name;    /* "cpu-ref", "cpu-avx2", "cuda" */
    uint64_t kv_dtypes;  /* bit 1 << dtype: what a KV cache may be */
    bool has_fp8;        /* dev_options.fp8 and weight.scales are understood */
    bool likes_bf16;     /* beside BF16 weights, or F8 made of such, its steps are fastest over a BF16 cache */
    bool checks_weights; /* weight_bind refuses values that are not finite (ERR_FORMAT); else whoever binds looks */

    /* Devices and memory. alloc gives zeroed memory aligned to 64 bytes; read and write move bytes from and to the host
     * in stream order, and read waits for what it reads. host_new is host memory that the device copies from and to by
     * itself; NULL: there is none. host_free waits until it does not. */
    enum err (*dev_open)(const struct dev_options *o, struct dev **out, struct error *e);
    void (*dev_close)(struct dev *d);
    enum err (*dev_alloc)(struct dev *d, size_t bytes, void **out, struct error *e);
    void (*dev_free)(struct dev *d, void *p);
    void (*dev_write)(struct dev *d, void *to, const void *from_host, size_t bytes);
    void (*dev_read)(struct dev *d, void *to_host, const void *from, size_t bytes);
    enum err (*dev_wait)(struct dev *d, struct error *e); /* all of it done; the first device fault, for ever */
    void *(*host_new)(struct dev *d, size_t bytes);
    void (*host_free)(struct dev *d, void *p); /* NULL is fine */
    /* One line for people: what the device is, and which of its kernels a model's products and attention take. */
    void (*describe)(const struct dev *d, const struct describe_args *a, char out[DESCRIBE_BYTES]);

    /* Weights: check the dtype, then repack, upload or use in place: where memory_free is NULL the bytes must outlive
     * the weight. v is one matrix [out][in], one stack of them [mat][out][in], or n_views matrices of one dtype and
     * shape. ERR_UNSUPPORTED names a dtype that the backend does not compute. */
    enum err (*weight_bind)(
        struct dev *d, const struct tensor_view *v, uint32_t n_views, struct weight *w, struct error *e);
    void (*weight_drop)(struct dev *d, struct weight *w);

    /* Room for rows_max activation rows of n elements in the given forms. */
    enum err (*acts_new)(struct dev *d, uint32_t rows, uint32_t n, uint32_t forms, struct acts **out, struct error *e);
    void (*acts_free)(struct dev *d, struct acts *a);

    /* Recording: the ops between graph_begin and graph_end become one launch that graph_replay repeats for steps of the
     * same key, with whatever the batch arrays then hold. All three are NULL on a backend that gains nothing from it.
     */
    bool (*graph_replay)(struct dev *d, struct graph_key key); /* false: nothing recorded for it */
    void (*graph_begin)(struct dev *d, struct graph_key key);
    void (*graph_end)(struct dev *d);

    /* Choosing by measurement, before the first step; NULL on a backend that has nothing to choose. look_begin gives
     * the rows of the i-th step that the device wants to see, 0 = no more; the ops of such a step, up to look_end, are
     * looked at and not computed. choose then measures what was seen, on the buffers and weights that were seen, or
     * reads what an earlier start has measured; what it cannot keep it does not choose. */
    uint32_t (*look_begin)(struct dev *d, uint32_t i);
    void (*look_end)(struct dev *d);
    void (*choose)(struct dev *d, struct device_choices *out);

    void (*embed)(struct dev *d, const struct batch *b, const struct embed_args *a);
    void (*norm)(struct dev *d, const struct norm_args *a);
    void (*qkv)(struct dev *d, const struct batch *b, struct kv_cache *kv, const struct qkv_args *a);
    void (*attend)(struct dev *d, const struct batch *b, const struct kv_cache *kv, const struct attend_args *a);
    void (*project)(struct dev *d, const struct batch *b, const struct project_args *a);
    void (*gate_up)(struct dev *d, const struct batch *b, const struct gate_up_args *a);
    void (*route)(struct dev *d, const struct batch *b, const struct route_args *a);
    void (*experts)(struct dev *d, const struct batch *b, const struct experts_args *a);
    void (*logits)(struct dev *d, const struct logits_args *a);
    void (*argmax)(struct dev *d, const struct argmax_args *a);
    void (*copy_blocks)(struct dev *d, const struct copy_blocks_args *a);
    void (*move_blocks)(struct dev *d, const struct move_blocks_args *a);

    /* Only on an asynchronous device, else NULL. Choosing where the logits are; tokens that nobody has read yet: a
     * token -1 - i becomes from[i], or 0 where that is no token below n; and reading later: fetch starts a copy to one
     * of two sides (0, 1), fetched waits for it, and for nothing that came behind. At most dev_options.out_max * 256
     * bytes. */
    void (*sample)(struct dev *d, const struct sample_args *a);
    void (*tokens_take)(struct dev *d, int32_t *token, uint32_t n_rows, const uint32_t *from, uint32_t n);
    void (*fetch)(struct dev *d, uint32_t side, const void *from, size_t bytes);
    enum err (*fetched)(struct dev *d, uint32_t side, void *to, size_t bytes, struct error *e);

    /* Only on a device whose memory is the host's, else NULL: its threads, lent for work on what ops have made
     * (choosing tokens). fn runs for tiles 0 .. n-1, worker is below host_workers; returns when all are done. */
    uint32_t (*host_workers)(const struct dev *d);
    void (*host_run)(struct dev *d, uint32_t n, void (*fn)(void *ctx, uint32_t tile, uint32_t worker), void *ctx);

    /* Bytes free on the device now; NULL on one whose memory is the host's. Of them spare_bytes are its own: what
     * dev_open takes, what its driver takes for kernels and recordings later, and as much again for what was counted
     * wrongly. */
    uint64_t (*memory_free)(void);
    uint64_t spare_bytes;

    /* Where steps need more memory than they are given: what it takes, in bytes, and taking it, when all weights are
     * bound; from then on no step takes any. Both or none. */
    uint64_t (*rooms_bytes)(const struct step_sizes *s);
    enum err (*rooms_make)(struct dev *d, const struct step_sizes *s, struct error *e);
};

#endif
