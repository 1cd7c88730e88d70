/* The options table: one row per option; see options.h. Names follow vLLM where the meaning is the same. */
#include "cli/options.h"

#define FIELD(name) offsetof(struct options, name)

static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const log_formats[] = {"text", "json", NULL};

static const struct option_row rows[] = {
    /* General */
    {.name = "help",
        .letter = 'h',
        .type = OPTION_BOOL,
        .group = GROUP_GENERAL,
        .field = FIELD(help),
        .cli_only = true,
        .help = "Show what the program or the verb does and its options."},
    {.name = "version",
        .letter = 'V',
        .type = OPTION_BOOL,
        .group = GROUP_GENERAL,
        .field = FIELD(version),
        .cli_only = true,
        .help = "Show the version."},
    {.name = "config",
        .type = OPTION_STR,
        .group = GROUP_GENERAL,
        .field = FIELD(config),
        .value = "FILE",
        .cli_only = true,
        .help = "Read options from a file of 'name = value' lines. The command line wins over it."},
    {.name = "man",
        .type = OPTION_BOOL,
        .group = GROUP_GENERAL,
        .field = FIELD(man),
        .verbs = "help",
        .cli_only = true,
        .help = "Print the manual page in roff."},

    /* Output */
    {.name = "json",
        .type = OPTION_BOOL,
        .group = GROUP_OUTPUT,
        .field = FIELD(json),
        .verbs = "version",
        .help = "Print JSON for programs instead of text for people."},

    /* Logging and debugging */
    {.name = "log-level",
        .type = OPTION_ENUM,
        .group = GROUP_LOGGING,
        .field = FIELD(log_level),
        .choices = log_levels,
        .fallback = "info",
        .help = "What to report on standard error. At 'debug' an error also names the place in quern's source."},
    {.name = "log-format",
        .type = OPTION_ENUM,
        .group = GROUP_LOGGING,
        .field = FIELD(log_format),
        .choices = log_formats,
        .fallback = "text",
        .help = "Write what is reported on standard error as text or as one JSON object per line."},
    {.name = "fault",
        .type = OPTION_STR,
        .group = GROUP_DEBUG,
        .field = FIELD(fault),
        .value = "KIND:N",
        .help = "Make the Nth allocation (alloc:N) or system call (sys:N) fail; N+ makes all later ones fail too. "
                "For testing that failures are answered."},
};
_Static_assert(COUNT_OF(rows) <= OPTION_ROWS_MAX, "origins of all rows fit");

struct option_table options_table(void)
{
    return (struct option_table){rows, COUNT_OF(rows)};
}
