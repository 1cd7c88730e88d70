/* What the tests of engine/ share: an engine over a fake runner or a tiny model, and requests with their answers. */
#ifndef TESTING_ENGINE_H
#define TESTING_ENGINE_H

#include "testing.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_int.h"

struct rig {
    struct clock clock;
    struct engine *en;
    struct engine_client *client;
};

/* Small sizes: 8 sequences, 64 rows, 512 tokens of context, 64 blocks of 16; every step checked. */
struct engine_options rig_options(void);
struct fake_runner_options rig_fake(void); /* 97 tokens, context proved, free of cost */

/* Over a fake runner; o->runner and o->clock are set here. */
void rig_open_fake(struct rig *r, struct engine_options *o, struct fake_runner_options *f);
void rig_close(struct rig *r);

/* A request of a prompt made from a seed. */
struct request_options rig_ask(uint32_t n_prompt, uint32_t max_tokens);
struct request *rig_request(const struct request_options *o);
struct request *rig_submit(struct rig *r, const struct request_options *o);

/* Wait until that many requests have come back, taking every notice; turns the engine itself when it has no thread.
 * They are freed by the caller. */
void rig_wait(struct rig *r, uint32_t n);

/* Ids the request options point to: prompt tokens made from a seed, below a vocabulary. */
const uint32_t *rig_ids(uint32_t n, uint64_t seed, uint32_t vocab);

#endif
