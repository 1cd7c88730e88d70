/* Classes of tokens. Inside a JSON string, in free text, in an identifier, nearly every token made of the right
 * characters is allowed. Trying each of 150,000 of them at each such state would cost a millisecond; they are sorted
 * out once for a set of characters and a vocabulary, and shared by every grammar. What is left to try are the tokens
 * that leave the set somewhere.
 *
 * Where characters are counted, a token is allowed when it has not more of them than are left: for the first few
 * lengths there is a mask each, and above them the few longer tokens are taken out one by one. */
#include "base/limits.h"
#include "grammar/automaton.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct class_cache {
    pthread_mutex_t lock;
    struct token_class *first;
    uint32_t n;
    size_t bytes;
};

enum err class_cache_new(struct class_cache **out, struct error *e)
{
    struct class_cache *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the classes of a vocabulary");
    (void)pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return OK;
}

static void class_free(struct token_class *c)
{
    if (c == NULL)
        return;
    mem_free(c->ranges);
    mem_free(c->all);
    mem_free(c->within[0]);
    mem_free(c->rest.nodes);
    mem_free(c->pure);
    mem_free(c->longer);
    mem_free(c->lengths);
    mem_free(c);
}

void class_cache_free(struct class_cache *c)
{
    if (c == NULL)
        return;
    while (c->first != NULL) {
        struct token_class *x = c->first;
        c->first = x->next;
        class_free(x);
    }
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* Does any character of the class lie in lo..hi? */
static bool class_meets(const struct token_class *c, uint32_t lo, uint32_t hi)
{
    uint32_t a = 0, z = c->n_ranges;
    while (a < z) { /* the first range that ends at lo or behind it */
        const uint32_t mid = (a + z) / 2;
        if (c->ranges[mid].to < lo)
            a = mid + 1;
        else
            z = mid;
    }
    return a < c->n_ranges && c->ranges[a].from <= hi;
}

/* The code points that the first n of `len` bytes leave possible; lo > hi: none. */
static struct code_range codes_of(const uint8_t *p, size_t n, size_t len)
{
    static const struct code_range by_len[] = {{1, 0}, {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, 0x10FFFF}};
    assert(n >= 1 && n <= len && len < COUNT_OF(by_len));
    uint32_t code = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return by_len[0];
        code = code << 6 | (p[i] & 63u);
    }
    const uint32_t left = (uint32_t)(6 * (len - n));
    return (struct code_range){
        MAX(code << left, by_len[len].from), MIN((code << left) + ((1u << left) - 1), by_len[len].to)};
}

static size_t lead_len(uint8_t byte)
{
    return byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
}

/* How many characters, the last one perhaps cut short, a token has when it is of the class alone; 0 when it is not. */
static uint32_t class_length(const struct token_class *c, struct str t)
{
    const uint8_t *p = (const uint8_t *)t.p;
    uint32_t n = 0;
    for (size_t i = 0; i < t.n; n++) {
        const size_t len = lead_len(p[i]), have = MIN(len, t.n - i);
        if (len == 0 || (c->starts[p[i] / 64] >> (p[i] % 64) & 1) == 0)
            return 0;
        if (len > 1) {
            const struct code_range codes = codes_of(p + i, have, len);
            if (codes.from > codes.to || !class_meets(c, codes.from, codes.to))
                return 0;
        }
        i += have;
    }
    return n;
}

static void class_starts(struct token_class *c)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        const uint8_t b = (uint8_t)byte;
        const size_t len = lead_len(b);
        if (len == 0)
            continue;
        const struct code_range codes = codes_of(&b, 1, len);
        if (class_meets(c, codes.from, codes.to))
            c->starts[byte / 64] |= UINT64_C(1) << (byte % 64);
    }
}

static int longest_first(const void *a, const void *z, void *lengths)
{
    const uint32_t ia = *(const uint32_t *)a, iz = *(const uint32_t *)z;
    const uint16_t *n = lengths;
    return n[ia] != n[iz] ? (n[ia] > n[iz] ? -1 : 1) : (ia < iz ? -1 : ia > iz);
}

/* Sorts the vocabulary by the class: lengths[id] is 0 outside it. */
static enum err class_fill(const struct grammar_vocab *v, struct token_class *c, uint16_t *lengths, uint32_t *rest)
{
    uint32_t n_rest = 0, n_long = 0;
    for (uint32_t i = 0; i < v->n_sorted; i++) {
        const uint32_t id = v->sorted[i];
        const struct str t = vocab_token(v, id);
        const uint32_t n = class_length(c, t);
        lengths[id] = (uint16_t)n;
        if (n == 0 && (c->starts[(uint8_t)t.p[0] / 64] >> ((uint8_t)t.p[0] % 64) & 1) != 0)
            rest[n_rest++] = id;
        if (n > 0)
            c->all[id / 64] |= UINT64_C(1) << (id % 64);
        for (uint32_t k = n; n > 0 && k < CLASS_SHORT; k++)
            c->within[k][id / 64] |= UINT64_C(1) << (id % 64);
        n_long += n >= CLASS_SHORT;
    }
    c->longer = mem_array((size_t)n_long + 1, sizeof *c->longer);
    c->lengths = mem_array((size_t)n_long + 1, sizeof *c->lengths);
    if (c->longer == NULL || c->lengths == NULL)
        return ERR_NOMEM;
    for (uint32_t id = 0; id < v->n; id++)
        if (lengths[id] >= CLASS_SHORT)
            c->longer[c->n_longer++] = id;
    qsort_r(c->longer, c->n_longer, sizeof *c->longer, longest_first, lengths);
    for (uint32_t i = 0; i < c->n_longer; i++)
        c->lengths[i] = lengths[c->longer[i]];
    return vocab_trie(v, rest, n_rest, &c->rest, NULL);
}

/* From the last node to the first: those below a node come before it. ok[d] says whether all nodes at depth d that were
 * seen since their parent's next sibling are of the class, and all below them. */
static enum err class_pure(const struct grammar_vocab *v, struct token_class *c)
{
    uint8_t *ok = mem_alloc((size_t)v->longest + 2);
    c->pure = mem_array(v->trie.n / 64 + 1, sizeof *c->pure);
    if (ok == NULL || c->pure == NULL) {
        mem_free(ok);
        return ERR_NOMEM;
    }
    memset(ok, 1, (size_t)v->longest + 2);
    for (uint32_t i = v->trie.n; i-- > 1;) {
        const struct trie_node *node = &v->trie.nodes[i];
        const uint8_t below = ok[node->depth + 1];
        c->pure[i / 64] |= (uint64_t)below << (i % 64);
        ok[node->depth] &=
            below & (uint8_t)(node->byte < 0x80 && (c->starts[node->byte / 64] >> (node->byte % 64) & 1) != 0);
        ok[node->depth + 1] = 1;
    }
    mem_free(ok);
    return OK;
}

static struct token_class *class_make(const struct grammar_vocab *v, const struct code_range *r, uint32_t n)
{
    struct token_class *c = mem_zalloc(sizeof *c);
    uint16_t *lengths = mem_array((size_t)v->n + 1, sizeof *lengths);
    uint32_t *rest = mem_array((size_t)v->n_sorted + 1, sizeof *rest);
    enum err err = ERR_NOMEM;
    if (c == NULL || lengths == NULL || rest == NULL)
        goto out;
    c->ranges = mem_array(n, sizeof *c->ranges);
    c->all = mem_array((size_t)v->words + 1, sizeof *c->all);
    c->within[0] = mem_array((size_t)v->words * CLASS_SHORT + 1, sizeof *c->all);
    if (c->ranges == NULL || c->all == NULL || c->within[0] == NULL)
        goto out;
    for (uint32_t i = 1; i < CLASS_SHORT; i++)
        c->within[i] = c->within[0] + (size_t)v->words * i;
    memcpy(c->ranges, r, n * sizeof *r);
    c->n_ranges = n;
    class_starts(c);
    err = class_fill(v, c, lengths, rest);
    if (err == OK)
        err = class_pure(v, c);
    c->bytes = sizeof *c + (size_t)v->words * 8 * (CLASS_SHORT + 1) + c->rest.n * sizeof *c->rest.nodes + v->trie.n / 8;
out:
    mem_free(lengths);
    mem_free(rest);
    if (err == OK)
        return c;
    class_free(c);
    return NULL;
}

const struct token_class *vocab_class(const struct grammar_vocab *v, const struct code_range *r, uint32_t n)
{
    struct class_cache *cache = v->classes;
    struct token_class *found = NULL;
    if (n == 0)
        return NULL;
    (void)pthread_mutex_lock(&cache->lock);
    for (struct token_class *c = cache->first; c != NULL && found == NULL; c = c->next)
        if (c->n_ranges == n && memcmp(c->ranges, r, n * sizeof *r) == 0)
            found = c;
    if (found == NULL && cache->n < GRAMMAR_CLASSES_MAX && cache->bytes < GRAMMAR_CLASS_BYTES_MAX) {
        found = class_make(v, r, n);
        if (found != NULL) {
            found->next = cache->first;
            cache->first = found;
            cache->n++;
            cache->bytes += found->bytes;
        }
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return found;
}
