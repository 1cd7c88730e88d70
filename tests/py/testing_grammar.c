/* Doors for the Python tests of grammars: batches of texts against one grammar, and masks against brute force over a
 * vocabulary that testing_grammar_schema.c made. */
#include "base/mem.h"
#include "grammar/grammar.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct schema_vocab { /* as in testing_grammar_schema.c */
    struct vocab_view view;
    struct grammar_vocab *vocab;
};

EXPORT struct grammar *quern_grammar_compile(
    const struct schema_vocab *v, int kind, const char *text, size_t n, struct error *e)
{
    const struct grammar_source src = {.kind = (enum grammar_kind)kind, .text = {text, n}};
    struct grammar *g = NULL;
    return grammar_compile(&src, v->vocab, &g, e) == OK ? g : NULL;
}

EXPORT void quern_grammar_free(struct grammar *g)
{
    grammar_unref(g);
}

/* verdicts[i]: 2 text i is one of the grammar, 1 it begins one, 0 neither. */
EXPORT void quern_grammar_verdicts(
    struct grammar *g, const char *bytes, const uint64_t *at, size_t n, unsigned char *verdicts)
{
    for (size_t i = 0; i < n; i++) {
        const struct str t = {bytes + at[i], at[i + 1] - at[i]};
        verdicts[i] = grammar_matches(g, t) ? 2 : grammar_is_prefix(g, t) ? 1 : 0;
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static bool has(const uint64_t *mask, uint32_t id)
{
    return (mask[id / 64] >> (id % 64) & 1) != 0;
}

static uint32_t pick(const struct vocab_view *v, const uint64_t *mask, uint64_t *random)
{
    const bool close = next_random(random) % 4 == 0;
    uint32_t found = UINT32_MAX;
    const uint32_t start = (uint32_t)(next_random(random) % v->n);
    for (uint32_t k = 0; k < v->n; k++) {
        const uint32_t id = (start + k) % v->n;
        const struct str t = vocab_bytes(v, id);
        if (!has(mask, id) || t.n == 0)
            continue;
        if (found == UINT32_MAX)
            found = id;
        if (!close || strchr("\"}],)>\n", t.p[0]) != NULL)
            return id;
    }
    return found;
}

/* Walks `steps` random tokens through the grammar and tries every token of the vocabulary at every step. Returns how
 * many masks were compared; -1 - id of the first token that a mask was wrong about. plant: turn that many bits over, to
 * see that it is seen. */
EXPORT int64_t quern_grammar_check(
    struct grammar *g, const struct schema_vocab *v, uint64_t seed, uint32_t steps, uint32_t plant)
{
    struct grammar_walk *w = mem_alloc(grammar_walk_bytes()), *t = mem_alloc(grammar_walk_bytes());
    uint64_t *mask = mem_array(v->view.n / 64 + 1, sizeof *mask), random = seed * 2 + 1;
    int64_t n = 0;
    if (w == NULL || t == NULL || mask == NULL)
        return INT64_MIN;
    grammar_walk_init(w, g);
    for (uint32_t i = 0; i < steps && n >= 0; i++) {
        (void)grammar_mask(w, NULL, 0, mask);
        for (uint32_t k = 0; k < plant; k++) {
            const uint32_t id = (uint32_t)(next_random(&random) % v->view.n);
            mask[id / 64] ^= UINT64_C(1) << (id % 64);
        }
        for (uint32_t id = 0; id < v->view.n && n >= 0; id++) {
            grammar_walk_copy(t, w);
            if ((grammar_accept(t, id, NULL) == OK) != has(mask, id))
                n = -1 - (int64_t)id;
        }
        n += n >= 0;
        const uint32_t id = n < 0 ? UINT32_MAX : pick(&v->view, mask, &random);
        if (id == UINT32_MAX || grammar_accept(w, id, NULL) != OK)
            grammar_walk_init(w, g);
    }
    mem_free(w);
    mem_free(t);
    mem_free(mask);
    return n;
}
