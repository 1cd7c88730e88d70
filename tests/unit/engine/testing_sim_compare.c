/* A finished request against what it would have got alone: the fake runner's next token is a pure function of the
 * context and the request's own parameters, so "alone" is computed here, in a loop without a scheduler. */
#include "testing_sim.h"

#include "base/mem.h"

#include <pthread.h>

#define VOCAB_MAX 1024

static char vocab_text[2 * VOCAB_MAX + 1];
static uint32_t vocab_offsets[VOCAB_MAX + 1];
static uint8_t vocab_flags[VOCAB_MAX];
static struct vocab_view vocab_all = {.bytes = vocab_text, .offsets = vocab_offsets, .flags = vocab_flags};
static pthread_once_t vocab_once = PTHREAD_ONCE_INIT;

static void vocab_make(void)
{
    for (uint32_t i = 0; i < VOCAB_MAX; i++) {
        vocab_text[2 * i] = (char)('a' + i % 26);
        vocab_text[2 * i + 1] = (char)('a' + i / 26 % 26);
        vocab_offsets[i + 1] = 2 * (i + 1);
    }
    vocab_all.n = VOCAB_MAX;
}

const struct vocab_view *sim_vocab(uint32_t n)
{
    assert(n <= VOCAB_MAX);
    pthread_once(&vocab_once, vocab_make);
    return &vocab_all;
}

static struct grammar *grammars[SIM_GRAMMARS];
static pthread_once_t grammars_once = PTHREAD_ONCE_INIT;

/* Token i of the fake runner's 200 is the letter i % 26 and then the letter i / 26. */
static void grammars_make(void)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } sources[SIM_GRAMMARS] = {
        {GRAMMAR_REGEX, "aabacaea([a-z]a){1,12}gahaiajakama([a-z]b)*"},
        {GRAMMAR_CHOICE, "[\"aabaca\",\"aabagahaiaja\",\"zaya\"]"},
        {GRAMMAR_REGEX, "([a-m]c|nadbebfbgb)*"},
        {GRAMMAR_EBNF, "root ::= \"aa\" (root | [b-z] \"c\"){0,3} \"bbcbdb\""},
    };
    struct grammar_vocab *v;
    struct vocab_view some = *sim_vocab(SIM_VOCAB);
    struct error e = {0};
    some.n = SIM_VOCAB;
    if (grammar_vocab_new(&some, &v, &e) != OK)
        return;
    for (uint32_t i = 0; i < SIM_GRAMMARS; i++) {
        const struct grammar_source src = {.kind = sources[i].kind, .text = str_of(sources[i].text)};
        if (grammar_compile(&src, v, &grammars[i], &e) != OK)
            grammars[i] = NULL;
    }
}

struct grammar *sim_grammar(uint32_t i)
{
    pthread_once(&grammars_once, grammars_make);
    return grammars[i % SIM_GRAMMARS];
}

static bool has_id(const uint32_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Why it ends with this token, alone. */
static enum req_end end_alone(const struct request *r, struct detok *d, uint32_t i, uint32_t id, uint32_t context_max)
{
    struct error e = {0};
    if (i >= r->o.min_tokens && has_id(r->o.stop_ids, r->o.n_stop_ids, id))
        return END_EOS;
    if (r->o.stops != NULL && detok_feed(d, id, NULL, &e) == OK && d->stopped)
        return END_STOP;
    if (i + 1 == r->o.max_tokens || r->o.n_prompt + i + 1 >= context_max)
        return END_LENGTH;
    return END_NONE;
}

static enum err compare_walk(const struct request *r, uint32_t i_choice, const struct fake_runner_options *fake,
    uint32_t context_max, uint64_t *room, struct grammar_walk **walk, uint64_t *n_compared, enum req_end *alone,
    struct error *e)
{
    const struct request_options *const o = &r->o;
    struct choice *const c = &r->choices[i_choice];
    const uint32_t n_out = atomic_load(&c->n_out);
    struct detok d;
    if (o->stops != NULL)
        detok_init(&d, o->vocab, o->lead, o->stops,
            (struct detok_opts){.show_special = o->show_special, .min_ids = o->min_tokens});
    uint64_t chain = fake_chain_start(o->adapter);
    for (uint32_t i = 0; i < o->n_prompt; i++)
        chain = fake_chain_add(chain, o->prompt[i], i);
    *alone = END_NONE;
    if (o->grammar != NULL) {
        *walk = mem_zalloc(grammar_walk_bytes());
        if (*walk == NULL)
            return FAIL(e, ERR_NOMEM, "no memory to compare");
        grammar_walk_init(*walk, o->grammar);
    }
    for (uint32_t i = 0; i <= n_out; i++) {
        if (i == n_out && (*alone != END_NONE || *walk == NULL || atomic_load(&c->end) != END_EOS))
            break;
        if (*alone != END_NONE)
            return FAIL(e, ERR_INTERNAL, "choice %u has %u tokens; alone it ends after %u (%s)", i_choice, n_out, i,
                req_end_name(*alone));
        const bool is_early = i < o->min_tokens;
        const struct slot_view v = {.request = (struct request *)(uintptr_t)r,
            .choice = c,
            .i_choice = i_choice,
            .output_index = i + o->n_resume,
            .banned = o->banned_ids,
            .n_banned = o->n_banned_ids + (is_early ? o->n_stop_ids : 0)};
        const struct row_mask mask = choose_mask(&v, *walk, room, fake->vocab);
        const uint32_t want = fake_choose(fake, &v, chain, mask);
        if (i == n_out) { /* it may be over, with nothing to say so */
            if (want == STEP_ID_NONE && choose_none(&v, *walk, mask, fake->vocab) == STEP_ID_OVER)
                *alone = END_EOS;
            break;
        }
        if (c->ids[i] != want)
            return FAIL(
                e, ERR_INTERNAL, "choice %u has token %u at %u; alone it gets %u", i_choice, c->ids[i], i, want);
        chain = fake_chain_add(chain, want, o->n_prompt + i);
        *alone = end_alone(r, &d, i, want, context_max);
        if (*walk != NULL && *alone != END_EOS)
            TRY(grammar_accept(*walk, want, e));
        ++*n_compared;
    }
    return OK;
}

static enum err compare_choice(const struct request *r, uint32_t i_choice, const struct fake_runner_options *fake,
    uint32_t context_max, uint64_t *n_compared, enum req_end *alone, struct error *e)
{
    uint64_t room[VOCAB_MAX / 64];
    struct grammar_walk *walk = NULL;
    const enum err err = compare_walk(r, i_choice, fake, context_max, room, &walk, n_compared, alone, e);
    mem_free(walk);
    return err;
}

static bool can_be(enum req_end end, const struct request *r, const struct sim_facts *f)
{
    switch (end) {
    case END_CANCELLED: return f->cancelled;
    case END_DEADLINE: return r->o.deadline_ns != 0 && r->t_end >= r->t_arrival + r->o.deadline_ns;
    case END_EXPIRED: return f->stalls && r->o.read_window != 0;
    case END_BUSY: return r->t_admitted == 0;
    case END_ABORTED: return f->aborted;
    case END_FAILED: return f->broken;
    default: return false;
    }
}

enum err sim_compare(const struct request *r, const struct fake_runner_options *fake, const struct sim_facts *f,
    uint64_t *n_compared, struct error *e)
{
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const enum req_end end = (enum req_end)atomic_load(&r->choices[i].end);
        enum req_end alone;
        TRY(compare_choice(r, i, fake, f->context_max, n_compared, &alone, e));
        if (end == END_NONE)
            return FAIL(e, ERR_INTERNAL, "choice %u came back without an end", i);
        if (end == END_EOS || end == END_STOP || end == END_LENGTH) {
            if (end != alone)
                return FAIL(e, ERR_INTERNAL, "choice %u ended by %d (%s); alone by %d", i, (int)end, req_end_name(end),
                    (int)alone);
        } else if (alone != END_NONE || !can_be(end, r, f))
            return FAIL(e, ERR_INTERNAL, "choice %u ended by %d (%s) after %u tokens, which cannot be: %s", i, (int)end,
                req_end_name(end), atomic_load(&r->choices[i].n_out), r->error.text);
    }
    if (r->t_end < r->t_arrival || (r->t_admitted != 0 && r->t_admitted < r->t_arrival) ||
        (r->t_first_token != 0 && (r->t_first_token < r->t_admitted || r->t_end < r->t_first_token)))
        return FAIL(e, ERR_INTERNAL, "a request's times are out of order");
    return OK;
}
