/* quern run --json: one answer as one JSON object, written when it is whole. The keys are in docs/cli.md. */
#include "cli/run_int.h"

struct collector {
    struct run *r;
    struct buf tokens; /* the inside of the array */
};

static bool take_text(void *ctx, struct str piece)
{
    struct collector *c = ctx;
    buf_add(&c->r->answer, piece);
    return c->r->answer.failure == OK;
}

/* What an id stands for; bytes that are no characters read as U+FFFD. */
static void add_text(struct buf *b, const struct load *l, uint32_t id)
{
    if (l->tok != NULL && id < tok_count(l->tok))
        buf_add_json_str(b, vocab_bytes(tok_vocab(l->tok), id));
    else
        buf_add(b, STR("\"\""));
}

static enum err take_token(void *ctx, const struct sample_result *s, struct error *e)
{
    struct collector *c = ctx;
    const struct load *l = c->r->load;
    struct buf *b = &c->tokens;
    buf_addf(b, "%s{\"id\":%u,\"text\":", b->n > 0 ? "," : "", s->id);
    add_text(b, l, s->id);
    if (c->r->o.logprobs != OPTION_UNSET) {
        buf_addf(b, ",\"logprob\":%.6f,\"top\":[", (double)s->logprob);
        for (uint32_t i = 0; i < s->n_top; i++) {
            buf_addf(b, "%s{\"id\":%u,\"text\":", i > 0 ? "," : "", s->top[i].id);
            add_text(b, l, s->top[i].id);
            buf_addf(b, ",\"logprob\":%.6f}", (double)s->top[i].logprob);
        }
        buf_add_char(b, ']');
    }
    buf_add_char(b, '}');
    return buf_check(b, "the list of tokens", e);
}

enum err run_json(struct run *r, const struct generate_params *p, struct tok_ids ids, struct error *e)
{
    struct collector c = {.r = r};
    struct generate_result g;
    const struct generate_sink sink = {.ctx = &c, .text = take_text, .token = take_token};
    buf_init(&c.tokens, 4 * TEXT_BYTES_MAX);
    buf_clear(&r->answer);
    enum err err = generate_answer(&r->generate, p, ids, &sink, &g, e);
    if (err == OK)
        err = buf_check(&r->answer, "the answer", e);
    if (err == OK) {
        struct out *out = r->out;
        const double prompt_s = (double)g.prompt_ns / 1e9, output_s = (double)g.output_ns / 1e9;
        out_text(out, "{\"model\":");
        out_json_str(out, str_of(r->load->name));
        out_text(out, ",\"text\":");
        out_json_str(out, buf_str(&r->answer));
        out_printf(out, ",\"finish_reason\":\"%s\",\"seed\":%llu,\"tokens\":[", finish_name(g.finish),
            (unsigned long long)p->sample.seed);
        out_add(out, buf_str(&c.tokens));
        out_printf(out,
            "],\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u},"
            "\"timings\":{\"prompt_s\":%.6f,\"output_s\":%.6f,\"prompt_tok_s\":%.3f,\"output_tok_s\":%.3f}}\n",
            g.n_prompt, g.n_output, g.n_prompt + g.n_output, prompt_s, output_s,
            prompt_s > 0 ? (g.n_prompt - g.n_reused) / prompt_s : 0.0, output_s > 0 ? g.n_output / output_s : 0.0);
    }
    buf_fini(&c.tokens);
    return err;
}
