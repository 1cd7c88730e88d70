/* What a row's request wants, as a device reads it: struct sample_ask and the words it names (tensor/ops.h). Host logic
 * alone: which device reads it does not matter. Masks are elsewhere (masks.h), where the device copies them from; here
 * they are numbers.
 *
 * Threads: one. */
#ifndef ENGINE_ASK_H
#define ENGINE_ASK_H

#include "engine/choose.h"
#include "tensor/ops.h"

/* The asks of a step; nothing allocates after asks_init. */
struct asks {
    struct sample_ask *ask; /* [cap] */
    uint32_t *words;        /* [words_cap] */
    uint32_t n, cap, n_words, words_cap;
    bool wants_top;
};

enum err asks_init(struct asks *a, uint32_t cap, uint32_t words_cap, struct error *e) MUST_CHECK;
void asks_fini(struct asks *a);
void asks_clear(struct asks *a);

/* The token i places behind the view's, from logits row `row`, as if `before` (i ids) had been chosen in between: they
 * count for penalties, and the choice's history is as it was when this returns. False when the host has to choose:
 * typical-p, or no room for its lists; then nothing was added. mask: its number, or SAMPLE_NO_MASK. */
bool asks_add(struct asks *a, const struct slot_view *v, const uint32_t *before, uint32_t i, uint32_t mask,
    bool is_forced, uint32_t row, uint32_t top_max);

#endif
