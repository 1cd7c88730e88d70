/* The sampler's promises one by one: ties, masks, bans, refusals, penalties by hand, log-probabilities, the
 * distribution of draws, determinism, histories, the ranges of parameters, and that a token costs no allocation. */
#include "testing.h"

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sample/sample.h"

#include <math.h>
#include <stdlib.h>

static uint32_t token_of(uint32_t vocab, const struct sample_row *row)
{
    struct error e;
    struct sampler *s;
    struct sample_result got = {0};
    assert_ok(e, sampler_new(vocab, &s, &e));
    assert_ok(e, sample_token(s, row, &got, &e));
    sampler_free(s);
    return got.id;
}

static void greedy_takes_the_largest_and_the_lowest_id_of_a_tie(void **state)
{
    (void)state;
    struct sample_params p = sample_params_default();
    p.temperature = 0.0f;
    float l[] = {1, 5, 5, NAN, 4, 5, -INFINITY};
    struct sample_row row = {.logits = l, .params = &p};
    assert_int_equal(token_of(7, &row), 1);
    l[5] = nextafterf(5.0f, 6.0f);
    assert_int_equal(token_of(7, &row), 5);
    l[6] = INFINITY;
    assert_int_equal(token_of(7, &row), 6);
}

static void penalties_and_bias_by_hand(void **state)
{
    (void)state;
    struct error e;
    struct sample_params p = sample_params_default();
    struct sample_history h;
    p.temperature = 0.0f;
    const float l[] = {4.0f, 3.0f, 2.0f, -1.0f};
    struct sample_row row = {.logits = l, .params = &p, .history = &h};
    assert_ok(e, sample_history_init(&h, 4, &e));
    sample_history_add(&h, 0, false); /* prompt */
    sample_history_add(&h, 1, true);
    sample_history_add(&h, 1, true);
    assert_int_equal(token_of(4, &row), 0);
    p.repetition_penalty = 2.5f; /* 1.6 1.2 2 -1 */
    assert_int_equal(token_of(4, &row), 2);
    p.repetition_penalty = 1.0f;
    p.presence_penalty = -1.5f; /* 4 4.5 2: the prompt does not count */
    assert_int_equal(token_of(4, &row), 1);
    p.presence_penalty = 0.0f;
    p.frequency_penalty = -0.75f; /* 4 4.5 2: twice */
    assert_int_equal(token_of(4, &row), 1);
    p.frequency_penalty = 0.0f;
    p.bias = &(struct logit_bias){.id = 3, .bias = 5.5f};
    p.n_bias = 1; /* 4 3 2 4.5 */
    assert_int_equal(token_of(4, &row), 3);
    row.banned = (const uint32_t[]){3, 0, 700};
    row.n_banned = 3;
    assert_int_equal(token_of(4, &row), 1);
    row.mask = (const uint64_t[]){0x5}; /* 0 and 2 */
    assert_int_equal(token_of(4, &row), 2);
    sample_history_fini(&h);
}

static void a_row_without_an_allowed_token_is_refused(void **state)
{
    (void)state;
    struct error e;
    struct sampler *s;
    struct sample_result got;
    struct sample_params p = sample_params_default();
    const uint64_t none[2] = {0, 0}, beyond[2] = {0, ~(uint64_t)0 << 36}; /* bits past the vocabulary of 100 */
    float l[100], nan_row[100], low[100];
    for (uint32_t i = 0; i < 100; i++) {
        l[i] = (float)i;
        nan_row[i] = NAN;
        low[i] = -INFINITY;
    }
    assert_ok(e, sampler_new(100, &s, &e));
    for (int greedy = 0; greedy < 2; greedy++) {
        p.temperature = greedy ? 0.0f : 1.0f;
        struct sample_row row = {.logits = l, .params = &p, .mask = none, .want_logprob = true};
        assert_fails(e, ERR_INVALID, "no token is allowed", sample_token(s, &row, &got, &e));
        row.mask = beyond;
        assert_fails(e, ERR_INVALID, "no token is allowed", sample_token(s, &row, &got, &e));
        row.mask = NULL;
        row.logits = nan_row;
        assert_fails(e, ERR_INVALID, "no token is allowed", sample_token(s, &row, &got, &e));
        row.logits = low;
        assert_fails(e, ERR_INVALID, "no token is allowed", sample_token(s, &row, &got, &e));
        row.logits = l;
        assert_ok(e, sample_token(s, &row, &got, &e));
    }
    sampler_free(s);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------ */

enum { V = 5000, TOP = 20 };
#define LOGPROB_MAX 3e-7 /* relative to 1 + |want|: two ulp of exp and the rounding to f32 */

static double logprob_error(double wrong_by)
{
    struct error e;
    struct sampler *s;
    struct sample_params p = sample_params_default();
    struct token_logprob top[TOP];
    struct sample_result got = {.top = top};
    static float l[V];
    double worst = 0.0;
    assert_ok(e, sampler_new(V, &s, &e));
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t i = 0; i < V; i++)
            l[i] = 4.0f * rng_normal((struct rng_key){.seed = round, .index = i, .purpose = RNG_DUMMY});
        l[7] = NAN; /* no part of the sum */
        double all = 0.0;
        for (uint32_t i = 0; i < V; i++)
            all += isnan(l[i]) ? 0.0 : exp((double)l[i]);
        p.temperature = 0.3f; /* the log-probability is of the raw logits */
        p.top_k = 5;
        struct sample_row row = {.logits = l, .params = &p, .n_top = TOP, .output_index = round};
        assert_ok(e, sample_token(s, &row, &got, &e));
        assert_int_equal(got.n_top, TOP);
        const double want = (double)l[got.id] - log(all) + wrong_by;
        worst = fmax(worst, fabs((double)got.logprob - want) / (1.0 + fabs(want)));
        for (uint32_t i = 0; i < TOP; i++) {
            uint32_t before = 0;
            for (uint32_t k = 0; k < V; k++)
                before += l[k] > l[top[i].id] || (l[k] == l[top[i].id] && k < top[i].id);
            assert_int_equal(before, i);
            const double wanted = (double)l[top[i].id] - log(all) + wrong_by;
            worst = fmax(worst, fabs((double)top[i].logprob - wanted) / (1.0 + fabs(wanted)));
        }
        worst = fmax(worst, fabs(sample_log_sum_exp(l, V) - log(all) + wrong_by) / (1.0 + log(all)));
    }
    sampler_free(s);
    return worst;
}

static void log_probabilities_are_those_of_the_raw_logits(void **state)
{
    (void)state;
    assert_true(logprob_error(0.0) < LOGPROB_MAX);
    assert_true(logprob_error(1e-5) > LOGPROB_MAX);
}

static void log_probabilities_of_odd_rows_are_numbers(void **state)
{
    (void)state;
    struct error e;
    struct sampler *s;
    struct token_logprob top[8];
    struct sample_result got = {.top = top};
    struct sample_params p = sample_params_default();
    const float tie[3] = {2.0f, 2.0f, 2.0f}, inf[3] = {1.0f, INFINITY, -INFINITY}, one[3] = {NAN, 3.0f, NAN};
    struct sample_row row = {.logits = tie, .params = &p, .n_top = 8};
    assert_ok(e, sampler_new(3, &s, &e));
    assert_ok(e, sample_token(s, &row, &got, &e));
    assert_true(got.n_top == 3 && top[0].id == 0 && top[1].id == 1 && top[2].id == 2);
    assert_true(fabsf(got.logprob + logf(3.0f)) < 1e-6f && top[1].logprob == got.logprob);
    row.logits = inf;
    assert_ok(e, sample_token(s, &row, &got, &e));
    assert_true(got.id == 1 && got.logprob == 0.0f && top[0].id == 1 && top[1].logprob == -INFINITY);
    row.logits = one;
    assert_ok(e, sample_token(s, &row, &got, &e));
    assert_true(got.id == 1 && got.logprob == 0.0f && got.n_top == 1);
    sampler_free(s);
}

/* ---- draws ------------------------------------------------------------------------------------------------------ */

enum { KINDS = 12, DRAWS = 15000, RUNS = 4 };
#define CHI2_MAX 78.8 /* 4 times 11 degrees of freedom, one in a thousand */

/* Chi-square of draws against the softmax at `temperature`, over indices, seeds or choices. */
static double chi2(int over, double temperature)
{
    struct error e;
    struct sampler *s;
    struct sample_params p = sample_params_default();
    float l[KINDS];
    double all = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < KINDS; i++) {
        l[i] = 0.35f * (float)(i * 5 % KINDS);
        all += exp((double)l[i] / temperature);
    }
    assert_ok(e, sampler_new(KINDS, &s, &e));
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t seen[KINDS] = {0};
        for (uint32_t i = 0; i < DRAWS; i++) {
            struct sample_result got;
            p.seed = over == 1 ? (uint64_t)run << 40 | i : run;
            p.choice = over == 2 ? i : 0;
            const struct sample_row row = {.logits = l, .params = &p, .output_index = over == 0 ? i : 0};
            assert_ok(e, sample_token(s, &row, &got, &e));
            seen[got.id]++;
        }
        for (uint32_t i = 0; i < KINDS; i++) {
            const double want = DRAWS * exp((double)l[i] / temperature) / all;
            sum += (seen[i] - want) * (seen[i] - want) / want;
        }
    }
    sampler_free(s);
    return sum;
}

static void draws_follow_the_distribution_over_tokens_seeds_and_choices(void **state)
{
    (void)state;
    for (int over = 0; over < 3; over++) {
        assert_true(chi2(over, 1.0) < CHI2_MAX);
        assert_true(chi2(over, 1.06) > CHI2_MAX); /* a bias of six percent in the temperature */
    }
}

static void tokens_are_a_function_of_the_key_and_have_these_values(void **state)
{
    (void)state;
    struct error e;
    struct sampler *a, *b;
    struct sample_params p = sample_params_default();
    static float l[V];
    uint32_t first[64], again[64], other[64];
    for (uint32_t i = 0; i < V; i++)
        l[i] = 3.0f * rng_normal((struct rng_key){.seed = 3, .index = i, .purpose = RNG_DUMMY});
    p.temperature = 0.9f;
    p.top_p = 0.95f;
    p.top_k = 300;
    p.min_p = 0.001f;
    assert_ok(e, sampler_new(V, &a, &e));
    assert_ok(e, sampler_new(V, &b, &e));
    uint32_t differ = 0;
    for (uint32_t i = 0; i < 64; i++) {
        struct sample_result got;
        struct sample_row row = {.logits = l, .params = &p, .output_index = i};
        p.seed = 11;
        assert_ok(e, sample_token(a, &row, &got, &e));
        first[i] = got.id;
        p.seed = 12;
        assert_ok(e, sample_token(a, &row, &got, &e));
        other[i] = got.id;
        differ += first[i] != other[i];
    }
    p.seed = 11;
    for (uint32_t i = 64; i-- > 0;) { /* another sampler, the other way round */
        struct sample_result got;
        struct sample_row row = {.logits = l, .params = &p, .output_index = i, .n_top = 0, .want_logprob = true};
        assert_ok(e, sample_token(b, &row, &got, &e));
        again[i] = got.id;
    }
    assert_memory_equal(first, again, sizeof first);
    assert_true(differ > 40);
    assert_int_equal(hash64(first, sizeof first, 0), 0x8f95e03b96a59167u); /* the same on every compiler */
    sampler_free(a);
    sampler_free(b);
}

static void a_token_costs_no_allocation(void **state)
{
    (void)state;
    struct error e;
    struct sampler *s;
    struct sample_history h;
    struct token_logprob top[5];
    struct sample_result got = {.top = top};
    static float l[V];
    struct sample_params p = sample_params_default();
    p.top_p = 0.9f;
    p.top_k = 2000;
    p.typical_p = 0.9f;
    p.min_p = 0.0001f;
    p.repetition_penalty = 1.1f;
    assert_ok(e, sampler_new(V, &s, &e));
    assert_ok(e, sample_history_init(&h, 100, &e));
    const uint64_t before = mem_thread_allocs();
    for (uint32_t i = 0; i < 50; i++) {
        l[i * 90] = (float)i;
        const struct sample_row row = {.logits = l, .params = &p, .history = &h, .n_top = 5, .output_index = i};
        assert_ok(e, sample_token(s, &row, &got, &e));
        sample_history_add(&h, got.id, true);
    }
    sample_history_clear(&h);
    assert_int_equal(mem_thread_allocs(), before);
    sample_history_fini(&h);
    sampler_free(s);
}

/* ---- histories and parameters -------------------------------------------------------------------------------------
 */

static void histories_count_what_was_added(void **state)
{
    (void)state;
    struct error e;
    struct sample_history h;
    static uint32_t counts[4096];
    assert_ok(e, sample_history_init(&h, 500, &e));
    for (int round = 0; round < 2; round++) {
        uint32_t distinct = 0;
        memset(counts, 0, sizeof counts);
        for (uint32_t i = 0; i < 5000; i++) {
            const uint64_t r = rng_u64((struct rng_key){.seed = 1, .index = i, .purpose = RNG_DUMMY});
            const uint32_t id = (uint32_t)(r % 500) * 8; /* multiples, as hashes hate them */
            sample_history_add(&h, id, r >> 40 & 1);
            counts[id] += r >> 40 & 1;
        }
        for (uint32_t id = 0; id < 4096; id++) {
            assert_int_equal(sample_history_count(&h, id), counts[id]);
            distinct += id % 8 == 0 && id < 4000;
        }
        assert_int_equal(h.n, distinct);
        sample_history_clear(&h);
        assert_int_equal(sample_history_count(&h, 8), 0);
    }
    sample_history_fini(&h);
}

static void parameters_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    struct error e;
    static const struct {
        const char *name;
        size_t at;
        float good[2], bad[3];
    } fields[] = {
        {"temperature", offsetof(struct sample_params, temperature), {0.0f, 100.0f}, {-0.1f, 100.5f, NAN}},
        {"top_p", offsetof(struct sample_params, top_p), {0.001f, 1.0f}, {0.0f, 1.01f, NAN}},
        {"min_p", offsetof(struct sample_params, min_p), {0.0f, 1.0f}, {-0.01f, 1.01f, NAN}},
        {"typical_p", offsetof(struct sample_params, typical_p), {0.001f, 1.0f}, {0.0f, 1.01f, NAN}},
        {"repetition_penalty", offsetof(struct sample_params, repetition_penalty), {0.01f, 100.0f},
            {0.0f, 101.0f, NAN}},
        {"presence_penalty", offsetof(struct sample_params, presence_penalty), {-2.0f, 2.0f}, {-2.1f, 2.1f, INFINITY}},
        {"frequency_penalty", offsetof(struct sample_params, frequency_penalty), {-2.0f, 2.0f},
            {-2.1f, 2.1f, INFINITY}},
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        struct sample_params p = sample_params_default();
        float *value = (float *)(void *)((char *)&p + fields[i].at);
        assert_ok(e, sample_params_check(&p, 10, &e));
        for (int k = 0; k < 2; k++) {
            *value = fields[i].good[k];
            assert_ok(e, sample_params_check(&p, 10, &e));
        }
        for (int k = 0; k < 3; k++) {
            *value = fields[i].bad[k];
            assert_fails(e, ERR_INVALID, fields[i].name, sample_params_check(&p, 10, &e));
        }
    }
    struct sample_params p = sample_params_default();
    struct logit_bias bias = {.id = 10, .bias = 1.0f};
    p.bias = &bias;
    p.n_bias = 1;
    assert_fails(e, ERR_INVALID, "token 10", sample_params_check(&p, 10, &e));
    bias = (struct logit_bias){.id = 9, .bias = NAN};
    assert_fails(e, ERR_INVALID, "token 9", sample_params_check(&p, 10, &e));
    bias.bias = 101.0f;
    assert_fails(e, ERR_INVALID, "-100 to 100", sample_params_check(&p, 10, &e));
    bias.bias = -100.0f;
    assert_ok(e, sample_params_check(&p, 10, &e));
}

static void a_failing_allocation_is_an_error(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 3; n++) {
        struct error e;
        struct sampler *s;
        struct sample_history h;
        fault_arm(FAULT_ALLOC, n, false);
        assert_fails(e, ERR_NOMEM, "100 tokens", sampler_new(100, &s, &e));
        assert_null(s);
        fault_arm(FAULT_ALLOC, n, false);
        if (n <= 2)
            assert_fails(e, ERR_NOMEM, "history", sample_history_init(&h, 100, &e));
        fault_arm(FAULT_ALLOC, 0, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_of_a_tie),
        cmocka_unit_test(penalties_and_bias_by_hand),
        cmocka_unit_test(a_row_without_an_allowed_token_is_refused),
        cmocka_unit_test(log_probabilities_are_those_of_the_raw_logits),
        cmocka_unit_test(log_probabilities_of_odd_rows_are_numbers),
        cmocka_unit_test(draws_follow_the_distribution_over_tokens_seeds_and_choices),
        cmocka_unit_test(tokens_are_a_function_of_the_key_and_have_these_values),
        cmocka_unit_test(a_token_costs_no_allocation),
        cmocka_unit_test(histories_count_what_was_added),
        cmocka_unit_test(parameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(a_failing_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
