/* Private to cli/: what help, the manual page and the completions share. */
#ifndef CLI_HELP_INT_H
#define CLI_HELP_INT_H

#include "cli/cli.h"

extern const char help_purpose[]; /* one sentence: what the program is */

const char *help_group_name(enum option_group group);
void help_value_name(const struct option_row *row, char *text, size_t cap); /* "N", "text|json", "" for bools */
void help_range(const struct option_row *row, char *text, size_t cap);      /* "From 1 to 9.", or "" */
bool help_shows_negation(const struct option_row *row); /* a bool that is on by default: --no-name is the useful form */

#endif
