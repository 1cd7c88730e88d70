/* The engine's numbers: kept by the engine thread, published through a seqlock; see stats.h.
 *
 * The seqlock is an odd turn number while the words are written. The words are atomics with relaxed order, which costs
 * nothing on the machines we know, and lets ThreadSanitizer check the rest. A reader that was overtaken tries again;
 * the writer never waits. */
#include "engine/engine_int.h"

#include <string.h>

#define MAP_EVERY_NS (100 * NS_PER_MS)

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0.0;
}

static void add(struct engine *en, enum stats_histogram which, double value)
{
    histogram_add(&en->stats.hist[which], which, value);
}

/* What rows of the prompt said about the token behind them. A prompt that is computed again after a preemption says
 * the same; only the first time counts, since readers may look by now. */
static void write_prompt(const struct engine *en, const struct step_prompt *p)
{
    struct slot_view v;
    sched_slot_view(en->sched, p->slot, &v);
    struct request *r = v.request;
    if (r == NULL || r->prompt_logprobs == NULL || p->pos < MAX(r->n_prompt_logprobs, 1u) || p->pos >= r->o.n_prompt)
        return;
    r->prompt_logprobs[p->pos] = (struct prompt_logprob){.logprob = p->logprob, .rank = p->rank};
    if (r->prompt_top != NULL)
        memcpy(r->prompt_top + (size_t)p->pos * r->o.n_top, p->top, MIN(p->n_top, r->o.n_top) * sizeof *p->top);
    r->n_prompt_logprobs = p->pos + 1;
}

/* Row by row in the order of the prompt, in double: so the sum does not depend on how the prompt was cut. Rows that are
 * computed again after a preemption are in it already. */
static void write_pool(const struct engine *en, const struct step_pool *p)
{
    struct slot_view v;
    sched_slot_view(en->sched, p->slot, &v);
    struct request *r = v.request;
    if (r == NULL || r->pooled == NULL)
        return;
    const uint32_t n = r->o.n_hidden;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const uint32_t pos = p->pos + i;
        const bool is_last = r->o.pool == POOL_LAST && pos + 1 == r->o.n_prompt;
        if (!is_last && (r->o.pool == POOL_LAST || pos != r->n_pooled))
            continue;
        for (uint32_t k = 0; k < n; k++)
            r->pooled[k] = (is_last ? 0.0 : r->pooled[k]) + p->rows[(size_t)i * n + k];
        r->n_pooled = pos + 1;
    }
}

void publish_step(struct engine *en, const struct plan *p, const struct step_result *result, uint64_t now)
{
    en->stats.steps++;
    add(en, HIST_ITERATION_TOKENS, p->n_rows);
    for (uint32_t i = 0; i < result->n_prompts; i++)
        write_prompt(en, &result->prompts[i]);
    for (uint32_t i = 0; i < result->n_pools; i++)
        write_pool(en, &result->pools[i]);
    for (uint32_t i = 0; i < result->n; i++) {
        const uint32_t slot = result->tokens[i].slot;
        struct slot_view v;
        if (i > 0 && result->tokens[i - 1].slot == slot)
            continue; /* behind a guess that held: it comes in the same breath */
        sched_slot_view(en->sched, slot, &v);
        if (v.request == NULL || slot >= en->n_slots || v.is_dropped || result->tokens[i].id == STEP_ID_OVER)
            continue;
        const uint32_t tenant = MIN(v.request->o.tenant, STATS_TENANTS_MAX - 1u);
        if (atomic_load_explicit(&v.choice->n_out, memory_order_relaxed) > 0)
            add(en, HIST_ITL, seconds(en->last_ns[slot], now));
        else if (v.request->t_first_token == 0 && v.i_choice == 0 && result->tokens[i].id != UINT32_MAX) {
            add(en, HIST_TTFT, seconds(v.request->t_arrival, now));
            en->tenant_started[tenant]++;
        }
        en->last_ns[slot] = now;
    }
}

void publish_done(struct engine *en, const struct request *r)
{
    struct engine_stats *s = &en->stats;
    const uint32_t tenant = MIN(r->o.tenant, STATS_TENANTS_MAX - 1u);
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];
        const uint32_t n = atomic_load_explicit(&c->n_out, memory_order_relaxed);
        s->ended[atomic_load_explicit(&c->end, memory_order_relaxed)]++;
        most = MAX(most, n);
        add(en, HIST_OUTPUT_TOKENS, n);
    }
    s->requests++;
    s->prompt_tokens += r->o.n_prompt;
    s->prompt_tokens_cached += r->n_cached;
    s->tenants[tenant].requests++;
    s->tenants[tenant].prompt_tokens += r->o.n_prompt;
    s->n_tenants = MAX(s->n_tenants, tenant + 1);
    add(en, HIST_E2E, seconds(r->t_arrival, r->t_end));
    add(en, HIST_PROMPT_TOKENS, r->o.n_prompt);
    add(en, HIST_MOST_TOKENS, most);
    add(en, HIST_MAX_TOKENS, r->o.max_tokens);
    add(en, HIST_N, r->n_choices);
    if (r->t_admitted == 0)
        return;
    add(en, HIST_COMPUTED_TOKENS, r->o.n_prompt - MIN(r->n_cached, r->o.n_prompt));
    add(en, HIST_QUEUE, seconds(r->t_arrival, r->t_admitted));
    add(en, HIST_INFERENCE, seconds(r->t_admitted, r->t_end));
    if (r->t_first_token == 0)
        return;
    add(en, HIST_PREFILL, seconds(r->t_admitted, r->t_first_token));
    add(en, HIST_DECODE, seconds(r->t_first_token, r->t_end));
    if (most > 1)
        add(en, HIST_TPOT, seconds(r->t_first_token, r->t_end) / (most - 1));
}

static void collect(struct engine *en, uint64_t now)
{
    struct engine_stats *s = &en->stats;
    s->now_ns = now;
    sched_stats(en->sched, &s->sched);
    kv_stats(en->kv, &s->kv);
    s->cost = sched_cost(en->sched);
    s->output_tokens = s->sched.output_tokens;
    for (uint32_t i = 0, n = en->o.sched.tenants_max; i < MIN(n, (uint32_t)STATS_TENANTS_MAX); i++) {
        uint64_t sum = sched_tenant_output(en->sched, i);
        for (uint32_t k = i + 1; i == STATS_TENANTS_MAX - 1 && k < n; k++)
            sum += sched_tenant_output(en->sched, k);
        s->tenants[i].output_tokens = sum;
    }
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        s->tenants[i].running = en->tenant_started[i];
        s->tenants[i].waiting = en->tenant_inside[i] - MIN(en->tenant_inside[i], en->tenant_started[i]);
        s->tenants[i].counter = i < en->o.sched.tenants_max ? sched_tenant_counter(en->sched, i) : 0.0;
    }
    atomic_store_explicit(&en->n_waiting, s->sched.n_waiting, memory_order_relaxed);
    atomic_store_explicit(&en->retry_ns, s->sched.retry_ns, memory_order_relaxed);
}

void publish(struct engine *en, uint64_t now)
{
    collect(en, now);
    const uint64_t turn = atomic_load_explicit(&en->stats_turn, memory_order_relaxed);
    atomic_store(&en->stats_turn, turn + 1);
    const unsigned char *from = (const unsigned char *)&en->stats;
    for (size_t i = 0; i < STATS_WORDS; i++) {
        uint64_t word = 0;
        memcpy(&word, from + i * sizeof word, MIN(sizeof word, sizeof en->stats - i * sizeof word));
        atomic_store_explicit(&en->stats_words[i], word, memory_order_release);
    }
    atomic_store_explicit(&en->stats_turn, turn + 2, memory_order_release);
    publish_map(en, now, false);
}

void engine_stats(const struct engine *en, struct engine_stats *out)
{
    unsigned char *to = (unsigned char *)out;
    for (;;) {
        const uint64_t before = atomic_load_explicit(&en->stats_turn, memory_order_acquire);
        for (size_t i = 0; i < STATS_WORDS; i++) {
            const uint64_t word = atomic_load_explicit(&en->stats_words[i], memory_order_acquire);
            memcpy(to + i * sizeof word, &word, MIN(sizeof word, sizeof *out - i * sizeof word));
        }
        if ((before & 1) == 0 && atomic_load_explicit(&en->stats_turn, memory_order_relaxed) == before)
            return;
    }
}

/* At rest the map is made whenever something may have changed; while running, when somebody asks and not too often. */
void publish_map(struct engine *en, uint64_t now, bool rests)
{
    const bool due = now - en->mapped_ns >= MAP_EVERY_NS || en->mapped_ns == 0;
    if (!due || (!rests && !atomic_load_explicit(&en->map_asked, memory_order_relaxed)))
        return;
    atomic_store_explicit(&en->map_asked, false, memory_order_relaxed);
    en->mapped_ns = now;
    kv_map(en->kv, en->map_scratch);
    for (uint32_t i = 0; i < en->o.kv.n_blocks; i++)
        atomic_store_explicit(&en->map[i], en->map_scratch[i], memory_order_relaxed);
}

uint32_t engine_kv_map(const struct engine *en, uint8_t *out, uint32_t cap)
{
    const uint32_t n = MIN(cap, en->o.kv.n_blocks);
    struct engine *asked = (struct engine *)(uintptr_t)en; /* asking changes nothing that anybody sees */
    atomic_store_explicit(&asked->map_asked, true, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++)
        out[i] = atomic_load_explicit(&en->map[i], memory_order_relaxed);
    return n;
}
