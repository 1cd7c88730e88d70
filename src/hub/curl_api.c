/* Loading libcurl; see curl_api.h. */
#include "hub/curl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct curl_api hub_curl;

static char failure[200]; /* why there is no libcurl; empty = there is */

static const struct {
    const char *name;
    size_t at;
} functions[] = {
    {"curl_global_init", offsetof(struct curl_api, global_init)},
    {"curl_easy_init", offsetof(struct curl_api, easy_init)},
    {"curl_easy_cleanup", offsetof(struct curl_api, easy_cleanup)},
    {"curl_easy_setopt", offsetof(struct curl_api, easy_setopt)},
    {"curl_easy_getinfo", offsetof(struct curl_api, easy_getinfo)},
    {"curl_easy_perform", offsetof(struct curl_api, easy_perform)},
    {"curl_easy_strerror", offsetof(struct curl_api, easy_strerror)},
    {"curl_slist_append", offsetof(struct curl_api, slist_append)},
    {"curl_slist_free_all", offsetof(struct curl_api, slist_free_all)},
    {"curl_url", offsetof(struct curl_api, url)},
    {"curl_url_cleanup", offsetof(struct curl_api, url_cleanup)},
    {"curl_url_set", offsetof(struct curl_api, url_set)},
    {"curl_url_get", offsetof(struct curl_api, url_get)},
    {"curl_free", offsetof(struct curl_api, free)},
};
_Static_assert(sizeof(struct curl_api) == COUNT_OF(functions) * sizeof(void *), "every function is looked up");

static void load(void)
{
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL); /* for the rest of the process */
    if (library == NULL) {
        const char *why = dlerror();
        snprintf(failure, sizeof failure, "%s", why != NULL ? why : "libcurl.so.4 is not there");
        return;
    }
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        void *p = dlsym(library, functions[i].name);
        if (p == NULL) {
            snprintf(failure, sizeof failure, "libcurl.so.4 has no %s", functions[i].name);
            return;
        }
        memcpy((char *)&hub_curl + functions[i].at, &p, sizeof p);
    }
    if (hub_curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        snprintf(failure, sizeof failure, "libcurl does not start");
}

enum err hub_start_curl(struct error *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return failure[0] == '\0' ? OK : FAIL(e, ERR_UNSUPPORTED, "nothing can be fetched: %s", failure);
}
