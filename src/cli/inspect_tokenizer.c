/* Which tokenizer a model brings, without loading it. A GGUF file says so in its metadata. An HF folder has a
 * tokenizer.json of up to 33 MB, of which only the type of the model matters here: the writers put the vocabulary
 * last and the type in front of it, so a scan of the beginning finds it and reads nothing else. The scan is no JSON
 * parser: it follows strings and nesting, enough to know at which depth a key stands; a wrong file gives a wrong name
 * here and a proper error when the tokenizer is loaded. */
#include "cli/inspect_int.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "format/format_gguf.h"

#include <string.h>

/* The kinds that text/ does, by the name each format gives them. */
static const struct {
    const char *name, *kind;
} kinds[] = {
    {"gpt2", "byte-level BPE"},
    {"llama", "SentencePiece BPE"},
    {"t5", "Unigram"},
    {"bert", "WordPiece"},
    {"BPE", "BPE"},
    {"Unigram", "Unigram"},
    {"WordPiece", "WordPiece"},
    {"WordLevel", "WordLevel"},
    {"SentencePiece", "SentencePiece"},
};

static void set_name(struct inspect *x, struct str name)
{
    str_show(name, x->tokenizer, sizeof x->tokenizer);
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].name, x->tokenizer) == 0)
            x->tok_kind = kinds[i].kind;
}

/* The end of the string that starts at text.p[i] (a quote): the index of its closing quote, or text.n. */
static size_t string_end(struct str text, size_t i)
{
    for (i++; i < text.n && text.p[i] != '"'; i++)
        if (text.p[i] == '\\')
            i++;
    return MIN(i, text.n);
}

/* The string value of model.type in the beginning of a tokenizer.json; empty when it is not there. */
static struct str find_model_type(struct str text)
{
    int depth = 0;
    bool in_model = false, is_key = false; /* is_key: the next string of this object is a key */
    struct str key = {0};
    for (size_t i = 0; i < text.n; i++) {
        switch (text.p[i]) {
        case '{':
        case '[':
            in_model = in_model || (depth == 1 && text.p[i] == '{' && str_is(key, "model"));
            is_key = text.p[i] == '{';
            depth++;
            break;
        case '}':
        case ']':
            if (--depth == 1 && in_model)
                return (struct str){0}; /* model closed without a type */
            break;
        case ',': is_key = true; break;
        case ':': is_key = false; break;
        case '"': {
            const size_t end = string_end(text, i);
            const struct str s = {text.p + i + 1, end - i - 1};
            if (end >= text.n)
                return (struct str){0};
            if (is_key)
                key = s;
            else if (in_model && depth == 2 && str_is(key, "type"))
                return s;
            i = end;
            break;
        }
        default: break;
        }
    }
    return (struct str){0};
}

static enum err from_json_file(struct inspect *x, const char *path, struct error *e)
{
    int fd;
    uint64_t bytes;
    TRY(file_open(path, &fd, &bytes, e));
    const size_t n = (size_t)MIN(bytes, TOKENIZER_SCAN_BYTES_MAX);
    char *text = mem_alloc(n);
    if (text == NULL) {
        file_close(&fd);
        return FAIL(e, ERR_NOMEM, "no memory to read %s", path);
    }
    const enum err err = file_read_at(fd, 0, text, n, path, e);
    if (err == OK) {
        const struct str type = find_model_type((struct str){text, n});
        set_name(x, type.n > 0 ? type : STR("tokenizer.json of unknown type"));
    }
    mem_free(text);
    file_close(&fd);
    return err;
}

enum err inspect_tokenizer(struct inspect *x, struct error *e)
{
    const struct gguf *g = model_source_gguf(x->source);
    if (g != NULL) {
        struct str model = {0};
        struct gguf_array tokens = {0};
        TRY(gguf_get_str(g, "tokenizer.ggml.model", &model, e));
        TRY(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, e));
        if (model.n > 0 && tokens.n > 0)
            set_name(x, model);
        x->n_tokens = tokens.n;
        return OK;
    }
    x->n_tokens = x->config.vocab;
    const char *json = model_source_file(x->source, MODEL_FILE_TOKENIZER);
    if (json != NULL)
        return from_json_file(x, json, e);
    if (model_source_file(x->source, MODEL_FILE_SENTENCEPIECE) != NULL)
        set_name(x, STR("SentencePiece"));
    return OK;
}
