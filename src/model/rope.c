/* Rope tables: cos and sin of position times frequency, for every position a sequence may have. Angles are computed in
 * double with our own functions (tensor/fmath.h), so a table is the same on every machine.
 *
 * Frequency i of a head with n rotated elements is base^(-2i/n), changed by the model's way of reaching a longer
 * context: linear    all divided by the factor llama3    low frequencies divided, high ones kept, a ramp between (or
 * divisors from the file) yarn      the same idea with the ramp over i, and attention scaled by a factor that is folded
 * into cos and sin longrope  divisors from the file: the long ones when the server's context exceeds the original one,
 * else the short ones. The choice is made once, by the context the decoder was opened with, never by a request's
 * length: otherwise cached keys would depend on what came later. */
#include "model/decoder_int.h"
#include "tensor/fmath.h"

#include <math.h>

#define PI    3.141592653589793
#define FREQS 64 /* worked out at a time */

static double llama3_freq(const struct model_rope *r, double freq)
{
    const double length = 2.0 * PI / freq, context = r->original_context;
    if (length < context / r->high_freq)
        return freq;
    if (length > context / r->low_freq)
        return freq / r->factor;
    const double keep = (context / length - r->low_freq) / (r->high_freq - r->low_freq);
    return (1.0 - keep) * freq / r->factor + keep * freq;
}

/* The (fractional) index whose wavelength makes that many turns in the original context. */
static double yarn_index(const struct model_rope *r, double turns)
{
    return r->dims * d_log(r->original_context / (turns * 2.0 * PI)) / (2.0 * d_log(r->base));
}

static double yarn_freq(const struct model_rope *r, uint32_t i, double freq)
{
    double low = floor(yarn_index(r, r->beta_fast)), high = ceil(yarn_index(r, r->beta_slow));
    low = low < 0 ? 0 : low;
    high = high > r->dims - 1 ? r->dims - 1 : high;
    if (high == low)
        high += 0.001;
    double ramp = ((double)i - low) / (high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return freq / r->factor * ramp + freq * (1.0 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * d_log(factor) + 1.0;
}

/* What cos and sin are multiplied with. */
static double amplitude(const struct model_rope *r, uint32_t context)
{
    if (r->scaling == ROPE_YARN) {
        if (r->attention_factor > 0)
            return r->attention_factor;
        if (r->mscale > 0 && r->mscale_all_dim > 0)
            return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
        return yarn_mscale(r->factor, 1.0);
    }
    if (r->scaling == ROPE_LONGROPE) {
        if (r->attention_factor > 0)
            return r->attention_factor;
        const double factor = r->factor > 1.0 ? r->factor : (double)context / r->original_context;
        return factor <= 1.0 ? 1.0 : sqrt(1.0 + d_log(factor) / d_log(r->original_context));
    }
    return 1.0;
}

static double divisor_of(const struct model_tensor *t, uint32_t i)
{
    float row[MODEL_ROPE_FACTORS_MAX];
    dtype_info(t->view.dtype)->dequant(t->view.data, row, (size_t)tensor_n_elems(&t->view));
    return row[i];
}

static double frequency(const struct model_rope *r, uint32_t i, uint32_t context)
{
    const double freq = d_pow(r->base, -2.0 * i / r->dims);
    const bool is_long = context > r->original_context;
    if (r->scaling == ROPE_LONGROPE) {
        const struct model_tensor *t = is_long ? r->freqs_long : r->freqs_short;
        if (t != NULL)
            return freq / divisor_of(t, i);
        return r->n_factors > i ? freq / (is_long ? r->long_factor[i] : r->short_factor[i]) : freq;
    }
    if (r->freqs != NULL)
        return freq / divisor_of(r->freqs, i);
    switch (r->scaling) {
    case ROPE_LINEAR: return freq / r->factor;
    case ROPE_LLAMA3: return llama3_freq(r, freq);
    case ROPE_YARN: return yarn_freq(r, i, freq);
    default: return freq;
    }
}

void rope_fill(const struct model_rope *r, bool local, uint32_t context, uint32_t first, uint32_t n, float *table)
{
    const uint32_t half = r->dims / 2;
    const double gain = local ? 1.0 : amplitude(r, context);
    for (uint32_t i0 = 0; i0 < half; i0 += FREQS) { /* frequencies once, then position by position as they lie */
        double freq[FREQS];
        const uint32_t some = MIN(half - i0, (uint32_t)FREQS);
        for (uint32_t i = 0; i < some; i++)
            freq[i] = local ? d_pow(r->base_local, -2.0 * (i0 + i) / r->dims) : frequency(r, i0 + i, context);
        for (uint32_t pos = first; pos < first + n; pos++)
            for (uint32_t i = 0; i < some; i++) {
                double s, c;
                float *to = table + ((size_t)pos * half + i0 + i) * 2;
                d_sincos((double)pos * freq[i], &s, &c);
                to[0] = (float)(c * gain);
                to[1] = (float)(s * gain);
            }
    }
}
