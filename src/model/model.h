/* model: what turns token ids into logits. Owns the bound weights, the rope tables, the KV cache's memory and the
 * buffers of a step, on one device: the decoder, one transformer for all architectures. What differs between
 * architectures is data (arch.h); what differs between machines is behind struct ops.
 *
 * Beside this door: sequence.h drives one sequence for the verbs that serve nobody else, dummy.h makes random weights
 * in real shapes, tokenizer.h opens the tokenizer and chat templates that belong to a model.
 *
 * A step takes rows of tokens of any number of sequences, at any positions, writes their keys and values through the
 * block tables, and gives logits for the rows that asked. It has no idea of prompts, requests or sampling, and decides
 * nothing: which blocks a sequence has is the caller's business.
 *
 * Threads: one thread drives a decoder. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "format/format.h"
#include "tensor/ops.h"

#include <stdatomic.h>

struct decoder;

/* Where weights come from. find gives a tensor of exactly that dtype-free shape, or ERR_NOT_FOUND when there is none;
 * n_out 0 asks for a vector of n_in elements. */
struct weight_source {
    void *ctx;
    bool is_gguf; /* GGUF names and layouts, else those of HF checkpoints */
    enum err (*find)(void *ctx, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in,
        struct tensor_view *out, struct error *e);
    /* Take these bytes out of memory; views stay valid. NULL when that cannot be. */
    void (*forget)(void *ctx, const void *p, size_t bytes);
    void (*drop)(void *ctx, const struct tensor_view *v); /* a device has copied it: the view ends. May be NULL */
};

struct fit; /* fit.h */

struct decoder_options {
    const struct ops *ops;
    uint32_t threads;      /* 0 = one per core */
    uint32_t rows_max;     /* rows of one step */
    uint32_t out_max;      /* rows of one step that want logits */
    uint32_t seqs_max;     /* sequences of one step */
    uint32_t context_max;  /* positions; 0 = the model's own, which is also the most */
    enum dtype kv_dtype;   /* F32, F16, BF16, Q8_0, Q4_0, F8_E4M3: what ops.kv_dtypes has of them */
    uint32_t block_tokens; /* a multiple of 16 */
    uint32_t n_blocks;     /* blocks of the KV cache */
    uint32_t blocks_least; /* that will do where a device has no room for more: see decoder_kv; 0 = n_blocks */
    uint32_t table_max;    /* block table entries of one step; 0 = as when no two sequences share a block */
    bool deterministic;    /* see dev_options */
    bool fp8;              /* float matrices as F8_E4M3; ERR_UNSUPPORTED where the device cannot */
    /* Called while weights are bound, for a progress bar; may be NULL. */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
    const _Atomic bool *stop; /* set by another thread: binding ends with ERR_CANCELLED; may be NULL */
    const char *choices_dir;  /* see dev_options; read while it is opened */
    const struct fit *fit;    /* what was counted: what to lower when a device's memory is short; may be NULL */
    uint64_t weight_bytes;    /* see dev_options, where there is no fit */
};

/* Whether decoder_open will find all it needs: the configuration, and each tensor's name, shape and type, by the same
 * code. No byte of a tensor is read, so values are not checked. The error is what decoder_open would say. */
enum err decoder_check(const struct weight_source *src, const struct model_config *cfg, struct error *e) MUST_CHECK;

/* Bind every weight the configuration asks for: shapes checked, scales and norms finite, nothing computed yet. The
 * error names the tensor. The source's bytes must outlive the decoder, but for those that it dropped. */
enum err decoder_open(const struct weight_source *src, const struct model_config *cfg, const struct decoder_options *o,
    struct decoder **out, struct error *e) MUST_CHECK;
void decoder_close(struct decoder *d); /* NULL is fine */

/* Over an open model file or folder. */
struct weight_source decoder_file_source(const struct model_source *s);

/* What the device has chosen by measurement while the decoder was opened; all zero where it has nothing to choose. */
const struct device_choices *decoder_choices(const struct decoder *d);

/* One line for people: the device, and the kernels that this model takes there. */
const char *decoder_describe(const struct decoder *d, char out[DESCRIBE_BYTES]);

uint32_t decoder_vocab(const struct decoder *d);
uint32_t decoder_context(const struct decoder *d);
uint64_t decoder_weight_bytes(const struct decoder *d); /* matrices only, as stored */
uint64_t decoder_block_bytes(const struct decoder *d);
struct kv_cache *decoder_kv(struct decoder *d); /* its n_blocks: blocks_least or more */

/* What a device sizes its rooms by. */
struct step_sizes decoder_step_sizes(const struct model_config *cfg, uint32_t rows_max, uint32_t out_max);

/* Bytes one KV block takes, before anything is opened. ERR_UNSUPPORTED when head_dim does not fit the dtype. */
enum err decoder_kv_block_bytes(const struct model_config *cfg, enum dtype kv_dtype, uint32_t block_tokens,
    uint64_t *bytes, struct error *e) MUST_CHECK;

/* The rows of a step, in host memory. Rows of a sequence are contiguous, at ascending consecutive positions. */
struct step {
    uint32_t n_rows, n_seqs, n_out, n_table;
    const int32_t *token;         /* [n_rows], below the vocabulary; or see decoder_is_ahead */
    const uint32_t *pos;          /* [n_rows], below the context */
    const uint32_t *seq;          /* [n_rows] */
    const struct batch_seq *seqs; /* [n_seqs] */
    const uint32_t *table;        /* [n_table] block ids */
    const uint32_t *kv_slot;      /* [n_rows] */
    const uint32_t *out_row;      /* [n_out] */
    bool want_best;               /* the index of each row's largest logit is wanted too */
};

/* Run it. Logits lie on the device as [n_out][vocab] until the next step; decoder_read_logits copies row i to the host,
 * decoder_read_best only the index of each row's largest (UINT32_MAX where all are NaN). */
enum err decoder_step(struct decoder *d, const struct step *s, struct error *e) MUST_CHECK;
enum err decoder_read_logits(struct decoder *d, uint32_t i, float *out, struct error *e) MUST_CHECK;
enum err decoder_read_best(struct decoder *d, uint32_t *out, struct error *e) MUST_CHECK; /* [n_out] */

/* On an asynchronous device (decoder_is_ahead) tokens are chosen there, and what was chosen is read while the next step
 * runs already. asks name output rows of the newest step. What comes of them, or each row's largest, is sent to one of
 * two sides, and read from there by the second call of a pair, which waits for it and for nothing behind it. n is at
 * most what was sent. top: [n][SAMPLE_TOP_MAX], or NULL in both when nobody wants alternatives.
 *
 * A step's token may be -1 - i then: what was chosen for output row i of the step before. Where the host itself has
 * chosen, decoder_put_best says what. */
bool decoder_is_ahead(const struct decoder *d);
struct decoder_asks {
    const struct sample_ask *ask;
    const uint32_t *words; /* the lists that asks name */
    const uint64_t *masks; /* those that they number; memory of decoder_host_new */
    uint32_t n, n_words, n_masks;
};
void decoder_sample(struct decoder *d, const struct decoder_asks *a, uint32_t side, bool wants_top);
enum err decoder_sampled(struct decoder *d, uint32_t side, uint32_t n, struct sample_got *got, struct sample_top *top,
    struct error *e) MUST_CHECK;
void decoder_send_best(struct decoder *d, uint32_t side);
enum err decoder_sent_best(struct decoder *d, uint32_t side, uint32_t n, uint32_t *out, struct error *e) MUST_CHECK;
void decoder_put_best(struct decoder *d, uint32_t i, uint32_t id);

/* Hidden states of n rows of the step from `first` on, behind the final norm, into out [n][decoder_hidden]. They are
 * normalised on the host, in double and rounded once, so a row's values depend on nothing but its residual stream. */
uint32_t decoder_hidden(const struct decoder *d);
enum err decoder_read_hidden(struct decoder *d, uint32_t first, uint32_t n, float *out, struct error *e) MUST_CHECK;

/* Where the device's memory is the host's: row i itself, until the next step; elsewhere NULL. And its threads, for
 * choosing tokens from many rows (ops->host_run); elsewhere one worker, the caller. */
bool decoder_lends_logits(const struct decoder *d);
const float *decoder_lend_logits(const struct decoder *d, uint32_t i);
enum err decoder_wait(struct decoder *d, struct error *e) MUST_CHECK; /* all is done, or the device has failed */
uint32_t decoder_host_workers(const struct decoder *d);
void decoder_host_run(struct decoder *d, uint32_t n, void (*fn)(void *ctx, uint32_t tile, uint32_t worker), void *ctx);

/* KV blocks, in the order of the calls and before the next step: from block to block; and between blocks and places in
 * host memory of decoder_host_new, beside the step that runs (in which order: move_blocks in ops.h). */
void decoder_copy_blocks(struct decoder *d, const uint32_t *src, const uint32_t *dst, uint32_t n);
void decoder_move_blocks(struct decoder *d, struct move_blocks_args a); /* kv is set here */
void *decoder_host_new(struct decoder *d, size_t bytes);                /* see ops.h; NULL: no memory */
void decoder_host_free(struct decoder *d, void *p);                     /* before decoder_close; NULL is fine */

#endif
