/* quern pull [MODEL]: fetch a model into the cache; its path is the result, progress goes to standard error. Ctrl-C
 * stops at the next byte and leaves what came; a second Ctrl-C ends the process as usual. */
#include "cli/cli.h"
#include "cli/find.h"

enum err verb_pull(const struct options *o, struct out *out, struct error *e)
{
    char path[PATH_BYTES_MAX];
    TRY(find_pull(o, o->n_args > 0 ? o->args[0] : NULL, path, e));
    out_printf(out, "%s\n", path);
    return OK;
}
