/* A runner does what a plan says: forward (rows through the model), then sample (a token for each row that wants one).
 * Two calls, because the second may need what the commit of the step before finds out (penalties, grammar masks), while
 * the first does not. Deciding is elsewhere.
 *
 *   runner.c        the model: decoder_step over a backend, sample/ for the choices
 *   fake_runner.c   no model: the next token is a hash of the context, the cost is a + b*tokens + c*context; on a
 *                   virtual clock it is the simulator's machine, on a real one it loads the server without a model
 *   late_runner.c   any runner made asynchronous (depth 1), for tests of the rules of one step ahead
 *
 * A sequence with guesses (plan_seq.n_spec) has an output row for each and one more. Its tokens are chosen in order,
 * each exactly as it would be without guesses (same parameters, history and draw); the first that is not what was
 * guessed is the last.
 *
 * The order of calls for step t: forward(t) [, wait(t-1), commit(t-1)], sample(t), wait(t). At most two steps are
 * between forward and wait.
 *
 * Threads: the engine thread. Nothing allocates after it was opened. */
#ifndef ENGINE_RUNNER_H
#define ENGINE_RUNNER_H

#include "engine/choose.h"
#include "engine/masks.h"
#include "sched/sched.h"

struct runner;

/* Where a runner learns what to choose by: the scheduler's slots, or copies of them. view gives request NULL for a
 * sequence that has ended meanwhile: its row is computed and dropped. */
struct slots {
    const void *ctx;
    void (*view)(const void *ctx, uint32_t slot, struct slot_view *out);
};

struct runner_ops {
    const char *name;
    uint32_t depth; /* 0: forward and sample return when done; 1: they return at once */
    /* Of a view, forward looks only at what a request was asked with: its choices may be a step behind. */
    enum err (*forward)(struct runner *r, const struct plan *p, const struct slots *s, struct error *e);
    /* The choices' histories and masks are up to date for these slots; nothing of a view is kept after the return. */
    enum err (*sample)(struct runner *r, const struct plan *p, const struct slots *s, struct error *e);
    enum err (*wait)(struct runner *r, const struct plan *p, struct step_result *out, struct error *e);
    void (*close)(struct runner *r);
};

/* Every runner starts with this. */
struct runner {
    const struct runner_ops *ops;
};

struct runner_limits {
    uint32_t rows_max, seqs_max, out_max, table_max, copies_max, top_max; /* top_max: alternatives per token */
};

struct decoder;
/* Over an open decoder (borrowed). n_host_blocks: of the swap space, allocated here. */
enum err model_runner_open(struct decoder *d, const struct runner_limits *l, uint32_t n_host_blocks,
    struct runner **out, struct error *e) MUST_CHECK;

struct fake_runner_options {
    uint32_t vocab;
    uint64_t base_ns, row_ns;
    double row_context_ns; /* per row and position of context: attention's products */
    double seq_context_ns; /* per sequence and position of context: reading its keys and values once */
    double swap_ns_per_block;
    struct clock *clock; /* virtual: advanced by the cost; real: waited for; NULL: costs nothing */
    uint32_t eos_id;     /* chosen with probability 1/eos_every by the hash; eos_every 0 = never */
    uint32_t eos_every;
    uint32_t depth;
    uint64_t fail_at_step; /* forward fails there; 0 = never */
    bool check_kv; /* keep every block's tokens and prove on each row that the context read is the sequence's own */
    struct {
        uint32_t threads; /* with the engine's, that make masks while the device works; 0: the engine's makes them */
        masks_fn *made;   /* told of each */
        void (*busy)(void *ctx, uint32_t n_masks); /* the engine thread, when it would wait for the device */
        void *ctx;
    } masks;
};
enum err fake_runner_open(const struct fake_runner_options *o, const struct runner_limits *l, uint32_t n_blocks,
    uint32_t n_host_blocks, uint32_t block_tokens, struct runner **out, struct error *e) MUST_CHECK;

/* The fake runner as a pure function, for what a request gets when it runs alone: the hash of a context, token by
 * token, and the token chosen behind it. Of the view, request, choice, output_index and banned ids matter. mask:
 * choose.h. */
uint64_t fake_chain_start(uint32_t adapter);
uint64_t fake_chain_add(uint64_t chain, uint32_t token, uint32_t pos);
uint32_t fake_choose(
    const struct fake_runner_options *o, const struct slot_view *v, uint64_t chain, struct row_mask mask);

/* Takes the inner runner over. */
enum err late_runner_open(
    struct runner *inner, const struct runner_limits *l, struct runner **out, struct error *e) MUST_CHECK;

void runner_close(struct runner *r); /* NULL is fine */

#endif
