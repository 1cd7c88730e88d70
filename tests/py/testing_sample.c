/* Doors of sample/ for the Python tests. */
#include "sample/sample.h"

#define EXPORT __attribute__((visibility("default")))

/* n draws at output indices 0 .. n-1 from one row: ids[n], logprobs[n], and the top of the last draw. */
EXPORT int quern_testing_sample(const float *logits, uint32_t vocab, const float params[7], uint32_t top_k,
    uint64_t seed, uint32_t n, uint32_t *ids, float *logprobs, uint32_t n_top, uint32_t *top_ids, float *top_logprobs)
{
    struct error e = {0};
    struct sampler *s;
    struct sample_params p = sample_params_default();
    struct token_logprob top[64];
    struct sample_result got = {.top = top};
    p.temperature = params[0];
    p.top_p = params[1];
    p.min_p = params[2];
    p.typical_p = params[3];
    p.repetition_penalty = params[4];
    p.presence_penalty = params[5];
    p.frequency_penalty = params[6];
    p.top_k = top_k;
    p.seed = seed;
    assert(n_top <= COUNT_OF(top));
    enum err err = sample_params_check(&p, vocab, &e);
    if (err == OK)
        err = sampler_new(vocab, &s, &e);
    if (err != OK)
        return (int)err;
    for (uint32_t i = 0; err == OK && i < n; i++) {
        const struct sample_row row = {
            .logits = logits, .params = &p, .output_index = i, .n_top = n_top, .want_logprob = true};
        err = sample_token(s, &row, &got, &e);
        ids[i] = got.id;
        logprobs[i] = got.logprob;
    }
    for (uint32_t i = 0; err == OK && i < got.n_top; i++) {
        top_ids[i] = top[i].id;
        top_logprobs[i] = top[i].logprob;
    }
    sampler_free(s);
    return (int)err;
}
