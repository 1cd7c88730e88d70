/* Rope tables against the formulas of the papers, computed here with the C library. Angles are exact to double, so the
 * tables are right to the last bits of a float. */
#include "model/testing_model.h"

#include <math.h>

#define DIMS    16u
#define CONTEXT 300u
#define BAR     2e-7

static struct model_rope plain(void)
{
    return (struct model_rope){.base = 10000, .base_local = 10000, .dims = DIMS, .factor = 1};
}

static double turn_of(const struct model_rope *r, uint32_t i)
{
    return pow(r->base, -2.0 * i / r->dims);
}

/* The largest distance of the table from cos and sin of position times freq[i], times gain. */
static double distance(const struct model_rope *r, bool local, uint32_t context, const double *freq, double gain)
{
    static float table[CONTEXT * DIMS];
    double worst = 0;
    assert_true(context <= CONTEXT && r->dims <= DIMS);
    rope_fill(r, local, context, 0, context / 3, table);
    rope_fill(r, local, context, context / 3, context - context / 3, table);
    for (uint32_t pos = 0; pos < context; pos++)
        for (uint32_t i = 0; i < r->dims / 2; i++) {
            const float *at = table + ((size_t)pos * (r->dims / 2) + i) * 2;
            worst = fmax(worst, fabs((double)at[0] - gain * cos(pos * freq[i])));
            worst = fmax(worst, fabs((double)at[1] - gain * sin(pos * freq[i])));
        }
    return worst;
}

static void plain_table_holds_powers_of_the_base(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double freq[DIMS / 2];
    for (uint32_t i = 0; i < DIMS / 2; i++)
        freq[i] = turn_of(&r, i);
    assert_true(distance(&r, false, CONTEXT, freq, 1) < BAR);
    r.base = 10001; /* the bar notices a base that is off by a ten thousandth */
    assert_true(distance(&r, false, CONTEXT, freq, 1) > BAR);
}

static void linear_scaling_divides_every_frequency(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double freq[DIMS / 2];
    r.scaling = ROPE_LINEAR;
    r.factor = 4;
    for (uint32_t i = 0; i < DIMS / 2; i++)
        freq[i] = turn_of(&r, i) / 4;
    assert_true(distance(&r, false, CONTEXT, freq, 1) < BAR);
}

static void llama3_scaling_keeps_short_waves_and_stretches_long_ones(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double freq[DIMS / 2];
    uint32_t kept = 0, divided = 0;
    r.scaling = ROPE_LLAMA3;
    r.factor = 8;
    r.original_context = 256;
    r.low_freq = 1;
    r.high_freq = 4;
    for (uint32_t i = 0; i < DIMS / 2; i++) {
        const double turns = 256 * turn_of(&r, i) / (2 * 3.14159265358979323846); /* in the original context */
        double share = (turns - 1) / 3;
        share = share < 0 ? 0 : share > 1 ? 1 : share;
        freq[i] = turn_of(&r, i) * (share + (1 - share) / 8);
        kept += share >= 1;
        divided += share <= 0;
    }
    assert_true(kept > 0 && divided > 0 && kept + divided < DIMS / 2); /* all three kinds are here */
    assert_true(distance(&r, false, CONTEXT, freq, 1) < BAR);
    r.high_freq = 3.9;
    assert_true(distance(&r, false, CONTEXT, freq, 1) > BAR);
}

static void yarn_blends_by_index_and_grows_the_amplitude(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double freq[DIMS / 2];
    r.scaling = ROPE_YARN;
    r.factor = 4;
    r.original_context = 256;
    r.beta_fast = 32;
    r.beta_slow = 1;
    const double tau = 2 * 3.14159265358979323846;
    const double low = floor(DIMS * log(256 / (32 * tau)) / (2 * log(10000)));
    const double high = ceil(DIMS * log(256 / tau) / (2 * log(10000)));
    for (uint32_t i = 0; i < DIMS / 2; i++) {
        double ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        freq[i] = turn_of(&r, i) * (1 - ramp + ramp / 4);
    }
    const double gain = 1 + 0.1 * log(4);
    assert_true(distance(&r, false, CONTEXT, freq, gain) < 2 * BAR);
    assert_true(distance(&r, false, CONTEXT, freq, 1) > BAR);
    r.attention_factor = 1; /* a stated amplitude wins */
    assert_true(distance(&r, false, CONTEXT, freq, 1) < BAR);
}

static void longrope_takes_the_long_factors_beyond_the_original_context(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double near[DIMS / 2], far[DIMS / 2];
    r.scaling = ROPE_LONGROPE;
    r.original_context = 128;
    r.factor = 2;
    r.n_factors = DIMS / 2;
    for (uint32_t i = 0; i < DIMS / 2; i++) {
        r.short_factor[i] = 1.0f + (float)i / 4;
        r.long_factor[i] = 2.0f + (float)i;
        near[i] = turn_of(&r, i) / (1.0 + i / 4.0);
        far[i] = turn_of(&r, i) / (2.0 + i);
    }
    const double gain = sqrt(1 + log(2) / log(128));
    assert_true(distance(&r, false, 128, near, gain) < 2 * BAR);
    assert_true(distance(&r, false, 129, far, gain) < 2 * BAR);
    assert_true(distance(&r, false, 129, near, gain) > BAR);
}

static void local_table_has_its_own_base_and_no_scaling(void **state)
{
    (void)state;
    struct model_rope r = plain();
    double freq[DIMS / 2];
    for (uint32_t i = 0; i < DIMS / 2; i++)
        freq[i] = turn_of(&r, i);
    r.base = 1e6;
    r.scaling = ROPE_LINEAR;
    r.factor = 8;
    assert_true(distance(&r, true, CONTEXT, freq, 1) < BAR);
    assert_true(distance(&r, false, CONTEXT, freq, 1) > BAR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_table_holds_powers_of_the_base),
        cmocka_unit_test(linear_scaling_divides_every_frequency),
        cmocka_unit_test(llama3_scaling_keeps_short_waves_and_stretches_long_ones),
        cmocka_unit_test(yarn_blends_by_index_and_grows_the_amplitude),
        cmocka_unit_test(longrope_takes_the_long_factors_beyond_the_original_context),
        cmocka_unit_test(local_table_has_its_own_base_and_no_scaling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
