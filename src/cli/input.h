/* Standard input as a whole. Threads: the main thread. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include "base/buf.h"

/* Read to the end, at most b->max bytes: ERR_LIMIT says how many may come. */
enum err input_read_all(struct buf *b, struct error *e) MUST_CHECK;

#endif
