/* The config file: precedence, sections, quoting, and mistakes named by line. */
#include "testing.h"

#include "cli/cli.h"

#include <stdlib.h>

struct values {
    bool flag, tail; /* tail comes last: a write past a field would show */
    uint64_t count;
    const char *name, *folder;
    struct option_list items;
};

#define FIELD(name) offsetof(struct values, name)
static const struct option_row rows[] = {
    {.name = "flag", .type = OPTION_BOOL, .field = FIELD(flag), .help = "."},
    {.name = "count",
        .aliases = {"limit"},
        .type = OPTION_U64,
        .field = FIELD(count),
        .fallback = "7",
        .max = 100,
        .value = "N",
        .help = "."},
    {.name = "name", .type = OPTION_STR, .field = FIELD(name), .value = "TEXT", .verbs = "inspect", .help = "."},
    {.name = "folder", .type = OPTION_STR, .field = FIELD(folder), .value = "DIR", .help = "."},
    {.name = "item", .type = OPTION_LIST, .field = FIELD(items), .value = "X", .help = "."},
    {.name = "config", .type = OPTION_BOOL, .field = FIELD(tail), .cli_only = true, .help = "."},
};
static const struct option_table table = {rows, COUNT_OF(rows)};

static struct values v;
static struct options_parse p;
static struct error e;
static char text[4096];

/* The file's text after the given command line (one word, or NULL) and the verb. */
static enum err parse(struct error *err, const char *word, const char *verb, const char *file)
{
    char words[2][64];
    char *argv[2] = {words[0], words[1]};
    int n = 0;
    if (verb != NULL)
        snprintf(words[n++], 64, "%s", verb);
    if (word != NULL)
        snprintf(words[n++], 64, "%s", word);
    memset(&v, 0, sizeof v);
    options_init(&p, table, &v);
    const enum err code = options_parse_args(&p, n, argv, err);
    if (code != OK)
        return code;
    p.verb = verb; /* argv dies here */
    snprintf(text, sizeof text, "%s", file);
    return options_parse_text(&p, text, strlen(text), err);
}

static void lines_set_options(void **state UNUSED)
{
    assert_ok(e, parse(&e, NULL, "inspect", "# comment\n\n  count = 12 \r\nflag=true\nname = a b # c\n"));
    assert_int_equal(v.count, 12);
    assert_true(v.flag);
    assert_string_equal(v.name, "a b # c");
    assert_ok(e, parse(&e, NULL, "inspect", "limit = 3")); /* alias, no newline at the end */
    assert_int_equal(v.count, 3);
    assert_ok(e, parse(&e, NULL, "inspect", ""));
    assert_int_equal(v.count, 7);
}

static void quotes_keep_blanks_and_undo_escapes(void **state UNUSED)
{
    assert_ok(e, parse(&e, NULL, "inspect", "name = \"  a \\\"b\\\" \\\\ \\n\\t\"\n"));
    assert_string_equal(v.name, "  a \"b\" \\ \n\t");
    assert_fails(e, ERR_INVALID, "line 1: a quoted value ends with its closing quote",
        parse(&e, NULL, "inspect", "name = \"abc\n"));
    assert_fails(e, ERR_INVALID, "closing quote", parse(&e, NULL, "inspect", "name = \"a\" b\n"));
    assert_fails(e, ERR_INVALID, "a backslash stands before", parse(&e, NULL, "inspect", "name = \"\\x\"\n"));
    assert_fails(e, ERR_INVALID, "a backslash stands before", parse(&e, NULL, "inspect", "name = \"\\"));
    assert_fails(e, ERR_INVALID, "closing quote", parse(&e, NULL, "inspect", "name = \""));
}

static void the_command_line_wins_over_section_over_top(void **state UNUSED)
{
    static const char file[] =
        "count = 1\nitem = t1\nitem = t2\n[inspect]\ncount = 2\nitem = s\n[version]\ncount = 3\n";
    assert_ok(e, parse(&e, NULL, "inspect", file));
    assert_int_equal(v.count, 2);
    assert_int_equal(v.items.n, 1);
    assert_string_equal(v.items.v[0], "s");
    assert_ok(e, parse(&e, NULL, "help", file));
    assert_int_equal(v.count, 1);
    assert_int_equal(v.items.n, 2);
    assert_ok(e, parse(&e, NULL, "version", file));
    assert_int_equal(v.count, 3);
    assert_ok(e, parse(&e, "--count=50", "inspect", file));
    assert_int_equal(v.count, 50);
    assert_ok(e, parse(&e, "--item=c", "inspect", file));
    assert_int_equal(v.items.n, 1);
    assert_string_equal(v.items.v[0], "c");
}

static void mistakes_name_the_line(void **state UNUSED)
{
    assert_fails(e, ERR_INVALID, "line 2: unknown option '--cuont' (did you mean '--count'?)",
        parse(&e, NULL, "inspect", "flag = true\ncuont = 3\n"));
    assert_fails(
        e, ERR_INVALID, "line 1: option --count: '101' is not between", parse(&e, NULL, "help", "count = 101"));
    assert_fails(e, ERR_INVALID, "line 1: option --count: '101' is not", parse(&e, "--count=3", "help", "count = 101"));
    assert_fails(e, ERR_INVALID, "line 3: option --count: 'x' is not",
        parse(&e, NULL, "help", "\n[inspect]\ncount = x\n")); /* another verb's section is checked too */
    assert_fails(
        e, ERR_INVALID, "line 1: option --flag: 'yes' is not true or false", parse(&e, NULL, "help", "flag = yes"));
    assert_fails(e, ERR_INVALID, "line 1: 'flag' is not 'name = value'", parse(&e, NULL, "help", "flag\n"));
    assert_fails(e, ERR_INVALID, "line 2: option --count was already set in line 1",
        parse(&e, NULL, "help", "count = 1\nlimit = 2\n"));
    assert_fails(e, ERR_INVALID, "belongs on the command line", parse(&e, NULL, "help", "config = true\n"));
    assert_fails(e, ERR_INVALID, "the value is empty", parse(&e, NULL, "help", "name =\n"));
}

static void sections_must_be_verbs_and_options_must_fit_them(void **state UNUSED)
{
    assert_fails(e, ERR_INVALID, "line 1: section [inspct] is not a verb (did you mean [inspect]?)",
        parse(&e, NULL, "help", "[inspct]\n"));
    assert_fails(e, ERR_INVALID, "has no closing", parse(&e, NULL, "help", "[inspect\n"));
    assert_fails(e, ERR_INVALID, "is not a verb", parse(&e, NULL, "help", "[]\n"));
    assert_fails(e, ERR_INVALID, "has no closing", parse(&e, NULL, "help", "[\n"));
    assert_fails(
        e, ERR_INVALID, "option --name is not for 'version'", parse(&e, NULL, "help", "[version]\nname = a\n"));
    assert_ok(e, parse(&e, NULL, "version", "name = a\n")); /* at the top: for whoever takes it */
}

static void a_tilde_before_a_path_is_the_home_folder(void **state UNUSED)
{
    assert_int_equal(setenv("HOME", "/home/ada", 1), 0);
    assert_ok(e, parse(&e, NULL, "inspect", "folder = ~/models\nname = ~/models\nitem = ~/x\n"));
    assert_string_equal(v.folder, "/home/ada/models");
    assert_string_equal(v.name, "~/models"); /* not a path */
    assert_string_equal(v.items.v[0], "~/x");
    options_fini(&p);
    assert_ok(e, parse(&e, NULL, "inspect", "folder = ~/a\n[inspect]\nfolder = \"~/b c\"\n[help]\nfolder = ~/d\n"));
    assert_string_equal(v.folder, "/home/ada/b c");
    options_fini(&p);
    assert_ok(e, parse(&e, "--folder=~/", "inspect", "folder = ~/models\n"));
    assert_string_equal(v.folder, "/home/ada/");
    options_fini(&p);
    assert_ok(e, parse(&e, NULL, "inspect", "folder = ~ada/models\n"));
    assert_string_equal(v.folder, "~ada/models");
    assert_int_equal(unsetenv("HOME"), 0);
    assert_fails(e, ERR_INVALID, "line 1: option --folder: '~/' stands for the home folder, and HOME is not set",
        parse(&e, NULL, "inspect", "folder = ~/models\n"));
}

static void a_nul_byte_is_refused(void **state UNUSED)
{
    memset(&v, 0, sizeof v);
    options_init(&p, table, &v);
    char bytes[] = "count = 1\0002\n";
    assert_fails(e, ERR_INVALID, "line 1: a NUL byte", options_parse_text(&p, bytes, sizeof bytes - 1, &e));
}

static void a_file_that_is_not_there_is_named(void **state UNUSED)
{
    options_init(&p, table, &v);
    assert_fails(e, ERR_NOT_FOUND, "/nonexistent/quern.conf", options_parse_file(&p, "/nonexistent/quern.conf", &e));
    options_fini(&p);
    options_init(&p, table, &v);
    assert_fails(e, ERR_INVALID, "is a directory", options_parse_file(&p, "/", &e));
    options_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_set_options),
        cmocka_unit_test(quotes_keep_blanks_and_undo_escapes),
        cmocka_unit_test(the_command_line_wins_over_section_over_top),
        cmocka_unit_test(mistakes_name_the_line),
        cmocka_unit_test(sections_must_be_verbs_and_options_must_fit_them),
        cmocka_unit_test(a_tilde_before_a_path_is_the_home_folder),
        cmocka_unit_test(a_nul_byte_is_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
