/* A hostile template ends in ERR_LIMIT after bounded work. The work is counted in steps and bytes, never timed; the
 * time is printed for the reader. */
#include "testing.h"

#include "base/limits.h"
#include "base/mem.h"
#include "text/chat.h"

#include <time.h>

static struct error e;

static enum err run(const char *source, struct chat_output *o)
{
    struct chat_template *t;
    json_t *messages = NULL;
    enum err err = chat_template_new(&t, "bomb", str_of(source), &e);
    if (err != OK)
        return err;
    assert_int_equal(json_parse(STR("[{\"role\":\"user\",\"content\":\"aaaaaaaaaaaaaaaa\"}]"), &messages, &e), OK);
    const struct chat_input in = {.messages = messages};
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    err = chat_render(t, &in, o, &e);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    printf("%8.1f ms %9llu steps %9zu bytes  %.60s\n",
        (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6, (unsigned long long)o->steps,
        o->arena_bytes, source);
    json_decref(messages);
    chat_template_free(t);
    return err;
}

/* Every bomb ends in an error about a limit, within the limits' own arithmetic. */
static const char *const bombs[] = {
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s | replace('a', ns.s) %}{% endfor %}",
    "{% set ns = namespace(s='a') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson "
    "}}",
    "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, "
    "ns.b] %}"
    "{% endfor %}{{ ns.a == ns.b }}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 'a' | center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'a'.ljust(10**12) }}",
    "{{ 'a' | indent(10**9, true) }}",
    "{{ [1] | slice(10**9) | list }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}",
    "{% set s = 'a' * 10**6 %}{% for i in range(100000) %}{% set t = s.upper() %}{% endfor %}",
    "{% set s = 'a' * 10**6 %}{% for i in range(100000) %}{% set t = s | length %}{% endfor %}",
    "{% set s = 'a' * 10**7 %}{{ s.rfind('a' * 5000000 ~ 'b' ~ 'a') }}{{ s.rfind('a' * 4000000 ~ 'b' ~ 'a' * 10) }}",
    "{% set s = 'a' * 1000000 %}{{ s.strip('b' * 1000000 ~ 'a') }}",
    "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{% set t = s.ljust(3) %}{% endfor %}",
    "{% set s = ' ' * 10**7 %}{% for i in range(100000) %}{% set t = s | int %}{% endfor %}",
    "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{% set t = s.count('b') %}{% endfor %}",
    "{% set s = 'a' * 10**7 %}{% for i in range(100000) %}{% set t = s[5000000] %}{% endfor %}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% set l = range(100000) | list %}{% for i in range(100) %}{% set m = l | sort(reverse=true) %}{% endfor %}",
    "{% for i in range(100000) %}{{ messages | tojson }}{% endfor %}",
    "{% set s = 'a,' * 5000000 %}{{ s.split(',') | length }}",
    "{{ messages[0].content | list | map('replace', 'a', 'a' * 5000000) | join | length }}",
};

static void hostile_templates_end_at_a_limit(void **state)
{
    (void)state;
    struct chat_output o;
    chat_output_init(&o);
    for (size_t i = 0; i < COUNT_OF(bombs); i++) {
        assert_fails(e, ERR_LIMIT, "template bomb line 1: ", run(bombs[i], &o));
        assert_true(o.steps <= CHAT_STEPS_MAX + 10000);                 /* some come with the input */
        assert_true(o.arena_bytes <= CHAT_RENDER_BYTES_MAX + 64 * KIB); /* a little comes with the input */
        assert_int_equal(o.text.n, 0);
        assert_int_equal(o.n_segments, 0);
    }
    chat_output_fini(&o);
}

static void work_below_the_limits_is_done(void **state)
{
    (void)state;
    struct chat_output o;
    chat_output_init(&o);
    assert_ok(e, run("{% for i in range(100000) %}x{% endfor %}", &o));
    assert_int_equal(o.text.n, 100000);
    assert_ok(e, run("{% set ns = namespace(s='') %}{% for i in range(50000) %}{% set ns.s = ns.s ~ 'abcdefgh' %}{% "
                     "endfor %}{{ ns.s }}",
                     &o));
    assert_int_equal(o.text.n, 400000);
    assert_true(o.arena_bytes < 20 * MIB); /* appended in place: quadratic copying would need 10 GB */
    assert_ok(e, run("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(30) }}", &o));
    assert_int_equal(o.text.n, 31);
    chat_output_fini(&o);
}

static void deep_sources_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *open, *middle, *close;
    } nests[] = {{"(", "1", ")"}, {"[", "1", "]"}, {"{1:", "1", "}"}, {"not ", "1", ""}, {"- ", "1", ""},
        {"1 if 1 else ", "1", ""}, {"x[", "1", "]"}, {"f(", "1", ")"}, {"1 ~ (", "1", ")"}};
    struct chat_template *t;
    for (size_t k = 0; k < COUNT_OF(nests); k++) {
        struct buf b;
        buf_init(&b, 10 * MIB);
        buf_add(&b, STR("{{ "));
        for (int i = 0; i < 50000; i++)
            buf_add(&b, str_of(nests[k].open));
        buf_add(&b, str_of(nests[k].middle));
        for (int i = 0; i < 50000; i++)
            buf_add(&b, str_of(nests[k].close));
        buf_add(&b, STR(" }}"));
        assert_fails(e, ERR_LIMIT, "template deep line 1: ", chat_template_new(&t, "deep", buf_str(&b), &e));
        buf_clear(&b);
        for (int i = 0; i < 20000; i++)
            buf_add(&b, STR("{% if x %}"));
        assert_fails(e, ERR_LIMIT, "nested deeper", chat_template_new(&t, "deep", buf_str(&b), &e));
        buf_fini(&b);
    }
}

static void long_chains_are_refused_or_done(void **state)
{
    (void)state;
    struct chat_output o;
    struct buf b;
    chat_output_init(&o);
    buf_init(&b, 10 * MIB);
    buf_add(&b, STR("{{ 1"));
    for (int i = 0; i < 20000; i++)
        buf_add(&b, STR(" + 1"));
    buf_add(&b, STR(" }}"));
    buf_add_char(&b, '\0');
    assert_fails(e, ERR_LIMIT, "nested deeper", run(b.p, &o));
    buf_clear(&b);
    buf_add(&b, STR("{{ 1"));
    for (int i = 0; i < 200; i++)
        buf_add(&b, STR(" + 1"));
    buf_add(&b, STR(" }}"));
    buf_add_char(&b, '\0');
    assert_ok(e, run(b.p, &o));
    assert_string_equal(buf_str(&o.text).p, "201");
    buf_clear(&b);
    for (uint64_t i = 0; i <= CHAT_TEMPLATE_BYTES_MAX; i++)
        buf_add_char(&b, 'x');
    struct chat_template *t;
    assert_fails(e, ERR_LIMIT, "the limit is", chat_template_new(&t, "big", buf_str(&b), &e));
    buf_fini(&b);
    chat_output_fini(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_templates_end_at_a_limit),
        cmocka_unit_test(work_below_the_limits_is_done),
        cmocka_unit_test(deep_sources_are_refused),
        cmocka_unit_test(long_chains_are_refused_or_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
