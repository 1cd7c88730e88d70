/* One HTTP request being answered; see api_int.h.
 *
 * Who frees what. evhttp owns the evhttp_request as long as it hangs on its connection. It lets go of it in one case:
 * the connection broke while we were still answering; then the request is ours to free, and evhttp says so by having
 * taken its connection away. A client that closes its side is seen by an event of our own on the descriptor
 * (EV_CLOSED), because evhttp does not read while we answer. */
#include "api/api_int.h"
#include "api/messages.h"

#include "base/rng.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http_struct.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define DIRECT_BYTES_MAX 4096 /* of an event that goes straight into its socket: below what four digits of hex say */

/* ---- life ---- */

static void make_id(struct net *n, char out[CALL_ID_BYTES])
{
    const uint64_t i = n->n_ids++;
    const struct rng_key a = {.seed = n->id_seed, .index = i, .choice = n->index, .purpose = RNG_SAMPLE};
    const struct rng_key b = {.seed = n->id_seed, .index = i, .choice = n->index, .purpose = RNG_DUMMY};
    snprintf(out, CALL_ID_BYTES, "%016llx%08llx", (unsigned long long)rng_u64(a),
        (unsigned long long)(rng_u64(b) & 0xffffffff));
}

static bool is_id(struct str s)
{
    if (s.n == 0 || s.n > REQ_ID_BYTES_MAX)
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= 'a' && s.p[i] <= 'z') || (s.p[i] >= 'A' && s.p[i] <= 'Z') ||
                (s.p[i] >= '0' && s.p[i] <= '9') || s.p[i] == '-' || s.p[i] == '_' || s.p[i] == '.'))
            return false;
    return true;
}

static struct call *call_new(struct net *n, struct evhttp_request *req)
{
    struct call *c = mem_zalloc(sizeof *c);
    if (c == NULL)
        return NULL;
    c->net = n;
    c->s = n->s;
    c->req = req;
    c->t_start = c->t_last_write = clock_now(n->s->o.clock);
    const char *id = evhttp_find_header(evhttp_request_get_input_headers(req), "X-Request-Id");
    if (id != NULL && is_id(str_of(id)))
        snprintf(c->id, sizeof c->id, "%s", id);
    else
        make_id(n, c->id);
    c->next = n->calls;
    if (c->next != NULL)
        c->next->prev = c;
    n->calls = c;
    atomic_fetch_add_explicit(&n->s->n_calls, 1, memory_order_relaxed);
    return c;
}

static void unwatch(struct call *c)
{
    if (c->closed != NULL) {
        event_free(c->closed);
        c->closed = NULL;
    }
    struct evhttp_connection *con = c->req != NULL ? evhttp_request_get_connection(c->req) : NULL;
    if (con != NULL)
        evhttp_connection_set_closecb(con, NULL, NULL);
}

static void log_access(const struct call *c)
{
    const bool quiet = c->route != NULL && c->route->quiet && c->status < 400;
    const enum log_level level = quiet ? LOG_DEBUG : LOG_INFO;
    char tenant[TENANT_NAME_MAX];
    if (!c->s->o.access_log || c->s->o.log == NULL || !log_has(c->s->o.log, level, "http"))
        return;
    tenant_name(&c->s->keys, c->tenant, tenant, NULL);
    LOG(c->s->o.log, level, "http", "request", log_cstr("id", c->id),
        log_cstr("path", c->route != NULL ? c->route->path : "?"), log_u64("status", (uint64_t)c->status),
        log_f64("ms", (double)(clock_now(c->s->o.clock) - c->t_start) / 1e6), log_u64("bytes", c->bytes_out),
        log_cstr("tenant", tenant), log_bool("left", c->left));
}

void call_done(struct call *c)
{
    struct net *n = c->net;
    assert(c->gen == NULL && c->reader == NULL && c->ask == NULL);
    if (c->req != NULL) {
        const struct api_error ae = {.status = 500, .type = "server_error", .text = "the server gave no answer"};
        call_reply_error(c, &ae);
    }
    unwatch(c);
    log_access(c);
    atomic_fetch_add_explicit(
        &n->n_requests[c->status >= 100 && c->status < 600 ? c->status / 100 : 0], 1, memory_order_relaxed);
    n->has_worked |= c->route == NULL || !c->route->quiet;
    if (c->left)
        atomic_fetch_add_explicit(&n->n_left, 1, memory_order_relaxed);
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        n->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    atomic_fetch_sub_explicit(&n->s->n_calls, 1, memory_order_release);
    json_decref(c->doc);
    mem_free(c);
}

/* ---- clients that leave ---- */

static void client_left(struct call *c)
{
    c->req = NULL;
    c->left = true;
    if (c->status == 0)
        c->status = 499; /* nobody is told; it stands in the log and the numbers */
    if (c->closed != NULL)
        event_free(c->closed);
    c->closed = NULL;
    if (c->gen != NULL)
        generation_client_left(c->gen);
    else if (c->reader != NULL)
        reader_client_left(c->reader);
    else if (c->ask != NULL) {
        call_forget_grammar(c);
        call_done(c);
    } else if (c->body != NULL) {
        body_forget(c);
        call_done(c);
    }
}

void call_abandon(struct call *c)
{
    unwatch(c);
    client_left(c); /* evhttp still owns the request */
}

/* evhttp found the connection broken. */
static void on_connection_gone(struct evhttp_connection *con, void *arg)
{
    struct call *c = arg;
    struct evhttp_request *req = c->req;
    (void)con;
    const bool is_ours = req != NULL && evhttp_request_get_connection(req) == NULL;
    client_left(c);
    if (is_ours)
        evhttp_request_free(req);
}

/* The client closed its side. */
static void on_closed(evutil_socket_t fd, short what, void *arg)
{
    struct call *c = arg;
    (void)fd;
    (void)what;
    struct evhttp_connection *con = c->req != NULL ? evhttp_request_get_connection(c->req) : NULL;
    if (con == NULL)
        return;
    evhttp_connection_set_closecb(con, NULL, NULL);
    client_left(c); /* c may be gone now */
    evhttp_connection_free(con);
}

void call_watch(struct call *c)
{
    struct evhttp_connection *con = c->req != NULL ? evhttp_request_get_connection(c->req) : NULL;
    if (con == NULL || c->closed != NULL)
        return;
    evhttp_connection_set_closecb(con, on_connection_gone, c);
    const evutil_socket_t fd = bufferevent_getfd(evhttp_connection_get_bufferevent(con));
    c->closed = event_new(c->net->base, fd, EV_CLOSED | EV_PERSIST, on_closed, c);
    if (c->closed != NULL)
        event_add(c->closed, NULL); /* without it the next write finds out */
}

/* ---- answers ---- */

void call_header(struct call *c, const char *name, const char *value)
{
    if (c->req != NULL)
        evhttp_add_header(evhttp_request_get_output_headers(c->req), name, value);
}

static bool is_old(const struct evhttp_request *req)
{
    return req->major < 1 || (req->major == 1 && req->minor < 1);
}

static void common_headers(struct call *c)
{
    call_header(c, "x-request-id", c->id);
    call_header(c, "X-Content-Type-Options", "nosniff");
}

void call_reply(struct call *c, int status, const char *type, struct str body)
{
    c->status = status;
    if (c->req == NULL)
        return;
    struct evhttp_request *req = c->req;
    struct evbuffer *out = evbuffer_new();
    const bool whole = out != NULL && (body.n == 0 || evbuffer_add(out, body.p, body.n) == 0);
    unwatch(c);
    common_headers(c);
    if (type != NULL && body.n > 0)
        call_header(c, "Content-Type", type);
    c->req = NULL;
    c->bytes_out += body.n;
    atomic_fetch_add_explicit(&c->net->bytes_out, body.n, memory_order_relaxed);
    if (whole)
        evhttp_send_reply(req, status, NULL, out);
    else
        evhttp_send_reply(req, 503, NULL, NULL);
    if (out != NULL)
        evbuffer_free(out);
}

void call_reply_json(struct call *c, int status, struct str body)
{
    call_reply(c, status, "application/json", body);
}

void call_reply_buf(struct call *c, struct buf *b)
{
    struct error e = {0};
    if (buf_check(b, "the answer", &e) == OK) {
        call_reply_json(c, 200, buf_str(b));
        return;
    }
    struct api_error ae = {0};
    if (e.code == ERR_LIMIT)
        api_fail(&ae, 500, NULL, "the answer is larger than %llu bytes", (unsigned long long)b->max);
    else
        api_fail_err(&ae, &e, NULL);
    call_reply_error(c, &ae);
}

void call_reply_error(struct call *c, const struct api_error *ae)
{
    struct buf b;
    buf_init(&b, 8 * ERROR_TEXT_MAX);
    if (c->route != NULL && c->route->messages)
        messages_error_json(ae, &b);
    else
        api_error_json(ae, &b);
    if (ae->retry_s > 0) {
        char value[24];
        snprintf(value, sizeof value, "%u", ae->retry_s);
        call_header(c, "Retry-After", value);
        call_header(c, "x-should-retry", "true");
    }
    if (ae->status == 401)
        call_header(c, "WWW-Authenticate", "Bearer");
    if (buf_check(&b, "the error", NULL) == OK)
        call_reply_json(c, ae->status, buf_str(&b));
    else
        call_reply(c, ae->status, NULL, STR(""));
    buf_fini(&b);
}

/* ---- streams ---- */

static void on_drained(struct evhttp_connection *con, void *arg)
{
    struct call *c = arg;
    struct bufferevent *bev = evhttp_connection_get_bufferevent(con);
    c->is_clear = c->s->tls == NULL && evbuffer_get_length(bufferevent_get_output(bev)) == 0;
    c->fd = bufferevent_getfd(bev);
    if (c->gen != NULL)
        generation_drained(c->gen);
}

void call_stream_start(struct call *c, const char *type)
{
    c->is_streaming = true;
    c->status = 200;
    if (c->req == NULL)
        return;
    common_headers(c);
    call_header(c, "Content-Type", type);
    call_header(c, "Cache-Control", "no-cache");
    call_header(c, "X-Accel-Buffering", "no");
    if (is_old(c->req))
        call_header(c, "Connection", "close"); /* HTTP/1.0 has no chunks: the end is the end of the connection */
    evhttp_send_reply_start(c->req, 200, NULL);
    c->is_chunked = c->req->chunked;
}

/* What evhttp has in its buffer goes out now. It would do so itself, but not before the loop has been through
 * everything that is ready, and in a storm of requests that takes long. */
static void flush(struct call *c)
{
    struct evhttp_connection *con = evhttp_request_get_connection(c->req);
    struct bufferevent *bev = con != NULL ? evhttp_connection_get_bufferevent(con) : NULL;
    if (bev == NULL || c->s->tls != NULL)
        return;
    struct evbuffer *out = bufferevent_get_output(bev);
    c->fd = bufferevent_getfd(bev);
    evbuffer_unfreeze(out, 1); /* as the bufferevent does for its own writes */
    (void)evbuffer_write(out, c->fd);
    evbuffer_freeze(out, 1);
    c->is_clear = evbuffer_get_length(out) == 0; /* else the loop goes on, and finds what is broken */
}

/* A chunk in one piece: its size in hex, the bytes, the ends of both lines. */
static size_t frame_chunk(char *to, struct str bytes)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (int shift = 12; shift >= 0; shift -= 4)
        to[n++] = digits[bytes.n >> shift & 15];
    to[n++] = '\r';
    to[n++] = '\n';
    memcpy(to + n, bytes.p, bytes.n);
    n += bytes.n;
    to[n++] = '\r';
    to[n++] = '\n';
    return n;
}

/* Straight into the socket: an event then costs one system call and touches nothing of evhttp. Only what is small, and
 * when nothing waits before it. What the socket does not take at once waits in evhttp's buffer and goes on as usual.
 * False: nothing was sent. */
static bool send_at_once(struct call *c, struct str bytes)
{
    char chunk[DIRECT_BYTES_MAX + 8];
    if (!c->is_clear || bytes.n > DIRECT_BYTES_MAX)
        return false;
    const size_t n = c->is_chunked ? frame_chunk(chunk, bytes) : bytes.n;
    const char *from = c->is_chunked ? chunk : bytes.p;
    const ssize_t sent = send(c->fd, from, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0)
        return false;
    if ((size_t)sent < n) {
        c->is_clear = false;
        (void)bufferevent_write(
            evhttp_connection_get_bufferevent(evhttp_request_get_connection(c->req)), from + sent, n - (size_t)sent);
    }
    return true;
}

void call_stream_write(struct call *c, struct str bytes)
{
    c->t_last_write = clock_now(c->s->o.clock);
    if (c->req == NULL || bytes.n == 0)
        return;
    c->bytes_out += bytes.n;
    atomic_fetch_add_explicit(&c->net->bytes_out, bytes.n, memory_order_relaxed);
    if (send_at_once(c, bytes))
        return;
    c->is_clear = false;
    struct evbuffer *out = evbuffer_new();
    if (out == NULL || evbuffer_add(out, bytes.p, bytes.n) != 0) {
        LOG(c->s->o.log, LOG_WARN, "http", "no memory for an event", log_cstr("id", c->id));
        if (out != NULL)
            evbuffer_free(out);
        return;
    }
    evhttp_send_reply_chunk_with_cb(c->req, out, on_drained, c);
    evbuffer_free(out);
    if (!c->is_flowing) { /* the first event, and the head before it */
        c->is_flowing = true;
        flush(c);
    }
}

void call_stream_end(struct call *c)
{
    if (c->req == NULL)
        return;
    struct evhttp_request *req = c->req;
    unwatch(c);
    c->req = NULL;
    evhttp_send_reply_end(req);
}

size_t call_unsent(const struct call *c)
{
    struct evhttp_connection *con = c->req != NULL && !c->is_clear ? evhttp_request_get_connection(c->req) : NULL;
    return con != NULL ? evbuffer_get_length(bufferevent_get_output(evhttp_connection_get_bufferevent(con))) : 0;
}

/* ---- what came ---- */

struct str call_body(struct call *c)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(c->req);
    const size_t n = evbuffer_get_length(in);
    if (n == 0)
        return STR("");
    const char *p = (const char *)evbuffer_pullup(in, -1);
    return p != NULL ? (struct str){p, n} : (struct str){NULL, 0};
}

/* Values of a document, counted over the raw bytes: a small body can become a large tree. */
static bool has_too_many_values(struct str text)
{
    uint64_t n = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.n; i++) {
        const char ch = text.p[i];
        if (in_string) {
            if (ch == '\\')
                i++;
            else if (ch == '"')
                in_string = false;
        } else if (ch == '"')
            in_string = true;
        else if (ch == ',' || ch == '[' || ch == '{')
            n++;
    }
    return n > REQ_VALUES_MAX;
}

bool call_json(struct call *c, json_t **out, struct api_error *ae)
{
    if (c->doc != NULL) {
        *out = json_incref(c->doc);
        return true;
    }
    const struct str body = call_body(c);
    *out = NULL;
    if (body.p == NULL)
        return api_fail_err(ae, &(struct error){.code = ERR_NOMEM}, NULL);
    return body_parse(body, out, ae);
}

bool body_parse(struct str body, json_t **out, struct api_error *ae)
{
    struct error e = {0};
    if (body.n == 0)
        return api_fail(ae, 400, NULL, "the body is empty; it must be a JSON object");
    if (has_too_many_values(body))
        return api_fail(ae, 400, NULL, "the body holds more than %d JSON values", REQ_VALUES_MAX);
    if (json_parse(body, out, &e) != OK)
        return api_fail_err(ae, &e, NULL);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return api_fail(ae, 400, NULL, "the body must be a JSON object");
    }
    return true;
}

static int hex_digit(char ch)
{
    return ch >= '0' && ch <= '9'   ? ch - '0'
           : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
           : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                    : -1;
}

struct str call_query(const struct call *c, const char *name, char *out, size_t cap)
{
    const size_t n_name = strlen(name);
    for (size_t at = 0; at < c->query.n;) {
        size_t end = at;
        while (end < c->query.n && c->query.p[end] != '&')
            end++;
        const char *p = c->query.p + at;
        if (end - at > n_name && memcmp(p, name, n_name) == 0 && p[n_name] == '=') {
            size_t n = 0;
            for (size_t i = at + n_name + 1; i < end && n + 1 < cap; i++) {
                const char ch = c->query.p[i];
                const int hi = ch == '%' && i + 2 < end ? hex_digit(c->query.p[i + 1]) : -1;
                const int lo = hi >= 0 ? hex_digit(c->query.p[i + 2]) : -1;
                out[n++] = lo >= 0 ? (char)(hi * 16 + lo) : ch;
                i += lo >= 0 ? 2 : 0;
            }
            out[n] = '\0';
            return (struct str){out, n};
        }
        at = end + 1;
    }
    return (struct str){NULL, 0};
}

/* ---- dispatch ---- */

static enum method method_of(struct evhttp_request *req)
{
    switch (evhttp_request_get_command(req)) {
    case EVHTTP_REQ_GET:
    case EVHTTP_REQ_HEAD: return METHOD_GET;
    case EVHTTP_REQ_POST: return METHOD_POST;
    case EVHTTP_REQ_DELETE: return METHOD_DELETE;
    default: return 0;
    }
}

static bool path_matches(const struct route *r, struct str path, struct str *id)
{
    const char *brace = strchr(r->path, '{');
    if (brace == NULL)
        return str_is(path, r->path);
    const size_t n = (size_t)(brace - r->path);
    if (path.n <= n || memcmp(path.p, r->path, n) != 0)
        return false;
    *id = (struct str){path.p + n, path.n - n};
    return true;
}

/* The route of a path and method. 404 and 405 are told only to those who may ask at all. */
static bool find_route(struct call *c, struct str path, enum method m, struct api_error *ae)
{
    size_t n;
    bool path_known = false;
    const struct route *rows = routes_table(&n);
    for (size_t i = 0; i < n; i++) {
        struct str id = {0};
        if (!path_matches(&rows[i], path, &id))
            continue;
        path_known = true;
        if (rows[i].method == m) {
            c->route = &rows[i];
            c->path_id = id;
            return true;
        }
    }
    char shown[128];
    str_show(path, shown, sizeof shown);
    if (path_known)
        return api_fail(ae, 405, NULL, "%s does not take this method", shown);
    return api_fail(ae, 404, NULL, "there is no %s here", shown);
}

static bool check_phase(struct call *c, struct api_error *ae)
{
    struct server *s = c->s;
    const int phase = atomic_load_explicit(&s->phase, memory_order_acquire);
    if (!c->route->needs_model)
        return true;
    if (phase == PHASE_STARTING || c->net->client == NULL) {
        api_fail(ae, 503, NULL, "the server is starting: %s", atomic_load(&s->progress));
        ae->retry_s = 1;
        return false;
    }
    if (phase != PHASE_READY && c->route->works) {
        api_fail(ae, 503, NULL, "the server is stopping");
        ae->retry_s = 5;
        return false;
    }
    return !c->route->works || !health_has_failed(s, ae);
}

static void preflight(struct call *c)
{
    call_header(c, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    call_header(c, "Access-Control-Allow-Headers", "authorization, content-type, x-request-id");
    call_header(c, "Access-Control-Max-Age", "600");
    call_reply(c, 204, NULL, STR(""));
}

static void run_route(struct call *c, struct evhttp_request *req)
{
    struct api_error ae = {0};
    const struct str uri = str_of(evhttp_request_get_uri(req));
    const char *q = memchr(uri.p, '?', uri.n);
    const struct str path = {uri.p, q != NULL ? (size_t)(q - uri.p) : uri.n};
    const bool is_options = evhttp_request_get_command(req) == EVHTTP_REQ_OPTIONS;
    c->query = q != NULL ? (struct str){q + 1, uri.n - path.n - 1} : (struct str){0};
    c->is_head = evhttp_request_get_command(req) == EVHTTP_REQ_HEAD;
    if (!http_check_host(c, req, &ae) || !http_check_origin(c, req, &ae)) {
        call_reply_error(c, &ae);
        return;
    }
    if (is_options) {
        preflight(c);
        return;
    }
    const struct page_file *file = method_of(req) == METHOD_GET && !c->s->o.no_page ? page_find(path) : NULL;
    if (file != NULL) {
        page_reply(c, req, file);
        return;
    }
    struct api_error missing = {0};
    const bool found = find_route(c, path, method_of(req), &missing);
    bool may = (found && c->route->open) || http_authenticate(c, req, &ae);
    if (may && !found) { /* told only to those who may ask at all */
        may = false;
        ae = missing;
    }
    may = may && check_phase(c, &ae);
    if (may && c->route->request_schema != NULL && body_is_large(c))
        may = body_send(c, &ae);
    else if (may)
        c->route->run(c);
    if (!may)
        call_reply_error(c, &ae);
}

void call_open(struct net *n, struct evhttp_request *req)
{
    struct call *c = call_new(n, req);
    if (c == NULL) {
        evhttp_send_error(req, 503, NULL);
        return;
    }
    struct api_error ae = {0};
    if (http_audit(c, req, &ae))
        run_route(c, req);
    else {
        call_header(c, "Connection", "close");
        call_reply_error(c, &ae);
    }
    call_maybe_done(c);
}

void call_maybe_done(struct call *c)
{
    if (c->gen == NULL && c->reader == NULL && c->ask == NULL && c->body == NULL)
        call_done(c);
}
