/* The reference of ops->sample, in C: what a->out and a->top should be. */
#ifndef TESTING_REFERENCE_H
#define TESTING_REFERENCE_H

#include "tensor/ops.h"

#ifdef __cplusplus
extern "C"
#endif
    void
    testing_reference(const struct sample_args *a);

#endif
