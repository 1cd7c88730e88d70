/* What `quern inspect` found, as text for people and as JSON for programs. The JSON keys are a contract: docs/cli.md
 * lists them, and they are only ever added to. Names from files are untrusted: text goes through out_safe, JSON through
 * out_json_str. */
#include "cli/inspect_int.h"

#include "base/machine.h"

#include <stdio.h>
#include <string.h>

const char *inspect_show_bytes(uint64_t bytes, char text[24])
{
    return bytes_show(bytes, text);
}

/* ---- text ---- */

static const char *show_count(uint64_t n, char text[24])
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    double v = (double)n;
    size_t u = 0;
    for (; v >= 1000 && u + 1 < COUNT_OF(units); u++)
        v /= 1000;
    snprintf(text, 24, u == 0 ? "%.0f%s" : v < 10 ? "%.2f%s" : v < 100 ? "%.1f%s" : "%.0f%s", v, units[u]);
    return text;
}

static void label(struct out *out, const char *name)
{
    out_printf(out, "%-15s", name);
}

static void text_source(struct out *out, const struct inspect *x)
{
    char size[24];
    uint64_t bytes = 0;
    const uint32_t n = model_part_count(x->source);
    for (uint32_t i = 0; i < n; i++)
        bytes += model_part_at(x->source, i)->bytes;
    if (x->config.name[0] != '\0') {
        label(out, "model");
        out_safe(out, str_of(x->config.name));
        out_text(out, "\n");
    }
    label(out, "file");
    out_safe(out, str_of(model_source_path(x->source)));
    out_text(out, "\n");
    label(out, "format");
    if (x->gguf_version != 0)
        out_printf(out, "GGUF version %u, ", x->gguf_version);
    else
        out_text(out, "safetensors, ");
    out_printf(out, "%u file%s, %s\n", n, n == 1 ? "" : "s", inspect_show_bytes(bytes, size));
}

static void text_config(struct out *out, const struct inspect *x)
{
    const struct model_config *c = &x->config;
    char count[24];
    label(out, "architecture");
    out_safe(out, str_of(c->arch_name));
    if (c->arch_known && strcmp(c->arch_name, model_arch_name(c->arch)) != 0)
        out_printf(out, " (%s)", model_arch_name(c->arch));
    out_text(out, "\n");
    label(out, "parameters");
    out_printf(out, "%s (%llu)\n", show_count(x->n_params, count), (unsigned long long)x->n_params);
    if (c->context_length != 0) {
        label(out, "context");
        out_printf(out, "%u tokens", c->context_length);
        if (c->window != 0)
            out_printf(out, ", sliding window of %u", c->window);
        out_text(out, "\n");
    }
    if (c->arch_known) {
        label(out, "shape");
        out_printf(out, "%u layers, hidden %u, ffn %u, %u heads of %u (%u for keys and values)\n", c->n_layers,
            c->hidden, c->ffn, c->n_heads, c->head_dim, c->n_kv_heads);
    }
    if (c->n_experts != 0) {
        label(out, "experts");
        out_printf(out, "%u, %u used per token\n", c->n_experts, c->n_experts_used);
    }
    label(out, "tokenizer");
    if (x->tokenizer[0] == '\0')
        out_text(out, "none\n");
    else if (x->tok_kind == NULL || strcmp(x->tok_kind, x->tokenizer) == 0)
        out_printf(out, "%s, %llu tokens\n", x->tokenizer, (unsigned long long)x->n_tokens);
    else
        out_printf(out, "%s (%s), %llu tokens\n", x->tok_kind, x->tokenizer, (unsigned long long)x->n_tokens);
    label(out, "chat template");
    if (x->template_bytes != 0)
        out_printf(out, "yes, %llu bytes\n", (unsigned long long)x->template_bytes);
    else
        out_text(out, "no\n");
}

static void text_tensors(struct out *out, const struct inspect *x)
{
    char size[24];
    label(out, "tensors");
    out_printf(out, "%llu, %s\n", (unsigned long long)model_tensor_count(x->source),
        inspect_show_bytes(x->weight_bytes, size));
    for (size_t d = 0; d < DTYPE_COUNT; d++) {
        const struct inspect_dtype *t = &x->dtypes[d];
        if (t->n_tensors == 0)
            continue;
        label(out, "");
        out_printf(out, "%-8s %6llu tensor%s %12s %5.1f%%\n", dtype_name((enum dtype)d),
            (unsigned long long)t->n_tensors, t->n_tensors == 1 ? " " : "s", inspect_show_bytes(t->bytes, size),
            x->weight_bytes > 0 ? 100.0 * (double)t->bytes / (double)x->weight_bytes : 0.0);
    }
}

static void text_memory(struct out *out, const struct inspect *x)
{
    char weights[24], kv[24], need[24], have[24];
    label(out, "memory needed");
    inspect_show_bytes(x->weight_bytes, weights);
    if (x->kv_known)
        out_printf(out, "%s = weights %s + cache %s (%llu x %llu tokens, %s)\n",
            inspect_show_bytes(x->need_bytes, need), weights, inspect_show_bytes(x->kv_bytes, kv),
            (unsigned long long)x->n_seqs, (unsigned long long)x->max_len, dtype_name(x->kv_dtype));
    else
        out_printf(out, "weights %s; the cache's size is not known\n", weights);
    label(out, "available");
    if (x->memory_bytes == 0)
        out_text(out, "not known\n");
    else
        out_printf(out, "%s: %s\n", inspect_show_bytes(x->memory_bytes, have), x->fits ? "fits" : "does not fit");
}

void inspect_print_text(struct out *out, const struct inspect *x, bool tensors)
{
    text_source(out, x);
    text_config(out, x);
    text_tensors(out, x);
    text_memory(out, x);
    out_text(out, "\n");
    out_safe(out, str_of(x->verdict));
    out_text(out, "\n");
    if (!tensors)
        return;
    out_text(out, "\n");
    const uint64_t n = model_tensor_count(x->source);
    for (uint64_t i = 0; i < n; i++) {
        const struct model_tensor *t = model_tensor_at(x->source, i);
        char shape[TENSOR_DIMS_MAX * 24] = "scalar";
        size_t at = 0;
        for (uint32_t k = 0; k < t->view.n_dims; k++)
            at += (size_t)snprintf(
                shape + at, sizeof shape - at, "%s%llu", k > 0 ? "x" : "", (unsigned long long)t->view.shape[k]);
        out_printf(out, "%-8s %-20s %14zu  ", dtype_name(t->view.dtype), shape, t->view.bytes);
        out_safe(out, t->name);
        out_text(out, "\n");
    }
}

/* ---- JSON ---- */

static void json_key(struct out *out, const char *key)
{
    out_printf(out, ",\"%s\":", key);
}

static void json_u64(struct out *out, const char *key, uint64_t v)
{
    json_key(out, key);
    out_printf(out, "%llu", (unsigned long long)v);
}

static void json_bool(struct out *out, const char *key, bool v)
{
    json_key(out, key);
    out_text(out, v ? "true" : "false");
}

static void json_text(struct out *out, const char *key, const char *v)
{
    json_key(out, key);
    out_json_str(out, str_of(v));
}

static void json_source(struct out *out, const struct inspect *x)
{
    out_text(out, "{\"path\":");
    out_json_str(out, str_of(model_source_path(x->source)));
    json_text(out, "format", x->gguf_version != 0 ? "gguf" : "safetensors");
    if (x->gguf_version != 0)
        json_u64(out, "gguf_version", x->gguf_version);
    json_text(out, "name", x->config.name);
    json_key(out, "files");
    for (uint32_t i = 0; i < model_part_count(x->source); i++) {
        const struct model_part *p = model_part_at(x->source, i);
        out_text(out, i == 0 ? "[{\"path\":" : ",{\"path\":");
        out_json_str(out, str_of(p->path));
        json_u64(out, "bytes", p->bytes);
        json_u64(out, "tensors", p->n_tensors);
        out_text(out, "}");
    }
    out_text(out, "]");
}

static void json_config(struct out *out, const struct inspect *x)
{
    const struct model_config *c = &x->config;
    json_text(out, "architecture", c->arch_name);
    json_text(out, "family", model_arch_name(c->arch));
    json_u64(out, "parameters", x->n_params);
    json_u64(out, "context_length", c->context_length);
    json_u64(out, "layers", c->n_layers);
    json_u64(out, "hidden_size", c->hidden);
    json_u64(out, "ffn_size", c->ffn);
    json_u64(out, "heads", c->n_heads);
    json_u64(out, "kv_heads", c->n_kv_heads);
    json_u64(out, "head_dim", c->head_dim);
    json_u64(out, "vocab_size", c->vocab);
    json_u64(out, "sliding_window", c->window);
    json_u64(out, "experts", c->n_experts);
    json_u64(out, "experts_used", c->n_experts_used);
    json_text(out, "quantization_method", c->quant_method);
    json_key(out, "tokenizer");
    if (x->tokenizer[0] == '\0')
        out_text(out, "null");
    else {
        out_text(out, "{\"model\":");
        out_json_str(out, str_of(x->tokenizer));
        if (x->tok_kind != NULL)
            json_text(out, "kind", x->tok_kind);
        json_u64(out, "tokens", x->n_tokens);
        json_bool(out, "supported", x->tok_kind != NULL);
        out_text(out, "}");
    }
    json_bool(out, "chat_template", x->template_bytes != 0);
    json_u64(out, "chat_template_bytes", x->template_bytes);
}

static void json_types(struct out *out, const struct inspect *x)
{
    bool any = false;
    json_u64(out, "tensor_count", model_tensor_count(x->source));
    json_key(out, "tensor_types");
    out_text(out, "[");
    for (size_t d = 0; d < DTYPE_COUNT; d++) {
        const struct inspect_dtype *t = &x->dtypes[d];
        if (t->n_tensors == 0)
            continue;
        out_printf(out, "%s{\"type\":\"%s\"", any ? "," : "", dtype_name((enum dtype)d));
        json_u64(out, "tensors", t->n_tensors);
        json_u64(out, "elements", t->n_elems);
        json_u64(out, "bytes", t->bytes);
        json_bool(out, "supported", inspect_reads(x, (enum dtype)d));
        out_text(out, "}");
        any = true;
    }
    out_text(out, "]");
}

static void json_memory(struct out *out, const struct inspect *x)
{
    json_key(out, "memory");
    out_printf(out, "{\"weights_bytes\":%llu", (unsigned long long)x->weight_bytes);
    if (x->kv_known) {
        json_u64(out, "kv_cache_bytes", x->kv_bytes);
        json_text(out, "kv_cache_dtype", dtype_name(x->kv_dtype));
        json_u64(out, "max_model_len", x->max_len);
        json_u64(out, "max_num_seqs", x->n_seqs);
    } else
        out_text(out, ",\"kv_cache_bytes\":null");
    json_u64(out, "needed_bytes", x->need_bytes);
    json_u64(out, "machine_bytes", x->memory_bytes);
    json_bool(out, "fits", x->fits);
    out_text(out, "}");
}

static void json_tensor(struct out *out, const struct model_tensor *t)
{
    out_text(out, "{\"name\":");
    out_json_str(out, t->name);
    json_text(out, "type", dtype_name(t->view.dtype));
    json_key(out, "shape");
    out_text(out, "[");
    for (uint32_t k = 0; k < t->view.n_dims; k++)
        out_printf(out, "%s%llu", k > 0 ? "," : "", (unsigned long long)t->view.shape[k]);
    out_text(out, "]");
    json_u64(out, "bytes", t->view.bytes);
    json_u64(out, "file", t->part);
    json_u64(out, "offset", t->offset);
    out_text(out, "}");
}

void inspect_print_json(struct out *out, const struct inspect *x, bool tensors)
{
    json_source(out, x);
    json_config(out, x);
    json_types(out, x);
    json_memory(out, x);
    json_bool(out, "supported", x->n_reasons == 0);
    json_key(out, "reasons");
    out_text(out, "[");
    for (size_t i = 0; i < x->n_reasons; i++) {
        out_text(out, i > 0 ? "," : "");
        out_json_str(out, str_of(x->reasons[i]));
    }
    out_text(out, "]");
    json_text(out, "verdict", x->verdict);
    if (tensors) {
        json_key(out, "tensors");
        out_text(out, "[");
        for (uint64_t i = 0; i < model_tensor_count(x->source); i++) {
            out_text(out, i > 0 ? ",\n" : "\n");
            json_tensor(out, model_tensor_at(x->source, i));
        }
        out_text(out, "]");
    }
    out_text(out, "}\n");
}
