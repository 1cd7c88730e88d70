/* The log: one line per event, as key=value text or as JSON lines. An event has a level, a category (about one per
 * room), a name and typed fields; values are escaped, so untrusted text can never forge a line or a field.
 *
 *     LOG(log, LOG_INFO, "http", "request done", log_u64("status", 200), log_str("path", path));
 *     ts=2026-01-31T12:00:00.000123Z level=info cat=http event="request done" status=200 path=/v1/models
 *
 * A line is made on the stack, at most LOG_LINE_BYTES_MAX bytes; what does not fit is cut and marked cut=1. No memory
 * is allocated. A log either owns a descriptor and writes each line with one call, or feeds another log through a
 * bounded ring: the engine thread gets one of those, never blocks, and lines that find the ring full are counted and
 * reported.
 *
 * Threads: LOG from any thread, on both kinds; log_drain one thread at a time; init, fini and levels when nobody logs.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/base.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/ring.h"

#include <pthread.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_LEVEL_COUNT };
enum log_format { LOG_TEXT, LOG_JSON };

struct log_levels {
    enum log_level base; /* for categories not named below */
    struct {
        char category[LOG_CATEGORY_BYTES];
        enum log_level level;
    } overrides[LOG_CATEGORIES_MAX];
    uint32_t n_overrides;
};

struct log {
    struct ring ring; /* ring kind; first, because its lines are aligned */
    struct log *to;   /* ring kind: where log_drain writes; else NULL */
    int fd;           /* borrowed; -1 in the ring kind */
    enum log_format format;
    const struct clock *clock;  /* borrowed; a virtual one makes reproducible lines */
    pthread_mutex_t lock;       /* one line at a time on fd */
    _Atomic uint64_t n_dropped; /* lines lost: ring full, or the descriptor refused */
    uint64_t n_reported;        /* of n_dropped; log_drain only */
    struct log_levels levels;   /* of categories; the base level is the next */
    _Atomic int base;           /* enum log_level */
};

/* "info" or "warn,http=debug,sched=error": the base level first, then categories. */
enum err log_levels_parse(struct log_levels *l, struct str spec, struct error *e) MUST_CHECK;

/* Write lines to fd, which stays the caller's. */
enum err log_init(struct log *l, int fd, enum log_format format, const struct log_levels *levels,
    const struct clock *clock, struct error *e) MUST_CHECK;

/* Write lines into a ring of n_lines (a power of two); same format and levels as `to`. wake may be NULL; with it,
 * whoever drains can sleep. */
enum err log_init_ring(struct log *l, struct log *to, uint32_t n_lines, struct wake *wake, struct error *e) MUST_CHECK;

/* The level of categories without one of their own, from now on; from any thread. */
void log_set_level(struct log *l, enum log_level level);

/* Move the lines of a ring log to its target, and report newly dropped ones there. Returns the number of lines moved.
 */
uint64_t log_drain(struct log *l);
uint64_t log_dropped(const struct log *l);
void log_fini(struct log *l); /* drains first */

struct log_field {
    const char *key; /* [a-z0-9_.], asserted */
    enum log_field_kind { LOG_FIELD_STR, LOG_FIELD_U64, LOG_FIELD_I64, LOG_FIELD_F64, LOG_FIELD_BOOL } kind;
    union {
        struct str s;
        uint64_t u;
        int64_t i;
        double f;
        bool b;
    } v;
};

static inline struct log_field log_str(const char *key, struct str v)
{
    return (struct log_field){key, LOG_FIELD_STR, {.s = v}};
}
static inline struct log_field log_cstr(const char *key, const char *v)
{
    return (struct log_field){key, LOG_FIELD_STR, {.s = str_of(v)}};
}
static inline struct log_field log_u64(const char *key, uint64_t v)
{
    return (struct log_field){key, LOG_FIELD_U64, {.u = v}};
}
static inline struct log_field log_i64(const char *key, int64_t v)
{
    return (struct log_field){key, LOG_FIELD_I64, {.i = v}};
}
static inline struct log_field log_f64(const char *key, double v) /* six digits; JSON null when not finite */
{
    return (struct log_field){key, LOG_FIELD_F64, {.f = v}};
}
static inline struct log_field log_bool(const char *key, bool v)
{
    return (struct log_field){key, LOG_FIELD_BOOL, {.b = v}};
}

/* Would a line of that level and category be written? Cheap; fields are not evaluated when not. */
bool log_has(const struct log *l, enum log_level level, const char *category);

void log_write(struct log *l, enum log_level level, const char *category, const char *event,
    const struct log_field *fields, size_t n_fields);

/* LOG(log, level, "category", "event", fields...); a NULL log writes nothing. */
#define LOG(l, level, category, event, ...)                                                                            \
    do {                                                                                                               \
        if ((l) != NULL && log_has((l), (level), (category))) {                                                        \
            const struct log_field fields_[] = {{.key = NULL}, __VA_ARGS__};                                           \
            log_write((l), (level), (category), (event), fields_ + 1, COUNT_OF(fields_) - 1);                          \
        }                                                                                                              \
    } while (0)

#endif
