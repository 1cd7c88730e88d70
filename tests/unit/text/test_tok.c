/* The door of the tokenizers: who may write special tokens, what invalid text becomes, what decoding gives back, and
 * that encoding does not allocate. */
#include "testing.h"
#include "testing_tok.h"

#include "base/fault.h"
#include "base/limits.h"
#include "base/mem.h"

#include <pthread.h>

/* Ids of tok_byte_level(1, 0, ...): a byte is its own id, then the three added tokens. */
enum { BEGIN = 256, END = 257, THINK = 258 };

#define AROUND                                                                                                         \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}}," \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"E\",\"type_id\":0}}],\"special_tokens\":" \
    "{"                                                                                                                \
    "\"B\":{\"id\":\"B\",\"ids\":[256],\"tokens\":[\"x\"]},\"E\":{\"id\":\"E\",\"ids\":[257],\"tokens\":[\"y\"]}}},"

static struct tok_part user(const char *s)
{
    return (struct tok_part){str_of(s), false};
}

static struct tok_part template(const char *s)
{
    return (struct tok_part){str_of(s), true};
}

static void user_text_never_becomes_a_special_token(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(1, 0, false, "");
    struct tok_ctx *c = ctx_of();
    const struct tok_part u = user("a<|end|>"), v = template("a<|end|>"), w = user("<think>");
    assert_string_equal(ids_text(t, c, &u, 1, false), "97 60 124 101 110 100 124 62");
    assert_string_equal(ids_text(t, c, &v, 1, false), "97 257");
    assert_string_equal(ids_text(t, c, &w, 1, false), "258"); /* not special: ordinary vocabulary */
    tok_ctx_free(c);
    tok_free(t);
}

static void parts_are_one_text_and_trust_does_not_leak(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(1, 0, false, "");
    struct tok_ctx *c = ctx_of();
    const struct tok_part cut[] = {template("<|be"), template("gin|>x")};
    assert_string_equal(ids_text(t, c, cut, 2, false), "256 120");
    const struct tok_part reach[] = {template("<|be"), user("gin|>")};
    assert_string_equal(ids_text(t, c, reach, 2, false), "60 124 98 101 103 105 110 124 62");
    const struct tok_part reach_back[] = {user("<|be"), template("gin|>")};
    assert_string_equal(ids_text(t, c, reach_back, 2, false), "60 124 98 101 103 105 110 124 62");
    const struct tok_part mixed[] = {template("<|begin|>"), user("<|end|>"), template("<|end|>")};
    assert_string_equal(ids_text(t, c, mixed, 3, false), "256 60 124 101 110 100 124 62 257");
    const struct tok_part bait[] = {user("<|en"), template("<|end|>")};
    assert_string_equal(ids_text(t, c, bait, 2, false), "60 124 101 110 257");
    tok_ctx_free(c);
    tok_free(t);
}

/* With merges: any cut of a text without special tokens gives the ids of the whole. */
static void cuts_change_nothing(void **unused)
{
    (void)unused;
    struct dice d = {3};
    struct tok *t = tok_byte_level(2, 500, false, "\"normalizer\":{\"type\":\"NFC\"},");
    struct tok_ctx *c = ctx_of();
    static const char *const pieces[] = {
        "a", "b", "ab", "c d", "e\xCC\x81", "\xE4\xB8\xAD", " ", "<|", "\xF0\x9F\x98\x80"};
    for (int round = 0; round < 500; round++) {
        char text[256] = "", whole[4096];
        struct tok_part parts[24];
        size_t n = 1 + dice_roll(&d, 23), at = 0;
        for (size_t i = 0; i < n; i++) {
            const char *p = pieces[dice_roll(&d, COUNT_OF(pieces))];
            memcpy(text + at, p, strlen(p) + 1);
            parts[i] = (struct tok_part){{text + at, strlen(p)}, dice_roll(&d, 2) != 0};
            at += strlen(p);
        }
        const struct tok_part one = user(text);
        snprintf(whole, sizeof whole, "%s", ids_text(t, c, &one, 1, false));
        assert_string_equal(ids_text(t, c, parts, n, false), whole);
    }
    tok_ctx_free(c);
    tok_free(t);
}

static void special_tokens_stand_around_a_text_when_asked(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(1, 0, false, AROUND);
    struct tok_ctx *c = ctx_of();
    const struct tok_part p = user("a"), none = user("");
    assert_string_equal(ids_text(t, c, &p, 1, true), "256 97 257");
    assert_string_equal(ids_text(t, c, &p, 1, false), "97");
    assert_string_equal(ids_text(t, c, &none, 1, true), "256 257");
    assert_string_equal(ids_text(t, c, NULL, 0, true), "256 257");
    tok_ctx_free(c);
    tok_free(t);
}

static void invalid_bytes_come_back_from_a_byte_level_vocabulary(void **unused)
{
    (void)unused;
    struct dice d = {8};
    struct tok *t = tok_byte_level(4, 300, false, "");
    struct tok_ctx *c = ctx_of();
    for (int round = 0; round < 2000; round++) {
        char text[80];
        const size_t n = dice_roll(&d, sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(dice_roll(&d, 3) == 0 ? dice_roll(&d, 256) : 'a' + dice_roll(&d, 4));
        struct tok_ids ids;
        struct error e = {0};
        struct buf out;
        buf_init(&out, 4096);
        assert_ok(e, tok_encode_user(t, c, (struct str){text, n}, false, &ids, &e));
        assert_ok(e, tok_decode(t, ids.p, ids.n, false, &out, &e));
        assert_int_equal(out.n, n);
        assert_memory_equal(n > 0 ? out.p : "", text, n);
        buf_fini(&out);
    }
    tok_ctx_free(c);
    tok_free(t);
}

/* A character vocabulary: U+FFFD for each invalid byte, and the lead rule when decoding. */
#define SPACE   "\xE2\x96\x81"
#define PREPEND "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},"
#define CHAR_JSON(first)                                                                                               \
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" first                                                   \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" "                                                                \
    "\"},\"content\":\"" SPACE                                                                                         \
    "\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\""                         \
    ":{\"String\":\"" SPACE                                                                                            \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","                      \
    "\"content\":\" \",\"start\":1,\"stop\":0}]},\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,"    \
    "\"normalized\":true}],\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{\"<unk>"   \
    "\":0,"                                                                                                            \
    "\"<s>\":1,\"" SPACE "\":2,\"a\":3,\"" SPACE                                                                       \
    "a\":4,\"\xEF\xBF\xBD\":5,\"<\":6,\"s\":7,\">\":8},\"merges\":[\"" SPACE " a\"]}}"

static const char char_json[] = CHAR_JSON(PREPEND), replace_json[] = CHAR_JSON("");

static void invalid_bytes_read_as_replacement_characters_elsewhere(void **unused)
{
    (void)unused;
    struct buf json;
    buf_init(&json, 65536);
    buf_add(&json, str_of(char_json));
    struct tok *t = tok_of(&json);
    struct tok_ctx *c = ctx_of();
    const struct tok_part p = user("a\xFF\xE4\xB8 a"), q = user("xyz a");
    assert_string_equal(ids_text(t, c, &p, 1, false), "4 5 5 5 4");
    assert_string_equal(ids_text(t, c, &q, 1, false), "2 0 4"); /* unknown characters side by side are one */
    buf_fini(&json);
    tok_ctx_free(c);
    tok_free(t);
}

/* A special token that is found in the normalised text keeps to its trust, wherever normalising moves it. */
static void trust_follows_the_normalised_text(void **unused)
{
    (void)unused;
    struct buf json;
    buf_init(&json, 65536);
    buf_add(&json, str_of(replace_json));
    struct tok *t = tok_of(&json);
    struct tok_ctx *c = ctx_of();
    const struct tok_part all[] = {user("aa   <s>"), template(" <s>a"), user("<s>")};
    assert_string_equal(ids_text(t, c, all, 3, false), "3 3 2 2 2 6 7 8 2 1 3 6 7 8");
    buf_fini(&json);
    tok_ctx_free(c);
    tok_free(t);
}

static void decoding_drops_the_space_nobody_wrote(void **unused)
{
    (void)unused;
    struct buf json, out;
    buf_init(&json, 65536);
    buf_init(&out, 4096);
    buf_add(&json, str_of(char_json));
    struct tok *t = tok_of(&json);
    struct error e = {0};
    const uint32_t ids[] = {1, 4, 4, 2, 3}, outside[] = {9};
    assert_ok(e, tok_decode(t, ids, 5, true, &out, &e));
    assert_string_equal(out.p, "a a a");
    buf_clear(&out);
    assert_ok(e, tok_decode(t, ids, 5, false, &out, &e));
    assert_string_equal(out.p, "<s> a a a");
    assert_fails(e, ERR_INVALID, "9", tok_decode(t, outside, 1, false, &out, &e));
    assert_true(tok_is_special(t, 1) && !tok_is_special(t, 4) && !tok_is_special(t, 99));
    assert_int_equal(tok_find(t, STR("<s>")), 1);
    assert_int_equal(tok_find(t, STR("nobody")), TOK_NONE);
    assert_true(str_is(tok_name(t, 1), "<s>"));
    buf_fini(&json);
    buf_fini(&out);
    tok_free(t);
}

static void encoding_does_not_allocate_once_warm(void **unused)
{
    (void)unused;
    struct dice d = {21};
    struct tok *t = tok_byte_level(2, 500, false, "\"normalizer\":{\"type\":\"NFC\"},");
    struct tok_ctx *c = ctx_of();
    const size_t n = 200000;
    char *text = mem_alloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(dice_roll(&d, 6) == 0 ? ' ' : 'a' + dice_roll(&d, 20));
    struct tok_ids ids;
    struct error e = {0};
    assert_ok(e, tok_encode_user(t, c, (struct str){text, n}, false, &ids, &e));
    const uint64_t before = mem_thread_allocs();
    assert_ok(e, tok_encode_user(t, c, (struct str){text, n}, false, &ids, &e));
    assert_int_equal(mem_thread_allocs() - before, 0);
    /* and cold: buffers double, so far fewer allocations than tokens */
    struct tok_ctx *cold = ctx_of();
    const uint64_t first = mem_thread_allocs();
    assert_ok(e, tok_encode_user(t, cold, (struct str){text, n}, false, &ids, &e));
    assert_true(mem_thread_allocs() - first < 60 && ids.n > 20000);
    mem_free(text);
    tok_ctx_free(c);
    tok_ctx_free(cold);
    tok_free(t);
}

static void texts_beyond_the_limit_are_refused(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(1, 0, false, "");
    struct tok_ctx *c = ctx_of();
    struct tok_ids ids;
    struct error e = {0};
    const struct tok_part parts[] = {user("x"), {{"", TEXT_BYTES_MAX}, false}}; /* refused before it is read */
    assert_fails(e, ERR_LIMIT, "64 MiB", tok_encode(t, c, parts, 2, false, &ids, &e));
    tok_ctx_free(c);
    tok_free(t);
}

/* Every allocation of making and using a tokenizer may fail, and is answered. */
static void failed_allocations_are_answers(void **unused)
{
    (void)unused;
    struct buf json;
    buf_init(&json, MIB);
    json_byte_level(&json, 5, 20, false, AROUND "\"normalizer\":{\"type\":\"NFC\"},");
    const struct str text = STR("ab <|end|> e\xCC\x81 cd\xFF");
    for (uint64_t nth = 1;; nth += nth < 200 ? 1 : 37) {
        struct tok *t = NULL;
        struct tok_ctx *c = NULL;
        struct tok_ids ids;
        struct error e = {0};
        fault_arm(FAULT_ALLOC, nth, false);
        enum err err = tok_from_json(buf_str(&json), (struct str){"", 0}, &t, &e);
        if (err == OK)
            err = tok_ctx_new(&c, &e);
        if (err == OK)
            err = tok_encode_template(t, c, text, true, &ids, &e);
        const uint64_t calls = fault_calls(FAULT_ALLOC);
        fault_arm(FAULT_ALLOC, 0, false);
        assert_true(err == OK || err == ERR_NOMEM);
        tok_ctx_free(c);
        tok_free(t);
        if (calls < nth)
            break;
    }
    buf_fini(&json);
}

static void *encode_many(void *arg)
{
    const struct tok *t = arg;
    struct tok_ctx *c = NULL;
    struct error e = {0};
    size_t total = 0;
    if (tok_ctx_new(&c, &e) != OK)
        return NULL;
    for (int i = 0; i < 200; i++) {
        struct tok_ids ids;
        if (tok_encode_template(t, c, STR("abcd dcba <|end|> aabbccdd e\xCC\x81"), true, &ids, &e) == OK)
            total += ids.n;
    }
    tok_ctx_free(c);
    return (void *)total;
}

static void threads_share_one_tokenizer(void **unused)
{
    (void)unused;
    struct tok *t = tok_byte_level(6, 300, false, "\"normalizer\":{\"type\":\"NFC\"},");
    pthread_t threads[4];
    void *totals[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many, t), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], &totals[i]);
    for (int i = 0; i < 4; i++)
        assert_true(totals[i] != NULL && totals[i] == totals[0]);
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(user_text_never_becomes_a_special_token),
        cmocka_unit_test(parts_are_one_text_and_trust_does_not_leak),
        cmocka_unit_test(cuts_change_nothing),
        cmocka_unit_test(special_tokens_stand_around_a_text_when_asked),
        cmocka_unit_test(invalid_bytes_come_back_from_a_byte_level_vocabulary),
        cmocka_unit_test(invalid_bytes_read_as_replacement_characters_elsewhere),
        cmocka_unit_test(trust_follows_the_normalised_text),
        cmocka_unit_test(decoding_drops_the_space_nobody_wrote),
        cmocka_unit_test(encoding_does_not_allocate_once_warm),
        cmocka_unit_test(texts_beyond_the_limit_are_refused),
        cmocka_unit_test(failed_allocations_are_answers),
        cmocka_unit_test(threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
