/* The masks of one step, made by other threads while the device works: for runners whose device is not the host's
 * processor. The forward pass is launched, then the masks are begun, then the runner waits for the device, and takes
 * them when the logits are there. Who has to have them now joins, and makes those that nobody else has come to. The
 * engine thread beside a device that is still busy waits instead: it sleeps, and helps only if MASK_WAIT_NS were
 * not enough, or if nobody else is there.
 *
 * Rows whose masks are known to be the same before they are made (choose_mask_key) share one.
 *
 * Masks look at walks where they are: between masks_start and masks_join or masks_wait nothing is committed.
 *
 * Threads: the engine thread calls; nothing allocates after masks_new. */
#ifndef ENGINE_MASKS_H
#define ENGINE_MASKS_H

#include "engine/choose.h"

struct masks;

/* n_threads counts the caller. Told of each mask for tests, by the thread that made it: worker 0 is the caller. */
typedef void masks_fn(void *ctx, uint32_t row, uint32_t worker);
/* room: for rows_max masks of (vocab + 63) / 64 words, borrowed; NULL: of its own. */
enum err masks_new(uint32_t rows_max, uint32_t vocab, uint32_t n_threads, uint64_t *room, struct masks **out,
    struct error *e) MUST_CHECK;
void masks_free(struct masks *m); /* NULL is fine */
void masks_watch(struct masks *m, masks_fn *fn, void *ctx);
uint32_t masks_threads(void); /* as many as make sense here, with the caller */

void masks_clear(struct masks *m);
/* A row of this view, which has a request. walk: where it stands, the choice's own unless guesses lie in between. Its
 * number comes back. */
uint32_t masks_add(struct masks *m, const struct slot_view *v, const struct grammar_walk *walk);
void masks_start(struct masks *m);
void masks_join(struct masks *m);
uint64_t masks_wait(struct masks *m);                           /* instead of masks_join; ns that it slept */
struct row_mask masks_row(const struct masks *m, uint32_t row); /* as choose_mask says it; after masks_join */
uint32_t masks_none(const struct masks *m, uint32_t row);       /* what choose_none says of it */
/* Masks are numbered as they lie in the room: that of a row, or one more with these bits; after masks_join. */
uint32_t masks_number(const struct masks *m, uint32_t row);
uint32_t masks_put(struct masks *m, const uint64_t *bits);
uint32_t masks_count(const struct masks *m);

/* The threads are free for other work on the rows outside start and join. */
struct team *masks_team(struct masks *m);

#endif
