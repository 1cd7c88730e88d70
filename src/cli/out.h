/* Standard output behind a buffer that keeps its first failure: a verb writes freely and the frame asks once at the
 * end. A full disk is an error; a reader that left (`quern inspect --tensors | head`) is not, the rest is dropped
 * quietly.
 *
 * Threads: one at a time. */
#ifndef CLI_OUT_H
#define CLI_OUT_H

#include "base/base.h"
#include "base/buf.h"

struct out {
    int fd;
    struct buf buf;
    struct error error; /* the first failure */
    bool reader_left;   /* EPIPE: write nothing more, and say nothing */
};

void out_init(struct out *o, int fd);
void out_add(struct out *o, struct str s);
void out_text(struct out *o, const char *text);
void out_printf(struct out *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
void out_json_str(struct out *o, struct str s);     /* quoted and escaped */
void out_safe(struct out *o, struct str untrusted); /* control bytes and invalid UTF-8 escaped, for terminals */
void out_flush(struct out *o);

/* Flush and release; the first failure of all writes, if any. */
enum err out_fini(struct out *o, struct error *e) MUST_CHECK;

#endif
