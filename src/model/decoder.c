/* Opening and closing a decoder: what does not depend on a step. See model.h; binding is in bind.c, the step in
 * forward.c. */
#include "base/mem.h"
#include "model/decoder_int.h"
#include "model/fit.h"

#include <string.h>

#define ROPE_TILE    256 /* positions that a worker works out at a time */
#define FEWER_BLOCKS 16  /* a part of the cache: so many fewer are tried where memory is in pieces */

/* Of what a device has for itself, the half that is not for what was counted wrongly. */
static uint64_t spare_of(const struct ops *ops)
{
    return ops->spare_bytes / 2;
}

/* ---- weights from a file ---------------------------------------------------------------------------------------- */

static enum err find_in_file(void *ctx, const char *name, uint32_t n_mats, uint32_t n_out, uint32_t n_in,
    struct tensor_view *out, struct error *e)
{
    const struct model_tensor *t = model_tensor_find(ctx, str_of(name));
    if (t == NULL)
        return FAIL(e, ERR_NOT_FOUND, "tensor %s is missing", name);
    const struct tensor_view *v = &t->view;
    const uint64_t rows = n_out == 0 ? 1 : (uint64_t)n_mats * n_out;
    const uint32_t dims = n_out == 0 ? 1 : n_mats > 1 ? 3 : 2;
    const bool is_scalar = v->n_dims == 0 && n_out == 0 && n_in == 1;
    const bool same = is_scalar || (v->n_dims == dims && tensor_row_elems(v) == n_in && tensor_n_rows(v) == rows &&
                                       (dims < 2 || v->shape[dims - 2] == n_out));
    if (!same) {
        char has[96], wants[96];
        size_t at = 0;
        for (uint32_t i = 0; i < v->n_dims && at + 24 < sizeof has; i++)
            at +=
                (size_t)snprintf(has + at, sizeof has - at, "%s%llu", i ? " x " : "", (unsigned long long)v->shape[i]);
        has[at] = '\0';
        if (dims == 3)
            snprintf(wants, sizeof wants, "%u x %u x %u", n_mats, n_out, n_in);
        else if (dims == 2)
            snprintf(wants, sizeof wants, "%u x %u", n_out, n_in);
        else
            snprintf(wants, sizeof wants, "%u", n_in);
        return FAIL(e, ERR_FORMAT, "tensor %s has shape %s instead of %s", name, has, wants);
    }
    *out = *v;
    return OK;
}

static void forget_file(void *ctx, const void *p, size_t bytes)
{
    model_source_forget(ctx, p, bytes);
}

struct weight_source decoder_file_source(const struct model_source *s)
{
    return (struct weight_source){.ctx = (void *)(uintptr_t)s,
        .is_gguf = model_source_kind(s) == MODEL_GGUF,
        .find = find_in_file,
        .forget = forget_file};
}

/* ---- the KV cache ------------------------------------------------------------------------------------------------ */

enum err decoder_kv_block_bytes(
    const struct model_config *cfg, enum dtype kv_dtype, uint32_t block_tokens, uint64_t *bytes, struct error *e)
{
    if (kv_dtype != DTYPE_F32 && kv_dtype != DTYPE_F16 && kv_dtype != DTYPE_BF16 && kv_dtype != DTYPE_Q8_0 &&
        kv_dtype != DTYPE_Q4_0 && kv_dtype != DTYPE_F8_E4M3)
        return FAIL(e, ERR_UNSUPPORTED, "a KV cache of type %s", dtype_name(kv_dtype));
    *bytes = (uint64_t)kv_row_bytes(kv_dtype, cfg->head_dim) * 2 * cfg->n_kv_heads * cfg->n_layers * block_tokens;
    return OK;
}

/* A device's cache is made last, of what is really left. */
static uint32_t blocks_that_fit(const struct decoder *d, uint64_t block_bytes)
{
    const struct fit *f = d->o.fit;
    if (d->ops->memory_free == NULL || f == NULL)
        return d->o.n_blocks;
    const uint64_t now = d->ops->memory_free(), kept = spare_of(d->ops) + f->beside_bytes;
    const uint64_t n = (now > kept ? now - kept : 0) / (block_bytes + d->o.block_tokens * f->beside_token_bytes);
    return (uint32_t)MAX(MIN(n, (uint64_t)d->o.n_blocks), (uint64_t)d->o.blocks_least);
}

static enum err make_kv(struct decoder *d, struct error *e)
{
    const struct model_config *c = &d->cfg;
    uint64_t block_bytes;
    if (d->o.block_tokens == 0 || d->o.block_tokens % 16 != 0)
        return FAIL(e, ERR_INVALID, "block size %u is not a multiple of 16", d->o.block_tokens);
    TRY(decoder_kv_block_bytes(c, d->o.kv_dtype, d->o.block_tokens, &block_bytes, e));
    const uint32_t row_bytes = kv_row_bytes(d->o.kv_dtype, c->head_dim);
    const uint64_t part = (uint64_t)row_bytes * c->n_kv_heads * d->o.block_tokens;
    for (uint32_t i = 0; i < c->n_layers; i++)
        d->layers[i].kv = (struct kv_layer){
            .dtype = d->o.kv_dtype, .row_bytes = row_bytes, .k_at = 2 * part * i, .v_at = 2 * part * i + part};
    d->kv = (struct kv_cache){
        .n_blocks = blocks_that_fit(d, block_bytes), .block_tokens = d->o.block_tokens, .block_bytes = block_bytes};
    for (;;) {
        struct error short_of = {0};
        const uint32_t n = d->kv.n_blocks, fewer = n - MAX(n / FEWER_BLOCKS, 1u);
        const enum err err = decoder_alloc(d, n, block_bytes, (void **)&d->kv.blocks, &short_of);
        if (err != ERR_NOMEM || fewer < d->o.blocks_least) {
            if (err != OK && e != NULL)
                *e = short_of;
            return err;
        }
        d->kv.n_blocks = fewer; /* it is free, but not in one piece */
    }
}

/* ---- rope tables ------------------------------------------------------------------------------------------------- */

struct rope_job {
    const struct decoder *d;
    bool local;
    float *table;
};

static void rope_tile(void *ctx, uint32_t tile, uint32_t worker)
{
    (void)worker;
    const struct rope_job *j = ctx;
    const uint32_t context = j->d->o.context_max, first = tile * ROPE_TILE;
    rope_fill(&j->d->cfg.rope, j->local, context, first, MIN(context - first, (uint32_t)ROPE_TILE), j->table);
}

static enum err make_rope_table(struct decoder *d, bool local, float **out, struct error *e)
{
    const size_t n = (size_t)d->o.context_max * d->cfg.rope.dims;
    float *host = mem_array(n, sizeof *host);
    if (host == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the rope table of %u positions", d->o.context_max);
    struct rope_job job = {d, local, host};
    decoder_host_run(d, (d->o.context_max + ROPE_TILE - 1) / ROPE_TILE, rope_tile, &job);
    const enum err err = decoder_alloc(d, n, sizeof *host, (void **)out, e);
    if (err == OK)
        d->ops->dev_write(d->dev, *out, host, n * sizeof *host);
    mem_free(host);
    return err;
}

static enum err check_rope_tensor(const struct model_tensor *t, uint32_t n, struct error *e)
{
    if (t == NULL)
        return OK;
    if (tensor_n_elems(&t->view) != n || n > MODEL_ROPE_FACTORS_MAX || dtype_info(t->view.dtype)->dequant == NULL)
        return FAIL(e, ERR_FORMAT, "tensor %.*s does not hold %u rope divisors", (int)t->name.n, t->name.p, n);
    return OK;
}

static enum err check_rope(const struct model_config *c, struct error *e)
{
    const uint32_t half = c->rope.dims / 2;
    TRY(check_rope_tensor(c->rope.freqs, half, e));
    TRY(check_rope_tensor(c->rope.freqs_short, half, e));
    return check_rope_tensor(c->rope.freqs_long, half, e);
}

static enum err make_rope(struct decoder *d, struct error *e)
{
    const struct model_config *c = &d->cfg;
    TRY(check_rope(c, e));
    TRY(make_rope_table(d, false, &d->rope_global, e));
    bool any_local = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        any_local = any_local || c->layer_is_local[i];
    const bool own_table = any_local && (c->rope.base_local != c->rope.base ||
                                            (d->arch->local_rope_unscaled && c->rope.scaling != ROPE_PLAIN));
    if (own_table)
        TRY(make_rope_table(d, true, &d->rope_local, e));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        d->layers[i].window = c->layer_is_local[i] ? c->window : 0;
        d->layers[i].rope = c->layer_is_local[i] && own_table ? d->rope_local : d->rope_global;
    }
    return OK;
}

/* ---- the buffers of a step ----------------------------------------------------------------------------------------
 */

static void collect_forms(struct decoder *d)
{
    for (uint32_t i = 0; i < d->cfg.n_layers; i++) {
        const struct layer *l = &d->layers[i];
        d->attn_forms |= l->q.wants | l->k.wants | l->v.wants;
        d->ffn_forms |= l->gate.wants | l->up.wants | l->router.wants | l->expert_gate.wants | l->expert_up.wants;
        d->o_forms |= l->o.wants;
        d->down_forms |= l->down.wants | l->expert_down.wants;
    }
}

static enum err make_buffers(struct decoder *d, struct error *e)
{
    const struct model_config *c = &d->cfg;
    const struct decoder_options *o = &d->o;
    const uint64_t rows = o->rows_max, q_width = (uint64_t)c->n_heads * c->head_dim;
    /* Activations are exactly as wide as what is read from them: a mixture may name a dense width it does not use. */
    const uint64_t ffn = c->n_experts > 0 ? c->expert_ffn : c->ffn, top_k = c->n_experts > 0 ? c->n_experts_used : 1;
    uint64_t scratch = MAX(q_width + (uint64_t)2 * c->n_kv_heads * c->head_dim, (uint64_t)c->hidden);
    scratch = MAX(scratch, MAX(2 * ffn, (uint64_t)c->hidden) * top_k);
    /* without sharing: every block of the cache, and a partial one per sequence */
    d->table_max = MAX(o->table_max, o->n_blocks + o->seqs_max);
    const size_t words = decoder_batch_words(o, d->table_max);
    d->batch_host = mem_array(words, sizeof *d->batch_host);
    if (d->batch_host == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for the arrays of a step");
    TRY(decoder_alloc(d, words, sizeof(uint32_t), (void **)&d->batch_room, e));
    TRY(decoder_alloc(d, rows * c->hidden, sizeof(float), (void **)&d->x, e));
    TRY(decoder_alloc(d, rows * q_width, sizeof(float), (void **)&d->q, e));
    TRY(decoder_alloc(d, rows * scratch, sizeof(float), (void **)&d->scratch, e));
    TRY(decoder_alloc(d, (uint64_t)o->out_max * c->vocab, sizeof(float), (void **)&d->logits, e));
    TRY(decoder_alloc(d, o->out_max, sizeof(uint32_t), (void **)&d->best, e));
    if (decoder_is_ahead(d)) {
        TRY(decoder_alloc(d, o->out_max, DECODER_ANSWER_BYTES, &d->answers, e));
        d->answers_host = mem_array(o->out_max, DECODER_ANSWER_BYTES);
        if (d->answers_host == NULL)
            return FAIL(e, ERR_NOMEM, "no memory for the answers of a step");
    }
    TRY(decoder_alloc(d, rows * top_k, sizeof(uint32_t), (void **)&d->route_expert, e));
    TRY(decoder_alloc(d, rows * top_k, sizeof(float), (void **)&d->route_weight, e));
    collect_forms(d);
    TRY(d->ops->acts_new(d->dev, o->rows_max, c->hidden, d->attn_forms | d->ffn_forms, &d->normed, e));
    TRY(d->ops->acts_new(d->dev, o->rows_max, (uint32_t)q_width, d->o_forms, &d->attended, e));
    TRY(d->ops->acts_new(d->dev, (uint32_t)(rows * top_k), (uint32_t)ffn, d->down_forms, &d->hidden, e));
    return d->ops->acts_new(d->dev, o->out_max, c->hidden, d->head.wants, &d->top, e);
}

struct step_sizes decoder_step_sizes(const struct model_config *c, uint32_t rows_max, uint32_t out_max)
{
    return (struct step_sizes){.rows_max = rows_max,
        .out_max = out_max,
        .vocab = c->vocab,
        .hidden = c->hidden,
        .n_layers = c->n_layers,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .n_experts = c->n_experts,
        .top_k = c->n_experts_used};
}

static enum err make_rooms(struct decoder *d, struct error *e)
{
    const struct step_sizes sizes = decoder_step_sizes(&d->cfg, d->o.rows_max, d->o.out_max);
    return d->ops->rooms_make != NULL ? d->ops->rooms_make(d->dev, &sizes, e) : OK;
}

static enum err copy_final_gain(struct decoder *d, struct error *e)
{
    const size_t n = d->cfg.hidden;
    d->final_gain = mem_array(n, sizeof *d->final_gain);
    if (d->final_gain == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu gains", n);
    d->ops->dev_read(d->dev, d->final_gain, d->final_norm, n * sizeof *d->final_gain);
    return d->ops->dev_wait(d->dev, e);
}

static enum err check_config(struct decoder *d, const struct weight_source *src, struct error *e)
{
    const struct model_config *c = &d->cfg;
    if (!c->arch_known || (d->arch = arch_find(c->arch)) == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "architecture '%s' is not supported", c->arch_name);
    if (c->quant_refusal[0] != '\0' && !src->is_gguf) /* random weights are as GGUF has them */
        return FAIL(e, ERR_UNSUPPORTED, "%s", c->quant_refusal);
    if (c->n_experts > 0 && c->n_experts_used > MODEL_EXPERTS_USED_MAX)
        return FAIL(e, ERR_LIMIT, "%u experts per token; the limit is %d", c->n_experts_used, MODEL_EXPERTS_USED_MAX);
    return OK;
}

static enum err check_options(struct decoder *d, struct error *e)
{
    const struct model_config *c = &d->cfg;
    struct decoder_options *o = &d->o;
    if (o->context_max == 0)
        o->context_max = c->context_length;
    if (o->context_max > c->context_length)
        return FAIL(e, ERR_INVALID, "a context of %u tokens was asked for; the model has %u", o->context_max,
            c->context_length);
    if ((d->ops->kv_dtypes >> o->kv_dtype & 1) == 0)
        return FAIL(
            e, ERR_UNSUPPORTED, "a KV cache of type %s is not supported on %s", dtype_name(o->kv_dtype), d->ops->name);
    if (o->fp8 && !d->ops->has_fp8)
        return FAIL(e, ERR_UNSUPPORTED, "F8 weights are not supported on %s", d->ops->name);
    assert(o->rows_max > 0 && o->out_max > 0 && o->seqs_max > 0 && o->n_blocks > 0);
    o->blocks_least = o->blocks_least != 0 ? o->blocks_least : o->n_blocks;
    return OK;
}

static uint64_t bytes_of(const struct weight_source *src)
{
    uint64_t total = 0;
    if (src->find == find_in_file)
        for (uint64_t i = 0; i < model_tensor_count(src->ctx); i++)
            total += model_tensor_at(src->ctx, i)->view.bytes;
    return total;
}

enum err decoder_check(const struct weight_source *src, const struct model_config *cfg, struct error *e)
{
    struct decoder *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to check a model");
    d->cfg = *cfg;
    enum err err = check_config(d, src, e);
    if (err == OK && (d->layers = mem_array(cfg->n_layers, sizeof *d->layers)) == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory for %u layers", cfg->n_layers);
    if (err == OK)
        err = decoder_look(d, src, e);
    if (err == OK)
        err = check_rope(cfg, e);
    mem_free(d->layers);
    mem_free(d);
    return err;
}

/* ---- when a device's memory is short ------------------------------------------------------------------------------
 */

/* Bytes free on a device with memory of its own for which somebody has counted; else 0. */
static uint64_t counted_free(const struct decoder_options *o)
{
    return o->ops->memory_free != NULL && o->fit != NULL ? o->ops->memory_free() : 0;
}

/* The same count with what is really there. What is named instead has to be within both counts. */
static enum err check_room(const struct decoder_options *o, uint64_t free_bytes, struct error *e)
{
    if (o->ops->memory_free == NULL || o->fit == NULL)
        return OK;
    struct fit f = *o->fit;
    f.memory_bytes = MAX(free_bytes, (uint64_t)1);
    f.spare_bytes = spare_of(o->ops);
    if (fit_check(&f, NULL) == OK)
        return OK;
    f.spare_bytes = o->fit->spare_bytes;
    return fit_check(&f, e);
}

/* A device had no memory, and all was given back: said as what to lower. More: bytes that weights take and were not
 * counted; of weights that did not fit, those that would have. */
static void say_short(const struct decoder_options *o, bool is_bound, uint64_t more, struct error *e)
{
    const uint64_t now = counted_free(o);
    struct error said = {0};
    if (o->fit != NULL && !is_bound)
        more = now - MIN(now, o->fit->weight_bytes);
    if (check_room(o, now - MIN(now, more), &said) != OK && e != NULL)
        *e = said;
}

enum err decoder_open(const struct weight_source *src, const struct model_config *cfg, const struct decoder_options *o,
    struct decoder **out, struct error *e)
{
    *out = NULL;
    struct decoder *d = mem_zalloc(sizeof *d);
    if (d == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a decoder");
    d->o = *o;
    d->cfg = *cfg;
    d->ops = o->ops;
    d->total_bytes = bytes_of(src);
    enum err err = check_config(d, src, e);
    if (err == OK)
        err = check_options(d, e);
    if (err == OK) {
        d->rope_style = src->is_gguf ? d->arch->gguf_rope : ROPE_HALVES;
        d->layers = mem_array(cfg->n_layers, sizeof *d->layers);
        if (d->layers == NULL)
            err = FAIL(e, ERR_NOMEM, "no memory for %u layers", cfg->n_layers);
    }
    const struct dev_options dev = {.threads = o->threads,
        .rows_max = o->rows_max,
        .out_max = o->out_max,
        .weight_bytes = o->fit != NULL ? o->fit->weight_bytes : o->weight_bytes,
        .deterministic = o->deterministic,
        .fp8 = o->fp8,
        .choices_dir = o->choices_dir};
    const uint64_t before = counted_free(o);
    if (err == OK)
        err = d->ops->dev_open(&dev, &d->dev, e);
    const uint64_t opened = counted_free(o);
    if (err == OK)
        err = decoder_bind(d, src, e);
    const bool is_bound = err == OK;
    const uint64_t taken = opened - MIN(opened, counted_free(o));
    const uint64_t more = o->fit != NULL ? taken - MIN(taken, o->fit->weight_bytes) : 0;
    if (err == OK)
        err = check_room(o, before - MIN(before, more), e);
    const bool takes_rest = d->ops->memory_free != NULL; /* otherwise what is too large fails before any work */
    if (err == OK && !takes_rest)
        err = make_kv(d, e);
    if (err == OK)
        err = make_rooms(d, e);
    if (err == OK)
        err = make_rope(d, e);
    if (err == OK)
        err = make_buffers(d, e);
    if (err == OK && takes_rest)
        err = make_kv(d, e);
    if (err == OK)
        err = copy_final_gain(d, e);
    if (err == OK)
        err = decoder_rehearse(d, e);
    if (err != OK) {
        decoder_close(d);
        if (err == ERR_NOMEM)
            say_short(o, is_bound, more, e);
        return err;
    }
    *out = d;
    return OK;
}

void decoder_close(struct decoder *d)
{
    if (d == NULL)
        return;
    if (d->dev != NULL) {
        decoder_drop_weights(d);
        struct acts *const acts[] = {d->normed, d->attended, d->hidden, d->top};
        for (size_t i = 0; i < COUNT_OF(acts); i++)
            d->ops->acts_free(d->dev, acts[i]);
        while (d->n_owned > 0)
            d->ops->dev_free(d->dev, d->owned[--d->n_owned]);
        d->ops->dev_close(d->dev);
    }
    while (d->n_converted > 0)
        mem_free(d->converted[--d->n_converted]);
    mem_free(d->converted);
    mem_free(d->owned);
    mem_free(d->batch_host);
    mem_free(d->answers_host);
    mem_free(d->final_gain);
    mem_free(d->layers);
    mem_free(d);
}

const struct device_choices *decoder_choices(const struct decoder *d)
{
    return &d->choices;
}

const char *decoder_describe(const struct decoder *d, char out[DESCRIBE_BYTES])
{
    const struct layer *l = &d->layers[0];
    const bool is_dense = l->gate.n_out != 0;
    d->ops->describe(d->dev,
        &(struct describe_args){.q = &l->q,
            .o = &l->o,
            .gate = is_dense ? &l->gate : NULL,
            .down = is_dense ? &l->down : NULL,
            .head = &d->head,
            .is_plain = is_dense && l->q_norm == NULL && l->k_norm == NULL && l->post_attn_norm == NULL &&
                        l->post_ffn_norm == NULL && l->o.bias == NULL && l->down.bias == NULL,
            .layer = &l->kv,
            .n_heads = d->cfg.n_heads,
            .n_kv_heads = d->cfg.n_kv_heads,
            .head_dim = d->cfg.head_dim,
            .rope_dims = d->cfg.rope.dims,
            .rope = d->rope_style},
        out);
    return out;
}

uint32_t decoder_hidden(const struct decoder *d)
{
    return d->cfg.hidden;
}

uint32_t decoder_vocab(const struct decoder *d)
{
    return d->cfg.vocab;
}

uint32_t decoder_context(const struct decoder *d)
{
    return d->o.context_max;
}

uint64_t decoder_weight_bytes(const struct decoder *d)
{
    return d->weight_bytes;
}

uint64_t decoder_block_bytes(const struct decoder *d)
{
    return d->kv.block_bytes;
}

struct kv_cache *decoder_kv(struct decoder *d)
{
    return &d->kv;
}
