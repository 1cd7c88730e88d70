/* The parts below the door: pattern translation, character tables, normal forms, byte spelling. */
#include "testing.h"
#include "testing_tok.h"

#include "base/limits.h"
#include "base/mem.h"
#include "text/tok_unicode.h"

#include <time.h>

static void patterns_are_translated(void **unused)
{
    (void)unused;
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"a+|\\s+(?!\\S)", "a+|\\s+(?!\\S)"},
        {"\\p{L}{1,3}+", "(?:\\p{L}{1,3})+"},
        {"(ab){2}+c", "(?:(ab){2})+c"},
        {"x{,3}", "x{0,3}"},
        {"x{a", "x{a"},
        {"\\h", "[0-9a-fA-F]"},
        {"[\\h_]", "[0-9a-fA-F_]"},
        {"\\w", "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]"},
        {"\\u00e9", "\\x{00e9}"},
        {"\\p{Han}\\p{Lu}\\P{N}", "\\p{sc:Han}\\p{Lu}\\P{N}"},
        {"[\\p{L}&&[^\\p{Han}]]+", "(?:(?=[\\p{L}])[^\\p{sc:Han}])+"},
        {"[a&&b]", "(?:(?=[a])[b])"},
        {"[[:alpha:]]", "[[:alpha:]]"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf out;
        struct error e = {0};
        buf_init(&out, REGEX_BYTES_MAX);
        assert_ok(e, regex_translate(str_of(cases[i].from), &out, &e));
        assert_string_equal(out.p, cases[i].to);
        buf_fini(&out);
    }
    static const char *const refused[] = {"\\", "[\\W]", "[a", "[^a&&b]", "[a[b]]", "\\u12", "\xFF", "\\p{L"};
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        struct buf out;
        struct error e = {0};
        buf_init(&out, REGEX_BYTES_MAX);
        assert_true(regex_translate(str_of(refused[i]), &out, &e) != OK && e.text[0] != '\0');
        buf_fini(&out);
    }
}

/* A pattern that backtracks without end is cut off and reported, not waited for. */
static void a_pattern_that_explodes_meets_its_limit(void **unused)
{
    (void)unused;
    static const char rest[] =
        "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a|a)*(a|a)*(a|a)*[^a]\"},\"content\":\"\"},";
    struct tok *t = tok_byte_level(1, 0, false, rest);
    struct tok_ctx *c = ctx_of();
    struct tok_ids ids;
    struct error e = {0};
    char text[3000];
    memset(text, 'a', sizeof text);
    const enum err err = tok_encode_user(t, c, (struct str){text, sizeof text}, false, &ids, &e);
    assert_true(err == ERR_LIMIT && strstr(e.text, "match limit") != NULL);
    assert_ok(e, tok_encode_user(t, c, STR("ok"), false, &ids, &e)); /* and the ctx goes on */
    tok_ctx_free(c);
    tok_free(t);
}

static void shadow_keeps_lengths_and_hides_new_characters(void **unused)
{
    (void)unused;
    struct tok_ctx *c = ctx_of();
    struct scratch out = {0};
    const struct str plain = STR("abc \xE4\xB8\xAD"),
                     newer = STR("a\xF0\xB1\x8D\x90z\xE1\xA0\x8E"); /* U+31350, U+180E */
    assert_ptr_equal(unicode_shadow(c, plain, &out).p, plain.p);
    const struct str seen = unicode_shadow(c, newer, &out);
    assert_int_equal(seen.n, newer.n);
    assert_true(utf8_is_valid(seen) && seen.p != newer.p && memcmp(seen.p, newer.p, newer.n) != 0);
    assert_true(seen.p[0] == 'a' && seen.p[5] == 'z');
    mem_free(out.p);
    tok_ctx_free(c);
}

static void normal_forms_are_made(void **unused)
{
    (void)unused;
    static const struct {
        enum unicode_form form;
        const char *from, *to;
    } cases[] = {
        {FORM_NFC, "e\xCC\x81x", "\xC3\xA9x"},
        {FORM_NFD, "\xC3\xA9", "e\xCC\x81"},
        {FORM_NFKC, "\xEF\xAC\x81\xEF\xBC\xA1", "fiA"},
        {FORM_NFKD, "\xC2\xBD",
            "1\xE2\x81\x84"
            "2"},
        {FORM_NFC, "a\xCC\x95\xCC\x80", "\xC3\xA0\xCC\x95"},                /* marks put in order, then composed */
        {FORM_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"}, /* Hangul */
        {FORM_NFC, "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"}, /* not in old tables */
        {FORM_NFKD, "\xE3\x8B\xBF", "\xE3\x8B\xBF"},
    };
    struct tok_ctx *c = ctx_of();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct scratch out = {0};
        assert_true(unicode_normalise(c, cases[i].form, str_of(cases[i].from), &out));
        assert_true(str_is((struct str){out.p, out.n}, cases[i].to));
        mem_free(out.p);
    }
    tok_ctx_free(c);
}

static void a_megabyte_of_marks_is_put_in_order_at_once(void **unused)
{
    (void)unused;
    struct tok_ctx *c = ctx_of();
    struct scratch out = {0};
    const size_t n = 1 << 20;
    char *text = mem_alloc(n);
    for (size_t i = 0; i < n; i += 4)
        memcpy(text + i, "\xCC\x81\xCC\x96", 4); /* above, below: every pair is out of order */
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    assert_true(unicode_normalise(c, FORM_NFC, (struct str){text, n}, &out));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    assert_int_equal(out.n, n);
    assert_memory_equal(out.p + n - 2, "\xCC\x81", 2);
    assert_true(b.tv_sec - a.tv_sec < 10); /* by insertion it would be minutes */
    mem_free(text);
    mem_free(out.p);
    tok_ctx_free(c);
}

static void bytes_are_spelled_and_read_back(void **unused)
{
    (void)unused;
    for (int b = 0; b < 256; b++) {
        char spelled[2], back[4];
        size_t n;
        const size_t len = byte_spell((unsigned char)b, spelled);
        assert_true(byte_unspell((struct str){spelled, len}, back, &n));
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)back[0], b);
    }
    char out[8];
    size_t n;
    assert_true(byte_unspell(STR("\xC4\xA0"), out, &n) && n == 1 && out[0] == ' ');
    assert_false(byte_unspell(STR(" "), out, &n));
    assert_false(byte_unspell(STR("\xE4\xB8\xAD"), out, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_are_translated),
        cmocka_unit_test(a_pattern_that_explodes_meets_its_limit),
        cmocka_unit_test(shadow_keeps_lengths_and_hides_new_characters),
        cmocka_unit_test(normal_forms_are_made),
        cmocka_unit_test(a_megabyte_of_marks_is_put_in_order_at_once),
        cmocka_unit_test(bytes_are_spelled_and_read_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
