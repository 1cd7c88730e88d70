/* The vocabulary as a trie over bytes, made once per model. Tokens are sorted by their bytes, so the nodes come out in
 * the order of a walk, and a subtree is a stretch of the array: what a byte rules out is skipped by one jump.
 *
 * A control token is GRAMMAR_CONTROL and its name. Tokens without bytes, holes, the unknown token and the token of that
 * byte itself, which no text has, are in no mask. */
#include "base/vocab.h"
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

static bool is_control(uint8_t flags)
{
    return (flags & VOCAB_SPECIAL) != 0;
}

static bool has_text(const struct vocab_view *view, uint32_t id)
{
    const struct str t = vocab_bytes(view, id);
    if ((view->flags[id] & (VOCAB_HOLE | VOCAB_UNKNOWN)) != 0 || t.n == 0)
        return false;
    return is_control(view->flags[id]) || memchr(t.p, GRAMMAR_CONTROL, t.n) == NULL;
}

static enum err copy_tokens(struct grammar_vocab *v, const struct vocab_view *view, struct error *e)
{
    size_t total = 0;
    for (uint32_t id = 0; id < view->n; id++)
        total += has_text(view, id) ? vocab_bytes(view, id).n + is_control(view->flags[id]) : 0;
    if (total > UINT32_MAX)
        return FAIL(e, ERR_LIMIT, "the vocabulary has more than %u bytes", UINT32_MAX);
    v->bytes = mem_alloc(total + 1);
    v->at = mem_array((size_t)view->n + 1, sizeof *v->at);
    v->same_as = mem_array((size_t)view->n + 1, sizeof *v->same_as);
    if (v->bytes == NULL || v->at == NULL || v->same_as == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    uint32_t at = 0;
    for (uint32_t id = 0; id < view->n; id++) {
        const struct str t = vocab_bytes(view, id);
        v->at[id] = at;
        v->same_as[id] = NONE32;
        if (!has_text(view, id))
            continue;
        if (is_control(view->flags[id]))
            v->bytes[at++] = (char)GRAMMAR_CONTROL;
        memcpy(v->bytes + at, t.p, t.n);
        at += (uint32_t)t.n;
        v->longest = MAX(v->longest, at - v->at[id]);
    }
    v->at[view->n] = at;
    if (v->longest > UINT16_MAX)
        return FAIL(e, ERR_LIMIT, "a token has more than %d bytes", UINT16_MAX);
    return OK;
}

static int compare_tokens(const void *a, const void *z, void *vocab)
{
    const uint32_t ia = *(const uint32_t *)a, iz = *(const uint32_t *)z;
    const struct str x = vocab_token(vocab, ia), y = vocab_token(vocab, iz);
    const int c = memcmp(x.p, y.p, MIN(x.n, y.n));
    return c != 0 ? c : x.n != y.n ? (x.n < y.n ? -1 : 1) : (ia < iz ? -1 : ia > iz);
}

static size_t shared_bytes(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return n;
}

/* Nodes of a sorted list of tokens; with nodes NULL they are only counted. Of tokens with equal bytes only the first is
 * in it; the others hang on that one. */
static uint32_t trie_fill(
    const struct grammar_vocab *v, const uint32_t *ids, uint32_t n, struct trie_node *nodes, uint32_t *path)
{
    uint32_t used = 1;
    struct str last = {"", 0};
    if (nodes != NULL)
        nodes[0] = (struct trie_node){.token = NONE32};
    path[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct str t = vocab_token(v, ids[i]);
        const size_t keep = shared_bytes(last, t);
        if (keep == t.n && keep == last.n)
            continue;
        for (size_t k = last.n; nodes != NULL && k > keep; k--)
            nodes[path[k]].end = used;
        for (size_t k = keep; k < t.n; k++, used++) {
            path[k + 1] = used;
            if (nodes != NULL)
                nodes[used] = (struct trie_node){.token = NONE32, .depth = (uint16_t)(k + 1), .byte = (uint8_t)t.p[k]};
        }
        if (nodes != NULL)
            nodes[path[t.n]].token = ids[i];
        last = t;
    }
    for (size_t k = last.n + 1; nodes != NULL && k-- > 0;)
        nodes[path[k]].end = used;
    return used;
}

enum err vocab_trie(const struct grammar_vocab *v, const uint32_t *ids, uint32_t n, struct trie *t, struct error *e)
{
    uint32_t *path = mem_array((size_t)v->longest + 1, sizeof *path);
    if (path == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    t->n = trie_fill(v, ids, n, NULL, path);
    t->nodes = mem_array(t->n, sizeof *t->nodes);
    if (t->nodes != NULL) {
        (void)trie_fill(v, ids, n, t->nodes, path);
        memset(t->first, 0, sizeof t->first);
        for (uint32_t i = 1; i < t->n; i = t->nodes[i].end)
            t->first[t->nodes[i].byte] = i;
    }
    mem_free(path);
    return t->nodes != NULL ? OK : FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
}

static enum err index_second(struct trie *t, struct error *e)
{
    t->second = mem_array(256, sizeof *t->second);
    if (t->second == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    for (uint32_t byte = 0; byte < 256; byte++)
        for (uint32_t i = t->first[byte] + 1; t->first[byte] != 0 && i < t->nodes[t->first[byte]].end;
             i = t->nodes[i].end)
            t->second[byte][t->nodes[i].byte] = i;
    return OK;
}

static enum err vocab_make(struct grammar_vocab *v, const struct vocab_view *view, struct error *e)
{
    static const struct code_range free_text[] = {{0, '<' - 1}, {'<' + 1, 0xD7FF}, {0xE000, 0x10FFFF}};
    static const struct code_range json[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0xD7FF}, {0xE000, 0x10FFFF}};
    TRY(copy_tokens(v, view, e));
    v->sorted = mem_array((size_t)view->n + 1, sizeof *v->sorted);
    if (v->sorted == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    for (uint32_t id = 0; id < view->n; id++)
        if (v->at[id + 1] > v->at[id])
            v->sorted[v->n_sorted++] = id;
    qsort_r(v->sorted, v->n_sorted, sizeof *v->sorted, compare_tokens, v);
    for (uint32_t i = 1; i < v->n_sorted; i++)
        if (str_eq(vocab_token(v, v->sorted[i - 1]), vocab_token(v, v->sorted[i])))
            v->same_as[v->sorted[i - 1]] = v->sorted[i];
    TRY(vocab_trie(v, v->sorted, v->n_sorted, &v->trie, e));
    TRY(index_second(&v->trie, e));
    TRY(class_cache_new(&v->classes, e));
    /* What strings are made of, and free text in which a tag may begin: nearly every grammar will ask for one. */
    (void)vocab_class(v, json, COUNT_OF(json));
    (void)vocab_class(v, free_text, COUNT_OF(free_text));
    return OK;
}

enum err grammar_vocab_new(const struct vocab_view *view, struct grammar_vocab **out, struct error *e)
{
    struct grammar_vocab *v = mem_zalloc(sizeof *v);
    if (v == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    v->n = view->n;
    v->words = (view->n + 63) / 64;
    const enum err err = vocab_make(v, view, e);
    if (err != OK) {
        grammar_vocab_free(v);
        return err;
    }
    *out = v;
    return OK;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (v == NULL)
        return;
    class_cache_free(v->classes);
    mem_free(v->trie.nodes);
    mem_free(v->trie.second);
    mem_free(v->sorted);
    mem_free(v->same_as);
    mem_free(v->at);
    mem_free(v->bytes);
    mem_free(v);
}

bool vocab_has_control(const struct grammar_vocab *v, struct str name)
{
    uint32_t at = 0;
    for (size_t i = 0; i <= name.n; i++) { /* down the trie: the control byte, then the name */
        const uint8_t byte = i == 0 ? GRAMMAR_CONTROL : (uint8_t)name.p[i - 1];
        at = trie_child(&v->trie, at, byte);
        if (at == 0)
            return false;
    }
    return name.n > 0 && v->trie.nodes[at].token != NONE32;
}
