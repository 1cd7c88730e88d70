/* One HTTP GET under our rules, and the pause between tries.
 *
 * Redirects are followed here and not by libcurl, because each hop is judged: https may not become http, plain http
 * goes to loopback only, the access token goes to the endpoint's own origin and nowhere else, and the count is bounded.
 * Bodies are given to the sink only for 200 and 206; the body of an error is never read further than its headers.
 *
 * A transfer is given up when it brings next to nothing for stall_ms, so that a server that drips cannot hold us.
 * libcurl calls the progress function at least once a second, so that is also how soon a cancel is seen. */
#include "hub/curl_api.h"
#include "hub/hub_int.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define HEADER_BYTES_MAX (256 * KIB) /* of one answer; curl bounds a line, we bound the sum */

struct exchange {
    const struct hub *h;
    const struct http_request *r;
    struct http_answer *a;
    CURL *curl;
    uint64_t header_bytes;
    uint64_t body_bytes, seen_bytes; /* received; as of last_ns */
    uint64_t last_ns;                /* when enough had last arrived */
    bool is_stalled, is_cancelled, is_unwanted, has_too_long_headers;
    enum err sink_err;
    struct error *e;
};

/* --- URLs --- */

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    char bare[64];
    if (strcasecmp(host, "localhost") == 0)
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    const size_t n = strlen(host);
    if (n < 3 || n - 2 >= sizeof bare || host[0] != '[')
        return false;
    memcpy(bare, host + 1, n - 2);
    bare[n - 2] = '\0';
    return inet_pton(AF_INET6, bare, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* scheme, host and port of a URL, each to be freed with curl_free. */
struct origin {
    char *scheme, *host, *port;
};

static void origin_fini(struct origin *o)
{
    hub_curl.free(o->scheme);
    hub_curl.free(o->host);
    hub_curl.free(o->port);
    *o = (struct origin){0};
}

static bool origin_of(const char *url, struct origin *o)
{
    *o = (struct origin){0};
    if (hub_start_curl(NULL) != OK)
        return false;
    CURLU *u = hub_curl.url();
    const bool ok = u != NULL && hub_curl.url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                    hub_curl.url_get(u, CURLUPART_SCHEME, &o->scheme, 0) == CURLUE_OK &&
                    hub_curl.url_get(u, CURLUPART_HOST, &o->host, 0) == CURLUE_OK &&
                    hub_curl.url_get(u, CURLUPART_PORT, &o->port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    hub_curl.url_cleanup(u);
    if (!ok)
        origin_fini(o);
    return ok;
}

static bool is_same_origin(const char *a, const char *b)
{
    struct origin oa, ob;
    if (!origin_of(a, &oa))
        return false;
    if (!origin_of(b, &ob)) {
        origin_fini(&oa);
        return false;
    }
    const bool same =
        strcmp(oa.scheme, ob.scheme) == 0 && strcasecmp(oa.host, ob.host) == 0 && strcmp(oa.port, ob.port) == 0;
    origin_fini(&oa);
    origin_fini(&ob);
    return same;
}

const char *url_show(const char *url, char *out, size_t cap)
{
    const char *rest = strstr(url, "://");
    rest = rest != NULL ? rest + 3 : url;
    const size_t host_end = strcspn(rest, "/?#");
    const char *at = memrchr(rest, '@', host_end);
    const char *shown = at != NULL ? at + 1 : rest;
    char bare[512];
    snprintf(bare, sizeof bare, "%.*s%.*s", (int)(rest - url), url, (int)MIN(strcspn(shown, "?#"), (size_t)400), shown);
    return str_show(str_of(bare), out, cap);
}

enum err url_check(const char *url, bool was_https, struct error *e)
{
    char shown[200];
    struct origin o;
    if (strlen(url) >= HUB_URL_MAX)
        return FAIL(e, ERR_LIMIT, "a URL of %zu bytes; the limit is %d", strlen(url), HUB_URL_MAX - 1);
    url_show(url, shown, sizeof shown);
    if (strncasecmp(url, "https:", 6) != 0 && strncasecmp(url, "http:", 5) != 0)
        return FAIL(e, ERR_UNSUPPORTED, "%s: only https is fetched", shown);
    if (!origin_of(url, &o))
        return FAIL(e, ERR_INVALID, "%s is not a URL", shown);
    enum err err = OK;
    if (strcmp(o.scheme, "http") == 0 && was_https)
        err = FAIL(e, ERR_DENIED, "refused to go from https to plain http at %s", shown);
    else if (strcmp(o.scheme, "http") == 0 && !is_loopback(o.host))
        err = FAIL(e, ERR_DENIED, "%s: plain http is used for this machine's own addresses only; use https", shown);
    origin_fini(&o);
    return err;
}

enum err url_escape(const char *s, bool keep_slash, char *out, size_t cap, struct error *e)
{
    size_t n = 0;
    for (; *s != '\0'; s++) {
        const unsigned char c = (unsigned char)*s;
        const bool plain = isalnum(c) || strchr("-._~", c) != NULL || (c == '/' && keep_slash);
        if (n + 4 > cap)
            return FAIL(e, ERR_LIMIT, "a URL longer than %zu bytes", cap);
        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", c);
    }
    out[n] = '\0';
    return OK;
}

/* --- callbacks --- */

/* The value of a header line when it has that name; trimmed, borrowed. */
static bool header_is(struct str line, const char *name, struct str *value)
{
    const size_t n = strlen(name);
    if (line.n <= n || strncasecmp(line.p, name, n) != 0 || line.p[n] != ':')
        return false;
    struct str v = {line.p + n + 1, line.n - n - 1};
    while (v.n > 0 && isspace((unsigned char)v.p[0])) {
        v.p++;
        v.n--;
    }
    while (v.n > 0 && isspace((unsigned char)v.p[v.n - 1]))
        v.n--;
    *value = v;
    return true;
}

static bool parse_u64(struct str s, uint64_t *out)
{
    uint64_t v = 0;
    if (s.n == 0 || s.n > 19)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (!isdigit((unsigned char)s.p[i]))
            return false;
        v = v * 10 + (uint64_t)(s.p[i] - '0');
    }
    *out = v;
    return true;
}

/* "bytes 100-199/500"; the total may be "*". */
static void take_content_range(struct str v, struct http_answer *a)
{
    if (!str_has_prefix(v, STR("bytes ")))
        return;
    v.p += 6;
    v.n -= 6;
    const char *dash = memchr(v.p, '-', v.n), *slash = memchr(v.p, '/', v.n);
    uint64_t from, total;
    if (dash == NULL || slash == NULL || dash > slash || !parse_u64((struct str){v.p, (size_t)(dash - v.p)}, &from))
        return;
    a->from = from;
    if (parse_u64((struct str){slash + 1, v.n - (size_t)(slash + 1 - v.p)}, &total))
        a->total_bytes = total;
}

static void take_validator(struct str v, bool is_etag, struct http_answer *a)
{
    /* A weak ETag does not promise equal bytes. An ETag is better than a date, so a date never replaces one. */
    if (v.n == 0 || v.n >= sizeof a->validator || (is_etag && v.p[0] != '"') || (!is_etag && a->validator[0] != '\0'))
        return;
    for (size_t i = 0; i < v.n; i++)
        if ((unsigned char)v.p[i] < 0x20 || (unsigned char)v.p[i] > 0x7e)
            return;
    memcpy(a->validator, v.p, v.n);
    a->validator[v.n] = '\0';
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx)
{
    struct exchange *x = ctx;
    struct http_answer *a = x->a;
    const struct str l = {line, size * n};
    struct str v;
    uint64_t number;
    x->header_bytes += l.n;
    if (x->header_bytes > HEADER_BYTES_MAX) {
        x->has_too_long_headers = true;
        return 0;
    }
    if (str_has_prefix(l, STR("HTTP/"))) { /* a new answer: an interim 1xx, or a proxy's, may have come before */
        *a = (struct http_answer){.total_bytes = SIZE_UNKNOWN, .from = SIZE_UNKNOWN};
        const char *space = memchr(l.p, ' ', l.n);
        const size_t at = space != NULL ? (size_t)(space + 1 - l.p) : l.n;
        if (at + 3 <= l.n && parse_u64((struct str){l.p + at, 3}, &number))
            a->status = (long)number;
    } else if (header_is(l, "Content-Length", &v)) {
        if (a->status == 200 && parse_u64(v, &number))
            a->total_bytes = number;
    } else if (header_is(l, "Content-Range", &v)) {
        if (a->status == 206)
            take_content_range(v, a);
    } else if (header_is(l, "ETag", &v))
        take_validator(v, true, a);
    else if (header_is(l, "Last-Modified", &v))
        take_validator(v, false, a);
    else if (header_is(l, "Retry-After", &v) && parse_u64(v, &number))
        a->retry_after_ms = (uint32_t)MIN(number, (uint64_t)86400) * 1000;
    return size * n;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *ctx)
{
    struct exchange *x = ctx;
    if (x->a->status != 200 && x->a->status != 206) {
        x->is_unwanted = true; /* the status says all; an error page may be endless */
        return 0;
    }
    x->body_bytes += size * n;
    x->sink_err = x->r->sink(x->r->ctx, x->a, bytes, size * n, x->e);
    return x->sink_err == OK ? size * n : 0;
}

static int on_tick(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    struct exchange *x = ctx;
    const uint64_t now = progress_now_ns();
    const uint64_t got_bytes = x->body_bytes + x->header_bytes;
    if (got_bytes - x->seen_bytes >= HUB_STALL_BYTES_MIN || (x->seen_bytes == 0 && got_bytes > 0)) {
        x->seen_bytes = got_bytes;
        x->last_ns = now;
    }
    x->is_cancelled = hub_is_cancelled(x->h);
    x->is_stalled = now - x->last_ns > (uint64_t)x->h->o.stall_ms * 1000000u;
    return x->is_cancelled || x->is_stalled;
}

/* --- one try --- */

static bool add_header(struct curl_slist **list, const char *text)
{
    struct curl_slist *grown = hub_curl.slist_append(*list, text);
    if (grown != NULL)
        *list = grown;
    return grown != NULL;
}

static enum err make_headers(struct exchange *x, const char *url, struct curl_slist **out, struct error *e)
{
    const struct http_request *r = x->r;
    char line[HUB_TOKEN_MAX + 64];
    bool ok = true;
    if (x->h->token[0] != '\0' && is_same_origin(url, x->h->endpoint)) {
        snprintf(line, sizeof line, "Authorization: Bearer %s", x->h->token);
        ok = add_header(out, line);
    }
    if (ok && r->from > 0) {
        snprintf(line, sizeof line, "Range: bytes=%llu-", (unsigned long long)r->from);
        ok = add_header(out, line);
        if (ok && r->if_range[0] != '\0') {
            snprintf(line, sizeof line, "If-Range: %s", r->if_range);
            ok = add_header(out, line);
        }
    }
    return ok ? OK : FAIL(e, ERR_NOMEM, "no memory for a request");
}

static void set_options(struct exchange *x, const char *url, struct curl_slist *headers, char *text)
{
    CURL *c = x->curl;
    hub_curl.easy_setopt(c, CURLOPT_URL, url);
    hub_curl.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    hub_curl.easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    hub_curl.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    hub_curl.easy_setopt(c, CURLOPT_USERAGENT, "quern/" QUERN_VERSION);
    hub_curl.easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)x->h->o.connect_ms);
    hub_curl.easy_setopt(c, CURLOPT_BUFFERSIZE, 262144L);
    hub_curl.easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    hub_curl.easy_setopt(c, CURLOPT_ERRORBUFFER, text);
    hub_curl.easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    hub_curl.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    hub_curl.easy_setopt(c, CURLOPT_HEADERDATA, x);
    hub_curl.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    hub_curl.easy_setopt(c, CURLOPT_WRITEDATA, x);
    hub_curl.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_tick);
    hub_curl.easy_setopt(c, CURLOPT_XFERINFODATA, x);
    hub_curl.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
}

/* What a failed transfer means, in order of how much we know about it. */
static enum err explain_failure(struct exchange *x, CURLcode rc, const char *text, const char *url, struct error *e)
{
    char shown[200], why[160];
    url_show(url, shown, sizeof shown);
    if (x->is_cancelled)
        return FAIL(e, ERR_CANCELLED, "%s: stopped", x->r->what);
    if (x->sink_err != OK)
        return x->sink_err;
    if (x->has_too_long_headers)
        return FAIL(
            e, ERR_NETWORK, "%s sends more than %llu bytes of headers", shown, (unsigned long long)HEADER_BYTES_MAX);
    x->a->can_retry = true;
    if (x->is_stalled)
        return FAIL(e, ERR_NETWORK, "%s: next to nothing came for %u ms", shown, x->h->o.stall_ms);
    switch (rc) {
    case CURLE_OUT_OF_MEMORY: x->a->can_retry = false; return FAIL(e, ERR_NOMEM, "no memory to fetch %s", shown);
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT: x->a->is_unreachable = true; break;
    case CURLE_OPERATION_TIMEDOUT: x->a->is_unreachable = x->header_bytes == 0; break;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: x->a->can_retry = false; break;
    default: break;
    }
    str_show(str_of(text[0] != '\0' ? text : hub_curl.easy_strerror(rc)), why, sizeof why);
    return FAIL(e, ERR_NETWORK, "%s: %s", shown, why);
}

static enum err explain_status(const struct hub *h, struct http_answer *a, const char *url, struct error *e)
{
    char shown[200];
    url_show(url, shown, sizeof shown);
    const bool ours = is_same_origin(url, h->endpoint);
    switch (a->status) {
    case 200:
    case 206: return OK;
    case 401:
    case 403:
        return FAIL(e, ERR_DENIED, "%s: refused with status %ld%s", shown, a->status,
            !ours                 ? ""
            : h->token[0] != '\0' ? "; HF_TOKEN does not open it, or its terms were not accepted"
                                  : "; a private or gated repository needs HF_TOKEN (an absent one answers the same)");
    case 404:
    case 410: return FAIL(e, ERR_NOT_FOUND, "%s: not there (status %ld)", shown, a->status);
    case 408:
    case 425:
    case 429: a->can_retry = true; return FAIL(e, ERR_NETWORK, "%s: busy (status %ld)", shown, a->status);
    default:
        a->can_retry = a->status >= 500;
        return FAIL(e, ERR_NETWORK, "%s: unexpected status %ld", shown, a->status);
    }
}

static bool is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* One hop. On a redirect, next receives the target. */
static enum err get_once(struct exchange *x, const char *url, char *next, struct error *e)
{
    char text[CURL_ERROR_SIZE] = "", shown[200];
    struct curl_slist *headers = NULL;
    next[0] = '\0';
    x->header_bytes = x->body_bytes = x->seen_bytes = 0;
    x->is_unwanted = false;
    x->last_ns = progress_now_ns();
    *x->a = (struct http_answer){.total_bytes = SIZE_UNKNOWN, .from = SIZE_UNKNOWN};
    x->curl = hub_curl.easy_init();
    if (x->curl == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to fetch %s", x->r->what);
    enum err err = make_headers(x, url, &headers, e);
    if (err == OK) {
        set_options(x, url, headers, text);
        const CURLcode rc = hub_sys_fails(EIO) ? CURLE_RECV_ERROR : hub_curl.easy_perform(x->curl);
        if (rc != CURLE_OK && !(x->is_unwanted && !x->is_cancelled))
            err = explain_failure(x, rc, text, url, e);
    }
    if (err == OK && is_redirect(x->a->status)) {
        char *target = NULL;
        hub_curl.easy_getinfo(x->curl, CURLINFO_REDIRECT_URL, &target);
        if (target == NULL)
            err = FAIL(e, ERR_NETWORK, "%s: a redirect to nowhere", url_show(url, shown, sizeof shown));
        else if (strlen(target) >= HUB_URL_MAX)
            err = FAIL(e, ERR_LIMIT, "%s redirects to a URL of %zu bytes; the limit is %d",
                url_show(url, shown, sizeof shown), strlen(target), HUB_URL_MAX - 1);
        else
            memcpy(next, target, strlen(target) + 1);
    }
    hub_curl.slist_free_all(headers);
    hub_curl.easy_cleanup(x->curl);
    x->curl = NULL;
    return err;
}

enum err http_get(const struct hub *h, const struct http_request *r, struct http_answer *a, struct error *e)
{
    struct exchange x = {.h = h, .r = r, .a = a, .e = e};
    char url[HUB_URL_MAX], next[HUB_URL_MAX], shown[200];
    *a = (struct http_answer){.total_bytes = SIZE_UNKNOWN, .from = SIZE_UNKNOWN};
    if (h->o.offline)
        return FAIL(e, ERR_NETWORK, "%s is not fetched: offline", r->what);
    if (strlen(r->url) >= sizeof url)
        return FAIL(e, ERR_LIMIT, "%s: a URL of %zu bytes; the limit is %d", r->what, strlen(r->url), HUB_URL_MAX - 1);
    memcpy(url, r->url, strlen(r->url) + 1);
    TRY(hub_start_curl(e));
    TRY(url_check(url, false, e));
    for (int hop = 0; hop <= HUB_REDIRECTS_MAX; hop++) {
        TRY(get_once(&x, url, next, e));
        if (next[0] == '\0')
            return explain_status(h, a, url, e);
        TRY(url_check(next, strncasecmp(url, "https:", 6) == 0, e));
        memcpy(url, next, strlen(next) + 1);
    }
    return FAIL(e, ERR_NETWORK, "%s: more than %d redirects", url_show(r->url, shown, sizeof shown), HUB_REDIRECTS_MAX);
}

/* --- tries --- */

static enum err sleep_ms(const struct hub *h, uint64_t ms, struct error *e)
{
    const uint64_t until = progress_now_ns() + ms * 1000000u;
    while (progress_now_ns() < until) {
        if (hub_is_cancelled(h))
            return FAIL(e, ERR_CANCELLED, "stopped");
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return OK;
}

enum err retry_wait(const struct hub *h, struct retry *r, const struct http_answer *a, bool has_gained,
    enum err failure, struct error *e)
{
    if (failure == ERR_CANCELLED || !a->can_retry || h->o.retry_max == 0)
        return failure;
    r->tries++;
    r->fruitless = has_gained ? 0 : r->fruitless + 1;
    /* A host that cannot be reached at all rarely appears within seconds; one that sent bytes before rarely vanishes.
     */
    const uint32_t fruitless_max =
        a->is_unreachable && r->tries == r->fruitless ? MIN(h->o.retry_max, 1u) : h->o.retry_max;
    if (r->fruitless > fruitless_max || r->tries >= HUB_TRIES_MAX) {
        if (r->tries > 1)
            error_prefix(e, "gave up after %u tries", r->tries);
        return failure;
    }
    uint64_t ms = (uint64_t)h->o.retry_ms << MIN(r->fruitless > 0 ? r->fruitless - 1 : 0, 16u);
    ms = MIN(MAX(ms, (uint64_t)a->retry_after_ms), (uint64_t)h->o.retry_cap_ms);
    hub_note(h, "%s; trying again in %.1f s", e != NULL ? e->text : "interrupted", (double)ms / 1000);
    if (e != NULL)
        *e = (struct error){0};
    return sleep_ms(h, ms, e);
}
