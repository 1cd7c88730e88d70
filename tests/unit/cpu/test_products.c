/* Matrix products of every weight dtype against sums in double precision over the dequantised weights. Two bounds:
 * against the arithmetic that cpu.h defines (activations rounded to 16 bits where weights are quantised) the error is
 * rounding only; against exact activations it is that of 16 bits. Every bound has planted mistakes that must miss it,
 * and for the second the arithmetic of 8 bits is one of them. */
#include "testing_cpu.h"

#include "base/hash.h"
#include "base/mem.h"

#include <math.h>

#define ROWS  5
#define N_OUT 70

/* |got - want| / sum of |terms|. 32 additions in a row at 2^-24 each, plus the scales. */
#define DEFINED_MAX 2e-6
/* Root mean square of the error over that of the output: a uniform error of one 65534th of the largest of 32. */
#define EXACT_MAX 4e-5

enum mistake { RIGHT, NEXT_COLUMN, SHIFTED_K, NEXT_SCALE, NO_BIAS, LOST_GROUP, EIGHT_BITS, MISTAKES };

struct case_ {
    struct rig rig;
    struct dev *d;
    struct matrix m;
    struct acts *in;
    uint32_t n;
    float *x;       /* [ROWS][n] */
    float *out;     /* [ROWS][N_OUT] */
    float *scratch; /* the same */
    float *w;       /* [N_OUT][n], dequantised */
};

static void case_init(struct case_ *c, const struct rig *rig, enum dtype dtype, uint64_t seed)
{
    *c = (struct case_){.rig = *rig, .n = dtype_info(dtype)->block_elems == 1 ? 203 : 512};
    c->d = rig_open(rig, 2, ROWS);
    matrix_make(&c->m, rig, c->d, dtype, 1, N_OUT, c->n, seed, true);
    c->in = acts_make(rig, c->d, ROWS, c->n, c->m.w.wants | ACT_F32);
    c->x = room(sizeof(float) * ROWS * c->n);
    c->out = room(sizeof(float) * ROWS * N_OUT);
    c->scratch = room(sizeof(float) * ROWS * N_OUT);
    c->w = room(sizeof(float) * N_OUT * c->n);
    for (uint32_t i = 0; i < ROWS; i++) {
        fill_row(c->x + (size_t)i * c->n, c->n, i == 1 ? ROW_HALF : ROW_PLAIN, seed + i);
        acts_put(c->d, c->in, i, c->x + (size_t)i * c->n);
    }
    for (uint32_t o = 0; o < N_OUT; o++)
        matrix_row(&c->m, 0, o, c->w + (size_t)o * c->n);
    c->rig.ops->project(c->d, &(struct batch){.n_rows = ROWS},
        &(struct project_args){.in = c->in, .w = &c->m.w, .scratch = c->scratch, .x = c->out});
}

static void case_fini(struct case_ *c)
{
    matrix_drop(&c->m, &c->rig, c->d);
    c->rig.ops->acts_free(c->d, c->in);
    mem_free(c->x);
    mem_free(c->out);
    mem_free(c->scratch);
    mem_free(c->w);
    c->rig.ops->dev_close(c->d);
}

/* An activation row as products see it: in 16 bits where weights are quantised, unless exact. */
static void activations(const struct case_ *c, bool exact, enum mistake m, uint32_t row, double *a)
{
    const float *x = c->x + (size_t)row * c->n;
    float most[16] = {0};
    for (uint32_t k = 0; k < c->n; k++)
        most[k / 32] = fmaxf(most[k / 32], fabsf(x[k]));
    for (uint32_t k = 0; k < c->n; k++) {
        const float own = most[k / 32], used = m == NEXT_SCALE ? most[(k / 32 + 1) % 16] : own;
        const float top = m == EIGHT_BITS ? 127.0f : ACT_MAX;
        if ((exact && m != EIGHT_BITS) || (c->m.w.wants & ACT_Q16) == 0)
            a[k] = (double)x[k];
        else
            a[k] = own == 0.0f ? 0.0 : (double)rintf(x[k] * (top / own)) * (double)(used / top);
    }
}

struct errors {
    double worst; /* largest |error| / sum of |terms| */
    double rms;   /* of the error over that of the output */
};

static struct errors errors_of(const struct case_ *c, bool exact, enum mistake m)
{
    struct errors e = {0};
    double error2 = 0.0, all2 = 0.0, a[512];
    for (uint32_t i = 0; i < ROWS; i++) {
        activations(c, exact, m, i, a);
        for (uint32_t o = 0; o < N_OUT; o++) {
            const float *w = c->w + (size_t)(m == NEXT_COLUMN ? (o + 1) % N_OUT : o) * c->n;
            double y = m == NO_BIAS ? 0.0 : (double)c->m.bias[o], size = fabs(y);
            for (uint32_t k = m == LOST_GROUP ? 32 : 0; k < c->n; k++) {
                const double term = a[k] * (double)w[m == SHIFTED_K ? (k + 1) % c->n : k];
                y += term;
                size += fabs(term);
            }
            const double diff = fabs((double)c->out[(size_t)i * N_OUT + o] - y);
            e.worst = diff / size <= e.worst ? e.worst : diff / size; /* NaN wins */
            error2 += diff * diff;
            all2 += y * y;
        }
    }
    e.rms = sqrt(error2 / all2);
    return e;
}

static double defined_error(const struct case_ *c, enum mistake m)
{
    return errors_of(c, false, m).worst;
}

static double exact_error(const struct case_ *c, enum mistake m)
{
    return errors_of(c, true, m).rms;
}

static void products_are_the_defined_arithmetic_for_every_dtype(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t++) {
            struct case_ c;
            case_init(&c, &rig, weight_dtypes[t], 40 + t);
            const double error = defined_error(&c, RIGHT);
            if (!(error < DEFINED_MAX))
                fail_msg("%s, %s: error %g", rig.ops->name, dtype_name(weight_dtypes[t]), error);
            for (enum mistake m = RIGHT + 1; m < MISTAKES; m++) {
                if ((m == NEXT_SCALE || m == EIGHT_BITS) && (c.m.w.wants & ACT_Q16) == 0)
                    continue;
                const double planted = defined_error(&c, m);
                if (!(planted > 10 * DEFINED_MAX))
                    fail_msg("%s: mistake %d passes with error %g", dtype_name(weight_dtypes[t]), (int)m, planted);
            }
            case_fini(&c);
        }
}

static void products_are_near_those_of_exact_activations(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t++) {
            struct case_ c;
            case_init(&c, &rig, weight_dtypes[t], 80 + t);
            const double bound = c.m.w.wants & ACT_Q16 ? EXACT_MAX : 1e-6, error = exact_error(&c, RIGHT);
            if (!(error < bound))
                fail_msg("%s, %s: error %g", rig.ops->name, dtype_name(weight_dtypes[t]), error);
            assert_true(exact_error(&c, NEXT_COLUMN) > 10 * bound);
            assert_true(exact_error(&c, SHIFTED_K) > 10 * bound);
            assert_true(exact_error(&c, LOST_GROUP) > 10 * bound);
            assert_true((c.m.w.wants & ACT_Q16) == 0 || exact_error(&c, EIGHT_BITS) > 10 * bound);
            case_fini(&c);
        }
}

/* Sub-groups have scales and minima of their own: a weight row of one non-zero sub-group must use exactly that one. */
static void every_sub_group_uses_its_own_scale(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t++) {
            struct case_ c;
            case_init(&c, &rig, weight_dtypes[t], 120 + t);
            for (uint32_t g = 0; g < c.n / SUB_GROUP; g++) {
                float x[512] = {0};
                for (uint32_t k = g * SUB_GROUP; k < (g + 1) * SUB_GROUP; k++)
                    x[k] = k % 2 ? 1.0f : -0.5f; /* 32767 and -16384 (ties to even) in 16 bits */
                acts_put(c.d, c.in, 0, x);
                memset(c.out, 0, sizeof(float) * N_OUT);
                c.m.w.bias = NULL;
                c.rig.ops->project(c.d, &(struct batch){.n_rows = 1},
                    &(struct project_args){.in = c.in, .w = &c.m.w, .scratch = c.scratch, .x = c.out});
                const double low = c.m.w.wants & ACT_Q16 ? -16384.0 / 32767.0 : -0.5;
                for (uint32_t o = 0; o < N_OUT; o++) {
                    double y = 0.0, size = 0.0;
                    for (uint32_t k = g * SUB_GROUP; k < (g + 1) * SUB_GROUP; k++) {
                        y += (k % 2 ? 1.0 : low) * (double)c.w[(size_t)o * c.n + k];
                        size += fabs((double)c.w[(size_t)o * c.n + k]);
                    }
                    assert_true(fabs((double)c.out[o] - y) <= 1e-6 * size);
                }
            }
            case_fini(&c);
        }
}

/* Activations at the ends of their 16 bits and of either byte. Kernels for a few rows may take integers apart, those
 * for one row do not: the sums are exact either way. */
static float at_the_ends(uint32_t row, uint32_t k)
{
    static const float q[ROWS][4] = {{32767, 32767, 32767, 32767}, {-32767, -32767, -32767, -32767},
        {32767, -32767, -32512, 32512}, {-32767, -1, 255, 256}, {32767, -256, -257, 127}};
    return q[row][k % 4] / 32767.0f;
}

static void the_largest_integers_have_their_bits_in_company(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t++) {
            struct case_ c;
            float x[ROWS][512], alone[N_OUT];
            case_init(&c, &rig, weight_dtypes[t], 200 + t);
            struct project_args args = {.in = c.in, .w = &c.m.w, .scratch = c.scratch, .x = c.out};
            for (uint32_t i = 0; i < ROWS; i++) {
                for (uint32_t k = 0; k < c.n; k++)
                    x[i][k] = at_the_ends(i, k);
                acts_put(c.d, c.in, i, x[i]);
            }
            memset(c.out, 0, sizeof(float) * ROWS * N_OUT);
            c.rig.ops->project(c.d, &(struct batch){.n_rows = ROWS}, &args);
            args.x = alone;
            for (uint32_t i = 0; i < ROWS; i++) {
                acts_put(c.d, c.in, 0, x[i]);
                memset(alone, 0, sizeof alone);
                c.rig.ops->project(c.d, &(struct batch){.n_rows = 1}, &args);
                assert_memory_equal(alone, c.out + (size_t)i * N_OUT, sizeof alone);
            }
            case_fini(&c);
        }
}

static uint64_t bits_of(const struct rig *rig)
{
    uint64_t hash = 0;
    for (uint32_t t = 0; t < n_weight_dtypes; t++) {
        struct case_ c;
        case_init(&c, rig, weight_dtypes[t], 160 + t);
        hash = hash64(c.out, sizeof(float) * ROWS * N_OUT, hash);
        case_fini(&c);
    }
    return hash;
}

/* The same bits from every compiler and optimisation level. Only the plain kernels are pinned: faster rows may define
 * another order, and say so. */
static void the_plain_products_have_these_bits(void **state)
{
    (void)state;
    const struct rig rig = {.ops = cpu_ops_by_name("cpu-ref")};
    assert_int_equal(bits_of(&rig), 0x6999f0998e4be57eu);
}

/* The x86 rows are one arithmetic at two widths. */
static void the_x86_rows_have_the_same_bits(void **state)
{
    (void)state;
    const struct rig narrow = {.ops = cpu_ops_by_name("cpu-avx2")}, wide = {.ops = cpu_ops_by_name("cpu-avx512")};
    if (narrow.ops == NULL || wide.ops == NULL) {
        print_message("SKIP: this machine has not both\n");
        skip();
    }
    assert_int_equal(bits_of(&narrow), bits_of(&wide));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_defined_arithmetic_for_every_dtype),
        cmocka_unit_test(products_are_near_those_of_exact_activations),
        cmocka_unit_test(every_sub_group_uses_its_own_scale),
        cmocka_unit_test(the_largest_integers_have_their_bits_in_company),
        cmocka_unit_test(the_plain_products_have_these_bits),
        cmocka_unit_test(the_x86_rows_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
