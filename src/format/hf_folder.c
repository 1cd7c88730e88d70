/* An HF model folder: weights in model.safetensors, or in shards that model.safetensors.index.json names, beside the
 * JSON files of the configuration and the tokeniser.
 *
 * Names of shards come from a file we do not trust, and any file of a folder may be a symbolic link. Rules:
 *   1. a shard is a plain file name: no slash, no "..", no control byte;
 *   2. its real path must lie in the folder, or, when the folder is a snapshot of the Hugging Face cache
 *      (.../models--OWNER--NAME/snapshots/REVISION), anywhere in that models--OWNER--NAME folder, because the cache
 * keeps the bytes in ../../blobs and links to them. Other links are refused: a model that somebody sent must not make
 * us read files that were never part of it. The path the user typed is the user's own choice and may lead anywhere. */
#include "format/format_int.h"

#include "base/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Their names, and how much of each is parsed as JSON; a parse takes up to twenty times the text. */
static const struct {
    const char *name;
    uint64_t bytes_max;
} files[MODEL_FILE_COUNT] = {
    [MODEL_FILE_CONFIG] = {"config.json", MODEL_CONFIG_BYTES_MAX},
    [MODEL_FILE_GENERATION] = {"generation_config.json", MODEL_CONFIG_BYTES_MAX},
    [MODEL_FILE_TOKENIZER] = {"tokenizer.json", JSON_BYTES_MAX},
    [MODEL_FILE_TOKENIZER_CONFIG] = {"tokenizer_config.json", MODEL_TOKENIZER_CONFIG_MAX},
    [MODEL_FILE_SPECIAL_TOKENS] = {"special_tokens_map.json", MODEL_CONFIG_BYTES_MAX},
    [MODEL_FILE_SENTENCEPIECE] = {"tokenizer.model", 0}, /* not JSON */
    [MODEL_FILE_TEMPLATE_JINJA] = {"chat_template.jinja", 0},
    [MODEL_FILE_TEMPLATE_JSON] = {"chat_template.json", 2 * MODEL_TEMPLATE_MAX},
};

static enum err real_path(const char *path, char out[PATH_BYTES_MAX], struct error *e)
{
    if (fault_hit(FAULT_SYS))
        return FAIL(e, ERR_IO, "cannot resolve %s: %s", path, strerror(EIO));
    if (realpath(path, out) != NULL)
        return OK;
    const int code = errno;
    return FAIL(e,
        code == ENOENT   ? ERR_NOT_FOUND
        : code == EACCES ? ERR_DENIED
                         : ERR_IO,
        "cannot resolve %s: %s", path, strerror(code));
}

/* Bytes of a real folder's path that a file's real path must begin with: the whole of it, or up to the innermost
 * repository folder of the cache. */
static size_t allowed_prefix(const char *folder)
{
    static const char repo[] = "/models--", snapshots[] = "/snapshots/";
    size_t n = strlen(folder);
    for (const char *at = strstr(folder, repo); at != NULL; at = strstr(at + 1, repo)) {
        const char *slash = strchr(at + 1, '/');
        if (slash != NULL && strncmp(slash, snapshots, sizeof snapshots - 1) == 0)
            n = (size_t)(slash - folder);
    }
    return n;
}

enum err hf_path_resolve(const char *folder, struct str name, char out[PATH_BYTES_MAX], struct error *e)
{
    char joined[PATH_BYTES_MAX], root[PATH_BYTES_MAX], shown[160];
    const char *safe = str_show(name, shown, sizeof shown);
    if (name.n > 255 || memchr(name.p, '/', name.n) != NULL || !path_is_contained(name))
        return FAIL(e, ERR_INVALID, "'%s' is not a plain file name of the model's folder", safe);
    char plain[256];
    memcpy(plain, name.p, name.n);
    plain[name.n] = '\0';
    TRY(path_join(joined, folder, plain, e));
    TRY(real_path(folder, root, e));
    TRY(real_path(joined, out, e));
    const size_t n = allowed_prefix(root);
    if (strncmp(out, root, n) != 0 || (out[n] != '/' && n > 1))
        return FAIL(e, ERR_INVALID, "%s is a link that leads out of the model's folder, to %s", joined, out);
    return OK;
}

static enum err find_files(struct model_source *s, struct error *e)
{
    for (int i = 0; i < MODEL_FILE_COUNT; i++) {
        char path[PATH_BYTES_MAX];
        struct error mine = {0};
        const enum err err = hf_path_resolve(s->folder, str_of(files[i].name), path, &mine);
        if (err == ERR_NOT_FOUND)
            continue;
        if (err != OK)
            return FAIL(e, err, "%s", mine.text);
        s->files[i] = mem_copy_str(str_of(path));
        if (s->files[i] == NULL)
            return FAIL(e, ERR_NOMEM, "no memory to open %s", s->path);
    }
    return OK;
}

static enum err shard_open(struct model_source *s, struct str name, struct error *e)
{
    char path[PATH_BYTES_MAX];
    struct source_part *p;
    TRY(hf_path_resolve(s->folder, name, path, e));
    TRY(source_part_open(s, path, &p, e));
    return safetensors_part_read(s, p, e);
}

/* The distinct shard names of the index, in order of first mention: a table small enough to search by eye. */
struct shard_list {
    struct str names[MODEL_PARTS_MAX];
    uint32_t n;
};

static enum err shard_list_add(struct shard_list *l, struct str name, struct error *e)
{
    for (uint32_t i = l->n; i > 0; i--) /* the index mostly names the shard it named last */
        if (str_eq(l->names[i - 1], name))
            return OK;
    if (l->n == MODEL_PARTS_MAX)
        return FAIL(e, ERR_LIMIT, "more than %d shards", MODEL_PARTS_MAX);
    l->names[l->n++] = name;
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    const int order = memcmp(x->p, y->p, MIN(x->n, y->n));
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

/* Every name of the index must be in the shard the index says; shard i of the list is part i. */
static enum err check_weight_map(const struct model_source *s, json_t *map, const struct shard_list *l, struct error *e)
{
    struct name_index ix;
    enum err err = name_index_build(&ix, s->tensors, sizeof *s->tensors, s->n_tensors, "tensor", e);
    for (void *it = json_object_iter(map); err == OK && it != NULL; it = json_object_iter_next(map, it)) {
        const struct str name = {json_object_iter_key(it), json_object_iter_key_len(it)};
        const json_t *v = json_object_iter_value(it);
        const struct model_tensor *t = name_index_find(&ix, s->tensors, sizeof *s->tensors, name);
        const struct str shard = {json_string_value(v), json_string_length(v)};
        if (t == NULL || !str_eq(l->names[t->part], shard)) {
            char shown[160], file[160];
            err = FAIL(e, ERR_FORMAT, "tensor '%s' should be in %s and is not", str_show(name, shown, sizeof shown),
                str_show(shard, file, sizeof file));
        }
    }
    name_index_fini(&ix);
    return err;
}

static enum err shards_open(struct model_source *s, const json_t *index, struct shard_list *l, struct error *e)
{
    const json_t *found = NULL;
    if (!json_is_object(index))
        return FAIL(e, ERR_FORMAT, "the index must be a JSON object");
    TRY(json_get_object(index, "weight_map", &found, e));
    json_t *map = json_object_get(index, "weight_map"); /* found, as iteration wants it */
    if (json_object_size(map) == 0)
        return FAIL(e, ERR_FORMAT, "field 'weight_map' is missing or empty");
    for (void *it = json_object_iter(map); it != NULL; it = json_object_iter_next(map, it)) {
        const json_t *v = json_object_iter_value(it);
        char shown[160];
        if (!json_is_string(v))
            return FAIL(e, ERR_FORMAT, "field 'weight_map': '%s' must name a file",
                str_show(str_of(json_object_iter_key(it)), shown, sizeof shown));
        TRY(shard_list_add(l, (struct str){json_string_value(v), json_string_length(v)}, e));
    }
    qsort(l->names, l->n, sizeof *l->names, by_name);
    TRY(source_parts_init(s, l->n, e));
    for (uint32_t i = 0; i < l->n; i++)
        TRY(shard_open(s, l->names[i], e));
    return check_weight_map(s, map, l, e);
}

static enum err index_open(struct model_source *s, const char *path, struct error *e)
{
    json_t *index;
    TRY(json_parse_file(path, MODEL_JSON_BYTES_MAX, &index, e));
    struct shard_list *l = mem_zalloc(sizeof *l);
    enum err err = l == NULL ? FAIL(e, ERR_NOMEM, "no memory to open %s", path) : shards_open(s, index, l, e);
    if (err != OK)
        source_error_prefix(e, path);
    mem_free(l);
    json_decref(index);
    return err;
}

static const char index_name[] = "model.safetensors.index.json", file_name[] = "model.safetensors";

bool hf_folder_has_weights(const char *folder)
{
    char path[PATH_BYTES_MAX];
    return (path_join(path, folder, file_name, NULL) == OK && file_is_regular(path)) ||
           (path_join(path, folder, index_name, NULL) == OK && file_is_regular(path));
}

enum err hf_folder_open(struct model_source *s, struct error *e)
{
    char path[PATH_BYTES_MAX];
    s->folder = mem_copy_str(str_of(s->path));
    if (s->folder == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to open %s", s->path);
    TRY(find_files(s, e));
    struct error mine = {0};
    enum err err = hf_path_resolve(s->folder, STR(index_name), path, &mine);
    if (err == OK)
        return index_open(s, path, e);
    if (err != ERR_NOT_FOUND)
        return FAIL(e, err, "%s", mine.text);
    mine = (struct error){0};
    err = hf_path_resolve(s->folder, STR(file_name), path, &mine);
    if (err == ERR_NOT_FOUND)
        return FAIL(
            e, ERR_NOT_FOUND, "%s holds no model: neither %s nor %s nor a .gguf file", s->path, file_name, index_name);
    if (err != OK)
        return FAIL(e, err, "%s", mine.text);
    struct source_part *p;
    TRY(source_parts_init(s, 1, e));
    TRY(source_part_open(s, path, &p, e));
    return safetensors_part_read(s, p, e);
}

enum err hf_file_open(struct model_source *s, struct error *e)
{
    const char *slash = strrchr(s->path, '/');
    const struct str folder = {s->path, slash == NULL ? 0 : (size_t)(slash - s->path + 1)};
    s->folder = mem_copy_str(folder.n > 0 ? folder : STR("."));
    if (s->folder == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to open %s", s->path);
    struct source_part *p;
    TRY(find_files(s, e));
    TRY(source_parts_init(s, 1, e));
    TRY(source_part_open(s, s->path, &p, e));
    return safetensors_part_read(s, p, e);
}

const char *model_source_file(const struct model_source *s, enum model_file which)
{
    assert(which < MODEL_FILE_COUNT);
    return s->files[which];
}

enum err model_source_json(const struct model_source *s, enum model_file which, json_t **out, struct error *e)
{
    assert(which < MODEL_FILE_COUNT);
    *out = NULL;
    if (s->files[which] == NULL)
        return FAIL(e, ERR_NOT_FOUND, "%s has no %s", s->path, files[which].name);
    return json_parse_file(s->files[which], files[which].bytes_max, out, e);
}
