/* Walking: one byte at a time, all readings at once.
 *
 * Behind a byte, each reading is followed without bytes as far as it goes: where a rule may end, to the frame below;
 * where a rule is called, into it. What is kept are the readings that can read a byte. Their order is fixed by the
 * automaton, and when there are more than GRAMMAR_READINGS_MAX, or their stacks are deeper together than
 * GRAMMAR_FRAMES_MAX, the later ones are given up: then some texts of the grammar are no longer found, but none that is
 * not of it, and the first reading always stays.
 *
 * Most steps are one reading in a state without calls and ends: those cost a table lookup. */
#include "grammar/walk.h"

#include <string.h>

void stepper_init(struct stepper *t, const struct automaton *a, struct stack_frame *frames, uint32_t n, uint32_t cap)
{
    t->a = a;
    t->frames = frames;
    t->n_frames = n;
    t->cap_frames = cap;
    t->lowest = NONE32;
    t->deepest = 0;
    t->top = t->on_top = t->below = 0;
    t->closed = false;
    t->n_met = 0;
}

static bool same_stack(const struct stack_frame *f, uint32_t a, uint32_t b)
{
    while (a != b) {
        if (f[a].depth != f[b].depth || f[a].to != f[b].to || f[a].rounds != f[b].rounds || f[a].loop != f[b].loop)
            return false;
        a = f[a].below;
        b = f[b].below;
    }
    return true;
}

static bool has_reading(const struct stepper *t, const struct reading *list, uint32_t n, uint32_t state, uint32_t frame)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i].state == state && same_stack(t->frames, list[i].frame, frame))
            return true;
    return false;
}

static void keep(struct stepper *t, uint32_t state, uint32_t frame)
{
    const uint32_t depth = t->frames[frame].depth;
    if (t->full || has_reading(t, t->out, t->n_out, state, frame))
        return;
    if (t->n_out == GRAMMAR_READINGS_MAX || t->depths + depth > GRAMMAR_FRAMES_MAX) {
        t->full = true;
        return;
    }
    t->depths += depth;
    t->out[t->n_out++] = (struct reading){state, frame};
}

static uint32_t push(struct stepper *t, struct stack_frame f)
{
    f.depth = (uint16_t)(t->frames[f.below].depth + 1);
    for (uint32_t i = t->first_new; i < t->n_frames; i++) {
        const struct stack_frame *o = &t->frames[i];
        if (o->to == f.to && o->rounds == f.rounds && o->below == f.below && o->loop == f.loop)
            return i;
    }
    if (t->n_frames == t->cap_frames)
        return 0;
    t->frames[t->n_frames] = f;
    return t->n_frames++;
}

/* May a reading be in this state, so many frames deep? Only if it can be completed from there. */
static bool fits(struct stepper *t, uint32_t state, uint32_t depth)
{
    const uint32_t deepest = depth + t->a->states[state].need;
    if (deepest > GRAMMAR_DEPTH_MAX) {
        t->closed = true;
        return false;
    }
    t->deepest = MAX(t->deepest, deepest);
    return true;
}

static void reach(struct stepper *t, uint32_t state, uint32_t frame);

static void end_rule(struct stepper *t, uint32_t frame)
{
    t->lowest = MIN(t->lowest, frame);
    if (frame == 0) {
        t->complete = true;
        return;
    }
    const struct stack_frame f = t->frames[frame];
    if (f.loop == 0) {
        reach(t, f.to, f.below);
        return;
    }
    const struct auto_loop *l = &t->a->loops[f.loop];
    const bool unbounded = l->max == EXPR_UNBOUNDED;
    const uint32_t rounds = unbounded ? MIN(f.rounds + 1, l->min) : f.rounds + 1;
    if (f.of_base != 0) { /* there a frame's place is its depth, so what it began with is still to be seen */
        const uint32_t added = rounds - t->frames[f.depth].rounds;
        uint32_t *most = f.depth == t->top ? &t->on_top : &t->below;
        *most = MAX(*most, added);
    }
    if (unbounded || rounds < l->max) {
        struct stack_frame again = f;
        again.rounds = rounds;
        const uint32_t top = push(t, again);
        if (top != 0)
            reach(t, l->start, top);
    }
    if (rounds >= l->min)
        reach(t, f.to, f.below);
}

static void call_rule(struct stepper *t, const struct auto_call *c, uint32_t frame)
{
    const uint32_t depth = t->frames[frame].depth;
    if (c->tail) {
        if (fits(t, c->start, depth))
            reach(t, c->start, frame);
        return;
    }
    if (!fits(t, c->start, depth + 1) || !fits(t, c->to, depth))
        return;
    const uint32_t top = push(t, (struct stack_frame){.to = c->to, .below = (uint16_t)frame, .loop = c->loop});
    if (top != 0)
        reach(t, c->start, top);
}

/* A reading came to this state, which fits. */
static void reach(struct stepper *t, uint32_t state, uint32_t frame)
{
    const struct auto_state *s = &t->a->states[state];
    if ((s->flags & (AUTO_ACCEPT | AUTO_CALLS)) == 0) {
        keep(t, state, frame);
        return;
    }
    if (has_reading(t, t->met, t->n_met, state, frame) || t->n_met == GRAMMAR_MET_MAX)
        return;
    t->met[t->n_met++] = (struct reading){state, frame};
    if (s->n_edges > 0)
        keep(t, state, frame);
    for (uint32_t i = 0; i < s->n_calls; i++)
        call_rule(t, &t->a->calls[s->call_at + i], frame);
    if ((s->flags & AUTO_ACCEPT) != 0)
        end_rule(t, frame);
}

static void begin(struct stepper *t, struct reading *out)
{
    t->out = out;
    t->n_out = t->n_met = t->depths = 0;
    t->complete = t->full = false;
    t->first_new = t->n_frames;
}

uint32_t stepper_byte(struct stepper *t, const struct reading *in, uint32_t n, uint8_t byte, struct reading *out)
{
    const struct automaton *a = t->a;
    begin(t, out);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t to = automaton_next(a, &a->states[in[i].state], byte);
        if (to != NONE32 && fits(t, to, t->frames[in[i].frame].depth))
            reach(t, to, in[i].frame);
    }
    return t->n_out;
}

uint32_t stepper_start(struct stepper *t, struct reading *out)
{
    begin(t, out);
    if (t->a->states[0].need <= GRAMMAR_DEPTH_MAX)
        reach(t, 0, 0);
    t->complete |= t->a->empty_too;
    return t->n_out;
}

void frames_compact(struct stack_frame *frames, uint32_t *n_frames, struct reading *r, uint32_t n)
{
    uint16_t number[GRAMMAR_SCRATCH_FRAMES];
    memset(number, 0, *n_frames * sizeof *number);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t f = r[i].frame; f != 0 && number[f] == 0; f = frames[f].below)
            number[f] = 1;
    uint32_t used = 1;
    for (uint32_t f = 1; f < *n_frames; f++) {
        if (number[f] == 0)
            continue;
        frames[used] = frames[f];
        frames[used].below = number[frames[f].below];
        number[f] = (uint16_t)used++;
    }
    for (uint32_t i = 0; i < n; i++)
        r[i].frame = number[r[i].frame];
    *n_frames = used;
}

size_t grammar_walk_bytes(void)
{
    return sizeof(struct grammar_walk);
}

void grammar_walk_init(struct grammar_walk *w, struct grammar *g)
{
    struct stepper t;
    w->g = g;
    w->frames[0] = (struct stack_frame){0};
    stepper_init(&t, &g->a, w->frames, 1, GRAMMAR_FRAMES_MAX + 1);
    w->n_readings = (uint16_t)stepper_start(&t, w->readings);
    w->n_frames = (uint16_t)t.n_frames;
    w->complete = t.complete;
}

void grammar_walk_copy(struct grammar_walk *to, const struct grammar_walk *from)
{
    memcpy(to, from, offsetof(struct grammar_walk, readings) + from->n_readings * sizeof *from->readings);
    memcpy(to->frames, from->frames, from->n_frames * sizeof *from->frames);
}

bool grammar_is_complete(const struct grammar_walk *w)
{
    return w->complete;
}

/* One reading through states without calls and ends: true when it came through, and the walk has moved. */
static bool walk_plainly(struct grammar_walk *w, const struct automaton *a, struct str bytes)
{
    const uint32_t depth = w->frames[w->readings[0].frame].depth;
    uint32_t state = w->readings[0].state;
    if (w->n_readings != 1)
        return false;
    for (size_t i = 0; i < bytes.n; i++) {
        state = automaton_next(a, &a->states[state], (uint8_t)bytes.p[i]);
        if (state == NONE32 || (a->states[state].flags & (AUTO_ACCEPT | AUTO_CALLS)) != 0 ||
            depth + a->states[state].need > GRAMMAR_DEPTH_MAX)
            return false;
    }
    w->readings[0].state = state;
    w->complete = bytes.n == 0 && w->complete;
    return true;
}

/* From some of the readings; what comes out is in t->out with t's frames. */
static uint32_t run(struct stepper *t, const struct reading *from, uint32_t n, struct str bytes, struct reading *out)
{
    struct reading other[GRAMMAR_READINGS_MAX];
    memcpy(out, from, n * sizeof *from);
    for (size_t i = 0; i < bytes.n && n > 0; i++) {
        memcpy(other, out, n * sizeof *out);
        if (t->n_frames + GRAMMAR_MET_MAX >= t->cap_frames)
            frames_compact(t->frames, &t->n_frames, other, n);
        n = stepper_byte(t, other, n, (uint8_t)bytes.p[i], out);
        if (n == 0)
            t->complete &= i + 1 == bytes.n;
    }
    return n;
}

static bool walk_from(struct grammar_walk *w, uint32_t first, uint32_t n, struct str bytes)
{
    struct stack_frame frames[GRAMMAR_SCRATCH_FRAMES];
    struct reading out[GRAMMAR_READINGS_MAX];
    struct stepper t;
    memcpy(frames, w->frames, w->n_frames * sizeof *frames);
    stepper_init(&t, &w->g->a, frames, w->n_frames, GRAMMAR_SCRATCH_FRAMES);
    t.complete = false;
    const uint32_t n_out = run(&t, w->readings + first, n, bytes, out);
    if (n_out == 0 && !t.complete)
        return false;
    frames_compact(frames, &t.n_frames, out, n_out);
    memcpy(w->frames, frames, t.n_frames * sizeof *frames);
    memcpy(w->readings, out, n_out * sizeof *out);
    w->n_frames = (uint16_t)t.n_frames;
    w->n_readings = (uint16_t)n_out;
    w->complete = t.complete;
    return true;
}

bool walk_bytes(struct grammar_walk *w, struct str bytes)
{
    if (bytes.n == 0)
        return true;
    if (w->n_readings == 0)
        return false;
    if (walk_plainly(w, &w->g->a, bytes) || walk_from(w, 0, w->n_readings, bytes))
        return true;
    /* Readings were given up on the way? A mask allows what any one reading allows, so each is tried alone. */
    for (uint32_t i = 0; i < w->n_readings && w->n_readings > 1; i++)
        if (walk_from(w, i, 1, bytes))
            return true;
    return false;
}

enum err grammar_accept(struct grammar_walk *w, uint32_t id, struct error *e)
{
    const struct grammar_vocab *v = w->g->vocab;
    if (id >= v->n)
        return FAIL(e, ERR_INVALID, "token %u is not in the vocabulary of %u", id, v->n);
    const struct str t = vocab_token(v, id);
    if (t.n == 0 || !walk_bytes(w, t))
        return FAIL(e, ERR_INVALID, "the grammar does not allow token %u here", id);
    return OK;
}

void grammar_fetch(const struct grammar_walk *w, uint32_t id, uint32_t stage)
{
    if (stage == 0) {
        __builtin_prefetch(w, 1);
        __builtin_prefetch(w->frames, 1);
        __builtin_prefetch(w->frames + 4, 1);
        return;
    }
    const struct grammar_vocab *v = w->g->vocab;
    if (id >= v->n || w->n_readings == 0)
        return;
    if (stage == 1) {
        __builtin_prefetch(&v->at[id]);
        __builtin_prefetch(&w->g->a.states[w->readings[0].state]);
    } else
        __builtin_prefetch(v->bytes + v->at[id]);
}

/* ---- forced text ---- */

/* The one byte that all readings agree on; false when there are several or the text may end. */
static bool forced_byte(const struct automaton *a, const struct reading *r, uint32_t n, uint8_t *byte)
{
    int found = -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct auto_state *s = &a->states[r[i].state];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            const struct dfa_edge *g = &a->edges[s->edge_at + k];
            if (g->lo != g->hi || (found >= 0 && found != g->lo))
                return false;
            found = g->lo;
        }
    }
    *byte = (uint8_t)found;
    return found >= 0;
}

bool grammar_jump(const struct grammar_walk *w, uint32_t *id)
{
    const struct automaton *a = &w->g->a;
    const struct trie *trie = &w->g->vocab->trie;
    uint8_t byte = 0;
    if (w->complete || !forced_byte(a, w->readings, w->n_readings, &byte))
        return false;
    if (w->g->cut != NULL && w->n_readings == 1 && w->g->cut[w->readings[0].state] != NONE32) {
        *id = w->g->cut[w->readings[0].state];
        return *id != CUT_FREE;
    }
    struct stack_frame frames[GRAMMAR_SCRATCH_FRAMES];
    struct reading now[GRAMMAR_READINGS_MAX], next[GRAMMAR_READINGS_MAX];
    struct stepper t;
    uint32_t n = w->n_readings, node = 0, found = NONE32;
    memcpy(frames, w->frames, w->n_frames * sizeof *frames);
    memcpy(now, w->readings, n * sizeof *now);
    stepper_init(&t, a, frames, w->n_frames, GRAMMAR_SCRATCH_FRAMES);
    for (t.complete = false; !t.complete && forced_byte(a, now, n, &byte);) {
        node = trie_child(trie, node, byte);
        if (node == 0)
            break;
        if (trie->nodes[node].token != NONE32)
            found = trie->nodes[node].token;
        if (t.n_frames + GRAMMAR_MET_MAX >= t.cap_frames)
            frames_compact(frames, &t.n_frames, now, n);
        n = stepper_byte(&t, now, n, byte, next);
        memcpy(now, next, n * sizeof *now);
    }
    *id = found;
    return found != NONE32;
}
