/* Structures and choices: parts, control tokens, free text; and forced stretches. */
#include "base/mem.h"
#include "testing_vocab.h"

#include <string.h>

#define T(text) "{\"type\":\"text\",\"value\":\"" text "\"}"
#define C(name) "{\"type\":\"control\",\"value\":\"" name "\"}"
#define S(...)  "{\"type\":\"sequence\",\"parts\":[" __VA_ARGS__ "]}"

static uint32_t token_of(const char *text)
{
    for (uint32_t id = 3; id < TEST_TOKENS; id++)
        if (str_is(test_token(id), text))
            return id;
    fail_msg("no token %s", text);
    return 0;
}

static void parts_go_together(void **state)
{
    (void)state;
    static const struct {
        const char *structure, *yes, *no;
    } checks[] = {
        {T("ab"), "ab", "a"},
        {S(T("a") "," T("b")), "ab", "ba"},
        {"{\"type\":\"choice\",\"parts\":[" T("a") "," T("b") "]}", "b", "ab"},
        {"{\"type\":\"repeat\",\"part\":" T("a") ",\"min\":2,\"max\":3}", "aa", "a"},
        {"{\"type\":\"repeat\",\"part\":" T("a") "}", "", "b"},
        {"{\"type\":\"regex\",\"pattern\":\"[a-c]+\"}", "abc", "d"},
        {"{\"type\":\"ebnf\",\"grammar\":\"root ::= \\\"x\\\"+\"}", "xx", ""},
        {"{\"type\":\"json\",\"schema\":{\"type\":\"boolean\"}}", "true", "1"},
        {"{\"type\":\"json\",\"schema\":{\"type\":\"array\"},\"whitespace\":\"compact\"}", "[1,2]", "[1, 2]"},
        {"{\"type\":\"json_object\"}", "{\"a\": 1}", "[]"},
        {"{\"type\":\"free_until\",\"stops\":[]}", "anything", "\xFF"},
        {C("<not in the vocabulary>"), "<not in the vocabulary>", "x"},
        {S("{\"type\":\"free_until\",\"stops\":[\"<a>\",\"<ab\"]}"), "<<a <b>", "x<a>"},
        {S("{\"type\":\"free_until\",\"stops\":[\"<a>\"]},{\"type\":\"repeat\",\"part\":" S(T("<a>") "," T("!")) "}"),
            "hi <a <<a>!<a>!", "hi <a>?"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct grammar *g = test_compile(GRAMMAR_STRUCTURE, checks[i].structure);
        if (!grammar_matches(g, str_of(checks[i].yes)))
            fail_msg("%s does not match %s", checks[i].structure, checks[i].yes);
        if (grammar_matches(g, str_of(checks[i].no)))
            fail_msg("%s matches %s", checks[i].structure, checks[i].no);
        grammar_unref(g);
    }
}

static void control_tokens_are_not_their_text(void **state)
{
    (void)state;
    struct grammar *g = test_compile(GRAMMAR_STRUCTURE, S(T("a") "," C("<call>")));
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    uint64_t mask[(TEST_TOKENS + 63) / 64];
    const uint32_t end = TEST_END, call_text = token_of("<call>");
    struct error e;
    grammar_walk_init(w, g);
    assert_ok(e, grammar_accept(w, token_of("a"), &e));
    assert_int_equal(grammar_mask(w, &end, 1, mask), 1);
    assert_int_equal(mask[TEST_CALL / 64] >> (TEST_CALL % 64) & 1, 1);
    assert_fails(e, ERR_INVALID, "does not allow", grammar_accept(w, call_text, &e));
    assert_ok(e, grammar_accept(w, TEST_CALL, &e));
    assert_true(grammar_is_complete(w));
    assert_int_equal(grammar_mask(w, &end, 1, mask), 1); /* only the end is left */
    assert_int_equal(mask[TEST_END / 64] >> (TEST_END % 64) & 1, 1);
    grammar_unref(g);
    g = test_compile(GRAMMAR_REGEX, ".*"); /* any text at all, and still no control token */
    grammar_walk_init(w, g);
    assert_fails(e, ERR_INVALID, "does not allow", grammar_accept(w, TEST_CALL, &e));
    assert_ok(e, grammar_accept(w, call_text, &e));
    mem_free(w);
    grammar_unref(g);
}

static void structure_refuses_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *structure;
        enum err code;
        const char *part;
    } checks[] = {
        {"[]", ERR_INVALID, "must be an object with a type"},
        {"{\"type\":\"texts\"}", ERR_INVALID, "unknown type texts"},
        {"{\"type\":\"text\",\"value\":\"\"}", ERR_INVALID, "value must be a string that is not empty"},
        {"{\"type\":\"text\",\"value\":\"a\",\"val\":1}", ERR_INVALID, "unknown key val"},
        {"{\"type\":\"choice\",\"parts\":[]}", ERR_INVALID, "parts must be an array that is not empty"},
        {S(T("a") ",{\"type\":\"repeat\",\"part\":7}"), ERR_INVALID, "structure.parts[1].part: a part must be"},
        {"{\"type\":\"repeat\",\"part\":" T("a") ",\"min\":3,\"max\":2}", ERR_INVALID, "min is above max"},
        {"{\"type\":\"json\",\"schema\":5}", ERR_INVALID, "schema must be"},
        {"{\"type\":\"json\",\"schema\":{},\"whitespace\":\"none\"}", ERR_INVALID, "whitespace must be"},
        {"{\"type\":\"regex\",\"pattern\":\"(\"}", ERR_INVALID, "regex: the group ( is not closed"},
        {"{\"type\":\"free_until\",\"stops\":[3]}", ERR_INVALID, "stops[0] must be"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct error e;
        struct grammar *g = NULL;
        const struct grammar_source src = {.kind = GRAMMAR_STRUCTURE, .text = str_of(checks[i].structure)};
        assert_fails(e, checks[i].code, checks[i].part, grammar_compile(&src, test_vocab(), &g, &e));
    }
}

static void choice_is_one_of_its_texts(void **state)
{
    (void)state;
    struct error e;
    struct grammar *g = test_compile(GRAMMAR_CHOICE, "[\"ab\",\"abc\",\"ä\"]"), *none = NULL;
    assert_true(grammar_matches(g, STR("ab")) && grammar_matches(g, STR("abc")) && grammar_matches(g, STR("ä")));
    assert_false(grammar_matches(g, STR("a")) || grammar_matches(g, STR("abcd")));
    grammar_unref(g);
    const char *const bad[] = {"[]", "{}", "[1]", "[\"\"]"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_fails(e, ERR_INVALID, "choice",
            grammar_compile(
                &(struct grammar_source){.kind = GRAMMAR_CHOICE, .text = str_of(bad[i])}, test_vocab(), &none, &e));
}

/* The longest token inside the forced text, again and again, writes exactly that text. */
static void jumping_writes_forced_text(void **state)
{
    (void)state;
    struct grammar *g = test_compile(GRAMMAR_REGEX, "\\{\"name\": (true|false), \"value\": 12\\}");
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    char text[64];
    size_t n = 0;
    uint32_t id, jumps = 0;
    struct error e;
    grammar_walk_init(w, g);
    while (grammar_jump(w, &id)) {
        assert_ok(e, grammar_accept(w, id, &e));
        memcpy(text + n, test_token(id).p, test_token(id).n);
        n += test_token(id).n;
        jumps++;
    }
    assert_memory_equal(text, "{\"name\": ", n);
    assert_int_equal(n, strlen("{\"name\": "));
    assert_true(jumps < n); /* tokens of several bytes were taken */
    assert_ok(e, grammar_accept(w, token_of("t"), &e));
    while (grammar_jump(w, &id)) {
        assert_ok(e, grammar_accept(w, id, &e));
        n += test_token(id).n;
    }
    assert_true(grammar_is_complete(w)); /* and nothing is forced where the text may end */
    assert_int_equal(n + 1, strlen("{\"name\": true, \"value\": 12}"));
    mem_free(w);
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_go_together),
        cmocka_unit_test(control_tokens_are_not_their_text),
        cmocka_unit_test(structure_refuses_in_words),
        cmocka_unit_test(choice_is_one_of_its_texts),
        cmocka_unit_test(jumping_writes_forced_text),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
