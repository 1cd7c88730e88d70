/* What a model holds and whether quern can run it: the rules, apart from how they are shown.
 *
 * Memory needed = the bytes of all tensors + the keys and values of max-num-seqs sequences of max-model-len tokens.
 * Scratch memory of a running batch is not in it: it is small beside the two and depends on options of the server.
 * A sliding-window layer keeps no more than its window.
 *
 * "Supported" means: the architecture has a row in model/arch.c, every tensor type is one that tensor/ can convert, no
 * quantisation scheme lies on top, the tensors the architecture needs are there in the shapes it needs, and the
 * tokenizer is one that text/ does. All reasons are collected, not only the first, so that a user need not fix them one
 * at a time; of the tensors only the first that is wrong is named. */
#include "cli/inspect_int.h"

#include "base/limits.h"
#include "base/machine.h"
#include "base/mem.h"
#include "cli/fit.h"
#include "format/format_gguf.h"
#include "model/arch.h"
#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void add_reason(struct inspect *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_reason(struct inspect *x, const char *fmt, ...)
{
    if (x->n_reasons == INSPECT_REASONS_MAX)
        return; /* eight reasons are enough to decide on */
    va_list args;
    va_start(args, fmt);
    vsnprintf(x->reasons[x->n_reasons++], sizeof x->reasons[0], fmt, args);
    va_end(args);
}

static uint64_t add_sat(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t mul_sat(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static void count_tensors(struct inspect *x)
{
    const uint64_t n = model_tensor_count(x->source);
    for (uint64_t i = 0; i < n; i++) {
        const struct tensor_view *v = &model_tensor_at(x->source, i)->view;
        struct inspect_dtype *d = &x->dtypes[v->dtype];
        const uint64_t n_elems = tensor_n_elems(v);
        d->n_tensors++;
        d->n_elems += n_elems; /* bounded by the sizes of the files, which add up below 2^63 */
        d->bytes += v->bytes;
        x->n_params += n_elems;
        x->weight_bytes += v->bytes;
    }
}

static enum err estimate_memory(struct inspect *x, const struct options *o, struct error *e)
{
    const struct model_config *c = &x->config;
    if (c->context_length != 0 && o->max_model_len > c->context_length)
        return FAIL(e, ERR_INVALID, "option --max-model-len: %llu is more than the model's context of %u tokens",
            (unsigned long long)o->max_model_len, c->context_length);
    x->max_len = o->max_model_len != 0 ? o->max_model_len : c->context_length;
    x->n_seqs = MAX(o->max_num_seqs, (uint64_t)1);
    x->kv_dtype = o->kv_cache_dtype == KV_AUTO ? DTYPE_F16 : fit_kv_dtype(o->kv_cache_dtype); /* or BF16, as large */
    x->memory_bytes = o->memory_bytes != 0 ? o->memory_bytes : machine_memory_bytes();
    x->kv_known = c->arch_known && x->max_len != 0;
    if (x->kv_known) {
        const uint64_t token_bytes = mul_sat(2 * (uint64_t)kv_row_bytes(x->kv_dtype, c->head_dim), c->n_kv_heads);
        uint64_t tokens = 0; /* of all layers of one sequence */
        for (uint32_t i = 0; i < c->n_layers; i++)
            tokens += c->layer_is_local[i] && c->window != 0 ? MIN(x->max_len, c->window) : x->max_len;
        x->kv_bytes = mul_sat(mul_sat(tokens, token_bytes), x->n_seqs);
    }
    x->need_bytes = add_sat(x->weight_bytes, x->kv_bytes);
    x->fits = x->memory_bytes == 0 || x->need_bytes <= x->memory_bytes;
    return OK;
}

static void say_verdict(struct inspect *x)
{
    const size_t cap = sizeof x->verdict;
    size_t at;
    if (x->n_reasons == 0) {
        char need[24], have[24];
        at = (size_t)snprintf(x->verdict, cap,
            "quern supports this model: it knows the architecture '%s', the tokenizer and every tensor",
            model_arch_name(x->config.arch));
        if (!x->fits)
            at += (size_t)snprintf(x->verdict + at, cap - at, ", but it needs %s of memory and there are %s",
                inspect_show_bytes(x->need_bytes, need), inspect_show_bytes(x->memory_bytes, have));
    } else {
        at = (size_t)snprintf(x->verdict, cap, "quern cannot run this model: ");
        for (size_t i = 0; i < x->n_reasons && at < cap; i++)
            at += (size_t)snprintf(x->verdict + at, cap - at, "%s%s", i > 0 ? "; " : "", x->reasons[i]);
    }
    if (at < cap)
        snprintf(x->verdict + at, cap - at, ".");
}

/* For a known architecture with known types; otherwise it would say the same again. No memory is no fact about a model.
 */
static enum err judge_tensors(struct inspect *x, struct error *e)
{
    struct error why = {0};
    const struct weight_source src = decoder_file_source(x->source);
    const enum err err = decoder_check(&src, &x->config, &why);
    if (err == ERR_NOMEM)
        return FAIL(e, err, "%s", why.text);
    if (err != OK)
        add_reason(x, "%s", why.text);
    return OK;
}

bool inspect_reads(const struct inspect *x, enum dtype d)
{
    return (dtype_info(d)->flags & DTYPE_IS_WEIGHT) ||
           (x->config.quant_is_i8 && (d == DTYPE_I8 || d == DTYPE_I32 || d == DTYPE_I64));
}

static enum err judge(struct inspect *x, struct error *e)
{
    const struct model_config *c = &x->config;
    if (!c->arch_known || arch_find(c->arch) == NULL)
        add_reason(x, "architecture '%s' is not supported", c->arch_name[0] ? c->arch_name : "(not named)");
    if (c->quant_refusal[0] != '\0')
        add_reason(x, "%s", c->quant_refusal);
    if (model_tensor_count(x->source) == 0)
        add_reason(x, "there are no tensors");
    for (size_t d = 0; d < DTYPE_COUNT; d++)
        if (x->dtypes[d].n_tensors > 0 && !inspect_reads(x, (enum dtype)d))
            add_reason(x, "tensor type %s is not supported (%llu tensors)", dtype_name((enum dtype)d),
                (unsigned long long)x->dtypes[d].n_tensors);
    if (x->n_reasons == 0)
        TRY(judge_tensors(x, e));
    if (x->tokenizer[0] == '\0')
        add_reason(x, "there is no tokenizer");
    else if (x->tok_kind == NULL)
        add_reason(x, "tokenizer '%s' is not supported", x->tokenizer);
    say_verdict(x);
    return OK;
}

enum err inspect_gather(struct inspect *x, const struct model_source *s, const struct options *o, struct error *e)
{
    char *template;
    size_t n;
    memset(x, 0, sizeof *x);
    x->source = s;
    TRY(model_config_read(s, &x->config, e));
    TRY(inspect_tokenizer(x, e));
    TRY(model_source_chat_template(s, &template, &n, e));
    x->template_bytes = template != NULL ? n : 0;
    mem_free(template);
    if (model_source_gguf(s) != NULL)
        x->gguf_version = gguf_version(model_source_gguf(s));
    count_tensors(x);
    TRY(estimate_memory(x, o, e));
    return judge(x, e);
}
