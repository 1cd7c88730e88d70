/* The guard: looks at every byte of a request before evhttp does.
 *
 * evhttp parses HTTP well enough for friends. What it lets through and a second parser (a proxy before us) may read
 * otherwise is refused here, on the raw bytes: folded header lines, blanks before the colon, bare CR or LF, control
 * characters. It also has no time limit for a whole request and no limit for the length of a chunk's size line; the
 * guard cuts a sender that is slower than HTTP_BYTES_PER_S_MIN, and a connection whose unparsed input passes every
 * limit.
 *
 * How it gets there: evhttp asks us to make the bufferevent of a new connection, and a callback on its input buffer
 * runs when bytes are added, before they are parsed. What is known about a connection lies in a table by descriptor. A
 * descriptor is used again after a close that nobody reports, so each bufferevent carries a serial number, in the write
 * high-water mark, which socket bufferevents do not use. A slot whose number differs is that of a connection gone by.
 *
 * The head of a pipelined request that arrives behind another one's body would pass unseen; so a connection that has
 * unread bytes when a request is answered is closed after the answer. */
#include "api/api_int.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum scan {
    SCAN_FIRST_LINE,
    SCAN_LINE_START,
    SCAN_NAME,
    SCAN_VALUE,
    SCAN_CR,
    SCAN_LAST_CR,
    SCAN_BODY, /* evhttp counts it by Content-Length */
    SCAN_SIZE, /* the rest is a chunked body: digits of a chunk's size */
    SCAN_EXTENSION,
    SCAN_SIZE_CR,
    SCAN_DATA,
    SCAN_DATA_CR,
    SCAN_DATA_LF,
    SCAN_TRAILER,
};

struct conn {
    uint64_t serial;
    uint64_t t_first_ns; /* of the request's first byte; 0 = none came yet */
    uint64_t n_bytes;
    uint64_t chunk_left; /* bytes of data, while scan is SCAN_DATA */
    const char *wrong;
    uint16_t n_line; /* bytes of a chunk's size line, or of the trailers */
    uint8_t scan;    /* enum scan */
    uint8_t n_match; /* letters of Transfer-Encoding that the header's name has so far; NO_MATCH: it is another */
    bool is_chunked;
    bool is_ours;   /* its request came to a call: what is answered is our own */
    bool is_broken; /* chunks that evhttp would read in quadratic time or not at all */
};

#define NO_MATCH      255
#define SIZE_LINE_MAX 256 /* of a chunk: 16 digits, and extensions that nobody sends */
#define TRAILERS_MAX  8192

enum err guard_init(struct server *s, struct error *e)
{
    struct rlimit limit;
    const uint32_t spare = 256; /* model files, logs, event loops */
    s->n_conns = (s->o.connections_max != 0 ? s->o.connections_max : HTTP_CONNECTIONS_DEFAULT) + spare;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < s->n_conns) {
        limit.rlim_cur = MIN(limit.rlim_max, (rlim_t)s->n_conns + spare);
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* what the system does not give is met at accept */
    }
    s->conns = mem_array(s->n_conns, sizeof *s->conns);
    return s->conns != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for %u connections", s->n_conns);
}

/* ---- the head, byte by byte ---- */

static bool is_name_char(unsigned char ch)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9'))
        return true;
    for (size_t i = 0; i + 1 < sizeof others; i++)
        if (ch == (unsigned char)others[i])
            return true;
    return false;
}

/* Is the name of this header Transfer-Encoding? Whatever its value: evhttp and the audit look at that. */
static void match_name(struct conn *k, unsigned char ch)
{
    static const char name[] = "transfer-encoding";
    const unsigned char lower = ch >= 'A' && ch <= 'Z' ? (unsigned char)(ch + 32) : ch;
    if (k->n_match < sizeof name - 1 && lower == (unsigned char)name[k->n_match])
        k->n_match++;
    else if (ch == ':' && k->n_match == sizeof name - 1)
        k->is_chunked = true;
    else
        k->n_match = NO_MATCH;
}

static void blame(struct conn *k, const char *what)
{
    if (k->wrong == NULL)
        k->wrong = what;
}

static void scan_byte(struct conn *k, unsigned char ch)
{
    const enum scan was = (enum scan)k->scan;
    if (was == SCAN_CR || was == SCAN_LAST_CR) {
        if (ch != '\n')
            blame(k, "a carriage return without a line feed");
        k->scan = was == SCAN_CR ? SCAN_LINE_START : k->is_chunked ? SCAN_SIZE : SCAN_BODY;
        return;
    }
    if (ch == '\r') {
        k->scan = was == SCAN_LINE_START ? SCAN_LAST_CR : SCAN_CR;
        if (was == SCAN_NAME)
            blame(k, "a header line without a colon");
        return;
    }
    if (ch == '\n') {
        blame(k, "a line feed without a carriage return");
        k->scan = was == SCAN_LINE_START ? SCAN_BODY : SCAN_LINE_START; /* refused in any case */
        return;
    }
    switch (was) {
    case SCAN_FIRST_LINE:
        if (ch < 0x20 || ch >= 0x7f)
            blame(k, "a forbidden character in the request line");
        break;
    case SCAN_LINE_START:
        if (ch == ' ' || ch == '\t')
            blame(k, "a folded header line");
        k->scan = SCAN_NAME;
        k->n_match = 0;
        match_name(k, ch);
        if (!is_name_char(ch))
            blame(k, "a forbidden character in a header name");
        break;
    case SCAN_NAME:
        match_name(k, ch);
        if (ch == ':')
            k->scan = SCAN_VALUE;
        else if (!is_name_char(ch))
            blame(k, "a forbidden character in a header name");
        break;
    case SCAN_VALUE:
        if ((ch < 0x20 && ch != '\t') || ch == 0x7f)
            blame(k, "a control character in a header");
        break;
    default: break;
    }
}

/* A chunked body: "SIZE[;extension] CRLF data CRLF" again and again, the last of size 0, then trailers. */
static void scan_chunk_byte(struct conn *k, unsigned char ch)
{
    const int digit = ch >= '0' && ch <= '9'   ? ch - '0'
                      : ch >= 'a' && ch <= 'f' ? ch - 'a' + 10
                      : ch >= 'A' && ch <= 'F' ? ch - 'A' + 10
                                               : -1;
    if (++k->n_line > (k->scan == SCAN_TRAILER ? TRAILERS_MAX : SIZE_LINE_MAX))
        k->is_broken = true;
    switch ((enum scan)k->scan) {
    case SCAN_SIZE:
        if (digit >= 0 && k->n_line <= 15)
            k->chunk_left = k->chunk_left * 16 + (uint64_t)digit;
        else if (k->n_line > 1 && ch == '\r')
            k->scan = SCAN_SIZE_CR;
        else if (k->n_line > 1 && (ch == ';' || ch == ' '))
            k->scan = SCAN_EXTENSION;
        else
            k->is_broken = true;
        break;
    case SCAN_EXTENSION:
        if (ch == '\r')
            k->scan = SCAN_SIZE_CR;
        break;
    case SCAN_SIZE_CR:
        k->is_broken |= ch != '\n';
        k->scan = k->chunk_left > 0 ? SCAN_DATA : SCAN_TRAILER;
        k->n_line = 0;
        break;
    case SCAN_DATA_CR:
        k->is_broken |= ch != '\r';
        k->scan = SCAN_DATA_LF;
        break;
    case SCAN_DATA_LF:
        k->is_broken |= ch != '\n';
        k->scan = SCAN_SIZE;
        k->n_line = 0;
        break;
    default: break;
    }
}

/* One run of bytes. */
static void scan_run(struct conn *k, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n && k->scan != SCAN_BODY && !k->is_broken;) {
        if (k->scan == SCAN_DATA) {
            const uint64_t take = MIN(k->chunk_left, (uint64_t)(n - i));
            k->chunk_left -= take;
            i += take;
            if (k->chunk_left == 0) {
                k->scan = SCAN_DATA_CR;
                k->n_line = 0;
            }
        } else if (k->scan > SCAN_BODY)
            scan_chunk_byte(k, p[i++]);
        else
            scan_byte(k, p[i++]);
    }
}

static void scan_added(struct conn *k, struct evbuffer *in, size_t at, size_t n)
{
    struct evbuffer_ptr pos;
    while (n > 0 && k->scan != SCAN_BODY) {
        struct evbuffer_iovec v[8];
        if (evbuffer_ptr_set(in, &pos, at, EVBUFFER_PTR_SET) != 0)
            return;
        const int n_vecs = MIN(evbuffer_peek(in, (ev_ssize_t)n, &pos, v, (int)COUNT_OF(v)), (int)COUNT_OF(v));
        size_t seen = 0;
        for (int i = 0; i < n_vecs && seen < n; i++) {
            const size_t run = MIN(v[i].iov_len, n - seen);
            scan_run(k, v[i].iov_base, run);
            seen += run;
        }
        if (seen == 0)
            return;
        at += seen;
        n -= seen;
    }
}

/* ---- the connection ---- */

static struct conn *conn_of(struct server *s, struct bufferevent *bev)
{
    const evutil_socket_t fd = bufferevent_getfd(bev);
    size_t serial = 0;
    if (fd < 0 || (uint32_t)fd >= s->n_conns || bufferevent_getwatermark(bev, EV_WRITE, NULL, &serial) != 0)
        return NULL;
    struct conn *k = &s->conns[fd];
    if (k->serial != serial)
        *k = (struct conn){.serial = serial};
    return k;
}

static void cut(struct net *n, struct bufferevent *bev)
{
    bufferevent_disable(bev, EV_READ);
    bufferevent_trigger_event(
        bev, BEV_EVENT_READING | BEV_EVENT_ERROR, BEV_TRIG_DEFER_CALLBACKS); /* evhttp closes it */
    atomic_fetch_add_explicit(&n->n_cut, 1, memory_order_relaxed);
}

static _Thread_local struct net *own_net; /* whose loop this thread runs */

void guard_adopt(struct net *n)
{
    own_net = n;
}

struct net *guard_net(void)
{
    return own_net;
}

static void on_input(struct evbuffer *in, const struct evbuffer_cb_info *info, void *arg)
{
    struct bufferevent *bev = arg;
    struct net *n = own_net;
    if (info->n_added == 0 || n == NULL)
        return;
    struct server *s = n->s;
    struct conn *k = conn_of(s, bev);
    if (k == NULL) { /* more descriptors than the table has: one connection too many */
        cut(n, bev);
        return;
    }
    const uint64_t now = clock_now(s->o.clock);
    if (k->t_first_ns == 0) {
        k->t_first_ns = now;
        k->is_ours = false;
    }
    k->n_bytes += info->n_added;
    const uint64_t allowed_ns =
        (uint64_t)HTTP_REQUEST_MS * NS_PER_MS + k->n_bytes * (NS_PER_S / (uint64_t)HTTP_BYTES_PER_S_MIN);
    const uint64_t body_max = s->o.body_max;
    if (k->scan != SCAN_BODY)
        scan_added(k, in, info->orig_size - info->n_deleted, info->n_added);
    if (k->is_broken || now - k->t_first_ns > allowed_ns ||
        k->n_bytes > HTTP_SURPLUS * body_max + HTTP_HEAD_BYTES_MAX ||
        evbuffer_get_length(in) > 2 * body_max + 4 * (uint64_t)HTTP_HEAD_BYTES_MAX)
        cut(n, bev);
}

/* ---- what evhttp answers by itself ----
 *
 * A request that it cannot read never comes to a call: evhttp answers with a page of its own. It is exchanged for an
 * error as all others are, before a byte of it has left. */

static void add_error_page(int status, struct buf *out)
{
    struct api_error ae = {0};
    struct buf body;
    buf_init(&body, 8 * ERROR_TEXT_MAX);
    if (status == 413)
        api_fail_code(&ae, status, NULL, "request_too_large", "the body of the request is too large");
    else
        api_fail(&ae, status, NULL, status < 500 ? "the request could not be read" : "the server is out of memory");
    api_error_json(&ae, &body);
    buf_addf(out,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
        status == 413   ? "Request Entity Too Large"
        : status == 400 ? "Bad Request"
                        : "Error",
        body.n);
    buf_add(out, buf_str(&body));
    buf_fini(&body);
}

static void exchange_page(evutil_socket_t fd, short what, void *arg)
{
    struct bufferevent *bev = arg;
    struct evbuffer *out = bufferevent_get_output(bev);
    char line[16] = "";
    struct buf page;
    (void)fd;
    (void)what;
    buf_init(&page, 16 * ERROR_TEXT_MAX);
    bufferevent_event_cb is_alive = NULL; /* taken away when evhttp lets go of it */
    bufferevent_getcb(bev, NULL, NULL, &is_alive, NULL);
    if (is_alive != NULL && evbuffer_copyout(out, line, sizeof line - 1) == (ev_ssize_t)sizeof line - 1)
        add_error_page((int)strtol(line + 9, NULL, 10), &page);
    if (page.n > 0 && page.failure == OK) {
        evbuffer_unfreeze(out, 1);
        (void)evbuffer_drain(out, evbuffer_get_length(out));
        evbuffer_freeze(out, 1);
        (void)evbuffer_add(out, page.p, page.n);
    }
    buf_fini(&page);
    bufferevent_decref(bev);
}

static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    struct bufferevent *bev = arg;
    struct net *n = own_net;
    const struct conn *k = n != NULL && info->orig_size == 0 && info->n_added > 0 ? conn_of(n->s, bev) : NULL;
    char line[10];
    if (k == NULL || k->is_ours || evbuffer_copyout(out, line, sizeof line) != (ev_ssize_t)sizeof line ||
        (line[9] != '4' && line[9] != '5')) /* "HTTP/1.1 4"; a 100 is evhttp's own too */
        return;
    /* evhttp goes on adding to its page: it is whole when the loop comes to the next callback, before any socket */
    bufferevent_incref(bev);
    if (event_base_once(n->base, -1, EV_TIMEOUT, exchange_page, bev, NULL) != 0)
        bufferevent_decref(bev);
}

struct bufferevent *guard_bufferevent(struct event_base *base, void *arg)
{
    struct net *n = arg;
    net_take_mail(n);
    struct bufferevent *bev =
        n->s->tls != NULL ? tls_bufferevent(n->s->tls, base) : bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL)
        return NULL;
    n->conn_serial += HTTP_NET_THREADS_MAX; /* so that no two threads give the same number */
    bufferevent_setwatermark(bev, EV_WRITE, 0, n->conn_serial + n->index + 1);
    evbuffer_add_cb(bufferevent_get_input(bev), on_input, bev);
    evbuffer_add_cb(bufferevent_get_output(bev), on_output, bev);
    return bev;
}

const char *guard_verdict(struct net *n, struct evhttp_request *req, bool *has_more)
{
    struct evhttp_connection *con = evhttp_request_get_connection(req);
    struct bufferevent *bev = con != NULL ? evhttp_connection_get_bufferevent(con) : NULL;
    struct conn *k = bev != NULL ? conn_of(n->s, bev) : NULL;
    *has_more = bev != NULL && evbuffer_get_length(bufferevent_get_input(bev)) > 0;
    if (k == NULL)
        return NULL;
    const char *wrong = k->wrong;
    *k = (struct conn){.serial = k->serial, .is_ours = true};
    return wrong;
}
