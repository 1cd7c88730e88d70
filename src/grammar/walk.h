/* Where a text stands in an automaton: a few readings at once, each a state with a stack. Stacks share their lower
 * frames: a frame names the one below it. */
#ifndef GRAMMAR_WALK_H
#define GRAMMAR_WALK_H

#include "grammar/automaton.h"

#include <stdatomic.h>

struct reading {
    uint32_t state;
    uint32_t frame; /* the topmost; 0: none */
};

struct stack_frame {
    uint32_t to;     /* where to go on */
    uint32_t rounds; /* of a loop: ended so far */
    uint16_t below;
    uint16_t depth;   /* frames with this one */
    uint16_t loop;    /* 0: an ordinary call */
    uint16_t of_base; /* mask.c: it was there before the tokens that are being tried */
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
    uint32_t top;     /* depth of the topmost frame that was there before */
    uint32_t on_top;  /* rounds that were added to that one */
    uint32_t below;   /* and to others that were there before */
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

/* ---- mask.c: sets of tokens, found once and kept ---- */

struct mask_cache;
enum err mask_cache_new(const struct automaton *a, struct mask_cache **out, struct error *e) MUST_CHECK;
void mask_cache_free(struct mask_cache *c);
size_t mask_cache_bytes(const struct mask_cache *c); /* in use */

struct grammar {
    struct automaton a;
    const struct grammar_vocab *vocab;
    atomic_uint refs;
    struct mask_cache *masks;
    const struct token_class *classes[GRAMMAR_STATE_CLASSES_MAX];
    uint32_t *cut;     /* per state: the token that forced text is cut into here, CUT_FREE or NONE32; or NULL */
    uint8_t *class_of; /* per state: number + 1 of the class whose characters it can read for ever, or 0 */
};
#define CUT_FREE      (NONE32 - 1) /* the model chooses, though text is forced: its next token may be longer */
#define CLASS_COUNTED 0x80 /* with the number: as many characters as the loop on top of the stack has rounds left */

/* Makes the set of a reading now, so that it is there when a request needs it; steps are nodes of the trie looked at.
 */
uint64_t mask_warm(struct grammar *g, const struct stack_frame *frames, struct reading r, uint64_t *scratch);

/* ---- cut.c ---- */

enum err grammar_cuts(struct grammar *g, struct error *e) MUST_CHECK;

/* ---- warm.c ---- */

enum err grammar_prepare(struct grammar *g, struct error *e) MUST_CHECK; /* classes, then the expensive masks */

#endif
