/* Where a sequence's last tokens have been seen before in it: prompt lookup. An index over the sequence's own tokens,
 * which grows with them: every position is entered once, under the hash of the last `min` tokens that end there, in
 * chains from the newest to the oldest. A search walks one chain, over at most NGRAM_CHAIN_MAX positions that agree,
 * and takes the one that agrees with the sequence's end over the most tokens (at most `max`), the newest among equals.
 * So a step costs the same at any length, and the guess is a function of the tokens alone.
 *
 * The arrays are the caller's (they lie in the request): ngram_cap(n) heads and n links for n tokens.
 *
 * Threads: belongs to whoever holds it. */
#ifndef SCHED_NGRAM_H
#define SCHED_NGRAM_H

#include "base/base.h"

struct ngram_index {
    uint32_t *head; /* [cap] position + 1; 0 = none */
    uint32_t *prev; /* [n_max] position + 1 of the next older one of the chain */
    uint32_t cap, n_max;
    uint32_t n; /* positions entered: 0 .. n-1 */
    uint32_t min, max;
};

struct ngram_text { /* the tokens: prompt, then output */
    const uint32_t *prompt, *output;
    uint32_t n_prompt, n_output;
};

uint32_t ngram_cap(uint32_t n_tokens); /* a power of two */

/* Enter the positions up to the last but one: the last is what one searches for. */
void ngram_enter(struct ngram_index *x, const struct ngram_text *t);

/* Enter, search, and write the tokens that came next then, up to k; where they run into the end of the sequence, they
 * go on with themselves. Returns how many; *matched is over how many tokens it agreed. */
uint32_t ngram_guess(struct ngram_index *x, const struct ngram_text *t, uint32_t k, uint32_t *ids, uint32_t *matched);

#endif
