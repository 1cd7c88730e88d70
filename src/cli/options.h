/* The one options table and what reads it. A row says everything about an option: how it is spelled, what it accepts,
 * which verbs take it, where its value goes and what it means. The command line, the config file, --help, the man page,
 * the shell completions and validation are all driven by the rows; nothing else in the program parses options.
 *
 * To add an option: one field in struct options, one row in options_table.c, and code that uses the field. A row whose
 * value nobody reads is a bug.
 *
 * Precedence, strongest first: command line, the verb's section of the config file, the top of the config file, the
 * default of the row. Values are resolved once, before the verb runs, and are const from then on.
 *
 * Threads: parsing happens in main before any thread; struct options is read-only afterwards. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "base/base.h"
#include "base/limits.h"

#define OPTION_ALIASES_MAX 3
#define OPTION_UNSET       UINT64_MAX /* a whole number that nobody set, where 0 means something */

enum option_type {
    OPTION_BOOL, /* field: bool.        --name, --no-name, --name=true|false */
    OPTION_U64,  /* field: uint64_t.    min and max apply */
    OPTION_F64,  /* field: double.      f64_min and f64_max apply */
    OPTION_SIZE, /* field: uint64_t.    bytes: 4096, 4GiB, 1.5GiB, 4G (= 4GiB), 4GB (= 4*10^9) */
    OPTION_STR,  /* field: const char * (NULL when unset) */
    OPTION_ENUM, /* field: int, the index of the word in choices */
    OPTION_LIST, /* field: struct option_list; given several times, the values add up */
};

enum option_group { /* headings of --help, in this order */
    GROUP_GENERAL,
    GROUP_MODEL,
    GROUP_MACHINE,
    GROUP_MEMORY,
    GROUP_SCHEDULING,
    GROUP_SERVER,
    GROUP_CHAT,
    GROUP_SAMPLING,
    GROUP_OUTPUT,
    GROUP_TEXT,
    GROUP_LOGGING,
    GROUP_DEBUG,
    GROUP_COUNT
};

struct option_list {
    const char *v[OPTION_LIST_MAX];
    size_t n;
};

struct option_row {
    const char *name;                        /* without the dashes; lower case, words joined by '-' */
    const char *aliases[OPTION_ALIASES_MAX]; /* other spellings that mean the same, e.g. vLLM's */
    enum option_type type;
    enum option_group group;
    size_t field;            /* offsetof(struct options, ...) */
    const char *fallback;    /* the default, spelled as on the command line; NULL: false, 0, NAN, unset, first choice */
    uint64_t min, max;       /* OPTION_U64 and OPTION_SIZE; max 0 means no maximum */
    double f64_min, f64_max; /* OPTION_F64 */
    const char *const *choices; /* OPTION_ENUM: NULL-terminated words */
    const char *verbs;          /* the verbs that take it, separated by blanks; NULL: every verb */
    const char *value;          /* what the value is called in help: "N", "FILE"; NULL for bools and short enums */
    const char *help;           /* one or two sentences with a full stop */
    char letter;                /* -x, or 0 */
    bool cli_only;              /* makes no sense in a config file */
    bool knows_unset;           /* OPTION_U64 without a fallback: OPTION_UNSET and not 0 until somebody sets it */
};

struct option_table {
    const struct option_row *rows;
    size_t n;
};

enum load_format { LOAD_AUTO, LOAD_DUMMY, LOAD_FORMAT_COUNT };
enum device_choice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA, DEVICE_COUNT };
/* 0 = what --tune says, else the first of the scheduler's own; then one more than the scheduler's enums. */
enum batching_choice { BATCHING_AUTO, BATCHING_COUNT = 6 };
enum order_choice { ORDER_AUTO, ORDER_CHOICE_COUNT = 6 };
enum kv_dtype_choice { KV_AUTO, KV_F32, KV_F16, KV_BF16, KV_FP8, KV_Q8_0, KV_Q4_0, KV_DTYPE_COUNT };
enum quantization_choice { QUANTIZATION_NONE, QUANTIZATION_FP8, QUANTIZATION_COUNT };

/* The resolved options: one field per row of options_table.c. Fields of options that the running verb does not take
 * hold their defaults. Strings are borrowed from argv or from the config file's text and live as long as the process.
 */
struct options {
    /* general */
    bool help, version;
    const char *config;
    int log_level, log_format; /* enum log_level, enum log_format of base/log.h */
    const char *fault;
    const char *cpu_variant; /* NULL = the fastest that runs here */
    /* help */
    bool man;
    /* model */
    const char *cache_dir; /* NULL = as hub/hub.h says */
    bool offline;
    int load_format;  /* enum load_format */
    int weight_dtype; /* 0 = auto, else an index into option_weight_dtypes */
    int quantization; /* enum quantization_choice */
    int device;       /* enum device_choice */
    bool deterministic;
    uint64_t threads; /* 0 = one per core */
    /* output */
    bool json;
    bool tensors;
    const char *tests; /* of bench; NULL = all */
    /* memory */
    uint64_t max_model_len, max_num_seqs; /* tokens, 0 = what the model was made for; sequences */
    int kv_cache_dtype;                   /* enum kv_dtype_choice */
    uint64_t memory_bytes;                /* 0 = what this machine has */
    uint64_t block_size, kv_blocks;       /* tokens; 0 = as many blocks as memory allows */
    double kv_memory_share;               /* NAN = the default */
    uint64_t swap_bytes;
    /* scheduling; 0, NAN or the first choice where nobody said anything */
    uint64_t max_batched_tokens;
    int batching, order, admission, preemption, tune;
    uint64_t batch_interval;
    double batch_ratio, watermark, itl_target_ms;
    uint64_t queue_max, queue_tokens_max, max_wait_ms;
    bool prefix_caching;
    const char *record;      /* NULL = nothing is recorded */
    const char *speculative; /* none, ngram, draft:MODEL */
    uint64_t speculative_k, ngram_min, ngram_max;
    /* the server */
    const char *host, *unix_socket;                  /* NULL = no Unix socket */
    uint64_t port;                                   /* 0 = any free one */
    const char *tool_call_parser, *reasoning_parser; /* a syntax, auto or none */
    struct option_list served_names;
    const char *key_file, *cert_file, *cert_key_file; /* NULL = none */
    struct option_list origins, hosts;
    uint64_t max_body_bytes, max_connections, net_threads; /* 0 = the default */
    uint64_t ping_s, shutdown_s, stuck_s;
    int structured_whitespace; /* enum grammar_whitespace */
    bool page, access_log;
    uint64_t fake_step_us; /* OPTION_UNSET = a real model */
    /* chat */
    const char *prompt, *system; /* NULL = not given */
    bool raw;
    uint64_t max_tokens; /* of an answer; 0 = as many as the context allows */
    bool ignore_eos;
    struct option_list stops;
    const char *json_schema, *grammar; /* files that answers obey; NULL = anything */
    uint64_t logprobs;                 /* alternatives to show; OPTION_UNSET = no log-probabilities */
    /* sampling; NAN or OPTION_UNSET = what the model suggests */
    double temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t top_k, seed;
    /* tokenize */
    bool ids, decode, special, user;
    const char *chat; /* NULL = no conversation */
    /* serve and top */
    const char *api_key; /* NULL = none */
    bool once;
    /* score */
    uint64_t stride; /* tokens; 0 = half the context */
    /* what is not an option, without the verb */
    const char *args[CLI_ARGS_MAX];
    size_t n_args;
    const struct options_parse *parse; /* where they came from; for options_log_level_again */
};

/* The words of --dtype; the first is "auto", the others are names of enum dtype in lower case. NULL-terminated. */
extern const char *const option_weight_dtypes[];

/* The table of the program. */
struct option_table options_table(void);

/* A parse in progress; the caller zeroes nothing, options_init does. `values` points at the struct the rows' fields
 * are offsets into. */
struct options_parse {
    struct option_table table;
    void *values;
    const char *verb; /* the first argument, or NULL when there was none */
    const char *args[CLI_ARGS_MAX];
    size_t n_args;
    char *file_text;                 /* the config file; values borrow from it */
    char *expanded[OPTION_ROWS_MAX]; /* a row's path that was written with "~/"; NULL otherwise */
    unsigned char origin[OPTION_ROWS_MAX];
};

/* Sets every field to its default. */
void options_init(struct options_parse *p, struct option_table table, void *values);
void options_fini(struct options_parse *p); /* frees the config file's text: the string values die with it */

/* The value is called FILE or DIR: completed as a path, and "~/" at its start is the home folder. */
bool option_is_path(const struct option_row *row);

/* argv without the program's name. Options may stand before and after the verb; "--" ends them. */
enum err options_parse_args(struct options_parse *p, int argc, char *const *argv, struct error *e) MUST_CHECK;

/* The same options from a file; values already set by the command line stay. The text form does the work and takes
 * ownership of nothing: text must be writable, NUL-terminated and outlive the values. */
enum err options_parse_file(struct options_parse *p, const char *path, struct error *e) MUST_CHECK;
enum err options_parse_text(struct options_parse *p, char *text, size_t n, struct error *e) MUST_CHECK;

/* What --log-level is when the config file is read again: the command line's, else the file's, else the default. A file
 * that is wrong anywhere is an error and changes nothing. */
enum err options_log_level_again(const struct options *o, int *level, struct error *e) MUST_CHECK;

/* ERR_INVALID when an option given on the command line is not one of the verb's. */
enum err options_check_verb(const struct options_parse *p, const char *verb, struct error *e) MUST_CHECK;

/* Lookup by name or alias ('_' counts as '-') or by letter; NULL when there is none. */
const struct option_row *option_find(struct option_table t, struct str name);
const struct option_row *option_find_letter(struct option_table t, char letter);
bool option_has_verb(const struct option_row *row, const char *verb);
size_t option_choices(const struct option_row *row);

/* Parse one value as the row demands, into `values`. Exposed for the tests. */
enum err option_store(const struct option_row *row, const char *text, void *values, struct error *e) MUST_CHECK;

/* The nearest of the candidates by edit distance, or NULL when none is near enough to be what was meant. */
struct suggestion {
    struct str wanted;
    const char *best;
    size_t best_cost;
};
void suggest_init(struct suggestion *s, struct str wanted);
void suggest_try(struct suggestion *s, const char *candidate);

#endif
