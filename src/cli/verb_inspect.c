/* quern inspect [MODEL]: what a model file holds and whether quern can run it. Reads headers, never weights. */
#include "cli/cli.h"

#include "base/limits.h"
#include "base/mem.h"
#include "cli/find.h"
#include "cli/inspect_int.h"

enum err verb_inspect(const struct options *o, struct out *out, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct model_source *source = NULL;
    TRY(find_model(o, FIND_LOCAL, path, e)); /* inspecting never fetches */
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
