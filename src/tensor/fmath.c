/* Elementary functions; see fmath.h. Taylor sums are long enough that their remainder is below half an ulp on the
 * reduced range; the constants are the exact leading bits of ln 2 and pi/2, so that n * constant is exact. */
#include "tensor/fmath.h"
#include "tensor/float_convert.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static double f64_of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

float f_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.72f)
        return INFINITY;
    if (x < -87.3f)
        return 0.0f;
    /* x = n ln2 + r, |r| <= ln2/2; adding and taking away 1.5 * 2^23 rounds to the nearest integer. */
    const float shift = 12582912.0f;
    const float n = (x * 1.44269504f + shift) - shift;
    const float r = (x - n * 0.693115234375f) - n * 3.19461833e-5f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* 2^n in two factors: n may be 128, which alone has no exponent. */
    const int half = (int)n / 2;
    const float a = f32_of_bits((uint32_t)(half + 127) << 23);
    const float b = f32_of_bits((uint32_t)((int)n - half + 127) << 23);
    return p * a * b;
}

/* f_exp without branches, so that compilers make vectors of it. What is out of range is brought into it first and
 * answered at the end. */
void f_exp_many(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float v = x[i], low = v >= -87.3f ? v : -87.3f, in = low > 88.72f ? 88.72f : low;
        const float shift = 12582912.0f;
        const float whole = (in * 1.44269504f + shift) - shift;
        const float r = (in - whole * 0.693115234375f) - whole * 3.19461833e-5f;
        float p = 1.0f / 5040.0f;
        p = p * r + 1.0f / 720.0f;
        p = p * r + 1.0f / 120.0f;
        p = p * r + 1.0f / 24.0f;
        p = p * r + 1.0f / 6.0f;
        p = p * r + 0.5f;
        p = p * r + 1.0f;
        p = p * r + 1.0f;
        const int k = (int)whole, half = k / 2;
        const float a = f32_of_bits((uint32_t)(half + 127) << 23);
        const float b = f32_of_bits((uint32_t)(k - half + 127) << 23);
        float y = p * a * b;
        y = v < -87.3f ? 0.0f : y;
        y = v > 88.72f ? INFINITY : y;
        out[i] = v != v ? v : y;
    }
}

float f_tanh(float x)
{
    const float a = x < 0 ? -x : x;
    if (x != x)
        return x;
    const float t = a > 10.0f ? 1.0f : 1.0f - 2.0f / (f_exp(2.0f * a) + 1.0f);
    return x < 0 ? -t : t;
}

float f_silu(float x)
{
    return x / (1.0f + f_exp(-x));
}

float f_gelu(float x)
{
    return 0.5f * x * (1.0f + f_tanh(0.797884561f * (x + 0.044715f * x * x * x)));
}

float f_softcap(float x, float cap)
{
    return cap * f_tanh(x / cap);
}

double d_exp(double x)
{
    const double shift = 6755399441055744.0; /* 1.5 * 2^52 */
    const double n = (x * 1.4426950408889634 + shift) - shift;
    const double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    double p = 1.0 / 6227020800.0; /* 1/13! */
    for (int k = 12; k >= 0; k--) {
        static const double inverse_factorial[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720,
            1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
        p = p * r + inverse_factorial[k];
    }
    return p * f64_of_bits((uint64_t)((int64_t)n + 1023) << 52);
}

double d_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    double m = f64_of_bits((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    /* log m = 2 artanh(s), s = (m-1)/(m+1), |s| < 0.172 */
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double p = 0.0;
    for (int k = 12; k >= 0; k--)
        p = p * s2 + 1.0 / (2 * k + 1);
    return (double)e * 0.6931471805599453 + 2.0 * s * p;
}

double d_pow(double x, double y)
{
    return d_exp(y * d_log(x));
}

void d_sincos(double x, double *sin_out, double *cos_out)
{
    const double shift = 6755399441055744.0;
    const double n = (x * 0.6366197723675814 + shift) - shift;
    const double r = ((x - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a600000p-34) - n * 0x1.3198a2e037073p-69;
    const double r2 = r * r;
    double s = 1.0, c = 1.0; /* sin r = r * (1 - r2/(2*3) * (1 - r2/(4*5) * ...)), likewise the cosine */
    for (int k = 9; k >= 1; k--) {
        s = 1.0 - r2 / (double)((2 * k) * (2 * k + 1)) * s;
        c = 1.0 - r2 / (double)((2 * k - 1) * (2 * k)) * c;
    }
    s *= r;
    switch ((int64_t)n & 3) {
    case 0: *sin_out = s, *cos_out = c; break;
    case 1: *sin_out = c, *cos_out = -s; break;
    case 2: *sin_out = -s, *cos_out = -c; break;
    default: *sin_out = -c, *cos_out = s; break;
    }
}
