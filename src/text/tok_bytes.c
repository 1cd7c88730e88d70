/* The printable spelling of bytes in byte-level vocabularies: every byte has a visible character, so that a vocabulary
 * is a JSON file of strings. Printable ASCII and most of Latin-1 stand for themselves; the other 68 bytes follow from
 * U+0100 on, in order. */
#include "text/tok_int.h"
#include "text/tok_unicode.h"

static bool spells_itself(uint32_t b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

/* How many bytes below b do not spell themselves. */
static uint32_t hidden_below(uint32_t b)
{
    if (b <= '!')
        return b;
    if (b <= 0xA1)
        return 33 + (b > '~' ? b - 127 : 0);
    return 33 + 34 + (b > 0xAD);
}

size_t byte_spell(unsigned char b, char out[2])
{
    return utf8_put(spells_itself(b) ? b : 0x100 + hidden_below(b), out);
}

/* The byte a character stands for, or -1. */
static int byte_of(uint32_t c)
{
    if (c < 0x100)
        return spells_itself(c) ? (int)c : -1;
    const uint32_t i = c - 0x100;
    if (i < 33)
        return (int)i;
    if (i < 67)
        return (int)(127 + (i - 33));
    return i == 67 ? 0xAD : -1;
}

bool byte_unspell(struct str s, char *out, size_t *n)
{
    *n = 0;
    for (size_t at = 0; at < s.n;) {
        if (s.p[at] >= '!' && s.p[at] <= '~') { /* nearly all of a vocabulary */
            out[(*n)++] = s.p[at++];
            continue;
        }
        size_t len = utf8_len((struct str){s.p + at, s.n - at});
        if (len == 0)
            return false;
        const int b = byte_of(utf8_get(s.p + at, &len));
        if (b < 0)
            return false;
        out[(*n)++] = (char)b;
        at += len;
    }
    return true;
}
