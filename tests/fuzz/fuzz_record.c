/* Any bytes as a recording: replayed, found different, or refused with a sentence. */
#include "base/base.h"
#include "engine/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct replay_summary sum;
    struct error e = {0};
    const struct replay_options o = {.check_every_step = true};
    const enum err err = replay_run(data, n, &o, &sum, &e);
    assert(err == OK || e.text[0] != '\0');
    return 0;
}
