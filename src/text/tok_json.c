/* Reading tokenizer.json: the model's vocabulary and merges into the builder, the rest of the file into the spec.
 *
 * The vocabulary must be whole: an id belongs to one token, a name to one id, merges name tokens that exist, and below
 * the highest ordinary token there is no id without a token. (Between added tokens behind it there may be such holes:
 * some vocabularies leave room there.) */
#include "text/tok_int.h"
#include "text/tok_members.h"

#include "base/buf.h"
#include "base/limits.h"

#include <math.h>
#include <string.h>

struct entry {
    struct str name;
    int64_t id;
};

struct json_source {
    struct members members;
    struct arena strings; /* names that had escapes */
    struct entry *entries;
    size_t n_entries, cap_entries;
    const json_t *root, *model;
    struct tok_build b;
    struct name_table names;
    double *scores;
    struct error *e;
};

static const char *show(struct str s, char out[80])
{
    return str_show(s, out, 80);
}

/* ---- ids ---- */

static enum err note_id(struct json_source *s, int64_t id, struct str name)
{
    char shown[80];
    if (id < 0 || id >= TOK_COUNT_MAX)
        return FAIL(s->e, ERR_LIMIT, "token '%s' has id %lld; ids go from 0 to %u", show(name, shown), (long long)id,
            TOK_COUNT_MAX - 1);
    if (id + 1 > s->b.n)
        s->b.n = (uint32_t)id + 1;
    return OK;
}

static enum err place(struct json_source *s, uint32_t id, struct str name)
{
    char a[80], b[80];
    if (s->b.names[id].p != NULL)
        return FAIL(
            s->e, ERR_FORMAT, "tokens '%s' and '%s' have the same id %u", show(s->b.names[id], a), show(name, b), id);
    s->b.names[id] = name;
    return OK;
}

static enum err entry_add(struct json_source *s, struct str name, int64_t id)
{
    TRY(note_id(s, id, name));
    if (s->n_entries > TOK_COUNT_MAX)
        return FAIL(s->e, ERR_LIMIT, "model.vocab has more than %u entries", TOK_COUNT_MAX);
    if (s->n_entries == s->cap_entries) {
        const size_t cap = MAX(s->cap_entries * 2, (size_t)1024);
        struct entry *grown = mem_resize(s->entries, cap * sizeof *grown);
        if (grown == NULL)
            return FAIL(s->e, ERR_NOMEM, "no memory for %zu tokens", cap);
        s->entries = grown;
        s->cap_entries = cap;
    }
    s->entries[s->n_entries++] = (struct entry){name, id};
    return OK;
}

/* {"name": 7, ...} */
static enum err read_vocab_object(struct json_source *s)
{
    struct member_reader r;
    struct str name;
    int64_t id = 0;
    bool more;
    TRY(member_open(&r, s->members.vocab, '{', "model.vocab", &s->strings, s->e));
    for (;;) {
        TRY(member_next(&r, &more));
        if (!more)
            return OK;
        TRY(member_str(&r, &name));
        TRY(member_char(&r, ':'));
        const enum err err = member_int(&r, &id);
        char shown[80];
        if (err != OK)
            return error_prefix(s->e, "the id of '%s'", show(name, shown));
        TRY(entry_add(s, name, id));
    }
}

static enum err score_add(struct json_source *s, double score)
{
    /* the scores follow the entries; their room doubles with the same sizes */
    const size_t at = s->n_entries - 1;
    if (at == 0 || (at >= 1024 && (at & (at - 1)) == 0)) {
        double *grown = mem_resize(s->scores, MAX(2 * at, (size_t)1024) * sizeof *grown);
        if (grown == NULL)
            return FAIL(s->e, ERR_NOMEM, "no memory for %zu scores", 2 * at);
        s->scores = grown;
    }
    s->scores[at] = score;
    return OK;
}

/* [["piece", -3.2], ...] */
static enum err read_vocab_scores(struct json_source *s)
{
    struct member_reader r;
    struct str name;
    double score = 0;
    bool more;
    TRY(member_open(&r, s->members.vocab, '[', "model.vocab", &s->strings, s->e));
    for (;;) {
        TRY(member_next(&r, &more));
        if (!more)
            return OK;
        TRY(member_char(&r, '['));
        TRY(member_str(&r, &name));
        TRY(member_char(&r, ','));
        TRY(member_f64(&r, &score));
        TRY(member_char(&r, ']'));
        TRY(entry_add(s, name, (int64_t)s->n_entries));
        TRY(score_add(s, score));
    }
}

/* Scores for the tokens that were added behind the model's own. */
static enum err extend_scores(struct json_source *s)
{
    double *grown = mem_resize(s->scores, MAX((size_t)s->b.n, (size_t)1) * sizeof *grown);
    if (grown == NULL)
        return FAIL(s->e, ERR_NOMEM, "no memory for %u scores", s->b.n);
    for (size_t i = s->n_entries; i < s->b.n; i++)
        grown[i] = 0;
    s->scores = grown;
    s->b.scores = grown;
    return OK;
}

static enum err count_added(struct json_source *s)
{
    const json_t *added = NULL;
    TRY(json_get_array(s->root, "added_tokens", &added, s->e));
    if (json_array_size(added) > TOK_ADDED_MAX)
        return FAIL(s->e, ERR_LIMIT, "%zu added tokens; the limit is %u", json_array_size(added), TOK_ADDED_MAX);
    for (size_t i = 0; i < json_array_size(added); i++) {
        struct added_token a;
        TRY(added_token_read(json_array_get(added, i), &a, s->e));
        TRY(note_id(s, a.id, a.content));
    }
    return s->b.n > 0 ? OK : FAIL(s->e, ERR_FORMAT, "model.vocab is empty");
}

static enum err read_vocab(struct json_source *s)
{
    const bool unigram = s->b.meta.model == TOK_UNIGRAM;
    TRY(unigram ? read_vocab_scores(s) : read_vocab_object(s));
    TRY(count_added(s));
    s->b.names = mem_array(s->b.n, sizeof *s->b.names);
    s->b.flags = mem_array(s->b.n, 1);
    if (s->b.names == NULL || s->b.flags == NULL)
        return FAIL(s->e, ERR_NOMEM, "no memory for %u tokens", s->b.n);
    for (size_t i = 0; i < s->n_entries; i++)
        TRY(place(s, (uint32_t)s->entries[i].id, s->entries[i].name));
    return unigram ? extend_scores(s) : OK;
}

static enum err place_added(struct json_source *s)
{
    const json_t *added = json_object_get(s->root, "added_tokens");
    char shown[80];
    for (size_t i = 0; i < json_array_size(added); i++) {
        struct added_token a;
        TRY(added_token_read(json_array_get(added, i), &a, s->e));
        const uint32_t have = name_table_find(&s->names, a.content);
        if (have != TOK_NONE && have != a.id)
            return FAIL(s->e, ERR_FORMAT, "added token '%s' has id %u, but %u in model.vocab", show(a.content, shown),
                a.id, have);
        if (have == TOK_NONE) {
            TRY(place(s, a.id, a.content));
            s->b.flags[a.id] |= VOCAB_OUTSIDE;
        }
        s->b.flags[a.id] |= (uint8_t)(VOCAB_ADDED | (a.special ? VOCAB_SPECIAL : 0));
    }
    uint32_t last = 0;
    for (uint32_t id = 0; id < s->b.n; id++)
        if (s->b.names[id].p != NULL && (s->b.flags[id] & VOCAB_ADDED) == 0)
            last = id;
    for (uint32_t id = 0; id < s->b.n; id++) {
        if (s->b.names[id].p != NULL)
            continue;
        if (id < last)
            return FAIL(
                s->e, ERR_FORMAT, "model.vocab has a hole: no token has id %u, though ids go on to %u", id, last);
        s->b.flags[id] |= VOCAB_HOLE;
    }
    return OK;
}

/* ---- merges ---- */

/* "left right" */
static enum err split_merge(struct str s, size_t i, struct str *left, struct str *right, struct error *e)
{
    const char *space = memchr(s.p, ' ', s.n);
    if (space == NULL || memchr(space + 1, ' ', s.n - (size_t)(space - s.p) - 1) != NULL)
        return FAIL(e, ERR_FORMAT, "model.merges: entry %zu is not two tokens", i);
    *left = (struct str){s.p, (size_t)(space - s.p)};
    *right = (struct str){space + 1, s.n - left->n - 1};
    return OK;
}

/* "left right" or ["left", "right"] */
static enum err next_merge(struct member_reader *r, size_t i, struct str *left, struct str *right, struct error *e)
{
    if (member_at(r, '"')) {
        struct str both = {NULL, 0};
        TRY(member_str(r, &both));
        return split_merge(both, i, left, right, e);
    }
    enum err err = member_char(r, '[');
    if (err == OK)
        err = member_str(r, left);
    if (err == OK)
        err = member_char(r, ',');
    if (err == OK)
        err = member_str(r, right);
    if (err == OK)
        err = member_char(r, ']');
    if (err != OK)
        error_prefix(e, "entry %zu", i);
    return err;
}

static enum err read_merge(struct json_source *s, size_t i, struct str left, struct str right, struct str prefix)
{
    char joined[2 * TOK_NAME_BYTES_MAX], shown[80];
    const struct str tail =
        prefix.n > 0 && str_has_prefix(right, prefix) ? (struct str){right.p + prefix.n, right.n - prefix.n} : right;
    if (left.n > TOK_NAME_BYTES_MAX || right.n > TOK_NAME_BYTES_MAX)
        return FAIL(s->e, ERR_LIMIT, "model.merges: entry %zu is longer than %d bytes", i, TOK_NAME_BYTES_MAX);
    memcpy(joined, left.p, left.n);
    memcpy(joined + left.n, tail.p, tail.n);
    const struct str all = {joined, left.n + tail.n};
    const struct tok_merge m = {name_table_find(&s->names, left), name_table_find(&s->names, right), (uint32_t)i,
        name_table_find(&s->names, all)};
    const struct str unknown = m.left == TOK_NONE ? left : m.right == TOK_NONE ? right : all;
    if (m.left == TOK_NONE || m.right == TOK_NONE || m.id == TOK_NONE)
        return FAIL(s->e, ERR_FORMAT, "model.merges: entry %zu needs the token '%s', which is not in the vocabulary", i,
            show(unknown, shown));
    if ((s->b.flags[m.id] & VOCAB_SPECIAL) == 0) /* no text may merge into a control token */
        s->b.merges[s->b.n_merges++] = m;
    return OK;
}

static enum err read_merges(struct json_source *s)
{
    struct member_reader r;
    struct str prefix = {"", 0};
    size_t cap = 0;
    bool more;
    TRY(json_get_str(s->model, "continuing_subword_prefix", &prefix, s->e));
    if (s->members.merges.p == NULL)
        return FAIL(s->e, ERR_FORMAT, "model.merges must be an array");
    TRY(member_open(&r, s->members.merges, '[', "model.merges", &s->strings, s->e));
    for (size_t i = 0;; i++) {
        struct str left = {"", 0}, right = {"", 0};
        TRY(member_next(&r, &more));
        if (!more)
            return OK;
        if (i == TOK_MERGES_MAX)
            return FAIL(s->e, ERR_LIMIT, "model.merges has more than %u entries", TOK_MERGES_MAX);
        if (s->b.n_merges == cap) {
            cap = MAX(cap * 2, (size_t)1024);
            struct tok_merge *grown = mem_resize(s->b.merges, cap * sizeof *grown);
            if (grown == NULL)
                return FAIL(s->e, ERR_NOMEM, "no memory for %zu merges", cap);
            s->b.merges = grown;
        }
        TRY(next_merge(&r, i, &left, &right, s->e));
        TRY(read_merge(s, i, left, right, prefix));
    }
}

/* ---- the model's options ---- */

static bool mentions_type(const json_t *j, const char *type, int depth)
{
    const char *key;
    const json_t *v;
    if (depth > 8)
        return false;
    if (json_is_array(j)) {
        for (size_t i = 0; i < json_array_size(j); i++)
            if (mentions_type(json_array_get(j, i), type, depth + 1))
                return true;
        return false;
    }
    json_t *object = (json_t *)(uintptr_t)j;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        v = value;
        if (strcmp(key, "type") == 0 && json_is_string(v) && strcmp(json_string_value(v), type) == 0)
            return true;
        if (mentions_type(v, type, depth + 1))
            return true;
    }
    return false;
}

static enum err read_kind(struct json_source *s)
{
    static const struct {
        const char *name;
        enum tok_model_kind kind;
    } kinds[] = {
        {"BPE", TOK_BPE}, {"Unigram", TOK_UNIGRAM}, {"WordPiece", TOK_WORDPIECE}, {"WordLevel", TOK_WORDLEVEL}};
    struct str type = {NULL, 0};
    char shown[80];
    TRY(json_get_object(s->root, "model", &s->model, s->e));
    if (s->model == NULL)
        return FAIL(s->e, ERR_FORMAT, "there is no field 'model'");
    TRY(json_get_str(s->model, "type", &type, s->e));
    if (type.p == NULL) /* old files do not say */
        type = json_object_get(s->model, "merges") != NULL                      ? STR("BPE")
               : json_is_array(json_object_get(s->model, "vocab"))              ? STR("Unigram")
               : json_object_get(s->model, "continuing_subword_prefix") != NULL ? STR("WordPiece")
                                                                                : STR("WordLevel");
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        if (str_is(type, kinds[i].name))
            s->b.meta.model = kinds[i].kind;
    if (s->b.meta.model == 0)
        return FAIL(s->e, ERR_UNSUPPORTED, "model '%s' is not supported", show(type, shown));
    return OK;
}

static enum err flag_from(struct json_source *s, const char *key, uint32_t flag)
{
    bool on = false;
    TRY(json_get_bool(s->model, key, &on, s->e));
    if (on)
        s->b.meta.flags |= flag;
    return OK;
}

static enum err read_options(struct json_source *s)
{
    double dropout = 0;
    struct str unk = {NULL, 0};
    uint64_t unk_id = TOK_NONE, chars = 100;
    char shown[80];
    TRY(json_get_f64(s->model, "dropout", 0, 1, &dropout, s->e));
    if (dropout > 0)
        return FAIL(s->e, ERR_UNSUPPORTED, "model.dropout %g is not supported: the same text must give the same tokens",
            dropout);
    TRY(flag_from(s, "byte_fallback", META_BYTE_FALLBACK));
    TRY(flag_from(s, "ignore_merges", META_IGNORE_MERGES));
    TRY(flag_from(s, "fuse_unk", META_FUSE_UNK));
    if (s->b.meta.model == TOK_UNIGRAM)
        s->b.meta.flags |= META_FUSE_UNK;
    TRY(json_get_u64(s->model, "max_input_chars_per_word", 0, UINT32_MAX, &chars, s->e));
    s->b.meta.word_chars_max = (uint32_t)chars;
    TRY(json_get_str(s->model, "unk_token", &unk, s->e));
    TRY(json_get_u64(s->model, "unk_id", 0, s->b.n - 1, &unk_id, s->e));
    if (unk.p != NULL && unk.n > 0) {
        unk_id = name_table_find(&s->names, unk);
        if (unk_id == TOK_NONE && s->b.meta.model == TOK_BPE)
            return FAIL(s->e, ERR_FORMAT, "model.unk_token '%s' is not in the vocabulary", show(unk, shown));
    }
    s->b.meta.unk = (uint32_t)unk_id;
    if (unk_id != TOK_NONE)
        s->b.flags[unk_id] |= VOCAB_UNKNOWN;
    if (mentions_type(json_object_get(s->root, "pre_tokenizer"), "ByteLevel", 0) && s->b.meta.model == TOK_BPE)
        s->b.meta.flags |= META_BYTE_LEVEL;
    return OK;
}

static void find_byte_tokens(struct json_source *s)
{
    for (uint32_t id = 0; id < s->b.n; id++) {
        const int byte = (s->b.meta.flags & META_BYTE_FALLBACK) ? byte_token_value(s->b.names[id]) : -1;
        if (byte < 0)
            continue;
        s->b.flags[id] |= VOCAB_BYTE;
        if ((s->b.meta.flags & META_BYTE_LEVEL) == 0)
            s->b.meta.byte_ids[byte] = id;
    }
}

/* ---- roles, spec ---- */

static uint32_t role_token(struct json_source *s, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return TOK_NONE;
    const struct str name = {json_string_value(v), json_string_length(v)};
    for (uint32_t id = s->b.n; id-- > 0;) /* added tokens are not in the table of the model, and near the end */
        if (str_eq(s->b.names[id], name))
            return id;
    return TOK_NONE;
}

static enum err read_roles(struct json_source *s, struct str config)
{
    json_t *doc = NULL;
    struct tok_roles *r = &s->b.meta.roles;
    *r = (struct tok_roles){TOK_NONE, TOK_NONE, TOK_NONE, TOK_NONE, s->b.meta.unk, TOK_NONE};
    if (config.n > 0) {
        const enum err err = json_parse(config, &doc, s->e);
        if (err != OK) {
            error_prefix(s->e, "tokenizer_config.json");
            return err;
        }
        r->bos = role_token(s, doc, "bos_token");
        r->eos = role_token(s, doc, "eos_token");
        r->pad = role_token(s, doc, "pad_token");
        if (r->unk == TOK_NONE)
            r->unk = role_token(s, doc, "unk_token");
        json_decref(doc);
    }
    return OK;
}

/* The name of the token that ends a turn is not written anywhere in tokenizer.json: it is one of a few spellings. */
static void find_turn_ends(struct json_source *s)
{
    static const char *const eot[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|eot|>", "<EOT>"};
    struct tok_roles *r = &s->b.meta.roles;
    for (uint32_t id = 0; id < s->b.n; id++) {
        if ((s->b.flags[id] & VOCAB_ADDED) == 0)
            continue;
        for (size_t i = 0; i < COUNT_OF(eot) && r->eot == TOK_NONE; i++)
            if (str_is(s->b.names[id], eot[i]))
                r->eot = id;
        if (str_is(s->b.names[id], "<|eom_id|>"))
            r->eom = id;
    }
}

static enum err make_spec(struct json_source *s)
{
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"};
    static const char *const options[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    s->b.spec = json_object();
    json_t *model = json_object();
    int bad = json_object_set_new(s->b.spec, "model", model) != 0; /* takes the model, whatever happens */
    for (size_t i = 0; i < COUNT_OF(parts) && !bad; i++) {
        json_t *v = json_object_get(s->root, parts[i]);
        bad = v != NULL && json_object_set(s->b.spec, parts[i], v) != 0;
    }
    for (size_t i = 0; i < COUNT_OF(options) && !bad; i++) {
        json_t *v = json_object_get(s->model, options[i]);
        if (json_is_string(v) && json_string_length(v) > 0)
            bad = json_object_set(model, options[i], v) != 0;
    }
    return bad ? FAIL(s->e, ERR_NOMEM, "no memory for a tokenizer") : OK;
}

static enum err read_all(struct json_source *s, struct str config)
{
    if (!json_is_object(s->root))
        return FAIL(s->e, ERR_FORMAT, "tokenizer.json is not an object");
    TRY(read_kind(s));
    TRY(read_vocab(s));
    TRY(name_table_init(&s->names, s->b.names, s->b.n, NULL, NULL, s->e));
    TRY(read_options(s));
    TRY(place_added(s));
    find_byte_tokens(s);
    TRY(read_roles(s, config));
    find_turn_ends(s);
    if (s->b.meta.model == TOK_BPE)
        TRY(read_merges(s));
    return make_spec(s);
}

enum err tok_from_json(struct str json, struct str config, struct tok **out, struct error *e)
{
    *out = NULL;
    struct json_source s = {.e = e};
    json_t *root = NULL;
    memset(s.b.meta.byte_ids, 0xFF, sizeof s.b.meta.byte_ids);
    s.b.meta.unk = TOK_NONE;
    arena_init(&s.strings, JSON_BYTES_MAX);
    enum err err = members_find(json, &s.members, e);
    if (err == OK)
        err = json_parse(buf_str(&s.members.rest), &root, e);
    s.root = root;
    if (err == OK)
        err = read_all(&s, config);
    if (err == OK)
        err = tok_build_finish(&s.b, out, e);
    json_decref(s.b.spec);
    json_decref(root);
    name_table_fini(&s.names);
    members_fini(&s.members);
    arena_fini(&s.strings);
    mem_free(s.entries);
    mem_free(s.b.names);
    mem_free(s.b.flags);
    mem_free(s.b.merges);
    mem_free(s.scores);
    return err;
}
