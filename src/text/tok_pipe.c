/* Compiling the spec: the components of tokenizer.json, read as data, become the steps of struct tok_pipe. Anything
 * this file does not name is refused by its name; there is no list of known models anywhere.
 *
 * Kinds of our own, for sources that are not tokenizer.json: normaliser QuernSpm, post-processor QuernAround, decoder
 * QuernSpm (tok_decoder.c). */
#include "text/tok_added.h"
#include "text/tok_charsmap.h"
#include "text/tok_int.h"

#include "base/limits.h"

#include <string.h>

static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static enum err unsupported(const char *what, struct str type, struct error *e)
{
    char shown[60];
    return FAIL(e, ERR_UNSUPPORTED, "%s '%s' is not supported", what, str_show(type, shown, sizeof shown));
}

static enum err type_of(const json_t *j, const char *what, struct str *type, struct error *e)
{
    *type = (struct str){NULL, 0};
    if (!json_is_object(j))
        return FAIL(e, ERR_FORMAT, "%s must be an object", what);
    TRY(json_get_str(j, "type", type, e));
    return type->p != NULL ? OK : FAIL(e, ERR_FORMAT, "%s has no type", what);
}

/* ---- normalisers ---- */

static enum err norm_add(struct tok_pipe *p, enum norm_kind kind, struct norm_step **out, struct error *e)
{
    if (p->n_norms == PIPE_STEPS_MAX)
        return FAIL(e, ERR_LIMIT, "normalizer has more than %d steps", PIPE_STEPS_MAX);
    *out = &p->norms[p->n_norms++];
    **out = (struct norm_step){.kind = kind};
    return OK;
}

static enum err read_pattern(const json_t *j, struct str *string, struct str *regex, struct error *e)
{
    const json_t *pattern = NULL;
    TRY(json_get_object(j, "pattern", &pattern, e));
    TRY(json_get_str(pattern, "String", string, e));
    TRY(json_get_str(pattern, "Regex", regex, e));
    if ((string->p == NULL) == (regex->p == NULL))
        return FAIL(e, ERR_FORMAT, "pattern must have either String or Regex");
    return OK;
}

static enum err read_norm_replace(const json_t *j, struct tok_pipe *p, struct error *e)
{
    struct str string = {NULL, 0}, regex = {NULL, 0}, content = {"", 0};
    struct norm_step *s = NULL;
    TRY(read_pattern(j, &string, &regex, e));
    TRY(json_get_str(j, "content", &content, e));
    TRY(norm_add(p, regex.p != NULL ? NORM_REPLACE_REGEX : NORM_REPLACE, &s, e));
    s->a = string;
    s->b = content;
    return regex.p != NULL ? regex_new(regex, &s->regex, e) : OK;
}

static enum err read_norm_bert(const json_t *j, struct norm_step *s, struct error *e)
{
    s->clean = s->chinese = s->lower = true;
    TRY(json_get_bool(j, "clean_text", &s->clean, e));
    TRY(json_get_bool(j, "handle_chinese_chars", &s->chinese, e));
    TRY(json_get_bool(j, "lowercase", &s->lower, e));
    s->accents = s->lower;
    return json_get_bool(j, "strip_accents", &s->accents, e);
}

static enum err read_norm_spm(const json_t *j, struct norm_step *s, struct error *e)
{
    struct str map = {NULL, 0};
    TRY(json_get_bool(j, "dummy_prefix", &s->dummy_prefix, e));
    TRY(json_get_bool(j, "trim", &s->trim, e));
    TRY(json_get_bool(j, "suffix", &s->suffix, e));
    TRY(json_get_bool(j, "escape_spaces", &s->escape_spaces, e));
    TRY(json_get_str(j, "charsmap", &map, e));
    return map.n > 0 ? charsmap_new_base64(map, &s->map, e) : OK;
}

/* The kinds that need no more than their name. */
static const struct {
    const char *type;
    enum norm_kind kind;
} plain_norms[] = {{"NFC", NORM_NFC}, {"NFD", NORM_NFD}, {"NFKC", NORM_NFKC}, {"NFKD", NORM_NFKD},
    {"Lowercase", NORM_LOWERCASE}, {"StripAccents", NORM_STRIP_ACCENTS}, {"Nmt", NORM_NMT}, {"Strip", NORM_STRIP},
    {"Prepend", NORM_PREPEND}, {"BertNormalizer", NORM_BERT}, {"Precompiled", NORM_CHARSMAP}, {"QuernSpm", NORM_SPM}};

static enum err read_norm(const json_t *j, struct tok_pipe *p, int depth, struct error *e)
{
    struct str type;
    if (j == NULL || json_is_null(j))
        return OK;
    if (depth > 4)
        return FAIL(e, ERR_LIMIT, "normalizer nested deeper than 4");
    TRY(type_of(j, "normalizer", &type, e));
    if (str_is(type, "Sequence")) {
        const json_t *list = NULL;
        TRY(json_get_array(j, "normalizers", &list, e));
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_norm(json_array_get(list, i), p, depth + 1, e));
        return OK;
    }
    if (str_is(type, "Replace"))
        return read_norm_replace(j, p, e);
    for (size_t i = 0; i < COUNT_OF(plain_norms); i++) {
        if (!str_is(type, plain_norms[i].type))
            continue;
        struct norm_step *s = NULL;
        struct str map = {"", 0};
        TRY(norm_add(p, plain_norms[i].kind, &s, e));
        s->left = s->right = true;
        s->a = (struct str){"", 0};
        TRY(json_get_bool(j, "strip_left", &s->left, e));
        TRY(json_get_bool(j, "strip_right", &s->right, e));
        TRY(json_get_str(j, "prepend", &s->a, e));
        TRY(json_get_str(j, "precompiled_charsmap", &map, e));
        if (s->kind == NORM_CHARSMAP)
            return charsmap_new_base64(map, &s->map, e);
        if (s->kind == NORM_SPM)
            return read_norm_spm(j, s, e);
        return s->kind == NORM_BERT ? read_norm_bert(j, s, e) : OK;
    }
    return unsupported("normalizer", type, e);
}

/* ---- pre-tokenisers ---- */

static enum err pre_add(struct tok_pipe *p, struct pre_step step, struct pre_step **out, struct error *e)
{
    if (p->n_pres == PIPE_STEPS_MAX)
        return FAIL(e, ERR_LIMIT, "pre_tokenizer has more than %d steps", PIPE_STEPS_MAX);
    p->pres[p->n_pres] = step;
    if (out != NULL)
        *out = &p->pres[p->n_pres];
    p->n_pres++;
    return OK;
}

static enum err read_behaviour(const json_t *j, enum split_behaviour *out, struct error *e)
{
    static const struct {
        const char *name;
        enum split_behaviour value;
    } all[] = {{"Removed", SPLIT_REMOVED}, {"Isolated", SPLIT_ISOLATED}, {"MergedWithPrevious", SPLIT_WITH_PREVIOUS},
        {"MergedWithNext", SPLIT_WITH_NEXT}, {"Contiguous", SPLIT_CONTIGUOUS}};
    struct str name = {NULL, 0};
    TRY(json_get_str(j, "behavior", &name, e));
    if (name.p == NULL)
        return OK;
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (str_is(name, all[i].name)) {
            *out = all[i].value;
            return OK;
        }
    }
    return unsupported("split behavior", name, e);
}

static enum err read_pre_split(const json_t *j, struct tok_pipe *p, struct error *e)
{
    struct pre_step step = {.kind = PRE_SPLIT_STR, .behaviour = SPLIT_ISOLATED}, *s = NULL;
    struct str regex = {NULL, 0};
    TRY(read_pattern(j, &step.pattern, &regex, e));
    TRY(read_behaviour(j, &step.behaviour, e));
    TRY(json_get_bool(j, "invert", &step.invert, e));
    if (regex.p != NULL)
        step.kind = PRE_SPLIT_REGEX;
    TRY(pre_add(p, step, &s, e));
    return regex.p != NULL ? regex_new(regex, &s->regex, e) : OK;
}

/* ByteLevel: a space in front, its split, and the spelling of bytes where later steps would see it. */
static enum err read_pre_byte_level(const json_t *j, struct tok_pipe *p, struct error *e)
{
    bool prefix = true, use_regex = true;
    struct pre_step *s = NULL;
    TRY(json_get_bool(j, "add_prefix_space", &prefix, e));
    TRY(json_get_bool(j, "use_regex", &use_regex, e));
    if (prefix)
        TRY(pre_add(p, (struct pre_step){.kind = PRE_BYTE_LEVEL, .add_prefix_space = true}, NULL, e));
    if (use_regex) {
        TRY(pre_add(p, (struct pre_step){.kind = PRE_SPLIT_REGEX, .behaviour = SPLIT_ISOLATED}, &s, e));
        TRY(regex_new(str_of(gpt2_pattern), &s->regex, e));
    }
    return pre_add(p, (struct pre_step){.kind = PRE_BYTE_LEVEL, .remap = true}, NULL, e);
}

static enum err read_pre_metaspace(const json_t *j, struct tok_pipe *p, struct error *e)
{
    struct pre_step s = {.kind = PRE_METASPACE, .behaviour = SPLIT_WITH_NEXT, .prepend = 2, .split = true};
    struct str scheme = {NULL, 0};
    bool prefix = true;
    s.pattern = STR("\xE2\x96\x81");
    TRY(json_get_str(j, "replacement", &s.pattern, e));
    TRY(json_get_str(j, "prepend_scheme", &scheme, e));
    TRY(json_get_bool(j, "add_prefix_space", &prefix, e));
    TRY(json_get_bool(j, "split", &s.split, e));
    if (scheme.p == NULL)
        s.prepend = prefix ? 2 : 0;
    else if (str_is(scheme, "always") || str_is(scheme, "first") || str_is(scheme, "never"))
        s.prepend = scheme.p[0] == 'a' ? 2 : scheme.p[0] == 'f' ? 1 : 0;
    else
        return unsupported("prepend_scheme", scheme, e);
    return pre_add(p, s, NULL, e);
}

static enum err read_pre_simple(const json_t *j, struct str type, struct tok_pipe *p, struct error *e)
{
    struct pre_step s = {.kind = PRE_PUNCTUATION, .behaviour = SPLIT_ISOLATED};
    if (str_is(type, "Digits")) {
        s.kind = PRE_DIGITS;
        TRY(json_get_bool(j, "individual_digits", &s.individual, e));
        s.behaviour = s.individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    } else if (str_is(type, "WhitespaceSplit")) {
        s = (struct pre_step){.kind = PRE_WHITESPACE_SPLIT, .behaviour = SPLIT_REMOVED};
    } else if (str_is(type, "Punctuation")) {
        TRY(read_behaviour(j, &s.behaviour, e));
    } else if (str_is(type, "BertPreTokenizer")) {
        TRY(pre_add(p, (struct pre_step){.kind = PRE_BERT_SPACES, .behaviour = SPLIT_REMOVED}, NULL, e));
    } else if (str_is(type, "Whitespace")) {
        s = (struct pre_step){.kind = PRE_WHITESPACE, .behaviour = SPLIT_REMOVED};
    } else if (str_is(type, "CharDelimiterSplit")) {
        s = (struct pre_step){.kind = PRE_SPLIT_STR, .behaviour = SPLIT_REMOVED, .pattern = STR(" ")};
        TRY(json_get_str(j, "delimiter", &s.pattern, e));
    } else if (str_is(type, "FixedLength")) {
        uint64_t length = 5;
        TRY(json_get_u64(j, "length", 1, UINT32_MAX, &length, e));
        s = (struct pre_step){.kind = PRE_FIXED_LENGTH, .behaviour = SPLIT_ISOLATED, .length = (uint32_t)length};
    } else {
        return unsupported("pre_tokenizer", type, e);
    }
    return pre_add(p, s, NULL, e);
}

static enum err read_pre(const json_t *j, struct tok_pipe *p, int depth, struct error *e)
{
    struct str type;
    if (j == NULL || json_is_null(j))
        return OK;
    if (depth > 4)
        return FAIL(e, ERR_LIMIT, "pre_tokenizer nested deeper than 4");
    TRY(type_of(j, "pre_tokenizer", &type, e));
    if (str_is(type, "Sequence")) {
        const json_t *list = NULL;
        TRY(json_get_array(j, "pretokenizers", &list, e));
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_pre(json_array_get(list, i), p, depth + 1, e));
        return OK;
    }
    if (str_is(type, "Split"))
        return read_pre_split(j, p, e);
    if (str_is(type, "ByteLevel"))
        return read_pre_byte_level(j, p, e);
    if (str_is(type, "Metaspace"))
        return read_pre_metaspace(j, p, e);
    return read_pre_simple(j, type, p, e);
}

/* Spelling bytes out and reading them back at once is left out: only a step behind would have seen it. */
static enum err settle_remaps(struct tok_pipe *p, struct error *e)
{
    if (p->n_pres > 0 && p->pres[p->n_pres - 1].remap)
        p->n_pres--;
    size_t remaps = 0;
    for (size_t i = 0; i < p->n_pres; i++)
        remaps += p->pres[i].remap;
    if (remaps > 1)
        return FAIL(e, ERR_UNSUPPORTED, "pre_tokenizer with ByteLevel twice is not supported");
    p->remaps = remaps == 1;
    return OK;
}

/* ---- post-processors ---- */

/* ids in front of (or behind) what is there already: a later processor wraps the earlier ones. */
static enum err put_around(
    struct tok_pipe *p, uint32_t n_vocab, const uint64_t *ids, size_t n, bool before, struct error *e)
{
    uint32_t **list = before ? &p->before : &p->after;
    size_t *count = before ? &p->n_before : &p->n_after;
    if (*count + n > TOK_POST_MAX)
        return FAIL(e, ERR_LIMIT, "post_processor adds more than %d tokens", TOK_POST_MAX);
    uint32_t *grown = mem_resize(*list, TOK_POST_MAX * sizeof *grown);
    if (grown == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a post_processor");
    *list = grown;
    if (before)
        memmove(grown + n, grown, *count * sizeof *grown);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= n_vocab)
            return FAIL(e, ERR_FORMAT, "post_processor names token %llu; the vocabulary has %u",
                (unsigned long long)ids[i], n_vocab);
        grown[before ? i : *count + i] = (uint32_t)ids[i];
    }
    *count += n;
    return OK;
}

static enum err ids_of(const json_t *list, uint64_t *ids, size_t *n, struct error *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (*n == TOK_POST_MAX)
            return FAIL(e, ERR_LIMIT, "post_processor adds more than %d tokens", TOK_POST_MAX);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return FAIL(e, ERR_FORMAT, "post_processor: ids must be whole numbers");
        ids[(*n)++] = (uint64_t)json_integer_value(v);
    }
    return OK;
}

static enum err read_template(const json_t *j, struct tok_pipe *p, uint32_t n_vocab, struct error *e)
{
    const json_t *single = NULL, *tokens = NULL;
    uint64_t ids[2][TOK_POST_MAX];
    size_t n[2] = {0, 0};
    int side = 0;
    TRY(json_get_array(j, "single", &single, e));
    TRY(json_get_object(j, "special_tokens", &tokens, e));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
        if (json_object_get(item, "Sequence") != NULL) {
            if (side++ > 0)
                return FAIL(e, ERR_UNSUPPORTED, "post_processor TemplateProcessing with the text twice");
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *list = name != NULL ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
        if (list == NULL)
            return FAIL(e, ERR_FORMAT, "post_processor TemplateProcessing: item %zu names no special token", i);
        TRY(ids_of(list, ids[side], &n[side], e));
    }
    if (side == 0)
        return FAIL(e, ERR_FORMAT, "post_processor TemplateProcessing leaves the text out");
    TRY(put_around(p, n_vocab, ids[0], n[0], true, e));
    return put_around(p, n_vocab, ids[1], n[1], false, e);
}

/* ["<s>", 0] of Bert and Roberta. */
static enum err read_pair(const json_t *j, const char *key, uint64_t *id, struct error *e)
{
    const json_t *v = json_array_get(json_object_get(j, key), 1);
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return FAIL(e, ERR_FORMAT, "post_processor: '%s' must be a token and its id", key);
    *id = (uint64_t)json_integer_value(v);
    return OK;
}

static enum err read_post(const json_t *j, struct tok_pipe *p, uint32_t n_vocab, int depth, struct error *e)
{
    struct str type;
    if (j == NULL || json_is_null(j))
        return OK;
    if (depth > 4)
        return FAIL(e, ERR_LIMIT, "post_processor nested deeper than 4");
    TRY(type_of(j, "post_processor", &type, e));
    if (str_is(type, "Sequence")) {
        const json_t *list = NULL;
        TRY(json_get_array(j, "processors", &list, e));
        for (size_t i = 0; i < json_array_size(list); i++)
            TRY(read_post(json_array_get(list, i), p, n_vocab, depth + 1, e));
        return OK;
    }
    if (str_is(type, "ByteLevel")) /* moves offsets, which we do not have */
        return OK;
    if (str_is(type, "TemplateProcessing"))
        return read_template(j, p, n_vocab, e);
    if (str_is(type, "RobertaProcessing") || str_is(type, "BertProcessing")) {
        uint64_t sep, cls;
        TRY(read_pair(j, "sep", &sep, e));
        TRY(read_pair(j, "cls", &cls, e));
        TRY(put_around(p, n_vocab, &cls, 1, true, e));
        return put_around(p, n_vocab, &sep, 1, false, e);
    }
    if (str_is(type, "QuernAround")) {
        uint64_t ids[2][TOK_POST_MAX];
        size_t n[2] = {0, 0};
        TRY(ids_of(json_object_get(j, "before"), ids[0], &n[0], e));
        TRY(ids_of(json_object_get(j, "after"), ids[1], &n[1], e));
        TRY(put_around(p, n_vocab, ids[0], n[0], true, e));
        return put_around(p, n_vocab, ids[1], n[1], false, e);
    }
    return unsupported("post_processor", type, e);
}

/* ---- added tokens ---- */

enum err added_token_read(const json_t *j, struct added_token *a, struct error *e)
{
    uint64_t id = TOK_NONE;
    *a = (struct added_token){.content = {NULL, 0}};
    if (!json_is_object(j))
        return FAIL(e, ERR_FORMAT, "added_tokens: an entry is not an object");
    TRY(json_get_str(j, "content", &a->content, e));
    TRY(json_get_u64(j, "id", 0, TOK_COUNT_MAX - 1, &id, e));
    if (a->content.p == NULL || id == TOK_NONE)
        return FAIL(e, ERR_FORMAT, "added_tokens: an entry has no content or no id");
    a->id = (uint32_t)id;
    TRY(json_get_bool(j, "special", &a->special, e));
    a->normalized = !a->special;
    TRY(json_get_bool(j, "normalized", &a->normalized, e));
    TRY(json_get_bool(j, "single_word", &a->single_word, e));
    TRY(json_get_bool(j, "lstrip", &a->lstrip, e));
    return json_get_bool(j, "rstrip", &a->rstrip, e);
}

enum added_set { ADDED_RAW, ADDED_NORMAL, ADDED_PROTECT };

static bool belongs(const struct added_token *a, enum added_set set)
{
    return set == ADDED_PROTECT ? a->normalized && !a->special : a->normalized == (set == ADDED_NORMAL);
}

/* What a token looks like in the normalised text. sentencepiece's own symbols are not normalised, but GGUF files write
 * their spaces plainly. */
static enum err normal_spelling(
    const struct tok *t, struct tok_ctx *c, struct arena *arena, struct str *s, struct error *e)
{
    const struct norm_step *first = &t->pipe.norms[0];
    if (t->pipe.n_norms == 0)
        return OK;
    if (first->kind != NORM_SPM) {
        c->e = e;
        TRY(norm_run(t, c, *s, false, s));
        s->p = arena_copy_str(arena, *s);
        return s->p != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for added tokens");
    }
    if (!first->escape_spaces || memchr(s->p, ' ', s->n) == NULL)
        return OK;
    char *spelled = arena_take(arena, 3 * s->n);
    size_t n = 0;
    if (spelled == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for added tokens");
    for (size_t i = 0; i < s->n; i++) {
        const struct str one = s->p[i] == ' ' ? STR("\xE2\x96\x81") : (struct str){s->p + i, 1};
        memcpy(spelled + n, one.p, one.n);
        n += one.n;
    }
    *s = (struct str){spelled, n};
    return OK;
}

static enum err make_matcher(struct tok *t, enum added_set set, struct matcher **out, struct error *e)
{
    struct tok_pipe *p = &t->pipe;
    struct matcher_entry *entries = mem_array(p->n_added + 1, sizeof *entries);
    struct tok_ctx *c = NULL;
    struct arena spellings;
    arena_init(&spellings, TOK_BYTES_MAX);
    enum err err = entries != NULL ? tok_ctx_new(&c, e) : FAIL(e, ERR_NOMEM, "no memory for added tokens");
    size_t n = 0;
    for (size_t i = 0; i < p->n_added && err == OK; i++) {
        struct str s = p->added[i].content;
        if (!belongs(&p->added[i], set))
            continue;
        if (set != ADDED_RAW)
            err = normal_spelling(t, c, &spellings, &s, e);
        if (err == OK && s.n > 0)
            entries[n++] = (struct matcher_entry){s, (uint32_t)i};
        p->has_special_normal |= set == ADDED_NORMAL && p->added[i].special;
    }
    if (err == OK && n > 0)
        err = matcher_new(entries, n, out, e);
    arena_fini(&spellings);
    tok_ctx_free(c);
    mem_free(entries);
    return err;
}

static enum err read_added(struct tok *t, struct error *e)
{
    struct tok_pipe *p = &t->pipe;
    const json_t *list = NULL;
    TRY(json_get_array(t->spec, "added_tokens", &list, e));
    p->added = mem_array(json_array_size(list) + 1, sizeof *p->added);
    if (p->added == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for added tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(added_token_read(json_array_get(list, i), &p->added[p->n_added], e));
        if (!utf8_is_valid(p->added[p->n_added].content))
            return FAIL(e, ERR_FORMAT, "added_tokens: token %u is not valid UTF-8", p->added[p->n_added].id);
        if (p->added[p->n_added++].id >= t->meta->n)
            return FAIL(e, ERR_FORMAT, "added_tokens: id %u is outside the vocabulary of %u",
                p->added[p->n_added - 1].id, t->meta->n);
    }
    TRY(make_matcher(t, ADDED_RAW, &p->raw, e));
    const bool spm = p->n_norms > 0 && p->norms[0].kind == NORM_SPM;
    if (spm)
        TRY(make_matcher(t, ADDED_PROTECT, &p->protect, e));
    /* a Unigram lattice weighs user-defined symbols itself */
    return spm && t->meta->model == TOK_UNIGRAM ? OK : make_matcher(t, ADDED_NORMAL, &p->normal, e);
}

/* ---- the whole ---- */

enum err pipe_compile(struct tok *t, struct error *e)
{
    const struct str text = {t->sec[SEC_SPEC].p, t->sec[SEC_SPEC].bytes};
    struct tok_pipe *p = &t->pipe;
    TRY(json_parse(text, &t->spec, e));
    if (!json_is_object(t->spec))
        return FAIL(e, ERR_FORMAT, "the tokenizer's description is not an object");
    TRY(read_norm(json_object_get(t->spec, "normalizer"), p, 0, e));
    TRY(read_pre(json_object_get(t->spec, "pre_tokenizer"), p, 0, e));
    TRY(settle_remaps(p, e));
    TRY(read_post(json_object_get(t->spec, "post_processor"), p, t->meta->n, 0, e));
    const json_t *model = NULL;
    TRY(json_get_object(t->spec, "model", &model, e));
    p->prefix = p->suffix = (struct str){"", 0};
    TRY(json_get_str(model, "continuing_subword_prefix", &p->prefix, e));
    TRY(json_get_str(model, "end_of_word_suffix", &p->suffix, e));
    return read_added(t, e);
}

void pipe_fini(struct tok_pipe *p)
{
    for (size_t i = 0; i < p->n_norms; i++) {
        regex_free(p->norms[i].regex);
        charsmap_free(p->norms[i].map);
    }
    /* a remap step dropped from the end has no regex */
    for (size_t i = 0; i < p->n_pres; i++)
        regex_free(p->pres[i].regex);
    matcher_free(p->raw);
    matcher_free(p->normal);
    matcher_free(p->protect);
    mem_free(p->before);
    mem_free(p->after);
    mem_free(p->added);
}
