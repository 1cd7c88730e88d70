/* Prompt lookup; see ngram.h. */
#include "sched/ngram.h"

#include "base/limits.h"

static uint32_t token_at(const struct ngram_text *t, uint32_t i)
{
    return i < t->n_prompt ? t->prompt[i] : t->output[i - t->n_prompt];
}

uint32_t ngram_cap(uint32_t n_tokens)
{
    uint32_t cap = 64;
    while (cap < n_tokens && cap < (1u << 30))
        cap *= 2;
    return cap;
}

/* Of the min tokens that end at position i. */
static uint32_t hash_at(const struct ngram_index *x, const struct ngram_text *t, uint32_t i)
{
    uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
    for (uint32_t k = 0; k < x->min; k++)
        h = (h ^ token_at(t, i - k)) * UINT64_C(0xd6e8feb86659fd93);
    return (uint32_t)(h >> 32) & (x->cap - 1);
}

void ngram_enter(struct ngram_index *x, const struct ngram_text *t)
{
    const uint32_t end = MIN(t->n_prompt + t->n_output, x->n_max);
    for (; x->n + 1 < end; x->n++) {
        if (x->n + 1 < x->min)
            continue;
        const uint32_t h = hash_at(x, t, x->n);
        x->prev[x->n] = x->head[h];
        x->head[h] = x->n + 1;
    }
}

/* Over how many tokens the text up to a agrees with the text up to b; a < b. */
static uint32_t agreement(const struct ngram_text *t, uint32_t a, uint32_t b, uint32_t max)
{
    uint32_t n = 0;
    while (n < max && n <= a && token_at(t, a - n) == token_at(t, b - n))
        n++;
    return n;
}

uint32_t ngram_guess(struct ngram_index *x, const struct ngram_text *t, uint32_t k, uint32_t *ids, uint32_t *matched)
{
    const uint32_t known = t->n_prompt + t->n_output;
    uint32_t best = 0, at = 0;
    *matched = 0;
    if (x->cap == 0 || known <= x->min || known > x->n_max)
        return 0;
    ngram_enter(x, t);
    uint32_t p = x->head[hash_at(x, t, known - 1)];
    uint32_t n_agree = 0;
    for (uint32_t i = 0; p != 0 && i < NGRAM_WALK_MAX && n_agree < NGRAM_CHAIN_MAX && best < x->max; i++) {
        const uint32_t n = agreement(t, p - 1, known - 1, x->max);
        n_agree += n >= x->min; /* others share the hash alone */
        if (n > best) {
            best = n;
            at = p;
        }
        p = x->prev[p - 1];
    }
    if (best < x->min)
        return 0;
    *matched = best;
    for (uint32_t i = 0; i < k; i++)
        ids[i] = at + i < known ? token_at(t, at + i) : ids[at + i - known];
    return k;
}
