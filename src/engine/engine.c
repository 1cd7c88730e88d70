/* The loop: the system in one function (engine_step_turn below). The engine thread is the only one that touches the
 * scheduler, the KV bookkeeping and the runner; it never waits for anybody but the device, never takes a lock, and
 * allocates nothing after it has started.
 *
 * Why turns and not threads per request: a model computes all sequences together, so there is one decision per step,
 * and one place to make it. Why one step ahead: while an asynchronous device computes step t+1, the host reads step t,
 * matches its stops and tells its clients. Where guesses are made there is no step ahead: they stand behind the newest
 * token, which must have been read. PLAN counts the token that flies as known but unread; a row planned for a
 * sequence that then turns out to have ended is computed and dropped.
 *
 * Invariants:
 *   1  A request that engine_submit took comes back through exactly one final notice, in every state.
 *   2  At most one step flies; its plan is not written to before it was committed.
 *   3  Nothing is launched after a failure.
 *   4  At rest nothing flies, the mailbox is empty, and kv_check and sched_check hold. */
#include "engine/engine_int.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/team.h"

#include <string.h>

#define TURN_MAIL_MAX  256      /* so that a flood of requests cannot stall the running ones */
#define CHECK_EVERY_NS NS_PER_S /* the audit at rest costs O(blocks): not after every short answer */
#define EMPTY_PLANS_MAX                                                                                                \
    4                      /* a plan that only preempted computes nothing; the next one does, else it is time to rest  \
                            */
#define PLAN_COPIES_SEQS 4 /* sequences that may be swapped in one step, at full length */

static const char *const state_names[] = {
    [ENGINE_STARTING] = "starting",
    [ENGINE_READY] = "ready",
    [ENGINE_DRAINING] = "draining",
    [ENGINE_STOPPED] = "stopped",
    [ENGINE_FAILED] = "failed",
};

const char *engine_state_name(enum engine_state s)
{
    return state_names[s];
}

enum engine_state engine_state(const struct engine *en)
{
    return (enum engine_state)atomic_load(&en->state);
}

void engine_error(const struct engine *en, struct error *out)
{
    if (engine_state(en) == ENGINE_FAILED)
        *out = en->why;
}

uint64_t engine_stuck_ns(const struct engine *en)
{
    const uint64_t since = atomic_load(&en->progress_ns), now = clock_now(en->clock);
    return since == 0 || now < since ? 0 : now - since;
}

/* ---- the words ----------------------------------------------------------------------------------------------------
 */

/* The engine can go no further: answer everyone, launch nothing more. */
static void fail(struct engine *en, const struct error *why, uint64_t now)
{
    if (engine_state(en) == ENGINE_FAILED)
        return;
    en->why = *why;
    if (en->why.code == OK)
        FAIL(&en->why, ERR_INTERNAL, "the engine failed without saying why");
    atomic_store(&en->state, ENGINE_FAILED);
    LOG(en->o.log, LOG_ERROR, "engine", "failed", log_cstr("why", en->why.text), log_u64("step", en->stats.steps));
    en->flying = NULL;
    sched_abort_all(en->sched, END_FAILED, &en->why, now);
    record_abort(en->record, END_FAILED, now);
}

static void audit(struct engine *en, uint64_t now)
{
    struct error e = {0};
    const struct proposer *draft = en->o.draft;
    if (kv_check(en->kv, &e) != OK || sched_check(en->sched, &e) != OK ||
        (draft != NULL && draft->ops->check != NULL && draft->ops->check(draft, &e) != OK))
        fail(en, &e, now);
}

static void take_request(struct engine *en, struct request *r, uint64_t now)
{
    struct error e = {0};
    uint64_t retry_ns = 0;
    const enum engine_state state = engine_state(en);
    if (state == ENGINE_FAILED) {
        mail_refuse(en, r, END_FAILED, &en->why, now);
        return;
    }
    if (atomic_load(&en->abort) || state == ENGINE_STOPPED) {
        mail_refuse(en, r, END_ABORTED, NULL, now);
        return;
    }
    if (atomic_load_explicit(&r->cancel, memory_order_relaxed)) {
        mail_refuse(en, r, END_CANCELLED, NULL, now);
        return;
    }
    const enum err err = sched_submit(en->sched, r, now, &retry_ns, &e);
    record_submit(en->record, r, now, err);
    if (err != OK) {
        mail_refuse(en, r, err == ERR_AGAIN ? END_BUSY : END_FAILED, &e, now);
        return;
    }
    en->tenant_inside[MIN(r->o.tenant, STATS_TENANTS_MAX - 1u)]++;
}

static void take_weights(struct engine *en)
{
    if (!atomic_exchange(&en->weights_changed, false))
        return;
    for (uint32_t i = 0; i < en->o.sched.tenants_max; i++) {
        const uint64_t bits = atomic_exchange(&en->weights[i], 0);
        double weight;
        memcpy(&weight, &bits, sizeof weight);
        if (bits != 0) {
            sched_tenant_weight(en->sched, i, weight);
            record_weight(en->record, i, weight);
        }
    }
}

/* TAKE. */
static void take(struct engine *en, uint64_t now)
{
    struct request *r;
    if (atomic_load(&en->abort) && en->flying == NULL && !sched_is_idle(en->sched)) {
        sched_abort_all(en->sched, END_ABORTED, NULL, now);
        record_abort(en->record, END_ABORTED, now);
    }
    take_weights(en);
    for (uint32_t i = 0; i < TURN_MAIL_MAX && ring_take(&en->inbox, &r) == OK; i++)
        take_request(en, r, now);
    const uint64_t changes = atomic_load(&en->changes);
    if (changes != en->seen_changes || now >= sched_next_deadline(en->sched)) {
        en->seen_changes = changes;
        sched_sweep(en->sched, now);
        record_sweep(en->record, now);
    }
}

/* PLAN: into the buffer that is not flying. NULL when there is nothing to compute. */
static struct plan *make_plan(struct engine *en, uint64_t now)
{
    if (engine_state(en) == ENGINE_FAILED || atomic_load(&en->abort))
        return NULL;
    struct plan *plan = en->plans[en->flying == en->plans[0] ? 1 : 0];
    const bool some = sched_plan(en->sched, now, en->flying != NULL, plan);
    record_plan(en->record, now, en->flying != NULL, some ? plan : NULL);
    return some ? plan : NULL;
}

/* LAUNCH. */
static enum err launch(struct engine *en, const struct plan *plan, struct error *e)
{
    const uint64_t start = clock_now(en->clock);
    TRY(en->runner->ops->forward(en->runner, plan, &en->slots, e));
    en->stats.forward_ns += clock_now(en->clock) - start;
    return OK;
}

static enum err sample(struct engine *en, const struct plan *plan, struct error *e)
{
    const uint64_t start = clock_now(en->clock);
    TRY(en->runner->ops->sample(en->runner, plan, &en->slots, e));
    en->stats.sample_ns += clock_now(en->clock) - start;
    return OK;
}

/* COMMIT: wait for the step's tokens, then append, match stops, publish blocks. */
static enum err commit(struct engine *en, const struct plan *plan, struct error *e)
{
    struct step_result result = {0};
    TRY(en->runner->ops->wait(en->runner, plan, &result, e));
    en->stats.mask_wait_ns += result.mask_wait_ns;
    const uint64_t now = clock_now(en->clock);
    atomic_store(&en->progress_ns, MAX(now, (uint64_t)1)); /* before anybody hears of it: a long step is not stuck */
    publish_step(en, plan, &result, now);
    sched_commit(en->sched, plan, &result, now);
    record_commit(en->record, &result, now);
    en->stats.commit_ns += clock_now(en->clock) - now;
    return OK;
}

/* PROPOSE. The step that flies has to land first: what it chooses is what guesses stand behind. */
static enum err guess(struct engine *en, bool *landed, struct error *e)
{
    if (!sched_speculates(en->sched) || engine_state(en) == ENGINE_FAILED || atomic_load(&en->abort))
        return OK;
    *landed = en->flying != NULL;
    if (*landed)
        TRY(commit(en, en->flying, e));
    en->flying = NULL;
    return propose(en, e);
}

static void note_state(struct engine *en)
{
    int draining = ENGINE_DRAINING;
    if (atomic_load(&en->n_live) == 0)
        atomic_compare_exchange_strong(&en->state, &draining, ENGINE_STOPPED);
}

/* One turn. True when there was something to do; *next_ns is when there may be something to do again. */
static bool turn(struct engine *en, uint64_t *next_ns)
{
    struct error e = {0};
    uint64_t now = clock_now(en->clock);
    const uint64_t start = now, live = atomic_load_explicit(&en->n_live, memory_order_relaxed);
    if (live > 0)
        atomic_store_explicit(&en->progress_ns, MAX(now, (uint64_t)1), memory_order_relaxed);

    /* 1 TAKE: requests, cancels, weights; deadlines. */
    take(en, now);

    /* 2 PROPOSE and PLAN: a pure decision; never blocks, never allocates. */
    bool landed = false;
    enum err err = guess(en, &landed, &e);
    if (landed)
        now = clock_now(en->clock);
    struct plan *plan = err == OK ? make_plan(en, now) : NULL;
    en->stats.plan_ns += clock_now(en->clock) - now;
    mail_give(en); /* what was refused or ended so far need not wait for the step */

    /* 3 LAUNCH: forward returns at once on an asynchronous device. Its sampling has to wait for the commit of the step
     * before, which knows the penalties and masks; on a synchronous one there is no step before. */
    struct plan *landing = en->late ? en->flying : plan;
    if (err == OK && plan != NULL)
        err = launch(en, plan, &e);
    if (err == OK && plan != NULL && !en->late)
        err = sample(en, plan, &e);

    /* 4 COMMIT the step that has landed. */
    if (err == OK && landing != NULL)
        err = commit(en, landing, &e);
    if (err == OK && plan != NULL && en->late)
        err = sample(en, plan, &e);
    en->flying = en->late && err == OK ? plan : NULL;
    if (err != OK)
        fail(en, &e, clock_now(en->clock));
    if (en->o.check_every_step)
        audit(en, now);

    /* 5 GIVE: notices to clients, numbers to whoever asks. */
    const bool worked =
        plan != NULL || landing != NULL || landed || live != atomic_load_explicit(&en->n_live, memory_order_relaxed);
    en->stats.turns++;
    const uint64_t end = clock_now(en->clock);
    en->stats.busy_ns += end - start;
    publish(en, end);
    mail_give(en);
    note_state(en);

    /* 6 REST: is left to the caller, who knows what to sleep on. */
    *next_ns = sched_next_deadline(en->sched);
    en->empty_plans = worked ? 0 : en->empty_plans + 1;
    return worked || !ring_is_empty(&en->inbox) || (sched_can_run(en->sched) && en->empty_plans < EMPTY_PLANS_MAX);
}

bool engine_turn(struct engine *en, uint64_t *next_ns)
{
    assert(en->o.no_thread);
    return turn(en, next_ns);
}

/* REST: nothing flies and nothing can be planned. */
static void rest(struct engine *en, uint64_t next_ns)
{
    uint64_t now = clock_now(en->clock);
    if (now - en->checked_ns >= CHECK_EVERY_NS && engine_state(en) != ENGINE_FAILED) {
        audit(en, now);
        mail_give(en);
        en->checked_ns = now;
    }
    publish_map(en, now, true);
    atomic_store(&en->progress_ns, 0);
    wake_arm(&en->wake);
    const bool quiet = ring_is_empty(&en->inbox) && atomic_load(&en->changes) == en->seen_changes &&
                       !atomic_load(&en->stop) && !(atomic_load(&en->abort) && atomic_load(&en->n_live) > 0) &&
                       !atomic_load(&en->weights_changed);
    if (quiet && next_ns > now)
        (void)wake_wait(&en->wake, next_ns == UINT64_MAX ? UINT64_MAX : next_ns - now);
    else
        wake_disarm(&en->wake);
    en->stats.idle_ns += clock_now(en->clock) - now;
}

static void *run(void *ctx)
{
    struct engine *en = ctx;
    team_flush_denormals(); /* this thread takes its share of the tiles */
    pthread_setname_np(pthread_self(), "quern-engine");
    const uint64_t allocs = mem_thread_allocs();
    int starting = ENGINE_STARTING;
    atomic_compare_exchange_strong(&en->state, &starting, ENGINE_READY);
    while (!atomic_load(&en->stop) || atomic_load(&en->n_live) > 0) {
        uint64_t next_ns;
        if (!turn(en, &next_ns))
            rest(en, next_ns);
        atomic_store_explicit(&en->allocs, mem_thread_allocs() - allocs, memory_order_relaxed);
    }
    return NULL;
}

/* ---- making one ---------------------------------------------------------------------------------------------------
 */

static void view_slot(const void *ctx, uint32_t slot, struct slot_view *out)
{
    sched_slot_view(ctx, slot, out);
}

static uint32_t power_of_two_over(uint64_t n)
{
    uint32_t p = 2;
    while (p < n && p < RING_SLOTS_MAX)
        p *= 2;
    return p;
}

static enum err make_plans(struct engine *en, struct error *e)
{
    const struct sched_options *s = &en->o.sched;
    const struct runner_limits l = engine_runner_limits(s, &en->o.kv);
    for (size_t i = 0; i < COUNT_OF(en->plans); i++)
        TRY(plan_new(l.rows_max, l.seqs_max, l.table_max, l.copies_max, &en->plans[i], e));
    return OK;
}

static enum err make_room(struct engine *en, struct error *e)
{
    const struct sched_options *s = &en->o.sched;
    en->n_slots = sched_slots(s);
    en->last_ns = mem_array(en->n_slots, sizeof *en->last_ns);
    en->asks = mem_array(s->max_num_seqs, sizeof *en->asks);
    en->guesses = mem_array(s->max_num_seqs, sizeof *en->guesses);
    en->tenant_started = mem_array(STATS_TENANTS_MAX, sizeof *en->tenant_started);
    en->tenant_inside = mem_array(STATS_TENANTS_MAX, sizeof *en->tenant_inside);
    en->weights = mem_array(MAX(s->tenants_max, 1u), sizeof *en->weights);
    en->stats_words = mem_array(STATS_WORDS, sizeof *en->stats_words);
    en->map = mem_array(en->o.kv.n_blocks, sizeof *en->map);
    en->map_scratch = mem_array(en->o.kv.n_blocks, sizeof *en->map_scratch);
    en->walk = mem_zalloc(grammar_walk_bytes());
    if (en->last_ns == NULL || en->walk == NULL || en->asks == NULL || en->guesses == NULL ||
        en->tenant_started == NULL || en->tenant_inside == NULL || en->weights == NULL || en->stats_words == NULL ||
        en->map == NULL || en->map_scratch == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for an engine of %u requests", en->o.requests_max);
    TRY(ring_init(
        &en->inbox, RING_MPSC, power_of_two_over(en->o.requests_max), sizeof(struct request *), &en->wake, e));
    return make_plans(en, e);
}

struct runner_limits engine_runner_limits(const struct sched_options *s, const struct kv_options *kv)
{
    const uint64_t table = (uint64_t)s->max_num_seqs * kv->seq_blocks_max;
    const uint64_t copies = (uint64_t)PLAN_COPIES_SEQS * kv->seq_blocks_max + s->max_num_seqs;
    return (struct runner_limits){.rows_max = s->max_batched_tokens,
        .seqs_max = s->max_num_seqs,
        .out_max = MAX(s->out_max, s->max_num_seqs),
        .table_max = (uint32_t)MIN(table, (uint64_t)ENGINE_TABLE_MAX),
        .copies_max = (uint32_t)MIN(copies, (uint64_t)ENGINE_TABLE_MAX),
        .top_max = ENGINE_TOP_MAX};
}

static enum err check_options(const struct engine_options *o, struct error *e)
{
    if (o->requests_max == 0 || o->requests_max > ENGINE_REQUESTS_MAX)
        return FAIL(e, ERR_LIMIT, "requests_max is %u; it may be 1 to %u", o->requests_max, ENGINE_REQUESTS_MAX);
    if ((uint64_t)o->sched.max_num_seqs * o->kv.seq_blocks_max > ENGINE_TABLE_MAX)
        return FAIL(e, ERR_LIMIT, "%u sequences of %u blocks; the limit is %u blocks in one step",
            o->sched.max_num_seqs, o->kv.seq_blocks_max, ENGINE_TABLE_MAX);
    return OK;
}

enum err engine_new(const struct engine_options *o, struct engine **out, struct error *e)
{
    *out = NULL;
    struct engine *en = mem_aligned(CACHE_LINE, sizeof *en);
    if (en == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for an engine");
    memset(en, 0, sizeof *en);
    en->o = *o;
    en->runner = o->runner;
    en->clock = o->clock;
    en->late = o->runner->ops->depth > 0;
    en->wake.fd = -1;
    enum err err = check_options(o, e);
    if (err == OK)
        err = wake_init(&en->wake, e);
    if (err == OK)
        err = make_room(en, e);
    if (err == OK)
        err = kv_new(&o->kv, &en->kv, e);
    if (err == OK)
        err = sched_new(&o->sched, en->kv, &en->sched, e);
    if (err == OK && o->record_path != NULL)
        err = record_open(o->record_path, o, &en->record, e);
    if (err == OK) {
        en->slots = (struct slots){.ctx = en->sched, .view = view_slot};
        sched_set_events(en->sched, (struct sched_events){.ctx = en,
                                        .on_progress = mail_progress,
                                        .on_done = mail_done,
                                        .on_look = mail_look,
                                        .on_jump = mail_jump});
        publish(en, clock_now(en->clock));
        atomic_store(&en->state, o->no_thread ? ENGINE_READY : ENGINE_STARTING);
    }
    if (err == OK && !o->no_thread) {
        en->has_thread = pthread_create(&en->thread, NULL, run, en) == 0;
        if (!en->has_thread)
            err = FAIL(e, ERR_IO, "cannot start the engine thread");
    }
    if (err != OK) {
        en->runner = NULL; /* stays the caller's when nothing came of it; so does the draft */
        en->o.draft = NULL;
        engine_free(en);
        return err;
    }
    *out = en;
    return OK;
}

void engine_drain(struct engine *en)
{
    int ready = ENGINE_READY, starting = ENGINE_STARTING;
    if (!atomic_compare_exchange_strong(&en->state, &ready, ENGINE_DRAINING))
        atomic_compare_exchange_strong(&en->state, &starting, ENGINE_DRAINING);
    atomic_fetch_add(&en->changes, 1); /* a loop at rest looks up */
    wake_signal(&en->wake);
}

void engine_abort(struct engine *en)
{
    engine_drain(en);
    atomic_store(&en->abort, true);
    wake_signal(&en->wake);
}

void engine_free(struct engine *en)
{
    if (en == NULL)
        return;
    assert(atomic_load(&en->n_clients) == 0);
    if (en->has_thread) {
        engine_abort(en);
        atomic_store(&en->stop, true);
        wake_signal(&en->wake);
        pthread_join(en->thread, NULL);
    }
    record_close(en->record);
    sched_free(en->sched);
    kv_free(en->kv);
    for (size_t i = 0; i < COUNT_OF(en->plans); i++)
        plan_free(en->plans[i]);
    runner_close(en->runner);
    ring_fini(&en->inbox);
    wake_fini(&en->wake);
    proposer_close(en->o.draft);
    mem_free(en->last_ns);
    mem_free(en->walk);
    mem_free(en->asks);
    mem_free(en->guesses);
    mem_free(en->tenant_started);
    mem_free(en->tenant_inside);
    mem_free(en->weights);
    mem_free(en->stats_words);
    mem_free(en->map);
    mem_free(en->map_scratch);
    mem_free(en);
}
