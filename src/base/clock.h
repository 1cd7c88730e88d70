/* Time. One small struct that is either the machine's clock or a virtual one that only moves when told, so that the
 * scheduler, the log and the simulator read time the same way and one seed gives one history.
 *
 * Threads: any thread may read; a virtual clock may be advanced from any thread, though one driver is the sane number.
 * Read `now` once per turn and pass it down; do not read it in the leaves. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include "base/base.h"

#include <stdatomic.h>

#define NS_PER_US ((uint64_t)1000)
#define NS_PER_MS ((uint64_t)1000000)
#define NS_PER_S  ((uint64_t)1000000000)

struct clock {
    bool is_virtual;
    int64_t wall_start_ns;       /* virtual: wall time when virtual_ns was 0 */
    _Atomic uint64_t virtual_ns; /* virtual: now */
};

void clock_init(struct clock *c);                                /* the machine's */
void clock_init_virtual(struct clock *c, int64_t wall_start_ns); /* starts at 0 ns */

/* Nanoseconds that never go back; only differences mean anything. */
uint64_t clock_now(const struct clock *c);

/* Nanoseconds since 1970 UTC, for people: log lines, "created" fields. May jump; never subtract two of them. */
int64_t clock_wall(const struct clock *c);

/* Move a virtual clock; asserts that it is one. */
void clock_advance(struct clock *c, uint64_t ns);

/* Wait that long: sleeps, or on a virtual clock advances it. Signals do not shorten it. */
void clock_sleep(struct clock *c, uint64_t ns);

#endif
