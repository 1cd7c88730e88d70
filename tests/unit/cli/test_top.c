/* What `quern top` makes of a server's numbers: quantiles, rates, a restart, the width of the screen. */
#include "testing.h"

#include "cli/top.h"

#include <stdio.h>
#include <string.h>

#define SECOND 1000000000ull

static struct top_history h;
static struct top_sample s;
static struct error e;

static int setup(void **state)
{
    (void)state;
    e = (struct error){0};
    s = (struct top_sample){.blocks = 100, .held = 15, .shared = 5, .cached = 20, .free = 65, .seqs_max = 8};
    s.ttft = s.itl = (struct top_histogram){.upper = {0.1, 0.2, 0.4}, .n = 3};
    snprintf(s.model, sizeof s.model, "a-model");
    snprintf(s.state, sizeof s.state, "ready");
    assert_ok(e, top_history_init(&h, &e));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    top_history_fini(&h);
    return 0;
}

/* One more second in which so much was done. */
static void add_second(uint64_t output, uint64_t fast)
{
    s.at_ns += SECOND;
    s.uptime_s += 1;
    s.output_tokens += output;
    s.ttft.counts[0] += fast;
    top_history_add(&h, &s);
}

static void quantiles_are_linear_inside_a_bucket(void **state)
{
    (void)state;
    const struct top_histogram b = {.upper = {0.1, 0.2, 0.4}, .n = 3};
    const uint64_t one[] = {0, 10, 0, 0}, none[4] = {0}, over[] = {0, 0, 0, 7}, two[] = {5, 0, 5, 0};
    assert_float_equal(top_quantile(&b, one, 0.5), 0.15, 1e-6);
    assert_float_equal(top_quantile(&b, one, 1.0), 0.2, 1e-6);
    assert_float_equal(top_quantile(&b, two, 0.5), 0.1, 1e-6);
    assert_float_equal(top_quantile(&b, two, 0.75), 0.3, 1e-6);
    assert_float_equal(top_quantile(&b, over, 0.5), 0.4, 1e-6); /* the last bucket has no end */
    assert_true(top_quantile(&b, none, 0.5) < 0);
}

static void rates_are_of_the_last_second_and_percentiles_of_the_last_minute(void **state)
{
    (void)state;
    struct top_figures f;
    s.ttft.counts[2] = 1000; /* long ago */
    add_second(0, 0);
    top_figures(&h, &f);
    assert_float_equal(f.output_s, 0, 0);
    assert_false(f.is_ttft_recent);
    assert_true(f.ttft_s[0] > 0.2);
    add_second(500, 4);
    add_second(70, 0);
    top_figures(&h, &f);
    assert_float_equal(f.output_s, 70, 1e-3);
    assert_true(f.is_ttft_recent);
    assert_float_equal(f.ttft_s[0], 0.05, 1e-6);
    assert_float_equal(f.kv_used, 0.15, 1e-6);
    for (int i = 0; i < 100; i++)
        add_second(1, 0);
    top_figures(&h, &f);
    assert_in_range(f.window_s, 59, 61);
    assert_true(h.n <= TOP_SAMPLES_MAX);
    assert_false(f.is_ttft_recent);
}

static void a_server_that_started_anew_begins_a_new_history(void **state)
{
    (void)state;
    struct top_figures f;
    for (int i = 0; i < 5; i++)
        add_second(100, 1);
    s = (struct top_sample){.at_ns = s.at_ns, .output_tokens = 3, .ttft = {.n = 3}, .itl = {.n = 3}};
    add_second(0, 0);
    assert_int_equal(h.n, 1);
    top_figures(&h, &f);
    assert_float_equal(f.output_s, 0, 0);
    assert_true(f.hits < 0 && f.kv_used < 0); /* nothing to divide by */
}

/* Columns of the widest line: escape sequences take none, a character of several bytes one. */
static size_t widest(struct str text, size_t *lines)
{
    size_t column = 0, most = 0;
    *lines = 0;
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char c = (unsigned char)text.p[i];
        if (c == 0x1b)
            while (text.p[i] != 'm')
                i++;
        else if (c == '\n') {
            column = 0;
            ++*lines;
        } else if ((c & 0xc0) != 0x80)
            column++;
        most = column > most ? column : most;
    }
    return most;
}

static void no_line_is_wider_than_the_screen(void **state)
{
    (void)state;
    struct buf out;
    size_t lines;
    buf_init(&out, MIB);
    s.n_tenants = 40;
    for (size_t i = 0; i < s.n_tenants; i++)
        snprintf(s.tenants[i].name, sizeof s.tenants[i].name, "a tenant with a long name %zu", i);
    for (int i = 0; i < 70; i++)
        add_second(100, 1);
    for (uint32_t columns = 1; columns < 200; columns += 7)
        for (uint32_t rows = 0; rows < 60; rows += 9) {
            const struct top_screen screen = {.columns = columns,
                .rows = rows,
                .colour = columns % 2 == 0,
                .url = "http://a-rather-long-name.example:8000",
                .trouble = "a long sentence about what is wrong"};
            buf_clear(&out);
            top_draw(&out, &h, &screen);
            assert_in_range(widest(buf_str(&out), &lines), 1, columns);
            if (rows > 0)
                assert_in_range(lines, 1, rows);
            else
                assert_true(lines > 50);              /* all of it, and the tenants */
            assert_int_equal(out.p[out.n - 1], '\n'); /* nothing behind the last line, no escape either */
            assert_true(utf8_is_valid(buf_str(&out)));
        }
    buf_fini(&out);
}

static void a_bad_answer_names_what_is_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *json, *names;
    } cases[] = {
        {"[1]", "object"},
        {"{\"running\":\"many\"}", "running"},
        {"{\"uptime_s\":-1}", "uptime_s"},
        {"{}", "kv"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        e = (struct error){0};
        assert_true(top_sample_read(&s, str_of(cases[i].json), 0, &e) != OK);
        assert_non_null(strstr(e.text, cases[i].names));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(quantiles_are_linear_inside_a_bucket, setup, teardown),
        cmocka_unit_test_setup_teardown(
            rates_are_of_the_last_second_and_percentiles_of_the_last_minute, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_that_started_anew_begins_a_new_history, setup, teardown),
        cmocka_unit_test_setup_teardown(no_line_is_wider_than_the_screen, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_answer_names_what_is_wrong, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
