/* Private to engine/: the engine as its own files see it. engine.c has the loop, mail.c the way in and out, publish.c
 * the numbers.
 *
 * Who writes what: the first group of fields is constant after engine_new; the second is the engine thread's alone; the
 * third is shared, and every field of it is atomic. */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include "engine/engine.h"
#include "engine/record.h"

#include <pthread.h>
#include <stdatomic.h>

#define STATS_WORDS ((sizeof(struct engine_stats) + 7) / 8)

struct engine {
    /* constant */
    struct engine_options o;
    struct runner *runner;
    struct clock *clock;
    struct slots slots;
    bool late; /* the runner is asynchronous: one step flies while the next is planned */
    pthread_t thread;
    bool has_thread;

    /* the engine thread's */
    struct kv *kv;
    struct sched *sched;
    struct plan *plans[2];
    struct plan *flying;           /* launched and not committed, or NULL */
    uint64_t *last_ns;             /* [slots] when the sequence got its last token */
    struct spec_ask *asks;         /* [max_num_seqs] */
    struct guesses *guesses;       /* [max_num_seqs] */
    struct grammar_walk *walk;     /* of guesses being looked at */
    double guess_ns[SPEC_METHODS]; /* what a guess costs its proposer, running mean; 0 = nothing */
    uint32_t n_slots;
    uint64_t seen_changes;           /* of `changes`, at the last sweep */
    struct engine_client *with_news; /* clients to be woken by GIVE */
    uint64_t launch_ns;              /* when the flying step was launched */
    uint64_t checked_ns, mapped_ns;
    uint32_t empty_plans;     /* turns in a row that had nothing to do */
    uint32_t *tenant_started; /* [STATS_TENANTS_MAX] requests inside with a first token */
    uint32_t *tenant_inside;
    struct engine_stats stats; /* the working copy of what is published */
    uint8_t *map_scratch;
    struct record *record; /* NULL = nothing is recorded */
    struct error why;      /* for FAILED; written before the state */

    /* shared */
    struct wake wake;
    struct ring inbox;         /* of struct request * */
    _Atomic int state;         /* enum engine_state */
    _Atomic uint32_t n_inside; /* submitted and not yet taken back: bounds inbox and outboxes */
    _Atomic uint32_t n_live;   /* submitted and not yet done */
    _Atomic uint32_t n_clients;
    _Atomic uint64_t changes;     /* cancels, reads, weights: the sweep runs when it moved */
    _Atomic bool stop, abort;     /* stop: the thread is to end */
    _Atomic uint64_t progress_ns; /* of the last turn that had work; 0 = at rest */
    _Atomic uint64_t allocs;      /* of the engine thread since it started, for tests */
    _Atomic uint32_t n_waiting;   /* published alone, for the quick busy answer */
    _Atomic uint64_t retry_ns;
    _Atomic uint64_t *weights; /* [tenants_max] bits of a double; 0 = unchanged */
    _Atomic bool weights_changed;
    _Atomic uint64_t stats_turn; /* seqlock: odd while written */
    _Atomic uint64_t *stats_words;
    _Atomic bool map_asked;
    _Atomic uint8_t *map; /* [n_blocks] */
};

struct engine_client {
    struct engine *engine;
    struct wake wake;
    struct ring outbox;              /* of uintptr_t: a request, with bit 0 set on the final notice */
    _Atomic uint32_t n_out;          /* requests handed over and not come back */
    struct engine_client *next_news; /* engine thread's */
    uint32_t n_news;                 /* since the last GIVE; engine thread's */
    bool has_news;
    _Atomic bool in_hand; /* the engine thread may still touch this client */
};

/* mail.c. Engine thread. */
void mail_progress(void *ctx, struct request *r); /* sched_events */
void mail_done(void *ctx, struct request *r);
void mail_look(void *ctx, const struct request *r, bool cancel, uint32_t n_read);
void mail_jump(void *ctx, const struct request *r, uint32_t i_choice, const uint32_t *ids, uint32_t n);
/* Answer a request that never came to the scheduler, all choices alike. */
void mail_refuse(struct engine *en, struct request *r, enum req_end why, const struct error *e, uint64_t now);
void mail_give(struct engine *en); /* wake the clients that have news */

/* propose.c. Engine thread. Nothing flies. */
enum err propose(struct engine *en, struct error *e) MUST_CHECK;

/* publish.c. Engine thread. */
void publish_step(
    struct engine *en, const struct plan *p, const struct step_result *r, uint64_t now); /* before the commit */
void publish_done(struct engine *en, const struct request *r);
void publish(struct engine *en, uint64_t now);
void publish_map(struct engine *en, uint64_t now, bool rests);

#endif
