/* Histograms; see stats.h. The limits are those of the peers' dashboards. */
#include "engine/stats.h"

#include <math.h>

static const double ttft[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
static const double token_time[] = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0};
static const double request_time[] = {0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
static const double tokens[] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
static const double choices[] = {1, 2, 5, 10, 20};
static const double rows[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

#define BUCKETS(label, text, bounds)                                                                                   \
    {                                                                                                                  \
        .name = (label), .help = (text), .upper = (bounds), .n = COUNT_OF(bounds)                                      \
    }

const struct stats_buckets stats_buckets[HIST_COUNT] = {
    [HIST_TTFT] = BUCKETS("time_to_first_token_seconds", "Arrival to first token.", ttft),
    [HIST_ITL] = BUCKETS("inter_token_latency_seconds", "Between two tokens of a choice.", token_time),
    [HIST_TPOT] = BUCKETS(
        "request_time_per_output_token_seconds", "Mean time per token behind the first, by request.", token_time),
    [HIST_E2E] = BUCKETS("e2e_request_latency_seconds", "Arrival to end.", request_time),
    [HIST_QUEUE] = BUCKETS("request_queue_time_seconds", "Arrival to admission.", request_time),
    [HIST_PREFILL] = BUCKETS("request_prefill_time_seconds", "Admission to first token.", request_time),
    [HIST_DECODE] = BUCKETS("request_decode_time_seconds", "First token to end.", request_time),
    [HIST_INFERENCE] = BUCKETS("request_inference_time_seconds", "Admission to end.", request_time),
    [HIST_PROMPT_TOKENS] = BUCKETS("request_prompt_tokens", "Prompt tokens of a finished request.", tokens),
    [HIST_OUTPUT_TOKENS] = BUCKETS("request_generation_tokens", "Output tokens of a finished request.", tokens),
    [HIST_MOST_TOKENS] =
        BUCKETS("request_max_num_generation_tokens", "Output tokens of a request's longest choice.", tokens),
    [HIST_COMPUTED_TOKENS] =
        BUCKETS("request_prefill_kv_computed_tokens", "Prompt tokens that the prefix cache did not have.", tokens),
    [HIST_MAX_TOKENS] = BUCKETS("request_params_max_tokens", "max_tokens as asked for.", tokens),
    [HIST_N] = BUCKETS("request_params_n", "Choices as asked for.", choices),
    [HIST_ITERATION_TOKENS] = BUCKETS("iteration_tokens_total", "Rows of a step.", rows),
};

_Static_assert(COUNT_OF(ttft) <= STATS_BUCKETS_MAX && COUNT_OF(request_time) <= STATS_BUCKETS_MAX, "buckets fit");
_Static_assert(COUNT_OF(token_time) <= STATS_BUCKETS_MAX && COUNT_OF(tokens) <= STATS_BUCKETS_MAX, "buckets fit");

void histogram_add(struct histogram *h, enum stats_histogram which, double value)
{
    const struct stats_buckets *b = &stats_buckets[which];
    uint32_t i = 0;
    while (i < b->n && value > b->upper[i])
        i++;
    h->counts[i == b->n ? STATS_BUCKETS_MAX : i]++;
    h->sum += value;
    h->n++;
}

double histogram_quantile(const struct histogram *h, enum stats_histogram which, double q)
{
    const struct stats_buckets *b = &stats_buckets[which];
    if (h->n == 0)
        return NAN;
    const double aim = q * (double)h->n;
    double below = 0.0;
    for (uint32_t i = 0; i < b->n; i++) {
        const double here = (double)h->counts[i], low = i == 0 ? 0.0 : b->upper[i - 1];
        if (here > 0.0 && below + here >= aim)
            return low + (b->upper[i] - low) * (aim - below) / here;
        below += here;
    }
    return b->upper[b->n - 1]; /* beyond the last bound nothing is known */
}
