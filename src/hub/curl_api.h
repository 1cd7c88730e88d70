/* libcurl, loaded when it is first needed: it brings about thirty libraries with it, whose start costs more than
 * reading a model's header, and most runs fetch nothing.
 *
 * Threads: any; hub_curl does not change after the first hub_start_curl that came back OK. */
#ifndef HUB_CURL_API_H
#define HUB_CURL_API_H

#include "base/base.h"

#include <curl/curl.h>

struct curl_api {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    void (*easy_cleanup)(CURL *c);
    CURLcode (*easy_setopt)(CURL *c, CURLoption option, ...); /* numbers are long */
    CURLcode (*easy_getinfo)(CURL *c, CURLINFO info, ...);
    CURLcode (*easy_perform)(CURL *c);
    const char *(*easy_strerror)(CURLcode rc);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
    CURLU *(*url)(void);
    void (*url_cleanup)(CURLU *u);
    CURLUcode (*url_set)(CURLU *u, CURLUPart what, const char *part, unsigned flags);
    CURLUcode (*url_get)(const CURLU *u, CURLUPart what, char **part, unsigned flags);
    void (*free)(void *p);
};

extern struct curl_api hub_curl;

/* Before anything else of this file, as often as one likes. */
enum err hub_start_curl(struct error *e) MUST_CHECK;

#endif
