/* hub: models by name. It owns the cache folder and everything that goes into it: naming, finding, downloading,
 * checking, listing and removing models. It knows nothing of what is inside a model file.
 *
 * MODEL, as every verb takes it:
 *   a path                      a .gguf file or a Hugging Face directory; wins whenever it exists
 *   a cache name                as hub_list shows it
 *   hf:owner/repo[@rev][:file]  file is a GGUF name or a quantisation tag such as Q4_K_M; without it the rule of
 *                               hub/choose.c picks, and a repository without GGUF files is taken as a directory
 *   https://host/x.gguf         one file; plain http is accepted for loopback hosts only
 *   NULL, "" or "default"       the default model
 * Finding never uses the network (hub_resolve); fetching is hub_pull, which finds first.
 *
 * The cache folder is options.cache_dir, else $QUERN_CACHE, else $XDG_CACHE_HOME/quern, else ~/.cache/quern:
 *   models/NAME/manifest.json   what the entry is: source, revision, file sizes and SHA-256, time
 *   models/NAME/FILE...         a folder here is complete and checked: it is renamed into place as one
 *   partial/NAME/FILE.part      a download that can go on, with FILE.part.json saying which bytes it holds
 *   partial/.gone-NAME          an entry on its way off the disk
 *   locks/NAME.lock             held while NAME is pulled or removed; the file stays
 * NAME is [A-Za-z0-9._-]+: "owner--repo[--file stem]" for Hugging Face, "stem-xxxxxxxx" (a hash of the URL) for https.
 *
 * Environment read here: QUERN_CACHE, XDG_CACHE_HOME, HOME, VIRTUAL_ENV, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HOME,
 * HF_HUB_CACHE; libcurl reads the proxy variables, pip its own. All of ours are read once, in hub_open. The token goes
 * to the endpoint's own host only, never to where it redirects, and never into a message.
 *
 * Threads: a struct hub belongs to one thread at a time; processes meet at the lock files. */
#ifndef HUB_HUB_H
#define HUB_HUB_H

#include "base/base.h"
#include "base/hash.h"
#include "base/limits.h"

#include <stdatomic.h>
#include <stdio.h>

struct hub;

#define HUB_DEFAULT_NAME "smollm2-135m-instruct"

struct hub_options {
    const char *cache_dir; /* NULL: from the environment as above */
    bool offline;          /* no network at all, not even pip */
    FILE *progress;        /* where progress and notes go; NULL: nowhere. A bar when it is a terminal, else lines */
    const atomic_bool
        *cancel;           /* set by a signal handler to stop a pull; what is on disk stays resumable. May be NULL */
    uint32_t retry_max;    /* tries in a row that may bring nothing new; 0: one try in all */
    uint32_t retry_ms;     /* first pause between tries; doubles up to retry_cap_ms */
    uint32_t retry_cap_ms; /* also caps what a server asks for with Retry-After */
    uint32_t connect_ms;   /* to connect and get the first byte of an answer */
    uint32_t stall_ms;     /* a transfer that brings next to nothing for so long counts as dropped */
};

void hub_options_init(struct hub_options *o); /* the values of limits.h, no cache_dir, no progress */

/* Reads the environment; touches neither disk nor network. The strings of *o are copied. */
enum err hub_open(struct hub **out, const struct hub_options *o, struct error *e) MUST_CHECK;
void hub_close(struct hub *h); /* NULL is fine */
const char *hub_cache_dir(const struct hub *h);

/* The local path of a model: its .gguf file (the first part of a split one) or its directory. ERR_NOT_FOUND names near
 * entries of the cache and says how to pull. path has PATH_BYTES_MAX bytes. */
enum err hub_resolve(struct hub *h, const char *model, char *path, struct error *e) MUST_CHECK;

/* As hub_resolve, but fetches what is not there. Waits (saying so) while another process pulls the same entry.
 * ERR_CANCELLED, ERR_NETWORK and ERR_IO leave a part on disk from which the next pull goes on. */
enum err hub_pull(struct hub *h, const char *model, char *path, struct error *e) MUST_CHECK;

enum hub_state {
    HUB_READY,   /* complete; sizes on disk agree with the manifest */
    HUB_PARTIAL, /* a pull was interrupted; bytes is what is there so far */
    HUB_DAMAGED, /* the manifest is unreadable or a file is missing or of another size; pull or remove it */
};

struct hub_entry {
    char *name;
    char *source;   /* "hf:owner/repo@commit:file", the URL without query and credentials; "" when unknown */
    char *file;     /* the one a reader opens, relative to the entry; "" when it is the whole directory */
    uint64_t bytes; /* of all files */
    uint32_t n_file;
    int64_t time_s; /* when it was pulled, seconds since 1970; 0 when unknown */
    enum hub_state state;
};

struct hub_list {
    struct hub_entry *entries; /* sorted by name */
    size_t n;
};

enum err hub_list(struct hub *h, struct hub_list *out, struct error *e) MUST_CHECK; /* an absent cache is empty */
void hub_list_fini(struct hub_list *l);

/* Remove an entry (a cache name, or any MODEL that resolves into the cache) and what is left of its downloads. Asks
 * nothing; so an empty name is ERR_INVALID here and not the default model. ERR_EXISTS while a pull holds it. Never
 * touches anything outside the cache. freed may be NULL. */
enum err hub_remove(struct hub *h, const char *model, uint64_t *freed_bytes, struct error *e) MUST_CHECK;

/* Small JSON answers of a server that the user named: what `quern top` asks. Here because this room owns the HTTP
 * client; none of the cache's rules apply. One connection is kept; no redirect is followed, no proxy used, no try
 * repeated. Belongs to one thread. */
struct fetch;

/* url: http://..., https://..., host[:port], or unix:/path/of/a/socket. key may be NULL; it is sent as a bearer token.
 * The strings are copied. Touches no network. */
enum err fetch_open(struct fetch **out, const char *url, const char *key, struct error *e) MUST_CHECK;
void fetch_close(struct fetch *f);            /* NULL is fine */
const char *fetch_url(const struct fetch *f); /* the server's, as messages show it */

/* GET url + path. The body of a 200 is written over *body, whose maximum bounds it. Any other status, a body that is
 * too long and a server that is silent for FETCH_TIMEOUT_MS are errors. */
struct buf;
enum err fetch_get(struct fetch *f, const char *path, struct buf *body, struct error *e) MUST_CHECK;

#endif
