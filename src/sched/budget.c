/* How many rows each running sequence gets. Sequences that lack one token (streams that decode, and prompts that were
 * found whole) come first with a row each; then streams that lack a few, because a grammar has forced some; then
 * prompts get chunks in the order of rank, from what is left of the rows and, under an inter-token target, of the
 * milliseconds.
 *
 * The target protects streams, so it holds only in steps that have some. The first chunk of a step is never below
 * CHUNK_ROWS_MIN even when the streams alone take longer than the target: otherwise a prompt would wait for as long as
 * the streams go on. */
#include "sched/sched_int.h"

#define CHUNK_ROWS_MIN     16
#define CHUNK_ROWS_UNKNOWN 64 /* under a target before any step was measured */
#define JUMP_ROWS_MAX      64 /* forced tokens that a stream may lack; with more it is a prompt like others */

/* May this sequence get a row now? Pauses and resumes it on the way. */
static bool wants_rows(struct sched *s, uint32_t slot, uint64_t now)
{
    struct seq *q = &s->seqs[slot];
    if (q->read_window > 0) {
        const bool is_behind = seq_is_behind(s, q);
        if (is_behind && !q->is_paused)
            seq_pause(s, q, now);
        else if (!is_behind && q->is_paused)
            seq_resume(s, slot);
        if (q->is_paused)
            return false;
    }
    /* the flying token is the last one */
    return q->n_out + q->n_flying < q->out_limit && seq_gap(q) > 0;
}

static void spend(struct budget *b, const struct seq *q, uint32_t rows)
{
    const bool samples = rows == seq_gap(q);
    b->rows -= rows;
    b->outs -= q->want_prompt ? rows : samples;
    b->step_rows += rows;
    b->step_row_context += (double)rows * q->computed + 0.5 * (double)rows * (double)(rows + 1);
}

double budget_target(const struct sched *s, double rows, double row_context)
{
    const double target = (double)s->o.itl_target_ns;
    if (target <= 0 || s->o.itl_factor <= 0 || !s->cost.fit.fitted)
        return target;
    return MAX(target, s->o.itl_factor * cost_predict(&s->cost, rows, row_context));
}

uint32_t budget_chunk(struct sched *s, struct budget *b, const struct seq *q)
{
    uint32_t rows = MIN(seq_gap(q), b->rows);
    if (q->want_prompt)
        rows = MIN(rows, b->outs);
    else if (b->outs == 0 && rows == seq_gap(q))
        rows--; /* its last row samples: that must wait for a step with room */
    if (s->o.chunk_max > 0)
        rows = MIN(rows, s->o.chunk_max);
    if (b->is_timed && rows > 1) {
        const uint32_t fit = s->cost.fit.fitted
                                 ? cost_rows(&s->cost, b->step_rows, b->step_row_context, q->computed, b->target_ns)
                                 : CHUNK_ROWS_UNKNOWN / (1 + b->n_chunks);
        rows = MIN(rows, MAX(fit, b->n_chunks == 0 ? CHUNK_ROWS_MIN : 0));
    }
    if (rows > 0) {
        spend(b, q, rows);
        b->n_chunks++;
    }
    return rows;
}

/* A stream whose newest tokens were forced. */
static bool has_jumped(const struct seq *q)
{
    return q->computed >= q->n_prompt && seq_gap(q) > 1 && seq_gap(q) <= JUMP_ROWS_MAX;
}

static void share_jumped(struct sched *s, struct budget *b)
{
    for (uint32_t i = 0; i < s->n_running && b->rows > 0; i++) {
        struct seq *q = &s->seqs[s->running[i]];
        if (q->share > 0 || q->is_paused || !has_jumped(q) || q->n_out + q->n_flying >= q->out_limit)
            continue;
        uint32_t rows = MIN(seq_gap(q), b->rows);
        if (b->outs == 0 && rows == seq_gap(q))
            rows--; /* its last row samples */
        if (s->o.chunk_max > 0)
            rows = MIN(rows, s->o.chunk_max);
        q->share = rows;
        spend(b, q, rows);
    }
}

void budget_share(struct sched *s, const struct plan *plan, uint64_t now, struct budget *b)
{
    b->rows = MIN(s->o.max_batched_tokens, plan->rows_max);
    b->outs = s->o.out_max;
    uint32_t n_jumped = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct seq *q = &s->seqs[s->running[i]];
        q->share = 0;
        if (!wants_rows(s, s->running[i], now))
            continue;
        if (has_jumped(q)) {
            b->n_streams++;
            n_jumped++;
        } else if (seq_gap(q) > 1) {
            b->n_prompts++;
        } else {
            b->n_streams++;
            if (!b->prompts_only && b->rows > 0 && b->outs > 0) {
                q->share = 1;
                spend(b, q, 1);
            }
        }
    }
    if (n_jumped > 0 && !b->prompts_only)
        share_jumped(s, b);
    b->target_ns = b->step_rows > 0 ? budget_target(s, b->step_rows, b->step_row_context) : 0;
    b->is_timed = b->target_ns > 0;
    for (uint32_t i = 0; i < s->n_running && b->n_prompts > 0 && !b->decodes_only && b->rows > 0; i++) {
        struct seq *q = &s->seqs[s->running[i]];
        if (q->share == 0 && !q->is_paused && seq_gap(q) > 1 && !has_jumped(q) && q->n_out + q->n_flying < q->out_limit)
            q->share = budget_chunk(s, b, q);
    }
    if (s->n_speculating > 0)
        spec_share(s, b);
}
