/* The search for scales behind the quantisers that have freedom in it. Two forms: affine (a scale and a min per
 * sub-block, q from 0 up) and signed (a scale alone, v on both sides of zero). Both minimise the same error,
 *
 *     sum over elements of w * (x' - x)^2,   w = rms of the sub-block + |x|,
 *
 * where x' is what the reader will compute. The weight says that large weights of a trained model matter more than
 * small ones, though not in proportion to their square.
 *
 * Three steps, each of which can only lower the error of the one before:
 *   1. Each sub-block alone, with real scales: several grids are laid over its range, the elements rounded to them, and
 *      the scale (and min) solved by least squares for the integers so found; the best is kept.
 *   2. The real scales are rounded to the small integers sc (and mn) over a common f16 scale; then each
 *      sub-block tries the neighbouring integers.
 *   3. The common scales are solved by least squares for all integers at once, rounded to f16, and step 2's
 *      neighbour search runs again.
 *
 * Nearly all the time goes into passes over one sub-block, so those are written in vectors of four floats (a compiler
 * extension of gcc and clang, the same on every processor). Each lane sums its own elements and the lanes are added in
 * a fixed order, so the result is the same everywhere. Values below FIT_TINY are zero: ten thousand times less than the
 * smallest f16 scale can express. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <math.h>
#include <string.h>

#define FIT_TINY   0x1p-40f
#define SUB_MAX    32
#define SUBS_MAX   16
#define GRID_STEPS 10 /* grids tried to either side of the plain one */
#define REFITS     2  /* repetitions of step 3; a third finds nothing on trained weights */

#define LANES 4
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_mask __attribute__((vector_size(16)));

static inline vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vec vec_all(float x)
{
    return (vec){x, x, x, x};
}

static inline vec vec_pick(vec_mask mask, vec yes, vec no)
{
    return (vec)((mask & (vec_mask)yes) | (~mask & (vec_mask)no));
}

/* The nearest integer within lo..hi, by the same addition as fit_round. */
static inline vec vec_round(vec v, vec lo, vec hi)
{
    const vec magic = vec_all(0x1.8p23f);
    v = vec_pick(v > lo, v, lo);
    v = vec_pick(v < hi, v, hi);
    return (v + magic) - magic;
}

static inline float vec_sum(vec v)
{
    return (v[0] + v[1]) + (v[2] + v[3]);
}

/* Elements of one sub-block with their weights. */
struct sub {
    const float *x, *w;
    int n; /* a multiple of LANES, at most SUB_MAX */
};

/* Sub-block number j of a block. */
static struct sub sub_of(const float *x, const float *w, int j, int n)
{
    const size_t at = (size_t)j * (size_t)n;
    return (struct sub){x + at, w + at, n};
}

static void weigh(const float *x, int n, float *w)
{
    vec sum = vec_all(0.0f);
    for (int i = 0; i < n; i += LANES)
        sum += vec_load(x + i) * vec_load(x + i);
    const float rms = sqrtf(vec_sum(sum) / (float)n);
    for (int i = 0; i < n; i++)
        w[i] = rms + fabsf(x[i]);
}

/* Affine. */

/* Round to the grid (x - lo) * inverse and solve x = scale * q - min for the integers found. False when the integers
 * determine no positive scale. */
static bool affine_solve(struct sub s, float lo, float inverse, int q_max, float *scale, float *min)
{
    const vec zero = vec_all(0.0f), top = vec_all((float)q_max);
    vec vw = zero, vx = zero, vq = zero, vqq = zero, vxq = zero;
    for (int i = 0; i < s.n; i += LANES) {
        const vec x = vec_load(s.x + i), w = vec_load(s.w + i);
        const vec q = vec_round((x - lo) * inverse, zero, top);
        const vec wq = w * q;
        vw += w;
        vx += w * x;
        vq += wq;
        vqq += wq * q;
        vxq += wq * x;
    }
    const float sw = vec_sum(vw), sx = vec_sum(vx), sq = vec_sum(vq), sqq = vec_sum(vqq), sxq = vec_sum(vxq);
    const float det = sw * sqq - sq * sq;
    if (!(det > 0.0f))
        return false;
    *scale = (sw * sxq - sx * sq) / det;
    *min = (sq * sxq - sqq * sx) / det;
    if (!(*min > 0.0f)) { /* a min cannot be negative: through the origin then */
        *min = 0.0f;
        *scale = sxq / sqq;
    }
    return *scale > 0.0f && *scale <= F16_MAX && *min <= F16_MAX;
}

static inline float inverse_or_zero(float scale)
{
    return scale != 0.0f ? 1.0f / scale : 0.0f;
}

/* The error of a sub-block read with these scales, its elements rounded to the nearest integers. */
static float affine_error(struct sub s, float scale, float min, int q_max)
{
    const vec zero = vec_all(0.0f), top = vec_all((float)q_max);
    const float inverse = inverse_or_zero(scale);
    vec sum = zero;
    for (int i = 0; i < s.n; i += LANES) {
        const vec x = vec_load(s.x + i);
        const vec r = vec_round((x + min) * inverse, zero, top) * scale - min - x;
        sum += vec_load(s.w + i) * r * r;
    }
    return vec_sum(sum);
}

/* The integers that affine_error had in mind. */
static void affine_store(struct sub s, float scale, float min, int q_max, uint8_t *q)
{
    const float inverse = inverse_or_zero(scale);
    for (int i = 0; i < s.n; i++)
        q[i] = (uint8_t)fit_round((s.x[i] + min) * inverse, 0.0f, (float)q_max);
}

static void affine_fit_sub(struct sub s, int q_max, float *scale, float *min)
{
    float lo = 0.0f, hi = s.x[0];
    for (int i = 0; i < s.n; i++) {
        lo = s.x[i] < lo ? s.x[i] : lo;
        hi = s.x[i] > hi ? s.x[i] : hi;
    }
    *min = -lo;
    *scale = 0.0f;
    if (hi - lo < FIT_TINY)
        return;
    *scale = (hi - lo) / (float)q_max;
    float best = affine_error(s, *scale, *min, q_max);
    for (int step = -GRID_STEPS; step <= GRID_STEPS; step++) {
        const float inverse = ((float)q_max + 0.1f * (float)step) / (hi - lo);
        float sc, mn;
        if (!affine_solve(s, lo, inverse, q_max, &sc, &mn))
            continue;
        const float err = affine_error(s, sc, mn, q_max);
        if (err < best) {
            best = err;
            *scale = sc;
            *min = mn;
        }
    }
}

/* The integer of a real scale over the common one. */
static int scale_index(float scale, float common, int lo, int hi)
{
    return common == 0.0f ? 0 : fit_round(scale / common, (float)lo, (float)hi);
}

/* Choose among the neighbours of sc and mn in every sub-block and round the elements. Returns the error of the block.
 */
static float affine_round_block(
    const struct affine_shape *shape, const float *x, const float *w, struct affine_block *b)
{
    const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    const int n = shape->sub_elems;
    float total = 0.0f;
    for (int j = 0; j * n < QK_K; j++) {
        const struct sub s = sub_of(x, w, j, n);
        const int sc0 = b->sc[j], mn0 = b->mn[j];
        float best = affine_error(s, d * (float)sc0, dmin * (float)mn0, shape->q_max);
        for (int step = 0; step < 9; step++) {
            const int sc = sc0 + step / 3 - 1, mn = mn0 + step % 3 - 1;
            if (sc < 0 || sc > shape->sc_max || mn < 0 || mn > shape->sc_max || step == 4)
                continue;
            const float err = affine_error(s, d * (float)sc, dmin * (float)mn, shape->q_max);
            if (err < best) {
                best = err;
                b->sc[j] = (uint8_t)sc;
                b->mn[j] = (uint8_t)mn;
            }
        }
        affine_store(s, d * (float)b->sc[j], dmin * (float)b->mn[j], shape->q_max, b->q + (s.x - x));
        total += best;
    }
    return total;
}

/* Solve d and dmin for the integers of the block. False when they are not determined or not storable. */
static bool affine_refit(const struct affine_shape *s, const float *x, const float *w, struct affine_block *b)
{
    double saa = 0, sab = 0, sbb = 0, sax = 0, sbx = 0;
    for (int k = 0; k < QK_K; k++) {
        const int j = k / s->sub_elems;
        const double u = b->sc[j] * b->q[k], v = b->mn[j], wk = w[k], xk = x[k];
        saa += wk * u * u;
        sab += wk * u * v;
        sbb += wk * v * v;
        sax += wk * u * xk;
        sbx += wk * v * xk;
    }
    const double det = saa * sbb - sab * sab;
    double d, dmin;
    if (sbb == 0 && saa > 0) {
        d = sax / saa;
        dmin = f16_to_f32(b->dmin);
    } else if (det > 0) {
        d = (sax * sbb - sab * sbx) / det;
        dmin = (sab * sax - saa * sbx) / det;
    } else
        return false;
    if (!(d > 0 && d <= F16_MAX && dmin >= 0 && dmin <= F16_MAX))
        return false;
    b->d = f16_from_f32((float)d);
    b->dmin = f16_from_f32((float)dmin);
    return true;
}

void fit_affine_block(const struct affine_shape *s, const float *x, struct affine_block *out)
{
    const int n = s->sub_elems, n_sub = QK_K / n;
    float w[QK_K] = {0}, scale[SUBS_MAX], min[SUBS_MAX], scale_max = 0.0f, min_max = 0.0f;
    for (int j = 0; j < n_sub; j++) {
        weigh(x + (size_t)j * (size_t)n, n, w + (size_t)j * (size_t)n);
        affine_fit_sub(sub_of(x, w, j, n), s->q_max, &scale[j], &min[j]);
        scale_max = scale[j] > scale_max ? scale[j] : scale_max;
        min_max = min[j] > min_max ? min[j] : min_max;
    }
    memset(out, 0, sizeof *out);
    out->d = f16_from_f32(scale_max / (float)s->sc_max);
    out->dmin = f16_from_f32(min_max / (float)s->sc_max);
    for (int j = 0; j < n_sub; j++) {
        out->sc[j] = (uint8_t)scale_index(scale[j], f16_to_f32(out->d), 0, s->sc_max);
        out->mn[j] = (uint8_t)scale_index(min[j], f16_to_f32(out->dmin), 0, s->sc_max);
    }
    float best = affine_round_block(s, x, w, out);
    struct affine_block next = *out;
    for (int i = 0; i < REFITS && affine_refit(s, x, w, &next); i++) {
        const float err = affine_round_block(s, x, w, &next);
        if (!(err < best))
            break;
        best = err;
        *out = next;
    }
}

/* Signed. */

/* A shape made ready for the passes: its list of values, when it has gaps, as a ladder in which v climbs a step for
 * every midpoint passed. Values and midpoints are exact in f32. */
struct signed_grid {
    vec lo, hi;
    int n_steps; /* 0 = every integer from lo to hi */
    float middle[15], step[15];
};

static void signed_grid_init(struct signed_grid *g, const struct signed_shape *shape)
{
    *g = (struct signed_grid){.lo = vec_all((float)shape->v_min), .hi = vec_all((float)shape->v_max)};
    if (shape->values == NULL)
        return;
    g->n_steps = 15;
    for (int j = 0; j < 15; j++) {
        const float below = (float)shape->values[j], above = (float)shape->values[j + 1];
        g->middle[j] = 0.5f * (below + above);
        g->step[j] = above - below;
    }
}

/* The allowed v nearest to each lane of t. */
static inline vec signed_nearest(const struct signed_grid *g, vec t)
{
    if (g->n_steps == 0)
        return vec_round(t, g->lo, g->hi);
    vec v = g->lo;
    for (int j = 0; j < 15; j++)
        v += (vec)((t > vec_all(g->middle[j])) & (vec_mask)vec_all(g->step[j]));
    return v;
}

static float signed_error(const struct signed_grid *g, struct sub s, float scale)
{
    const float inverse = inverse_or_zero(scale);
    vec sum = vec_all(0.0f);
    for (int i = 0; i < s.n; i += LANES) {
        const vec x = vec_load(s.x + i);
        const vec r = signed_nearest(g, x * inverse) * scale - x;
        sum += vec_load(s.w + i) * r * r;
    }
    return vec_sum(sum);
}

static void signed_store(const struct signed_grid *g, struct sub s, float scale, int8_t *v)
{
    const float inverse = inverse_or_zero(scale);
    for (int i = 0; i < s.n; i += LANES) {
        const vec t = signed_nearest(g, vec_load(s.x + i) * inverse);
        for (int k = 0; k < LANES; k++)
            v[i + k] = (int8_t)t[k];
    }
}

/* The best scale of x = scale * v by least squares, over grids that put the element of largest size near either end.
 * The gain of a solved scale over zero is (sum wxv)^2 / (sum wvv), so errors need not be summed. */
static float signed_fit_sub(const struct signed_grid *g, struct sub s)
{
    float max = s.x[0];
    for (int i = 1; i < s.n; i++)
        max = fabsf(s.x[i]) > fabsf(max) ? s.x[i] : max;
    if (fabsf(max) < FIT_TINY)
        return 0.0f;
    const float step = g->n_steps > 0 ? 1.0f : 0.1f; /* lists span a range ten times as wide */
    float best = 0.0f, scale = 0.0f;
    for (int k = 0; k < 2 * (2 * GRID_STEPS + 1); k++) {
        const int i_step = k / 2 - GRID_STEPS;
        const float end = k % 2 ? g->hi[0] : g->lo[0];
        const float inverse = (end + step * (float)i_step) / max;
        vec vxv = vec_all(0.0f), vvv = vec_all(0.0f);
        for (int i = 0; i < s.n; i += LANES) {
            const vec x = vec_load(s.x + i);
            const vec v = signed_nearest(g, x * inverse);
            const vec wv = vec_load(s.w + i) * v;
            vxv += wv * x;
            vvv += wv * v;
        }
        const float sxv = vec_sum(vxv), svv = vec_sum(vvv);
        if (svv > 0.0f && sxv * sxv > best * svv && fabsf(sxv / svv) <= F16_MAX) {
            best = sxv * sxv / svv;
            scale = sxv / svv;
        }
    }
    return scale;
}

/* As affine_round_block. A block of one sub-block has no sc to choose. */
static float signed_round_block(const struct signed_shape *shape, const struct signed_grid *g, const float *x,
    const float *w, struct signed_block *b)
{
    const float d = f16_to_f32(b->d);
    const int n = shape->sub_elems, reach = shape->n_elems > n ? 1 : 0;
    float total = 0.0f;
    for (int j = 0; j * n < shape->n_elems; j++) {
        const struct sub s = sub_of(x, w, j, n);
        const int sc0 = (int)b->sc[j];
        float best = signed_error(g, s, d * (float)sc0);
        for (int sc = sc0 - reach; sc <= sc0 + reach; sc += 2) {
            if (reach == 0 || sc < -shape->sc_max || sc >= shape->sc_max)
                continue;
            const float err = signed_error(g, s, d * (float)sc);
            if (err < best) {
                best = err;
                b->sc[j] = (int8_t)sc;
            }
        }
        signed_store(g, s, d * (float)b->sc[j], b->v + (s.x - x));
        total += best;
    }
    return total;
}

static bool signed_refit(const struct signed_shape *s, const float *x, const float *w, struct signed_block *b)
{
    double saa = 0, sax = 0;
    for (int k = 0; k < s->n_elems; k++) {
        const int j = k / s->sub_elems;
        const double u = b->sc[j] * b->v[k], wk = w[k], xk = x[k];
        saa += wk * u * u;
        sax += wk * u * xk;
    }
    if (!(saa > 0 && fabs(sax / saa) <= F16_MAX))
        return false;
    b->d = f16_from_f32((float)(sax / saa));
    return true;
}

void fit_signed_block(const struct signed_shape *s, const float *x, struct signed_block *out)
{
    const int n = s->sub_elems, n_sub = s->n_elems / n;
    float w[QK_K] = {0}, scale[SUBS_MAX], top = 0.0f;
    struct signed_grid g;
    signed_grid_init(&g, s);
    for (int j = 0; j < n_sub; j++) {
        weigh(x + (size_t)j * (size_t)n, n, w + (size_t)j * (size_t)n);
        scale[j] = signed_fit_sub(&g, sub_of(x, w, j, n));
        top = fabsf(scale[j]) > fabsf(top) ? scale[j] : top;
    }
    memset(out, 0, sizeof *out);
    if (n_sub == 1) {
        out->d = f16_from_f32(top);
        out->sc[0] = 1;
    } else { /* the range of sc reaches one further below zero, so the largest scale goes there */
        out->d = f16_from_f32(top / (float)-s->sc_max);
        for (int j = 0; j < n_sub; j++)
            out->sc[j] = (int8_t)scale_index(scale[j], f16_to_f32(out->d), -s->sc_max, s->sc_max - 1);
    }
    float best = signed_round_block(s, &g, x, w, out);
    struct signed_block next = *out;
    for (int i = 0; i < REFITS && signed_refit(s, x, w, &next); i++) {
        const float err = signed_round_block(s, &g, x, w, &next);
        if (!(err < best))
            break;
        best = err;
        *out = next;
    }
}
