/* The head of a request: what we refuse although evhttp does not, which names this server answers to, which pages may
 * ask, and who asks.
 *
 * Host. A page on the web can point a name of its own at 127.0.0.1 and then read from us as if it were same-origin (DNS
 * rebinding). A server that only this machine can reach and that asks for no key therefore answers only to addresses,
 * to localhost and to names it was given.
 *
 * Origin. A page from elsewhere may not ask at all unless --allowed-origins names it: without that rule a browser would
 * send "simple" requests first and ask later. */
#include "api/api_int.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <string.h>
#include <strings.h>

/* ---- the audit ---- */

struct seen {
    uint32_t n, length, encoding, host, authorization, type;
    bool chunked;
    uint64_t body_bytes;
};

static bool audit_header(const struct evkeyval *h, struct seen *s, struct api_error *ae)
{
    if (++s->n > HTTP_HEADERS_MAX)
        return api_fail(ae, 400, NULL, "more than %d headers", HTTP_HEADERS_MAX);
    if (strcasecmp(h->key, "Content-Length") == 0) {
        const size_t n = strlen(h->value);
        if (s->length++ > 0)
            return api_fail(ae, 400, NULL, "more than one Content-Length");
        if (n == 0 || n > 18 || strspn(h->value, "0123456789") != n)
            return api_fail(ae, 400, NULL, "a Content-Length that is not a plain number");
        for (size_t i = 0; i < n; i++)
            s->body_bytes = s->body_bytes * 10 + (uint64_t)(h->value[i] - '0');
    } else if (strcasecmp(h->key, "Transfer-Encoding") == 0) {
        if (s->encoding++ > 0 || strcasecmp(h->value, "chunked") != 0)
            return api_fail(ae, 400, NULL, "a Transfer-Encoding other than chunked");
        s->chunked = true;
    } else if (strcasecmp(h->key, "Host") == 0) {
        if (s->host++ > 0)
            return api_fail(ae, 400, NULL, "more than one Host");
    } else if (strcasecmp(h->key, "Authorization") == 0) {
        if (s->authorization++ > 0)
            return api_fail(ae, 400, NULL, "more than one Authorization");
    } else if (strcasecmp(h->key, "Content-Type") == 0) {
        if (s->type++ > 0)
            return api_fail(ae, 400, NULL, "more than one Content-Type");
    }
    return true;
}

static bool audit_uri(const char *uri, struct api_error *ae)
{
    const size_t n = uri != NULL ? strlen(uri) : 0;
    if (n == 0 || uri[0] != '/')
        return api_fail(ae, 400, NULL, "the request target must be a path that starts with /");
    if (n > HTTP_URI_BYTES_MAX)
        return api_fail(ae, 400, NULL, "the request target has %zu bytes; the limit is %d", n, HTTP_URI_BYTES_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)uri[i] <= 0x20 || (unsigned char)uri[i] >= 0x7f || uri[i] == '\\' || uri[i] == '#')
            return api_fail(ae, 400, NULL, "the request target has a forbidden character");
    return true;
}

bool http_audit(struct call *c, struct evhttp_request *req, struct api_error *ae)
{
    struct seen seen = {0};
    struct evkeyval *h;
    bool has_more = false;
    const char *wrong = guard_verdict(c->net, req, &has_more);
    if (has_more)
        call_header(c, "Connection", "close");
    if (wrong != NULL)
        return api_fail(ae, 400, NULL, "the request's head has %s", wrong);
    for (h = evhttp_request_get_input_headers(req)->tqh_first; h != NULL; h = h->next.tqe_next)
        if (!audit_header(h, &seen, ae))
            return false;
    if (seen.length > 0 && seen.chunked)
        return api_fail(ae, 400, NULL, "both Content-Length and Transfer-Encoding");
    if (seen.host == 0 && req->major == 1 && req->minor >= 1)
        return api_fail(ae, 400, NULL, "no Host");
    const enum evhttp_cmd_type type = evhttp_request_get_command(req);
    const bool reads_body = type == EVHTTP_REQ_GET || type == EVHTTP_REQ_POST || type == EVHTTP_REQ_OPTIONS ||
                            type == EVHTTP_REQ_DELETE || type == EVHTTP_REQ_PUT || type == EVHTTP_REQ_PATCH;
    if (!reads_body && (seen.chunked || seen.body_bytes > 0))
        return api_fail(ae, 400, NULL, "a body where there can be none");
    if (!reads_body && type != EVHTTP_REQ_HEAD)
        return api_fail(ae, 405, NULL, "an unknown method");
    const size_t n_body = evbuffer_get_length(evhttp_request_get_input_buffer(req));
    if (n_body > c->s->o.body_max)
        return api_fail(
            ae, 413, NULL, "the body has %zu bytes; the limit is %llu", n_body, (unsigned long long)c->s->o.body_max);
    return audit_uri(evhttp_request_get_uri(req), ae);
}

/* ---- names and origins ---- */

/* "example.org:8000" -> "example.org"; "[::1]:8000" -> "::1". */
static struct str host_name(struct str s)
{
    if (s.n > 0 && s.p[0] == '[') {
        const char *end = memchr(s.p, ']', s.n);
        return end != NULL ? (struct str){s.p + 1, (size_t)(end - s.p) - 1} : (struct str){0};
    }
    const char *colon = memchr(s.p, ':', s.n);
    return (struct str){s.p, colon != NULL ? (size_t)(colon - s.p) : s.n};
}

static bool is_address(struct str s)
{
    char text[64];
    unsigned char room[16];
    if (s.n == 0 || s.n >= sizeof text)
        return false;
    memcpy(text, s.p, s.n);
    text[s.n] = '\0';
    return inet_pton(AF_INET, text, room) == 1 || inet_pton(AF_INET6, text, room) == 1;
}

static bool same_word(struct str s, const char *word)
{
    return s.n > 0 && s.n == strlen(word) && strncasecmp(s.p, word, s.n) == 0;
}

bool http_check_host(struct call *c, struct evhttp_request *req, struct api_error *ae)
{
    const struct server_options *o = &c->s->o;
    const char *value = evhttp_find_header(evhttp_request_get_input_headers(req), "Host");
    if (!c->s->is_local || atomic_load(&c->s->keys.required) || value == NULL || o->unix_path != NULL)
        return true;
    const struct str host = host_name(str_of(value));
    if (is_address(host) || same_word(host, "localhost") || (o->host != NULL && same_word(host, o->host)))
        return true;
    for (size_t i = 0; i < o->n_hosts; i++)
        if (same_word(host, o->hosts[i]))
            return true;
    return api_fail(ae, 403, NULL, "this server does not answer to the name in Host; --allowed-hosts can add it");
}

/* Scheme and port of a page's origin must be those it reached us by, or a listed origin. */
bool http_check_origin(struct call *c, struct evhttp_request *req, struct api_error *ae)
{
    const struct server_options *o = &c->s->o;
    const struct evkeyvalq *in = evhttp_request_get_input_headers(req);
    const char *origin = evhttp_find_header(in, "Origin"), *host = evhttp_find_header(in, "Host");
    if (origin == NULL)
        return true;
    const char *rest = strstr(origin, "://");
    if (rest != NULL && host != NULL && strcasecmp(rest + 3, host) == 0)
        return true;
    for (size_t i = 0; i < o->n_origins; i++)
        if (strcmp(o->origins[i], "*") == 0 || strcasecmp(o->origins[i], origin) == 0) {
            call_header(c, "Access-Control-Allow-Origin", strcmp(o->origins[i], "*") == 0 ? "*" : origin);
            call_header(c, "Access-Control-Expose-Headers", "x-request-id, retry-after");
            call_header(c, "Vary", "Origin");
            return true;
        }
    return api_fail(ae, 403, NULL, "pages of that origin may not ask; --allowed-origins can add it");
}

/* ---- who asks ---- */

bool http_authenticate(struct call *c, struct evhttp_request *req, struct api_error *ae)
{
    const struct evkeyvalq *in = evhttp_request_get_input_headers(req);
    if (!atomic_load(&c->s->keys.required))
        return true;
    const char *value = evhttp_find_header(in, "Authorization"), *other = evhttp_find_header(in, "x-api-key");
    struct str key = {0};
    if (value != NULL && strncasecmp(value, "Bearer ", 7) == 0)
        key = str_of(value + 7);
    else if (other != NULL)
        key = str_of(other);
    while (key.n > 0 && key.p[0] == ' ') {
        key.p++;
        key.n--;
    }
    if (key.n == 0)
        return api_fail(ae, 401, NULL, "an API key is needed: Authorization: Bearer KEY");
    if (key.n > KEY_BYTES_MAX)
        return api_fail(ae, 401, NULL, "the API key has more than %d bytes", KEY_BYTES_MAX);
    const int tenant = keys_find(&c->s->keys, key);
    if (tenant < 0)
        return api_fail(ae, 401, NULL, "the API key is not known here");
    c->tenant = (uint32_t)tenant;
    return true;
}
