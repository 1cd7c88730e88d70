/* Where a text stands in an automaton: a few readings at once, each a state with a stack. Stacks share their lower
 * frames: a frame names the one below it. */
#ifndef GRAMMAR_WALK_H
#define GRAMMAR_WALK_H

#include "grammar/automaton.h"

struct reading {
    uint32_t state;
    uint32_t frame; /* the topmost; 0: none */
};

struct stack_frame {
    uint32_t to;     /* where to go on */
    uint32_t rounds; /* of a loop: ended so far */
    uint16_t below;
    uint16_t depth; /* frames with this one */
    uint16_t loop;  /* 0: an ordinary call */
    uint16_t unused;
};

struct grammar_walk {
    struct grammar *g;
    uint16_t n_readings, n_frames;
    bool complete;
    struct reading readings[GRAMMAR_READINGS_MAX];
    struct stack_frame frames[GRAMMAR_FRAMES_MAX + 1]; /* [0] is nothing */
};

/* One step in the making. The frames grow upwards; whoever tries ways in turn (mask.c) sets n_frames back. */
struct stepper {
    const struct automaton *a;
    struct stack_frame *frames;
    uint32_t n_frames, cap_frames;
    struct reading *out;
    uint32_t n_out;
    bool complete;
    /* what the step looked at, for the masks */
    uint32_t lowest;  /* the lowest frame that was popped; NONE32: none */
    uint32_t deepest; /* frames that some way would need at least */
    bool closed;      /* a way was closed because of the depth */
    /* inside a step */
    uint32_t first_new; /* frame */
    uint32_t depths;    /* sum over readings */
    bool full;
    uint32_t n_met;
    struct reading met[GRAMMAR_MET_MAX];
};

void stepper_init(struct stepper *t, const struct automaton *a, struct stack_frame *frames, uint32_t n, uint32_t cap);
/* All readings behind `byte`, into out[GRAMMAR_READINGS_MAX]; how many there are. */
uint32_t stepper_byte(struct stepper *t, const struct reading *in, uint32_t n, uint8_t byte, struct reading *out);
uint32_t stepper_start(struct stepper *t, struct reading *out);
/* Drop frames that no reading stands on. */
void frames_compact(struct stack_frame *frames, uint32_t *n_frames, struct reading *r, uint32_t n);

bool walk_bytes(struct grammar_walk *w, struct str bytes); /* false: no such way, and the walk stays */

const struct automaton *grammar_automaton(const struct grammar *g);
const struct grammar_vocab *grammar_vocab_of(const struct grammar *g);

#endif
