/* quern pull [MODEL]: fetch a model into the cache; its path is the result, progress goes to standard error. Ctrl-C
 * stops at the next byte and leaves what came; a second Ctrl-C ends the process as usual. */
#include "cli/cli.h"

#include "base/log.h"
#include "hub/hub.h"

#include <signal.h>
#include <stdatomic.h>

static atomic_bool is_stopped; /* lock-free, so a signal handler may set it */

static void on_stop(int number)
{
    (void)number;
    atomic_store(&is_stopped, true);
}

enum err verb_pull(const struct options *o, struct out *out, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct hub *hub;
    struct hub_options ho;
    const struct sigaction stop = {.sa_handler = on_stop, .sa_flags = (int)SA_RESETHAND};
    struct sigaction int_before, term_before;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = o->offline;
    ho.cancel = &is_stopped;
    ho.progress = o->log_level >= LOG_INFO && o->log_format == LOG_TEXT ? stderr : NULL;
    TRY(hub_open(&hub, &ho, e));
    sigaction(SIGINT, &stop, &int_before);
    sigaction(SIGTERM, &stop, &term_before);
    const enum err err = hub_pull(hub, o->n_args > 0 ? o->args[0] : NULL, path, e);
    sigaction(SIGINT, &int_before, NULL);
    sigaction(SIGTERM, &term_before, NULL);
    hub_close(hub);
    if (err == OK)
        out_printf(out, "%s\n", path);
    return err;
}
