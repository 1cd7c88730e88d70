/* quern rm MODEL...: remove models from the cache. Stops at the first that cannot be removed. */
#include "cli/cli.h"

#include "hub/hub.h"

enum err verb_rm(const struct options *o, struct out *out, struct error *e)
{
    struct hub *hub;
    struct hub_options ho;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = true;
    TRY(hub_open(&hub, &ho, e));
    enum err err = OK;
    for (size_t i = 0; err == OK && i < o->n_args; i++) {
        uint64_t bytes = 0;
        err = hub_remove(hub, o->args[i], &bytes, e);
        if (err != OK)
            break;
        out_text(out, "removed ");
        out_safe(out, str_of(o->args[i]));
        out_printf(out, " (%.1f MB)\n", (double)bytes / 1e6);
    }
    hub_close(hub);
    return err;
}
