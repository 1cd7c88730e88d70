/* A generation: one HTTP request for text, from its prompts to its last byte. It has a part for every prompt (chat has
 * one), each of which is one engine request with n choices.
 *
 *   generation_new -> generation_prompt (for every prompt) -> generation_start; from there on notices drive it, and it
 *   ends by itself when the engine has given back every request.
 *
 * Streaming: ids become text in pump; when the client does not read, pump stops advancing, n_read stays behind, and the
 * engine pauses that request alone.
 *
 * Threads: the network thread of its call. */
#ifndef API_GENERATE_H
#define API_GENERATE_H

#include "api/fields.h"
#include "api/messages.h"
#include "api/speech.h"
#include "text/detok.h"

enum generation_kind { GEN_CHAT, GEN_COMPLETION, GEN_EMBEDDING, GEN_MESSAGE };

/* What has been said of one choice. */
struct said {
    struct detok detok;
    struct speech *speech; /* calls and reasoning are split off; NULL = the text is the answer */
    struct blocks *blocks; /* of GEN_MESSAGE */
    uint32_t n_fed;        /* ids that became text */
    uint32_t n_told;       /* ids that were reported: log-probabilities, token ids */
    uint64_t n_chars;      /* code points of the text so far; text_offset counts them */
    bool has_begun;        /* its first event is written */
    bool has_ended;        /* its last event is written */
};

struct part {
    struct generation *g;
    uint32_t index;
    struct request *r;
    bool is_back; /* the engine has given it back, or it never went */
    struct said *said;
};

struct generation {
    struct call *call;
    struct net *net;
    enum generation_kind kind;
    struct arena arena; /* of everything below that is a copy */
    char id[CALL_ID_BYTES + 16];
    int64_t created_s;
    struct str *stops;
    struct str head; /* of every streamed event, up to the choices */
    uint32_t stop_ids[REQ_STOP_IDS_MAX];
    uint32_t n_stop_ids; /* the request's own: reported as stop_reason */
    uint32_t n, n_top, n_prompt_top, stream_interval;
    bool stream, include_usage, continuous_usage, include_times, include_stop, show_special;
    bool want_logprobs, want_prompt_logprobs, return_token_ids, tokens_as_ids;
    uint32_t dimensions; /* of an embedding; 0 = all */
    bool base64;         /* it is written so */
    bool echo;           /* the prompt is part of the text */
    bool echo_only;      /* and nothing else: max_tokens was 0 */
    uint32_t n_parts, n_parts_max, n_back;
    struct part *parts;
    bool blocked; /* its reader is behind */
    bool is_cancelled;
    struct api_error failure;
    uint32_t tenant;
    uint64_t reserved; /* tokens taken from the tenant's budget */
    struct replay *replay;
    struct tool_ask *ask; /* of a chat; NULL = none */
};

/* NULL: no memory, ae is set. */
struct generation *generation_new(
    struct call *c, enum generation_kind kind, const struct fields *f, uint32_t n_parts, struct api_error *ae);

/* Add the next prompt; ids are copied. */
bool generation_prompt(
    struct generation *g, const struct fields *f, const uint32_t *ids, size_t n, struct api_error *ae);

/* Add all prompts of a field that prompts_count has taken. */
bool generation_prompts(struct generation *g, const struct fields *f, const json_t *v, bool add_special,
    const char *key, struct api_error *ae);

/* A route that generates: the body is read and start called; what it says on false is answered. */
typedef bool generation_start_fn(struct call *c, const json_t *doc, struct fields *f, struct api_error *ae);
void generation_route(struct call *c, generation_start_fn *start);

/* Hand everything to the engine and keep the call; on false nothing was handed over, or what was is on its way back:
 * the generation is gone either way for the caller. */
bool generation_start(struct generation *g, struct api_error *ae);
void generation_free(struct generation *g); /* only before a start */

/* Fields of f, then the model's limits: the tokens of an answer to a prompt of n; 0 with ae set when there is no room.
 */
uint32_t generation_room(const struct call *c, const struct fields *f, size_t n_prompt, struct api_error *ae);

/* ---- answer.c: what was generated as JSON ---- */

struct tok_text { /* for people and JSON: a token as text */
    struct str bytes;
    char room[32];
};
const char *answer_finish(const struct part *p, uint32_t i_choice);                /* "stop", "length", "tool_calls" */
void answer_stop_reason(const struct part *p, uint32_t i_choice, struct buf *out); /* a string, an id or null */
void answer_usage(const struct generation *g, struct buf *out);                    /* {"prompt_tokens":...} */

/* Log-probabilities of the ids [from, to) of a choice. */
void answer_logprobs(const struct part *p, uint32_t i_choice, uint32_t from, uint32_t to, struct buf *out);
struct answer_span {
    uint32_t from, to;   /* ids of the output */
    bool with_prompt;    /* and before them those of the prompt */
    uint64_t first_char; /* text_offset of the first */
};
void answer_completion_logprobs(const struct part *p, uint32_t i_choice, struct answer_span span, struct buf *out);
void answer_prompt_logprobs(const struct part *p, struct buf *out);
void answer_ids(const uint32_t *ids, uint32_t n, struct buf *out);
uint32_t answer_n_told(const struct generation *g, const struct choice *ch, uint32_t n_out, bool ended);
void answer_prompt_text(const struct part *p, struct buf *out);

void answer_embeddings(const struct generation *g, struct buf *out); /* embeddings.c */
/* The whole answer. */
void answer_whole(struct generation *g, struct buf *out);
/* Ids up to n_out become text appended to out; with ended, what was held back too. */
enum err answer_feed(struct part *p, uint32_t i_choice, uint32_t n_out, bool ended, struct buf *out);
uint64_t answer_count_chars(struct str text);

#endif
