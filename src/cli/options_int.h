/* Private to cli/: what the command line and the config file share. */
#ifndef CLI_OPTIONS_INT_H
#define CLI_OPTIONS_INT_H

#include "cli/options.h"

enum option_origin { /* weakest first */
    ORIGIN_DEFAULT,
    ORIGIN_FILE_TOP,
    ORIGIN_FILE_VERB,
    ORIGIN_ARGS,
};

/* Check the value and keep it unless a stronger source already spoke. text is borrowed. */
enum err options_set(struct options_parse *p, const struct option_row *row, const char *text, enum option_origin origin,
    struct error *e) MUST_CHECK;

/* "unknown option '--x'", with the nearest one. */
enum err options_unknown(struct option_table t, struct str name, struct error *e);

#endif
