/* Dummy weights; see dummy.h. A quantised matrix is filled with random bits and then given one small scale per block,
 * which is as good as quantising random numbers and a hundred times faster. */
#include "model/dummy.h"

#include "base/limits.h"
#include "base/mem.h"
#include "tensor/finite.h"
#include "tensor/float_convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape {
    const char *name;
    enum model_arch arch;
    uint32_t hidden, ffn, layers, heads, kv_heads, head_dim, vocab, context;
    double rope_base, eps, rope_factor; /* factor > 0: llama3 scaling from 8192 positions */
    uint32_t experts, experts_used;
    bool tied;
};

static const struct shape shapes[] = {
    {"smollm2-135m", ARCH_LLAMA, 576, 1536, 30, 9, 3, 64, 49152, 8192, 1e5, 1e-5, 0, 0, 0, true},
    {"qwen3-0.6b", ARCH_QWEN3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6, 0, 0, 0, true},
    {"llama-3.2-1b", ARCH_LLAMA, 2048, 8192, 16, 32, 8, 64, 128256, 131072, 5e5, 1e-5, 32, 0, 0, true},
    {"llama-3.1-8b", ARCH_LLAMA, 4096, 14336, 32, 32, 8, 128, 128256, 131072, 5e5, 1e-5, 8, 0, 0, false},
    {"mixtral-8x7b", ARCH_MIXTRAL, 4096, 14336, 32, 32, 8, 128, 32000, 32768, 1e6, 1e-5, 0, 8, 2, false},
    {"qwen3-30b-a3b", ARCH_QWEN3MOE, 2048, 768, 48, 32, 4, 128, 151936, 40960, 1e6, 1e-6, 0, 128, 8, false},
};

const char *const *dummy_names(size_t *n)
{
    static const char *names[COUNT_OF(shapes)];
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        names[i] = shapes[i].name;
    *n = COUNT_OF(shapes);
    return names;
}

static void fill_config(const struct shape *s, struct model_config *c)
{
    *c = (struct model_config){.arch = s->arch,
        .arch_known = true,
        .context_length = s->context,
        .n_layers = s->layers,
        .vocab = s->vocab,
        .hidden = s->hidden,
        .ffn = s->experts > 0 ? 0 : s->ffn,
        .n_heads = s->heads,
        .n_kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .norm_eps = s->eps,
        .tied_embeddings = s->tied,
        .qk_norm = s->arch == ARCH_QWEN3 || s->arch == ARCH_QWEN3MOE,
        .query_scale = 1.0 / sqrt((double)s->head_dim),
        .n_experts = s->experts,
        .n_experts_used = s->experts_used,
        .expert_ffn = s->experts > 0 ? s->ffn : 0,
        .norm_topk = s->experts > 0,
        .bos_id = -1,
        .pad_id = -1,
        .add_bos = 0};
    c->rope = (struct model_rope){
        .base = s->rope_base, .base_local = s->rope_base, .dims = s->head_dim, .factor = 1.0, .scaling = ROPE_PLAIN};
    if (s->rope_factor > 0) {
        c->rope.scaling = ROPE_LLAMA3;
        c->rope.factor = s->rope_factor;
        c->rope.original_context = 8192;
        c->rope.low_freq = 1.0;
        c->rope.high_freq = 4.0;
    }
    snprintf(c->name, sizeof c->name, "%s", s->name);
    snprintf(c->arch_name, sizeof c->arch_name, "%s", model_arch_name(s->arch));
}

enum err dummy_config(const char *name, struct model_config *out, struct error *e)
{
    char list[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (strcmp(shapes[i].name, name) == 0) {
            fill_config(&shapes[i], out);
            return OK;
        }
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i > 0 ? ", " : "", shapes[i].name);
    }
    return FAIL(e, ERR_NOT_FOUND, "there is no dummy model '%s'; there are %s", name, list);
}

struct dummy {
    enum dtype dtype;
    uint64_t state; /* of the bit generator */
    void **buffers;
    uint32_t n, cap;
    bool shares;
    unsigned char *largest; /* of the matrices of dtype so far */
    size_t largest_bytes;
    uint64_t n_pieces;
};

enum err dummy_new(enum dtype dtype, uint64_t seed, struct dummy **out, struct error *e)
{
    *out = NULL;
    if (!(dtype_info(dtype)->flags & DTYPE_IS_WEIGHT))
        return FAIL(e, ERR_INVALID, "weights cannot be %s", dtype_name(dtype));
    struct dummy *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for dummy weights");
    d->dtype = dtype;
    d->state = seed;
    *out = d;
    return OK;
}

void dummy_free(struct dummy *d)
{
    if (d == NULL)
        return;
    for (uint32_t i = 0; i < d->n; i++)
        mem_free(d->buffers[i]);
    mem_free(d->buffers);
    mem_free(d);
}

/* SplitMix64: one addition and three mixes per 8 bytes, since a large model needs billions of them. */
static uint64_t next_bits(struct dummy *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill_bits(struct dummy *d, unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t bits = next_bits(d);
        memcpy(p + i, &bits, MIN(n - i, sizeof bits));
    }
}

/* Uniform floats with the variance a trained matrix of that width has, 1/n_in. */
static void fill_floats(struct dummy *d, enum dtype dtype, unsigned char *p, size_t n, uint32_t n_in)
{
    const float width = sqrtf(12.0f / (float)n_in);
    const size_t bytes = dtype_info(dtype)->block_bytes;
    float chunk[256];
    for (size_t i = 0; i < n; i += COUNT_OF(chunk)) {
        const size_t now = MIN(n - i, COUNT_OF(chunk));
        for (size_t j = 0; j < now; j++)
            chunk[j] = ((float)(next_bits(d) >> 40) * 0x1p-24f - 0.5f) * width;
        dtype_info(dtype)->quant(chunk, p + i * bytes, now);
    }
}

static void fill_blocks(struct dummy *d, enum dtype dtype, unsigned char *p, size_t bytes, uint32_t n_in)
{
    const struct dtype_info *info = dtype_info(dtype);
    uint32_t at[2];
    const uint32_t n_scales = quant_scale_offsets(dtype, at);
    float one[256];
    fill_bits(d, p, bytes);
    /* The scale that brings a block of random bits to the wanted variance, measured on the first block with scale 1. */
    for (size_t b = 0; b < bytes; b += info->block_bytes) {
        for (uint32_t i = 0; i < n_scales; i++) {
            const uint16_t unit = f16_from_f32(1.0f);
            memcpy(p + b + at[i], &unit, sizeof unit);
        }
        if (dtype == DTYPE_MXFP4)
            p[b] = 127;
    }
    info->dequant(p, one, info->block_elems);
    double sum = 0.0;
    for (uint32_t i = 0; i < info->block_elems; i++)
        sum += (double)one[i] * (double)one[i];
    const float scale = sqrtf(1.0f / (float)n_in / (float)(sum / info->block_elems + 1e-9));
    const uint16_t bits = f16_from_f32(scale);
    const int exponent = 127 + (int)floorf(log2f(scale));
    for (size_t b = 0; b < bytes; b += info->block_bytes) {
        for (uint32_t i = 0; i < n_scales; i++)
            memcpy(p + b + at[i], &bits, sizeof bits);
        if (dtype == DTYPE_MXFP4)
            p[b] = (unsigned char)exponent;
    }
}

static enum dtype dtype_for(const struct dummy *d, const char *name, uint32_t n_out, uint32_t n_in)
{
    if (n_out == 0 || strstr(name, "gate_inp") != NULL || strstr(name, "mlp.gate.weight") != NULL)
        return DTYPE_F32;
    if (n_in % dtype_info(d->dtype)->block_elems == 0)
        return d->dtype;
    return n_in % dtype_info(DTYPE_Q8_0)->block_elems == 0 ? DTYPE_Q8_0 : DTYPE_F16;
}

/* Pieces begin at other rows each, so that no two matrices are the same. */
static unsigned char *piece_of(struct dummy *d, size_t bytes, uint32_t n_in)
{
    const size_t row = n_in / dtype_info(d->dtype)->block_elems * dtype_info(d->dtype)->block_bytes;
    return d->largest + d->n_pieces++ * 7919 % ((d->largest_bytes - bytes) / row + 1) * row;
}

void dummy_share(struct dummy *d)
{
    d->shares = true;
}

static enum err find_dummy(void *ctx, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in,
    struct tensor_view *out, struct error *e)
{
    struct dummy *d = ctx;
    const enum dtype dtype = dtype_for(d, name, n_out, n_in);
    const uint64_t shape[] = {n_mats, n_out, n_in};
    const uint32_t n_dims = n_out == 0 ? 1 : n_mats > 1 ? 3 : 2;
    size_t bytes;
    TRY(tensor_shape_bytes(dtype, n_dims, shape + 3 - n_dims, &bytes, e));
    if (d->shares && n_out > 0 && dtype == d->dtype && bytes <= d->largest_bytes)
        return tensor_view_init(out, dtype, n_dims, shape + 3 - n_dims, piece_of(d, bytes, n_in), bytes, e);
    if (d->n == d->cap) {
        const uint32_t cap = d->cap == 0 ? 64 : 2 * d->cap;
        void **buffers = mem_resize(d->buffers, cap * sizeof *buffers);
        if (buffers == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for dummy weights");
        d->buffers = buffers;
        d->cap = cap;
    }
    unsigned char *p = mem_aligned(64, bytes);
    if (p == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for dummy tensor %s of %zu bytes", name, bytes);
    d->buffers[d->n++] = p;
    if (n_out > 0 && dtype == d->dtype && bytes > d->largest_bytes) {
        d->largest = p;
        d->largest_bytes = bytes;
    }
    const size_t n = bytes / dtype_info(dtype)->block_bytes;
    if (n_out == 0) {
        const float value = strstr(name, "bias") != NULL ? 0.0f : 1.0f;
        for (uint32_t i = 0; i < n_in; i++)
            memcpy(p + i * sizeof value, &value, sizeof value);
    } else if (dtype_info(dtype)->flags & DTYPE_IS_FLOAT)
        fill_floats(d, dtype, p, n, n_in);
    else
        fill_blocks(d, dtype, p, bytes, n_in);
    return tensor_view_init(out, dtype, n_dims, shape + 3 - n_dims, p, bytes, e);
}

static void drop_dummy(void *ctx, const struct tensor_view *v)
{
    struct dummy *d = ctx;
    for (uint32_t i = d->n; !d->shares && i-- > 0;)
        if (d->buffers[i] == v->data) {
            if (d->largest == v->data)
                d->largest_bytes = 0; /* nobody shares it any more */
            mem_free(d->buffers[i]);
            d->buffers[i] = d->buffers[--d->n];
            return;
        }
}

struct weight_source dummy_source(struct dummy *d)
{
    return (struct weight_source){.ctx = d, .is_gguf = true, .find = find_dummy, .drop = drop_dummy};
}
