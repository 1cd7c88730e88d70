/* engine: the loop. Owns the engine thread, and on it the scheduler, the KV bookkeeping and the runner. Everybody else
 * reaches it through two mailboxes: submit puts a request into the inbox, notices come back through the client's own
 * outbox; and through published numbers (engine_stats, engine_load), which never touch the engine thread.
 *
 *    TAKE mail · PROPOSE · PLAN · LAUNCH · COMMIT the step before · GIVE notices · REST
 *
 * A client is one thread that asks: a network thread, or the caller of the embedding API. A notice is a pointer to a
 * request that has something new; at most one is on its way for each request, and then the final one, after which the
 * request belongs to the client again. So an outbox for twice the requests cannot be full.
 *
 * States: STARTING -> READY -> DRAINING (takes nothing new, finishes what it has) -> STOPPED; FAILED from any of them:
 * the device or an invariant failed, everyone has been answered with END_FAILED, nothing is launched any more.
 *
 * Threads: engine_new and engine_free one thread; engine_submit, engine_cancel and the client calls the client's
 * thread; stats, load, state anybody. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/clock.h"
#include "base/log.h"
#include "base/ring.h"
#include "engine/propose.h"
#include "engine/runner.h"
#include "engine/stats.h"

struct engine;
struct engine_client;

enum engine_state { ENGINE_STARTING, ENGINE_READY, ENGINE_DRAINING, ENGINE_STOPPED, ENGINE_FAILED };

struct engine_options {
    struct sched_options sched;
    struct kv_options kv;
    struct kv_key key;       /* numerics of the model; adapter and salt come from the request */
    struct runner *runner;   /* taken over when engine_new succeeds */
    struct proposer *draft;  /* for SPEC_DRAFT; taken over likewise; NULL = requests that want it get no guesses */
    uint32_t vocab;          /* guesses are below; 0 = all are */
    struct clock *clock;     /* borrowed */
    uint32_t requests_max;   /* inside at once, over all clients */
    const char *record_path; /* NULL = no recording; see record.h */
    struct log *log;         /* borrowed; of the kind that never blocks; NULL = silent */
    bool check_every_step;   /* kv_check and sched_check after each step; always when idle */
    bool no_thread;          /* the simulator: engine_turn is called by the owner of the virtual clock */
};

/* What a runner and a plan must hold for these options. */
struct runner_limits engine_runner_limits(const struct sched_options *s, const struct kv_options *kv);

enum err engine_new(const struct engine_options *o, struct engine **out, struct error *e) MUST_CHECK;
void engine_drain(struct engine *en); /* returns at once; the state becomes STOPPED when all is done */
void engine_abort(struct engine *en); /* end everything now with END_ABORTED */
void engine_free(struct engine *en);  /* aborts what is left, joins, frees; clients must be closed; NULL is fine */

enum engine_state engine_state(const struct engine *en);
const char *engine_state_name(enum engine_state s);
void engine_error(const struct engine *en, struct error *out); /* why FAILED */

/* ns since the loop last made progress while it had work; 0 when idle. For /livez. */
uint64_t engine_stuck_ns(const struct engine *en);

/* A client and its outbox. fd becomes readable when notices come (edge: see client_arm). */
enum err engine_client_new(struct engine *en, struct engine_client **out, struct error *e) MUST_CHECK;
void engine_client_free(struct engine_client *c); /* all its requests must have come back */
struct wake *engine_client_wake(struct engine_client *c);

/* Hand a request over. ERR_AGAIN: busy, *retry_ms says when to come again; ERR_CANCELLED: draining or stopped;
 * ERR_LIMIT: it can never run here; ERR_INTERNAL: failed. On an error the request is still the caller's.
 * Limits that need the engine thread (queue bounds) come back as a notice with END_BUSY instead. */
enum err engine_submit(struct engine_client *c, struct request *r, uint64_t *retry_ms, struct error *e) MUST_CHECK;

/* Ask for its end; it still comes back through a final notice. */
void engine_cancel(struct engine_client *c, struct request *r);

/* The reader has read up to r->n_read: wakes the engine when the request may be paused. */
void engine_read_on(struct engine_client *c, struct request *r);

struct notice {
    struct request *request;
    bool is_final; /* the request is the client's again */
};
/* ERR_AGAIN when there is none. */
enum err engine_client_next(struct engine_client *c, struct notice *out) MUST_CHECK;
bool engine_client_has(const struct engine_client *c);

void engine_tenant_weight(struct engine *en, uint32_t tenant, double weight); /* by mail; any client thread */

/* One turn of the loop, for no_thread engines: false when there was nothing to do; then *next_ns is when there may be
 * (UINT64_MAX: only mail). */
bool engine_turn(struct engine *en, uint64_t *next_ns);

/* Published once a turn through a seqlock; a reader never waits for the engine. */
void engine_stats(const struct engine *en, struct engine_stats *out);

/* One byte per KV block, refreshed at most ten times a second; see kv_map. n_blocks bytes. */
uint32_t engine_kv_map(const struct engine *en, uint8_t *out, uint32_t cap);

#endif
