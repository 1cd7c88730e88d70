/* The step: rows in, logits out. One op per line, in the order of the transformer; shapes at the end of the line. No op
 * is chosen by architecture: what an architecture lacks is a NULL, what it has is in the layer. */
#include "model/decoder_int.h"

#include <math.h>
#include <string.h>

static void attention_half(struct decoder *d, const struct layer *l)
{
    const struct model_config *c = &d->cfg;
    const struct batch *b = &d->batch;
    const float eps = (float)c->norm_eps;
    d->ops->norm(d->dev, &(struct norm_args){.x = d->x,
                             .n_rows = b->n_rows,
                             .n = c->hidden,
                             .gain = l->attn_norm,
                             .eps = eps,
                             .forms = d->attn_forms,
                             .out = d->normed}); /* [T][H] */
    d->ops->qkv(d->dev, b, &d->kv,
        &(struct qkv_args){.in = d->normed,
            .wq = &l->q,
            .wk = &l->k,
            .wv = &l->v,
            .q_gain = l->q_norm,
            .k_gain = l->k_norm,
            .norm_eps = eps,
            .rope = d->rope_style,
            .rope_dims = c->rope.dims,
            .rope_table = l->rope,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .layer = &l->kv,
            .scratch = d->scratch,
            .q = d->q}); /* [T][Q][D], KV written */
    d->ops->attend(d->dev, b, &d->kv,
        &(struct attend_args){.q = d->q,
            .n_heads = c->n_heads,
            .n_kv_heads = c->n_kv_heads,
            .head_dim = c->head_dim,
            .scale = (float)c->query_scale,
            .cap = (float)c->attn_softcap,
            .window = l->window,
            .layer = &l->kv,
            .forms = d->o_forms,
            .out = d->attended}); /* [T][Q*D] */
    d->ops->project(d->dev, b,
        &(struct project_args){.in = d->attended,
            .w = &l->o,
            .post_gain = l->post_attn_norm,
            .post_eps = eps,
            .scratch = d->scratch,
            .x = d->x}); /* [T][H] */
}

static void dense_half(struct decoder *d, const struct layer *l)
{
    const struct batch *b = &d->batch;
    d->ops->gate_up(d->dev, b,
        &(struct gate_up_args){.in = d->normed,
            .gate = &l->gate,
            .up = &l->up,
            .glu = d->arch->glu,
            .scratch = d->scratch,
            .forms = d->down_forms,
            .out = d->hidden}); /* [T][F] */
    d->ops->project(d->dev, b,
        &(struct project_args){.in = d->hidden,
            .w = &l->down,
            .post_gain = l->post_ffn_norm,
            .post_eps = (float)d->cfg.norm_eps,
            .scratch = d->scratch,
            .x = d->x}); /* [T][H] */
}

static void mixture_half(struct decoder *d, const struct layer *l)
{
    const struct model_config *c = &d->cfg;
    const struct batch *b = &d->batch;
    d->ops->route(d->dev, b,
        &(struct route_args){.in = d->normed,
            .router = &l->router,
            .top_k = c->n_experts_used,
            .renorm = c->norm_topk,
            .expert = d->route_expert,
            .weight = d->route_weight}); /* [T][k] */
    d->ops->experts(d->dev, b,
        &(struct experts_args){.in = d->normed,
            .gate = &l->expert_gate,
            .up = &l->expert_up,
            .down = &l->expert_down,
            .glu = d->arch->glu,
            .top_k = c->n_experts_used,
            .expert = d->route_expert,
            .weight = d->route_weight,
            .hidden = d->hidden,
            .scratch = d->scratch,
            .x = d->x}); /* [T][H] */
}

/* Layers lo .. hi-1 over the residual stream d->x. */
static void run_layers(struct decoder *d, uint32_t lo, uint32_t hi)
{
    const struct model_config *c = &d->cfg;
    for (uint32_t i = lo; i < hi; i++) {
        const struct layer *l = &d->layers[i];
        attention_half(d, l);
        d->ops->norm(d->dev, &(struct norm_args){.x = d->x,
                                 .n_rows = d->batch.n_rows,
                                 .n = c->hidden,
                                 .gain = l->ffn_norm,
                                 .eps = (float)c->norm_eps,
                                 .forms = d->ffn_forms,
                                 .out = d->normed}); /* [T][H] */
        if (c->n_experts > 0)
            mixture_half(d, l);
        else
            dense_half(d, l);
    }
}

static void run_head(struct decoder *d, bool want_best)
{
    const struct model_config *c = &d->cfg;
    const struct batch *b = &d->batch;
    d->ops->norm(d->dev, &(struct norm_args){.x = d->x,
                             .rows = b->out_row,
                             .n_rows = b->n_out,
                             .n = c->hidden,
                             .gain = d->final_norm,
                             .eps = (float)c->norm_eps,
                             .forms = d->head.wants,
                             .out = d->top}); /* [n_out][H] */
    d->ops->logits(d->dev, &(struct logits_args){.in = d->top,
                               .n_rows = b->n_out,
                               .head = &d->head,
                               .scale = 1.0f,
                               .cap = (float)c->final_softcap,
                               .out = d->logits}); /* [n_out][V] */
    if (want_best)
        d->ops->argmax(d->dev,
            &(struct argmax_args){.x = d->logits, .n_rows = b->n_out, .n = c->vocab, .out = d->best}); /* [n_out] */
}

/* A token that the step before has chosen, and nobody has read. */
static bool is_chosen(const struct decoder *d, int32_t token)
{
    return decoder_is_ahead(d) && (uint32_t)(-1 - token) < d->n_out;
}

/* A step comes from our own scheduler, so a breach is a bug; still, token ids index memory and are checked here. */
static enum err check_step(const struct decoder *d, const struct step *s, struct error *e)
{
    if (s->n_rows == 0 || s->n_rows > d->o.rows_max || s->n_seqs > d->o.seqs_max || s->n_out > d->o.out_max ||
        s->n_table > d->table_max)
        return FAIL(e, ERR_INTERNAL,
            "a step of %u rows, %u sequences, %u outputs, %u blocks is over the decoder's size", s->n_rows, s->n_seqs,
            s->n_out, s->n_table);
    for (uint32_t i = 0; i < s->n_rows; i++)
        if ((s->token[i] < 0 && !is_chosen(d, s->token[i])) || s->token[i] >= (int64_t)d->cfg.vocab ||
            s->pos[i] >= d->o.context_max)
            return FAIL(e, ERR_INTERNAL, "row %u has token %d at position %u", i, s->token[i], s->pos[i]);
    return OK;
}

/* Everything between the batch arrays and the logits. */
static void run_step(struct decoder *d, bool want_best)
{
    const float scale = d->arch->embed_times_sqrt_hidden ? sqrtf((float)d->cfg.hidden) : 1.0f;
    d->ops->embed(
        d->dev, &d->batch, &(struct embed_args){.table = &d->embed, .scale = scale, .out = d->x}); /* [T][H] */
    run_layers(d, 0, d->cfg.n_layers);
    if (d->batch.n_out > 0)
        run_head(d, want_best);
}

/* Nothing is computed, so which rows belong to which sequence does not matter: every row its own, as when decoding. */
enum err decoder_rehearse(struct decoder *d, struct error *e)
{
    const struct ops *ops = d->ops;
    uint32_t rows;
    if (ops->look_begin == NULL)
        return OK;
    for (uint32_t i = 0; (rows = ops->look_begin(d->dev, i)) > 0; i++) {
        const struct graph_key key = {
            .n_rows = rows, .n_seqs = MIN(rows, d->o.seqs_max), .n_out = MIN(rows, d->o.out_max), .seq_rows = 1};
        decoder_batch_name(d, key);
        run_step(d, false);
        ops->look_end(d->dev);
    }
    ops->choose(d->dev, &d->choices);
    return ops->dev_wait(d->dev, e);
}

enum err decoder_step(struct decoder *d, const struct step *s, struct error *e)
{
    const struct ops *ops = d->ops;
    TRY(check_step(d, s, e));
    const struct graph_key key = decoder_bucket(s, &d->o, ops->graph_replay != NULL && d->cfg.n_experts == 0);
    bool takes = false;
    for (uint32_t i = 0; i < s->n_rows; i++)
        takes = takes || s->token[i] < 0;
    decoder_batch_write(d, s, key);
    if (takes)
        ops->tokens_take(d->dev, (int32_t *)(uintptr_t)d->batch.token, key.n_rows, d->best, d->cfg.vocab);
    if (ops->graph_replay == NULL)
        run_step(d, s->want_best);
    else if (!ops->graph_replay(d->dev, key)) {
        ops->graph_begin(d->dev, key);
        run_step(d, s->want_best);
        ops->graph_end(d->dev);
    }
    return OK;
}

enum err decoder_read_logits(struct decoder *d, uint32_t i, float *out, struct error *e)
{
    assert(i < d->n_out);
    d->ops->dev_read(d->dev, out, d->logits + (size_t)i * d->cfg.vocab, d->cfg.vocab * sizeof *out);
    return d->ops->dev_wait(d->dev, e);
}

enum err decoder_read_best(struct decoder *d, uint32_t *out, struct error *e)
{
    d->ops->dev_read(d->dev, out, d->best, d->n_out * sizeof *out);
    return d->ops->dev_wait(d->dev, e);
}

/* ---- one step ahead ------------------------------------------------------------------------------------------------
 */

bool decoder_is_ahead(const struct decoder *d)
{
    return d->ops->sample != NULL;
}

void decoder_sample(struct decoder *d, const struct decoder_asks *a, uint32_t side, bool wants_top)
{
    const uint32_t n = a->n;
    struct sample_got *got = d->answers;
    struct sample_top *top = (struct sample_top *)(void *)(got + n);
    d->ops->sample(d->dev, &(struct sample_args){.x = d->logits,
                               .n = d->cfg.vocab,
                               .n_asks = n,
                               .n_words = a->n_words,
                               .n_masks = a->n_masks,
                               .asks = a->ask,
                               .words = a->words,
                               .masks = a->masks,
                               .out = got,
                               .top = top,
                               .chosen = d->best});
    d->ops->fetch(d->dev, side, got, n * (wants_top ? DECODER_ANSWER_BYTES : sizeof *got));
}

enum err decoder_sampled(
    struct decoder *d, uint32_t side, uint32_t n, struct sample_got *got, struct sample_top *top, struct error *e)
{
    const size_t bytes = n * (top != NULL ? DECODER_ANSWER_BYTES : sizeof *got);
    TRY(d->ops->fetched(d->dev, side, d->answers_host, bytes, e));
    memcpy(got, d->answers_host, n * sizeof *got);
    if (top != NULL)
        memcpy(top, (struct sample_got *)d->answers_host + n, n * SAMPLE_TOP_MAX * sizeof *top);
    return OK;
}

void decoder_send_best(struct decoder *d, uint32_t side)
{
    d->ops->fetch(d->dev, side, d->best, d->n_out * sizeof *d->best);
}

enum err decoder_sent_best(struct decoder *d, uint32_t side, uint32_t n, uint32_t *out, struct error *e)
{
    return d->ops->fetched(d->dev, side, out, n * sizeof *out, e);
}

void decoder_put_best(struct decoder *d, uint32_t i, uint32_t id)
{
    d->ops->dev_write(d->dev, d->best + i, &id, sizeof id);
}

struct hidden_job {
    const struct decoder *d;
    float *rows;
};

static void normalise_row(void *ctx, uint32_t i, uint32_t worker)
{
    const struct hidden_job *j = ctx;
    const uint32_t n = j->d->cfg.hidden;
    float *x = j->rows + (size_t)i * n;
    double squares = 0;
    (void)worker;
    for (uint32_t k = 0; k < n; k++)
        squares += (double)x[k] * x[k];
    const double scale = 1.0 / sqrt(squares / n + j->d->cfg.norm_eps);
    for (uint32_t k = 0; k < n; k++)
        x[k] = (float)(x[k] * scale * j->d->final_gain[k]);
}

enum err decoder_read_hidden(struct decoder *d, uint32_t first, uint32_t n, float *out, struct error *e)
{
    const size_t width = d->cfg.hidden;
    assert(first + n <= d->n_rows);
    d->ops->dev_read(d->dev, out, d->x + first * width, n * width * sizeof *out);
    TRY(d->ops->dev_wait(d->dev, e));
    decoder_host_run(d, n, normalise_row, &(struct hidden_job){d, out});
    return OK;
}

/* ---- what lies around a step --------------------------------------------------------------------------------------
 */

const float *decoder_lend_logits(const struct decoder *d, uint32_t i)
{
    assert(i < d->n_out);
    return d->ops->host_run != NULL ? d->logits + (size_t)i * d->cfg.vocab : NULL;
}

enum err decoder_wait(struct decoder *d, struct error *e)
{
    return d->ops->dev_wait(d->dev, e);
}

bool decoder_lends_logits(const struct decoder *d)
{
    return d->ops->host_run != NULL;
}

uint32_t decoder_host_workers(const struct decoder *d)
{
    return d->ops->host_run != NULL ? d->ops->host_workers(d->dev) : 1;
}

void decoder_host_run(struct decoder *d, uint32_t n, void (*fn)(void *ctx, uint32_t tile, uint32_t worker), void *ctx)
{
    if (d->ops->host_run != NULL) {
        d->ops->host_run(d->dev, n, fn, ctx);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn(ctx, i, 0);
}

void decoder_copy_blocks(struct decoder *d, const uint32_t *src, const uint32_t *dst, uint32_t n)
{
    d->ops->copy_blocks(
        d->dev, &(struct copy_blocks_args){.from = &d->kv, .to = &d->kv, .src = src, .dst = dst, .n = n});
}

void *decoder_host_new(struct decoder *d, size_t bytes)
{
    return d->ops->host_new(d->dev, bytes);
}

void decoder_host_free(struct decoder *d, void *p)
{
    if (p != NULL)
        d->ops->host_free(d->dev, p);
}

void decoder_move_blocks(struct decoder *d, struct move_blocks_args a)
{
    a.kv = &d->kv;
    d->ops->move_blocks(d->dev, &a);
}
