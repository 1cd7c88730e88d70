/* The screen of `quern top`, its line per second and its JSON; see top.h.
 *
 * Every line is cut at the width of the screen, counting columns and not bytes: escape sequences and the bytes of a
 * block character behind the first take none. So a narrow window loses the ends of lines and nothing else. */
#include "cli/top.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BOLD   "\x1b[1m"
#define DIM    "\x1b[2m"
#define RED    "\x1b[31m"
#define GREEN  "\x1b[32m"
#define YELLOW "\x1b[33m"
#define CYAN   "\x1b[36m"
#define PURPLE "\x1b[35m"
#define PLAIN  "\x1b[0m"

#define BAR_COLUMNS_MIN 10
#define BAR_COLUMNS_MAX 60
#define LABEL_COLUMNS   10

struct canvas {
    struct buf *out;
    const struct top_screen *screen;
    uint32_t column, row;
};

/* --- letters --- */

static bool is_full(const struct canvas *c)
{
    return c->screen->rows > 0 && c->row >= c->screen->rows;
}

static void escape(struct canvas *c, const char *sequence)
{
    if (c->screen->colour && !is_full(c))
        buf_add(c->out, str_of(sequence));
}

static void put(struct canvas *c, const char *text)
{
    for (size_t n; *text != '\0' && !is_full(c); text += n) {
        n = utf8_len(str_of(text));
        n = n > 0 ? n : 1;
        if (c->column >= c->screen->columns)
            return;
        buf_add(c->out, (struct str){text, n});
        c->column++;
    }
}

static void PRINTF_LIKE(2, 3) putf(struct canvas *c, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    put(c, text);
}

static void end_line(struct canvas *c)
{
    if (is_full(c))
        return;
    buf_add_char(c->out, '\n');
    c->column = 0;
    c->row++;
}

static void label(struct canvas *c, const char *name)
{
    escape(c, DIM);
    putf(c, " %-*s", LABEL_COLUMNS, name);
    escape(c, PLAIN);
}

/* 7 columns, or a dash. */
static const char *show_seconds(double s, char out[16])
{
    if (s < 0)
        snprintf(out, 16, "%7s", "-");
    else if (s < 0.01)
        snprintf(out, 16, "%4.1f ms", s * 1e3);
    else if (s < 1)
        snprintf(out, 16, "%4.0f ms", s * 1e3);
    else
        snprintf(out, 16, "%5.1f s", s);
    return out;
}

static const char *show_percent(double share, char out[16])
{
    if (share < 0)
        snprintf(out, 16, "%4s", "-");
    else
        snprintf(out, 16, "%3.0f%%", share * 100);
    return out;
}

static const char *show_uptime(double s, char out[32])
{
    if (s < 120)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, 32, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(out, 32, "%.1f h", s / 3600);
    else
        snprintf(out, 32, "%.1f days", s / 86400);
    return out;
}

/* --- pictures --- */

/* The last values as blocks of eight heights, scaled to the largest. */
static void spark(struct canvas *c, const struct top_history *h, double (*value)(const struct top_history *, size_t))
{
    static const char *const heights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double max = 0;
    for (size_t i = 0; i < h->n; i++)
        max = MAX(max, value(h, i));
    escape(c, YELLOW);
    const size_t room = c->screen->columns > c->column + 1 ? c->screen->columns - c->column - 1 : 0;
    const size_t n = MIN(MIN(h->n, room), (size_t)60);
    for (size_t i = h->n - n; i < h->n; i++) {
        const double v = max > 0 ? value(h, i) / max : 0;
        put(c, heights[(size_t)(v * 7 + 0.5)]);
    }
    escape(c, PLAIN);
}

static double running_of(const struct top_history *h, size_t i)
{
    return (double)h->samples[i].running;
}

static double rate_of(const struct top_history *h, size_t i, uint64_t now, uint64_t before)
{
    if (i == 0 || h->samples[i].at_ns <= h->samples[i - 1].at_ns || now < before)
        return 0;
    return (double)(now - before) * 1e9 / (double)(h->samples[i].at_ns - h->samples[i - 1].at_ns);
}

static double output_of(const struct top_history *h, size_t i)
{
    return rate_of(h, i, h->samples[i].output_tokens, i > 0 ? h->samples[i - 1].output_tokens : 0);
}

static double prompt_of(const struct top_history *h, size_t i)
{
    return rate_of(h, i, h->samples[i].prompt_tokens, i > 0 ? h->samples[i - 1].prompt_tokens : 0);
}

static void kv_bar(struct canvas *c, const struct top_sample *s)
{
    const struct {
        uint64_t blocks;
        const char *mark, *colour;
    } parts[] = {{s->shared, "█", PURPLE}, {s->held - MIN(s->shared, s->held), "█", CYAN}, {s->parked, "▓", DIM},
        {s->cached, "▒", YELLOW}};
    const uint32_t room = c->screen->columns > LABEL_COLUMNS + 12 ? c->screen->columns - LABEL_COLUMNS - 12 : 0;
    const uint32_t width = MIN(MAX(room, (uint32_t)BAR_COLUMNS_MIN), (uint32_t)BAR_COLUMNS_MAX);
    uint64_t done = 0;
    uint32_t drawn = 0;
    for (size_t i = 0; i < COUNT_OF(parts) && s->blocks > 0; i++) {
        done += parts[i].blocks;
        const uint32_t to = (uint32_t)MIN((double)width, (double)done / (double)s->blocks * width + 0.5);
        escape(c, parts[i].colour);
        for (; drawn < to; drawn++)
            put(c, parts[i].mark);
        escape(c, PLAIN);
    }
    escape(c, DIM);
    for (; drawn < width; drawn++)
        put(c, "░");
    escape(c, PLAIN);
}

/* --- the screen --- */

static void draw_head(struct canvas *c, const struct top_sample *s)
{
    char up[32];
    const bool ready = strcmp(s->state, "ready") == 0;
    escape(c, BOLD);
    put(c, " quern top");
    escape(c, PLAIN);
    putf(c, "  %s  ", s->model);
    escape(c, ready ? GREEN : RED);
    put(c, s->state);
    escape(c, PLAIN);
    putf(c, "  %s  up %s  %s", s->device, show_uptime(s->uptime_s, up), c->screen->url);
    end_line(c);
    if (c->screen->trouble != NULL) {
        escape(c, RED);
        putf(c, " %s", c->screen->trouble);
        escape(c, PLAIN);
    }
    end_line(c);
}

static void draw_rates(struct canvas *c, const struct top_history *h, const struct top_figures *f)
{
    const struct top_sample *s = f->now;
    char text[64], percent[16];
    label(c, "Running");
    snprintf(text, sizeof text, "%llu of %llu, %llu waiting", (unsigned long long)s->running,
        (unsigned long long)s->seqs_max, (unsigned long long)s->waiting);
    putf(c, "%-26s", text);
    spark(c, h, running_of);
    end_line(c);
    label(c, "Output");
    putf(c, "%10.1f tokens/s       ", f->output_s);
    spark(c, h, output_of);
    end_line(c);
    label(c, "Prompt");
    putf(c, "%10.1f tokens/s       ", f->prompt_s);
    spark(c, h, prompt_of);
    end_line(c);
    label(c, "Engine");
    putf(c, "%s busy, %.0f steps/s", show_percent(f->busy, percent), f->steps_s);
    if (s->swapped + s->paused > 0)
        putf(c, ", %llu swapped, %llu paused", (unsigned long long)s->swapped, (unsigned long long)s->paused);
    end_line(c);
}

static void draw_times(struct canvas *c, const char *name, const double at[3], bool is_recent)
{
    char p50[16], p90[16], p99[16];
    label(c, name);
    putf(c, "p50 %s   p90 %s   p99 %s", show_seconds(at[0], p50), show_seconds(at[1], p90), show_seconds(at[2], p99));
    if (!is_recent && at[0] >= 0) {
        escape(c, DIM);
        put(c, "   since the start");
        escape(c, PLAIN);
    }
    end_line(c);
}

static void draw_cache(struct canvas *c, const struct top_figures *f)
{
    const struct top_sample *s = f->now;
    char percent[16];
    label(c, "KV");
    kv_bar(c, s);
    putf(c, " %s", show_percent(f->kv_used, percent));
    end_line(c);
    label(c, "");
    putf(c, "%llu held (%llu shared), %llu parked, %llu cached, %llu free of %llu blocks", (unsigned long long)s->held,
        (unsigned long long)s->shared, (unsigned long long)s->parked, (unsigned long long)s->cached,
        (unsigned long long)s->free, (unsigned long long)s->blocks);
    end_line(c);
    label(c, "Prefix");
    putf(c, "%s of prompt tokens found; %llu exact, %llu part, %llu none", show_percent(f->hits, percent),
        (unsigned long long)s->exact, (unsigned long long)s->prefix, (unsigned long long)s->miss);
    end_line(c);
}

static void draw_requests(struct canvas *c, const struct top_sample *s)
{
    const uint64_t preempted = s->swaps + s->recomputes;
    label(c, "Requests");
    putf(c, "%llu", (unsigned long long)s->requests);
    for (size_t i = 0; i < s->n_reasons; i++)
        putf(c, ", %llu %s", (unsigned long long)s->reasons[i].n, s->reasons[i].name);
    putf(c, ", %llu preempted", (unsigned long long)preempted);
    end_line(c);
    if (s->guesses == 0)
        return;
    label(c, "Guesses");
    putf(c, "%llu verified, %llu held (%.0f%%)", (unsigned long long)s->guesses, (unsigned long long)s->guesses_held,
        100.0 * (double)s->guesses_held / (double)s->guesses);
    end_line(c);
}

static void draw_tenants(struct canvas *c, const struct top_sample *s)
{
    uint64_t all = 0;
    char percent[16];
    for (size_t i = 0; i < s->n_tenants; i++)
        all += s->tenants[i].output_tokens;
    end_line(c);
    escape(c, DIM);
    putf(c, " %-20s %6s %8s %8s %12s %12s", "TENANT", "SHARE", "RUNNING", "WAITING", "PROMPT", "OUTPUT");
    escape(c, PLAIN);
    end_line(c);
    for (size_t i = 0; i < s->n_tenants; i++) {
        const struct top_tenant *t = &s->tenants[i];
        const double part = all > 0 ? (double)t->output_tokens / (double)all : TOP_NONE;
        putf(c, " %-20.20s %6s %8llu %8llu %12llu %12llu", t->name, show_percent(part, percent),
            (unsigned long long)t->running, (unsigned long long)t->waiting, (unsigned long long)t->prompt_tokens,
            (unsigned long long)t->output_tokens);
        end_line(c);
    }
}

void top_draw(struct buf *out, const struct top_history *h, const struct top_screen *screen)
{
    struct canvas c = {.out = out, .screen = screen};
    struct top_figures f;
    top_figures(h, &f);
    draw_head(&c, f.now);
    draw_rates(&c, h, &f);
    draw_times(&c, "TTFT", f.ttft_s, f.is_ttft_recent);
    draw_times(&c, "ITL", f.itl_s, f.is_itl_recent);
    draw_cache(&c, &f);
    draw_requests(&c, f.now);
    draw_tenants(&c, f.now);
}

/* --- lines --- */

void top_draw_heading(struct buf *out)
{
    buf_addf(out, "%7s %7s %9s %9s %5s %5s %5s %9s %9s %9s %9s\n", "running", "waiting", "output/s", "prompt/s", "busy",
        "kv", "hits", "ttft p50", "ttft p99", "itl p50", "itl p99");
}

void top_draw_line(struct buf *out, const struct top_figures *f)
{
    char busy[16], kv[16], hits[16], times[4][16];
    buf_addf(out, "%7llu %7llu %9.1f %9.1f %5s %5s %5s %9s %9s %9s %9s\n", (unsigned long long)f->now->running,
        (unsigned long long)f->now->waiting, f->output_s, f->prompt_s, show_percent(f->busy, busy),
        show_percent(f->kv_used, kv), show_percent(f->hits, hits), show_seconds(f->ttft_s[0], times[0]),
        show_seconds(f->ttft_s[2], times[1]), show_seconds(f->itl_s[0], times[2]), show_seconds(f->itl_s[2], times[3]));
}

/* A share or a time that is not there is null. */
static void add_figure(struct buf *out, const char *name, double v)
{
    if (v < 0)
        buf_addf(out, ",\"%s\":null", name);
    else
        buf_addf(out, ",\"%s\":%.6g", name, v);
}

static void add_times(struct buf *out, const char *name, const double at[3], bool is_recent)
{
    buf_addf(out, ",\"%s\":{\"last_minute\":%s", name, is_recent ? "true" : "false");
    add_figure(out, "p50", at[0]);
    add_figure(out, "p90", at[1]);
    add_figure(out, "p99", at[2]);
    buf_add_char(out, '}');
}

static void add_text(struct buf *out, const char *name, const char *text)
{
    buf_addf(out, ",\"%s\":", name);
    buf_add_json_str(out, str_of(text));
}

static void add_tenants(struct buf *out, const struct top_sample *s)
{
    buf_add(out, STR(",\"tenants\":["));
    for (size_t i = 0; i < s->n_tenants; i++) {
        const struct top_tenant *t = &s->tenants[i];
        buf_add(out, i > 0 ? STR(",{\"name\":") : STR("{\"name\":"));
        buf_add_json_str(out, str_of(t->name));
        buf_addf(out, ",\"running\":%llu,\"waiting\":%llu,\"prompt_tokens\":%llu,\"output_tokens\":%llu}",
            (unsigned long long)t->running, (unsigned long long)t->waiting, (unsigned long long)t->prompt_tokens,
            (unsigned long long)t->output_tokens);
    }
    buf_add_char(out, ']');
}

void top_draw_json(struct buf *out, const struct top_figures *f, const char *url)
{
    const struct top_sample *s = f->now;
    buf_add(out, STR("{\"url\":"));
    buf_add_json_str(out, str_of(url));
    add_text(out, "state", s->state);
    add_text(out, "model", s->model);
    add_figure(out, "uptime_s", s->uptime_s);
    buf_addf(out, ",\"running\":%llu,\"waiting\":%llu,\"max_num_seqs\":%llu", (unsigned long long)s->running,
        (unsigned long long)s->waiting, (unsigned long long)s->seqs_max);
    add_figure(out, "output_tok_s", f->output_s);
    add_figure(out, "prompt_tok_s", f->prompt_s);
    add_figure(out, "busy", f->busy);
    add_times(out, "ttft_s", f->ttft_s, f->is_ttft_recent);
    add_times(out, "itl_s", f->itl_s, f->is_itl_recent);
    buf_addf(out,
        ",\"kv\":{\"blocks\":%llu,\"free\":%llu,\"cached\":%llu,\"parked\":%llu,\"held\":%llu,\"shared\":%llu",
        (unsigned long long)s->blocks, (unsigned long long)s->free, (unsigned long long)s->cached,
        (unsigned long long)s->parked, (unsigned long long)s->held, (unsigned long long)s->shared);
    add_figure(out, "used", f->kv_used);
    buf_add_char(out, '}');
    add_figure(out, "prefix_hits", f->hits);
    buf_addf(out, ",\"requests\":%llu", (unsigned long long)s->requests);
    add_tenants(out, s);
    buf_add(out, STR("}\n"));
}
