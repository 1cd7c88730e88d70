/* A device that is not there, for measuring the loop beside one: asynchronous like a card, every step takes the same
 * time, and tokens are drawn evenly from what their masks allow. It computes nothing and has one thread less than
 * none: whoever waits for it sleeps.
 *
 * Threads: as ops.h says. One at a time in a process. */
#ifndef BENCH_MADE_UP_DEVICE_H
#define BENCH_MADE_UP_DEVICE_H

#include "tensor/ops.h"

const struct ops *made_up_ops(uint64_t step_ns);

#endif
