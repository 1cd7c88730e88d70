/* Counter-based random numbers; see rng.h.
 *
 * Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) passes the usual test batteries, needs
 * two multiplies a round and no state, and is what GPU libraries use, so a CUDA kernel can draw the same bits. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

#define PHILOX_M0     0xD2511F53u
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u /* golden ratio */
#define PHILOX_W1     0xBB67AE85u /* sqrt(3) - 1 */
#define PHILOX_ROUNDS 10

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        const uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void draw(struct rng_key k, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)k.index, (uint32_t)(k.index >> 32), k.choice, (uint32_t)k.purpose};
    const uint32_t key[2] = {(uint32_t)k.seed, (uint32_t)(k.seed >> 32)};
    rng_philox(counter, key, out);
}

static uint64_t join(uint32_t lo, uint32_t hi)
{
    return (uint64_t)hi << 32 | lo;
}

uint64_t rng_u64(struct rng_key k)
{
    uint32_t w[4];
    draw(k, w);
    return join(w[0], w[1]);
}

float rng_f32(struct rng_key k)
{
    uint32_t w[4];
    draw(k, w);
    return (float)(w[0] >> 8) * 0x1p-24f;
}

double rng_f64(struct rng_key k)
{
    return (double)(rng_u64(k) >> 11) * 0x1p-53;
}

/* Natural logarithm of a normal positive x, within 1e-15 relative. x = m 2^e with m in [sqrt(1/2), sqrt(2));
 * ln m = 2 artanh s with s = (m-1)/(m+1), |s| < 0.172, whose series needs eleven terms. */
static double ln(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e += 1;
    }
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int i = 21; i >= 1; i -= 2)
        sum = sum * s2 + 1.0 / i;
    return 2 * s * sum + e * 0.6931471805599453;
}

/* Cosine of a quarter turn times (q + f - 1/2), f in [0, 1): one of four curves over [-pi/4, pi/4]. Turning the whole
 * circle by pi/4 keeps every quadrant's argument small and changes nothing for a uniform angle. */
static double cos_turn(unsigned q, double f)
{
    const double y = (f - 0.5) * 1.5707963267948966, y2 = y * y;
    double c = 0, s = 0; /* Taylor; the next term is below 1e-17 */
    for (int i = 16; i >= 2; i -= 2) {
        c = -y2 / (i * (i - 1)) * (1 + c);
        s = -y2 / (i * (i + 1)) * (1 + s);
    }
    c += 1;
    s = y * (1 + s);
    switch (q & 3) {
    case 0: return c;
    case 1: return -s;
    case 2: return -c;
    default: return s;
    }
}

/* Box-Muller with one of the pair thrown away: a stateless draw has nowhere to keep it. */
float rng_normal(struct rng_key k)
{
    uint32_t w[4];
    draw(k, w);
    const double u = (double)((join(w[0], w[1]) >> 11) + 1) * 0x1p-53; /* in (0, 1] */
    const uint64_t turn = join(w[2], w[3]);
    const double f = (double)((turn << 2) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * ln(u)) * cos_turn((unsigned)(turn >> 62), f));
}
