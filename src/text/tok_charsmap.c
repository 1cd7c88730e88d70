/* Reading a precompiled charsmap; see tok_charsmap.h.
 *
 * Layout: uint32 bytes of the trie, the trie (uint32 units), then the replacement texts, each ended by a NUL.
 * A unit of the trie packs: bit 31 leaf, bits 30..10 offset (or, in a leaf, bits 30..0 the value), bit 9 the offset is
 * times 256, bit 8 has a leaf, bits 7..0 the label. Moving by byte b from the unit at i goes to i ^ offset(i) ^ b, and
 * exists when that unit's label is b. Every index is checked against the array as it is used. */
#include "text/tok_charsmap.h"

#include "base/buf.h"
#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts;
    size_t n_texts; /* bytes; the last is a NUL */
};

enum err charsmap_new(struct str blob, struct charsmap **out, struct error *e)
{
    *out = NULL;
    uint32_t bytes = 0;
    if (blob.n >= 4)
        memcpy(&bytes, blob.p, 4);
    if (blob.n > TOK_CHARSMAP_MAX)
        return FAIL(e, ERR_LIMIT, "precompiled charsmap of %zu bytes; the limit is %llu", blob.n,
            (unsigned long long)TOK_CHARSMAP_MAX);
    if (blob.n < 8 || bytes % 4 != 0 || bytes < 4 || bytes > blob.n - 4)
        return FAIL(e, ERR_FORMAT, "precompiled charsmap of %zu bytes claims a trie of %u", blob.n, bytes);
    struct charsmap *m = mem_zalloc(sizeof *m);
    if (m != NULL) {
        m->n_units = bytes / 4;
        m->n_texts = blob.n - 4 - bytes + 1;
        m->units = mem_alloc(bytes);
        m->texts = mem_zalloc(m->n_texts);
    }
    if (m == NULL || m->units == NULL || m->texts == NULL) {
        charsmap_free(m);
        return FAIL(e, ERR_NOMEM, "no memory for a precompiled charsmap");
    }
    memcpy(m->units, blob.p + 4, bytes);
    memcpy(m->texts, blob.p + 4 + bytes, blob.n - 4 - bytes);
    *out = m;
    return OK;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

enum err charsmap_new_base64(struct str text, struct charsmap **out, struct error *e)
{
    *out = NULL;
    char *blob = mem_alloc(text.n / 4 * 3 + 3);
    if (blob == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a precompiled charsmap");
    size_t n = 0;
    uint32_t bits = 0;
    int n_bits = 0;
    enum err err = OK;
    while (text.n > 0 && text.p[text.n - 1] == '=')
        text.n--;
    for (size_t i = 0; i < text.n; i++) {
        const int d = base64_digit(text.p[i]);
        if (d < 0) {
            err = FAIL(e, ERR_FORMAT, "precompiled_charsmap is not base64 at byte %zu", i);
            break;
        }
        bits = (bits << 6 | (uint32_t)d) & 0xFFFFF;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            blob[n++] = (char)(bits >> n_bits & 255);
        }
    }
    if (err == OK)
        err = charsmap_new((struct str){blob, n}, out, e);
    mem_free(blob);
    return err;
}

void charsmap_free(struct charsmap *m)
{
    if (m == NULL)
        return;
    mem_free(m->units);
    mem_free(m->texts);
    mem_free(m);
}

static inline size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & (1u << 9)) >> 6);
}

size_t charsmap_find(const struct charsmap *m, struct str text, bool longest, struct str *replacement)
{
    size_t found = 0, at = 0;
    uint32_t unit = m->units[0];
    at ^= unit_offset(unit);
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char b = (unsigned char)text.p[i];
        at ^= b;
        if (at >= m->n_units || b == 0)
            break;
        unit = m->units[at];
        if ((unit & ((1u << 31) | 255)) != b) /* a leaf, or another byte's unit */
            break;
        at ^= unit_offset(unit);
        if ((unit & (1u << 8)) == 0)
            continue;
        if (at >= m->n_units)
            break;
        const size_t value = m->units[at] & 0x7FFFFFFFu;
        if (value >= m->n_texts)
            break;
        found = i + 1;
        *replacement = (struct str){m->texts + value, strlen(m->texts + value)};
        if (!longest)
            break;
    }
    return found;
}

void charsmap_base64(struct str blob, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < blob.n; i += 3) {
        uint32_t bits = 0;
        const size_t n = MIN(blob.n - i, (size_t)3);
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (k < n ? (unsigned char)blob.p[i + k] : 0);
        for (size_t k = 0; k < n + 1; k++)
            buf_add_char(out, digits[bits >> (18 - 6 * k) & 63]);
    }
}
