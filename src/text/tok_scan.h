/* The few pre-split patterns that most models share, matched by hand.
 *
 * A scanner matches at every position (each of these patterns does: their alternatives cover every character), so it
 * only gives the end. It must agree with the pattern in PCRE2 on every valid UTF-8 text; test_scan.c compares them. */
#ifndef TEXT_TOK_SCAN_H
#define TEXT_TOK_SCAN_H

#include "base/base.h"

/* The end of the match that starts at from < text.n; always greater than from. */
typedef size_t (*scan_fn)(struct str text, size_t from);

/* The scanner of exactly this pattern, or NULL. */
scan_fn scan_find(struct str pattern);

#endif
