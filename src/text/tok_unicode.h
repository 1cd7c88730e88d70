/* What the tokenizers need to know about characters, and where it comes from: PCRE2 and utf8proc (Unicode 14),
 * corrected by the generated table unicode_new.h to what the `tokenizers` package knows.
 *
 * Threads: re-entrant. */
#ifndef TEXT_TOK_UNICODE_H
#define TEXT_TOK_UNICODE_H

#include "base/base.h"

struct tok_ctx;
struct scratch;

/* The character at p, which must start a valid one; its length to *n. */
static inline uint32_t utf8_get(const char *p, size_t *n)
{
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) {
        *n = 1;
        return u[0];
    }
    if (u[0] < 0xE0) {
        *n = 2;
        return (uint32_t)(u[0] & 0x1F) << 6 | (uint32_t)(u[1] & 0x3F);
    }
    if (u[0] < 0xF0) {
        *n = 3;
        return (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (uint32_t)(u[2] & 0x3F);
    }
    *n = 4;
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 |
           (uint32_t)(u[3] & 0x3F);
}

/* Write c as UTF-8 into out[4]; the length. */
size_t utf8_put(uint32_t c, char *out);

/* Where a valid text stops being valid: its length when all of it is. */
size_t utf8_valid_prefix(struct str s);

/* c, or the character that stands in for it in tables that do not know it. */
uint32_t unicode_known(uint32_t c);

/* Sets as the components of `tokenizers` have them; each component has tables of its own age. */
bool unicode_is_numeric(uint32_t c);      /* Digits */
bool unicode_is_punctuation(uint32_t c);  /* Punctuation, BertPreTokenizer */
bool unicode_is_space(uint32_t c);        /* White_Space */
bool unicode_is_word(uint32_t c);         /* Whitespace, single_word: letters, marks, digits, connectors, joiners */
bool unicode_is_accent(uint32_t c);       /* StripAccents */
bool unicode_is_bert_mark(uint32_t c);    /* strip_accents of BertNormalizer */
bool unicode_is_bert_dropped(uint32_t c); /* clean_text of BertNormalizer */
uint32_t unicode_lower(uint32_t c, uint32_t *second); /* second: 0, or the other character of a two-character result */

/* The text as PCRE2 may see it: every character it does not know replaced by its stand-in, lengths kept, in *out. The
 * text itself when there is none. p NULL: out of memory (the ctx has the failure). */
struct str unicode_shadow(struct tok_ctx *c, struct str text, struct scratch *out);

enum unicode_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD };

/* Normalise a valid text, appending to *out. false: out of memory (the ctx has the failure). */
bool unicode_normalise(struct tok_ctx *c, enum unicode_form form, struct str text, struct scratch *out);

#endif
