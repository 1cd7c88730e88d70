/* The log; see log.h.
 *
 * A line is built left to right in a fixed buffer. TAIL_BYTES at its end are kept back for the cut mark, the closing
 * brace and the newline, so a line is well formed however little fitted: a value is added whole characters at a time
 * and its closing quote has room by construction; a field that cannot even start is left out. After the first cut
 * nothing more is added. */
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAIL_BYTES   16 /* ,"cut":true}\n  is 13 */
#define ESCAPE_BYTES 8  /* the longest form of one character: \u00e9 is 6, a UTF-8 character 4 */

static const char *const level_names[LOG_LEVEL_COUNT] = {
    [LOG_ERROR] = "error", [LOG_WARN] = "warn", [LOG_INFO] = "info", [LOG_DEBUG] = "debug"};

struct line {
    enum log_format format;
    uint32_t n;
    bool is_cut;
    char p[LOG_LINE_BYTES_MAX];
};

/* What travels through a ring. */
struct item {
    uint32_t n;
    char p[LOG_LINE_BYTES_MAX];
};

static bool line_has(const struct line *l, size_t bytes)
{
    return l->n + bytes + TAIL_BYTES <= sizeof l->p;
}

static void add(struct line *l, const char *p, size_t n)
{
    assert(l->n + n <= sizeof l->p);
    memcpy(l->p + l->n, p, n);
    l->n += (uint32_t)n;
}

/* One character of a value, escaped; returns the bytes consumed. Control characters (with DEL and U+0080..9F, which
 * terminals obey) and bytes that are not UTF-8 never pass as they are. */
static size_t escape(struct str s, enum log_format format, char out[ESCAPE_BYTES], size_t *n_out)
{
    const unsigned char c = (unsigned char)s.p[0];
    const size_t len = utf8_len(s);
    const bool is_c1 = len == 2 && c == 0xc2 && (unsigned char)s.p[1] < 0xa0;
    int n;
    if (len == 0)
        n = format == LOG_JSON ? snprintf(out, ESCAPE_BYTES, "\\ufffd") : snprintf(out, ESCAPE_BYTES, "\\x%02x", c);
    else if (c == '"' || c == '\\')
        n = snprintf(out, ESCAPE_BYTES, "\\%c", c);
    else if (c == '\n')
        n = snprintf(out, ESCAPE_BYTES, "\\n");
    else if (c < 0x20 || c == 0x7f || is_c1)
        n = snprintf(out, ESCAPE_BYTES, "\\u%04x", is_c1 ? (unsigned char)s.p[1] : c);
    else {
        memcpy(out, s.p, len);
        n = (int)len;
    }
    *n_out = (size_t)n;
    return len == 0 ? 1 : len;
}

static bool is_bare(struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           (c != '\0' && strchr("-_./:@+,", c) != NULL);
        if (!plain)
            return false;
    }
    return s.n > 0;
}

static void add_str(struct line *l, struct str s)
{
    const bool bare = l->format == LOG_TEXT && s.n <= LOG_LINE_BYTES_MAX && line_has(l, s.n) && is_bare(s);
    if (bare) {
        add(l, s.p, s.n);
        return;
    }
    add(l, "\"", 1); /* the field's start made room for two quotes */
    for (size_t i = 0; i < s.n;) {
        char one[ESCAPE_BYTES];
        size_t n;
        const size_t used = escape((struct str){s.p + i, s.n - i}, l->format, one, &n);
        if (!line_has(l, n + 1)) { /* + 1: the closing quote */
            l->is_cut = true;
            break;
        }
        add(l, one, n);
        i += used;
    }
    add(l, "\"", 1);
}

static bool is_key(const char *key)
{
    const char *p = key;
    while ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_' || *p == '.')
        p++;
    return p > key && *p == '\0';
}

/* The separator and the key with room for at least an empty value; false when the line is full. */
static bool start_field(struct line *l, const char *key, size_t value_bytes)
{
    assert(is_key(key));
    const size_t n = strlen(key);
    if (l->is_cut || !line_has(l, n + 4 + value_bytes)) {
        l->is_cut = true;
        return false;
    }
    if (l->format == LOG_JSON) {
        add(l, l->n == 0 ? "{\"" : ",\"", 2);
        add(l, key, n);
        add(l, "\":", 2);
    } else {
        if (l->n > 0)
            add(l, " ", 1);
        add(l, key, n);
        add(l, "=", 1);
    }
    return true;
}

static void add_field_str(struct line *l, const char *key, struct str s)
{
    if (start_field(l, key, 2))
        add_str(l, s);
}

static void add_field(struct line *l, const struct log_field *f)
{
    char text[32];
    switch (f->kind) {
    case LOG_FIELD_STR: add_field_str(l, f->key, f->v.s); return;
    case LOG_FIELD_U64: snprintf(text, sizeof text, "%llu", (unsigned long long)f->v.u); break;
    case LOG_FIELD_I64: snprintf(text, sizeof text, "%lld", (long long)f->v.i); break;
    case LOG_FIELD_F64:
        if (l->format == LOG_JSON && !isfinite(f->v.f))
            snprintf(text, sizeof text, "null");
        else
            snprintf(text, sizeof text, "%.6g", f->v.f);
        break;
    case LOG_FIELD_BOOL: snprintf(text, sizeof text, "%s", f->v.b ? "true" : "false"); break;
    }
    const size_t n = strlen(text);
    if (start_field(l, f->key, n))
        add(l, text, n);
}

/* Days since 1970-01-01 to a date of the Gregorian calendar. gmtime_r would do, but it takes a lock. Years start in
 * March here, so that the leap day is the last; an era is the 400 years (146097 days) after which the calendar repeats.
 */
static void date_of_days(int64_t days, int64_t *year, unsigned *month, unsigned *day)
{
    days += 719468; /* from 0000-03-01 */
    const int64_t era = (days >= 0 ? days : days - 146096) / 146097;
    const unsigned in_era = (unsigned)(days - era * 146097);
    const unsigned y = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    const unsigned in_year = in_era - (365 * y + y / 4 - y / 100);
    const unsigned m = (5 * in_year + 2) / 153; /* March = 0 */
    *day = in_year - (153 * m + 2) / 5 + 1;
    *month = m < 10 ? m + 3 : m - 9;
    *year = (int64_t)y + era * 400 + (*month <= 2);
}

static void add_time(struct line *l, int64_t wall_ns)
{
    const int64_t s_per_day = 86400, ns = (int64_t)NS_PER_S;
    int64_t s = wall_ns / ns, rest = wall_ns % ns;
    if (rest < 0) {
        rest += ns;
        s -= 1;
    }
    int64_t days = s / s_per_day, in_day = s % s_per_day, year;
    if (in_day < 0) {
        in_day += s_per_day;
        days -= 1;
    }
    unsigned month, day;
    date_of_days(days, &year, &month, &day);
    char text[48];
    snprintf(text, sizeof text, "%04lld-%02u-%02uT%02lld:%02lld:%02lld.%06lldZ", (long long)year, month, day,
        (long long)(in_day / 3600), (long long)(in_day / 60 % 60), (long long)(in_day % 60), (long long)(rest / 1000));
    add_field_str(l, "ts", str_of(text));
}

static void make_line(struct line *l, const struct log *log, enum log_level level, const char *category,
    const char *event, const struct log_field *fields, size_t n_fields)
{
    l->format = log->format;
    l->n = 0;
    l->is_cut = false;
    add_time(l, clock_wall(log->clock));
    add_field_str(l, "level", str_of(level_names[level]));
    add_field_str(l, "cat", str_of(category));
    add_field_str(l, "event", str_of(event));
    for (size_t i = 0; i < n_fields; i++)
        add_field(l, &fields[i]);
    const bool json = l->format == LOG_JSON;
    if (l->is_cut)
        add(l, json ? ",\"cut\":true" : " cut=1", json ? 11 : 6);
    if (json)
        add(l, "}", 1);
    add(l, "\n", 1);
}

/* The whole line, or it counts as dropped. A descriptor shared with others may be non-blocking: wait for it a little,
 * then give the line up rather than the thread. */
static void write_line(struct log *l, const char *p, size_t n)
{
    pthread_mutex_lock(&l->lock);
    size_t done = 0;
    bool waited = false;
    while (done < n) {
        const ssize_t k = write(l->fd, p + done, n - done);
        if (k > 0)
            done += (size_t)k;
        else if (k < 0 && errno == EAGAIN && !waited) {
            struct pollfd f = {.fd = l->fd, .events = POLLOUT};
            poll(&f, 1, 100);
            waited = true;
        } else if (k == 0 || errno != EINTR) {
            atomic_fetch_add(&l->n_dropped, 1);
            break;
        }
    }
    pthread_mutex_unlock(&l->lock);
}

bool log_has(const struct log *l, enum log_level level, const char *category)
{
    for (uint32_t i = 0; i < l->levels.n_overrides; i++)
        if (strcmp(l->levels.overrides[i].category, category) == 0)
            return level <= l->levels.overrides[i].level;
    return (int)level <= atomic_load_explicit(&l->base, memory_order_relaxed);
}

void log_set_level(struct log *l, enum log_level level)
{
    atomic_store_explicit(&l->base, (int)level, memory_order_relaxed);
}

void log_write(struct log *l, enum log_level level, const char *category, const char *event,
    const struct log_field *fields, size_t n_fields)
{
    struct line line;
    make_line(&line, l, level, category, event, fields, n_fields);
    if (l->to == NULL) {
        write_line(l, line.p, line.n);
        return;
    }
    struct item item;
    item.n = line.n;
    memcpy(item.p, line.p, line.n);
    if (ring_put(&l->ring, &item) != OK)
        atomic_fetch_add(&l->n_dropped, 1);
}

uint64_t log_drain(struct log *l)
{
    assert(l->to != NULL);
    struct item item;
    uint64_t n = 0;
    while (ring_take(&l->ring, &item) == OK) {
        write_line(l->to, item.p, item.n);
        n++;
    }
    const uint64_t dropped = atomic_load(&l->n_dropped);
    if (dropped != l->n_reported) {
        LOG(l->to, LOG_WARN, "log", "lines dropped", log_u64("n", dropped - l->n_reported), log_u64("total", dropped));
        l->n_reported = dropped;
    }
    return n;
}

uint64_t log_dropped(const struct log *l)
{
    return atomic_load(&l->n_dropped);
}

static bool level_of(struct str name, enum log_level *out)
{
    for (size_t i = 0; i < LOG_LEVEL_COUNT; i++)
        if (str_is(name, level_names[i])) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

static enum err parse_part(struct log_levels *l, struct str part, bool first, struct error *e)
{
    char shown[64];
    enum log_level level;
    const char *eq = part.n > 0 ? memchr(part.p, '=', part.n) : NULL;
    const size_t n_name = eq != NULL ? (size_t)(eq - part.p) : 0;
    const size_t skip = eq != NULL ? n_name + 1 : 0;
    if (!level_of((struct str){part.p + skip, part.n - skip}, &level) || (eq == NULL) != first)
        return FAIL(e, ERR_INVALID, "log level '%s' is not %serror, warn, info or debug",
            str_show(part, shown, sizeof shown), first ? "" : "category=");
    if (first) {
        l->base = level;
        return OK;
    }
    if (n_name == 0 || n_name >= LOG_CATEGORY_BYTES)
        return FAIL(e, ERR_INVALID, "log category in '%s' must have 1 to %d bytes", str_show(part, shown, sizeof shown),
            LOG_CATEGORY_BYTES - 1);
    if (l->n_overrides == LOG_CATEGORIES_MAX)
        return FAIL(e, ERR_LIMIT, "more than %d log categories", LOG_CATEGORIES_MAX);
    memcpy(l->overrides[l->n_overrides].category, part.p, n_name);
    l->overrides[l->n_overrides].category[n_name] = '\0';
    l->overrides[l->n_overrides].level = level;
    l->n_overrides++;
    return OK;
}

enum err log_levels_parse(struct log_levels *l, struct str spec, struct error *e)
{
    struct log_levels made = {.base = LOG_INFO};
    for (size_t start = 0, i = 0; i <= spec.n; i++) {
        if (i < spec.n && spec.p[i] != ',')
            continue;
        TRY(parse_part(&made, (struct str){spec.n > 0 ? spec.p + start : "", i - start}, start == 0, e));
        start = i + 1;
    }
    *l = made;
    return OK;
}

enum err log_init(struct log *l, int fd, enum log_format format, const struct log_levels *levels,
    const struct clock *clock, struct error *e)
{
    memset(l, 0, sizeof *l);
    l->format = format;
    l->levels = *levels;
    atomic_init(&l->base, (int)levels->base);
    l->clock = clock;
    l->fd = fd;
    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return FAIL(e, ERR_NOMEM, "no memory for the log's lock");
    return OK;
}

enum err log_init_ring(struct log *l, struct log *to, uint32_t n_lines, struct wake *wake, struct error *e)
{
    assert(to->to == NULL);
    memset(l, 0, sizeof *l);
    l->format = to->format;
    l->levels = to->levels;
    atomic_init(&l->base, (int)to->levels.base);
    l->clock = to->clock;
    l->fd = -1;
    TRY(ring_init(&l->ring, RING_MPSC, n_lines, sizeof(struct item), wake, e));
    l->to = to;
    return OK;
}

void log_fini(struct log *l)
{
    if (l->to != NULL) {
        log_drain(l);
        ring_fini(&l->ring);
    } else if (l->clock != NULL)
        pthread_mutex_destroy(&l->lock);
    memset(l, 0, sizeof *l);
}
