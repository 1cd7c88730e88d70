/* The options table: one row per option; see options.h. Names follow vLLM where the meaning is the same. */
#include "cli/options.h"

#define FIELD(name) offsetof(struct options, name)

static const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const char *const log_formats[] = {"text", "json", NULL};

static const char *const kv_dtypes[] = {"auto", "f32", "f16", "bf16", "q8_0", "q4_0", NULL};
_Static_assert(COUNT_OF(kv_dtypes) == KV_DTYPE_COUNT + 1, "the words follow enum kv_dtype_choice");

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

    /* Model */
    {.name = "cache-dir",
        .aliases = {"download-dir"},
        .type = OPTION_STR,
        .group = GROUP_MODEL,
        .field = FIELD(cache_dir),
        .value = "DIR",
        .verbs = "inspect list pull rm",
        .help = "Where models are kept. Without it: $QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern."},
    {.name = "offline",
        .type = OPTION_BOOL,
        .group = GROUP_MODEL,
        .field = FIELD(offline),
        .verbs = "pull",
        .help = "Use no network: only what is already on this machine."},

    /* Memory */
    {.name = "max-model-len",
        .aliases = {"context"},
        .letter = 'c',
        .type = OPTION_U64,
        .group = GROUP_MEMORY,
        .field = FIELD(max_model_len),
        .min = 1,
        .max = MODEL_CONTEXT_MAX,
        .value = "N",
        .verbs = "inspect",
        .help = "Tokens of one sequence, prompt and answer together. Without it: what the model was made for."},
    {.name = "max-num-seqs",
        .type = OPTION_U64,
        .group = GROUP_MEMORY,
        .field = FIELD(max_num_seqs),
        .fallback = "1",
        .min = 1,
        .max = 65536,
        .value = "N",
        .verbs = "inspect",
        .help = "Sequences at the same time."},
    {.name = "kv-cache-dtype",
        .type = OPTION_ENUM,
        .group = GROUP_MEMORY,
        .field = FIELD(kv_cache_dtype),
        .choices = kv_dtypes,
        .fallback = "auto",
        .verbs = "inspect",
        .help = "How keys and values are stored; 'auto' is f16."},
    {.name = "memory",
        .type = OPTION_SIZE,
        .group = GROUP_MEMORY,
        .field = FIELD(memory_bytes),
        .min = 1,
        .value = "SIZE",
        .verbs = "inspect",
        .help = "Judge whether the model fits into this much memory, e.g. 8GiB, instead of what this machine has."},

    /* Output */
    {.name = "json",
        .type = OPTION_BOOL,
        .group = GROUP_OUTPUT,
        .field = FIELD(json),
        .verbs = "inspect list version",
        .help = "Print JSON for programs instead of text for people."},

    {.name = "tensors",
        .type = OPTION_BOOL,
        .group = GROUP_OUTPUT,
        .field = FIELD(tensors),
        .verbs = "inspect",
        .help = "Also list every tensor: name, type, shape and bytes."},

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
