/* How fast this machine is at what a model does most, measured in less than half a second with the very operations of
 * the backend.
 *
 * Threads: one, which drives a device for the time of the measurement. */
#ifndef CLI_MEASURE_H
#define CLI_MEASURE_H

#include "model/fit.h"

struct measured {
    double read_bytes_s;   /* plain reading of memory by all threads: the limit for anything that decodes; 0 of a
                              device with memory of its own, which the threads do not read */
    double vector_bytes_s; /* weights through a product with one row: decoding one sequence */
    double matrix_flops;   /* a product with many rows: prefill; a multiplication and an addition are two */
    double seconds;        /* what measuring took */
};

/* n_in: a width that the model has. Weights of its dtype, random, as f says they are computed. */
enum err measure_machine(const struct ops *ops, const struct fit *f, uint32_t n_in, uint32_t threads,
    struct measured *out, struct error *e) MUST_CHECK;

#endif
