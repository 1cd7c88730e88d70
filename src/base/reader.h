/* A bounded cursor over untrusted bytes. Reads are total: past the end, or after an error, they give zero and the
 * reader stays at its first error, which carries the byte offset. So a parser reads a whole record and asks once.
 *
 * Threads: one at a time. The bytes are borrowed. */
#ifndef BASE_READER_H
#define BASE_READER_H

#include "base/base.h"

struct reader {
    const unsigned char *p;
    uint64_t n, at;
    struct error *error; /* the first failure lands here, prefixed with nothing; may be NULL */
    enum err failure;
};

void reader_init(struct reader *r, const void *bytes, uint64_t n, struct error *e);
uint8_t read_u8(struct reader *r);
uint16_t read_u16(struct reader *r); /* little endian, as all model files */
uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
float read_f32(struct reader *r);
double read_f64(struct reader *r);
struct str read_bytes(struct reader *r, uint64_t n); /* borrowed from the input */
void reader_skip(struct reader *r, uint64_t n);
bool reader_has(const struct reader *r, uint64_t n); /* n more bytes are there and nothing failed */

/* Fail at the current offset: "byte 1234: <text>". Returns the first failure. */
#define READER_FAIL(r, code, ...) reader_fail_at((r), (code), __FILE__, __LINE__, __VA_ARGS__)
enum err reader_fail_at(struct reader *r, enum err code, const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(5, 6);

#endif
