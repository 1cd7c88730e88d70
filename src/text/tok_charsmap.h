/* A precompiled normaliser map of SentencePiece: a double-array trie from byte sequences to replacement texts, as it
 * stands in tokenizer.model ("precompiled_charsmap") and, base64-coded, in tokenizer.json.
 *
 * Threads: immutable after it was made. */
#ifndef TEXT_TOK_CHARSMAP_H
#define TEXT_TOK_CHARSMAP_H

#include "base/base.h"

struct charsmap;

/* The bytes are copied and checked. */
enum err charsmap_new(struct str blob, struct charsmap **out, struct error *e) MUST_CHECK;
enum err charsmap_new_base64(struct str text, struct charsmap **out, struct error *e) MUST_CHECK;
void charsmap_free(struct charsmap *m); /* NULL is fine */

/* The bytes as base64, the form that a spec keeps them in. */
struct buf;
void charsmap_base64(struct str blob, struct buf *out);

/* The shortest, or the longest, prefix of text that the map knows: its length and replacement. 0: none. */
size_t charsmap_find(const struct charsmap *m, struct str text, bool longest, struct str *replacement);

#endif
