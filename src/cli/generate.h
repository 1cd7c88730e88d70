/* One answer: prompt ids in, text out as it comes. Knows nothing of conversations and terminals.
 *
 * An answer ends at one of the model's end tokens (which is not part of the text), at a stop string, at the wanted
 * number of tokens, when the context is full, or when somebody asks.
 *
 * Threads: the main thread; the stop flag may be set by a signal handler. */
#ifndef CLI_GENERATE_H
#define CLI_GENERATE_H

#include "cli/load.h"
#include "grammar/grammar.h"
#include "sample/sample.h"
#include "text/detok.h"

#include <stdatomic.h>

enum finish { FINISH_EOS, FINISH_STOP, FINISH_LENGTH, FINISH_CONTEXT, FINISH_ASKED };

/* Where the answer goes; returning false from text ends it (FINISH_ASKED). */
struct generate_sink {
    void *ctx;
    bool (*text)(void *ctx, struct str piece);                                    /* whole characters */
    enum err (*token)(void *ctx, const struct sample_result *r, struct error *e); /* each id of the answer; or NULL */
};

struct generate_params {
    struct sample_params sample;
    uint64_t max_tokens; /* 0 = until the context is full */
    bool ignore_eos;
    bool want_logprobs;
    uint32_t n_top; /* alternatives per token, at most LOGPROBS_MAX */
    const struct stop_set *stops;
    const atomic_bool *cancel; /* ends the answer when true; may be NULL */
};

struct generate_result {
    enum finish finish;
    uint32_t stop_index; /* which stop string, for FINISH_STOP */
    uint32_t n_prompt, n_reused, n_output;
    uint64_t prompt_ns, output_ns; /* until the first token was chosen; from then on */
};

/* What stays from answer to answer. */
struct generate {
    struct load *load;
    struct sampler *sampler;
    struct sample_history history;
    struct buf piece;
    struct grammar_vocab *vocab; /* NULL, as the next ones, when answers may be anything */
    struct tok_cutter *cutter;
    struct grammar *grammar;
    struct grammar_walk *walk;
    uint64_t *mask; /* a bit per id */
};

enum err generate_init(struct generate *g, struct load *l, struct error *e) MUST_CHECK;
void generate_fini(struct generate *g);

/* Answers obey --json-schema or --grammar from now on, if the options have one. The same rules as a server's, so the
 * same tokens. */
enum err generate_obey(struct generate *g, const struct options *o, struct error *e) MUST_CHECK;

/* Defaults: what the options say, else what the model suggests (generation_config.json), else temperature 0.7 and
 * top-p 0.9. The seed is random when none is given. */
struct generate_params generate_defaults(const struct options *o, const struct model_config *c);

/* ids must leave room for at least one token: ERR_LIMIT otherwise, naming both numbers. */
enum err generate_answer(struct generate *g, const struct generate_params *p, struct tok_ids ids,
    const struct generate_sink *sink, struct generate_result *r, struct error *e) MUST_CHECK;

const char *finish_name(enum finish f); /* "stop" or "length" as OpenAI has it, "cancelled" */

#endif
