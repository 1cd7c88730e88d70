/* Rigs, data, weights and activations for the tests of cpu/; see testing_cpu.h. */
#include "testing_cpu.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tensor/finite.h"
#include "tensor/float_convert.h"

#include <math.h>

uint32_t rig_threads;

const enum dtype weight_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E5M2, DTYPE_Q4_0,
    DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
    DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
const uint32_t n_weight_dtypes = COUNT_OF(weight_dtypes);
const enum dtype kv_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0};
const uint32_t n_kv_dtypes = COUNT_OF(kv_dtypes);

struct dev *rig_open(const struct rig *rig, uint32_t threads, uint32_t rows_max)
{
    struct error e;
    struct dev *d = NULL;
    const struct dev_options o = {.threads = threads, .rows_max = rows_max, .out_max = rows_max};
    if (rig->kernels != NULL)
        assert_ok(e, cpu_dev_open(rig->kernels, &o, &d, &e));
    else
        assert_ok(e, rig->ops->dev_open(&o, &d, &e));
    rig_threads = threads;
    return d;
}

bool rig_next(struct rig *rig, uint32_t *at)
{
    for (const struct ops *ops; (ops = cpu_ops_at(*at)) != NULL;) {
        ++*at;
        if (cpu_ops_by_name(ops->name) != NULL) {
            *rig = (struct rig){.ops = ops};
            return true;
        }
        print_message("SKIP %s: this machine cannot run it\n", ops->name);
    }
    return false;
}

/* ---- data from a seed ------------------------------------------------------------------------------------------ */

uint64_t dice_roll(struct dice *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t dice_below(struct dice *d, uint32_t n)
{
    return (uint32_t)((dice_roll(d) >> 32) * n >> 32);
}

void dice_shuffle(struct dice *d, uint32_t *items, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t j = dice_below(d, i), t = items[i - 1];
        items[i - 1] = items[j];
        items[j] = t;
    }
}

void *room(size_t bytes)
{
    void *p = mem_aligned(64, bytes + 64);
    assert_non_null(p);
    memset(p, 0, bytes + 64);
    return p;
}

void fill_noise(float *x, size_t n, uint64_t seed, float size)
{
    struct dice d = {seed};
    for (size_t i = 0; i < n; i++) { /* near normal: the sum of four uniform numbers */
        const uint64_t r = dice_roll(&d);
        const int32_t sum = (int32_t)(r & 0xffff) + (int32_t)(r >> 16 & 0xffff) + (int32_t)(r >> 32 & 0xffff) +
                            (int32_t)(r >> 48) - 2 * 0xffff;
        x[i] = (float)sum * (1.0f / 38000.0f) * size;
    }
}

void fill_row(float *x, uint32_t n, enum row_kind kind, uint64_t seed)
{
    static const float size[ROW_KINDS] = {[ROW_PLAIN] = 1.0f,
        [ROW_LARGE] = 1e4f,
        [ROW_SMALL] = 1e-4f,
        [ROW_OUTLIER] = 1.0f,
        [ROW_HALF] = 1.0f,
        [ROW_TINY] = 1e-37f,
        [ROW_DENORMAL] = 1e-40f,
        [ROW_HUGE] = 1e37f,
        [ROW_ONE_NAN] = 1.0f,
        [ROW_INF] = 1.0f};
    fill_noise(x, n, seed, size[kind]);
    switch (kind) {
    case ROW_OUTLIER: x[seed % n] = 1000.0f; break;
    case ROW_HALF: memset(x, 0, n / 2 * sizeof *x); break;
    case ROW_ONE_NAN: x[seed % n] = NAN; break;
    case ROW_INF:
        x[seed % n] = INFINITY;
        x[(seed + 7) % n] = -INFINITY;
        break;
    case ROW_ALL_NAN:
        for (uint32_t i = 0; i < n; i++)
            x[i] = i % 2 ? NAN : -NAN;
        break;
    default: break;
    }
}

bool same_floats(const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof *a) == 0)
        return true;
    for (size_t i = 0; i < n; i++)
        if (f32_bits(a[i]) != f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* ---- weights -------------------------------------------------------------------------------------------------- */

uint32_t inner_of(enum dtype dtype)
{
    const uint32_t block = dtype_info(dtype)->block_elems;
    return block == 1 ? 100 : block == 32 ? 96 : 256;
}

/* The size of a scale that makes weights of about 0.05 to 1. */
static float scale_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL: return 0.002f;
    case DTYPE_Q2_K: return 0.02f;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K: return 0.002f;
    case DTYPE_Q3_K: return 0.005f;
    case DTYPE_Q6_K:
    case DTYPE_IQ4_XS: return 0.0003f;
    default: return 0.05f;
    }
}

static void fill_blocks(enum dtype dtype, unsigned char *bytes, size_t n_blocks, struct dice *dice)
{
    const struct dtype_info *info = dtype_info(dtype);
    uint32_t at[2];
    const uint32_t n_scales = quant_scale_offsets(dtype, at);
    for (size_t b = 0; b < n_blocks; b++, bytes += info->block_bytes) {
        for (size_t i = 0; i < info->block_bytes; i++)
            bytes[i] = (unsigned char)dice_roll(dice);
        for (uint32_t s = 0; s < n_scales; s++) {
            const float size = scale_of(dtype) * (0.5f + (float)dice_below(dice, 1024) / 1024.0f);
            const uint16_t bits = f16_from_f32(dice_below(dice, 8) == 0 ? -size : size);
            memcpy(bytes + at[s], &bits, sizeof bits);
        }
        if (dtype == DTYPE_MXFP4)
            bytes[0] = (unsigned char)(120 + dice_below(dice, 6));
        if (dtype == DTYPE_F8_E4M3) /* below 2, and no NaN */
            bytes[0] = (unsigned char)((bytes[0] & 0x80) | (bytes[0] & 0x7f) % 0x40);
        if (dtype == DTYPE_F8_E5M2)
            bytes[0] = (unsigned char)((bytes[0] & 0x80) | (bytes[0] & 0x7f) % 0x40);
    }
}

void matrix_make(struct matrix *m, const struct rig *rig, struct dev *d, enum dtype dtype, uint32_t n_mats,
    uint32_t n_out, uint32_t n_in, uint64_t seed, bool bias)
{
    struct error e;
    struct dice dice = {seed};
    const struct dtype_info *info = dtype_info(dtype);
    const size_t elems = (size_t)n_mats * n_out * n_in, bytes = elems / info->block_elems * info->block_bytes;
    *m = (struct matrix){.bytes = room(bytes)};
    if (dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16) {
        float *x = room(elems * sizeof *x);
        fill_noise(x, elems, seed, 0.2f);
        info->quant(x, m->bytes, elems);
        mem_free(x);
    } else {
        fill_blocks(dtype, m->bytes, elems / info->block_elems, &dice);
    }
    struct tensor_view v;
    const uint64_t shape[3] = {n_mats, n_out, n_in};
    assert_ok(e, tensor_view_init(&v, dtype, n_mats > 1 ? 3 : 2, n_mats > 1 ? shape : shape + 1, m->bytes, bytes, &e));
    assert_ok(e, rig->ops->weight_bind(d, &v, 1, &m->w, &e));
    if (bias) {
        m->bias = room(sizeof(float) * n_mats * n_out);
        fill_noise(m->bias, (size_t)n_mats * n_out, seed + 1, 0.5f);
        m->w.bias = m->bias;
    }
}

void matrix_drop(struct matrix *m, const struct rig *rig, struct dev *d)
{
    if (m->bytes != NULL)
        rig->ops->weight_drop(d, &m->w);
    mem_free(m->bytes);
    mem_free(m->bias);
    *m = (struct matrix){0};
}

void matrix_row(const struct matrix *m, uint32_t mat, uint32_t o, float *out)
{
    struct error e;
    const size_t row = (size_t)mat * m->w.n_out + o;
    assert_ok(e, dequant_row(m->w.dtype, m->bytes + row * m->w.row_bytes, out, m->w.n_in, &e));
}

/* ---- activations ---------------------------------------------------------------------------------------------- */

struct acts *acts_make(const struct rig *rig, struct dev *d, uint32_t rows, uint32_t n, uint32_t forms)
{
    struct error e;
    struct acts *a = NULL;
    assert_ok(e, rig->ops->acts_new(d, rows, n, forms, &a, &e));
    acts_poison(a, POISON_NAN);
    return a;
}

void acts_put(struct dev *d, struct acts *a, uint32_t row, const float *x)
{
    assert_true(row < a->rows);
    memcpy(a->f32 + (size_t)row * a->n, x, a->n * sizeof *x);
    acts_finish(d->k, a, a->forms, row, 0, a->n);
}

void acts_poison(struct acts *a, int byte)
{
    const size_t elems = (size_t)a->rows * a->n;
    memset(a->f32, byte, elems * sizeof *a->f32);
    if (a->forms & ACT_Q16) {
        const struct groups *g = &a->groups;
        const size_t n = acts_group(a, a->rows, (a->n / ACT_GROUP - 1) / ACT_BLOCK * ACT_BLOCK);
        memset(g->q, byte ^ 0x66, n * ACT_GROUP * sizeof *g->q);
        memset(g->scale, byte, n * sizeof *g->scale);
        memset(g->sum, byte ^ 0x66, n * sizeof *g->sum);
        memset(g->sum16, byte ^ 0x66, n * 2 * sizeof *g->sum16);
        if (a->few > 0) {
            const size_t n_few = n / a->rows * a->few;
            memset(a->bytes, byte ^ 0x66, n_few * ACT_BYTES);
            memset(a->starts, byte ^ 0x66, n_few * ACT_STARTS * sizeof *a->starts);
        }
    }
}

uint32_t acts_floats(const struct acts *a)
{
    return a->n + (a->forms & ACT_Q16 ? 4 * (a->n / ACT_GROUP) : 0); /* scale, sum, two halves */
}

uint32_t acts_bytes(const struct acts *a)
{
    return a->forms & ACT_Q16 ? a->n * (uint32_t)sizeof *a->groups.q : 0;
}

void acts_get(const struct acts *a, uint32_t row, struct result *r, uint32_t to)
{
    float *f = r->floats + (size_t)to * r->n_floats;
    memcpy(f, a->f32 + (size_t)row * a->n, a->n * sizeof *f);
    if ((a->forms & ACT_Q16) == 0)
        return;
    unsigned char *b = r->bytes + (size_t)to * r->n_bytes;
    for (uint32_t i = 0; i < a->n / ACT_GROUP; i++) {
        const struct groups g = groups_from(&a->groups, acts_group(a, row, i));
        const float more[4] = {*g.scale, *g.sum, g.sum16[0], g.sum16[1]};
        memcpy(f + a->n + 4 * (size_t)i, more, sizeof more);
        memcpy(b + i * ACT_GROUP * sizeof *g.q, g.q, ACT_GROUP * sizeof *g.q);
    }
}

void result_make(struct result *r, uint32_t rows, uint32_t n_floats, uint32_t n_bytes)
{
    *r = (struct result){.n_floats = n_floats, .n_bytes = n_bytes};
    r->floats = room(sizeof(float) * rows * n_floats);
    r->bytes = room((size_t)rows * n_bytes);
}

void result_drop(struct result *r)
{
    mem_free(r->floats);
    mem_free(r->bytes);
    *r = (struct result){0};
}

bool result_same(const struct result *a, uint32_t row_a, const struct result *b, uint32_t row_b)
{
    const size_t nf = a->n_floats, nb = a->n_bytes;
    return same_floats(a->floats + row_a * nf, b->floats + row_b * nf, nf) &&
           memcmp(a->bytes + row_a * nb, b->bytes + row_b * nb, nb) == 0;
}
