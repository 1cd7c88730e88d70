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
 * Sums run in a fixed order, so the result is the same everywhere. Values below FIT_TINY are zero: a million times less
 * than the smallest f16 scale can express. */
#include "tensor/float_convert.h"
#include "tensor/tensor_int.h"

#include <math.h>
#include <string.h>

#define FIT_TINY   0x1p-40f
#define SUB_MAX    32
#define SUBS_MAX   16
#define GRID_STEPS 10 /* grids tried to either side of the plain one */
#define REFITS     2  /* repetitions of step 3; a third finds nothing on trained weights */

static void weigh(const float *x, int n, float *w)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    const float rms = sqrtf(sum / (float)n);
    for (int i = 0; i < n; i++)
        w[i] = rms + fabsf(x[i]);
}

/* Affine. */

/* Round to the grid (x - lo) * inverse and solve x = scale * q - min for the integers found. False when the integers
 * determine no positive scale. */
static bool affine_solve(
    const float *x, const float *w, int n, float lo, float inverse, int q_max, float *scale, float *min)
{
    float sw = 0.0f, sx = 0.0f, sq = 0.0f, sqq = 0.0f, sxq = 0.0f;
    for (int i = 0; i < n; i++) {
        const float q = (float)fit_round((x[i] - lo) * inverse, 0.0f, (float)q_max);
        sw += w[i];
        sx += w[i] * x[i];
        sq += w[i] * q;
        sqq += w[i] * q * q;
        sxq += w[i] * x[i] * q;
    }
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

/* The error of a sub-block read with these scales, and its integers. */
static float affine_round(const float *x, const float *w, int n, float scale, float min, int q_max, uint8_t *q)
{
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    float err = 0.0f;
    for (int i = 0; i < n; i++) {
        const int qi = fit_round((x[i] + min) * inverse, 0.0f, (float)q_max);
        const float r = scale * (float)qi - min - x[i];
        err += w[i] * r * r;
        q[i] = (uint8_t)qi;
    }
    return err;
}

static void affine_fit_sub(const struct affine_shape *s, const float *x, const float *w, float *scale, float *min)
{
    float lo = 0.0f, hi = x[0];
    for (int i = 0; i < s->sub_elems; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    *min = -lo;
    *scale = 0.0f;
    if (hi - lo < FIT_TINY)
        return;
    uint8_t q[SUB_MAX];
    *scale = (hi - lo) / (float)s->q_max;
    float best = affine_round(x, w, s->sub_elems, *scale, *min, s->q_max, q);
    for (int step = -GRID_STEPS; step <= GRID_STEPS; step++) {
        const float inverse = ((float)s->q_max + 0.1f * (float)step) / (hi - lo);
        float sc, mn;
        if (!affine_solve(x, w, s->sub_elems, lo, inverse, s->q_max, &sc, &mn))
            continue;
        const float err = affine_round(x, w, s->sub_elems, sc, mn, s->q_max, q);
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
static float affine_round_block(const struct affine_shape *s, const float *x, const float *w, struct affine_block *b)
{
    const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
    float total = 0.0f;
    for (int j = 0; j * s->sub_elems < QK_K; j++) {
        const float *xs = x + j * s->sub_elems, *ws = w + j * s->sub_elems;
        uint8_t *qs = b->q + j * s->sub_elems;
        const int sc0 = b->sc[j], mn0 = b->mn[j];
        float best = affine_round(xs, ws, s->sub_elems, d * (float)sc0, dmin * (float)mn0, s->q_max, qs);
        for (int step = 0; step < 9; step++) {
            const int sc = sc0 + step / 3 - 1, mn = mn0 + step % 3 - 1;
            if (sc < 0 || sc > s->sc_max || mn < 0 || mn > s->sc_max || step == 4)
                continue;
            uint8_t q[SUB_MAX];
            const float err = affine_round(xs, ws, s->sub_elems, d * (float)sc, dmin * (float)mn, s->q_max, q);
            if (err < best) {
                best = err;
                b->sc[j] = (uint8_t)sc;
                b->mn[j] = (uint8_t)mn;
                memcpy(qs, q, (size_t)s->sub_elems);
            }
        }
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
    const int n_sub = QK_K / s->sub_elems;
    float w[QK_K], scale[SUBS_MAX], min[SUBS_MAX], scale_max = 0.0f, min_max = 0.0f;
    for (int j = 0; j < n_sub; j++) {
        weigh(x + j * s->sub_elems, s->sub_elems, w + j * s->sub_elems);
        affine_fit_sub(s, x + j * s->sub_elems, w + j * s->sub_elems, &scale[j], &min[j]);
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

/* Round every element to the allowed v nearest to x * inverse. */
static void signed_round(const struct signed_shape *s, const float *x, int n, float inverse, int8_t *v)
{
    if (s->values == NULL) {
        for (int i = 0; i < n; i++)
            v[i] = (int8_t)fit_round(x[i] * inverse, (float)s->v_min, (float)s->v_max);
        return;
    }
    for (int i = 0; i < n; i++) {
        const float t = 2.0f * x[i] * inverse; /* compared with twice the midpoints, which are integers */
        int index = 0;
        for (int j = 0; j < 15; j++)
            index += t > (float)(s->values[j] + s->values[j + 1]);
        v[i] = s->values[index];
    }
}

static float signed_error(const float *x, const float *w, int n, float scale, const int8_t *v)
{
    float err = 0.0f;
    for (int i = 0; i < n; i++) {
        const float r = scale * (float)v[i] - x[i];
        err += w[i] * r * r;
    }
    return err;
}

/* The best scale of x = scale * v by least squares, over grids that put the element of largest size near either end.
 * The gain of a solved scale over zero is (sum wxv)^2 / (sum wvv), so errors need not be summed. */
static float signed_fit_sub(const struct signed_shape *s, const float *x, const float *w)
{
    float max = x[0];
    for (int i = 1; i < s->sub_elems; i++)
        max = fabsf(x[i]) > fabsf(max) ? x[i] : max;
    if (fabsf(max) < FIT_TINY)
        return 0.0f;
    const float unit = (float)-s->v_min / 32.0f; /* steps of a 32nd of the range, 0.1 at least */
    const float step = s->values != NULL ? unit / 4.0f : 0.1f;
    int8_t v[SUB_MAX];
    float best = 0.0f, scale = 0.0f;
    for (int k = 0; k < 2 * (2 * GRID_STEPS + 1); k++) {
        const float end = (float)(k % 2 ? s->v_max : s->v_min);
        const float inverse = (end + step * (float)(k / 2 - GRID_STEPS)) / max;
        float sxv = 0.0f, svv = 0.0f;
        signed_round(s, x, s->sub_elems, inverse, v);
        for (int i = 0; i < s->sub_elems; i++) {
            sxv += w[i] * x[i] * (float)v[i];
            svv += w[i] * (float)(v[i] * v[i]);
        }
        if (svv > 0.0f && sxv * sxv > best * svv && fabsf(sxv / svv) <= F16_MAX) {
            best = sxv * sxv / svv;
            scale = sxv / svv;
        }
    }
    return scale;
}

/* As affine_round_block. A block of one sub-block has no sc to choose. */
static float signed_round_block(const struct signed_shape *s, const float *x, const float *w, struct signed_block *b)
{
    const float d = f16_to_f32(b->d);
    const int reach = s->n_elems > s->sub_elems ? 1 : 0;
    float total = 0.0f;
    for (int j = 0; j * s->sub_elems < s->n_elems; j++) {
        const float *xs = x + j * s->sub_elems, *ws = w + j * s->sub_elems;
        int8_t *vs = b->v + j * s->sub_elems;
        const int sc0 = b->sc[j];
        float best = INFINITY;
        for (int sc = sc0 - reach; sc <= sc0 + reach; sc++) {
            if (reach > 0 && (sc < -s->sc_max || sc >= s->sc_max))
                continue;
            const float scale = d * (float)sc;
            int8_t v[SUB_MAX];
            signed_round(s, xs, s->sub_elems, scale != 0.0f ? 1.0f / scale : 0.0f, v);
            const float err = signed_error(xs, ws, s->sub_elems, scale, v);
            if (err < best) {
                best = err;
                b->sc[j] = (int8_t)sc;
                memcpy(vs, v, (size_t)s->sub_elems);
            }
        }
        total += best;
    }
    return total;
}

static bool signed_refit(const struct signed_shape *s, const float *x, const float *w, struct signed_block *b)
{
    double saa = 0, sax = 0;
    for (int k = 0; k < s->n_elems; k++) {
        const double u = b->sc[k / s->sub_elems] * b->v[k], wk = w[k], xk = x[k];
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
    const int n_sub = s->n_elems / s->sub_elems;
    float w[QK_K], scale[SUBS_MAX], top = 0.0f;
    for (int j = 0; j < n_sub; j++) {
        weigh(x + j * s->sub_elems, s->sub_elems, w + j * s->sub_elems);
        scale[j] = signed_fit_sub(s, x + j * s->sub_elems, w + j * s->sub_elems);
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
    float best = signed_round_block(s, x, w, out);
    struct signed_block next = *out;
    for (int i = 0; i < REFITS && signed_refit(s, x, w, &next); i++) {
        const float err = signed_round_block(s, x, w, &next);
        if (!(err < best))
            break;
        best = err;
        *out = next;
    }
}
