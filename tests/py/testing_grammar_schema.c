/* Doors for the Python tests of JSON schemas: compile, recognise, and generate by random walks over masks. A walk is
 * made here and not in Python, so that thousands of them take seconds. */
#include "base/mem.h"
#include "grammar/grammar.h"

#include <string.h>

#define EXPORT __attribute__((visibility("default")))

struct schema_vocab {
    struct vocab_view view;
    struct grammar_vocab *vocab;
};

/* Copies what it is given. */
EXPORT struct schema_vocab *quern_schema_vocab(
    const char *bytes, const uint32_t *offsets, const uint8_t *flags, uint32_t n, struct error *e)
{
    struct schema_vocab *v = mem_zalloc(sizeof *v);
    char *b = mem_alloc(offsets[n] + 1);
    uint32_t *o = mem_array(n + 1, sizeof *o);
    uint8_t *f = mem_array(n, 1);
    if (v == NULL || b == NULL || o == NULL || f == NULL)
        return NULL;
    memcpy(b, bytes, offsets[n]);
    memcpy(o, offsets, (n + 1) * sizeof *o);
    memcpy(f, flags, n);
    v->view = (struct vocab_view){n, b, o, f};
    return grammar_vocab_new(&v->view, &v->vocab, e) == OK ? v : NULL;
}

EXPORT struct grammar *quern_schema_compile(
    const struct schema_vocab *v, const char *text, size_t n, int whitespace, struct error *e)
{
    const struct grammar_source src = {GRAMMAR_JSON_SCHEMA, {text, n}, (enum grammar_whitespace)whitespace};
    struct grammar *g = NULL;
    return grammar_compile(&src, v->vocab, &g, e) == OK ? g : NULL;
}

EXPORT void quern_schema_free(struct grammar *g)
{
    grammar_unref(g);
}

EXPORT int quern_schema_matches(struct grammar *g, const char *text, size_t n)
{
    return grammar_matches(g, (struct str){text, n});
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static bool is_allowed(const uint64_t *mask, uint32_t id)
{
    return (mask[id / 64] >> (id % 64) & 1) != 0;
}

/* Uniform among the allowed ones; one pass to count, one to find. */
static uint32_t pick(const uint64_t *mask, uint32_t n_words, uint64_t *random)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_words; i++)
        n += (uint64_t)__builtin_popcountll(mask[i]);
    uint64_t k = n > 0 ? next_random(random) % n : 0;
    for (uint32_t i = 0; i < n_words; i++) {
        const uint64_t here = (uint64_t)__builtin_popcountll(mask[i]);
        if (k >= here) {
            k -= here;
            continue;
        }
        uint64_t word = mask[i];
        while (k-- > 0)
            word &= word - 1;
        return i * 64 + (uint32_t)__builtin_ctzll(word);
    }
    return UINT32_MAX;
}

/* A token that brings the text nearer to its end, if there is one: the first of `closers` (a quote), every other time
 * the next two (brackets, which are plain text in a string), or any of the others. */
static uint32_t pick_closer(const uint64_t *mask, const uint32_t *closers, uint32_t n, uint64_t *random)
{
    const uint32_t n_first = next_random(random) % 2 == 0 ? 1 : 3;
    for (uint32_t i = 0; i < n && i < n_first; i++)
        if (is_allowed(mask, closers[i]))
            return closers[i];
    const uint32_t from = n > 3 ? (uint32_t)(next_random(random) % n) : 0;
    for (uint32_t i = 0; i < n; i++)
        if (is_allowed(mask, closers[(from + i) % n]))
            return closers[(from + i) % n];
    return UINT32_MAX;
}

/* One text of random tokens; from n_free tokens on it prefers to close what is open. Returns its bytes; -1: no token
 * was allowed, -2: an allowed token was refused, -3: it did not end within n_max tokens. jumps counts forced tokens,
 * which are checked against the mask. */
EXPORT int64_t quern_schema_generate(struct grammar *g, const struct schema_vocab *v, uint32_t end, uint64_t seed,
    uint32_t n_free, uint32_t n_max, const uint32_t *closers, uint32_t n_closers, char *out, size_t cap,
    uint64_t *jumps)
{
    const uint32_t n_words = (v->view.n + 63) / 64;
    struct grammar_walk *w = mem_aligned(8, grammar_walk_bytes());
    uint64_t *mask = mem_array(n_words, sizeof *mask);
    int64_t result = -3;
    size_t n = 0;
    if (w == NULL || mask == NULL)
        return -4;
    grammar_walk_init(w, g);
    for (uint32_t i = 0; i < n_max; i++) {
        uint32_t forced, id;
        if (grammar_mask(w, &end, 1, mask) == 0) {
            result = -1;
            break;
        }
        id = i >= n_free && is_allowed(mask, end) ? end : UINT32_MAX;
        if (id == UINT32_MAX && i >= n_free && next_random(&seed) % 8 != 0)
            id = pick_closer(mask, closers, n_closers, &seed);
        if (id == UINT32_MAX)
            id = pick(mask, n_words, &seed);
        if (grammar_jump(w, &forced)) {
            ++*jumps;
            id = forced;
            if (!is_allowed(mask, id)) {
                result = -5;
                break;
            }
        }
        if (id == end) {
            result = (int64_t)n;
            break;
        }
        const struct str bytes = vocab_bytes(&v->view, id);
        struct error e = {0};
        if (grammar_accept(w, id, &e) != OK || n + bytes.n > cap) {
            result = -2;
            break;
        }
        memcpy(out + n, bytes.p, bytes.n);
        n += bytes.n;
    }
    mem_free(w);
    mem_free(mask);
    return result;
}
