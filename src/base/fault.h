/* Fault injection: make the Nth allocation, system call or wait for a device of the process fail, to prove that every
 * failure is an answer and not a crash. Always compiled in (one relaxed load per call on paths that are never hot),
 * armed only by tests and by the debug option --fault. Process-wide by nature: it stands for the machine failing.
 *
 * Threads: arm before starting threads; fault_hit may be called from any thread. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include "base/base.h"

enum fault_kind {
    FAULT_ALLOC,  /* mem_* returns NULL */
    FAULT_SYS,    /* a wrapped system call fails with EIO (ENOSPC for writes) */
    FAULT_DEVICE, /* a wait for the device finds that it has failed, and so does every later one */
    FAULT_COUNT
};

/* Fail call number nth (1 = the next one); with sticky, every call from the nth on. nth 0 disarms and resets the count.
 */
void fault_arm(enum fault_kind kind, uint64_t nth, bool sticky);

/* Count one call; true when it must fail. */
bool fault_hit(enum fault_kind kind);

/* Calls counted since the last fault_arm of that kind, for "run until N is past the end" loops. */
uint64_t fault_calls(enum fault_kind kind);

/* "alloc:17", "device:40" or "sys:3+" (the + makes it sticky), as the debug option spells it. */
enum err fault_arm_spec(const char *spec, struct error *e) MUST_CHECK;

#endif
