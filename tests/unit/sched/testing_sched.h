/* A world for the scheduler's tests: real kv, real sched, and a machine without a model. Every KV slot holds a hash of
 * all tokens up to its position, read back through the block tables, and the next token is a hash of that, so a wrong
 * block, row or token changes an answer. Each answer is compared with what the request gives alone, computed from
 * nothing but its own tokens. */
#ifndef TESTING_SCHED_H
#define TESTING_SCHED_H

#include "base/mem.h"
#include "sched/sched.h"
#include "testing.h"

#define WORLD_VOCAB 1000u
#define WORLD_EOS   7u

struct world_options {
    struct sched_options sched;
    uint32_t n_blocks, n_host_blocks;
    uint32_t depth;
    uint32_t eos_every;       /* one in so many tokens is the end; 0 = never */
    uint32_t n_ids;           /* that are chosen from; 0 = 900 */
    uint64_t base_ns, row_ns; /* what steps cost */
    double row_context_ns;
    double told; /* share of a step's time that the scheduler is told; 1 = the truth */
    bool check_every_step;
};

struct world {
    struct world_options o;
    struct kv *kv;
    struct sched *s;
    struct plan *plans[2];
    struct step_token *tokens[2];
    uint32_t n_tokens[2];
    uint64_t *cells, *host, *chains;
    uint32_t *owners;
    bool flying;
    uint32_t turn;
    uint64_t now;
    uint64_t last_cost;
    uint32_t n_done, n_ends[END_COUNT], n_progress;
    uint32_t rows_max_seen;
    uint64_t rows_total;
    bool keep; /* requests that are done stay: the test frees them */
    void (*on_commit)(struct world *w, const struct plan *p);
    void (*on_kept)(struct world *w, struct request *r);
    void *user;
};

struct world_options world_options_default(void);
void world_init(struct world *w, const struct world_options *o);
void world_fini(struct world *w);

/* prompt[i] is a function of (family, i) for i < shared and of (seed, i) behind. */
struct request *world_request(uint32_t n_prompt, uint32_t max_tokens, uint64_t seed);
struct request *world_request_like(
    const struct request_options *o, uint32_t n_prompt, uint32_t n_shared, uint64_t family, uint64_t seed);
struct request_options world_request_options(void);

void world_submit(struct world *w, struct request *r);
bool world_turn(struct world *w); /* false: nothing to do */
void world_run(struct world *w);  /* until idle; fails when that takes for ever */
void world_check(struct world *w);

/* The tokens that a choice gives alone; returns how many. */
uint32_t world_expected(const struct world *w, const struct request *r, uint32_t i_choice, uint32_t *ids);

#endif
