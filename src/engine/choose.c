/* Choosing a token for a request; see choose.h. */
#include "engine/choose.h"

bool choose_is_plain(const struct request *r)
{
    const struct sample_params *s = &r->o.sample;
    return s->temperature == 0.0f && s->repetition_penalty == 1.0f && s->presence_penalty == 0.0f &&
           s->frequency_penalty == 0.0f && s->n_bias == 0 && r->o.allowed == NULL && r->o.n_banned_ids == 0 &&
           r->o.min_tokens == 0 && r->o.n_top == 0 && !r->o.want_logprobs && !r->o.want_prompt_logprobs;
}

enum err choose_token(struct sampler *s, const float *logits, const struct slot_view *v, const uint32_t *before,
    uint32_t i, uint32_t top_max, struct sample_result *out, struct error *e)
{
    const struct slot_view at = slot_view_later(v, i);
    const struct request *r = at.request;
    struct sample_history *h = at.choice->history.cap > 0 ? &at.choice->history : NULL;
    bool was_new[SPEC_K_MAX] = {false};
    assert(i <= SPEC_K_MAX);
    for (uint32_t k = 0; h != NULL && k < i; k++) {
        was_new[k] = !sample_history_has(h, before[k]);
        sample_history_add(h, before[k], true);
    }
    const struct sample_row row = {.logits = logits,
        .params = &at.choice->sample,
        .history = h,
        .mask = r->o.allowed,
        .banned = at.banned,
        .n_banned = at.n_banned,
        .output_index = at.output_index,
        .n_top = MIN(r->o.n_top, top_max),
        .want_logprob = r->o.want_logprobs};
    const enum err err = sample_token(s, &row, out, e);
    for (uint32_t k = i; h != NULL && k-- > 0;)
        sample_history_undo(h, before[k], was_new[k]);
    return err;
}
