/* An errand on a thread of its own; see aside.h. */
#include "base/aside.h"

#include "base/fault.h"

#include <signal.h>

static void *run(void *ctx)
{
    struct aside *a = ctx;
    a->err = a->fn(a->ctx, &a->error);
    if (a->err != OK)
        atomic_store(&a->failed, true);
    return NULL;
}

void aside_start(struct aside *a, aside_fn *fn, void *ctx)
{
    *a = (struct aside){.fn = fn, .ctx = ctx};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's */
    a->has_thread = !fault_hit(FAULT_SYS) && pthread_create(&a->thread, NULL, run, a) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!a->has_thread)
        run(a);
}

enum err aside_join(struct aside *a, struct error *e)
{
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    a->has_thread = false;
    if (a->err != OK && e != NULL && e->code == OK)
        *e = a->error;
    return a->err;
}
