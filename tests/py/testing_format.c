/* Doors of format/ for the Python oracle tests: an open model as a handle, everything known about it as one JSON text,
 * and the bytes of its tensors. */
#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/format_gguf.h"

#include <math.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* NULL when refused; the code and the sentence (512 bytes) say why. */
EXPORT struct model_source *quern_testing_model_open(const char *path, int *code, char *text)
{
    struct model_source *s;
    struct error e = {0};
    *code = (int)model_source_open(path, &s, &e);
    memcpy(text, e.text, ERROR_TEXT_MAX);
    return s;
}

EXPORT void quern_testing_model_close(struct model_source *s)
{
    model_source_close(s);
}

EXPORT const void *quern_testing_model_tensor(const struct model_source *s, uint64_t i, uint64_t *bytes)
{
    const struct model_tensor *t = model_tensor_at(s, i);
    *bytes = t->view.bytes;
    return t->view.data;
}

EXPORT int quern_testing_model_recheck(const struct model_source *s)
{
    return (int)model_source_recheck(s, NULL);
}

static void add_f64(struct buf *b, const char *key, double v)
{
    if (isfinite(v))
        buf_addf(b, "\"%s\":%.17g,", key, v);
    else
        buf_addf(b, "\"%s\":null,", key);
}

static void add_str(struct buf *b, const char *key, const char *v)
{
    buf_addf(b, "\"%s\":", key);
    buf_add_json_str(b, str_of(v));
    buf_add_char(b, ',');
}

static void add_tensors(struct buf *b, const struct model_source *s)
{
    buf_addf(b, "\"tensors\":[");
    for (uint64_t i = 0; i < model_tensor_count(s); i++) {
        const struct model_tensor *t = model_tensor_at(s, i);
        buf_addf(b, "%s{\"name\":", i == 0 ? "" : ",");
        buf_add_json_str(b, t->name);
        buf_addf(b, ",\"dtype\":\"%s\",\"part\":%u,\"offset\":%llu,\"bytes\":%zu,\"shape\":[",
            dtype_name(t->view.dtype), t->part, (unsigned long long)t->offset, t->view.bytes);
        for (uint32_t k = 0; k < t->view.n_dims; k++)
            buf_addf(b, "%s%llu", k == 0 ? "" : ",", (unsigned long long)t->view.shape[k]);
        buf_addf(b, "]}");
    }
    buf_addf(b, "],\"parts\":[");
    for (uint32_t i = 0; i < model_part_count(s); i++) {
        buf_addf(b, "%s", i == 0 ? "" : ",");
        buf_add_json_str(b, str_of(model_part_at(s, i)->path));
    }
    buf_addf(b, "],");
}

/* Through the typed getters, as other rooms read. */
static void add_scalar(struct buf *b, const struct gguf *g, const struct gguf_field *f)
{
    char key[256];
    struct error e = {0};
    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    bool yes = false;
    struct str text = {0};
    memcpy(key, f->key.p, MIN(f->key.n, sizeof key - 1));
    key[MIN(f->key.n, sizeof key - 1)] = '\0';
    if (f->type == GGUF_STRING && gguf_get_str(g, key, &text, &e) == OK)
        buf_add_json_str(b, text);
    else if (f->type == GGUF_BOOL && gguf_get_bool(g, key, &yes, &e) == OK)
        buf_addf(b, "%s", yes ? "true" : "false");
    else if (f->type == GGUF_U64 && gguf_get_u64(g, key, 0, UINT64_MAX, &u, &e) == OK)
        buf_addf(b, "%llu", (unsigned long long)u);
    else if (f->type != GGUF_F32 && f->type != GGUF_F64 && gguf_get_i64(g, key, INT64_MIN, INT64_MAX, &i, NULL) == OK)
        buf_addf(b, "%lld", (long long)i);
    else if (gguf_get_f64(g, key, -INFINITY, INFINITY, &d, &e) == OK && isfinite(d))
        buf_addf(b, "%.17g", d);
    else
        buf_addf(b, "null");
}

static void add_array(struct buf *b, struct gguf_array a)
{
    struct str text;
    int64_t i;
    double d;
    const char *comma = "";
    buf_add_char(b, '[');
    while (a.n > 0) {
        buf_addf(b, "%s", comma);
        comma = ",";
        if (gguf_next_str(&a, &text))
            buf_add_json_str(b, text);
        else if (a.type == GGUF_BOOL) {
            buf_addf(b, "%s", *a.p != 0 ? "true" : "false");
            a.p++;
            a.n--;
        } else if (a.type != GGUF_F32 && a.type != GGUF_F64 && gguf_next_i64(&a, &i))
            buf_addf(b, "%lld", (long long)i);
        else if (gguf_next_f64(&a, &d))
            buf_addf(b, "%.17g", d);
        else
            break;
    }
    buf_add_char(b, ']');
}

static void add_fields(struct buf *b, const struct model_source *s)
{
    const struct gguf *g = model_source_gguf(s);
    buf_addf(b, "\"fields\":{");
    for (uint64_t i = 0; g != NULL && i < gguf_field_count(g); i++) {
        const struct gguf_field *f = gguf_field_at(g, i);
        buf_addf(b, "%s", i == 0 ? "" : ",");
        buf_add_json_str(b, f->key);
        buf_add_char(b, ':');
        if (f->type == GGUF_ARRAY)
            add_array(b, f->array);
        else
            add_scalar(b, g, f);
    }
    buf_addf(b, "},");
}

static void add_rope(struct buf *b, const struct model_rope *r)
{
    static const char *const kinds[] = {"plain", "linear", "llama3", "yarn", "longrope"};
    add_str(b, "rope_scaling", kinds[r->scaling]);
    add_f64(b, "rope_base", r->base);
    add_f64(b, "rope_base_local", r->base_local);
    add_f64(b, "rope_factor", r->factor);
    buf_addf(b, "\"rope_dims\":%u,\"rope_original\":%u,\"rope_factors\":%u,", r->dims, r->original_context,
        r->n_factors > 0        ? r->n_factors
        : r->freqs_long != NULL ? (uint32_t)tensor_n_elems(&r->freqs_long->view)
                                : 0);
}

static void add_config(struct buf *b, const struct model_source *s)
{
    struct model_config c;
    struct error e = {0};
    if (model_config_read(s, &c, &e) != OK) {
        add_str(b, "config_error", e.text);
        return;
    }
    buf_addf(b, "\"config\":{");
    add_str(b, "arch", model_arch_name(c.arch));
    add_str(b, "arch_name", c.arch_name);
    add_rope(b, &c.rope);
    add_f64(b, "norm_eps", c.norm_eps);
    add_f64(b, "query_scale", c.query_scale);
    add_f64(b, "attn_softcap", c.attn_softcap);
    add_f64(b, "final_softcap", c.final_softcap);
    add_f64(b, "temperature", c.generation.temperature);
    add_f64(b, "top_p", c.generation.top_p);
    buf_addf(b, "\"top_k\":%lld,\"act\":\"%s\",", (long long)c.generation.top_k, c.act == ACT_SILU ? "silu" : "gelu");
    buf_addf(b, "\"context_length\":%u,\"n_layers\":%u,\"vocab\":%u,\"hidden\":%u,\"ffn\":%u,", c.context_length,
        c.n_layers, c.vocab, c.hidden, c.ffn);
    buf_addf(b, "\"n_heads\":%u,\"n_kv_heads\":%u,\"head_dim\":%u,\"window\":%u,", c.n_heads, c.n_kv_heads, c.head_dim,
        c.window);
    buf_addf(b, "\"n_experts\":%u,\"n_experts_used\":%u,\"expert_ffn\":%u,\"norm_topk\":%d,", c.n_experts,
        c.n_experts_used, c.expert_ffn, c.norm_topk);
    buf_addf(b, "\"tied\":%d,\"qkv_bias\":%d,\"qk_norm\":%d,\"add_bos\":%d,", c.tied_embeddings, c.qkv_bias, c.qk_norm,
        c.add_bos);
    buf_addf(b, "\"bos_id\":%lld,\"eos_ids\":[", (long long)c.bos_id);
    for (uint32_t i = 0; i < c.n_eos; i++)
        buf_addf(b, "%s%u", i == 0 ? "" : ",", c.eos_ids[i]);
    buf_addf(b, "],\"local\":[");
    for (uint32_t i = 0; i < c.n_layers; i++)
        buf_addf(b, "%s%u", i == 0 ? "" : ",", c.layer_is_local[i]);
    buf_addf(b, "]},");
}

/* Everything about the model; to be freed with quern_testing_model_free_text. NULL when out of memory. */
EXPORT char *quern_testing_model_json(const struct model_source *s)
{
    struct buf b;
    char *text;
    size_t n;
    struct error e = {0};
    buf_init(&b, 256 * MIB);
    buf_addf(&b, "{\"kind\":\"%s\",", model_source_kind(s) == MODEL_GGUF ? "gguf" : "safetensors");
    add_tensors(&b, s);
    add_fields(&b, s);
    add_config(&b, s);
    if (model_source_chat_template(s, &text, &n, &e) == OK && text != NULL)
        add_str(&b, "chat_template", text);
    mem_free(text);
    buf_addf(&b, "\"end\":true}");
    if (buf_check(&b, "description", &e) != OK) {
        buf_fini(&b);
        return NULL;
    }
    return b.p;
}

EXPORT void quern_testing_model_free_text(char *text)
{
    mem_free(text);
}
