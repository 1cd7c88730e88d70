/* What the fuzz targets of grammars share: compile, then walk by the masks; a mask that is empty on the way, or allows
 * what is then refused, is a crash. */
#ifndef TESTS_FUZZ_GRAMMAR_H
#define TESTS_FUZZ_GRAMMAR_H

#include "base/mem.h"
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#define FUZZ_TOKENS 266

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct grammar_vocab *fuzz_vocab(void)
{
    static struct grammar_vocab *vocab;
    static char bytes[1024];
    static uint32_t offsets[FUZZ_TOKENS + 1];
    static uint8_t flags[FUZZ_TOKENS];
    static const char *const more[] = {"ab", "\"}", "aaaa", "\": \"", "00", "\xC3\xA4", "\xE2\x82", "), ", "  ", "xyz"};
    if (vocab != NULL)
        return vocab;
    for (uint32_t i = 0; i < FUZZ_TOKENS; i++) {
        const char one = (char)i;
        const struct str t = i < 256 ? (struct str){&one, 1} : str_of(more[i - 256]);
        memcpy(bytes + offsets[i], t.p, t.n);
        offsets[i + 1] = offsets[i] + (uint32_t)t.n;
    }
    const struct vocab_view view = {FUZZ_TOKENS, bytes, offsets, flags};
    struct error e = {0};
    if (grammar_vocab_new(&view, &vocab, &e) != OK)
        abort();
    return vocab;
}

static inline void fuzz_grammar(enum grammar_kind kind, const uint8_t *data, size_t size)
{
    struct error e = {0};
    struct grammar *g = NULL;
    const struct grammar_source src = {.kind = kind, .text = {(const char *)data, size}};
    if (grammar_compile(&src, fuzz_vocab(), &g, &e) != OK) {
        if (e.text[0] == '\0')
            abort();
        return;
    }
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes());
    uint64_t mask[FUZZ_TOKENS / 64 + 1], random = 1469598103934665603u;
    for (size_t i = 0; i < size; i++)
        random = (random ^ data[i]) * 1099511628211u;
    grammar_walk_init(w, g);
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t n = grammar_mask(w, NULL, 0, mask);
        if (n == 0 && !grammar_is_complete(w))
            abort();
        if (n == 0)
            break;
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint32_t id = (uint32_t)((random >> 33) % FUZZ_TOKENS);
        while ((mask[id / 64] >> (id % 64) & 1) == 0)
            id = (id + 1) % FUZZ_TOKENS;
        if (grammar_accept(w, id, NULL) != OK)
            abort();
    }
    mem_free(w);
    grammar_unref(g);
}

#endif
