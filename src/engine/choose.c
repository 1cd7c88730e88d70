/* Choosing a token for a request; see choose.h. */
#include "engine/choose.h"

#include <string.h>

bool choose_is_plain(const struct request *r)
{
    const struct sample_params *s = &r->o.sample;
    return s->temperature == 0.0f && s->repetition_penalty == 1.0f && s->presence_penalty == 0.0f &&
           s->frequency_penalty == 0.0f && s->n_bias == 0 && r->o.allowed == NULL && r->o.grammar == NULL &&
           r->o.n_banned_ids == 0 && r->o.min_tokens == 0 && r->o.n_top == 0 && !r->o.want_logprobs &&
           !r->o.want_prompt_logprobs;
}

struct row_mask choose_mask(const struct slot_view *v, const struct grammar_walk *walk, uint64_t *room, uint32_t vocab)
{
    const struct request_options *o = &v->request->o;
    uint32_t id;
    if (walk == NULL)
        return (struct row_mask){.bits = o->allowed};
    if (grammar_jump(walk, &id) && id < vocab) {
        memset(room, 0, ((size_t)vocab + 63) / 64 * sizeof *room);
        room[id / 64] = (uint64_t)1 << id % 64;
        return (struct row_mask){.bits = room, .is_forced = true};
    }
    (void)grammar_mask(walk, o->stop_ids, o->n_stop_ids, room);
    for (uint32_t i = 0; o->allowed != NULL && i < (vocab + 63) / 64; i++)
        room[i] &= o->allowed[i];
    return (struct row_mask){.bits = room};
}

bool choose_mask_key(const struct slot_view *v, const struct grammar_walk *walk, uint32_t vocab, struct mask_key *out)
{
    const struct request_options *o = &v->request->o;
    *out = (struct mask_key){.walk.n = 0};
    if (walk == NULL)
        return false;
    if (grammar_jump(walk, &out->forced) && out->forced < vocab)
        return true;
    out->forced = 0;
    out->ends = o->stop_ids;
    out->n_ends = o->n_stop_ids;
    return o->allowed == NULL && grammar_mask_key(walk, &out->walk);
}

bool mask_key_same(const struct mask_key *a, const struct mask_key *b)
{
    return a->walk.n == b->walk.n && a->forced == b->forced && a->n_ends == b->n_ends &&
           memcmp(a->walk.words, b->walk.words, a->walk.n * sizeof *a->walk.words) == 0 &&
           (a->n_ends == 0 || memcmp(a->ends, b->ends, a->n_ends * sizeof *a->ends) == 0);
}

uint64_t mask_key_hash(const struct mask_key *k)
{
    uint64_t h = k->forced;
    for (uint32_t i = 0; i < k->walk.n; i++) {
        h = (h ^ k->walk.words[i]) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 31;
    }
    return h;
}

uint32_t choose_none(const struct slot_view *v, const struct grammar_walk *walk, struct row_mask mask, uint32_t vocab)
{
    if (walk == NULL || !grammar_is_complete(walk))
        return STEP_ID_NONE;
    for (uint32_t at = 0; at < (vocab + 63) / 64; at++)
        for (uint64_t word = mask.bits[at]; word != 0; word &= word - 1) {
            const uint32_t id = at * 64 + (uint32_t)__builtin_ctzll(word);
            bool is_allowed = id < vocab;
            for (uint32_t i = 0; is_allowed && i < v->n_banned; i++)
                is_allowed = v->banned[i] != id;
            if (is_allowed)
                return STEP_ID_NONE; /* it was not the grammar */
        }
    return STEP_ID_OVER;
}

enum err choose_token(struct sampler *s, const float *logits, const struct slot_view *v, const uint32_t *before,
    uint32_t i, struct row_mask mask, uint32_t top_max, struct sample_result *out, struct error *e)
{
    const struct slot_view at = slot_view_later(v, i);
    const struct request *r = at.request;
    struct sample_history *h = at.choice->history.cap > 0 ? &at.choice->history : NULL;
    const uint32_t were_new = h != NULL ? sample_history_put(h, before, i) : 0;
    const struct sample_row row = {.logits = logits,
        .params = &at.choice->sample,
        .history = h,
        .mask = mask.bits,
        .banned = at.banned,
        .n_banned = mask.is_forced ? 0 : at.n_banned,
        .output_index = at.output_index,
        .n_top = MIN(r->o.n_top, top_max),
        .want_logprob = r->o.want_logprobs};
    const enum err err = sample_token(s, &row, out, e);
    if (h != NULL)
        sample_history_take(h, before, i, were_new);
    return err;
}
