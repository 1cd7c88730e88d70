/* Rejection sampling with the residual distribution; see verify.h. */
#include "sample/verify.h"

uint32_t sample_draw(const float *probs, uint32_t n, double u)
{
    double total = 0, sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (double)probs[i];
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)probs[i];
        if (sum > u * total)
            return i;
        last = probs[i] > 0 ? i : last;
    }
    return last;
}

static double left_of(const float *p, const float *q, uint32_t i)
{
    return MAX((double)p[i] - (double)q[i], 0.0);
}

/* Where p and q are equal but for rounding there is next to nothing left over, and next to no refusal: any token of p
 * will do then. */
static uint32_t draw_residual(const float *p, const float *q, uint32_t n, double u)
{
    double total = 0, sum = 0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < n; i++)
        total += left_of(p, q, i);
    if (!(total > 0))
        return sample_draw(p, n, u);
    for (uint32_t i = 0; i < n; i++) {
        const double left = left_of(p, q, i);
        sum += left;
        if (sum > u * total)
            return i;
        last = left > 0 ? i : last;
    }
    return last;
}

uint32_t sample_verify(const float *p, const float *q, uint32_t n, uint32_t guess, struct rng_key key, bool *kept)
{
    key.purpose = RNG_ACCEPT;
    *kept = guess < n && rng_f64(key) * (double)q[guess] < (double)p[guess];
    if (*kept)
        return guess;
    key.purpose = RNG_RESIDUAL;
    return draw_residual(p, q, n, rng_f64(key));
}
