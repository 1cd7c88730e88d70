/* Finding added tokens in a text: a trie over their spellings, tried at every byte that can start one; the longest
 * spelling wins, and the next search starts behind it. Time is at most text times longest token.
 *
 * Threads: immutable after it was made. */
#ifndef TEXT_TOK_ADDED_H
#define TEXT_TOK_ADDED_H

#include "text/tok_int.h"

struct matcher;

/* tokens[i].content for every i that chosen[i] says; a spelling of its own may be given (normalised). */
struct matcher_entry {
    struct str spelling;
    uint32_t index; /* of pipe.added */
};
enum err matcher_new(const struct matcher_entry *entries, size_t n, struct matcher **out, struct error *e) MUST_CHECK;
void matcher_free(struct matcher *m); /* NULL is fine */

/* The first spelling at or after from; false when there is none. */
bool matcher_next(const struct matcher *m, struct str text, size_t from, size_t *start, size_t *end, uint32_t *index);

/* The longest spelling at exactly this place; 0 when there is none. */
size_t matcher_at(const struct matcher *m, struct str text, size_t at, uint32_t *index);

#endif
