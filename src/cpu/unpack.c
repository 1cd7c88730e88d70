/* Weight rows of the quantised types taken apart into small integers, scales and minima per 16 elements. One function
 * per layout; the dot product that follows is one for all of them (ops_ref.c). The values s * q + m are those of the
 * format up to the rounding of s * q, which the product applies to the integer sum instead. */
#include "cpu/cpu_int.h"
#include "tensor/float_convert.h"
#include "tensor/quant.h"

typedef void unpack_fn(const void *row, uint32_t n, struct unpacked *out);

static void set_scales(struct unpacked *u, uint32_t first, uint32_t count, float scale, float min)
{
    for (uint32_t i = first; i < first + count; i++) {
        u->scale[i] = scale;
        u->min[i] = min;
    }
}

static void unpack_q4_0(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q4_0 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = (int8_t)((b->qs[i] & 15) - 8);
            u->q[k + i + QK / 2] = (int8_t)((b->qs[i] >> 4) - 8);
        }
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), 0.0f);
    }
}

static void unpack_q4_1(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q4_1 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = (int8_t)(b->qs[i] & 15);
            u->q[k + i + QK / 2] = (int8_t)(b->qs[i] >> 4);
        }
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), f16_to_f32(b->m));
    }
}

static int fifth_bit(uint32_t bits, uint32_t i)
{
    return (int)((bits >> i) & 1) << 4;
}

static void unpack_q5_0(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q5_0 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = (int8_t)(((b->qs[i] & 15) | fifth_bit(b->qh, i)) - 16);
            u->q[k + i + QK / 2] = (int8_t)(((b->qs[i] >> 4) | fifth_bit(b->qh, i + QK / 2)) - 16);
        }
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), 0.0f);
    }
}

static void unpack_q5_1(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q5_1 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = (int8_t)((b->qs[i] & 15) | fifth_bit(b->qh, i));
            u->q[k + i + QK / 2] = (int8_t)((b->qs[i] >> 4) | fifth_bit(b->qh, i + QK / 2));
        }
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), f16_to_f32(b->m));
    }
}

static void unpack_q8_0(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q8_0 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK; i++)
            u->q[k + i] = b->qs[i];
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), 0.0f);
    }
}

static void unpack_q2_k(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q2_k *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        const float d = f16_to_f32(b->d), dmin = f16_to_f32(b->dmin);
        for (uint32_t i = 0; i < QK_K; i++)
            u->q[k + i] = (int8_t)((b->qs[32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4))) & 3);
        for (uint32_t g = 0; g < QK_K / 16; g++)
            set_scales(u, k / SUB_GROUP + g, 1, d * (float)(b->scales[g] & 15), -(dmin * (float)(b->scales[g] >> 4)));
    }
}

static void unpack_q3_k(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q3_k *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (uint32_t i = 0; i < QK_K; i++) {
            const int low = (b->qs[32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4))) & 3;
            const int high = (b->hmask[i % 32] >> (i / 32)) & 1;
            u->q[k + i] = (int8_t)((low | high << 2) - 4);
        }
        for (uint32_t j = 0; j < 16; j++) {
            const int low = j < 8 ? b->scales[j] & 15 : b->scales[j - 8] >> 4;
            const int high = (b->scales[8 + j % 4] >> (2 * (j / 4))) & 3;
            set_scales(u, k / SUB_GROUP + j, 1, d * (float)((low | high << 4) - 32), 0.0f);
        }
    }
}

/* The eight six-bit (scale, min) pairs of Q4_K and Q5_K: the first four lie plainly in bytes 0-3 and 4-7, whose top two
 * bits, with the nibbles of bytes 8-11, make the last four. */
static void pair_of_k4(const uint8_t *s, uint32_t j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static void set_scales_k4(struct unpacked *u, uint32_t k, uint16_t d16, uint16_t dmin16, const uint8_t *scales)
{
    const float d = f16_to_f32(d16), dmin = f16_to_f32(dmin16);
    for (uint32_t j = 0; j < 8; j++) {
        int scale, min;
        pair_of_k4(scales, j, &scale, &min);
        set_scales(u, k / SUB_GROUP + 2 * j, 2, d * (float)scale, -(dmin * (float)min));
    }
}

static void unpack_q4_k(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q4_k *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        for (uint32_t i = 0; i < QK_K; i++)
            u->q[k + i] = (int8_t)((b->qs[32 * (i / 64) + i % 32] >> (4 * ((i / 32) % 2))) & 15);
        set_scales_k4(u, k, b->d, b->dmin, b->scales);
    }
}

static void unpack_q5_k(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q5_k *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        for (uint32_t i = 0; i < QK_K; i++) {
            const int low = (b->qs[32 * (i / 64) + i % 32] >> (4 * ((i / 32) % 2))) & 15;
            u->q[k + i] = (int8_t)(low | ((b->qh[i % 32] >> (i / 32)) & 1) << 4);
        }
        set_scales_k4(u, k, b->d, b->dmin, b->scales);
    }
}

static void unpack_q6_k(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_q6_k *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (uint32_t i = 0; i < QK_K; i++) {
            const int low = (b->ql[64 * (i / 128) + i % 64] >> (4 * ((i / 64) % 2))) & 15;
            const int high = (b->qh[32 * (i / 128) + i % 32] >> (2 * ((i / 32) % 4))) & 3;
            u->q[k + i] = (int8_t)((low | high << 4) - 32);
        }
        for (uint32_t g = 0; g < QK_K / 16; g++)
            set_scales(u, k / SUB_GROUP + g, 1, d * (float)b->scales[g], 0.0f);
    }
}

static void unpack_iq4_nl(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_iq4_nl *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = iq4_values[b->qs[i] & 15];
            u->q[k + i + QK / 2] = iq4_values[b->qs[i] >> 4];
        }
        set_scales(u, k / SUB_GROUP, 2, f16_to_f32(b->d), 0.0f);
    }
}

static void unpack_iq4_xs(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_iq4_xs *b = row;
    for (uint32_t k = 0; k < n; k += QK_K, b++) {
        const float d = f16_to_f32(b->d);
        for (uint32_t g = 0; g < QK_K / 32; g++) {
            const int low = (b->scales_l[g / 2] >> (4 * (g % 2))) & 15;
            const int high = (b->scales_h >> (2 * g)) & 3;
            for (uint32_t i = 0; i < 16; i++) {
                u->q[k + 32 * g + i] = iq4_values[b->qs[16 * g + i] & 15];
                u->q[k + 32 * g + 16 + i] = iq4_values[b->qs[16 * g + i] >> 4];
            }
            set_scales(u, k / SUB_GROUP + 2 * g, 2, d * (float)((low | high << 4) - 32), 0.0f);
        }
    }
}

static void unpack_mxfp4(const void *row, uint32_t n, struct unpacked *u)
{
    const struct block_mxfp4 *b = row;
    for (uint32_t k = 0; k < n; k += QK, b++) {
        for (uint32_t i = 0; i < QK / 2; i++) {
            u->q[k + i] = mxfp4_values[b->qs[i] & 15];
            u->q[k + i + QK / 2] = mxfp4_values[b->qs[i] >> 4];
        }
        set_scales(u, k / SUB_GROUP, 2, e8m0_half_to_f32(b->e), 0.0f);
    }
}

static const struct {
    unpack_fn *fn;
    bool has_min;
} unpackers[DTYPE_COUNT] = {
    [DTYPE_Q4_0] = {unpack_q4_0, false},
    [DTYPE_Q4_1] = {unpack_q4_1, true},
    [DTYPE_Q5_0] = {unpack_q5_0, false},
    [DTYPE_Q5_1] = {unpack_q5_1, true},
    [DTYPE_Q8_0] = {unpack_q8_0, false},
    [DTYPE_Q2_K] = {unpack_q2_k, true},
    [DTYPE_Q3_K] = {unpack_q3_k, false},
    [DTYPE_Q4_K] = {unpack_q4_k, true},
    [DTYPE_Q5_K] = {unpack_q5_k, true},
    [DTYPE_Q6_K] = {unpack_q6_k, false},
    [DTYPE_IQ4_NL] = {unpack_iq4_nl, false},
    [DTYPE_IQ4_XS] = {unpack_iq4_xs, false},
    [DTYPE_MXFP4] = {unpack_mxfp4, false},
};

bool can_unpack(enum dtype dtype)
{
    return unpackers[dtype].fn != NULL;
}

void unpack_row(enum dtype dtype, const void *row, uint32_t n, struct unpacked *out)
{
    out->has_min = unpackers[dtype].has_min;
    unpackers[dtype].fn(row, n, out);
}
