/* Vocabularies of GGUF files. The file names its pre-split pattern (tokenizer.ggml.pre) instead of writing it down; the
 * table below gives the components that the models of that name have in their own tokenizer.json, so that the same file
 * in either format encodes alike. An unknown name is an error: guessing would give wrong tokens silently. */
#include "text/tok_pieces.h"

#include "base/limits.h"

#include <string.h>

void tok_gguf_init(struct tok_gguf *g)
{
    *g = (struct tok_gguf){.bos = TOK_NONE,
        .eos = TOK_NONE,
        .eot = TOK_NONE,
        .eom = TOK_NONE,
        .unk = TOK_NONE,
        .pad = TOK_NONE,
        .add_bos = TOK_UNSET,
        .add_eos = TOK_UNSET,
        .add_space_prefix = TOK_UNSET,
        .remove_extra_whitespaces = TOK_UNSET};
}

/* ---- the named pre-splits ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define BEHIND       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BEHIND_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define HAN_UPPER    "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define HAN_LOWER    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LEAD         "[^\\r\\n\\p{L}\\p{N}]?"

#define SPLIT_LLAMA3 CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}|" BEHIND
#define SPLIT_QWEN2  CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}|" BEHIND
#define SPLIT_QWEN35                                                                                                   \
    CONTRACTIONS "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPLIT_O200K                                                                                                    \
    LEAD UPPER "*" LOWER "+" CONTRACTIONS "?|" LEAD UPPER "+" LOWER "*" CONTRACTIONS "?|\\p{N}{1,3}|" BEHIND_SLASH
#define SPLIT_TEKKEN LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER "*|\\p{N}|" BEHIND_SLASH
#define SPLIT_KIMI                                                                                                     \
    "[\\p{Han}]+|" LEAD HAN_UPPER "*" HAN_LOWER "+" CONTRACTIONS "?|" LEAD HAN_UPPER "+" HAN_LOWER "*" CONTRACTIONS    \
    "?|\\p{N}{1,3}|" BEHIND
#define SPLIT_DEEPSEEK3                                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "              \
    "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPLIT_BAILING                                                                                                  \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!" \
    "\\S)|\\s+"
#define SPLIT_SEED  CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define SPLIT_BLOOM " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"
#define DEEPSEEK_LETTERS                                                                                               \
    "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"     \
    "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"     \
    "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-"  \
    "\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-"    \
    "\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-"   \
    "\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-"      \
    "\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-"     \
    "\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"   \
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2"        \
    "\U000118A0-\U000118DF\U0001E900-\U0001E943]+"
#define DEEPSEEK_MARKS "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+"
#define DEEPSEEK_ASIAN "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
#define DEEPSEEK3_CJK  "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"

#define SPLITS_MAX 6

struct pre_named {
    const char *splits[SPLITS_MAX]; /* isolated, in order */
    bool digits;                    /* then each digit alone */
    bool gpt2;                      /* then ByteLevel's own split */
    bool nfc, ignore_merges, add_bos;
    bool falcon;
};

enum {
    NAMED_GPT2,
    NAMED_NEOX,
    NAMED_DIGITS,
    NAMED_COMMAND_R,
    NAMED_LLAMA3,
    NAMED_CL100K,
    NAMED_QWEN2,
    NAMED_QWEN2_PLAIN,
    NAMED_QWEN35,
    NAMED_O200K,
    NAMED_TEKKEN,
    NAMED_KIMI,
    NAMED_DEEPSEEK_LLM,
    NAMED_DEEPSEEK_CODER,
    NAMED_DEEPSEEK3,
    NAMED_FALCON,
    NAMED_BLOOM,
    NAMED_VIKING,
    NAMED_BAILING,
    NAMED_SEED
};

static const struct pre_named named[] = {
    [NAMED_GPT2] = {.gpt2 = true},
    [NAMED_NEOX] = {.gpt2 = true, .nfc = true},
    [NAMED_DIGITS] = {.digits = true, .gpt2 = true},
    [NAMED_COMMAND_R] = {.digits = true, .gpt2 = true, .nfc = true},
    [NAMED_LLAMA3] = {.splits = {SPLIT_LLAMA3}, .ignore_merges = true, .add_bos = true},
    [NAMED_CL100K] = {.splits = {SPLIT_LLAMA3}},
    [NAMED_QWEN2] = {.splits = {SPLIT_QWEN2}, .nfc = true},
    [NAMED_QWEN2_PLAIN] = {.splits = {SPLIT_QWEN2}},
    [NAMED_QWEN35] = {.splits = {SPLIT_QWEN35}, .nfc = true},
    [NAMED_O200K] = {.splits = {SPLIT_O200K}},
    [NAMED_TEKKEN] = {.splits = {SPLIT_TEKKEN}, .ignore_merges = true, .add_bos = true},
    [NAMED_KIMI] = {.splits = {SPLIT_KIMI}},
    [NAMED_DEEPSEEK_LLM] = {.splits = {"[\\r\\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, "\\s+$", DEEPSEEK_ASIAN,
                                "\\p{N}+"}},
    [NAMED_DEEPSEEK_CODER] = {.splits = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_ASIAN}, .digits = true},
    [NAMED_DEEPSEEK3] = {.splits = {"\\p{N}{1,3}", DEEPSEEK3_CJK, SPLIT_DEEPSEEK3}},
    [NAMED_FALCON] = {.falcon = true},
    [NAMED_BLOOM] = {.splits = {SPLIT_BLOOM}},
    [NAMED_VIKING] = {.splits = {SPLIT_BLOOM}, .digits = true},
    [NAMED_BAILING] = {.splits = {SPLIT_BAILING}},
    [NAMED_SEED] = {.splits = {SPLIT_SEED}},
};

static const struct {
    const char *name;
    int which;
} pre_names[] = {{"default", NAMED_GPT2}, {"gpt-2", NAMED_GPT2}, {"gpt2", NAMED_GPT2}, {"phi-2", NAMED_GPT2},
    {"jina-es", NAMED_GPT2}, {"jina-de", NAMED_GPT2}, {"gigachat", NAMED_GPT2}, {"a.x-4.0", NAMED_GPT2},
    {"mellum", NAMED_GPT2}, {"exaone4", NAMED_GPT2}, {"jais", NAMED_GPT2}, {"trillion", NAMED_GPT2},
    {"granite-docling", NAMED_GPT2}, {"mpt", NAMED_NEOX}, {"olmo", NAMED_NEOX}, {"gpt-neox", NAMED_NEOX},
    {"smollm", NAMED_DIGITS}, {"starcoder", NAMED_DIGITS}, {"refact", NAMED_DIGITS}, {"codeshell", NAMED_DIGITS},
    {"exaone", NAMED_DIGITS}, {"minerva-7b", NAMED_DIGITS}, {"command-r", NAMED_COMMAND_R}, {"llama3", NAMED_LLAMA3},
    {"llama-v3", NAMED_LLAMA3}, {"llama-bpe", NAMED_LLAMA3}, {"falcon3", NAMED_LLAMA3}, {"falcon-h1", NAMED_LLAMA3},
    {"pixtral", NAMED_LLAMA3}, {"midm-2.0", NAMED_LLAMA3}, {"lfm2", NAMED_LLAMA3}, {"dbrx", NAMED_CL100K},
    {"smaug-bpe", NAMED_CL100K}, {"glm4", NAMED_CL100K}, {"chatglm-bpe", NAMED_CL100K}, {"qwen2", NAMED_QWEN2},
    {"deepseek-r1-qwen", NAMED_QWEN2}, {"kormo", NAMED_QWEN2}, {"megrez", NAMED_QWEN2}, {"stablelm2", NAMED_QWEN2},
    {"hunyuan", NAMED_QWEN2_PLAIN}, {"grok-2", NAMED_QWEN2_PLAIN}, {"solar-open", NAMED_QWEN2_PLAIN},
    {"qwen35", NAMED_QWEN35}, {"gpt-4o", NAMED_O200K}, {"o200k", NAMED_O200K}, {"llama4", NAMED_O200K},
    {"minimax-m2", NAMED_O200K}, {"tekken", NAMED_TEKKEN}, {"kimi-k2", NAMED_KIMI},
    {"deepseek-llm", NAMED_DEEPSEEK_LLM}, {"deepseek-coder", NAMED_DEEPSEEK_CODER}, {"deepseek-v3", NAMED_DEEPSEEK3},
    {"hunyuan-dense", NAMED_DEEPSEEK3}, {"falcon", NAMED_FALCON}, {"bloom", NAMED_BLOOM}, {"poro-chat", NAMED_BLOOM},
    {"gpt3-finnish", NAMED_BLOOM}, {"viking", NAMED_VIKING}, {"bailingmoe", NAMED_BAILING},
    {"llada-moe", NAMED_BAILING}, {"seed-coder", NAMED_SEED}};

static enum err pre_find(struct str name, const struct pre_named **out, struct error *e)
{
    char shown[80];
    if (name.n == 0)
        name = STR("default");
    for (size_t i = 0; i < COUNT_OF(pre_names); i++) {
        if (str_is(name, pre_names[i].name)) {
            *out = &named[pre_names[i].which];
            return OK;
        }
    }
    return FAIL(e, ERR_UNSUPPORTED, "tokenizer.ggml.pre '%s' is not a pre-split that quern knows",
        str_show(name, shown, sizeof shown));
}

static enum err append(json_t *list, json_t *item, struct error *e)
{
    return json_array_append_new(list, item) == 0 ? OK : FAIL(e, ERR_NOMEM, "no memory for a tokenizer");
}

static json_t *split_step(const char *regex)
{
    return json_pack(
        "{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", regex, "behavior", "Isolated", "invert", 0);
}

static json_t *byte_level_step(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", use_regex);
}

static enum err write_pre(json_t *spec, const struct pre_named *p, struct error *e)
{
    json_t *steps = json_array(), *pre = json_object();
    const enum err err = spec_set(spec, "pre_tokenizer", pre, e);
    if (err != OK || steps == NULL) {
        json_decref(steps);
        return FAIL(e, ERR_NOMEM, "no memory for a tokenizer");
    }
    TRY(spec_set(pre, "pretokenizers", steps, e));
    TRY(spec_set(pre, "type", json_string("Sequence"), e));
    if (p->falcon) {
        TRY(append(steps, json_pack("{s:s, s:s}", "type", "Punctuation", "behavior", "Contiguous"), e));
        TRY(append(steps, byte_level_step(true), e));
        TRY(append(steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 0), e));
        return append(steps, split_step("[0-9][0-9][0-9]"), e);
    }
    for (size_t i = 0; i < SPLITS_MAX && p->splits[i] != NULL; i++)
        TRY(append(steps, split_step(p->splits[i]), e));
    if (p->digits)
        TRY(append(steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1), e));
    return append(steps, byte_level_step(p->gpt2), e);
}

/* ---- byte-level BPE ---- */

static bool is_role(const struct tok_gguf *g, uint32_t id)
{
    return id == g->bos || id == g->eos || id == g->eot || id == g->eom;
}

static enum err read_flags(const struct tok_gguf *g, struct tok_build *b, struct error *e)
{
    for (uint32_t id = 0; id < b->n; id++) {
        const int32_t type = g->types != NULL ? g->types[id] : PIECE_NORMAL;
        if (type < PIECE_NORMAL || type > PIECE_BYTE)
            return FAIL(e, ERR_FORMAT, "tokenizer.ggml.token_type of token %u is %d; known are 1 to 6", id, type);
        if (type == PIECE_CONTROL || is_role(g, id))
            b->flags[id] = VOCAB_SPECIAL | VOCAB_ADDED | VOCAB_OUTSIDE;
        else if (type == PIECE_USER)
            b->flags[id] = VOCAB_ADDED | VOCAB_OUTSIDE;
        else if (type == PIECE_UNKNOWN)
            b->flags[id] = VOCAB_UNKNOWN | VOCAB_SPECIAL;
        if (b->flags[id] == 0 && !utf8_is_valid(g->tokens[id]))
            return FAIL(e, ERR_FORMAT, "token %u is not valid UTF-8", id);
    }
    return OK;
}

/* The token whose name is left and right together. Vocabularies mostly list what merges make in the merges' own order,
 * so the guess, the token behind the last one found, is nearly always right and no table is needed. */
static uint32_t find_joined(
    const struct name_table *names, uint32_t n, uint32_t guess, struct str left, struct str right)
{
    char joined[2 * TOK_NAME_BYTES_MAX];
    if (guess < n) {
        const struct str name = names->names[guess];
        if (name.n == left.n + right.n && memcmp(name.p, left.p, left.n) == 0 &&
            memcmp(name.p + left.n, right.p, right.n) == 0)
            return guess;
    }
    memcpy(joined, left.p, left.n);
    memcpy(joined + left.n, right.p, right.n);
    return name_table_find(names, (struct str){joined, left.n + right.n});
}

static enum err read_merges(const struct tok_gguf *g, struct tok_build *b, struct error *e)
{
    struct name_table *names = &b->table;
    char shown[80];
    uint32_t made = TOK_NONE;
    if (g->n_merges > TOK_MERGES_MAX)
        return FAIL(
            e, ERR_LIMIT, "tokenizer.ggml.merges has %zu entries; the limit is %u", g->n_merges, TOK_MERGES_MAX);
    b->merges = mem_array(g->n_merges + 1, sizeof *b->merges);
    if (b->merges == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for %zu merges", g->n_merges);
    TRY(name_table_init(names, g->tokens, b->n, NULL, NULL, e));
    enum err err = OK;
    for (size_t i = 0; i < g->n_merges && err == OK; i++) {
        const struct str m = g->merges[i];
        const char *space = m.n > 1 ? memchr(m.p + 1, ' ', m.n - 1) : NULL;
        if (space == NULL || m.n > TOK_NAME_BYTES_MAX) {
            err = FAIL(e, ERR_FORMAT, "tokenizer.ggml.merges: entry %zu is not two tokens", i);
            break;
        }
        const size_t cut = (size_t)(space - m.p);
        const struct str left = {m.p, cut}, right = {space + 1, m.n - cut - 1};
        made = find_joined(names, b->n, made + 1, left, right);
        const struct tok_merge merge = {name_table_find(names, left), name_table_find(names, right), (uint32_t)i, made};
        if (merge.left == TOK_NONE || merge.right == TOK_NONE || merge.id == TOK_NONE)
            err =
                FAIL(e, ERR_FORMAT, "tokenizer.ggml.merges: entry %zu '%s' names a token that is not in the vocabulary",
                    i, str_show(m, shown, sizeof shown));
        else if ((b->flags[merge.id] & VOCAB_SPECIAL) == 0)
            b->merges[b->n_merges++] = merge;
    }
    return err;
}

static enum err build_bpe(const struct tok_gguf *g, struct tok_build *b, struct tok **out, struct error *e)
{
    const struct pre_named *p = NULL;
    TRY(pre_find(g->pre, &p, e));
    TRY(read_flags(g, b, e));
    TRY(read_merges(g, b, e));
    b->meta.model = TOK_BPE;
    b->meta.flags = META_BYTE_LEVEL | (p->ignore_merges ? META_IGNORE_MERGES : 0);
    b->meta.roles = (struct tok_roles){g->bos, g->eos, g->eot, g->eom, g->unk, g->pad};
    TRY(spec_new(&b->spec, e));
    TRY(write_pre(b->spec, p, e));
    if (p->nfc)
        TRY(spec_set(b->spec, "normalizer", json_pack("{s:s}", "type", "NFC"), e));
    TRY(spec_set(b->spec, "decoder", json_pack("{s:s}", "type", "ByteLevel"), e));
    const bool bos = g->add_bos == TOK_UNSET ? p->add_bos : g->add_bos == TOK_YES;
    TRY(spec_around(b->spec, bos ? g->bos : TOK_NONE, g->add_eos == TOK_YES ? g->eos : TOK_NONE, e));
    TRY(spec_added(b->spec, b->names, b->flags, b->n, true, e));
    return tok_build_finish(b, out, e);
}

static enum err from_bpe(const struct tok_gguf *g, struct tok **out, struct error *e)
{
    struct tok_build b = {.n = (uint32_t)g->n_tokens};
    memset(b.meta.byte_ids, 0xFF, sizeof b.meta.byte_ids);
    b.meta.unk = TOK_NONE;
    b.names = mem_array(b.n, sizeof *b.names);
    b.flags = mem_array(b.n, 1);
    enum err err = OK;
    if (b.names == NULL || b.flags == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory for %u tokens", b.n);
    else {
        memcpy(b.names, g->tokens, b.n * sizeof *b.names);
        err = build_bpe(g, &b, out, e);
    }
    json_decref(b.spec);
    name_table_fini(&b.table);
    mem_free(b.names);
    mem_free(b.flags);
    mem_free(b.merges);
    return err;
}

/* ---- scored pieces ---- */

static enum err from_pieces(const struct tok_gguf *g, bool unigram, struct tok **out, struct error *e)
{
    const struct piece_vocab v = {.n = (uint32_t)g->n_tokens,
        .names = g->tokens,
        .scores = g->scores,
        .types = g->types,
        .unigram = unigram,
        .dummy_prefix = g->add_space_prefix != TOK_NO,
        .trim = g->remove_extra_whitespaces == TOK_YES,
        .escape_spaces = true,
        .charsmap = g->charsmap,
        .roles = {g->bos, g->eos, g->eot, g->eom, g->unk, g->pad},
        .add_bos = g->add_bos == TOK_UNSET ? !unigram : g->add_bos == TOK_YES,
        .add_eos = g->add_eos == TOK_UNSET ? unigram : g->add_eos == TOK_YES};
    return tok_from_pieces(&v, out, e);
}

enum err tok_from_gguf(const struct tok_gguf *g, struct tok **out, struct error *e)
{
    char shown[80];
    *out = NULL;
    if (g->n_tokens == 0 || g->n_tokens > TOK_COUNT_MAX)
        return FAIL(e, g->n_tokens == 0 ? ERR_FORMAT : ERR_LIMIT,
            "tokenizer.ggml.tokens has %zu entries; from 1 to %u are allowed", g->n_tokens, TOK_COUNT_MAX);
    const uint32_t roles[] = {g->bos, g->eos, g->eot, g->eom, g->unk, g->pad};
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (roles[i] != TOK_NONE && roles[i] >= g->n_tokens)
            return FAIL(
                e, ERR_FORMAT, "a special token has id %u; the vocabulary has %zu tokens", roles[i], g->n_tokens);
    if (str_is(g->model, "gpt2"))
        return from_bpe(g, out, e);
    if (str_is(g->model, "llama") || str_is(g->model, "t5"))
        return from_pieces(g, str_is(g->model, "t5"), out, e);
    return FAIL(
        e, ERR_UNSUPPORTED, "tokenizer.ggml.model '%s' is not supported", str_show(g->model, shown, sizeof shown));
}
