/* The JSON schema front end under any bytes: an answer within the limits, never a crash; a refusal has a sentence that
 * can be shown. What compiles is walked: the first byte chooses the whitespace, hashes choose the tokens. A mask on the
 * way is never empty, a forced token is in it, and a text that ends is JSON. */
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

enum { END = 256, TOKENS = 257, WORDS = (TOKENS + 63) / 64, STEPS = 400, CLOSING = 60 };

static void check(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static struct grammar_vocab *bytes_vocab(void)
{
    static struct grammar_vocab *vocab;
    static char text[TOKENS + 5];
    static uint32_t offsets[TOKENS + 1];
    static uint8_t flags[TOKENS];
    if (vocab != NULL)
        return vocab;
    for (uint32_t i = 0; i < 256; i++) {
        text[i] = (char)i;
        offsets[i] = i;
    }
    memcpy(text + 256, "<end>", 5);
    offsets[END] = 256;
    offsets[TOKENS] = 261;
    flags[END] = VOCAB_SPECIAL;
    struct error e = {0};
    const struct vocab_view view = {TOKENS, text, offsets, flags};
    check(grammar_vocab_new(&view, &vocab, &e) == OK);
    return vocab;
}

static bool is_set(const uint64_t *mask, uint32_t id)
{
    return (mask[id / 64] >> (id % 64) & 1) != 0;
}

/* Any allowed token; towards the end of the walk, one that closes something. */
static uint32_t choose(const uint64_t *mask, uint64_t random, bool is_closing)
{
    static const char closers[] = "\"}]0";
    for (const char *c = closers; is_closing && random % 8 != 0 && *c != '\0'; c++)
        if (is_set(mask, (unsigned char)*c))
            return (unsigned char)*c;
    for (uint32_t i = 0; i < 256; i++) {
        const uint32_t id = (uint32_t)((random / 8 + i) % 256);
        if (is_set(mask, id))
            return id;
    }
    return END;
}

static void walk(struct grammar *g, uint64_t seed)
{
    char text[STEPS + 1];
    uint64_t mask[WORDS];
    const uint32_t end = END;
    struct grammar_walk *w = mem_aligned(8, grammar_walk_bytes());
    check(w != NULL);
    grammar_walk_init(w, g);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct error e = {0};
        uint32_t forced;
        check(grammar_mask(w, &end, 1, mask) > 0);
        check(is_set(mask, END) == grammar_is_complete(w));
        uint32_t id = choose(mask, hash64(&i, sizeof i, seed), i >= CLOSING);
        if (grammar_jump(w, &forced)) {
            check(is_set(mask, forced));
            id = forced;
        }
        if (id == END || (is_set(mask, END) && i >= CLOSING)) {
            json_t *doc = NULL;
            check(grammar_matches(g, (struct str){text, i}));
            const enum err err = json_parse((struct str){text, i}, &doc, &e);
            check(err == OK || err == ERR_LIMIT || strstr(e.text, "too big") || strstr(e.text, "duplicate") ||
                  strstr(e.text, "NUL byte") || strstr(e.text, "real number overflow"));
            json_decref(doc);
            break;
        }
        check(grammar_accept(w, id, &e) == OK);
        text[i] = (char)id;
    }
    mem_free(w);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    if (n == 0)
        return 0;
    struct error e = {0};
    struct grammar *g = NULL;
    const struct grammar_source src = {
        GRAMMAR_JSON_SCHEMA, {(const char *)bytes + 1, n - 1}, (enum grammar_whitespace)(bytes[0] % 3)};
    const enum err err = grammar_compile(&src, bytes_vocab(), &g, &e);
    if (err != OK) {
        check(g == NULL && e.code == err && (err == ERR_INVALID || err == ERR_LIMIT || err == ERR_UNSUPPORTED));
        check(e.text[0] != '\0' && utf8_is_valid(str_of(e.text)));
        return 0;
    }
    for (uint64_t seed = 0; seed < 3; seed++)
        walk(g, seed);
    grammar_unref(g);
    return 0;
}
