/* A runner one step ahead of a device that chooses by itself: what happens when the device fails, or memory does while
 * it or a draft is opened, and rows that the host has to choose for. That it changes no answer otherwise is the storms'
 * business (testing_storm.c). */
#include "engine/testing_device.h"
#include "engine/testing_engine.h"

#include "base/fault.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "engine/propose.h"
#include "model/model.h"

#define TINY    "tests/data/tiny/tiny-1m-q8_0.gguf"
#define CONTEXT 128u
#define BLOCKS  64u
#define N       8u

struct house {
    struct clock clock;
    struct model_source *source;
    struct model_config *cfg;
    struct decoder *decoder;
    struct engine *en;
    struct engine_client *client;
};

static void make_decoder(
    const struct house *h, const struct ops *ops, const struct runner_limits *l, struct decoder **out)
{
    struct error e;
    const struct decoder_options d = {.ops = ops,
        .threads = 1,
        .rows_max = l->rows_max,
        .out_max = l->out_max,
        .seqs_max = l->seqs_max,
        .table_max = l->table_max,
        .context_max = CONTEXT,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .n_blocks = BLOCKS};
    const struct weight_source src = decoder_file_source(h->source);
    assert_ok(e, decoder_open(&src, h->cfg, &d, out, &e));
}

static void house_open(struct house *h, const struct ops *ops)
{
    struct error e;
    clock_init(&h->clock);
    h->cfg = mem_zalloc(sizeof *h->cfg);
    assert_non_null(h->cfg);
    assert_ok(e, model_source_open(TINY, &h->source, &e));
    assert_ok(e, model_config_read(h->source, h->cfg, &e));
    struct engine_options o = {.sched = sched_options_default(),
        .clock = &h->clock,
        .vocab = h->cfg->vocab,
        .requests_max = 2 * N,
        .check_every_step = true,
        .no_thread = true};
    o.sched.max_num_seqs = 4;
    o.sched.max_batched_tokens = 32;
    o.sched.out_max = 32;
    o.sched.context_max = CONTEXT;
    o.sched.block_tokens = 16;
    o.sched.queue_max = 2 * N;
    o.kv = (struct kv_options){.n_blocks = BLOCKS,
        .block_tokens = 16,
        .seqs_max = sched_slots(&o.sched),
        .seq_blocks_max = CONTEXT / 16,
        .prefix_cache = true};
    const struct runner_limits l = engine_runner_limits(&o.sched, &o.kv);
    make_decoder(h, ops, &l, &h->decoder);
    assert_ok(e, model_runner_open(h->decoder, &l, 0, &o.runner, &e));
    assert_int_equal(o.runner->ops->depth, ops->sample != NULL ? 1 : 0);
    assert_ok(e, engine_new(&o, &h->en, &e));
    assert_ok(e, engine_client_new(h->en, &h->client, &e));
}

static void house_close(struct house *h)
{
    engine_client_free(h->client);
    engine_free(h->en);
    decoder_close(h->decoder);
    model_source_close(h->source);
    mem_free(h->cfg);
}

/* N requests to their end. Some are greedy; others want typical-p, which the device does not do, or scores of their
 * prompt; every fifth id is not allowed to some. */
static void run_all(struct house *h, struct request *r[N])
{
    struct error e;
    uint64_t next_ns, retry_ms;
    uint32_t n_back = 0;
    for (uint32_t i = 0; i < N; i++) {
        uint32_t prompt[20];
        uint64_t allowed[2048];
        memset(allowed, 0, sizeof allowed);
        for (uint32_t id = 0; id < h->cfg->vocab; id++)
            allowed[id / 64] |= (uint64_t)(id % 5 != 0) << id % 64;
        for (uint32_t k = 0; k < COUNT_OF(prompt); k++)
            prompt[k] = (i * 131 + k * 17 + 5) % h->cfg->vocab;
        struct request_options o = {.prompt = prompt,
            .n_prompt = 3 + 2 * i,
            .max_tokens = 24,
            .n_choices = 1,
            .vocab_size = h->cfg->vocab,
            .sample = sample_params_default(),
            .allowed = i % 4 > 1 ? allowed : NULL,
            .want_prompt_logprobs = i % 3 == 2,
            .want_logprobs = i % 3 == 2};
        o.sample.seed = 7 + i;
        o.sample.temperature = i % 4 == 0 ? 0.0f : 0.9f;
        o.sample.typical_p = i % 2 == 1 ? 0.7f : 1.0f;
        assert_ok(e, request_new(&o, &r[i], &e));
        assert_ok(e, engine_submit(h->client, r[i], &retry_ms, &e));
    }
    for (uint32_t turns = 0; n_back < N && turns < 10000; turns++) {
        struct notice n;
        engine_turn(h->en, &next_ns);
        while (engine_client_next(h->client, &n) == OK)
            n_back += n.is_final;
    }
    assert_int_equal(n_back, N);
}

static void rows_that_the_host_chooses_for_get_the_same_tokens(void **state)
{
    struct house here, ahead;
    struct request *want[N], *got[N];
    (void)state;
    house_open(&here, cpu_ops());
    run_all(&here, want);
    house_open(&ahead, device_ops());
    run_all(&ahead, got);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(atomic_load(&want[i]->choices[0].n_out), 24);
        assert_int_equal(atomic_load(&got[i]->choices[0].n_out), 24);
        assert_memory_equal(want[i]->choices[0].ids, got[i]->choices[0].ids, 24 * sizeof(uint32_t));
        for (uint32_t k = 0; k < 24; k++)
            assert_true(i % 4 < 2 || got[i]->choices[0].ids[k] % 5 != 0);
        if (want[i]->prompt_logprobs != NULL)
            assert_memory_equal(want[i]->prompt_logprobs, got[i]->prompt_logprobs,
                want[i]->o.n_prompt * sizeof *want[i]->prompt_logprobs);
        request_free(want[i]);
        request_free(got[i]);
    }
    house_close(&here);
    house_close(&ahead);
}

static void a_device_that_fails_ends_everything_with_its_sentence(void **state)
{
    (void)state;
    for (uint64_t after = 5; after < 40; after += 7) {
        struct house h;
        struct request *r[N];
        struct error e = {0};
        const struct ops *ops = device_ops();
        house_open(&h, ops);
        device_fail_after(after);
        run_all(&h, r);
        assert_int_equal(engine_state(h.en), ENGINE_FAILED);
        engine_error(h.en, &e);
        assert_non_null(strstr(e.text, "an illegal address"));
        uint32_t n_failed = 0;
        for (uint32_t i = 0; i < N; i++) {
            n_failed += atomic_load(&r[i]->choices[0].end) == END_FAILED;
            request_free(r[i]);
        }
        assert_true(n_failed > 0);
        house_close(&h);
    }
}

static struct draft_options draft_of(const struct house *h, const struct runner_limits *l, struct decoder *small)
{
    return (struct draft_options){.decoder = small,
        .vocab = h->cfg->vocab,
        .seqs_max = l->seqs_max,
        .rows_max = l->rows_max,
        .context_max = CONTEXT,
        .block_tokens = 16,
        .n_blocks = BLOCKS,
        .table_max = l->table_max,
        .slots_max = 8};
}

/* Each allocation fails in turn, for a runner and for a draft; their decoder stays the caller's. */
static void what_cannot_be_opened_gives_everything_back(void **state)
{
    struct house h;
    struct decoder *small;
    (void)state;
    house_open(&h, device_ops());
    const struct runner_limits l = engine_runner_limits(&h.en->o.sched, &h.en->o.kv);
    make_decoder(&h, device_ops(), &l, &small);
    const struct draft_options o = draft_of(&h, &l, small);
    for (int is_draft = 0; is_draft < 2; is_draft++) {
        enum err err = ERR_NOMEM;
        uint64_t nth;
        for (nth = 1; err != OK; nth++) {
            struct proposer *p = NULL;
            struct runner *r = NULL;
            struct error e = {0};
            fault_arm(FAULT_ALLOC, nth, false);
            err = is_draft ? draft_proposer_open(&o, &p, &e) : model_runner_open(small, &l, 4, &r, &e);
            const uint64_t calls = fault_calls(FAULT_ALLOC);
            fault_arm(FAULT_ALLOC, 0, false);
            assert_int_equal(err, calls < nth ? OK : ERR_NOMEM);
            proposer_close(p); /* which takes its decoder along */
            if (r != NULL)
                runner_close(r);
        }
        assert_true(nth > 10);
    }
    house_close(&h);
}

static void view_nobody(const void *ctx, uint32_t slot, struct slot_view *out)
{
    (void)ctx;
    (void)slot;
    *out = (struct slot_view){0};
}

/* Of a prompt that it only catches up on nothing is read, nor of rows that nobody wants any more. */
static void a_draft_leaves_nothing_in_flight(void **state)
{
    struct house h;
    struct decoder *small;
    struct proposer *p;
    struct request *r;
    struct guesses out;
    struct error e;
    uint32_t prompt[100];
    (void)state;
    house_open(&h, device_ops());
    const struct runner_limits l = engine_runner_limits(&h.en->o.sched, &h.en->o.kv);
    make_decoder(&h, device_ops(), &l, &small);
    const struct draft_options o = draft_of(&h, &l, small);
    assert_ok(e, draft_proposer_open(&o, &p, &e));
    for (uint32_t k = 0; k < COUNT_OF(prompt); k++)
        prompt[k] = (k * 17 + 5) % h.cfg->vocab;
    struct request_options ro = {.prompt = prompt,
        .n_prompt = COUNT_OF(prompt),
        .max_tokens = 4,
        .n_choices = 1,
        .vocab_size = h.cfg->vocab,
        .sample = sample_params_default()};
    ro.sample.temperature = 0.9f;
    assert_ok(e, request_new(&ro, &r, &e));
    const struct spec_ask ask = {.k = 3, .ticket = 1, .request = r, .choice = &r->choices[0]};
    const struct slots slots = {.view = view_nobody};
    for (uint32_t turn = 0; turn < 6; turn++) { /* 32 rows each */
        assert_ok(e, p->ops->propose(p, &ask, 1, &slots, &out, &e));
        assert_int_equal(out.n, 0);
        assert_false(device_flies());
    }
    request_free(r);
    proposer_close(p);
    house_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_the_host_chooses_for_get_the_same_tokens),
        cmocka_unit_test(a_device_that_fails_ends_everything_with_its_sentence),
        cmocka_unit_test(what_cannot_be_opened_gives_everything_back),
        cmocka_unit_test(a_draft_leaves_nothing_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
