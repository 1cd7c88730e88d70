/* cli: the program as its user meets it. Owns the options table (options.h), the verbs, what is written to standard
 * output and error, and the exit code; nothing below cli/ prints or ends the process.
 *
 * To add a verb: a file verb_<name>.c with `enum err verb_<name>(...)`, its prototype below, one row in verbs.c. The
 * frame parses and checks the options, runs the function, flushes the output and turns an error into one line on
 * standard error: 0 = done, 1 = the verb failed, 2 = the command line or the config file is wrong.
 *
 * Threads: the main thread only. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/options.h"
#include "cli/out.h"

enum { EXIT_OK = 0, EXIT_ERROR = 1, EXIT_USAGE = 2 };

/* The work of a verb. Writes its result to `out` (which keeps its own failure: no need to look after each write) and
 * reports by the usual convention; the sentence in *e is what the user reads. */
typedef enum err verb_fn(const struct options *o, struct out *out, struct error *e);

struct verb {
    const char *name;
    const char *arguments;                                       /* as help shows them: "[MODEL]"; "" for none */
    size_t args_min, args_max;                                   /* how many arguments; checked by the frame */
    const char *summary;                                         /* one line without full stop, for the list of verbs */
    const char *about;                                           /* paragraphs separated by \n\n, for help and manual */
    enum err (*check)(const struct options *o, struct error *e); /* rules between options (usage errors); or NULL */
    verb_fn *run;
};

const struct verb *verbs_table(size_t *n);
const struct verb *verb_find(struct str name);           /* NULL when there is none */
const char *verb_suggest(struct str name);               /* the nearest verb, or NULL */
enum err verb_unknown(struct str name, struct error *e); /* fails with "unknown verb", and the nearest one */

verb_fn verb_bench, verb_completion, verb_help, verb_inspect, verb_list, verb_plan, verb_pull, verb_replay, verb_rm,
    verb_run, verb_score, verb_serve, verb_tokenize, verb_top, verb_version;
enum err verb_completion_check(const struct options *o, struct error *e);
enum err verb_help_check(const struct options *o, struct error *e);
enum err verb_run_check(const struct options *o, struct error *e);
enum err verb_serve_check(const struct options *o, struct error *e);
enum err verb_tokenize_check(const struct options *o, struct error *e);

/* Help, manual and completions, all made from the two tables. width in columns. */
void help_global(struct out *out, size_t width);
void help_verb(struct out *out, const struct verb *verb, size_t width);
void help_man(struct out *out);
size_t help_width(void); /* of the terminal on standard output, or 80 */
void completion_bash(struct out *out);
void completion_zsh(struct out *out);

/* The whole program; returns the exit code. */
int cli_main(int argc, char *const *argv);

#endif
