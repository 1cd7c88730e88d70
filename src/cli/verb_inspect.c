/* quern inspect [MODEL]: what a model file holds and whether quern can run it. Reads headers, never weights. */
#include "cli/cli.h"

#include "base/limits.h"
#include "base/mem.h"
#include "cli/inspect_int.h"
#include "hub/hub.h"

#include <string.h>
#include <unistd.h>

/* A path wins whenever something is there: format/ then says what is wrong with a FIFO or a device. */
static enum err find_model(const struct options *o, char *path, struct error *e)
{
    struct hub *hub;
    const char *model = o->n_args > 0 ? o->args[0] : NULL;
    if (model != NULL && strlen(model) < PATH_BYTES_MAX && access(model, F_OK) == 0) {
        memcpy(path, model, strlen(model) + 1);
        return OK;
    }
    struct hub_options ho;
    hub_options_init(&ho);
    ho.cache_dir = o->cache_dir;
    ho.offline = true; /* inspecting never fetches */
    TRY(hub_open(&hub, &ho, e));
    const enum err err = hub_resolve(hub, model, path, e);
    hub_close(hub);
    return err;
}

enum err verb_inspect(const struct options *o, struct out *out, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct model_source *source = NULL;
    TRY(find_model(o, path, e));
    TRY(model_source_open(path, &source, e));
    struct inspect *x = mem_alloc(sizeof *x);
    enum err err = x == NULL ? FAIL(e, ERR_NOMEM, "no memory to inspect %s", path) : OK;
    if (err == OK)
        err = inspect_gather(x, source, o, e);
    if (err == OK && o->json)
        inspect_print_json(out, x, o->tensors);
    else if (err == OK)
        inspect_print_text(out, x, o->tensors);
    mem_free(x);
    model_source_close(source);
    return err;
}
