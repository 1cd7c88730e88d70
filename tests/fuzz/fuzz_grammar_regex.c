/* Any bytes as a pattern: a sentence or a grammar; a grammar's masks allow only what can be gone on with, from the
 * first token to a few dozen. */
#include "fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_grammar(GRAMMAR_REGEX, data, size);
    return 0;
}
