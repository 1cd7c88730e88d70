/* Requests; see request.h. Everything that a request will ever need lies in one allocation, laid out twice by the same
 * function: once to count, once to hand out. So the count cannot disagree with the use. */
#include "sched/request.h"

#include "base/limits.h"
#include "base/mem.h"

#include <string.h>

const char *req_end_name(enum req_end end)
{
    static const char *const names[END_COUNT] = {[END_NONE] = "none",
        [END_EOS] = "stop",
        [END_STOP] = "stop",
        [END_LENGTH] = "length",
        [END_CANCELLED] = "abort",
        [END_DEADLINE] = "deadline",
        [END_EXPIRED] = "expired",
        [END_BUSY] = "busy",
        [END_ABORTED] = "abort",
        [END_FAILED] = "error"};
    return end >= 0 && end < END_COUNT ? names[end] : "none";
}

/* A cursor over the allocation; without memory it only counts. */
struct layer {
    unsigned char *p; /* NULL: counting */
    size_t at;
    bool is_over; /* a size did not fit */
};

static void *lay(struct layer *l, size_t count, size_t bytes_each)
{
    size_t bytes, end;
    const size_t start = (l->at + 15) & ~(size_t)15;
    if (l->is_over || !size_mul(count, bytes_each, &bytes) || !size_add(start, bytes, &end) ||
        end > REQUEST_BYTES_MAX) {
        l->is_over = true;
        return NULL;
    }
    l->at = end;
    return l->p != NULL ? l->p + start : NULL;
}

static void *lay_copy(struct layer *l, const void *from, size_t count, size_t bytes_each)
{
    void *to = lay(l, count, bytes_each);
    if (to != NULL && count > 0)
        memcpy(to, from, count * bytes_each);
    return to;
}

static bool has_penalty(const struct sample_params *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

/* A table at most half full, for the ids that one choice can see. */
static uint32_t history_cap(const struct request_options *o)
{
    uint64_t distinct = (uint64_t)o->n_prompt + o->max_tokens;
    if (o->vocab_size > 0)
        distinct = MIN(distinct, o->vocab_size);
    uint32_t cap = 64;
    while (cap / 2 < distinct)
        cap *= 2;
    return cap;
}

static void lay_choice(struct layer *l, const struct request_options *o, struct choice *c, uint32_t i)
{
    struct choice made = {.sample = o->sample};
    made.sample.choice = i;
    made.ids = lay(l, o->max_tokens, sizeof *made.ids);
    if (o->want_logprobs || o->n_top > 0)
        made.logprobs = lay(l, o->max_tokens, sizeof *made.logprobs);
    if (o->n_top > 0)
        made.top = lay(l, (size_t)o->max_tokens * o->n_top, sizeof *made.top);
    if (has_penalty(&o->sample)) {
        made.history.cap = history_cap(o);
        made.history.ids = lay(l, made.history.cap, sizeof *made.history.ids);
        made.history.counts = lay(l, made.history.cap, sizeof *made.history.counts);
    }
    if (o->grammar != NULL)
        made.walk = lay(l, 1, grammar_walk_bytes());
    if (o->spec == SPEC_NGRAM) {
        struct ngram_index *x = &made.ngram;
        x->n_max = o->n_prompt + o->max_tokens;
        x->cap = ngram_cap(x->n_max);
        x->min = o->ngram_min;
        x->max = o->ngram_max;
        x->head = lay(l, x->cap, sizeof *x->head);
        x->prev = lay(l, x->n_max, sizeof *x->prev);
    }
    if (c != NULL)
        *c = made;
}

/* The request and all its arrays; NULL while counting. Arrays of *o are taken from the asker's. */
static struct request *lay_request(struct layer *l, const struct request_options *o)
{
    struct request *r = lay(l, 1, sizeof *r);
    struct request_options in = *o;
    in.prompt = lay_copy(l, o->prompt, o->n_prompt, sizeof *o->prompt);
    /* banned ids first, then the stop ids: a sampler below min_tokens takes both as one list */
    uint32_t *ids = lay(l, (size_t)o->n_banned_ids + o->n_stop_ids, sizeof *ids);
    in.sample.bias = lay_copy(l, o->sample.bias, o->sample.n_bias, sizeof *o->sample.bias);
    if (o->allowed != NULL)
        in.allowed = lay_copy(l, o->allowed, ((size_t)o->vocab_size + 63) / 64, sizeof *o->allowed);
    struct prompt_logprob *plp = NULL;
    struct token_logprob *ptop = NULL;
    if (o->want_prompt_logprobs) {
        plp = lay(l, o->n_prompt, sizeof *plp);
        if (o->n_top > 0)
            ptop = lay(l, (size_t)o->n_prompt * o->n_top, sizeof *ptop);
    }
    double *pooled = o->pool != POOL_NONE ? lay(l, o->n_hidden, sizeof *pooled) : NULL;
    struct choice *choices = lay(l, o->n_choices, sizeof *choices);
    for (uint32_t i = 0; i < o->n_choices; i++)
        lay_choice(l, l->p != NULL ? &in : o, choices != NULL ? &choices[i] : NULL, i);
    if (r == NULL)
        return NULL;
    if (o->n_banned_ids > 0)
        memcpy(ids, o->banned_ids, o->n_banned_ids * sizeof *ids);
    if (o->n_stop_ids > 0)
        memcpy(ids + o->n_banned_ids, o->stop_ids, o->n_stop_ids * sizeof *ids);
    in.banned_ids = ids;
    in.stop_ids = ids + o->n_banned_ids;
    r->o = in;
    r->prompt_logprobs = plp;
    r->prompt_top = ptop;
    r->pooled = pooled;
    r->n_choices = o->n_choices;
    r->choices = choices;
    return r;
}

static enum err check_options(const struct request_options *o, struct error *e)
{
    const struct {
        const char *name;
        uint32_t value, min, max;
    } ranges[] = {
        {"prompt tokens", o->n_prompt, 1, MODEL_CONTEXT_MAX},
        {"max_tokens", o->max_tokens, 1, MODEL_CONTEXT_MAX},
        {"n", o->n_choices, 1, REQUEST_CHOICES_MAX},
        {"stop token ids", o->n_stop_ids, 0, REQUEST_IDS_MAX},
        {"banned token ids", o->n_banned_ids, 0, REQUEST_IDS_MAX},
        {"logit biases", o->sample.n_bias, 0, MODEL_VOCAB_MAX},
        {"top log-probabilities", o->n_top, 0, REQUEST_TOP_MAX},
        {"speculative k", o->spec != SPEC_NONE ? o->spec_k : 1, 1, SPEC_K_MAX},
        {"tokens of the least n-gram", o->spec == SPEC_NGRAM ? o->ngram_min : 1, 1, NGRAM_MAX},
        {"tokens of the largest n-gram", o->spec == SPEC_NGRAM ? o->ngram_max : 1,
            o->spec == SPEC_NGRAM ? o->ngram_min : 1, NGRAM_MAX},
    };
    for (size_t i = 0; i < COUNT_OF(ranges); i++) {
        if (ranges[i].value < ranges[i].min)
            return FAIL(
                e, ERR_INVALID, "%s must be at least %u, not %u", ranges[i].name, ranges[i].min, ranges[i].value);
        if (ranges[i].value > ranges[i].max)
            return FAIL(e, ERR_LIMIT, "%s must be at most %u, not %u", ranges[i].name, ranges[i].max, ranges[i].value);
    }
    if (o->n_resume >= o->n_prompt)
        return FAIL(e, ERR_INVALID, "n_resume is %u of %u prompt tokens; at least one must be before", o->n_resume,
            o->n_prompt);
    if (o->stops != NULL && o->vocab == NULL)
        return FAIL(e, ERR_INVALID, "stop strings need a vocabulary");
    if (o->think_head.n > 0 && o->vocab == NULL)
        return FAIL(e, ERR_INVALID, "what stands before thinking is a text, which needs a vocabulary");
    if (o->think_budget > 0 && o->spec != SPEC_NONE)
        return FAIL(e, ERR_INVALID, "a budget for thinking cannot be kept with guesses");
    if (o->allowed != NULL && o->vocab_size == 0)
        return FAIL(e, ERR_INVALID, "allowed token ids need the vocabulary's size");
    return OK;
}

/* What the ids before the first chosen one leave behind: penalties see all of them, stops and grammars only resumed
 * output. */
static enum err prime_choice(const struct request *r, struct choice *c, struct error *e)
{
    const struct request_options *o = &r->o;
    const uint32_t n_given = o->n_prompt - o->n_resume;
    c->think_left = o->think_budget > 0 && o->is_thinking ? o->think_budget : THINK_OFF;
    c->think_rest = o->think_budget;
    for (uint32_t i = 0; c->history.cap > 0 && i < o->n_prompt; i++)
        sample_history_add(&c->history, o->prompt[i], i >= n_given);
    if (c->walk != NULL) {
        grammar_walk_init(c->walk, o->grammar);
        for (uint32_t i = n_given; i < o->n_prompt; i++)
            TRY(grammar_accept(c->walk, o->prompt[i], e));
    }
    if (c->ngram.cap > 0) /* here, on the asker's thread, rather than on the engine's */
        ngram_enter(&c->ngram, &(struct ngram_text){.prompt = o->prompt, .n_prompt = o->n_prompt});
    if (o->vocab == NULL)
        return OK;
    detok_init(&c->stop_state, o->vocab, o->lead, o->stops,
        (struct detok_opts){
            .show_special = o->show_special, .mark_special = o->mark_special, .min_ids = o->min_tokens});
    for (uint32_t i = n_given; i < o->n_prompt; i++)
        TRY(detok_feed(&c->stop_state, o->prompt[i], NULL, e));
    return OK;
}

enum err request_new(const struct request_options *o, struct request **out, struct error *e)
{
    TRY(check_options(o, e));
    struct layer l = {0};
    (void)lay_request(&l, o);
    if (l.is_over)
        return FAIL(e, ERR_LIMIT, "max_tokens %u times n %u with its log-probabilities needs over %llu bytes",
            o->max_tokens, o->n_choices, (unsigned long long)REQUEST_BYTES_MAX);
    l.p = mem_zalloc(l.at);
    if (l.p == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a request of %zu bytes", l.at);
    l.at = 0;
    struct request *r = lay_request(&l, o);
    atomic_init(&r->cancel, false);
    atomic_init(&r->n_read, 0);
    atomic_init(&r->noticed, false);
    enum err err = OK;
    for (uint32_t i = 0; i < r->n_choices && err == OK; i++) {
        atomic_init(&r->choices[i].n_out, 0);
        atomic_init(&r->choices[i].end, END_NONE);
        err = prime_choice(r, &r->choices[i], e);
    }
    if (err != OK) {
        mem_free(r); /* stops and grammar are still the asker's */
        return err;
    }
    *out = r;
    return OK;
}

void request_free(struct request *r)
{
    if (r == NULL)
        return;
    stop_set_free(r->o.stops);
    grammar_unref(r->o.grammar);
    mem_free(r);
}

bool request_is_done(const struct request *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++)
        if (atomic_load_explicit(&r->choices[i].end, memory_order_acquire) == END_NONE)
            return false;
    return true;
}
