/* Grammars that want to cost much: every one is refused or compiled within its bounds, by counters and not by clocks;
 * memory comes back; every allocation may fail. */
#include "base/buf.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/mem.h"
#include "grammar/build.h"
#include "testing_vocab.h"

#include <string.h>

/* head, `n` times mid with a number in place of %, tail */
static struct str repeated(struct buf *b, const char *head, const char *mid, uint32_t n, const char *tail)
{
    buf_init(b, 64 * 1024 * 1024);
    buf_add(b, str_of(head));
    for (uint32_t i = 0; i < n; i++)
        for (const char *p = mid; *p != '\0'; p++) {
            if (p[0] == '%')
                buf_addf(b, "%u", i);
            else if (p[0] == '@')
                buf_addf(b, "%u", i + 1);
            else
                buf_add_char(b, *p);
        }
    buf_add(b, str_of(tail));
    return buf_str(b);
}

static void hostile_grammars_end_in_a_sentence(void **state)
{
    (void)state;
    static const struct {
        enum grammar_kind kind;
        const char *head, *mid;
        uint32_t n;
        const char *tail;
        enum err code; /* OK: it must compile */
    } checks[] = {
        {GRAMMAR_REGEX, "", "(", 100000, "", ERR_LIMIT},
        {GRAMMAR_REGEX, "", "(?:", 199, "a", ERR_INVALID},
        {GRAMMAR_REGEX, "[a-z]{1,1000000}", "", 0, "", OK},
        {GRAMMAR_REGEX, "(((a{1,100}){1,100}){1,100}){1,1000}", "", 0, "", OK},
        {GRAMMAR_REGEX, "(a|aa){1,100000}", "", 0, "", ERR_LIMIT},
        {GRAMMAR_REGEX, "(([a-z]{1,50}x?){1,50}y?){1,50}", "", 0, "", ERR_LIMIT},
        {GRAMMAR_REGEX, "x{16777217}", "", 0, "", ERR_LIMIT},
        {GRAMMAR_REGEX, "a", "|(a|b)*a(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)",
            1, "(a|b)(a|b)(a|b)(a|b)", ERR_LIMIT},
        {GRAMMAR_REGEX, "a", "|b%", 30000, "", OK},
        {GRAMMAR_REGEX, "", "[\\p{L}\\d]+", 60, "", ERR_LIMIT},
        {GRAMMAR_EBNF, "root ::= ", "(", 100000, "", ERR_LIMIT},
        {GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@ r@\n", 60, "r60 ::= \"x\"", OK},
        {GRAMMAR_EBNF, "root ::= r0\n", "r% ::= \"a\" r@ | \"b\"\n", 3000, "r3000 ::= \"x\"", OK},
        {GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@\n", 15000, "r15000 ::= \"x\"", OK},
        {GRAMMAR_EBNF, "root ::= r0\n", "r% ::= r@\n", 5000, "r5000 ::= r0", ERR_UNSUPPORTED},
        {GRAMMAR_CHOICE, "[\"x\"", ",\"w%\"", 20000, "]", OK},
        {GRAMMAR_STRUCTURE, "{\"type\":\"free_until\",\"stops\":[\"x\"",
            ",\"abababababababababababababababababababababababababababababababab%\"", 20, "]}", OK},
        {GRAMMAR_JSON_SCHEMA, "", "{\"items\":", 100000, "", ERR_INVALID},
        {GRAMMAR_JSON_SCHEMA, "{\"minItems\":9223372036854775807}", "", 0, "", OK},
        {GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{}", ",{\"pattern\":\"a.*%.*b\"}", 20, "]}", ERR_LIMIT},
        {GRAMMAR_JSON_SCHEMA, "{\"allOf\":[{\"multipleOf\":9}", ",{\"multipleOf\":1%}", 10, "]}", ERR_LIMIT},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
            ",\"a%\":{\"allOf\":[{\"$ref\":\"#/$defs/a@\"},{\"$ref\":\"#/$defs/a@\"}]}", 60, ",\"a60\":{}}}", OK},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/a0\",\"$defs\":{\"z\":{}",
            ",\"a%\":{\"properties\":{\"x\":{\"$ref\":\"#/$defs/a@\"},\"y\":{\"$ref\":\"#/$defs/a@\"}}}", 300,
            ",\"a300\":{}}}", ERR_LIMIT},
        {GRAMMAR_REGEX, "", "(w%)?", 3000, "", ERR_LIMIT},
        {GRAMMAR_STRUCTURE, "{\"type\":\"free_until\",\"stops\":[\"x\"", ",\"abababababababababababababababab%\"", 2000,
            "]}", ERR_LIMIT},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct buf b;
        struct error e = {0};
        struct grammar *g = NULL;
        const struct grammar_source src = {
            .kind = checks[i].kind, .text = repeated(&b, checks[i].head, checks[i].mid, checks[i].n, checks[i].tail)};
        const enum err err = grammar_compile(&src, test_vocab(), &g, &e);
        if (err != checks[i].code && !(checks[i].code == ERR_INVALID && err == ERR_LIMIT))
            fail_msg("case %zu: %s (%s)", i, err_name(err), e.text);
        assert_true(err == OK || e.text[0] != '\0');
        if (g != NULL)
            assert_true(grammar_bytes(g) <= GRAMMAR_BYTES_MAX + GRAMMAR_MASK_BYTES_MAX);
        grammar_unref(g);
        buf_fini(&b);
    }
}

/* What a schema costs before there is an automaton counts towards the same bound. */
static void steps_of_a_schema_count_too(void **state)
{
    (void)state;
    struct build b;
    struct buf text;
    struct error e = {0};
    expr_id x = 0;
    build_init(&b, NULL);
    const struct str src = repeated(
        &text, "{\"properties\":{\"a\":{}", ",\"p%\":{\"type\":\"number\",\"minimum\":%,\"maximum\":1%.%}", 300, "}}");
    assert_int_equal(schema_build(&b, src, GRAMMAR_WS_SPACED, &x, &e), ERR_LIMIT);
    assert_true(b.steps > b.steps_max / 4 && b.steps <= b.steps_max + GRAMMAR_STATES_MAX);
    build_fini(&b);
    buf_fini(&text);
    build_init(&b, NULL); /* and an ordinary schema is far from it */
    assert_ok(e, schema_build(&b, STR("{\"properties\":{\"a\":{\"type\":\"number\"}}}"), GRAMMAR_WS_SPACED, &x, &e));
    assert_true(b.steps < b.steps_max / 20);
    build_fini(&b);
}

/* The bound is on steps, so it is reached at the same place on every machine. */
static void steps_are_counted_and_bounded(void **state)
{
    (void)state;
    struct build b;
    struct error e = {0};
    build_init(&b, NULL);
    const expr_id x = regex_expr(&b, STR("(a|aa){1,100000}"), true, &e);
    assert_int_not_equal(x, 0);
    assert_null(dfa_of_expr(&b, x));
    assert_int_equal(b.error.code, ERR_LIMIT);
    assert_true(b.steps <= b.steps_max + GRAMMAR_STATES_MAX); /* one entry of the list may be counted at once */
    assert_true(b.arena.total_bytes <= GRAMMAR_BUILD_BYTES_MAX);
    build_fini(&b);
    build_init(&b, NULL); /* and an ordinary pattern is far from it */
    assert_non_null(dfa_of_expr(&b, regex_expr(&b, STR("[a-z]+@[a-z]+\\.(com|org)"), true, &e)));
    assert_true(b.steps < 10000);
    build_fini(&b);
}

static const char SCHEMA[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":30},\"b\":{"
                             "\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}},\"required\":[\"a\"]}";

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t nth = 1, done = 0; done == 0; nth++) {
        struct error e = {0};
        struct grammar *g = NULL;
        const struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = str_of(SCHEMA)};
        fault_arm(FAULT_ALLOC, nth, false);
        const enum err err = grammar_compile(&src, test_vocab(), &g, &e);
        done = fault_calls(FAULT_ALLOC) < nth;
        fault_arm(FAULT_ALLOC, 0, false);
        if (err != OK)
            assert_true(err == ERR_NOMEM && e.text[0] != '\0' && !done);
        grammar_unref(g);
        assert_true(nth < 100000);
    }
}

static void a_vocabulary_may_fail_to_be_made(void **state)
{
    (void)state;
    for (uint64_t nth = 1, done = 0; done == 0; nth++) {
        struct error e = {0};
        struct grammar_vocab *v = NULL;
        fault_arm(FAULT_ALLOC, nth, false);
        const enum err err = grammar_vocab_new(test_view(), &v, &e);
        done = fault_calls(FAULT_ALLOC) < nth;
        fault_arm(FAULT_ALLOC, 0, false);
        assert_true(err == OK || (err == ERR_NOMEM && e.text[0] != '\0'));
        grammar_vocab_free(v); /* classes that could not be made are only speed */
    }
}

/* Walking takes no memory, whatever has been seen before. */
static void walking_allocates_nothing(void **state)
{
    (void)state;
    struct grammar *g = test_compile(GRAMMAR_JSON_OBJECT, "");
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    uint64_t mask[(TEST_TOKENS + 63) / 64];
    const uint64_t before = mem_thread_allocs();
    grammar_walk_init(w, g);
    const char *text = "{\"a\": [1, {\"b\": \"\\u00e4x\"}, null]}";
    for (const char *p = text; *p != '\0'; p++) {
        uint32_t jump;
        (void)grammar_mask(w, NULL, 0, mask);
        (void)grammar_jump(w, &jump);
        assert_int_equal(grammar_accept(w, 4 + (uint8_t)*p, NULL), OK); /* the single bytes start at 4 */
    }
    assert_true(grammar_is_complete(w));
    assert_int_equal(mem_thread_allocs(), before);
    assert_true(grammar_walk_bytes() < 8192);
    mem_free(w);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_grammars_end_in_a_sentence),
        cmocka_unit_test(steps_are_counted_and_bounded),
        cmocka_unit_test(steps_of_a_schema_count_too),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_vocabulary_may_fail_to_be_made),
        cmocka_unit_test(walking_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
