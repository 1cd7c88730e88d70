/* An errand: one function on a thread of its own, while whoever sent it does something else; for work of some
 * milliseconds at start, such as making a tokenizer while weights are bound. Where no thread can be had the errand is
 * done at once, by the caller, so starting one cannot fail.
 *
 * Threads: start and join on one thread; failed on any. The errand's thread blocks all signals. */
#ifndef BASE_ASIDE_H
#define BASE_ASIDE_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum err aside_fn(void *ctx, struct error *e);

struct aside {
    aside_fn *fn;
    void *ctx;
    pthread_t thread;
    bool has_thread;
    _Atomic bool failed; /* it came back with an error: whoever waits for it need not go on */
    enum err err;
    struct error error;
};

/* *a stays where it is until joined. What the caller wrote before is visible to fn. */
void aside_start(struct aside *a, aside_fn *fn, void *ctx);

/* Wait for it: what fn returned, with its sentence. What fn wrote is visible after. To be called exactly once. */
enum err aside_join(struct aside *a, struct error *e) MUST_CHECK;

#endif
