/* The JSON door: limits, bad documents, getters, and every failing allocation. */
#include "base_testing.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

static json_t *parsed(const char *text)
{
    struct error e;
    json_t *doc;
    assert_ok(e, json_parse(str_of(text), &doc, &e));
    return doc;
}

static void bad_documents_name_the_place(void **state)
{
    (void)state;
    static const char *const bad[] = {"", " ", "{", "[1,]", "{\"a\":1,}", "{\"a\" 1}", "nul", "01", "1 2", "[1] x",
        "\"\x01\"", "\"a\nb\"", "\"\\u12\"", "\"\\ud800\"", "\"\xff\"", "{\"a\":1,\"a\":2}", "'a'", "NaN", "[1e999]",
        "99999999999999999999", "/* c */ 1", "]", "}", "{\"\\u0000\":1}"};
    struct error e;
    json_t *doc;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_fails(e, ERR_FORMAT, "invalid JSON at line ", json_parse(str_of(bad[i]), &doc, &e));
        assert_null(doc);
        assert_true(utf8_is_valid(str_of(e.text)));
    }
    assert_fails(e, ERR_FORMAT, "line 2 column 3", json_parse(STR("{\n  x}"), &doc, &e));
    assert_fails(e, ERR_FORMAT, "invalid JSON", json_parse(str_of(NULL), &doc, &e));
    assert_fails(e, ERR_FORMAT, "duplicate", json_parse(STR("{\"k\":1,\"k\":1}"), &doc, &e));
}

/* Depth d of arrays or objects; the inner brackets of a string do not count. */
static enum err parse_depth(int d, bool objects, struct error *e)
{
    struct buf b;
    json_t *doc;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < d; i++)
        buf_add(&b, objects && i + 1 < d ? STR("{\"]\\\"\":") : STR("["));
    buf_add(&b, STR("\"[[[[{{{{\""));
    for (int i = d; i-- > 0;)
        buf_add_char(&b, objects && i + 1 < d ? '}' : ']');
    const enum err err = json_parse(buf_str(&b), &doc, e);
    buf_fini(&b);
    json_decref(doc);
    return err;
}

static void nesting_has_an_exact_limit(void **state)
{
    (void)state;
    struct error e;
    assert_ok(e, parse_depth(JSON_DEPTH_MAX, false, &e));
    assert_ok(e, parse_depth(JSON_DEPTH_MAX, true, &e));
    assert_fails(e, ERR_LIMIT, "deeper than 128", parse_depth(JSON_DEPTH_MAX + 1, false, &e));
    assert_fails(e, ERR_LIMIT, "deeper than 128", parse_depth(JSON_DEPTH_MAX + 1, true, &e));
    assert_fails(e, ERR_LIMIT, "deeper than 128", parse_depth(100000, false, &e));
}

static void files_are_limited_and_named(void **state)
{
    (void)state;
    struct error e;
    json_t *doc;
    assert_ok(e, file_write_atomic(in_temp("good.json"), STR("{\"a\":[1,2]}"), &e));
    assert_ok(e, json_parse_file(in_temp("good.json"), 100, &doc, &e));
    assert_int_equal(json_array_size(json_object_get(doc, "a")), 2);
    json_decref(doc);
    assert_fails(e, ERR_LIMIT, "the limit is 5", json_parse_file(in_temp("good.json"), 5, &doc, &e));
    assert_ok(e, file_write_atomic(in_temp("bad.json"), STR("{\"a\":"), &e));
    assert_fails(
        e, ERR_FORMAT, "bad.json: invalid JSON at line 1", json_parse_file(in_temp("bad.json"), 100, &doc, &e));
    assert_fails(e, ERR_NOT_FOUND, "none.json", json_parse_file(in_temp("none.json"), 100, &doc, &e));
}

static enum err case_parse_file(void *ctx, struct error *e)
{
    json_t *doc;
    const enum err err = json_parse_file(ctx, 10000, &doc, e);
    assert_true((err == OK) == (doc != NULL));
    json_decref(doc);
    return err;
}

static void every_failing_call_is_an_answer(void **state)
{
    (void)state;
    struct error e;
    char path[128];
    snprintf(path, sizeof path, "%s", in_temp("doc.json"));
    assert_ok(
        e, file_write_atomic(path,
               STR("{\"a key and a number longer than the lexer's first "
                   "buffer\":-1.234567890123456789012345678901234567e-12,"
                   "\"s\":\"caf\xc3\xa9 \\u00e9\",\"i\":-3,\"r\":2.5e3,\"a\":[1,2,3,4,5,6,7,8,9,[],{}],\"n\":null,"
                   "\"t\":true,\"o\":{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9}}"),
               &e));
    case_parse_file(path, &e);
    assert_true(fail_each(FAULT_SYS, case_parse_file, path) >= 3);
    assert_true(fail_each(FAULT_ALLOC, case_parse_file, path) >= 30);
    /* The code is the shortage, not a complaint about the document. */
    for (uint64_t nth = 1; nth <= 30; nth++) {
        fault_arm(FAULT_ALLOC, nth, true);
        e = (struct error){0};
        const enum err err = case_parse_file(path, &e);
        fault_arm(FAULT_ALLOC, 0, false);
        if (err != ERR_NOMEM)
            fail_msg("allocation %d: %s (%s)", (int)nth, err_name(err), e.text);
    }
}

/* jansson alone writes behind a string whose closing quote found no room; which length that is depends on its buffer.
 */
static void a_string_of_any_length_fails_cleanly(void **state)
{
    (void)state;
    for (int len = 1; len < 70; len++) {
        char doc[96];
        snprintf(doc, sizeof doc, "[\"%0*d\"]", len, 0);
        for (uint64_t nth = 1;; nth++) {
            struct error e = {0};
            json_t *out;
            fault_arm(FAULT_ALLOC, nth, false);
            const enum err err = json_parse(str_of(doc), &out, &e);
            const bool is_past_end = fault_calls(FAULT_ALLOC) < nth;
            fault_arm(FAULT_ALLOC, 0, false);
            assert_int_equal(err, is_past_end ? OK : ERR_NOMEM);
            json_decref(out);
            if (is_past_end)
                break;
        }
    }
}

static void getters_check_type_and_range(void **state)
{
    (void)state;
    struct error e;
    json_t *o = parsed("{\"n\":7,\"neg\":-1,\"whole\":3.0,\"half\":2.5,\"big\":1e300,\"t\":true,\"s\":\"a\\u0000b\","
                       "\"null\":null,\"o\":{},\"a\":[],\"max\":9223372036854775807}");
    uint64_t u = 99;
    assert_ok(e, json_get_u64(o, "missing", 0, 1, &u, &e));
    assert_ok(e, json_get_u64(o, "null", 0, 1, &u, &e));
    assert_int_equal(u, 99);
    assert_ok(e, json_get_u64(o, "n", 7, 7, &u, &e));
    assert_int_equal(u, 7);
    assert_ok(e, json_get_u64(o, "whole", 0, 10, &u, &e));
    assert_int_equal(u, 3);
    assert_ok(e, json_get_u64(o, "max", 0, UINT64_MAX, &u, &e));
    assert_true(u == INT64_MAX);
    assert_fails(e, ERR_INVALID, "field 'n' must be a whole number from 8 to 9", json_get_u64(o, "n", 8, 9, &u, &e));
    static const char *const not_whole[] = {"neg", "half", "big", "t", "s", "o", "a"};
    for (size_t i = 0; i < COUNT_OF(not_whole); i++)
        assert_fails(e, ERR_INVALID, not_whole[i], json_get_u64(o, not_whole[i], 0, UINT64_MAX, &u, &e));
    assert_true(u == INT64_MAX); /* a failure changes nothing */

    double d = 0;
    assert_ok(e, json_get_f64(o, "half", 0, 3, &d, &e));
    assert_true(d == 2.5);
    assert_ok(e, json_get_f64(o, "n", 0, 10, &d, &e));
    assert_true(d == 7);
    assert_fails(e, ERR_INVALID, "'big' must be a number from 0 to 1", json_get_f64(o, "big", 0, 1, &d, &e));
    assert_fails(e, ERR_INVALID, "'s'", json_get_f64(o, "s", 0, 1, &d, &e));
    bool b = false;
    assert_ok(e, json_get_bool(o, "t", &b, &e));
    assert_true(b);
    assert_fails(e, ERR_INVALID, "'n' must be true or false", json_get_bool(o, "n", &b, &e));
    struct str s = STR("default");
    assert_ok(e, json_get_str(o, "null", &s, &e));
    assert_true(str_is(s, "default"));
    assert_ok(e, json_get_str(o, "s", &s, &e));
    assert_true(str_eq(s, STR("a\0b")));
    assert_fails(e, ERR_INVALID, "'n' must be a string", json_get_str(o, "n", &s, &e));
    const json_t *v = NULL;
    assert_ok(e, json_get_object(o, "o", &v, &e));
    assert_true(json_is_object(v));
    assert_ok(e, json_get_array(o, "a", &v, &e));
    assert_true(json_is_array(v));
    assert_fails(e, ERR_INVALID, "'a' must be an object", json_get_object(o, "a", &v, &e));
    assert_fails(e, ERR_INVALID, "'o' must be an array", json_get_array(o, "o", &v, &e));
    json_decref(o);
}

static void parsing_is_counted_memory(void **state)
{
    (void)state;
    const uint64_t before = mem_thread_allocs();
    json_decref(parsed("[{},{},{}]"));
    assert_true(mem_thread_allocs() - before >= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_documents_name_the_place),
        cmocka_unit_test(nesting_has_an_exact_limit),
        cmocka_unit_test_setup_teardown(files_are_limited_and_named, make_temp_dir, remove_temp_dir),
        cmocka_unit_test_setup_teardown(every_failing_call_is_an_answer, make_temp_dir, remove_temp_dir),
        cmocka_unit_test(a_string_of_any_length_fails_cleanly),
        cmocka_unit_test(getters_check_type_and_range),
        cmocka_unit_test(parsing_is_counted_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
