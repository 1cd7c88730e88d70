/* The way in and out of the engine: clients, submit, cancel, notices; see engine.h.
 *
 * In: one ring of request pointers for all clients. It has a place for every request that may be inside, so it cannot
 * be full. Cancels and reads are not mail: they are stores into the request itself plus a count of changes, so there is
 * nothing that could be full or late.
 *
 * Out: each client has a ring of its own. A request has at most one progress notice in it (the flag `noticed`) and
 * then its final one, so two places for each request that may be inside are enough. The client clears the flag before
 * it looks at the request, the engine sets it after it published: both by an exchange, so either the client sees what
 * was published or the engine sees the flag clear and puts another notice.
 *
 * Clients are woken by GIVE, and those with many notices while a step is still being committed: they write to sockets
 * beside it.
 *
 * A client may go away as soon as its last final notice is in its ring, while the engine thread is still about to wake
 * it. `in_hand` is set as long as that is so, and engine_client_free waits for it: from a notice to the end of GIVE. */
#include "engine/engine_int.h"

#include "base/limits.h"
#include "base/mem.h"

#include <sched.h>
#include <string.h>

#define FINAL      ((uintptr_t)1) /* requests are aligned, so bit 0 of their address is free */
#define EARLY_NEWS 64             /* notices after which a client is woken at once: a step of thousands is long */

/* ---- the engine's side --------------------------------------------------------------------------------------------
 */

static void put(struct engine *en, struct request *r, uintptr_t tag)
{
    struct engine_client *c = r->client;
    if (!c->has_news) {
        c->has_news = true;
        c->n_news = 0;
        c->next_news = en->with_news;
        en->with_news = c;
        atomic_store(&c->in_hand, true);
    }
    const uintptr_t item = (uintptr_t)r | tag;
    const enum err err = ring_put(&c->outbox, &item);
    assert(err == OK); /* two places for each request */
    (void)err;
    if (++c->n_news % EARLY_NEWS == 0)
        wake_signal(&c->wake);
}

void mail_progress(void *ctx, struct request *r)
{
    if (!atomic_exchange(&r->noticed, true))
        put(ctx, r, 0);
}

void mail_look(void *ctx, const struct request *r, bool cancel, uint32_t n_read)
{
    record_look(((struct engine *)ctx)->record, r, cancel, n_read);
}

void mail_jump(void *ctx, const struct request *r, uint32_t i_choice, const uint32_t *ids, uint32_t n)
{
    struct engine *en = ctx;
    record_jump(en->record, r, i_choice, ids, n);
}

static void finish(struct engine *en, struct request *r)
{
    put(en, r, FINAL); /* from here on it is the client's */
    atomic_fetch_sub(&en->n_live, 1);
}

void mail_done(void *ctx, struct request *r)
{
    struct engine *en = ctx;
    const uint32_t tenant = MIN(r->o.tenant, STATS_TENANTS_MAX - 1u);
    en->tenant_inside[tenant]--;
    en->tenant_started[tenant] -= r->t_first_token != 0 && en->tenant_started[tenant] > 0;
    publish_done(en, r);
    record_end(en->record, r);
    finish(en, r);
}

void mail_refuse(struct engine *en, struct request *r, enum req_end why, const struct error *e, uint64_t now)
{
    if (e != NULL)
        r->error = *e;
    r->t_end = now;
    for (uint32_t i = 0; i < r->n_choices; i++)
        atomic_store(&r->choices[i].end, why);
    en->stats.requests++;
    en->stats.ended[why] += r->n_choices;
    finish(en, r);
}

void mail_give(struct engine *en)
{
    while (en->with_news != NULL) {
        struct engine_client *c = en->with_news;
        en->with_news = c->next_news;
        c->has_news = false;
        wake_signal(&c->wake);
        atomic_store(&c->in_hand, false);
    }
}

/* ---- the client's side --------------------------------------------------------------------------------------------
 */

enum err engine_client_new(struct engine *en, struct engine_client **out, struct error *e)
{
    *out = NULL;
    struct engine_client *c = mem_aligned(CACHE_LINE, sizeof *c);
    if (c == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a client");
    memset(c, 0, sizeof *c);
    c->engine = en;
    c->wake.fd = -1;
    uint32_t n_slots = 2;
    while (n_slots < 2 * (uint64_t)en->o.requests_max)
        n_slots *= 2;
    enum err err = wake_init(&c->wake, e);
    if (err == OK)
        err = ring_init(&c->outbox, RING_SPSC, n_slots, sizeof(uintptr_t), NULL, e);
    if (err != OK) {
        ring_fini(&c->outbox);
        wake_fini(&c->wake);
        mem_free(c);
        return err;
    }
    atomic_fetch_add(&en->n_clients, 1);
    *out = c;
    return OK;
}

void engine_client_free(struct engine_client *c)
{
    if (c == NULL)
        return;
    assert(atomic_load(&c->n_out) == 0);
    while (atomic_load(&c->in_hand))
        sched_yield();
    atomic_fetch_sub(&c->engine->n_clients, 1);
    ring_fini(&c->outbox);
    wake_fini(&c->wake);
    mem_free(c);
}

struct wake *engine_client_wake(struct engine_client *c)
{
    return &c->wake;
}

/* What can be known without the engine thread. */
static enum err can_ever_run(const struct engine *en, const struct request *r, struct error *e)
{
    const struct sched_options *s = &en->o.sched;
    if (r->o.n_prompt >= s->context_max)
        return FAIL(
            e, ERR_LIMIT, "a prompt of %u tokens leaves no room in a context of %u", r->o.n_prompt, s->context_max);
    const uint64_t room = (uint64_t)en->o.kv.n_blocks * en->o.kv.block_tokens;
    if (r->o.n_prompt + (uint64_t)1 > room)
        return FAIL(e, ERR_LIMIT, "a prompt of %u tokens does not fit into a KV cache of %llu", r->o.n_prompt,
            (unsigned long long)room);
    if (r->n_choices > s->queue_max)
        return FAIL(e, ERR_LIMIT, "%u choices do not fit into a queue of %u", r->n_choices, s->queue_max);
    if (r->o.n_top > ENGINE_TOP_MAX)
        return FAIL(e, ERR_LIMIT, "%u alternatives per token; the limit is %d", r->o.n_top, ENGINE_TOP_MAX);
    if (r->o.tenant >= MAX(s->tenants_max, 1u))
        return FAIL(e, ERR_INVALID, "tenant %u of %u", r->o.tenant, s->tenants_max);
    return OK;
}

static enum err busy(const struct engine *en, uint64_t *retry_ms, struct error *e)
{
    const uint64_t ns = atomic_load_explicit(&en->retry_ns, memory_order_relaxed);
    if (retry_ms != NULL)
        *retry_ms = MAX(ns / NS_PER_MS, (uint64_t)1);
    return FAIL(e, ERR_AGAIN, "busy: %u requests are waiting", atomic_load(&en->n_waiting));
}

enum err engine_submit(struct engine_client *c, struct request *r, uint64_t *retry_ms, struct error *e)
{
    struct engine *en = c->engine;
    TRY(can_ever_run(en, r, e));
    const uint64_t waiting = atomic_load_explicit(&en->n_waiting, memory_order_relaxed) + ring_count(&en->inbox);
    if (waiting + r->n_choices > en->o.sched.queue_max && waiting > 0)
        return busy(en, retry_ms, e);
    if (atomic_fetch_add(&en->n_inside, 1) >= en->o.requests_max) {
        atomic_fetch_sub(&en->n_inside, 1);
        return busy(en, retry_ms, e);
    }
    atomic_fetch_add(&en->n_live, 1); /* before the state is read: a drain that came first waits for nobody new */
    const enum engine_state state = engine_state(en);
    if (state != ENGINE_READY && state != ENGINE_STARTING) {
        atomic_fetch_sub(&en->n_live, 1);
        atomic_fetch_sub(&en->n_inside, 1);
        atomic_fetch_add(&en->changes, 1); /* a drain may have waited for this one */
        wake_signal(&en->wake);
        return state == ENGINE_FAILED ? FAIL(e, ERR_INTERNAL, "the engine has failed: %s", en->why.text)
                                      : FAIL(e, ERR_CANCELLED, "the engine is %s", engine_state_name(state));
    }
    r->client = c;
    r->t_arrival = clock_now(en->clock);
    atomic_fetch_add(&c->n_out, 1);
    const enum err err = ring_put(&en->inbox, &r);
    assert(err == OK); /* a place for each request inside */
    return err;
}

static void something_changed(struct engine *en)
{
    atomic_fetch_add(&en->changes, 1);
    wake_signal(&en->wake);
}

void engine_cancel(struct engine_client *c, struct request *r)
{
    atomic_store(&r->cancel, true);
    something_changed(c->engine);
}

void engine_read_on(struct engine_client *c, struct request *r)
{
    if (r->o.read_window != 0)
        something_changed(c->engine);
}

enum err engine_client_next(struct engine_client *c, struct notice *out)
{
    uintptr_t item;
    TRY(ring_take(&c->outbox, &item));
    out->request = (struct request *)(item & ~FINAL); /* NOLINT: the tag was put there by us */
    out->is_final = (item & FINAL) != 0;
    if (out->is_final) {
        atomic_fetch_sub(&c->n_out, 1);
        atomic_fetch_sub(&c->engine->n_inside, 1);
    } else
        atomic_exchange(&out->request->noticed, false);
    return OK;
}

bool engine_client_has(const struct engine_client *c)
{
    return !ring_is_empty(&c->outbox);
}

void engine_tenant_weight(struct engine *en, uint32_t tenant, double weight)
{
    uint64_t bits;
    memcpy(&bits, &weight, sizeof bits);
    if (tenant >= en->o.sched.tenants_max || !(weight > 0.0))
        return;
    atomic_store(&en->weights[tenant], bits);
    atomic_store(&en->weights_changed, true);
    something_changed(en);
}
