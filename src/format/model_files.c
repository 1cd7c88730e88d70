/* What a source answers from more than one place: the hyper-parameters and the chat template, wherever the model keeps
 * them. */
#include "format/format_int.h"

#include <string.h>

/* "OWNER/NAME" of a cache snapshot, else the last part of the path. */
static void name_of_folder(const char *path, char out[MODEL_NAME_BYTES_MAX])
{
    struct str rest = str_of(path);
    while (rest.n > 1 && rest.p[rest.n - 1] == '/')
        rest.n--;
    const char *repo = strstr(path, "/models--");
    if (repo != NULL && strstr(repo, "/snapshots/") != NULL) {
        repo += strlen("/models--");
        model_config_copy_name(out, (struct str){repo, strcspn(repo, "/")});
        char *dashes = strstr(out, "--");
        if (dashes != NULL) {
            *dashes = '/';
            memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
        }
        return;
    }
    for (size_t i = rest.n; i > 0; i--) {
        if (rest.p[i - 1] == '/') {
            rest = (struct str){rest.p + i, rest.n - i};
            break;
        }
    }
    model_config_copy_name(out, rest);
}

/* Only one answer is wanted of tokenizer_config.json here: whether a prompt begins with the bos token. */
static enum err read_add_bos(const struct model_source *s, struct model_config *c, struct error *e)
{
    json_t *doc;
    if (s->files[MODEL_FILE_TOKENIZER_CONFIG] == NULL)
        return OK;
    TRY(model_source_json(s, MODEL_FILE_TOKENIZER_CONFIG, &doc, e));
    const json_t *v = json_object_get(doc, "add_bos_token");
    if (json_is_boolean(v))
        c->add_bos = json_is_true(v);
    json_decref(doc);
    return OK;
}

static enum err config_from_folder(const struct model_source *s, struct model_config *c, struct error *e)
{
    json_t *config = NULL, *generation = NULL;
    name_of_folder(s->path, c->name);
    if (s->files[MODEL_FILE_CONFIG] == NULL)
        return FAIL(e, ERR_NOT_FOUND, "%s has no config.json, so its architecture is unknown", s->path);
    TRY(model_source_json(s, MODEL_FILE_CONFIG, &config, e));
    enum err err = OK;
    if (s->files[MODEL_FILE_GENERATION] != NULL)
        err = model_source_json(s, MODEL_FILE_GENERATION, &generation, e);
    if (err == OK)
        err = config_from_json(config, generation, c, e);
    json_decref(config);
    json_decref(generation);
    return err == OK ? read_add_bos(s, c, e) : err;
}

enum err model_config_read(const struct model_source *s, struct model_config *out, struct error *e)
{
    model_config_init(out);
    struct error mine = {0};
    const enum err err = s->kind == MODEL_GGUF ? config_from_gguf(s, out, &mine) : config_from_folder(s, out, &mine);
    if (err == OK)
        return OK;
    source_error_prefix(&mine, s->path);
    return FAIL(e, err, "%s", mine.text);
}

static enum err copy_template(struct str text, char **out, size_t *n, struct error *e)
{
    if (text.n > MODEL_TEMPLATE_MAX)
        return FAIL(e, ERR_LIMIT, "a chat template of %zu bytes; the limit is %llu", text.n,
            (unsigned long long)MODEL_TEMPLATE_MAX);
    *out = mem_copy_str(text);
    *n = text.n;
    return *out == NULL ? FAIL(e, ERR_NOMEM, "no memory for a chat template of %zu bytes", text.n) : OK;
}

/* "chat_template" is a string, or a list of {"name", "template"} of which "default" (else the first) is meant. */
static enum err template_of_json(const json_t *doc, char **out, size_t *n, struct error *e)
{
    const json_t *v = json_object_get(doc, "chat_template"), *chosen = json_is_string(v) ? v : NULL;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *text = json_object_get(entry, "template");
        if (json_is_string(text) && (chosen == NULL || (name != NULL && strcmp(name, "default") == 0)))
            chosen = text;
    }
    if (chosen != NULL)
        return copy_template((struct str){json_string_value(chosen), json_string_length(chosen)}, out, n, e);
    return v == NULL || json_is_null(v) ? OK : FAIL(e, ERR_INVALID, "field 'chat_template' must be a string or a list");
}

static enum err template_of_folder(const struct model_source *s, char **out, size_t *n, struct error *e)
{
    static const enum model_file documents[] = {MODEL_FILE_TEMPLATE_JSON, MODEL_FILE_TOKENIZER_CONFIG};
    if (s->files[MODEL_FILE_TEMPLATE_JINJA] != NULL)
        return file_read_all(s->files[MODEL_FILE_TEMPLATE_JINJA], MODEL_TEMPLATE_MAX, out, n, e);
    for (size_t i = 0; i < COUNT_OF(documents); i++) {
        json_t *doc;
        if (s->files[documents[i]] == NULL)
            continue;
        TRY(model_source_json(s, documents[i], &doc, e));
        const enum err err = template_of_json(doc, out, n, e);
        json_decref(doc);
        if (err != OK || *out != NULL)
            return err;
    }
    return OK;
}

enum err model_source_chat_template(const struct model_source *s, char **out, size_t *n, struct error *e)
{
    *out = NULL;
    *n = 0;
    if (s->kind != MODEL_GGUF)
        return template_of_folder(s, out, n, e);
    struct str text = {0};
    TRY(gguf_get_str(model_source_gguf(s), "tokenizer.chat_template", &text, e));
    return text.p == NULL ? OK : copy_template(text, out, n, e);
}
