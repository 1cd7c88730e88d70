/* What a step will take. The model is ns = base + row x rows + row_context x (sum over rows of their context), with
 * coefficients that are never negative. Those are the parts that do not shrink with the batch (weights read, kernels
 * launched), the products, and attention.
 *
 * Samples are not kept one by one, nor forgotten by age: an hour of decoding at one size would wash out all that is
 * known about prompts. Steps are sorted into classes, half octaves of rows by two octaves of mean context; a class
 * keeps running means over its last 32 samples or so, with samples above three times the mean cut down to that, so that
 * one hiccup moves nothing and a machine that has really become slower is believed within a few steps. The fit is a
 * least squares fit of the relative error over the means: since time is linear in what is averaged, means are as good
 * as samples. All subsets of the coefficients are tried, and the best one without negative numbers wins.
 *
 * A real machine is not linear (a product of 9 rows may cost what 16 do). So a prediction is corrected by what the
 * class it falls into has measured; and rows beyond twice the largest class measured are not believed at all. */
#include "base/limits.h"
#include "sched/sched_int.h"

#include <math.h>

#define CLASS_SAMPLES_MAX 32 /* the window of the running means */
#define OUTLIER_FACTOR    3.0
#define TRUSTED_SAMPLES   3 /* of a class, before it corrects the fit */
#define STEER_SHARE       0.25
#define STEER_MAX         2.0
#define HICCUP_FACTOR     1.25 /* over the median of the newest steps: not believed */
#define REFIT_EVERY       8    /* samples, when they tell nothing new */
#define ROWS_EXACT        0.05 /* of a row, when rows for a target are looked for */
#define N_COEFFICIENTS    3

static uint32_t class_of(double rows, double row_context)
{
    const double mean = row_context / rows;
    const int r = (int)(2.0 * log2(rows)), k = mean < 1.0 ? 0 : (int)(0.5 * log2(mean));
    const uint32_t i_rows = (uint32_t)MAX(0, MIN(r, COST_ROW_CLASSES - 1));
    const uint32_t i_context = (uint32_t)MAX(0, MIN(k, COST_CONTEXT_CLASSES - 1));
    return i_rows * COST_CONTEXT_CLASSES + i_context;
}

/* ---- the fit ---- */

struct normal {
    double m[N_COEFFICIENTS][N_COEFFICIENTS], v[N_COEFFICIENTS], total;
};

/* Solve for the coefficients in `set`; false when they cannot be told apart or one is negative. */
static bool solve(const struct normal *n, unsigned set, double x[N_COEFFICIENTS], double *residual)
{
    int idx[N_COEFFICIENTS] = {0}, k = 0;
    for (int i = 0; i < N_COEFFICIENTS; i++) {
        x[i] = 0;
        if ((set >> i & 1u) != 0)
            idx[k++] = i;
    }
    double a[N_COEFFICIENTS][N_COEFFICIENTS + 1], scale[N_COEFFICIENTS];
    for (int i = 0; i < k; i++) {
        scale[i] = sqrt(n->m[idx[i]][idx[i]]);
        if (!(scale[i] > 0))
            return false;
    }
    for (int i = 0; i < k; i++) {
        for (int j = 0; j < k; j++)
            a[i][j] = n->m[idx[i]][idx[j]] / (scale[i] * scale[j]);
        a[i][k] = n->v[idx[i]] / scale[i];
    }
    for (int i = 0; i < k; i++) { /* symmetric and scaled: the diagonal is pivot enough */
        if (a[i][i] < 1e-6)
            return false;
        for (int r = i + 1; r < k; r++) {
            const double f = a[r][i] / a[i][i];
            for (int c = i; c <= k; c++)
                a[r][c] -= f * a[i][c];
        }
    }
    *residual = n->total;
    for (int i = k - 1; i >= 0; i--) {
        double y = a[i][k];
        for (int c = i + 1; c < k; c++)
            y -= a[i][c] * x[idx[c]] * scale[c];
        x[idx[i]] = y / a[i][i] / scale[i];
        if (!(x[idx[i]] >= 0))
            return false;
    }
    for (int i = 0; i < k; i++)
        *residual -= x[idx[i]] * n->v[idx[i]];
    return true;
}

static void refit(struct cost *c)
{
    struct normal n = {0};
    c->rows_seen = 0;
    for (uint32_t i = 0; i < c->n_used; i++) {
        const struct cost_class *k = &c->classes[c->used[i]];
        const double x[N_COEFFICIENTS] = {1.0 / k->ns, k->rows / k->ns, k->row_context / k->ns};
        for (int a = 0; a < N_COEFFICIENTS; a++) {
            for (int b = 0; b < N_COEFFICIENTS; b++)
                n.m[a][b] += k->n * x[a] * x[b];
            n.v[a] += k->n * x[a];
        }
        n.total += k->n;
        c->rows_seen = MAX(c->rows_seen, k->rows);
    }
    /* rows first: where a subset without them explains as much, the careful reading is that rows cost */
    static const unsigned sets[] = {2, 3, 6, 7, 1, 4, 5};
    double best = INFINITY;
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        double x[N_COEFFICIENTS], residual;
        if (!solve(&n, sets[i], x, &residual) || residual >= best - 1e-6 * n.total)
            continue;
        best = residual;
        c->fit = (struct step_cost){.base_ns = x[0], .row_ns = x[1], .row_context_ns = x[2], .fitted = true};
    }
}

void cost_observe(struct cost *c, double rows, double row_context, double ns)
{
    if (!(rows >= 1) || !(ns > 0))
        return;
    const uint32_t at = class_of(rows, row_context);
    struct cost_class *k = &c->classes[at];
    if (k->n == 0)
        c->used[c->n_used++] = (uint16_t)at;
    else if (k->n >= TRUSTED_SAMPLES)
        ns = MIN(ns, OUTLIER_FACTOR * k->ns);
    k->n = MIN(k->n + 1, CLASS_SAMPLES_MAX);
    const double part = 1.0 / k->n;
    k->rows += (rows - k->rows) * part;
    k->row_context += (row_context - k->row_context) * part;
    k->ns += (ns - k->ns) * part;
    const double rate = rows / ns;
    c->rows_per_ns = c->rows_per_ns == 0 ? rate : c->rows_per_ns + (rate - c->rows_per_ns) / CLASS_SAMPLES_MAX;
    c->n_samples++;
    /* a seed is better than a fit through one class */
    if (c->is_seeded && c->n_used < 2)
        return;
    if (c->is_seeded || k->n <= TRUSTED_SAMPLES || c->n_samples % REFIT_EVERY == 0)
        refit(c);
    c->is_seeded = false;
}

/* ---- its use ---- */

static double fit_ns(const struct step_cost *f, double rows, double row_context)
{
    return f->base_ns + f->row_ns * rows + f->row_context_ns * row_context;
}

double cost_predict(const struct cost *c, double rows, double row_context)
{
    const double ns = fit_ns(&c->fit, rows, row_context);
    if (rows < 1)
        return ns;
    const struct cost_class *k = &c->classes[class_of(rows, row_context)];
    const double there = fit_ns(&c->fit, k->rows, k->row_context);
    return k->n >= TRUSTED_SAMPLES && there > 0 ? ns * k->ns / there : ns;
}

static double median_ratio(const struct cost *c)
{
    const uint64_t n = MIN(c->n_ratios, (uint64_t)COST_STEER_STEPS);
    assert(n > 0);
    double sorted[COST_STEER_STEPS];
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = i;
        for (; at > 0 && sorted[at - 1] > c->ratios[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = c->ratios[i];
    }
    return (sorted[n / 2] + sorted[(n - 1) / 2]) / 2;
}

/* The newest steps say best what the next one like them will take: their ratio to the prediction, as a short running
 * mean, steers the size of chunks until the classes have learnt it. A step in which another process had the core says
 * nothing about the next, and chunks made small by it would pay for the hiccup many times over: of a step that took
 * much longer than the median of the newest no more than a little over the median counts, neither here nor in the
 * classes. A machine that has become slower is believed from the third step on. */
double cost_steer(struct cost *c, double rows, double row_context, double ns)
{
    const double predicted = cost_predict(c, rows, row_context);
    if (!c->fit.fitted || !(predicted > 0))
        return ns;
    c->ratios[c->n_ratios++ % COST_STEER_STEPS] = MIN(STEER_MAX, MAX(1 / STEER_MAX, ns / predicted));
    ns = MIN(ns, HICCUP_FACTOR * median_ratio(c) * predicted);
    const double ratio = MIN(STEER_MAX, MAX(1 / STEER_MAX, ns / predicted)), before = c->steer > 0 ? c->steer : 1;
    c->steer = before + (ratio - before) * STEER_SHARE;
    return ns;
}

uint32_t cost_rows(const struct cost *c, double rows, double row_context, uint32_t pos, double target_ns)
{
    if (!c->fit.fitted || cost_predict(c, rows, row_context) >= target_ns)
        return 0;
    const double goal = target_ns / (c->steer > 0 ? c->steer : 1);
    double most = c->is_seeded ? SCHED_ROWS_MAX : MIN((double)SCHED_ROWS_MAX, MAX(2 * c->rows_seen - rows, rows));
    double fits = 0; /* halving what is between: the prediction has steps at the borders of the classes */
    for (double r = most; most - fits > ROWS_EXACT; r = fits + (most - fits) / 2) {
        if (cost_predict(c, rows + r, row_context + r * pos + r * r / 2) <= goal)
            fits = r;
        else
            most = r;
    }
    return (uint32_t)(fits + 0.5); /* of twenty rows behind a long context one is a twentieth of the prompt's speed */
}

struct step_cost sched_cost(const struct sched *s)
{
    return s->cost.fit;
}

void sched_cost_seed(struct sched *s, struct step_cost c)
{
    if (s->cost.n_samples > 0)
        return;
    s->cost.fit = c;
    s->cost.fit.fitted = true;
    s->cost.is_seeded = true;
}
