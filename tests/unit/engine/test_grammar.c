/* Requests with grammars through the whole loop, over the fake runner: masks are obeyed, forced text is jumped over,
 * and neither changes an answer. The answers to compare with are made one after another on a bare engine, token by
 * token (log-probabilities are wanted, so nothing is jumped); then the same requests run together through engines of
 * every kind: one step ahead and not, swapping, recomputing, with small budgets, forked. */
#include "engine/testing_engine.h"

#include "base/file.h"
#include "engine/masks.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define VOCAB      97
#define EOS        0u
#define N_REQUESTS 48
#define CHOICES    3
#define TOKENS_MAX 40

static const char *const words[] = {"{\"", "name", "\": ", "\": \"", "\", \"", "\"", "age", "na", "me", "am", "ye",
    "yes", "s", "maybe", " not", "not", " ", "[[", "]]", "],[", "[", "]", ",", ":", "{", "}", "12", "99", "ab", "abc",
    "bc", "aa", "1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "}\n", "e\": ", "\"}"};

static struct vocab_view vocab;
static struct grammar_vocab *grammar_vocab;
static struct grammar *grammars[5];

/* Id 0 ends; then the letters; then the words above; the rest are holes. */
static void make_vocab(void)
{
    static char bytes[1024];
    static uint32_t offsets[VOCAB + 1];
    static uint8_t flags[VOCAB];
    uint32_t at = 0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        offsets[i] = at;
        if (i == EOS) {
            memcpy(bytes + at, "<end>", 5);
            at += 5;
            flags[i] = VOCAB_SPECIAL;
        } else if (i <= 26) {
            bytes[at++] = (char)('a' + i - 1);
        } else if (i - 27 < COUNT_OF(words)) {
            const struct str w = str_of(words[i - 27]);
            memcpy(bytes + at, w.p, w.n);
            at += (uint32_t)w.n;
        } else
            flags[i] = VOCAB_HOLE;
    }
    offsets[VOCAB] = at;
    vocab = (struct vocab_view){.n = VOCAB, .bytes = bytes, .offsets = offsets, .flags = flags};
}

static int open_grammars(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } sources[COUNT_OF(grammars)] = {
        {GRAMMAR_REGEX, "\\{\"name\": \"[a-z]{2,8}\", \"age\": [0-9]{1,3}\\}"},
        {GRAMMAR_CHOICE, "[\"yes\",\"no\",\"maybe not\"]"},
        {GRAMMAR_EBNF, "root ::= list\nlist ::= \"[\" (list (\",\" list)*)? \"]\" | [a-c]+\n"},
        {GRAMMAR_REGEX, "[ab]*"},
        {GRAMMAR_REGEX, "(name|age): (yes|not)(, (name|age): (yes|not)){0,6}"},
    };
    struct error e;
    make_vocab();
    assert_ok(e, grammar_vocab_new(&vocab, &grammar_vocab, &e));
    for (size_t i = 0; i < COUNT_OF(grammars); i++) {
        const struct grammar_source src = {.kind = sources[i].kind, .text = str_of(sources[i].text)};
        assert_ok(e, grammar_compile(&src, grammar_vocab, &grammars[i], &e));
    }
    (void)state;
    return 0;
}

static int close_grammars(void **state)
{
    for (size_t i = 0; i < COUNT_OF(grammars); i++)
        grammar_unref(grammars[i]);
    grammar_vocab_free(grammar_vocab);
    (void)state;
    return 0;
}

struct answer {
    uint32_t n, end;
    uint32_t ids[TOKENS_MAX];
};

static struct request_options ask_for(uint32_t i, bool token_by_token)
{
    static const uint32_t eos = EOS;
    struct request_options o = rig_ask(1 + i * 7 % 50, 1 + i * 11 % TOKENS_MAX);
    o.n_choices = i % 5 == 3 ? CHOICES : 1;
    o.sample.seed = i;
    o.sample.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    if (i % 4 == 1)
        o.sample.presence_penalty = 1.0f;
    o.stop_ids = &eos;
    o.n_stop_ids = i % 7 == 6 ? 0 : 1; /* without: only the grammar can end it */
    o.min_tokens = i % 6 == 2 ? 9 : 0;
    o.want_logprobs = token_by_token;
    o.grammar = i % 6 == 5 ? NULL : grammars[i % COUNT_OF(grammars)];
    if (o.grammar != NULL)
        grammar_ref(o.grammar);
    return o;
}

static void write_down(const struct request *r, struct answer *out)
{
    for (uint32_t c = 0; c < r->n_choices; c++) {
        out[c] =
            (struct answer){.n = atomic_load(&r->choices[c].n_out), .end = (uint32_t)atomic_load(&r->choices[c].end)};
        memcpy(out[c].ids, r->choices[c].ids, out[c].n * sizeof out[c].ids[0]);
    }
}

/* The text without its end token. */
static struct str text_of(const struct answer *a, char *room, size_t cap)
{
    size_t n = 0;
    for (uint32_t i = 0; i < a->n && a->ids[i] != EOS; i++) {
        const struct str s = vocab_bytes(&vocab, a->ids[i]);
        assert_true(n + s.n <= cap);
        memcpy(room + n, s.p, s.n);
        n += s.n;
    }
    return (struct str){room, n};
}

static void check_text(const struct request *r, const struct answer *a)
{
    char room[1024];
    const struct str text = text_of(a, room, sizeof room);
    if (r->o.grammar == NULL)
        return;
    if (a->end == END_EOS)
        assert_true(grammar_matches(r->o.grammar, text));
    else {
        assert_int_equal(a->end, END_LENGTH);
        assert_true(grammar_is_prefix(r->o.grammar, text));
    }
}

static struct answer alone[N_REQUESTS][CHOICES];

static void run_alone(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    uint32_t ends[END_COUNT] = {0};
    o.no_thread = true;
    o.sched.prefix_cache = o.kv.prefix_cache = false;
    rig_open_fake(&r, &o, &f);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const struct request_options ask = ask_for(i, true);
        struct request *q = rig_submit(&r, &ask);
        rig_wait(&r, 1);
        write_down(q, alone[i]);
        for (uint32_t c = 0; c < q->n_choices; c++) {
            check_text(q, &alone[i][c]);
            ends[alone[i][c].end]++;
        }
        request_free(q);
    }
    struct sched_stats s;
    sched_stats(r.en->sched, &s);
    assert_int_equal(s.jumped_tokens, 0);
    assert_true(ends[END_EOS] > 10 && ends[END_LENGTH] > 5);
    rig_close(&r);
    (void)state;
}

struct kind {
    uint32_t depth, preempt_every, chunk_max, n_blocks, max_batched_tokens;
    enum preempt_mode preempt;
    enum batching batching;
    bool hot;
};

/* Every request at once; each answer must be the one that it had alone. */
static void answer_as_alone(struct rig *r)
{
    struct request *q[N_REQUESTS];
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const struct request_options ask = ask_for(i, i % 8 == 7);
        q[i] = rig_submit(r, &ask);
    }
    rig_wait(r, N_REQUESTS);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct answer got[CHOICES];
        write_down(q[i], got);
        for (uint32_t c = 0; c < q[i]->n_choices; c++)
            if (memcmp(&got[c], &alone[i][c], sizeof got[c]) != 0)
                fail_msg("request %u, choice %u: %u tokens for %u, end %u for %u", i, c, got[c].n, alone[i][c].n,
                    got[c].end, alone[i][c].end);
        request_free(q[i]);
    }
}

/* All of them together; returns how many tokens were jumped. */
static uint64_t run_together(const struct kind *k, const char *record_path)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    o.no_thread = true;
    o.record_path = record_path;
    o.sched.preempt_every = k->preempt_every;
    o.sched.preempt = k->preempt;
    o.sched.batching = k->batching;
    o.sched.queue_max = o.requests_max = 256;
    o.sched.chunk_max = k->chunk_max;
    o.sched.max_batched_tokens = k->max_batched_tokens != 0 ? k->max_batched_tokens : 64;
    o.kv.n_blocks = k->n_blocks != 0 ? k->n_blocks : 64;
    f.depth = k->depth;
    rig_open_fake(&r, &o, &f);
    for (uint32_t round = 0; round < (k->hot ? 2u : 1u); round++)
        answer_as_alone(&r);
    struct sched_stats s;
    struct engine_stats *es = mem_zalloc(sizeof *es);
    sched_stats(r.en->sched, &s);
    engine_stats(r.en, es);
    assert_int_equal(es->output_tokens, s.output_tokens);
    mem_free(es);
    rig_close(&r);
    return s.jumped_tokens;
}

static void company_and_jumping_change_no_answer(void **state)
{
    static const struct kind kinds[] = {
        {.depth = 0},
        {.depth = 1},
        {.depth = 0, .preempt_every = 3, .preempt = PREEMPT_SWAP, .n_blocks = 34},
        {.depth = 1, .preempt_every = 3, .preempt = PREEMPT_SWAP, .n_blocks = 34},
        {.depth = 0, .preempt_every = 2, .preempt = PREEMPT_RECOMPUTE, .hot = true},
        {.depth = 1, .preempt_every = 2, .preempt = PREEMPT_RECOMPUTE, .hot = true},
        {.depth = 0, .batching = BATCH_PREFILL_FIRST, .chunk_max = 2},
        {.depth = 1, .batching = BATCH_PREFILL_FIRST, .max_batched_tokens = 8},
        {.depth = 1, .chunk_max = 1, .batching = BATCH_STATIC},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        assert_true(run_together(&kinds[i], NULL) > 100);
    (void)state;
}

/* ---- masks beside the device --------------------------------------------------------------------------------------
 */

/* What a runner is told, in order: F forward, S sample, W wait, each with its step. */
struct witness {
    struct runner base, *inner;
    struct runner_ops ops;
    struct clock *clock;
    uint64_t busy_until_ns;                           /* by what was launched */
    uint64_t launched, sampling;                      /* steps */
    _Atomic uint32_t made, early, at_rest, by_engine; /* masks: all, of a step not launched, with an idle device */
    uint32_t made_before;
};

static struct witness *witness_of(struct runner *r)
{
    return (struct witness *)(void *)r;
}

static enum err witness_forward(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    struct witness *w = witness_of(r);
    w->launched = p->step;
    w->busy_until_ns = MAX(w->busy_until_ns, clock_now(w->clock)) + 1000;
    return w->inner->ops->forward(w->inner, p, s, e);
}

static enum err witness_sample(struct runner *r, const struct plan *p, const struct slots *s, struct error *e)
{
    struct witness *w = witness_of(r);
    w->sampling = p->step;
    return w->inner->ops->sample(w->inner, p, s, e);
}

static enum err witness_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    return witness_of(r)->inner->ops->wait(witness_of(r)->inner, p, out, e);
}

static void witness_close(struct runner *r)
{
    runner_close(witness_of(r)->inner);
}

static void mask_made(void *ctx, uint32_t row, uint32_t worker)
{
    struct witness *w = ctx;
    atomic_fetch_add(&w->early, w->launched != w->sampling);
    atomic_fetch_add(&w->at_rest, clock_now(w->clock) >= w->busy_until_ns);
    atomic_fetch_add(&w->by_engine, worker == 0);
    atomic_fetch_add(&w->made, 1);
    (void)row;
}

/* The device takes as long as it takes for all masks to be made. */
static void device_works(void *ctx, uint32_t n_masks)
{
    struct witness *w = ctx;
    while (atomic_load(&w->made) < w->made_before + n_masks)
        sched_yield();
    w->made_before += n_masks;
}

static void run_witnessed(uint32_t depth, uint32_t threads, struct witness *w)
{
    struct rig r = {0};
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct error e;
    clock_init_virtual(&r.clock, 0);
    *w = (struct witness){.clock = &r.clock};
    f.depth = depth;
    f.base_ns = 1000;
    f.clock = &r.clock;
    f.masks.threads = threads;
    f.masks.made = mask_made;
    f.masks.busy = threads > 1 ? device_works : NULL;
    f.masks.ctx = w;
    o.no_thread = true;
    o.sched.queue_max = o.requests_max = 256;
    o.kv.seqs_max = sched_slots(&o.sched);
    const struct runner_limits l = engine_runner_limits(&o.sched, &o.kv);
    assert_ok(e, fake_runner_open(&f, &l, o.kv.n_blocks, o.kv.n_host_blocks, o.kv.block_tokens, &w->inner, &e));
    w->ops = (struct runner_ops){.name = "witness",
        .depth = depth,
        .forward = witness_forward,
        .sample = witness_sample,
        .wait = witness_wait,
        .close = witness_close};
    w->base.ops = &w->ops;
    o.runner = &w->base;
    o.clock = &r.clock;
    assert_ok(e, engine_new(&o, &r.en, &e));
    assert_ok(e, engine_client_new(r.en, &r.client, &e));
    answer_as_alone(&r);
    rig_close(&r);
}

/* Each mask is made after its step was launched, while the device computes, by another thread than the engine's; and
 * the answers are those of requests that ran alone. */
static void masks_are_made_beside_the_device(void **state)
{
    struct witness w;
    for (uint32_t depth = 0; depth < 2; depth++) {
        run_witnessed(depth, 3, &w);
        assert_true(atomic_load(&w.made) > 200);
        assert_int_equal(atomic_load(&w.early), 0);
        assert_int_equal(atomic_load(&w.at_rest), 0);
        assert_int_equal(atomic_load(&w.by_engine), 0);
        run_witnessed(depth, 1, &w); /* with nobody else there it is the engine's thread, which is seen */
        assert_true(atomic_load(&w.by_engine) == atomic_load(&w.made) && atomic_load(&w.made) > 200);
    }
    (void)state;
}

/* A request some tokens into its grammar: with few seeds, several stand in the same place. */
static struct request *standing(uint32_t i, const uint64_t *allowed)
{
    struct request_options o = ask_for(i, false);
    struct request *r;
    struct error e;
    uint64_t mask[(VOCAB + 63) / 64];
    o.vocab_size = VOCAB;
    o.allowed = i % 9 == 8 ? allowed : NULL;
    assert_ok(e, request_new(&o, &r, &e));
    for (uint32_t n = 0; r->choices[0].walk != NULL && n < i / 5 % 4; n++) {
        (void)grammar_mask(r->choices[0].walk, NULL, 0, mask);
        uint32_t id = 1 + (i % 3 + n) * 29 % (VOCAB - 1), tries = 0;
        while (tries++ < VOCAB && (mask[id / 64] >> id % 64 & 1) == 0)
            id = (id + 1) % VOCAB;
        if (tries <= VOCAB)
            assert_ok(e, grammar_accept(r->choices[0].walk, id, &e));
    }
    return r;
}

/* Rows that share a mask have the one that each would have made alone, whoever makes it. */
static void shared_masks_are_the_rows_own(void **state)
{
    static const uint64_t allowed[(VOCAB + 63) / 64] = {0x5a5a5a5a5a5a5a5a, 0x3ffffff0};
    enum { ROWS = 90, WORDS = (VOCAB + 63) / 64 };
    struct request *r[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        r[i] = standing(i, allowed);
    for (uint32_t threads = 1; threads < 5; threads += 3)
        for (uint32_t turn = 0; turn < 20; turn++) {
            struct masks *m;
            struct error e;
            uint32_t rows = 0;
            assert_ok(e, masks_new(ROWS + 1, VOCAB, threads, NULL, &m, &e));
            for (uint32_t again = 0; again < 2; again++) {
                masks_clear(m);
                for (uint32_t i = rows = 0; i < ROWS; i++)
                    if (r[i]->choices[0].walk != NULL)
                        assert_int_equal(masks_add(m, &(struct slot_view){.request = r[i], .choice = &r[i]->choices[0]},
                                             r[i]->choices[0].walk),
                            rows++);
                masks_start(m);
                if (turn % 2 == 0)
                    masks_join(m);
                else
                    (void)masks_wait(m);
                for (uint32_t i = 0, row = 0; i < ROWS; i++) {
                    const struct slot_view v = {.request = r[i], .choice = &r[i]->choices[0]};
                    uint64_t room[WORDS];
                    if (v.choice->walk == NULL)
                        continue;
                    const struct row_mask want = choose_mask(&v, v.choice->walk, room, VOCAB);
                    const struct row_mask got = masks_row(m, row);
                    assert_memory_equal(got.bits, want.bits, sizeof room);
                    assert_int_equal(got.is_forced, want.is_forced);
                    assert_int_equal(masks_none(m, row), choose_none(&v, v.choice->walk, want, VOCAB));
                    assert_true(masks_number(m, row++) < masks_count(m));
                }
                assert_true(masks_count(m) * 3 < rows * 2); /* of masks that were there before */
                const uint32_t n = masks_count(m);
                assert_int_equal(masks_put(m, allowed), n);
                assert_int_equal(masks_count(m), n + 1);
            }
            masks_free(m);
        }
    for (uint32_t i = 0; i < ROWS; i++)
        request_free(r[i]);
    (void)state;
}

/* The same text in fewer steps. */
static void forced_text_takes_fewer_steps(void **state)
{
    for (uint32_t depth = 0; depth < 2; depth++) {
        uint64_t steps[2], jumped[2];
        for (uint32_t jumps = 0; jumps < 2; jumps++) {
            struct rig r;
            struct engine_options o = rig_options();
            struct fake_runner_options f = rig_fake();
            struct sched_stats s;
            o.no_thread = true;
            f.depth = depth;
            rig_open_fake(&r, &o, &f);
            struct request_options ask = ask_for(0, jumps == 0);
            ask.max_tokens = TOKENS_MAX;
            struct request *q = rig_submit(&r, &ask);
            rig_wait(&r, 1);
            sched_stats(r.en->sched, &s);
            steps[jumps] = s.steps;
            jumped[jumps] = s.jumped_tokens;
            request_free(q);
            rig_close(&r);
        }
        assert_true(jumped[0] == 0 && jumped[1] >= 6);
        assert_true(steps[1] + (depth == 0 ? jumped[1] : 3) <= steps[0]);
    }
    (void)state;
}

/* Where nothing may follow, and no end token may be chosen, the answer just ends. */
static void a_grammar_that_is_over_ends_the_answer(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    o.no_thread = true;
    rig_open_fake(&r, &o, &f);
    for (uint32_t i = 0; i < 3; i++) { /* no stop ids; stop ids below min_tokens; banned ones */
        static const uint32_t eos = EOS;
        struct request_options ask = rig_ask(5, TOKENS_MAX);
        ask.stop_ids = ask.banned_ids = &eos;
        ask.n_stop_ids = i == 1;
        ask.n_banned_ids = i == 2;
        ask.min_tokens = i == 1 ? TOKENS_MAX : 0;
        ask.grammar = grammars[1];
        grammar_ref(ask.grammar);
        struct request *q = rig_submit(&r, &ask);
        rig_wait(&r, 1);
        assert_int_equal(atomic_load(&q->choices[0].end), END_EOS);
        struct answer a;
        write_down(q, &a);
        check_text(q, &a);
        assert_true(a.n > 0 && a.ids[a.n - 1] != EOS);
        request_free(q);
    }
    rig_close(&r);
    (void)state;
}

static void a_resumed_answer_goes_on_inside_its_grammar(void **state)
{
    struct rig r;
    struct error e;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct request *q = NULL;
    uint32_t prompt[] = {5, 6, 25, 5}; /* "ye" behind two tokens of prompt */
    struct request_options ask = rig_ask(4, 5);
    o.no_thread = true;
    rig_open_fake(&r, &o, &f);
    ask.prompt = prompt;
    ask.n_prompt = 4;
    ask.n_resume = 2;
    ask.grammar = grammars[1];
    grammar_ref(ask.grammar);
    q = rig_submit(&r, &ask);
    rig_wait(&r, 1);
    assert_int_equal(atomic_load(&q->choices[0].end), END_EOS);
    assert_int_equal(q->choices[0].ids[0], 19); /* s */
    request_free(q);
    prompt[3] = 6;
    grammar_ref(ask.grammar);
    assert_int_equal(request_new(&ask, &q, &e), ERR_INVALID);
    grammar_unref(ask.grammar);
    rig_close(&r);
    (void)state;
}

/* Masks, walks and jumps on the loop's own thread, which is where the fake runner chooses. */
static void the_loop_allocates_nothing(void **state)
{
    struct rig r;
    struct engine_options o = rig_options();
    struct fake_runner_options f = rig_fake();
    struct request *q[N_REQUESTS];
    o.sched.queue_max = o.requests_max = 256;
    rig_open_fake(&r, &o, &f);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        const struct request_options ask = ask_for(i, false);
        q[i] = rig_submit(&r, &ask);
    }
    rig_wait(&r, N_REQUESTS);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        request_free(q[i]);
    assert_int_equal(atomic_load(&r.en->allocs), 0);
    rig_close(&r);
    (void)state;
}

static void jumps_replay_to_the_same_plans(void **state)
{
    for (uint32_t depth = 0; depth < 2; depth++) {
        const struct kind k = {.depth = depth, .preempt_every = 3, .preempt = PREEMPT_RECOMPUTE};
        const struct replay_options ro = {.check_every_step = true};
        char path[] = "/tmp/quern-grammar-XXXXXX";
        struct replay_summary sum;
        struct error e;
        char *bytes;
        size_t n;
        const int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        const uint64_t jumped = run_together(&k, path);
        assert_ok(e, file_read_all(path, 1 << 28, &bytes, &n, &e));
        assert_ok(e, replay_run(bytes, n, &ro, &sum, &e));
        assert_true(!sum.is_cut && sum.ends == N_REQUESTS);
        assert_int_equal(sum.sched.jumped_tokens, jumped);
        unlink(path);
        mem_free(bytes);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_alone),
        cmocka_unit_test(company_and_jumping_change_no_answer),
        cmocka_unit_test(masks_are_made_beside_the_device),
        cmocka_unit_test(shared_masks_are_the_rows_own),
        cmocka_unit_test(forced_text_takes_fewer_steps),
        cmocka_unit_test(a_grammar_that_is_over_ends_the_answer),
        cmocka_unit_test(a_resumed_answer_goes_on_inside_its_grammar),
        cmocka_unit_test(the_loop_allocates_nothing),
        cmocka_unit_test(jumps_replay_to_the_same_plans),
    };
    return cmocka_run_group_tests(tests, open_grammars, close_grammars);
}
