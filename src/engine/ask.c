/* Asks for a device that chooses tokens; see ask.h. */
#include "engine/ask.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

_Static_assert(ENGINE_TOP_MAX <= SAMPLE_TOP_MAX, "a device has room for every alternative");

enum err asks_init(struct asks *a, uint32_t cap, uint32_t words_cap, struct error *e)
{
    *a = (struct asks){.cap = cap, .words_cap = words_cap};
    a->ask = mem_array(cap, sizeof *a->ask);
    a->words = mem_array(words_cap, sizeof *a->words);
    if (a->ask == NULL || a->words == NULL) {
        asks_fini(a);
        return FAIL(e, ERR_NOMEM, "no memory for what is asked of the device in a step");
    }
    return OK;
}

void asks_fini(struct asks *a)
{
    mem_free(a->ask);
    mem_free(a->words);
    *a = (struct asks){0};
}

void asks_clear(struct asks *a)
{
    a->n = a->n_words = 0;
    a->wants_top = false;
}

/* Room for n words, or NULL; *at is where they lie. */
static uint32_t *take(struct asks *a, size_t n, uint32_t *at)
{
    if (n > a->words_cap - a->n_words)
        return NULL;
    *at = a->n_words;
    a->n_words += (uint32_t)n;
    return a->words + *at;
}

static bool add_banned(struct asks *a, struct sample_ask *k, const uint32_t *ids, uint32_t n)
{
    uint32_t *to = take(a, n, &k->banned_at);
    if (to != NULL && n > 0)
        memcpy(to, ids, n * sizeof *to);
    k->n_banned = n;
    return to != NULL;
}

static bool add_bias(struct asks *a, struct sample_ask *k, const struct sample_params *p)
{
    uint32_t *to = take(a, (size_t)p->n_bias * 2, &k->bias_at);
    for (uint32_t i = 0; to != NULL && i < p->n_bias; i++) {
        to[2 * i] = p->bias[i].id;
        memcpy(&to[2 * i + 1], &p->bias[i].bias, sizeof *to);
    }
    k->n_bias = p->n_bias;
    return to != NULL;
}

static bool add_ids(struct asks *a, struct sample_ask *k, const struct sample_history *h)
{
    uint32_t *to = take(a, (size_t)h->n * 2, &k->history_at);
    for (uint32_t i = 0; to != NULL && i < h->cap; i++)
        if (h->ids[i] != 0) {
            to[2 * k->n_history] = h->ids[i] - 1;
            to[2 * k->n_history++ + 1] = h->counts[i];
        }
    return to != NULL;
}

static bool add_history(
    struct asks *a, struct sample_ask *k, struct sample_history *h, const uint32_t *before, uint32_t n)
{
    if (h->cap == 0)
        return true;
    const uint32_t were_new = sample_history_put(h, before, n);
    const bool has_room = add_ids(a, k, h);
    sample_history_take(h, before, n, were_new);
    return has_room;
}

bool asks_add(struct asks *a, const struct slot_view *v, const uint32_t *before, uint32_t i, uint32_t mask,
    bool is_forced, uint32_t row, uint32_t top_max)
{
    const struct slot_view at = slot_view_later(v, i);
    const struct sample_params *p = &at.choice->sample;
    const struct request_options *o = &at.request->o;
    const uint32_t n_words = a->n_words;
    assert(i <= SPEC_K_MAX);
    if (a->n == a->cap || p->typical_p < 1.0f)
        return false;
    struct sample_ask *k = &a->ask[a->n];
    *k = (struct sample_ask){.seed = p->seed,
        .index = at.output_index,
        .choice = p->choice,
        .row = row,
        .mask = mask,
        .top_k = p->top_k,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .repetition = p->repetition_penalty,
        .presence = p->presence_penalty,
        .frequency = p->frequency_penalty,
        .n_top = MIN(o->n_top, top_max),
        .want_logprob = o->want_logprobs};
    if (!add_banned(a, k, at.banned, is_forced ? 0 : at.n_banned) || !add_bias(a, k, p) ||
        !add_history(a, k, &at.choice->history, before, i)) {
        a->n_words = n_words;
        return false;
    }
    a->wants_top = a->wants_top || k->n_top > 0;
    a->n++;
    return true;
}
