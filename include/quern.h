/* quern inside your program: open a model, submit requests, receive text as it comes. One library (libquern_embed.a and
 * the libraries it stands on), no server, no network, no global state: two engines may live in one process.
 *
 *     struct quern *q;  struct quern_client *c;  struct quern_event ev;  struct quern_error e = {0};
 *     struct quern_options o = quern_options_default();
 *     o.path = "model.gguf";
 *     if (quern_open(&o, &q, &e) != 0 || quern_client_new(q, &c, &e) != 0) ... e.text says why
 *     struct quern_ask ask = quern_ask_default();
 *     ask.text = "Once upon a time";
 *     if (quern_submit(c, &ask, NULL, &e) != 0) ...
 *     while (quern_poll(c, -1, &ev) == 1) fwrite(ev.text, 1, ev.text_bytes, stdout);
 *
 * docs/example.c is a whole program.
 *
 * Requests of all clients are computed together, a token of each in every step. What a request answers does not depend
 * on the others: the same request with the same seed gives the same tokens, alone or among hundreds.
 *
 * Threads. quern_open and quern_close: one thread. A client belongs to one thread at a time and makes text on it; make
 * one for each thread that asks. quern_stats: any thread. The engine has a thread of its own, and the model its
 * workers.
 *
 * Failing calls return a code other than 0 and say why in *e, one sentence; the struct is to be zeroed before. Numbers
 * and structs here only grow at the end; take the defaults from the *_default functions. */
#ifndef QUERN_H
#define QUERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct quern;         /* a model with its engine */
struct quern_client;  /* one asking thread */
struct quern_request; /* one submitted request */

/* Codes of failures. */
enum quern_code {
    QUERN_OK = 0,
    QUERN_INVALID,     /* something you gave breaks a rule */
    QUERN_UNSUPPORTED, /* well formed, but quern does not do it */
    QUERN_LIMIT,       /* more than fits or is allowed */
    QUERN_NOT_FOUND,
    QUERN_BUSY, /* not now: the queue is full; try again later */
    QUERN_IO,   /* the operating system or a file */
    QUERN_NOMEM,
    QUERN_STOPPED, /* the engine is being closed */
    QUERN_FAILED   /* the engine has failed, or a rule of quern's own was broken */
};

struct quern_error {
    int code; /* enum quern_code */
    char text[512];
};

const char *quern_version(void);

/* ---- a model and its engine ---- */

struct quern_options {
    const char *path; /* of a .gguf file or a folder in the layout of Hugging Face, or a model's name in the cache */
    uint32_t threads; /* 0 = one per core */
    uint32_t context; /* tokens of one sequence; 0 = the model's, as far as it fits */
    uint32_t max_sequences;  /* computed together; 0 = the default */
    uint32_t max_rows;       /* tokens of one step; 0 = the default */
    uint32_t kv_blocks;      /* of 16 tokens; 0 = from the memory there is */
    uint64_t swap_bytes;     /* host memory for sequences that have to make room, and for evicted prefixes */
    int prefix_cache;        /* keep what was computed for prompts that begin alike; 1 by default */
    const char *record_path; /* write every decision of the scheduler there, for `quern replay`; NULL = no */
};
struct quern_options quern_options_default(void);

int quern_open(const struct quern_options *o, struct quern **out, struct quern_error *e);
void quern_close(struct quern *q); /* ends what runs; every client must have been freed; NULL is fine */

uint32_t quern_context(const struct quern *q); /* tokens of one sequence */
uint32_t quern_vocab(const struct quern *q);

/* ---- asking ---- */

int quern_client_new(struct quern *q, struct quern_client **out, struct quern_error *e);
void quern_client_free(struct quern_client *c); /* cancels and forgets what is still running; NULL is fine */

/* What an answer must obey. Compiling a grammar takes a few milliseconds of quern_submit, at most a fifth of a second.
 */
enum quern_grammar {
    QUERN_ANY = 0,     /* nothing */
    QUERN_JSON_SCHEMA, /* grammar: a JSON schema */
    QUERN_JSON_OBJECT, /* any JSON object; grammar unused */
    QUERN_REGEX,       /* grammar: a regular expression; the whole answer matches */
    QUERN_EBNF,        /* grammar: in llama.cpp's dialect; the rule `root` */
    QUERN_CHOICE       /* grammar: a JSON array of strings; the answer is one of them */
};

/* What is asked. Exactly one of text, messages and ids. */
struct quern_ask {
    const char *text;     /* goes on from here; special tokens are recognised */
    const char *messages; /* JSON: a list of {"role", "content"}, through the model's chat template */
    const uint32_t *ids;
    size_t n_ids;

    uint32_t max_tokens; /* of an answer; 0 = as many as the context has room for */
    uint32_t n;          /* answers to the same question */
    float temperature;   /* 0 = always the likeliest */
    float top_p, min_p;
    uint32_t top_k; /* 0 = off */
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    const char *const *stops; /* the answer ends before any of these */
    size_t n_stops;
    int ignore_eos;
    int grammar_kind; /* enum quern_grammar */
    const char *grammar;
    uint32_t deadline_ms; /* 0 = none */
    void *user;           /* given back in every event */
};
struct quern_ask quern_ask_default(void); /* 256 tokens, one answer, temperature 0.7, top-p 0.9 */

/* *request (may be NULL) names it until its last event was taken. */
int quern_submit(
    struct quern_client *c, const struct quern_ask *ask, struct quern_request **request, struct quern_error *e);

/* It still has its last event, with reason "abort". */
void quern_cancel(struct quern_client *c, struct quern_request *request);

/* ---- receiving ---- */

/* Something new of one answer. Pointers are valid until the next call on this client. */
struct quern_event {
    struct quern_request *request;
    void *user;
    uint32_t choice;  /* which of the n answers */
    const char *text; /* UTF-8, whole characters; may be empty while a character or a stop is not yet decided */
    size_t text_bytes;
    const uint32_t *ids; /* the tokens since the last event of this answer */
    size_t n_ids;
    const char *finish; /* NULL while it goes on; else "stop", "length", "abort", "error"... */
    int is_last;        /* of the request: all its answers are finished, and `request` is gone */
};

/* The next event: 1; none within timeout_ms (-1 = wait for ever): 0, also when nothing is running; failure: -1, and the
 * client's requests have ended. */
int quern_poll(struct quern_client *c, int timeout_ms, struct quern_event *ev);

/* By callback: called for every event until nothing of this client is running, or it returns other than 0. */
int quern_run(struct quern_client *c, int (*on_event)(void *ctx, const struct quern_event *ev), void *ctx);

/* Readable when quern_poll(c, 0, ...) may have something: for a poll loop of your own. Call quern_poll until it gives 0
 * before you wait again. */
int quern_client_fd(struct quern_client *c);

/* ---- looking ---- */

struct quern_stats {
    uint32_t running, waiting;
    uint32_t kv_blocks, kv_blocks_free, kv_blocks_cached;
    uint64_t requests, steps, prompt_tokens, prompt_tokens_cached, output_tokens;
    double step_ms; /* of one step with one row, as measured */
};
void quern_stats(const struct quern *q, struct quern_stats *out);

#ifdef __cplusplus
}
#endif

#endif
