/* quern help [VERB], quern version, quern completion SHELL: what the program says about itself. */
#include "cli/cli.h"

#include <string.h>

enum err verb_help_check(const struct options *o, struct error *e)
{
    if (o->n_args > 0 && verb_find(str_of(o->args[0])) == NULL)
        return verb_unknown(str_of(o->args[0]), e);
    return OK;
}

enum err verb_help(const struct options *o, struct out *out, struct error *e UNUSED)
{
    if (o->man)
        help_man(out);
    else if (o->n_args == 0)
        help_global(out, help_width());
    else
        help_verb(out, verb_find(str_of(o->args[0])), help_width());
    return OK;
}

enum err verb_version(const struct options *o, struct out *out, struct error *e UNUSED)
{
    if (o->json)
        out_text(out, "{\"version\":\"" QUERN_VERSION "\"}\n");
    else
        out_text(out, "quern " QUERN_VERSION "\n");
    return OK;
}

enum err verb_completion_check(const struct options *o, struct error *e)
{
    char shown[64];
    if (strcmp(o->args[0], "bash") == 0 || strcmp(o->args[0], "zsh") == 0)
        return OK;
    return FAIL(e, ERR_INVALID, "'%s' is neither bash nor zsh", str_show(str_of(o->args[0]), shown, sizeof shown));
}

enum err verb_completion(const struct options *o, struct out *out, struct error *e UNUSED)
{
    if (o->args[0][0] == 'b')
        completion_bash(out);
    else
        completion_zsh(out);
    return OK;
}
