/* api: the HTTP server. Owns the listening sockets, the network threads, connections, keys and tenants, and every byte
 * that goes over the wire; reaches the model only through an engine's mailboxes (engine/engine.h) and the immutable
 * parts of a serving (tokenizer, templates, configuration).
 *
 * A server listens before there is a model: probes are answered from the first moment, everything else is told 503 with
 * the phase of the start. server_attach gives it the model; server_drain takes no new work while streams finish.
 *
 *   network threads   one event loop, one engine client and one tokenizer context each; a connection lives and dies on
 *                     the thread that accepted it
 *   route.c           the one table of paths; /openapi.json is made from it
 *   generate.c        a request for text from its parsed fields to its last byte
 *   guard.c, http_in.c  what evhttp lets through and we do not
 *
 * Threads: one thread opens, attaches, drains, reloads and closes; server_progress and the questions any thread. */
#ifndef API_API_H
#define API_API_H

#include "base/base.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/serving.h"

struct server;

/* Strings are borrowed for the life of the server. */
struct server_options {
    const char *host;        /* a name or an address; NULL = 127.0.0.1 */
    uint16_t port;           /* 0 = any free one, see server_url */
    const char *unix_path;   /* a Unix socket instead of TCP; NULL = none */
    bool take_inherited;     /* use the sockets that a supervisor passed (LISTEN_FDS) when there are any */
    uint32_t threads;        /* network threads; 0 = two, one on a machine with one core */
    const char *cert_path;   /* PEM; with key_path: TLS. NULL = plain */
    const char *key_path;    /* PEM */
    const char *const *keys; /* API keys as given; all of one tenant, the common one */
    size_t n_keys;
    const char *key_file;       /* hashed keys with tenants (keys.c); read again by server_reload. NULL = none */
    const char *const *origins; /* browsers' pages that may ask from elsewhere (CORS); "*" = all */
    size_t n_origins;
    const char *const *hosts; /* further names of this server, for the check against DNS rebinding */
    size_t n_hosts;
    uint64_t body_max;                             /* bytes of a request; 0 = HTTP_BODY_BYTES_DEFAULT */
    uint32_t connections_max;                      /* 0 = HTTP_CONNECTIONS_DEFAULT */
    uint32_t idle_s;                               /* that a connection may lie silent; 0 = HTTP_IDLE_S */
    uint32_t stuck_s;                              /* without progress of the engine, until probes say so */
    uint32_t ping_s;                               /* comment lines on a silent stream; 0 = none */
    const char *tool_call_parser;                  /* a row of text/tool_syntax.h, "auto" or "none"; NULL = auto */
    const char *reasoning_parser;                  /* the same */
    enum grammar_whitespace structured_whitespace; /* of JSON that obeys a schema, unless a request says otherwise */
    bool no_page;                                  /* do not serve the web page */
    bool access_log;                               /* one line per request */
    struct log *log;                               /* borrowed; NULL = none */
    struct clock *clock;                           /* borrowed; the same as the engine's */
};

/* Listens and starts the threads. */
enum err server_open(const struct server_options *o, struct server **out, struct error *e) MUST_CHECK;
const char *server_url(const struct server *s); /* "http://127.0.0.1:8000", "unix:/run/quern.sock" */

/* What the start is doing: "loading weights", 40. The phase is a string that stays. */
void server_progress(struct server *s, const char *phase, uint32_t percent);

/* What the model is called on the wire, the first name in answers; all of them are accepted. */
struct server_model {
    struct serving *serving; /* borrowed until server_close */
    const char *const *names;
    size_t n_names;
};
enum err server_attach(struct server *s, const struct server_model *m, struct error *e) MUST_CHECK;

/* From now on new work is told 503; what runs goes on. */
void server_drain(struct server *s);

/* Answers being made now. */
uint32_t server_busy(const struct server *s);

/* Read the key file and the certificate again. On an error the old ones stay. */
enum err server_reload(struct server *s, struct error *e) MUST_CHECK;

/* Close everything and join the threads. The engine must have ended (engine_abort or STOPPED), or what still runs is
 * waited for. NULL is fine. */
void server_close(struct server *s);

/* Tell a supervisor (NOTIFY_SOCKET) how it stands: "READY=1", "STOPPING=1". Nothing happens when there is none. */
void server_notify(const char *state);

#endif
