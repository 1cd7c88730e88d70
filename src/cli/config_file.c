/* The config file: the options of the table as lines of text.
 *
 *   # a comment stands on its own line
 *   log-level = warn            for every verb that takes the option
 *   [inspect]                   from here on: for this verb only
 *   max-model-len = 4096
 *   json = true
 *
 * A value is the rest of the line without blanks around it; in double quotes it keeps them, and \" \\ \n \t stand for
 * themselves. A path may begin with "~/". Repeatable options are given once per line. Names are those of the command
 * line without the dashes; aliases are accepted. The whole file is checked, the sections of other verbs too, so that a
 * mistake is found when the file is written and not when it is first needed. An option at the top that the verb does
 * not take is fine (the file serves all verbs); in a verb's section it is an error, as is an option set twice in one
 * section. */
#include "cli/options.h"

#include "cli/cli.h"
#include "cli/options_int.h"

#include "base/file.h"
#include "base/limits.h"

#include <string.h>

struct config {
    struct options_parse *parse;
    const struct verb *section;         /* NULL at the top */
    unsigned set_line[OPTION_ROWS_MAX]; /* where this section set each row; 0 = not */
    unsigned line;
};

static struct str trim(struct str s)
{
    while (s.n > 0 && strchr(" \t\r", s.p[0]) != NULL && s.p[0] != '\0')
        s = (struct str){s.p + 1, s.n - 1};
    while (s.n > 0 && strchr(" \t\r", s.p[s.n - 1]) != NULL && s.p[s.n - 1] != '\0')
        s.n--;
    return s;
}

static enum err open_section(struct config *c, struct str line, struct error *e)
{
    char shown[64];
    if (line.p[line.n - 1] != ']')
        return FAIL(e, ERR_INVALID, "section '%s' has no closing ']'", str_show(line, shown, sizeof shown));
    const struct str name = trim((struct str){line.p + 1, line.n - 2});
    c->section = verb_find(name);
    if (c->section == NULL) {
        const char *best = verb_suggest(name);
        return FAIL(e, ERR_INVALID, "section [%s] is not a verb%s%s%s", str_show(name, shown, sizeof shown),
            best ? " (did you mean [" : "", best ? best : "", best ? "]?)" : "");
    }
    memset(c->set_line, 0, sizeof c->set_line);
    return OK;
}

/* Undo quotes and escapes in place; the result is never longer than the source. */
static enum err unquote(char *p, size_t n, struct error *e)
{
    size_t to = 0, i = 1;
    for (; i < n && p[i] != '"'; i++) {
        if (p[i] == '\\') {
            static const char from[] = "\"\\nt", into[] = "\"\\\n\t";
            const char *at = i + 1 < n && p[i + 1] != '\0' ? strchr(from, p[i + 1]) : NULL;
            if (at == NULL)
                return FAIL(e, ERR_INVALID, "in quotes a backslash stands before \", \\, n or t");
            p[to++] = into[at - from];
            i++;
        } else
            p[to++] = p[i];
    }
    if (i + 1 != n)
        return FAIL(e, ERR_INVALID, "a quoted value ends with its closing quote");
    p[to] = '\0';
    return OK;
}

static enum err set_line(struct config *c, char *line, size_t n, struct error *e)
{
    char shown[64];
    char *equals = memchr(line, '=', n);
    if (equals == NULL)
        return FAIL(e, ERR_INVALID, "'%s' is not 'name = value'", str_show((struct str){line, n}, shown, sizeof shown));
    const struct str name = trim((struct str){line, (size_t)(equals - line)});
    const struct str value = trim((struct str){equals + 1, n - (size_t)(equals + 1 - line)});
    const struct option_table t = c->parse->table;
    const struct option_row *row = option_find(t, name);
    if (row == NULL)
        return options_unknown(t, name, e);
    if (row->cli_only)
        return FAIL(e, ERR_INVALID, "option --%s belongs on the command line, not into a file", row->name);
    if (c->section != NULL && !option_has_verb(row, c->section->name))
        return FAIL(
            e, ERR_INVALID, "option --%s is not for '%s'; it is for: %s", row->name, c->section->name, row->verbs);
    unsigned *const before = &c->set_line[row - t.rows];
    if (*before != 0 && row->type != OPTION_LIST)
        return FAIL(e, ERR_INVALID, "option --%s was already set in line %u", row->name, *before);
    *before = c->line;

    char *text = equals + 1 + (value.p - (equals + 1)); /* value, writable */
    text[value.n] = '\0';                               /* the line's end, a blank, or the NUL after the file */
    if (value.n > 0 && text[0] == '"')
        TRY(unquote(text, value.n, e));
    const char *const verb = c->parse->verb;
    const bool elsewhere = c->section != NULL && (verb == NULL || strcmp(c->section->name, verb) != 0);
    if (elsewhere) { /* another verb's section: check only */
        struct options_parse probe = *c->parse;
        memset(probe.origin, ORIGIN_ARGS, sizeof probe.origin);
        return options_set(&probe, row, text, ORIGIN_FILE_VERB, e);
    }
    return options_set(c->parse, row, text, c->section != NULL ? ORIGIN_FILE_VERB : ORIGIN_FILE_TOP, e);
}

enum err options_parse_text(struct options_parse *p, char *text, size_t n, struct error *e)
{
    struct config c = {.parse = p};
    static const char mark[3] = {'\xef', '\xbb', '\xbf'}; /* some editors begin a UTF-8 file with it; nobody sees it */
    size_t at = n >= sizeof mark && memcmp(text, mark, sizeof mark) == 0 ? sizeof mark : 0;
    while (at < n) {
        const char *newline = memchr(text + at, '\n', n - at);
        const size_t end = newline != NULL ? (size_t)(newline - text) : n;
        const struct str line = trim((struct str){text + at, end - at});
        c.line++;
        enum err err = OK;
        if (memchr(line.p, '\0', line.n) != NULL)
            err = FAIL(e, ERR_INVALID, "a NUL byte in the text");
        else if (line.n > 0 && line.p[0] == '[')
            err = open_section(&c, line, e);
        else if (line.n > 0 && line.p[0] != '#')
            err = set_line(&c, text + (line.p - text), line.n, e);
        if (err != OK) {
            error_prefix(e, "line %u", c.line);
            return err;
        }
        at = end + 1;
    }
    return OK;
}

enum err options_parse_file(struct options_parse *p, const char *path, struct error *e)
{
    size_t n;
    assert(p->file_text == NULL); /* one file per run */
    TRY(file_read_all(path, CONFIG_FILE_BYTES_MAX, &p->file_text, &n, e));
    const enum err err = options_parse_text(p, p->file_text, n, e);
    if (err != OK)
        error_prefix(e, "%s", path);
    return err;
}

enum err options_log_level_again(const struct options *o, int *level, struct error *e)
{
    const struct option_table t = o->parse->table;
    const struct option_row *row = option_find(t, STR("log-level"));
    struct options fresh = {0};
    struct options_parse p;
    *level = o->log_level;
    if (o->config == NULL || o->parse->origin[row - t.rows] == ORIGIN_ARGS)
        return OK;
    options_init(&p, t, &fresh);
    p.verb = o->parse->verb;
    const enum err err = options_parse_file(&p, o->config, e);
    if (err == OK)
        *level = fresh.log_level;
    options_fini(&p);
    return err;
}
