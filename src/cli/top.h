/* The numbers of a running server and how they are shown: what `quern top` is made of. Reading (top_stats.c) knows no
 * terminal and drawing (top_draw.c) no network, so that tests can hold both.
 *
 * Counters only grow, so a rate is the difference of two samples, and percentiles of the last minute are those of the
 * difference of two histograms. A server that was started anew begins a new history.
 *
 * Threads: the main thread. */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include "base/base.h"
#include "base/buf.h"
#include "base/limits.h"
#include "cli/out.h"

struct top_histogram {
    double upper[TOP_BUCKETS_MAX];
    uint64_t counts[TOP_BUCKETS_MAX + 1]; /* the last is +Inf */
    size_t n;                             /* bounds */
};

struct top_tenant {
    char name[64];
    uint64_t running, waiting, prompt_tokens, output_tokens;
};

struct top_reason {
    char name[32];
    uint64_t n;
};

/* One answer of GET /stats. */
struct top_sample {
    uint64_t at_ns; /* our clock */
    double uptime_s;
    char state[32], model[128], version[32], device[64];
    uint64_t running, waiting, swapped, paused, seqs_max, context;
    uint64_t blocks, block_tokens, free, cached, parked, held, shared; /* shared ones are held too */
    uint64_t exact, prefix, miss, tokens_asked, tokens_found;
    uint64_t prompt_tokens, prompt_cached, output_tokens;
    uint64_t requests, swaps, recomputes, steps, busy_ns;
    uint64_t guesses, guesses_held; /* verified; 0 of a server that has none */
    struct top_histogram ttft, itl;
    struct top_tenant tenants[TOP_TENANTS_MAX];
    size_t n_tenants;
    struct top_reason reasons[TOP_REASONS_MAX];
    size_t n_reasons;
};

/* Reads the JSON text. ERR_FORMAT when it is not the answer of a quern server, ERR_AGAIN when that server has no model
 * loaded yet; fields it does not know are skipped, and text is made safe for a terminal. */
enum err top_sample_read(struct top_sample *s, struct str json, uint64_t at_ns, struct error *e) MUST_CHECK;

/* The last minute, oldest first. */
struct top_history {
    struct top_sample *samples; /* TOP_SAMPLES_MAX */
    size_t n;
};

enum err top_history_init(struct top_history *h, struct error *e) MUST_CHECK;
void top_history_fini(struct top_history *h);
void top_history_add(struct top_history *h, const struct top_sample *s);

#define TOP_NONE (-1.0) /* a figure that is not there: nothing happened yet */

/* What the last sample says together with those before it. */
struct top_figures {
    const struct top_sample *now;
    double output_s, prompt_s, steps_s; /* per second */
    double busy, kv_used, hits;         /* shares, 0 to 1, or TOP_NONE */
    double ttft_s[3], itl_s[3];         /* p50, p90, p99, or TOP_NONE */
    bool is_ttft_recent, is_itl_recent; /* of the last minute; else since the server started */
    double window_s;                    /* between the first and the last sample */
};

/* h has at least one sample. */
void top_figures(const struct top_history *h, struct top_figures *out);

/* The value below which a share q of the samples lie; TOP_NONE when there are none. */
double top_quantile(const struct top_histogram *h, const uint64_t *counts, double q);

/* How it is shown. */
struct top_screen {
    uint32_t columns, rows; /* rows 0: as many as it takes */
    bool colour;
    const char *url;
    const char *trouble; /* why the figures are old, or NULL */
};

void top_draw(struct buf *out, const struct top_history *h, const struct top_screen *s); /* lines that end in \n */
void top_draw_heading(struct buf *out);                                                  /* of one line per second */
void top_draw_line(struct buf *out, const struct top_figures *f);
void top_draw_json(struct buf *out, const struct top_figures *f, const char *url); /* one line */

#endif
