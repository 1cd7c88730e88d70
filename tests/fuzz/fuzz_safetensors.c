/* Any bytes as a safetensors file: opened and read to the end, or refused with a sentence. */
#include "fuzz_model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_source *s = fuzz_model_open(data, n);
    if (s != NULL)
        fuzz_model_use(s, 0);
    return 0;
}
