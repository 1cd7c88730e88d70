/* Finding a model's tokenizer and chat templates; see tokenizer.h. */
#include "model/tokenizer.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/format_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- GGUF ---- */

static enum err get_id(const struct gguf *g, const char *key, uint32_t *out, struct error *e)
{
    uint64_t id = TOK_NONE;
    TRY(gguf_get_u64(g, key, 0, UINT32_MAX, &id, e));
    *out = (uint32_t)id;
    return OK;
}

static enum err get_tristate(const struct gguf *g, const char *key, enum tok_tristate *out, struct error *e)
{
    bool on = false;
    if (gguf_find(g, key) == NULL)
        return OK;
    TRY(gguf_get_bool(g, key, &on, e));
    *out = on ? TOK_YES : TOK_NO;
    return OK;
}

/* The arrays that must be copied out of the header to be indexed. */
struct gguf_vocab {
    struct tok_gguf v;
    struct str *tokens, *merges;
    float *scores;
    int32_t *types;
};

static enum err get_strings(
    const struct gguf *g, const char *key, struct str **out, size_t *n, size_t limit, struct error *e)
{
    struct gguf_array a = {.n = 0};
    TRY(gguf_get_array(g, key, GGUF_STRING, &a, e));
    if (a.n > limit)
        return FAIL(e, ERR_LIMIT, "%s has %llu entries; the limit is %zu", key, (unsigned long long)a.n, limit);
    *n = (size_t)a.n;
    return a.n > 0 ? gguf_strings(&a, out, e) : OK;
}

static enum err get_scores(const struct gguf *g, struct gguf_vocab *x, struct error *e)
{
    struct gguf_array a = {.n = 0};
    TRY(gguf_get_array(g, "tokenizer.ggml.scores", GGUF_F32, &a, e));
    if (a.n == 0)
        return OK;
    if (a.n != x->v.n_tokens)
        return FAIL(e, ERR_FORMAT, "tokenizer.ggml.scores has %llu entries for %zu tokens", (unsigned long long)a.n,
            x->v.n_tokens);
    x->scores = mem_array(x->v.n_tokens, sizeof *x->scores);
    if (x->scores == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu tokens", x->v.n_tokens);
    double d = 0;
    for (size_t i = 0; gguf_next_f64(&a, &d); i++)
        x->scores[i] = (float)d;
    x->v.scores = x->scores;
    return OK;
}

static enum err get_types(const struct gguf *g, struct gguf_vocab *x, struct error *e)
{
    struct gguf_array a = {.n = 0};
    TRY(gguf_get_array(g, "tokenizer.ggml.token_type", GGUF_I32, &a, e));
    if (a.n == 0)
        return OK;
    if (a.n != x->v.n_tokens)
        return FAIL(e, ERR_FORMAT, "tokenizer.ggml.token_type has %llu entries for %zu tokens", (unsigned long long)a.n,
            x->v.n_tokens);
    x->types = mem_array(x->v.n_tokens, sizeof *x->types);
    if (x->types == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu tokens", x->v.n_tokens);
    int64_t n = 0;
    for (size_t i = 0; gguf_next_i64(&a, &n); i++)
        x->types[i] = (int32_t)n;
    x->v.types = x->types;
    return OK;
}

static enum err get_charsmap(const struct gguf *g, struct gguf_vocab *x, struct error *e)
{
    const struct gguf_field *f = gguf_find(g, "tokenizer.ggml.precompiled_charsmap");
    if (f == NULL)
        return OK;
    if (f->type != GGUF_ARRAY || (f->array.type != GGUF_U8 && f->array.type != GGUF_I8))
        return FAIL(e, ERR_INVALID, "tokenizer.ggml.precompiled_charsmap must be an array of bytes");
    x->v.charsmap = (struct str){(const char *)f->array.p, (size_t)f->array.n};
    return OK;
}

static enum err read_vocab(const struct gguf *g, struct gguf_vocab *x, struct error *e)
{
    tok_gguf_init(&x->v);
    TRY(gguf_get_str(g, "tokenizer.ggml.model", &x->v.model, e));
    if (x->v.model.n == 0)
        return FAIL(e, ERR_NOT_FOUND, "it has no tokenizer (no field tokenizer.ggml.model)");
    TRY(gguf_get_str(g, "tokenizer.ggml.pre", &x->v.pre, e));
    TRY(get_strings(g, "tokenizer.ggml.tokens", &x->tokens, &x->v.n_tokens, TOK_COUNT_MAX, e));
    TRY(get_strings(g, "tokenizer.ggml.merges", &x->merges, &x->v.n_merges, TOK_MERGES_MAX, e));
    x->v.tokens = x->tokens;
    x->v.merges = x->merges;
    TRY(get_scores(g, x, e));
    TRY(get_types(g, x, e));
    TRY(get_charsmap(g, x, e));
    TRY(get_id(g, "tokenizer.ggml.bos_token_id", &x->v.bos, e));
    TRY(get_id(g, "tokenizer.ggml.eos_token_id", &x->v.eos, e));
    TRY(get_id(g, "tokenizer.ggml.eot_token_id", &x->v.eot, e));
    TRY(get_id(g, "tokenizer.ggml.eom_token_id", &x->v.eom, e));
    TRY(get_id(g, "tokenizer.ggml.unknown_token_id", &x->v.unk, e));
    TRY(get_id(g, "tokenizer.ggml.padding_token_id", &x->v.pad, e));
    TRY(get_tristate(g, "tokenizer.ggml.add_bos_token", &x->v.add_bos, e));
    TRY(get_tristate(g, "tokenizer.ggml.add_eos_token", &x->v.add_eos, e));
    TRY(get_tristate(g, "tokenizer.ggml.add_space_prefix", &x->v.add_space_prefix, e));
    return get_tristate(g, "tokenizer.ggml.remove_extra_whitespaces", &x->v.remove_extra_whitespaces, e);
}

static enum err make_gguf(const struct model_source *s, struct tok **out, struct error *e)
{
    struct gguf_vocab x = {0};
    enum err err = read_vocab(model_source_gguf(s), &x, e);
    if (err == OK)
        err = tok_from_gguf(&x.v, out, e);
    mem_free(x.tokens);
    mem_free(x.merges);
    mem_free(x.scores);
    mem_free(x.types);
    if (err != OK)
        error_prefix(e, "%s", model_source_path(s));
    return err;
}

/* ---- copies ---- */

/* Where the copy of this file's vocabulary goes: a name made from the file's own place, so that a changed file replaces
 * its copy. False when there is no such place. */
static bool copy_path(const char *copies, const char *source, char path[PATH_BYTES_MAX])
{
    char real[PATH_BYTES_MAX], name[64];
    struct error e = {0};
    if (copies == NULL || realpath(source, real) == NULL || file_make_dirs(copies, &e) != OK)
        return false;
    snprintf(name, sizeof name, "%016llx.vocab", (unsigned long long)hash64(real, strlen(real), 0));
    return path_join(path, copies, name, &e) == OK;
}

/* A vocabulary takes a microsecond a token to make, and a small one is not worth a file. */
#define COPY_TOKENS_MIN 16384

static enum err open_gguf(const struct model_source *s, const char *copies, struct tok **out, struct error *e)
{
    const struct gguf *g = model_source_gguf(s);
    struct gguf_array tokens = {.n = 0};
    char copy[PATH_BYTES_MAX];
    struct error unused = {0}; /* without a copy the next start is slower, nothing else */
    const bool is_large =
        gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, &unused) == OK && tokens.n >= COPY_TOKENS_MIN;
    if (!is_large || !copy_path(copies, model_source_path(s), copy))
        return make_gguf(s, out, e);
    const struct tok_key key = tok_key_of(gguf_field_bytes(g), STR("gguf"));
    if (tok_load(copy, key, out, NULL) == OK)
        return OK;
    TRY(make_gguf(s, out, e));
    const enum err saved = tok_save(*out, copy, key, &unused);
    (void)saved;
    return OK;
}

/* ---- tokenizer.json and tokenizer.model ---- */

static enum err read_optional(const char *path, struct str *out, char **owned, struct error *e)
{
    size_t n = 0;
    *out = (struct str){"", 0};
    if (path == NULL || !file_is_regular(path))
        return OK;
    TRY(file_read_all(path, JSON_BYTES_MAX, owned, &n, e));
    *out = (struct str){*owned, n};
    return OK;
}

static enum err open_json(
    const char *path, const char *config_path, const char *copies, struct tok **out, struct error *e)
{
    char *json = NULL, *config_text = NULL, copy[PATH_BYTES_MAX];
    size_t n = 0;
    struct str config;
    enum err err = file_read_all(path, JSON_BYTES_MAX, &json, &n, e);
    if (err == OK)
        err = read_optional(config_path, &config, &config_text, e);
    if (err == OK) {
        const bool has_copy = copy_path(copies, path, copy);
        err = tok_from_json_cached((struct str){json, n}, config, has_copy ? copy : NULL, out, e);
        if (err != OK)
            error_prefix(e, "%s", path);
    }
    mem_free(json);
    mem_free(config_text);
    return err;
}

/* What a SentencePiece file does not say itself, tokenizer_config.json does. Without one: bos in front, as the models
 * that come with such files want it. */
static enum err read_adds(const char *config_path, bool *bos, bool *eos, struct error *e)
{
    json_t *doc = NULL;
    *bos = true;
    *eos = false;
    if (config_path == NULL || !file_is_regular(config_path))
        return OK;
    TRY(json_parse_file(config_path, JSON_BYTES_MAX, &doc, e));
    enum err err = json_get_bool(doc, "add_bos_token", bos, e);
    if (err == OK)
        err = json_get_bool(doc, "add_eos_token", eos, e);
    json_decref(doc);
    if (err != OK)
        error_prefix(e, "%s", config_path);
    return err;
}

static enum err open_spm(const char *path, const char *config_path, struct tok **out, struct error *e)
{
    char *bytes = NULL;
    size_t n = 0;
    bool bos, eos;
    TRY(read_adds(config_path, &bos, &eos, e));
    TRY(file_read_all(path, TOK_SPM_BYTES_MAX, &bytes, &n, e));
    const enum err err = tok_from_spm((struct str){bytes, n}, bos, eos, out, e);
    mem_free(bytes);
    if (err != OK)
        error_prefix(e, "%s", path);
    return err;
}

enum err model_tokenizer_open(const struct model_source *s, const char *copies, struct tok **out, struct error *e)
{
    *out = NULL;
    if (model_source_kind(s) == MODEL_GGUF)
        return open_gguf(s, copies, out, e);
    const char *config = model_source_file(s, MODEL_FILE_TOKENIZER_CONFIG);
    const char *json = model_source_file(s, MODEL_FILE_TOKENIZER);
    const char *spm = model_source_file(s, MODEL_FILE_SENTENCEPIECE);
    if (json != NULL)
        return open_json(json, config, copies, out, e);
    if (spm != NULL)
        return open_spm(spm, config, out, e);
    return FAIL(e, ERR_NOT_FOUND, "%s: there is neither tokenizer.json nor tokenizer.model", model_source_path(s));
}

bool model_tokenizer_is_file(const char *path)
{
    const struct str s = str_of(path);
    return (str_has_suffix(s, STR(".json")) || str_has_suffix(s, STR(".model"))) && file_is_regular(path);
}

enum err model_tokenizer_open_file(const char *path, const char *copies, struct tok **out, struct error *e)
{
    char dir[PATH_BYTES_MAX], config[PATH_BYTES_MAX];
    const char *slash = strrchr(path, '/');
    *out = NULL;
    if (strlen(path) >= sizeof dir)
        return FAIL(e, ERR_LIMIT, "path of %zu bytes; the limit is %d", strlen(path), PATH_BYTES_MAX - 1);
    snprintf(dir, sizeof dir, "%.*s", slash != NULL ? (int)(slash - path) : 1, slash != NULL ? path : ".");
    TRY(path_join(config, slash == path ? "/" : dir, "tokenizer_config.json", e));
    if (str_has_suffix(str_of(path), STR(".json")))
        return open_json(path, config, copies, out, e);
    return open_spm(path, config, out, e);
}

/* ---- chat templates ---- */

/* tokenizer.chat_template.NAME beside the default one. */
static enum err add_named_gguf(const struct model_source *s, struct chat_set *set, struct error *e)
{
    static const struct str prefix = {"tokenizer.chat_template.", 24};
    const struct gguf *g = model_source_gguf(s);
    for (uint64_t i = 0; i < gguf_field_count(g); i++) {
        const struct gguf_field *f = gguf_field_at(g, i);
        char key[256];
        struct str text = {NULL, 0};
        if (!str_has_prefix(f->key, prefix) || f->type != GGUF_STRING || f->key.n >= sizeof key)
            continue;
        snprintf(key, sizeof key, "%.*s", (int)f->key.n, f->key.p);
        TRY(gguf_get_str(g, key, &text, e));
        TRY(chat_set_add(set, key + prefix.n, text, e));
    }
    return OK;
}

/* A folder's list of named templates; the default one is found by format/. */
static enum err add_named_config(const struct model_source *s, struct chat_set *set, bool *has_default, struct error *e)
{
    json_t *doc = NULL;
    *has_default = false;
    if (model_source_file(s, MODEL_FILE_TOKENIZER_CONFIG) == NULL ||
        model_source_file(s, MODEL_FILE_TEMPLATE_JINJA) != NULL ||
        model_source_file(s, MODEL_FILE_TEMPLATE_JSON) != NULL)
        return OK;
    TRY(model_source_json(s, MODEL_FILE_TOKENIZER_CONFIG, &doc, e));
    const json_t *list = json_object_get(doc, "chat_template");
    enum err err = OK;
    if (json_is_array(list)) {
        err = chat_set_add_json(set, list, e);
        *has_default = true;
    }
    json_decref(doc);
    return err;
}

enum err model_chat_open(const struct model_source *s, struct chat_set **out, struct error *e)
{
    struct chat_set *set = NULL;
    char *text = NULL;
    size_t n = 0;
    bool has_default = false;
    *out = NULL;
    TRY(chat_set_new(&set, e));
    enum err err =
        model_source_kind(s) == MODEL_GGUF ? add_named_gguf(s, set, e) : add_named_config(s, set, &has_default, e);
    if (err == OK && !has_default)
        err = model_source_chat_template(s, &text, &n, e);
    if (err == OK && text != NULL)
        err = chat_set_add(set, "default", (struct str){text, n}, e);
    mem_free(text);
    if (err != OK) {
        chat_set_free(set);
        return err;
    }
    *out = set;
    return OK;
}

size_t model_chat_tokens(const struct tok *t, struct chat_token out[4])
{
    const struct tok_roles *r = tok_roles_of(t);
    const struct {
        const char *name;
        uint32_t id;
    } all[] = {{"bos_token", r->bos}, {"eos_token", r->eos}, {"pad_token", r->pad}, {"unk_token", r->unk}};
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i].id != TOK_NONE)
            out[n++] = (struct chat_token){all[i].name, tok_name(t, all[i].id)};
    return n;
}
