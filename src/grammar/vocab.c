/* The vocabulary as a trie over bytes, made once per model. Tokens are sorted by their bytes, so the nodes come out in
 * the order of a walk, and a subtree is a stretch of the array: what a byte rules out is skipped by one jump.
 *
 * A control token is GRAMMAR_CONTROL and its name. Tokens without bytes, holes and the unknown token stand for no text
 * and are in no mask. */
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
    return (view->flags[id] & (VOCAB_HOLE | VOCAB_UNKNOWN)) == 0 && vocab_bytes(view, id).n > 0;
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

/* Nodes of a sorted list of tokens; with nodes NULL they are only counted. Tokens of equal bytes hang on the first. */
static uint32_t trie_fill(
    struct grammar_vocab *v, const uint32_t *ids, uint32_t n, struct trie_node *nodes, uint32_t *path)
{
    uint32_t used = 1;
    struct str last = {"", 0};
    uint32_t last_id = NONE32;
    if (nodes != NULL)
        nodes[0] = (struct trie_node){.token = NONE32};
    path[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct str t = vocab_token(v, ids[i]);
        const size_t keep = shared_bytes(last, t);
        if (last_id != NONE32 && keep == t.n && keep == last.n) {
            if (nodes != NULL)
                v->same_as[last_id] = ids[i];
            last_id = ids[i];
            continue;
        }
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
        last_id = ids[i];
    }
    for (size_t k = last.n + 1; nodes != NULL && k-- > 0;)
        nodes[path[k]].end = used;
    return used;
}

static enum err trie_make(struct grammar_vocab *v, const uint32_t *ids, uint32_t n, struct trie *t, struct error *e)
{
    uint32_t *path = mem_array((size_t)v->longest + 1, sizeof *path);
    if (path == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    t->n = trie_fill(v, ids, n, NULL, path);
    t->nodes = mem_array(t->n, sizeof *t->nodes);
    if (t->nodes != NULL)
        (void)trie_fill(v, ids, n, t->nodes, path);
    mem_free(path);
    return t->nodes != NULL ? OK : FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
}

static enum err vocab_make(struct grammar_vocab *v, const struct vocab_view *view, struct error *e)
{
    TRY(copy_tokens(v, view, e));
    uint32_t *ids = mem_array((size_t)view->n + 1, sizeof *ids), n = 0;
    if (ids == NULL)
        return FAIL(e, ERR_NOMEM, "out of memory for the trie of a vocabulary");
    for (uint32_t id = 0; id < view->n; id++)
        if (v->at[id + 1] > v->at[id])
            ids[n++] = id;
    qsort_r(ids, n, sizeof *ids, compare_tokens, v);
    const enum err err = trie_make(v, ids, n, &v->trie, e);
    mem_free(ids);
    return err;
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
    mem_free(v->trie.nodes);
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
        uint32_t child = at + 1;
        while (child < v->trie.nodes[at].end && v->trie.nodes[child].byte != byte)
            child = v->trie.nodes[child].end;
        if (child >= v->trie.nodes[at].end)
            return false;
        at = child;
    }
    return name.n > 0 && v->trie.nodes[at].token != NONE32;
}
