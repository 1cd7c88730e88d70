/* quern help [VERB], quern version, quern completion SHELL: what the program says about itself. */
#include "cli/cli.h"

#include <string.h>

enum err verb_help(const struct options *o, struct out *out, struct error *e)
{
    if (o->man)
        help_man(out);
    else if (o->n_args == 0)
        help_global(out, help_width());
    else {
        const struct verb *verb = verb_find(str_of(o->args[0]));
        char shown[64];
        if (verb == NULL)
            return FAIL(e, ERR_NOT_FOUND, "no verb '%s' to explain", str_show(str_of(o->args[0]), shown, sizeof shown));
        help_verb(out, verb, help_width());
    }
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

enum err verb_completion(const struct options *o, struct out *out, struct error *e)
{
    char shown[64];
    if (strcmp(o->args[0], "bash") == 0)
        completion_bash(out);
    else if (strcmp(o->args[0], "zsh") == 0)
        completion_zsh(out);
    else
        return FAIL(e, ERR_INVALID, "no completion for shell '%s', only for bash and zsh",
            str_show(str_of(o->args[0]), shown, sizeof shown));
    return OK;
}
