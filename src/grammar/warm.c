/* What is done before a grammar is handed out, on the thread that compiled it, so that the threads that sample find the
 * costly masks ready.
 *
 * Classes. A state that some characters lead back to itself (the inside of a string, free text) gives the set of those
 * characters; every state that can read all of them for ever, wherever they lead, starts its masks from the tokens of
 * that set. "For ever" is the largest relation between states such that each byte a character may go on with leads from
 * related states to related states. A counted loop whose rounds are single characters does the same, up to its count.
 *
 * Masks. The places of the automaton are visited as a text would reach them, breadth first and without going deep into
 * recursion, and where a class is read the mask is made, and at the start. Other masks are made when they are first
 * needed: they have few tokens and take a few microseconds. */
#include "base/hash.h"
#include "grammar/walk.h"

#include <string.h>

#define RANGES_MAX       4096 /* of a class; \p{L} has 650 */
#define MIDDLES_MAX      24   /* states inside a character; any character has 7 */
#define ASCII_MIN        16   /* a class of fewer ASCII characters is not worth it */
#define WIDE_MIN         64   /* bytes that lead on from a state that is worth warming without a class */
#define FRAMES_SEEN      5    /* frames of a place that tell it from others */
#define PLACES_MAX       4096 /* that are visited */
#define PLACES_TABLE     8192
#define PLACE_FRAMES_MAX 4096

/* The characters that lead from a state to where `ends` holds, by ways through states of their own. */
struct chars {
    const struct automaton *a;
    uint32_t state;
    bool counted; /* they must end a round; otherwise they must lead back to the state */
    struct code_range *ranges;
    uint32_t n;
    uint32_t middles[MIDDLES_MAX], n_middles;
    bool full; /* too many ranges or states */
};

static bool chars_end(const struct chars *c, uint32_t state)
{
    const struct auto_state *s = &c->a->states[state];
    return c->counted ? s->flags == AUTO_ACCEPT && s->n_edges == 0 : state == c->state;
}

/* May only lead on with continuation bytes, and only to the end: then any of its bytes will do. */
static bool is_middle(const struct chars *c, uint32_t state, uint32_t left)
{
    const struct auto_state *s = &c->a->states[state];
    if ((s->flags & (AUTO_ACCEPT | AUTO_CALLS)) != 0 || s->n_edges == 0 || left == 0)
        return false;
    for (uint32_t i = 0; i < s->n_edges; i++) {
        const struct dfa_edge *g = &c->a->edges[s->edge_at + i];
        if (g->lo < 0x80 || g->hi > 0xBF || !(left == 1 ? chars_end(c, g->to) : is_middle(c, g->to, left - 1)))
            return false;
    }
    return true;
}

static void chars_add(struct chars *c, uint32_t from, uint32_t to)
{
    if (c->n > 0 && c->ranges[c->n - 1].to + 1 == from) {
        c->ranges[c->n - 1].to = to;
        return;
    }
    c->full |= c->n == RANGES_MAX;
    if (!c->full)
        c->ranges[c->n++] = (struct code_range){from, to};
}

static void middle_add(struct chars *c, uint32_t state)
{
    for (uint32_t i = 0; i < c->n_middles; i++)
        if (c->middles[i] == state)
            return;
    c->full |= c->n_middles == MIDDLES_MAX;
    if (!c->full)
        c->middles[c->n_middles++] = state;
}

/* Every continuation leads on, at every level. */
static bool is_whole(const struct automaton *a, uint32_t state, uint32_t left)
{
    const struct auto_state *s = &a->states[state];
    const struct dfa_edge *g = &a->edges[s->edge_at];
    return s->n_edges == 1 && g->lo == 0x80 && g->hi == 0xBF && (left == 1 || is_whole(a, g->to, left - 1));
}

static void chars_below(struct chars *c, uint32_t state, uint32_t code, uint32_t left)
{
    const struct auto_state *s = &c->a->states[state];
    middle_add(c, state);
    for (uint32_t i = 0; i < s->n_edges && !c->full; i++) {
        const struct dfa_edge *g = &c->a->edges[s->edge_at + i];
        const uint32_t shift = 6 * (left - 1), lo = code << 6 | (g->lo & 63u), hi = code << 6 | (g->hi & 63u);
        if (left == 1 || is_whole(c->a, g->to, left - 1)) {
            chars_add(c, lo << shift, (hi << shift) + ((1u << shift) - 1));
            for (uint32_t to = g->to, k = left; k > 1; k--) {
                middle_add(c, to);
                to = c->a->edges[c->a->states[to].edge_at].to;
            }
            continue;
        }
        for (uint32_t x = lo; x <= hi && !c->full; x++)
            chars_below(c, g->to, x, left - 1);
    }
}

static void chars_find(struct chars *c)
{
    const struct auto_state *s = &c->a->states[c->state];
    c->n = c->n_middles = 0;
    c->full = false;
    for (uint32_t i = 0; i < s->n_edges && !c->full; i++) {
        const struct dfa_edge *g = &c->a->edges[s->edge_at + i];
        if (g->lo < 0x80 && chars_end(c, g->to))
            chars_add(c, g->lo, MIN(g->hi, 0x7F));
        for (uint32_t b = MAX(g->lo, 0xC2); b <= g->hi && b < 0xF5 && !c->full; b++) {
            const uint32_t left = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
            if (is_middle(c, g->to, left))
                chars_below(c, g->to, b & (0x3Fu >> left), left);
        }
    }
}

static uint32_t ascii_count(const struct chars *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n && c->ranges[i].from < 0x80; i++)
        n += MIN(c->ranges[i].to, 0x7F) - c->ranges[i].from + 1;
    return n;
}

/* ---- who else can read them for ever ---- */

/* related[s * n + q]: state s goes on with whatever model state q goes on with. Model states are the class's own state
 * and the states inside its characters. */
struct relation {
    const struct automaton *a;
    const struct chars *c;
    uint32_t n;
    uint32_t model[MIDDLES_MAX + 1];
    uint8_t *related;
};

static uint32_t model_number(const struct relation *r, uint32_t state)
{
    for (uint32_t q = 0; q < r->n; q++)
        if (r->model[q] == state)
            return q;
    return NONE32;
}

/* Do all bytes lo..hi lead from s to states related to q? */
static bool leads(const struct relation *r, uint32_t s, uint32_t lo, uint32_t hi, uint32_t q)
{
    const struct auto_state *st = &r->a->states[s];
    for (uint32_t i = 0; i < st->n_edges && lo <= hi; i++) {
        const struct dfa_edge *g = &r->a->edges[st->edge_at + i];
        if (g->hi < lo)
            continue;
        if (g->lo > lo || r->related[(size_t)g->to * r->n + q] == 0)
            return false;
        lo = g->hi + 1u;
    }
    return lo > hi;
}

static bool still_related(const struct relation *r, uint32_t s, uint32_t q)
{
    const struct auto_state *m = &r->a->states[r->model[q]];
    for (uint32_t i = 0; i < m->n_edges; i++) {
        const struct dfa_edge *g = &r->a->edges[m->edge_at + i];
        const uint32_t to = model_number(r, g->to);
        if (to == NONE32 || (q == 0 && to != 0 && g->lo < 0x80))
            continue; /* leaves the class */
        if (!leads(r, s, g->lo, g->hi, to))
            return false;
    }
    return true;
}

/* States that are not of the class get its number where they are related to it. */
static void relate(struct grammar *g, struct relation *r, uint8_t number)
{
    const uint32_t n_states = g->a.n_states;
    memset(r->related, 1, (size_t)n_states * r->n);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = 0; s < n_states; s++)
            for (uint32_t q = 0; q < r->n; q++)
                if (r->related[(size_t)s * r->n + q] != 0 && !still_related(r, s, q)) {
                    r->related[(size_t)s * r->n + q] = 0;
                    changed = true;
                }
    }
    for (uint32_t s = 0; s < n_states; s++)
        if (r->related[(size_t)s * r->n] != 0 && g->class_of[s] == 0)
            g->class_of[s] = number;
}

/* The number of a class in the grammar, taken in when it is new; 0: no more room. */
static uint8_t class_number(struct grammar *g, const struct chars *c)
{
    const struct token_class *t = vocab_class(g->vocab, c->ranges, c->n);
    for (uint8_t i = 0; i < GRAMMAR_STATE_CLASSES_MAX && t != NULL; i++) {
        if (g->classes[i] == t)
            return (uint8_t)(i + 1);
        if (g->classes[i] == NULL) {
            g->classes[i] = t;
            return (uint8_t)(i + 1);
        }
    }
    return 0;
}

static enum err find_classes(struct grammar *g, struct chars *c, struct error *e)
{
    const struct automaton *a = &g->a;
    for (uint32_t l = 1; l <= a->n_loops; l++) { /* counted first: their start reads no further than the count */
        c->state = a->loops[l].start;
        c->counted = true;
        chars_find(c);
        if (c->full || ascii_count(c) < ASCII_MIN)
            continue;
        const uint8_t number = class_number(g, c);
        if (number != 0)
            g->class_of[c->state] = (uint8_t)(number | CLASS_COUNTED);
    }
    c->counted = false;
    for (uint32_t s = 0; s < a->n_states; s++) {
        c->state = s;
        if (g->class_of[s] != 0)
            continue;
        chars_find(c);
        if (c->full || ascii_count(c) < ASCII_MIN)
            continue;
        const uint8_t number = class_number(g, c);
        if (number == 0)
            continue;
        struct relation r = {.a = a, .c = c, .n = c->n_middles + 1, .model = {s}};
        memcpy(r.model + 1, c->middles, c->n_middles * sizeof *c->middles);
        r.related = mem_alloc((size_t)a->n_states * r.n);
        if (r.related == NULL)
            return FAIL(e, ERR_NOMEM, "out of memory for the classes of a grammar");
        relate(g, &r, number);
        mem_free(r.related);
    }
    return OK;
}

/* ---- visiting ---- */

struct visit {
    struct grammar *g;
    struct stepper t;
    struct stack_frame *frames;
    struct reading *queue;
    uint64_t *seen; /* a table of keys */
    uint32_t n;
    uint64_t nodes;
    uint64_t *mask;
};

/* A place is a state and the frames nearest to it; how often a loop went round does not make another. */
static uint64_t place_key(const struct visit *v, struct reading r)
{
    uint32_t parts[FRAMES_SEEN + 1] = {r.state};
    uint32_t n = 1;
    for (uint32_t f = r.frame; f != 0 && n <= FRAMES_SEEN; f = v->frames[f].below)
        parts[n++] = v->frames[f].to;
    return hash64(parts, n * sizeof *parts, 0) | 1;
}

static void visit_add(struct visit *v, struct reading r)
{
    const uint64_t key = place_key(v, r);
    uint64_t h = key >> 1;
    for (; v->seen[h % PLACES_TABLE] != 0; h++)
        if (v->seen[h % PLACES_TABLE] == key)
            return;
    if (v->n == PLACES_MAX)
        return;
    v->seen[h % PLACES_TABLE] = key;
    v->queue[v->n++] = r;
}

/* Most bytes lead somewhere: many tokens will be allowed. */
static bool is_wide(const struct automaton *a, uint32_t state)
{
    const struct auto_state *s = &a->states[state];
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < s->n_edges; i++)
        bytes += a->edges[s->edge_at + i].hi - a->edges[s->edge_at + i].lo + 1u;
    return bytes >= WIDE_MIN;
}

static void visit_all(struct visit *v)
{
    struct reading out[GRAMMAR_READINGS_MAX];
    const struct automaton *a = &v->g->a;
    const uint32_t n = stepper_start(&v->t, out);
    for (uint32_t i = 0; i < n; i++)
        visit_add(v, out[i]);
    const uint32_t n_start = v->n;
    for (uint32_t at = 0; at < v->n && v->t.n_frames + GRAMMAR_MET_MAX <= v->t.cap_frames;) {
        const struct reading r = v->queue[at++];
        const struct auto_state *s = &a->states[r.state];
        for (uint32_t i = 0; i < s->n_edges && v->t.n_frames + GRAMMAR_MET_MAX <= v->t.cap_frames; i++) {
            const uint32_t k = stepper_byte(&v->t, &r, 1, a->edges[s->edge_at + i].lo, out);
            for (uint32_t m = 0; m < k; m++)
                visit_add(v, out[m]);
        }
    }
    /* First where every text starts and where classes are read, then where much is allowed anyway. */
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < v->n && v->nodes < GRAMMAR_WARM_NODES_MAX; i++)
            if (turn == 0 ? i < n_start || v->g->class_of[v->queue[i].state] != 0 : is_wide(a, v->queue[i].state))
                v->nodes += mask_warm(v->g, v->frames, v->queue[i], v->mask);
}

static enum err warm_masks(struct grammar *g, struct error *e)
{
    struct visit v = {.g = g,
        .frames = mem_alloc(PLACE_FRAMES_MAX * sizeof *v.frames),
        .queue = mem_alloc(PLACES_MAX * sizeof *v.queue),
        .seen = mem_array(PLACES_TABLE, sizeof *v.seen),
        .mask = mem_alloc(g->vocab->words * sizeof *v.mask)};
    enum err err = OK;
    if (v.frames == NULL || v.queue == NULL || v.seen == NULL || v.mask == NULL) {
        err = FAIL(e, ERR_NOMEM, "out of memory for the masks of a grammar");
    } else {
        v.frames[0] = (struct stack_frame){0};
        stepper_init(&v.t, &g->a, v.frames, 1, PLACE_FRAMES_MAX);
        visit_all(&v);
    }
    mem_free(v.frames);
    mem_free(v.queue);
    mem_free(v.seen);
    mem_free(v.mask);
    return err;
}

enum err grammar_prepare(struct grammar *g, struct error *e)
{
    struct chars c = {.a = &g->a, .ranges = mem_array(RANGES_MAX, sizeof *c.ranges)};
    g->class_of = mem_zalloc(g->a.n_states);
    enum err err = OK;
    if (c.ranges == NULL || g->class_of == NULL)
        err = FAIL(e, ERR_NOMEM, "out of memory for the classes of a grammar");
    if (err == OK)
        err = find_classes(g, &c, e);
    mem_free(c.ranges);
    return err != OK ? err : warm_masks(g, e);
}
