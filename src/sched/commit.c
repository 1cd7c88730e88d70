/* A step is done: its tokens are appended, blocks that became full are published, and sequences end. Only here do
 * histories, output counts, stop matchers and grammars move, so they are the same whatever was planned around them.
 *
 * A sequence may have changed since the plan was made: ended (its rows were surplus), swapped out (nothing differs but
 * where its blocks are), or preempted for recomputing (the token counts, the positions do not). It cannot have been
 * admitted again: that takes another plan, which is made after this commit.
 *
 * Guesses. The tokens of a sequence with guesses are those that were right, as the model itself chose them, and one
 * more. They are committed one by one, as if each had come from a step of its own: a stop in the middle drops the rest.
 * What is left over in the block table goes back. */
#include "sched/sched_int.h"

#include <math.h>
#include <string.h>

static bool is_stop_id(const struct request_options *o, uint32_t id)
{
    for (uint32_t i = 0; i < o->n_stop_ids; i++)
        if (o->stop_ids[i] == id)
            return true;
    return false;
}

/* How the sequence ends with this token, which is its newest; END_NONE: it goes on. */
static enum req_end token_ends(struct seq *q, uint32_t id)
{
    const struct request_options *o = &q->request->o;
    if (is_stop_id(o, id))
        return END_EOS;
    if (q->choice->walk != NULL && grammar_accept(q->choice->walk, id, &q->request->error) != OK)
        return END_FAILED;
    if (o->vocab != NULL) {
        if (detok_feed(&q->choice->stop_state, id, NULL, &q->request->error) != OK)
            return END_FAILED;
        if (q->choice->stop_state.stopped)
            return END_STOP;
    }
    return q->n_out >= q->out_limit ? END_LENGTH : END_NONE;
}

static void token_append(struct seq *q, const struct step_token *t)
{
    struct choice *c = q->choice;
    const struct request_options *o = &q->request->o;
    const uint32_t n = q->n_out;
    c->ids[n] = t->id;
    if (c->logprobs != NULL)
        c->logprobs[n] = t->logprob;
    for (uint32_t i = 0; c->top != NULL && i < o->n_top; i++)
        c->top[(size_t)n * o->n_top + i] =
            i < t->n_top ? t->top[i] : (struct token_logprob){.id = UINT32_MAX, .logprob = -INFINITY};
    if (c->history.cap > 0)
        sample_history_add(&c->history, t->id, true);
    q->last_id = t->id;
    q->n_out = n + 1;
}

/* Is the newest of n tokens the one that begins it? However the head before it was cut into tokens. */
static bool think_begins(const struct request_options *o, const uint32_t *ids, uint32_t n)
{
    size_t left = o->think_head.n;
    if (ids[--n] != o->think_begin)
        return false;
    for (; left > 0 && n > 0; n--) {
        const struct str t = vocab_bytes(o->vocab, ids[n - 1]);
        if (t.n == 0 || t.n > left || memcmp(t.p, o->think_head.p + left - t.n, t.n) != 0)
            return false;
        left -= t.n;
    }
    return o->think_head.n == 0 || (left == 0 && n > 0 && ids[n - 1] == o->think_mark);
}

/* A budget for thinking counts tokens between the two marks; when it is spent the second one is forced (is_forced). */
static void think_count(const struct request_options *o, struct choice *c, uint32_t n_out)
{
    if (c->ids[n_out - 1] == o->think_end) {
        c->think_rest = c->think_left != THINK_OFF ? c->think_left : c->think_rest;
        c->think_left = THINK_OFF;
    } else if (c->think_left != THINK_OFF)
        c->think_left -= c->think_left > 0;
    else if (think_begins(o, c->ids, n_out))
        c->think_left = c->think_rest;
}

/* The next token of the sequence, whoever chose it. */
static enum req_end token_take(struct sched *s, struct seq *q, const struct step_token *t)
{
    token_append(q, t);
    if (q->request->o.think_budget > 0)
        think_count(&q->request->o, q->choice, q->n_out);
    s->stats.output_tokens++;
    s->tenants[q->tenant].output_tokens++;
    tenant_charge(s, q->tenant, s->o.vtc_output_weight);
    return token_ends(q, t->id);
}

/* What comes next without asking the model. */
static bool is_forced(struct seq *q, uint32_t *id)
{
    struct choice *c = q->choice;
    if (c->n_script > 0) {
        *id = *c->script++;
        c->n_script--;
        return true;
    }
    if (c->think_left == 0) {
        *id = q->request->o.think_end;
        return true;
    }
    return c->walk != NULL && request_jumps(&q->request->o) && grammar_jump(c->walk, id);
}

/* Append what the grammar forces. A flying step has its last row at the token before that: it is right to compute it,
 * and what it chooses behind it is not wanted. */
static enum req_end commit_jump(struct sched *s, struct seq *q)
{
    const uint32_t from = q->n_out;
    enum req_end end = END_NONE;
    struct step_token t = {0}; /* certain: a log-probability of 0 */
    while (end == END_NONE && is_forced(q, &t.id))
        end = t.id != UINT32_MAX ? token_take(s, q, &t) : END_FAILED;
    const uint32_t n = q->n_out - from;
    s->stats.jumped_tokens += n;
    if (n > 0 && q->n_flying > 0) {
        q->n_dropped += q->n_flying;
        q->n_flying = 0;
    }
    if (n > 0 && s->events.on_jump != NULL)
        s->events.on_jump(s->events.ctx, q->request, q->i_choice, q->ids + from, n);
    return end;
}

/* is_last: of its tokens of this step. Behind the others stands what comes next. */
static void commit_token(struct sched *s, uint32_t slot, const struct step_token *t, bool is_last, uint64_t now)
{
    struct seq *q = &s->seqs[slot];
    struct request *r = q->request;
    if (t == NULL || t->id >= STEP_ID_OVER) {
        const bool is_over = t != NULL && t->id == STEP_ID_OVER;
        if (!is_over)
            (void)FAIL(
                &r->error, ERR_INTERNAL, "no token could be chosen: the logits are not numbers, or nothing is allowed");
        seq_end(s, slot, is_over ? END_EOS : END_FAILED, now);
        return;
    }
    q->want_prompt = false;
    if (r->t_first_token == 0)
        r->t_first_token = now;
    enum req_end end = token_take(s, q, t);
    if (end == END_NONE && is_last &&
        (q->choice->walk != NULL || q->choice->n_script > 0 || q->choice->think_left == 0))
        end = commit_jump(s, q);
    if (end == END_FAILED && s->events.on_jump != NULL)
        s->events.on_jump(s->events.ctx, r, q->i_choice, &(uint32_t){UINT32_MAX}, 1);
    atomic_store_explicit(&q->choice->t_token, now, memory_order_relaxed);
    atomic_store_explicit(&q->choice->n_out, q->n_out, memory_order_release);
    if (end != END_NONE)
        seq_end(s, slot, end, now);
    else if (s->events.on_progress != NULL)
        s->events.on_progress(s->events.ctx, r);
}

/* What the rows of one sequence have made final: positions below n, whose tokens are all known. */
static void commit_rows(struct sched *s, struct seq *q, uint32_t n)
{
    if (q->state == SEQ_WAITING) /* preempted since: what the rows stored is gone */
        return;
    q->n_final = MAX(q->n_final, n);
    const uint32_t n_full = q->n_final / s->o.block_tokens;
    if (n_full > q->n_published && s->o.prefix_cache && q->state == SEQ_RUNNING) {
        kv_seq_publish(s->kv, q->kv, q->prompt, q->n_prompt, q->ids, q->n_final);
        q->n_published = n_full;
    }
}

/* Of a sequence that may have guesses: all its tokens of the step. */
static void commit_guesses(
    struct sched *s, const struct plan_seq *ps, const struct step_token *t, uint32_t n, uint64_t now)
{
    struct seq *q = &s->seqs[ps->slot];
    struct request *r = q->request;
    const uint32_t known_end = ps->first_pos + ps->n_rows - ps->n_spec;
    spec_learn(s, q, ps->n_spec, n - 1, t[0].id);
    for (uint32_t i = 0; i < n; i++) {
        commit_rows(s, q, known_end + i);
        if (i + 1 < n) {
            s->stats.spec.accepted++;
            s->stats.spec.per_pos[i]++;
            r->spec_accepted++;
        }
        commit_token(s, ps->slot, &t[i], i + 1 == n, now);
        if (q->state == SEQ_ENDED || q->state == SEQ_FREE)
            return;
    }
    if (ps->n_spec > 0) {
        q->stored = q->computed = known_end + n - 1;
        kv_seq_truncate(s->kv, q->kv, q->stored, sched_fence(s));
    }
}

static void learn_cost(struct sched *s, const struct plan *plan, const struct step_result *result)
{
    if (plan->n_rows == 0 || plan->n_out_copies + plan->n_in_copies + plan->n_restores > 0)
        return;
    double context = 0;
    const struct plan_seq *ps = plan_seqs(plan);
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        context += (double)ps[i].n_rows * ps[i].first_pos + 0.5 * (double)ps[i].n_rows * (double)(ps[i].n_rows + 1);
    double ns = (double)result->cost_ns;
    if (s->o.itl_target_ns > 0 && plan->n_rows > plan->n_seqs)
        ns = cost_steer(&s->cost, plan->n_rows, context, ns);
    cost_observe(&s->cost, plan->n_rows, context, ns);
}

/* Since the step before, other work has taken the caches: the walks of all tokens are asked for at once, rather than
 * waited for one by one. */
static void fetch_walks(const struct sched *s, const struct step_result *result)
{
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t i = 0; i < result->n; i++) {
            const struct step_token *t = &result->tokens[i];
            assert(t->slot < s->n_slots);
            const struct seq *q = &s->seqs[t->slot];
            if (q->state != SEQ_RUNNING)
                continue;
            if (stage == 0)
                __builtin_prefetch(&q->choice->walk);
            else if (q->choice->walk != NULL)
                grammar_fetch(q->choice->walk, t->id, stage - 1);
        }
}

void sched_commit(struct sched *s, const struct plan *plan, const struct step_result *result, uint64_t now)
{
    assert(plan->step == s->committed + 1 && plan->step <= s->step);
    s->committed = plan->step;
    kv_fence_done(s->kv, plan->step);
    learn_cost(s, plan, result);
    fetch_walks(s, result);
    uint32_t next = 0;
    for (uint32_t i = 0; i < plan->n_seqs; i++) {
        const struct plan_seq *ps = &plan_seqs(plan)[i];
        struct seq *q = &s->seqs[ps->slot];
        const struct step_token *t = &result->tokens[next];
        uint32_t n = 0;
        while (ps->samples != 0 && n <= ps->n_spec && next < result->n && result->tokens[next].slot == ps->slot) {
            next++;
            n++;
        }
        assert(q->n_plans > 0);
        q->n_plans--;
        if (q->state == SEQ_ENDED) {
            s->stats.surplus_rows += ps->n_rows;
            if (q->n_plans == 0)
                slot_give(s, ps->slot);
            continue;
        }
        commit_rows(s, q, ps->first_pos + ps->n_rows - ps->n_spec);
        if (ps->samples == 0)
            continue;
        if (q->n_dropped > 0) {
            q->n_dropped--;
            continue;
        }
        q->n_flying--;
        if (q->spec_k > 0 && n > 0)
            commit_guesses(s, ps, t, n, now);
        else
            commit_token(s, ps->slot, n > 0 ? t : NULL, true, now);
    }
}
