/* EBNF: what its notation means, and the sentences that refuse a bad grammar. */
#include "testing_vocab.h"

#include <string.h>

static bool matches(const char *grammar, const char *text)
{
    struct grammar *g = test_compile(GRAMMAR_EBNF, grammar);
    const bool yes = grammar_matches(g, str_of(text));
    grammar_unref(g);
    return yes;
}

static void ebnf_reads_gbnf(void **state)
{
    (void)state;
    static const struct {
        const char *grammar, *yes, *no;
    } checks[] = {
        {"root ::= \"a\" | \"b\" \"c\"", "bc", "ac"},
        {"root ::= [a-c0-2]+ [^x-z]", "a2b!", "a2bx"},
        {"root ::= ( \"a\" \"b\"? )* # comment\n", "aaba", "ba"},
        {"# head\n\nroot ::= item (\",\" item)*\r\nitem ::= [0-9]{2,3}\n", "12,345", "1,2"},
        {"root ::= (\n  \"a\" |\n  \"b\"\n) \"c\"", "bc", "c"},
        {"root ::=\n  \"a\"\n", "a", "b"},
        {"root ::= \"a\" |\n \"b\"", "b", "c"},
        {"root ::= \"\\x41\\u00e4\\U0001F600\\n\\t\\\"\\\\\"", "Aä😀\n\t\"\\", "A"},
        {"root ::= [\\x41-\\x43\\]\\-]{3}", "A]-", "AAD"},
        {"root ::= .{2}", "ä€", "a"},
        {"root ::= \"a\"{3} \"b\"{1,} \"c\"{0,2}", "aaabbcc", "aabcc"},
        {"root ::= as-many-as_you\nas-many-as_you ::= \"(\" root \")\" | \"x\"", "((x))", "((x)"},
        {"root ::= a b\na ::= \"x\"*\nb ::= \"y\" | \"\"\n", "", "yx"},
        {"root ::= \"a\" root | \"b\"", "aaaaab", "aaaa"},
        {"root ::= (\"a\" | \"b\"){2,40} \"!\"", "abba!", "a!"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        if (!matches(checks[i].grammar, checks[i].yes))
            fail_msg("%s does not match %s", checks[i].grammar, checks[i].yes);
        if (matches(checks[i].grammar, checks[i].no))
            fail_msg("%s matches %s", checks[i].grammar, checks[i].no);
    }
}

static void ebnf_refuses_in_words(void **state)
{
    (void)state;
    static const struct {
        const char *grammar;
        enum err code;
        const char *part;
    } checks[] = {
        {"", ERR_INVALID, "there is no rule root"},
        {"a ::= \"x\"", ERR_INVALID, "there is no rule root"},
        {"root ::= b", ERR_INVALID, "line 1: the rule b is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", ERR_INVALID, "line 2: the rule root is defined twice"},
        {"root ::= \"a", ERR_INVALID, "is not closed"},
        {"root ::= [a", ERR_INVALID, "is not closed"},
        {"root ::= (\"a\"", ERR_INVALID, "is not closed"},
        {"root ::= \"a\")", ERR_INVALID, "without its ("},
        {"root ::= [b-a]", ERR_INVALID, "out of order"},
        {"root ::= \"a\"{3,2}", ERR_INVALID, "out of order"},
        {"root ::= \"a\"{99999999}", ERR_LIMIT, "a count is above"},
        {"root ::= \"\\q\"", ERR_INVALID, "escape"},
        {"root = \"a\"", ERR_INVALID, "name ::="},
        {"root ::= <[10]>", ERR_UNSUPPORTED, "tokens by name"},
        {"root ::= root \"a\" | \"b\"", ERR_UNSUPPORTED, "the rule root begins with itself"},
        {"root ::= a\na ::= b?  \"x\"* a \"y\" | \"z\"\nb ::= \"q\"", ERR_UNSUPPORTED, "the rule a begins with itself"},
        {"root ::= \"a\" root", ERR_INVALID, "no text can match"},
        {"root ::= []", ERR_INVALID, "no text can match"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct error e;
        struct grammar *g = NULL;
        const struct grammar_source src = {.kind = GRAMMAR_EBNF, .text = str_of(checks[i].grammar)};
        assert_fails(e, checks[i].code, checks[i].part, grammar_compile(&src, test_vocab(), &g, &e));
        assert_null(g);
    }
}

static void recursion_goes_to_its_depth_and_no_further(void **state)
{
    (void)state;
    struct grammar *g = test_compile(GRAMMAR_EBNF, "root ::= \"(\" root \")\" | \"x\"");
    char text[1024];
    size_t deepest = 0;
    for (size_t depth = 1; depth < 400; depth++) {
        memset(text, '(', depth);
        if (grammar_is_prefix(g, (struct str){text, depth}))
            deepest = depth;
    }
    assert_true(deepest >= 100 && deepest < 200);
    memset(text, '(', deepest); /* what may be begun can be ended */
    text[deepest] = 'x';
    memset(text + deepest + 1, ')', deepest);
    assert_true(grammar_matches(g, (struct str){text, 2 * deepest + 1}));
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ebnf_reads_gbnf),
        cmocka_unit_test(ebnf_refuses_in_words),
        cmocka_unit_test(recursion_goes_to_its_depth_and_no_further),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
