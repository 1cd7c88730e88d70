/* How many guesses a sequence gets rows for, and what was learnt from them; see spec.h.
 *
 * The chance that guesses hold is kept per sequence and trust in two numbers: of the first guess, and of each next one
 * when the ones before held. Running means over some 16 guesses, which start from what all sequences have seen. They
 * are functions of the tokens committed, so a replay learns the same. */
#include "sched/sched_int.h"

#include <string.h>

#define RATE_SHARE       (1.0f / 16)  /* of a new guess in the running means of a sequence */
#define RATE_SHARE_ALL   (1.0f / 128) /* and in those that new sequences start from */
#define GAIN_MIN         1.02         /* tokens per ns against none at all: less is noise of the cost model */
#define PROBE_EVERY      128          /* tokens without guesses, after which some are tried against the cost model */
#define PROBE_GUESSES    2u
#define PROBE_CHANCE_MIN 0.3f

void spec_init(struct sched *s)
{
    for (int t = 0; t < SPEC_TRUSTS; t++)
        s->spec_rates[t] = (struct spec_rate){.first = t == SPEC_SURE ? 0.6f : 0.4f, .next = 0.7f};
}

/* ---- what is worth it ---- */

/* The step so far, and what guesses would make of it. */
struct spec_step {
    double rows, row_context, tokens, ns, target_ns; /* target_ns: of the step; 0 = none */
};

/* The best number of guesses, up to n, and the step with them. extra_ns: what each guess costs beside its row. */
static uint32_t choose(const struct sched *s, const struct seq *q, const struct spec_rate *rate, uint32_t n,
    double extra_ns, struct spec_step *step)
{
    const double target = step->target_ns;
    struct spec_step best = *step;
    double most = GAIN_MIN * step->tokens / step->ns, chance = (double)rate->first, tokens = step->tokens;
    uint32_t n_best = 0;
    for (uint32_t g = 1; g <= n; g++, chance *= (double)rate->next) {
        const double rows = step->rows + g;
        const double context = step->row_context + (double)g * q->computed + 0.5 * (double)g * (double)(g + 1);
        const double ns = cost_predict(&s->cost, rows, context) + g * extra_ns;
        tokens += chance;
        if (target > 0 && ns > target)
            break;
        if (tokens / ns > most) {
            most = tokens / ns;
            n_best = g;
            best = (struct spec_step){
                .rows = rows, .row_context = context, .tokens = tokens, .ns = ns, .target_ns = target};
        }
    }
    *step = best;
    return n_best;
}

/* Would guesses that always hold pay in this step? If not, nobody need be asked. */
static bool could_pay(const struct sched *s, struct spec_step step)
{
    const struct spec_rate sure = {.first = 1, .next = 1};
    const struct seq somebody = {.computed = (uint32_t)(step.row_context / step.rows)};
    return choose(s, &somebody, &sure, SPEC_K_MAX, 0, &step) > 0;
}

/* Guesses that could be of use to it at all. */
static uint32_t room_for(const struct sched *s, const struct seq *q)
{
    uint32_t n = MIN(q->spec_k, q->out_limit - q->n_out - 1);
    if (q->read_window > 0) { /* it pauses when its window is full, and not beyond */
        const uint32_t read = s->groups[q->group].seen_read, unread = q->n_out - MIN(read, q->n_out);
        n = MIN(n, q->read_window - MIN(q->read_window, unread + 1));
    }
    const struct request_options *o = &q->request->o;
    if (o->think_budget > 0) { /* what is forced comes behind the last token of a step, never between */
        const uint32_t left = q->choice->think_left;
        n = MIN(n, left == THINK_OFF ? o->think_budget : left - MIN(left, 1u));
    }
    return n;
}

static bool is_ready(const struct seq *q)
{
    return q->spec_k > 0 && q->state == SEQ_RUNNING && !q->is_paused && !q->want_prompt && q->n_flying == 0 &&
           q->n_out > 0 && q->n_out < q->out_limit && seq_gap(q) == 1;
}

/* ---- the door ---- */

bool sched_speculates(const struct sched *s)
{
    return s->n_speculating > 0;
}

static bool is_due(const struct seq *q)
{
    return q->n_unguessed >= PROBE_EVERY;
}

uint32_t sched_asks(const struct sched *s, enum spec_method method, double guess_ns, struct spec_ask *out, uint32_t cap)
{
    uint32_t n = 0;
    struct spec_step step = {0};
    assert(s->committed == s->step);
    if (s->n_speculating == 0)
        return 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct seq *q = &s->seqs[s->running[i]];
        const double rows = seq_gap(q) == 1 ? 1 : 0; /* prompts are not known yet: spec_share will see them */
        step.rows += rows;
        step.row_context += rows * (q->computed + 1);
    }
    step.tokens = step.rows;
    step.ns = step.rows > 0 ? cost_predict(&s->cost, step.rows, step.row_context) : 0;
    step.target_ns = step.rows > 0 ? budget_target(s, step.rows, step.row_context) : 0;
    const bool is_hopeless = !s->o.spec_always && s->cost.fit.fitted && step.ns > 0 && !could_pay(s, step);
    for (uint32_t i = 0; i < s->n_running && n < cap; i++) {
        const struct seq *q = &s->seqs[s->running[i]];
        if (!is_ready(q) || q->request->o.spec != method || (is_hopeless && !is_due(q)))
            continue;
        uint32_t k = room_for(s, q);
        if (guess_ns > 0 && s->cost.fit.fitted && step.ns > 0 && !s->o.spec_always) {
            const uint32_t worth = choose(s, q, &q->rates[SPEC_SURE], k, guess_ns, &step);
            k = worth == 0 && is_due(q) ? MIN(k, PROBE_GUESSES) : worth;
        }
        if (k > 0)
            out[n++] = (struct spec_ask){.slot = s->running[i],
                .k = k,
                .ticket = q->ticket,
                .request = q->request,
                .choice = q->choice,
                .i_choice = q->i_choice,
                .n_out = q->n_out};
    }
    return n;
}

bool sched_guess(struct sched *s, uint32_t slot, const uint32_t *ids, uint32_t n, enum spec_trust trust)
{
    if (slot >= s->n_slots || n > SPEC_K_MAX || (unsigned)trust >= SPEC_TRUSTS || !is_ready(&s->seqs[slot]))
        return false;
    struct seq *q = &s->seqs[slot];
    q->n_guess = MIN(n, room_for(s, q));
    q->guess_trust = (uint8_t)trust;
    for (uint32_t i = 0; i < q->n_guess; i++)
        q->guess[i] = ids[i];
    s->stats.spec.offered += q->n_guess;
    return true;
}

void spec_share(struct sched *s, struct budget *b)
{
    struct spec_step step = {
        .rows = b->step_rows, .row_context = b->step_row_context, .tokens = b->step_rows, .target_ns = b->target_ns};
    if (step.rows < 1)
        return;
    step.ns = cost_predict(&s->cost, step.rows, step.row_context);
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct seq *q = &s->seqs[s->running[i]];
        q->n_spec = 0;
        if (q->spec_k == 0 || q->n_guess == 0 || q->share != 1 || !is_ready(q))
            continue;
        const uint32_t room = MIN(q->n_guess, MIN(b->rows, b->outs));
        const struct spec_rate *rate = &q->rates[q->guess_trust];
        if (!s->cost.fit.fitted || !(step.ns > 0) || s->o.spec_always)
            q->n_spec = room;
        else
            q->n_spec = choose(s, q, rate, room, 0, &step);
        if (q->n_spec == 0 && is_due(q) && rate->first >= PROBE_CHANCE_MIN)
            q->n_spec = MIN(room, PROBE_GUESSES);
        b->rows -= q->n_spec;
        b->outs -= q->n_spec;
        b->step_rows += q->n_spec;
        b->step_row_context += (double)q->n_spec * q->computed;
    }
}

/* ---- learning ---- */

static void rate_learn(float *rate, float *all, bool held)
{
    const float x = held ? 1.0f : 0.0f;
    *rate += (x - *rate) * RATE_SHARE;
    *all += (x - *all) * RATE_SHARE_ALL;
}

/* A token was chosen without guesses: what would have become of them? */
static void shadow_learn(struct sched *s, struct seq *q, uint32_t id)
{
    if (q->n_shadow > 0) {
        const bool held = q->shadow[0] == id;
        rate_learn(&q->rates[q->shadow_trust].next, &s->spec_rates[q->shadow_trust].next, held);
        q->n_shadow = held ? q->n_shadow - 1 : 0;
        memmove(q->shadow, q->shadow + 1, q->n_shadow * sizeof *q->shadow);
    }
    if (q->n_guess == 0)
        return;
    rate_learn(&q->rates[q->guess_trust].first, &s->spec_rates[q->guess_trust].first, q->guess[0] == id);
    if (q->guess[0] == id && q->n_shadow == 0) {
        q->n_shadow = q->n_guess - 1;
        q->shadow_trust = q->guess_trust;
        memcpy(q->shadow, q->guess + 1, q->n_shadow * sizeof *q->shadow);
    }
}

void spec_learn(struct sched *s, struct seq *q, uint32_t n_spec, uint32_t n_held, uint32_t first_id)
{
    struct spec_rate *rate = &q->rates[q->guess_trust], *all = &s->spec_rates[q->guess_trust];
    if (n_spec == 0) {
        q->n_unguessed++;
        shadow_learn(s, q, first_id);
    } else {
        struct spec_stats *st = &s->stats.spec;
        q->n_unguessed = q->n_shadow = 0;
        q->request->spec_drafted += n_spec;
        st->drafts++;
        st->tokens += n_spec;
        rate_learn(&rate->first, &all->first, n_held > 0);
        for (uint32_t i = 1; i < n_spec && i <= n_held; i++)
            rate_learn(&rate->next, &all->next, n_held > i);
        for (uint32_t i = 0; i < n_spec; i++)
            st->tried_pos[i]++;
    }
    q->n_guess = q->n_spec = 0;
}
