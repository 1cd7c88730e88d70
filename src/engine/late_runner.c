/* Any runner made asynchronous, for tests; see runner.h. forward and sample only write down what is to be done; it is
 * done when the next step is launched or when somebody waits, that is after the engine has planned ahead, taken mail
 * and ended requests: as late as a device can be. So whatever depends on a step having been computed shows.
 *
 * What sampling needs is copied when sample is called, since a request may end, and its memory go, before the step is
 * computed; a real device has its copy by then too. These copies are of any size, so this runner allocates: it is not
 * for serving. */
#include "base/mem.h"
#include "engine/runner.h"

#include <string.h>

struct kept { /* what a step knows of one slot */
    uint32_t slot;
    struct request *request; /* our own copy, arrays included; NULL: it had ended */
    struct slot_view view;
    struct grammar *grammar; /* a reference of our own */
    struct arena arena;
};

struct late_step {
    struct plan *plan; /* our own copy, with flying tokens filled in when it runs */
    bool is_recorded, is_sampled, is_done;
    uint32_t n_kept;
    struct kept *kept; /* [seqs_max] */
    struct step_result result;
};

struct late_runner {
    struct runner base;
    struct runner_ops ops;
    struct runner *inner;
    struct runner_limits l;
    struct late_step steps[2]; /* by step parity */
    uint32_t n_before;         /* what the last step that ran has chosen */
    uint64_t step_before;
    struct step_token *before; /* [out_max] */
};

static struct late_runner *self(struct runner *r)
{
    return (struct late_runner *)(void *)r;
}

/* ---- copies of requests -------------------------------------------------------------------------------------------
 */

static void *copy_of(struct arena *a, const void *p, size_t n, size_t bytes)
{
    void *to = arena_array(a, n, bytes);
    if (to != NULL && n > 0 && p != NULL)
        memcpy(to, p, n * bytes);
    return to;
}

/* What a runner may look at: options, the choice's parameters, history and ids. */
static enum err keep(struct kept *k, const struct slot_view *v, struct error *e)
{
    arena_init(&k->arena, SIZE_MAX);
    k->view = *v;
    k->request = NULL;
    k->grammar = NULL;
    if (v->request == NULL)
        return OK;
    struct arena *a = &k->arena;
    struct request *r = arena_take(a, sizeof *r);
    struct choice *c = arena_take(a, sizeof *c);
    if (r == NULL || c == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to copy a request");
    const struct request_options *o = &v->request->o;
    const uint32_t n_out = atomic_load_explicit(&v->choice->n_out, memory_order_relaxed);
    r->o = *o;
    r->o.prompt = copy_of(a, o->prompt, o->n_prompt, sizeof *o->prompt);
    if (o->allowed != NULL)
        r->o.allowed = copy_of(a, o->allowed, ((size_t)o->vocab_size + 63) / 64, sizeof *o->allowed);
    r->prompt_logprobs = v->request->prompt_logprobs; /* only compared with NULL */
    c->sample = v->choice->sample;
    c->sample.bias = copy_of(a, c->sample.bias, c->sample.n_bias, sizeof *c->sample.bias);
    r->o.sample = c->sample;
    c->history = v->choice->history;
    c->history.ids = copy_of(a, c->history.ids, c->history.cap, sizeof *c->history.ids);
    c->history.counts = copy_of(a, c->history.counts, c->history.cap, sizeof *c->history.counts);
    if (o->grammar != NULL) {
        c->walk = arena_take(a, grammar_walk_bytes());
        if (c->walk == NULL)
            return FAIL(e, ERR_NOMEM, "no memory to copy a request");
        grammar_walk_copy(c->walk, v->choice->walk);
        grammar_ref(o->grammar);
        k->grammar = o->grammar;
    }
    r->o.stop_ids = copy_of(a, o->stop_ids, o->n_stop_ids, sizeof *o->stop_ids);
    c->ids = copy_of(a, v->choice->ids, n_out, sizeof *c->ids);
    atomic_init(&c->n_out, n_out);
    k->view.banned = copy_of(a, v->banned, v->n_banned, sizeof *v->banned);
    k->view.request = k->request = r;
    k->view.choice = c;
    if (r->o.prompt == NULL || r->o.stop_ids == NULL || c->history.ids == NULL || c->history.counts == NULL ||
        c->ids == NULL || k->view.banned == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to copy a request");
    return OK;
}

static void forget(struct late_step *s)
{
    for (uint32_t i = 0; i < s->n_kept; i++) {
        grammar_unref(s->kept[i].grammar);
        arena_fini(&s->kept[i].arena);
    }
    s->n_kept = 0;
}

static void view_kept(const void *ctx, uint32_t slot, struct slot_view *out)
{
    const struct late_step *s = ctx;
    *out = (struct slot_view){0};
    for (uint32_t i = 0; i < s->n_kept; i++)
        if (s->kept[i].slot == slot)
            *out = s->kept[i].view;
}

/* ---- running what was written down --------------------------------------------------------------------------------
 */

static enum err fill_flying(const struct late_runner *l, struct plan *p, struct error *e)
{
    for (uint32_t row = 0; row < p->n_rows; row++) {
        if (plan_token(p)[row] != PLAN_TOKEN_FLYING)
            continue;
        const uint32_t slot = plan_seqs(p)[plan_seq_of_row(p)[row]].slot;
        uint32_t i = 0; /* a sequence with guesses is never planned ahead: the first token is the only one */
        while (i < l->n_before && l->before[i].slot != slot)
            i++;
        if (l->step_before != p->step - 1 || i == l->n_before)
            return FAIL(e, ERR_INTERNAL, "step %llu: slot %u waits for a token that the step before does not choose",
                (unsigned long long)p->step, slot);
        /* a row of nothing but NaN has no token; its sequence is about to end, and any will do */
        plan_token(p)[row] = l->before[i].id >= STEP_ID_OVER ? 0 : (int32_t)l->before[i].id;
    }
    return OK;
}

static enum err run_step(struct late_runner *l, struct late_step *s, struct error *e)
{
    if (!s->is_recorded || s->is_done)
        return OK;
    if (!s->is_sampled)
        return FAIL(e, ERR_INTERNAL, "step %llu was never sampled", (unsigned long long)s->plan->step);
    const struct slots slots = {.ctx = s, .view = view_kept};
    TRY(fill_flying(l, s->plan, e));
    TRY(l->inner->ops->forward(l->inner, s->plan, &slots, e));
    TRY(l->inner->ops->sample(l->inner, s->plan, &slots, e));
    TRY(l->inner->ops->wait(l->inner, s->plan, &s->result, e));
    s->is_done = true;
    forget(s);
    l->step_before = s->plan->step;
    l->n_before = s->result.n;
    memcpy(l->before, s->result.tokens, s->result.n * sizeof *l->before);
    return OK;
}

static enum err late_forward(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct late_runner *l = self(r);
    (void)slots;
    TRY(run_step(l, &l->steps[(p->step - 1) & 1], e));
    struct late_step *s = &l->steps[p->step & 1];
    if (s->plan == NULL || s->plan->bytes != p->bytes) {
        mem_free(s->plan);
        s->plan = mem_alloc(p->bytes);
        if (s->plan == NULL)
            return FAIL(e, ERR_NOMEM, "no memory to keep a plan");
    }
    memcpy(s->plan, p, p->bytes);
    s->is_recorded = true;
    s->is_sampled = s->is_done = false;
    return OK;
}

static enum err late_sample(struct runner *r, const struct plan *p, const struct slots *slots, struct error *e)
{
    struct late_runner *l = self(r);
    struct late_step *s = &l->steps[p->step & 1];
    assert(s->is_recorded && s->plan->step == p->step && !s->is_sampled);
    for (uint32_t i = 0; i < p->n_seqs; i++) {
        struct slot_view v;
        s->kept[i].slot = plan_seqs(p)[i].slot;
        slots->view(slots->ctx, s->kept[i].slot, &v);
        s->n_kept = i + 1;
        TRY(keep(&s->kept[i], &v, e));
    }
    s->is_sampled = true;
    return OK;
}

static enum err late_wait(struct runner *r, const struct plan *p, struct step_result *out, struct error *e)
{
    struct late_runner *l = self(r);
    struct late_step *s = &l->steps[p->step & 1];
    if (!s->is_recorded || s->plan->step != p->step)
        return FAIL(e, ERR_INTERNAL, "step %llu was never launched", (unsigned long long)p->step);
    TRY(run_step(l, s, e));
    s->is_recorded = false;
    *out = s->result;
    return OK;
}

static void late_close(struct runner *r)
{
    struct late_runner *l = self(r);
    for (size_t i = 0; i < COUNT_OF(l->steps); i++) {
        if (l->steps[i].kept != NULL)
            forget(&l->steps[i]);
        mem_free(l->steps[i].kept);
        mem_free(l->steps[i].plan);
    }
    mem_free(l->before);
    runner_close(l->inner);
    mem_free(l);
}

enum err late_runner_open(struct runner *inner, const struct runner_limits *l, struct runner **out, struct error *e)
{
    *out = NULL;
    assert(inner->ops->depth == 0);
    struct late_runner *late = mem_zalloc(sizeof *late);
    if (late == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a runner");
    late->l = *l;
    late->ops = (struct runner_ops){.name = "late",
        .depth = 1,
        .forward = late_forward,
        .sample = late_sample,
        .wait = late_wait,
        .close = late_close};
    late->base.ops = &late->ops;
    late->before = mem_array(l->out_max, sizeof *late->before);
    bool ok = late->before != NULL;
    for (size_t i = 0; i < COUNT_OF(late->steps); i++) {
        late->steps[i].kept = mem_array(l->seqs_max, sizeof *late->steps[i].kept);
        ok = ok && late->steps[i].kept != NULL;
    }
    if (!ok) {
        late_close(&late->base);
        return FAIL(e, ERR_NOMEM, "no memory for a runner of %u sequences", l->seqs_max);
    }
    late->inner = inner;
    *out = &late->base;
    return OK;
}
