/* The whole way over a tiny trained model: files to tokens, equal to what one sequence alone computes. */
#include "engine/testing_engine.h"

#include "cpu/cpu.h"
#include "engine/serving.h"
#include "model/sequence.h"

#include <math.h>

#define TINY_PATH "tests/data/tiny/tiny-1m-q8_0.gguf"

struct host {
    struct serving *s;
    struct engine_client *client;
};

static void host_open(struct host *h, struct serving_options *o)
{
    struct error e;
    h->s = mem_zalloc(sizeof *h->s);
    assert_non_null(h->s);
    assert_ok(e, serving_open(h->s, o, &e));
    assert_ok(e, engine_client_new(h->s->engine, &h->client, &e));
}

static void host_close(struct host *h)
{
    engine_client_free(h->client);
    serving_close(h->s);
    mem_free(h->s);
}

static struct serving_options host_options(void)
{
    struct serving_options o = {.path = TINY_PATH,
        .threads = 2,
        .kv_dtype = DTYPE_F16,
        .n_blocks = 64,
        .swap_bytes = 4 << 20,
        .check_every_step = true,
        .sched = serving_sched_default(NULL)};
    o.sched.max_num_seqs = 8;
    o.sched.max_batched_tokens = 32;
    return o;
}

/* The greedy answer of one sequence without any of the machinery. */
static void answer_alone(
    const struct serving_options *o, const uint32_t *prompt, uint32_t n, uint32_t *out, uint32_t n_out)
{
    struct error e;
    struct serving *s = mem_zalloc(sizeof *s);
    struct decoder *d;
    struct sequence *seq;
    const float *logits;
    uint32_t ids[512];
    assert_ok(e, serving_describe(s, o, &e));
    const struct decoder_options dopt = {.ops = cpu_ops(),
        .threads = 1,
        .rows_max = 16,
        .out_max = 1,
        .seqs_max = 1,
        .context_max = 512,
        .kv_dtype = DTYPE_F16,
        .block_tokens = 16,
        .n_blocks = 32};
    const struct weight_source src = decoder_file_source(s->source);
    assert_ok(e, decoder_open(&src, &s->config, &dopt, &d, &e));
    assert_ok(e, sequence_new(d, &seq, &e));
    memcpy(ids, prompt, n * sizeof *ids);
    assert_ok(e, sequence_set(seq, ids, n, NULL, NULL, &logits, &e));
    for (uint32_t i = 0; i < n_out; i++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < decoder_vocab(d); k++)
            best = logits[k] > logits[best] ? k : best;
        out[i] = best;
        assert_ok(e, sequence_push(seq, best, &logits, &e));
    }
    sequence_free(seq);
    decoder_close(d);
    serving_close(s);
    mem_free(s);
}

static void take_back(struct host *h, uint32_t n)
{
    struct rig r = {.en = h->s->engine, .client = h->client};
    rig_wait(&r, n);
}

static struct request *submit(struct host *h, const struct request_options *o)
{
    struct rig r = {.en = h->s->engine, .client = h->client};
    return rig_submit(&r, o);
}

static struct request_options greedy(uint32_t n_prompt, uint32_t max_tokens, uint32_t vocab)
{
    struct request_options o = rig_ask(n_prompt, max_tokens);
    o.prompt = rig_ids(n_prompt, n_prompt, vocab);
    o.vocab_size = vocab;
    o.sample.temperature = 0.0f;
    return o;
}

static void a_served_answer_is_the_sequences_own(void **state)
{
    for (uint32_t late = 0; late <= 1; late++) {
        struct host h;
        struct serving_options o = host_options();
        struct request *q[6];
        uint32_t want[24];
        o.late = late;
        o.sched.preempt_every = 5;
        host_open(&h, &o);
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            const struct request_options ask = greedy(5 + 30 * i, 24, h.s->config.vocab);
            q[i] = submit(&h, &ask);
        }
        take_back(&h, COUNT_OF(q));
        for (uint32_t i = 0; i < COUNT_OF(q); i++) {
            answer_alone(&o, q[i]->o.prompt, q[i]->o.n_prompt, want, 24);
            assert_int_equal(atomic_load(&q[i]->choices[0].n_out), 24);
            assert_memory_equal(want, q[i]->choices[0].ids, sizeof want);
            request_free(q[i]);
        }
        host_close(&h);
    }
    (void)state;
}

/* Log-probabilities of a prompt are those of the same tokens when they were chosen. */
static void prompt_log_probabilities_are_those_of_the_answer(void **state)
{
    for (uint32_t late = 0; late <= 1; late++) {
        struct host h;
        struct serving_options o = host_options();
        o.late = late;
        host_open(&h, &o);
        struct request_options ask = greedy(40, 30, h.s->config.vocab);
        ask.want_logprobs = true;
        ask.n_top = 3;
        struct request *a = submit(&h, &ask);
        take_back(&h, 1);
        uint32_t both[70];
        memcpy(both, a->o.prompt, 40 * sizeof *both);
        memcpy(both + 40, a->choices[0].ids, 30 * sizeof *both);
        struct request_options again = greedy(70, 1, h.s->config.vocab);
        again.prompt = both;
        again.want_prompt_logprobs = true;
        again.n_top = 3;
        struct request *b = submit(&h, &again);
        take_back(&h, 1);
        assert_int_equal(b->n_prompt_logprobs, 70);
        for (uint32_t i = 0; i < 30; i++) {
            assert_true(b->prompt_logprobs[40 + i].logprob == a->choices[0].logprobs[i]);
            assert_int_equal(b->prompt_logprobs[40 + i].rank, 1);
            assert_memory_equal(
                &b->prompt_top[(size_t)(40 + i) * 3], &a->choices[0].top[(size_t)i * 3], 3 * sizeof *a->choices[0].top);
        }
        assert_true(b->prompt_logprobs[1].logprob < 0.0f && b->prompt_logprobs[1].rank >= 1);
        request_free(a);
        request_free(b);
        host_close(&h);
    }
    (void)state;
}

static void the_engine_thread_does_not_allocate_with_a_model(void **state)
{
    struct host h;
    struct serving_options o = host_options();
    struct request *q[6];
    host_open(&h, &o);
    for (uint32_t i = 0; i < COUNT_OF(q); i++) {
        struct request_options ask = greedy(5 + 30 * i, 24, h.s->config.vocab);
        ask.sample.temperature = (float)(i % 2);
        ask.sample.top_p = 0.9f;
        ask.sample.repetition_penalty = 1.0f + 0.1f * (float)(i % 3);
        ask.n_top = i;
        q[i] = submit(&h, &ask);
    }
    take_back(&h, COUNT_OF(q));
    assert_int_equal(atomic_load(&h.s->engine->allocs), 0);
    for (uint32_t i = 0; i < COUNT_OF(q); i++)
        request_free(q[i]);
    host_close(&h);
    (void)state;
}

static void two_engines_live_in_one_process(void **state)
{
    struct host a, b;
    struct serving_options o = host_options();
    host_open(&a, &o);
    o.sched.max_batched_tokens = 8;
    host_open(&b, &o);
    const struct request_options ask = greedy(50, 24, a.s->config.vocab);
    struct request *qa = submit(&a, &ask), *qb = submit(&b, &ask);
    take_back(&a, 1);
    take_back(&b, 1);
    assert_memory_equal(qa->choices[0].ids, qb->choices[0].ids, 24 * sizeof(uint32_t));
    request_free(qa);
    request_free(qb);
    host_close(&a);
    host_close(&b);
    (void)state;
}

static void what_does_not_fit_is_refused(void **state)
{
    struct error e;
    struct serving *s = mem_zalloc(sizeof *s);
    struct serving_options o = host_options();
    o.n_blocks = 4;
    o.max_model_len = 512;
    assert_fails(e, ERR_LIMIT, "4 KV blocks", serving_open(s, &o, &e));
    serving_close(s);
    o.max_model_len = 0;
    assert_ok(e, serving_open(s, &o, &e));
    assert_int_equal(s->fit.context, 64);
    serving_close(s);
    o.fp8 = true;
    assert_fails(e, ERR_UNSUPPORTED, "mostly Q8_0", serving_open(s, &o, &e));
    serving_close(s);
    o.path = "tests/data/tiny/tiny-1m-f16.gguf";
    assert_fails(e, ERR_UNSUPPORTED, "needs a CUDA device", serving_open(s, &o, &e));
    serving_close(s);
    o.fp8 = false;
    o.kv_dtype = DTYPE_F8_E4M3;
    assert_fails(e, ERR_UNSUPPORTED, "a KV cache of type F8_E4M3", serving_open(s, &o, &e));
    serving_close(s);
    o.path = "tests/data/tiny/none.gguf";
    assert_fails(e, ERR_NOT_FOUND, "none.gguf", serving_open(s, &o, &e));
    serving_close(s);
    mem_free(s);
    char said[256];
    struct sched_options sched = serving_sched_default(NULL);
    assert_true(sched.itl_target_ns > 0 && sched.itl_factor > 1); /* on a CPU streams are protected */
    assert_ok(e, serving_tune(&sched, "ttft", said, &e));
    assert_true(sched.itl_target_ns == 0 && sched.itl_factor == 0.0);
    assert_int_equal(sched.batching, BATCH_PREFILL_FIRST);
    assert_fails(e, ERR_NOT_FOUND, "throughput", serving_tune(&sched, "speed", said, &e));
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_served_answer_is_the_sequences_own),
        cmocka_unit_test(prompt_log_probabilities_are_those_of_the_answer),
        cmocka_unit_test(the_engine_thread_does_not_allocate_with_a_model),
        cmocka_unit_test(two_engines_live_in_one_process),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
