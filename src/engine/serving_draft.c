/* The draft of a server: a second model, opened beside the first; see serving.h. Whatever can be refused is refused
 * before weights are bound, and first of all a tokenizer that differs: its guesses would be about other words. */
#include "base/limits.h"
#include "base/mem.h"
#include "engine/serving.h"

#include <string.h>

struct serving_draft {
    struct model_source *source;
    struct model_config config;
    struct dummy *dummy;
    struct tok *tok;
    enum dtype kv_dtype;
    uint64_t block_bytes, weight_bytes, fixed_bytes; /* fixed: all but its cache */
};

/* Every id is the same text in both. A matrix may have rows behind the last token; those are never chosen. */
static enum err check_vocab(const struct vocab_view *a, const struct vocab_view *b, struct error *e)
{
    if (a->n != b->n)
        return FAIL(
            e, ERR_INVALID, "the draft's tokenizer is another one: it has %u tokens, the model's has %u", b->n, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        const struct str x = vocab_bytes(a, i), y = vocab_bytes(b, i);
        if (a->flags[i] != b->flags[i] || x.n != y.n || memcmp(x.p, y.p, x.n) != 0) {
            char said[2][32];
            str_show(x, said[0], sizeof said[0]);
            str_show(y, said[1], sizeof said[1]);
            return FAIL(e, ERR_INVALID,
                "the draft's tokenizer is another one: token %u is '%s' there and '%s' in the model", i, said[1],
                said[0]);
        }
    }
    return OK;
}

static enum err open_files(struct serving *s, const struct serving_options *o, struct error *e)
{
    struct serving_draft *d = s->draft;
    if (o->dummy && dummy_config(o->draft_path, &d->config, NULL) == OK) {
        if (d->config.vocab < s->config.vocab)
            return FAIL(e, ERR_INVALID, "the draft has %u tokens, the model has %u", d->config.vocab, s->config.vocab);
        return OK;
    }
    TRY(model_source_open(o->draft_path, &d->source, e));
    TRY(model_config_read(d->source, &d->config, e));
    if (s->tok == NULL)
        return OK;
    TRY(model_tokenizer_open(d->source, o->copies_dir, &d->tok, e));
    return check_vocab(tok_vocab(s->tok), tok_vocab(d->tok), e);
}

enum err serving_draft_describe(struct serving *s, const struct serving_options *o, struct error *e)
{
    if (o->draft_path == NULL)
        return OK;
    s->draft = mem_zalloc(sizeof *s->draft);
    if (s->draft == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for a draft");
    const enum err err = open_files(s, o, e);
    if (err != OK) {
        error_prefix(e, "draft %s", o->draft_path);
        return err;
    }
    struct fit fit = {0};
    const struct fit_wants wants = {.kv_dtype = o->kv_dtype,
        .dummy_dtype = o->dummy_dtype,
        .ops = s->ops,
        .rows = s->sched.max_batched_tokens,
        .out_rows = s->sched.max_num_seqs};
    TRY(fit_measure(&fit, &s->draft->config, s->draft->source, &wants, e));
    s->draft->weight_bytes = fit.weight_bytes;
    s->draft->fixed_bytes = fit_fixed_bytes(&fit);
    s->draft->kv_dtype = fit.kv_dtype;
    return decoder_kv_block_bytes(&s->draft->config, fit.kv_dtype, s->sched.block_tokens, &s->draft->block_bytes, e);
}

uint64_t serving_draft_fixed_bytes(const struct serving *s)
{
    return s->draft != NULL ? s->draft->fixed_bytes : 0;
}

uint64_t serving_draft_block_bytes(const struct serving *s)
{
    return s->draft != NULL ? s->draft->block_bytes : 0;
}

enum err serving_draft_open(struct serving *s, const struct serving_options *o, const struct runner_limits *l,
    struct proposer **out, struct error *e)
{
    struct serving_draft *d = s->draft;
    *out = NULL;
    if (d == NULL)
        return OK;
    struct weight_source src;
    if (d->source == NULL) {
        TRY(dummy_new(o->dummy_dtype, o->dummy_seed + 1, &d->dummy, e));
        src = dummy_source(d->dummy);
    } else
        src = decoder_file_source(d->source);
    const uint32_t context = MIN(s->fit.context, (uint32_t)MIN(d->config.context_length, (uint64_t)UINT32_MAX));
    const struct decoder_options options = {.ops = s->ops,
        .threads = s->threads,
        .rows_max = l->rows_max,
        .out_max = l->seqs_max,
        .seqs_max = l->seqs_max,
        .table_max = l->table_max,
        .context_max = context,
        .kv_dtype = o->kv_dtype == FIT_KV_AUTO && !s->ops->likes_bf16 ? DTYPE_F16 : d->kv_dtype, /* it may be another */
        .block_tokens = s->block_tokens,
        .n_blocks = s->n_blocks,
        .weight_bytes = d->weight_bytes,
        .choices_dir = o->deterministic ? NULL : o->choices_dir};
    struct draft_options draft = {.vocab = s->config.vocab,
        .seqs_max = l->seqs_max,
        .rows_max = l->rows_max,
        .context_max = context,
        .block_tokens = s->block_tokens,
        .n_blocks = s->n_blocks,
        .table_max = l->table_max,
        .slots_max = sched_slots(&s->sched)};
    enum err err = decoder_open(&src, &d->config, &options, &draft.decoder, e);
    if (err == OK) {
        err = draft_proposer_open(&draft, out, e);
        if (err != OK)
            decoder_close(draft.decoder);
    }
    if (err != OK)
        error_prefix(e, "draft %s", o->draft_path);
    return err;
}

void serving_draft_close(struct serving *s)
{
    if (s->draft == NULL)
        return;
    dummy_free(s->draft->dummy);
    tok_free(s->draft->tok);
    model_source_close(s->draft->source);
    mem_free(s->draft);
    s->draft = NULL;
}
