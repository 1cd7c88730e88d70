/* Hashes: XXH3 where speed matters and nobody attacks (tables, file fingerprints), SHA-256 for identity.
 *
 * Threads: re-entrant. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "base/base.h"

uint64_t hash64(const void *bytes, size_t n, uint64_t seed);

struct hash128 {
    uint64_t lo, hi;
};
struct hash128 hash128(const void *bytes, size_t n);

#define SHA256_BYTES   32
#define SHA256_HEX_MAX (2 * SHA256_BYTES + 1) /* with the NUL */

struct sha256;
enum err sha256_new(struct sha256 **out, struct error *e) MUST_CHECK;
void sha256_add(struct sha256 *h, const void *bytes, size_t n);
void sha256_end(struct sha256 *h, unsigned char out[SHA256_BYTES]); /* then only sha256_free */
void sha256_free(struct sha256 *h);                                 /* NULL is fine */

void sha256_hex(const unsigned char digest[SHA256_BYTES], char out[SHA256_HEX_MAX]);
bool sha256_parse(struct str hex, unsigned char out[SHA256_BYTES]); /* 64 hex digits, either case */

#endif
