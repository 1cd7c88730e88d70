/* Errors and byte strings. */
#include "base_testing.h"

static void first_error_wins(void **state)
{
    (void)state;
    struct error e = {0};
    assert_int_equal(FAIL(&e, ERR_FORMAT, "bad %d", 7), ERR_FORMAT);
    const int line = e.line;
    assert_int_equal(FAIL(&e, ERR_IO, "later"), ERR_IO);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.text, "bad 7");
    assert_int_equal(e.line, line);
    assert_non_null(strstr(e.file, "test_error.c"));
    assert_int_equal(FAIL(NULL, ERR_NOMEM, "nobody listens"), ERR_NOMEM);
}

static enum err fails_twice(struct error *e)
{
    TRY(FAIL(e, ERR_LIMIT, "inner"));
    return FAIL(e, ERR_IO, "not reached");
}

static void try_leaves_with_the_code(void **state)
{
    (void)state;
    struct error e = {0};
    assert_int_equal(fails_twice(&e), ERR_LIMIT);
    assert_string_equal(e.text, "inner");
}

static void prefix_goes_in_front_and_keeps_the_code(void **state)
{
    (void)state;
    struct error e = {0};
    assert_int_equal(error_prefix(&e, "unused"), OK);
    assert_string_equal(e.text, "");
    FAIL(&e, ERR_HASH, "sum differs");
    assert_int_equal(error_prefix(&e, "file %s", "a.bin"), ERR_HASH);
    assert_string_equal(e.text, "file a.bin: sum differs");
    char big[600];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    assert_int_equal(error_prefix(&e, "%s", big), ERR_HASH);
    assert_int_equal(strlen(e.text), ERROR_TEXT_MAX - 1);
}

static void texts_are_one_line_of_valid_utf8(void **state)
{
    (void)state;
    struct error e = {0};
    FAIL(&e, ERR_NOT_FOUND, "cannot open %s", "a\nb\xff\x1b[2J\xc2\x9b");
    assert_string_equal(e.text, "cannot open a\\x0ab\\xff\\x1b[2J\\xc2\\x9b");
    /* A character cut by the buffer's end is left out whole, not escaped. */
    for (size_t shift = 0; shift < 4; shift++) {
        char text[ERROR_TEXT_MAX + 64];
        size_t n = 0;
        while (n < shift)
            text[n++] = 'a';
        while (n + 4 < sizeof text) {
            memcpy(text + n, "\xf0\x9f\x8c\xbe", 4);
            n += 4;
        }
        text[n] = '\0';
        e = (struct error){0};
        FAIL(&e, ERR_IO, "%s", text);
        assert_true(utf8_is_valid(str_of(e.text)));
        assert_null(strchr(e.text, '\\'));
        assert_true(strlen(e.text) >= ERROR_TEXT_MAX - 4);
    }
}

static void set_ok(void *ctx)
{
    struct error e = {0};
    (void)ctx;
    FAIL(&e, OK, "not an error");
}

static void setting_no_error_is_a_bug(void **state)
{
    (void)state;
    assert_true(dies(set_ok, NULL));
}

static void every_code_has_its_own_words(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ERR_COUNT; i++) {
        assert_true(strlen(err_name((enum err)i)) > 1 && strlen(err_phrase((enum err)i)) > 1);
        for (unsigned j = 0; j < i; j++)
            assert_string_not_equal(err_name((enum err)i), err_name((enum err)j));
    }
    assert_string_equal(err_name(ERR_COUNT), "UNKNOWN");
    assert_string_equal(err_phrase(ERR_COUNT), "unknown error");
}

static void strings_compare_by_bytes(void **state)
{
    (void)state;
    assert_true(str_eq(STR("a\0b"), STR("a\0b")));
    assert_false(str_eq(STR("a\0b"), STR("a\0c")));
    assert_false(str_eq(STR("ab"), STR("abc")));
    assert_true(str_eq(str_of(NULL), STR("")));
    assert_true(str_is(STR("x"), "x"));
    assert_true(str_has_prefix(STR("abc"), STR("ab")) && str_has_prefix(STR("abc"), STR("")));
    assert_false(str_has_prefix(STR("a"), STR("ab")));
    assert_true(str_has_suffix(STR("abc"), STR("bc")) && str_has_suffix(str_of(NULL), STR("")));
    assert_false(str_has_suffix(STR("c"), STR("bc")));
    assert_false(str_has_suffix(str_of(NULL), STR("c")));
}

static void show_stays_inside_its_buffer(void **state)
{
    (void)state;
    const struct str s = STR("a\x01\xc3\xa9\xffz");
    char out[32];
    assert_string_equal(str_show(s, out, sizeof out), "a\\x01\xc3\xa9\\xffz");
    for (size_t cap = 1; cap <= 16; cap++) {
        memset(out, 'U', sizeof out);
        assert_ptr_equal(str_show(s, out, cap), out);
        assert_true(strlen(out) < cap);
        assert_true(utf8_is_valid(str_of(out)));
        for (size_t i = cap; i < sizeof out; i++)
            assert_int_equal(out[i], 'U');
    }
}

/* An independent decoder: by value, not by byte ranges. */
static size_t slow_utf8_len(const unsigned char *p, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (n == 0)
        return 0;
    size_t len = p[0] < 0x80 ? 1 : (p[0] >> 5) == 6 ? 2 : (p[0] >> 4) == 14 ? 3 : (p[0] >> 3) == 30 ? 4 : 0;
    if (len == 0 || len > n)
        return 0;
    uint32_t v = len == 1 ? p[0] : p[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((p[i] >> 6) != 2)
            return 0;
        v = v << 6 | (p[i] & 63);
    }
    return v < least[len] || v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff) ? 0 : len;
}

static void utf8_agrees_with_a_decoder_by_value(void **state)
{
    (void)state;
    unsigned char b[4];
    for (uint32_t i = 0; i < 1u << 24; i += 1 + (i >> 8 & 7)) { /* all lead and second bytes, most third ones */
        b[0] = (unsigned char)(i >> 16), b[1] = (unsigned char)(i >> 8), b[2] = (unsigned char)i;
        b[3] = (unsigned char)(rnd(1, i) & 0xff);
        for (size_t n = b[0] < 0xe0 ? 2 : 3; n <= 4; n++)
            if (utf8_len((struct str){(char *)b, n}) != slow_utf8_len(b, n))
                fail_msg("%02x %02x %02x %02x at length %zu", b[0], b[1], b[2], b[3], n);
    }
    assert_int_equal(utf8_len(STR("")), 0);
    assert_true(utf8_is_valid(STR("")) && utf8_is_valid(STR("gr\xc3\xbc\xc3\x9f")));
    assert_false(utf8_is_valid(STR("ab\xc3")));
}

static void checked_sizes_refuse_to_wrap(void **state)
{
    (void)state;
    size_t n = 0;
    assert_true(size_mul(3, 5, &n) && n == 15);
    assert_false(size_mul(SIZE_MAX / 2, 3, &n));
    assert_true(size_add(SIZE_MAX, 0, &n) && n == SIZE_MAX);
    assert_false(size_add(SIZE_MAX, 1, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(try_leaves_with_the_code),
        cmocka_unit_test(prefix_goes_in_front_and_keeps_the_code),
        cmocka_unit_test(texts_are_one_line_of_valid_utf8),
        cmocka_unit_test(setting_no_error_is_a_bug),
        cmocka_unit_test(every_code_has_its_own_words),
        cmocka_unit_test(strings_compare_by_bytes),
        cmocka_unit_test(show_stays_inside_its_buffer),
        cmocka_unit_test(utf8_agrees_with_a_decoder_by_value),
        cmocka_unit_test(checked_sizes_refuse_to_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
