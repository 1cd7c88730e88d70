/* The verb table; see cli.h. In the order help shows them. */
#include "cli/cli.h"

static const struct verb verbs[] = {
    {.name = "help",
        .arguments = "[VERB]",
        .args_max = 1,
        .summary = "explain quern, or one verb",
        .about = "Without an argument, lists the verbs and the options that all of them take. With one, explains that "
                 "verb. With --man, prints the manual page.",
        .run = verb_help},
    {.name = "version",
        .arguments = "",
        .summary = "show the version",
        .about = "Prints the version of quern.",
        .run = verb_version},
    {.name = "completion",
        .arguments = "bash|zsh",
        .args_min = 1,
        .args_max = 1,
        .summary = "print a completion script for a shell",
        .about = "Prints a script that teaches the shell the verbs, options and values of quern. For bash: "
                 "'source <(quern completion bash)'; for zsh, save it as '_quern' in a folder of $fpath.",
        .run = verb_completion},
};

const struct verb *verbs_table(size_t *n)
{
    *n = COUNT_OF(verbs);
    return verbs;
}

const struct verb *verb_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(verbs); i++)
        if (str_is(name, verbs[i].name))
            return &verbs[i];
    return NULL;
}
