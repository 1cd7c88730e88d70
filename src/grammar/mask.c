/* Masks: which tokens may come next. Each reading of a walk has its own set of tokens, found by walking the
 * vocabulary's trie and the automaton together; a byte that leads nowhere rules out a whole subtree at once. The mask
 * of a walk is the union over its readings. */
#include "grammar/walk.h"

#include <string.h>

/* One level of the walk down the trie: the readings behind its bytes. */
struct level {
    uint32_t first, n; /* in `pool` */
    uint32_t n_frames; /* frames in use at this level */
};

struct descent {
    struct stepper t;
    struct stack_frame frames[GRAMMAR_SCRATCH_FRAMES];
    struct reading pool[GRAMMAR_SCRATCH_READINGS];
    struct level levels[GRAMMAR_TOKEN_DEPTH_MAX + 1];
};

static void mask_set(uint64_t *mask, uint32_t id)
{
    mask[id / 64] |= UINT64_C(1) << (id % 64);
}

static void emit(const struct grammar_vocab *v, uint32_t token, uint64_t *mask)
{
    for (; token != NONE32; token = v->same_as[token])
        mask_set(mask, token);
}

/* All nodes of the trie that the readings of level 0 can go to. */
static void descend(struct descent *d, const struct grammar_vocab *v, const struct trie *trie, uint64_t *mask)
{
    const struct automaton *a = d->t.a;
    for (uint32_t i = 1; i < trie->n;) {
        const struct trie_node *node = &trie->nodes[i];
        if (node->depth > GRAMMAR_TOKEN_DEPTH_MAX) {
            i = node->end;
            continue;
        }
        const struct level *up = &d->levels[node->depth - 1];
        struct level *here = &d->levels[node->depth];
        here->first = up->first + up->n;
        d->t.n_frames = up->n_frames;
        bool complete = false;
        if (up->n == 1) {
            const struct reading r = d->pool[up->first];
            const uint32_t to = automaton_next(a, &a->states[r.state], node->byte);
            if (to == NONE32) {
                i = node->end;
                continue;
            }
        }
        if (here->first + GRAMMAR_READINGS_MAX > GRAMMAR_SCRATCH_READINGS ||
            d->t.n_frames + GRAMMAR_MET_MAX > GRAMMAR_SCRATCH_FRAMES) {
            i = node->end; /* no room to look further: not allowed, which is always safe */
            continue;
        }
        here->n = stepper_byte(&d->t, d->pool + up->first, up->n, node->byte, d->pool + here->first);
        complete = d->t.complete;
        here->n_frames = d->t.n_frames;
        if (here->n > 0 || complete)
            emit(v, node->token, mask);
        i = here->n > 0 ? i + 1 : node->end;
    }
}

static void add_reading(const struct grammar_walk *w, uint32_t i, uint64_t *mask)
{
    const struct grammar_vocab *v = grammar_vocab_of(w->g);
    struct descent d;
    memcpy(d.frames, w->frames, w->n_frames * sizeof *d.frames);
    stepper_init(&d.t, grammar_automaton(w->g), d.frames, w->n_frames, GRAMMAR_SCRATCH_FRAMES);
    d.pool[0] = w->readings[i];
    d.levels[0] = (struct level){0, 1, w->n_frames};
    descend(&d, v, &v->trie, mask);
}

static uint32_t count_to_two(const uint64_t *mask, uint32_t words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < words && n < 2; i++)
        n += mask[i] == 0 ? 0 : (mask[i] & (mask[i] - 1)) == 0 ? 1 : 2;
    return MIN(n, 2);
}

uint32_t grammar_mask(const struct grammar_walk *w, const uint32_t *ends, uint32_t n_ends, uint64_t *mask)
{
    const struct grammar_vocab *v = grammar_vocab_of(w->g);
    memset(mask, 0, v->words * sizeof *mask);
    for (uint32_t i = 0; i < w->n_readings; i++)
        add_reading(w, i, mask);
    for (uint32_t i = 0; i < n_ends; i++) {
        if (ends[i] >= v->n)
            continue;
        mask[ends[i] / 64] &= ~(UINT64_C(1) << (ends[i] % 64));
        if (w->complete)
            mask_set(mask, ends[i]);
    }
    return count_to_two(mask, v->words);
}
