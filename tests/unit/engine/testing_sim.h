/* A server in a box: the real scheduler, KV bookkeeping and loop over the fake runner and a virtual clock, with a
 * random world around it. One seed is one history: it fixes the machine (pools, budgets, policies), the load, and every
 * misfortune. Used by the unit test (a few short histories) and by bench/sim (a thousand hours of them).
 *
 * What the world does: arrivals that are bursty and have days and nights; prompts that share beginnings; several
 * tenants, priorities, n choices, stop ids and strings, minimal lengths; clients that cancel at any point, read slowly,
 * stop reading for good, or ask for what cannot be; a full queue; a pool that is too small and a swap space that is
 * full; and a device that breaks.
 *
 * What is proved:
 *   after every step   the plan is within its budgets and whole; kv_check and sched_check hold (engine option); every
 *                      row reads its own context (fake runner, check_kv)
 *   of every request   exactly one final notice; a reason that can be true; the tokens that it would get alone; waiting
 *                      within the bound (every batching but static)
 *   of vtc             between any two backlogged tenants service differs by no more than its bound
 *   at the end         no block, slot or request is left
 *
 * Threads: none; a struct sim belongs to one thread. */
#ifndef TESTING_SIM_H
#define TESTING_SIM_H

#include "engine/engine.h"

#define SIM_TENANTS_MAX 6
#define SIM_CLIENTS_MAX 3
#define SIM_GRAMMARS    4
#define SIM_VOCAB       200

/* Guesses of a proposer that knows the truth: said, never said, mostly said, or with ids that are no tokens. */
enum script { SCRIPT_RIGHT, SCRIPT_WRONG, SCRIPT_MIXED, SCRIPT_OUTSIDE };
struct proposer *script_proposer_new(enum script script, const struct fake_runner_options *fake, uint64_t seed);

enum sim_break { SIM_BREAK_NONE, SIM_BREAK_FORWARD, SIM_BREAK_SAMPLE, SIM_BREAK_WAIT };

/* The machine and the load of one history. */
struct sim_config {
    uint64_t seed;
    double seconds; /* of arrivals; then everything has to end */
    struct sched_options sched;
    struct kv_options kv;
    struct fake_runner_options fake; /* clock is set by the simulation */
    uint32_t requests_max;
    uint32_t n_tenants, n_clients;
    double weights[SIM_TENANTS_MAX];
    double load;  /* of what the machine can do, in the mean */
    double day_s; /* length of a day */
    double burst; /* requests of one burst, in the mean */
    double mean_prompt, mean_output;
    uint32_t priority_range; /* -range .. range */
    enum sim_break breaks;
    uint64_t break_step;
    bool drains;      /* ends by a drain; otherwise by an abort */
    bool misbehaves;  /* clients cancel, stall, ask for too much */
    uint32_t guess_k; /* requests have up to so many guesses; 0 = none */
    enum script script;

    /* Planted faults, for the tests of the tests. */
    uint32_t plant_budget;   /* the watcher believes in a budget smaller by this */
    uint64_t plant_token_at; /* the n-th chosen token is changed on its way */
};

struct sim_totals {
    double seconds;
    uint64_t histories, requests, choices, ended[END_COUNT], refused_busy, refused_limit, refused_failed;
    uint64_t steps, rows, output_tokens, compared_tokens;
    uint64_t preempted_swap, preempted_recompute, copied, hits, evicted, kept, restored, surplus_rows, breaks, pauses;
    uint64_t guesses, guesses_held;
    uint64_t jumped;     /* tokens that grammars forced */
    uint64_t fair_pairs; /* intervals in which two tenants were compared */
    double wait_worst;   /* share of the bound */
    double fair_worst;   /* share of the bound */
};

/* Draw a history. The policies go round with the seed, so that 300 seeds in a row have all of them. */
struct sim_config sim_draw(uint64_t seed, double seconds);

/* Run it; ERR_INTERNAL with the first property that does not hold. totals are added to. */
enum err sim_run(const struct sim_config *c, struct sim_totals *totals, struct error *e) MUST_CHECK;

/* One line that says what machine it was. */
const char *sim_describe(const struct sim_config *c, char *out, size_t cap);

/* ---- shared by the files of the simulator ---- */

/* Random numbers of one history, in order. */
struct dice {
    uint64_t seed, n;
};
uint64_t dice_u64(struct dice *d);
uint32_t dice_below(struct dice *d, uint32_t n); /* 0 .. n-1 */
double dice_unit(struct dice *d);                /* [0, 1) */
bool dice_one_in(struct dice *d, uint32_t n);
double dice_exp(struct dice *d, double mean);
uint32_t dice_log(struct dice *d, uint32_t low, uint32_t high); /* low .. high, small ones more often */

/* A runner that looks at every plan before the fake one gets it, and breaks when told to. */
struct sim_watch {
    struct runner base;
    struct runner_ops ops;
    struct runner *inner;
    const struct sim_config *c;
    uint64_t last_step, rows, tokens;
    uint32_t *written; /* [kv blocks x block_tokens] step that wrote the slot last */
    bool has_broken;
};
enum err sim_watch_open(
    const struct sim_config *c, struct clock *clock, struct sim_watch **out, struct error *e) MUST_CHECK;

/* The tokens that a request gets when it runs alone, compared with what it got; and its reasons. */
struct sim_facts {
    bool cancelled, stalls, aborted, broken;
    uint32_t context_max;
    uint64_t wait_max_ns;
};
enum err sim_compare(const struct request *r, const struct fake_runner_options *fake, const struct sim_facts *f,
    uint64_t *n_compared, struct error *e) MUST_CHECK;

/* What tokens mean as text, for stop strings: id i is two letters. */
const struct vocab_view *sim_vocab(uint32_t n);
struct grammar *sim_grammar(uint32_t i); /* one of SIM_GRAMMARS, over the fake runner's tokens */

#endif
