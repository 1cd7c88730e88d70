/* Serving: from plain options to an engine that answers. Opens, in an order where whatever can be refused is refused
 * before weights are bound: the model's files, its configuration, tokenizer and chat templates, the device; sizes the
 * KV pool; binds the weights; starts the runner and the engine. `quern serve` and the embedding API (include/quern.h)
 * use it; it knows neither HTTP nor the command line.
 *
 * After serving_open everything but the engine is immutable and may be read by any thread: tok, chats, config,
 * stop_ids. Each thread that makes text needs its own tok_ctx (tok_ctx_new) and its own engine_client.
 *
 * Threads: open, drain and close one thread; two servings in one process do not know each other. */
#ifndef ENGINE_SERVING_H
#define ENGINE_SERVING_H

#include "engine/engine.h"
#include "model/dummy.h"
#include "model/fit.h"
#include "model/tokenizer.h"

#define SERVING_STOP_IDS_MAX (MODEL_EOS_MAX + 3)

struct serving_options {
    const char *path; /* of a .gguf file or a folder; or, with dummy, a built-in shape's name */
    const char *name; /* what the model is called; NULL = from the path */
    bool dummy;       /* random weights: of a built-in shape (bytes are ids then), or of path's shape */
    enum dtype dummy_dtype;
    uint64_t dummy_seed;
    const char *copies_dir;  /* for checked copies of vocabularies; NULL = none */
    const char *choices_dir; /* see dev_options; NULL = none */

    const struct ops *ops;          /* NULL = the fastest CPU row */
    const struct ops *ops_fallback; /* taken when ops cannot run the model; NULL = that is an error */
    uint32_t threads;               /* 0 = one per core */
    bool deterministic;             /* see dev_options */
    bool fp8;                       /* see decoder_options; the draft stays as it is stored */

    uint32_t max_model_len; /* 0 = the model's, at most SERVING_CONTEXT_DEFAULT, and what fits */
    enum dtype kv_dtype; /* or FIT_KV_AUTO */
    uint32_t n_blocks;     /* of the KV pool; 0 = from the memory that is there */
    double memory_share;   /* of the memory left beside the weights that the KV pool may take; 0 = the default */
    uint64_t memory_bytes; /* to count on; 0 = what this machine has free */
    uint64_t swap_bytes;   /* of host memory for swapped sequences and evicted prefixes; 0 = none */

    struct sched_options sched;    /* block_tokens, max_num_seqs, max_batched_tokens and the policies; start from
                                      serving_sched_default. context_max, out_max and swap cost are set here */
    enum spec_method spec;         /* of requests that say nothing about it */
    uint32_t spec_k;               /* guesses at a time; 0 = SERVING_SPEC_K */
    uint32_t ngram_min, ngram_max; /* 0 = SERVING_NGRAM_MIN, SERVING_NGRAM_MAX */
    const char *draft_path;        /* of the model that guesses; NULL = there is none, and SPEC_DRAFT is refused */
    uint32_t requests_max;         /* inside the engine at once; 0 = the queue and the running ones */
    const char *record_path;
    struct log *log; /* as engine.h says */
    bool check_every_step;
    struct clock *clock; /* borrowed; NULL = the machine's own */

    const struct fake_runner_options *fake; /* no weights are bound and tokens come from the fake runner */
    uint32_t late;                          /* 1: through late_runner, for tests */

    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

struct serving {
    char name[MODEL_NAME_BYTES_MAX]; /* for people */
    struct model_source *source;     /* NULL with a built-in dummy shape */
    struct model_config config;
    struct dummy *dummy;
    struct fit fit;        /* memory and context: fit.context is what max_model_len became */
    const struct ops *ops; /* what it runs on; ops->name for people */
    uint32_t threads, n_blocks, n_host_blocks, block_tokens;
    uint64_t block_bytes, numerics;
    struct sched_options sched; /* as resolved */

    enum spec_method spec; /* as resolved */
    uint32_t spec_k, ngram_min, ngram_max;
    struct serving_draft *draft; /* NULL when no model guesses */

    struct tok *tok;                     /* NULL with a built-in dummy shape */
    struct tok_cutter *cutter;           /* of that, for grammar_vocab */
    struct chat_set *chats;              /* NULL or empty when the model has none */
    struct grammar_vocab *grammar_vocab; /* NULL with a built-in dummy shape */
    const struct chat_template *chat;    /* the default one; NULL when the model has none */
    uint32_t n_stop_ids;                 /* any of them ends an answer */
    uint32_t stop_ids[SERVING_STOP_IDS_MAX];

    struct clock own_clock, *clock;
    struct decoder *decoder; /* NULL with a fake runner */
    struct engine *engine;
    const _Atomic bool *stop; /* while it is opened: set when that is in vain */
    uint64_t load_ns;
};

/* Defaults for a server on this kind of device. */
struct sched_options serving_sched_default(const struct ops *ops);

/* A struct serving is large: allocate it with mem_zalloc. After a failure serving_close is still to be called. */
enum err serving_open(struct serving *s, const struct serving_options *o, struct error *e) MUST_CHECK;
void serving_close(struct serving *s); /* engine_free first of all: aborts what runs; clients must be closed */

/* Only what the model is, without device, weights and engine. */
enum err serving_describe(struct serving *s, const struct serving_options *o, struct error *e) MUST_CHECK;

/* serving_draft.c: the model that guesses, when there is one. Describe needs the model's tokenizer and sched; open
 * gives NULL when there is none. */
enum err serving_draft_describe(struct serving *s, const struct serving_options *o, struct error *e) MUST_CHECK;
enum err serving_draft_open(struct serving *s, const struct serving_options *o, const struct runner_limits *l,
    struct proposer **out, struct error *e) MUST_CHECK;
uint64_t serving_draft_fixed_bytes(const struct serving *s);
uint64_t serving_draft_block_bytes(const struct serving *s);
void serving_draft_close(struct serving *s);

/* What a request has, from what it asked for: method SPEC_METHODS and k 0 = the server's. ERR_UNSUPPORTED when no model
 * guesses here. */
enum err serving_spec(const struct serving *s, enum spec_method method, uint32_t k, struct request_options *out,
    struct error *e) MUST_CHECK;

/* --tune: the options that go together for one aim. ERR_NOT_FOUND names the aims. *said is one line with what was set,
 * for people; 256 bytes. */
enum err serving_tune(struct sched_options *s, const char *aim, char *said, struct error *e) MUST_CHECK;

#endif
