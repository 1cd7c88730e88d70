/* Proposers guess the tokens that sequences will choose next, so that one step of the model can verify several of them.
 * A wrong guess costs its row and nothing else: verification chooses every token as it would be chosen without guesses
 * (runner.h), so no proposer can change an answer.
 *
 *   ngram   what followed the last tokens where they stood before in prompt or output (sched/ngram.h). No state of its
 *           own: the index lies in the request.
 *   draft   a smaller model with the same vocabulary (draft.c): its own decoder, KV pool and tables. It catches up on
 *           tokens that it has not seen, then runs as many short steps as guesses are wanted, all sequences in each.
 *           It chooses by the request's own parameters and draws, so that at any temperature it guesses what the model
 *           would choose if their logits were equal.
 *
 * When: between TAKE and PLAN, at depth 0: no step of the model is in flight, and none of the proposer's when it
 * returns. sched_asks says who wants how many; what comes back goes to the scheduler through sched_guess, cut at the
 * first id that is none of the vocabulary.
 *
 * Threads: the engine thread. Nothing allocates after it was opened. */
#ifndef ENGINE_PROPOSE_H
#define ENGINE_PROPOSE_H

#include "engine/runner.h"
#include "sched/spec.h"

struct proposer;

struct guesses {
    uint32_t n;
    enum spec_trust trust;
    uint32_t ids[SPEC_K_MAX];
};

struct proposer_ops {
    const char *name;
    /* out[i] for asks[i], at most asks[i].k ids; n 0 where there is nothing to say. An error is the device's: the
     * engine fails. */
    enum err (*propose)(struct proposer *p, const struct spec_ask *asks, uint32_t n, const struct slots *slots,
        struct guesses *out, struct error *e);
    enum err (*check)(const struct proposer *p, struct error *e); /* its own bookkeeping; may be NULL */
    void (*close)(struct proposer *p);
};

/* Every proposer starts with this. */
struct proposer {
    const struct proposer_ops *ops;
};

struct proposer *ngram_proposer(void); /* never closed */

struct decoder;
struct draft_options {
    struct decoder *decoder; /* taken over */
    uint32_t vocab;          /* of the model it drafts for; not above the draft's own */
    uint32_t seqs_max, rows_max, context_max, block_tokens, n_blocks, table_max;
    uint32_t slots_max; /* of the scheduler */
};
enum err draft_proposer_open(const struct draft_options *o, struct proposer **out, struct error *e) MUST_CHECK;

void proposer_close(struct proposer *p); /* NULL is fine */

#endif
