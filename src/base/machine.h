/* The machine quern runs on, as far as sizing asks. Threads: any. */
#ifndef BASE_MACHINE_H
#define BASE_MACHINE_H

#include "base/base.h"

/* Bytes of memory this process may use: what the machine has, or the limit of its control group when that is less.
 * 0 when the system does not say. */
uint64_t machine_memory_bytes(void);

/* Of those, what is free now or can be freed at once (the page cache counts as free). 0 when the system does not say.
 */
uint64_t machine_memory_free_bytes(void);

/* "1.50 GiB", for people. Returns text. */
const char *bytes_show(uint64_t bytes, char text[24]);

#endif
