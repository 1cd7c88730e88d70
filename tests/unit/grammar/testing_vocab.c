/* A vocabulary made by rule, the same in every run. */
#include "testing_vocab.h"

#include "base/mem.h"

#include <string.h>

static char bytes[TEST_TOKENS * 24];
static uint32_t offsets[TEST_TOKENS + 1];
static uint8_t flags[TEST_TOKENS];
static struct vocab_view view;
static struct grammar_vocab *vocab;

uint64_t test_random(uint64_t seed, uint64_t i)
{
    return rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY});
}

static void add(struct str t, uint8_t flag)
{
    const uint32_t at = offsets[view.n];
    assert_true(view.n < TEST_TOKENS && at + t.n < sizeof bytes);
    memcpy(bytes + at, t.p, t.n);
    flags[view.n++] = flag;
    offsets[view.n] = at + (uint32_t)t.n;
}

static void add_text(const char *text)
{
    add(str_of(text), 0);
}

/* A few pieces one behind the other. */
static void add_random(uint64_t i)
{
    static const char *const pieces[] = {"\"", "\\", "\\n", "\\u", "00", "e9", "{", "}", "[", "]", ":", ", ", ",", " ",
        "  ", "\n", "a", "b", "c", "ab", "name", "value", "x", "y", "1", "2", "0", "-", ".", "e", "true", "false",
        "null", "ä", "€", "😀", "\xC3", "\xA4", "\xE2\x82", "\xF0\x9F", "<", ">", "tool", "\"}", "\": ", "\": \"",
        "aaaaaaaa", "/", "(", ")", "+", "*"};
    char text[64];
    size_t n = 0;
    const uint64_t parts = 1 + test_random(7, i * 16) % 4;
    for (uint64_t k = 1; k <= parts; k++) {
        const char *p = pieces[test_random(7, i * 16 + k) % COUNT_OF(pieces)];
        memcpy(text + n, p, strlen(p));
        n += strlen(p);
    }
    add((struct str){text, n}, 0);
}

int test_vocab_open(void **state)
{
    (void)state;
    struct error e = {0};
    view = (struct vocab_view){.bytes = bytes, .offsets = offsets, .flags = flags};
    add(STR("<end>"), VOCAB_SPECIAL);
    add(STR("<call>"), VOCAB_SPECIAL);
    add(STR("<unknown>"), VOCAB_UNKNOWN);
    add(STR(""), VOCAB_HOLE);
    for (uint32_t i = 0; i < 256; i++) {
        const char c = (char)i;
        add((struct str){&c, 1}, 0);
    }
    add_text("<call>"); /* the same as text */
    add_text("<tool>");
    add_text("</tool>");
    add_text("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    add_text("                                ");
    for (uint64_t i = 0; view.n < TEST_TOKENS; i++)
        add_random(i);
    return grammar_vocab_new(&view, &vocab, &e) == OK ? 0 : -1;
}

int test_vocab_close(void **state)
{
    (void)state;
    grammar_vocab_free(vocab);
    return 0;
}

struct grammar_vocab *test_vocab(void)
{
    return vocab;
}

const struct vocab_view *test_view(void)
{
    return &view;
}

struct str test_token(uint32_t id)
{
    return vocab_bytes(&view, id);
}

struct grammar *test_compile(enum grammar_kind kind, const char *text)
{
    struct grammar *g = NULL;
    struct error e = {0};
    const enum err err = grammar_compile(&(struct grammar_source){.kind = kind, .text = str_of(text)}, vocab, &g, &e);
    if (err != OK)
        fail_msg("%s: %s: %s", text, err_name(err), e.text);
    return g;
}
