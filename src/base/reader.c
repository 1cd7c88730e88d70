/* Bounded cursor; see reader.h. Host order is little endian, asserted below. */
#include "base/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are read in place");

void reader_init(struct reader *r, const void *bytes, uint64_t n, struct error *e)
{
    *r = (struct reader){.p = bytes != NULL ? bytes : "", .n = n, .error = e};
}

enum err reader_fail_at(struct reader *r, enum err code, const char *file, int line, const char *fmt, ...)
{
    if (r->failure != OK)
        return r->failure;
    char text[ERROR_TEXT_MAX - 32];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    r->failure = code;
    return error_set_at(r->error, code, file, line, "byte %llu: %s", (unsigned long long)r->at, text);
}

bool reader_has(const struct reader *r, uint64_t n)
{
    return r->failure == OK && n <= r->n - r->at;
}

struct str read_bytes(struct reader *r, uint64_t n)
{
    if (!reader_has(r, n)) {
        READER_FAIL(r, ERR_FORMAT, "the file ends here, %llu bytes short", (unsigned long long)(n - (r->n - r->at)));
        return (struct str){"", 0};
    }
    const struct str s = {(const char *)r->p + r->at, (size_t)n};
    r->at += n;
    return s;
}

void reader_skip(struct reader *r, uint64_t n)
{
    read_bytes(r, n);
}

static void read_raw(struct reader *r, void *out, size_t n)
{
    const struct str s = read_bytes(r, n);
    memset(out, 0, n);
    if (s.n == n)
        memcpy(out, s.p, n);
}

uint8_t read_u8(struct reader *r)
{
    uint8_t v;
    read_raw(r, &v, sizeof v);
    return v;
}

uint16_t read_u16(struct reader *r)
{
    uint16_t v;
    read_raw(r, &v, sizeof v);
    return v;
}

uint32_t read_u32(struct reader *r)
{
    uint32_t v;
    read_raw(r, &v, sizeof v);
    return v;
}

uint64_t read_u64(struct reader *r)
{
    uint64_t v;
    read_raw(r, &v, sizeof v);
    return v;
}

float read_f32(struct reader *r)
{
    float v;
    read_raw(r, &v, sizeof v);
    return v;
}

double read_f64(struct reader *r)
{
    double v;
    read_raw(r, &v, sizeof v);
    return v;
}
