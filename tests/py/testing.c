/* Doors for the Python oracle tests (ctypes): visible names over functions that are hidden in the program. Add a
 * wrapper here when a test needs one; nothing in src/ may know of it. */
#include "base/base.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *quern_testing_version(void)
{
    return QUERN_VERSION;
}
