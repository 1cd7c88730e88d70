/* Bounded growable bytes; see buf.h. */
#include "base/buf.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

char *buf_room(struct buf *b, size_t bytes)
{
    if (b->failure != OK)
        return NULL;
    const size_t max = MIN(b->max, (size_t)PTRDIFF_MAX - 1); /* so that adding the NUL cannot wrap */
    if (bytes > max - b->n) {
        b->failure = ERR_LIMIT;
        return NULL;
    }
    const size_t need = b->n + bytes + 1;
    if (need > b->cap) {
        const size_t cap = MAX(MIN(b->cap * 2, max + 1), MAX(need, (size_t)64));
        char *p = mem_resize(b->p, cap);
        if (p == NULL) {
            b->failure = ERR_NOMEM;
            return NULL;
        }
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

void buf_add(struct buf *b, struct str s)
{
    char *at = buf_room(b, s.n);
    if (at == NULL)
        return;
    if (s.n > 0)
        memcpy(at, s.p, s.n);
    b->n += s.n;
    b->p[b->n] = '\0';
}

void buf_add_char(struct buf *b, char c)
{
    buf_add(b, (struct str){&c, 1});
}

void buf_add_u64(struct buf *b, uint64_t value)
{
    char digits[20];
    size_t n = sizeof digits;
    do
        digits[--n] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    buf_add(b, (struct str){digits + n, sizeof digits - n});
}

/* What fits into the memory that is there is formatted once. */
void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;
    const size_t room = b->failure == OK ? b->cap - b->n : 0; /* with the NUL */
    va_start(args, fmt);
    va_copy(again, args);
    const int n = vsnprintf(room > 0 ? b->p + b->n : NULL, room, fmt, args);
    va_end(args);
    if (n < 0 && b->failure == OK)
        b->failure = ERR_LIMIT; /* longer than an int can say */
    char *at = n >= 0 ? buf_room(b, (size_t)n) : NULL;
    if (at != NULL) {
        if ((size_t)n >= room)
            vsnprintf(at, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    } else if (room > 0)
        b->p[b->n] = '\0'; /* as it was */
    va_end(again);
}

void buf_add_json_str(struct buf *b, struct str s)
{
    buf_add_char(b, '"');
    size_t i = 0, plain = 0; /* [plain, i) needs no escape and is appended in one go */
    while (i < s.n) {
        const unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            i++;
            continue;
        }
        const size_t len = utf8_len((struct str){s.p + i, s.n - i});
        if (len > 0 && c >= 0x20 && c != '"' && c != '\\') {
            i += len;
            continue;
        }
        buf_add(b, (struct str){s.p + plain, i - plain});
        if (len == 0)
            buf_add(b, STR("\xef\xbf\xbd"));
        else if (c == '"' || c == '\\')
            buf_addf(b, "\\%c", c);
        else if (c == '\n')
            buf_add(b, STR("\\n"));
        else
            buf_addf(b, "\\u%04x", c);
        i += 1;
        plain = i;
    }
    if (i > plain)
        buf_add(b, (struct str){s.p + plain, i - plain});
    buf_add_char(b, '"');
}

void buf_add_base64(struct buf *b, const void *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i += 3) {
        const uint32_t v =
            (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        const char out[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
            i + 2 < n ? digits[v & 63] : '='};
        buf_add(b, (struct str){out, 4});
    }
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->failure = OK;
    if (b->p != NULL)
        b->p[0] = '\0';
}

struct str buf_str(const struct buf *b)
{
    return (struct str){b->p != NULL ? b->p : "", b->n};
}

enum err buf_check(const struct buf *b, const char *what, struct error *e)
{
    if (b->failure == ERR_LIMIT)
        return FAIL(e, ERR_LIMIT, "%s would be larger than %zu bytes", what, b->max);
    if (b->failure != OK)
        return FAIL(e, b->failure, "no memory for %s", what);
    return OK;
}

void buf_fini(struct buf *b)
{
    mem_free(b->p);
    *b = (struct buf){.max = b->max};
}
