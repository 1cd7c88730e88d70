/* The machine; see machine.h. A container sees the memory of its whole host, so the limit of the control group counts:
 * memory.max of version 2 (the word "max" when there is none), memory.limit_in_bytes of version 1 (a huge number). */
#include "cli/machine.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* The number a control file holds; UINT64_MAX when there is no file or no number in it. */
static uint64_t read_limit(const char *path)
{
    char text[32];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UINT64_MAX;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    text[n] = '\0';
    return strtoull(text, NULL, 10);
}

uint64_t machine_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0)
        return 0;
    uint64_t bytes = (uint64_t)pages * (uint64_t)page_bytes;
    bytes = MIN(bytes, read_limit("/sys/fs/cgroup/memory.max"));
    return MIN(bytes, read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
}
