/* Fault injection; see fault.h. */
#include "base/fault.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct {
    _Atomic uint64_t calls;
    _Atomic uint64_t nth; /* 0 = not armed */
    atomic_bool sticky;
} faults[FAULT_COUNT];

static atomic_bool counting; /* any kind ever armed; keeps the common path to one load */

void fault_arm(enum fault_kind kind, uint64_t nth, bool sticky)
{
    atomic_store(&faults[kind].calls, 0);
    atomic_store(&faults[kind].sticky, sticky);
    atomic_store(&faults[kind].nth, nth);
    atomic_store(&counting, true);
}

bool fault_hit(enum fault_kind kind)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return false;
    const uint64_t call = atomic_fetch_add(&faults[kind].calls, 1) + 1;
    const uint64_t nth = atomic_load(&faults[kind].nth);
    return nth != 0 && (atomic_load(&faults[kind].sticky) ? call >= nth : call == nth);
}

uint64_t fault_calls(enum fault_kind kind)
{
    return atomic_load(&faults[kind].calls);
}

enum err fault_arm_spec(const char *spec, struct error *e)
{
    static const char *const names[FAULT_COUNT] = {
        [FAULT_ALLOC] = "alloc:", [FAULT_SYS] = "sys:", [FAULT_DEVICE] = "device:"};
    for (size_t k = 0; k < FAULT_COUNT; k++) {
        const size_t n = strlen(names[k]);
        if (strncmp(spec, names[k], n) != 0)
            continue;
        if (spec[n] < '0' || spec[n] > '9') /* strtoull would take blanks and signs */
            break;
        char *end = NULL;
        const unsigned long long nth = strtoull(spec + n, &end, 10);
        const bool sticky = *end == '+';
        if (end[sticky] != '\0' || nth == 0)
            break;
        fault_arm((enum fault_kind)k, nth, sticky);
        return OK;
    }
    return FAIL(e, ERR_INVALID, "fault '%s' is not alloc:N, sys:N or device:N, or one of them with a + behind", spec);
}
