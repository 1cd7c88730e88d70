/* One GET from a server that the user named; see hub.h. The rules of http.c are for files from strangers: hashes,
 * redirects, plain http to loopback only. Here the user says where his own server is, which may well be plain http in
 * his own network, and the answer is a few kilobytes. */
#include "base/buf.h"
#include "hub/curl_api.h"
#include "hub/hub_int.h"

#include <string.h>

struct fetch {
    CURL *curl;
    char url[HUB_URL_MAX];       /* http://host:port, no slash at the end; for a socket http://localhost */
    char socket[PATH_BYTES_MAX]; /* "" when it is not a socket */
    char shown[200];             /* without credentials */
    char text[CURL_ERROR_SIZE];
    struct curl_slist *headers;
    struct buf *body; /* of the GET in progress */
};

static enum err set_address(struct fetch *f, const char *url, struct error *e)
{
    size_t n = strlen(url);
    char shown[200];
    if (n == 0 || n >= HUB_URL_MAX - 16)
        return FAIL(e, ERR_INVALID, "a server's address has 1 to %d bytes", HUB_URL_MAX - 17);
    if (strncmp(url, "unix:", 5) == 0) {
        if (url[5] == '\0')
            return FAIL(e, ERR_INVALID, "unix: needs the path of a socket behind it");
        snprintf(f->socket, sizeof f->socket, "%s", url + 5);
        snprintf(f->url, sizeof f->url, "http://localhost");
        str_show(str_of(url), f->shown, sizeof f->shown);
        return OK;
    }
    while (n > 0 && url[n - 1] == '/')
        n--;
    snprintf(f->url, sizeof f->url, "%s%.*s", strstr(url, "://") != NULL ? "" : "http://", (int)n, url);
    url_show(f->url, f->shown, sizeof f->shown);
    CURLU *u = hub_curl.url();
    char *scheme = NULL;
    const bool ok = u != NULL && hub_curl.url_set(u, CURLUPART_URL, f->url, 0) == CURLUE_OK &&
                    hub_curl.url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK;
    const bool is_http = ok && (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    hub_curl.free(scheme);
    hub_curl.url_cleanup(u);
    if (!is_http)
        return FAIL(e, ERR_INVALID, "'%s' is no http or https address", str_show(str_of(url), shown, sizeof shown));
    return OK;
}

static enum err set_key(struct fetch *f, const char *key, struct error *e)
{
    char line[HUB_TOKEN_MAX + 64];
    if (strlen(key) > HUB_TOKEN_MAX)
        return FAIL(e, ERR_LIMIT, "a key of %zu bytes; the limit is %d", strlen(key), HUB_TOKEN_MAX);
    for (const char *c = key; *c != '\0'; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c == 0x7f)
            return FAIL(e, ERR_INVALID, "a key has no blanks or control characters");
    snprintf(line, sizeof line, "Authorization: Bearer %s", key);
    f->headers = hub_curl.slist_append(NULL, line);
    return f->headers != NULL ? OK : FAIL(e, ERR_NOMEM, "no memory for a request");
}

static size_t on_body(char *bytes, size_t size, size_t n, void *ctx)
{
    struct fetch *f = ctx;
    buf_add(f->body, (struct str){bytes, size * n});
    return f->body->failure == OK ? size * n : 0;
}

enum err fetch_open(struct fetch **out, const char *url, const char *key, struct error *e)
{
    *out = NULL;
    TRY(hub_start_curl(e));
    struct fetch *f = mem_zalloc(sizeof *f);
    if (f == NULL)
        return FAIL(e, ERR_NOMEM, "no memory to ask a server");
    enum err err = set_address(f, url, e);
    if (err == OK && key != NULL)
        err = set_key(f, key, e);
    if (err == OK && (f->curl = hub_curl.easy_init()) == NULL)
        err = FAIL(e, ERR_NOMEM, "no memory to ask a server");
    if (err != OK) {
        fetch_close(f);
        return err;
    }
    hub_curl.easy_setopt(f->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    hub_curl.easy_setopt(f->curl, CURLOPT_NOSIGNAL, 1L);
    hub_curl.easy_setopt(f->curl, CURLOPT_PROXY, "");
    hub_curl.easy_setopt(f->curl, CURLOPT_USERAGENT, "quern/" QUERN_VERSION);
    hub_curl.easy_setopt(f->curl, CURLOPT_TIMEOUT_MS, (long)FETCH_TIMEOUT_MS);
    hub_curl.easy_setopt(f->curl, CURLOPT_ERRORBUFFER, f->text);
    hub_curl.easy_setopt(f->curl, CURLOPT_HTTPHEADER, f->headers);
    hub_curl.easy_setopt(f->curl, CURLOPT_WRITEFUNCTION, on_body);
    hub_curl.easy_setopt(f->curl, CURLOPT_WRITEDATA, f);
    if (f->socket[0] != '\0')
        hub_curl.easy_setopt(f->curl, CURLOPT_UNIX_SOCKET_PATH, f->socket);
    *out = f;
    return OK;
}

void fetch_close(struct fetch *f)
{
    if (f == NULL)
        return;
    hub_curl.easy_cleanup(f->curl);
    hub_curl.slist_free_all(f->headers);
    mem_free(f);
}

const char *fetch_url(const struct fetch *f)
{
    return f->shown;
}

static enum err explain(const struct fetch *f, CURLcode rc, struct error *e)
{
    char why[160];
    switch (rc) {
    case CURLE_WRITE_ERROR: return buf_check(f->body, "an answer", e);
    case CURLE_OUT_OF_MEMORY: return FAIL(e, ERR_NOMEM, "no memory to ask %s", f->shown);
    case CURLE_OPERATION_TIMEDOUT:
        return FAIL(e, ERR_NETWORK, "%s does not answer within %d s", f->shown, FETCH_TIMEOUT_MS / 1000);
    case CURLE_COULDNT_CONNECT:
        return FAIL(e, ERR_NETWORK, "nothing listens at %s; is the server running? ('quern serve')", f->shown);
    default: break;
    }
    str_show(str_of(f->text[0] != '\0' ? f->text : hub_curl.easy_strerror(rc)), why, sizeof why);
    return FAIL(e, ERR_NETWORK, "%s: %s", f->shown, why);
}

enum err fetch_get(struct fetch *f, const char *path, struct buf *body, struct error *e)
{
    char url[HUB_URL_MAX + 256];
    long status = 0;
    snprintf(url, sizeof url, "%s%s", f->url, path);
    hub_curl.easy_setopt(f->curl, CURLOPT_URL, url);
    buf_clear(body);
    f->body = body;
    f->text[0] = '\0';
    const CURLcode rc = hub_sys_fails(EIO) ? CURLE_RECV_ERROR : hub_curl.easy_perform(f->curl);
    if (rc != CURLE_OK)
        return explain(f, rc, e);
    hub_curl.easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &status);
    switch (status) {
    case 200: return OK;
    case 401:
    case 403:
        return FAIL(
            e, ERR_DENIED, "%s wants %s key; give it with --api-key", f->shown, f->headers != NULL ? "another" : "a");
    case 404: return FAIL(e, ERR_NOT_FOUND, "%s has no %s; it is not a quern server", f->shown, path);
    default: return FAIL(e, ERR_NETWORK, "%s answers %s with status %ld", f->shown, path, status);
    }
}
