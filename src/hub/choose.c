/* Which files of a repository make a model. Pure: names in, marks out.
 *
 * The rule:
 *  1. A name that is asked for and is there is taken; if it is one part of a split GGUF, all its parts are.
 *  2. Otherwise what was asked for is a tag: the GGUF files whose stem has it as a whole word, whatever the case
 *     (Q4_K does not mean Q4_K_M). Exactly one model must remain.
 *  3. Nothing asked: the only GGUF model there is, else the one tagged Q4_K_M, else an error with the choices.
 *  4. A repository without GGUF files is a Hugging Face directory: the files at its top that a reader needs (weights in
 *     safetensors, their index, configs, tokenizer, chat template). Nothing that can hold code (.bin, .pt, .py) is ever
 *     taken. Weights under a second name (consolidated*) are left out when model*.safetensors are there.
 * Projectors (mmproj) and importance matrices are not models of their own and are passed over in 2 and 3. A split GGUF
 * counts as one model and must be whole. */
#include "hub/hub_int.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SPLIT_TAIL 20 /* "-00001-of-00003.gguf" */

static bool is_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcasecmp(name + n - 5, ".gguf") == 0;
}

/* The parts of "x-00002-of-00007.gguf": which, and of how many. */
static bool is_split(const char *name, unsigned *part, unsigned *parts)
{
    const size_t n = strlen(name);
    if (n <= SPLIT_TAIL)
        return false;
    const char *t = name + n - SPLIT_TAIL;
    for (size_t i = 1; i <= 5; i++)
        if (!isdigit((unsigned char)t[i]) || !isdigit((unsigned char)t[i + 9]))
            return false;
    if (t[0] != '-' || strncmp(t + 6, "-of-", 4) != 0)
        return false;
    *part = *parts = 0;
    for (size_t i = 1; i <= 5; i++) {
        *part = *part * 10 + (unsigned)(t[i] - '0');
        *parts = *parts * 10 + (unsigned)(t[i + 9] - '0');
    }
    return *part >= 1 && *part <= *parts;
}

/* Two parts of one split file. */
static bool is_same_split(const char *a, const char *b)
{
    unsigned pa, na, pb, nb;
    const size_t n = strlen(a);
    return n == strlen(b) && is_split(a, &pa, &na) && is_split(b, &pb, &nb) && na == nb &&
           strncmp(a, b, n - SPLIT_TAIL) == 0;
}

static bool name_is_safe(const char *name)
{
    /* A part that starts with a dot could meet our own staging folders. */
    return path_is_contained(str_of(name)) && name[0] != '.' && strstr(name, "/.") == NULL;
}

/* A GGUF that stands for a model: not a later part of a split, not a side file. */
static bool is_model_head(const char *name)
{
    unsigned part, parts;
    if (!is_gguf(name) || !name_is_safe(name) || strcasestr(name, "mmproj") != NULL ||
        strcasestr(name, "imatrix") != NULL)
        return false;
    return !is_split(name, &part, &parts) || part == 1;
}

/* The tag as a whole word of the name's stem. */
static bool has_tag(const char *name, const char *tag)
{
    const size_t n = strlen(tag);
    for (const char *at = name; (at = strcasestr(at, tag)) != NULL; at++) {
        const bool starts = at == name || strchr(".-_/", at[-1]) != NULL;
        const bool ends = at[n] != '\0' && strchr(".-/", at[n]) != NULL;
        if (starts && ends)
            return true;
    }
    return false;
}

static enum err pick_gguf(
    const struct hub_file *files, size_t n, size_t head, bool *picked, const char **open, struct error *e)
{
    unsigned part = 1, parts = 1, found = 0;
    char shown[160];
    is_split(files[head].name, &part, &parts);
    for (size_t i = 0; i < n; i++)
        if (i == head || is_same_split(files[head].name, files[i].name)) {
            unsigned p, all;
            if (!is_split(files[i].name, &p, &all) || p == 1)
                *open = files[i].name;
            picked[i] = true;
            found++;
        }
    if (parts > HUB_ENTRY_FILES_MAX)
        return FAIL(e, ERR_LIMIT, "%s has %u parts; the limit is %d",
            str_show(str_of(files[head].name), shown, sizeof shown), parts, HUB_ENTRY_FILES_MAX);
    if (found != parts || (*open)[0] == '\0')
        return FAIL(e, ERR_FORMAT, "%s: %u of its %u parts are there",
            str_show(str_of(files[head].name), shown, sizeof shown), found, parts);
    return OK;
}

/* "a.gguf, b.gguf, ..." of the models that carry the tag ("" for all). */
static void show_choices(const struct hub_file *files, size_t n, const char *tag, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        char shown[80];
        if (!is_model_head(files[i].name) || (tag[0] != '\0' && !has_tag(files[i].name, tag)))
            continue;
        str_show(str_of(files[i].name), shown, sizeof shown);
        if (at + strlen(shown) + 8 > cap) {
            snprintf(out + at, cap - at, ", ...");
            return;
        }
        at += (size_t)snprintf(out + at, cap - at, "%s%s", at > 0 ? ", " : "", shown);
    }
}

static enum err pick_tagged(
    const struct hub_file *files, size_t n, const char *want, bool *picked, const char **open, struct error *e)
{
    size_t n_head = 0, n_match = 0, match = 0, only = 0;
    const char *tag = want[0] != '\0' ? want : "Q4_K_M";
    char choices[300], shown[120];
    for (size_t i = 0; i < n; i++) {
        if (!is_model_head(files[i].name))
            continue;
        n_head++;
        only = i;
        if (has_tag(files[i].name, tag)) {
            n_match++;
            match = i;
        }
    }
    if (want[0] == '\0' && n_head == 1)
        return pick_gguf(files, n, only, picked, open, e);
    if (n_match == 1)
        return pick_gguf(files, n, match, picked, open, e);
    str_show(str_of(want), shown, sizeof shown);
    show_choices(files, n, n_match > 1 ? tag : "", choices, sizeof choices);
    if (want[0] == '\0')
        return FAIL(e, ERR_INVALID, "several models to choose from; add ':' and one of %s", choices);
    if (n_match > 1)
        return FAIL(e, ERR_INVALID, "'%s' fits several files: %s", shown, choices);
    return FAIL(e, ERR_NOT_FOUND, "no GGUF file is called or tagged '%s'%s%s", shown, n_head > 0 ? "; there are " : "",
        choices);
}

static bool is_directory_file(const char *name, bool has_model_weights)
{
    static const char *const names[] = {"added_tokens.json", "adapter_config.json", "generation_config.json",
        "merges.txt", "params.json", "preprocessor_config.json", "processor_config.json", "quantize_config.json",
        "special_tokens_map.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
        "vocab.txt", "LICENSE"};
    const struct str s = str_of(name);
    if (strchr(name, '/') != NULL || name[0] == '.')
        return false;
    if (str_has_suffix(s, STR(".safetensors")))
        return !(has_model_weights && str_has_prefix(s, STR("consolidated")));
    if (str_has_suffix(s, STR(".safetensors.index.json")))
        return true;
    if (str_has_prefix(s, STR("config")) && str_has_suffix(s, STR(".json")))
        return true;
    if (str_has_prefix(s, STR("chat_template")) &&
        (str_has_suffix(s, STR(".jinja")) || str_has_suffix(s, STR(".json"))))
        return true;
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static enum err pick_directory(const struct hub_file *files, size_t n, bool *picked, struct error *e)
{
    bool has_config = false, has_weights = false, has_model_weights = false;
    size_t n_picked = 0;
    for (size_t i = 0; i < n; i++)
        if (str_has_prefix(str_of(files[i].name), STR("model")) &&
            str_has_suffix(str_of(files[i].name), STR(".safetensors")))
            has_model_weights = true;
    for (size_t i = 0; i < n; i++) {
        picked[i] = is_directory_file(files[i].name, has_model_weights);
        n_picked += picked[i];
        has_config = has_config || strcmp(files[i].name, "config.json") == 0;
        has_weights = has_weights || (picked[i] && str_has_suffix(str_of(files[i].name), STR(".safetensors")));
    }
    if (!has_weights || !has_config)
        return FAIL(e, ERR_UNSUPPORTED, "neither a GGUF file nor a config.json with safetensors weights is there");
    if (n_picked > HUB_ENTRY_FILES_MAX)
        return FAIL(e, ERR_LIMIT, "%zu files make the model; the limit is %d", n_picked, HUB_ENTRY_FILES_MAX);
    return OK;
}

enum err choose_files(
    const struct hub_file *files, size_t n, const char *want, bool *picked, const char **open, struct error *e)
{
    bool has_gguf = false;
    char shown[160];
    *open = "";
    for (size_t i = 0; i < n; i++)
        picked[i] = false;
    for (size_t i = 0; i < n; i++) {
        if (!name_is_safe(files[i].name))
            continue; /* hidden files such as .gitattributes; what leaves its folder was refused by the listing */
        has_gguf = has_gguf || is_model_head(files[i].name);
        if (want[0] == '\0' || strcmp(files[i].name, want) != 0)
            continue;
        if (!is_gguf(want))
            return FAIL(e, ERR_UNSUPPORTED, "%s is not a GGUF file; leave it out to take the whole directory",
                str_show(str_of(want), shown, sizeof shown));
        return pick_gguf(files, n, i, picked, open, e);
    }
    if (!has_gguf && want[0] == '\0')
        return pick_directory(files, n, picked, e);
    return pick_tagged(files, n, want, picked, open, e);
}
