/* Selection and sorting of candidates against the C library's qsort, on the inputs that break naive selection, with a
 * bound on the entries looked at. */
#include "testing.h"

#include "base/mem.h"
#include "sample/sample_int.h"

#include <math.h>
#include <stdlib.h>

#define N 3000

enum pattern { RANDOM, ALL_EQUAL, SORTED, REVERSED, FEW_DISTINCT, ORGAN_PIPE, SAWTOOTH, INFINITE, PATTERNS };

static uint32_t next_random(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void fill(struct candidate *c, uint32_t n, enum pattern p)
{
    uint32_t s = 7;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t r = next_random(&s);
        c[i].id = i;
        switch (p) {
        case ALL_EQUAL: c[i].key = 1.5f; break;
        case SORTED: c[i].key = -(float)i; break;
        case REVERSED: c[i].key = (float)i; break;
        case FEW_DISTINCT: c[i].key = (float)(r % 4); break;
        case ORGAN_PIPE: c[i].key = (float)MIN(i, n - i); break;
        case SAWTOOTH: c[i].key = (float)(i % 37); break;
        case INFINITE: c[i].key = r % 3 == 0 ? -INFINITY : r % 3 == 1 ? INFINITY : 0.0f; break;
        default: c[i].key = (float)r * 1e-3f; break;
        }
    }
}

static int by_qsort(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static bool same_order(const struct candidate *a, const struct candidate *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].id != b[i].id)
            return false;
    return true;
}

static void the_best_come_out_as_qsort_has_them(void **state)
{
    (void)state;
    struct candidate c[N], want[N];
    for (enum pattern p = 0; p < PATTERNS; p++)
        for (uint32_t n = 0; n <= N; n = n < 40 ? n + 1 : n * 3 + 1) {
            const uint32_t cuts[] = {0, 1, 2, n / 3, n / 2, n > 0 ? n - 1 : 0, n};
            for (size_t k = 0; k < COUNT_OF(cuts); k++) {
                const uint32_t m = MIN(cuts[k], n);
                fill(c, n, p);
                memcpy(want, c, n * sizeof *c);
                qsort(want, n, sizeof *want, by_qsort);
                order_best(c, n, m);
                assert_true(same_order(c, want, m));
                order_sort(c, n); /* nothing was lost */
                assert_true(same_order(c, want, n));
            }
        }
}

/* What the comparison can tell from a wrong order: two neighbours swapped. */
static void a_swapped_pair_is_seen(void **state)
{
    (void)state;
    struct candidate c[10], want[10];
    fill(c, 10, RANDOM);
    order_sort(c, 10);
    memcpy(want, c, sizeof c);
    assert_true(same_order(c, want, 10));
    const struct candidate t = c[4];
    c[4] = c[5];
    c[5] = t;
    assert_false(same_order(c, want, 10));
}

static void selection_is_linear_on_every_ordinary_pattern(void **state)
{
    (void)state;
    const uint32_t n = 200000;
    struct candidate *c = mem_array(n, sizeof *c);
    assert_non_null(c);
    for (enum pattern p = 0; p < PATTERNS; p++)
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t cuts[] = {1, 256, n / 2, n - 1};
            fill(c, n, p);
            const uint64_t looked = order_select(c, n, cuts[k]);
            if (looked > 6 * (uint64_t)n)
                fail_msg("pattern %d, best %u: looked at %llu of %u", (int)p, cuts[k], (unsigned long long)looked, n);
        }
    mem_free(c);
}

/* An adversary after McIlroy: values are decided while the selection compares them, always so that the pivot turns out
 * to be among the smallest. The comparisons below are those of order.c, pass by pass. */
struct adversary {
    uint32_t *value; /* UNDECIDED or a rank */
    uint32_t decided, candidate;
};
#define UNDECIDED UINT32_MAX

static bool before(struct adversary *a, uint32_t x, uint32_t y)
{
    if (a->value[x] == UNDECIDED && a->value[y] == UNDECIDED)
        a->value[x == a->candidate ? x : y] = a->decided++;
    if (a->value[x] == UNDECIDED)
        a->candidate = x;
    else if (a->value[y] == UNDECIDED)
        a->candidate = y;
    return a->value[x] < a->value[y];
}

static void swap_ids(uint32_t *a, uint32_t *b)
{
    const uint32_t t = *a;
    *a = *b;
    *b = t;
}

static uint32_t median(struct adversary *a, uint32_t x, uint32_t y, uint32_t z)
{
    if (before(a, y, x))
        swap_ids(&x, &y);
    return before(a, y, z) ? y : before(a, x, z) ? z : x;
}

static uint32_t choose_pivot(struct adversary *a, const uint32_t *c, size_t n)
{
    if (n == 2)
        return before(a, c[0], c[1]) ? c[1] : c[0];
    if (n < 64)
        return median(a, c[0], c[n / 2], c[n - 1]);
    const size_t s = n / 8;
    const uint32_t m0 = median(a, c[0], c[s], c[2 * s]), m1 = median(a, c[3 * s], c[4 * s], c[5 * s]);
    return median(a, m0, m1, median(a, c[6 * s], c[7 * s], c[n - 1]));
}

static void attack(struct adversary *a, uint32_t *ids, size_t n, size_t m)
{
    size_t lo = 0, hi = n;
    while (m > lo && m < hi && hi - lo > 1) {
        const uint32_t pivot = choose_pivot(a, ids + lo, hi - lo);
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (before(a, ids[i], pivot))
                i++;
            while (before(a, pivot, ids[j]))
                j--;
            if (i >= j)
                break;
            swap_ids(&ids[i++], &ids[j--]);
        }
        if (m <= i)
            hi = i;
        else
            lo = i;
    }
}

static void selection_stays_bounded_under_attack(void **state)
{
    (void)state;
    const uint32_t n = 8192;
    struct candidate *c = mem_array(n, sizeof *c), *want = mem_array(n, sizeof *want);
    uint32_t *ids = mem_array(n, sizeof *ids), *value = mem_array(n, sizeof *value);
    assert_true(c != NULL && want != NULL && ids != NULL && value != NULL);
    struct adversary a = {.value = value};
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = i;
        value[i] = UNDECIDED;
    }
    attack(&a, ids, n, n - 1);
    for (uint32_t i = 0; i < n; i++)
        c[i] = (struct candidate){.key = -(float)MIN(value[i], n), .id = i};
    memcpy(want, c, n * sizeof *c);
    qsort(want, n, sizeof *want, by_qsort);
    const uint64_t looked = order_select(c, n, n - 1);
    assert_true(looked > 20 * (uint64_t)n); /* the attack works: an unguarded selection would look at n^2 / 8... */
    assert_true(looked <= (4 + 2 * 14) * (uint64_t)n); /* ...and is stopped after 4 + 2 log2 n passes */
    order_sort(c, n - 1);
    assert_true(same_order(c, want, n - 1));
    mem_free(c);
    mem_free(want);
    mem_free(ids);
    mem_free(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_come_out_as_qsort_has_them),
        cmocka_unit_test(a_swapped_pair_is_seen),
        cmocka_unit_test(selection_is_linear_on_every_ordinary_pattern),
        cmocka_unit_test(selection_stays_bounded_under_attack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
