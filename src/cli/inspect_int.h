/* Private to cli/: what `quern inspect` finds out, apart from how it is shown. */
#ifndef CLI_INSPECT_INT_H
#define CLI_INSPECT_INT_H

#include "cli/cli.h"
#include "format/format.h"

#define INSPECT_REASONS_MAX 8 /* one per rule of inspect.c, and a few for tensor types */

struct inspect_dtype {
    uint64_t n_tensors, n_elems, bytes;
};

struct inspect {
    const struct model_source *source;
    struct model_config config;
    uint32_t gguf_version; /* 0 for safetensors */

    uint64_t n_params, weight_bytes;
    struct inspect_dtype dtypes[DTYPE_COUNT];

    char tokenizer[64];      /* "gpt2", "BPE": as the file names its model; "" when there is no tokenizer */
    const char *tok_kind;    /* "byte-level BPE", ...; NULL when quern does not know that one */
    uint64_t n_tokens;       /* 0 when not said */
    uint64_t template_bytes; /* 0 = no chat template */

    /* The estimate. Unknown when the file does not tell the shape of the cache. */
    bool kv_known;
    enum dtype kv_dtype;
    uint64_t max_len, n_seqs;
    uint64_t kv_bytes;     /* of all sequences at their full length */
    uint64_t need_bytes;   /* weights and KV; saturated */
    uint64_t memory_bytes; /* what there is; 0 = unknown */
    bool fits;

    char reasons[INSPECT_REASONS_MAX][240]; /* why it cannot run */
    size_t n_reasons;
    char verdict[ERROR_TEXT_MAX]; /* the plain sentence */
};

/* Fill *x from an open source; ERR_INVALID when an option contradicts the model. Touches no tensor bytes. */
enum err inspect_gather(
    struct inspect *x, const struct model_source *s, const struct options *o, struct error *e) MUST_CHECK;

/* Tokenizer name, kind and size of an open model, without reading a large tokenizer.json whole. */
enum err inspect_tokenizer(struct inspect *x, struct error *e) MUST_CHECK;

/* Whether tensors of that type may stand in this model: a weight's, or those of INT8 (numbers, packed, shapes). */
bool inspect_reads(const struct inspect *x, enum dtype d);

void inspect_print_text(struct out *out, const struct inspect *x, bool tensors);
void inspect_print_json(struct out *out, const struct inspect *x, bool tensors);

/* "94.3 MiB"; text of at most 24 bytes. */
const char *inspect_show_bytes(uint64_t bytes, char text[24]);

#endif
