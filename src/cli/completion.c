/* Completion scripts for bash and zsh, made from the tables. The scripts are static text: nothing runs quern while the
 * user types. Each knows, per verb, its options, and per option the words of an enum or that a file is wanted. */
#include "cli/cli.h"

#include "cli/help_int.h"

#include <string.h>

static void add_option_words(struct out *out, const char *verb)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++) {
        if (!option_has_verb(&t.rows[i], verb))
            continue;
        out_printf(out, "%s--%s%s", i > 0 ? " " : "", help_shows_negation(&t.rows[i]) ? "no-" : "", t.rows[i].name);
    }
}

/* The words an option's value can be, as a case of the shell's `case` statement. */
static void bash_value_case(struct out *out, const struct option_row *row)
{
    out_printf(out, "    --%s", row->name);
    for (size_t k = 0; k < OPTION_ALIASES_MAX && row->aliases[k] != NULL; k++)
        out_printf(out, "|--%s", row->aliases[k]);
    if (row->letter)
        out_printf(out, "|-%c", row->letter);
    out_text(out, ")\n");
    if (row->type == OPTION_ENUM) {
        out_text(out, "        COMPREPLY=($(compgen -W '");
        for (size_t i = 0; i < option_choices(row); i++)
            out_printf(out, "%s%s", i > 0 ? " " : "", row->choices[i]);
        out_text(out, "' -- \"$word\"))\n");
    } else if (option_is_path(row))
        out_printf(
            out, "        COMPREPLY=($(compgen -%s -- \"$word\"))\n", strcmp(row->value, "DIR") == 0 ? "d" : "f");
    out_text(out, "        return ;;\n");
}

void completion_bash(struct out *out)
{
    size_t n;
    const struct option_table t = options_table();
    const struct verb *verbs = verbs_table(&n);
    out_text(out, "# bash completion for quern " QUERN_VERSION "\n"
                  "_quern()\n{\n"
                  "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb= i\n"
                  "    COMPREPLY=()\n"
                  "    # bash takes --name=value apart at the =\n"
                  "    if [[ $word == '=' ]]; then\n"
                  "        word=\n"
                  "    elif [[ $before == '=' ]]; then\n"
                  "        before=${COMP_WORDS[COMP_CWORD-2]}\n"
                  "    fi\n"
                  "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                  "        case ${COMP_WORDS[i]} in\n        ");
    for (size_t i = 0; i < n; i++)
        out_printf(out, "%s%s", i > 0 ? "|" : "", verbs[i].name);
    out_text(out, ")\n            verb=${COMP_WORDS[i]}; break ;;\n        esac\n    done\n    case $before in\n");
    for (size_t i = 0; i < t.n; i++)
        if (t.rows[i].type != OPTION_BOOL)
            bash_value_case(out, &t.rows[i]);
    out_text(out, "    esac\n    case $verb in\n    '')\n        COMPREPLY=($(compgen -W '");
    for (size_t i = 0; i < n; i++)
        out_printf(out, "%s ", verbs[i].name);
    out_text(out, "--help --version' -- \"$word\"))\n        return ;;\n");
    for (size_t i = 0; i < n; i++) {
        out_printf(
            out, "    %s)\n        if [[ $word == -* ]]; then\n            COMPREPLY=($(compgen -W '", verbs[i].name);
        add_option_words(out, verbs[i].name);
        out_text(out, "' -- \"$word\"))\n            return\n        fi\n");
        if (verbs[i].run == verb_completion)
            out_text(out, "        COMPREPLY=($(compgen -W 'bash zsh' -- \"$word\"))\n        return\n");
        out_text(out, "        ;;\n");
    }
    out_text(out, "    esac\n    COMPREPLY=($(compgen -f -- \"$word\"))\n}\ncomplete -o filenames -F _quern quern\n");
}

/* zsh reads a spec between single quotes; a quote, bracket or colon in the help text would end a part of it. */
static void zsh_text(struct out *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            out_text(out, "'\\''");
        else {
            if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
                out_text(out, "\\");
            out_add(out, (struct str){text, 1});
        }
    }
}

static void zsh_option(struct out *out, const struct option_row *row)
{
    out_printf(out, "            '--%s%s%s[", help_shows_negation(row) ? "no-" : "", row->name,
        row->type == OPTION_BOOL ? "" : "=");
    zsh_text(out, row->help);
    out_text(out, "]");
    if (row->type == OPTION_ENUM) {
        out_text(out, ":value:(");
        for (size_t i = 0; i < option_choices(row); i++)
            out_printf(out, "%s%s", i > 0 ? " " : "", row->choices[i]);
        out_text(out, ")");
    } else if (row->type != OPTION_BOOL) {
        out_text(out, ":");
        zsh_text(out, row->value);
        out_text(out, option_is_path(row) ? ":_files" : ": ");
    }
    out_text(out, "' \\\n");
}

void completion_zsh(struct out *out)
{
    size_t n;
    const struct option_table t = options_table();
    const struct verb *verbs = verbs_table(&n);
    out_text(out, "#compdef quern\n# zsh completion for quern " QUERN_VERSION "\n"
                  "_quern()\n{\n    local -a verbs\n    verbs=(\n");
    for (size_t i = 0; i < n; i++) {
        out_printf(out, "        '%s:", verbs[i].name);
        zsh_text(out, verbs[i].summary);
        out_text(out, "'\n");
    }
    out_text(out, "    )\n"
                  "    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n"
                  "        _describe verb verbs\n        return\n    fi\n"
                  "    local verb=$words[2]\n"
                  "    shift words\n    ((CURRENT--))\n"
                  "    case $verb in\n");
    for (size_t i = 0; i < n; i++) {
        out_printf(out, "    %s)\n        _arguments \\\n", verbs[i].name);
        for (size_t k = 0; k < t.n; k++)
            if (option_has_verb(&t.rows[k], verbs[i].name))
                zsh_option(out, &t.rows[k]);
        out_text(out, verbs[i].run == verb_completion ? "            '*:shell:(bash zsh)'\n        ;;\n"
                                                      : "            '*:argument:_files'\n        ;;\n");
    }
    out_text(out, "    esac\n}\n_quern \"$@\"\n");
}
