/* Growable bytes with a stated maximum. Appends after a failure do nothing, so a writer appends freely and asks once
 * at the end (buf_check): the first failure is kept.
 *
 * Threads: one at a time. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/base.h"

struct buf {
    char *p; /* always followed by a NUL once anything was appended */
    size_t n, cap;
    size_t max;       /* bytes; an append beyond it fails with ERR_LIMIT */
    enum err failure; /* OK, ERR_LIMIT or ERR_NOMEM */
};

void buf_init(struct buf *b, size_t max);
void buf_add(struct buf *b, struct str s);
void buf_add_char(struct buf *b, char c);
void buf_add_u64(struct buf *b, uint64_t value); /* in decimal */
void buf_addf(struct buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_add_json_str(struct buf *b, struct str s);              /* quoted and escaped; invalid UTF-8 becomes U+FFFD */
void buf_add_base64(struct buf *b, const void *bytes, size_t n); /* without quotes; padded */
char *buf_room(struct buf *b, size_t bytes); /* at least that much and a NUL writable at the end; NULL on failure.
                                              * Who writes there adds to n and puts the NUL. */
void buf_clear(struct buf *b);               /* keeps the memory, forgets the failure */
struct str buf_str(const struct buf *b);
enum err buf_check(const struct buf *b, const char *what, struct error *e) MUST_CHECK; /* ERR_LIMIT names what */
void buf_fini(struct buf *b);

#endif
