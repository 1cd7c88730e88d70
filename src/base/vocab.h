/* A vocabulary as plain data: what text/ makes and grammar/, sample/ and the stop matcher read, so that those rooms
 * need not know each other.
 *
 * Token id i stands for the bytes [offsets[i], offsets[i + 1]) of `bytes`: what it adds to the output in the middle of
 * a text. A control token's bytes are its name ("<|im_end|>"); readers look at the flags before they use them.
 *
 * Threads: immutable; shared freely. Borrowed from the tokenizer that made it, and valid as long as it is. */
#ifndef BASE_VOCAB_H
#define BASE_VOCAB_H

#include "base/base.h"

enum vocab_flag {
    VOCAB_SPECIAL = 1, /* control token: never made from user text, left out of decoded text */
    VOCAB_ADDED = 2,   /* matched in the text before the model runs */
    VOCAB_BYTE = 4,    /* one byte of byte fallback, not a character */
    VOCAB_UNKNOWN = 8, /* stands for what the vocabulary cannot say */
    VOCAB_HOLE = 16,   /* an id without a token; its bytes are empty */
    VOCAB_OUTSIDE = 32 /* not in the model's own vocabulary: only ever found as an added token */
};

struct vocab_view {
    uint32_t n;
    const char *bytes;
    const uint32_t *offsets; /* n + 1 */
    const uint8_t *flags;    /* n; enum vocab_flag bits */
};

static inline struct str vocab_bytes(const struct vocab_view *v, uint32_t id)
{
    return (struct str){v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id]};
}

#endif
