/* Masks against brute force: along random walks through grammars of every kind, each token of the vocabulary is tried
 * by itself, and the mask must say the same. */
#include "base/mem.h"
#include "testing_vocab.h"

#include <string.h>

static const uint32_t ENDS[] = {TEST_END};

static const struct {
    enum grammar_kind kind;
    const char *text;
} GRAMMARS[] = {
    {GRAMMAR_CHOICE, "[\"name\",\"namexx\",\"value\",\"ä€\",\"true\"]"},
    {GRAMMAR_REGEX, "[a-c]+(x|y)?"},
    {GRAMMAR_REGEX, "[a-c]{2,90}1"},
    {GRAMMAR_REGEX, "a{1,20}"},
    {GRAMMAR_REGEX, "(ab|c){3,200}x"},
    {GRAMMAR_REGEX, ".*"},
    {GRAMMAR_REGEX, "[^\\n<]{0,30}<"},
    {GRAMMAR_REGEX, "-?(0|[1-9]\\d*)(\\.\\d+)?([eE][-+]?\\d+)?"},
    {GRAMMAR_REGEX, "(a|b)*a(a|b){5}"},
    {GRAMMAR_REGEX, "\\p{L}*"},
    {GRAMMAR_JSON_OBJECT, ""},
    {GRAMMAR_JSON_SCHEMA, "{}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"
                          "\"value\":{\"type\":\"string\",\"maxLength\":12}},\"required\":[\"name\",\"value\"]}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":40},"
                          "\"minItems\":1,\"maxItems\":30}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5},\"maxItems\":6}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":7}}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":9,\"maxLength\":4000}"},
    {GRAMMAR_REGEX, "([a-z \"]{6,},){1,3}x"},
    {GRAMMAR_EBNF, "root ::= (name \" = \" (name | [0-9]+) \";\")+\nname ::= [a-z] [a-z0-9_]*\n"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z0-9_-]{3,9}([a-z]|\\\\$)$\"}"},
    {GRAMMAR_REGEX, "[a-z ]{0,8}[a-c\"]+"},
    {GRAMMAR_REGEX, "([a-z \"]{1,6},){1,3}x"},
    {GRAMMAR_JSON_SCHEMA, "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/t\"},"
                          "\"b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}},"
                          "\"additionalProperties\":false}},\"$ref\":\"#/$defs/t\"}"},
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-c]+x\"}"},
    {GRAMMAR_EBNF, "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [a-c]+ | \"(\" expr \")\" | [0-9]{1,60}\n"},
    {GRAMMAR_EBNF, "root ::= \"a\" root \"b\" | \"a\" root \"c\" | [xy]\n"},
    {GRAMMAR_EBNF, "root ::= s{2,100}\ns ::= \"<\" s* \">\" | [a-c]\n"},
    {GRAMMAR_STRUCTURE, "{\"type\":\"sequence\",\"parts\":[{\"type\":\"free_until\",\"stops\":[\"<tool>\"]},"
                        "{\"type\":\"repeat\",\"part\":{\"type\":\"sequence\",\"parts\":[{\"type\":\"text\",\"value\":"
                        "\"<tool>\"},{\"type\":\"json\",\"schema\":{\"type\":\"object\"}},"
                        "{\"type\":\"control\",\"value\":\"<call>\"}]}}]}"},
};

struct tries {
    struct grammar_walk *walk, *other;
    uint64_t mask[(TEST_TOKENS + 63) / 64];
};

static bool bit(const uint64_t *mask, uint32_t id)
{
    return (mask[id / 64] >> (id % 64) & 1) != 0;
}

/* The first token where mask and trial differ; TEST_TOKENS: none. */
static uint32_t first_difference(struct tries *t)
{
    for (uint32_t id = 0; id < TEST_TOKENS; id++) {
        grammar_walk_copy(t->other, t->walk);
        const bool allowed = id == TEST_END ? grammar_is_complete(t->walk) : grammar_accept(t->other, id, NULL) == OK;
        if (allowed != bit(t->mask, id))
            return id;
    }
    return TEST_TOKENS;
}

/* A random token of the mask, rather one that closes something; TEST_TOKENS: there is none. */
static uint32_t pick(const struct tries *t, uint64_t random)
{
    uint32_t n = 0, closing = 0, found = TEST_TOKENS;
    for (uint32_t id = 1; id < TEST_TOKENS; id++) {
        if (!bit(t->mask, id))
            continue;
        n++;
        closing += strchr("\"}]>)", test_token(id).p[0]) != NULL;
    }
    const bool close = closing > 0 && random % 4 == 0;
    uint64_t at = n == 0 ? 0 : random / 4 % (close ? closing : n);
    for (uint32_t id = 1; id < TEST_TOKENS && found == TEST_TOKENS; id++)
        if (bit(t->mask, id) && (!close || strchr("\"}]>)", test_token(id).p[0]) != NULL) && at-- == 0)
            found = id;
    return found;
}

static void walk_once(struct grammar *g, size_t which, uint64_t seed, uint32_t steps, struct tries *t)
{
    char text[4096] = "";
    size_t n = 0;
    bool plain = true; /* only text so far: a control token has none */
    grammar_walk_init(t->walk, g);
    for (uint32_t i = 0; i < steps; i++) {
        struct error e;
        const uint32_t count = grammar_mask(t->walk, ENDS, 1, t->mask);
        const uint32_t id = first_difference(t);
        if (id != TEST_TOKENS)
            fail_msg("grammar %zu, behind '%.*s': mask says %d for token %u '%.*s'", which, (int)n, text,
                bit(t->mask, id), id, (int)test_token(id).n, test_token(id).p);
        uint32_t real = 0;
        for (uint32_t k = 0; k < TEST_TOKENS; k++)
            real += bit(t->mask, k);
        assert_true(real > 0);
        assert_int_equal(count, MIN(real, 2u));
        const uint32_t next = pick(t, test_random(seed, i));
        uint32_t jump = 0;
        if (grammar_jump(t->walk, &jump)) /* what is forced is allowed, and what else is allowed begins it or goes on */
            assert_true(bit(t->mask, jump) && !grammar_is_complete(t->walk));
        if (next == TEST_TOKENS)
            return;
        assert_ok(e, grammar_accept(t->walk, next, &e));
        const struct str tok = test_token(next);
        plain &= next != TEST_CALL && n + tok.n < sizeof text;
        if (plain) {
            memcpy(text + n, tok.p, tok.n);
            n += tok.n;
            assert_true(grammar_is_prefix(g, (struct str){text, n}));
            assert_int_equal(grammar_matches(g, (struct str){text, n}), grammar_is_complete(t->walk));
        }
    }
}

static void mask_equals_brute_force(void **state)
{
    (void)state;
    struct tries t = {.walk = mem_alloc(grammar_walk_bytes()), .other = mem_alloc(grammar_walk_bytes())};
    for (size_t i = 0; i < COUNT_OF(GRAMMARS); i++) {
        struct grammar *g = test_compile(GRAMMARS[i].kind, GRAMMARS[i].text);
        for (uint64_t seed = 0; seed < 3; seed++)
            walk_once(g, i, 100 * i + seed, 25, &t);
        grammar_unref(g);
    }
    mem_free(t.walk);
    mem_free(t.other);
}

/* The comparison above can see one wrong bit. */
static void a_wrong_bit_is_found(void **state)
{
    (void)state;
    struct tries t = {.walk = mem_alloc(grammar_walk_bytes()), .other = mem_alloc(grammar_walk_bytes())};
    struct grammar *g = test_compile(GRAMMAR_JSON_OBJECT, "");
    grammar_walk_init(t.walk, g);
    (void)grammar_mask(t.walk, ENDS, 1, t.mask);
    assert_int_equal(first_difference(&t), TEST_TOKENS);
    for (uint32_t id = 2; id < TEST_TOKENS; id += 331) {
        t.mask[id / 64] ^= UINT64_C(1) << (id % 64);
        assert_int_equal(first_difference(&t), id);
        t.mask[id / 64] ^= UINT64_C(1) << (id % 64);
    }
    grammar_unref(g);
    mem_free(t.walk);
    mem_free(t.other);
}

/* ---- keys ---- */

struct keyed {
    struct grammar_key key;
    uint64_t mask[(TEST_TOKENS + 63) / 64];
};

/* Without how many characters or rounds are left: what the test must find to be too little. */
static bool same_key(const struct grammar_key *a, const struct grammar_key *b, bool is_careless)
{
    bool same = a->n == b->n;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = a->words[i] == b->words[i] || (is_careless && i > 1 && i % 2 == 1);
    return same;
}

/* How often walks met a key again; *wrong: with another mask. */
static uint32_t count_same(const struct keyed *list, uint32_t n, bool is_careless, uint32_t *wrong)
{
    uint32_t same = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (same_key(&list[i].key, &list[k].key, is_careless)) {
                same++;
                *wrong += memcmp(list[i].mask, list[k].mask, sizeof list[i].mask) != 0;
            }
    return same;
}

static void masks_with_the_same_key_are_the_same(void **state)
{
    enum { STEPS = 60, SEEDS = 8 };
    (void)state;
    struct tries t = {.walk = mem_alloc(grammar_walk_bytes()), .other = mem_alloc(grammar_walk_bytes())};
    struct keyed *list = mem_array((size_t)STEPS * SEEDS, sizeof *list);
    uint32_t same = 0, wrong = 0, careless = 0, steps = 0, keys = 0;
    for (size_t i = 0; i < COUNT_OF(GRAMMARS); i++) {
        struct grammar *g = test_compile(GRAMMARS[i].kind, GRAMMARS[i].text);
        uint32_t n = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct error e;
            grammar_walk_init(t.walk, g);
            for (uint32_t k = 0; k < STEPS; k++, steps++) {
                struct keyed *here = &list[n];
                (void)grammar_mask(t.walk, ENDS, 1, t.mask);
                memcpy(here->mask, t.mask, sizeof t.mask);
                n += grammar_mask_key(t.walk, &here->key);
                const uint32_t next = pick(&t, test_random(7000 + 100 * i + seed, k));
                if (next == TEST_TOKENS)
                    break;
                assert_ok(e, grammar_accept(t.walk, next, &e));
            }
        }
        keys += n;
        same += count_same(list, n, false, &wrong);
        (void)count_same(list, n, true, &careless);
        grammar_unref(g);
    }
    assert_int_equal(wrong, 0);
    assert_true(keys > steps / 2 && same > steps && careless > 100);
    mem_free(list);
    mem_free(t.walk);
    mem_free(t.other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_with_the_same_key_are_the_same),
        cmocka_unit_test(mask_equals_brute_force),
        cmocka_unit_test(a_wrong_bit_is_found),
    };
    return cmocka_run_group_tests(tests, test_vocab_open, test_vocab_close);
}
