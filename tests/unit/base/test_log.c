/* The log: exact lines, lines that cannot be forged, cutting, and the ring that never blocks. */
#include "base_testing.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>

static struct clock when;
static int pipe_fds[2];
static char text[1 << 20]; /* what came out of the pipe, NUL-terminated */

static int open_pipe(void **state)
{
    (void)state;
    clock_init_virtual(&when, (int64_t)1706702400 * 1000000000 + 123456); /* 2024-01-31T12:00:00.000123Z */
    if (pipe2(pipe_fds, O_NONBLOCK) != 0)
        return -1;
    return fcntl(pipe_fds[1], F_SETPIPE_SZ, 1 << 20) > 0 ? 0 : -1;
}

static int close_pipe(void **state)
{
    (void)state;
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return 0;
}

static const char *drain_pipe(void)
{
    size_t n = 0;
    ssize_t k;
    while ((k = read(pipe_fds[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)k;
    text[n] = '\0';
    return text;
}

static void start(struct log *l, enum log_format format, const char *levels)
{
    struct error e;
    struct log_levels v;
    assert_ok(e, log_levels_parse(&v, str_of(levels), &e));
    assert_ok(e, log_init(l, pipe_fds[1], format, &v, &when, &e));
}

static void lines_are_exact(void **state)
{
    (void)state;
    struct log l;
    start(&l, LOG_TEXT, "debug");
    const uint64_t before = mem_thread_allocs();
    LOG(&l, LOG_INFO, "http", "request done", log_u64("status", 200), log_cstr("path", "/v1/models"),
        log_i64("delta", -5), log_f64("ms", 12.25), log_bool("ok", true), log_cstr("empty", ""));
    LOG(&l, LOG_ERROR, "engine", "stopped");
    assert_int_equal(mem_thread_allocs(), before);
    assert_string_equal(drain_pipe(),
        "ts=2024-01-31T12:00:00.000123Z level=info cat=http event=\"request done\" status=200 path=/v1/models delta=-5 "
        "ms=12.25 ok=true empty=\"\"\n"
        "ts=2024-01-31T12:00:00.000123Z level=error cat=engine event=stopped\n");
    log_fini(&l);
    start(&l, LOG_JSON, "debug");
    LOG(&l, LOG_WARN, "http", "slow \"one\"", log_u64("n", UINT64_MAX), log_f64("bad", 0.0 / 0.0),
        log_bool("ok", false));
    assert_string_equal(drain_pipe(),
        "{\"ts\":\"2024-01-31T12:00:00.000123Z\",\"level\":\"warn\",\"cat\":\"http\",\"event\":\"slow \\\"one\\\"\","
        "\"n\":18446744073709551615,\"bad\":null,\"ok\":false}\n");
    log_fini(&l);
    LOG((struct log *)NULL, LOG_ERROR, "http", "nobody listens");
}

/* Dates against the C library, from before 1970 to far ahead. */
static void dates_agree_with_the_c_library(void **state)
{
    (void)state;
    struct log l;
    start(&l, LOG_TEXT, "info");
    for (uint64_t i = 0; i < 4000; i++) {
        const int64_t s = i < 1000 ? (int64_t)i * 86400 * 30 - 1 : (int64_t)(rnd(30, i) % 9000000000u) - 1000000000;
        clock_init_virtual(&when, s * 1000000000);
        LOG(&l, LOG_INFO, "x", "y");
        struct tm tm;
        const time_t t = (time_t)s;
        char want[64], got[64];
        gmtime_r(&t, &tm);
        strftime(want, sizeof want, "ts=%Y-%m-%dT%H:%M:%S.000000Z ", &tm);
        snprintf(got, sizeof got, "%.*s", (int)strlen(want), drain_pipe());
        assert_string_equal(got, want);
    }
    log_fini(&l);
}

static void levels_filter_by_category(void **state)
{
    (void)state;
    struct error e;
    struct log l;
    start(&l, LOG_TEXT, "warn,http=debug,sched=error");
    assert_true(log_has(&l, LOG_DEBUG, "http") && log_has(&l, LOG_WARN, "engine"));
    assert_false(log_has(&l, LOG_INFO, "engine") || log_has(&l, LOG_WARN, "sched"));
    int evaluated = 0;
    LOG(&l, LOG_INFO, "engine", "hidden", log_i64("n", ++evaluated));
    assert_int_equal(evaluated, 0);
    assert_string_equal(drain_pipe(), "");
    log_fini(&l);
    struct log_levels v = {.base = LOG_ERROR};
    static const char *const bad[] = {"", "loud", "info,", "http=debug", "info,debug", "info,=debug",
        "info,http=", "info,http", "info,a_category_too_long=info", "INFO", "info,http=loud"};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_fails(e, ERR_INVALID, "log ", log_levels_parse(&v, str_of(bad[i]), &e));
    assert_fails(e, ERR_LIMIT, "more than 16 log categories",
        log_levels_parse(&v,
            STR("info,a=info,b=info,c=info,d=info,e=info,f=info,g=info,h=info,i=info,j=info,k=info,l=info,m=info,n="
                "info,"
                "o=info,p=info,q=info"),
            &e));
    assert_true(v.base == LOG_ERROR && v.n_overrides == 0); /* a failure changes nothing */
}

static void bad_key(void *ctx)
{
    LOG((struct log *)ctx, LOG_ERROR, "x", "y", log_u64("two words", 1));
}

static void keys_are_ours_and_plain(void **state)
{
    (void)state;
    struct log l;
    start(&l, LOG_TEXT, "info");
    assert_true(dies(bad_key, &l));
    log_fini(&l);
}

/* Read a quoted or bare text value back: the inverse of the escape, written apart from it. */
static size_t unquote(const char *p, char *out)
{
    size_t n = 0;
    if (*p != '"') {
        while (*p != ' ' && *p != '\n')
            out[n++] = *p++;
        return n;
    }
    for (p++; *p != '"'; p++) {
        unsigned v = 0;
        if (*p != '\\')
            out[n++] = *p;
        else if (*++p == 'n')
            out[n++] = '\n';
        else if (*p == 'x' || *p == 'u') {
            const int digits = *p == 'x' ? 2 : 4;
            for (int i = 0; i < digits; i++) {
                p++;
                v = v * 16 + (unsigned)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
            }
            if (digits == 4 && v >= 0x80)
                out[n++] = (char)0xc2;
            out[n++] = (char)v;
        } else
            out[n++] = *p;
    }
    return n;
}

/* Whatever bytes a value has: one line, no control bytes, and it reads back. */
static void untrusted_values_cannot_forge_a_line(void **state)
{
    (void)state;
    struct log l[2];
    start(&l[0], LOG_TEXT, "info");
    start(&l[1], LOG_JSON, "info");
    for (uint64_t i = 0; i < 4000; i++) {
        static const char spice[] = "\n\r\"\\= {}\x7f\xc2\x9b\xe2\x80\xa8";
        char raw[40], back[64];
        const size_t n = rnd(31, i * 64) % sizeof raw;
        for (size_t k = 0; k < n; k++) {
            const uint64_t r = rnd(31, i * 64 + 1 + k);
            raw[k] = (char)(r % 3 == 0 ? spice[(r >> 8) % (sizeof spice - 1)] : (char)(r >> 8));
        }
        for (int f = 0; f < 2; f++) {
            LOG(&l[f], LOG_INFO, "x", "y", log_str("v", (struct str){raw, n}), log_u64("end", 1));
            const char *line = drain_pipe();
            const size_t len = strlen(line);
            assert_true(len > 0 && line[len - 1] == '\n' && utf8_is_valid((struct str){line, len}));
            for (size_t k = 0; k + 1 < len; k++) {
                assert_true((unsigned char)line[k] >= 0x20 && line[k] != 0x7f);
                assert_false((unsigned char)line[k] == 0xc2 && (unsigned char)line[k + 1] < 0xa0);
            }
            if (f == 0) {
                const char *v = strstr(line, "event=y v=");
                assert_non_null(v);
                assert_int_equal(unquote(v + 10, back), n);
                assert_memory_equal(back, raw, n);
            } else {
                struct error e;
                json_t *doc;
                assert_ok(e, json_parse((struct str){line, len}, &doc, &e));
                assert_int_equal(json_object_size(doc), 6);
                if (utf8_is_valid((struct str){raw, n})) {
                    assert_int_equal(json_string_length(json_object_get(doc, "v")), n);
                    assert_memory_equal(json_string_value(json_object_get(doc, "v")), raw, n);
                }
                json_decref(doc);
            }
        }
    }
    log_fini(&l[0]);
    log_fini(&l[1]);
}

/* Around the maximum, byte by byte: never longer, always well formed, marked when cut. */
static void long_lines_are_cut_and_say_so(void **state)
{
    (void)state;
    static char big[4000];
    struct log l[2];
    start(&l[0], LOG_TEXT, "info");
    start(&l[1], LOG_JSON, "info");
    for (size_t n = 1850; n < 2300; n++)
        for (int f = 0; f < 2; f++)
            for (int shape = 0; shape < 3; shape++) {
                static const char *const unit[] = {"a", "\xf0\x9f\x8c\xbe", "\n"};
                const size_t step = strlen(unit[shape]);
                for (size_t k = 0; k + step <= n; k += step)
                    memcpy(big + k, unit[shape], step);
                LOG(&l[f], LOG_INFO, "x", "y", log_str("v", (struct str){big, n - n % step}), log_u64("end", 123456789),
                    log_cstr("s", "t"));
                const char *line = drain_pipe();
                const size_t len = strlen(line);
                assert_true(len <= LOG_LINE_BYTES_MAX && line[len - 1] == '\n' && strchr(line, '\n') == line + len - 1);
                assert_true(utf8_is_valid((struct str){line, len}));
                const bool whole = strstr(line, f == 0 ? " s=t\n" : "\"s\":\"t\"}") != NULL;
                const bool cut = strstr(line, f == 0 ? " cut=1\n" : "\"cut\":true}") != NULL;
                assert_true(whole != cut);
                assert_true(cut == true || len < LOG_LINE_BYTES_MAX);
                if (f == 1) {
                    struct error e;
                    json_t *doc;
                    assert_ok(e, json_parse((struct str){line, len}, &doc, &e));
                    json_decref(doc);
                }
            }
    log_fini(&l[0]);
    log_fini(&l[1]);
}

static void a_full_ring_drops_and_counts(void **state)
{
    (void)state;
    struct error e;
    struct log l, engine;
    start(&l, LOG_TEXT, "info,quiet=error");
    assert_ok(e, log_init_ring(&engine, &l, 8, NULL, &e));
    assert_false(log_has(&engine, LOG_INFO, "quiet"));
    const uint64_t before = mem_thread_allocs();
    for (uint64_t i = 0; i < 11; i++)
        LOG(&engine, LOG_INFO, "engine", "turn", log_u64("i", i));
    assert_int_equal(mem_thread_allocs(), before);
    assert_string_equal(drain_pipe(), ""); /* nothing was written yet */
    assert_int_equal(log_dropped(&engine), 3);
    assert_int_equal(log_drain(&engine), 8);
    const char *out = drain_pipe();
    assert_non_null(strstr(out, "event=turn i=0\n"));
    assert_non_null(strstr(out, "event=turn i=7\n"));
    assert_null(strstr(out, "i=8"));
    assert_non_null(strstr(out, "level=warn cat=log event=\"lines dropped\" n=3 total=3\n"));
    assert_int_equal(log_drain(&engine), 0);
    assert_string_equal(drain_pipe(), ""); /* reported once */
    LOG(&engine, LOG_INFO, "engine", "last");
    log_fini(&engine); /* drains */
    assert_non_null(strstr(drain_pipe(), "event=last\n"));
    log_fini(&l);
}

static enum err case_ring(void *ctx, struct error *e)
{
    struct log engine;
    const enum err err = log_init_ring(&engine, ctx, 8, NULL, e);
    log_fini(&engine);
    return err;
}

static void failing_allocations_are_answers(void **state)
{
    (void)state;
    struct log l;
    start(&l, LOG_TEXT, "info");
    assert_int_equal(fail_each(FAULT_ALLOC, case_ring, &l), 1);
    log_fini(&l);
}

static void a_descriptor_that_refuses_costs_lines_not_the_process(void **state)
{
    (void)state;
    struct error e;
    struct log l;
    struct log_levels v = {.base = LOG_INFO};
    const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_ok(e, log_init(&l, full, LOG_TEXT, &v, &when, &e));
    LOG(&l, LOG_INFO, "x", "y");
    LOG(&l, LOG_INFO, "x", "y");
    assert_int_equal(log_dropped(&l), 2);
    log_fini(&l);
    close(full);
}

struct talker {
    struct log *log;
    uint64_t who, n;
};

static void *talk(void *arg)
{
    const struct talker *t = arg;
    char words[100];
    memset(words, (int)('a' + t->who), sizeof words - 1);
    words[sizeof words - 1] = '\0';
    for (uint64_t i = 0; i < t->n; i++)
        LOG(t->log, LOG_INFO, "talk", "line", log_u64("who", t->who), log_u64("i", i), log_cstr("w", words));
    return NULL;
}

/* Four threads, two straight to the descriptor and two through the ring, while this one drains. */
static void lines_of_many_threads_never_mix(void **state)
{
    (void)state;
    struct error e;
    struct log l, engine;
    struct talker t[4];
    pthread_t threads[4];
    enum { EACH = 500 };
    start(&l, LOG_TEXT, "info");
    assert_ok(e, log_init_ring(&engine, &l, 64, NULL, &e));
    for (uint64_t i = 0; i < 4; i++) {
        t[i] = (struct talker){i < 2 ? &l : &engine, i, EACH};
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &t[i]), 0);
    }
    for (int i = 0; i < 100; i++) {
        log_drain(&engine);
        usleep(100);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    const uint64_t dropped = log_dropped(&engine);
    log_fini(&engine);
    drain_pipe();
    uint64_t seen[4] = {0}, n_lines = 0, n_reports = 0;
    for (char *line = text, *next; *line != '\0'; line = next) {
        next = strchr(line, '\n') + 1;
        unsigned long long who, i;
        char words[101] = {0}, end = 0;
        if (strstr(line, "lines dropped") != NULL && strstr(line, "lines dropped") < next) {
            n_reports++;
            continue;
        }
        assert_int_equal(sscanf(strstr(line, " who="), " who=%llu i=%llu w=%100[a-z]%c", &who, &i, words, &end), 4);
        assert_true(who < 4 && i < EACH && end == '\n' && strlen(words) == 99);
        for (int k = 0; k < 99; k++)
            assert_int_equal(words[k], 'a' + who);
        assert_true(i >= seen[who]); /* each thread's lines in order */
        seen[who] = i + 1;
        n_lines++;
    }
    assert_int_equal(n_lines + dropped, 4 * EACH);
    assert_true(seen[0] == EACH && seen[1] == EACH);
    assert_true((n_reports > 0) == (dropped > 0));
    assert_int_equal(log_dropped(&l), 0);
    log_fini(&l);
}

#define with_pipe(test) cmocka_unit_test_setup_teardown(test, open_pipe, close_pipe)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_pipe(lines_are_exact),
        with_pipe(dates_agree_with_the_c_library),
        with_pipe(levels_filter_by_category),
        with_pipe(keys_are_ours_and_plain),
        with_pipe(untrusted_values_cannot_forge_a_line),
        with_pipe(long_lines_are_cut_and_say_so),
        with_pipe(a_full_ring_drops_and_counts),
        with_pipe(failing_allocations_are_answers),
        with_pipe(a_descriptor_that_refuses_costs_lines_not_the_process),
        with_pipe(lines_of_many_threads_never_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
