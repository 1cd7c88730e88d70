/* What the user sees while bytes arrive: one bar that redraws itself on a terminal, a line every few seconds elsewhere
 * (logs, CI). Written to the stream the caller gave; a library that nobody watches stays silent. */
#include "hub/hub_int.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#define TTY_EVERY_NS  100000000ull  /* ten redraws a second read as motion */
#define LINE_EVERY_NS 5000000000ull /* a log wants signs of life, not a film */
#define BAR_CELLS     24

uint64_t progress_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *progress_bytes(uint64_t bytes, char *out, size_t cap)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
    if (bytes < 1000) {
        snprintf(out, cap, "%u B", (unsigned)bytes);
        return out;
    }
    double v = (double)bytes / 1000;
    size_t u = 0;
    while (v >= 999.95 && u + 1 < COUNT_OF(units)) {
        v /= 1000;
        u++;
    }
    snprintf(out, cap, "%.1f %s", v, units[u]);
    return out;
}

void hub_note(const struct hub *h, const char *fmt, ...)
{
    if (h->o.progress == NULL)
        return;
    va_list args;
    va_start(args, fmt);
    vfprintf(h->o.progress, fmt, args);
    va_end(args);
    fputc('\n', h->o.progress);
    fflush(h->o.progress);
}

void progress_begin(struct progress *p, const struct hub *h, const char *what, uint64_t done, uint64_t total)
{
    const uint64_t now = progress_now_ns();
    *p = (struct progress){.out = h->o.progress,
        .is_tty = h->is_tty,
        .total = total,
        .done = done,
        .begun_at = done,
        .started_ns = now,
        .shown_ns = now,
        .rate_done = done,
        .rate_ns = now};
    str_show(str_of(what), p->what, sizeof p->what);
}

static void show(struct progress *p)
{
    char done[32], total[32], rate[32];
    progress_bytes(p->done, done, sizeof done);
    progress_bytes((uint64_t)p->rate_bps, rate, sizeof rate);
    p->has_shown = true;
    const char *head = p->is_tty ? "\r\033[K" : "", *tail = p->is_tty ? "" : "\n";
    if (p->total == SIZE_UNKNOWN || p->total == 0) {
        fprintf(p->out, "%s%s  %s  %s/s%s", head, p->what, done, rate, tail);
    } else {
        const double share = MIN((double)p->done / (double)p->total, 1.0);
        const double left_s = p->rate_bps > 1 ? (double)(p->total - MIN(p->done, p->total)) / p->rate_bps : 0;
        const unsigned eta_s = (unsigned)MIN(left_s, 359999.0);
        char bar[BAR_CELLS + 3] = "";
        if (p->is_tty) {
            const size_t full = (size_t)(share * BAR_CELLS);
            bar[0] = '[';
            memset(bar + 1, '=', full);
            memset(bar + 1 + full, ' ', BAR_CELLS - full);
            bar[BAR_CELLS + 1] = ']';
        }
        fprintf(p->out, "%s%s  %3.0f%% %s %s/%s  %s/s  %u:%02u left%s", head, p->what, share * 100, bar, done,
            progress_bytes(p->total, total, sizeof total), rate, eta_s / 60, eta_s % 60, tail);
    }
    fflush(p->out);
}

void progress_update(struct progress *p, uint64_t done)
{
    const uint64_t now = progress_now_ns();
    if (done < p->done) { /* started over */
        p->rate_done = done;
        p->rate_ns = now;
        p->begun_at = done;
    }
    p->done = done;
    if (now - p->rate_ns >= 500000000ull) {
        const double bps = (double)(done - p->rate_done) * 1e9 / (double)(now - p->rate_ns);
        p->rate_bps = p->rate_bps > 0 ? 0.7 * p->rate_bps + 0.3 * bps : bps;
        p->rate_done = done;
        p->rate_ns = now;
    }
    if (p->out == NULL || now - p->shown_ns < (p->is_tty ? TTY_EVERY_NS : LINE_EVERY_NS))
        return;
    p->shown_ns = now;
    show(p);
}

void progress_end(struct progress *p, bool is_complete)
{
    if (p->out == NULL)
        return;
    if (is_complete) {
        const double seconds = (double)(progress_now_ns() - p->started_ns) / 1e9;
        char done[32], rate[32];
        progress_bytes(
            (uint64_t)((double)(p->done - MIN(p->begun_at, p->done)) / MAX(seconds, 0.001)), rate, sizeof rate);
        fprintf(p->out, "%s%s  %s in %.1f s (%s/s)\n", p->is_tty && p->has_shown ? "\r\033[K" : "", p->what,
            progress_bytes(p->done, done, sizeof done), seconds, rate);
    } else if (p->is_tty && p->has_shown)
        fputc('\n', p->out);
    fflush(p->out);
    p->has_shown = false;
}
