/* The elementary functions against libm in double precision, with stated bounds and planted mistakes that miss them;
 * their edges; and their exact bits, which every compiler must give. */
#include "testing.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/team.h"
#include "tensor/fmath.h"

#include <float.h>
#include <math.h>

#define STEPS 400000

/* The i-th of n points from lo to hi, with some jitter so that they are no round numbers. */
static float at(float lo, float hi, uint32_t i, uint32_t n)
{
    return lo + (hi - lo) * (((float)i + (float)(i * 2654435761u >> 8) * 0x1p-24f) / (float)n);
}

/* |got - want| in units of the last place of want. */
static double ulps(float got, double want)
{
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

static double exp_error(double wrong)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < STEPS; i++) {
        const float x = at(-87.29f, 88.71f, i, STEPS);
        worst = fmax(worst, ulps(f_exp(x), exp((double)x) * (1.0 + wrong)));
    }
    return worst;
}

static void exp_is_within_two_ulp(void **state)
{
    (void)state;
    assert_true(exp_error(0.0) < 2.0);
    assert_true(exp_error(2e-7) > 2.0);
    assert_true(f_exp(0.0f) == 1.0f && f_exp(-0.0f) == 1.0f);
    assert_true(isnan(f_exp(NAN)) && f_exp(INFINITY) == INFINITY && f_exp(-INFINITY) == 0.0f);
    assert_true(f_exp(1000.0f) == INFINITY && f_exp(-1000.0f) == 0.0f && f_exp(88.72f) < INFINITY);
    assert_true(f_exp(-87.3f) >= FLT_MIN && f_exp(nextafterf(-87.3f, -100.0f)) == 0.0f); /* never denormal */
}

/* Softmax needs exp(a) <= exp(b) for a <= b: at least it may not fall by more than the bound allows. */
static void exp_of_nothing_above_zero_is_above_one(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < STEPS; i++)
        assert_true(f_exp(-at(0.0f, 1.0f, i, STEPS) * 1e-3f) <= 1.0f);
}

static void many_exponentials_are_the_same_bits(void **state)
{
    (void)state;
    static float x[STEPS], y[STEPS];
    static const float edges[] = {0.0f, -0.0f, 88.72f, 88.73f, -87.3f, -87.4f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN};
    for (uint32_t i = 0; i < STEPS; i++)
        x[i] = i < COUNT_OF(edges) ? edges[i] : at(-100.0f, 100.0f, i, STEPS);
    f_exp_many(x, y, STEPS);
    for (uint32_t i = 0; i < STEPS; i++) {
        const float one = f_exp(x[i]);
        assert_memory_equal(&one, &y[i], sizeof one);
    }
    f_exp_many(x, x, 100);
    assert_memory_equal(x, y, 100 * sizeof *x);
}

enum which { TANH, SILU, GELU, SOFTCAP };

static double unit_error(enum which f, double stretch)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < STEPS; i++) {
        const float x = at(-30.0f, 30.0f, i, STEPS);
        const double d = (double)x * stretch;
        double error = 0.0;
        switch (f) {
        case TANH: error = fabs((double)f_tanh(x) - tanh(d)); break;
        case SILU: error = fabs((double)f_silu(x) - d / (1.0 + exp(-d))) / (1.0 + fabs(d)); break;
        case GELU:
            error = fabs((double)f_gelu(x) - 0.5 * d * (1.0 + tanh(sqrt(2.0 / M_PI) * (d + 0.044715 * d * d * d)))) /
                    (1.0 + fabs(d));
            break;
        case SOFTCAP: error = fabs((double)f_softcap(x, 15.0f) - 15.0 * tanh(d / 15.0)) / 15.0; break;
        }
        worst = error <= worst ? worst : error;
    }
    return worst;
}

static void tanh_silu_gelu_and_softcap_are_within_2e_7(void **state)
{
    (void)state;
    static const enum which all[] = {TANH, SILU, GELU, SOFTCAP};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        assert_true(unit_error(all[i], 1.0) < 2e-7);
        assert_true(unit_error(all[i], 1.0 + 2e-6) > 2e-7);
    }
}

static void the_units_behave_at_their_edges(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 10000; i++) {
        const float x = at(0.0f, 20.0f, i, 10000);
        assert_true(f_tanh(-x) == -f_tanh(x) && fabsf(f_tanh(x)) <= 1.0f);
        assert_true(fabsf(f_softcap(x * 1e6f, 30.0f)) <= 30.0f);
    }
    assert_true(f_tanh(INFINITY) == 1.0f && f_tanh(-INFINITY) == -1.0f && isnan(f_tanh(NAN)));
    assert_true(f_silu(0.0f) == 0.0f && f_silu(1e30f) == 1e30f && f_silu(-1e30f) == 0.0f && isnan(f_silu(NAN)));
    assert_true(f_gelu(0.0f) == 0.0f && f_gelu(1e30f) == 1e30f && f_gelu(-1e30f) == 0.0f && isnan(f_gelu(NAN)));
    assert_true(f_silu(INFINITY) == INFINITY && f_gelu(INFINITY) == INFINITY && isnan(f_softcap(NAN, 30.0f)));
}

/* ---- double precision ---------------------------------------------------------------------------------------------
 */

static double worst_of_double(uint32_t which, double wrong)
{
    double worst = 0.0;
    for (uint32_t i = 0; i < STEPS / 4; i++) {
        const double x = (double)at(0.0f, 1.0f, i, STEPS / 4);
        double error = 0.0, s, c;
        switch (which) {
        case 0: error = fabs(d_exp(1000.0 * x - 500.0) / exp(1000.0 * x - 500.0) - 1.0 + wrong); break;
        case 1: { /* absolute near 1, relative elsewhere */
            const double y = exp2(200.0 * x - 100.0);
            error = fabs(d_log(y) - log(y) + wrong) / (1.0 + fabs(log(y)));
            break;
        }
        case 2: error = fabs(d_pow(10000.0 + 1e7 * x, -x) / pow(10000.0 + 1e7 * x, -x) - 1.0 + wrong); break;
        default: d_sincos(3e6 * x, &s, &c); error = fmax(fabs(s - sin(3e6 * x)), fabs(c - cos(3e6 * x))) + wrong;
        }
        worst = error <= worst ? worst : error;
    }
    return worst;
}

static void double_functions_are_within_their_bounds(void **state)
{
    (void)state;
    static const double bound[] = {5e-16, 5e-16, 1e-14, 5e-16}; /* exp, log, pow: relative; sin and cos: absolute */
    for (uint32_t i = 0; i < COUNT_OF(bound); i++) {
        if (!(worst_of_double(i, 0.0) < bound[i]))
            fail_msg("function %u: %g", i, worst_of_double(i, 0.0));
        assert_true(worst_of_double(i, 2 * bound[i]) > bound[i]);
    }
    double s, c;
    d_sincos(0.0, &s, &c);
    assert_true(s == 0.0 && c == 1.0 && d_log(1.0) == 0.0 && d_exp(0.0) == 1.0 && d_pow(7.0, 0.0) == 1.0);
    for (int quadrant = -9; quadrant < 10; quadrant++) {
        d_sincos(quadrant * M_PI / 2 + 0.1, &s, &c);
        assert_true(
            fabs(s - sin(quadrant * M_PI / 2 + 0.1)) < 1e-15 && fabs(c - cos(quadrant * M_PI / 2 + 0.1)) < 1e-15);
    }
}

/* ---- bits ---------------------------------------------------------------------------------------------------------
 */

static uint64_t bits_of_all(void)
{
    uint64_t hash = 0;
    float f[64 * 5];
    double d[64 * 5];
    for (uint32_t i = 0; i < 64 * 500; i += 64) {
        for (uint32_t k = 0; k < 64; k++) {
            const float x = at(-90.0f, 90.0f, i + k, 64 * 500);
            f[5 * k] = f_exp(x);
            f[5 * k + 1] = f_tanh(x * 0.1f);
            f[5 * k + 2] = f_silu(x);
            f[5 * k + 3] = f_gelu(x * 0.1f);
            f[5 * k + 4] = f_softcap(x, 30.0f);
            d[5 * k] = d_exp((double)x);
            d[5 * k + 1] = d_log((double)x + 91.0);
            d[5 * k + 2] = d_pow((double)x + 91.0, -0.7);
            d_sincos((double)x * 1000.0, &d[5 * k + 3], &d[5 * k + 4]);
        }
        hash = hash64(f, sizeof f, hash);
        hash = hash64(d, sizeof d, hash);
    }
    return hash;
}

static void the_bits_are_the_same_on_every_compiler_and_with_denormals_flushed(void **state)
{
    (void)state;
    assert_int_equal(bits_of_all(), 0x95bfb6b8efd213e2u);
    team_flush_denormals(); /* as workers run */
    assert_int_equal(bits_of_all(), 0x95bfb6b8efd213e2u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_two_ulp),
        cmocka_unit_test(many_exponentials_are_the_same_bits),
        cmocka_unit_test(exp_of_nothing_above_zero_is_above_one),
        cmocka_unit_test(tanh_silu_gelu_and_softcap_are_within_2e_7),
        cmocka_unit_test(the_units_behave_at_their_edges),
        cmocka_unit_test(double_functions_are_within_their_bounds),
        cmocka_unit_test(the_bits_are_the_same_on_every_compiler_and_with_denormals_flushed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
