/* Binding: every tensor the configuration asks for is found, its shape compared, its scales and gains checked to be
 * finite, and handed to the backend. After this the forward pass trusts everything. Names come from the architecture's
 * table. decoder_check walks the same code and stops short of the bytes, so that it cannot come to another answer about
 * names and shapes. */
#include "base/log.h"
#include "base/mem.h"
#include "model/decoder_int.h"
#include "tensor/finite.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX     256
#define FORGET_BYTES (4 * MIB) /* of the source kept in memory beside what the backend copied */

struct binder {
    struct decoder *d;
    const struct weight_source *src;
    const struct arch_names *names;
    struct error *e;
    bool look;          /* names, shapes and types alone: no byte is read, nothing is bound */
    uintptr_t from, to; /* bytes of the source that were bound and not forgotten yet, and perhaps others between */
};

/* Names come from constant tables whose only conversions are %u. */
static void expand(char out[NAME_MAX], const char *pattern, uint32_t layer, uint32_t expert)
{
    size_t at = 0;
    uint32_t next = layer;
    for (const char *p = pattern; *p != '\0' && at + 12 < NAME_MAX; p++) {
        if (p[0] == '%' && p[1] == 'u') {
            at += (size_t)snprintf(out + at, NAME_MAX - at, "%u", next);
            next = expert;
            p++;
        } else
            out[at++] = *p;
    }
    out[at] = '\0';
}

enum err decoder_alloc(struct decoder *d, uint64_t count, size_t bytes, void **out, struct error *e)
{
    size_t total;
    *out = NULL;
    if (count > SIZE_MAX || !size_mul((size_t)count, bytes, &total))
        return FAIL(e, ERR_NOMEM, "a buffer of %llu x %zu bytes", (unsigned long long)count, bytes);
    if (d->n_owned == d->owned_cap) {
        const uint32_t cap = d->owned_cap == 0 ? 64 : 2 * d->owned_cap;
        void **owned = mem_resize(d->owned, cap * sizeof *owned);
        if (owned == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for the list of buffers");
        d->owned = owned;
        d->owned_cap = cap;
    }
    TRY(d->ops->dev_alloc(d->dev, total, out, e));
    d->owned[d->n_owned++] = *out;
    return OK;
}

static enum err find(
    struct binder *b, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in, struct tensor_view *v)
{
    struct decoder *d = b->d;
    TRY(decoder_find_weight(d, b->src, name, n_mats, n_out, n_in, v, b->e));
    if (b->look)
        return OK;
    uint64_t bad;
    const bool bind_looks = n_out != 0 && d->ops->checks_weights;
    if (!bind_looks && !tensor_is_finite(v, &bad))
        return FAIL(b->e, ERR_FORMAT, "tensor %s: it holds a value that is not finite, near element %llu", name,
            (unsigned long long)bad);
    if (d->o.stop != NULL && atomic_load(d->o.stop))
        return FAIL(b->e, ERR_CANCELLED, "binding weights was given up");
    d->done_bytes += v->bytes;
    if (d->o.progress != NULL)
        d->o.progress(d->o.progress_ctx, d->done_bytes, d->total_bytes);
    return OK;
}

/* A vector of n elements as f32 on the device. */
static enum err bind_vector(struct binder *b, const char *pattern, uint32_t layer, uint32_t n, float add, float **out)
{
    char name[NAME_MAX];
    struct tensor_view v;
    expand(name, pattern, layer, 0);
    TRY(find(b, name, 1, 0, n, &v));
    *out = NULL;
    if (b->look)
        return OK;
    float *host = mem_array(n, sizeof *host);
    if (host == NULL)
        return FAIL(b->e, ERR_NOMEM, "no memory for %s", name);
    enum err err = dequant_row(v.dtype, v.data, host, n, b->e);
    for (uint32_t i = 0; err == OK && add != 0.0f && i < n; i++)
        host[i] += add;
    if (err == OK)
        err = decoder_alloc(b->d, n, sizeof *host, (void **)out, b->e);
    if (err == OK)
        b->d->ops->dev_write(b->d->dev, *out, host, n * sizeof *host);
    mem_free(host);
    if (err != OK)
        error_prefix(b->e, "%s", name);
    return err;
}

static enum err bind_gain(struct binder *b, const char *pattern, uint32_t layer, uint32_t n, float **out)
{
    *out = NULL;
    if (pattern == NULL)
        return OK;
    const float add = b->d->arch->hf_gain_plus_one && !b->src->is_gguf ? 1.0f : 0.0f;
    return bind_vector(b, pattern, layer, n, add, out);
}

static void forget_bound(struct binder *b)
{
    if (b->to > b->from)
        b->src->forget(b->src->ctx, (const void *)b->from, b->to - b->from);
    b->from = b->to = 0;
}

/* Tensors of a layer mostly lie side by side, so what is forgotten is one stretch of a few of them. Nothing is lost
 * when others lie between: pages that are wanted again come again. */
static void forget_later(struct binder *b, const struct tensor_view *v)
{
    const uintptr_t from = (uintptr_t)v->data, to = from + v->bytes;
    if (b->src->forget == NULL)
        return;
    if (b->to > b->from && MAX(b->to, to) - MIN(b->from, from) > 2 * FORGET_BYTES)
        forget_bound(b);
    b->from = b->to > b->from ? MIN(b->from, from) : from;
    b->to = MAX(b->to, to);
    if (b->to - b->from > FORGET_BYTES)
        forget_bound(b);
}

static enum err bind_views(struct binder *b, const char *name, const struct tensor_view *v, uint32_t n_views,
    const struct scales *s, struct weight *w)
{
    struct decoder *d = b->d;
    if (b->look)
        return OK;
    const enum err err = s->groups > 0 ? decoder_scales_bind(d, v, n_views, s, w, b->e)
                                       : d->ops->weight_bind(d->dev, v, n_views, w, b->e);
    if (err != OK)
        return error_prefix(b->e, "tensor %s", name);
    for (uint32_t i = 0; i < n_views; i++) {
        d->weight_bytes += v[i].bytes;
        forget_later(b, &v[i]);
    }
    return OK;
}

/* A whole tensor is bound: it is over when that was by a device with memory of its own. */
static void drop_bound(struct binder *b, const struct tensor_view *v)
{
    if (!b->look && b->src->drop != NULL && b->d->ops->memory_free != NULL)
        b->src->drop(b->src->ctx, v);
}

static enum err bind_whole(
    struct binder *b, const char *name, const struct tensor_view *v, const struct scales *s, struct weight *w)
{
    TRY(bind_views(b, name, v, 1, s, w));
    drop_bound(b, v);
    return OK;
}

/* The bias of a matrix, beside it under ".bias", when config says that q, k and v have one. */
static enum err bind_bias(
    struct binder *b, const char *pattern, uint32_t layer, bool optional, uint32_t n_out, struct weight *w)
{
    char bias[NAME_MAX], name[NAME_MAX];
    const struct str base = str_of(pattern);
    assert(str_has_suffix(base, STR(".weight")));
    snprintf(bias, sizeof bias, "%.*s.bias", (int)(base.n - 7), base.p);
    if (optional) {
        struct tensor_view v;
        expand(name, bias, layer, 0);
        if (b->src->find(b->src->ctx, name, 1, 0, n_out, &v, NULL) == ERR_NOT_FOUND)
            return OK;
    }
    float *p;
    TRY(bind_vector(b, bias, layer, n_out, 0.0f, &p));
    w->bias = p;
    return OK;
}

static enum err bind_matrix(
    struct binder *b, const char *pattern, uint32_t layer, uint32_t n_out, uint32_t n_in, struct weight *w)
{
    char name[NAME_MAX];
    struct tensor_view v;
    struct scales s = {.look = b->look};
    expand(name, pattern, layer, 0);
    TRY(find(b, name, 1, n_out, n_in, &v));
    enum err err = decoder_scales_find(b->d, b->src, name, &v, 0, 1, &s, b->e);
    if (err == OK)
        err = bind_whole(b, name, &v, &s, w);
    mem_free(s.of);
    return err;
}

/* Row ranges of one stored matrix as weights of their own. */
static enum err bind_slices(struct binder *b, const char *pattern, uint32_t layer, uint32_t n_in, uint32_t n_slices,
    const uint32_t *rows, struct weight *const *out)
{
    char name[NAME_MAX];
    struct tensor_view all;
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < n_slices; i++)
        n_out += rows[i];
    expand(name, pattern, layer, 0);
    TRY(find(b, name, 1, n_out, n_in, &all));
    const size_t row_bytes = tensor_row_bytes(&all);
    uint32_t at = 0;
    struct scales s = {.look = b->look};
    enum err err = decoder_scales_find(b->d, b->src, name, &all, 0, 1, &s, b->e);
    for (uint32_t i = 0; err == OK && i < n_slices; i++) {
        const struct scales of = {.of = s.of != NULL ? s.of + (size_t)at * s.groups : NULL, .groups = s.groups};
        struct tensor_view part = all;
        part.shape[0] = rows[i];
        part.data = (const char *)all.data + at * row_bytes;
        part.bytes = rows[i] * row_bytes;
        err = bind_views(b, name, &part, 1, &of, out[i]);
        at += rows[i];
    }
    if (err == OK)
        drop_bound(b, &all);
    mem_free(s.of);
    return err;
}

/* All experts' matrices: one stacked tensor, or one tensor each. */
static enum err bind_experts(
    struct binder *b, const char *pattern, uint32_t layer, uint32_t n_out, uint32_t n_in, struct weight *w)
{
    const uint32_t n = b->d->cfg.n_experts;
    char name[NAME_MAX];
    struct scales s = {.look = b->look};
    if (strstr(strstr(pattern, "%u") + 2, "%u") == NULL) {
        struct tensor_view v;
        expand(name, pattern, layer, 0);
        TRY(find(b, name, n, n_out, n_in, &v));
        return bind_whole(b, name, &v, &s, w);
    }
    struct tensor_view *views = mem_array(n, sizeof *views);
    if (views == NULL)
        return FAIL(b->e, ERR_NOMEM, "no memory to bind %u experts", n);
    enum err err = OK;
    for (uint32_t i = 0; err == OK && i < n; i++) {
        expand(name, pattern, layer, i);
        err = find(b, name, 1, n_out, n_in, &views[i]);
        if (err == OK && views[i].dtype != views[0].dtype)
            err = FAIL(b->e, ERR_UNSUPPORTED, "tensor %s is %s while expert 0 is %s", name, dtype_name(views[i].dtype),
                dtype_name(views[0].dtype));
        if (err == OK)
            err = decoder_scales_find(b->d, b->src, name, &views[i], i, n, &s, b->e);
    }
    if (err == OK)
        err = bind_views(b, name, views, n, &s, w);
    mem_free(s.of);
    mem_free(views);
    return err;
}

static enum err bind_attention(struct binder *b, uint32_t i, struct layer *l)
{
    const struct model_config *c = &b->d->cfg;
    const uint32_t q_rows = c->n_heads * c->head_dim, kv_rows = c->n_kv_heads * c->head_dim;
    TRY(bind_gain(b, b->names->attn_norm, i, c->hidden, &l->attn_norm));
    TRY(bind_gain(b, b->names->post_attn_norm, i, c->hidden, &l->post_attn_norm));
    TRY(bind_gain(b, b->names->q_norm, i, c->head_dim, &l->q_norm));
    TRY(bind_gain(b, b->names->k_norm, i, c->head_dim, &l->k_norm));
    if (b->names->qkv != NULL) {
        const uint32_t rows[] = {q_rows, kv_rows, kv_rows};
        struct weight *const parts[] = {&l->q, &l->k, &l->v};
        TRY(bind_slices(b, b->names->qkv, i, c->hidden, 3, rows, parts));
    } else {
        TRY(bind_matrix(b, b->names->q, i, q_rows, c->hidden, &l->q));
        TRY(bind_matrix(b, b->names->k, i, kv_rows, c->hidden, &l->k));
        TRY(bind_matrix(b, b->names->v, i, kv_rows, c->hidden, &l->v));
    }
    TRY(bind_matrix(b, b->names->o, i, c->hidden, q_rows, &l->o));
    if (!c->qkv_bias)
        return OK;
    if (b->names->q == NULL)
        return FAIL(b->e, ERR_UNSUPPORTED, "%s with biases on q, k and v", model_arch_name(c->arch));
    TRY(bind_bias(b, b->names->q, i, false, q_rows, &l->q));
    TRY(bind_bias(b, b->names->k, i, false, kv_rows, &l->k));
    TRY(bind_bias(b, b->names->v, i, false, kv_rows, &l->v));
    return bind_bias(b, b->names->o, i, true, c->hidden, &l->o); /* Llama with biases has one here, Qwen 2 has none */
}

static enum err bind_feed_forward(struct binder *b, uint32_t i, struct layer *l)
{
    const struct model_config *c = &b->d->cfg;
    TRY(bind_gain(b, b->names->ffn_norm, i, c->hidden, &l->ffn_norm));
    TRY(bind_gain(b, b->names->post_ffn_norm, i, c->hidden, &l->post_ffn_norm));
    if (c->n_experts > 0) {
        TRY(bind_matrix(b, b->names->router, i, c->n_experts, c->hidden, &l->router));
        TRY(bind_experts(b, b->names->expert_gate, i, c->expert_ffn, c->hidden, &l->expert_gate));
        TRY(bind_experts(b, b->names->expert_up, i, c->expert_ffn, c->hidden, &l->expert_up));
        return bind_experts(b, b->names->expert_down, i, c->hidden, c->expert_ffn, &l->expert_down);
    }
    if (b->names->gate_up != NULL) {
        const uint32_t rows[] = {c->ffn, c->ffn};
        struct weight *const parts[] = {&l->gate, &l->up};
        TRY(bind_slices(b, b->names->gate_up, i, c->hidden, 2, rows, parts));
    } else {
        TRY(bind_matrix(b, b->names->gate, i, c->ffn, c->hidden, &l->gate));
        TRY(bind_matrix(b, b->names->up, i, c->ffn, c->hidden, &l->up));
    }
    return bind_matrix(b, b->names->down, i, c->hidden, c->ffn, &l->down);
}

static enum err bind_all(struct binder *b)
{
    struct decoder *d = b->d;
    const struct model_config *c = &d->cfg;
    b->names = b->src->is_gguf ? d->arch->gguf : d->arch->hf;
    d->embed.use = c->tied_embeddings ? WEIGHT_PRODUCT : WEIGHT_ROWS;
    TRY(bind_matrix(b, b->names->embed, 0, c->vocab, c->hidden, &d->embed));
    TRY(bind_gain(b, b->names->final_norm, 0, c->hidden, &d->final_norm));
    d->head_is_embed = c->tied_embeddings;
    if (d->head_is_embed)
        d->head = d->embed;
    else
        TRY(bind_matrix(b, b->names->head, 0, c->vocab, c->hidden, &d->head));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        TRY(bind_attention(b, i, &d->layers[i]));
        TRY(bind_feed_forward(b, i, &d->layers[i]));
    }
    return OK;
}

enum err decoder_look(struct decoder *d, const struct weight_source *src, struct error *e)
{
    struct binder b = {.d = d, .src = src, .e = e, .look = true};
    return bind_all(&b);
}

enum err decoder_bind(struct decoder *d, const struct weight_source *src, struct error *e)
{
    struct binder b = {.d = d, .src = src, .e = e};
    const enum err err = bind_all(&b);
    decoder_scales_end(d);
    if (err == OK)
        forget_bound(&b); /* a backend that reads the file in place gets its pages again as it goes */
    return err;
}

void decoder_drop_weights(struct decoder *d)
{
    for (uint32_t i = 0; d->layers != NULL && i < d->cfg.n_layers; i++) {
        struct layer *l = &d->layers[i];
        struct weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down, &l->router,
            &l->expert_gate, &l->expert_up, &l->expert_down};
        for (size_t j = 0; j < COUNT_OF(all); j++)
            d->ops->weight_drop(d->dev, all[j]);
    }
    if (!d->head_is_embed)
        d->ops->weight_drop(d->dev, &d->head);
    d->ops->weight_drop(d->dev, &d->embed);
}
