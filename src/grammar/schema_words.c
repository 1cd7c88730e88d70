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

enum err schema_json_text(struct schema *s, struct str text, struct str *out, struct error *e)
{
    static const char hex[] = "0123456789abcdef", plain[] = "\b\t\n\f\r\"\\", letter[] = "btnfr\"\\";
    char *p = schema_take(s, 6 * text.n + 2, 1, e);
    if (p == NULL)
        return e->code;
    size_t n = 0;
    p[n++] = '"';
    for (size_t i = 0; i < text.n; i++) {
        const char c = text.p[i];
        const char *known = c != '\0' ? strchr(plain, c) : NULL;
        if (known != NULL) {
            p[n++] = '\\';
            p[n++] = letter[known - plain];
        } else if ((uint8_t)c < 0x20) {
            p[n] = '\\';
            p[n + 1] = 'u';
            p[n + 2] = p[n + 3] = '0';
            p[n + 4] = hex[(uint8_t)c >> 4];
            p[n + 5] = hex[(uint8_t)c & 15];
            n += 6;
        } else
            p[n++] = c;
    }
    p[n++] = '"';
    *out = (struct str){p, n};
    return OK;
}

/* Every text has one spelling of the kind schema_json_text writes, so a key that is none of the declared ones is a
 * spelling that is none of theirs: cheaper than escaping a complement. */
#define SPELLINGS "(?:[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))*"

enum err schema_other_spellings(
    struct schema *s, const struct str_list *words, const struct lang **out, struct error *e)
{
    if (s->spellings == NULL)
        s->spellings = lang_regex(s->b, STR(SPELLINGS), true, e);
    if (s->spellings == NULL)
        return e->code;
    const struct str_list *spelled = NULL;
    for (const struct str_list *w = words; w != NULL; w = w->next) {
        struct str_list *x = schema_take(s, 1, sizeof *x, e);
        if (x == NULL)
            return e->code;
        TRY(schema_json_text(s, w->s, &x->s, e));
        x->s = (struct str){x->s.p + 1, x->s.n - 2};
        x->next = spelled;
        spelled = x;
    }
    const struct lang *taken = NULL;
    TRY(schema_words_lang(s, spelled, &taken, e));
    taken = taken != NULL ? lang_not(s->b, taken, e) : NULL;
    *out = taken != NULL ? lang_and(s->b, s->spellings, taken, e) : NULL;
    return *out != NULL ? OK : e->code;
}
