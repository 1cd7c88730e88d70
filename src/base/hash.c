/* Hashes; see hash.h. */
#include "base/hash.h"

#include "base/mem.h"

#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <stdio.h>
#include <xxhash.h>

uint64_t hash64(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n, seed);
}

struct hash128 hash128(const void *bytes, size_t n)
{
    const XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (struct hash128){h.low64, h.high64};
}

struct sha256 {
    EVP_MD_CTX *ctx;
};

enum err sha256_new(struct sha256 **out, struct error *e)
{
    *out = NULL;
    struct sha256 *h = mem_zalloc(sizeof *h);
    if (h == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a SHA-256 state");
    h->ctx = EVP_MD_CTX_new();
    if (h->ctx == NULL || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1) {
        sha256_free(h);
        return FAIL(e, ERR_NOMEM, "no memory for a SHA-256 state");
    }
    *out = h;
    return OK;
}

void sha256_add(struct sha256 *h, const void *bytes, size_t n)
{
    const int ok = EVP_DigestUpdate(h->ctx, bytes, n);
    assert(ok == 1);
    (void)ok;
}

void sha256_end(struct sha256 *h, unsigned char out[SHA256_BYTES])
{
    unsigned int n = 0;
    const int ok = EVP_DigestFinal_ex(h->ctx, out, &n);
    assert(ok == 1 && n == SHA256_BYTES);
    (void)ok;
}

void sha256_free(struct sha256 *h)
{
    if (h == NULL)
        return;
    EVP_MD_CTX_free(h->ctx);
    mem_free(h);
}

void sha256_hex(const unsigned char digest[SHA256_BYTES], char out[SHA256_HEX_MAX])
{
    for (size_t i = 0; i < SHA256_BYTES; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool sha256_parse(struct str hex, unsigned char out[SHA256_BYTES])
{
    if (hex.n != (size_t)2 * SHA256_BYTES)
        return false;
    for (size_t i = 0; i < SHA256_BYTES; i++) {
        const int hi = hex_digit(hex.p[2 * i]), lo = hex_digit(hex.p[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out[i] = (unsigned char)(hi * 16 + lo);
    }
    return true;
}
