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

struct fit {
    uint64_t n_params, weight_bytes;      /* all of the model */
    uint64_t active_params, active_bytes; /* what computing one token multiplies by, and reads */
    enum dtype main_dtype;                /* most of the weight bytes are of it, as stored; INT8 counts as Q8_0 */
    enum dtype work_dtype;                /* and as they are computed: the same, F8_E4M3 made of it, or BF16 of F8 */
    enum dtype kv_dtype;
    uint64_t kv_token_bytes;   /* one token in the KV cache, all layers */
    uint64_t buffer_bytes;     /* activations and logits of a step, an estimate; rope tables apart */
    uint64_t rope_token_bytes; /* rope tables, per position */
    uint64_t memory_bytes;     /* to count on; 0 = unknown */
    uint32_t context;          /* tokens of a sequence */
    enum fit_reason reason;
};

struct fit_wants {
    enum dtype kv_dtype;
    enum dtype dummy_dtype;  /* of random weights */
    bool fp8;                /* float matrices become F8_E4M3: see decoder_options */
    const struct ops *ops;   /* that will compute; NULL = not known yet, and nothing is refused for its sake */
    uint64_t memory_bytes;   /* to count on; 0 = what this machine has free */
    uint32_t rows, out_rows; /* of the steps to come */
};

/* Count the weights: of an open model, or of random ones in that shape (source NULL). Fills everything but context and
 * reason. ERR_UNSUPPORTED when F8 is wanted of weights that are not floats, or where it cannot be computed. */
enum err fit_measure(struct fit *f, const struct model_config *c, const struct model_source *source,
    const struct fit_wants *w, struct error *e) MUST_CHECK;

/* Choose the context for one sequence: max_model_len where it is not 0, else the model's, context_default or what fits.
 * ERR_LIMIT in a sentence when the model, or the context asked for, does not fit into memory; ERR_INVALID when it is
 * more than the model's. */
enum err fit_choose(struct fit *f, const struct model_config *c, uint64_t max_model_len, uint32_t context_default,
    struct error *e) MUST_CHECK;

uint64_t fit_fixed_bytes(const struct fit *f);                /* weights and buffers */
uint64_t fit_sequence_bytes(const struct fit *f, uint32_t n); /* cache and tables for n tokens */

#endif
