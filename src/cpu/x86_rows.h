/* What happens to a row outside the products, on x86: norms, quantisation, activations, rope, the rounding into the KV
 * cache. The body, compiled into each variant. Tails run the same code on lanes padded with zeros.
 *
 * - Norms: four sums of 16 lanes, by k / 16 mod 4, fma ascending; (0 + 1) + (2 + 3), then the tree of x86_simd.h; then
 *   x * (1 / sqrt(sum / n + eps)) * gain, left to right.
 * - Quantisation: as cpu.h defines it, bit for bit; each four integers in the order 0 2 1 3, see x86_product.h.
 * - SiLU x / (1 + exp(-x)), GELU and the soft cap by tanh, with the exp of x86_simd.h.
 * - Rope: x0 c - x1 s and x1 c + x0 s, the second product rounded first, then one fma. */
#ifndef CPU_X86_ROWS_H
#define CPU_X86_ROWS_H

#include "cpu/cpu_int.h"
#include "cpu/x86_simd.h"
#include "tensor/float_convert.h"

#include <math.h>

static void norm_row_x86(const float *x, const float *gain, float eps, uint32_t n, float *out)
{
    struct vf acc[4] = {vf_set(0.0f), vf_set(0.0f), vf_set(0.0f), vf_set(0.0f)};
    uint32_t k = 0;
    for (; k + 4 * VF <= n; k += 4 * VF)
        EACH (i, 4) {
            const struct vf v = vf_load(x + k + i * VF);
            acc[i] = vf_fma(v, v, acc[i]);
        }
    for (uint32_t i = 0; k < n; k += VF, i++) {
        const struct vf v = k + VF <= n ? vf_load(x + k) : vf_load_n(x + k, n - k);
        acc[i] = vf_fma(v, v, acc[i]);
    }
    const float sum = vf_total(vf_add(vf_add(acc[0], acc[1]), vf_add(acc[2], acc[3])));
    const float inv = 1.0f / sqrtf(sum / (float)n + eps);
    const struct vf by = vf_set(inv);
    for (k = 0; k + VF <= n; k += VF)
        vf_store(out + k, vf_mul(vf_mul(vf_load(x + k), by), vf_load(gain + k)));
    for (; k < n; k++)
        out[k] = x[k] * inv * gain[k];
}

#ifdef QUERN_AVX512
/* Bytes and starts of a group, see x86_product_few.h. All sums at once: the upper bytes' of both halves, the lower
 * bytes' of both, a quarter of the register each. */
static void put_few(uint8_t *bytes, int32_t *starts, struct vi qa, struct vi qb)
{
    const __m512i x =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(qa.v)), _mm512_cvtsepi32_epi16(qb.v), 1);
    const __m256i high = _mm512_cvtepi16_epi8(_mm512_srli_epi16(x, 8)), low = _mm512_cvtepi16_epi8(x);
    const __m256i none = _mm256_setzero_si256(), one = _mm256_set1_epi8(1);
    _mm256_storeu_si256((__m256i *)bytes, high);
    _mm256_storeu_si256((__m256i *)bytes + 1, low);
    __m512i sum = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_dpbusd_epi32(none, one, high)), _mm256_dpbusd_epi32(none, low, one), 1);
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    const __m512i both = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0xb1));
    const __m512i pick = _mm512_castsi256_si512(_mm256_setr_epi32(16, 24, 16, 24, 0, 8, 4, 12));
    const __m256i each = _mm512_castsi512_si256(_mm512_permutex2var_epi32(sum, pick, both));
    const __m256i times = _mm256_sllv_epi32(each, _mm256_setr_epi32(3, 3, 4, 4, 5, 5, 5, 5));
    _mm256_storeu_si256((__m256i *)starts, _mm256_sub_epi32(_mm256_set1_epi32(INT_IN_FLOAT), times));
}
#endif

static void quant_groups_x86(const float *x, uint32_t n_groups, const struct groups *to)
{
    for (uint32_t g = 0; g < n_groups; g++, x += ACT_GROUP) {
        const struct vf a = vf_load(x), b = vf_load(x + VF);
        int16_t *q = to->q + g * ACT_GROUP;
        /* Without signs, floats order like their bits, and infinity and NaN come above all numbers. */
        const uint32_t top = (uint32_t)vi_top(vi_max(vf_abs_bits(a), vf_abs_bits(b)));
        const float most = f32_of_bits(top);
        const bool finite = top < 0x7f800000u, counts = finite && most >= ACT_SMALLEST;
        const float scale = counts ? most / ACT_MAX : finite ? 0.0f : NAN;
        to->scale[g] = scale;
        const struct vf inv = vf_set(counts ? ACT_MAX / most : 0.0f);
        const struct vi qa = counts ? vi_of_vf(vf_mul(a, inv)) : vi_set32(0);
        const struct vi qb = counts ? vi_of_vf(vf_mul(b, inv)) : vi_set32(0);
        vi_to_pairs(q, qa);
        vi_to_pairs(q + VF, qb);
        const int32_t low = vi_total(qa), high = vi_total(qb);
        to->sum[g] = scale * (float)(low + high);
        to->sum16[2 * g] = scale * (float)low;
        to->sum16[2 * g + 1] = scale * (float)high;
#ifdef QUERN_AVX512
        if (to->bytes != NULL)
            put_few(to->bytes + g * ACT_BYTES, to->starts + g * ACT_STARTS, qa, qb);
#endif
    }
}

INLINE struct vf glu_of(enum glu kind, struct vf x)
{
    const struct vf one = vf_set(1.0f);
    if (kind == GLU_SILU)
        return vf_div(x, vf_add(one, vf_exp(vf_sub(vf_set(0.0f), x))));
    const struct vf cube = vf_mul(vf_mul(vf_mul(vf_set(0.044715f), x), x), x);
    const struct vf t = vf_tanh(vf_mul(vf_set(0.797884561f), vf_add(x, cube)));
    return vf_mul(vf_mul(vf_set(0.5f), x), vf_add(one, t));
}

static void glu_x86(enum glu kind, const float *gate, const float *up, uint32_t n, float *out)
{
    uint32_t k = 0;
    for (; k + VF <= n; k += VF)
        vf_store(out + k, vf_mul(glu_of(kind, vf_load(gate + k)), vf_load(up + k)));
    if (k < n)
        vf_store_n(out + k, vf_mul(glu_of(kind, vf_load_n(gate + k, n - k)), vf_load_n(up + k, n - k)), n - k);
}

INLINE struct vf soft_cap(struct vf x, float cap)
{
    return vf_mul(vf_set(cap), vf_tanh(vf_div(x, vf_set(cap))));
}

static void scale_cap_x86(float *x, uint32_t n, float scale, float cap)
{
    if (scale == 1.0f && !(cap > 0.0f))
        return;
    for (uint32_t k = 0; k < n; k += VF) {
        const uint32_t some = MIN(n - k, (uint32_t)VF);
        struct vf v = vf_mul(some == VF ? vf_load(x + k) : vf_load_n(x + k, some), vf_set(scale));
        if (cap > 0.0f)
            v = soft_cap(v, cap);
        vf_store_n(x + k, v, some);
    }
}

static void rope_x86(enum rope_style style, uint32_t dims, const float *table, float *x)
{
    const uint32_t half = dims / 2;
    uint32_t i = 0;
    if (style == ROPE_PAIRS) {
        for (; i + VF <= dims; i += VF)
            vf_store(x + i, vf_turn_pairs(vf_load(x + i), vf_load(table + i)));
        if (i < dims)
            vf_store_n(x + i, vf_turn_pairs(vf_load_n(x + i, dims - i), vf_load_n(table + i, dims - i)), dims - i);
        return;
    }
    for (; i < half; i += VF) {
        const uint32_t some = MIN(half - i, (uint32_t)VF);
        float padded[2 * VF] = {0};
        struct vf c, s;
        if (some < VF)
            memcpy(padded, table + 2 * i, 2 * some * sizeof *padded);
        vf_split_pairs(some < VF ? padded : table + 2 * i, &c, &s);
        const struct vf a = vf_load_n(x + i, some), b = vf_load_n(x + half + i, some);
        vf_store_n(x + i, vf_fma(a, c, vf_sub(vf_set(0.0f), vf_mul(b, s))), some);
        vf_store_n(x + half + i, vf_fma(b, c, vf_mul(a, s)), some);
    }
}

/* F16 rows only; the rest is the plain code's. */
static bool to_kv_x86(enum dtype dtype, const float *x, uint32_t n, unsigned char *to)
{
    if (dtype != DTYPE_F16 || n % VF != 0)
        return false;
    for (uint32_t i = 0; i < n; i += VF)
        vf_to_f16(to + 2 * i, vf_load(x + i));
    return true;
}

static void add_row_x86(float *x, const float *y, uint32_t n)
{
    uint32_t k = 0;
    for (; k + VF <= n; k += VF)
        vf_store(x + k, vf_add(vf_load(x + k), vf_load(y + k)));
    for (; k < n; k++)
        x[k] += y[k];
}

#endif
