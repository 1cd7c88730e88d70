/* The sampler against a naive one written here from the definition in sample.h: straight loops, qsort, no selection.
 * The same token must come out of thousands of random rows and parameters; and every rule of the order, broken in the
 * naive one, must show. */
#include "testing.h"

#include "base/mem.h"
#include "base/rng.h"
#include "sample/sample.h"
#include "tensor/fmath.h"

#include <math.h>
#include <stdlib.h>

#define VOCAB_MAX 700
#define NO_TOKEN  UINT32_MAX

enum mistake {
    RIGHT,
    TIES_HIGH,       /* ties to the higher id */
    TOP_P_FIRST,     /* top-p before top-k */
    TOP_P_SHORT,     /* top-p keeps less than p */
    MIN_P_LAST,      /* min-p after typical-p */
    MIN_P_STRICT,    /* more than min_p times the largest */
    COLD_LAST,       /* temperature after the cuts */
    BIAS_AFTER,      /* bias after the penalties */
    REPEAT_DIVIDES,  /* repetition divides negative logits too */
    COUNTS_PROMPT,   /* presence for the prompt's tokens too */
    NAN_STAYS,       /* NaN counts as 0 */
    BAN_FORGOTTEN,   /* banned ids may come */
    MASK_OFF_BY_ONE, /* the mask's bits shifted by one */
    OTHER_CHOICE,    /* the draw forgets the choice */
    TYPICAL_FAR,     /* typical-p keeps the farthest */
    MISTAKES
};

struct entry {
    float key;
    uint32_t id;
};

/* A request and what the naive sampler needs to know of it. */
struct request {
    uint32_t vocab;
    float logits[VOCAB_MAX];
    struct sample_params params;
    struct logit_bias bias[4];
    struct sample_history history;
    uint32_t prompt[12], output[12]; /* ids; the same in a plain form */
    uint64_t mask[VOCAB_MAX / 64 + 1];
    bool has_mask;
    uint32_t banned[3], n_banned;
};

static bool ties_high;

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return (x->id < y->id) != ties_high ? -1 : 1;
}

static double total(const struct entry *e, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)f_exp(e[i].key);
    return sum;
}

static void penalise(const struct request *r, enum mistake m, float *l)
{
    const struct sample_params *p = &r->params;
    for (uint32_t id = 0; id < r->vocab; id++) {
        uint32_t in_prompt = 0, in_output = 0;
        for (uint32_t i = 0; i < COUNT_OF(r->prompt); i++) {
            in_prompt += r->prompt[i] == id;
            in_output += r->output[i] == id;
        }
        if (in_prompt + in_output > 0)
            l[id] = l[id] > 0 || m == REPEAT_DIVIDES ? l[id] / p->repetition_penalty : l[id] * p->repetition_penalty;
        if (in_output > 0 || (m == COUNTS_PROMPT && in_prompt > 0))
            l[id] -= p->frequency_penalty * (float)in_output + p->presence_penalty;
    }
}

static void adjust(const struct request *r, enum mistake m, float *l)
{
    for (uint32_t id = 0; id < r->vocab; id++) {
        const uint32_t bit = m == MASK_OFF_BY_ONE ? (id + 1) % r->vocab : id;
        l[id] = isnan(r->logits[id]) ? (m == NAN_STAYS ? 0.0f : -INFINITY) : r->logits[id];
        if (r->has_mask && !(r->mask[bit / 64] >> (bit % 64) & 1))
            l[id] = -INFINITY;
        for (uint32_t i = 0; i < r->n_banned; i++)
            if (r->banned[i] == id && m != BAN_FORGOTTEN)
                l[id] = -INFINITY;
    }
    for (int pass = 0; pass < 2; pass++)
        if (pass == (m == BIAS_AFTER))
            for (uint32_t i = 0; i < r->params.n_bias; i++)
                l[r->bias[i].id] += r->bias[i].bias;
        else
            penalise(r, m, l);
}

static uint32_t keep_top_k(struct entry *e, uint32_t n, uint32_t k)
{
    if (k == 0 || k >= n)
        return n;
    qsort(e, n, sizeof *e, by_key);
    return k;
}

static uint32_t keep_top_p(struct entry *e, uint32_t n, float p, enum mistake m)
{
    if (p >= 1.0f)
        return n;
    const double need = (double)p * total(e, n);
    double sum = 0.0;
    qsort(e, n, sizeof *e, by_key);
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)f_exp(e[i].key);
        if (sum >= need)
            return m == TOP_P_SHORT && i > 0 ? i : i + 1;
    }
    return n;
}

static uint32_t keep_min_p(struct entry *e, uint32_t n, float p, enum mistake m)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n && p > 0; i++)
        if (m == MIN_P_STRICT ? f_exp(e[i].key) > p : f_exp(e[i].key) >= p)
            e[kept++] = e[i];
    return p > 0 ? kept : n;
}

static uint32_t keep_typical(struct entry *e, uint32_t n, float p, enum mistake m)
{
    if (p >= 1.0f)
        return n;
    struct entry near_[VOCAB_MAX], kept[VOCAB_MAX];
    const double all = total(e, n), log_all = d_log(all);
    double entropy = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        if (f_exp(e[i].key) > 0)
            entropy += (double)f_exp(e[i].key) / all * (log_all - (double)e[i].key);
    for (uint32_t i = 0; i < n; i++) {
        const float far = (float)fabs(log_all - (double)e[i].key - entropy);
        near_[i] = (struct entry){.key = m == TYPICAL_FAR ? far : -far, .id = e[i].id};
    }
    qsort(near_, n, sizeof *near_, by_key);
    uint32_t n_kept = 0;
    while (n_kept < n && sum < (double)p) {
        for (uint32_t i = 0; i < n; i++)
            if (e[i].id == near_[n_kept].id)
                kept[n_kept] = e[i];
        sum += (double)f_exp(kept[n_kept++].key) / all;
    }
    memcpy(e, kept, n_kept * sizeof *e);
    return n_kept;
}

static uint32_t naive(const struct request *r, uint64_t output_index, enum mistake m)
{
    const struct sample_params *p = &r->params;
    float l[VOCAB_MAX], top = -INFINITY;
    struct entry e[VOCAB_MAX];
    uint32_t n = 0;
    adjust(r, m, l);
    ties_high = m == TIES_HIGH;
    for (uint32_t i = 0; i < r->vocab; i++)
        if (l[i] > -INFINITY) {
            e[n++] = (struct entry){l[i], i};
            top = fmaxf(top, l[i]);
        }
    if (n == 0)
        return NO_TOKEN;
    if (p->temperature == 0.0f) {
        qsort(e, n, sizeof *e, by_key);
        return e[0].id;
    }
    const float cold = m == COLD_LAST ? 1.0f : p->temperature;
    for (uint32_t i = 0; i < n; i++)
        e[i].key = e[i].key == top ? 0.0f : (e[i].key - top) / cold;
    if (m == TOP_P_FIRST)
        n = keep_top_p(e, n, p->top_p, m);
    n = keep_top_k(e, n, p->top_k);
    if (m != TOP_P_FIRST)
        n = keep_top_p(e, n, p->top_p, m);
    if (m != MIN_P_LAST)
        n = keep_min_p(e, n, p->min_p, m);
    n = keep_typical(e, n, p->typical_p, m);
    if (m == MIN_P_LAST)
        n = keep_min_p(e, n, p->min_p, m);
    for (uint32_t i = 0; i < n && m == COLD_LAST; i++)
        e[i].key /= p->temperature;
    const double u = rng_f64((struct rng_key){
        .seed = p->seed, .index = output_index, .choice = m == OTHER_CHOICE ? 0 : p->choice, .purpose = RNG_SAMPLE});
    const double aim = u * total(e, n);
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)f_exp(e[i].key);
        if (sum > aim)
            return e[i].id;
    }
    return n > 0 ? e[n - 1].id : NO_TOKEN;
}

/* ---- random requests -------------------------------------------------------------------------------------------- */

static uint64_t dice_state;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rng_u64((struct rng_key){.seed = 99, .index = dice_state++, .purpose = RNG_DUMMY}) % n);
}

static float between(float lo, float hi)
{
    return lo + (hi - lo) * (float)below(100001) / 100000.0f;
}

static void fill_logits(struct request *r)
{
    const uint32_t kind = below(8);
    for (uint32_t i = 0; i < r->vocab; i++) {
        r->logits[i] = between(-8.0f, 8.0f);
        if (kind == 1) /* many ties */
            r->logits[i] = roundf(r->logits[i]);
        if (kind == 2) /* all equal */
            r->logits[i] = 1.0f;
        if (kind == 3) /* peaked */
            r->logits[i] = i % 50 == 7 ? r->logits[i] : r->logits[i] - 30.0f;
        if (kind == 4 && below(10) == 0)
            r->logits[i] = NAN;
        if (kind == 5 && below(10) == 0)
            r->logits[i] = below(4) == 0 ? INFINITY : -INFINITY;
        if (kind == 6) /* differences beyond f32 */
            r->logits[i] *= 4e37f;
    }
}

static void request_make(struct request *r)
{
    static const uint32_t vocabs[] = {1, 2, 3, 17, 64, 65, 300, VOCAB_MAX};
    struct error e;
    r->vocab = vocabs[below(COUNT_OF(vocabs))];
    fill_logits(r);
    r->params = sample_params_default();
    struct sample_params *p = &r->params;
    p->temperature = below(6) == 0 ? 0.0f : between(0.1f, 3.0f);
    p->top_k = below(2) ? below(r->vocab + 5) : 0;
    p->top_p = below(2) ? between(0.01f, 1.0f) : 1.0f;
    p->min_p = below(3) == 0 ? between(0.0f, 0.5f) : below(8) == 0 ? 1.0f : 0.0f;
    p->typical_p = below(3) == 0 ? between(0.01f, 1.0f) : 1.0f;
    p->seed = below(UINT32_MAX);
    p->choice = below(4);
    if (below(2)) {
        p->repetition_penalty = between(0.5f, 2.0f);
        p->presence_penalty = between(-2.0f, 2.0f);
        p->frequency_penalty = between(-2.0f, 2.0f);
    }
    p->n_bias = below(5);
    p->bias = r->bias;
    for (uint32_t i = 0; i < p->n_bias; i++)
        r->bias[i] = (struct logit_bias){.id = below(r->vocab), .bias = between(-10.0f, 10.0f)};
    assert_ok(e, sample_params_check(p, r->vocab, &e));
    assert_ok(e, sample_history_init(&r->history, 24, &e));
    for (uint32_t i = 0; i < COUNT_OF(r->prompt); i++) {
        r->prompt[i] = below(r->vocab);
        r->output[i] = below(MIN(r->vocab, 20u));
        sample_history_add(&r->history, r->prompt[i], false);
        sample_history_add(&r->history, r->output[i], true);
    }
    r->has_mask = below(3) == 0;
    for (uint32_t i = 0; i < COUNT_OF(r->mask); i++)
        r->mask[i] = rng_u64((struct rng_key){.seed = 98, .index = dice_state++, .purpose = RNG_DUMMY});
    r->n_banned = below(4);
    for (uint32_t i = 0; i < r->n_banned; i++)
        r->banned[i] = below(r->vocab + 3); /* some beyond the vocabulary */
}

static struct sample_row row_of(const struct request *r, uint64_t output_index)
{
    return (struct sample_row){.logits = r->logits,
        .params = &r->params,
        .history = &r->history,
        .mask = r->has_mask ? r->mask : NULL,
        .banned = r->banned,
        .n_banned = r->n_banned,
        .output_index = output_index};
}

static void the_same_token_as_the_naive_sampler_for_random_requests(void **state)
{
    (void)state;
    uint64_t disagree[MISTAKES] = {0}, tokens = 0, refused = 0;
    struct request *r = mem_zalloc(sizeof *r);
    assert_non_null(r);
    dice_state = 0;
    for (uint32_t i = 0; i < 1500; i++) {
        struct error e = {0};
        struct sampler *s;
        request_make(r);
        assert_ok(e, sampler_new(r->vocab, &s, &e));
        for (uint64_t index = 0; index < 3; index++) {
            struct sample_result got = {0};
            const struct sample_row row = row_of(r, index);
            const uint32_t want = naive(r, index, RIGHT);
            const enum err err = sample_token(s, &row, &got, &e);
            assert_int_equal(err, want == NO_TOKEN ? ERR_INVALID : OK);
            if (want != NO_TOKEN && got.id != want)
                fail_msg("request %u, token %u: got %u, the naive sampler has %u", i, (unsigned)index, got.id, want);
            tokens++;
            refused += want == NO_TOKEN;
            for (enum mistake m = RIGHT + 1; m < MISTAKES; m++)
                disagree[m] += naive(r, index, m) != want;
        }
        sampler_free(s);
        sample_history_fini(&r->history);
    }
    assert_true(tokens > 4000 && refused > 10 && refused < tokens / 10);
    for (enum mistake m = RIGHT + 1; m < MISTAKES; m++)
        if (disagree[m] == 0)
            fail_msg("mistake %d never shows", (int)m);
    mem_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_token_as_the_naive_sampler_for_random_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
