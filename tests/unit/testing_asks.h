/* What a device is asked to choose (struct sample_ask), done by sample/: the reference of ops->sample, for tests. */
#ifndef TESTING_ASKS_H
#define TESTING_ASKS_H

#include "base/mem.h"
#include "sample/sample.h"
#include "tensor/ops.h"

#include <assert.h>
#include <string.h>

static inline void ask_history(const struct sample_ask *k, const uint32_t *words, struct sample_history *h)
{
    struct error e;
    const enum err err = sample_history_init(h, MAX(k->n_history, 1u), &e);
    assert(err == OK);
    for (uint32_t i = 0; i < k->n_history; i++) {
        const uint32_t id = words[k->history_at + 2 * i], count = words[k->history_at + 2 * i + 1];
        sample_history_add(h, id, false);
        for (uint32_t n = 0; n < count; n++)
            sample_history_add(h, id, true);
    }
}

/* Ask number `which` of a call. */
static inline void ask_here(
    struct sampler *s, const struct sample_args *a, uint32_t which, struct sample_got *got, struct sample_top *top)
{
    const struct sample_ask *k = &a->asks[which];
    struct error e = {0};
    struct logit_bias *bias = mem_array(MAX(k->n_bias, 1u), sizeof *bias);
    struct token_logprob tops[SAMPLE_TOP_MAX];
    struct sample_history history;
    assert(bias != NULL && (k->mask == SAMPLE_NO_MASK || k->mask < a->n_masks));
    ask_history(k, a->words, &history);
    for (uint32_t i = 0; i < k->n_bias; i++) {
        bias[i].id = a->words[k->bias_at + 2 * i];
        memcpy(&bias[i].bias, &a->words[k->bias_at + 2 * i + 1], sizeof bias[i].bias);
    }
    const struct sample_params p = {.temperature = k->temperature,
        .top_k = k->top_k,
        .top_p = k->top_p,
        .min_p = k->min_p,
        .typical_p = 1.0f,
        .repetition_penalty = k->repetition,
        .presence_penalty = k->presence,
        .frequency_penalty = k->frequency,
        .seed = k->seed,
        .choice = k->choice,
        .n_bias = k->n_bias,
        .bias = bias};
    const struct sample_row row = {.logits = a->x + (size_t)k->row * a->n,
        .params = &p,
        .history = k->n_history > 0 ? &history : NULL,
        .mask = k->mask != SAMPLE_NO_MASK ? a->masks + (size_t)k->mask * ((a->n + 63) / 64) : NULL,
        .banned = a->words + k->banned_at,
        .n_banned = k->n_banned,
        .output_index = k->index,
        .n_top = k->n_top,
        .want_logprob = k->want_logprob != 0};
    struct sample_result out = {.top = tops};
    if (sample_token(s, &row, &out, &e) != OK)
        out = (struct sample_result){.id = UINT32_MAX};
    *got = (struct sample_got){.id = out.id, .logprob = out.logprob, .n_top = out.n_top};
    for (uint32_t i = 0; i < out.n_top; i++)
        top[i] = (struct sample_top){.id = tops[i].id, .logprob = tops[i].logprob};
    sample_history_fini(&history);
    mem_free(bias);
}

#endif
