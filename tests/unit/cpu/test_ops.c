/* The ops that work row by row (embed, norm, project with its norm, gate_up, route, experts, logits) against formulas
 * in double precision written here. A bound is |got - want| / size, where size is the scale of the numbers involved;
 * each has planted mistakes in the reference that must miss it tenfold. */
#include "testing_cpu.h"

#include "base/mem.h"

#include <math.h>

#define H 100
#define F 72
#define T 9

struct world {
    struct rig rig;
    struct dev *d;
    struct acts *in;
    float x[T][H];
};

static void world_init(struct world *w, const struct rig *rig, uint64_t seed)
{
    w->rig = *rig;
    w->d = rig_open(rig, 2, T);
    w->in = acts_make(rig, w->d, T, H, ACT_F32);
    for (uint32_t i = 0; i < T; i++) {
        fill_noise(w->x[i], H, seed + i, 1.0f);
        acts_put(w->d, w->in, i, w->x[i]);
    }
}

static void world_fini(struct world *w)
{
    w->rig.ops->acts_free(w->d, w->in);
    w->rig.ops->dev_close(w->d);
}

static void keep_worst(double *worst, double error)
{
    *worst = error <= *worst ? *worst : error; /* NaN wins */
}

static double row_dot(const struct matrix *m, uint32_t mat, uint32_t o, const float *x)
{
    float w[H];
    double sum = m->bias != NULL ? (double)m->bias[(size_t)mat * m->w.n_out + o] : 0.0;
    assert_true(m->w.n_in <= H);
    matrix_row(m, mat, o, w);
    for (uint32_t k = 0; k < m->w.n_in; k++)
        sum += (double)x[k] * (double)w[k];
    return sum;
}

#define EXPECT_BELOW(error, bound)                                                                                     \
    do {                                                                                                               \
        const double e_ = (error);                                                                                     \
        if (!(e_ < (bound)))                                                                                           \
            fail_msg("%s is %g, the bound is %g", #error, e_, (double)(bound));                                        \
    } while (0)
#define EXPECT_MISS(error, bound)                                                                                      \
    do {                                                                                                               \
        const double e_ = (error);                                                                                     \
        if (!(e_ > 10 * (bound)))                                                                                      \
            fail_msg("a planted mistake passes: %s is %g, the bound is %g", #error, e_, (double)(bound));              \
    } while (0)

/* ---- embed ---------------------------------------------------------------------------------------------------- */

static void embed_gives_the_scaled_row_of_the_table(void **state)
{
    (void)state;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);)
        for (uint32_t t = 0; t < n_weight_dtypes; t++) {
            struct dev *d = rig_open(&rig, 2, T);
            struct matrix m;
            const uint32_t n = inner_of(weight_dtypes[t]);
            matrix_make(&m, &rig, d, weight_dtypes[t], 1, 50, n, t, false);
            const int32_t token[T] = {0, 49, 7, 7, 1, 2, 3, 48, 20};
            float out[T * 256], row[256], other[256];
            rig.ops->embed(d, &(struct batch){.n_rows = T, .token = token},
                &(struct embed_args){.table = &m.w, .scale = 3.5f, .out = out});
            for (uint32_t i = 0; i < T; i++) {
                matrix_row(&m, 0, (uint32_t)token[i], row);
                matrix_row(&m, 0, (uint32_t)(token[i] + 1) % 50, other);
                for (uint32_t k = 0; k < n; k++)
                    row[k] *= 3.5f;
                assert_true(same_floats(out + (size_t)i * n, row, n));
                assert_false(same_floats(out + (size_t)i * n, other, n));
            }
            matrix_drop(&m, &rig, d);
            rig.ops->dev_close(d);
        }
}

/* ---- norm ----------------------------------------------------------------------------------------------------- */

enum norm_mistake { NORM_RIGHT, NORM_NO_EPS, NORM_COUNT_LESS_ONE, NORM_SHIFTED_GAIN, NORM_CENTRED };

static double norm_error(const struct rig *rig, float size, enum norm_mistake m)
{
    float x[T][H], gain[H];
    const float eps = 1e-5f;
    struct dev *d = rig_open(rig, 2, T);
    struct acts *out = acts_make(rig, d, T, H, ACT_F32);
    double worst = 0.0;
    fill_noise(gain, H, 3, 1.0f);
    for (uint32_t i = 0; i < T; i++)
        fill_noise(x[i], H, 10 + i, size);
    rig->ops->norm(
        d, &(struct norm_args){.x = x[0], .n_rows = T, .n = H, .gain = gain, .eps = eps, .forms = ACT_F32, .out = out});
    for (uint32_t i = 0; i < T; i++) {
        double sum = 0.0, mean = 0.0;
        for (uint32_t k = 0; k < H; k++)
            mean += m == NORM_CENTRED ? (double)x[i][k] / H : 0.0;
        for (uint32_t k = 0; k < H; k++)
            sum += ((double)x[i][k] - mean) * ((double)x[i][k] - mean);
        const double inv =
            1.0 / sqrt(sum / (m == NORM_COUNT_LESS_ONE ? H - 1 : H) + (m == NORM_NO_EPS ? 0.0 : (double)eps));
        for (uint32_t k = 0; k < H; k++) {
            const double want = ((double)x[i][k] - mean) * inv * (double)gain[m == NORM_SHIFTED_GAIN ? (k + 1) % H : k];
            keep_worst(&worst, fabs((double)out->f32[i * H + k] - want) / (fabs(want) + 1e-3));
        }
    }
    rig->ops->acts_free(d, out);
    rig->ops->dev_close(d);
    return worst;
}

static void norm_is_the_root_mean_square_norm(void **state)
{
    (void)state;
    const double bound = 1e-6; /* a few roundings of 6e-8 */
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        EXPECT_BELOW(norm_error(&rig, 1.0f, NORM_RIGHT), bound);
        EXPECT_BELOW(norm_error(&rig, 1e-3f, NORM_RIGHT), bound);
        EXPECT_BELOW(norm_error(&rig, 1e5f, NORM_RIGHT), bound);
        EXPECT_MISS(norm_error(&rig, 1e-3f, NORM_NO_EPS), bound);
        EXPECT_MISS(norm_error(&rig, 1.0f, NORM_COUNT_LESS_ONE), bound);
        EXPECT_MISS(norm_error(&rig, 1.0f, NORM_SHIFTED_GAIN), bound);
        EXPECT_MISS(norm_error(&rig, 1.0f, NORM_CENTRED), bound);
    }
}

/* ---- project with a norm behind ---------------------------------------------------------------------------------- */

enum post_mistake { POST_RIGHT, POST_NOT_ADDED, POST_NORM_OF_SUM, POST_NO_NORM };

static double post_error(struct world *w, const struct matrix *m, enum post_mistake mistake)
{
    float x[T][F], was[T][F], scratch[T][F], gain[F];
    const float eps = 1e-6f;
    double worst = 0.0;
    fill_noise(gain, F, 5, 1.0f);
    fill_noise(x[0], (size_t)T * F, 6, 1.0f);
    memcpy(was, x, sizeof x);
    w->rig.ops->project(w->d, &(struct batch){.n_rows = T},
        &(struct project_args){
            .in = w->in, .w = &m->w, .post_gain = gain, .post_eps = eps, .scratch = scratch[0], .x = x[0]});
    for (uint32_t i = 0; i < T; i++) {
        double y[F], sum = 0.0;
        for (uint32_t o = 0; o < F; o++) {
            y[o] = row_dot(m, 0, o, w->x[i]) + (mistake == POST_NORM_OF_SUM ? (double)was[i][o] : 0.0);
            sum += y[o] * y[o];
        }
        const double inv = mistake == POST_NO_NORM ? 1.0 : 1.0 / sqrt(sum / F + (double)eps);
        for (uint32_t o = 0; o < F; o++) {
            const double want = y[o] * inv * (double)gain[o] +
                                (mistake == POST_NOT_ADDED || mistake == POST_NORM_OF_SUM ? 0.0 : (double)was[i][o]);
            keep_worst(&worst, fabs((double)x[i][o] - want) / (fabs(want) + 1.0));
        }
    }
    return worst;
}

static void project_adds_its_normed_output_to_the_stream(void **state)
{
    (void)state;
    const double bound = 3e-6;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct world w;
        struct matrix m;
        world_init(&w, &rig, 20);
        matrix_make(&m, &rig, w.d, DTYPE_F32, 1, F, H, 21, true);
        EXPECT_BELOW(post_error(&w, &m, POST_RIGHT), bound);
        EXPECT_MISS(post_error(&w, &m, POST_NOT_ADDED), bound);
        EXPECT_MISS(post_error(&w, &m, POST_NORM_OF_SUM), bound);
        EXPECT_MISS(post_error(&w, &m, POST_NO_NORM), bound);
        matrix_drop(&m, &rig, w.d);
        world_fini(&w);
    }
}

/* ---- gate and up ------------------------------------------------------------------------------------------------ */

enum glu_mistake { GLU_RIGHT, GLU_SWAPPED, GLU_OTHER_KIND, GLU_ERF, GLU_NO_UP };

static double glu_of(enum glu kind, double x, enum glu_mistake m)
{
    if (m == GLU_ERF)
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    if ((kind == GLU_SILU) != (m == GLU_OTHER_KIND))
        return x / (1.0 + exp(-x));
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double glu_error(
    struct world *w, const struct matrix *g, const struct matrix *u, enum glu kind, enum glu_mistake m)
{
    float scratch[T][2 * F];
    double worst = 0.0;
    struct acts *out = acts_make(&w->rig, w->d, T, F, ACT_F32);
    w->rig.ops->gate_up(w->d, &(struct batch){.n_rows = T},
        &(struct gate_up_args){
            .in = w->in, .gate = &g->w, .up = &u->w, .glu = kind, .scratch = scratch[0], .forms = ACT_F32, .out = out});
    for (uint32_t i = 0; i < T; i++)
        for (uint32_t o = 0; o < F; o++) {
            const double a = row_dot(g, 0, o, w->x[i]), b = row_dot(u, 0, o, w->x[i]);
            double want = glu_of(kind, m == GLU_SWAPPED ? b : a, m) * (m == GLU_SWAPPED ? a : b);
            if (m == GLU_NO_UP)
                want = glu_of(kind, a, m);
            keep_worst(&worst, fabs((double)out->f32[i * F + o] - want) / ((1.0 + fabs(a)) * (1.0 + fabs(b))));
        }
    w->rig.ops->acts_free(w->d, out);
    return worst;
}

static void gate_up_is_the_gated_unit(void **state)
{
    (void)state;
    const double bound = 2e-6;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct world w;
        struct matrix g, u;
        world_init(&w, &rig, 30);
        matrix_make(&g, &rig, w.d, DTYPE_F32, 1, F, H, 31, true);
        matrix_make(&u, &rig, w.d, DTYPE_F16, 1, F, H, 32, false);
        for (enum glu kind = GLU_SILU; kind <= GLU_GELU; kind++) {
            EXPECT_BELOW(glu_error(&w, &g, &u, kind, GLU_RIGHT), bound);
            EXPECT_MISS(glu_error(&w, &g, &u, kind, GLU_SWAPPED), bound);
            EXPECT_MISS(glu_error(&w, &g, &u, kind, GLU_OTHER_KIND), bound);
            EXPECT_MISS(glu_error(&w, &g, &u, kind, GLU_NO_UP), bound);
        }
        EXPECT_MISS(glu_error(&w, &g, &u, GLU_GELU, GLU_ERF), bound);
        matrix_drop(&g, &rig, w.d);
        matrix_drop(&u, &rig, w.d);
        world_fini(&w);
    }
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

enum cap_mistake { CAP_RIGHT, CAP_NONE, CAP_BEFORE_SCALE, CAP_CLAMPED };

static double logits_error(struct world *w, const struct matrix *m, float scale, float cap, enum cap_mistake mistake)
{
    const uint32_t n = m->w.n_out;
    float *out = room(sizeof(float) * T * n);
    double worst = 0.0;
    w->rig.ops->logits(
        w->d, &(struct logits_args){.in = w->in, .n_rows = T, .head = &m->w, .scale = scale, .cap = cap, .out = out});
    for (uint32_t i = 0; i < T; i++)
        for (uint32_t o = 0; o < n; o++) {
            const double y = row_dot(m, 0, o, w->x[i]), s = y * (double)scale, c = (double)cap;
            double want = c > 0 && mistake != CAP_NONE ? c * tanh(s / c) : s;
            if (mistake == CAP_BEFORE_SCALE)
                want = c * tanh(y / c) * (double)scale;
            if (mistake == CAP_CLAMPED)
                want = s > c ? c : s < -c ? -c : s;
            keep_worst(&worst, fabs((double)out[(size_t)i * n + o] - want) / (1.0 + fabs(s)));
        }
    mem_free(out);
    return worst;
}

static void logits_are_scaled_then_capped(void **state)
{
    (void)state;
    const double bound = 3e-6;
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct world w;
        struct matrix m;
        world_init(&w, &rig, 40);
        matrix_make(&m, &rig, w.d, DTYPE_F32, 1, 300, H, 41, false);
        EXPECT_BELOW(logits_error(&w, &m, 1.0f, 0.0f, CAP_RIGHT), bound);
        EXPECT_BELOW(logits_error(&w, &m, 0.25f, 0.0f, CAP_RIGHT), bound);
        EXPECT_BELOW(logits_error(&w, &m, 0.5f, 3.0f, CAP_RIGHT), bound);
        EXPECT_MISS(logits_error(&w, &m, 0.5f, 3.0f, CAP_NONE), bound);
        EXPECT_MISS(logits_error(&w, &m, 0.5f, 3.0f, CAP_BEFORE_SCALE), bound);
        EXPECT_MISS(logits_error(&w, &m, 0.5f, 3.0f, CAP_CLAMPED), bound);
        matrix_drop(&m, &rig, w.d);
        world_fini(&w);
    }
}

static void argmax_is_the_lowest_id_of_the_largest_and_ignores_nan(void **state)
{
    (void)state;
    const float x[6][5] = {{1, 3, 3, 2, 3}, {NAN, -5, -4, NAN, -9}, {NAN, NAN, NAN, NAN, NAN},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0, -0.0f, 0, 0, 0}, {1, 2, INFINITY, NAN, INFINITY}};
    static const uint32_t want[6] = {1, 2, UINT32_MAX, 0, 0, 2};
    struct rig rig;
    for (uint32_t at = 0; rig_next(&rig, &at);) {
        struct dev *d = rig_open(&rig, 3, 6);
        uint32_t out[6];
        rig.ops->argmax(d, &(struct argmax_args){.x = x[0], .n_rows = 6, .n = 5, .out = out});
        assert_memory_equal(out, want, sizeof out);
        rig.ops->dev_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_scaled_row_of_the_table),
        cmocka_unit_test(norm_is_the_root_mean_square_norm),
        cmocka_unit_test(project_adds_its_normed_output_to_the_stream),
        cmocka_unit_test(gate_up_is_the_gated_unit),
        cmocka_unit_test(logits_are_scaled_then_capped),
        cmocka_unit_test(argmax_is_the_lowest_id_of_the_largest_and_ignores_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
