/* The reference sampler; the definition is in sample.h and the steps below carry its numbers.
 *
 * Only as much is ordered as a cut needs: candidates live in one array of (logit, id), the best m of them are moved to
 * the front by selection and sorted, and m grows fourfold until the cut falls inside.
 *
 * And only as many are candidates as can matter. Of a vocabulary of 150,000 all but a few hundred are less likely than
 * the best by a factor of e^NEAR, and a cut falls among those few. So an order looks at the near ones first: they are
 * its beginning whatever else there is. Where that is not enough it is done again with everybody. Sums do run over the
 * whole vocabulary, in the order of ids, as the definition says; exponentials are taken many at a time. */
#include "sample/sample_int.h"
#include "sample/verify.h"

#include "base/mem.h"
#include "base/rng.h"
#include "tensor/fmath.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define NEAR 14.0f /* in logits after step 5 */
#define MANY 256   /* exponentials at a time */

struct sampler {
    uint32_t vocab;
    float *logits;           /* [vocab] after steps 1-4; scaled by step 5 */
    struct candidate *cands; /* [vocab] */
};

enum err sampler_new(uint32_t vocab, struct sampler **out, struct error *e)
{
    *out = NULL;
    struct sampler *s = mem_zalloc(sizeof *s);
    if (s != NULL) {
        s->vocab = vocab;
        s->logits = mem_array(vocab, sizeof *s->logits);
        s->cands = mem_array(vocab, sizeof *s->cands);
    }
    if (s == NULL || s->logits == NULL || s->cands == NULL) {
        sampler_free(s);
        return FAIL(e, ERR_NOMEM, "no memory to sample from %u tokens", vocab);
    }
    *out = s;
    return OK;
}

void sampler_free(struct sampler *s)
{
    if (s == NULL)
        return;
    mem_free(s->logits);
    mem_free(s->cands);
    mem_free(s);
}

/* The largest; -infinity when there is none. NaN never is. Sixteen at a time: a maximum does not depend on the order.
 */
static float largest(const float *x, uint32_t n)
{
    float lanes[16], top = -INFINITY;
    uint32_t i = 0;
    for (size_t k = 0; k < COUNT_OF(lanes); k++)
        lanes[k] = -INFINITY;
    for (; i + COUNT_OF(lanes) <= n; i += COUNT_OF(lanes))
        for (size_t k = 0; k < COUNT_OF(lanes); k++)
            lanes[k] = x[i + k] > lanes[k] ? x[i + k] : lanes[k];
    for (size_t k = 0; k < COUNT_OF(lanes); k++)
        top = lanes[k] > top ? lanes[k] : top;
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

double sample_log_sum_exp(const float *logits, uint32_t n)
{
    const float top = largest(logits, n);
    if (!isfinite(top))
        return (double)top;
    double sum = 0.0;
    float e[MANY];
    for (uint32_t at = 0; at < n; at += MANY) {
        const uint32_t m = MIN(n - at, (uint32_t)MANY);
        for (uint32_t i = 0; i < m; i++)
            e[i] = logits[at + i] == logits[at + i] ? logits[at + i] - top : -INFINITY;
        f_exp_many(e, e, m);
        for (uint32_t i = 0; i < m; i++)
            sum += (double)e[i];
    }
    return (double)top + d_log(sum);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------
 */

/* What is outside the mask is out. By words: many are all in or all out. Of the others, lane k of a group of eight
 * looks at bit k, without a branch. */
static void apply_word(float *l, uint64_t bits)
{
    static const uint32_t lane[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    for (uint32_t i = 0; i < 64; i += 8, bits >>= 8) {
        const uint32_t byte = (uint32_t)bits & 0xff;
        for (uint32_t k = 0; k < 8; k++)
            l[i + k] = (byte & lane[k]) != 0 ? l[i + k] : -INFINITY;
    }
}

static void apply_mask(float *l, const uint64_t *mask, uint32_t n)
{
    uint32_t at = 0;
    for (; at + 64 <= n; at += 64)
        if (mask[at / 64] != UINT64_MAX)
            apply_word(l + at, mask[at / 64]);
    for (; at < n; at++)
        l[at] = (mask[at / 64] >> at % 64 & 1) != 0 ? l[at] : -INFINITY;
}

/* Steps 1 to 4 into s->logits; what is out is -infinity. */
static void adjust(struct sampler *s, const struct sample_row *row)
{
    const struct sample_params *p = row->params;
    float *l = s->logits;
    for (uint32_t i = 0; i < s->vocab; i++)
        l[i] = row->logits[i] != row->logits[i] ? -INFINITY : row->logits[i];
    if (row->mask != NULL)
        apply_mask(l, row->mask, s->vocab);
    for (uint32_t i = 0; i < row->n_banned; i++)
        if (row->banned[i] < s->vocab)
            l[row->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < p->n_bias; i++)
        l[p->bias[i].id] += p->bias[i].bias;
    const struct sample_history *h = row->history;
    for (uint32_t i = 0; h != NULL && i < h->cap; i++) {
        if (h->ids[i] == 0 || h->ids[i] > s->vocab)
            continue;
        float *x = &l[h->ids[i] - 1];
        if (p->repetition_penalty != 1.0f)
            *x = *x > 0.0f ? *x / p->repetition_penalty : *x * p->repetition_penalty;
        if (h->counts[i] > 0)
            *x -= p->frequency_penalty * (float)h->counts[i] + p->presence_penalty;
    }
}

static enum err pick_greedy(const struct sampler *s, uint32_t *id, struct error *e)
{
    const float top = largest(s->logits, s->vocab);
    if (top == -INFINITY)
        return FAIL(e, ERR_INVALID, "no token is allowed here");
    uint32_t best = 0;
    while (s->logits[best] != top)
        best++;
    *id = best;
    return OK;
}

/* Step 5, in place: less the maximum and divided by the temperature. What is out stays -infinity; what becomes it by
 * the division counts as the lowest number there is. False when nothing is left. */
static bool scale(struct sampler *s, float temperature)
{
    float *l = s->logits;
    const float top = largest(l, s->vocab);
    if (top == -INFINITY)
        return false;
    for (uint32_t i = 0; i < s->vocab; i++) {
        const float v = (l[i] - top) / temperature, finite = v < -FLT_MAX ? -FLT_MAX : v;
        l[i] = l[i] == top ? 0.0f : l[i] == -INFINITY ? -INFINITY : finite;
    }
    return true;
}

/* The candidates by ascending id: those not out, or of them only the near ones. Returns their number. */
static size_t gather(struct sampler *s, bool near)
{
    const float low = near ? -NEAR : -FLT_MAX;
    size_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (s->logits[i] >= low)
            s->cands[n++] = (struct candidate){.key = s->logits[i], .id = i};
    return n;
}

/* The total of all candidates by ascending id: what is out adds nothing. */
static double total_of_all(const struct sampler *s)
{
    float e[MANY];
    double sum = 0.0;
    for (uint32_t at = 0; at < s->vocab; at += MANY) {
        const uint32_t m = MIN(s->vocab - at, (uint32_t)MANY);
        f_exp_many(s->logits + at, e, m);
        for (uint32_t i = 0; i < m; i++)
            sum += (double)e[i];
    }
    return sum;
}

static double total_of(const struct candidate *c, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)f_exp(c[i].key);
    return sum;
}

/* Step 7. The best *sorted of the n are in order; the ordered part grows until the cut falls inside. need: of the
 * total. 0 when the cut is not among these n. */
static size_t cut_top_p(struct candidate *c, size_t n, size_t *sorted, double need)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (i == *sorted) {
            const size_t next = MIN(MAX(*sorted * 4, (size_t)64), n);
            order_best(c + *sorted, n - *sorted, next - *sorted);
            *sorted = next;
        }
        sum += (double)f_exp(c[i].key);
        if (sum >= need)
            return i + 1;
    }
    return 0;
}

/* Step 8; keys are less the maximum, so the largest probability is exp(0). Keeps the order of what stays. */
static size_t cut_min_p(struct candidate *c, size_t n, float min_p)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (f_exp(c[i].key) >= min_p)
            c[kept++] = c[i];
    return kept;
}

/* Step 9: the expected surprise is the entropy; keep those nearest to it, nearest first. */
static size_t cut_typical(struct sampler *s, size_t n, float p)
{
    struct candidate *c = s->cands;
    const double total = total_of(c, n), log_total = d_log(total);
    double entropy = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double p_i = (double)f_exp(c[i].key) / total;
        entropy += p_i > 0.0 ? p_i * (log_total - (double)c[i].key) : 0.0; /* 0 * log 0 is 0, and the key may be -inf */
    }
    for (size_t i = 0; i < n; i++)
        c[i].key = (float)-fabs(log_total - (double)c[i].key - entropy);
    order_sort(c, n);
    double sum = 0.0;
    size_t kept = 0;
    while (kept < n && sum < (double)p) {
        c[kept].key = s->logits[c[kept].id];
        sum += (double)f_exp(c[kept++].key) / total;
    }
    return kept;
}

/* Steps 6 and 7. Returns how many candidates are left, those first. */
static size_t cut_by_order(struct sampler *s, const struct sample_params *p)
{
    struct candidate *c = s->cands;
    size_t n = gather(s, true), sorted = 0;
    if (p->top_k > 0) {
        if (n < p->top_k)
            n = gather(s, false);
        if (n > p->top_k) {
            order_best(c, n, p->top_k);
            n = sorted = p->top_k;
        }
        const size_t kept = p->top_p < 1.0f ? cut_top_p(c, n, &sorted, (double)p->top_p * total_of(c, n)) : n;
        return kept > 0 ? kept : n;
    }
    const double need = (double)p->top_p * total_of_all(s);
    size_t kept = cut_top_p(c, n, &sorted, need);
    if (kept == 0) {
        n = gather(s, false);
        sorted = 0;
        kept = cut_top_p(c, n, &sorted, need);
    }
    return kept > 0 ? kept : n;
}

static double draw_of(const struct sample_row *row)
{
    const struct sample_params *p = row->params;
    return rng_f64(
        (struct rng_key){.seed = p->seed, .index = row->output_index, .choice = p->choice, .purpose = RNG_SAMPLE});
}

/* Step 10 over the whole vocabulary, which no step has ordered. */
static uint32_t draw_from_all(const struct sampler *s, double u)
{
    float e[MANY];
    const double aim = u * total_of_all(s);
    double sum = 0.0;
    uint32_t last = 0;
    for (uint32_t at = 0; at < s->vocab; at += MANY) {
        const uint32_t m = MIN(s->vocab - at, (uint32_t)MANY);
        f_exp_many(s->logits + at, e, m);
        for (uint32_t i = 0; i < m; i++) {
            sum += (double)e[i];
            if (sum > aim)
                return at + i;
        }
    }
    for (uint32_t i = 0; i < s->vocab; i++)
        last = s->logits[i] > -INFINITY ? i : last;
    return last;
}

/* Steps 5 to 9. *n is how many candidates are left, in s->cands; 0: the whole vocabulary, as no step has cut it. */
static enum err cut(struct sampler *s, const struct sample_params *p, size_t *n, struct error *e)
{
    *n = 0;
    if (!scale(s, p->temperature))
        return FAIL(e, ERR_INVALID, "no token is allowed here");
    const bool ordered = p->top_k > 0 || p->top_p < 1.0f;
    if (!ordered && p->min_p <= 0.0f && p->typical_p >= 1.0f)
        return OK;
    *n = ordered ? cut_by_order(s, p) : gather(s, false);
    if (p->min_p > 0.0f)
        *n = cut_min_p(s->cands, *n, p->min_p);
    if (p->typical_p < 1.0f)
        *n = cut_typical(s, *n, p->typical_p);
    return OK;
}

/* Steps 5 to 10. */
static enum err pick_random(struct sampler *s, const struct sample_row *row, uint32_t *id, struct error *e)
{
    const struct candidate *c = s->cands;
    size_t n;
    TRY(cut(s, row->params, &n, e));
    if (n == 0) {
        *id = draw_from_all(s, draw_of(row));
        return OK;
    }
    const double aim = draw_of(row) * total_of(c, n);
    double sum = 0.0;
    size_t i = 0;
    for (; i + 1 < n; i++) {
        sum += (double)f_exp(c[i].key);
        if (sum > aim)
            break;
    }
    *id = c[i].id;
    return OK;
}

enum err sample_distribution(struct sampler *s, const struct sample_row *row, float *probs, struct error *e)
{
    size_t n;
    uint32_t best;
    memset(probs, 0, s->vocab * sizeof *probs);
    adjust(s, row);
    if (row->params->temperature == 0.0f) {
        TRY(pick_greedy(s, &best, e));
        probs[best] = 1.0f;
        return OK;
    }
    TRY(cut(s, row->params, &n, e));
    const double total = n > 0 ? total_of(s->cands, n) : total_of_all(s);
    for (size_t i = 0; i < n; i++)
        probs[s->cands[i].id] = (float)((double)f_exp(s->cands[i].key) / total);
    for (uint32_t i = 0; n == 0 && i < s->vocab; i++)
        probs[i] = (float)((double)f_exp(s->logits[i]) / total);
    return OK;
}

/* A row with +infinity has all its probability there. */
static float logprob_of(float logit, double lse)
{
    return isfinite(lse) ? (float)((double)logit - lse) : (double)logit == lse ? 0.0f : -INFINITY;
}

/* Candidates by the raw logits, down to `low`. */
static size_t gather_raw(struct sampler *s, const float *logits, float low)
{
    size_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (logits[i] >= low)
            s->cands[n++] = (struct candidate){.key = logits[i], .id = i};
    return n;
}

/* The log-probabilities clients see: of the raw logits. */
static void fill_logprobs(struct sampler *s, const struct sample_row *row, struct sample_result *out)
{
    const double lse = sample_log_sum_exp(row->logits, s->vocab);
    out->logprob = logprob_of(row->logits[out->id], lse);
    if (row->n_top == 0)
        return;
    size_t n = gather_raw(s, row->logits, largest(row->logits, s->vocab) - NEAR / 2);
    if (n < row->n_top)
        n = gather_raw(s, row->logits, -INFINITY);
    out->n_top = (uint32_t)MIN((size_t)row->n_top, n);
    order_best(s->cands, n, out->n_top);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i] = (struct token_logprob){.id = s->cands[i].id, .logprob = logprob_of(s->cands[i].key, lse)};
}

enum err sample_token(struct sampler *s, const struct sample_row *row, struct sample_result *out, struct error *e)
{
    adjust(s, row);
    if (row->params->temperature == 0.0f)
        TRY(pick_greedy(s, &out->id, e));
    else
        TRY(pick_random(s, row, &out->id, e));
    out->n_top = 0;
    if (row->want_logprob || row->n_top > 0)
        fill_logprobs(s, row, out);
    return OK;
}
