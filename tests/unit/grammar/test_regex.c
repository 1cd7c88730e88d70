/* Patterns: what they match, what is refused and in which words. */
#include "grammar/grammar.h"
#include "testing.h"

struct check {
    const char *pattern, *yes, *no; /* texts apart by spaces */
};

static struct grammar_vocab *vocab;

static int open_vocab(void **state)
{
    (void)state;
    static char bytes[256];
    static uint32_t offsets[257];
    static uint8_t flags[256];
    for (uint32_t i = 0; i < 256; i++)
        bytes[i] = (char)i, offsets[i + 1] = i + 1;
    const struct vocab_view view = {256, bytes, offsets, flags};
    struct error e = {0};
    return grammar_vocab_new(&view, &vocab, &e) == OK ? 0 : -1;
}

static int close_vocab(void **state)
{
    (void)state;
    grammar_vocab_free(vocab);
    return 0;
}

static struct grammar *pattern_of(const char *text)
{
    struct grammar *g = NULL;
    struct error e;
    assert_ok(e, grammar_compile(&(struct grammar_source){.kind = GRAMMAR_REGEX, .text = str_of(text)}, vocab, &g, &e));
    return g;
}

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
        struct grammar *g = pattern_of(checks[i].pattern);
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
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
