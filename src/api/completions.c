/* POST /v1/completions: a text, several, ids, or several lists of ids; every prompt is one engine request. */
#include "api/generate.h"
#include "api/prompt.h"

#define MAX_TOKENS_DEFAULT 16 /* OpenAI's */

static bool read_completion_fields(struct fields *f, const json_t *doc, bool *echo, struct api_error *ae)
{
    const struct in in = {doc, ae};
    int64_t logprobs = -1;
    f->max_tokens = MAX_TOKENS_DEFAULT;
    if (!in_u32(in, "max_tokens", 0, MODEL_CONTEXT_MAX, &f->max_tokens) || !in_bool(in, "echo", echo) ||
        !in_i64(in, "logprobs", 0, LOGPROBS_MAX, &logprobs))
        return false;
    f->want_logprobs = logprobs >= 0;
    f->n_top = logprobs > 0 ? (uint32_t)logprobs : 0;
    if (f->max_tokens == 0 && !*echo)
        return api_fail(ae, 400, "max_tokens", "'max_tokens' of 0 needs 'echo': true");
    return true;
}

/* How many prompts: one unless it is an array of strings or of arrays. */
static bool count_prompts(const json_t *prompt, uint32_t *out, struct api_error *ae)
{
    const json_t *first = json_array_get(prompt, 0);
    if (prompt == NULL || (!json_is_string(prompt) && !json_is_array(prompt)))
        return api_fail(
            ae, 400, "prompt", "'prompt' must be a string, an array of strings, token ids, or arrays of them");
    if (json_is_array(prompt) && json_array_size(prompt) == 0)
        return api_fail(ae, 400, "prompt", "'prompt' must not be empty");
    const bool many = json_is_string(first) || json_is_array(first);
    if (many && json_array_size(prompt) > REQ_PROMPTS_MAX)
        return api_fail(
            ae, 400, "prompt", "'prompt' has %zu prompts; the limit is %d", json_array_size(prompt), REQ_PROMPTS_MAX);
    for (size_t i = 1; many && i < json_array_size(prompt); i++)
        if (json_typeof(json_array_get(prompt, i)) != json_typeof(first))
            return api_fail(ae, 400, "prompt", "the prompts must be all strings or all arrays of token ids");
    *out = many ? (uint32_t)json_array_size(prompt) : 1;
    return true;
}

static bool add_prompt(
    struct generation *g, const struct fields *f, const json_t *v, bool add_special, struct api_error *ae)
{
    struct tok_ids ids = {0};
    uint32_t *room = NULL;
    size_t n = 0;
    bool ok;
    if (json_is_string(v)) {
        ok = prompt_from_text(
                 g->call, (struct str){json_string_value(v), json_string_length(v)}, add_special, "prompt", &ids, ae) &&
             generation_prompt(g, f, ids.p, ids.n, ae);
    } else if (json_is_array(v)) {
        ok = prompt_from_ids(g->call, v, "prompt", &room, &n, ae) && generation_prompt(g, f, room, n, ae);
    } else
        ok = api_fail(ae, 400, "prompt", "the prompts must be all strings or all arrays of token ids");
    mem_free(room);
    return ok;
}

static bool start_completion(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae)
{
    const struct serving *sv = c->s->serving;
    const struct fields_model m = {&sv->config.generation, sv->config.vocab, sv->fit.context};
    const struct in in = {doc, ae};
    const json_t *prompt = in_get(in, "prompt");
    bool echo = false, add_special = true;
    uint32_t n_prompts = 0;
    fields_init(f, m);
    if (!model_check(c, in) || !fields_read(f, doc, m, ae) || !read_completion_fields(f, doc, &echo, ae) ||
        !in_bool(in, "add_special_tokens", &add_special) || !count_prompts(prompt, &n_prompts, ae))
        return false;
    if (n_prompts * f->n > REQ_SEQS_MAX)
        return api_fail(ae, 400, "n", "'n' times the prompts is %u; the limit is %d", n_prompts * f->n, REQ_SEQS_MAX);
    struct generation *g = generation_new(c, GEN_COMPLETION, f, n_prompts, ae);
    if (g == NULL)
        return false;
    g->echo = echo;
    g->echo_only = f->max_tokens == 0;
    const bool is_one =
        n_prompts == 1 && !json_is_string(json_array_get(prompt, 0)) && !json_is_array(json_array_get(prompt, 0));
    bool ok = true;
    for (uint32_t i = 0; ok && i < n_prompts; i++)
        ok = add_prompt(g, f, is_one ? prompt : json_array_get(prompt, i), add_special, ae);
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
    struct api_error ae = {0};
    json_t *doc = NULL;
    struct fields *f = mem_zalloc(sizeof *f);
    bool ok = false;
    if (f == NULL)
        api_fail_err(&ae, &(struct error){.code = ERR_NOMEM}, NULL);
    else {
        ok = call_json(c, &doc, &ae) && start_completion(c, doc, f, &ae);
        fields_fini(f);
    }
    mem_free(f);
    json_decref(doc);
    if (!ok)
        call_reply_error(c, &ae);
}
