/* Inside api/: the server, a network thread, a call, and who does what with them.
 *
 * A call is one HTTP request that is being answered. It belongs to its network thread. Most calls live inside one
 * function: parse, answer, gone. A call that generates lives until the engine has given all its requests back; when its
 * client leaves earlier, req is NULL and what is still made goes nowhere.
 *
 * Threads: a struct net and everything it points at belongs to its thread, except what is said to be shared. */
#ifndef API_API_INT_H
#define API_API_INT_H

#include "api/api.h"
#include "api/grammars.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/mem.h"

#include <event2/event.h>
#include <event2/http.h>
#include <pthread.h>
#include <stdatomic.h>

#define CALL_ID_BYTES (REQ_ID_BYTES_MAX + 1)

/* ---- errors on the wire (errors.c) ---- */

/* What a client is told. The first one set stays, like struct error. */
struct api_error {
    int status;       /* 0 = none */
    const char *type; /* OpenAI's: "invalid_request_error" */
    const char *code; /* "context_length_exceeded"; NULL = none */
    char param[64];   /* the field; "" = none */
    char text[ERROR_TEXT_MAX];
    uint32_t retry_s; /* Retry-After; 0 = none */
};

/* All return false, so that a reader can say `return api_fail(...)`. */
bool api_fail(struct api_error *ae, int status, const char *param, const char *fmt, ...) PRINTF_LIKE(4, 5);
bool api_fail_code(struct api_error *ae, int status, const char *param, const char *code, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
/* From our own error: what may be shown is, what may not (paths, internals) becomes a fixed sentence. */
bool api_fail_err(struct api_error *ae, const struct error *e, const char *param);
int api_status_of(enum err code);
void api_error_json(const struct api_error *ae, struct buf *out); /* {"error":{...}} */

/* ---- keys and tenants (keys.c, auth.c) ---- */

struct tenant {
    char name[TENANT_NAME_MAX];
    uint32_t index; /* in the scheduler; 0 = the common one */
    double weight;
    int32_t priority;
    bool has_priority;
    uint64_t requests_per_min, tokens_per_min; /* 0 = no limit */
    char models[TENANT_MODELS_MAX][MODEL_NAME_BYTES_MAX];
    uint32_t n_models; /* 0 = all */
    /* What is left, refilled with time; under keys->lock. */
    double requests_left, tokens_left;
    uint64_t refilled_ns;
};

struct key {
    unsigned char digest[SHA256_BYTES];
    uint32_t i_tenant; /* in keys->tenants */
};

/* Shared by the network threads under lock; a reload replaces rows in place. */
struct keys {
    pthread_mutex_t lock;
    struct key *rows;
    size_t n;
    struct tenant tenants[TENANTS_MAX]; /* [0] is the common one; a tenant keeps its place for ever */
    uint32_t n_tenants;
    _Atomic bool required; /* there are keys */
};

enum err keys_init(struct keys *k, struct error *e) MUST_CHECK;
void keys_fini(struct keys *k);
/* Replace all rows: those of the command line, then those of the file (NULL: none). */
enum err keys_load(
    struct keys *k, const char *const *plain, size_t n_plain, const char *path, struct error *e) MUST_CHECK;
enum err keys_parse(
    struct keys *k, const char *const *plain, size_t n_plain, struct str text, struct error *e) MUST_CHECK;
/* The tenant's index for a key, constant in time for a given number of rows; -1 when there is no such key. */
int keys_find(struct keys *k, struct str key);

/* Take n tokens and one request from the tenant's budget; false sets ae (429). Settle gives back what was not used. */
bool tenant_take(struct keys *k, uint32_t tenant, uint64_t tokens, uint64_t now_ns, struct api_error *ae);
void tenant_settle(struct keys *k, uint32_t tenant, uint64_t taken, uint64_t used);
bool tenant_may_use(struct keys *k, uint32_t tenant, struct str model);
bool tenant_priority(struct keys *k, uint32_t tenant, int32_t *out); /* false: it has none */
/* How many tenants there are. weight may be NULL. */
uint32_t tenant_name(struct keys *k, uint32_t tenant, char out[TENANT_NAME_MAX], double *weight);

/* ---- the server ---- */

enum server_phase { PHASE_STARTING, PHASE_READY, PHASE_DRAINING, PHASE_CLOSING };

struct tool_dialect; /* text/tool_syntax.h */
struct conn;         /* guard.c: what is known about the bytes of a connection, by descriptor */
struct replay;

/* Bodies that wait for the thread that parses them. */
struct bodies {
    pthread_t thread;
    bool has_thread, stop;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct body_job *first; /* the queue */
    uint32_t n;
};

struct server {
    struct server_options o;
    struct bodies bodies;
    char url[PATH_BYTES_MAX + 16];
    int listeners[HTTP_LISTENERS_MAX];
    uint32_t n_listeners;
    bool owns_unix_path, is_local; /* is_local: only this machine can connect */
    struct tls *tls;               /* NULL = plain */
    struct net *nets;
    uint32_t n_nets;
    struct conn *conns; /* by descriptor */
    uint32_t n_conns;

    _Atomic int phase; /* enum server_phase */
    _Atomic(const char *) progress;
    _Atomic uint32_t percent;
    _Atomic uint32_t n_calls;
    uint64_t t_open;

    struct keys keys;

    /* Set once by server_attach, before has_model. */
    _Atomic bool has_model;
    struct serving *serving;
    char names[8][MODEL_NAME_BYTES_MAX];
    uint32_t n_names;
    char fingerprint[64];
    int64_t created_s;
    struct tool_dialect *dialect;    /* how the model writes calls and reasoning */
    uint32_t think_begin, think_end; /* ids of its marks around reasoning; TOK_NONE = no such tokens */
    struct str think_head;           /* and the text that stands before the first, behind the token think_mark */
    uint32_t think_mark;
    struct grammars *grammars; /* NULL: the model has no tokenizer */
    uint32_t token_bytes_max;  /* of the longest token: how few tokens a text can have */
    _Atomic uint32_t n_attached;

    /* Resumable streams, shared (replay.c). */
    pthread_mutex_t replays_lock;
    struct replay *replays;
    uint32_t n_replays;
};

/* One network thread. */
struct net {
    struct server *s;
    uint32_t index;
    pthread_t thread;
    bool has_thread, has_base;
    struct event_base *base;
    struct evhttp *http;
    struct event *tick, *nudge, *mail; /* once a second; nudged by the owner; notices of the engine */
    int nudge_fd;
    struct engine_client *client; /* NULL until attached */
    struct tok_ctx *tok_ctx;
    struct chat_output chat;
    struct call *calls;      /* all of this thread */
    struct grammars_box box; /* grammars that its calls waited for */
    struct body_job *bodies; /* large bodies that were parsed for it; under the lock of bodies */
    uint64_t id_seed, n_ids;
    struct buf scratch; /* for one event or one small answer at a time */
    struct buf text;    /* of one event */
    uint64_t conn_serial;
    struct evconnlistener *doors[HTTP_LISTENERS_MAX]; /* evhttp's */
    uint32_t n_doors;
    bool has_worked; /* since memory was last given back */
    bool is_full;    /* no descriptor was left for a connection: the doors are shut until the next tick */

    /* Numbers, shared: written here, read by whoever answers /metrics. */
    _Atomic uint64_t n_requests[6]; /* by status / 100 */
    _Atomic uint64_t n_cut;         /* connections closed by the guard */
    _Atomic uint64_t n_left;        /* clients that left before their answer was whole */
    _Atomic uint64_t bytes_out;
};

enum err net_init(struct net *n, struct server *s, uint32_t index, struct error *e) MUST_CHECK;
enum err net_start(struct net *n, struct error *e) MUST_CHECK;
void net_nudge(struct net *n); /* any thread: look at the server's phase */
void net_fini(struct net *n);  /* joins */
/* Its own thread: a bite of the engine's notices. Called wherever evhttp goes through a storm in one go, between two
 * connections or two requests, so that running streams do not wait for its end. */
void net_take_mail(struct net *n);

/* ---- a call (call.c) ---- */

enum method { METHOD_GET = 1, METHOD_POST = 2, METHOD_DELETE = 4 };

struct call;
typedef void call_fn(struct call *c);

struct route {
    enum method method;
    const char *path; /* exact; or with one "{id}" as its last part */
    call_fn *run;
    bool open;        /* needs no key */
    bool needs_model; /* 503 until there is one */
    bool works;       /* 503 while the server drains */
    bool messages;    /* errors in the shape of the Messages API */
    bool quiet;       /* probes and scrapes: in the access log only at level debug */
    const char *summary;
    const char *request_schema; /* of #/components/schemas, or NULL */
};
const struct route *routes_table(size_t *n);

struct call {
    struct call *prev, *next;
    struct net *net;
    struct server *s;
    struct evhttp_request *req; /* NULL: answered, or the client has left */
    struct event *closed;       /* fires when the client closes its side */
    const struct route *route;
    char id[CALL_ID_BYTES];
    struct str path_id; /* what stands for {id}; borrowed from the request */
    struct str query;   /* behind '?', as sent */
    uint32_t tenant;
    uint64_t t_start, t_last_write;
    uint64_t bytes_out;
    int status;
    bool is_streaming; /* headers are sent */
    bool is_flowing;   /* and a first event behind them; on_drained is called whenever evhttp's buffer has emptied */
    bool is_clear;     /* and evhttp's buffer is empty: events may go straight to fd */
    bool is_chunked;
    int fd;
    bool is_head;
    bool left;
    struct body_job *body;    /* its body is being parsed elsewhere; NULL = not */
    json_t *doc;              /* and was; owned */
    struct generation *gen;   /* what it generates, or NULL */
    struct reader *reader;    /* of a replay, or NULL */
    struct grammars_ask *ask; /* the grammar that it waits for, or NULL */
};

void call_open(struct net *n, struct evhttp_request *req); /* evhttp's callback: audit, route, run */
void call_watch(struct call *c);                           /* see the client leave from now on */
void call_header(struct call *c, const char *name, const char *value);
/* Whole answers; each ends the call for its client. call_done must still be called for calls that were kept. */
void call_reply(struct call *c, int status, const char *type, struct str body);
void call_reply_json(struct call *c, int status, struct str body);
void call_reply_buf(struct call *c, struct buf *b); /* 200 JSON, or 500 when b failed */
void call_reply_error(struct call *c, const struct api_error *ae);
/* A stream: start once, then writes, then end. */
void call_stream_start(struct call *c, const char *type);
void call_stream_write(struct call *c, struct str bytes);
void call_stream_end(struct call *c);
size_t call_unsent(const struct call *c);
/* Frees. A route that leaves without gen and reader is done; the others call it when they are. */
void call_done(struct call *c);
void call_maybe_done(struct call *c); /* unless it was kept */
void call_abandon(struct call *c);    /* as if its client had left; evhttp is about to be freed */
struct str call_body(struct call *c); /* the whole body, contiguous, borrowed */
bool call_json(struct call *c, json_t **out, struct api_error *ae); /* the body as an object; caller owns */
struct str call_query(const struct call *c, const char *name, char *out, size_t cap); /* decoded; p NULL = absent */

/* ---- a call that needs a grammar (call_grammar.c) ---- */

struct fields;
/* The grammar that f asks for becomes f->grammar. *waits: it has to be compiled; the route returns without an answer
 * and is run again when it is there. False: ae names the field and what is wrong. */
bool call_grammar(struct call *c, struct fields *f, bool *waits, struct api_error *ae);
void call_forget_grammar(struct call *c); /* its client has left */
void calls_go_on(struct net *n);          /* those whose grammar is there */

/* ---- large bodies (bodies.c) ---- */

bool body_parse(struct str body, json_t **out, struct api_error *ae); /* call.c: an object; caller owns */
enum err bodies_start(struct bodies *b, struct error *e) MUST_CHECK;
void bodies_stop(struct bodies *b); /* joins; nothing is parsed any more */
void bodies_free(struct bodies *b, struct net *nets, uint32_t n_nets);
bool body_is_large(const struct call *c);
bool body_send(struct call *c, struct api_error *ae); /* the call is kept; its route runs when the body is parsed */
void body_forget(struct call *c);                     /* its client left */
void bodies_go_on(struct net *n);                     /* run the routes of those that are parsed */

/* ---- the request as it came (guard.c, http_in.c) ---- */

enum err guard_init(struct server *s, struct error *e) MUST_CHECK;
struct bufferevent *guard_bufferevent(struct event_base *base, void *net); /* evhttp's bevcb */
void guard_adopt(struct net *n); /* the calling thread runs this loop from now on */
struct net *guard_net(void);     /* whose loop the calling thread runs */
/* What the guard saw in the head of the request that is now whole; resets for the next one. NULL = nothing wrong.
 * has_more: bytes of a next request are already there. */
const char *guard_verdict(struct net *n, struct evhttp_request *req, bool *has_more);

/* Everything about the head that we refuse; on false the connection is to be closed after the answer. */
bool http_audit(struct call *c, struct evhttp_request *req, struct api_error *ae);
bool http_check_host(struct call *c, struct evhttp_request *req, struct api_error *ae);
/* Adds CORS headers when the origin is allowed; false when the origin may not ask. */
bool http_check_origin(struct call *c, struct evhttp_request *req, struct api_error *ae);
bool http_authenticate(struct call *c, struct evhttp_request *req, struct api_error *ae);

/* ---- TLS and sockets (tls.c, listen.c) ---- */

struct tls;
enum err tls_new(const char *cert, const char *key, struct tls **out, struct error *e) MUST_CHECK;
enum err tls_reload(struct tls *t, struct error *e) MUST_CHECK;
struct bufferevent *tls_bufferevent(struct tls *t, struct event_base *base);
void tls_free(struct tls *t);
enum err listen_open(struct server *s, struct error *e) MUST_CHECK;
void listen_close(struct server *s);

/* ---- generating (generate.c and what it uses) ---- */

void generation_notice(struct request *r, bool is_final);
void generation_prefetch(const struct request *r, uint32_t depth); /* 0, 1, 2: each reads what the one before fetched */
void generation_client_left(struct generation *g);
void generation_tick(struct generation *g, uint64_t now_ns);
void generation_drained(struct generation *g);

/* ---- resumable streams (replay.c) ---- */

struct replay *replay_new(struct server *s, const char *id, uint32_t tenant); /* NULL: none is free */
void replay_add(struct replay *r, struct str event);                          /* one event without its id line */
void replay_end(struct replay *r, uint64_t now_ns);
bool replay_is_wanted(struct replay *r, uint64_t now_ns); /* somebody reads it, or did not long ago */
uint64_t replay_count(struct replay *r);                  /* events so far: the id of the next one */
struct str replay_events(const struct replay *r);         /* their bytes, for its maker */
void replay_release(struct replay *r);                    /* by its maker */
void replays_sweep(struct server *s, uint64_t now_ns);
void replays_free(struct server *s);
void reader_tick(struct reader *r);
void reader_client_left(struct reader *r);

/* ---- routes ---- */

const char *health_name(struct server *s);                      /* "ready", "starting", "draining", "failed", "stuck" */
bool health_has_failed(struct server *s, struct api_error *ae); /* the engine; then ae says so */

call_fn route_chat, route_chat_render, route_messages, route_messages_count, route_completions, route_embeddings,
    route_models, route_model, route_tokenize, route_detokenize, route_health, route_livez, route_readyz,
    route_startupz, route_version, route_metrics, route_stats, route_openapi, route_page, route_stream;

/* The page's files, embedded by CMake (page_files.c is generated from web/). */
struct page_file {
    const char *path; /* "/app.js" */
    const unsigned char *bytes;
    size_t n;
};
extern const struct page_file page_files[];
extern const size_t n_page_files;
const struct page_file *page_find(struct str path);
void page_reply(struct call *c, struct evhttp_request *req, const struct page_file *f);

#endif
