/* The fields that chat and completions share: how to sample, when to stop, what to report, how to stream. Defaults come
 * from the model's generation_config; fields that quern does not do are refused by name, unknown ones are ignored.
 *
 * Threads: one at a time; fields_init and fields_fini frame its life. */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include "api/json_in.h"
#include "sched/request.h"

struct fields {
    struct sample_params sample; /* bias points at bias */
    struct logit_bias *bias;
    uint32_t n;
    uint32_t max_tokens; /* UINT32_MAX = what the context has room for */
    uint32_t min_tokens;
    struct str stops[STOPS_MAX]; /* borrowed from the document */
    uint32_t n_stops;
    uint32_t stop_ids[REQ_STOP_IDS_MAX];
    uint32_t n_stop_ids;
    uint64_t *allowed;     /* bit per id; NULL = all */
    enum spec_method spec; /* SPEC_METHODS = the server's */
    uint32_t spec_k;       /* 0 = the server's */
    uint32_t truncate;     /* keep the last so many tokens of the prompt; 0 = all */
    int32_t priority;
    bool has_priority;
    uint64_t salt;
    bool ignore_eos, include_stop, show_special;
    bool stream, include_usage, continuous_usage, include_times, resumable;
    uint32_t stream_interval; /* tokens of one event, at least */
    bool want_logprobs, want_prompt_logprobs, return_token_ids, tokens_as_ids;
    uint32_t n_top, n_prompt_top;
    struct str request_id; /* borrowed; n 0 = none */
    enum req_pool pool;    /* a vector is asked for, not text */

    /* What the answer must obey (structured.c). */
    struct grammar_source constraint; /* its text is constraint_text */
    char *constraint_text;
    const char *constraint_field; /* who asked for it, for errors; NULL = nobody */
    struct grammar *grammar;      /* compiled: see call_grammar; a reference of ours */
};

/* The model that parses for: what it suggests and how large its vocabulary is. */
struct fields_model {
    const struct model_generation *generation;
    uint32_t vocab, context;
    enum grammar_whitespace whitespace; /* of JSON, unless the request says otherwise */
};

void fields_init(struct fields *f, struct fields_model m);
void fields_fini(struct fields *f);

/* Everything but the prompt, the logprobs and max_tokens, whose meaning differs between the routes. */
bool fields_read(struct fields *f, const json_t *doc, struct fields_model m, struct api_error *ae);

/* The grammar that the request asks for, by whatever field. */
bool constraint_read(struct fields *f, const json_t *doc, struct api_error *ae);
/* Set it to a source of one's own (tools). The text is copied; field is a string that stays. Fails when there is one.
 */
bool constraint_set(struct fields *f, const char *field, enum grammar_kind kind, struct str text, struct api_error *ae);
bool whitespace_parse(struct str s, enum grammar_whitespace *out); /* "spaced", "compact", "flexible" */

#endif
