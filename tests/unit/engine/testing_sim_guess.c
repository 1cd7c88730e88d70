/* A proposer for tests over the fake runner: it knows what will be chosen, since that is a hash of the context, and
 * says it, or something else, as its script wants. */
#include "testing_sim.h"

#include "base/mem.h"
#include "base/rng.h"

struct script_proposer {
    struct proposer base;
    enum script script;
    struct fake_runner_options fake;
    uint64_t seed, n_asks;
    struct grammar_walk *walk; /* behind what was guessed so far */
};

/* What the fake runner chooses behind the known tokens and those guessed so far. */
static uint32_t truth(const struct script_proposer *p, const struct slot_view *v, uint64_t chain, uint32_t i)
{
    uint64_t room[SIM_VOCAB / 64 + 1];
    const struct slot_view at = slot_view_later(v, i);
    const struct grammar_walk *const walk = v->choice->walk != NULL ? p->walk : NULL;
    assert(p->fake.vocab <= SIM_VOCAB);
    return fake_choose(&p->fake, &at, chain, choose_mask(&at, walk, room, p->fake.vocab));
}

static uint64_t chain_of(const struct spec_ask *a)
{
    uint64_t chain = fake_chain_start(a->request->o.adapter);
    uint32_t pos = 0;
    for (; pos < a->request->o.n_prompt; pos++)
        chain = fake_chain_add(chain, a->request->o.prompt[pos], pos);
    for (uint32_t i = 0; i < a->n_out; i++, pos++)
        chain = fake_chain_add(chain, a->choice->ids[i], pos);
    return chain;
}

static enum err script_propose(struct proposer *base, const struct spec_ask *asks, uint32_t n,
    const struct slots *slots, struct guesses *out, struct error *e)
{
    struct script_proposer *const p = (struct script_proposer *)(void *)base;
    const uint32_t vocab = p->fake.vocab;
    (void)e;
    for (uint32_t k = 0; k < n; k++) {
        const struct spec_ask *const a = &asks[k];
        struct slot_view v;
        slots->view(slots->ctx, a->slot, &v);
        uint64_t chain = chain_of(a);
        if (v.choice->walk != NULL)
            grammar_walk_copy(p->walk, v.choice->walk);
        p->n_asks++;
        out[k].trust = (enum spec_trust)(p->n_asks % SPEC_TRUSTS);
        for (uint32_t i = 0; i < a->k; i++) {
            const uint64_t dice =
                rng_u64((struct rng_key){.seed = p->seed, .index = p->n_asks, .choice = i, .purpose = RNG_DUMMY});
            uint32_t id = truth(p, &v, chain, i);
            const bool is_wrong = p->script == SCRIPT_WRONG || (p->script == SCRIPT_MIXED && dice % 4 == 0);
            if (id >= vocab) /* nothing is allowed there */
                break;
            if (is_wrong)
                id = (id + 1 + (uint32_t)(dice >> 32) % (vocab - 1)) % vocab;
            if (p->script == SCRIPT_OUTSIDE && dice % 2 == 0)
                id = dice % 4 == 0 ? vocab : UINT32_MAX;
            out[k].ids[out[k].n++] = id;
            if (v.choice->walk != NULL && (id >= vocab || grammar_accept(p->walk, id, &(struct error){0}) != OK))
                break; /* the end, or wrong: what is behind it does not matter */
            chain = fake_chain_add(chain, id, a->request->o.n_prompt + a->n_out + i);
        }
    }
    return OK;
}

static void script_close(struct proposer *p)
{
    mem_free(((struct script_proposer *)(void *)p)->walk);
    mem_free(p);
}

struct proposer *script_proposer_new(enum script script, const struct fake_runner_options *fake, uint64_t seed)
{
    static const struct proposer_ops ops = {.name = "script", .propose = script_propose, .close = script_close};
    struct script_proposer *const p = mem_zalloc(sizeof *p);
    if (p == NULL)
        return NULL;
    *p = (struct script_proposer){.base = {.ops = &ops}, .script = script, .fake = *fake, .seed = seed};
    p->walk = mem_zalloc(grammar_walk_bytes());
    if (p->walk == NULL) {
        mem_free(p);
        return NULL;
    }
    return &p->base;
}
