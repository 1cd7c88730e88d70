/* The options table and the command line. Types that no row of the program uses yet are tested on a table made here, so
 * that a later row can rely on them. */
#include "testing.h"

#include "base/fault.h"
#include "base/log.h"
#include "cli/cli.h"

#include <ctype.h>

struct values {
    bool flag, on;
    uint64_t count, bytes;
    double ratio;
    const char *name;
    int colour;
    struct option_list items;
};

#define FIELD(name) offsetof(struct values, name)
static const char *const colours[] = {"red", "green", "blue", NULL};
static const struct option_row rows[] = {
    {.name = "flag", .letter = 'f', .type = OPTION_BOOL, .field = FIELD(flag), .verbs = "help version", .help = "."},
    {.name = "on", .letter = 'o', .type = OPTION_BOOL, .field = FIELD(on), .fallback = "true", .help = "."},
    {.name = "max-count",
        .aliases = {"limit", "cap"},
        .letter = 'n',
        .type = OPTION_U64,
        .field = FIELD(count),
        .fallback = "7",
        .min = 2,
        .max = 100,
        .value = "N",
        .help = "."},
    {.name = "size", .type = OPTION_SIZE, .field = FIELD(bytes), .value = "SIZE", .min = 1, .help = "."},
    {.name = "ratio",
        .letter = 'r',
        .type = OPTION_F64,
        .field = FIELD(ratio),
        .fallback = "0.5",
        .f64_min = -1,
        .f64_max = 2.5,
        .value = "X",
        .help = "."},
    {.name = "name", .type = OPTION_STR, .field = FIELD(name), .value = "TEXT", .help = "."},
    {.name = "colour",
        .type = OPTION_ENUM,
        .field = FIELD(colour),
        .choices = colours,
        .fallback = "green",
        .help = "."},
    {.name = "item", .letter = 'i', .type = OPTION_LIST, .field = FIELD(items), .value = "X", .help = "."},
};
static const struct option_table table = {rows, COUNT_OF(rows)};

static struct values v;
static struct options_parse p;
static struct error e;

/* Parse the words against the table above into v. */
static enum err parse(struct error *err, int n, ...)
{
    static char words[CLI_ARGS_MAX + 80][64];
    char *argv[COUNT_OF(words)];
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n; i++) {
        snprintf(words[i], sizeof words[i], "%s", va_arg(args, const char *));
        argv[i] = words[i];
    }
    va_end(args);
    memset(&v, 0, sizeof v);
    options_init(&p, table, &v);
    return options_parse_args(&p, n, argv, err);
}

static void defaults_are_those_of_the_rows(void **state UNUSED)
{
    assert_ok(e, parse(&e, 0));
    assert_false(v.flag);
    assert_true(v.on);
    assert_int_equal(v.count, 7);
    assert_int_equal(v.bytes, 0);
    assert_true(v.ratio == 0.5);
    assert_null(v.name);
    assert_int_equal(v.colour, 1);
    assert_null(p.verb);
}

static void every_spelling_of_a_value_is_read(void **state UNUSED)
{
    assert_ok(e, parse(&e, 2, "--max-count", "5"));
    assert_int_equal(v.count, 5);
    assert_ok(e, parse(&e, 1, "--max-count=6"));
    assert_int_equal(v.count, 6);
    assert_ok(e, parse(&e, 2, "-n", "8"));
    assert_int_equal(v.count, 8);
    assert_ok(e, parse(&e, 1, "-n9"));
    assert_int_equal(v.count, 9);
    assert_ok(e, parse(&e, 1, "-n=10"));
    assert_int_equal(v.count, 10);
    assert_ok(e, parse(&e, 1, "--limit=11"));
    assert_int_equal(v.count, 11);
    assert_ok(e, parse(&e, 2, "--cap", "12"));
    assert_int_equal(v.count, 12);
    assert_ok(e, parse(&e, 1, "--max_count=13"));
    assert_int_equal(v.count, 13);
    assert_ok(e, parse(&e, 2, "-fn", "14"));
    assert_int_equal(v.count, 14);
    assert_true(v.flag);
    assert_ok(e, parse(&e, 2, "-n3", "-n4")); /* the last one counts */
    assert_int_equal(v.count, 4);
    assert_ok(e, parse(&e, 1, "--name=--odd=value"));
    assert_string_equal(v.name, "--odd=value");
}

static void bools_are_switched_on_and_off(void **state UNUSED)
{
    assert_ok(e, parse(&e, 2, "--flag", "--no-on"));
    assert_true(v.flag);
    assert_false(v.on);
    assert_ok(e, parse(&e, 2, "--flag=true", "--on=false"));
    assert_true(v.flag);
    assert_false(v.on);
    assert_ok(e, parse(&e, 2, "--flag", "--no-flag"));
    assert_false(v.flag);
    assert_fails(e, ERR_INVALID, "'yes' is not true or false", parse(&e, 1, "--flag=yes"));
    assert_fails(e, ERR_INVALID, "--no-flag takes no value", parse(&e, 1, "--no-flag=true"));
    assert_fails(e, ERR_INVALID, "--max-count takes a value and cannot be negated", parse(&e, 1, "--no-max-count"));
}

static void values_out_of_range_name_option_value_and_range(void **state UNUSED)
{
    assert_fails(e, ERR_INVALID, "option --max-count: '1' is not between 2 and 100", parse(&e, 1, "-n1"));
    assert_fails(e, ERR_INVALID, "option --max-count: '101' is not between 2 and 100", parse(&e, 1, "--cap=101"));
    assert_ok(e, parse(&e, 1, "-n2"));
    assert_ok(e, parse(&e, 1, "-n100"));
    assert_fails(e, ERR_INVALID, "option --ratio: '2.6' is not between -1 and 2.5", parse(&e, 1, "-r2.6"));
    assert_ok(e, parse(&e, 2, "-r", "-1e0"));
    assert_true(v.ratio == -1);
    assert_fails(e, ERR_INVALID, "option --size: '0' is not at least 1", parse(&e, 1, "--size=0"));
    assert_fails(
        e, ERR_INVALID, "option --colour: 'pink' is not one of red, green, blue", parse(&e, 1, "--colour=pink"));
}

static void numbers_that_are_none_are_refused(void **state UNUSED)
{
    static const char *const not_whole[] = {
        "", "-1", "+3", " 3", "3 ", "3x", "0x10", "3.0", "18446744073709551616", "1e2"};
    for (size_t i = 0; i < COUNT_OF(not_whole); i++)
        assert_fails(e, ERR_INVALID, "is not a whole number", parse(&e, 2, "--max-count", not_whole[i]));
    static const char *const not_number[] = {"", "nan", "inf", "0x1p3", "1..2", "e", "1e999", "--", "1,5"};
    for (size_t i = 0; i < COUNT_OF(not_number); i++) {
        char word[32];
        snprintf(word, sizeof word, "--ratio=%s", not_number[i]);
        assert_fails(e, ERR_INVALID, "is not a number", parse(&e, 1, word));
    }
}

static void sizes_take_binary_and_decimal_units(void **state UNUSED)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"1", 1}, {"4096", 4096}, {"1B", 1}, {"4K", 4096}, {"4KiB", 4096}, {"4k", 4096}, {"4kB", 4000},
        {"4GiB", 4ull << 30}, {"4G", 4ull << 30}, {"4GB", 4000000000ull}, {"1.5GiB", 3ull << 29}, {"0.5M", 1 << 19},
        {"2T", 2ull << 40}, {"18446744073709551615", UINT64_MAX}};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        assert_ok(e, parse(&e, 2, "--size", good[i].text));
        assert_int_equal(v.bytes, good[i].bytes);
    }
    static const char *const bad[] = {
        "", "GiB", "4Q", "4 GiB", "4GiBs", "4Gi", "-4", "1.5", "1.G", ".5G", "20000000T", "18446744073709551616"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_fails(e, ERR_INVALID, "is not a size such as", parse(&e, 2, "--size", bad[i]));
}

static void repeatable_values_add_up_to_a_limit(void **state UNUSED)
{
    assert_ok(e, parse(&e, 3, "-ia", "--item=b", "-i=c"));
    assert_int_equal(v.items.n, 3);
    assert_string_equal(v.items.v[0], "a");
    assert_string_equal(v.items.v[2], "c");
    char *words[OPTION_LIST_MAX + 1];
    static char word[] = "-ix";
    for (size_t i = 0; i < COUNT_OF(words); i++)
        words[i] = word;
    memset(&v, 0, sizeof v);
    options_init(&p, table, &v);
    assert_ok(e, options_parse_args(&p, OPTION_LIST_MAX, words, &e));
    assert_fails(e, ERR_LIMIT, "more than 64 times", options_parse_args(&p, 1, words, &e));
}

static void unknown_options_suggest_the_nearest(void **state UNUSED)
{
    assert_fails(
        e, ERR_INVALID, "unknown option '--max-cuont' (did you mean '--max-count'?)", parse(&e, 1, "--max-cuont"));
    assert_fails(e, ERR_INVALID, "(did you mean '--limit'?)", parse(&e, 1, "--limits=3"));
    assert_fails(e, ERR_INVALID, "(did you mean '--max-count'?)", parse(&e, 1, "--max_c"));
    assert_fails(e, ERR_INVALID, "unknown option '-q'", parse(&e, 1, "-q"));
    assert_ok(e, parse(&e, 0));
    assert_int_equal(parse(&e, 1, "--zzzzzz"), ERR_INVALID);
    assert_null(strstr(e.text, "mean"));
    e = (struct error){0};
    assert_int_equal(parse(&e, 1, "--\x1b[31m\xff"), ERR_INVALID);
    assert_null(strchr(e.text, '\x1b')); /* what was typed cannot talk to the terminal */
}

static void missing_values_are_noticed(void **state UNUSED)
{
    assert_fails(e, ERR_INVALID, "option --name needs a value", parse(&e, 1, "--name"));
    assert_fails(e, ERR_INVALID, "option --name needs a value", parse(&e, 2, "--name", "--flag"));
    assert_fails(e, ERR_INVALID, "option --max-count needs a value", parse(&e, 1, "-n"));
    assert_fails(e, ERR_INVALID, "option --name: the value is empty", parse(&e, 1, "--name="));
}

static void arguments_and_the_verb_are_told_from_options(void **state UNUSED)
{
    assert_ok(e, parse(&e, 6, "--flag", "help", "a", "-n3", "-", "b"));
    assert_string_equal(p.verb, "help");
    assert_int_equal(p.n_args, 3);
    assert_string_equal(p.args[1], "-");
    assert_ok(e, parse(&e, 4, "help", "--", "--flag", "-n3"));
    assert_false(v.flag);
    assert_int_equal(p.n_args, 2);
    assert_string_equal(p.args[0], "--flag");
    memset(&v, 0, sizeof v);
    options_init(&p, table, &v);
    char word[] = "x";
    char *many[CLI_ARGS_MAX + 2];
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = word;
    assert_fails(e, ERR_LIMIT, "more than 16 arguments", options_parse_args(&p, (int)COUNT_OF(many), many, &e));
}

static void options_of_another_verb_are_refused(void **state UNUSED)
{
    assert_ok(e, parse(&e, 1, "--flag"));
    assert_ok(e, options_check_verb(&p, "help", &e));
    assert_ok(e, options_check_verb(&p, "version", &e));
    assert_fails(e, ERR_INVALID, "option --flag is not for 'inspect'; it is for: help version",
        options_check_verb(&p, "inspect", &e));
    assert_fails(e, ERR_INVALID, "is not for 'hel'", options_check_verb(&p, "hel", &e));
    assert_ok(e, parse(&e, 1, "--on"));
    assert_ok(e, options_check_verb(&p, "inspect", &e));
}

/* ---- the table of the program ---- */

static void every_row_parses_its_own_default(void **state UNUSED)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++) {
        struct options o = {0};
        if (t.rows[i].fallback != NULL)
            assert_ok(e, option_store(&t.rows[i], t.rows[i].fallback, &o, &e));
        assert_true(t.rows[i].field < sizeof o);
        assert_true(t.rows[i].max == 0 || t.rows[i].min <= t.rows[i].max);
    }
}

static void every_row_is_documented(void **state UNUSED)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++) {
        const struct option_row *row = &t.rows[i];
        const size_t n = strlen(row->help);
        if (n < 10 || row->help[n - 1] != '.')
            fail_msg("--%s: help is not a sentence", row->name);
        const bool may_be_unnamed = row->type == OPTION_BOOL || row->type == OPTION_ENUM; /* help shows the choices */
        if (row->value == NULL ? !may_be_unnamed : row->type == OPTION_BOOL)
            fail_msg("--%s: the value's name and the type do not agree", row->name);
        assert_true((row->type == OPTION_ENUM) == (row->choices != NULL));
        assert_true(row->group < GROUP_COUNT);
        for (const char *c = row->name; *c != '\0'; c++)
            assert_true(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '-');
        assert_int_not_equal(strncmp(row->name, "no-", 3), 0); /* that is how bools are switched off */
    }
}

static void every_row_names_verbs_that_exist(void **state UNUSED)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++)
        for (const char *w = t.rows[i].verbs; w != NULL && *w != '\0';) {
            const size_t len = strcspn(w, " ");
            if (verb_find((struct str){w, len}) == NULL)
                fail_msg("--%s is for '%.*s', which is no verb", t.rows[i].name, (int)len, w);
            w += len + strspn(w + len, " ");
        }
}

static size_t count_name(struct option_table t, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < t.n; i++) {
        n += strcmp(t.rows[i].name, name) == 0;
        for (size_t k = 0; k < OPTION_ALIASES_MAX && t.rows[i].aliases[k] != NULL; k++)
            n += strcmp(t.rows[i].aliases[k], name) == 0;
    }
    return n;
}

static void no_two_rows_share_a_name_or_letter(void **state UNUSED)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++) {
        assert_int_equal(count_name(t, t.rows[i].name), 1);
        for (size_t k = 0; k < OPTION_ALIASES_MAX && t.rows[i].aliases[k] != NULL; k++)
            assert_int_equal(count_name(t, t.rows[i].aliases[k]), 1);
        if (t.rows[i].letter != '\0')
            assert_ptr_equal(option_find_letter(t, t.rows[i].letter), &t.rows[i]);
        assert_ptr_equal(option_find(t, str_of(t.rows[i].name)), &t.rows[i]);
    }
}

static void no_two_rows_share_a_field(void **state UNUSED)
{
    const struct option_table t = options_table();
    for (size_t i = 0; i < t.n; i++)
        for (size_t k = 0; k < i; k++)
            if (t.rows[i].field == t.rows[k].field)
                fail_msg("--%s and --%s write one field", t.rows[i].name, t.rows[k].name);
}

static void every_verb_is_described(void **state UNUSED)
{
    size_t n;
    const struct verb *verbs = verbs_table(&n);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(verb_find(str_of(verbs[i].name)), &verbs[i]); /* so no two share a name */
        assert_true(strlen(verbs[i].summary) > 5 && strlen(verbs[i].about) > 10);
        assert_non_null(verbs[i].run);
        assert_non_null(verbs[i].arguments);
        assert_true(verbs[i].args_min <= verbs[i].args_max && verbs[i].args_max <= CLI_ARGS_MAX);
        assert_true((verbs[i].args_max == 0) == (verbs[i].arguments[0] == '\0'));
    }
}

static void enum_words_follow_the_enums_they_name(void **state UNUSED)
{
    const struct option_table t = options_table();
    const struct option_row *level = option_find(t, STR("log-level")), *format = option_find(t, STR("log-format"));
    assert_int_equal(option_choices(level), LOG_LEVEL_COUNT);
    assert_string_equal(level->choices[LOG_ERROR], "error");
    assert_string_equal(level->choices[LOG_WARN], "warn");
    assert_string_equal(level->choices[LOG_INFO], "info");
    assert_string_equal(level->choices[LOG_DEBUG], "debug");
    assert_string_equal(format->choices[LOG_TEXT], "text");
    assert_string_equal(format->choices[LOG_JSON], "json");
    const struct option_row *kv = option_find(t, STR("kv-cache-dtype"));
    assert_int_equal(option_choices(kv), KV_DTYPE_COUNT);
    assert_string_equal(kv->choices[KV_AUTO], "auto");
    assert_string_equal(kv->choices[KV_BF16], "bf16");
    assert_string_equal(kv->choices[KV_Q4_0], "q4_0");
}

static void parsing_the_command_line_allocates_nothing(void **state UNUSED)
{
    fault_arm(FAULT_ALLOC, 1, true);
    assert_ok(e, parse(&e, 4, "--flag", "-n3", "--item=a", "x"));
    assert_int_equal(fault_calls(FAULT_ALLOC), 0);
    fault_arm(FAULT_ALLOC, 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_rows),
        cmocka_unit_test(every_spelling_of_a_value_is_read),
        cmocka_unit_test(bools_are_switched_on_and_off),
        cmocka_unit_test(values_out_of_range_name_option_value_and_range),
        cmocka_unit_test(numbers_that_are_none_are_refused),
        cmocka_unit_test(sizes_take_binary_and_decimal_units),
        cmocka_unit_test(repeatable_values_add_up_to_a_limit),
        cmocka_unit_test(unknown_options_suggest_the_nearest),
        cmocka_unit_test(missing_values_are_noticed),
        cmocka_unit_test(arguments_and_the_verb_are_told_from_options),
        cmocka_unit_test(options_of_another_verb_are_refused),
        cmocka_unit_test(every_row_parses_its_own_default),
        cmocka_unit_test(every_row_is_documented),
        cmocka_unit_test(every_row_names_verbs_that_exist),
        cmocka_unit_test(no_two_rows_share_a_name_or_letter),
        cmocka_unit_test(no_two_rows_share_a_field),
        cmocka_unit_test(every_verb_is_described),
        cmocka_unit_test(enum_words_follow_the_enums_they_name),
        cmocka_unit_test(parsing_the_command_line_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
