/* Standard input; see input.h. */
#include "cli/input.h"

#include "base/fault.h"
#include "base/limits.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES (64 * KIB)

enum err input_read_all(struct buf *b, struct error *e)
{
    for (;;) {
        char *at = buf_room(b, READ_BYTES);
        if (at == NULL && b->failure == ERR_LIMIT)
            return FAIL(e, ERR_LIMIT, "standard input is longer than %llu MiB", (unsigned long long)(b->max / MIB));
        if (at == NULL)
            return buf_check(b, "standard input", e);
        ssize_t n = -1;
        if (fault_hit(FAULT_SYS))
            errno = EIO;
        else
            n = read(STDIN_FILENO, at, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return FAIL(e, ERR_IO, "cannot read standard input: %s", strerror(errno));
        if (n == 0)
            return OK;
        b->n += (size_t)n;
        b->p[b->n] = '\0';
    }
}
