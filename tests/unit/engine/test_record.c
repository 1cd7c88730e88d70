/* A recording replays to the same plans, byte for byte; a changed one does not, and a damaged one is an answer. */
#include "engine/testing_engine.h"

#include "base/file.h"
#include "base/rng.h"
#include "engine/testing_sim.h"

#include <stdlib.h>
#include <unistd.h>

#define VOCAB 97

struct recorded {
    char path[64];
    char *bytes;
    size_t n;
};

static uint64_t draw(uint64_t seed, uint64_t i)
{
    return rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY});
}

/* Every token's text is one letter, so that stop strings are found. */
static const struct vocab_view *letters(void)
{
    static char bytes[VOCAB];
    static uint32_t offsets[VOCAB + 1];
    static uint8_t flags[VOCAB];
    static struct vocab_view view;
    if (view.n != 0)
        return &view; /* an engine may be reading it */
    for (uint32_t i = 0; i < VOCAB; i++) {
        bytes[i] = (char)('a' + i % 26);
        offsets[i + 1] = i + 1;
    }
    view = (struct vocab_view){.n = VOCAB, .bytes = bytes, .offsets = offsets, .flags = flags};
    return &view;
}

/* A short busy life of an engine: forks, stops, cancels, pauses, priorities. */
static void record_life(struct recorded *out, uint64_t seed, uint32_t depth, struct engine_options o)
{
    struct rig r;
    struct error e;
    struct fake_runner_options f = rig_fake();
    struct request *q[40];
    snprintf(out->path, sizeof out->path, "/tmp/quern-record-XXXXXX");
    const int fd = mkstemp(out->path);
    assert_true(fd >= 0);
    close(fd);
    o.record_path = out->path;
    f.depth = depth;
    f.eos_every = 40;
    o.draft = script_proposer_new(SCRIPT_MIXED, &f, seed);
    o.vocab = VOCAB;
    rig_open_fake(&r, &o, &f);
    engine_tenant_weight(r.en, 1, 2.5);
    for (uint32_t i = 0; i < COUNT_OF(q); i++) {
        struct request_options ask =
            rig_ask(1 + (uint32_t)(draw(seed, i) % 60), 1 + (uint32_t)(draw(seed, i + 100) % 40));
        const uint32_t eos = 0;
        const struct str stops[] = {STR("ab"), STR("xyz")};
        ask.stop_ids = &eos;
        ask.n_stop_ids = 1;
        ask.n_choices = 1 + i % 4 % 3;
        ask.priority = (int32_t)(i % 5);
        ask.tenant = i % 3;
        ask.sample.seed = i;
        ask.read_window = i % 7 == 0 ? 3 : 0;
        ask.spec = seed % 4 == 3 ? SPEC_NONE : (enum spec_method)(i % 3);
        ask.spec_k = 1 + i % SPEC_K_MAX;
        ask.ngram_min = 1;
        ask.ngram_max = 3;
        if (i % 2 == 0) {
            ask.vocab = letters();
            assert_ok(e, stop_set_new(&ask.stops, stops, 2, &e));
        }
        q[i] = rig_submit(&r, &ask);
        if (i % 6 == 5)
            engine_cancel(r.client, q[i - 2]);
    }
    for (uint32_t i = 0; i < COUNT_OF(q); i += 7) {
        atomic_store(&q[i]->n_read, 1000);
        engine_read_on(r.client, q[i]);
    }
    rig_wait(&r, COUNT_OF(q));
    for (uint32_t i = 0; i < COUNT_OF(q); i++)
        request_free(q[i]);
    assert_true(record_is_whole(r.en->record));
    rig_close(&r);
    assert_ok(e, file_read_all(out->path, 1 << 28, &out->bytes, &out->n, &e));
}

static void forget(struct recorded *rec)
{
    unlink(rec->path);
    mem_free(rec->bytes);
}

static void a_recording_replays_to_the_same_plans(void **state)
{
    for (uint32_t variant = 0; variant < 8; variant++) {
        struct recorded rec;
        struct engine_options o = rig_options();
        struct error e;
        struct replay_summary sum;
        const struct replay_options ro = {.check_every_step = true};
        o.sched.batching = (enum batching)(variant % 5);
        o.sched.order = (enum queue_order)(variant * 2 % 5);
        o.sched.preempt_every = variant % 3 * 2;
        o.sched.itl_target_ns = variant == 4 ? 1000 : 0;
        record_life(&rec, variant, variant % 2, o);
        assert_ok(e, replay_run(rec.bytes, rec.n, &ro, &sum, &e));
        assert_true(sum.submits > 20 && sum.submits <= 40); /* some are cancelled before they are taken */
        assert_int_equal(sum.ends + sum.refused, sum.submits);
        assert_true(!sum.is_cut && sum.steps > 10 && sum.commits == sum.steps && sum.rows > 100);
        forget(&rec);
    }
    (void)state;
}

/* The twin: one byte of a plan, a token or a time. */
static void a_changed_recording_is_found_out(void **state)
{
    struct recorded rec;
    struct error e = {0};
    struct replay_summary sum;
    const struct replay_options ro = {.check_every_step = false};
    uint32_t found = 0;
    record_life(&rec, 1, 0, rig_options());
    for (uint32_t i = 0; i < 200; i++) {
        const size_t at = 300 + draw(7, i) % (rec.n - 300);
        rec.bytes[at] = (char)(rec.bytes[at] ^ 1);
        e = (struct error){0};
        found += replay_run(rec.bytes, rec.n, &ro, &sum, &e) != OK;
        rec.bytes[at] = (char)(rec.bytes[at] ^ 1);
    }
    assert_true(found > 100); /* the rest changed what plans do not depend on: sampling parameters, a step's cost */
    forget(&rec);
    (void)state;
}

static void a_cut_recording_replays_as_far_as_it_goes(void **state)
{
    struct recorded rec;
    struct error e;
    struct replay_summary sum;
    const struct replay_options ro = {.check_every_step = false};
    record_life(&rec, 2, 1, rig_options());
    for (uint32_t i = 0; i < 50; i++) {
        const size_t n = 400 + draw(9, i) % (rec.n - 401);
        assert_ok(e, replay_run(rec.bytes, n, &ro, &sum, &e));
        assert_true(sum.is_cut);
    }
    assert_fails(e, ERR_FORMAT, "not a recording", replay_run("quernplan...", 12, &ro, &sum, &e));
    forget(&rec);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recording_replays_to_the_same_plans),
        cmocka_unit_test(a_changed_recording_is_found_out),
        cmocka_unit_test(a_cut_recording_replays_as_far_as_it_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
