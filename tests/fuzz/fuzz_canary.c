/* The canary: a parser with a planted bug. A fuzz run that does not crash it within seconds proves nothing about the
 * other targets: the coverage, the sanitizer or the driver is not working. The bug is a read one byte behind a heap
 * block, so AddressSanitizer must be on to see it, and it lies behind three bytes that only a coverage-guided search
 * finds. */
#include "base/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t n)
{
    if (n < 4 || bytes[0] != 'q' || bytes[1] != 'r' || bytes[2] != 'n')
        return 0;
    unsigned char *copy = mem_alloc(n);
    if (copy == NULL)
        return 0;
    memcpy(copy, bytes, n);
    volatile unsigned char behind = copy[n]; /* the planted bug */
    (void)behind;
    mem_free(copy);
    return 0;
}
