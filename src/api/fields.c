/* The fields that chat and completions share; see fields.h. */
#include "api/fields.h"

#include "base/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- what is refused ---- */

/* Fields that would change the answer and that quern does not do. `fine` is the JSON value that asks for nothing. */
static const struct refused {
    const char *name;
    enum { FINE_NULL, FINE_FALSE, FINE_ONE, FINE_EMPTY, FINE_TEXT } fine;
    const char *why;
} refused_fields[] = {
    {"functions", FINE_EMPTY, "it was replaced by 'tools'"},
    {"function_call", FINE_NULL, "it was replaced by 'tool_choice'"},
    {"use_beam_search", FINE_FALSE, "beam search is not supported"},
    {"best_of", FINE_ONE, "best_of is not supported; ask for n choices"},
    {"length_penalty", FINE_ONE, "it only means something in beam search, which is not supported"},
    {"guided_whitespace_pattern", FINE_NULL, "structured_outputs.whitespace chooses between three"},
    {"structural_tag", FINE_NULL, "structural tags are not supported"},
    {"bad_words", FINE_EMPTY, "bad_words is not supported; logit_bias can ban tokens"},
    {"logprob_token_ids", FINE_EMPTY, "log-probabilities of chosen ids are not supported"},
    {"chat_template", FINE_EMPTY, "templates of a request are not taken; the model's own is used"},
    {"continue_final_message", FINE_FALSE, "continuing a message is not supported"},
    {"mm_processor_kwargs", FINE_EMPTY, "only text is supported"},
    {"modalities", FINE_TEXT, "answers are text"},
    {"audio", FINE_NULL, "only text is supported"},
    {"kv_transfer_params", FINE_EMPTY, "KV transfer is not supported"},
    {"vllm_xargs", FINE_EMPTY, "it is for vLLM alone"},
    {"repetition_detection", FINE_NULL, "repetition detection is not supported"},
    {"web_search_options", FINE_NULL, "there is no web search"},
    {"prompt_embeds", FINE_NULL, "embeddings are not taken as prompts"},
    {"suffix", FINE_EMPTY, "inserting before a suffix is not supported"},
    {"store", FINE_FALSE, "answers are not stored"},
};

static bool is_fine(const json_t *v, const struct refused *r)
{
    const bool empty = (json_is_array(v) && json_array_size(v) == 0) ||
                       (json_is_object(v) && json_object_size(v) == 0) ||
                       (json_is_string(v) && json_string_length(v) == 0);
    switch (r->fine) {
    case FINE_NULL: return false;
    case FINE_FALSE: return json_is_false(v);
    case FINE_ONE: return json_is_number(v) && json_number_value(v) == 1.0;
    case FINE_EMPTY: return empty;
    case FINE_TEXT:
        return empty || (json_array_size(v) == 1 && json_is_string(json_array_get(v, 0)) &&
                            strcmp(json_string_value(json_array_get(v, 0)), "text") == 0);
    }
    return false;
}

static bool refuse_fields(struct in in)
{
    for (size_t i = 0; i < COUNT_OF(refused_fields); i++) {
        const struct refused *r = &refused_fields[i];
        const json_t *v = in_get(in, r->name);
        if (v == NULL || is_fine(v, r))
            continue;
        return api_fail_code(in.ae, 400, r->name, "unsupported_parameter", "'%s' is refused: %s", r->name, r->why);
    }
    return true;
}

/* ---- sampling ---- */

static uint64_t random_seed(void)
{
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = hash64(&seed, sizeof seed, (uint64_t)(uintptr_t)&seed); /* early in a machine's life, any will do */
    return seed >> 11;                                                 /* below 2^53: exact in any JSON reader */
}

void fields_init(struct fields *f, struct fields_model m)
{
    const struct model_generation *g = m.generation;
    *f = (struct fields){.n = 1, .max_tokens = UINT32_MAX, .sample = sample_params_default(), .stream_interval = 1};
    f->constraint.whitespace = m.whitespace;
    if (!isnan(g->temperature))
        f->sample.temperature = (float)g->temperature;
    else if (g->do_sample == 0)
        f->sample.temperature = 0;
    if (!isnan(g->top_p))
        f->sample.top_p = (float)g->top_p;
    if (!isnan(g->min_p))
        f->sample.min_p = (float)g->min_p;
    if (!isnan(g->repetition_penalty))
        f->sample.repetition_penalty = (float)g->repetition_penalty;
    if (g->top_k > 0)
        f->sample.top_k = (uint32_t)MIN(g->top_k, (int64_t)m.vocab);
}

void fields_fini(struct fields *f)
{
    mem_free(f->bias);
    mem_free(f->allowed);
    mem_free(f->constraint_text);
    grammar_unref(f->grammar);
    f->constraint_text = NULL;
    f->grammar = NULL;
    f->bias = NULL;
    f->allowed = NULL;
}

/* {"50256": -100} */
static bool read_bias(struct fields *f, struct in in, uint32_t vocab)
{
    const json_t *o = NULL;
    const char *key;
    json_t *v;
    if (!in_object(in, "logit_bias", &o))
        return false;
    if (o == NULL || json_object_size(o) == 0)
        return true;
    if (json_object_size(o) > REQ_BIAS_MAX)
        return api_fail(in.ae, 400, "logit_bias", "'logit_bias' has %zu entries; the limit is %d", json_object_size(o),
            REQ_BIAS_MAX);
    f->bias = mem_array(json_object_size(o), sizeof *f->bias);
    if (f->bias == NULL)
        return api_fail_err(in.ae, &(struct error){.code = ERR_NOMEM}, NULL);
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        char *end = NULL;
        const unsigned long long id = key[0] >= '0' && key[0] <= '9' ? strtoull(key, &end, 10) : 0;
        if (end == NULL || *end != '\0' || id >= vocab)
            return api_fail(
                in.ae, 400, "logit_bias", "'logit_bias' has a key that is no token id from 0 to %u", vocab - 1);
        const double bias = json_is_number(v) ? json_number_value(v) : NAN;
        if (!(bias >= -100 && bias <= 100))
            return api_fail(in.ae, 400, "logit_bias", "'logit_bias' values must be numbers from -100 to 100");
        f->bias[f->sample.n_bias++] = (struct logit_bias){(uint32_t)id, (float)bias};
    }
    f->sample.bias = f->bias;
    return true;
}

static bool read_allowed(struct fields *f, struct in in, uint32_t vocab)
{
    const json_t *ids = NULL;
    if (!in_array(in, "allowed_token_ids", REQ_ALLOWED_MAX, &ids))
        return false;
    if (ids == NULL)
        return true;
    if (json_array_size(ids) == 0)
        return api_fail(in.ae, 400, "allowed_token_ids", "'allowed_token_ids' must name at least one token");
    f->allowed = mem_array((vocab + 63) / 64, sizeof *f->allowed);
    if (f->allowed == NULL)
        return api_fail_err(in.ae, &(struct error){.code = ERR_NOMEM}, NULL);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        uint32_t id;
        if (!in_token_id(json_array_get(ids, i), vocab, "allowed_token_ids", &id, in.ae))
            return false;
        f->allowed[id / 64] |= (uint64_t)1 << (id % 64);
    }
    return true;
}

static bool read_sampling(struct fields *f, struct in in, uint32_t vocab)
{
    struct sample_params *p = &f->sample;
    int64_t top_k = p->top_k, seed = 0;
    if (!in_f32(in, "temperature", 0, 100, &p->temperature) || !in_f32(in, "top_p", 0, 1, &p->top_p) ||
        !in_f32(in, "min_p", 0, 1, &p->min_p) || !in_f32(in, "typical_p", 1e-6, 1, &p->typical_p) ||
        !in_f32(in, "repetition_penalty", 0.01, 100, &p->repetition_penalty) ||
        !in_f32(in, "presence_penalty", -2, 2, &p->presence_penalty) ||
        !in_f32(in, "frequency_penalty", -2, 2, &p->frequency_penalty) || !in_i64(in, "top_k", -1, INT32_MAX, &top_k) ||
        !in_i64(in, "seed", INT64_MIN, INT64_MAX, &seed))
        return false;
    if (p->top_p < 1e-6F)
        p->top_p = 1e-6F; /* OpenAI allows 0: the likeliest alone */
    p->top_k = top_k <= 0 ? 0 : (uint32_t)MIN(top_k, (int64_t)vocab);
    p->seed = in_get(in, "seed") != NULL ? (uint64_t)seed : random_seed();
    return read_bias(f, in, vocab) && read_allowed(f, in, vocab);
}

/* {"method": "ngram", "k": 4}; whether the server has that is for serving_spec to say. */
static bool read_speculative(struct fields *f, struct in in)
{
    static const char *const names[SPEC_METHODS] = {
        [SPEC_NONE] = "none", [SPEC_NGRAM] = "ngram", [SPEC_DRAFT] = "draft"};
    const json_t *o = NULL;
    struct str method = {0};
    f->spec = SPEC_METHODS;
    if (!in_object(in, "speculative", &o))
        return false;
    const struct in inner = {o, in.ae};
    if (o == NULL || !in_u32(inner, "k", 1, SPEC_K_MAX, &f->spec_k))
        return o == NULL;
    if (!in_str(inner, "method", 16, &method))
        return false;
    for (int i = 0; i < SPEC_METHODS; i++)
        if (str_is(method, names[i]))
            f->spec = (enum spec_method)i;
    if (method.n > 0 && f->spec == SPEC_METHODS)
        return api_fail(
            in.ae, 400, "speculative", "'speculative' has a 'method' that is none of none, ngram and draft");
    return true;
}

/* ---- stopping ---- */

static bool add_stop(struct fields *f, const json_t *v, struct api_error *ae)
{
    if (!json_is_string(v))
        return api_fail(ae, 400, "stop", "'stop' must be a string or an array of strings");
    if (json_string_length(v) == 0 || json_string_length(v) > STOP_BYTES_MAX)
        return api_fail(ae, 400, "stop", "a 'stop' must have 1 to %d bytes", STOP_BYTES_MAX);
    f->stops[f->n_stops++] = (struct str){json_string_value(v), json_string_length(v)};
    return true;
}

static bool read_stops(struct fields *f, struct in in, uint32_t vocab)
{
    const json_t *stop = in_get(in, "stop"), *ids = NULL;
    if (json_is_string(stop) && !add_stop(f, stop, in.ae))
        return false;
    if (json_is_array(stop)) {
        if (json_array_size(stop) > STOPS_MAX)
            return api_fail(
                in.ae, 400, "stop", "'stop' has %zu strings; the limit is %d", json_array_size(stop), STOPS_MAX);
        for (size_t i = 0; i < json_array_size(stop); i++)
            if (!add_stop(f, json_array_get(stop, i), in.ae))
                return false;
    } else if (stop != NULL && !json_is_string(stop))
        return api_fail(in.ae, 400, "stop", "'stop' must be a string or an array of strings");
    if (!in_array(in, "stop_token_ids", REQ_STOP_IDS_MAX, &ids))
        return false;
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (!in_token_id(json_array_get(ids, i), vocab, "stop_token_ids", &f->stop_ids[f->n_stop_ids++], in.ae))
            return false;
    return in_bool(in, "ignore_eos", &f->ignore_eos) && in_bool(in, "include_stop_str_in_output", &f->include_stop) &&
           in_u32(in, "min_tokens", 0, MODEL_CONTEXT_MAX, &f->min_tokens);
}

/* ---- reporting and streaming ---- */

static bool read_stream(struct fields *f, struct in in)
{
    const json_t *o = NULL;
    if (!in_bool(in, "stream", &f->stream) || !in_object(in, "stream_options", &o) ||
        !in_bool(in, "resumable", &f->resumable) || !in_u32(in, "stream_interval", 1, 4096, &f->stream_interval))
        return false;
    if (o != NULL && !f->stream)
        return api_fail(in.ae, 400, "stream_options", "'stream_options' needs 'stream': true");
    if (f->resumable && !f->stream)
        return api_fail(in.ae, 400, "resumable", "'resumable' needs 'stream': true");
    const struct in inner = {o, in.ae};
    return o == NULL || (in_bool(inner, "include_usage", &f->include_usage) &&
                            in_bool(inner, "continuous_usage_stats", &f->continuous_usage) &&
                            in_bool(inner, "include_token_times", &f->include_times));
}

static bool read_report(struct fields *f, struct in in, uint32_t context)
{
    bool skip_special = true, spaces = true; /* spaces: tokens are put together as their tokenizer says, either way */
    struct str salt = {0};
    int64_t priority = 0, n_prompt_top = -1, truncate = 0;
    if (!in_bool(in, "skip_special_tokens", &skip_special) || !in_bool(in, "return_token_ids", &f->return_token_ids) ||
        !in_bool(in, "return_tokens_as_token_ids", &f->tokens_as_ids) ||
        !in_i64(in, "prompt_logprobs", 0, LOGPROBS_MAX, &n_prompt_top) ||
        !in_bool(in, "spaces_between_special_tokens", &spaces) ||
        !in_i64(in, "truncate_prompt_tokens", -1, MODEL_CONTEXT_MAX, &truncate) ||
        !in_i64(in, "priority", INT32_MIN, INT32_MAX, &priority) || !in_str(in, "cache_salt", 1024, &salt) ||
        !in_str(in, "request_id", REQ_ID_BYTES_MAX, &f->request_id) || !in_u32(in, "n", 1, REQ_CHOICES_MAX, &f->n))
        return false;
    if (in_get(in, "truncate_prompt_tokens") != NULL && truncate == 0)
        return api_fail(in.ae, 400, "truncate_prompt_tokens", "'truncate_prompt_tokens' must be -1 or at least 1");
    f->truncate = truncate < 0 ? MAX(context, 2u) - 1 : (uint32_t)truncate; /* -1: what the context has room for */
    f->show_special = !skip_special;
    f->want_prompt_logprobs = n_prompt_top >= 0;
    f->n_prompt_top = n_prompt_top > 0 ? (uint32_t)n_prompt_top : 0;
    if (f->want_prompt_logprobs && f->stream)
        return api_fail(in.ae, 400, "prompt_logprobs", "'prompt_logprobs' cannot be streamed");
    f->priority = (int32_t)priority;
    f->has_priority = in_get(in, "priority") != NULL;
    if (salt.n > 0)
        f->salt = hash64(salt.p, salt.n, 0) | 1;
    return true;
}

bool fields_read(struct fields *f, const json_t *doc, struct fields_model m, struct api_error *ae)
{
    const struct in in = {doc, ae};
    return refuse_fields(in) && read_sampling(f, in, m.vocab) && read_stops(f, in, m.vocab) && read_stream(f, in) &&
           read_report(f, in, m.context) && read_speculative(f, in) && constraint_read(f, doc, ae);
}
