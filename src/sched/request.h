/* One request, as it travels between the thread that wants text and the engine thread: what is asked, and room for
 * everything that will be answered, in one allocation made by the asker. The engine thread therefore never allocates.
 *
 * Ownership. The asker makes it (request_new), hands it to the engine, and from then on only reads what is marked as
 * published; it gets it back with the final notice, and frees it. In between it may set `cancel` and `n_read`.
 *
 * Answers are not messages. Chosen ids are written into the choice's own array and then published by the count n_out
 * (release); a reader loads the count (acquire) and reads ids below it. So a slow reader costs no queue, nothing is
 * copied twice, and "the outbox is full" is simply n_out - n_read reaching the window: the request is paused then, and
 * nobody else.
 *
 * Every choice ends exactly once: `end` is set (release) after its last id. A request is done when all choices are.
 *
 * Threads: as said at each field. */
#ifndef SCHED_REQUEST_H
#define SCHED_REQUEST_H

#include "base/base.h"
#include "grammar/grammar.h"
#include "sample/sample.h"
#include "sched/ngram.h"
#include "text/detok.h"

#include <stdatomic.h>

enum req_end {
    END_NONE = 0,
    END_EOS,       /* one of the stop ids; it is the last id of the output */
    END_STOP,      /* a stop string; stop_index says which */
    END_LENGTH,    /* max_tokens, or the context is full */
    END_CANCELLED, /* the asker left */
    END_DEADLINE,  /* its time was over */
    END_EXPIRED,   /* it was paused for too long by a reader that does not read */
    END_BUSY,      /* it waited in the queue for longer than allowed */
    END_ABORTED,   /* the engine is stopping */
    END_FAILED,    /* the device or an invariant failed; or this row's logits were not numbers */
    END_COUNT
};
const char *req_end_name(enum req_end end); /* "stop", "length", "abort"...: vLLM's finished_reason */

/* Who guesses the tokens to come, so that several are verified in one step (docs/speculative.md). The answer is the
 * same with any of them. */
enum spec_method {
    SPEC_NONE,
    SPEC_NGRAM, /* what followed the last tokens where they stood before, in the prompt or the output */
    SPEC_DRAFT, /* a smaller model, or whatever proposer the engine was given */
    SPEC_METHODS
};

/* Requests for a vector instead of text: the hidden states of the prompt in one. They end with their first token. */
enum req_pool {
    POOL_NONE,
    POOL_MEAN, /* of all tokens; bypasses the prefix lookup */
    POOL_LAST, /* of the last token */
};

/* What is asked. Arrays are copied by request_new. */
struct request_options {
    const uint32_t *prompt;
    uint32_t n_prompt;           /* at least 1 */
    uint32_t max_tokens;         /* of each choice; at least 1 */
    uint32_t min_tokens;         /* stop ids are banned before, and stop strings that end before pass */
    uint32_t n_choices;          /* at least 1 */
    struct sample_params sample; /* choice is set per choice: 0 .. n_choices-1 */
    const uint32_t *stop_ids;    /* the model's end tokens (unless ignore_eos) and the request's own */
    uint32_t n_stop_ids;
    const uint32_t *banned_ids; /* never chosen: the model's end tokens under ignore_eos */
    uint32_t n_banned_ids;
    struct stop_set *stops;         /* ownership moves to the request; NULL = none */
    const struct vocab_view *vocab; /* for stops; may be NULL when there are none */
    struct tok_lead lead;
    bool show_special, mark_special; /* as detok.h has them: stops are found in the same text */
    const uint64_t *allowed;         /* bit per id (allowed_token_ids); vocab bits; NULL = all */
    uint32_t vocab_size;
    struct grammar *grammar; /* what the answers may say; the reference moves to the request; NULL = anything */
    uint32_t n_top;          /* alternatives per token */
    bool want_logprobs;
    enum req_pool pool;
    uint32_t n_hidden;         /* of the model, with a pool */
    bool want_prompt_logprobs; /* also of the prompt's tokens; bypasses the prefix lookup */
    uint32_t tenant;           /* index into the scheduler's tenants; 0 = the common one */
    int32_t priority;          /* lower first, as vLLM has it */
    uint32_t adapter;
    uint64_t salt;           /* of the prefix cache */
    uint64_t ttft_target_ns; /* for order `deadline`; 0 = none */
    uint64_t deadline_ns;    /* from arrival to the end; 0 = none */
    uint32_t read_window;    /* tokens that may be unread before the request pauses; 0 = never pauses */
    uint32_t n_resume; /* ids at the end of prompt that are output of an earlier life of this request: random draws
                          count from there (contract: continue after these output ids) */
    enum spec_method spec;
    uint32_t spec_k;                 /* guesses at a time, 1 to SPEC_K_MAX; with SPEC_NONE without meaning */
    uint32_t ngram_min, ngram_max;   /* tokens that must agree, and that are looked at; of SPEC_NGRAM */
    uint32_t think_budget;           /* tokens between think_begin and think_end in the whole answer; when they are
                                        spent think_end is forced; 0 = any number. Not together with guesses */
    uint32_t think_begin, think_end; /* ids */
    struct str think_head; /* text behind the token think_mark that must stand directly before think_begin; n 0 = none.
                              Borrowed, as long as vocab is, which it needs */
    uint32_t think_mark;
    bool is_thinking; /* the prompt has begun it */
};
#define THINK_OFF UINT32_MAX

struct prompt_logprob {
    float logprob;
    uint32_t rank; /* 1 = most likely */
};

/* One of the n answers. */
struct choice {
    _Atomic uint32_t n_out;        /* published ids; engine writes */
    _Atomic uint64_t t_token;      /* when the step landed that made the newest of them; written before n_out */
    _Atomic int end;               /* enum req_end; engine writes, once, last */
    uint32_t stop_index;           /* for END_STOP; valid once end is set */
    uint64_t text_bytes;           /* bytes of text before the stop; valid once end is set */
    uint32_t *ids;                 /* [max_tokens] */
    float *logprobs;               /* [max_tokens] or NULL */
    struct token_logprob *top;     /* [max_tokens][n_top] or NULL */
    struct detok stop_state;       /* engine only */
    struct sample_history history; /* engine only; cap 0 when no penalty is set */
    struct sample_params sample;
    struct ngram_index ngram;  /* engine only; cap 0 unless SPEC_NGRAM */
    uint32_t think_left;       /* engine only: tokens before think_end is forced; THINK_OFF = not thinking */
    uint32_t think_rest;       /* engine only: of the budget, when it thinks again */
    struct grammar_walk *walk; /* engine only: where the answer stands in the grammar; NULL without one */
    const uint32_t *script;    /* a replay's: what the recorded grammar forced, UINT32_MAX = it broke; NULL otherwise */
    uint32_t n_script;
};

struct request {
    struct request_options o; /* arrays point into this allocation */
    _Atomic bool cancel;      /* asker sets; see engine_cancel */
    _Atomic uint32_t n_read;  /* asker: the least number of ids read over its unfinished choices */
    _Atomic bool noticed;     /* a notice is on its way; see engine.h */
    void *client;             /* struct engine_client of the asker */
    void *user;               /* the asker's own */

    /* Times in ns of the engine's clock; written by the engine before the final notice (first_token before the first
     * publication). */
    uint64_t t_arrival, t_admitted, t_first_token, t_end;
    uint32_t n_cached; /* prompt tokens found in the prefix cache at first admission */
    uint32_t n_preempted;
    uint64_t spec_drafted, spec_accepted;   /* guesses verified, and those that were right; after the end */
    struct prompt_logprob *prompt_logprobs; /* [n_prompt]; entry 0 means nothing; valid when a choice has n_out > 0 */
    struct token_logprob *prompt_top;       /* [n_prompt][n_top] or NULL */
    uint32_t n_prompt_logprobs;             /* how many are filled */
    double *pooled;    /* [n_hidden]: the sum over n_pooled tokens in their order, or the last one's; after the end */
    uint32_t n_pooled; /* tokens of the prompt that are in it; all of them when it has ended well */

    uint32_t n_choices;
    struct choice *choices; /* [n_choices] */
    struct error error;     /* for END_FAILED */
};

/* Tokens that a grammar forces are known without asking the model. They are appended several at a time, unless
 * log-probabilities are wanted: those only the model knows. Which tokens they are does not depend on that. */
static inline bool request_jumps(const struct request_options *o)
{
    return o->grammar != NULL && !o->want_logprobs && o->n_top == 0;
}

/* ERR_INVALID, ERR_LIMIT name the field. The sampling parameters must have been checked. On an error stops and grammar
 * are still the asker's. */
enum err request_new(const struct request_options *o, struct request **out, struct error *e) MUST_CHECK;
void request_free(struct request *r); /* NULL is fine */

/* All choices have ended. */
bool request_is_done(const struct request *r);

#endif
