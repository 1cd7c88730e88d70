/* The entry of the program; everything is in cli_main, which tests can link.
 *
 * Whoever starts us may have closed descriptors 0, 1 or 2. The next file we open would then take that number, and what
 * is meant for the terminal would be written into a model. So the three are filled first, the wrong way round: reading
 * standard input or writing the other two fails as it would have failed closed. */
#include "cli/cli.h"

#include <fcntl.h>
#include <unistd.h>

static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return; /* no /dev/null; then the first file to be opened is the only one at risk */
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    return cli_main(argc, argv);
}
