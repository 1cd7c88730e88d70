/* Standard output; see out.h. */
#include "cli/out.h"

#include "base/fault.h"
#include "base/limits.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OUT_FLUSH_BYTES (32 * KIB) /* large enough that a list of 10,000 tensors is some tens of writes */

void out_init(struct out *o, int fd)
{
    *o = (struct out){.fd = fd};
    buf_init(&o->buf, OUT_BYTES_MAX);
}

static void write_all(struct out *o)
{
    size_t done = 0;
    while (done < o->buf.n && !o->reader_left && o->error.code == OK) {
        ssize_t k = -1;
        if (fault_hit(FAULT_SYS))
            errno = ENOSPC;
        else
            k = write(o->fd, o->buf.p + done, o->buf.n - done);
        if (k >= 0)
            done += (size_t)k;
        else if (errno == EPIPE)
            o->reader_left = true;
        else if (errno != EINTR)
            FAIL(&o->error, ERR_IO, "cannot write standard output: %s", strerror(errno));
    }
}

void out_flush(struct out *o)
{
    if (o->buf.failure != OK)
        FAIL(&o->error, o->buf.failure, "no memory for the output");
    write_all(o);
    buf_clear(&o->buf);
}

static void flush_when_full(struct out *o)
{
    if (o->buf.n >= OUT_FLUSH_BYTES || o->buf.failure != OK)
        out_flush(o);
}

void out_add(struct out *o, struct str s)
{
    while (s.n > 0 && o->error.code == OK) {
        const size_t k = MIN(s.n, OUT_FLUSH_BYTES);
        buf_add(&o->buf, (struct str){s.p, k});
        s = (struct str){s.p + k, s.n - k};
        flush_when_full(o);
    }
}

void out_text(struct out *o, const char *text)
{
    out_add(o, str_of(text));
}

void out_printf(struct out *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *at = n >= 0 ? buf_room(&o->buf, (size_t)n) : NULL;
    if (at != NULL) {
        vsnprintf(at, (size_t)n + 1, fmt, again);
        o->buf.n += (size_t)n;
    }
    va_end(again);
    flush_when_full(o);
}

void out_json_str(struct out *o, struct str s)
{
    buf_add_json_str(&o->buf, s);
    flush_when_full(o);
}

void out_safe(struct out *o, struct str s)
{
    while (s.n > 0) {
        char shown[8];
        const size_t k = MAX(utf8_len(s), (size_t)1);
        out_text(o, str_show((struct str){s.p, k}, shown, sizeof shown));
        s = (struct str){s.p + k, s.n - k};
    }
}

enum err out_fini(struct out *o, struct error *e)
{
    out_flush(o);
    buf_fini(&o->buf);
    if (o->error.code != OK && e != NULL && e->code == OK)
        *e = o->error;
    return o->error.code;
}
