/* From options to a model that computes: the one place where run, score and bench load.
 *
 * The order is chosen so that whatever can be refused is refused before the work starts: name, header, architecture,
 * memory, device; only then are weights bound, with progress on a terminal. Tokenizer and template are made beside
 * that, and when they are refused the rest is not waited for.
 *
 * Threads: the main thread. */
#ifndef CLI_LOAD_H
#define CLI_LOAD_H

#include "cli/find.h"
#include "cli/fit.h"
#include "model/dummy.h"
#include "model/sequence.h"
#include "model/tokenizer.h"

#define LOAD_STOP_IDS_MAX (MODEL_EOS_MAX + 3)

struct load {
    char name[MODEL_NAME_BYTES_MAX]; /* for people */
    struct model_source *source;     /* NULL with a built-in dummy shape */
    struct model_config config;
    struct dummy *dummy; /* NULL unless --load-format dummy */
    struct fit fit;
    const struct ops *ops;
    uint32_t threads;

    struct tok *tok; /* NULL with a built-in dummy shape: then bytes are ids */
    struct tok_ctx *tok_ctx;
    uint32_t *byte_ids; /* of load_encode without a tokenizer */
    struct chat_set *chats;
    const struct chat_template *chat; /* the default one; NULL when the model has none */

    struct decoder *decoder;
    struct sequence *seq;
    uint32_t n_stop_ids; /* any of them ends an answer: the file's list, and the tokenizer's eos, eot and eom */
    uint32_t stop_ids[LOAD_STOP_IDS_MAX];
};

/* What a verb wants loaded. */
struct load_wants {
    enum find_mode find;
    bool chat;         /* the chat template */
    uint32_t out_rows; /* rows of a step that want logits */
};

/* A struct load is large: allocate it with mem_zalloc. After a failure load_close is still to be called. */
enum err load_open(struct load *l, const struct options *o, const struct load_wants *w, struct error *e) MUST_CHECK;
void load_close(struct load *l);

/* Only the first part: what the model is, without weights or tokenizer; for `quern plan`. */
enum err load_describe(struct load *l, const struct options *o, const struct load_wants *w, struct error *e) MUST_CHECK;

/* The ops to compute with, as --device says. ERR_UNSUPPORTED says why there is no such device. */
enum err load_pick_ops(const struct options *o, const struct ops **out, struct error *e) MUST_CHECK;

/* Text to ids. trusted: special tokens are recognised. Without a tokenizer every byte is an id. The ids are borrowed
 * until the next call. */
enum err load_encode(
    struct load *l, struct str text, bool trusted, bool add_special, struct tok_ids *out, struct error *e) MUST_CHECK;

/* A folder of the cache, into path (PATH_BYTES_MAX): "vocab" for checked copies of large vocabularies, "choices" for
 * what a device has measured. NULL: there is none, and nothing is kept. */
const char *load_cache_dir(const struct options *o, const char *name, char *path);

/* What the device has chosen by measurement, for the end of a sentence; empty where it has nothing to choose. */
#define LOAD_CHOICES_TEXT 96
const char *load_choices_text(const struct decoder *d, char out[LOAD_CHOICES_TEXT]);

#endif
