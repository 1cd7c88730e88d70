/* One token for one output row, as its request wants it: the slot's view made into a row of sample/. What a model
 * runner and a draft model share, since a draft that chooses by the same rule and the same draw guesses best.
 *
 * Threads: one sampler per thread; a choice belongs to one thread at a time. */
#ifndef ENGINE_CHOOSE_H
#define ENGINE_CHOOSE_H

#include "sched/sched.h"

/* Temperature 0 and nothing that changes or reports logits: the largest logit is the token. */
bool choose_is_plain(const struct request *r);

/* Which ids a row may choose. */
struct row_mask {
    const uint64_t *bits; /* NULL: all */
    bool is_forced;       /* one id, whatever else is banned */
};

/* What its request allows and, at this point, its grammar. walk: where the row stands, the choice's own unless others
 * were chosen in between; NULL without a grammar. room has a bit for each id of the vocabulary and is written only for
 * a row with a grammar. A forced token is the mask's only one: so whoever jumps over forced text and whoever chooses
 * token by token write the same. */
struct row_mask choose_mask(const struct slot_view *v, const struct grammar_walk *walk, uint64_t *room, uint32_t vocab);

/* What that mask depends on, so that rows which share it can be found before it is made. False: nothing is known of it.
 * Names memory of the request and its grammar. */
struct mask_key {
    struct grammar_key walk; /* n == 0: forced */
    uint32_t forced;
    uint32_t n_ends;
    const uint32_t *ends;
};
bool choose_mask_key(const struct slot_view *v, const struct grammar_walk *walk, uint32_t vocab, struct mask_key *out);
bool mask_key_same(const struct mask_key *a, const struct mask_key *b);
uint64_t mask_key_hash(const struct mask_key *k);

/* What it means that nothing could be chosen: STEP_ID_OVER or STEP_ID_NONE. */
uint32_t choose_none(const struct slot_view *v, const struct grammar_walk *walk, struct row_mask mask, uint32_t vocab);

/* The token i places behind the view's, when `before` (i ids) were chosen in between: they count for penalties, and the
 * choice's history is as it was when this returns. top_max: alternatives that out->top has room for. ERR_INVALID when
 * nothing is allowed. */
enum err choose_token(struct sampler *s, const float *logits, const struct slot_view *v, const uint32_t *before,
    uint32_t i, struct row_mask mask, uint32_t top_max, struct sample_result *out, struct error *e) MUST_CHECK;

#endif
