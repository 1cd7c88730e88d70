/* The worker team: n - 1 threads that live as long as the team, plus the thread that calls. team_run cuts a job into
 * tiles, which whoever is free claims one by one, and returns when all are done. It waits for tiles, never for threads:
 * a worker that sleeps or lost its core to another process simply takes no part, and the caller does the rest.
 *
 * A worker that another process kept from its core for milliseconds stays away for some tens of them.
 *
 * Between jobs a worker spins for at most TEAM_SPIN_NS_MAX, then sleeps on a futex; with more threads than cores nobody
 * spins. Threads are not pinned. Workers flush denormals to zero and block all signals.
 *
 * Threads: one caller at a time; tiles must not call team_run on the same team. */
#ifndef BASE_TEAM_H
#define BASE_TEAM_H

#include "base/base.h"

struct team;

/* One tile of a job. tile is below n_tiles; worker is below team_size and belongs to one thread (0 = the caller), for
 * scratch memory. Which worker gets which tile differs from run to run, so results must not depend on it. */
typedef void team_fn(void *ctx, uint32_t tile, uint32_t worker);

/* n_threads counts the caller: 1 starts nothing. A thread that cannot start is an error, and the rest are ended. */
enum err team_new(struct team **out, uint32_t n_threads, struct error *e) MUST_CHECK;
void team_free(struct team *t); /* ends and joins the threads; NULL is fine */
uint32_t team_size(const struct team *t);

/* Run fn for every tile. What the caller wrote before is visible to tiles, what tiles wrote is visible after. */
void team_run(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx);

/* The same in two halves: the others begin, the caller goes on with something else and comes back. team_join helps with
 * what nobody has claimed yet and returns when all is done. What the tiles use must stay until then. */
void team_start(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx);
void team_join(struct team *t);

/* The same for a caller who is not to help: it wakes one worker, who wakes the next while tiles are left, and sleeps
 * until all is done. What nobody has claimed after help_ns it does itself, so a team whose workers all lost their cores
 * still comes to an end. Alone it does everything at once. Returns the ns that it slept. */
void team_start_others(struct team *t, uint32_t n_tiles, team_fn *fn, void *ctx);
uint64_t team_join_late(struct team *t, uint64_t help_ns);

/* Treat denormal floats as zero on the calling thread, as workers do. The engine thread calls it once, or its share of
 * the tiles would round differently. */
void team_flush_denormals(void);

/* Cores this process may run on. */
uint32_t team_cores(void);

#endif
