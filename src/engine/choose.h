/* One token for one output row, as its request wants it: the slot's view made into a row of sample/. What a model
 * runner and a draft model share, since a draft that chooses by the same rule and the same draw guesses best.
 *
 * Threads: one sampler per thread; a choice belongs to one thread at a time. */
#ifndef ENGINE_CHOOSE_H
#define ENGINE_CHOOSE_H

#include "sched/sched.h"

/* Temperature 0 and nothing that changes or reports logits: the largest logit is the token. */
bool choose_is_plain(const struct request *r);

/* The token i places behind the view's, when `before` (i ids) were chosen in between: they count for penalties, and the
 * choice's history is as it was when this returns. top_max: alternatives that out->top has room for. ERR_INVALID when
 * nothing is allowed. */
enum err choose_token(struct sampler *s, const float *logits, const struct slot_view *v, const uint32_t *before,
    uint32_t i, uint32_t top_max, struct sample_result *out, struct error *e) MUST_CHECK;

#endif
