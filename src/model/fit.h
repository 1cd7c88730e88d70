/* How much memory a model takes, computed from its header or from a built-in shape before anything is loaded, and how
 * long a sequence may be. Used by whatever loads (to refuse in time) and by `quern plan`.
 *
 * Threads: any. */
#ifndef MODEL_FIT_H
#define MODEL_FIT_H

#include "format/format.h"
#include "tensor/ops.h"

#define FIT_BLOCK_TOKENS 16 /* tokens of a KV block: small, so that a sequence wastes little */

enum fit_reason { /* what decided the context */
    FIT_BY_MODEL,
    FIT_BY_OPTION,
    FIT_BY_DEFAULT, /* the caller's most without being asked for more */
    FIT_BY_MEMORY,
};

#define FIT_KV_AUTO DTYPE_COUNT /* F16, or BF16 where a device likes it and the weights have its range */

struct fit_wants {
    enum dtype kv_dtype;     /* or FIT_KV_AUTO */
    enum dtype dummy_dtype;  /* of random weights */
    bool fp8;                /* float matrices become F8_E4M3: see decoder_options */
    const struct ops *ops;   /* that will compute; NULL = not known yet, and nothing is refused for its sake */
    uint64_t memory_bytes;   /* to count on; 0 = what this machine has free */
    uint32_t rows, out_rows; /* of the steps to come */
    uint32_t seqs;           /* --max-num-seqs, where the size of steps is the user's to choose; else 0 */
    uint32_t block_tokens;   /* 0 = FIT_BLOCK_TOKENS */
};

struct fit {
    uint64_t n_params, weight_bytes;      /* all of the model */
    uint64_t active_params, active_bytes; /* what computing one token multiplies by, and reads */
    enum dtype main_dtype; /* most of the weight bytes are of it, as they are stored; INT8 counts as Q8_0 */
    enum dtype work_dtype; /* and as they are computed: the same, F8_E4M3 made of it, or BF16 of F8 */
    enum dtype kv_dtype;
    uint64_t kv_token_bytes;   /* one token in the KV cache, all layers */
    uint64_t buffer_bytes;     /* activations and logits of a step, rather too much; rope tables apart */
    uint64_t rope_token_bytes; /* rope tables, per position */
    uint64_t memory_bytes;     /* to count on; 0 = unknown */
    uint64_t spare_bytes;      /* of ops: what a device takes for itself */
    uint32_t context;          /* tokens of a sequence */
    enum fit_reason reason;

    /* For whoever opens it to set. Another model on the same device: all of it but its cache, and that per token; and
     * blocks that the cache must have, 0 = those of one sequence. */
    uint64_t beside_bytes, beside_token_bytes;
    uint32_t n_blocks;

    struct fit_wants wants; /* as they were */
    const struct model_config *config;
    const struct model_source *source; /* both borrowed: for counting again in other sizes */
};

/* Count the weights: of an open model, or of random ones in that shape (source NULL). Fills everything but context and
 * reason, and what is for others to set. ERR_UNSUPPORTED when F8 is wanted of weights that are not floats, or where it
 * cannot be computed. */
enum err fit_measure(struct fit *f, const struct model_config *c, const struct model_source *source,
    const struct fit_wants *w, struct error *e) MUST_CHECK;

/* Choose the context for one sequence: max_model_len where it is not 0, else the model's, context_default or what fits;
 * then fit_check. ERR_INVALID when it is more than the model's. */
enum err fit_choose(struct fit *f, const struct model_config *c, uint64_t max_model_len, uint32_t context_default,
    struct error *e) MUST_CHECK;

/* ERR_LIMIT when that does not fit into memory: one sentence that says what is needed, what is free, and which options
 * with which numbers will do, or else what is missing. */
enum err fit_check(const struct fit *f, struct error *e) MUST_CHECK;

uint64_t fit_fixed_bytes(const struct fit *f);                /* all but cache and tables */
uint64_t fit_sequence_bytes(const struct fit *f, uint32_t n); /* cache and tables for n tokens */
/* The longest of n_seqs sequences, whole blocks, that fit with a cache of so many bytes per token; 0 when none. */
uint64_t fit_longest(const struct fit *f, uint64_t kv_token_bytes, uint64_t n_seqs);

#endif
