/* Verifying a guess without changing what is said. Two rules, for two kinds of guesses; both give the distribution p
 * that steps 1 to 9 of sample.h leave, exactly. Why, with the mathematics: docs/speculative.md.
 *
 * A guess that is a function of the text and of the draw that the token itself will use (an n-gram; a draft model that
 * chooses by the request's own parameters and draw): the token is chosen as if nobody had guessed, and the guess is
 * kept when it is that token. The answer is the same byte by byte, with any guesses, under any load. This is what
 * runners do (engine/choose.h); sample_token is all that it needs.
 *
 * A guess x that was itself drawn from a distribution q: kept with probability min(1, p(x) / q(x)); refused, the token
 * comes from what q left uncovered, max(p - q, 0) made to sum to one. sample_verify is that rule. More guesses are kept
 * (the sum of min(p, q) over all tokens, and no rule can keep more), but which token is said depends on the guess,
 * hence on how many were wanted and on load.
 *
 * Draws: the guess at an index uses RNG_SAMPLE, keeping it RNG_ACCEPT, what replaces it RNG_RESIDUAL.
 *
 * Threads: one thread per sampler. */
#ifndef SAMPLE_VERIFY_H
#define SAMPLE_VERIFY_H

#include "base/rng.h"
#include "sample/sample.h"

/* What steps 1 to 9 leave of a row: probs[vocab], zero where nothing is left. ERR_INVALID when nothing is allowed. */
enum err sample_distribution(struct sampler *s, const struct sample_row *row, float *probs, struct error *e) MUST_CHECK;

/* A token of probs[n] by a number from [0, 1): the first whose running sum is above u times the total. */
uint32_t sample_draw(const float *probs, uint32_t n, double u);

/* Keep the guess, drawn from q, or replace it; *kept says which. key.purpose is set here. */
uint32_t sample_verify(const float *p, const float *q, uint32_t n, uint32_t guess, struct rng_key key, bool *kept);

#endif
