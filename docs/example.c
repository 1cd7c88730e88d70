/* A program with quern inside: three questions at once, the answers as they come.
 *
 *   cc example.c -lquern_embed $(pkg-config --libs jansson libcrypto libcurl zlib libpcre2-8 libutf8proc) -lpthread -lm
 *   ./a.out MODEL
 *
 * Compiled and run by the tests. */
#include "quern.h"

#include <stdio.h>
#include <string.h>

#define QUESTIONS 3

/* Answers come in pieces and mixed; each is put together in its own place. */
struct page {
    char text[QUESTIONS][4096];
    size_t n[QUESTIONS];
};

static int on_event(void *ctx, const struct quern_event *ev)
{
    struct page *page = ctx;
    const size_t i = *(const size_t *)ev->user;
    const size_t room = sizeof page->text[i] - page->n[i];
    const size_t n = ev->text_bytes < room ? ev->text_bytes : room;
    memcpy(page->text[i] + page->n[i], ev->text, n);
    page->n[i] += n;
    if (ev->finish != NULL)
        fprintf(stderr, "answer %zu is finished: %s\n", i, ev->finish);
    return 0; /* anything else ends quern_run */
}

static int ask_all(struct quern *q)
{
    static const char *const questions[QUESTIONS] = {"Once upon a time", "The king said", "In the morning"};
    static const size_t numbers[QUESTIONS] = {0, 1, 2};
    static struct page page;
    struct quern_client *client;
    struct quern_stats stats;
    struct quern_error e = {0};
    if (quern_client_new(q, &client, &e) != 0) {
        fprintf(stderr, "example: %s\n", e.text);
        return 1;
    }
    for (size_t i = 0; i < QUESTIONS; i++) {
        struct quern_ask ask = quern_ask_default();
        ask.text = questions[i];
        ask.max_tokens = 24;
        ask.seed = 1;
        ask.user = (void *)(uintptr_t)&numbers[i];
        if (quern_submit(client, &ask, NULL, &e) != 0)
            fprintf(stderr, "example: %s\n", e.text);
    }
    const int failed = quern_run(client, on_event, &page);
    for (size_t i = 0; i < QUESTIONS; i++)
        printf("%s%.*s\n\n", questions[i], (int)page.n[i], page.text[i]);
    quern_stats(q, &stats);
    printf("%llu tokens in %llu steps\n", (unsigned long long)stats.output_tokens, (unsigned long long)stats.steps);
    quern_client_free(client);
    return failed || e.code != 0;
}

int main(int argc, char **argv)
{
    struct quern_options o = quern_options_default();
    struct quern_error e = {0};
    struct quern *q;
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    o.path = argv[1];
    if (quern_open(&o, &q, &e) != 0) {
        fprintf(stderr, "example: %s\n", e.text);
        return 1;
    }
    const int failed = ask_all(q);
    quern_close(q);
    return failed;
}
