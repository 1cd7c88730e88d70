/* Time; see clock.h. CLOCK_MONOTONIC is read through the vDSO, about 25 ns. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    const int rc = clock_gettime(id, &t);
    assert(rc == 0); /* both ids exist on every Linux */
    (void)rc;
    return (int64_t)t.tv_sec * (int64_t)NS_PER_S + t.tv_nsec;
}

void clock_init(struct clock *c)
{
    c->is_virtual = false;
    c->wall_start_ns = 0;
    atomic_init(&c->virtual_ns, 0);
}

void clock_init_virtual(struct clock *c, int64_t wall_start_ns)
{
    c->is_virtual = true;
    c->wall_start_ns = wall_start_ns;
    atomic_init(&c->virtual_ns, 0);
}

uint64_t clock_now(const struct clock *c)
{
    return c->is_virtual ? atomic_load(&c->virtual_ns) : (uint64_t)read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall(const struct clock *c)
{
    return c->is_virtual ? c->wall_start_ns + (int64_t)atomic_load(&c->virtual_ns) : read_clock(CLOCK_REALTIME);
}

void clock_advance(struct clock *c, uint64_t ns)
{
    assert(c->is_virtual);
    atomic_fetch_add(&c->virtual_ns, ns);
}

void clock_sleep(struct clock *c, uint64_t ns)
{
    if (c->is_virtual) {
        clock_advance(c, ns);
        return;
    }
    const uint64_t until = clock_now(c) + ns;
    const struct timespec t = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = (long)(until % NS_PER_S)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}
