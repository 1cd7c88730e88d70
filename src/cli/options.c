/* The command line against the options table; see options.h.
 *
 * Spellings: --name value, --name=value, -n value, -nvalue, -n=value; bools: --name, --no-name, --name=true|false, and
 * single letters may be joined (-hj). "--" ends the options, "-" alone is an argument. Options may stand anywhere; the
 * first argument is the verb. '_' in a name counts as '-'. Abbreviations are refused, with a suggestion: a name that is
 * unique today need not be tomorrow. An option given twice takes the last value. */
#include "cli/options.h"

#include "cli/options_int.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool name_eq(struct str typed, const char *name)
{
    if (name == NULL || strlen(name) != typed.n)
        return false;
    for (size_t i = 0; i < typed.n; i++)
        if ((typed.p[i] == '_' ? '-' : typed.p[i]) != name[i])
            return false;
    return true;
}

const struct option_row *option_find(struct option_table t, struct str name)
{
    for (size_t i = 0; i < t.n; i++) {
        if (name_eq(name, t.rows[i].name))
            return t.rows + i;
        for (size_t k = 0; k < OPTION_ALIASES_MAX; k++)
            if (name_eq(name, t.rows[i].aliases[k]))
                return t.rows + i;
    }
    return NULL;
}

const struct option_row *option_find_letter(struct option_table t, char letter)
{
    for (size_t i = 0; i < t.n; i++)
        if (letter != '\0' && t.rows[i].letter == letter)
            return t.rows + i;
    return NULL;
}

bool option_has_verb(const struct option_row *row, const char *verb)
{
    if (row->verbs == NULL)
        return true;
    const size_t n = strlen(verb);
    for (const char *p = row->verbs; *p != '\0';) {
        const size_t len = strcspn(p, " ");
        if (len == n && memcmp(p, verb, n) == 0)
            return true;
        p += len + strspn(p + len, " ");
    }
    return false;
}

void options_init(struct options_parse *p, struct option_table table, void *values)
{
    assert(table.n <= OPTION_ROWS_MAX);
    *p = (struct options_parse){.table = table, .values = values};
    for (size_t i = 0; i < table.n; i++) {
        const struct option_row *row = &table.rows[i];
        void *field = (char *)values + row->field;
        if (row->type == OPTION_F64)
            *(double *)field = NAN;
        if (row->type == OPTION_U64 && row->knows_unset)
            *(uint64_t *)field = OPTION_UNSET;
        const enum err err = row->fallback != NULL ? option_store(row, row->fallback, values, NULL) : OK;
        assert(err == OK); /* a default that its own row refuses is a bug, and a unit test looks for it */
        (void)err;
    }
}

void options_fini(struct options_parse *p)
{
    mem_free(p->file_text);
    p->file_text = NULL;
    for (size_t i = 0; i < p->table.n; i++)
        mem_free(p->expanded[i]);
    memset(p->expanded, 0, sizeof p->expanded);
}

bool option_is_path(const struct option_row *row)
{
    return row->value != NULL && (strcmp(row->value, "FILE") == 0 || strcmp(row->value, "DIR") == 0);
}

/* No shell has seen what stands in a config file, and none expands --name=~/x; everybody means the home folder. */
static enum err expand_home(struct options_parse *p, const struct option_row *row, const char **text, struct error *e)
{
    if (row->type != OPTION_STR || !option_is_path(row) || strncmp(*text, "~/", 2) != 0)
        return OK;
    const char *home = getenv("HOME");
    if (home == NULL || home[0] == '\0')
        return FAIL(e, ERR_INVALID, "option --%s: '~/' stands for the home folder, and HOME is not set", row->name);
    const size_t n = strlen(home) + strlen(*text); /* the NUL takes the place of the '~' */
    char *path = mem_alloc(n);
    if (path == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a path of %zu bytes", n);
    snprintf(path, n, "%s%s", home, *text + 1);
    char **const slot = &p->expanded[row - p->table.rows];
    mem_free(*slot);
    *text = *slot = path;
    return OK;
}

enum err options_unknown(struct option_table t, struct str name, struct error *e)
{
    char plain[48], shown[64];
    size_t n = 0;
    for (; n < name.n && n < sizeof plain; n++)
        plain[n] = name.p[n] == '_' ? '-' : name.p[n];
    struct suggestion s;
    suggest_init(&s, (struct str){plain, name.n > sizeof plain ? 0 : n});
    for (size_t i = 0; i < t.n; i++) {
        suggest_try(&s, t.rows[i].name);
        for (size_t k = 0; k < OPTION_ALIASES_MAX && t.rows[i].aliases[k] != NULL; k++)
            suggest_try(&s, t.rows[i].aliases[k]);
    }
    str_show(name, shown, sizeof shown);
    if (s.best != NULL)
        return FAIL(e, ERR_INVALID, "unknown option '--%s' (did you mean '--%s'?)", shown, s.best);
    return FAIL(e, ERR_INVALID, "unknown option '--%s'", shown);
}

enum err options_set(
    struct options_parse *p, const struct option_row *row, const char *text, enum option_origin origin, struct error *e)
{
    unsigned char *const was = &p->origin[row - p->table.rows];
    if (*was > (unsigned char)origin) { /* a stronger source has spoken; the value must be right all the same */
        union {
            bool b;
            uint64_t u;
            double d;
            const char *s;
            int i;
            struct option_list list;
        } scratch = {0};
        struct option_row probe = *row;
        probe.field = 0;
        return option_store(&probe, text, &scratch, e);
    }
    if (row->type == OPTION_LIST && *was < (unsigned char)origin) /* values of one source add up, sources do not */
        ((struct option_list *)(void *)((char *)p->values + row->field))->n = 0;
    *was = (unsigned char)origin;
    TRY(expand_home(p, row, &text, e));
    return option_store(row, text, p->values, e);
}

/* The words still to be read. */
struct words {
    char *const *v;
    int n, at;
};

/* The value of an option that needs one: attached, or the next word. */
static enum err take_value(
    struct words *w, const struct option_row *row, const char *attached, const char **out, struct error *e)
{
    *out = attached;
    if (attached != NULL)
        return OK;
    if (w->at == w->n || strncmp(w->v[w->at], "--", 2) == 0)
        return FAIL(e, ERR_INVALID, "option --%s needs a value%s", row->name,
            w->at < w->n ? "; write one that starts with dashes as --name=value" : "");
    *out = w->v[w->at++];
    return OK;
}

static enum err parse_long(struct options_parse *p, struct words *w, const char *word, struct error *e)
{
    const char *equals = strchr(word, '=');
    const struct str name = {word, equals != NULL ? (size_t)(equals - word) : strlen(word)};
    const char *value = equals != NULL ? equals + 1 : NULL;
    const struct option_row *row = option_find(p->table, name);
    if (row == NULL && name.n > 3 && strncmp(word, "no", 2) == 0 && (word[2] == '-' || word[2] == '_')) {
        row = option_find(p->table, (struct str){word + 3, name.n - 3});
        if (row != NULL && row->type != OPTION_BOOL)
            return FAIL(e, ERR_INVALID, "option --%s takes a value and cannot be negated", row->name);
        if (row != NULL && value != NULL)
            return FAIL(e, ERR_INVALID, "option --no-%s takes no value", row->name);
        value = "false";
    }
    if (row == NULL)
        return options_unknown(p->table, name, e);
    if (row->type == OPTION_BOOL)
        value = value != NULL ? value : "true";
    else
        TRY(take_value(w, row, value, &value, e));
    return options_set(p, row, value, ORIGIN_ARGS, e);
}

static enum err parse_letters(struct options_parse *p, struct words *w, const char *letters, struct error *e)
{
    for (; *letters != '\0'; letters++) {
        const struct option_row *row = option_find_letter(p->table, *letters);
        if (row == NULL) {
            char shown[8];
            const struct str rest = str_of(letters);
            str_show((struct str){letters, MAX(utf8_len(rest), (size_t)1)}, shown, sizeof shown);
            return FAIL(e, ERR_INVALID, "unknown option '-%s'", shown);
        }
        if (row->type == OPTION_BOOL) {
            TRY(options_set(p, row, "true", ORIGIN_ARGS, e));
            continue;
        }
        const char *value = letters[1] == '\0' ? NULL : letters + 1 + (letters[1] == '=');
        TRY(take_value(w, row, value, &value, e));
        return options_set(p, row, value, ORIGIN_ARGS, e);
    }
    return OK;
}

enum err options_parse_args(struct options_parse *p, int argc, char *const *argv, struct error *e)
{
    struct words w = {.v = argv, .n = argc};
    bool ended = false;
    while (w.at < w.n) {
        const char *word = w.v[w.at++];
        if (!ended && strcmp(word, "--") == 0)
            ended = true;
        else if (!ended && strncmp(word, "--", 2) == 0)
            TRY(parse_long(p, &w, word + 2, e));
        else if (!ended && word[0] == '-' && word[1] != '\0')
            TRY(parse_letters(p, &w, word + 1, e));
        else if (p->verb == NULL)
            p->verb = word;
        else if (p->n_args == CLI_ARGS_MAX)
            return FAIL(e, ERR_LIMIT, "more than %d arguments", CLI_ARGS_MAX);
        else
            p->args[p->n_args++] = word;
    }
    return OK;
}

enum err options_check_verb(const struct options_parse *p, const char *verb, struct error *e)
{
    for (size_t i = 0; i < p->table.n; i++) {
        const struct option_row *row = &p->table.rows[i];
        if (p->origin[i] == ORIGIN_ARGS && !option_has_verb(row, verb))
            return FAIL(e, ERR_INVALID, "option --%s is not for '%s'; it is for: %s", row->name, verb, row->verbs);
    }
    return OK;
}
