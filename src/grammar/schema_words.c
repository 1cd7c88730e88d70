/* Sets of texts as languages: the words of an enum, the names an object declares. Sorted words share their beginnings,
 * so the machine is a tree made in one pass; making it minimal joins their ends. */
#include "base/limits.h"
#include "grammar/schema_int.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    const int c = memcmp(x->p, y->p, MIN(x->n, y->n));
    return c != 0 ? c : (x->n > y->n) - (x->n < y->n);
}

static size_t shared_bytes(struct str a, struct str b)
{
    size_t n = 0;
    while (n < MIN(a.n, b.n) && a.p[n] == b.p[n])
        n++;
    return n;
}

enum err schema_words_lang(struct schema *s, const struct str_list *words, const struct lang **out, struct error *e)
{
    size_t n = 0, bytes = 0, longest = 0;
    for (const struct str_list *w = words; w != NULL; w = w->next) {
        n++;
        bytes += w->s.n;
        longest = MAX(longest, w->s.n);
    }
    TRY(schema_step(s, n + bytes / 8, e));
    if (bytes > SCHEMA_WORDS_BYTES_MAX)
        return FAIL(e, ERR_LIMIT, "the words of an enum or the names of an object have more than %d bytes",
            SCHEMA_WORDS_BYTES_MAX);
    struct str *word = schema_take(s, n + 1, sizeof *word, e);
    uint32_t *path = schema_take(s, longest + 1, sizeof *path, e); /* states along the word before */
    struct lang_edge *edge = schema_take(s, bytes + 1, sizeof *edge, e);
    bool *final = schema_take(s, bytes + 1, sizeof *final, e);
    if (word == NULL || path == NULL || edge == NULL || final == NULL)
        return e->code;
    size_t i = 0;
    for (const struct str_list *w = words; w != NULL; w = w->next)
        word[i++] = w->s;
    qsort(word, n, sizeof *word, by_bytes);
    uint32_t n_states = 1, n_edges = 0;
    for (i = 0; i < n; i++) {
        size_t k = i > 0 ? shared_bytes(word[i - 1], word[i]) : 0;
        for (; k < word[i].n; k++) {
            const uint8_t byte = (uint8_t)word[i].p[k];
            edge[n_edges++] = (struct lang_edge){path[k], n_states, byte, byte};
            path[k + 1] = n_states++;
        }
        final[path[word[i].n]] = true;
    }
    *out = lang_edges(s->b, n_states, edge, n_edges, final, e);
    return *out != NULL ? OK : e->code;
}
