/* The world around the engine: arrivals, clients and their moods, and the properties that are checked on the way; see
 * testing_sim.h.
 *
 * Waiting is bounded by two properties that together say that nobody starves. One is about order: whoever is admitted
 * before an earlier request arrived within the time that the queue's order grants (a step of priority is worth 60 s, a
 * token of prompt 10 ms under sjf). The other is about progress: a request waits no longer than all that was ahead of
 * it, and all that rightfully overtook it, would take one token at a time on this machine. */
#include "testing_sim.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIVE_MAX        256
#define DOCUMENTS       6
#define SIM_CHOICES_MAX 4u
#define NEVER           UINT64_MAX
#define STILL_TURNS     500    /* that may pass within a microsecond */
#define TURNS_AT_END    400000 /* of a drain; far more than any history needs */
#define TWO_PI          6.283185307179586

struct asker { /* one request, as its client sees it */
    struct request *r;
    uint32_t client;
    uint64_t cancel_ns, read_ns, stall_until_ns;
    uint32_t cancel_after, stall_after; /* tokens; UINT32_MAX = never */
    uint64_t read_every_ns;             /* 0 = at once */
    bool cancelled, stalls, was_admitted;
    double work_ahead;  /* tokens */
    uint64_t number;    /* in order of arrival */
    uint32_t n_charged; /* chosen tokens that were counted as service */
    bool is_charged;    /* its prompt was */
    uint64_t horizon_ns;
};

struct pair { /* two tenants, while both have somebody waiting */
    bool is_on;
    double low, high; /* of the difference of their service */
};

struct sim {
    const struct sim_config *c;
    struct dice dice;
    struct clock clock;
    struct engine *engine;
    struct sim_watch *watch;
    struct engine_client *clients[SIM_CLIENTS_MAX];
    struct asker live[LIVE_MAX];
    uint32_t n_live;
    uint64_t next_arrival_ns, end_ns;
    double rate;                    /* requests a second, mean */
    double served[SIM_TENANTS_MAX]; /* weighted tokens, over the tenant's weight */
    struct pair pairs[SIM_TENANTS_MAX][SIM_TENANTS_MAX];
    uint32_t *ids; /* scratch for prompts */
    bool aborted, draining;
    bool touched;      /* a client did something since the turn began: the engine has to look */
    uint64_t still_ns; /* the clock has stood here */
    uint32_t n_still;  /* for so many turns */
    struct sim_totals *t;
    struct sim_totals mine;
};

static double seconds_of(uint64_t ns)
{
    return (double)ns / (double)NS_PER_S;
}

/* ---- asking --------------------------------------------------------------------------------------------------------
 */

static double work_of(const struct sim *m, const struct request *r)
{
    return (double)r->n_choices * (r->o.n_prompt + MIN(r->o.max_tokens, m->c->sched.context_max));
}

static void next_arrival(struct sim *m)
{
    const double t = seconds_of(clock_now(&m->clock));
    const double now_rate = m->rate / m->c->burst * (1.0 + 0.9 * sin(TWO_PI * t / m->c->day_s));
    m->next_arrival_ns = clock_now(&m->clock) + (uint64_t)(dice_exp(&m->dice, 1.0 / now_rate) * (double)NS_PER_S);
}

static uint32_t draw_prompt(struct sim *m, struct request_options *o)
{
    const uint32_t context = m->c->sched.context_max;
    uint32_t n = 1 + (uint32_t)dice_exp(&m->dice, m->c->mean_prompt);
    if (m->c->misbehaves && dice_one_in(&m->dice, 40))
        n = context + dice_below(&m->dice, 3); /* cannot be */
    n = MIN(n, context + 2);
    const uint32_t document = dice_below(&m->dice, DOCUMENTS);
    const uint32_t shared = dice_below(&m->dice, n + 1);
    for (uint32_t i = 0; i < n; i++)
        m->ids[i] = i < shared ? (document * 31 + i * 7) % m->c->fake.vocab : dice_below(&m->dice, m->c->fake.vocab);
    o->prompt = m->ids;
    o->n_prompt = n;
    return n;
}

static void draw_sampling(struct sim *m, struct request_options *o)
{
    struct dice *const d = &m->dice;
    o->sample = sample_params_default();
    o->sample.temperature = dice_one_in(d, 2) ? 0.0f : 1.0f;
    o->sample.seed = dice_u64(d);
    if (dice_one_in(d, 8))
        o->sample.repetition_penalty = 1.1f;
    o->n_choices = dice_one_in(d, 8) ? 1 + dice_below(d, SIM_CHOICES_MAX) : 1;
    if (m->c->guess_k > 0 && !dice_one_in(d, 4)) {
        o->spec = dice_one_in(d, 3) ? SPEC_NGRAM : SPEC_DRAFT;
        o->spec_k = 1 + dice_below(d, m->c->guess_k);
        o->ngram_min = 1 + dice_below(d, 2);
        o->ngram_max = 4;
    }
    o->want_logprobs = dice_one_in(d, 10);
    o->n_top = dice_one_in(d, 10) ? 1 + dice_below(d, 3) : 0;
}

/* static: request_new copies what it is given */
static const uint32_t stop_ids[] = {3, 11}, banned_ids[] = {5};

static enum err draw_stops(struct sim *m, struct request_options *o, struct error *e)
{
    struct dice *const d = &m->dice;
    o->stop_ids = stop_ids;
    o->n_stop_ids = dice_below(d, 3);
    if (dice_one_in(d, 4))
        o->min_tokens = dice_below(d, 12);
    if (dice_one_in(d, 8)) {
        o->banned_ids = banned_ids;
        o->n_banned_ids = 1;
    }
    if (!dice_one_in(d, 4))
        return OK;
    o->vocab = sim_vocab(m->c->fake.vocab);
    o->vocab_size = o->vocab->n;
    const struct str first = vocab_bytes(o->vocab, dice_below(d, m->c->fake.vocab));
    const char text[4] = {first.p[1], (char)('a' + dice_below(d, 26)), 0, 0}; /* across two tokens, or inside one */
    const struct str stops[] = {{text, 2}, {first.p, first.n}};
    return stop_set_new(&o->stops, stops, 1 + dice_below(d, 2), e);
}

static void draw_moods(struct sim *m, struct asker *a, struct request_options *o)
{
    struct dice *const d = &m->dice;
    const uint64_t now = clock_now(&m->clock);
    a->cancel_ns = a->read_ns = NEVER;
    a->cancel_after = a->stall_after = UINT32_MAX;
    if (!m->c->misbehaves)
        return;
    if (dice_one_in(d, 6)) {
        if (dice_one_in(d, 2))
            a->cancel_ns = now + (uint64_t)(dice_exp(d, (double)m->c->fake.base_ns * 20));
        else
            a->cancel_after = dice_below(d, 20);
    }
    if (dice_one_in(d, 5)) {
        o->read_window = 1 + dice_below(d, 10);
        if (dice_one_in(d, 2))
            a->read_every_ns = (uint64_t)dice_exp(d, (double)m->c->fake.base_ns * 5);
        if (dice_one_in(d, 2)) {
            a->stalls = true;
            a->stall_after = dice_below(d, 20);
            a->stall_until_ns = dice_one_in(d, 2) ? NEVER : now + (uint64_t)(dice_exp(d, 30) * (double)NS_PER_S);
        }
    }
    if (dice_one_in(d, 10))
        o->deadline_ns = 1 + (uint64_t)(dice_exp(d, (double)m->c->fake.base_ns * 60));
}

/* How much later somebody may come and still be served first. */
static uint64_t horizon_of(const struct sim *m, const struct request_options *o)
{
    switch (m->c->sched.order) {
    case ORDER_PRIORITY: return (uint64_t)(o->priority + (int32_t)m->c->priority_range) * 60 * NS_PER_S;
    case ORDER_SJF: return (uint64_t)o->n_prompt * 10 * NS_PER_MS;
    case ORDER_DEADLINE: return MAX(o->ttft_target_ns, 10 * NS_PER_S);
    case ORDER_FCFS: return 0;
    case ORDER_VTC: break;
    }
    return NEVER; /* other tenants may; fairness is checked apart */
}

static enum err submit(struct sim *m, struct error *e)
{
    struct dice *const d = &m->dice;
    struct asker a = {0};
    struct request_options o = {0};
    (void)draw_prompt(m, &o);
    o.max_tokens = 1 + (uint32_t)dice_exp(d, m->c->mean_output);
    if (dice_one_in(d, 20))
        o.max_tokens = m->c->sched.context_max + 5;
    draw_sampling(m, &o);
    o.tenant = dice_below(d, m->c->n_tenants);
    o.priority = (int32_t)dice_below(d, 2 * m->c->priority_range + 1) - (int32_t)m->c->priority_range;
    o.salt = dice_one_in(d, 4) ? 1 + dice_below(d, 2) : 0;
    o.adapter = dice_one_in(d, 6) ? 1 : 0;
    o.ttft_target_ns = dice_one_in(d, 2) ? (1 + dice_below(d, 20)) * NS_PER_S : 0;
    draw_moods(m, &a, &o);
    TRY(draw_stops(m, &o, e));
    if (dice_one_in(d, 4))
        o.grammar = sim_grammar(dice_below(d, SIM_GRAMMARS));
    if (o.grammar != NULL)
        grammar_ref(o.grammar);
    enum err err = request_new(&o, &a.r, e);
    if (err != OK) {
        stop_set_free(o.stops);
        grammar_unref(o.grammar);
        return err;
    }
    a.client = dice_below(d, m->c->n_clients);
    a.horizon_ns = horizon_of(m, &o);
    for (uint32_t i = 0; i < m->n_live; i++)
        a.work_ahead += work_of(m, m->live[i].r);
    uint64_t retry_ms = 0;
    struct error why = {0};
    err = m->n_live < LIVE_MAX ? engine_submit(m->clients[a.client], a.r, &retry_ms, &why) : ERR_AGAIN;
    if (err == OK) {
        a.number = m->mine.requests++;
        m->live[m->n_live++] = a;
        m->mine.choices += a.r->n_choices;
        return OK;
    }
    m->mine.refused_busy += err == ERR_AGAIN;
    m->mine.refused_limit += err == ERR_LIMIT;
    m->mine.refused_failed += err == ERR_INTERNAL;
    const bool can_be = err == ERR_AGAIN || (err == ERR_LIMIT && m->c->misbehaves) ||
                        (err == ERR_LIMIT && a.r->o.n_prompt + 1 > m->c->kv.n_blocks * m->c->kv.block_tokens) ||
                        (err == ERR_LIMIT && a.r->n_choices > m->c->sched.queue_max) ||
                        (err == ERR_LIMIT && a.r->o.n_prompt >= m->c->sched.context_max) ||
                        (err == ERR_CANCELLED && (m->draining || m->aborted)) ||
                        (err == ERR_INTERNAL && m->watch->has_broken);
    request_free(a.r);
    return can_be ? OK : FAIL(e, ERR_INTERNAL, "a request was refused: %s: %s", err_name(err), why.text);
}

/* ---- reading --------------------------------------------------------------------------------------------------------
 */

static uint32_t most_out(const struct request *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_choices; i++)
        n = MAX(n, atomic_load(&r->choices[i].n_out));
    return n;
}

/* n_read is the least over the choices that have not ended: this reader has read all there is. */
static void read_all(struct sim *m, struct asker *a)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < a->r->n_choices; i++)
        if (atomic_load(&a->r->choices[i].end) == END_NONE)
            least = MIN(least, atomic_load(&a->r->choices[i].n_out));
    if (least == UINT32_MAX || least <= atomic_load(&a->r->n_read))
        return;
    atomic_store(&a->r->n_read, least);
    engine_read_on(m->clients[a->client], a->r);
    m->touched = true;
}

static void cancel(struct sim *m, struct asker *a)
{
    a->cancelled = true;
    a->cancel_ns = NEVER;
    engine_cancel(m->clients[a->client], a->r);
    m->touched = true;
}

static void look(struct sim *m, struct asker *a)
{
    const uint64_t now = clock_now(&m->clock);
    const uint32_t n_out = most_out(a->r);
    if (!a->cancelled && (now >= a->cancel_ns || n_out > a->cancel_after || (a->cancel_after == 0 && n_out == 0)))
        cancel(m, a);
    if (a->r->o.read_window == 0)
        return;
    if (n_out > a->stall_after && now < a->stall_until_ns)
        return;
    if (a->read_every_ns == 0)
        read_all(m, a);
    else if (a->read_ns == NEVER)
        a->read_ns = now + a->read_every_ns;
    else if (now >= a->read_ns) {
        read_all(m, a);
        a->read_ns = NEVER;
    }
}

/* When the client will do something by itself. */
static uint64_t next_mood(const struct asker *a, uint64_t now)
{
    const uint64_t moments[] = {a->cancel_ns, a->read_ns, a->stalls ? a->stall_until_ns : NEVER};
    uint64_t next = NEVER;
    for (size_t i = 0; i < COUNT_OF(moments); i++) /* one that has passed waits for another, or for tokens */
        if (moments[i] > now)
            next = MIN(next, moments[i]);
    return next;
}

static bool is_behind(const struct asker *a)
{
    if (a->r->o.read_window == 0)
        return false;
    for (uint32_t i = 0; i < a->r->n_choices; i++)
        if (atomic_load(&a->r->choices[i].n_out) - atomic_load(&a->r->n_read) >= a->r->o.read_window)
            return true;
    return false;
}

/* ---- properties -----------------------------------------------------------------------------------------------------
 */

/* ns that one token costs at most: a step of its own, with its share of a swap. */
static double token_ns_max(const struct sim_config *c)
{
    const double blocks = (double)c->kv.seq_blocks_max;
    return (double)c->fake.base_ns + (double)c->fake.row_ns + c->fake.row_context_ns * c->sched.context_max +
           2 * blocks * c->fake.swap_ns_per_block;
}

/* And a step, which is also how long mail may lie. */
static uint64_t step_ns_max(const struct sim_config *c)
{
    const double rows = c->sched.max_batched_tokens;
    return (uint64_t)(token_ns_max(c) +
                      rows * ((double)c->fake.row_ns + c->fake.row_context_ns * c->sched.context_max) +
                      4.0 * c->kv.seq_blocks_max * c->fake.swap_ns_per_block);
}

/* A prompt that begins like one inside may step aside until those blocks can be found. */
static bool may_step_aside(const struct sim *m, const struct request *r)
{
    const uint32_t bt = m->c->sched.block_tokens;
    for (uint32_t i = 0; m->c->sched.prefix_cache && i < m->n_live; i++) {
        const struct request *const other = m->live[i].r;
        if (other != r && MIN(other->o.n_prompt, r->o.n_prompt) >= bt &&
            memcmp(other->o.prompt, r->o.prompt, bt * sizeof *r->o.prompt) == 0)
            return true;
    }
    return false;
}

static enum err check_admission(struct sim *m, struct asker *a, struct error *e)
{
    const struct request *const r = a->r;
    for (uint32_t i = 0; i < m->n_live; i++) {
        struct asker *const other = &m->live[i];
        if (other->r->t_admitted != 0 || other->number >= a->number || request_is_done(other->r))
            continue;
        const uint64_t later_ns = r->t_arrival - other->r->t_arrival;
        const uint64_t allowed_ns = other->horizon_ns + (other->horizon_ns > 0 ? step_ns_max(m->c) : 0); /* of mail */
        if (other->horizon_ns != NEVER && later_ns > allowed_ns && !may_step_aside(m, other->r))
            return FAIL(e, ERR_INTERNAL,
                "a request (%u tokens, n=%u) overtook one (%u tokens, n=%u) that came %.1f s earlier; %.1f s are "
                "allowed",
                r->o.n_prompt, r->n_choices, other->r->o.n_prompt, other->r->n_choices, seconds_of(later_ns),
                seconds_of(allowed_ns));
        other->work_ahead += work_of(m, r);
    }
    if (m->c->sched.batching == BATCH_STATIC)
        return OK;
    const double waited = (double)(r->t_admitted - r->t_arrival);
    /* Every token may cost a whole context again where victims are forced, or are readers that pause at each token. */
    const bool is_calm = m->c->sched.preempt_every == 0 && !m->c->misbehaves;
    const double lost = is_calm ? 3 : 3 + 2.0 * m->c->sched.context_max;
    const double bound = lost * (a->work_ahead + work_of(m, r)) * token_ns_max(m->c) +
                         (double)m->c->sched.pause_max_ns * 2 + 10 * token_ns_max(m->c);
    m->mine.wait_worst = MAX(m->mine.wait_worst, waited / bound);
    if (waited > bound)
        return FAIL(e, ERR_INTERNAL, "a request waited %.0f s for its admission; the bound is %.0f s", waited / 1e9,
            bound / 1e9);
    return OK;
}

/* Service as the authors of vtc count it: the prompt, less what was found, on admission; then each token. */
static void charge(struct sim *m, struct asker *a)
{
    const struct request *const r = a->r;
    const double weight = m->c->weights[r->o.tenant];
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < r->n_choices; i++)
        n_out += atomic_load(&r->choices[i].n_out);
    if (r->t_admitted != 0 && !a->is_charged)
        m->served[r->o.tenant] += m->c->sched.vtc_input_weight * (r->o.n_prompt - r->n_cached) / weight;
    a->is_charged = r->t_admitted != 0;
    m->served[r->o.tenant] += m->c->sched.vtc_output_weight * (n_out - a->n_charged) / weight;
    a->n_charged = n_out;
}

static enum err check_fairness(struct sim *m, struct error *e)
{
    const struct sim_config *const c = m->c;
    if (c->sched.order != ORDER_VTC)
        return OK;
    bool waits[SIM_TENANTS_MAX] = {false};
    for (uint32_t i = 0; i < m->n_live; i++)
        charge(m, &m->live[i]);
    for (uint32_t i = 0; i < m->n_live; i++)
        waits[m->live[i].r->o.tenant] |= m->live[i].r->t_admitted == 0 && !request_is_done(m->live[i].r);
    /* Tokens that can be in the batch when it is full; the choices of one admitted request count as in it even where
     * there are fewer seats. Sequences share blocks, so the pool is no bound. */
    const double batch = (double)MAX(c->sched.max_num_seqs, SIM_CHOICES_MAX) * c->sched.context_max;
    const double most = MAX(c->sched.vtc_input_weight * c->sched.context_max, c->sched.vtc_output_weight * batch);
    for (uint32_t f = 0; f < c->n_tenants; f++)
        for (uint32_t g = 0; g < f; g++) {
            struct pair *const p = &m->pairs[f][g];
            const double now = m->served[f] - m->served[g];
            if (!waits[f] || !waits[g]) {
                p->is_on = false;
                continue;
            }
            if (!p->is_on) {
                *p = (struct pair){.is_on = true, .low = now, .high = now};
                m->mine.fair_pairs++;
            }
            p->low = MIN(p->low, now);
            p->high = MAX(p->high, now);
            const double bound = 2 * most / MIN(c->weights[f], c->weights[g]);
            m->mine.fair_worst = MAX(m->mine.fair_worst, (p->high - p->low) / bound);
            if (p->high - p->low > bound)
                return FAIL(e, ERR_INTERNAL,
                    "tenants %u and %u, both waiting, differ by %.0f tokens; the bound is %.0f", f, g, p->high - p->low,
                    bound);
        }
    return OK;
}

static enum err finish(struct sim *m, uint32_t i, struct error *e)
{
    struct asker *const a = &m->live[i];
    const struct sim_facts facts = {.cancelled = a->cancelled,
        .stalls = a->r->o.read_window != 0,
        .aborted = m->aborted,
        .broken = m->watch->has_broken || a->r->error.code == ERR_LIMIT,
        .context_max = m->c->sched.context_max,
        .wait_max_ns = m->c->sched.wait_max_ns};
    charge(m, a);
    enum err err = sim_compare(a->r, &m->c->fake, &facts, &m->mine.compared_tokens, e);
    for (uint32_t k = 0; k < a->r->n_choices; k++)
        m->mine.ended[atomic_load(&a->r->choices[k].end)]++;
    request_free(a->r);
    m->live[i] = m->live[--m->n_live];
    return err;
}

static enum err take_notices(struct sim *m, struct error *e)
{
    struct notice n;
    for (uint32_t c = 0; c < m->c->n_clients; c++)
        while (engine_client_next(m->clients[c], &n) == OK) {
            uint32_t i = 0;
            while (i < m->n_live && m->live[i].r != n.request)
                i++;
            if (i == m->n_live || m->live[i].client != c)
                return FAIL(e, ERR_INTERNAL, "a notice came for a request that is not out, or to another client");
            if (n.is_final != request_is_done(n.request) && n.is_final)
                return FAIL(e, ERR_INTERNAL, "a final notice came before all choices had ended");
            if (n.is_final) {
                if (m->live[i].r->t_admitted != 0 && !m->live[i].was_admitted)
                    TRY(check_admission(m, &m->live[i], e));
                TRY(finish(m, i, e));
            } else
                look(m, &m->live[i]);
        }
    return OK;
}

/* Nothing to do, and somebody who wants something: only readers that are behind may be waited for. */
static enum err check_rest(struct sim *m, uint64_t next_ns, struct error *e)
{
    for (uint32_t i = 0; i < m->n_live; i++)
        if (is_behind(&m->live[i]))
            return OK;
    if (m->n_live > 0) {
        const struct request *const r = m->live[0].r;
        return FAIL(e, ERR_INTERNAL,
            "the loop rests until %.1f s with %u requests inside; one of %u tokens, n=%u, window %u, %u chosen, "
            "admitted %.1f, preempted %u",
            seconds_of(next_ns), m->n_live, r->o.n_prompt, r->n_choices, r->o.read_window, most_out(r),
            seconds_of(r->t_admitted), r->n_preempted);
    }
    return OK;
}

/* ---- the loop -------------------------------------------------------------------------------------------------------
 */

/* A loop that turns without time passing would turn for ever. */
static enum err check_progress(struct sim *m, struct error *e)
{
    const uint64_t now = clock_now(&m->clock);
    m->n_still = now >= m->still_ns + NS_PER_US ? 0 : m->n_still + 1;
    if (m->n_still == 0)
        m->still_ns = now;
    if (m->n_still > STILL_TURNS)
        return FAIL(e, ERR_INTERNAL, "the loop turns without progress with %u requests inside", m->n_live);
    return OK;
}

static enum err turn(struct sim *m, bool *worked, uint64_t *next_ns, struct error *e)
{
    TRY(check_progress(m, e));
    const uint64_t allocs = mem_thread_allocs();
    m->touched = false;
    *worked = engine_turn(m->engine, next_ns);
    if (mem_thread_allocs() != allocs)
        return FAIL(e, ERR_INTERNAL, "the engine allocated");
    for (uint32_t i = 0; i < m->n_live; i++) {
        struct asker *const a = &m->live[i];
        if (!a->was_admitted && a->r->t_admitted != 0) {
            a->was_admitted = true;
            TRY(check_admission(m, a, e));
        }
    }
    TRY(take_notices(m, e));
    TRY(check_fairness(m, e));
    if (engine_state(m->engine) == ENGINE_FAILED && !m->watch->has_broken) {
        struct error why = {0};
        engine_error(m->engine, &why);
        return FAIL(e, ERR_INTERNAL, "the engine failed: %s", why.text);
    }
    return OK;
}

static enum err live_until_the_end(struct sim *m, struct error *e)
{
    next_arrival(m);
    while (clock_now(&m->clock) < m->end_ns && !m->watch->has_broken) {
        uint64_t now = clock_now(&m->clock);
        while (m->next_arrival_ns <= now) {
            do
                TRY(submit(m, e));
            while (dice_unit(&m->dice) > 1.0 / m->c->burst);
            next_arrival(m);
        }
        for (uint32_t i = 0; i < m->n_live; i++)
            look(m, &m->live[i]);
        bool worked;
        uint64_t next_ns;
        TRY(turn(m, &worked, &next_ns, e));
        if (worked || m->touched)
            continue;
        TRY(check_rest(m, next_ns, e));
        now = clock_now(&m->clock);
        uint64_t next = MIN(MIN(next_ns, m->next_arrival_ns), m->end_ns);
        for (uint32_t i = 0; i < m->n_live; i++)
            next = MIN(next, next_mood(&m->live[i], now));
        clock_advance(&m->clock, next > now ? next - now : 1);
    }
    return OK;
}

/* Drain or abort, until everybody has been answered. */
static enum err come_to_an_end(struct sim *m, struct error *e)
{
    if (m->watch->has_broken)
        TRY(submit(m, e)); /* is refused */
    m->aborted = !m->c->drains;
    m->draining = true;
    if (m->c->drains)
        engine_drain(m->engine);
    else
        engine_abort(m->engine);
    if (!m->watch->has_broken)
        TRY(submit(m, e)); /* too late */
    for (uint32_t i = 0; i < TURNS_AT_END && m->n_live > 0; i++) {
        bool worked;
        uint64_t next_ns;
        for (uint32_t k = 0; k < m->n_live; k++) {
            m->live[k].stall_until_ns = 0;
            look(m, &m->live[k]);
        }
        TRY(turn(m, &worked, &next_ns, e));
        if (!worked)
            clock_advance(&m->clock, m->c->fake.base_ns);
    }
    if (m->n_live > 0)
        return FAIL(e, ERR_INTERNAL, "%u requests were not answered at the end", m->n_live);
    bool worked;
    uint64_t next_ns;
    for (uint32_t i = 0; i < 4; i++)
        TRY(turn(m, &worked, &next_ns, e));
    const enum engine_state state = engine_state(m->engine);
    if (state != (m->watch->has_broken ? ENGINE_FAILED : ENGINE_STOPPED))
        return FAIL(e, ERR_INTERNAL, "the engine ended %s", engine_state_name(state));
    return OK;
}

static enum err check_leaks(struct sim *m, struct error *e)
{
    static struct engine_stats s; /* large; simulations of one process run one after the other */
    engine_stats(m->engine, &s);
    m->mine.steps += s.steps;
    m->mine.rows += m->watch->rows;
    m->mine.output_tokens += s.output_tokens;
    m->mine.preempted_swap += s.sched.preempted_swap;
    m->mine.preempted_recompute += s.sched.preempted_recompute;
    m->mine.surplus_rows += s.sched.surplus_rows;
    m->mine.jumped += s.sched.jumped_tokens;
    m->mine.copied += s.kv.copied;
    m->mine.hits += s.kv.exact + s.kv.prefix;
    m->mine.evicted += s.kv.evicted;
    m->mine.kept += s.kv.kept;
    m->mine.restored += s.kv.restored;
    m->mine.breaks += m->watch->has_broken;
    m->mine.guesses += s.sched.spec.tokens;
    m->mine.guesses_held += s.sched.spec.accepted;
    if (s.kv.n_held != 0 || s.kv.n_parked != 0 || s.kv.n_free + s.kv.n_cached != s.kv.n_blocks ||
        s.kv.n_host_free + s.kv.n_host_cached != s.kv.n_host)
        return FAIL(e, ERR_INTERNAL, "%u blocks held, %u parked, %u of %u host slots taken at the end", s.kv.n_held,
            s.kv.n_parked, s.kv.n_host - s.kv.n_host_free - s.kv.n_host_cached, s.kv.n_host);
    if (s.sched.n_waiting + s.sched.n_running + s.sched.n_swapped + s.sched.n_paused != 0)
        return FAIL(e, ERR_INTERNAL, "%u waiting, %u running, %u swapped, %u paused at the end", s.sched.n_waiting,
            s.sched.n_running, s.sched.n_swapped, s.sched.n_paused);
    return OK;
}

static double mean_rate(const struct sim_config *c)
{
    const double chunk =
        MIN(c->sched.chunk_max != 0 ? c->sched.chunk_max : c->sched.max_batched_tokens, c->mean_prompt);
    const double per_step = (double)c->fake.base_ns / (double)NS_PER_S;
    const double per_row = (double)c->fake.row_ns / (double)NS_PER_S;
    const double prefill = MAX(1.0, c->mean_prompt / chunk) * per_step + c->mean_prompt * per_row;
    const double decode = c->mean_output * (per_step / c->sched.max_num_seqs + per_row);
    return c->load / (prefill + decode);
}

static enum err sim_open(struct sim *m, struct error *e)
{
    const struct sim_config *const c = m->c;
    clock_init_virtual(&m->clock, 0);
    m->end_ns = (uint64_t)(c->seconds * (double)NS_PER_S);
    m->rate = mean_rate(c);
    m->ids = mem_array(c->sched.context_max + 4, sizeof *m->ids);
    if (m->ids == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a simulation");
    TRY(sim_watch_open(c, &m->clock, &m->watch, e));
    const struct engine_options o = {.sched = c->sched,
        .kv = c->kv,
        .runner = &m->watch->base,
        .clock = &m->clock,
        .draft = script_proposer_new(c->script, &c->fake, c->seed),
        .vocab = c->fake.vocab,
        .requests_max = c->requests_max,
        .check_every_step = true,
        .no_thread = true};
    const enum err err = engine_new(&o, &m->engine, e);
    if (err != OK) {
        proposer_close(o.draft);
        runner_close(&m->watch->base);
        return err;
    }
    for (uint32_t i = 0; i < c->n_clients; i++)
        TRY(engine_client_new(m->engine, &m->clients[i], e));
    for (uint32_t i = 0; i < c->n_tenants; i++)
        engine_tenant_weight(m->engine, i, c->weights[i]);
    return OK;
}

/* After a failed property requests may still be out: they are taken back first, so that the process can go on. */
static void sim_close(struct sim *m)
{
    if (m->engine != NULL) {
        engine_abort(m->engine);
        uint64_t next_ns;
        struct notice n;
        for (uint32_t i = 0; i < 16; i++) {
            (void)engine_turn(m->engine, &next_ns);
            for (uint32_t c = 0; c < m->c->n_clients; c++)
                while (m->clients[c] != NULL && engine_client_next(m->clients[c], &n) == OK)
                    if (n.is_final)
                        request_free(n.request);
        }
        for (uint32_t c = 0; c < m->c->n_clients; c++)
            engine_client_free(m->clients[c]);
        engine_free(m->engine);
    }
    mem_free(m->ids);
}

static void add_totals(struct sim_totals *t, const struct sim_totals *x)
{
    t->seconds += x->seconds;
    t->histories++;
    for (int i = 0; i < END_COUNT; i++)
        t->ended[i] += x->ended[i];
    t->requests += x->requests, t->choices += x->choices;
    t->refused_busy += x->refused_busy, t->refused_limit += x->refused_limit, t->refused_failed += x->refused_failed;
    t->steps += x->steps, t->rows += x->rows, t->output_tokens += x->output_tokens;
    t->compared_tokens += x->compared_tokens, t->surplus_rows += x->surplus_rows;
    t->preempted_swap += x->preempted_swap, t->preempted_recompute += x->preempted_recompute;
    t->copied += x->copied, t->hits += x->hits, t->evicted += x->evicted, t->breaks += x->breaks;
    t->kept += x->kept, t->restored += x->restored;
    t->fair_pairs += x->fair_pairs;
    t->jumped += x->jumped;
    t->guesses += x->guesses, t->guesses_held += x->guesses_held;
    t->wait_worst = MAX(t->wait_worst, x->wait_worst);
    t->fair_worst = MAX(t->fair_worst, x->fair_worst);
}

enum err sim_run(const struct sim_config *c, struct sim_totals *totals, struct error *e)
{
    struct sim *const m = mem_zalloc(sizeof *m);
    if (m == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a simulation");
    m->c = c;
    m->dice.seed = c->seed;
    enum err err = sim_open(m, e);
    if (err == OK)
        err = live_until_the_end(m, e);
    if (err == OK)
        err = come_to_an_end(m, e);
    if (err == OK)
        err = check_leaks(m, e);
    m->mine.seconds = seconds_of(clock_now(&m->clock));
    if (err != OK) {
        char what[512];
        error_prefix(e, "seed %llu at %.1f s (%s)", (unsigned long long)c->seed, m->mine.seconds,
            sim_describe(c, what, sizeof what));
    } else
        add_totals(totals, &m->mine);
    sim_close(m);
    mem_free(m);
    return err;
}
