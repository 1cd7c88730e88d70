/* Law 1 in storms: a request gives the same tokens alone and in any company. One list of random requests, made from a
 * seed; their answers alone, on a bare engine, one after another; then the same list through engines of every policy,
 * with random arrivals, forced preemption, caches hot and evicting, cancellations around, one and two threads, one step
 * ahead and not. Compared bit by bit: ids, log-probabilities, ends. */
#ifndef TESTING_STORM_H
#define TESTING_STORM_H

#include "testing.h"

#include "engine/engine_int.h"
#include "model/dummy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STORM_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define STORM_SANITIZED 1
#endif
#endif
#ifndef STORM_SANITIZED
#define STORM_SANITIZED 0
#endif

#define STORM_REQUESTS (STORM_SANITIZED ? 24 : 200)
#define STORM_CONTEXT  256u
#define STORM_VOCAB    512u

/* A model with random weights, a well-known shape made small; or one from a file. */
struct storm_model {
    const char *shape, *path;
    enum dtype weights, kv;
    uint32_t window; /* of every other layer; 0 = none */
    uint32_t n_requests;
    uint32_t only;          /* bit i: the i-th of the list; 0 = all */
    const char *draft_path; /* storms of guesses too, by n-grams and by this model; NULL = none */
    bool is_greedy;         /* temperature 0 for everybody */
};

/* One engine: what is varied. */
struct storm {
    const char *name;
    struct sched_options sched; /* from storm_sched */
    uint32_t n_blocks;          /* 0 = plenty */
    uint32_t threads;
    bool late, hot, threaded;
    bool device; /* testing_device.h: chooses by itself, and the loop is a step ahead */
    bool far;    /* as if the device's memory were not the host's */
    bool noise;  /* others come and are cancelled */
    enum spec_method spec;
};

struct sched_options storm_sched(void);

/* The answers alone, then every storm of the list and those of the common list. */
void storm_run(const struct storm_model *m);

#endif
