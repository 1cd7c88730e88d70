/* The entry of the program; everything is in cli_main, which tests can link. */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
