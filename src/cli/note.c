/* Notes on standard error; see note.h. Nothing here allocates. */
#include "cli/note.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRESS_AFTER_NS (300 * NS_PER_MS) /* what is quicker needs no bar */
#define PROGRESS_EVERY_NS (50 * NS_PER_MS)

static void write_stderr(const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t k = write(STDERR_FILENO, text, n);
        if (k <= 0)
            return;
        text += k;
        n -= (size_t)k;
    }
}

static void write_note(const struct options *o, enum log_level level, const char *text)
{
    char line[ERROR_TEXT_MAX + 64];
    if (o->log_level < (int)level)
        return;
    if (o->log_format == LOG_JSON) {
        struct clock clock;
        struct log log;
        const struct log_levels levels = {.base = level};
        clock_init(&clock);
        if (log_init(&log, STDERR_FILENO, LOG_JSON, &levels, &clock, NULL) != OK)
            return;
        log_write(&log, level, "cli", text, NULL, 0);
        log_fini(&log);
        return;
    }
    const int n = snprintf(line, sizeof line, "%s%s\n", level == LOG_WARN ? "quern: " : "", text);
    write_stderr(line, MIN((size_t)MAX(n, 0), sizeof line - 1));
}

void note(const struct options *o, const char *fmt, ...)
{
    char text[ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    write_note(o, LOG_INFO, text);
}

void note_warning(const struct options *o, const char *fmt, ...)
{
    char text[ERROR_TEXT_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    write_note(o, LOG_WARN, text);
}

bool note_can_draw(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

bool note_can_colour(int fd)
{
    const char *no = getenv("NO_COLOR");
    return note_can_draw(fd) && (no == NULL || no[0] == '\0');
}

static uint64_t now_ns(void)
{
    struct clock clock;
    clock_init(&clock);
    return clock_now(&clock);
}

void note_progress_start(struct note_progress *p, const struct options *o, const char *what)
{
    *p = (struct note_progress){.o = o, .what = what, .start_ns = now_ns()};
}

void note_progress_step(void *ctx, uint64_t done, uint64_t total)
{
    struct note_progress *p = ctx;
    const uint64_t now = now_ns();
    if (p->o->log_level < LOG_INFO || p->o->log_format != LOG_TEXT || now - p->start_ns < PROGRESS_AFTER_NS ||
        now - p->last_ns < PROGRESS_EVERY_NS || !note_can_draw(STDERR_FILENO))
        return;
    char line[64], share[8] = "";
    if (total > 0)
        snprintf(share, sizeof share, " %3u%%", (unsigned)MIN(done * 100 / total, 100u));
    const int n = snprintf(line, sizeof line, "\r%s%s\x1b[K", p->what, share);
    write_stderr(line, (size_t)MAX(n, 0));
    p->last_ns = now;
    p->shown = true;
}

void note_progress_end(struct note_progress *p)
{
    if (p->shown)
        write_stderr("\r\x1b[K", 4);
    p->shown = false;
}
