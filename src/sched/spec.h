/* Speculation as the scheduler sees it. A guess is a token that somebody thinks a sequence will choose next; up to
 * SPEC_K_MAX of them in a row. They ride behind the sequence's last known token as extra rows of a plan
 * (plan_seq.n_spec), and the step's tokens say how many were right: a row's logits are those of the model alone exactly
 * when all guesses before it were right.
 *
 *   asks     which sequences would use guesses now, and how many      sched_asks, before PLAN; changes nothing
 *   guess    here they are                                            sched_guess, an input like any other: recorded
 *   share    how many get rows                                        budget.c calls spec_share, after streams and
 * prompts commit   keep what was right, give back the KV of the rest, learn commit.c
 *
 * Guesses are not known tokens: they take no part in ranks, claims or publishing, nobody is preempted for them, and a
 * preempted sequence forgets them. Blocks for them are taken with the plan and given back with the commit.
 *
 * How many. A row more costs time, and saves a step when its guess holds. With the present step of T ns for N tokens
 * (every row of a stream or a prompt is one), g guesses of a sequence make it (N + E(g)) tokens in T(g) ns, where E is
 * expected from how often its guesses held so far and T comes from the cost model. The g with the most tokens per ns is
 * taken, often 0: where rows cost what they always cost (a full batch, a long prompt beside), no guess pays for itself.
 * So nothing about load is written down here, and a loaded server is not made slower. Guesses that get no rows still
 * teach: the next token says whether the first one would have held.
 *
 * A step with guesses is planned after the one before was committed (depth 0). */
#ifndef SCHED_SPEC_H
#define SCHED_SPEC_H

#include "base/limits.h"
#include "sched/request.h"

struct sched;

/* How sure a proposer is; chances are kept apart. */
enum spec_trust { SPEC_UNSURE, SPEC_SURE, SPEC_TRUSTS };

struct spec_ask {
    uint32_t slot;
    uint32_t k;      /* at most so many guesses */
    uint64_t ticket; /* of the sequence: never used again */
    struct request *request;
    struct choice *choice;
    uint32_t i_choice, n_out; /* known output */
};

/* Is there a sequence that may ever use guesses? */
bool sched_speculates(const struct sched *s);

/* Sequences that would use guesses by this method, in rank order; at most cap. guess_ns: what one more guess for one
 * sequence costs its proposer. Only while no step flies. */
uint32_t sched_asks(
    const struct sched *s, enum spec_method method, double guess_ns, struct spec_ask *out, uint32_t cap);

/* Guesses for a sequence, for the next plan. False: it is not in a state to use them; nothing changed. */
bool sched_guess(struct sched *s, uint32_t slot, const uint32_t *ids, uint32_t n, enum spec_trust trust);

struct spec_stats {
    uint64_t drafts;                /* times that guesses of a sequence were verified */
    uint64_t tokens, accepted;      /* guesses verified, and kept */
    uint64_t per_pos[SPEC_K_MAX];   /* kept, by their place */
    uint64_t tried_pos[SPEC_K_MAX]; /* verified, by their place */
    uint64_t offered;               /* guesses that came; those that got no rows are among them */
};

#endif
