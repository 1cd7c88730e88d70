/* Mixtures of experts: the choice of experts (order, ties, renormalisation, NaN) on logits given exactly, and the sum
 * of experts against double precision, with planted mistakes that must miss the bound. */
#include "testing_cpu.h"

#include "base/mem.h"

#include <math.h>

#define EXPERTS 8
#define T       11

/* Route T rows of given logits: the router is the identity. */
static void route(const struct rig *rig, float logits[T][EXPERTS], uint32_t top_k, bool renorm,
    uint32_t expert[T][EXPERTS], float weight[T][EXPERTS])
{
    struct dev *d = rig_open(rig, 2, T);
    struct acts *in = acts_make(rig, d, T, EXPERTS, ACT_F32);
    float eye[EXPERTS][EXPERTS] = {{0}};
    struct weight w = {0};
    struct tensor_view v;
    struct error e;
    uint32_t ids[T * EXPERTS];
    float shares[T * EXPERTS];
    for (uint32_t i = 0; i < EXPERTS; i++)
        eye[i][i] = 1.0f;
    assert_ok(e, tensor_view_init(&v, DTYPE_F32, 2, (const uint64_t[]){EXPERTS, EXPERTS}, eye, sizeof eye, &e));
    assert_ok(e, rig->ops->weight_bind(d, &v, 1, &w, &e));
    for (uint32_t i = 0; i < T; i++)
        acts_put(d, in, i, logits[i]);
    rig->ops->route(d, &(struct batch){.n_rows = T},
        &(struct route_args){
            .in = in, .router = &w, .top_k = top_k, .renorm = renorm, .expert = ids, .weight = shares});
    for (uint32_t i = 0; i < T; i++)
        for (uint32_t j = 0; j < top_k; j++) {
            expert[i][j] = ids[i * top_k + j];
            weight[i][j] = shares[i * top_k + j];
        }
    rig->ops->weight_drop(d, &w);
    rig->ops->acts_free(d, in);
    rig->ops->dev_close(d);
}

static void ties_go_to_the_lower_index_and_weights_descend(void **state)
{
    (void)state;
    float logits[T][EXPERTS] = {{0, 0, 0, 0, 0, 0, 0, 0}, {1, 3, 3, 2, 3, 0, 0, 0}, {5, 5, -1, -1, 5, 5, 0, 0},
        {-2, -2, -2, -2, -2, -2, -2, 9}};
    uint32_t expert[T][EXPERTS];
    float weight[T][EXPERTS];
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        route(&rig, logits, 3, false, expert, weight);
        assert_true(expert[0][0] == 0 && expert[0][1] == 1 && expert[0][2] == 2);
        assert_true(expert[1][0] == 1 && expert[1][1] == 2 && expert[1][2] == 4);
        assert_true(expert[2][0] == 0 && expert[2][1] == 1 && expert[2][2] == 4);
        assert_true(expert[3][0] == 7 && expert[3][1] == 0 && expert[3][2] == 1);
        assert_true(weight[0][0] == 0.125f && weight[3][0] > 0.999f);
        for (uint32_t i = 0; i < T; i++)
            assert_true(weight[i][0] >= weight[i][1] && weight[i][1] >= weight[i][2]);
    }
}

enum route_mistake { ROUTE_RIGHT, ROUTE_RENORM_WRONG, ROUTE_SIGMOID, ROUTE_OTHER_EXPERT };

static double route_error(const struct rig *rig, uint32_t top_k, bool renorm, enum route_mistake m)
{
    float logits[T][EXPERTS], weight[T][EXPERTS];
    uint32_t expert[T][EXPERTS];
    double worst = 0.0;
    for (uint32_t i = 0; i < T; i++)
        fill_noise(logits[i], EXPERTS, 60 + i, 2.0f);
    route(rig, logits, top_k, renorm, expert, weight);
    for (uint32_t i = 0; i < T; i++) {
        double all = 0.0, chosen = 0.0;
        for (uint32_t j = 0; j < EXPERTS; j++)
            all += exp((double)logits[i][j]);
        for (uint32_t j = 0; j < top_k; j++) {
            uint32_t before = 0; /* experts that come before it */
            for (uint32_t k = 0; k < EXPERTS; k++)
                before += logits[i][k] > logits[i][expert[i][j]];
            assert_int_equal(before, j);
            chosen += exp((double)logits[i][expert[i][j]]) / all;
        }
        for (uint32_t j = 0; j < top_k; j++) {
            const double x = (double)logits[i][(expert[i][j] + (m == ROUTE_OTHER_EXPERT)) % EXPERTS];
            double want = m == ROUTE_SIGMOID ? 1.0 / (1.0 + exp(-x)) : exp(x) / all;
            if (renorm != (m == ROUTE_RENORM_WRONG))
                want /= chosen;
            const double error = fabs((double)weight[i][j] - want);
            worst = error <= worst ? worst : error;
        }
    }
    return worst;
}

static void weights_are_the_softmax_and_sum_to_one_when_renormalised(void **state)
{
    (void)state;
    const double bound = 1e-6;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t top_k = 1; top_k <= EXPERTS; top_k++)
            for (int renorm = 0; renorm < 2; renorm++) {
                assert_true(route_error(&rig, top_k, renorm, ROUTE_RIGHT) < bound);
                assert_true(route_error(&rig, top_k, renorm, ROUTE_SIGMOID) > 10 * bound || (renorm && top_k == 1));
                assert_true(route_error(&rig, top_k, renorm, ROUTE_OTHER_EXPERT) > 10 * bound);
                if (top_k < EXPERTS)
                    assert_true(route_error(&rig, top_k, renorm, ROUTE_RENORM_WRONG) > 10 * bound);
            }
}

static void rows_of_nan_choose_valid_experts_and_stay_nan(void **state)
{
    (void)state;
    float logits[T][EXPERTS] = {{0}};
    for (uint32_t i = 0; i < EXPERTS; i++) {
        logits[0][i] = NAN;
        logits[1][i] = i == 3 ? NAN : (float)i;
        logits[2][i] = i == 5 ? INFINITY : (float)i;
        logits[3][i] = -INFINITY;
        logits[4][i] = i == 0 ? NAN : 1.0f;
    }
    uint32_t expert[T][EXPERTS];
    float weight[T][EXPERTS];
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t top_k = 1; top_k <= EXPERTS; top_k++) {
            route(&rig, logits, top_k, true, expert, weight);
            for (uint32_t i = 0; i < T; i++)
                for (uint32_t j = 0; j < top_k; j++) {
                    assert_true(expert[i][j] < EXPERTS);
                    assert_true(i < 5 ? isnan(weight[i][j]) : isfinite(weight[i][j]));
                }
        }
}

/* ---- the sum ---------------------------------------------------------------------------------------------------- */

#define H     64
#define F     96
#define OUT   40
#define MIX   5
#define TOP_K 3

enum mix_mistake { MIX_RIGHT, MIX_SWAPPED_WEIGHTS, MIX_FIRST_EXPERT, MIX_OVERWRITES, MIX_LOST_LAST };

struct mixture {
    struct rig rig;
    struct dev *d;
    uint32_t n_mats, top_k;
    struct matrix gate, up, down;
    float x[T][H];
};

static double dot(const struct matrix *m, uint32_t mat, uint32_t o, const double *x)
{
    float w[F];
    double sum = 0.0;
    matrix_row(m, mat, o, w);
    for (uint32_t k = 0; k < m->w.n_in; k++)
        sum += x[k] * (double)w[k];
    return sum;
}

static void expert_output(const struct mixture *m, uint32_t e, const float *x, double y[OUT])
{
    double in[H], hidden[F];
    for (uint32_t k = 0; k < H; k++)
        in[k] = (double)x[k];
    for (uint32_t f = 0; f < F; f++) {
        const double g = dot(&m->gate, e, f, in);
        hidden[f] = g / (1.0 + exp(-g)) * dot(&m->up, e, f, in);
    }
    for (uint32_t o = 0; o < OUT; o++)
        y[o] = dot(&m->down, e, o, hidden);
}

static double mix_error(struct mixture *m, enum mix_mistake mistake)
{
    const uint32_t k = m->top_k;
    uint32_t expert[T * TOP_K];
    float weight[T * TOP_K], out[T][OUT], was[T][OUT];
    float *scratch = room(sizeof(float) * T * TOP_K * 2 * F);
    struct acts *in = acts_make(&m->rig, m->d, T, H, ACT_F32),
                *hidden = acts_make(&m->rig, m->d, T * TOP_K, F, ACT_F32);
    struct dice dice = {77};
    for (uint32_t i = 0; i < T; i++) {
        acts_put(m->d, in, i, m->x[i]);
        for (uint32_t j = 0; j < k; j++) {
            expert[i * k + j] = (i + 2 * j) % m->n_mats;
            weight[i * k + j] = 0.1f + (float)dice_below(&dice, 100) * 0.01f;
        }
    }
    fill_noise(out[0], (size_t)T * OUT, 78, 1.0f);
    memcpy(was, out, sizeof out);
    m->rig.ops->experts(m->d, &(struct batch){.n_rows = T},
        &(struct experts_args){.in = in,
            .gate = &m->gate.w,
            .up = &m->up.w,
            .down = &m->down.w,
            .glu = GLU_SILU,
            .top_k = k,
            .expert = expert,
            .weight = weight,
            .hidden = hidden,
            .scratch = scratch,
            .x = out[0]});
    double worst = 0.0;
    for (uint32_t i = 0; i < T; i++) {
        double want[OUT], size = 1.0;
        for (uint32_t o = 0; o < OUT; o++)
            want[o] = mistake == MIX_OVERWRITES ? 0.0 : (double)was[i][o];
        for (uint32_t j = 0; j < k - (mistake == MIX_LOST_LAST); j++) {
            double y[OUT];
            expert_output(m, expert[i * k + (mistake == MIX_FIRST_EXPERT ? 0 : j)], m->x[i], y);
            for (uint32_t o = 0; o < OUT; o++) {
                want[o] += (double)weight[i * k + (mistake == MIX_SWAPPED_WEIGHTS ? k - 1 - j : j)] * y[o];
                size = fmax(size, fabs(y[o]));
            }
        }
        for (uint32_t o = 0; o < OUT; o++) {
            const double error = fabs((double)out[i][o] - want[o]) / size;
            worst = error <= worst ? worst : error;
        }
    }
    m->rig.ops->acts_free(m->d, in);
    m->rig.ops->acts_free(m->d, hidden);
    mem_free(scratch);
    return worst;
}

static void mixture_init(struct mixture *m, const struct rig *rig, uint32_t n_mats, uint32_t top_k)
{
    *m = (struct mixture){.rig = *rig, .d = rig_open(rig, 3, T), .n_mats = n_mats, .top_k = top_k};
    matrix_make(&m->gate, rig, m->d, DTYPE_F32, n_mats, F, H, 71, false);
    matrix_make(&m->up, rig, m->d, DTYPE_F32, n_mats, F, H, 72, false);
    matrix_make(&m->down, rig, m->d, DTYPE_F32, n_mats, OUT, F, 73, false);
    for (uint32_t i = 0; i < T; i++)
        fill_noise(m->x[i], H, 90 + i, 1.0f);
}

static void mixture_fini(struct mixture *m)
{
    matrix_drop(&m->gate, &m->rig, m->d);
    matrix_drop(&m->up, &m->rig, m->d);
    matrix_drop(&m->down, &m->rig, m->d);
    m->rig.ops->dev_close(m->d);
}

static void experts_are_summed_with_their_weights(void **state)
{
    (void)state;
    const double bound = 3e-6;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct mixture m;
        mixture_init(&m, &rig, MIX, TOP_K);
        assert_true(mix_error(&m, MIX_RIGHT) < bound);
        assert_true(mix_error(&m, MIX_SWAPPED_WEIGHTS) > 10 * bound);
        assert_true(mix_error(&m, MIX_FIRST_EXPERT) > 10 * bound);
        assert_true(mix_error(&m, MIX_OVERWRITES) > 10 * bound);
        assert_true(mix_error(&m, MIX_LOST_LAST) > 10 * bound);
        mixture_fini(&m);
    }
}

/* A mixture of one is a legal file. */
static void a_single_expert_is_a_mixture_too(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct mixture m;
        mixture_init(&m, &rig, 1, 1);
        assert_true(mix_error(&m, MIX_RIGHT) < 3e-6);
        mixture_fini(&m);
    }
}

/* More rows of one expert than a kernel takes at a time: those behind are its rows as well. */
#define CROWD 140

static void a_crowd_at_one_expert_has_the_bits_of_each_alone(void **state)
{
    (void)state;
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_Q4_K, DTYPE_Q6_K};
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < COUNT_OF(dtypes); t++) {
            const uint32_t n = 256, expert[CROWD] = {0};
            struct dev *d = rig_open(&rig, 2, CROWD);
            struct matrix m;
            matrix_make(&m, &rig, d, dtypes[t], 1, n, n, 70 + t, false);
            struct acts *in = acts_make(&rig, d, CROWD, n, m.w.wants);
            struct acts *hidden = acts_make(&rig, d, CROWD, n, m.w.wants);
            float *scratch = room(sizeof(float) * CROWD * 2 * n), *out = room(sizeof(float) * CROWD * n);
            float weight[CROWD], x[256], alone[256];
            struct experts_args args = {.in = in,
                .gate = &m.w,
                .up = &m.w,
                .down = &m.w,
                .glu = GLU_SILU,
                .top_k = 1,
                .expert = expert,
                .weight = weight,
                .hidden = hidden,
                .scratch = scratch,
                .x = out};
            for (uint32_t i = 0; i < CROWD; i++) {
                fill_noise(x, n, 90 + i, 1.0f);
                acts_put(d, in, i, x);
                weight[i] = 1.0f;
            }
            memset(out, 0, sizeof(float) * CROWD * n);
            rig.ops->experts(d, &(struct batch){.n_rows = CROWD}, &args);
            args.x = alone;
            for (uint32_t i = 0; i < CROWD; i += 27) { /* the last ones are behind the first 132 */
                fill_noise(x, n, 90 + i, 1.0f);
                acts_put(d, in, 0, x);
                memset(alone, 0, sizeof alone);
                rig.ops->experts(d, &(struct batch){.n_rows = 1}, &args);
                assert_memory_equal(alone, out + (size_t)i * n, sizeof alone);
            }
            mem_free(scratch);
            mem_free(out);
            rig.ops->acts_free(d, in);
            rig.ops->acts_free(d, hidden);
            matrix_drop(&m, &rig, d);
            rig.ops->dev_close(d);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lower_index_and_weights_descend),
        cmocka_unit_test(weights_are_the_softmax_and_sum_to_one_when_renormalised),
        cmocka_unit_test(rows_of_nan_choose_valid_experts_and_stay_nan),
        cmocka_unit_test(experts_are_summed_with_their_weights),
        cmocka_unit_test(a_single_expert_is_a_mixture_too),
        cmocka_unit_test(a_crowd_at_one_expert_has_the_bits_of_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
