/* Private to model/: the bound layers and the buffers of a step. */
#ifndef MODEL_DECODER_INT_H
#define MODEL_DECODER_INT_H

#include "model/arch.h"
#include "model/model.h"

struct layer {
    float *attn_norm, *ffn_norm;           /* gains on the device */
    float *post_attn_norm, *post_ffn_norm; /* NULL when the architecture has none */
    float *q_norm, *k_norm;
    struct weight q, k, v, o;
    struct weight gate, up, down;                              /* dense */
    struct weight router, expert_gate, expert_up, expert_down; /* mixture; n_out 0 in a dense layer */
    struct kv_layer kv;
    uint32_t window;
    const float *rope; /* one of the two tables */
};

struct decoder {
    struct decoder_options o;
    struct model_config cfg;
    const struct arch *arch;
    const struct ops *ops;
    struct dev *dev;
    enum rope_style rope_style;
    uint64_t weight_bytes;
    struct device_choices choices;

    struct weight embed, head; /* head.packed is not ours when tied (head_is_embed) */
    bool head_is_embed;
    float *final_norm;
    float *final_gain; /* the same on the host */
    struct layer *layers;
    float *rope_global, *rope_local; /* [context][dims/2][2]; local NULL without sliding-window layers */
    struct kv_cache kv;

    /* Buffers of a step, on the device. */
    struct batch batch;
    uint32_t *batch_room, *batch_host;    /* the batch's arrays, see batch.c; and as they are written */
    const uint32_t *tables[1], *slots[1]; /* one kv group */
    uint32_t table_max;
    uint32_t n_rows, n_out; /* of the step, without padding */
    float *x;               /* [rows][H]: the residual stream */
    float *q;               /* [rows][Q*D] */
    float *scratch;         /* the widest any op asks for */
    float *logits;          /* [out_max][V] */
    uint32_t *best;         /* [out_max] */
    void *answers;          /* what was chosen, on a device that chooses: sample_got, then sample_top, of each row */
    void *answers_host;
    uint32_t *route_expert;
    float *route_weight;
    struct acts *normed;                                 /* [rows][H] */
    struct acts *attended;                               /* [rows][Q*D] */
    struct acts *hidden;                                 /* [rows or rows * top_k][F] */
    struct acts *top;                                    /* [out_max][H] */
    uint32_t attn_forms, ffn_forms, o_forms, down_forms; /* what readers of the norms and activations want */

    /* Matrices made of others on the host (scales.c): room and threads while weights are bound, and what the backend
     * reads in place, freed behind its weights. */
    struct team *made_team;
    unsigned char *made;
    size_t made_bytes;
    void **converted;
    uint32_t n_converted;

    /* Buffers that device memory came from, freed together. */
    void **owned;
    uint32_t n_owned, owned_cap;
    uint64_t done_bytes, total_bytes; /* progress */
};

/* rope.c: [context][dims/2][cos, sin]. local = the plain frequencies of sliding-window layers. */
void rope_fill(const struct model_rope *r, bool local, uint32_t context, uint32_t first, uint32_t n, float *table);

#define DECODER_ANSWER_BYTES (sizeof(struct sample_got) + SAMPLE_TOP_MAX * sizeof(struct sample_top))

/* batch.c. The bucket that a step runs as; fills: it may be filled up to a larger one. Then its arrays are written, as
 * that bucket's, and d->batch names them. */
struct graph_key decoder_bucket(const struct step *s, const struct decoder_options *o, bool fills);
size_t decoder_batch_words(const struct decoder_options *o, uint32_t table_max);
void decoder_batch_write(struct decoder *d, const struct step *s, struct graph_key key);
void decoder_batch_name(struct decoder *d, struct graph_key key); /* d->batch alone: nothing is written */

/* forward.c: steps that the device wants to look at before it chooses. */
enum err decoder_rehearse(struct decoder *d, struct error *e) MUST_CHECK;

/* scales.c: matrices of a checkpoint with scales beside them. The scales of one matrix, or of n alike. */
struct scales {
    float *of;       /* [n][n_out][groups], to be freed; NULL when looked for alone */
    uint32_t groups; /* of a row, each with its scale; 0 = there are no scales */
    bool look;       /* no byte is read */
};
/* A tensor of a type that can be a weight, or INT8 [n_out][n_in]: I8, or U8 of numbers plus 128, which the file has as
 * X_packed, four in an I32. */
enum err decoder_find_weight(struct decoder *d, const struct weight_source *src, const char *name, uint32_t n_mats,
    uint32_t n_out, uint32_t n_in, struct tensor_view *v, struct error *e) MUST_CHECK;
/* The scales of the i-th of n matrices, as finite numbers. */
enum err decoder_scales_find(struct decoder *d, const struct weight_source *src, const char *name,
    const struct tensor_view *v, uint32_t i, uint32_t n, struct scales *s, struct error *e) MUST_CHECK;
enum err decoder_scales_bind(struct decoder *d, const struct tensor_view *v, uint32_t n_views, const struct scales *s,
    struct weight *w, struct error *e) MUST_CHECK;
void decoder_scales_end(struct decoder *d); /* binding is over */

/* bind.c */
enum err decoder_look(struct decoder *d, const struct weight_source *src, struct error *e) MUST_CHECK; /* no bytes */
enum err decoder_bind(struct decoder *d, const struct weight_source *src, struct error *e) MUST_CHECK;
void decoder_drop_weights(struct decoder *d);
enum err decoder_alloc(struct decoder *d, uint64_t count, size_t bytes, void **out, struct error *e) MUST_CHECK;

#endif
