/* The trie of added tokens; see tok_added.h. Edges live in one hash table of (node, byte), as in the Unigram trie. */
#include "text/tok_added.h"

#include "base/limits.h"

#include <string.h>

struct matcher {
    struct tok_trie_slot *slots;
    size_t mask;
    uint32_t *found; /* per node: index of the token that ends there, or TOK_NONE */
    uint32_t n_nodes;
    bool starts[256];
};

static inline size_t edge_slot(uint32_t key, size_t mask)
{
    return (size_t)(key * 0x9E3779B1u >> 7) & mask;
}

static uint32_t edge_get(const struct matcher *m, uint32_t node, unsigned char byte)
{
    const uint32_t key = (node << 8 | byte) + 1;
    for (size_t i = edge_slot(key, m->mask); m->slots[i].key != 0; i = (i + 1) & m->mask)
        if (m->slots[i].key == key)
            return m->slots[i].child;
    return 0;
}

static uint32_t edge_add(struct matcher *m, uint32_t node, unsigned char byte)
{
    const uint32_t have = edge_get(m, node, byte);
    if (have != 0)
        return have;
    const uint32_t key = (node << 8 | byte) + 1;
    size_t i = edge_slot(key, m->mask);
    while (m->slots[i].key != 0)
        i = (i + 1) & m->mask;
    m->slots[i] = (struct tok_trie_slot){key, m->n_nodes};
    m->found[m->n_nodes] = TOK_NONE;
    return m->n_nodes++;
}

enum err matcher_new(const struct matcher_entry *entries, size_t n, struct matcher **out, struct error *e)
{
    *out = NULL;
    size_t nodes = 2, slots = 64;
    for (size_t i = 0; i < n; i++)
        nodes += entries[i].spelling.n;
    if (nodes >= (1u << 23))
        return FAIL(e, ERR_LIMIT, "the added tokens have %zu bytes; the limit is %u", nodes, 1u << 23);
    while (slots < 2 * nodes)
        slots *= 2;
    struct matcher *m = mem_zalloc(sizeof *m);
    if (m != NULL) {
        m->slots = mem_array(slots, sizeof *m->slots);
        m->found = mem_array(nodes, sizeof *m->found);
    }
    if (m == NULL || m->slots == NULL || m->found == NULL) {
        matcher_free(m);
        return FAIL(e, ERR_NOMEM, "no memory for %zu added tokens", n);
    }
    m->mask = slots - 1;
    m->n_nodes = 1;
    m->found[0] = TOK_NONE;
    for (size_t i = 0; i < n; i++) {
        const struct str s = entries[i].spelling;
        uint32_t node = 0;
        for (size_t at = 0; at < s.n; at++)
            node = edge_add(m, node, (unsigned char)s.p[at]);
        if (s.n > 0) {
            m->starts[(unsigned char)s.p[0]] = true;
            m->found[node] = entries[i].index;
        }
    }
    *out = m;
    return OK;
}

void matcher_free(struct matcher *m)
{
    if (m == NULL)
        return;
    mem_free(m->slots);
    mem_free(m->found);
    mem_free(m);
}

size_t matcher_at(const struct matcher *m, struct str text, size_t at, uint32_t *index)
{
    size_t longest = 0;
    uint32_t node = 0;
    for (size_t i = at; i < text.n; i++) {
        node = edge_get(m, node, (unsigned char)text.p[i]);
        if (node == 0)
            break;
        if (m->found[node] != TOK_NONE) {
            longest = i + 1 - at;
            *index = m->found[node];
        }
    }
    return longest;
}

bool matcher_next(const struct matcher *m, struct str text, size_t from, size_t *start, size_t *end, uint32_t *index)
{
    for (size_t at = from; at < text.n; at++) {
        if (!m->starts[(unsigned char)text.p[at]])
            continue;
        const size_t n = matcher_at(m, text, at, index);
        if (n > 0) {
            *start = at;
            *end = at + n;
            return true;
        }
    }
    return false;
}
