/* Measuring a model: steps over a decoder with made-up tokens, timed. What a step costs does not depend on which
 * tokens it has, so none are sampled and no text is needed.
 *
 * Threads: one, which drives the decoder. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "model/model.h"

#define BENCH_ROWS  512  /* of a step */
#define BENCH_SEQS  16   /* of a batched step */
#define BENCH_DEPTH 4096 /* positions before those of the deep run */

struct bench;

/* The decoder must have been opened with bench_options. */
void bench_options(struct decoder_options *o, uint32_t context);
enum err bench_new(struct decoder *d, const struct decoder_options *o, struct bench **out, struct error *e) MUST_CHECK;
void bench_free(struct bench *b); /* NULL is fine */

/* Seconds for n tokens of one sequence from position 0, in steps of BENCH_ROWS, with the logits of the last. */
enum err bench_prefill(struct bench *b, uint32_t n, double *seconds, struct error *e) MUST_CHECK;

/* Seconds for n steps of n_seqs sequences with one token each, from position `from`, which must have been filled: by
 * this call when fill is set (not counted in the time). */
enum err bench_decode(struct bench *b, uint32_t n_seqs, uint32_t from, uint32_t n, bool fill, double *seconds,
    struct error *e) MUST_CHECK;

#endif
