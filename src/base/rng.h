/* Random numbers as a pure function of a key: no state, no order, no thread. A draw depends on who asks for what
 * (seed, choice, position, purpose) and never on request ids, slots or steps, so the same body with the same seed gives
 * the same bytes whatever else the server does, and any backend can compute the same draw on its own.
 *
 * The generator is Philox4x32 with 10 rounds. The 64-bit seed is its key; the 128-bit counter is, from word 0 up:
 * index (low, high), choice, purpose. One key gives 128 bits:
 *   rng_u64   words 0 and 1                          rng_f32  the top 24 bits of word 0, times 2^-24
 *   rng_f64   the top 53 bits of rng_u64, times 2^-53
 *   rng_normal  all four words
 * Draws of one key overlap: take one draw per key.
 *
 * Threads: re-entrant. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include "base/base.h"

/* What a draw is for; part of the wire contract with every backend, so the values are fixed. */
enum rng_purpose {
    RNG_SAMPLE = 0,   /* choosing the next token */
    RNG_ACCEPT = 1,   /* accepting a speculated token */
    RNG_RESIDUAL = 2, /* choosing after a refused speculated token */
    RNG_DUMMY = 3,    /* values of dummy weights and test data; not part of any request */
};

struct rng_key {
    uint64_t seed;
    uint64_t index;  /* absolute output index; for RNG_DUMMY the element */
    uint32_t choice; /* which of the n choices; for RNG_DUMMY the tensor */
    enum rng_purpose purpose;
};

uint64_t rng_u64(struct rng_key k);
float rng_f32(struct rng_key k);  /* in [0, 1), a multiple of 2^-24 */
double rng_f64(struct rng_key k); /* in [0, 1), a multiple of 2^-53 */

/* Mean 0, variance 1, |value| < 8.6. Only additions, products, divisions and square roots, so the bits are the same on
 * every machine and with every libm. */
float rng_normal(struct rng_key k);

/* The bare generator, for other backends' tests. */
void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
