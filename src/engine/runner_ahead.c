/* The model's runner on an asynchronous device that chooses tokens by itself: one step ahead (depth 1).
 *
 * forward writes the step's arrays and launches it. A token that the step before is choosing is named by the output row
 * it is chosen from, and taken on the device. sample comes when the step before has been committed: it sends what is
 * asked of each row, and what comes of it is on its way back when it returns. wait waits for that alone, while the next
 * step runs.
 *
 * What the device does not choose the host does, in sample, which then waits for the step: typical-p, scores of a
 * prompt, hidden states. It says what it chose before the next step is launched.
 *
 * Of a view nothing is kept after sample has returned: a request may have ended, and its memory gone, when wait is
 * called. */
#include "engine/ask.h"
#include "engine/runner_int.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

struct flying { /* a sequence whose token nobody has read yet */
    uint32_t slot, out;
};

struct ahead {
    struct asks asks;
    struct sample_got *got; /* [out_max] */
    struct sample_top *top; /* [out_max][SAMPLE_TOP_MAX] */
    int32_t *token;         /* [rows_max] */
    struct flying *flying;  /* [out_max] of the step that was sampled last */
    uint32_t n_flying;
    bool wants_best[2]; /* by step parity: the device finds the largest of every row, and that is all */
    uint64_t start_ns[2], done_ns;
};

/* ---- forward ------------------------------------------------------------------------------------------------------
 */

/* The plan's tokens; one that flies is named by its output row. Plans keep the order of sequences, so the search goes
 * on from where the last one was found. */
static enum err name_flying(struct ahead *a, const struct plan *p, struct error *e)
{
    uint32_t at = 0;
    memcpy(a->token, plan_token(p), p->n_rows * sizeof *a->token);
    for (uint32_t row = 0; row < p->n_rows; row++) {
        if (a->token[row] != PLAN_TOKEN_FLYING)
            continue;
        const uint32_t slot = plan_seqs(p)[plan_seq_of_row(p)[row]].slot;
        uint32_t tried = 0;
        while (tried < a->n_flying && a->flying[at].slot != slot) {
            at = at + 1 == a->n_flying ? 0 : at + 1;
            tried++;
        }
        if (tried == a->n_flying)
            return FAIL(e, ERR_INTERNAL, "step %llu: slot %u waits for a token that the step before does not choose",
                (unsigned long long)p->step, slot);
        a->token[row] = -1 - (int32_t)a->flying[at].out;
    }
    return OK;
}

static enum err ahead_forward(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    struct ahead *a = m->ahead;
    const uint32_t side = (uint32_t)(p->step & 1);
    if (p->n_rows > m->l.rows_max)
        return FAIL(e, ERR_INTERNAL, "a plan of %u rows is over the runner's size", p->n_rows);
    a->start_ns[side] = clock_now(&m->clock);
    a->wants_best[side] = p->n_out > 0 && runner_all_greedy(p, slots);
    TRY(name_flying(a, p, e));
    return runner_forward(m, p, a->token, a->wants_best[side], e);
}

/* ---- sample -------------------------------------------------------------------------------------------------------
 */

/* Rows of one sequence, asked of the device; false: not one of them is. Each is asked for as if the guesses before it
 * were right: where one is not, those behind it are not looked at. */
static bool ask_rows(struct model_runner *m, struct row_job *j, uint32_t out)
{
    struct asks *a = &m->ahead->asks;
    const struct asks before = *a;
    const uint64_t *allowed = j->view.request->o.allowed;
    uint32_t mask = !j->has_mask && allowed != NULL ? masks_put(m->beside, allowed) : SAMPLE_NO_MASK;
    bool is_forced = false;
    j->first_ask = a->n;
    j->n_asks = j->has_mask ? j->n_masks : j->seq->n_spec + 1;
    for (uint32_t i = 0; i < j->n_asks; i++) {
        m->jobs[out + i].none = STEP_ID_NONE;
        if (j->has_mask) {
            mask = masks_number(m->beside, j->mask_row + i);
            is_forced = masks_row(m->beside, j->mask_row + i).is_forced;
            m->jobs[out + i].none = masks_none(m->beside, j->mask_row + i);
        }
        if (!asks_add(a, &j->view, runner_guesses(m->plan, j->seq), i, mask, is_forced, out + i, m->l.top_max)) {
            *a = before;
            j->n_asks = 0;
            return false;
        }
    }
    return true;
}

/* Which tokens the next step may name. */
static void note_flying(struct model_runner *m)
{
    struct ahead *a = m->ahead;
    a->n_flying = 0;
    for (uint32_t out = 0; out < m->n_jobs; out++)
        if (m->jobs[out].samples && m->tokens[m->jobs[out].i].slot != SLOT_UNUSED)
            a->flying[a->n_flying++] = (struct flying){m->jobs[out].seq->slot, out};
}

static enum err ask_all(struct model_runner *m, uint32_t side, struct error *e)
{
    struct ahead *a = m->ahead;
    bool any_here = false;
    runner_make_masks(m);
    for (uint32_t out = 0; out < m->n_jobs; out++) {
        struct row_job *j = &m->jobs[out];
        if (j->view.request != NULL && (!j->samples || !ask_rows(m, j, out)))
            any_here = true;
    }
    if (a->asks.n > 0)
        decoder_sample(m->d,
            &(struct decoder_asks){.ask = a->asks.ask,
                .words = a->asks.words,
                .masks = m->beside_room,
                .n = a->asks.n,
                .n_words = a->asks.n_words,
                .n_masks = masks_count(m->beside)},
            side, a->asks.wants_top);
    for (uint32_t out = 0; any_here && out < m->n_jobs; out++) {
        const struct row_job *j = &m->jobs[out];
        if (j->view.request == NULL || j->n_asks > 0)
            continue;
        TRY(runner_choose_here(m, out, e));
        if (j->samples)
            decoder_put_best(m->d, out, m->tokens[j->i].id);
    }
    return OK;
}

static enum err ahead_sample(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    const uint32_t side = (uint32_t)(p->step & 1);
    runner_make_jobs(m, p, slots);
    m->plan = p;
    note_flying(m);
    asks_clear(&m->ahead->asks);
    if (!m->ahead->wants_best[side])
        TRY(ask_all(m, side, e));
    if (m->ahead->asks.n == 0) /* the largest of each row, or at least that the step is done */
        decoder_send_best(m->d, side);
    TRY(runner_read_pools(m, p, slots, e));
    m->step = p->step;
    return OK;
}

/* ---- wait ---------------------------------------------------------------------------------------------------------
 */

/* What the device has chosen for one sequence: as many tokens as its guesses hold, and one more. */
static void take_got(struct model_runner *m, const struct row_job *j)
{
    const struct ahead *a = m->ahead;
    for (uint32_t i = 0; i < j->n_asks; i++) {
        const struct sample_got *got = &a->got[j->first_ask + i];
        struct step_token *t = &m->tokens[j->i + i];
        t->slot = j->seq->slot;
        t->id = got->id != UINT32_MAX ? got->id : j[i].none;
        t->logprob = got->logprob;
        t->n_top = got->n_top;
        for (uint32_t k = 0; k < got->n_top; k++) {
            const struct sample_top *from = &a->top[(size_t)(j->first_ask + i) * SAMPLE_TOP_MAX + k];
            t->top[k] = (struct token_logprob){.id = from->id, .logprob = from->logprob};
        }
        if (i == j->seq->n_spec || !runner_is_guessed(m->plan, j->seq, i, t->id))
            return;
    }
}

static enum err ahead_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct model_runner *m = model_runner_of(r);
    struct ahead *a = m->ahead;
    const uint32_t side = (uint32_t)(p->step & 1);
    if (m->step != p->step)
        return FAIL(e, ERR_INTERNAL, "step %llu was never launched", (unsigned long long)p->step);
    if (a->asks.n > 0)
        TRY(decoder_sampled(m->d, side, a->asks.n, a->got, a->asks.wants_top ? a->top : NULL, e));
    else
        TRY(decoder_sent_best(m->d, side, a->wants_best[side] ? m->n_jobs : 0, m->best, e));
    if (a->wants_best[side])
        runner_take_best(m);
    for (uint32_t i = 0; a->asks.n > 0 && i < m->n_jobs; i++)
        if (m->jobs[i].n_asks > 0)
            take_got(m, &m->jobs[i]);
    runner_drop_unused(m);
    const uint64_t now = clock_now(&m->clock);
    m->cost_ns = now - MAX(a->start_ns[side], a->done_ns);
    a->done_ns = now;
    runner_result(m, p, out);
    return OK;
}

/* ---- making one ---------------------------------------------------------------------------------------------------
 */

static void ahead_close(struct runner *r)
{
    model_runner_close(model_runner_of(r));
}

const struct runner_ops runner_ahead_ops = {.name = "model, one step ahead",
    .depth = 1,
    .forward = ahead_forward,
    .sample = ahead_sample,
    .wait = ahead_wait,
    .close = ahead_close};

void runner_ahead_close(struct model_runner *m)
{
    struct ahead *a = m->ahead;
    if (a == NULL)
        return;
    asks_fini(&a->asks);
    mem_free(a->got);
    mem_free(a->top);
    mem_free(a->token);
    mem_free(a->flying);
    mem_free(a);
    m->ahead = NULL;
}

enum err runner_ahead_open(struct model_runner *m, struct error *e)
{
    const struct runner_limits *l = &m->l;
    struct ahead *a = m->ahead = mem_zalloc(sizeof *a);
    if (a == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner one step ahead");
    TRY(asks_init(&a->asks, l->out_max, ENGINE_ASK_WORDS, e));
    a->got = mem_array(l->out_max, sizeof *a->got);
    a->top = mem_array((size_t)l->out_max * SAMPLE_TOP_MAX, sizeof *a->top);
    a->token = mem_array(l->rows_max, sizeof *a->token);
    a->flying = mem_array(l->out_max, sizeof *a->flying);
    if (a->got == NULL || a->top == NULL || a->token == NULL || a->flying == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner one step ahead");
    return OK;
}
