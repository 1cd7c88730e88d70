/* Small tokenizers made on the spot, for the tests of text/. */
#ifndef TESTS_TESTING_TOK_H
#define TESTS_TESTING_TOK_H

#include "base/base.h"
#include "base/buf.h"
#include "text/tok_int.h"

/* A seeded stream of numbers. */
struct dice {
    uint64_t state;
};
uint64_t dice_roll(struct dice *d, uint64_t below);

/* The text of a byte-level tokenizer.json: 256 bytes, n_merges random merges of what is there already, then
 * <|begin|> (special), <|end|> (special) and <think> (not special). shuffled: ranks in random order, so that merges
 * come before those that make their halves. rest: further members of the file, such as "\"normalizer\":{...},". */
void json_byte_level(struct buf *out, uint64_t seed, size_t n_merges, bool shuffled, const char *rest);

/* Make it, or fail the test. */
struct tok *tok_of(struct buf *json);
struct tok *tok_byte_level(uint64_t seed, size_t n_merges, bool shuffled, const char *rest);
struct tok_ctx *ctx_of(void);

/* The ids of a text as "1 2 3" in a static buffer. */
const char *ids_text(const struct tok *t, struct tok_ctx *c, const struct tok_part *parts, size_t n, bool special);

#endif
