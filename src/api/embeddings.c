/* POST /v1/embeddings: a vector for each input. The hidden states of the prompt behind the final norm, of its last
 * token or as the mean over all, cut to the dimensions asked for, of length 1. Every input is one engine request that
 * wants a pool (sched/request.h), so vectors wait, share steps and are billed like text. */
#include "api/generate.h"
#include "api/prompt.h"

#include <math.h>
#include <string.h>

static bool read_word(struct in in, const char *key, const char *const *words, size_t n, uint32_t *out)
{
    struct str s = {0};
    if (in_get(in, key) == NULL)
        return true;
    if (!in_str(in, key, 64, &s))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (str_is(s, words[i])) {
            *out = i;
            return true;
        }
    return api_fail(in.ae, 400, key, "'%s' must be '%s' or '%s'", key, words[0], words[1]);
}

static bool start_embedding(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae)
{
    static const char *const pools[] = {"mean", "last"}, *const formats[] = {"float", "base64"};
    const struct serving *sv = c->s->serving;
    const struct fields_model m = {
        .generation = &sv->config.generation, .vocab = sv->config.vocab, .context = sv->fit.context};
    const struct in in = {doc, ae};
    const json_t *input = in_get(in, "input");
    uint32_t n_inputs = 0, pool = 0, format = 0, dimensions = 0;
    int64_t priority = 0;
    bool add_special = true;
    fields_init(f, m);
    if (!model_check(c, in))
        return false;
    if (sv->decoder == NULL)
        return api_fail(ae, 400, "model", "this server makes its tokens up: there are no embeddings");
    if (!read_word(in, "encoding_format", formats, COUNT_OF(formats), &format) ||
        !read_word(in, "pooling", pools, COUNT_OF(pools), &pool) ||
        !in_u32(in, "dimensions", 1, sv->config.hidden, &dimensions) ||
        !in_u32(in, "truncate_prompt_tokens", 1, MODEL_CONTEXT_MAX, &f->truncate) ||
        !in_i64(in, "priority", INT32_MIN, INT32_MAX, &priority) || !in_bool(in, "add_special_tokens", &add_special) ||
        !prompts_count(input, "input", REQ_INPUTS_MAX, &n_inputs, ae))
        return false;
    f->pool = pool == 0 ? POOL_MEAN : POOL_LAST;
    f->priority = (int32_t)priority;
    f->max_tokens = 1;
    f->sample = sample_params_default();
    f->sample.temperature = 0;
    struct generation *g = generation_new(c, GEN_EMBEDDING, f, n_inputs, ae);
    if (g == NULL)
        return false;
    g->dimensions = dimensions;
    g->base64 = format == 1;
    if (!generation_prompts(g, f, input, add_special, "input", ae)) {
        generation_free(g);
        return false;
    }
    return generation_start(g, ae);
}

void route_embeddings(struct call *c)
{
    generation_route(c, start_embedding);
}

/* Of length 1; the zero vector stays. */
static void add_vector(const struct generation *g, const double *sum, uint32_t n, struct buf *out)
{
    double squares = 0;
    for (uint32_t k = 0; k < n; k++)
        squares += sum[k] * sum[k];
    const double scale = squares > 0 ? 1.0 / sqrt(squares) : 0.0;
    buf_add(out, g->base64 ? STR("\"") : STR("["));
    for (uint32_t k = 0; k < n && !g->base64; k++)
        buf_addf(out, "%s%.9g", k > 0 ? "," : "", (double)(float)(sum[k] * scale));
    for (uint32_t k = 0; k < n && g->base64;) { /* groups of 12 bytes need no padding between them */
        unsigned char bytes[3 * sizeof(float)];
        size_t n_bytes = 0;
        for (; k < n && n_bytes < sizeof bytes; k++) {
            const float x = (float)(sum[k] * scale);
            memcpy(bytes + n_bytes, &x, sizeof x); /* little-endian, as are all machines we run on */
            n_bytes += sizeof x;
        }
        buf_add_base64(out, bytes, n_bytes);
    }
    buf_add(out, g->base64 ? STR("\"") : STR("]"));
}

void answer_embeddings(const struct generation *g, struct buf *out)
{
    uint64_t n_tokens = 0;
    buf_addf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", g->id, (long long)g->created_s);
    buf_add_json_str(out, str_of(g->net->s->names[0]));
    buf_add(out, STR(",\"data\":["));
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const struct request *r = g->parts[i].r;
        const uint32_t n = g->dimensions != 0 ? g->dimensions : r->o.n_hidden;
        assert(r->n_pooled == r->o.n_prompt);
        n_tokens += r->o.n_prompt;
        buf_addf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i > 0 ? "," : "", i);
        add_vector(g, r->pooled, n, out);
        buf_add_char(out, '}');
    }
    buf_addf(out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", (unsigned long long)n_tokens,
        (unsigned long long)n_tokens);
}
