/* See testing_engine.h. */
#include "engine/testing_engine.h"

#include "base/rng.h"

#define IDS_MAX 4096

struct engine_options rig_options(void)
{
    struct engine_options o = {.requests_max = 64, .check_every_step = true};
    o.sched = sched_options_default();
    o.sched.max_num_seqs = 8;
    o.sched.max_batched_tokens = 64;
    o.sched.out_max = 16;
    o.sched.context_max = 512;
    o.sched.block_tokens = 16;
    o.sched.queue_max = 64;
    o.kv = (struct kv_options){
        .n_blocks = 64, .n_host_blocks = 64, .block_tokens = 16, .seq_blocks_max = 32, .prefix_cache = true};
    return o;
}

struct fake_runner_options rig_fake(void)
{
    return (struct fake_runner_options){.vocab = 97, .check_kv = true};
}

void rig_open_fake(struct rig *r, struct engine_options *o, struct fake_runner_options *f)
{
    struct error e;
    *r = (struct rig){0};
    if (f->clock == NULL || !f->clock->is_virtual)
        clock_init(&r->clock);
    o->clock = f->clock != NULL ? f->clock : &r->clock;
    o->kv.seqs_max = sched_slots(&o->sched);
    const struct runner_limits l = engine_runner_limits(&o->sched, &o->kv);
    assert_ok(e, fake_runner_open(f, &l, o->kv.n_blocks, o->kv.n_host_blocks, o->kv.block_tokens, &o->runner, &e));
    assert_ok(e, engine_new(o, &r->en, &e));
    assert_ok(e, engine_client_new(r->en, &r->client, &e));
}

void rig_close(struct rig *r)
{
    engine_client_free(r->client);
    engine_free(r->en);
}

const uint32_t *rig_ids(uint32_t n, uint64_t seed, uint32_t vocab)
{
    static uint32_t ids[IDS_MAX];
    assert_true(n <= IDS_MAX);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(rng_u64((struct rng_key){.seed = seed, .index = i, .purpose = RNG_DUMMY}) % vocab);
    return ids;
}

struct request_options rig_ask(uint32_t n_prompt, uint32_t max_tokens)
{
    struct request_options o = {.prompt = rig_ids(n_prompt, n_prompt, 97),
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .n_choices = 1,
        .vocab_size = 97,
        .sample = sample_params_default()};
    return o;
}

struct request *rig_request(const struct request_options *o)
{
    struct error e;
    struct request *r = NULL;
    assert_ok(e, request_new(o, &r, &e));
    return r;
}

struct request *rig_submit(struct rig *r, const struct request_options *o)
{
    struct error e;
    uint64_t retry_ms;
    struct request *q = rig_request(o);
    assert_ok(e, engine_submit(r->client, q, &retry_ms, &e));
    return q;
}

void rig_wait(struct rig *r, uint32_t n)
{
    struct wake *w = engine_client_wake(r->client);
    while (n > 0) {
        struct notice notice;
        uint64_t next_ns;
        if (r->en->o.no_thread)
            engine_turn(r->en, &next_ns);
        while (n > 0 && engine_client_next(r->client, &notice) == OK) {
            assert_true(!notice.is_final || request_is_done(notice.request));
            n -= notice.is_final;
        }
        if (n == 0 || r->en->o.no_thread)
            continue;
        wake_arm(w);
        if (engine_client_has(r->client))
            wake_disarm(w);
        else if (wake_wait(w, 20 * NS_PER_S) != OK)
            fail_msg("no notice for 20 s; the engine is %s", engine_state_name(engine_state(r->en)));
    }
}
