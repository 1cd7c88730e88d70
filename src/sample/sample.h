/* sample: logits to token. Owns the definition of sampling, its order, and the reference that every backend's own
 * version is compared with. Pure: the same logits, parameters, history and key give the same token on any machine.
 *
 * The order, each step on what the one before left:
 *    1  mask           tokens outside the mask (grammar, allowed ids) and banned ids (end tokens under ignore_eos or
 *                      min_tokens) are out. NaN is out.
 *    2  logit bias     added
 *    3  repetition     for every id in the prompt or the output: logit / r when positive, logit * r when negative
 *    4  frequency      minus (f times its count in the output, plus p for presence) when it is in the output
 *    5  temperature    0 = the largest logit, ties to the lowest id; otherwise divided by it
 *    6  top-k          the k largest
 *    7  top-p          the fewest largest whose probability sums to at least p
 *    8  min-p          those with at least min_p times the largest probability
 *    9  typical-p      the fewest nearest to the expected surprise whose probability sums to at least p
 *   10  draw           u from rng (seed, choice, output index, RNG_SAMPLE); the first in order whose running sum is
 *                      above u times the total
 *
 * "Largest" is a total order: by logit after step 5, then by lower id. Probabilities are f_exp of f32 logits less the
 * maximum, summed in double; typical-p keeps order of nearness, nearest first, ties to the lower id. Candidates lie by
 * ascending id until a step orders them: top-k when it is below their number, top-p when it is below 1, typical-p when
 * it is below 1. Sums and the draw run over them as they lie.
 *
 * Log-probabilities are of the raw logits, before step 1, as clients of the peers expect.
 *
 * Threads: one thread per sampler; parameters and histories belong to a request. Nothing allocates after *_init. */
#ifndef SAMPLE_SAMPLE_H
#define SAMPLE_SAMPLE_H

#include "base/base.h"

struct logit_bias {
    uint32_t id;
    float bias; /* -100 .. 100 */
};

/* One request's parameters. sample_params_default gives plain sampling at temperature 1; sample_params_check refuses
 * what the table there refuses, naming the field. */
struct sample_params {
    float temperature;        /* 0 .. 100; 0 = greedy */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* 0 < p <= 1; 1 = off */
    float min_p;              /* 0 .. 1; 0 = off */
    float typical_p;          /* 0 < p <= 1; 1 = off */
    float repetition_penalty; /* 0 < r <= 100; 1 = off */
    float presence_penalty;   /* -2 .. 2 */
    float frequency_penalty;  /* -2 .. 2 */
    uint64_t seed;
    uint32_t choice; /* which of the n choices of a request */
    uint32_t n_bias;
    const struct logit_bias *bias; /* borrowed */
};

struct sample_params sample_params_default(void);
enum err sample_params_check(const struct sample_params *p, uint32_t vocab, struct error *e) MUST_CHECK;

/* Which ids a request has used: how often in its output, and whether in its prompt. Open addressing, sized once. */
struct sample_history {
    uint32_t *ids;    /* id + 1; 0 = free */
    uint32_t *counts; /* in the output */
    uint32_t cap, n;  /* cap: a power of two */
};

enum err sample_history_init(struct sample_history *h, uint32_t distinct_max, struct error *e) MUST_CHECK;
void sample_history_fini(struct sample_history *h);
void sample_history_clear(struct sample_history *h);
void sample_history_add(struct sample_history *h, uint32_t id, bool is_output);
uint32_t sample_history_count(const struct sample_history *h, uint32_t id); /* in the output */
/* Guesses as output for a while, 32 at most: put in, and taken out again before anything else is added. What comes back
 * says which of them were new, and is for sample_history_take. */
uint32_t sample_history_put(struct sample_history *h, const uint32_t *ids, uint32_t n);
void sample_history_take(struct sample_history *h, const uint32_t *ids, uint32_t n, uint32_t were_new);
bool sample_history_has(const struct sample_history *h, uint32_t id); /* in the prompt or the output */

struct token_logprob {
    uint32_t id;
    float logprob;
};

/* Working memory for one vocabulary; reused from row to row. */
struct sampler;
enum err sampler_new(uint32_t vocab, struct sampler **out, struct error *e) MUST_CHECK;
void sampler_free(struct sampler *s); /* NULL is fine */

struct sample_row {
    const float *logits; /* [vocab], not changed */
    const struct sample_params *params;
    const struct sample_history *history; /* NULL when no penalty is set */
    const uint64_t *mask;                 /* bit id % 64 of word id / 64; NULL = all allowed */
    const uint32_t *banned;
    uint32_t n_banned;
    uint64_t output_index; /* absolute index of the token being chosen in the output */
    uint32_t n_top;        /* top log-probabilities wanted */
    bool want_logprob;     /* of the chosen one; implied by n_top > 0 */
};

struct sample_result {
    uint32_t id;
    float logprob;             /* when wanted */
    uint32_t n_top;            /* may be less than asked for in a tiny vocabulary */
    struct token_logprob *top; /* caller's room for row->n_top; descending */
};

/* ERR_INVALID when nothing is allowed (an empty mask, or a row of NaN): the request ends with an error of its own. */
enum err sample_token(
    struct sampler *s, const struct sample_row *row, struct sample_result *out, struct error *e) MUST_CHECK;

/* log(sum(exp(logits))), for scoring. */
double sample_log_sum_exp(const float *logits, uint32_t n);

#endif
