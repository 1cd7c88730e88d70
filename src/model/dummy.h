/* Dummy weights: real shapes, random numbers, so that speed and memory can be measured without a download. Seeded, so
 * two runs compute the same thing. Tensors are made when a decoder asks for them and live until dummy_free.
 *
 * Threads: one. */
#ifndef MODEL_DUMMY_H
#define MODEL_DUMMY_H

#include "model/model.h"

/* The hyper-parameters of a well-known model by its short name ("llama-3.1-8b"); ERR_NOT_FOUND lists the names. */
enum err dummy_config(const char *name, struct model_config *out, struct error *e) MUST_CHECK;
const char *const *dummy_names(size_t *n);

struct dummy;

/* dtype: of the matrices; where a row is no multiple of its blocks (576 in Q4_K) that matrix is Q8_0, and F16 where
 * even that does not fit. Norms are ones, biases zero, routers F32. */
enum err dummy_new(enum dtype dtype, uint64_t seed, struct dummy **out, struct error *e) MUST_CHECK;
void dummy_free(struct dummy *d); /* NULL is fine; after the decoder is closed */
struct weight_source dummy_source(struct dummy *d);

/* From now on a matrix no larger than one that was made before is a piece of it: enough where only time is measured on
 * a device that keeps its own copy of every matrix, and gigabytes need not be made first. */
void dummy_share(struct dummy *d);

#endif
