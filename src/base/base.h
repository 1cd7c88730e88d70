/* base: the ground every room stands on. No room below it; it knows nothing of models.
 *
 * One header per noun, each safe to include alone:
 *   base.h    errors, byte strings, small macros (this file)
 *   limits.h  every maximum in the program, with its reason
 *   mem.h     counted allocation, arena, fixed pool          fault.h  failing the Nth allocation or system call
 *   buf.h     growable bytes with a maximum                  reader.h bounded cursor over untrusted bytes
 *   file.h    mapping, whole-file reads, atomic writes, locks hash.h  XXH3 for speed, SHA-256 for identity
 *   json.h    the JSON door (jansson behind limits)          log.h    one line per event
 *   clock.h   monotonic and virtual time                     rng.h    counter-based random numbers
 *   ring.h    bounded queues between threads                 team.h   the worker threads
 *   aside.h   one errand on a thread of its own
 *
 * Errors. A function that can fail returns enum err (0 = OK) and takes a struct error * for the sentence the user
 * will read. The first error wins: setting an error that is already set changes nothing, so callers may clean up
 * through failing calls without losing the cause. A NULL struct error * is allowed and means "the code is enough".
 * Bugs are asserts, which stay on in release builds. Nothing outside cli/ ends the process.
 *
 * Threads: everything here is re-entrant; what a struct's threads may do is said at the struct. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every way an operation can fail. api/ maps each to one HTTP status, cli/ to one exit code. */
enum err {
    OK = 0,
    ERR_INVALID,     /* the caller's or user's input breaks a rule: bad option, bad field, bad syntax */
    ERR_FORMAT,      /* bytes of a file or message are not what they claim to be */
    ERR_UNSUPPORTED, /* well formed, but quern does not do it */
    ERR_LIMIT,       /* beyond a maximum of limits.h or of an option */
    ERR_NOT_FOUND,   /* no such file, model, key */
    ERR_EXISTS,      /* already there, held by another process */
    ERR_DENIED,      /* permission or credentials */
    ERR_IO,          /* the operating system said no */
    ERR_NETWORK,     /* the other side said no, or nothing */
    ERR_HASH,        /* content does not match its checksum */
    ERR_NOMEM,       /* an allocation failed */
    ERR_AGAIN,       /* not now: an ordinary answer, never logged */
    ERR_CANCELLED,   /* somebody asked to stop */
    ERR_INTERNAL,    /* a rule of our own was broken; a bug */
    ERR_COUNT
};

#define ERROR_TEXT_MAX 512

struct error {
    enum err code;
    char text[ERROR_TEXT_MAX]; /* one sentence without full stop; control characters and bad UTF-8 are escaped */
    const char *file;          /* where in our source it was raised */
    int line;
};

#define MUST_CHECK          __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, a) __attribute__((format(printf, fmt, a)))
#define UNUSED              __attribute__((unused))

/* Record an error and return its code; the first one recorded in *e stays. error_code shows compilers and analysers
 * that the value is not OK. */
#define FAIL(e, code, ...) error_code((code), error_set_at((e), (code), __FILE__, __LINE__, __VA_ARGS__))
static inline enum err error_code(enum err code, enum err recorded)
{
    return (void)recorded, code;
}

/* Leave with the code when a call fails. The only control-flow macro in the tree. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        const enum err try_ = (call);                                                                                  \
        if (try_ != OK)                                                                                                \
            return try_;                                                                                               \
    } while (0)

enum err error_set_at(struct error *e, enum err code, const char *file, int line, const char *fmt, ...)
    PRINTF_LIKE(5, 6);

/* Put "what: " in front of the text, to say in whose behalf the call was made. Keeps the code, and returns it; a NULL e
 * has none, so do not return what this returns when e may be NULL. */
enum err error_prefix(struct error *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* "not found", "out of memory"... and the stable name "NOT_FOUND" used in logs and JSON. */
const char *err_phrase(enum err code);
const char *err_name(enum err code);

/* A borrowed run of bytes; not NUL-terminated. */
struct str {
    const char *p;
    size_t n;
};

#define STR(literal) ((struct str){(literal), sizeof(literal) - 1})
struct str str_of(const char *cstr);
bool str_eq(struct str a, struct str b);
bool str_is(struct str a, const char *cstr);
bool str_has_prefix(struct str a, struct str prefix);
bool str_has_suffix(struct str a, struct str suffix);

/* Copy at most cap-1 bytes and terminate; control characters and invalid UTF-8 become \xNN, so untrusted text can stand
 * in a message. Stops before a character that does not fit whole. Returns out. */
const char *str_show(struct str s, char *out, size_t cap);

/* Bytes of the valid UTF-8 character that s starts with, 1 to 4; 0 when there is none (empty, truncated, overlong,
 * surrogate or above U+10FFFF). */
size_t utf8_len(struct str s);
bool utf8_is_valid(struct str s);

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b)       ((a) < (b) ? (a) : (b))
#define MAX(a, b)       ((a) > (b) ? (a) : (b))

/* Checked size arithmetic: false when the result does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#endif
