/* PROPOSE: guesses for the next plan; see propose.h. */
#include "engine/propose.h"
#include "engine/engine_int.h"

#define SURE_TOKENS        4    /* of an n-gram that is hardly there by chance */
#define NS_PER_GUESS_SHARE 0.05 /* of a new measurement in the running mean */

static enum err ngram_propose(struct proposer *p, const struct spec_ask *asks, uint32_t n, const struct slots *slots,
    struct guesses *out, struct error *e)
{
    (void)p;
    (void)slots;
    (void)e;
    for (uint32_t i = 0; i < n; i++) {
        const struct spec_ask *a = &asks[i];
        const struct ngram_text text = {.prompt = a->request->o.prompt,
            .n_prompt = a->request->o.n_prompt,
            .output = a->choice->ids,
            .n_output = a->n_out};
        uint32_t matched;
        out[i].n = ngram_guess(&a->choice->ngram, &text, a->k, out[i].ids, &matched);
        out[i].trust = matched >= SURE_TOKENS ? SPEC_SURE : SPEC_UNSURE;
    }
    return OK;
}

struct proposer *ngram_proposer(void)
{
    static const struct proposer_ops ops = {.name = "ngram", .propose = ngram_propose};
    static struct proposer one = {.ops = &ops};
    return &one;
}

void proposer_close(struct proposer *p)
{
    if (p != NULL && p->ops->close != NULL)
        p->ops->close(p);
}

/* What of the guesses can come at all: tokens of the vocabulary, and what the grammar allows. */
static uint32_t usable(const struct engine *en, const struct spec_ask *a, const struct guesses *g)
{
    struct error forbidden = {0};
    uint32_t n = 0;
    if (a->choice->walk != NULL)
        grammar_walk_copy(en->walk, a->choice->walk);
    while (n < MIN(g->n, a->k) && (en->o.vocab == 0 || g->ids[n] < en->o.vocab) &&
           (a->choice->walk == NULL || grammar_accept(en->walk, g->ids[n], &forbidden) == OK))
        n++;
    return n;
}

static enum err propose_by(struct engine *en, enum spec_method method, struct proposer *p, struct error *e)
{
    const uint32_t n = sched_asks(en->sched, method, en->guess_ns[method], en->asks, en->o.sched.max_num_seqs);
    if (n == 0)
        return OK;
    uint64_t total = 0;
    const uint64_t start = clock_now(en->clock);
    for (uint32_t i = 0; i < n; i++)
        en->guesses[i].n = 0;
    TRY(p->ops->propose(p, en->asks, n, &en->slots, en->guesses, e));
    for (uint32_t i = 0; i < n; i++) {
        struct guesses *g = &en->guesses[i];
        total += g->n;
        g->n = usable(en, &en->asks[i], g);
        if (g->n > 0 && sched_guess(en->sched, en->asks[i].slot, g->ids, g->n, g->trust))
            record_guess(en->record, en->asks[i].slot, g);
    }
    const uint64_t ns = clock_now(en->clock) - start;
    en->stats.propose_ns += ns;
    if (method == SPEC_DRAFT && total > 0) {
        const double each = (double)ns / (double)total;
        double *mean = &en->guess_ns[method];
        *mean = *mean == 0 ? each : *mean + (each - *mean) * NS_PER_GUESS_SHARE;
    }
    return OK;
}

enum err propose(struct engine *en, struct error *e)
{
    if (!sched_speculates(en->sched))
        return OK;
    TRY(propose_by(en, SPEC_NGRAM, ngram_proposer(), e));
    return en->o.draft != NULL ? propose_by(en, SPEC_DRAFT, en->o.draft, e) : OK;
}
