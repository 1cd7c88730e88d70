/* The embedding API, through its own header. */
#include "testing.h"

#include "base/mem.h"
#include "quern.h"

#define TINY "tests/data/tiny/tiny-1m-q8_0.gguf"

static struct quern *open_tiny(void)
{
    struct quern *q = NULL;
    struct quern_error e = {0};
    struct quern_options o = quern_options_default();
    o.path = TINY;
    o.threads = 1;
    if (quern_open(&o, &q, &e) != 0)
        fail_msg("%s", e.text);
    return q;
}

static struct quern_client *new_client(struct quern *q)
{
    struct quern_client *c = NULL;
    struct quern_error e = {0};
    assert_int_equal(quern_client_new(q, &c, &e), 0);
    return c;
}

struct heard {
    char text[3][2048];
    size_t n[3];
    uint32_t ids[3][64];
    size_t n_ids[3];
    char finish[3][16];
    uint32_t n_last;
};

static int listen(void *ctx, const struct quern_event *ev)
{
    struct heard *h = ctx;
    const uint32_t i = ev->choice;
    assert_true(i < 3 && h->n[i] + ev->text_bytes < sizeof h->text[i] && h->finish[i][0] == '\0');
    memcpy(h->text[i] + h->n[i], ev->text, ev->text_bytes);
    h->n[i] += ev->text_bytes;
    memcpy(h->ids[i] + h->n_ids[i], ev->ids, ev->n_ids * sizeof *ev->ids);
    h->n_ids[i] += ev->n_ids;
    if (ev->finish != NULL)
        snprintf(h->finish[i], sizeof h->finish[i], "%s", ev->finish);
    h->n_last += ev->is_last != 0;
    return 0;
}

static void ask(struct quern_client *c, const struct quern_ask *a, struct heard *h)
{
    struct quern_error e = {0};
    memset(h, 0, sizeof *h);
    if (quern_submit(c, a, NULL, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(quern_run(c, listen, h), 0);
    assert_int_equal(h->n_last, 1);
}

static void answers_come_by_callback_and_are_repeatable(void **state)
{
    struct quern *q = open_tiny(), *other = open_tiny();
    struct quern_client *c = new_client(q), *d = new_client(other);
    struct heard a, b;
    struct quern_ask o = quern_ask_default();
    o.text = "The king said";
    o.max_tokens = 20;
    o.n = 3;
    o.seed = 5;
    o.temperature = 1.0f;
    ask(c, &o, &a);
    ask(d, &o, &b);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a.n_ids[i], 20);
        assert_true(a.n[i] > 10);
        assert_string_equal(a.finish[i], "length");
    }
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(a.ids[0], a.ids[1], sizeof a.ids[0]);
    struct quern_stats s;
    quern_stats(q, &s);
    assert_true(s.requests == 1 && s.output_tokens == 60 && s.kv_blocks > 0);
    quern_client_free(c);
    quern_client_free(d);
    quern_close(q);
    quern_close(other);
    (void)state;
}

static void stops_chats_ids_and_polls(void **state)
{
    struct quern *q = open_tiny();
    struct quern_client *c = new_client(q);
    struct heard a, b;
    struct quern_event ev;
    struct quern_ask o = quern_ask_default();
    const uint32_t ids[] = {5, 6, 7, 8};
    const char *const stops[] = {"e"};
    o.ids = ids;
    o.n_ids = 4;
    o.max_tokens = 40;
    o.ignore_eos = 1;
    ask(c, &o, &a);
    o.stops = stops;
    o.n_stops = 1;
    ask(c, &o, &b);
    assert_string_equal(b.finish[0], "stop");
    assert_null(strchr(b.text[0], 'e'));
    assert_memory_equal(a.text[0], b.text[0], b.n[0]);
    assert_int_equal(quern_poll(c, 0, &ev), 0);
    o = quern_ask_default();
    o.messages = "[{\"role\": \"user\", \"content\": \"Who are you?\"}]";
    o.max_tokens = 8;
    ask(c, &o, &a);
    assert_true(a.n_ids[0] > 0);
    struct quern_error e = {0};
    o.messages = NULL;
    assert_int_equal(quern_submit(c, &o, NULL, &e), QUERN_INVALID);
    assert_non_null(strstr(e.text, "exactly one"));
    e = (struct quern_error){0};
    o.text = "x";
    o.top_p = 2.0f;
    assert_int_equal(quern_submit(c, &o, NULL, &e), QUERN_INVALID);
    e = (struct quern_error){0};
    struct quern *none = NULL;
    struct quern_options oo = quern_options_default();
    oo.path = "no/such/model.gguf";
    assert_int_equal(quern_open(&oo, &none, &e), QUERN_NOT_FOUND);
    quern_client_free(c);
    quern_close(q);
    (void)state;
}

static void what_is_cancelled_or_left_behind_goes(void **state)
{
    struct quern *q = open_tiny();
    struct quern_client *c = new_client(q);
    struct quern_request *r;
    struct quern_event ev = {0};
    struct quern_error e = {0};
    struct quern_ask o = quern_ask_default();
    int marks[2];
    o.text = "A long story";
    o.max_tokens = 0;
    o.ignore_eos = 1;
    o.user = &marks[0];
    assert_int_equal(quern_submit(c, &o, &r, &e), 0);
    assert_int_equal(quern_poll(c, -1, &ev), 1);
    assert_ptr_equal(ev.user, &marks[0]);
    quern_cancel(c, r);
    while (!ev.is_last)
        assert_int_equal(quern_poll(c, -1, &ev), 1);
    assert_string_equal(ev.finish, "abort");
    assert_int_equal(quern_poll(c, -1, &ev), 0); /* nothing runs any more */
    for (int i = 0; i < 5; i++)
        assert_int_equal(quern_submit(c, &o, &r, &e), 0);
    assert_int_equal(quern_poll(c, -1, &ev), 1);
    quern_client_free(c);
    quern_close(q);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_by_callback_and_are_repeatable),
        cmocka_unit_test(stops_chats_ids_and_polls),
        cmocka_unit_test(what_is_cancelled_or_left_behind_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
