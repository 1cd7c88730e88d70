/* POST /v1/completions: a text, several, ids, or several lists of ids; every prompt is one engine request. */
#include "api/generate.h"
#include "api/prompt.h"

#define MAX_TOKENS_DEFAULT 16 /* OpenAI's */

static bool read_completion_fields(struct fields *f, const json_t *doc, bool *echo, struct api_error *ae)
{
    const struct in in = {doc, ae};
    int64_t logprobs = -1;
    f->max_tokens = MAX_TOKENS_DEFAULT;
    if (json_array_size(in_get(in, "tools")) > 0)
        return api_fail_code(
            ae, 400, "tools", "unsupported_parameter", "'tools' is refused: it is for /v1/chat/completions");
    if (!in_u32(in, "max_tokens", 0, MODEL_CONTEXT_MAX, &f->max_tokens) || !in_bool(in, "echo", echo) ||
        !in_i64(in, "logprobs", 0, LOGPROBS_MAX, &logprobs))
        return false;
    f->want_logprobs = logprobs >= 0;
    f->n_top = logprobs > 0 ? (uint32_t)logprobs : 0;
    if (f->max_tokens == 0 && !*echo)
        return api_fail(ae, 400, "max_tokens", "'max_tokens' of 0 needs 'echo': true");
    return true;
}

static bool start_completion(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae)
{
    const struct serving *sv = c->s->serving;
    const struct fields_model m = {
        &sv->config.generation, sv->config.vocab, sv->fit.context, c->s->o.structured_whitespace};
    const struct in in = {doc, ae};
    const json_t *prompt = in_get(in, "prompt");
    bool echo = false, add_special = true;
    uint32_t n_prompts = 0;
    fields_init(f, m);
    if (!model_check(c, in) || !fields_read(f, doc, m, ae) || !read_completion_fields(f, doc, &echo, ae) ||
        !in_bool(in, "add_special_tokens", &add_special) ||
        !prompts_count(prompt, "prompt", REQ_PROMPTS_MAX, &n_prompts, ae))
        return false;
    bool waits = false;
    if (!call_grammar(c, f, &waits, ae))
        return false;
    if (waits)
        return true;
    if (n_prompts * f->n > REQ_SEQS_MAX)
        return api_fail(ae, 400, "n", "'n' times the prompts is %u; the limit is %d", n_prompts * f->n, REQ_SEQS_MAX);
    struct generation *g = generation_new(c, GEN_COMPLETION, f, n_prompts, ae);
    if (g == NULL)
        return false;
    g->echo = echo;
    g->echo_only = f->max_tokens == 0;
    bool ok = generation_prompts(g, f, prompt, add_special, "prompt", ae);
    if (ok && f->resumable)
        g->replay = replay_new(c->s, g->id, c->tenant);
    if (ok && f->resumable && g->replay == NULL)
        ok = api_fail(ae, 429, "resumable", "%d resumable streams are kept already", STREAM_REPLAYS_MAX);
    if (!ok) {
        generation_free(g);
        return false;
    }
    return generation_start(g, ae);
}

void route_completions(struct call *c)
{
    generation_route(c, start_completion);
}
