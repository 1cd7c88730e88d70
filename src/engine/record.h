/* Recording: every input of the scheduler, and every plan it made, into a file; and the way back, a replay that feeds
 * the same inputs to a new scheduler and compares its plans byte for byte. Deciding is pure (sched.h), so they must be
 * equal; where they are not, the build differs or the machine lied.
 *
 * Writing. The engine thread copies frames into a ring of bytes; another thread writes the ring to the disk. The engine
 * never waits: when the ring is full the recording ends there (the file stays valid up to that frame, and record_close
 * says so in the log), not the engine.
 *
 * The file: magic, then frames {u32 kind, u32 bytes, payload}, little endian. What a frame holds is written down once,
 * in record_frames.c, by tables of fields that writing and reading share. Frames are written after the call they tell
 * of; frames of what the call caused (ends) come before it.
 *
 * Threads: record_* the engine thread; open and close its owner. Replaying: any one thread. */
#ifndef ENGINE_RECORD_H
#define ENGINE_RECORD_H

#include "base/buf.h"
#include "engine/engine.h"

struct record;

/* A NULL record is fine everywhere: nothing is recorded. */
enum err record_open(const char *path, const struct engine_options *o, struct record **out, struct error *e) MUST_CHECK;
void record_close(struct record *rec);
bool record_is_whole(const struct record *rec); /* nothing was dropped so far */

void record_submit(struct record *rec, const struct request *r, uint64_t now, enum err answer);
void record_look(struct record *rec, const struct request *r, bool cancel, uint32_t n_read); /* what a sweep saw */
void record_sweep(struct record *rec, uint64_t now);
void record_guess(struct record *rec, uint32_t slot, const struct guesses *g); /* what the next plan may use */
void record_plan(struct record *rec, uint64_t now, bool flying, const struct plan *plan); /* NULL: nothing to do */
void record_commit(struct record *rec, const struct step_result *result, uint64_t now);
/* What a grammar forced behind the token that the next commit appends: a replay has no grammars. */
void record_jump(struct record *rec, const struct request *r, uint32_t i_choice, const uint32_t *ids, uint32_t n);
void record_end(struct record *rec, const struct request *r);
void record_abort(struct record *rec, enum req_end why, uint64_t now);
void record_weight(struct record *rec, uint32_t tenant, double weight);

/* What a replay found. */
struct replay_summary {
    uint64_t frames, submits, refused, ends, sweeps, plans, steps, commits;
    uint64_t rows, sampled, first_ns, last_ns, cost_ns;
    uint64_t swapped_blocks, copied_blocks;
    uint32_t blocks_held_max, seqs_max;
    uint64_t by_end[END_COUNT];
    struct kv_stats kv;
    struct sched_stats sched;
    bool is_cut; /* the file ends inside a frame, or without everything having ended */
};

/* One line of the timeline. */
struct replay_step {
    const struct plan *plan;
    uint64_t now_ns;
    struct sched_stats sched;
    struct kv_stats kv;
};

struct replay_options {
    bool check_every_step; /* kv_check and sched_check after each frame that may change something */
    void (*on_step)(void *ctx, const struct replay_step *s); /* may be NULL */
    void *ctx;
};

/* Replay a recording from memory. ERR_FORMAT: not a recording, or damaged, with the byte offset. ERR_INTERNAL: a plan
 * or an end differs from what was recorded, or an invariant is broken; the text says at which step. */
enum err replay_run(const void *bytes, uint64_t n, const struct replay_options *o, struct replay_summary *out,
    struct error *e) MUST_CHECK;

#endif
