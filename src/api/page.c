/* The web page: the files of web/, embedded at build. They ask for nothing outside this server, and the content
 * security policy says so to the browser. A file's tag is the hash of its bytes, so a browser asks again and is told
 * 304. */
#include "api/api_int.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *suffix, *type;
} types[] = {
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
    {".json", "application/json"},
    {".webmanifest", "application/manifest+json"},
    {".woff2", "font/woff2"},
};

static const char *type_of(struct str path)
{
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (str_has_suffix(path, str_of(types[i].suffix)))
            return types[i].type;
    return "application/octet-stream";
}

const struct page_file *page_find(struct str path)
{
    const struct str below = STR("/web"); /* as the page itself names its files */
    struct str wanted = str_is(path, "/") ? STR("/index.html") : path;
    if (str_has_prefix(wanted, STR("/web/")))
        wanted = (struct str){wanted.p + below.n, wanted.n - below.n};
    for (size_t i = 0; i < n_page_files; i++)
        if (str_is(wanted, page_files[i].path))
            return &page_files[i];
    return NULL;
}

void page_reply(struct call *c, struct evhttp_request *req, const struct page_file *f)
{
    static const struct route page_route = {.method = METHOD_GET, .path = "page", .open = true, .quiet = true};
    char tag[40];
    const char *known = evhttp_find_header(evhttp_request_get_input_headers(req), "If-None-Match");
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)hash64(f->bytes, f->n, 0));
    c->route = &page_route;
    call_header(c, "ETag", tag);
    call_header(c, "Cache-Control", "no-cache");
    call_header(c, "Referrer-Policy", "no-referrer");
    call_header(c, "X-Frame-Options", "DENY");
    call_header(c, "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (known != NULL && strcmp(known, tag) == 0) {
        call_reply(c, 304, NULL, STR(""));
        return;
    }
    call_reply(c, 200, type_of(str_of(f->path)), (struct str){(const char *)f->bytes, f->n});
}
