/* The manual page in roff (man macros), made from the tables. Text from the tables passes through roff_text, which
 * escapes what roff would read as markup: backslashes, dashes in options, and a control character in column one. */
#include "cli/cli.h"

#include "cli/help_int.h"

#include <string.h>

const char help_purpose[] = "quern is one small program for large language models. It needs no Python.";

static void roff_text(struct out *out, const char *text)
{
    bool line_start = true;
    for (; *text != '\0'; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            out_text(out, "\\&");
        line_start = false;
        if (*text == '\\')
            out_text(out, "\\e");
        else if (*text == '-')
            out_text(out, "\\-");
        else if (*text == '\'')
            out_text(out, "\\(aq");
        else if (strncmp(text, "\n\n", 2) == 0) {
            out_text(out, "\n.PP\n");
            text++;
            line_start = true;
        } else
            out_add(out, (struct str){text, 1});
    }
}

static void man_option(struct out *out, const struct option_row *row)
{
    char value[96], range[96];
    help_value_name(row, value, sizeof value);
    help_range(row, range, sizeof range);
    out_text(out, ".TP\n");
    if (row->letter)
        out_printf(out, "\\fB\\-%c\\fR, ", row->letter);
    out_text(out, "\\fB");
    roff_text(out, help_shows_negation(row) ? "--no-" : "--");
    roff_text(out, row->name);
    out_text(out, "\\fR");
    if (value[0] != '\0') {
        out_text(out, " \\fI");
        roff_text(out, value);
        out_text(out, "\\fR");
    }
    out_text(out, "\n");
    roff_text(out, row->help);
    if (range[0] != '\0') {
        out_text(out, " ");
        roff_text(out, range);
    }
    if (row->fallback != NULL && row->type != OPTION_BOOL) {
        out_text(out, " Default: ");
        roff_text(out, row->fallback);
        out_text(out, ".");
    }
    for (size_t k = 0; k < OPTION_ALIASES_MAX && row->aliases[k] != NULL; k++) {
        out_text(out, k == 0 ? " Also: \\fB\\-\\-" : ", \\fB\\-\\-");
        roff_text(out, row->aliases[k]);
        out_text(out, "\\fR");
    }
    out_text(out, row->aliases[0] != NULL ? ".\n" : "\n");
}

/* The options of one verb alone (those every verb takes stand in a section of their own). */
static void man_options(struct out *out, const char *verb)
{
    const struct option_table t = options_table();
    for (size_t g = 0; g < GROUP_COUNT; g++)
        for (size_t i = 0; i < t.n; i++) {
            const struct option_row *row = &t.rows[i];
            const bool wanted = verb == NULL ? row->verbs == NULL : row->verbs != NULL && option_has_verb(row, verb);
            if ((size_t)row->group == g && wanted)
                man_option(out, row);
        }
}

static const char man_files[] =
    ".SH CONFIG FILE\n"
    "With \\fB\\-\\-config\\fR options are read from a file. A line is \\fIname\\fR = \\fIvalue\\fR, a line that "
    "starts\n"
    "with # is a comment, and [\\fIverb\\fR] starts a section for one verb. Names are those of the command line "
    "without\n"
    "the dashes. A value in double quotes keeps its blanks. The command line wins over the verb\\(aqs section, and "
    "that\n"
    "over the lines before the first section. Unknown names and wrong values are errors.\n"
    ".SH EXIT STATUS\n"
    ".TP\n0\nDone.\n"
    ".TP\n1\nThe work failed: a bad model file, no memory, an input or output error.\n"
    ".TP\n2\nThe command line or the config file is wrong.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n\\fBQUERN_CACHE\\fR\nThe folder where models are kept.\n"
    ".TP\n\\fBHF_HOME\\fR, \\fBHF_TOKEN\\fR, \\fBHF_ENDPOINT\\fR\nAs the tools of Hugging Face use them.\n";

void help_man(struct out *out)
{
    size_t n;
    const struct verb *verbs = verbs_table(&n);
    out_text(out, ".TH QUERN 1 \"\" \"quern " QUERN_VERSION "\" \"User Commands\"\n.SH NAME\n");
    out_text(out, "quern \\- one small program for large language models\n.SH SYNOPSIS\n.B quern\n\\fIverb\\fR "
                  "[\\fIoptions\\fR] ");
    out_text(out, "[\\fIarguments\\fR]\n.SH DESCRIPTION\n");
    roff_text(out, help_purpose);
    out_text(out, "\n.SH VERBS\n");
    for (size_t i = 0; i < n; i++) {
        out_printf(out, ".SS quern %s", verbs[i].name);
        if (verbs[i].arguments[0] != '\0') {
            out_text(out, " ");
            roff_text(out, verbs[i].arguments);
        }
        out_text(out, "\n");
        roff_text(out, verbs[i].about);
        out_text(out, "\n");
        man_options(out, verbs[i].name);
    }
    out_text(out, ".SH OPTIONS OF EVERY VERB\n");
    man_options(out, NULL);
    out_text(out, man_files);
}
