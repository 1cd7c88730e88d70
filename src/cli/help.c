/* Help for people at a terminal, made from the tables and wrapped to its width. */
#include "cli/cli.h"

#include "cli/help_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char *const group_names[] = {
    [GROUP_GENERAL] = "General options",
    [GROUP_MODEL] = "Model options",
    [GROUP_MACHINE] = "Machine options",
    [GROUP_MEMORY] = "Memory options",
    [GROUP_SCHEDULING] = "Scheduling options",
    [GROUP_SERVER] = "Server options",
    [GROUP_CHAT] = "Conversation options",
    [GROUP_SAMPLING] = "Sampling options",
    [GROUP_OUTPUT] = "Output options",
    [GROUP_TEXT] = "Text options",
    [GROUP_LOGGING] = "Logging options",
    [GROUP_DEBUG] = "Debugging options",
};
_Static_assert(COUNT_OF(group_names) == GROUP_COUNT, "every group has a heading");

const char *help_group_name(enum option_group group)
{
    return group_names[group];
}

size_t help_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 80;
    return MIN(MAX((size_t)size.ws_col, (size_t)40), (size_t)120); /* longer lines are hard to read */
}

/* Words of text from column `indent` to `width`; `column` is where the cursor stands. Ends with a newline. "\n\n" in
 * the text starts a new paragraph. */
static void wrap(struct out *out, const char *text, size_t indent, size_t column, size_t width)
{
    bool first = true;
    while (*text != '\0') {
        if (strncmp(text, "\n\n", 2) == 0) {
            out_text(out, "\n\n");
            text += 2;
            column = 0;
            first = true;
        }
        const size_t n = strcspn(text, " \n");
        if (!first && column + 1 + n > width) {
            out_text(out, "\n");
            column = 0;
            first = true;
        }
        if (column < indent) {
            out_printf(out, "%*s", (int)(indent - column), "");
            column = indent;
        }
        if (!first) {
            out_text(out, " ");
            column++;
        }
        out_add(out, (struct str){text, n});
        column += n;
        first = false;
        text += n;
        if (*text == ' ')
            text++;
    }
    out_text(out, "\n");
}

bool help_shows_negation(const struct option_row *row)
{
    return row->type == OPTION_BOOL && row->fallback != NULL && strcmp(row->fallback, "true") == 0;
}

void help_value_name(const struct option_row *row, char *text, size_t cap)
{
    size_t at = 0;
    text[0] = '\0';
    if (row->type == OPTION_BOOL)
        return;
    if (row->type != OPTION_ENUM || row->value != NULL) {
        snprintf(text, cap, "%s", row->value);
        return;
    }
    for (size_t i = 0; i < option_choices(row) && at < cap; i++)
        at += (size_t)snprintf(text + at, cap - at, "%s%s", i > 0 ? "|" : "", row->choices[i]);
}

void help_range(const struct option_row *row, char *text, size_t cap)
{
    text[0] = '\0';
    if (row->type == OPTION_F64)
        snprintf(text, cap, "From %g to %g.", row->f64_min, row->f64_max);
    else if (row->type == OPTION_U64 && row->max != 0)
        snprintf(text, cap, "From %llu to %llu.", (unsigned long long)row->min, (unsigned long long)row->max);
}

static void print_option(struct out *out, const struct option_row *row, size_t width)
{
    enum { INDENT = 26 };
    char head[160], value[96], tail[512], range[96];
    help_value_name(row, value, sizeof value);
    const char letter[5] = {
        row->letter ? '-' : ' ', row->letter ? row->letter : ' ', row->letter ? ',' : ' ', ' ', '\0'};
    const int n = snprintf(head, sizeof head, "  %s--%s%s%s%s", letter, help_shows_negation(row) ? "no-" : "",
        row->name, value[0] ? " " : "", value);
    out_text(out, head);
    size_t column = (size_t)n;
    if (column + 2 > INDENT) {
        out_text(out, "\n");
        column = 0;
    }
    help_range(row, range, sizeof range);
    const bool shows_default = row->fallback != NULL && row->type != OPTION_BOOL;
    snprintf(tail, sizeof tail, "%s%s%s%s%s%s", row->help, range[0] ? " " : "", range,
        shows_default ? " Default: " : "", shows_default ? row->fallback : "", shows_default ? "." : "");
    size_t at = strlen(tail);
    for (size_t k = 0; k < OPTION_ALIASES_MAX && row->aliases[k] != NULL && at < sizeof tail; k++)
        at += (size_t)snprintf(tail + at, sizeof tail - at, "%s--%s", k == 0 ? " Also: " : ", ", row->aliases[k]);
    if (row->aliases[0] != NULL && at < sizeof tail)
        snprintf(tail + at, sizeof tail - at, ".");
    wrap(out, tail, INDENT, column, width);
}

/* The options of one verb, or with NULL those of every verb, under their headings. */
static void print_options(struct out *out, const struct verb *verb, size_t width)
{
    const struct option_table t = options_table();
    for (size_t g = 0; g < GROUP_COUNT; g++) {
        bool any = false;
        for (size_t i = 0; i < t.n; i++) {
            const struct option_row *row = &t.rows[i];
            if ((size_t)row->group != g || (verb == NULL ? row->verbs != NULL : !option_has_verb(row, verb->name)))
                continue;
            if (!any)
                out_printf(out, "\n%s:\n", group_names[g]);
            any = true;
            print_option(out, row, width);
        }
    }
}

void help_verb(struct out *out, const struct verb *verb, size_t width)
{
    out_printf(out, "Usage: quern %s [options]%s%s\n\n", verb->name, verb->arguments[0] ? " " : "", verb->arguments);
    wrap(out, verb->about, 0, 0, width);
    print_options(out, verb, width);
}

void help_global(struct out *out, size_t width)
{
    size_t n;
    const struct verb *verbs = verbs_table(&n);
    out_text(out, "Usage: quern VERB [options] [arguments]\n\n");
    wrap(out, help_purpose, 0, 0, width);
    out_text(out, "\nVerbs:\n");
    for (size_t i = 0; i < n; i++) {
        char head[64];
        const int k = snprintf(head, sizeof head, "  %s %s", verbs[i].name, verbs[i].arguments);
        out_text(out, head);
        wrap(out, verbs[i].summary, 26, (size_t)k, width);
    }
    print_options(out, NULL, width);
    out_text(out, "\n'quern VERB --help' explains a verb and lists its options.\n");
}
