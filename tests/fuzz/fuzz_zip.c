/* Any bytes as a wheel: the member comes out with the expected size and hash, or a sentence does. The archive lives in
 * memory; what is unpacked goes to a file of this process, removed each time. */
#include "hub/hub_int.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    /* SHA-256 of "hello, wheel\n", which the seeds carry; whatever else comes out is refused by its hash. */
    const struct hub_file file = {
        .name = "m", .bytes = 13, .sha256 = "de6786df6403550d821ce34a10579b9c7b2433ac7f0b29fb7aafb0779a9c250f"};
    const struct hub h = {.o = {.progress = NULL}};
    struct error e = {0};
    char path[64], out[64];
    snprintf(out, sizeof out, "/tmp/fuzz_zip.%ld", (long)getpid());
    const int fd = memfd_create("wheel", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    if (write(fd, data, n) == (ssize_t)n) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const enum err err = zip_extract(&h, path, "p/m", out, &file, &e);
        assert(err != OK || e.code == OK);
        assert(err == OK || e.text[0] != '\0');
    }
    unlink(out);
    close(fd);
    return 0;
}
