/* The elementary functions of inference, ours: libm's differ between versions and machines, and a last bit that differs
 * changes a sampled token. Each is a fixed sequence of IEEE operations without fused multiply-add, so every compiler
 * gives the same bits. Vector kernels repeat the same polynomials lane by lane.
 *
 * f_* are single precision for activations, within about 2 ulp over the range that matters. d_* are double precision,
 * for tables made once at load (rope angles), within about 1e-15.
 *
 * Threads: pure functions. */
#ifndef TENSOR_FMATH_H
#define TENSOR_FMATH_H

#include <stddef.h>

float f_exp(float x);                                  /* 0 below -87.3, infinity above 88.7, NaN for NaN */
void f_exp_many(const float *x, float *out, size_t n); /* the same bits for each; in place is fine */
float f_tanh(float x);                                 /* odd; absolute error below 2e-7 */
float f_silu(float x);                                 /* x / (1 + exp(-x)) */
float f_gelu(float x);                                 /* x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) */
float f_softcap(float x, float cap);                   /* cap * tanh(x / cap) */

double d_exp(double x);                                    /* |x| < 700 */
double d_log(double x);                                    /* x > 0 and finite */
double d_pow(double x, double y);                          /* x > 0 */
void d_sincos(double x, double *sin_out, double *cos_out); /* |x| up to a few million */

#endif
