/* Patterns: what they match, what is refused and in which words. */
#include "testing_vocab.h"

#include <string.h>

struct check {
    const char *pattern, *yes, *no; /* texts apart by spaces */
};

static void each_word(struct grammar *g, const char *words, bool want, const char *pattern)
{
    for (const char *p = words; p != NULL;) {
        const char *end = strchr(p, ' ');
        const struct str word = {p, end == NULL ? strlen(p) : (size_t)(end - p)};
        if (grammar_matches(g, word) != want)
            fail_msg("%s: '%.*s' should%s match", pattern, (int)word.n, word.p, want ? "" : " not");
        p = end == NULL ? NULL : end + 1;
    }
}

static void regex_matches_whole_texts(void **state)
{
    (void)state;
    static const struct check checks[] = {
        {"abc", "abc", "ab abcd "},
        {"a|bc|", "a bc ", "b abc"},
        {"(ab)*c", "c abc ababc", "ab abab"},
        {"[a-c]+", "a abc", "d "},
        {"[^a-c]", "d ä 😀", "a dd"},
        {"a{2,3}", "aa aaa", "a aaaa"},
        {"a{1,1000}", "a aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "b "},
        {"\\d{3}-\\d{4}", "555-1234", "555-123 5555-123"},
        {"^a$|^b$", "a b", "ab"},
        {"(^a|b)c$", "ac bc", "abc"},
        {"x(?:^y|z)", "xz", "xy"},
        {"\\p{Lu}\\p{L}*", "Ärger A", "a ä"},
        {"\\u00e4\\x62", "äb", "ab"},
        {"a+?b", "ab aab", "b"},
        {"[\\w.-]+@[\\w-]+\\.com", "a.b-c@d.com", "a@b.org @b.com"},
    };
    for (size_t i = 0; i < COUNT_OF(checks); i++) {
        struct grammar *g = test_compile(GRAMMAR_REGEX, checks[i].pattern);
        each_word(g, checks[i].yes, true, checks[i].pattern);
        each_word(g, checks[i].no, false, checks[i].pattern);
        grammar_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_matches_whole_texts),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
