/* Memory of a model; see fit.h.
 *
 * The buffers follow what model/decoder.c allocates for steps of that many rows: rather more, since a backend may keep
 * activations in several forms, but it is small beside weights and cache. Weights count whole although they are mapped:
 * a model that is read from the disk again for every token is not usable, so it counts as not fitting. */
#include "model/fit.h"

#include "base/limits.h"
#include "base/machine.h"
#include "model/arch.h"
#include "model/model.h"

#include <stdio.h>
#include <string.h>

#define ACT_BYTES      8                 /* of an activation, in the forms that products read */
#define ROW_BYTES      64                /* of a row in the arrays of a step, with the blocks that it names */
#define OUT_BYTES      256               /* of a row that wants logits: what is told of it */
#define MODEL_BYTES    ((size_t)1 << 20) /* whatever else is allocated once */
#define CONTEXT_USEFUL 512u              /* tokens; a shorter context is no advice */

/* Bytes of n_mats matrices of random weights, by the rule of model/dummy.h. */
static uint64_t dummy_bytes(enum dtype dtype, uint64_t n_mats, uint64_t n_out, uint64_t n_in)
{
    const struct dtype_info *info = dtype_info(dtype);
    if (n_in % info->block_elems != 0)
        info = dtype_info(n_in % 32 == 0 ? DTYPE_Q8_0 : DTYPE_F16);
    return n_mats * n_out * (n_in / info->block_elems) * info->block_bytes;
}

/* Bytes of matrices as they will lie on the device: the rules of model/scales.c for INT8 (whatever its scales are), and
 * of cuda/weights.cu where fp8 was asked for. */
static uint64_t bytes_on_device(
    const struct fit *f, enum dtype dtype, uint64_t rows, uint64_t n_out, uint64_t n_in, uint64_t bytes)
{
    const bool made_f8 = f->work_dtype == DTYPE_F8_E4M3 && dtype_info(dtype)->block_bytes > 1 &&
                         (dtype_info(dtype)->flags & DTYPE_IS_FLOAT) && n_in % 16 == 0 && n_out % 16 == 0 &&
                         n_out >= F8_ROWS_LEAST;
    if (made_f8)
        return rows * (n_in + sizeof(float));
    if (dtype == DTYPE_I8)
        return dummy_bytes(n_in % 32 == 0 ? DTYPE_Q8_0 : DTYPE_BF16, 1, rows, n_in);
    return dtype == DTYPE_F8_E4M3 && f->work_dtype == DTYPE_BF16 ? 2 * bytes : bytes;
}

/* One kind of matrix into the sums. used of n_mats take part in a token; a table that is only looked up has none. */
static void add_matrix(
    struct fit *f, enum dtype dtype, uint64_t n_mats, uint64_t used, uint64_t n_out, uint64_t n_in, uint64_t times)
{
    const uint64_t bytes =
        used == 0 ? dummy_bytes(dtype, n_mats, n_out, n_in)
                  : bytes_on_device(f, dtype, n_mats * n_out, n_out, n_in, dummy_bytes(dtype, n_mats, n_out, n_in));
    f->n_params += times * n_mats * n_out * n_in;
    f->weight_bytes += times * bytes;
    f->active_params += times * used * n_out * n_in;
    f->active_bytes += times * (bytes / n_mats * used);
}

static void measure_shape(struct fit *f, const struct model_config *c, enum dtype dtype)
{
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim, kv = (uint64_t)c->n_kv_heads * c->head_dim;
    const uint64_t n = c->n_layers, experts = MAX(c->n_experts, 1u);
    const uint64_t used = c->n_experts > 0 ? c->n_experts_used : 1;
    const uint64_t ffn = c->n_experts > 0 ? c->expert_ffn : c->ffn;
    add_matrix(f, dtype, 1, c->tied_embeddings ? 1 : 0, c->vocab, c->hidden, 1);
    if (!c->tied_embeddings)
        add_matrix(f, dtype, 1, 1, c->vocab, c->hidden, 1);
    add_matrix(f, dtype, 1, 1, q, c->hidden, n);
    add_matrix(f, dtype, 1, 1, kv, c->hidden, 2 * n);
    add_matrix(f, dtype, 1, 1, c->hidden, q, n);
    add_matrix(f, dtype, experts, used, ffn, c->hidden, 2 * n);
    add_matrix(f, dtype, experts, used, c->hidden, ffn, n);
    if (c->n_experts > 0)
        add_matrix(f, DTYPE_F32, 1, 1, c->n_experts, c->hidden, n);
}

/* Is this tensor one of the experts': as the architecture's table names them, stacked or one by one. */
static bool is_expert(struct str name)
{
    return memmem(name.p, name.n, "_exps.", 6) != NULL || memmem(name.p, name.n, ".experts.", 9) != NULL;
}

/* A tensor as it counts: INT8 may lie in I32, four numbers each. */
static struct tensor_view counted(const struct model_config *c, const struct model_tensor *t)
{
    struct tensor_view v = t->view;
    if (c->quant_is_i8 && v.dtype == DTYPE_I32 && v.n_dims == 2) {
        v.dtype = DTYPE_I8;
        v.shape[1] *= 4;
    }
    return v;
}

static enum dtype main_dtype_of(const struct model_config *c, const struct model_source *s)
{
    uint64_t by_dtype[DTYPE_COUNT] = {0};
    enum dtype most = (enum dtype)0;
    for (uint64_t i = 0; i < model_tensor_count(s); i++) {
        const struct tensor_view v = counted(c, model_tensor_at(s, i));
        by_dtype[v.dtype == DTYPE_I8 ? DTYPE_Q8_0 : v.dtype] += v.bytes;
    }
    for (size_t d = 0; d < DTYPE_COUNT; d++)
        if (by_dtype[d] > by_dtype[most])
            most = (enum dtype)d;
    return most;
}

static void measure_source(struct fit *f, const struct model_config *c, const struct model_source *s)
{
    uint64_t expert_bytes = 0, expert_params = 0, looked_up = 0, looked_up_params = 0;
    const struct arch *arch = arch_find(c->arch);
    const struct arch_names *names = arch == NULL ? NULL : model_source_kind(s) == MODEL_GGUF ? arch->gguf : arch->hf;
    for (uint64_t i = 0; i < model_tensor_count(s); i++) {
        const struct model_tensor *t = model_tensor_at(s, i);
        const struct tensor_view v = counted(c, t);
        const uint64_t n = tensor_n_elems(&v);
        const bool is_looked_up = names != NULL && !c->tied_embeddings && str_is(t->name, names->embed);
        const uint64_t bytes =
            v.n_dims < 2 || (is_looked_up && v.dtype != DTYPE_I8)
                ? v.bytes
                : bytes_on_device(f, v.dtype, tensor_n_rows(&v), v.shape[v.n_dims - 2], tensor_row_elems(&v), v.bytes);
        f->n_params += n;
        f->weight_bytes += bytes;
        if (c->n_experts > 0 && is_expert(t->name)) {
            expert_bytes += bytes;
            expert_params += n;
        }
        if (is_looked_up) {
            looked_up = bytes;
            looked_up_params = n;
        }
    }
    f->active_bytes = f->weight_bytes - looked_up;
    f->active_params = f->n_params - looked_up_params;
    if (c->n_experts > 0) {
        const uint64_t idle = c->n_experts - MIN(c->n_experts_used, c->n_experts);
        f->active_bytes -= expert_bytes / c->n_experts * idle;
        f->active_params -= expert_params / c->n_experts * idle;
    }
}

/* Of steps of so many rows, out of them with logits: see make_buffers; and the device's own rooms. */
static uint64_t buffers_of(const struct model_config *c, const struct ops *ops, uint64_t rows, uint64_t out)
{
    const uint64_t q = (uint64_t)c->n_heads * c->head_dim, top_k = c->n_experts > 0 ? c->n_experts_used : 1;
    const uint64_t ffn = c->n_experts > 0 ? c->expert_ffn : c->ffn, hidden = c->hidden;
    const uint64_t scratch = MAX(q + (uint64_t)2 * c->n_kv_heads * c->head_dim, MAX(2 * ffn, hidden) * top_k);
    const uint64_t floats = hidden + q + scratch + 2 * top_k, acts = hidden + q + ffn * top_k;
    const uint64_t of_row = floats * sizeof(float) + acts * ACT_BYTES + ROW_BYTES;
    const struct step_sizes sizes = decoder_step_sizes(c, (uint32_t)rows, (uint32_t)out);
    const uint64_t rooms = ops != NULL && ops->rooms_bytes != NULL ? ops->rooms_bytes(&sizes) : 0;
    return rows * of_row + out * (c->vocab * sizeof(float) + hidden * ACT_BYTES + OUT_BYTES) + MODEL_BYTES + rooms;
}

/* What the matrices will be computed as. */
static enum err choose_dtype(struct fit *f, const struct fit_wants *w, struct error *e)
{
    const bool can = w->ops == NULL || w->ops->has_fp8; /* a checkpoint in F8 is made BF16 elsewhere */
    f->work_dtype = f->main_dtype == DTYPE_F8_E4M3 && !can ? DTYPE_BF16 : f->main_dtype;
    if (!w->fp8)
        return OK;
    if (!(dtype_info(f->main_dtype)->flags & DTYPE_IS_FLOAT) || f->main_dtype == DTYPE_F8_E5M2)
        return FAIL(e, ERR_UNSUPPORTED,
            "option --quantization fp8 is for weights of BF16, F16 or F32; this model's are mostly %s",
            dtype_name(f->main_dtype));
    if (!can)
        return FAIL(e, ERR_UNSUPPORTED,
            "option --quantization fp8 needs a CUDA device of compute capability 9.0; %s cannot compute it",
            w->ops->name);
    f->work_dtype = DTYPE_F8_E4M3;
    return OK;
}

static enum dtype kv_dtype_of(const struct fit *f, const struct fit_wants *w)
{
    const bool has_range = f->main_dtype == DTYPE_BF16 || f->main_dtype == DTYPE_F8_E4M3;
    const bool is_liked = w->ops != NULL && w->ops->likes_bf16;
    return w->kv_dtype != FIT_KV_AUTO ? w->kv_dtype : has_range && is_liked ? DTYPE_BF16 : DTYPE_F16;
}

enum err fit_measure(struct fit *f, const struct model_config *c, const struct model_source *source,
    const struct fit_wants *w, struct error *e)
{
    *f = (struct fit){.main_dtype = source != NULL ? main_dtype_of(c, source) : w->dummy_dtype,
        .spare_bytes = w->ops != NULL ? w->ops->spare_bytes : 0,
        .wants = *w,
        .config = c,
        .source = source};
    f->kv_dtype = kv_dtype_of(f, w);
    if (!c->arch_known || arch_find(c->arch) == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "architecture '%s' is not supported; see 'quern inspect'",
            c->arch_name[0] ? c->arch_name : "(not named)");
    uint64_t block_bytes;
    TRY(decoder_kv_block_bytes(c, f->kv_dtype, FIT_BLOCK_TOKENS, &block_bytes, e));
    f->kv_token_bytes = block_bytes / FIT_BLOCK_TOKENS;
    bool local = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        local = local || c->layer_is_local[i];
    f->rope_token_bytes = (uint64_t)c->rope.dims * sizeof(float) * (local ? 2 : 1);
    f->buffer_bytes = buffers_of(c, w->ops, w->rows, w->out_rows);
    TRY(choose_dtype(f, w, e));
    if (source != NULL)
        measure_source(f, c, source);
    else
        measure_shape(f, c, w->dummy_dtype);
    f->memory_bytes = w->memory_bytes != 0 ? w->memory_bytes : machine_memory_free_bytes();
    return OK;
}

/* ---- what fits ----------------------------------------------------------------------------------------------------
 */

static uint64_t block_tokens_of(const struct fit *f)
{
    return f->wants.block_tokens != 0 ? f->wants.block_tokens : FIT_BLOCK_TOKENS;
}

/* Of a position, in whatever there is one of whoever holds the cache: rope tables, and block tables of a step. */
static uint64_t tables_of(const struct fit *f)
{
    const uint64_t size = block_tokens_of(f);
    return f->rope_token_bytes + (f->wants.seqs * sizeof(uint32_t) + size - 1) / size;
}

uint64_t fit_fixed_bytes(const struct fit *f)
{
    return f->weight_bytes + f->buffer_bytes + f->spare_bytes + f->beside_bytes;
}

uint64_t fit_sequence_bytes(const struct fit *f, uint32_t n)
{
    const uint64_t size = block_tokens_of(f), blocks = (n + size - 1) / size;
    return blocks * size * (f->kv_token_bytes + f->beside_token_bytes + tables_of(f));
}

/* What is left for cache and tables. */
static uint64_t room_of(const struct fit *f)
{
    const uint64_t fixed = fit_fixed_bytes(f);
    return f->memory_bytes > fixed ? f->memory_bytes - fixed : 0;
}

uint64_t fit_longest(const struct fit *f, uint64_t kv_token_bytes, uint64_t n_seqs)
{
    const uint64_t size = block_tokens_of(f);
    return room_of(f) / n_seqs / (kv_token_bytes + f->beside_token_bytes + tables_of(f)) / size * size;
}

/* Cache and tables for the context, or for the blocks that there must be. */
static uint64_t cache_bytes(const struct fit *f)
{
    const uint64_t held = f->n_blocks * block_tokens_of(f) * (f->kv_token_bytes + f->beside_token_bytes);
    return MAX(fit_sequence_bytes(f, f->context), held + f->context * tables_of(f));
}

static bool is_within(const struct fit *f)
{
    return cache_bytes(f) <= room_of(f);
}

/* The same with steps of so many rows at most. */
static struct fit with_rows(const struct fit *f, uint32_t rows)
{
    struct fit g = *f;
    g.wants.rows = rows;
    g.wants.seqs = MIN(f->wants.seqs, rows);
    g.wants.out_rows = MAX(g.wants.seqs, SERVING_OUT_MIN);
    g.buffer_bytes = buffers_of(f->config, f->wants.ops, rows, g.wants.out_rows);
    return g;
}

static struct fit with_smallest_cache(const struct fit *f)
{
    struct fit g = *f;
    g.context = MIN(f->context, CONTEXT_USEFUL);
    g.n_blocks = 0;
    return g;
}

/* Fewer blocks, a shorter context, or both. */
static bool advise_cache(const struct fit *f, char *text, size_t bytes)
{
    const uint64_t size = block_tokens_of(f), token = f->kv_token_bytes + f->beside_token_bytes;
    const uint64_t longest = MIN(fit_longest(f, f->kv_token_bytes, 1), (uint64_t)f->context);
    const uint64_t tables = longest * tables_of(f);
    if (longest < MIN(f->context, CONTEXT_USEFUL))
        return false;
    int at = 0;
    if (f->n_blocks != 0)
        at = snprintf(text, bytes, "--num-gpu-blocks-override %llu",
            (unsigned long long)MIN((room_of(f) - tables) / (size * token), (uint64_t)f->n_blocks));
    if (longest < f->context)
        snprintf(text + at, bytes - (size_t)at, "%s--max-model-len %llu", at > 0 ? " and " : "",
            (unsigned long long)longest);
    return true;
}

/* Smaller steps: as many rows as are possible, with the context as it is or else a useful one. */
static bool advise_steps(const struct fit *f, char *text, size_t bytes)
{
    char cache[96] = "";
    if (f->wants.seqs == 0)
        return false;
    const struct fit one = with_rows(f, 1), small = with_smallest_cache(f);
    const struct fit *from = is_within(&one) ? f : &small;
    uint32_t rows = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit /= 2) {
        const struct fit g = with_rows(from, rows + bit);
        if (rows + bit < f->wants.rows && is_within(&g))
            rows += bit;
    }
    if (rows == 0)
        return false;
    const struct fit g = with_rows(f, rows);
    if (from != f && !advise_cache(&g, cache, sizeof cache))
        return false;
    if (from == f && f->reason == FIT_BY_MEMORY) /* which would find room for more then */
        snprintf(cache, sizeof cache, "--max-model-len %u", f->context);
    char seqs[48] = "";
    if (rows < f->wants.seqs)
        snprintf(seqs, sizeof seqs, "%s--max-num-seqs %u", cache[0] != '\0' ? ", " : " and ", rows);
    snprintf(text, bytes, "--max-num-batched-tokens %u%s%s%s", rows, seqs, cache[0] != '\0' ? " and " : "", cache);
    return true;
}

/* With so many bytes of weights the smallest cache fits; one that was asked for may not. */
static void add_cache(const struct fit *f, uint64_t weight_bytes, char *text, size_t bytes)
{
    char cache[96] = "";
    struct fit g = *f;
    size_t at = strlen(text);
    g.weight_bytes = weight_bytes;
    if ((f->reason == FIT_BY_OPTION || f->n_blocks != 0) && !is_within(&g) && advise_cache(&g, cache, sizeof cache))
        at += (size_t)snprintf(text + at, bytes - at, ", and %s", cache);
    if (f->reason == FIT_BY_MEMORY && f->n_blocks != 0 && strstr(cache, "--max-model-len") == NULL)
        snprintf(text + at, bytes - at, ", and --max-model-len %u", f->context); /* else it would find room for more */
}

/* The same weights in fewer bits: made F8 while they are loaded, or as a file. */
static bool advise_weights(const struct fit *f, char *text, size_t bytes)
{
    static const enum dtype others[] = {DTYPE_Q8_0, DTYPE_Q6_K, DTYPE_Q4_K};
    char size[24];
    struct fit g = with_smallest_cache(f), f8;
    struct fit_wants wants = f->wants;
    wants.fp8 = true;
    if (f->wants.ops != NULL && !f->wants.fp8 && fit_measure(&f8, f->config, f->source, &wants, NULL) == OK) {
        g.weight_bytes = f8.weight_bytes;
        if (g.weight_bytes < f->weight_bytes && is_within(&g)) {
            snprintf(text, bytes, "--quantization fp8, %s of weights", bytes_show(g.weight_bytes, size));
            add_cache(f, g.weight_bytes, text, bytes);
            return true;
        }
    }
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        struct fit file = {.work_dtype = others[i]};
        measure_shape(&file, f->config, others[i]);
        g.weight_bytes = file.weight_bytes;
        if (g.weight_bytes < f->weight_bytes && is_within(&g)) {
            snprintf(text, bytes, "a file of the same model in %s, %s of weights", dtype_name(others[i]),
                bytes_show(g.weight_bytes, size));
            add_cache(f, g.weight_bytes, text, bytes);
            return true;
        }
    }
    return false;
}

/* Without the other model, with the cache that was asked for or one that fits. */
static bool advise_alone(const struct fit *f, char *text, size_t bytes)
{
    char cache[96] = "";
    struct fit g = *f;
    g.beside_bytes = g.beside_token_bytes = 0;
    const struct fit least = with_smallest_cache(&g);
    if (f->beside_bytes == 0 || !is_within(&least))
        return false;
    const bool asks = f->reason == FIT_BY_OPTION || f->n_blocks != 0;
    if (asks && !is_within(&g) && !advise_cache(&g, cache, sizeof cache))
        return false;
    snprintf(text, bytes, "it fits without the draft%s%s", cache[0] != '\0' ? " and with " : "", cache);
    return true;
}

enum err fit_check(const struct fit *f, struct error *e)
{
    char need[24], have[24], weights[24], steps[24], cache[24], less[24], with[200], beside[64] = "";
    if (f->memory_bytes == 0 || is_within(f))
        return OK;
    const struct fit least = with_smallest_cache(f);
    const bool knows = advise_cache(f, with, sizeof with) || advise_steps(f, with, sizeof with) ||
                       advise_weights(f, with, sizeof with);
    const bool alone = !knows && advise_alone(f, with, sizeof with);
    if (f->beside_bytes != 0)
        snprintf(beside, sizeof beside, "the draft %s, ", bytes_show(f->beside_bytes, less));
    if (!knows && !alone)
        snprintf(with, sizeof with, "%s are missing",
            bytes_show(fit_fixed_bytes(f) + cache_bytes(&least) - f->memory_bytes, less));
    return FAIL(e, ERR_LIMIT,
        "it takes %s of memory (weights %s, steps of %u rows %s, %sa context of %u tokens%s %s) and %s are free: %s%s",
        bytes_show(fit_fixed_bytes(f) + cache_bytes(f), need), bytes_show(f->weight_bytes, weights), f->wants.rows,
        bytes_show(fit_fixed_bytes(f) - f->weight_bytes - f->beside_bytes, steps), beside, f->context,
        f->n_blocks != 0 ? " and the blocks asked for" : "", bytes_show(cache_bytes(f), cache),
        bytes_show(f->memory_bytes, have), knows ? "it fits with " : "", with);
}

enum err fit_choose(
    struct fit *f, const struct model_config *c, uint64_t max_model_len, uint32_t context_default, struct error *e)
{
    if (max_model_len > c->context_length)
        return FAIL(e, ERR_INVALID, "option --max-model-len: %llu is more than the model's context of %u tokens",
            (unsigned long long)max_model_len, c->context_length);
    f->reason = max_model_len != 0 ? FIT_BY_OPTION : FIT_BY_MODEL;
    f->context = max_model_len != 0 ? (uint32_t)max_model_len : c->context_length;
    if (max_model_len == 0 && f->context > context_default) {
        f->context = context_default;
        f->reason = FIT_BY_DEFAULT;
    }
    if (max_model_len == 0 && f->memory_bytes != 0 && fit_sequence_bytes(f, f->context) > room_of(f)) {
        const uint64_t longest = fit_longest(f, f->kv_token_bytes, 1);
        f->context = longest > 0 ? (uint32_t)longest : MIN(f->context, CONTEXT_USEFUL);
        f->reason = FIT_BY_MEMORY;
    }
    return fit_check(f, e);
}
