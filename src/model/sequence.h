/* One sequence over a decoder: ids in, logits out, for the verbs that serve nobody else (run, score, bench). It holds
 * the whole KV cache itself and remembers which ids it has computed, so that feeding a conversation again computes only
 * what is new.
 *
 * Threads: one. */
#ifndef MODEL_SEQUENCE_H
#define MODEL_SEQUENCE_H

#include "model/model.h"

struct sequence;

enum err sequence_new(struct decoder *d, struct sequence **out, struct error *e) MUST_CHECK;
void sequence_free(struct sequence *s); /* NULL is fine */

/* Called for each computed position with the logits that predict the next one. Return false to stop early: what was
 * computed stays. */
typedef bool sequence_row_fn(void *ctx, uint32_t pos, const float *logits);

/* Make the sequence be exactly ids[0..n): the common prefix with what is there is kept, the rest computed. *logits are
 * those after the last id, valid until the next call. ERR_LIMIT when n is over the context. should_stop (may be NULL)
 * is asked between chunks; true ends with ERR_CANCELLED and keeps what was computed. */
enum err sequence_set(struct sequence *s, const uint32_t *ids, uint32_t n, bool (*should_stop)(void *ctx), void *ctx,
    const float **logits, struct error *e) MUST_CHECK;

/* Add one id and give the logits after it. */
enum err sequence_push(struct sequence *s, uint32_t id, const float **logits, struct error *e) MUST_CHECK;

/* Compute ids from an empty sequence, all rows' logits to fn. */
enum err sequence_score(
    struct sequence *s, const uint32_t *ids, uint32_t n, sequence_row_fn *fn, void *ctx, struct error *e) MUST_CHECK;

uint32_t sequence_length(const struct sequence *s);
uint32_t sequence_reused(const struct sequence *s); /* ids the last sequence_set did not compute again */

#endif
