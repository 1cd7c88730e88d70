/* JSON schemas: what they accept, what they refuse and in which words, and that hostile ones cost what the limits
 * allow. The larger table and the official suite are in tests/py/test_grammar_schema.py. */
#include "base/buf.h"
#include "base/fault.h"
#include "base/limits.h"
#include "testing_vocab.h"

#include <string.h>

static enum err compile(const char *schema, size_t n, enum grammar_whitespace ws, struct grammar **out, struct error *e)
{
    const struct grammar_source src = {GRAMMAR_JSON_SCHEMA, {schema, n}, ws};
    return grammar_compile(&src, test_vocab(), out, e);
}

struct check {
    const char *schema;
    const char *yes[6], *no[6];
};

static void judge(const struct check *c, struct grammar *g)
{
    for (size_t i = 0; i < COUNT_OF(c->yes) && c->yes[i] != NULL; i++)
        if (!grammar_matches(g, str_of(c->yes[i])))
            fail_msg("%s: refuses %s", c->schema, c->yes[i]);
    for (size_t i = 0; i < COUNT_OF(c->no) && c->no[i] != NULL; i++)
        if (grammar_matches(g, str_of(c->no[i])))
            fail_msg("%s: accepts %s", c->schema, c->no[i]);
}

static void schema_accepts_what_satisfies_it_and_nothing_else(void **state)
{
    (void)state;
    static const struct check checks[] = {
        {"true", {"null", "{\"a\": [1, \"x\", {}]}", "-1.5e-7"}, {"", "nul", "[1,2]", "01", "{\"a\":1}"}},
        {"{\"type\":\"integer\"}", {"0", "-12", "3.0", "10000000000000000"}, {"1.5", "1e2", "1e16", "3.00", "-", "00"}},
        {"{\"type\":\"integer\",\"minimum\":-3,\"exclusiveMaximum\":120}", {"-3", "0", "-0", "119", "119.0"},
            {"-4", "120", "1190", "-30", "1e16"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":12.25}", {"0.51", "12.25", "5.5e-0", "9", "1e1"},
            {"0.5", "0.50", "12.251", "1e2", "-1"}},
        {"{\"type\":\"integer\",\"multipleOf\":12}", {"0", "12", "-144", "24.0"}, {"13", "6", "1e20", "12.5"}},
        {"{\"type\":\"string\",\"maxLength\":2}", {"\"\"", "\"a\\n\"", "\"\\u00e4x\""}, {"\"abc\"", "\"", "a"}},
        {"{\"enum\":[\"a\\\"\",1,null]}", {"\"a\\\"\"", "1", "1.0", "null"}, {"\"a\"", "true", "1.00"}},
        {"{\"const\":[{\"x\":1}]}", {"[{\"x\": 1}]"}, {"[]", "[{}]", "[{\"x\": 2}]"}},
        {"{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"maxItems\":2}", {"[]", "[null, null]"},
            {"[null, null, null]", "[null,null]", "[1]"}},
        {"{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}",
            {"[]", "[[], [[]]]"}, {"[1]", "[[]"}},
        {"{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{\"type\":\"null\"}},\"required\":[\"a\"]}",
            {"{\"a\": null}", "{\"b\": 1, \"a\": null, \"c\": 2}"},
            {"{}", "{\"a\": null, \"b\": 1}", "{\"a\": 1}", "{\"a\": null, \"\\u0061\": 1}"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"minimum\":2}]}", {"1", "2.5", "null"}, {"3", "1.5"}},
        {"{\"not\":{\"type\":[\"object\",\"array\"]}}", {"1", "\"x\"", "null"}, {"{}", "[]"}},
        {"{\"type\":\"string\",\"format\":\"date\"}", {"\"2024-02-29\""}, {"\"2023-02-29\"", "\"2024-1-1\""}},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        const struct check *c = &checks[i];
        struct error e;
        struct grammar *g;
        assert_ok(e, compile(c->schema, strlen(c->schema), GRAMMAR_WS_SPACED, &g, &e));
        judge(c, g);
        grammar_unref(g);
    }
}

static void schema_whitespace_is_spaced_compact_or_flexible(void **state)
{
    (void)state;
    const char *schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"items\":{\"const\":1}}},\"required\":[\"a\"]}";
    static const char *const texts[] = {"{\"a\": [1, 1]}", "{\"a\":[1,1]}", "{\n  \"a\": [\n    1\n  ]\n}"};
    for (int ws = 0; ws < 3; ws++) {
        struct error e;
        struct grammar *g;
        assert_ok(e, compile(schema, strlen(schema), (enum grammar_whitespace)ws, &g, &e));
        for (int i = 0; i < 3; i++)
            assert_int_equal(grammar_matches(g, str_of(texts[i])), ws == 2 || ws == i);
        grammar_unref(g);
    }
}

static void schema_refuses_by_name_and_path(void **state)
{
    (void)state;
    static const struct {
        const char *schema;
        enum err code;
        const char *part;
    } checks[] = {
        {"{\"properties\":{\"x\":{\"uniqueItems\":true}}}", ERR_UNSUPPORTED,
            "'uniqueItems' at #/properties/x/uniqueItems"},
        {"{\"properties\":{\"a/b~\":{\"nonsense\":1}}}", ERR_UNSUPPORTED, "#/properties/a~1b~0/nonsense"},
        {"{\"allOf\":[{},{\"format\":\"x\"}]}", ERR_UNSUPPORTED, "#/allOf/1/format"},
        {"{\"$ref\":\"other.json\"}", ERR_UNSUPPORTED, "#/$ref"},
        {"{\"minItems\":\"1\"}", ERR_INVALID, "#/minItems must be a whole number"},
        {"{\"type\":\"stsring\"}", ERR_INVALID, "'type' at #/type"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"}]}}}", ERR_INVALID, "refers to itself"},
        {"{\"const\":1,\"type\":\"string\"}", ERR_INVALID, "no value can satisfy"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", ERR_INVALID, "no value can satisfy"},
        {"{\"maxLength\":1,", ERR_INVALID, "invalid JSON"},
        {"{\"minProperties\":100000}", ERR_LIMIT, "minProperties"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct error e;
        struct grammar *g = NULL;
        assert_fails(e, checks[i].code, checks[i].part,
            compile(checks[i].schema, strlen(checks[i].schema), GRAMMAR_WS_SPACED, &g, &e));
        assert_null(g);
    }
}

/* head, then n times `each` with its number, then tail. */
static void hostile(enum err want, const char *part, const char *head, const char *each, uint32_t n, const char *tail)
{
    struct buf b;
    struct error e;
    struct grammar *g = NULL;
    buf_init(&b, 8 * MIB);
    buf_add(&b, str_of(head));
    for (uint32_t i = 0; i < n; i++) {
        for (const char *p = each; *p != '\0'; p++) {
            if (*p == '@')
                buf_addf(&b, "%u", i);
            else if (*p != ',' || p[1] != '\0' || i + 1 < n)
                buf_add_char(&b, *p);
        }
    }
    buf_add(&b, str_of(tail));
    assert_ok(e, buf_check(&b, "schema", &e));
    if (want == OK)
        assert_ok(e, compile(b.p, b.n, GRAMMAR_WS_SPACED, &g, &e));
    else
        assert_fails(e, want, part, compile(b.p, b.n, GRAMMAR_WS_SPACED, &g, &e));
    grammar_unref(g);
    buf_fini(&b);
}

static void schema_hostile_ones_end_within_limits(void **state)
{
    (void)state;
    hostile(ERR_LIMIT, "nested", "", "{\"items\":", 100000, "");
    hostile(ERR_LIMIT, "more than", "{\"properties\":{", "\"p@\":{},", 20000, "}}");
    hostile(ERR_LIMIT, "alternatives", "{\"allOf\":[", "{\"anyOf\":[{\"minimum\":@},{\"maxLength\":@}]},", 20, "]}");
    hostile(ERR_LIMIT, "words of an enum", "{\"enum\":[", "\"w@-xxxxxxxxxxxxxxxxxxxxxxxxx\",", 20000, "]}");
    hostile(OK, "", "{\"enum\":[", "\"w@\",", 5000, "]}");
}

/* A chain of references is followed as far as is allowed, and no farther. */
static void schema_chains_of_references_are_bounded(void **state)
{
    (void)state;
    for (uint32_t n = 100; n <= 400; n += 300) {
        struct buf b;
        struct error e;
        struct grammar *g = NULL;
        buf_init(&b, MIB);
        buf_add(&b, STR("{\"$ref\":\"#/$defs/a0\",\"$defs\":{"));
        for (uint32_t i = 0; i < n; i++)
            buf_addf(&b, "\"a%u\":{\"$ref\":\"#/$defs/a%u\"},", i, i + 1);
        buf_addf(&b, "\"a%u\":{\"type\":\"null\"}}}", n);
        if (n < SCHEMA_REF_DEPTH_MAX) {
            assert_ok(e, compile(b.p, b.n, GRAMMAR_WS_SPACED, &g, &e));
            assert_true(grammar_matches(g, STR("null")));
        } else
            assert_fails(e, ERR_LIMIT, "references", compile(b.p, b.n, GRAMMAR_WS_SPACED, &g, &e));
        grammar_unref(g);
        buf_fini(&b);
    }
}

static void schema_large_counts_are_counted_not_written_out(void **state)
{
    (void)state;
    struct error e;
    struct grammar *g;
    const char *schema = "{\"type\":\"array\",\"items\":{\"const\":1},\"minItems\":1000000}";
    assert_ok(e, compile(schema, strlen(schema), GRAMMAR_WS_COMPACT, &g, &e));
    assert_true(grammar_bytes(g) < 100000);
    assert_true(grammar_is_prefix(g, STR("[1,1,1")));
    assert_false(grammar_matches(g, STR("[1,1,1]")));
    grammar_unref(g);
}

/* Each allocation fails once: an answer in words, and nothing is lost (the sanitisers look). */
static void schema_survives_every_failed_allocation(void **state)
{
    (void)state;
    const char *schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"maximum\":5},"
        "\"b\":{\"anyOf\":[{\"$ref\":\"#\"},{\"format\":\"date\"}]}},\"patternProperties\":{\"^x\":{}}}";
    bool is_done = false;
    for (uint64_t nth = 1; !is_done && nth < 10000; nth++) {
        struct error e = {0};
        struct grammar *g = NULL;
        fault_arm(FAULT_ALLOC, nth, false);
        const enum err err = compile(schema, strlen(schema), GRAMMAR_WS_SPACED, &g, &e);
        is_done = fault_calls(FAULT_ALLOC) < nth;
        fault_arm(FAULT_ALLOC, 0, false);
        if (err != OK && (is_done || err != ERR_NOMEM))
            fail_msg("allocation %u: %s: %s", (unsigned)nth, err_name(err), e.text);
        assert_true(err == OK || e.text[0] != '\0');
        grammar_unref(g);
    }
    assert_true(is_done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schema_accepts_what_satisfies_it_and_nothing_else),
        cmocka_unit_test(schema_whitespace_is_spaced_compact_or_flexible),
        cmocka_unit_test(schema_refuses_by_name_and_path),
        cmocka_unit_test(schema_hostile_ones_end_within_limits),
        cmocka_unit_test(schema_chains_of_references_are_bounded),
        cmocka_unit_test(schema_large_counts_are_counted_not_written_out),
        cmocka_unit_test(schema_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
