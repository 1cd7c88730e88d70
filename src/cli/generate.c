/* One answer; see generate.h. */
#include "cli/generate.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define PIECE_BYTES_MAX (STOP_BYTES_MAX + TOK_NAME_BYTES_MAX + 64) /* a token and what was held back before it */

const char *finish_name(enum finish f)
{
    static const char *const names[] = {[FINISH_EOS] = "stop",
        [FINISH_STOP] = "stop",
        [FINISH_LENGTH] = "length",
        [FINISH_CONTEXT] = "length",
        [FINISH_ASKED] = "cancelled"};
    return names[f];
}

enum err generate_init(struct generate *g, struct load *l, struct error *e)
{
    *g = (struct generate){.load = l};
    buf_init(&g->piece, 4 * PIECE_BYTES_MAX); /* invalid bytes read as U+FFFD, three bytes each */
    TRY(sampler_new(decoder_vocab(l->decoder), &g->sampler, e));
    return sample_history_init(&g->history, MIN(l->fit.context, l->config.vocab), e);
}

enum err generate_obey(struct generate *g, const struct options *o, struct error *e)
{
    const char *path = o->json_schema != NULL ? o->json_schema : o->grammar;
    char *text = NULL;
    size_t n;
    if (path == NULL)
        return OK;
    if (o->json_schema != NULL && o->grammar != NULL)
        return FAIL(e, ERR_INVALID, "options --json-schema and --grammar exclude each other");
    if (g->load->tok == NULL)
        return FAIL(e, ERR_UNSUPPORTED, "the model has no tokenizer, and grammars are about text");
    TRY(file_read_all(path, GRAMMAR_TEXT_BYTES_MAX, &text, &n, e));
    const struct grammar_source src = {
        .kind = o->json_schema != NULL ? GRAMMAR_JSON_SCHEMA : GRAMMAR_EBNF, .text = {text, n}};
    struct vocab_view vocab = *tok_vocab(g->load->tok); /* only what the model can choose */
    vocab.n = MIN(vocab.n, decoder_vocab(g->load->decoder));
    enum err err = grammar_vocab_new(&vocab, &g->vocab, e);
    if (err == OK)
        err = tok_cutter_new(g->load->tok, &g->cutter, e);
    if (err == OK)
        grammar_vocab_cutter(g->vocab, tok_cutter_cut, g->cutter);
    if (err == OK && grammar_compile(&src, g->vocab, &g->grammar, e) != OK)
        err = error_prefix(e, "%s", path);
    mem_free(text);
    TRY(err);
    g->walk = mem_zalloc(grammar_walk_bytes());
    g->mask = mem_array(((size_t)decoder_vocab(g->load->decoder) + 63) / 64, sizeof *g->mask);
    return g->walk != NULL && g->mask != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a grammar");
}

void generate_fini(struct generate *g)
{
    mem_free(g->mask);
    mem_free(g->walk);
    grammar_unref(g->grammar);
    grammar_vocab_free(g->vocab);
    tok_cutter_free(g->cutter);
    sampler_free(g->sampler);
    sample_history_fini(&g->history);
    buf_fini(&g->piece);
}

static double either(double option, double model, double fallback)
{
    return !isnan(option) ? option : !isnan(model) ? model : fallback;
}

static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    struct clock clock;
    clock_init(&clock);
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = (uint64_t)clock_wall(&clock);
    return seed >> 11; /* below 2^53: as exact in any JSON reader as it was here */
}

struct generate_params generate_defaults(const struct options *o, const struct model_config *c)
{
    const struct model_generation *m = &c->generation;
    struct generate_params p = {.sample = sample_params_default(), .max_tokens = o->max_tokens};
    const bool greedy_model = m->do_sample == 0 && isnan(m->temperature); /* the model says: do not sample */
    p.sample.temperature = (float)either(o->temperature, greedy_model ? 0.0 : m->temperature, 0.7);
    p.sample.top_p = (float)either(o->top_p, m->top_p, 0.9);
    p.sample.min_p = (float)either(o->min_p, m->min_p, 0.0);
    p.sample.repetition_penalty = (float)either(o->repetition_penalty, m->repetition_penalty, 1.0);
    p.sample.typical_p = (float)o->typical_p;
    p.sample.presence_penalty = (float)o->presence_penalty;
    p.sample.frequency_penalty = (float)o->frequency_penalty;
    p.sample.top_k = o->top_k != OPTION_UNSET ? (uint32_t)o->top_k : m->top_k > 0 ? (uint32_t)m->top_k : 0;
    p.sample.seed = o->seed != OPTION_UNSET ? o->seed : random_seed();
    p.ignore_eos = o->ignore_eos;
    p.want_logprobs = o->logprobs != OPTION_UNSET;
    p.n_top = p.want_logprobs ? (uint32_t)o->logprobs : 0;
    return p;
}

static bool is_cancelled(void *ctx)
{
    const atomic_bool *cancel = ctx;
    return cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed);
}

static bool ends_answer(const struct load *l, uint32_t id)
{
    for (uint32_t i = 0; i < l->n_stop_ids; i++)
        if (l->stop_ids[i] == id)
            return true;
    return false;
}

/* The state of one answer. */
struct answer {
    struct generate *g;
    const struct generate_params *p;
    const struct generate_sink *sink;
    struct generate_result *r;
    struct detok detok;
    const float *logits;
    bool done;
};

static void finish(struct answer *a, enum finish why)
{
    a->r->finish = why;
    a->done = true;
}

static void give_piece(struct answer *a)
{
    if (a->g->piece.n > 0 && !a->sink->text(a->sink->ctx, buf_str(&a->g->piece)) && !a->done)
        finish(a, FINISH_ASKED);
    buf_clear(&a->g->piece);
}

/* The text of one id to the sink. Without a tokenizer an id is shown as its number. */
static enum err give_id(struct answer *a, uint32_t id, struct error *e)
{
    if (a->g->load->tok == NULL)
        buf_addf(&a->g->piece, "%u ", id);
    else
        TRY(detok_feed(&a->detok, id, &a->g->piece, e));
    if (a->detok.stopped) {
        a->r->stop_index = a->detok.stop_index;
        finish(a, FINISH_STOP);
    }
    give_piece(a);
    return OK;
}

/* What may be chosen, or must be; NULL: anything. */
static const uint64_t *make_mask(const struct answer *a)
{
    const struct generate *g = a->g;
    const uint32_t vocab = decoder_vocab(g->load->decoder);
    uint32_t id;
    if (g->grammar == NULL)
        return NULL;
    if (grammar_jump(g->walk, &id) && id < vocab) {
        memset(g->mask, 0, ((size_t)vocab + 63) / 64 * sizeof *g->mask);
        g->mask[id / 64] = (uint64_t)1 << id % 64;
    } else
        (void)grammar_mask(g->walk, g->load->stop_ids, g->load->n_stop_ids, g->mask);
    return g->mask;
}

/* Choose one token and go on behind it. */
static enum err one_token(struct answer *a, struct error *e)
{
    const struct generate_params *p = a->p;
    const struct load *l = a->g->load;
    struct token_logprob top[LOGPROBS_MAX];
    struct sample_result s = {.top = top};
    const struct sample_row row = {.logits = a->logits,
        .params = &p->sample,
        .history = &a->g->history,
        .mask = make_mask(a),
        .banned = p->ignore_eos ? l->stop_ids : NULL,
        .n_banned = p->ignore_eos ? l->n_stop_ids : 0,
        .output_index = a->r->n_output,
        .n_top = p->n_top,
        .want_logprob = p->want_logprobs};
    struct error nothing = {0};
    const enum err err = sample_token(a->g->sampler, &row, &s, &nothing);
    const bool is_over = err != OK && a->g->grammar != NULL && grammar_is_complete(a->g->walk);
    if (err != OK && !is_over)
        return FAIL(e, err, "%s", nothing.text);
    if (is_over || ends_answer(l, s.id)) {
        finish(a, FINISH_EOS);
        return OK;
    }
    if (a->g->grammar != NULL)
        TRY(grammar_accept(a->g->walk, s.id, e));
    a->r->n_output++;
    sample_history_add(&a->g->history, s.id, true);
    if (a->sink->token != NULL)
        TRY(a->sink->token(a->sink->ctx, &s, e));
    TRY(give_id(a, s.id, e));
    if (!a->done && p->max_tokens != 0 && a->r->n_output >= p->max_tokens)
        finish(a, FINISH_LENGTH);
    if (!a->done && is_cancelled((void *)(uintptr_t)p->cancel))
        finish(a, FINISH_ASKED);
    if (!a->done && sequence_length(l->seq) >= l->fit.context)
        finish(a, FINISH_CONTEXT);
    return a->done ? OK : sequence_push(l->seq, s.id, &a->logits, e);
}

static enum err check_prompt(const struct load *l, struct tok_ids ids, struct error *e)
{
    if (ids.n == 0)
        return FAIL(e, ERR_INVALID, "the prompt is empty");
    if (ids.n >= l->fit.context)
        return FAIL(e, ERR_LIMIT, "the prompt has %zu tokens and the context %u, which leaves no room for an answer",
            ids.n, l->fit.context);
    return OK;
}

enum err generate_answer(struct generate *g, const struct generate_params *p, struct tok_ids ids,
    const struct generate_sink *sink, struct generate_result *r, struct error *e)
{
    struct load *l = g->load;
    struct clock clock;
    clock_init(&clock);
    *r = (struct generate_result){.n_prompt = (uint32_t)ids.n};
    TRY(check_prompt(l, ids, e));
    TRY(sample_params_check(&p->sample, decoder_vocab(l->decoder), e));
    struct answer a = {.g = g, .p = p, .sink = sink, .r = r};
    if (l->tok != NULL)
        detok_init(
            &a.detok, tok_vocab(l->tok), tok_lead_rule(l->tok), p->stops, (struct detok_opts){.continues = true});
    if (g->grammar != NULL)
        grammar_walk_init(g->walk, g->grammar);
    sample_history_clear(&g->history);
    for (size_t i = 0; i < ids.n; i++)
        sample_history_add(&g->history, ids.p[i], false);
    const uint64_t start_ns = clock_now(&clock);
    struct error local = {0};
    enum err err =
        sequence_set(l->seq, ids.p, (uint32_t)ids.n, is_cancelled, (void *)(uintptr_t)p->cancel, &a.logits, &local);
    r->n_reused = sequence_reused(l->seq);
    if (err == ERR_CANCELLED) {
        finish(&a, FINISH_ASKED);
        err = OK;
    }
    if (err != OK && e != NULL)
        *e = local;
    const uint64_t first_ns = clock_now(&clock);
    r->prompt_ns = first_ns - start_ns;
    while (err == OK && !a.done)
        err = one_token(&a, e);
    if (err == OK && l->tok != NULL) {
        err = detok_end(&a.detok, &g->piece, e);
        give_piece(&a);
    }
    r->output_ns = clock_now(&clock) - first_ns;
    buf_clear(&g->piece);
    return err;
}
