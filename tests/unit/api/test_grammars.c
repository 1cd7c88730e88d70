/* The grammars of a server: compiled once for all who ask, kept with their errors, thrown out oldest first; askers that
 * leave at any moment. */
#include "testing.h"

#include "api/grammars.h"
#include "base/limits.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static struct vocab_view vocab;
static struct grammar_vocab *grammar_vocab;

static int open_vocab(void **state)
{
    static char bytes[256];
    static uint32_t offsets[257];
    static uint8_t flags[256];
    struct error e;
    for (uint32_t i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        offsets[i + 1] = i + 1;
    }
    vocab = (struct vocab_view){.n = 256, .bytes = bytes, .offsets = offsets, .flags = flags};
    assert_ok(e, grammar_vocab_new(&vocab, &grammar_vocab, &e));
    (void)state;
    return 0;
}

static int close_vocab(void **state)
{
    grammar_vocab_free(grammar_vocab);
    (void)state;
    return 0;
}

struct desk { /* one thread that asks */
    struct grammars *g;
    struct grammars_box box;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool has_news;
};

static void wake(void *ctx)
{
    struct desk *d = ctx;
    pthread_mutex_lock(&d->lock);
    d->has_news = true;
    pthread_cond_signal(&d->news);
    pthread_mutex_unlock(&d->lock);
}

static void desk_open(struct desk *d, struct grammars *g)
{
    *d = (struct desk){.g = g};
    d->box = (struct grammars_box){.wake = wake, .ctx = d};
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->news, NULL);
}

static struct grammars_ask *desk_wait(struct desk *d)
{
    for (;;) {
        struct grammars_ask *a = grammars_next(d->g, &d->box);
        if (a != NULL)
            return a;
        pthread_mutex_lock(&d->lock);
        while (!d->has_news)
            pthread_cond_wait(&d->news, &d->lock);
        d->has_news = false;
        pthread_mutex_unlock(&d->lock);
    }
}

/* The compiled grammar or the error, waited for; a reference of the caller's. */
static struct grammar *get(struct desk *d, enum grammar_kind kind, const char *text, struct error *e)
{
    struct grammars_ask ask = {.box = &d->box};
    const struct grammar_source src = {.kind = kind, .text = str_of(text)};
    struct grammar *g = NULL;
    *e = (struct error){0};
    while (grammars_get(d->g, &src, &ask, &g, e) == ERR_AGAIN) {
        *e = (struct error){0};
        usleep(1000);
    }
    if (g != NULL || e->code != OK)
        return g;
    struct grammars_ask *got = desk_wait(d);
    assert_ptr_equal(got, &ask);
    assert_true(ask.is_answered);
    *e = ask.error;
    return ask.grammar;
}

static struct grammars *open_grammars(void)
{
    struct grammars *g;
    struct error e;
    assert_ok(e, grammars_new(grammar_vocab, &g, &e));
    return g;
}

static void a_source_is_compiled_once(void **state)
{
    struct desk d;
    struct error e;
    struct grammars_numbers n;
    struct grammars *gs = open_grammars();
    desk_open(&d, gs);
    struct grammar *a = get(&d, GRAMMAR_REGEX, "a+b", &e), *b = get(&d, GRAMMAR_REGEX, "a+b", &e);
    assert_non_null(a);
    assert_ptr_equal(a, b);
    assert_true(grammar_matches(a, STR("aab")));
    struct grammar *c = get(&d, GRAMMAR_CHOICE, "[\"a+b\"]", &e);
    assert_ptr_not_equal(a, c);
    grammars_numbers(gs, &n);
    assert_true(n.misses == 2 && n.hits == 1 && n.n == 2 && n.bytes > 0 && n.n_queued == 0);
    grammars_free(gs); /* references outlive it */
    assert_true(grammar_matches(c, STR("a+b")));
    grammar_unref(a);
    grammar_unref(b);
    grammar_unref(c);
    (void)state;
}

static void errors_are_kept_too(void **state)
{
    struct desk d;
    struct error e;
    struct grammars_numbers n;
    struct grammars *gs = open_grammars();
    desk_open(&d, gs);
    for (int i = 0; i < 3; i++) {
        assert_null(get(&d, GRAMMAR_REGEX, "(a", &e));
        assert_true(e.code != OK && e.text[0] != '\0');
    }
    grammars_numbers(gs, &n);
    assert_true(n.misses == 1 && n.failures == 1 && n.hits == 2);
    grammars_free(gs);
    (void)state;
}

static void what_is_kept_is_bounded_and_the_oldest_goes(void **state)
{
    struct desk d;
    struct error e;
    struct grammars_numbers n;
    char text[64];
    struct grammars *gs = open_grammars();
    desk_open(&d, gs);
    for (int i = 0; i < GRAMMARS_MAX + 100; i++) {
        snprintf(text, sizeof text, "[\"%d\"]", i);
        struct grammar *g = get(&d, GRAMMAR_CHOICE, text, &e);
        assert_non_null(g);
        grammar_unref(g);
        if (i % 50 == 0)
            grammar_unref(get(&d, GRAMMAR_CHOICE, "[\"0\"]", &e)); /* in use all the time */
    }
    grammars_numbers(gs, &n);
    assert_int_equal(n.n, GRAMMARS_MAX);
    assert_true(n.bytes <= GRAMMARS_BYTES_MAX);
    const uint64_t misses = n.misses;
    grammar_unref(get(&d, GRAMMAR_CHOICE, "[\"0\"]", &e));
    grammars_numbers(gs, &n);
    assert_int_equal(n.misses, misses);
    grammar_unref(get(&d, GRAMMAR_CHOICE, "[\"1\"]", &e));
    grammars_numbers(gs, &n);
    assert_int_equal(n.misses, misses + 1);
    grammars_free(gs);
    (void)state;
}

/* Nobody waits for an answer: everything asked for is forgotten at some moment of its life. */
static void askers_may_leave_at_any_moment(void **state)
{
    struct desk d;
    struct grammars *gs = open_grammars();
    struct grammars_ask asks[GRAMMARS_QUEUE_MAX + 8];
    desk_open(&d, gs);
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t n = 0, refused = 0;
        for (uint32_t i = 0; i < COUNT_OF(asks); i++) {
            char text[64];
            struct error e = {0};
            struct grammar *g;
            snprintf(text, sizeof text, "(a|b)*a%u(a|b){%u}", round * 100 + i / 2, i % 6); /* each twice */
            const struct grammar_source src = {.kind = GRAMMAR_REGEX, .text = str_of(text)};
            asks[n] = (struct grammars_ask){.box = &d.box};
            const enum err err = grammars_get(gs, &src, &asks[n], &g, &e);
            refused += err == ERR_AGAIN;
            if (err == OK && g == NULL)
                n++;
            grammar_unref(g);
        }
        assert_true(n + refused <= COUNT_OF(asks) && refused <= 8);
        usleep(round * 50);
        if (round % 3 == 0)
            (void)grammars_next(gs, &d.box);
        for (uint32_t i = 0; i < n; i++)
            grammars_forget(gs, &asks[round % 2 == 0 ? i : n - 1 - i]);
        assert_null(d.box.first);
    }
    grammars_free(gs);
    (void)state;
}

static void *ask_for_many(void *ctx)
{
    struct desk d;
    desk_open(&d, ctx);
    for (uint32_t i = 0; i < 300; i++) {
        char text[32];
        struct error e;
        snprintf(text, sizeof text, "x{%u}", i % 40);
        struct grammar *g = get(&d, GRAMMAR_REGEX, text, &e);
        assert_true(g != NULL || e.code == OK);
        grammar_unref(g);
    }
    return NULL;
}

static void many_threads_share_what_is_compiled(void **state)
{
    struct grammars_numbers n;
    pthread_t threads[4];
    struct grammars *gs = open_grammars();
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_many, gs), 0);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        pthread_join(threads[i], NULL);
    grammars_numbers(gs, &n);
    assert_int_equal(n.misses, 40);
    assert_int_equal(n.hits + n.misses, 4 * 300);
    grammars_free(gs);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_is_compiled_once),
        cmocka_unit_test(errors_are_kept_too),
        cmocka_unit_test(what_is_kept_is_bounded_and_the_oldest_goes),
        cmocka_unit_test(askers_may_leave_at_any_moment),
        cmocka_unit_test(many_threads_share_what_is_compiled),
    };
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
