/* The machine; see machine.h. A container sees the memory of its whole host, so the limit of the control group counts:
 * memory.max of version 2 (the word "max" when there is none), memory.limit_in_bytes of version 1 (a huge number). */
#include "base/machine.h"

#include "base/limits.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* The number behind a key at the start of a line: "MemAvailable:   123 kB", "inactive_file 123". UINT64_MAX when it is
 * not there. */
static uint64_t read_field(const char *path, const char *key)
{
    char text[8192];
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return UINT64_MAX;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[MAX(n, 0)] = '\0';
    const size_t key_bytes = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, key_bytes) == 0)
            return strtoull(line + key_bytes, NULL, 10);
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return UINT64_MAX;
}

/* Of a control group: its limit less what it holds, where file pages that can be dropped do not count. */
static uint64_t group_free_bytes(const char *limit, const char *used, const char *stat)
{
    const uint64_t max = read_limit(limit), current = read_limit(used);
    const uint64_t file = read_field(stat, "inactive_file ");
    if (max == UINT64_MAX || current == UINT64_MAX)
        return UINT64_MAX;
    const uint64_t held = current - MIN(current, file == UINT64_MAX ? 0 : file);
    return max - MIN(max, held);
}

uint64_t machine_memory_free_bytes(void)
{
    const uint64_t kib = read_field("/proc/meminfo", "MemAvailable:");
    const uint64_t all = machine_memory_bytes();
    uint64_t bytes = kib == UINT64_MAX ? all : MIN(kib * KIB, all);
    bytes = MIN(bytes,
        group_free_bytes("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"));
    return MIN(bytes, group_free_bytes("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                          "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat"));
}

const char *bytes_show(uint64_t bytes, char text[24])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < COUNT_OF(units); u++)
        v /= 1024;
    snprintf(text, 24, u == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : "%.1f %s", v, units[u]);
    return text;
}
