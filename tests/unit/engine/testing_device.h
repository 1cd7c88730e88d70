/* The CPU as if it were an asynchronous device with memory of its own: nothing is lent to the host, tokens are chosen
 * by asks (by sample/ itself, so that answers can be compared bit by bit), what was chosen is read later, steps are
 * filled up to buckets. So everything that a runner one step ahead does is tested without a card. */
#ifndef TESTING_DEVICE_H
#define TESTING_DEVICE_H

#include "testing.h"

#include "tensor/ops.h"

/* One at a time in a process. Where two devices are opened with it, a step of one may not begin while the other's has
 * not been waited for: on a card both could want all of it. */
const struct ops *device_ops(void);
bool device_flies(void); /* a step has not been waited for */

/* From the n-th wait on it says that it has failed, for ever, as a card does. */
void device_fail_after(uint64_t n_waits);

#endif
