/* The options of a server's engine, as engine/serving.h wants them.
 *
 * Threads: the main thread. */
#ifndef CLI_SERVE_ARGS_H
#define CLI_SERVE_ARGS_H

#include "cli/options.h"
#include "engine/serving.h"

/* path: of the model, or the built-in shape's name with --load-format dummy; borrowed, as is copies_dir. said (256
 * bytes): what --tune has set, or empty. */
/* The model of --speculative draft:MODEL; NULL when there is none. */
const char *serve_args_draft(const struct options *o);

enum err serve_args(const struct options *o, const char *path, const char *copies_dir, struct serving_options *out,
    char *said, struct error *e) MUST_CHECK;

#endif
