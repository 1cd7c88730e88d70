/* Files that are not what they should be: tokenizer.json, SentencePiece, GGUF vocabularies and the binary copy. */
#include "testing.h"
#include "testing_tok.h"

#include "base/limits.h"
#include "base/mem.h"

#include <stdlib.h>
#include <unistd.h>

static const struct str nothing = {"", 0};

/* ---- tokenizer.json ---- */

#define MODEL(fields) "{\"model\":{\"type\":\"BPE\"," fields "}}"
#define SMALL_BPE     "{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define PART(part)    "{" part ",\"model\":" SMALL_BPE "}"

static const struct {
    const char *json;
    enum err code;
    const char *says;
} bad_files[] = {
    {"", ERR_FORMAT, "invalid JSON"},
    {"[]", ERR_FORMAT, "not an object"},
    {"{}", ERR_FORMAT, "no field 'model'"},
    {"{\"model\":{\"type\":\"Magic\",\"vocab\":{}}}", ERR_UNSUPPORTED, "'Magic'"},
    {MODEL("\"vocab\":{},\"merges\":[]"), ERR_FORMAT, "empty"},
    {MODEL("\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), ERR_FORMAT, "same name 'a'"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), ERR_FORMAT, "same id 0"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]"), ERR_FORMAT, "no token has id 1"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":\"x\"},\"merges\":[]"), ERR_FORMAT, "'b'"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), ERR_LIMIT, "-1"},
    {MODEL("\"vocab\":{\"a\":99999999},\"merges\":[]"), ERR_LIMIT, "99999999"},
    {MODEL("\"vocab\":[],\"merges\":[]"), ERR_FORMAT, "model.vocab"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]"), ERR_FORMAT, "'ab'"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a c\"]"), ERR_FORMAT, "'c'"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a\"]"), ERR_FORMAT, "entry 0"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), ERR_FORMAT, "entry 0"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[3]"), ERR_FORMAT, "entry 0"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":{}"), ERR_FORMAT, "merges"},
    {MODEL("\"vocab\":{\"a\":0,},\"merges\":[]"), ERR_FORMAT, "model.vocab"},
    {MODEL("\"vocab\":{\"a\" 0},\"merges\":[]"), ERR_FORMAT, "model.vocab"},
    {MODEL("\"vocab\":{\"a\":0 \"b\":1},\"merges\":[]"), ERR_FORMAT, "model.vocab"},
    {MODEL("\"vocab\":{\"a\":0.5},\"merges\":[]"), ERR_FORMAT, "whole number"},
    {MODEL("\"vocab\":{\"a\\x\":0},\"merges\":[]"), ERR_FORMAT, "escape"},
    {MODEL("\"vocab\":{\"\\ud800\":0},\"merges\":[]"), ERR_FORMAT, "escape"},
    {MODEL("\"vocab\":{\"\xFF\":0},\"merges\":[]"), ERR_FORMAT, "UTF-8"},
    {MODEL("\"vocab\":{\"a\nb\":0},\"merges\":[]"), ERR_FORMAT, "control character"},
    {MODEL("\"vocab\":{\"a\":0},\"vocab\":{\"b\":0},\"merges\":[]"), ERR_FORMAT, "duplicate"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\"]]}}", ERR_FORMAT, "model.vocab"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-]]}}", ERR_FORMAT, "number"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",1e999]]}}", ERR_FORMAT, "number"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1"), ERR_UNSUPPORTED, "dropout"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\""), ERR_FORMAT, "'u'"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":3"), ERR_INVALID, "byte_fallback"},
    {PART("\"normalizer\":{\"type\":\"Rot13\"}"), ERR_UNSUPPORTED, "normalizer 'Rot13'"},
    {PART("\"normalizer\":7"), ERR_FORMAT, "normalizer"},
    {PART("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}"), ERR_FORMAT, "charsmap"},
    {PART("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"!\"}"), ERR_FORMAT, "base64"},
    {PART("\"pre_tokenizer\":{\"type\":\"Chop\"}"), ERR_UNSUPPORTED, "pre_tokenizer 'Chop'"},
    {PART("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"}"),
        ERR_UNSUPPORTED, "pattern"},
    {PART("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Eaten\"}"),
        ERR_UNSUPPORTED, "'Eaten'"},
    {PART("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{}}"), ERR_FORMAT, "String or Regex"},
    {PART("\"post_processor\":{\"type\":\"Glue\"}"), ERR_UNSUPPORTED, "post_processor 'Glue'"},
    {PART("\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"x\",9],\"cls\":[\"x\",9]}"), ERR_FORMAT, "9"},
    {PART("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}"), ERR_FORMAT,
        "leaves the text out"},
    {PART("\"decoder\":{\"type\":\"CTC\"}"), ERR_UNSUPPORTED, "decoder 'CTC'"},
    {PART("\"added_tokens\":[{\"id\":3}]"), ERR_FORMAT, "added_tokens"},
    {PART("\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]"), ERR_FORMAT, "same id 1"},
    {PART("\"added_tokens\":[{\"id\":4,\"content\":\"a\"}]"), ERR_FORMAT, "has id 4, but 0"},
    {PART("\"added_tokens\":[{\"id\":3,\"content\":\"x\"},{\"id\":4,\"content\":\"x\"}]"), ERR_FORMAT, "same name"},
};

static void bad_tokenizer_json_is_an_error_that_names_the_place(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < COUNT_OF(bad_files); i++) {
        struct tok *t = NULL;
        struct error e = {0};
        assert_fails(
            e, bad_files[i].code, bad_files[i].says, tok_from_json(str_of(bad_files[i].json), nothing, &t, &e));
        assert_null(t);
    }
}

static void holes_between_added_tokens_are_allowed(void **unused)
{
    (void)unused;
    struct tok *t;
    struct error e = {0};
    assert_ok(e, tok_from_json(str_of(PART("\"added_tokens\":[{\"id\":6,\"content\":\"x\"}]")), nothing, &t, &e));
    assert_int_equal(tok_count(t), 7);
    assert_true(tok_vocab(t)->flags[4] & VOCAB_HOLE);
    assert_int_equal(vocab_bytes(tok_vocab(t), 4).n, 0);
    tok_free(t);
}

static void names_may_be_written_with_escapes(void **unused)
{
    (void)unused;
    struct tok *t;
    struct error e = {0};
    assert_ok(
        e, tok_from_json(
               str_of(MODEL("\"vocab\" : { \"\\u0041\" : 0 , \"\\\"\\\\\\n\\ud83d\\ude00\":1} ,\"merges\" : [ ]")),
               nothing, &t, &e));
    assert_true(str_is(tok_name(t, 0), "A"));
    assert_true(str_is(tok_name(t, 1), "\"\\\n\xF0\x9F\x98\x80"));
    tok_free(t);
}

static void tokenizer_json_cut_anywhere_is_an_error(void **unused)
{
    (void)unused;
    struct buf json;
    buf_init(&json, MIB);
    json_byte_level(&json, 1, 3, false, "");
    for (size_t n = 0; n < json.n; n += 7) {
        struct tok *t = NULL;
        struct error e = {0};
        assert_int_equal(tok_from_json((struct str){json.p, n}, nothing, &t, &e), ERR_FORMAT);
    }
    buf_fini(&json);
}

/* ---- SentencePiece ---- */

static void add_varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7)
        buf_add_char(b, (char)((v & 127) | 128));
    buf_add_char(b, (char)v);
}

static void add_piece(struct buf *model, const char *name, float score, int type)
{
    struct buf p;
    buf_init(&p, 4096);
    buf_add_char(&p, 0x0A);
    add_varint(&p, strlen(name));
    buf_add(&p, str_of(name));
    buf_add_char(&p, 0x15);
    buf_add(&p, (struct str){(const char *)&score, 4});
    buf_add_char(&p, 0x18);
    add_varint(&p, (uint64_t)type);
    buf_add_char(model, 0x0A);
    add_varint(model, p.n);
    buf_add(model, buf_str(&p));
    buf_fini(&p);
}

static void make_spm(struct buf *model, int type)
{
    buf_init(model, 65536);
    add_piece(model, "<unk>", 0, 2);
    add_piece(model, "<s>", 0, 3);
    add_piece(model, "</s>", 0, 3);
    add_piece(model, "\xE2\x96\x81", -1, 1);
    add_piece(model, "a", -2, 1);
    add_piece(model, "b", -3, 1);
    add_piece(model, "ab", -1.5f, 1);
    add_piece(model,
        "\xE2\x96\x81"
        "ab",
        -1.2f, 1);
    add_piece(model, "<x>", 0, 4);
    buf_add(model, STR("\x12\x02\x18"));
    buf_add_char(model, (char)type);
}

static void sentencepiece_files_are_read(void **unused)
{
    (void)unused;
    for (int type = 1; type <= 2; type++) {
        struct buf model;
        struct tok *t;
        struct error e = {0};
        struct tok_ctx *c = ctx_of();
        make_spm(&model, type);
        assert_ok(e, tok_from_spm(buf_str(&model), true, false, &t, &e));
        const struct tok_part p = {STR("ab  ab<x>a"), false}, q = {STR("</s>"), true}, r = {STR("</s>"), false};
        assert_string_equal(ids_text(t, c, &p, 1, true), "1 7 7 8 4");
        assert_string_equal(ids_text(t, c, &q, 1, false), "2");
        assert_string_equal(ids_text(t, c, &r, 1, false), "3 0");
        assert_int_equal(tok_roles_of(t)->bos, 1);
        tok_ctx_free(c);
        tok_free(t);
        buf_fini(&model);
    }
}

static void sentencepiece_files_cut_or_changed_anywhere_never_crash(void **unused)
{
    (void)unused;
    struct buf model;
    struct dice d = {4};
    make_spm(&model, 2);
    for (size_t n = 0; n < model.n; n++) {
        struct tok *t = NULL;
        struct error e = {0};
        const enum err err = tok_from_spm((struct str){model.p, n}, true, true, &t, &e);
        assert_true(err == OK || err == ERR_FORMAT || err == ERR_LIMIT || err == ERR_UNSUPPORTED);
        tok_free(t);
    }
    for (int round = 0; round < 3000; round++) {
        struct tok *t = NULL;
        struct error e = {0};
        const size_t at = dice_roll(&d, model.n);
        const char old = model.p[at];
        model.p[at] = (char)dice_roll(&d, 256);
        const enum err err = tok_from_spm(buf_str(&model), true, true, &t, &e);
        model.p[at] = old;
        assert_true((err == OK) == (t != NULL));
        tok_free(t);
    }
    buf_fini(&model);
    struct tok *t = NULL;
    struct error e = {0};
    make_spm(&model, 4);
    assert_fails(e, ERR_UNSUPPORTED, "model type 4", tok_from_spm(buf_str(&model), true, true, &t, &e));
    buf_fini(&model);
}

/* ---- GGUF ---- */

static void gguf_vocabularies_are_read_and_refused_by_name(void **unused)
{
    (void)unused;
    const struct str tokens[] = {STR("a"), STR("b"), STR("ab"), STR("<|end|>"), STR("\xC4\xA0"),
        STR("\xC4\xA0"
            "ab")};
    const struct str twins[] = {STR("a"), STR("b"), STR("ab"), STR("<|end|>"), STR("a"),
        STR("\xC4\xA0"
            "ab")};
    const struct str merges[] = {STR("a b"), STR("\xC4\xA0 ab")}, wrong[] = {STR("a x")};
    const int32_t types[] = {1, 1, 1, 3, 1, 1}, strange[] = {1, 1, 1, 9, 1, 1};
    struct tok_gguf g;
    struct tok *t = NULL;
    struct error e = {0};
    tok_gguf_init(&g);
    g.model = STR("gpt2");
    g.pre = STR("qwen2");
    g.tokens = tokens;
    g.n_tokens = 6;
    g.types = types;
    g.merges = merges;
    g.n_merges = 2;
    g.eos = 3;
    assert_ok(e, tok_from_gguf(&g, &t, &e));
    struct tok_ctx *c = ctx_of();
    const struct tok_part p = {STR("ab ab<|end|>"), true};
    assert_string_equal(ids_text(t, c, &p, 1, false), "2 5 3");
    tok_ctx_free(c);
    tok_free(t);
    struct tok_gguf x = g;
    x.pre = STR("qwen9");
    assert_fails(e, ERR_UNSUPPORTED, "'qwen9'", tok_from_gguf(&x, &t, &e));
    x = g;
    x.model = STR("rwkv");
    assert_fails(e, ERR_UNSUPPORTED, "'rwkv'", tok_from_gguf(&x, &t, &e));
    x = g;
    x.merges = wrong;
    x.n_merges = 1;
    assert_fails(e, ERR_FORMAT, "'a x'", tok_from_gguf(&x, &t, &e));
    x = g;
    x.tokens = twins;
    assert_fails(e, ERR_FORMAT, "same name 'a'", tok_from_gguf(&x, &t, &e));
    x = g;
    x.types = strange;
    assert_fails(e, ERR_FORMAT, "token 3 is 9", tok_from_gguf(&x, &t, &e));
    x = g;
    x.bos = 6;
    assert_fails(e, ERR_FORMAT, "id 6", tok_from_gguf(&x, &t, &e));
    x = g;
    x.n_tokens = 0;
    assert_fails(e, ERR_FORMAT, "0 entries", tok_from_gguf(&x, &t, &e));
}

static void every_named_pre_split_compiles(void **unused)
{
    (void)unused;
    static const char *const names[] = {"", "default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm",
        "deepseek-llm", "deepseek-coder", "deepseek-v3", "phi-2", "tekken", "gpt-4o", "refact", "starcoder",
        "command-r", "falcon", "mpt", "olmo", "dbrx", "stablelm2", "chatglm-bpe", "kimi-k2", "bloom", "viking",
        "bailingmoe", "seed-coder"};
    const struct str tokens[] = {STR("a")};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct tok_gguf g;
        struct tok *t;
        struct error e = {0};
        tok_gguf_init(&g);
        g.model = STR("gpt2");
        g.pre = str_of(names[i]);
        g.tokens = tokens;
        g.n_tokens = 1;
        assert_ok(e, tok_from_gguf(&g, &t, &e));
        struct tok_ctx *c = ctx_of();
        const struct tok_part p = {STR("a a1 \xE4\xB8\xAD\n"), true};
        assert_int_equal(strncmp(ids_text(t, c, &p, 1, false), "0 0", 3), 0);
        tok_ctx_free(c);
        tok_free(t);
    }
}

/* ---- the binary copy ---- */

static void write_file(const char *path, struct str bytes)
{
    struct error e = {0};
    assert_ok(e, file_write_atomic(path, bytes, &e));
}

static void copy_gives_the_same_tokenizer(void **unused)
{
    (void)unused;
    struct buf json;
    struct error e = {0};
    struct tok *again;
    char path[] = "/tmp/quern-test-vocab-XXXXXX", want[4096];
    close(mkstemp(path));
    buf_init(&json, MIB);
    json_byte_level(&json, 7, 200, false, "\"normalizer\":{\"type\":\"NFC\"},");
    struct tok *t = tok_of(&json);
    struct tok_ctx *c = ctx_of();
    const struct tok_key key = tok_key_of(buf_str(&json), nothing);
    assert_ok(e, tok_save(t, path, key, &e));
    assert_ok(e, tok_load(path, key, &again, &e));
    const struct tok_part p = {STR("abcd aabb<|end|> e\xCC\x81 <think>"), true};
    snprintf(want, sizeof want, "%s", ids_text(t, c, &p, 1, true));
    assert_string_equal(ids_text(again, c, &p, 1, true), want);
    tok_free(again);
    /* made from something else */
    struct tok_key other = key;
    other.hash_lo ^= 1;
    assert_fails(e, ERR_HASH, "another tokenizer", tok_load(path, other, &again, &e));
    assert_true(tok_key_of(buf_str(&json), STR("x")).hash_lo != key.hash_lo);
    unlink(path);
    assert_int_equal(tok_load(path, key, &again, &e), ERR_NOT_FOUND);
    buf_fini(&json);
    tok_ctx_free(c);
    tok_free(t);
}

static void damaged_copy_is_refused_and_made_again(void **unused)
{
    (void)unused;
    struct buf json;
    struct error e = {0};
    struct dice d = {31};
    struct tok *t;
    char path[] = "/tmp/quern-test-vocab-XXXXXX", *bytes;
    size_t n;
    close(mkstemp(path));
    buf_init(&json, MIB);
    json_byte_level(&json, 7, 100, false, "");
    assert_ok(e, tok_from_json_cached(buf_str(&json), nothing, path, &t, &e));
    tok_free(t);
    const struct tok_key key = tok_key_of(buf_str(&json), nothing);
    assert_ok(e, file_read_all(path, 64 * MIB, &bytes, &n, &e));
    for (int round = 0; round < 300; round++) {
        const size_t at = round < 100 ? (size_t)round * 4 : dice_roll(&d, n);
        bytes[at] = (char)(bytes[at] ^ 0x10);
        write_file(path, (struct str){bytes, n});
        bytes[at] = (char)(bytes[at] ^ 0x10);
        const enum err err = tok_load(path, key, &t, NULL);
        assert_true(err == ERR_HASH || err == ERR_FORMAT);
    }
    write_file(path, (struct str){bytes, n / 2});
    assert_true(tok_load(path, key, &t, NULL) != OK);
    assert_ok(e, tok_from_json_cached(buf_str(&json), nothing, path, &t, &e));
    tok_free(t);
    assert_ok(e, tok_load(path, key, &t, &e)); /* whole again */
    tok_free(t);
    mem_free(bytes);
    unlink(path);
    buf_fini(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_tokenizer_json_is_an_error_that_names_the_place),
        cmocka_unit_test(holes_between_added_tokens_are_allowed),
        cmocka_unit_test(names_may_be_written_with_escapes),
        cmocka_unit_test(tokenizer_json_cut_anywhere_is_an_error),
        cmocka_unit_test(sentencepiece_files_are_read),
        cmocka_unit_test(sentencepiece_files_cut_or_changed_anywhere_never_crash),
        cmocka_unit_test(gguf_vocabularies_are_read_and_refused_by_name),
        cmocka_unit_test(every_named_pre_split_compiles),
        cmocka_unit_test(copy_gives_the_same_tokenizer),
        cmocka_unit_test(damaged_copy_is_refused_and_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
