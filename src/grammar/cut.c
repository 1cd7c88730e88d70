/* Where forced text is cut into tokens. The next turn of a conversation sends an answer back as text, and the tokenizer
 * cuts it: so that the tokens are the same and the prefix cache is hit, forced text is cut as the tokenizer cuts it.
 * That is found out when a grammar is compiled, for every stretch of states from which one byte leads on and nothing
 * else does; what a state's next token is depends on the state alone.
 *
 * A stretch is encoded as a whole, from where it begins. A token of the model's own choice may end inside it, so for
 * the other places what is left is encoded too. What follows a stretch is not known here. Where a letter or a digit
 * may, it is encoded with some of them behind it, and what is cut otherwise then is left to the model: the blank before
 * true and false belongs to the next token. Where a rule ends or is called and forced text may go on, nothing is said
 * of the last token. Places about which nothing is said follow the rule of the longest token (walk.c). A cut is used
 * only when its bytes are those of the stretch.
 *
 * Bounds: GRAMMAR_CUT_CALLS_MAX calls of the tokenizer, GRAMMAR_CUT_BYTES bytes each. */
#include "grammar/walk.h"

#include <string.h>

struct cutting {
    struct grammar *g;
    uint32_t calls;
    bool is_open;  /* behind the text something forced may follow */
    uint32_t sure; /* bytes that are cut the same whatever follows */
    uint32_t n;
    char text[GRAMMAR_CUT_BYTES + 1];       /* with room for what may follow */
    uint32_t states[GRAMMAR_CUT_BYTES + 1]; /* before each byte, and behind the last */
    uint32_t ids[GRAMMAR_CUT_BYTES];
};

void grammar_vocab_cutter(struct grammar_vocab *v, grammar_cut_fn *fn, void *ctx)
{
    v->cut = fn;
    v->cut_ctx = ctx;
}

static bool is_forced(const struct automaton *a, uint32_t state)
{
    return a->states[state].flags == AUTO_FORCED;
}

static uint32_t next_of(const struct automaton *a, uint32_t state)
{
    return a->edges[a->states[state].edge_at].to;
}

/* The stretch from a state on, as far as there is room. */
static void stretch_read(struct cutting *c, uint32_t state)
{
    const struct automaton *a = &c->g->a;
    for (c->n = 0; c->n < GRAMMAR_CUT_BYTES && is_forced(a, state); c->n++) {
        c->states[c->n] = state;
        c->text[c->n] = (char)a->edges[a->states[state].edge_at].lo;
        state = next_of(a, state);
    }
    c->states[c->n] = state;
    c->is_open = is_forced(a, state) || (a->states[state].flags & (AUTO_ACCEPT | AUTO_CALLS)) != 0;
}

/* The bytes of the control token that begins here; 0: there is none. */
static uint32_t control_bytes(const struct cutting *c, uint32_t at, uint32_t *id)
{
    const struct trie *trie = &c->g->vocab->trie;
    uint32_t node = 0, n = 0;
    for (uint32_t i = at; i < c->n; i++) {
        node = trie_child(trie, node, (uint8_t)c->text[i]);
        if (node == 0)
            break;
        if (trie->nodes[node].token != NONE32) {
            *id = trie->nodes[node].token;
            n = i + 1 - at;
        }
    }
    return n;
}

/* The tokens of text[from..to), less the last one when the text may go on. Of several only the first when `first`. */
static void cut_text(struct cutting *c, uint32_t from, uint32_t to, bool first)
{
    const struct grammar_vocab *v = c->g->vocab;
    if (c->calls == GRAMMAR_CUT_CALLS_MAX || from == to)
        return;
    c->calls++;
    const uint32_t n = v->cut(v->cut_ctx, (struct str){c->text + from, to - from}, c->ids, GRAMMAR_CUT_BYTES);
    uint32_t at = from;
    for (uint32_t i = 0; i < n && at < to; i++) {
        if (c->ids[i] >= v->n)
            return;
        const struct str t = vocab_token(v, c->ids[i]);
        if (t.n == 0 || t.n > to - at || memcmp(t.p, c->text + at, t.n) != 0)
            return; /* the tokenizer wrote something else than the text */
        uint32_t *cut = &c->g->cut[c->states[at]];
        at += (uint32_t)t.n;
        if (*cut == NONE32 && at > c->sure)
            *cut = CUT_FREE;
        else if (*cut == NONE32 && !(at == to && to == c->n && c->is_open))
            *cut = c->ids[i];
        if (first)
            return;
    }
}

/* Where the text ends that may be encoded in one go: at a control token, or at the end. */
static uint32_t text_end(const struct cutting *c, uint32_t from)
{
    const char *p = memchr(c->text + from, GRAMMAR_CONTROL, c->n - from);
    return p != NULL ? (uint32_t)(p - c->text) : c->n;
}

/* Where the stretch with one more byte is cut otherwise than without: the bytes before that. */
static uint32_t sure_with(struct cutting *c, char byte)
{
    const struct grammar_vocab *v = c->g->vocab;
    uint32_t ids[GRAMMAR_CUT_BYTES + 1], at = 0;
    if (c->calls + 2 > GRAMMAR_CUT_CALLS_MAX)
        return c->n;
    c->calls += 2;
    c->text[c->n] = byte;
    const uint32_t n = v->cut(v->cut_ctx, (struct str){c->text, c->n}, c->ids, GRAMMAR_CUT_BYTES);
    const uint32_t k = v->cut(v->cut_ctx, (struct str){c->text, c->n + 1}, ids, GRAMMAR_CUT_BYTES + 1);
    for (uint32_t i = 0; i < n && i < k && c->ids[i] == ids[i] && ids[i] < v->n; i++)
        at += (uint32_t)vocab_token(v, ids[i]).n;
    return MIN(at, c->n);
}

/* Tries letters and digits that may follow the stretch. */
static void look_behind(struct cutting *c)
{
    static const uint8_t probes[][2] = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    const struct automaton *a = &c->g->a;
    const struct auto_state *s = &a->states[c->states[c->n]];
    c->sure = c->n;
    if (c->is_open || c->n == 0 || text_end(c, 0) < c->n)
        return;
    for (uint32_t i = 0, tried = 0; i < s->n_edges; i++)
        for (size_t k = 0; k < COUNT_OF(probes) && tried < GRAMMAR_CUT_PROBES_MAX; k++) {
            const struct dfa_edge *g = &a->edges[s->edge_at + i];
            if (g->lo > probes[k][1] || g->hi < probes[k][0])
                continue;
            c->sure = MIN(c->sure, sure_with(c, (char)MAX(g->lo, probes[k][0])));
            tried++;
        }
}

static void cut_stretch(struct cutting *c, uint32_t state)
{
    stretch_read(c, state);
    look_behind(c);
    for (uint32_t at = 0; at < c->n;) {
        const uint32_t end = text_end(c, at);
        cut_text(c, at, end, false);
        at = end;
        uint32_t id = NONE32;
        const uint32_t n = at < c->n ? control_bytes(c, at, &id) : 0;
        if (at < c->n && n == 0)
            return; /* its name goes on beyond what was read */
        if (n > 0 && c->g->cut[c->states[at]] == NONE32)
            c->g->cut[c->states[at]] = id;
        at += n;
    }
    for (uint32_t at = 1; at < c->n; at++) { /* where a token of the model's may end */
        const uint32_t end = text_end(c, at);
        if (end > at && c->g->cut[c->states[at]] == NONE32)
            cut_text(c, at, end, true);
    }
}

enum err grammar_cuts(struct grammar *g, struct error *e)
{
    const struct automaton *a = &g->a;
    if (g->vocab->cut == NULL)
        return OK;
    struct cutting *c = mem_alloc(sizeof *c);
    bool *follows = mem_zalloc(a->n_states);
    g->cut = mem_array(a->n_states, sizeof *g->cut);
    enum err err = OK;
    if (c == NULL || follows == NULL || g->cut == NULL)
        err = FAIL(e, ERR_NOMEM, "out of memory for the forced texts of a grammar");
    for (uint32_t s = 0; err == OK && s < a->n_states; s++) {
        g->cut[s] = NONE32;
        if (is_forced(a, s))
            follows[next_of(a, s)] = true;
    }
    if (err == OK) {
        c->g = g;
        c->calls = 0;
    }
    for (uint32_t s = 0; err == OK && s < a->n_states; s++) {
        if (!is_forced(a, s) || follows[s])
            continue;
        uint32_t at = s; /* a stretch that is longer than the room is several */
        do {
            cut_stretch(c, at);
            at = c->states[c->n];
        } while (c->n == GRAMMAR_CUT_BYTES && c->calls < GRAMMAR_CUT_CALLS_MAX);
    }
    mem_free(follows);
    mem_free(c);
    return err;
}
