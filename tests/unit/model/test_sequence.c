/* One sequence over a decoder: what it keeps gives the same bits as what it computes again. */
#include "model/sequence.h"

#include "base/mem.h"
#include "model/testing_model.h"

#define CONTEXT 96u
#define N       70u /* over several steps of 16 rows and several blocks */

struct fixture {
    struct rig rig;
    struct sequence *s;
    uint32_t ids[CONTEXT + 1];
    float *kept;
};

static int set_up(void **state)
{
    struct error e;
    struct fixture *f = mem_zalloc(sizeof *f);
    assert_non_null(f);
    const struct decoder_options o = rig_options(CONTEXT);
    rig_open_tiny(&f->rig, &o);
    assert_ok(e, sequence_new(f->rig.d, &f->s, &e));
    for (uint32_t i = 0; i < COUNT_OF(f->ids); i++)
        f->ids[i] = (i * 7919u + 13u) % decoder_vocab(f->rig.d);
    f->kept = mem_array(decoder_vocab(f->rig.d), sizeof *f->kept);
    assert_non_null(f->kept);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    sequence_free(f->s);
    rig_close(&f->rig);
    mem_free(f->kept);
    mem_free(f);
    return 0;
}

static size_t row_bytes(const struct fixture *f)
{
    return decoder_vocab(f->rig.d) * sizeof *f->kept;
}

/* The logits after ids[0..n), from an empty sequence, into f->kept. */
static void keep_fresh(struct fixture *f, uint32_t n)
{
    struct error e;
    struct sequence *fresh;
    const float *logits;
    assert_ok(e, sequence_new(f->rig.d, &fresh, &e));
    assert_ok(e, sequence_set(fresh, f->ids, n, NULL, NULL, &logits, &e));
    assert_int_equal(sequence_reused(fresh), 0);
    memcpy(f->kept, logits, row_bytes(f));
    sequence_free(fresh);
}

static void set_after_a_common_prefix_gives_the_bits_of_a_fresh_one(void **state)
{
    struct fixture *f = *state;
    struct error e;
    const float *logits;
    keep_fresh(f, N);
    uint32_t other[N];
    for (uint32_t same = 33; same < N; same += 12) {
        memcpy(other, f->ids, sizeof other);
        for (uint32_t i = same; i < N; i++)
            other[i] = (f->ids[i] + 1) % decoder_vocab(f->rig.d);
        assert_ok(e, sequence_set(f->s, other, N, NULL, NULL, &logits, &e));
        assert_memory_not_equal(logits, f->kept, row_bytes(f));
        assert_ok(e, sequence_set(f->s, f->ids, N, NULL, NULL, &logits, &e));
        assert_int_equal(sequence_reused(f->s), same);
        assert_int_equal(sequence_length(f->s), N);
        assert_memory_equal(logits, f->kept, row_bytes(f));
    }
}

static void set_of_the_same_ids_computes_only_the_last(void **state)
{
    struct fixture *f = *state;
    struct error e;
    const float *logits;
    keep_fresh(f, N);
    assert_ok(e, sequence_set(f->s, f->ids, N, NULL, NULL, &logits, &e));
    assert_ok(e, sequence_set(f->s, f->ids, N, NULL, NULL, &logits, &e));
    assert_int_equal(sequence_reused(f->s), N - 1);
    assert_memory_equal(logits, f->kept, row_bytes(f));
}

static void push_gives_the_bits_of_set(void **state)
{
    struct fixture *f = *state;
    struct error e;
    const float *logits;
    keep_fresh(f, N);
    assert_ok(e, sequence_set(f->s, f->ids, 40, NULL, NULL, &logits, &e));
    for (uint32_t i = 40; i < N; i++)
        assert_ok(e, sequence_push(f->s, f->ids[i], &logits, &e));
    assert_memory_equal(logits, f->kept, row_bytes(f));
}

struct seen {
    uint32_t n, last;
    uint32_t stop_at;
    float *row;
    size_t bytes;
};

static bool take_row(void *ctx, uint32_t pos, const float *logits)
{
    struct seen *s = ctx;
    s->n++;
    s->last = pos;
    memcpy(s->row, logits, s->bytes);
    return s->n < s->stop_at;
}

static void score_shows_every_row_and_ends_with_the_bits_of_set(void **state)
{
    struct fixture *f = *state;
    struct error e;
    struct seen seen = {.stop_at = N + 1, .row = mem_zalloc(row_bytes(f)), .bytes = row_bytes(f)};
    assert_non_null(seen.row);
    keep_fresh(f, N);
    assert_ok(e, sequence_score(f->s, f->ids, N, take_row, &seen, &e));
    assert_int_equal(seen.n, N);
    assert_int_equal(seen.last, N - 1);
    assert_memory_equal(seen.row, f->kept, row_bytes(f));
    seen.n = 0;
    seen.stop_at = 5;
    assert_ok(e, sequence_score(f->s, f->ids, N, take_row, &seen, &e));
    assert_int_equal(seen.n, 5);
    mem_free(seen.row);
}

static void what_does_not_fit_is_refused_and_changes_nothing(void **state)
{
    struct fixture *f = *state;
    struct error e;
    const float *logits;
    assert_ok(e, sequence_set(f->s, f->ids, CONTEXT, NULL, NULL, &logits, &e));
    assert_fails(e, ERR_LIMIT, "96", sequence_push(f->s, 1, &logits, &e));
    assert_fails(e, ERR_LIMIT, "97", sequence_set(f->s, f->ids, CONTEXT + 1, NULL, NULL, &logits, &e));
    assert_int_equal(sequence_length(f->s), CONTEXT);
    assert_fails(e, ERR_INVALID, "without tokens", sequence_set(f->s, f->ids, 0, NULL, NULL, &logits, &e));
    const uint32_t outside[] = {1, decoder_vocab(f->rig.d)};
    assert_fails(e, ERR_INVALID, "vocabulary", sequence_set(f->s, outside, 2, NULL, NULL, &logits, &e));
}

static bool stop_third(void *ctx)
{
    uint32_t *asked = ctx;
    return ++*asked == 3;
}

static void stopped_set_keeps_what_was_computed(void **state)
{
    struct fixture *f = *state;
    struct error e;
    const float *logits;
    uint32_t asked = 0;
    keep_fresh(f, N);
    assert_fails(e, ERR_CANCELLED, "stopped", sequence_set(f->s, f->ids, N, stop_third, &asked, &logits, &e));
    assert_int_equal(sequence_length(f->s), 32);
    assert_ok(e, sequence_set(f->s, f->ids, N, NULL, NULL, &logits, &e));
    assert_int_equal(sequence_reused(f->s), 32);
    assert_memory_equal(logits, f->kept, row_bytes(f));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(set_after_a_common_prefix_gives_the_bits_of_a_fresh_one),
        TEST(set_of_the_same_ids_computes_only_the_last),
        TEST(push_gives_the_bits_of_set),
        TEST(score_shows_every_row_and_ends_with_the_bits_of_set),
        TEST(what_does_not_fit_is_refused_and_changes_nothing),
        TEST(stopped_set_keeps_what_was_computed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
