/* The engine's numbers, as plain data published through a seqlock (engine_stats). Counters only grow; gauges are of the
 * last turn; histograms have fixed buckets, the peers' (vLLM's names and limits), so that dashboards made for them
 * work.
 *
 * Threads: plain data. */
#ifndef ENGINE_STATS_H
#define ENGINE_STATS_H

#include "kv/kv.h"
#include "sched/sched.h"

#define STATS_BUCKETS_MAX 32
#define STATS_TENANTS_MAX 64 /* tenants with numbers of their own; later ones count as the last */

enum stats_histogram {
    HIST_TTFT,          /* seconds from arrival to the first token */
    HIST_ITL,           /* between two tokens of a choice */
    HIST_TPOT,          /* mean of a request: (end - first token) / (tokens - 1) */
    HIST_E2E,           /* arrival to end */
    HIST_QUEUE,         /* arrival to admission */
    HIST_PREFILL,       /* admission to first token */
    HIST_DECODE,        /* first token to end */
    HIST_INFERENCE,     /* admission to end */
    HIST_PROMPT_TOKENS, /* of a finished request */
    HIST_OUTPUT_TOKENS,
    HIST_MOST_TOKENS,     /* the longest choice of a request */
    HIST_COMPUTED_TOKENS, /* of a prompt, beside what the prefix cache had */
    HIST_MAX_TOKENS,
    HIST_N,
    HIST_ITERATION_TOKENS, /* rows of a step */
    HIST_COUNT
};

struct stats_buckets {
    const char *name; /* "time_to_first_token_seconds" */
    const char *help;
    const double *upper; /* n bounds, ascending; +Inf is implied */
    uint32_t n;
};
extern const struct stats_buckets stats_buckets[HIST_COUNT];

struct histogram {
    uint64_t counts[STATS_BUCKETS_MAX + 1]; /* not cumulative; the last is +Inf */
    double sum;
    uint64_t n;
};
void histogram_add(struct histogram *h, enum stats_histogram which, double value);
/* The value below which a share q of the samples lie, by linear interpolation inside a bucket; NAN when empty. */
double histogram_quantile(const struct histogram *h, enum stats_histogram which, double q);

struct engine_stats {
    uint64_t now_ns, turns, steps;
    struct sched_stats sched;
    struct kv_stats kv;
    struct step_cost cost;
    uint64_t requests, ended[END_COUNT]; /* choices by reason */
    uint64_t prompt_tokens, prompt_tokens_cached, output_tokens;
    uint64_t busy_ns, idle_ns; /* of the loop */
    uint64_t propose_ns, plan_ns, commit_ns, forward_ns, sample_ns;
    uint64_t mask_wait_ns; /* of sample_ns: asleep, while other threads made masks */
    struct histogram hist[HIST_COUNT];
    struct {
        uint64_t prompt_tokens, output_tokens, requests;
        uint32_t running, waiting;
        double counter; /* vtc */
    } tenants[STATS_TENANTS_MAX];
    uint32_t n_tenants;
};

#endif
