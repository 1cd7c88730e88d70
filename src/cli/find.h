/* From the word MODEL to a path on this machine, for every verb that takes one.
 *
 * Threads: the main thread; while a model is fetched, SIGINT and SIGTERM stop the fetching. */
#ifndef CLI_FIND_H
#define CLI_FIND_H

#include "cli/options.h"

/* What to do when the model is not on this machine. */
enum find_mode {
    FIND_LOCAL,    /* an error that says how to get it */
    FIND_FETCH,    /* fetch it, unless --offline */
    FIND_FALLBACK, /* the same; and when the default model cannot be had, take the tiny one and say so */
};

/* o->args[0] or the default model. An existing path wins; then the cache; then the tiny models that come with quern:
 * "tiny" (that is tiny-4m), "tiny-1m", "tiny-moe". path has PATH_BYTES_MAX bytes. */
enum err find_model(const struct options *o, enum find_mode mode, char *path, struct error *e) MUST_CHECK;

/* hub_pull with progress on standard error and Ctrl-C. model may be NULL for the default one. */
enum err find_pull(const struct options *o, const char *model, char *path, struct error *e) MUST_CHECK;

#endif
