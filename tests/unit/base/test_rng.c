/* Clocks and random numbers. The statistical checks come with twins that must fail, so that their bounds mean
 * something. */
#include "base_testing.h"

#include "base/clock.h"

#include <math.h>

/* Published known answers of Philox4x32-10 (the Random123 distribution). */
static void philox_gives_the_published_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
            {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint32_t out[4];
        rng_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* The layout of the key is a contract with other backends. */
static void keys_map_to_counters_as_documented(void **state)
{
    (void)state;
    const struct rng_key k = {
        .seed = 0x299f31d0a4093822u, .index = 0x85a308d3243f6a88u, .choice = 0x13198a2e, .purpose = RNG_RESIDUAL};
    uint32_t out[4];
    rng_philox((uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 2}, (uint32_t[2]){0xa4093822, 0x299f31d0}, out);
    assert_true(rng_u64(k) == ((uint64_t)out[1] << 32 | out[0]));
    assert_true(rng_f32(k) == (float)(out[0] >> 8) / 16777216.0f);
    assert_true(rng_f64(k) == (double)(rng_u64(k) >> 11) / 9007199254740992.0);
    assert_true(RNG_SAMPLE == 0 && RNG_ACCEPT == 1 && RNG_RESIDUAL == 2);
}

static void each_part_of_the_key_matters(void **state)
{
    (void)state;
    const struct rng_key k = {.seed = 5, .index = 6, .choice = 7, .purpose = RNG_SAMPLE};
    struct rng_key other[5] = {k, k, k, k, k};
    other[0].seed ^= (uint64_t)1 << 63;
    other[1].index ^= (uint64_t)1 << 63;
    other[2].index ^= 1;
    other[3].choice ^= 0x80000000u;
    other[4].purpose = RNG_ACCEPT;
    for (size_t i = 0; i < COUNT_OF(other); i++)
        assert_true(rng_u64(other[i]) != rng_u64(k) && rng_f32(other[i]) != rng_f32(k));
    assert_true(rng_u64(k) == rng_u64(k));
}

enum { N = 200000 };

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Kolmogorov-Smirnov: the largest distance between the sample's distribution and cdf, times sqrt(N). Above 1.95 the
 * sample is not from it (once in a thousand; the seed is fixed, so the answer is fixed too). */
static double distance(double *v, double (*cdf)(double))
{
    double worst = 0;
    qsort(v, N, sizeof *v, by_value);
    for (size_t i = 0; i < N; i++) {
        const double c = cdf(v[i]);
        worst = fmax(worst, fmax(fabs(c - (double)i / N), fabs(c - (double)(i + 1) / N)));
    }
    return worst * sqrt(N);
}

static double cdf_uniform(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}
static double cdf_skewed(double x)
{
    return pow(cdf_uniform(x), 1.02);
}
static double cdf_normal(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}
static double cdf_wider(double x)
{
    return cdf_normal(x / 1.02);
}

static double values[N];

static void uniforms_are_uniform(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        for (uint64_t i = 0; i < N; i++) {
            const struct rng_key k = {.seed = 42, .index = i / 4, .choice = (uint32_t)(i & 3), .purpose = RNG_SAMPLE};
            values[i] = wide ? rng_f64(k) : (double)rng_f32(k);
            assert_true(values[i] >= 0 && values[i] < 1);
        }
        assert_true(distance(values, cdf_uniform) < 1.95);
        assert_true(distance(values, cdf_skewed) > 1.95); /* two parts in a hundred off is seen */
    }
}

static void normals_are_normal(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < N; i++)
        values[i] = (double)rng_normal((struct rng_key){.seed = 1, .index = i, .purpose = RNG_DUMMY});
    assert_true(distance(values, cdf_normal) < 1.95);
    assert_true(distance(values, cdf_wider) > 1.95);
}

/* The same formula with the C library's log and cosine. */
static void normals_agree_with_libm(void **state)
{
    (void)state;
    double worst = 0, least = 9, most = 0, planted = 0;
    for (uint64_t i = 0; i < N; i++) {
        const struct rng_key k = {.seed = i * 77, .index = i, .choice = 3, .purpose = RNG_DUMMY};
        uint32_t w[4];
        rng_philox((uint32_t[4]){(uint32_t)i, 0, 3, RNG_DUMMY}, (uint32_t[2]){(uint32_t)k.seed, 0}, w);
        const double u = ((double)(((uint64_t)w[1] << 32 | w[0]) >> 11) + 1) / 9007199254740992.0;
        const double turn = (double)((uint64_t)w[3] << 32 | w[2]) / 18446744073709551616.0;
        const double want = sqrt(-2 * log(u)) * cos((turn - 0.125) * 2 * acos(-1));
        const double got = (double)rng_normal(k);
        worst = fmax(worst, fabs(got - want) / fmax(fabs(want), 1));
        planted = fmax(planted, fabs(got - want * (1 + 1e-6)) / fmax(fabs(want), 1));
        least = fmin(least, fabs(got));
        most = fmax(most, fabs(got));
    }
    assert_true(worst < 1e-7);
    assert_true(planted > 1e-7); /* one part in a million is seen */
    assert_true(least < 1e-4 && most > 4 && most < 8.6);
}

static void the_machine_clock_moves_forward(void **state)
{
    (void)state;
    struct clock c;
    clock_init(&c);
    uint64_t before = clock_now(&c);
    for (int i = 0; i < 1000; i++) {
        const uint64_t now = clock_now(&c);
        assert_true(now >= before);
        before = now;
    }
    clock_sleep(&c, 2 * NS_PER_MS);
    assert_true(clock_now(&c) - before >= 2 * NS_PER_MS);
    assert_true(clock_wall(&c) > (int64_t)1600000000 * 1000000000);
}

static void a_virtual_clock_moves_only_when_told(void **state)
{
    (void)state;
    struct clock c;
    clock_init_virtual(&c, 1000);
    assert_int_equal(clock_now(&c), 0);
    clock_advance(&c, 5);
    clock_sleep(&c, 3600 * NS_PER_S); /* and returns at once */
    assert_true(clock_now(&c) == 3600 * NS_PER_S + 5);
    assert_true(clock_wall(&c) == (int64_t)(3600 * NS_PER_S) + 1005);
}

static void advance(void *ctx)
{
    clock_advance(ctx, 1);
}

static void advancing_the_machine_clock_is_a_bug(void **state)
{
    (void)state;
    struct clock c;
    clock_init(&c);
    assert_true(dies(advance, &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(keys_map_to_counters_as_documented),
        cmocka_unit_test(each_part_of_the_key_matters),
        cmocka_unit_test(uniforms_are_uniform),
        cmocka_unit_test(normals_are_normal),
        cmocka_unit_test(normals_agree_with_libm),
        cmocka_unit_test(the_machine_clock_moves_forward),
        cmocka_unit_test(a_virtual_clock_moves_only_when_told),
        cmocka_unit_test(advancing_the_machine_clock_is_a_bug),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
