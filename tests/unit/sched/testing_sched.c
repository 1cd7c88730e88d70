/* See testing_sched.h. */
#include "testing_sched.h"

#include "base/hash.h"

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 1) * UINT64_C(0xbf58476d1ce4e5b9)) * UINT64_C(0x94d049bb133111eb);
    x = (x ^ (x >> 31)) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ (x >> 29);
}

static bool is_banned(const uint32_t *banned, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (banned[i] == id)
            return true;
    return false;
}

/* The rule of choosing, from the hash of the context and what a sampler knows. */
static uint32_t choose(const struct world *w, uint64_t chain, uint64_t seed, uint32_t choice, uint64_t index,
    const uint32_t *banned, uint32_t n_banned)
{
    for (uint64_t salt = 0;; salt++) {
        const uint64_t h = mix(mix(mix(mix(chain, seed), choice), index), salt);
        const uint32_t n_ids = w->o.n_ids > 0 ? w->o.n_ids : 900;
        const uint32_t id =
            w->o.eos_every > 0 && h % w->o.eos_every == 0 ? WORLD_EOS : 10 + (uint32_t)((h >> 20) % n_ids);
        if (!is_banned(banned, n_banned, id))
            return id;
    }
}

/* Tokens of the heads here are one letter each. */
static bool begins_thinking(const struct request *r, const uint32_t *ids, uint32_t n)
{
    const uint32_t n_head = (uint32_t)r->o.think_head.n;
    bool is_so = r->o.think_budget > 0 && ids[n] == r->o.think_begin && n >= n_head + (n_head > 0);
    for (uint32_t i = 0; is_so && i < n_head; i++)
        is_so = vocab_bytes(r->o.vocab, ids[n - n_head + i]).p[0] == r->o.think_head.p[i];
    return is_so && (n_head == 0 || ids[n - n_head - 1] == r->o.think_mark);
}

uint32_t world_expected(const struct world *w, const struct request *r, uint32_t i_choice, uint32_t *ids)
{
    uint64_t chain = 1 + r->o.adapter;
    for (uint32_t i = 0; i < r->o.n_prompt; i++)
        chain = mix(chain, r->o.prompt[i]);
    const uint32_t limit = MIN(r->o.max_tokens, w->o.sched.context_max - r->o.n_prompt);
    bool is_thinking = r->o.think_budget > 0 && r->o.is_thinking;
    uint32_t thought = 0;
    for (uint32_t n = 0; n < limit; n++) {
        const bool is_short = r->o.n_resume + n < r->o.min_tokens;
        ids[n] = choose(w, chain, r->o.sample.seed, i_choice, r->o.n_resume + n, r->o.banned_ids,
            r->o.n_banned_ids + (is_short ? r->o.n_stop_ids : 0));
        if (is_thinking && thought == r->o.think_budget)
            ids[n] = r->o.think_end;
        thought += is_thinking && ids[n] != r->o.think_end;
        is_thinking = ids[n] != r->o.think_end && (is_thinking || begins_thinking(r, ids, n));
        if (is_banned(r->o.stop_ids, r->o.n_stop_ids, ids[n]))
            return n + 1;
        chain = mix(chain, ids[n]);
    }
    return limit;
}

/* ---- the machine ---- */

static uint32_t flying_token(const struct world *w, uint32_t slot)
{
    const uint32_t other = (w->turn + 1) & 1;
    for (uint32_t i = 0; i < w->n_tokens[other]; i++)
        if (w->tokens[other][i].slot == slot)
            return w->tokens[other][i].id;
    fail_msg("slot %u waits for a token that nobody chooses", slot);
    return 0;
}

static void copy_cells(const struct world *w, uint64_t *to, const uint64_t *from, const struct kv_copy *c, uint32_t n)
{
    const uint32_t bt = w->o.sched.block_tokens;
    for (uint32_t i = 0; i < n; i++)
        memcpy(to + (size_t)c[i].dst * bt, from + (size_t)c[i].src * bt, bt * sizeof *to);
}

static size_t cell_of(const struct world *w, const struct plan *p, const struct plan_seq *q, uint32_t pos)
{
    const uint32_t bt = w->o.sched.block_tokens;
    return (size_t)plan_table(p)[q->table_at + pos / bt] * bt + pos % bt;
}

static uint32_t token_of(const struct world *w, const struct plan *p, const struct plan_seq *q, uint32_t k)
{
    const int32_t token = plan_token(p)[q->first_row + k];
    return token == PLAN_TOKEN_FLYING ? flying_token(w, q->slot) : (uint32_t)token;
}

/* All rows read before any row writes, so that nothing may rely on what others of the same step store. */
static void forward(struct world *w, const struct plan *p)
{
    copy_cells(w, w->host, w->cells, plan_evictions(p), p->n_evictions);
    copy_cells(w, w->host, w->cells, plan_out_copies(p), p->n_out_copies);
    copy_cells(w, w->cells, w->host, plan_restores(p), p->n_restores);
    copy_cells(w, w->cells, w->host, plan_in_copies(p), p->n_in_copies);
    copy_cells(w, w->cells, w->cells, plan_copies(p), p->n_copies);
    uint64_t *chains = w->chains;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *q = &plan_seqs(p)[i];
        struct slot_view v;
        sched_slot_view(w->s, q->slot, &v);
        chains[i] = q->first_pos > 0 ? w->cells[cell_of(w, p, q, q->first_pos - 1)] : 1 + v.request->o.adapter;
        uint64_t chain = chains[i];
        for (uint32_t k = 0; k < q->n_rows; k++) {
            chain = mix(chain, token_of(w, p, q, k));
            if (plan_kv_slot(p)[q->first_row + k] == PLAN_NO_WRITE)
                assert_true(w->cells[cell_of(w, p, q, q->first_pos + k)] == chain);
        }
    }
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *q = &plan_seqs(p)[i];
        for (uint32_t k = 0; k < q->n_rows; k++) {
            const uint32_t slot = plan_kv_slot(p)[q->first_row + k];
            const size_t at = cell_of(w, p, q, q->first_pos + k);
            chains[i] = mix(chains[i], token_of(w, p, q, k));
            assert_true(slot == PLAN_NO_WRITE || slot == at);
            w->cells[at] = chains[i];
        }
    }
}

/* A block that the flying step reads or writes is not written by this one, except by the same sequence. */
static void fences_hold(const struct world *w, const struct plan *flying, const struct plan *p)
{
    const uint32_t bt = w->o.sched.block_tokens;
    uint32_t *owner = w->owners;
    memset(owner, 0xff, w->o.n_blocks * sizeof *owner);
    for (uint32_t i = 0; i < flying->n_seqs; i++)
        for (uint32_t k = 0; k < plan_seqs(flying)[i].n_table; k++)
            owner[plan_table(flying)[plan_seqs(flying)[i].table_at + k]] = plan_seqs(flying)[i].slot;
    for (uint32_t i = 0; i < p->n_copies; i++)
        assert_int_equal(owner[plan_copies(p)[i].dst], UINT32_MAX);
    for (uint32_t i = 0; i < p->n_in_copies; i++)
        assert_int_equal(owner[plan_in_copies(p)[i].dst], UINT32_MAX);
    for (uint32_t i = 0; i < p->n_restores; i++)
        assert_int_equal(owner[plan_restores(p)[i].dst], UINT32_MAX);
    for (uint32_t i = 0; i < p->n_evictions; i++)
        assert_int_equal(owner[plan_evictions(p)[i].src], UINT32_MAX);
    for (uint32_t row = 0; row < p->n_rows; row++) {
        const uint32_t slot = plan_kv_slot(p)[row];
        if (slot != PLAN_NO_WRITE && owner[slot / bt] != UINT32_MAX)
            assert_int_equal(owner[slot / bt], plan_seqs(p)[plan_seq_of_row(p)[row]].slot);
    }
}

static void sample(struct world *w, const struct plan *p)
{
    const uint32_t me = w->turn & 1, bt = w->o.sched.block_tokens;
    w->n_tokens[me] = 0;
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *q = &plan_seqs(p)[i];
        struct slot_view v;
        sched_slot_view(w->s, q->slot, &v);
        if (q->samples == 0 || v.request == NULL)
            continue;
        const uint32_t last = q->n_kv - 1;
        const uint32_t block = plan_table(p)[q->table_at + last / bt];
        const uint64_t chain = w->cells[(size_t)block * bt + last % bt];
        w->tokens[me][w->n_tokens[me]++] = (struct step_token){.slot = q->slot,
            .id =
                choose(w, chain, v.choice->sample.seed, v.choice->sample.choice, v.output_index, v.banned, v.n_banned),
            .logprob = -(float)(chain % 1000)};
    }
}

static uint64_t cost_of(const struct world *w, const struct plan *p)
{
    double context = 0;
    for (uint32_t i = 0; i < p->n_rows; i++)
        context += plan_pos(p)[i] + 1;
    return w->o.base_ns + w->o.row_ns * p->n_rows + (uint64_t)(w->o.row_context_ns * context);
}

static void commit(struct world *w, uint32_t which)
{
    const struct plan *p = w->plans[which];
    const uint64_t cost = cost_of(w, p);
    const struct step_result result = {.step = p->step,
        .cost_ns = (uint64_t)(w->o.told * (double)cost),
        .n = w->n_tokens[which],
        .tokens = w->tokens[which]};
    w->now += cost;
    w->last_cost = cost;
    sched_commit(w->s, p, &result, w->now);
    if (w->on_commit != NULL)
        w->on_commit(w, p);
}

static void plan_is_within_limits(struct world *w, const struct plan *p)
{
    struct error e = {0};
    assert_ok(e, plan_check(p, p->bytes, &e));
    assert_true(p->n_rows <= w->o.sched.max_batched_tokens);
    assert_true(p->n_seqs <= w->o.sched.max_num_seqs);
    assert_true(p->n_out <= w->o.sched.out_max);
    w->rows_max_seen = MAX(w->rows_max_seen, p->n_rows);
    w->rows_total += p->n_rows;
}

void world_check(struct world *w)
{
    struct error e;
    assert_ok(e, kv_check(w->kv, &e));
    assert_ok(e, sched_check(w->s, &e));
}

bool world_turn(struct world *w)
{
    const uint32_t me = w->turn & 1;
    struct plan *p = w->plans[me];
    const bool planned = sched_plan(w->s, w->now, w->flying, p);
    if (planned) {
        plan_is_within_limits(w, p);
        if (w->flying)
            fences_hold(w, w->plans[me ^ 1], p);
        forward(w, p);
    }
    if (w->flying)
        commit(w, me ^ 1);
    w->flying = planned;
    if (planned) {
        sample(w, p);
        w->turn++;
        if (w->o.depth == 0) {
            commit(w, me);
            w->flying = false;
        }
    } else {
        w->n_tokens[me] = 0;
    }
    if (w->o.check_every_step)
        world_check(w);
    return planned || w->flying;
}

void world_run(struct world *w)
{
    for (uint32_t i = 0; !sched_is_idle(w->s) || w->flying; i++) {
        if (i > 200000)
            fail_msg("still not idle after %u turns", i);
        if (!world_turn(w) && !sched_is_idle(w->s) && !sched_can_run(w->s)) {
            assert_true(sched_next_deadline(w->s) != UINT64_MAX);
            w->now = MAX(w->now, sched_next_deadline(w->s));
            sched_sweep(w->s, w->now);
        }
    }
    world_check(w);
}

/* ---- requests ---- */

static void on_progress(void *ctx, struct request *r)
{
    struct world *w = ctx;
    w->n_progress++;
    (void)r;
}

/* Whole answers are the expected ones, and cut ones begin like them. */
static void on_done(void *ctx, struct request *r)
{
    struct world *w = ctx;
    assert_true(request_is_done(r));
    uint32_t *want = mem_array(r->o.max_tokens, sizeof *want);
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct choice *c = &r->choices[i];
        const uint32_t n = world_expected(w, r, i, want), n_out = c->n_out;
        w->n_ends[c->end]++;
        if (c->end == END_EOS || c->end == END_LENGTH)
            assert_int_equal(n_out, n);
        assert_true(n_out <= n);
        assert_memory_equal(c->ids, want, n_out * sizeof *want);
        if (c->end == END_EOS)
            assert_int_equal(c->ids[n_out - 1], WORLD_EOS);
    }
    mem_free(want);
    w->n_done++;
    if (!w->keep)
        request_free(r);
    else if (w->on_kept != NULL)
        w->on_kept(w, r);
}

struct request_options world_request_options(void)
{
    static const uint32_t eos[] = {WORLD_EOS};
    return (struct request_options){
        .max_tokens = 16, .n_choices = 1, .sample = sample_params_default(), .stop_ids = eos, .n_stop_ids = 1};
}

struct request *world_request_like(
    const struct request_options *o, uint32_t n_prompt, uint32_t n_shared, uint64_t family, uint64_t seed)
{
    struct request_options mine = *o;
    uint32_t *prompt = mem_array(n_prompt, sizeof *prompt);
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = 10 + (uint32_t)(mix(i < n_shared ? family : ~seed, i) % 900);
    mine.prompt = prompt;
    mine.n_prompt = n_prompt;
    mine.sample.seed = seed;
    struct request *r;
    struct error e;
    assert_ok(e, request_new(&mine, &r, &e));
    mem_free(prompt);
    return r;
}

struct request *world_request(uint32_t n_prompt, uint32_t max_tokens, uint64_t seed)
{
    struct request_options o = world_request_options();
    o.max_tokens = max_tokens;
    return world_request_like(&o, n_prompt, 0, 0, seed);
}

void world_submit(struct world *w, struct request *r)
{
    struct error e;
    uint64_t retry;
    assert_ok(e, sched_submit(w->s, r, w->now, &retry, &e));
}

/* ---- beginning and end ---- */

struct world_options world_options_default(void)
{
    struct world_options o = {.sched = sched_options_default(),
        .n_blocks = 256,
        .n_host_blocks = 256,
        .eos_every = 20,
        .base_ns = 1000000,
        .row_ns = 10000,
        .row_context_ns = 1,
        .told = 1,
        .check_every_step = true};
    o.sched.max_num_seqs = 8;
    o.sched.max_batched_tokens = 64;
    o.sched.out_max = 64;
    o.sched.context_max = 1024;
    o.sched.queue_max = 64;
    o.sched.tenants_max = 4;
    return o;
}

void world_init(struct world *w, const struct world_options *o)
{
    struct error e;
    *w = (struct world){.o = *o, .now = 1};
    const struct kv_options ko = {.n_blocks = o->n_blocks,
        .n_host_blocks = o->n_host_blocks,
        .block_tokens = o->sched.block_tokens,
        .seqs_max = 2 * o->sched.max_num_seqs,
        .seq_blocks_max = (o->sched.context_max + o->sched.block_tokens - 1) / o->sched.block_tokens,
        .prefix_cache = o->sched.prefix_cache};
    assert_ok(e, kv_new(&ko, &w->kv, &e));
    assert_ok(e, sched_new(&o->sched, w->kv, &w->s, &e));
    sched_set_events(w->s, (struct sched_events){.ctx = w, .on_progress = on_progress, .on_done = on_done});
    const uint32_t table = o->sched.max_num_seqs * ko.seq_blocks_max;
    for (int i = 0; i < 2; i++) {
        assert_ok(e, plan_new(o->sched.max_batched_tokens, o->sched.max_num_seqs, table,
                         MAX(ko.seq_blocks_max, o->sched.max_num_seqs), &w->plans[i], &e));
        w->tokens[i] = mem_array(o->sched.max_num_seqs, sizeof *w->tokens[i]);
    }
    w->cells = mem_array((size_t)o->n_blocks * o->sched.block_tokens, sizeof *w->cells);
    w->owners = mem_array(o->n_blocks, sizeof *w->owners);
    w->chains = mem_array(o->sched.max_num_seqs, sizeof *w->chains);
    w->host = mem_array((size_t)o->n_host_blocks * o->sched.block_tokens + 1, sizeof *w->host);
}

void world_fini(struct world *w)
{
    for (int i = 0; i < 2; i++) {
        plan_free(w->plans[i]);
        mem_free(w->tokens[i]);
    }
    sched_free(w->s);
    struct kv_stats ks;
    kv_stats(w->kv, &ks);
    assert_int_equal(ks.n_held, 0);
    kv_free(w->kv);
    mem_free(w->cells);
    mem_free(w->host);
    mem_free(w->owners);
    mem_free(w->chains);
}
