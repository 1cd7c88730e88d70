/* What the files of sched share. Who owns what:
 *
 *   sched.c     options, slots, groups, submit, the small questions      queue.c    who is next
 *   tenants.c   virtual token counters                                   cost.c     what a step will take
 *   budget.c    how many rows each running sequence gets                 admit.c    queue -> running
 *   step.c      sched_plan: rows into a plan                             preempt.c  running -> queue
 *   commit.c    tokens of a step                                         sweep.c    cancel, pause, deadlines, ends
 *   spec.c      how many guesses get rows, what they teach               ngram.c    guesses from the text itself
 *   check.c     the rules below, executable
 *
 * The numbers of a sequence. Positions count from 0; `known` = prompt + chosen tokens + those that flying steps are
 * choosing.
 *
 *       0 ........................ computed .......... known
 *       |<-- been through the model -->|<--- the gap --->|
 *       0 ............................... stored              stored >= computed; the positions that have KV
 *       0 ............ n_final                                committed: may be published
 *
 * stored > computed in one case: every block of the known tokens was found (exact hit, fork). The last token is then
 * computed again for its logits, and its row does not write. And while a plan with guesses flies: they are stored
 * behind `computed`, and the commit makes computed tokens of those that were right and gives the others' positions
 * back.
 *
 * Rules, in sched_check:
 *   1  a slot is free, or in exactly one of: a queue, waiting for its sibling, paused outside, running, ended
 *   2  running is sorted by rank, at most max_num_seqs; rank (key, ticket) is given at submit and never changes
 *   3  RUNNING has blocks for exactly `stored` positions; SWAPPED has them on the host; everyone else has none
 *   4  n_final <= computed <= known, computed <= stored
 *   5  the counts of waiting, running, paused, swapped, waiting tokens and tenants are those of the slots
 *   6  an ended sequence keeps its slot exactly as long as a plan that is not committed names it
 *
 * Why preemption ends. A sequence takes blocks only from sequences of higher rank (or paused ones). Ranks do not
 * change, so the running sequence of lowest rank is never preempted, has the whole pool at its disposal, in which it
 * fits (checked at submit), and therefore ends; then the next one is lowest. No two sequences can take from each other.
 *
 * Why waiting ends. Ranks grow with arrival: every policy's key is the arrival plus a bounded number of nanoseconds, so
 * only finitely many later requests come before a given one. (vtc: the counter of whoever is served grows; a backlogged
 * tenant's does not.) The queue's head is never overtaken because it is large: it blocks the queue until it fits. */
#ifndef SCHED_SCHED_INT_H
#define SCHED_SCHED_INT_H

#include "sched/sched.h"

#define SLOT_NONE UINT32_MAX
#define ASIDE_MAX 16 /* of one plan: each has been looked up in the prefix index, which costs time */

enum seq_state {
    SEQ_FREE,
    SEQ_WAITING, /* never admitted, or preempted for recomputing */
    SEQ_FORKING, /* waits for the first choice to compute the prompt */
    SEQ_RUNNING,
    SEQ_SWAPPED, /* preempted, blocks on the host */
    SEQ_ENDED,   /* a plan still names it */
};

struct spec_rate { /* chances that a guess holds: the first, and each next when those before held */
    float first, next;
};

enum queue_id { QUEUE_NONE, QUEUE_NEW, QUEUE_AGAIN }; /* never admitted; admitted before, or a sibling of one */

struct seq {
    /* what planning and committing touch for every sequence of every step comes first */
    uint8_t state, queue;
    bool is_paused, want_prompt; /* want_prompt: rows of the prompt want logits */
    uint32_t n_prompt, n_out, out_limit;
    uint32_t computed, stored, n_final, n_published;
    uint32_t n_flying;  /* tokens being chosen by plans that are not committed */
    uint32_t n_plans;   /* plans that are not committed and name the slot */
    uint32_t n_dropped; /* of these plans: those whose token is not wanted any more */
    uint32_t share;     /* rows given in the plan being made */
    uint32_t last_id;   /* the newest chosen token */
    struct kv_seq kv;
    uint32_t read_window, tenant, adapter;
    const uint32_t *prompt;
    uint32_t *ids; /* the choice's */
    struct request *request;
    struct choice *choice;

    int64_t key; /* rank: key, then ticket */
    uint64_t ticket;
    uint64_t last_step;     /* newest plan that names it */
    uint64_t admitted_step; /* newest plan that admitted it */
    uint32_t stored_before; /* stored, without what that plan writes */
    uint64_t paused_since;
    uint32_t i_choice, group, sibling;
    uint32_t out_at_admission;  /* n_out when it was last admitted */
    uint32_t n_blocks;          /* while swapped: how many */
    uint32_t queued_tokens;     /* what it adds to waiting_tokens */
    uint32_t n_aside;           /* plans in which it waited for a prefix being computed */
    uint32_t child, next, prev; /* in a queue; next also in the list of free slots */

    uint32_t spec_k;      /* guesses it may have; 0 = none, and nothing below means anything */
    uint32_t n_guess;     /* guesses behind the newest token, for the next plan */
    uint32_t n_spec;      /* of them, in the plan being made or flying */
    uint32_t n_unguessed; /* tokens since guesses of it were last verified */
    uint32_t guess[SPEC_K_MAX];
    uint8_t guess_trust, shadow_trust;
    uint32_t n_shadow; /* guesses that got no rows and whose beginning came true: what they said next */
    uint32_t shadow[SPEC_K_MAX];
    struct spec_rate rates[SPEC_TRUSTS];
};

/* A request and its sequences. */
struct group {
    struct request *request;
    uint32_t first;   /* slot, linked by seq.sibling */
    uint32_t n_slots; /* slots not given back */
    uint32_t n_live;  /* choices not ended */
    uint32_t at;      /* in sched.live */
    uint32_t next;    /* free group */
    bool is_admitted, is_forkable;
    bool seen_cancel;
    uint32_t seen_read; /* of n_read */
    uint64_t seen_at;   /* sched.looks then: within one call everybody sees the same */
};

struct tenant {
    double weight, counter;
    double heap_key;   /* a lower bound of counter */
    uint32_t heap_at;  /* in sched.active, or SLOT_NONE */
    uint32_t root;     /* its queue */
    uint32_t n_queued; /* sequences of it that are not running and not ended */
    uint64_t output_tokens;
};

#define COST_ROW_CLASSES     40
#define COST_CONTEXT_CLASSES 14
#define COST_CLASSES         (COST_ROW_CLASSES * COST_CONTEXT_CLASSES)
#define COST_STEER_STEPS     5u /* whose median tells a hiccup */

struct cost_class {
    double rows, row_context, ns; /* running means */
    uint32_t n;
};

struct cost {
    struct cost_class classes[COST_CLASSES];
    uint16_t used[COST_CLASSES]; /* those with samples */
    uint32_t n_used;
    uint64_t n_samples;
    struct step_cost fit;
    double rows_seen;                /* of the largest class */
    bool is_seeded;                  /* fit is what somebody said */
    double rows_per_ns;              /* of recent steps; 0 = nothing measured */
    double ratios[COST_STEER_STEPS]; /* measured over predicted, of the newest steps with chunks under a target */
    uint64_t n_ratios;               /* so far */
    double steer;                    /* their running mean, without hiccups; 0 = none yet */
};

/* What is left to spend in the plan being made, and what it has come to. */
struct budget {
    uint32_t rows, outs;
    double step_rows, step_row_context;
    bool is_timed;      /* there is a target, and streams to protect */
    double target_ns;   /* of this step; 0 = none */
    bool decodes_only;  /* prefill-first: this step has no prompts */
    bool prompts_only;  /* prefill-first: this step has no streams */
    uint32_t n_chunks;  /* prompts that got rows */
    uint32_t n_streams; /* running sequences that lack one token */
    uint32_t n_prompts; /* running sequences that lack more */
};

struct sched {
    struct sched_options o;
    struct kv *kv;
    struct sched_events events;
    struct seq *seqs; /* [n_slots] */
    struct group *groups;
    struct tenant *tenants;
    uint32_t n_slots, free_slot, free_group;
    uint32_t *live; /* [n_live] groups, in no order that matters */
    uint32_t n_live_groups;
    uint32_t *forkable, n_forkable; /* groups whose prompt the newest plan completes and whose siblings wait for it */

    uint32_t *running; /* [n_running] slots by rank; SLOT_NONE while a plan is made and one was taken out */
    uint32_t n_running, n_holes;
    uint32_t new_root, again_root; /* queues; QUEUE_NEW of vtc is in the tenants */
    uint32_t *active;              /* [n_active] tenants with a queue, a heap by heap_key */
    uint32_t n_active;
    uint32_t last_tenant;               /* whose queue was the last to become empty */
    uint32_t *scratch;                  /* [context_max] ids in one piece */
    uint32_t aside[ASIDE_MAX], n_aside; /* out of the queue until the end of this plan */

    uint32_t n_waiting, n_forking, n_swapped; /* n_waiting: WAITING, paused ones outside the queue included */
    uint32_t n_new, n_again;                  /* in the queues */
    uint32_t n_paused, n_paused_running;
    uint32_t n_members; /* sequences not ended of requests that were admitted */
    uint64_t waiting_tokens;
    uint64_t next_ticket;
    uint64_t step, committed; /* newest plan made, newest committed */
    uint64_t looks;           /* calls that looked at what askers change */
    uint64_t next_deadline;   /* nothing ends by itself before */

    uint32_t prefill_streak;  /* prefill-first: prompt steps since the last decode step */
    uint32_t decodes_since;   /* interval: decode steps since the gate was open */
    uint64_t plans;           /* calls of sched_plan */
    bool has_preempted;       /* in the plan being made */
    uint64_t expected_blocks; /* given up in this plan, not free before the flying step is done */
    uint32_t n_total_blocks;  /* of the pool */
    uint32_t watermark_blocks;
    uint32_t blocked_slot; /* head of the queue that did not fit, with the slack it found and when */
    int64_t blocked_slack;
    uint64_t blocked_plan;

    struct cost cost;
    double mean_out;                          /* tokens of an answer, running mean */
    uint32_t n_speculating;                   /* sequences that may have guesses and have not ended */
    struct spec_rate spec_rates[SPEC_TRUSTS]; /* over all sequences: what a new one starts from */
    struct sched_stats stats;
};

static inline uint32_t seq_known(const struct seq *q)
{
    return q->n_prompt + q->n_out + q->n_flying;
}
static inline uint32_t seq_gap(const struct seq *q)
{
    return seq_known(q) - q->computed;
}
static inline bool seq_before(const struct seq *a, const struct seq *b)
{
    return a->key != b->key ? a->key < b->key : a->ticket < b->ticket;
}
static inline uint32_t blocks_for(const struct sched *s, uint32_t n_tokens)
{
    return (n_tokens + s->o.block_tokens - 1) / s->o.block_tokens;
}
/* What blocks given up now must wait for. */
static inline uint64_t sched_fence(const struct sched *s)
{
    return s->committed < s->step ? s->step : 0;
}
static inline bool sched_is_vtc(const struct sched *s)
{
    return s->o.order == ORDER_VTC;
}

/* sched.c */
void seq_set_state(struct sched *s, struct seq *q, enum seq_state to); /* and the counts */
void slot_give(struct sched *s, uint32_t slot);
void running_insert(struct sched *s, uint32_t slot);
void running_remove(struct sched *s, uint32_t slot);
void running_close_holes(struct sched *s);
uint64_t backlog_retry_ns(const struct sched *s);

/* queue.c: a slot enters WAITING, SWAPPED or paused; the queue knows where it belongs. */
void queue_put(struct sched *s, uint32_t slot);
void queue_remove(struct sched *s, uint32_t slot);
uint32_t queue_head(struct sched *s, bool new_ones); /* SLOT_NONE: nobody */
int64_t queue_key(const struct sched *s, const struct request *r, uint64_t now);
enum err queue_check(const struct sched *s, struct error *e) MUST_CHECK;

/* tenants.c */
void tenant_activate(struct sched *s, uint32_t tenant); /* it has a queue from now on: lifts its counter */
void tenant_deactivate(struct sched *s, uint32_t tenant);
uint32_t tenant_least(struct sched *s); /* the active one with the smallest counter */
void tenant_charge(struct sched *s, uint32_t tenant, double tokens);
enum err tenants_check(const struct sched *s, struct error *e) MUST_CHECK;

/* cost.c */
void cost_observe(struct cost *c, double rows, double row_context, double ns);
double cost_predict(const struct cost *c, double rows, double row_context);
double cost_steer(struct cost *c, double rows, double row_context, double ns); /* what cost_observe should be told */
/* Rows from position pos on that make a step of these rows take target_ns, to the nearest row. */
uint32_t cost_rows(const struct cost *c, double rows, double row_context, uint32_t pos, double target_ns);

/* budget.c */
void budget_share(struct sched *s, const struct plan *plan, uint64_t now, struct budget *b);
double budget_target(const struct sched *s, double rows, double row_context);  /* of a step with these streams */
uint32_t budget_chunk(struct sched *s, struct budget *b, const struct seq *q); /* takes it from the budget */

/* spec.c */
void spec_init(struct sched *s);
void spec_share(struct sched *s, struct budget *b); /* rows for guesses, from what is left */
/* A step's tokens of a sequence: of n_spec guesses n_held were right; first_id is the first chosen. */
void spec_learn(struct sched *s, struct seq *q, uint32_t n_spec, uint32_t n_held, uint32_t first_id);

/* admit.c */
bool gate_is_open(const struct sched *s); /* to sequences that were never in */
void admit(struct sched *s, struct plan *plan, uint64_t now, struct budget *b);

/* step.c: rows for a sequence that has its share; false: no blocks, nothing changed. */
bool step_emit(struct sched *s, struct plan *plan, uint32_t slot);
void forks_release(struct sched *s, uint32_t group); /* siblings that wait for the first choice go into the queue */

/* preempt.c */
bool preempt_for(struct sched *s, struct plan *plan, uint32_t i_running);   /* make room for running[i] */
void preempt_forced(struct sched *s, struct plan *plan);                    /* preempt_every */
bool preempt_paused(struct sched *s, struct plan *plan, uint32_t n_blocks); /* of paused ones, for the queue's head */

/* sweep.c */
void seq_end(struct sched *s, uint32_t slot, enum req_end why, uint64_t now);
bool seq_is_behind(const struct sched *s, const struct seq *q); /* its reader is */
void seq_pause(struct sched *s, struct seq *q, uint64_t now);
void seq_resume(struct sched *s, uint32_t slot);

#endif
