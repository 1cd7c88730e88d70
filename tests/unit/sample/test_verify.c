/* Guesses do not change the distribution: chi-square over a million draws, for both rules of verify.h, with everything
 * that shapes a distribution. The twins draw the replacement from the wrong place, and are found out. */
#include "testing.h"

#include "sample/verify.h"

#include <math.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DRAWS 100000u
#else
#define DRAWS 1000000u
#endif
#define VOCAB 24u

struct shape { /* one way to sample */
    const char *name;
    struct sample_params p;
    bool penalised;
};

/* Model and draft over a small vocabulary: alike, not equal. */
static void make_logits(float *model, float *draft)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        model[i] = 3.0f * rng_normal((struct rng_key){.seed = 3, .index = i, .purpose = RNG_DUMMY}) / 2;
        draft[i] = model[i] + rng_normal((struct rng_key){.seed = 4, .index = i, .purpose = RNG_DUMMY});
    }
}

static void make_shapes(struct shape *out)
{
    static const char *const names[] = {"temperature", "top-k", "top-p", "min-p", "penalties", "typical-p", "all"};
    for (uint32_t i = 0; i < 7; i++) {
        out[i] = (struct shape){.name = names[i], .p = sample_params_default()};
        out[i].p.temperature = 0.8f;
    }
    out[1].p.top_k = out[6].p.top_k = 7;
    out[2].p.top_p = out[6].p.top_p = 0.85f;
    out[3].p.min_p = out[6].p.min_p = 0.06f;
    for (uint32_t i = 4; i < 7; i += 2) {
        out[i].penalised = true;
        out[i].p.repetition_penalty = 1.3f;
        out[i].p.presence_penalty = 0.4f;
        out[i].p.frequency_penalty = 0.2f;
    }
    out[5].p.typical_p = 0.8f;
}

/* The chance of a chi-square value at least so large, by the normal approximation of its cube root. */
static double p_value(double chi2, double df)
{
    const double z = (cbrt(chi2 / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
    return 0.5 * erfc(z / sqrt(2.0));
}

static double chi_square(const uint64_t *counts, const float *p, uint64_t n)
{
    double chi2 = 0, df = -1;
    for (uint32_t i = 0; i < VOCAB; i++) {
        const double want = (double)p[i] * (double)n;
        if (p[i] == 0 && counts[i] > 0)
            return 0; /* what cannot be was said */
        if (want > 0) {
            chi2 += ((double)counts[i] - want) * ((double)counts[i] - want) / want;
            df++;
        }
    }
    return df < 1 ? 1 : p_value(chi2, df);
}

enum plant { PLANT_NONE, PLANT_FRESH, PLANT_NO_CLIP, PLANT_KEEP_ALL };

/* Rejection sampling as sample_verify does it, or with a fault. */
static uint32_t verify(const float *p, const float *q, uint32_t guess, struct rng_key key, enum plant plant, bool *kept)
{
    const uint32_t id = sample_verify(p, q, VOCAB, guess, key, kept);
    if (plant == PLANT_KEEP_ALL)
        return guess;
    if (plant == PLANT_NONE || *kept)
        return id;
    key.purpose = RNG_RESIDUAL;
    float wrong[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++)
        wrong[i] = plant == PLANT_FRESH ? p[i] : fabsf(p[i] - q[i]);
    return sample_draw(wrong, VOCAB, rng_f64(key));
}

struct rows {
    struct sampler *s;
    struct sample_history history;
    float model[VOCAB], draft[VOCAB], p[VOCAB], q[VOCAB];
    struct sample_row target, guess;
};

static void setup(struct rows *r, const struct shape *shape)
{
    struct error e;
    memset(r, 0, sizeof *r);
    make_logits(r->model, r->draft);
    assert_ok(e, sampler_new(VOCAB, &r->s, &e));
    assert_ok(e, sample_history_init(&r->history, VOCAB, &e));
    for (uint32_t i = 0; i < 9; i++)
        sample_history_add(&r->history, i * i % VOCAB, i % 2 == 0);
    r->target =
        (struct sample_row){.logits = r->model, .params = &shape->p, .history = shape->penalised ? &r->history : NULL};
    r->guess = r->target;
    r->guess.logits = r->draft;
    assert_ok(e, sample_distribution(r->s, &r->target, r->p, &e));
    assert_ok(e, sample_distribution(r->s, &r->guess, r->q, &e));
}

static void cleanup(struct rows *r)
{
    sampler_free(r->s);
    sample_history_fini(&r->history);
}

/* p of the tokens said, and the share of guesses kept. */
static double run_rejection(const struct shape *shape, enum plant plant, uint32_t n, double *kept_share)
{
    struct rows r;
    uint64_t counts[VOCAB] = {0}, n_kept = 0;
    setup(&r, shape);
    for (uint32_t i = 0; i < n; i++) {
        struct rng_key key = {.seed = 99, .index = i, .purpose = RNG_SAMPLE};
        const uint32_t guess = sample_draw(r.q, VOCAB, rng_f64(key));
        bool kept;
        counts[verify(r.p, r.q, guess, key, plant, &kept)]++;
        n_kept += kept;
    }
    const double p = chi_square(counts, r.p, n);
    *kept_share = (double)n_kept / n;
    cleanup(&r);
    return p;
}

static void rejection_sampling_says_what_the_model_would(void **state)
{
    struct shape shapes[7];
    make_shapes(shapes);
    for (uint32_t i = 0; i < COUNT_OF(shapes); i++) {
        double kept;
        const double p = run_rejection(&shapes[i], PLANT_NONE, DRAWS, &kept);
        struct rows r;
        setup(&r, &shapes[i]);
        double overlap = 0;
        for (uint32_t k = 0; k < VOCAB; k++)
            overlap += (double)MIN(r.p[k], r.q[k]);
        cleanup(&r);
        if (!(p > 0.001) || fabs(kept - overlap) > 4 * sqrt(0.25 / DRAWS))
            fail_msg("%s: p is %g, %.4f of the guesses were kept for %.4f", shapes[i].name, p, kept, overlap);
    }
    (void)state;
}

static void a_wrong_residual_is_found_out(void **state)
{
    struct shape shapes[7];
    make_shapes(shapes);
    for (uint32_t i = 0; i < COUNT_OF(shapes); i++)
        for (int plant = PLANT_FRESH; plant <= PLANT_KEEP_ALL; plant++) {
            double kept;
            assert_true(run_rejection(&shapes[i], (enum plant)plant, DRAWS / 10, &kept) < 0.001);
        }
    (void)state;
}

/* The rule of the runners: the token is sample_token's, and a guess by the same draw is kept when it is equal. Guesses
 * that were refused leave exactly the residual of a point mass; wrong is one that draws again. */
static void shared_draws_say_what_the_model_would(void **state)
{
    struct shape shapes[7];
    struct error e;
    make_shapes(shapes);
    for (uint32_t s = 0; s < COUNT_OF(shapes); s++) {
        struct rows r;
        uint64_t counts[VOCAB] = {0}, again[VOCAB] = {0}, n_kept = 0;
        setup(&r, &shapes[s]);
        for (uint32_t i = 0; i < DRAWS / 10; i++) {
            struct sample_result token = {0}, guess = {0}, fresh = {0};
            r.target.output_index = r.guess.output_index = i;
            assert_ok(e, sample_token(r.s, &r.target, &token, &e));
            assert_ok(e, sample_token(r.s, &r.guess, &guess, &e));
            r.target.output_index = i + DRAWS;
            assert_ok(e, sample_token(r.s, &r.target, &fresh, &e));
            counts[token.id]++;
            n_kept += token.id == guess.id;
            again[token.id == guess.id ? token.id : fresh.id]++;
        }
        assert_true(chi_square(counts, r.p, DRAWS / 10) > 0.001);
        assert_true(chi_square(again, r.p, DRAWS / 10) < 0.001); /* the twin: refused, and drawn again */
        assert_true(n_kept > DRAWS / 50);
        cleanup(&r);
    }
    (void)state;
}

/* Counts of an added id go, an id that was not there before goes altogether, and the others are found as before. */
static void a_history_forgets_what_is_undone(void **state)
{
    struct sample_history h;
    struct error e;
    assert_ok(e, sample_history_init(&h, 500, &e));
    for (uint32_t i = 0; i < 400; i++)
        sample_history_add(&h, i * 7919 % 1000, i % 3 == 0);
    const uint32_t n = h.n;
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t ids[8];
        for (uint32_t i = 0; i < 8; i++)
            ids[i] = (round * 131 + i % 5 * 17) % 1000; /* some twice */
        const uint32_t were_new = sample_history_put(&h, ids, 8);
        assert_int_equal(h.n, n + (uint32_t)__builtin_popcount(were_new));
        for (uint32_t i = 0; i < 8; i++)
            assert_true(sample_history_count(&h, ids[i]) > 0);
        sample_history_take(&h, ids, 8, were_new);
        assert_int_equal(h.n, n);
    }
    for (uint32_t i = 0; i < 400; i++) {
        assert_true(sample_history_has(&h, i * 7919 % 1000));
        assert_int_equal(sample_history_count(&h, i * 7919 % 1000), i % 3 == 0);
    }
    sample_history_fini(&h);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rejection_sampling_says_what_the_model_would),
        cmocka_unit_test(a_wrong_residual_is_found_out),
        cmocka_unit_test(shared_draws_say_what_the_model_would),
        cmocka_unit_test(a_history_forgets_what_is_undone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
