/* Any bytes as an EBNF grammar, as in fuzz_grammar_regex.c. */
#include "fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_grammar(GRAMMAR_EBNF, data, size);
    return 0;
}
