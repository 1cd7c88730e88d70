/* sched: which tokens the next step computes. Owns the requests that have been taken in, the queue, the running set,
 * the policies, the budget and the cost model. Pure deciding: no I/O, no clock of its own (now is passed in), no random
 * numbers, no device. The same calls in the same order give the same plans, so that it can be simulated and replayed.
 *
 * There are no phases. A sequence has known tokens (prompt and chosen ones) and computed tokens; every step spends a
 * budget of tokens closing gaps. Prefill, chunk, decode, resume after preemption and verification of guesses are that
 * one rule. Each of a request's n choices is a sequence of its own; the first computes the prompt, the others wait for
 * it and then share its blocks (kv_seq_fork), recomputing the last prompt token without writing.
 *
 * The life of a sequence, and who moves it:
 *
 *              sched_submit           admit (sched_plan)             sched_commit, sched_sweep
 *    (asker) ───────────────► WAITING ───────────────────► RUNNING ───────────────────────────► ENDED
 *                               ▲ ▲                          │  │
 *                               │ └── preempt: recompute ────┘  └── preempt: swap ──► SWAPPED ── admit ──► RUNNING
 *                               └── a sibling that waits for the first choice's prompt is FORKING until then
 *    A paused sequence (its reader is behind) stays RUNNING but gets no rows, and is the first victim.
 *
 * One step ahead. sched_plan may be called while the plan before is still flying (depth 1). The token that it will
 * choose counts as known but unread; if commit then finds that the sequence has ended, the surplus row's result is
 * dropped. Blocks given up meanwhile are parked behind the last launched step (kv.h).
 *
 * A grammar may force tokens. Those are appended at commit, behind the chosen one, so the gap grows by several tokens
 * and the next step closes it with several rows. What a flying step chooses behind a token that was no longer the last
 * is dropped; its row was needed all the same.
 *
 * Policies are described with when to use which in docs/scheduling.md, and by the enums below.
 *
 * Threads: the engine thread. Nothing allocates after sched_new. */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include "kv/kv.h"
#include "sched/plan.h"
#include "sched/request.h"
#include "sched/spec.h"

struct sched;

enum batching {
    BATCH_CONTINUOUS,    /* decodes first, then chunks of prompts, in one step */
    BATCH_PREFILL_FIRST, /* steps are all prompt or all decode; decodes wait for at most prefill_first_max_steps */
    BATCH_STATIC,        /* a batch starts together and the next one starts when all of it has ended */
    BATCH_INTERVAL,      /* new sequences join every `interval` decode steps (or when nothing runs) */
    BATCH_RATIO,         /* new sequences join when waiting / running passes `ratio` (or when nothing runs) */
};

/* Whose turn it is. Every order ages: a key is the arrival plus what the order is about, fixed when a request is taken
 * in, so that only what arrives within a bounded time can overtake (queue.c). */
enum queue_order {
    ORDER_FCFS,
    ORDER_PRIORITY, /* request.priority, then arrival; a step of priority is worth a minute of waiting */
    ORDER_VTC,      /* the tenant with the smallest virtual token counter, then arrival */
    ORDER_SJF,      /* least prefill (after the prefix cache), then arrival; a token is worth 10 ms of waiting */
    ORDER_DEADLINE, /* earliest arrival + ttft_target; none counts as 10 s */
};

enum admission {
    ADMIT_ON_DEMAND, /* when blocks for all its known tokens are there, beside what running prompts still need */
    ADMIT_RESERVE,   /* when blocks for prompt + max_tokens are there and not promised to others */
};

enum preempt_mode { PREEMPT_AUTO, PREEMPT_SWAP, PREEMPT_RECOMPUTE };

struct sched_options {
    uint32_t max_num_seqs;       /* sequences of one step, and running ones */
    uint32_t max_batched_tokens; /* rows of one step */
    uint32_t out_max;            /* rows of one step that may want logits (prompt log-probabilities) */
    uint32_t context_max;        /* tokens of one sequence */
    uint32_t block_tokens;
    uint32_t queue_max;        /* waiting sequences */
    uint64_t queue_tokens_max; /* prompt tokens of waiting sequences */
    uint64_t wait_max_ns;      /* in the queue before END_BUSY; 0 = no limit */
    uint64_t pause_max_ns;     /* paused before END_EXPIRED */
    uint32_t tenants_max;
    double tenant_queue_share; /* of queue_max that one tenant may fill while others wait too; 1 = all */

    enum batching batching;
    uint32_t interval;
    double ratio;
    uint32_t prefill_first_max_steps;
    enum queue_order order;
    double vtc_input_weight, vtc_output_weight;
    enum admission admission;
    double watermark;       /* share of the blocks kept free by admission, so that running sequences can grow */
    uint64_t itl_target_ns; /* a step with streams takes no longer, but always 16 prompt rows; 0 = no target */
    double itl_factor;      /* or no longer than so many times what the streams take alone, if that is more */
    uint32_t chunk_max;     /* rows of one sequence's prompt in one step; 0 = the budget */
    enum preempt_mode preempt;
    uint32_t preempt_every;   /* for tests: preempt a victim every that many steps; 0 = only when blocks run out */
    double swap_ns_per_block; /* cost of one block's copy, measured at start; for PREEMPT_AUTO */
    bool prefix_cache;
    bool spec_always;  /* for tests and measurements: guesses get rows whatever they cost */
    uint64_t numerics; /* of the model; kv_key.numerics */
};
struct sched_options sched_options_default(void);

/* kv is borrowed; its seqs_max must be at least 2 * max_num_seqs (running and swapped). Sequences that are not running
 * are at most queue_max when a request is taken in; slots are below sched_slots, since an ended sequence keeps its slot
 * while a flying plan names it. ERR_INVALID names the option. */
static inline uint32_t sched_slots(const struct sched_options *o)
{
    return o->queue_max + 3 * o->max_num_seqs;
}
enum err sched_new(const struct sched_options *o, struct kv *kv, struct sched **out, struct error *e) MUST_CHECK;
void sched_free(struct sched *s); /* every request must have ended; NULL is fine */

/* A tenant's weight in `vtc`; index below tenants_max, 1.0 until set. */
void sched_tenant_weight(struct sched *s, uint32_t tenant, double weight);

/* Take a request in. ERR_AGAIN: busy; *retry_ns says when it is worth trying again, from the backlog and the measured
 * speed. ERR_LIMIT: it can never run here (context, blocks), and the text names the number. On an error it is not
 * taken and nothing was changed. */
enum err sched_submit(struct sched *s, struct request *r, uint64_t now, uint64_t *retry_ns, struct error *e) MUST_CHECK;

/* Ended choices: every end goes through here, exactly once for each choice, from inside commit, sweep, plan or abort.
 * published: a choice has new ids. The request may not be touched by sched after on_done. */
struct sched_events {
    void *ctx;
    void (*on_progress)(void *ctx, struct request *r);
    void (*on_done)(void *ctx, struct request *r);
    /* What the asker has changed, as it was seen: for recordings, since the asker may change it again. May be NULL. */
    void (*on_look)(void *ctx, const struct request *r, bool cancel, uint32_t n_read);
    /* A grammar left no choice: these ids were appended without asking the model, behind the token being committed. An
     * id of UINT32_MAX says that the token broke the grammar. For recordings and numbers. May be NULL. */
    void (*on_jump)(void *ctx, const struct request *r, uint32_t i_choice, const uint32_t *ids, uint32_t n);
};
void sched_set_events(struct sched *s, struct sched_events ev);

/* Look at what askers have changed (cancel, n_read), and at deadlines: end, pause or go on. Called once a turn when
 * anything may have changed; O(sequences). */
void sched_sweep(struct sched *s, uint64_t now);

/* Write the next step into plan (reset by the callee). False: nothing to compute now. flying: a step has been launched
 * and not committed. Sequences admitted, preempted and grown here are so from now on: a plan that was written must be
 * launched, or the engine has failed. */
bool sched_plan(struct sched *s, uint64_t now, bool flying, struct plan *plan);

/* The step's tokens are here: append, publish blocks, match stops, end. Frees the fence plan->step. */
void sched_commit(struct sched *s, const struct plan *plan, const struct step_result *result, uint64_t now);

/* End everything with that reason: shutdown, or a failed device. fence: nothing flies any more. */
void sched_abort_all(struct sched *s, enum req_end why, const struct error *e, uint64_t now);

/* What a runner needs to choose a token for a slot; valid until the slot's sequence ends. Of a slot whose sequence has
 * ended while a step with it flies: request NULL. */
struct slot_view {
    struct request *request;
    struct choice *choice;
    uint32_t i_choice;
    uint64_t output_index;  /* of the token to be chosen */
    const uint32_t *banned; /* stop ids while below min_tokens, and banned_ids */
    uint32_t n_banned;
    bool is_dropped; /* the token that the flying step chooses is not wanted: others were appended meanwhile */
};
void sched_slot_view(const struct sched *s, uint32_t slot, struct slot_view *out);
/* The same for the token that is i places later, when everything between was as guessed; its history is not. */
struct slot_view slot_view_later(const struct slot_view *v, uint32_t i);

bool sched_is_idle(const struct sched *s);           /* no sequence at all */
bool sched_can_run(const struct sched *s);           /* sched_plan might have something to do */
uint64_t sched_next_deadline(const struct sched *s); /* ns; UINT64_MAX = none */

/* The cost model: ns of a step with these rows, from a live fit of a + b*rows + c*(rows x context). */
struct step_cost {
    double base_ns, row_ns, row_context_ns;
    bool fitted;
};
struct step_cost sched_cost(const struct sched *s);
void sched_cost_seed(struct sched *s, struct step_cost c); /* before anything was measured */

struct sched_stats {
    uint32_t n_waiting, n_running, n_swapped, n_paused;
    uint64_t waiting_tokens; /* prompt tokens not yet computed of waiting sequences */
    uint64_t preempted_swap, preempted_recompute;
    uint64_t steps, prompt_tokens, output_tokens; /* computed prompt rows; chosen ids */
    uint64_t surplus_rows;                        /* computed for sequences that had ended */
    uint64_t jumped_tokens;                       /* output tokens that a grammar forced */
    uint64_t retry_ns;                            /* what a busy answer would say now */
    struct spec_stats spec;
};
void sched_stats(const struct sched *s, struct sched_stats *out);
double sched_tenant_counter(const struct sched *s, uint32_t tenant);  /* virtual tokens, for metrics and tests */
uint64_t sched_tenant_output(const struct sched *s, uint32_t tenant); /* tokens chosen for it */

/* Every rule between queue, slots and kv; O(everything). ERR_INTERNAL names the first that is broken. */
enum err sched_check(const struct sched *s, struct error *e) MUST_CHECK;

#endif
