/* What the tests of grammar share: a vocabulary with everything that is awkward in it, and one way to compile. */
#ifndef TESTS_GRAMMAR_TESTING_VOCAB_H
#define TESTS_GRAMMAR_TESTING_VOCAB_H

#include "base/rng.h"
#include "grammar/grammar.h"
#include "testing.h"

#define TEST_TOKENS 3000
#define TEST_END    0 /* "<end>", a control token */
#define TEST_CALL   1 /* "<call>", another */

/* Single bytes, words, JSON in pieces, parts of characters, tokens of equal bytes, holes; NULL state is fine. Group
 * setup and teardown. */
int test_vocab_open(void **state);
int test_vocab_close(void **state);
struct grammar_vocab *test_vocab(void);
const struct vocab_view *test_view(void);
struct str test_token(uint32_t id);

/* Compiles or fails the test. */
struct grammar *test_compile(enum grammar_kind kind, const char *text);

/* Number i of a test's stream. */
uint64_t test_random(uint64_t seed, uint64_t i);

#endif
