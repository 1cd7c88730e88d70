/* Requests: copied whole, refused by name, primed with what came before. */
#include "testing_sched.h"

#include "base/fault.h"

static const uint32_t prompt[] = {11, 12, 13, 12, 14};

static struct request_options some_options(void)
{
    struct request_options o = world_request_options();
    o.prompt = prompt;
    o.n_prompt = COUNT_OF(prompt);
    return o;
}

static void arrays_are_copied(void **state)
{
    (void)state;
    struct error e;
    uint32_t ids[5], stop[] = {3, 4}, banned[] = {5};
    uint64_t allowed[2] = {UINT64_MAX, 1};
    struct logit_bias bias[] = {{.id = 9, .bias = 1.5f}};
    memcpy(ids, prompt, sizeof ids);
    struct request_options o = some_options();
    o.prompt = ids;
    o.stop_ids = stop;
    o.n_stop_ids = 2;
    o.banned_ids = banned;
    o.n_banned_ids = 1;
    o.allowed = allowed;
    o.vocab_size = 100;
    o.sample.bias = bias;
    o.sample.n_bias = 1;
    o.n_choices = 3;
    o.n_top = 2;
    o.want_prompt_logprobs = true;
    struct request *r;
    assert_ok(e, request_new(&o, &r, &e));
    memset(ids, 0, sizeof ids);
    memset(stop, 0, sizeof stop);
    memset(banned, 0, sizeof banned);
    memset(allowed, 0, sizeof allowed);
    memset(bias, 0, sizeof bias);
    assert_memory_equal(r->o.prompt, prompt, sizeof prompt);
    assert_int_equal(r->o.stop_ids[1], 4);
    assert_int_equal(r->o.banned_ids[0], 5);
    assert_ptr_equal(r->o.banned_ids + 1, r->o.stop_ids); /* one list for a sampler below min_tokens */
    assert_true(r->o.allowed[1] == 1);
    for (uint32_t i = 0; i < 3; i++) {
        const struct choice *c = &r->choices[i];
        assert_int_equal(c->sample.choice, i);
        assert_true(c->sample.bias[0].bias == 1.5f);
        assert_non_null(c->logprobs);
        c->top[r->o.max_tokens * 2 - 1].id = 1; /* the last one is ours to write */
        c->ids[r->o.max_tokens - 1] = 1;
        assert_int_equal(c->history.cap, 0);
    }
    r->prompt_top[5 * 2 - 1].id = 1;
    assert_false(request_is_done(r));
    request_free(r);
}

static void bad_options_are_refused_by_name(void **state)
{
    (void)state;
    struct error e;
    struct request *r;
    struct request_options o = some_options();
    o.n_prompt = 0;
    assert_fails(e, ERR_INVALID, "prompt tokens", request_new(&o, &r, &e));
    o = some_options();
    o.max_tokens = 0;
    assert_fails(e, ERR_INVALID, "max_tokens", request_new(&o, &r, &e));
    o = some_options();
    o.n_choices = 129;
    assert_fails(e, ERR_LIMIT, "n must be at most 128", request_new(&o, &r, &e));
    o = some_options();
    o.n_resume = 5;
    assert_fails(e, ERR_INVALID, "n_resume", request_new(&o, &r, &e));
    o = some_options();
    o.max_tokens = 100u << 20;
    o.n_choices = 128;
    assert_fails(e, ERR_LIMIT, "max_tokens 104857600 times n 128", request_new(&o, &r, &e));
    o = some_options();
    o.allowed = (const uint64_t[]){1};
    assert_fails(e, ERR_INVALID, "allowed token ids", request_new(&o, &r, &e));
}

static void penalties_see_prompt_and_resumed_output(void **state)
{
    (void)state;
    struct error e;
    struct request *r;
    struct request_options o = some_options();
    o.sample.frequency_penalty = 1;
    o.n_resume = 2; /* 12, 14 were output once */
    assert_ok(e, request_new(&o, &r, &e));
    const struct sample_history *h = &r->choices[0].history;
    assert_int_equal(sample_history_count(h, 12), 1);
    assert_int_equal(sample_history_count(h, 14), 1);
    assert_int_equal(sample_history_count(h, 11), 0);
    assert_int_equal(h->n, 4);
    request_free(r);
}

static void every_end_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < END_COUNT; i++)
        assert_non_null(req_end_name((enum req_end)i));
    assert_string_equal(req_end_name(END_EOS), "stop");
    assert_string_equal(req_end_name(END_LENGTH), "length");
}

static void running_out_of_memory_is_an_error(void **state)
{
    (void)state;
    struct error e;
    struct request *r;
    const struct request_options o = some_options();
    const struct world_options wo = world_options_default();
    struct kv *kv;
    struct sched *s;
    const struct kv_options ko = {
        .n_blocks = 16, .block_tokens = 16, .seqs_max = 16, .seq_blocks_max = 64, .prefix_cache = true};
    assert_ok(e, kv_new(&ko, &kv, &e));
    fault_arm(FAULT_ALLOC, 1, false);
    assert_fails(e, ERR_NOMEM, "no memory for a request", request_new(&o, &r, &e));
    for (uint64_t n = 1; n <= 9; n++) {
        fault_arm(FAULT_ALLOC, n, false);
        assert_fails(e, ERR_NOMEM, "no memory for a scheduler", sched_new(&wo.sched, kv, &s, &e));
    }
    fault_arm(FAULT_ALLOC, 0, false);
    assert_ok(e, sched_new(&wo.sched, kv, &s, &e));
    sched_free(s);
    kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_copied),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(penalties_see_prompt_and_resumed_output),
        cmocka_unit_test(every_end_has_a_name),
        cmocka_unit_test(running_out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
