/* Regular expressions of tokenizers: PCRE2 with JIT behind the syntax that `tokenizers` files are written in
 * (Oniguruma, Ruby flavour). Patterns come from files that nobody vouched for, so sizes and match effort are bounded.
 *
 * The subject must be valid UTF-8, and characters that PCRE2's tables do not know must have been replaced
 * (tok_unicode.h, unicode_shadow).
 *
 * Threads: a struct regex is immutable and shared; a struct regex_ctx belongs to one thread. */
#ifndef TEXT_TOK_REGEX_H
#define TEXT_TOK_REGEX_H

#include "base/base.h"

struct regex;
struct regex_ctx;

enum err regex_new(struct str pattern, struct regex **out, struct error *e) MUST_CHECK;
void regex_free(struct regex *r); /* NULL is fine */

enum err regex_ctx_new(struct regex_ctx **out, struct error *e) MUST_CHECK;
void regex_ctx_free(struct regex_ctx *c); /* NULL is fine */

/* The first match at or after from: 1 and its bounds, 0 when there is none, -1 when the match limit was met. */
int regex_next(const struct regex *r, struct regex_ctx *c, struct str subject, size_t from, size_t *start, size_t *end);

/* Oniguruma's spelling as PCRE2's, appended to out; ERR_UNSUPPORTED names what has no counterpart. */
struct buf;
enum err regex_translate(struct str pattern, struct buf *out, struct error *e) MUST_CHECK;

#endif
