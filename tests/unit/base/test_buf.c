/* Growable bytes, and the bounded reader that is their opposite. */
#include "base_testing.h"

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/reader.h"

static void appends_add_up(void **state)
{
    (void)state;
    struct error e;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_string_equal(buf_str(&b).p, "");
    char want[5000];
    size_t n = 0;
    for (uint64_t i = 0; n + 20 < sizeof want; i++) {
        const char *words[] = {"a", "", "quern", "x=%d"};
        const char *w = words[rnd(4, i) % 4];
        if (rnd(5, i) & 1) {
            buf_addf(&b, "%s%d", w, (int)(i % 10));
            n += (size_t)snprintf(want + n, sizeof want - n, "%s%d", w, (int)(i % 10));
        } else {
            buf_add(&b, str_of(w));
            n += (size_t)snprintf(want + n, sizeof want - n, "%s", w);
        }
        assert_int_equal(b.n, n);
        assert_true(b.p == NULL || b.p[b.n] == '\0');
    }
    assert_ok(e, buf_check(&b, "text", &e));
    assert_memory_equal(b.p, want, n);
    buf_clear(&b);
    assert_string_equal(b.p, "");
    buf_fini(&b);
    assert_null(b.p);
}

static void the_maximum_is_exact_and_the_failure_stays(void **state)
{
    (void)state;
    struct error e;
    struct buf b;
    buf_init(&b, 10);
    buf_add(&b, STR("12345"));
    buf_addf(&b, "%s", "67890");
    assert_ok(e, buf_check(&b, "reply", &e));
    buf_add_char(&b, 'x');
    assert_fails(e, ERR_LIMIT, "reply would be larger than 10 bytes", buf_check(&b, "reply", &e));
    buf_add(&b, STR(""));
    assert_null(buf_room(&b, 0));
    assert_int_equal(b.failure, ERR_LIMIT);
    assert_string_equal(b.p, "1234567890");
    buf_clear(&b);
    buf_add(&b, STR("ok"));
    buf_addf(&b, "%d", 123456789);
    assert_fails(e, ERR_LIMIT, "reply would be larger than 10 bytes", buf_check(&b, "reply", &e));
    assert_string_equal(b.p, "ok");
    buf_fini(&b);
}

static void base64_is_that_of_the_standard(void **state)
{
    (void)state;
    const char *const pairs[][2] = {{"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}, {"\xff\xfe\xfb", "//77"}}; /* RFC 4648, and the last digits */
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        struct buf b;
        buf_init(&b, 100);
        buf_add_base64(&b, pairs[i][0], strlen(pairs[i][0]));
        assert_true(str_is(buf_str(&b), pairs[i][1]));
        buf_fini(&b);
    }
}

static void numbers_are_written_in_decimal(void **state)
{
    (void)state;
    const uint64_t values[] = {0, 9, 10, 1234567890, UINT64_MAX};
    struct buf b;
    buf_init(&b, 100);
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        buf_add_u64(&b, values[i]);
        buf_add_char(&b, ' ');
    }
    assert_string_equal(b.p, "0 9 10 1234567890 18446744073709551615 ");
    buf_fini(&b);
}

static void without_a_maximum_it_grows_by_doubling_and_never_wraps(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, SIZE_MAX);
    const uint64_t before = mem_thread_allocs();
    for (int i = 0; i < 100000; i++)
        buf_add_char(&b, 'a');
    assert_true(mem_thread_allocs() - before < 20);
    volatile size_t huge = SIZE_MAX - b.n;
    assert_null(buf_room(&b, huge));
    assert_int_equal(b.failure, ERR_LIMIT);
    buf_fini(&b);
}

static enum err fill_buf(void *ctx, struct error *e)
{
    (void)ctx;
    struct buf b;
    buf_init(&b, 1 << 16);
    for (int i = 0; i < 300; i++)
        buf_addf(&b, "%d,", i);
    const enum err err = buf_check(&b, "numbers", e);
    buf_fini(&b);
    return err;
}

static void failing_allocations_are_kept(void **state)
{
    (void)state;
    assert_true(fail_each(FAULT_ALLOC, fill_buf, NULL) >= 4);
}

/* Any bytes become a JSON string that the parser reads back: valid UTF-8 unchanged, each bad byte one U+FFFD. */
static void json_strings_read_back(void **state)
{
    (void)state;
    struct error e;
    for (uint64_t i = 0; i < 3000; i++) {
        char raw[24];
        const size_t n = rnd(6, i * 100) % sizeof raw;
        for (size_t k = 0; k < n; k++) {
            const uint64_t r = rnd(6, i * 100 + 1 + k);
            raw[k] = (char)(r & 1 ? (r >> 8) & 0xff : (r >> 8) & 0x7f);
        }
        struct buf b, want;
        buf_init(&b, 4096);
        buf_init(&want, 4096);
        buf_add_json_str(&b, (struct str){raw, n});
        for (size_t k = 0; k < n;) {
            const size_t len = utf8_len((struct str){raw + k, n - k});
            buf_add(&want, len > 0 ? (struct str){raw + k, len} : STR("\xef\xbf\xbd"));
            k += len > 0 ? len : 1;
        }
        for (size_t k = 0; k < b.n; k++)
            assert_true((unsigned char)b.p[k] >= 0x20);
        json_t *doc;
        assert_ok(e, json_parse(buf_str(&b), &doc, &e));
        assert_true(str_eq((struct str){json_string_value(doc), json_string_length(doc)}, buf_str(&want)));
        json_decref(doc);
        buf_fini(&b);
        buf_fini(&want);
    }
    struct buf b;
    buf_init(&b, 10);
    buf_add_json_str(&b, str_of(NULL));
    assert_string_equal(b.p, "\"\"");
    buf_fini(&b);
}

static void reads_are_little_endian_in_order(void **state)
{
    (void)state;
    const unsigned char bytes[] = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x80, 0x3f,
        0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 'h', 'i', 9};
    struct error e = {0};
    struct reader r;
    reader_init(&r, bytes, sizeof bytes, &e);
    assert_int_equal(read_u8(&r), 0x01);
    assert_int_equal(read_u16(&r), 0x0302);
    assert_int_equal(read_u32(&r), 0x07060504);
    assert_true(read_u64(&r) == 0x0807060504030201);
    assert_true(read_f32(&r) == 1.0f && read_f64(&r) == 1.0);
    assert_true(str_is(read_bytes(&r, 2), "hi"));
    assert_true(reader_has(&r, 1) && !reader_has(&r, 2));
    reader_skip(&r, 1);
    assert_int_equal(r.failure, OK);
    assert_int_equal(e.code, OK);
}

static void the_first_failure_keeps_its_offset_and_reads_give_zero(void **state)
{
    (void)state;
    const unsigned char bytes[6] = {1, 2, 3, 4, 5, 6};
    struct error e = {0};
    struct reader r;
    reader_init(&r, bytes, sizeof bytes, &e);
    reader_skip(&r, 4);
    assert_int_equal(read_u32(&r), 0);
    assert_int_equal(r.failure, ERR_FORMAT);
    assert_string_equal(e.text, "byte 4: the file ends here, 2 bytes short");
    assert_int_equal(read_u8(&r), 0); /* would fit, but the reader has failed */
    assert_false(reader_has(&r, 0));
    assert_int_equal(READER_FAIL(&r, ERR_LIMIT, "later"), ERR_FORMAT);
    assert_string_equal(e.text, "byte 4: the file ends here, 2 bytes short");
    e = (struct error){0};
    reader_init(&r, bytes, sizeof bytes, &e);
    read_u8(&r);
    assert_int_equal(READER_FAIL(&r, ERR_LIMIT, "count %d", 9), ERR_LIMIT);
    assert_string_equal(e.text, "byte 1: count 9");
}

static void lengths_near_the_top_do_not_wrap(void **state)
{
    (void)state;
    struct error e = {0};
    struct reader r;
    reader_init(&r, "abc", 3, &e);
    reader_skip(&r, 2);
    assert_int_equal(read_bytes(&r, UINT64_MAX).n, 0);
    assert_int_equal(r.failure, ERR_FORMAT);
    assert_int_equal(r.at, 2);
    reader_init(&r, NULL, 0, NULL); /* nothing to read and nobody to tell */
    assert_int_equal(read_bytes(&r, 0).n, 0);
    assert_int_equal(r.failure, OK);
    assert_int_equal(read_u64(&r), 0);
    assert_int_equal(r.failure, ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_add_up),
        cmocka_unit_test(the_maximum_is_exact_and_the_failure_stays),
        cmocka_unit_test(numbers_are_written_in_decimal),
        cmocka_unit_test(base64_is_that_of_the_standard),
        cmocka_unit_test(without_a_maximum_it_grows_by_doubling_and_never_wraps),
        cmocka_unit_test(failing_allocations_are_kept),
        cmocka_unit_test(json_strings_read_back),
        cmocka_unit_test(reads_are_little_endian_in_order),
        cmocka_unit_test(the_first_failure_keeps_its_offset_and_reads_give_zero),
        cmocka_unit_test(lengths_near_the_top_do_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
